"""One picture's detections -> points and upright boxes in the world.

Rays through the pixels of a box (or mask) find the surface that the camera sees; of it, what belongs to the
detection is what stands out of its surroundings: neither the floor, nor the surface that a small thing lies on, nor
what is behind. A ring of pixels around the box shows those surroundings. The idea of lifting boxes by rays and clusters
is ARKitSceneRefer's ("Text-based localization of small objects in diverse real-world 3D indoor scenes", 2023).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.rays import Samples, VoxelIndex, keys_of, see_surface
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import distinct_keys
from embodied_perceptron.geometry.trimming import median, trimmed_bounds
from embodied_perceptron.inference.class_priors import ClassPrior, ClassPriors
from embodied_perceptron.scene.segmentation.components import rectangle_direction
from embodied_perceptron.sensors.frame import RgbdFrame

# Reasons why a detection is not lifted.
NO_SURFACE = "no_surface"  # too few pixels with depth
NO_FOREGROUND = "no_foreground"  # nothing stands out of the surroundings
BAD_GEOMETRY = "implausible_geometry"  # no such thing has this size or stands at this height

_DIRECTION_POINTS = 200


SMALL_CELL_M, LARGE_CELL_M = 0.02, 0.06  # cells in which views agree, of small things and of large ones


@dataclass(frozen=True)
class LiftRules:
    """How a detection is lifted.

    Attributes:
        side_samples: rays along the longer side of a box.
        border: share of a box's half sides that is left out on either side: detectors' boxes are loose.
        ring: the surroundings reach so far beyond a box, as a share of its sides.
        mask_border_px: pixels that masks are shrunk by.
        range_m: nearest and furthest depth used.
        min_points: fewer are no surface.
        min_share: of what is in a box, its middle counting most, that can be such a thing at its height at all.
        floor_m: what is lower above the floor is floor.
        support_m, support_share: thickness of the surface beneath a small thing, plus so much of the depth (noise of
            structured light within a picture is about a centimetre at 2 m).
        min_plausibility: logarithm; what fits its name less is dropped.
    """

    side_samples: int = 24
    border: float = 0.06
    ring: float = 0.3
    mask_border_px: int = 2
    range_m: tuple[float, float] = (0.2, 5.0)
    min_points: int = 10
    min_share: float = 0.2
    floor_m: float = 0.05
    support_m: float = 0.012
    support_share: float = 0.004
    min_plausibility: float = -4.0


@dataclass(frozen=True, eq=False)
class LiftedDetection:
    """One detection in the world.

    Attributes:
        label: the map's name for it.
        score: the detector's.
        points_m: (K, 3) float64 foreground, world.
        box: (9,) upright box around them.
        cut: the picture ends before the thing does.
        size_px: shorter side of the 2-D box.
        row: of the picture's detections.
        plausibility: logarithm of how well the box fits the name.
    """

    label: str
    score: float
    points_m: NDArray[np.float64]
    box: NDArray[np.float64]
    cut: bool
    size_px: float
    row: int
    plausibility: float

    @cached_property
    def cells_small(self) -> NDArray[np.int64]:
        """(K,) key of each point's cell of 0.02 m."""
        return cell_keys(self.points_m, SMALL_CELL_M)

    @cached_property
    def cells_large(self) -> NDArray[np.int64]:
        """(K,) key of each point's cell of 0.06 m."""
        return cell_keys(self.points_m, LARGE_CELL_M)

    @cached_property
    def distinct_cells_small(self) -> NDArray[np.int64]:
        """(C,) each of them once, ascending."""
        return distinct_keys(self.cells_small)

    @cached_property
    def distinct_cells_large(self) -> NDArray[np.int64]:
        """(C,) each of them once, ascending."""
        return distinct_keys(self.cells_large)


def cell_keys(points_m: NDArray[np.float64], size_m: float) -> NDArray[np.int64]:
    """(K, 3) points -> (K,) keys of their cells on the lattice of the world's origin."""
    keys: NDArray[np.int64] = keys_of(points_m, size_m)
    return keys


