"""One training, as a value: what is trained on what, how long, how fast, how often.

:class:`TrainingRun` holds every knob. The command line makes one from its options and ``--set name=value``
(:meth:`TrainingRun.of`), ``run.json`` stores it (:meth:`TrainingRun.to_json`), and unknown names are errors everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from embodied_perceptron.nn.presets import Modality
from embodied_perceptron_training.training.augment import MOTIONS

Variant = Literal["ours", "fcaf3d", "fcaf3d+decoder"]
BoxLoss = Literal["decoupled", "plain"]
ScheduleName = Literal["cosine", "step", "constant"]
Precision = Literal["float32", "auto", "bfloat16", "float16"]
TASKS = (
    *("detection", "continuous-detection", "monocular-detection", "occupancy", "continuous-occupancy"),
    *("grounding", "multi", "images", "boxes"),
)
LENGTHS = ("steps", "epochs", "minutes")
_LONGEST_WARMUP = 0.05
_CHOICES = {
    "task": TASKS,
    "schedule": ("cosine", "step", "constant"),
    "precision": ("float32", "auto", "bfloat16", "float16"),
}
_OPTION_CHOICES = {
    "turns": tuple(MOTIONS),
    "learn": ("all", "occupancy", "grounding", "presence", "outputs"),
    "presence": ("off", "on"),
    "classes": ("data", "all", "weights"),
}


# sections of run.json: what is trained, and of it the options of ``--set`` for scenes and for task ``images``
_REQUEST = {"section": "request"}
_SCENES, _IMAGES, _BOTH = ({"section": "options", "of": of} for of in (("scenes",), ("images",), ("scenes", "images")))


@dataclass(frozen=True)
class TrainingRun:
    """All knobs of a training.

    Exactly one of ``steps``, ``epochs`` and ``minutes`` is its length, and the learning rate's schedule runs over it.

    Attributes:
        task: one of :data:`TASKS`.
        preset: ``tiny``, ``base`` or ``paper``.
        data: folder of the training split.
        val: folder of the validation split (the same folder when it holds both); None = no validation.
        seed: of the initial weights, the order of samples, augmentation and dropout.
        modality: what the network sees.
        variant: the network of the paper's comparison.
        box_loss: corners decoupled or plain.
        views: of a sample; 0 = the preset's default.
        truth_views: of a validation where more than ``views``: the truth is what so many views show, and a sample shows
            ``views`` of them. 0 = what the sample's own views show.
        weights: file to start from, or None.

        images: the image encoder: weights file of ``train --task images``, or ``imagenet`` for the preset's packaged
            one. It is then frozen, and scenes keep its features: many times faster. Empty: it is trained along with
            everything else, as the paper does. Of task ``images`` itself ``imagenet`` or empty: what it starts from.
        classes: ``data`` (those that occur in the training split), ``all``, or ``weights``: those of the weights file
            to start from, in its order.
        presence: ``on``: the detection head has one more output, whether a thing is there at all, learned at things of
            every name and of none. Weights to start from may lack it; it then starts anew.
        window_m: edge of training windows; 0 = the preset's (``paper``: the whole scene).
        learn: ``all``, or ``grounding``: the decoder of sentences alone, over a network that stays as it is. It sees
            what it will see at inference, and ``sentences`` may be many: they cost little beside the pass over the
            scene. Weights to start from may have another decoder; this one then starts anew. ``occupancy``: its decoder
            alone, in the same way. ``presence``: that output alone. ``outputs``: the last layers of detection (class,
            box, centreness, presence) alone. With ``occupancy`` and ``grounding`` classes are those of the weights.
        sentences: per sample that has any.
        absent_share: of them, about what is elsewhere; for decoders over objects.
        sentence_share, occupancy_share: of the samples that teach grounding and occupancy; steps get cheaper.
        repeat: windows per scene and epoch.
        balance: repeat-factor sampling: scenes with a class that fewer than this share of all scenes has come more
            often, see :func:`~embodied_perceptron_training.training.data_order.repeat_factor_order`; 0 = all alike.
        turns: how scenes are turned in training (not ``paper``): ``aligned`` with the walls up to quarter turns and a
            few degrees, as :class:`~embodied_perceptron.inference.map_predictor.MapPredictor` turns its grid frame, or
            ``any``.
        prefix_share: of the samples that are maps of the first n of a scene's views.
        site_noise: of the samples whose sites and their colours are disturbed, see
            :class:`~embodied_perceptron_training.training.domain_randomisation.SiteDisturbance`.
        pictures: sets of disturbed pictures per scene; samples show each as often as the pictures as they are. Where
            the encoder is trained along, they are drawn anew for each sample.
        cache: folder of prepared scenes; empty = ``.prepared`` below the data.
        looks: of task ``boxes``: windows of each scene that the network looks at, once and for all.
        also: further folders with training scenes, separated by commas.
        w_detection, w_occupancy, w_grounding: of the heads' losses.
        size: of task ``images``: HxW of the crops; empty = half of the preset's input.
        pixels: of task ``images``: per image and level that the loss reads.

        steps: optimiser steps.
        epochs: passes over the training samples; a step's samples are batch x accumulate x processes.
        minutes: of wall clock, validation and checkpoints included, pauses between interruption and resume not. Such a
            training resumes, but depends on the machine's speed: it does not repeat bit by bit.
        batch: samples per process and forward pass.
        accumulate: forward passes per step.
        learning_rate, weight_decay, betas: AdamW; norms, biases and other vectors do not decay.
        rate_scales: (prefix of parameter names, factor of the learning rate); the first that fits counts.
        schedule: ``cosine`` to ``final_rate``, ``step`` by ``gamma`` at ``milestones``, or ``constant``.
        final_rate: fraction of the learning rate at the end of ``cosine``.
        milestones: fractions of the training.
        gamma: factor at each milestone.
        warmup_steps: the rate rises linearly over these, and over no more than a twentieth of the training.
        clip: largest norm of the gradient; 0 = not clipped.
        ema_decay: of the averaged weights; 0 = they are the current ones.
        precision: of matrix products (autocast). ``auto``: on CUDA bfloat16 where the device has it and float16
            elsewhere, on the CPU float32.
        freeze_norms: batch norms keep their statistics (their weights still learn).
        workers: processes that load data, per process; 0 = in the loop itself.
        validations: over the whole training, equally spaced, the last at the end.
        validate_first: also before the first step: the figures of the untrained network, and a fault of the validation
            shows at once instead of after hours.
        checkpoint_s: seconds between checkpoints; 0 = after every step.
        log_every: steps between lines of the log.
        max_bad_steps: this many skipped steps in a row (NaN, infinity) end the training.
        max_corrupt_share: of an epoch's samples; more corrupt ones end the training.
        device: ``auto`` = the GPU where it is there and works, ``cpu``, ``cuda`` or ``cuda:N``.
    """

    task: str = field(default="multi", metadata=_REQUEST)
    preset: str = field(default="tiny", metadata=_REQUEST)
    data: Path = field(default=Path(), metadata=_REQUEST)
    val: Path | None = field(default=None, metadata=_REQUEST)
    modality: Modality = field(default="rgbd", metadata=_REQUEST)
    variant: Variant = field(default="ours", metadata=_REQUEST)
    box_loss: BoxLoss = field(default="decoupled", metadata=_REQUEST)
    views: int = field(default=0, metadata=_REQUEST)
    truth_views: int = field(default=0, metadata=_REQUEST)
    weights: Path | None = field(default=None, metadata=_REQUEST)

    images: str = field(default="", metadata=_BOTH)
    classes: str = field(default="data", metadata=_SCENES)
    window_m: float = field(default=0.0, metadata=_SCENES)
    learn: str = field(default="all", metadata=_SCENES)
    sentences: int = field(default=6, metadata=_SCENES)
    absent_share: float = field(default=0.25, metadata=_SCENES)
    sentence_share: float = field(default=1.0, metadata=_SCENES)
    occupancy_share: float = field(default=1.0, metadata=_SCENES)
    repeat: int = field(default=4, metadata=_SCENES)
    balance: float = field(default=0.0, metadata=_SCENES)
    turns: str = field(default="aligned", metadata=_SCENES)
    presence: str = field(default="off", metadata=_SCENES)
    prefix_share: float = field(default=0.0, metadata=_SCENES)
    site_noise: float = field(default=0.0, metadata=_SCENES)
    pictures: int = field(default=0, metadata=_SCENES)
    cache: str = field(default="", metadata=_SCENES)
    looks: int = field(default=4, metadata=_SCENES)
    also: str = field(default="", metadata=_BOTH)
    w_detection: float = field(default=1.0, metadata=_SCENES)
    w_occupancy: float = field(default=0.5, metadata=_SCENES)
    w_grounding: float = field(default=0.3, metadata=_SCENES)
    size: str = field(default="", metadata=_IMAGES)
    pixels: int = field(default=400, metadata=_IMAGES)

    steps: int = 0
    epochs: float = 0.0
    minutes: float = 0.0
    batch: int = 2
    accumulate: int = 1
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    rate_scales: tuple[tuple[str, float], ...] = ()
    schedule: ScheduleName = "cosine"
    final_rate: float = 0.0
    milestones: tuple[float, ...] = (2 / 3, 11 / 12)
    gamma: float = 0.1
    warmup_steps: int = 0
    clip: float = 10.0
    ema_decay: float = 0.999
    precision: Precision = "float32"
    freeze_norms: bool = False
    seed: int = 0
    workers: int = 1
    validations: int = 10
    validate_first: bool = True
    checkpoint_s: float = 120.0
    log_every: int = 10
    max_bad_steps: int = 10
    max_corrupt_share: float = 0.01
    device: str = "auto"

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name, allowed in _OPTION_CHOICES.items():
            if getattr(self, name) not in allowed:
                words = f"{', '.join(allowed[:-1])} or {allowed[-1]}"
                raise ValueError(f"option {name} must be {words}, got {getattr(self, name)!r}")
        lengths = {name: getattr(self, name) for name in LENGTHS}
        if min(lengths.values()) < 0 or sum(v > 0 for v in lengths.values()) != 1:
            given = ", ".join(f"{k} = {v}" for k, v in lengths.items() if v)
            raise ValueError(f"exactly one of steps, epochs, minutes must be positive, got {given or 'none'}")
        positive = ("batch", "accumulate", "learning_rate", "log_every", "max_bad_steps")
        not_negative = ("weight_decay", "clip", "warmup_steps", "workers", "validations", "checkpoint_s", "seed")
        for name in (*positive, *not_negative):
            value = getattr(self, name)
            if value < 0 or (value == 0 and name in positive):
                raise ValueError(f"{name} must be {'positive' if name in positive else '>= 0'}, got {value}")
        for name in ("final_rate", "gamma", "ema_decay", "max_corrupt_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.looks < 1:
            raise ValueError(f"option looks must be positive, got {self.looks}")
        if self.pictures < 0:
            raise ValueError(f"option pictures must be >= 0, got {self.pictures}")
        for name in ("balance", "absent_share", "prefix_share", "site_noise"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"option {name} must be in [0, 1], got {getattr(self, name)}")

    @property
    def training_folders(self) -> list[Path]:
        """``data`` and what is there also."""
        return [self.data, *(Path(name) for name in self.also.split(",") if name)]

    # -- making one

    @staticmethod
    def of(options: Mapping[str, str], **values: Any) -> TrainingRun:
        """From fields and ``options`` in words (``--set``), over the defaults of the task and preset
        (:func:`preset_defaults`); a length in ``values`` takes the place of the default one.

        Raises ``ValueError`` naming an unknown option or a value that makes no sense.
        """
        task, preset = values.get("task", "multi"), values.get("preset", "tiny")
        defaults = preset_defaults(task, preset) if task in TASKS else {}
        if any(values.get(name) for name in LENGTHS):
            defaults.pop("epochs", None)
        return TrainingRun(**{**defaults, **_parsed(task, options), **values})

    @staticmethod
    def from_json(stored: Mapping[str, Mapping[str, Any]], **changes: Any) -> TrainingRun:
        """Inverse of :meth:`to_json`, with ``changes``; a length among them takes the place of the stored one.

        Raises ``KeyError`` for a missing part, ``ValueError`` naming unknown keys.
        """
        request, settings = dict(stored["request"]), dict(stored["settings"])
        options = request.pop("options", {})
        for name in ("data", "val", "weights"):
            if request.get(name) is not None:
                request[name] = Path(request[name])
        for name in ("betas", "milestones"):
            if name in settings:
                settings[name] = tuple(settings[name])
        if "rate_scales" in settings:
            settings["rate_scales"] = tuple((str(k), float(v)) for k, v in settings["rate_scales"])
        if any(changes.get(name) for name in LENGTHS):
            settings = {k: v for k, v in settings.items() if k not in LENGTHS}
        unknown = sorted({*settings, *changes} - _names("settings")) + sorted(set(request) - _names("request"))
        if unknown:
            raise ValueError(f"unknown training settings: {', '.join(unknown)}")
        task = request.get("task", "multi")
        return TrainingRun(**{**request, **_parsed(task, options), **settings, **changes})

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Plain values: ``request`` (what is trained; options that differ from their defaults, in words) and
        ``settings`` (how)."""
        values = {k: str(v) if isinstance(v, Path) else v for k, v in dataclasses.asdict(self).items()}
        request = {k: v for k, v in values.items() if k in _names("request")}
        options = {
            f.name: str(values[f.name])
            for f in dataclasses.fields(self)
            if f.metadata.get("section") == "options" and values[f.name] != f.default
        }
        settings = {k: v for k, v in values.items() if k in _names("settings")}
        return {"request": {**request, "options": options}, "settings": settings}

    # -- length and rate

    def total_steps(self, samples: int, processes: int) -> int:
        """Steps of the whole training; 0 when it is bounded by time. ``samples`` of an epoch."""
        if self.epochs:
            return max(1, math.ceil(self.epochs * samples / (self.batch * self.accumulate * processes)))
        return self.steps

    def rate(self, progress: float, step: int) -> float:
        """Learning rate of step ``step`` (from 0), ``progress`` in [0, 1] of the training having passed."""
        progress = min(max(progress, 0.0), 1.0)
        if self.schedule == "cosine":
            factor = self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * progress))
        elif self.schedule == "step":
            factor = self.gamma ** sum(progress >= m for m in self.milestones)
        else:
            factor = 1.0
        if step < self.warmup_steps:
            factor *= min(1.0, max((step + 1) / (self.warmup_steps + 1), progress / _LONGEST_WARMUP))
        return self.learning_rate * factor


