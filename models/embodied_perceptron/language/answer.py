"""Answers: which objects a sentence means, as exactly one of FOUND, NOT_FOUND, AMBIGUOUS and INVALID.

    grounding = ground_objects("the chair left of the red sofa", objects, T_world_camera)

The scores of the candidates are probabilities that this is the object meant, not confidences of the detector.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.language.candidates import LowConfidenceCandidates, anchor_nouns
from embodied_perceptron.language.facing import FrontSource, check_source, front_probabilities
from embodied_perceptron.language.lexicon import lexicon, pluralize
from embodied_perceptron.language.parser import Constraint, Meaning
from embodied_perceptron.language.query import DEFAULT_TOP_K, Query, query_problem
from embodied_perceptron.language.relations import SceneGeometry, viewer_of
from embodied_perceptron.language.scoring import Evidence, Scorer
from embodied_perceptron.results import UNNAMED, Grounding, GroundingStatus, SceneObject
from embodied_perceptron.scene.identity import INSIDE_SHARE, ONE_THING_IOU, PROPOSED_IOU
from embodied_perceptron.weights.categories import ALL_CATEGORIES

F64 = NDArray[np.float64]
Colors = NDArray[np.floating] | Callable[[F64], NDArray[np.floating]]

VOCABULARY = frozenset(ALL_CATEGORIES)
# how well a label must answer to the noun: one that is a label itself, another one, one of an unknown vocabulary
_SAME_NAME, _SAME_KIND, _ANY_KIN = 0.85, 0.35, 0.0
_SURE_ALONE = 0.5  # score of a proposed box that counts without any label
_CONFIDENCE_SHARE = 0.3  # how much the detector's confidences count for "just as good"
_UNSURE = 0.02  # score of a proposed box that says little
_AS_GOOD = 0.75  # of the best one's probability: just as good
# what holds less than this for all candidates does not hold for any
_HARDLY = {"colour": 0.04, "on": 0.001, "in": 0.001, "above": 0.001, "below": 0.001}
_WALLS = frozenset(("wall", "partition"))


class Candidates(Protocol):
    """Boxes that a neural grounder proposes for a sentence, world frame: (K, 9) and (K,) in [0, 1]."""

    @property
    def boxes(self) -> NDArray[np.float64]: ...

    @property
    def scores(self) -> NDArray[np.float64]: ...


def ground_objects(
    query: Query | str,
    objects: Sequence[SceneObject],
    viewpoint: NDArray[np.float64] | None = None,
    *,
    colors: Colors | None = None,
    candidates: Candidates | None = None,
    fronts: FrontSource = "estimated",
    named: bool = True,
    vocabulary: frozenset[str] | None = VOCABULARY,
    low_confidence: LowConfidenceCandidates | None = None,
    own_sides: bool = False,
) -> Grounding:
    """Answer ``query`` about ``objects``. Pure, a few milliseconds for a hundred objects, never raises for any text.

    Args:
        query: the sentence, parsed or not. Its viewpoint, or else ``viewpoint``, is the (4, 4) pose of the speaker, a
            camera's or a robot's (:func:`~.relations.viewer_of`). Without, words like "left" are averaged over
            plausible viewpoints, and the score is lower.
        objects: with labels; walls among them separate rooms.
        colors: (N, 3) mean sRGB of the objects in 0..255, rows of NaN where not measured; or a function that measures
            those of (K, 9) boxes, called only for sentences that speak of colours.
        candidates: of a neural grounder: further evidence, and an answer where no label fits the noun; a box that is
            none of the objects is answered with the id 0.
        fronts: "boxes" when -y of every box is the object's front (annotations), "estimated" when sides have no meaning
            (predicted boxes), "none" to read "left of" from the viewer always.
        named: False when nothing gives the objects names (no network is loaded): then only named ones can be asked for.
        vocabulary: names that the detector gives: what has one of them is called so, and a noun that is one of them
            means nothing else. None = unknown: then constraints of the sentence may outweigh a label.
        low_confidence: made of the same ``objects``: further candidates beside them. An answer from these is FOUND with
            a lower score; its state is tentative, and its id 0 unless the map has it.
        own_sides: read "left of the couch" as the couch's own left although the speaker's pose is known, as the
            prompts of benchmarks mean it; otherwise only "on the couch's left" does.

    Raises ``ValueError`` for a viewpoint that is no pose, colours of another shape, or given as an array beside
    ``low_confidence``.
    """
    query = Query.of(query, viewpoint)
    check_source(fronts)
    problem = query_problem(query.text)
    labels = {o.label for o in objects}
    if problem:
        return query.answer(GroundingStatus.INVALID, reason=problem)
    if not named and labels <= {UNNAMED}:
        return query.answer(GroundingStatus.INVALID, reason="no language model loaded: objects have no names")
    meaning = query.parsed(labels).meaning
    if meaning is None or meaning.target is None:
        return query.answer(GroundingStatus.INVALID, reason="no object is named in the query")
    answer = _Answer(
        meaning, objects, low_confidence, query.viewpoint, colors, candidates, fronts, vocabulary, own_sides
    )
    status, ranked, reason = answer.decide(query.top_k or DEFAULT_TOP_K)
    tagged = _tagged(query.text, meaning, ranked) if status == GroundingStatus.FOUND else ""
    return query.answer(status, ranked, reason, tagged)


def _tagged(text: str, meaning: Meaning, ranked: Sequence[SceneObject]) -> str:
    assert meaning.target is not None
    first, last = meaning.target.span
    return f"{text[:first]}<p>{text[first:last]}</p>[<obj_{ranked[0].id}>]{text[last:]}"


def _speaks_of_colors(meaning: Meaning) -> bool:
    anchors = [a for c in meaning.constraints for a in c.anchors]
    return any(c.relation == "colour" for c in (*meaning.constraints, *(c for a in anchors for c in a.constraints)))


def _measured(colors: Colors | None, boxes: F64, confirmed: int) -> F64 | None:
    """(N, 3) colours of boxes; of those after the first ``confirmed`` apart, since they lie over them."""
    if colors is None:
        return None
    if callable(colors):
        values = np.concatenate(
            [np.asarray(colors(part), np.float64) for part in (boxes[:confirmed], boxes[confirmed:])]
        )
    else:
        values = np.asarray(colors, dtype=np.float64)
    if values.shape != (len(boxes), 3):
        raise ValueError(f"colors must have shape ({len(boxes)}, 3), got {values.shape}")
    return values


def _relative(scores: F64, confirmed: int) -> F64:
    """Confidences as shares of what this detector gives to a good object: only their order in a scene matters."""
    usual = float(np.percentile(scores[:confirmed] if confirmed else scores, 75)) if len(scores) else 1.0
    return np.asarray(np.clip(scores / max(usual, 1e-9), 0.02, 1.0))


class _Answer:
    """The decision about one meaning: candidates, their evidence, and the status that follows."""

    def __init__(
        self,
        meaning: Meaning,
        confirmed: Sequence[SceneObject],
        low_confidence: LowConfidenceCandidates | None,
        viewpoint: NDArray[np.float64] | None,
        colors: Colors | None,
        candidates: Candidates | None,
        fronts: FrontSource,
        vocabulary: frozenset[str] | None,
        own_sides: bool,
    ) -> None:
        self.meaning = meaning
        objects = (
            tuple(confirmed) if low_confidence is None else (*low_confidence.objects, *low_confidence.about(meaning))
        )
        self.objects = objects
        self.min_answer = 0.0 if low_confidence is None else low_confidence.min_answer
        self.confirmed = len(confirmed)  # the first of the objects; the others are of low confidence
        noun = "" if meaning.target is None else meaning.target.noun
        self.least_kind = _ANY_KIN if vocabulary is None else (_SAME_NAME if noun in vocabulary else _SAME_KIND)
        self.labels = tuple(o.label for o in objects)
        boxes = np.array([o.box for o in objects], dtype=np.float64).reshape(-1, 9)
        viewer = None if viewpoint is None else viewer_of(viewpoint)
        color = _measured(colors, boxes, self.confirmed) if _speaks_of_colors(meaning) else None
        self.viewer_known = viewer is not None or meaning.speaker is not None
        walls = np.array([label in _WALLS for label in self.labels], dtype=bool)
        self.geometry = SceneGeometry(boxes, None, viewer, walls, self._may_be_anchors(), own_sides)
        geometry, names = self.geometry, self.labels
        geometry.tell_fronts(lambda: front_probabilities(geometry, names, fronts))
        self.relative = scores = _relative(np.array([o.score for o in objects], dtype=np.float64), self.confirmed)
        self.proposals = candidates
        extra = None if candidates is None else self._extra(candidates)
        self.scorer = Scorer(meaning, self.geometry, self.labels, scores, color, extra)
        self.in_vocabulary = vocabulary is not None and noun in vocabulary

    def _may_be_anchors(self) -> NDArray[np.bool_]:
        """(N,) labels that answer at all to a noun of an anchor."""
        speaker = self.meaning.speaker
        nouns = (*anchor_nouns(self.meaning), *(() if speaker is None else (speaker.anchor.noun,)))
        kind = {label: any(lexicon().similarity(noun, label) > 0 for noun in nouns) for label in set(self.labels)}
        return np.array([kind[label] for label in self.labels], dtype=bool)

    def _extra(self, candidates: Candidates) -> F64:
        """(N,) the neural grounder's score of each object as a share of its best; nearly equal where it is unsure."""
        if len(candidates.boxes) == 0 or not self.objects:
            return np.ones(len(self.objects))
        overlap = self.geometry.overlaps(candidates.boxes)
        score = np.where(overlap > PROPOSED_IOU, candidates.scores[None], 0.0).max(axis=1)
        return np.asarray((score + _UNSURE) / (float(candidates.scores.max()) + _UNSURE))

    def decide(self, top_k: int) -> tuple[GroundingStatus, tuple[SceneObject, ...], str]:
        """Status, at most ``top_k`` candidates, best first, and the reason in words."""
        target = self.meaning.target
        assert target is not None
        kind = self.scorer.category
        if kind.max(initial=0.0) < self.least_kind:
            return self._by_sight(target.noun)
        there = kind >= self.least_kind
        if (
            not there[: self.confirmed].any()
            and max(self.objects[i].score for i in np.flatnonzero(there)) < self.min_answer
        ):
            return GroundingStatus.NOT_FOUND, (), f"there is no {target.noun}"
        evidence = self.scorer.evidence()
        order, probability = self._ranking(evidence)
        unsatisfied = self._unsatisfied(evidence)
        if unsatisfied is not None:
            words = _words(unsatisfied)
            return GroundingStatus.NOT_FOUND, (), f"there is a {target.noun}, but none that is {words}"
        sure = probability_right(self._traits(evidence, order, probability)) * self._existence(order[0])
        probability = probability * (sure / probability[0])
        ranked = tuple(
            dataclasses.replace(self.objects[i], score=float(p)) for i, p in zip(order, probability, strict=True)
        )
        rivals = [p for p in self._fit_share(evidence, order)[1:] if p > _AS_GOOD]
        if rivals:
            count = 1 + len(rivals)
            reason = f"{count} {pluralize(target.noun)} fit equally well"
            return GroundingStatus.AMBIGUOUS, ranked[:top_k], reason
        return GroundingStatus.FOUND, ranked[:top_k], self._reason(evidence, order[0])

    def _by_sight(self, noun: str) -> tuple[GroundingStatus, tuple[SceneObject, ...], str]:
        """Where no object has a fitting name: what the neural grounder points at, if it is sure."""
        nothing = GroundingStatus.NOT_FOUND, (), f"there is no {noun}"
        proposals = self.proposals
        if proposals is None or self.in_vocabulary or len(proposals.boxes) == 0:
            return nothing
        best = int(np.argmax(proposals.scores))
        score = float(proposals.scores[best])
        if score < _SURE_ALONE:
            return nothing
        overlap = self.geometry.overlaps(proposals.boxes[best : best + 1])[:, 0]
        if overlap.max(initial=0.0) > PROPOSED_IOU:
            o = dataclasses.replace(self.objects[int(overlap.argmax())], score=0.5 * score)
        else:
            o = SceneObject(0, noun, 0.5 * score, np.asarray(proposals.boxes[best], dtype=np.float64))
        return GroundingStatus.FOUND, (o,), f"no label says {noun}, but this looks most like it"

    def _existence(self, i: int) -> float:
        """Probability that there is such a thing at all: of a low-confidence candidate its relative confidence."""
        return 1.0 if i < self.confirmed else float(self.relative[i])

    def _traits(self, evidence: Evidence, order: list[int], probability: F64) -> Traits:
        best = order[0]
        holds = [float(t.holds[best]) for t in evidence.terms if not t.missing and not np.isnan(t.holds[best])]
        fit = self._fit_share(evidence, order)
        return Traits(
            share=float(probability[0]),
            fit_share=float(1.0 / fit.sum()),
            weakest=min(holds, default=1.0),
            unsure_view=not self.viewer_known and any(self._needs_viewer(c) for c in self.meaning.constraints),
            missing=any(t.missing for t in evidence.terms),
            kind=float(evidence.category[best]),
        )

    def _needs_viewer(self, c: Constraint) -> bool:
        """Whether only who speaks decides: sides of nothing, or of an anchor without a front."""
        if not c.is_view_dependent or not c.anchors:
            return c.is_view_dependent
        weight = self.scorer.anchor_weights(c.anchors[0])
        return bool(weight.max(initial=0.0) > 0 and self.geometry.fronts[int(weight.argmax())].sum() < 0.5)

    def _ranking(self, evidence: Evidence) -> tuple[list[int], F64]:
        """Candidates, one box for each thing, best first, with posterior probabilities."""
        possible = evidence.category >= min(self.least_kind, 0.9 * float(evidence.category.max()))
        one_thing = (self.geometry.iou > ONE_THING_IOU) | (self.geometry.inside > INSIDE_SHARE)
        order: list[int] = []
        for i in np.argsort(-evidence.log_score, kind="stable"):
            if possible[i] and not one_thing[i, order].any():
                order.append(int(i))
        scores = evidence.log_score[order]
        share = np.exp(scores - scores.max())
        return order, share / share.sum()

    def _fit_share(self, evidence: Evidence, order: list[int]) -> F64:
        """How well each ranked candidate fits, as a share of the first."""
        counts = np.where(np.array(order) < self.confirmed, _CONFIDENCE_SHARE, 1.0)  # one of low confidence is no equal
        fit = evidence.fit[order] + counts * (evidence.log_score - evidence.fit)[order]
        return np.asarray(np.exp(np.minimum(fit - fit[0], 0.0)))

    def _unsatisfied(self, evidence: Evidence) -> Constraint | None:
        """A constraint that no candidate satisfies at all."""
        members = self.scorer.candidates
        if len(self.meaning.constraints) > 2 or self.meaning.speaker is not None:
            return None  # long descriptions are told loosely, and read so
        for term in evidence.terms:
            c = term.constraint
            if term.missing or c.is_superlative or c.negated or c.weight < 1.0:
                continue
            least = _HARDLY.get(c.relation)
            if least is not None and np.nan_to_num(term.holds[members], nan=1.0).max(initial=0.0) < least:
                return c
        return None

    def _reason(self, evidence: Evidence, best: int) -> str:
        o = self.objects[best]
        said = [
            f"{_words(t.constraint)} ({t.holds[best]:.2f})"
            for t in evidence.terms
            if not t.missing and not np.isnan(t.holds[best])
        ]
        missing = [noun for t in evidence.terms for noun in t.missing]
        text = f"{o.label} {o.id}" if best < self.confirmed else f"{o.label}, not confirmed"
        text += ": " + ", ".join(said) if said else ""
        return text + (f"; no {', no '.join(dict.fromkeys(missing))} found" if missing else "")


