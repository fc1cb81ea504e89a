"""Log scores of each object for a sentence: category, constraints and context, combined in two passes.

The first pass scores everything except superlatives; the second scores "the largest" or "the closest to" among the
objects that satisfy the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.suppression import BETWEEN_IOU, ONE_PLACE_IOU, ONE_THING_IOU
from embodied_perceptron.language.colors import color_likelihood, color_scores, same_color
from embodied_perceptron.language.lexicon import lexicon
from embodied_perceptron.language.meaning import ANYTHING, Constraint, Meaning, ObjectPhrase, SpeakerViewpoint
from embodied_perceptron.language.relations import (
    LIKELIHOOD_REACH_M,
    LIKELIHOODS,
    PAIR_RELATIONS,
    REACH_M,
    Pairs,
    SceneGeometry,
    Viewer,
    between,
    from_viewer,
    is_about,
    is_between,
    is_more_than,
    is_on,
    is_touching,
    is_within,
    near_beyond,
    sigmoid,
    viewer_distance,
)

F64 = NDArray[np.float64]
Index = NDArray[np.intp]

_EPS = 0.05
_NAMED = 0.95  # least similarity of a label that is a name for the noun
# upper limits of similarity where another label is such a name: labels that contain the noun, and all others
_KIND, _OTHER = 0.75, 0.65
_BETWEEN_REACH_M = 6.0
_CLOSE_BY_M = (1.5, 4.0)  # first search radii for mentioned objects
_LIKELY = 0.3  # weight of a likely anchor
_ANCHOR_THERE, _ANCHOR_NAMED = 0.2, 0.3  # an anchor of a lower weight, or of this similarity at most, is missing
_HARDLY = 0.15  # likelihood below which a description of an anchor does not hold
_STRUCTURE = frozenset(("wall", "floor", "ceiling", "roof", "baseboard", "beam", "column", "pillar"))
_TWO_SIDED = frozenset(("between", "nearer", "farther"))
_MEASURES = frozenset(("within", "beyond", "distance", "nearer", "farther", "larger", "smaller", "measured"))
_FROM_VIEWER = frozenset(("left-of-me", "right-of-me", "ahead-of-me", "behind-me"))
OF_KIND = 0.7  # least similarity of a label, as a share of the best one's, where objects are counted or compared
_COMPARED = 0.6  # the same for the likelihood of the other conditions
_PERHAPS = 0.5  # below it a relation to an unconfirmed anchor is no evidence
_BESIDE = frozenset(("front", "faced", "behind", "left", "right"))
_CARRIED = 0.6  # share of a place beside a landmark that an object loses which lies on another object there
_LEVEL_M, _STACKED_M = 0.12, 0.05  # least height between levels of a shelf; greatest between stacked objects
_SIDE_REACH_M = 3.5  # greatest distance to the left or right of a landmark
_NEXT_M = 1.2  # distance at which what stands in front of, behind or beside a landmark counts a third
_CLOSER_M = 0.05  # difference of distances that counts
_SIZE_APART = 0.05  # difference of log sizes of equally large objects
_AS_COLOURED = 0.75  # share of the best score of a colour that an object has with the same colour
_SEEN_SO = 0.95  # probability of an observed state
MAY_BE_UNKNOWN = frozenset(("colour", "material", "state", "same-colour"))  # attributes that the map may lack
UNDECIDED = (
    0.3  # likelihood of a condition that is neither true nor false: below any that holds, above any that does not
)
_STATURE = frozenset(["large", "small", "tall", "short", "long", "narrow", "round", "high", "low"])

# weights of the log scores; tuned on half of the development scans and on validation homes (benchmarks/language.py)
WEIGHTS = {
    "category": 2.0, "duplicate": 2.0, "confidence": 2.0, "context": 0.3,
    "closest": 0.8, "farthest": 0.8, "between": 1.0, "left": 0.9, "right": 0.9, "front": 0.6, "behind": 0.6,
    "own-left": 0.9, "own-right": 0.9,
    "across": 0.4, "facing": 0.6, "faced": 0.6, "back-to": 0.6, "nearer": 1.0, "farther": 1.0, "distance": 1.5,
    "end": 1.0, "above": 1.0, "below": 1.0, "on": 1.0, "in": 1.0,
    "supporting": 0.8, "with": 0.8, "near": 1.0, "leftmost": 1.3, "rightmost": 1.3, "left-of-all": 0.65,
    "right-of-all": 0.65,
    "from-left": 1.0, "from-right": 1.0, "corner": 0.7, "middle": 0.8, "wall": 0.3, "large": 0.5, "small": 0.35,
    "tall": 0.4, "short": 0.4, "long": 0.2, "narrow": 0.2, "round": 0.1, "high": 0.3, "low": 0.5, "alone": 0.3,
    "colour": 1.0, "material": 0.0, "candidates": 0.5, "excluded": 1.5, "within": 1.0, "beyond": 1.0, "larger": 1.0,
    "smaller": 1.0, "measured": 1.5, "same-colour": 1.0, "left-of-me": 1.0, "right-of-me": 1.0, "ahead-of-me": 1.0,
    "behind-me": 1.0, "nearest-me": 1.0,
    "farthest-me": 1.0, "middle-of-kind": 0.8, "nth": 0.0, "state": 1.5,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class ConstraintScore:
    """Score of one constraint for each object.

    Attributes:
        constraint: of the sentence.
        holds: (N,) in [0, 1]; NaN = undecided.
        missing: nouns of anchors that the scene lacks; the constraint is then ignored.
    """

    constraint: Constraint
    holds: F64
    missing: tuple[str, ...] = ()

    @property
    def satisfied(self) -> F64:
        """(N,) ``holds``, inverted for a negated constraint; NaN = undecided."""
        denied = (
            self.constraint.negated and not self.constraint.is_superlative
        )  # a superlative's score is already negated
        return np.asarray(1.0 - self.holds) if denied else self.holds


@dataclass(eq=False)
class Evidence:
    """The log scores of N objects.

    Attributes:
        category: (N,) similarity of each label to the noun.
        log_score: (N,) sum of all terms.
        fit: (N,) the same without detection confidences.
        terms: per constraint.
        not_excluded: (N,) probability that the object is not excluded by the sentence.
        may_be_excluded: (N,) bool: whether the object is excluded depends on an attribute that the map lacks.
    """

    category: F64
    log_score: F64
    fit: F64
    terms: list[ConstraintScore]
    not_excluded: F64
    may_be_excluded: NDArray[np.bool_]


class Trust(NamedTuple):
    """Trust in the objects: the first ``confirmed`` exist, the others may not; ``confidence`` is the weight of their
    scores relative to those of an unknown detector."""

    confirmed: int
    confidence: float = 1.0


class Scorer:
    """Scores of one meaning over one scene.

    Args:
        meaning: of the sentence, with a target.
        geometry: of the N objects.
        labels, scores: of the objects.
        colors: (N, 3) mean sRGB in 0..255, NaN = not measured; or None.
        extra: (N,) scores in [0, 1] of a neural grounder, or None.
        trust: in the objects and their scores.
    """

    def __init__(
        self,
        meaning: Meaning,
        geometry: SceneGeometry,
        labels: tuple[str, ...],
        scores: F64,
        colors: F64 | None = None,
        extra: F64 | None = None,
        trust: Trust | None = None,
    ) -> None:
        assert meaning.target is not None
        self.trust = trust if trust is not None else Trust(geometry.n)
        self.meaning = meaning
        self.g = geometry
        self.labels = labels
        self.scores = scores
        self.colors = colors
        self.extra = extra
        self.noun = meaning.target.noun
        self._weights: dict[ObjectPhrase, F64] = {}
        self._scorers: dict[ObjectPhrase, Scorer] = {}
        self._ends: dict[Constraint, tuple[Pairs, F64, F64]] = {}
        self._similar: dict[str, F64] = {}
        if self.noun == ANYTHING:
            self._similar[self.noun] = self._anything_but_anchors()
        own = self.similarity(self.noun)
        if meaning.asked == "comparison" and meaning.second is not None:  # either of two kinds
            own = np.maximum(own, self.anchor_weights(meaning.second) > _LIKELY)
        self.category = own
        # overlapping pairs of every object with those that fit the noun
        self.here = here = geometry.near(np.arange(geometry.n, dtype=np.intp), np.flatnonzero(own))
        self.duplicate = here.best(own[here.anchor] * (here.iou > ONE_PLACE_IOU))
        self.rows: Index = np.flatnonzero(self.duplicate)  # possible targets
        self.candidates = self.duplicate >= 0.5 * max(float(self.duplicate.max(initial=0.0)), 1e-9)
        self._likely: dict[Constraint, F64] = {}

    @cached_property
    def group(self) -> F64:
        """(N,) 1 for the candidates, one box per object."""
        return self._one_each(self.candidates).astype(np.float64)

    def _anything_but_anchors(self) -> F64:
        """(N,) 1 for all objects except structure and the anchors of the sentence."""
        other = self._anything()
        for constraint in self.meaning.constraints:
            for anchor in constraint.anchors:
                weight = self.anchor_weights(anchor)
                other = other * (weight < 0.5 * max(float(weight.max(initial=0.0)), 1e-9))
        return other

    def _anything(self) -> F64:
        return np.array([label not in _STRUCTURE for label in self.labels], dtype=np.float64)

    def similarity(self, noun: str) -> F64:
        """(N,) similarity of each label to a noun."""
        if noun == ANYTHING and noun not in self._similar:
            return self._anything()
        if noun not in self._similar:
            table = {label: lexicon().similarity(noun, label) for label in set(self.labels)}
            named = {noun} if noun in table else {label for label, w in table.items() if w >= _NAMED}
            if named:  # with such an object, others fit less: a "guitar amplifier" for "guitar"
                table = {
                    label: w if label in named else min(w, _KIND if lexicon().is_kind(label, noun) else _OTHER)
                    for label, w in table.items()
                }
            self._similar[noun] = np.array([table[label] for label in self.labels], dtype=np.float64)
        return self._similar[noun]

    def _one_each(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Keep only the most confident box of each object."""
        rows = np.flatnonzero(mask)
        alike = self.g.near(rows, rows)
        order = rows[np.argsort(-self.scores[rows], kind="stable")]
        kept = np.zeros(len(mask), bool)
        kept[first_of_each(order, alike.where(alike.iou > ONE_THING_IOU))] = True
        return kept

    # ---------------------------------------------------------------------------------------------------- both passes

    def evidence(self) -> Evidence:
        """Score all terms; superlatives among the objects that satisfy the rest."""
        w = WEIGHTS
        confidence = self.trust.confidence * w["confidence"] * np.log(self.scores + _EPS)
        log_score = w["category"] * np.log(self.category + _EPS) + w["duplicate"] * np.log(self.duplicate + _EPS)
        constraints = [self._in_sight(c) for c in self.meaning.constraints]
        plain = [c for c in constraints if not c.is_superlative]
        superlative = [c for c in constraints if c.is_superlative]
        terms: list[ConstraintScore] = []
        holds_not, may_be = np.ones(self.g.n), np.zeros(self.g.n, bool)
        ranked = {c.relation for c in superlative if c.rank > 1}  # "not the closest but the second closest"
        for constraint in plain:
            result = self._score(constraint)
            terms.append(result)
            log_score = log_score + self._log(result)
        for other in self.meaning.excluded:
            if not ranked.isdisjoint(c.relation for c in other.constraints):
                continue
            meant, unknown = self._is_meant(other)
            log_score = log_score + w["excluded"] * np.log(_EPS + 1.0 - meant)
            holds_not = holds_not * (1.0 - meant)
            may_be |= unknown
        log_score = log_score + w["context"] * self._context()
        if self.extra is not None:
            log_score = log_score + w["candidates"] * np.log(self.extra + _EPS)
        if superlative and self.group.any():
            first = 0.8 * (log_score + confidence)
            fits = self.plausible(Evidence(self.category, log_score, log_score, terms, holds_not, may_be))
            fits = fits * (self.category >= OF_KIND * float(self.category.max()))
            among = self.group * (fits >= _COMPARED * float((fits * self.group).max()))
            if self.meaning.among is not None and (among * fits).any():
                among = among * best_row(self.g, among * fits, self.meaning.among)
            soft = among * np.exp(np.minimum(first - first[among > 0].max(), 0.0))
            for constraint in superlative:
                score, missing = self._compare(constraint, soft)
                score = np.where(among > 0, score, score[among > 0].min())  # what does not fit the rest is not best
                log_score = log_score + w[constraint.relation] * constraint.weight * score
                terms.append(
                    ConstraintScore(constraint, np.exp(score - score[among > 0].max()).clip(0.0, 1.0), missing)
                )
        return Evidence(self.category, log_score + confidence, log_score, terms, holds_not, may_be)

    def _is_meant(self, other: Meaning) -> tuple[F64, NDArray[np.bool_]]:
        """(N,) probability that each object is meant by ``other``, and whether an unknown attribute decides it."""
        assert other.target is not None
        if not other.constraints and other.target.noun == self.noun:
            return np.zeros(self.g.n), np.zeros(self.g.n, bool)
        scorer = Scorer(other, self.g, self.labels, self.scores, self.colors, trust=self.trust)
        evidence = scorer.evidence()
        kind = evidence.category
        meant = (kind >= 0.5 * max(float(kind.max(initial=0.0)), 1e-9)) * scorer.plausible(evidence)
        for term in evidence.terms:  # beside a white object a light gray one is not "the white one"
            if term.constraint.relation == "colour" and not term.constraint.negated and not other.target.plural:
                best = float(np.nan_to_num(term.holds * (meant > _HARDLY)).max(initial=0.0))
                meant = meant * ~(term.holds < _AS_COLOURED * best)
        if any(c.is_superlative for c in other.constraints) and len(meant):
            best = evidence.log_score[meant > 0.2].max(initial=-np.inf)
            meant = meant * (evidence.log_score >= best - 0.05)
        return np.asarray(meant), scorer.unknown(evidence) & (meant > 0)

    # ---------------------------------------------------------------------------- whether a condition holds at all

    def plausible(self, evidence: Evidence) -> F64:
        """(N,) product of the likelihoods of all conditions; 1 for undecided ones, less for unknown attributes."""
        total = evidence.not_excluded.copy()
        for term in evidence.terms:
            meant = min(term.constraint.weight, 1.0)
            total = total * (1.0 - meant + meant * np.nan_to_num(self.likely(term), nan=1.0))
        return np.asarray(np.where(self.unknown(evidence), UNDECIDED * total, total))

    def unknown(self, evidence: Evidence) -> NDArray[np.bool_]:
        """(N,) bool: the map lacks an attribute of the object that the sentence states, as a colour."""
        lacks: NDArray[np.bool_] = evidence.may_be_excluded.copy()
        for term in evidence.terms:
            if term.constraint.relation in MAY_BE_UNKNOWN and not term.missing:
                lacks |= np.isnan(self.likely(term))
        return lacks

    def likely(self, term: ConstraintScore) -> F64:
        """(N,) likelihood of one condition in [0, 1]; NaN for undecided ones and superlatives."""
        if term.constraint not in self._likely:
            self._likely[term.constraint] = self._how_likely(term)
        return self._likely[term.constraint]

    def _how_likely(self, term: ConstraintScore) -> F64:
        c = term.constraint
        undecided = np.full(self.g.n, np.nan)
        if term.missing or c.is_superlative:
            return undecided
        if c.relation in _MEASURES | _FROM_VIEWER | {"same-colour"}:
            holds = term.holds
        elif c.relation == "colour":
            if self.colors is None:
                return undecided
            holds = color_likelihood(self.colors, c.value)
        elif c.relation == "state":
            holds = term.holds
        elif c.relation == "between":
            if c not in self._ends:
                return undecided
            pairs, lies, weight = self._ends[c]
            holds = self._doubted(pairs.best(is_between(lies) * weight), c)
        elif c.relation in LIKELIHOODS:
            weight = np.maximum.reduce([self.anchor_weights(a) for a in c.anchors])
            chosen = weight >= 0.5 * float(weight.max(initial=0.0))
            pairs = self.g.near(self.rows, np.flatnonzero(chosen), LIKELIHOOD_REACH_M[c.relation])
            if c.relation in ("left", "right") and self._direction(self.meaning.speaker) is not None:
                likely = sigmoid((_SIDE_REACH_M - pairs.gap) / 0.3)  # the stated viewpoint decides the side
            else:
                likely = LIKELIHOODS[c.relation](pairs)
            if c.negated and c.relation in ("near", "with"):
                likely = is_touching(pairs)  # "not near" and "without" exclude only very close objects
            holds = pairs.best(likely * pairs.different)
            itself = pairs.where(~pairs.different).target
            others = int(chosen.sum()) - np.bincount(itself, minlength=self.g.n)
            holds = np.where(others > 0, holds, np.nan)  # "the other chair", where only one was detected
            holds = self._doubted(holds, c)
        else:
            return undecided
        return np.asarray(1.0 - holds if c.negated else holds)

    def _doubted(self, holds: F64, c: Constraint) -> F64:
        """Make low values undecided where no confirmed object is the anchor: the real anchor may be unseen."""
        for anchor in c.anchors:
            weight = self.anchor_weights(anchor)
            if not (weight[: self.trust.confirmed] >= 0.5 * float(weight.max(initial=0.0))).any():
                return np.where(holds < _PERHAPS, np.nan, holds)
        return holds

    def _in_sight(self, c: Constraint) -> Constraint:
        """Replace sides of an unknown viewer: on the left of all."""
        if c.relation in ("left-of-me", "right-of-me") and self.g.viewer is None:
            return replace(c, relation=c.relation.removesuffix("-of-me") + "-of-all")
        return c

    def _log(self, term: ConstraintScore) -> F64:
        """Log score of a constraint relative to the best candidate: an unsatisfied constraint counts little."""
        c, holds = term.constraint, term.holds
        if term.missing or np.isnan(holds).all():
            return np.zeros(self.g.n)
        known = np.nan_to_num(holds)
        many = any(a.plural for a in c.anchors)
        best = max(float(known[self.candidates].max(initial=0.0)), 0.05 if many else 0.15)
        scaled = np.clip(known / best, 0.0, 1.0)
        if c.negated:
            scaled = 1.0 - scaled
        scaled = np.where(np.isnan(holds), UNDECIDED, scaled)
        return np.asarray(WEIGHTS[c.relation] * c.weight * np.log(_EPS + scaled))

    # ---------------------------------------------------------------------------------------------------- constraints

    def _score(self, c: Constraint) -> ConstraintScore:
        if c.relation == "colour":
            if self.colors is None:
                return ConstraintScore(c, np.full(self.g.n, np.nan))
            return ConstraintScore(c, color_scores(self.colors, c.value))
        if c.relation == "material":
            return ConstraintScore(c, np.full(self.g.n, np.nan))
        if c.relation == "state":
            return ConstraintScore(c, self._in_state(c.value))
        if c.relation in _FROM_VIEWER:
            return ConstraintScore(c, from_viewer(self.g, c.relation))
        if c.relation in _MEASURES and not c.anchors:
            return ConstraintScore(c, self._measured(c))
        weights = [self.anchor_weights(anchor) for anchor in c.anchors]
        missing = self._missing(c)
        if len(missing) == len(c.anchors) or (c.relation in _TWO_SIDED and missing):
            return ConstraintScore(c, np.full(self.g.n, np.nan), missing)
        if c.relation == "between":
            self._find_ends(c, weights)
            if c not in self._ends:
                return ConstraintScore(c, np.full(self.g.n, np.nan), tuple(anchor.noun for anchor in c.anchors))
            pairs, lies, weight = self._ends[c]
            return ConstraintScore(c, pairs.best(lies * weight))
        if c.relation in ("larger", "smaller", "same-colour"):
            return ConstraintScore(c, self._compared(c, np.maximum.reduce(weights)))
        if c.relation in ("nearer", "farther"):
            near = self._gap_to(weights[0], np.inf)
            other = int(weights[1].argmax())
            alike = c.anchors[1].noun == self.noun or c.value == "is"  # "nearer to the door than the green one is"
            far = self._gap_to(weights[1], np.inf)
            if alike:
                one = np.flatnonzero(weights[0] >= 0.5 * float(weights[0].max()))
                far = np.full(self.g.n, float(self.g.block(np.array([other]), one).gap.min()))
            sign = 1.0 if c.relation == "nearer" else -1.0
            itself = alike & (np.arange(self.g.n) == other)
            return ConstraintScore(c, np.where(itself, 0.0, sigmoid(sign * (far - near) / _CLOSER_M)))
        if c.relation in _MEASURES:
            far = self._gap_to(np.maximum.reduce(weights), 2.0 * c.amount_m + 1.0)
            if c.relation == "distance":  # between the outlines or the centres
                apart = self._gap_to(np.maximum.reduce(weights), 2.0 * c.amount_m + 1.0, centres=True)
                return ConstraintScore(c, is_about(np.stack([far, apart]), c.amount_m))
            return ConstraintScore(c, (is_within if c.relation == "within" else is_more_than)(far, c.amount_m))
        weight = np.maximum.reduce(weights)
        level = self._on_level(c, weight)
        if level is not None:
            self._likely[c] = 1.0 - level if c.negated else level
            return ConstraintScore(c, level)
        pairs, fits = self._related(c, self.rows, np.flatnonzero(weight))
        fits = is_touching(pairs) if c.negated and c.relation == "with" else fits  # what stands near is not lacked
        if pairs.different.size and not pairs.different.any():  # "the desk on the desk" with only one desk
            return ConstraintScore(c, np.full(self.g.n, np.nan), tuple(f"other {a.noun}" for a in c.anchors))
        aside = self.noun == ANYTHING and c.relation in _BESIDE
        if aside:  # the nearest one; the stand of a television is not in front of it
            fits = fits * (1.0 - is_on(pairs.swapped)) * np.exp(-pairs.gap / _NEXT_M)
        holds = pairs.best(fits * pairs.different * weight[pairs.anchor])
        if aside:  # the table before the couch, not the books on it
            carried, on = self.g.related("on", self.rows, self.rows)
            there: F64 = np.sqrt(holds)[carried.anchor] * (on > 0.5)
            under = carried.best(there * carried.different)
            holds = holds * (1.0 - _CARRIED * under)
        return ConstraintScore(c, holds)

    def _on_level(self, c: Constraint, weight: F64) -> F64 | None:
        """(N,) 1 on the level of a piece of furniture that an order names, "on the second shelf from the top"; None
        without an order by height, and where each anchor holds objects at one level."""
        order = next((o for o in c.anchors[0].constraints if o.relation in ("high", "low", "middle-of-kind")), None)
        if c.relation not in ("on", "in") or order is None:
            return None
        g, found, most = self.g, np.zeros(self.g.n), 0
        for anchor in np.flatnonzero(weight >= 0.5 * float(weight.max())):
            pairs = g.block(np.arange(g.n, dtype=np.intp), np.array([anchor], dtype=np.intp))
            held = np.flatnonzero((LIKELIHOODS["in"](pairs) * pairs.different)[:, 0] > 0.5)
            foot, top, own = g.low[held, 2], g.high[held, 2], g.block(held, held)
            stacked = (np.abs(foot[:, None] - top[None]) < _STACKED_M) & (own.footprint_share > 0.3)
            standing = np.sort(foot[~stacked.any(axis=1)])
            levels = standing[np.diff(standing, prepend=-np.inf) > _LEVEL_M]
            count, place = len(levels), np.searchsorted(levels, foot + _STACKED_M) - 1
            place = count - 1 - place if order.relation == "high" else place
            if order.relation == "middle-of-kind":
                meant = np.abs(place - 0.5 * (count - 1)) < 1.0
            else:  # "the lower shelf" is one of the lower half, "the lowest" is one
                meant = place == order.rank - 1 if max(order.weight, order.rank) > 1 else place < 0.5 * count
            found[held[meant]], most = 1.0, max(most, count)
        return found if most > 1 else None

    def _gap_to(self, weight: F64, reach_m: float, centres: bool = False) -> F64:
        """(N,) metres from each target to the nearest anchor, searched within ``reach_m``."""
        pairs = self.g.near(self.rows, np.flatnonzero(weight >= 0.5 * float(weight.max())), reach_m)
        apart = pairs.distance_xy if centres else pairs.gap
        nearest = pairs.best(-np.where(pairs.different, apart, np.inf).astype(np.float64), none=-1e3)
        return np.asarray(-nearest)

    def _in_state(self, state: str) -> F64:
        """(N,) probability that each object has the state; NaN = unknown."""
        states = self.g.conditions or ("",) * self.g.n
        same = np.array([_SEEN_SO if known == state else 1.0 - _SEEN_SO for known in states], dtype=np.float64)
        return np.where([bool(known) for known in states], same, np.nan)

    def _measured(self, c: Constraint) -> F64:
        """(N,) likelihood of a measure without an anchor: sizes, and distances from the viewer."""
        g = self.g
        if c.relation in ("within", "beyond"):
            return (is_within if c.relation == "within" else is_more_than)(viewer_distance(g), c.amount_m)
        if c.relation == "distance":
            return is_about(viewer_distance(g)[None], c.amount_m)
        if c.relation == "measured":
            return is_about(self._size(c.value), c.amount_m)
        holds = is_more_than(self._size(c.value or "length")[0], c.amount_m)
        return holds if c.relation == "larger" else 1.0 - holds

    def _size(self, axis: str) -> F64:
        """(K, N) metres along the axis, or along each possible axis."""
        g = self.g
        height: F64 = g.extent[:, 2]
        width: F64 = g.size[:, :2].max(axis=1, initial=0.0)
        if axis == "elevation":
            return np.asarray(g.low[:, 2] - g.low[:, 2].min(initial=np.inf))[None]
        one = {"height": height, "width": width, "length": np.maximum(height, width)}.get(axis)
        return np.stack([height, width]) if one is None else one[None]

    def _compared(self, c: Constraint, weight: F64) -> F64:
        """(N,) likelihood that each is larger or smaller than the anchor, or has its colour; NaN = unknown."""
        chosen = np.flatnonzero(weight >= 0.5 * float(weight.max()))
        other = np.arange(self.g.n)[:, None] != chosen[None]
        share = weight[chosen] * other
        if c.relation == "same-colour":
            if self.colors is None:
                return np.full(self.g.n, np.nan)
            alike = same_color(self.colors, chosen)
        else:
            size = np.log(self._size(c.value)[0] if c.value else self.g.volume)
            apart = size[:, None] - size[chosen][None]
            alike = sigmoid((apart if c.relation == "larger" else -apart) / _SIZE_APART)
        total = share.sum(axis=1)
        return np.asarray(np.where(total > 0, (share * alike).sum(axis=1) / np.maximum(total, 1e-9), 0.0))

    def _related(self, c: Constraint, rows: Index, columns: Index) -> tuple[Pairs, F64]:
        """Pairs within reach of a constraint's relation, and their scores."""
        direction = self._direction(self.meaning.speaker)
        if direction is None or c.relation not in ("left", "right"):
            return self.g.related(c.relation, rows, columns)
        pairs = self.g.near(rows, columns, REACH_M[c.relation])
        left = np.array([-direction[1], direction[0]])
        lateral = pairs.offset @ left * (1.0 if c.relation == "left" else -1.0)
        return pairs, np.asarray(1.0 / (1.0 + np.exp(np.clip(-lateral / 0.2, -50, 50))) * np.exp(-pairs.gap / 1.2))

    def _find_ends(self, c: Constraint, weights: list[F64]) -> None:
        """Store pairs of targets and one end, their scores of lying between both ends, and the weights of the ends."""
        g, one_kind = self.g, len(weights) == 1
        first, second = weights[0], weights[-1]
        both = [np.flatnonzero(w > max(0.3, 0.5 * float(w.max(initial=0.0)))) for w in (first, second)]
        one, other = self._joined(both[0], both[1])
        ends = Pairs(g, one.anchor, other.anchor)
        apart = (ends.target < ends.anchor) if one_kind else (ends.target != ends.anchor)
        apart &= ends.iou < BETWEEN_IOU
        if apart.any():
            one, other = one.where(apart), other.where(apart)
            self._ends[c] = one, between(one, other), first[one.anchor] * second[other.anchor]

    def _joined(self, first: Index, second: Index) -> tuple[Pairs, Pairs]:
        """Pairs of targets near one of ``first`` and near one of ``second``: two lists with equal targets."""
        lists = [self.g.near(self.rows, ends, _BETWEEN_REACH_M) for ends in (first, second)]
        one, other = (p.where(np.ones(p.shape, dtype=bool)) for p in lists)
        begin = np.searchsorted(other.target, one.target, side="left")
        count = np.searchsorted(other.target, one.target, side="right") - begin
        left = np.repeat(np.arange(len(one.target)), count)
        right = np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(begin, count)
        return Pairs(self.g, one.target[left], one.anchor[left]), Pairs(
            self.g, other.target[right], other.anchor[right]
        )

    def anchor_weights(self, anchor: ObjectPhrase) -> F64:
        """(N,) weight of each object as the anchor: by label, confidence and constraints."""
        if anchor not in self._weights:
            self._weights[anchor] = self._anchor_weights(anchor)
        return self._weights[anchor]

    def _anchor_weights(self, anchor: ObjectPhrase) -> F64:
        weight = self.similarity(anchor.noun) * np.sqrt(self.scores)
        if " " in anchor.noun and anchor.noun in self.labels:  # a kitchen island is preferred over a counter
            exact = np.array([label == anchor.noun for label in self.labels], dtype=bool)
            weight = np.where(exact, weight, 0.5 * weight)
        if not anchor.constraints or not (weight > _LIKELY).any():
            return weight
        scorer = self._scorer_of(anchor)
        for term in scorer.evidence().terms:
            likely, c = weight > _LIKELY, term.constraint
            holds = np.nan_to_num(term.satisfied, nan=UNDECIDED)
            if term.missing or not likely.any():
                continue
            if c.relation in PAIR_RELATIONS and not c.negated:
                holds = holds / max(float(holds[likely].max()), 1e-6)
            elif c.relation == "colour":  # of a gray ball and a green one only the gray one is "the gray one"
                holds = np.nan_to_num(scorer.likely(term), nan=UNDECIDED)
            weight = weight * (0.3 + 0.7 * np.clip(holds, 0.0, 1.0))
        return weight

    def _is_there(self, anchor: ObjectPhrase) -> bool:
        """Whether an object may be the anchor, whatever is said of it."""
        named = self.similarity(anchor.noun)
        weight = named * np.sqrt(self.scores)
        return bool(named.max(initial=0.0) > _ANCHOR_NAMED and weight.max(initial=0.0) >= _ANCHOR_THERE)

    def _missing(self, c: Constraint) -> tuple[str, ...]:
        """Nouns of a constraint's anchors that the scene lacks."""
        return tuple(a.noun for a in c.anchors if not self._is_there(a))

    def absent(self) -> ObjectPhrase | None:
        """The first landmark that no object is, with its description; None where every landmark may be there."""
        for c in self.meaning.constraints:
            for anchor in c.anchors if c.weight >= 1.0 and not c.negated else ():
                if anchor.noun == ANYTHING:
                    continue
                if not self._is_there(anchor):
                    return replace(anchor, constraints=())
                if not anchor.constraints:
                    continue
                weight = self.similarity(anchor.noun) * np.sqrt(self.scores)
                scorer = self._scorer_of(anchor)
                nested = scorer.absent()
                if nested is not None:
                    return nested
                fits = scorer.plausible(scorer.evidence())
                if fits[weight >= 0.5 * weight.max()].max() < _HARDLY:
                    return anchor
        return None

    def _scorer_of(self, anchor: ObjectPhrase) -> Scorer:
        """A scorer whose target is the anchor."""
        if anchor not in self._scorers:
            meaning = Meaning(self.meaning.text, anchor, anchor.constraints, self.meaning.speaker)
            self._scorers[anchor] = Scorer(meaning, self.g, self.labels, self.scores, self.colors, trust=self.trust)
        return self._scorers[anchor]

    def _context(self) -> F64:
        """Mean log closeness to all other objects in the sentence."""
        total, count = np.zeros(self.g.n), 0
        compared = {a.span for c in self.meaning.constraints if c.is_superlative and c.rank > 1 for a in c.anchors}
        for phrase in self.meaning.mentioned:
            if phrase.span in compared:
                continue  # "the second closest to the table" must not prefer the closest
            weight = self.similarity(phrase.noun) * np.sqrt(self.scores)
            if weight.max(initial=0.0) > 0.3:
                total += np.log(_EPS + self._nearest_of(weight))
                count += 1
        return total / max(count, 1)

    def _nearest_of(self, weight: F64) -> F64:
        """(N,) weighted closeness of each target, searched in growing radii; rows that are already close enough are
        skipped."""
        columns, rest = np.flatnonzero(weight), self.rows
        best = np.zeros(self.g.n)
        for reach_m in (*_CLOSE_BY_M, REACH_M["near"]):
            pairs, near = self.g.related("near", rest, columns, reach_m)
            best = np.maximum(best, pairs.best(near * pairs.different * weight[pairs.anchor]))
            rest = rest[best[rest] < near_beyond(reach_m) * float(weight.max())]
            if not len(rest):
                break
        return best

    # ---------------------------------------------------------------------------------------------------- superlatives

    def _compare(self, c: Constraint, group: F64) -> tuple[F64, tuple[str, ...]]:
        """(N,) log score of a superlative among the group, and its missing anchors."""
        if c.rank > 1 and c.relation not in ("from-left", "from-right", "nth"):
            score, missing = self._compare(replace(c, rank=1), group)
            return nth_best(score, group, c.rank), missing
        name = c.relation
        sign = -1.0 if c.negated else 1.0
        if name == "nth":
            return np.zeros(self.g.n), ()
        if name in ("nearest-me", "farthest-me"):
            if self.g.viewer is None:
                return np.zeros(self.g.n), ()
            distance = viewer_distance(self.g)
            return sign * log_share(-distance / 0.3 if name == "nearest-me" else distance / 0.5, group), ()
        if name == "middle-of-kind":
            return sign * self._among_its_kind(group), ()
        if name in ("closest", "farthest"):
            weights = [self.anchor_weights(anchor) for anchor in c.anchors]
            missing = self._missing(c)
            if len(missing) == len(c.anchors):
                return np.zeros(self.g.n), missing
            return sign * nearest(self.g, np.maximum.reduce(weights), group, name == "farthest", self.rows), ()
        if name in _STATURE:
            return sign * stature(name, self.g, group, outright=c.weight > 1.0), ()
        if name in ("corner", "middle", "wall", "alone"):
            return sign * place_in_room(name, self.g, group), ()
        left = leftness(self.g, group, self._direction(self.meaning.speaker))
        if name in ("from-left", "from-right"):
            return nth_best(left if name == "from-left" else -left, group, c.rank), ()
        return sign * (left if name in ("leftmost", "left-of-all") else -left), ()

    def _among_its_kind(self, group: F64) -> F64:
        """Closeness to the middle of the group; for fewer than three objects, to the middle of the room."""
        if int((group > _COUNTS).sum()) < 3:
            return place_in_room("middle", self.g, group)
        center = self.g.center[:, :2]
        middle = (center * group[:, None]).sum(0) / float(group.sum())
        own = -contrast(np.linalg.norm(center - middle, axis=1), group)
        return 0.7 * own + 0.3 * place_in_room("middle", self.g, group)

    def _direction(self, speaker: SpeakerViewpoint | None) -> F64 | None:
        """(2,) unit viewing direction that the sentence states, in the geometry's frame."""
        if speaker is None:
            return None
        weight = self.similarity(speaker.anchor.noun) * self.scores
        if weight.max(initial=0.0) <= 0.3:
            return None
        anchor = int(weight.argmax())
        if speaker.kind == "before" and self.g.fronts[anchor].max() > 0.5:
            return -np.asarray(self.g.sides[anchor, int(self.g.fronts[anchor].argmax())])
        low, high = self.g.room
        d = self.g.center[anchor, :2] - 0.5 * (low + high)[:2]
        length = float(np.linalg.norm(d))
        if length <= 0.3:
            return None
        return np.asarray(d / length if speaker.kind in ("at", "before") else -d / length)


