"""Colour as sensors and video chips give it, Bayer mosaics and YUV, -> RGB.

Encodings are those of ``sensor_msgs/image_encodings``, and two that drivers write beside them (nv12, i420). YUV is
that of BT.601 with 16 to 235 of brightness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CameraFormat:
    """How pixels lie in memory.

    Attributes:
        sample_bytes: of one sample of a row.
        samples: in a row, for one pixel.
        rows: in all, for one row of pixels: more than one where colour comes behind brightness.
        even_width, even_height: pixels share their colour two by two.
        code: OpenCV's conversion to RGB; None = colour of each pixel behind brightness (nv24).
    """

    sample_bytes: int
    samples: int
    rows: float
    even_width: bool
    even_height: bool
    code: int | None


# OpenCV names a mosaic by its second row and column, ROS by the first
_BAYER = {
    "bayer_rggb": cv2.COLOR_BayerBG2RGB,
    "bayer_bggr": cv2.COLOR_BayerRG2RGB,
    "bayer_gbrg": cv2.COLOR_BayerGR2RGB,
    "bayer_grbg": cv2.COLOR_BayerGB2RGB,
}
_UYVY = CameraFormat(1, 2, 1.0, True, False, cv2.COLOR_YUV2RGB_UYVY)
_YUYV = CameraFormat(1, 2, 1.0, True, False, cv2.COLOR_YUV2RGB_YUY2)
CAMERA_FORMATS: dict[str, CameraFormat] = {
    **{
        f"{name}{8 * size}": CameraFormat(size, 1, 1.0, True, True, code)
        for size in (1, 2)
        for name, code in _BAYER.items()
    },
    "yuv422": _UYVY,
    "uyvy": _UYVY,
    "yuv422_yuy2": _YUYV,
    "yuyv": _YUYV,
    "nv12": CameraFormat(1, 1, 1.5, True, True, cv2.COLOR_YUV2RGB_NV12),
    "nv21": CameraFormat(1, 1, 1.5, True, True, cv2.COLOR_YUV2RGB_NV21),
    "nv24": CameraFormat(1, 1, 3.0, False, False, None),
    "i420": CameraFormat(1, 1, 1.5, True, True, cv2.COLOR_YUV2RGB_I420),
}


def check_size(encoding: str, height: int, width: int, step: int) -> None:
    """Raises ``ValueError`` for a size that an encoding cannot have."""
    layout = CAMERA_FORMATS[encoding]
    if (layout.even_width and width % 2) or (layout.even_height and height % 2):
        raise ValueError(f"{encoding} images have an even size, got {width}x{height}")
    if encoding == "i420" and step % 2:
        raise ValueError(f"{encoding} images have an even step, got {step}")


def to_rgb(encoding: str, height: int, width: int, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows as they lie in memory -> (H, W, 3) uint8 RGB.

    Args:
        encoding: of :data:`CAMERA_FORMATS`.
        height, width: of the image.
        rows: (H rows, W samples sample_bytes) uint8 without padding, native byte order; of i420 and nv24, whose colour
            has rows of other lengths, (H rows W,) as :func:`planar_rows` makes them.
    """
    layout = CAMERA_FORMATS[encoding]
    if layout.code is None:
        return _nv24(rows.reshape(-1), height, width)
    shape: tuple[int, ...] = (round(height * layout.rows), width)
    if layout.samples > 1:
        shape = (*shape, layout.samples)
    pixels: NDArray[Any] = rows.reshape(-1).view(np.uint16 if layout.sample_bytes == 2 else np.uint8).reshape(shape)
    color: NDArray[Any] = np.asarray(cv2.cvtColor(pixels, layout.code))
    return np.asarray(color >> 8 if color.dtype == np.uint16 else color, np.uint8)


def planar_rows(encoding: str, height: int, width: int, step: int, flat: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes of an image whose colour has rows of another length than its brightness, without padding.

    ``flat`` has at least :func:`planar_bytes`."""
    bright = _rows(flat, height, width, step)
    if encoding == "nv24":
        return np.concatenate([bright, _rows(flat[step * height :], height, 2 * width, 2 * step)])
    parts = [bright]
    at = step * height
    for _ in range(2):
        parts.append(_rows(flat[at:], height // 2, width // 2, step // 2))
        at += step // 2 * (height // 2)
    return np.concatenate(parts)


def planar_bytes(encoding: str, height: int, width: int, step: int) -> int:
    """Bytes that such an image has at least: the padding of its last row may be missing."""
    if encoding == "nv24":
        return step * height + 2 * step * (height - 1) + 2 * width
    chroma = height // 2
    return step * height + step // 2 * (2 * chroma - 1) + width // 2


def _rows(flat: NDArray[np.uint8], count: int, width: int, step: int) -> NDArray[np.uint8]:
    view = np.lib.stride_tricks.as_strided(flat, (count, width), (step, 1), writeable=False)
    return np.ascontiguousarray(view).reshape(-1)


def _nv24(flat: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    count = height * width
    y = 1.164 * (flat[:count].astype(np.float32) - 16.0)
    u, v = (flat[count + i : 3 * count : 2].astype(np.float32) - 128.0 for i in range(2))
    color = np.stack([y + 1.596 * v, y - 0.813 * v - 0.391 * u, y + 2.018 * u], axis=-1)
    return np.asarray(np.clip(np.rint(color), 0, 255), np.uint8).reshape(height, width, 3)
