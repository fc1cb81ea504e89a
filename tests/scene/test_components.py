"""Layers, rectangles and class-agnostic boxes on maps with known content."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.scene_builder import box_surface, chair, noisy, plane, room, snapshot_of, table

from embodied_perceptron.config import SegmentationConfig
from embodied_perceptron.geometry.boxes import box_iou, trimmed_bounds
from embodied_perceptron.scene.segmentation import components
from embodied_perceptron.scene.segmentation.cells import build_cells, connected_parts
from embodied_perceptron.scene.segmentation.components import (
    _STEP_M,
    _TRIM_PERCENT,
    _areas,
    _level_patches,
    find_boxes,
    rectangle_direction,
    rectangular_parts,
    upright_box,
)
from embodied_perceptron.scene.segmentation.layers import FLOOR, STRUCTURE, THING, separate_layers

CONFIG = SegmentationConfig()


def boxes_of(points, config=CONFIG, floor_z_m=0.0):
    snapshot = snapshot_of(points)
    return find_boxes(snapshot, separate_layers(snapshot, floor_z_m, config), config)


def best_iou(found, truth):
    if len(found) == 0:
        return 0.0
    return float(box_iou(torch.from_numpy(found.boxes), torch.tensor([truth], dtype=torch.float64)).max())


def test_empty_map_has_no_boxes():
    found = boxes_of(np.zeros((0, 3)))
    assert len(found) == 0
    assert found.boxes.shape == (0, 9)


@pytest.mark.parametrize("height", [0.0, 0.5, 3.0])
def test_single_voxel_has_no_boxes(height):
    assert len(boxes_of(np.array([[1.0, 1.0, height]]))) == 0


def test_floor_and_walls_alone_have_no_boxes():
    assert len(boxes_of(noisy(room()))) == 0


@pytest.mark.parametrize("yaw", [0.0, 0.3, 1.2])
def test_known_boxes_in_a_room(yaw):
    truth = [
        [1.2, 0.8, 0.25, 0.6, 0.4, 0.5, 0.3, 0, 0],
        [-1.2, 0.9, 0.45, 0.9, 0.5, 0.9, -0.5, 0, 0],
        [-1.0, -0.9, 0.3, 0.5, 0.5, 0.6, 0.0, 0, 0],
    ]
    R = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    points = [room(yaw=yaw)]
    turned = []
    for t in truth:
        center = tuple(R @ np.array(t[:3]))
        points.append(box_surface(center, tuple(t[3:6]), t[6] + yaw))
        turned.append([*center, *t[3:6], t[6] + yaw, 0, 0])
    found = boxes_of(noisy(np.concatenate(points)))
    assert len(found) == 3
    for t in turned:
        assert best_iou(found, t) > 0.8


@pytest.mark.parametrize("yaw", [0.0, 0.4, 0.9, 1.5])
def test_size_and_direction_of_a_box(yaw):
    found = boxes_of(
        np.concatenate([plane((-2, -2, 0), (4, 0, 0), (0, 4, 0)), box_surface((0, 0, 0.4), (1.2, 0.5, 0.8), yaw)])
    )
    assert len(found) == 1
    box = found.boxes[0]
    assert box[3:6] == pytest.approx([1.2, 0.5, 0.8], abs=0.04)
    assert box[:3] == pytest.approx([0, 0, 0.4], abs=0.03)
    assert abs((box[6] - yaw + np.pi / 2) % np.pi - np.pi / 2) < np.radians(3)


def test_a_face_seen_straight_on_is_a_thin_box():
    floor = plane((0, -2, 0), (4, 0, 0), (0, 4, 0))
    face = plane((1.5, -0.3, 0), (0, 0.6, 0), (0, 0, 0.6))
    boxes = boxes_of(np.concatenate([floor, face])).boxes
    assert len(boxes) == 1
    assert boxes[0][3:6].min() > 0
    np.testing.assert_allclose(boxes[0][:3], [1.5, 0, 0.3], atol=0.03)


def test_chairs_do_not_melt_into_their_table():
    points = [room(), table((0, 0), (1.6, 0.9, 0.75))]
    seats = [(0.0, 0.5, -np.pi / 2), (0.0, -0.5, np.pi / 2), (-0.9, 0.0, 0.0), (0.9, 0.0, np.pi)]
    points += [chair((x, y), yaw) for x, y, yaw in seats]  # their seats reach under the top
    found = boxes_of(noisy(np.concatenate(points), 0.004))
    assert best_iou(found, [0, 0, 0.375, 1.6, 0.9, 0.75, 0, 0, 0]) > 0.8
    for x, y, yaw in seats:
        assert best_iou(found, [x, y, 0.45, 0.44, 0.44, 0.9, yaw, 0, 0]) > 0.35, (x, y)
    assert len(found) == 5


def test_a_chair_does_not_take_the_leg_of_its_table():
    points = [room(), table((0, 0), (2.0, 0.9, 0.75)), chair((-0.6, -0.5), np.pi / 2)]  # beside a leg, touching it
    found = boxes_of(noisy(np.concatenate(points), 0.004))
    assert best_iou(found, [0, 0, 0.375, 2.0, 0.9, 0.75, 0, 0, 0]) > 0.85
    assert best_iou(found, [-0.6, -0.5, 0.45, 0.44, 0.44, 0.9, 0, 0, 0]) > 0.5
    assert len(found) == 2


def test_table_whose_legs_were_never_seen_reaches_the_floor():
    top = box_surface((0, 0, 0.73), (1.4, 0.8, 0.04))
    found = boxes_of(np.concatenate([plane((-2, -2, 0), (4, 0, 0), (0, 4, 0)), top]))
    assert best_iou(found, [0, 0, 0.375, 1.4, 0.8, 0.75, 0, 0, 0]) > 0.85


def test_counter_around_a_corner_becomes_two():
    w, d = 5.0, 4.0
    points = [
        room(w, d),
        box_surface((-w / 2 + 0.35, -0.3, 0.45), (0.6, 3.0, 0.9)),  # along the left wall
        box_surface((-0.9, -d / 2 + 0.35, 0.45), (2.0, 0.6, 0.9)),  # along the lower wall
    ]
    found = boxes_of(noisy(np.concatenate(points), 0.004))
    assert len(found) == 2
    # the corner itself may go to either
    assert best_iou(found, [-w / 2 + 0.35, -0.3, 0.45, 0.6, 3.0, 0.9, 0, 0, 0]) > 0.65
    assert best_iou(found, [-1.175, -d / 2 + 0.35, 0.45, 2.55, 0.6, 0.9, 0, 0, 0]) > 0.65


def _faces(center, size, faces):
    """Some faces of a box that stands on the floor: those that were seen."""
    (x, y), (w, d, h) = center, size
    every = {
        "front": plane((x - w / 2, y - d / 2, 0), (w, 0, 0), (0, 0, h)),
        "left": plane((x - w / 2, y - d / 2, 0), (0, d, 0), (0, 0, h)),
        "right": plane((x + w / 2, y - d / 2, 0), (0, d, 0), (0, 0, h)),
    }
    return np.concatenate([every[f] for f in faces])


def test_wardrobe_on_a_wall_is_no_wall():
    # its top is out of prediction, and so is the wall behind it
    wardrobe = _faces((0.2, 2.0 - 0.3), (1.4, 0.6, 1.9), ("front", "left"))
    walls = room()
    hidden = (np.abs(walls[:, 0] - 0.2) < 0.7) & (walls[:, 1] > 1.95)
    found = boxes_of(noisy(np.concatenate([walls[~hidden], wardrobe]), 0.004))
    assert len(found) == 1
    assert best_iou(found, [0.2, 1.7, 0.95, 1.4, 0.6, 1.9, 0, 0, 0]) > 0.8


def test_a_wall_of_another_room_is_no_wardrobe():
    # two rooms side by side, and a corridor of 1.2 m
    parts = [room(), room() + np.array([5.0, 0, 0]), room() + np.array([0, 5.2, 0])]
    assert len(boxes_of(noisy(np.concatenate(parts), 0.004))) == 0


def test_nightstand_beside_a_bed_is_not_its_back():
    parts = [
        box_surface((0, 0, 0.25), (1.6, 2.0, 0.5)),
        box_surface((0, 1.03, 0.45), (1.6, 0.06, 0.9)),
        box_surface((1.05, 0.8, 0.28), (0.4, 0.4, 0.56)),
    ]
    found = boxes_of(noisy(np.concatenate([room(), *parts]), 0.004))
    assert len(found) == 2
    assert best_iou(found, [0, 0.03, 0.45, 1.6, 2.06, 0.9, 0, 0, 0]) > 0.85
    assert best_iou(found, [1.05, 0.8, 0.28, 0.4, 0.4, 0.56, 0, 0, 0]) > 0.6


def test_sofa_is_one_thing_with_its_back_and_arms():
    parts = [
        box_surface((0, 0, 0.21), (1.9, 0.9, 0.42)),
        box_surface((0, 0.36, 0.42), (1.9, 0.18, 0.84)),
        box_surface((-0.87, 0, 0.3), (0.16, 0.9, 0.6)),
        box_surface((0.87, 0, 0.3), (0.16, 0.9, 0.6)),
    ]
    found = boxes_of(noisy(np.concatenate([room(), *parts]), 0.004))
    assert len(found) == 1
    assert best_iou(found, [0, 0, 0.42, 1.9, 0.9, 0.84, 0, 0, 0]) > 0.85


def test_things_on_a_table_do_not_raise_it():
    parts = [table((0, 0), (1.4, 0.8, 0.74)), box_surface((0.3, 0.1, 0.84), (0.3, 0.2, 0.2))]
    found = boxes_of(noisy(np.concatenate([room(), *parts]), 0.004), SegmentationConfig(min_cells=10))
    assert best_iou(found, [0, 0, 0.37, 1.4, 0.8, 0.74, 0, 0, 0]) > 0.85
    assert best_iou(found, [0.3, 0.1, 0.84, 0.3, 0.2, 0.2, 0, 0, 0]) > 0.4
    assert len(found) == 2


def test_shelf_on_a_wall_does_not_reach_the_floor():
    shelf = box_surface((0, 2.0 - 0.2, 1.1), (1.2, 0.36, 0.04))
    found = boxes_of(np.concatenate([room(), shelf]))
    assert len(found) == 1
    assert found.boxes[0, 2] - found.boxes[0, 5] / 2 > 1.0


def test_floor_height_shifts_everything():
    points = np.concatenate([room(), box_surface((0.5, 0.5, 0.4), (0.8, 0.5, 0.8))])
    low, high = boxes_of(points), boxes_of(points + np.array([0, 0, 1.26]), floor_z_m=1.26)
    assert len(low) == len(high) == 1
    assert high.boxes[0] - low.boxes[0] == pytest.approx([0, 0, 1.26, 0, 0, 0, 0, 0, 0], abs=0.02)


def test_identical_maps_give_identical_boxes_to_the_bit():
    points = noisy(np.concatenate([room(), table((0, 0), (1.6, 0.9, 0.75)), chair((1.5, 1.2), 0.7)]))
    a, b = boxes_of(points), boxes_of(points.copy())
    assert len(a) >= 2
    assert a.boxes.tobytes() == b.boxes.tobytes()
    assert a.scores.tobytes() == b.scores.tobytes()


@pytest.mark.parametrize("seed", range(12))
def test_any_clutter_gives_sound_boxes(seed):
    rng = np.random.default_rng(seed)
    parts = [rng.uniform(-3, 3, (int(rng.integers(1, 400)), 3))]
    for _ in range(int(rng.integers(0, 12))):
        parts.append(
            box_surface(tuple(rng.uniform(-2, 2, 3)), tuple(rng.uniform(0.01, 1.5, 3)), rng.uniform(0, 3), 0.03)
        )
    for _ in range(int(rng.integers(0, 6))):
        parts.append(
            plane(tuple(rng.uniform(-2, 2, 3)), tuple(rng.uniform(-2, 2, 3)), tuple(rng.uniform(-1, 1, 3)), 0.03)
        )
    snapshot = snapshot_of(np.concatenate(parts))
    found = find_boxes(
        snapshot, separate_layers(snapshot, float(rng.uniform(-2, 1)), CONFIG), CONFIG
    )  # Detections check
    low, high = snapshot.mean_point_m.min(axis=0), snapshot.mean_point_m.max(axis=0)
    assert ((found.boxes[:, :3] > low - 0.1) & (found.boxes[:, :3] < high + 0.1)).all()
    assert (found.boxes[:, 3:6].max(axis=1, initial=0.0) <= CONFIG.max_size_m).all()


def test_size_limits_hold():
    points = np.concatenate([room(), box_surface((0.5, 0.5, 0.4), (0.8, 0.5, 0.8))])
    assert len(boxes_of(points, SegmentationConfig(max_size_m=0.7))) == 0
    assert len(boxes_of(points, SegmentationConfig(min_cells=10_000))) == 0


def test_scores_rise_with_evidence():
    points = np.concatenate([room(), box_surface((0.5, 0.5, 0.4), (0.8, 0.5, 0.8))])
    sure = snapshot_of(points)
    unsure = snapshot_of(points)
    unsure.evidence[:] = 0.2
    scores = [find_boxes(s, separate_layers(s, 0.0, CONFIG), CONFIG).scores[0] for s in (unsure, sure)]
    assert 0 < scores[0] < scores[1] < 1


def test_layers_of_a_room():
    box = box_surface((0, 0, 0.4), (0.8, 0.5, 0.8))
    snapshot = snapshot_of(np.concatenate([room(), box]))
    layers = separate_layers(snapshot, 0.0, CONFIG)
    p = snapshot.mean_point_m
    inside = (np.abs(p[:, 0]) < 0.6) & (np.abs(p[:, 1]) < 0.5)
    assert (layers.label[(p[:, 2] < CONFIG.min_height_m)] == FLOOR).all()
    assert (layers.label[inside & (p[:, 2] > 0.1)] == THING).all()
    wall = ~inside & (p[:, 2] > 0.1)
    assert (layers.label[wall] == STRUCTURE).mean() > 0.99
    assert layers.yaw_rad % (np.pi / 2) == pytest.approx(0, abs=0.02) or layers.yaw_rad == pytest.approx(
        np.pi / 2, abs=0.02
    )


@pytest.mark.parametrize("yaw", [0.2, 0.7, 1.3])
def test_direction_of_the_walls(yaw):
    snapshot = snapshot_of(noisy(room(yaw=yaw)))
    assert separate_layers(snapshot, 0.0, CONFIG).yaw_rad == pytest.approx(yaw, abs=np.radians(1))


def test_cells_equal_a_plain_version():
    rng = np.random.default_rng(3)
    snapshot = snapshot_of(rng.uniform(-0.4, 0.4, (3000, 3)))
    cells = build_cells(snapshot, 0.06)
    points = snapshot.mean_point_m.astype(np.float64)
    own = np.floor(points / 0.06).astype(int)
    expected = sorted({tuple(c) for c in own.tolist()})
    assert [tuple(c) for c in cells.coords.tolist()] == expected
    for row in rng.integers(0, len(cells), 40):
        inside = (own == cells.coords[row]).all(axis=1)
        assert np.array_equal(np.flatnonzero(cells.cell_of_voxel == row), np.flatnonzero(inside))
        assert cells.mean_m[row] == pytest.approx(points[inside].mean(axis=0), abs=1e-6)
        near = (np.abs(own - cells.coords[row]) <= 1).all(axis=1)
        if near.sum() >= 3:
            values, vectors = np.linalg.eigh(np.cov(points[near].T, bias=True))
            if values[0] < 0.25 * values[1] * 0.99:
                assert abs(cells.normal[row] @ vectors[:, 0]) == pytest.approx(1, abs=1e-6)
            elif values[0] > 0.25 * values[1] * 1.01:
                assert not cells.normal[row].any()


def test_what_stands_alone_far_away_costs_nothing_and_changes_nothing():
    rng = np.random.default_rng(4)
    near = rng.uniform(-0.4, 0.4, (2000, 3))
    far = np.array([[90_000.0, 70_000.0, 0.3], [-40_000.0, 300.0, 0.1]])
    alone, both = build_cells(snapshot_of(near), 0.06), build_cells(snapshot_of(np.concatenate([near, far])), 0.06)
    assert both.index.size < 100 * alone.index.size
    shared = np.flatnonzero((np.abs(both.coords) < 100).all(axis=1))
    assert np.array_equal(both.coords[shared], alone.coords)
    assert both.normal[shared] == pytest.approx(alone.normal)
    steps = both.dense[shared] - alone.dense
    assert (steps == steps[0]).all()
    assert np.array_equal(both.index[tuple(both.dense.T)], np.arange(len(both)))
    parts = connected_parts(both, np.arange(len(both)))
    assert sorted(len(part) for part in parts)[:2] == [1, 1]
    assert len(parts) == len(connected_parts(alone, np.arange(len(alone)))) + 2


def test_normals_of_planes():
    for direction in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 2, 3]):
        n = np.array(direction) / np.linalg.norm(direction)
        a = np.cross(n, [0.3, 0.5, 0.8])
        a /= np.linalg.norm(a)
        points = plane((0.013, 0.027, 0.005), tuple(a), tuple(np.cross(n, a)))
        cells = build_cells(snapshot_of(points), 0.06)
        has = np.abs(cells.normal).max(axis=1) > 0
        assert has.mean() > 0.95
        assert np.median(np.abs(cells.normal[has] @ n)) > 0.995


def test_rectangle_prefers_the_walls_until_it_is_much_worse():
    rng = np.random.default_rng(0)
    xy = rng.uniform(-0.5, 0.5, (2000, 2)) * [1.5, 0.6]
    c, s = np.cos(0.03), np.sin(0.03)
    assert rectangle_direction(xy @ np.array([[c, s], [-s, c]]), 0.0) == 0.0
    c, s = np.cos(0.5), np.sin(0.5)
    assert rectangle_direction(xy @ np.array([[c, s], [-s, c]]), 0.0) == pytest.approx(0.5, abs=0.03)


def test_upright_box_puts_the_longer_side_first():
    points = plane((-0.2, -0.6, 0), (0.4, 0, 0), (0, 1.2, 0))
    box = upright_box(points, 0.0, 0.1, 0.5)
    assert box[:6] == pytest.approx([0, 0, 0.3, 1.2, 0.4, 0.4], abs=0.02)
    assert abs(box[6]) == pytest.approx(np.pi / 2)


def _manhattan(mask):
    return np.argwhere(mask).astype(np.float64)


def test_an_l_is_cut_into_two_and_a_bar_is_not():
    corner = np.zeros((40, 40), dtype=bool)
    corner[:10] = True
    corner[:, :10] = True
    part = rectangular_parts(_manhattan(corner), 5)
    assert part.max() == 1
    bar = np.zeros((40, 40), dtype=bool)
    bar[5:15] = True
    assert rectangular_parts(_manhattan(bar), 5).max() == 0


def test_a_slightly_turned_bar_stays_whole():
    u, v = np.meshgrid(np.arange(60.0), np.arange(8.0))
    c, s = np.cos(0.1), np.sin(0.1)
    xy = np.unique(np.round(np.stack([u.ravel(), v.ravel()], 1) @ np.array([[c, s], [-s, c]])), axis=0)
    assert rectangular_parts(xy, 5).max() == 0


@pytest.mark.parametrize("count", [3, 40, 900])
def test_areas_of_rectangles_are_those_of_trimmed_bounds(count):
    xy = np.random.default_rng(count).normal(size=(count, 2)) * [1.0, 0.3]
    yaws = np.linspace(0.0, 1.5, 7)
    slow = []
    for yaw in yaws:
        c, s = np.cos(yaw), np.sin(yaw)
        low, high = trimmed_bounds(xy @ np.array([[c, -s], [s, c]]), _TRIM_PERCENT)
        slow.append(np.prod(high - low + 0.02))
    np.testing.assert_allclose(_areas(xy, yaws), slow, rtol=1e-9)


def random_cells(rng):
    """Points low or high in random cells of a few columns, as tiles on one another show them."""
    chosen = np.unique(rng.integers(0, (2, 2, 12), (rng.integers(2, 30), 3)), axis=0)
    low = 0.06 * chosen + np.column_stack([np.full((len(chosen), 2), 0.01), rng.choice([0.001, 0.059], len(chosen))])
    return (low[:, None] + np.array([[0.0, 0.0, 0.0], [0.02, 0.0, 0.0], [0.0, 0.02, 0.0]])).reshape(-1, 3)


def counted(call, counts, limit):
    """``call``, which must not be called more often than ``limit``: an endless loop becomes a failure."""

    def counting(*args):
        counts.append(1)
        assert len(counts) <= limit
        return call(*args)

    return counting


def test_two_groups_of_level_cells_end(monkeypatch):
    """Nothing lies at their median height: no patch may become its own rest."""
    points = np.array([[0.01, 0.01, 0.001], [0.03, 0.01, 0.001], [0.01, 0.03, 0.001]])
    cells = build_cells(
        snapshot_of(np.concatenate([points, points + np.array([0.0, 0.0, 0.118])]), voxel_size_m=0.01), 0.06
    )
    monkeypatch.setattr(components, "connected_parts", counted(connected_parts, [], 1 + len(cells)))
    patches = _level_patches(cells, np.ones(len(cells), dtype=bool))
    assert [list(patch) for patch in patches] == [[0], [1]]


def test_level_patches_of_anything_are_a_partition(monkeypatch):
    rng = np.random.default_rng(5)
    for _ in range(300):
        cells = build_cells(snapshot_of(random_cells(rng), voxel_size_m=0.01), 0.06)
        level = rng.random(len(cells)) < 0.9
        monkeypatch.setattr(components, "connected_parts", counted(connected_parts, [], 1 + len(cells)))
        patches = _level_patches(cells, level)
        np.testing.assert_array_equal(np.sort(np.concatenate([*patches, np.zeros(0, int)])), np.flatnonzero(level))
        assert all(np.ptp(cells.mean_m[patch, 2]) < 2 * _STEP_M for patch in patches)


@pytest.mark.parametrize("seed", range(12))
def test_boxes_of_random_tiles_end(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    parts = [room()] if seed % 3 == 0 else []
    for z in 0.08 + np.cumsum(rng.choice([0.06, 0.09, 0.118], 30)) % 1.3:
        corner, size = rng.uniform(0.0, 0.4, 2), rng.uniform(0.04, 0.8, 2)
        parts.append(plane((*corner, z), (size[0], 0, 0), (0, size[1], 0), 0.02))
    snapshot = snapshot_of(np.concatenate(parts))
    layers = separate_layers(snapshot, 0.0, CONFIG)
    monkeypatch.setattr(components, "connected_parts", counted(connected_parts, [], 10 + 3 * len(layers.cells)))
    found = find_boxes(snapshot, layers, CONFIG)
    assert np.isfinite(found.boxes).all()