# --------------------------------------------------------------------------------------------------------------------
# Superlatives compare candidates with each other: closest, largest, leftmost, the second from the left, in the corner.
#
# Each takes the geometry and (N,) weights in [0, 1] of the group of candidates (how well they satisfy the rest of the
# sentence), and returns (N,) log scores, of which only differences matter.

_COUNTS = 0.05  # least weight of a candidate
_MOST_IN_ROWS = 40  # objects among which a row is looked for
_APART = 0.06  # metres, or share, by which the largest exceeds others
_FARTHER = 0.02  # cost of a metre from the viewer, against a metre between neighbours


def contrast(x: F64, group: F64) -> F64:
    """Standard score of each value in the group, about [-2.5, 2.5]; larger values keep their order.

    Fades to zero for groups of hardly more than one member.
    """
    total = float(group.sum())
    if total <= 0 or int((group > _COUNTS).sum()) < 2:
        return np.zeros_like(x)
    mean = float((group * x).sum()) / total
    deviation = float(np.sqrt((group * (x - mean) ** 2).sum() / total)) + 1e-3
    members = total * total / float((group * group).sum())
    return np.asarray(soft_clip((x - mean) / deviation, -2.5, 2.5) * np.clip((members - 1.0) / 0.6, 0.0, 1.0))


