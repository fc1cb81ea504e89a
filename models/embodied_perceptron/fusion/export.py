"""What leaves the volume: means instead of sums, and sites for the network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.fusion.export_kernels import (
    SITE_COLUMNS,
    merge_sites,
    site_columns,
    turn_voxels,
    voxel_means,
)
from embodied_perceptron.fusion.voxels import (
    COLOR,
    HITS,
    OFFSET,
    OFFSET_UNITS,
    RECORD,
    VoxelRows,
)
from embodied_perceptron.geometry import MAX_SITE_COORDINATE, pack_keys, pack_site_keys, unpack_keys
from embodied_perceptron.lattice import Lattice
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.sparse.engine import Engine, get_engine
from embodied_perceptron.sparse.tensor import Sites, SparseTensor

_FAR = 1 << 30  # no voxel lies there: the limit of an open side
SiteFeature = Literal["color", "offset", "height", "point", "log_hits", "one"]
DEFAULT_FEATURES: tuple[SiteFeature, ...] = ("color", "offset", "height")


@dataclass(frozen=True, eq=False)
class Window:
    """An axis-aligned part of the world.

    It is widened to whole cells of ``snap`` sites, so that a window which follows a robot moves in steps of the
    network's coarsest stride and every site of the network stays on one lattice.

    Attributes:
        center_m, size_m: (3,) world; an infinite size leaves that axis open.
        snap: lattice of the window's faces, in sites.

    Raises ``ValueError`` naming the value that does not fit.
    """

    center_m: NDArray[np.floating[Any]]
    size_m: NDArray[np.floating[Any]]
    snap: int = 32

    def __post_init__(self) -> None:
        for name in ("center_m", "size_m"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
            if getattr(self, name).shape != (3,):
                raise ValueError(f"window {name} must be 3 numbers, got shape {getattr(self, name).shape}")
        if not np.isfinite(self.center_m).all():
            raise ValueError(f"window center_m must be finite, got {self.center_m.tolist()}")
        if not (self.size_m > 0).all():
            raise ValueError(f"window size_m must be positive, got {self.size_m.tolist()}")
        if self.snap < 1:
            raise ValueError(f"window snap must be positive, got {self.snap}")

    def limits(self, site_size_m: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lowest site and the one behind the highest per axis, (3,) whole numbers or infinite.

        The extent depends on the size alone, not on where the centre lies.
        """
        cell = site_size_m * self.snap
        cells = np.ceil(np.round(self.size_m / cell, 6))
        first = np.round((self.center_m / cell) - np.where(np.isfinite(cells), cells, 0.0) / 2.0)
        lower = np.where(np.isfinite(cells), first, -np.inf) * self.snap
        upper = np.where(np.isfinite(cells), first + cells, np.inf) * self.snap
        return lower, upper


@dataclass(frozen=True, eq=False)
class VoxelCopy:
    """The voxels of a map at one moment, as they are stored: what has to be copied while the map stands still.

    What is made of them may be made anywhere, while fusing goes on.

    Attributes:
        rows: with at least as many hits as asked for.
        voxel_size_m: edge length.
    """

    rows: VoxelRows
    voxel_size_m: float

    def __len__(self) -> int:
        return len(self.rows)

    def snapshot(self) -> VoxelSnapshot:
        """Means instead of sums."""
        return to_snapshot(self.rows, self.voxel_size_m)

    def turned(self, lattice: Lattice, center_m: NDArray[np.floating[Any]], radius_m: float) -> VoxelCopy:
        """The voxels within ``radius_m`` (horizontally) of ``center_m`` (world), standing on another lattice.

        Every voxel goes, with all that it holds, to where its mean point lies there; several may go to one place.
        """
        turn = _turn_compiled if self.rows.coords.device.type == "cpu" else turn_by_tensors
        rows = turn(self.rows, lattice, center_m[:2] / self.voxel_size_m, radius_m / self.voxel_size_m)
        return VoxelCopy(rows, self.voxel_size_m)

    def as_sparse_tensor(
        self,
        site_voxels: int = 1,
        *,
        window: Window | None = None,
        features: tuple[SiteFeature, ...] = DEFAULT_FEATURES,
        floor_z_m: float = 0.0,
        engine: Engine | None = None,
    ) -> SparseTensor:
        """See :meth:`FeatureVolume.as_sparse_tensor`."""
        if site_voxels < 1:
            raise ValueError(f"site_voxels must be at least 1, got {site_voxels}")
        limits = np.array([[-_FAR] * 3, [_FAR] * 3])
        if window is not None:
            limits = np.clip(np.stack(window.limits(self.voxel_size_m * site_voxels)) * site_voxels, -_FAR, _FAR)
        return to_sparse_tensor(
            self.rows,
            limits=limits.astype(np.int32),
            voxel_size_m=self.voxel_size_m,
            site_voxels=site_voxels,
            features=features,
            floor_z_m=floor_z_m,
            engine=engine,
        )


