"""Top view of the map: colours, boxes with labels, the path of the robot and a scale."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.results import Perception, SceneObject
from embodied_perceptron.visualization.drawing import (
    INK,
    PATH_COLOR,
    SHADE,
    Color,
    Image,
    Tags,
    color_of,
    label_of,
    line,
    positions_of,
    text,
)

BACKGROUND = (30, 33, 39)
_MARGIN_M = 0.35
_CUT_HEIGHT_M = 1.7  # ceilings, lamps and wall cupboards above hide the room
_SCALES_M = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


class TopViewFrame:
    """Mapping from world x, y to the picture: x to the right, y up."""

    def __init__(self, low_m: F64, high_m: F64, max_pixels: int) -> None:
        span = np.maximum(high_m - low_m, 0.5)
        self.low_m = low_m
        self.pixels_per_m = float(min(max_pixels / span.max(), 400.0))
        self.width, self.height = (np.ceil(span * self.pixels_per_m).astype(int) + 1).tolist()

    def pixel(self, xy_m: F64) -> F64:
        """Convert (..., 2) world to (..., 2) pixel coordinates."""
        p = (np.asarray(xy_m, dtype=np.float64) - self.low_m) * self.pixels_per_m
        return np.stack([p[..., 0], self.height - 1 - p[..., 1]], axis=-1)


def render_top_view(
    perception: Perception,
    objects: Sequence[SceneObject] | None = None,
    trajectory_m: F64 | None = None,
    max_pixels: int = 1000,
    colors: Mapping[int, Color] | None = None,
) -> Image:
    """Render the map from above as (H, W, 3) uint8 RGB, its longer side about ``max_pixels``.

    Args:
        perception: its voxels are drawn up to 1.7 m above the floor, the highest on top.
        objects: boxes to draw; None = the confirmed ones.
        trajectory_m: (T, 3) positions or (T, 4, 4) poses of the camera, oldest first.
        colors: colours of boxes by id, instead of the default ones.
    """
    objects = perception.objects if objects is None else objects
    path = positions_of(trajectory_m)
    voxels = perception.voxels
    points = np.asarray(voxels.mean_point_m, dtype=np.float64)
    floor_z = perception.grid.floor_z_m if np.isfinite(perception.grid.floor_z_m) else 0.0
    shown = points[:, 2] - floor_z <= _CUT_HEIGHT_M
    frame = _frame(points[shown], path, objects, max_pixels)
    image = splat_voxels(points[shown], voxels.mean_color[shown], voxels.voxel_size_m, frame)
    by_height = sorted(objects, key=lambda o: (o.box[2] + o.box[5] / 2, o.id))
    if by_height:
        outlines = frame.pixel(box_corners(np.stack([o.box for o in by_height]))[:, :, :2]).astype(np.float32)
        for thing, outline in zip(by_height, outlines, strict=True):
            _draw_box(image, outline, color_of(thing, colors))
    _draw_path(image, path, frame)
    tags = Tags(image)
    for thing in objects:  # labels last, on top
        x, y = frame.pixel(thing.box[:2])
        tags.add(label_of(thing), float(x), float(y), color_of(thing, colors))
    _draw_scale(image, frame)
    return image


def _frame(points: F64, path: F64, objects: Sequence[SceneObject], max_pixels: int) -> TopViewFrame:
    """Return the shown area: nearly all voxels, all boxes and the whole path."""
    spots = [path[:, :2]]
    if len(points):
        # a few outliers must not shrink the room
        spots.append(np.percentile(points[:, :2], [0.2, 99.8], axis=0))
    if objects:
        spots.append(box_corners(np.stack([o.box for o in objects]))[:, :, :2].reshape(-1, 2))
    every = np.concatenate(spots)
    if len(every) == 0:
        every = np.zeros((1, 2))
    return TopViewFrame(every.min(axis=0) - _MARGIN_M, every.max(axis=0) + _MARGIN_M, max_pixels)


def splat_voxels(points: F64, colors: NDArray[np.uint8], voxel_size_m: float, frame: TopViewFrame) -> Image:
    """Draw (N, 3) world points of voxels with (N, 3) RGB as squares, the highest on top, with shaded steps."""
    image = np.empty((frame.height, frame.width, 3), dtype=np.uint8)
    image[:] = BACKGROUND
    height = np.full((frame.height, frame.width), -np.inf)
    half = max(0.5, 0.6 * voxel_size_m * frame.pixels_per_m)
    _splat_squares(frame.pixel(points[:, :2]), points[:, 2], colors, half, image, height)
    return _shade_steps(image, height)


@njit(cache=True)
def _splat_squares(
    pixels: F64,
    z: F64,
    colors: NDArray[np.uint8],
    half: float,
    image: NDArray[np.uint8],
    height: F64,
) -> None:
    rows, columns = height.shape
    for i in range(len(z)):
        for v in range(max(0, round(pixels[i, 1] - half)), min(rows, round(pixels[i, 1] + half) + 1)):
            for u in range(max(0, round(pixels[i, 0] - half)), min(columns, round(pixels[i, 0] + half) + 1)):
                if z[i] > height[v, u]:
                    height[v, u] = z[i]
                    image[v, u, 0] = colors[i, 0]
                    image[v, u, 1] = colors[i, 1]
                    image[v, u, 2] = colors[i, 2]


def _shade_steps(image: Image, height: F64) -> Image:
    """Darken pixels next to higher ones, so that edges of furniture stand out."""
    known = np.isfinite(height)
    filled = np.where(known, height, height[known].min() if known.any() else 0.0).astype(np.float32)
    lift = np.clip((filled - np.asarray(cv2.GaussianBlur(filled, (0, 0), 6.0))) / np.float32(0.35), -1.0, 1.0)
    factor = 1.0 + np.where(lift < 0, np.float32(0.45), np.float32(0.12)) * lift
    factor[~known] = 1.0
    return np.asarray(cv2.multiply(image, cv2.merge([factor] * 3), dtype=cv2.CV_8U), np.uint8)


def _draw_box(image: Image, corners: NDArray[np.float32], color: Color) -> None:
    """Draw the footprint of a box with (8, 2) corners in pixels (their convex hull)."""
    outline = np.round(cv2.convexHull(corners)).astype(np.int32)
    left, top, width, height = cv2.boundingRect(outline)
    left, top, right, bottom = max(left, 0), max(top, 0), left + width, top + height
    part = image[top : max(bottom, 0), left : max(right, 0)]  # copying the whole picture for each box is slow
    if part.size:
        fill = part.copy()
        cv2.fillPoly(fill, [outline - np.array([left, top], np.int32)], color)
        part[:] = cv2.addWeighted(fill, 0.14, part, 0.86, 0.0)
    cv2.polylines(image, [outline], True, SHADE, 4, cv2.LINE_AA)
    cv2.polylines(image, [outline], True, color, 2, cv2.LINE_AA)


def _draw_path(image: Image, path: F64, frame: TopViewFrame) -> None:
    if len(path) == 0:
        return
    pixels = frame.pixel(path[:, :2])
    for p, q in itertools.pairwise(pixels):
        line(image, p, q, SHADE, 4)
    for p, q in itertools.pairwise(pixels):
        line(image, p, q, PATH_COLOR, 2)
    first, last = (tuple(int(c) for c in np.round(pixels[i])) for i in (0, -1))
    cv2.circle(image, first, 5, PATH_COLOR, 2, cv2.LINE_AA)
    cv2.circle(image, last, 7, SHADE, -1, cv2.LINE_AA)
    cv2.circle(image, last, 6, PATH_COLOR, -1, cv2.LINE_AA)


def _draw_scale(image: Image, frame: TopViewFrame) -> None:
    """Draw a scale bar of a round length, at most a third of the picture."""
    fitting = [s for s in _SCALES_M if s * frame.pixels_per_m <= image.shape[1] / 3]
    length_m = fitting[-1] if fitting else _SCALES_M[0]
    left, base = 16, image.shape[0] - 16
    right = left + round(length_m * frame.pixels_per_m)
    cv2.rectangle(image, (left - 8, base - 28), (max(right, left + 40) + 10, base + 8), SHADE, -1)
    cv2.line(image, (left, base), (right, base), INK, 2)
    for x in (left, right):
        cv2.line(image, (x, base - 5), (x, base + 3), INK, 2)
    text(image, f"{length_m:g} m", left, base - 10)
