"""Class-agnostic oriented boxes from geometry: what stands above the floor and is no wall.

Furniture touches: chairs stand under tables, tables against counters. Plain connected components would melt them into
one. So level surfaces large enough to put things on (table tops, counters, seats of sofas) are taken out first; each
becomes an object together with what stands mostly beneath it, and the rest falls apart into its own components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

from embodied_perceptron.config import ObjectsConfig
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.scene.cells import Cells, connected_parts
from embodied_perceptron.scene.detections import Detections
from embodied_perceptron.scene.layers import STRUCTURE, THING, Layers
from embodied_perceptron.scene.rectangles import rectangle_direction, upright_box
from embodied_perceptron.scene.surfaces import find_surfaces, is_back, rectangular_footprints

_BENEATH_RATIO = 1.5  # what lies beneath a surface, over what stands out of it, before the surface owns it
_SEAT_DEPTH_M = 0.4  # of a chair that may be pushed under a table
_RIM = 2.5  # cells around a level surface that are no longer level but belong to it: rounded edges, frames
_STANDS_WITHIN_M = 0.15
_SPLIT_FROM_M = 1.2  # smaller things stay whole, whatever their shape
_TALL_M, _MAX_TALL_LENGTH_M, _MAX_TALL_DEPTH_M = 1.3, 2.6, 1.0  # wardrobes, fridges, shelves
_MAX_HIDDEN_M = 0.9  # the highest gap under an object that occlusion explains
_SUPPORTED_SHARE = 0.3  # of its columns with something below: it stands on that
_EVERYWHERE = np.ones((3, 3, 3), dtype=bool)


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
    surfaces = find_surfaces(cells, thing, layers.floor_z_m, layers.yaw_rad)
    free = thing.copy()
    for surface in surfaces:
        free[surface.cells] = False
    owner = np.full(len(cells), -1, dtype=np.int64)
    for i, surface in enumerate(surfaces):
        beneath = surface.covers(cells.dense[:, :2], _RIM) & (cells.dense[:, 2] < surface.top)
        owner[free & beneath & (owner < 0)] = i
    loose = [
        rows
        for component in connected_parts(cells, free & (owner < 0))
        for rows in _split(cells, component, layers, config.max_size_m)
    ]
    owned = _share_what_is_beneath(cells, owner, loose, len(surfaces))
    groups = []
    for surface, below in zip(surfaces, owned, strict=True):
        backs = [rows for rows in loose if is_back(cells, rows, surface, layers.floor_z_m)]
        loose = [rows for rows in loose if not any(rows is back for back in backs)]
        # a chair pushed under a table must not widen it: only the top, and what rises from it, tell the extent
        outline = np.concatenate([surface.outline, *backs])
        every = np.concatenate([surface.cells, *below, *backs])
        groups.append(_Group(every, outline, None if backs else surface.top_z_m))
    return groups + [_Group(rows, rows) for rows in loose]


def _share_what_is_beneath(
    cells: Cells, owner: NDArray[np.int64], loose: list[NDArray[np.int64]], surfaces: int
) -> list[list[NDArray[np.int64]]]:
    """What each surface owns beneath it. A chair half under a table is whole again: ``loose`` parts grow in place.

    Args:
        owner: (M,) surface that a cell lies beneath, or -1.
        loose: cells of the parts that lie beneath none.
        surfaces: how many there are.
    """
    owned: list[list[NDArray[np.int64]]] = [[] for _ in range(surfaces)]
    part_at = np.full(cells.index.shape, -1, dtype=np.int32)
    for number, rows in enumerate(loose):
        part_at[tuple(cells.dense[rows].T)] = number
    size = np.array([len(rows) for rows in loose])
    for number in range(surfaces):
        for rows in connected_parts(cells, owner == number):
            around = _neighbours(part_at, cells.dense[rows])
            largest = int(around[np.argmax(size[around])]) if len(around) else -1
            if largest >= 0 and len(rows) <= _BENEATH_RATIO * size[largest]:
                near = _within(cells, rows, loose[largest], _SEAT_DEPTH_M)
                loose[largest] = np.sort(np.concatenate([loose[largest], rows[near]]))
                rows = rows[~near]  # the leg of the table that the chair touches
            owned[number].append(rows)
    return owned


def _within(cells: Cells, rows: NDArray[np.int64], others: NDArray[np.int64], distance_m: float) -> NDArray[np.bool_]:
    """(K,) which of ``rows`` lie within a horizontal distance of any of ``others``."""
    tree = cKDTree(np.unique(cells.dense[others, :2], axis=0))
    distance, _ = tree.query(cells.dense[rows, :2])
    return np.asarray(distance * cells.size_m <= distance_m)


def _neighbours(part_at: NDArray[np.int32], dense: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the parts that touch any of (K, 3) dense positions, ascending."""
    steps = np.argwhere(_EVERYWHERE) - 1
    near = (dense[:, None, :] + steps).reshape(-1, 3)  # the dense lattice has an empty border
    numbers = np.unique(part_at[tuple(near.T)]).astype(np.int64)
    return numbers[numbers >= 0]


def _split(cells: Cells, rows: NDArray[np.int64], layers: Layers, max_size_m: float) -> list[NDArray[np.int64]]:
    """Cut a large component where its shape from above is no rectangle: counters around a corner, touching things."""
    dense = cells.dense[rows]
    c, s = np.cos(layers.yaw_rad), np.sin(layers.yaw_rad)
    depth, length = np.sort(np.ptp(dense[:, :2] @ np.array([[c, -s], [s, c]]), axis=0) + 1) * cells.size_m
    # of a wardrobe often no more than front and one side are seen: an L, but nothing to cut
    tall = cells.mean_m[rows, 2].max() - layers.floor_z_m > _TALL_M
    if length < _SPLIT_FROM_M or (tall and length < _MAX_TALL_LENGTH_M and depth < _MAX_TALL_DEPTH_M):
        return [rows]
    footprint = np.zeros(cells.index.shape[:2], dtype=bool)
    footprint[tuple(dense[:, :2].T)] = True
    parts = rectangular_footprints(cells, footprint, layers.yaw_rad, max_size_m)
    inside = [rows[part[tuple(dense[:, :2].T)]] for part in parts]
    return [part for part in inside if len(part)]


def _voxels_of(cells: Cells, groups: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Rows of the snapshot's voxels in each of some disjoint groups of cells."""
    group_of_cell = np.full(len(cells) + 1, -1, dtype=np.int64)  # the last stands for voxels without a cell
    for i, rows in enumerate(groups):
        group_of_cell[rows] = i
    group = group_of_cell[cells.cell_of_voxel]
    voxels = np.flatnonzero(group >= 0)
    order = voxels[np.argsort(group[voxels], kind="stable")]
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