def to_snapshot(rows: VoxelRows, voxel_size_m: float) -> VoxelSnapshot:
    """Stored sums -> means."""
    rows, n = rows.cpu(), len(rows)
    snapshot = VoxelSnapshot(
        voxel_size_m=voxel_size_m,
        coords=rows.coords.numpy(),
        mean_point_m=np.empty((n, 3), np.float32),
        mean_color=np.empty((n, 3), np.uint8),
        hits=np.empty(n, np.int32),
        evidence=np.empty(n, np.float32),
        last_seen_ns=rows.last_seen_ns.numpy(),
    )
    s = snapshot
    voxel_means(s.coords, rows.records.numpy(), voxel_size_m, s.mean_point_m, s.mean_color, s.hits, s.evidence)
    return snapshot


def turn_by_tensors(rows: VoxelRows, lattice: Lattice, middle: NDArray[np.floating[Any]], radius: float) -> VoxelRows:
    """Voxels within ``radius`` of ``middle`` (2,), both in voxels, on another lattice; on any device."""
    if math.isfinite(radius):
        at = torch.tensor(middle, device=rows.coords.device)
        rows = rows.where(((rows.coords[:, :2] + 0.5 - at) ** 2).sum(1) <= radius**2)
    hits = rows.records[:, HITS : HITS + 1].double()
    place = (rows.records[:, OFFSET : OFFSET + 3].double() / hits + 0.5) / OFFSET_UNITS
    R = torch.from_numpy(lattice.T_world_lattice[:3, :3]).to(place.device)
    point = (rows.coords.double() + place) @ R
    coords = torch.floor(point)
    offset = torch.floor((point - coords) * OFFSET_UNITS).clamp_(0, OFFSET_UNITS - 1)
    records = rows.records.clone()
    records[:, OFFSET : OFFSET + 3] = (offset * hits).to(torch.int32)
    return VoxelRows(coords.to(torch.int32), records, rows.last_seen_ns)


def _turn_compiled(rows: VoxelRows, lattice: Lattice, middle: NDArray[np.floating[Any]], radius: float) -> VoxelRows:
    """The same on the CPU, in one pass."""
    coords, records = torch.empty_like(rows.coords), torch.empty_like(rows.records)
    stamps = torch.empty_like(rows.last_seen_ns)
    n = turn_voxels(
        rows.coords.numpy(), rows.records.numpy(), rows.last_seen_ns.numpy(), lattice.T_world_lattice[:2, :2],
        np.asarray(middle, np.float64), radius**2, coords.numpy(), records.numpy(), stamps.numpy(),
    )  # fmt: skip
    return VoxelRows(coords[:n], records[:n], stamps[:n])


def merge_by_sorting(rows: VoxelRows, site_voxels: int, limits: NDArray[np.int32]) -> tuple[torch.Tensor, torch.Tensor]:
    """Add voxels up to sites of ``site_voxels`` voxels edge length, on any device.

    ``limits`` (2, 3): the lowest voxel, and the one behind the highest, that count.

    Returns (M, 3) int64 sites sorted by (x, y, z), and (M, 7) int64 sums: hits, offsets from the site's lower corner in
    1/1024 voxel, colours.
    """
    low, high = torch.from_numpy(limits).to(rows.coords.device)
    rows = rows.where(((rows.coords >= low) & (rows.coords < high)).all(dim=1))
    coords = rows.coords.to(torch.int64)
    sites = torch.div(coords, site_voxels, rounding_mode="floor")
    sums = rows.records[:, : RECORD - 1].to(torch.int64)
    sums[:, OFFSET : OFFSET + 3] += (coords - sites * site_voxels) * OFFSET_UNITS * sums[:, HITS : HITS + 1]
    keys, inverse = torch.unique(pack_keys(sites), return_inverse=True)
    merged = torch.zeros((len(keys), RECORD - 1), dtype=torch.int64, device=keys.device)
    return unpack_keys(keys), merged.index_add_(0, inverse, sums)


