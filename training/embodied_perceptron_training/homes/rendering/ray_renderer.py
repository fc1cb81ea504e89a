"""The benchmark's renderer: Embree hits, shaded on the CPU. RGB, depth and ids in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from embreex.mesh_construction import TriangleMesh
from embreex.rtcore_scene import EmbreeScene
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics, check_transform
from embodied_perceptron_training.homes.mesh import face_normals
from embodied_perceptron_training.homes.rendering import shading
from embodied_perceptron_training.homes.rendering.scene import RenderScene, material_table

# --------------------------------------------------------------------------------------------------------------------
# Closest hits and shadows by Embree: geometry in, hits out.

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


# --------------------------------------------------------------------------------------------------------------------
# The benchmark's renderer: Embree hits, shaded on the CPU. RGB, depth and ids in one pass.

_CONTACT_REACH_M = 0.7  # how far a contact shadow looks
_TARGET_LUMA = 0.20  # linear; where automatic exposure pulls towards
_EXPOSURE_PULL = 0.7


@dataclass(frozen=True, eq=False)
class RenderedView:
    """One rendered view.

    Attributes:
        color: (H, W, 3) uint8 RGB.
        depth_m: (H, W) float32 true depth along the optical axis; 0 = nothing hit.
        instance: (H, W) int32 object id + 1; 0 = none.
        semantic: (H, W) int32 category index + 1; 0 = none.
        incidence: (H, W) float32 |cosine| between the view ray and the surface.
        intrinsics, T_world_camera: the camera.
    """

    color: NDArray[np.uint8]
    depth_m: NDArray[np.float32]
    instance: NDArray[np.int32]
    semantic: NDArray[np.int32]
    incidence: NDArray[np.float32]
    intrinsics: Intrinsics
    T_world_camera: NDArray[np.float64]


class RayCastRenderer:
    """Renders one static scene; build a new one when the scene changes (some milliseconds)."""

    name = "raycast"

    def __init__(self, scene: RenderScene) -> None:
        self.scene = scene
        mesh = scene.mesh
        triangles = mesh.triangles
        self.caster = RayCaster(triangles)
        cross = face_normals(triangles)
        self._face_normals = (cross / np.linalg.norm(cross, axis=1, keepdims=True)).astype(np.float32)
        self._normals = mesh.normals.astype(np.float32)
        self._uv = mesh.uv.astype(np.float32)
        self._table = material_table(mesh.materials)
        self._light_position = np.array([light.position_m for light in scene.lights], np.float32)
        self._light_color = np.array([light.color for light in scene.lights], np.float32)
        self._light_shape = np.array([(light.radius_m, *light.direction) for light in scene.lights], np.float32)
        self._light_region = np.array([light.region for light in scene.lights], np.float32)

    def ids(
        self, intrinsics: Intrinsics, T_world_camera: NDArray[np.floating]
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Depth (H, W) and instance image (H, W) only: some three times cheaper than :meth:`render`."""
        hits = self.caster.closest(*pixel_rays(intrinsics, T_world_camera))
        shape = (intrinsics.height, intrinsics.width)
        return _depth(hits, shape), _lookup(self.scene.instance, hits, shape)

    def render(
        self,
        intrinsics: Intrinsics,
        T_world_camera: NDArray[np.floating],
        exposure: float = 1.0,
        seed: int = 0,
        gain: float | None = None,
    ) -> RenderedView:
        """One view.

        ``exposure`` multiplies the automatic exposure, which a fixed ``gain`` replaces; ``seed`` drives the grain of
        soft shadows.
        """
        T = check_transform(np.asarray(T_world_camera), "T_world_camera")
        hits, linear, incidence = self._shade(intrinsics, T, seed)
        shape = (intrinsics.height, intrinsics.width)
        factor = exposure * (auto_gain(linear) if gain is None else gain)
        return RenderedView(
            shading.tone_kernel(linear, factor).reshape(*shape, 3),
            _depth(hits, shape),
            _lookup(self.scene.instance, hits, shape),
            _lookup(self.scene.semantic, hits, shape),
            incidence.reshape(shape),
            intrinsics,
            T,
        )

    def radiance(self, intrinsics: Intrinsics, T_world_camera: NDArray[np.floating]) -> NDArray[np.float32]:
        """(H, W, 3) linear light, before exposure."""
        linear = self._shade(intrinsics, np.asarray(T_world_camera, np.float64), 0)[1]
        return linear.reshape(intrinsics.height, intrinsics.width, 3)

    def exposure_gain(self, intrinsics: Intrinsics, T_world_camera: NDArray[np.floating]) -> float:
        """What the automatic exposure multiplies this view's light with."""
        return auto_gain(self.radiance(intrinsics, T_world_camera))

    def _shade(
        self, intrinsics: Intrinsics, T: NDArray[np.float64], seed: int
    ) -> tuple[Hits, NDArray[np.float32], NDArray[np.float32]]:
        """Hits, (N, 3) linear radiance and (N,) incidence of all pixels."""
        origins, directions = pixel_rays(intrinsics, T)
        hits = self.caster.closest(origins, directions)
        shape = (intrinsics.height, intrinsics.width)
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
        visibility = self._visibility(start, to_light, contact, normal.reshape(*shape, 3))
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
            np.array([0.7, 0.8, 1.0], np.float32),
        )
        return hits, linear, incidence

    def _visibility(
        self,
        start: NDArray[np.float32],
        to_light: NDArray[np.float32],
        contact: NDArray[np.float32],
        normal: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """(3, H, W): share of the two lights that arrives, and openness."""
        count = len(start)
        nearly = np.full(count, 0.98, np.float32)  # a lamp's own shade must not block its light
        length = np.linalg.norm(contact, axis=1)
        reach = (_CONTACT_REACH_M / np.maximum(length, 1e-6)).astype(np.float32)
        blocked = [
            self.caster.occluded(start, to_light[0], nearly),
            self.caster.occluded(start, to_light[1], nearly),
            self.caster.occluded(start, contact, reach),
        ]
        raw = np.stack([1.0 - b.astype(np.float32) for b in blocked]).reshape(3, *normal.shape[:2])
        return shading.smooth_kernel(raw, start.reshape(normal.shape), normal, 4 if normal.shape[1] < 800 else 8)


def auto_gain(linear: NDArray[np.float32]) -> float:
    """Automatic exposure: pulls the mean of linear light (any shape) most of the way to a fixed brightness."""
    return float((_TARGET_LUMA / max(float(linear.mean()), 1e-4)) ** _EXPOSURE_PULL)


def _depth(hits: Hits, shape: tuple[int, int]) -> NDArray[np.float32]:
    return np.where(hits.triangle >= 0, hits.distance, np.float32(0.0)).reshape(shape)


def _lookup(per_face: NDArray[np.int32], hits: Hits, shape: tuple[int, int]) -> NDArray[np.int32]:
    ids = np.where(hits.triangle >= 0, per_face[hits.triangle], 0)
    return ids.reshape(shape).astype(np.int32)
