"""The navigation grid, obstacles for a costmap, approach poses, and labelled cells."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import GridConfig
from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.transforms import (
    MAX_COORDINATE,
    make_transform,
    pack_keys,
    unpack_keys,
    voxel_centers,
)
from embodied_perceptron.mapping.block_copies import BlockCache, BlockView, blocks_of
from embodied_perceptron.mapping.blocks import BLOCK_EDGE
from embodied_perceptron.mapping.storage import MapFileError, take_array
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.recordings.tensor_files import parse_json
from embodied_perceptron.results import OccupancyGrid2d, SemanticVoxels, VoxelSnapshot
from embodied_perceptron.scene.segmentation.cells import assign_cells
from embodied_perceptron.scene.segmentation.layers import FLOOR, STRUCTURE, THING, Layers

FLOOR_CLASSES = ("floor", "carpet", "mat")
FLOOR_BULGE_M = 0.1  # a floor that rises this much into the height band is still a floor: ramps, thick carpets, drift
LOW_THING_M = 0.04  # an object below the height band blocks from here on; lower voxels are its floor
_DROP_M = 0.15  # voxels further below the floor are ignored
_MAX_TABLE = 1 << 26  # bytes of a table of labelled cells; wider maps are searched instead
_MAX_CELLS, _MAX_SIDE = 1 << 24, 1 << 12  # cells of a grid, and side of the part of a larger one: 200 m at 5 cm
_ROUNDING_M = 1e-4  # largest distance of a mean point outside of its block
_NOTHING, _FLOOR, _PASSABLE, _THING = 0, 1, 2, 4  # kinds of a cell; a class may be floor and passable

UNKNOWN_CELL, FREE_CELL, OCCUPIED_CELL = -1, 0, 100
CLASSES = ("unknown", "floor", "structure", "object")
_CLASS_OF_LAYER = np.zeros(4, dtype=np.int64)
_CLASS_OF_LAYER[[FLOOR, STRUCTURE, THING]] = 1, 2, 3
_FREE_NEIGHBOURS = 5  # of 8; such an enclosed gap is a gap of sampling


def navigation_grid(
    snapshot: VoxelSnapshot,
    floor_z_m: float,
    config: GridConfig,
    semantic: SemanticVoxels | None = None,
    cache: BlockCache | None = None,
) -> OccupancyGrid2d:
    """Top-down grid: 100 with voxels in the robot's height band, 0 where only the floor was seen, else -1.

    An obstacle wins over the floor beneath it (a table top in the band blocks). Voxels above the band or further than
    15 cm below the floor are ignored. Free cells near classes of ``config.class_costs`` have their cost instead of 0.
    Cells are aligned with the world's origin; an empty map gives a 0 x 0 grid. ``semantic``: cells labelled by a
    network, whose doors do not block; see :func:`count_columns`. ``cache``: counts for earlier grids of the same map;
    None = no earlier ones.
    """
    columns = count_by_blocks(blocks_of(snapshot), floor_z_m, config, semantic, cache or BlockCache())
    if columns.ground.size == 0:
        return OccupancyGrid2d(config.resolution_m, np.zeros(2), np.zeros((0, 0), np.int8), floor_z_m)
    blocked = columns.blocking >= config.min_obstacle_voxels
    free = _close_gaps((columns.ground > 0) & ~blocked, columns.blocking > 0)
    cells = np.full(blocked.shape, UNKNOWN_CELL, dtype=np.int8)
    cells[free] = FREE_CELL
    cells[blocked] = OCCUPIED_CELL
    if config.class_costs and semantic is not None:
        _add_class_costs(cells, columns.low, floor_z_m, config, semantic)
    return OccupancyGrid2d(config.resolution_m, columns.low.astype(np.float64) * config.resolution_m, cells, floor_z_m)


def _add_class_costs(
    cells: NDArray[np.int8],
    low: NDArray[np.int64],
    floor_z_m: float,
    config: GridConfig,
    semantic: SemanticVoxels,
) -> None:
    """Raise free cells to the costs of the classes around them; ``low``: x and y of the first of (rows, cols) cells."""
    heights = semantic.centers_m[:, 2] - floor_z_m
    near_floor = (heights > -_DROP_M) & (heights <= config.max_obstacle_height_m)
    names = np.array(semantic.classes)[semantic.labels] if len(semantic.labels) else np.zeros(0, str)
    is_free = cells == FREE_CELL
    for name, cost in config.class_costs.items():
        there = np.floor(semantic.centers_m[near_floor & (names == name), :2] / config.resolution_m).astype(np.int64)
        columns, rows = (there - low).T
        inside = (rows >= 0) & (rows < cells.shape[0]) & (columns >= 0) & (columns < cells.shape[1])
        if not inside.any():
            continue
        away = np.ones(cells.shape, dtype=bool)
        away[rows[inside], columns[inside]] = False
        near = scipy.ndimage.distance_transform_edt(away) * config.resolution_m <= config.class_cost_radius_m
        cells[is_free & near] = np.maximum(cells[is_free & near], cost)


def _close_gaps(free: NDArray[np.bool_], touched: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Free cells, and gaps without voxels that free cells enclose, as far floors are sampled thinly."""
    around = scipy.ndimage.convolve(free.astype(np.int8), np.ones((3, 3), np.int8), mode="constant")
    closed: NDArray[np.bool_] = free | (~touched & (around >= _FREE_NEIGHBOURS))
    return closed


