"""Whether the fused convolution computes: where Triton is, on its devices, until it fails to compile.

The CUDA wheels of torch bring Triton; other installations lack it, and do without. A kernel that does not compile (no
C compiler, a card that this Triton does not know) is a fault of the installation and none of the program: it is said
once, counted, and the operations of torch compute the same from then on.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from dataclasses import dataclass
from functools import cache

import torch

log = logging.getLogger(__name__)
_PRECISIONS = (torch.float32, torch.float16, torch.bfloat16)
_DEVICE_FAULTS = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))


@dataclass
class FusedState:
    """Of this process.

    Attributes:
        failures: convolutions that could not be compiled; after the first none is tried again.
        reason: of the first.
    """

    failures: int = 0
    reason: str = ""


@cache
def state() -> FusedState:
    """What became of the fused convolution in this process."""
    return FusedState()


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def serves(feats: torch.Tensor) -> bool:
    """Whether features are convolved by the fused kernel; on the CPU only within Triton's interpreter, for tests."""
    there = feats.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return there and feats.dtype in _PRECISIONS and state().failures == 0 and _installed()


def gather_multiply(
    feats: torch.Tensor, kernel: torch.Tensor, sources: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """As :func:`~embodied_perceptron.sparse.triton_kernels.gather_multiply`; None where it cannot be compiled. A device
    that fails, by its memory or altogether, is the caller's business."""
    try:
        from embodied_perceptron.sparse import triton_kernels

        return triton_kernels.gather_multiply(feats, kernel, sources, bias)
    except _DEVICE_FAULTS:
        raise
    except Exception as error:  # Triton raises what its compilers raise
        state().failures += 1
        state().reason = " ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])[:200]
        log.warning("sparse convolutions are computed by torch: their Triton kernel failed (%s)", state().reason)
        return None
