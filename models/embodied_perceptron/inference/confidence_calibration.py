"""Calibrated probability that the name and place of a box are right.

A network's scores are learned in its training homes and are too high elsewhere: thin evidence, confused names,
implausible sizes, boxes around nothing. A logistic model over a few features that any map offers turns a score into a
probability. It is fitted on homes with noisier sensors and more clutter than those of training (``evaluate
calibrate-scores``), and is stored in the weights file.

Features of a box, all logarithms or differences, so that one weight each is enough:

    score       log-odds of the network's score
    name        log-odds of the precision of boxes of that name; a Beta mean, so that rare names stay near the mean
    plausible   log-plausibility of size and height for the name (:class:`~.class_priors.ClassPriors`)
    surface     occupied surface in the box against the surface of the box
    closed      occupied voxels in the box against those in a box that is 5 cm larger on each side: an object ends,
                a piece of a larger object continues
    rival       best score of an overlapping box, less the own score
    thin        smallest edge

Where the model has context rescoring (:class:`ContextRescoring`), the likeliest objects around a box and its own shape
change that probability.

The probability that an unnamed box holds an object comes from its score, surface, closed and thin, and from

    named       log-odds of the best probability of a name for the same object
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.suppression import OverlappingDetections, overlapping_detections, same_thing_pairs
from embodied_perceptron.inference.class_priors import ClassPriors, shipped_priors
from embodied_perceptron.mapping.voxel_counts import count_voxels
from embodied_perceptron.results import UNNAMED, Certainty, Detections, VoxelSnapshot

# --------------------------------------------------------------------------------------------------------------------
# Context rescoring
#
# A name is likelier among objects that it occurs with, and for boxes of its usual shape: a table by a couch, a counter
# by a stove. The network sees little beyond an object; names around it, other names at the same place, size and height
# separate classes of similar shape. This is low-dimensional attention between names: every name has a query, and its
# evidence has values:
#
#     z = scale * log_odds(p) + offset[name] + <query[name], context>
#     context = sum over relations r and names k of value[r, k] * p_max(r, k) + sum over f of own_value[f] * own[f]
#
# ``p_max(r, k)`` is the best probability of a box named k that is within one of :data:`GAPS_M` on the ground, has its
# middle within :data:`NEAR_M`, or overlaps (:data:`~embodied_perceptron.geometry.suppression.CONFLICT_IOU`; such a box
# is in no other relation). ``own`` are standardised numbers of the box (:data:`FORM`), and squares and products of
# those for size and height. A low dimension generalises: one weight for each pair of names, or two layers of attention,
# overfits the homes of the fit.

GAPS_M = (0.1, 0.6, 2.0)  # between what two boxes cover of the ground
NEAR_M = 0.8  # between the middles of two boxes
RELATIONS = (*(f"within {gap_m} m" for gap_m in GAPS_M), f"middle within {NEAR_M} m", "same place")
# logarithms of the edges in metres (vertical, longer and shorter horizontal one), ends above the floor in metres, and
# two features of :mod:`.confidence_calibration`
FORM = ("tall", "long", "short", "bottom", "top", "surface", "closed")
MIN_EVIDENCE = 0.05  # least probability of a box that counts as evidence for others
_PRODUCTS = np.triu_indices(FORM.index("top") + 1)  # of the first five, squares among them
OWN_NUMBERS = len(FORM) + len(_PRODUCTS[0])
_FARTHEST = 3.0  # standard deviations
# field of a model -> its key in weights files; keys stay, so that old files load
_STORED = {
    "query": "reads",
    "value": "tells",
    "own_value": "forms",
    "form_mean": "form_mean",
    "form_scale": "form_scale",
    "offset": "offset",
}

F64 = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ContextRescoring:
    """Tables of context rescoring for K names.

    Attributes:
        names: K distinct names; a box of another name is no evidence and is only scaled.
        query: (K, D).
        value: (R, K, D), one per relation of :data:`RELATIONS`.
        own_value: (F, D), one per number of :func:`own_numbers`.
        form_mean, form_scale: (7,) of :data:`FORM` among all boxes.
        offset: (K,) log-odds.
        scale: of the log-odds before.

    Raises ``ValueError`` for tables that do not fit together.
    """

    names: tuple[str, ...]
    query: F64
    value: F64
    own_value: F64
    form_mean: F64
    form_scale: F64
    offset: F64
    scale: float = 1.0

    def __post_init__(self) -> None:
        count, form = len(self.names), (len(FORM),)
        if len(set(self.names)) != count:
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise ValueError(f"names of context rescoring must be distinct, got {', '.join(twice)} twice")
        query = count, self.query.shape[-1] if self.query.ndim else 0
        wanted = {"query": query, "value": (len(RELATIONS), *query), "own_value": (OWN_NUMBERS, query[1])}
        for name, shape in (wanted | {"form_mean": form, "form_scale": form, "offset": (count,)}).items():
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} of {count} names must be {shape}, got {getattr(self, name).shape}")
        numbers = (getattr(self, name) for name in _STORED)
        if not all(np.isfinite(v).all() for v in numbers) or not (self.scale > 0 and (self.form_scale > 0).all()):
            raise ValueError("tables of context rescoring must be finite, and its scales above 0")

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def rows(self, labels: Sequence[str]) -> Rows:
        """(N,) index into ``names`` of each label; -1 where there is none."""
        return np.array([self._index.get(label, -1) for label in labels], np.int64)

    def __call__(
        self, boxes: F64, labels: Sequence[str], odds: F64, overlapping: OverlappingDetections, form: F64
    ) -> F64:
        """(N,) log-odds that a box's name and place are right, given the boxes around it.

        Args:
            boxes: (N, 9).
            labels: N names.
            odds: (N,) log-odds without context.
            overlapping: overlaps of ``boxes``; its counted boxes may be evidence.
            form: (N, 7) :data:`FORM` of each.
        """
        label = self.rows(labels)
        known = label >= 0
        z = self.scale * odds
        z[known] += self.offset[label[known]]
        present, evidence = context_evidence(boxes, label, odds, overlapping)
        around = np.tensordot(evidence, self.value[:, present].astype(np.float32), axes=((0, 1), (0, 1)))  # (N, D)
        context = around[known] + own_numbers(form[known], self.form_mean, self.form_scale) @ self.own_value
        z[known] += (context * self.query[label[known]]).sum(axis=1)
        return z

    def as_dict(self) -> dict[str, Any]:
        """For a weights file, of JSON's types."""
        return {
            "relations": list(RELATIONS),
            "form": list(FORM),
            "names": list(self.names),
            **{key: getattr(self, name).round(3).tolist() for name, key in _STORED.items()},
            "scale": round(self.scale, 4),
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> ContextRescoring:
        """Inverse of :meth:`as_dict`. Raises ``ValueError`` for other relations or an invalid model."""
        try:
            relations, form = (tuple(map(str, values.get(key, ()))) for key in ("relations", "form"))
            names = tuple(str(name) for name in values["names"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no model of context rescoring: {error!r}") from error
        if relations != RELATIONS or form != FORM:
            raise ValueError(
                "context rescoring was fitted by another version (relations "
                f"{', '.join(relations) or 'none'}; form {', '.join(form) or 'none'}): fit it again, by evaluate "
                "calibrate-scores"
            )
        try:
            tables = {name: np.asarray(values[key], np.float64) for name, key in _STORED.items()}
            scale = float(values["scale"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no model of context rescoring: {error!r}") from error
        return cls(names, **tables, scale=scale)


def own_numbers(form: F64, mean: F64, scale: F64) -> F64:
    """(N, 7) :data:`FORM` -> (N, F) standardised, with squares and products of sizes and heights."""
    own = np.clip((form - mean) / scale, -_FARTHEST, _FARTHEST)
    i, j = _PRODUCTS
    return np.concatenate([own, own[:, i] * own[:, j] - (i == j)], axis=1)


def context_evidence(
    boxes: F64, label: Rows, odds: F64, overlapping: OverlappingDetections
) -> tuple[Rows, NDArray[np.float32]]:
    """Names with evidence, (P,) ascending, and (R, P, N) best probability of each in each relation to each box.

    Args:
        boxes: (N, 9).
        label: (N,) index of the name; boxes with -1 are no evidence.
        odds: (N,) log-odds.
        overlapping: overlaps of ``boxes``; its counted boxes may be evidence.
    """
    probability = scipy.special.expit(odds)
    counted = overlapping.counted
    sources = counted[(probability[counted] >= MIN_EVIDENCE) & (label[counted] >= 0)]
    sources = sources[np.argsort(label[sources], kind="stable")]
    present, first = np.unique(label[sources], return_index=True)
    evidence = np.zeros((len(RELATIONS), len(present), len(boxes)), np.float32)
    if len(sources) == 0:
        return present, evidence
    row = np.full(len(boxes), -1)
    row[sources] = np.arange(len(sources))
    is_source = row[overlapping.by] >= 0
    same = np.zeros((len(sources), len(boxes)), bool)
    same[row[overlapping.by[is_source]], overlapping.of[is_source]] = True
    other = ~same
    other[np.arange(len(sources)), sources] = False
    gaps_m = _gaps_m(boxes, sources, probability[sources])
    near = scipy.spatial.distance.cdist(boxes[sources, :3], boxes[:, :3], "sqeuclidean") < NEAR_M**2
    weight = probability[sources, None].astype(np.float32)
    for r, holds in enumerate([*(other & (gaps_m < gap_m) for gap_m in GAPS_M), other & near, same]):
        evidence[r] = np.maximum.reduceat(weight * holds, first, axis=0)
    return present, evidence


def _gaps_m(boxes: F64, sources: Rows, weight: F64) -> F64:
    """(S, N) distance on the ground between the boxes ``sources`` and all boxes, metres: between bounds along the main
    direction of the sources, so that rotating the room changes nothing."""
    direction = 0.25 * np.angle((weight * np.exp(4j * boxes[sources, 6])).sum())  # the same every 90 degrees
    c, s = np.cos(direction), np.sin(direction)
    bounds = Bounds.of(boxes, np.array([[c, s], [-s, c]]))
    low, high = bounds.low[:, :2], bounds.high[:, :2]
    apart = np.maximum(low[sources, None] - high, low - high[sources, None])  # (S, N, 2)
    gaps_m: F64 = np.hypot(*np.moveaxis(np.maximum(apart, 0.0), -1, 0))
    return gaps_m


# --------------------------------------------------------------------------------------------------------------------

FEATURES = ("score", "name", "plausible", "surface", "closed", "rival", "thin")
THING_FEATURES = ("score", "named", "surface", "closed", "thin")
LEAST_SCORE = 0.08  # least network score of boxes for a fit: with as many wrong boxes as in use
COUNTED_SCORE = 0.2  # boxes of at least this score are counted for names
PRIOR_COUNT = 4.0  # weight of the mean of all names, in boxes
_LEAST_PLAUSIBLE = -6.0
NO_NAME = 0.02  # probability of a name without a box
_AROUND_M = 0.05
_FEW = 5.0  # so many voxels are no evidence yet
_REFERENCE_VOXEL_M = 0.02


@dataclass(frozen=True, eq=False)
class ConfidenceCalibration:
    """Model of the calibrated probability of boxes.

    Attributes:
        weights: of a constant and of each of :data:`FEATURES`.
        names: name -> (said, right) of boxes of at least :data:`COUNTED_SCORE`.
        things: as ``weights``, of :data:`THING_FEATURES`; () for a network without unnamed boxes.
        context: context rescoring; None = none.

    Raises ``ValueError`` for an invalid model.
    """

    weights: tuple[float, ...]
    names: Mapping[str, tuple[int, int]]
    things: tuple[float, ...] = ()
    context: ContextRescoring | None = None

    def __post_init__(self) -> None:
        kinds = ("scores", self.weights, 1 + len(FEATURES)), ("unnamed objects", self.things, 1 + len(THING_FEATURES))
        for kind, weights, count in kinds if self.things else kinds[:1]:
            if len(weights) != count or not np.isfinite(weights).all():
                raise ValueError(f"a model of {kind} has {count} finite weights, got {list(weights)}")
        for name, (said, right) in self.names.items():
            if not 0 <= right <= said:
                raise ValueError(f"{name!r} cannot have been right {right} of {said} times")

    def __call__(self, found: Detections, snapshot: VoxelSnapshot, floor_z_m: float) -> Detections:
        """Boxes with calibrated probabilities as scores, best first: that name and place are right, or for an unnamed
        box that an object is there. Without a model of unnamed boxes these keep their scores.

        Args:
            found: boxes of the network, world frame, with raw scores.
            snapshot: the map that the network read.
            floor_z_m: height of the floor.

        Raises ``ValueError`` for scores that are calibrated already.
        """
        found.require(Certainty.RAW)
        plain = np.array([label == UNNAMED for label in found.labels], bool)
        named, things = np.flatnonzero(~plain), np.flatnonzero(plain)
        scores = found.scores.copy()
        support = surface_support(found.boxes, snapshot)
        if len(named):
            scores[named] = self._of_names(found.take(named), support[named], floor_z_m)
        if self.things and len(things):
            best = best_names(found.boxes, things, named, scores[named])
            scores[things] = probabilities(self.things, thing_features(found.take(things), support[things], best))
        order = np.argsort(-scores, kind="stable")
        return found.take(order, scores[order], Certainty.CALIBRATED)

    def _of_names(self, found: Detections, support: F64, floor_z_m: float) -> F64:
        overlapping = conflicts_of(found)
        table = box_features(found, support, overlapping, floor_z_m, self.names, shipped_priors())
        odds = weighed(self.weights, table)
        if self.context is not None:
            odds = self.context(found.boxes, found.labels, odds, overlapping, box_forms(found.boxes, table, floor_z_m))
        return np.asarray(scipy.special.expit(odds))

    def as_dict(self) -> dict[str, Any]:
        """For a weights file."""
        names = {name: list(counts) for name, counts in sorted(self.names.items())}
        known = {"features": list(FEATURES), "weights": [round(w, 5) for w in self.weights], "names": names}
        if self.things:
            known |= {"thing_features": list(THING_FEATURES), "things": [round(w, 5) for w in self.things]}
        if self.context is not None:
            known["company"] = self.context.as_dict()  # its key in weights files: it stays
        return known

    @classmethod
    def of_calibration(cls, calibration: Mapping[str, Any]) -> ConfidenceCalibration | None:
        """The model in the calibration of a weights file; None where there is none. Raises as :meth:`of_dict`."""
        values = calibration.get("reliability")
        return None if values is None else cls.of_dict(values)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> ConfidenceCalibration:
        """Inverse of :meth:`as_dict`. Raises ``ValueError`` for features of another version or an invalid model."""
        try:
            features, weights = tuple(values["features"]), tuple(float(w) for w in values["weights"])
            names = {str(name): (int(said), int(right)) for name, (said, right) in values["names"].items()}
            of_things = tuple(values.get("thing_features", THING_FEATURES))
            things = tuple(float(w) for w in values.get("things", ()))
            context = values.get("company")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"no model of scores: {error!r}") from error
        for kind, read, known in (("scores", features, FEATURES), ("unnamed objects", of_things, THING_FEATURES)):
            if read != known:
                raise ValueError(f"the model of {kind} reads {', '.join(read)}; known: {', '.join(known)}")
        return cls(weights, names, things, None if context is None else ContextRescoring.of_dict(context))


def weighed(weights: Sequence[float], table: F64) -> F64:
    """(N,) log-odds of a logistic model with a constant and one weight per column of (N, C) ``table``."""
    odds: F64 = weights[0] + table @ np.array(weights[1:])
    return odds


def probabilities(weights: Sequence[float], table: F64) -> F64:
    """(N,) probabilities of :func:`weighed`."""
    return np.asarray(scipy.special.expit(weighed(weights, table)))


def name_log_odds(names: Mapping[str, tuple[int, int]], labels: Iterable[str]) -> dict[str, float]:
    """Precision of boxes of each label, as log-odds of the Beta mean."""
    said, right = sum(n for n, _ in names.values()), sum(k for _, k in names.values())
    mean = (right + 1.0) / (said + 2.0)
    known = [(label, *names.get(label, (0, 0))) for label in labels]
    odds = log_odds(np.array([(k + PRIOR_COUNT * mean) / (n + PRIOR_COUNT) for _, n, k in known]))
    return {label: float(value) for (label, _, _), value in zip(known, odds, strict=True)}


def box_features(
    found: Detections,
    support: F64,
    overlapping: OverlappingDetections,
    floor_z_m: float,
    names: Mapping[str, tuple[int, int]],
    priors: ClassPriors,
) -> F64:
    """(N, 7) :data:`FEATURES` of each box; ``support``: of :func:`surface_support`, ``overlapping``: of
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
            *support.T,
            overlapping.best_scores(found.scores) - found.scores,
            np.log(boxes[:, 3:6].min(axis=1)),
        ],
        axis=1,
    )


def box_forms(boxes: F64, table: F64, floor_z_m: float) -> F64:
    """(N, 7) :data:`FORM` of (N, 9) boxes; ``table``: their :data:`FEATURES`."""
    bounds = Bounds.of(boxes)
    size = [np.log(boxes[:, 5]), np.log(boxes[:, 3:5].max(axis=1)), np.log(boxes[:, 3:5].min(axis=1))]
    known = [table[:, FEATURES.index(name)] for name in ("surface", "closed")]
    return np.stack([*size, bounds.low[:, 2] - floor_z_m, bounds.high[:, 2] - floor_z_m, *known], axis=1)


def thing_features(found: Detections, support: F64, best: F64) -> F64:
    """(N, 5) :data:`THING_FEATURES` of unnamed boxes; ``support``: of :func:`surface_support`, ``best``: of
    :func:`best_names`."""
    thin = np.log(found.boxes[:, 3:6].min(axis=1))
    return np.stack([log_odds(found.scores), log_odds(best), *support.T, thin], axis=1)


def best_names(boxes: F64, things: NDArray[np.int64], named: NDArray[np.int64], probability: F64) -> F64:
    """(T,) best probability of a name for each unnamed box; ``probability``: of the rows ``named`` of ``boxes``."""
    best = np.full(len(boxes), NO_NAME)
    every = np.zeros(len(boxes))
    every[named] = probability
    thing, name = same_thing_pairs(boxes, things, named)
    np.maximum.at(best, thing, every[name])
    return best[things]


def surface_support(boxes: F64, snapshot: VoxelSnapshot) -> F64:
    """(N, 2) features surface and closed of (N, 9) boxes."""
    boxes, which = np.unique(boxes, axis=0, return_inverse=True)  # one object under several names
    inside, around, _ = count_voxels(snapshot, boxes, _AROUND_M, widened_m=0.0)
    dx, dy, dz = boxes[:, 3], boxes[:, 4], boxes[:, 5]
    # number of voxels of the usual size that cover half of the box
    to_usual = (snapshot.voxel_size_m / _REFERENCE_VOXEL_M) ** 2
    half_cover = (dx * dy + dx * dz + dy * dz) / _REFERENCE_VOXEL_M**2
    surface: F64 = np.log(inside * to_usual / (half_cover + _FEW) + 0.02)
    closed: F64 = np.log((inside * to_usual + _FEW) / ((inside + around) * to_usual + _FEW))
    return np.stack([surface, closed], axis=1)[which.reshape(-1)]  # NumPy 2.0 gives it a second axis


def conflicts_of(found: Detections) -> OverlappingDetections:
    """Overlapping detections, of boxes with scores that a fit also sees; few of a benchmark's boxes remain."""
    return overlapping_detections(found.boxes, np.flatnonzero(found.scores >= LEAST_SCORE))


def log_odds(p: F64) -> F64:
    """(N,) log-odds of probabilities, clipped near 0 and 1."""
    within = np.clip(p, 1e-4, 1.0 - 1e-4)
    odds: F64 = np.log(within / (1.0 - within))
    return odds
