"""Kitchens and bathrooms: rows of units along a wall, and what belongs to them."""

from __future__ import annotations

import numpy as np

from embodied_perceptron_training.synthetic import groups
from embodied_perceptron_training.synthetic import materials as mat
from embodied_perceptron_training.synthetic.arrange import SIDES, RoomArranger
from embodied_perceptron_training.synthetic.assets import (
    bath,
    decor,
    electronics,
    large,
    seating,
    small,
    soft,
    storage,
    tables,
)
from embodied_perceptron_training.synthetic.assets import (
    kitchen as kitchen_assets,
)
from embodied_perceptron_training.synthetic.floorplan import Side
from embodied_perceptron_training.synthetic.groups import chance, drop_some, stand_some
from embodied_perceptron_training.synthetic.model import ObjectModel, PlacedObject


def kitchen(a: RoomArranger) -> None:
    """A line of units with sink and stove, cabinets above, a fridge, perhaps a table."""
    row = _best_row(a)
    stove = next((o for o in row if o.label == "stove"), None)
    if stove and chance(a, 0.75):
        a.on_wall(kitchen_assets.range_hood(a.rng), 1.55, above=stove)
    for unit in row:
        if unit.label in ("counter", "dishwasher") and chance(a, 0.6):
            a.on_wall(storage.wall_cabinet(a.rng), 1.45, above=unit)
    _appliances(a, [o for o in row if o.label in ("counter", "dishwasher")])
    if not any(o.label == "refrigerator" for o in row):
        a.against_wall(kitchen_assets.refrigerator(a.rng), corner=True)
    if chance(a, 0.2):
        a.middle(tables.kitchen_island(a.rng))
        stand_some(a, [(seating.stool, 0.6), (seating.stool, 0.6)], 0.0)
    elif chance(a, 0.75):
        groups.dining_group(a)
    stand_some(a, [(small.bin_, 0.7), (storage.shelf, 0.3), (decor.plant, 0.3), (seating.stool, 0.3),
                   (large.cart, 0.15),
                   (large.water_cooler, 0.08), (small.basket, 0.2), (storage.cabinet, 0.25)], 0.5)  # fmt: skip
    for family, p in ((small.broom, 0.25), (small.mop, 0.1)):
        if chance(a, p):
            a.lean(family(a.rng), 0.14)
    drop_some(a, [(small.bucket, 0.1), (soft.bag, 0.2), (small.fire_extinguisher, 0.08)])
    groups.walls(a, [(decor.clock, 0.5, 1.8), (decor.picture, 0.4, 1.4), (decor.calendar, 0.3, 1.4),
                     (soft.towel, 0.4, 0.9), (storage.wall_shelf, 0.3, 1.5)])  # fmt: skip


def _best_row(a: RoomArranger) -> list[PlacedObject]:
    """The longest of a few tries at a row of units along one wall; the others are taken back."""
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
        kitchen_assets.sink(rng, 0.8, front, top),
        kitchen_assets.counter(rng, float(rng.uniform(0.5, 0.9)), front, top, bool(rng.random() < 0.5)),
        kitchen_assets.stove(rng),
        kitchen_assets.counter(rng, float(rng.uniform(0.4, 0.8)), front, top, bool(rng.random() < 0.5)),
        kitchen_assets.counter(rng, float(rng.uniform(0.5, 1.0)), front, top, False),
    ]
    if rng.random() < 0.5:
        units.insert(1, kitchen_assets.dishwasher(rng, top))
    if rng.random() < 0.6:
        units.insert(0 if rng.random() < 0.5 else len(units), kitchen_assets.refrigerator(rng))
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
        (kitchen_assets.microwave, 0.6),
        (kitchen_assets.coffee_maker, 0.5),
        (kitchen_assets.kettle, 0.6),
        (kitchen_assets.toaster, 0.45),
        (kitchen_assets.dish_rack, 0.35),
        (kitchen_assets.oven, 0.15),
    ):
        if counters and chance(a, p):
            unit = counters[int(a.rng.integers(len(counters)))]
            a.on_surface(family(a.rng), unit, unit.model.surfaces[0], float(a.rng.normal(0, 0.06)))


def bathroom(a: RoomArranger) -> None:
    """Toilet, basin with mirror, tub or shower, towels, perhaps a washing machine."""
    if chance(a, 0.55):
        a.against_wall(bath.bathtub(a.rng), corner=True)
    else:
        a.against_wall(bath.shower(a.rng), corner=True)
    toilet = a.against_wall(bath.toilet(a.rng))
    basin = a.against_wall(bath.washbasin(a.rng))
    if basin:
        a.on_wall((bath.medicine_cabinet if chance(a, 0.4) else decor.mirror)(a.rng), 1.2, above=basin)
    if toilet:
        for sign in (-1, 1):
            if chance(a, 0.4):
                a.beside((bath.toilet_brush if chance(a, 0.7) else bath.plunger)(a.rng), toilet, sign)
    stand_some(a, [(electronics.washing_machine, 0.5), (electronics.clothes_dryer, 0.2), (small.hamper, 0.4),
                   (small.bin_, 0.5), (storage.shelf, 0.3), (bath.bidet, 0.12), (seating.stool, 0.2),
                   (bath.drain_pipe, 0.1)], 0.5)  # fmt: skip
    drop_some(a, [(bath.scale, 0.35), (small.bucket, 0.15), (soft.clothes, 0.1)])
    if chance(a, 0.6):
        a.free(soft.mat_(a.rng), turn=False)
    groups.walls(a, [(soft.towel, 0.8, 0.9), (soft.towel, 0.4, 0.9), (bath.toilet_paper, 0.7, 0.65),
                     (storage.wall_shelf, 0.25, 1.4)])  # fmt: skip
