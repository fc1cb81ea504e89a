"""Objectives: what each head of a scene network learns from one pass over a batch.

An objective is called with the pass and the mean over processes (``reduce``), and gives named, weighted losses. Every
process calls ``reduce`` equally often, whatever its samples teach: one that has nothing for a head counts along.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron_training.training.criteria import (
    BOX_LOSSES,
    BoxTarget,
    DetectionCriterion,
    GroundingCriterion,
    GroundingLayer,
    GroundingTarget,
    OccupancyCriterion,
    PointerCriterion,
    detection_predictions,
    grounding_layers,
)
from embodied_perceptron_training.training.losses import Losses, Reduce, sigmoid_focal
from embodied_perceptron_training.training.matching import PaddedBoxes, coarse_labels
from embodied_perceptron_training.training.scene_pass import MIN_BOX_M, ScenePass, VoxelAnswers, clamp_min_size
from embodied_perceptron_training.training.training_run import TrainingRun

Objective = Callable[[ScenePass, Reduce], Losses]


def objectives(config: NetworkConfig, run: TrainingRun) -> dict[str, Objective]:
    """The objective of every head that the network has, weighted as the run says, by the head's name."""
    found: dict[str, Objective] = {}
    if config.detection is not None:
        found["detection"] = _Weighted(run.losses.detection, "", DetectionObjective(detection_criterion(run)))
    if config.occupancy is not None:
        found["occupancy"] = _Weighted(run.losses.occupancy, "occupancy/", OccupancyObjective())
    if config.grounding is not None:
        of_voxels = config.grounding.queries == "voxels"
        grounding = VoxelObjective(voxel_criterion(run)) if of_voxels else ObjectObjective()
        found["grounding"] = _Weighted(run.losses.grounding, "grounding/", grounding)
    return found


def detection_criterion(run: TrainingRun) -> DetectionCriterion:
    """The criterion of boxes: the design of the run's ``box_loss``, and the IoU where it counts."""
    losses = run.losses
    design = BOX_LOSSES[losses.box_loss]
    return DetectionCriterion(min_size_m=MIN_BOX_M, iou_weight=losses.box_iou, box=design, two_sided=True)


def voxel_criterion(run: TrainingRun) -> GroundingCriterion:
    """The criterion of sentences answered by voxels."""
    losses = run.losses
    return GroundingCriterion(contrastive_weight=losses.contrastive, iou_weight=losses.box_iou, two_sided=True)


@dataclass(frozen=True)
class _Weighted:
    weight: float
    prefix: str
    objective: Objective

    def __call__(self, passed: ScenePass, reduce: Reduce) -> Losses:
        return {self.prefix + name: self.weight * value for name, value in self.objective(passed, reduce).items()}


@dataclass(frozen=True)
class DetectionObjective:
    """Boxes."""

    criterion: DetectionCriterion

    def __call__(self, passed: ScenePass, reduce: Reduce) -> Losses:
        """``{"class", "center", "box", "iou"[, "object"]}``."""
        detection = passed.features.detection
        assert detection is not None
        prediction = detection_predictions(detection.levels, passed.network.config.voxel_size_m)
        targets = [BoxTarget(s.boxes, s.labels) for s in passed.batch.samples]
        return dataclasses.replace(self.criterion, reduce=reduce)(prediction, targets)


