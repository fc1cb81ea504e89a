"""The processes of one training, as torchrun starts them; one process alone behaves like a group of one."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_WAIT = datetime.timedelta(hours=2)  # the others wait while the first one validates


@dataclass(frozen=True)
class Processes:
    """This process among its peers.

    Attributes:
        rank, world: position and number.
        device: that this process computes on.
    """

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @staticmethod
    def start(device: str = "cpu") -> Processes:
        """Join the group that torchrun describes in the environment, or stay alone when it did not start us.

        Raises ``ValueError`` when the device is not there.
        """
        world = int(os.environ.get("WORLD_SIZE", "1"))
        chosen = torch.device(device)
        if chosen.type == "cuda":
            if not torch.cuda.is_available():
                raise ValueError(f"device {device!r}: this installation sees no CUDA device")
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
        """Mean over processes, without gradient; the identity for one process. Shapes agree, precisions need not."""
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
        """``value`` of every process, by rank, in every process. It travels pickled, between our own processes only."""
        if self.world == 1:
            return [value]
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value)
        return out

    def from_first(self, value: Any) -> Any:
        """``value`` of the first process, in every process."""
        return self.gather(value if self.first else None)[0]
