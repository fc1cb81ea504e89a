"""What the map holds of a box: the voxels in it, and those around it. Compiled; the twin stands in its tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_rotations
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.results import VoxelSnapshot

_BOTTOM_M, _BOTTOM_SHARE = 0.1, 0.25


def without_bottom(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, 9) boxes with their lowest part cut off: what they stand on is no evidence for them."""
    lift = np.minimum(_BOTTOM_M, _BOTTOM_SHARE * boxes[:, 5])
    raised: NDArray[np.float64] = boxes.copy()
    raised[:, :3] += 0.5 * lift[:, None] * box_rotations(boxes)[:, :, 2]
    raised[:, 5] -= lift
    return raised


def count_voxels(
    snapshot: VoxelSnapshot,
    boxes: NDArray[np.float64],
    margin_m: float,
    enough: int | None = None,
    widened_m: float | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Voxels in each of (B, 9) boxes, those outside but within ``margin_m``, and the newest stamp of those inside.

    Voxels count by their mean points; boxes are widened by ``widened_m`` on each side, by default half a voxel, so that
    surfaces on a face count as inside. ``enough``: stop counting for a box that has so many inside.
    """
    nobody: list[list[int]] = [[] for _ in boxes]
    inside, around, newest_ns, _ = count_voxels_explained(snapshot, boxes, margin_m, nobody, boxes, enough, widened_m)
    return inside, around, newest_ns


def count_voxels_explained(
    snapshot: VoxelSnapshot,
    boxes: NDArray[np.float64],
    margin_m: float,
    others: Sequence[Sequence[int]],
    other_boxes: NDArray[np.float64],
    enough: int | None = None,
    widened_m: float | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """:func:`count_voxels`, and how many of the voxels in each box lie in others too.

    Args:
        others: for each of the (B, 9) boxes rows of ``other_boxes`` (K, 9); these are widened too, but by no more than
            a tenth of their size, so that of books side by side none explains its neighbour.
    """
    if len(boxes) == 0 or len(snapshot) == 0:
        nothing = np.zeros(len(boxes), np.int64)
        return nothing, nothing.copy(), nothing.copy(), nothing.copy()
    R = box_rotations(boxes)
    widened = snapshot.voxel_size_m / 2 if widened_m is None else widened_m
    half = boxes[:, 3:6] / 2 + widened
    # half the edges of the upright bounds of all that counts; a little more, for rounding
    reach = np.einsum("bij,bj->bi", np.abs(R), half + margin_m) + 1e-3 * snapshot.voxel_size_m
    # the snapshot is sorted by x, then y: only a slab of it can lie in a box, and of each of its layers only a strip
    x = snapshot.coords[:, 0]
    low = np.floor((boxes[:, :2] - reach[:, :2]) / snapshot.voxel_size_m).astype(np.int64)
    high = np.ceil((boxes[:, :2] + reach[:, :2]) / snapshot.voxel_size_m).astype(np.int64)
    first = np.searchsorted(x, low[:, 0], side="left")
    last = np.searchsorted(x, high[:, 0], side="right")
    rows = np.stack([first, last], axis=1).astype(np.int64)
    counts: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] = _count_in_slabs(
        snapshot.mean_point_m,
        snapshot.last_seen_ns,
        snapshot.coords,
        rows,
        np.stack([low[:, 1], high[:, 1]], axis=1),
        boxes[:, :3].copy(),
        R,
        half,
        reach[:, 2].copy(),
        margin_m,
        len(snapshot) if enough is None else enough,
        np.concatenate([[0], np.cumsum([len(rows) for rows in others])]).astype(np.int64),
        np.array([k for rows in others for k in rows], dtype=np.int64),
        other_boxes[:, :3].copy(),
        box_rotations(other_boxes),
        other_boxes[:, 3:6] / 2 + np.minimum(widened, 0.1 * other_boxes[:, 3:6]),
    )
    return counts


@njit(cache=True, nogil=True)
def _excess(
    points: NDArray[np.float32],
    row: int,
    center: NDArray[np.float64],
    R: NDArray[np.float64],
    half: NDArray[np.float64],
) -> float:
    """How far a point lies outside of a box along the axis where it does most; negative inside."""
    excess = -1e9
    for axis in range(3):
        local = 0.0
        for k in range(3):
            local += (points[row, k] - center[k]) * R[k, axis]
        excess = max(excess, abs(local) - half[axis])
    return excess


@njit(cache=True, nogil=True)
def _count_in_slabs(
    points: NDArray[np.float32],
    stamps: NDArray[np.int64],
    coords: NDArray[np.int32],
    slabs: NDArray[np.int64],
    strips: NDArray[np.int64],
    center: NDArray[np.float64],
    R: NDArray[np.float64],
    half: NDArray[np.float64],
    reach_z: NDArray[np.float64],
    margin: float,
    enough: int,
    starts: NDArray[np.int64],
    others: NDArray[np.int64],
    other_center: NDArray[np.float64],
    other_R: NDArray[np.float64],
    other_half: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    inside = np.zeros(len(center), np.int64)
    around = np.zeros(len(center), np.int64)
    newest = np.zeros(len(center), np.int64)
    explained = np.zeros(len(center), np.int64)
    for b in range(len(center)):
        row, last = slabs[b]
        while row < last:
            if coords[row, 1] < strips[b, 0]:
                row = _first_not_below(coords, row, last, coords[row, 0], strips[b, 0])
                continue
            if coords[row, 1] > strips[b, 1]:
                row = _first_not_below(coords, row, last, coords[row, 0] + 1, strips[b, 0])
                continue
            if abs(points[row, 2] - center[b, 2]) > reach_z[b]:
                row += 1
                continue
            excess = _excess(points, row, center[b], R[b], half[b])
            if excess <= 0.0:
                inside[b] += 1
                newest[b] = max(newest[b], stamps[row])
                for n in range(starts[b], starts[b + 1]):
                    o = others[n]
                    if _excess(points, row, other_center[o], other_R[o], other_half[o]) <= 0.0:
                        explained[b] += 1
                        break
                if inside[b] >= enough:
                    break
            elif excess <= margin:
                around[b] += 1
            row += 1
    return inside, around, newest, explained


@njit(cache=True, nogil=True)
def _first_not_below(coords: NDArray[np.int32], first: int, last: int, x: int, y: int) -> int:
    """First row of [first, last) whose voxel is not before (x, y); ``last`` when there is none."""
    while first < last:
        middle = (first + last) // 2
        if coords[middle, 0] < x or (coords[middle, 0] == x and coords[middle, 1] < y):
            first = middle + 1
        else:
            last = middle
    return first
