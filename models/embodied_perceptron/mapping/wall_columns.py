"""The frame along the walls of a map over time, from how many voxels stand above each cell of the ground; by blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.manhattan import ManhattanFrame, frame_of_columns, wall_column, wall_heights
from embodied_perceptron.mapping.block_copies import BlockView, blocks_of
from embodied_perceptron.mapping.blocks import BLOCK_EDGE
from embodied_perceptron.results import VoxelSnapshot

Array = NDArray[Any]


class WallFrame:
    """The frame along the walls of one map (:func:`~embodied_perceptron.geometry.manhattan.frame_of_columns`), held
    while another is hardly better, so that whatever asks for it at one moment or the next has the same."""

    def __init__(self) -> None:
        self._last: ManhattanFrame | None = None

    def of(self, snapshot: VoxelSnapshot, floor_z_m: float) -> ManhattanFrame:
        """Of the map as it is now."""
        self._last = frame_of_columns(*wall_columns(blocks_of(snapshot), floor_z_m), self._last)
        return self._last

    def forget(self) -> None:
        """The map is another one, or lies elsewhere."""
        self._last = None


def wall_columns(blocks: BlockView, floor_z_m: float) -> tuple[NDArray[np.int64], int]:
    """What :func:`~embodied_perceptron.geometry.manhattan.frame_of_columns` asks for: the grid, flat, and its width."""
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
    """Columns of the voxels from ``first`` to before ``last``, from that of the first on."""
    columns = np.empty(last - first, np.int64)
    for i in range(last - first):
        columns[i] = wall_column(first + i, voxel_size_m)
    from_first: Array = columns - columns[0]
    return from_first


@njit(cache=True, nogil=True)
def count_columns(
    blocks: Array, ranges: Array, coords: Array, lengths: Array, first: Array, x: Array, y: Array, z: Array, grid: Array
) -> None:
    """Add voxels to the ``grid`` of columns; ``x``, ``y``: the column of each voxel from ``first`` on, ``z``: whether
    voxels of a height count. Of a block at whose heights all or none count, no voxel is asked."""
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
