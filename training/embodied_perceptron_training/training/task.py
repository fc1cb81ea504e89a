"""The interface between the training loop and a task. The loop (:mod:`.trainer`) knows nothing of voxels, boxes, text.

Exact resume and distributed training rest on one rule: **a sample is a pure function of its index and its random
generator**. The loop draws the order of the samples from (seed, epoch), gives sample ``index`` of ``epoch`` the
generator of (seed, epoch, index), and seeds torch before every step from (seed, step, rank). So nothing about
randomness has to be stored, and N processes see the samples of one process with the N-fold batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from torch import nn

from embodied_perceptron_training.training.losses import Losses, Reduce


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


_Source = TypeVar("_Source", bound=SampleSource)


class JoinedSources(Generic[_Source]):
    """Several sources, one after the other.

    Attributes:
        sources: in order.
        scenes: of each sample, its source and its number there.
    """

    def __init__(self, sources: Sequence[_Source]) -> None:
        self.sources = tuple(sources)
        self.scenes = [(source, index) for source in sources for index in range(len(source))]

    def __len__(self) -> int:
        return len(self.scenes)

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """See :class:`SampleSource`."""
        source, own = self.scenes[index]
        return source.sample(own, rng)


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
        ``.to(device)`` are moved to the device by the loop (:mod:`.nested`)."""
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
