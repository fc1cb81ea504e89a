"""Sites of sparse tensors: sorted sets of lattice points, the sets derived from them, and their kernel maps.

A :class:`Sites` is one immutable set of sites at one stride. It caches the coarser sets and the kernel maps that layers
request, so that layers on the same sites share one neighbour search. Creating one chooses its backend once: compiled
loops for keys on the CPU (:class:`CompiledSites`), tensor operations on other devices. Both give the same results.

Conventions are MinkowskiEngine's, which released EmbodiedScan weights require: coordinates stay in units of the finest
voxel; sites of stride ``s`` are multiples of ``s``; down-sampling rounds down. Kernel offsets are ordered x fastest;
odd kernels are centred, even kernels cover 0 to k - 1.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from embodied_perceptron.geometry.bits import distinct_site_keys
from embodied_perceptron.geometry.compute_path import launch, runs_compiled
from embodied_perceptron.geometry.transforms import (
    MAX_SAMPLES,
    SITE_BITS,
    constant,
    floor_site_keys,
    site_coordinates,
    site_key_mask,
    site_key_step,
)
from embodied_perceptron.sparse import cpu_kernels

_ALL_BITS = -1  # as a mask


class Engine(Protocol):
    """Arithmetic of sparse layers; both methods are differentiable in ``feats``, ``kernel`` and ``bias``.

    An engine computes features at given sites and never derives sites, so engines differ in rounding only.
    """

    name: str

    def convolve(
        self,
        feats: torch.Tensor,
        kernel: torch.Tensor,
        in_sites: Sites,
        out_sites: Sites,
        kernel_size: int,
        crowded: bool | torch.Tensor = False,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(N_in, Cin) features, (K, Cin, Cout) kernel, (1, Cout) bias -> (N_out, Cout); bias alone without inputs.

        Output sites of the same or a larger stride: ``out[o] = sum_k feats[o + offset_k * stride_in] @ kernel[k]``. A
        smaller stride means a transposed convolution: ``out[i + offset_k * stride_out] += feats[i] @ kernel[k]``.

        ``crowded``: the sites come from splitting coarser ones, and the engine may convolve them by blocks, with other
        rounding; a tensor holds the block filters of the kernel (:func:`~.engine.block_filters`).
        """
        ...

    def max_pool(self, feats: torch.Tensor, in_sites: Sites, out_sites: Sites, kernel_size: int) -> torch.Tensor:
        """(N_in, C) -> (N_out, C) maximum over the inputs in reach; zero where there is none. NaN stays NaN."""
        ...


def _distinct(
    ordered: torch.Tensor, ends: torch.Tensor | slice, *more: torch.Tensor
) -> tuple[torch.Tensor, list[int], torch.Tensor]:
    """(N,) sorted int64 -> its distinct values; the number of them before each of the rows ``ends``, the last of which
    is N, and the numbers of ``more``; (N,) places of the values. Synchronises with the device once."""
    before = torch.cat([constant((0, 1), ordered.device), (ordered[1:] != ordered[:-1]).cumsum(0).add_(1)])
    counts = before[ends]
    numbers = torch.cat([counts, *more]).tolist() if more else counts.tolist()
    places = before[1 : len(ordered) + 1] - 1
    # equal values are written to the same row
    return ordered.new_empty(numbers[len(counts) - 1]).scatter_(0, places, ordered), numbers, places


def _distinct_levels(
    keys: torch.Tensor, strides: Sequence[int], first: int, bounds: Sequence[int], *more: torch.Tensor
) -> tuple[torch.Tensor, list[int], torch.Tensor, torch.Tensor]:
    """:func:`_distinct` of (N,) keys, ordered by sample, at several strides, one after the other; ``bounds`` of the
    samples. Sample bits number the pairs of stride and sample, from ``first`` strides on. Also returns the order."""
    batch_size, size = len(bounds) - 1, len(keys)
    masks = constant(tuple(site_key_mask(s) for s in strides), keys.device)
    numbers = tuple((first + i) * batch_size << (3 * SITE_BITS) for i in range(len(strides)))
    every = (keys & masks[:, None]) + constant(numbers, keys.device)[:, None]
    ordered, order = every.flatten().sort()
    ends: torch.Tensor | slice = slice(None, None, size)
    if batch_size > 1:
        parts = [0] + [i * size + end for i in range(len(strides)) for end in bounds[1:]]
        ends = torch.tensor(parts).to(keys.device, non_blocking=True)
    return *_distinct(ordered, ends, *more), order


