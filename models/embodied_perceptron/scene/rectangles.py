"""Oriented rectangles around points of the ground plane, and the parts of shapes that no rectangle fits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TRIM_PERCENT = 0.5  # this much of the points on either side may be noise
_MAX_POINTS = 2_000  # enough to find a direction; extents use every point
_SMALL_TURNS = np.radians(np.arange(-12.0, 12.1, 3.0))
_ALIGN_GAIN = 0.12  # an own direction must beat the walls' by this much of the area


def rectangle_direction(xy_m: NDArray[np.float64], wall_yaw_rad: float) -> float:
    """Yaw in [0, pi/2) of the smallest rectangle around (K, 2) points.

    The walls' direction is preferred while the rectangle along it is hardly larger: furniture follows walls, and boxes
    that keep still keep their ids.
    """
    if len(xy_m) < 3:
        return wall_yaw_rad % (np.pi / 2)
    sample = xy_m[:: max(1, len(xy_m) // _MAX_POINTS)]
    coarse = np.radians(np.arange(0.0, 90.0, 3.0))
    best = coarse[int(np.argmin(_areas(sample, coarse)))]
    fine = best + np.radians(np.arange(-3.0, 3.01, 0.5))
    areas = _areas(sample, fine)
    own, own_area = fine[int(np.argmin(areas))], float(areas.min())
    aligned_area = float(_areas(sample, np.array([wall_yaw_rad]))[0])
    yaw = wall_yaw_rad if aligned_area * (1.0 - _ALIGN_GAIN) <= own_area else own
    return float(yaw % (np.pi / 2))


def _areas(xy_m: NDArray[np.float64], yaw_rad: NDArray[np.float64]) -> NDArray[np.float64]:
    """(A,) areas of the trimmed rectangles at (A,) angles."""
    along = xy_m @ np.stack([np.cos(yaw_rad), np.sin(yaw_rad)])  # (K, A)
    across = xy_m @ np.stack([-np.sin(yaw_rad), np.cos(yaw_rad)])
    a_low, a_high = np.percentile(along, [_TRIM_PERCENT, 100 - _TRIM_PERCENT], axis=0)
    c_low, c_high = np.percentile(across, [_TRIM_PERCENT, 100 - _TRIM_PERCENT], axis=0)
    # a thin side would make any angle along the points perfect: noise has some width
    area: NDArray[np.float64] = (a_high - a_low + 0.02) * (c_high - c_low + 0.02)
    return area


def upright_box(points_m: NDArray[np.float64], yaw_rad: float, low_z_m: float, high_z_m: float) -> NDArray[np.float64]:
    """(9,) box between two heights around (K, 3) points seen from above at ``yaw_rad``, its longer ground side first.

    Extents leave ``0.5 %`` of the points outside on each side. ``alpha`` lies in [-pi/2, pi/2).
    """
    R = np.array([[np.cos(yaw_rad), -np.sin(yaw_rad)], [np.sin(yaw_rad), np.cos(yaw_rad)]])
    local = points_m[:, :2] @ R
    low, high = np.percentile(local, [_TRIM_PERCENT, 100 - _TRIM_PERCENT], axis=0)
    center = R @ ((low + high) / 2)
    size = high - low
    if size[1] > size[0]:
        size, yaw_rad = size[::-1], yaw_rad + np.pi / 2
    yaw_rad = (yaw_rad + np.pi / 2) % np.pi - np.pi / 2
    return np.array([*center, (low_z_m + high_z_m) / 2, *size, high_z_m - low_z_m, yaw_rad, 0.0, 0.0])


def rectangular_parts(
    xy: NDArray[np.float64],
    min_side: float,
    max_side: float = float("inf"),
    min_gain: float = 0.22,
    rounds: int = 4,
) -> NDArray[np.int64]:
    """Split (K, 2) positions on a lattice of spacing 1 into parts that rectangles fit well: an L becomes two bars.

    Of all straight cuts along the axes, the one that saves most area of the rectangles around both sides is made while
    it saves at least ``min_gain`` of it and leaves both at least ``min_side`` wide; parts longer than ``max_side`` are
    cut wherever it saves anything. Rectangles may be turned a little, so that a bar that is not quite along the axes
    stays one. Returns the (K,) number of the part of each position.
    """
    part = np.zeros(len(xy), dtype=np.int64)
    if rounds == 0 or len(xy) < 2:
        return part
    spread = np.ptp(xy, axis=0) + 1
    whole = float(_areas_up_to(xy, np.array([len(xy)]))[0])
    allowed = (1.0 - (min_gain if spread.max() <= max_side else 0.03)) * whole
    best_area, second = allowed, None
    for axis in (0, 1):
        order = np.argsort(xy[:, axis], kind="stable")
        along = xy[order, axis]
        cuts = np.arange(along[0] + min_side, along[-1] + 1.5 - min_side)  # the first position behind the cut
        if len(cuts) == 0:
            continue
        count = np.searchsorted(along, cuts - 0.5)
        count = count[(count > 0) & (count < len(xy))]
        if len(count) == 0:
            continue
        area = _areas_up_to(xy[order], count) + _areas_up_to(xy[order[::-1]], len(xy) - count)
        i = int(np.argmin(area))
        if area[i] < best_area:
            best_area, second = float(area[i]), np.sort(order[count[i] :])
    if second is None:
        return part
    first = np.setdiff1d(np.arange(len(xy)), second)
    for side in (first, second):
        sub = rectangular_parts(xy[side], min_side, max_side, min_gain, rounds - 1)
        part[side] = sub + (part.max() + 1 if side is second else 0)
    return part


def _areas_up_to(xy: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each n in ``count``: the area of the smallest slightly turned rectangle around the first n positions."""
    best = np.full(len(count), np.inf)
    for angle in _SMALL_TURNS:
        c, s = np.cos(angle), np.sin(angle)
        u, v = xy @ np.array([c, s]), xy @ np.array([-s, c])
        sides = [np.maximum.accumulate(w)[count - 1] - np.minimum.accumulate(w)[count - 1] + 1 for w in (u, v)]
        best = np.minimum(best, sides[0] * sides[1])
    return best
