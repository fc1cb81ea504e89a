"""Answers to sentences: the objects meant, with exactly one of FOUND, NOT_FOUND, AMBIGUOUS and INVALID.

    grounding = ground_objects("the chair left of the red sofa", objects, T_world_camera)

    grounder = Grounder(inference, lift, classes, scores, config.objects.tracking)
    answers = grounder.answer(scene, ["the chair left of the red sofa"], T_map_camera)

The score of a candidate is the probability that it is the object meant, not the confidence of its detection.
"""

from __future__ import annotations

import json
import logging
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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
from embodied_perceptron.language.decoding import speaks_of_states
from embodied_perceptron.language.knowledge import is_named, noun_knowledge
from embodied_perceptron.language.lexicon import (
    is_implement,
    is_known_noun,
    is_use,
    lexicon,
    likelihood_of_label,
    noun_taxonomy,
    pluralize,
    split_words,
    word_set,
)
from embodied_perceptron.language.meaning import ANYTHING, Constraint, Meaning, ObjectPhrase
from embodied_perceptron.language.object_states import with_conditions
from embodied_perceptron.language.query import (
    DEFAULT_TOP_K,
    MeaningReader,
    NamedQuery,
    Query,
    query_problem,
    with_user_names,
)
from embodied_perceptron.language.questions import UNKNOWN, attribute_words
from embodied_perceptron.language.relations import (
    LIKELIHOODS,
    PAIR_RELATIONS,
    FrontSource,
    SceneGeometry,
    front_probabilities,
    front_sources,
    viewer_of,
)
from embodied_perceptron.language.scoring import (
    MAY_BE_UNKNOWN,
    OF_KIND,
    UNDECIDED,
    Evidence,
    Scorer,
    Trust,
    first_of_each,
    leftness,
)
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
# least similarity of label and noun: noun that is a label, exact match, same kind, unknown vocabulary
_SAME_NAME, _SAME_THING, _SAME_KIND, _ANY_KIN = 0.85, 0.75, 0.35, 0.15
_AKIN = 0.15  # the same, for the nearest matches of a NOT_FOUND
_SURE_ALONE = 0.5  # least score of a proposed box or of a description that counts against the labels
_SURELY_NAMED = (0.75, 0.95)  # least probability of a label that is meant by words that name nothing: unknown, known
_SURELY_DESCRIBED = 0.65  # the same of an object that is described where another one serves the use
_DESCRIBED_SO = 0.3  # least probability of an object that is described where none is named
_DOUBTED = 0.5  # factor for what serves a use, or is described, where another reading means something else
# weight of the scores of the map's own boxes, which are probabilities, against those of an unknown detector; chosen on
# 64 generated homes (validation homes: 0.6 and 0.8 points more sentences right)
_OF_THE_MAP = 0.5
_CONFIDENCE_SHARE = 0.3  # weight of detection confidences in "equally good"
_BELIEVED = 0.1  # score from which a detection is taken to exist
_UNSURE = 0.02  # score of an uninformative proposed box
_AS_GOOD = 0.75  # share of the best probability that counts as equally good
_HARDLY = 0.15  # likelihood below which a condition does not hold
_FITTING = 0.5  # weight of the log likelihood that all conditions hold
_FITS = 0.45  # least likelihood of the conditions where all objects are asked for

_MANY_CONDITIONS, _MANY_WORDS = 2, 14  # longer descriptions are imprecise
_SHARED = ("wall", "alone")  # places of several objects: "how many towels hang on the wall"
# labels that also cover objects with other labels: "a piece of furniture"
_GENERIC = frozenset(
    ("furniture", "tool", "device", "machine", "food", "utensil", "kitchenware", "container", "decoration")
) | {"gadget", "gizmo", "appliance", "instrument"}
_ANY_OF = ("nearest-me", "farthest-me")
# first words of phrases that any fitting object satisfies: "something to sit on"
_INDEFINITE = frozenset(("any", "anything", "anywhere", "some", "something", "somewhere", "whatever"))
_RUNNER_UP = 0.1  # least probability of a further candidate of an answer, as a share of the best one's
_RELATED = 0.5  # factor of the probability of an answer whose name or conditions fit badly
_ALONE = 0.95  # share of an object that is asked for with others
# most objects that a question by a place means altogether, share of each of more, and relations of what holds many
_FEW, _ONE_IS_MEANT, _FIRM = 3, 0.5, ("on", "in")
_MANY_UNREAD = 4  # most words in a reason that were not understood
_SUPPORT = {GroundingStatus.FOUND: 1.0, GroundingStatus.AMBIGUOUS: 0.5, GroundingStatus.NOT_FOUND: 0.2}
_LEAST_SUPPORT = 0.05  # score of the best candidate where there is none
_PLAINLY_MEANT = 0.7  # support from which other readings are not considered
_SHARE_OF_READING = 0.6  # power of a reading's probability as a share of the best one's
_LESS_LIKELY = 0.5  # probability of a clause about the target where the reader took it to be about a landmark
_ASKED_BACK = 4  # most candidates in a question back
_CLAUSE = word_set("clause") | {"is", "are", "my"}  # words of a need that was taken for a noun
_WALLS = frozenset(("wall", "partition"))
# landmarks that the map may lack although they are there
_UNMAPPED = word_set("rooms") | {"wall", "floor", "ground", "ceiling", "room", "corner", "carpet", ANYTHING}


