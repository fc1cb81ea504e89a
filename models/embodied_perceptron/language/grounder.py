"""Sentences about a published scene, by all that is known of it: names of users and of a class list, looks, colours,
boxes of low confidence, and the network's own grounding.

    grounder = Grounder(inference, lift, classes, scores, config.objects.tracking)
    answers = grounder.answer(scene, ["the chair left of the red sofa"], T_map_camera)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, ScorePolicy, SentenceReading, TrackingConfig
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.inference.predictor import PhraseCandidates, Predictor
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.candidates import LowConfidenceCandidates, all_nouns, propose_targets
from embodied_perceptron.language.class_list import ClassList
from embodied_perceptron.language.colors import mean_colors
from embodied_perceptron.language.lexicon import lexicon
from embodied_perceptron.language.noun_taxonomy import likelihood_of_label
from embodied_perceptron.language.object_states import with_conditions
from embodied_perceptron.language.query import Query, query_problem
from embodied_perceptron.language.state_words import speaks_of_states
from embodied_perceptron.language.user_names import with_user_names
from embodied_perceptron.results import UNNAMED, Detections, Grounding, GroundingStatus, SceneObject, VoxelSnapshot
from embodied_perceptron.scene.published_scene import PublishedScene
from embodied_perceptron.scene.tracks import published_score


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
        reader: what reads sentences.
    """

    inference: Predictor | None = None
    lift: DetectionLift | None = None
    classes: ClassList | None = None
    scores: ScorePolicy = EVERY_SCORE
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    named: bool = False
    reader: SentenceReading = "learned"
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
        parsed = [query.parsed(labels, self.reader) for query in asked]
        if self.lift is not None:
            self.lift.asked_for([n for query in parsed if query.meaning is not None for n in all_nouns(query.meaning)])
        proposed: list[PhraseCandidates | None] = [None] * len(parsed)
        if self.inference is not None and scene.prediction is not None:
            proposed = propose_targets(self.inference, scene.prediction, parsed)
        colors = partial(_colors, scene.voxels)
        answers = [
            self._answer(query, context, colors, candidates)
            if by_name is None
            else by_name.restored(ground_objects(by_name.parsed(self.reader), by_name.objects, colors=colors))
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
        Query("the chiar by the red tabel").parsed((), self.reader)  # what is no word is looked up in every table
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
