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

from embodied_perceptron.fusion.blocks import BLOCK_VOXELS, hash_position, pack_key
from embodied_perceptron.fusion.voxels import (
    COLOR,
    EVIDENCE,
    EVIDENCE_HIT,
    EVIDENCE_MAX,
    EVIDENCE_MISS,
    EVIDENCE_UNIT,
    HITS,
    HITS_CAP,
    OFFSET,
    OFFSET_UNITS,
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


@njit(cache=True, nogil=True, error_model="numpy")  # no check for division by zero: every stored voxel has hits
def voxel_means(
    coords: Array, records: Array, voxel_size_m: float, points: Array, colors: Array, hits: Array, evidence: Array
) -> None:
    """Sums -> mean points (metres), mean colours, hits and log-odds, row by row."""
    for i in range(records.shape[0]):
        n = np.float64(records[i, HITS])
        for c in range(3):
            # half a unit: a fixed-point number stands for the unit above it
            place = (records[i, OFFSET + c] / n + 0.5) / OFFSET_UNITS
            points[i, c] = (coords[i, c] + place) * voxel_size_m
            colors[i, c] = np.uint8(records[i, COLOR + c] / n + 0.5)
        hits[i] = records[i, HITS]
        evidence[i] = records[i, EVIDENCE] * EVIDENCE_UNIT


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
    """Move voxels within a radius of ``middle`` (2,), in voxels, to where their mean points lie on a turned lattice.

    ``R`` (2, 2) world <- lattice on the ground. Returns how many there are; the outputs are filled up to that.
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


@njit(cache=True, nogil=True)
def merge_sites(
    coords: Array,
    records: Array,
    limits: Array,
    site_voxels: int,
    shift: int,
    table_keys: Array,
    table_rows: Array,
    out: Array,
) -> int:
    """Add voxels up by site of ``site_voxels`` voxels edge length; returns how many sites, in order of first touch.

    ``limits`` (2, 3): the lowest voxel, and the one behind the highest, that count.

    ``table_keys`` (filled with -1) ends up holding the sites' keys in the places that ``table_rows`` numbers; ``out``
    (N, 11) int64 gets key, site coordinates, hits, offsets from the site's lower corner, colours.
    """
    mask = table_keys.shape[0] - 1
    sites, j = 0, 0
    for i in range(coords.shape[0]):
        if (
            coords[i, 0] < limits[0, 0] or coords[i, 0] >= limits[1, 0]
            or coords[i, 1] < limits[0, 1] or coords[i, 1] >= limits[1, 1]
            or coords[i, 2] < limits[0, 2] or coords[i, 2] >= limits[1, 2]
        ):  # fmt: skip
            continue
        x, y, z = coords[i, 0] // site_voxels, coords[i, 1] // site_voxels, coords[i, 2] // site_voxels
        key = pack_key(x, y, z)
        if key != table_keys[j]:  # the voxel before this one is often of the same site
            j = hash_position(key, shift)
            while table_keys[j] != -1 and table_keys[j] != key:
                j = (j + 1) & mask
        if table_keys[j] == -1:
            table_keys[j] = key
            table_rows[j] = sites
            out[sites, 0] = key
            out[sites, 1], out[sites, 2], out[sites, 3] = x, y, z
            for c in range(4, 11):
                out[sites, c] = 0
            sites += 1
        row = out[table_rows[j]]
        hits = np.int64(records[i, HITS])
        row[4] += hits
        row[5] += records[i, OFFSET] + (coords[i, 0] - x * site_voxels) * OFFSET_UNITS * hits
        row[6] += records[i, OFFSET + 1] + (coords[i, 1] - y * site_voxels) * OFFSET_UNITS * hits
        row[7] += records[i, OFFSET + 2] + (coords[i, 2] - z * site_voxels) * OFFSET_UNITS * hits
        for c in range(3):
            row[8 + c] += records[i, COLOR + c]
    return sites
