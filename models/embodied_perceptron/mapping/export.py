"""Copies of the volume: mean values of voxels, and network input.

Sites of the network are sums of voxels. They are computed block by block, once for each content of a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.bits import lowest_bit
from embodied_perceptron.geometry.compute_path import launch, runs_compiled
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.manhattan import WORLD, ManhattanFrame
from embodied_perceptron.geometry.transforms import (
    MAX_SITE_COORDINATE,
    SITE_BITS,
    constant,
    pack_keys,
    unpack_keys,
)
from embodied_perceptron.mapping.block_copies import BlockCache, BlockRows, BlockView, Index, voxel_means
from embodied_perceptron.mapping.blocks import BLOCK_EDGE
from embodied_perceptron.mapping.keyframes import Keyframe
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

Array = NDArray[Any]
_SUMS = RECORD - 1
_MAX_MARKS = 1 << 28  # sites of a box that are marked in bits
_FAR = 1 << 30  # beyond all voxels: the limit of an open side
DEFAULT_FEATURES: tuple[SiteFeature, ...] = ("color", "offset", "height")

# columns of a site's features, as site_columns numbers them
SITE_COLUMNS = {
    "color": (0, 1, 2), "offset": (3, 4, 5), "point": (6, 7, 8), "height": (9,), "log_hits": (10,), "one": (11,)
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Window:
    """Axis-aligned part of the map.

    It is widened to whole cells of ``snap`` sites: a window that follows a robot moves in steps of the network's
    coarsest stride, and the sites stay on one grid.

    Attributes:
        center_m, size_m: (3,); an infinite size leaves that axis open.
        snap: grid of the window's faces, in sites.

    Raises ``ValueError`` naming the invalid value.
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
        """Lowest site, and the one past the highest, of each axis: (3,) whole numbers or infinite.

        The extent depends on the size only, not on the centre.
        """
        cell = site_size_m * self.snap
        cells = np.ceil(np.round(self.size_m / cell, 6))
        first = np.round((self.center_m / cell) - np.where(np.isfinite(cells), cells, 0.0) / 2.0)
        lower = np.where(np.isfinite(cells), first, -np.inf) * self.snap
        upper = np.where(np.isfinite(cells), first + cells, np.inf) * self.snap
        return lower, upper


