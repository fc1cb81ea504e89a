"""Exact volume of the intersection of two arbitrarily rotated boxes, also with its gradient.

In the frame of box ``a``, which is ``[-h, h]^3``, the field ``F(p) = (clamp(p_x, -h_x, h_x), 0, 0)`` has
divergence 1 inside of a's x slab and 0 outside. The divergence theorem over box ``b`` cut by a's y and z slabs gives

    volume(a and b) = sum over faces f of b of  integral of clamp(p_x, -h_x, h_x) over f cut by the slabs,
                                                 projected along x (signed by the direction that the face looks in)

because F has no normal component on the cuts. So only the faces of ``b`` are clipped against four half planes, without
cap polygons or special cases for coplanar faces: every term is continuous in the boxes. Boxes without volume give zero.

The functions take centres, half sizes and rotations (columns are a box's axes); the public functions on (N, 9) boxes
are in :mod:`embodied_perceptron.geometry.boxes`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import once_differentiable

from embodied_perceptron.geometry.compute_path import launch, runs_compiled
from embodied_perceptron.geometry.kernels import njit

Array = NDArray[np.float64]

# A clip of n corners leaves at most 3 * (n // 2) + n % 2 even when rounding makes the polygon slightly non-convex:
# 4 -> 6 -> 9 -> 13 -> 19 by the slabs, then -> 28 -> 42 by the two x limits.
_MAX_CORNERS = 48
_OUTSIDE, _ACROSS, _INSIDE = 0, 1, 2
_EPS = np.finfo(np.float64).eps
FLAT, PARALLEL = 1e-12, 1e-9  # sine of the angle between planes, between lines: their crossing would have no digits


@njit(cache=True, nogil=True)
def frames(boxes: Array) -> tuple[Array, Array, Array]:
    """(N, 9) of :mod:`.boxes` -> (N, 3) centres, (N, 3) half sizes, (N, 3, 3) rotations."""
    n = boxes.shape[0]
    center, half, rot = np.empty((n, 3)), np.empty((n, 3)), np.empty((n, 3, 3))
    for i in range(n):
        for k in range(3):
            center[i, k], half[i, k] = boxes[i, k], 0.5 * boxes[i, 3 + k]
        ca, cb, cg = math.cos(boxes[i, 6]), math.cos(boxes[i, 7]), math.cos(boxes[i, 8])
        sa, sb, sg = math.sin(boxes[i, 6]), math.sin(boxes[i, 7]), math.sin(boxes[i, 8])
        rot[i, 0, 0], rot[i, 0, 1], rot[i, 0, 2] = ca * cg - sa * sb * sg, -sa * cb, ca * sg + sa * sb * cg
        rot[i, 1, 0], rot[i, 1, 1], rot[i, 1, 2] = sa * cg + ca * sb * sg, ca * cb, sa * sg - ca * sb * cg
        rot[i, 2, 0], rot[i, 2, 1], rot[i, 2, 2] = -cb * sg, sb, cb * cg
    return center, half, rot


@njit(cache=True, nogil=True)
def _clip(src: Array, n: int, dst: Array, axis: int, sign: float, limit: float) -> int:
    """Sutherland-Hodgman: the part of polygon ``src[:n]`` with ``sign * p[axis] <= limit`` into ``dst``; its length."""
    m = 0
    previous = n - 1
    d_previous = limit - sign * src[previous, axis] if n > 0 else 0.0
    for i in range(n):
        d = limit - sign * src[i, axis]
        if (d >= 0.0) != (d_previous >= 0.0):
            t = d_previous / (d_previous - d)
            for k in range(3):
                dst[m, k] = src[previous, k] + t * (src[i, k] - src[previous, k])
            m += 1
        if d >= 0.0:
            for k in range(3):
                dst[m, k] = src[i, k]
            m += 1
        previous = i
        d_previous = d
    return m


@njit(cache=True, nogil=True)
def _x_moment(polygon: Array, n: int, shift: float) -> float:
    """Integral of ``p_x + shift`` over the polygon projected along x; positive when it looks towards +x."""
    total = 0.0
    for i in range(1, n - 1):
        y1 = polygon[i, 1] - polygon[0, 1]
        z1 = polygon[i, 2] - polygon[0, 2]
        y2 = polygon[i + 1, 1] - polygon[0, 1]
        z2 = polygon[i + 1, 2] - polygon[0, 2]
        area = 0.5 * (y1 * z2 - z1 * y2)
        total += area * ((polygon[0, 0] + polygon[i, 0] + polygon[i + 1, 0]) / 3.0 + shift)
    return total


@njit(cache=True, nogil=True)
def _clamped_x_moment(polygon: Array, n: int, limit: float, work: Array) -> float:
    """Integral of ``clamp(p_x, -limit, limit)`` over the projected polygon: p_x less what exceeds the limits."""
    total = _x_moment(polygon, n, 0.0)
    low = limit
    high = -limit
    for i in range(n):
        low = min(low, polygon[i, 0])
        high = max(high, polygon[i, 0])
    if high > limit:
        m = _clip(polygon, n, work, 0, -1.0, -limit)
        total -= _x_moment(work, m, -limit)
    if low < -limit:
        m = _clip(polygon, n, work, 0, 1.0, -limit)
        total -= _x_moment(work, m, limit)
    return total


@njit(cache=True, nogil=True)
def _clip_to_slab(polygon: Array, n: int, axis: int, half: float, work: Array) -> int:
    """Cut ``polygon`` in place to |p[axis]| <= half; its length."""
    n = _clip(polygon, n, work, axis, 1.0, half)
    return _clip(work, n, polygon, axis, -1.0, half)


@njit(cache=True, nogil=True)
def _slab(middle: float, edge_u: float, edge_v: float, half: float) -> int:
    """Return how a rectangle's extent along one axis lies to the slab of +-``half``."""
    extent = abs(edge_u) + abs(edge_v)
    if middle - extent > half or middle + extent < -half:
        return _OUTSIDE
    return _INSIDE if middle - extent >= -half and middle + extent <= half else _ACROSS


