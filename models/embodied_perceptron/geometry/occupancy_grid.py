"""Blocks of occupancy cells: the benchmark's, and the window that a network sees at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64


@dataclass(frozen=True)
class OccupancyGridSpec:
    """An axis-aligned block of cubic cells.

    Attributes:
        origin_m: lowest corner.
        shape: cells along x, y, z.
        cell_m: edge length.

    Raises ``ValueError`` for a size that is not positive.
    """

    origin_m: tuple[float, float, float]
    shape: tuple[int, int, int]
    cell_m: float

    def __post_init__(self) -> None:
        if min(self.shape) < 1 or not self.cell_m > 0:
            raise ValueError(f"grid needs positive sizes, got shape {self.shape} and cell_m {self.cell_m}")

    def centers(self, coords: NDArray[np.integer[Any]]) -> F64:
        """(N, 3) cell indices -> (N, 3) centres, metres."""
        centers: F64 = (np.asarray(coords) + 0.5) * self.cell_m + np.asarray(self.origin_m)
        return centers

    def locate(self, points_m: NDArray[np.floating[Any]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(N, 3) points, metres -> (N, 3) indices of their cells, and (N,) whether they lie in the block."""
        cells = np.floor((points_m - np.asarray(self.origin_m)) / self.cell_m).astype(np.int64)
        return cells, ((cells >= 0) & (cells < np.array(self.shape))).all(axis=1)


BENCHMARK_GRID = OccupancyGridSpec((-3.2, -3.2, -0.78), (40, 40, 16), 0.16)
"""EmbodiedScan's grid, in the frame of the scene."""
WINDOW_M = BENCHMARK_GRID.shape[0] * BENCHMARK_GRID.cell_m
"""Edge of the square around the robot that a network sees at once: as wide as the benchmark's grid."""
