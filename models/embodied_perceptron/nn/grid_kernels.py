"""Compiled for the CPU: sparse sites and the cells of a regular grid, in one pass, without the interpreter's lock."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from embodied_perceptron.geometry import SITE_BITS


@njit(cache=True, nogil=True)
def _coordinates(key: int) -> tuple[int, int, int]:
    """x, y, z of a site: ``geometry.unpack_site_keys`` of one key."""
    mask, offset = (1 << SITE_BITS) - 1, 1 << (SITE_BITS - 1)
    return (key >> (2 * SITE_BITS) & mask) - offset, (key >> SITE_BITS & mask) - offset, (key & mask) - offset


@njit(cache=True, nogil=True)
def sum_in_cells(
    keys: NDArray[np.int64],
    feats: NDArray[np.float32],
    first: NDArray[np.int64],
    stride: int,
    cells: NDArray[np.int64],
    total: NDArray[np.float32],
) -> None:
    """Add up columns of the sites in each cell of a grid, and count them.

    Args:
        keys: (N,) site keys of one sample.
        feats: (N, C), any columns.
        first: (3,) lower corner of the grid, in sites; stride: edge of a cell, in sites; cells: (3,) of the grid.
        total: (X * Y * Z, C + 1) out, filled with zeros: sums, and the number of sites.
    """
    for i in range(keys.shape[0]):
        site = _coordinates(keys[i])
        x, y, z = (site[0] - first[0]) // stride, (site[1] - first[1]) // stride, (site[2] - first[2]) // stride
        if x < 0 or y < 0 or z < 0 or x >= cells[0] or y >= cells[1] or z >= cells[2]:
            continue
        flat = (x * cells[1] + y) * cells[2] + z
        for c in range(feats.shape[1]):
            total[flat, c] += feats[i, c]
        total[flat, feats.shape[1]] += 1


@njit(cache=True, nogil=True)
def rank_sites(keys: NDArray[np.int64], stride: int, period: int, rank: NDArray[np.int64]) -> None:
    """See ``input_features.thinning_ranks``, whose arithmetic this is."""
    for i in range(keys.shape[0]):
        site = _coordinates(keys[i])
        x, y, z = site[0] // stride % period, site[1] // stride % period, site[2] // stride % period
        cell = (((x * period + y) * period + z) * 0x2545F491) & 0x3FFFF
        rank[i] = ((cell ^ (cell >> 9)) * 0x1B873593) & 0x3FFFF
