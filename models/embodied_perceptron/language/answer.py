"""Answers: which objects a sentence means, as exactly one of FOUND, NOT_FOUND, AMBIGUOUS and INVALID.

    grounding = ground_objects("the chair left of the red sofa", objects, T_world_camera)

The scores of the candidates are probabilities that this is the object meant, not confidences of the detector.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, ScorePolicy, TrackingConfig
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.suppression import (
    INSIDE_SHARE,
    ONE_PLACE_IOU,
    ONE_THING_IOU,
    PHRASE_NMS_IOU,
    PROPOSED_IOU,
    nms,
)
from embodied_perceptron.inference.predictor import PhraseCandidates, Predictor, ScenePrediction, viewpoint_of
from embodied_perceptron.language.class_list import ClassList
from embodied_perceptron.language.colors import color_names, mean_colors
from embodied_perceptron.language.lexicon import lexicon, likelihood_of_label, pluralize, split_words, word_set
from embodied_perceptron.language.meaning import ANYTHING, Constraint, Meaning, ObjectPhrase
from embodied_perceptron.language.object_states import with_conditions
from embodied_perceptron.language.query import (
    DEFAULT_TOP_K,
    Query,
    asks,
    query_problem,
    speaks_of_states,
    with_user_names,
)
from embodied_perceptron.language.relations import (
    PAIR_RELATIONS,
    FrontSource,
    SceneGeometry,
    front_probabilities,
    front_sources,
    viewer_of,
)
from embodied_perceptron.language.scoring import Evidence, Scorer, Trust, first_of_each, leftness
from embodied_perceptron.nn.grounding import joined_objects
from embodied_perceptron.results import (
    UNNAMED,
    Detections,
    GroundedPhrase,
    Grounding,
    GroundingStatus,
    ObjectState,
    SceneObject,
    VoxelSnapshot,
)
from embodied_perceptron.scene.live_map import PublishedScene
from embodied_perceptron.scene.object_map import published_score
from embodied_perceptron.weights.categories import ALL_CATEGORIES

F64 = NDArray[np.float64]
Colors = NDArray[np.floating] | Callable[[F64], NDArray[np.floating]]

VOCABULARY = frozenset(ALL_CATEGORIES)
# how well a label must answer to the noun: one that is a label itself, another one, one of an unknown vocabulary
_SAME_NAME, _SAME_THING, _SAME_KIND, _ANY_KIN = 0.85, 0.75, 0.35, 0.15
_AKIN = 0.15  # the same, of what comes nearest to a thing that is not there
_SURE_ALONE = 0.5  # score of a proposed box that counts without any label
# Scores of the map's own boxes are probabilities and count once; those of an unknown detector spread less, and twice.
# Chosen on 64 generated homes; on validation homes 0.6 and 0.8 points more of the sentences are right.
_OF_THE_MAP = 0.5
_CONFIDENCE_SHARE = 0.3  # how much the detector's confidences count for "just as good"
_BELIEVED = 0.1  # score of a detection from which it is taken to be there
_UNSURE = 0.02  # score of a proposed box that says little
_AS_GOOD = 0.75  # of the best one's probability: just as good
_HARDLY = 0.15  # likelihood of a condition: what holds less for all candidates does not hold for any
_FITS = 0.45  # the same: what holds so well is meant where all are asked for
_OF_KIND = 0.7  # of the best label's answer to the noun: meant where all are asked for
_MANY_CONDITIONS, _MANY_WORDS = 2, 14  # longer descriptions are told loosely, and read so
_SHARED = ("wall", "alone")  # places that several things may have at once: "how many towels hang on the wall"
# names of a detector that mean things with names of their own too: "a piece of furniture"
_GENERIC = frozenset(
    ("furniture", "tool", "device", "machine", "food", "utensil", "kitchenware", "container", "decoration")
)
_ANY_OF = ("nearest-me", "farthest-me")
_RELATED = 0.5  # share of its probability that an answer keeps whose name or conditions fit badly
_UNREAD, _MANY_UNREAD = 0.9, 4  # what each word that nobody read leaves of an answer's probability, and of how many
_SUPPORT = {GroundingStatus.FOUND: 1.0, GroundingStatus.AMBIGUOUS: 0.5, GroundingStatus.NOT_FOUND: 0.2}
_LEAST_SUPPORT = 0.05  # score of the best candidate, where there is none
_PLAINLY_MEANT = 0.7  # support from which nothing else is thought of
_SHARE_OF_READING = 0.6  # power of a reading's probability, as a share of the likeliest one's
_ASKED_BACK = 4  # candidates that a question back names
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
    fronts: FrontSource | Sequence[FrontSource] = "estimated",
    vocabulary: frozenset[str] | None = VOCABULARY,
    low_confidence: LowConfidenceCandidates | None = None,
) -> Grounding:
    """Answer ``query`` about ``objects``. Pure, a few milliseconds for a hundred objects, never raises for any text.

    Args:
        query: the sentence, read unless it is parsed. Its viewpoint, or else ``viewpoint``, is the (4, 4)
            pose of the speaker, a camera's or a robot's (:func:`~.relations.viewer_of`). Without, words like "left" are
            averaged over plausible viewpoints, and the score is lower.
        objects: with labels; walls among them separate rooms.
        colors: (N, 3) mean sRGB of the objects in 0..255, rows of NaN where not measured; or a function that measures
            those of (K, 9) boxes, called only for sentences that speak of colours.
        candidates: of a neural grounder: further evidence, and an answer where no label fits the noun; a box that is
            none of the objects is answered with the id 0.
        fronts: "boxes" when -y of every box is the object's front (annotations), "estimated" when sides have no meaning
            (predicted boxes), "none" to read "left of" from the viewer always; one for all objects or one for each.
        vocabulary: names that the detector gives: what has one of them is called so, and a noun that is one of them
            means nothing else. None = unknown: then constraints of the sentence may outweigh a label.
        low_confidence: made of the same ``objects``: further candidates beside them. An answer from these is FOUND with
            a lower score; its state is tentative, and its id 0 unless the map has it.

    Raises ``ValueError`` for a viewpoint that is no pose, colours of another shape, or given as an array beside
    ``low_confidence``.
    """
    query = Query.of(query, viewpoint)
    sources = front_sources(fronts, len(objects))
    problem = query_problem(query.text)
    labels = {o.label for o in objects}
    if problem:
        return query.answer(GroundingStatus.INVALID, reason=problem)
    meaning = query.parsed(labels).meaning
    if meaning is not None and meaning.problem:
        status = GroundingStatus.INVALID if meaning.invalid else GroundingStatus.NOT_FOUND
        return query.answer(status, reason=meaning.problem)
    if meaning is None or meaning.target is None:
        return query.answer(GroundingStatus.INVALID, reason="no object is named in the query")
    objects, colors, sources = _finite(objects, colors, sources)

    def answered(about: Meaning) -> _Decided:
        answer = _Answer(about, objects, low_confidence, query.viewpoint, colors, candidates, sources, vocabulary)
        return _Decided(answer, *answer.decide(query.top_k))

    best = _likeliest(meaning, answered)
    answer, status, ranked = best.answer, best.status, best.ranked
    meaning = answer.meaning
    tagged = _tagged(query.text, meaning, ranked) if status == GroundingStatus.FOUND else ""
    # where all are asked for and none fits well enough to be counted, the likeliest are an answer as to one object
    count = len(answer.meant) if meaning.every and (answer.meant or not ranked) else None
    return query.answer(status, ranked, best.reason, tagged, count, answer.phrases(status, ranked), answer.nearest)


@dataclass(frozen=True, eq=False)
class _Decided:
    """An answer to one reading of a sentence."""

    answer: _Answer
    status: GroundingStatus
    ranked: tuple[SceneObject, ...]
    reason: str

    @property
    def support(self) -> float:
        """How much the scene speaks for the reading: of readings that are about as likely the one is meant that
        something answers to best."""
        found = self.ranked or self.answer.nearest
        return _SUPPORT.get(self.status, 0.0) * max(found[0].score if found else 0.0, _LEAST_SUPPORT)

    def times(self, share: float) -> _Decided:
        """The same with so much less probability."""
        ranked = tuple(dataclasses.replace(o, score=share * o.score) for o in self.ranked)
        return dataclasses.replace(self, ranked=ranked)


def _likeliest(meaning: Meaning, answered: Callable[[Meaning], _Decided]) -> _Decided:
    """The answer to the reading that is likeliest by the words and by the scene."""
    best = answered(meaning)
    support = best.support
    for other in meaning.others if support < _PLAINLY_MEANT else ():
        share = min(other.probability / max(meaning.probability, 1e-12), 1.0) ** _SHARE_OF_READING
        decided = answered(other)
        if share * decided.support > support:
            support, best = share * decided.support, decided.times(share)
    return best


def _boxes(objects: Sequence[SceneObject]) -> F64:
    """(N, 9)."""
    return np.array([o.box for o in objects], dtype=np.float64).reshape(-1, 9)


def _finite(
    objects: Sequence[SceneObject], colors: Colors | None, fronts: tuple[FrontSource, ...]
) -> tuple[Sequence[SceneObject], Colors | None, tuple[FrontSource, ...]]:
    """The objects that have a place and a score, with their colours and fronts: a box that is not finite is none."""
    finite = np.isfinite(_boxes(objects)).all(axis=1) & np.isfinite([o.score for o in objects])
    if finite.all():
        return objects, colors, fronts
    kept = np.flatnonzero(finite).tolist()
    rows = colors if colors is None or callable(colors) or len(colors) != len(objects) else np.asarray(colors)[kept]
    return [objects[i] for i in kept], rows, tuple(fronts[i] for i in kept)


def _no(noun: str) -> str:
    if noun.startswith("something to "):
        return f"nothing here serves to {noun.removeprefix('something to ')}"
    return "there are no objects" if noun == ANYTHING else f"there is no {noun}"


def _tagged(text: str, meaning: Meaning, ranked: Sequence[SceneObject]) -> str:
    assert meaning.target is not None
    first, last = meaning.target.span
    ids = ", ".join(f"<obj_{o.id}>" for o in (ranked if meaning.every else ranked[:1]))
    return f"{text[:first]}<p>{text[first:last]}</p>[{ids}]{text[last:]}"


def _speaks_of_colors(meaning: Meaning) -> bool:
    anchors = [a for c in meaning.constraints for a in c.anchors]
    said = (*meaning.constraints, *(c for a in anchors for c in a.constraints))
    return any(c.relation in ("colour", "same-colour") for c in said) or any(
        _speaks_of_colors(e) for e in meaning.excluded
    )


def _with_excluded(meaning: Meaning) -> tuple[Meaning, ...]:
    return (meaning, *meaning.excluded)


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
        fronts: tuple[FrontSource, ...],
        vocabulary: frozenset[str] | None,
    ) -> None:
        self.meaning = meaning
        self._words = split_words(meaning.text)
        objects = (
            tuple(confirmed) if low_confidence is None else (*low_confidence.objects, *low_confidence.about(meaning))
        )
        self.objects = objects
        self.min_answer = 0.0 if low_confidence is None else low_confidence.min_answer
        self.confirmed = len(confirmed)  # the first of the objects; the others are of low confidence
        noun = "" if meaning.target is None else meaning.target.noun
        named = vocabulary is not None and noun in vocabulary and noun not in _GENERIC
        self.least_kind = _ANY_KIN if vocabulary is None else (_SAME_NAME if named else _SAME_KIND)
        self.labels = tuple(o.label for o in objects)
        boxes = _boxes(objects)
        viewer = None if viewpoint is None else viewer_of(viewpoint)
        self.meant: tuple[SceneObject, ...] = ()  # the objects of an answer that asks for all
        self.nearest: tuple[SceneObject, ...] = ()  # where none is what the sentence says: what comes nearest to it
        known = colors is not None and not callable(colors)  # measuring takes time: only for what speaks of colours
        color = _measured(colors, boxes, self.confirmed) if known or _speaks_of_colors(meaning) else None
        self.viewer_known = viewer is not None or meaning.speaker is not None
        walls = np.array([label in _WALLS for label in self.labels], dtype=bool)
        self.geometry = SceneGeometry(boxes, None, viewer, walls, self._may_be_anchors())
        self.geometry.tell_conditions([o.condition for o in objects])
        others: tuple[FrontSource, ...] = ("estimated" if "estimated" in fronts else "none",)
        every_front = (*fronts, *others * (len(objects) - len(confirmed)))
        self.geometry.tell_fronts(partial(front_probabilities, labels=self.labels, sources=every_front))
        self.relative = scores = _relative(np.array([o.score for o in objects], dtype=np.float64), self.confirmed)
        self.proposals = candidates
        extra = None if candidates is None else self._extra(candidates)
        trust = Trust(self.confirmed, 1.0 if low_confidence is None else _OF_THE_MAP)
        self.scorer = Scorer(meaning, self.geometry, self.labels, scores, color, extra, trust=trust)
        conditions = [c for c in meaning.constraints if c.weight >= 1.0 and c.relation != "state"]
        words = meaning.length
        self.is_long = len(conditions) > _MANY_CONDITIONS or words > _MANY_WORDS or meaning.speaker is not None
        if vocabulary is None and not self.is_long and noun in VOCABULARY:
            self.least_kind = _SAME_KIND
        self.in_vocabulary = vocabulary is not None and noun in vocabulary

    def _may_be_anchors(self) -> NDArray[np.bool_]:
        """(N,) labels that answer at all to a noun of an anchor."""
        meanings = _with_excluded(self.meaning)
        speakers = [m.speaker.anchor.noun for m in meanings if m.speaker is not None]
        nouns = (*(noun for m in meanings for noun in anchor_nouns(m)), *speakers)
        if ANYTHING in nouns:
            return np.ones(len(self.labels), dtype=bool)
        kind = {label: any(lexicon().similarity(noun, label) > 0 for noun in nouns) for label in set(self.labels)}
        return np.array([kind[label] for label in self.labels], dtype=bool)

    def _extra(self, candidates: Candidates) -> F64:
        """(N,) the neural grounder's score of each object as a share of its best; nearly equal where it is unsure."""
        if len(candidates.boxes) == 0 or not self.objects:
            return np.ones(len(self.objects))
        overlap = self.geometry.overlaps(candidates.boxes)
        score = np.where(overlap > PROPOSED_IOU, candidates.scores[None], 0.0).max(axis=1)
        return np.asarray((score + _UNSURE) / (float(candidates.scores.max()) + _UNSURE))

    def decide(self, limit: int | None) -> tuple[GroundingStatus, tuple[SceneObject, ...], str]:
        """Status, candidates, best first, and the reason in words.

        At most ``limit`` candidates; None = as many as are asked for, and otherwise :data:`DEFAULT_TOP_K`.
        """
        top_k = limit or DEFAULT_TOP_K
        target = self.meaning.target
        assert target is not None
        kind = self.scorer.category
        there = self._there(kind, target.noun)
        if not there.any():
            by_sight = self._by_sight(target.noun)
            if not by_sight[1] and kind.max(initial=0.0) >= _AKIN:  # a chair where a stool is asked for
                self._note_nearest(*self._weighed(self.scorer.evidence())[:2], top_k)
            return by_sight
        if (
            not there[: self.confirmed].any()
            and max(self.objects[i].score for i in np.flatnonzero(there)) < self.min_answer
        ):
            return GroundingStatus.NOT_FOUND, (), _no(target.noun)
        evidence = self.scorer.evidence()
        order, probability, fits = self._weighed(evidence)
        if not order:
            return GroundingStatus.NOT_FOUND, (), _no(target.noun)
        why_not = self._why_not(evidence, order, fits)
        if why_not:
            self._note_nearest(order, probability, top_k)
            return GroundingStatus.NOT_FOUND, (), why_not
        if self.meaning.every:
            every = self._every(evidence, order, fits, limit)
            if every is not None:
                return every
        equal = self._fit_share(evidence, order) > _AS_GOOD
        equal &= (fits[order] >= _HARDLY) | (fits[order[0]] < _HARDLY)
        if self.geometry.viewer is not None and any(c.relation in _ANY_OF for c in self.meaning.constraints):
            equal[1:] = False  # of two that are as near, either will do
        if equal.sum() > 1 and self.meaning.any_of:
            told = probability.copy()
            told[0] = min(float(probability[equal].sum()), 1.0)  # that it is one of those that will do
            return GroundingStatus.FOUND, self._scored(order[:top_k], told), self._reason(evidence, order[0])
        if equal.sum() > 1:
            rivals = [i for i, same in zip(order, equal.tolist(), strict=True) if same]
            said = probability[equal]
            things = "things" if target.noun.startswith("something to ") else pluralize(target.noun)
            reason = f"{len(rivals)} {things} fit equally well{self._unchecked(evidence)}"
            reason += self._asks_back(rivals)
            return (
                GroundingStatus.AMBIGUOUS,
                self._scored(rivals[:top_k], said),
                reason,
            )
        return GroundingStatus.FOUND, self._scored(order[:top_k], probability), self._reason(evidence, order[0])

    def _there(self, kind: F64, noun: str) -> NDArray[np.bool_]:
        """(N,) what is called so: what answers well to the noun, or else what says that it is of this kind."""
        says = self._kind_of(noun)
        there = (kind >= self.least_kind) | ((kind >= _SAME_KIND) & says)
        return there if there.any() else (kind > 0.0) & says

    def _weighed(self, evidence: Evidence) -> tuple[list[int], F64, F64]:
        """Candidates, best first, how likely each is meant, and (N,) how likely all conditions hold of each object."""
        order, share = self._ranking(evidence)
        fits = self.scorer.plausible(evidence)
        if not order:
            return order, share, fits
        sure = probability_right(self._traits(evidence, order, share)) * self._existence(order[0])
        if fits[order[0]] < _HARDLY or evidence.category[order[0]] < _SAME_THING:
            sure *= _RELATED
        return order, share * (sure * self._understood(evidence) / share[0]), fits

    def _understood(self, evidence: Evidence) -> float:
        """Factor of an answer's probability for what the sentence says and nobody could look for: landmarks that are
        not on the map, and words that nobody read."""
        unread = _UNREAD ** min(len(self.meaning.unmatched), _MANY_UNREAD)
        return (_RELATED if _missing(evidence) else 1.0) * unread

    def _note_nearest(self, order: list[int], probability: F64, top_k: int) -> None:
        """Keep what comes nearest to a sentence that is not found; a question is answered by its count."""
        if self.meaning.kind == "object":
            self.nearest = self._scored(order[:top_k], probability)

    def _scored(self, order: list[int], probability: F64) -> tuple[SceneObject, ...]:
        return tuple(
            dataclasses.replace(self.objects[i], score=float(p)) for i, p in zip(order, probability, strict=False)
        )

    def phrases(self, status: GroundingStatus, ranked: Sequence[SceneObject]) -> tuple[GroundedPhrase, ...]:
        """What the sentence names: first what was asked for, with the ids of the answer, then what it is told by."""
        meaning = self.meaning
        assert meaning.target is not None
        one = status == GroundingStatus.FOUND and not meaning.every
        found = {meaning.target.span: self._phrase(meaning.target, [o.id for o in (ranked[:1] if one else ranked)])}
        best = next((i for i, o in enumerate(self.objects) if ranked and o.id == ranked[0].id), None)
        told = [(a, c) for c in meaning.constraints for a in c.anchors]
        told += [(a, c) for anchor, _ in tuple(told) for c in anchor.constraints for a in c.anchors]
        for phrase, constraint in (*told, *((m, None) for m in meaning.mentioned)):
            if phrase.span not in found and phrase.noun != ANYTHING:
                found[phrase.span] = self._phrase(phrase, self._stood_for(phrase, constraint, best))
        return tuple(found.values())

    def _phrase(self, phrase: ObjectPhrase, ids: Sequence[int]) -> GroundedPhrase:
        text = self.meaning.text
        first, last = phrase.span
        for word in reversed(self._words[: bisect_right(self._words, first, key=lambda word: word.end)]):
            if word.text not in _PHRASE_WORDS:
                break
            first = word.start
        return GroundedPhrase(text[first:last], first, last, tuple(ids))

    def _stood_for(self, phrase: ObjectPhrase, constraint: Constraint | None, target: int | None) -> list[int]:
        """Ids of the objects that a phrase beside the target stands for: of all that are called so those that stand
        best to the target."""
        weight = self.scorer.anchor_weights(phrase)
        if weight.max(initial=0.0) < _NAMED:
            return []
        if constraint is not None and target is not None:
            name = constraint.relation if constraint.relation in PAIR_RELATIONS else "near"
            pairs, fits = self.geometry.related(name, np.array([target]), np.flatnonzero(weight), np.inf)
            best = np.zeros(len(weight))
            best[pairs.anchor] = 0.05 + fits * pairs.different
            weight = weight * best
        likely = np.flatnonzero(weight >= 0.5 * weight.max())
        order = [int(i) for i in likely[np.argsort(-weight[likely], kind="stable")]]
        return [self.objects[i].id for i in (order if phrase.plural else order[:1])]

    def _kind_of(self, noun: str) -> NDArray[np.bool_]:
        """(N,) labels that say it: a "coffee table" is a "table", whatever other tables a detector knows."""
        says = {label: lexicon().is_kind(label, noun) for label in set(self.labels)}
        return np.array([says[label] for label in self.labels], dtype=bool)

    def _by_sight(self, noun: str) -> tuple[GroundingStatus, tuple[SceneObject, ...], str]:
        """Where no object has a fitting name: what the neural grounder points at, if it is sure."""
        nothing = GroundingStatus.NOT_FOUND, (), _no(noun)
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
        """Probability that there is such a thing at all: of a low-confidence candidate its relative confidence, and
        otherwise 1, but for what its detector hardly believed itself."""
        return min(self.objects[i].score / _BELIEVED, 1.0) if i < self.confirmed else float(self.relative[i])

    def _traits(self, evidence: Evidence, order: list[int], probability: F64) -> Traits:
        best = order[0]
        satisfied = [float(t.satisfied[best]) for t in evidence.terms if not t.missing]
        fit = self._fit_share(evidence, order)
        return Traits(
            share=float(probability[0]),
            fit_share=float(1.0 / fit.sum()),
            weakest=min((s for s in satisfied if not np.isnan(s)), default=1.0),
            unsure_view=not self.viewer_known and any(self._needs_viewer(c) for c in self.meaning.constraints),
            missing=any(t.missing for t in evidence.terms),
            kind=float(evidence.category[best]),
            reading=self.meaning.probability,
        )

    def _needs_viewer(self, c: Constraint) -> bool:
        """Whether only who speaks decides: sides of nothing, or of an anchor without a front."""
        if not c.is_view_dependent or not c.anchors:
            return c.is_view_dependent
        weight = self.scorer.anchor_weights(c.anchors[0])
        return bool(weight.max(initial=0.0) > 0 and self.geometry.fronts[int(weight.argmax())].sum() < 0.5)

    def _ranking(self, evidence: Evidence) -> tuple[list[int], F64]:
        """Candidates, one box for each thing, best first, with posterior probabilities."""
        assert self.meaning.target is not None
        possible = evidence.category >= min(self.least_kind, 0.9 * float(evidence.category.max()))
        possible |= self._there(evidence.category, self.meaning.target.noun)
        rows = np.flatnonzero(possible)
        pairs = self.scorer.here  # what is possible answers to the noun
        pairs = pairs.where(possible[pairs.target] & possible[pairs.anchor])
        one_thing = pairs.where((pairs.iou > ONE_THING_IOU) | (pairs.inside > INSIDE_SHARE))
        best_first = rows[np.argsort(-evidence.log_score[rows], kind="stable")]
        order: list[int] = first_of_each(best_first, one_thing).tolist()
        scores = evidence.log_score[order]
        share = np.exp(scores - scores.max())
        return order, share / share.sum()

    def _fit_share(self, evidence: Evidence, order: list[int]) -> F64:
        """How well each ranked candidate fits, as a share of the first."""
        counts = np.where(np.array(order) < self.confirmed, _CONFIDENCE_SHARE, 1.0)  # one of low confidence is no equal
        fit = evidence.fit[order] + counts * (evidence.log_score - evidence.fit)[order]
        return np.asarray(np.exp(np.minimum(fit - fit[0], 0.0)))

    def _why_not(self, evidence: Evidence, order: list[int], fits: F64) -> str:
        """Why no candidate is what the sentence says, in words; empty when one may be."""
        meaning = self.meaning
        assert meaning.target is not None
        noun = meaning.target.noun
        if meaning.kind in ("contents", "count", "exists") or noun == ANYTHING:
            missing = [m for t in evidence.terms if not t.constraint.negated for m in t.missing]
            if missing and len(missing) == len(meaning.constraints):
                return f"there is no {missing[0]}"
        kind = float(evidence.category[order].max())
        members = [i for i in order if evidence.category[i] >= 0.5 * kind]
        said = [t for t in evidence.terms if t.constraint.weight >= 1.0]
        if self.is_long:
            return ""  # long descriptions are told loosely, and read so
        for term in said:
            likely = self.scorer.likely(term)
            if term.constraint.relation == "state" and np.isnan(likely[members]).all() and asks(meaning.text):
                return f"whether the {noun} is {term.constraint.value} is not known"
            if not np.isnan(likely[members]).any() and likely[members].max(initial=0.0) < _HARDLY:
                return self._none_is(noun, _words(term.constraint))
        if len(members) and fits[members].max() < _HARDLY:
            words = [_words(t.constraint) for t in said if not np.isnan(self.scorer.likely(t)).all()]
            words += [_description(e) for e in meaning.excluded]
            return self._none_is(noun, " and ".join(words))
        for term in evidence.terms:
            c = term.constraint
            enough = sum(fits[i] >= _HARDLY and evidence.category[i] >= _OF_KIND * kind for i in members)
            if c.is_superlative and c.rank > max(enough, 1) and not term.missing:
                there = f"are only {enough} {pluralize(noun)}" if enough > 1 else f"is only one {noun}"
                return f"number {c.rank} was asked for, but there {there}"
        return ""

    def _none_is(self, noun: str, words: str) -> str:
        if noun == ANYTHING:
            return f"there is nothing {words}"
        return f"there is a {noun}, but none that is {words}"

    def _every(
        self, evidence: Evidence, order: list[int], fits: F64, limit: int | None
    ) -> tuple[GroundingStatus, tuple[SceneObject, ...], str] | None:
        """The answer where all objects are meant that fit; None where that tells nothing."""
        meaning = self.meaning
        assert meaning.target is not None
        noun = meaning.target.noun
        best = float(evidence.category[order].max())
        chosen = [i for i in order if evidence.category[i] >= _OF_KIND * best and fits[i] >= _FITS]
        if meaning.target.known and best < _SAME_KIND and meaning.kind != "object":
            return GroundingStatus.NOT_FOUND, (), _no(noun)
        superlative = [
            c for c in meaning.constraints if c.is_superlative and c.weight >= 1.0 and c.relation not in _SHARED
        ]
        if not chosen:
            if meaning.kind == "object":
                return None
            return GroundingStatus.NOT_FOUND, (), self._none_is(noun, "so")
        if superlative:
            chosen = chosen[: meaning.number or (2 if meaning.target.plural and meaning.kind == "object" else 1)]
        wanted = meaning.number
        if wanted is not None and len(chosen) < wanted:
            there = f"are only {len(chosen)}" if len(chosen) > 1 else "is only one"
            return GroundingStatus.NOT_FOUND, (), f"{wanted} {pluralize(noun)} were asked for, but there {there}"
        read = meaning.probability
        traits = [
            Traits(0.95, 0.95, float(fits[i]), False, False, float(evidence.category[i] / max(best, _OF_KIND)), read)
            for i in chosen
        ]
        scores = np.array([probability_right(t) * self._existence(i) for t, i in zip(traits, chosen, strict=True)])
        scores = scores * self._understood(evidence)
        if best < _SAME_THING:  # a bathtub where a shower is asked for
            scores = _RELATED * scores
        scores = np.minimum.accumulate(scores)  # in the order of the ranking
        found = [dataclasses.replace(self.objects[i], score=float(p)) for i, p in zip(chosen, scores, strict=True)]
        self.meant = tuple(found)
        if wanted is not None and len(chosen) > wanted:
            words = f"{len(chosen)} {pluralize(noun)} fit, not {wanted}"
            return GroundingStatus.AMBIGUOUS, self.meant[: limit or len(found)], words
        names = ", ".join(f"{o.label} {o.id}" for o in found[:10])
        return GroundingStatus.FOUND, self.meant[: limit or len(found)], f"{len(found)} found: {names}"

    def _asks_back(self, rivals: list[int]) -> str:
        """What would tell the candidates apart: ": the red one or the one by the door?"; empty where nothing would."""
        if len(rivals) > _ASKED_BACK:
            return ""
        traits = [self._by_color(rivals), self._by_neighbour(rivals), self._by_side(rivals)]
        for k in range(len(rivals)):
            if not any(trait[k] for trait in traits):
                return ""
        named = [next(trait[k] for trait in traits if trait[k]) for k in range(len(rivals))]
        return f": {', '.join(named[:-1])} or {named[-1]}?"

    def _by_color(self, rivals: list[int]) -> list[str]:
        color = self.scorer.colors
        if color is None or not np.isfinite(color[rivals]).all():
            return [""] * len(rivals)
        said = color_names(color, np.array(rivals, dtype=np.intp))
        return [f"the {name} one" if said.count(name) == 1 else "" for name in said]

    def _by_neighbour(self, rivals: list[int]) -> list[str]:
        """Things that there is one of, near to one of the rivals and not to another."""
        count = Counter(self.labels)
        once = [
            j for j, label in enumerate(self.labels[: self.confirmed])
            if count[label] == 1 and label not in _NO_LANDMARKS and j not in rivals
        ]  # fmt: skip
        gap = self.geometry.block(np.array(rivals), np.array(once, dtype=np.intp)).gap  # (rivals, landmarks)
        said = []
        for i in range(len(rivals)):
            others = np.delete(gap, i, axis=0).min(axis=0)
            told = np.flatnonzero((gap[i] < _LANDMARK_M) & (others > gap[i] + 0.5))
            near = [(float(gap[i, j]), self.labels[once[j]]) for j in told]
            said.append(f"the one by the {min(near)[1]}" if near else "")
        return said

    def _by_side(self, rivals: list[int]) -> list[str]:
        if self.geometry.viewer is None or len(rivals) > 3:
            return [""] * len(rivals)
        group = np.zeros(self.geometry.n)
        group[rivals] = 1.0
        left = leftness(self.geometry, group, None)[rivals]
        if np.ptp(left) < 0.3:
            return [""] * len(rivals)
        names = {2: ("on the left", "on the right"), 3: ("on the left", "in the middle", "on the right")}[len(rivals)]
        place = np.argsort(np.argsort(-left, kind="stable"), kind="stable")
        return [f"the one {names[int(k)]}" for k in place]

    def _reason(self, evidence: Evidence, best: int) -> str:
        o = self.objects[best]
        said = [
            f"{_words(t.constraint)} ({t.satisfied[best]:.2f})"
            for t in evidence.terms
            if not t.missing and not np.isnan(t.holds[best])
        ]
        text = f"{o.label} {o.id}" if best < self.confirmed else f"{o.label}, not confirmed"
        text += ": " + ", ".join(said) if said else ""
        text += (
            "; where it goes or lies is meant: what else is named is not on the map" if self.meaning.is_place else ""
        )
        return text + self._unchecked(evidence)

    def _unchecked(self, evidence: Evidence) -> str:
        """What the sentence says and an answer does without, in words: "; no bathtub found; no colours known"."""
        missing = [noun for t in evidence.terms for noun in t.missing]
        said = [f"no {', no '.join(dict.fromkeys(missing))} found"] if missing else []
        if any(t.constraint.relation == "colour" and np.isnan(t.holds).all() for t in evidence.terms):
            said.append("colours are not known")
        states = [t for t in evidence.terms if t.constraint.relation == "state" and np.isnan(t.holds).all()]
        said += [f"whether it is {t.constraint.value} is not known" for t in states]
        if self.meaning.unmatched:
            said.append(f"not understood: {', '.join(self.meaning.unmatched[:_MANY_UNREAD])}")
        return "".join(f"; {words}" for words in said)


