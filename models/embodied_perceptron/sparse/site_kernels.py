# mypy: ignore-errors
"""Kernels of sites on a device, in NVIDIA Warp: searches of sorted keys, and interpolation."""

import warp as wp

from embodied_perceptron.geometry.transforms import SITE_BITS

wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)  # no banner on the standard output
wp.init()
wp.set_module_options({"enable_backward": False, "fuse_fp": False, "fast_math": False})

_BITS = wp.constant(wp.int64(SITE_BITS))
_MASK = wp.constant(wp.int64((1 << SITE_BITS) - 1))
Longs, Table, Rows = wp.array(dtype=wp.int64), wp.array2d(dtype=wp.int64), wp.array2d(dtype=wp.int32)
Floats, Matrix = wp.array(dtype=wp.float32), wp.array2d(dtype=wp.float32)


@wp.func
def row_of(keys: Longs, key: wp.int64, first: wp.int32, end: wp.int32):
    """Row of a key among the sorted keys of the rows ``first`` to ``end``, counted from ``first``; -1 where absent."""
    if first == end:
        return wp.int32(-1)
    row = wp.lower_bound(keys, first, end, key)  # the last one where all are below
    return wp.where(keys[row] == key, row - first, wp.int32(-1))


@wp.kernel
def locate(
    keys: Longs, wanted: Longs, steps: Table, masks: Longs, spans: Table, lasts: Table, behind: wp.bool, rows: Rows
):
    """See :func:`~embodied_perceptron.sparse.sites.locate`."""
    m, k = wp.tid()
    t, first, end = wp.int32(0), wp.int32(0), keys.shape[0]
    while t + 1 < steps.shape[0] and wp.int64(m) >= lasts[t, 0]:
        t += 1
    if spans.shape[1] > 1:
        column = wp.min(2 * k, spans.shape[1] - 2)
        first, end = wp.int32(spans[t, column]), wp.int32(spans[t, column + 1])
    row = row_of(keys, (wanted[m] & masks[wp.min(k, masks.shape[0] - 1)]) + steps[t, k], first, end)
    rows[m, k] = wp.where(row < 0 and behind, end - first, row)


@wp.kernel
def interpolate(
    keys: Longs, bases: Longs, coarse: Longs, stride: wp.int64, feats: Matrix, total: Matrix, weight: Floats
):
    """Twin of ``cpu_kernels.interpolate``, with the same bits."""
    m = wp.tid()
    step, edge, one = keys[m] - bases[m], stride * stride * stride, wp.int64(1)
    x, y, z = step >> (_BITS + _BITS), (step >> _BITS) & _MASK, step & _MASK
    for k in range(8):
        i, j, n = wp.int64(k >> 2), wp.int64((k >> 1) & 1), wp.int64(k & 1)
        w = (i * x + (one - i) * (stride - x)) * (j * y + (one - j) * (stride - y))
        w = w * (n * z + (one - n) * (stride - z))
        row = wp.int32(-1)
        if w != wp.int64(0):
            key = bases[m] + (((i << (_BITS + _BITS)) + (j << _BITS)) + n) * stride
            row = row_of(coarse, key, wp.int32(0), coarse.shape[0])
        if row >= 0:
            share = wp.float64(w) / wp.float64(edge)
            weight[m] = wp.float32(wp.float64(weight[m]) + share)
            for c in range(feats.shape[1]):
                total[m, c] = wp.float32(wp.float64(total[m, c]) + wp.float64(feats[row, c]) * share)
