"""Which input site meets which output site under which kernel offset.

Kernel offsets are ordered x fastest. Odd kernels are centred, even kernels reach from 0 to k - 1: MinkowskiEngine's
convention, on which the meaning of released weights rests.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import site_key_step
from embodied_perceptron.sparse import cpu_kernels


def kernel_offsets(kernel_size: int) -> list[tuple[int, int, int]]:
    """(dx, dy, dz) of each row of a kernel, x fastest. Raises ``ValueError`` when the size is not positive."""
    if kernel_size < 1:
        raise ValueError(f"kernel_size must be positive, got {kernel_size}")
    reach = range(-(kernel_size // 2), kernel_size // 2 + 1) if kernel_size % 2 else range(kernel_size)
    return [(x, y, z) for z in reach for y in reach for x in reach]


@dataclass(frozen=True, eq=False)
class KernelMap:
    """Pairs of rows per kernel offset.

    Attributes:
        pairs: one (in_rows, out_rows) per offset, each (P_k,) int64 and strictly increasing: within one offset no row
            occurs twice, so that scattering needs no atomics and its order is fixed.
        identity: the offset at which input and output rows are all rows in order, or None.
        n_in, n_out: sizes of both sets.
    """

    pairs: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    identity: int | None
    n_in: int
    n_out: int

    @property
    def total(self) -> int:
        """Number of pairs."""
        return sum(len(i) for i, _ in self.pairs)

    @cached_property
    def neighbours(self) -> torch.Tensor:
        """(n_out, K) int32 the same as a table: the input row under each offset, or -1; on the CPU."""
        rows = torch.full((self.n_out, len(self.pairs)), -1, dtype=torch.int32)
        for k, (in_rows, out_rows) in enumerate(self.pairs):
            cpu_kernels.fill_neighbours(rows.numpy(), k, in_rows.numpy(), out_rows.numpy())
        return rows

    def transposed(self) -> KernelMap:
        """The map of the transposed convolution: the same pairs, read from out to in."""
        return KernelMap(tuple((o, i) for i, o in self.pairs), self.identity, self.n_out, self.n_in)


def build_kernel_map(
    in_keys: torch.Tensor, out_keys: torch.Tensor, kernel_size: int, in_stride: int, same: bool
) -> KernelMap:
    """Find all pairs with ``in = out + offset * in_stride``.

    Args:
        in_keys, out_keys: (N,), (M,) int64 site keys, strictly increasing, on one device.
        kernel_size: edge length of the cubic kernel.
        in_stride: stride of the input sites.
        same: both are the same set. An odd kernel is then symmetric, and half of the search is saved.
    """
    steps = [site_key_step(*(v * in_stride for v in offset)) for offset in kernel_offsets(kernel_size)]
    n_in, n_out = in_keys.numel(), out_keys.numel()
    symmetric = same and kernel_size % 2 == 1
    searched = len(steps) // 2 if symmetric else len(steps)
    find = _merge if in_keys.device.type == "cpu" else _search
    pairs = find(in_keys, out_keys, steps[:searched])
    if not symmetric:
        identity = steps.index(0) if same else None
        return KernelMap(tuple(pairs), identity, n_in, n_out)
    every = torch.arange(n_in, device=in_keys.device)
    mirrored = [(o, i) for i, o in reversed(pairs)]
    return KernelMap((*pairs, (every, every), *mirrored), searched, n_in, n_out)


def _search(in_keys: torch.Tensor, out_keys: torch.Tensor, steps: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Binary search of every wanted key; any device."""
    if in_keys.numel() == 0 or out_keys.numel() == 0:
        empty = torch.empty(0, dtype=torch.int64, device=in_keys.device)
        return [(empty, empty) for _ in steps]
    pairs = []
    for step in steps:
        wanted = out_keys + step
        rows = torch.searchsorted(in_keys, wanted).clamp_(max=in_keys.numel() - 1)
        out_rows = (in_keys[rows] == wanted).nonzero()[:, 0]
        pairs.append((rows[out_rows], out_rows))
    return pairs


def _merge(in_keys: torch.Tensor, out_keys: torch.Tensor, steps: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Merge join: both lists are sorted, and stay so when a constant is added to one; CPU."""
    in_rows, out_rows, ends = _merge_join(in_keys.numpy(), out_keys.numpy(), np.array(steps, dtype=np.int64))
    a, b = torch.from_numpy(in_rows), torch.from_numpy(out_rows)
    bounds = [0, *ends.tolist()]
    return [(a[s:e], b[s:e]) for s, e in itertools.pairwise(bounds)]


@numba.njit(cache=True, nogil=True)
def _merge_join(
    in_keys: NDArray[np.int64], out_keys: NDArray[np.int64], steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows of all pairs, offset after offset, and where each offset ends.

    Not parallel on purpose: numba's default threading layer aborts when two Python threads enter it at once, and
    perception runs beside fusion.
    """
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
