"""Voxel counts of the map: in and around boxes, and above each cell of the ground. The tests have plain versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_rotations
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.manhattan import ManhattanFrame, frame_of_columns, wall_column, wall_heights
from embodied_perceptron.mapping.block_copies import BlockView, blocks_of
from embodied_perceptron.mapping.blocks import BLOCK_EDGE
from embodied_perceptron.results import VoxelSnapshot

Array = NDArray[Any]
_BOTTOM_M, _BOTTOM_SHARE = 0.1, 0.25


def without_bottom(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, 9) boxes without their lowest part: the surface under an object is no evidence for it."""
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
    """Count voxels in each of (B, 9) boxes, and outside within ``margin_m``; third, the newest stamp inside.

    A voxel is located by its mean point. Boxes are widened by ``widened_m`` on each side, by default half a voxel, so
    that surfaces on a face are inside. Counting stops at ``enough`` voxels inside; the other results are then partial.
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
    """:func:`count_voxels`, and the number of voxels in each box that lie in other boxes too.

    Args:
        others: for each of the (B, 9) boxes, rows of ``other_boxes`` (K, 9). These are widened too, by at most a tenth
            of their size: a book does not explain the one beside it.
    """
    if len(boxes) == 0 or len(snapshot) == 0:
        nothing = np.zeros(len(boxes), np.int64)
        return nothing, nothing.copy(), nothing.copy(), nothing.copy()
    blocks, R = blocks_of(snapshot), box_rotations(boxes)
    widened = snapshot.voxel_size_m / 2 if widened_m is None else widened_m
    half = boxes[:, 3:6] / 2 + widened
    block_m, rounding_m = BLOCK_EDGE * snapshot.voxel_size_m, 1e-2 * snapshot.voxel_size_m
    # half edges of the axis-aligned bounds
    reach = np.einsum("bij,bj->bi", np.abs(R), half + margin_m) + rounding_m
    low = np.floor((boxes[:, :3] - reach) / block_m).astype(np.int64)
    high = np.floor((boxes[:, :3] + reach) / block_m).astype(np.int64)
    slabs = [np.searchsorted(blocks.coords[:, 0], low[:, 0]), np.searchsorted(blocks.coords[:, 0], high[:, 0] + 1)]
    counts: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] = _count_in_blocks(
        blocks.coords,
        blocks.ranges,
        blocks.newest_ns,
        blocks.arena.points_m,
        blocks.arena.last_seen_ns,
        np.stack(slabs, axis=1).astype(np.int64),
        low,
        high,
        block_m,
        rounding_m,
        boxes[:, :3].copy(),
        R,
        half,
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
    """Largest distance of a point outside of a box along one of its axes; negative inside."""
    excess = -1e9
    for axis in range(3):
        local = 0.0
        for k in range(3):
            local += (points[row, k] - center[k]) * R[k, axis]
        excess = max(excess, abs(local) - half[axis])
    return excess


@njit(cache=True, nogil=True)
def _excess_of_block(
    coord: NDArray[np.int32],
    block_m: float,
    center: NDArray[np.float64],
    R: NDArray[np.float64],
    half: NDArray[np.float64],
) -> tuple[float, float]:
    """Bounds of :func:`_excess` over the points in a block."""
    least, most = -1e9, -1e9
    for axis in range(3):
        local, extent = 0.0, 0.0
        for k in range(3):
            local += ((coord[k] + 0.5) * block_m - center[k]) * R[k, axis]
            extent += 0.5 * block_m * abs(R[k, axis])
        least = max(least, max(abs(local) - extent, 0.0) - half[axis])
        most = max(most, abs(local) + extent - half[axis])
    return least, most


@njit(cache=True, nogil=True)
def _count_in_blocks(
    coords: NDArray[np.int32],
    ranges: NDArray[np.int64],
    newest_ns: NDArray[np.int64],
    points: NDArray[np.float32],
    stamps: NDArray[np.int64],
    slabs: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    block_m: float,
    rounding_m: float,
    center: NDArray[np.float64],
    R: NDArray[np.float64],
    half: NDArray[np.float64],
    margin: float,
    enough: int,
    starts: NDArray[np.int64],
    others: NDArray[np.int64],
    other_center: NDArray[np.float64],
    other_R: NDArray[np.float64],
    other_half: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """See :func:`count_voxels_explained`. Blocks are ordered by (x, y, z); ``low`` to ``high`` (B, 3) bound a box.
    A block wholly inside, around or outside is counted as a whole."""
    inside = np.zeros(len(center), np.int64)
    around = np.zeros(len(center), np.int64)
    newest = np.zeros(len(center), np.int64)
    explained = np.zeros(len(center), np.int64)
    for b in range(len(center)):
        block, last = slabs[b]
        is_explained = starts[b + 1] > starts[b]
        cx, cy, cz = center[b]
        half_a, half_b, half_g = half[b]
        ax, ay, az = R[b, 0, 0], R[b, 1, 0], R[b, 2, 0]
        bx, by, bz = R[b, 0, 1], R[b, 1, 1], R[b, 2, 1]
        gx, gy, gz = R[b, 0, 2], R[b, 1, 2], R[b, 2, 2]
        while block < last and inside[b] < enough:
            i, j, k = coords[block]
            if j < low[b, 1] or (j == low[b, 1] and k < low[b, 2]):
                block = _first_not_below(coords, block, last, i, low[b, 1], low[b, 2])
                continue
            if j > high[b, 1]:
                block = _first_not_below(coords, block, last, i + 1, low[b, 1], low[b, 2])
                continue
            if k < low[b, 2] or k > high[b, 2]:
                block = _first_not_below(coords, block, last, i, j + (k > high[b, 2]), low[b, 2])
                continue
            least, most = _excess_of_block(coords[block], block_m, center[b], R[b], half[b])
            first, end = ranges[block]
            if most < -rounding_m and not is_explained:
                inside[b] += end - first
                newest[b] = max(newest[b], newest_ns[block])
            elif least > rounding_m and most <= margin - rounding_m:
                around[b] += end - first
            elif least > margin + rounding_m:
                pass
            elif not is_explained:  # no branches, so that it compiles to vector instructions
                within, near, stamp = 0, 0, newest[b]
                for row in range(first, end):
                    x, y, z = points[row, 0] - cx, points[row, 1] - cy, points[row, 2] - cz
                    excess = abs((x * ax + y * ay) + z * az) - half_a
                    excess = max(excess, abs((x * bx + y * by) + z * bz) - half_b)
                    excess = max(excess, abs((x * gx + y * gy) + z * gz) - half_g)
                    within += excess <= 0.0
                    near += excess <= margin
                    stamp = max(stamp, stamps[row] if excess <= 0.0 else stamp)
                inside[b] += within
                around[b] += near - within
                newest[b] = stamp
            else:
                for row in range(first, end):
                    excess = _excess(points, row, center[b], R[b], half[b])
                    if excess <= 0.0:
                        inside[b] += 1
                        newest[b] = max(newest[b], stamps[row])
                        for n in range(starts[b], starts[b + 1]):
                            o = others[n]
                            if _excess(points, row, other_center[o], other_R[o], other_half[o]) <= 0.0:
                                explained[b] += 1
                                break
                    elif excess <= margin:
                        around[b] += 1
            block += 1
        inside[b] = min(inside[b], enough)
    return inside, around, newest, explained


@njit(cache=True, nogil=True)
def _first_not_below(coords: NDArray[np.int32], first: int, last: int, x: int, y: int, z: int) -> int:
    """First of the blocks [first, last) that is not below (x, y, z); ``last`` when there is none."""
    while first < last:
        middle = (first + last) // 2
        a, b, c = coords[middle]
        if a < x or (a == x and (b < y or (b == y and c < z))):
            first = middle + 1
        else:
            last = middle
    return first


# --------------------------------------------------------------------------------------------------------------------
# voxels above each cell of the ground, and the frame along the walls


class WallFrame:
    """Manhattan frame of one map with hysteresis: it changes only when another frame is clearly better, see
    :func:`~embodied_perceptron.geometry.manhattan.frame_of_columns`."""

    def __init__(self) -> None:
        self._last: ManhattanFrame | None = None

    def of(self, snapshot: VoxelSnapshot, floor_z_m: float) -> ManhattanFrame:
        """Frame of the map as it is now."""
        self._last = frame_of_columns(*wall_columns(blocks_of(snapshot), floor_z_m), self._last)
        return self._last

    def forget(self) -> None:
        """Start again, after the map was replaced or moved."""
        self._last = None


def wall_columns(blocks: BlockView, floor_z_m: float) -> tuple[NDArray[np.int64], int]:
    """Grid, flat, and its width, for :func:`~embodied_perceptron.geometry.manhattan.frame_of_columns`."""
    nothing = np.zeros(0, np.int64), 1
    if len(blocks.keys) == 0:
        return nothing
    size_m, (low_m, high_m) = blocks.voxel_size_m, wall_heights(floor_z_m)
    first, last = (BLOCK_EDGE * blocks.coords.min(axis=0)).astype(int), BLOCK_EDGE * (blocks.coords.max(axis=0) + 1)
    x, y = (columns_between(first[k], last[k], size_m) for k in (0, 1))
    heights = (np.arange(first[2], last[2]) + 0.5) * size_m
    counts = (heights > low_m) & (heights < high_m)
    grid = np.zeros((x[-1] + 1, y[-1] + 1), np.int64)
    count_columns(blocks.coords, blocks.ranges, blocks.arena.coords, blocks.lengths, first, x, y, counts, grid)
    filled_x, filled_y = (np.flatnonzero(grid.any(axis=axis)) for axis in (1, 0))
    if len(filled_x) == 0:
        return nothing
    grid = grid[filled_x[0] : filled_x[-1] + 1, filled_y[0] : filled_y[-1] + 1]
    return np.ascontiguousarray(grid).reshape(-1), grid.shape[1]


@njit(cache=True, nogil=True)
def columns_between(first: int, last: int, voxel_size_m: float) -> Array:
    """Columns of the voxels in [first, last), relative to the first."""
    columns = np.empty(last - first, np.int64)
    for i in range(last - first):
        columns[i] = wall_column(first + i, voxel_size_m)
    from_first: Array = columns - columns[0]
    return from_first


@njit(cache=True, nogil=True)
def count_columns(
    blocks: Array, ranges: Array, coords: Array, lengths: Array, first: Array, x: Array, y: Array, z: Array, grid: Array
) -> None:
    """Add voxels to the ``grid`` of columns. ``x``, ``y``: column of each voxel from ``first`` on; ``z``: whether its
    height counts. A block at whose heights all or none count is added as a whole."""
    for b in range(blocks.shape[0]):
        low_x, low_y = blocks[b, 0] * BLOCK_EDGE - first[0], blocks[b, 1] * BLOCK_EDGE - first[1]
        low_z = blocks[b, 2] * BLOCK_EDGE - first[2]
        counting = 0
        for k in range(BLOCK_EDGE):
            counting += z[low_z + k]
        if counting == BLOCK_EDGE:
            for row in range(BLOCK_EDGE * BLOCK_EDGE):
                if lengths[b, row]:
                    grid[x[low_x + row // BLOCK_EDGE], y[low_y + row % BLOCK_EDGE]] += lengths[b, row]
        elif counting:
            for i in range(ranges[b, 0], ranges[b, 1]):
                if z[coords[i, 2] - first[2]]:
                    grid[x[coords[i, 0] - first[0]], y[coords[i, 1] - first[1]]] += 1
