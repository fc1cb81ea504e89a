"""Images of every encoding: known pixels, slow reference decoders, truncated, odd and hostile data."""

from __future__ import annotations

import contextlib
import struct
from array import array

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.image_files import with_orientation

from embodied_perceptron.recordings.image_codec import (
    CAMERA_FORMATS,
    COLOR_ENCODINGS,
    DEPTH_ENCODINGS,
    MAX_PIXELS,
    ImageDecodeError,
    decode_color_file,
    decode_compressed_depth,
    decode_depth_file,
    decode_image,
    decode_rvl,
    encode_color_file,
    encode_depth_file,
    encode_image,
)
from embodied_perceptron.sensors.frame import canonical_depth

# --------------------------------------------------------------------------------------------------------------------
# raw and compressed images


RGB = [[(10, 20, 30), (40, 50, 60)]]


@pytest.mark.parametrize(
    ("encoding", "data", "expected"),
    [
        ("rgb8", [10, 20, 30, 40, 50, 60], RGB),
        ("bgr8", [30, 20, 10, 60, 50, 40], RGB),
        ("rgba8", [10, 20, 30, 1, 40, 50, 60, 2], RGB),
        ("bgra8", [30, 20, 10, 1, 60, 50, 40, 2], RGB),
        ("mono8", [7, 9], [[(7, 7, 7), (9, 9, 9)]]),
    ],
)
@pytest.mark.parametrize("container", [bytes, bytearray, memoryview, array, np.ndarray])
def test_colour_encodings(encoding: str, data: list[int], expected: object, container: type) -> None:
    raw: object = bytes(data)
    if container is array:
        raw = array("B", data)
    elif container is np.ndarray:
        raw = np.array(data, np.uint8)
    elif container is not bytes:
        raw = container(raw)
    image = decode_image(1, 2, encoding, len(data), 0, raw)  # type: ignore[arg-type]
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize("big", [0, 1, False, True])
def test_depth_encodings_in_both_byte_orders(big: int) -> None:
    order = ">" if big else "<"
    u16 = decode_image(2, 2, "16UC1", 4, big, struct.pack(order + "4H", 0, 1, 258, 65535))
    assert u16.dtype == np.dtype("uint16")
    assert u16.dtype.isnative
    np.testing.assert_array_equal(u16, [[0, 1], [258, 65535]])
    f32 = decode_image(1, 3, "32FC1", 12, big, struct.pack(order + "3f", 1.5, np.nan, np.inf))
    assert f32.dtype == np.dtype("float32")
    assert f32.dtype.isnative
    np.testing.assert_array_equal(f32, np.array([[1.5, np.nan, np.inf]], np.float32))
    f64 = decode_image(1, 3, "64FC1", 24, big, struct.pack(order + "3d", 1.5, np.nan, np.inf))
    assert f64.dtype == np.dtype("float32")
    np.testing.assert_array_equal(f64, f32)
    grey = decode_image(2, 2, "mono16", 4, big, struct.pack(order + "4H", 0, 1, 258, 65535))
    np.testing.assert_array_equal(grey, u16)
    np.testing.assert_array_equal(canonical_depth(grey, "mono16"), canonical_depth(u16, "16UC1"))
    np.testing.assert_array_equal(canonical_depth(f64, "64FC1"), canonical_depth(f32, "32FC1"))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([e for e in COLOR_ENCODINGS + DEPTH_ENCODINGS if e not in CAMERA_FORMATS]),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(0, 13),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_agrees_with_a_loop_over_bytes(
    encoding: str, height: int, width: int, padding: int, big: bool, last_row_padded: bool, seed: int
) -> None:
    widths = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1, "16UC1": 2, "mono16": 2, "32FC1": 4, "64FC1": 8}
    channels = widths[encoding]
    step = width * channels + padding
    data = np.random.default_rng(seed).integers(0, 256, step * height, dtype=np.uint8).tobytes()
    if not last_row_padded:
        data = data[: len(data) - padding]
    image = decode_image(height, width, encoding, step, big, data)
    for v in range(height):
        for u in range(width):
            pixel = data[v * step + u * channels : v * step + (u + 1) * channels]
            if encoding in ("16UC1", "mono16"):
                assert image[v, u] == int.from_bytes(pixel, "big" if big else "little")
            elif encoding in ("32FC1", "64FC1"):
                number = struct.unpack((">" if big else "<") + ("f" if encoding == "32FC1" else "d"), pixel)
                with np.errstate(over="ignore", invalid="ignore"):
                    np.testing.assert_array_equal(image[v, u], np.float32(number))
            else:
                rgb = {"rgb8": (0, 1, 2), "rgba8": (0, 1, 2), "mono8": (0, 0, 0)}.get(encoding, (2, 1, 0))
                assert tuple(image[v, u]) == tuple(pixel[i] for i in rgb)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_encode_image_is_the_inverse(dtype: type) -> None:
    rng = np.random.default_rng(0)
    image = (rng.random((5, 7, 3) if dtype is np.uint8 else (5, 7)) * 200).astype(dtype)
    encoding, step, data = encode_image(image)
    np.testing.assert_array_equal(decode_image(5, 7, encoding, step, 0, data), image)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 4)])