class Candidates(Protocol):
    """Boxes and scores of a neural grounder for a sentence, world frame: (K, 9) and (K,) in [0, 1]."""

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
    """Answer ``query`` about ``objects``. Takes some milliseconds for a hundred objects; never raises for any text.

    Args:
        query: the sentence. Its viewpoint, or else ``viewpoint``, is the (4, 4) pose of the speaker, a camera's or a
            robot's (:func:`~.relations.viewer_of`). Without a viewpoint, words like "left" are averaged over plausible
            viewpoints, and the score is lower.
        objects: with labels; walls separate rooms.
        colors: (N, 3) mean sRGB of the objects in 0..255, NaN where not measured; or a function that measures (K, 9)
            boxes, called only for sentences about colours.
        candidates: of a neural grounder: further evidence, and an answer where no label fits the noun; a box that is
            no object of the map has the id 0.
        fronts: "boxes" when -y of every box is the object's front (annotations), "estimated" when sides have no meaning
            (predicted boxes), "none" to read "left of" always from the viewer; one for all objects or one for each.
        vocabulary: labels of the detector: a noun among them means only this label. None = unknown: then constraints
            of the sentence may outweigh a label.
        low_confidence: further candidates, made of the same ``objects``. An answer from these is FOUND with a lower
            score and the state tentative; its id is 0 unless the map has the object.

    Raises ``ValueError`` for an invalid viewpoint, colours of another shape, or an array of colours together with
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
    finite = _finite(objects, colors, sources)

    def answered(about: Meaning) -> _Decided:
        named = _in_labels(about, labels)
        answer = _Answer(named, finite, low_confidence, query.viewpoint, candidates, vocabulary)
        status, ranked, reason = answer.decide(query.top_k)
        by_name = named.target is None or about.target is None or named.target.noun == about.target.noun
        return _Decided(answer, status, ranked, reason if by_name else _described_so(reason))

    best = None if meaning is None or meaning.target is None else _likeliest(meaning, answered)
    if meaning is not None:
        best = _by_description(meaning, best, labels, answered)
    if best is None:
        return query.answer(GroundingStatus.INVALID, reason="no object is named in the query")
    if best.answer.one_of_many():
        best = best.times(_ONE_IS_MEANT)
    answer, status, ranked = best.answer, best.status, best.ranked
    meaning = answer.meaning
    if meaning.asked or meaning.kind == "where":
        best = answer.attribute(best)
        status, ranked = best.status, best.ranked
    tagged = _tagged(query.text, meaning, ranked) if status == GroundingStatus.FOUND else ""
    # where all are asked for and none fits well enough to be counted, the answer is that of a single object
    count = len(answer.meant) if meaning.every and (answer.meant or not ranked) else None
    return query.answer(status, ranked, best.reason, tagged, count, answer.phrases(status, ranked), answer.nearest)


@dataclass(frozen=True, eq=False)
class _Decided:
    """The answer to one reading of a sentence."""

    answer: _Answer
    status: GroundingStatus
    ranked: tuple[SceneObject, ...]
    reason: str

    @property
    def support(self) -> float:
        """Support of the scene for the reading: of equally likely readings the one with the best match is meant."""
        found = self.ranked or self.answer.nearest
        return _SUPPORT.get(self.status, 0.0) * max(found[0].score if found else 0.0, _LEAST_SUPPORT)

    def times(self, share: float) -> _Decided:
        """The same with all scores multiplied by ``share``."""
        ranked = tuple(replace(o, score=share * o.score) for o in self.ranked)
        return replace(self, ranked=ranked)


def _likeliest(meaning: Meaning, answered: Callable[[Meaning], _Decided]) -> _Decided:
    """The answer to the most likely reading by words and scene."""
    best = answered(meaning)
    if meaning.kind in ("exists", "count"):
        return best  # none is an answer, not the sign of a wrong reading
    support = best.support
    others = (*meaning.others, *_attached_to_target(meaning))
    for other in others if support < _PLAINLY_MEANT else ():
        share = min(other.probability / max(meaning.probability, 1e-12), 1.0) ** _SHARE_OF_READING
        decided = answered(other)
        if share * decided.support > support:
            support, best = share * decided.support, decided.times(share)
    return best


def _guess(text: str, labels: set[str]) -> tuple[str, float]:
    """The label of an object that a text means, and the probability of that; no wall is described."""
    label, likely = noun_knowledge().guess(text, labels)
    return label, 0.0 if label in _WALLS | {"floor", "ceiling", UNNAMED} else likely


def _in_labels(meaning: Meaning, labels: set[str]) -> Meaning:
    """The meaning with labels in place of nouns that name nothing here, where what is said surely means a label: "the
    clothes rail" is a clothes rack, "my Gillette" a razor."""

    def named(phrase: ObjectPhrase) -> ObjectPhrase:
        noun, words = phrase.noun, meaning.text[slice(*phrase.span)].lower()
        there = any(lexicon().similarity(noun, label) >= _SAME_KIND for label in labels)
        is_kind = there and (noun in words.split()[:-1] or len(words.split()) <= len(noun.split()))
        if not is_kind and noun not in _GENERIC | {ANYTHING} and not is_use(noun):
            label, likely = _guess(words, labels)
            head = label.split()[-1:]
            is_part = head in ([word] for word in words.split()[:-1])  # "the door handle" is no door
            same_head = head == noun.split()[-1:]  # a washing machine is no coffee machine, a dog no cat
            akin = same_head or likelihood_of_label(noun, label) > _ANY_KIN
            is_other = words.startswith(noun) and is_known_noun(noun) and akin
            noun = label if likely >= _SURELY_NAMED[phrase.known] and not (is_part or is_other) else noun
        return replace(phrase, noun=noun, constraints=stated(phrase.constraints))

    def stated(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
        return tuple(replace(c, anchors=tuple(map(named, c.anchors))) for c in constraints)

    excluded = tuple(_in_labels(e, labels) for e in meaning.excluded)
    target = None if meaning.target is None else named(meaning.target)
    return replace(meaning, target=target, constraints=stated(meaning.constraints), excluded=excluded)


def _attached_to_target(meaning: Meaning) -> list[Meaning]:
    """Readings in which what is said of a landmark holds of the target: "the box on the shelf under the helmet"."""
    found = []
    for c in meaning.constraints:
        own = [inner for anchor in c.anchors for inner in anchor.constraints if inner.anchors]
        if own:
            bare = tuple(replace(a, constraints=tuple(i for i in a.constraints if not i.anchors)) for a in c.anchors)
            others = [replace(c, anchors=bare) if c is other else other for other in meaning.constraints]
            likely = _LESS_LIKELY * meaning.probability
            found.append(replace(meaning, constraints=(*others, *own), probability=likely, others=()))
    return found


def _by_description(
    meaning: Meaning, best: _Decided | None, labels: set[str], answered: Callable[[Meaning], _Decided]
) -> _Decided | None:
    """The object that the sentence describes, where it names none that is there and the description is likely enough.

    An object that serves a stated use is less sure where the description fits another one better. ``best``: the answer
    to what the sentence names; None = it names nothing.
    """
    target = ObjectPhrase(ANYTHING, (0, 0)) if best is None else best.answer.meaning.target
    assert target is not None
    everything = target.noun == ANYTHING and not meaning.constraints  # "what will she put to her ears?"
    if meaning.kind not in ("object", "where") and not (everything and meaning.kind == "contents"):
        return best
    vague = is_use(target.noun) or everything
    absent = best is None or best.status == GroundingStatus.NOT_FOUND or everything
    has_reference = any(c.anchors or c.relation == "colour" for c in meaning.constraints)
    if (target.noun == ANYTHING and not everything) or (target.noun in _GENERIC and not absent):
        return _by_description_among(meaning, best, answered)  # "the white thing that spins"
    if best is not None and absent and target.noun in _GENERIC and has_reference:  # "the machine by the sink"
        found = answered(replace(meaning, target=replace(target, noun=ANYTHING)))
        return found.times(_DOUBTED) if found.status == GroundingStatus.FOUND else best
    if not (vague or absent):
        return best
    texts = (meaning.text,) if vague else (meaning.text, target.noun)  # an unlisted name: "the Gillette"
    name, likely = max((_guess(text, labels) for text in texts), key=lambda guess: guess[1])
    if not vague and target.noun not in _GENERIC and (target.known or is_implement(target.noun)):
        likely *= _DOUBTED  # what is named may be meant
    serves = is_use(target.noun) and lexicon().similarity(target.noun, name) >= _SAME_KIND
    if serves or is_named(name, meaning.text):
        return best  # named and refused for another reason, or the object that serves the use
    if best is not None and not absent and likely < _SURELY_DESCRIBED:
        return best.times(_DOUBTED)
    if likely < _DESCRIBED_SO:
        return best
    described = ObjectPhrase(name, target.span)
    found = answered(Meaning(meaning.text, described) if everything else replace(meaning, target=described))
    if found.status == GroundingStatus.NOT_FOUND:  # what seems to be a condition is part of the description
        found = answered(Meaning(meaning.text, described))
    return replace(found.times(likely), reason=_described_so(found.reason))


def _described_so(reason: str) -> str:
    return f"by its description: {reason}"


def _by_description_among(
    meaning: Meaning, best: _Decided | None, answered: Callable[[Meaning], _Decided]
) -> _Decided | None:
    """Of several things that fit equally well, the one that the sentence describes."""
    if best is None or best.status != GroundingStatus.AMBIGUOUS or meaning.target is None:
        return best
    name, likely = _guess(meaning.text, {o.label for o in best.ranked})
    if likely < _DESCRIBED_SO:
        return best
    found = answered(replace(meaning, target=replace(meaning.target, noun=name)))
    if found.status == GroundingStatus.NOT_FOUND:
        return best
    return replace(found.times(max(likely, _DOUBTED)), reason=_described_so(found.reason))


def _boxes(objects: Sequence[SceneObject]) -> F64:
    """(N, 9) boxes."""
    return np.array([o.box for o in objects], dtype=np.float64).reshape(-1, 9)


_Described = tuple[Sequence[SceneObject], Colors | None, tuple[FrontSource, ...]]  # objects, colours, fronts


def _finite(objects: Sequence[SceneObject], colors: Colors | None, fronts: tuple[FrontSource, ...]) -> _Described:
    """Objects with finite box and score, with their colours and fronts."""
    finite = np.isfinite(_boxes(objects)).all(axis=1) & np.isfinite([o.score for o in objects])
    if finite.all():
        return objects, colors, fronts
    kept = np.flatnonzero(finite).tolist()
    rows = colors if colors is None or callable(colors) or len(colors) != len(objects) else np.asarray(colors)[kept]
    return [objects[i] for i in kept], rows, tuple(fronts[i] for i in kept)


def _no(noun: str) -> str:
    if is_use(noun):
        return f"nothing here serves to {noun.removeprefix('something to ')}"
    if len(noun.split()) > 1 and not _CLAUSE.isdisjoint(noun.split()):
        return f'not known: what serves "{noun}"'
    if not is_known_noun(noun, ()) and noun != ANYTHING:
        return f"not known: {noun}, a word without a meaning here"
    return "there are no objects" if noun == ANYTHING else f"there is no {noun}"


def _tagged(text: str, meaning: Meaning, ranked: Sequence[SceneObject]) -> str:
    assert meaning.target is not None
    first, last = meaning.target.span
    ids = ", ".join(f"<obj_{o.id}>" for o in (ranked if meaning.every else ranked[:1]))
    return f"{text[:first]}<p>{text[first:last]}</p>[{ids}]{text[last:]}"


def _speaks_of_colors(meaning: Meaning) -> bool:
    if meaning.asked == "colour":
        return True
    anchors = [a for c in meaning.constraints for a in c.anchors]
    stated = (*meaning.constraints, *(c for a in anchors for c in a.constraints))
    return any(c.relation in ("colour", "same-colour") for c in stated) or any(
        _speaks_of_colors(e) for e in meaning.excluded
    )


def _measured(colors: Colors | None, boxes: F64, confirmed: int) -> F64 | None:
    """(N, 3) colours of boxes; those after the first ``confirmed`` separately, because they overlap them."""
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
    """Confidences relative to the 75th percentile, so that only their order in the scene matters."""
    usual = float(np.percentile(scores[:confirmed] if confirmed else scores, 75)) if len(scores) else 1.0
    return np.asarray(np.clip(scores / max(usual, 1e-9), 0.02, 1.0))


class _Answer:
    """The decision about one meaning: candidates, evidence and status."""

    def __init__(
        self,
        meaning: Meaning,
        described: _Described,
        low_confidence: LowConfidenceCandidates | None,
        viewpoint: NDArray[np.float64] | None,
        candidates: Candidates | None,
        vocabulary: frozenset[str] | None,
    ) -> None:
        confirmed, colors, fronts = described
        self.meaning = meaning
        self._words = split_words(meaning.text)
        objects = (
            tuple(confirmed) if low_confidence is None else (*low_confidence.objects, *low_confidence.about(meaning))
        )
        self.objects = objects
        self.min_answer = 0.0 if low_confidence is None else low_confidence.min_answer
        self.confirmed = len(confirmed)  # count of confirmed objects; low-confidence ones follow
        noun = "" if meaning.target is None else meaning.target.noun
        named = vocabulary is not None and noun in vocabulary and noun not in _GENERIC
        self.least_kind = _ANY_KIN if vocabulary is None else (_SAME_NAME if named else _SAME_KIND)
        self.labels = tuple(o.label for o in objects)
        boxes = _boxes(objects)
        viewer = None if viewpoint is None else viewer_of(viewpoint)
        self.meant: tuple[SceneObject, ...] = ()  # the objects where all are asked for
        self.nearest: tuple[SceneObject, ...] = ()  # the closest matches of a NOT_FOUND
        known = colors is not None and not callable(colors)  # measured only for sentences about colours
        color = _measured(colors, boxes, self.confirmed) if known or _speaks_of_colors(meaning) else None
        self.viewer_known = viewer is not None or meaning.speaker is not None
        walls = np.array([label in _WALLS for label in self.labels], dtype=bool)
        others: tuple[FrontSource, ...] = ("estimated" if "estimated" in fronts else "none",)
        every_front = (*fronts, *others * (len(objects) - len(confirmed)))
        estimate = partial(front_probabilities, labels=self.labels, sources=every_front)
        self.geometry = SceneGeometry(boxes, estimate, viewer, walls, self._may_be_anchors())
        self.geometry.conditions = tuple(o.condition for o in objects)
        self.relative = scores = _relative(np.array([o.score for o in objects], dtype=np.float64), self.confirmed)
        self.proposals = candidates
        extra = None if candidates is None else self._extra(candidates)
        trust = Trust(self.confirmed, 1.0 if low_confidence is None else _OF_THE_MAP)
        self.scorer = Scorer(meaning, self.geometry, self.labels, scores, color, extra, trust=trust)
        conditions = [c for c in meaning.constraints if c.weight >= 1.0 and c.relation != "state"]
        words = meaning.length
        self.is_long = len(conditions) > _MANY_CONDITIONS or words > _MANY_WORDS or meaning.speaker is not None
        if vocabulary is None and not self.is_long and is_known_noun(noun, self.labels):
            self.least_kind = _SAME_KIND
        self.in_vocabulary = vocabulary is not None and noun in vocabulary

    def _may_be_anchors(self) -> NDArray[np.bool_]:
        """(N,) bool: labels similar to a noun of an anchor."""
        meanings = (self.meaning, *self.meaning.excluded)
        speakers = [m.speaker.anchor.noun for m in meanings if m.speaker is not None]
        nouns = (*(noun for m in meanings for noun in anchor_nouns(m)), *speakers)
        # the target's front counts
        facing = any(c.relation in ("facing", "back-to") for m in meanings for c in m.constraints)
        nouns += tuple(m.target.noun for m in meanings if facing and m.target is not None)
        if ANYTHING in nouns:
            return np.ones(len(self.labels), dtype=bool)
        kind = {label: any(lexicon().similarity(noun, label) > 0 for noun in nouns) for label in set(self.labels)}
        return np.array([kind[label] for label in self.labels], dtype=bool)

    def _extra(self, candidates: Candidates) -> F64:
        """(N,) the neural grounder's score of each object relative to its best; nearly equal where it is unsure."""
        if len(candidates.boxes) == 0 or not self.objects:
            return np.ones(len(self.objects))
        overlap = self.geometry.overlaps(candidates.boxes)
        score = np.where(overlap > PROPOSED_IOU, candidates.scores[None], 0.0).max(axis=1)
        return np.asarray((score + _UNSURE) / (float(candidates.scores.max()) + _UNSURE))

    def decide(self, limit: int | None) -> tuple[GroundingStatus, tuple[SceneObject, ...], str]:
        """Status, candidates, best first, and the reason in words.

        ``limit``: most candidates; None = the number asked for, or :data:`DEFAULT_TOP_K`.
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
        second = self.meaning.second
        if self.meaning.asked == "comparison" and second is not None:
            nouns = [p.noun for p in (target, second) if not self._there(self.scorer.similarity(p.noun), p.noun).any()]
            if nouns:
                return GroundingStatus.NOT_FOUND, (), _no(nouns[0])
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
            equal[1:] = False  # of two equally near objects either is right
        listed = order[: min(top_k, int((probability >= _RUNNER_UP * probability[0]).sum()))]
        if equal.sum() > 1 and self._any_will_do(target):
            scores = probability.copy()
            scores[0] = min(float(probability[equal].sum()), 1.0)  # any one of them is right
            return GroundingStatus.FOUND, self._scored(listed, scores), self._reason(evidence, order[0])
        if equal.sum() > 1:
            tied = [i for i, same in zip(order, equal.tolist(), strict=True) if same]
            reason = f"{len(tied)} {_counted(target.noun)} fit equally well{self._unchecked(evidence, order[0])}"
            reason += self._question_back(tied)
            return (
                GroundingStatus.AMBIGUOUS,
                self._scored(tied[:top_k], probability[equal]),
                reason,
            )
        return GroundingStatus.FOUND, self._scored(listed, probability), self._reason(evidence, order[0])

    def _any_will_do(self, target: ObjectPhrase) -> bool:
        """Whether each fitting object is a right answer: "any chair", "something to sit on", "somewhere to sit"."""
        if self.meaning.any_of or is_use(target.noun):
            return True
        first = self._phrase(target, ()).text.lower().split()[:1]
        return self.meaning.kind == "object" and not _INDEFINITE.isdisjoint(first)

    def _there(self, kind: F64, noun: str) -> NDArray[np.bool_]:
        """(N,) bool: labels similar enough to the noun, or else labels that contain it."""
        kinds = {label: lexicon().is_kind(label, noun) for label in set(self.labels)}
        says: NDArray[np.bool_] = np.array([kinds[label] for label in self.labels], dtype=bool)
        there: NDArray[np.bool_] = (kind >= self.least_kind) | ((kind >= _SAME_KIND) & says)
        return there if there.any() else (kind > 0.0) & says

    def _weighed(self, evidence: Evidence) -> tuple[list[int], F64, F64]:
        """Candidates, best first, their probabilities, and (N,) likelihood that all conditions hold of each object."""
        order, share = self._ranking(evidence)
        fits = self.scorer.plausible(evidence)
        if not order:
            return order, share, fits
        sure = probability_right(self._traits(evidence, order)) * self._existence(order[0])
        lacks = any(t.missing and not t.constraint.negated for t in evidence.terms)
        if lacks or fits[order[0]] < _HARDLY or self.scorer.unknown(evidence)[order[0]]:
            sure *= _RELATED
        return order, share * (sure / share[0]), fits

    def _note_nearest(self, order: list[int], probability: F64, top_k: int) -> None:
        """Keep the closest matches of a NOT_FOUND; a question is answered by its count."""
        if self.meaning.kind == "object":
            self.nearest = self._scored(order[:top_k], probability)

    def _scored(self, order: list[int], probability: F64) -> tuple[SceneObject, ...]:
        return tuple(replace(self.objects[i], score=float(p)) for i, p in zip(order, probability, strict=False))

    def phrases(self, status: GroundingStatus, ranked: Sequence[SceneObject]) -> tuple[GroundedPhrase, ...]:
        """Noun phrases of the sentence with object ids: the target first, then its landmarks."""
        meaning = self.meaning
        assert meaning.target is not None
        one = status == GroundingStatus.FOUND and not meaning.every
        found = {meaning.target.span: self._phrase(meaning.target, [o.id for o in (ranked[:1] if one else ranked)])}
        best = next((i for i, o in enumerate(self.objects) if ranked and o.id == ranked[0].id), None)
        anchors = [(a, c) for c in meaning.constraints for a in c.anchors]
        anchors += [(a, c) for anchor, _ in tuple(anchors) for c in anchor.constraints for a in c.anchors]
        for phrase, constraint in (*anchors, *((m, None) for m in meaning.mentioned)):
            if phrase.span not in found and phrase.noun != ANYTHING:
                found[phrase.span] = self._phrase(phrase, self._referents(phrase, constraint, best))
        return tuple(found.values())

    def _phrase(self, phrase: ObjectPhrase, ids: Sequence[int]) -> GroundedPhrase:
        text = self.meaning.text
        first, last = phrase.span
        for word in reversed(self._words[: bisect_right(self._words, first, key=lambda word: word.end)]):
            if word.text not in _PHRASE_WORDS:
                break
            first = word.start
        return GroundedPhrase(text[first:last], first, last, tuple(ids))

    def _referents(self, phrase: ObjectPhrase, constraint: Constraint | None, target: int | None) -> list[int]:
        """Ids of the objects that a landmark phrase refers to: those with the best relation to the target."""
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

    def _by_sight(self, noun: str) -> tuple[GroundingStatus, tuple[SceneObject, ...], str]:
        """Answer where no label fits: the box of the neural grounder, if it is sure."""
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
            o = replace(self.objects[int(overlap.argmax())], score=0.5 * score)
        else:
            o = SceneObject(0, noun, 0.5 * score, np.asarray(proposals.boxes[best], dtype=np.float64))
        return GroundingStatus.FOUND, (o,), f"no label says {noun}, but this looks most like it"

    def _existence(self, i: int) -> float:
        """Probability that object ``i`` exists: relative confidence of a low-confidence candidate; else 1, but less for
        very low scores."""
        return min(self.objects[i].score / _BELIEVED, 1.0) if i < self.confirmed else float(self.relative[i])

    def _traits(self, evidence: Evidence, order: list[int]) -> Traits:
        best = order[0]
        satisfied = [float(t.satisfied[best]) for t in evidence.terms if not t.missing]
        return Traits(
            fit_share=float(1.0 / self._fit_share(evidence, order).sum()),
            weakest=min((s for s in satisfied if not np.isnan(s)), default=1.0),
            unsure_view=not self.viewer_known and any(self._needs_viewer(c) for c in self.meaning.constraints),
            kind=float(evidence.category[best]),
            reading=self.meaning.probability,
            use=self.meaning.target is not None and is_use(self.meaning.target.noun),
        )

    def _needs_viewer(self, c: Constraint) -> bool:
        """Whether only the viewpoint decides: sides without an anchor, or of an anchor without a front."""
        if not c.is_view_dependent or not c.anchors:
            return c.is_view_dependent
        weight = self.scorer.anchor_weights(c.anchors[0])
        return bool(weight.max(initial=0.0) > 0 and self.geometry.fronts[int(weight.argmax())].sum() < 0.5)

    def _ranking(self, evidence: Evidence) -> tuple[list[int], F64]:
        """Candidates, one box per object, best first, with posterior probabilities."""
        assert self.meaning.target is not None
        possible = evidence.category >= min(self.least_kind, 0.9 * float(evidence.category.max()))
        possible |= self._there(evidence.category, self.meaning.target.noun)
        rows = np.flatnonzero(possible)
        pairs = self.scorer.here  # pairs of objects whose labels fit the noun
        pairs = pairs.where(possible[pairs.target] & possible[pairs.anchor])
        one_thing = pairs.where((pairs.iou > ONE_THING_IOU) | (pairs.inside > INSIDE_SHARE))
        log_score = evidence.log_score + _FITTING * np.log(_HARDLY + self.scorer.plausible(evidence))
        best_first = rows[np.argsort(-log_score[rows], kind="stable")]
        order: list[int] = first_of_each(best_first, one_thing).tolist()
        scores = log_score[order]
        share = np.exp(scores - scores.max())
        return order, share / share.sum()

    def _fit_share(self, evidence: Evidence, order: list[int]) -> F64:
        """Fit of each ranked candidate relative to the first."""
        counts = np.where(
            np.array(order) < self.confirmed, _CONFIDENCE_SHARE, 1.0
        )  # low-confidence candidates are never equal
        fit = evidence.fit[order] + counts * (evidence.log_score - evidence.fit)[order]
        return np.asarray(np.exp(np.minimum(fit - fit[0], 0.0)))

    def _why_not(self, evidence: Evidence, order: list[int], fits: F64) -> str:
        """Reason why no candidate fits the sentence; empty when one may fit."""
        meaning = self.meaning
        assert meaning.target is not None
        noun = meaning.target.noun
        if meaning.kind in ("contents", "count", "exists") or noun == ANYTHING:
            missing = [m for t in evidence.terms if not t.constraint.negated for m in t.missing]
            if missing and len(missing) == len(meaning.constraints):
                return f"there is no {missing[0]}"
        if self.is_long:
            return ""
        absent = self.scorer.absent()
        if absent is not None and absent.noun.split()[-1] not in _UNMAPPED and is_known_noun(absent.noun, self.labels):
            return f"no {_described(absent)} found on the map; the nearest matches fit without it"
        kind = float(evidence.category[order].max())
        kinds = {label: noun_taxonomy().is_kind(label.split(), noun) for label in set(self.labels)}  # a stool is a seat
        members = [i for i in order if evidence.category[i] >= 0.5 * kind or kinds[self.labels[i]]]
        stated = [t for t in evidence.terms if t.constraint.weight >= 1.0]
        for term in stated:
            likely = self.scorer.likely(term)
            if not np.isnan(likely[members]).any() and likely[members].max(initial=0.0) < _HARDLY:
                return self._none_is(noun, _words(term.constraint))
        if len(members) and fits[members].max() < _HARDLY:
            words = [_words(t.constraint) for t in stated if not np.isnan(self.scorer.likely(t)).all()]
            words += [_description(e) for e in meaning.excluded]
            return self._none_is(noun, " and ".join(words))
        for term in evidence.terms:
            c = term.constraint
            enough = sum(fits[i] >= _HARDLY and evidence.category[i] >= OF_KIND * kind for i in members)
            if c.is_superlative and c.rank > max(enough, 1) and not term.missing:
                there = f"are only {enough} {_counted(noun)}" if enough > 1 else f"is only one {_counted(noun, False)}"
                return f"number {c.rank} was asked for, but there {there}"
        return ""

    def _none_is(self, noun: str, words: str) -> str:
        if noun == ANYTHING:
            return f"there is nothing {words}"
        return f"there is a {noun}, but none that is {words}"

    def _every(
        self, evidence: Evidence, order: list[int], fits: F64, limit: int | None
    ) -> tuple[GroundingStatus, tuple[SceneObject, ...], str] | None:
        """The answer where all fitting objects are asked for; None to answer as for one object."""
        meaning = self.meaning
        assert meaning.target is not None
        noun = meaning.target.noun
        best = float(evidence.category[order].max())
        unknown, more = self.scorer.unknown(evidence), ""
        least = np.where(unknown, _FITS * UNDECIDED, _FITS)
        fitting = [i for i in order if evidence.category[i] >= OF_KIND * best and fits[i] >= least[i]]
        chosen = [i for i in fitting if not unknown[i]]
        if best < _SAME_KIND and meaning.kind != "object" and is_known_noun(noun, self.labels):
            return GroundingStatus.NOT_FOUND, (), _no(noun)
        superlative = [
            c for c in meaning.constraints if c.is_superlative and c.weight >= 1.0 and c.relation not in _SHARED
        ]
        if len(fitting) > len(chosen):
            words = f"whether {{}} {' and '.join(self._may_be_unknown(evidence))} is not known"
            more = f"; {words.format(f'{len(fitting) - len(chosen)} more are')}"
            if not chosen:
                self._note_nearest(fitting, fits[fitting], limit or DEFAULT_TOP_K)
                return GroundingStatus.NOT_FOUND, (), words.format(f"the {noun} is")
        if not chosen:
            if meaning.kind == "object":
                return None
            return GroundingStatus.NOT_FOUND, (), self._none_is(noun, "so")
        if superlative:
            chosen = chosen[: meaning.number or (2 if meaning.target.plural and meaning.kind == "object" else 1)]
        wanted = meaning.number
        if wanted is not None and len(chosen) < wanted:
            there = f"are only {len(chosen)}" if len(chosen) > 1 else "is only one"
            return GroundingStatus.NOT_FOUND, (), f"{wanted} {_counted(noun)} were asked for, but there {there}"
        read, use = meaning.probability, is_use(noun)
        traits = [Traits(_ALONE, float(fits[i]), False, float(evidence.category[i]), read, use) for i in chosen]
        scores = np.array([probability_right(t) * self._existence(i) for t, i in zip(traits, chosen, strict=True)])
        scores = scores * np.where(evidence.category[chosen] < _SAME_THING, _RELATED, 1.0)  # a mug for a wine glass
        scores = np.minimum.accumulate(scores)  # in the order of the ranking
        found = [replace(self.objects[i], score=float(p)) for i, p in zip(chosen, scores, strict=True)]
        self.meant = tuple(found)
        if wanted is not None and len(chosen) > wanted:
            words = f"{len(chosen)} {_counted(noun)} fit, not {wanted}"
            return GroundingStatus.AMBIGUOUS, self.meant[: limit or len(found)], words
        states = [_words(c) for c in meaning.constraints if c.relation == "state"]
        names = ", ".join([*(f"{o.label} {o.id}" for o in found[:10]), *states])
        return GroundingStatus.FOUND, self.meant[: limit or len(found)], f"{len(found)} found: {names}{more}"

    def one_of_many(self) -> bool:
        """Whether a question by a place may mean one of the many objects there: "what is in front of the shelf"."""
        meaning = self.meaning
        asks = meaning.kind in ("contents", "where") and meaning.target is not None and meaning.target.noun == ANYTHING
        return asks and len(self.meant) > _FEW and not any(c.relation in _FIRM for c in meaning.constraints)

    def attribute(self, decided: _Decided) -> _Decided:
        """The answer to a question about an attribute of the objects found, or why it is not known."""
        meaning, status, ranked, reason = self.meaning, decided.status, decided.ranked, decided.reason
        if meaning.target is None or status not in (GroundingStatus.FOUND, GroundingStatus.AMBIGUOUS) or not ranked:
            return decided
        the = f"the {_counted(meaning.target.noun, meaning.target.plural)}"
        if meaning.asked in UNKNOWN:
            is_made = f"{the} {'are' if meaning.target.plural else 'is'}"
            what = UNKNOWN[meaning.asked].format(is_made if meaning.asked == "material" else the)
            return self._not_known(decided, f"{what} is not known: the map does not hold it")
        if meaning.asked == "comparison":
            return decided
        where = not meaning.asked
        asked = ranked if meaning.every or status == GroundingStatus.AMBIGUOUS else ranked[:1]
        asked = asked[:_PLACES] if where else asked
        rows = [i for o in asked for i, known in enumerate(self.objects) if known.box is o.box]
        colors = ["" for _ in rows]
        if meaning.asked == "colour" and self.scorer.colors is not None:
            colors = color_names(self.scorer.colors, np.array(rows, dtype=np.intp))
        stated = []
        for i, color in zip(rows, colors, strict=True):
            others = [] if meaning.second is None else self._referents(meaning.second, None, i)
            if meaning.second is not None and not others:
                return self._not_known(decided, f"there is no {meaning.second.noun}")
            others = [k for k, o in enumerate(self.objects) if o.id in others and k != i]
            others = self._place_of(i) if where else others
            words = attribute_words("relation" if where else meaning.asked, self.geometry, i, color, others)
            if words:
                there = f"{self.objects[others[0]].label} {self.objects[others[0]].id}" if others else ""
                stated.append(f"{self.objects[i].label} {self.objects[i].id} {words.format(there)}")
        if not stated and not where:
            return self._not_known(decided, f"the {meaning.asked} of {the} is not known")
        if status == GroundingStatus.AMBIGUOUS or where:
            return replace(decided, reason="; ".join((reason, *stated)))
        unchecked = reason.partition("; ")[1:]
        return replace(decided, reason="; ".join(stated) + "".join(unchecked))

    def _place_of(self, i: int) -> list[int]:
        """The object that tells best where object ``i`` is: what it stands on or in, else the nearest one around."""
        rows = [
            k for k, label in enumerate(self.labels[: self.confirmed])
            if k != i and label not in _NO_LANDMARKS and label != self.labels[i]
        ]  # fmt: skip
        if not rows:
            return []
        pairs = self.geometry.block(np.array([i], dtype=np.intp), np.array(rows, dtype=np.intp))
        held = np.maximum(LIKELIHOODS["on"](pairs), LIKELIHOODS["in"](pairs))[0]
        near = np.where(held > _HELD, -held, pairs.gap[0])
        best = int(near.argmin())
        return [rows[best]] if near[best] < _LANDMARK_M else []

    def _not_known(self, decided: _Decided, reason: str) -> _Decided:
        self.nearest, self.meant = decided.ranked, ()
        return replace(decided, status=GroundingStatus.NOT_FOUND, ranked=(), reason=reason)

    def _question_back(self, tied: list[int]) -> str:
        """Question that distinguishes the candidates: ": the red one or the one by the door?"; else empty."""
        if len(tied) > _ASKED_BACK:
            return ""
        traits = [self._by_color(tied), self._by_neighbour(tied), self._by_side(tied)]
        for k in range(len(tied)):
            if not any(trait[k] for trait in traits):
                return ""
        named = [next(trait[k] for trait in traits if trait[k]) for k in range(len(tied))]
        return f": {', '.join(named[:-1])} or {named[-1]}?"

    def _by_color(self, tied: list[int]) -> list[str]:
        color = self.scorer.colors
        if color is None or not np.isfinite(color[tied]).all():
            return [""] * len(tied)
        stated = color_names(color, np.array(tied, dtype=np.intp))
        return [f"the {name} one" if stated.count(name) == 1 else "" for name in stated]

    def _by_neighbour(self, tied: list[int]) -> list[str]:
        """Unique objects near one of the tied candidates and not near another."""
        count = Counter(self.labels)
        once = [
            j for j, label in enumerate(self.labels[: self.confirmed])
            if count[label] == 1 and label not in _NO_LANDMARKS and j not in tied
        ]  # fmt: skip
        gap = self.geometry.block(np.array(tied), np.array(once, dtype=np.intp)).gap  # (tied, landmarks)
        stated = []
        for i in range(len(tied)):
            others = np.delete(gap, i, axis=0).min(axis=0)
            distinct = np.flatnonzero((gap[i] < _LANDMARK_M) & (others > gap[i] + 0.5))
            near = [(float(gap[i, j]), self.labels[once[j]]) for j in distinct]
            stated.append(f"the one by the {min(near)[1]}" if near else "")
        return stated

    def _by_side(self, tied: list[int]) -> list[str]:
        if self.geometry.viewer is None or len(tied) > 3:
            return [""] * len(tied)
        group = np.zeros(self.geometry.n)
        group[tied] = 1.0
        left = leftness(self.geometry, group, None)[tied]
        if np.ptp(left) < 0.3:
            return [""] * len(tied)
        names = {2: ("on the left", "on the right"), 3: ("on the left", "in the middle", "on the right")}[len(tied)]
        place = np.argsort(np.argsort(-left, kind="stable"), kind="stable")
        return [f"the one {names[int(k)]}" for k in place]

    def _reason(self, evidence: Evidence, best: int) -> str:
        o = self.objects[best]
        stated = [
            f"{_words(t.constraint)} ({t.satisfied[best]:.2f})"
            for t in evidence.terms
            if not t.missing and not np.isnan(t.holds[best])
        ]
        text = f"{o.label} {o.id}" if best < self.confirmed else f"{o.label}, not confirmed"
        text += ": " + ", ".join(stated) if stated else ""
        text += (
            "; where it goes or lies is meant: what else is named is not on the map" if self.meaning.is_place else ""
        )
        return text + self._unchecked(evidence, best)

    def _may_be_unknown(self, evidence: Evidence, i: int | None = None) -> list[str]:
        """Attributes that the sentence states and the map may lack, in words; those that it lacks of object ``i``."""
        stated = [t for t in evidence.terms if t.constraint.relation in MAY_BE_UNKNOWN]
        words = [_words(t.constraint) for t in stated if i is None or np.isnan(t.holds[i])]
        return words or [_description(e) for e in self.meaning.excluded if i is None or evidence.may_be_excluded[i]]

    def _unchecked(self, evidence: Evidence, best: int) -> str:
        """Parts of the sentence that were not checked: "; no bathtub found; whether it is red is not known"."""
        missing = [noun for t in evidence.terms for noun in t.missing]
        known = {noun: is_known_noun(noun.removeprefix("other "), self.labels) for noun in missing}
        stated = [f"no {noun} found" if is_known else f"not known: {noun}" for noun, is_known in known.items()]
        stated += [f"whether it is {words} is not known" for words in self._may_be_unknown(evidence, best)]
        if self.meaning.unmatched:
            stated.append(f"not understood: {', '.join(self.meaning.unmatched[:_MANY_UNREAD])}")
        return "".join(f"; {words}" for words in dict.fromkeys(stated))


_PHRASE_WORDS = word_set("adjectives") - frozenset((",", ".", "with", "and"))
_NAMED = 0.2  # least weight of an object that a phrase refers to
_NO_LANDMARKS = frozenset(("object", "wall", "floor", "ceiling", "carpet"))
_LANDMARK_M = 1.5
_HELD = 0.6  # least likelihood that an object stands on or in another
_PLACES = 3  # most objects whose places the reason states


def _described(phrase: ObjectPhrase) -> str:
    """A landmark in words: "couch that is green"."""
    stated = " and ".join(_words(c) for c in phrase.constraints)
    return phrase.noun + (f" that is {stated}" if stated else "")


def _description(e: Meaning) -> str:
    return "other than the " + ("" if e.target is None else _described(replace(e.target, constraints=e.constraints)))


_SAID = {
    "left-of-me": "on your left", "right-of-me": "on your right", "ahead-of-me": "in front of you",
    "behind-me": "behind you", "nearest-me": "nearest", "farthest-me": "farthest", "supporting": "with",
    "below": "under", "middle-of-kind": "in the middle", "nth": "in order",
    "left-of-all": "on the left", "right-of-all": "on the right", "front": "in front of",
    "closest": "closest to", "farthest": "farthest from", "left": "left of",
    "larger": "larger than", "smaller": "smaller than", "same-colour": "of the colour of",
    "own-left": "to its own left, of", "own-right": "to its own right, of",
    "right": "right of", "near": "near", "in": "in", "across": "across from",
    "nearer": "nearer to", "farther": "farther from",
    "end": "at the end of", "faced": "faced by", "back-to": "with its back to",
    "corner": "in the corner",
    "middle": "in the middle", "wall": "at the wall", "from-left": "from the left", "from-right": "from the right",
}  # fmt: skip


def _words(c: Constraint) -> str:
    """A constraint in words: "left of the couch"."""
    words = (c.value if not c.anchors else "") or _SAID.get(c.relation, c.relation)
    if c.relation in ("within", "beyond"):
        words = f"{'within' if c.relation == 'within' else 'more than'} {c.amount_m:g} m of"
        return ("not " if c.negated else "") + words + (f" the {c.anchors[0].noun}" if c.anchors else " you")
    if c.relation == "distance":
        words = f"{c.amount_m:g} m from " + (f"the {c.anchors[0].noun}" if c.anchors else "you")
        return ("not " if c.negated else "") + words
    if c.relation == "measured":
        return f"{c.amount_m:g} m{f' in {c.value}' if c.value else ''}"
    if c.relation in ("larger", "smaller") and not c.anchors:
        where = "above the floor" if c.value == "elevation" else f"in {c.value}"
        return f"{'more' if c.relation == 'larger' else 'less'} than {c.amount_m:g} m {where}"
    if c.relation in ("from-left", "from-right"):
        words = f"number {c.rank} {words}"
    if c.anchors and c.relation != "colour":
        joint = " than the " if c.relation in ("nearer", "farther") else " and the "
        words += " the " + joint.join(a.noun for a in c.anchors)
    if c.negated and words.startswith("with "):
        return f"without{words[4:]}"
    return ("not " if c.negated else "") + words


# --------------------------------------------------------------------------------------------------------------------
# Calibration: posterior shares are overconfident, because they ignore misread sentences and missed objects. A logistic
# regression over traits of an answer gives the probability that it is right; its weights are in
# ``lexicon/calibration.json`` with the command that made them.

WEIGHTS = Path(__file__).parent / "lexicon" / "calibration.json"
FEATURES = ("one", "fit_share", "weakest", "unsure_view", "kind", "reading", "use")
_LEAST_READING = 1e-4  # lower probabilities of a reading count as this


@dataclass(frozen=True)
class Traits:
    """Inputs of the calibration.

    Attributes:
        fit_share: posterior of the best candidate without detection confidences, (0, 1].
        weakest: score of the least satisfied constraint, [0, 1].
        unsure_view: the sentence depends on the viewpoint, which is unknown.
        kind: similarity of label and noun.
        reading: probability that the sentence is read correctly, (0, 1].
        use: the sentence states a use or a need instead of a noun.
    """

    fit_share: float
    weakest: float
    unsure_view: bool
    kind: float
    reading: float = 1.0
    use: bool = False

    def features(self) -> tuple[float, ...]:
        """Values in the order of :data:`FEATURES`."""
        return (
            1.0,
            _logit(self.fit_share),
            math.log(self.weakest + 0.05),
            float(self.unsure_view),
            math.log(self.kind + 0.05),
            math.log10(max(self.reading, _LEAST_READING)),
            float(self.use),
        )


def _logit(p: float) -> float:
    p = min(max(p, 0.01), 0.99)
    return math.log(p / (1.0 - p))


@lru_cache(maxsize=1)
def _weights() -> tuple[float, ...]:
    data = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    if tuple(data["features"]) != FEATURES:
        raise ValueError(f"{WEIGHTS.name} has weights of {data['features']}, expected {list(FEATURES)}")
    return tuple(float(w) for w in data["weights"])


def probability_right(traits: Traits) -> float:
    """Probability that the best candidate is the object meant, in (0, 1)."""
    z = sum(w * x for w, x in zip(_weights(), traits.features(), strict=True))
    return 1.0 / (1.0 + math.exp(-max(min(z, 30.0), -30.0)))


# --------------------------------------------------------------------------------------------------------------------
# Low-confidence candidates: tentative objects, and boxes of the last prediction below an object's score. Where no
# object is a toaster, "the toaster" is better answered from such a box than not at all, with a low score. Only a few
# boxes per noun of the sentence count.
#
# An unsure network gives several boxes with several labels at one location. On validation homes the log odds that a box
# is right rise with its score and with its share of the scores at its location, so both are multiplied.

UNTRACKED = 0  # id of a box that is no object of the map
_PER_NOUN = 12
_KIND = 0.35  # least similarity of a label to a noun


class LowConfidenceCandidates:
    """Candidates of low confidence, and objects rescored by the certainty of their labels; made once per prediction.

    Args:
        objects: confirmed objects of the map: candidates of every query.
        tentative: tentative objects of the map.
        seen: all boxes of the last prediction; None = none.
        scores: thresholds for ``seen``.
        first_score: score of a box -> score of an object that was found once, with this score.
    """

    def __init__(
        self,
        objects: Sequence[SceneObject],
        tentative: Sequence[SceneObject] = (),
        seen: Detections | None = None,
        scores: ScorePolicy = EVERY_SCORE,
        first_score: Callable[[float], float] = float,
    ) -> None:
        if seen is None:
            seen = Detections(np.zeros((0, 9)), np.zeros(0), ())
        found = seen.above(max(scores.candidate, 1e-6))
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
        self._all = [replace(o, score=o.score * s) for o, s in zip(everything, share.tolist(), strict=True)]
        self._confirmed = len(objects)
        self._same = overlap > ONE_THING_IOU
        self._rows: dict[str, list[int]] = {}
        self._by_label: dict[str, list[int]] = {}
        for row, label in enumerate(labels):
            self._by_label.setdefault(label, []).append(row)

    @property
    def objects(self) -> tuple[SceneObject, ...]:
        """The objects, their scores multiplied by the share of their label at their location."""
        return tuple(self._all[: self._confirmed])

    def about(self, meaning: Meaning) -> tuple[SceneObject, ...]:
        """Other candidates whose label fits a noun of the sentence, in order."""
        rows = {row for noun in all_nouns(meaning) for row in self._for_noun(noun)}
        return tuple(self._all[row] for row in sorted(rows))

    def _for_noun(self, noun: str) -> list[int]:
        """The best candidates for one noun that overlap no object that fits it."""
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


def _counted(noun: str, plural: bool = True) -> str:
    """The noun after a number; what names no kind of thing ("anything", "something to sit on") is a thing."""
    if noun == ANYTHING or is_use(noun):
        noun = "thing"
    return pluralize(noun) if plural else noun


def anchor_nouns(meaning: Meaning) -> tuple[str, ...]:
    """Nouns of the anchors of a sentence, and of their anchors."""
    anchors = [anchor for constraint in meaning.constraints for anchor in constraint.anchors]
    within = [a for anchor in anchors for constraint in anchor.constraints for a in constraint.anchors]
    return tuple(dict.fromkeys(a.noun for a in (*anchors, *within)))


def all_nouns(meaning: Meaning) -> tuple[str, ...]:
    """All nouns of a sentence, the target's first."""
    others = [] if meaning.speaker is None else [meaning.speaker.anchor]
    target = [] if meaning.target is None else [meaning.target.noun]
    return tuple(dict.fromkeys([*target, *anchor_nouns(meaning), *(p.noun for p in (*meaning.mentioned, *others))]))


def name_shares(labels: Sequence[str], overlap: F64, scores: F64) -> F64:
    """(N,) best score of a box's own label at its location, relative to the sum with the best other label.

    1 where the last prediction has no box with the label there.
    """
    if not labels:
        return np.zeros(0)
    codes = np.unique(np.array(labels), return_inverse=True)[1]
    same = codes[:, None] == codes[None]
    here = np.where(overlap > ONE_PLACE_IOU, scores[None], 0.0)
    own, other = np.where(same, here, 0.0).max(axis=1), np.where(same, 0.0, here).max(axis=1)
    return np.where(own > 0, own / np.maximum(own + other, 1e-12), 1.0)


# --------------------------------------------------------------------------------------------------------------------
# Candidates of the network's own grounding, for a prediction of one or many windows.

_LOG = logging.getLogger(__name__)
Phrase = tuple[int, int] | None
_BATCH = 20  # sentences in one pass
_MAX_OBJECTS = 256  # best objects of all windows; cost is quadratic in them


def propose(
    inference: Predictor,
    prediction: ScenePrediction,
    sentences: Sequence[tuple[str, Phrase]],
    T_world_camera: NDArray[np.float64],
    limit: int = 10,
) -> list[PhraseCandidates]:
    """Candidates for one phrase of each sentence, best first.

    A decoder over objects chooses among those of all windows at once, because scores of different windows are not
    comparable.

    Args:
        inference: the network.
        prediction: its prediction.
        sentences: (text, [start, end) of the target's phrase; None = the whole text).
        T_world_camera: (4, 4) pose of the speaker.
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
                found[start + k].append(PhraseCandidates(candidates.boxes[mine], candidates.scores[mine]))
    return [_best(parts, limit) for parts in found]


def propose_targets(
    inference: Predictor, prediction: ScenePrediction, queries: Sequence[Query]
) -> list[PhraseCandidates | None]:
    """Candidates for the target of each parsed query; None without a viewpoint, and for sentences too long for the text
    encoder. Queries with the same viewpoint make one batch.
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
        except (ValueError, ImportError, OSError, RuntimeError) as error:  # answer without proposals
            _LOG.warning("the network's grounding failed, sentences are answered without it: %s", error)
            continue
        for (row, _, _), candidates in zip(group, found, strict=True):
            proposed[row] = candidates
    return proposed


def _best(parts: Sequence[PhraseCandidates], limit: int) -> PhraseCandidates:
    boxes = np.concatenate([np.zeros((0, 9)), *(p.boxes for p in parts)])
    scores = np.concatenate([np.zeros(0), *(p.scores for p in parts)])
    same = torch.zeros(len(boxes), dtype=torch.int64)
    kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores), same, PHRASE_NMS_IOU)[:limit].numpy()
    return PhraseCandidates(boxes[kept], scores[kept])