class Sites:
    """A sorted set of lattice sites of one stride, with its derived sets and kernel maps cached.

    Attributes:
        keys: (N,) int64 site keys (``geometry.pack_site_keys``), strictly increasing: by sample, then x, y, z.
        stride: every coordinate is a multiple of it.
        batch_size: number of samples; samples may be empty.
        engine: does the arithmetic of layers on these sites and on all sites derived from them.
        compiled: whether compiled CPU loops compute with these sites, and reading a value never waits for a device.
    """

    compiled: ClassVar[bool] = False

    def __new__(cls, keys: torch.Tensor | None = None, *_: Any, **__: Any) -> Sites:
        """Choose the backend for the device of the keys; copying calls this without arguments."""
        if cls is not Sites or keys is None:
            return super().__new__(cls)
        return object.__new__(CompiledSites if runs_compiled(keys) else DeviceSites)

    def __init__(
        self,
        keys: torch.Tensor,
        stride: int,
        batch_size: int,
        engine: Engine,
        shared: dict[str, Any] | None = None,
        bounds: list[int] | None = None,
    ) -> None:
        """``keys`` must be sorted and unique; use :meth:`SparseTensor.from_coords` for unchecked input. ``bounds``: the
        property, if known; computing it reads from the device."""
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
        # The value holds the other set, because its id must stay valid while the entry exists. None = this set itself,
        # to avoid a reference cycle.
        self._maps: dict[tuple[int, int], tuple[Sites | None, KernelMap]] = {}
        self._bounds = bounds
        self._chain: _Chain | None = None
        # The engine's own state: of this set, and of all sets derived from one input.
        self.engine_state: Any = None
        self.engine_shared: dict[str, Any] = {} if shared is None else shared

    def __len__(self) -> int:
        return self.keys.numel()

    def __repr__(self) -> str:
        return f"Sites({len(self)} at stride {self.stride}, batch {self.batch_size}, {self.device})"

    @property
    def device(self) -> torch.device:
        return self.keys.device

    @cached_property
    def samples(self) -> torch.Tensor:
        """(N,) int64 sample index of each site."""
        return self.keys >> (3 * SITE_BITS)

    @cached_property
    def coords(self) -> torch.Tensor:
        """(N, 3) int64 coordinates in units of the finest voxel."""
        return site_coordinates(self.keys)

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

    def derive(self, keys: torch.Tensor, stride: int, bounds: list[int] | None = None) -> Sites:
        """Make a set with the batch size and engine of this one, or return the equal set that an engine has kept."""
        memory: SitesMemory | None = self.engine_shared["sites"]() if "sites" in self.engine_shared else None
        known = None if memory is None else memory.find(keys, stride)
        if known is not None:
            return known
        made = type(self)(keys, stride, self.batch_size, self.engine, self.engine_shared, bounds)
        return made if memory is None else memory.add(made)

    def coarser(self, factor: int) -> Sites:
        """The sites ``unique(floor(c / s) * s)`` with ``s = stride * factor``; this set itself for factor 1."""
        if factor == 1:
            return self
        if factor not in self._coarser:
            stride = self.stride * factor
            self._coarser[factor] = self.derive_distinct(floor_site_keys(self.keys, stride), stride, self.bounds)
        return self._coarser[factor]

    def has_parents_in(self, coarse: Sites) -> bool:
        """Whether ``coarse`` was derived as :meth:`coarser` of factor 2 from this set. Split, it holds this set."""
        return self._coarser.get(2) is coarse

    def children(self, kernel_size: int, factor: int) -> Sites:
        """All sites ``c + offset * s`` of the finer stride ``s = stride / factor`` that a transposed kernel reaches.

        Raises ``ValueError`` when the stride is not divisible by ``factor``.
        """
        if factor < 1 or self.stride % factor:
            raise ValueError(f"stride {self.stride} cannot be refined by a factor of {factor}")
        stride = self.stride // factor
        keys = (self.keys[None, :] + constant(kernel_steps(kernel_size, stride), self.device)[:, None]).reshape(-1)
        bounds = [kernel_size**3 * end for end in self.bounds]
        return self.derive_distinct(keys, stride, bounds, distinct=kernel_size <= factor)  # then each has one parent

    def derive_distinct(self, keys: torch.Tensor, stride: int, bounds: list[int], distinct: bool = False) -> Sites:
        """A new set of (N,) unordered keys; ``bounds``: as the property, of these keys; ``distinct``: none repeats."""
        if distinct:
            return self.derive(keys.sort().values, stride, bounds)
        if self.batch_size == 1:
            return self.derive(torch.unique(keys), stride)
        found, ends, _ = _distinct(keys.sort().values, torch.tensor(bounds).to(keys.device, non_blocking=True))
        return self.derive(found, stride, ends)

    def derive_coarser(self, factors: Sequence[int]) -> None:
        """Derive the sets of a chain of :meth:`coarser` by ``factors`` together: one synchronisation instead of one per
        set."""
        strides = list(itertools.accumulate(factors, int.__mul__, initial=self.stride))[1:]
        if self._chain is not None or not _may_chain(strides, self.batch_size) or len(self) == 0:
            return
        coarser, ends, _, _ = _distinct_levels(self.keys, strides, 1, self.bounds)
        self._link(factors, torch.cat([self.keys, coarser]), [len(self) + end for end in ends])

    @staticmethod
    def of_points(
        keys: torch.Tensor, factors: Sequence[int], engine: Engine, *more: torch.Tensor
    ) -> tuple[Sites, torch.Tensor, torch.Tensor, list[int]]:
        """Distinct sites at stride 1 of one sample, and a chain of coarser sets as by :meth:`derive_coarser`, with one
        synchronisation.

        Args:
            keys: (N,) unordered, N > 0.
            more: 1-D tensors of numbers to read as well.

        Returns the sites, the order of the keys, the row of each of the keys in this order, and the numbers.
        """
        strides = list(itertools.accumulate(factors, int.__mul__, initial=1))
        strides = strides if _may_chain(strides, 1) else [1]
        together, numbers, rows, order = _distinct_levels(keys, strides, 0, [0, len(keys)], *more)
        ends, size = numbers[: len(strides) + 1], len(keys)
        sites = Sites(together[: ends[1]], 1, 1, engine)
        if len(strides) > 1 and not sites.compiled:
            sites._link(factors, together, ends[1:])
        return sites, order[:size], rows[:size], numbers[len(ends) :]

    def _link(self, factors: Sequence[int], together: torch.Tensor, ends: Sequence[int]) -> None:
        """Register a chain of coarser sets: the keys of this set and of all others, whose sample bits number the sets;
        ``ends`` of this set and of each sample of the others."""
        single = together & ((1 << (3 * SITE_BITS)) - 1) if self.batch_size == 1 else together
        chain = [self]
        for i, factor in enumerate(factors):
            bounds = ends[i * self.batch_size : (i + 1) * self.batch_size + 1]
            found = single[bounds[0] : bounds[-1]]
            if self.batch_size > 1:
                found = found - ((i + 1) * self.batch_size << (3 * SITE_BITS))
            coarse = self.derive(found, chain[-1].stride * factor, [end - bounds[0] for end in bounds])
            chain.append(chain[-1]._coarser.setdefault(factor, coarse))
        _Chain(chain, together)

    def kernel_map(self, out: Sites, kernel_size: int) -> KernelMap:
        """Pairs of (site of this set, site of ``out``) per kernel offset: ``this = out + offset * this.stride``."""
        cache_key = (id(out), kernel_size)
        if cache_key not in self._maps:
            self._maps[cache_key] = (None if out is self else out, self._find_map(out, kernel_size))
        return self._maps[cache_key][1]

    def _find_map(self, out: Sites, kernel_size: int) -> KernelMap:
        if self._chain is not None and out._chain is self._chain:
            return self._chain.kernel_map(self, out, kernel_size)
        sources = search(self.keys, out.keys, kernel_steps(kernel_size, self.stride))
        identity = kernel_size**3 // 2 if self is out and kernel_size % 2 else None
        return KernelMap(len(self), len(out), identity, sources=sources)

    def transposed_map(self, out: Sites, kernel_size: int) -> KernelMap:
        """Of a transposed convolution from these sites to the finer ``out``: ``out = this + offset * out.stride``."""
        cache_key = (id(out), -kernel_size)
        if cache_key not in self._maps:
            steps = tuple(-step for step in kernel_steps(kernel_size, out.stride))
            built = KernelMap(len(self), len(out), None, sources=search(self.keys, out.keys, steps))
            self._maps[cache_key] = (out, built)
        return self._maps[cache_key][1]

    def find(self, keys: torch.Tensor) -> torch.Tensor:
        """(M,) keys -> (M,) int64 rows of this set, -1 where absent."""
        return locate(self.keys, keys, constant((0,), self.device)[None], False)[:, 0].long()

    def rows_of(self, other: Sites) -> torch.Tensor:
        """(M,) int64 row of each site of ``other`` in this set, -1 where absent: :meth:`find` of sorted keys."""
        return self.find(other.keys)


