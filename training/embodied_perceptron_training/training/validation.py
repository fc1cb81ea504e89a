"""Validation metrics: figures of a network over validation samples."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from embodied_perceptron.nn.network import PerceptionNetwork
from embodied_perceptron.nn.occupancy import EMPTY
from embodied_perceptron.nn.presets import TASKS
from embodied_perceptron.weights.categories import OCCUPANCY_CLASSES
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, detection_metrics
from embodied_perceptron_training.evaluation.metrics.grounding import GroundingQuery, grounding_metrics
from embodied_perceptron_training.evaluation.metrics.occupancy import SceneOccupancy, occupancy_metrics
from embodied_perceptron_training.training.samples import SceneSample, Sentences
from embodied_perceptron_training.training.scene_pass import ScenePass


class ValidationMetrics:
    """Predictions and truth of one sample after the other, and their figures.

    Args:
        network: whose heads predict.
        classes: of its boxes.
        heads: that are scored, of those that the network has.
    """

    def __init__(self, network: PerceptionNetwork, classes: tuple[str, ...], heads: Collection[str] = TASKS) -> None:
        self._heads = {h for h in heads if getattr(network, h) is not None}
        self._classes = classes
        self._found: dict[str, SceneBoxes] = {}
        self._truth: dict[str, SceneBoxes] = {}
        self._occupancies: list[SceneOccupancy] = []
        self._queries: list[GroundingQuery] = []

    def add(self, sample: SceneSample, passed: ScenePass | None) -> None:
        """``passed``: the pass over the sample alone, on any device, the ``sample`` itself being on the CPU; None where
        it shows nothing: then nothing is found, and cells are free."""
        if "detection" in self._heads:
            self._found[sample.name] = _boxes(passed, len(self._classes))
            named = sample.labels.numpy() < len(self._classes)
            self._truth[sample.name] = SceneBoxes(sample.boxes.double().numpy()[named], sample.labels.numpy()[named])
        if "occupancy" in self._heads and sample.occupancy is not None:
            predicted = torch.full_like(sample.occupancy, EMPTY)
            if passed is not None:
                (logits,) = passed.occupancy([0], scales=1)
                predicted = logits[0].argmax(0).cpu()
            self._occupancies.append(SceneOccupancy(predicted.numpy(), sample.occupancy.numpy()))
        if "grounding" in self._heads and sample.sentences is not None:
            self._queries.extend(_answers(passed, sample.sentences))

    def figures(self) -> dict[str, float]:
        """In percent, of the heads that there is truth for."""
        figures: dict[str, float] = {}
        if any(len(t.boxes) for t in self._truth.values()):
            all_figures = detection_metrics(self._found, self._truth, self._classes)
            wanted = ("AP25", "AP50", "AR25", "AR50", "AP25_furniture")
            figures.update({k: v for k, v in all_figures.items() if k in wanted})
        if self._occupancies:
            figures["mIoU"] = occupancy_metrics(self._occupancies, OCCUPANCY_CLASSES)["mIoU"]
        if self._queries:
            figures["top1_acc25"] = grounding_metrics(self._queries)["top1_acc25"]
        return figures


def _boxes(passed: ScenePass | None, classes: int) -> SceneBoxes:
    """Decoded boxes with a name of a pass over one sample; none without a pass."""
    if passed is None:
        return SceneBoxes(np.zeros((0, 9)), np.zeros(0, np.int64), np.zeros(0))
    (boxes,) = passed.network.boxes(passed.features)
    box, label, score = (v.cpu().numpy() for v in (boxes.boxes.double(), boxes.labels, boxes.scores))
    named = label < classes
    return SceneBoxes(box[named], label[named], score[named])


def _answers(passed: ScenePass | None, sentences: Sentences) -> list[GroundingQuery]:
    """Ranked boxes of every sentence: by the mean probability of the tokens that name the target; none where nothing
    is seen."""
    out = None if passed is None else passed.answers()
    if out is None:
        return [GroundingQuery(np.zeros((0, 9)), boxes.double().numpy(), {}) for boxes in sentences.boxes]
    queries = []
    for b, (words, true) in enumerate(zip(sentences.named, sentences.boxes, strict=True)):
        scores = out.logits[-1, b].sigmoid()[:, words.to(out.logits.device)].mean(1)
        scores = scores.masked_fill(~out.query_valid[b], -1.0)
        best = scores.argsort(descending=True, stable=True)[:10]
        best = best[out.query_valid[b, best]]
        queries.append(GroundingQuery(out.boxes[-1, b, best].double().cpu().numpy(), true.double().numpy(), {}))
    return queries
