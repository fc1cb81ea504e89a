"""Rays, hits and images of a renderer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics

F32 = NDArray[np.float32]

_TARGET_LUMA = 0.20  # linear target of automatic exposure
_EXPOSURE_PULL = 0.7


@dataclass(frozen=True, eq=False)
class Hits:
    """Closest hits of N rays.

    Attributes:
        triangle: (N,) int32 index of the face, -1 where the ray leaves the scene.
        distance: (N,) float32 ray parameter: along-axis depth in metres for rays of :func:`pixel_rays`.
        u, v: (N,) float32 barycentric weights of corners 1 and 2.
    """

    triangle: NDArray[np.int32]
    distance: F32
    u: F32
    v: F32


@dataclass(frozen=True, eq=False)
class RenderedView:
    """One rendered view.

    Attributes:
        color: (H, W, 3) uint8 RGB.
        depth_m: (H, W) float32 true depth along the optical axis; 0 = nothing hit.
        instance: (H, W) int32 object id + 1; 0 = none.
        incidence: (H, W) float32 |cosine| between the view ray and the surface.
        intrinsics, T_world_camera: the camera.
        face: (H, W) int32 index of the scene's face, -1 = none; None = not recorded.
    """

    color: NDArray[np.uint8]
    depth_m: F32
    instance: NDArray[np.int32]
    incidence: F32
    intrinsics: Intrinsics
    T_world_camera: NDArray[np.float64]
    face: NDArray[np.int32] | None = None


def pixel_rays(intrinsics: Intrinsics, T_world_camera: NDArray[np.floating]) -> tuple[F32, F32]:
    """Origins and directions (H*W, 3) through the pixel centres (integer coordinates); ray parameter = depth."""
    x = (np.arange(intrinsics.width) - intrinsics.cx) / intrinsics.fx
    y = (np.arange(intrinsics.height) - intrinsics.cy) / intrinsics.fy
    directions = np.empty((intrinsics.height, intrinsics.width, 3))
    directions[..., 0] = x[None, :]
    directions[..., 1] = y[:, None]
    directions[..., 2] = 1.0
    T = np.asarray(T_world_camera, np.float64)
    world = (directions.reshape(-1, 3) @ T[:3, :3].T).astype(np.float32)
    origins = np.broadcast_to(T[:3, 3].astype(np.float32), world.shape)
    return np.ascontiguousarray(origins), world


def auto_gain(linear: F32) -> float:
    """Gain of automatic exposure, which moves the mean linear light (any shape) towards a fixed brightness."""
    return float((_TARGET_LUMA / max(float(linear.mean()), 1e-4)) ** _EXPOSURE_PULL)
