"""Sparse tensors, a sorted set of lattice sites with one feature row per site, and operations on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.nn import functional

from embodied_perceptron.geometry.bits import distinct_site_keys
from embodied_perceptron.geometry.compute_path import launch, runs_compiled
from embodied_perceptron.geometry.transforms import (
    MAX_SITE_COORDINATE,
    constant,
    floor_site_keys,
    pack_site_keys,
    site_key_step,
    unpack_site_keys,
)
from embodied_perceptron.sparse import cpu_kernels
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Engine, Sites


@dataclass(frozen=True, eq=False)
class SparseTensor:
    """Features at lattice sites.

    Attributes:
        sites: the lattice sites.
        feats: (N, C) floating-point features, row i at ``sites.keys[i]``.

    Raises ``ValueError`` when the shapes or the devices do not fit.
    """

    sites: Sites
    feats: torch.Tensor

    def __post_init__(self) -> None:
        if self.feats.ndim != 2 or len(self.feats) != len(self.sites):
            raise ValueError(f"feats must be ({len(self.sites)}, C), got {tuple(self.feats.shape)}")
        if self.feats.device != self.sites.device:
            raise ValueError(f"feats are on {self.feats.device}, sites on {self.sites.device}")

    @classmethod
    def from_coords(
        cls,
        coords: torch.Tensor,
        feats: torch.Tensor,
        samples: torch.Tensor | None = None,
        *,
        stride: int = 1,
        batch_size: int | None = None,
        duplicates: Literal["error", "first", "mean"] = "error",
        engine: Engine | None = None,
    ) -> SparseTensor:
        """Sort and check unordered input.

        Args:
            coords: (N, 3) integer coordinates in units of the finest voxel, multiples of ``stride``.
            feats: (N, C) floating-point features, finite.
            samples: (N,) integer sample index of each row; None = all 0.
            stride: of the sites.
            batch_size: number of samples; None = largest index + 1.
            duplicates: rows at the same site: raise, keep the first row, or average them.
            engine: None = :func:`embodied_perceptron.sparse.engine.get_engine` selects one for the device.

        Raises ``ValueError`` naming the invalid value.
        """
        samples = torch.zeros(len(coords), dtype=torch.int64, device=coords.device) if samples is None else samples
        size = _check_input(coords, feats, samples, stride, batch_size)
        keys = pack_site_keys(samples, coords)
        unique, inverse, counts = torch.unique(keys, return_inverse=True, return_counts=True)
        if len(unique) == len(keys):
            rows = torch.empty_like(inverse)
            rows[inverse] = torch.arange(len(keys), device=keys.device)
            feats = feats[rows]
        elif duplicates == "first":
            rows = torch.full_like(unique, len(keys))
            rows.scatter_reduce_(0, inverse, torch.arange(len(keys), device=keys.device), "amin")
            feats = feats[rows]
        elif duplicates == "mean":
            total = feats.new_zeros(len(unique), feats.shape[1]).index_add(0, inverse, feats)
            feats = total / counts[:, None]
        else:
            sample, where = unpack_site_keys(unique[counts > 1][:1])
            raise ValueError(
                f"{int((counts - 1).sum())} duplicate rows, first at {where[0].tolist()} of sample {sample[0]}"
            )
        return cls(
            Sites(unique, stride, size, get_engine("auto", keys.device.type) if engine is None else engine), feats
        )

    @property
    def keys(self) -> torch.Tensor:
        """(N,) int64 site keys, strictly increasing."""
        return self.sites.keys

    @property
    def stride(self) -> int:
        return self.sites.stride

    @property
    def coords(self) -> torch.Tensor:
        """(N, 3) int64 coordinates in units of the finest voxel."""
        return self.sites.coords

    @property
    def samples(self) -> torch.Tensor:
        """(N,) int64 sample index of each row."""
        return self.sites.samples

    @property
    def batch_size(self) -> int:
        return self.sites.batch_size

    @property
    def channels(self) -> int:
        return self.feats.shape[1]

    @property
    def device(self) -> torch.device:
        return self.feats.device

    def __len__(self) -> int:
        return len(self.sites)

    def replace(self, feats: torch.Tensor) -> SparseTensor:
        """Other features at the same sites."""
        return SparseTensor(self.sites, feats)

    def split(self) -> list[torch.Tensor]:
        """Feature rows of each sample, views of ``feats``."""
        bounds = self.sites.bounds
        return [self.feats[a:b] for a, b in itertools.pairwise(bounds)]

    def dense(self, origin: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """(B, C, X, Y, Z) grid of the sites in the box that starts at ``origin``; zero elsewhere.

        Args:
            origin: (x, y, z) in units of the finest voxel, a multiple of the stride.
            shape: (X, Y, Z) cells of one stride each. Sites outside of the box are left out.

        Raises ``ValueError`` when the origin is off the lattice or the shape is not positive.
        """
        if any(v % self.stride for v in origin) or len(origin) != 3:
            raise ValueError(f"origin must be 3 multiples of stride {self.stride}, got {list(origin)}")
        if any(v < 1 for v in shape) or len(shape) != 3:
            raise ValueError(f"shape must be 3 positive numbers, got {list(shape)}")
        flat = rows_in_grid(self.sites, self.stride, origin, shape)
        cells = self.batch_size * math.prod(shape)  # sites outside are written to one more cell, which is cut off
        grid = self.feats.new_zeros(cells + 1, self.channels).index_copy(0, flat, self.feats)[:cells]
        return grid.view(self.batch_size, *shape, self.channels).permute(0, 4, 1, 2, 3)


def rows_in_grid(sites: Sites, stride: int, origin: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    """(N,) int64 row of the grid cell that contains each site, the grids of the samples one after the other; the number
    of all cells for sites outside.

    ``origin``: lower corner of the grid, in sites; ``stride``: edge of a cell, in sites; ``shape``: (X, Y, Z) cells.
    """
    device = sites.device
    first = torch.tensor(list(origin)).to(device, non_blocking=True)
    cell = (sites.coords - first).div(stride, rounding_mode="floor")
    outside = ((cell < 0) | (cell >= constant(tuple(shape), device))).any(dim=1)
    flat = (cell * constant((shape[1] * shape[2], shape[2], 1), device)).sum(1)
    cells = math.prod(shape)
    if sites.batch_size > 1:
        flat = flat + sites.samples * cells
    return flat.masked_fill(outside, sites.batch_size * cells)


def _check_input(
    coords: torch.Tensor, feats: torch.Tensor, samples: torch.Tensor, stride: int, batch_size: int | None
) -> int:
    """Check the input of :meth:`SparseTensor.from_coords`; returns the batch size."""
    if coords.ndim != 2 or coords.shape[1] != 3 or coords.is_floating_point() or coords.dtype == torch.bool:
        raise ValueError(f"coords must be (N, 3) integers, got {tuple(coords.shape)} {coords.dtype}")
    if feats.ndim != 2 or len(feats) != len(coords) or not feats.is_floating_point():
        raise ValueError(f"feats must be ({len(coords)}, C) floats, got {tuple(feats.shape)} {feats.dtype}")
    if samples.shape != coords.shape[:1] or samples.is_floating_point():
        raise ValueError(f"samples must be ({len(coords)},) integers, got {tuple(samples.shape)} {samples.dtype}")
    if stride < 1:
        raise ValueError(f"stride must be positive, got {stride}")
    if len(coords) == 0:
        return 1 if batch_size is None else batch_size
    largest = int(coords.abs().max())
    if largest > MAX_SITE_COORDINATE:
        raise ValueError(f"coordinates must lie within +-{MAX_SITE_COORDINATE}, got {largest}")
    if stride > 1 and bool((coords % stride).any()):
        raise ValueError(f"coordinates must be multiples of stride {stride}")
    low, high = int(samples.min()), int(samples.max())
    size = high + 1 if batch_size is None else batch_size
    if low < 0 or high >= size:
        raise ValueError(f"sample indices must be in [0, {size}), got [{low}, {high}]")
    if not bool(torch.isfinite(feats).all()):
        bad = int((~torch.isfinite(feats)).any(dim=1).nonzero()[0])
        raise ValueError(f"features must be finite, row {bad} at {coords[bad].tolist()} is {feats[bad].tolist()}")
    return size


# --------------------------------------------------------------------------------------------------------------------
# operations


def rows_where(*chosen: tuple[Sites, torch.Tensor]) -> list[tuple[torch.Tensor, list[int] | None]]:
    """For each set and (N,) bool mask of it: the rows where it is True, ascending, and the ``bounds`` of these rows
    (None = not computed). Synchronises with the device once for all sets."""
    if chosen[0][0].compiled:
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
        places = torch.where(mask, number[:-1], bounds[-1])  # rows that are not kept come last, and are cut off
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
    """Sum at given sites, which include those of every part; a part counts as zero where it has no site."""
    total: torch.Tensor | None = None
    for part in sorted(parts, key=lambda part: part.sites is not sites):  # parts that have all sites first
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
    """All sites of either set, of one stride; the larger set itself when it contains the other."""
    if a.same_as(b):
        return a
    bounds = [m + n for m, n in zip(a.bounds, b.bounds, strict=True)]
    both = a.derive_distinct(torch.cat([a.keys, b.keys]), a.stride, bounds)
    return next((s for s in (a, b) if len(s) == len(both)), both)


def best_rows(scores: torch.Tensor, limit: int) -> torch.Tensor:
    """(N,) scores -> ascending indices of the ``limit`` highest, or of all when there are no more; ties go to the
    first.

    NaN counts as the lowest score, so that the number of rows does not depend on it.
    """
    if limit >= len(scores):
        return torch.arange(len(scores), device=scores.device)
    if scores.is_floating_point():
        scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    if not runs_compiled(scores):  # without reading the number of equal scores
        return scores.sort(descending=True, stable=True).indices[:limit].sort().values
    least = scores.kthvalue(len(scores) - limit + 1).values
    above, equal = (scores > least).nonzero()[:, 0], (scores == least).nonzero()[:, 0]
    return torch.cat([above, equal[: limit - len(above)]]).sort().values


def empty_columns(columns: int) -> int:
    """Number of zero columns that pad a matrix product to a multiple of 16 numbers, two AVX2 vectors or one of AVX-512.
    171 columns take three times as long as 176, 81 nearly twice as long as 96."""
    return -columns % 16


def interpolate(x: SparseTensor, sites: Sites) -> tuple[torch.Tensor, torch.Tensor]:
    """Trilinear interpolation of ``x`` at the (usually finer) ``sites``, without gradient: (M, C) weighted sums
    over the existing corners of each site's cell, and the (M,) sums of their weights.

    Without division by the weight, absent corners count as zero, as in the released EmbodiedScan code: values shrink
    towards zero at the border, which ranks negative scores there too high.
    """
    base, feats = floor_site_keys(sites.keys, x.stride), x.feats.detach().contiguous()
    feats = feats if cpu_kernels.serves(feats) else feats.float()
    together = feats.new_zeros(len(sites) * (x.channels + 1))
    weight, total = together[: len(sites)], together[len(sites) :].view(-1, x.channels)
    if len(x) == 0 or len(sites) == 0:
        return total, weight
    if runs_compiled(feats):
        steps = np.array([site_key_step(*(v * x.stride for v in c)) for c in itertools.product((0, 1), repeat=3)])
        cpu_kernels.interpolate(
            sites.keys.numpy(), base.numpy(), distinct_site_keys(base.numpy()), x.keys.numpy(), steps, x.stride,
            feats.numpy(), total.numpy(), weight.numpy(),
        )  # fmt: skip
    else:
        from embodied_perceptron.sparse import site_kernels

        launch(site_kernels.interpolate, len(sites), sites.keys, base, x.keys, x.stride, feats, total, weight)
    return total, weight
