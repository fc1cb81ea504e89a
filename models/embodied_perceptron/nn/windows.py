"""Where a network looks: its input lattice inside of the map, its occupancy window, the dense grid of image-only input.

All windows move in steps of the lattice of what they feed, never by fractions of a cell: what stays in view keeps its
sites, and a world moved by whole steps gives the same answer, moved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from embodied_perceptron.geometry.transforms import pack_site_keys
from embodied_perceptron.nn.presets import NetworkConfig, OccupancyConfig
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Engine, Sites
from embodied_perceptron.sparse.tensor import SparseTensor


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
    """Input sites of a network that sees images alone: every site of the occupancy range (ImVoxelNet, WACV 2022).

    One sample; features are ones, which the network replaces by what the images show. ``anchor_m`` as in
    :func:`occupancy_origin`, rounded to the coarsest stride. The range is the configuration's occupancy window, or the
    benchmark's for a network without occupancy. Raises ``ValueError`` for another modality.
    """
    if config.modality != "rgb":
        raise ValueError(f"a {config.modality} network takes sites from geometry, not from a grid")
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
    """The fewest square windows that show [low, high] of the ground, neighbours at most half a window apart.

    Args:
        low_m, high_m: x and y of what must be seen.
        size_m: edge of a window.
        lattice_m: windows may be moved by up to half of this by whoever rounds them to a lattice.

    Returns (centre, core low, core high) of each, x slowest. The cores [low, high) part the plane: what lies in one is
    seen best by its window. The outermost have no end.
    """
    if not 0 < lattice_m < size_m:
        raise ValueError(f"a window of {size_m} m must be larger than a step of its lattice, {lattice_m} m")
    axes = []
    for low, high in zip(low_m, high_m, strict=True):
        spare = high - low + lattice_m - size_m  # what one window does not show
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
    """(anchor rounded to steps) + (offset rounded to steps), in sites. Halves go up, so steps have one size."""
    anchor = torch.as_tensor(list(anchor_m), dtype=torch.float64)
    if anchor.shape != (3,) or not bool(torch.isfinite(anchor).all()):
        raise ValueError(f"an anchor is 3 finite numbers, got {list(anchor_m)}")
    offset = torch.as_tensor(list(offset_m), dtype=torch.float64)
    steps = torch.floor(anchor / step_m + 0.5) + torch.floor(offset / step_m + 0.5)
    x, y, z = (int(v) * step_sites for v in steps.tolist())
    return x, y, z
