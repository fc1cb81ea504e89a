"""One step of optimization: forward and backward passes, accumulation, precision, shared gradients; averaged
weights."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from embodied_perceptron_training.training.data_order import Corrupt, Fetched, Place
from embodied_perceptron_training.training.processes import Processes
from embodied_perceptron_training.training.settings import TrainSettings
from embodied_perceptron_training.training.task import Losses, TrainingTask, to_device

# --------------------------------------------------------------------------------------------------------------------
# Averaged weights: what is validated and deployed.


class AveragedModel:
    """An exponential moving average of parameters and of floating-point buffers; other buffers are copied.

    The decay rises with the number of updates, ``min(decay, (1 + n) / (10 + n))``, so that the first weights are
    forgotten soon.

    Attributes:
        model: the averaged copy, in evaluation mode, without gradients.
        updates: how many there were.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards ``model``."""
        self.updates += 1
        weight = 1.0 - min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.decay else 1.0
        mine: list[Tensor] = []
        theirs: list[Tensor] = []
        copied: list[Tensor] = []
        sources: list[Tensor] = []
        for own, other in zip(_tensors(self.model), _tensors(model), strict=True):
            if own.is_floating_point() and weight < 1.0:
                mine.append(own)
                theirs.append(other)
            else:
                copied.append(own)
                sources.append(other)
        if mine:
            torch._foreach_lerp_(mine, theirs, weight)
        if copied:
            torch._foreach_copy_(copied, sources)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*(p.detach() for p in model.parameters()), *model.buffers()]


# --------------------------------------------------------------------------------------------------------------------
# Forward and backward passes of one step: accumulation, precision, and processes that share the gradient.


@dataclass
class StepResult:
    """What one step's passes met.

    Attributes:
        terms: losses of this process, means over its passes.
        places: of its samples.
        corrupt: samples that were skipped.
        waited_s: for data.
        complete: false when no usable sample was found; there is no gradient then.
    """

    terms: dict[str, float] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    corrupt: list[Corrupt] = field(default_factory=list)
    waited_s: float = 0.0
    complete: bool = True


class ForwardBackward:
    """Adds the gradients of a step's batches.

    Args:
        task: its model, on this process's device.
        settings: accumulation and precision.
        processes: with whom the gradient is averaged.
    """

    def __init__(self, task: TrainingTask, settings: TrainSettings, processes: Processes) -> None:
        self.accumulate = settings.accumulate
        self.device = processes.device
        self.autocast, self.scaler = _precision(settings, processes.device)
        self._losses: nn.Module = _Losses(task, processes)
        if processes.world > 1:
            # parameters of heads that a batch does not reach have no gradient
            devices = [self.device] if self.device.type == "cuda" else None
            self._losses = DistributedDataParallel(self._losses, device_ids=devices, find_unused_parameters=True)

    def run(self, batches: Iterator[Fetched]) -> StepResult:
        """Forward and backward over the next ``accumulate`` batches."""
        passed = StepResult()
        for part in range(self.accumulate):
            asked = time.monotonic()
            fetched = next(batches)
            passed.waited_s += time.monotonic() - asked
            passed.corrupt += fetched.corrupt
            passed.places += fetched.places
            if fetched.data is None:
                passed.complete = False
                return passed
            with self._share(last=part == self.accumulate - 1):
                with self.autocast():
                    found: Losses = self._losses(to_device(fetched.data, self.device))
                total = torch.stack([v.float() for v in found.values()]).sum() / self.accumulate
                self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
            for name, value in found.items():
                passed.terms[name] = passed.terms.get(name, 0.0) + float(value.detach()) / self.accumulate
        return passed

    def _share(self, last: bool) -> AbstractContextManager[None]:
        """Gradients are averaged over processes in the last pass only."""
        if isinstance(self._losses, DistributedDataParallel) and not last:
            return self._losses.no_sync()
        return contextlib.nullcontext()


class _Losses(nn.Module):
    """The task's losses as a module's forward pass, as distributed training wants it."""

    def __init__(self, task: TrainingTask, processes: Processes) -> None:
        super().__init__()
        self.model = task.model
        self._task = (task,)  # in a tuple, so that a task that is a module does not register twice
        self._reduce = processes.mean

    def forward(self, batch: Any) -> Losses:
        return self._task[0].losses(self.model, batch, self._reduce)


def _precision(
    settings: TrainSettings, device: torch.device
) -> tuple[Callable[[], AbstractContextManager[Any]], torch.amp.GradScaler]:
    """A maker of autocast contexts and the scaler of gradients (which does nothing without float16)."""
    chosen = settings.precision
    if chosen == "auto":
        half = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        chosen = "float32" if device.type != "cuda" else ("bfloat16" if half else "float16")
    scaler = torch.amp.GradScaler(device.type, enabled=chosen == "float16" and device.type == "cuda")
    if chosen == "float32":
        return contextlib.nullcontext, scaler
    dtype = torch.bfloat16 if chosen == "bfloat16" else torch.float16
    return (lambda: torch.autocast(device.type, dtype)), scaler
