"""Sparse layers. Parameters have MinkowskiEngine's layout, so that released weights load by name."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from embodied_perceptron.sparse.engine import BLOCK_KERNEL_SIZE, Activation, After, TorchEngine, block_filters, finished
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor


class _ConvolutionBase(nn.Module):
    """Holds ``kernel`` (K, Cin, Cout), or (Cin, Cout) for 1x1 at stride 1, and ``bias`` (1, Cout) or None.

    ``filters``: block filters of a crowded convolution with a frozen kernel (:meth:`SparseConv.freeze`). ``then``: the
    activation of the output. A device computes bias, a tensor to add and activation with the products.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, bias: bool) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if value < 1:
                raise ValueError(f"{name} must be positive, got {value}")
        if kernel_size < 1 or stride < 1:
            raise ValueError(f"kernel_size and stride must be positive, got {kernel_size} and {stride}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = kernel_size
        self.stride = stride
        self.crowded = False
        self.filters: torch.Tensor | None = None
        self.then: Activation = ""
        pointwise = kernel_size == 1 and stride == 1
        shape = (in_channels, out_channels) if pointwise else (kernel_size**3, in_channels, out_channels)
        self.kernel = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(1, out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """He initialisation over the whole kernel."""
        fan_in = self.kernel.numel() / self.out_channels
        nn.init.normal_(self.kernel, std=math.sqrt(2.0 / fan_in))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else ", bias=False"
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}{bias}"

    def _run(
        self, x: SparseTensor, out_sites: Sites, then: Activation = "", plus: torch.Tensor | None = None
    ) -> SparseTensor:
        if x.channels != self.in_channels:
            raise ValueError(f"expected {self.in_channels} channels, got {x.channels}")
        then, bias = then or self.then, self.bias
        if self.kernel.ndim == 2 and bias is not None and not x.sites.compiled:
            feats, bias = torch.addmm(bias, x.feats, self.kernel), None
        elif self.kernel.ndim == 2:
            feats = x.feats @ self.kernel
        elif len(x) == 0 or len(out_sites) == 0:
            # keeps gradients defined (and zero) on an empty input
            feats = x.feats.new_zeros(len(out_sites), self.out_channels) + 0.0 * self.kernel.sum()
        else:
            crowded = self.crowded if self.filters is None or torch.is_grad_enabled() else self.filters
            given = x.feats, self.kernel, x.sites, out_sites, self.kernel_size, crowded, bias
            if isinstance(x.sites.engine, TorchEngine):
                return SparseTensor(out_sites, x.sites.engine.convolve(*given, After(plus, then)))
            feats, bias = x.sites.engine.convolve(*given), None
        return SparseTensor(out_sites, finished(feats if bias is None else feats + bias, plus, then))


class SparseConv(_ConvolutionBase):
    """Convolution; output sites are the input sites at stride 1 (submanifold convolution), else ``floor(c / s) * s``.

    A site without input in reach, possible for strided kernels of size 1, gets zero plus bias. ``crowded``: the sites
    come from splitting coarser ones, see :meth:`~.sites.Engine.convolve`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        bias: bool = False,
        crowded: bool = False,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, bias)
        self.crowded = crowded

    def freeze(self, products: torch.dtype) -> None:
        """Compute the block filters of crowded sites once, for inference with a kernel that no longer changes. The CPU
        multiplies them in this precision; sums keep the precision of the features."""
        if self.crowded and self.kernel_size == BLOCK_KERNEL_SIZE:
            self.filters = block_filters(self.kernel.detach()).to(products)

    def forward(self, x: SparseTensor, then: Activation = "", plus: torch.Tensor | None = None) -> SparseTensor:
        """``plus``: (N_out, C) to add before the activation ``then``."""
        return self._run(x, x.sites.coarser(self.stride), then, plus)


class SparseTransposedConv(_ConvolutionBase):
    """Transposed convolution to ``stride`` times finer sites.

    Without ``out_sites`` it is generative: it creates every site that the kernel reaches.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int = 2, stride: int = 2, bias: bool = False
    ) -> None:
        if stride < 2:
            raise ValueError(f"a transposed convolution refines: stride must be at least 2, got {stride}")
        super().__init__(in_channels, out_channels, kernel_size, stride, bias)

    def forward(self, x: SparseTensor, out_sites: Sites | None = None) -> SparseTensor:
        """``out_sites``: output sites of stride ``x.stride / stride``; None = all sites in reach."""
        if out_sites is None:
            out_sites = x.sites.children(self.kernel_size, self.stride)
        elif out_sites.stride * self.stride != x.stride:
            raise ValueError(f"out_sites must have stride {x.stride / self.stride}, got {out_sites.stride}")
        return self._run(x, out_sites)


class SparseMaxPool(nn.Module):
    """Maximum over the inputs in reach; output sites are ``floor(c / s) * s``."""

    def __init__(self, kernel_size: int = 3, stride: int = 2) -> None:
        super().__init__()
        if kernel_size < 1 or stride < 1:
            raise ValueError(f"kernel_size and stride must be positive, got {kernel_size} and {stride}")
        self.kernel_size = kernel_size
        self.stride = stride

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}"

    def forward(self, x: SparseTensor) -> SparseTensor:
        out_sites = x.sites.coarser(self.stride)
        if len(x) == 0:
            return SparseTensor(out_sites, x.feats)
        return SparseTensor(out_sites, x.sites.engine.max_pool(x.feats, x.sites, out_sites, self.kernel_size))


class SparseBatchNorm(nn.Module):
    """Batch normalisation over all sites; keys ``bn.weight`` and so on. An empty input passes through unchanged."""

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(channels, eps=eps, momentum=momentum)

    def forward(self, x: SparseTensor) -> SparseTensor:
        bn = self.bn
        # torch refuses to train on a single row because its variance is undefined: use the running statistics
        trains, momentum = bn.training and len(x) > 1, bn.momentum or 0.0
        mean, variance, weight, bias = bn.running_mean, bn.running_var, bn.weight, bn.bias
        return x.replace(functional.batch_norm(x.feats, mean, variance, weight, bias, trains, momentum, bn.eps))


class SparseInstanceNorm(nn.Module):
    """Normalisation by the statistics of each sample (biased variance); ``weight`` and ``bias`` are (1, C). One new
    site changes the output everywhere."""

    def __init__(self, channels: int, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(1, channels))
        self.bias = nn.Parameter(torch.zeros(1, channels))

    def forward(self, x: SparseTensor) -> SparseTensor:
        parts = []
        for rows in x.split():
            if len(rows):
                centred = rows - rows.mean(dim=0)
                rows = centred / (centred.square().mean(dim=0) + self.eps).sqrt()
            parts.append(rows)
        return x.replace(torch.cat(parts) * self.weight + self.bias)


class SparseActivation(nn.Module):
    """A pointwise function of the features."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: SparseTensor) -> SparseTensor:
        return x.replace(self.function(x.feats))
