"""What a picture does not show of a thing, the map knows: a table's top gets its legs, a chair's back its seat.

The map is cut into shapes as everywhere (floor and walls left out, level surfaces with what stands
beneath them, connected parts: :mod:`embodied_perceptron.scene.segmentation`). The shape that holds most of the
candidate's surface lends its extents, if such a thing can have them. Otherwise the candidate keeps its own, and reaches
down to the floor where things of its name stand on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.suppression import SHAPE_SHARE
from embodied_perceptron.inference.class_priors import ClassPriors

_SMALL_M = 0.5
_INSIDE_M = 0.04  # points may lie so far outside of the shape that they are of
_MIN_PLAUSIBILITY = -3.0
_MAX_HIDDEN_M = 0.9  # highest gap below that occlusion explains


@dataclass(frozen=True, eq=False)
class Completed:
    """A candidate's box with what the map adds.

    Attributes:
        box: (9,) upright.
        by_shape: a shape of the map lent it.
    """

    box: NDArray[np.float64]
    by_shape: bool


def complete_box(
    box: NDArray[np.float64],
    points_m: NDArray[np.float64],
    label: str,
    shapes: NDArray[np.float64],
    floor_z_m: float,
    priors: ClassPriors,
) -> Completed:
    """The box of a candidate as the map shows it.

    Args:
        box: (9,) upright box around what the views saw.
        points_m: (K, 3) that surface.
        label: canonical name.
        shapes: (B, 9) of the map.
        floor_z_m: height of the floor.
        priors: of names; small things, and what hangs, are seen whole and stay as they are.
    """
    prior = priors.get(label)
    small = prior.small if prior is not None else float(box[3:6].max()) < _SMALL_M
    if small or (prior is not None and prior.mounted in ("wall", "ceiling")):
        return Completed(box, False)
    chosen = _best_shape(shapes, points_m, label, floor_z_m, priors)
    if chosen is not None:
        return Completed(chosen, True)
    bottom_m = box[2] - box[5] / 2
    if prior is not None and prior.stands and 0 < bottom_m - floor_z_m <= _MAX_HIDDEN_M:
        return Completed(_reaching_down(box, floor_z_m), False)
    return Completed(box, False)


def _reaching_down(box: NDArray[np.float64], floor_z_m: float) -> NDArray[np.float64]:
    top_m = box[2] + box[5] / 2
    result: NDArray[np.float64] = box.copy()
    result[2], result[5] = (top_m + floor_z_m) / 2, top_m - floor_z_m
    return result


def _shares(boxes: NDArray[np.float64], points_m: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B,) share of the points in each (B, 9) upright box, widened a little."""
    few = points_m[:: 1 + len(points_m) // 300]
    offset = few[:, None] - boxes[None, :, :3]  # (K, B, 3)
    c, s = np.cos(boxes[:, 6]), np.sin(boxes[:, 6])
    half = boxes[:, 3:6] / 2 + _INSIDE_M
    inside = np.abs(offset[..., 2]) <= half[:, 2]
    inside &= np.abs(c * offset[..., 0] + s * offset[..., 1]) <= half[:, 0]
    inside &= np.abs(c * offset[..., 1] - s * offset[..., 0]) <= half[:, 1]
    share: NDArray[np.float64] = inside.mean(axis=0)
    return share


def _best_shape(
    shapes: NDArray[np.float64], points_m: NDArray[np.float64], label: str, floor_z_m: float, priors: ClassPriors
) -> NDArray[np.float64] | None:
    """The (9,) shape that holds most of the surface and can be such a thing."""
    best, chosen = 0.0, None
    shares = _shares(shapes, points_m)
    for number in np.flatnonzero(shares >= SHAPE_SHARE):
        shape, share = shapes[number], shares[number]
        # parts that were never seen make a shape small, and nothing makes it large
        fit = priors.log_plausibility(label, shape, floor_z_m, whole=False)
        if fit < _MIN_PLAUSIBILITY:
            continue
        value = float(share) * float(np.exp(0.25 * fit))
        if value > best:
            best, chosen = value, shape
    return None if chosen is None else chosen.copy()
