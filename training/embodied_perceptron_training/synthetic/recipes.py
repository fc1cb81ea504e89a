"""What stands in a room of each kind, and how: the co-occurrence of real homes as short programs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embodied_perceptron_training.synthetic.arrange import RoomArranger
from embodied_perceptron_training.synthetic.assets import (
    decor,
    electronics,
    lighting,
    seating,
    small,
    soft,
    storage,
    structure,
    tables,
)
from embodied_perceptron_training.synthetic.floorplan import Room
from embodied_perceptron_training.synthetic.items import fill_surface
from embodied_perceptron_training.synthetic.mesh import rotation
from embodied_perceptron_training.synthetic.model import PlacedObject


def _chance(a: RoomArranger, p: float) -> bool:
    return bool(a.rng.random() < p)


def living_room(a: RoomArranger) -> None:
    """A couch facing a television over a coffee table, perhaps a dining corner, shelves, plants."""
    couch = a.against_wall(seating.couch(a.rng))
    if couch:
        cushions(a, couch, int(a.rng.integers(1, 4)))
        if _chance(a, 0.8):
            a.before(tables.coffee_table(a.rng), couch, float(a.rng.uniform(0.35, 0.5)))
        for sign in (-1, 1):
            if _chance(a, 0.35):
                a.beside(tables.side_table(a.rng) if _chance(a, 0.6) else lighting.floor_lamp(a.rng), couch, sign)
        stand = _opposite(a, couch)
        if stand is None:
            stand = a.against_wall(storage.tv_stand(a.rng))
        if stand:
            a.on_surface(electronics.tv(a.rng), stand, stand.model.surfaces[0], at=(0.0, 0.0))
        if _chance(a, 0.5):
            a.on_wall(decor.picture(a.rng), 1.35, above=couch)
        if _chance(a, 0.7):
            _rug(a, couch)
    if _chance(a, 0.55):
        dining_group(a)
    for _ in range(int(a.rng.integers(0, 3))):
        armchair = seating.armchair(a.rng)
        placed = a.against_wall(armchair, corner=True)
        if placed and _chance(a, 0.5):
            cushions(a, placed, 1)
    if _chance(a, 0.8):
        a.against_wall(storage.shelf(a.rng))
    if _chance(a, 0.5):
        a.against_wall(storage.cabinet(a.rng))
    if _chance(a, 0.12):
        a.against_wall(decor.fireplace(a.rng))
    for family, p in (
        (decor.plant, 0.8), (lighting.floor_lamp, 0.5), (seating.ottoman, 0.3), (seating.footstool, 0.15),
        (seating.beanbag, 0.12), (electronics.fan, 0.12), (small.basket, 0.25), (electronics.heater, 0.08),
    ):  # fmt: skip
        if _chance(a, p):
            a.against_wall(family(a.rng), corner=_chance(a, 0.5))
    for family, p in ((small.toy, 0.3), (small.ball, 0.2), (small.box, 0.25), (soft.bag, 0.2), (small.guitar, 0.0)):
        if _chance(a, p):
            a.free(family(a.rng))
    if _chance(a, 0.15):
        a.lean(small.guitar(a.rng), 0.16)
    walls(a, [(decor.picture, 0.9, 1.4), (decor.picture, 0.5, 1.4), (decor.clock, 0.35, 1.8),
              (decor.mirror, 0.2, 1.2), (electronics.air_conditioner, 0.15, 2.2), (decor.map_, 0.06, 1.3),
              (storage.wall_shelf, 0.3, 1.5)])  # fmt: skip


def bedroom(a: RoomArranger) -> None:
    """A bed with stands and lamps, wardrobe, dresser, perhaps a desk."""
    bed = a.against_wall(soft.bed(a.rng))
    if bed:
        for sign in (-1, 1):
            if _chance(a, 0.75):
                a.beside(storage.nightstand(a.rng), bed, sign)
        pillows, cover = bed.model.surfaces
        double = bed.model.attributes.get("style") == "double"
        for x in (-0.9, 0.9) if double else (0.0,):
            a.on_surface(soft.pillow(a.rng), bed, pillows, at=(x, 0.5))
        if _chance(a, 0.6):
            a.on_surface((soft.spread_blanket if _chance(a, 0.6) else soft.blanket)(a.rng), bed, cover)
        for family, p in ((small.toy, 0.2), (small.book, 0.15), (soft.clothes, 0.15)):
            if _chance(a, p):
                a.on_surface(family(a.rng), bed, cover, float(a.rng.uniform(-np.pi, np.pi)))
        if _chance(a, 0.5):
            a.on_wall(decor.picture(a.rng), 1.45, above=bed)
        if _chance(a, 0.4):
            _rug(a, bed)
    if _chance(a, 0.85):
        a.against_wall(storage.wardrobe(a.rng))
    if _chance(a, 0.6):
        a.against_wall((storage.dresser if _chance(a, 0.7) else storage.commode)(a.rng))
    if _chance(a, 0.4):
        desk_group(a)
    if _chance(a, 0.3):
        a.against_wall(storage.shelf(a.rng))
    if _chance(a, 0.1):
        crib = a.against_wall(soft.crib(a.rng))
        if crib:
            fill_surface(a, crib, 0, 2.0)
    for family, p in (
        (seating.armchair, 0.2), (seating.ottoman, 0.2), (decor.plant, 0.35), (lighting.floor_lamp, 0.3),
        (small.hamper, 0.3), (seating.stool, 0.15), (electronics.fan, 0.1), (seating.bench, 0.12),
    ):  # fmt: skip
        if _chance(a, p):
            a.against_wall(family(a.rng), corner=_chance(a, 0.4))
    for family, p in ((soft.backpack, 0.25), (soft.clothes, 0.2), (soft.shoe, 0.3), (small.box, 0.2),
                      (soft.luggage, 0.15), (small.toy, 0.25), (small.dumbbell, 0.1)):  # fmt: skip
        if _chance(a, p):
            a.free(family(a.rng))
    if _chance(a, 0.2):
        a.lean(decor.leaning_frame(a.rng), 0.15)
    walls(a, [(decor.picture, 0.6, 1.4), (decor.poster, 0.35, 1.3), (decor.mirror, 0.4, 0.9), (decor.clock, 0.15, 1.9),
              (storage.wall_shelf, 0.25, 1.5), (electronics.wall_tv, 0.15, 1.3),
              (soft.hanging_jacket, 0.2, 1.0)])  # fmt: skip


def office(a: RoomArranger) -> None:
    """One or two desks with computers, shelves, a board."""
    for _ in range(int(a.rng.integers(1, 3))):
        desk_group(a)
    for family, p in ((storage.shelf, 0.9), (storage.shelf, 0.4), (storage.cabinet, 0.5), (decor.plant, 0.6),
                      (seating.armchair, 0.3), (lighting.floor_lamp, 0.35), (seating.couch, 0.15)):  # fmt: skip
        if _chance(a, p):
            a.against_wall(family(a.rng))
    for family, p in ((small.bin_, 0.7), (small.box, 0.4), (soft.backpack, 0.3), (electronics.fan, 0.15),
                      (small.fire_extinguisher, 0.2), (electronics.heater, 0.1)):  # fmt: skip
        if _chance(a, p):
            a.against_wall(family(a.rng), corner=_chance(a, 0.4))
    if _chance(a, 0.15):
        a.lean(small.guitar(a.rng), 0.16)
    walls(a, [(decor.board, 0.5, 1.0), (decor.blackboard, 0.1, 1.0), (decor.picture, 0.5, 1.4), (decor.clock, 0.4, 1.9),
              (decor.calendar, 0.35, 1.4), (decor.map_, 0.25, 1.2), (decor.poster, 0.3, 1.3),
              (electronics.air_conditioner, 0.2, 2.2), (storage.wall_shelf, 0.3, 1.5)])  # fmt: skip


def corridor(a: RoomArranger) -> None:
    """Little that stands in the way: shoes, coats, a mirror."""
    a.tries = 6
    for family, p in ((storage.rack, 0.6), (storage.coat_rack, 0.4), (storage.commode, 0.35), (seating.bench, 0.2),
                      (decor.plant, 0.3), (small.bin_, 0.15)):  # fmt: skip
        if _chance(a, p):
            a.against_wall(family(a.rng), corner=_chance(a, 0.6))
    if _chance(a, 0.3):
        a.lean(small.umbrella(a.rng), 0.18)
    if _chance(a, 0.5):
        a.free(soft.mat_(a.rng), turn=False)
    walls(a, [(decor.mirror, 0.5, 1.0), (decor.picture, 0.7, 1.4), (decor.picture, 0.5, 1.4), (decor.clock, 0.2, 1.9),
              (soft.hanging_jacket, 0.5, 1.0), (soft.hanging_jacket, 0.3, 1.0)])  # fmt: skip


def cushions(a: RoomArranger, seat: PlacedObject, count: int) -> None:
    """Cushions that lean against the back of a couch or a chair."""
    surface = seat.model.surfaces[0]
    for x in a.rng.permutation(np.linspace(-1, 1, max(count, 3)))[:count]:
        tilt = rotation("x", -float(a.rng.uniform(0.2, 0.35)))
        a.on_surface(soft.cushion(a.rng), seat, surface, float(a.rng.normal(0, 0.15)), tilt, (float(x), 1.0))


def dining_group(a: RoomArranger) -> None:
    """A table with chairs around it."""
    table = a.middle(tables.dining_table(a.rng), 0.3)
    if not table:
        return
    high = table.model.bounds()[1]
    w, d = float(high[0]), float(high[1])
    seed = int(a.rng.integers(1 << 31))
    places = [(x, s) for s in (-1, 1) for x in ((-w * 0.45, w * 0.45) if w > 0.65 else (0.0,))]
    for x, s in places:
        if _chance(a, 0.9):
            chair = seating.chair(np.random.default_rng(seed))
            tuck = float(a.rng.uniform(-0.12, 0.12))
            a.relative(
                chair, table, (x, s * (d + 0.12 + tuck)), (0.0 if s > 0 else np.pi) + float(a.rng.normal(0, 0.1))
            )
    for s in (-1, 1):
        if w > 0.65 and _chance(a, 0.3):
            a.relative(seating.chair(np.random.default_rng(seed)), table, (s * (w + 0.2), 0.0), -s * np.pi / 2)


def desk_group(a: RoomArranger) -> None:
    """A desk with a screen or a laptop, a chair before it."""
    desk = a.against_wall(tables.desk(a.rng))
    if not desk:
        return
    top = desk.model.surfaces[0]
    if _chance(a, 0.65):
        for x in (-0.6, 0.6) if _chance(a, 0.25) else (float(a.rng.uniform(-0.3, 0.3)),):
            a.on_surface(electronics.monitor(a.rng), desk, top, float(a.rng.normal(0, 0.08)), at=(x, 0.9))
        a.on_surface(electronics.keyboard(a.rng), desk, top, float(a.rng.normal(0, 0.05)), at=(0.0, -0.5))
        a.on_surface(electronics.mouse(a.rng), desk, top, float(a.rng.normal(0, 0.1)), at=(0.42, -0.5))
        if _chance(a, 0.6):
            a.beside(electronics.computer(a.rng), desk, 1 if _chance(a, 0.5) else -1)
    else:
        opening = float(a.rng.uniform(0.75, 1.0)) if _chance(a, 0.85) else 0.0
        a.on_surface(electronics.laptop(a.rng), desk, top, 0.0, at=(0.0, -0.2), joint_states={"lid": round(opening, 3)})
    chair = (seating.office_chair if _chance(a, 0.65) else seating.chair)(a.rng)
    a.relative(chair, desk, (0.0, -float(a.rng.uniform(0.6, 0.75))), np.pi + float(a.rng.normal(0, 0.35)))


def _opposite(a: RoomArranger, couch: PlacedObject) -> PlacedObject | None:
    """A television stand across the room from the couch."""
    side = a._side_of(couch)
    across = {"S": "N", "N": "S", "W": "E", "E": "W"}[side]
    for _ in range(6):
        stand = a.against_wall(storage.tv_stand(a.rng), across)  # type: ignore[arg-type]
        if stand:
            return stand
    return None


def _rug(a: RoomArranger, anchor: PlacedObject) -> None:
    low, _ = anchor.model.bounds()
    a.relative(soft.carpet(a.rng), anchor, (0.0, float(low[1]) - 0.75))


def walls(a: RoomArranger, wanted: list[tuple[Callable[..., object], float, float]]) -> None:
    """Hang things on the walls: (family, probability, height of the base)."""
    for family, p, z in wanted:
        if _chance(a, p):
            a.on_wall(family(a.rng), z + float(a.rng.uniform(-0.08, 0.08)))  # type: ignore[arg-type]


def curtains(a: RoomArranger) -> None:
    """A pair of curtains at some windows."""
    for window in [o for o in a.placer.objects if o.room == a.room.index and o.label == "window"]:
        if not _chance(a, 0.55):
            continue
        seed = int(a.rng.integers(1 << 31))
        high = window.model.bounds()[1]
        for s in (-1, 1):
            made = soft.curtain(np.random.default_rng(seed))
            c_low, c_high = made.bounds()
            side = a._side_of(window)
            shift = s * (float(high[0]) + (c_high[0] - c_low[0]) / 2 - 0.04)
            position = window.T_world_object[:3, :3] @ np.array([shift, 0.0, 0.0]) + window.T_world_object[:3, 3]
            top = min(a.room.height_m - 0.06, 2.35)
            a._at_side(made, side, a._along(side, position), max(top - float(c_high[2]), 0.02), 0.03, "wall")


def ceiling_lights(a: RoomArranger) -> None:
    """One or two lights that the room's illumination comes from."""
    x0, y0, x1, y1 = a.room.rect
    cx, cy = a.room.center
    count = 2 if max(x1 - x0, y1 - y0) > 4.8 and _chance(a, 0.5) else 1
    family = lighting.ceiling_light
    if a.room.kind in ("living room", "bedroom") and a.room.height_m > 2.5:
        family = (lighting.ceiling_light, lighting.pendant, lighting.chandelier)[
            int(a.rng.choice(3, p=[0.45, 0.4, 0.15]))
        ]
    for k in range(count):
        f = (k + 1) / (count + 1) - 0.5
        x, y = (cx + f * (x1 - x0), cy) if x1 - x0 > y1 - y0 else (cx, cy + f * (y1 - y0))
        a.on_ceiling(family(a.rng), x, y)


def sockets(a: RoomArranger) -> None:
    """Wall sockets near the floor."""
    for _ in range(int(a.rng.integers(1, 3))):
        a.on_wall(structure.socket(a.rng), 0.3)


RECIPES: dict[str, Callable[[RoomArranger], None]] = {
    "living room": living_room,
    "bedroom": bedroom,
    "office": office,
    "corridor": corridor,
}


def furnish(a: RoomArranger, room: Room, clutter: float) -> None:
    """Fill one room: lights, the recipe of its kind, curtains, then small things on every surface."""
    ceiling_lights(a)
    RECIPES[room.kind](a)
    curtains(a)
    sockets(a)
    for placed in [o for o in a.placer.objects if o.room == room.index]:
        for k in range(len(placed.model.surfaces)):
            fill_surface(a, placed, k, clutter)
