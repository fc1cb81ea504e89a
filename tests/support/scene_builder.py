"""Synthetic maps with known content, for tests of everything that looks at a map."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import pack_keys, unpack_keys, world_to_voxel
from embodied_perceptron.results import VoxelSnapshot

VOXEL_M = 0.02


def snapshot_of(
    points_m: NDArray, color: NDArray | None = None, voxel_size_m: float = VOXEL_M, stamp_ns: int = 1
) -> VoxelSnapshot:
    """The map that fusing these points would leave (every voxel seen five times)."""
    points = np.asarray(points_m, dtype=np.float64).reshape(-1, 3)
    colors = np.full((len(points), 3), 128) if color is None else np.broadcast_to(color, (len(points), 3))
    keys = pack_keys(torch.from_numpy(world_to_voxel(points, voxel_size_m))).numpy()
    unique, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
    mean = np.stack([np.bincount(inverse, points[:, i]) for i in range(3)], axis=1) / count[:, None]
    mean_color = np.stack([np.bincount(inverse, colors[:, i]) for i in range(3)], axis=1) / count[:, None]
    n = len(unique)
    return VoxelSnapshot(
        voxel_size_m=voxel_size_m,
        coords=unpack_keys(torch.from_numpy(unique)).numpy().astype(np.int32),
        mean_point_m=mean.astype(np.float32),
        mean_color=mean_color.round().astype(np.uint8),
        hits=np.full(n, 5, np.int32),
        evidence=np.full(n, 3.0, np.float32),
        last_seen_ns=np.full(n, stamp_ns, np.int64),
    )


def plane(origin: tuple, along: tuple, up: tuple, step_m: float = 0.01) -> NDArray[np.float64]:
    """Points all over the parallelogram with one corner at ``origin``."""
    o, a, b = (np.asarray(v, dtype=np.float64) for v in (origin, along, up))
    s = np.linspace(0, 1, max(2, int(np.linalg.norm(a) / step_m) + 1))
    t = np.linspace(0, 1, max(2, int(np.linalg.norm(b) / step_m) + 1))
    return (o + s[:, None, None] * a + t[None, :, None] * b).reshape(-1, 3)


def box_surface(center: tuple, size: tuple, yaw: float = 0.0, step_m: float = 0.01) -> NDArray[np.float64]:
    """Points all over the faces of an upright box."""
    d = np.asarray(size, dtype=np.float64)
    faces = []
    for axis in range(3):
        i, j = [k for k in range(3) if k != axis]
        a, b = np.zeros(3), np.zeros(3)
        a[i], b[j] = d[i], d[j]
        for side in (-0.5, 0.5):
            origin = -d / 2
            origin[axis] = side * d[axis]
            faces.append(plane(tuple(origin), tuple(a), tuple(b), step_m))
    R = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    return np.concatenate(faces) @ R.T + np.asarray(center)


def table(center: tuple, size: tuple, yaw: float = 0.0) -> NDArray[np.float64]:
    """A table top of 4 cm with four legs, standing on z = 0; ``size`` is x, y, height."""
    x, y, h = size
    parts = [box_surface((0, 0, h - 0.02), (x, y, 0.04))]
    for sx in (-1, 1):
        for sy in (-1, 1):
            parts.append(box_surface((sx * (x / 2 - 0.04), sy * (y / 2 - 0.04), h / 2), (0.06, 0.06, h)))
    return _placed(parts, center, yaw)


def chair(center: tuple, yaw: float = 0.0) -> NDArray[np.float64]:
    """A chair of 0.44 x 0.44 x 0.9 m standing on z = 0, its back at local -x."""
    parts = [box_surface((0, 0, 0.44), (0.44, 0.44, 0.04)), box_surface((-0.21, 0, 0.68), (0.03, 0.44, 0.44))]
    for sx in (-1, 1):
        for sy in (-1, 1):
            parts.append(box_surface((sx * 0.19, sy * 0.19, 0.22), (0.04, 0.04, 0.42)))
    return _placed(parts, center, yaw)


def _placed(parts: list, center: tuple, yaw: float) -> NDArray[np.float64]:
    R = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    return np.concatenate(parts) @ R.T + np.array([center[0], center[1], 0.0])


def room(width_m: float = 5.0, depth_m: float = 4.0, height_m: float = 2.4, yaw: float = 0.0) -> NDArray[np.float64]:
    """Floor and four walls about the origin."""
    w, d, h = width_m, depth_m, height_m
    parts = [
        plane((-w / 2, -d / 2, 0), (w, 0, 0), (0, d, 0)),
        plane((-w / 2, -d / 2, 0), (w, 0, 0), (0, 0, h)),
        plane((-w / 2, d / 2, 0), (w, 0, 0), (0, 0, h)),
        plane((-w / 2, -d / 2, 0), (0, d, 0), (0, 0, h)),
        plane((w / 2, -d / 2, 0), (0, d, 0), (0, 0, h)),
    ]
    return _placed(parts, (0, 0), yaw)


def noisy(points_m: NDArray, sigma_m: float = 0.005, seed: int = 0) -> NDArray[np.float64]:
    """The points with Gaussian noise."""
    return points_m + np.random.default_rng(seed).normal(0, sigma_m, points_m.shape)