def _missing(evidence: Evidence) -> bool:
    """Whether there is none of what the sentence says its object is by."""
    return any(t.missing and not t.constraint.negated for t in evidence.terms)


_PHRASE_WORDS = word_set("adjectives") - frozenset((",", ".", "with", "and"))
_NAMED = 0.2  # weight below which an object is not what a phrase stands for
_NO_LANDMARKS = frozenset(("object", "wall", "floor", "ceiling", "carpet"))
_LANDMARK_M = 1.5


def _description(e: Meaning) -> str:
    said = " and ".join(_words(c) for c in e.constraints)
    noun = "" if e.target is None else e.target.noun
    return f"other than the {noun}" + (f" that is {said}" if said else "")


_SAID = {
    "left-of-me": "on your left", "right-of-me": "on your right", "ahead-of-me": "in front of you",
    "behind-me": "behind you", "nearest-me": "nearest", "farthest-me": "farthest", "supporting": "with",
    "below": "under", "middle-of-kind": "in the middle", "nth": "in order",
    "left-of-all": "on the left", "right-of-all": "on the right", "viewer-left": "left, facing", "front": "in front of",
    "viewer-right": "right, facing", "closest": "closest to", "farthest": "farthest from", "left": "left of",
    "larger": "larger than", "smaller": "smaller than", "same-colour": "of the colour of",
    "own-left": "to its own left, of", "own-right": "to its own right, of",
    "right": "right of", "near": "near", "in": "in", "across": "across from", "end": "at the end of",
    "corner": "in the corner",
    "middle": "in the middle", "wall": "at the wall", "from-left": "from the left", "from-right": "from the right",
}  # fmt: skip


