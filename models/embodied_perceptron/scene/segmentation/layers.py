"""Layers of a map from geometry: floor, structure (walls, ceiling), and the objects between.

Heights above the floor separate floor and ceiling. Walls are long, tall, vertical planes, found by a Hough transform in
which cells vote with their normals. Only cells whose normal agrees with the plane belong to it, so a counter at a wall
keeps its top. The front of a wardrobe is a plane too; it is furniture where a wall continues close behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import SegmentationConfig
from embodied_perceptron.geometry.manhattan import wall_yaw
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.scene.segmentation.cells import Cells, build_cells

FLOOR, STRUCTURE, THING = 1, 2, 3

_MIN_LENGTH_M = 0.8
_MIN_TOP_M = 1.25  # of a wall, which may be visible only above a counter
_MIN_HEIGHT_M = 0.3
_MIN_AREA_M2 = 0.6
_MAX_GAP_M = 0.6
_HALF_THICKNESS_M = 0.09
_BEHIND_M = 0.4
_NOISE_M, _NOISY_SHARE = 0.15, 0.6
_OUTSIDE_SHARE = 0.25  # of the cells on the other side of a wall; more is another room
_FRONT_MAX_LENGTH_M = 2.6  # longer planes are walls
_FRONT_DEPTH_M = (0.22, 0.9)
_FRONT_NEAR_M = 0.5
_ENDS_M = 0.2
_CLEAR_M = 0.35  # noise and reflections reach this far behind a wall
_ANGLE_BINS = 90  # over half a turn
_MAX_PLANES = 48
_COS_WALL = float(np.cos(np.radians(35.0)))
_COS_CROSSING = float(np.cos(np.radians(45.0)))
_COS_PARALLEL = float(np.cos(np.radians(8.0)))
_MAX_WALL_NORMAL_Z = 0.35


@dataclass(frozen=True, eq=False)
class Layers:
    """A map cut into layers.

    Attributes:
        floor_z_m: height of the floor, world frame; NaN when the map is empty or shows no floor.
        label: (N,) int8 per voxel of the snapshot: FLOOR, STRUCTURE or THING.
        cells: everything between floor and ``max_height_m``, on the grid of cells.
        cell_label: (M,) int8 per cell: STRUCTURE or THING.
        yaw_rad: direction of the walls in [0, pi/2); 0 when there are none.
    """

    floor_z_m: float
    label: NDArray[np.int8]
    cells: Cells
    cell_label: NDArray[np.int8]
    yaw_rad: float


def separate_layers(snapshot: VoxelSnapshot, floor_z_m: float, config: SegmentationConfig) -> Layers:
    """Label every voxel of ``snapshot``. Deterministic; an empty snapshot gives empty layers."""
    height_m = snapshot.mean_point_m[:, 2].astype(np.float64) - floor_z_m
    between = (height_m >= config.min_height_m) & (height_m <= config.max_height_m)
    cells = build_cells(snapshot, config.cell_size_m, between)
    yaw_rad = wall_yaw(cells.normal[_upright(cells)])
    cell_label = np.where(find_walls(cells, floor_z_m), STRUCTURE, THING).astype(np.int8)
    label = np.full(len(snapshot), FLOOR, dtype=np.int8)
    label[height_m > config.max_height_m] = STRUCTURE
    label[between] = cell_label[cells.cell_of_voxel[between]]
    return Layers(floor_z_m, label, cells, cell_label, yaw_rad)


# --------------------------------------------------------------------------------------------------------------------
# walls


@dataclass(frozen=True, eq=False)
class _Plane:
    """A connected piece of a vertical plane: ``direction . xy = offset``, between ``low`` and ``high`` along it."""

    rows: NDArray[np.int64]  # its cells
    direction: NDArray[np.float64]  # (2,) unit normal
    offset: float
    low: float
    high: float

    @property
    def length(self) -> float:
        return self.high - self.low

    def across(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """(K,) signed distances of (K, 2) positions."""
        out: NDArray[np.float64] = xy @ self.direction - self.offset
        return out

    def along(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """(K,) places of (K, 2) positions along the plane."""
        out: NDArray[np.float64] = xy @ np.array([-self.direction[1], self.direction[0]])
        return out


def _upright(cells: Cells) -> NDArray[np.bool_]:
    """(M,) cells on vertical surfaces."""
    has_normal = np.abs(cells.normal).max(axis=1, initial=0.0) > 0
    upright: NDArray[np.bool_] = has_normal & (np.abs(cells.normal[:, 2]) < _MAX_WALL_NORMAL_Z)
    return upright


def find_walls(cells: Cells, floor_z_m: float) -> NDArray[np.bool_]:
    """(M,) mask of the cells on walls, and of noise and reflections just behind them."""
    wall = np.zeros(len(cells), dtype=bool)
    planes = _tall_planes(cells, floor_z_m)
    xy = cells.mean_m[:, :2]
    no_normal = ~cells.normal.any(axis=1)
    near = np.zeros((2, len(cells)), dtype=bool)  # walls along the strongest one, and across
    outward = [_outward(cells, plane) for plane in planes]
    for plane, side in zip(planes, outward, strict=True):
        if _is_front(plane, side, planes):
            continue
        wall[plane.rows] = True
        along, across = plane.along(xy), plane.across(xy)
        adjacent = (along >= plane.low - 2 * cells.size_m) & (along <= plane.high + 2 * cells.size_m)
        close = adjacent & (np.abs(across) < _NOISE_M)
        if np.count_nonzero(close & no_normal) > _NOISY_SHARE * np.count_nonzero(close):
            wall |= close & no_normal  # noise of a distant wall hides its surface and would connect objects
        turned = abs(float(plane.direction @ planes[0].direction)) < _COS_CROSSING
        near[int(turned)] |= adjacent & (np.abs(across) < 2.5 * cells.size_m)
        if side:
            wall |= adjacent & (side * across > -cells.size_m / 2) & (side * across < _BEHIND_M)
    wall |= no_normal & near[0] & near[1]  # cells at crossings of walls have no clear normal
    return _grow(cells, wall)


def _tall_planes(cells: Cells, floor_z_m: float) -> list[_Plane]:
    """Long, tall, vertical planes, strongest first, split where they have gaps."""
    rows = np.flatnonzero(_upright(cells))
    if len(rows) == 0:
        return []
    normal = cells.normal[rows, :2] / np.linalg.norm(cells.normal[rows, :2], axis=1, keepdims=True)
    position = cells.mean_m[rows, :2]
    middle = position.mean(axis=0)  # offsets from the middle are less sensitive to errors of the angle
    unused = np.ones(len(rows), dtype=bool)
    min_cells = _MIN_AREA_M2 / cells.size_m**2
    planes = []
    for _ in range(_MAX_PLANES):
        if np.count_nonzero(unused) < min_cells:
            break
        direction, offset = _strongest_line(position[unused] - middle, normal[unused], cells.size_m)
        near = np.abs((position - middle) @ direction - offset) < _HALF_THICKNESS_M
        members = unused & near & (np.abs(normal @ direction) > _COS_WALL)
        if np.count_nonzero(members) < min_cells:
            break
        unused &= ~members
        along = position @ np.array([-direction[1], direction[0]])
        for run in _runs(along, np.flatnonzero(members), _MAX_GAP_M):
            height = cells.mean_m[rows[run], 2] - floor_z_m
            bottom, top = np.percentile(height, [5, 95])
            low, high = float(along[run].min()), float(along[run].max()) + cells.size_m
            big = len(run) >= min_cells and high - low >= _MIN_LENGTH_M
            if big and top >= _MIN_TOP_M and top - bottom >= _MIN_HEIGHT_M:
                planes.append(_Plane(rows[run], direction, offset + float(middle @ direction), low, high))
    return planes


def _outward(cells: Cells, plane: _Plane) -> int:
    """Outer side of a plane: 1 in the direction of its normal, -1 opposite; 0 with rooms on both sides."""
    xy = cells.mean_m[:, :2]
    along, across = plane.along(xy), plane.across(xy)
    # sides of furniture stand at the ends of its front
    adjacent = (along >= plane.low + _ENDS_M) & (along <= plane.high - _ENDS_M)
    positive = int(np.count_nonzero(adjacent & (across > _CLEAR_M)))
    negative = int(np.count_nonzero(adjacent & (across < -_CLEAR_M)))
    if min(positive, negative) > _OUTSIDE_SHARE * max(positive, negative):
        return 0
    return -1 if positive > negative else 1


def _is_front(plane: _Plane, outward: int, planes: list[_Plane]) -> bool:
    """Whether a plane is the front of furniture: a wall continues next to it and close behind it."""
    if plane.length > _FRONT_MAX_LENGTH_M or outward == 0:
        return False
    for other in planes:
        parallel = float(other.direction @ plane.direction)
        if other is plane or abs(parallel) < _COS_PARALLEL:
            continue
        # ends of the other plane relative to this one
        tangent = np.array([-other.direction[1], other.direction[0]])
        ends = np.stack([other.offset * other.direction + t * tangent for t in (other.low, other.high)])
        depth = outward * plane.across(ends)
        low, high = np.sort(plane.along(ends))
        adjacent = high > plane.low - _FRONT_NEAR_M and low < plane.high + _FRONT_NEAR_M
        goes_on = low < plane.low - _FRONT_NEAR_M or high > plane.high + _FRONT_NEAR_M
        if adjacent and goes_on and _FRONT_DEPTH_M[0] < float(depth.mean()) < _FRONT_DEPTH_M[1]:
            return True
    return False


def _strongest_line(
    position: NDArray[np.float64], normal: NDArray[np.float64], bin_m: float
) -> tuple[NDArray[np.float64], float]:
    """The vertical plane with most votes of cells by their normals: (2,) unit normal and offset."""
    angle = np.arctan2(normal[:, 1], normal[:, 0]) % np.pi
    step = np.pi / _ANGLE_BINS
    reach = float(np.abs(position).max()) * np.sqrt(2.0) + bin_m
    offsets = int(np.ceil(2 * reach / bin_m)) + 2
    votes = np.zeros((_ANGLE_BINS, offsets))
    own = np.floor(angle / step).astype(np.int64)
    for delta in range(-4, 5):  # normals have errors of a few degrees
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
    if abs(float(fitted @ direction)) < _COS_WALL:  # a blob, not a line: keep the voted direction
        fitted = direction
    fitted = fitted if fitted @ direction > 0 else -fitted
    return fitted, float(mean @ fitted)


def _runs(along: NDArray[np.float64], rows: NDArray[np.int64], gap_m: float) -> list[NDArray[np.int64]]:
    """Split ``rows`` into runs without a gap larger than ``gap_m`` ``along`` a line."""
    order = rows[np.argsort(along[rows], kind="stable")]
    breaks = np.flatnonzero(np.diff(along[order]) > gap_m) + 1
    return np.split(order, breaks)


def _grow(cells: Cells, wall: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Add cells surrounded by wall: noise, switches, edges and corners."""
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
