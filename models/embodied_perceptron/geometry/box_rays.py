"""Cameras in a room of axis-parallel boxes, and what they see: exact images for warming up, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_perceptron.geometry.transforms import F64, Intrinsics, make_transform


class BoxView(NamedTuple):
    """(H, W) depth along the optical axis, +Inf where nothing is; (H, W, 3) points; (H, W) number of the box, or -1."""

    depth_m: F64
    points_m: F64
    box: NDArray[np.int64]


def upright_camera(xyz_m: ArrayLike, yaw_rad: float, down_rad: float) -> F64:
    """(4, 4) pose of an optical frame that looks along ``yaw_rad``, ``down_rad`` below the horizon."""
    c, s, cd, sd = np.cos(yaw_rad), np.sin(yaw_rad), np.cos(down_rad), np.sin(down_rad)
    forward, right = np.array([c * cd, s * cd, -sd]), np.array([s, -c, 0.0])
    return make_transform(np.column_stack([right, np.cross(forward, right), forward]), np.asarray(xyz_m, np.float64))


def view_boxes(
    T_world_camera: F64, k: Intrinsics, boxes: Iterable[tuple[ArrayLike, ArrayLike]], room: ArrayLike | None = None
) -> BoxView:
    """View ``boxes``, given by lowest and highest corners, from outside of them, and a (2, 3) ``room`` from within."""
    u, v = np.meshgrid(np.arange(k.width), np.arange(k.height))
    rays = np.stack([(u - k.cx) / k.fx, (v - k.cy) / k.fy, np.ones_like(u, float)], -1) @ T_world_camera[:3, :3].T
    eye = T_world_camera[:3, 3]
    depth, shown = np.full(u.shape, np.inf), np.full(u.shape, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        if room is not None:
            depth = ((np.asarray(room)[:, None, None] - eye) / rays).max(0).min(-1)
        for number, (low, high) in enumerate(boxes):
            a, b = (np.asarray(low) - eye) / rays, (np.asarray(high) - eye) / rays
            enter, leave = np.minimum(a, b).max(-1), np.maximum(a, b).min(-1)
            hit = (enter < leave) & (enter > 0) & (enter < depth)
            depth, shown = np.where(hit, enter, depth), np.where(hit, number, shown)
    return BoxView(depth, eye + np.where(np.isfinite(depth), depth, 0.0)[..., None] * rays, shown)