def _words(c: Constraint) -> str:
    """A constraint in words: 'left of the couch'."""
    words = c.value or _SAID.get(c.relation, c.relation)
    if c.relation in ("within", "beyond"):
        words = f"{'within' if c.relation == 'within' else 'more than'} {c.amount_m:g} m of"
        return ("not " if c.negated else "") + words + (f" the {c.anchors[0].noun}" if c.anchors else " you")
    if c.relation == "measured":
        return f"{c.amount_m:g} m{f' in {c.value}' if c.value else ''}"
    if c.relation in ("larger", "smaller") and not c.anchors:
        where = "above the floor" if c.value == "elevation" else f"in {c.value}"
        return f"{'more' if c.relation == 'larger' else 'less'} than {c.amount_m:g} m {where}"
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
FEATURES = ("one", "share", "fit_share", "weakest", "unsure_view", "missing", "kind", "reading")
_LEAST_READING = 1e-4  # below it one is as doubtful as the other


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
        reading: probability that the sentence is read right, (0, 1].
    """

    share: float
    fit_share: float
    weakest: float
    unsure_view: bool
    missing: bool
    kind: float
    reading: float = 1.0

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
            math.log10(max(self.reading, _LEAST_READING)),
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


# --------------------------------------------------------------------------------------------------------------------
# Candidates of low confidence: tentative objects, and boxes of the last prediction that score too low for objects.
#
# A sentence that says "the toaster" where no object is a toaster is better answered from a box that may be one than not
# at all, as long as the answer says how sure it is. Of hundreds of such boxes only those count that answer to a noun of
# the sentence, a few per noun.
#
# A network that is unsure of a name gives several boxes of several names to one place. Measured on validation homes,
# the log odds that a box is right rise alike with its score and with its share of the scores at its place: so both
# multiply, for low-confidence candidates and for objects of the map.


UNTRACKED = 0  # the id of what is no object of the map (yet)
_PER_NOUN = 12
_KIND = 0.35  # least similarity of a label to a noun


class LowConfidenceCandidates:
    """Low-confidence candidates beside the objects, and the certainty of the objects' names; made once per prediction.

    Args:
        objects: confirmed objects of the map, candidates of every query.
        tentative: objects of the map, candidates with their ids.
        seen: boxes of the last prediction, of any score; None = none.
        scores: thresholds for ``seen``.
        first_score: score of a box -> score of an object of the map that was found once, with this score.
    """

    def __init__(
        self,
        objects: Sequence[SceneObject],
        tentative: Sequence[SceneObject] = (),
        seen: Detections | None = None,
        scores: ScorePolicy = EVERY_SCORE,
        first_score: Callable[[float], float] = float,
    ) -> None:
        found = _none() if seen is None else seen.above(max(scores.candidate, 1e-6))
        tracked = [*objects, *tentative]
        labels = [*(o.label for o in tracked), *found.labels]
        boxes = np.concatenate([np.array([o.box for o in tracked], np.float64).reshape(-1, 9), found.boxes])
        bounds = Bounds.of(boxes)
        overlap = bounds.iou(bounds)
        share = name_shares(labels, overlap, np.concatenate([np.zeros(len(tracked)), found.scores]))
        everything = [
            *tracked,
            *(
                SceneObject(UNTRACKED, name, first_score(float(score)), box, ObjectState.TENTATIVE)
                for name, score, box in zip(found.labels, found.scores, found.boxes, strict=True)
            ),
        ]
        self.min_answer = first_score(scores.answer)
        self._all = [dataclasses.replace(o, score=o.score * s) for o, s in zip(everything, share.tolist(), strict=True)]
        self._confirmed = len(objects)
        self._same = overlap > ONE_THING_IOU
        self._rows: dict[str, list[int]] = {}
        self._by_label: dict[str, list[int]] = {}
        for row, label in enumerate(labels):
            self._by_label.setdefault(label, []).append(row)

    @property
    def objects(self) -> tuple[SceneObject, ...]:
        """The objects of the map, their scores times the share of their name at their place."""
        return tuple(self._all[: self._confirmed])

    def about(self, meaning: Meaning) -> tuple[SceneObject, ...]:
        """Other candidates that answer to a noun of the sentence, in the order in which they were given."""
        rows = {row for noun in all_nouns(meaning) for row in self._for_noun(noun)}
        return tuple(self._all[row] for row in sorted(rows))

    def _for_noun(self, noun: str) -> list[int]:
        """The best few for one noun, where no object stands that answers to it."""
        if noun not in self._rows:
            kind = {label: lexicon().similarity(noun, label) for label in self._by_label}
            rows = [row for label, found in self._by_label.items() if kind[label] >= _KIND for row in found]
            kept = [row for row in rows if row < self._confirmed]
            objects = len(kept)
            others = [row for row in rows if row >= self._confirmed]
            for row in sorted(others, key=lambda r: (-kind[self._all[r].label] * self._all[r].score, r)):
                if len(kept) - objects == _PER_NOUN:
                    break
                if not self._same[row, kept].any():
                    kept.append(row)
            self._rows[noun] = kept[objects:]
        return self._rows[noun]


def _none() -> Detections:
    return Detections(np.zeros((0, 9)), np.zeros(0), ())


def anchor_nouns(meaning: Meaning) -> tuple[str, ...]:
    """Nouns of the anchors of a sentence, and of the anchors' own anchors."""
    anchors = [anchor for constraint in meaning.constraints for anchor in constraint.anchors]
    within = [a for anchor in anchors for constraint in anchor.constraints for a in constraint.anchors]
    return tuple(dict.fromkeys(a.noun for a in (*anchors, *within)))


