"""Incremental sparse layers over a growing map: reuse outputs of the last pass where inputs are unchanged.

An output of a layer depends on the inputs under its kernel, so it stays valid unless one of them was changed, added or
removed. :class:`LayerMemory` compares the inputs of each layer with those of the last pass, so it needs no notice of
changes of the map (new views, corrections, another map from a file). A layer with mostly changed inputs is computed
completely.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import floor_site_keys
from embodied_perceptron.sparse.cpu_kernels import Floats
from embodied_perceptron.sparse.engine import NOTHING, After, TorchEngine, finished, gather_multiply_scatter
from embodied_perceptron.sparse.sites import Sites, SitesMemory, build_kernel_map, kernel_steps
from embodied_perceptron.sparse.tensor import SparseTensor

_MOST = 0.6  # of the outputs of a layer: if more have changed, all are computed
_SAMPLE = 64  # inputs of a layer by which it is judged first
_MOST_INPUTS = 0.5  # of them: where more have changed, the outputs have


@dataclass(frozen=True, eq=False)
class _Layer:
    """What a convolution read and gave; ``kernel``, held so that its identity stays its own, at its ``version``."""

    kernel: torch.Tensor
    version: int
    x: SparseTensor
    out: SparseTensor


class LayerMemory:
    """What every convolution of one network read and gave in the last pass over one map, for inference. It is that of
    one pass, whatever the length of the run.

        with memory.over(x) as x:
            levels = network.encode(x, lookup)

    Sites and kernel maps of the last pass serve again where the sites are the same. Outside of a pass, in other
    threads, and on devices, whose launches cost more than their arithmetic, layers are computed whole.

    Attributes:
        computed: outputs of the layers that may be kept, as far as the last pass computed them; outputs: all of them.
    """

    def __init__(self) -> None:
        self.computed = self.outputs = 0
        self.sites = SitesMemory()
        self._layers: dict[int, _Layer] = {}
        self._engine = IncrementalEngine(self)

    def forget(self) -> None:
        """The next pass computes all."""
        self.sites = SitesMemory()
        self._layers.clear()

    @contextmanager
    def over(self, x: SparseTensor) -> Iterator[SparseTensor]:
        """A pass over an input of one sample on the CPU; gives the same input on sites that lead here."""
        self.computed = self.outputs = 0
        with self.sites.open():
            known = self.sites.find(x.keys, x.stride)
            if known is None:
                shared = {"sites": weakref.ref(self.sites)}
                known = self.sites.add(Sites(x.keys, x.stride, x.batch_size, self._engine, shared, x.sites.bounds))
            yield SparseTensor(known, x.feats)

    def convolve(
        self,
        x: SparseTensor,
        kernel: torch.Tensor,
        out_sites: Sites,
        kernel_size: int,
        whole: Callable[[], torch.Tensor],
    ) -> torch.Tensor:
        """Outputs of a layer, which are kept and must not be changed; ``whole`` computes all of them."""
        out = self._from_last(x, kernel, out_sites, kernel_size)
        if out is None:
            out = whole()
            self.computed += len(out_sites)
        self.outputs += len(out_sites)
        self._layers[id(kernel)] = _Layer(kernel, _version(kernel), x, SparseTensor(out_sites, out))
        return out

    def _from_last(
        self, x: SparseTensor, kernel: torch.Tensor, out_sites: Sites, kernel_size: int
    ) -> torch.Tensor | None:
        """The outputs, as far as possible those of the last pass; None where most have changed."""
        last = self._layers.get(id(kernel))
        if last is None or last.version != _version(kernel) or last.x.feats.dtype != x.feats.dtype:
            return None
        rows = None if x.sites is last.x.sites else last.x.sites.rows_of(x.sites)
        if _sample_has_changed(last.x.feats, x.feats, rows):
            return None
        touched = [x.keys[changed_rows(last.x.feats, x.feats, rows)]]
        if rows is not None:
            touched.append(last.x.keys[x.sites.rows_of(last.x.sites) < 0])  # gone
        kept, stale = _stale(last.out.sites, out_sites, torch.cat(touched), kernel_steps(kernel_size, x.stride))
        anew = stale.nonzero()[:, 0]
        if len(anew) > _MOST * len(out_sites):
            return None
        out = last.out.feats.clone() if kept is None else last.out.feats.index_select(0, kept.clamp_(min=0))
        found = build_kernel_map(x.keys, out_sites.keys[anew], kernel_size, x.stride, same=False)
        computed = out.new_zeros(len(anew), out.shape[1])
        pairs = [(k, i, o) for k, (i, o) in enumerate(found.pairs) if len(i)]
        gather_multiply_scatter(x.feats, kernel, pairs, computed)
        self.computed += len(anew)
        return out.index_copy_(0, anew, computed)


class IncrementalEngine(TorchEngine):
    """PyTorch engine that reuses outputs of a memory; it holds a weak reference, because the memory's sites hold it."""

    def __init__(self, memory: LayerMemory) -> None:
        self._memory = weakref.ref(memory)

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
        """See :class:`TorchEngine`. Without bias the memory may keep the result: it must not be changed."""
        where = in_sites, out_sites, kernel_size, crowded
        memory = self._memory()
        # A decoder starts at the coarsest sites, which depend on everything: any change changes all of its inputs.
        decodes = out_sites.stride < in_sites.stride or crowded is not False
        if memory is None or decodes or torch.is_grad_enabled() or not memory.sites.is_open:
            return super().convolve(feats, kernel, *where, bias, after)
        whole = functools.partial(super().convolve, feats, kernel, *where)
        out = memory.convolve(SparseTensor(in_sites, feats), kernel, out_sites, kernel_size, whole)
        if bias is None and after.plus is None and not after.then:
            return out
        return finished(out.clone() if bias is None else out + bias, *after)