@dataclass(frozen=True)
class OccupancyObjective:
    """Cells of the samples that bring occupancy."""

    criterion: OccupancyCriterion = dataclasses.field(default_factory=OccupancyCriterion)

    def __call__(self, passed: ScenePass, reduce: Reduce) -> Losses:
        """``{"cross_entropy", "semantic", "geometric"}``, sums over scales; zero when no process has a sample."""
        samples = passed.batch.samples
        rows = [i for i, s in enumerate(samples) if s.occupancy is not None]
        device = passed.features.levels[0].device
        everywhere = reduce(torch.tensor(float(len(rows))).to(device, non_blocking=True))
        if not rows and float(everywhere) == 0:
            return {"cross_entropy": zero_loss(passed.network.occupancy)}
        config = passed.network.config.occupancy
        assert config is not None
        classes = config.num_classes + 1
        if rows:
            logits = passed.occupancy(rows)
            truth = torch.stack([o for s in samples if (o := s.occupancy) is not None])
            targets = [coarse_labels(truth, truth.shape[1] // scores.shape[2], classes) for scores in logits]
        else:  # other processes have some: this one counts along
            logits = [torch.zeros((0, classes, 1, 1, 1), device=device)] * config.levels
            targets = [torch.zeros((0, 1, 1, 1), dtype=torch.int64, device=device)] * len(logits)
        losses = dataclasses.replace(self.criterion, reduce=reduce)(logits, targets)
        # one figure per kind: nine curves of one head tell little
        summed = {
            kind: torch.stack([v for k, v in losses.items() if k.endswith(kind)]).sum()
            for kind in ("cross_entropy", "semantic", "geometric")
        }
        if not rows:
            summed["cross_entropy"] = summed["cross_entropy"] + zero_loss(passed.network.occupancy)
        return summed


@dataclass(frozen=True)
class VoxelObjective:
    """Sentences, by a decoder over voxels."""

    criterion: GroundingCriterion

    def __call__(self, passed: ScenePass, reduce: Reduce) -> Losses:
        """``{"class", "box"[, "iou"][, "contrastive"]}``, means over layers, and ``"selection"``; zero without
        sentences."""
        answers = passed.voxel_answers()
        if answers is None:
            nothing = passed.features.levels[0].feats.new_zeros(())
            for _ in range(2):  # as often as processes that have sentences: boxes matched, and voxels inside of them
                reduce(nothing)
            return {"class": zero_loss(passed.network.grounding)}
        targets = [
            GroundingTarget(boxes, named[None].expand(len(boxes), -1))
            for boxes, named in zip(answers.boxes, answers.named, strict=True)
        ]
        selection, positives = _selection(answers)
        layers = self._layers(passed, answers)
        losses = dataclasses.replace(self.criterion, reduce=reduce)(layers, targets, ~answers.token_pad)
        kinds = sorted({k.split("/")[1] for k in losses})
        summed = {kind: torch.stack([v for k, v in losses.items() if k.endswith(kind)]).mean() for kind in kinds}
        return {**summed, "selection": selection / reduce(positives).clamp_min(1.0)}

    def _layers(self, passed: ScenePass, answers: VoxelAnswers) -> list[GroundingLayer]:
        """Every layer, with embeddings in the common space where they are aligned."""
        layers = grounding_layers(answers.output)
        if not self.criterion.contrastive_weight:
            return layers
        assert passed.network.grounding is not None
        embedded = passed.network.grounding.head.embeddings(answers.output.hidden, answers.tokens)
        return [
            dataclasses.replace(layer, query_embeddings=queries, token_embeddings=embedded[1])
            for layer, queries in zip(layers, embedded[0], strict=True)
        ]


def _selection(answers: VoxelAnswers) -> tuple[Tensor, Tensor]:
    """Focal loss of every voxel with every token, summed: a voxel inside of what the sentence names fits its words;
    and how many do."""
    truth = PaddedBoxes.of([clamp_min_size(boxes) for boxes in answers.boxes])
    offset = answers.points_m[:, :, None] - truth.boxes[:, None, :, :3]
    local = torch.einsum("sgij,sngi->sngj", truth.rotation, offset)  # (S, N, G, 3) in the boxes' frames
    inside = (local.abs() <= 0.5 * truth.boxes[:, None, :, 3:6]).all(-1) & truth.there[:, None]
    real = ~answers.pad[:, :, None] & ~answers.token_pad[:, None]  # (S, N, T)
    wanted = real & inside.any(2, keepdim=True) & torch.stack(answers.named)[:, None]
    logits = answers.output.selection_logits.masked_fill(~real, 0.0)  # -inf at padding
    return sigmoid_focal(logits, wanted).masked_fill(~real, 0.0).sum(), wanted.sum().to(logits.dtype)


@dataclass(frozen=True)
class ObjectObjective:
    """Sentences, by a decoder over detected objects."""

    criterion: PointerCriterion = dataclasses.field(default_factory=PointerCriterion)

    def __call__(self, passed: ScenePass, reduce: Reduce) -> Losses:
        """``{"named", "others"}``."""
        pointed = passed.pointed()
        losses = dataclasses.replace(self.criterion, reduce=reduce)(pointed, passed.features.levels[0].feats)
        if not pointed:
            losses["named"] = losses["named"] + zero_loss(passed.network.grounding)
        return losses


def zero_loss(head: nn.Module | None) -> Tensor:
    """Of a head whom a batch teaches nothing: nothing else may be learned, and there has to be a gradient, of zero."""
    assert head is not None
    return 0.0 * torch.stack([p.sum() for p in head.parameters()]).sum()
