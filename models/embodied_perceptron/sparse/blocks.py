"""Convolutions of crowded sites by blocks of 2 x 2 x 2 sites, on the CPU.

Winograd's minimal filtering F(2, 3) along each axis (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
CVPR 2016, section 4): the 8 outputs of a block take 64 products of each input channel with each output channel, where
offset by offset they take up to 216. Sites that a decoder made by splitting coarser ones fill most of their blocks.
Blocks are those of the lattice of twice the stride: where a coarser level has that lattice, a network still answers the
same to the bit when the world moves by a coarsest cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import SITE_BITS, floor_site_keys
from embodied_perceptron.sparse.cpu_kernels import Floats
from embodied_perceptron.sparse.sites import Sites

KERNEL_SIZE = 3  # that is served
_LEAST_FILL = 0.6  # of the places of all blocks are sites: from here on the products of whole blocks are fewer
_CHUNK = 97  # blocks at a time; odd, so that the 64 streams that are written spread over the lines of the cache
_FILTER = torch.tensor([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], dtype=torch.float64)  # G of F(2, 3)
_FILTER_3D = torch.kron(torch.kron(_FILTER, _FILTER), _FILTER)  # (64, 27), x fastest on both sides


@dataclass(frozen=True)
class Blocks:
    """Which sites stand in each block, and around it.

    Attributes:
        inside: (B, 8) int32 row of the site at each place of a block, x fastest; the number of sites where none is.
        around: (B, 64) int32 rows of the 4 x 4 x 4 places that its outputs read, likewise.
    """

    inside: torch.Tensor
    around: torch.Tensor


def blocks_of(sites: Sites) -> Blocks | None:
    """The blocks of sites on the CPU that fill most of theirs; None for others."""
    coarse = sites.coarser(2)
    if len(sites) < _LEAST_FILL * 8 * len(coarse):
        return None
    lowest = floor_site_keys(sites.keys, coarse.stride)
    inside = torch.full((len(coarse) + 1, 8), len(sites), dtype=torch.int32)  # the last row: no block
    around = torch.empty((len(coarse), 64), dtype=torch.int32)
    neighbours = coarse.kernel_map(coarse, 3).table
    _fill_inside(sites.keys.numpy(), lowest.numpy(), coarse.find(lowest).numpy(), inside.numpy())
    _fill_around(inside.numpy(), neighbours.numpy(), around.numpy())
    return Blocks(inside[:-1], around)


def block_filters(kernel: torch.Tensor) -> torch.Tensor:
    """(27, Cin, Cout) kernel -> (64, Cin, Cout): what the places of a block are multiplied by."""
    return (_FILTER_3D.to(kernel) @ kernel.reshape(27, -1)).view(64, *kernel.shape[1:])


def convolve_blocks(feats: torch.Tensor, filters: torch.Tensor, blocks: Blocks) -> torch.Tensor:
    """(N, Cin) features, (64, Cin, Cout) :func:`block_filters` -> (N, Cout), each block at once.

    Differs from sums offset by offset by rounding alone, some 1e-6 of the largest number around in float32. Filters
    may be bfloat16: so are the products then, and it is 1e-2.
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
        _read(source, around[start:end], left.numpy())
        a, b = short_read[: len(left)], short_product[: len(right)]  # where nothing is rounded these are left and right
        if rounds:
            a.copy_(left)
        torch.bmm(a.view(64, -1, channels), filters, out=b.view(64, -1, width))
        if rounds:
            right.copy_(b)
        _write(right.numpy(), inside[start:end], target)
    return out


@njit(cache=True, nogil=True)
def _fill_inside(
    keys: NDArray[np.int64], lowest: NDArray[np.int64], block_of: NDArray[np.int64], inside: NDArray[np.int32]
) -> None:
    """``inside`` comes filled with the number of sites; lowest: (N,) key of the first place of each site's block."""
    mask = (1 << SITE_BITS) - 1
    for i in range(keys.shape[0]):
        step = keys[i] - lowest[i]
        x, y, z = step >> (2 * SITE_BITS), (step >> SITE_BITS) & mask, step & mask
        inside[block_of[i], (4 if z else 0) + (2 if y else 0) + (1 if x else 0)] = i


