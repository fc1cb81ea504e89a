"""Exact volume of the intersection of two arbitrarily rotated boxes, also with its gradient.

In the frame of box ``a``, which is ``[-h, h]^3``, the field ``F(p) = (clamp(p_x, -h_x, h_x), 0, 0)`` has
divergence 1 inside of a's x slab and 0 outside. The divergence theorem over box ``b`` cut by a's y and z slabs gives

    volume(a and b) = sum over faces f of b of  integral of clamp(p_x, -h_x, h_x) over f cut by the slabs,
                                                 projected along x (signed by the direction that the face looks in)

because F has no normal component on the cuts. So only the faces of ``b`` are clipped against four half planes, without
cap polygons or special cases for coplanar faces: every term is continuous in the boxes. Boxes without volume give zero.

Each face is cut into the pieces below, between and above the x limits of a. The pieces between move the volume by their
area, and their moments turn it, which gives the derivatives.

The loops take solids, (N, 22) rows of numbers that :func:`solids` makes of centres, half sizes and rotations (columns
are a box's axes); the public functions on (N, 9) boxes are in :mod:`embodied_perceptron.geometry.boxes`.
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
from embodied_perceptron.geometry.kernels import FLAT, PARALLEL, njit

Array = NDArray[np.float64]

_EPS = np.finfo(np.float64).eps


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
def solids(center: Array, half: Array, rot: Array) -> Array:
    """(N, 3), (N, 3), (N, 3, 3) -> (N, 22): centre, half sizes, rotation, lower and upper corner of the bounds,
    volume."""
    out = np.empty((center.shape[0], 22))
    for i in range(center.shape[0]):
        out[i, :3], out[i, 3:6] = center[i], half[i]
        out[i, 21] = 8.0 * half[i, 0] * half[i, 1] * half[i, 2]
        for k in range(3):
            out[i, 6 + 3 * k : 9 + 3 * k] = rot[i, k]
            extent = abs(rot[i, k, 0]) * half[i, 0] + abs(rot[i, k, 1]) * half[i, 1] + abs(rot[i, k, 2]) * half[i, 2]
            out[i, 15 + k], out[i, 18 + k] = center[i, k] - extent, center[i, k] + extent
    return out


@njit(cache=True, nogil=True)
def _relative(a: Array, b: Array, small: Array) -> None:
    """Rotation ``small[:3]``, its absolute value ``small[3:6]`` and position ``small[6]`` of b in the frame of a."""
    for i in range(3):
        small[6, i] = 0.0
        for k in range(3):
            small[6, i] += a[6 + 3 * k + i] * (b[k] - a[k])
        for j in range(3):
            value = 0.0
            for k in range(3):
                value += a[6 + 3 * k + i] * b[6 + 3 * k + j]
            small[i, j] = value
            small[3 + i, j] = abs(value)


@njit(cache=True, nogil=True)
def _overlap_bound(half_a: Array, half_b: Array, small: Array) -> float:
    """Upper bound of the intersection volume from the bounding boxes in either frame; 0 when one of them separates.
    ``small``: of :func:`_relative`."""
    rot, absolute, shift = small[:3], small[3:6], small[6]
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
def _intersection_upright(a: Array, b: Array, small: Array) -> float:
    """Volume of the intersection of solids whose third axes both point up; ``small``: of :func:`_relative`."""
    x_a, y_a, x_b, y_b, x, y, z = a[3], a[4], b[3], b[4], small[6, 0], small[6, 1], small[6, 2]
    height = min(a[5], z + b[5]) - max(-a[5], z - b[5])
    if height <= 0.0:
        return 0.0
    xx, xy, yx, yy = small[0, 0], small[0, 1], small[1, 0], small[1, 1]
    area = 0.0
    for c in range(4):  # counter-clockwise from corner to corner
        u0 = x_b if c in (1, 2) else -x_b
        v0 = y_b if c in (2, 3) else -y_b
        u1 = x_b if c in (0, 1) else -x_b
        v1 = y_b if c in (1, 2) else -y_b
        y0, y1 = y + yx * u0 + yy * v0, y + yx * u1 + yy * v1
        from_y, to_y = min(max(y0, -y_a), y_a), min(max(y1, -y_a), y_a)
        if from_y == to_y:
            continue  # beside the slab, or parallel to x
        x0, x1 = x + xx * u0 + xy * v0, x + xx * u1 + xy * v1
        from_x = x0 + (from_y - y0) / (y1 - y0) * (x1 - x0)
        to_x = x1 - (y1 - to_y) / (y1 - y0) * (x1 - x0)
        area += (to_y - from_y) * _mean_of_clamped(from_x, to_x, x_a)
    return float(max(area, 0.0) * height)


@njit(cache=True, nogil=True)
def _cut(lines: Array, n: int, u: float, v: float, room: float, beyond: bool) -> int:
    """Append the line ``u p + v q <= room`` to the lines of a face, of which the first four are its edges: (n, 3) unit
    normal and limit. Returns their number, unchanged for a line beside the face; -1 when nothing is left, and with
    ``beyond`` also where the face lies on the line."""
    length = math.sqrt(u * u + v * v)
    reach = abs(u) * lines[0, 2] + abs(v) * lines[2, 2] if length > FLAT else 0.0
    if n < 0 or room < -reach or (beyond and room == -reach):
        return -1
    if not room >= reach:  # also for NaN, which must not get lost
        length = max(length, FLAT)
        lines[n, 0], lines[n, 1], lines[n, 2] = u / length, v / length, room / length
        n += 1
    return n


@njit(cache=True, nogil=True)
def _moments(lines: Array, n: int) -> tuple[float, float, float]:
    """Area of the convex polygon within ``lines[:n]``, and the integrals of both coordinates over it: the divergence
    theorem over its edges, each the part of a line that the other lines leave."""
    if n == 4:  # the whole face
        return 4.0 * lines[0, 2] * lines[2, 2], 0.0, 0.0
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
                break
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
    for n in range(4):
        lines[n, 0], lines[n, 1], lines[n, 2] = 0.0, 0.0, half_b[i] if n < 2 else half_b[j]
        lines[n, n // 2] = 1.0 if n % 2 else -1.0
    n = 4
    for axis in (1, 2):
        at, u, v = shift[axis] + side * half_b[k] * rot[axis, k], rot[axis, i], rot[axis, j]
        n = _cut(lines, n, -u, -v, half_a[axis] + at, False)
        n = _cut(lines, n, u, v, half_a[axis] - at, False)
    if n < 0:
        return
    x, u, v, limit = shift[0] + side * half_b[k] * rot[0, k], rot[0, i], rot[0, j], half_a[0]
    facing = side * rot[0, k]
    out[0] += facing * limit * _moments(lines, _cut(lines, n, -u, -v, x - limit, True))[0]
    out[0] -= facing * limit * _moments(lines, _cut(lines, n, u, v, -limit - x, True))[0]
    n = _cut(lines, _cut(lines, n, -u, -v, limit + x, False), u, v, limit - x, False)
    area, first, second = _moments(lines, n)
    out[0] += facing * (x * area + u * first + v * second)
    out[4 + k] += area
    for axis in range(3):
        normal = side * rot[axis, k]
        out[1 + axis] += normal * area
        out[7 + 3 * axis + k] += rot[axis, k] * half_b[k] * area
        out[7 + 3 * axis + i] += normal * first
        out[7 + 3 * axis + j] += normal * second


@njit(cache=True, nogil=True)
def _may_exceed(a: Array, b: Array, threshold: float) -> bool:
    """Return False when volumes or world bounds show that the IoU cannot exceed ``threshold``."""
    bound = 1.0
    for k in range(3):
        length = min(a[18 + k], b[18 + k]) - max(a[15 + k], b[15 + k])
        if length <= 0.0:
            return False
        bound *= length
    bound = min(bound * (1.0 + 1e-9), min(a[21], b[21]))
    return bool(bound > threshold * (a[21] + b[21] - bound))


@njit(cache=True, nogil=True)
def _is_upright(solid: Array) -> bool:
    """True when the third axis points up to within rounding.

    A tilt t of a box with length l and thickness w changes an IoU by up to t l / w. So the tilt itself is compared:
    its cosine is 1.0 up to a tilt of 1e-8, which costs a panel of 2 m x 0.01 m 2e-6.
    """
    tolerance = 4.0 * _EPS
    return bool(solid[14] > 0.0 and abs(solid[12]) <= tolerance and abs(solid[13]) <= tolerance)


@njit(cache=True, nogil=True)
def _iou(a: Array, b: Array, threshold: float, small: Array) -> float:
    """IoU of two solids with volume; may return 0 when it cannot exceed ``threshold`` (0 for exact values).

    ``small``: (23, 3), the first rows out as :func:`_relative`.
    """
    if not _may_exceed(a, b, threshold):
        return 0.0
    _relative(a, b, small)
    if _is_upright(a) and _is_upright(b):
        inter = _intersection_upright(a, b, small)
    else:
        half_a, half_b, rot, shift, lines = a[3:6], b[3:6], small[:3], small[6], small[7:17]
        bound = _overlap_bound(half_a, half_b, small) * (1.0 + 1e-9)
        if bound <= threshold * (a[21] + b[21] - bound):
            return 0.0
        parts = small[17:].reshape(-1)
        parts[0] = 0.0
        for face in range(6):
            _face_parts(half_a, half_b, rot, shift, face, lines, parts)
        inter = parts[0]
    inter = min(max(inter, 0.0), min(a[21], b[21]))
    return float(inter / (a[21] + b[21] - inter))


@njit(cache=True, nogil=True)
def iou_matrix(a: Array, b: Array) -> Array:  # pragma: no cover - compiled
    """N and M solids -> (N, M) float64 IoU. Half sizes >= 0, all finite."""
    out, small = np.zeros((len(a), len(b))), np.zeros((23, 3))
    for i in range(len(a)):
        for j in range(len(b)):
            out[i, j] = _iou(a[i], b[j], 0.0, small)
    return out


@njit(cache=True, nogil=True)
def iou_pairs(a: Array, b: Array) -> Array:  # pragma: no cover - compiled
    """Like :func:`iou_matrix` for N pairs -> (N,) float64."""
    out, small = np.zeros(len(a)), np.zeros((23, 3))
    for i in range(len(a)):
        out[i] = _iou(a[i], b[i], 0.0, small)
    return out


@njit(cache=True, nogil=True)
def _beside(a: Array, b: Array) -> bool:
    """Whether the bounds are apart on the ground, as those of most boxes are."""
    return bool(b[15] >= a[18] or a[15] >= b[18] or b[16] >= a[19] or a[16] >= b[19])


@njit(cache=True, nogil=True)
def greedy_nms(
    boxes: Array, labels: NDArray[np.int64], threshold: float, weights: Array, voting: float
) -> tuple[NDArray[np.bool_], Array]:  # pragma: no cover - compiled
    """Suppress solids in order of falling score, and sum the votes of the boxes of its label with IoU > ``voting`` for
    each kept box.

    ``weights``: (N,) of votes; (0,) = none are summed.

    Returns:
        (N,) bool, kept: none better kept one of its label has IoU > threshold; and (N, 7) sums over the voting boxes,
        itself included, of weight times IoU, and of this times centre and times half sizes, assigned to the nearest
        axes of the kept box; 0 where not kept.
    """
    n, votes = boxes.shape[0], len(weights) > 0
    by_label = np.argsort(labels, kind="mergesort")  # stable: of one label still in order of score
    # compared boxes are contiguous in memory
    boxes, labels = boxes[by_label], labels[by_label]
    if votes:
        weights = weights[by_label]
    kept, sums, small = np.ones(n, dtype=np.bool_), np.zeros((n, 7)), np.zeros((23, 3))
    least = min(threshold, voting) if votes else threshold
    start = 0
    for i in range(n):
        if labels[i] != labels[start]:
            start = i
        if not kept[i]:
            continue
        for j in range(start if votes else i + 1, n):
            if labels[j] != labels[i]:
                break
            if j < i and kept[j] and voting >= threshold:
                continue  # both are kept: they overlap by no more than the threshold
            iou = 0.0
            if i == j:
                iou = 1.0
                _relative(boxes[i], boxes[i], small)
            elif not (votes or kept[j]) or _beside(boxes[i], boxes[j]):
                continue
            else:
                iou = _iou(boxes[i], boxes[j], least, small)
            if j > i and iou > threshold:
                kept[j] = False
            if not votes or (i != j and iou <= voting):
                continue
            weight = iou * weights[j]
            sums[i, 0] += weight
            for k in range(3):
                axis = np.argmax(small[3 + k])  # of the other box, nearest to this one's axis k
                sums[i, 1 + k] += weight * boxes[j, k]
                sums[i, 4 + k] += weight * boxes[j, 3 + axis]
    keep, summed = np.empty(n, dtype=np.bool_), np.empty((n, 7))
    keep[by_label], summed[by_label] = kept, sums
    return keep, summed


@njit(cache=True, nogil=True)
def greedy_groups(
    boxes: Array, threshold: float, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:  # pragma: no cover - compiled
    """Return the first ``limit`` solids that :func:`greedy_nms` keeps of one label, and (P, 2) sorted pairs of a kept
    box's number and the row of a box that it suppresses, itself included."""
    n = boxes.shape[0]
    free, small = np.ones(n, dtype=np.bool_), np.zeros((23, 3))
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
            if not same and not _beside(boxes[i], boxes[j]):
                if j < i and free[j]:
                    continue  # both are kept
                same = threshold < _iou(boxes[i], boxes[j], threshold, small)
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
# with gradients


@njit(cache=True, nogil=True)
def volume_parts(a: Array, b: Array) -> Array:  # pragma: no cover - compiled
    """Sums over the faces of ``overlap_kernels.volume_parts``, of N pairs of solids -> (N, 16)."""
    out, small = np.zeros((len(a), 16)), np.zeros((23, 3))
    for p in range(len(a)):
        _relative(a[p], b[p], small)
        part = small[17:].reshape(-1)
        part[:] = 0.0
        for face in range(6):
            _face_parts(a[p, 3:6], b[p, 3:6], small[:3], small[6], face, small[7:17], part)
        out[p, 0], out[p, 4:7] = part[0], part[4:7]
        for row in range(3):  # to the world
            for axis in range(3):
                turn = a[p, 6 + 3 * row + axis]
                out[p, 1 + row] += turn * part[1 + axis]
                for column in range(3):
                    out[p, 7 + 3 * row + column] += turn * part[7 + 3 * axis + column]
    return out


def _loops(boxes: Sequence[torch.Tensor]) -> torch.Tensor:
    arrays = [x.numpy() for x in boxes]
    return torch.from_numpy(volume_parts(solids(*arrays[:3]), solids(*arrays[3:])))


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
