"""Where seen surfaces fit into a map, whatever they look like: correlation of occupied cells over all places and turns.

The map's surfaces lie in layers of cells, one above the other. For each turn about the vertical the points of today are
put into layers of the same cells, and the Fourier transform counts, for every shift at once, how many lie on a surface.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from embodied_perceptron.geometry.transforms import level_transform
from embodied_perceptron.relocalisation.alignment import Motions, are_apart

F64 = NDArray[np.float64]
_CELL_M = 0.12
_LAYER_M = 0.35
_MAX_CELLS = 256  # along an edge of the map; larger maps have larger cells
_TURNS = 72


class SurfaceLayers:
    """Cells of a map's surfaces.

    Args:
        points_m: (N, 3) of the map.
        floor_z_m: of the map; what is no higher than a layer above it fits everywhere, and is left out.
    """

    def __init__(self, points_m: F64, floor_z_m: float) -> None:
        self.floor_z_m = floor_z_m
        low, high = points_m[:, :2].min(0), points_m[:, :2].max(0)
        self._cell_m = max(_CELL_M, float((high - low).max()) / _MAX_CELLS)
        self._low_m = low
        self._shape = tuple((np.floor((high - low) / self._cell_m).astype(int) + 1).tolist())
        self._layers = max(1, int(np.ceil((points_m[:, 2].max() - floor_z_m) / _LAYER_M)))
        cells = np.floor((points_m[:, :2] - low) / self._cell_m).astype(np.int64)
        layer = np.floor((points_m[:, 2] - floor_z_m) / _LAYER_M).astype(np.int64)
        kept = layer >= 1
        grid = np.zeros((self._layers, *self._shape), np.float32)
        grid[layer[kept].clip(0, self._layers - 1), cells[kept, 0], cells[kept, 1]] = 1
        blurred = ndimage.maximum_filter(grid, (1, 3, 3)) * 0.5
        self._grid = np.maximum(grid, blurred)
        self._spectra: dict[tuple[int, int], NDArray[np.complex64]] = {}

    def candidates(self, points_m: F64, floor_z_m: float, count: int) -> tuple[Motions, F64]:
        """The ``count`` motions at most under which (N, 3) points fit best, apart from each other, and (K,) the share
        of points that then lie on a surface, the largest first."""
        shift_z = self.floor_z_m - floor_z_m
        layer = np.floor((points_m[:, 2] - floor_z_m) / _LAYER_M).astype(np.int64)
        points_m, layer = points_m[(layer >= 1) & (layer < self._layers)], layer[(layer >= 1) & (layer < self._layers)]
        none = Motions(np.zeros(0), np.zeros((0, 3))), np.zeros(0)
        if len(points_m) < 50:
            return none
        middle = points_m[:, :2].mean(0)
        reach = int(np.ceil(np.linalg.norm(points_m[:, :2] - middle, axis=1).max() / self._cell_m)) + 1
        size = tuple(fft.next_fast_len(n + 2 * reach + 1, real=True) for n in self._shape)
        spectrum = self._spectrum(size)
        found: list[tuple[float, float, F64]] = []
        for yaw in np.arange(_TURNS) * (2 * np.pi / _TURNS):
            c, s = np.cos(yaw), np.sin(yaw)
            turned = (points_m[:, :2] - middle) @ np.array([[c, s], [-s, c]])
            cells = np.floor(turned / self._cell_m).astype(np.int64) + reach
            seen = np.zeros((self._layers, 2 * reach + 1, 2 * reach + 1), np.float32)
            seen[layer, cells[:, 0], cells[:, 1]] = 1
            total = float(seen.sum())
            product = (spectrum * np.conj(fft.rfft2(seen, size))).sum(0)
            score = fft.irfft2(product, size) / total
            best = np.argpartition(score, -4, axis=None)[-4:]
            for flat in best.tolist():
                at = np.array(np.unravel_index(flat, size))
                at = np.where(at >= np.array(self._shape) + 1, at - np.array(size), at) + reach
                center = self._low_m + at * self._cell_m
                shift = center - np.array([c * middle[0] - s * middle[1], s * middle[0] + c * middle[1]])
                found.append((float(score.flat[flat]), float(yaw), np.array([*shift, shift_z])))
        found.sort(key=lambda entry: -entry[0])
        kept: list[tuple[float, float, F64]] = []
        poses: list[F64] = []
        at_m = np.append(middle, 0.0)
        for entry in found:
            pose = level_transform(*entry[1:])
            if all(are_apart(pose, other, at_m) for other in poses):
                kept.append(entry)
                poses.append(pose)
            if len(kept) == count:
                break
        motions = Motions(np.array([e[1] for e in kept]), np.array([e[2] for e in kept]))
        return motions, np.array([e[0] for e in kept])

    def _spectrum(self, size: tuple[int, int]) -> NDArray[np.complex64]:
        if size not in self._spectra:
            self._spectra = {size: fft.rfft2(self._grid, size)}
        return self._spectra[size]
