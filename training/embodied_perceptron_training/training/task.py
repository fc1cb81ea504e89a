"""What the training loop asks of a task. The loop (:mod:`trainer`) knows nothing about voxels, boxes or text.

Exact resume and distributed training rest on one rule: **a sample is a pure function of its index and its random
generator**. The loop draws the order of the samples from (seed, epoch), gives sample ``index`` of ``epoch`` the
generator of (seed, epoch, index), and seeds torch before every step from (seed, step, rank). So nothing about
randomness has to be stored, and N processes see the samples of one process with the N-fold batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from embodied_perceptron.nn.presets import Modality

Reduce = Callable[[Tensor], Tensor]
Losses = dict[str, Tensor]
Variant = Literal["ours", "fcaf3d", "fcaf3d+decoder"]
BoxLoss = Literal["decoupled", "plain"]
TASKS = (
    *("detection", "continuous-detection", "monocular-detection", "occupancy", "continuous-occupancy"),
    *("grounding", "multi", "images"),
)


class SampleError(ValueError):
    """A sample that cannot be used: a missing image, a damaged file, a scene without depth.

    The loop puts another sample in its place, counts and names it, and stops when there are too many of them.

    Attributes:
        name: of the sample, as a person would look it up.
        reason: what is wrong with it.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both are arguments, so that it survives the way out of a worker process
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class SampleSource(Protocol):
    """The training samples of one epoch, in a fixed order. It is used in forked worker processes: no CUDA in here."""

    def __len__(self) -> int:
        """Samples in an epoch."""
        ...

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """Sample ``index`` in [0, len), augmented with ``rng`` and with nothing else that is random.

        Raises :class:`SampleError` when it is corrupt.
        """
        ...


class TrainingTask(Protocol):
    """A model, its data, its losses, its figures.

    Attributes:
        model: what is optimised: its parameters that require gradients. Its buffers are trained state as well.
        best_metric: the key of :meth:`validate` that chooses the best weights; higher is better.
    """

    model: nn.Module
    best_metric: str

    @property
    def samples(self) -> SampleSource:
        """Of the training split."""
        ...

    def collate(self, samples: Sequence[Any]) -> Any:
        """A batch from samples, in a worker process. Tensors inside lists, tuples, dicts, dataclasses or anything with
        ``.to(device)`` are moved to the device by the loop (:func:`to_device`)."""
        ...

    def losses(self, model: nn.Module, batch: Any, reduce: Reduce) -> Losses:
        """Named, weighted scalars whose sum is minimised.

        ``model`` is :attr:`model` in training mode. ``reduce`` is the mean of a value over processes (without
        gradient), for criteria's normalisers; every process has to call it equally often with equal shapes.
        Randomness: torch's only.
        """
        ...

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Figures of ``model`` (averaged weights, evaluation mode, no gradients are recorded), with
        :attr:`best_metric` among them. Called by the first process only. {} when there are no validation data."""
        ...

    def save_weights(self, path: Path, model: nn.Module, extra: Mapping[str, Any]) -> None:
        """Write the deployable file of ``model`` (averaged weights); ``extra`` holds plain values of the run (seed,
        steps, samples, command, version, figures). Raises ``OSError``."""
        ...


@dataclass(frozen=True)
class TaskRequest:
    """What ``build_task`` of :mod:`tasks` is asked for; a table's row is one of these.

    Attributes:
        task: one of :data:`TASKS`.
        preset: ``tiny``, ``base`` or ``paper``.
        data: folder of the training split.
        val: folder of the validation split (the same folder when it holds both); None = no validation.
        seed: of the initial weights.
        modality: what the network sees.
        variant: the network of the paper's comparison.
        box_loss: corners decoupled or plain.
        views: of a sample; 0 = the preset's default.
        truth_views: of a validation where more than ``views``: what is asked for is what so many views show, and a
            sample shows ``views`` of them. 0 = what the sample's own views show.
        weights: file to start from, or None.
        options: anything else, by name, as the command line's ``--set name=value`` gives it.
    """

    task: str
    preset: str
    data: Path
    val: Path | None = None
    seed: int = 0
    modality: Modality = "rgbd"
    variant: Variant = "ours"
    box_loss: BoxLoss = "decoupled"
    views: int = 0
    truth_views: int = 0
    weights: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}")


T = TypeVar("T")


def to_device(value: T, device: torch.device | str) -> T:
    """``value`` with everything inside that has ``.to`` moved; other leaves stay as they are."""
    out: Any
    if hasattr(value, "to"):
        out = value.to(device)
    elif isinstance(value, Mapping):
        out = {k: to_device(v, device) for k, v in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        out = type(value)(*(to_device(v, device) for v in value))
    elif isinstance(value, (list, tuple)):
        out = type(value)(to_device(v, device) for v in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = dataclasses.replace(
            value, **{f.name: to_device(getattr(value, f.name), device) for f in dataclasses.fields(value) if f.init}
        )
    else:
        out = value
    return cast(T, out)