@njit(cache=True, nogil=True)
def _relative(
    center_a: Array, rot_a: Array, center_b: Array, rot_b: Array, rot: Array, shift: Array, absolute: Array
) -> None:
    """Rotation, its absolute value and position of b in the frame of a."""
    for i in range(3):
        shift[i] = 0.0
        for k in range(3):
            shift[i] += rot_a[k, i] * (center_b[k] - center_a[k])
        for j in range(3):
            value = 0.0
            for k in range(3):
                value += rot_a[k, i] * rot_b[k, j]
            rot[i, j] = value
            absolute[i, j] = abs(value)


@njit(cache=True, nogil=True)
def _overlap_bound(half_a: Array, half_b: Array, absolute: Array, rot: Array, shift: Array) -> float:
    """Upper bound of the intersection volume from the bounding boxes in either frame; 0 when one of them separates."""
    bound_a = 1.0
    for i in range(3):
        extent = absolute[i, 0] * half_b[0] + absolute[i, 1] * half_b[1] + absolute[i, 2] * half_b[2]
        length = min(half_a[i], shift[i] + extent) - max(-half_a[i], shift[i] - extent)
        if length <= 0.0:
            return 0.0
        bound_a *= length
    bound_b = 1.0
    for j in range(3):
        extent = absolute[0, j] * half_a[0] + absolute[1, j] * half_a[1] + absolute[2, j] * half_a[2]
        at = rot[0, j] * shift[0] + rot[1, j] * shift[1] + rot[2, j] * shift[2]
        length = min(half_b[j], at + extent) - max(-half_b[j], at - extent)
        if length <= 0.0:
            return 0.0
        bound_b *= length
    return min(bound_a, bound_b)


