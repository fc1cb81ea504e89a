"""Closest hits by OpenGL without a display (EGL): fast on a GPU, possible on a CPU.

Depth, ids and light equal those of the ray caster, without cast shadows. Needs the package ``moderngl`` and a driver
with EGL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics, invert_transform
from embodied_perceptron_training.homes.rendering.renderer import F32, Hits, SceneRenderer
from embodied_perceptron_training.homes.rendering.scene import RenderScene

_NEAR_M, _FAR_M = 0.02, 60.0

_VERTEX = """
#version 330
in vec3 position;
uniform mat4 projection; uniform mat4 view;
out vec3 depth_uv;  // metres along the optical axis, barycentric weights of corners 1 and 2
void main() {
    vec4 camera = view * vec4(position, 1.0);
    int corner = gl_VertexID % 3;
    gl_Position = projection * camera;
    depth_uv = vec3(camera.z, corner == 1 ? 1.0 : 0.0, corner == 2 ? 1.0 : 0.0);
}
"""
_FRAGMENT = """
#version 330
in vec3 depth_uv;
out vec4 hit;
void main() { hit = vec4(depth_uv, gl_PrimitiveID + 1); }  // 0 = nothing; exact up to 2^24 faces
"""


class GlUnavailableError(RuntimeError):
    """moderngl or a driver with EGL is missing."""


class GlRenderer(SceneRenderer):
    """Rasterisation with the ray caster's light, without shadows.

    Raises :class:`GlUnavailableError` without OpenGL.
    """

    def __init__(self, scene: RenderScene) -> None:
        try:
            import moderngl
        except ImportError as error:
            raise GlUnavailableError("the OpenGL renderer needs the package moderngl: pip install moderngl") from error
        try:
            create: Any = moderngl.create_context  # its stub types the keyword arguments wrongly
            self._context = create(standalone=True, backend="egl", require=330)
        except Exception as error:  # moderngl raises bare Exception for a missing driver
            raise GlUnavailableError(f"no OpenGL 3.3 through EGL: {error}") from error
        super().__init__(scene)
        self._depth_test = moderngl.DEPTH_TEST
        self._program: Any = self._context.program(vertex_shader=_VERTEX, fragment_shader=_FRAGMENT)
        corners = self._context.buffer(scene.mesh.triangles.astype(np.float32).tobytes())
        self._vertices = self._context.vertex_array(self._program, [(corners, "3f", "position")])
        self._targets: dict[tuple[int, int], Any] = {}

    def _closest(self, intrinsics: Intrinsics, T_world_camera: NDArray[np.floating], rays: tuple[F32, F32]) -> Hits:
        self._write("projection", _projection(intrinsics))
        self._write("view", invert_transform(np.asarray(T_world_camera)))
        target = self._target(intrinsics.width, intrinsics.height)
        target.use()
        self._context.enable(self._depth_test)
        target.clear(0.0, 0.0, 0.0, 0.0)
        self._vertices.render()
        data = np.frombuffer(target.read(components=4, dtype="f4"), np.float32).reshape(-1, 4)
        distance, u, v = np.ascontiguousarray(data[:, :3].T)
        return Hits(data[:, 3].astype(np.int32) - 1, distance, u, v)

    def _visibility(self, start: F32, to_light: F32, contact: F32, normal: F32) -> F32:
        return np.ones((3, *normal.shape[:2]), np.float32)

    def _write(self, name: str, matrix: NDArray[np.float64]) -> None:
        self._program[name].write(np.ascontiguousarray(matrix.T, np.float32).tobytes())

    def _target(self, width: int, height: int) -> Any:
        if (width, height) not in self._targets:
            image = self._context.texture((width, height), 4, dtype="f4")
            depth = self._context.depth_renderbuffer((width, height))
            self._targets[(width, height)] = self._context.framebuffer([image], depth)
        return self._targets[(width, height)]

    def close(self) -> None:
        """Release the graphics memory."""
        self._context.release()


def _projection(k: Intrinsics) -> NDArray[np.float64]:
    """(4, 4) clip transform: image rows run downwards, integer pixels are centres."""
    a, b = (_FAR_M + _NEAR_M) / (_FAR_M - _NEAR_M), -2 * _FAR_M * _NEAR_M / (_FAR_M - _NEAR_M)
    return np.array(
        [
            [2 * k.fx / k.width, 0, 2 * (k.cx + 0.5) / k.width - 1, 0],
            [0, 2 * k.fy / k.height, 2 * (k.cy + 0.5) / k.height - 1, 0],
            [0, 0, a, b],
            [0, 0, 1, 0],
        ]
    )
