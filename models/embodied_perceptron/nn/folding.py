"""Networks for inference: batch norms, whose statistics are constants by then, become part of the convolutions."""

from __future__ import annotations

import copy
import itertools
from typing import TypeVar

import torch
from torch import nn
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
    for conv in module.modules():
        if isinstance(conv, nn.Conv2d):
            conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


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