# ----------------------------------------------------------------------------------------------------------------------
# Sentences about a published scene, with names of users and of a class list, appearance, colours, low-confidence boxes
# and the network's own grounding.


@dataclass(frozen=True, eq=False)
class QueryContext:
    """The objects of one published scene with the labels that sentences use.

    Attributes:
        published: confirmed objects with published labels.
        objects: the same objects with the labels that sentences use; different only with a class list.
        tentative, seen, scores, first_score: see :class:`LowConfidenceCandidates`.
    """

    published: tuple[SceneObject, ...]
    objects: tuple[SceneObject, ...]
    tentative: tuple[SceneObject, ...]
    seen: Detections | None
    scores: ScorePolicy
    first_score: Callable[[float], float]

    @cached_property
    def low_confidence(self) -> LowConfidenceCandidates:
        """Further candidates."""
        return LowConfidenceCandidates(self.objects, self.tentative, self.seen, self.scores, self.first_score)


@dataclass(eq=False)
class Grounder:
    """Answers sentences about published scenes. Thread-safe.

    Attributes:
        inference: its grounding proposes boxes; None = only labels, colours and relations decide.
        lift: its open-vocabulary detector searches for the nouns of queries, and its image encoder labels objects.
        classes: published class names.
        scores: thresholds of box scores.
        tracking: how scores of boxes become scores of objects.
        named: whether a network labels objects.
        reader: of the sentences; None = the embedded one.
    """

    inference: Predictor | None = None
    lift: DetectionLift | None = None
    classes: ClassList | None = None
    scores: ScorePolicy = EVERY_SCORE
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    named: bool = False
    reader: MeaningReader | None = None
    _contexts: WeakKeyDictionary[PublishedScene, dict[bool, QueryContext]] = field(
        init=False, repr=False, default_factory=WeakKeyDictionary
    )

    def answer(
        self, scene: PublishedScene, queries: Sequence[Query | str], viewpoint: NDArray[np.float64] | None = None
    ) -> list[Grounding]:
        """Answer each query; queries of one speaker pass the network together. Never raises for any text.

        ``viewpoint``: (4, 4) pose of the speaker, for queries without one.
        """
        context = self._context(scene, any(speaks_of_states(str(getattr(q, "text", q))) for q in queries))
        asked = [Query.of(query, viewpoint) for query in queries]
        renamed = [with_user_names(query, context.objects) for query in asked]
        labels = {o.label for o in (*context.objects, *context.published)}
        parsed = [
            query.parsed(labels, self.reader)
            if by_name is None
            else by_name.query.parsed({o.label for o in by_name.objects}, self.reader)
            for query, by_name in zip(asked, renamed, strict=True)
        ]
        if self.lift is not None:
            self.lift.asked_for([n for query in parsed if query.meaning is not None for n in all_nouns(query.meaning)])
        proposed: list[PhraseCandidates | None] = [None] * len(parsed)
        if self.inference is not None and scene.prediction is not None:
            proposed = propose_targets(self.inference, scene.prediction, parsed)
        colors = partial(_colors, scene.voxels)
        answers = [
            self._answer(query, context, colors, candidates)
            if by_name is None
            else _by_label(query, by_name, context.objects, colors)
            for query, candidates, by_name in zip(parsed, proposed, renamed, strict=True)
        ]
        classes = self.classes
        return answers if classes is None else [classes.restored(answer, context.published) for answer in answers]

    def answer_among(self, scene: PublishedScene, text: str, objects: Sequence[SceneObject]) -> Grounding:
        """Answer a sentence about some objects, gone ones too, by their labels, names and colours alone."""
        query = Query(text)
        by_name = with_user_names(query, objects)
        asked = query if by_name is None else by_name.query
        return _by_label(asked, by_name, objects, partial(_colors, scene.voxels))

    def prepare(self) -> None:
        """Load word tables, the reader's network and the network's text encoder, so that the first sentence is fast.

        Raises what loading raises; the first sentence then tries again.
        """
        boxes = np.array([[0.0, 0.0, 0.4, 0.5, 0.5, 0.8, 0.0, 0.0, 0.0], [1.0, 0.0, 0.4, 1.0, 0.6, 0.8, 0.0, 0.0, 0.0]])
        objects = [SceneObject(k + 1, label, 0.9, boxes[k]) for k, label in enumerate(("stool", "couch"))]
        # misspelled words are looked up in every table, and a side and a colour use all the others
        ground_objects("the chiar left of the red coush", objects, colors=partial(_colors, None))
        likelihood_of_label("chair", "stool")
        if self.reader is not None:
            self.reader.prepare()
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
        objects = self._relabelled_by_appearance(self._labelled_by_list(context, query), query)
        if not self.named and {o.label for o in objects} <= {UNNAMED} and not query_problem(query.text):
            reason = "no language model loaded: objects have no names"
            return query.answer(GroundingStatus.INVALID, reason=reason)
        low_confidence = context.low_confidence if objects is context.objects else None
        return ground_objects(query, objects, colors=colors, candidates=candidates, low_confidence=low_confidence)

    def _context(self, scene: PublishedScene, states: bool) -> QueryContext:
        """Context of a scene, cached while the scene exists; ``states``: with the states of objects."""
        known = self._contexts.setdefault(scene, {})
        context = known.get(states)
        if context is None:
            published = with_conditions(scene.objects, scene.voxels) if states else scene.objects
            objects, tentative = published, scene.tentative
            if self.classes is not None:  # sentences may use all labels
                objects, tentative = self.classes.in_own_words(objects), self.classes.in_own_words(tentative)
            first_score = partial(published_score, looks=1, scores=self.scores, config=self.tracking)
            context = QueryContext(published, objects, tentative, scene.seen, self.scores, first_score)
            known[states] = context
        return context

    def _labelled_by_list(self, context: QueryContext, query: Query) -> tuple[SceneObject, ...]:
        """Objects labelled with those names of the class list that the query uses and the lexicon lacks."""
        if self.classes is None or query.meaning is None or query.meaning.problem:
            return context.objects
        named = self.classes.in_own_words(context.published, all_nouns(query.meaning))
        changed = any(a.label != b.label for a, b in zip(named, context.objects, strict=True))
        return named if changed else context.objects

    def _relabelled_by_appearance(self, objects: tuple[SceneObject, ...], query: Query) -> tuple[SceneObject, ...]:
        """Objects relabelled by appearance for nouns that fit no label."""
        if self.lift is None or self.lift.looks is None or query.meaning is None or query.meaning.problem:
            return objects
        named = self.lift.looks.renamed(objects, all_nouns(query.meaning), lexicon().similarity)
        return objects if named == objects else named


def _by_label(query: Query, by_name: NamedQuery | None, objects: Sequence[SceneObject], colors: Colors) -> Grounding:
    """Answer by labels and colours; ``by_name``: how the users' names in ``query`` were replaced, if it has any."""
    if by_name is None:
        return ground_objects(query, objects, colors=colors)
    return by_name.restored(ground_objects(query, by_name.objects, colors=colors))


def _colors(voxels: VoxelSnapshot | None, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 3) mean sRGB in 0..255 of the map in (N, 9) boxes; NaN where not measured."""
    return mean_colors(voxels, boxes) if voxels is not None else np.full((len(boxes), 3), np.nan)
