"""Products of numbers with fewer digits, as tensor cores of a GPU compute them, emulated on any device."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ProductFormat = Literal["float32", "tf32", "bfloat16", "float16"]
# operations that multiply, and which of their arguments are factors
_FACTORS = {
    "mm": slice(0, 2), "bmm": slice(0, 2), "convolution": slice(0, 2),
    "addmm": slice(1, 3), "baddbmm": slice(1, 3), "_addmm_activation": slice(1, 3),
}  # fmt: skip
_TF32_DROPPED = 13  # of the 23 bits of a float32's fraction


class _Rounded(TorchDispatchMode):
    """Round the factors of float32 products; sums keep float32, as on tensor cores."""

    def __init__(self, to: ProductFormat) -> None:
        super().__init__()
        self._to = to

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        factors = _FACTORS.get(func._schema.name.split("::")[1].rstrip("_"))
        if factors is not None:
            given = list(args)
            given[factors] = [rounded(x, self._to) if x.dtype == torch.float32 else x for x in given[factors]]
            args = given
        return func(*args, **(kwargs or {}))


def rounded(values: Tensor, to: ProductFormat) -> Tensor:
    """Float32 numbers that have a value in the format ``to``; infinite where it is too short (float16)."""
    if to == "tf32":
        half = 1 << (_TF32_DROPPED - 1)
        return (values.view(torch.int32).add(half) & -(1 << _TF32_DROPPED)).view(torch.float32)
    return values.to(getattr(torch, to)).float()


def products_in(to: ProductFormat) -> contextlib.AbstractContextManager[Any]:
    """Round the factors of products in this thread to a format inside of the context."""
    return contextlib.nullcontext() if to == "float32" else _Rounded(to)