@dataclass(frozen=True, eq=False)
class VolumeCopy:
    """Stored voxels and keyframes of a volume at one moment; for any thread, also during fusion.

    Attributes:
        rows: voxels with at least the requested hits.
        voxel_size_m: edge length.
        keyframes: oldest first; immutable, shared with the volume.
        manhattan: frame of the voxel coordinates.
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
        """Mean values of the voxels."""
        if isinstance(self.rows, BlockRows):
            return self.rows.blocks.snapshot()
        rows, n = self.rows.cpu(), len(self.rows)
        coords, records = rows.coords.numpy(), rows.records.numpy()
        points, colors = np.empty((n, 3), np.float32), np.empty((n, 3), np.uint8)
        voxel_means(np.zeros(1, np.int64), np.array([n]), coords, records, self.voxel_size_m, points, colors)
        evidence = (records[:, EVIDENCE] * EVIDENCE_UNIT).astype(np.float32)
        stamps = rows.last_seen_ns.numpy()
        return VoxelSnapshot(self.voxel_size_m, coords, points, colors, records[:, HITS].copy(), evidence, stamps)

    def turned(self, manhattan: ManhattanFrame, center_m: NDArray[np.floating[Any]], radius_m: float) -> VolumeCopy:
        """Voxels within ``radius_m`` (horizontally) of ``center_m`` (world), in another Manhattan frame.

        Each voxel moves as a whole to the place of its mean point; several may share a place afterwards.
        """
        middle, radius = np.asarray(center_m[:2] / self.voxel_size_m, np.float64), radius_m / self.voxel_size_m
        if isinstance(self.rows, BlockRows):
            return replace(self, rows=TurnedRows(self.rows, manhattan, middle, radius), manhattan=manhattan)
        if not runs_compiled(self.rows.coords):  # their number would have to be read; windows leave the others out
            radius = math.inf
        return replace(self, rows=turn_by_tensors(self.rows, manhattan, middle, radius), manhattan=manhattan)

    def as_sparse_tensor(
        self,
        site_voxels: int = 1,
        *,
        window: Window | None = None,
        features: tuple[SiteFeature, ...] = DEFAULT_FEATURES,
        floor_z_m: float = 0.0,
        engine: Engine | None = None,
        coarser: Sequence[int] = (),
    ) -> SparseTensor:
        """See :meth:`FeatureVolume.as_sparse_tensor`. ``coarser``: factors of the network's strides, see
        :meth:`Sites.of_points`."""
        if site_voxels < 1:
            raise ValueError(f"site_voxels must be at least 1, got {site_voxels}")
        limits = np.array([[-_FAR] * 3, [_FAR] * 3])
        if window is not None:
            limits = np.clip(np.stack(window.limits(self.voxel_size_m * site_voxels)) * site_voxels, -_FAR, _FAR)
        unknown = [name for name in features if name not in get_args(SiteFeature)]
        if unknown or not features:
            raise ValueError(f"features must be some of {list(get_args(SiteFeature))}, got {list(features)}")
        wanted = tuple(column for name in features for column in SITE_COLUMNS[name])
        place, limits = (site_voxels, self.voxel_size_m, floor_z_m), limits.astype(np.int32)
        if isinstance(self.rows, (BlockRows, TurnedRows)) or runs_compiled(self.rows.coords):
            sites, sums = merge_sites(self.rows, site_voxels, limits, self.site_cache)
            _check_reach(int(sites.abs().max()) if len(sites) else 0)
            keys, feats = (
                torch.empty(len(sites), dtype=torch.int64),
                torch.empty(len(sites), len(wanted), dtype=torch.float32),
            )
            given = sites.numpy(), sums.numpy(), np.array(wanted, np.int64)
            site_columns(*given, *place, keys.numpy(), feats.numpy())
            return SparseTensor(Sites(keys, 1, 1, engine or get_engine("auto", "cpu")), feats)
        device = self.rows.coords.device
        found, sums = sites_on_device(
            self.rows, site_voxels, limits, coarser, engine or get_engine("auto", device.type)
        )
        feats = torch.empty(len(found), len(wanted), dtype=torch.float32, device=device)
        if len(found):
            from embodied_perceptron.mapping import export_kernels

            launch(export_kernels.site_columns, feats.shape, found.keys, sums, constant(wanted, device), *place, feats)
        return SparseTensor(found, feats)


def turn_by_tensors(
    rows: VoxelRows, manhattan: ManhattanFrame, middle: NDArray[np.floating[Any]], radius: float
) -> VoxelRows:
    """Voxels within ``radius`` of ``middle`` (2,), both in voxels, in another Manhattan frame; on any device."""
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
    """Voxels of a view within ``radius`` of ``middle`` (2,), both in voxels, in another Manhattan frame.

    They are turned when first read. ``of``: the voxels of the view.
    """

    of: BlockRows
    manhattan: ManhattanFrame
    middle: NDArray[np.float64]
    radius: float

    def __init__(self, of: BlockRows, manhattan: ManhattanFrame, middle: NDArray[np.float64], radius: float) -> None:
        for name, value in (("of", of), ("manhattan", manhattan), ("middle", middle), ("radius", radius)):
            object.__setattr__(self, name, value)

    def covers(self, limits: NDArray[np.int32]) -> bool:
        """Whether the radius leaves out no voxel within ``limits`` (2, 3) of the Manhattan frame."""
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


def _check_reach(farthest: int) -> None:
    if farthest > MAX_SITE_COORDINATE:
        raise ValueError(f"sites reach coordinate {farthest}, but sparse tensors end at {MAX_SITE_COORDINATE}")


def merge_by_sorting(rows: VoxelRows, site_voxels: int, limits: NDArray[np.int32]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum voxels by sites of ``site_voxels`` voxels edge length.

    ``limits`` (2, 3): lowest voxel, and the one past the highest.

    Returns (M, 3) int64 sites sorted by (x, y, z), and (M, 7) int64 sums: hits, offsets from the site's lower corner in
    1/1024 voxel, colours.
    """
    low, high = torch.from_numpy(limits)
    inside = ((rows.coords >= low) & (rows.coords < high)).all(1)
    coords, sums = rows.coords[inside].long(), rows.records[inside, :_SUMS].long()
    sites = torch.div(coords, site_voxels, rounding_mode="floor")
    sums[:, OFFSET : OFFSET + 3] += (coords - sites * site_voxels) * OFFSET_UNITS * sums[:, HITS : HITS + 1]
    keys, inverse = torch.unique(pack_keys(sites), return_inverse=True)
    return unpack_keys(keys), torch.zeros((len(keys), _SUMS), dtype=torch.int64).index_add_(0, inverse, sums)


