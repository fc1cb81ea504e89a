"""Depth brought to the pixels of colour, where both images are of one place and direction but of other sizes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics


def resized(camera: Intrinsics, width: int, height: int) -> Intrinsics:
    """The camera of an image that was made larger or smaller."""
    x, y = width / camera.width, height / camera.height
    return Intrinsics(
        camera.fx * x, camera.fy * y, (camera.cx + 0.5) * x - 0.5, (camera.cy + 0.5) * y - 0.5, width, height
    )


def register_depth(
    depth: NDArray[np.float32], depth_camera: Intrinsics, color_camera: Intrinsics
) -> NDArray[np.float32]:
    """(h, w) depth -> depth at the (H, W) pixels of colour, for cameras with one centre and one direction.

    Each pixel of colour takes that of depth on its ray, the nearest one; 0 outside. Raises ``ValueError`` for a depth
    image that is not of the size of its camera.
    """
    if depth.shape != (depth_camera.height, depth_camera.width):
        raise ValueError(
            f"depth is {depth.shape[1]}x{depth.shape[0]}, its calibration {depth_camera.width}x{depth_camera.height}"
        )
    if depth_camera == color_camera:
        return depth
    u = (np.arange(color_camera.width) - color_camera.cx) / color_camera.fx * depth_camera.fx + depth_camera.cx
    v = (np.arange(color_camera.height) - color_camera.cy) / color_camera.fy * depth_camera.fy + depth_camera.cy
    columns, rows = np.rint(u).astype(np.int64), np.rint(v).astype(np.int64)
    inside_u, inside_v = (columns >= 0) & (columns < depth.shape[1]), (rows >= 0) & (rows < depth.shape[0])
    found = depth[np.ix_(np.where(inside_v, rows, 0), np.where(inside_u, columns, 0))]
    return np.asarray(np.where(inside_v[:, None] & inside_u[None], found, np.float32(0.0)), np.float32)
