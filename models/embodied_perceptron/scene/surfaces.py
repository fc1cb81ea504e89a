"""Level surfaces large enough to put things on: table tops, counters, seats and beds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from embodied_perceptron.scene.cells import Cells, connected_parts
from embodied_perceptron.scene.rectangles import rectangle_direction, rectangular_parts

_MIN_LEVEL_NORMAL_Z = 0.85
_MIN_AREA_M2 = 0.25
_MIN_SIDE_M = 0.3
_MAX_HEIGHT_M = 1.3
_STEP_M = 0.045
_MAX_SEAT_M = 0.65  # what carries people is not higher
_MAX_BACK_M = 1.3
_BACK_DEPTH_M = 0.3
_BACK_SHARE = 0.6


@dataclass(frozen=True, eq=False)
class Surface:
    """A level surface on the dense lattice."""

    cells: NDArray[np.int64]  # all of it, edges included
    outline: NDArray[np.int64]  # those of them that tell its extent
    center: NDArray[np.float64]  # (2,) of the rectangle around it
    half: NDArray[np.float64]  # (2,) half of its sides
    axes: NDArray[np.float64]  # (2, 2) directions of its sides, in columns
    top: int
    top_z_m: float

    def local(self, xy: NDArray[np.int64]) -> NDArray[np.float64]:
        """(K, 2) dense positions relative to the rectangle, along its sides."""
        out: NDArray[np.float64] = (xy - self.center) @ self.axes
        return out

    def covers(self, xy: NDArray[np.int64], margin: float = 1.5) -> NDArray[np.bool_]:
        """(K,) which of (K, 2) dense positions lie within the rectangle, widened by ``margin`` cells."""
        return np.asarray((np.abs(self.local(xy)) <= self.half + margin).all(axis=1))


def find_surfaces(cells: Cells, thing: NDArray[np.bool_], floor_z_m: float, wall_yaw_rad: float) -> list[Surface]:
    """Level surfaces among the cells in the (M,) mask ``thing``, largest first."""
    height_m = cells.mean_m[:, 2] - floor_z_m
    level = thing & (np.abs(cells.normal[:, 2]) > _MIN_LEVEL_NORMAL_Z) & (height_m < _MAX_HEIGHT_M)
    taken = np.zeros(len(cells), dtype=bool)
    found = []
    for patch in _level_patches(cells, level):
        if len(patch) * cells.size_m**2 < 0.5 * _MIN_AREA_M2:
            continue
        for footprint in _footprints(cells, patch, wall_yaw_rad):
            if np.count_nonzero(footprint) * cells.size_m**2 < _MIN_AREA_M2:
                continue
            surface = _surface(cells, patch, footprint, thing & ~taken, wall_yaw_rad)
            if 2 * surface.half.min() + 1 < _MIN_SIDE_M / cells.size_m:
                continue
            taken[surface.cells] = True
            found.append(surface)
    return sorted(found, key=lambda s: (-len(s.cells), int(s.cells[0])))


def _level_patches(cells: Cells, level: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Connected level cells of one height: a nightstand is no part of the bed beside it, if it is a little higher."""
    patches = []
    waiting = connected_parts(cells, level)
    while waiting:
        patch = waiting.pop()
        height = cells.mean_m[patch, 2]
        same = np.abs(height - np.median(height)) < _STEP_M
        patches.append(patch[same])
        if not same.all():
            rest = np.zeros(len(cells), dtype=bool)
            rest[patch[~same]] = True
            waiting += connected_parts(cells, rest)
    return sorted(patches, key=lambda patch: int(patch[0]))


def _footprints(cells: Cells, patch: NDArray[np.int64], yaw_rad: float) -> list[NDArray[np.bool_]]:
    """(X, Y) masks of the rectangular parts of a patch, holes filled."""
    shape = cells.index.shape[:2]
    footprint = np.zeros(shape, dtype=bool)
    footprint[tuple(cells.dense[patch, :2].T)] = True
    # things on the surface hide it: close gaps of two cells, fill holes
    footprint = ndimage.binary_closing(np.pad(footprint, 3), iterations=2)[3:-3, 3:-3]
    footprint = ndimage.binary_fill_holes(footprint)
    return rectangular_footprints(cells, footprint, yaw_rad)


