"""Choice between two implementations with the same results: compiled CPU loops, and tensor operations for any device.

Tensors on the CPU use the loops, all others the operations. Within :func:`device_path` tensors on the CPU use the
operations too, so that tests can check and count what a GPU would run. Some of them are kernels in NVIDIA Warp, which
every GPU needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

_DEVICE_PATH: ContextVar[bool] = ContextVar("device_path", default=False)


def runs_compiled(*tensors: torch.Tensor) -> bool:
    """Return True when compiled loops compute with these tensors, so that reading their values never waits."""
    return not _DEVICE_PATH.get() and all(t.device.type == "cpu" for t in tensors)


@contextmanager
def device_path() -> Iterator[None]:
    """Make this thread compute by tensor operations as on a device, wherever its tensors are."""
    token = _DEVICE_PATH.set(True)
    try:
        yield
    finally:
        _DEVICE_PATH.reset(token)


def launch(kernel: Any, dim: int | Sequence[int], *inputs: Any, device: torch.device | None = None) -> None:
    """Launch a Warp kernel on torch's stream of a device; None = that of the first input. Tensors and other inputs are
    passed on as they are."""
    import warp as wp

    device = inputs[0].device if device is None else device
    stream = wp.stream_from_torch(torch.cuda.current_stream(device)) if device.type == "cuda" else None
    given = [wp.from_torch(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    wp.launch(kernel, dim, inputs=given, device=wp.device_from_torch(device), stream=stream)
