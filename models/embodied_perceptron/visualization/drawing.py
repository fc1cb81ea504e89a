"""Lines, labels and colours shared by all pictures. Images are (H, W, 3) uint8 RGB and are drawn on in place."""

from __future__ import annotations

import colorsys
import unicodedata
import zlib
from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import BOX_EDGES, box_corners
from embodied_perceptron.geometry.transforms import F64, Intrinsics, invert_transform, transform_points
from embodied_perceptron.results import SceneObject

Image = NDArray[np.uint8]
Color = tuple[int, int, int]

NEAR_M = 0.05
SHOWN_CHARACTERS = 80  # of untrusted names and sentences
INK: Color = (240, 242, 245)
TEXT_SCALE = 0.45
SHADE: Color = (18, 20, 24)
PATH_COLOR: Color = (255, 196, 54)
# muted colours for large surfaces
_CLASS_COLORS: dict[str, Color] = {
    "unknown": (110, 110, 110),
    "floor": (134, 160, 118),
    "wall": (150, 158, 176),
    "structure": (150, 158, 176),
    "ceiling": (176, 178, 186),
    "object": (235, 134, 92),
}


def color_of_class(label: str) -> Color:
    """Return a fixed colour for a class name: saturated, except for floors, walls and the like."""
    if label in _CLASS_COLORS:
        return _CLASS_COLORS[label]
    r, g, b = colorsys.hsv_to_rgb(zlib.crc32(label.encode()) % 360 / 360, 0.75, 0.95)
    return round(r * 255), round(g * 255), round(b * 255)


def color_of_id(number: int) -> Color:
    """Return a fixed bright colour for an id; neighbouring ids differ strongly (golden angle over the hues)."""
    hue = (number * 0.381966) % 1.0
    r, g, b = colorsys.hsv_to_rgb(hue, 0.62 + 0.25 * (number % 2), 1.0)
    return round(r * 255), round(g * 255), round(b * 255)


def color_of(thing: SceneObject, colors: Mapping[int, Color] | None) -> Color:
    """Return the colour of an object from ``colors``, otherwise that of its id."""
    return color_of_id(thing.id) if colors is None or thing.id not in colors else colors[thing.id]


def label_of(thing: SceneObject) -> str:
    """Return the label of an object in pictures: its shortened name and its id."""
    return f"{shortened(thing.user_name or thing.label)} {thing.id}"


