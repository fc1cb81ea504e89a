"""Names of cells from the boxes around them.

Each cell is named by what the dense decoder sees around it; a box is named by its thing as a whole, twice, and is more
often right. So a cell that a box holds takes the box's name, unless the decoder is much surer. Cells are neither added
nor taken away: where something is, the decoder knows better than a box, which few things fill.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import rotations
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.results import Detections, SemanticVoxels

MIN_SCORE = 0.1  # boxes that score less name no cells
# Hollow or thin, so that their boxes hold what is something else, or other boxes hold them: between the decoder and
# boxes these keep the decoder's word.
KEPT_CLASSES = frozenset({"floor", "carpet", "mat", "blanket", "door", "doorframe"})
_SURE_WALL = 0.8  # a wall is as thin, but much that hangs on it is called a wall; from here on not
_LEAD = 0.5  # how much surer the decoder must be than a box
_SHARPNESS = 1.4  # how fast the weight of a box fades outside of it, per edge of a cell
_LEAST_EDGE_M = 0.05


def names_from_boxes(cells: SemanticVoxels, found: Detections, min_score: float = MIN_SCORE) -> SemanticVoxels:
    """``cells`` with the names of the boxes that hold them; confidence is then the box's score.

    A box names cells whose centre lies in it or less than half a cell outside. Of several, the one counts whose weight
    is highest: score by square root of the mean edge, as what is small stands in or on what is large.

    Args:
        cells: what is not empty, with the decoder's names.
        found: boxes of the same world, a box of every name that a thing may have. Names that cells cannot have, and
            :data:`KEPT_CLASSES`, name nothing.
        min_score: nor do boxes that score less.
    """
    index = {name: k for k, name in enumerate(cells.classes) if name not in KEPT_CLASSES}
    rows = np.flatnonzero((found.scores >= min_score) & np.array([name in index for name in found.labels], bool))
    if len(rows) == 0 or len(cells.labels) == 0:
        return cells
    boxes, scores = found.boxes[rows], found.scores[rows]
    mean_edge_m = np.cbrt(np.maximum(boxes[:, 3:6], _LEAST_EDGE_M).prod(axis=1))
    # from what surety on the decoder's name stays; none is surer than 1
    firm = np.full(len(cells.classes), 1.0 + _LEAD, np.float32)
    for k, name in enumerate(cells.classes):
        if name in KEPT_CLASSES:
            firm[k] = 0.0
        elif name == "wall":
            firm[k] = _SURE_WALL
    labels, confidence = cells.labels.copy(), cells.confidence.copy()
    _assign_names(
        np.ascontiguousarray(cells.centers_m),  # one layout, one compilation
        np.flatnonzero(cells.confidence < firm[cells.labels]),
        boxes,
        np.ascontiguousarray(rotations(torch.from_numpy(boxes)).numpy()),
        scores,
        scores / np.sqrt(mean_edge_m),
        np.array([index[found.labels[i]] for i in rows], np.int32),
        cells.cell_size_m,
        labels,
        confidence,
    )
    return replace(cells, labels=labels, confidence=confidence)


@njit(cache=True, nogil=True)
def _assign_names(
    centers_m: NDArray[np.float32],
    free: NDArray[np.int64],
    boxes: NDArray[np.float64],
    turns: NDArray[np.float64],
    scores: NDArray[np.float64],
    weights: NDArray[np.float64],
    names: NDArray[np.int32],
    size_m: float,
    labels: NDArray[np.int32],
    confidence: NDArray[np.float32],
) -> None:
    """Rename cells in place.

    Args:
        centers_m: (N, 3); free: (M,) rows of the cells that may be renamed.
        boxes: (B, 9); turns: (B, 3, 3) of them; scores, weights, names: (B,).
        size_m: edge of a cell.
        labels, confidence: (N,) of the decoder, in and out.
    """
    margin = 0.5 * size_m
    best = np.zeros(len(free))
    said = confidence.copy()  # by the decoder, while weights are compared
    for b in range(len(boxes)):
        half = 0.5 * boxes[b, 3:6]
        reach = np.sqrt((half * half).sum()) + 2.0 * margin
        for m in range(len(free)):
            i = free[m]
            x = centers_m[i, 0] - boxes[b, 0]
            y = centers_m[i, 1] - boxes[b, 1]
            z = centers_m[i, 2] - boxes[b, 2]
            if abs(x) > reach or abs(y) > reach or abs(z) > reach or said[i] >= scores[b] + _LEAD:
                continue
            outside = 0.0
            for axis in range(3):
                along = x * turns[b, 0, axis] + y * turns[b, 1, axis] + z * turns[b, 2, axis]
                outside = max(outside, abs(along) - half[axis])
            if outside > margin:
                continue
            weight = weights[b] * np.exp(-_SHARPNESS * outside / size_m)
            if weight > best[m]:
                best[m] = weight
                labels[i] = names[b]
                confidence[i] = scores[b]
