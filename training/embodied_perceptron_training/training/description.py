"""``train --print-run``: settings of a training as plain values, read from the same sources as the training."""

from __future__ import annotations

from typing import Any

from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron_training.training.criteria import DECOUPLED
from embodied_perceptron_training.training.objectives import detection_criterion, voxel_criterion
from embodied_perceptron_training.training.tasks import TASK_KINDS, motion_range, task_config
from embodied_perceptron_training.training.training_run import TrainingRun

CORNER_TERMS = ("center", "size", "rotation", "all")


def describe(run: TrainingRun) -> dict[str, Any]:
    """One JSON object; no data are read and no network is built.

    ``learning_rate`` is for ``reference_batch`` samples per step, if the run has one. ``augmentation`` is None without
    motion. Raises ``ValueError`` for tasks that are not over scenes.
    """
    if run.task not in TASK_KINDS:
        raise ValueError(f"--print-run describes tasks over scenes ({', '.join(TASK_KINDS)}), got {run.task!r}")
    kind, config = TASK_KINDS[run.task], task_config(run, len(DETECTION_CLASSES))
    steps, motion = run.optimisation, motion_range(run, config)
    images, language = None, None
    if config.uses_images:
        pretrained = bool(run.network.images or run.network.pretrained)
        images = {"name": config.image.encoder, "pretrained": pretrained, "trainable": not run.network.images}
    if config.grounding is not None:  # the release trains it at a rate of zero; here its features are cached
        language = {"name": config.grounding.text_encoder, "trainable": False, "learning_rate_factor": 0.0}
    return {
        "task": run.task,
        "preset": run.network.preset,
        "learning_rate": steps.learning_rate,
        "reference_batch": steps.reference_batch,
        "weight_decay": steps.weight_decay,
        "epochs": run.schedule.epochs or None,
        "steps": run.schedule.steps or None,
        "classes": run.data.classes,
        "windows_per_epoch": run.data.repeat,
        "batch_per_gpu": steps.batch,
        "views": 1 if kind.choice == "one" else run.samples.views or kind.views,
        "random_views": run.samples.random_views == "on",
        "val_views": run.samples.val_views or run.samples.views or kind.views,
        "sentences": run.samples.sentences if config.grounding is not None else 0,
        "rate_scales": dict(steps.rate_scales),
        "augmentation": motion
        and {
            "rotation_rad": motion.yaw_rad,
            "scale": [1.0 - motion.scale, 1.0 + motion.scale],
            "translation_sigma_m": motion.shift_sigma_m,
            "flip": motion.mirror > 0,
        },
        "site_size_m": config.voxel_size_m,
        "losses": losses(run, config),
        "image_encoder": images,
        "text_encoder": language,
    }


def losses(run: TrainingRun, config: NetworkConfig) -> dict[str, float]:
    """Name of each loss term -> its weight in the sum; corner distances one by one."""
    found: dict[str, float] = {}
    if config.detection is not None:
        boxes, weight = detection_criterion(run), run.losses.detection
        terms = {"class": 1.0, "center": 1.0, **_corners("box", boxes.box.corners), "iou": boxes.iou_weight}
        if boxes.box.l1:
            terms |= {f"box/{name}": 1.0 for name in ("center", "size", boxes.box.l1)}
        if config.detection.presence:
            terms["presence"] = 1.0
        if config.detection.pruning == "object":
            terms["object"] = 1.0
        if config.detection.neck == "votes":
            terms["votes"] = 1.0
        found |= _weighted("", terms, weight)
    if config.occupancy is not None:
        terms = {"cross_entropy": 1.0, "semantic": 1.0, "geometric": 1.0}
        found |= _weighted("occupancy/", terms, run.losses.occupancy)
    if config.grounding is not None and config.grounding.queries == "voxels":
        words = voxel_criterion(run)
        terms = {"class": 1.0, **_corners("box", DECOUPLED)}
        terms |= {"iou": words.iou_weight, "contrastive": words.contrastive_weight, "selection": 1.0}
        found |= _weighted("grounding/", terms, run.losses.grounding)
    elif config.grounding is not None:
        found |= _weighted("grounding/", {"named": 1.0, "others": 1.0}, run.losses.grounding)
    return found


def _corners(name: str, weights: tuple[float, float, float, float], factor: float = 1.0) -> dict[str, float]:
    return {f"{name}/{term}": factor * weight for term, weight in zip(CORNER_TERMS, weights, strict=True)}


def _weighted(prefix: str, terms: dict[str, float], weight: float) -> dict[str, float]:
    """Weighted terms, without those of weight zero."""
    return {prefix + name: weight * value for name, value in terms.items() if weight * value}
