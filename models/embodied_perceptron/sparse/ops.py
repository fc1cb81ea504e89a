"""Operations on sparse tensors: pruning, union, interpolation, choosing."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch.nn import functional

from embodied_perceptron.geometry.compute_path import takes_loops
from embodied_perceptron.geometry.transforms import constant, floor_site_keys, site_key_step, site_steps
from embodied_perceptron.sparse import cpu_kernels
from embodied_perceptron.sparse.sites import Sites, empty_row, search, unique_keys
from embodied_perceptron.sparse.tensor import SparseTensor


def prune(x: SparseTensor, keep: torch.Tensor) -> SparseTensor:
    """Keep the rows where the (N,) bool mask is True. Raises ``ValueError`` for a mask that does not fit."""
    if keep.shape != (len(x),) or keep.dtype != torch.bool:
        raise ValueError(f"keep must be ({len(x)},) bool, got {tuple(keep.shape)} {keep.dtype}")
    ((rows, bounds),) = rows_where((x.sites, keep))
    return SparseTensor(x.sites.derive(x.keys[rows], x.stride, bounds), x.feats[rows])


def rows_where(*chosen: tuple[Sites, torch.Tensor]) -> list[tuple[torch.Tensor, list[int] | None]]:
    """For each set and (N,) bool mask of it: the rows where it is True, ascending, and the ``bounds`` of what stays
    (None where nobody has asked yet). All by one wait."""
    if takes_loops(chosen[0][1]):
        return [(mask.nonzero()[:, 0], None) for _, mask in chosen]
    device = chosen[0][1].device
    before = [functional.pad(mask.cumsum(0), (1, 0)) for _, mask in chosen]
    lengths = itertools.accumulate((len(b) for b in before[:-1]), initial=0)
    ends = [first + end for first, (sites, _) in zip(lengths, chosen, strict=True) for end in sites.bounds]
    counts = torch.cat(before)[torch.tensor(ends).to(device, non_blocking=True)].tolist()
    found: list[tuple[torch.Tensor, list[int] | None]] = []
    for (sites, mask), number in zip(chosen, before, strict=True):
        bounds, counts = counts[: sites.batch_size + 1], counts[sites.batch_size + 1 :]
        every = torch.arange(len(mask), device=device)
        places = torch.where(mask, number[:-1], bounds[-1])  # what goes comes last, and is cut off
        found.append((every.new_empty(bounds[-1] + 1).scatter_(0, places, every)[:-1], bounds))
    return found


def union_add(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Sum at the union of the sites; a tensor counts as zero where it has no site.

    Raises ``ValueError`` when strides, channels or batch sizes differ.
    """
    for name in ("stride", "channels", "batch_size"):
        if getattr(a, name) != getattr(b, name):
            raise ValueError(f"{name} must agree, got {getattr(a, name)} and {getattr(b, name)}")
    if a.sites.same_as(b.sites):
        return a.replace(a.feats + b.feats)
    return sum_at(union(a.sites, b.sites), a, b)


def sum_at(sites: Sites, *parts: SparseTensor) -> SparseTensor:
    """Sum at given sites, which hold those of every part; a part counts as zero where it has no site."""
    total: torch.Tensor | None = None
    for part in sorted(parts, key=lambda part: part.sites is not sites):  # those at all sites first
        if part.sites is sites:
            total = part.feats if total is None else total + part.feats
            continue
        if total is None:
            total = part.feats.new_zeros(len(sites), part.channels)
        total = total.index_add(0, sites.rows_of(part.sites), part.feats)
    if total is None:
        raise ValueError("sum_at needs at least one tensor")
    return SparseTensor(sites, total)


def union(a: Sites, b: Sites) -> Sites:
    """All sites of either set, of one stride; one of the two sets itself where it holds the other."""
    if a.same_as(b):
        return a
    bounds = [m + n for m, n in zip(a.bounds, b.bounds, strict=True)] if not takes_loops(a.keys) else []
    both = a.derive_distinct(torch.cat([a.keys, b.keys]), a.stride, bounds)
    return next((s for s in (a, b) if len(s) == len(both)), both)


