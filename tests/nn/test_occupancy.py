"""Navigation grid and labelled voxels."""

from __future__ import annotations

import numpy as np
import pytest
from support.scene_builder import box_surface, plane, room, snapshot_of, table

from embodied_perceptron.config import GridConfig, SegmentationConfig
from embodied_perceptron.results import SemanticVoxels
from embodied_perceptron.scene import navigation
from embodied_perceptron.scene.navigation import CLASSES, count_columns, navigation_grid, semantic_voxels
from embodied_perceptron.scene.segmentation.layers import separate_layers

CONFIG = GridConfig()


def at(grid, x, y):
    column, row = np.floor((np.array([x, y]) - grid.origin_m) / grid.resolution_m).astype(int)
    return int(grid.cells[row, column])


def test_empty_map_gives_an_empty_grid():
    grid = navigation_grid(snapshot_of(np.zeros((0, 3))), 0.0, CONFIG)
    assert grid.cells.shape == (0, 0)
    assert grid.cells.dtype == np.int8


def test_single_floor_voxel():
    grid = navigation_grid(snapshot_of(np.array([[1.01, 2.01, 0.0]])), 0.0, CONFIG)
    assert grid.cells.tolist() == [[0]]
    assert grid.origin_m == pytest.approx([1.0, 2.0])


def test_floor_is_free_table_is_occupied_rest_is_unknown():
    # the floor is seen under the table too: its top blocks the robot all the same
    grid = navigation_grid(snapshot_of(np.concatenate([room(), table((0.5, 0.5), (1.2, 0.7, 0.75))])), 0.0, CONFIG)
    assert at(grid, -1.0, -1.0) == 0
    assert at(grid, 0.5, 0.5) == 100
    assert at(grid, 0.0, 0.7) == 100
    assert at(grid, -0.2, 0.5) == 0
    assert at(grid, 2.51, 0.0) == 100  # wall
    assert set(np.unique(grid.cells)) == {0, 100}
    ell = np.concatenate([plane((0, 0, 0), (2, 0, 0), (0, 1, 0)), plane((0, 0, 0), (1, 0, 0), (0, 2, 0))])
    assert at(navigation_grid(snapshot_of(ell), 0.0, CONFIG), 1.5, 1.5) == -1


@pytest.mark.parametrize(("low", "high", "expected"), [(0.3, 0.6, 100), (1.9, 2.2, 0), (0.0, 0.06, 0), (1.7, 2.2, 100)])
def test_only_the_height_band_blocks(low, high, expected):
    thing = box_surface((0.0, 0.0, (low + high) / 2), (0.3, 0.3, high - low))
    grid = navigation_grid(snapshot_of(np.concatenate([room(), thing])), 0.0, CONFIG)
    assert at(grid, 0.0, 0.0) == expected


def test_one_stray_voxel_does_not_block_but_is_not_called_free():
    floor = plane((0, 0, 0), (1, 0, 0), (0, 1, 0))
    hole = floor[(np.abs(floor[:, :2] - 0.525) > 0.03).any(axis=1)]
    with_stray = np.concatenate([hole, [[0.525, 0.525, 0.5]]])
    assert at(navigation_grid(snapshot_of(hole), 0.0, CONFIG), 0.525, 0.525) == 0  # a gap of sampling
    assert at(navigation_grid(snapshot_of(with_stray), 0.0, CONFIG), 0.525, 0.525) == -1


def test_what_lies_below_the_floor_is_not_free():
    pit = plane((1, 0, -0.5), (1, 0, 0), (0, 1, 0))
    grid = navigation_grid(snapshot_of(np.concatenate([plane((0, 0, 0), (1, 0, 0), (0, 2, 0)), pit])), 0.0, CONFIG)
    assert grid.cells.shape[1] * grid.resolution_m == pytest.approx(1.0, abs=0.06)  # the pit adds no cell


def test_lattice_stays_while_the_map_grows():
    small = navigation_grid(snapshot_of(plane((0, 0, 0), (1, 0, 0), (0, 1, 0))), 0.0, CONFIG)
    large = navigation_grid(snapshot_of(plane((-0.7, -0.33, 0), (2, 0, 0), (0, 2, 0))), 0.0, CONFIG)
    steps = (small.origin_m - large.origin_m) / CONFIG.resolution_m
    assert steps == pytest.approx(np.round(steps), abs=1e-9)


def test_row_zero_is_the_lowest_y():
    points = np.concatenate([plane((0, 0, 0), (1, 0, 0), (0, 2, 0)), box_surface((0.5, 1.8, 0.5), (1, 0.2, 1))])
    grid = navigation_grid(snapshot_of(points), 0.0, CONFIG)
    assert (grid.cells[0] == 0).all()
    assert (grid.cells[36] == 100).all()


