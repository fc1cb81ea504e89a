"""Sparse tensors: a sorted set of lattice sites with one feature row per site."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from embodied_perceptron.geometry.compute_path import takes_loops
from embodied_perceptron.geometry.transforms import MAX_SITE_COORDINATE, constant, pack_site_keys, unpack_site_keys
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Engine, Sites

__all__ = ["Sites", "SparseTensor"]


@dataclass(frozen=True, eq=False)
class SparseTensor:
    """Features at lattice sites.

    Attributes:
        sites: where.
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
            duplicates: what to do with rows at the same site: refuse, keep the first row, or average the rows.
            engine: None = :func:`embodied_perceptron.sparse.engine.get_engine` chooses for the device.

        Raises ``ValueError`` naming the value that does not fit.
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
        cells = self.batch_size * math.prod(shape)
        if takes_loops(flat):
            rows = (flat < cells).nonzero()[:, 0]
            grid = self.feats.new_zeros(cells, self.channels).index_copy(0, flat[rows], self.feats[rows])
        else:  # those outside go to a cell behind the last, whoever comes last
            grid = self.feats.new_zeros(cells + 1, self.channels).index_copy(0, flat, self.feats)[:cells]
        return grid.view(self.batch_size, *shape, self.channels).permute(0, 4, 1, 2, 3)


def rows_in_grid(sites: Sites, stride: int, origin: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
    """(N,) int64 row of the cell that holds each site, in a grid per sample, one grid behind the other; the number of
    all cells for sites outside of it.

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
