"""The same scenes by OpenGL without a display (EGL): quick on a GPU, possible on a CPU.

Geometry, depth and ids agree with the ray caster; colours follow the same formulas without cast shadows. Needs the
package ``moderngl`` and a driver with EGL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics, check_transform, invert_transform
from embodied_perceptron_training.homes.mesh import face_normals
from embodied_perceptron_training.homes.rendering import shading
from embodied_perceptron_training.homes.rendering.materials import SIZE, texture
from embodied_perceptron_training.homes.rendering.ray_renderer import RenderedView, auto_gain
from embodied_perceptron_training.homes.rendering.scene import RenderScene

_NEAR_M, _FAR_M = 0.02, 60.0
_MAX_LIGHTS = 32

_VERTEX = """
#version 330
in vec3 position; in vec3 normal; in vec2 uv; in vec3 face; in vec4 look; in vec3 color; in float image; in vec2 ids;
uniform mat4 projection; uniform mat4 view;
out vec3 v_world; out vec3 v_normal; out vec2 v_uv; out float v_depth;
flat out vec3 f_face; flat out vec4 f_look; flat out vec3 f_color; flat out float f_image; flat out vec2 f_ids;
void main() {
    vec4 camera = view * vec4(position, 1.0);
    gl_Position = projection * camera;
    v_world = position; v_normal = normal; v_uv = uv; v_depth = camera.z;
    f_face = face; f_look = look; f_color = color; f_image = image; f_ids = ids;
}
"""

# look = repeats per metre, gloss, emission, texture layer; formulas as in shading.py, without shadows
_FRAGMENT = """
#version 330
in vec3 v_world; in vec3 v_normal; in vec2 v_uv; in float v_depth;
flat in vec3 f_face; flat in vec4 f_look; flat in vec3 f_color; flat in float f_image; flat in vec2 f_ids;
uniform vec3 eye; uniform vec3 ambient; uniform int light_count;
uniform vec3 light_position[MAX_LIGHTS]; uniform vec3 light_color[MAX_LIGHTS]; uniform vec3 light_direction[MAX_LIGHTS];
uniform vec4 light_region[MAX_LIGHTS];
uniform sampler2DArray layers;
layout(location = 0) out vec4 out_color;
layout(location = 1) out vec4 out_data;
void main() {
    vec3 d = normalize(v_world - eye);
    vec3 g = dot(f_face, d) > 0.0 ? -f_face : f_face;
    vec3 n = normalize(v_normal);
    if (dot(n, g) < 0.0) n = -n;
    vec3 mirrored = reflect(d, n);
    float best0 = 0.0, best1 = 0.0, s0 = 0.0, s1 = 0.0;
    vec3 light0 = vec3(0.0), light1 = vec3(0.0);
    for (int k = 0; k < light_count; k++) {
        vec3 l = light_position[k] - v_world;
        float d2 = dot(l, l), dist = sqrt(d2) + 1e-9, c = dot(n, l) / dist;
        if (c <= 0.0) continue;
        float strength = c / (d2 + 0.3);
        if (dot(light_direction[k], light_direction[k]) > 0.0)
            strength *= max(0.0, -dot(light_direction[k], l) / dist);
        vec4 r = light_region[k];
        bool inside = v_world.x >= r.x && v_world.x <= r.z && v_world.y >= r.y && v_world.y <= r.w;
        float rank = strength * dot(light_color[k], vec3(1.0)) * (inside ? 1.0 : 0.1);
        vec3 e = light_color[k] * strength;
        float s = pow(max(0.0, dot(mirrored, l) / dist), 16.0);
        if (rank > best0) { best1 = best0; light1 = light0; s1 = s0; best0 = rank; light0 = e; s0 = s; }
        else if (rank > best1) { best1 = rank; light1 = e; s1 = s; }
    }
    vec3 albedo = f_color;
    if (f_look.w >= 0.0) {
        vec2 at = v_uv * f_look.x;
        if (f_image > 0.5) at = clamp(at, vec2(0.004), vec2(0.996));
        albedo *= texture(layers, vec3(at.x, 1.0 - at.y, f_look.w)).rgb * (f_image > 0.5 ? 1.0 : 255.0 / 200.0);
    }
    albedo = min(albedo * albedo, vec3(1.0));
    vec3 received = ambient * (0.9 + 0.1 * n.z) + light0 + light1 + vec3(f_look.z);
    float spec = s0 * (light0.r + light0.g) * 0.5 + s1 * (light1.r + light1.g) * 0.5;
    out_color = vec4(albedo * received + f_look.y * 0.35 * spec, abs(dot(f_face, d)));
    out_data = vec4(v_depth, f_ids, 1.0);
}
""".replace("MAX_LIGHTS", str(_MAX_LIGHTS))


class GlUnavailableError(RuntimeError):
    """No moderngl, or no driver that can render without a display."""


class GlRenderer:
    """Renders one static scene; the interface of :class:`render.RayCastRenderer`.

    Raises :class:`GlUnavailableError` where OpenGL cannot be had.
    """

    name = "opengl"

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
        self.scene = scene
        self._depth_test = moderngl.DEPTH_TEST
        self._program: Any = self._context.program(vertex_shader=_VERTEX, fragment_shader=_FRAGMENT)
        self._vertices = self._upload()
        self._targets: dict[tuple[int, int], Any] = {}

    def _upload(self) -> Any:
        mesh = self.scene.mesh
        slots: dict[tuple[str, int], int] = {}
        look = np.zeros((len(mesh.materials), 4), np.float32)
        for i, m in enumerate(mesh.materials):
            layer = -1 if m.texture == "plain" else slots.setdefault((m.texture, m.seed), len(slots))
            look[i] = (1.0 if m.is_image else 1.0 / m.scale_m, m.gloss, m.emission, layer)
        images = [texture(*key) for key in slots] or [np.zeros((SIZE, SIZE, 3), np.uint8)]
        size = (SIZE, SIZE, len(images))
        layers = self._context.texture_array(size, 3, np.stack(images).tobytes())
        layers.build_mipmaps()
        layers.use(0)
        color = np.array([m.color for m in mesh.materials], np.float32)
        is_image = np.array([float(m.is_image) for m in mesh.materials], np.float32)
        normal = face_normals(mesh.triangles)
        normal /= np.linalg.norm(normal, axis=1, keepdims=True)
        ids = np.stack([self.scene.instance, self.scene.semantic], 1).astype(np.float32)

        def per_corner(values: NDArray[Any]) -> NDArray[np.float32]:
            return np.repeat(values.astype(np.float32), 3, axis=0)

        of_face = mesh.material
        buffer = np.concatenate(
            [
                mesh.triangles.reshape(-1, 3), mesh.normals.reshape(-1, 3), mesh.uv.reshape(-1, 2), per_corner(normal),
                per_corner(look[of_face]), per_corner(color[of_face]), per_corner(is_image[of_face])[:, None],
                per_corner(ids),
            ],
            axis=1,
        ).astype(np.float32)  # fmt: skip
        names = ("position", "normal", "uv", "face", "look", "color", "image", "ids")
        layout = "3f 3f 2f 3f 4f 3f 1f 2f"
        return self._context.vertex_array(self._program, [(self._context.buffer(buffer.tobytes()), layout, *names)])

    def render(
        self,
        intrinsics: Intrinsics,
        T_world_camera: NDArray[np.floating],
        exposure: float = 1.0,
        seed: int = 0,
        gain: float | None = None,
    ) -> RenderedView:
        """One view, as :meth:`render.RayCastRenderer.render`; ``seed`` changes nothing here."""
        T = check_transform(np.asarray(T_world_camera), "T_world_camera")
        self._set_uniforms(intrinsics, T)
        target = self._target(intrinsics.width, intrinsics.height)
        target.use()
        self._context.enable(self._depth_test)
        target.clear(0.7, 0.8, 1.0, 0.0)
        self._vertices.render()
        shape = (intrinsics.height, intrinsics.width)
        color = np.frombuffer(target.read(components=4, attachment=0, dtype="f4"), np.float32).reshape(*shape, 4)
        data = np.frombuffer(target.read(components=4, attachment=1, dtype="f4"), np.float32).reshape(*shape, 4)
        hit = data[..., 3] == 1.0
        linear = np.ascontiguousarray(np.where(hit[..., None], color[..., :3], (0.7, 0.8, 1.0)), np.float32)
        factor = exposure * (auto_gain(linear) if gain is None else gain)
        return RenderedView(
            shading.tone_kernel(linear.reshape(-1, 3), factor).reshape(*shape, 3),
            np.where(hit, data[..., 0], np.float32(0.0)).astype(np.float32),
            np.where(hit, np.rint(data[..., 1]), 0).astype(np.int32),
            np.where(hit, np.rint(data[..., 2]), 0).astype(np.int32),
            np.where(hit, color[..., 3], np.float32(0.0)).astype(np.float32),
            intrinsics,
            T,
        )

    def _set_uniforms(self, k: Intrinsics, T: NDArray[np.float64]) -> None:
        """Rows of the picture run downwards like those of the camera; integer pixels are centres."""
        a, b = (_FAR_M + _NEAR_M) / (_FAR_M - _NEAR_M), -2 * _FAR_M * _NEAR_M / (_FAR_M - _NEAR_M)
        projection = np.array(
            [
                [2 * k.fx / k.width, 0, 2 * (k.cx + 0.5) / k.width - 1, 0],
                [0, 2 * k.fy / k.height, 2 * (k.cy + 0.5) / k.height - 1, 0],
                [0, 0, a, b],
                [0, 0, 1, 0],
            ]
        )
        lights = self.scene.lights[:_MAX_LIGHTS]
        self._write("projection", projection.T)
        self._write("view", invert_transform(T).T)
        self._write("eye", T[:3, 3])
        self._write("ambient", np.asarray(self.scene.ambient))
        self._program["light_count"].value = len(lights)
        for name, values in (
            ("light_position", [light.position_m for light in lights]),
            ("light_color", [light.color for light in lights]),
            ("light_direction", [light.direction for light in lights]),
            ("light_region", [light.region for light in lights]),
        ):
            rows = np.zeros((_MAX_LIGHTS, len(values[0])))
            rows[: len(values)] = values
            self._write(name, rows)

    def _write(self, name: str, values: NDArray[Any]) -> None:
        self._program[name].write(np.ascontiguousarray(values, np.float32).tobytes())

    def _target(self, width: int, height: int) -> Any:
        if (width, height) not in self._targets:
            images = [self._context.texture((width, height), 4, dtype="f4") for _ in range(2)]
            self._targets[(width, height)] = self._context.framebuffer(
                images, self._context.depth_renderbuffer((width, height))
            )
        return self._targets[(width, height)]

    def close(self) -> None:
        """Give the graphics memory back."""
        self._context.release()
