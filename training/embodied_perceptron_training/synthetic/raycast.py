"""Closest hits and shadows by Embree: geometry in, hits out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from embreex.mesh_construction import TriangleMesh
from embreex.rtcore_scene import EmbreeScene
from numpy.typing import NDArray

from embodied_perceptron.geometry import Intrinsics

F32 = NDArray[np.float32]


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


class RayCaster:
    """A static triangle soup (F, 3, 3), metres."""

    def __init__(self, triangles: NDArray[np.floating]) -> None:
        if triangles.ndim != 3 or triangles.shape[1:] != (3, 3) or len(triangles) == 0:
            raise ValueError(f"triangles must have shape (F, 3, 3) with F > 0, got {triangles.shape}")
        self._scene = EmbreeScene()
        self._mesh = TriangleMesh(self._scene, np.ascontiguousarray(triangles, np.float32))

    def closest(self, origins: F32, directions: F32) -> Hits:
        """Closest hit of each ray; origins and directions (N, 3), directions need not be unit vectors."""
        out = self._scene.run(np.ascontiguousarray(origins), np.ascontiguousarray(directions), output=True)
        return Hits(out["primID"], out["tfar"], out["u"], out["v"])

    def occluded(self, origins: F32, directions: F32, reach: F32) -> NDArray[np.bool_]:
        """(N,) whether anything stands between the origin and ``origin + reach * direction``."""
        hit = self._scene.run(
            np.ascontiguousarray(origins),
            np.ascontiguousarray(directions),
            np.ascontiguousarray(reach),
            query="OCCLUDED",
        )
        return np.asarray(hit) >= 0


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