@njit(cache=True, nogil=True)
def _intersection(half_a: Array, half_b: Array, rot: Array, shift: Array, polygon: Array, work: Array) -> float:
    """Volume of the intersection, b given in the frame of a; ``polygon`` and ``work`` are (48, 3) scratch."""
    total = 0.0
    for k in range(3):
        i = (k + 1) % 3
        j = (k + 2) % 3
        if rot[0, k] == 0.0:
            continue  # a face parallel to x has no projection along x
        for side in (-1.0, 1.0):
            y = _slab(shift[1] + side * half_b[k] * rot[1, k], rot[1, i] * half_b[i], rot[1, j] * half_b[j], half_a[1])
            z = _slab(shift[2] + side * half_b[k] * rot[2, k], rot[2, i] * half_b[i], rot[2, j] * half_b[j], half_a[2])
            if y == _OUTSIDE or z == _OUTSIDE:
                continue
            for c in range(4):
                # counter-clockwise seen from outside: i then j spans the face with normal +k; mirrored for -k
                u = half_b[i] if c in (1, 2) else -half_b[i]
                v = half_b[j] if c in (2, 3) else -half_b[j]
                u *= side
                for axis in range(3):
                    polygon[c, axis] = (
                        shift[axis] + side * half_b[k] * rot[axis, k] + u * rot[axis, i] + v * rot[axis, j]
                    )
            n = 4
            if y == _ACROSS:
                n = _clip_to_slab(polygon, n, 1, half_a[1], work)
            if z == _ACROSS:
                n = _clip_to_slab(polygon, n, 2, half_a[2], work)
            if n > 2:
                total += _clamped_x_moment(polygon, n, half_a[0], work)
    return total


@njit(cache=True, nogil=True)
def _mean_of_clamped(x0: float, x1: float, limit: float) -> float:
    """Return the mean of ``clamp(x, -limit, limit)`` from x0 to x1."""
    low, high = min(x0, x1), max(x0, x1)
    if low >= limit:
        return limit
    if high <= -limit:
        return -limit
    first, last = max(low, -limit), min(high, limit)
    if first == low and last == high:
        return 0.5 * (low + high)
    return (0.5 * (last - first) * (first + last) + limit * ((high - last) - (first - low))) / (high - low)


@njit(cache=True, nogil=True)
def _intersection_upright(half_a: Array, half_b: Array, rot: Array, shift: Array) -> float:
    """:func:`_intersection` of boxes whose third axes both point up: a quarter of the time."""
    height = min(half_a[2], shift[2] + half_b[2]) - max(-half_a[2], shift[2] - half_b[2])
    if height <= 0.0:
        return 0.0
    area = 0.0
    for c in range(4):  # counter-clockwise from corner to corner
        u0 = half_b[0] if c in (1, 2) else -half_b[0]
        v0 = half_b[1] if c in (2, 3) else -half_b[1]
        u1 = half_b[0] if c in (0, 1) else -half_b[0]
        v1 = half_b[1] if c in (1, 2) else -half_b[1]
        y0, y1 = shift[1] + rot[1, 0] * u0 + rot[1, 1] * v0, shift[1] + rot[1, 0] * u1 + rot[1, 1] * v1
        from_y, to_y = min(max(y0, -half_a[1]), half_a[1]), min(max(y1, -half_a[1]), half_a[1])
        if from_y == to_y:
            continue  # beside the slab, or parallel to x
        x0, x1 = shift[0] + rot[0, 0] * u0 + rot[0, 1] * v0, shift[0] + rot[0, 0] * u1 + rot[0, 1] * v1
        from_x = x0 + (from_y - y0) / (y1 - y0) * (x1 - x0)
        to_x = x1 - (y1 - to_y) / (y1 - y0) * (x1 - x0)
        area += (to_y - from_y) * _mean_of_clamped(from_x, to_x, half_a[0])
    return float(max(area, 0.0) * height)


@njit(cache=True, nogil=True)
def _world_bounds(center: Array, half: Array, rot: Array) -> tuple[Array, Array, Array]:
    """(N, 3) lower and upper corners of the boxes' axis-aligned bounds, and (N,) volumes."""
    n = center.shape[0]
    low, high, volume = np.empty((n, 3)), np.empty((n, 3)), np.empty(n)
    for i in range(n):
        volume[i] = 8.0 * half[i, 0] * half[i, 1] * half[i, 2]
        for k in range(3):
            extent = abs(rot[i, k, 0]) * half[i, 0] + abs(rot[i, k, 1]) * half[i, 1] + abs(rot[i, k, 2]) * half[i, 2]
            low[i, k] = center[i, k] - extent
            high[i, k] = center[i, k] + extent
    return low, high, volume


