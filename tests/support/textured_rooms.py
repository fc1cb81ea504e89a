"""Rooms of boxes whose surfaces have patterns that are recognised again, and cameras that turn in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.box_rays import upright_camera, view_boxes
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

F64 = NDArray[np.float64]
K = Intrinsics(150.0, 150.0, 99.5, 74.5, 200, 150)
S = 1_000_000_000
_PATCH_M = 0.07


@dataclass(frozen=True, eq=False)
class TexturedRoom:
    """A room, seen from within.

    Attributes:
        low, high: (3,) corners of the room.
        boxes: (N, 2, 3) corners of the furniture.
        seed: of the pattern; -1 = one colour, without any.
        period_m: after which room and pattern repeat along x; infinite = never.
    """

    low: F64
    high: F64
    boxes: F64
    seed: int
    period_m: float = np.inf

    def photograph(self, T_room_camera: F64, light: float = 1.0) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """(H, W, 3) colour and (H, W) exact depth."""
        depth, points, _ = view_boxes(T_room_camera, K, self.boxes, (self.low, self.high))
        if np.isfinite(self.period_m):
            points[..., 0] = np.mod(points[..., 0], self.period_m)
        patch = np.floor(points / _PATCH_M + 1e-6).astype(np.int64)
        hashed = (patch * [73_856_093, 19_349_663, 83_492_791]).sum(-1) + 1_000_003 * self.seed
        shade = np.mod(hashed * 2_654_435_761, 2**32) / 2**32 if self.seed >= 0 else np.full(depth.shape, 0.5)
        color = np.clip((60 + 150 * shade[..., None] * [1.0, 0.9, 0.8]) * light, 0, 255).astype(np.uint8)
        return color, depth.astype(np.float32)

    def frames(
        self, at_m: tuple[float, float], yaws_rad: NDArray[np.floating], T_world_room: F64, light: float = 1.0
    ) -> list[PosedFrame]:
        """Standing at (x, y) and turning; poses in the world."""
        found = []
        for i, yaw in enumerate(yaws_rad):
            T = camera_pose(at_m, float(yaw))
            color, depth_m = self.photograph(T, light)
            found.append(PosedFrame(RgbdFrame((i + 1) * S, "front", color, depth_m, K), T_world_room @ T))
        return found


def camera_pose(at_m: tuple[float, float], yaw_rad: float, pitch_rad: float = 0.3) -> F64:
    """(4, 4) optical frame 1.2 m high that looks along ``yaw`` and ``pitch`` downwards."""
    return upright_camera((*at_m, 1.2), yaw_rad, pitch_rad)


def level_pose(yaw_rad: float, shift_m: tuple[float, float, float]) -> F64:
    """(4, 4) turn about the vertical, then shift."""
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    return make_transform(np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]), np.array(shift_m))


def random_room(seed: int) -> TexturedRoom:
    """About 5 x 4 m with five pieces of furniture along its walls."""
    rng = np.random.default_rng(seed)
    high = np.array([rng.uniform(2.2, 2.8), rng.uniform(1.7, 2.2), 2.4])
    low = np.array([-high[0], -high[1], 0.0])
    boxes = []
    for _ in range(5):
        size = rng.uniform([0.4, 0.4, 0.4], [1.2, 0.7, 1.6])
        side = int(rng.integers(4))
        center = rng.uniform(low + size / 2, high - size / 2)
        axis = side % 2
        center[axis] = high[axis] - size[axis] / 2 if side < 2 else low[axis] + size[axis] / 2
        corner = np.array([*(center - size / 2)[:2], 0.0])
        boxes.append((corner, corner + size))
    return TexturedRoom(low, high, np.array(boxes), seed)


def corridor_of_doors() -> TexturedRoom:
    """16 m long and 1.8 m wide; the same door and cupboard every 2 m, and nothing else."""
    boxes = [((x + 0.3, 0.8, 0.0), (x + 1.2, 0.9, 2.0)) for x in np.arange(-8.0, 8.0, 2.0)]
    boxes += [((x + 1.4, -0.9, 0.0), (x + 1.8, -0.6, 1.0)) for x in np.arange(-8.0, 8.0, 2.0)]
    return TexturedRoom(np.array([-8.0, -0.9, 0.0]), np.array([8.0, 0.9, 2.4]), np.array(boxes), 5, 2.0)
