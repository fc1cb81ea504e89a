"""decode_image and its kin: every encoding against pixels written out by hand, padding, byte order, damage."""

from __future__ import annotations

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
    ImageDecodeError,
    decode_color_file,
    decode_compressed_depth,
    decode_depth_file,
    decode_image,
    encode_color_file,
    encode_depth_file,
    encode_image,
)
from embodied_perceptron.sensors.frame import canonical_depth

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
