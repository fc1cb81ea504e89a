"""Bayer, YUV and RVL: known pixels, slow twins, and what is cut short, odd or hostile."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest

from embodied_perceptron.recordings.image_codec import (
    CAMERA_FORMATS,
    MAX_PIXELS,
    ImageDecodeError,
    decode_compressed_depth,
    decode_image,
    decode_rvl,
)

H, W = 8, 12
RED_RIGHT = np.zeros((H, W, 3), np.uint8)  # blue-green left, red right
RED_RIGHT[:, : W // 2] = (20, 180, 90)
RED_RIGHT[:, W // 2 :] = (200, 40, 60)


def mosaic(encoding, image):
    """One colour of each pixel, by the letters of the name, row by row."""
    letters = encoding.removeprefix("bayer_")[:4]
    out = np.zeros(image.shape[:2], np.uint8)
    for i, letter in enumerate(letters):
        rows, columns = slice(i // 2, None, 2), slice(i % 2, None, 2)
        out[rows, columns] = image[rows, columns, "rgb".index(letter)]
    return out


def yuv(image):
    """(H, W) each of BT.601 with 16 to 235."""
    r, g, b = np.moveaxis(image.astype(float), -1, 0)
    y = 16 + 0.257 * r + 0.504 * g + 0.098 * b
    u = 128 - 0.148 * r - 0.291 * g + 0.439 * b
    v = 128 + 0.439 * r - 0.368 * g - 0.071 * b
    return [np.rint(plane).astype(np.uint8) for plane in (y, u, v)]


def packed(encoding, image, step=None):
    """The bytes of an image, with padding of 0xAA, and its step."""
    y, u, v = yuv(image)
    if encoding.startswith("bayer"):
        rows = mosaic(encoding, image)
        rows = rows if encoding.endswith("8") else (rows.astype("<u2") * 257).view(np.uint8).reshape(H, -1)
        widths = [rows]
    elif encoding in ("yuv422", "uyvy", "yuv422_yuy2", "yuyv"):
        pairs = [u[:, ::2], y[:, ::2], v[:, ::2], y[:, 1::2]]
        order = (0, 1, 2, 3) if encoding in ("yuv422", "uyvy") else (1, 0, 3, 2)
        widths = [np.stack([pairs[i] for i in order], -1).reshape(H, -1)]
    elif encoding in ("nv12", "nv21"):
        halves = [u[::2, ::2], v[::2, ::2]][:: 1 if encoding == "nv12" else -1]
        widths = [y, np.stack(halves, -1).reshape(H // 2, -1)]
    elif encoding == "nv24":
        widths = [y, np.stack([u, v], -1).reshape(H, -1)]
    else:
        widths = [y, u[::2, ::2], v[::2, ::2]]
    row = widths[0].shape[1]
    step = step or row
    out = []
    for part in widths:
        long = step * part.shape[1] // row
        padded = np.full((len(part), long), 0xAA, np.uint8)
        padded[:, : part.shape[1]] = part
        out.append(padded.reshape(-1))
    return np.concatenate(out), step


@pytest.mark.parametrize("padding", [0, 4])
@pytest.mark.parametrize("encoding", CAMERA_FORMATS)
def test_colours_come_back(encoding, padding):
    data, step = packed(encoding, RED_RIGHT)
    data, step = packed(encoding, RED_RIGHT, step + padding)
    found = decode_image(H, W, encoding, step, 0, data)
    assert found.shape == (H, W, 3)
    assert found.dtype == np.uint8
    apart = np.abs(found.astype(int) - RED_RIGHT)
    assert apart[:, 2:4].max() <= 4  # away from the edge between the two, where pixels share colours
    assert apart[:, -4:-2].max() <= 4


def test_the_byte_order_of_sixteen_bits():
    data, step = packed("bayer_grbg16", RED_RIGHT // 2)
    swapped = data.view(np.uint16).byteswap().view(np.uint8)
    here, there = (
        decode_image(H, W, "bayer_grbg16", step, 0, data),
        decode_image(H, W, "bayer_grbg16", step, 1, swapped),
    )
    assert (here == there).all()


@pytest.mark.parametrize("encoding", CAMERA_FORMATS)
def test_short_and_odd_images_are_named(encoding):
    data, step = packed(encoding, RED_RIGHT)
    with pytest.raises(ImageDecodeError, match=r"cut short: .*needs"):
        decode_image(H, W, encoding, step, 0, data[:-1])
    with pytest.raises(ImageDecodeError, match="cut short"):
        decode_image(H, W, encoding, step, 0, b"")
    with pytest.raises(ImageDecodeError, match="less than a row"):
        decode_image(H, W, encoding, step - 1, 0, data)
    with pytest.raises(ImageDecodeError, match="must be positive"):
        decode_image(0, W, encoding, step, 0, data)
    layout = CAMERA_FORMATS[encoding]
    if layout.even_width:
        with pytest.raises(ImageDecodeError, match="even size, got 11x8"):
            decode_image(H, W - 1, encoding, step, 0, data)
    if layout.even_height:
        with pytest.raises(ImageDecodeError, match="even size, got 12x7"):
            decode_image(H - 1, W, encoding, step, 0, data)


@pytest.mark.parametrize("encoding", CAMERA_FORMATS)
def test_the_smallest_image(encoding):
    step = 2 * CAMERA_FORMATS[encoding].samples * CAMERA_FORMATS[encoding].sample_bytes
    assert decode_image(2, 2, encoding, step, 0, np.full(64, 128, np.uint8)).shape == (2, 2, 3)


# ------------------------------------------------------------------------------------------------------------- RVL


def rvl(depth):
    """Compressed, nibble by nibble."""
    nibbles = []

    def number(value):
        while True:
            more = value >> 3
            nibbles.append((value & 7) | (8 if more else 0))
            value = more
            if not more:
                return

    flat, last, at = depth.reshape(-1).astype(int), 0, 0
    while at < len(flat):
        for known in (False, True):
            end = at
            while end < len(flat) and (flat[end] != 0) == known:
                end += 1
            number(end - at)
            if known:
                for value in flat[at:end]:
                    delta, last = value - last, value
                    number((delta << 1) ^ (delta >> 63))
            at = end
    nibbles += [0] * (-len(nibbles) % 8)
    words = [sum(n << (28 - 4 * i) for i, n in enumerate(nibbles[k : k + 8])) for k in range(0, len(nibbles), 8)]
    return struct.pack(f"<{len(words)}I", *words)


def slow_decode(data, pixels):
    """By the definition, with Python's integers."""
    words = struct.unpack(f"<{len(data) // 4}I", data)
    nibbles = iter([(word >> (28 - 4 * i)) & 15 for word in words for i in range(8)])

    def number():
        value = shift = 0
        while True:
            nibble = next(nibbles)
            value |= (nibble & 7) << shift
            shift += 3
            if nibble < 8:
                return value

    out, last = [], 0
    while len(out) < pixels:
        out += [0] * number()
        for _ in range(number() if len(out) < pixels else 0):
            value = number()
            last += value >> 1 if value % 2 == 0 else -(value >> 1) - 1
            out.append(last)
    return np.array(out)