@njit(cache=True, nogil=True)
def _fill_around(inside: NDArray[np.int32], neighbours: NDArray[np.int32], around: NDArray[np.int32]) -> None:
    """inside: (B + 1, 8), the last row that of no block; neighbours: (B, 27) rows of the blocks around each, or -1."""
    for b in range(around.shape[0]):
        for p in range(64):
            x, y, z = (p & 3) + 1, (p >> 2 & 3) + 1, (p >> 4) + 1  # from the first place of the block before
            at = neighbours[b, (z >> 1) * 9 + (y >> 1) * 3 + (x >> 1)]
            around[b, p] = inside[at, (z & 1) * 4 + (y & 1) * 2 + (x & 1)]  # -1: the last row


# Loops run over unsigned numbers: of signed ones the compiler asks whether they count from the end, and does not use
# vectors (three times slower).


@njit(inline="always")
def _read_axis(source: Floats, target: Floats, n: int, step: int, first: int, target_first: int) -> None:
    """The transform of inputs along one axis: four rows of n numbers to four others, ``step`` apart."""
    for i in range(n):
        v, w, x, y = source[first + i], source[first + n + i], source[first + n + n + i], source[first + n + n + n + i]
        target[target_first + i] = v - x
        target[target_first + step + i] = w + x
        target[target_first + step + step + i] = x - w
        target[target_first + step + step + step + i] = w - y


@njit(cache=True, nogil=True)
def _read(feats: Floats, around: NDArray[np.int32], read: Floats) -> None:
    """Gather what the blocks read, and transform it.

    Args:
        feats: ((N + 1) * C,) row after row, the last one zeros.
        around: (T, 64) as in :class:`Blocks`.
        read: (64 * T * C,) out: place, block, channel.
    """
    blocks, c_count = np.uint64(around.shape[0]), np.uint64(read.shape[0] // (64 * around.shape[0]))
    line, plane = np.uint64(4) * c_count, np.uint64(16) * c_count
    stream = blocks * c_count
    along_z, along_yz = np.empty(np.uint64(4) * plane, feats.dtype), np.empty(np.uint64(4) * plane, feats.dtype)
    for t in range(blocks):
        for q in range(np.uint64(16)):
            first, second = np.uint64(around[t, q]) * c_count, np.uint64(around[t, q + 16]) * c_count
            third, fourth = np.uint64(around[t, q + 32]) * c_count, np.uint64(around[t, q + 48]) * c_count
            at = q * c_count
            for c in range(c_count):
                v, w, x, y = feats[first + c], feats[second + c], feats[third + c], feats[fourth + c]
                along_z[at + c] = v - x
                along_z[at + plane + c] = w + x
                along_z[at + plane + plane + c] = x - w
                along_z[at + plane + plane + plane + c] = w - y
        for z in range(np.uint64(4)):
            _read_axis(along_z, along_yz, line, line, z * plane, z * plane)
        for q in range(np.uint64(16)):
            _read_axis(along_yz, read, c_count, stream, q * line, np.uint64(4) * q * stream + t * c_count)


@njit(inline="always")
def _write_axis(source: Floats, target: Floats, n: int, step: int, first: int, target_first: int) -> None:
    """The transform of products along one axis: four rows of n numbers, ``step`` apart, to two."""
    for i in range(n):
        v, w = source[first + i], source[first + step + i]
        x, y = source[first + step + step + i], source[first + step + step + step + i]
        target[target_first + i] = v + w + x
        target[target_first + n + i] = w - x - y


@njit(cache=True, nogil=True)
def _write(product: Floats, inside: NDArray[np.int32], out: Floats) -> None:
    """Transform products back, and write them to the sites of their blocks.

    Args:
        product: (64 * T * C,) place, block, channel.
        inside: (T, 8) as in :class:`Blocks`.
        out: (N, C) out.
    """
    blocks, c_count = np.uint64(inside.shape[0]), np.uint64(out.shape[1])
    stream, zero, two = blocks * c_count, np.uint64(0), np.uint64(2) * c_count
    along_x, along_xy = np.empty(np.uint64(32) * c_count, out.dtype), np.empty(np.uint64(16) * c_count, out.dtype)
    for t in range(blocks):
        for q in range(np.uint64(16)):
            _write_axis(product, along_x, c_count, stream, np.uint64(4) * q * stream + t * c_count, q * two)
        for z in range(np.uint64(4)):
            _write_axis(along_x, along_xy, two, two, np.uint64(4) * z * two, np.uint64(2) * z * two)
        _write_axis(along_xy, along_x, two + two, two + two, zero, zero)
        for k in range(np.uint64(8)):
            if inside[t, k] == out.shape[0]:
                continue
            row, at = out[inside[t, k]], k * c_count
            for c in range(c_count):
                row[c] = along_x[at + c]
