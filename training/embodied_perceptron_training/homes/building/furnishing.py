"""Furniture and small objects of each kind of room: co-occurrence in real homes as short programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from embodied_perceptron_training.homes.assets import (
    bath,
    decor,
    electronics,
    furniture,
    kitchen,
    small,
    soft,
    structure,
)
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel, PlacedObject
from embodied_perceptron_training.homes.assets.varied.catalogue import Family
from embodied_perceptron_training.homes.building.floorplan import Room, Side
from embodied_perceptron_training.homes.building.placement import SIDES, RoomArranger
from embodied_perceptron_training.homes.rendering import materials as mat

# -- groups of objects


def chance(a: RoomArranger, p: float) -> bool:
    """True with probability ``p``."""
    return bool(a.rng.random() < p)


def stand_some(a: RoomArranger, wanted: Sequence[tuple[Family, float]], corner: float = 0.4) -> None:
    """Put each (family, probability) against a wall, in a corner with probability ``corner``."""
    for family, p in wanted:
        if chance(a, p):
            a.against_wall(a.make(family), corner=chance(a, corner))


def drop_some(a: RoomArranger, wanted: Sequence[tuple[Family, float]]) -> None:
    """Put each (family, probability) anywhere on the floor."""
    for family, p in wanted:
        if chance(a, p):
            a.free(a.make(family))


def cushions(a: RoomArranger, seat: PlacedObject, count: int) -> None:
    """Cushions that lean against the back of a couch or a chair."""
    if not seat.model.surfaces:
        return
    surface = seat.model.surfaces[0]
    for x in a.rng.permutation(np.linspace(-1, 1, max(count, 3)))[:count]:
        tilt = rotation("x", -float(a.rng.uniform(0.2, 0.35)))
        a.on_surface(a.make(soft.cushion), seat, surface, float(a.rng.normal(0, 0.15)), tilt, (float(x), 1.0))


def _fitting(a: RoomArranger, place: Callable[[], PlacedObject | None]) -> PlacedObject | None:
    """Object placed by ``place``; with varying sizes it is drawn again when the first does not fit."""
    for _ in range(1 if a.catalogue is None else 5):
        placed = place()
        if placed:
            return placed
    return None


def dining_group(a: RoomArranger) -> None:
    """A table with chairs around it."""
    table = _fitting(a, lambda: a.middle(a.make(furniture.dining_table), 0.3))
    if not table:
        return
    high = table.model.bounds()[1]
    w, d = float(high[0]), float(high[1])
    seed = int(a.rng.integers(1 << 31))
    along = (-w * 0.45, w * 0.45) if w > 0.65 else (0.0,)
    if a.catalogue is not None and w > 0.95:  # one chair for every 0.7 m
        along = tuple(np.linspace(-w + 0.35, w - 0.35, int(2 * w / 0.7)).tolist())
    places = [(x, s) for s in (-1, 1) for x in along]
    for x, s in places:
        if chance(a, 0.9):
            chair = a.make(furniture.chair, np.random.default_rng(seed))
            tuck = float(a.rng.uniform(-0.12, 0.12))
            a.relative(
                chair, table, (x, s * (d + 0.12 + tuck)), (0.0 if s > 0 else np.pi) + float(a.rng.normal(0, 0.1))
            )
    for s in (-1, 1):
        if w > 0.65 and chance(a, 0.3):
            a.relative(
                a.make(furniture.chair, np.random.default_rng(seed)), table, (s * (w + 0.2), 0.0), -s * np.pi / 2
            )


def desk_group(a: RoomArranger) -> None:
    """A desk with a screen or a laptop, and a chair in front."""
    desk = _fitting(a, lambda: a.against_wall(a.make(furniture.desk)))
    if not desk:
        return
    top = desk.model.surfaces[0]
    if chance(a, 0.65):
        for x in (-0.6, 0.6) if chance(a, 0.25) else (float(a.rng.uniform(-0.3, 0.3)),):
            a.on_surface(a.make(electronics.monitor), desk, top, float(a.rng.normal(0, 0.08)), at=(x, 0.9))
        a.on_surface(a.make(electronics.keyboard), desk, top, float(a.rng.normal(0, 0.05)), at=(0.0, -0.5))
        a.on_surface(a.make(electronics.mouse), desk, top, float(a.rng.normal(0, 0.1)), at=(0.42, -0.5))
        if chance(a, 0.6):
            a.beside(a.make(electronics.computer), desk, 1 if chance(a, 0.5) else -1)
    else:
        opening = float(a.rng.uniform(0.75, 1.0)) if chance(a, 0.85) else 0.0
        a.on_surface(
            a.make(electronics.laptop), desk, top, 0.0, at=(0.0, -0.2), joint_states={"lid": round(opening, 3)}
        )
    chair = a.make(furniture.office_chair if chance(a, 0.65) else furniture.chair)
    a.relative(chair, desk, (0.0, -float(a.rng.uniform(0.6, 0.75))), np.pi + float(a.rng.normal(0, 0.35)))


def opposite(a: RoomArranger, couch: PlacedObject) -> PlacedObject | None:
    """A television stand across the room from the couch."""
    side = a.side_of(couch)
    across = {"S": "N", "N": "S", "W": "E", "E": "W"}[side]
    for _ in range(6):
        stand = a.against_wall(a.make(furniture.tv_stand), across)  # type: ignore[arg-type]
        if stand:
            return stand
    return None


def rug(a: RoomArranger, anchor: PlacedObject) -> None:
    """A carpet in front of a couch or a bed."""
    low, _ = anchor.model.bounds()
    a.relative(a.make(soft.carpet), anchor, (0.0, float(low[1]) - 0.75))


def walls(a: RoomArranger, wanted: Sequence[tuple[Family, float, float]]) -> None:
    """Hang objects on the walls: (family, probability, height of the base)."""
    for family, p, z in wanted:
        if chance(a, p):
            a.on_wall(a.make(family), z + float(a.rng.uniform(-0.08, 0.08)))


def curtains(a: RoomArranger) -> None:
    """A pair of curtains at some windows."""
    for window in [o for o in a.placer.objects if o.room == a.room.index and o.label == "window"]:
        if not chance(a, 0.55):
            continue
        seed = int(a.rng.integers(1 << 31))
        high = window.model.bounds()[1]
        for s in (-1, 1):
            made = a.make(soft.curtain, np.random.default_rng(seed))
            c_low, c_high = made.bounds()
            side = a.side_of(window)
            shift = s * (float(high[0]) + (c_high[0] - c_low[0]) / 2 - 0.04)
            position = window.T_world_object[:3, :3] @ np.array([shift, 0.0, 0.0]) + window.T_world_object[:3, 3]
            top = min(a.room.height_m - 0.06, 2.35)
            a.at_side(
                made, side, a.along(side, position), max(top - float(c_high[2]), 0.02), 0.03, "wall", check="contact"
            )


def ceiling_lights(a: RoomArranger) -> None:
    """One or two ceiling lights that illuminate the room."""
    x0, y0, x1, y1 = a.room.rect
    cx, cy = a.room.center
    count = 2 if max(x1 - x0, y1 - y0) > 4.8 and chance(a, 0.5) else 1
    family = electronics.ceiling_light
    if a.room.kind in ("living room", "bedroom") and a.room.height_m > 2.5:
        family = (electronics.ceiling_light, electronics.pendant, electronics.chandelier)[
            int(a.rng.choice(3, p=[0.45, 0.4, 0.15]))
        ]
    for k in range(count):
        f = (k + 1) / (count + 1) - 0.5
        x, y = (cx + f * (x1 - x0), cy) if x1 - x0 > y1 - y0 else (cx, cy + f * (y1 - y0))
        a.on_ceiling(a.make(family), x, y)


def sockets(a: RoomArranger) -> None:
    """Wall sockets near the floor."""
    for _ in range(int(a.rng.integers(1, 3))):
        a.on_wall(a.make(structure.socket), 0.3)


# -- small objects on surfaces


# accepts -> (expected objects per square metre, upper limit, [(family, weight)])
_SURFACE_ITEMS: dict[str, tuple[float, int, list[tuple[Family, float]]]] = {
    "books": (5.0, 3, [(small.book_row, 5), (small.book, 3), (decor.vase, 0.6), (decor.photo_frame, 0.8),
                       (small.box, 0.4), (decor.small_plant, 0.7), (small.folder, 1.0), (decor.globe, 0.2),
                       (decor.trophy, 0.2), (electronics.camera, 0.2), (small.basket, 0.4)]),
    "decor": (4.0, 4, [(decor.vase, 2), (decor.photo_frame, 2), (decor.small_plant, 2), (electronics.candle, 1),
                       (electronics.candlestick, 0.5), (small.book, 1.5), (decor.statue, 0.6), (electronics.table_lamp,
                       0.8), (electronics.radio, 0.4), (small.alarm, 0.3), (decor.trophy, 0.3), (soft.hat, 0.2),
                       (electronics.speaker, 0.4), (small.tissue_box, 0.4), (decor.globe, 0.2)]),
    "bedside": (9.0, 3, [(electronics.table_lamp, 4), (small.book, 2), (small.alarm, 1.5), (small.tissue_box, 0.6),
                         (decor.small_plant, 0.6), (decor.photo_frame, 0.6), (electronics.telephone, 0.3)]),
    "coffee": (5.0, 4, [(small.magazine, 2), (small.book, 1.5), (electronics.remote, 2), (decor.vase, 1),
                        (electronics.candle, 0.8), (small.tissue_box, 0.8), (decor.small_plant, 0.7)]),
    "desk": (5.0, 5, [(electronics.desk_lamp, 2), (small.paper, 2), (small.book, 1.5), (small.pen, 1.2),
                      (small.notebook, 1.2), (electronics.telephone, 0.8), (small.stapler, 0.5),
                      (small.scissors, 0.4), (decor.small_plant, 0.7),
                      (electronics.printer, 0.5), (electronics.headphones, 0.5), (small.folder, 0.4),
                      (electronics.speaker, 0.4), (small.tissue_box, 0.3), (electronics.projector, 0.15)]),
    "media": (8.0, 2, [(electronics.speaker, 1), (small.box, 1), (small.book_row, 1), (electronics.radio, 0.5)]),
    "storage": (3.0, 2, [(small.box, 2), (soft.folded_towel, 1), (small.book_row, 1), (soft.blanket, 1),
                         (small.basket, 0.7)]),
    "toys": (10.0, 3, [(small.toy, 3), (small.ball, 1)]),
    "shoes": (12.0, 3, [(soft.shoe, 1)]),
    "sill": (4.0, 3, [(decor.small_plant, 3), (decor.flowerpot, 1), (decor.vase, 0.8), (electronics.candle, 0.5),
                      (decor.statue, 0.3)]),
    "laundry": (4.0, 2, [(small.basket, 1), (soft.folded_towel, 1), (soft.clothes, 0.6), (small.box, 0.4)]),
    "seat": (0.25, 1, [(soft.clothes, 1), (small.book, 0.6), (soft.folded_towel, 0.3), (small.toy, 0.4),
                      (soft.bag, 0.5)]),
    "counter": (5.0, 4, [(kitchen.bottle, 1.2), (kitchen.bowl, 1), (kitchen.cup, 1.5), (kitchen.jar, 1),
                         (kitchen.utensil, 0.8), (kitchen.plate, 0.7), (kitchen.food, 1), (kitchen.pot, 0.6),
                         (kitchen.knife, 0.4), (kitchen.bread, 0.5), (kitchen.tray, 0.4), (kitchen.fruit, 0.6),
                         (kitchen.seasoning, 0.6), (kitchen.wine, 0.4), (kitchen.can, 0.5),
                         (kitchen.pitcher, 0.3), (decor.small_plant, 0.3)]),
    "dining": (4.0, 6, [(kitchen.plate, 2), (kitchen.cup, 2), (kitchen.glass, 1.5), (kitchen.bowl, 1.5),
                        (kitchen.bottle, 0.8), (decor.vase, 0.7), (kitchen.seasoning, 0.6), (kitchen.spoon, 0.6),
                        (kitchen.teapot, 0.4), (kitchen.pitcher, 0.4), (kitchen.fruit, 0.5),
                        (electronics.candle, 0.4), (kitchen.tray, 0.3), (kitchen.wine, 0.3), (small.book, 0.3),
                        (small.paper, 0.3)]),
    "kitchen": (8.0, 4, [(kitchen.bowl, 1.5), (kitchen.plate, 1.5), (kitchen.cup, 1.5), (kitchen.glass, 1),
                         (kitchen.jar, 1), (kitchen.can, 1), (kitchen.pot, 0.7), (kitchen.food, 0.8)]),
    "dishes": (12.0, 3, [(kitchen.cup, 2), (kitchen.plate, 1.5), (kitchen.bowl, 1), (kitchen.glass, 1)]),
    "fridge": (12.0, 4, [(kitchen.bottle, 2), (kitchen.jar, 1.5), (kitchen.can, 1.5), (kitchen.food, 1),
                         (kitchen.fruit, 1.5), (kitchen.bowl, 0.5)]),
    "stove": (4.0, 2, [(kitchen.pot, 2), (kitchen.pan, 2), (kitchen.pot, 0.5)]),
    "oven": (4.0, 1, [(kitchen.plate, 1), (kitchen.bowl, 1), (kitchen.pan, 0.4)]),
    "bowl": (80.0, 1, [(kitchen.fruit, 1)]),
    "toilet": (20.0, 2, [(bath.toilet_roll, 2), (small.tissue_box, 0.5), (decor.small_plant, 0.4)]),
    "basin": (25.0, 3, [(bath.soap_dispenser, 1.5), (bath.toothbrush, 1.5), (bath.soap, 1), (bath.cosmetics, 1),
                        (bath.shampoo, 0.5), (bath.toiletry, 0.3)]),
}  # fmt: skip

_TILTED = {decor.photo_frame: 0.22}


def fill_surface(arranger: RoomArranger, anchor: PlacedObject, index: int, density: float = 1.0) -> list[PlacedObject]:
    """Put suitable objects on surface ``index`` of ``anchor``, with a Poisson distributed number."""
    surface = anchor.model.surfaces[index]
    if surface.accepts not in _SURFACE_ITEMS:
        return []
    rng = arranger.rng
    rate, limit, families = _SURFACE_ITEMS[surface.accepts]
    area = 4 * surface.half_m[0] * surface.half_m[1]
    count = min(int(rng.poisson(rate * area * density)), limit)
    weights = np.array([w for _, w in families])
    placed = []
    for _ in range(count):
        family = families[int(rng.choice(len(families), p=weights / weights.sum()))][0]
        model = arranger.make(family)
        yaw = float(rng.normal(0, 0.2)) if model.has_front else float(rng.uniform(-np.pi, np.pi))
        tilt = rotation("x", -_TILTED[family]) if family in _TILTED else None
        if family is small.book_row:
            yaw = 0.0
        done = arranger.on_surface(model, anchor, surface, yaw, tilt)
        if done:
            placed.append(done)
    return placed


# -- rooms of each kind


def _kitchen(a: RoomArranger, make_row: Callable[[RoomArranger], list[PlacedObject]] | None = None) -> None:
    """A line of units with sink and stove, cabinets above, a fridge, perhaps a table."""
    row = (make_row or _best_row)(a)
    stove = next((o for o in row if o.label == "stove"), None)
    if stove and chance(a, 0.75):
        a.on_wall(a.make(kitchen.range_hood), 1.55, above=stove)
    for unit in row:
        if unit.label in ("counter", "dishwasher") and chance(a, 0.6):
            a.on_wall(a.make(furniture.wall_cabinet), 1.45, above=unit)
    _appliances(a, [o for o in row if o.label in ("counter", "dishwasher")])
    if not any(o.label == "refrigerator" for o in row):
        a.against_wall(a.make(kitchen.refrigerator), corner=True)
    if chance(a, 0.2):
        a.middle(a.make(furniture.kitchen_island))
        stand_some(a, [(furniture.stool, 0.6), (furniture.stool, 0.6)], 0.0)
    elif chance(a, 0.75):
        dining_group(a)
    stand_some(a, [(small.bin_, 0.7), (furniture.shelf, 0.3), (decor.plant, 0.3), (furniture.stool, 0.3),
                   (furniture.cart, 0.15),
                   (furniture.water_cooler, 0.08), (small.basket, 0.2), (furniture.cabinet, 0.25)], 0.5)  # fmt: skip
    for family, p in ((small.broom, 0.25), (small.mop, 0.1)):
        if chance(a, p):
            a.lean(a.make(family), 0.14)
    drop_some(a, [(small.bucket, 0.1), (soft.bag, 0.2), (small.fire_extinguisher, 0.08)])
    walls(a, [(decor.clock, 0.5, 1.8), (decor.picture, 0.4, 1.4), (decor.calendar, 0.3, 1.4),
                     (soft.towel, 0.4, 0.9), (furniture.wall_shelf, 0.3, 1.5)])  # fmt: skip


def _best_row(a: RoomArranger) -> list[PlacedObject]:
    """Longest of a few attempts at a row of units along one wall; the others are removed."""
    rng = a.rng
    front, top = mat.wood(rng), mat.stone(rng)
    best: tuple[int, Side, int] | None = None
    for side in rng.permutation(np.array(SIDES)):
        seed = int(rng.integers(1 << 31))
        placed = _row(a, side, np.random.default_rng(seed), front, top)
        if best is None or len(placed) > best[0]:
            best = (len(placed), side, seed)
        a.placer.remove_last(len(placed))
    if best is None:
        return []
    return _row(a, best[1], np.random.default_rng(best[2]), front, top)


def _row(
    a: RoomArranger, side: Side, rng: np.random.Generator, front: mat.Material, top: mat.Material
) -> list[PlacedObject]:
    units: list[ObjectModel] = [
        kitchen.sink(rng, MeshBuilder(), 0.8, front, top),
        kitchen.counter(rng, MeshBuilder(), float(rng.uniform(0.5, 0.9)), front, top, bool(rng.random() < 0.5)),
        kitchen.stove(rng, MeshBuilder()),
        kitchen.counter(rng, MeshBuilder(), float(rng.uniform(0.4, 0.8)), front, top, bool(rng.random() < 0.5)),
        kitchen.counter(rng, MeshBuilder(), float(rng.uniform(0.5, 1.0)), front, top, False),
    ]
    if rng.random() < 0.5:
        units.insert(1, kitchen.dishwasher(rng, MeshBuilder(), top))
    if rng.random() < 0.6:
        units.insert(0 if rng.random() < 0.5 else len(units), kitchen.refrigerator(rng, MeshBuilder()))
    placed: list[PlacedObject] = []
    cursor = 0.02
    length = a.length(side)
    for unit in units:
        low, high = unit.bounds()
        width = float(high[0] - low[0])
        while cursor + width <= length - 0.02:
            done = a.at_side(unit, side, cursor + width / 2, -float(low[2]))
            cursor += width + 0.001 if done else 0.1
            if done:
                placed.append(done)
                break
    return placed


def _appliances(a: RoomArranger, counters: list[PlacedObject]) -> None:
    for family, p in (
        (kitchen.microwave, 0.6),
        (kitchen.coffee_maker, 0.5),
        (kitchen.kettle, 0.6),
        (kitchen.toaster, 0.45),
        (kitchen.dish_rack, 0.35),
        (kitchen.oven, 0.15),
    ):
        if counters and chance(a, p):
            unit = counters[int(a.rng.integers(len(counters)))]
            a.on_surface(a.make(family), unit, unit.model.surfaces[0], float(a.rng.normal(0, 0.06)))


def _bathroom(a: RoomArranger) -> None:
    """Toilet, basin with mirror, tub or shower, towels, perhaps a washing machine."""
    if chance(a, 0.55):
        a.against_wall(a.make(bath.bathtub), corner=True)
    else:
        a.against_wall(a.make(bath.shower), corner=True)
    toilet = a.against_wall(a.make(bath.toilet))
    basin = a.against_wall(a.make(bath.washbasin))
    if basin:
        a.on_wall(a.make(bath.medicine_cabinet if chance(a, 0.4) else decor.mirror), 1.2, above=basin)
    if toilet:
        for sign in (-1, 1):
            if chance(a, 0.4):
                a.beside(a.make(bath.toilet_brush if chance(a, 0.7) else bath.plunger), toilet, sign)
    stand_some(a, [(electronics.washing_machine, 0.5), (electronics.clothes_dryer, 0.2), (small.hamper, 0.4),
                   (small.bin_, 0.5), (furniture.shelf, 0.3), (bath.bidet, 0.12), (furniture.stool, 0.2),
                   (bath.drain_pipe, 0.1)], 0.5)  # fmt: skip
    drop_some(a, [(bath.scale, 0.35), (small.bucket, 0.15), (soft.clothes, 0.1)])
    if chance(a, 0.6):
        a.free(a.make(soft.mat_), turn=False)
    walls(a, [(soft.towel, 0.8, 0.9), (soft.towel, 0.4, 0.9), (bath.toilet_paper, 0.7, 0.65),
                     (furniture.wall_shelf, 0.25, 1.4)])  # fmt: skip


def _living_room(a: RoomArranger) -> None:
    """A couch facing a television over a coffee table, perhaps a dining corner, shelves, plants."""
    couch = _fitting(a, lambda: a.against_wall(a.make(furniture.couch)))
    if couch:
        cushions(a, couch, int(a.rng.integers(1, 4)))
        if chance(a, 0.8):
            a.before(a.make(furniture.coffee_table), couch, float(a.rng.uniform(0.35, 0.5)))
        for sign in (-1, 1):
            if chance(a, 0.35):
                a.beside(
                    a.make(furniture.side_table) if chance(a, 0.6) else a.make(electronics.floor_lamp), couch, sign
                )
        stand = opposite(a, couch) or a.against_wall(a.make(furniture.tv_stand))
        if stand:
            a.on_surface(a.make(electronics.tv), stand, stand.model.surfaces[0], at=(0.0, 0.0))
        if chance(a, 0.5):
            a.on_wall(a.make(decor.picture), 1.35, above=couch)
        if chance(a, 0.7):
            rug(a, couch)
    if chance(a, 0.6):
        dining_group(a)
    for _ in range(int(a.rng.integers(0, 3))):
        placed = a.against_wall(a.make(furniture.armchair), corner=True)
        if placed and chance(a, 0.5):
            cushions(a, placed, 1)
    stand_some(a, [(furniture.shelf, 0.9), (furniture.cabinet, 0.6), (furniture.shelf, 0.3), (decor.fireplace, 0.12),
                   (furniture.piano, 0.1)], 0.0)  # fmt: skip
    stand_some(a, [(decor.plant, 0.8), (electronics.floor_lamp, 0.5), (furniture.ottoman, 0.3), (furniture.footstool,
    0.15),
                   (furniture.beanbag, 0.12), (electronics.fan, 0.12), (small.basket, 0.25), (electronics.heater, 0.08),
                   (furniture.bicycle, 0.06), (furniture.cart, 0.1), (furniture.divider, 0.05)])  # fmt: skip
    drop_some(a, [(small.toy, 0.3), (small.ball, 0.2), (small.box, 0.25), (soft.bag, 0.2), (soft.clothes, 0.05)])
    if chance(a, 0.15):
        a.lean(a.make(small.guitar), 0.16)
    walls(a, [(decor.picture, 0.9, 1.4), (decor.picture, 0.6, 1.4), (decor.clock, 0.35, 1.8),
                     (decor.mirror, 0.2, 1.2), (electronics.air_conditioner, 0.15, 2.2), (decor.map_, 0.06, 1.3),
                     (furniture.wall_shelf, 0.3, 1.5), (decor.poster, 0.15, 1.3)])  # fmt: skip


def _bedroom(a: RoomArranger) -> None:
    """A bed with stands and lamps, wardrobe, dresser, perhaps a desk."""
    bed = _fitting(a, lambda: a.against_wall(a.make(soft.bed)))
    if bed:
        for sign in (-1, 1):
            if chance(a, 0.75):
                a.beside(a.make(furniture.nightstand), bed, sign)
        _make_bed(a, bed)
        if chance(a, 0.5):
            a.on_wall(a.make(decor.picture), 1.45, above=bed)
        if chance(a, 0.4):
            rug(a, bed)
    stand_some(a, [(furniture.wardrobe, 0.85), (furniture.dresser, 0.45), (furniture.commode, 0.2)], 0.2)
    if chance(a, 0.45):
        desk_group(a)
    stand_some(a, [(furniture.shelf, 0.4), (soft.crib, 0.1)], 0.2)
    stand_some(a, [(furniture.armchair, 0.25), (furniture.ottoman, 0.2), (decor.plant, 0.4),
                   (electronics.floor_lamp, 0.3), (small.hamper, 0.3), (furniture.stool, 0.15), (electronics.fan, 0.1),
                   (furniture.bench, 0.12), (furniture.chair, 0.3), (furniture.ironing_board, 0.06),
                   (furniture.exercise_bike, 0.06)])  # fmt: skip
    drop_some(a, [(soft.backpack, 0.25), (soft.clothes, 0.2), (soft.shoe, 0.3), (small.box, 0.2), (soft.luggage, 0.15),
                  (small.toy, 0.25), (small.dumbbell, 0.1)])  # fmt: skip
    if chance(a, 0.2):
        a.lean(a.make(decor.leaning_frame), 0.15)
    walls(a, [(decor.picture, 0.6, 1.4), (decor.poster, 0.35, 1.3), (decor.mirror, 0.4, 0.9),
                     (decor.clock, 0.15, 1.9), (furniture.wall_shelf, 0.25, 1.5), (electronics.wall_tv, 0.15, 1.3),
                     (soft.hanging_jacket, 0.2, 1.0)])  # fmt: skip


def _make_bed(a: RoomArranger, bed: PlacedObject) -> None:
    if len(bed.model.surfaces) != 2:
        return
    pillows, cover = bed.model.surfaces
    double = bed.model.attributes.get("style") == "double"
    for x in (-0.9, 0.9) if double else (0.0,):
        a.on_surface(a.make(soft.pillow), bed, pillows, at=(x, 0.5))
    if chance(a, 0.6):
        a.on_surface(a.make(soft.spread_blanket if chance(a, 0.6) else soft.blanket), bed, cover)
    for family, p in ((small.toy, 0.2), (small.book, 0.15), (soft.clothes, 0.15)):
        if chance(a, p):
            a.on_surface(a.make(family), bed, cover, float(a.rng.uniform(-np.pi, np.pi)))


def _office(a: RoomArranger) -> None:
    """Two or three desks with computers, shelves, a board."""
    for _ in range(int(a.rng.integers(1, 4))):
        desk_group(a)
    stand_some(a, [(furniture.shelf, 0.9), (furniture.shelf, 0.5), (furniture.cabinet, 0.6), (decor.plant, 0.7),
                   (furniture.armchair, 0.3), (electronics.floor_lamp, 0.35), (furniture.couch, 0.15),
                   (furniture.water_cooler, 0.12)], 0.1)  # fmt: skip
    if chance(a, 0.2):
        dining_group(a)
    stand_some(a, [(small.bin_, 0.7), (small.box, 0.5), (soft.backpack, 0.3), (electronics.fan, 0.15),
                   (small.fire_extinguisher, 0.2), (electronics.heater, 0.1), (small.bin_, 0.3)])  # fmt: skip
    if chance(a, 0.15):
        a.lean(a.make(small.guitar), 0.16)
    walls(a, [(decor.board, 0.5, 1.0), (decor.blackboard, 0.1, 1.0), (decor.picture, 0.5, 1.4),
                     (decor.clock, 0.4, 1.9), (decor.calendar, 0.35, 1.4), (decor.map_, 0.25, 1.2),
                     (decor.poster, 0.3, 1.3), (electronics.air_conditioner, 0.2, 2.2),
                     (furniture.wall_shelf, 0.3, 1.5)])  # fmt: skip


def _corridor(a: RoomArranger) -> None:
    """Shoes, coats, a mirror."""
    a.tries = 6
    stand_some(a, [(furniture.rack, 0.6), (furniture.coat_rack, 0.4), (furniture.commode, 0.35), (furniture.bench, 0.2),
                   (decor.plant, 0.3), (small.bin_, 0.15), (furniture.bicycle, 0.1)], 0.6)  # fmt: skip
    if chance(a, 0.3):
        a.lean(a.make(small.umbrella), 0.18)
    if chance(a, 0.5):
        a.free(a.make(soft.mat_), turn=False)
    walls(a, [(decor.mirror, 0.5, 1.0), (decor.picture, 0.7, 1.4), (decor.picture, 0.5, 1.4),
                     (decor.clock, 0.2, 1.9), (soft.hanging_jacket, 0.5, 1.0),
                     (soft.hanging_jacket, 0.3, 1.0)])  # fmt: skip


_RECIPES: dict[str, Callable[[RoomArranger], None]] = {
    "living room": _living_room,
    "bedroom": _bedroom,
    "kitchen": _kitchen,
    "bathroom": _bathroom,
    "office": _office,
    "corridor": _corridor,
}

# Additional objects of large rooms.
_MORE: dict[str, list[Family]] = {
    "living room": [furniture.armchair, furniture.shelf, decor.plant, furniture.cabinet, furniture.chair, small.box],
    "bedroom": [furniture.shelf, furniture.chair, decor.plant, furniture.dresser, furniture.ottoman, small.box],
    "kitchen": [furniture.shelf, furniture.stool, decor.plant, small.bin_, furniture.cabinet],
    "office": [furniture.shelf, furniture.chair, furniture.cabinet, decor.plant, small.box],
}  # fmt: skip
_AREA_PER_MORE_M2 = 9.0


def furnish(a: RoomArranger, room: Room, clutter: float) -> None:
    """Fill one room: lights, the recipe of its kind, curtains, then small objects on every surface."""
    ceiling_lights(a)
    _RECIPES[room.kind](a)
    more = _MORE.get(room.kind, [])
    for _ in range(int(a.rng.poisson(room.area_m2 / _AREA_PER_MORE_M2)) if more else 0):
        a.against_wall(a.make(more[int(a.rng.integers(len(more)))]), corner=chance(a, 0.3))
    curtains(a)
    sockets(a)
    if chance(a, 0.04):
        a.against_wall(structure.column(a.rng, MeshBuilder(), room.height_m - 0.002), corner=True)
    first = [o for o in a.placer.objects if o.room == room.index]
    while first:  # objects on objects, until no new one has surfaces
        added = [fill_surface(a, o, k, clutter) for o in first for k in range(len(o.model.surfaces))]
        first = [o for new in added for o in new if o.model.surfaces]
