"""Compiled for the CPU: what a view shows of many points, in one pass and without holding the interpreter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class Eye(NamedTuple):
    """How one view looks at points.

    Attributes:
        P: the 12 numbers of the (3, 4) projection to pixels of the (image_h, image_w) input, row by row.
        image_h, image_w, h, w: sizes of the input and of the feature map.
        depth: (H, W) float32 metres, 0 = unknown; a point further behind it than ``margin`` is hidden.
        margin: metres; negative = no such test.
        min_depth: what is nearer to the camera is not seen.
    """

    P: tuple[float, ...]
    image_h: int
    image_w: int
    h: int
    w: int
    depth: NDArray[np.float32]
    margin: float
    min_depth: float


@njit(cache=True, nogil=True)
def look_up(
    points: NDArray[np.float64],
    eye: Eye,
    rows: NDArray[np.int64],
    cells: NDArray[np.int64],
) -> int:
    """Which of (N, 3) points a view sees, and which cell of its flattened feature map each of them reads.

    The arithmetic is that of the tensors in ``view_fusion``, operation by operation: both give the same bits.

    Args:
        points: world metres.
        rows, cells: (N,) out, filled up to the returned count.
    """
    P, depth = eye.P, eye.depth
    count = 0
    for i in range(len(points)):
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        behind = x * P[8] + y * P[9] + z * P[10] + P[11]
        if not behind > eye.min_depth:
            continue
        u = x * P[0] + y * P[1] + z * P[2] + P[3]
        v = x * P[4] + y * P[5] + z * P[6] + P[7]
        if u < -behind or u > eye.image_w * behind or v < -behind or v > eye.image_h * behind:
            continue  # half a pixel beyond what counts: most points need no division
        u /= behind
        v /= behind
        if not (u >= -0.5 and u < eye.image_w - 0.5 and v >= -0.5 and v < eye.image_h - 0.5):
            continue
        if eye.margin >= 0:
            measured = np.float64(depth[_at(v, eye.image_h, depth.shape[0]), _at(u, eye.image_w, depth.shape[1])])
            if measured > 0 and behind > measured + eye.margin:
                continue
        rows[count] = i
        cells[count] = _at(v, eye.image_h, eye.h) * eye.w + _at(u, eye.image_w, eye.w)
        count += 1
    return count


@njit(cache=True, nogil=True)
def add_halves(
    points: NDArray[np.float64],
    subset: NDArray[np.int64],
    eye: Eye,
    features: NDArray[np.uint16],
    total: NDArray[np.float32],
    count: NDArray[np.int32],
) -> None:
    """:func:`look_up`, and the features of the cells added to the sums at once.

    Args:
        subset: (N,) rows of the sums that the points stand for; empty = as they come.
        features: (h * w, C) the bits of 16-bit floats.
        total, count: (M, C) and (M,) sums and number of views, changed in place.
    """
    rows, cells = np.empty(len(points), np.int64), np.empty(len(points), np.int64)
    for k in range(look_up(points, eye, rows, cells)):
        row = subset[rows[k]] if len(subset) else rows[k]
        count[row] += 1
        for c in range(total.shape[1]):
            total[row, c] += _as_float(features[cells[k], c])


@njit(cache=True, nogil=True)
def _as_float(half: np.uint16) -> np.float32:
    """The 32-bit float of a 16-bit float's bits, exactly: its exponent is shifted, and its bias made up for."""
    bits = ((half & np.uint32(0x7FFF)) << np.uint32(13)) | ((half & np.uint32(0x8000)) << np.uint32(16))
    if half & np.uint32(0x7C00) == np.uint32(0x7C00):  # infinite, or no number
        bits |= np.uint32(0x7F800000)
    value: np.float32 = np.uint32(bits).view(np.float32) * np.float32(2.0**112)
    return value


@njit(cache=True, nogil=True)
def _at(pixel: float, size: int, cells: int) -> int:
    """Index of the cell that a pixel coordinate falls into, of ``cells`` cells that cover ``size`` pixels."""
    return min(max(int(np.floor((pixel + 0.5) * (cells / size))), 0), cells - 1)