def message(depth, data=None):
    size = struct.pack("<II", depth.shape[1], depth.shape[0])
    return struct.pack("<iff", 1, 0.0, 0.0) + size + (rvl(depth) if data is None else data)


@pytest.mark.parametrize("seed", range(12))
def test_rvl_round_trips_and_equals_its_slow_twin(seed):
    rng = np.random.default_rng(seed)
    depth = (1000 + rng.integers(-30, 30, (13, 17)).cumsum(1)).astype(np.uint16)
    depth[rng.random(depth.shape) < 0.3] = 0
    if seed == 1:
        depth[:] = 0
    if seed == 2:
        depth = rng.integers(0, 65536, depth.shape).astype(np.uint16)
    if seed == 3:
        depth[:] = 65535
    found, encoding = decode_compressed_depth(message(depth), "16UC1; compressedDepth rvl")
    assert encoding == "16UC1"
    assert (found == depth).all()
    assert (slow_decode(rvl(depth), depth.size) == depth.reshape(-1)).all()


def test_rvl_of_metres_is_quantised_as_png_is():
    depth = np.array([[0, 1000], [2000, 4000]], np.uint16)
    data = struct.pack("<iff", 1, 3000.0, -10.0) + struct.pack("<II", 2, 2) + rvl(depth)
    found, encoding = decode_compressed_depth(data, "32FC1; compressedDepth rvl")
    assert encoding == "32FC1"
    assert np.isnan(found[0, 0])
    assert found[1, 1] == pytest.approx(3000 / 4010)


def test_rvl_that_is_cut_anywhere_is_named():
    depth = np.arange(1, 101, dtype=np.uint16).reshape(10, 10) * 7
    whole = message(depth)
    for length in range(len(whole) - 4):
        with pytest.raises(ImageDecodeError, match=r"cut short|claims|PNG"):
            decode_compressed_depth(whole[:length], "16UC1; compressedDepth rvl")


def test_hostile_rvl_is_refused():
    for size in ((0, 4), (2**31, 2**31), (MAX_PIXELS, 2)):
        data = struct.pack("<iff", 1, 0, 0) + struct.pack("<II", *size) + b"\x00" * 8
        with pytest.raises(ImageDecodeError, match="claims"):
            decode_compressed_depth(data, "16UC1; compressedDepth rvl")
    with pytest.raises(ValueError, match="more than 32 bits"):
        decode_rvl(np.full(64, 0xFF, np.uint8), 4, 4)
    with pytest.raises(ValueError, match="more pixels than it says"):
        decode_rvl(np.frombuffer(rvl(np.zeros((5, 5), np.uint16)), np.uint8), 4, 4)
    with pytest.raises(ValueError, match="beyond 16 bits"):  # no unknown pixel, one known: -1
        decode_rvl(np.array([0, 0, 0x10, 0x01], np.uint8), 1, 1)
    rng = np.random.default_rng(0)
    for _ in range(300):  # whatever comes, it ends, and within its memory
        data = rng.integers(0, 256, rng.integers(0, 60)).astype(np.uint8)
        with contextlib.suppress(ValueError):
            assert decode_rvl(data, 6, 7).shape == (6, 7)
