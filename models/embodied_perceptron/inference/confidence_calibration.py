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

Where the model knows what names say of each other (:class:`~.context_rescoring.ContextRescoring`), the likeliest things
around a box and its own form change that probability.

Of a box without a name, of which the network says that something is there, the probability of that is made likewise,
of its score, surface, edges and thinness, and of

    named       log-odds of the best probability of a name for the same thing: what has a likely name is there
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.suppression import (
    OverlappingDetections,
    overlapping_detections,
    same_thing_pairs,
)
from embodied_perceptron.inference.class_priors import ClassPriors, shipped_priors
from embodied_perceptron.inference.context_rescoring import ContextRescoring
from embodied_perceptron.mapping.voxel_counts import count_voxels
from embodied_perceptron.results import UNNAMED, Certainty, Detections, VoxelSnapshot

FEATURES = ("score", "name", "plausible", "surface", "closed", "rival", "thin")
THING_FEATURES = ("score", "named", "surface", "closed", "thin")
LEAST_SCORE = 0.08  # of the network, of a box that a fit reads: as many wrong ones as a map ever weighs
COUNTED_SCORE = 0.2  # boxes of at least this score are counted for names
PRIOR_COUNT = 4.0  # boxes that the mean of all names weighs
_LEAST_PLAUSIBLE = -6.0
NO_NAME = 0.02  # probability of a name that no box says
_AROUND_M = 0.05
_FEW = 5.0  # voxels that say nothing yet
_REFERENCE_VOXEL_M = 0.02

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ConfidenceCalibration:
    """The model; :meth:`__call__` gives boxes their probabilities.

    Attributes:
        weights: of a constant and of each of :data:`FEATURES`.
        names: name -> (said, right) of boxes of at least :data:`COUNTED_SCORE`.
        things: as ``weights``, of :data:`THING_FEATURES`; () for a network that tells no things without a name.
        company: what names say of each other; None where each box is judged for itself.
        priors: sizes and heights of things.

    Raises ``ValueError`` naming what is no such model.
    """

    weights: tuple[float, ...]
    names: Mapping[str, tuple[int, int]]
    things: tuple[float, ...] = ()
    company: ContextRescoring | None = None
    priors: ClassPriors = field(default_factory=shipped_priors)

    def __post_init__(self) -> None:
        if len(self.weights) != 1 + len(FEATURES) or not np.isfinite(self.weights).all():
            raise ValueError(f"a model of scores has {1 + len(FEATURES)} finite weights, got {list(self.weights)}")
        if self.things and (len(self.things) != 1 + len(THING_FEATURES) or not np.isfinite(self.things).all()):
            count = 1 + len(THING_FEATURES)
            raise ValueError(f"a model of things without a name has {count} finite weights, got {list(self.things)}")
        for name, (said, right) in self.names.items():
            if not 0 <= right <= said:
                raise ValueError(f"{name!r} cannot have been right {right} of {said} times")

    def __call__(self, found: Detections, snapshot: VoxelSnapshot, floor_z_m: float) -> Detections:
        """The same boxes with the probability of each as its score, best first: that name and place are right, or of a
        box without a name, that something is there. Without a model of those, they keep their scores.

        Args:
            found: of the network, world frame, with its own scores.
            snapshot: the map that the network looked at.
            floor_z_m: height of the floor.

        Raises ``ValueError`` for scores that are probabilities already.
        """
        found.require(Certainty.RAW)
        plain = np.array([label == UNNAMED for label in found.labels], bool)
        named, things = np.flatnonzero(~plain), np.flatnonzero(plain)
        scores = found.scores.copy()
        evidence = borne_out(found.boxes, snapshot)
        if len(named):
            scores[named] = self._of_names(found.take(named), evidence[named], floor_z_m)
        if self.things and len(things):
            best = best_names(found.boxes, things, named, scores[named])
            scores[things] = probabilities(self.things, thing_features(found.take(things), evidence[things], best))
        order = np.argsort(-scores, kind="stable")
        return found.take(order, scores[order], Certainty.CALIBRATED)

    def _of_names(self, found: Detections, evidence: F64, floor_z_m: float) -> F64:
        overlapping = conflicts_of(found)
        table = box_features(found, evidence, overlapping, floor_z_m, self.names, self.priors)
        odds = weighed(self.weights, table)
        if self.company is not None:
            odds = self.company(found.boxes, found.labels, odds, overlapping, box_forms(found.boxes, table, floor_z_m))
        return np.asarray(scipy.special.expit(odds))

    def as_dict(self) -> dict[str, Any]:
        """For a weights file."""
        names = {name: list(counts) for name, counts in sorted(self.names.items())}
        known = {"features": list(FEATURES), "weights": [round(w, 5) for w in self.weights], "names": names}
        if self.things:
            known |= {"thing_features": list(THING_FEATURES), "things": [round(w, 5) for w in self.things]}
        if self.company is not None:
            known["company"] = self.company.as_dict()
        return known

    @classmethod
    def of_calibration(cls, calibration: Mapping[str, Any]) -> ConfidenceCalibration | None:
        """What a weights file says about its scores; None where it says nothing. Raises as :meth:`of_dict`."""
        values = calibration.get("reliability")
        return None if values is None else cls.of_dict(values)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> ConfidenceCalibration:
        """Inverse of :meth:`as_dict`. Raises ``ValueError`` for features of another version, or what is no model."""
        try:
            features, weights = tuple(values["features"]), tuple(float(w) for w in values["weights"])
            names = {str(name): (int(said), int(right)) for name, (said, right) in values["names"].items()}
            of_things = tuple(values.get("thing_features", THING_FEATURES))
            things = tuple(float(w) for w in values.get("things", ()))
            company = values.get("company")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"no model of scores: {error!r}") from error
        if features != FEATURES:
            raise ValueError(f"the model of scores reads {', '.join(features)}; known: {', '.join(FEATURES)}")
        if of_things != THING_FEATURES:
            known = ", ".join(THING_FEATURES)
            raise ValueError(f"the model of things without a name reads {', '.join(of_things)}; known: {known}")
        return cls(weights, names, things, None if company is None else ContextRescoring.of_dict(company))