@njit(cache=True, nogil=True)
def _may_exceed(
    low_a: Array, high_a: Array, volume_a: float, low_b: Array, high_b: Array, volume_b: float, threshold: float
) -> bool:
    """Return False when volumes or world bounds show that the IoU cannot exceed ``threshold``."""
    bound = 1.0
    for k in range(3):
        length = min(high_a[k], high_b[k]) - max(low_a[k], low_b[k])
        if length <= 0.0:
            return False
        bound *= length
    bound = min(bound * (1.0 + 1e-9), min(volume_a, volume_b))
    return bound > threshold * (volume_a + volume_b - bound)


@njit(cache=True, nogil=True)
def _is_upright(rot: Array) -> bool:
    """True when the third axis points up to within rounding.

    A tilt t of a box with length l and thickness w changes an IoU by up to t l / w. So the tilt itself is compared:
    its cosine is 1.0 up to a tilt of 1e-8, which costs a panel of 2 m x 0.01 m 2e-6.
    """
    tolerance = 4.0 * _EPS
    return bool(rot[2, 2] > 0.0 and abs(rot[2, 0]) <= tolerance and abs(rot[2, 1]) <= tolerance)


@njit(cache=True, nogil=True)
def _iou_of_pair(
    center_a: Array, half_a: Array, rot_a: Array, volume_a: float,
    center_b: Array, half_b: Array, rot_b: Array, volume_b: float,
    threshold: float, small: Array, polygon: Array, work: Array,
) -> float:  # fmt: skip
    """IoU of one pair of boxes with volume; may return 0 when it cannot exceed ``threshold`` (0 for exact values)."""
    rot, absolute, shift = small[:3], small[3:6], small[6]
    _relative(center_a, rot_a, center_b, rot_b, rot, shift, absolute)
    if _is_upright(rot_a) and _is_upright(rot_b):
        inter = _intersection_upright(half_a, half_b, rot, shift)
    else:
        bound = _overlap_bound(half_a, half_b, absolute, rot, shift) * (1.0 + 1e-9)
        if bound <= threshold * (volume_a + volume_b - bound):
            return 0.0
        inter = _intersection(half_a, half_b, rot, shift, polygon, work)
    inter = min(max(inter, 0.0), min(volume_a, volume_b))
    return float(inter / (volume_a + volume_b - inter))


@njit(cache=True, nogil=True)
def iou_matrix(
    center_a: Array, half_a: Array, rot_a: Array, center_b: Array, half_b: Array, rot_b: Array
) -> Array:  # pragma: no cover - compiled
    """(N, 3), (N, 3), (N, 3, 3) and the same of M boxes -> (N, M) float64 IoU. Half sizes >= 0, all finite."""
    n, m = center_a.shape[0], center_b.shape[0]
    out = np.zeros((n, m))
    low_a, high_a, volume_a = _world_bounds(center_a, half_a, rot_a)
    low_b, high_b, volume_b = _world_bounds(center_b, half_b, rot_b)
    small, polygon, work = np.empty((7, 3)), np.empty((_MAX_CORNERS, 3)), np.empty((_MAX_CORNERS, 3))
    for i in range(n):
        for j in range(m):
            if _may_exceed(low_a[i], high_a[i], volume_a[i], low_b[j], high_b[j], volume_b[j], 0.0):
                out[i, j] = _iou_of_pair(
                    center_a[i], half_a[i], rot_a[i], volume_a[i], center_b[j], half_b[j], rot_b[j], volume_b[j],
                    0.0, small, polygon, work,
                )  # fmt: skip
    return out


@njit(cache=True, nogil=True)
def iou_pairs(
    center_a: Array, half_a: Array, rot_a: Array, center_b: Array, half_b: Array, rot_b: Array
) -> Array:  # pragma: no cover - compiled
    """Like :func:`iou_matrix` for N pairs -> (N,) float64."""
    out = np.zeros(center_a.shape[0])
    low_a, high_a, volume_a = _world_bounds(center_a, half_a, rot_a)
    low_b, high_b, volume_b = _world_bounds(center_b, half_b, rot_b)
    small, polygon, work = np.empty((7, 3)), np.empty((_MAX_CORNERS, 3)), np.empty((_MAX_CORNERS, 3))
    for i in range(center_a.shape[0]):
        if _may_exceed(low_a[i], high_a[i], volume_a[i], low_b[i], high_b[i], volume_b[i], 0.0):
            out[i] = _iou_of_pair(
                center_a[i], half_a[i], rot_a[i], volume_a[i], center_b[i], half_b[i], rot_b[i], volume_b[i],
                0.0, small, polygon, work,
            )  # fmt: skip
    return out