def all_nouns(meaning: Meaning) -> tuple[str, ...]:
    """All nouns of a sentence, the target's first."""
    others = [] if meaning.speaker is None else [meaning.speaker.anchor]
    target = [] if meaning.target is None else [meaning.target.noun]
    return tuple(dict.fromkeys([*target, *anchor_nouns(meaning), *(p.noun for p in (*meaning.mentioned, *others))]))


def name_shares(labels: Sequence[str], overlap: F64, scores: F64) -> F64:
    """(N,) best score of its own name at the place of each box, as a share of that and the best of another name.

    1 where the last prediction has no box of the name there: that is no evidence against it.
    """
    if not labels:
        return np.zeros(0)
    codes = np.unique(np.array(labels), return_inverse=True)[1]
    same = codes[:, None] == codes[None]
    here = np.where(overlap > ONE_PLACE_IOU, scores[None], 0.0)
    own, other = np.where(same, here, 0.0).max(axis=1), np.where(same, 0.0, here).max(axis=1)
    return np.where(own > 0, own / np.maximum(own + other, 1e-12), 1.0)


# --------------------------------------------------------------------------------------------------------------------
# Candidates of the network's own grounding for sentences about a prediction of one or many windows.

_LOG = logging.getLogger(__name__)
Phrase = tuple[int, int] | None
_BATCH = 20  # sentences in one pass
_MAX_OBJECTS = 256  # of all windows, the best, that sentences choose among: every pair of them is looked at


