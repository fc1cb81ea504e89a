"""What a box's score is worth once the map is asked: the probability that its name and place are right.

A network's scores are learned in the homes of its training, and promise too much elsewhere: thin evidence, names that
are often wrong, sizes that no such thing has, boxes around nothing. A logistic model over few features that can be
read of any map turns a score into a probability. It is fitted on homes with harder sensors and clutter than those of
training (``evaluate calibrate-scores``), and travels in the weights file.

Features of a box, all of them logarithms or differences, so that one weight each is enough:

    score       log-odds of the network's score
    name        log-odds of how often boxes of that name were right there; a Beta mean, so that what was said seldom
                stays near the mean of all
    plausible   how well size and height fit the name (:class:`~.class_priors.ClassPriors`)
    surface     occupied surface in the box against the surface of the box itself
    closed      occupied voxels in the box against those in a box that is 5 cm larger on each side: what has an edge
                there is a thing, what goes on is a piece of something larger
    rival       the best score of another box that claims much of the place, less the own one
    thin        smallest edge
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds, paired_iou
from embodied_perceptron.lift.class_priors import ClassPriors, shipped_priors
from embodied_perceptron.results import UNNAMED, Detections, VoxelSnapshot
from embodied_perceptron.scene.object_map import count_voxels

FEATURES = ("score", "name", "plausible", "surface", "closed", "rival", "thin")
LEAST_SCORE = 0.08  # of the network, of a box that a fit reads: as many wrong ones as a map ever weighs
COUNTED_SCORE = 0.2  # boxes of at least this score are counted for names
PRIOR_COUNT = 4.0  # boxes that the mean of all names weighs
_LEAST_PLAUSIBLE = -6.0
_AROUND_M = 0.05
_FEW = 5.0  # voxels that say nothing yet
_RIVAL_IOU = 0.25
_REFERENCE_VOXEL_M = 0.02
_AT_HOME = math.log(0.7 / 0.3)  # log-odds that a published name is right on homes like those of training
_LARGEST_DOUBT = 2.0

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reliability:
    """The model; :meth:`__call__` gives boxes their probabilities.

    Attributes:
        weights: of a constant and of each of :data:`FEATURES`.
        names: name -> (said, right) of boxes of at least :data:`COUNTED_SCORE`.
        priors: sizes and heights of things.

    Raises ``ValueError`` naming what is no such model.
    """

    weights: tuple[float, ...]
    names: Mapping[str, tuple[int, int]]
    priors: ClassPriors = field(default_factory=shipped_priors)

    def __post_init__(self) -> None:
        if len(self.weights) != 1 + len(FEATURES) or not np.isfinite(self.weights).all():
            raise ValueError(f"a model of scores has {1 + len(FEATURES)} finite weights, got {list(self.weights)}")
        for name, (said, right) in self.names.items():
            if not 0 <= right <= said:
                raise ValueError(f"{name!r} cannot have been right {right} of {said} times")

    def __call__(self, found: Detections, snapshot: VoxelSnapshot, floor_z_m: float) -> Detections:
        """The same boxes with the probability of each as its score, best first; what has no name keeps its own, which
        promises no name (:class:`~embodied_perceptron.inference.naming.Naming`).

        Args:
            found: of the network, world frame, with its own scores.
            snapshot: the map that the network looked at.
            floor_z_m: height of the floor.
        """
        named = np.flatnonzero([label != UNNAMED for label in found.labels])
        if len(named) == 0:
            return found
        table = box_features(found.take(named), snapshot, floor_z_m, self.names, self.priors)
        scores = found.scores.copy()
        scores[named] = 1.0 / (1.0 + np.exp(-(self.weights[0] + table @ np.array(self.weights[1:]))))
        order = np.argsort(-scores, kind="stable")
        return Detections(found.boxes, scores, found.labels, found.shares).take(order)

    def doubts(self, labels: Sequence[str]) -> F64:
        """(N,) log-odds in [-2, 0] by which names are right seldomer than on homes like those of training.

        Beside another source a name that the network alone says is held to that.
        """
        known = {label: name_log_odds(self.names, label) - _AT_HOME for label in set(labels) - {UNNAMED}}
        return np.clip([known.get(label, 0.0) for label in labels], -_LARGEST_DOUBT, 0.0)

    def as_dict(self) -> dict[str, Any]:
        """For a weights file."""
        names = {name: list(counts) for name, counts in sorted(self.names.items())}
        return {"features": list(FEATURES), "weights": [round(w, 5) for w in self.weights], "names": names}

    @classmethod
    def of_calibration(cls, calibration: Mapping[str, Any]) -> Reliability | None:
        """What a weights file says about its scores; None where it says nothing. Raises as :meth:`of_dict`."""
        values = calibration.get("reliability")
        return None if values is None else cls.of_dict(values)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Reliability:
        """Inverse of :meth:`as_dict`. Raises ``ValueError`` for features of another version, or what is no model."""
        try:
            features, weights = tuple(values["features"]), tuple(float(w) for w in values["weights"])
            names = {str(name): (int(said), int(right)) for name, (said, right) in values["names"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"no model of scores: {error!r}") from error
        if features != FEATURES:
            raise ValueError(f"the model of scores reads {', '.join(features)}; known: {', '.join(FEATURES)}")
        return cls(weights, names)


def name_log_odds(names: Mapping[str, tuple[int, int]], label: str) -> float:
    """How often boxes of a name are right, as log-odds of the Beta mean."""
    said, right = sum(n for n, _ in names.values()), sum(k for _, k in names.values())
    mean = (right + 1.0) / (said + 2.0)
    n, k = names.get(label, (0, 0))
    return float(_log_odds(np.array((k + PRIOR_COUNT * mean) / (n + PRIOR_COUNT))))


def box_features(
    found: Detections,
    snapshot: VoxelSnapshot,
    floor_z_m: float,
    names: Mapping[str, tuple[int, int]],
    priors: ClassPriors,
) -> F64:
    """(N, 7) :data:`FEATURES` of each box."""
    boxes = found.boxes
    name = {label: name_log_odds(names, label) for label in set(found.labels)}
    plausible = [
        priors.log_plausibility(label, box, floor_z_m, whole=False)
        for label, box in zip(found.labels, boxes, strict=True)
    ]
    inside, beside, _ = count_voxels(snapshot, boxes, _AROUND_M, widened_m=0.0)
    dx, dy, dz = boxes[:, 3], boxes[:, 4], boxes[:, 5]
    # as many voxels of the usual size as would cover half of the box
    to_usual = (snapshot.voxel_size_m / _REFERENCE_VOXEL_M) ** 2
    half_cover = (dx * dy + dx * dz + dy * dz) / _REFERENCE_VOXEL_M**2
    return np.stack(
        [
            _log_odds(found.scores),
            np.array([name[label] for label in found.labels]),
            np.maximum(plausible, _LEAST_PLAUSIBLE),
            np.log(inside * to_usual / (half_cover + _FEW) + 0.02),
            np.log((inside * to_usual + _FEW) / ((inside + beside) * to_usual + _FEW)),
            _best_rival(boxes, found.scores) - found.scores,
            np.log(boxes[:, 3:6].min(axis=1)),
        ],
        axis=1,
    )


def _best_rival(boxes: F64, scores: F64) -> F64:
    """(N,) best score of another box with IoU above 0.25; 0 without one. Of boxes that no fit ever sees none counts."""
    best = np.zeros(len(boxes))
    seen = np.flatnonzero(scores >= LEAST_SCORE)  # of a benchmark's boxes of any score hardly a tenth
    bounds, volume = Bounds.of(boxes[seen]), boxes[seen, 3:6].prod(axis=1)
    i, j = bounds.pairs_within(bounds, 0.0)
    # each pair once; IoU cannot exceed the ratio of the volumes
    near = (i < j) & (np.minimum(volume[i], volume[j]) > _RIVAL_IOU * np.maximum(volume[i], volume[j]))
    i, j = seen[i[near]], seen[j[near]]
    if len(i):
        rivals = paired_iou(torch.from_numpy(boxes[i]), torch.from_numpy(boxes[j])).numpy() > _RIVAL_IOU
        np.maximum.at(best, i[rivals], scores[j[rivals]])
        np.maximum.at(best, j[rivals], scores[i[rivals]])
    return best


def _log_odds(p: F64) -> F64:
    within = np.clip(p, 1e-4, 1.0 - 1e-4)
    odds: F64 = np.log(within / (1.0 - within))
    return odds
