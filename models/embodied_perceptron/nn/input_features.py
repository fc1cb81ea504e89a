"""What the network sees of geometry: features of the input sites, and their thinning.

A robot starts anywhere, so ``tiny`` and ``base`` never see absolute x and y: their sites carry height above the floor,
colour, a constant and where in the site the mean point lies (``height_color_offset``), on gravity-aligned coordinates.
Without the last (``height_color``) a network knows surfaces to a site's edge only, and what is thinner than that, a
picture or a mirror, can be placed by luck alone. ``paper`` sees raw xyz, as released.
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import pack_site_keys, unpack_site_keys, world_to_voxel
from embodied_perceptron.sparse import cpu_kernels
from embodied_perceptron.sparse.ops import best_rows
from embodied_perceptron.sparse.sites import Engine, Sites
from embodied_perceptron.sparse.tensor import SparseTensor

# Columns that ``FeatureVolume.as_sparse_tensor`` makes of a map, and those of each kind of input.
SiteFeature = Literal["color", "offset", "height", "point", "log_hits", "one"]
SITE_FEATURES: dict[str, tuple[SiteFeature, ...]] = {
    "xyz": ("point",),
    "height_color": ("height", "color", "one"),
    "height_color_offset": ("height", "color", "one", "offset"),
}
# Thinning repeats with this period, a multiple of every stride that a network has: moving the world by it thins the
# same voxels.
_THINNING_PERIOD = 64


def input_from_points(
    points_m: NDArray[np.floating],
    colors: NDArray[np.uint8] | None,
    voxel_size_m: float,
    inputs: str,
    floor_z_m: float = 0.0,
    engine: Engine | None = None,
) -> SparseTensor:
    """Points of one scene -> network input.

    Args:
        points_m: (P, 3) world positions, gravity-aligned (z up), finite.
        colors: (P, 3) uint8 RGB; not needed by ``xyz``.
        voxel_size_m: edge length of a site.
        inputs: ``xyz``: the first point of each site, as the released code keeps it. ``height_color``: mean height
            above the floor in metres, mean colour in [0, 1] and a one; ``height_color_offset``: and the mean point's
            place in its site, in [-0.5, 0.5) edges: what ``FeatureVolume.as_sparse_tensor`` gives with their
            ``SITE_FEATURES``.
        floor_z_m: height of the floor in the world.
        engine: of the sparse tensor; None = the fastest one installed.

    No point gives a tensor without sites. Raises ``ValueError`` naming what does not fit: shapes, NaN, an unknown kind.
    """
    if inputs not in SITE_FEATURES:
        raise ValueError(f"inputs must be one of {sorted(SITE_FEATURES)}, got {inputs!r}")
    points = np.asarray(points_m)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"points_m must be (P, 3), got {points.shape}")
    finite = np.isfinite(points).all(axis=1)
    if not finite.all():
        bad = int(np.flatnonzero(~finite)[0])
        raise ValueError(f"points_m must be finite, point {bad} is {points[bad].tolist()}")
    if inputs == "xyz":
        feats = torch.from_numpy(points.astype(np.float32))
        # in float32, as the released code divides: points on a boundary then fall to the same side
        coords = torch.floor(feats / voxel_size_m).long()
        return SparseTensor.from_coords(coords, feats, duplicates="first", engine=engine)
    coords = torch.from_numpy(world_to_voxel(points, voxel_size_m))
    if colors is None or colors.shape != points.shape or colors.dtype != np.uint8:
        found = None if colors is None else f"{colors.shape} {colors.dtype}"
        raise ValueError(f"colors must be {points.shape} uint8, got {found}")
    columns = _columns(coords, points, colors, voxel_size_m, inputs, floor_z_m)
    # averaged in float64: the mean must not depend on the order of the points to more than float32's rounding
    x = SparseTensor.from_coords(coords, torch.from_numpy(columns), duplicates="mean", engine=engine)
    return x.replace(x.feats.float())


def _columns(
    coords: torch.Tensor,
    points_m: NDArray[np.floating],
    colors: NDArray[np.uint8],
    voxel_size_m: float,
    inputs: str,
    floor_z_m: float,
) -> NDArray[np.float64]:
    """(P, F) what each point brings to the mean of its site."""
    points = points_m.astype(np.float64)
    if inputs == "xyz":
        return points
    columns = [points[:, 2:] - floor_z_m, colors / 255.0, np.ones((len(points), 1))]
    if inputs == "height_color_offset":
        columns.append(points / voxel_size_m - coords.numpy() - 0.5)
    return np.concatenate(columns, axis=1)


def sites_of_voxels(
    points_m: NDArray[np.floating],
    colors: NDArray[np.uint8],
    hits: NDArray[np.integer],
    voxel_size_m: float,
    inputs: str,
    floor_z_m: float,
    max_sites: int,
) -> SparseTensor:
    """Voxels of a map, moved anywhere -> network input: means over all points of a site, so a voxel counts by the
    points that it saw. For a map where it lies, ``FeatureVolume.as_sparse_tensor`` gives the same.

    Args:
        points_m: (P, 3) mean point of each voxel.
        colors: (P, 3) uint8 mean RGB.
        hits: (P,) points of each voxel.
        voxel_size_m: edge of a site.
        inputs: see :func:`input_from_points`.
        floor_z_m: height of the floor.
        max_sites: more are thinned.
    """
    coords = torch.from_numpy(np.floor(points_m / voxel_size_m).astype(np.int64))
    weight = hits[:, None].astype(np.float64)
    feats = _columns(coords, points_m, colors, voxel_size_m, inputs, floor_z_m)
    weighted = torch.from_numpy(np.concatenate([feats * weight, weight], axis=1))
    summed = SparseTensor.from_coords(coords, weighted, duplicates="mean")
    return thin(summed.replace((summed.feats[:, :-1] / summed.feats[:, -1:]).float()), max_sites)


def join_samples(tensors: list[SparseTensor]) -> SparseTensor:
    """Single scenes -> one batch, in order. Raises ``ValueError`` for none, or scenes that do not fit together."""
    if not tensors:
        raise ValueError("a batch needs at least one sample")
    first = tensors[0]
    for x in tensors:
        if (x.batch_size, x.stride, x.channels, x.device) != (1, first.stride, first.channels, first.device):
            raise ValueError(f"samples must be single and alike, got {x.sites} beside {first.sites}")
    keys = [pack_site_keys(x.samples + i, x.coords) for i, x in enumerate(tensors)]
    sites = Sites(torch.cat(keys), first.stride, len(tensors), first.sites.engine)
    return SparseTensor(sites, torch.cat([x.feats for x in tensors]))


def thin(x: SparseTensor, max_sites: int) -> SparseTensor:
    """At most ``max_sites`` sites per sample, spread evenly, and the same ones every time.

    Which sites stay depends on their coordinates modulo 64 strides and on their order alone: not on features, not on
    the order of points, and not on a move of the whole world by that period. Raises ``ValueError`` when ``max_sites``
    is not positive.
    """
    if max_sites < 1:
        raise ValueError(f"max_sites must be positive, got {max_sites}")
    bounds = x.sites.bounds
    if max(bounds[i + 1] - bounds[i] for i in range(x.batch_size)) <= max_sites:
        return x
    rank = _ranks_compiled(x.sites) if x.device.type == "cpu" else thinning_ranks(x.sites)
    chosen = [start + best_rows(-rank[start:end], max_sites) for start, end in itertools.pairwise(bounds)]
    rows = torch.cat(chosen)  # in order: rows of one sample lie behind those of the one before
    return SparseTensor(x.sites.derive(x.keys[rows], x.stride), x.feats[rows])


def thinning_ranks(sites: Sites) -> torch.Tensor:
    """(N,) int64: sites of lower rank stay longer; any device."""
    coords = torch.div(unpack_site_keys(sites.keys)[1], sites.stride, rounding_mode="floor") % _THINNING_PERIOD
    rank = (coords[:, 0] * _THINNING_PERIOD + coords[:, 1]) * _THINNING_PERIOD + coords[:, 2]
    # An odd factor permutes the 2^18 cells of a period; the high bits of the product scatter neighbours far apart.
    rank = (rank * 0x2545F491) & 0x3FFFF
    return ((rank ^ (rank >> 9)) * 0x1B873593) & 0x3FFFF


def _ranks_compiled(sites: Sites) -> torch.Tensor:
    rank = torch.empty(len(sites), dtype=torch.int64)
    rank_sites(sites.keys.numpy(), sites.stride, _THINNING_PERIOD, rank.numpy())
    return rank


@njit(cache=True, nogil=True)
def rank_sites(keys: NDArray[np.int64], stride: int, period: int, rank: NDArray[np.int64]) -> None:
    """:func:`thinning_ranks` on the CPU, in one pass and without the interpreter's lock."""
    for i in range(keys.shape[0]):
        site = cpu_kernels.site_coordinates(keys[i])
        x, y, z = site[0] // stride % period, site[1] // stride % period, site[2] // stride % period
        cell = (((x * period + y) * period + z) * 0x2545F491) & 0x3FFFF
        rank[i] = ((cell ^ (cell >> 9)) * 0x1B873593) & 0x3FFFF
