"""What leaves the volume: means instead of sums, and sites for the network."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.manhattan import WORLD, ManhattanFrame
from embodied_perceptron.geometry.transforms import (
    MAX_SITE_COORDINATE,
    SITE_BITS,
    constant,
    pack_keys,
    site_keys_of,
    unpack_keys,
)
from embodied_perceptron.mapping.block_copies import BlockCache, BlockRows, voxel_means
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.mapping.site_sums import Lattice, sum_sites
from embodied_perceptron.mapping.voxels import (
    COLOR,
    EVIDENCE,
    EVIDENCE_UNIT,
    HITS,
    OFFSET,
    OFFSET_UNITS,
    RECORD,
    VoxelRows,
)
from embodied_perceptron.nn.input_features import SiteFeature
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Engine, Sites
from embodied_perceptron.sparse.tensor import SparseTensor

# --------------------------------------------------------------------------------------------------------------------
# compiled for the CPU, without the interpreter's lock; each has a twin of tensors below

Array = NDArray[Any]
_FAR = 1 << 30  # no voxel lies there: the limit of an open side

# columns of a site's features, as site_columns numbers them
SITE_COLUMNS = {
    "color": (0, 1, 2), "offset": (3, 4, 5), "point": (6, 7, 8), "height": (9,), "log_hits": (10,), "one": (11,)
}  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy")
def turn_voxels(
    coords: Array,
    records: Array,
    last_seen: Array,
    R: Array,
    middle: Array,
    radius_squared: float,
    out_coords: Array,
    out_records: Array,
    out_last_seen: Array,
) -> int:
    """Move voxels within a radius of ``middle`` (2,), in voxels, to where their mean points lie on a turned manhattan.

    ``R`` (2, 2) world <- manhattan on the ground. Returns how many there are; the outputs are filled up to that.
    """
    n = 0
    for i in range(coords.shape[0]):
        dx, dy = coords[i, 0] + 0.5 - middle[0], coords[i, 1] + 0.5 - middle[1]
        if dx * dx + dy * dy > radius_squared:
            continue
        hits = np.float64(records[i, HITS])
        x = coords[i, 0] + (records[i, OFFSET] / hits + 0.5) / OFFSET_UNITS
        y = coords[i, 1] + (records[i, OFFSET + 1] / hits + 0.5) / OFFSET_UNITS
        z = coords[i, 2] + (records[i, OFFSET + 2] / hits + 0.5) / OFFSET_UNITS
        point = x * R[0, 0] + y * R[1, 0], x * R[0, 1] + y * R[1, 1], z
        for c in range(RECORD):
            out_records[n, c] = records[i, c]
        for c in range(3):
            corner = np.floor(point[c])
            place = min(max(np.floor((point[c] - corner) * OFFSET_UNITS), 0.0), OFFSET_UNITS - 1.0)
            out_coords[n, c] = np.int32(corner)
            out_records[n, OFFSET + c] = np.int32(place * hits)
        out_last_seen[n] = last_seen[i]
        n += 1
    return n


@njit(cache=True, nogil=True, error_model="numpy")
def site_columns(
    sites: Array,
    sums: Array,
    wanted: Array,
    site_voxels: int,
    voxel_size_m: float,
    floor_z_m: float,
    keys: Array,
    feats: Array,
) -> None:
    """(M, 3) sites and (M, 7) sums of :func:`merge_sites` -> (M,) site keys and (M, F) features, both filled here.

    ``wanted`` (F,): which columns, see ``SITE_COLUMNS``.
    """
    row = np.empty(12)
    shift = 1 << (SITE_BITS - 1)
    for i in range(sites.shape[0]):
        hits = np.float64(sums[i, HITS])
        for c in range(3):
            place = (sums[i, OFFSET + c] / hits + 0.5) / (OFFSET_UNITS * site_voxels)
            row[c] = sums[i, COLOR + c] / (255.0 * hits)
            row[3 + c] = place - 0.5
            row[6 + c] = (sites[i, c] + place) * (voxel_size_m * site_voxels)
        row[9] = row[8] - floor_z_m
        row[10] = np.log(hits)
        row[11] = 1.0
        for f in range(wanted.shape[0]):
            feats[i, f] = row[wanted[f]]
        x, y, z = sites[i, 0] + shift, sites[i, 1] + shift, sites[i, 2] + shift
        keys[i] = (x << (2 * SITE_BITS)) | (y << SITE_BITS) | z


# --------------------------------------------------------------------------------------------------------------------
# copies and what is made of them

_BEHIND_ALL = torch.iinfo(torch.int64).max  # no key is as large
DEFAULT_FEATURES: tuple[SiteFeature, ...] = ("color", "offset", "height")


@dataclass(frozen=True, eq=False)
class Window:
    """An axis-aligned part of the world.

    It is widened to whole cells of ``snap`` sites, so that a window which follows a robot moves in steps of the
    network's coarsest stride and every site of the network stays on one manhattan.

    Attributes:
        center_m, size_m: (3,) world; an infinite size leaves that axis open.
        snap: manhattan of the window's faces, in sites.

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
class VolumeCopy:
    """Voxels, as they are stored, and keyframes of a volume at one moment; for any thread, while fusing goes on.

    Attributes:
        rows: voxels with at least as many hits as asked for.
        voxel_size_m: edge length.
        keyframes: oldest first; shared with the volume, never changed.
        manhattan: frame that the voxels stand on.
        site_cache: site sums of earlier copies; None = no earlier ones.
    """

    rows: VoxelRows
    voxel_size_m: float
    keyframes: tuple[Keyframe, ...] = ()
    manhattan: ManhattanFrame = WORLD
    site_cache: BlockCache | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def snapshot(self) -> VoxelSnapshot:
        """Means instead of sums."""
        return to_snapshot(self.rows, self.voxel_size_m)

    def turned(self, manhattan: ManhattanFrame, center_m: NDArray[np.floating[Any]], radius_m: float) -> VolumeCopy:
        """The voxels within ``radius_m`` (horizontally) of ``center_m`` (world), standing on another manhattan.

        Every voxel goes, with all that it holds, to where its mean point lies there; several may go to one place.
        """
        middle, radius = np.asarray(center_m[:2] / self.voxel_size_m, np.float64), radius_m / self.voxel_size_m
        if isinstance(self.rows, BlockRows):
            return replace(self, rows=TurnedRows(self.rows, manhattan, middle, radius), manhattan=manhattan)
        return replace(self, rows=turn_by_tensors(self.rows, manhattan, middle, radius), manhattan=manhattan)

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
            site_cache=self.site_cache,
        )


