"""Operations on sets of sites: pruning, union, concatenation, interpolation."""

from __future__ import annotations

import itertools

import torch

from embodied_perceptron.geometry import floor_site_keys, site_key_step, unpack_site_keys
from embodied_perceptron.sparse.tensor import Sites, SparseTensor


def prune(x: SparseTensor, keep: torch.Tensor) -> SparseTensor:
    """Keep the rows where the (N,) bool mask is True. Raises ``ValueError`` for a mask that does not fit."""
    if keep.shape != (len(x),) or keep.dtype != torch.bool:
        raise ValueError(f"keep must be ({len(x)},) bool, got {tuple(keep.shape)} {keep.dtype}")
    rows = keep.nonzero()[:, 0]
    return SparseTensor(x.sites.derive(x.keys[rows], x.stride), x.feats[rows])


def union_add(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """Sum at the union of the sites; a tensor counts as zero where it has no site.

    Raises ``ValueError`` when strides, channels or batch sizes differ.
    """
    for name in ("stride", "channels", "batch_size"):
        if getattr(a, name) != getattr(b, name):
            raise ValueError(f"{name} must agree, got {getattr(a, name)} and {getattr(b, name)}")
    if a.sites.same_as(b.sites):
        return a.replace(a.feats + b.feats)
    keys, inverse = torch.unique(torch.cat([a.keys, b.keys]), return_inverse=True)
    total = a.feats.new_zeros(len(keys), a.channels)
    total = total.index_add(0, inverse[: len(a)], a.feats).index_add(0, inverse[len(a) :], b.feats)
    return SparseTensor(a.sites.derive(keys, a.stride), total)


def concatenate(*tensors: SparseTensor) -> SparseTensor:
    """Channels side by side. Raises ``ValueError`` when the tensors are not at the same sites."""
    if not tensors:
        raise ValueError("concatenate needs at least one tensor")
    first = tensors[0]
    for other in tensors[1:]:
        if not first.sites.same_as(other.sites):
            raise ValueError(f"tensors are at different sites: {first.sites} and {other.sites}")
    return first.replace(torch.cat([t.feats for t in tensors], dim=1))


def interpolate(x: SparseTensor, sites: Sites, renormalize: bool = True) -> torch.Tensor:
    """(M, C) trilinear interpolation of ``x`` at the (usually finer) ``sites``; zero where no corner exists.

    ``renormalize`` divides by the weight of the corners that exist. Without it absent corners count as zero, as in the
    released EmbodiedScan code: values shrink towards zero at the border, which ranks negative scores there too high.
    """
    base = floor_site_keys(sites.keys, x.stride)
    step = unpack_site_keys(sites.keys)[1] - unpack_site_keys(base)[1]
    fraction = step.to(x.feats.dtype) / x.stride  # (M, 3) in [0, 1)
    # many fine sites share a cell: corners are searched once per cell
    cells, cell_of = torch.unique(base, return_inverse=True)
    padded = torch.cat([x.feats, x.feats.new_zeros(1, x.channels)])  # row -1 stands for an absent corner
    total = x.feats.new_zeros(len(sites), x.channels)
    weight = x.feats.new_zeros(len(sites))
    for dx, dy, dz in itertools.product((0, 1), repeat=3):
        w = (fraction if dx else 1.0 - fraction)[:, 0] * (fraction if dy else 1.0 - fraction)[:, 1]
        w = w * (fraction if dz else 1.0 - fraction)[:, 2]  # (M,)
        rows = x.sites.find(cells + site_key_step(dx * x.stride, dy * x.stride, dz * x.stride))[cell_of]
        total = total + padded[rows] * w[:, None]
        weight = weight + w * (rows >= 0)
    if not renormalize:
        return total
    return total / torch.where(weight > 0, weight, 1.0)[:, None]
