"""Engines of sparse layers: PyTorch, and the choice between it and MinkowskiEngine.

On the CPU :class:`TorchEngine` convolves crowded sites by blocks and others offset by offset. On devices it multiplies
whole neighbourhoods by one Triton kernel. The CUDA wheels of torch bring Triton; without it, or where its kernel cannot
be compiled (no C compiler, an unknown card), tensor operations compute the same.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from embodied_perceptron.geometry.transforms import floor_site_keys
from embodied_perceptron.sparse import cpu_kernels
from embodied_perceptron.sparse.sites import Engine, KernelMap, Sites, empty_row

log = logging.getLogger(__name__)
EngineName = Literal["auto", "torch", "minkowski"]
Activation = Literal["", "relu", "elu"]
BLOCK_KERNEL_SIZE = 3  # the only one that blocks support
_BLOCK_ROWS = 8192
_DEVICE_TILE_NUMBERS = 1 << 25  # 128 MB of gathered float32
_MIN_FILL = 0.6  # share of the places of all blocks that are sites, from which on blocks need fewer products
_CHUNK = 97  # blocks at a time; odd, so that the 64 output streams do not share cache lines
_FILTER = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)  # G of F(2, 3)
_FILTER_3D = torch.kron(torch.kron(_FILTER, _FILTER), _FILTER)  # (64, 27), x fastest on both sides
_TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_DEVICE_FAULTS = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))


class After(NamedTuple):
    """What follows a convolution: add ``plus`` (N_out, C), activate."""

    plus: torch.Tensor | None = None
    then: Activation = ""


NOTHING = After()


class TorchEngine:
    """PyTorch on any device, see the module."""

    name = "torch"

    def convolve(
        self,
        feats: torch.Tensor,
        kernel: torch.Tensor,
        in_sites: Sites,
        out_sites: Sites,
        kernel_size: int,
        crowded: bool | torch.Tensor = False,
        bias: torch.Tensor | None = None,
        after: After = NOTHING,
    ) -> torch.Tensor:
        """See :class:`Engine`; without gradients on a device, all in one kernel."""

        def kernel_map() -> KernelMap:
            if out_sites.stride < in_sites.stride:
                return in_sites.transposed_map(out_sites, kernel_size)
            return in_sites.kernel_map(out_sites, kernel_size)

        device = feats.device.type
        if torch.is_autocast_enabled(device) and feats.dtype != torch.float64:  # autocast skips float64
            # cast outside of the autograd functions, so that gradients keep the precision of their tensors
            dtype = torch.get_autocast_dtype(device)
            feats, kernel = feats.to(dtype), kernel.to(dtype)
        result: torch.Tensor
        if not in_sites.compiled:
            bias = None if bias is None else bias.to(feats.dtype)
            if not torch.is_grad_enabled():
                return _multiply_gathered(feats, kernel, kernel_map().sources, bias, *after)
            result = _WholeConvolution.apply(feats, kernel, kernel_map(), bias)  # type: ignore[no-untyped-call]
            return finished(result, *after)
        blocks: Blocks | None = None
        supported = kernel_size == BLOCK_KERNEL_SIZE and in_sites is out_sites and cpu_kernels.serves(feats, kernel)
        if crowded is not False and supported:
            if in_sites.engine_state is None:
                in_sites.engine_state = (blocks_of(in_sites),)
            (blocks,) = in_sites.engine_state
        filters = crowded if isinstance(crowded, torch.Tensor) else None
        result = _Convolution.apply(feats, kernel, kernel_map, blocks, filters)  # type: ignore[no-untyped-call]
        return finished(result if bias is None else result + bias, *after)

    def max_pool(self, feats: torch.Tensor, in_sites: Sites, out_sites: Sites, kernel_size: int) -> torch.Tensor:
        kernel_map = in_sites.kernel_map(out_sites, kernel_size)
        if not cpu_kernels.serves(feats):
            return _max_of_gathered(feats, kernel_map)
        result: torch.Tensor = _MaxPool.apply(feats, kernel_map)  # type: ignore[no-untyped-call]
        return result


@cache
def get_engine(name: EngineName = "auto", device_type: str = "cpu") -> Engine:
    """Select an engine.

    ``auto`` is PyTorch on the CPU, where it is 2 to 3 times faster than MinkowskiEngine (benchmarks/network.py), and
    MinkowskiEngine on other devices that its installed build supports.

    Raises ``ImportError`` when MinkowskiEngine is requested and missing, or installed and broken; ``ValueError`` for an
    unknown name or a device that its build does not support.
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
    """Convolution on the CPU. It keeps its inputs for the backward pass, not the gathered rows, and finds the kernel
    map when it needs it: blocks do without."""

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
    # in tiles that fit the cache, with reused buffers: twice as fast as the loop above
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
    """Convolution on devices: each site's whole neighbourhood, gathered tile by tile, times the whole kernel. It
    multiplies zeros where there is no neighbour, which costs less than launches and synchronisation. Every output is
    written once, so the order of sums is fixed."""

    @staticmethod
    def forward(
        ctx: Any, feats: torch.Tensor, kernel: torch.Tensor, kernel_map: KernelMap, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(feats, kernel)
        ctx.kernel_map = kernel_map
        return _multiply_gathered(feats, kernel, kernel_map.sources, bias)

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
            grad_feats = _multiply_gathered(grad_out, kernel.transpose(1, 2), kernel_map.transposed.sources)
        if ctx.needs_input_grad[1]:
            total: torch.Tensor | None = None
            for rows, gathered in _gathered_tiles(feats, kernel_map.sources):  # one product at a time is in memory
                product = gathered.t() @ grad_out[rows]
                if total is not None:  # float32 sums of 16-bit products
                    product = total.to(torch.promote_types(torch.float32, total.dtype)) + product
                total = product
            grad_kernel = torch.zeros_like(kernel) if total is None else total.to(kernel.dtype).view(kernel.shape)
        return grad_feats, grad_kernel, None, grad_bias


def finished(feats: torch.Tensor, plus: torch.Tensor | None, then: Activation) -> torch.Tensor:
    """Add and activate; may write into ``feats``."""
    feats = feats if plus is None else feats + plus
    return functional.relu_(feats) if then == "relu" else functional.elu_(feats) if then == "elu" else feats


def _multiply_gathered(
    feats: torch.Tensor,
    kernel: torch.Tensor,
    sources: torch.Tensor,
    bias: torch.Tensor | None = None,
    plus: torch.Tensor | None = None,
    then: Activation = "",
) -> torch.Tensor:
    """See :func:`~embodied_perceptron.sparse.triton_kernels.gather_multiply`."""
    if _triton_serves(feats):
        computed = _triton_multiply(feats, kernel, sources, bias, plus, then)
        if computed is not None:
            return computed
    out = feats.new_empty(len(sources), kernel.shape[2])
    weights = kernel.reshape(-1, kernel.shape[2])
    for rows, gathered in _gathered_tiles(feats, sources):
        if bias is None:
            torch.mm(gathered, weights, out=out[rows])
        else:
            torch.addmm(bias, gathered, weights, out=out[rows])
    return finished(out, plus, then)


def _gathered_tiles(feats: torch.Tensor, sources: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Tiles of output rows and their (T, K * Cin) neighbourhoods."""
    channels = feats.shape[1]
    padded = torch.cat([feats, empty_row(channels, feats.dtype, feats.device)])
    width = sources.shape[1] * channels
    tile = max(_DEVICE_TILE_NUMBERS // width, 1)
    for start in range(0, len(sources), tile):
        rows = slice(start, start + tile)
        yield rows, padded.index_select(0, sources[rows].flatten()).reshape(-1, width)


def _max_of_gathered(feats: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
    """:class:`_MaxPool` on devices, from whole neighbourhoods."""
    sources = kernel_map.sources
    padded = torch.cat([feats, feats.new_full((1, feats.shape[1]), -torch.inf)])
    best = padded.index_select(0, sources.flatten()).view(*sources.shape, -1).max(1).values
    return best.masked_fill((sources >= kernel_map.n_in).all(1, keepdim=True), 0.0)


class _MaxPool(torch.autograd.Function):
    """Maximum on the CPU. The gradient goes to the first input, in kernel order, that attains it."""

    @staticmethod
    def forward(ctx: Any, feats: torch.Tensor, kernel_map: KernelMap) -> torch.Tensor:
        out = feats.new_zeros(kernel_map.n_out, feats.shape[1])
        winner = torch.full_like(out, -1, dtype=torch.int32)
        source, target, first = feats.detach().numpy(), out.numpy(), winner.numpy()
        for in_rows, out_rows in kernel_map.pairs:
            cpu_kernels.scatter_max(target, first, source, in_rows.numpy(), out_rows.numpy())
        ctx.winner, ctx.shape = winner, feats.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad_out.new_zeros(ctx.shape)
        winner = ctx.winner.long()
        grad.scatter_add_(0, winner.clamp(min=0), torch.where(winner >= 0, grad_out, 0.0))
        return grad, None


# --------------------------------------------------------------------------------------------------------------------
# Triton kernel on devices


_triton_faults: list[str] = []  # why its kernel cannot be compiled; after the first it is not tried again


@cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _triton_serves(feats: torch.Tensor) -> bool:
    """Whether Triton convolves these features; on the CPU only in Triton's interpreter, for tests."""
    on_device = feats.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    return on_device and feats.dtype in _TRITON_DTYPES and not _triton_faults and _triton_installed()


def _triton_multiply(feats: torch.Tensor, *given: Any) -> torch.Tensor | None:
    """:func:`~embodied_perceptron.sparse.triton_kernels.gather_multiply`, or None when it cannot be compiled. Faults of
    the device, such as lack of memory, are raised."""
    try:
        from embodied_perceptron.sparse import triton_kernels

        return triton_kernels.gather_multiply(feats, *given)
    except _DEVICE_FAULTS:
        raise
    except Exception as error:  # Triton raises what its compilers raise
        _triton_faults.append(" ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])[:200])
        log.warning(
            "the Triton kernel of sparse convolutions failed (%s): torch operations compute them instead",
            _triton_faults[-1],
        )
        return None


# --------------------------------------------------------------------------------------------------------------------
# blocks of crowded sites on the CPU


@dataclass(frozen=True)
class Blocks:
    """The sites in and around each block of 2 x 2 x 2 sites, for convolutions of crowded sites.

    Winograd's minimal filtering F(2, 3) along each axis (Lavin and Gray, Fast Algorithms for Convolutional Neural
    Networks, CVPR 2016, section 4): the 8 outputs of a block take 64 products of each input channel with each output
    channel instead of up to 216. Sites from splitting coarser ones fill most of their blocks. Blocks lie on the lattice
    of twice the stride: where a coarser level has that lattice, moving the world by a coarsest cell still gives the
    same results to the bit.

    Attributes:
        inside: (B, 8) int32 row of the site at each place of a block, x fastest; the number of sites where absent.
        around: (B, 64) int32 rows of the 4 x 4 x 4 places that its outputs read, likewise.
    """

    inside: torch.Tensor
    around: torch.Tensor


def blocks_of(sites: Sites) -> Blocks | None:
    """The blocks of sites on the CPU; None when the sites fill too little of them."""
    coarse = sites.coarser(2)
    if len(sites) < _MIN_FILL * 8 * len(coarse):
        return None
    lowest = floor_site_keys(sites.keys, coarse.stride)
    inside = torch.full((len(coarse) + 1, 8), len(sites), dtype=torch.int32)  # the last row: no block
    around = torch.empty((len(coarse), 64), dtype=torch.int32)
    neighbours = coarse.kernel_map(coarse, 3).table
    cpu_kernels.fill_inside(sites.keys.numpy(), lowest.numpy(), coarse.find(lowest).numpy(), inside.numpy())
    cpu_kernels.fill_around(inside.numpy(), neighbours.numpy(), around.numpy())
    return Blocks(inside[:-1], around)


def block_filters(kernel: torch.Tensor) -> torch.Tensor:
    """(27, Cin, Cout) kernel -> (64, Cin, Cout) filters of the places of a block."""
    return (_FILTER_3D.to(kernel) @ kernel.reshape(27, -1)).view(64, *kernel.shape[1:])


def convolve_blocks(feats: torch.Tensor, filters: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    """(N, Cin) features, (64, Cin, Cout) :func:`block_filters` -> (N, Cout), block by block.

    Differs from sums offset by offset by rounding: 1e-6 of the largest input in float32, 1e-2 with bfloat16 filters,
    which make bfloat16 products.
    """
    channels, width = filters.shape[1:]
    padded = torch.cat([feats, feats.new_zeros(1, channels)])
    out = feats.new_empty(len(feats), width)
    source, target, inside, around = padded.view(-1).numpy(), out.numpy(), blocks.inside.numpy(), blocks.around.numpy()
    chunk = min(_CHUNK, len(around))
    read, product = feats.new_empty(64 * chunk * channels), feats.new_empty(64 * chunk * width)
    rounds = filters.dtype != feats.dtype
    short_read, short_product = (x.to(filters.dtype) if rounds else x for x in (read, product))
    for start in range(0, len(around), chunk):
        end = min(start + chunk, len(around))
        left, right = (x[: 64 * (end - start) * n] for x, n in ((read, channels), (product, width)))
        cpu_kernels.read_blocks(source, around[start:end], left.numpy())
        a, b = short_read[: len(left)], short_product[: len(right)]  # views of left and right unless rounded
        if rounds:
            a.copy_(left)
        torch.bmm(a.view(64, -1, channels), filters, out=b.view(64, -1, width))
        if rounds:
            right.copy_(b)
        cpu_kernels.write_blocks(right.numpy(), inside[start:end], target)
    return out
