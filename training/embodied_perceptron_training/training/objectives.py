"""Objectives: the losses of each head of a scene network on one pass over a batch.

An objective is called with the pass and ``reduce`` (the mean over processes), and returns named, weighted losses. Every
process calls ``reduce`` equally often, also one whose samples have no targets for a head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron_training.training.criteria import (
    BOX_LOSSES,
    BoxTarget,
    DetectionCriterion,
    GroundingCriterion,
    GroundingTarget,
    Losses,
    OccupancyCriterion,
    PointerCriterion,
    Reduce,
    coarse_labels,
    detection_predictions,
    grounding_layers,
)
from embodied_perceptron_training.training.scene_pass import MIN_BOX_M, ScenePass
from embodied_perceptron_training.training.training_run import TrainingRun

Objective = Callable[[ScenePass, Reduce], Losses]


def objectives(config: NetworkConfig, run: TrainingRun) -> dict[str, Objective]:
    """Objective of every head of the network, by the head's name, with the weight of the run."""
    found: dict[str, Objective] = {}
    if config.detection is not None:
        found["detection"] = _weighted(run.losses.detection, "", partial(detection_losses, detection_criterion(run)))
    if config.occupancy is not None:
        of_cells = partial(occupancy_losses, OccupancyCriterion())
        found["occupancy"] = _weighted(run.losses.occupancy, "occupancy/", of_cells)
    if config.grounding is not None:
        of_voxels = config.grounding.queries == "voxels"
        grounding = partial(voxel_losses, voxel_criterion(run)) if of_voxels else object_losses
        found["grounding"] = _weighted(run.losses.grounding, "grounding/", grounding)
    return found


def detection_criterion(run: TrainingRun) -> DetectionCriterion:
    """The criterion for boxes, with the design of the run's ``box_loss`` and its IoU term."""
    losses = run.losses
    design = BOX_LOSSES[losses.box_loss]
    return DetectionCriterion(min_size_m=MIN_BOX_M, iou_weight=losses.box_iou, box=design, two_sided=True)


def voxel_criterion(run: TrainingRun) -> GroundingCriterion:
    """The criterion for sentences answered by voxels."""
    losses = run.losses
    return GroundingCriterion(contrastive_weight=losses.contrastive, iou_weight=losses.box_iou, two_sided=True)


def _weighted(weight: float, prefix: str, objective: Objective) -> Objective:
    def weighted(scene_pass: ScenePass, reduce: Reduce) -> Losses:
        found = objective(scene_pass, reduce).items()
        return {prefix + name: value if weight == 1.0 else weight * value for name, value in found}

    return weighted


def detection_losses(criterion: DetectionCriterion, scene_pass: ScenePass, reduce: Reduce) -> Losses:
    """``{"class", "center", "box", "iou"[, "object"]}`` of the boxes."""
    detection = scene_pass.features.detection
    assert detection is not None
    prediction = detection_predictions(detection.levels, scene_pass.network.config.voxel_size_m)
    targets = [BoxTarget(s.boxes, s.labels) for s in scene_pass.batch.samples]
    return criterion(prediction, targets, reduce)


def occupancy_losses(criterion: OccupancyCriterion, scene_pass: ScenePass, reduce: Reduce) -> Losses:
    """``{"cross_entropy", "semantic", "geometric"}`` of the samples with occupancy, summed over scales; zero when no
    process has such a sample."""
    samples = scene_pass.batch.samples
    rows = [i for i, s in enumerate(samples) if s.occupancy is not None]
    device = scene_pass.features.levels[0].device
    everywhere = reduce(torch.tensor(float(len(rows))).to(device, non_blocking=True))
    if not rows and float(everywhere) == 0:
        return {"cross_entropy": zero_loss(scene_pass.network.occupancy)}
    config = scene_pass.network.config.occupancy
    assert config is not None
    classes = config.num_classes + 1
    if rows:
        logits = scene_pass.occupancy(rows)
        truth = torch.stack([o for s in samples if (o := s.occupancy) is not None])
        targets = [coarse_labels(truth, truth.shape[1] // scores.shape[2], classes) for scores in logits]
    else:  # other processes have samples, and every process must call ``reduce``
        logits = [torch.zeros((0, classes, 1, 1, 1), device=device)] * config.levels
        targets = [torch.zeros((0, 1, 1, 1), dtype=torch.int64, device=device)] * len(logits)
    losses = criterion(logits, targets, reduce)
    if not rows:
        losses["cross_entropy"] = losses["cross_entropy"] + zero_loss(scene_pass.network.occupancy)
    return losses


def voxel_losses(criterion: GroundingCriterion, scene_pass: ScenePass, reduce: Reduce) -> Losses:
    """``{"class", "box"[, "iou"][, "contrastive"]}`` of a decoder over voxels, sums over layers; zero without
    sentences."""
    answers = scene_pass.voxel_answers()
    if answers is None:
        reduce(scene_pass.features.levels[0].feats.new_zeros(()))  # as with sentences: for matched boxes
        return {"class": zero_loss(scene_pass.network.grounding)}
    targets = [
        GroundingTarget(boxes, named[None].expand(len(boxes), -1))
        for boxes, named in zip(answers.boxes, answers.named, strict=True)
    ]
    layers = grounding_layers(answers.output)
    if criterion.contrastive_weight:
        assert scene_pass.network.grounding is not None
        embedded = scene_pass.network.grounding.head.embeddings(answers.output.hidden, answers.tokens)
        layers = [
            dataclasses.replace(layer, query_embeddings=queries, token_embeddings=embedded[1])
            for layer, queries in zip(layers, embedded[0], strict=True)
        ]
    losses = dataclasses.replace(criterion, reduce=reduce)(layers, targets, ~answers.token_pad)
    kinds = sorted({k.split("/")[1] for k in losses})
    return {kind: torch.stack([v for k, v in losses.items() if k.endswith(kind)]).sum() for kind in kinds}


def object_losses(scene_pass: ScenePass, reduce: Reduce) -> Losses:
    """``{"named", "others"}`` of a decoder over detected objects."""
    pointed = scene_pass.pointed()
    losses = PointerCriterion(reduce=reduce)(pointed, scene_pass.features.levels[0].feats)
    if not pointed:
        losses["named"] = losses["named"] + zero_loss(scene_pass.network.grounding)
    return losses


def zero_loss(head: nn.Module | None) -> Tensor:
    """A loss of zero with zero gradients, for a head without targets in the batch."""
    assert head is not None
    return 0.0 * torch.stack([p.sum() for p in head.parameters()]).sum()
