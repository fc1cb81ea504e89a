"""Compiled loops of sparse layers on the CPU. Each has an implementation by tensor operations next to its caller.

None is parallel: numba's default threading layer aborts when two Python threads enter it at once, and perception runs
in parallel with fusion.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import SITE_BITS

Floats = NDArray[np.floating[Any]]


def serves(*tensors: torch.Tensor) -> bool:
    """Whether the compiled loops support these tensors."""
    return runs_compiled(*tensors) and all(t.dtype in (torch.float32, torch.float64) for t in tensors)


@njit(cache=True, nogil=True)
def site_coordinates(key: int) -> tuple[int, int, int]:
    """x, y, z of a site: ``geometry.unpack_site_keys`` of one key."""
    mask, offset = (1 << SITE_BITS) - 1, 1 << (SITE_BITS - 1)
    return (key >> (2 * SITE_BITS) & mask) - offset, (key >> SITE_BITS & mask) - offset, (key & mask) - offset


@njit(cache=True, nogil=True)
def scatter_add(out: Floats, rows: NDArray[np.int64], values: Floats) -> None:
    """``out[rows] += values``."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for c in range(values.shape[1]):
            out[row, c] += values[i, c]


@njit(cache=True, nogil=True)
def scatter_max(
    out: Floats, winner: NDArray[np.int32], feats: Floats, in_rows: NDArray[np.int64], out_rows: NDArray[np.int64]
) -> None:
    """Raise ``out[out_rows]`` to ``feats[in_rows]`` and note in ``winner`` (-1 = none yet) which row attained it."""
    for i in range(in_rows.shape[0]):
        source, target = in_rows[i], out_rows[i]
        for c in range(feats.shape[1]):
            value, best = feats[source, c], out[target, c]
            if winner[target, c] < 0 or value > best or (np.isnan(value) and not np.isnan(best)):
                out[target, c] = value
                winner[target, c] = source


@njit(cache=True, nogil=True)
def interpolate(
    keys: NDArray[np.int64],
    bases: NDArray[np.int64],
    cells: NDArray[np.int64],
    coarse: NDArray[np.int64],
    corner_steps: NDArray[np.int64],
    stride: int,
    feats: Floats,
    total: Floats,
    weight: Floats,
) -> None:
    """Trilinear sums of the features at the corners of each site's cell; both outputs come filled with zeros.

    Args:
        keys: (M,) of the fine sites; bases: (M,) of the lowest corner of the cell of each.
        cells: (U,) the bases, sorted and each once.
        coarse: (N,) sorted keys of the sites that have features; stride: theirs.
        corner_steps: (8,) from a base to its corners, z fastest.
        feats: (N, C); total: (M, C) out; weight: (M,) out, of the corners that exist.
    """
    corners = np.full((cells.shape[0], 8), -1, np.int32)
    for k in range(8):
        j = 0
        for i in range(cells.shape[0]):
            wanted = cells[i] + corner_steps[k]
            while j < coarse.shape[0] and coarse[j] < wanted:
                j += 1
            if j == coarse.shape[0]:
                break
            if coarse[j] == wanted:
                corners[i, k] = j
    mask = (1 << SITE_BITS) - 1
    cell = 0
    for m in range(keys.shape[0]):
        while cells[cell] < bases[m]:  # sites are sorted: the next one's cell is near
            cell += 1
        while cells[cell] > bases[m]:
            cell -= 1
        step = keys[m] - bases[m]
        x, y, z = step >> (2 * SITE_BITS), (step >> SITE_BITS) & mask, step & mask
        for k in range(8):
            row = corners[cell, k]
            if row < 0:
                continue
            w = (x if k & 4 else stride - x) * (y if k & 2 else stride - y) * (z if k & 1 else stride - z)
            if w == 0:
                continue
            share = w / (stride * stride * stride)
            weight[m] += share
            for c in range(feats.shape[1]):
                total[m, c] += feats[row, c] * share


