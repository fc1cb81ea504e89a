"""Input of the network: sites with features, windows of the map, and the dense grid of image-only networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import pack_site_keys, unpack_site_keys, world_to_voxel
from embodied_perceptron.nn.presets import NetworkConfig, OccupancyConfig
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Engine, Sites
from embodied_perceptron.sparse.tensor import SparseTensor, best_rows

# --------------------------------------------------------------------------------------------------------------------
# windows
#
# Windows move in steps of the lattice that they feed, never by fractions of a cell: voxels that stay in view keep their
# sites, and moving the world by whole steps moves the results.


def occupancy_origin(config: NetworkConfig, anchor_m: Sequence[float]) -> tuple[int, int, int]:
    """Lower corner of the occupancy window in input sites, a multiple of the cells' stride.

    ``anchor_m`` is the point on the floor below the window's centre (world; the scene's origin for ``paper``), rounded
    to the nearest cell. Raises ``ValueError`` when the configuration has no occupancy or the anchor is not finite.
    """
    if config.occupancy is None:
        raise ValueError(f"this {config.name} configuration has no occupancy")
    stride = config.backbone.strides[config.occupancy_level()]
    return _corner(anchor_m, config.occupancy.origin_m, config.occupancy.cell_size_m, stride)


def rgb_grid(
    config: NetworkConfig, anchor_m: Sequence[float] = (0.0, 0.0, 0.0), engine: Engine | None = None
) -> SparseTensor:
    """Input sites of an image-only network: every site of the occupancy range (ImVoxelNet, WACV 2022).

    One sample; features are ones, which the network replaces by image features. ``anchor_m`` as in
    :func:`occupancy_origin`, rounded to the coarsest stride. The range is the configuration's occupancy window, or the
    benchmark's for a network without occupancy. Raises ``ValueError`` for another modality.
    """
    if config.modality != "rgb":
        raise ValueError(f"modality must be rgb for a dense grid, got {config.modality}")
    window = config.occupancy if config.occupancy is not None else OccupancyConfig()
    per_cell = round(window.cell_size_m / config.voxel_size_m)
    coarsest = config.backbone.strides[-1]
    moved = _corner(anchor_m, (0.0, 0.0, 0.0), coarsest * config.voxel_size_m, coarsest)
    fixed = _corner((0.0, 0.0, 0.0), window.origin_m, window.cell_size_m, per_cell)
    axes = [torch.arange(n * per_cell) + (a + b) for n, a, b in zip(window.cells, moved, fixed, strict=True)]
    coords = torch.cartesian_prod(*axes)  # sorted as site keys are
    keys = pack_site_keys(torch.zeros(len(coords), dtype=torch.int64), coords)
    sites = Sites(keys, 1, 1, get_engine("auto", "cpu") if engine is None else engine)
    return SparseTensor(sites, torch.ones(len(coords), 1))


def cover_windows(
    low_m: Sequence[float], high_m: Sequence[float], size_m: float, lattice_m: float
) -> list[tuple[tuple[float, float], tuple[float, float], tuple[float, float]]]:
    """Cover [low, high] of the ground by the fewest square windows, neighbours at most half a window apart.

    Args:
        low_m, high_m: x and y of the area.
        size_m: edge of a window.
        lattice_m: lattice to which the caller rounds windows, which moves them by up to half of this.

    Returns (centre, core low, core high) of each, x slowest. The cores [low, high) partition the plane into the areas
    of which each window is the best one; the outermost are unbounded.
    """
    if not 0 < lattice_m < size_m:
        raise ValueError(f"size_m must be larger than lattice_m, got {size_m} and {lattice_m}")
    axes = []
    for low, high in zip(low_m, high_m, strict=True):
        spare = high - low + lattice_m - size_m  # not covered by one window
        count = 1 if spare <= 0 else 1 + math.ceil(round(spare / (0.5 * size_m), 6))
        middle, reach = 0.5 * (low + high), 0.5 * max(spare, 0.0)
        step = 2 * reach / (count - 1) if count > 1 else 0.0
        centers = [middle - reach + i * step for i in range(count)]
        bounds = [-math.inf, *(0.5 * (a + b) for a, b in itertools.pairwise(centers)), math.inf]
        axes.append(list(zip(centers, bounds[:-1], bounds[1:], strict=True)))
    return [((x, y), (x0, y0), (x1, y1)) for x, x0, x1 in axes[0] for y, y0, y1 in axes[1]]


def _corner(
    anchor_m: Sequence[float], offset_m: Sequence[float], step_m: float, step_sites: int
) -> tuple[int, int, int]:
    """(anchor rounded to steps) + (offset rounded to steps), in sites. Halves round up, so that all steps are equal."""
    anchor, offset = np.array(list(anchor_m), np.float64), np.array(list(offset_m), np.float64)
    if anchor.shape != (3,) or not np.isfinite(anchor).all():
        raise ValueError(f"anchor_m must be 3 finite numbers, got {list(anchor_m)}")
    steps = np.floor(anchor / step_m + 0.5) + np.floor(offset / step_m + 0.5)
    x, y, z = (int(v) * step_sites for v in steps)
    return x, y, z


# --------------------------------------------------------------------------------------------------------------------
# features of input sites, and thinning
#
# A robot starts anywhere, so ``tiny`` and ``base`` never use absolute x and y: the features of a site are height above
# the floor, colour, a constant and the offset of the mean point in the site (``height_color_offset``), in
# gravity-aligned coordinates. Without the offset (``height_color``) surfaces are known to the size of a site only, too
# coarse for pictures and mirrors. ``paper`` uses raw xyz, as released.

# Columns of ``FeatureVolume.as_sparse_tensor``, and those of each kind of input.
SiteFeature = Literal["color", "offset", "height", "point", "log_hits", "one"]
SITE_FEATURES: dict[str, tuple[SiteFeature, ...]] = {
    "xyz": ("point",),
    "height_color": ("height", "color", "one"),
    "height_color_offset": ("height", "color", "one", "offset"),
}
# Thinning has this period, a multiple of all strides: moving the world by it keeps the same voxels.
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
        inputs: ``xyz``: the first point of each site, as in the released code. ``height_color``: mean height above the
            floor in metres, mean colour in [0, 1] and a one; ``height_color_offset``: in addition the offset of the
            mean point in its site, in [-0.5, 0.5) edges. As ``FeatureVolume.as_sparse_tensor`` with ``SITE_FEATURES``.
        floor_z_m: height of the floor in the world.
        engine: of the sparse tensor; None = the fastest one installed.

    Without points the tensor has no sites. Raises ``ValueError`` for wrong shapes, NaN or an unknown kind.
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
    # averaged in float64, so that the order of points changes the mean by float32 rounding at most
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
    """(P, F) features of each point, to be averaged over its site."""
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
    """Voxels of a moved map -> network input: means over all points of a site, with voxels weighted by their points.
    For a map in place, ``FeatureVolume.as_sparse_tensor`` gives the same.

    Args:
        points_m: (P, 3) mean point of each voxel.
        colors: (P, 3) uint8 mean RGB.
        hits: (P,) number of points of each voxel.
        voxel_size_m: edge of a site.
        inputs: see :func:`input_from_points`.
        floor_z_m: height of the floor.
        max_sites: see :func:`thin`.
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
            raise ValueError(f"samples must be single and agree in stride and width, got {x.sites} and {first.sites}")
    keys = [pack_site_keys(x.samples + i, x.coords) for i, x in enumerate(tensors)]
    bounds = list(itertools.accumulate((len(x) for x in tensors), initial=0))
    sites = Sites(torch.cat(keys), first.stride, len(tensors), first.sites.engine, bounds=bounds)
    return SparseTensor(sites, torch.cat([x.feats for x in tensors]))