@njit(cache=True, nogil=True)
def greedy_nms(
    center: Array, half: Array, rot: Array, weights: Array, labels: NDArray[np.int64], threshold: float, voting: float
) -> tuple[NDArray[np.bool_], Array]:  # pragma: no cover - compiled
    """Keep boxes, in order of falling score, if no better kept one of their label has IoU > ``threshold``, and sum the
    votes of the boxes of its label with IoU > ``voting`` for each; nothing is summed from ``voting`` 1 on.

    Returns:
        (N,) bool, kept, and (N, 7) sums over the voting boxes, itself included, of weight times IoU, and of this times
        centre and times half sizes, assigned to the nearest axes of the kept box; 0 where not kept.
    """
    n = center.shape[0]
    by_label = np.argsort(labels, kind="mergesort")  # stable: of one label still in order of score
    # compared boxes are contiguous in memory
    center, half, rot, weights, labels = (
        center[by_label], half[by_label], rot[by_label], weights[by_label], labels[by_label]
    )  # fmt: skip
    kept, sums = np.ones(n, dtype=np.bool_), np.zeros((n, 7))
    low, high, volume = _world_bounds(center, half, rot)
    small, polygon, work = np.empty((7, 3)), np.empty((_MAX_CORNERS, 3)), np.empty((_MAX_CORNERS, 3))
    least = min(threshold, voting)
    start = 0
    for i in range(n):
        if labels[i] != labels[start]:
            start = i
        if not kept[i]:
            continue
        for j in range(start if voting < 1.0 else i + 1, n):
            if labels[j] != labels[i]:
                break
            if voting >= 1.0 and not kept[j]:
                continue
            if j < i and kept[j] and voting >= threshold:
                continue  # both are kept: they overlap by no more than the threshold
            iou = 0.0
            if i == j:
                iou = 1.0
                _relative(center[i], rot[i], center[i], rot[i], small[:3], small[6], small[3:6])
            elif (
                low[j, 0] >= high[i, 0] or low[i, 0] >= high[j, 0] or low[j, 1] >= high[i, 1] or low[i, 1] >= high[j, 1]
            ):
                continue  # most boxes are apart
            elif _may_exceed(low[i], high[i], volume[i], low[j], high[j], volume[j], least):
                iou = _iou_of_pair(
                    center[i], half[i], rot[i], volume[i], center[j], half[j], rot[j], volume[j],
                    least, small, polygon, work,
                )  # fmt: skip
            if j > i and iou > threshold:
                kept[j] = False
            if i != j and iou <= voting:
                continue
            weight = iou * weights[j]
            sums[i, 0] += weight
            for k in range(3):
                axis = np.argmax(small[3 + k])  # of the other box, nearest to this one's axis k
                sums[i, 1 + k] += weight * center[j, k]
                sums[i, 4 + k] += weight * half[j, axis]
    keep, votes = np.empty(n, dtype=np.bool_), np.empty((n, 7))
    keep[by_label], votes[by_label] = kept, sums
    return keep, votes