def test_semantic_voxels_of_a_room():
    snapshot = snapshot_of(
        np.concatenate([room(), box_surface((0, 0, 0.4), (0.8, 0.5, 0.8))]), color=np.array([10, 200, 30])
    )
    layers = separate_layers(snapshot, 0.0, SegmentationConfig())
    voxels = semantic_voxels(snapshot, layers, 0.06)
    assert voxels.classes == CLASSES
    center, label = voxels.centers_m, voxels.labels
    assert (label[center[:, 2] < 0.02] == CLASSES.index("floor")).all()
    box = (np.abs(center[:, 0]) < 0.5) & (np.abs(center[:, 1]) < 0.4) & (center[:, 2] > 0.1)
    assert (label[box] == CLASSES.index("object")).all()
    wall = (np.abs(center[:, 0]) > 2.3) & (center[:, 2] > 0.2)
    assert (label[wall] == CLASSES.index("structure")).mean() > 0.99
    assert (voxels.color == [10, 200, 30]).all()
    assert voxels.confidence.max() <= 1 / (1 + np.exp(-3.0)) + 1e-6
    assert voxels.confidence.min() > 0
    # every voxel lies in exactly one cell
    cells = {tuple(c) for c in np.floor(snapshot.mean_point_m.astype(float) / 0.06).astype(int).tolist()}
    assert {tuple(c) for c in np.floor(center.astype(float) / 0.06).astype(int).tolist()} == cells


def test_semantic_voxels_of_nothing():
    snapshot = snapshot_of(np.zeros((0, 3)))
    voxels = semantic_voxels(snapshot, separate_layers(snapshot, 0.0, SegmentationConfig()), 0.06)
    assert voxels.centers_m.shape == (0, 3)
    assert len(voxels.labels) == len(voxels.color) == len(voxels.confidence) == 0


# --------------------------------------------------------------------------------------------------------------------
# with classes


def labelled(boxes: dict[str, tuple[tuple[float, ...], tuple[float, ...]]], cell_m: float = 0.16) -> SemanticVoxels:
    """Cells of a lattice that begins at (0.05, 0, 0), labelled inside of boxes given by low and high corner."""
    names, origin = tuple(boxes), np.array([0.05, 0.0, 0.0])
    centers, labels = [], []
    for k, (low, high) in enumerate(boxes.values()):
        first, last = (np.floor((np.array(c) - origin) / cell_m).astype(int) for c in (low, high))
        cells = np.stack(np.meshgrid(*(np.arange(a, b + 1) for a, b in zip(first, last, strict=True)), indexing="ij"))
        centers.append((cells.reshape(3, -1).T + 0.5) * cell_m + origin)
        labels += [k] * len(centers[-1])
    points = np.concatenate(centers).astype(np.float32)
    n = len(points)
    return SemanticVoxels(
        cell_m, points, np.zeros((n, 3), np.uint8), np.array(labels, np.int32), np.ones(n, np.float32), names
    )


def test_a_cell_is_found_by_table_and_by_search(monkeypatch):
    rng = np.random.default_rng(3)
    semantic = labelled({"floor": ((-1, -1, -0.1), (1, 1, 0.0)), "chair": ((0.2, 0.2, 0.2), (0.6, 0.6, 0.9))})
    points = rng.uniform(-1.5, 1.5, (500, 3)).astype(np.float32)
    kind_of_label = {0: navigation._FLOOR, 1: navigation._THING}
    expected = np.full(500, navigation._NOTHING)
    for i, p in enumerate(points):
        inside = (np.abs(semantic.centers_m - p) < 0.08).all(axis=1)
        if inside.any():
            expected[i] = kind_of_label[int(semantic.labels[np.argmax(inside)])]
    assert (navigation._CellKinds.of(GridConfig(), semantic).at(points) == expected).all()
    monkeypatch.setattr(navigation, "_MAX_TABLE", 1)  # cells that are too far apart for a table
    assert (navigation._CellKinds.of(GridConfig(), semantic).at(points) == expected).all()
    assert len(set(expected.tolist())) == 3


