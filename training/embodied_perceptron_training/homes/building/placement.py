"""Placement of objects: collisions, keep-out zones, the robot's way between doors, and candidate poses in a room.

:class:`Placer` accepts or refuses a pose; :class:`RoomArranger` proposes poses against a wall, next to or on an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.homes.assets.mesh import MeshBuilder, Piece, rotation
from embodied_perceptron_training.homes.assets.objects import ObjectModel, PlacedObject, Surface, pose_at
from embodied_perceptron_training.homes.assets.varied.catalogue import Catalogue, Family
from embodied_perceptron_training.homes.building.floorplan import SIDE_YAW, Room, Side

Check = Literal["all", "contact", "none"]
Zone = tuple[float, float, float, float, float, float]
CONTACT_M = 0.002  # smaller overlaps count as contact
CELL_M = 0.05
ROBOT_RADIUS_M = 0.24
ROBOT_HEIGHT_M = 1.4
_WALL_GAP_M = 0.012  # between a wall and the back of a piece of furniture
SIDES: tuple[Side, ...] = ("S", "N", "W", "E")
_INWARD: dict[Side, F64] = {  # (2,) from the wall into the room
    "S": np.array([0.0, 1.0]),
    "N": np.array([0.0, -1.0]),
    "W": np.array([1.0, 0.0]),
    "E": np.array([-1.0, 0.0]),
}


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
        """Corners of the common axis-aligned box."""
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
    """Objects of one home; refuses objects that collide, leave their room or block the robot's way.

    Attributes:
        rooms: all rooms.
        keep_out: per room, free boxes (x0, y0, x1, y1, z0, z1) in front of doors and windows.
        access: per room, points (x, y) that must stay connected for the robot.
        objects: accepted objects; ids are positions in this list.
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
        check: Check = "all",
    ) -> PlacedObject | None:
        """Add the object, or return None when it does not fit.

        ``check``: ``all``; ``contact`` ignores ``keep_out`` (curtains); ``none`` adds it in any case (the shell).
        """
        states = MappingProxyType(dict(joint_states or {}))
        pieces = Pieces.of(model.posed_pieces(states), T)
        if check != "none" and not self._fits(pieces, room, mounted, check == "all"):
            return None
        placed = PlacedObject(len(self.objects), model, T, room, states, support, relation, mounted)
        self.objects.append(placed)
        self._pieces.append(pieces)
        low, high = pieces.bounds() if len(pieces.center) else (np.full(3, np.inf), np.full(3, -np.inf))
        self._low.append(low)
        self._high.append(high)
        if check != "none" and mounted == "floor" and high[2] > 0.03 and not self.passable(room):
            self.remove_last()
            return None
        return placed

    def move_joint(self, object_id: int, part: str, state: float) -> bool:
        """Move one joint unless it collides or blocks the robot's way; True if it moved."""
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
        """Remove the newest objects."""
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
        flat = mounted == "floor" and high[2] < 0.03  # carpets may overlap with anything
        if mounted != "ceiling" and zones and not flat:
            for x0, y0, x1, y1, z0, z1 in self.keep_out.get(room, []):
                if (low < (x1, y1, z1)).all() and (high > (x0, y0, z0)).all():
                    return False
        if not self._low:
            return True
        near = ((np.array(self._low) < high - CONTACT_M) & (np.array(self._high) > low + CONTACT_M)).all(1)
        return not any(k != own_id and pieces_collide(pieces, self._pieces[k]) for k in np.nonzero(near)[0])

    def free_mask(self, room: int) -> NDArray[np.bool_]:
        """(rows along y, columns along x) mask of cells without objects at robot height, not eroded."""
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
        """Mask of cells for the robot's centre."""
        padded = np.pad(self.free_mask(room), 1, constant_values=False)
        return np.asarray(ndimage.distance_transform_edt(padded)[1:-1, 1:-1] * CELL_M > ROBOT_RADIUS_M)

    def passable(self, room: int) -> bool:
        """Whether all access points lie in one drivable region of at least a twelfth of the room."""
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


