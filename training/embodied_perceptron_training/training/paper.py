"""Training settings of EmbodiedScan (CVPR 2024, with its appendix): the defaults of ``--preset paper``.

Rates are for 8 GPUs with ``batch`` samples each and are scaled with the samples per step, unless a learning rate is
given. Tasks that the paper does not have (``multi``, ``images``, ``boxes``) use the nearest ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embodied_perceptron_training.training.augment import MotionRange

GPUS = 8
SENTENCES = 12
POINTS_PER_VIEW, MAX_POINTS = 10_000, 100_000  # sampled of the depth images of a sample
_MOTION = MotionRange(yaw_rad=0.0873, mirror=0.5, scale=0.1, shift_m=0.0, floor_m=0.0, shift_sigma_m=0.1)
# sentences depend on the view: neither turned nor mirrored
_UNTURNED = dataclasses.replace(_MOTION, yaw_rad=0.0, mirror=0.0)


@dataclass(frozen=True)
class PaperTask:
    """One task's training."""

    learning_rate: float  # of AdamW
    epochs: float  # passes over the scenes
    batch: int  # samples on each GPU
    weight_decay: float = 1e-4
    schedule: str = "step"  # ``step`` by a tenth after 2/3 and 11/12 of the training, or ``cosine``
    warmup_steps: int = 0  # of the learning rate
    motion: MotionRange | None = _MOTION  # augmentation of the whole scene; None = none
    views: int = 20  # of a sample, drawn at random from all of a scan's
    val_views: int = 50  # of a validation, evenly spaced
    rate_scales: tuple[tuple[str, float], ...] = ()  # factors of the learning rate by prefix
    sentences: int = 0  # of a scene in a sample; 0 = none
    classes: str = "data"  # to detect, see :class:`~embodied_perceptron_training.training.training_run.DataConfig`


_DECODER = tuple((f"grounding.head.{name}.", 0.1) for name in ("layers", "norm", "box_position", "voxel_position"))
_DETECTION = PaperTask(1e-3, 120.0, 4)
_OCCUPANCY = PaperTask(
    1e-4, 24.0, 1, weight_decay=0.01, schedule="cosine", warmup_steps=500, motion=None, views=10, val_views=20
)
PAPER: Mapping[str, PaperTask] = {
    "detection": _DETECTION,
    "continuous-detection": PaperTask(2e-4, 96.0, 1, views=10),
    "monocular-detection": PaperTask(2e-4, 24.0, 8, views=1, classes="frequent20"),
    "occupancy": _OCCUPANCY,
    "continuous-occupancy": _OCCUPANCY,
    # 12 sentences on each GPU, as published, but all about one scene
    "grounding": PaperTask(
        5e-4, 12.0, 1, weight_decay=5e-4, motion=_UNTURNED, rate_scales=_DECODER, sentences=SENTENCES
    ),
    "multi": PaperTask(5e-4, 12.0, 1, motion=_UNTURNED),
    "images": PaperTask(1e-3, 12.0, 1, schedule="cosine"),
    "boxes": PaperTask(1e-3, 12.0, 1, schedule="cosine"),
}


def paper_defaults(task: str) -> dict[str, Any]:
    """Flat names of :class:`~embodied_perceptron_training.training.training_run.TrainingRun` and their values."""
    known = PAPER[task]
    found: dict[str, Any] = {
        "learning_rate": known.learning_rate,
        "weight_decay": known.weight_decay,
        "epochs": known.epochs,
        "batch": known.batch,
        "reference_batch": GPUS * known.batch,
        "schedule": known.schedule,
        "warmup_steps": known.warmup_steps,
        "ema_decay": 0.0,
    }
    if task in ("images", "boxes"):
        return found
    found |= {"classes": known.classes, "views": known.views, "val_views": known.val_views, "random_views": "on"}
    if known.sentences:
        found |= {"sentences": known.sentences, "rate_scales": known.rate_scales}
    found |= {"repeat": 1, "w_iou": 0.0}  # a pass is a pass; corner distances are the whole loss of boxes
    if task != "multi":  # one network, one loss
        found |= {"w_occupancy": 1.0, "w_grounding": 1.0}
    return {**found, "w_contrastive": 1.0} if task in ("grounding", "multi") else found