def log_share(x: F64, group: F64) -> F64:
    """Log of the softmax of ``x`` over the group, about [-3, 0]; lower values keep their order."""
    members = group > _COUNTS
    if not members.any():
        return np.zeros_like(x)
    y = x - x[members].max()
    total = float((group[members] * np.exp(y[members])).sum())
    return soft_clip(np.minimum(y - np.log(total + 1e-9), 0.0), -3.0, 0.0)


def soft_clip(x: F64, low: float, high: float) -> F64:
    """Clip ``x`` to [low, high] softly: values beyond keep their order within 0.1."""
    inside = np.clip(x, low, high)
    beyond = x - inside
    return np.asarray(inside + 0.1 * beyond / (10.0 + np.abs(beyond)))


def first_of_each(order: Index, alike: Pairs) -> Index:
    """Return boxes in order, skipping those similar to one already kept; ``alike`` lists similar pairs both ways."""
    begin = np.searchsorted(alike.target, np.arange(alike.g.n + 1))
    taken, blocked = [], np.zeros(alike.g.n, bool)
    for i in order.tolist():
        if not blocked[i]:
            taken.append(i)
            blocked[alike.anchor[begin[i] : begin[i + 1]]] = True
    return np.array(taken, dtype=np.intp)


def nearest(g: SceneGeometry, anchors: F64, group: F64, farthest: bool = False, rows: Index | None = None) -> F64:
    """Score of the closest to (farthest from) the nearest anchor; (N,) weights of anchors; ``rows``: default all."""
    rows = np.arange(g.n, dtype=np.intp) if rows is None else rows
    most = 60.0
    pairs = g.near(rows, np.flatnonzero(anchors >= 0.5 * anchors.max()), most if farthest else 18.0)
    distance = np.where(pairs.different, np.asarray(0.5 * pairs.gap + 0.5 * pairs.distance_xy), 9.0)
    distance = -pairs.best(-distance, none=-most)
    return log_share(distance / 0.5 if farthest else -distance / 0.35, group)