def to_snapshot(rows: VoxelRows, voxel_size_m: float) -> VoxelSnapshot:
    """Stored sums -> means."""
    if isinstance(rows, BlockRows):
        return rows.blocks.snapshot()
    rows, n = rows.cpu(), len(rows)
    coords, records = rows.coords.numpy(), rows.records.numpy()
    points, colors = np.empty((n, 3), np.float32), np.empty((n, 3), np.uint8)
    voxel_means(np.zeros(1, np.int64), np.array([n]), coords, records, voxel_size_m, points, colors)
    evidence = (records[:, EVIDENCE] * EVIDENCE_UNIT).astype(np.float32)
    stamps = rows.last_seen_ns.numpy()
    return VoxelSnapshot(voxel_size_m, coords, points, colors, records[:, HITS].copy(), evidence, stamps)


def turn_by_tensors(
    rows: VoxelRows, manhattan: ManhattanFrame, middle: NDArray[np.floating[Any]], radius: float
) -> VoxelRows:
    """Voxels within ``radius`` of ``middle`` (2,), both in voxels, on another manhattan; on any device."""
    if math.isfinite(radius):
        at = torch.tensor(middle, device=rows.coords.device)
        rows = rows.where(((rows.coords[:, :2] + 0.5 - at) ** 2).sum(1) <= radius**2)
    hits = rows.records[:, HITS : HITS + 1].double()
    place = (rows.records[:, OFFSET : OFFSET + 3].double() / hits + 0.5) / OFFSET_UNITS
    R = torch.from_numpy(manhattan.T_world_manhattan[:3, :3]).to(place.device)
    point = (rows.coords.double() + place) @ R
    coords = torch.floor(point)
    offset = torch.floor((point - coords) * OFFSET_UNITS).clamp_(0, OFFSET_UNITS - 1)
    records = rows.records.clone()
    records[:, OFFSET : OFFSET + 3] = (offset * hits).to(torch.int32)
    return VoxelRows(coords.to(torch.int32), records, rows.last_seen_ns)


