"""How far a map made from a simulated recording is from the true surfaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_training.synthetic.surfaces import surface_distance_m

MAX_POINTS = 100_000


def map_error(recording: str | Path, points_m: NDArray[Any], max_points: int = MAX_POINTS) -> dict[str, float]:
    """Distances of map points to the nearest true surface.

    Args:
        recording: folder of the simulated recording, with its truth.
        points_m: (N, 3) in the recording's world frame, N > 0; evenly thinned beyond ``max_points``.
        max_points: how many are measured at most.

    Returns:
        ``mean_m``, ``median_m``, ``p95_m``, ``max_m``, and ``points``, how many were measured.

    Raises:
        FileNotFoundError: no truth lies there.
        ValueError: no points, or a truth of another kind.
    """
    if len(points_m) == 0:
        raise ValueError("the map holds no points")
    step = -(-len(points_m) // max_points)
    distances = surface_distance_m(recording, np.asarray(points_m)[::step])
    median, p95 = np.percentile(distances, (50, 95))
    return {
        "mean_m": float(distances.mean()),
        "median_m": float(median),
        "p95_m": float(p95),
        "max_m": float(distances.max()),
        "points": len(distances),
    }


def map_points(map_file: str | Path) -> NDArray[np.float32]:
    """(N, 3) mean points of the occupied voxels of a saved map. Raises as :meth:`Perceptron.load` does."""
    perceptron = Perceptron()
    perceptron.load(map_file)
    return perceptron.perceive().voxels.mean_point_m