def leftness(g: SceneGeometry, group: F64, direction: F64 | None) -> F64:
    """(N,) position of each box to the left within the group, about [-1, 1].

    ``direction``: (2,) viewing direction that the sentence states. Otherwise the viewer decides, or the mean over
    plausible viewpoints.
    """
    center = g.center[:, :2]
    if direction is not None:
        return contrast(center @ np.array([-direction[1], direction[0]]), group) / 1.5
    middle = (center * group[:, None]).sum(0) / max(float(group.sum()), 1e-9)
    if g.viewer is not None:
        return contrast(_bearing(center, middle, g.viewer), group) / 1.5
    total, weights = np.zeros(g.n), 0.0
    for point in g.view_points:
        d = middle - point
        r = float(np.linalg.norm(d))
        if r < 0.8:
            continue
        left = np.array([-d[1], d[0]]) / r
        weight = min(1.0, r - 0.5)
        total += weight * contrast((center - middle) @ left, group) / 1.5
        weights += weight
    return total / max(weights, 1e-6)


def _bearing(center: F64, middle: F64, viewer: Viewer) -> F64:
    """(N,) angle to the left of the line of sight, which points to the group when it is ahead."""
    ahead = middle - viewer.position
    r = float(np.linalg.norm(ahead))
    sight = ahead / r if r > 0.5 and float(ahead @ viewer.heading) > 0 else viewer.heading
    d = center - viewer.position
    return np.asarray(np.arctan2(d @ np.array([-sight[1], sight[0]]), d @ sight))


