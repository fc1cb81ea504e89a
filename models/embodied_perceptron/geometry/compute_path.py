"""Choice between two implementations with the same results: compiled CPU loops, and tensor operations for any device.

Tensors on the CPU use the loops, all others the operations. Within :func:`device_path` tensors on the CPU use the
operations too, so that tests can check and count what a GPU would run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