def sites_on_device(
    rows: VoxelRows, site_voxels: int, limits: NDArray[np.int32], coarser: Sequence[int], engine: Engine
) -> tuple[Sites, torch.Tensor]:
    """:func:`merge_by_sorting` on a device, with one synchronisation: sites with their ``coarser`` sets, and sums."""
    from embodied_perceptron.mapping import export_kernels as kernels

    device, size = rows.coords.device, len(rows)
    keys = torch.empty(size, dtype=torch.int64, device=device)
    nothing = Sites(keys[:0], 1, 1, engine), torch.zeros((0, _SUMS), dtype=torch.int64, device=device)
    if size == 0:
        return nothing
    extremes = constant((kernels.OUTSIDE, 0), device).clone()
    launch(kernels.find_sites, size, rows.coords, *limits.tolist(), site_voxels, keys, extremes)
    inside = torch.where(keys == kernels.OUTSIDE, extremes[:1], keys)  # voxels outside join a site, with nothing
    found, order, row, numbers = Sites.of_points(inside, coarser, engine, extremes)
    if numbers[0] == kernels.OUTSIDE:
        return nothing
    _check_reach(numbers[1])
    sums = torch.zeros((len(found), _SUMS), dtype=torch.int64, device=device)
    launch(kernels.add_to_sites, size, order, row, keys, rows.coords, rows.records, site_voxels, sums)
    return found, sums


@dataclass(frozen=True)
class Lattice:
    """Where sites lie.

    Attributes:
        site_voxels: edge of a site, in voxels.
        manhattan: frame of the sites; a voxel belongs to the site at its mean point. None = the frame of the voxels.
    """

    site_voxels: int
    manhattan: ManhattanFrame | None = None


