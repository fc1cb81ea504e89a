"""Candidates of the network's own grounding for sentences about a prediction of one or many windows."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import nms
from embodied_perceptron.inference.map_predictor import ScenePrediction
from embodied_perceptron.inference.phrases import PhraseCandidates
from embodied_perceptron.inference.predictor import Predictor, viewpoint_of
from embodied_perceptron.language.query import Query
from embodied_perceptron.nn.object_grounding import joined_objects
from embodied_perceptron.scene.identity import PROPOSAL_NMS_IOU

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
    kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores), same, PROPOSAL_NMS_IOU)[:limit].numpy()
    return PhraseCandidates(phrase, boxes[kept], scores[kept])