def weighed(weights: Sequence[float], table: F64) -> F64:
    """(N,) log-odds of a logistic model with a constant and one weight per column of (N, C) ``table``."""
    odds: F64 = weights[0] + table @ np.array(weights[1:])
    return odds


def probabilities(weights: Sequence[float], table: F64) -> F64:
    """(N,) of :func:`weighed`."""
    return np.asarray(scipy.special.expit(weighed(weights, table)))


def name_log_odds(names: Mapping[str, tuple[int, int]], labels: Iterable[str]) -> dict[str, float]:
    """How often boxes of some names are right, as log-odds of the Beta mean."""
    said, right = sum(n for n, _ in names.values()), sum(k for _, k in names.values())
    mean = (right + 1.0) / (said + 2.0)
    known = [(label, *names.get(label, (0, 0))) for label in labels]
    odds = log_odds(np.array([(k + PRIOR_COUNT * mean) / (n + PRIOR_COUNT) for _, n, k in known]))
    return {label: float(value) for (label, _, _), value in zip(known, odds, strict=True)}


def box_features(
    found: Detections,
    evidence: F64,
    overlapping: OverlappingDetections,
    floor_z_m: float,
    names: Mapping[str, tuple[int, int]],
    priors: ClassPriors,
) -> F64:
    """(N, 7) :data:`FEATURES` of each box; ``evidence``: of :func:`borne_out`, ``overlapping``: of
    :func:`conflicts_of`."""
    boxes = found.boxes
    name = name_log_odds(names, set(found.labels))
    plausible = [
        priors.log_plausibility(label, box, floor_z_m, whole=False)
        for label, box in zip(found.labels, boxes, strict=True)
    ]
    return np.stack(
        [
            log_odds(found.scores),
            np.array([name[label] for label in found.labels]),
            np.maximum(plausible, _LEAST_PLAUSIBLE),
            *evidence.T,
            overlapping.best_scores(found.scores) - found.scores,
            np.log(boxes[:, 3:6].min(axis=1)),
        ],
        axis=1,
    )


def box_forms(boxes: F64, table: F64, floor_z_m: float) -> F64:
    """(N, 7) :data:`~.context_rescoring.FORM` of (N, 9) boxes; ``table``: their :data:`FEATURES`."""
    bounds = Bounds.of(boxes)
    size = [np.log(boxes[:, 5]), np.log(boxes[:, 3:5].max(axis=1)), np.log(boxes[:, 3:5].min(axis=1))]
    known = [table[:, FEATURES.index(name)] for name in ("surface", "closed")]
    return np.stack([*size, bounds.low[:, 2] - floor_z_m, bounds.high[:, 2] - floor_z_m, *known], axis=1)


def thing_features(found: Detections, evidence: F64, best: F64) -> F64:
    """(N, 5) :data:`THING_FEATURES` of boxes without a name; ``evidence``: of :func:`borne_out`, ``best``: of
    :func:`best_names`."""
    thin = np.log(found.boxes[:, 3:6].min(axis=1))
    return np.stack([log_odds(found.scores), log_odds(best), *evidence.T, thin], axis=1)


def best_names(boxes: F64, things: NDArray[np.int64], named: NDArray[np.int64], probability: F64) -> F64:
    """(T,) best probability of a name for each thing; ``probability`` of the rows ``named`` of (N, 9) ``boxes``."""
    best = np.full(len(boxes), NO_NAME)
    every = np.zeros(len(boxes))
    every[named] = probability
    thing, name = same_thing_pairs(boxes, things, named)
    np.maximum.at(best, thing, every[name])
    return best[things]


def borne_out(boxes: F64, snapshot: VoxelSnapshot) -> F64:
    """(N, 2) the features surface and closed of (N, 9) boxes."""
    boxes, which = np.unique(boxes, axis=0, return_inverse=True)  # one thing under several names
    inside, beside, _ = count_voxels(snapshot, boxes, _AROUND_M, widened_m=0.0)
    dx, dy, dz = boxes[:, 3], boxes[:, 4], boxes[:, 5]
    # as many voxels of the usual size as would cover half of the box
    to_usual = (snapshot.voxel_size_m / _REFERENCE_VOXEL_M) ** 2
    half_cover = (dx * dy + dx * dz + dy * dz) / _REFERENCE_VOXEL_M**2
    surface: F64 = np.log(inside * to_usual / (half_cover + _FEW) + 0.02)
    closed: F64 = np.log((inside * to_usual + _FEW) / ((inside + beside) * to_usual + _FEW))
    return np.stack([surface, closed], axis=1)[which.reshape(-1)]  # NumPy 2.0 gives it a second axis


def conflicts_of(found: Detections) -> OverlappingDetections:
    """Detections that overlap; of boxes that no fit ever sees none counts: hardly a tenth of a benchmark's boxes of any
    score is left."""
    return overlapping_detections(found.boxes, np.flatnonzero(found.scores >= LEAST_SCORE))


def log_odds(p: F64) -> F64:
    """Of (N,) probabilities, those near 0 and 1 held within bounds."""
    within = np.clip(p, 1e-4, 1.0 - 1e-4)
    odds: F64 = np.log(within / (1.0 - within))
    return odds