def nth_best(score: F64, group: F64, rank: int) -> F64:
    """Score of the ``rank``-th best: 0 for it, -1 for its neighbours and so on."""
    members = np.flatnonzero(group > 0.15)
    place = np.full(len(score), float(len(members)))
    place[members[np.argsort(-score[members], kind="stable")]] = np.arange(len(members), dtype=np.float64)
    return np.asarray(-np.minimum(np.abs(place - (rank - 1)), 2.5))


def best_row(g: SceneGeometry, fits: F64, count: int) -> NDArray[np.bool_]:
    """(N,) bool: the ``count`` objects that are most likely a row: in line, evenly and closely spaced, fitting, and
    near to the viewer; every object with a fit where there are not more, or more than :data:`_MOST_IN_ROWS`."""
    rows = np.flatnonzero(fits > 0)
    if not 1 < count < len(rows) <= _MOST_IN_ROWS:
        return fits > 0
    xy, off_m = g.center[rows, :2], np.nan_to_num(viewer_distance(g))[rows]
    best, row = np.inf, rows
    for i, j in combinations(range(len(rows)), 2):
        places = np.linspace(xy[i], xy[j], count)
        apart = np.linalg.norm(places[:, None] - xy[None], axis=2)
        own, step_m = apart.argmin(axis=1), float(np.linalg.norm(xy[j] - xy[i])) / (count - 1)
        cost = float(apart.min(axis=1).max()) / max(step_m, 1e-6) + step_m
        cost += float(_FARTHER * off_m[own].mean() - np.log(fits[rows[own]]).mean())
        if cost < best and len(set(own.tolist())) == count:
            best, row = cost, rows[own]
    return np.isin(np.arange(g.n), row)


