"""Who does the arithmetic of sparse layers.

Sites are derived by this package in every case; an engine only computes features at given sites. So engines differ in
rounding, never in which voxels come out.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any, Literal, Protocol

import torch
from torch.autograd.function import once_differentiable

from embodied_perceptron.sparse.kernel_map import KernelMap
from embodied_perceptron.sparse.tensor import Sites

EngineName = Literal["auto", "torch", "minkowski"]


class Engine(Protocol):
    """Arithmetic on sites; both methods are differentiable in ``feats`` and ``kernel``."""

    name: str

    def convolve(
        self,
        feats: torch.Tensor,
        kernel: torch.Tensor,
        in_sites: Sites,
        out_sites: Sites,
        kernel_size: int,
        transposed: bool,
    ) -> torch.Tensor:
        """(N_in, Cin) features, (K, Cin, Cout) kernel -> (N_out, Cout); zero where no input is in reach.

        Not transposed: ``out[o] = sum_k feats[o + offset_k * stride_in] @ kernel[k]``. Transposed:
        ``out[i + offset_k * stride_out] += feats[i] @ kernel[k]``.
        """
        ...

    def max_pool(self, feats: torch.Tensor, in_sites: Sites, out_sites: Sites, kernel_size: int) -> torch.Tensor:
        """(N_in, C) -> (N_out, C) maximum over the inputs in reach; zero where there is none. NaN stays NaN."""
        ...


class TorchEngine:
    """Plain PyTorch on any device: per kernel offset gather, multiply, add into place."""

    name = "torch"

    def convolve(
        self,
        feats: torch.Tensor,
        kernel: torch.Tensor,
        in_sites: Sites,
        out_sites: Sites,
        kernel_size: int,
        transposed: bool,
    ) -> torch.Tensor:
        if transposed:
            kernel_map = out_sites.kernel_map(in_sites, kernel_size).transposed()
        else:
            kernel_map = in_sites.kernel_map(out_sites, kernel_size)
        result: torch.Tensor = _Convolution.apply(feats, kernel, kernel_map)  # type: ignore[no-untyped-call]
        return result

    def max_pool(self, feats: torch.Tensor, in_sites: Sites, out_sites: Sites, kernel_size: int) -> torch.Tensor:
        kernel_map = in_sites.kernel_map(out_sites, kernel_size)
        result: torch.Tensor = _MaxPool.apply(feats, kernel_map)  # type: ignore[no-untyped-call]
        return result


@cache
def get_engine(name: EngineName = "auto", device_type: str = "cpu") -> Engine:
    """``auto`` is MinkowskiEngine where it is installed and built for the device, plain PyTorch elsewhere.

    Raises ``ImportError`` when MinkowskiEngine is asked for and missing, or installed and broken: a broken installation
    is reported, never passed over. ``ValueError`` for an unknown name, or when its build lacks the device asked for.
    """
    if name not in ("auto", "torch", "minkowski"):
        raise ValueError(f"engine must be auto, torch or minkowski, got {name!r}")
    if name == "torch" or (name == "auto" and importlib.util.find_spec("MinkowskiEngine") is None):
        return TorchEngine()
    from embodied_perceptron.sparse.minkowski import MinkowskiEngineAdapter, supports

    if supports(device_type):
        return MinkowskiEngineAdapter()
    if name == "auto":
        return TorchEngine()
    raise ValueError(f"this build of MinkowskiEngine does not support device {device_type}")


class _Convolution(torch.autograd.Function):
    """Keeps only its inputs for the backward pass, not the gathered rows."""

    @staticmethod
    def forward(ctx: Any, feats: torch.Tensor, kernel: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        ctx.save_for_backward(feats, kernel)
        ctx.kernel_map = kernel_map
        if kernel_map.identity is not None:
            out = feats @ kernel[kernel_map.identity]
        else:
            out = feats.new_zeros(kernel_map.n_out, kernel.shape[2])
        for k, (in_rows, out_rows) in enumerate(kernel_map.pairs):
            if k != kernel_map.identity and len(in_rows):
                out.index_add_(0, out_rows, feats[in_rows] @ kernel[k])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        feats, kernel = ctx.saved_tensors
        kernel_map: KernelMap = ctx.kernel_map
        grad_feats = torch.zeros_like(feats) if ctx.needs_input_grad[0] else None
        grad_kernel = torch.zeros_like(kernel) if ctx.needs_input_grad[1] else None
        for k, (in_rows, out_rows) in enumerate(kernel_map.pairs):
            if not len(in_rows):
                continue
            grad_rows = grad_out if k == kernel_map.identity else grad_out[out_rows]
            if grad_feats is not None:
                grad_feats.index_add_(0, in_rows, grad_rows @ kernel[k].t())
            if grad_kernel is not None:
                rows = feats if k == kernel_map.identity else feats[in_rows]
                grad_kernel[k] = rows.t() @ grad_rows
        return grad_feats, grad_kernel, None


class _MaxPool(torch.autograd.Function):
    """The gradient goes to the first input, in kernel order, that attains the maximum."""

    @staticmethod
    def forward(ctx: Any, feats: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        out = feats.new_full((kernel_map.n_out, feats.shape[1]), -torch.inf)
        winner = torch.full_like(out, -1, dtype=torch.int64) if ctx.needs_input_grad[0] else None
        for in_rows, out_rows in kernel_map.pairs:
            if not len(in_rows):
                continue
            candidate = feats[in_rows]
            best = out[out_rows]
            if winner is not None:
                better = (candidate > best) | (candidate.isnan() & ~best.isnan())
                first = winner[out_rows]
                winner[out_rows] = torch.where(better | (first < 0), in_rows[:, None], first)
            out[out_rows] = torch.maximum(best, candidate)
        reached = torch.zeros(kernel_map.n_out, dtype=torch.bool, device=feats.device)
        for _, out_rows in kernel_map.pairs:
            reached[out_rows] = True
        out[~reached] = 0.0
        ctx.winner, ctx.shape = winner, feats.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad_out.new_zeros(ctx.shape)
        reached = ctx.winner >= 0
        grad.scatter_add_(0, ctx.winner.clamp(min=0), torch.where(reached, grad_out, 0.0))
        return grad, None