def largest_change(last: SparseTensor, new: SparseTensor, cell: int) -> float:
    """Largest difference of two inputs: the maximum over cubic cells with edges of ``cell`` finest voxels of the sum
    over their sites. A site counts with its largest feature difference, an added or removed one as 1; any device."""
    rows = None if new.sites.same_as(last.sites) else last.sites.find(new.keys)
    before = last.feats if rows is None else last.feats[rows.clamp(min=0)] if len(last) else new.feats
    differences, keys = (new.feats - before).abs().amax(1), new.keys
    if rows is not None:
        gone = last.keys[new.sites.find(last.keys) < 0]
        differences = torch.cat([differences.masked_fill(rows < 0, 1.0), differences.new_ones(len(gone))])
        keys = torch.cat([keys, gone])
    changed = differences.nonzero()[:, 0]
    cells, of = torch.unique(floor_site_keys(keys[changed], cell), return_inverse=True)
    sums = differences.new_zeros(len(cells) + 1).index_add_(0, of, differences[changed])
    return float(sums.max())


def _version(kernel: torch.Tensor) -> int:
    """Counter of in-place changes; 0 for inference tensors, which have none."""
    return 0 if kernel.is_inference() else kernel._version


def changed_rows(last: torch.Tensor, new: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """(N, C) features and their ``rows`` in those of the last pass (-1 = absent; None = the same sites) -> (N,) bool
    mask of the changed ones; on the CPU."""
    if rows is None:
        rows = torch.arange(len(new))
    changed = torch.empty(len(new), dtype=torch.bool)
    _differing(last.numpy(), rows.numpy(), new.numpy(), changed.numpy())
    return changed


def compile_kernels() -> None:
    """Compile the loops of a pass with few changes."""
    changed_rows(torch.zeros(1, 1), torch.zeros(1, 1), None)
    key = np.zeros(1, np.int64)
    _mark_reached(key, key, key, np.zeros(1, np.bool_))


def _sample_has_changed(last: torch.Tensor, new: torch.Tensor, rows: torch.Tensor | None) -> bool:
    """Whether most rows of a small sample have changed, so that the others need not be compared."""
    some = torch.arange(0, len(new), 1 + len(new) // _SAMPLE)
    changed = changed_rows(last, new[some], some if rows is None else rows[some])
    return int(changed.sum()) > _MOST_INPUTS * len(some)


def _stale(
    last: Sites, sites: Sites, touched: torch.Tensor, steps: tuple[int, ...]
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """(M,) row of each output in the last ones, -1 = absent (None = the same sites), and (M,) bool mask of invalid
    ones.

    ``touched``: keys of changed, added and removed inputs; ``steps``: key differences from an output to its inputs.
    """
    kept = None if sites is last else last.rows_of(sites)
    stale = torch.zeros(len(sites), dtype=torch.bool) if kept is None else kept < 0
    if len(touched):
        keys = np.sort(touched.numpy())
        _mark_reached(keys, sites.keys.numpy(), np.array(steps, np.int64), stale.numpy())
    return kept, stale


@njit(cache=True, nogil=True)
def _differing(last: Floats, rows: NDArray[np.int64], new: Floats, changed: NDArray[np.bool_]) -> None:
    """See :func:`changed_rows`."""
    for i in range(new.shape[0]):
        row = rows[i]
        differs = row < 0
        if not differs:
            for c in range(new.shape[1]):
                differs |= new[i, c] != last[row, c]  # NaN differs from everything
        changed[i] = differs


@njit(cache=True, nogil=True)
def _mark_reached(
    in_keys: NDArray[np.int64], out_keys: NDArray[np.int64], steps: NDArray[np.int64], marks: NDArray[np.bool_]
) -> None:
    """Mark every output with ``in = out + step`` for one of the steps; both lists are sorted."""
    n, m = in_keys.shape[0], out_keys.shape[0]
    for step in steps:
        j = 0
        for i in range(m):
            wanted = out_keys[i] + step
            while j < n and in_keys[j] < wanted:
                j += 1
            if j == n:
                break
            if in_keys[j] == wanted:
                marks[i] = True
