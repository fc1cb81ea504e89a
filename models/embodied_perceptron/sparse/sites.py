"""Sites of sparse tensors: sorted sets of lattice points, the sets derived from them, and their neighbourhoods.

A :class:`Sites` is one immutable set of sites at one stride. It derives and remembers the coarser sets and the kernel
maps that layers ask for, so that every layer which reads the same sites pays for the neighbour search once.

Semantics are MinkowskiEngine's, on which the meaning of released EmbodiedScan weights rests: coordinates stay in units
of the finest voxel; sites of stride ``s`` are multiples of ``s``; down-sampling floors. Kernel offsets are ordered x
fastest; odd kernels are centred, even kernels reach from 0 to k - 1.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from embodied_perceptron.geometry.compute_path import takes_loops
from embodied_perceptron.geometry.transforms import (
    MAX_SAMPLES,
    distinct_keys,
    floor_site_keys,
    site_key_step,
    unpack_site_keys,
)
from embodied_perceptron.sparse import cpu_kernels


class Engine(Protocol):
    """Arithmetic of sparse layers; both methods are differentiable in ``feats`` and ``kernel``.

    Sites are derived here in every case; an engine only computes features at given sites. So engines differ in
    rounding, never in which voxels come out.
    """

    name: str

    def convolve(
        self,
        feats: torch.Tensor,
        kernel: torch.Tensor,
        in_sites: Sites,
        out_sites: Sites,
        kernel_size: int,
        transposed: bool,
        crowded: bool = False,
    ) -> torch.Tensor:
        """(N_in, Cin) features, (K, Cin, Cout) kernel -> (N_out, Cout); zero where no input is in reach.

        Not transposed: ``out[o] = sum_k feats[o + offset_k * stride_in] @ kernel[k]``. Transposed:
        ``out[i + offset_k * stride_out] += feats[i] @ kernel[k]``. ``crowded``: the caller expects sites that coarser
        ones were split into, and allows for the rounding of what is computed on the lattice of twice their stride.
        """
        ...

    def max_pool(self, feats: torch.Tensor, in_sites: Sites, out_sites: Sites, kernel_size: int) -> torch.Tensor:
        """(N_in, C) -> (N_out, C) maximum over the inputs in reach; zero where there is none. NaN stays NaN."""
        ...


def unique_keys(keys: torch.Tensor) -> torch.Tensor:
    """(N,) int64 -> sorted, each once. On the CPU ten times as fast as ``torch.unique``: numpy sorts with vectors."""
    if not takes_loops(keys):
        distinct: torch.Tensor = torch.unique(keys)
        return distinct
    found = np.empty(len(keys), np.int64)
    found = found[: cpu_kernels.without_repetitions(keys.numpy(), found)]  # floored sorted keys repeat in runs
    return torch.from_numpy(distinct_keys(found))


class Sites:
    """A sorted set of lattice sites of one stride, with its derived sets and kernel maps cached.

    Attributes:
        keys: (N,) int64 site keys (``geometry.pack_site_keys``), strictly increasing: by sample, then x, y, z.
        stride: every coordinate is a multiple of it.
        batch_size: number of samples; samples may be empty.
        engine: does the arithmetic of layers on these sites and on all sites derived from them.
    """

    def __init__(
        self, keys: torch.Tensor, stride: int, batch_size: int, engine: Engine, shared: dict[str, Any] | None = None
    ) -> None:
        """``keys`` must be sorted and unique; use :meth:`SparseTensor.from_coords` for anything unchecked."""
        if keys.ndim != 1 or keys.dtype != torch.int64:
            raise ValueError(f"keys must be (N,) int64, got {tuple(keys.shape)} {keys.dtype}")
        if stride < 1:
            raise ValueError(f"stride must be positive, got {stride}")
        if not 1 <= batch_size <= MAX_SAMPLES:
            raise ValueError(f"batch_size must be in [1, {MAX_SAMPLES}], got {batch_size}")
        self.keys = keys
        self.stride = stride
        self.batch_size = batch_size
        self.engine = engine
        self._coarser: dict[int, Sites] = {}
        # The other set stands in the value: its identity must outlive the cache entry. None = this set itself, which
        # would be a reference cycle.
        self._maps: dict[tuple[int, int], tuple[Sites | None, KernelMap]] = {}
        self._bounds: list[int] | None = None
        # What the engine remembers: of this set, and of all sets derived from one input.
        self.engine_state: Any = None
        self.engine_shared: dict[str, Any] = {} if shared is None else shared

    def __len__(self) -> int:
        return self.keys.numel()

    def __repr__(self) -> str:
        return f"Sites({len(self)} at stride {self.stride}, batch {self.batch_size}, {self.device})"

    @property
    def device(self) -> torch.device:
        return self.keys.device

    @property
    def samples(self) -> torch.Tensor:
        """(N,) int64 sample index of each site."""
        return unpack_site_keys(self.keys)[0]

    @property
    def coords(self) -> torch.Tensor:
        """(N, 3) int64 coordinates in units of the finest voxel."""
        return unpack_site_keys(self.keys)[1]

    @property
    def bounds(self) -> list[int]:
        """Row range of sample ``b`` is ``bounds[b]:bounds[b + 1]``; batch_size + 1 entries."""
        if self._bounds is None:
            if self.batch_size == 1:
                self._bounds = [0, len(self)]
            else:
                starts = torch.arange(self.batch_size + 1, device=self.device)
                self._bounds = [int(v) for v in torch.searchsorted(self.samples, starts).tolist()]
        return self._bounds

    def same_as(self, other: Sites) -> bool:
        """Whether both hold the same sites at the same stride."""
        if self is other:
            return True
        return self.stride == other.stride and len(self) == len(other) and torch.equal(self.keys, other.keys)

    def derive(self, keys: torch.Tensor, stride: int) -> Sites:
        """A new set with the batch size and the engine of this one."""
        return Sites(keys, stride, self.batch_size, self.engine, self.engine_shared)

    def coarser(self, factor: int) -> Sites:
        """The sites ``unique(floor(c / s) * s)`` with ``s = stride * factor``; this set itself for factor 1."""
        if factor == 1:
            return self
        if factor not in self._coarser:
            stride = self.stride * factor
            self._coarser[factor] = self.derive(unique_keys(floor_site_keys(self.keys, stride)), stride)
        return self._coarser[factor]

    def children(self, kernel_size: int, factor: int) -> Sites:
        """All sites ``c + offset * s`` of the finer stride ``s = stride / factor`` that a transposed kernel reaches.

        Raises ``ValueError`` when the stride is not divisible by ``factor``.
        """
        if factor < 1 or self.stride % factor:
            raise ValueError(f"stride {self.stride} cannot be refined by a factor of {factor}")
        stride = self.stride // factor
        steps = [site_key_step(*(v * stride for v in offset)) for offset in kernel_offsets(kernel_size)]
        keys = (self.keys[None, :] + torch.tensor(steps, device=self.device)[:, None]).reshape(-1)
        return self.derive(unique_keys(keys), stride)

    def kernel_map(self, out: Sites, kernel_size: int) -> KernelMap:
        """Pairs of (site of this set, site of ``out``) per kernel offset: ``this = out + offset * this.stride``."""
        cache_key = (id(out), kernel_size)
        if cache_key not in self._maps:
            built = build_kernel_map(self.keys, out.keys, kernel_size, self.stride, same=self is out)
            self._maps[cache_key] = (None if out is self else out, built)
        return self._maps[cache_key][1]

    def find(self, keys: torch.Tensor) -> torch.Tensor:
        """(M,) keys -> (M,) int64 rows of this set, -1 where absent."""
        if len(self) == 0:
            return torch.full_like(keys, -1)
        if takes_loops(self.keys):
            found = torch.empty(keys.shape, dtype=torch.int64)
            cpu_kernels.find(self.keys.numpy(), keys.contiguous().numpy(), found.numpy())
            return found
        rows = torch.searchsorted(self.keys, keys).clamp_(max=len(self) - 1)
        return torch.where(self.keys[rows] == keys, rows, -1)

    def rows_of(self, other: Sites) -> torch.Tensor:
        """(M,) int64 rows of this set where the sites of ``other`` stand, -1 where absent: :meth:`find`, faster."""
        if not takes_loops(self.keys):
            return self.find(other.keys)
        rows = torch.empty(len(other), dtype=torch.int64)
        cpu_kernels.rows_of(self.keys.numpy(), other.keys.numpy(), rows.numpy())
        return rows


# --------------------------------------------------------------------------------------------------------------------
# kernel maps


def kernel_offsets(kernel_size: int) -> list[tuple[int, int, int]]:
    """(dx, dy, dz) of each row of a kernel, x fastest. Raises ``ValueError`` when the size is not positive."""
    if kernel_size < 1:
        raise ValueError(f"kernel_size must be positive, got {kernel_size}")
    reach = range(-(kernel_size // 2), kernel_size // 2 + 1) if kernel_size % 2 else range(kernel_size)
    return [(x, y, z) for z in reach for y in reach for x in reach]


Pairs = tuple[tuple[torch.Tensor, torch.Tensor], ...]


class KernelMap:
    """Which input row lies under which kernel offset of which output row: as pairs of rows per offset, or as a table of
    the neighbours of every output row. One of them is found first, the CPU's merge finds pairs and the search of other
    devices a table; the other is made of it when it is asked for.

    Attributes:
        identity: the offset at which input and output rows are all rows in order, or None.
        n_in, n_out: sizes of both sets.
    """

    def __init__(
        self, n_in: int, n_out: int, identity: int | None, pairs: Pairs | None = None, table: torch.Tensor | None = None
    ) -> None:
        """``pairs`` or ``table``, as the properties of these names."""
        self.n_in, self.n_out, self.identity = n_in, n_out, identity
        self._pairs, self._table = pairs, table

    @cached_property
    def pairs(self) -> Pairs:
        """One (in_rows, out_rows) per offset, each (P_k,) int64 and strictly increasing: within one offset no row
        occurs twice, so that scattering needs no atomics and its order is fixed."""
        if self._pairs is not None:
            return self._pairs
        assert self._table is not None
        out_rows = [(column >= 0).nonzero()[:, 0] for column in self._table.unbind(1)]
        return tuple((self._table[rows, k].long(), rows) for k, rows in enumerate(out_rows))

    @property
    def total(self) -> int:
        """Number of pairs."""
        return sum(len(i) for i, _ in self.pairs)

    @cached_property
    def table(self) -> torch.Tensor:
        """(n_out, K) int32 the input row under each offset, or -1."""
        if self._table is not None:
            return self._table
        assert self._pairs is not None
        rows = torch.full((self.n_out, len(self._pairs)), -1, dtype=torch.int32)
        for k, (in_rows, out_rows) in enumerate(self._pairs):
            cpu_kernels.fill_neighbours(rows.numpy(), k, in_rows.numpy(), out_rows.numpy())
        return rows

    @cached_property
    def sources(self) -> torch.Tensor:
        """(n_out, K) as :attr:`table`, but ``n_in`` where no input row lies: that of a row of zeros behind the last."""
        return torch.where(self.table < 0, self.n_in, self.table)

    @cached_property
    def transposed(self) -> KernelMap:
        """The map of the transposed convolution: the same pairs, read from out to in."""
        if self._pairs is not None:
            pairs = tuple((o, i) for i, o in self._pairs)
            return KernelMap(self.n_out, self.n_in, self.identity, pairs)
        assert self._table is not None
        rows = self.sources.long()  # what has no neighbour is written to a row behind the last, which is then cut off
        out_rows = torch.arange(self.n_out, dtype=torch.int32, device=rows.device)[:, None].expand_as(rows)
        table = rows.new_full((self.n_in + 1, rows.shape[1]), -1, dtype=torch.int32)
        table = table.scatter_(0, rows, out_rows)[: self.n_in]
        return KernelMap(self.n_out, self.n_in, self.identity, table=table)


def build_kernel_map(
    in_keys: torch.Tensor, out_keys: torch.Tensor, kernel_size: int, in_stride: int, same: bool
) -> KernelMap:
    """Find all pairs with ``in = out + offset * in_stride``.

    Args:
        in_keys, out_keys: (N,), (M,) int64 site keys, strictly increasing, on one device.
        kernel_size: edge length of the cubic kernel.
        in_stride: stride of the input sites.
        same: both are the same set. An odd kernel is then symmetric, and half of the CPU's search is saved.
    """
    steps = [site_key_step(*(v * in_stride for v in offset)) for offset in kernel_offsets(kernel_size)]
    n_in, n_out = in_keys.numel(), out_keys.numel()
    identity = steps.index(0) if same else None
    if not takes_loops(in_keys):
        return KernelMap(n_in, n_out, identity, table=_search(in_keys, out_keys, steps))
    if not (same and kernel_size % 2):
        return KernelMap(n_in, n_out, identity, tuple(_merge(in_keys, out_keys, steps)))
    pairs = _merge(in_keys, out_keys, steps[: len(steps) // 2])
    every = torch.arange(n_in)
    mirrored = [(o, i) for i, o in reversed(pairs)]
    return KernelMap(n_in, n_out, identity, (*pairs, (every, every), *mirrored))


def _search(in_keys: torch.Tensor, out_keys: torch.Tensor, steps: list[int]) -> torch.Tensor:
    """(M, K) int32 :attr:`KernelMap.table` by one binary search of all that is wanted; any device, nothing waits."""
    if in_keys.numel() == 0:
        return torch.full((len(out_keys), len(steps)), -1, dtype=torch.int32, device=in_keys.device)
    wanted = out_keys[:, None] + torch.tensor(steps, device=in_keys.device)
    rows = torch.searchsorted(in_keys, wanted).clamp_(max=in_keys.numel() - 1)
    return torch.where(in_keys[rows] == wanted, rows, -1).to(torch.int32)


def _merge(in_keys: torch.Tensor, out_keys: torch.Tensor, steps: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Merge join: both lists are sorted, and stay so when a constant is added to one; CPU."""
    in_rows, out_rows, ends = cpu_kernels.merge_join(in_keys.numpy(), out_keys.numpy(), np.array(steps, dtype=np.int64))
    a, b = torch.from_numpy(in_rows), torch.from_numpy(out_rows)
    bounds = [0, *ends.tolist()]
    return [(a[s:e], b[s:e]) for s, e in itertools.pairwise(bounds)]