def thin(x: SparseTensor, max_sites: int) -> SparseTensor:
    """Keep at most ``max_sites`` sites per sample, evenly spread and deterministic.

    The selection depends only on coordinates modulo 64 strides and on the order of sites, not on features, the order of
    points or a move of the whole world by that period. Raises ``ValueError`` when ``max_sites`` is not positive.
    """
    if max_sites < 1:
        raise ValueError(f"max_sites must be positive, got {max_sites}")
    bounds = x.sites.bounds
    if max(bounds[i + 1] - bounds[i] for i in range(x.batch_size)) <= max_sites:
        return x
    rank = _thinning_ranks(x.sites)
    chosen = [start + best_rows(-rank[start:end], max_sites) for start, end in itertools.pairwise(bounds)]
    rows = torch.cat(chosen)  # ascending, sample by sample
    return SparseTensor(x.sites.derive(x.keys[rows], x.stride), x.feats[rows])


def _thinning_ranks(sites: Sites) -> torch.Tensor:
    """(N,) int64 rank of each site; sites of lower rank are kept first."""
    coords = torch.div(unpack_site_keys(sites.keys)[1], sites.stride, rounding_mode="floor") % _THINNING_PERIOD
    rank = (coords[:, 0] * _THINNING_PERIOD + coords[:, 1]) * _THINNING_PERIOD + coords[:, 2]
    # An odd factor permutes the 2^18 cells of a period; the high bits of the product scatter neighbours far apart.
    rank = (rank * 0x2545F491) & 0x3FFFF
    return ((rank ^ (rank >> 9)) * 0x1B873593) & 0x3FFFF
