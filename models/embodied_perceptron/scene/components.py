"""Class-agnostic oriented boxes from geometry: what stands above the floor and is no wall.

Furniture touches: chairs stand under tables, tables against counters. Plain connected components would melt them into
one. So level surfaces large enough to put things on (table tops, counters, seats of sofas) are taken out first; each
becomes an object together with what stands wholly beneath it, and the rest falls apart into its own components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from embodied_perceptron.config import ObjectsConfig
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.scene.cells import Cells
from embodied_perceptron.scene.detections import Detections
from embodied_perceptron.scene.layers import STRUCTURE, THING, Layers
from embodied_perceptron.scene.rectangles import rectangle_direction, rectangular_parts, upright_box

_MIN_LEVEL_NORMAL_Z = 0.85
_MIN_SURFACE_AREA_M2 = 0.25
_MIN_SURFACE_SIDE_M = 0.3
_MAX_SURFACE_HEIGHT_M = 1.3
_BENEATH_FRACTION = 0.6  # of a component's cells under a surface make it a part of it
_STANDS_WITHIN_M = 0.15
_SPLIT_FROM_M = 1.2  # smaller things stay whole, whatever their shape
_MAX_HIDDEN_M = 0.9  # the highest gap under an object that occlusion explains
_SUPPORTED_SHARE = 0.3  # of its columns with something below: it stands on that
_MAX_SEAT_M, _MAX_BACK_M, _BACK_DEPTH_M, _BACK_SHARE = 0.65, 1.3, 0.3, 0.6
_EVERYWHERE = np.ones((3, 3, 3), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Surface:
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


@dataclass(frozen=True, eq=False)
class _Group:
    """Cells of one object, and those of them that tell its extent on the ground."""

    cells: NDArray[np.int64]
    outline: NDArray[np.int64]
    top_z_m: float | None = None  # of a level surface, which stands on something and ends where things on it begin


def find_boxes(snapshot: VoxelSnapshot, layers: Layers, config: ObjectsConfig) -> Detections:
    """Boxes of everything that is neither floor nor structure. Deterministic; an empty map gives no boxes."""
    cells = layers.cells
    groups = [g for g in _group(layers, config) if len(g.cells) >= config.min_cells]
    every = _voxels_of(cells, [g.cells for g in groups])
    outlines = _voxels_of(cells, [g.outline for g in groups])
    near_wall = _near_structure(layers)
    boxes, scores = [], []
    for group, voxels, outline in zip(groups, every, outlines, strict=True):
        on_wall = bool(near_wall[group.cells].any())
        stands = _stands(layers, group, on_wall)
        box = _fit(snapshot, layers, voxels, outline, stands, group.top_z_m)
        if config.min_size_m <= box[3:6].max() <= config.max_size_m:
            boxes.append(box)
            scores.append(_score(snapshot, voxels, len(group.cells), config.min_cells))
    order = sorted(range(len(boxes)), key=lambda i: (-scores[i], tuple(boxes[i])))
    return Detections(
        np.array([boxes[i] for i in order]).reshape(-1, 9),
        np.array([scores[i] for i in order]),
        ("object",) * len(order),
    )


def _group(layers: Layers, config: ObjectsConfig) -> list[_Group]:
    """The objects, as sets of cells."""
    cells = layers.cells
    thing = layers.cell_label == THING
    if not thing.any():
        return []
    surfaces = _surfaces(layers, thing)
    free = thing.copy()
    for surface in surfaces:
        free[surface.cells] = False
    beneath: list[list[NDArray[np.int64]]] = [[] for _ in surfaces]
    loose: list[NDArray[np.int64]] = []
    for component in _components(cells, free):
        for rows in _split(cells, component, layers.yaw_rad, config.max_size_m):
            owner = _owner(cells, rows, surfaces)
            if owner is None:
                loose.append(rows)
            else:
                beneath[owner].append(rows)
    groups = []
    for surface, below in zip(surfaces, beneath, strict=True):
        backs = [rows for rows in loose if _is_back(cells, rows, surface, layers.floor_z_m)]
        loose = [rows for rows in loose if not any(rows is back for back in backs)]
        # a chair pushed under a table must not widen it: only the top, and what rises from it, tell the extent
        outline = np.concatenate([surface.outline, *backs])
        every = np.concatenate([surface.cells, *below, *backs])
        groups.append(_Group(every, outline, None if backs else surface.top_z_m))
    return groups + [_Group(rows, rows) for rows in loose]


def _components(cells: Cells, mask: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Rows of the cells of each 26-connected component of ``mask``."""
    volume = np.zeros(cells.index.shape, dtype=bool)
    volume[tuple(cells.dense[mask].T)] = True
    labels, count = ndimage.label(volume, structure=_EVERYWHERE)
    rows = np.flatnonzero(mask)
    label = labels[tuple(cells.dense[rows].T)]
    order = np.argsort(label, kind="stable")
    return np.split(rows[order], np.searchsorted(label[order], np.arange(2, count + 1))) if count else []


