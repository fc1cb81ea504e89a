"""Floor plans: rooms on a grid of walls, doors between them, windows to the outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

WALL_M = 0.12
DOOR_WIDTH_M, DOOR_HEIGHT_M = 0.92, 2.06

RoomType = Literal["living room", "bedroom", "kitchen", "bathroom", "office", "corridor", "workshop"]
Rect = tuple[float, float, float, float]
Side = Literal["S", "N", "W", "E"]

# outward side -> yaw of an object with its back to that wall (front: local -y)
SIDE_YAW: dict[Side, float] = {"S": np.pi, "N": 0.0, "W": np.pi / 2, "E": -np.pi / 2}


class HomeError(ValueError):
    """A home that cannot be built; the message has the reason."""


class PlanError(HomeError):
    """A drawn plan without room for its doors; another draw may have it."""


@dataclass(frozen=True)
class Opening:
    """A hole in a wall.

    Attributes:
        kind: door, window, or passage (version 2: no leaf, no frame).
        center_m: along the wall, from its start.
        width_m, bottom_m, top_m: the hole.
        into: index of the room that a door's leaf opens into, or that a window lights.
    """

    kind: Literal["door", "window", "passage"]
    center_m: float
    width_m: float
    bottom_m: float
    top_m: float
    into: int


@dataclass(frozen=True)
class Wall:
    """A straight wall between two corners.

    Attributes:
        horizontal: runs along x (else along y).
        level_m: the fixed coordinate of its centre line.
        start_m, stop_m: the other coordinate's range, between centre lines of the crossing walls.
        below, above: room on the side of smaller / larger fixed coordinate; -1 = outside.
        openings: holes.
    """

    horizontal: bool
    level_m: float
    start_m: float
    stop_m: float
    below: int
    above: int
    openings: tuple[Opening, ...] = ()

    @property
    def outer(self) -> bool:
        """Whether one side is outside."""
        return self.below < 0 or self.above < 0

    def point(self, along_m: float, across_m: float = 0.0) -> tuple[float, float]:
        """World (x, y) of a point ``along_m`` from the start and ``across_m`` to the side of larger coordinate."""
        a, b = self.start_m + along_m, self.level_m + across_m
        return (a, b) if self.horizontal else (b, a)


@dataclass(frozen=True)
class Room:
    """A rectangular room: ``rect`` is its clear inside (x0, y0, x1, y1) in metres."""

    index: int
    kind: RoomType
    rect: Rect
    height_m: float

    @property
    def area_m2(self) -> float:
        """Floor area."""
        x0, y0, x1, y1 = self.rect
        return (x1 - x0) * (y1 - y0)

    @property
    def center(self) -> tuple[float, float]:
        """(x, y) of the middle."""
        x0, y0, x1, y1 = self.rect
        return ((x0 + x1) / 2, (y0 + y1) / 2)

    def as_dict(self) -> dict[str, Any]:
        """JSON form: kind, rect, height_m."""
        return {"kind": self.kind, "rect": list(self.rect), "height_m": self.height_m}


@dataclass(frozen=True)
class FloorPlan:
    """Rooms and walls, centred on the origin, floor at z = 0.

    ``slopes``: rooms below a roof -> side of the low ceiling, and its height there in metres.
    """

    rooms: tuple[Room, ...]
    walls: tuple[Wall, ...]
    height_m: float
    slopes: Mapping[int, tuple[Side, float]] = field(default_factory=dict)


def make_plan(rng: np.random.Generator, room_count: int, kind: RoomType | None = None) -> FloorPlan:
    """A plan with ``room_count`` furnished rooms; four and more are joined by a corridor.

    ``kind`` fixes the type of a single room. Raises :class:`HomeError` for a count outside of 1..9.
    """
    if not 1 <= room_count <= 9:
        raise HomeError(f"a home has 1 to 9 rooms, got {room_count}")
    height = float(rng.uniform(2.4, 2.75))
    if room_count <= 3:
        if room_count == 1 and kind is None:
            kind = _SINGLE_KINDS[int(rng.choice(5, p=[0.32, 0.26, 0.18, 0.16, 0.08]))]
        cells = _row(rng, room_count, kind)
        kinds = _assign_kinds(cells, kind)
    else:
        cells = _two_bands(rng, room_count)
        kinds = [*_assign_kinds(cells[:-1], None), "corridor"]
    half = WALL_M / 2
    rooms = tuple(
        Room(i, k, (c[0] + half, c[1] + half, c[2] - half, c[3] - half), height)
        for i, (c, k) in enumerate(zip(cells, kinds, strict=True))
    )
    walls = _open(rng, _walls(cells), rooms)
    return FloorPlan(rooms, walls, height)


_SINGLE_WIDTH_M = {"bathroom": (2.3, 3.2), "kitchen": (3.4, 4.8), "bedroom": (3.6, 5.0), "office": (3.6, 5.2)}


def _row(rng: np.random.Generator, count: int, kind: RoomType | None) -> list[Rect]:
    depth = float(rng.uniform(3.6, 4.8))
    widths = rng.uniform(3.2, 5.2, count)
    if count == 1:
        widths = rng.uniform(*_SINGLE_WIDTH_M.get(str(kind), (4.2, 6.0)), 1)
        depth = depth if kind != "bathroom" else float(rng.uniform(2.1, 2.9))
    edges = np.concatenate([[0.0], np.cumsum(widths)])
    edges -= edges[-1] / 2
    return [(float(a), -depth / 2, float(b), depth / 2) for a, b in pairwise(edges)]


def _two_bands(rng: np.random.Generator, count: int) -> list[Rect]:
    upper = (count + 1) // 2
    corridor = float(rng.uniform(1.5, 1.8))
    depth_up, depth_low = rng.uniform(3.6, 4.8), rng.uniform(3.2, 4.4)
    width = float(max(upper, count - upper) * rng.uniform(3.6, 4.4))

    def split(n: int) -> NDArray[np.float64]:
        shares = rng.uniform(0.7, 1.3, n)
        return np.concatenate([[0.0], np.cumsum(shares / shares.sum() * width)]) - width / 2

    total = depth_low + corridor + depth_up
    y0 = -total / 2
    y1, y2, y3 = y0 + depth_low, y0 + depth_low + corridor, total / 2
    cells = []
    for edges, low, high in ((split(upper), y2, y3), (split(count - upper), y0, y1)):
        cells += [(float(a), float(low), float(b), float(high)) for a, b in pairwise(edges)]
    return [*cells, (-width / 2, float(y1), width / 2, float(y2))]


_SINGLE_KINDS: tuple[RoomType, ...] = ("living room", "bedroom", "kitchen", "office", "bathroom")


def _assign_kinds(cells: list[Rect], kind: RoomType | None) -> list[RoomType]:
    if len(cells) == 1 and kind is not None:
        return [kind]
    wanted: list[RoomType] = ["living room", "bedroom", "kitchen", "bathroom", "bedroom", "office"]
    wanted += ["bedroom", "living room", "office"]
    order = np.argsort([-(c[2] - c[0]) * (c[3] - c[1]) for c in cells])
    names = sorted(
        wanted[: len(cells)], key=["living room", "bedroom", "office", "kitchen", "bathroom", "corridor"].index
    )
    result: list[RoomType] = ["bedroom"] * len(cells)
    for cell, name in zip(order, names, strict=True):
        result[int(cell)] = name
    return result


def _walls(cells: list[Rect]) -> list[Wall]:
    """All boundaries between two cells, or a cell and the outside, once each."""
    walls: dict[tuple[bool, float, float, float], tuple[int, int]] = {}
    for horizontal in (True, False):
        lo, hi, near, far = (0, 2, 1, 3) if horizontal else (1, 3, 0, 2)
        for level in sorted({round(c[k], 6) for c in cells for k in (near, far)}):
            above = [(i, c) for i, c in enumerate(cells) if abs(c[near] - level) < 1e-6]
            below = [(i, c) for i, c in enumerate(cells) if abs(c[far] - level) < 1e-6]
            stops = sorted({round(c[k], 6) for _, c in above + below for k in (lo, hi)})
            for start, stop in pairwise(stops):
                middle = (start + stop) / 2
                up = [i for i, c in above if c[lo] < middle < c[hi]]
                down = [i for i, c in below if c[lo] < middle < c[hi]]
                if up or down:
                    walls[(horizontal, level, start, stop)] = (down[0] if down else -1, up[0] if up else -1)
    return [Wall(h, level, a, b, below, above) for (h, level, a, b), (below, above) in walls.items()]


def _open(rng: np.random.Generator, walls: list[Wall], rooms: tuple[Room, ...]) -> tuple[Wall, ...]:
    """Add doors that connect all rooms, an entrance, and windows."""
    openings: dict[int, list[Opening]] = {i: [] for i in range(len(walls))}
    linked = {rooms[-1].index if rooms[-1].kind == "corridor" else 0}
    while len(linked) < len(rooms):
        options = [
            i
            for i, w in enumerate(walls)
            if not w.outer and (w.below in linked) != (w.above in linked) and w.stop_m - w.start_m > DOOR_WIDTH_M + 0.5
        ]
        if not options:
            raise PlanError("no wall is long enough for a door to every room")
        i = options[int(rng.integers(len(options)))]
        new = walls[i].above if walls[i].below in linked else walls[i].below
        openings[i].append(_door(rng, walls[i], new))
        linked.add(new)
    _entrance(rng, walls, rooms, openings)
    for i, wall in enumerate(walls):
        room = rooms[max(wall.below, wall.above)]
        length = wall.stop_m - wall.start_m
        if not wall.outer or openings[i] or length < 1.8:
            continue
        if rng.random() < {"bathroom": 0.35, "corridor": 0.25}.get(room.kind, 0.65):
            small = room.kind in ("bathroom", "corridor")
            width = float(rng.uniform(0.6, 0.8) if small else rng.uniform(1.0, min(1.9, length - 0.8)))
            bottom = float(rng.uniform(1.2, 1.35) if small or room.kind == "kitchen" else rng.uniform(0.8, 0.95))
            margin = width / 2 + 0.35
            center = float(rng.uniform(margin, length - margin))
            openings[i].append(Opening("window", center, width, bottom, min(room.height_m - 0.25, 2.15), room.index))
    return tuple(
        Wall(w.horizontal, w.level_m, w.start_m, w.stop_m, w.below, w.above, tuple(openings[i]))
        for i, w in enumerate(walls)
    )


def _door(rng: np.random.Generator, wall: Wall, into: int) -> Opening:
    length = wall.stop_m - wall.start_m
    margin = DOOR_WIDTH_M / 2 + 0.2
    # doors stand near a corner, as in real flats
    near = float(rng.uniform(margin, min(margin + 0.5, length / 2)))
    center = near if rng.random() < 0.5 else length - near
    return Opening("door", center, DOOR_WIDTH_M, 0.0, DOOR_HEIGHT_M, into)


def _entrance(
    rng: np.random.Generator, walls: list[Wall], rooms: tuple[Room, ...], openings: dict[int, list[Opening]]
) -> None:
    hall = rooms[-1].index if rooms[-1].kind == "corridor" else 0
    options = [
        i
        for i, w in enumerate(walls)
        if w.outer and hall in (w.below, w.above) and w.stop_m - w.start_m > DOOR_WIDTH_M + 0.45
    ]
    if not options:
        raise PlanError(f"no outer wall of room {hall} is long enough for the entrance")
    i = options[int(rng.integers(len(options)))]
    openings[i].append(_door(rng, walls[i], hall))
