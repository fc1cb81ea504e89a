"""Class-agnostic oriented boxes from geometry: everything above the floor except walls.

Furniture touches: chairs stand under tables, tables against counters, and connected components would merge them. So
level surfaces large enough to put things on (table tops, counters, seats) are removed first; each becomes an object
together with most of what is beneath it, and the rest splits into its own components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from embodied_perceptron.config import SegmentationConfig
from embodied_perceptron.geometry.boxes import trimmed_bounds
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.results import UNNAMED, Detections, VoxelSnapshot
from embodied_perceptron.scene.segmentation.cells import Cells, connected_parts
from embodied_perceptron.scene.segmentation.layers import STRUCTURE, THING, Layers

_BENEATH_RATIO = 1.5  # of a part beneath a surface to the part outside, from which the surface owns it
_SEAT_DEPTH_M = 0.4  # of a chair that may be pushed under a table
_RIM = 2.5  # cells around a level surface that belong to it: rounded edges, frames
_STANDS_WITHIN_M = 0.15
_SPLIT_FROM_M = 1.2  # smaller objects are not split
_TALL_M, _MAX_TALL_LENGTH_M, _MAX_TALL_DEPTH_M = 1.3, 2.6, 1.0  # wardrobes, fridges, shelves
_MAX_HIDDEN_M = 0.9  # the highest gap under an object that occlusion explains
_SUPPORTED_SHARE = 0.3  # of an object's columns above other cells, from which it stands on them
_EVERYWHERE = np.ones((3, 3, 3), dtype=bool)


@dataclass(frozen=True, eq=False)
class _Group:
    """Cells of one object, and the outline cells that give its extent on the ground."""

    cells: NDArray[np.int64]
    outline: NDArray[np.int64]
    top_z_m: float | None = None  # of a level surface, without the objects on it


def find_boxes(snapshot: VoxelSnapshot, layers: Layers, config: SegmentationConfig) -> Detections:
    """Boxes of all cells that are neither floor nor structure. Deterministic; an empty map gives no boxes."""
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
        (UNNAMED,) * len(order),
    )


def _group(layers: Layers, config: SegmentationConfig) -> list[_Group]:
    """Group cells into objects."""
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
        for component in connected_parts(cells, np.flatnonzero(free & (owner < 0)))
        for rows in _split(cells, component, layers, config.max_size_m)
    ]
    owned = _share_what_is_beneath(cells, owner, loose, len(surfaces))
    groups = []
    for surface, below in zip(surfaces, owned, strict=True):
        backs = [rows for rows in loose if is_back(cells, rows, surface, layers.floor_z_m)]
        loose = [rows for rows in loose if not any(rows is back for back in backs)]
        # a chair pushed under a table must not widen it: the extent is that of the top and what rises from it
        outline = np.concatenate([surface.outline, *backs])
        every = np.concatenate([surface.cells, *below, *backs])
        groups.append(_Group(every, outline, None if backs else surface.top_z_m))
    return groups + [_Group(rows, rows) for rows in loose]


def _share_what_is_beneath(
    cells: Cells, owner: NDArray[np.int64], loose: list[NDArray[np.int64]], surfaces: int
) -> list[list[NDArray[np.int64]]]:
    """Assign the parts beneath each surface to it, or to a part outside (a chair half under a table), which grows in
    place.

    Args:
        owner: (M,) surface above each cell, or -1.
        loose: cells of the parts beneath no surface.
        surfaces: number of surfaces.
    """
    owned: list[list[NDArray[np.int64]]] = [[] for _ in range(surfaces)]
    part_at = np.full(cells.index.shape, -1, dtype=np.int32)
    for number, rows in enumerate(loose):
        part_at[tuple(cells.dense[rows].T)] = number
    size = np.array([len(rows) for rows in loose])
    for number in range(surfaces):
        for rows in connected_parts(cells, np.flatnonzero(owner == number)):
            around = _neighbours(part_at, cells.dense[rows])
            largest = int(around[np.argmax(size[around])]) if len(around) else -1
            if largest >= 0 and len(rows) <= _BENEATH_RATIO * size[largest]:
                near = _within(cells, rows, loose[largest], _SEAT_DEPTH_M)
                loose[largest] = np.sort(np.concatenate([loose[largest], rows[near]]))
                rows = rows[~near]  # the table leg that the chair touches
            owned[number].append(rows)
    return owned


def _within(cells: Cells, rows: NDArray[np.int64], others: NDArray[np.int64], distance_m: float) -> NDArray[np.bool_]:
    """(K,) mask of the ``rows`` within a horizontal distance of any of ``others``."""
    tree = scipy.spatial.cKDTree(np.unique(cells.dense[others, :2], axis=0))
    distance, _ = tree.query(cells.dense[rows, :2])
    return np.asarray(distance * cells.size_m <= distance_m)


def _neighbours(part_at: NDArray[np.int32], dense: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the parts that touch any of (K, 3) dense positions, ascending."""
    steps = np.argwhere(_EVERYWHERE) - 1
    near = (dense[:, None, :] + steps).reshape(-1, 3)  # the dense grid has an empty border
    numbers = np.unique(part_at[tuple(near.T)]).astype(np.int64)
    return numbers[numbers >= 0]


