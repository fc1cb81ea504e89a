# mypy: disable-error-code="no-untyped-def"
"""Sparse convolution as one Triton kernel: gather neighbourhoods into registers and multiply them there.

:mod:`embodied_perceptron.sparse.engine` imports it where Triton is installed. The kernel is not specialised on sizes
that change between perceptions, and a table gives its tiles, so a network compiles its kernels once, at its first run.
``benchmarks/kernels.py`` compiles every variant without a GPU and fails where the sums do not stay in registers.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

_ROWS, _WIDEST = 64, 64  # of a tile
_ALIGNED = 16  # channels: a multiple of it is read in whole vectors

# Channels of a tile by compute capability and precision, with four warps: the most whose sums stay in registers, with
# bias, shortcut and activation in the kernel.
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
CHANNELS = {80: (32, 32, 64, 64), 87: (64, 64, 64, 64), 90: (16, 32, 64, 64), 100: (32, 64, 64, 64)}


class Tile(NamedTuple):
    """Constants of a variant of the kernel."""

    channels: int
    outputs: int
    warps: int
    long: bool


def tile(capability: int, precision: str, channels: int, outputs: int, numbers: int) -> Tile:
    """Tile for a compute capability (80 = 8.0), one of :data:`PRECISIONS`, and the sizes of a convolution, of which
    ``numbers`` are the elements of its largest array."""
    long = numbers >= 1 << 31
    listed = max((c for c in CHANNELS if c <= capability), default=min(CHANNELS))
    most, warps = CHANNELS[listed][PRECISIONS.index(precision)], 4
    if long or channels % _ALIGNED or outputs % _ALIGNED:  # an address for each number
        most, warps = 32, 8
    widths = (max(triton.next_power_of_2(channels), 16), max(triton.next_power_of_2(outputs), 16))
    return Tile(min(widths[0], most), min(widths[1], _WIDEST), warps, long)


@cache
def _capability(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@triton.jit(do_not_specialize=["n_in", "n_out", "row_stride", "sources"])
def _gather_multiply(
    feats,  # (n_in, channels)
    sources,  # (n_out, offsets) int32, n_in where absent
    weights,  # (offsets, channels, outputs)
    bias,  # (outputs,), used with HAS_BIAS
    plus,  # (n_out, outputs), used with HAS_PLUS
    out,  # (n_out, outputs)
    n_in,
    n_out,
    row_stride,
    column_stride,
    offsets,
    channels,
    outputs,
    HAS_BIAS: tl.constexpr,
    HAS_PLUS: tl.constexpr,
    THEN: tl.constexpr,  # "relu", "elu" or ""
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    LONG: tl.constexpr,  # offsets need 64 bits
    ROWS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * OUT + tl.arange(0, OUT)
    real_row, real_column = rows < n_out, columns < outputs
    if LONG:
        rows = rows.to(tl.int64)
    total = tl.zeros((ROWS, OUT), dtype=tl.float32)
    for offset in range(offsets):
        source = tl.load(sources + rows * row_stride + offset * column_stride, mask=real_row, other=n_in)
        there = source < n_in
        if tl.max(there.to(tl.int32), axis=0) > 0:  # sites are sorted: whole tiles lack neighbours in a direction
            start = (source.to(tl.int64) if LONG else source) * channels
            for first in range(0, channels, IN):
                c = first + tl.arange(0, IN)
                values = tl.load(
                    feats + (start[:, None] + c[None, :]), mask=there[:, None] & (c < channels)[None, :], other=0.0
                )
                factors = tl.load(
                    weights + ((offset * channels + c)[:, None] * outputs + columns[None, :]),
                    mask=(c < channels)[:, None] & real_column[None, :],
                    other=0.0,
                )
                if WIDEN:
                    values, factors = values.to(tl.float32), factors.to(tl.float32)
                total = tl.dot(values, factors, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=real_column, other=0.0).to(tl.float32)[None, :]
    at = rows[:, None] * outputs + columns[None, :]
    real = real_row[:, None] & real_column[None, :]
    if HAS_PLUS:
        total += tl.load(plus + at, mask=real, other=0.0).to(tl.float32)
    if THEN == "relu":
        total = tl.where(total < 0.0, 0.0, total)  # NaN stays
    if THEN == "elu":
        total = tl.where(total < 0.0, tl.exp(total) - 1.0, total)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=real)


def gather_multiply(
    feats: torch.Tensor,
    kernel: torch.Tensor,
    sources: torch.Tensor,
    bias: torch.Tensor | None = None,
    plus: torch.Tensor | None = None,
    then: str = "",
) -> torch.Tensor:
    """(N_in, Cin) features, (K, Cin, Cout) kernel, (N_out, K) int32 :attr:`KernelMap.sources`, (1, Cout) bias, (N_out,
    Cout) to add, activation -> (N_out, Cout), in the precision of the features (float32, float16 or bfloat16); sums are
    kept in float32.

    Raises errors of Triton's compilers.
    """
    (n_in, channels), (n_out, offsets), outputs = feats.shape, sources.shape, kernel.shape[2]
    out = feats.new_empty(n_out, outputs)
    if n_out == 0:
        return out
    weights = kernel.contiguous()
    widen = feats.dtype == torch.bfloat16 and not feats.is_cuda  # integers to the interpreter
    tf32 = feats.is_cuda and torch.backends.cuda.matmul.allow_tf32
    names = {torch.float32: "tf32" if tf32 else "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    numbers = max(n_in * channels, n_out * max(outputs, sources.stride(0)), weights.numel())
    t = tile(_capability(feats.device) if feats.is_cuda else 80, names[feats.dtype], channels, outputs, numbers)
    _gather_multiply[(triton.cdiv(n_out, _ROWS), triton.cdiv(outputs, t.outputs))](
        feats.contiguous(), sources, weights, weights if bias is None else bias,
        weights if plus is None else plus.contiguous(), out,
        n_in, n_out, sources.stride(0), sources.stride(1), offsets, channels, outputs,
        HAS_BIAS=bias is not None, HAS_PLUS=plus is not None, THEN=then, PRECISION="tf32" if tf32 else "ieee",
        WIDEN=widen, LONG=t.long, ROWS=_ROWS, IN=t.channels, OUT=t.outputs, num_warps=t.warps, num_stages=2,
    )  # fmt: skip
    return out
