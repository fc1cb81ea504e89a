# mypy: ignore-errors
"""Kernels of network input on a device, in NVIDIA Warp: sums of voxels by site, and their features."""

import warp as wp

from embodied_perceptron.geometry.transforms import SITE_BITS
from embodied_perceptron.mapping.voxels import COLOR, HITS, OFFSET, OFFSET_UNITS

wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)  # no banner on the standard output
wp.init()
wp.set_module_options({"enable_backward": False, "fuse_fp": False, "fast_math": False})

OUTSIDE = (1 << 63) - 1  # the key of voxels outside of the limits: larger than all keys
_OUTSIDE, _BITS = wp.constant(wp.int64(OUTSIDE)), wp.constant(wp.int64(SITE_BITS))
_SHIFT = wp.constant(wp.int64(1 << (SITE_BITS - 1)))
_MASK = wp.constant(wp.int64((1 << SITE_BITS) - 1))
_HITS, _OFFSET, _COLOR, _UNITS = map(wp.constant, (HITS, OFFSET, COLOR, wp.int64(OFFSET_UNITS)))

Longs, Sums = wp.array(dtype=wp.int64), wp.array2d(dtype=wp.int64)
Rows, Feats = wp.array2d(dtype=wp.int32), wp.array2d(dtype=wp.float32)


@wp.func
def site_of(coordinate: wp.int32, edge: wp.int32):
    """Site of a voxel along one axis: rounded down."""
    return wp.int64(wp.where(coordinate < 0, -((edge - 1 - coordinate) / edge), coordinate / edge))


@wp.kernel
def find_sites(coords: Rows, low: wp.vec3i, high: wp.vec3i, edge: wp.int32, keys: Longs, numbers: Longs):
    """Key of the site of each voxel. Out, in ``numbers``: the lowest key within the limits and the farthest
    coordinate of a site."""
    n = wp.tid()
    keys[n] = _OUTSIDE
    key = wp.int64(0)
    for axis in range(3):
        if coords[n, axis] < low[axis] or coords[n, axis] >= high[axis]:
            return
        site = site_of(coords[n, axis], edge)
        key = (key << _BITS) + site + _SHIFT
        wp.atomic_max(numbers, 1, wp.abs(site))
    keys[n] = key
    wp.atomic_min(numbers, 0, key)


@wp.kernel
def add_to_sites(
    order: Longs, rows: Longs, keys: Longs, coords: Rows, records: Rows, edge: wp.int32, sums: Sums
):  # fmt: skip
    """Add the voxels within the limits to the sums of the site in each row; see ``export.merge_by_sorting``."""
    t = wp.tid()
    n, row = wp.int32(order[t]), wp.int32(rows[t])
    if keys[n] == _OUTSIDE:
        return
    hits = wp.int64(records[n, _HITS])
    wp.atomic_add(sums, row, _HITS, hits)
    for c in range(3):
        corner = site_of(coords[n, c], edge) * wp.int64(edge)
        place = (wp.int64(coords[n, c]) - corner) * _UNITS * hits
        wp.atomic_add(sums, row, _OFFSET + c, wp.int64(records[n, _OFFSET + c]) + place)
        wp.atomic_add(sums, row, _COLOR + c, wp.int64(records[n, _COLOR + c]))


@wp.kernel
def site_columns(
    keys: Longs, sums: Sums, wanted: Longs, edge: wp.float64, voxel_size_m: wp.float64, floor_z_m: wp.float64,
    feats: Feats,
):  # fmt: skip
    """Twin of ``export.site_columns``, from the keys of the sites."""
    m, f = wp.tid()
    column = wp.int32(wanted[f])
    hits, axis, value = wp.float64(sums[m, _HITS]), column % 3, wp.float64(1.0)
    if column == 9:
        axis = 2
    place = (wp.float64(sums[m, _OFFSET + axis]) / hits + wp.float64(0.5)) / (wp.float64(_UNITS) * edge)
    site = wp.float64(((keys[m] >> (_BITS * wp.int64(2 - axis))) & _MASK) - _SHIFT)
    if column < 3:
        value = wp.float64(sums[m, _COLOR + axis]) / (wp.float64(255.0) * hits)
    elif column < 6:
        value = place - wp.float64(0.5)
    elif column < 10:
        value = (site + place) * (voxel_size_m * edge)
        if column == 9:
            value = value - floor_z_m
    elif column == 10:
        value = wp.log(hits)
    feats[m, f] = wp.float32(value)