@dataclass
class RoomArranger:
    """Place models in one room at random positions; methods return None when none fits."""

    rng: np.random.Generator
    placer: Placer
    room: Room
    tries: int = 12
    catalogue: Catalogue | None = None  # draws family and size of requested models; None = unchanged

    def make(self, family: Family, rng: np.random.Generator | None = None) -> ObjectModel:
        """Model of ``family``, or of a family with its role in the catalogue."""
        rng = self.rng if rng is None else rng
        return family(rng, MeshBuilder()) if self.catalogue is None else self.catalogue.draw(family, rng)

    def against_wall(self, model: ObjectModel, side: Side | None = None, corner: bool = False) -> PlacedObject | None:
        """Place with the back to a wall."""
        low, high = model.bounds()
        for _ in range(self.tries):
            s = side or SIDES[int(self.rng.integers(4))]
            length = self.length(s)
            width = high[0] - low[0]
            if width > length - 0.04:
                continue
            along = float(self.rng.uniform(width / 2 + 0.02, length - width / 2 - 0.02))
            if corner:
                along = width / 2 + 0.02 if self.rng.random() < 0.5 else length - width / 2 - 0.02
            placed = self.at_side(model, s, along, -float(low[2]))
            if placed:
                return placed
        return None

    def length(self, side: Side) -> float:
        """Length of the wall, metres."""
        x0, y0, x1, y1 = self.room.rect
        return x1 - x0 if side in ("S", "N") else y1 - y0

    def at_side(
        self,
        model: ObjectModel,
        side: Side,
        along: float,
        z: float,
        gap: float = _WALL_GAP_M,
        mounted: str = "floor",
        check: Check = "all",
    ) -> PlacedObject | None:
        """Place with the back to wall ``side``, centred ``along`` metres from its lower end, base at height ``z``."""
        low, high = model.bounds()
        x, y = self._wall_place(side, along, float(high[1]) + gap, float(low[0] + high[0]) / 2)
        T = pose_at((x, y, z), SIDE_YAW[side])
        return self.placer.put(model, T, self.room.index, mounted=mounted, check=check)

    def _wall_place(self, side: Side, along: float, depth: float, shift: float = 0.0) -> tuple[float, float]:
        """World (x, y) of a point ``depth`` before the wall; ``shift``: along the local x of the object."""
        x0, y0, x1, y1 = self.room.rect
        return {
            "S": (x0 + along + shift, y0 + depth),
            "N": (x0 + along - shift, y1 - depth),
            "W": (x0 + depth, y0 + along - shift),
            "E": (x1 - depth, y0 + along + shift),
        }[side]

    def on_wall(self, model: ObjectModel, z: float, above: PlacedObject | None = None) -> PlacedObject | None:
        """Hang on a wall with the base at height ``z``; ``above``: an object at the wall to centre it over."""
        low, high = model.bounds()
        width = float(high[0] - low[0])
        for _ in range(self.tries):
            if above is not None:
                side = self.side_of(above)
                along = self.along(side, above.T_world_object[:3, 3])
            else:
                side = SIDES[int(self.rng.integers(4))]
                if width > self.length(side) - 0.2:
                    continue
                along = float(self.rng.uniform(width / 2 + 0.1, self.length(side) - width / 2 - 0.1))
            top = self.room.height_m - 0.03 - float(high[2] - low[2])
            placed = self.at_side(model, side, along, min(z, top) - float(low[2]), 0.002, "wall")
            if placed or above is not None:
                return placed
        return None

    def side_of(self, placed: PlacedObject) -> Side:
        """The wall at the back of the object."""
        front = placed.front
        return min(SIDES, key=lambda s: -float(_INWARD[s] @ front[:2]))

    def along(self, side: Side, position: F64) -> float:
        """Metres along the wall ``side`` of a world position."""
        x0, y0, _, _ = self.room.rect
        return float(position[0] - x0) if side in ("S", "N") else float(position[1] - y0)

    def lean(self, model: ObjectModel, angle_rad: float) -> PlacedObject | None:
        """Stand on the floor, tilted back so that the upper edge touches a wall."""
        tilt = rotation("x", -angle_rad)
        corners = model.posed_mesh().triangles.reshape(-1, 3) @ tilt.T
        low, high = corners.min(0), corners.max(0)
        for _ in range(self.tries):
            side = SIDES[int(self.rng.integers(4))]
            width = float(high[0] - low[0])
            along = float(self.rng.uniform(width / 2 + 0.05, self.length(side) - width / 2 - 0.05))
            x, y = self._wall_place(side, along, float(high[1]) + 0.004)
            T = pose_at((x, y, -float(low[2])), SIDE_YAW[side], tilt)
            placed = self.placer.put(model, T, self.room.index)
            if placed:
                return placed
        return None

    def free(self, model: ObjectModel, margin_m: float = 0.3, turn: bool = True) -> PlacedObject | None:
        """Place anywhere on the floor."""
        x0, y0, x1, y1 = self.room.rect
        for _ in range(self.tries):
            if x1 - x0 < 2 * margin_m or y1 - y0 < 2 * margin_m:
                return None
            x, y = self.rng.uniform(x0 + margin_m, x1 - margin_m), self.rng.uniform(y0 + margin_m, y1 - margin_m)
            yaw = float(self.rng.uniform(-np.pi, np.pi)) if turn else float(self.rng.integers(4)) * np.pi / 2
            placed = self.placer.put(model, pose_at((x, y, -float(model.bounds()[0][2])), yaw), self.room.index)
            if placed:
                return placed
        return None

    def middle(self, model: ObjectModel, spread: float = 0.15) -> PlacedObject | None:
        """Place near the middle of the room, parallel to its walls."""
        x0, y0, x1, y1 = self.room.rect
        cx, cy = self.room.center
        for attempt in range(self.tries):
            s = spread * (1 + attempt / 4)
            x, y = cx + self.rng.uniform(-s, s) * (x1 - x0), cy + self.rng.uniform(-s, s) * (y1 - y0)
            yaw = float(self.rng.integers(2)) * np.pi / 2
            placed = self.placer.put(model, pose_at((x, y, -float(model.bounds()[0][2])), yaw), self.room.index)
            if placed:
                return placed
        return None

    def relative(
        self, model: ObjectModel, anchor: PlacedObject, offset: tuple[float, float], turn_rad: float = 0.0
    ) -> PlacedObject | None:
        """Place on the floor at ``offset`` (x, y) in the anchor's frame, turned by ``turn_rad`` relative to it."""
        local = pose_at((offset[0], offset[1], 0.0), turn_rad)
        T = anchor.T_world_object @ local
        T[2, 3] = -float(model.bounds()[0][2])
        return self.placer.put(model, T, self.room.index)

    def beside(self, model: ObjectModel, anchor: PlacedObject, sign: int, gap_m: float = 0.06) -> PlacedObject | None:
        """Place at the anchor's local +x or -x, backs aligned."""
        low, high = anchor.model.bounds()
        own_low, own_high = model.bounds()
        x = float(high[0] - own_low[0]) + gap_m if sign > 0 else float(low[0] - own_high[0]) - gap_m
        return self.relative(model, anchor, (x, float(high[1] - own_high[1])))

    def before(
        self, model: ObjectModel, anchor: PlacedObject, gap_m: float, facing: bool = True
    ) -> PlacedObject | None:
        """Place in front of the anchor, facing it (``facing``) or in its direction."""
        low, _ = anchor.model.bounds()
        own_low, own_high = model.bounds()
        reach = -float(own_low[1]) if facing else float(own_high[1])
        shift = float(self.rng.uniform(-0.08, 0.08))
        return self.relative(model, anchor, (shift, float(low[1]) - gap_m - reach), np.pi if facing else 0.0)

    def on_ceiling(self, model: ObjectModel, x: float, y: float) -> PlacedObject | None:
        """Hang from the ceiling."""
        z = self.room.height_m - float(model.bounds()[1][2]) - 0.001
        return self.placer.put(model, pose_at((x, y, z), 0.0), self.room.index, mounted="ceiling")

    def on_surface(
        self,
        model: ObjectModel,
        anchor: PlacedObject,
        surface: Surface,
        yaw_rad: float = 0.0,
        tilt: F64 | None = None,
        at: tuple[float, float] | None = None,
        joint_states: dict[str, float] | None = None,
    ) -> PlacedObject | None:
        """Place on a surface of ``anchor``, at random or at the fraction ``at`` in [-1, 1] of its half sizes."""
        R = rotation("z", yaw_rad) if tilt is None else rotation("z", yaw_rad) @ tilt
        corners = model.posed_mesh(joint_states).triangles.reshape(-1, 3) @ R.T
        low, high = corners.min(0), corners.max(0)
        if high[2] - low[2] > surface.clearance_m:
            return None
        free_x, free_y = surface.half_m[0] - (high[0] - low[0]) / 2, surface.half_m[1] - (high[1] - low[1]) / 2
        if free_x < 0 or free_y < 0:
            return None
        for _ in range(self.tries if at is None else 1):
            fx, fy = at if at is not None else (float(self.rng.uniform(-1, 1)), float(self.rng.uniform(-1, 1)))
            x = surface.center_m[0] + fx * free_x - (low[0] + high[0]) / 2
            y = surface.center_m[1] + fy * free_y - (low[1] + high[1]) / 2
            local = pose_at((x, y, surface.center_m[2] - low[2] + 0.0005), yaw_rad, tilt)
            placed = self.placer.put(
                model,
                anchor.T_world_object @ local,
                self.room.index,
                joint_states=joint_states,
                support=anchor.id,
                relation=surface.relation,
                mounted="object",
            )
            if placed:
                return placed
        return None