def shortened(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Return ``text`` on one line, without control characters, at most ``most`` characters."""
    short = text[: most + 1]
    clean = "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in short)
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def positions_of(trajectory_m: F64 | None) -> F64:
    """Return the (T, 3) positions of a path given as positions, as (T, 4, 4) poses, or as None."""
    if trajectory_m is None or len(trajectory_m) == 0:
        return np.zeros((0, 3))
    array = np.asarray(trajectory_m, dtype=np.float64)
    if array.ndim == 3 and array.shape[1:] == (4, 4):
        return array[:, :3, 3]
    if array.ndim == 2 and array.shape[1] == 3:
        return array
    raise ValueError(f"trajectory must be (T, 3) or (T, 4, 4), got {array.shape}")


def clip_to_near_plane(p: F64, q: F64, near_m: float = NEAR_M) -> tuple[F64, F64] | None:
    """Clip the segment between two (3,) optical-frame points to the part in front of the camera; None if empty."""
    if p[2] < near_m and q[2] < near_m:
        return None
    if p[2] < near_m:
        p = p + (q - p) * ((near_m - p[2]) / (q[2] - p[2]))
    elif q[2] < near_m:
        q = q + (p - q) * ((near_m - q[2]) / (p[2] - q[2]))
    return p, q


def pixel(point_camera_m: F64, intrinsics: Intrinsics) -> F64:
    """Project (..., 3) optical-frame points in front of the camera to (..., 2) pixel coordinates."""
    z = point_camera_m[..., 2]
    return np.stack(
        [
            intrinsics.fx * point_camera_m[..., 0] / z + intrinsics.cx,
            intrinsics.fy * point_camera_m[..., 1] / z + intrinsics.cy,
        ],
        axis=-1,
    )


def box_segments(box: F64, T_world_camera: F64, intrinsics: Intrinsics) -> list[tuple[F64, F64]]:
    """Return the edges of a (9,) box in the optical frame that may touch the image, clipped at the near plane."""
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


def line(image: Image, p: F64, q: F64, color: Color, width: int = 2) -> None:
    """Draw an anti-aliased line between (2,) pixel coordinates, clipped near the image."""
    height, wide = image.shape[:2]
    bounds = (-64, -64, wide + 128, height + 128)
    far = 2.0**30  # clipLine takes 32-bit integers
    a = (round(float(np.clip(p[0], -far, far))), round(float(np.clip(p[1], -far, far))))
    b = (round(float(np.clip(q[0], -far, far))), round(float(np.clip(q[1], -far, far))))
    touches, start, end = cv2.clipLine(bounds, a, b)
    if touches:
        cv2.line(image, start, end, color, width, cv2.LINE_AA)


def text_size(text: str, scale: float) -> tuple[int, int]:
    """Return width and height in pixels of a line of text."""
    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_DUPLEX, scale, 1)
    return int(width), int(height)


def text(image: Image, words: str, left: int, baseline: int, color: Color = INK, scale: float = TEXT_SCALE) -> None:
    """Draw one line of text."""
    cv2.putText(image, words, (left, baseline), cv2.FONT_HERSHEY_DUPLEX, scale, color, 1, cv2.LINE_AA)


class Tags:
    """Labels on plates inside of the image that avoid each other where there is space."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._plates = np.zeros((16, 4), np.int64)  # left, top, right, bottom; capacity
        self._count = 0

    def add(self, words: str, center_x: float, center_y: float, color: Color) -> None:
        """Draw a label at a position, or above or below where others cover it."""
        width, height = text_size(words, TEXT_SCALE)
        pad = round(8 * TEXT_SCALE) + 1
        rows, columns = self._image.shape[:2]
        left = int(min(max(center_x - width / 2, pad), max(pad, columns - 1 - width - pad)))
        lowest, highest = height + pad, max(height + pad, rows - 1 - pad)
        for step in sorted(range(-12, 13), key=abs):
            base = round(center_y + height / 2) + step * (height + 2 * pad + 1)
            base = min(max(base, lowest), highest)
            plate = (left - pad, base - height - pad, left + width + pad, base + pad)
            if not self._is_covered(plate):
                break
        if self._count == len(self._plates):
            self._plates = np.concatenate([self._plates, self._plates])
        self._plates[self._count] = plate
        self._count += 1
        cv2.rectangle(self._image, plate[:2], plate[2:], SHADE, -1)
        cv2.rectangle(self._image, plate[:2], plate[2:], color, 1, cv2.LINE_AA)
        text(self._image, words, left, base)

    def _is_covered(self, plate: tuple[int, int, int, int]) -> bool:
        """Return True when another plate touches it."""
        left, top, right, bottom = self._plates[: self._count].T
        touching = (left <= plate[2]) & (right >= plate[0]) & (top <= plate[3]) & (bottom >= plate[1])
        return bool(touching.any())


def draw_boxes_on_image(
    image: Image,
    objects: Sequence[SceneObject],
    T_world_camera: F64,
    intrinsics: Intrinsics,
    colors: Mapping[int, Color] | None = None,
) -> Image:
    """Return a copy of the (H, W, 3) RGB camera image with the boxes of ``objects`` and their labels.

    Boxes are clipped at the near plane, nearer ones drawn over farther ones. ``colors`` by id replace the default ones.
    Raises ``ValueError`` when image and intrinsics differ in size.
    """
    if image.shape != (intrinsics.height, intrinsics.width, 3) or image.dtype != np.uint8:
        raise ValueError(
            f"image is {image.shape} {image.dtype}, intrinsics say ({intrinsics.height}, {intrinsics.width}, 3) uint8"
        )
    out: Image = image.copy()
    camera_m = np.asarray(T_world_camera)[:3, 3]
    labels: list[tuple[str, float, float, Color]] = []
    for thing in sorted(objects, key=lambda o: (-float(np.linalg.norm(o.box[:3] - camera_m)), o.id)):
        segments = box_segments(thing.box, T_world_camera, intrinsics)
        if not segments:
            continue
        color = color_of(thing, colors)
        ends = np.array([pixel(np.stack(s), intrinsics) for s in segments])
        for p, q in ends:
            line(out, p, q, SHADE, 4)
        for p, q in ends:
            line(out, p, q, color)
        seen = np.clip(ends.reshape(-1, 2), 0, [intrinsics.width, intrinsics.height])
        labels.append((label_of(thing), float(seen[:, 0].mean()), float(seen[:, 1].min()) + 10, color))
    tags = Tags(out)
    for label in labels[::-1]:  # the nearest first
        tags.add(*label)
    return out
