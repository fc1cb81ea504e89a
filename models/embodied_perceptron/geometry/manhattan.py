"""Manhattan frame: the world rotated about gravity to align with the walls; regions in it, and the yaw of walls.

Convolutions depend on the direction of their grid, and odometry starts at any heading. A grid along the walls shows
rooms at the same angle; training rotates scenes accordingly (quarter turns and a few degrees).

:func:`wall_aligned_frame` chooses among multiples of 3 degrees from occupied voxels, so that the network's grid seldom
moves; :func:`wall_yaw` is continuous, from surface normals, for boxes along the walls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import F64, level_transform

STEP_DEG = 3  # between frames; a room is at most half of it off its frame
_DIRECTIONS = 90 // STEP_DEG
_LOW_M, _HIGH_M = 0.3, 2.2  # heights above the floor of walls and tall furniture
_COLUMN_M = 0.04
_BIN_M = 0.06
_MIN_COLUMNS = 50
_KEPT_SHARPNESS = 0.85  # of the best: hysteresis of 0.3 degrees beyond the midpoint of two steps
_MIN_CONTRAST = 1.2  # least ratio of the best direction to the mean of all


@dataclass(frozen=True)
class ManhattanFrame:
    """The world rotated by ``yaw_rad`` about its z axis: ``p_world = Rz(yaw) p_manhattan``; 0 is exactly the world."""

    yaw_rad: float = 0.0

    @property
    def T_world_manhattan(self) -> F64:  # noqa: N802
        """(4, 4) world <- manhattan."""
        return level_transform(self.yaw_rad, np.zeros(3))

    def from_world(self, points_m: NDArray[np.floating]) -> F64:
        """(..., 3) world -> manhattan."""
        points: F64 = np.asarray(points_m, dtype=np.float64)
        if self.yaw_rad == 0:
            return points
        moved: F64 = points @ self.T_world_manhattan[:3, :3]
        return moved

    def to_world(self, points_m: NDArray[np.floating]) -> F64:
        """(..., 3) manhattan -> world."""
        points: F64 = np.asarray(points_m, dtype=np.float64)
        if self.yaw_rad == 0:
            return points
        moved: F64 = points @ self.T_world_manhattan[:3, :3].T
        return moved

    def boxes_to_world(self, boxes: F64) -> F64:
        """(N, 9) manhattan -> world, yaw in (-pi, pi]; tilt is unchanged."""
        if self.yaw_rad == 0:
            return boxes
        moved: F64 = boxes.copy()
        moved[:, :3] = self.to_world(boxes[:, :3])
        moved[:, 6] = math.pi - np.mod(math.pi - (boxes[:, 6] + self.yaw_rad), 2 * math.pi)
        return moved

    def world_cells(self, cells: NDArray[np.int64], cell_size_m: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the world's cells whose centre is in one of the given cells of this frame.

        Args:
            cells: (M, 3) distinct cells of this frame.
            cell_size_m: edge of the cells of both frames.

        Returns (K, 3) distinct world cells, and (K,) the row of ``cells`` that contains each centre.
        """
        if self.yaw_rad == 0:
            return cells, np.arange(len(cells))
        near = np.floor(self.to_world((cells + 0.5) * cell_size_m) / cell_size_m).astype(np.int64)
        worlds, rows = [], []
        for dx in (-1, 0, 1):
            for dy in (-1, 0, 1):
                world = near + np.array([dx, dy, 0])
                back = np.floor(self.from_world((world + 0.5) * cell_size_m) / cell_size_m).astype(np.int64)
                row = np.flatnonzero((back == cells).all(axis=1))
                worlds.append(world[row])
                rows.append(row)
        return np.concatenate(worlds), np.concatenate(rows)


WORLD = ManhattanFrame()


@dataclass(frozen=True, eq=False)
class Region:
    """An axis-aligned region of a Manhattan frame.

    Attributes:
        lower_m, upper_m: (3,) in that frame; infinite = unbounded.
        manhattan: the frame.
    """

    lower_m: F64
    upper_m: F64
    manhattan: ManhattanFrame = WORLD

    @staticmethod
    def nowhere() -> Region:
        """Return an empty region."""
        return Region(np.zeros(3), np.zeros(3))

    @staticmethod
    def everywhere() -> Region:
        """Return an unbounded region."""
        return Region(np.full(3, -np.inf), np.full(3, np.inf))

    def same_as(self, other: Region) -> bool:
        """True when bounds and frame are equal."""
        return (
            self.manhattan == other.manhattan
            and np.array_equal(self.lower_m, other.lower_m)
            and np.array_equal(self.upper_m, other.upper_m)
        )

    def contains(self, points_m: NDArray[np.floating]) -> NDArray[np.bool_]:
        """(N, 3) world -> (N,) True inside of [lower, upper)."""
        at = self.manhattan.from_world(points_m)
        inside: NDArray[np.bool_] = np.all((at >= self.lower_m) & (at < self.upper_m), axis=1)
        return inside