# --------------------------------------------------------------------------------------------------------------------
# Number of voxels on each cell of the ground that block a robot, and that are ground.


@dataclass(frozen=True, eq=False)
class Columns:
    """Counts per cell of the ground.

    Attributes:
        low: (2,) x and y of the first cell, in cells.
        ground, blocking: (rows, cols) int64 voxels; rows along y.
    """

    low: NDArray[np.int64]
    ground: NDArray[np.int64]
    blocking: NDArray[np.int64]


def count_by_blocks(
    blocks: BlockView, floor_z_m: float, config: GridConfig, semantic: SemanticVoxels | None, cache: BlockCache
) -> Columns:
    """:func:`count_columns` of the voxels of a view, with means.

    ``cache``: counts of earlier views of the same map. A block is counted again when its voxels, the labels of the
    cells around it, the floor or the configuration have changed.
    """
    points, cells = blocks.arena.points_m, _CellKinds.of(config, semantic)
    block_m, resolution_m = BLOCK_EDGE * blocks.voxel_size_m, config.resolution_m
    low = np.floor((blocks.coords[:, :2] * block_m - _ROUNDING_M) / resolution_m).astype(np.int64)
    side = int(np.ceil((block_m + 2 * _ROUNDING_M) / resolution_m)) + 1
    first, last = (low.min(axis=0), low.max(axis=0) + side) if len(low) else (np.zeros(2), np.zeros(2))
    too_wide = float(np.prod((last - first).astype(np.float64))) > _MAX_CELLS
    if too_wide or len(low) == 0 or (cells.table.size == 0 and len(cells.kinds)):
        rows = np.concatenate([points[first:end] for first, end in blocks.ranges] or [points[:0]])
        return count_columns(rows, floor_z_m, config, semantic)
    place = cells.anchor, cells.size_m, cells.low, cells.table

    def count(changed: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[NDArray[np.uint16]]]:
        counts = np.zeros((len(changed), side, side, 2), np.uint16)
        _count_blocks(changed, blocks.ranges, low, points, *place, floor_z_m, _heights(config), resolution_m, counts)
        return np.full(len(changed), side * side), (counts.reshape(-1, 2),)

    parameters = (floor_z_m, config, cells.size_m, *cells.anchor.tolist(), block_m)
    both = np.zeros((2, *(last - first)[::-1]), np.int64)
    with cache.lock:
        cache.update(blocks, parameters, count, _names_around(blocks.coords, block_m, *place))
        _add_blocks(low - first, side, cache.starts, cache.columns[0], both)
    columns, rows = (np.flatnonzero(both.any(axis=axes)) for axes in ((0, 1), (0, 2)))
    if len(rows) == 0:
        return Columns(np.zeros(2, np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64))
    ground, blocking = both[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return Columns(first + np.array([columns[0], rows[0]]), ground, blocking)


def _heights(config: GridConfig) -> NDArray[np.float64]:
    return np.array([_DROP_M, config.max_obstacle_height_m, config.min_obstacle_height_m, FLOOR_BULGE_M, LOW_THING_M])


def count_columns(
    points_m: NDArray[np.float32], floor_z_m: float, config: GridConfig, semantic: SemanticVoxels | None = None
) -> Columns:
    """Count voxels that are neither above the height band nor far below the floor.

    Voxels in the height band block, lower ones are ground. Classes correct this: a floor that bulges into the band is
    ground, a low object blocks although the band begins above it, and ``config.passable_classes`` (doors) are ground,
    so that a planner finds a way through.

    A map too wide for a grid (16 million cells) is cut to 4,096 cells a side around its fullest part.

    Args:
        points_m: (N, 3) mean points of voxels, world frame.
        floor_z_m: height of the floor.
        config: resolution, height band and passable classes.
        semantic: labelled cells; None = nothing is labelled.
    """
    height = points_m[:, 2].astype(np.float64) - floor_z_m
    points_m = points_m[(height > -_DROP_M) & (height <= config.max_obstacle_height_m)]
    if len(points_m) == 0:
        return Columns(np.zeros(2, np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64))
    cells = np.floor(points_m[:, :2].astype(np.float64) / config.resolution_m).astype(np.int64)
    low, high = cells.min(axis=0), cells.max(axis=0)
    if float(np.prod((high - low + 1).astype(np.float64))) > _MAX_CELLS:
        half = _MAX_SIDE // 2
        parts, counts = np.unique(cells // half, axis=0, return_counts=True)
        middle = parts[counts.argmax()] * half + half // 2
        low, high = np.maximum(low, middle - half), np.minimum(high, middle + half - 1)
    inside = ((cells >= low) & (cells <= high)).all(axis=1)
    blocks = blocks_robot(points_m[inside], floor_z_m, config, semantic)
    columns, rows = high - low + 1
    flat = (cells[inside, 1] - low[1]) * columns + cells[inside, 0] - low[0]
    ground, blocking = (np.bincount(flat[mask], minlength=rows * columns) for mask in (~blocks, blocks))
    return Columns(low, ground.reshape(rows, columns), blocking.reshape(rows, columns))


@dataclass(frozen=True, eq=False)
class _CellKinds:
    """Kinds of labelled cells.

    Attributes:
        anchor: (3,) corner of a cell next to the origin; size_m: edge of a cell.
        low: (3,) first cell; extent: (3,) number of cells along each axis.
        cells: (M, 3) relative to the first; kinds: (M,) bits.
        table: (extent) bits by cell; empty for cells too far apart.
    """

    anchor: NDArray[np.float64]
    size_m: float
    low: NDArray[np.int64]
    extent: NDArray[np.int64]
    cells: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    table: NDArray[np.uint8]

    @staticmethod
    def of(config: GridConfig, semantic: SemanticVoxels | None) -> _CellKinds:
        no_table = np.zeros((0, 0, 0), np.uint8)
        if semantic is None or len(semantic.labels) == 0:
            nothing = np.zeros(3, np.int64)
            return _CellKinds(
                np.zeros(3), 1.0, nothing, nothing, np.zeros((0, 3), np.int64), np.zeros(0, np.uint8), no_table
            )
        kind_of_class = np.array(
            [
                (_FLOOR if name in FLOOR_CLASSES else _THING) | (_PASSABLE if name in config.passable_classes else 0)
                for name in semantic.classes
            ],
            np.uint8,
        )
        size, kinds = semantic.cell_size_m, kind_of_class[semantic.labels]
        corner = semantic.centers_m[0].astype(np.float64) - 0.5 * size
        anchor = corner - np.round(corner / size) * size
        anchor[np.abs(anchor) < 1e-3 * size] = 0.0  # centers are rounded
        cells = _cells_of(semantic.centers_m, anchor, size)
        low = cells.min(axis=0)
        cells -= low
        extent = cells.max(axis=0) + 1
        if float(np.prod(extent.astype(np.float64))) <= _MAX_TABLE:
            return _CellKinds(anchor, size, low, extent, cells, kinds, _table(cells, extent, kinds))
        return _CellKinds(anchor, size, low, extent, cells, kinds, no_table)

    def at(self, points_m: NDArray[np.float32]) -> NDArray[np.uint8]:
        """(N,) bits of the cells that (N, 3) points lie in."""
        found = np.full(len(points_m), _NOTHING, np.uint8)
        if len(self.kinds) == 0:
            return found
        wanted = _cells_of(points_m, self.anchor, self.size_m) - self.low
        inside = ((wanted >= 0) & (wanted < self.extent)).all(axis=1)
        if self.table.size:
            found[inside] = self.table[tuple(wanted[inside].T)]
        else:
            keys, mine = _flat(self.cells, self.extent), _flat(wanted[inside], self.extent)
            order = np.argsort(keys, kind="stable")
            position = np.minimum(np.searchsorted(keys[order], mine), len(keys) - 1)
            found[inside] = np.where(keys[order][position] == mine, self.kinds[order[position]], _NOTHING)
        return found


def _flat(cells: NDArray[np.int64], extent: NDArray[np.int64]) -> NDArray[np.int64]:
    flat: NDArray[np.int64] = (cells[:, 0] * extent[1] + cells[:, 1]) * extent[2] + cells[:, 2]
    return flat


@njit(cache=True, nogil=True)
def _cells_of(points: NDArray[np.float32], anchor: NDArray[np.float64], size: float) -> NDArray[np.int64]:
    cells = np.empty((len(points), 3), np.int64)
    for row in range(len(points)):
        for c in range(3):
            cells[row, c] = int(np.floor((np.float64(points[row, c]) - anchor[c]) / size))
    return cells


@njit(cache=True, nogil=True)
def _table(cells: NDArray[np.int64], extent: NDArray[np.int64], kinds: NDArray[np.uint8]) -> NDArray[np.uint8]:
    table = np.zeros((extent[0], extent[1], extent[2]), np.uint8)
    for row in range(len(cells) - 1, -1, -1):  # of equal cells the first one counts
        table[cells[row, 0], cells[row, 1], cells[row, 2]] = kinds[row]
    return table


@njit(cache=True, inline="always")
def _entry(table: NDArray[np.uint8], i: int, j: int, k: int) -> int:
    """Kind of a cell; 0 outside of the table."""
    kind = 0
    if 0 <= i < table.shape[0] and 0 <= j < table.shape[1] and 0 <= k < table.shape[2]:
        kind = int(table[i, j, k])
    return kind


@njit(cache=True, inline="always")
def _kind_at(
    points: NDArray[np.float32],
    row: int,
    anchor: NDArray[np.float64],
    cell_size: float,
    low: NDArray[np.int64],
    table: NDArray[np.uint8],
) -> int:
    """Kind of the cell of a point; 0 outside of the table."""
    i = int(np.floor((np.float64(points[row, 0]) - anchor[0]) / cell_size)) - low[0]
    j = int(np.floor((np.float64(points[row, 1]) - anchor[1]) / cell_size)) - low[1]
    k = int(np.floor((np.float64(points[row, 2]) - anchor[2]) / cell_size)) - low[2]
    return _entry(table, i, j, k)


@njit(cache=True, inline="always")
def _blocks_at(height: float, kind: int, heights: NDArray[np.float64]) -> bool:
    """Whether a counted voxel blocks; see :func:`count_columns`."""
    band, bulge, thing = heights[2], heights[3], heights[4]
    blocks = height >= band or (kind & _THING != 0 and height >= thing)
    if kind & _FLOOR != 0 and height < band + bulge:
        blocks = False
    if kind & _PASSABLE != 0:
        blocks = False
    return blocks


@njit(cache=True, nogil=True)
def _count_blocks(
    which: NDArray[np.int64],
    ranges: NDArray[np.int64],
    first: NDArray[np.int64],
    points: NDArray[np.float32],
    anchor: NDArray[np.float64],
    cell_size: float,
    low: NDArray[np.int64],
    table: NDArray[np.uint8],
    floor_z: float,
    heights: NDArray[np.float64],
    resolution: float,
    counts: NDArray[np.uint16],
) -> None:
    """Ground and blocking voxels of some blocks, by cells (y, x) from ``first`` of each on, into ``counts``."""
    for n in range(len(which)):
        b = which[n]
        for row in range(ranges[b, 0], ranges[b, 1]):
            height = np.float64(points[row, 2]) - floor_z
            if not (height > -heights[0] and height <= heights[1]):
                continue
            kind = _kind_at(points, row, anchor, cell_size, low, table)
            x = int(np.floor(np.float64(points[row, 0]) / resolution)) - first[b, 0]
            y = int(np.floor(np.float64(points[row, 1]) / resolution)) - first[b, 1]
            counts[n, y, x, int(_blocks_at(height, kind, heights))] += 1


@njit(cache=True, nogil=True)
def _add_blocks(
    first: NDArray[np.int64], side: int, starts: NDArray[np.int64], rows: NDArray[np.uint16], both: NDArray[np.int64]
) -> None:
    """Add the counts of each block to the grids; its ``side * side`` cells begin at its row in ``starts``."""
    for b in range(len(first)):
        for y in range(side):
            for x in range(side):
                for k in range(2):
                    both[k, first[b, 1] + y, first[b, 0] + x] += rows[starts[b] + y * side + x, k]


@njit(cache=True, nogil=True)
def _names_around(
    coords: NDArray[np.int32],
    block_m: float,
    anchor: NDArray[np.float64],
    cell_size: float,
    low: NDArray[np.int64],
    table: NDArray[np.uint8],
) -> NDArray[np.uint64]:
    """(B,) a number for what the cells are called that a block's voxels may lie in."""
    names = np.zeros(len(coords), np.uint64)
    first, last = np.empty(3, np.int64), np.empty(3, np.int64)
    for b in range(len(coords)):
        for c in range(3):
            first[c] = int(np.floor((coords[b, c] * block_m - _ROUNDING_M - anchor[c]) / cell_size)) - low[c]
            last[c] = int(np.floor(((coords[b, c] + 1) * block_m + _ROUNDING_M - anchor[c]) / cell_size)) - low[c]
        name = np.uint64(0)
        for i in range(first[0], last[0] + 1):
            for j in range(first[1], last[1] + 1):
                for k in range(first[2], last[2] + 1):
                    name = (name ^ np.uint64(_entry(table, i, j, k) + 1)) * np.uint64(1099511628211)
        names[b] = name
    return names


# --------------------------------------------------------------------------------------------------------------------
# Labelled cells from geometry, without a network.


def semantic_voxels(snapshot: VoxelSnapshot, layers: Layers, cell_size_m: float) -> SemanticVoxels:
    """Label cells of ``cell_size_m`` by the most frequent layer of their voxels (ties to the higher class).

    Confidence is the mean occupancy probability of the voxels times the share that agrees.
    """
    coords, cell = assign_cells(snapshot.mean_point_m.astype(np.float64), cell_size_m)
    probability = 1.0 / (1.0 + np.exp(-snapshot.evidence.astype(np.float64)))
    class_of_voxel = _CLASS_OF_LAYER[layers.label]
    votes, sums = _cell_sums(cell, class_of_voxel, snapshot.mean_color, probability, len(coords), len(CLASSES))
    labels = len(CLASSES) - 1 - np.argmax(votes[:, ::-1], axis=1)
    total = votes.sum(axis=1)
    agreeing = votes[np.arange(len(coords)), labels] / total
    return SemanticVoxels(
        cell_size_m=cell_size_m,
        centers_m=voxel_centers(coords, cell_size_m).astype(np.float32),
        color=np.round(sums[:, :3] / total[:, None]).astype(np.uint8),
        labels=labels.astype(np.int32),
        confidence=(sums[:, 3] / total * agreeing).astype(np.float32),
        classes=CLASSES,
    )


@njit(cache=True, nogil=True)
def _cell_sums(
    cell: NDArray[np.int64],
    class_of_voxel: NDArray[np.int64],
    color: NDArray[np.uint8],
    probability: NDArray[np.float64],
    cells: int,
    classes: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(M, classes) voxels of each class in each cell, and (M, 4) sums of their colours and probabilities."""
    votes = np.zeros((cells, classes), dtype=np.int64)
    sums = np.zeros((cells, 4))
    for row in range(len(cell)):
        c = cell[row]
        votes[c, class_of_voxel[row]] += 1
        for k in range(3):
            sums[c, k] += color[row, k]
        sums[c, 3] += probability[row]
    return votes, sums


# --------------------------------------------------------------------------------------------------------------------
# Points for a costmap's obstacle layer.

CLEARING_RAYS = 360  # one a degree: about a costmap cell at the range of a depth camera


@dataclass(frozen=True, eq=False)
class Obstacles:
    """Obstacles around a robot, in the world frame.

    Attributes:
        points_m: (N, 3) float32 blocking points, nearest first.
        clearing_m: (M, 3) float32 points at the range limit in free directions; a ray-tracing costmap clears its marks
            along them.
    """

    points_m: NDArray[np.float32]
    clearing_m: NDArray[np.float32]


def blocks_robot(
    points_m: NDArray[np.float32], floor_z_m: float, config: GridConfig, semantic: SemanticVoxels | None = None
) -> NDArray[np.bool_]:
    """(N,) mask of (N, 3) points that block a robot, by the rules of :func:`count_columns`."""
    kinds = _CellKinds.of(config, semantic).at(points_m)
    height = points_m[:, 2].astype(np.float64) - floor_z_m
    band = config.min_obstacle_height_m
    blocks = (height >= band) | (((kinds & _THING) != 0) & (height >= LOW_THING_M))
    blocks &= ~(((kinds & _FLOOR) != 0) & (height < band + FLOOR_BULGE_M))
    blocks &= (kinds & _PASSABLE) == 0
    result: NDArray[np.bool_] = blocks & (height > -_DROP_M) & (height <= config.max_obstacle_height_m)
    return result


def find_obstacles(
    voxels: VoxelSnapshot,
    grid: OccupancyGrid2d,
    position_m: NDArray[np.float64],
    range_m: float,
    config: GridConfig,
    semantic: SemanticVoxels | None = None,
    max_points: int = 20_000,
) -> Obstacles:
    """Blocking points within ``range_m`` of a robot; of too many, the nearest of one per ``config.resolution_m`` cube.

    Args:
        voxels: the map, world frame.
        grid: of the same map.
        position_m: (2,) or (3,) of the robot, world frame.
        range_m: radius on the ground.
        config: height band and passable classes.
        semantic: labelled cells; None = nothing is labelled.
        max_points: of both kinds together; at least :data:`CLEARING_RAYS`.

    Raises ``ValueError`` for a range that is not positive, or too few points.
    """
    if not range_m > 0:
        raise ValueError(f"range_m must be positive, got {range_m}")
    if max_points < CLEARING_RAYS:
        raise ValueError(f"max_points must be at least {CLEARING_RAYS}, got {max_points}")
    clearing = _clearing_points(grid, position_m, range_m)
    distance = np.hypot(voxels.mean_point_m[:, 0] - position_m[0], voxels.mean_point_m[:, 1] - position_m[1])
    rows = np.flatnonzero(distance < range_m)
    rows = rows[blocks_robot(voxels.mean_point_m[rows], grid.floor_z_m, config, semantic)]
    rows = rows[np.argsort(distance[rows], kind="stable")]
    room = max_points - len(clearing)
    if len(rows) > room:
        cubes = np.floor(voxels.mean_point_m[rows] / config.resolution_m).astype(np.int64)
        _, first = np.unique(cubes, axis=0, return_index=True)
        rows = rows[np.sort(first)][:room]
    return Obstacles(voxels.mean_point_m[rows], clearing)


def _clearing_points(grid: OccupancyGrid2d, position_m: NDArray[np.float64], range_m: float) -> NDArray[np.float32]:
    """(M, 3) ends of rays with only free cells, after unknown ground below the robot."""
    rows, columns = grid.cells.shape
    if grid.cells.size == 0:
        return np.zeros((0, 3), np.float32)
    angle = np.arange(CLEARING_RAYS) * (2 * np.pi / CLEARING_RAYS)
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)  # (R, 2)
    along = np.arange(0.0, range_m + grid.resolution_m, 0.5 * grid.resolution_m)  # (S,)
    points = position_m[:2] + direction[:, None] * along[None, :, None]  # (R, S, 2)
    cells = np.floor((points - grid.origin_m) / grid.resolution_m).astype(np.int64)
    inside = (cells[..., 0] >= 0) & (cells[..., 0] < columns) & (cells[..., 1] >= 0) & (cells[..., 1] < rows)
    values = np.full(inside.shape, UNKNOWN_CELL, np.int64)
    values[inside] = grid.cells[cells[..., 1][inside], cells[..., 0][inside]]
    begun = np.maximum.accumulate(values != UNKNOWN_CELL, axis=1)
    is_free = (values >= FREE_CELL) & (values < OCCUPIED_CELL)  # at any cost
    clear = begun[:, -1] & ~(begun & ~is_free).any(axis=1)
    # at a height that every obstacle layer reads, and beyond its marking range
    ends = position_m[:2] + direction[clear] * range_m
    height = np.full((len(ends), 1), grid.floor_z_m + 0.5)
    return np.concatenate([ends, height], axis=1).astype(np.float32)


# --------------------------------------------------------------------------------------------------------------------
# Approach pose before an object: free in the navigation grid, facing the object.

_FREE_BELOW = 50  # of a cell's cost 0..100
_SAMPLES_PER_M = 20.0  # along a line of sight
_OFF_AXIS, _DETOUR = 0.6, 0.1  # cost of standing diagonally before a face, and per metre of distance


@dataclass(frozen=True)
class ApproachOptions:
    """Sizes in metres: the robot's ``radius_m``, and the largest distance of its center from the object's footprint."""

    radius_m: float = 0.3
    max_standoff_m: float = 1.5
    gap_m: float = 0.15  # preferred, between robot and object

    def __post_init__(self) -> None:
        if not 0 < self.radius_m < self.max_standoff_m:
            raise ValueError(f"radius_m must be in (0, {self.max_standoff_m}), got {self.radius_m}")


def footprint(box: NDArray[np.float64]) -> NDArray[np.float64]:
    """(4, 2) corners on the floor of the upright bounds of a (9,) box along its yaw, counter-clockwise."""
    yaw = float(box[6])
    R = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    local = (box_corners(box[None])[0, :, :2] - box[:2]) @ R
    low, high = local.min(axis=0), local.max(axis=0)
    corners = np.array([[low[0], low[1]], [high[0], low[1]], [high[0], high[1]], [low[0], high[1]]])
    moved: NDArray[np.float64] = corners @ R.T + box[:2]
    return moved


def floor_distance(box: NDArray[np.float64], points_m: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,) metres on the floor from (N, 2) points to the footprint of a (9,) box; 0 inside."""
    return np.asarray(np.linalg.norm(_outside(box, points_m)[0], axis=1))


def _outside(
    box: NDArray[np.float64], points_m: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(N, 2) distances of points outside of a footprint along its axes, and (2,) half its edges."""
    corners = footprint(box)
    center = corners.mean(axis=0)
    axes = np.stack([corners[1] - corners[0], corners[3] - corners[0]])
    half = 0.5 * np.linalg.norm(axes, axis=1)
    axes = axes / np.maximum(2.0 * half, 1e-9)[:, None]
    local = (points_m - center) @ axes.T
    return np.maximum(np.abs(local) - half, 0.0), half


def approach_pose(
    box: NDArray[np.float64],
    grid: OccupancyGrid2d,
    robot_m: NDArray[np.float64] | None = None,
    options: ApproachOptions | None = None,
) -> NDArray[np.float64] | None:
    """The best pose before an object; None where there is none.

    Candidates are free cells with room for the whole robot and a line of sight to the object, which the robot can reach
    over such cells, where its position is known. The best one is close without contact, straight before a face of the
    box (its front is unknown), and near the robot.

    Args:
        box: (9,) of the object, metres and radians, in the frame of the grid.
        grid: of the floor; unknown cells are not free.
        robot_m: (2,) or (3,) position of the robot; None = unknown.
        options: sizes.

    Returns a (4, 4) pose in the grid's frame: on the floor, x towards the middle of the box, z up. Raises
    ``ValueError`` for a box that is not finite.
    """
    if not np.isfinite(box).all():
        raise ValueError(f"box must be finite, got {box.tolist()}")
    options = options or ApproachOptions()
    cells = grid.cells
    if not cells.size:
        return None
    free = (cells >= 0) & (cells < _FREE_BELOW)
    # cells beyond the border are unknown
    room_cells = scipy.ndimage.distance_transform_edt(np.pad(free, 1))[1:-1, 1:-1]
    room_m = room_cells * grid.resolution_m - 0.5 * grid.resolution_m
    passable = room_m >= options.radius_m
    if robot_m is not None:
        passable &= _connected(passable, grid, np.asarray(robot_m, np.float64)[:2], options.radius_m)
    rows, columns = np.nonzero(passable)
    points = grid.origin_m + (np.stack([columns, rows], axis=1) + 0.5) * grid.resolution_m
    near = floor_distance(box, points)
    wanted = np.flatnonzero((near >= options.radius_m) & (near <= options.max_standoff_m))
    if not len(wanted):
        return None
    points, near = points[wanted], near[wanted]
    outside, _ = _outside(box, points)
    askew = outside.min(axis=1) / np.maximum(outside.max(axis=1), 1e-9)
    cost = np.abs(near - (options.radius_m + options.gap_m)) + _OFF_AXIS * askew
    if robot_m is not None:
        cost = cost + _DETOUR * np.linalg.norm(points - np.asarray(robot_m, np.float64)[:2], axis=1)
    middle = footprint(box).mean(axis=0)
    for row in np.argsort(cost, kind="stable"):
        if _sees(points[row], middle, box, grid):
            ahead = middle - points[row]
            yaw = float(np.arctan2(ahead[1], ahead[0]))
            R = np.array([[np.cos(yaw), -np.sin(yaw), 0.0], [np.sin(yaw), np.cos(yaw), 0.0], [0.0, 0.0, 1.0]])
            return make_transform(R, np.array([*points[row], grid.floor_z_m]))
    return None


def _connected(
    passable: NDArray[np.bool_], grid: OccupancyGrid2d, robot_m: NDArray[np.float64], radius_m: float
) -> NDArray[np.bool_]:
    """Cells that are connected to the passable cell nearest to the robot (it may stand a little too close)."""
    parts, _ = scipy.ndimage.label(passable, structure=np.ones((3, 3)))
    rows, columns = np.nonzero(passable)
    if not len(rows):
        return passable
    points = grid.origin_m + (np.stack([columns, rows], axis=1) + 0.5) * grid.resolution_m
    away = np.linalg.norm(points - robot_m, axis=1)
    if float(away.min()) > 2.0 * radius_m + grid.resolution_m:
        return np.zeros_like(passable)
    start = int(np.argmin(away))
    return np.asarray(parts == parts[rows[start], columns[start]])


def _sees(
    point_m: NDArray[np.float64], middle_m: NDArray[np.float64], box: NDArray[np.float64], grid: OccupancyGrid2d
) -> bool:
    """Whether no occupied cell lies between a point and the footprint of a box."""
    steps = max(2, int(np.linalg.norm(middle_m - point_m) * _SAMPLES_PER_M))
    line = point_m + np.linspace(0.0, 1.0, steps)[:, None] * (middle_m - point_m)
    line = line[floor_distance(box, line) > 1.5 * grid.resolution_m]
    cells = np.floor((line - grid.origin_m) / grid.resolution_m).astype(np.int64)
    inside = ((cells >= 0) & (cells < np.array(grid.cells.shape)[::-1])).all(axis=1)
    return not bool((grid.cells[cells[inside, 1], cells[inside, 0]] >= _FREE_BELOW).any())


# --------------------------------------------------------------------------------------------------------------------
# Labelled cells of the whole map: each prediction replaces the cells of its region.

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
            meaning = plain_values.mapping(parse_json(text, str(path)), "their description")
            size_m = plain_values.number(meaning["cell_size_m"], "cell_size_m", 1e-3, 100.0)
            names = plain_values.sequence(meaning["classes"], "classes")
            classes = tuple(plain_values.words(name, "a class") for name in names)
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