_SAID = {
    "left-of-all": "on the left", "right-of-all": "on the right", "viewer-left": "left, facing", "front": "in front of",
    "viewer-right": "right, facing", "closest": "closest to", "farthest": "farthest from", "left": "left of",
    "own-left": "to its own left, of", "own-right": "to its own right, of",
    "right": "right of", "near": "near", "in": "in", "across": "across from", "corner": "in the corner",
    "middle": "in the middle", "wall": "at the wall", "from-left": "from the left", "from-right": "from the right",
}  # fmt: skip


def _words(c: Constraint) -> str:
    """A constraint in words: 'left of the couch'."""
    words = c.value or _SAID.get(c.relation, c.relation)
    if c.relation in ("from-left", "from-right"):
        words = f"number {c.rank} {words}"
    if c.anchors and c.relation != "colour":
        words += " the " + " and the ".join(a.noun for a in c.anchors)
    return ("not " if c.negated else "") + words


# --------------------------------------------------------------------------------------------------------------------
# From the share of the best candidate to the probability that it is the right one. Shares of a posterior are
# overconfident: they know nothing of misread sentences and missed objects. A logistic regression over traits of an
# answer corrects them; its weights stand in ``lexicon/calibration.json`` with the command that made them.

WEIGHTS = Path(__file__).parent / "lexicon" / "calibration.json"
FEATURES = ("one", "share", "fit_share", "weakest", "unsure_view", "missing", "kind")


