"""Boxes with nine degrees of freedom.

A set of boxes is a (N, 9) float tensor ``[x y z dx dy dz alpha beta gamma]``: centre and full size in metres, rotation
``R = Rz(alpha) @ Rx(beta) @ Ry(gamma)`` in radians (intrinsic Z-X-Y) from the box's axes to the frame that the centre
is in. Functions take any float dtype and device and return the same; the overlap functions compute in float64 on the
CPU. Sizes may be zero. Wrong shapes, non-finite entries and negative sizes raise ``ValueError`` naming
the first offender in overlap and NMS.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry import overlap
from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.transforms import F64, check_transform, constant

Tensor = torch.Tensor

# x slowest, z fastest: corner 0 is (-,-,-), corner 1 (-,-,+), ... corner 7 (+,+,+)
_SIGNS = tuple(sign for corner in itertools.product((-1.0, 1.0), repeat=3) for sign in corner)
CORNER_SIGNS = torch.tensor(_SIGNS).view(8, 3)
BOX_EDGES = tuple((i, i | bit) for bit in (1, 2, 4) for i in range(8) if not i & bit)  # corners of each edge
_LEAST_M3 = 1e-9  # least volume of bounds
_PAIRS_AT_A_TIME = 1 << 14  # pairs per batch of tensor operations: 300 MB of polygons


def check_boxes(boxes: Tensor, name: str = "boxes") -> Tensor:
    """Return ``boxes`` or raise ``ValueError``: shape not (N, 9), not floating, not finite, or a negative size.

    On a device only the shape is checked, because reading values would synchronise with it.
    """
    if not isinstance(boxes, Tensor) or not boxes.is_floating_point():
        raise ValueError(f"{name} must be a float tensor, got {getattr(boxes, 'dtype', type(boxes).__name__)}")
    if boxes.ndim != 2 or boxes.shape[1] != 9:
        raise ValueError(f"{name} must have shape (N, 9), got {tuple(boxes.shape)}")
    if not runs_compiled(boxes):
        return boxes
    numbers = boxes.detach()
    if numbers.device.type == "cpu" and numbers.dtype == torch.float64:  # the common case; NumPy has less overhead
        array = numbers.numpy()
        if np.isfinite(array).all() and (array[:, 3:6] >= 0).all():
            return boxes
    bad = ~torch.isfinite(numbers).all(1) | (numbers[:, 3:6] < 0).any(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(f"{name}[{row}] has a non-finite entry or a negative size: {numbers[row].tolist()}")
    return boxes


# --------------------------------------------------------------------------------------------------------------------
# rotations


def euler_to_matrix(angles: Tensor) -> Tensor:
    """(..., 3) alpha, beta, gamma -> (..., 3, 3) ``Rz(alpha) @ Rx(beta) @ Ry(gamma)``."""
    alpha, beta, gamma = torch.stack([torch.cos(angles), torch.sin(angles)]).unbind(-1)  # cosine and sine of each
    cb, sb = beta
    products, tilted = alpha[:, None] * gamma, (alpha * sb)[:, None] * gamma  # (2, 2, ...)
    level_alpha, level_gamma = alpha * cb, cb * gamma
    entries = [
        products[0, 0] - tilted[1, 1], -level_alpha[1], products[0, 1] + tilted[1, 0],
        products[1, 0] + tilted[0, 1], level_alpha[0], products[1, 1] - tilted[0, 0],
        -level_gamma[1], sb, level_gamma[0],
    ]  # fmt: skip
    return torch.stack(entries, dim=-1).reshape(*angles.shape[:-1], 3, 3)


def matrix_to_euler(R: Tensor) -> Tensor:
    """(..., 3, 3) rotations -> (..., 3) alpha, beta, gamma; beta in [-pi/2, pi/2].

    At beta = +-pi/2 only the sum of the other two angles is defined; gamma is then 0, and the matrix is preserved.
    """
    cos_beta = torch.hypot(R[..., 0, 1], R[..., 1, 1])
    locked = cos_beta < 10 * torch.finfo(R.dtype).eps  # rounding error
    safe = locked.to(R.dtype)  # keeps the gradients of the branch not taken finite
    alpha = torch.atan2(-R[..., 0, 1], R[..., 1, 1] + safe)
    # after undoing alpha the first row is (cos gamma, 0, sin gamma): gamma compensates the rounding of alpha near
    # beta = +-pi/2
    cos_alpha, sin_alpha = torch.cos(alpha), torch.sin(alpha)
    gamma = torch.atan2(
        cos_alpha * R[..., 0, 2] + sin_alpha * R[..., 1, 2], cos_alpha * R[..., 0, 0] + sin_alpha * R[..., 1, 0]
    )
    beta = torch.atan2(R[..., 2, 1], cos_beta)
    alpha_locked = torch.atan2(R[..., 1, 0], R[..., 0, 0])
    return torch.stack(
        [torch.where(locked, alpha_locked, alpha), beta, torch.where(locked, torch.zeros_like(gamma), gamma)], dim=-1
    )


def sixd_to_matrix(sixd: Tensor) -> Tensor:
    """(..., 6) any numbers -> (..., 3, 3) rotations (Zhou et al., "On the Continuity of Rotation Representations").

    The last three numbers give the y axis; the first three, orthogonalised, the x axis. A vector that vanishes, or is
    parallel to the other, is replaced by a fixed axis.
    """
    x_raw, y_raw = sixd[..., :3], sixd[..., 3:]
    fallback = torch.zeros_like(y_raw)
    fallback[..., 1] = 1.0
    y = _unit(y_raw, fallback)
    # the axis along which y is smallest is not parallel to y
    helper = (y.detach().abs().argmin(-1, keepdim=True) == constant((0, 1, 2), y.device)).to(y.dtype)
    z = _unit(torch.linalg.cross(_unit(x_raw, helper), y), _unit(torch.linalg.cross(helper, y), helper))
    return torch.stack([torch.linalg.cross(y, z), y, z], dim=-1)


def _unit(v: Tensor, fallback: Tensor, eps: float = 1e-8) -> Tensor:
    """Normalise ``v``; ``fallback`` where it is shorter than ``eps``. Gradients stay finite, NaN stays NaN."""
    norm = v.norm(dim=-1, keepdim=True)
    return torch.where(norm < eps, fallback, v / norm.clamp_min(eps))


def rotations(boxes: Tensor) -> Tensor:
    """(N, 9) -> (N, 3, 3): columns are the boxes' axes."""
    return euler_to_matrix(boxes[..., 6:9])


