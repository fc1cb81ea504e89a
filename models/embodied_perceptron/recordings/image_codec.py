"""Image bytes -> arrays: the one place for encodings, row padding, byte order and compressed images.

Pure functions of message fields, shared by the bag reader, the folder reader and the ROS node. Every failure is a
:class:`ImageDecodeError` that names the value.
"""

from __future__ import annotations

import io
import re
import struct
import sys
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit

_COMBINED = re.compile(r"/rgbd(images?)?$", re.IGNORECASE)


def combined_images(types: Mapping[str, Collection[str]]) -> str:
    """Say which topics hold colour and depth in one message, which is not read; empty without such topics.

    ``types``: message types by topic. Combined are ``rtabmap_msgs/RGBDImage``, ``realsense2_camera_msgs/RGBD``, and
    others of such a name.
    """
    there = [f"{topic} ({kind})" for topic, kinds in sorted(types.items()) for kind in kinds if _COMBINED.search(kind)]
    remedy = "record and use the driver's separate topics of colour, depth and camera_info"
    text = f"{', '.join(there)}: messages that combine colour and depth cannot be read: {remedy}"
    return text if there else ""


# --------------------------------------------------------------------------------------------------------------------
# Bayer mosaics and YUV. Encodings are those of sensor_msgs/image_encodings, and nv12 and i420, which drivers write too.


@dataclass(frozen=True)
class CameraFormat:
    """Memory layout of an image.

    Attributes:
        sample_bytes: bytes of one sample of a row.
        samples: samples in a row per pixel.
        rows: rows in total per row of pixels: more than one where chroma follows luma.
        even_width, even_height: pairs of pixels share their chroma.
        code: conversion to RGB of OpenCV; None = full-resolution chroma after luma (nv24).
    """

    sample_bytes: int
    samples: int
    rows: float
    even_width: bool
    even_height: bool
    code: int | None


# OpenCV names a Bayer pattern by its second row and column, ROS by the first
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
_PLANAR = ("i420", "nv24")  # their chroma rows have another length than their luma rows


def check_size(encoding: str, height: int, width: int, step: int) -> None:
    """Raise :class:`ImageDecodeError` for a size that an encoding cannot have."""
    layout = CAMERA_FORMATS[encoding]
    if (layout.even_width and width % 2) or (layout.even_height and height % 2):
        raise ImageDecodeError(f"{encoding} images have an even size, got {width}x{height}")
    if encoding == "i420" and step % 2:
        raise ImageDecodeError(f"{encoding} images have an even step, got {step}")


