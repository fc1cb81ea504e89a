"""Where a robot goes to be at an object: free, near, seeing it, facing it; none where there is no such place."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.results import OccupancyGrid2d
from embodied_perceptron.scene.navigation import ApproachOptions, approach_pose, floor_distance, footprint

RES = 0.05
OPTIONS = ApproachOptions(radius_m=0.25)


def room(width_m=5.0, depth_m=4.0):
    """A free floor about the origin with walls around it."""
    cells = np.zeros((round(depth_m / RES), round(width_m / RES)), np.int8)
    cells[[0, -1]] = 100
    cells[:, [0, -1]] = 100
    return OccupancyGrid2d(RES, np.array([-width_m / 2, -depth_m / 2]), cells, 0.02)


def centers(grid):
    rows, columns = np.mgrid[: grid.cells.shape[0], : grid.cells.shape[1]]
    return grid.origin_m + (np.stack([columns, rows], axis=-1) + 0.5) * RES


def put(grid, box, value=100):
    """Occupy the footprint of a box."""
    at = centers(grid)
    inside = floor_distance(box, at.reshape(-1, 2)).reshape(at.shape[:2]) == 0
    grid.cells[inside] = value


def a_box(x, y, dx=0.6, dy=0.6, yaw=0.0, dz=0.8):
    return np.array([x, y, dz / 2, dx, dy, dz, yaw, 0.0, 0.0])


def check(T, box, grid, options=OPTIONS):
    """Free, not touching, near, upright, on the floor, facing the box."""
    assert T is not None
    at = T[:2, 3]
    blocked = centers(grid)[(grid.cells < 0) | (grid.cells >= 50)]
    assert np.linalg.norm(blocked - at, axis=1).min() >= options.radius_m - 1e-9
    near = floor_distance(box, at[None])[0]
    assert options.radius_m <= near <= options.max_standoff_m
    assert T[2, 3] == grid.floor_z_m
    assert T[:3, 2] == pytest.approx([0, 0, 1])
    ahead = footprint(box).mean(axis=0) - at
    assert T[:2, 0] == pytest.approx(ahead / np.linalg.norm(ahead), abs=1e-9)
    assert np.linalg.det(T[:3, :3]) == pytest.approx(1.0)
    return near


@pytest.mark.parametrize("yaw", [0.0, 0.4, 1.2])
def test_it_stands_before_a_face_on_the_robots_side(yaw):
    grid, box = room(), a_box(1.0, 0.5, 0.8, 0.5, yaw)
    put(grid, box)
    T = approach_pose(box, grid, np.array([-1.5, -1.0]), OPTIONS)
    near = check(T, box, grid)
    assert near < 0.6
    assert np.linalg.norm(T[:2, 3] - [-1.5, -1.0]) < np.linalg.norm(box[:2] - [-1.5, -1.0])
    local = np.array([[np.cos(yaw), np.sin(yaw)], [-np.sin(yaw), np.cos(yaw)]]) @ (T[:2, 3] - box[:2])
    beside = np.abs(local) - box[3:5] / 2
    assert beside.min() < 0.1  # before a face, not off a corner


def test_random_rooms_never_give_a_pose_that_is_not_free():
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(40):
        grid = room()
        things = [
            a_box(*rng.uniform(-1.8, 1.8, 2), *rng.uniform(0.2, 1.2, 2), rng.uniform(-1.5, 1.5)) for _ in range(6)
        ]
        for thing in things:
            put(grid, thing)
        grid.cells[rng.random(grid.cells.shape) < 0.002] = -1
        T = approach_pose(things[0], grid, None, OPTIONS)
        if T is not None:
            check(T, things[0], grid)
            found += 1
    assert found > 20


def test_what_stands_in_a_corner_is_approached_from_its_open_side():
    grid, box = room(), a_box(2.1, 1.6)
    put(grid, box)
    T = approach_pose(box, grid, np.array([0.0, 0.0]), OPTIONS)
    check(T, box, grid)
    assert T[0, 3] < 2.1
    assert T[1, 3] < 1.9


def test_none_where_nobody_can_go():
    box = a_box(1.5, 0.0)
    grid = room()
    put(grid, box)
    at = centers(grid)
    grid.cells[(np.abs(at[..., 0] - 0.0) < 0.1)] = 100  # a wall through the room
    assert approach_pose(box, grid, np.array([-1.5, 0.0]), OPTIONS) is None
    check(approach_pose(box, grid, np.array([0.7, 0.0]), OPTIONS), box, grid)
    check(approach_pose(box, grid, None, OPTIONS), box, grid)  # nobody knows where the robot is
    assert approach_pose(box, grid, np.array([30.0, 0.0]), OPTIONS) is None  # it is outside of the map
    grid.cells[:] = -1
    assert approach_pose(box, grid, None, OPTIONS) is None
    assert approach_pose(box, OccupancyGrid2d(RES, np.zeros(2), np.zeros((0, 0), np.int8), 0.0), None, OPTIONS) is None
    far = a_box(50.0, 0.0)
    assert approach_pose(far, room(), None, OPTIONS) is None


def test_a_gap_too_narrow_for_the_robot_is_no_way():
    grid, box = room(), a_box(2.0, 0.0)
    put(grid, box)
    at = centers(grid)
    wall = np.abs(at[..., 0]) < 0.1
    grid.cells[wall & (np.abs(at[..., 1]) > 0.2)] = 100  # 0.4 m wide
    robot = np.array([-1.5, 0.0])
    assert approach_pose(box, grid, robot, OPTIONS) is None
    check(approach_pose(box, grid, robot, ApproachOptions(radius_m=0.1)), box, grid, ApproachOptions(radius_m=0.1))


def test_it_does_not_look_through_walls():
    grid, box = room(), a_box(0.6, 0.0, 0.4, 0.4)
    put(grid, box)
    at = centers(grid)
    grid.cells[(np.abs(at[..., 0] - 0.25) < 0.06)] = 100  # right beside the box
    T = approach_pose(box, grid, None, OPTIONS)
    check(T, box, grid)
    assert T[0, 3] > 0.3


def test_what_hangs_above_the_floor_is_approached_too():
    grid = room()
    lamp = np.array([0.0, 0.0, 2.0, 0.3, 0.3, 0.3, 0.0, 0.0, 0.0])
    check(approach_pose(lamp, grid, np.array([1.5, 1.0]), OPTIONS), lamp, grid)


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="box must be finite"):
        approach_pose(np.full(9, np.nan), room())
    with pytest.raises(ValueError, match="radius_m"):
        ApproachOptions(radius_m=0.0)


def test_floor_distance_of_known_points():
    box = a_box(0.0, 0.0, 2.0, 1.0, np.pi / 2)  # its long side along y
    points = np.array([[0, 0], [0, 1.0], [0.5, 0], [1.5, 0], [0, 2.0], [3.5, 5.0]])
    assert floor_distance(box, points) == pytest.approx([0, 0, 0, 1.0, 1.0, 5.0])
