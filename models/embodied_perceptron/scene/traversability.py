"""Which voxels block a robot: by their height above the floor, and by what they are where that is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import GridConfig
from embodied_perceptron.results import SemanticVoxels

FLOOR_CLASSES = ("floor", "carpet", "mat")
FLOOR_BULGE_M = 0.1  # a floor that rises this much into the height band is still a floor: ramps, thick carpets, drift
LOW_THING_M = 0.04  # a thing below the height band blocks from here on; below it is the floor that it stands on
_ABSENT = -1


def split_voxels(
    points_m: NDArray[np.float32],
    height_m: NDArray[np.float64],
    config: GridConfig,
    semantic: SemanticVoxels | None = None,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which voxels block, and which are ground to drive on.

    By height alone, what reaches the band blocks and the rest is ground. Classes correct this: a floor that bulges into
    the band is ground, a low thing blocks although the band begins above it, and ``config.passable_classes`` (doors)
    never block: they are ground, so that a planner finds the way through.

    Args:
        points_m: (N, 3) mean points of voxels, world frame.
        height_m: (N,) their heights above the floor.
        config: the height band and the passable classes.
        semantic: labelled cells; None = nothing is known.

    Returns:
        Two (N,) masks without a common entry.
    """
    blocking = height_m >= config.min_obstacle_height_m
    if semantic is None or len(semantic.labels) == 0:
        return blocking, ~blocking
    label = labels_at(points_m, semantic)
    names = semantic.classes
    is_floor = np.array([name in FLOOR_CLASSES for name in names] + [False])
    is_passable = np.array([name in config.passable_classes for name in names] + [False])
    bulge = is_floor[label] & (height_m < config.min_obstacle_height_m + FLOOR_BULGE_M)
    low_thing = (label != _ABSENT) & ~is_floor[label] & (height_m >= LOW_THING_M)
    passable = is_passable[label]
    blocking = ((blocking | low_thing) & ~bulge) & ~passable
    return blocking, ~blocking


def labels_at(points_m: NDArray[np.float32], semantic: SemanticVoxels) -> NDArray[np.int64]:
    """(N,) label of the cell that each of the (N, 3) points lies in; -1 where there is none."""
    size = semantic.cell_size_m
    anchor = semantic.centers_m[0].astype(np.float64) - 0.5 * size  # the lattice need not begin at the origin
    cells = np.floor((semantic.centers_m - anchor) / size).astype(np.int64)
    wanted = np.floor((points_m - anchor) / size).astype(np.int64)
    low, high = cells.min(axis=0), cells.max(axis=0)
    inside = ((wanted >= low) & (wanted <= high)).all(axis=1)
    extent = high - low + 1
    keys = _flat(cells - low, extent)
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    mine = _flat(wanted[inside] - low, extent)
    position = np.minimum(np.searchsorted(sorted_keys, mine), len(keys) - 1)
    result = np.full(len(points_m), _ABSENT, dtype=np.int64)
    result[inside] = np.where(sorted_keys[position] == mine, semantic.labels[order[position]], _ABSENT)
    return result


def _flat(cells: NDArray[np.int64], extent: NDArray[np.int64]) -> NDArray[np.int64]:
    flat: NDArray[np.int64] = (cells[:, 0] * extent[1] + cells[:, 1]) * extent[2] + cells[:, 2]
    return flat
