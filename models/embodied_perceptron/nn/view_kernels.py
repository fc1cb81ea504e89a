"""Compiled for the CPU: what a view shows of many points, in one pass and without holding the interpreter."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def look_up(
    points: NDArray[np.float64],
    P: NDArray[np.float64],
    image_h: int,
    image_w: int,
    h: int,
    w: int,
    depth: NDArray[np.float32],
    margin: float,
    min_depth: float,
    rows: NDArray[np.int64],
    cells: NDArray[np.int64],
) -> int:
    """Which of (N, 3) points a view sees, and which cell of its (h, w) feature map each of them reads.

    The arithmetic is that of the tensors in ``view_fusion``, operation by operation: both give the same bits.

    Args:
        points: world metres.
        P: (3, 4) projection to pixels of the (image_h, image_w) input.
        depth: (H, W) metres, 0 = unknown; a point further behind it than ``margin`` is hidden. ``margin`` < 0: no test.
        min_depth: what is nearer to the camera is not seen.
        rows, cells: (N,) out, filled up to the returned count.
    """
    count = 0
    for i in range(len(points)):
        x, y, z = points[i, 0], points[i, 1], points[i, 2]
        behind = x * P[2, 0] + y * P[2, 1] + z * P[2, 2] + P[2, 3]
        if not behind > min_depth:
            continue
        u = (x * P[0, 0] + y * P[0, 1] + z * P[0, 2] + P[0, 3]) / behind
        v = (x * P[1, 0] + y * P[1, 1] + z * P[1, 2] + P[1, 3]) / behind
        if not (u >= -0.5 and u < image_w - 0.5 and v >= -0.5 and v < image_h - 0.5):
            continue
        if margin >= 0:
            measured = np.float64(depth[_at(v, image_h, depth.shape[0]), _at(u, image_w, depth.shape[1])])
            if measured > 0 and behind > measured + margin:
                continue
        rows[count] = i
        cells[count] = _at(v, image_h, h) * w + _at(u, image_w, w)
        count += 1
    return count


@njit(cache=True, nogil=True)
def _at(pixel: float, size: int, cells: int) -> int:
    """Index of the cell that a pixel coordinate falls into, of ``cells`` cells that cover ``size`` pixels."""
    return min(max(int(np.floor((pixel + 0.5) * (cells / size))), 0), cells - 1)
