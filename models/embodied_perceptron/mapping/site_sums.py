"""Sites of a network: sums of the voxels of a view, computed once for each content of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.bits import lowest_bit
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.manhattan import ManhattanFrame
from embodied_perceptron.mapping.block_copies import BlockCache, BlockView, Index
from embodied_perceptron.mapping.blocks import BLOCK_EDGE
from embodied_perceptron.mapping.voxels import COLOR, HITS, OFFSET, OFFSET_UNITS, RECORD

Array = NDArray[Any]

_SUMS = RECORD - 1
_MAX_MARKS = 1 << 28  # sites of a box that are marked in bits


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


# --------------------------------------------------------------------------------------------------------------------
# kernels


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
    """Add the voxels of each block up by site, block after block in ``sites`` and ``sums``; ``counts`` of each.

    ``R`` (2, 2) world <- manhattan on the ground. A block's sites are numbered in a box that holds all that it may
    touch.
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
            # half a voxel more: no quotient is near a whole number
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
    """A mean point's place along an axis of the new frame, in voxels -> its voxel there, and the sum of offsets."""
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
    """Lowest and highest of the sites that count, (3,) each; whether there are any."""
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
    """Mark sites in the bits of a box, and count those ``before`` each word; returns how many there are."""
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
    """Sites in order, and the sums of the parts that different blocks have of them, added to ``sums``."""
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
    """How many bits of a uint64 are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    count: int = np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))
    return count
