"""What stands on each cell of the ground: how many voxels block a robot, how many are ground to drive on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.config import GridConfig
from embodied_perceptron.geometry import world_to_voxel
from embodied_perceptron.results import SemanticVoxels
from embodied_perceptron.scene.traversability import FLOOR_BULGE_M, FLOOR_CLASSES, LOW_THING_M, split_voxels

_DROP_M = 0.15  # what lies this much below the floor is no floor
_MAX_TABLE = 1 << 26  # labelled cells further apart than fits into a table of so many bytes are searched instead
_NOTHING, _FLOOR, _PASSABLE, _THING = 0, 1, 2, 4  # what a cell is called; a class may be floor and passable


@dataclass(frozen=True, eq=False)
class Columns:
    """Counts per cell of the ground.

    Attributes:
        low: (2,) x and y of the first cell, in cells.
        ground, blocking: (rows, cols) int64 voxels; rows along y.
    """

    low: NDArray[np.int64]
    ground: NDArray[np.int64]
    blocking: NDArray[np.int64]


def count_columns(
    points_m: NDArray[np.float32], floor_z_m: float, config: GridConfig, semantic: SemanticVoxels | None = None
) -> Columns:
    """Count voxels, given by their (N, 3) mean points, that are neither above the height band nor far below the floor.

    ``semantic`` as for :func:`~embodied_perceptron.scene.traversability.split_voxels`.
    """
    table = _Table.of(config, semantic)
    if table is None:
        return count_columns_slowly(points_m, floor_z_m, config, semantic)
    top_m = config.max_obstacle_height_m
    x0, y0, x1, y1 = _bounds(points_m, floor_z_m, _DROP_M, top_m, config.resolution_m)
    if x1 < x0:
        return _no_columns()
    shape = y1 - y0 + 1, x1 - x0 + 1
    ground, blocking = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    heights = np.array([_DROP_M, top_m, config.min_obstacle_height_m, FLOOR_BULGE_M, LOW_THING_M])
    _count(
        points_m, floor_z_m, heights, config.resolution_m, x0, y0,
        table.anchor_m, table.cell_size_m, table.low, table.kinds, ground, blocking,
    )  # fmt: skip
    return Columns(np.array([x0, y0], np.int64), ground, blocking)


def count_columns_slowly(
    points_m: NDArray[np.float32], floor_z_m: float, config: GridConfig, semantic: SemanticVoxels | None = None
) -> Columns:
    """The same for labelled cells that may lie anywhere."""
    height_m = points_m[:, 2].astype(np.float64) - floor_z_m
    known = np.flatnonzero((height_m > -_DROP_M) & (height_m <= config.max_obstacle_height_m))
    if len(known) == 0:
        return _no_columns()
    column = world_to_voxel(points_m[known, :2], config.resolution_m)
    low = column.min(axis=0)
    cols, rows = (column.max(axis=0) - low + 1).tolist()
    flat = (column[:, 1] - low[1]) * cols + (column[:, 0] - low[0])
    blocking, ground = split_voxels(points_m[known], height_m[known], config, semantic)
    counts = [np.bincount(flat[mask], minlength=rows * cols).reshape(rows, cols) for mask in (ground, blocking)]
    return Columns(low, *counts)


def _no_columns() -> Columns:
    return Columns(np.zeros(2, np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64))


@dataclass(frozen=True, eq=False)
class _Table:
    """What labelled cells are called, by their place: ``kinds[cell - low]``."""

    anchor_m: NDArray[np.float64]
    cell_size_m: float
    low: NDArray[np.int64]
    kinds: NDArray[np.uint8]

    @staticmethod
    def of(config: GridConfig, semantic: SemanticVoxels | None) -> _Table | None:
        """None when the cells are too far apart."""
        if semantic is None or len(semantic.labels) == 0:
            return _Table(np.zeros(3), 1.0, np.zeros(3, np.int64), np.zeros((0, 0, 0), np.uint8))
        size = semantic.cell_size_m
        anchor_m = semantic.centers_m[0].astype(np.float64) - 0.5 * size  # the lattice need not begin at the origin
        cells = np.floor((semantic.centers_m - anchor_m) / size).astype(np.int64)
        low = cells.min(axis=0)
        extent = cells.max(axis=0) - low + 1
        if float(np.prod(extent.astype(np.float64))) > _MAX_TABLE:
            return None
        kind_of_class = np.array(
            [
                (_FLOOR if name in FLOOR_CLASSES else _THING) | (_PASSABLE if name in config.passable_classes else 0)
                for name in semantic.classes
            ],
            np.uint8,
        )
        kinds = np.full(extent, _NOTHING, np.uint8)
        kinds[tuple((cells - low)[::-1].T)] = kind_of_class[semantic.labels[::-1]]  # of several in a cell the first
        return _Table(anchor_m, size, low, kinds)


@njit(cache=True, nogil=True)
def _bounds(
    points: NDArray[np.float32], floor_z: float, drop: float, top: float, resolution: float
) -> tuple[int, int, int, int]:
    """Lowest and highest cells (x0, y0, x1, y1); x1 < x0 when no voxel counts."""
    x0, y0, x1, y1 = 1 << 40, 1 << 40, -(1 << 40), -(1 << 40)
    for row in range(len(points)):
        height = np.float64(points[row, 2]) - floor_z
        if height > -drop and height <= top:
            x = int(np.floor(np.float64(points[row, 0]) / resolution))
            y = int(np.floor(np.float64(points[row, 1]) / resolution))
            x0, y0, x1, y1 = min(x0, x), min(y0, y), max(x1, x), max(y1, y)
    return x0, y0, x1, y1


@njit(cache=True, nogil=True)
def _count(
    points: NDArray[np.float32],
    floor_z: float,
    heights: NDArray[np.float64],
    resolution: float,
    x0: int,
    y0: int,
    anchor: NDArray[np.float64],
    cell_size: float,
    low: NDArray[np.int64],
    kinds: NDArray[np.uint8],
    ground: NDArray[np.int64],
    blocking: NDArray[np.int64],
) -> None:
    drop, top, band, bulge, thing = heights
    for row in range(len(points)):
        height = np.float64(points[row, 2]) - floor_z
        if not (height > -drop and height <= top):
            continue
        kind = _NOTHING
        i = int(np.floor((np.float64(points[row, 0]) - anchor[0]) / cell_size)) - low[0]
        j = int(np.floor((np.float64(points[row, 1]) - anchor[1]) / cell_size)) - low[1]
        k = int(np.floor((np.float64(points[row, 2]) - anchor[2]) / cell_size)) - low[2]
        if 0 <= i < kinds.shape[0] and 0 <= j < kinds.shape[1] and 0 <= k < kinds.shape[2]:
            kind = kinds[i, j, k]
        blocks = height >= band or (kind & _THING != 0 and height >= thing)
        if kind & _FLOOR != 0 and height < band + bulge:
            blocks = False
        if kind & _PASSABLE != 0:
            blocks = False
        x = int(np.floor(np.float64(points[row, 0]) / resolution)) - x0
        y = int(np.floor(np.float64(points[row, 1]) / resolution)) - y0
        if blocks:
            blocking[y, x] += 1
        else:
            ground[y, x] += 1
