"""Floor plans of version 2: rooms of differing depth side by side (L shapes), wide passages without doors (open plans),
corridors, large offices, workshops, sloped ceilings; 2.3 to 3.3 m high."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from embodied_perceptron_training.homes.building.floorplan import (
    WALL_M,
    FloorPlan,
    HomeError,
    Opening,
    Rect,
    Room,
    RoomType,
    Side,
    Wall,
    _assign_kinds,
    _open,
    _two_bands,
    _walls,
)

_KINDS: tuple[RoomType, ...] = ("living room", "kitchen", "bedroom", "office", "workshop", "bathroom", "corridor")
_SHARES = (0.27, 0.22, 0.15, 0.16, 0.09, 0.07, 0.04)
# (width, depth) ranges of a single room, metres
_SIZES: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "living room": ((3.6, 7.5), (3.4, 5.6)), "kitchen": ((2.8, 6.5), (2.4, 4.8)), "bedroom": ((3.0, 5.4), (2.8, 4.6)),
    "office": ((3.0, 9.0), (3.0, 6.5)), "workshop": ((3.4, 7.5), (3.2, 5.5)), "bathroom": ((2.1, 3.6), (1.9, 3.0)),
    "corridor": ((4.5, 9.0), (1.6, 2.4)),
}  # fmt: skip
_PASSAGE_SHARE = 0.45  # share of the inner doors of a row of rooms
_SLOPE_SHARE = 0.15


def make_varied_plan(rng: np.random.Generator, room_count: int, kind: RoomType | None = None) -> FloorPlan:
    """A plan with ``room_count`` furnished rooms; four and more may be joined by a corridor.

    ``kind`` fixes the type of a single room. Raises :class:`HomeError` for a count outside of 1..9,
    :class:`floorplan.PlanError` when a drawn plan has no room for its doors.
    """
    if not 1 <= room_count <= 9:
        raise HomeError(f"a home has 1 to 9 rooms, got {room_count}")
    height = float(rng.uniform(2.35, 2.8) if rng.random() < 0.75 else rng.uniform(2.8, 3.3))
    if room_count > 3:
        cells = _two_bands(rng, room_count)
        kinds: list[RoomType] = [*_assign_kinds(cells[:-1], None), "corridor"]
    elif room_count == 1:
        chosen = kind or _KINDS[int(rng.choice(len(_KINDS), p=_SHARES))]
        (w0, w1), (d0, d1) = _SIZES[chosen]
        w, d = float(rng.uniform(w0, w1)), float(rng.uniform(d0, d1))
        cells, kinds = [(-w / 2, -d / 2, w / 2, d / 2)], [chosen]
    else:
        cells = _uneven_row(rng, room_count)
        kinds = _some_kinds(rng, cells)
    half = WALL_M / 2
    rooms = tuple(
        Room(i, k, (c[0] + half, c[1] + half, c[2] - half, c[3] - half), height)
        for i, (c, k) in enumerate(zip(cells, kinds, strict=True))
    )
    walls = _open(rng, _walls(cells), rooms)
    if len(rooms) <= 3:
        walls = tuple(_opened_wide(rng, wall, rooms, height) for wall in walls)
    return FloorPlan(rooms, walls, height, _slopes(rng, rooms, walls, height))


def _uneven_row(rng: np.random.Generator, count: int) -> list[Rect]:
    """Rooms side by side with one common wall line and different depths; joined neighbours form an L."""
    edges = np.concatenate([[0.0], np.cumsum(rng.uniform(2.8, 5.2, count))])
    edges -= edges[-1] / 2
    depths = rng.uniform(2.8, 5.2, count)
    low = -float(depths.max()) / 2
    return [(float(a), low, float(b), low + float(d)) for (a, b), d in zip(pairwise(edges), depths, strict=True)]


def _some_kinds(rng: np.random.Generator, cells: list[Rect]) -> list[RoomType]:
    kinds = _assign_kinds(cells, None)
    return ["workshop" if k == "bedroom" and rng.random() < 0.15 else k for k in kinds]


def _opened_wide(rng: np.random.Generator, wall: Wall, rooms: tuple[Room, ...], height: float) -> Wall:
    """The wall with its door widened to a passage, up to its whole length, between rooms that may be open."""
    closed = {"bathroom", "bedroom"}
    if wall.outer or not wall.openings or closed & {rooms[wall.below].kind, rooms[wall.above].kind}:
        return wall
    if rng.random() > _PASSAGE_SHARE:
        return wall
    length = wall.stop_m - wall.start_m
    width = float(np.clip(rng.uniform(0.35, 1.1) * length, min(1.2, length - 0.3), length - 0.3))
    top = height if rng.random() < 0.6 else float(rng.uniform(2.05, height - 0.1))
    passage = Opening("passage", length / 2, width, 0.0, top, wall.openings[0].into)
    return replace(wall, openings=(passage,))


def _slopes(
    rng: np.random.Generator, rooms: tuple[Room, ...], walls: tuple[Wall, ...], height: float
) -> dict[int, tuple[Side, float]]:
    """Rooms below a roof -> side of the low ceiling (an outer wall without openings) and its height."""
    slopes: dict[int, tuple[Side, float]] = {}
    for room in rooms:
        if rng.random() > _SLOPE_SHARE or room.kind == "corridor":
            continue
        for wall in walls:
            own = [wall] if room.index in (wall.below, wall.above) else []
            if not own or not wall.outer or wall.openings or not wall.horizontal:
                continue
            slopes[room.index] = ("N" if wall.level_m > room.center[1] else "S", float(rng.uniform(1.1, height - 0.7)))
            break
    return slopes
