# mypy: ignore-errors
"""Kernel of intersection volumes and their gradients on a device, in NVIDIA Warp: the arithmetic of ``overlap.py``."""

import warp as wp

from embodied_perceptron.geometry.kernels import FLAT, PARALLEL

wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)  # no banner on the standard output
wp.init()
wp.set_module_options({"enable_backward": False, "fuse_fp": False, "fast_math": False})

_FLAT, _PARALLEL = wp.constant(wp.float64(FLAT)), wp.constant(wp.float64(PARALLEL))
_ZERO, _ONE = wp.constant(wp.float64(0.0)), wp.constant(wp.float64(1.0))
Vectors, Matrices = wp.array2d(dtype=wp.float64), wp.array3d(dtype=wp.float64)


@wp.func
def line(
    n: wp.int32, piece: wp.int32, half_a: wp.vec3d, at: wp.vec3d, u: wp.vec3d, v: wp.vec3d,
    half_u: wp.float64, half_v: wp.float64,
):  # fmt: skip
    """Line ``n`` of ten that bound a piece: normal and limit. One beside the face equals the first of its edges."""
    sign = wp.where(n % 2 == 0, -_ONE, _ONE)
    if n < 2:
        return wp.vec3d(sign, _ZERO, half_u)
    if n < 4:
        return wp.vec3d(_ZERO, sign, half_v)
    axis = (n - 4) / 2
    a = wp.where(axis == 0, half_a[0], wp.where(axis == 1, half_a[1], half_a[2]))
    p = wp.where(axis == 0, at[0], wp.where(axis == 1, at[1], at[2]))
    along_u = wp.where(axis == 0, u[0], wp.where(axis == 1, u[1], u[2]))
    along_v = wp.where(axis == 0, v[0], wp.where(axis == 1, v[1], v[2]))
    if axis == 0 and piece != 0:
        a = -a
        sign = wp.float64(-piece)
    room = a - sign * p
    length = wp.sqrt(along_u * along_u + along_v * along_v)
    reach = wp.where(length > _FLAT, wp.abs(along_u) * half_u + wp.abs(along_v) * half_v, _ZERO)
    if room < -reach or (a < _ZERO and room == -reach):
        return wp.vec3d(_ONE, _ZERO, -_ONE - half_u)  # leaves nothing
    if room >= reach:
        return wp.vec3d(_ONE, _ZERO, half_u)
    return wp.vec3d(sign * along_u / length, sign * along_v / length, room / length)


@wp.func
def moments(
    piece: wp.int32, half_a: wp.vec3d, at: wp.vec3d, u: wp.vec3d, v: wp.vec3d, half_u: wp.float64, half_v: wp.float64,
    lines: wp.int32,
):  # fmt: skip
    """``overlap._moments`` of a piece of a face; ``lines``: 10, an argument, so that loops are not unrolled."""
    result = wp.vec3d()
    for i in range(lines):
        mine = line(i, piece, half_a, at, u, v, half_u, half_v)
        low, high = -wp.float64(wp.inf), wp.float64(wp.inf)
        for j in range(lines):
            if j != i:
                other = line(j, piece, half_a, at, u, v, half_u, half_v)
                slope = other[1] * mine[0] - other[0] * mine[1]
                along = other[0] * mine[0] + other[1] * mine[1]
                if wp.abs(slope) > _PARALLEL:
                    end = (other[2] - along * mine[2]) / slope
                    if slope > _ZERO:
                        high = wp.min(high, end)
                    else:
                        low = wp.max(low, end)
                elif along > _ZERO:
                    if other[2] < mine[2] or (other[2] == mine[2] and j < i):
                        high = -wp.float64(wp.inf)
                elif other[2] + mine[2] < _ZERO:
                    high = -wp.float64(wp.inf)
        if high > low:
            part, middle = mine[2] * (high - low), wp.float64(0.5) * (low + high)
            result += wp.vec3d(
                part / wp.float64(2.0),
                part * (mine[0] * mine[2] - mine[1] * middle) / wp.float64(3.0),
                part * (mine[1] * mine[2] + mine[0] * middle) / wp.float64(3.0),
            )
    return result


@wp.func
def row(values: Vectors, p: wp.int32):
    return wp.vec3d(values[p, 0], values[p, 1], values[p, 2])


@wp.func
def seen(rot: Matrices, p: wp.int32, world: wp.vec3d):
    """A vector along the axes of a box."""
    x = rot[p, 0, 0] * world[0] + rot[p, 1, 0] * world[1] + rot[p, 2, 0] * world[2]
    y = rot[p, 0, 1] * world[0] + rot[p, 1, 1] * world[1] + rot[p, 2, 1] * world[2]
    z = rot[p, 0, 2] * world[0] + rot[p, 1, 2] * world[1] + rot[p, 2, 2] * world[2]
    return wp.vec3d(x, y, z)


@wp.func
def axis_of(rot: Matrices, p: wp.int32, k: wp.int32):
    return wp.vec3d(rot[p, 0, k], rot[p, 1, k], rot[p, 2, k])


@wp.kernel
def volume_parts(
    center_a: Vectors, half_a: Vectors, rot_a: Matrices, center_b: Vectors, half_b: Vectors, rot_b: Matrices,
    out: wp.array3d(dtype=wp.float64), pieces: wp.int32, lines: wp.int32,
):  # fmt: skip
    """Parts of the faces of ``b`` of each pair in the volume of the intersection, and in its derivatives by the centre,
    the half sizes and the rotation of ``b``, in the world.

    Out: (6, P, 16). ``pieces``, ``lines``: 3 and 10, arguments, so that loops are not unrolled.
    """
    face, p = wp.tid()
    k = face / 2
    i, j, side = (k + 1) % 3, (k + 2) % 3, wp.float64(2 * (face % 2) - 1)
    normal, x = side * axis_of(rot_b, p, k), half_b[p, k]
    u, v = seen(rot_a, p, axis_of(rot_b, p, i)), seen(rot_a, p, axis_of(rot_b, p, j))
    facing = seen(rot_a, p, normal)
    at = seen(rot_a, p, row(center_b, p) - row(center_a, p)) + x * facing
    half, half_u, half_v = row(half_a, p), half_b[p, i], half_b[p, j]
    for n in range(pieces):
        piece = n - 1
        m = moments(piece, half, at, u, v, half_u, half_v, lines)
        if piece != 0:
            out[face, p, 0] += facing[0] * half[0] * wp.float64(piece) * m[0]
        else:
            out[face, p, 0] += facing[0] * (at[0] * m[0] + u[0] * m[1] + v[0] * m[2])
            out[face, p, 4 + k] = m[0]
            for axis in range(3):
                out[face, p, 1 + axis] = normal[axis] * m[0]
                out[face, p, 7 + 3 * axis + k] = side * normal[axis] * x * m[0]
                out[face, p, 7 + 3 * axis + i] = normal[axis] * m[1]
                out[face, p, 7 + 3 * axis + j] = normal[axis] * m[2]