def make_boxes(centers: Tensor, sizes: Tensor, R: Tensor) -> Tensor:
    """(N, 3) centres, (N, 3) sizes, (N, 3, 3) rotations -> (N, 9)."""
    return torch.cat([centers, sizes, matrix_to_euler(R)], dim=-1)


# --------------------------------------------------------------------------------------------------------------------
# points and boxes


def corner_signs(like: Tensor) -> Tensor:
    """(8, 3) signs of the corners, with the device and precision of a tensor."""
    return constant(_SIGNS, like.device, like.dtype).view(8, 3)


def corners(boxes: Tensor) -> Tensor:
    """(N, 9) -> (N, 8, 3) corners in metres, x slowest, z fastest: (-,-,-), (-,-,+), (-,+,-), ... (+,+,+)."""
    local = 0.5 * corner_signs(boxes) * boxes[:, None, 3:6]  # (N, 8, 3)
    return torch.einsum("nij,nkj->nki", rotations(boxes), local) + boxes[:, None, :3]


def volumes(boxes: Tensor) -> Tensor:
    """(N, 9) -> (N,) cubic metres."""
    return boxes[:, 3:6].prod(-1)


def to_box_frames(points: Tensor, boxes: Tensor) -> Tensor:
    """(P, 3) points, (N, 9) boxes -> (P, N, 3) points in each box's frame."""
    return torch.einsum("nij,pni->pnj", rotations(boxes), points[:, None] - boxes[None, :, :3])


