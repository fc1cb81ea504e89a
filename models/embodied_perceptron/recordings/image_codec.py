"""Image bytes -> arrays: the one place for encodings, row padding, byte order and compressed images.

Pure functions of message fields, shared by the bag reader, the folder reader and the ROS node. Every failure is a
:class:`ImageDecodeError` that names the value.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.recordings.camera_formats import (
    CAMERA_FORMATS,
    check_size,
    planar_bytes,
    planar_rows,
    to_rgb,
)
from embodied_perceptron.recordings.rvl import decode_rvl

COLOR_ENCODINGS = ("rgb8", "bgr8", "rgba8", "bgra8", "mono8", *CAMERA_FORMATS)
# 16-bit depth that a driver calls grey, and doubles that a simulator writes, are 16UC1 and 32FC1 to everything behind
DEPTH_ENCODINGS = ("16UC1", "32FC1", "mono16", "64FC1")
_COMPRESSED_DEPTH_ENCODINGS = ("16UC1", "32FC1")

_CHANNELS = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1}
_TO_RGB = {
    "bgr8": cv2.COLOR_BGR2RGB,
    "rgba8": cv2.COLOR_RGBA2RGB,
    "bgra8": cv2.COLOR_BGRA2RGB,
    "mono8": cv2.COLOR_GRAY2RGB,
}
_DEPTH_DTYPE: dict[str, np.dtype[Any]] = {
    "16UC1": np.dtype("uint16"),
    "32FC1": np.dtype("float32"),
    "mono16": np.dtype("uint16"),
    "64FC1": np.dtype("float64"),
}

Bytes: TypeAlias = "bytes | bytearray | memoryview | array[int] | NDArray[np.uint8]"


class ImageDecodeError(ValueError):
    """An image that cannot be decoded; the message names the encoding, size or defect."""


def _as_flat_uint8(data: Bytes) -> NDArray[np.uint8]:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, dtype=np.uint8)


# --------------------------------------------------------------------------------------------------------------------
# raw images


def decode_image(
    height: int, width: int, encoding: str, step: int, is_bigendian: bool | int, data: Bytes
) -> NDArray[Any]:
    """Fields of a ``sensor_msgs/Image`` -> array.

    Args:
        height, width: in pixels, positive.
        encoding: one of :data:`COLOR_ENCODINGS` or :data:`DEPTH_ENCODINGS`.
        step: bytes per row, padding included.
        is_bigendian: byte order of values of more than one byte.
        data: at least ``step * (height - 1)`` bytes plus one row without padding.

    Returns:
        (H, W, 3) uint8 RGB for a colour encoding; (H, W) uint16 or float32, native byte order, raw units, for a depth
        encoding (:func:`embodied_perceptron.sensors.frame.canonical_depth` makes metres of it). May share memory with
        ``data``.

    Raises:
        ImageDecodeError: unknown encoding, impossible size or step, or too few bytes.
    """
    if encoding in CAMERA_FORMATS:
        return _decode_camera_format(height, width, encoding, step, is_bigendian, data)
    if encoding not in _CHANNELS and encoding not in _DEPTH_DTYPE:
        supported = ", ".join(COLOR_ENCODINGS + DEPTH_ENCODINGS)
        raise ImageDecodeError(f"image encoding {encoding!r} is not supported (supported: {supported})")
    if height <= 0 or width <= 0:
        raise ImageDecodeError(f"image size must be positive, got {width}x{height}")
    depth_dtype = _DEPTH_DTYPE.get(encoding)
    pixel_bytes = _CHANNELS[encoding] if depth_dtype is None else depth_dtype.itemsize
    row_bytes = width * pixel_bytes
    if step < row_bytes:
        raise ImageDecodeError(f"image step {step} is less than a row of {width} {encoding} pixels ({row_bytes} bytes)")
    flat = _as_flat_uint8(data)
    needed = step * (height - 1) + row_bytes
    if flat.size < needed:
        raise ImageDecodeError(
            f"image data is cut short: {flat.size} bytes for {width}x{height} {encoding} with step {step} "
            f"(needs {needed})"
        )
    # the padding of the last row may be missing, so a view by strides instead of a reshape
    rows: NDArray[np.uint8] = np.lib.stride_tricks.as_strided(flat, (height, row_bytes), (step, 1), writeable=False)
    if depth_dtype is not None:
        wire = depth_dtype.newbyteorder(">" if is_bigendian else "<")
        raw: NDArray[Any] = np.ascontiguousarray(rows).view(wire)
        if encoding == "64FC1":
            with np.errstate(over="ignore", invalid="ignore"):  # what float32 cannot hold is infinite
                return raw.astype(np.float32)
        return raw if wire.isnative else raw.astype(depth_dtype)
    pixels = np.ascontiguousarray(rows).reshape(height, width, _CHANNELS[encoding])
    return pixels if encoding == "rgb8" else np.asarray(cv2.cvtColor(pixels, _TO_RGB[encoding]))


def _decode_camera_format(
    height: int, width: int, encoding: str, step: int, is_bigendian: bool | int, data: Bytes
) -> NDArray[np.uint8]:
    """Bayer and YUV, see :func:`decode_image`."""
    layout = CAMERA_FORMATS[encoding]
    if height <= 0 or width <= 0:
        raise ImageDecodeError(f"image size must be positive, got {width}x{height}")
    row_bytes = width * layout.samples * layout.sample_bytes
    if step < row_bytes:
        raise ImageDecodeError(f"image step {step} is less than a row of {width} {encoding} pixels ({row_bytes} bytes)")
    try:
        check_size(encoding, height, width, step)
    except ValueError as error:
        raise ImageDecodeError(str(error)) from error
    flat, count = _as_flat_uint8(data), round(height * layout.rows)
    planar = encoding in ("i420", "nv24")
    needed = planar_bytes(encoding, height, width, step) if planar else step * (count - 1) + row_bytes
    if flat.size < needed:
        raise ImageDecodeError(
            f"image data is cut short: {flat.size} bytes for {width}x{height} {encoding} with step {step} "
            f"(needs {needed})"
        )
    if planar:
        return to_rgb(encoding, height, width, planar_rows(encoding, height, width, step, flat))
    rows = np.lib.stride_tricks.as_strided(flat, (count, row_bytes), (step, 1), writeable=False)
    rows = np.ascontiguousarray(rows)
    if layout.sample_bytes == 2 and bool(is_bigendian) != (sys.byteorder == "big"):
        rows = rows.view(np.uint16).byteswap().view(np.uint8)
    return to_rgb(encoding, height, width, rows)


def encode_image(image: NDArray[Any]) -> tuple[str, int, NDArray[np.uint8]]:
    """(H, W, 3) uint8 RGB, (H, W) uint16 or (H, W) float32 -> (encoding, step, flat uint8 data), native byte order.

    Inverse of :func:`decode_image` with ``is_bigendian = (sys.byteorder == "big")``.
    """
    kinds = {(3, np.dtype("uint8")): "rgb8", (2, np.dtype("uint16")): "16UC1", (2, np.dtype("float32")): "32FC1"}
    encoding = kinds.get((image.ndim, image.dtype))
    if encoding is None or (encoding == "rgb8" and image.shape[2] != 3):
        raise ValueError(f"no encoding for an image of shape {image.shape} and dtype {image.dtype}")
    contiguous = np.ascontiguousarray(image)
    return encoding, contiguous.strides[0], contiguous.reshape(-1).view(np.uint8)


# --------------------------------------------------------------------------------------------------------------------
# compressed images

MAX_PIXELS = 2**26  # of a compressed image: what it claims is believed only so far before memory is taken for it
_DEFLATE_RATIO = 1032  # most bytes that one byte of a PNG can stand for; a JPEG stays below as many pixels
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_MAGIC = b"\xff\xd8"


def _check_complete(flat: NDArray[np.uint8]) -> None:
    """Decoders fill what is missing with grey and warn at most; so look for the end markers."""
    head = flat[:8].tobytes()
    if head.startswith(_PNG_MAGIC):
        if b"IEND" not in flat[-64:].tobytes():
            raise ImageDecodeError(f"PNG image is cut short: its end is missing after {flat.size} bytes")
    elif head.startswith(_JPEG_MAGIC):
        # some cameras pad behind the end marker
        if b"\xff\xd9" not in flat[-4096:].tobytes():
            raise ImageDecodeError(f"JPEG image is cut short: its end is missing after {flat.size} bytes")
    else:
        raise ImageDecodeError(f"compressed image is neither PNG nor JPEG: it begins with {head[:4]!r}")


def _check_size(flat: NDArray[np.uint8]) -> None:
    """A few kilobytes may claim gigabytes of pixels: more than anybody wants, or than they can hold."""
    width, height = _claimed_size(flat)
    if width * height > MAX_PIXELS:
        raise ImageDecodeError(f"compressed image claims {width}x{height} pixels, at most {MAX_PIXELS} are decoded")
    bits = 8
    if flat[:8].tobytes() == _PNG_MAGIC and flat.size >= 26:
        bits = int(flat[24]) * _PNG_CHANNELS.get(int(flat[25]), 1)
    if height * -(-width * bits // 8) > flat.size * _DEFLATE_RATIO:
        raise ImageDecodeError(f"compressed image claims {width}x{height} pixels, which {flat.size} bytes cannot hold")


def _claimed_size(flat: NDArray[np.uint8]) -> tuple[int, int]:
    """(width, height) by the header of a PNG or JPEG; zeros where there is none: the decoder refuses such."""
    if flat[:8].tobytes() == _PNG_MAGIC:
        width, height = struct.unpack(">II", flat[16:24].tobytes()) if flat.size >= 24 else (0, 0)
        return width, height
    at, largest = 2, (0, 0)
    while at + 9 <= flat.size:  # segments: FF marker, length of what follows (itself included), content
        marker = int(flat[at + 1])
        if flat[at] != 0xFF or marker == 0xDA:  # pixels begin
            break
        if marker == 0xFF:  # padding
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", flat[at + 5 : at + 9].tobytes())
            largest = max(largest, (width, height), key=lambda size: size[0] * size[1])
        at += 2 if 0xD0 <= marker <= 0xD8 or marker == 0x01 else 2 + int(flat[at + 2]) * 256 + int(flat[at + 3])
    return largest


def _imdecode(data: Bytes, flags: int) -> NDArray[Any]:
    flat = _as_flat_uint8(data)
    _check_complete(flat)
    _check_size(flat)
    image = cv2.imdecode(flat, flags)
    if image is None:
        kind = "PNG" if flat[:4].tobytes() == _PNG_MAGIC[:4] else "JPEG"
        raise ImageDecodeError(f"{kind} image is damaged ({flat.size} bytes)")
    return np.asarray(image)


# as the sensor saw it: an orientation in EXIF is for people, and would turn colour but not its depth
COLOR_AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


def decode_color_file(data: Bytes) -> NDArray[np.uint8]:
    """PNG or JPEG bytes (a file, or ``data`` of a ``sensor_msgs/CompressedImage``) -> (H, W, 3) uint8 RGB, as stored:
    an orientation in EXIF is ignored.

    Raises :class:`ImageDecodeError` for anything cut short or damaged."""
    return np.asarray(cv2.cvtColor(_imdecode(data, COLOR_AS_STORED), cv2.COLOR_BGR2RGB), dtype=np.uint8)


def decode_depth_file(data: Bytes) -> NDArray[np.uint16]:
    """16-bit single-channel PNG bytes -> (H, W) uint16 raw depth. Raises :class:`ImageDecodeError`."""
    image = _imdecode(data, cv2.IMREAD_UNCHANGED)
    if image.ndim != 2 or image.dtype != np.uint16:
        raise ImageDecodeError(f"depth must be a 16-bit image of one channel, got shape {image.shape} {image.dtype}")
    return image


def encode_depth_file(depth: NDArray[np.uint16]) -> bytes:
    """(H, W) uint16 raw depth -> PNG bytes; lossless."""
    if depth.ndim != 2 or depth.dtype != np.uint16:
        raise ValueError(f"depth must be (H, W) uint16, got {depth.shape} {depth.dtype}")
    return _imencode(".png", depth, [cv2.IMWRITE_PNG_COMPRESSION, 1])


def encode_color_file(color: NDArray[np.uint8], extension: str = ".png", jpeg_quality: int = 95) -> bytes:
    """(H, W, 3) uint8 RGB -> bytes of a ``.png`` (lossless) or ``.jpg``."""
    if extension not in (".png", ".jpg"):
        raise ValueError(f"extension must be .png or .jpg, got {extension!r}")
    options = [cv2.IMWRITE_JPEG_QUALITY, jpeg_quality] if extension == ".jpg" else [cv2.IMWRITE_PNG_COMPRESSION, 1]
    return _imencode(extension, cv2.cvtColor(color, cv2.COLOR_RGB2BGR), options)


def _imencode(extension: str, image: Any, options: list[int]) -> bytes:
    ok, encoded = cv2.imencode(extension, image, options)
    if not ok:
        raise ValueError(f"cannot encode an image of shape {np.shape(image)} as {extension}")
    return bytes(encoded)


def _decode_rvl_depth(packed: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Size, then the image."""
    if packed.size < _RVL_SIZE.size:
        raise ImageDecodeError(f"RVL image is cut short: {packed.size} bytes")
    width, height = _RVL_SIZE.unpack(packed[: _RVL_SIZE.size].tobytes())
    try:
        return decode_rvl(packed[_RVL_SIZE.size :], height, width)
    except ValueError as error:
        raise ImageDecodeError(str(error)) from error


