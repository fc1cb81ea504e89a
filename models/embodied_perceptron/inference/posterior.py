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
    silence     log-probability that no more of the views that show the location fully report it, given the detector's
                recall in this map (:class:`Recall`); 0 for names outside of the detector's vocabulary
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
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.results import UNNAMED

NOTHING = ""
FEATURES = ("thing", "views", "score", "confusion", "silence", "plausible", "unsaid", "alone")
ANY_DETECTOR = "any"
_NAMELESS = 0.02  # least share of an object's probability for names that the network did not report
_LEAST = 1e-3
_MOST_SCORE = 0.99
_LIFTED_RIGHT = 0.9  # probability that the surface of a sure detection is the object's, not one in front or behind
_REPEATED = 0.43  # weight of each doubling of the number of views with the same report, which are not independent
PROBABILITIES = ("confusion", "silence")  # features that are log-probabilities, whose weight is 1
_ROUNDS = 4  # of expectation maximisation
_PRIOR_COUNT = 4.0  # pseudo-counts of the mean over all names in a measured rate

F64 = NDArray[np.float64]
MissedViews = tuple[int, int, int]  # number of views by size in the image
NO_MISSES: MissedViews = (0, 0, 0)
SIZES = (0.1, 0.3)  # bounds of small, medium and large, as shares of the longer side of the image


def size_in_picture(share: F64) -> NDArray[np.int64]:
    """(N,) longer sides of objects as shares of the image's longer side -> (N,) size class, 0 = small."""
    return np.searchsorted(np.array(SIZES), share, side="right")


@dataclass(frozen=True)
class Evidence:
    """Observations of one hypothesis by one detector over all views.

    Attributes:
        source: name of the detector.
        reported: name -> (number of views that report it, best score); :data:`UNNAMED` is a report without a name.
        missed: number of views that show the location fully and report nothing, by size in the image.
        vocabulary: names that the detector can report.
        shown: number of views that show the location fully and report something.
    """

    source: str
    reported: Mapping[str, tuple[int, float]]
    missed: MissedViews = NO_MISSES
    vocabulary: frozenset[str] = frozenset()
    shown: MissedViews = NO_MISSES

    def is_informative(self, prior: Mapping[str, float] | None) -> bool:
        """Return True when it changes the prior: a miss does so only for names in the detector's vocabulary."""
        return bool(self.reported) or (any(self.missed) and prior is not None and not self.vocabulary.isdisjoint(prior))


