"""Map tensors inside of lists, tuples, dicts and dataclasses: to a device, to pinned memory, to float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")


def to_device(value: T, device: torch.device | str) -> T:
    """``value`` with everything that has ``.to`` moved; other leaves are not changed. Copies from pinned memory are
    asynchronous."""
    return _mapped(value, "to", lambda x: x.to(device, non_blocking=True) if isinstance(x, Tensor) else x.to(device))


def map_tensors(value: T, function: Callable[[Tensor], Tensor]) -> T:
    """``value`` with ``function`` of every tensor; other leaves are not changed."""
    return _mapped(value, "", function)


def _mapped(value: T, method: str, function: Callable[[Any], Any]) -> T:
    """Apply ``function`` to tensors, and to objects with ``method``."""
    out: Any
    if isinstance(value, Tensor) or (method and hasattr(value, method)):
        out = function(value)
    elif isinstance(value, Mapping):
        out = {k: _mapped(v, method, function) for k, v in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        out = type(value)(*(_mapped(v, method, function) for v in value))
    elif isinstance(value, (list, tuple)):
        out = type(value)(_mapped(v, method, function) for v in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.init]
        out = dataclasses.replace(value, **{f: _mapped(getattr(value, f), method, function) for f in fields})
    else:
        out = value
    return cast(T, out)
