"""Training samples in an order determined by the seed, from any position, divided among processes.

The order is one endless sequence: a permutation of the data set per epoch. A training's position is the number of
samples seen; batches may span epochs, so no sample is left out.
"""

from __future__ import annotations

import contextlib
import math
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from embodied_perceptron_training.datasets.embodiedscan import DatasetError
from embodied_perceptron_training.training.nested import map_tensors
from embodied_perceptron_training.training.task import SampleError, SampleSource

Place = tuple[int, int]  # (epoch, index)
_SUBSTITUTES = 20


@dataclass(frozen=True)
class Corrupt:
    """An unusable sample."""

    epoch: int
    name: str
    reason: str


@dataclass(frozen=True)
class Fetched:
    """A collated batch (None without a usable sample), the places of its samples, and the skipped ones."""

    data: Any
    places: tuple[Place, ...]
    corrupt: tuple[Corrupt, ...]

    def pin_memory(self) -> Fetched:
        """The batch with its tensors in pinned memory; called by the loader."""
        return replace(self, data=map_tensors(self.data, torch.Tensor.pin_memory))


# not torch's DistributedSampler, which begins at epochs only, pads their ends, and cannot resume
class Order(Sampler[list[Place]]):
    """Batches of this process, endlessly.

    Args:
        samples: of an epoch.
        batch: samples per process.
        seed: of the order.
        start: samples that all processes together have seen.
        rank, world: of the process; it takes the rank-th part of every common batch.
    """

    def __init__(self, samples: int, batch: int, seed: int, start: int = 0, rank: int = 0, world: int = 1) -> None:
        if samples < 1:
            raise ValueError("the training split has no samples")
        self.samples, self.batch, self.seed, self.start = samples, batch, seed, start
        self.rank, self.world = rank, world

    def __iter__(self) -> Iterator[list[Place]]:
        epoch, order = -1, np.zeros(0, np.int64)
        first = self.start + self.rank * self.batch
        while True:
            places = []
            for position in range(first, first + self.batch):
                if position // self.samples != epoch:
                    epoch = position // self.samples
                    order = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
                places.append((epoch, int(order[position % self.samples])))
            yield places
            first += self.batch * self.world


class _Samples(Dataset[Any]):
    """(epoch, index) -> (sample, its place, skipped samples)."""

    def __init__(self, source: SampleSource, seed: int) -> None:
        self.source, self.seed = source, seed

    def __getitem__(self, place: Place) -> tuple[Any, Place, list[Corrupt]]:
        epoch, index = place
        corrupt: list[Corrupt] = []
        for attempt in range(_SUBSTITUTES):
            rng = np.random.default_rng([self.seed, epoch, index, attempt])
            chosen = index if attempt == 0 else int(rng.integers(len(self.source)))
            try:
                return self.source.sample(chosen, rng), (epoch, chosen), corrupt
            except SampleError as error:
                corrupt.append(Corrupt(epoch, error.name, error.reason))
            except (DatasetError, OSError) as error:
                corrupt.append(Corrupt(epoch, f"sample {chosen}", str(error)))
        return None, place, corrupt


class _Collate:
    def __init__(self, collate: Callable[[Sequence[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, items: list[tuple[Any, Place, list[Corrupt]]]) -> Fetched:
        samples = [sample for sample, _, _ in items]
        return Fetched(
            None if any(sample is None for sample in samples) else self.collate(samples),
            tuple(place for _, place, _ in items),
            tuple(c for _, _, corrupt in items for c in corrupt),
        )


def _start_worker(_worker: int) -> None:
    """Ignore the signals that stop a training: the loop answers them and ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextlib.contextmanager
def sample_stream(
    source: SampleSource,
    collate: Callable[[Sequence[Any]], Any],
    order: Order,
    workers: int,
    device: torch.device | None = None,
) -> Iterator[Iterator[Fetched]]:
    """Batches in ``order``, loaded ahead by ``workers`` processes (0 = none), which end with the context.

    ``device``: target of the batches; those for a CUDA device are in pinned memory, for asynchronous copies.
    """
    loader: DataLoader[Fetched] = DataLoader(
        _Samples(source, order.seed),
        batch_sampler=order,
        collate_fn=_Collate(collate),
        num_workers=workers,
        worker_init_fn=_start_worker if workers else None,
        prefetch_factor=3 if workers else None,
        pin_memory=device is not None and device.type == "cuda",
    )
    batches: Any = iter(loader)
    try:
        yield batches
    finally:
        if workers:
            # not left to the garbage collector: at exit Python would send them SIGTERM, which they ignore, and wait
            processes = list(batches._workers)
            batches._shutdown_workers()
            for process in processes:
                if process.is_alive():
                    process.kill()


def repeat_factor_order(classes: Sequence[set[str]], share: float) -> list[int]:
    """Repeat-factor sampling (Gupta, Dollar, Girshick, LVIS, CVPR 2019): classes of every scene -> scenes of one epoch.

    A scene is repeated ``sqrt(share / f)`` times, at least once, where ``f`` is the share of scenes with the rarest of
    its classes. Fractions add up along the scenes, so that the total is right to one.
    """
    count = Counter(name for scene in classes for name in scene)
    order: list[int] = []
    due = 0.0
    for index, scene in enumerate(classes):
        rarest = min((count[name] for name in scene), default=len(classes)) / len(classes)
        due += max(1.0, math.sqrt(share / rarest))
        while len(order) + 1 <= due + 1e-9:
            order.append(index)
    return order
