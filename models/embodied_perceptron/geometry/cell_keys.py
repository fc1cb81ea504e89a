"""Sortable keys of the cells of a grid, and the parts that touching cells form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import KEY_BITS

X_STEP, Y_STEP = 1 << (2 * KEY_BITS), 1 << KEY_BITS  # between the keys of neighbours; that of z is 1
_ORIGIN = (1 << (KEY_BITS - 1)) * (X_STEP + Y_STEP + 1)
# of cells next to each other in z, the middle ones of the five lines that touch a cell and are not behind it
_LINES = np.array([-X_STEP - Y_STEP, -X_STEP, Y_STEP - X_STEP, -Y_STEP, 0])


@njit(cache=True, nogil=True)
def keys_of(points_m: NDArray[np.float64], size_m: float) -> NDArray[np.int64]:
    """(K, 3) points -> (K,) keys of their cells on the world's grid, as :func:`.transforms.pack_keys`."""
    out = np.empty(len(points_m), np.int64)
    for i in range(len(points_m)):
        key = _ORIGIN
        for axis, step in enumerate((X_STEP, Y_STEP, 1)):
            key += np.int64(np.floor(points_m[i, axis] / size_m)) * step
        out[i] = key
    return out


def connected_parts(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """(K,) keys -> (K,) number of the connected part of each, by the lowest x (then y, z) of its cells.

    Cells that touch, if only at a corner, are connected.
    """
    part: NDArray[np.int64] = _parts(keys, np.argsort(keys, kind="stable"))
    return part


@njit(cache=True, nogil=True)
def _parts(keys: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Compiled :func:`connected_parts`; ``order``: (K,) rows by ascending keys."""
    cell, distinct, count = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64), 0
    for row in order:
        if count == 0 or distinct[count - 1] != keys[row]:
            distinct[count] = keys[row]
            count += 1
        cell[row] = count - 1
    above = np.arange(count)  # a lower cell of the same part; the lowest has itself
    at = np.zeros(len(_LINES), np.int64)
    for i in range(count):
        for line in range(len(_LINES)):
            middle = distinct[i] + _LINES[line]
            while distinct[at[line]] < middle - 1:
                at[line] += 1
            j = at[line]
            while j < i and distinct[j] <= middle + 1:
                a, b = _lowest(above, i), _lowest(above, j)
                above[max(a, b)] = min(a, b)
                j += 1
    part, parts = np.empty(count, np.int64), 0
    for i in range(count):
        lowest = _lowest(above, i)
        part[i] = parts if lowest == i else part[lowest]
        parts += lowest == i
    return part[cell]


@njit(cache=True, nogil=True)
def _lowest(above: NDArray[np.int64], i: int) -> int:
    """Return the lowest known cell of a cell's part, and shorten the way to it."""
    while above[i] != i:
        above[i] = above[above[i]]
        i = above[i]
    return i
