"""Labelled cells of the whole map: each prediction replaces the cells of its region."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.transforms import MAX_COORDINATE, pack_keys, unpack_keys
from embodied_perceptron.mapping.storage import MapFileError, take_array
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.recordings.tensor_files import parse_json
from embodied_perceptron.results import SemanticVoxels

PREFIX = "semantic."  # of the tensors in a map file


class SemanticMap:
    """The newest label of every cell that a prediction covered, within reach. Not thread-safe."""

    def __init__(self) -> None:
        self._cells: SemanticVoxels | None = None
        self._coords = np.zeros((0, 3), np.int64)

    def clear(self) -> None:
        """Remove all cells."""
        self._cells, self._coords = None, np.zeros((0, 3), np.int64)

    def update(
        self,
        seen: SemanticVoxels,
        answered: Region,
        camera_m: NDArray[np.float64] | None = None,
        reach_m: float = float("inf"),
    ) -> SemanticVoxels:
        """Replace the cells in ``answered`` by ``seen``; drop cells further than ``reach_m`` from the camera.

        Cells of another size or class list replace the whole map. Returns all cells, sorted by coordinate.
        """
        coords = np.floor(seen.centers_m.astype(np.float64) / seen.cell_size_m).astype(np.int64)
        old = self._cells
        if old is None or old.cell_size_m != seen.cell_size_m or old.classes != seen.classes:
            merged, where = seen, coords
        else:
            gone = answered.contains(old.centers_m)
            if camera_m is not None and np.isfinite(reach_m):
                gone |= np.linalg.norm(old.centers_m - camera_m, axis=1) > reach_m
            keep = np.flatnonzero(~gone)
            merged = old.take(keep).joined_with(seen)
            where = np.concatenate([self._coords[keep], coords])
        # new cells may lie outside of their region; there, too, the new label counts
        keys, first = np.unique(pack_keys(torch.from_numpy(where)).numpy()[::-1], return_index=True)
        rows = len(where) - 1 - first
        self._coords = unpack_keys(torch.from_numpy(keys)).numpy().astype(np.int64)
        self._cells = merged.take(rows)
        return self._cells

    def move(self, T: NDArray[np.float64]) -> None:
        """Move all cells by the (4, 4) rigid motion ``T`` of a corrected world, to the nearest cells."""
        if self._cells is None or np.allclose(T, np.eye(4), atol=1e-12):
            return
        old, self._cells = self._cells, None
        size_m = old.cell_size_m
        points = old.centers_m.astype(np.float64) @ T[:3, :3].T + T[:3, 3]
        centers = (np.floor(points / size_m) + 0.5) * size_m
        self.update(replace(old, centers_m=centers.astype(np.float32)), Region.nowhere())

    # ---------------------------------------------------------------------------------------------------- persistence

    def pack(self) -> tuple[dict[str, torch.Tensor], str]:
        """Copies of all cells as tensors ``semantic.*`` with a JSON description, for a map file; empty without
        cells."""
        if self._cells is None:
            return {}, ""
        c = self._cells
        arrays = {"centers_m": c.centers_m, "color": c.color, "labels": c.labels, "confidence": c.confidence}
        tensors = {PREFIX + name: torch.from_numpy(np.ascontiguousarray(a).copy()) for name, a in arrays.items()}
        return tensors, json.dumps({"cell_size_m": c.cell_size_m, "classes": list(c.classes)})

    @classmethod
    def unpack(cls, path: str | Path, tensors: dict[str, torch.Tensor], text: str) -> SemanticMap:
        """Inverse of :meth:`pack`. Raises ``MapFileError`` for invalid cells."""
        restored = cls()
        if not text:
            return restored
        try:
            meaning = plain_values.mapping(parse_json(text), "their description")
            size_m = plain_values.number(meaning["cell_size_m"], "cell_size_m", 1e-3, 100.0)
            names = plain_values.sequence(meaning["classes"], "classes")
            classes = tuple(plain_values.text(name, "a class") for name in names)
        except (KeyError, TypeError, ValueError) as error:
            raise MapFileError(f"{path}: labelled cells cannot be read: {error}") from error
        centers = take_array(path, tensors, PREFIX + "centers_m", torch.float32, (None, 3))
        n = len(centers)
        labels = take_array(path, tensors, PREFIX + "labels", torch.int32, (n,))
        confidence = take_array(path, tensors, PREFIX + "confidence", torch.float32, (n,))
        if n and not (np.abs(centers) <= size_m * MAX_COORDINATE).all():  # refuses NaN too
            raise MapFileError(f"{path}: labelled cells must lie within {MAX_COORDINATE} cells of the origin")
        if n and not 0 <= labels.min() <= labels.max() < len(classes):
            raise MapFileError(f"{path}: labelled cells must have labels in [0, {len(classes)})")
        if n and not ((confidence >= 0) & (confidence <= 1)).all():
            raise MapFileError(f"{path}: labelled cells must have confidences in [0, 1]")
        cells = SemanticVoxels(
            size_m,
            centers,
            take_array(path, tensors, PREFIX + "color", torch.uint8, (n, 3)),
            labels,
            confidence,
            classes,
        )
        restored.update(cells, Region.nowhere())
        return restored

    def cells(self) -> SemanticVoxels | None:
        """All cells, or None before the first prediction."""
        return self._cells
