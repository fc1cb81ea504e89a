"""Engines of sparse layers: plain PyTorch, and the choice between it and MinkowskiEngine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable

from embodied_perceptron.geometry.compute_path import takes_loops
from embodied_perceptron.sparse import cpu_kernels, fused
from embodied_perceptron.sparse.blocks import KERNEL_SIZE, Blocks, block_filters, blocks_of, convolve_blocks
from embodied_perceptron.sparse.sites import Engine, KernelMap, Sites, empty_row

EngineName = Literal["auto", "torch", "minkowski"]
_BLOCK_ROWS = 8192
_DEVICE_TILE_NUMBERS = 1 << 25  # 128 MB of gathered float32


class TorchEngine:
    """Plain PyTorch on any device. On the CPU crowded sites are taken block by block, others per kernel offset: gather,
    multiply, add into place. Elsewhere, where a launch costs more than multiplying zeros, whole neighbourhoods times
    the whole kernel."""

    name = "torch"

    def convolve(
        self,
        feats: torch.Tensor,
        kernel: torch.Tensor,
        in_sites: Sites,
        out_sites: Sites,
        kernel_size: int,
        transposed: bool,
        crowded: bool | torch.Tensor = False,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As any engine; ``bias``: (1, Cout) added along the way, where the compiled loops do not compute."""

        def kernel_map() -> KernelMap:
            if transposed:
                return in_sites.transposed_map(out_sites, kernel_size)
            return in_sites.kernel_map(out_sites, kernel_size)

        device = feats.device.type
        if torch.is_autocast_enabled(device) and feats.dtype != torch.float64:  # which autocast leaves alone
            # here, so that gradients come back in the precision of their tensors
            dtype = torch.get_autocast_dtype(device)
            feats, kernel = feats.to(dtype), kernel.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        result: torch.Tensor
        if not takes_loops(feats):
            result = _WholeConvolution.apply(feats, kernel, kernel_map(), bias)  # type: ignore[no-untyped-call]
            return result
        blocks: Blocks | None = None
        served = kernel_size == KERNEL_SIZE and in_sites is out_sites and cpu_kernels.serves(feats, kernel)
        if crowded is not False and served:
            if in_sites.engine_state is None:
                in_sites.engine_state = (blocks_of(in_sites),)  # None for a set that is not crowded
            (blocks,) = in_sites.engine_state
        filters = crowded if isinstance(crowded, torch.Tensor) else None
        result = _Convolution.apply(feats, kernel, kernel_map, blocks, filters)  # type: ignore[no-untyped-call]
        return result

    def max_pool(self, feats: torch.Tensor, in_sites: Sites, out_sites: Sites, kernel_size: int) -> torch.Tensor:
        kernel_map = in_sites.kernel_map(out_sites, kernel_size)
        if not takes_loops(feats):
            return _max_of_gathered(feats, kernel_map)
        result: torch.Tensor = _MaxPool.apply(feats, kernel_map)  # type: ignore[no-untyped-call]
        return result


@cache
def get_engine(name: EngineName = "auto", device_type: str = "cpu") -> Engine:
    """Pick an engine.

    ``auto`` is plain PyTorch on the CPU, where it is 2 to 3 times faster than MinkowskiEngine (benchmarks/network.py),
    and MinkowskiEngine on other devices that its installed build serves.

    Raises ``ImportError`` when MinkowskiEngine is asked for and missing, or installed and broken: a broken installation
    is reported, never passed over. ``ValueError`` for an unknown name, or when its build lacks the device asked for.
    """
    if name not in ("auto", "torch", "minkowski"):
        raise ValueError(f"engine must be auto, torch or minkowski, got {name!r}")
    if name == "torch":
        return TorchEngine()
    if name == "auto" and (device_type == "cpu" or importlib.util.find_spec("MinkowskiEngine") is None):
        return TorchEngine()
    from embodied_perceptron.sparse.minkowski import MinkowskiEngineAdapter, supports

    if supports(device_type):
        return MinkowskiEngineAdapter()
    if name == "auto":
        return TorchEngine()
    raise ValueError(f"this build of MinkowskiEngine does not support device {device_type}")