def to_rgb(encoding: str, height: int, width: int, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert packed rows to (H, W, 3) uint8 RGB.

    Args:
        encoding: of :data:`CAMERA_FORMATS`.
        height, width: of the image.
        rows: (H rows, W samples sample_bytes) uint8 without padding, native byte order; for i420 and nv24, whose chroma
            rows have other lengths, (H rows W,) from :func:`planar_rows`.
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
    """Remove the padding of an image whose chroma rows have another length than its luma rows.

    ``flat`` has at least :func:`planar_bytes` bytes.
    """
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
    """Return the smallest size in bytes of such an image: the padding of its last row may be missing."""
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


# --------------------------------------------------------------------------------------------------------------------
# RVL (Wilson, "Fast lossless depth image compression", ISS 2017)

_MAX_RVL_PIXELS = 2**24  # a few bytes may stand for any number of unknown pixels
_RVL_FAULTS = {
    1: "is cut short",
    2: "has a number of more than 32 bits",
    3: "has more pixels than it says",
    4: "has depth beyond 16 bits",
}


def decode_rvl(data: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint16]:
    """Decode (N,) bytes to (H, W) uint16. Raises :class:`ImageDecodeError` for truncated, damaged or oversized
    images.

    Runs of unknown and of known pixels alternate, each preceded by its length; a known pixel is its difference from the
    last known one with the sign in the lowest bit. Numbers are groups of three bits, lowest first, in nibbles whose
    highest bit says that more follow; eight nibbles make a little-endian 32-bit word, the first one uppermost.
    """
    if not (height > 0 and width > 0 and height * width <= _MAX_RVL_PIXELS):
        raise ImageDecodeError(f"RVL image claims {width}x{height} pixels, at most {_MAX_RVL_PIXELS} are decoded")
    depth = np.zeros(height * width, np.uint16)
    fault = _decode_rvl(np.ascontiguousarray(data), depth)
    if fault:
        raise ImageDecodeError(f"RVL image of {width}x{height} pixels {_RVL_FAULTS[fault]} ({data.size} bytes)")
    return depth.reshape(height, width)


def compile_kernels() -> None:
    """Compile the decoder."""
    for writable in (True, False):  # data may be the memory of a message
        data = np.array([0, 0, 0, 0x11], np.uint8)  # one unknown pixel, one known
        data.setflags(write=writable)
        decode_rvl(data, 1, 1)


@njit(cache=True, nogil=True, inline="always")
def _rvl_number(data: NDArray[np.uint8], at: int):  # type: ignore[no-untyped-def]
    """Return the number at nibble ``at`` and the position after it; -1 = truncated, -2 = too long."""
    value, bits = 0, 0
    while True:
        index = (at >> 3) * 4 + 3 - ((at & 7) >> 1)  # nibbles of a little-endian word, uppermost first
        if index >= data.size:
            return -1, at
        byte = np.int64(data[index])  # numba computes with uint8 in floating point
        nibble = byte >> 4 if at % 2 == 0 else byte & 15
        at += 1
        value |= (nibble & 7) << bits
        bits += 3
        if nibble < 8:
            return value, at
        if bits > 30:
            return -2, at


@njit(cache=True, nogil=True)
def _decode_rvl(data: NDArray[np.uint8], depth: NDArray[np.uint16]) -> int:
    """Fill the zeros of ``depth``; return a key of ``_RVL_FAULTS``, or 0."""
    at, pixel, last = 0, 0, 0
    while pixel < depth.size:
        for known in range(2):
            count, at = _rvl_number(data, at)
            if count < 0:
                return int(-count)
            if count > depth.size - pixel:
                return 3
            if known:
                for _ in range(count):
                    value, at = _rvl_number(data, at)
                    if value < 0:
                        return int(-value)
                    last += (value >> 1) ^ -(value & 1)
                    if last < 0 or last > 65535:
                        return 4
                    depth[pixel] = last
                    pixel += 1
            else:
                pixel += count
            if known == 0 and pixel == depth.size:
                return 0
    return 0


COLOR_ENCODINGS = ("rgb8", "bgr8", "rgba8", "bgra8", "mono8", *CAMERA_FORMATS)
# 16-bit depth that a driver calls mono16, and doubles of a simulator, become 16UC1 and 32FC1
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
    """Decode the fields of a ``sensor_msgs/Image``.

    Args:
        height, width: in pixels, positive.
        encoding: one of :data:`COLOR_ENCODINGS` or :data:`DEPTH_ENCODINGS`.
        step: bytes per row, padding included.
        is_bigendian: byte order of values of more than one byte.
        data: at least ``step * (height - 1)`` bytes plus one row without padding.

    Returns:
        (H, W, 3) uint8 RGB for a colour encoding; (H, W) uint16 or float32, native byte order, raw units, for a depth
        encoding (:func:`embodied_perceptron.sensors.frame.canonical_depth` converts it to metres). May share memory
        with ``data``.

    Raises:
        ImageDecodeError: unknown encoding, impossible size or step, or too few bytes.
    """
    if encoding in CAMERA_FORMATS:
        return _decode_camera_format(height, width, encoding, step, is_bigendian, data)
    if encoding not in _CHANNELS and encoding not in _DEPTH_DTYPE:
        supported = ", ".join(COLOR_ENCODINGS + DEPTH_ENCODINGS)
        raise ImageDecodeError(f"image encoding {encoding!r} is not supported (supported: {supported})")
    depth_dtype = _DEPTH_DTYPE.get(encoding)
    row_bytes = width * (_CHANNELS[encoding] if depth_dtype is None else depth_dtype.itemsize)
    flat = _checked_data(height, width, encoding, step, row_bytes, data)
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


def _checked_data(height: int, width: int, encoding: str, step: int, row_bytes: int, data: Bytes) -> NDArray[np.uint8]:
    """Return the bytes of an image. Raises :class:`ImageDecodeError` for an impossible size or step, or too few."""
    if height <= 0 or width <= 0:
        raise ImageDecodeError(f"image size must be positive, got {width}x{height}")
    if step < row_bytes:
        raise ImageDecodeError(f"image step {step} is less than a row of {width} {encoding} pixels ({row_bytes} bytes)")
    rows = height
    if encoding in CAMERA_FORMATS:
        check_size(encoding, height, width, step)
        rows = round(height * CAMERA_FORMATS[encoding].rows)
    flat = _as_flat_uint8(data)
    planar = encoding in _PLANAR
    needed = planar_bytes(encoding, height, width, step) if planar else step * (rows - 1) + row_bytes
    if flat.size < needed:
        raise ImageDecodeError(
            f"image data is cut short: {flat.size} bytes for {width}x{height} {encoding} with step {step} "
            f"(needs {needed})"
        )
    return flat


def _decode_camera_format(
    height: int, width: int, encoding: str, step: int, is_bigendian: bool | int, data: Bytes
) -> NDArray[np.uint8]:
    """Decode Bayer and YUV; see :func:`decode_image`."""
    layout = CAMERA_FORMATS[encoding]
    row_bytes = width * layout.samples * layout.sample_bytes
    flat, count = _checked_data(height, width, encoding, step, row_bytes, data), round(height * layout.rows)
    if encoding in _PLANAR:
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

MAX_PIXELS = 2**26  # limit for the size that a compressed image claims, before memory is allocated
DEFLATE_RATIO = 1032  # largest compression ratio of PNG; JPEG stays below
_PNG_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_MAGIC = b"\xff\xd8"


def _check_complete(flat: NDArray[np.uint8]) -> None:
    """Check for the end marker: decoders fill missing data with grey and at most warn."""
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
    """Check the claimed size: a few kilobytes may claim gigabytes of pixels."""
    width, height = _claimed_size(flat)
    if width * height > MAX_PIXELS:
        raise ImageDecodeError(f"compressed image claims {width}x{height} pixels, at most {MAX_PIXELS} are decoded")
    bits = 8
    if flat[:8].tobytes() == _PNG_MAGIC and flat.size >= 26:
        bits = int(flat[24]) * _PNG_CHANNELS.get(int(flat[25]), 1)
    if height * -(-width * bits // 8) > flat.size * DEFLATE_RATIO:
        raise ImageDecodeError(f"compressed image claims {width}x{height} pixels, which {flat.size} bytes cannot hold")


def _claimed_size(flat: NDArray[np.uint8]) -> tuple[int, int]:
    """Return (width, height) from the header of a PNG or JPEG; zeros without a valid header, which the decoder
    refuses."""
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


# the EXIF orientation is ignored: it would turn colour but not depth
COLOR_AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


def decode_color_file(data: Bytes) -> NDArray[np.uint8]:
    """Decode PNG or JPEG (a file, or ``data`` of a ``sensor_msgs/CompressedImage``) to (H, W, 3) uint8 RGB.

    The EXIF orientation is ignored. Raises :class:`ImageDecodeError` for truncated or damaged images.
    """
    return np.asarray(cv2.cvtColor(_imdecode(data, COLOR_AS_STORED), cv2.COLOR_BGR2RGB), dtype=np.uint8)


def decode_depth_file(data: Bytes) -> NDArray[np.uint16]:
    """Decode a 16-bit single-channel PNG to (H, W) uint16 raw depth. Raises :class:`ImageDecodeError`."""
    image = _imdecode(data, cv2.IMREAD_UNCHANGED)
    if image.ndim != 2 or image.dtype != np.uint16:
        raise ImageDecodeError(f"depth must be a 16-bit image of one channel, got shape {image.shape} {image.dtype}")
    return image


def decode_grey_file(data: Bytes) -> NDArray[np.uint8]:
    """Decode an 8-bit single-channel PNG or JPEG to (H, W) uint8. Raises :class:`ImageDecodeError`."""
    return np.asarray(_imdecode(data, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION), dtype=np.uint8)


def decode_numpy_depth(data: bytes) -> NDArray[np.uint16]:
    """Decode an .npy file of (H, W) uint16 raw depth. Raises :class:`ImageDecodeError`."""
    file = io.BytesIO(data)
    try:
        read_header = _NPY_HEADERS[np.lib.format.read_magic(file)]
        shape, by_columns, dtype = read_header(file)
        if len(shape) != 2 or dtype.newbyteorder("=") != np.uint16 or min(shape) < 1:
            raise ValueError(f"depth must be (H, W) uint16, got {shape!s:.100} {dtype!s:.100}")
        if (needed := 2 * shape[0] * shape[1]) != len(data) - file.tell():
            raise ValueError(f"{shape[1]}x{shape[0]} pixels need {needed} bytes, got {len(data) - file.tell()}")
    except Exception as error:  # of any kind: the header is a literal of Python
        raise ImageDecodeError(f"is not an .npy file of depth, or is damaged: {error!s:.300}") from error
    raw = np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if by_columns else "C")
    return raw.astype(np.uint16)


_NPY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def encode_depth_file(depth: NDArray[np.uint16]) -> bytes:
    """Encode (H, W) uint16 raw depth as PNG."""
    if depth.ndim != 2 or depth.dtype != np.uint16:
        raise ValueError(f"depth must be (H, W) uint16, got {depth.shape} {depth.dtype}")
    return _imencode(".png", depth, [cv2.IMWRITE_PNG_COMPRESSION, 1])


def encode_color_file(color: NDArray[np.uint8], extension: str = ".png", jpeg_quality: int = 95) -> bytes:
    """Encode (H, W, 3) uint8 RGB as ``.png`` (lossless) or ``.jpg``."""
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
    """Decode the size, then the image."""
    if packed.size < _RVL_SIZE.size:
        raise ImageDecodeError(f"RVL image is cut short: {packed.size} bytes")
    width, height = _RVL_SIZE.unpack(packed[: _RVL_SIZE.size].tobytes())
    return decode_rvl(packed[_RVL_SIZE.size :], height, width)


_RVL_SIZE = struct.Struct("<II")  # columns, rows
# compressed_depth_image_transport: enum compressionFormat (int32), then two float32 quantisation parameters
_COMPRESSED_DEPTH_HEADER = struct.Struct("<iff")


def decode_compressed_depth(data: Bytes, format: str) -> tuple[NDArray[Any], str]:
    """Decode depth from ``data`` and ``format`` of a ``sensor_msgs/CompressedImage``.

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