def points_in_boxes(points: Tensor, boxes: Tensor, chunk: int = 1 << 20) -> Tensor:
    """(P, 3), (N, 9) -> (P, N) bool; faces count as inside. Expands at most ``chunk`` pairs at a time."""
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"points must have shape (P, 3), got {tuple(points.shape)}")
    inside = torch.empty(points.shape[0], boxes.shape[0], dtype=torch.bool, device=points.device)
    step = max(chunk // max(boxes.shape[0], 1), 1)
    half = 0.5 * boxes[None, :, 3:6]
    for start in range(0, points.shape[0], step):
        local = to_box_frames(points[start : start + step].to(boxes.dtype), boxes)
        inside[start : start + step] = (local.abs() <= half).all(-1)
    return inside


# --------------------------------------------------------------------------------------------------------------------
# moving boxes


def transform_boxes(T: NDArray[np.floating[Any]] | Tensor, boxes: Tensor) -> Tensor:
    """Move (N, 9) boxes by the rigid (4, 4) ``T``: ``T_a_b`` maps boxes from frame b to frame a.

    Raises ``ValueError`` when ``T`` is not rigid.
    """
    matrix = check_transform(T.detach().cpu().numpy() if isinstance(T, Tensor) else T, "T")
    M = torch.as_tensor(matrix, device=boxes.device)
    b = boxes.to(torch.float64)
    centers = b[:, :3] @ M[:3, :3].T + M[:3, 3]
    return make_boxes(centers, b[:, 3:6], M[:3, :3] @ rotations(b)).to(boxes.dtype)


# --------------------------------------------------------------------------------------------------------------------
# overlap


def checked_solids(boxes: Tensor, name: str) -> F64:
    """Return the (N, 22) solids of :mod:`.overlap` of (N, 9) boxes.

    Raises ``ValueError`` as :func:`check_boxes`.
    """
    if isinstance(boxes, Tensor) and boxes.is_floating_point():
        boxes = boxes.detach().to("cpu", torch.float64)
    solids: F64 = overlap.solids(*overlap.frames(check_boxes(boxes, name).contiguous().numpy()))
    return solids


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """(N, 9), (M, 9) -> (N, M) exact IoU of arbitrarily rotated boxes, in a's dtype and on its device.

    Boxes without volume have IoU 0 with everything, themselves included. Not differentiable (see :func:`paired_iou`).
    Computes on the device without reading back. Raises ``ValueError`` as :func:`check_boxes`.
    """
    if runs_compiled(a, b):
        return torch.from_numpy(_loops_iou(a, b)).to(a)
    check_boxes(a, "a")
    check_boxes(b, "b")
    with torch.no_grad():
        rows = max(_PAIRS_AT_A_TIME // max(len(b), 1), 1)
        parts = [
            _iou_of_pairs(some.repeat_interleave(len(b), 0, output_size=len(some) * len(b)), b.repeat(len(some), 1))
            for some in torch.split(a, rows)
        ]
        return torch.cat(parts).view(len(a), len(b)).to(a.dtype)


def paired_iou(a: Tensor, b: Tensor) -> Tensor:
    """(N, 9), (N, 9) -> (N,) exact IoU of the i-th boxes; differentiable in both on their device.

    The gradient is zero for disjoint boxes, so a loss needs another term for them. Raises as :func:`box_iou`.
    """
    if a.shape != b.shape:
        raise ValueError(f"need as many boxes on both sides, got {tuple(a.shape)} and {tuple(b.shape)}")
    if runs_compiled(a, b) and not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
        return torch.from_numpy(_loops_paired_iou(a, b)).to(a)
    return _iou_of_pairs(check_boxes(a, "a"), check_boxes(b, "b")).to(a.dtype)


def iou_of_arrays(a: F64, b: F64) -> F64:
    """:func:`box_iou` of what is on the host."""
    return _loops_iou(torch.from_numpy(a), torch.from_numpy(b))


def paired_iou_of_arrays(a: F64, b: F64) -> F64:
    """:func:`paired_iou` of what is on the host."""
    return _loops_paired_iou(torch.from_numpy(a), torch.from_numpy(b))


def _loops_iou(a: Tensor, b: Tensor) -> F64:
    iou: F64 = overlap.iou_matrix(checked_solids(a, "a"), checked_solids(b, "b"))
    return iou


def _loops_paired_iou(a: Tensor, b: Tensor) -> F64:
    iou: F64 = overlap.iou_pairs(checked_solids(a, "a"), checked_solids(b, "b"))
    return iou


def _iou_of_pairs(a: Tensor, b: Tensor) -> Tensor:
    """(P, 9), (P, 9) -> (P,) IoU by tensor operations, in float64 because areas of faces cancel."""
    both = torch.stack([a.double(), b.double()])
    center, half, rot = both[..., :3], 0.5 * both[..., 3:6], rotations(both)
    inter = overlap.intersection_volumes(center[0], half[0], rot[0], center[1], half[1], rot[1])
    volume_a, volume_b = both[..., 3:6].prod(-1)
    inter = torch.minimum(inter.clamp_min(0.0), torch.minimum(volume_a, volume_b))
    union = volume_a + volume_b - inter
    solid = union > 0
    return torch.where(solid, inter / torch.where(solid, union, 1.0), 0.0)


# --------------------------------------------------------------------------------------------------------------------
# bird's eye view


def flatten_boxes(boxes: Tensor) -> Tensor:
    """Return upright boxes of height 1 at z = 0; their IoU is that of the bird's-eye rectangles."""
    zero = torch.zeros_like(boxes[:, :1])
    return torch.cat([boxes[:, :2], zero, boxes[:, 3:5], zero + 1.0, boxes[:, 6:7], zero, zero], dim=-1)


# --------------------------------------------------------------------------------------------------------------------
# boxes as float64 arrays


def box_rotations(boxes: F64) -> F64:
    """Compute :func:`rotations` of arrays."""
    R: F64 = overlap.frames(np.ascontiguousarray(boxes, dtype=np.float64))[2]
    return R


def canonical_boxes(boxes: F64) -> F64:
    """Return the canonical form of (N, 9) boxes: the same solids with permuted and reversed axes.

    z is the axis nearest to world up and points up (on a tie the first); x is the longer of the others, with alpha in
    (-90, 90] degrees. If both are equally long (to 1e-6 of their sum), x is the one with alpha in (-45, 45]. Tilt is
    kept. Sizes of an upright object are (longer side, shorter side, height). Canonical boxes are returned bit for bit.
    """
    given: F64 = np.array(boxes, dtype=np.float64)
    longer, shorter, alpha = given[:, 3], given[:, 4], given[:, 6]
    # most boxes are canonical already
    known = ~given[:, 7:].any(axis=1) & (longer - shorter > 2e-6 * (longer + shorter)) & (np.abs(alpha) < 1.57)
    rows = np.flatnonzero(~known)
    if len(rows) == 0:
        return given
    form = canonical_form(given[rows])
    changed = (np.abs(form - given[rows]) > 1e-9).any(axis=1)
    given[rows[changed]] = form[changed]
    return given


def canonical_form(boxes: F64) -> F64:
    """Compute :func:`canonical_boxes` for all rows, up to rounding."""
    row, R, size = np.arange(len(boxes)), box_rotations(boxes), boxes[:, 3:6]
    up = np.abs(R[:, 2]).argmax(axis=1)
    first, second = (up + 1) % 3, (up + 2) % 3
    z = R[row, :, up] * np.where(R[row, 2, up] < 0, -1.0, 1.0)[:, None]

    def alpha_of(x: F64) -> F64:
        y = np.cross(z, x)
        return np.asarray(np.arctan2(-y[:, 0], y[:, 1]))

    length, width = size[row, first], size[row, second]
    turned = np.abs(alpha_of(R[row, :, first]))
    along = (turned <= np.pi / 4) | (turned >= np.pi * 3 / 4)
    kept = np.where(np.abs(length - width) <= 1e-6 * (length + width), along, length > width)
    x = np.where(kept[:, None], R[row, :, first], R[row, :, second])
    alpha = alpha_of(x)
    x[(alpha > np.pi / 2) | (alpha <= -np.pi / 2)] *= -1.0
    angles = matrix_to_euler(torch.from_numpy(np.stack([x, np.cross(z, x), z], axis=2))).numpy()
    sides = np.where(kept, length, width), np.where(kept, width, length), size[row, up]
    return np.column_stack([boxes[:, :3], *sides, angles])


def box_corners(boxes: F64) -> F64:
    """Compute :func:`corners` of arrays; :data:`BOX_EDGES` joins them."""
    points: F64 = corners(torch.from_numpy(np.ascontiguousarray(boxes, dtype=np.float64))).numpy()
    return points


@dataclass(frozen=True, eq=False)
class Bounds:
    """Axis-aligned bounds of N boxes: cheap to intersect, and exact for boxes along the axes.

    Attributes:
        low, high: (N, 3) metres.
    """

    low: F64
    high: F64

    @classmethod
    def of(cls, boxes: F64, turn: F64 | None = None) -> Bounds:
        """Compute the bounds of (N, 9) boxes, rotated first by the horizontal (2, 2) ``turn``."""
        center, R = boxes[:, :3].copy(), box_rotations(boxes)
        if turn is not None:
            center[:, :2] = center[:, :2] @ turn.T
            R[:, :2, :] = turn @ R[:, :2, :]
        half = 0.5 * (np.abs(R) @ boxes[:, 3:6, None])[..., 0]
        return cls(center - half, center + half)

    @cached_property
    def extent(self) -> F64:
        """(N, 3) metres."""
        return np.asarray(self.high - self.low)

    @cached_property
    def volume(self) -> F64:
        """(N,) cubic metres, at least 1e-9."""
        return np.asarray(np.maximum(self.extent.prod(axis=1), _LEAST_M3))

    def __getitem__(self, rows: NDArray[np.intp]) -> Bounds:
        """Select boxes."""
        return Bounds(self.low[rows], self.high[rows])

    def pairs_within(self, other: Bounds, reach_m: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return (P,), (P,) sorted indices of pairs with ``other`` at most ``reach_m`` apart in x and in y.

        Sweeps along x: of two overlapping intervals one begins inside the other. Pairs near in x alone are kept for
        some rows at a time, so the memory is that of the result.
        """
        if len(self.low) > _ROWS_AT_ONCE:
            firsts = range(0, len(self.low), _ROWS_AT_ONCE)
            parts = [
                self[np.arange(i, min(i + _ROWS_AT_ONCE, len(self.low)))].pairs_within(other, reach_m) for i in firsts
            ]
            rows = np.concatenate([rows + first for first, (rows, _) in zip(firsts, parts, strict=True)])
            return rows, np.concatenate([columns for _, columns in parts])
        low, high, low2, high2 = self.low[:, 0], self.high[:, 0], other.low[:, 0], other.high[:, 0]
        rows, columns = _begin_within(low, high, low2, reach_m, "left")
        columns2, rows2 = _begin_within(low2, high2, low, reach_m, "right")
        rows, columns = np.concatenate([rows, rows2]), np.concatenate([columns, columns2])
        apart = np.maximum(self.low[rows, 1] - other.high[columns, 1], other.low[columns, 1] - self.high[rows, 1])
        rows, columns = rows[apart <= reach_m], columns[apart <= reach_m]
        return np.divmod(np.sort(rows * len(other.low) + columns), max(len(other.low), 1))

    def common_extent(self, other: Bounds, axis: int) -> F64:
        """Return (N, M) common length with ``other`` along one axis, metres."""
        high = np.minimum(self.high[:, None, axis], other.high[None, :, axis])
        return np.asarray(np.maximum(high - np.maximum(self.low[:, None, axis], other.low[None, :, axis]), 0.0))

    def common_volume(self, other: Bounds) -> F64:
        """Return (N, M) common volume, cubic metres."""
        x, y, z = (self.common_extent(other, axis) for axis in range(3))
        return np.asarray(x * y * z)

    def iou(self, other: Bounds) -> F64:
        """Return (N, M) IoU of the bounds."""
        common = self.common_volume(other)
        return np.asarray(common / (self.volume[:, None] + other.volume[None] - common))


_ROWS_AT_ONCE = 1024


def _begin_within(
    low: F64, high: F64, begin: F64, reach_m: float, side: Literal["left", "right"]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return indices of pairs of an interval and a ``begin`` in [low, high + reach_m]; "right": excluding low."""
    order = np.argsort(begin, kind="stable")
    first = np.searchsorted(begin[order], low, side=side)
    count = np.maximum(np.searchsorted(begin[order], high + reach_m, side="right") - first, 0)
    rows = np.repeat(np.arange(len(low)), count)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, order[np.repeat(first, count) + within]


_SORTED_UP_TO = 4096  # sorting short rows is faster than partitioning


def trimmed_bounds(values: F64, trim_percent: float) -> tuple[F64, F64]:
    """(K, A) values -> (A,), (A,) ``trim_percent`` and ``100 - trim_percent`` percentiles of each column.

    Equals numpy's linear percentiles, faster for a few hundred points. Raises ``ValueError`` for no values, or a
    percentage outside of [0, 50].
    """
    if values.ndim != 2 or len(values) == 0:
        raise ValueError(f"values must be (K, A) with K > 0, got {values.shape}")
    if not 0.0 <= trim_percent <= 50.0:
        raise ValueError(f"trim_percent must be in [0, 50], got {trim_percent}")
    last = len(values) - 1
    at = 0.01 * trim_percent * last
    below = min(int(at), last)
    above = min(below + 1, last)
    share = at - below
    rows = np.ascontiguousarray(values.T)
    if len(values) <= _SORTED_UP_TO:
        rows = np.sort(rows, axis=1)
    else:
        rows = np.partition(rows, sorted({below, above, last - above, last - below}), axis=1)
    low: F64 = rows[:, below] + share * (rows[:, above] - rows[:, below])
    high: F64 = rows[:, last - below] + share * (rows[:, last - above] - rows[:, last - below])
    return low, high


def median(values: F64) -> float:
    """Return the median of (K,) numbers, bit-equal to numpy's and faster for a few hundred. Raises ``ValueError`` for
    none."""
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"values must be (K,) with K > 0, got {values.shape}")
    ordered = np.sort(values)
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)
