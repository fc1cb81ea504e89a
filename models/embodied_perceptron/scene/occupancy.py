"""What is where, for planners and eyes: the navigation grid and labelled voxels."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import ndimage

from embodied_perceptron.config import GridConfig
from embodied_perceptron.geometry import voxel_centers
from embodied_perceptron.results import OccupancyGrid2d, SemanticVoxels, VoxelSnapshot
from embodied_perceptron.scene.cells import assign_cells
from embodied_perceptron.scene.columns import count_columns
from embodied_perceptron.scene.layers import FLOOR, STRUCTURE, THING, Layers

UNKNOWN_CELL, FREE_CELL, OCCUPIED_CELL = -1, 0, 100
CLASSES = ("unknown", "floor", "structure", "object")
_CLASS_OF_LAYER = np.zeros(4, dtype=np.int64)
_CLASS_OF_LAYER[[FLOOR, STRUCTURE, THING]] = 1, 2, 3
_FREE_NEIGHBOURS = 5  # of 8: a gap this enclosed is a gap of sampling, not of the floor


def navigation_grid(
    snapshot: VoxelSnapshot, floor_z_m: float, config: GridConfig, semantic: SemanticVoxels | None = None
) -> OccupancyGrid2d:
    """Top-down grid: 100 where something stands in the robot's height band, 0 where the floor was seen, else -1.

    An obstacle wins over the floor beneath it (a table top in the band blocks). Voxels above the band and further than
    15 cm below the floor say nothing. Cells are aligned with the world's origin; an empty map gives a 0 x 0 grid.
    ``semantic`` holds classes that a network named, by which doors do not block; see
    :func:`~embodied_perceptron.scene.traversability.split_voxels`.
    """
    columns = count_columns(snapshot.mean_point_m, floor_z_m, config, semantic)
    if columns.ground.size == 0:
        return OccupancyGrid2d(config.resolution_m, np.zeros(2), np.zeros((0, 0), np.int8), floor_z_m)
    blocked = columns.blocking >= config.min_obstacle_voxels
    free = _close_gaps((columns.ground > 0) & ~blocked, columns.blocking > 0)
    cells = np.full(blocked.shape, UNKNOWN_CELL, dtype=np.int8)
    cells[free] = FREE_CELL
    cells[blocked] = OCCUPIED_CELL
    return OccupancyGrid2d(config.resolution_m, columns.low.astype(np.float64) * config.resolution_m, cells, floor_z_m)


def _close_gaps(free: NDArray[np.bool_], touched: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Call cells free that no voxel touched and that free ones enclose: far floors are sampled thinly."""
    around = ndimage.convolve(free.astype(np.int8), np.ones((3, 3), np.int8), mode="constant")
    closed: NDArray[np.bool_] = free | (~touched & (around >= _FREE_NEIGHBOURS))
    return closed


def semantic_voxels(snapshot: VoxelSnapshot, layers: Layers, cell_size_m: float) -> SemanticVoxels:
    """Label cells of ``cell_size_m`` by the layer most of their voxels belong to (ties to the higher class).

    Confidence is the mean occupancy probability of the cell's voxels times the share that agrees.
    """
    coords, cell = assign_cells(snapshot.mean_point_m.astype(np.float64), cell_size_m)
    probability = 1.0 / (1.0 + np.exp(-snapshot.evidence.astype(np.float64)))
    class_of_voxel = _CLASS_OF_LAYER[layers.label]
    votes, sums = _cell_sums(cell, class_of_voxel, snapshot.mean_color, probability, len(coords), len(CLASSES))
    labels = len(CLASSES) - 1 - np.argmax(votes[:, ::-1], axis=1)
    total = votes.sum(axis=1)
    agreeing = votes[np.arange(len(coords)), labels] / total
    return SemanticVoxels(
        cell_size_m=cell_size_m,
        centers_m=voxel_centers(coords, cell_size_m).astype(np.float32),
        color=np.round(sums[:, :3] / total[:, None]).astype(np.uint8),
        labels=labels.astype(np.int32),
        confidence=(sums[:, 3] / total * agreeing).astype(np.float32),
        classes=CLASSES,
    )


@njit(cache=True, nogil=True)
def _cell_sums(
    cell: NDArray[np.int64],
    class_of_voxel: NDArray[np.int64],
    color: NDArray[np.uint8],
    probability: NDArray[np.float64],
    cells: int,
    classes: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(M, classes) voxels of each class in each cell, and (M, 4) sums of their colours and probabilities."""
    votes = np.zeros((cells, classes), dtype=np.int64)
    sums = np.zeros((cells, 4))
    for row in range(len(cell)):
        c = cell[row]
        votes[c, class_of_voxel[row]] += 1
        for k in range(3):
            sums[c, k] += color[row, k]
        sums[c, 3] += probability[row]
    return votes, sums