class DeviceSites(Sites):
    """Sites on a device, by the tensor operations of :class:`Sites`."""


class CompiledSites(Sites):
    """Sites on the CPU, by compiled loops."""

    compiled = True

    def derive_distinct(self, keys: torch.Tensor, stride: int, bounds: list[int], distinct: bool = False) -> Sites:
        return self.derive(torch.from_numpy(distinct_site_keys(keys.numpy())), stride)

    def derive_coarser(self, factors: Sequence[int]) -> None:
        """Do nothing: :meth:`coarser` has no device to wait for."""

    def _find_map(self, out: Sites, kernel_size: int) -> KernelMap:
        return build_kernel_map(self.keys, out.keys, kernel_size, self.stride, same=self is out)

    def transposed_map(self, out: Sites, kernel_size: int) -> KernelMap:
        return out.kernel_map(self, kernel_size).transposed

    def find(self, keys: torch.Tensor) -> torch.Tensor:
        if len(self) == 0:
            return torch.full_like(keys, -1)
        found = torch.empty(keys.shape, dtype=torch.int64)
        cpu_kernels.find(self.keys.numpy(), keys.contiguous().numpy(), found.numpy())
        return found

    def rows_of(self, other: Sites) -> torch.Tensor:
        rows = torch.empty(len(other), dtype=torch.int64)
        cpu_kernels.rows_of(self.keys.numpy(), other.keys.numpy(), rows.numpy())
        return rows