def best_rows(scores: torch.Tensor, limit: int) -> torch.Tensor:
    """(N,) scores -> indices of the ``limit`` highest, or of all if there are no more, ascending; of equals the first.

    A score that is NaN says nothing: it is as low as any, so that always the same number of rows stays.
    """
    if limit >= len(scores):
        return torch.arange(len(scores), device=scores.device)
    if scores.is_floating_point():
        scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    if not takes_loops(scores):  # nothing waits for how many are equal
        return scores.sort(descending=True, stable=True).indices[:limit].sort().values
    least = scores.kthvalue(len(scores) - limit + 1).values
    above, equal = (scores > least).nonzero()[:, 0], (scores == least).nonzero()[:, 0]
    return torch.cat([above, equal[: limit - len(above)]]).sort().values


def empty_columns(columns: int) -> int:
    """How many columns of zeros make a matrix product as wide as processors multiply at once: 16 numbers, two vectors
    of AVX2 or one of AVX-512. 171 columns take thrice as long as 176, 81 nearly twice as long as 96."""
    return -columns % 16


def interpolate(x: SparseTensor, sites: Sites) -> tuple[torch.Tensor, torch.Tensor]:
    """Trilinear interpolation of ``x`` at the (usually finer) ``sites``: (M, C) weighted sums over the corners of each
    site's cell that exist, and the (M,) weight of these.

    Divided by their weight the sums are renormalised. As they are, absent corners count as zero, as in the released
    EmbodiedScan code: values shrink towards zero at the border, which ranks negative scores there too high.
    """
    # at many more fine sites than coarse ones: compiled where nothing has to be differentiated
    compiled = cpu_kernels.serves(x.feats) and not x.feats.requires_grad and len(x) > 0 and len(sites) > 0
    return (_corner_sums_compiled if compiled else corner_sums)(x, sites)


def corner_sums(x: SparseTensor, sites: Sites) -> tuple[torch.Tensor, torch.Tensor]:
    """(M, C) weighted sums of the corners of each site's cell, and the (M,) weight of those that exist; any device."""
    base = floor_site_keys(sites.keys, x.stride)
    fraction = site_steps(sites.keys - base).to(x.feats.dtype) / x.stride  # (M, 3) in [0, 1)
    corners = list(itertools.product((0, 1), repeat=3))
    steps = tuple(site_key_step(*(v * x.stride for v in corner)) for corner in corners)
    low = constant(tuple(1 - v for corner in corners for v in corner), x.device, x.feats.dtype).view(8, 3)
    weight = (fraction[:, None] - low).abs().prod(2).to(x.feats.dtype)  # (M, 8); autocast multiplies in float32
    rows = search(x.sites.ended, base, steps)
    weight = weight.masked_fill(rows == len(x), 0.0)
    padded = torch.cat([x.feats, empty_row(x.channels, x.feats.dtype, x.device)])
    total = torch.nn.functional.embedding_bag(rows, padded, mode="sum", per_sample_weights=weight)
    return total, weight.sum(1)


def _corner_sums_compiled(x: SparseTensor, sites: Sites) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on the CPU in one pass, without gradients."""
    bases = floor_site_keys(sites.keys, x.stride)
    steps = [site_key_step(*(v * x.stride for v in corner)) for corner in itertools.product((0, 1), repeat=3)]
    total, weight = x.feats.new_zeros(len(sites), x.channels), x.feats.new_zeros(len(sites))
    cpu_kernels.interpolate(
        sites.keys.numpy(), bases.numpy(), unique_keys(bases).numpy(), x.keys.numpy(), np.array(steps), x.stride,
        x.feats.numpy(), total.numpy(), weight.numpy(),
    )  # fmt: skip
    return total, weight
