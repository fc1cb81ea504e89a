"""Posterior probability of an object's existence and name from the network and 2-D detectors.

The states of a hypothesis are the names reported for it, :data:`UNNAMED` (an object of another name) and
:data:`NOTHING`. The prior is the network's calibrated probabilities (:mod:`~.confidence_calibration`, :mod:`~.naming`).
Each 2-D detector adds log-likelihoods:

    log p(state) = log prior(state) + sum over features f of weight[f] * value[f, state] + constant

Confusions move probability between names only, never to or from nothing (:func:`log_weights`).

    thing       the detector reports an object
    views       logarithm of the number of views that report it; views of one background are not independent
    score       log-odds of the best score
    confusion   log-probability of the reported names for an object of the state's name; a score is the probability that
                the reported name is right, and wrong names are distributed as measured
    plausible   log-plausibility of size and height for a name that the network did not report
    unsaid      1 for a name that the network did not report, where it has boxes
    alone       1 where the network has no box

Weights and confusions are fitted to simulated homes with the disturbances of photographs (``evaluate
calibrate-witnesses``) and stored in ``witnesses.json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.results import UNNAMED

NOTHING = ""
FEATURES = ("thing", "views", "score", "confusion", "plausible", "unsaid", "alone")
_FORMER_FEATURES = ("silence",)  # in files of older versions
ANY_DETECTOR = "any"
_NAMELESS = 0.02  # least share of an object's probability for names that the network did not report
_LEAST = 1e-3
_MOST_SCORE = 0.99
_LIFTED_RIGHT = 0.9  # probability that the surface of a sure detection is the object's, not one in front or behind
_REPEATED = 0.43  # weight of each doubling of the number of views with the same report, which are not independent
PROBABILITIES = ("confusion",)  # features that are log-probabilities, whose weight is 1
_PRIOR_COUNT = 4.0  # pseudo-counts of the mean over all names in a measured rate

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """Reports of one hypothesis by one detector over all views.

    A view that does not report an object says nothing about it: the detector may not see it from there.

    Attributes:
        source: name of the detector.
        reported: name -> (number of views that report it, best score), not empty; :data:`UNNAMED` is a report without a
            name.
    """

    source: str
    reported: Mapping[str, tuple[int, float]]


@dataclass(frozen=True)
class DetectorConfusions:
    """Measured confusions of one detector.

    Attributes:
        things: name -> number of objects.
        reported: reported name -> true name -> number of objects; :data:`NOTHING` = no object there.
    """

    things: Mapping[str, int] = field(default_factory=dict)
    reported: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    _doubts: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict, init=False, compare=False)

    def log_doubt(self, reported: str, true: str, score: float) -> tuple[float, float]:
        """Return two log-odds, at most 0, that the object is called ``true`` and not ``reported``.

        The first is of one view, the second of each further view with the same report. A report is wrong with
        probability ``1 - score``. Wrong reports of a first view are distributed as measured; a repeated one is a
        coincidence, less likely for rare names. :data:`UNNAMED` stands for all names without a report.
        """
        if reported in (true, UNNAMED):
            return 0.0, 0.0
        key = reported, true
        if key not in self._doubts:
            self._doubts[key] = self._doubt(reported, true)
        share, rarity = self._doubts[key]
        first = min(1.0, (1.0 - score) / score) * share
        return math.log(first), math.log(min(1.0, first * rarity))

    def _doubt(self, reported: str, true: str) -> tuple[float, float]:
        """Return the share of ``true`` among wrong reports, and the frequency of ``reported`` over that of ``true``."""
        total, usual = sum(self.things.values()), 1.0 / (len(self.things) + 2.0)
        own = _share(self.things.get(reported, 0), total, usual)
        if true == UNNAMED:
            return 1.0, own / (1.0 - own)
        wrong = {name: n for name, n in self.reported.get(reported, {}).items() if name not in (reported, NOTHING)}
        share = _share(wrong.get(true, 0), sum(wrong.values()), usual)
        return share, own / _share(self.things.get(true, 0), total, usual)


def _share(count: int, total: int, usual: float) -> float:
    """Return a rate smoothed towards the usual one."""
    return (count + _PRIOR_COUNT * usual) / (total + _PRIOR_COUNT)


@dataclass(frozen=True)
class DetectorModel:
    """Likelihood model of 2-D detectors: weights of :data:`FEATURES` and each detector's confusions.

    Attributes:
        weights: by feature.
        detectors: by name; :data:`ANY_DETECTOR` stands for detectors that were not measured.

    Raises ``ValueError`` for missing or non-finite weights and without :data:`ANY_DETECTOR`.
    """

    weights: Mapping[str, float]
    detectors: Mapping[str, DetectorConfusions]

    def __post_init__(self) -> None:
        if set(self.weights) != set(FEATURES) or not all(math.isfinite(w) for w in self.weights.values()):
            raise ValueError(f"a detector model has finite weights of {', '.join(FEATURES)}, got {self.weights}")
        if ANY_DETECTOR not in self.detectors:
            raise ValueError(f"a detector model has a detector called {ANY_DETECTOR!r}")

    def log_confused(self, one: Evidence, state: str) -> float:
        """Return the log-likelihood, at most 0, of a detector's reports for an object called ``state``."""
        confusions = self.detectors.get(one.source, self.detectors[ANY_DETECTOR])
        scores = {name: _within(score) for name, (_, score) in one.reported.items()}
        weight = {name: views * scores[name] for name, (views, _) in one.reported.items()}
        confused = 0.0
        for name, (count, _) in one.reported.items():
            first, further = confusions.log_doubt(name, state, scores[name])
            confused += weight[name] * math.exp(first + _REPEATED * math.log2((1.0 + count) / 2.0) * further)
        return math.log(confused / sum(weight.values()))

    def posterior(
        self,
        prior: Mapping[str, float] | None,
        evidence: Sequence[Evidence],
        plausibility: Mapping[str, float],
        can_name: bool = True,
    ) -> dict[str, float]:
        """Return name -> probability that an object exists and has that name; :data:`UNNAMED` = any other name.

        Args:
            prior: the same from the network; None = it has no box there.
            evidence: of the detectors.
            plausibility: reported name -> log-plausibility of the box's size and height.
            can_name: False when the prior comes from shapes, which have no names: the detectors alone name the object.
        """
        if prior is not None and not evidence:
            return dict(prior)
        if prior is not None and not can_name:
            names = self.posterior(None, evidence, plausibility)
            left = max(sum(prior.values()) - sum(names.values()), 0.0)
            return {**names, UNNAMED: names.get(UNNAMED, 0.0) + left}
        states, table, offset = features(self, prior, evidence, plausibility)
        u = log_weights(table, offset, np.array([self.weights[name] for name in FEATURES]))
        p = np.exp(u - u.max())
        p /= p.sum()
        return {state: float(v) for state, v in zip(states, p, strict=True) if state != NOTHING}


