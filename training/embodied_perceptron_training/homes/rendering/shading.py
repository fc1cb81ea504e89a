"""Per-pixel shading kernels for ray hits: textures, lights, soft shadows, contact shadows.

The two strongest lights of each pixel illuminate it and cast shadows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit


@njit(cache=True, inline="always")
def _hash01(a: int, b: int) -> float:
    """Hash of two integers in [0, 1), the same on every machine."""
    x = np.uint32(a * 747796405 + b * 2891336453 + 277803737)
    x = np.uint32(((x >> np.uint32(16)) ^ x) * np.uint32(0x45D9F3B))
    x = np.uint32(((x >> np.uint32(16)) ^ x) * np.uint32(0x45D9F3B))
    x = (x >> np.uint32(16)) ^ x
    return float(np.uint32(x)) / 4294967296.0


@njit(cache=True)
def surface_kernel(
    triangle: NDArray[np.int32],
    u: NDArray[np.float32],
    v: NDArray[np.float32],
    distance: NDArray[np.float32],
    origins: NDArray[np.float32],
    directions: NDArray[np.float32],
    face_normals: NDArray[np.float32],
    normals: NDArray[np.float32],
    light_position: NDArray[np.float32],
    light_color: NDArray[np.float32],
    light_shape: NDArray[np.float32],
    light_region: NDArray[np.float32],
    width: int,
    seed: int,
) -> tuple[
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.float32],
]:
    """Positions, normals and shadow rays of surfaces.

    Returns (N, 3) ray origins just off the surface, (N, 3) shading normals, (2, N, 3) vectors to jittered points on
    the two strongest lights, (2, N, 3) their unblocked light, (N, 3) contact-shadow directions,
    (2, N) highlights' cosine to the mirror direction, (N,) incidence cosine of the view ray.
    """
    n = triangle.shape[0]
    origin = np.zeros((n, 3), np.float32)
    normal = np.zeros((n, 3), np.float32)
    to_light = np.zeros((2, n, 3), np.float32)
    irradiance = np.zeros((2, n, 3), np.float32)
    contact = np.zeros((n, 3), np.float32)
    mirror = np.zeros((2, n), np.float32)
    incidence = np.zeros(n, np.float32)
    for i in range(n):
        f = triangle[i]
        if f < 0:
            origin[i] = origins[i]
            to_light[:, i, 2] = 1e-3
            contact[i, 2] = 1e-3
            continue
        t = distance[i]
        px = origins[i, 0] + t * directions[i, 0]
        py = origins[i, 1] + t * directions[i, 1]
        pz = origins[i, 2] + t * directions[i, 2]
        w = 1.0 - u[i] - v[i]
        nx = w * normals[f, 0, 0] + u[i] * normals[f, 1, 0] + v[i] * normals[f, 2, 0]
        ny = w * normals[f, 0, 1] + u[i] * normals[f, 1, 1] + v[i] * normals[f, 2, 1]
        nz = w * normals[f, 0, 2] + u[i] * normals[f, 1, 2] + v[i] * normals[f, 2, 2]
        norm = np.sqrt(nx * nx + ny * ny + nz * nz) + 1e-12
        nx, ny, nz = nx / norm, ny / norm, nz / norm
        gx, gy, gz = face_normals[f, 0], face_normals[f, 1], face_normals[f, 2]
        dx, dy, dz = directions[i, 0], directions[i, 1], directions[i, 2]
        length = np.sqrt(dx * dx + dy * dy + dz * dz)
        dx, dy, dz = dx / length, dy / length, dz / length
        if gx * dx + gy * dy + gz * dz > 0:  # seen from behind
            gx, gy, gz = -gx, -gy, -gz
        if nx * gx + ny * gy + nz * gz < 0:
            nx, ny, nz = -nx, -ny, -nz
        incidence[i] = abs(gx * dx + gy * dy + gz * dz)
        normal[i, 0], normal[i, 1], normal[i, 2] = nx, ny, nz
        off = 1e-3 + 2e-4 * t
        ox, oy, oz = px + gx * off, py + gy * off, pz + gz * off
        origin[i, 0], origin[i, 1], origin[i, 2] = ox, oy, oz
        # 4 x 4 neighbours use different strata, so that their average has little noise
        sx4, sy4 = (i % width) % 4, (i // width) % 4
        # a cosine-distributed direction for the contact shadow: normal + point on the unit sphere
        a = (sx4 + _hash01(i, seed)) * (np.pi / 2)
        z = (sy4 + _hash01(i, seed + 1)) * 0.5 - 1
        r = np.sqrt(max(0.0, 1 - z * z))
        contact[i, 0] = gx * 1.02 + r * np.cos(a)
        contact[i, 1] = gy * 1.02 + r * np.sin(a)
        contact[i, 2] = gz * 1.02 + z
        rx, ry, rz = (
            dx - 2 * (dx * nx + dy * ny + dz * nz) * nx,
            dy - 2 * (dx * nx + dy * ny + dz * nz) * ny,
            dz - 2 * (dx * nx + dy * ny + dz * nz) * nz,
        )
        best0, best1 = 0.0, 0.0
        strength0, strength1 = 0.0, 0.0
        index0, index1 = -1, -1
        for k in range(light_position.shape[0]):
            lx, ly, lz = light_position[k, 0] - ox, light_position[k, 1] - oy, light_position[k, 2] - oz
            d2 = lx * lx + ly * ly + lz * lz
            d = np.sqrt(d2) + 1e-9
            cosine = (nx * lx + ny * ly + nz * lz) / d
            if cosine <= 0:
                continue
            strength = cosine / (d2 + 0.3)
            sx, sy, sz = light_shape[k, 1], light_shape[k, 2], light_shape[k, 3]
            if sx != 0 or sy != 0 or sz != 0:
                strength *= max(0.0, -(sx * lx + sy * ly + sz * lz) / d)
            inside = light_region[k, 0] <= px <= light_region[k, 2] and light_region[k, 1] <= py <= light_region[k, 3]
            rank = strength * (light_color[k, 0] + light_color[k, 1] + light_color[k, 2]) * (1.0 if inside else 0.1)
            if rank > best0:
                best1, index1, strength1 = best0, index0, strength0
                best0, index0, strength0 = rank, k, strength
            elif rank > best1:
                best1, index1, strength1 = rank, k, strength
        for slot in range(2):
            k = index0 if slot == 0 else index1
            if k < 0:
                continue
            jitter = light_shape[k, 0]
            ja = (sy4 + _hash01(i, seed + 11 + slot)) * (np.pi / 2)
            jr = jitter * np.sqrt((sx4 + _hash01(i, seed + 37 + slot)) / 4)
            lx = light_position[k, 0] + jr * np.cos(ja) - ox
            ly = light_position[k, 1] + jr * np.sin(ja) - oy
            lz = light_position[k, 2] + jitter * (2 * _hash01(i, seed + 71 + slot) - 1) * 0.5 - oz
            d = np.sqrt(lx * lx + ly * ly + lz * lz) + 1e-9
            to_light[slot, i, 0], to_light[slot, i, 1], to_light[slot, i, 2] = lx, ly, lz
            mirror[slot, i] = max(0.0, (rx * lx + ry * ly + rz * lz) / d)
            for c in range(3):
                irradiance[slot, i, c] = light_color[k, c] * (strength0 if slot == 0 else strength1)
        for slot in range(2):
            if to_light[slot, i, 0] == 0 and to_light[slot, i, 1] == 0 and to_light[slot, i, 2] == 0:
                to_light[slot, i, 2] = 1e-3
    return origin, normal, to_light, irradiance, contact, mirror, incidence


@njit(cache=True)
def smooth_kernel(
    values: NDArray[np.float32], position: NDArray[np.float32], normal: NDArray[np.float32], radius: int
) -> NDArray[np.float32]:
    """(C, H, W) noisy visibilities -> averages over neighbours on the same surface.

    ``position`` and ``normal`` are (H, W, 3); a neighbour counts when it lies in the pixel's tangent plane. ``radius``
    is a multiple of 2. Separable passes are cheap and keep geometric edges.
    """
    channels, height, width = values.shape
    current = values.copy()
    for axis in range(2):
        result = np.empty_like(current)
        for y in range(height):
            for x in range(width):
                total = 0.0
                for c in range(channels):
                    result[c, y, x] = 0.0
                for o in range(-radius, radius):  # a multiple of the 4 x 4 strata
                    yy, xx = (y, x + o) if axis == 0 else (y + o, x)
                    if yy < 0 or yy >= height or xx < 0 or xx >= width:
                        continue
                    agree = (
                        normal[y, x, 0] * normal[yy, xx, 0]
                        + normal[y, x, 1] * normal[yy, xx, 1]
                        + normal[y, x, 2] * normal[yy, xx, 2]
                    )
                    if agree < 0.8:
                        continue
                    off = 0.0
                    for c in range(3):
                        off += normal[y, x, c] * (position[yy, xx, c] - position[y, x, c])
                    if abs(off) > 0.03:
                        continue
                    total += 1.0
                    for c in range(channels):
                        result[c, y, x] += current[c, yy, xx]
                for c in range(channels):
                    result[c, y, x] /= max(total, 1.0)
        current = result
    smooth: NDArray[np.float32] = current
    return smooth


@njit(cache=True, inline="always")
def _texel(texels: NDArray[np.uint8], base: int, size: int, x: int, y: int, clamp: bool, c: int) -> float:
    if clamp:
        x = min(max(x, 0), size - 1)
        y = min(max(y, 0), size - 1)
    else:
        x &= size - 1
        y &= size - 1
    return float(texels[base + (y * size + x) * 3 + c])


@njit(cache=True)
def color_kernel(
    triangle: NDArray[np.int32],
    u: NDArray[np.float32],
    v: NDArray[np.float32],
    distance: NDArray[np.float32],
    pixel_angle: float,
    uv: NDArray[np.float32],
    material: NDArray[np.int32],
    color: NDArray[np.float32],
    look: NDArray[np.float32],
    is_image: NDArray[np.bool_],
    texels: NDArray[np.uint8],
    size: int,
    levels: int,
    stride: int,
    normal: NDArray[np.float32],
    incidence: NDArray[np.float32],
    irradiance: NDArray[np.float32],
    mirror: NDArray[np.float32],
    visibility: NDArray[np.float32],
    ambient: NDArray[np.float32],
    sky: NDArray[np.float32],
) -> NDArray[np.float32]:
    """(N, 3) linear radiance. ``visibility`` is (3, N): two lights, then openness to the surroundings."""
    n = triangle.shape[0]
    out = np.empty((n, 3), np.float32)
    for i in range(n):
        f = triangle[i]
        if f < 0:
            for c in range(3):
                out[i, c] = sky[c]
            continue
        m = material[f]
        slot = int(look[m, 3])
        w = 1.0 - u[i] - v[i]
        repeats = look[m, 0]
        tu = (w * uv[f, 0, 0] + u[i] * uv[f, 1, 0] + v[i] * uv[f, 2, 0]) * repeats
        tv = (w * uv[f, 0, 1] + u[i] * uv[f, 1, 1] + v[i] * uv[f, 2, 1]) * repeats
        base, side, x0, y0, fx, fy = 0, size, 0, 0, 0.0, 0.0
        if slot >= 0:
            # texels per pixel; assumes image textures of 0.4 m, which is enough for a mip level
            per_metre = 2.5 if is_image[m] else repeats
            footprint = distance[i] * pixel_angle * per_metre * size / max(0.3, incidence[i])
            level = 0
            base = slot * stride
            while footprint > 1.4 and level < levels - 1:
                base += side * side * 3
                side >>= 1
                footprint *= 0.5
                level += 1
            sx, sy = tu * side - 0.5, (1.0 - tv) * side - 0.5
            x0, y0 = int(np.floor(sx)), int(np.floor(sy))
            fx, fy = sx - x0, sy - y0
        up = 0.9 + 0.1 * normal[i, 2]
        spec = 0.0
        for k in range(2):
            s = mirror[k, i] * mirror[k, i]
            s = s * s
            s = s * s
            spec += s * s * visibility[k, i] * (irradiance[k, i, 0] + irradiance[k, i, 1]) * 0.5
        for c in range(3):
            albedo = color[m, c]
            if slot >= 0:
                clamp = is_image[m]
                a = _texel(texels, base, side, x0, y0, clamp, c) * (1 - fx)
                a += _texel(texels, base, side, x0 + 1, y0, clamp, c) * fx
                b = _texel(texels, base, side, x0, y0 + 1, clamp, c) * (1 - fx)
                b += _texel(texels, base, side, x0 + 1, y0 + 1, clamp, c) * fx
                albedo *= (a * (1 - fy) + b * fy) / (255.0 if clamp else 200.0)
            albedo = min(1.0, albedo * albedo)  # approximate sRGB to linear
            light = ambient[c] * up * visibility[2, i]
            light += irradiance[0, i, c] * visibility[0, i] + irradiance[1, i, c] * visibility[1, i]
            out[i, c] = albedo * (light + look[m, 2]) + look[m, 1] * 0.35 * spec
    return out


@njit(cache=True)
def tone_kernel(linear: NDArray[np.float32], gain: float) -> NDArray[np.uint8]:
    """(N, 3) linear radiance -> (N, 3) sRGB bytes, with a soft shoulder."""
    n = linear.shape[0]
    out = np.empty((n, 3), np.uint8)
    for i in range(n):
        for c in range(3):
            x = linear[i, c] * gain
            x = x * (1 + x / 6.0) / (1 + x * 0.55)
            out[i, c] = np.uint8(min(255.0, 255.0 * np.sqrt(max(0.0, x)) + 0.5))
    return out
