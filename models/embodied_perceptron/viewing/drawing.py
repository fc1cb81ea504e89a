"""Lines, labels and colours shared by all pictures. Images are (H, W, 3) uint8 RGB and are drawn on in place."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.boxes import corners
from embodied_perceptron.geometry import Intrinsics, invert_transform, transform_points
from embodied_perceptron.results import SceneObject

Image = NDArray[np.uint8]
Color = tuple[int, int, int]

NEAR_M = 0.05
# corners count in binary, x slowest: an edge joins two that differ in one bit
BOX_EDGES = tuple((i, i | bit) for bit in (1, 2, 4) for i in range(8) if not i & bit)
INK: Color = (240, 242, 245)
SHADE: Color = (18, 20, 24)


def color_of_id(number: int) -> Color:
    """A bright colour that stays with an id; neighbouring ids differ strongly (golden angle over the hues)."""
    hue = (number * 0.381966) % 1.0
    r, g, b = colorsys.hsv_to_rgb(hue, 0.62 + 0.25 * (number % 2), 1.0)
    return round(r * 255), round(g * 255), round(b * 255)


def label_of(thing: SceneObject) -> str:
    """What stands beside an object in pictures."""
    return f"{thing.label} {thing.id}"


def box_corners(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 9) boxes -> (N, 8, 3) corners, x slowest, z fastest."""
    out: NDArray[np.float64] = corners(torch.from_numpy(np.ascontiguousarray(boxes, dtype=np.float64))).numpy()
    return out


def clip_to_near_plane(
    p: NDArray[np.float64], q: NDArray[np.float64], near_m: float = NEAR_M
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The part of the segment between two (3,) optical-frame points that lies in front of the camera, or None."""
    if p[2] < near_m and q[2] < near_m:
        return None
    if p[2] < near_m:
        p = p + (q - p) * ((near_m - p[2]) / (q[2] - p[2]))
    elif q[2] < near_m:
        q = q + (p - q) * ((near_m - q[2]) / (p[2] - q[2]))
    return p, q


def pixel(point_camera_m: NDArray[np.float64], intrinsics: Intrinsics) -> NDArray[np.float64]:
    """(..., 3) optical-frame points in front of the camera -> (..., 2) pixel coordinates."""
    z = point_camera_m[..., 2]
    return np.stack(
        [
            intrinsics.fx * point_camera_m[..., 0] / z + intrinsics.cx,
            intrinsics.fy * point_camera_m[..., 1] / z + intrinsics.cy,
        ],
        axis=-1,
    )


def box_segments(
    box: NDArray[np.float64], T_world_camera: NDArray[np.float64], intrinsics: Intrinsics
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Edges of a (9,) box in the optical frame, cut at the near plane and to what may touch the image."""
    points = transform_points(invert_transform(T_world_camera), box_corners(box[None])[0])
    segments = []
    for i, j in BOX_EDGES:
        clipped = clip_to_near_plane(points[i], points[j])
        if clipped is None:
            continue
        ends = pixel(np.stack(clipped), intrinsics)
        size = np.array([intrinsics.width, intrinsics.height])
        if ((ends < 0).all(axis=0) | (ends > size).all(axis=0)).any():
            continue
        segments.append(clipped)
    return segments


def line(image: Image, p: NDArray[np.float64], q: NDArray[np.float64], color: Color, width: int = 2) -> None:
    """Anti-aliased line between (2,) pixel coordinates, cut to the surroundings of the image."""
    height, wide = image.shape[:2]
    bounds = (-64, -64, wide + 128, height + 128)
    far = 2.0**30  # clipLine takes 32-bit integers
    a = (round(float(np.clip(p[0], -far, far))), round(float(np.clip(p[1], -far, far))))
    b = (round(float(np.clip(q[0], -far, far))), round(float(np.clip(q[1], -far, far))))
    touches, start, end = cv2.clipLine(bounds, a, b)
    if touches:
        cv2.line(image, start, end, color, width, cv2.LINE_AA)


def text_size(text: str, scale: float) -> tuple[int, int]:
    """Width and height in pixels of a line of text."""
    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_DUPLEX, scale, 1)
    return int(width), int(height)


def text(image: Image, words: str, left: int, baseline: int, color: Color = INK, scale: float = 0.45) -> None:
    """One line of text."""
    cv2.putText(image, words, (left, baseline), cv2.FONT_HERSHEY_DUPLEX, scale, color, 1, cv2.LINE_AA)


def tag(image: Image, words: str, center_x: float, center_y: float, color: Color, scale: float = 0.45) -> None:
    """A label on a plate, kept inside of the image."""
    width, height = text_size(words, scale)
    pad = round(8 * scale) + 1
    left = int(np.clip(center_x - width / 2, pad, max(pad, image.shape[1] - width - pad)))
    base = int(np.clip(center_y + height / 2, height + pad, max(height + pad, image.shape[0] - pad)))
    low, high = (left - pad, base - height - pad), (left + width + pad, base + pad)
    cv2.rectangle(image, low, high, SHADE, -1)
    cv2.rectangle(image, low, high, color, 1, cv2.LINE_AA)
    text(image, words, left, base, INK, scale)


def draw_boxes_on_image(
    image: Image,
    objects: Sequence[SceneObject],
    T_world_camera: NDArray[np.float64],
    intrinsics: Intrinsics,
    width: int = 2,
) -> Image:
    """A copy of the (H, W, 3) RGB camera image with the boxes of ``objects`` and their labels drawn on.

    Boxes that reach behind the camera are cut at the near plane. Nearer boxes are drawn over farther ones. Raises
    ``ValueError`` when image and intrinsics disagree in size.
    """
    if image.shape != (intrinsics.height, intrinsics.width, 3) or image.dtype != np.uint8:
        raise ValueError(
            f"image is {image.shape} {image.dtype}, intrinsics say ({intrinsics.height}, {intrinsics.width}, 3) uint8"
        )
    out: Image = image.copy()
    camera_m = np.asarray(T_world_camera)[:3, 3]
    for thing in sorted(objects, key=lambda o: (-float(np.linalg.norm(o.box[:3] - camera_m)), o.id)):
        segments = box_segments(thing.box, T_world_camera, intrinsics)
        if not segments:
            continue
        color = color_of_id(thing.id)
        ends = np.array([pixel(np.stack(s), intrinsics) for s in segments])
        for p, q in ends:
            line(out, p, q, SHADE, width + 2)
        for p, q in ends:
            line(out, p, q, color, width)
        seen = np.clip(ends.reshape(-1, 2), 0, [intrinsics.width, intrinsics.height])
        tag(out, label_of(thing), float(seen[:, 0].mean()), float(seen[:, 1].min()) + 10, color)
    return out
