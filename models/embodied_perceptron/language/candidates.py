"""Candidates of an answer beside the objects of the map: low-confidence ones, and those of the neural grounding."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import EVERY_SCORE, ScorePolicy
from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.suppression import ONE_PLACE_IOU, ONE_THING_IOU, PHRASE_NMS_IOU, nms
from embodied_perceptron.inference.map_predictor import ScenePrediction
from embodied_perceptron.inference.predictor import PhraseCandidates, Predictor, viewpoint_of
from embodied_perceptron.language.lexicon import lexicon
from embodied_perceptron.language.meaning import Meaning
from embodied_perceptron.language.query import Query
from embodied_perceptron.nn.grounding import joined_objects
from embodied_perceptron.results import Detections, ObjectState, SceneObject

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

F64 = NDArray[np.float64]

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

    Raises as :meth:`Predictor.ground`.
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
