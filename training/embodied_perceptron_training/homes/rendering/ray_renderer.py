"""The benchmark's renderer: closest hits and soft shadows by Embree on the CPU."""

from __future__ import annotations

import numpy as np
from embreex.mesh_construction import TriangleMesh
from embreex.rtcore_scene import EmbreeScene
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron_training.homes.rendering import shading
from embodied_perceptron_training.homes.rendering.renderer import F32, Hits, SceneRenderer
from embodied_perceptron_training.homes.rendering.scene import RenderScene

_CONTACT_REACH_M = 0.7  # reach of contact shadows


class RayCaster:
    """Closest hits and occlusion of a static triangle soup (F, 3, 3), metres. ``ValueError`` for an empty one."""

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
        """(N,) whether the segment from the origin to ``origin + reach * direction`` is blocked."""
        hit = self._scene.run(
            np.ascontiguousarray(origins),
            np.ascontiguousarray(directions),
            np.ascontiguousarray(reach),
            query="OCCLUDED",
        )
        return np.asarray(hit) >= 0


class RayCastRenderer(SceneRenderer):
    """Ray casting with cast shadows: the same images on every machine."""

    def __init__(self, scene: RenderScene) -> None:
        super().__init__(scene)
        self._caster = RayCaster(scene.mesh.triangles)

    def _closest(self, intrinsics: Intrinsics, T_world_camera: NDArray[np.floating], rays: tuple[F32, F32]) -> Hits:
        return self._caster.closest(*rays)

    def _visibility(self, start: F32, to_light: F32, contact: F32, normal: F32) -> F32:
        count = len(start)
        nearly = np.full(count, 0.98, np.float32)  # a lampshade must not block the light of its lamp
        length = np.linalg.norm(contact, axis=1)
        reach = (_CONTACT_REACH_M / np.maximum(length, 1e-6)).astype(np.float32)
        blocked = [
            self._caster.occluded(start, to_light[0], nearly),
            self._caster.occluded(start, to_light[1], nearly),
            self._caster.occluded(start, contact, reach),
        ]
        raw = np.stack([1.0 - b.astype(np.float32) for b in blocked]).reshape(3, *normal.shape[:2])
        return shading.smooth_kernel(raw, start.reshape(normal.shape), normal, 4 if normal.shape[1] < 800 else 8)
