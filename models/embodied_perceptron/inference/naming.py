"""Class names of boxes and cells: when a box is published without a name, and which names cells take from boxes.

A network that knows presence gives for every box the probability that it holds an object, and the probability of each
class. Their ratio is the probability of the name, given the object: below :data:`NAME_SHARE` the object is published
without a name instead of under the nearest one. Where the weights file has a calibration of both
(:class:`~embodied_perceptron.inference.confidence_calibration.ConfidenceCalibration`), calibrated probabilities are
compared.

With a list of published names, the probabilities of all class names that map to one of them are summed: over the boxes
of one object (:func:`joined_by_name`), and over all names that an object was given (:func:`published_name`). Class
names outside of the list are published without a name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import rotations
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.suppression import same_thing_pairs
from embodied_perceptron.results import UNNAMED, Detections, SemanticVoxels

NAME_SHARE = 0.5  # least share of the probability of the object that its name must have
_LEAST = 0.05  # a lower presence is ignored
_MARGIN = 1e-6

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Naming:
    """Selection between the named and the unnamed box of an object.

    Attributes:
        shift: log-odds added to scores of unnamed boxes, so that equal scores mean equal precision of both kinds.
    """

    shift: float = 0.0

    def select(self, found: Detections) -> Detections:
        """Boxes of a network that are published, named and unnamed, best first: see :meth:`__call__`."""
        nameless = np.array([label == UNNAMED for label in found.labels], bool)
        if not nameless.any():
            return found
        kept, scores = self(found.boxes, found.scores, nameless)
        return replace(found.take(kept, scores), posteriors=_posteriors(found, kept, scores))

    def __call__(self, boxes: F64, scores: F64, nameless: NDArray[np.bool_]) -> tuple[NDArray[np.int64], F64]:
        """Rows of (N, 9) boxes to keep, in the order of their new scores, and these scores; ``nameless`` (N,) bool.

        An unnamed box is dropped where a named box of the same object is sure enough. Otherwise it stays, with a score
        above all names of its object. Named boxes stay unchanged.
        """
        rows = np.flatnonzero(nameless & (scores >= _LEAST))
        kept, rescored = ~nameless, scores.copy()
        if len(rows):
            kept[rows] = True
            rescored[rows] = _shifted(scores[rows], self.shift)
            named = np.flatnonzero(~nameless)
            thing, name = same_thing_pairs(boxes, rows, named)
            sure = scores[name] >= NAME_SHARE * scores[thing]
            kept[thing[sure]] = False
            np.maximum.at(rescored, thing[~sure], np.minimum(scores[name[~sure]] + _MARGIN, 1.0))
        stay = np.flatnonzero(kept)
        order = stay[np.argsort(-rescored[stay], kind="stable")]
        return order, rescored[order]


USUAL = Naming()


def _posteriors(found: Detections, kept: NDArray[np.int64], scores: F64) -> tuple[dict[str, float], ...]:
    """Posterior of each of the ``kept`` boxes with its new score, from all boxes of its object."""
    said: list[dict[str, float]] = [{} for _ in range(len(found))]
    known = np.flatnonzero(found.scores >= _LEAST)
    spoken = np.intersect1d(kept, known)
    for a, b in zip(*(rows.tolist() for rows in same_thing_pairs(found.boxes, spoken, known)), strict=True):
        label = found.labels[b]
        said[a][label] = max(said[a].get(label, 0.0), float(found.scores[b]))
    return tuple(
        _posterior(said[i], found.labels[i], float(score)) for i, score in zip(kept.tolist(), scores, strict=True)
    )


def _posterior(said: Mapping[str, float], label: str, score: float) -> dict[str, float]:
    """Posterior over names: the box's own name has its score, other names share the rest.

    ``said``: name -> best probability of a box of the object; of :data:`UNNAMED`, that an object is there.
    """
    names = {name: p for name, p in said.items() if name not in (label, UNNAMED)}
    if label == UNNAMED:
        exists, room = score, score
    else:
        # the unnamed box gives the probability of the object; other names share what its own name leaves
        exists = said.get(UNNAMED, min(score + sum(names.values()), 1.0))
        room = max(exists - score, 0.0)
    total = sum(names.values())
    names = {name: p * min(1.0, room / total) for name, p in names.items()} if total > 0 else {}
    rest = max(room - sum(names.values()), 0.0)
    own = {} if label == UNNAMED else {label: score}
    return {**own, **names, **({UNNAMED: rest} if rest > 0 or not (own or names) else {})}


def published_name(votes: Mapping[str, float], name_of: Callable[[str], str]) -> str:
    """The name with the largest sum of ``votes`` over the labels that stand for it.

    ``name_of``: label -> name, :data:`~embodied_perceptron.results.UNNAMED` for labels outside of the list, which count
    as one name; on a tie another name wins.
    """
    sums: dict[str, float] = {}
    for label, share in votes.items():
        name = name_of(label)
        sums[name] = sums.get(name, 0.0) + share
    return max(sorted(sums), key=lambda name: (sums[name], name != UNNAMED), default=UNNAMED)


def joined_by_name(found: Detections, name_of: Callable[[str], str]) -> Detections:
    """Join boxes of one object whose labels map to one name, best first.

    The best box stays. Its score is the sum of the largest score of each label, at most 1; its posterior has all
    labels. Boxes without a published name and single boxes stay unchanged.
    """
    names = np.array([name_of(label) for label in found.labels], dtype=object)
    absorbed = np.zeros(len(found), bool)
    joined: dict[int, tuple[int, ...]] = {}  # row -> rows of the object under that name
    for name in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names == name)
        if name == UNNAMED or len({found.labels[i] for i in rows}) < 2:
            continue
        rows = rows[np.argsort(-found.scores[rows], kind="stable")]
        first, second = same_thing_pairs(found.boxes, rows, rows)
        for row in rows.tolist():
            others = [k for k in second[first == row].tolist() if k != row and not absorbed[k] and k not in joined]
            if absorbed[row] or not others:
                continue
            absorbed[others] = True
            joined[row] = (row, *others)
    if not joined:
        return found
    scores = found.scores.copy()
    posteriors = [found.posterior(k) for k in range(len(found))]
    for row, members in joined.items():
        best: dict[str, float] = {}
        said: dict[str, float] = {}
        for k in members:
            best[found.labels[k]] = max(best.get(found.labels[k], 0.0), float(found.scores[k]))
            for label, p in posteriors[k].items():
                said[label] = max(said.get(label, 0.0), p)
        scores[row] = min(1.0, sum(best.values()))
        total = max(sum(said.values()), 1.0)
        posteriors[row] = {label: p / total for label, p in said.items()}
    stay = np.flatnonzero(~absorbed)
    stay = stay[np.argsort(-scores[stay], kind="stable")]
    return replace(found, scores=scores, posteriors=tuple(posteriors)).take(stay)


def _shifted(scores: F64, shift: float) -> F64:
    if shift == 0.0:
        return scores
    p = np.clip(scores, 1e-6, 1.0 - 1e-6)
    moved: F64 = 1.0 / (1.0 + np.exp(-(np.log(p / (1.0 - p)) + shift)))
    return moved


def shift_between(nameless: float, named: float) -> float:
    """Difference of log-odds from the score ``nameless`` to ``named``. Raises ``ValueError`` outside of (0, 1)."""
    for score in (nameless, named):
        if not 0.0 < score < 1.0:
            raise ValueError(f"a score threshold must be within (0, 1), got {score}")
    return math.log(named / (1.0 - named)) - math.log(nameless / (1.0 - nameless))


# --------------------------------------------------------------------------------------------------------------------
# Names of cells from boxes
#
# The dense decoder names a cell by what surrounds it; a box is named as a whole, twice, and is more often right. So a
# cell inside of a box takes the box's name, unless the decoder is much surer. Cells are neither added nor removed: the
# decoder knows better than a box which space is occupied.

MIN_SCORE = 0.1  # boxes with lower scores name no cells
# Hollow or thin objects, whose boxes hold other objects or lie in other boxes: these cells keep the decoder's name.
KEPT_CLASSES = frozenset({"floor", "carpet", "mat", "blanket", "door", "doorframe"})
_SURE_WALL = 0.8  # a surer wall keeps its name; less sure ones are often objects on a wall
_LEAD = 0.5  # by which the decoder must be surer than a box
_SHARPNESS = 1.4  # how fast the weight of a box fades outside of it, per edge of a cell
_LEAST_EDGE_M = 0.05


def names_from_boxes(cells: SemanticVoxels, found: Detections, min_score: float = MIN_SCORE) -> SemanticVoxels:
    """Give cells the names of the boxes that hold them; their confidence is then the box's score.

    A box names cells whose center lies in it or less than half a cell outside. Of several boxes the one with the
    highest weight counts: its score over the square root of its mean edge, since small objects stand in or on large
    ones.

    Args:
        cells: occupied cells with the decoder's names.
        found: boxes in the same world, one for every possible name of an object. Names that cells cannot have, and
            :data:`KEPT_CLASSES`, are ignored.
        min_score: boxes with lower scores are ignored.
    """
    index = {name: k for k, name in enumerate(cells.classes) if name not in KEPT_CLASSES}
    rows = np.flatnonzero((found.scores >= min_score) & np.array([name in index for name in found.labels], bool))
    if len(rows) == 0 or len(cells.labels) == 0:
        return cells
    boxes, scores = found.boxes[rows], found.scores[rows]
    mean_edge_m = np.cbrt(np.maximum(boxes[:, 3:6], _LEAST_EDGE_M).prod(axis=1))
    # confidence from which the decoder's name stays; never reached for most classes
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
    decoded = confidence.copy()  # confidences change while weights are compared
    for b in range(len(boxes)):
        half = 0.5 * boxes[b, 3:6]
        reach = np.sqrt((half * half).sum()) + 2.0 * margin
        for m in range(len(free)):
            i = free[m]
            x = centers_m[i, 0] - boxes[b, 0]
            y = centers_m[i, 1] - boxes[b, 1]
            z = centers_m[i, 2] - boxes[b, 2]
            if abs(x) > reach or abs(y) > reach or abs(z) > reach or decoded[i] >= scores[b] + _LEAD:
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
