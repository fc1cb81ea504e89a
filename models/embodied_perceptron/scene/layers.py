"""What of a map is floor, what is building (walls, ceiling), and what is left: the first cut of every perception.

Geometry alone decides. The floor comes from :func:`embodied_perceptron.scene.floor.estimate_floor_z`. Walls are
long, tall, vertical planes, found by a Hough transform over cells whose normals lie flat; only cells whose own normal
agrees with the plane belong to it, so a counter that stands against a wall keeps its top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import ObjectsConfig
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.scene.cells import Cells, build_cells

FLOOR, STRUCTURE, THING = 1, 2, 3

WALL_MIN_LENGTH_M = 0.8
WALL_MIN_TOP_M = 1.25  # a wall behind a counter may be seen only above it, so its top decides, not its extent
WALL_MIN_HEIGHT_M = 0.3
WALL_MIN_AREA_M2 = 0.6
WALL_MAX_GAP_M = 0.6
WALL_HALF_THICKNESS_M = 0.09
WALL_BEHIND_M = 0.4
_OUTSIDE_SHARE = 0.25  # of the cells on a wall's other side: more is another room
_ANGLE_BINS = 90  # over half a turn
_MAX_WALLS = 32
_COS_WALL = float(np.cos(np.radians(35.0)))
_MAX_WALL_NORMAL_Z = 0.35


@dataclass(frozen=True, eq=False)
class Layers:
    """A map cut into layers.

    Attributes:
        floor_z_m: height of the floor, world frame; NaN when the map is empty or shows no floor.
        label: (N,) int8 per voxel of the snapshot: FLOOR, STRUCTURE or THING.
        cells: everything that is not floor, on the lattice.
        cell_label: (M,) int8 per cell: STRUCTURE or THING.
        yaw_rad: direction of the walls in [0, pi/2); 0 when there are none.
    """

    floor_z_m: float
    label: NDArray[np.int8]
    cells: Cells
    cell_label: NDArray[np.int8]
    yaw_rad: float


def separate_layers(snapshot: VoxelSnapshot, floor_z_m: float, config: ObjectsConfig) -> Layers:
    """Label every voxel of ``snapshot``. Deterministic; an empty snapshot gives empty layers."""
    height_m = np.asarray(snapshot.mean_point_m[:, 2], dtype=np.float64) - floor_z_m
    above = height_m >= config.min_height_m
    cells = build_cells(snapshot, config.cell_size_m, above)
    yaw_rad = wall_direction(cells)
    wall = find_walls(cells, floor_z_m)
    ceiling = cells.mean_m[:, 2] - floor_z_m > config.max_height_m
    cell_label = np.where(wall | ceiling, STRUCTURE, THING).astype(np.int8)
    label = np.full(len(snapshot), FLOOR, dtype=np.int8)
    label[above] = cell_label[cells.cell_of_voxel[above]]
    return Layers(floor_z_m, label, cells, cell_label, yaw_rad)


def _upright(cells: Cells) -> NDArray[np.bool_]:
    """(M,) cells on vertical surfaces."""
    has_normal = np.abs(cells.normal).max(axis=1, initial=0.0) > 0
    upright: NDArray[np.bool_] = has_normal & (np.abs(cells.normal[:, 2]) < _MAX_WALL_NORMAL_Z)
    return upright


def wall_direction(cells: Cells) -> float:
    """Main direction of the vertical surfaces, in [0, pi/2): the angle that most of them meet at right angles."""
    normal = cells.normal[_upright(cells)]
    if len(normal) == 0:
        return 0.0
    # four times the angle maps all four directions of a right-angled room to one, so that they can be averaged
    angle = 4.0 * np.arctan2(normal[:, 1], normal[:, 0])
    rough = np.arctan2(np.sin(angle).sum(), np.cos(angle).sum())
    error = np.angle(np.exp(1j * (angle - rough)))
    near = np.abs(error) < np.radians(4 * 12.0)  # a second pass without clutter
    refined = rough + (error[near].mean() if near.any() else 0.0)
    return float((refined / 4.0) % (np.pi / 2))


def find_walls(cells: Cells, floor_z_m: float) -> NDArray[np.bool_]:
    """(M,) mask of the cells on walls: long, tall, vertical planes."""
    wall = np.zeros(len(cells), dtype=bool)
    rows = np.flatnonzero(_upright(cells))
    if len(rows) == 0:
        return wall
    normal = cells.normal[rows, :2] / np.linalg.norm(cells.normal[rows, :2], axis=1, keepdims=True)
    position = cells.mean_m[rows, :2]
    middle = position.mean(axis=0)  # offsets about the middle, so that a small error of angle moves them little
    open_ = np.ones(len(rows), dtype=bool)
    min_cells = WALL_MIN_AREA_M2 / cells.size_m**2
    for _ in range(_MAX_WALLS):
        if np.count_nonzero(open_) < min_cells:
            break
        line = _strongest_line(position[open_] - middle, normal[open_], cells.size_m)
        direction, offset = line
        near = np.abs((position - middle) @ direction - offset) < WALL_HALF_THICKNESS_M
        on_plane = open_ & near & (np.abs(normal @ direction) > _COS_WALL)
        if np.count_nonzero(on_plane) < min_cells:
            break
        along = position @ np.array([-direction[1], direction[0]])
        for run in _runs(along, np.flatnonzero(on_plane), WALL_MAX_GAP_M):
            height = cells.mean_m[rows[run], 2] - floor_z_m
            low, top = np.percentile(height, [5, 95])
            length = along[run].max() - along[run].min() + cells.size_m
            big = len(run) >= min_cells and length >= WALL_MIN_LENGTH_M
            if big and top >= WALL_MIN_TOP_M and top - low >= WALL_MIN_HEIGHT_M:
                wall[rows[run]] = True
                wall |= _behind(cells, direction, offset + float(middle @ direction), along[run])
        open_ &= ~on_plane
    return _grow_walls(cells, wall)


def _behind(
    cells: Cells, direction: NDArray[np.float64], offset: float, along: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """(M,) cells in or shortly behind a wall that has a room on one side only: noise of its surface, reflections."""
    across = cells.mean_m[:, :2] @ direction - offset
    lateral = cells.mean_m[:, :2] @ np.array([-direction[1], direction[0]])
    beside = (lateral >= along.min() - cells.size_m) & (lateral <= along.max() + cells.size_m)
    positive = int(np.count_nonzero(beside & (across > WALL_HALF_THICKNESS_M)))
    negative = int(np.count_nonzero(beside & (across < -WALL_HALF_THICKNESS_M)))
    if min(positive, negative) > _OUTSIDE_SHARE * max(positive, negative):
        return np.zeros(len(cells), dtype=bool)  # rooms on both sides
    outward = -across if positive > negative else across
    behind: NDArray[np.bool_] = beside & (outward > -cells.size_m / 2) & (outward < WALL_BEHIND_M)
    return behind


def _strongest_line(
    position: NDArray[np.float64], normal: NDArray[np.float64], bin_m: float
) -> tuple[NDArray[np.float64], float]:
    """The vertical plane most cells agree on: (2,) unit normal and offset. Cells vote with their own normal."""
    angle = np.arctan2(normal[:, 1], normal[:, 0]) % np.pi
    step = np.pi / _ANGLE_BINS
    reach = float(np.abs(position).max()) * np.sqrt(2.0) + bin_m
    offsets = int(np.ceil(2 * reach / bin_m)) + 2
    votes = np.zeros((_ANGLE_BINS, offsets))
    own = np.floor(angle / step).astype(np.int64)
    for delta in range(-4, 5):  # normals of neighbourhoods are a few degrees off
        bins = (own + delta) % _ANGLE_BINS
        centre = (bins + 0.5) * step
        rho = position[:, 0] * np.cos(centre) + position[:, 1] * np.sin(centre)
        cell = np.floor((rho + reach) / bin_m).astype(np.int64)
        votes += np.bincount(bins * offsets + cell, minlength=votes.size).reshape(votes.shape)
    smooth = votes.copy()  # a wall is about two bins thick
    smooth[:, 1:] += votes[:, :-1]
    smooth[:, :-1] += votes[:, 1:]
    best_angle, best_offset = np.unravel_index(int(np.argmax(smooth)), smooth.shape)
    theta = (best_angle + 0.5) * step
    direction = np.array([np.cos(theta), np.sin(theta)])
    rho = position @ direction
    near = np.abs(rho - ((best_offset + 0.5) * bin_m - reach)) < 1.5 * bin_m
    near &= np.abs(normal @ direction) > _COS_WALL
    if np.count_nonzero(near) < 2:
        return direction, (best_offset + 0.5) * bin_m - reach
    return _fit_line(position[near], direction)


def _fit_line(position: NDArray[np.float64], direction: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Least-squares line through (K, 2) positions, its normal turned towards ``direction``."""
    mean = position.mean(axis=0)
    _, vectors = np.linalg.eigh((position - mean).T @ (position - mean))
    fitted: NDArray[np.float64] = vectors[:, 0]
    if abs(float(fitted @ direction)) < _COS_WALL:  # a blob, not a line: the vote knows better
        fitted = direction
    fitted = fitted if fitted @ direction > 0 else -fitted
    return fitted, float(mean @ fitted)


def _runs(along: NDArray[np.float64], rows: NDArray[np.int64], gap_m: float) -> list[NDArray[np.int64]]:
    """Split ``rows`` into runs whose positions ``along`` a line leave no gap larger than ``gap_m``."""
    order = rows[np.argsort(along[rows], kind="stable")]
    breaks = np.flatnonzero(np.diff(along[order]) > gap_m) + 1
    return np.split(order, breaks)


def _grow_walls(cells: Cells, wall: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Add cells without a clear normal that are wrapped in wall: noise, switches, edges and corners."""
    if not wall.any():
        return wall
    wall_at = np.zeros(cells.index.shape, dtype=bool)
    wall_at[tuple(cells.dense[wall].T)] = True
    x, y, z = cells.dense.T
    walls_around = np.zeros(len(cells), dtype=np.int64)
    things_around = np.zeros(len(cells), dtype=np.int64)
    for dx in (-1, 0, 1):
        for dy in (-1, 0, 1):
            for dz in (-1, 0, 1):
                is_wall = wall_at[x + dx, y + dy, z + dz]
                walls_around += is_wall
                things_around += (cells.index[x + dx, y + dy, z + dz] >= 0) & ~is_wall
    return wall | ((walls_around >= 4) & (walls_around > things_around))