def test_encode_image_refuses_other_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no encoding"):
        encode_image(np.zeros(shape, np.int32))
    with pytest.raises(ValueError, match="no encoding"):
        encode_image(np.zeros((2, 2, 4), np.uint8))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (4320, 7680)])
@pytest.mark.parametrize("encoding", ["rgb8", "16UC1"])
def test_the_smallest_and_the_largest_image(height: int, width: int, encoding: str) -> None:
    step = width * (3 if encoding == "rgb8" else 2)
    data = np.zeros(step * height, np.uint8)
    data[-2:] = 1
    image = decode_image(height, width, encoding, step, 0, data)
    assert image.shape[:2] == (height, width)
    assert image.ravel()[-1] == (1 if encoding == "rgb8" else 257)


@pytest.mark.parametrize("encoding", ["p010", "bayer_rggb32", "16SC1", "", "RGB8", "mono32"])
def test_unknown_encodings_are_named(encoding: str) -> None:
    with pytest.raises(ImageDecodeError, match=rf"encoding '{encoding}' is not supported \(supported: rgb8"):
        decode_image(1, 1, encoding, 4, 0, bytes(4))


@pytest.mark.parametrize(("height", "width"), [(0, 1), (1, 0), (-1, 4)])
def test_empty_images_are_refused(height: int, width: int) -> None:
    with pytest.raises(ImageDecodeError, match=f"size must be positive, got {width}x{height}"):
        decode_image(height, width, "rgb8", 100, 0, bytes(100))


def test_impossible_step_and_short_data_are_named() -> None:
    with pytest.raises(ImageDecodeError, match=r"step 5 is less than a row of 2 rgb8 pixels \(6 bytes\)"):
        decode_image(2, 2, "rgb8", 5, 0, bytes(12))
    with pytest.raises(ImageDecodeError, match=r"cut short: 11 bytes for 2x2 rgb8 with step 6 \(needs 12\)"):
        decode_image(2, 2, "rgb8", 6, 0, bytes(11))


# --------------------------------------------------------------------------------------------------------------------
# compressed


@pytest.fixture
def color() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)


@pytest.fixture
def depth() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 65536, (48, 64)).astype(np.uint16)


def test_png_round_trips_exactly(color: np.ndarray, depth: np.ndarray) -> None:
    np.testing.assert_array_equal(decode_color_file(encode_color_file(color)), color)
    np.testing.assert_array_equal(decode_depth_file(encode_depth_file(depth)), depth)


def test_jpeg_keeps_the_order_of_channels() -> None:
    red = np.zeros((32, 32, 3), np.uint8)
    red[..., 0] = 200
    out = decode_color_file(encode_color_file(red, ".jpg"))
    assert np.abs(out.astype(int) - red).max() <= 3


@pytest.mark.parametrize("extension", [".png", ".jpg"])
@pytest.mark.parametrize("keep", [0.99, 0.5, 0.05])
def test_files_cut_short_raise_instead_of_turning_grey(color: np.ndarray, extension: str, keep: float) -> None:
    data = encode_color_file(color, extension)
    with pytest.raises(ImageDecodeError, match="cut short"):
        decode_color_file(data[: int(len(data) * keep)])


def test_a_damaged_png_raises(depth: np.ndarray) -> None:
    data = bytearray(encode_depth_file(depth))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(ImageDecodeError, match="damaged"):
        decode_depth_file(bytes(data))


@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 100])
def test_what_is_no_image_is_named(data: bytes) -> None:
    with pytest.raises(ImageDecodeError, match="neither PNG nor JPEG"):
        decode_color_file(data)


def test_depth_must_have_16_bits_and_one_channel(color: np.ndarray) -> None:
    with pytest.raises(ImageDecodeError, match="16-bit image of one channel"):
        decode_depth_file(encode_color_file(color))