@dataclass(frozen=True)
class DetectorConfusions:
    """Measured detection rates and confusions of one detector.

    Attributes:
        things: name -> number of objects that were fully visible.
        reported: reported name -> true name -> number of objects; :data:`NOTHING` = no object there.
        views: name -> by size in the image (views that show such an object fully, those that report its name).
    """

    things: Mapping[str, int] = field(default_factory=dict)
    reported: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    views: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

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

    @cached_property
    def _doubts(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Cache of :meth:`log_doubt`."""
        return {}

    def share_of(self, vocabulary: frozenset[str]) -> float:
        """Return the share of all objects that have a name of the vocabulary."""
        total = sum(self.things.values())
        return sum(n for name, n in self.things.items() if name in vocabulary) / max(total, 1)

    @cached_property
    def recall(self) -> Recall:
        """Return the measured recall."""
        counts = {name: np.array(sizes, dtype=np.float64) for name, sizes in self.views.items()}
        return Recall(np.full(len(NO_MISSES), 0.5), {}).updated(counts)


@dataclass(frozen=True, eq=False)
class Recall:
    """Recall of a detector for fully visible objects.

    Attributes:
        of_size: (3,) of each size in the image, over all names.
        of_name: name -> its recall as a multiple of that; 1 for others.
    """

    of_size: F64
    of_name: Mapping[str, float]

    def updated(self, counts: Mapping[str, F64]) -> Recall:
        """Return the recall after more observations.

        Args:
            counts: name -> (3, 2) number of views, by size, that show objects of the name fully, and of those among
                them that report it.
        """
        seen, reported = np.sum(list(counts.values()), axis=0).T if counts else np.zeros((2, len(self.of_size)))
        of_size = (reported + _PRIOR_COUNT * self.of_size) / (seen + _PRIOR_COUNT)
        of_name = dict(self.of_name)
        for name, own in counts.items():
            expected, usual = float(own[:, 0] @ of_size), self.of_name.get(name, 1.0)
            of_name[name] = (float(own[:, 1].sum()) + _PRIOR_COUNT * usual) / (expected + _PRIOR_COUNT)
        return Recall(of_size, of_name)

    def in_map(self, objects: Sequence[VisibleObject]) -> Recall:
        """Return the recall after the objects of a map: the maximum likelihood over their existence.

        An object that no view reports counts as far as it exists, given the recall (expectation maximisation).
        """
        result = self
        for _ in range(_ROUNDS if objects else 0):
            counts: dict[str, F64] = {}
            for o in objects:
                odds = o.exists / max(1.0 - o.exists, _LEAST) * math.exp(result.log_seldom(o.name, o.missed, o.shown))
                weight = 1.0 if any(o.shown) else odds / (1.0 + odds)
                own = counts.setdefault(o.name, np.zeros((len(NO_MISSES), 2)))
                own += weight * np.stack([np.add(o.missed, o.shown), o.shown], axis=1)
            result = self.updated(counts)
        return result

    def log_seldom(self, name: str, missed: MissedViews, shown: MissedViews, known: float = 1.0) -> float:
        """Return the log-probability, at most 0, that no more of the views that show an object fully report it.

        Args:
            name: of the object.
            missed, shown: number of views that do not report it, and that do, by size in the image.
            known: probability that the detector knows its name.

        Views of one object are not independent: its own recall has a Beta distribution around that of the detector.
        """
        if not any(missed) or known == 0.0:
            return 0.0
        key = name, missed, shown, known
        if key not in self._log_seldom:
            of_size = np.minimum(self.of_size * self.of_name.get(name, 1.0), _MOST_SCORE)
            mean = float(of_size @ np.add(missed, shown)) / sum((*missed, *shown))
            self._log_seldom[key] = _log_at_most(sum(shown), sum((*missed, *shown)), mean, known)
        return self._log_seldom[key]

    @cached_property
    def _log_seldom(self) -> dict[tuple[str, MissedViews, MissedViews, float], float]:
        """Cache of :meth:`log_seldom`."""
        return {}


@dataclass(frozen=True)
class VisibleObject:
    """An object of a map for the recall of a detector.

    Attributes:
        name: which the detector knows.
        exists: probability without this detector.
        missed, shown: number of views that show it fully and do not report it, and that do, by size in the image.
    """

    name: str
    exists: float
    missed: MissedViews
    shown: MissedViews


def _log_at_most(k: int, n: int, mean: float, known: float) -> float:
    """Return the log-probability of at most ``k`` of ``n`` draws of a rate.

    The rate has a Beta distribution around ``mean`` with probability ``known``, and is 0 otherwise. It is narrower for
    an object that is reported.
    """
    alike = 1.0 + k
    a, b = alike * mean, alike * (1.0 - mean)
    p = math.exp(sum(math.log((b + i) / (alike + i)) for i in range(n)))
    total = p
    for j in range(k):
        p *= (n - j) / (j + 1) * (a + j) / (n - j - 1 + b)
        total += p
    return math.log(min(max(known * total + 1.0 - known, _LEAST**2), 1.0))


def _share(count: int, total: int, usual: float) -> float:
    """Return a rate smoothed towards the usual one."""
    return (count + _PRIOR_COUNT * usual) / (total + _PRIOR_COUNT)


@dataclass(frozen=True)
class DetectorModel:
    """Likelihood model of 2-D detectors: weights of :data:`FEATURES` and each detector's confusions.

    Attributes:
        weights: by feature.
        detectors: by name; :data:`ANY_DETECTOR` stands for detectors that were not measured.
        recalls: of detectors in a map (:meth:`Recall.in_map`); as measured for others.

    Raises ``ValueError`` for missing or non-finite weights and without :data:`ANY_DETECTOR`.
    """

    weights: Mapping[str, float]
    detectors: Mapping[str, DetectorConfusions]
    recalls: Mapping[str, Recall] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.weights) != set(FEATURES) or not all(math.isfinite(w) for w in self.weights.values()):
            raise ValueError(f"a detector model has finite weights of {', '.join(FEATURES)}, got {self.weights}")
        if ANY_DETECTOR not in self.detectors:
            raise ValueError(f"a detector model has a detector called {ANY_DETECTOR!r}")

    def confusions(self, source: str) -> DetectorConfusions:
        """Return the confusions of a detector; those of any detector where it was not measured."""
        return self.detectors.get(source, self.detectors[ANY_DETECTOR])

    def recall(self, source: str) -> Recall:
        """Return the recall of a detector in the map, or the measured one."""
        return self.recalls.get(source, self.confusions(source).recall)

    def log_confused(self, one: Evidence, state: str) -> float:
        """Return the log-likelihood, at most 0, of a detector's reports for an object called ``state``."""
        confusions = self.confusions(one.source)
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
        if prior is not None and not any(one.is_informative(prior) for one in evidence):
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
        recall = model.recall(one.source)
        # an object that it reports under any name is one that it can report
        unnamed = 1.0 if one.reported else model.confusions(one.source).share_of(one.vocabulary)
        for row, state in enumerate(states[1:], 1):
            share = unnamed if state == UNNAMED else float(state in one.vocabulary)
            table[row, column["silence"]] += recall.log_seldom(state, one.missed, one.shown, share)
        if not one.reported:
            continue
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
                {str(k): _views_by_size(sizes) for k, sizes in entry["views"].items()},
            )
            for name, entry in data["detectors"].items()
        }
        weights = {str(k): float(w) for k, w in data["weights"].items()}
        return DetectorModel({**weights, **dict.fromkeys(PROBABILITIES, 1.0)}, detectors)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"not a detector model: {error!r}") from error


def _views_by_size(sizes: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    views = tuple((int(seen), int(detected)) for seen, detected in sizes)
    if len(views) != len(NO_MISSES):
        raise TypeError(f"views are counted by {len(NO_MISSES)} sizes, got {len(views)}")
    return views


def detector_model_json(model: DetectorModel, source: str, measured: Mapping[str, Any]) -> str:
    """Return a model as JSON text with the command that made it and its measured quality."""
    detectors = {
        name: {
            "things": dict(sorted(c.things.items())),
            "said": {name: dict(sorted(row.items())) for name, row in sorted(c.reported.items())},
            "views": {k: [list(size) for size in v] for k, v in sorted(c.views.items())},
        }
        for name, c in sorted(model.detectors.items())
    }
    weights = {name: round(model.weights[name], 3) for name in FEATURES}
    data = {"source": source, "measured": dict(measured), "weights": weights, "detectors": detectors}
    return json.dumps(data, indent=1) + "\n"
