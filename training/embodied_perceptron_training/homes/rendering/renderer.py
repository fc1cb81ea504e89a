"""Views of one static scene. Renderers differ in finding visible surfaces; this module computes all light."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics, check_transform
from embodied_perceptron_training.homes.assets.mesh import face_normals
from embodied_perceptron_training.homes.rendering import shading
from embodied_perceptron_training.homes.rendering.scene import RenderScene, material_table

F32 = NDArray[np.float32]

_TARGET_LUMA = 0.20  # linear target of automatic exposure
_EXPOSURE_PULL = 0.7
_SKY = np.array([0.7, 0.8, 1.0], np.float32)  # linear RGB without a hit


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


class SceneRenderer(ABC):
    """Renderer of one static scene; create a new one (some milliseconds) for a changed scene."""

    def __init__(self, scene: RenderScene) -> None:
        self.scene = scene
        mesh = scene.mesh
        cross = face_normals(mesh.triangles)
        self._face_normals = (cross / np.linalg.norm(cross, axis=1, keepdims=True)).astype(np.float32)
        self._normals = mesh.normals.astype(np.float32)
        self._uv = mesh.uv.astype(np.float32)
        self._table = material_table(mesh.materials)
        self._light_position = np.array([light.position_m for light in scene.lights], np.float32)
        self._light_color = np.array([light.color for light in scene.lights], np.float32)
        self._light_shape = np.array([(light.radius_m, *light.direction) for light in scene.lights], np.float32)
        self._light_region = np.array([light.region for light in scene.lights], np.float32)

    @abstractmethod
    def _closest(self, intrinsics: Intrinsics, T_world_camera: NDArray[np.floating], rays: tuple[F32, F32]) -> Hits:
        """Closest hit of every pixel, row by row; ``rays``: of :func:`pixel_rays`."""

    @abstractmethod
    def _visibility(self, start: F32, to_light: F32, contact: F32, normal: F32) -> F32:
        """(3, H, W) shares: visibility of the two strongest lights, and openness to the surroundings.

        ``start`` (N, 3), ``to_light`` (2, N, 3) and ``contact`` (N, 3) are those of
        :func:`shading.surface_kernel`, ``normal`` is (H, W, 3).
        """

    def ids(self, intrinsics: Intrinsics, T_world_camera: NDArray[np.floating]) -> tuple[F32, NDArray[np.int32]]:
        """Depth (H, W) and instance image (H, W) only, about three times cheaper than :meth:`render`."""
        hits = self._closest(intrinsics, T_world_camera, pixel_rays(intrinsics, T_world_camera))
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
        hits = self._closest(intrinsics, T, (origins, directions))
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

    def _depth_and_ids(self, hits: Hits, intrinsics: Intrinsics) -> tuple[F32, NDArray[np.int32]]:
        shape = (intrinsics.height, intrinsics.width)
        depth = np.where(hits.triangle >= 0, hits.distance, np.float32(0.0))
        ids = np.where(hits.triangle >= 0, self.scene.instance[hits.triangle], 0)
        return depth.reshape(shape), ids.reshape(shape).astype(np.int32)
