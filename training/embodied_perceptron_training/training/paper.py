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
SCANS, IMAGES = 3930, 689_000  # of the training split (section 5.1)
SENTENCES = 12
MAX_POINTS = 100_000  # sampled of the depth images of a sample
_MOTION = MotionRange(yaw_rad=0.0873, mirror=0.5, mirror_y=0.5, scale=0.1, shift_m=0.0, floor_m=0.0, shift_sigma_m=0.1)
# sentences depend on the view: neither turned nor mirrored
_UNTURNED = dataclasses.replace(_MOTION, yaw_rad=0.0, mirror=0.0, mirror_y=0.0)


@dataclass(frozen=True)
class PaperTask:
    """One task's training."""

    learning_rate: float  # of AdamW
    epochs: float  # passes over the samples
    batch: int  # samples on each GPU
    weight_decay: float = 1e-4
    schedule: str = "step"  # ``step`` by a tenth after 2/3 and 11/12 of the training, or ``cosine``
    warmup_steps: int = 0  # of the learning rate
    motion: MotionRange | None = _MOTION  # augmentation of the whole scene; None = none
    views: int = 20  # of a sample, drawn at random from all of a scan's
    val_views: int = 50  # of a validation, evenly spaced
    keep: int = 100_000  # sites per level of the detection neck
    rate_scales: tuple[tuple[str, float], ...] = ()  # factors of the learning rate by prefix
    sentences: int = 0  # of a scene in a sample; 0 = none
    classes: str = "data"  # to detect, see :class:`~embodied_perceptron_training.training.training_run.DataConfig`


_DECODER = tuple((f"grounding.head.{name}.", 0.1) for name in ("layers", "norm", "box_position", "voxel_position"))
_OCCUPANCY = PaperTask(
    1e-4, 24.0, 1, weight_decay=0.01, schedule="cosine", warmup_steps=500, motion=None, views=10, val_views=20
)
PAPER: Mapping[str, PaperTask] = {
    "detection": PaperTask(1e-3, 120.0, 4),
    "continuous-detection": PaperTask(2e-4, 96.0, 1, views=10, keep=20_000),
    "monocular-detection": PaperTask(2e-4, 24.0, 8, views=1, classes="monocular"),
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


@dataclass(frozen=True)
class Published:
    """A setting of the paper, in the tasks that it is published for."""

    setting: str  # its path in ``train --print-run``
    source: str  # section of the paper, or ``release`` for the released configurations
    values: Mapping[str, Any]  # by task
    why: str = ""  # reason for a difference


def _each(*values: Any) -> dict[str, Any]:
    """Values of the four tasks of the appendix."""
    return dict(zip(("continuous-detection", "detection", "monocular-detection", "occupancy"), values, strict=True))


def _boxes(value: Any) -> dict[str, Any]:
    return {task: value for task in _each(*range(4)) if task != "occupancy"}


PUBLISHED: tuple[Published, ...] = (
    Published("learning_rate", "A.1", _each(2e-4, 1e-3, 2e-4, 1e-4)),
    Published("learning_rate", "release", {"grounding": 5e-4}),
    Published("weight_decay", "A.1", _each(1e-4, 1e-4, 1e-4, 0.01)),
    Published("weight_decay", "release", {"grounding": 5e-4}),
    Published("batch_per_gpu", "A.1", _each(1, 4, 8, 1)),
    Published("epochs", "A.1", _each(96, 120, 24, 24)),
    Published("epochs", "release", {"grounding": 12}),
    Published("samples_per_epoch", "5.1", _each(3930, 3930, 689_000, 3930)),
    Published("maps_per_sample", "5.1", {**_each(10, 1, 1, 1), "continuous-occupancy": 10}),
    Published("steps", "5.1, A.1", _each(47_160, 14_738, 258_375, 11_790)),
    Published("views", "A.1", {**_each(10, 20, 1, 10), "grounding": 20}),
    Published("val_views", "5.1, A.1", {**_each(50, 50, 1, 20), "continuous-occupancy": 20, "grounding": 50}),
    Published("sentences", "release", {"grounding": 12}),
    Published("classes", "Table 11", {"monocular-detection": "monocular"}),
    Published("keep", "release", {"continuous-detection": 20_000, "detection": 100_000}),
    Published("points", "A.1", {**_each(100_000, 100_000, 100_000, 100_000), "grounding": 100_000}),
    Published("site_size_m", "A.1", {**_each(0.01, 0.01, 0.01, 0.0025), "grounding": 0.01}),
    Published("image_size", "A.1", {**_each(*[[480, 480]] * 4), "grounding": [480, 480]}),
    Published("image_encoder.name", "A.1", {**_each(*["resnet50"] * 4), "grounding": "resnet50"}),
    Published("image_encoder.base_width", "A.1", {**_each(16, 16, 16, 64), "grounding": 16}),
    Published("image_encoder.pretrained", "A.1", {"occupancy": True}),
    Published(
        "image_encoder.pretrained",
        "A.1",
        {**_boxes(True), "grounding": True},
        "no published weights fit the width of 16 channels: it is trained from random weights",
    ),
    Published("text_encoder.trainable", "release", {"grounding": False}),
    Published("augmentation.flip", "A.1, release", _boxes(["x", "y"]) | {"grounding": []}),
    Published("augmentation.rotation_rad", "A.1", _boxes(0.0873) | {"grounding": 0.0}),
    Published("augmentation.scale", "A.1", _boxes([0.9, 1.1])),
    Published("augmentation.translation_sigma_m", "A.1", _boxes(0.1)),
    Published("augmentation", "A.1", {"occupancy": None, "continuous-occupancy": None}),
    *(Published(f"losses.box/{part}", "4.2", _boxes(0.2)) for part in ("center", "size", "rotation")),
    Published("losses.box/all", "4.2", _boxes(0.4)),
    Published("losses.grounding/box/all", "4.2", {"grounding": 0.4}),
    Published("losses.grounding/contrastive", "A.1", {"grounding": 1.0}),
    Published("losses.grounding/selection", "A.1", {"grounding": None}),
    Published("losses.occupancy/cross_entropy", "4.2", {"occupancy": 1.0, "continuous-occupancy": 1.0}),
    Published("losses.occupancy/semantic", "4.2", {"occupancy": 1.0, "continuous-occupancy": 1.0}),
)


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
    if task.endswith("occupancy"):
        found["pretrained"] = "imagenet"
    if known.sentences:
        found |= {"sentences": known.sentences, "rate_scales": known.rate_scales}
    found |= {"repeat": 1, "w_iou": 0.0}  # a pass is a pass; corner distances are the whole loss of boxes
    if task != "multi":  # one network, one loss
        found |= {"w_occupancy": 1.0, "w_grounding": 1.0}
    return {**found, "w_contrastive": 1.0} if task in ("grounding", "multi") else found
