"""Compiled loops of the torch engine on the CPU; each has a plain torch twin in ``engine.py``.

None is parallel: numba's default threading layer aborts when two Python threads enter it at once, and perception runs
beside fusion.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def serves(*tensors: torch.Tensor) -> bool:
    """Whether the compiled loops take these tensors."""
    return all(t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64) for t in tensors)


@numba.njit(cache=True, nogil=True)
def scatter_add(out: Floats, rows: NDArray[np.int64], values: Floats) -> None:
    """``out[rows] += values``."""
    for i in range(rows.shape[0]):
        row = rows[i]
        for c in range(values.shape[1]):
            out[row, c] += values[i, c]


@numba.njit(cache=True, nogil=True)
def scatter_max(
    out: Floats, winner: NDArray[np.int32], feats: Floats, in_rows: NDArray[np.int64], out_rows: NDArray[np.int64]
) -> None:
    """Raise ``out[out_rows]`` to ``feats[in_rows]`` and note in ``winner`` (-1 = none yet) which row attained it."""
    for i in range(in_rows.shape[0]):
        source, target = in_rows[i], out_rows[i]
        for c in range(feats.shape[1]):
            value, best = feats[source, c], out[target, c]
            if winner[target, c] < 0 or value > best or (np.isnan(value) and not np.isnan(best)):
                out[target, c] = value
                winner[target, c] = source
