"""Extents from the map: long tables, pieces of one, and everything that must stay as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.inference.class_priors import grow_to_surface, refine_extents, shipped_priors
from embodied_perceptron.results import Detections, VoxelSnapshot

VOXEL_M = 0.02
WHOLE = np.array([0.3, -0.2, 0.375, 3.0, 0.9, 0.75, 0.0, 0, 0])


def box(x, y, z, dx, dy, dz, yaw=0.0):
    return np.array([x, y, z, dx, dy, dz, yaw, 0.0, 0.0], np.float64)


def board(low, high, z):
    """(N, 3) points of a level surface, one a voxel."""
    x, y = np.meshgrid(*(np.arange(a + 0.01, b, VOXEL_M) for a, b in zip(low, high, strict=True)))
    return np.stack([x.ravel(), y.ravel(), np.full(x.size, z)], -1)


def table_points(at=WHOLE, z=0.74):
    half = at[3:5] / 2
    legs = [
        np.stack([np.full(35, at[0] + i * (half[0] - 0.05)), np.full(35, at[1] + j * (half[1] - 0.05)),
                  np.arange(35) * 0.02], -1)
        for i in (-1, 1) for j in (-1, 1)
    ]  # fmt: skip
    return np.concatenate([board(at[:2] - half, at[:2] + half, z), *legs])


def turned(points, yaw, move=(0.0, 0.0)):
    c, s = np.cos(yaw), np.sin(yaw)
    result = points.copy()
    result[:, :2] = points[:, :2] @ np.array([[c, s], [-s, c]]) + np.array(move)
    return result


def turned_box(b, yaw, move=(0.0, 0.0)):
    return np.concatenate([turned(b[None, :3], yaw, move)[0], b[3:6], [b[6] + yaw], b[7:]])


def snapshot(points):
    n = len(points)
    return VoxelSnapshot(
        VOXEL_M,
        np.floor(points / VOXEL_M).astype(np.int32),
        points.astype(np.float32),
        np.zeros((n, 3), np.uint8),
        np.ones(n, np.int32),
        np.ones(n, np.float32),
        np.zeros(n, np.int64),
    )


def refined(points, *things, min_score=0.0):
    labels, scores, boxes = zip(*things, strict=True)
    found = Detections(np.stack(boxes), np.array(scores, np.float64), tuple(labels))
    return found, refine_extents(found, snapshot(points), 0.0, shipped_priors(), min_score)


def iou(a, b):
    return float(box_iou(torch.from_numpy(a[None]), torch.from_numpy(b[None])))


def test_a_table_longer_than_the_networks_box_gets_its_length():
    part = box(0.1, -0.2, 0.375, 1.4, 0.95, 0.75)
    _, after = refined(table_points(), ("table", 0.9, part))
    assert iou(part, WHOLE) < 0.5
    assert iou(after.boxes[0], WHOLE) > 0.9
    assert after.boxes[0][5] == pytest.approx(0.75)


def test_pieces_of_one_table_become_one():
    pieces = [("table", s, box(x, -0.2, 0.375, 1.2, 0.9, 0.75)) for x, s in ((-0.6, 0.6), (0.4, 0.9), (1.2, 0.5))]
    chair = ("chair", 0.4, box(0.3, -0.2, 0.375, 0.5, 0.5, 0.7))
    _, after = refined(table_points(), *pieces, chair)
    assert after.labels == ("table", "chair")  # of another name: no piece
    assert after.scores.tolist() == [0.9, 0.4]
    assert iou(after.boxes[0], WHOLE) > 0.9


def test_cupboards_of_a_counter_are_pieces_of_it_where_they_have_no_name():
    points = board((-1.2, -0.3), (1.2, 0.3), 0.92)
    counter = ("counter", 0.6, box(-0.3, 0, 0.465, 1.4, 0.6, 0.93))
    cupboards = [("object", 0.9, box(x, 0, 0.46, 0.7, 0.6, 0.92)) for x in (-0.8, 0.0, 0.8)]
    below = ("object", 0.9, box(0.2, 0, 0.3, 0.5, 0.5, 0.6))  # a box that stands in it
    named = ("dishwasher", 0.5, box(0.8, 0, 0.46, 0.6, 0.6, 0.92))
    _, after = refined(points, counter, *cupboards, below, named)
    assert after.labels == ("counter", "object", "dishwasher")
    assert after.boxes[1][5] == 0.6


def test_two_tables_with_a_gap_stay_two():
    one, two = box(0, 0, 0.375, 1.2, 0.8, 0.75), box(1.45, 0, 0.375, 1.2, 0.8, 0.75)
    points = np.concatenate([table_points(one), table_points(two)])
    found, after = refined(points, ("table", 0.9, one), ("table", 0.8, two))
    np.testing.assert_array_equal(after.boxes, found.boxes)


def test_a_counter_around_a_corner_grows_along_its_own_run():
    points = np.concatenate([board((-0.3, -2), (0.3, 1), 0.92), board((0.3, -2), (2.5, -1.4), 0.92)])
    _, after = refined(points, ("counter", 0.9, box(0, 0, 0.46, 0.8, 0.6, 0.93, np.pi / 2)))
    assert iou(after.boxes[0], box(0, -0.5, 0.46, 3.0, 0.6, 0.93, np.pi / 2)) > 0.9


@pytest.mark.parametrize(
    ("label", "where"),
    [
        ("chair", box(0.1, -0.2, 0.375, 1.4, 0.9, 0.75)),  # no name of level things
        ("table", box(0.1, -0.2, 0.6, 1.4, 0.9, 1.2)),  # the surface is not at its top
        ("table", np.array([0.1, -0.2, 0.375, 1.4, 0.9, 0.75, 0, 0.3, 0])),  # tilted
        ("table", box(0.1, 1.2, 0.375, 1.4, 0.9, 0.75)),  # beside it
        ("desk", box(0.3, -0.2, 0.375, 0.5, 0.4, 0.75)),  # small
    ],
)
def test_what_cannot_be_trusted_stays(label, where):
    found, after = refined(table_points(), (label, 0.9, where))
    np.testing.assert_array_equal(after.boxes, found.boxes)


def test_a_surface_seen_in_parts_changes_nothing():
    points = table_points()
    thin = points[(points[:, 0] * 10 % 3 < 1)]  # a third of it, in stripes
    found, after = refined(thin, ("table", 0.9, box(0.1, -0.2, 0.375, 1.4, 0.9, 0.75)))
    np.testing.assert_array_equal(after.boxes, found.boxes)


def test_no_name_gets_a_size_that_it_cannot_have():
    long = box(0, 0, 0.375, 5.6, 0.9, 0.75)
    found, after = refined(table_points(long), ("bench", 0.9, box(0, 0, 0.375, 1.4, 0.9, 0.75)))
    np.testing.assert_array_equal(after.boxes, found.boxes)


def test_low_scores_and_empty_maps_are_left_alone():
    part = box(0.1, -0.2, 0.375, 1.4, 0.9, 0.75)
    found, after = refined(table_points(), ("table", 0.3, part), min_score=0.5)
    assert after is found
    found, after = refined(np.zeros((0, 3)), ("table", 0.9, part))
    assert after is found
    none = Detections(np.zeros((0, 9)), np.zeros(0), ())
    assert refine_extents(none, snapshot(table_points()), 0.0, shipped_priors()) is none


ANGLES = st.floats(-np.pi, np.pi)
PARTS = st.tuples(st.floats(-0.5, 0.8), st.floats(-0.25, 0.0), st.floats(0.7, 2.0), st.floats(0.6, 1.1))


@settings(max_examples=60, deadline=None)
@given(PARTS, ANGLES, st.floats(-0.3, 0.3))
def test_boxes_only_grow_and_keep_height_and_rotation(part, yaw, askew):
    x, y, dx, dy = part
    before = turned_box(box(x, y, 0.375, dx, dy, 0.75, askew), yaw, (2.0, -1.0))
    after = grow_to_surface(before, turned(table_points(), yaw, (2.0, -1.0)))
    if after is None:
        return
    np.testing.assert_array_equal(after[[2, 5, 6, 7, 8]], before[[2, 5, 6, 7, 8]])
    volume = before[3:6].prod()
    common = iou(before, after) * (volume + after[3:6].prod()) / (1 + iou(before, after))
    assert common == pytest.approx(volume, rel=1e-6)  # all of it is inside


@settings(max_examples=40, deadline=None)
@given(PARTS, ANGLES)
def test_turning_the_world_turns_the_result(part, yaw):
    x, y, dx, dy = part
    rng = np.random.default_rng(5)
    points = table_points() + rng.normal(0, 0.004, (len(table_points()), 3))  # no point on an edge of a cell
    before = box(x, y, 0.375, dx, dy, 0.75)
    one = grow_to_surface(before, points)
    other = grow_to_surface(turned_box(before, yaw, (1.0, 3.0)), turned(points, yaw, (1.0, 3.0)))
    assert (one is None) == (other is None)
    if one is not None:
        np.testing.assert_allclose(other, turned_box(one, yaw, (1.0, 3.0)), atol=1e-9)


def test_a_surface_without_end_moves_no_side_farther_than_the_reach():
    points = board((-8, -1), (8, 1), 0.74)
    after = grow_to_surface(box(0, 0, 0.375, 1.0, 1.8, 0.75), points)
    assert after[3] <= 1.0 + 2 * 2.5 + 0.11
    assert after[3] > 5.5
