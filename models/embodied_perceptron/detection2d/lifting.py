"""Lift the 2-D detections of an image to points and upright boxes in the world.

The pixels of a box (or mask) give the visible surface, from the depth image, or from the voxel map in its holes. The
foreground is what differs from the surroundings in a ring around the box: not the floor, the surface under a small
object, or the background. Lifting boxes by rays and clusters follows ARKitSceneRefer ("Text-based localization of small
objects in diverse real-world 3D indoor scenes", 2023). :func:`complete_box` extends a box by shapes of the map
(:mod:`embodied_perceptron.scene.segmentation`), because an image shows only part of a large object.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.geometry.boxes import median, trimmed_bounds
from embodied_perceptron.geometry.cell_keys import X_STEP, Y_STEP, connected_parts, keys_of
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import Intrinsics, invert_transform
from embodied_perceptron.inference.class_priors import ClassPrior, ClassPriors
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.scene.segmentation.components import rectangle_direction
from embodied_perceptron.sensors.frame import RgbdFrame
from embodied_perceptron.sparse.cpu_kernels import first_not_below

Range = tuple[float, float]  # nearest and furthest
_RANGE_M: Range = (0.2, 5.0)  # depth used


@dataclass(frozen=True, eq=False)
class VoxelIndex:
    """Search in the voxels of a map."""

    snapshot: VoxelSnapshot

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        """Return (N,) ascending keys of the voxels; row i is voxel i of the snapshot."""
        return keys_of(self.snapshot.coords.astype(np.float64) + 0.5, 1.0)

    def near(self, points_m: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(K, 3) points -> (K,) True where the voxel at the point or one of its 26 neighbours is occupied."""
        out: NDArray[np.bool_] = _any_near(self.keys, keys_of(points_m, self.snapshot.voxel_size_m))
        return out

    def depth_m(
        self, intrinsics: Intrinsics, T_world_camera: NDArray[np.float64], holes: NDArray[np.bool_], range_m: Range
    ) -> NDArray[np.float32]:
        """Return (H, W) depth of the first voxel in range behind each pixel of (H, W) ``holes``; 0 = none."""
        k = np.array([intrinsics.fx, intrinsics.fy, intrinsics.cx, intrinsics.cy])
        out = np.zeros(holes.shape, np.float32)
        count = cv2.integral(holes.astype(np.uint8))
        T = invert_transform(T_world_camera)
        _splat(self.snapshot.mean_point_m, self.snapshot.voxel_size_m / 2, T, k, *range_m, count, out)
        return out


@njit(cache=True, nogil=True)
def _splat(
    points: NDArray[np.float32],
    half_m: float,
    T: NDArray[np.float64],
    k: NDArray[np.float64],
    min_m: float,
    max_m: float,
    count: NDArray[Any],
    out: NDArray[np.float32],
) -> None:
    """Write the depth of the nearest point whose square of half side ``half_m`` covers a pixel.

    ``count``: (H + 1, W + 1) number of wanted pixels above and left of each corner; other pixels may be left out.
    """
    height, width = out.shape
    for i in range(len(points)):
        x, y, z = np.float64(points[i, 0]), np.float64(points[i, 1]), np.float64(points[i, 2])
        depth = T[2, 0] * x + T[2, 1] * y + T[2, 2] * z + T[2, 3]
        if depth < min_m or depth > max_m:
            continue
        u = (T[0, 0] * x + T[0, 1] * y + T[0, 2] * z + T[0, 3]) / depth * k[0] + k[2]
        v = (T[1, 0] * x + T[1, 1] * y + T[1, 2] * z + T[1, 3]) / depth * k[1] + k[3]
        du, dv = half_m * k[0] / depth, half_m * k[1] / depth
        top, bottom = max(int(np.ceil(v - dv)), 0), min(int(np.floor(v + dv)) + 1, height)
        left, right = max(int(np.ceil(u - du)), 0), min(int(np.floor(u + du)) + 1, width)
        if top >= bottom or left >= right:
            continue
        if count[bottom, right] - count[top, right] == count[bottom, left] - count[top, left]:
            continue
        for row in range(top, bottom):
            for column in range(left, right):
                if out[row, column] == 0.0 or depth < out[row, column]:
                    out[row, column] = depth