class SitesMemory:
    """Cache of the sets of the last pass over a map and of the current one, for one sample on the CPU. Equal sites give
    the same object, so that its derived sets and kernel maps are reused."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], list[Sites]] = {}
        self._now: dict[tuple[int, int], list[Sites]] = {}
        self._thread: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the calling thread runs the pass; sets that other threads derive are not cached."""
        return threading.get_ident() == self._thread

    @contextmanager
    def open(self) -> Iterator[None]:
        """Run one pass in this thread; sets that it does not use are dropped at its end."""
        self._now, self._thread = {}, threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._keep_used()

    def _keep_used(self) -> None:
        kept = {id(s): s for sets in self._now.values() for s in sets}
        waiting = list(kept.values())
        while waiting:  # a set counts as used when a finer one that is used has derived it
            for coarse in waiting.pop()._coarser.values():
                if id(coarse) not in kept:
                    kept[id(coarse)] = coarse
                    waiting.append(coarse)
        self._last, self._now = {}, {}
        for sites in kept.values():
            sites._maps = {k: v for k, v in sites._maps.items() if v[0] is None or id(v[0]) in kept}
            self._last.setdefault((sites.stride, len(sites)), []).append(sites)

    def find(self, keys: torch.Tensor, stride: int) -> Sites | None:
        """The cached set with these (N,) keys; None when there is none or no pass runs in this thread."""
        if not self.is_open:
            return None
        place = stride, len(keys)
        for sites in (*self._now.get(place, ()), *self._last.get(place, ())):
            if torch.equal(sites.keys, keys):
                return self.add(sites)
        return None

    def add(self, sites: Sites) -> Sites:
        """Cache a set, and return it."""
        if self.is_open:
            sets = self._now.setdefault((sites.stride, len(sites)), [])
            if not any(known is sites for known in sets):
                sets.append(sites)
        return sites