def _surfaces(layers: Layers, thing: NDArray[np.bool_]) -> list[_Surface]:
    """Level surfaces large enough to put things on, largest first."""
    cells = layers.cells
    height_m = cells.mean_m[:, 2] - layers.floor_z_m
    level = thing & (np.abs(cells.normal[:, 2]) > _MIN_LEVEL_NORMAL_Z) & (height_m < _MAX_SURFACE_HEIGHT_M)
    taken = np.zeros(len(cells), dtype=bool)
    found = []
    for patch in _components(cells, level):
        if len(patch) * cells.size_m**2 < 0.5 * _MIN_SURFACE_AREA_M2:
            continue
        for footprint in _footprints(cells, patch, layers.yaw_rad):
            if np.count_nonzero(footprint) * cells.size_m**2 < _MIN_SURFACE_AREA_M2:
                continue
            surface = _surface(cells, patch, footprint, thing & ~taken, layers.yaw_rad)
            if 2 * surface.half.min() + 1 < _MIN_SURFACE_SIDE_M / cells.size_m:
                continue
            taken[surface.cells] = True
            found.append(surface)
    return sorted(found, key=lambda s: (-len(s.cells), int(s.cells[0])))


def _footprints(cells: Cells, patch: NDArray[np.int64], yaw_rad: float) -> list[NDArray[np.bool_]]:
    """(X, Y) masks of the rectangular parts of a patch, holes filled."""
    shape = cells.index.shape[:2]
    footprint = np.zeros(shape, dtype=bool)
    footprint[tuple(cells.dense[patch, :2].T)] = True
    # things on the surface hide it: close gaps of two cells, fill holes
    footprint = ndimage.binary_closing(np.pad(footprint, 3), iterations=2)[3:-3, 3:-3]
    footprint = ndimage.binary_fill_holes(footprint)
    return _rectangular(cells, footprint, yaw_rad)


def _rectangular(
    cells: Cells, footprint: NDArray[np.bool_], yaw_rad: float, max_size_m: float = float("inf")
) -> list[NDArray[np.bool_]]:
    """(X, Y) masks of the parts of a footprint that rectangles along the walls fit."""
    at = np.argwhere(footprint)
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    turned = at @ np.array([[c, -s], [s, c]])
    part = rectangular_parts(turned, _MIN_SURFACE_SIDE_M / cells.size_m, max_size_m / cells.size_m)
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
) -> _Surface:
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
    return _Surface(slab, outline, axes @ ((low + high) / 2), (high - low) / 2, axes, top, top_z_m)


def _is_back(cells: Cells, rows: NDArray[np.int64], surface: _Surface, floor_z_m: float) -> bool:
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


def _split(cells: Cells, rows: NDArray[np.int64], yaw_rad: float, max_size_m: float) -> list[NDArray[np.int64]]:
    """Cut a large component where its shape from above is no rectangle: counters around a corner, touching things."""
    extent = cells.dense[rows, :2].max(axis=0) - cells.dense[rows, :2].min(axis=0) + 1
    if extent.max() * cells.size_m < _SPLIT_FROM_M:
        return [rows]
    footprint = np.zeros(cells.index.shape[:2], dtype=bool)
    footprint[tuple(cells.dense[rows, :2].T)] = True
    parts = _rectangular(cells, footprint, yaw_rad, max_size_m)
    inside = [rows[part[tuple(cells.dense[rows, :2].T)]] for part in parts]
    return [part for part in inside if len(part)]


