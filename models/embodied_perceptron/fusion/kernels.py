"""Compiled CPU kernels of the volume. Plain loops over arrays; who calls them and why stands in ``numba_voxels.py``.

Voxel arithmetic here is that of ``geometry.py`` in fixed point (see ``voxels.py``); tests hold the two together. The
kernels run without the interpreter's lock, so that other threads go on meanwhile. No fast-math: the same input gives
the same bits, and the torch kernels the same map.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.fusion.blocks import BLOCK_VOXELS
from embodied_perceptron.fusion.voxels import (
    EVIDENCE,
    EVIDENCE_HIT,
    EVIDENCE_MAX,
    EVIDENCE_MISS,
    HITS,
    HITS_CAP,
    RECORD,
)

Array = NDArray[Any]

# position of the lowest set bit of a 64-bit word: multiply the isolated bit by a de Bruijn sequence
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_INDEX = np.zeros(64, np.int64)
for _i in range(64):
    _BIT_INDEX[((int(_DE_BRUIJN) << _i) & 0xFFFFFFFFFFFFFFFF) >> 58] = _i


@njit(cache=True, inline="always")
def _lowest_bit(word: int) -> int:
    isolated = word & (~word + np.uint64(1))
    position: int = _BIT_INDEX[(isolated * _DE_BRUIJN) >> np.uint64(58)]
    return position


@njit(cache=True, nogil=True)
def fold_rows(
    slots: Array,
    cells: Array,
    sums: Array,
    stamp_ns: int,
    first_band: bool,
    index: Array,
    records: Array,
    last_seen: Array,
    occupied: Array,
    count: Array,
) -> tuple[int, int, int]:
    """Add scratch rows to the map; leaves ``index`` and ``sums`` zero. Returns (touched, created, refused points)."""
    touched = 0
    created = 0
    refused = 0
    for row in range(cells.shape[0]):
        cell = cells[row]
        block = cell // BLOCK_VOXELS
        local = cell % BLOCK_VOXELS
        index[block, local] = 0
        slot = slots[block]
        if slot < 0:
            refused += sums[row, HITS]
            sums[row, :] = 0
            continue
        record = records[slot, local]
        counted = first_band or record[HITS] == 0 or last_seen[slot, local] != stamp_ns
        if record[HITS] == 0:
            created += 1
            count[slot] += 1
            occupied[slot, local >> 6] |= np.uint64(1) << np.uint64(local & 63)
        for c in range(RECORD - 1):
            record[c] += sums[row, c]
            sums[row, c] = 0
        while record[HITS] > HITS_CAP:
            for c in range(RECORD - 1):
                record[c] >>= 1
        if counted:
            touched += 1
            record[EVIDENCE] = min(record[EVIDENCE] + EVIDENCE_HIT, EVIDENCE_MAX)
        last_seen[slot, local] = max(last_seen[slot, local], stamp_ns)
    return touched, created, refused


@njit(cache=True, nogil=True)
def _lower(row: Array, other: Array) -> None:
    for u in range(row.shape[0]):
        row[u] = min(row[u], other[u])


@njit(cache=True, nogil=True)
def window_minimum(image: Array, size: int, out: Array) -> None:
    """``out[v, u]`` = minimum of ``image[v : v + size, u : u + size]``; undefined where that leaves the image."""
    height, width = image.shape
    row = np.empty(width, image.dtype)
    for v in range(height - size + 1):
        row[:] = image[v]
        for k in range(1, size):
            _lower(row, image[v + k])
        out[v] = row
        for k in range(1, size):
            _lower(out[v, : width - k], row[k:])


@njit(cache=True, nogil=True, error_model="numpy")  # no check for division by zero: z is at least min_range
def clear_blocks(
    slots: Array,
    coords: Array,
    local_camera: Array,
    edge_m: float,
    T: Array,
    k: Array,
    limits: Array,
    near: Array,
    r: int,
    stamp_ns: int,
    records: Array,
    last_seen: Array,
    occupied: Array,
    count: Array,
    emptied: Array,
) -> tuple[int, int]:
    """Lower the evidence of seen-through voxels; returns (removed voxels, emptied blocks).

    Args:
        local_camera: (512, 3) voxel centres relative to their block's corner, turned into the camera frame, metres.
        T: (4, 4) camera from world; ``k`` = fx, fy, cx, cy; ``limits`` = min_range, max_range, margin + half diagonal,
            margin per m2.
        near: (H, W) minimum of the depth over the window that starts at each pixel; ``r`` = half its size.
    """
    height, width = near.shape
    fx, fy, cx, cy = k[0], k[1], k[2], k[3]
    z_min, z_max, margin, margin_m2 = limits[0], limits[1], limits[2], limits[3]
    removed = 0
    empty = 0
    for b in range(slots.shape[0]):
        slot = slots[b]
        ox, oy, oz = coords[b, 0] * edge_m, coords[b, 1] * edge_m, coords[b, 2] * edge_m
        bx = ((T[0, 0] * ox + T[0, 1] * oy) + T[0, 2] * oz) + T[0, 3]
        by = ((T[1, 0] * ox + T[1, 1] * oy) + T[1, 2] * oz) + T[1, 3]
        bz = ((T[2, 0] * ox + T[2, 1] * oy) + T[2, 2] * oz) + T[2, 3]
        before = count[slot]
        for word_index in range(8):
            word = occupied[slot, word_index]
            while word != np.uint64(0):
                bit = _lowest_bit(word)
                word &= word - np.uint64(1)
                local = word_index * 64 + bit
                z = bz + local_camera[local, 2]
                if z < z_min or z > z_max:
                    continue
                inverse = 1.0 / z
                u = np.floor(((bx + local_camera[local, 0]) * inverse) * fx + cx + 0.5)
                v = np.floor(((by + local_camera[local, 1]) * inverse) * fy + cy + 0.5)
                if not (u >= r and u < width - r and v >= r and v < height - r):
                    continue
                if not near[np.int64(v) - r, np.int64(u) - r] > z + (margin + margin_m2 * (z * z)):
                    continue
                if last_seen[slot, local] == stamp_ns:
                    continue
                evidence = records[slot, local, EVIDENCE] - EVIDENCE_MISS
                records[slot, local, EVIDENCE] = evidence
                if evidence < 0:
                    erase_voxel(slot, local, records, last_seen, occupied, count)
        removed += before - count[slot]
        if count[slot] == 0:
            emptied[empty] = slot
            empty += 1
    return removed, empty


@njit(cache=True, nogil=True)
def erase_voxel(slot: int, local: int, records: Array, last_seen: Array, occupied: Array, count: Array) -> None:
    """Empty one occupied voxel."""
    for c in range(RECORD):
        records[slot, local, c] = 0
    last_seen[slot, local] = 0
    occupied[slot, local >> 6] &= ~(np.uint64(1) << np.uint64(local & 63))
    count[slot] -= 1


@njit(cache=True, nogil=True)
def erase_blocks(slots: Array, records: Array, last_seen: Array, occupied: Array, count: Array) -> int:
    """Empty whole blocks; returns the number of voxels removed."""
    removed = 0
    for b in range(slots.shape[0]):
        slot = slots[b]
        removed += count[slot]
        for word_index in range(8):
            word = occupied[slot, word_index]
            while word != np.uint64(0):
                local = word_index * 64 + _lowest_bit(word)
                word &= word - np.uint64(1)
                for c in range(RECORD):
                    records[slot, local, c] = 0
                last_seen[slot, local] = 0
            occupied[slot, word_index] = 0
        count[slot] = 0
    return removed


@njit(cache=True, nogil=True)
def remove_voxels(
    slots: Array, local: Array, records: Array, last_seen: Array, occupied: Array, count: Array, emptied: Array
) -> int:
    """Empty single occupied voxels; returns how many blocks got empty (their slots in ``emptied``)."""
    empty = 0
    for i in range(slots.shape[0]):
        erase_voxel(slots[i], local[i], records, last_seen, occupied, count)
        if count[slots[i]] == 0:
            emptied[empty] = slots[i]
            empty += 1
    return empty


@njit(cache=True, nogil=True)
def put_voxels(
    slots: Array,
    local: Array,
    new_records: Array,
    new_last_seen: Array,
    records: Array,
    last_seen: Array,
    occupied: Array,
    count: Array,
) -> None:
    """Write voxels into empty places."""
    for i in range(slots.shape[0]):
        slot, place = slots[i], local[i]
        for c in range(RECORD):
            records[slot, place, c] = new_records[i, c]
        last_seen[slot, place] = new_last_seen[i]
        occupied[slot, place >> 6] |= np.uint64(1) << np.uint64(place & 63)
        count[slot] += 1


@njit(cache=True, nogil=True)
def _run_end(coords: Array, start: int, columns: int) -> int:
    """End of the run of blocks that share the first ``columns`` coordinates with block ``start``."""
    end = start + 1
    while end < coords.shape[0]:
        for c in range(columns):
            if coords[end, c] != coords[start, c]:
                return end
        end += 1
    return end


@njit(cache=True, nogil=True)
def gather_voxels(
    slots: Array,
    coords: Array,
    min_hits: int,
    records: Array,
    last_seen: Array,
    occupied: Array,
    out_coords: Array,
    out_records: Array,
    out_last_seen: Array,
) -> int:
    """Copy voxels with enough hits, ordered by (x, y, z); blocks come ordered by (x, y, z), so no sort is needed.

    Of each slab of blocks with one x: voxel planes x; in a plane rows of blocks with one y: voxel rows y; in a row the
    blocks by z. An occupancy word is one plane of a block, a byte of it one row.
    """
    n = 0
    slab = 0
    while slab < slots.shape[0]:
        slab_end = _run_end(coords, slab, 1)
        for x in range(8):
            row = slab
            while row < slab_end:
                row_end = _run_end(coords, row, 2)
                for y in range(8):
                    for b in range(row, row_end):
                        slot = slots[b]
                        bits = (occupied[slot, x] >> np.uint64(8 * y)) & np.uint64(255)
                        if bits == np.uint64(0):
                            continue
                        for z in range(8):
                            local = x * 64 + y * 8 + z
                            if (bits >> np.uint64(z)) & np.uint64(1) and records[slot, local, HITS] >= min_hits:
                                out_coords[n, 0] = coords[b, 0] * 8 + x
                                out_coords[n, 1] = coords[b, 1] * 8 + y
                                out_coords[n, 2] = coords[b, 2] * 8 + z
                                for c in range(RECORD):
                                    out_records[n, c] = records[slot, local, c]
                                out_last_seen[n] = last_seen[slot, local]
                                n += 1
                row = row_end
        slab = slab_end
    return n
