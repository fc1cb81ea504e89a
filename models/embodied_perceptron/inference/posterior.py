"""One posterior over a thing's existence and name, from everything that speaks of it.

The states of a place are the names that somebody says of it, :data:`UNNAMED` (something else stands there), and
:data:`NOTHING`. What the network says, with size, height and company in it, is the prior
(:mod:`~.confidence_calibration` makes probabilities of its boxes, :mod:`~.naming` joins those of one thing). Each 2-D
detector adds log-likelihoods to it:

    log p(state) = log prior(state) + sum over features f of weight[f] * value[f, state] + constant

Confusions alone move probability between names, and none to or from nothing (:func:`log_weights`).

    thing       a detector speaks: something is there
    views       logarithm of the number of views in which it does; views of one background are not independent
    score       log-odds of its best score
    confusion   how often it says what it says of things of that name, against of things that are what it says; times
                its best score and the logarithm of its views, so that a name said again and surely weighs more
    silence     views in which all of the place was in full view and it said nothing, times how much seldomer that is
                with such a thing of that size in the picture than without; 0 for names that it does not know, and at
                most :data:`_MAX_SILENT` views
    plausible   how well size and height fit a name that the network did not say
    unsaid      a name that a network which speaks of the place did not say
    alone       the network has nothing there at all

Weights and confusions were measured in rendered pictures. Detectors learned from photographs, and of these their scores
promise what they say: :meth:`WitnessModel.on_photographs` reads them so (score and confusion count once). A name is
then right with its own score, and of the others each is as likely as it was measured to be among the wrong ones.

So nothing but silence in full view, or another name, speaks against what one witness has found, and no more than was
measured. Weights and confusions are fitted to simulated homes with the disturbances of photographs
(``evaluate calibrate-witnesses``) and stand in ``witnesses.json``.
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
_MAX_SILENT = 6
_NAMELESS = 0.02  # of a thing's probability, at least, that it is none of the names that the network says
_LEAST = 1e-3
_MOST_SCORE = 0.99
# weights that differ on photographs: scores count as they are; of views nothing is measured there, and they
# count as they do before a fit sees anything
_ON_PHOTOGRAPHS = {"score": 1.0, "confusion": 1.0, "views": 0.5}
_PRIOR_COUNT = 4.0  # things, or views, that the mean over all names weighs in a measured rate

F64 = NDArray[np.float64]
Silence = tuple[int, int, int]  # views, by size in the picture
NO_SILENCE: Silence = (0, 0, 0)
SIZES = (0.1, 0.3)  # of a thing against the longer side of a picture: small, medium and large begin and end here


def size_in_picture(share: F64) -> NDArray[np.int64]:
    """(N,) longer side of things over that of the picture -> number of the size, 0 = small."""
    return np.searchsorted(np.array(SIZES), share, side="right")


@dataclass(frozen=True)
class Evidence:
    """What one detector says of a place over its views.

    Attributes:
        source: the detector.
        said: name -> (views in which it said so, best score).
        silent: views in which all of the place was in full view and it said nothing of it, by its size there.
        vocabulary: every name that it might have said.
    """

    source: str
    said: Mapping[str, tuple[int, float]]
    silent: Silence = NO_SILENCE
    vocabulary: frozenset[str] = frozenset()

    def bears_on(self, prior: Mapping[str, float] | None) -> bool:
        """Whether it says anything of a place: silence says nothing of names that the detector does not know."""
        return bool(self.said) or (any(self.silent) and prior is not None and not self.vocabulary.isdisjoint(prior))


@dataclass(frozen=True)
class DetectorConfusions:
    """What one detector was measured to say.

    Attributes:
        things: name -> how many things of it stood in full view.
        said: name that it says -> true name -> of how many things it did; :data:`NOTHING` = of places without any.
        views: name -> by size in the picture (views with such a thing in full view, of these with it said).
        false_rate: share of the views of a place without such a thing in which it is said there.
    """

    things: Mapping[str, int] = field(default_factory=dict)
    said: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    views: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    false_rate: float = 0.01

    def log_confusion(self, said: str, true: str) -> float:
        """Log of how often it says ``said`` of things called ``true``, against of those that are; at most 0."""
        key = said, true
        if key not in self._confusions:
            self._confusions[key] = self._log_confusion(said, true)
        return self._confusions[key]

    def log_silence(self, name: str, silent: Silence) -> float:
        """Log-likelihood, at most 0, of views in which a thing of that name was in full view and not said; of no more
        than :data:`_MAX_SILENT`."""
        if not any(silent):
            return 0.0
        if name not in self._silences:
            least = 1.0 - self.false_rate
            self._silences[name] = [min(0.0, math.log(max(1.0 - r, _LEAST) / least)) for r in self._recalls(name)]
        views = sum(silent)
        counted = sum(n * log for n, log in zip(silent, self._silences[name], strict=True))
        return counted * min(views, _MAX_SILENT) / views

    def _recalls(self, name: str) -> list[float]:
        """By size: near to what is usual for the size, times how well things of that name are said."""
        of_name = self.views.get(name, ((0, 0),) * len(NO_SILENCE))
        seen, said = (sum(view[k] for view in of_name) for k in (0, 1))
        usual, usual_of_size = self._usual_recall
        better = _share(said, seen, usual) / usual
        return [
            _share(right, views, min(better * of_size, 1.0))
            for (views, right), of_size in zip(of_name, usual_of_size, strict=True)
        ]

    def log_doubt(self, said: str, true: str, score: float) -> tuple[float, float]:
        """Logs, at most 0, of how much likelier it is that what it says with a ``score`` is wrong and the thing called
        ``true``, than that it is right: of the first view, and of one more that says it again.

        Of what is said with a score, ``1 - score`` is wrong. At first a thing is as likely of a name as that is common
        among the wrong ones; that the same is said again is chance, the less the rarer things of that name are.
        :data:`UNNAMED` are all names that nobody says.
        """
        if said == true:
            return 0.0, 0.0
        key = said, true
        if key not in self._doubts:
            self._doubts[key] = self._doubt(said, true)
        share, rarity = self._doubts[key]
        first = min(1.0, (1.0 - score) / score) * share
        return math.log(first), math.log(min(1.0, first * rarity))

    def _doubt(self, said: str, true: str) -> tuple[float, float]:
        """Share of a name among what is wrongly called ``said``, and how many things that is against the other."""
        total, usual = sum(self.things.values()), 1.0 / (len(self.things) + 1.0)
        own = _share(self.things.get(said, 0), total, usual)
        if true == UNNAMED:
            return 1.0, own / (1.0 - own)
        wrong = {name: n for name, n in self.said.get(said, {}).items() if name not in (said, NOTHING)}
        share = _share(wrong.get(true, 0), sum(wrong.values()), usual)
        return share, own / _share(self.things.get(true, 0), total, usual)

    def _log_confusion(self, said: str, true: str) -> float:
        if said == true:
            return 0.0
        counts = self.said.get(said, {})
        wrong = sum(n for name, n in counts.items() if name not in (said, NOTHING))
        usual = (wrong + 1.0) / (sum(self.things.values()) + 50.0)  # of things of any other name
        own = _share(counts.get(said, 0), self.things.get(said, 0), self._usual_own)
        other = usual if true == UNNAMED else _share(counts.get(true, 0), self.things.get(true, 0), usual)
        return min(0.0, math.log(other / own))

    @cached_property
    def _confusions(self) -> dict[tuple[str, str], float]:
        """Those that were asked for."""
        return {}

    @cached_property
    def _doubts(self) -> dict[tuple[str, str], tuple[float, float]]:
        """As :attr:`_confusions`."""
        return {}

    @cached_property
    def _silences(self) -> dict[str, list[float]]:
        """As :attr:`_confusions`."""
        return {}

    @cached_property
    def _usual_recall(self) -> tuple[float, list[float]]:
        """Of all names: at all, and by size."""
        by_size = [[sum(view[n][k] for view in self.views.values()) for k in (0, 1)] for n in range(len(NO_SILENCE))]
        seen, said = (sum(size[k] for size in by_size) for k in (0, 1))
        usual = (said + 1.0) / (seen + 5.0)
        return usual, [_share(right, views, usual) for views, right in by_size]

    @cached_property
    def _usual_own(self) -> float:
        right = sum(counts.get(name, 0) for name, counts in self.said.items())
        return (right + 1.0) / (sum(self.things.get(name, 0) for name in self.said) + 3.0)


def _share(count: int, total: int, usual: float) -> float:
    """A measured rate, near to the usual one where little was counted."""
    return (count + _PRIOR_COUNT * usual) / (total + _PRIOR_COUNT)


@dataclass(frozen=True)
class WitnessModel:
    """Weights of :data:`FEATURES`, and what each detector was measured to say.

    Attributes:
        weights: by feature.
        detectors: by name; :data:`ANY_DETECTOR` stands for those that were not measured.
        repeated: names are confused as their own scores say, and each doubling of the views that say so counts so much;
            None = as measured.

    Raises ``ValueError`` naming what is no such model.
    """

    weights: Mapping[str, float]
    detectors: Mapping[str, DetectorConfusions]
    repeated: float | None = None

    def __post_init__(self) -> None:
        if set(self.weights) != set(FEATURES) or not all(math.isfinite(w) for w in self.weights.values()):
            raise ValueError(f"a model of witnesses has finite weights of {', '.join(FEATURES)}, got {self.weights}")
        if ANY_DETECTOR not in self.detectors:
            raise ValueError(f"a model of witnesses knows a detector called {ANY_DETECTOR!r}")

    def confusions(self, source: str) -> DetectorConfusions:
        """Of a detector, or of any where it was not measured."""
        return self.detectors.get(source, self.detectors[ANY_DETECTOR])

    def on_photographs(self) -> WitnessModel:
        """The same for detectors that look at photographs, as they have learned to."""
        weights = {**self.weights, **_ON_PHOTOGRAPHS}
        return WitnessModel(weights, self.detectors, self.weights["confusion"])

    def log_confused(self, one: Evidence, state: str) -> float:
        """Log, at most 0, of how well all that a detector says of a place goes with a thing called ``state``."""
        confusions = self.confusions(one.source)
        scores = {name: _within(score) for name, (_, score) in one.said.items()}
        weight = {name: views * scores[name] for name, (views, _) in one.said.items()}
        views, total = sum(views for views, _ in one.said.values()), sum(weight.values())
        if self.repeated is None:
            confused = sum(w * math.exp(confusions.log_confusion(name, state)) for name, w in weight.items())
            return max(scores.values()) * math.log1p(views) * math.log(confused / total)
        confused = 0.0
        for name, (count, _) in one.said.items():
            first, further = confusions.log_doubt(name, state, scores[name])
            confused += weight[name] * math.exp(first + self.repeated * math.log2((1.0 + count) / 2.0) * further)
        return math.log(confused / total)

    def posterior(
        self,
        prior: Mapping[str, float] | None,
        evidence: Sequence[Evidence],
        plausibility: Mapping[str, float],
        can_name: bool = True,
    ) -> dict[str, float]:
        """Name -> probability that something is there and is called so; of :data:`UNNAMED`, that it is none of these.

        Args:
            prior: the same of the network; None = it has nothing there.
            evidence: of the detectors.
            plausibility: name -> log-plausibility of the place's size and height, of the names that detectors say.
            can_name: the prior's source knows names at all. Shapes do not: the detectors alone name what stands there.
        """
        if prior is not None and not any(one.bears_on(prior) for one in evidence):
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
    """(..., S) unnormalised log-posteriors of (..., S, F) values of :data:`FEATURES` and (..., S) log-priors.

    The first state is :data:`NOTHING`. Confusions move probability between names and leave what is there at all to the
    other features: a wrong name is no evidence of absence. States of log-prior minus infinity do not exist.
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
    """Over the last axis, which stays; this is called for each thing, and scipy's looks after much more."""
    highest = values.max(axis=-1, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        total: F64 = np.log(np.exp(values - highest).sum(axis=-1, keepdims=True))
    return total + highest


def features(
    model: WitnessModel,
    prior: Mapping[str, float] | None,
    evidence: Sequence[Evidence],
    plausibility: Mapping[str, float],
) -> tuple[list[str], F64, F64]:
    """States, :data:`NOTHING` first, (S, F) values of :data:`FEATURES` of each, and (S,) log-priors.

    Arguments as of :meth:`WitnessModel.posterior`.
    """
    known = {} if prior is None else {name: p for name, p in prior.items() if name != UNNAMED}
    said = {name for one in evidence for name in one.said}
    states = [NOTHING, *sorted({*known, *said}), UNNAMED]
    offset = _log_prior(states, prior, known)
    table = np.zeros((len(states), len(FEATURES)))
    column = {name: k for k, name in enumerate(FEATURES)}
    for row, state in enumerate(states[1:], 1):
        is_new = state not in known and state != UNNAMED
        table[row, column["plausible"]] = plausibility.get(state, 0.0) if is_new else 0.0
        table[row, column["unsaid"]] = float(is_new and prior is not None)
        table[row, column["alone"]] = float(prior is None)
    for one in evidence:
        confusions = model.confusions(one.source)
        for row, state in enumerate(states[1:], 1):
            if state in one.vocabulary:
                table[row, column["silence"]] += confusions.log_silence(state, one.silent)
        if not one.said:
            continue
        views, best = sum(v for v, _ in one.said.values()), _within(max(score for _, score in one.said.values()))
        for row, state in enumerate(states[1:], 1):
            table[row, column["thing"]] += 1.0
            table[row, column["views"]] += math.log(views)
            table[row, column["score"]] += math.log(best / (1.0 - best))
            table[row, column["confusion"]] += model.log_confused(one, state)
    return states, table, offset


def _within(score: float) -> float:
    """A score of which there are log-odds."""
    return min(max(score, _LEAST), _MOST_SCORE)


def _log_prior(states: Sequence[str], prior: Mapping[str, float] | None, known: Mapping[str, float]) -> F64:
    if prior is None:
        return np.zeros(len(states))
    exists = min(sum(prior.values()), 1.0 - _LEAST)
    nameless = max(prior.get(UNNAMED, 0.0), _NAMELESS * exists)
    values = {**known, NOTHING: 1.0 - exists}
    return np.log([max(values.get(state, nameless), _LEAST * 1e-2) for state in states])


@lru_cache(maxsize=1)
def shipped_witnesses() -> WitnessModel:
    """The model of this package."""
    return read_witnesses(Path(__file__).with_name("witnesses.json").read_text(encoding="utf-8"))


def read_witnesses(text: str) -> WitnessModel:
    """Inverse of :func:`witnesses_json`. Raises ``ValueError`` for what is no such model."""
    try:
        data = json.loads(text)
        detectors = {
            str(name): DetectorConfusions(
                {str(k): int(n) for k, n in entry["things"].items()},
                {str(s): {str(t): int(n) for t, n in row.items()} for s, row in entry["said"].items()},
                {str(k): _views_by_size(sizes) for k, sizes in entry["views"].items()},
                float(entry["false_rate"]),
            )
            for name, entry in data["detectors"].items()
        }
        return WitnessModel({str(k): float(w) for k, w in data["weights"].items()}, detectors)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"no model of witnesses: {error!r}") from error


def _views_by_size(sizes: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    views = tuple((int(seen), int(said)) for seen, said in sizes)
    if len(views) != len(NO_SILENCE):
        raise TypeError(f"views are counted by {len(NO_SILENCE)} sizes, got {len(views)}")
    return views


def witnesses_json(model: WitnessModel, source: str, measured: Mapping[str, Any]) -> str:
    """A model as JSON text; ``source``: the command that makes it, ``measured``: what it was worth."""
    detectors = {
        name: {
            "things": dict(sorted(c.things.items())),
            "said": {said: dict(sorted(row.items())) for said, row in sorted(c.said.items())},
            "views": {k: [list(size) for size in v] for k, v in sorted(c.views.items())},
            "false_rate": round(c.false_rate, 5),
        }
        for name, c in sorted(model.detectors.items())
    }
    weights = {name: round(model.weights[name], 3) for name in FEATURES}
    data = {"source": source, "measured": dict(measured), "weights": weights, "detectors": detectors}
    return json.dumps(data, indent=1) + "\n"
