"""Ways to place a piece of furniture in one room: against a wall, beside, around, on the wall, on top of something."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron_training.synthetic.assets.sweethome3d import AssetLibrary
from embodied_perceptron_training.synthetic.floorplan import SIDE_YAW, Room, Side
from embodied_perceptron_training.synthetic.mesh import rotation
from embodied_perceptron_training.synthetic.model import ObjectModel, PlacedObject, Surface, pose_at
from embodied_perceptron_training.synthetic.placement import Placer

F64 = NDArray[np.float64]
SIDES: tuple[Side, ...] = ("S", "N", "W", "E")
_WALL_GAP_M = 0.012


@dataclass
class RoomArranger:
    """Places models in one room, trying a few random places each; every method returns None when nothing fitted."""

    rng: np.random.Generator
    placer: Placer
    room: Room
    tries: int = 12
    library: AssetLibrary | None = None  # models that stand in for parametric ones

    def _own(self, model: ObjectModel) -> ObjectModel:
        return model if self.library is None else self.library.replace(model, self.rng)

    def against_wall(self, model: ObjectModel, side: Side | None = None, corner: bool = False) -> PlacedObject | None:
        """Back to a wall, front to the room."""
        model = self._own(model)
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
        """Of the wall, metres."""
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
        zones: bool = True,
    ) -> PlacedObject | None:
        """Back to the wall ``side``, centred ``along`` metres from its lower end, base at height ``z``."""
        low, high = model.bounds()
        x0, y0, x1, y1 = self.room.rect
        depth = float(high[1]) + gap
        shift = float(low[0] + high[0]) / 2
        yaw = SIDE_YAW[side]
        positions = {
            "S": (x0 + along + shift, y0 + depth),
            "N": (x0 + along - shift, y1 - depth),
            "W": (x0 + depth, y0 + along - shift),
            "E": (x1 - depth, y0 + along + shift),
        }
        x, y = positions[side]
        return self.placer.put(model, pose_at((x, y, z), yaw), self.room.index, mounted=mounted, zones=zones)

    def on_wall(self, model: ObjectModel, z: float, above: PlacedObject | None = None) -> PlacedObject | None:
        """Hang on a wall with its base at height ``z``; ``above`` centres it over something against that wall."""
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
        """The wall that it turns its back to."""
        front = placed.front
        return min(SIDES, key=lambda s: -float(_inward(s) @ front[:2]))

    def along(self, side: Side, position: F64) -> float:
        """Metres along the wall ``side`` of a world position."""
        x0, y0, _, _ = self.room.rect
        return float(position[0] - x0) if side in ("S", "N") else float(position[1] - y0)

    def lean(self, model: ObjectModel, angle_rad: float) -> PlacedObject | None:
        """Stand on the floor, tilted back so that the upper edge touches a wall."""
        tilt = rotation("x", -angle_rad)
        corners = model.posed_mesh().triangles.reshape(-1, 3) @ tilt.T
        low, high = corners.min(0), corners.max(0)
        x0, y0, x1, y1 = self.room.rect
        for _ in range(self.tries):
            side = SIDES[int(self.rng.integers(4))]
            width = float(high[0] - low[0])
            along = float(self.rng.uniform(width / 2 + 0.05, self.length(side) - width / 2 - 0.05))
            depth = float(high[1]) + 0.004
            x, y = {
                "S": (x0 + along, y0 + depth),
                "N": (x0 + along, y1 - depth),
                "W": (x0 + depth, y0 + along),
                "E": (x1 - depth, y0 + along),
            }[side]
            T = pose_at((x, y, -float(low[2])), SIDE_YAW[side], tilt)
            placed = self.placer.put(model, T, self.room.index)
            if placed:
                return placed
        return None

    def free(self, model: ObjectModel, margin_m: float = 0.3, turn: bool = True) -> PlacedObject | None:
        """Anywhere on the floor."""
        model = self._own(model)
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
        """Near the middle of the room, along its walls."""
        model = self._own(model)
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
        """At ``offset`` (x, y) in the anchor's frame, turned by ``turn_rad`` against it, standing on the floor."""
        model = self._own(model)
        local = pose_at((offset[0], offset[1], 0.0), turn_rad)
        T = anchor.T_world_object @ local
        T[2, 3] = -float(model.bounds()[0][2])
        return self.placer.put(model, T, self.room.index)

    def beside(self, model: ObjectModel, anchor: PlacedObject, sign: int, gap_m: float = 0.06) -> PlacedObject | None:
        """To the anchor's local +x or -x, backs aligned."""
        low, high = anchor.model.bounds()
        own_low, own_high = model.bounds()
        x = float(high[0] - own_low[0]) + gap_m if sign > 0 else float(low[0] - own_high[0]) - gap_m
        return self.relative(model, anchor, (x, float(high[1] - own_high[1])))

    def before(
        self, model: ObjectModel, anchor: PlacedObject, gap_m: float, facing: bool = True
    ) -> PlacedObject | None:
        """In front of the anchor, looking at it (``facing``) or the way it looks."""
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
        """Stand on a surface of ``anchor``: at random, or at the fraction ``at`` in [-1, 1] of its half sizes."""
        model = self._own(model) if not joint_states else model
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


def _inward(side: Side) -> F64:
    return {
        "S": np.array([0.0, 1.0]),
        "N": np.array([0.0, -1.0]),
        "W": np.array([1.0, 0.0]),
        "E": np.array([-1.0, 0.0]),
    }[side]
