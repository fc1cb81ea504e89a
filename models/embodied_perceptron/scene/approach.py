"""Where a robot goes to be at an object: a pose on the floor before it, free in the navigation grid, facing it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_corners
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.results import OccupancyGrid2d

_FREE_BELOW = 50  # of a cell's cost 0..100
_SAMPLES_PER_M = 20.0  # along a line of sight
_OFF_AXIS, _DETOUR = 0.6, 0.1  # what it costs to stand askew before a face, and to go one metre


@dataclass(frozen=True)
class ApproachOptions:
    """How near, in metres: the robot's ``radius_m``, and how far its centre may be from the object's footprint."""

    radius_m: float = 0.3
    max_standoff_m: float = 1.5
    gap_m: float = 0.15  # wished between robot and object

    def __post_init__(self) -> None:
        if not 0 < self.radius_m < self.max_standoff_m:
            raise ValueError(f"radius_m must be in (0, {self.max_standoff_m}), got {self.radius_m}")


def footprint(box: NDArray[np.float64]) -> NDArray[np.float64]:
    """(4, 2) corners on the floor of the upright bounds of a (9,) box turned as the box is, counter-clockwise."""
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
    """(N, 2) how far points lie outside of a footprint along each of its axes, and (2,) half its edges."""
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
    """Where to stand to be at an object; None where there is no such place.

    Free cells count in which the whole robot has room, which see the object, and, where the robot's place is known,
    that it can get to over such cells. Of them the best: close but not touching, straight before a face of the box
    (which one is its front, a box does not say), not far from the robot.

    Args:
        box: (9,) of the object, metres and radians, in the frame of the grid.
        grid: of the floor; unknown cells are not free.
        robot_m: (2,) or (3,) where the robot is; None = unknown.
        options: sizes.

    Returns (4, 4) pose in the grid's frame: on the floor, x towards the middle of the box, z up. Raises ``ValueError``
    for a box that is not finite.
    """
    if not np.isfinite(box).all():
        raise ValueError(f"box must be finite, got {box.tolist()}")
    options = options or ApproachOptions()
    cells = grid.cells
    if not cells.size:
        return None
    free = (cells >= 0) & (cells < _FREE_BELOW)
    # beyond the border nothing is known
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
    """Cells that the robot can get to from the passable ones about its place (it may stand a little too close)."""
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
    """Whether nothing occupied stands between a point and the footprint of a box."""
    steps = max(2, int(np.linalg.norm(middle_m - point_m) * _SAMPLES_PER_M))
    line = point_m + np.linspace(0.0, 1.0, steps)[:, None] * (middle_m - point_m)
    line = line[floor_distance(box, line) > 1.5 * grid.resolution_m]
    cells = np.floor((line - grid.origin_m) / grid.resolution_m).astype(np.int64)
    inside = ((cells >= 0) & (cells < np.array(grid.cells.shape)[::-1])).all(axis=1)
    return not bool((grid.cells[cells[inside, 1], cells[inside, 0]] >= _FREE_BELOW).any())
