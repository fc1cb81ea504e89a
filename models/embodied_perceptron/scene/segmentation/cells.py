"""The grid of cells of scene segmentation: a few centimetres, moments and normals per cell.

Cells are aligned with the world's origin, so that the grid stands still while the map around it grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry import cell_keys
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import voxel_centers, world_to_voxel
from embodied_perceptron.results import VoxelSnapshot

_MAX_DENSE = 32_000_000  # cells of scratch memory, 5 bytes each
_LONG = 1024  # cells: longer maps may have single voxels far away
_GAP = 64  # cells: longer gaps are shortened to this


@dataclass(frozen=True, eq=False)
class Cells:
    """Occupied cells, sorted by (x, y, z).

    Attributes:
        size_m: edge length.
        coords: (M, 3) int64 grid coordinates.
        mean_m: (M, 3) float64 mean point.
        voxels: (M,) int64 map voxels inside.
        normal: (M, 3) float64 unit normal of the surface through the 3x3x3 neighbourhood, sign undefined; zero where
            fewer than 3 voxels are there or the surface has no clear direction.
        cell_of_voxel: (N,) int64 cell of each voxel of the snapshot; -1 for voxels left out.
        index: (X, Y, Z) int32 dense row numbers, -1 where empty, with one empty cell of border on every side.
        dense: (M, 3) int64 subscripts of the cells in ``index``, with the spacing of the cells except that long gaps of
            a long map are shortened.
    """

    size_m: float
    coords: NDArray[np.int64]
    mean_m: NDArray[np.float64]
    voxels: NDArray[np.int64]
    normal: NDArray[np.float64]
    cell_of_voxel: NDArray[np.int64]
    index: NDArray[np.int32]
    dense: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.coords.shape[0])


def build_cells(snapshot: VoxelSnapshot, size_m: float, keep: NDArray[np.bool_] | None = None) -> Cells:
    """Gather the voxels of ``snapshot`` (only those in the (N,) mask ``keep``, if given) into cells of ``size_m``.

    The dense index covers the bounding box of the kept voxels without long gaps, so that a single voxel kilometres away
    costs nothing. Keep a band of heights where the map may be tall.
    """
    rows = np.arange(len(snapshot)) if keep is None else np.flatnonzero(keep)
    points = snapshot.mean_point_m[rows].astype(np.float64)
    cell_coords, cell = assign_cells(points, size_m)
    cell_of_voxel = np.full(len(snapshot), -1, dtype=np.int64)
    cell_of_voxel[rows] = cell
    dense = _without_gaps(cell_coords)
    index = np.full(dense.max(axis=0, initial=0) + 2, -1, dtype=np.int32)
    index[tuple(dense.T)] = np.arange(len(cell_coords), dtype=np.int32)
    centers_m = voxel_centers(cell_coords, size_m)
    moments = _cell_moments(points, cell, centers_m)
    mean_m = centers_m + moments[:, 1:4] / moments[:, :1]
    normal = _surface_normals(_neighbourhood_covariance(index, dense, moments, size_m))
    return Cells(size_m, cell_coords, mean_m, moments[:, 0].astype(np.int64), normal, cell_of_voxel, index, dense)


def _without_gaps(coords: NDArray[np.int64]) -> NDArray[np.int64]:
    """(M, 3) grid coordinates -> (M, 3) subscripts from 1, with a border, so that neighbours need no checks."""
    if len(coords) == 0:
        return coords
    dense: NDArray[np.int64] = coords - coords.min(axis=0) + 1
    for axis in np.flatnonzero(dense.max(axis=0) > _LONG):
        used, slab = np.unique(dense[:, axis], return_inverse=True)
        dense[:, axis] = np.cumsum(np.minimum(np.diff(used, prepend=0), _GAP))[slab]
    return dense


def assign_cells(points_m: NDArray[np.float64], size_m: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(K, 3) points -> (M, 3) sorted grid coordinates of the occupied cells, and the (K,) cell of each point."""
    if len(points_m) == 0:
        return np.zeros((0, 3), np.int64), np.zeros(0, np.int64)
    coords = world_to_voxel(points_m, size_m)
    origin = coords.min(axis=0)
    shape = coords.max(axis=0) - origin + 1
    coords -= origin
    flat = (coords[:, 0] * shape[1] + coords[:, 1]) * shape[2] + coords[:, 2]
    if int(np.prod(shape)) <= _MAX_DENSE:  # a dense scan is faster than sorting
        occupied = np.zeros(int(np.prod(shape)), dtype=bool)
        occupied[flat] = True
        distinct = np.flatnonzero(occupied)
        number = np.zeros(len(occupied), dtype=np.int32)
        number[distinct] = np.arange(len(distinct), dtype=np.int32)
        cell = number[flat].astype(np.int64)
    else:
        distinct, cell = np.unique(flat, return_inverse=True)
    return np.stack(np.unravel_index(distinct, tuple(shape)), axis=1) + origin, cell


@njit(cache=True, nogil=True)
def _cell_moments(
    points: NDArray[np.float64], cell: NDArray[np.int64], centers_m: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(M, 10) count, sums and sums of products of each cell's points, relative to its center for precision."""
    out = np.zeros((len(centers_m), 10))
    for row in range(len(points)):
        c = cell[row]
        x, y, z = points[row, 0] - centers_m[c, 0], points[row, 1] - centers_m[c, 1], points[row, 2] - centers_m[c, 2]
        out[c, 0] += 1.0
        out[c, 1] += x
        out[c, 2] += y
        out[c, 3] += z
        out[c, 4] += x * x
        out[c, 5] += x * y
        out[c, 6] += x * z
        out[c, 7] += y * y
        out[c, 8] += y * z
        out[c, 9] += z * z
    return out


@njit(cache=True, nogil=True)
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


def connected_parts(cells: Cells, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The (K,) ascending ``rows`` of cells, split into their 26-connected components."""
    if len(rows) == 0:
        return []
    part = cell_keys.connected_parts(cell_keys.keys_of(cells.dense[rows].astype(np.float64), 1.0))
    order = np.argsort(part, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(part[order])) + 1)
