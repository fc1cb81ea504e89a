"""Objects drawn into a camera image."""

from __future__ import annotations

from collections.abc import Iterable

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry import Intrinsics, invert_transform, transform_points
from embodied_perceptron.results import SceneObject
from embodied_perceptron_ros.object_messages import BOX_EDGES, box_corners, label_color

_NEAR_M = 0.05
_FAR_PIXELS = 1e5  # OpenCV clips lines itself, in 32-bit integers with 16 fractional bits to spare


def draw_objects(
    color: NDArray[np.uint8],
    intrinsics: Intrinsics,
    T_world_camera: NDArray[np.float64],
    objects: Iterable[SceneObject],
) -> NDArray[np.uint8]:
    """A copy of the (H, W, 3) image with the edges of boxes in view and their labels."""
    image = np.ascontiguousarray(color).copy()
    T_camera_world = invert_transform(T_world_camera)
    for item in objects:
        corners = transform_points(T_camera_world, box_corners(item.box))
        rgb = tuple(int(255 * c) for c in label_color(item.label))
        seen: list[tuple[int, int]] = []
        for a, b in BOX_EDGES:
            segment = clip_to_front(corners[a], corners[b])
            if segment is None:
                continue
            first, second = (_to_pixel(p, intrinsics) for p in segment)
            inside, start, end = cv2.clipLine((0, 0, intrinsics.width, intrinsics.height), first, second)
            if inside:
                cv2.line(image, start, end, rgb, 2, cv2.LINE_AA)
                seen += [(start[0], start[1]), (end[0], end[1])]
        if seen:
            x, y = min(seen, key=lambda p: p[1])
            where = (min(max(x, 2), max(intrinsics.width - 120, 2)), max(y - 6, 14))
            cv2.putText(image, f"{item.label} {item.id}", where, cv2.FONT_HERSHEY_SIMPLEX, 0.5, rgb, 1, cv2.LINE_AA)
    return image


def clip_to_front(
    a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The part of the segment between two (3,) optical-frame points that lies in front of the camera."""
    if a[2] < _NEAR_M and b[2] < _NEAR_M:
        return None
    if a[2] < _NEAR_M:
        a = a + (b - a) * ((_NEAR_M - a[2]) / (b[2] - a[2]))
    elif b[2] < _NEAR_M:
        b = b + (a - b) * ((_NEAR_M - b[2]) / (a[2] - b[2]))
    return a, b


def _to_pixel(point: NDArray[np.float64], intrinsics: Intrinsics) -> tuple[int, int]:
    u = intrinsics.fx * point[0] / point[2] + intrinsics.cx
    v = intrinsics.fy * point[1] / point[2] + intrinsics.cy
    return round(float(np.clip(u, -_FAR_PIXELS, _FAR_PIXELS))), round(float(np.clip(v, -_FAR_PIXELS, _FAR_PIXELS)))
