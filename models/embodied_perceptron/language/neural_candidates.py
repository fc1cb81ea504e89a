"""What the network's own grounding proposes for sentences about a look, however many windows it took."""

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
from embodied_perceptron.language.parser import parse
from embodied_perceptron.language.query import query_problem
from embodied_perceptron.nn.object_grounding import joined_objects

_LOG = logging.getLogger(__name__)
Phrase = tuple[int, int] | None
_SAME_IOU = 0.5
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
    inference: Predictor,
    prediction: ScenePrediction,
    texts: Sequence[str],
    labels: set[str],
    viewpoint: NDArray[np.float64] | None,
) -> list[PhraseCandidates | None]:
    """What the network proposes for the target of each sentence; None where it cannot: it has to know who asks from
    where, and a sentence may be longer than it reads.

    Args:
        labels: names of what is known, which sentences may use.
        viewpoint: (4, 4) pose of who speaks.
    """
    proposed: list[PhraseCandidates | None] = [None] * len(texts)
    if not prediction.parts or viewpoint is None:
        return proposed
    if inference.network.grounding is None or inference.text_encoder is None:
        return proposed
    asked: list[tuple[int, str, tuple[int, int]]] = []
    for row, text in enumerate(texts):
        target = None if query_problem(text) else parse(text, labels).target
        if target is not None:
            asked.append((row, text, target.span))
    try:
        found = propose(inference, prediction, [(text, span) for _, text, span in asked], viewpoint)
    except (ValueError, ImportError, OSError, RuntimeError) as error:  # an answer without it is better than none
        _LOG.warning("answers without the network's own grounding: %s", error)
        return proposed
    for (row, _, _), candidates in zip(asked, found, strict=True):
        proposed[row] = candidates
    return proposed


def _best(parts: Sequence[PhraseCandidates], phrase: Phrase, limit: int) -> PhraseCandidates:
    boxes = np.concatenate([np.zeros((0, 9)), *(p.boxes for p in parts)])
    scores = np.concatenate([np.zeros(0), *(p.scores for p in parts)])
    same = torch.zeros(len(boxes), dtype=torch.int64)
    kept = nms(torch.from_numpy(boxes), torch.from_numpy(scores), same, _SAME_IOU)[:limit].numpy()
    return PhraseCandidates(phrase, boxes[kept], scores[kept])
