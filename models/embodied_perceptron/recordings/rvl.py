"""Depth images compressed by RVL (Wilson, "Fast lossless depth image compression", ISS 2017).

Runs of unknown and of known pixels by turns, each beginning with its length; a known pixel is its difference from the
last known one, sign in the lowest bit. Numbers are groups of three bits, lowest first, in four, whose highest says
that more follow; eight such nibbles make a 32-bit word, the first one uppermost, words little-endian.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit

MAX_PIXELS = 2**24  # a few bytes may stand for any number of unknown pixels
_FAULTS = {1: "is cut short", 2: "has a number of more than 32 bits", 3: "has more pixels than it says", 4: "has depth "
           "beyond 16 bits"}  # fmt: skip


def decode_rvl(data: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint16]:
    """(N,) bytes -> (H, W) uint16. Raises ``ValueError`` for what is cut short, damaged, or larger than all cameras."""
    if not (height > 0 and width > 0 and height * width <= MAX_PIXELS):
        raise ValueError(f"RVL image claims {width}x{height} pixels, at most {MAX_PIXELS} are decoded")
    depth = np.zeros(height * width, np.uint16)
    fault = _decode(np.ascontiguousarray(data), depth)
    if fault:
        raise ValueError(f"RVL image of {width}x{height} pixels {_FAULTS[fault]} ({data.size} bytes)")
    return depth.reshape(height, width)


def compile_kernels() -> None:
    """Compile the decoder, before the first image comes."""
    for writable in (True, False):  # data may share a message's memory
        data = np.array([0, 0, 0, 0x11], np.uint8)  # one unknown pixel, one known
        data.setflags(write=writable)
        decode_rvl(data, 1, 1)


@njit(cache=True, nogil=True, inline="always")
def _number(data: NDArray[np.uint8], at: int):  # type: ignore[no-untyped-def]
    """The number that begins at nibble ``at``, and where the next one does; -1 = cut short, -2 = too long."""
    value, bits = 0, 0
    while True:
        index = (at >> 3) * 4 + 3 - ((at & 7) >> 1)  # nibbles of a little-endian word, uppermost first
        if index >= data.size:
            return -1, at
        byte = np.int64(data[index])  # with bytes as they are numba computes in floating point
        nibble = byte >> 4 if at % 2 == 0 else byte & 15
        at += 1
        value |= (nibble & 7) << bits
        bits += 3
        if nibble < 8:
            return value, at
        if bits > 30:
            return -2, at


@njit(cache=True, nogil=True)
def _decode(data: NDArray[np.uint8], depth: NDArray[np.uint16]) -> int:
    """Fill ``depth``, zeros; a key of ``_FAULTS``, or 0."""
    at, pixel, last = 0, 0, 0
    while pixel < depth.size:
        for known in range(2):
            count, at = _number(data, at)
            if count < 0:
                return int(-count)
            if count > depth.size - pixel:
                return 3
            if known:
                for _ in range(count):
                    value, at = _number(data, at)
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