def rectangular_footprints(
    cells: Cells, footprint: NDArray[np.bool_], yaw_rad: float, max_size_m: float = float("inf")
) -> list[NDArray[np.bool_]]:
    """(X, Y) masks of the parts of a footprint that rectangles along the walls fit."""
    at = np.argwhere(footprint)
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    turned = at @ np.array([[c, -s], [s, c]])
    part = rectangular_parts(turned, _MIN_SIDE_M / cells.size_m, max_size_m / cells.size_m)
    out = []
    for number in range(int(part.max(initial=-1)) + 1):
        piece = np.zeros(footprint.shape, dtype=bool)
        piece[tuple(at[part == number].T)] = True
        out.append(piece)
    return out


def _surface(
    cells: Cells,
    patch: NDArray[np.int64],
    footprint: NDArray[np.bool_],
    available: NDArray[np.bool_],
    wall_yaw_rad: float,
) -> Surface:
    """The slab of a patch over a footprint: edge cells and noise one cell up and down belong to it."""
    inside = patch[footprint[tuple(cells.dense[patch, :2].T)]]
    # the highest level cell of each column: a board's underside may be seen too. Rows are sorted by x, y, z
    last = np.append((np.diff(cells.dense[inside, :2], axis=0) != 0).any(axis=1), True)
    highest = inside[last]
    top = int(np.median(cells.dense[highest, 2]))
    wide = ndimage.binary_dilation(footprint, structure=np.ones((3, 3), dtype=bool))
    near = np.abs(cells.dense[:, 2] - top) <= 1
    slab = np.flatnonzero(available & near & wide[tuple(cells.dense[:, :2].T)])
    top_z_m = float(np.median(cells.mean_m[highest, 2]))
    # a chair's back that touches the edge rises above it, and must not widen the table
    x, y, _ = cells.dense[slab].T
    above = cells.index[x, y, min(top + 1, cells.index.shape[2] - 1)]
    rises = (above >= 0) & (cells.mean_m[above, 2] > top_z_m + 0.6 * cells.size_m)
    within = footprint[x, y] | ~rises
    outline = slab[within] if within.any() else slab
    # legs stand under corners, where nothing looks level: they are sought within the whole rectangle
    at = np.argwhere(footprint).astype(np.float64)
    yaw = rectangle_direction(at, wall_yaw_rad)
    c, s = np.cos(yaw), np.sin(yaw)
    axes = np.array([[c, -s], [s, c]])
    low, high = (at @ axes).min(axis=0), (at @ axes).max(axis=0)
    return Surface(slab, outline, axes @ ((low + high) / 2), (high - low) / 2, axes, top, top_z_m)


def is_back(cells: Cells, rows: NDArray[np.int64], surface: Surface, floor_z_m: float) -> bool:
    """Whether a component is the back, arm or head of a seat or bed: it rises along most of a side of it."""
    if surface.top_z_m - floor_z_m > _MAX_SEAT_M:
        return False
    dense = cells.dense[rows]
    if not dense[:, 2].max() > surface.top + 1 or not dense[:, 2].min() <= surface.top + 1:
        return False
    if cells.mean_m[rows, 2].max() - floor_z_m > _MAX_BACK_M:
        return False
    margin = _BACK_DEPTH_M / cells.size_m
    if float(surface.covers(dense[:, :2], margin).mean()) < _BACK_SHARE:
        return False
    side = int(np.argmin(np.ptp(surface.local(dense[:, :2]), axis=0)))  # thin across, long along a side
    touching = surface.covers(dense[:, :2], 2.0)
    if not touching.any():
        return False
    length = float(np.ptp(surface.local(dense[touching, :2])[:, 1 - side]))
    return length >= _BACK_SHARE * 2 * float(surface.half[1 - side])