def wall_aligned_frame(
    coords: NDArray[np.integer], voxel_size_m: float, floor_z_m: float, last: ManhattanFrame | None = None
) -> ManhattanFrame:
    """Return the frame along the walls: the multiple of 3 degrees with the sharpest profiles of the map.

    Voxels at wall heights are projected along each direction; along the walls they fall into few bins, and the sum of
    squares is largest. A pure function of the voxels. Returns the world for few voxels or without a distinct direction.

    Args:
        coords: (N, 3) voxels of the map, world, gravity-aligned.
        voxel_size_m: their edge.
        floor_z_m: height of the floor.
        last: see :func:`frame_of_columns`.
    """
    return frame_of_columns(*_columns(coords, voxel_size_m, *wall_heights(floor_z_m)), last)


def wall_heights(floor_z_m: float) -> tuple[float, float]:
    """Return the heights between which walls are detected."""
    return floor_z_m + _LOW_M, floor_z_m + _HIGH_M


def frame_of_columns(filled: NDArray[np.int64], width: int, last: ManhattanFrame | None = None) -> ManhattanFrame:
    """Compute :func:`wall_aligned_frame` from the number of voxels above each ground cell of 0.04 m: a flat grid with
    rows along x, and their width.

    ``last``, an earlier result for the same map, is kept while its profile is nearly as sharp, so that the frame of
    walls between two steps does not change with every voxel.
    """
    sharpness = _sharpness_of(filled, width, np.radians(np.arange(_DIRECTIONS) * STEP_DEG))
    if sharpness is None:
        return WORLD
    best = int(sharpness.argmax()) if sharpness.max() >= _MIN_CONTRAST * sharpness.mean() else 0
    if last is not None:
        before = round(math.degrees(last.yaw_rad) / STEP_DEG) % _DIRECTIONS
        if sharpness[before] >= _KEPT_SHARPNESS * sharpness[best]:
            return last
    turn = best if best <= _DIRECTIONS // 2 else best - _DIRECTIONS  # the smallest equivalent angle modulo 90 degrees
    return ManhattanFrame(math.radians(turn * STEP_DEG)) if turn else WORLD


def wall_yaw(normals: F64) -> float:
    """Return the main direction of (N, 3) unit normals of vertical surfaces, in [0, pi/2); 0 for none."""
    if len(normals) == 0:
        return 0.0
    # four times the angle maps the four wall directions to one, for averaging
    angle = 4.0 * np.arctan2(normals[:, 1], normals[:, 0])
    rough = np.arctan2(np.sin(angle).sum(), np.cos(angle).sum())
    error = np.angle(np.exp(1j * (angle - rough)))
    near = np.abs(error) < np.radians(4 * 12.0)  # a second pass without clutter
    refined = rough + (error[near].mean() if near.any() else 0.0)
    return float((refined / 4.0) % (np.pi / 2))


def _sharpness_of(filled: NDArray[np.int64], width: int, yaws_rad: F64) -> F64 | None:
    """Return the sharpness of the map's profile along each direction; None for too few columns."""
    flat = np.flatnonzero(filled)
    if len(flat) < _MIN_COLUMNS:
        return None
    x, y = ((part * _COLUMN_M).astype(np.float64) for part in (flat // width, flat % width))
    found: F64 = _sharpness(x, y, filled[flat].astype(np.float64), yaws_rad)
    return found


def _columns(
    coords: NDArray[np.integer], voxel_size_m: float, low_m: float, high_m: float
) -> tuple[NDArray[np.int64], int]:
    """Count voxels between two heights above each ground cell of 0.04 m: a flat grid, and its width."""
    height = (coords[:, 2] + 0.5) * voxel_size_m
    cells = np.floor((coords[(height > low_m) & (height < high_m), :2] + 0.5) * voxel_size_m / _COLUMN_M)
    if len(cells) == 0:
        return np.zeros(0, np.int64), 1
    x, y = (cells - cells.min(axis=0)).astype(np.int64).T
    width = int(y.max()) + 1
    return np.bincount(x * width + y, minlength=(int(x.max()) + 1) * width), width


@njit(cache=True, nogil=True)
def wall_column(coord: int, voxel_size_m: float) -> int:
    """Return the ground cell of a voxel along one axis."""
    return int(np.floor((coord + 0.5) * voxel_size_m / _COLUMN_M))


@njit(cache=True, nogil=True)
def _sharpness(x: F64, y: F64, weight: F64, yaws_rad: F64) -> F64:
    """Sum of squares of the profiles along both axes of each direction, of (N,) weighted columns at x, y."""
    total = np.zeros(len(yaws_rad))
    along = np.empty(len(x))
    for d in range(len(yaws_rad)):
        c, s = math.cos(yaws_rad[d]), math.sin(yaws_rad[d])
        for turn in range(2):
            a, b = (c, s) if turn == 0 else (-s, c)
            for i in range(len(x)):
                along[i] = a * x[i] + b * y[i]
            low = along.min()
            bins = np.zeros(int((along.max() - low) / _BIN_M) + 1)
            for i in range(len(x)):
                bins[int((along[i] - low) / _BIN_M)] += weight[i]
            total[d] += (bins * bins).sum()
    return total
