"""Furniture of version 2: runs of kitchen units, workshops, hanging objects, and unnamed clutter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embodied_perceptron_training.homes.assets import decor, furniture, kitchen, small, soft, structure
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel, PlacedObject
from embodied_perceptron_training.homes.assets.varied import greenery, kitchen_run, storage, tables
from embodied_perceptron_training.homes.assets.varied.catalogue import Family, with_family
from embodied_perceptron_training.homes.building.floorplan import Room, Side
from embodied_perceptron_training.homes.building.furnishing import (
    _MORE,
    _RECIPES,
    _SURFACE_ITEMS,
    _TILTED,
    _best_row,
    _kitchen,
    ceiling_lights,
    chance,
    curtains,
    desk_group,
    drop_some,
    sockets,
    stand_some,
    walls,
)
from embodied_perceptron_training.homes.building.placement import SIDES, RoomArranger
from embodied_perceptron_training.homes.rendering import materials as mat

NAMELESS_SHARE = 0.27  # share on surfaces; after failed placements 30 % of the small objects
_LONGEST_RUN_M = 5.0
_AREA_PER_MORE_M2 = 5.0
_TOOLS: list[tuple[Family, float]] = [
    (storage.crate, 1.0), (small.box, 1.5), (kitchen.can, 1.0), (kitchen.bottle, 1.0), (small.folder, 0.4),
    (small.bucket, 0.5), (small.scissors, 0.5),
]  # fmt: skip


# -- kitchens


def _units(rng: np.random.Generator, length: float) -> list[tuple[str, float]]:
    """(kind, width) of the units of a run within ``length`` metres, from left to right."""
    wide = float(rng.uniform(0.6, 0.95))
    core = [[("sink", wide)], [("stove", 0.6)]]
    if length > 2.3 and rng.random() < 0.65:
        core[0].insert(int(rng.integers(2)), ("dishwasher", 0.6))
    used = 0.0
    for group in core:  # not sum(), which rounds floats differently since Python 3.12: a seed must give the same home
        for _, width in group:
            used += width
    groups = list(core)
    while length - used > 0.42:
        width = float(rng.uniform(0.4, min(0.9, length - used)))
        groups.append([("cabinet", width)])
        used += width
    return [unit for k in rng.permutation(len(groups)) for unit in groups[int(k)]]


def _run(a: RoomArranger, side: Side, start: float, length: float, rng: np.random.Generator) -> list[PlacedObject]:
    """Place a run of units along ``side`` from ``start`` metres on, completely or not at all; work tops first."""
    front, top, handle = mat.wood(rng), mat.stone(rng) if rng.random() < 0.7 else mat.wood(rng), mat.metal(rng)
    splash = bool(rng.random() < 0.5)
    units = _units(rng, length)
    flipped = side in ("N", "E")  # the local x of objects is opposite to the wall's direction
    placed: list[PlacedObject] = []

    def put(model: ObjectModel, family: str, along: float, z: float) -> bool:
        done = a.at_side(with_family(model, family), side, along, z)
        if done:
            placed.append(done)
        return done is not None

    cursor, segment = start, [start, start]
    cut: tuple[float, float] | None = None
    tops: list[tuple[float, float, tuple[float, float] | None]] = []
    for kind, width in units:
        middle = cursor + width / 2
        if kind == "stove":
            tops.append((segment[0], segment[1], cut))
            made: ObjectModel = kitchen.stove(rng, MeshBuilder())
            low = -float(made.bounds()[0][2])
            segment, cut = [cursor + width, cursor + width], None
        else:
            low = 0.0
            segment[1] = cursor + width
            if kind == "dishwasher":
                made = kitchen_run.built_in_dishwasher(rng, MeshBuilder())
            else:
                made = kitchen_run.base_cabinet(
                    rng, MeshBuilder(), width, front, handle, bool(rng.random() < 0.4), kind == "sink"
                )
        if kind == "sink":
            cut = (middle, min(width - 0.1, 0.8))
        if not put(made, f"kitchen_run.{kind}", middle, low):
            a.placer.remove_last(len(placed))
            return []
        cursor += width
    tops.append((segment[0], segment[1], cut))
    for begin, end, hole in tops:
        if end - begin < 0.05:
            continue
        middle = (begin + end) / 2
        x = None if hole is None else ((-1 if flipped else 1) * (hole[0] - middle), hole[1])
        slab = kitchen_run.worktop(MeshBuilder(), end - begin, top, x, splash)
        done = put(slab, "kitchen_run.worktop", middle, kitchen_run.BASE_H)
        if done and hole is not None:
            slab_y = (
                float(placed[-1].T_world_object[1, 3]) if side in ("S", "N") else float(placed[-1].T_world_object[0, 3])
            )
            done = _hang_basin(a, placed, side, hole, slab_y, rng)
        if not done:
            a.placer.remove_last(len(placed))
            return []
    return placed


def _hang_basin(
    a: RoomArranger, placed: list[PlacedObject], side: Side, hole: tuple[float, float], across: float,
    rng: np.random.Generator,
) -> bool:  # fmt: skip
    x0, y0, _, _ = a.room.rect
    x, y = (x0 + hole[0], across) if side in ("S", "N") else (across, y0 + hole[0])
    T = placed[-1].T_world_object.copy()
    T[:3, 3] = (x, y, kitchen_run.BASE_H + kitchen_run.TOP_T)
    model = with_family(kitchen_run.basin(rng, MeshBuilder(), hole[1]), "kitchen_run.basin")
    done = a.placer.put(model, T, a.room.index, support=placed[-1].id, relation="inside", mounted="object")
    if done:
        placed.append(done)
    return done is not None


def best_run(a: RoomArranger) -> list[PlacedObject]:
    """Longest of a few attempts at a run of units, else a row as in version 1; returns work tops, stove, sink."""
    rng = a.rng
    longest: tuple[float, Side, float, int] | None = None
    for side in rng.permutation(np.array(SIDES)):
        free = a.length(side) - 0.04
        for _ in range(3):
            length = float(min(free, rng.uniform(1.9, _LONGEST_RUN_M)))
            start, seed = 0.02 + float(rng.choice([0.0, 0.5, 1.0])) * (free - length), int(rng.integers(1 << 31))
            if length < 1.7 or (longest is not None and length <= longest[0]):
                continue
            placed = _run(a, side, start, length, np.random.default_rng(seed))
            a.placer.remove_last(len(placed))
            if placed:
                longest = (length, side, start, seed)
    if longest is None:
        return _best_row(a)
    length, side, start, seed = longest
    row = _run(a, side, start, length, np.random.default_rng(seed))
    along = start + float(rng.uniform(0, 0.5))
    while along + 0.6 < start + length:  # cabinets on the wall above
        cabinet = a.make(furniture.wall_cabinet)
        width = float(np.ptp([v[0] for v in cabinet.bounds()]))
        if along + width < start + length and chance(a, 0.75):
            a.at_side(cabinet, side, along + width / 2, float(rng.uniform(1.38, 1.5)), 0.002, "wall")
        along += width + 0.002
    return [o for o in row if o.label == "stove" or (o.label == "counter" and o.model.surfaces)]


def _modern_kitchen(a: RoomArranger) -> None:
    _kitchen(a, best_run if chance(a, 0.7) else _best_row)


# -- other rooms


def _workshop(a: RoomArranger) -> None:
    """Benches, metal shelves, crates, unnamed machines, tools."""
    for _ in range(int(a.rng.integers(1, 4))):
        a.against_wall(a.make(tables.work_bench))
    stand_some(a, [(storage.metal_shelf, 0.9), (storage.metal_shelf, 0.6), (furniture.shelf, 0.4),
                   (furniture.cabinet, 0.5), (furniture.cart, 0.4), (small.bin_, 0.7), (furniture.stool, 0.7),
                   (furniture.stool, 0.4), (furniture.bicycle, 0.3), (small.fire_extinguisher, 0.4)], 0.3)  # fmt: skip
    if chance(a, 0.4):
        desk_group(a)
    if chance(a, 0.4):
        a.middle(a.make(tables.work_bench))
    drop_some(a, [(storage.crate, 0.7), (storage.crate, 0.5), (small.box, 0.6), (small.bucket, 0.5)])
    for _ in range(int(a.rng.integers(1, 4))):
        a.against_wall(_nameless(a, float(a.rng.uniform(0.4, 1.2))), corner=chance(a, 0.3))
    walls(a, [(decor.board, 0.6, 1.1), (decor.board, 0.4, 1.1), (decor.clock, 0.4, 1.9),
              (furniture.wall_shelf, 0.6, 1.4), (decor.calendar, 0.4, 1.4), (decor.poster, 0.3, 1.3)])  # fmt: skip
    for family, p in ((small.broom, 0.5), (small.mop, 0.2)):
        if chance(a, p):
            a.lean(a.make(family), 0.14)


_VARIED: dict[str, Callable[[RoomArranger], None]] = {**_RECIPES, "kitchen": _modern_kitchen, "workshop": _workshop}


def _extras(a: RoomArranger) -> None:
    """Objects new in version 2: hanging plants, displays, crates; unnamed objects on the floor and on walls."""
    if a.room.kind not in ("bathroom", "corridor") and chance(a, 0.2):
        plant = a.make(greenery.hanging_plant)
        x0, y0, x1, y1 = a.room.rect
        a.on_ceiling(plant, float(a.rng.uniform(x0 + 0.4, x1 - 0.4)), float(a.rng.choice([y0 + 0.45, y1 - 0.45])))
    if a.room.kind in ("office", "living room", "workshop") and chance(a, 0.18):
        a.against_wall(a.make(storage.stand_display), corner=chance(a, 0.5))
    drop_some(a, [(storage.crate, 0.15)])
    for _ in range(int(a.rng.poisson(a.room.area_m2 / 12))):
        thing = _nameless(a, float(np.exp(a.rng.uniform(np.log(0.12), np.log(0.9)))))
        (a.against_wall if chance(a, 0.5) else a.free)(thing)
    for _ in range(int(a.rng.poisson(0.5))):
        a.on_wall(_nameless(a, float(a.rng.uniform(0.1, 0.4))), float(a.rng.uniform(0.9, 1.8)))


def _nameless(a: RoomArranger, size_m: float) -> ObjectModel:
    assert a.catalogue is not None
    return a.catalogue.distractor(size_m, a.rng)


def fill_varied(a: RoomArranger, anchor: PlacedObject, index: int, density: float) -> list[PlacedObject]:
    """Put objects on surface ``index`` of ``anchor``: suitable ones as in version 1, and some unnamed ones."""
    surface = anchor.model.surfaces[index]
    rate, limit, families = (5.0, 5, _TOOLS) if surface.accepts == "tools" else _SURFACE_ITEMS.get(
        surface.accepts, (1.0, 1, _TOOLS)
    )  # fmt: skip
    rng = a.rng
    area = 4 * surface.half_m[0] * surface.half_m[1]
    count = min(int(rng.poisson(rate * area * density)), limit + int(area / 0.5))
    weights = np.array([w for _, w in families])
    share = 0.6 if surface.accepts == "tools" else NAMELESS_SHARE
    placed = []
    for _ in range(count):
        if surface.accepts not in _SURFACE_ITEMS and surface.accepts != "tools":
            break
        tilt = None
        if chance(a, share):
            largest = min(0.45, 1.6 * min(surface.half_m), 1.2 * surface.clearance_m)
            model = _nameless(a, float(np.exp(rng.uniform(np.log(0.06), np.log(max(largest, 0.07))))))
            yaw = float(rng.uniform(-np.pi, np.pi))
        else:
            family = families[int(rng.choice(len(families), p=weights / weights.sum()))][0]
            model = a.make(family)
            turned = model.has_front and chance(a, 0.85)
            yaw = float(rng.normal(0, 0.25)) if turned else float(rng.uniform(-np.pi, np.pi))
            tilt = rotation("x", -_TILTED[family]) if family in _TILTED else None
            yaw = 0.0 if family is small.book_row else yaw
        done = a.on_surface(model, anchor, surface, yaw, tilt)
        if done:
            placed.append(done)
    return placed


def furnish_varied(a: RoomArranger, room: Room, clutter: float) -> None:
    """Fill one room of version 2."""
    ceiling_lights(a)
    _VARIED[room.kind](a)
    more = _MORE.get(room.kind, [])
    for _ in range(int(a.rng.poisson(room.area_m2 / _AREA_PER_MORE_M2)) if more else 0):
        a.against_wall(a.make(more[int(a.rng.integers(len(more)))]), corner=chance(a, 0.3))
    _extras(a)
    curtains(a)
    sockets(a)
    drop_some(a, [(soft.bag, 0.1), (soft.shoe, 0.12)])
    if chance(a, 0.04):
        a.against_wall(with_family(structure.column(a.rng, MeshBuilder(), room.height_m - 0.002), "shell"), corner=True)
    level = clutter * float(np.exp(a.rng.normal(0.1, 0.5)))  # tidiness varies
    first = [o for o in a.placer.objects if o.room == room.index]
    while first:
        added = [fill_varied(a, o, k, level) for o in first for k in range(len(o.model.surfaces))]
        first = [o for new in added for o in new if o.model.surfaces]