@dataclass(frozen=True)
class Traits:
    """What is known of an answer.

    Attributes:
        share: of the best candidate in the posterior, (0, 1].
        fit_share: the same without the detector's confidences.
        weakest: how well the constraint that fits it least holds, [0, 1].
        unsure_view: the sentence depends on who speaks, and nobody knows where that is.
        missing: an anchor is not in the scene.
        kind: how well the label answers to the noun.
    """

    share: float
    fit_share: float
    weakest: float
    unsure_view: bool
    missing: bool
    kind: float

    def features(self) -> tuple[float, ...]:
        """In the order of :data:`FEATURES`."""
        return (
            1.0,
            _logit(self.share),
            _logit(self.fit_share),
            math.log(self.weakest + 0.05),
            float(self.unsure_view),
            float(self.missing),
            self.kind,
        )


def _logit(p: float) -> float:
    p = min(max(p, 0.01), 0.99)
    return math.log(p / (1.0 - p))


@lru_cache(maxsize=1)
def _weights() -> tuple[float, ...]:
    data = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    if tuple(data["features"]) != FEATURES:
        raise ValueError(f"{WEIGHTS.name} has weights of {data['features']}, wanted are {list(FEATURES)}")
    return tuple(float(w) for w in data["weights"])


def probability_right(traits: Traits) -> float:
    """Probability that the best candidate is the object meant, in (0, 1)."""
    z = sum(w * x for w, x in zip(_weights(), traits.features(), strict=True))
    return 1.0 / (1.0 + math.exp(-max(min(z, 30.0), -30.0)))