def _names(section: str) -> set[str]:
    """Fields of a section of ``run.json``; ``seed`` is in both."""
    found = {f.name for f in dataclasses.fields(TrainingRun) if f.metadata.get("section", "settings") == section}
    return found | {"seed"}


def _parsed(task: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Values of ``--set name=value``. Raises ``ValueError`` naming an unknown option or a value of the wrong kind."""
    of = "images" if task == "images" else "scenes"
    defaults = {f.name: f.default for f in dataclasses.fields(TrainingRun) if of in f.metadata.get("of", ())}
    values: dict[str, Any] = {}
    for name, text in options.items():
        if name not in defaults:
            raise ValueError(f"unknown option {name!r}; known: {', '.join(defaults)}")
        kind = type(defaults[name])
        try:
            values[name] = kind(text)
        except ValueError:
            raise ValueError(f"option {name} must be {kind.__name__}, got {text!r}") from None
    return values


# EmbodiedScan's schedules (CVPR 2024, appendix): rate, weight decay, epochs, schedule, warm-up
_PAPER: Mapping[str, dict[str, Any]] = {
    "detection": {"learning_rate": 1e-3, "epochs": 12.0, "schedule": "step"},
    "monocular-detection": {"learning_rate": 1e-3, "epochs": 12.0, "schedule": "step"},
    "continuous-detection": {"learning_rate": 2e-4, "epochs": 12.0, "schedule": "step"},
    "occupancy": {"learning_rate": 1e-4, "weight_decay": 0.01, "epochs": 24.0, "warmup_steps": 500},
    "continuous-occupancy": {"learning_rate": 1e-4, "weight_decay": 0.01, "epochs": 24.0, "warmup_steps": 500},
    "grounding": {"learning_rate": 5e-4, "weight_decay": 5e-4, "epochs": 12.0, "schedule": "step"},
    "multi": {"learning_rate": 5e-4, "epochs": 12.0, "schedule": "step"},
    "images": {"learning_rate": 1e-3, "epochs": 12.0},
    "boxes": {"learning_rate": 1e-3, "epochs": 12.0},
}


def preset_defaults(task: str, preset: str) -> dict[str, Any]:
    """Fields that differ from :class:`TrainingRun`'s own defaults, its length in epochs among them.

    ``paper``: the published schedules, without averaged weights. ``tiny`` and ``base``: one cosine with warm-up.
    """
    if preset == "paper":
        return {"batch": 4 if "detection" in task else 1, "ema_decay": 0.0, **_PAPER[task]}
    if task == "boxes":
        return {"batch": 4, "epochs": 12.0, "warmup_steps": 50, "weight_decay": 0.05, "ema_decay": 0.998}
    rate = 2e-3 if preset == "tiny" else 1e-3
    return {"epochs": 24.0, "learning_rate": rate, "warmup_steps": 100, "weight_decay": 0.01}
