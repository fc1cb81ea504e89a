"""One optimisation step: forward and backward passes, precision, gradients shared by processes, averaged weights."""

from __future__ import annotations

import contextlib
import copy
import datetime
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from embodied_perceptron.mapping.devices import NO_WARP, resolve_device
from embodied_perceptron_training.training.criteria import Losses, same
from embodied_perceptron_training.training.data_order import Corrupt, Fetched, Place
from embodied_perceptron_training.training.nested import to_device
from embodied_perceptron_training.training.task import TrainingTask
from embodied_perceptron_training.training.training_run import OptimisationConfig, Precision

_WAIT = datetime.timedelta(hours=2)  # the others wait while the first one validates


@dataclass(frozen=True)
class Processes:
    """This process among its peers, as started by torchrun; a single one needs no process group (torch.distributed has
    no mean without gradient, and no group without a rendezvous)."""

    rank: int = 0  # of this process
    world: int = 1  # number of processes
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))  # of this process

    @staticmethod
    def start(device: str = "cpu") -> Processes:
        """Join the group that torchrun describes in the environment, or stay alone without one.

        Raises ``ValueError`` when the device does not exist.
        """
        world = int(os.environ.get("WORLD_SIZE", "1"))
        device = resolve_device(device, "training device").type if device == "auto" else device
        chosen = torch.device(device)
        if chosen.type == "cuda":
            if not torch.cuda.is_available():
                raise ValueError(f"device {device!r}: this installation sees no CUDA device")
            if NO_WARP:
                raise ValueError(f"device {device!r}: {NO_WARP}")
            if ":" not in device:
                chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            if chosen.index >= torch.cuda.device_count():
                raise ValueError(f"device {chosen} does not exist; there are {torch.cuda.device_count()}")
            torch.cuda.set_device(chosen)
        if world == 1:
            return Processes(0, 1, chosen)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=_WAIT)
        return Processes(dist.get_rank(), dist.get_world_size(), chosen)

    def stop(self) -> None:
        """Leave the group."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def first(self) -> bool:
        return self.rank == 0

    def mean(self, value: Tensor) -> Tensor:
        """Mean over processes, without gradient; the identity for one process. Shapes must agree, precisions need
        not."""
        if self.world == 1:
            return value.detach()
        out = value.detach().to(torch.float64)
        dist.all_reduce(out)
        return (out / self.world).to(value.dtype)

    def total(self, values: list[float]) -> list[float]:
        """Element-wise sums over processes."""
        if self.world == 1:
            return values
        out = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(out)
        return [float(v) for v in out.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """``value`` of every process, by rank, in every process. It is pickled, between own processes only."""
        if self.world == 1:
            return [value]
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value)
        return out

    def from_first(self, value: Any) -> Any:
        """``value`` of the first process, in every process."""
        values = [value]
        if self.world > 1:
            dist.broadcast_object_list(values)
        return values[0]


# -- parameters


class AveragedModel:
    """Exponential moving average of parameters and floating-point buffers; other buffers are copied.

    The decay rises with the number of updates, ``min(decay, (1 + n) / (10 + n))``, so that the first weights are soon
    forgotten. Updates are counted on the host, to avoid a synchronisation (torch's own ``AveragedModel`` counts on the
    device).

    Args:
        model: whose weights are averaged, beginning with the present ones.
        decay: the highest; 0 = the average is the current model.

    Attributes:
        module: the averaged copy, in evaluation mode, without gradients.
        updates: their number.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.updates = 0
        self._decay = decay

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Average in the present weights of ``model``."""
        self.updates += 1
        n = self.updates
        weight = 1.0 - min(self._decay, (1 + n) / (10 + n)) if self._decay else 1.0
        theirs = _by_precision(model)
        for dtype, mine in _by_precision(self.module).items():
            if dtype.is_floating_point and weight < 1.0:
                torch._foreach_lerp_(mine, theirs[dtype], weight)
            else:
                torch._foreach_copy_(mine, theirs[dtype])


def _by_precision(model: nn.Module) -> dict[torch.dtype, list[Tensor]]:
    """Parameters, then buffers, grouped by precision."""
    return grouped(itertools.chain(model.parameters(), model.buffers()))


def grouped(tensors: Iterable[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    """Tensors grouped by precision, for operations on many at once."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor.detach())
    return groups


class SavedBuffers:
    """A copy of a model's buffers, to be restored when a step is skipped."""

    def __init__(self, model: nn.Module) -> None:
        self._groups = list(grouped(model.buffers()).values())
        self._saved = [torch.cat([b.reshape(-1) for b in group]) for group in self._groups]

    def restore(self) -> None:
        """Restore the buffers."""
        for group, saved in zip(self._groups, self._saved, strict=True):
            parts = saved.split([b.numel() for b in group])
            torch._foreach_copy_(group, [p.view_as(b) for p, b in zip(parts, group, strict=True)])