class TurnedRows(VoxelRows):
    """Voxels of a view within ``radius`` of ``middle`` (2,), both in voxels, on another manhattan; turned when they are
    asked for one by one. ``of``: as they were."""

    of: BlockRows
    manhattan: ManhattanFrame
    middle: NDArray[np.float64]
    radius: float

    def __init__(self, of: BlockRows, manhattan: ManhattanFrame, middle: NDArray[np.float64], radius: float) -> None:
        for name, value in (("of", of), ("manhattan", manhattan), ("middle", middle), ("radius", radius)):
            object.__setattr__(self, name, value)

    def covers(self, limits: NDArray[np.int32]) -> bool:
        """Whether none of the voxels that were left out would lie within ``limits`` (2, 3), on the manhattan."""
        corners = np.array([[x, y, 0.0] for x in limits[:, 0] for y in limits[:, 1]])
        away = self.manhattan.to_world(corners)[:, :2] - self.middle
        return bool((np.hypot(away[:, 0], away[:, 1]) + 1.0 <= self.radius).all())  # a mean point lies off the centre

    @cached_property
    def _turned(self) -> VoxelRows:
        rows = self.of
        coords, records = torch.empty_like(rows.coords), torch.empty_like(rows.records)
        stamps = torch.empty_like(rows.last_seen_ns)
        n = turn_voxels(
            rows.coords.numpy(), rows.records.numpy(), rows.last_seen_ns.numpy(),
            self.manhattan.T_world_manhattan[:2, :2], self.middle, self.radius**2,
            coords.numpy(), records.numpy(), stamps.numpy(),
        )  # fmt: skip
        return VoxelRows(coords[:n], records[:n], stamps[:n])

    @property
    def coords(self) -> torch.Tensor:
        return self._turned.coords

    @property
    def records(self) -> torch.Tensor:
        return self._turned.records

    @property
    def last_seen_ns(self) -> torch.Tensor:
        return self._turned.last_seen_ns

    def cpu(self) -> VoxelRows:
        return self


def merge_by_sorting(rows: VoxelRows, site_voxels: int, limits: NDArray[np.int32]) -> tuple[torch.Tensor, torch.Tensor]:
    """Add voxels up to sites of ``site_voxels`` voxels edge length, on any device.

    ``limits`` (2, 3): the lowest voxel, and the one behind the highest, that count.

    Returns (M, 3) int64 sites sorted by (x, y, z), and (M, 7) int64 sums: hits, offsets from the site's lower corner in
    1/1024 voxel, colours.
    """
    low, high = torch.from_numpy(limits).to(rows.coords.device, non_blocking=True)
    outside = ((rows.coords < low) | (rows.coords >= high)).any(dim=1)
    coords = rows.coords.to(torch.int64)
    sites = torch.div(coords, site_voxels, rounding_mode="floor")
    sums = rows.records[:, : RECORD - 1].to(torch.int64)
    sums[:, OFFSET : OFFSET + 3] += (coords - sites * site_voxels) * OFFSET_UNITS * sums[:, HITS : HITS + 1]
    # what lies outside goes to a last site, which there always is: nothing waits for how much that is
    behind = constant((_BEHIND_ALL,), sites.device)
    keys = torch.cat([pack_keys(sites).masked_fill_(outside, _BEHIND_ALL), behind])
    keys, inverse = torch.unique(keys, return_inverse=True)
    merged = torch.zeros((len(keys), RECORD - 1), dtype=torch.int64, device=keys.device)
    return unpack_keys(keys[:-1]), merged.index_add_(0, inverse[:-1], sums)[:-1]


def merge_sites(
    rows: VoxelRows, site_voxels: int, limits: NDArray[np.int32], site_cache: BlockCache | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`merge_by_sorting`; block by block (:func:`~.site_sums.sum_sites`) where the voxels have blocks.

    ``limits`` are multiples of ``site_voxels``, or far from all voxels.
    """
    lattice: Lattice | None = None
    if isinstance(rows, BlockRows):
        blocks, lattice = rows.blocks, Lattice(site_voxels)
    elif isinstance(rows, TurnedRows) and rows.covers(limits):
        blocks, lattice = rows.of.blocks, Lattice(site_voxels, rows.manhattan)
    if lattice is not None:
        cache = BlockCache() if site_cache is None else site_cache
        found = sum_sites(blocks, lattice, limits.astype(np.int64) // site_voxels, cache)
        if found is not None:
            return found
    return merge_by_sorting(rows, site_voxels, limits)


def to_sparse_tensor(
    rows: VoxelRows,
    *,
    limits: NDArray[np.int32],
    voxel_size_m: float,
    site_voxels: int,
    features: tuple[SiteFeature, ...],
    floor_z_m: float,
    engine: Engine | None,
    site_cache: BlockCache | None = None,
) -> SparseTensor:
    """Voxels -> network input; see :meth:`FeatureVolume.as_sparse_tensor`."""
    unknown = [name for name in features if name not in get_args(SiteFeature)]
    if unknown or not features:
        raise ValueError(f"features must be some of {list(get_args(SiteFeature))}, got {list(features)}")
    sites, sums = merge_sites(rows, site_voxels, limits, site_cache)
    if len(sites) and int(sites.abs().max()) > MAX_SITE_COORDINATE:
        raise ValueError(
            f"sites reach coordinate {int(sites.abs().max())}, but sparse tensors end at {MAX_SITE_COORDINATE}"
        )
    columns = _columns_compiled if runs_compiled(sites) else columns_by_tensors
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
    keys = site_keys_of(sites)
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
