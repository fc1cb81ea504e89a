"""The lattice of cells that scene analysis works on: a few centimetres, moments and normals per cell.

Cells are aligned with the world's origin, so that the lattice stands still while the map around it grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import ndimage

from embodied_perceptron.geometry import world_to_voxel
from embodied_perceptron.results import VoxelSnapshot

_EVERYWHERE = np.ones((3, 3, 3), dtype=bool)


@dataclass(frozen=True, eq=False)
class Cells:
    """Occupied cells, sorted by (x, y, z).

    Attributes:
        size_m: edge length.
        coords: (M, 3) int64 lattice coordinates.
        mean_m: (M, 3) float64 mean point.
        voxels: (M,) int64 map voxels inside.
        normal: (M, 3) float64 unit normal of the surface through the 3x3x3 neighbourhood, sign undefined; zero where
            fewer than 3 voxels are there or the surface has no clear direction.
        cell_of_voxel: (N,) int64 row of the cell that each voxel of the snapshot belongs to; -1 for voxels left out.
        index: (X, Y, Z) int32 dense row numbers, -1 where empty, with one empty cell of border on every side.
        origin: (3,) int64 lattice coordinates of ``index[0, 0, 0]``.
        dense: (M, 3) int64 subscripts of the cells in ``index``.
    """

    size_m: float
    coords: NDArray[np.int64]
    mean_m: NDArray[np.float64]
    voxels: NDArray[np.int64]
    normal: NDArray[np.float64]
    cell_of_voxel: NDArray[np.int64]
    index: NDArray[np.int32]
    origin: NDArray[np.int64]
    dense: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.coords.shape[0])


def build_cells(
    snapshot: VoxelSnapshot, size_m: float, keep: NDArray[np.bool_] | None = None, normals: bool = True
) -> Cells:
    """Gather the voxels of ``snapshot`` (only those in the (N,) mask ``keep``, if given) into cells of ``size_m``.

    Without ``normals`` they are all zero.
    """
    points = np.asarray(snapshot.mean_point_m, dtype=np.float64)
    rows = np.arange(len(points)) if keep is None else np.flatnonzero(keep)
    points = points[rows]
    cell_of_voxel = np.full(len(snapshot), -1, dtype=np.int64)
    if len(rows) == 0:
        empty = np.zeros((0, 3))
        return Cells(
            size_m,
            np.zeros((0, 3), np.int64),
            empty,
            np.zeros(0, np.int64),
            empty.copy(),
            cell_of_voxel,
            np.full((2, 2, 2), -1, np.int32),
            np.zeros(3, np.int64),
            np.zeros((0, 3), np.int64),
        )
    coords = world_to_voxel(points, size_m)
    origin = coords.min(axis=0) - 1
    shape = coords.max(axis=0) - origin + 2
    flat = np.ravel_multi_index(tuple((coords - origin).T), tuple(shape))
    occupied = np.zeros(int(np.prod(shape)), dtype=bool)  # a dense scan orders the cells faster than sorting voxels
    occupied[flat] = True
    cells_flat = np.flatnonzero(occupied)
    index = np.full(occupied.shape, -1, dtype=np.int32)
    index[cells_flat] = np.arange(len(cells_flat), dtype=np.int32)
    cell = index[flat].astype(np.int64)
    cell_of_voxel[rows] = cell
    cell_coords = np.stack(np.unravel_index(cells_flat, tuple(shape)), axis=1).astype(np.int64) + origin

    count = np.bincount(cell, minlength=len(cells_flat))
    dense_index = index.reshape(tuple(shape))
    # moments about the cell's own centre: coordinates stay small, so that squares keep their digits
    local = points - (coords + 0.5) * size_m
    moments = np.empty((len(cells_flat), 10))
    moments[:, 0] = count
    for i in range(3):
        moments[:, 1 + i] = np.bincount(cell, local[:, i], minlength=len(cells_flat))
    for k, (i, j) in enumerate(((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))):
        moments[:, 4 + k] = np.bincount(cell, local[:, i] * local[:, j], minlength=len(cells_flat))
    mean_m = (cell_coords + 0.5) * size_m + moments[:, 1:4] / count[:, None]
    normal = np.zeros((len(cells_flat), 3))
    if normals:
        normal = _surface_normals(_neighbourhood_covariance(dense_index, cell_coords - origin, moments, size_m))
    return Cells(size_m, cell_coords, mean_m, count, normal, cell_of_voxel, dense_index, origin, cell_coords - origin)


@njit(cache=True)
def _neighbourhood_covariance(
    index: NDArray[np.int32], dense: NDArray[np.int64], moments: NDArray[np.float64], size_m: float
) -> NDArray[np.float64]:
    """(M, 3, 3) covariance of the points in each cell's 3x3x3 neighbourhood; zero with fewer than 3 voxels."""
    out = np.zeros((dense.shape[0], 3, 3))
    total = np.zeros(10)
    shift = np.zeros(3)
    for row in range(dense.shape[0]):
        total[:] = 0.0
        x, y, z = dense[row, 0], dense[row, 1], dense[row, 2]
        for dx in range(-1, 2):
            for dy in range(-1, 2):
                for dz in range(-1, 2):
                    other = index[x + dx, y + dy, z + dz]
                    if other < 0:
                        continue
                    shift[0], shift[1], shift[2] = dx * size_m, dy * size_m, dz * size_m
                    n = moments[other, 0]
                    total[0] += n
                    k = 4
                    for i in range(3):
                        si = moments[other, 1 + i]
                        total[1 + i] += si + n * shift[i]
                        for j in range(i, 3):
                            sj = moments[other, 1 + j]
                            total[k] += moments[other, k] + si * shift[j] + sj * shift[i] + n * shift[i] * shift[j]
                            k += 1
        if total[0] < 3:
            continue
        k = 4
        for i in range(3):
            for j in range(i, 3):
                value = total[k] / total[0] - total[1 + i] * total[1 + j] / (total[0] * total[0])
                out[row, i, j] = value
                out[row, j, i] = value
                k += 1
    return out


def _surface_normals(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """(M, 3, 3) covariances -> (M, 3) unit normals, zero where the neighbourhood is not a surface."""
    values, vectors = np.linalg.eigh(covariance)
    normal: NDArray[np.float64] = vectors[:, :, 0].copy()
    # a surface is thin in one direction only: clutter and rods have no normal
    flat = values[:, 0] < 0.25 * values[:, 1]
    normal[~flat] = 0.0
    return normal


def connected_parts(cells: Cells, mask: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Rows of the cells of each 26-connected component of the (M,) ``mask``, ascending."""
    rows = np.flatnonzero(mask)
    if len(rows) == 0:
        return []
    dense = cells.dense[rows] - cells.dense[rows].min(axis=0)  # no larger than what is asked about
    volume = np.zeros(dense.max(axis=0) + 1, dtype=bool)
    volume[tuple(dense.T)] = True
    labels, count = ndimage.label(volume, structure=_EVERYWHERE)
    label = labels[tuple(dense.T)]
    order = np.argsort(label, kind="stable")
    return np.split(rows[order], np.searchsorted(label[order], np.arange(2, count + 1)))
