"""What of a map is floor, what is building (walls, ceiling), and what is left: the first cut of every perception.

Geometry alone decides: heights above the floor, and walls as :mod:`embodied_perceptron.scene.walls` finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import ObjectsConfig
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.scene.cells import Cells, build_cells
from embodied_perceptron.scene.walls import find_walls, wall_direction

FLOOR, STRUCTURE, THING = 1, 2, 3


@dataclass(frozen=True, eq=False)
class Layers:
    """A map cut into layers.

    Attributes:
        floor_z_m: height of the floor, world frame; NaN when the map is empty or shows no floor.
        label: (N,) int8 per voxel of the snapshot: FLOOR, STRUCTURE or THING.
        cells: everything between floor and ``max_height_m``, on the lattice.
        cell_label: (M,) int8 per cell: STRUCTURE or THING.
        yaw_rad: direction of the walls in [0, pi/2); 0 when there are none.
    """

    floor_z_m: float
    label: NDArray[np.int8]
    cells: Cells
    cell_label: NDArray[np.int8]
    yaw_rad: float


def separate_layers(snapshot: VoxelSnapshot, floor_z_m: float, config: ObjectsConfig) -> Layers:
    """Label every voxel of ``snapshot``. Deterministic; an empty snapshot gives empty layers."""
    height_m = snapshot.mean_point_m[:, 2].astype(np.float64) - floor_z_m
    between = (height_m >= config.min_height_m) & (height_m <= config.max_height_m)
    cells = build_cells(snapshot, config.cell_size_m, between)
    yaw_rad = wall_direction(cells)
    cell_label = np.where(find_walls(cells, floor_z_m), STRUCTURE, THING).astype(np.int8)
    label = np.full(len(snapshot), FLOOR, dtype=np.int8)
    label[height_m > config.max_height_m] = STRUCTURE
    label[between] = cell_label[cells.cell_of_voxel[between]]
    return Layers(floor_z_m, label, cells, cell_label, yaw_rad)