def merge_by_hashing(rows: VoxelRows, site_voxels: int, limits: NDArray[np.int32]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as :func:`merge_by_sorting`, compiled for the CPU."""
    n = len(rows)
    bits = max(4, int(np.ceil(np.log2(2 * max(n, 1)))))
    out = np.empty((n, RECORD + 3), np.int64)
    table = np.full(1 << bits, -1, np.int64), np.empty(1 << bits, np.int32)
    sites = merge_sites(rows.coords.numpy(), rows.records.numpy(), limits, site_voxels, 64 - bits, *table, out)
    keys = out[:sites, 0].copy()
    merged = torch.from_numpy(out[:sites][np.argsort(keys)])
    return merged[:, 1:4], merged[:, 4:]


def to_sparse_tensor(
    rows: VoxelRows,
    *,
    limits: NDArray[np.int32],
    voxel_size_m: float,
    site_voxels: int,
    features: tuple[SiteFeature, ...],
    floor_z_m: float,
    engine: Engine | None,
) -> SparseTensor:
    """Voxels -> network input; see :meth:`FeatureVolume.as_sparse_tensor`."""
    unknown = [name for name in features if name not in get_args(SiteFeature)]
    if unknown or not features:
        raise ValueError(f"features must be some of {list(get_args(SiteFeature))}, got {list(features)}")
    merge = merge_by_hashing if rows.coords.device.type == "cpu" else merge_by_sorting
    sites, sums = merge(rows, site_voxels, limits)
    if len(sites) and int(sites.abs().max()) > MAX_SITE_COORDINATE:
        raise ValueError(
            f"sites reach coordinate {int(sites.abs().max())}, but sparse tensors end at {MAX_SITE_COORDINATE}"
        )
    columns = _columns_compiled if sites.device.type == "cpu" else columns_by_tensors
    keys, feats = columns(sites, sums, features, site_voxels, voxel_size_m, floor_z_m)
    chosen = get_engine("auto", keys.device.type) if engine is None else engine
    return SparseTensor(Sites(keys, 1, 1, chosen), feats)


def columns_by_tensors(
    sites: torch.Tensor,
    sums: torch.Tensor,
    features: tuple[SiteFeature, ...],
    site_voxels: int,
    voxel_size_m: float,
    floor_z_m: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(M, 3) sites and their (M, 7) sums -> (M,) site keys and (M, F) float32 features; any device."""
    keys = pack_site_keys(torch.zeros_like(sites[:, 0]), sites)
    hits = sums[:, HITS : HITS + 1].to(torch.float64)
    # place of the mean point inside of its site, in [0, 1)
    place = (sums[:, OFFSET : OFFSET + 3] / hits + 0.5) / (OFFSET_UNITS * site_voxels)
    point = (sites + place) * (voxel_size_m * site_voxels)
    columns = {
        "color": lambda: sums[:, COLOR : COLOR + 3] / (255.0 * hits),
        "offset": lambda: place - 0.5,
        "height": lambda: point[:, 2:3] - floor_z_m,
        "point": lambda: point,
        "log_hits": lambda: torch.log(hits),
        "one": lambda: torch.ones_like(hits),
    }
    feats = torch.cat([columns[name]() for name in features], dim=1).to(torch.float32)
    return keys, feats


def _columns_compiled(
    sites: torch.Tensor,
    sums: torch.Tensor,
    features: tuple[SiteFeature, ...],
    site_voxels: int,
    voxel_size_m: float,
    floor_z_m: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on the CPU, in one pass."""
    wanted = np.array([column for name in features for column in SITE_COLUMNS[name]], np.int64)
    keys = torch.empty(len(sites), dtype=torch.int64)
    feats = torch.empty(len(sites), len(wanted), dtype=torch.float32)
    site_columns(sites.numpy(), sums.numpy(), wanted, site_voxels, voxel_size_m, floor_z_m, keys.numpy(), feats.numpy())
    return keys, feats