def lift_view(
    found: Detections2d,
    frame: RgbdFrame,
    T_world_camera: NDArray[np.float64],
    floor_z_m: float,
    priors: ClassPriors,
    index: VoxelIndex | None = None,
    yaw_rad: float = 0.0,
    rules: LiftRules | None = None,
) -> tuple[list[LiftedDetection], Counter[str]]:
    """Lift all detections of one picture.

    Args:
        found: of ``frame``.
        frame: the picture with its depth.
        T_world_camera: (4, 4) pose of its optical frame; the world's z is up.
        floor_z_m: height of the floor.
        priors: of the names.
        index: of the map, for pixels without depth.
        yaw_rad: direction of the walls.
        rules: see :class:`LiftRules`.

    Returns what was lifted, in order, and how many were not, by reason.

    Raises ``ValueError`` when the detections are of another camera or stamp.
    """
    if (found.camera, found.stamp_ns) != (frame.camera, frame.stamp_ns):
        raise ValueError(
            f"detections of {found.camera!r} at {found.stamp_ns} do not belong to the picture of "
            f"{frame.camera!r} at {frame.stamp_ns}"
        )
    rules = rules if rules is not None else LiftRules()
    lifted: list[LiftedDetection] = []
    drops: Counter[str] = Counter()
    for row in range(len(found)):
        label = priors.canonical(found.labels[row])
        prior = priors.get(label)
        mask = None if found.masks is None else found.masks[row]
        uv, inside, offset = sample_pixels(
            found.boxes_px[row], (frame.intrinsics.width, frame.intrinsics.height), mask, rules
        )
        samples = see_surface(frame.depth_m, frame.intrinsics, T_world_camera, uv, index, rules.range_m)
        within = inside[samples.row]
        if np.count_nonzero(within) < rules.min_points:
            drops[NO_SURFACE] += 1
            continue
        sides_px = found.boxes_px[row, 2:] - found.boxes_px[row, :2]
        focal = 0.5 * (frame.intrinsics.fx + frame.intrinsics.fy)
        cut = touches_border(found.boxes_px[row], frame.intrinsics.width, frame.intrinsics.height)
        if prior is not None:
            side_m = median(samples.depth_m[within]) * float(sides_px.max()) / focal
            if not _possible_side(side_m, prior, cut):
                drops[BAD_GEOMETRY] += 1
                continue
        points = foreground(
            samples.take(within),
            offset[samples.row[within]],
            samples.take(~within),
            float(sides_px.max()) / focal,
            floor_z_m,
            prior,
            rules,
        )
        if len(points) < rules.min_points:
            drops[NO_FOREGROUND] += 1
            continue
        box = box_along(points, yaw_rad)  # views are joined before a direction is sought
        plausibility = priors.log_plausibility(label, box, floor_z_m, whole=False)
        if plausibility < rules.min_plausibility:
            drops[BAD_GEOMETRY] += 1
            continue
        score = float(found.scores[row])
        lifted.append(LiftedDetection(label, score, points, box, cut, float(sides_px.min()), row, plausibility))
    return lifted, drops


def _possible_side(side_m: float, prior: ClassPrior, cut: bool) -> bool:
    """Whether the longer side of a picture's box, at the depth of what is in it, is one that such a thing can show.

    Generous: boxes are loose, their depth is that of anything in them, and most of a thing may be hidden.
    """
    largest_m = float(np.hypot(max(prior.long_m[1], prior.height_m[1]), prior.short_m[1]))
    least_m = max(prior.long_m[0], prior.height_m[0])
    return side_m <= 1.5 * largest_m + 0.1 and (cut or side_m >= 0.3 * least_m - 0.02)


def touches_border(box_px: NDArray[np.float64], width: int, height: int, margin_px: float = 3.0) -> bool:
    """Whether a (4,) box reaches the picture's border."""
    low, high = box_px[:2].min(), np.array([width, height]) - 0.5 - box_px[2:]
    return bool(low < margin_px - 0.5 or high.min() < margin_px)


def sample_pixels(
    box_px: NDArray[np.float64], picture: tuple[int, int], mask: NDArray[np.bool_] | None, rules: LiftRules
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """Pixels of a box and of the ring around it.

    Returns (K, 2) distinct pixels, (K,) which of them are inside (of the box without its border, or of the shrunk
    mask), and (K, 2) their offset from the middle in half sides of the box.
    """
    shrunk = np.zeros((0, 0), dtype=bool)
    if mask is not None:
        size = 2 * rules.mask_border_px + 1
        shrunk = cv2.erode(mask.astype(np.uint8), np.ones((size, size), np.uint8)) > 0
    result: tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]] = _sample(
        box_px,
        np.array(picture),
        np.zeros((0, 0), dtype=bool) if mask is None else mask,
        shrunk,
        rules.side_samples,
        rules.border,
        rules.ring,
    )
    return result


