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
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_rotations, paired_iou
from embodied_perceptron.lift.class_priors import ClassPriors, shipped_priors
from embodied_perceptron.results import UNNAMED, Detections, VoxelSnapshot

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
        """The same boxes with the probability of each as its score, best first.

        Args:
            found: of the network, world frame, with its own scores.
            snapshot: the map that the network looked at.
            floor_z_m: height of the floor.
        """
        if len(found) == 0:
            return found
        table = box_features(found, snapshot, floor_z_m, self.names, self.priors)
        scores = 1.0 / (1.0 + np.exp(-(self.weights[0] + table @ np.array(self.weights[1:]))))
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
    inside, around = count_voxels(boxes, snapshot, _AROUND_M)
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
            np.log((inside * to_usual + _FEW) / (around * to_usual + _FEW)),
            _best_rival(boxes, found.scores) - found.scores,
            np.log(boxes[:, 3:6].min(axis=1)),
        ],
        axis=1,
    )


def count_voxels(boxes: F64, snapshot: VoxelSnapshot, margin_m: float) -> tuple[F64, F64]:
    """(N,) occupied voxels in each box, and in each box that is larger by ``margin_m`` on all sides."""
    if len(boxes) == 0 or len(snapshot) == 0:
        return np.zeros(len(boxes)), np.zeros(len(boxes))
    rotations = box_rotations(boxes)
    reach = np.linalg.norm(boxes[:, 3:6] / 2 + margin_m, axis=1) + snapshot.voxel_size_m
    # voxels are sorted by x first
    first = np.searchsorted(snapshot.coords[:, 0], np.floor((boxes[:, 0] - reach) / snapshot.voxel_size_m), "left")
    last = np.searchsorted(snapshot.coords[:, 0], np.ceil((boxes[:, 0] + reach) / snapshot.voxel_size_m), "right")
    counts = _count(snapshot.mean_point_m, boxes[:, :3], boxes[:, 3:6] / 2, rotations, first, last, margin_m)
    return counts[:, 0], counts[:, 1]


@njit(cache=True, nogil=True)
def _count(
    points: NDArray[np.float32],
    centers: F64,
    halves: F64,
    rotations: F64,
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    margin_m: float,
) -> F64:
    counts = np.zeros((len(centers), 2))
    for n in range(len(centers)):
        R, half, center = rotations[n], halves[n], centers[n]
        radius2 = (half[0] + margin_m) ** 2 + (half[1] + margin_m) ** 2 + (half[2] + margin_m) ** 2
        for i in range(first[n], last[n]):
            x, y, z = points[i, 0] - center[0], points[i, 1] - center[1], points[i, 2] - center[2]
            if x * x + y * y + z * z > radius2:
                continue
            excess = -np.inf
            for axis in range(3):
                away = abs(R[0, axis] * x + R[1, axis] * y + R[2, axis] * z) - half[axis]
                excess = max(excess, away)
            if excess <= margin_m:
                counts[n, 1] += 1.0
                if excess <= 0.0:
                    counts[n, 0] += 1.0
    return counts


def _best_rival(boxes: F64, scores: F64) -> F64:
    """(N,) best score of another box with IoU above 0.25; 0 without one. Of boxes that no fit ever sees none counts."""
    best = np.zeros(len(boxes))
    seen = np.flatnonzero(scores >= LEAST_SCORE)  # of a benchmark's boxes of any score hardly a tenth
    order = seen[np.argsort(boxes[seen, 0], kind="stable")]
    i, j = _near_pairs(
        boxes[order, :3], 0.5 * np.linalg.norm(boxes[order, 3:6], axis=1), boxes[order, 3:6].prod(axis=1)
    )
    i, j = order[i], order[j]
    if len(i):
        rivals = paired_iou(torch.from_numpy(boxes[i]), torch.from_numpy(boxes[j])).numpy() > _RIVAL_IOU
        np.maximum.at(best, i[rivals], scores[j[rivals]])
        np.maximum.at(best, j[rivals], scores[i[rivals]])
    return best


@njit(cache=True, nogil=True)
def _near_pairs(centers: F64, reach: F64, volume: F64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of boxes, sorted by x, whose IoU may exceed 0.25.

    It cannot exceed the ratio of the volumes, nor be anything between spheres that do not touch.
    """
    first, second = [0 for _ in range(0)], [0 for _ in range(0)]
    widest = reach.max() if len(reach) else 0.0
    for i in range(len(centers)):
        for j in range(i + 1, len(centers)):
            if centers[j, 0] - centers[i, 0] > reach[i] + widest:
                break
            both = reach[i] + reach[j]
            if max(abs(centers[i, 1] - centers[j, 1]), abs(centers[i, 2] - centers[j, 2])) >= both:
                continue
            if centers[j, 0] - centers[i, 0] >= both:
                continue
            if min(volume[i], volume[j]) > _RIVAL_IOU * max(volume[i], volume[j]):
                first.append(i)
                second.append(j)
    return np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)


def _log_odds(p: F64) -> F64:
    within = np.clip(p, 1e-4, 1.0 - 1e-4)
    odds: F64 = np.log(within / (1.0 - within))
    return odds