class _Convolution(torch.autograd.Function):
    """Keeps only its inputs for the backward pass, not the gathered rows. The kernel map is searched for when it is
    read: blocks do without."""

    @staticmethod
    def forward(
        ctx: Any,
        feats: torch.Tensor,
        kernel: torch.Tensor,
        find_map: Callable[[], KernelMap],
        blocks: Blocks | None,
        filters: torch.Tensor | None = None,
    ) -> torch.Tensor:
        ctx.save_for_backward(feats, kernel)
        ctx.find_map = find_map
        if blocks is not None:
            return convolve_blocks(feats, block_filters(kernel) if filters is None else filters, blocks)
        kernel_map = find_map()
        if kernel_map.identity is not None:
            out = feats @ kernel[kernel_map.identity]
        else:
            out = feats.new_zeros(kernel_map.n_out, kernel.shape[2])
        pairs = [(k, i, o) for k, (i, o) in enumerate(kernel_map.pairs) if k != kernel_map.identity and len(i)]
        gather_multiply_scatter(feats, kernel, pairs, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        feats, kernel = ctx.saved_tensors
        kernel_map: KernelMap = ctx.find_map()
        pairs = [(k, i, o) for k, (i, o) in enumerate(kernel_map.pairs) if k != kernel_map.identity and len(i)]
        grad_feats = grad_kernel = None
        if ctx.needs_input_grad[0]:
            if kernel_map.identity is not None:
                grad_feats = grad_out @ kernel[kernel_map.identity].t()
            else:
                grad_feats = torch.zeros_like(feats)
            swapped = [(k, o, i) for k, i, o in pairs]
            gather_multiply_scatter(grad_out.contiguous(), kernel.transpose(1, 2), swapped, grad_feats)
        if ctx.needs_input_grad[1]:
            grad_kernel = torch.zeros_like(kernel)
            if kernel_map.identity is not None:
                grad_kernel[kernel_map.identity] = feats.t() @ grad_out
            _gather_outer(feats, grad_out, pairs, grad_kernel)
        return grad_feats, grad_kernel, None, None, None


def gather_multiply_scatter(
    source: torch.Tensor, kernel: torch.Tensor, pairs: list[tuple[int, torch.Tensor, torch.Tensor]], out: torch.Tensor
) -> None:
    """``out[to] += source[rows] @ kernel[k]`` for every (k, rows, to), in place; no row twice within one offset."""
    if not pairs:
        return
    if not cpu_kernels.serves(source, out):
        for k, rows, to in pairs:
            out.index_add_(0, to, source[rows] @ kernel[k])
        return
    # In blocks that stay in the cache, with buffers that are allocated once: 2 times faster than the lines above.
    block = min(_BLOCK_ROWS, max(len(rows) for _, rows, _ in pairs))
    gathered = source.new_empty(block, source.shape[1])
    product = source.new_empty(block, out.shape[1])
    target, values = out.numpy(), product.numpy()
    for k, rows, to in pairs:
        to_rows = to.numpy()
        for start in range(0, len(rows), block):
            n = min(block, len(rows) - start)
            torch.index_select(source, 0, rows[start : start + n], out=gathered[:n])
            torch.mm(gathered[:n], kernel[k], out=product[:n])
            cpu_kernels.scatter_add(target, to_rows[start : start + n], values[:n])


def _gather_outer(
    a: torch.Tensor, b: torch.Tensor, pairs: list[tuple[int, torch.Tensor, torch.Tensor]], out: torch.Tensor
) -> None:
    """``out[k] = a[rows_a].t() @ b[rows_b]`` for every (k, rows_a, rows_b), in place, block by block."""
    block = min(_BLOCK_ROWS, max((len(rows) for _, rows, _ in pairs), default=0))
    left, right = a.new_empty(block, a.shape[1]), b.new_empty(block, b.shape[1])
    for k, rows_a, rows_b in pairs:
        for start in range(0, len(rows_a), block):
            n = min(block, len(rows_a) - start)
            torch.index_select(a, 0, rows_a[start : start + n], out=left[:n])
            torch.index_select(b, 0, rows_b[start : start + n], out=right[:n])
            out[k].addmm_(left[:n].t(), right[:n])


class _WholeConvolution(torch.autograd.Function):
    """The same for devices where launches and waits are what costs: each site's whole neighbourhood, gathered tile by
    tile, times the whole kernel. It multiplies zeros where there is no neighbour; nothing is read back from the device,
    and every output is written once, so that the order of sums is fixed."""

    @staticmethod
    def forward(
        ctx: Any, feats: torch.Tensor, kernel: torch.Tensor, kernel_map: KernelMap, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(feats, kernel)
        ctx.kernel_map = kernel_map
        return _multiply_gathered(feats, kernel, kernel_map, bias)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, torch.Tensor | None]:
        feats, kernel = ctx.saved_tensors
        kernel_map: KernelMap = ctx.kernel_map
        grad_feats = grad_kernel = None
        grad_bias = grad_out.sum(0, keepdim=True) if ctx.needs_input_grad[3] else None
        if ctx.needs_input_grad[0]:
            grad_feats = _multiply_gathered(grad_out, kernel.transpose(1, 2), kernel_map.transposed)
        if ctx.needs_input_grad[1]:
            total = torch.zeros(kernel[..., 0].numel(), kernel.shape[2], device=kernel.device)
            total = total.to(torch.promote_types(total.dtype, kernel.dtype))  # sums of halves are kept in float32
            for rows, gathered in _gathered_tiles(feats, kernel_map):
                total += gathered.t() @ grad_out[rows]
            grad_kernel = total.to(kernel.dtype).reshape(kernel.shape)
        return grad_feats, grad_kernel, None, grad_bias


def _multiply_gathered(
    feats: torch.Tensor, kernel: torch.Tensor, kernel_map: KernelMap, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(N_in, Cin), (K, Cin, Cout), (1, Cout) -> (N_out, Cout); by one kernel where there is one."""
    if fused.serves(feats):
        computed = fused.gather_multiply(feats, kernel, kernel_map.sources, bias)
        if computed is not None:
            return computed
    out = feats.new_empty(kernel_map.n_out, kernel.shape[2])
    weights = kernel.reshape(-1, kernel.shape[2])
    for rows, gathered in _gathered_tiles(feats, kernel_map):
        if bias is None:
            torch.mm(gathered, weights, out=out[rows])
        else:
            torch.addmm(bias, gathered, weights, out=out[rows])
    return out


def _gathered_tiles(feats: torch.Tensor, kernel_map: KernelMap) -> Iterator[tuple[slice, torch.Tensor]]:
    """Tiles of output rows and their (T, K * Cin) neighbourhoods."""
    sources, channels = kernel_map.sources, feats.shape[1]
    padded = torch.cat([feats, empty_row(channels, feats.dtype, feats.device)])
    width = sources.shape[1] * channels
    tile = max(_DEVICE_TILE_NUMBERS // width, 1)
    for start in range(0, kernel_map.n_out, tile):
        rows = slice(start, start + tile)
        yield rows, padded.index_select(0, sources[rows].flatten()).reshape(-1, width)


def _max_of_gathered(feats: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
    """:class:`_MaxPool` on a device, from whole neighbourhoods; the gradient goes to the first maximum alike."""
    sources, (n_out, size) = kernel_map.sources.long(), kernel_map.sources.shape
    with torch.no_grad():
        padded = torch.cat([feats, feats.new_full((1, feats.shape[1]), -torch.inf)])
        read = padded.index_select(0, sources.flatten()).view(n_out, size, -1)
        there = (sources < kernel_map.n_in)[:, :, None]
        best = read.amax(1, keepdim=True)  # NaN where any is
        number = torch.arange(size, device=feats.device)[:, None]
        first = torch.where(((read == best) | (read.isnan() & best.isnan())) & there, number, size).amin(1)
        row = sources.gather(1, first.clamp(max=size - 1))  # (N_out, C)
        nothing = (first == size) | (row == kernel_map.n_in)
    return feats.gather(0, row.masked_fill(nothing, 0)).masked_fill(nothing, 0.0)


class _MaxPool(torch.autograd.Function):
    """The gradient goes to the first input, in kernel order, that attains the maximum."""

    @staticmethod
    def forward(ctx: Any, feats: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        out = feats.new_zeros(kernel_map.n_out, feats.shape[1])
        compiled = cpu_kernels.serves(feats)
        winner = torch.full_like(out, -1, dtype=torch.int32 if compiled else torch.int64)
        for in_rows, out_rows in kernel_map.pairs:
            if not len(in_rows):
                continue
            if compiled:
                cpu_kernels.scatter_max(
                    out.numpy(), winner.numpy(), feats.detach().numpy(), in_rows.numpy(), out_rows.numpy()
                )
                continue
            candidate, best, first = feats[in_rows], out[out_rows], winner[out_rows]
            better = (first < 0) | (candidate > best) | (candidate.isnan() & ~best.isnan())
            winner[out_rows] = torch.where(better, in_rows[:, None], first)
            out[out_rows] = torch.where(better, candidate, best)
        ctx.winner, ctx.shape = winner, feats.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad_out.new_zeros(ctx.shape)
        winner = ctx.winner.long()
        grad.scatter_add_(0, winner.clamp(min=0), torch.where(winner >= 0, grad_out, 0.0))
        return grad, None
