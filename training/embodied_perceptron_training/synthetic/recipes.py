"""What stands in a room of each kind, and how: the co-occurrence of real homes as short programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embodied_perceptron_training.synthetic import groups
from embodied_perceptron_training.synthetic.arrange import RoomArranger
from embodied_perceptron_training.synthetic.assets import (
    decor,
    electronics,
    large,
    lighting,
    seating,
    small,
    soft,
    storage,
    structure,
    tables,
)
from embodied_perceptron_training.synthetic.floorplan import Room
from embodied_perceptron_training.synthetic.groups import Family, chance, drop_some, stand_some
from embodied_perceptron_training.synthetic.items import fill_surface
from embodied_perceptron_training.synthetic.model import PlacedObject
from embodied_perceptron_training.synthetic.wet_rooms import bathroom, kitchen


def living_room(a: RoomArranger) -> None:
    """A couch facing a television over a coffee table, perhaps a dining corner, shelves, plants."""
    couch = a.against_wall(seating.couch(a.rng))
    if couch:
        groups.cushions(a, couch, int(a.rng.integers(1, 4)))
        if chance(a, 0.8):
            a.before(tables.coffee_table(a.rng), couch, float(a.rng.uniform(0.35, 0.5)))
        for sign in (-1, 1):
            if chance(a, 0.35):
                a.beside(tables.side_table(a.rng) if chance(a, 0.6) else lighting.floor_lamp(a.rng), couch, sign)
        stand = groups.opposite(a, couch) or a.against_wall(storage.tv_stand(a.rng))
        if stand:
            a.on_surface(electronics.tv(a.rng), stand, stand.model.surfaces[0], at=(0.0, 0.0))
        if chance(a, 0.5):
            a.on_wall(decor.picture(a.rng), 1.35, above=couch)
        if chance(a, 0.7):
            groups.rug(a, couch)
    if chance(a, 0.6):
        groups.dining_group(a)
    for _ in range(int(a.rng.integers(0, 3))):
        placed = a.against_wall(seating.armchair(a.rng), corner=True)
        if placed and chance(a, 0.5):
            groups.cushions(a, placed, 1)
    stand_some(a, [(storage.shelf, 0.9), (storage.cabinet, 0.6), (storage.shelf, 0.3), (decor.fireplace, 0.12),
                   (large.piano, 0.1)], 0.0)  # fmt: skip
    stand_some(a, [(decor.plant, 0.8), (lighting.floor_lamp, 0.5), (seating.ottoman, 0.3), (seating.footstool, 0.15),
                   (seating.beanbag, 0.12), (electronics.fan, 0.12), (small.basket, 0.25), (electronics.heater, 0.08),
                   (large.bicycle, 0.06), (large.cart, 0.1), (large.divider, 0.05)])  # fmt: skip
    drop_some(a, [(small.toy, 0.3), (small.ball, 0.2), (small.box, 0.25), (soft.bag, 0.2), (soft.clothes, 0.05)])
    if chance(a, 0.15):
        a.lean(small.guitar(a.rng), 0.16)
    groups.walls(a, [(decor.picture, 0.9, 1.4), (decor.picture, 0.6, 1.4), (decor.clock, 0.35, 1.8),
                     (decor.mirror, 0.2, 1.2), (electronics.air_conditioner, 0.15, 2.2), (decor.map_, 0.06, 1.3),
                     (storage.wall_shelf, 0.3, 1.5), (decor.poster, 0.15, 1.3)])  # fmt: skip


def bedroom(a: RoomArranger) -> None:
    """A bed with stands and lamps, wardrobe, dresser, perhaps a desk."""
    bed = a.against_wall(soft.bed(a.rng))
    if bed:
        for sign in (-1, 1):
            if chance(a, 0.75):
                a.beside(storage.nightstand(a.rng), bed, sign)
        _make_bed(a, bed)
        if chance(a, 0.5):
            a.on_wall(decor.picture(a.rng), 1.45, above=bed)
        if chance(a, 0.4):
            groups.rug(a, bed)
    stand_some(a, [(storage.wardrobe, 0.85), (storage.dresser, 0.45), (storage.commode, 0.2)], 0.2)
    if chance(a, 0.45):
        groups.desk_group(a)
    stand_some(a, [(storage.shelf, 0.4), (soft.crib, 0.1)], 0.2)
    stand_some(a, [(seating.armchair, 0.25), (seating.ottoman, 0.2), (decor.plant, 0.4), (lighting.floor_lamp, 0.3),
                   (small.hamper, 0.3), (seating.stool, 0.15), (electronics.fan, 0.1), (seating.bench, 0.12),
                   (seating.chair, 0.3), (large.ironing_board, 0.06), (large.exercise_bike, 0.06)])  # fmt: skip
    drop_some(a, [(soft.backpack, 0.25), (soft.clothes, 0.2), (soft.shoe, 0.3), (small.box, 0.2), (soft.luggage, 0.15),
                  (small.toy, 0.25), (small.dumbbell, 0.1)])  # fmt: skip
    if chance(a, 0.2):
        a.lean(decor.leaning_frame(a.rng), 0.15)
    groups.walls(a, [(decor.picture, 0.6, 1.4), (decor.poster, 0.35, 1.3), (decor.mirror, 0.4, 0.9),
                     (decor.clock, 0.15, 1.9), (storage.wall_shelf, 0.25, 1.5), (electronics.wall_tv, 0.15, 1.3),
                     (soft.hanging_jacket, 0.2, 1.0)])  # fmt: skip


def _make_bed(a: RoomArranger, bed: PlacedObject) -> None:
    if len(bed.model.surfaces) != 2:
        return
    pillows, cover = bed.model.surfaces
    double = bed.model.attributes.get("style") == "double"
    for x in (-0.9, 0.9) if double else (0.0,):
        a.on_surface(soft.pillow(a.rng), bed, pillows, at=(x, 0.5))
    if chance(a, 0.6):
        a.on_surface((soft.spread_blanket if chance(a, 0.6) else soft.blanket)(a.rng), bed, cover)
    for family, p in ((small.toy, 0.2), (small.book, 0.15), (soft.clothes, 0.15)):
        if chance(a, p):
            a.on_surface(family(a.rng), bed, cover, float(a.rng.uniform(-np.pi, np.pi)))


def office(a: RoomArranger) -> None:
    """Two or three desks with computers, shelves, a board."""
    for _ in range(int(a.rng.integers(1, 4))):
        groups.desk_group(a)
    stand_some(a, [(storage.shelf, 0.9), (storage.shelf, 0.5), (storage.cabinet, 0.6), (decor.plant, 0.7),
                   (seating.armchair, 0.3), (lighting.floor_lamp, 0.35), (seating.couch, 0.15),
                   (large.water_cooler, 0.12)], 0.1)  # fmt: skip
    if chance(a, 0.2):
        groups.dining_group(a)
    stand_some(a, [(small.bin_, 0.7), (small.box, 0.5), (soft.backpack, 0.3), (electronics.fan, 0.15),
                   (small.fire_extinguisher, 0.2), (electronics.heater, 0.1), (small.bin_, 0.3)])  # fmt: skip
    if chance(a, 0.15):
        a.lean(small.guitar(a.rng), 0.16)
    groups.walls(a, [(decor.board, 0.5, 1.0), (decor.blackboard, 0.1, 1.0), (decor.picture, 0.5, 1.4),
                     (decor.clock, 0.4, 1.9), (decor.calendar, 0.35, 1.4), (decor.map_, 0.25, 1.2),
                     (decor.poster, 0.3, 1.3), (electronics.air_conditioner, 0.2, 2.2),
                     (storage.wall_shelf, 0.3, 1.5)])  # fmt: skip


def corridor(a: RoomArranger) -> None:
    """Little that stands in the way: shoes, coats, a mirror."""
    a.tries = 6
    stand_some(a, [(storage.rack, 0.6), (storage.coat_rack, 0.4), (storage.commode, 0.35), (seating.bench, 0.2),
                   (decor.plant, 0.3), (small.bin_, 0.15), (large.bicycle, 0.1)], 0.6)  # fmt: skip
    if chance(a, 0.3):
        a.lean(small.umbrella(a.rng), 0.18)
    if chance(a, 0.5):
        a.free(soft.mat_(a.rng), turn=False)
    groups.walls(a, [(decor.mirror, 0.5, 1.0), (decor.picture, 0.7, 1.4), (decor.picture, 0.5, 1.4),
                     (decor.clock, 0.2, 1.9), (soft.hanging_jacket, 0.5, 1.0),
                     (soft.hanging_jacket, 0.3, 1.0)])  # fmt: skip


RECIPES: dict[str, Callable[[RoomArranger], None]] = {
    "living room": living_room,
    "bedroom": bedroom,
    "kitchen": kitchen,
    "bathroom": bathroom,
    "office": office,
    "corridor": corridor,
}

# What large rooms get more of.
_MORE: dict[str, list[Family]] = {
    "living room": [seating.armchair, storage.shelf, decor.plant, storage.cabinet, seating.chair, small.box],
    "bedroom": [storage.shelf, seating.chair, decor.plant, storage.dresser, seating.ottoman, small.box],
    "kitchen": [storage.shelf, seating.stool, decor.plant, small.bin_, storage.cabinet],
    "office": [storage.shelf, seating.chair, storage.cabinet, decor.plant, small.box],
}  # fmt: skip
_AREA_PER_MORE_M2 = 9.0


def furnish(a: RoomArranger, room: Room, clutter: float) -> None:
    """Fill one room: lights, the recipe of its kind, curtains, then small things on every surface."""
    groups.ceiling_lights(a)
    RECIPES[room.kind](a)
    more = _MORE.get(room.kind, [])
    for _ in range(int(a.rng.poisson(room.area_m2 / _AREA_PER_MORE_M2)) if more else 0):
        a.against_wall(more[int(a.rng.integers(len(more)))](a.rng), corner=chance(a, 0.3))
    groups.curtains(a)
    groups.sockets(a)
    if chance(a, 0.04):
        a.against_wall(structure.column(a.rng, room.height_m - 0.002), corner=True)
    first = [o for o in a.placer.objects if o.room == room.index]
    while first:  # things on things, until nothing new carries anything
        added = [fill_surface(a, o, k, clutter) for o in first for k in range(len(o.model.surfaces))]
        first = [o for new in added for o in new if o.model.surfaces]