def traversability(points_m, floor_z_m, config, semantic):
    """The rules, in words: (N,) whether each voxel counts, and whether it blocks."""
    height_m = points_m[:, 2].astype(np.float64) - floor_z_m
    label = np.full(len(points_m), -1)
    names = ()
    if semantic is not None:
        names = semantic.classes
        anchor = semantic.centers_m[0].astype(np.float64) - 0.5 * semantic.cell_size_m
        cells = np.floor((semantic.centers_m - anchor) / semantic.cell_size_m).astype(int)
        first = {}
        for cell, name in zip(map(tuple, cells.tolist()), semantic.labels.tolist(), strict=True):
            first.setdefault(cell, name)
        wanted = np.floor((points_m - anchor) / semantic.cell_size_m).astype(int)
        label = np.array([first.get(tuple(cell), -1) for cell in wanted.tolist()])
    is_floor = np.array([name in navigation.FLOOR_CLASSES for name in names] + [False])[label]
    is_passable = np.array([name in config.passable_classes for name in names] + [False])[label]
    blocking = height_m >= config.min_obstacle_height_m
    bulge = is_floor & (height_m < config.min_obstacle_height_m + navigation.FLOOR_BULGE_M)
    low_thing = (label >= 0) & ~is_floor & (height_m >= navigation.LOW_THING_M)
    counts = (height_m > -navigation._DROP_M) & (height_m <= config.max_obstacle_height_m)
    return counts, ((blocking | low_thing) & ~bulge) & ~is_passable


@pytest.mark.parametrize("seed", range(4))
def test_columns_are_those_of_the_rules(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    config = GridConfig(passable_classes=("door", "mat"))  # a mat is a floor too
    names = ("door", "carpet", "mat", "chair", "table")
    regions = {}
    for name in names:
        low = rng.uniform((-2, -2, -0.3), (1, 1, 1.0))
        regions[name] = (low, low + rng.uniform(0.2, 1.5, 3))
    semantic = labelled(regions)
    points = rng.uniform((-3, -2, -0.4), (3, 2, 2.2), (5000, 3)).astype(np.float32)
    for known in (None, semantic):
        for floor_z_m in (0.0, -0.13):
            counts, blocks = traversability(points, floor_z_m, config, known)
            found = count_columns(points, floor_z_m, config, known)
            column = np.floor(points[:, :2].astype(np.float64) / config.resolution_m).astype(int)
            low = column[counts].min(axis=0)
            assert (found.low == low).all()
            for grid, mask in ((found.blocking, counts & blocks), (found.ground, counts & ~blocks)):
                expected = np.zeros_like(grid)
                np.add.at(expected, tuple((column[mask] - low)[:, ::-1].T), 1)
                assert (grid == expected).all()
                assert grid.any()
    assert (
        count_columns(points, 0.0, config, None).blocking != count_columns(points, 0.0, config, semantic).blocking
    ).any()
    by_table = count_columns(points, 0.0, config, semantic).blocking
    monkeypatch.setattr(navigation, "_MAX_TABLE", 1)  # cells that are too far apart for a table
    assert (count_columns(points, 0.0, config, semantic).blocking == by_table).all()
    assert count_columns(points, 50.0, config, None).ground.shape == (0, 0)


def test_doors_never_block_and_other_things_do():
    door = box_surface((0.0, 0.0, 1.0), (0.8, 0.06, 1.9))
    scene = snapshot_of(np.concatenate([room(), door]))
    for name, expected in (("door", 0), ("wardrobe", 100)):
        semantic = labelled({name: ((-0.5, -0.1, 0.1), (0.5, 0.1, 2.0))})
        assert at(navigation_grid(scene, 0.0, CONFIG, semantic), 0.0, 0.0) == expected
    semantic = labelled({"door": ((-0.5, -0.1, 0.1), (0.5, 0.1, 2.0))})
    assert at(navigation_grid(scene, 0.0, GridConfig(passable_classes=()), semantic), 0.0, 0.0) == 100
    assert at(navigation_grid(scene, 0.0, CONFIG), 0.0, 0.0) == 100


def test_a_floor_that_bulges_is_free_and_a_low_thing_blocks():
    ramp = box_surface((1.0, 0.0, 0.06), (0.4, 0.4, 0.12))
    scale = box_surface((-1.0, 0.0, 0.03), (0.4, 0.4, 0.06))
    scene = snapshot_of(np.concatenate([room(), ramp, scale]))
    plain = navigation_grid(scene, 0.0, CONFIG)
    assert (at(plain, 1.0, 0.0), at(plain, -1.0, 0.0)) == (100, 0)
    semantic = labelled({"carpet": ((0.7, -0.3, 0.0), (1.3, 0.3, 0.2)), "scale": ((-1.3, -0.3, 0.0), (-0.7, 0.3, 0.1))})
    named = navigation_grid(scene, 0.0, CONFIG, semantic)
    assert (at(named, 1.0, 0.0), at(named, -1.0, 0.0)) == (0, 100)
    assert at(named, 0.0, 1.0) == 0
