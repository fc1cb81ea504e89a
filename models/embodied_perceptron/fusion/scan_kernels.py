"""Compiled CPU kernel that sums the points of an image by voxel, apart from the map.

See ``kernels.py`` for the rules of all kernels, and ``voxels.py`` for the fixed-point numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.fusion.blocks import BLOCK_BITS, BLOCK_VOXELS, hash_position, pack_key
from embodied_perceptron.fusion.voxels import COLOR, HITS, OFFSET, OFFSET_BITS, OFFSET_UNITS
from embodied_perceptron.geometry import KEY_BITS

Array = NDArray[Any]

_LIMIT = float(1 << (KEY_BITS - 1 + OFFSET_BITS))  # |fixed point| of the outermost voxel key
_OFFSET_MASK = OFFSET_UNITS - 1
_EDGE_MASK = (1 << BLOCK_BITS) - 1

# three sums side by side in one 64-bit word
_FIELD = 21
_FIELD_MASK = (1 << _FIELD) - 1
_LONGEST_RUN = 1 << (_FIELD - OFFSET_BITS)  # pixels whose offsets still fit a field

# voxel key -> block key: shift every coordinate, clear what the neighbour shifted in, and mend the keys' offset
_SHIFTED = (1 << (KEY_BITS - BLOCK_BITS)) - 1
_BLOCK_FIELDS = (_SHIFTED << (2 * KEY_BITS)) | (_SHIFTED << KEY_BITS) | _SHIFTED
_MEND = (1 << (KEY_BITS - 1)) - (1 << (KEY_BITS - 1 - BLOCK_BITS))
_BLOCK_KEY_SHIFT = (_MEND << (2 * KEY_BITS)) | (_MEND << KEY_BITS) | _MEND


@njit(cache=True, nogil=True)
def _row_points(
    depth: Array,
    ray_x: Array,
    ray: Array,
    origin: Array,
    z_min: float,
    z_max: float,
    keys: Array,
    offsets: Array,
) -> tuple[int, int]:
    """(W,) depth row -> voxel keys (-1 where there is no point) and packed places inside of the voxels.

    No branches, so that it compiles to vector instructions. Returns (points, points within the key range).
    """
    r0, r1, r2 = ray[0], ray[1], ray[2]
    t0, t1, t2 = origin[0], origin[1], origin[2]
    points = 0
    stored = 0
    for u in range(depth.shape[0]):
        z = np.float64(depth[u])
        ok = (z >= z_min) & (z <= z_max)
        points += ok
        z = z if ok else 0.0
        x = np.floor(z * (ray_x[0, u] + r0) + t0)
        y = np.floor(z * (ray_x[1, u] + r1) + t1)
        w = np.floor(z * (ray_x[2, u] + r2) + t2)
        ok &= (x >= -_LIMIT) & (x < _LIMIT) & (y >= -_LIMIT) & (y < _LIMIT) & (w >= -_LIMIT) & (w < _LIMIT)
        stored += ok
        a = np.int64(np.int32(x if ok else 0.0))
        b = np.int64(np.int32(y if ok else 0.0))
        c = np.int64(np.int32(w if ok else 0.0))
        keys[u] = pack_key(a >> OFFSET_BITS, b >> OFFSET_BITS, c >> OFFSET_BITS) if ok else -1
        offsets[u] = (a & _OFFSET_MASK) | ((b & _OFFSET_MASK) << _FIELD) | ((c & _OFFSET_MASK) << (2 * _FIELD))
    return points, stored


@njit(cache=True, nogil=True)
def _row_runs(keys: Array, offsets: Array, color: Array, prefix: Array, bounds: Array) -> int:
    """Find runs of pixels in one voxel, and running sums of packed offsets and colours before each pixel.

    Returns the number of runs with points; ``bounds`` are their first pixels and ends (exclusive). The sum over a run
    is a difference of two running sums: exact even where those wrap around, as long as the run itself fits its fields,
    hence the limit on its length. Without branches, since where a run ends is what no processor can predict.
    """
    runs = 0
    start = 0
    offset_sum = np.int64(0)
    color_sum = np.int64(0)
    width = keys.shape[0] - 1  # one more key stands behind the row, unequal to all
    for u in range(width):
        offset_sum += offsets[u]
        color_sum += np.int64(color[u, 0]) | (np.int64(color[u, 1]) << _FIELD) | (np.int64(color[u, 2]) << (2 * _FIELD))
        prefix[u + 1, 0] = offset_sum
        prefix[u + 1, 1] = color_sum
        bounds[runs, 0] = start
        bounds[runs, 1] = u + 1
        ends = (keys[u] != keys[u + 1]) | ((u & (_LONGEST_RUN - 1)) == _LONGEST_RUN - 1)
        runs += ends & (keys[u] >= 0)
        start = u + 1 if ends else start
    return runs


@njit(cache=True, nogil=True)
def scan_rows(
    depth: Array,
    color: Array,
    rows: tuple[int, int],
    ray_x: Array,
    ray_y: Array,
    origin: Array,
    z_min: float,
    z_max: float,
    keys: Array,
    offsets: Array,
    prefix: Array,
    bounds: Array,
    table_keys: Array,
    table_ids: Array,
    shift: int,
    block_keys: Array,
    index: Array,
    cells: Array,
    sums: Array,
) -> tuple[int, int, int, int]:
    """Sum a band's points by voxel into dense scratch rows, numbered in order of first touch.

    Returns (blocks, voxels, points, points within the key range); blocks is -1 when ``block_keys`` was too small.
    ``index`` (blocks, 512) holds row + 1 per touched voxel, ``cells`` the voxel (block * 512 + local) per row;
    ``sums`` must be zero. ``keys`` to ``bounds`` are scratch for one row of the image.
    """
    mask = table_keys.shape[0] - 1
    blocks = 0
    voxels = 0
    points = 0
    stored = 0
    last_block_key, block = -1, -1
    keys[-1] = -2
    prefix[0, :] = 0
    for v in range(rows[0], rows[1]):
        p, s = _row_points(depth[v], ray_x, ray_y[:, v], origin, z_min, z_max, keys, offsets)
        points += p
        stored += s
        if s == 0:
            continue
        for run in range(_row_runs(keys, offsets, color[v], prefix, bounds)):
            start, end = bounds[run, 0], bounds[run, 1]
            key = keys[start]
            block_key = ((key >> BLOCK_BITS) & _BLOCK_FIELDS) + _BLOCK_KEY_SHIFT
            if block_key != last_block_key:
                last_block_key = block_key
                i = hash_position(block_key, shift)
                while table_keys[i] != -1 and table_keys[i] != block_key:
                    i = (i + 1) & mask
                if table_keys[i] == -1:
                    if blocks == block_keys.shape[0]:
                        return -1, voxels, points, stored
                    table_keys[i] = block_key
                    table_ids[i] = blocks
                    block_keys[blocks] = block_key
                    blocks += 1
                block = table_ids[i]
            local = (
                (((key >> (2 * KEY_BITS)) & _EDGE_MASK) << (2 * BLOCK_BITS))
                | (((key >> KEY_BITS) & _EDGE_MASK) << BLOCK_BITS)
                | (key & _EDGE_MASK)
            )
            row = index[block, local]
            new = row == 0
            voxels += new
            row = voxels if new else row
            index[block, local] = row
            cells[row - 1] = block * BLOCK_VOXELS + local
            total = sums[row - 1]
            offset_sum = prefix[end, 0] - prefix[start, 0]
            color_sum = prefix[end, 1] - prefix[start, 1]
            total[HITS] += end - start
            for c in range(3):
                total[OFFSET + c] += (offset_sum >> (c * _FIELD)) & _FIELD_MASK
                total[COLOR + c] += (color_sum >> (c * _FIELD)) & _FIELD_MASK
    return blocks, voxels, points, stored