@njit(cache=True, nogil=True)
def _sample(
    box_px: NDArray[np.float64],
    picture: NDArray[np.int64],
    mask: NDArray[np.bool_],
    shrunk: NDArray[np.bool_],
    side_samples: int,
    border: float,
    ring: float,
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
    """As :func:`sample_pixels`; an empty ``mask`` is none."""
    middle, half = (box_px[:2] + box_px[2:]) / 2, (box_px[2:] - box_px[:2]) / 2
    step = max(1.0, 2 * max(half[0], half[1]) / side_samples)
    reach = np.floor(half * (1 + 2 * ring) / step).astype(np.int64)  # steps to either side
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
            within = abs(x) <= 1 - border and abs(y) <= 1 - border
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
    rules: LiftRules,
) -> NDArray[np.float64]:
    """(K, 3) points of the thing that a detection means.

    Args:
        inner: surface within the box.
        offset: (M, 2) of its pixels from the middle, in half sides.
        ring: surface around the box.
        angle: longer side of the box in focal lengths: times the depth it is the side's length in metres.
        floor_z_m: height of the floor.
        prior: what is known of things of its name.
        rules: see :class:`LiftRules`.
    """
    height_m = inner.points_m[:, 2] - floor_z_m
    keep = height_m > rules.floor_m
    if prior is not None:
        if prior.top_m[1] <= 3 * rules.floor_m:  # carpets and mats are floor
            keep = height_m > -rules.floor_m
        keep &= (height_m > prior.bottom_m[0] - 0.1) & (height_m < prior.top_m[1] + 0.1)
    if np.count_nonzero(keep) < rules.min_points:
        return np.zeros((0, 3))
    weight = np.exp(-0.5 * (offset**2).sum(axis=1) / 0.45**2)  # the middle of a box is most often the thing
    if weight[keep].sum() < rules.min_share * weight.sum():
        return np.zeros((0, 3))
    depth_m = _weighted_median(inner.depth_m[keep], weight[keep])
    small = prior.small if prior is not None else angle * depth_m < 0.6
    if small:
        keep = _without_support(inner, ring, keep, depth_m, prior, rules)
    if np.count_nonzero(keep) < rules.min_points:
        return np.zeros((0, 3))
    points, weight, depths = inner.points_m[keep], weight[keep], inner.depth_m[keep]
    spacing_m = angle * median(depths) / rules.side_samples
    cell_m = max(0.025 if small else 0.06, 2.5 * spacing_m)
    part = _largest_cluster(points, weight, cell_m)
    points = points[part]
    if prior is not None:  # what is further from the middle than the thing can be long is something else
        center = np.array([median(column) for column in points.T])
        reach = max(prior.long_m[1], prior.height_m[1])
        points = points[np.linalg.norm(points - center, axis=1) <= reach]
    return points


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
    rules: LiftRules,
) -> NDArray[np.bool_]:
    """(M,) what stands on the level surface around a small thing; what is as flat as that is the surface's own part."""
    near = np.abs(ring.depth_m - depth_m) < 0.35
    level_m = _support_height(ring.points_m[near, 2])
    if level_m is None:
        return keep & (np.abs(inner.depth_m - depth_m) < 0.35)
    tolerance_m = rules.support_m + rules.support_share * depth_m
    close = keep & (np.abs(inner.depth_m - depth_m) < 0.35)
    above = close & (inner.points_m[:, 2] > level_m + tolerance_m)
    on_it = close & (np.abs(inner.points_m[:, 2] - level_m) <= tolerance_m)
    if prior is not None and prior.flat and np.count_nonzero(above) < 0.5 * np.count_nonzero(on_it):
        return on_it | (above & (inner.points_m[:, 2] < level_m + 0.08))
    if np.count_nonzero(above) >= max(rules.min_points, 0.08 * np.count_nonzero(close)):
        return np.asarray(above)
    return on_it if prior is None else np.zeros(len(keep), dtype=bool)