@njit(cache=True, nogil=True)
def _any_near(keys: NDArray[np.int64], of: NDArray[np.int64]) -> NDArray[np.bool_]:
    out = np.zeros(len(of), np.bool_)
    for i in range(len(of)):
        for dx in (0, -1, 1):
            for dy in (0, -1, 1):
                for dz in (0, -1, 1):
                    key = of[i] + dx * X_STEP + dy * Y_STEP + dz
                    at = first_not_below(keys, key, 0, len(keys))
                    out[i] |= at < len(keys) and keys[at] == key
    return out


@dataclass(frozen=True, eq=False)
class Samples:
    """Surface points seen through pixels.

    Attributes:
        points_m: (K, 3) float64 world.
        depth_m: (K,) float64 along the optical axis.
        row: (K,) int64 row of the requested pixels.
    """

    points_m: NDArray[np.float64]
    depth_m: NDArray[np.float64]
    row: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.depth_m)

    def take(self, rows: NDArray[Any]) -> Samples:
        """Select samples by index or mask."""
        return Samples(self.points_m[rows], self.depth_m[rows], self.row[rows])


_MAX_HOLES = 64  # of a 2-D box that the map fills: it counts for less than measured depth
_EDGE_STEP_PX = 2
_EDGE_M, _EDGE_SHARE = 0.02, 0.025  # larger depth steps between neighbours are edges


def see_surface(
    depth_m: NDArray[np.float32],
    intrinsics: Intrinsics,
    T_world_camera: NDArray[np.float64],
    uv: NDArray[np.int64],
    behind_m: NDArray[np.float32] | None = None,
) -> Samples:
    """Return the surface points behind (K, 2) pixels of an image.

    Pixels at depth edges are left out, as their depth is unreliable, and depth outside of 0.2 to 5 m. +Inf means no
    surface.

    Args:
        depth_m: (H, W) canonical depth.
        T_world_camera: (4, 4).
        uv: pixels inside of the image.
        behind_m: (H, W) depth of the map where none is measured (0), see :meth:`VoxelIndex.depth_m`; None = unknown.
    """
    k = np.array([intrinsics.fx, intrinsics.fy, intrinsics.cx, intrinsics.cy])
    behind_m = np.zeros((0, 0), np.float32) if behind_m is None else behind_m
    return Samples(*_surface(depth_m, behind_m, k, T_world_camera, uv))


