"""Things that belong together: cushions on a seat, chairs around a table, curtains at a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from embodied_perceptron_training.synthetic.arrange import RoomArranger
from embodied_perceptron_training.synthetic.assets import (
    electronics,
    lighting,
    seating,
    soft,
    storage,
    structure,
    tables,
)
from embodied_perceptron_training.synthetic.mesh import rotation
from embodied_perceptron_training.synthetic.model import ObjectModel, PlacedObject

Family = Callable[[np.random.Generator], ObjectModel]


def chance(a: RoomArranger, p: float) -> bool:
    """True with probability ``p``."""
    return bool(a.rng.random() < p)


def stand_some(a: RoomArranger, wanted: Sequence[tuple[Family, float]], corner: float = 0.4) -> None:
    """Put each (family, probability) against a wall, in a corner with probability ``corner``."""
    for family, p in wanted:
        if chance(a, p):
            a.against_wall(family(a.rng), corner=chance(a, corner))


def drop_some(a: RoomArranger, wanted: Sequence[tuple[Family, float]]) -> None:
    """Put each (family, probability) anywhere on the floor."""
    for family, p in wanted:
        if chance(a, p):
            a.free(family(a.rng))


def cushions(a: RoomArranger, seat: PlacedObject, count: int) -> None:
    """Cushions that lean against the back of a couch or a chair."""
    if not seat.model.surfaces:
        return
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
        if chance(a, 0.9):
            chair = seating.chair(np.random.default_rng(seed))
            tuck = float(a.rng.uniform(-0.12, 0.12))
            a.relative(
                chair, table, (x, s * (d + 0.12 + tuck)), (0.0 if s > 0 else np.pi) + float(a.rng.normal(0, 0.1))
            )
    for s in (-1, 1):
        if w > 0.65 and chance(a, 0.3):
            a.relative(seating.chair(np.random.default_rng(seed)), table, (s * (w + 0.2), 0.0), -s * np.pi / 2)


def desk_group(a: RoomArranger) -> None:
    """A desk with a screen or a laptop, a chair before it."""
    desk = a.against_wall(tables.desk(a.rng))
    if not desk:
        return
    top = desk.model.surfaces[0]
    if chance(a, 0.65):
        for x in (-0.6, 0.6) if chance(a, 0.25) else (float(a.rng.uniform(-0.3, 0.3)),):
            a.on_surface(electronics.monitor(a.rng), desk, top, float(a.rng.normal(0, 0.08)), at=(x, 0.9))
        a.on_surface(electronics.keyboard(a.rng), desk, top, float(a.rng.normal(0, 0.05)), at=(0.0, -0.5))
        a.on_surface(electronics.mouse(a.rng), desk, top, float(a.rng.normal(0, 0.1)), at=(0.42, -0.5))
        if chance(a, 0.6):
            a.beside(electronics.computer(a.rng), desk, 1 if chance(a, 0.5) else -1)
    else:
        opening = float(a.rng.uniform(0.75, 1.0)) if chance(a, 0.85) else 0.0
        a.on_surface(electronics.laptop(a.rng), desk, top, 0.0, at=(0.0, -0.2), joint_states={"lid": round(opening, 3)})
    chair = (seating.office_chair if chance(a, 0.65) else seating.chair)(a.rng)
    a.relative(chair, desk, (0.0, -float(a.rng.uniform(0.6, 0.75))), np.pi + float(a.rng.normal(0, 0.35)))


def opposite(a: RoomArranger, couch: PlacedObject) -> PlacedObject | None:
    """A television stand across the room from the couch."""
    side = a.side_of(couch)
    across = {"S": "N", "N": "S", "W": "E", "E": "W"}[side]
    for _ in range(6):
        stand = a.against_wall(storage.tv_stand(a.rng), across)  # type: ignore[arg-type]
        if stand:
            return stand
    return None


def rug(a: RoomArranger, anchor: PlacedObject) -> None:
    low, _ = anchor.model.bounds()
    a.relative(soft.carpet(a.rng), anchor, (0.0, float(low[1]) - 0.75))


def walls(a: RoomArranger, wanted: Sequence[tuple[Family, float, float]]) -> None:
    """Hang things on the walls: (family, probability, height of the base)."""
    for family, p, z in wanted:
        if chance(a, p):
            a.on_wall(family(a.rng), z + float(a.rng.uniform(-0.08, 0.08)))


def curtains(a: RoomArranger) -> None:
    """A pair of curtains at some windows."""
    for window in [o for o in a.placer.objects if o.room == a.room.index and o.label == "window"]:
        if not chance(a, 0.55):
            continue
        seed = int(a.rng.integers(1 << 31))
        high = window.model.bounds()[1]
        for s in (-1, 1):
            made = soft.curtain(np.random.default_rng(seed))
            c_low, c_high = made.bounds()
            side = a.side_of(window)
            shift = s * (float(high[0]) + (c_high[0] - c_low[0]) / 2 - 0.04)
            position = window.T_world_object[:3, :3] @ np.array([shift, 0.0, 0.0]) + window.T_world_object[:3, 3]
            top = min(a.room.height_m - 0.06, 2.35)
            a.at_side(made, side, a.along(side, position), max(top - float(c_high[2]), 0.02), 0.03, "wall", zones=False)


def ceiling_lights(a: RoomArranger) -> None:
    """One or two lights that the room's illumination comes from."""
    x0, y0, x1, y1 = a.room.rect
    cx, cy = a.room.center
    count = 2 if max(x1 - x0, y1 - y0) > 4.8 and chance(a, 0.5) else 1
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