def propose(
    inference: Predictor,
    prediction: ScenePrediction,
    sentences: Sequence[tuple[str, Phrase]],
    T_world_camera: NDArray[np.float64],
    limit: int = 10,
) -> list[PhraseCandidates]:
    """Candidates for one phrase of each sentence, best first; of each window those that it sees best.

    A decoder over objects chooses among those of all windows at once: what a sentence compares may stand in several,
    and scores of different windows do not compare.

    Args:
        inference: the network that looked.
        prediction: its look.
        sentences: (text, [start, end) of the phrase that names the target; None = the whole text).
        T_world_camera: (4, 4) pose of who speaks.
        limit: candidates per sentence.

    Raises as :meth:`Predictor.ground_many`.
    """
    viewpoint = viewpoint_of(T_world_camera, prediction.floor_z_m)
    if inference.grounds_objects and prediction.parts:
        objects = joined_objects([inference.objects(p.scene, p.core) for p in prediction.parts], _MAX_OBJECTS)
        return [
            candidates
            for start in range(0, len(sentences), _BATCH)
            for (candidates,) in inference.ground_among(
                objects, [(text, (p,)) for text, p in sentences[start : start + _BATCH]], viewpoint, limit
            )
        ]
    found: list[list[PhraseCandidates]] = [[] for _ in sentences]
    for start in range(0, len(sentences), _BATCH):
        batch = [(text, (phrase,)) for text, phrase in sentences[start : start + _BATCH]]
        for part in prediction.parts:
            for k, (candidates,) in enumerate(inference.ground_many(part.scene, batch, viewpoint, limit)):
                mine = part.core.contains(candidates.boxes[:, :3])
                own = PhraseCandidates(candidates.phrase, candidates.boxes[mine], candidates.scores[mine])
                found[start + k].append(own)
    return [_best(parts, phrase, limit) for parts, (_, phrase) in zip(found, sentences, strict=True)]