def _support_height(z_m: NDArray[np.float64], bin_m: float = 0.015, share: float = 0.25) -> float | None:
    """Height of the level surface that most of the surroundings lie on; None where there is none."""
    if len(z_m) < 12:
        return None
    low = float(z_m.min())
    counts = np.bincount(((z_m - low) / bin_m).astype(np.int64))
    pair = counts + np.append(counts[1:], 0)  # a surface between two bins
    best = int(np.argmax(pair))
    if pair[best] < share * len(z_m):
        return None
    return median(z_m[(z_m >= low + best * bin_m) & (z_m < low + (best + 2) * bin_m)])


def _largest_cluster(points_m: NDArray[np.float64], weight: NDArray[np.float64], cell_m: float) -> NDArray[np.bool_]:
    """(K,) the connected part with the most weight, connected when cells of ``cell_m`` touch."""
    result: NDArray[np.bool_] = _cluster(points_m, weight, cell_m)
    return result


@njit(cache=True, nogil=True)
def _cluster(points_m: NDArray[np.float64], weight: NDArray[np.float64], cell_m: float) -> NDArray[np.bool_]:
    """As :func:`_largest_cluster`; of parts of one weight, the one with the lowest x (then y, z) of a cell."""
    cell = np.empty((len(points_m), 3), np.int64)
    for i in range(len(points_m)):
        for axis in range(3):
            cell[i, axis] = np.int64(np.floor(points_m[i, axis] / cell_m))
    shape = np.zeros(3, np.int64)
    for axis in range(3):
        low = cell[:, axis].min()
        cell[:, axis] -= low
        shape[axis] = cell[:, axis].max() + 1
    part = np.full((shape[0] + 2, shape[1] + 2, shape[2] + 2), -1, np.int64)  # -1 empty, 0 not yet reached
    for i in range(len(cell)):
        part[cell[i, 0] + 1, cell[i, 1] + 1, cell[i, 2] + 1] = 0
    order = np.argsort((cell[:, 0] * shape[1] + cell[:, 1]) * shape[2] + cell[:, 2], kind="mergesort")
    stack = np.empty((len(cell), 3), np.int64)
    parts = 0
    for i in order:
        x, y, z = cell[i, 0] + 1, cell[i, 1] + 1, cell[i, 2] + 1
        if part[x, y, z] != 0:
            continue
        parts += 1
        part[x, y, z] = parts
        stack[0, 0], stack[0, 1], stack[0, 2] = x, y, z
        waiting = 1
        while waiting:
            waiting -= 1
            x, y, z = stack[waiting]
            for a in range(x - 1, x + 2):
                for b in range(y - 1, y + 2):
                    for c in range(z - 1, z + 2):
                        if part[a, b, c] == 0:
                            part[a, b, c] = parts
                            stack[waiting, 0], stack[waiting, 1], stack[waiting, 2] = a, b, c
                            waiting += 1
    total = np.zeros(parts + 1)
    for i in range(len(cell)):
        total[part[cell[i, 0] + 1, cell[i, 1] + 1, cell[i, 2] + 1]] += weight[i]
    best = np.argmax(total)
    out = np.empty(len(cell), np.bool_)
    for i in range(len(cell)):
        out[i] = part[cell[i, 0] + 1, cell[i, 1] + 1, cell[i, 2] + 1] == best
    return out


def box_around(points_m: NDArray[np.float64], yaw_rad: float, trim_percent: float = 2.0) -> NDArray[np.float64]:
    """(9,) upright box around (K, 3) points, along the walls unless another turn fits much better.

    ``trim_percent`` of the points on either side of each axis may be noise.
    """
    few = points_m[:: 1 + len(points_m) // _DIRECTION_POINTS]  # enough for a direction; extents use every point
    return box_along(points_m, rectangle_direction(few[:, :2], yaw_rad), trim_percent)


def box_along(points_m: NDArray[np.float64], yaw_rad: float, trim_percent: float = 2.0) -> NDArray[np.float64]:
    """(9,) upright box around (K, 3) points at a given turn; its longer ground side first."""
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    R = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    low, high = trimmed_bounds(points_m @ R, trim_percent)
    center, size = R @ ((low + high) / 2), np.maximum(high - low, 0.01)
    if size[1] > size[0]:
        size, yaw_rad = size[[1, 0, 2]], yaw_rad + np.pi / 2
    return np.array([*center, *size, (yaw_rad + np.pi / 2) % np.pi - np.pi / 2, 0.0, 0.0])