def _split(cells: Cells, rows: NDArray[np.int64], layers: Layers, max_size_m: float) -> list[NDArray[np.int64]]:
    """Split a large component with a non-rectangular footprint: counters around a corner, touching objects."""
    dense = cells.dense[rows]
    c, s = np.cos(layers.yaw_rad), np.sin(layers.yaw_rad)
    depth, length = np.sort(np.ptp(dense[:, :2] @ np.array([[c, -s], [s, c]]), axis=0) + 1) * cells.size_m
    # often only the front and one side of a wardrobe are seen: an L that must not be split
    tall = cells.mean_m[rows, 2].max() - layers.floor_z_m > _TALL_M
    if length < _SPLIT_FROM_M or (tall and length < _MAX_TALL_LENGTH_M and depth < _MAX_TALL_DEPTH_M):
        return [rows]
    footprint = np.zeros(cells.index.shape[:2], dtype=bool)
    footprint[tuple(dense[:, :2].T)] = True
    parts = rectangular_footprints(cells, footprint, layers.yaw_rad, max_size_m)
    inside = [rows[part[tuple(dense[:, :2].T)]] for part in parts]
    return [part for part in inside if len(part)]


def _voxels_of(cells: Cells, groups: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Rows of the snapshot's voxels in each of several disjoint groups of cells."""
    group_of_cell = np.full(len(cells) + 1, -1, dtype=np.int64)  # the last entry is for voxels without a cell
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
    near = scipy.ndimage.binary_dilation(walls, structure=_EVERYWHERE)
    out: NDArray[np.bool_] = near[tuple(cells.dense.T)]
    return out


def _stands(layers: Layers, group: _Group, on_wall: bool) -> bool:
    """Whether an object reaches down to the floor, also where the part below it was never seen."""
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
    """(9,) box of one group: extent on the ground from ``outline``, height from all ``voxels``.

    A level surface ends at its own height (near ``top_z_m``), without the objects on it.
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
    box[3:6] = np.maximum(box[3:6], snapshot.voxel_size_m)  # a single visible face has no depth
    return box


def _score(snapshot: VoxelSnapshot, voxels: NDArray[np.int64], cells: int, min_cells: int) -> float:
    """Confidence from occupancy evidence and size."""
    occupied = 1.0 / (1.0 + np.exp(-np.asarray(snapshot.evidence[voxels], dtype=np.float64)))
    return float(occupied.mean() * (1.0 - np.exp(-cells / (2.0 * min_cells))))


# --------------------------------------------------------------------------------------------------------------------
# level surfaces large enough to put things on: table tops, counters, seats and beds

_MIN_LEVEL_NORMAL_Z = 0.85
_MIN_AREA_M2 = 0.25
_MIN_SIDE_M = 0.3
_MAX_HEIGHT_M = 1.3
_STEP_M = 0.045
_MAX_SEAT_M = 0.65  # seats and beds are not higher
_MAX_BACK_M = 1.3
_BACK_DEPTH_M = 0.3
_BACK_SHARE = 0.6


@dataclass(frozen=True, eq=False)
class Surface:
    """A level surface on the dense grid."""

    cells: NDArray[np.int64]  # edges included
    outline: NDArray[np.int64]  # cells that give its extent
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
        """(K,) mask of (K, 2) dense positions within the rectangle, widened by ``margin`` cells."""
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
    """Connected level cells of one height, so that a nightstand is separate from a bed of another height.

    A patch is split at most once for every :data:`_STEP_M` of its height.
    """
    patches = []
    waiting = connected_parts(cells, np.flatnonzero(level))
    while waiting:
        patch = waiting.pop()
        height = cells.mean_m[patch, 2]
        # the height of a cell: halfway between two groups there may be none, and no cell would be removed
        middle = np.percentile(height, 50, method="lower")
        same = np.abs(height - middle) < _STEP_M
        patches.append(patch[same])
        waiting += connected_parts(cells, patch[~same])
    return sorted(patches, key=lambda patch: int(patch[0]))


def _footprints(cells: Cells, patch: NDArray[np.int64], yaw_rad: float) -> list[NDArray[np.bool_]]:
    """(X, Y) masks of the rectangular parts of a patch, holes filled."""
    shape = cells.index.shape[:2]
    footprint = np.zeros(shape, dtype=bool)
    footprint[tuple(cells.dense[patch, :2].T)] = True
    # objects on the surface hide it: close gaps of two cells, fill holes
    footprint = scipy.ndimage.binary_closing(np.pad(footprint, 3), iterations=2)[3:-3, 3:-3]
    footprint = scipy.ndimage.binary_fill_holes(footprint)
    return rectangular_footprints(cells, footprint, yaw_rad)


def rectangular_footprints(
    cells: Cells, footprint: NDArray[np.bool_], yaw_rad: float, max_size_m: float = float("inf")
) -> list[NDArray[np.bool_]]:
    """(X, Y) masks of the parts of a footprint that fit rectangles along the walls."""
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
    """The slab of a patch over a footprint, with edge cells and noise one cell up and down."""
    inside = patch[footprint[tuple(cells.dense[patch, :2].T)]]
    # the highest level cell of each column, as a board's underside may be seen too; rows are sorted by x, y, z
    last = np.append((np.diff(cells.dense[inside, :2], axis=0) != 0).any(axis=1), True)
    highest = inside[last]
    top = int(np.median(cells.dense[highest, 2]))
    wide = scipy.ndimage.binary_dilation(footprint, structure=np.ones((3, 3), dtype=bool))
    near = np.abs(cells.dense[:, 2] - top) <= 1
    slab = np.flatnonzero(available & near & wide[tuple(cells.dense[:, :2].T)])
    top_z_m = float(np.median(cells.mean_m[highest, 2]))
    # a chair's back that touches the edge rises above it, and must not widen the table
    x, y, _ = cells.dense[slab].T
    above = cells.index[x, y, min(top + 1, cells.index.shape[2] - 1)]
    rises = (above >= 0) & (cells.mean_m[above, 2] > top_z_m + 0.6 * cells.size_m)
    within = footprint[x, y] | ~rises
    outline = slab[within] if within.any() else slab
    # legs stand under corners, where no cell looks level: the whole rectangle counts
    at = np.argwhere(footprint).astype(np.float64)
    yaw = rectangle_direction(at, wall_yaw_rad)
    c, s = np.cos(yaw), np.sin(yaw)
    axes = np.array([[c, -s], [s, c]])
    low, high = (at @ axes).min(axis=0), (at @ axes).max(axis=0)
    return Surface(slab, outline, axes @ ((low + high) / 2), (high - low) / 2, axes, top, top_z_m)


def is_back(cells: Cells, rows: NDArray[np.int64], surface: Surface, floor_z_m: float) -> bool:
    """Whether a component is the back, arm or head of a seat or bed: it rises along most of one side."""
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


# --------------------------------------------------------------------------------------------------------------------
# oriented rectangles around points of the ground plane, and splitting of non-rectangular shapes

_TRIM_PERCENT = 0.5  # share of noise points on either side
_MAX_POINTS = 2_000  # enough to find a direction; extents use every point
_SMALL_TURNS = np.radians(np.arange(-12.0, 12.1, 3.0))
_ALIGN_GAIN = 0.12  # least saving of area by a direction other than the walls'


def rectangle_direction(xy_m: NDArray[np.float64], wall_yaw_rad: float) -> float:
    """Yaw in [0, pi/2) of the smallest rectangle around (K, 2) points.

    The walls' direction is preferred while its rectangle is hardly larger: furniture follows walls, and stable boxes
    keep their ids.
    """
    if len(xy_m) < 3:
        return wall_yaw_rad % (np.pi / 2)
    sample = xy_m[:: max(1, len(xy_m) // _MAX_POINTS)]
    coarse = np.radians(np.arange(0.0, 90.0, 3.0))
    best = coarse[int(np.argmin(_areas(sample, coarse)))]
    fine = best + np.radians(np.arange(-3.0, 3.01, 0.5))
    areas = _areas(sample, fine)
    own, own_area = fine[int(np.argmin(areas))], float(areas.min())
    aligned_area = float(_areas(sample, np.array([wall_yaw_rad]))[0])
    yaw = wall_yaw_rad if aligned_area * (1.0 - _ALIGN_GAIN) <= own_area else own
    return float(yaw % (np.pi / 2))


def _areas(xy_m: NDArray[np.float64], yaw_rad: NDArray[np.float64]) -> NDArray[np.float64]:
    """(A,) areas of the trimmed rectangles at (A,) angles."""
    areas: NDArray[np.float64] = _trimmed_areas(xy_m, np.cos(yaw_rad), np.sin(yaw_rad), 0.01 * _TRIM_PERCENT)
    return areas


@njit(cache=True, nogil=True)
def _trimmed_areas(
    xy_m: NDArray[np.float64], cos: NDArray[np.float64], sin: NDArray[np.float64], trim: float
) -> NDArray[np.float64]:
    """As boxes of :func:`~embodied_perceptron.geometry.boxes.trimmed_bounds`, of which only the ends are sorted."""
    last = len(xy_m) - 1
    at = trim * last
    below = min(int(at), last)
    kept, share = min(below + 2, last + 1), at - below
    out = np.empty(len(cos))
    ends = np.empty((4, kept))  # lowest along, highest (negated) along, the same across; ascending
    for a in range(len(cos)):
        ends[:] = np.inf
        for i in range(last + 1):
            along = xy_m[i, 0] * cos[a] + xy_m[i, 1] * sin[a]
            across = xy_m[i, 1] * cos[a] - xy_m[i, 0] * sin[a]
            for end, value in ((0, along), (1, -along), (2, across), (3, -across)):
                if value >= ends[end, kept - 1]:
                    continue
                j = kept - 1
                while j > 0 and ends[end, j - 1] > value:
                    ends[end, j] = ends[end, j - 1]
                    j -= 1
                ends[end, j] = value
        above = min(below + 1, last)
        side = np.empty(4)
        for end in range(4):
            side[end] = ends[end, below] + share * (ends[end, above] - ends[end, below])
        # noise has some width; without it, a thin side would make any angle along the points perfect
        out[a] = (-side[1] - side[0] + 0.02) * (-side[3] - side[2] + 0.02)
    return out


def upright_box(points_m: NDArray[np.float64], yaw_rad: float, low_z_m: float, high_z_m: float) -> NDArray[np.float64]:
    """(9,) box between two heights around (K, 3) points seen from above at ``yaw_rad``, its longer ground side first.

    Extents leave ``0.5 %`` of the points outside on each side. ``alpha`` lies in [-pi/2, pi/2).
    """
    R = np.array([[np.cos(yaw_rad), -np.sin(yaw_rad)], [np.sin(yaw_rad), np.cos(yaw_rad)]])
    local = points_m[:, :2] @ R
    low, high = trimmed_bounds(local, _TRIM_PERCENT)
    center = R @ ((low + high) / 2)
    size = high - low
    if size[1] > size[0]:
        size, yaw_rad = size[::-1], yaw_rad + np.pi / 2
    yaw_rad = (yaw_rad + np.pi / 2) % np.pi - np.pi / 2
    return np.array([*center, (low_z_m + high_z_m) / 2, *size, high_z_m - low_z_m, yaw_rad, 0.0, 0.0])


def rectangular_parts(
    xy: NDArray[np.float64],
    min_side: float,
    max_side: float = float("inf"),
    min_gain: float = 0.22,
    rounds: int = 4,
) -> NDArray[np.int64]:
    """Split (K, 2) positions on a grid of spacing 1 into parts that rectangles fit well: an L becomes two bars.

    Of all straight cuts along the axes, the one that saves most area of the rectangles around both sides is made while
    it saves at least ``min_gain`` of it and leaves both at least ``min_side`` wide; parts longer than ``max_side`` are
    cut wherever it saves anything. Rectangles may be turned a little, so that a bar that is not quite along the axes
    stays one. Returns the (K,) number of the part of each position.
    """
    part = np.zeros(len(xy), dtype=np.int64)
    if rounds == 0 or len(xy) < 2:
        return part
    spread = np.ptp(xy, axis=0) + 1
    whole = float(_areas_up_to(xy, np.array([len(xy)]))[0])
    allowed = (1.0 - (min_gain if spread.max() <= max_side else 0.03)) * whole
    best_area, second = allowed, None
    for axis in (0, 1):
        order = np.argsort(xy[:, axis], kind="stable")
        along = xy[order, axis]
        cuts = np.arange(along[0] + min_side, along[-1] + 1.5 - min_side)  # the first position behind the cut
        if len(cuts) == 0:
            continue
        count = np.searchsorted(along, cuts - 0.5)
        count = count[(count > 0) & (count < len(xy))]
        if len(count) == 0:
            continue
        area = _areas_up_to(xy[order], count) + _areas_up_to(xy[order[::-1]], len(xy) - count)
        i = int(np.argmin(area))
        if area[i] < best_area:
            best_area, second = float(area[i]), np.sort(order[count[i] :])
    if second is None:
        return part
    first = np.setdiff1d(np.arange(len(xy)), second)
    for side in (first, second):
        sub = rectangular_parts(xy[side], min_side, max_side, min_gain, rounds - 1)
        part[side] = sub + (part.max() + 1 if side is second else 0)
    return part


def _areas_up_to(xy: NDArray[np.float64], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each n in ``count``: the area of the smallest slightly turned rectangle around the first n positions."""
    best = np.full(len(count), np.inf)
    for angle in _SMALL_TURNS:
        c, s = np.cos(angle), np.sin(angle)
        u, v = xy @ np.array([c, s]), xy @ np.array([-s, c])
        sides = [np.maximum.accumulate(w)[count - 1] - np.minimum.accumulate(w)[count - 1] + 1 for w in (u, v)]
        best = np.minimum(best, sides[0] * sides[1])
    return best