def propose_targets(
    inference: Predictor, prediction: ScenePrediction, queries: Sequence[Query]
) -> list[PhraseCandidates | None]:
    """Candidates for the target of each parsed query; None where there are none: the speaker's viewpoint has to be
    known, and a sentence may be longer than the text encoder reads. Queries of one viewpoint make one batch.
    """
    proposed: list[PhraseCandidates | None] = [None] * len(queries)
    if not prediction.parts or inference.network.grounding is None or inference.text_encoder is None:
        return proposed
    by_viewpoint: dict[bytes, list[tuple[int, Query, Phrase]]] = {}
    for row, query in enumerate(queries):
        if query.viewpoint is not None and query.meaning is not None and query.meaning.target is not None:
            key = np.asarray(query.viewpoint, np.float64).tobytes()
            by_viewpoint.setdefault(key, []).append((row, query, query.meaning.target.span))
    for group in by_viewpoint.values():
        viewpoint = group[0][1].viewpoint
        assert viewpoint is not None
        try:
            found = propose(inference, prediction, [(query.text, span) for _, query, span in group], viewpoint)
        except (ValueError, ImportError, OSError, RuntimeError) as error:  # an answer without it is better than none
            _LOG.warning("answers without the network's own grounding: %s", error)
            continue
        for (row, _, _), candidates in zip(group, found, strict=True):
            proposed[row] = candidates
    return proposed


