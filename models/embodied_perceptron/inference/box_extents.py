"""Large level things get their extents from the map: a table longer than any in training, one that came in pieces.

A network's box of a table, counter or desk says what stands where; how far it reaches is seen better in the map. From
the box's footprint, seen along its own axes, each side moves outward strip by strip while the level surface at the
box's top goes on there, and stops where it ends. Boxes stay as the network made them where that surface is not complete
enough to be trusted, where it is not at their top, where they are tilted, and where the result would be no plausible
size for the name. Boxes only grow, so nothing that they held is lost; heights and rotations stay the network's.

What then lies in a grown box and has its name is a piece of it and is left out, and so is what has no name and its
height: the cupboards of a counter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy
from numpy.typing import NDArray

from embodied_perceptron.geometry.suppression import without_pieces
from embodied_perceptron.inference.class_priors import ClassPriors
from embodied_perceptron.results import Detections, VoxelSnapshot

F64 = NDArray[np.float64]

LEVEL_NAMES = frozenset({"table", "desk", "counter", "countertop", "kitchen island", "bench"})
_MIN_SIDE_M = 0.6  # what is shorter was seen whole
_CELL_M = 0.05
_LEVEL_M = 0.06  # voxels within this of the surface's height are of it
_TOP_M = 0.1  # the surface lies no farther below the box's top, nor above it
_COMPLETE = 0.55  # share of the box's own footprint that the surface fills
_GOES_ON = 0.6  # of a strip: the surface goes on there
_REACH_M = 2.5  # no side moves farther
_LEAST_M = 0.1  # all sides together: less is noise
_UPRIGHT = 0.05  # rad
_MIN_PLAUSIBILITY = -3.0


def refine_extents(
    found: Detections, snapshot: VoxelSnapshot, floor_z_m: float, priors: ClassPriors, min_score: float = 0.0
) -> Detections:
    """``found`` with the extents of large level things taken from the map; see the module docstring.

    Args:
        found: of the network, world frame.
        snapshot: the map.
        floor_z_m: height of the floor.
        priors: plausible sizes.
        min_score: boxes that score less stay as they are, and so does the cost.

    Returns:
        The same boxes in the same order, without the pieces. Equivariant under turns about gravity.
    """
    boxes, grown = found.boxes.copy(), np.zeros(len(found), dtype=bool)
    points: F64 | None = None
    for row in np.flatnonzero(found.scores >= min_score):
        if not _candidate(found.labels[row], boxes[row]):
            continue
        if points is None:
            points = snapshot.mean_point_m.astype(np.float64)
        box = grow_to_surface(boxes[row], points)
        # no more than the name allows; parts of it may still be unseen
        if box is None or priors.log_plausibility(found.labels[row], box, floor_z_m, whole=False) < _MIN_PLAUSIBILITY:
            continue
        boxes[row], grown[row] = box, True
    if not grown.any():
        return found
    kept = without_pieces(boxes, found.scores, found.labels, grown)
    return replace(found.take(kept), boxes=boxes[kept])


def _candidate(label: str, box: F64) -> bool:
    upright = abs(box[7]) < _UPRIGHT and abs(box[8]) < _UPRIGHT
    return label in LEVEL_NAMES and upright and float(box[3:5].max()) >= _MIN_SIDE_M


def grow_to_surface(box: F64, points_m: F64) -> F64 | None:
    """The upright (9,) box grown over the level surface at its top; None where there is none, or where it ends anyway.

    Args:
        box: x y z dx dy dz alpha beta gamma.
        points_m: (N, 3) occupied voxels of the map.
    """
    top_m = box[2] + box[5] / 2
    near = np.abs(points_m[:, 2] - top_m) <= _TOP_M + _LEVEL_M
    c, s = np.cos(box[6]), np.sin(box[6])
    local = (points_m[near, :2] - box[:2]) @ np.array([[c, -s], [s, c]])  # along the box's sides
    z_m = points_m[near, 2]
    half = box[3:5] / 2
    inside = (np.abs(local) <= half).all(axis=1)
    if not inside.any():
        return None
    # the level that most of the footprint has
    levels, counts = np.unique(np.round(z_m[inside] / 0.02).astype(np.int64), return_counts=True)
    level_m = 0.02 * float(levels[np.argmax(counts)])
    if abs(level_m - top_m) > _TOP_M:
        return None
    level = (np.abs(z_m - level_m) <= _LEVEL_M) & (np.abs(local) <= half + _REACH_M).all(axis=1)
    first = np.ceil(half / _CELL_M).astype(np.int64)  # cells from the middle to the box's side
    reach = first + round(_REACH_M / _CELL_M)
    surface = np.zeros(2 * reach, dtype=bool)
    cell = np.floor(local[level] / _CELL_M).astype(np.int64) + reach
    cell = cell[((cell >= 0) & (cell < 2 * reach)).all(axis=1)]
    surface[tuple(cell.T)] = True
    surface = scipy.ndimage.binary_closing(surface, structure=np.ones((3, 3), dtype=bool)) | surface
    low, high = reach - first, reach + first  # the footprint, in cells
    if float(surface[low[0] : high[0], low[1] : high[1]].mean()) < _COMPLETE:
        return None
    moved = _grow(surface, low.copy(), high.copy())
    more = np.stack([low - moved[0], moved[1] - high]) * _CELL_M  # (2, 2) of the low and high sides
    if more.sum() < _LEAST_M:
        return None
    result: NDArray[np.float64] = box.copy()
    shift = 0.5 * (more[1] - more[0])
    result[:2] += np.array([[c, -s], [s, c]]) @ shift
    result[3:5] += more.sum(axis=0)
    return result


def _grow(
    surface: NDArray[np.bool_], low: NDArray[np.int64], high: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Move the sides of the rectangle [low, high) outward while the surface goes on beyond them."""
    going = True
    while going:
        going = False
        for axis in (0, 1):
            across = slice(low[1 - axis], high[1 - axis])
            for side, at in ((0, low[axis] - 1), (1, high[axis])):
                if not 0 <= at < surface.shape[axis]:
                    continue
                strip = surface[at, across] if axis == 0 else surface[across, at]
                if float(strip.mean()) >= _GOES_ON:
                    going = True
                    if side == 0:
                        low[axis] -= 1
                    else:
                        high[axis] += 1
    return low, high
