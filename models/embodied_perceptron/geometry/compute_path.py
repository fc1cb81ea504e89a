"""Which of two twins computes: loops compiled for the CPU, or tensor operations that every device has.

Each fast path has both, and both give the same. Tensors of the CPU take the loops, all others the operations; within
:func:`device_path` those of the CPU take the operations too, so that what a GPU would be asked for can be tested and
counted where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_OPERATIONS_ALONE: ContextVar[bool] = ContextVar("operations_alone", default=False)


def takes_loops(*tensors: torch.Tensor) -> bool:
    """Whether the compiled loops compute with these tensors."""
    return not _OPERATIONS_ALONE.get() and all(t.device.type == "cpu" for t in tensors)


@contextmanager
def device_path() -> Iterator[None]:
    """This thread computes as on a device, by tensor operations alone, wherever its tensors are."""
    token = _OPERATIONS_ALONE.set(True)
    try:
        yield
    finally:
        _OPERATIONS_ALONE.reset(token)
