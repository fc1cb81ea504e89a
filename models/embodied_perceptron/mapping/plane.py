# mypy: ignore-errors
# ruff: noqa: F821 (names that each compiler is given)
"""The plane test of clearing, in one source for both maps: numba compiles it for the CPU, Warp for devices."""

from collections.abc import Callable
from types import FunctionType
from typing import Any


def compiled_with(function: Any, module: str, types: tuple[Any, ...] = (), **names: Any) -> Callable[..., Any]:
    """Copy of a function for a compiler: ``module`` owns it, ``names`` are what it calls, ``types`` its arguments'."""
    copy = FunctionType(function.__code__, {"__name__": module, **names}, function.__name__)
    copy.__annotations__ = dict(zip(function.__code__.co_varnames, types, strict=False))
    copy.__doc__ = function.__doc__
    return copy


def before_plane(image, v, u, r, row, column, z, limit, k, T, margins):
    """Whether the pixels of a window lie on one plane, and a voxel lies clear in front of it.

    Planes are fitted in inverse depth, which is linear over the image: ``w = w0 + gu (u' - u) + gv (v' - v)``.
    ``real``, ``whole`` and ``root`` are the compiler's double, integer and square root.

    Args:
        image: (H, W) float32 depth, 0 = unknown.
        v, u: pixel of the voxel's centre, the middle of the window; known. r: half the size of the window.
        row, column, z: exact projection of the centre, and its depth; limit: the depth that the plane must exceed.
        k: fx, fy, cx, cy; T: (4, 4) camera from world; margins: of ``host_map.clear_blocks``.
    """
    one, zero = real(1.0), real(0.0)
    middle = one / real(image[v, u])
    total = real(middle)
    pairs = whole(0)
    uu, uv, vv = real(0.0), real(0.0), real(0.0)
    wu, wv = real(0.0), real(0.0)
    for dv in range(r + 1):
        for du in range(-r, r + 1):
            here, there = real(image[v + dv, u + du]), real(image[v - dv, u - du])
            if not (dv == 0 and du <= 0) and here != zero and there != zero:
                a, b = one / here, one / there
                half = real(0.5) * (a - b)
                total += a + b
                pairs += 1
                uu += real(du * du)
                uv += real(du * dv)
                vv += real(dv * dv)
                wu += real(du) * half
                wv += real(dv) * half
    determinant = uu * vv - uv * uv
    if determinant <= zero:
        return False
    gu = (wu * vv - wv * uv) / determinant
    gv = (wv * uu - wu * uv) / determinant
    w0 = total / real(1 + 2 * pairs)
    tolerance = margins[0] * (middle * middle) + margins[1]
    for dv in range(-r, r + 1):
        for du in range(-r, r + 1):
            depth = real(image[v + dv, u + du])
            if depth != zero:
                off = abs(one / depth - ((w0 + gu * real(du)) + gv * real(dv)))
                if not off <= tolerance:
                    return False
    w = (w0 + gu * (column - real(u))) + gv * (row - real(v))
    if not (w > zero and w * limit < one):
        return False
    nx, ny = gu * k[0], gv * k[1]  # the plane is nx x + ny y + nz z = 1 in the camera
    nz = (w0 + gu * (k[2] - real(u))) + gv * (k[3] - real(v))
    extent = real(0.0)
    for c in range(3):
        extent += abs((T[0, c] * nx + T[1, c] * ny) + T[2, c] * nz)
    norm = root((nx * nx + ny * ny) + nz * nz)
    return one - z * w > margins[2] * extent + margins[0] * norm
