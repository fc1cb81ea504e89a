"""Points to pixels without a graphics card: discs with a depth buffer, and shading that shows depth.

Eye-dome lighting follows Boucheny (2009): a pixel is darkened by how much nearer its surroundings are.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.geometry import Intrinsics, invert_transform, transform_points
from embodied_perceptron.viewing.drawing import Image


def splat(
    points_m: NDArray[np.float64],
    colors: NDArray[np.uint8],
    radius_m: float,
    T_world_camera: NDArray[np.float64],
    intrinsics: Intrinsics,
) -> tuple[Image, NDArray[np.float32], NDArray[np.int32]]:
    """Draw (N, 3) points as discs that bulge towards the camera, so that neighbours meet half-way.

    Returns the (H, W, 3) picture (black where nothing is), (H, W) depth in metres (+Inf where nothing is) and the
    (H, W) number of the point that is seen (-1 where none).
    """
    camera = transform_points(invert_transform(T_world_camera), points_m)
    depth = np.full((intrinsics.height, intrinsics.width), np.inf, dtype=np.float32)
    number = np.full(depth.shape, -1, dtype=np.int32)
    _splat_discs(camera, radius_m, intrinsics.fx, intrinsics.fy, intrinsics.cx, intrinsics.cy, depth, number)
    image = np.zeros((*depth.shape, 3), dtype=np.uint8)
    seen = number >= 0
    image[seen] = colors[number[seen]]
    return image, depth, number


@njit(cache=True)
def _splat_discs(
    camera: NDArray[np.float64],
    radius_m: float,
    fx: float,
    fy: float,
    cx: float,
    cy: float,
    depth: NDArray[np.float32],
    number: NDArray[np.int32],
) -> None:
    rows, columns = depth.shape
    for i in range(len(camera)):
        z = camera[i, 2]
        if z < 0.05:
            continue
        u, v = fx * camera[i, 0] / z + cx, fy * camera[i, 1] / z + cy
        r = max(0.7, fx * radius_m / z)
        if u + r < 0 or v + r < 0 or u - r > columns - 1 or v - r > rows - 1:
            continue
        for y in range(max(0, int(np.ceil(v - r))), min(rows - 1, int(np.floor(v + r))) + 1):
            for x in range(max(0, int(np.ceil(u - r))), min(columns - 1, int(np.floor(u + r))) + 1):
                d2 = ((x - u) * (x - u) + (y - v) * (y - v)) / (r * r)
                if d2 > 1.0:
                    continue
                near = np.float32(z - 0.5 * radius_m * (1.0 - d2))
                if near < depth[y, x]:
                    depth[y, x] = near
                    number[y, x] = i


def eye_dome(depth: NDArray[np.float32], radius_px: int, strength: float = 1.0) -> NDArray[np.float32]:
    """(H, W) factors in (0, 1] that darken pixels with nearer surroundings; 1 where nothing is."""
    known = np.isfinite(depth)
    # where nothing is, is far away: it darkens nobody
    logarithm = np.where(known, np.log2(np.where(known, depth, 1.0)), 100.0).astype(np.float32)
    return _eye_dome(logarithm, radius_px, 60.0 * strength)


@njit(cache=True)
def _eye_dome(logarithm: NDArray[np.float32], radius: int, strength: float) -> NDArray[np.float32]:
    rows, columns = logarithm.shape
    factor = np.ones((rows, columns), dtype=np.float32)
    for y in range(rows):
        for x in range(columns):
            own = logarithm[y, x]
            if own >= 100.0:
                continue
            total = 0.0
            for dy in (-radius, 0, radius):
                for dx in (-radius, 0, radius):
                    v, u = min(max(y + dy, 0), rows - 1), min(max(x + dx, 0), columns - 1)
                    total += max(0.0, own - logarithm[v, u])
            factor[y, x] = np.exp(-strength * min(total / 8.0, 0.02))
    return factor