def parameter_groups(
    model: nn.Module, weight_decay: float, rate_scales: tuple[tuple[str, float], ...]
) -> list[dict[str, Any]]:
    """Groups for AdamW: by factor of the learning rate (``scale``) and weight decay.

    Vectors and scalars (biases, norms) do not decay. Raises ``ValueError`` when nothing is trained or a prefix matches
    no parameter.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    used = set()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scale = 1.0
        for prefix, factor in rate_scales:
            if name.startswith(prefix):
                scale = factor
                used.add(prefix)
                break
        decay = weight_decay if parameter.ndim > 1 else 0.0
        groups.setdefault((scale, decay), []).append(parameter)
    unused = sorted({prefix for prefix, _ in rate_scales} - used)
    if unused:
        raise ValueError(f"rate_scales: no parameter that learns starts with {', '.join(unused)}")
    if not groups:
        raise ValueError("no parameter of the model requires a gradient")
    return [
        {"params": parameters, "weight_decay": decay, "scale": scale} for (scale, decay), parameters in groups.items()
    ]


# -- forward and backward passes


@dataclass
class StepResult:
    """Losses and incidents of one step."""

    terms: dict[str, Tensor] = field(default_factory=dict)  # losses of this process, means over its passes
    places: list[Place] = field(default_factory=list)  # of its samples
    corrupt: list[Corrupt] = field(default_factory=list)  # skipped samples
    waited_s: float = 0.0  # for data
    complete: bool = True  # False without a usable sample; there is no gradient then


class ForwardBackward:
    """Compute the gradients of a step's batches.

    Args:
        task: its model, on this process's device.
        config: accumulation and precision.
        processes: that average the gradient.
    """

    def __init__(self, task: TrainingTask, config: OptimisationConfig, processes: Processes) -> None:
        self.accumulate = config.accumulate
        self.device = processes.device
        self.autocast, self.scaler = _precision(config, processes.device)
        self._losses: nn.Module = _Losses(task, processes)
        if processes.world > 1:
            # parameters of heads that a batch does not reach have no gradient
            devices = [self.device] if self.device.type == "cuda" else None
            self._losses = DistributedDataParallel(self._losses, device_ids=devices, find_unused_parameters=True)

    def run(self, batches: Iterator[Fetched]) -> StepResult:
        """Forward and backward over the next ``accumulate`` batches."""
        result = StepResult()
        for part in range(self.accumulate):
            asked = time.monotonic()
            fetched = next(batches)
            result.waited_s += time.monotonic() - asked
            result.corrupt += fetched.corrupt
            result.places += fetched.places
            if fetched.data is None:
                result.complete = False
                return result
            with self._share(last=part == self.accumulate - 1):
                with self.autocast():
                    found: Losses = self._losses(to_device(fetched.data, self.device))
                total = torch.stack([v.float() for v in found.values()]).sum() / self.accumulate
                self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
            for name, value in found.items():
                share = value.detach().float() / self.accumulate if self.accumulate > 1 else value.detach().float()
                result.terms[name] = result.terms[name] + share if name in result.terms else share
        return result

    def _share(self, last: bool) -> AbstractContextManager[None]:
        """Average gradients over processes in the last pass only."""
        if isinstance(self._losses, DistributedDataParallel) and not last:
            return self._losses.no_sync()
        return contextlib.nullcontext()


class _Losses(nn.Module):
    """The task's losses as the forward pass of a module, for distributed training."""

    def __init__(self, task: TrainingTask, processes: Processes) -> None:
        super().__init__()
        self.model = task.model
        self._task = (task,)  # in a tuple, so that a task that is a module does not register twice
        self._reduce = processes.mean if processes.world > 1 else same

    def forward(self, batch: Any) -> Losses:
        return self._task[0].losses(self.model, batch, self._reduce)


def _precision(
    config: OptimisationConfig, device: torch.device
) -> tuple[Callable[[], AbstractContextManager[Any]], torch.amp.GradScaler]:
    """A maker of autocast contexts and the gradient scaler (disabled without float16)."""
    chosen: Precision = config.precision
    if chosen == "auto":
        half = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        chosen = "float32" if device.type != "cuda" else ("bfloat16" if half else "float16")
    scaler = torch.amp.GradScaler(device.type, enabled=chosen == "float16" and device.type == "cuda")
    if chosen == "float32":
        return contextlib.nullcontext, scaler
    dtype = torch.bfloat16 if chosen == "bfloat16" else torch.float16
    return (lambda: torch.autocast(device.type, dtype)), scaler
