"""What blocks a robot, as points: against the grid's own counting, and through a costmap like Nav2's obstacle layer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_perceptron.config import GridConfig
from embodied_perceptron.results import OccupancyGrid2d, SemanticVoxels, VoxelSnapshot
from embodied_perceptron.scene.navigation import (
    blocks_robot,
    count_columns,
    find_obstacles,
    navigation_grid,
)

CONFIG = GridConfig(resolution_m=0.1, min_obstacle_voxels=1)
HERE = np.zeros(3)


def snapshot(points: np.ndarray) -> VoxelSnapshot:
    n = len(points)
    return VoxelSnapshot(
        0.05,
        np.floor(points / 0.05).astype(np.int32),
        points.astype(np.float32),
        np.zeros((n, 3), np.uint8),
        np.full(n, 2, np.int32),
        np.ones(n, np.float32),
        np.zeros(n, np.int64),
    )


def box(low: tuple[float, float, float], high: tuple[float, float, float], step_m: float = 0.05) -> np.ndarray:
    axes = [np.arange(a, b, step_m) + step_m / 2 for a, b in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


FLOOR = box((-4, -4, -0.05), (4, 4, 0.0))
CHAIR = box((1.5, -0.25, 0.0), (1.9, 0.25, 0.9))
CEILING = box((-1, -1, 2.4), (1, 1, 2.45))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_blocking_points_are_those_that_the_grid_counts(seed: int) -> None:
    """A plain version of the kernel, with classes that bulge, are low, or are passable."""
    rng = np.random.default_rng(seed)
    points = rng.uniform((-1, -1, -0.3), (1, 1, 2.2), (300, 3)).astype(np.float32)
    centers = rng.uniform((-1, -1, -0.3), (1, 1, 2.2), (60, 3)).astype(np.float32)
    centers = (np.floor(centers / 0.2) * 0.2 + 0.1).astype(np.float32)
    names = ("floor", "door", "chair", "carpet")
    semantic = SemanticVoxels(
        0.2,
        centers,
        np.zeros((60, 3), np.uint8),
        rng.integers(0, 4, 60).astype(np.int32),
        np.ones(60, np.float32),
        names,
    )
    blocking = blocks_robot(points, 0.0, CONFIG, semantic)
    columns = count_columns(points, 0.0, CONFIG, semantic)
    counted = np.zeros_like(columns.blocking)
    cells = np.floor(points[blocking][:, :2].astype(np.float64) / CONFIG.resolution_m).astype(int) - columns.low
    np.add.at(counted, (cells[:, 1], cells[:, 0]), 1)
    np.testing.assert_array_equal(counted, columns.blocking)


def test_floor_ceiling_and_far_things_are_no_obstacles() -> None:
    far = CHAIR + np.array([2.0, 0, 0])
    voxels = snapshot(np.concatenate([FLOOR, CHAIR, CEILING, far]))
    found = find_obstacles(voxels, navigation_grid(voxels, 0.0, CONFIG), HERE, 3.0, CONFIG)
    assert len(found.points_m) == (CHAIR[:, 2] >= CONFIG.min_obstacle_height_m).sum()
    assert found.points_m[:, 0].max() < 1.9
    distance = np.hypot(*found.points_m[:, :2].T)
    assert (np.diff(distance) >= -1e-6).all()  # nearest first


def test_a_map_too_wide_for_a_grid_shows_its_fullest_part() -> None:
    """One voxel 30 km away, as a damaged file may hold it, made a grid of terabytes."""
    home = np.concatenate([FLOOR, CHAIR])
    far = np.array([[-30_000.0, 26_000.0, 0.0], [28_000.0, -15_000.0, 0.5]])
    columns = count_columns(np.concatenate([home, far]).astype(np.float32), 0.0, CONFIG)
    assert columns.ground.shape <= (4096, 4096)
    alone = count_columns(home.astype(np.float32), 0.0, CONFIG)
    row, column = (alone.low - columns.low)[::-1]
    rows, cells = alone.ground.shape
    for wide, own in ((columns.ground, alone.ground), (columns.blocking, alone.blocking)):
        np.testing.assert_array_equal(wide[row : row + rows, column : column + cells], own)
        assert wide.sum() == own.sum()
    street = np.concatenate([box((0, 0, 0), (2000, 0.2, 0.05), 0.1), CHAIR])  # long and narrow: whole
    assert count_columns(street.astype(np.float32), 0.0, CONFIG).ground.shape[1] == 20_000


def test_many_points_are_thinned_and_the_nearest_stay() -> None:
    wall = box((1.0, -2.0, 0.1), (1.5, 2.0, 1.7), 0.02)
    assert len(wall) > 300_000
    voxels = snapshot(np.concatenate([FLOOR, wall]))
    found = find_obstacles(voxels, navigation_grid(voxels, 0.0, CONFIG), HERE, 3.0, CONFIG, max_points=3000)
    assert len(found.points_m) + len(found.clearing_m) <= 3000
    assert len(found.points_m) > 2000
    assert found.points_m[0, 0] == pytest.approx(1.01, abs=0.06)


def test_clearing_points_lie_where_the_ground_is_known_to_be_free() -> None:
    half = FLOOR[FLOOR[:, 0] > 0.3]  # what lies behind was never seen, nor the ground below the robot
    voxels = snapshot(np.concatenate([half, CHAIR]))
    found = find_obstacles(voxels, navigation_grid(voxels, 0.0, CONFIG), HERE, 3.0, CONFIG)
    np.testing.assert_allclose(np.hypot(*found.clearing_m[:, :2].T), 3.0, atol=1e-5)
    degrees = np.degrees(np.arctan2(found.clearing_m[:, 1], found.clearing_m[:, 0]))
    assert (np.abs(degrees) < 90).all()
    assert (np.abs(degrees) > 7).all()  # the chair stands within 8 degrees of straight ahead
    assert len(degrees) > 120
    empty = OccupancyGrid2d(0.1, np.zeros(2), np.zeros((0, 0), np.int8), 0.0)
    nothing = find_obstacles(snapshot(np.zeros((0, 3))), empty, HERE, 3.0, CONFIG)
    assert nothing.points_m.shape == nothing.clearing_m.shape == (0, 3)


@pytest.mark.parametrize(("options", "words"), [({"range_m": 0.0}, "range_m"), ({"max_points": 10}, "max_points")])
def test_bad_arguments_are_named(options: dict[str, float], words: str) -> None:
    voxels = snapshot(FLOOR)
    given_options = {"range_m": 3.0, **options}
    with pytest.raises(ValueError, match=words):
        find_obstacles(voxels, navigation_grid(voxels, 0.0, CONFIG), HERE, config=CONFIG, **given_options)


class Costmap:
    """An obstacle layer as Nav2 has it: rays clear from the sensor to each point, then near points mark."""

    SIZE_M, CELL_M = 8.0, 0.05

    def __init__(self, obstacle_max_range: float, raytrace_max_range: float) -> None:
        self.cost = np.zeros((160, 160), np.uint8)
        self.mark_m, self.trace_m = obstacle_max_range, raytrace_max_range

    def cell(self, x: float, y: float) -> tuple[int, int]:
        return int((y + self.SIZE_M / 2) / self.CELL_M), int((x + self.SIZE_M / 2) / self.CELL_M)

    def observe(self, points: np.ndarray, min_height: float, max_height: float) -> None:
        points = points[(points[:, 2] >= min_height) & (points[:, 2] <= max_height)]
        for x, y, _ in points:
            length = float(np.hypot(x, y))
            share = min(1.0, self.trace_m / length)
            for t in np.linspace(0.0, share, int(share * length / self.CELL_M * 2) + 2)[:-1]:
                self.cost[self.cell(x * t, y * t)] = 0
        for x, y, _ in points[np.hypot(points[:, 0], points[:, 1]) <= self.mark_m]:
            self.cost[self.cell(x, y)] = 254


def test_a_costmap_gets_what_stands_there_and_loses_what_was_taken_away() -> None:
    costmap = Costmap(obstacle_max_range=2.9, raytrace_max_range=3.0)

    def show(*things: np.ndarray) -> None:
        voxels = snapshot(np.concatenate([FLOOR, *things]))
        found = find_obstacles(voxels, navigation_grid(voxels, 0.0, CONFIG), HERE, 3.0, CONFIG)
        costmap.observe(np.concatenate([found.points_m, found.clearing_m]), -0.2, 2.0)

    show(CHAIR)
    assert (costmap.cost == 254).sum() == 80  # 0.4 m x 0.5 m
    assert costmap.cost[costmap.cell(1.7, 0.0)] == 254
    assert costmap.cost[costmap.cell(0.9, 0.0)] == 0
    assert not costmap.cost[:, costmap.cell(2.95, 0)[1] :].any()  # clearing points mark nothing
    show()
    assert (costmap.cost == 254).sum() == 0


def plant_at(x_m: float, y_m: float, name: str = "plant") -> SemanticVoxels:
    centers = np.array([[x_m, y_m, 0.5], [x_m, y_m, 3.0]], np.float32)  # the second hangs above any robot
    labels = np.zeros(2, np.int32)
    return SemanticVoxels(0.1, centers, np.zeros((2, 3), np.uint8), labels, np.ones(2, np.float32), (name, "couch"))


def test_free_cells_around_a_class_cost_what_is_configured() -> None:
    config = GridConfig(0.1, min_obstacle_voxels=1, class_costs={"plant": 60, "couch": 10}, class_cost_radius_m=0.45)
    plant = box((1.0, 0.0, 0.0), (1.1, 0.1, 0.9))
    map_ = snapshot(np.concatenate([FLOOR, plant]))
    plain = navigation_grid(map_, 0.0, CONFIG, plant_at(1.05, 0.05))
    grid = navigation_grid(map_, 0.0, config, plant_at(1.05, 0.05))
    rows, columns = np.indices(grid.cells.shape)
    middle = grid.origin_m + (np.stack([columns, rows], axis=-1) + 0.5) * grid.resolution_m
    distance = np.hypot(middle[..., 0] - 1.05, middle[..., 1] - 0.05)
    np.testing.assert_array_equal(grid.cells[plain.cells != 0], plain.cells[plain.cells != 0])
    free = plain.cells == 0
    np.testing.assert_array_equal(grid.cells[free], np.where(distance[free] <= 0.45 + 1e-4, 60, 0))
    assert (grid.cells == 60).sum() > 20
    other = navigation_grid(map_, 0.0, config, plant_at(1.05, 0.05, "chair"))
    np.testing.assert_array_equal(other.cells, plain.cells)


def test_the_higher_cost_of_two_classes_holds() -> None:
    config = GridConfig(0.1, min_obstacle_voxels=1, class_costs={"plant": 20, "couch": 70}, class_cost_radius_m=0.5)
    cells = plant_at(1.05, 0.05)
    both = SemanticVoxels(
        0.1,
        np.concatenate([cells.centers_m, cells.centers_m + np.array([0.3, 0, 0])]).astype(np.float32),
        np.zeros((4, 3), np.uint8),
        np.array([0, 0, 1, 1], np.int32),
        np.ones(4, np.float32),
        cells.classes,
    )
    grid = navigation_grid(snapshot(FLOOR), 0.0, config, both)
    column = round((1.25 - grid.origin_m[0]) / 0.1 - 0.5)
    row = round((0.05 - grid.origin_m[1]) / 0.1 - 0.5)
    assert grid.cells[row, column] == 70
    assert grid.cells[row, column - 6] == 20


def test_ground_that_costs_is_cleared_all_the_same() -> None:
    config = GridConfig(0.1, min_obstacle_voxels=1, class_costs={"plant": 60}, class_cost_radius_m=1.0)
    plain = find_obstacles(snapshot(FLOOR), navigation_grid(snapshot(FLOOR), 0.0, CONFIG), HERE, 3.0, CONFIG)
    grid = navigation_grid(snapshot(FLOOR), 0.0, config, plant_at(1.05, 0.05))
    assert (grid.cells == 60).any()
    costly = find_obstacles(snapshot(FLOOR), grid, HERE, 3.0, config)
    np.testing.assert_array_equal(costly.clearing_m, plain.clearing_m)
