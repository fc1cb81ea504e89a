"""Extents of objects that images show in part: from 2-D boxes of all views, shapes of the map, and class sizes.

The surface of an object bounds its box from inside, and is never given up. Where depth is missing (screens, glass), the
box grows until its projection fills the object's 2-D boxes. What no view shows is completed: by a shape of the map
(:mod:`embodied_perceptron.scene.segmentation`), down to the floor, or to the usual size of the class. A completion is
refused where a view sees surface in it outside of the object's 2-D box: a sink is no column that stands on the floor,
and a chair at a table is not the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.lifting import LiftedDetection
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.suppression import SHAPE_SHARE
from embodied_perceptron.inference.class_priors import ClassPrior, ClassPriors

F64 = NDArray[np.float64]

_SMALL_M = 0.5
_INSIDE_M = 0.04  # tolerance of a point inside of a shape
_MIN_PLAUSIBILITY = -3.0
_MAX_HIDDEN_M = 0.9  # largest gap above the floor that occlusion explains
_AGREE = 0.6  # least share of the surface in a completion that the views have in the object's 2-D boxes
_SEEN = 12.0  # fewer sightings of that surface are no evidence
_HELD = 0.75  # least share of the surface that a shape holds: no shape overrides voxels
_ROUNDS = 4
_ACROSS = 0.6  # largest cosine of a view's direction and a side that it measures
_SLACK_PX, _SLACK = 3.0, 0.05  # of a 2-D box's side that a projection need not fill: constant, and share of the side
_LONGER = 1.15  # a box grows to the largest size of its class times this

# (9,) box -> (K, 3) points of the map in it; (K, 3) points -> (K,) views that see it, and have it in the 2-D box
Views = tuple[Callable[[F64], F64], Callable[[F64], tuple[F64, F64]]]


def complete_box(
    box: F64,
    points_m: F64,
    label: str,
    shapes: F64,
    floor_z_m: float,
    priors: ClassPriors,
    views: Views | None = None,
    directions: F64 | None = None,
) -> F64:
    """Return the completed (9,) box of an object.

    Args:
        box: (9,) upright box around the points.
        points_m: (K, 3) surface.
        label: canonical name.
        shapes: (B, 9) of the map.
        floor_z_m: height of the floor.
        priors: size priors of names.
        views: the map's surface and the object's sightings of it; None = completions are not checked.
        directions: (V, 3) viewing directions; None = unknown.
    """
    prior = priors.get(label)
    small = prior.small if prior is not None else float(box[3:6].max()) < _SMALL_M

    def agrees(new: F64, old: F64 | None) -> bool:
        if views is None:
            return True
        surface, sightings = views
        points = surface(new)
        points = points[points[:, 2] > floor_z_m + 0.06]
        if old is not None and len(points):
            points = points[~inside_boxes(old[None], points, 0.02)[:, 0]]
        if not len(points):
            return True
        seen, inside = sightings(points)
        return float(seen.sum()) < _SEEN or float(inside.sum()) >= _AGREE * float(seen.sum())

    if prior is not None and prior.mounted in ("wall", "ceiling"):
        # noise of depth makes flat objects thicker than any of their class; their back is hidden by what they hang on
        thick_m = min(max(box[4], prior.usual_m[1]), prior.short_m[1])
        across = np.array([-np.sin(box[6]), np.cos(box[6])])
        away = 0.0 if directions is None else float(np.sign((directions[:, :2] @ across).mean()))
        flat: F64 = box.copy()
        flat[:2] += 0.5 * max(thick_m - box[4], 0.0) * away * across
        flat[4] = thick_m
        return flat
    chosen = None
    if not small:
        chosen = _best_shape(shapes, points_m, label, floor_z_m, priors, lambda new: agrees(new, None))
    if chosen is not None:
        return chosen
    if prior is None:
        return box
    bottom_m = box[2] - box[5] / 2
    if not small and prior.stands and 0 < bottom_m - floor_z_m <= _MAX_HIDDEN_M:
        top_m = box[2] + box[5] / 2
        extended: F64 = box.copy()
        extended[2], extended[5] = (top_m + floor_z_m) / 2, top_m - floor_z_m
        if agrees(extended, box):
            box = extended
    if directions is not None:
        wider = _usual_footprint(box, prior, directions)
        if wider is not None and agrees(wider, box):
            box = wider
    return box


def _usual_footprint(box: F64, prior: ClassPrior, directions: F64) -> F64 | None:
    """Grow the sides of a (9,) box that no view measures to the usual ones of the class, away from the cameras.

    A view measures the side across its direction; ``directions``: (V, 3) of the views that show the object uncut, or of
    all views without one. None = nothing is missing.
    """
    c, s = np.cos(box[6]), np.sin(box[6])
    axes = np.array([[c, s], [-s, c]])
    flat = directions[:, :2] / np.maximum(np.linalg.norm(directions[:, :2], axis=1, keepdims=True), 1e-9)
    along = flat @ axes.T  # (V, 2) cosines
    measured = (np.abs(along) < _ACROSS).any(axis=0)
    long_m, short_m = prior.usual_m
    result: F64 = box.copy()
    for axis in range(2):
        other = box[4 - axis]
        is_long = abs(np.log(other / short_m)) < abs(np.log(other / long_m))  # the other side is the short one
        usual = long_m if is_long else short_m
        least = (prior.long_m[0], prior.short_m[0])[axis] * 1.1
        grow = max((least if measured[axis] else usual) - box[3 + axis], 0.0)
        away = float(along[:, axis].mean())
        result[:2] += 0.5 * grow * np.sign(away) * min(1.0, 2 * abs(away)) * axes[axis]
        result[3 + axis] += grow
    return None if (result[3:5] == box[3:5]).all() else result


@njit(cache=True, nogil=True)
def inside_boxes(boxes: F64, points_m: NDArray[Any], margin_m: float) -> NDArray[np.bool_]:
    """Return (K, B) True where a point lies in an upright box enlarged by ``margin_m``."""
    out = np.empty((len(points_m), len(boxes)), np.bool_)
    for b in range(len(boxes)):
        c, s, half = np.cos(boxes[b, 6]), np.sin(boxes[b, 6]), boxes[b, 3:6] / 2 + margin_m
        for i in range(len(points_m)):
            x, y, z = points_m[i, 0] - boxes[b, 0], points_m[i, 1] - boxes[b, 1], points_m[i, 2] - boxes[b, 2]
            out[i, b] = abs(z) <= half[2] and abs(c * x + s * y) <= half[0] and abs(c * y - s * x) <= half[1]
    return out


def _best_shape(
    shapes: F64,
    points_m: F64,
    label: str,
    floor_z_m: float,
    priors: ClassPriors,
    agrees: Callable[[F64], bool],
) -> F64 | None:
    """Return the (9,) plausible shape that holds most of the points; None without one."""
    best, chosen = 0.0, None
    few = np.ascontiguousarray(points_m[:: 1 + len(points_m) // 300])
    shares = inside_boxes(shapes, few, _INSIDE_M).mean(axis=0)
    for number in np.flatnonzero(shares >= max(SHAPE_SHARE, _HELD)):
        shape, share = shapes[number], shares[number]
        # unseen parts make a shape small; nothing makes it large
        fit = priors.log_plausibility(label, shape, floor_z_m, whole=False)
        value = float(share) * float(np.exp(0.25 * fit))
        if fit >= _MIN_PLAUSIBILITY and value > best and agrees(shape):
            best, chosen = value, shape
    return None if chosen is None else chosen.copy()


def grow_to_views(
    box: F64,
    members: Sequence[LiftedDetection],
    cameras: Sequence[tuple[F64, F64]],
    prior: ClassPrior | None,
    floor_z_m: float,
) -> F64:
    """Grow an upright (9,) box until its projection fills the 2-D boxes of its views, for each side in their median.

    Args:
        box: around the surface.
        members: detections of the object.
        cameras: T_camera_world, and focal lengths and centre, of each.
        prior: size prior of its name.
        floor_z_m: height of the floor; the box does not grow below it.

    Sides at the image border are unknown. The box grows less along its short sides.
    """
    largest = np.full(3, np.inf)
    if prior is not None:
        largest = np.array([prior.long_m[1], prior.long_m[1], prior.height_m[1]]) * _LONGER
    k = np.stack([k for _, k in cameras])
    boxes_px = np.stack([d.box_px for d in members])
    known = np.stack([d.sides_known for d in members])
    c, s = np.cos(box[6]), np.sin(box[6])
    R = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    axes = np.ascontiguousarray(np.stack([T[:3, :3] @ R for T, _ in cameras]))  # of the box, in each camera
    center = np.stack([T[:3, :3] @ box[:3] + T[:3, 3] for T, _ in cameras])
    low, high = -box[3:6] / 2, box[3:6] / 2
    floor = min(floor_z_m - box[2], low[2])
    for _ in range(_ROUNDS):
        wanted = _wanted(center, axes, low, high, k, boxes_px, known)  # (V, 6), NaN = no opinion
        moves = np.zeros(6)
        for face in range(6):
            said = wanted[:, face][np.isfinite(wanted[:, face])]
            moves[face] = max(float(np.median(said)), 0.0) if len(said) else 0.0
        if moves.max() < 0.01:
            break
        room = np.maximum(largest - (high - low), 0.0)
        total = moves[:3] + moves[3:]
        moves *= np.tile(np.minimum(1.0, room / np.maximum(total, 1e-9)), 2)
        low, high = low - moves[:3], high + moves[3:]
        low[2] = max(low[2], floor)
    result: F64 = box.copy()
    result[:3] += R @ ((low + high) / 2)
    result[3:6] = high - low
    if result[4] > result[3]:
        result[3], result[4] = result[4], result[3]
        result[6] = (result[6] + np.pi) % np.pi - np.pi / 2
    return result


@njit(cache=True, nogil=True)
def _wanted(center: F64, axes: F64, low: F64, high: F64, k: F64, boxes_px: F64, known: NDArray[np.bool_]) -> F64:
    """Return (V, 6) outward motions of the faces, low x y z then high, that each view asks for; NaN = none."""
    out = np.full((len(k), 6), np.nan)
    corner, uv = np.zeros((8, 3)), np.zeros((8, 2))
    for view in range(len(k)):
        behind = False
        for i in range(8):
            local = np.array([high[a] if (i >> a) & 1 else low[a] for a in range(3)])
            corner[i] = axes[view] @ local + center[view]
            if corner[i, 2] < 0.1:
                behind = True
                break
            uv[i] = corner[i, :2] / corner[i, 2] * k[view, :2] + k[view, 2:]
        if behind:
            continue
        for side in range(4):
            if not known[view, side]:
                continue
            axis, sign = side % 2, -1.0 if side < 2 else 1.0
            best = 0
            for i in range(8):
                if sign * uv[i, axis] > sign * uv[best, axis]:
                    best = i
            length = boxes_px[view, axis + 2] - boxes_px[view, axis]
            lack = sign * (boxes_px[view, side] - uv[best, axis]) - _SLACK_PX - _SLACK * length
            # pixels by which the corner moves outward for a metre of each of its faces, weighted by the box's sides
            gain, total = np.zeros(3), 0.0
            for a in range(3):
                outward = 1.0 if (best >> a) & 1 else -1.0
                dx, dz = axes[view, axis, a], axes[view, 2, a]
                px = k[view, axis] * (dx - (corner[best, axis] / corner[best, 2]) * dz) / corner[best, 2]
                gain[a] = max(sign * outward * px, 0.0)
                total += (gain[a] * (high[a] - low[a])) ** 2
            if total <= 0.0:
                continue
            for a in range(3):
                face = a + 3 if (best >> a) & 1 else a
                move = max(lack, 0.0) * gain[a] * (high[a] - low[a]) ** 2 / total
                if gain[a] * (high[a] - low[a]) >= 0.5 * np.sqrt(total) and not out[view, face] > move:
                    out[view, face] = move
    return out
