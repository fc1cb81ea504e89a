"""Compiled CPU kernels of what leaves the volume: means, and sites for the network.

Plain loops over arrays, without the interpreter's lock; each has a twin of tensors in ``export.py``, or is tested
against one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.fusion.blocks import hash_position, pack_key
from embodied_perceptron.fusion.voxels import COLOR, EVIDENCE, EVIDENCE_UNIT, HITS, OFFSET, OFFSET_UNITS, RECORD
from embodied_perceptron.geometry import SITE_BITS

Array = NDArray[Any]

# columns of a site's features, as site_columns numbers them
SITE_COLUMNS = {
    "color": (0, 1, 2), "offset": (3, 4, 5), "point": (6, 7, 8), "height": (9,), "log_hits": (10,), "one": (11,)
}  # fmt: skip


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