def _may_chain(strides: Sequence[int], batch_size: int) -> bool:
    """Whether sample bits can number the sets of a chain and its finest, and masks round down to these strides."""
    return all(s & (s - 1) == 0 for s in strides) and (len(strides) + 1) * batch_size <= MAX_SAMPLES


class _Chain:
    """Kernel maps of a chain of sets, each the coarser one of the set before: one search per kernel size for all sets.

    Args:
        sets: finest first, on a device, as many as the sample bits of a key can distinguish.
        keys: of all of them; their sample bits number the sets.
    """

    def __init__(self, sets: Sequence[Sites], keys: torch.Tensor) -> None:
        batch_size = sets[0].batch_size
        self._place = {s.stride: i for i, s in enumerate(sets)}
        self._strides = [s.stride for s in sets]
        self._ends = list(itertools.accumulate((len(s) for s in sets), initial=0))
        self._numbers = [i * batch_size << (3 * SITE_BITS) for i in range(len(sets))]
        self._keys = keys
        self._maps: dict[tuple[int, int], torch.Tensor] = {}
        for s in sets:
            s._chain = self

    def kernel_map(self, sites: Sites, out: Sites, kernel_size: int) -> KernelMap:
        """:meth:`Sites.kernel_map` from one of the sets to itself or to the next."""
        strided, column = int(sites is not out), slice(None)
        if kernel_size == 1 and (strided, 3) in self._maps:  # the middle of the larger kernel
            kernel_size, column = 3, slice(13, 14)
        if (strided, kernel_size) not in self._maps:
            self._maps[strided, kernel_size] = self._find(strided, kernel_size)
        place = self._place[out.stride]
        first = self._ends[strided]
        rows = slice(self._ends[place] - first, self._ends[place + 1] - first)
        sources = self._maps[strided, kernel_size][rows, column]
        identity = sources.shape[1] // 2 if not strided and kernel_size % 2 else None
        return KernelMap(len(sites), len(out), identity, sources=sources)

    def _find(self, strided: int, kernel_size: int) -> torch.Tensor:
        """(M, K) int32 sources of all sets, or of all but the finest from those before them."""
        ends, device = self._ends, self._keys.device
        outs = range(strided, len(self._strides))
        table = []  # per output set: steps to its inputs, first and last row of the inputs, last of the outputs
        for i in outs:
            source = i - strided
            aside = self._numbers[source] - self._numbers[i]
            steps = [step + aside for step in kernel_steps(kernel_size, self._strides[source])]
            table.append([*steps, ends[source], ends[source + 1], ends[i + 1] - ends[strided]])
        numbers = torch.tensor(table).to(device, non_blocking=True)
        found = numbers[:, :-3], True, numbers[:, -3:-1], numbers[:, -1:]
        return locate(self._keys, self._keys[ends[strided] :], *found)


def find_in_all(sets: Sequence[Sites], keys: torch.Tensor) -> torch.Tensor:
    """(M,) keys at stride 1, S sets of sites -> (M, S) int32 row of the site that contains each key, -1 where
    absent."""
    if sets[0].compiled or any(s.stride & (s.stride - 1) for s in sets):
        return torch.stack([s.find(floor_site_keys(keys, s.stride)) for s in sets], -1).to(torch.int32)
    masks = tuple(site_key_mask(s.stride) for s in sets)
    spans = itertools.pairwise(itertools.accumulate((len(s) for s in sets), initial=0))
    rows = torch.tensor([list(itertools.chain.from_iterable(spans))]).to(keys.device, non_blocking=True)
    steps = constant((0,) * len(sets), keys.device)[None]
    return locate(torch.cat([s.keys for s in sets]), keys, steps, False, rows, masks=masks)