def log_weights(table: F64, offset: F64, weights: F64) -> F64:
    """Return (..., S) unnormalised log-posteriors of (..., S, F) values of :data:`FEATURES` and (..., S) log-priors.

    The first state is :data:`NOTHING`. Confusions leave the probability of existence to the other features, because a
    wrong name is no evidence of absence. A log-prior of minus infinity marks a state that does not exist.
    """
    column = FEATURES.index("confusion")
    confused = table[..., 1:, column] * weights[column]
    others = weights.copy()
    others[column] = 0.0
    rest: F64 = offset + table @ others
    there = rest[..., 1:]
    shift = _log_sum_exp(there) - _log_sum_exp(there + confused)
    return np.concatenate([rest[..., :1], there + confused + shift], axis=-1)


def _log_sum_exp(values: F64) -> F64:
    """Log-sum-exp over the last axis, kept; called for each object, faster than scipy's."""
    highest = values.max(axis=-1, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        total: F64 = np.log(np.exp(values - highest).sum(axis=-1, keepdims=True))
    return total + highest


def features(
    model: DetectorModel,
    prior: Mapping[str, float] | None,
    evidence: Sequence[Evidence],
    plausibility: Mapping[str, float],
) -> tuple[list[str], F64, F64]:
    """Return the states, :data:`NOTHING` first, their (S, F) values of :data:`FEATURES` and (S,) log-priors.

    Arguments as of :meth:`DetectorModel.posterior`.
    """
    known = {} if prior is None else {name: p for name, p in prior.items() if name != UNNAMED}
    reported = {name for one in evidence for name in one.reported} - {UNNAMED}
    states = [NOTHING, *sorted({*known, *reported}), UNNAMED]
    offset = _log_prior(states, prior, known)
    table = np.zeros((len(states), len(FEATURES)))
    column = {name: k for k, name in enumerate(FEATURES)}
    for row, state in enumerate(states[1:], 1):
        is_new = state not in known and state != UNNAMED
        table[row, column["plausible"]] = plausibility.get(state, 0.0) if is_new else 0.0
        table[row, column["unsaid"]] = float(is_new and prior is not None)
        table[row, column["alone"]] = float(prior is None)
    for one in evidence:
        views, best = (
            sum(v for v, _ in one.reported.values()),
            min(_within(max(score for _, score in one.reported.values())), _LIFTED_RIGHT),
        )
        for row, state in enumerate(states[1:], 1):
            table[row, column["thing"]] += 1.0
            table[row, column["views"]] += math.log(views)
            table[row, column["score"]] += math.log(best / (1.0 - best))
            table[row, column["confusion"]] += model.log_confused(one, state)
    return states, table, offset


def _within(score: float) -> float:
    """Clamp a score to have finite log-odds."""
    return min(max(score, _LEAST), _MOST_SCORE)


def _log_prior(states: Sequence[str], prior: Mapping[str, float] | None, known: Mapping[str, float]) -> F64:
    if prior is None:
        return np.zeros(len(states))
    exists = min(sum(prior.values()), 1.0 - _LEAST)
    nameless = max(prior.get(UNNAMED, 0.0), _NAMELESS * exists)
    values = {**known, NOTHING: 1.0 - exists}
    return np.log([max(values.get(state, nameless), _LEAST * 1e-2) for state in states])


@lru_cache(maxsize=1)
def shipped_detector_model() -> DetectorModel:
    """Return the model that this package ships."""
    return read_detector_model(Path(__file__).with_name("witnesses.json").read_text(encoding="utf-8"))


def read_detector_model(text: str) -> DetectorModel:
    """Parse :func:`detector_model_json`. Raises ``ValueError`` for any other text."""
    try:
        data = json.loads(text)
        detectors = {
            str(name): DetectorConfusions(
                {str(k): int(n) for k, n in entry["things"].items()},
                {str(s): {str(t): int(n) for t, n in row.items()} for s, row in entry["said"].items()},
            )
            for name, entry in data["detectors"].items()
        }
        weights = {str(k): float(w) for k, w in data["weights"].items() if k not in _FORMER_FEATURES}
        return DetectorModel({**weights, **dict.fromkeys(PROBABILITIES, 1.0)}, detectors)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a detector model: {error!r}") from error


def detector_model_json(model: DetectorModel, source: str, measured: Mapping[str, Any]) -> str:
    """Return a model as JSON text with the command that made it and its measured quality."""
    detectors = {
        name: {
            "things": dict(sorted(c.things.items())),
            "said": {name: dict(sorted(row.items())) for name, row in sorted(c.reported.items())},
            "views": {},  # older versions read it
        }
        for name, c in sorted(model.detectors.items())
    }
    weights = {name: round(model.weights[name], 3) for name in FEATURES}
    data = {"source": source, "measured": dict(measured), "weights": weights, "detectors": detectors}
    return json.dumps(data, indent=1) + "\n"