def sum_sites(
    view: BlockView, lattice: Lattice, limits: NDArray[np.int64], cache: BlockCache
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Sites of a view within ``limits`` (2, 3): lowest site, and the one past the highest.

    ``cache``: of earlier sums of the same map.

    Returns (M, 3) int64 sites sorted by (x, y, z), and (M, 7) int64 sums: hits, offsets from the site's lower corner in
    1/1024 voxel, colours; None for sites too far apart for this method.
    """

    def parts(changed: Index) -> tuple[Index, tuple[Array, ...]]:
        ranges = view.ranges[changed]
        most = int((ranges[:, 1] - ranges[:, 0]).sum())
        sites, sums = np.empty((most, 3), np.int32), np.empty((most, _SUMS), np.int64)
        counts = np.empty(len(changed), np.int64)
        R = np.eye(2) if lattice.manhattan is None else lattice.manhattan.T_world_manhattan[:2, :2].copy()
        a, is_turned = view.arena, lattice.manhattan is not None
        sum_parts(
            view.coords[changed], ranges, a.coords, a.records, is_turned, R, lattice.site_voxels, sites, sums, counts
        )
        n = int(counts.sum())
        return counts, (sites[:n], sums[:n])

    with cache.lock:
        cache.update(view, lattice, parts)
        part_sites, part_sums = cache.columns
        rows = np.stack([cache.starts, cache.starts + cache.counts], axis=1)
        low, high = np.empty(3, np.int64), np.empty(3, np.int64)
        if not bounds_of_sites(rows, part_sites, limits, low, high):
            return torch.zeros((0, 3), dtype=torch.int64), torch.zeros((0, _SUMS), dtype=torch.int64)
        extent = high - low + 1
        if float(np.prod(extent.astype(np.float64))) > _MAX_MARKS:
            return None
        marks = np.zeros((int(np.prod(extent)) >> 6) + 1, np.uint64)
        before = np.empty(len(marks), np.int32)
        count = mark_sites(rows, part_sites, limits, low, extent, marks, before)
        sites, sums = np.empty((count, 3), np.int64), np.zeros((count, _SUMS), np.int64)
        add_parts(rows, part_sites, part_sums, limits, low, extent, marks, before, sites, sums)
    return torch.from_numpy(sites), torch.from_numpy(sums)


def merge_sites(
    rows: VoxelRows, site_voxels: int, limits: NDArray[np.int32], site_cache: BlockCache | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`merge_by_sorting`; block by block (:func:`sum_sites`) where the voxels have blocks.

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


# --------------------------------------------------------------------------------------------------------------------
# kernels on the CPU; tests compare them with the functions on tensors


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
    """:func:`turn_by_tensors`; ``R`` (2, 2) world <- manhattan on the ground. Returns the number of output rows."""
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
    """Fill (M,) site keys and (M, F) features of (M, 3) sites and their (M, 7) sums.

    ``wanted`` (F,): columns of ``SITE_COLUMNS``.
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


@njit(cache=True, nogil=True, error_model="numpy")  # no check for division by zero: every stored voxel has hits
def sum_parts(
    blocks: Array,
    ranges: Array,
    coords: Array,
    records: Array,
    is_turned: bool,
    R: Array,
    site_voxels: int,
    sites: Array,
    sums: Array,
    counts: Array,
) -> None:
    """Sum the voxels of each block by site, block after block in ``sites`` and ``sums``; ``counts`` of sites per block.

    ``R`` (2, 2) world <- manhattan on the ground. Sites are numbered in a box around all that the block may touch.
    """
    edge = np.float64(site_voxels)
    low, extent = np.empty(3, np.int64), np.empty(3, np.int64)
    numbers = np.empty(0, np.int32)
    n = 0
    for b in range(blocks.shape[0]):
        x, y = (blocks[b, 0] + 0.5) * BLOCK_EDGE, (blocks[b, 1] + 0.5) * BLOCK_EDGE
        middle = x * R[0, 0] + y * R[1, 0], x * R[0, 1] + y * R[1, 1], (blocks[b, 2] + 0.5) * BLOCK_EDGE
        half = 0.5 * BLOCK_EDGE * (np.abs(R[0, 0]) + np.abs(R[1, 0])) + 0.01, 0.5 * BLOCK_EDGE + 0.01
        for c in range(3):
            reach = half[0] if c < 2 else half[1]
            low[c] = np.int64(np.floor((middle[c] - reach) / edge))
            extent[c] = np.int64(np.floor((middle[c] + reach) / edge)) - low[c] + 1
        cells = extent[0] * extent[1] * extent[2]
        if numbers.shape[0] < cells:
            numbers = np.empty(cells, np.int32)
        numbers[:cells] = -1
        start = n
        for i in range(ranges[b, 0], ranges[b, 1]):
            hits = np.int64(records[i, HITS])
            vx, vy, vz = np.int64(coords[i, 0]), np.int64(coords[i, 1]), np.int64(coords[i, 2])
            ox, oy, oz = (
                np.int64(records[i, OFFSET]),
                np.int64(records[i, OFFSET + 1]),
                np.int64(records[i, OFFSET + 2]),
            )
            if is_turned:
                px, py = vx + (ox / hits + 0.5) / OFFSET_UNITS, vy + (oy / hits + 0.5) / OFFSET_UNITS
                pz = vz + (oz / hits + 0.5) / OFFSET_UNITS
                vx, ox = _turned(px * R[0, 0] + py * R[1, 0], hits)
                vy, oy = _turned(px * R[0, 1] + py * R[1, 1], hits)
                vz, oz = _turned(pz, hits)
            # from the voxel's centre: no quotient is near a whole number
            sx = np.int64(np.floor((vx + 0.5) / edge))
            sy = np.int64(np.floor((vy + 0.5) / edge))
            sz = np.int64(np.floor((vz + 0.5) / edge))
            cell = ((sx - low[0]) * extent[1] + (sy - low[1])) * extent[2] + (sz - low[2])
            row = numbers[cell]
            if row < 0:
                row = n
                numbers[cell] = n
                sites[n, 0], sites[n, 1], sites[n, 2] = sx, sy, sz
                sums[n, :] = 0
                n += 1
            total = sums[row]
            total[HITS] += hits
            total[OFFSET] += ox + (vx - sx * site_voxels) * OFFSET_UNITS * hits
            total[OFFSET + 1] += oy + (vy - sy * site_voxels) * OFFSET_UNITS * hits
            total[OFFSET + 2] += oz + (vz - sz * site_voxels) * OFFSET_UNITS * hits
            for c in range(3):
                total[COLOR + c] += records[i, COLOR + c]
        counts[b] = n - start


@njit(cache=True, inline="always")
def _turned(at: float, hits: int) -> tuple[int, int]:
    """Coordinate of a mean point in the new frame, in voxels -> its voxel there, and the sum of offsets."""
    corner = np.floor(at)
    place = min(max(np.floor((at - corner) * OFFSET_UNITS), 0.0), OFFSET_UNITS - 1.0)
    return np.int64(corner), np.int64(place) * hits


@njit(cache=True, inline="always")
def _counts_here(site: Array, limits: Array) -> bool:
    return bool(
        site[0] >= limits[0, 0] and site[0] < limits[1, 0]
        and site[1] >= limits[0, 1] and site[1] < limits[1, 1]
        and site[2] >= limits[0, 2] and site[2] < limits[1, 2]
    )  # fmt: skip


@njit(cache=True, nogil=True)
def bounds_of_sites(ranges: Array, sites: Array, limits: Array, low: Array, high: Array) -> bool:
    """Lowest and highest (3,) of the sites within ``limits``; returns whether there are any."""
    low[:], high[:] = limits[1], limits[0] - 1
    for b in range(ranges.shape[0]):
        for i in range(ranges[b, 0], ranges[b, 1]):
            if _counts_here(sites[i], limits):
                for c in range(3):
                    low[c], high[c] = min(low[c], sites[i, c]), max(high[c], sites[i, c])
    return bool(low[0] <= high[0])


@njit(cache=True, nogil=True)
def mark_sites(
    ranges: Array, sites: Array, limits: Array, low: Array, extent: Array, marks: Array, before: Array
) -> int:
    """Mark sites in the bits of a box, and count those ``before`` each word; returns the number of sites."""
    for b in range(ranges.shape[0]):
        for i in range(ranges[b, 0], ranges[b, 1]):
            if _counts_here(sites[i], limits):
                cell = _cell(sites[i], low, extent)
                marks[cell >> 6] |= np.uint64(1) << np.uint64(cell & 63)
    n = 0
    for word in range(marks.shape[0]):
        before[word] = n
        n += _bits(marks[word])
    return n


@njit(cache=True, nogil=True)
def add_parts(
    ranges: Array,
    parts: Array,
    part_sums: Array,
    limits: Array,
    low: Array,
    extent: Array,
    marks: Array,
    before: Array,
    sites: Array,
    sums: Array,
) -> None:
    """Write the sites in order, and add the sums of each block to theirs."""
    n = 0
    for word in range(marks.shape[0]):
        bits = marks[word]
        while bits != np.uint64(0):
            cell = (word << 6) + lowest_bit(bits)
            bits &= bits - np.uint64(1)
            column = cell // extent[2]
            sites[n, 0], sites[n, 1] = low[0] + column // extent[1], low[1] + column % extent[1]
            sites[n, 2] = low[2] + cell - column * extent[2]
            n += 1
    for b in range(ranges.shape[0]):
        for i in range(ranges[b, 0], ranges[b, 1]):
            if _counts_here(parts[i], limits):
                cell = _cell(parts[i], low, extent)
                below = marks[cell >> 6] & ((np.uint64(1) << np.uint64(cell & 63)) - np.uint64(1))
                row = before[cell >> 6] + _bits(below)
                for c in range(_SUMS):
                    sums[row, c] += part_sums[i, c]


@njit(cache=True, inline="always")
def _cell(site: Array, low: Array, extent: Array) -> int:
    cell: int = ((site[0] - low[0]) * extent[1] + (site[1] - low[1])) * extent[2] + (site[2] - low[2])
    return cell


@njit(cache=True, inline="always")
def _bits(word: int) -> int:
    """Number of set bits of a uint64."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    count: int = np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
    return count
