# mypy: disable-error-code="no-untyped-def"
"""Sparse convolution as one Triton kernel: gather neighbourhoods into registers and multiply them there.

:mod:`embodied_perceptron.sparse.engine` imports it where Triton is installed. The kernel is not specialised on sizes
that change between perceptions, and tiles are fixed, so a network compiles its kernels once, at its first run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _WIDEST = 64, 64  # of a tile; its sums stay in registers


@triton.jit(do_not_specialize=["n_in", "n_out", "row_stride", "sources"])
def _gather_multiply(
    feats,  # (n_in, channels)
    sources,  # (n_out, offsets) int32, n_in where absent
    weights,  # (offsets, channels, outputs)
    bias,  # (outputs,), used with HAS_BIAS
    out,  # (n_out, outputs)
    n_in,
    n_out,
    row_stride,
    column_stride,
    offsets,
    channels,
    outputs,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
    ROWS: tl.constexpr,
    IN: tl.constexpr,
    OUT: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * OUT + tl.arange(0, OUT)
    real_row, real_column = rows < n_out, columns < outputs
    total = tl.zeros((ROWS, OUT), dtype=tl.float32)
    for offset in range(offsets):
        source = tl.load(sources + rows * row_stride + offset * column_stride, mask=real_row, other=n_in)
        there = source < n_in
        if tl.max(there.to(tl.int32), axis=0) > 0:  # sites are sorted: whole tiles lack neighbours in a direction
            read = feats + source.to(tl.int64)[:, None] * channels
            for first in range(0, channels, IN):
                c = first + tl.arange(0, IN)
                values = tl.load(read + c[None, :], mask=there[:, None] & (c < channels)[None, :], other=0.0)
                factors = tl.load(
                    weights + (offset * channels + c)[:, None] * outputs + columns[None, :],
                    mask=(c < channels)[:, None] & real_column[None, :],
                    other=0.0,
                )
                if WIDEN:
                    values, factors = values.to(tl.float32), factors.to(tl.float32)
                total = tl.dot(values, factors, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=real_column, other=0.0).to(tl.float32)[None, :]
    at = out + rows[:, None] * outputs + columns[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=real_row[:, None] & real_column[None, :])


def gather_multiply(
    feats: torch.Tensor, kernel: torch.Tensor, sources: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(N_in, Cin) features, (K, Cin, Cout) kernel, (N_out, K) int32 :attr:`KernelMap.sources`, (1, Cout) bias ->
    (N_out, Cout), in the precision of the features (float32, float16 or bfloat16); sums are kept in float32.

    Raises errors of Triton's compilers.
    """
    (n_in, channels), (n_out, offsets), outputs = feats.shape, sources.shape, kernel.shape[2]
    out = feats.new_empty(n_out, outputs)
    if n_out == 0:
        return out
    tile_in = min(max(triton.next_power_of_2(channels), 16), _WIDEST)
    tile_out = min(max(triton.next_power_of_2(outputs), 16), _WIDEST)
    weights = kernel.contiguous()
    grid = (triton.cdiv(n_out, _ROWS), triton.cdiv(outputs, tile_out))
    widen = feats.dtype == torch.bfloat16 and not feats.is_cuda  # integers to the interpreter
    tf32 = feats.is_cuda and torch.backends.cuda.matmul.allow_tf32
    _gather_multiply[grid](
        feats.contiguous(), sources, weights, weights if bias is None else bias, out,
        n_in, n_out, sources.stride(0), sources.stride(1), offsets, channels, outputs,
        HAS_BIAS=bias is not None, PRECISION="tf32" if tf32 else "ieee", WIDEN=widen,
        ROWS=_ROWS, IN=tile_in, OUT=tile_out, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out
