"""Networks for inference: batch norms, whose statistics are constants by then, become part of the convolutions."""

from __future__ import annotations

import copy
import itertools
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from embodied_perceptron.sparse.conv import SparseBatchNorm, SparseConv, SparseTransposedConv

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def folded(module: ModuleT) -> ModuleT:
    """A copy for inference: batch norms are folded into the convolutions that they follow, and the weights of images'
    convolutions lie as the processor likes them. What comes out agrees up to rounding (1e-6 of its range).

    A batch norm follows a convolution when it is registered right after it, as in every part of the networks here; any
    other stays as it is.
    """
    module = copy.deepcopy(module).eval().requires_grad_(False)
    for parent in module.modules():
        for (name, conv), (norm_name, norm) in itertools.pairwise(list(parent.named_children())):
            fused = _fused(conv, norm)
            if fused is not None:
                setattr(parent, name, fused)
                setattr(parent, norm_name, nn.Identity())
    for parent in module.modules():
        for name, conv in list(parent.named_children()):
            if isinstance(conv, nn.Conv2d):
                conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            elif type(conv) is nn.Conv3d:
                setattr(parent, name, GridConv(conv))
    return module


class GridConv(nn.Module):
    """A convolution of dense 3-D grids of one sample, for inference.

    On the CPU torch takes its slow path for small inputs without a batch (five times the time at 20x20x8 cells), and
    spreads a pointwise layer over a convolution: here it is what the processor does best in both cases.

    Args:
        conv: whose parameters and numbers it takes over.
    """

    def __init__(self, conv: nn.Conv3d) -> None:
        super().__init__()
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            raise ValueError(f"only padding by numbers of zeros is known, got {conv.padding} {conv.padding_mode}")
        self.weight, self.bias = conv.weight, conv.bias
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation
        self.groups = conv.groups
        self._pointwise = conv.kernel_size == conv.stride == (1, 1, 1) and conv.padding == (0, 0, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, Cin, X, Y, Z) -> (B, Cout, X', Y', Z')."""
        if self._pointwise and self.groups == 1:
            return functional.linear(x.movedim(1, -1), self.weight.flatten(1), self.bias).movedim(-1, 1)
        on_cpu = x.device.type == "cpu" and x.dtype == torch.float32
        if on_cpu and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return torch.mkldnn_convolution(
                x, self.weight, self.bias, self.padding, self.stride, self.dilation, self.groups
            )
        return functional.conv3d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def _fused(conv: nn.Module, norm: nn.Module) -> nn.Module | None:
    """Both in one, or None when they are no convolution with its batch norm."""
    if isinstance(conv, (SparseConv, SparseTransposedConv)) and isinstance(norm, SparseBatchNorm):
        return _fused_sparse(conv, norm.bn)
    if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
        return fuse_conv_bn_eval(conv, norm)
    if isinstance(conv, (nn.Conv3d, nn.ConvTranspose3d)) and isinstance(norm, nn.BatchNorm3d):
        return fuse_conv_bn_eval(conv, norm, transpose=isinstance(conv, nn.ConvTranspose3d))
    return None


def _fused_sparse(conv: SparseConv | SparseTransposedConv, norm: nn.BatchNorm1d) -> nn.Module:
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    scale = norm.weight * torch.rsqrt(variance + norm.eps)  # (Cout,)
    bias = torch.zeros_like(mean) if conv.bias is None else conv.bias[0]
    conv.kernel = nn.Parameter(conv.kernel * scale, requires_grad=False)
    conv.bias = nn.Parameter((norm.bias + (bias - mean) * scale)[None], requires_grad=False)
    return conv
