"""Views of one static scene: closest hits and soft shadows by Embree on the CPU."""

from __future__ import annotations

import numpy as np
from embreex.mesh_construction import TriangleMesh
from embreex.rtcore_scene import EmbreeScene
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics, check_transform
from embodied_perceptron_training.homes.assets.mesh import face_normals
from embodied_perceptron_training.homes.rendering import shading
from embodied_perceptron_training.homes.rendering.renderer import F32, Hits, RenderedView, auto_gain, pixel_rays
from embodied_perceptron_training.homes.rendering.scene import RenderScene, material_table

_CONTACT_REACH_M = 0.7  # reach of contact shadows
_SKY = np.array([0.7, 0.8, 1.0], np.float32)  # linear RGB without a hit


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


class RayCastRenderer:
    """Renderer of one static scene with the same images on every machine; create a new one (some milliseconds) for a
    changed scene."""

    def __init__(self, scene: RenderScene) -> None:
        self.scene = scene
        mesh = scene.mesh
        self._caster = RayCaster(mesh.triangles)
        cross = face_normals(mesh.triangles)
        self._face_normals = (cross / np.linalg.norm(cross, axis=1, keepdims=True)).astype(np.float32)
        self._normals = mesh.normals.astype(np.float32)
        self._uv = mesh.uv.astype(np.float32)
        self._table = material_table(mesh.materials)
        self._light_position = np.array([light.position_m for light in scene.lights], np.float32)
        self._light_color = np.array([light.color for light in scene.lights], np.float32)
        self._light_shape = np.array([(light.radius_m, *light.direction) for light in scene.lights], np.float32)
        self._light_region = np.array([light.region for light in scene.lights], np.float32)

    def ids(self, intrinsics: Intrinsics, T_world_camera: NDArray[np.floating]) -> tuple[F32, NDArray[np.int32]]:
        """Depth (H, W) and instance image (H, W) only, about three times cheaper than :meth:`render`."""
        hits = self._caster.closest(*pixel_rays(intrinsics, T_world_camera))
        return self._depth_and_ids(hits, intrinsics)

    def render(
        self,
        intrinsics: Intrinsics,
        T_world_camera: NDArray[np.floating],
        exposure: float = 1.0,
        seed: int = 0,
        gain: float | None = None,
    ) -> RenderedView:
        """Render one view.

        ``exposure`` multiplies the automatic exposure, a fixed ``gain`` replaces it; ``seed``: of the noise of soft
        shadows and highlights.
        """
        T = check_transform(np.asarray(T_world_camera), "T_world_camera")
        hits, linear, incidence = self._shade(intrinsics, T, seed)
        shape = (intrinsics.height, intrinsics.width)
        factor = exposure * (auto_gain(linear) if gain is None else gain)
        color = shading.tone_kernel(linear, factor).reshape(*shape, 3)
        depth_m, ids = self._depth_and_ids(hits, intrinsics)
        face = hits.triangle.reshape(shape).astype(np.int32)
        return RenderedView(color, depth_m, ids, incidence.reshape(shape), intrinsics, T, face)

    def radiance(self, intrinsics: Intrinsics, T_world_camera: NDArray[np.floating]) -> F32:
        """(H, W, 3) linear light, before exposure."""
        linear = self._shade(intrinsics, np.asarray(T_world_camera, np.float64), 0)[1]
        return linear.reshape(intrinsics.height, intrinsics.width, 3)

    def _shade(self, intrinsics: Intrinsics, T: NDArray[np.float64], seed: int) -> tuple[Hits, F32, F32]:
        """Hits, (N, 3) linear radiance and (N,) incidence of all pixels."""
        origins, directions = pixel_rays(intrinsics, T)
        hits = self._caster.closest(origins, directions)
        start, normal, to_light, irradiance, contact, mirror, incidence = shading.surface_kernel(
            hits.triangle,
            hits.u,
            hits.v,
            hits.distance,
            origins,
            directions,
            self._face_normals,
            self._normals,
            self._light_position,
            self._light_color,
            self._light_shape,
            self._light_region,
            intrinsics.width,
            seed & 0xFFFF,
        )
        visibility = self._visibility(start, to_light, contact, normal.reshape(intrinsics.height, intrinsics.width, 3))
        table = self._table
        linear = shading.color_kernel(
            hits.triangle,
            hits.u,
            hits.v,
            hits.distance,
            1.0 / intrinsics.fx,
            self._uv,
            self.scene.mesh.material,
            table.color,
            table.look,
            table.is_image,
            table.texels,
            table.size,
            table.levels,
            table.stride,
            normal,
            incidence,
            irradiance,
            mirror,
            visibility.reshape(3, -1),
            np.asarray(self.scene.ambient, np.float32),
            _SKY,
        )
        return hits, linear, incidence

    def _visibility(self, start: F32, to_light: F32, contact: F32, normal: F32) -> F32:
        """(3, H, W) shares: visibility of the two strongest lights, and openness to the surroundings.

        ``start`` (N, 3), ``to_light`` (2, N, 3) and ``contact`` (N, 3) are those of
        :func:`shading.surface_kernel`, ``normal`` is (H, W, 3).
        """
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

    def _depth_and_ids(self, hits: Hits, intrinsics: Intrinsics) -> tuple[F32, NDArray[np.int32]]:
        shape = (intrinsics.height, intrinsics.width)
        depth = np.where(hits.triangle >= 0, hits.distance, np.float32(0.0))
        ids = np.where(hits.triangle >= 0, self.scene.instance[hits.triangle], 0)
        return depth.reshape(shape), ids.reshape(shape).astype(np.int32)