def _best(parts: Sequence[PhraseCandidates], phrase: Phrase, limit: int) -> PhraseCandidates:
    boxes = np.concatenate([np.zeros((0, 9)), *(p.boxes for p in parts)])
    scores = np.concatenate([np.zeros(0), *(p.scores for p in parts)])
    same = torch.zeros(len(boxes), dtype=torch.int64)
    kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores), same, PHRASE_NMS_IOU)[:limit].numpy()
    return PhraseCandidates(phrase, boxes[kept], scores[kept])


# ----------------------------------------------------------------------------------------------------------------------
# GROUNDER


@dataclass(frozen=True, eq=False)
class QueryContext:
    """The objects of one published scene as sentences speak of them.

    Attributes:
        published: confirmed objects under the names that are published.
        objects: the same in the same order, under the names by which sentences know them; others with a class list.
        tentative, seen, scores, first_score: of :class:`LowConfidenceCandidates`.
    """

    published: tuple[SceneObject, ...]
    objects: tuple[SceneObject, ...]
    tentative: tuple[SceneObject, ...]
    seen: Detections | None
    scores: ScorePolicy
    first_score: Callable[[float], float]

    @cached_property
    def low_confidence(self) -> LowConfidenceCandidates:
        """Candidates beside the objects."""
        return LowConfidenceCandidates(self.objects, self.tentative, self.seen, self.scores, self.first_score)


