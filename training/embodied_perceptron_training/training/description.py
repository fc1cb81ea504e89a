"""``train --print-run``: settings of a training as plain values, read from the same sources as the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embodied_perceptron.nn.presets import NetworkConfig
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron_training.training.criteria import DECOUPLED
from embodied_perceptron_training.training.objectives import detection_criterion, voxel_criterion
from embodied_perceptron_training.training.paper import GPUS, IMAGES, MAX_POINTS, SCANS
from embodied_perceptron_training.training.tasks import TASK_KINDS, motion_range, task_config, training_data
from embodied_perceptron_training.training.training_run import TrainingRun

CORNER_TERMS = ("center", "size", "rotation", "all")


def describe(run: TrainingRun) -> dict[str, Any]:
    """One JSON object; no network is built, and of the data only the infos are read.

    ``samples_per_epoch`` and ``steps`` are ``computed_for`` the scans and images of the run's data (without data, the
    paper's training split) and the paper's number of GPUs. ``learning_rate`` is for ``reference_batch`` samples per
    step, if the run has one. ``augmentation`` is None without motion. Raises ``ValueError`` for tasks that are not over
    scenes, and as reading the infos.
    """
    if run.task not in TASK_KINDS:
        raise ValueError(f"--print-run describes tasks over scenes ({', '.join(TASK_KINDS)}), got {run.task!r}")
    kind, config = TASK_KINDS[run.task], task_config(run, len(DETECTION_CLASSES))
    steps, motion = run.optimisation, motion_range(run, config)
    views, val_views = (run.samples.views or kind.views), (run.samples.val_views or run.samples.views or kind.views)
    single = kind.choice == "one"
    scans, pictures = SCANS, IMAGES
    if run.data.train != Path():
        counts = [d.image_count(i) for d in training_data(run) for i in range(len(d))]
        scans, pictures = len(counts), sum(n if run.samples.random_views == "on" else min(n, views) for n in counts)
    samples = run.data.repeat * (pictures if single else scans)
    images, language = None, None
    if config.uses_images:
        pretrained = (run.network.images or run.network.pretrained) not in ("", "random")
        images = {"name": config.image.encoder, "pretrained": pretrained, "trainable": not run.network.images}
        images["base_width"] = config.image.base_width
    if config.grounding is not None:  # the release trains it at a rate of zero; here its features are cached
        language = {"name": config.grounding.text_encoder, "trainable": False, "learning_rate_factor": 0.0}
    return {
        "task": run.task,
        "preset": run.network.preset,
        "learning_rate": steps.learning_rate,
        "reference_batch": steps.reference_batch,
        "weight_decay": steps.weight_decay,
        "computed_for": {"scans": scans, "images": pictures, "gpus": GPUS},
        "epochs": run.schedule.epochs or None,
        "samples_per_epoch": samples,
        "maps_per_sample": views if kind.choice == "prefix" else 1,
        "steps": run.total_steps(samples, GPUS),
        "classes": run.data.classes,
        "windows_per_epoch": run.data.repeat,
        "keep": config.detection.keep if config.detection is not None else None,
        "points": MAX_POINTS if config.inputs == "xyz" else None,
        "image_size": list(config.image.size),
        "batch_per_gpu": steps.batch,
        "views": 1 if single else views,
        "random_views": run.samples.random_views == "on",
        "val_views": 1 if single else val_views,
        "sentences": run.samples.sentences if config.grounding is not None else 0,
        "rate_scales": dict(steps.rate_scales),
        "augmentation": motion
        and {
            "rotation_rad": motion.yaw_rad,
            "scale": [1.0 - motion.scale, 1.0 + motion.scale],
            "translation_sigma_m": motion.shift_sigma_m,
            "flip": [axis for axis, share in (("x", motion.mirror), ("y", motion.mirror_y)) if share],
        },
        "site_size_m": config.voxel_size_m,
        "losses": losses(run, config),
        "image_encoder": images,
        "text_encoder": language,
    }


def setting(described: Any, path: str) -> Any:
    """The value at ``path`` (``augmentation.flip``) of :func:`describe`; None where it is absent."""
    for key in path.split(".", 1):
        described = None if described is None else described.get(key)
    return described


def losses(run: TrainingRun, config: NetworkConfig) -> dict[str, float]:
    """Name of each loss term -> its weight in the sum; corner distances one by one."""
    found: dict[str, float] = {}
    if config.detection is not None:
        boxes, weight = detection_criterion(run), run.losses.detection
        terms = {"class": 1.0, "center": 1.0, **_corners("box", boxes.box.corners), "iou": boxes.iou_weight}
        terms |= {f"box/{name}": 1.0 for name in boxes.box.l1}
        if boxes.box.iou_dof:
            terms[f"iou/{boxes.box.iou_dof}-dof"] = 1.0
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
        terms |= {"iou": words.iou_weight, "contrastive": words.contrastive_weight}
        found |= _weighted("grounding/", terms, run.losses.grounding)
    elif config.grounding is not None:
        found |= _weighted("grounding/", {"named": 1.0, "others": 1.0}, run.losses.grounding)
    return found


def _corners(name: str, weights: tuple[float, float, float, float], factor: float = 1.0) -> dict[str, float]:
    return {f"{name}/{term}": factor * weight for term, weight in zip(CORNER_TERMS, weights, strict=True)}


def _weighted(prefix: str, terms: dict[str, float], weight: float) -> dict[str, float]:
    """Weighted terms, without those of weight zero."""
    return {prefix + name: weight * value for name, value in terms.items() if weight * value}
