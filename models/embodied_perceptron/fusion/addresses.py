"""Which block a voxel lies in, and where inside of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.fusion.blocks import BLOCK_BITS, BLOCK_EDGE
from embodied_perceptron.fusion.voxels import VoxelRows
from embodied_perceptron.geometry import pack_keys, unpack_keys


def split_coords(coords: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N, 3) voxel coordinates -> (N,) block keys and (N,) index inside of the block."""
    c = np.asarray(coords, dtype=np.int64)
    low = c & (BLOCK_EDGE - 1)
    keys: NDArray[np.int64] = pack_keys(torch.from_numpy(c >> BLOCK_BITS)).numpy()
    return keys, (low[:, 0] << (2 * BLOCK_BITS)) | (low[:, 1] << BLOCK_BITS) | low[:, 2]


def within_budget(rows: VoxelRows, max_blocks: int, center_m: NDArray[np.float64], block_m: float) -> VoxelRows:
    """Of sorted rows those of the ``max_blocks`` blocks, ``block_m`` metres wide, nearest to ``center_m``."""
    block_keys, _ = split_coords(rows.coords.numpy())
    distinct = np.unique(block_keys)
    if len(distinct) <= max_blocks:
        return rows
    centers = (unpack_keys(torch.from_numpy(distinct)).numpy() + 0.5) * block_m
    order = np.argsort(np.linalg.norm(centers - center_m, axis=1), kind="stable")
    kept = distinct[order[:max_blocks]]
    return rows.where(torch.from_numpy(np.isin(block_keys, kept)))