@dataclass(eq=False)
class Grounder:
    """Answers sentences; each of one published scene, whatever is published meanwhile. From any thread.

    Attributes:
        inference: its grounding proposes boxes; None = categories, colours and relations of objects alone decide.
        lift: a detector that is told in words looks for what is asked for, and an encoder of looks names objects.
        classes: names that are published.
        scores: which scores of boxes count for what.
        tracking: how scores of boxes become scores of objects.
        named: whether something gives objects names at all, besides users and files.
    """

    inference: Predictor | None = None
    lift: DetectionLift | None = None
    classes: ClassList | None = None
    scores: ScorePolicy = EVERY_SCORE
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    named: bool = False
    _contexts: WeakKeyDictionary[PublishedScene, dict[bool, QueryContext]] = field(
        init=False, repr=False, default_factory=WeakKeyDictionary
    )

    def answer(
        self, scene: PublishedScene, queries: Sequence[Query | str], viewpoint: NDArray[np.float64] | None = None
    ) -> list[Grounding]:
        """One answer for each query; the network reads those of one speaker together. Never raises for any text.

        ``viewpoint``: (4, 4) pose of who speaks, for queries that carry none.
        """
        context = self._context(scene, any(speaks_of_states(str(getattr(q, "text", q))) for q in queries))
        asked = [Query.of(query, viewpoint) for query in queries]
        called = [with_user_names(query, context.objects) for query in asked]
        labels = {o.label for o in (*context.objects, *context.published)}
        parsed = [query.parsed(labels) for query in asked]
        if self.lift is not None:
            self.lift.asked_for([n for query in parsed if query.meaning is not None for n in all_nouns(query.meaning)])
        proposed: list[PhraseCandidates | None] = [None] * len(parsed)
        if self.inference is not None and scene.prediction is not None:
            proposed = propose_targets(self.inference, scene.prediction, parsed)
        colors = partial(_colors, scene.voxels)
        answers = [
            self._answer(query, context, colors, candidates)
            if by_name is None
            else by_name.restored(
                ground_objects(by_name.query.parsed({o.label for o in by_name.objects}), by_name.objects, colors=colors)
            )
            for query, candidates, by_name in zip(parsed, proposed, called, strict=True)
        ]
        classes = self.classes
        return answers if classes is None else [classes.restored(answer, context.published) for answer in answers]

    def prepare(self) -> None:
        """Read what reads sentences now, so that the first one does not wait for it: tables of words, the reader's
        network, and the text encoder.

        The text encoder only where the map's network reads sentences, and nothing where no network gives things names.
        Raises what reading it raises (a package that is not installed, for example); the first sentence then tries
        again.
        """
        Query("the chiar by the red tabel").parsed(())  # what is no word is looked up in every table
        likelihood_of_label("chair", "stool")
        inference = self.inference
        if inference is None:
            return
        if inference.network.grounding is not None and inference.text_encoder is not None:
            inference.text_encoder.encode(["a chair"])

    def _answer(
        self,
        query: Query,
        context: QueryContext,
        colors: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        candidates: PhraseCandidates | None,
    ) -> Grounding:
        objects = self._named_by_looks(self._named_by_list(context, query), query)
        if not self.named and {o.label for o in objects} <= {UNNAMED} and not query_problem(query.text):
            reason = "no language model loaded: objects have no names"
            return query.answer(GroundingStatus.INVALID, reason=reason)
        low_confidence = context.low_confidence if objects is context.objects else None
        return ground_objects(query, objects, colors=colors, candidates=candidates, low_confidence=low_confidence)

    def _context(self, scene: PublishedScene, states: bool) -> QueryContext:
        """Made once for a scene, and kept as long as it is; ``states``: with the states of objects."""
        known = self._contexts.setdefault(scene, {})
        context = known.get(states)
        if context is None:
            published = with_conditions(scene.objects, scene.voxels) if states else scene.objects
            objects, tentative = published, scene.tentative
            if self.classes is not None:  # sentences may use all words
                objects, tentative = self.classes.in_own_words(objects), self.classes.in_own_words(tentative)
            first_score = partial(published_score, looks=1, scores=self.scores, config=self.tracking)
            context = QueryContext(published, objects, tentative, scene.seen, self.scores, first_score)
            known[states] = context
        return context

    def _named_by_list(self, context: QueryContext, query: Query) -> tuple[SceneObject, ...]:
        """The objects, under names of the class list that the query uses and that no lexicon has."""
        if self.classes is None or query.meaning is None or query.meaning.problem:
            return context.objects
        named = self.classes.in_own_words(context.published, all_nouns(query.meaning))
        changed = any(a.label != b.label for a, b in zip(named, context.objects, strict=True))
        return named if changed else context.objects

    def _named_by_looks(self, objects: tuple[SceneObject, ...], query: Query) -> tuple[SceneObject, ...]:
        """The objects, under names that no label has where they look so; themselves where labels answer."""
        if self.lift is None or self.lift.looks is None or query.meaning is None or query.meaning.problem:
            return objects
        named = self.lift.looks.renamed(objects, all_nouns(query.meaning), lexicon().similarity)
        return objects if named == objects else named


def _colors(voxels: VoxelSnapshot | None, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 3) mean sRGB in 0..255 of what the map shows in (N, 9) boxes; NaN where it was not measured."""
    return mean_colors(voxels, boxes) if voxels is not None else np.full((len(boxes), 3), np.nan)
