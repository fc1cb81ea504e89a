"""Sentences about one scene: the decoder alone, relations alone, and the deployed answer.

neural      boxes of the decoder, ranked by the probability of the words that name the target (``tokens_positive``)
relations   the sentence parsed and answered by categories, colours and geometry of what is predicted alone
fused       what :meth:`Perceptron.ground` answers, from both; its figures stand without a prefix

The speaker stands where the last view was taken. Nothing but the map is known: no truth goes into any answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.nn.inference import NetworkInference
from embodied_perceptron.nn.live import Sight
from embodied_perceptron.nn.proposals import propose
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import GroundingStatus, Perception, SceneObject
from embodied_perceptron_training.datasets import Prompt
from embodied_perceptron_training.evaluation.grounding_metrics import RANKS, GroundingQuery, grounding_metrics
from embodied_perceptron_training.evaluation.scenes import EvaluationScene
from embodied_perceptron_training.synthetic.phrases import is_view_dependent

F64 = NDArray[np.float64]
VARIANTS = ("fused", "neural", "relations")
_LIMIT = max(RANKS)


@dataclass(eq=False)
class GroundingResult:
    """Answers about one scene.

    Attributes:
        queries: per variant, in the order of the prompts.
        statuses: how the deployed one ended, of sentences that have an answer.
        negatives: the same, of sentences that have none.
        skipped: sentences about what no used view shows.
        objects: in the map when it was asked, as predictions.
    """

    queries: dict[str, list[GroundingQuery]] = field(default_factory=lambda: {v: [] for v in VARIANTS})
    statuses: Counter[str] = field(default_factory=Counter)
    negatives: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    objects: tuple[SceneObject, ...] = ()


def ground_scene(
    scene: EvaluationScene, perceptron: Perceptron, perception: Perception, sight: Sight, inference: NetworkInference
) -> GroundingResult:
    """Ask everything about a scene. ``perception`` is what ``perceptron`` made of all of it, ``sight`` what the network
    saw then."""
    result = GroundingResult()
    objects = perception.objects
    result.objects = objects
    pose = scene.frames[-1].T_world_camera
    shown = set(scene.ids[scene.seen_rows()].tolist())
    asked = [p for p in scene.prompts if shown.issuperset(p.target_ids)]
    result.skipped = len(scene.prompts) - len(asked)
    sentences = [(p.text, p.tokens_positive[0] if p.tokens_positive else None) for p in asked]
    proposed = propose(inference, sight, sentences, pose, _LIMIT)
    answers = perceptron.ground_many([p.text for p in asked], pose, _LIMIT)
    plain = perceptron.ground_many([p.text for p in asked], pose, _LIMIT, neural=False)
    for prompt, neural, relations, answer in zip(asked, proposed, plain, answers, strict=True):
        result.statuses[GroundingStatus(answer.status).name] += 1
        found = {"fused": _boxes(answer.candidates), "relations": _boxes(relations.candidates), "neural": neural.boxes}
        truth, flags = scene.boxes_of(prompt.target_ids), flags_of(prompt)
        for variant, boxes in found.items():
            result.queries[variant].append(GroundingQuery(boxes, truth, flags))
    for answer in perceptron.ground_many([p.text for p in scene.negatives], pose):
        result.negatives[GroundingStatus(answer.status).name] += 1
    return result


def flags_of(prompt: Prompt) -> dict[str, bool]:
    """Properties that the benchmark reports apart."""
    return {"hard": prompt.hard, "view_dependent": is_view_dependent(prompt.text), "unique": not prompt.distractor_ids}


def score_grounding(results: Sequence[GroundingResult]) -> dict[str, float]:
    """Figures in percent: of ``fused`` without prefix, of the others as ``neural/...`` and ``relations/...``;
    ``answers/<status>`` of sentences with an answer, ``negatives/<status>`` of those without: of these NOT_FOUND is
    right."""
    figures: dict[str, float] = {}
    for variant in VARIANTS:
        found = grounding_metrics([q for r in results for q in r.queries[variant]])
        prefix = "" if variant == "fused" else f"{variant}/"
        figures.update({prefix + name: value for name, value in found.items()})
    figures.update(_shares("answers", [r.statuses for r in results]))
    figures.update(_shares("negatives", [r.negatives for r in results]))
    return figures


def _shares(prefix: str, counters: Sequence[Mapping[str, int]]) -> dict[str, float]:
    total = Counter[str]()
    for counter in counters:
        total.update(counter)
    number = total.total()
    if number == 0:
        return {}
    return {f"{prefix}/{s.name.lower()}": 100.0 * total[s.name] / number for s in GroundingStatus}


def _boxes(objects: Sequence[SceneObject]) -> F64:
    return np.stack([o.box for o in objects]) if objects else np.zeros((0, 9))
