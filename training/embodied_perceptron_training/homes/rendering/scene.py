"""Input of the renderers: one triangle soup with ids, materials and lights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron_training.homes.assets.mesh import Mesh, merge_meshes
from embodied_perceptron_training.homes.rendering.materials import SIZE, Material, texture


@dataclass(frozen=True)
class Light:
    """A spherical light, or, with a ``direction``, a window that emits to one side.

    Attributes:
        position_m: centre.
        color: linear RGB intensity at 1 m.
        radius_m: size, for soft shadows.
        direction: (x, y, z) of a window's light, or zeros for all directions.
        region: (x0, y0, x1, y1) floor rectangle of its room.
    """

    position_m: tuple[float, float, float]
    color: tuple[float, float, float]
    radius_m: float
    direction: tuple[float, float, float]
    region: tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class RenderScene:
    """A static scene.

    Attributes:
        mesh: all faces, world frame.
        instance: (F,) int32, object id + 1; 0 = no object.
        lights: at least one.
        ambient: linear RGB of ambient light.
    """

    mesh: Mesh
    instance: NDArray[np.int32]
    lights: tuple[Light, ...]
    ambient: tuple[float, float, float] = (0.30, 0.30, 0.31)

    def __post_init__(self) -> None:
        if len(self.mesh) == 0:
            raise ValueError("a scene needs at least one face")
        if self.instance.shape != (len(self.mesh),):
            raise ValueError(f"scene ids must have shape ({len(self.mesh)},), got {self.instance.shape}")
        if not self.lights:
            raise ValueError("a scene needs at least one light")

    def with_light_level(self, level: float) -> RenderScene:
        """The scene with all lights at ``level`` (0 = little ambient light only, 1 = unchanged)."""
        if not level >= 0.0:
            raise ValueError(f"light level must not be negative, got {level}")

        def scaled(color: tuple[float, float, float], factor: float) -> tuple[float, float, float]:
            return (color[0] * factor, color[1] * factor, color[2] * factor)

        lights = tuple(replace(light, color=scaled(light.color, level)) for light in self.lights)
        return replace(self, lights=lights, ambient=scaled(self.ambient, 0.06 + 0.94 * level))


def assemble_scene(
    parts: list[tuple[Mesh, int]],
    lights: tuple[Light, ...],
    ambient: tuple[float, float, float] = (0.30, 0.30, 0.31),
) -> RenderScene:
    """Build a scene from (world mesh, object id or -1) pairs."""
    counts = [len(mesh) for mesh, _ in parts]
    instance = np.repeat([object_id + 1 for _, object_id in parts], counts).astype(np.int32)
    return RenderScene(merge_meshes([mesh for mesh, _ in parts]), instance, lights, ambient)


@dataclass(frozen=True, eq=False)
class MaterialTable:
    """Materials as arrays for the shading kernel.

    Attributes:
        color: (M, 3) float32 sRGB.
        look: (M, 4) float32: repeats per metre, gloss, emission, texture index (-1 = none).
        is_image: (M,) bool.
        texels: flat uint8 texels of all textures, each with its mip levels one after the other.
        size: side of level 0.
        levels: number of mip levels.
        stride: texel bytes per texture.
    """

    color: NDArray[np.float32]
    look: NDArray[np.float32]
    is_image: NDArray[np.bool_]
    texels: NDArray[np.uint8]
    size: int
    levels: int
    stride: int


def material_table(materials: tuple[Material, ...]) -> MaterialTable:
    """Pack ``materials`` and their textures."""
    slots: dict[tuple[str, int], int] = {}
    look = np.zeros((len(materials), 4), np.float32)
    for i, m in enumerate(materials):
        slot = -1 if m.texture == "plain" else slots.setdefault((m.texture, m.seed), len(slots))
        look[i] = (1.0 if m.is_image else 1.0 / m.scale_m, m.gloss, m.emission, slot)
    pyramids = [_pyramid(texture(*key)) for key in slots]
    levels = int(np.log2(SIZE)) + 1
    stride = sum((SIZE >> k) ** 2 * 3 for k in range(levels))
    texels = np.concatenate(pyramids) if pyramids else np.zeros(stride, np.uint8)
    return MaterialTable(
        np.array([m.color for m in materials], np.float32),
        look,
        np.array([m.is_image for m in materials], bool),
        texels,
        SIZE,
        levels,
        stride,
    )


def _pyramid(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(S, S, 3) -> all mip levels, flat."""
    flat = [image.reshape(-1)]
    level: NDArray[np.floating] = image.astype(np.float32)
    while level.shape[0] > 1:
        level = (level[0::2, 0::2] + level[1::2, 0::2] + level[0::2, 1::2] + level[1::2, 1::2]) / 4
        flat.append(level.round().astype(np.uint8).reshape(-1))
    return np.concatenate(flat)