def stature(relation: str, g: SceneGeometry, group: F64, outright: bool = False) -> F64:
    """Score of a size or height: large, small, tall, short, long, narrow, round, high, low; ``outright``: only the
    difference to the best counts."""
    lengths = np.maximum(g.size[:, 0], g.size[:, 1])
    widths = np.minimum(g.size[:, 0], g.size[:, 1])
    measure, sign = {
        "large": (np.log(g.volume), 1.0),
        "small": (np.log(g.volume), -1.0),
        "tall": (g.extent[:, 2], 1.0),
        "short": (g.extent[:, 2], -1.0),
        "long": (np.log((lengths + 0.05) / (widths + 0.05)), 1.0),
        "round": (np.log((lengths + 0.05) / (widths + 0.05)), -1.0),
        "narrow": (lengths, -1.0),
        "high": (g.center[:, 2], 1.0),
        "low": (g.center[:, 2], -1.0),
    }[relation]
    return log_share(sign * measure / _APART, group) if outright else sign * contrast(measure, group)


def place_in_room(relation: str, g: SceneGeometry, group: F64) -> F64:
    """Score of a place: corner, middle, wall, alone."""
    if relation == "alone":
        pairs = g.near(np.arange(g.n, dtype=np.intp), np.flatnonzero(group > 0.5), 5.0)
        others = -pairs.best(-np.where(pairs.different, pairs.gap, np.inf), none=-5.0)
        return contrast(others, group)
    low, high = g.room
    center, half = g.center[:, :2], 0.5 * g.extent[:, :2]
    to_walls = np.maximum(np.concatenate([center - half - low[:2], high[:2] - center - half], axis=1), 0.0)
    x, y = np.minimum(to_walls[:, 0], to_walls[:, 2]), np.minimum(to_walls[:, 1], to_walls[:, 3])
    if relation == "corner":
        return -contrast(np.hypot(x, y), group)
    if relation == "wall":
        return -contrast(np.minimum(x, y), group)
    return -contrast(np.linalg.norm((center - 0.5 * (low + high)[:2]) / (high - low)[:2], axis=1), group)