def test_encoders_refuse_other_types(color: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint16"):
        encode_depth_file(color)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\.png or \.jpg"):
        encode_color_file(color, ".bmp")


def compressed_depth(raw: np.ndarray, a: float = 0.0, b: float = 0.0) -> bytes:
    return struct.pack("<iff", 0, a, b) + encode_depth_file(raw)


def test_compressed_depth_in_millimetres(depth: np.ndarray) -> None:
    for data, format in ((compressed_depth(depth), "16UC1; compressedDepth png"), (encode_depth_file(depth), "png")):
        raw, encoding = decode_compressed_depth(data, format)
        assert encoding == "16UC1"
        np.testing.assert_array_equal(raw, depth)


def test_compressed_depth_in_metres_inverts_the_quantisation() -> None:
    metres = np.array([[0.5, 1.0, 4.0, np.nan]], np.float32)
    # the encoder's parameters for depth_max = 10, depth_quantization = 100
    a = 100.0 * (100.0 + 1.0)
    b = 1.0 - a / 10.0
    quantised = np.where(np.isnan(metres), 0, a / metres + b).astype(np.uint16)
    raw, encoding = decode_compressed_depth(compressed_depth(quantised, a, b), "32FC1; compressedDepth png")
    assert encoding == "32FC1"
    assert raw.dtype == np.float32
    np.testing.assert_allclose(raw, metres, rtol=1e-3)


@pytest.mark.parametrize(
    ("format", "message"),
    [("32SC1; compressedDepth png", "encoding '32SC1'"), ("16UC1; compressedDepth rvl", "RVL image")],
)
def test_other_compressed_depth_is_refused_by_name(depth: np.ndarray, format: str, message: str) -> None:
    with pytest.raises(ImageDecodeError, match=message):
        decode_compressed_depth(compressed_depth(depth), format)


def test_compressed_depth_cut_short(depth: np.ndarray) -> None:
    data = compressed_depth(depth)
    for end in (5, 12, len(data) // 2):
        with pytest.raises(ImageDecodeError, match=r"cut short|neither PNG"):
            decode_compressed_depth(data[:end], "16UC1; compressedDepth png")


@pytest.mark.parametrize("extension", [".png", ".jpg"])
def test_a_small_file_that_claims_many_pixels_is_refused_before_memory_is_taken(extension):
    data = bytearray(encode_color_file(np.zeros((16, 24, 3), np.uint8), extension))
    assert decode_color_file(bytes(data)).shape == (16, 24, 3)
    if extension == ".png":
        data[16:24] = (30_000).to_bytes(4, "big") * 2
    else:
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = (60_000).to_bytes(2, "big") * 2
    with pytest.raises(ImageDecodeError, match="pixels"):
        decode_color_file(bytes(data))


def test_a_file_that_claims_more_than_its_bytes_can_hold_is_refused_before_memory_is_taken() -> None:
    """One damaged byte of a height: below the limit of pixels, but seconds and gigabytes of a decoder's."""
    data = bytearray(encode_depth_file(np.full((48, 64), 1200, np.uint16)))
    data[16:24] = (64).to_bytes(4, "big") + (48 + (8 << 16)).to_bytes(4, "big")
    with pytest.raises(ImageDecodeError, match=r"64x524336 pixels, which \d+ bytes cannot hold"):
        decode_depth_file(bytes(data))
    photo = bytearray(encode_color_file(np.zeros((16, 24, 3), np.uint8), ".jpg"))
    at = photo.index(b"\xff\xc0")
    photo[at + 5 : at + 9] = (8_000).to_bytes(2, "big") * 2
    with pytest.raises(ImageDecodeError, match="cannot hold"):
        decode_color_file(bytes(photo))


@pytest.mark.parametrize("shape", [(1, 1), (2000, 3000), (1, 60_000)])
def test_what_compresses_best_is_still_decoded(shape: tuple[int, int]) -> None:
    flat = np.zeros(shape, np.uint16)
    np.testing.assert_array_equal(decode_depth_file(encode_depth_file(flat)), flat)
    photo = np.zeros((*shape, 3), np.uint8)
    for extension in (".png", ".jpg"):
        assert decode_color_file(encode_color_file(photo, extension)).shape == photo.shape


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", [".jpg", ".png"])
def test_pictures_are_read_as_they_are_stored(orientation: int, extension: str) -> None:
    """An orientation in EXIF would turn colour, but not the depth that belongs to it."""
    pixels = np.zeros((24, 40, 3), np.uint8)
    pixels[:12, :20] = 255
    data = with_orientation(encode_color_file(pixels, extension), orientation)
    if extension == ".jpg" and orientation == 3:
        turned = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert turned[-1, -1, 0] > 200, "the file says that it is upside down"
    np.testing.assert_allclose(decode_color_file(data).astype(int), pixels, atol=30)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_depth_is_read_as_it_is_stored(orientation: int) -> None:
    depth = np.arange(24 * 40, dtype=np.uint16).reshape(24, 40)
    np.testing.assert_array_equal(decode_depth_file(with_orientation(encode_depth_file(depth), orientation)), depth)


# --------------------------------------------------------------------------------------------------------------------
# Bayer, YUV and RVL


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