_RVL_SIZE = struct.Struct("<II")  # columns, rows
# compressed_depth_image_transport: enum compressionFormat (int32), then two float32 quantisation parameters
_COMPRESSED_DEPTH_HEADER = struct.Struct("<iff")


def decode_compressed_depth(data: Bytes, format: str) -> tuple[NDArray[Any], str]:
    """``data`` and ``format`` of a ``sensor_msgs/CompressedImage`` that carries depth -> (raw depth, encoding).

    Plain 16-bit PNG, and ``compressedDepth`` (``"16UC1; compressedDepth png"``, ``"32FC1; compressedDepth png"``; rvl
    in place of png), whose 32FC1 form stores inverse depth: ``depth = a / (value - b)``, value 0 = invalid.

    Returns:
        ((H, W) uint16, "16UC1") or ((H, W) float32 metres with NaN = invalid, "32FC1").

    Raises:
        ImageDecodeError: another format or encoding, or damaged data.
    """
    if "compressedDepth" not in format:
        return decode_depth_file(data), "16UC1"
    encoding = format.split(";")[0].strip()
    if encoding not in _COMPRESSED_DEPTH_ENCODINGS:
        raise ImageDecodeError(f"compressedDepth of encoding {encoding!r} is not supported (format {format!r})")
    flat = _as_flat_uint8(data)
    if flat.size <= _COMPRESSED_DEPTH_HEADER.size:
        raise ImageDecodeError(f"compressedDepth data is cut short: {flat.size} bytes")
    _, a, b = _COMPRESSED_DEPTH_HEADER.unpack(flat[: _COMPRESSED_DEPTH_HEADER.size].tobytes())
    packed = flat[_COMPRESSED_DEPTH_HEADER.size :]
    raw = _decode_rvl_depth(packed) if "rvl" in format.lower() else decode_depth_file(packed)
    if encoding == "16UC1":
        return raw, encoding
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse: NDArray[np.float32] = np.float32(a) / (raw.astype(np.float32) - np.float32(b))
    return np.where(raw > 0, inverse, np.float32(np.nan)).astype(np.float32), encoding
