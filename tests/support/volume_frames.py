"""Random and simple frames, and the comparison of voxels, for the tests of the volume."""

from __future__ import annotations

import importlib.util
from dataclasses import fields

import numpy as np
import pytest
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics, quaternion_to_rotation
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

# looks along world x: optical x = -y, optical y = -z, optical z = x
R_WORLD_CAMERA = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])

needs_warp = pytest.mark.skipif(importlib.util.find_spec("warp") is None, reason="warp-lang is not installed")
KERNELS = ["numba", pytest.param("warp", marks=needs_warp)]
K = Intrinsics(40.0, 40.0, 31.5, 23.5, 64, 48)


def posed(
    depth_m: NDArray[np.float32],
    stamp_ns: int,
    *,
    at: tuple[float, float, float] = (0.0, 0.0, 1.0),
    R: NDArray[np.float64] = R_WORLD_CAMERA,
    color: NDArray[np.uint8] | None = None,
    camera: str = "front",
    intrinsics: Intrinsics = K,
) -> PosedFrame:
    """A frame with a given depth image."""
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, at
    if color is None:
        color = np.full((*depth_m.shape, 3), 128, np.uint8)
    return PosedFrame(RgbdFrame(stamp_ns, camera, color, depth_m.astype(np.float32), intrinsics), T)


def wall(
    distance_m: float, stamp_ns: int, x: float = 0.0, camera: str = "front", intrinsics: Intrinsics = K
) -> PosedFrame:
    """A grey wall at ``distance_m`` before a camera at (x, 0, 1)."""
    depth = np.full((intrinsics.height, intrinsics.width), distance_m, np.float32)
    return posed(depth, stamp_ns, at=(x, 0.0, 1.0), camera=camera, intrinsics=intrinsics)


def random_walk(seed: int, count: int, step_m: float = 0.15) -> list[PosedFrame]:
    """Frames of a tumbling camera that looks at changing slanted planes, with noise, holes and open space."""
    rng = np.random.default_rng(seed)
    k = Intrinsics(22.0, 21.0, 11.3, 8.8, 24, 18)
    position, q = rng.normal(size=3) * 2.0, rng.normal(size=4)
    frames = []
    for i in range(count):
        q = q / np.linalg.norm(q) + rng.normal(size=4) * 0.03
        position = position + rng.normal(size=3) * step_m
        v, u = np.mgrid[0:18, 0:24]
        depth = rng.uniform(0.5, 4.0) + rng.normal() * 0.05 * u + rng.normal() * 0.05 * v
        depth = np.clip(depth + rng.normal(size=depth.shape) * 0.02, 0.05, None)
        depth[rng.random(depth.shape) < 0.05] = 0.0
        top, left = rng.integers(0, 12, 2)
        depth[top : top + 6, left : left + 8] = rng.choice([0.0, np.inf, rng.uniform(0.3, 6.0)])
        color = rng.integers(0, 256, (18, 24, 3), dtype=np.uint8)
        R = quaternion_to_rotation(q / np.linalg.norm(q))
        camera = "left" if i % 3 else "right"
        stamp = 1_000_000_000 + 200_000_000 * (i // 2)  # both cameras share stamps now and then
        at = (float(position[0]), float(position[1]), float(position[2]))
        frames.append(posed(depth, stamp + i * (i % 2), at=at, R=R, color=color, camera=f"{camera}{i}", intrinsics=k))
    return frames


def assert_same_voxels(a: VoxelSnapshot, b: VoxelSnapshot, where: str = "") -> None:
    """Equal bit for bit."""
    for entry in fields(VoxelSnapshot):
        np.testing.assert_array_equal(getattr(a, entry.name), getattr(b, entry.name), f"{entry.name} {where}")
