"""What is where, for planners and eyes: the navigation grid and labelled voxels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from embodied_perceptron.config import GridConfig
from embodied_perceptron.geometry import voxel_centers, world_to_voxel
from embodied_perceptron.results import OccupancyGrid2d, SemanticVoxels, VoxelSnapshot
from embodied_perceptron.scene.cells import build_cells
from embodied_perceptron.scene.layers import FLOOR, STRUCTURE, THING, Layers

UNKNOWN_CELL, FREE_CELL, OCCUPIED_CELL = -1, 0, 100
CLASSES = ("unknown", "floor", "structure", "object")
_CLASS_OF_LAYER = {FLOOR: 1, STRUCTURE: 2, THING: 3}
_DROP_M = 0.15  # what lies this much below the floor is no floor
_FREE_NEIGHBOURS = 5  # of 8: a gap this enclosed is a gap of sampling, not of the floor


def navigation_grid(snapshot: VoxelSnapshot, floor_z_m: float, config: GridConfig) -> OccupancyGrid2d:
    """Top-down grid: 100 where something stands in the robot's height band, 0 where the floor was seen, else -1.

    An obstacle wins over the floor beneath it (a table top in the band blocks). Voxels above the band and further than
    15 cm below the floor say nothing. Cells are aligned with the world's origin; an empty map gives a 0 x 0 grid.
    """
    points = np.asarray(snapshot.mean_point_m, dtype=np.float64)
    height_m = points[:, 2] - floor_z_m
    floor = (height_m < config.min_obstacle_height_m) & (height_m > -_DROP_M)
    obstacle = (height_m >= config.min_obstacle_height_m) & (height_m <= config.max_obstacle_height_m)
    known = floor | obstacle
    if not known.any():
        return OccupancyGrid2d(config.resolution_m, np.zeros(2), np.zeros((0, 0), np.int8), floor_z_m)
    column = world_to_voxel(points[:, :2], config.resolution_m)
    low = column[known].min(axis=0)
    cols, rows = (column[known].max(axis=0) - low + 1).tolist()
    flat = (column[:, 1] - low[1]) * cols + (column[:, 0] - low[0])
    floors = np.bincount(flat[floor], minlength=rows * cols).reshape(rows, cols)
    obstacles = np.bincount(flat[obstacle], minlength=rows * cols).reshape(rows, cols)
    blocked = obstacles >= config.min_obstacle_voxels
    free = _close_gaps((floors > 0) & ~blocked, obstacles > 0)
    cells = np.full((rows, cols), UNKNOWN_CELL, dtype=np.int8)
    cells[free] = FREE_CELL
    cells[blocked] = OCCUPIED_CELL
    return OccupancyGrid2d(config.resolution_m, low * config.resolution_m, cells, floor_z_m)


def _close_gaps(free: NDArray[np.bool_], touched: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Call cells free that no voxel touched and that free ones enclose: far floors are sampled thinly."""
    around = ndimage.convolve(free.astype(np.int8), np.ones((3, 3), np.int8), mode="constant")
    closed: NDArray[np.bool_] = free | (~touched & (around >= _FREE_NEIGHBOURS))
    return closed


def semantic_voxels(snapshot: VoxelSnapshot, layers: Layers, cell_size_m: float) -> SemanticVoxels:
    """Label cells of ``cell_size_m`` by the layer most of their voxels belong to (ties to the higher class).

    Confidence is the mean occupancy probability of the cell's voxels times the share that agrees.
    """
    cells = build_cells(snapshot, cell_size_m, normals=False)
    count = len(cells)
    class_of_voxel = np.zeros(len(snapshot), dtype=np.int64)
    for layer, number in _CLASS_OF_LAYER.items():
        class_of_voxel[layers.label == layer] = number
    row = cells.cell_of_voxel
    votes = np.bincount(row * len(CLASSES) + class_of_voxel, minlength=count * len(CLASSES)).reshape(
        count, len(CLASSES)
    )
    labels = len(CLASSES) - 1 - np.argmax(votes[:, ::-1], axis=1)
    probability = 1.0 / (1.0 + np.exp(-np.asarray(snapshot.evidence, dtype=np.float64)))
    total = np.maximum(cells.voxels, 1)
    agreeing = votes[np.arange(count), labels] / total
    color = np.stack(
        [np.bincount(row, snapshot.mean_color[:, i].astype(np.float64), minlength=count) / total for i in range(3)], 1
    )
    return SemanticVoxels(
        cell_size_m=cell_size_m,
        centers_m=voxel_centers(cells.coords, cell_size_m).astype(np.float32),
        color=np.round(color).astype(np.uint8),
        labels=labels.astype(np.int32),
        confidence=(np.bincount(row, probability, minlength=count) / total * agreeing).astype(np.float32),
        classes=CLASSES,
    )
