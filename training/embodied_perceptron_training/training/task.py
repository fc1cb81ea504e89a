"""The interface between the training loop (:mod:`.trainer`) and a task. The loop knows nothing of voxels, boxes, text.

Exact resume and distributed training rest on one rule: **a sample is a pure function of its index and its random
generator**. The loop draws the order of the samples from (seed, epoch), gives sample ``index`` of ``epoch`` the
generator of (seed, epoch, index), and seeds torch before every step from (seed, step, rank). So no random state is
stored, and N processes see the samples of one process with the N-fold batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from torch import nn

from embodied_perceptron_training.training.criteria import Losses, Reduce


class SampleError(ValueError):
    """An unusable sample: a missing image, a damaged file, a scene without depth.

    The loop replaces it, counts and names it, and stops when there are too many of them.

    Attributes:
        name: of the sample, for people.
        reason: the fault.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)  # both are arguments, so that it survives the way out of a worker process
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class SampleSource(Protocol):
    """The training samples of one epoch, in a fixed order. Used in forked worker processes, so without CUDA."""

    def __len__(self) -> int:
        """Samples in an epoch."""
        ...

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """Sample ``index`` in [0, len), augmented with ``rng`` as the only source of randomness.

        Raises :class:`SampleError` when it is corrupt.
        """
        ...


_Source = TypeVar("_Source", bound=SampleSource)


class JoinedSources(Generic[_Source]):
    """Several sources, one after the other.

    Attributes:
        sources: in order.
        scenes: of each sample, its source and its index there.
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
    """A model, its data, losses and figures.

    Attributes:
        model: trained are its parameters that require gradients; its buffers are part of the state.
        best_metric: the key of :meth:`validate` that selects the best weights; higher is better.
    """

    model: nn.Module
    best_metric: str

    @property
    def samples(self) -> SampleSource:
        """Of the training split."""
        ...

    def collate(self, samples: Sequence[Any]) -> Any:
        """A batch from samples, in a worker process. The loop (:mod:`.nested`) moves tensors inside lists, tuples,
        dicts, dataclasses or objects with ``.to(device)`` to the device."""
        ...

    def losses(self, model: nn.Module, batch: Any, reduce: Reduce) -> Losses:
        """Named, weighted scalars whose sum is minimised.

        ``model`` is :attr:`model` in training mode. ``reduce`` is the mean of a value over processes (without
        gradient), for normalisers; every process has to call it equally often with equal shapes. Randomness: torch's
        only.
        """
        ...

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Figures of ``model`` (averaged weights, evaluation mode, without gradients), :attr:`best_metric` included; {}
        without validation data. Called by the first process only."""
        ...

    def save_weights(self, path: Path, model: nn.Module, extra: Mapping[str, Any]) -> None:
        """Write the deployable file of ``model`` (averaged weights); ``extra`` holds plain values of the run (seed,
        steps, samples, command, version, figures). Raises ``OSError``."""
        ...