def _owner(cells: Cells, rows: NDArray[np.int64], surfaces: list[_Surface]) -> int | None:
    """Index of the surface that a component stands beneath, or None."""
    best, share = None, _BENEATH_FRACTION
    for i, surface in enumerate(surfaces):
        beneath = surface.covers(cells.dense[rows, :2]) & (cells.dense[rows, 2] < surface.top)
        fraction = float(beneath.mean())
        if fraction > share:
            best, share = i, fraction
    return best


def _voxels_of(cells: Cells, groups: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Rows of the snapshot's voxels in each of some disjoint groups of cells."""
    group_of_cell = np.full(len(cells) + 1, -1, dtype=np.int64)  # the last stands for voxels without a cell
    for i, rows in enumerate(groups):
        group_of_cell[rows] = i
    group = group_of_cell[cells.cell_of_voxel]
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(groups) + 1))
    return [order[edges[i] : edges[i + 1]] for i in range(len(groups))]


def _near_structure(layers: Layers) -> NDArray[np.bool_]:
    """(M,) cells that touch a wall."""
    cells = layers.cells
    walls = np.zeros(cells.index.shape, dtype=bool)
    walls[tuple(cells.dense[layers.cell_label == STRUCTURE].T)] = True
    near = ndimage.binary_dilation(walls, structure=_EVERYWHERE)
    out: NDArray[np.bool_] = near[tuple(cells.dense.T)]
    return out


def _stands(layers: Layers, group: _Group, on_wall: bool) -> bool:
    """Whether an object reaches down to the floor, even if what is below it was never seen: things do not float."""
    cells = layers.cells
    dense = cells.dense[group.cells]
    bottom_m = float(cells.mean_m[group.cells, 2].min()) - layers.floor_z_m
    if bottom_m < _STANDS_WITHIN_M:
        return True
    if on_wall or bottom_m > _MAX_HIDDEN_M:
        return False
    if group.top_z_m is not None:
        return True
    columns = np.unique(dense[:, :2], axis=0)
    below = cells.index[columns[:, 0], columns[:, 1], : int(dense[:, 2].min())] >= 0
    return float(below.any(axis=1).mean()) < _SUPPORTED_SHARE


def _fit(
    snapshot: VoxelSnapshot,
    layers: Layers,
    voxels: NDArray[np.int64],
    outline: NDArray[np.int64],
    stands: bool,
    top_z_m: float | None,
) -> NDArray[np.float64]:
    """(9,) box of one group: its extent on the ground from ``outline``, its height from all ``voxels``.

    A level surface ends at its own height (near ``top_z_m``), whatever stands on it.
    """
    outer = snapshot.mean_point_m[outline].astype(np.float64)
    yaw = rectangle_direction(outer[:, :2], layers.yaw_rad)
    low, high = np.percentile(snapshot.mean_point_m[voxels, 2].astype(np.float64), [0.5, 99.5])
    bottom = layers.floor_z_m if stands else float(low)
    top = float(high)
    if top_z_m is not None:
        z = outer[:, 2]
        level = z[np.abs(z - top_z_m) < 0.75 * layers.cells.size_m]
        top = float(np.percentile(level, 90.0)) if len(level) else top
    box = upright_box(outer, yaw, min(bottom, top), top)
    box[3:6] = np.maximum(box[3:6], snapshot.voxel_size_m)  # one face seen straight on has no depth
    return box


def _score(snapshot: VoxelSnapshot, voxels: NDArray[np.int64], cells: int, min_cells: int) -> float:
    """Confidence from occupancy evidence and size."""
    occupied = 1.0 / (1.0 + np.exp(-np.asarray(snapshot.evidence[voxels], dtype=np.float64)))
    return float(occupied.mean() * (1.0 - np.exp(-cells / (2.0 * min_cells))))
