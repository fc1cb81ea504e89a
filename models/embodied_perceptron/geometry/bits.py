"""Sorted distinct site keys by marking bits in a box, without sorting; compiled, with references in the tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import SITE_BITS, distinct_keys

_AXES = 4  # of a site key: sample, x, y, z
_WORDS_PER_KEY = 4  # for a sparser box sorting is faster

# position of the lowest set bit of a 64-bit word: multiply the isolated bit by a de Bruijn sequence
_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
_BIT_INDEX = np.zeros(64, np.int64)
for _i in range(64):
    _BIT_INDEX[((int(_DE_BRUIJN) << _i) & 0xFFFFFFFFFFFFFFFF) >> 58] = _i


@njit(cache=True, inline="always")
def lowest_bit(word: int) -> int:
    """Position of the lowest set bit of a uint64 that is not 0."""
    isolated = word & (~word + np.uint64(1))
    position: int = _BIT_INDEX[(isolated * _DE_BRUIJN) >> np.uint64(58)]
    return position


def distinct_site_keys(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) site keys -> (M,) sorted distinct keys: :func:`~.transforms.distinct_keys` in a third of its time."""
    if len(keys) == 0:
        return distinct_keys(keys)
    low, shift, extent = np.empty(_AXES, np.int64), np.empty(_AXES, np.int64), np.empty(_AXES, np.int64)
    _box_of(keys, low, shift, extent)
    words = float(np.prod(extent[:3].astype(np.float64))) * ((int(extent[3]) >> 6) + 1)
    if words > _WORDS_PER_KEY * len(keys):
        return distinct_keys(keys)
    marks = np.zeros(int(words), np.uint64)
    count = _mark(keys, low, shift, extent, marks)
    found: NDArray[np.int64] = np.empty(count, np.int64)
    _unmark(marks, low, shift, extent, found)
    return found


@njit(cache=True, nogil=True)
def _box_of(
    keys: NDArray[np.int64], low: NDArray[np.int64], shift: NDArray[np.int64], extent: NDArray[np.int64]
) -> None:
    """Compute for each axis the lowest coordinate, the power-of-two stride as a shift, and the number of steps."""
    mask = (1 << SITE_BITS) - 1
    for axis in range(_AXES):
        down = SITE_BITS * (_AXES - 1 - axis)
        first = (keys[0] >> down) & mask
        lowest, highest, different = first, first, np.int64(0)
        for key in keys:
            at = (key >> down) & mask
            lowest, highest = min(lowest, at), max(highest, at)
            different |= at ^ first
        step = 0
        while different and not (different >> step) & 1:
            step += 1
        low[axis], shift[axis], extent[axis] = lowest, step, ((highest - lowest) >> step) + 1


@njit(cache=True, nogil=True)
def _mark(
    keys: NDArray[np.int64],
    low: NDArray[np.int64],
    shift: NDArray[np.int64],
    extent: NDArray[np.int64],
    marks: NDArray[np.uint64],
) -> int:
    """Set the bit of each key and return the number of set bits. Each row along z has its own words."""
    mask = (1 << SITE_BITS) - 1
    words = (extent[3] >> 6) + 1
    count = 0
    for key in keys:
        s = ((key >> (3 * SITE_BITS)) - low[0]) >> shift[0]
        x = (((key >> (2 * SITE_BITS)) & mask) - low[1]) >> shift[1]
        y = (((key >> SITE_BITS) & mask) - low[2]) >> shift[2]
        z = ((key & mask) - low[3]) >> shift[3]
        word = ((s * extent[1] + x) * extent[2] + y) * words + (z >> 6)
        bit = np.uint64(1) << np.uint64(z & 63)
        count += not marks[word] & bit
        marks[word] |= bit
    return count


@njit(cache=True, nogil=True)
def _unmark(
    marks: NDArray[np.uint64],
    low: NDArray[np.int64],
    shift: NDArray[np.int64],
    extent: NDArray[np.int64],
    found: NDArray[np.int64],
) -> None:
    """Write the keys of the set bits, in order."""
    words = (extent[3] >> 6) + 1
    n = 0
    word = 0
    for s in range(extent[0]):
        for x in range(extent[1]):
            for y in range(extent[2]):
                row = (low[0] + (s << shift[0])) << (3 * SITE_BITS)
                row |= (low[1] + (x << shift[1])) << (2 * SITE_BITS)
                row |= (low[2] + (y << shift[2])) << SITE_BITS
                for part in range(words):
                    bits = marks[word]
                    word += 1
                    while bits != np.uint64(0):
                        z = (part << 6) + lowest_bit(bits)
                        bits &= bits - np.uint64(1)
                        found[n] = row | (low[3] + (z << shift[3]))
                        n += 1