@njit(cache=True, nogil=True)
def greedy_groups(
    center: Array, half: Array, rot: Array, threshold: float, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # pragma: no cover - compiled
    """Return the first ``limit`` boxes that :func:`greedy_nms` keeps of one label, and (P, 2) sorted pairs of a kept
    box's number and the row of a box that it suppresses, itself included."""
    n = center.shape[0]
    free = np.ones(n, dtype=np.bool_)
    low, high, volume = _world_bounds(center, half, rot)
    small, polygon, work = np.empty((7, 3)), np.empty((_MAX_CORNERS, 3)), np.empty((_MAX_CORNERS, 3))
    kept = np.empty(min(n, limit), dtype=np.int64)
    group, row = np.empty(max(n, 1), dtype=np.int64), np.empty(max(n, 1), dtype=np.int64)
    count, pairs = 0, 0
    for i in range(n):
        if count == limit:
            break
        if not free[i]:
            continue
        for j in range(n):
            same = i == j
            if not same and not (
                low[j, 0] >= high[i, 0] or low[i, 0] >= high[j, 0] or low[j, 1] >= high[i, 1] or low[i, 1] >= high[j, 1]
            ):  # most boxes are apart
                if j < i and free[j]:
                    continue  # both are kept
                if _may_exceed(low[i], high[i], volume[i], low[j], high[j], volume[j], threshold):
                    same = threshold < _iou_of_pair(
                        center[i], half[i], rot[i], volume[i], center[j], half[j], rot[j], volume[j],
                        threshold, small, polygon, work,
                    )  # fmt: skip
            if not same:
                continue
            if j > i:
                free[j] = False
            if pairs == len(row):
                group, row = np.append(group, np.empty_like(group)), np.append(row, np.empty_like(row))
            group[pairs], row[pairs] = count, j
            pairs += 1
        kept[count] = i
        count += 1
    return kept[:count], np.stack((group[:pairs], row[:pairs]), axis=1)


# --------------------------------------------------------------------------------------------------------------------
# with gradients: each face of b, cut into the pieces below, between and above the x limits of a. The faces between move
# the volume by their area, and its moments turn it.


@njit(cache=True, nogil=True)
def _lines(half_a: Array, half_b: Array, rot: Array, shift: Array, face: int, piece: int, out: Array) -> int:
    """Lines that bound a piece (-1, 0, 1) of a face of b in its own plane: (n, 3) unit normal and limit, and their
    number; 0 when nothing is left. Lines beside the face are left out."""
    k = face // 2
    i, j, side = (k + 1) % 3, (k + 2) % 3, 2.0 * (face % 2) - 1.0
    for n in range(4):
        out[n, 0], out[n, 1], out[n, 2] = 0.0, 0.0, half_b[i] if n < 2 else half_b[j]
        out[n, n // 2] = 1.0 if n % 2 else -1.0
    n = 4
    for axis in range(3):
        at = shift[axis] + side * half_b[k] * rot[axis, k]
        for sign in (-1.0, 1.0):
            limit = half_a[axis]
            if axis == 0 and piece != 0:
                if sign == piece:
                    continue
                limit = -limit
            u, v, room = sign * rot[axis, i], sign * rot[axis, j], limit - sign * at
            length = math.sqrt(u * u + v * v)
            reach = abs(u) * half_b[i] + abs(v) * half_b[j] if length > FLAT else 0.0
            if room < -reach or (limit < 0.0 and room == -reach):  # a face on the limit lies between the limits
                return 0
            if room >= reach:
                continue
            out[n, 0], out[n, 1], out[n, 2] = u / length, v / length, room / length
            n += 1
    return n


@njit(cache=True, nogil=True)
def _moments(lines: Array, n: int) -> tuple[float, float, float]:
    """Area of the convex polygon within ``lines[:n]``, and the integrals of both coordinates over it: the divergence
    theorem over its edges, each the part of a line that the other lines leave."""
    area, first, second = 0.0, 0.0, 0.0
    for i in range(n):
        u, v, c = lines[i, 0], lines[i, 1], lines[i, 2]
        low, high = -math.inf, math.inf
        for j in range(n):
            if j == i:
                continue
            slope, along = lines[j, 1] * u - lines[j, 0] * v, lines[j, 0] * u + lines[j, 1] * v
            if abs(slope) > PARALLEL:
                end = (lines[j, 2] - along * c) / slope
                if slope > 0.0:
                    high = min(high, end)
                else:
                    low = max(low, end)
            elif (along > 0.0 and (lines[j, 2] < c or (lines[j, 2] == c and j < i))) or (
                along < 0.0 and lines[j, 2] + c < 0.0
            ):
                high = -math.inf
        if high <= low:
            continue
        part, middle = c * (high - low), 0.5 * (low + high)
        area += part / 2.0
        first += part * (u * c - v * middle) / 3.0
        second += part * (v * c + u * middle) / 3.0
    return area, first, second


@njit(cache=True, nogil=True)
def _face_parts(half_a: Array, half_b: Array, rot: Array, shift: Array, face: int, lines: Array, out: Array) -> None:
    """Add the part of a face of b to the volume ``out[0]`` and to its derivatives by b's centre, half sizes and
    rotation, ``out[1:16]``, all in the frame of a."""
    k = face // 2
    i, j, side = (k + 1) % 3, (k + 2) % 3, 2.0 * (face % 2) - 1.0
    area, u, v = _moments(lines, _lines(half_a, half_b, rot, shift, face, 0, lines))
    x = shift[0] + side * half_b[k] * rot[0, k]
    above = _moments(lines, _lines(half_a, half_b, rot, shift, face, 1, lines))[0]
    below = _moments(lines, _lines(half_a, half_b, rot, shift, face, -1, lines))[0]
    out[0] += side * rot[0, k] * (x * area + rot[0, i] * u + rot[0, j] * v + half_a[0] * (above - below))
    out[4 + k] += area
    for axis in range(3):
        normal = side * rot[axis, k]
        out[1 + axis] += normal * area
        out[7 + 3 * axis + k] += rot[axis, k] * half_b[k] * area
        out[7 + 3 * axis + i] += normal * u
        out[7 + 3 * axis + j] += normal * v


@njit(cache=True, nogil=True)
def volume_parts(
    center_a: Array, half_a: Array, rot_a: Array, center_b: Array, half_b: Array, rot_b: Array
) -> Array:  # pragma: no cover - compiled
    """Sums over the faces of ``overlap_kernels.volume_parts`` -> (N, 16)."""
    out = np.zeros((center_a.shape[0], 16))
    small, lines, part = np.empty((7, 3)), np.empty((10, 3)), np.empty(16)
    for p in range(center_a.shape[0]):
        _relative(center_a[p], rot_a[p], center_b[p], rot_b[p], small[:3], small[6], small[3:6])
        part[:] = 0.0
        for face in range(6):
            _face_parts(half_a[p], half_b[p], small[:3], small[6], face, lines, part)
        out[p, 0], out[p, 4:7] = part[0], part[4:7]
        for row in range(3):  # to the world
            for axis in range(3):
                out[p, 1 + row] += rot_a[p, row, axis] * part[1 + axis]
                for column in range(3):
                    out[p, 7 + 3 * row + column] += rot_a[p, row, axis] * part[7 + 3 * axis + column]
    return out


def _loops(boxes: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.from_numpy(volume_parts(*(x.numpy() for x in boxes)))


def _kernel(boxes: Sequence[torch.Tensor]) -> torch.Tensor:
    from embodied_perceptron.geometry import overlap_kernels

    by_face = boxes[0].new_zeros(6, len(boxes[0]), 16)
    if by_face.numel():
        launch(overlap_kernels.volume_parts, by_face.shape[:2], *boxes, by_face, 3, 10)
    return by_face.sum(0)


class _Intersection(torch.autograd.Function):
    """:func:`intersection_volumes`."""

    @staticmethod
    def forward(ctx: Any, *boxes: torch.Tensor) -> torch.Tensor:
        a, b = tuple(x.detach().contiguous() for x in boxes[:3]), tuple(x.detach().contiguous() for x in boxes[3:])
        orders = ((*a, *b), (*b, *a)) if any(ctx.needs_input_grad[:3]) else ((*a, *b),)
        compute = _loops if runs_compiled(*boxes) else _kernel
        parts = [compute(order) for order in orders]
        ctx.save_for_backward(*parts)
        return parts[0][:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = [part * by[:, None] for part in ctx.saved_tensors]
        of_b, *of_a = [(g[:, 1:4], g[:, 4:7], g[:, 7:].view(-1, 3, 3)) for g in found]
        return (*(of_a[0] if of_a else (None, None, None)), *of_b)


def intersection_volumes(
    center_a: torch.Tensor, half_a: torch.Tensor, rot_a: torch.Tensor,
    center_b: torch.Tensor, half_b: torch.Tensor, rot_b: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """(P, 3), (P, 3), (P, 3, 3) float64 and the same of other boxes -> (P,) volumes; differentiable, without reading
    back from a device. Where only boxes ``b`` need gradients, it takes half of the time."""
    volume: torch.Tensor = _Intersection.apply(center_a, half_a, rot_a, center_b, half_b, rot_b)  # type: ignore[no-untyped-call]
    return volume
