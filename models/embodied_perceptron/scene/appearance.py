"""What objects look like: the mean colour of the voxels in each box."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.scene.bounds import box_rotations

F64 = NDArray[np.float64]

_LEAST_VOXELS = 5  # of a box whose colour is known


def mean_colors(snapshot: VoxelSnapshot, boxes: F64) -> F64:
    """(B, 9) boxes -> (B, 3) mean sRGB in 0..255 of the voxels inside; NaN where there are hardly any.

    A voxel that lies in several boxes counts for the smallest of them: the vase, not the table that it stands on.
    """
    if len(boxes) == 0 or len(snapshot) == 0:
        return np.full((len(boxes), 3), np.nan)
    order = np.argsort(boxes[:, 3:6].prod(axis=1), kind="stable")
    reach = np.linalg.norm(boxes[:, 3:6], axis=1) / 2 + snapshot.voxel_size_m
    x = snapshot.coords[:, 0]  # the snapshot is sorted by x first: only a slab of it can lie in a box
    first = np.searchsorted(x, np.floor((boxes[:, 0] - reach) / snapshot.voxel_size_m), side="left")
    last = np.searchsorted(x, np.ceil((boxes[:, 0] + reach) / snapshot.voxel_size_m), side="right")
    half = boxes[:, 3:6] / 2 + snapshot.voxel_size_m / 2
    rows = np.stack([first, last], axis=1).astype(np.int64)
    sums: F64 = _sum_in_slabs(
        snapshot.mean_point_m,
        snapshot.mean_color,
        rows[order],
        boxes[order, :3],
        box_rotations(boxes)[order],
        half[order],
    )
    colors = np.full((len(boxes), 3), np.nan)
    enough = sums[:, 3] >= _LEAST_VOXELS
    colors[order[enough]] = sums[enough, :3] / sums[enough, 3:]
    return colors


@njit(cache=True)
def _sum_in_slabs(
    points: NDArray[np.float32],
    colors: NDArray[np.uint8],
    slabs: NDArray[np.int64],
    center: F64,
    R: F64,
    half: F64,
) -> F64:
    """(B, 4) sums of red, green, blue and count; the first box that a voxel lies in has it."""
    out = np.zeros((len(center), 4))
    taken = np.zeros(len(points), np.bool_)
    for b in range(len(center)):
        for row in range(slabs[b, 0], slabs[b, 1]):
            if taken[row]:
                continue
            inside = True
            for axis in range(3):
                local = 0.0
                for k in range(3):
                    local += (points[row, k] - center[b, k]) * R[b, k, axis]
                if abs(local) > half[b, axis]:
                    inside = False
                    break
            if inside:
                taken[row] = True
                for channel in range(3):
                    out[b, channel] += colors[row, channel]
                out[b, 3] += 1.0
    return out
