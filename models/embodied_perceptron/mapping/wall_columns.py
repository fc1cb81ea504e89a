"""How many voxels stand above each cell of the ground, where walls are looked for; by blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.manhattan import wall_column, wall_heights
from embodied_perceptron.mapping.block_copies import BlockView
from embodied_perceptron.mapping.blocks import BLOCK_EDGE

Array = NDArray[Any]


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