@njit(cache=True, nogil=True)
def _surface(
    depth_m: NDArray[np.float32],
    behind_m: NDArray[np.float32],
    k: NDArray[np.float64],
    T: NDArray[np.float64],
    uv: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Compiled :func:`see_surface`: points, depth and rows; an empty ``behind_m`` means none."""
    z, holes = np.empty(len(uv)), 0
    for i in range(len(uv)):
        z[i] = depth_m[uv[i, 1], uv[i, 0]]
        holes += z[i] == 0
    step, hole = 1 + holes // _MAX_HOLES, 0
    points, row, n = np.empty((len(uv), 3)), np.empty(len(uv), np.int64), 0
    for i in range(len(uv)):
        u, v = uv[i]
        if z[i] == 0:
            hole += 1
            if behind_m.size and (hole - 1) % step == 0:
                z[i] = behind_m[v, u]
            if z[i] == 0:
                continue
        elif not (z[i] >= _RANGE_M[0] and z[i] <= _RANGE_M[1]) or _is_edge(depth_m, u, v, z[i]):
            continue
        x, y = (u - k[2]) / k[0] * z[i], (v - k[3]) / k[1] * z[i]
        for axis in range(3):
            points[n, axis] = T[axis, 0] * x + T[axis, 1] * y + T[axis, 2] * z[i] + T[axis, 3]
        z[n], row[n] = z[i], i
        n += 1
    return points[:n], z[:n], row[:n]


@njit(cache=True, nogil=True)
def _is_edge(depth_m: NDArray[np.float32], u: int, v: int, z: float) -> bool:
    """Return True for a pixel of depth ``z`` at a step of the depth."""
    height, width = depth_m.shape
    # the inverse depth of a plane is linear in the pixel coordinates, so a level surface seen flatly has no edge
    allowed = (_EDGE_M + _EDGE_SHARE * z) / (z * z)
    for du, dv in ((_EDGE_STEP_PX, 0), (0, _EDGE_STEP_PX)):
        bend = 0.0
        for sign in (-1, 1):
            row = min(max(v + sign * dv, 0), height - 1)
            column = min(max(u + sign * du, 0), width - 1)
            neighbour = np.float64(depth_m[row, column])
            if neighbour > 0:
                bend += 1.0 / neighbour - 1.0 / z
        if abs(bend) > allowed:
            return True
    return False


# reasons why a detection is not lifted
NO_SURFACE = "no_surface"  # too few pixels with depth
NO_FOREGROUND = "no_foreground"  # nothing differs from the surroundings
BAD_GEOMETRY = "implausible_geometry"  # implausible size or height for the name

_SIDE_SAMPLES = 24  # rays along the longer side of a box
_BORDER = 0.06  # share of a box's half sides left out at each border, because boxes of detectors are loose
_BORDER_PX = 3.0  # a side of a box this near to the image border may be cut
_RING = 0.3  # width of the surroundings as a share of the box's sides
_MASK_BORDER_PX = 2  # erosion of masks
_MIN_POINTS = 10  # least number of surface points
_MIN_SHARE = 0.2  # least centre-weighted share of points at a plausible height for the name
_FLOOR_M = 0.05  # points lower above the floor are floor
# tolerance around the surface under a small object: constant, and share of the depth (noise of structured light is
# about 1 cm at 2 m)
_SUPPORT_M, _SUPPORT_SHARE = 0.012, 0.004
_MIN_PLAUSIBILITY = -4.0  # least log-plausibility of the box for its name
_DIRECTION_POINTS = 200
_PROBES = 24


@dataclass(frozen=True, eq=False)
class LiftedDetection:
    """A detection with its 3-D points and box.

    Attributes:
        label: canonical name.
        score: of the detector.
        points_m: (K, 3) float64 foreground, world.
        box: (9,) upright box around them.
        cut: the 2-D box reaches the image border.
        row: index among the image's detections.
        box_px: (4,) of the detection.
        around_m: (L, 3) other points in the box that may be of it: at a possible height, without what a small object
            stands on.
        sides_known: (4,) True for sides of the 2-D box that do not reach the image border.
        fill: share of the 2-D box that the foreground spans.
    """

    label: str
    score: float
    points_m: NDArray[np.float64]
    box: NDArray[np.float64]
    cut: bool
    row: int
    box_px: NDArray[np.float64]
    around_m: NDArray[np.float64]
    sides_known: NDArray[np.bool_]
    fill: float = 1.0

    @cached_property
    def probes_m(self) -> NDArray[np.float64]:
        """Return (P, 3) about 24 points of the surface."""
        return np.ascontiguousarray(self.points_m[:: 1 + len(self.points_m) // _PROBES])


def lift_view(
    found: Detections2d,
    frame: RgbdFrame,
    T_world_camera: NDArray[np.float64],
    floor_z_m: float,
    priors: ClassPriors,
    index: VoxelIndex | None = None,
    yaw_rad: float = 0.0,
) -> tuple[list[LiftedDetection], Counter[str]]:
    """Lift all detections of an image.

    Args:
        found: of ``frame``.
        frame: with depth.
        T_world_camera: (4, 4) pose of the optical frame; the world's z is up.
        floor_z_m: height of the floor.
        priors: size priors of names.
        index: of the map, for pixels without depth.
        yaw_rad: direction of the walls.

    Returns the lifted detections in order, and the number of others by reason.

    Raises ``ValueError`` when the detections are of another camera or stamp.
    """
    if (found.camera, found.stamp_ns) != (frame.camera, frame.stamp_ns):
        raise ValueError(
            f"detections of {found.camera!r} at {found.stamp_ns} do not belong to the image of "
            f"{frame.camera!r} at {frame.stamp_ns}"
        )
    lifted: list[LiftedDetection] = []
    drops: Counter[str] = Counter()
    behind_m = None
    if index is not None and len(found):
        behind_m = index.depth_m(frame.intrinsics, T_world_camera, frame.depth_m == 0, _RANGE_M)
    for row in range(len(found)):
        label = priors.canonical(found.labels[row])
        prior = priors.get(label)
        mask = None if found.masks is None else found.masks[row]
        uv, inside, offset = sample_pixels(found.boxes_px[row], (frame.intrinsics.width, frame.intrinsics.height), mask)
        samples = see_surface(frame.depth_m, frame.intrinsics, T_world_camera, uv, behind_m)
        within = inside[samples.row]
        if np.count_nonzero(within) < _MIN_POINTS:
            drops[NO_SURFACE] += 1
            continue
        longer_px = float((found.boxes_px[row, 2:] - found.boxes_px[row, :2]).max())
        angle = longer_px / (0.5 * (frame.intrinsics.fx + frame.intrinsics.fy))
        high_px = np.array([frame.intrinsics.width, frame.intrinsics.height]) - 0.5 - found.boxes_px[row, 2:]
        known = np.concatenate([found.boxes_px[row, :2] >= _BORDER_PX - 0.5, high_px >= _BORDER_PX])
        cut = not known.all()
        if prior is not None and not _possible_side(median(samples.depth_m[within]) * angle, prior, cut):
            drops[BAD_GEOMETRY] += 1
            continue
        inner, ring = samples.take(within), samples.take(~within)
        front, around_rows = foreground(inner, offset[samples.row[within]], ring, angle, floor_z_m, prior)
        points, around = inner.points_m[front], inner.points_m[around_rows]
        if len(points) < _MIN_POINTS:
            drops[NO_FOREGROUND] += 1
            continue
        box = box_along(points, yaw_rad)  # the direction is fitted after views are joined
        if priors.log_plausibility(label, box, floor_z_m, whole=False) < _MIN_PLAUSIBILITY:
            drops[BAD_GEOMETRY] += 1
            continue
        score, box_px = float(found.scores[row]), found.boxes_px[row]
        fill = float(np.ptp(offset[inner.row[front]], axis=0).prod()) / (2 * (1 - _BORDER)) ** 2
        lifted.append(LiftedDetection(label, score, points, box, cut, row, box_px, around, known, fill))
    return lifted, drops


def _possible_side(side_m: float, prior: ClassPrior, cut: bool) -> bool:
    """True when the longer side of a 2-D box, in metres at its depth, is possible for the name.

    Generous, because boxes are loose, their depth may be of the background, and objects may be occluded.
    """
    largest_m = float(np.hypot(max(prior.long_m[1], prior.height_m[1]), prior.short_m[1]))
    least_m = max(prior.long_m[0], prior.height_m[0])
    return side_m <= 1.5 * largest_m + 0.1 and (cut or side_m >= 0.3 * least_m - 0.02)


def sample_pixels(
    box_px: NDArray[np.float64], picture: tuple[int, int], mask: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """Sample pixels of a box and of the ring around it.

    Returns (K, 2) distinct pixels, (K,) True inside of the box without its border or of the eroded mask, and (K, 2)
    their offset from the centre in half sides of the box.
    """
    picture_px, none = np.array(picture), np.zeros((0, 0), dtype=bool)
    if mask is None:
        return _sample(box_px, picture_px, none, none)
    for border in range(_MASK_BORDER_PX, -1, -1):  # thin objects have no pixel far from their outline
        kernel = np.ones((2 * border + 1, 2 * border + 1), np.uint8)
        result = _sample(box_px, picture_px, mask, cv2.erode(mask.astype(np.uint8), kernel) > 0)
        if np.count_nonzero(result[1]) >= _MIN_POINTS:
            break
    return result


@njit(cache=True, nogil=True)
def _sample(
    box_px: NDArray[np.float64],
    picture: NDArray[np.int64],
    mask: NDArray[np.bool_],
    shrunk: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """Compiled :func:`sample_pixels`; an empty ``mask`` means none."""
    middle, half = (box_px[:2] + box_px[2:]) / 2, (box_px[2:] - box_px[:2]) / 2
    step = max(1.0, 2 * max(half[0], half[1]) / _SIDE_SAMPLES)
    reach = np.floor(half * (1 + 2 * _RING) / step).astype(np.int64)  # steps to either side
    axes = np.empty((2, 2 * reach.max() + 1), np.int64)
    count = np.zeros(2, np.int64)
    for axis in range(2):
        for k in range(-reach[axis], reach[axis] + 1):
            pixel = np.int64(np.floor(middle[axis] + k * step + 0.5))
            known = count[axis] > 0 and axes[axis, count[axis] - 1] == pixel
            if 0 <= pixel < picture[axis] and not known:
                axes[axis, count[axis]] = pixel
                count[axis] += 1
    uv = np.empty((count[0] * count[1], 2), np.int64)
    inside = np.empty(len(uv), np.bool_)
    offset = np.empty((len(uv), 2))
    n = 0
    for row in range(count[1]):
        for column in range(count[0]):
            u, v = axes[0, column], axes[1, row]
            x, y = (u - middle[0]) / half[0], (v - middle[1]) / half[1]
            within = abs(x) <= 1 - _BORDER and abs(y) <= 1 - _BORDER
            outside = abs(x) > 1 or abs(y) > 1
            if mask.size:
                within = within and shrunk[v, u]
                outside = outside or not mask[v, u]
            if within or outside:
                uv[n, 0], uv[n, 1] = u, v
                offset[n, 0], offset[n, 1] = x, y
                inside[n] = within
                n += 1
    return uv[:n], inside[:n], offset[:n]


def foreground(
    inner: Samples,
    offset: NDArray[np.float64],
    ring: Samples,
    angle: float,
    floor_z_m: float,
    prior: ClassPrior | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of the points of the detected object, and of other points that may be of it.

    These are at a plausible height, and not of the surface that a small object stands on.

    Args:
        inner: surface within the box.
        offset: (M, 2) of its pixels from the centre, in half sides.
        ring: surface around the box.
        angle: longer side of the box over the focal length; times depth it is a length in metres.
        floor_z_m: height of the floor.
        prior: size prior of the name.
    """
    keep, beside = (_possible(samples.points_m, floor_z_m, prior) for samples in (inner, ring))
    nothing = np.zeros(0, np.int64)
    possible = np.flatnonzero(keep)
    if len(possible) < _MIN_POINTS:
        return nothing, possible
    weight = np.exp(-0.5 * (offset**2).sum(axis=1) / 0.45**2)  # the centre of a box most often shows the object
    if weight[keep].sum() < _MIN_SHARE * weight.sum():
        return nothing, possible
    depth_m = _weighted_median(inner.depth_m[keep], weight[keep])
    small = prior.small if prior is not None else angle * depth_m < 0.6
    if small:
        keep, beside = _without_support(inner, ring, keep, depth_m, prior)
    rows = np.flatnonzero(keep)
    if len(rows) < _MIN_POINTS:
        return nothing, possible
    spacing_m = angle * median(inner.depth_m[rows]) / _SIDE_SAMPLES
    cell_m = max(0.025 if small else 0.06, 2.5 * spacing_m)
    points = np.concatenate([inner.points_m[rows], ring.points_m[beside]])  # what is beside a box joins its parts
    parts = connected_parts(keys_of(points, cell_m))[: len(rows)]
    rows = rows[parts == np.argmax(np.bincount(parts, weights=weight[rows]))]
    if prior is not None:  # points further from the centre than the object's length are of another object
        points = inner.points_m[rows]
        center = np.array([median(column) for column in points.T])
        reach = max(prior.long_m[1], prior.height_m[1])
        rows = rows[np.linalg.norm(points - center, axis=1) <= reach]
    others = keep.copy()
    others[rows] = False
    return rows, np.flatnonzero(others)


def _possible(points_m: NDArray[np.float64], floor_z_m: float, prior: ClassPrior | None) -> NDArray[np.bool_]:
    """Return (K,) True for points at a possible height for the name."""
    height_m = points_m[:, 2] - floor_z_m
    keep = height_m > _FLOOR_M
    if prior is not None:
        if prior.top_m[1] <= 3 * _FLOOR_M:  # carpets and mats are floor
            keep = height_m > -_FLOOR_M
        keep &= (height_m > prior.bottom_m[0] - 0.1) & (height_m < prior.top_m[1] + 0.1)
    return np.asarray(keep)


def _weighted_median(values: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    return float(values[order[np.searchsorted(total, 0.5 * total[-1])]])


def _without_support(
    inner: Samples,
    ring: Samples,
    keep: NDArray[np.bool_],
    depth_m: float,
    prior: ClassPrior | None,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (M,) the points above the level surface around a small object, on it for a flat object; and (R,) those of
    the ring above it."""
    near = np.abs(ring.depth_m - depth_m) < 0.35
    level_m = _support_height(ring.points_m[near, 2])
    close = keep & (np.abs(inner.depth_m - depth_m) < 0.35)
    if level_m is None:
        return close, near
    tolerance_m = _SUPPORT_M + _SUPPORT_SHARE * depth_m
    above = close & (inner.points_m[:, 2] > level_m + tolerance_m)
    beside = near & (ring.points_m[:, 2] > level_m + tolerance_m)
    on_it = close & (np.abs(inner.points_m[:, 2] - level_m) <= tolerance_m)
    if prior is not None and prior.flat and np.count_nonzero(above) < 0.5 * np.count_nonzero(on_it):
        return on_it | (above & (inner.points_m[:, 2] < level_m + 0.08)), beside
    if np.count_nonzero(above) >= max(_MIN_POINTS, 0.08 * np.count_nonzero(close)):
        return np.asarray(above), beside
    return (on_it if prior is None else np.zeros(len(keep), dtype=bool)), beside


def _support_height(z_m: NDArray[np.float64], bin_m: float = 0.015, share: float = 0.25) -> float | None:
    """Return the height of the level surface that most of the surroundings lie on; None without one."""
    if len(z_m) < 12:
        return None
    low = float(z_m.min())
    counts = np.bincount(((z_m - low) / bin_m).astype(np.int64))
    pair = counts + np.append(counts[1:], 0)  # a surface may straddle two bins
    best = int(np.argmax(pair))
    if pair[best] < share * len(z_m):
        return None
    return median(z_m[(z_m >= low + best * bin_m) & (z_m < low + (best + 2) * bin_m)])


def connected(points_m: NDArray[np.float64], weight: NDArray[np.float64], cell_m: float) -> NDArray[np.bool_]:
    """Return (K,) a mask of the connected part of most weight; on equal weight the first of :func:`connected_parts`."""
    parts = connected_parts(keys_of(points_m, cell_m))
    return np.asarray(parts == np.argmax(np.bincount(parts, weights=weight)))


def box_around(points_m: NDArray[np.float64], yaw_rad: float, trim_percent: float = 2.0) -> NDArray[np.float64]:
    """Fit a (9,) upright box to (K, 3) points, along the walls unless another yaw fits much better.

    ``trim_percent`` of the points at each end of each axis are treated as noise.
    """
    few = points_m[:: 1 + len(points_m) // _DIRECTION_POINTS]  # enough for the direction; extents use all points
    return box_along(points_m, rectangle_direction(few[:, :2], yaw_rad), trim_percent)


def box_along(points_m: NDArray[np.float64], yaw_rad: float, trim_percent: float = 2.0) -> NDArray[np.float64]:
    """Fit a (9,) upright box of a given yaw to (K, 3) points; the longer horizontal side first."""
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    R = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    low, high = trimmed_bounds(points_m @ R, trim_percent)
    center, size = R @ ((low + high) / 2), np.maximum(high - low, 0.01)
    if size[1] > size[0]:
        size, yaw_rad = size[[1, 0, 2]], yaw_rad + np.pi / 2
    return np.array([*center, *size, (yaw_rad + np.pi / 2) % np.pi - np.pi / 2, 0.0, 0.0])
