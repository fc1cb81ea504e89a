"""Where things may stand: collision of oriented boxes, keep-out zones, and a robot's way between the doors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from embodied_perceptron_training.synthetic.floorplan import Room
from embodied_perceptron_training.synthetic.mesh import Piece
from embodied_perceptron_training.synthetic.model import ObjectModel, PlacedObject

F64 = NDArray[np.float64]
Zone = tuple[float, float, float, float, float, float]
CONTACT_M = 0.002  # boxes that overlap by less only touch
CELL_M = 0.05
ROBOT_RADIUS_M = 0.24
ROBOT_HEIGHT_M = 1.4


@dataclass(frozen=True, eq=False)
class Pieces:
    """Oriented boxes as arrays: (N, 3) centres, (N, 3) half sizes, (N, 3, 3) rotations."""

    center: F64
    half: F64
    R: F64

    @staticmethod
    def of(pieces: list[Piece], T: F64) -> Pieces:
        """Collision boxes of an object at pose ``T``."""
        R = T[:3, :3]
        return Pieces(
            np.array([R @ p.center + T[:3, 3] for p in pieces]).reshape(-1, 3),
            np.array([p.half for p in pieces]).reshape(-1, 3),
            np.array([R @ p.R for p in pieces]).reshape(-1, 3, 3),
        )

    @property
    def reach(self) -> F64:
        """(N, 3) half sizes of the axis-aligned boxes around them."""
        reach: F64 = np.einsum("nij,nj->ni", np.abs(self.R), self.half)
        return reach

    def bounds(self) -> tuple[F64, F64]:
        """Corners of the axis-aligned box around all of them."""
        return (self.center - self.reach).min(0), (self.center + self.reach).max(0)


def pieces_collide(a: Pieces, b: Pieces, slack_m: float = CONTACT_M) -> bool:
    """Whether any box of ``a`` overlaps any of ``b`` by more than ``slack_m`` (separating axes)."""
    if len(a.center) == 0 or len(b.center) == 0:
        return False
    gap = np.abs(a.center[:, None] - b.center[None]) - (a.reach[:, None] + b.reach[None] - slack_m)
    i, j = np.nonzero((gap < 0).all(-1))
    if len(i) == 0:
        return False
    d = b.center[j] - a.center[i]
    Ra, Rb = a.R[i], b.R[j]
    ha, hb = a.half[i], b.half[j]
    axes = [Ra[:, :, k] for k in range(3)] + [Rb[:, :, k] for k in range(3)]
    axes += [np.cross(Ra[:, :, k], Rb[:, :, m]) for k in range(3) for m in range(3)]
    overlap = np.ones(len(i), bool)
    for axis in axes:
        norm = np.linalg.norm(axis, axis=1)
        unit = axis / np.maximum(norm, 1e-9)[:, None]
        ra = (np.abs(np.einsum("nij,ni->nj", Ra, unit)) * ha).sum(1)
        rb = (np.abs(np.einsum("nij,ni->nj", Rb, unit)) * hb).sum(1)
        separate = np.abs((d * unit).sum(1)) > ra + rb - slack_m
        overlap &= ~(separate & (norm > 1e-6))
    return bool(overlap.any())


@dataclass
class Placer:
    """Collects the objects of one home; refuses what would collide, leave its room, or block the robot's way.

    Attributes:
        rooms: all rooms.
        keep_out: per room, boxes (x0, y0, x1, y1, z0, z1) that stay free: before doors, in front of windows.
        access: per room, points (x, y) that must stay connected for the robot.
        objects: accepted so far; ids are positions in this list.
    """

    rooms: tuple[Room, ...]
    keep_out: dict[int, list[Zone]] = field(default_factory=dict)
    access: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    objects: list[PlacedObject] = field(default_factory=list)
    _pieces: list[Pieces] = field(default_factory=list)
    _low: list[F64] = field(default_factory=list)
    _high: list[F64] = field(default_factory=list)

    def put(
        self,
        model: ObjectModel,
        T: F64,
        room: int,
        *,
        joint_states: Mapping[str, float] | None = None,
        support: int | None = None,
        relation: str = "",
        mounted: str = "floor",
        check: bool = True,
        zones: bool = True,
    ) -> PlacedObject | None:
        """Add the object, or return None when it does not fit there.

        ``check=False`` adds it in any case (the shell); ``zones=False`` ignores ``keep_out`` (curtains).
        """
        states = MappingProxyType(dict(joint_states or {}))
        pieces = Pieces.of(model.posed_pieces(states), T)
        if check and not self._fits(pieces, room, mounted, zones):
            return None
        placed = PlacedObject(len(self.objects), model, T, room, states, support, relation, mounted)
        self.objects.append(placed)
        self._pieces.append(pieces)
        low, high = pieces.bounds() if len(pieces.center) else (np.full(3, np.inf), np.full(3, -np.inf))
        self._low.append(low)
        self._high.append(high)
        if check and mounted == "floor" and high[2] > 0.03 and not self.passable(room):
            self.remove_last()
            return None
        return placed

    def move_joint(self, object_id: int, part: str, state: float) -> bool:
        """Move one joint where nothing is in its way and the robot still gets through; says whether it moved."""
        old, old_pieces = self.objects[object_id], self._pieces[object_id]
        new = replace(old, joint_states=MappingProxyType({**old.joint_states, part: state}))
        pieces = Pieces.of(new.model.posed_pieces(new.joint_states), new.T_world_object)
        if not self._fits(pieces, old.room, "floor", True, object_id):
            return False
        self.objects[object_id], self._pieces[object_id] = new, pieces
        if not self.passable(old.room):
            self.objects[object_id], self._pieces[object_id] = old, old_pieces
            return False
        self._low[object_id], self._high[object_id] = pieces.bounds()
        return True

    def remove_last(self, count: int = 1) -> None:
        """Take back the newest objects."""
        for _ in range(count):
            for stack in (self.objects, self._pieces, self._low, self._high):
                stack.pop()

    def _fits(self, pieces: Pieces, room: int, mounted: str, zones: bool, own_id: int = -1) -> bool:
        low, high = pieces.bounds()
        x0, y0, x1, y1 = self.rooms[room].rect
        inside = low[0] >= x0 - CONTACT_M and low[1] >= y0 - CONTACT_M
        if not (inside and high[0] <= x1 + CONTACT_M and high[1] <= y1 + CONTACT_M):
            return False
        if high[2] > self.rooms[room].height_m + CONTACT_M or low[2] < -0.01:
            return False
        flat = mounted == "floor" and high[2] < 0.03  # carpets lie anywhere
        if mounted != "ceiling" and zones and not flat:
            for x0, y0, x1, y1, z0, z1 in self.keep_out.get(room, []):
                if (low < (x1, y1, z1)).all() and (high > (x0, y0, z0)).all():
                    return False
        if not self._low:
            return True
        near = ((np.array(self._low) < high - CONTACT_M) & (np.array(self._high) > low + CONTACT_M)).all(1)
        return not any(k != own_id and pieces_collide(pieces, self._pieces[k]) for k in np.nonzero(near)[0])

    def free_mask(self, room: int) -> NDArray[np.bool_]:
        """(rows along y, columns along x) cells of the room that nothing at robot height covers, not eroded."""
        x0, y0, x1, y1 = self.rooms[room].rect
        free = np.ones((max(1, round((y1 - y0) / CELL_M)), max(1, round((x1 - x0) / CELL_M))), bool)
        for k, placed in enumerate(self.objects):
            if placed.room != room or placed.mounted == "ceiling" or placed.label in ("floor", "ceiling", "wall"):
                continue
            pieces = self._pieces[k]
            low, high = pieces.center - pieces.reach, pieces.center + pieces.reach
            blocks = (low[:, 2] < ROBOT_HEIGHT_M) & (high[:, 2] > 0.03)
            for a, b in zip(low[blocks], high[blocks], strict=True):
                c0, r0 = int(np.floor((a[0] - x0) / CELL_M)), int(np.floor((a[1] - y0) / CELL_M))
                c1, r1 = int(np.ceil((b[0] - x0) / CELL_M)), int(np.ceil((b[1] - y0) / CELL_M))
                free[max(r0, 0) : max(r1, 0), max(c0, 0) : max(c1, 0)] = False
        return free

    def drivable_mask(self, room: int) -> NDArray[np.bool_]:
        """Cells where the robot's centre may be."""
        padded = np.pad(self.free_mask(room), 1, constant_values=False)
        return np.asarray(ndimage.distance_transform_edt(padded)[1:-1, 1:-1] * CELL_M > ROBOT_RADIUS_M)

    def passable(self, room: int) -> bool:
        """All access points lie in one drivable region that is at least a twelfth of the room."""
        labels, count = ndimage.label(self.drivable_mask(room), np.ones((3, 3)))
        if count == 0:
            return False
        x0, y0, _, _ = self.rooms[room].rect
        regions = set()
        for x, y in self.access.get(room, []):
            r = min(max(int((y - y0) / CELL_M), 0), labels.shape[0] - 1)
            c = min(max(int((x - x0) / CELL_M), 0), labels.shape[1] - 1)
            window = labels[max(r - 4, 0) : r + 5, max(c - 4, 0) : c + 5]
            found = window[window > 0]
            if len(found) == 0:
                return False
            regions.add(int(np.bincount(found).argmax()))
        if len(regions) > 1:
            return False
        sizes = np.bincount(labels.ravel())[1:]
        size = sizes[regions.pop() - 1] if regions else sizes.max()
        return bool(size * CELL_M**2 >= self.rooms[room].area_m2 / 12)
