"""A device named "gpu" whose memory is the host's: operations between it and the host fail as on a CUDA device.

    with fake_gpu():
        x = torch.ones(3, device="gpu") + torch.ones(3)    # RuntimeError: two devices
        x.numpy()                                          # an error too

Numbers without dimensions on the host are allowed beside it, as with CUDA. Warp's kernels run on the CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from embodied_perceptron.inference import loading
from embodied_perceptron.mapping import volume
from embodied_perceptron.mapping.devices import resolve_device

_BETWEEN = {"copy_", "_to_copy", "_foreach_copy_"}  # devices
_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}  # which CUDA uploads by itself


@cache
def _registered() -> torch.device:
    module = backend_registration._DummyBackendModule()
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # type: ignore[attr-defined]
    backend_registration._setup_privateuseone_for_python_backend("gpu", module)
    return torch.device("gpu", 0)


class GpuTensor(torch.Tensor):
    """Tensor on the fake device. ``inner``: its memory, a tensor on the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> GpuTensor:
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=_registered(),
        )  # fmt: skip
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, values: Any, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype or self.dtype).to(self.device)

    def __deepcopy__(self, memo: Any) -> Any:
        return torch.nn.Parameter(self.detach().clone(), self.requires_grad) if self.is_leaf else self.clone()

    def __repr__(self, **_: Any) -> str:
        return f"gpu {self.inner}"


class _Operations(TorchDispatchMode):
    """Factories, which have no tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        with _Operations():
            return func.decompose(*args, **kwargs)
    name = func._schema.name.split("::")[1]
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, GpuTensor)]
    if there and name not in _BETWEEN:
        checked = [args[0], *tree_leaves(args[2:])] if name in _INDICES else tensors
        for x in checked:
            if isinstance(x, torch.Tensor) and x.ndim and not isinstance(x, GpuTensor):
                raise RuntimeError(f"{func}: expected all tensors on one device, found cpu and gpu")
    elif name in _INDICES and any(isinstance(x, GpuTensor) for x in tree_leaves(args[1:])):
        raise RuntimeError(f"{func}: indices on gpu of a tensor on cpu")
    on_gpu = bool(there)
    if kwargs.get("device") is not None:
        on_gpu = torch.device(kwargs["device"]).type == "gpu"
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if name == "copy_":
        on_gpu = isinstance(args[0], GpuTensor)
    memory = {id(x.inner): x for x in there}  # results in place stay the same tensors

    def outer(x: Any) -> Any:
        return memory.get(id(x), GpuTensor(x) if on_gpu else x) if isinstance(x, torch.Tensor) else x

    with torch.inference_mode(False), torch.no_grad():  # wrapped tensors cannot be those of inference
        return tree_map(outer, func(*tree_map(_inner, args), **tree_map(_inner, kwargs)))


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, GpuTensor) else x


@contextlib.contextmanager
def fake_gpu() -> Iterator[torch.device]:
    """Compute with the device "gpu" inside of the context; "auto" is this device."""
    import warp as wp

    device, from_torch, to_torch = _registered(), wp.from_torch, wp.to_torch

    def resolve(name: str, what: str = "device") -> torch.device:
        return device if name.startswith(("auto", "gpu")) else resolve_device(name, what)

    def warp_device(place: torch.device) -> wp.Device:
        return [wp.get_device("cpu")][place.index or 0 if place.type == "cpu" else place.index]  # as Warp does

    def on(make: Any) -> Any:
        """torch's own constructors from numbers leave the dispatcher out."""

        def made(values: Any, *args: Any, device: Any = None, **options: Any) -> torch.Tensor:
            x: torch.Tensor = make(values, *args, **options)
            return x if device is None else x.to(device)

        return made

    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(wp, "from_torch", lambda x, *a, **k: from_torch(_inner(x), *a, **k)))
        stack.enter_context(patch.object(wp, "to_torch", lambda x, *a, **k: GpuTensor(to_torch(x, *a, **k))))
        stack.enter_context(patch.object(wp, "device_from_torch", warp_device))
        for module in (loading, volume):
            stack.enter_context(patch.object(module, "resolve_device", resolve))
        for name in ("tensor", "as_tensor"):
            stack.enter_context(patch.object(torch, name, on(getattr(torch, name))))
        stack.enter_context(_Operations())
        yield device