# --------------------------------------------------------------------------------------------------------------------
# kernel maps


def kernel_offsets(kernel_size: int) -> list[tuple[int, int, int]]:
    """(dx, dy, dz) of each row of a kernel, x fastest. Raises ``ValueError`` when the size is not positive."""
    if kernel_size < 1:
        raise ValueError(f"kernel_size must be positive, got {kernel_size}")
    reach = range(-(kernel_size // 2), kernel_size // 2 + 1) if kernel_size % 2 else range(kernel_size)
    return [(x, y, z) for z in reach for y in reach for x in reach]


@cache
def kernel_steps(kernel_size: int, stride: int) -> tuple[int, ...]:
    """Differences between the keys under the rows of a kernel and the key at its origin."""
    return tuple(site_key_step(*(v * stride for v in offset)) for offset in kernel_offsets(kernel_size))


Pairs = tuple[tuple[torch.Tensor, torch.Tensor], ...]


class KernelMap:
    """Input rows under each kernel offset of each output row, as pairs of rows per offset or as a table of sources. The
    merge on the CPU finds pairs, the search on other devices finds sources; the other form is computed on request.

    Attributes:
        identity: the offset whose pairs are all rows in order, or None.
        n_in, n_out: sizes of both sets.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        identity: int | None,
        pairs: Pairs | None = None,
        sources: torch.Tensor | None = None,
    ) -> None:
        """``pairs`` or ``sources``, as the properties of these names."""
        self.n_in, self.n_out, self.identity = n_in, n_out, identity
        self._pairs, self._sources = pairs, sources

    @cached_property
    def pairs(self) -> Pairs:
        """One (in_rows, out_rows) per offset, each (P_k,) int64 and strictly increasing. No row repeats within an
        offset, so scattering needs no atomics and has a fixed order."""
        if self._pairs is not None:
            return self._pairs
        assert self._sources is not None
        out_rows = [(column < self.n_in).nonzero()[:, 0] for column in self._sources.unbind(1)]
        return tuple((self._sources[rows, k].long(), rows) for k, rows in enumerate(out_rows))

    @property
    def total(self) -> int:
        """Number of pairs."""
        return sum(len(i) for i, _ in self.pairs)

    @cached_property
    def table(self) -> torch.Tensor:
        """(n_out, K) int32 input row under each offset, or -1."""
        if self._sources is not None:
            return self._sources.masked_fill(self._sources == self.n_in, -1)
        assert self._pairs is not None
        rows = torch.full((self.n_out, len(self._pairs)), -1, dtype=torch.int32)
        for k, (in_rows, out_rows) in enumerate(self._pairs):
            cpu_kernels.fill_neighbours(rows.numpy(), k, in_rows.numpy(), out_rows.numpy())
        return rows

    @cached_property
    def sources(self) -> torch.Tensor:
        """(n_out, K) int32 as :attr:`table`, with ``n_in`` instead of -1: the row of zeros behind the last input."""
        return self.table.masked_fill(self.table < 0, self.n_in) if self._sources is None else self._sources

    @cached_property
    def transposed(self) -> KernelMap:
        """The map of the transposed convolution: the same pairs with inputs and outputs swapped."""
        if self._pairs is not None:
            pairs = tuple((o, i) for i, o in self._pairs)
            return KernelMap(self.n_out, self.n_in, self.identity, pairs)
        if self.identity is not None and self.sources.shape[1] == 2 * self.identity + 1:
            # a centred kernel on one set is symmetric
            return KernelMap(self.n_out, self.n_in, self.identity, sources=self.sources.flip(1))
        rows = self.sources.long()  # rows without a neighbour are written behind the last row, which is cut off
        out_rows = torch.arange(self.n_out, dtype=torch.int32, device=rows.device)[:, None].expand_as(rows)
        sources = rows.new_full((self.n_in + 1, rows.shape[1]), self.n_out, dtype=torch.int32)
        sources = sources.scatter_(0, rows, out_rows)[: self.n_in]
        return KernelMap(self.n_out, self.n_in, self.identity, sources=sources)


@cache
def empty_row(channels: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(1, C) zeros, created once: the features of absent sites."""
    with torch.inference_mode(False):
        return torch.zeros(1, channels, dtype=dtype, device=device)


def build_kernel_map(
    in_keys: torch.Tensor, out_keys: torch.Tensor, kernel_size: int, in_stride: int, same: bool
) -> KernelMap:
    """Find all pairs with ``in = out + offset * in_stride`` on the CPU.

    Args:
        in_keys, out_keys: (N,), (M,) int64 site keys, strictly increasing.
        kernel_size: edge length of the cubic kernel.
        in_stride: stride of the input sites.
        same: both are the same set. An odd kernel is then symmetric, which saves half of the search.
    """
    steps = list(kernel_steps(kernel_size, in_stride))
    n_in, n_out = in_keys.numel(), out_keys.numel()
    identity = steps.index(0) if same else None
    if not (same and kernel_size % 2):
        return KernelMap(n_in, n_out, identity, tuple(_merge(in_keys, out_keys, steps)))
    pairs = _merge(in_keys, out_keys, steps[: len(steps) // 2])
    every = torch.arange(n_in)
    mirrored = [(o, i) for i, o in reversed(pairs)]
    return KernelMap(n_in, n_out, identity, (*pairs, (every, every), *mirrored))


def search(keys: torch.Tensor, out_keys: torch.Tensor, steps: tuple[int, ...]) -> torch.Tensor:
    """(M, K) int32 :attr:`KernelMap.sources`; ``keys`` (N,) of the input."""
    return locate(keys, out_keys, constant(steps, keys.device)[None], True)


def locate(
    keys: torch.Tensor,
    wanted: torch.Tensor,
    steps: torch.Tensor,
    behind: bool,
    spans: torch.Tensor | None = None,
    lasts: torch.Tensor | None = None,
    masks: tuple[int, ...] = (_ALL_BITS,),
) -> torch.Tensor:
    """Find keys by one binary search on a device, without synchronising.

    Args:
        keys: (N,) int64, sorted within each span.
        wanted: (M,) int64 in T consecutive parts; ``(wanted[m] & masks[k]) + steps[t, k]`` is searched.
        steps: (T, K) int64.
        behind: an absent key gives the number of rows of its span; otherwise -1.
        spans: (T, 2) int64 first and last row of the keys that are searched, or (1, 2 * K) for each column; None = all.
            Rows are counted from the first.
        lasts: (T, 1) int64 ends of the parts; None = one part.
        masks: K, or one for all.

    Returns (M, K) int32 rows.
    """
    from embodied_perceptron.sparse import site_kernels

    device, shape = keys.device, (len(wanted), steps.shape[1])
    zero = constant((0,), device)[None]
    tables = steps, constant(masks, device), zero if spans is None else spans, zero if lasts is None else lasts
    rows = torch.empty(shape, dtype=torch.int32, device=device)
    if rows.numel():
        launch(site_kernels.locate, shape, keys.contiguous(), wanted.contiguous(), *tables, behind, rows)
    return rows


def _merge(in_keys: torch.Tensor, out_keys: torch.Tensor, steps: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Merge join of sorted keys on the CPU: adding a constant to one side keeps it sorted."""
    in_rows, out_rows, ends = cpu_kernels.merge_join(in_keys.numpy(), out_keys.numpy(), np.array(steps, dtype=np.int64))
    a, b = torch.from_numpy(in_rows), torch.from_numpy(out_rows)
    bounds = [0, *ends.tolist()]
    return [(a[s:e], b[s:e]) for s, e in itertools.pairwise(bounds)]