@njit(cache=True, nogil=True)
def rows_of(keys: NDArray[np.int64], wanted: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    """Where each of ``wanted`` stands in ``keys``, -1 where it does not; both strictly increasing."""
    j = 0
    for i in range(wanted.shape[0]):
        while j < keys.shape[0] and keys[j] < wanted[i]:
            j += 1
        rows[i] = j if j < keys.shape[0] and keys[j] == wanted[i] else -1


@njit(cache=True, nogil=True)
def first_not_below(keys: NDArray[np.int64], key: int, low: int, high: int) -> int:
    """First row of the sorted ``keys`` in [low, high) that is not below ``key``; ``high`` where there is none."""
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def find(keys: NDArray[np.int64], wanted: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    """As :func:`rows_of`, but ``wanted`` in any order; fast where each lies near the one before."""
    n, at = keys.shape[0], 0
    for i in range(wanted.shape[0]):
        key, step = wanted[i], 1
        if at < n and keys[at] < key:
            low = at + 1
            while at + step < n and keys[at + step] < key:
                low = at + step + 1
                step *= 2
            high = min(at + step, n)
        else:
            high = at
            while at - step >= 0 and keys[at - step] >= key:
                high = at - step
                step *= 2
            low = max(at - step + 1, 0)
        at = first_not_below(keys, key, low, high)
        rows[i] = at if at < n and keys[at] == key else -1


@njit(cache=True, nogil=True)
def fill_neighbours(rows: NDArray[np.int32], k: int, in_rows: NDArray[np.int64], out_rows: NDArray[np.int64]) -> None:
    """``rows[out_rows, k] = in_rows``."""
    for i in range(in_rows.shape[0]):
        rows[out_rows[i], k] = in_rows[i]


@njit(cache=True, nogil=True)
def merge_join(
    in_keys: NDArray[np.int64], out_keys: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Input and output rows of all pairs with ``in = out + step``, step after step, and where each step ends."""
    n, m, k_count = in_keys.shape[0], out_keys.shape[0], steps.shape[0]
    in_rows = np.empty(k_count * min(n, m), dtype=np.int64)
    out_rows = np.empty(k_count * min(n, m), dtype=np.int64)
    ends = np.empty(k_count, dtype=np.int64)
    p = 0
    for k in range(k_count):
        step = steps[k]
        j = 0
        for i in range(m):
            wanted = out_keys[i] + step
            while j < n and in_keys[j] < wanted:
                j += 1
            if j == n:
                break
            if in_keys[j] == wanted:
                in_rows[p] = j
                out_rows[p] = i
                p += 1
        ends[k] = p
    return in_rows[:p].copy(), out_rows[:p].copy(), ends


# --------------------------------------------------------------------------------------------------------------------
# convolution by blocks of 2 x 2 x 2 sites, see engine.Blocks


@njit(cache=True, nogil=True)
def fill_inside(
    keys: NDArray[np.int64], lowest: NDArray[np.int64], block_of: NDArray[np.int64], inside: NDArray[np.int32]
) -> None:
    """Write the row of each site to its place of its block; ``inside`` comes filled with the number of sites,
    ``lowest`` holds the (N,) key of the first place of each site's block."""
    mask = (1 << SITE_BITS) - 1
    for i in range(keys.shape[0]):
        step = keys[i] - lowest[i]
        x, y, z = step >> (2 * SITE_BITS), (step >> SITE_BITS) & mask, step & mask
        inside[block_of[i], (4 if z else 0) + (2 if y else 0) + (1 if x else 0)] = i


@njit(cache=True, nogil=True)
def fill_around(inside: NDArray[np.int32], neighbours: NDArray[np.int32], around: NDArray[np.int32]) -> None:
    """Write the rows of the 4 x 4 x 4 places around each block; ``inside`` is (B + 1, 8), its last row for absent
    blocks, ``neighbours`` the (B, 27) rows of the blocks around each, or -1."""
    for b in range(around.shape[0]):
        for p in range(64):
            x, y, z = (p & 3) + 1, (p >> 2 & 3) + 1, (p >> 4) + 1  # from the first place of the block before
            at = neighbours[b, (z >> 1) * 9 + (y >> 1) * 3 + (x >> 1)]
            around[b, p] = inside[at, (z & 1) * 4 + (y & 1) * 2 + (x & 1)]  # -1: the last row


# Loops run over unsigned numbers: for signed ones numba checks for negative indices and does not vectorise (three times
# slower).


@njit(inline="always")
def _read_axis(source: Floats, target: Floats, n: int, step: int, first: int, target_first: int) -> None:
    """Transform inputs along one axis: four rows of n numbers to four others, ``step`` apart."""
    for i in range(n):
        v, w, x, y = source[first + i], source[first + n + i], source[first + n + n + i], source[first + n + n + n + i]
        target[target_first + i] = v - x
        target[target_first + step + i] = w + x
        target[target_first + step + step + i] = x - w
        target[target_first + step + step + step + i] = w - y


@njit(cache=True, nogil=True)
def read_blocks(feats: Floats, around: NDArray[np.int32], read: Floats) -> None:
    """Gather and transform the inputs of blocks.

    Args:
        feats: ((N + 1) * C,) row after row, the last one zeros.
        around: (T, 64) as in :class:`~.engine.Blocks`.
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
    """Transform products along one axis: four rows of n numbers, ``step`` apart, to two."""
    for i in range(n):
        v, w = source[first + i], source[first + step + i]
        x, y = source[first + step + step + i], source[first + step + step + step + i]
        target[target_first + i] = v + w + x
        target[target_first + n + i] = w - x - y


@njit(cache=True, nogil=True)
def write_blocks(product: Floats, inside: NDArray[np.int32], out: Floats) -> None:
    """Transform products back and write them to the sites of their blocks.

    Args:
        product: (64 * T * C,) place, block, channel.
        inside: (T, 8) as in :class:`~.engine.Blocks`.
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
