"""Labelled cells of the whole map: each look replaces what it looked at, the rest stays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry import pack_keys, unpack_keys
from embodied_perceptron.results import SemanticVoxels


class SemanticMap:
    """The newest answer for every cell that was ever looked at, within reach. Not thread-safe: its owner locks."""

    def __init__(self) -> None:
        self._cells: SemanticVoxels | None = None
        self._coords = np.zeros((0, 3), np.int64)

    def clear(self) -> None:
        """Forget all cells."""
        self._cells, self._coords = None, np.zeros((0, 3), np.int64)

    def update(
        self,
        seen: SemanticVoxels,
        lower: NDArray[np.int64],
        upper: NDArray[np.int64],
        camera_m: NDArray[np.float64] | None = None,
        reach_m: float = float("inf"),
    ) -> SemanticVoxels:
        """Replace the cells in [lower, upper) by ``seen``; drop those further than ``reach_m`` from the camera.

        Cells of another size or class list are not mixed: the map then starts anew. Returns all cells by coordinate.
        """
        coords = np.floor(seen.centers_m.astype(np.float64) / seen.cell_size_m).astype(np.int64)
        old = self._cells
        if old is None or old.cell_size_m != seen.cell_size_m or old.classes != seen.classes:
            merged, where = seen, coords
        else:
            gone = ((self._coords >= lower) & (self._coords < upper)).all(axis=1)
            if camera_m is not None and np.isfinite(reach_m):
                gone |= np.linalg.norm(old.centers_m - camera_m, axis=1) > reach_m
            keep = np.flatnonzero(~gone)
            merged = old.take(keep).joined_with(seen)
            where = np.concatenate([self._coords[keep], coords])
        # cells of the new look may lie outside of the range it claims: the new answer counts
        keys, first = np.unique(pack_keys(torch.from_numpy(where)).numpy()[::-1], return_index=True)
        rows = len(where) - 1 - first
        self._coords = unpack_keys(torch.from_numpy(keys)).numpy().astype(np.int64)
        self._cells = merged.take(rows)
        return self._cells

    def move(self, T: NDArray[np.float64]) -> None:
        """The world was corrected by the (4, 4) rigid motion ``T``: cells go with it, to the nearest place."""
        if self._cells is None or np.allclose(T, np.eye(4), atol=1e-12):
            return
        old, self._cells = self._cells, None
        size_m = old.cell_size_m
        points = old.centers_m.astype(np.float64) @ T[:3, :3].T + T[:3, 3]
        centers = (np.floor(points / size_m) + 0.5) * size_m
        nowhere = np.zeros(3, np.int64)
        self.update(replace(old, centers_m=centers.astype(np.float32)), nowhere, nowhere)

    def cells(self) -> SemanticVoxels | None:
        """All cells, or None before the first look."""
        return self._cells
