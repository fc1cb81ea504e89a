"""Compiled loops of the torch engine on the CPU; each has a plain torch twin beside who calls it.

None is parallel: numba's default threading layer aborts when two Python threads enter it at once, and perception runs
beside fusion.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.compute_path import takes_loops
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import SITE_BITS

Floats = NDArray[np.floating[Any]]


def serves(*tensors: torch.Tensor) -> bool:
    """Whether the compiled loops take these tensors."""
    return takes_loops(*tensors) and all(t.dtype in (torch.float32, torch.float64) for t in tensors)


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
