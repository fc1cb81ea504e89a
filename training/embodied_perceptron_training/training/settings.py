"""How long, how fast, how often: the numbers of a training, and the schedule of its learning rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ScheduleName = Literal["cosine", "step", "constant"]
Precision = Literal["float32", "auto", "bfloat16", "float16"]
SCHEDULES: tuple[ScheduleName, ...] = ("cosine", "step", "constant")
PRECISIONS: tuple[Precision, ...] = ("float32", "auto", "bfloat16", "float16")

_LONGEST_WARMUP = 0.05


@dataclass(frozen=True)
class TrainSettings:
    """Everything about a training but its task.

    Exactly one of ``steps``, ``epochs`` and ``minutes`` says how long it lasts, and the schedule runs over it.

    Attributes:
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
        seed: of the order of samples, of augmentation and dropout.
        workers: processes that load data, per process; 0 = in the loop itself.
        validations: over the whole training, equally spaced, the last at the end.
        validate_first: also before the first step: the figures of the untrained network, and a fault of the validation
            shows at once instead of after hours.
        checkpoint_s: seconds between checkpoints; 0 = after every step.
        log_every: steps between lines of the log.
        max_bad_steps: this many skipped steps in a row (NaN, infinity) end the training.
        max_corrupt_share: of an epoch's samples; more corrupt ones end the training.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """

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
    device: str = "cpu"

    def __post_init__(self) -> None:
        lengths = {"steps": self.steps, "epochs": self.epochs, "minutes": self.minutes}
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
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")

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

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> TrainSettings:
        """Inverse of :meth:`to_json`. Raises ``ValueError`` naming unknown keys."""
        unknown = sorted(set(values) - {f.name for f in dataclasses.fields(TrainSettings)})
        if unknown:
            raise ValueError(f"unknown training settings: {', '.join(unknown)}")
        plain = dict(values)
        for name in ("betas", "milestones"):
            if name in plain:
                plain[name] = tuple(plain[name])
        if "rate_scales" in plain:
            plain["rate_scales"] = tuple((str(k), float(v)) for k, v in plain["rate_scales"])
        return TrainSettings(**plain)


# EmbodiedScan's schedules (CVPR 2024, appendix): rate, weight decay, epochs, schedule, warm-up, rate factors
_PAPER: Mapping[str, dict[str, Any]] = {
    "detection": {"learning_rate": 1e-3, "epochs": 12.0, "schedule": "step"},
    "monocular-detection": {"learning_rate": 1e-3, "epochs": 12.0, "schedule": "step"},
    "continuous-detection": {"learning_rate": 2e-4, "epochs": 12.0, "schedule": "step"},
    "occupancy": {"learning_rate": 1e-4, "weight_decay": 0.01, "epochs": 24.0, "warmup_steps": 500},
    "continuous-occupancy": {"learning_rate": 1e-4, "weight_decay": 0.01, "epochs": 24.0, "warmup_steps": 500},
    "grounding": {"learning_rate": 5e-4, "weight_decay": 5e-4, "epochs": 12.0, "schedule": "step"},
    "multi": {"learning_rate": 5e-4, "epochs": 12.0, "schedule": "step"},
    "images": {"learning_rate": 1e-3, "epochs": 12.0},
}


def default_settings(task: str, preset: str) -> dict[str, Any]:
    """What differs from :class:`TrainSettings`'s own defaults, its length in epochs among it.

    ``paper``: the published schedules, without averaged weights. ``tiny`` and ``base``: one cosine with warm-up.
    """
    if preset == "paper":
        return {"batch": 4 if "detection" in task else 1, "ema_decay": 0.0, **_PAPER[task]}
    values: dict[str, Any] = {"epochs": 24.0, "learning_rate": 2e-3 if preset == "tiny" else 1e-3, "warmup_steps": 100}
    values["weight_decay"] = 0.01
    return values
