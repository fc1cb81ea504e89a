"""The Manhattan frame that follows the walls: found from the map, exact where nothing is turned, and undone in every
answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.online_world import config, inference, walk

from embodied_perceptron.geometry.boxes import corners, transform_boxes
from embodied_perceptron.geometry.manhattan import (
    STEP_DEG,
    WORLD,
    ManhattanFrame,
    Region,
    wall_aligned_frame,
)
from embodied_perceptron.geometry.transforms import make_transform
from embodied_perceptron.mapping.block_copies import BlockRows
from embodied_perceptron.mapping.export import TurnedRows, turn_by_tensors
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.frame import PosedFrame

VOXEL_M = 0.02


def room(yaw_rad: float, rng: np.random.Generator) -> np.ndarray:
    """Points on the walls of a room of 5 x 3 m, with things in it that stand at any angle."""
    along = rng.uniform(-1, 1, 6000)
    side = rng.integers(4, size=6000)
    x = np.select([side == 0, side == 1], [-2.5, 2.5], 2.5 * along)
    y = np.select([side == 2, side == 3], [-1.5, 1.5], 1.5 * along)
    walls = np.stack([x, y, rng.uniform(0, 2.5, 6000)], 1) + rng.normal(0, 0.01, (6000, 3))
    clutter = rng.uniform([-2, -1, 0], [2, 1, 1], (1500, 3))
    return ManhattanFrame(yaw_rad).to_world(np.concatenate([walls, clutter]))


def frame_of(points: np.ndarray, floor_z_m: float = 0.0) -> ManhattanFrame:
    """Of a map with a voxel at each point."""
    return wall_aligned_frame(np.floor(points / VOXEL_M).astype(np.int32), VOXEL_M, floor_z_m)


def off_by_deg(manhattan: ManhattanFrame, yaw_rad: float) -> float:
    """Angle between a frame and walls, which look alike after quarter turns."""
    return abs((math.degrees(manhattan.yaw_rad - yaw_rad) + 45) % 90 - 45)


@pytest.mark.parametrize("yaw_deg", [0, 1, 10, 29, 44, 46, 61, 89, 133, -170, 301])
def test_the_frame_lies_along_the_walls(yaw_deg):
    points = room(math.radians(yaw_deg), np.random.default_rng(yaw_deg % 7))
    manhattan = frame_of(points)
    assert off_by_deg(manhattan, math.radians(yaw_deg)) <= 0.5 * STEP_DEG + 0.6
    assert abs(manhattan.yaw_rad) <= math.pi / 4 + 1e-9  # never further than needed
    shuffled = np.random.default_rng(1).permutation(points)
    assert frame_of(shuffled) == manhattan
    # what does not stand between knee and lintel does not count, wherever it lies
    far = np.array([[1e5, -1e5, 0.0], [-1e5, 1e5, 3.0]])
    assert frame_of(np.concatenate([points, far])) == manhattan


def test_rooms_along_the_axes_keep_the_world_frame():
    assert frame_of(room(0.0, np.random.default_rng(0))) == WORLD


def test_without_a_direction_the_worlds_axes_serve():
    rng = np.random.default_rng(0)
    assert frame_of(np.zeros((0, 3))) == WORLD
    assert frame_of(np.array([[0.0, 0.0, 1.0]] * 5)) == WORLD
    angle = rng.uniform(0, 2 * np.pi, 5000)
    tower = np.stack([3 * np.cos(angle), 3 * np.sin(angle), rng.uniform(0, 2.4, 5000)], 1)
    assert frame_of(tower) == WORLD
    floor = np.stack([*rng.uniform(-3, 3, (2, 5000)), np.zeros(5000)], 1)
    assert frame_of(floor) == WORLD  # floors have no direction


@pytest.mark.parametrize("yaw_rad", [0.0, 0.2, math.radians(45), -1.3, 3.0])
def test_world_cells_are_those_whose_centres_lie_in_cells_of_the_frame(yaw_rad):
    manhattan, rng = ManhattanFrame(yaw_rad), np.random.default_rng(4)
    cells = np.unique(rng.integers(-9, 9, (300, 3)), axis=0)
    found, rows = manhattan.world_cells(cells, 0.16)
    # slow twin: ask every cell of the world
    axis = np.arange(-30, 30)
    world = np.stack(np.meshgrid(axis, axis, np.arange(-9, 9), indexing="ij"), -1).reshape(-1, 3)
    at = np.floor(manhattan.from_world((world + 0.5) * 0.16) / 0.16).astype(int)
    row_of = {tuple(c): i for i, c in enumerate(cells.tolist())}
    pairs = zip(map(tuple, world.tolist()), map(tuple, at.tolist()), strict=True)
    expected = {w: row_of[a] for w, a in pairs if a in row_of}
    assert dict(zip(map(tuple, found.tolist()), rows.tolist(), strict=True)) == expected
    assert len(found) == len(expected)


def test_boxes_and_points_go_together():
    rng = np.random.default_rng(2)
    manhattan = ManhattanFrame(math.radians(33))
    boxes = np.concatenate([rng.normal(size=(20, 3)), rng.uniform(0.2, 2, (20, 3)), rng.uniform(-3, 3, (20, 3))], 1)
    moved = manhattan.boxes_to_world(boxes)
    expected = transform_boxes(manhattan.T_world_manhattan, torch.from_numpy(boxes))
    np.testing.assert_allclose(corners(torch.from_numpy(moved)), corners(expected), atol=1e-9)
    assert (np.abs(moved[:, 6]) <= math.pi + 1e-12).all()
    np.testing.assert_allclose(manhattan.from_world(manhattan.to_world(boxes[:, :3])), boxes[:, :3], atol=1e-12)
    assert WORLD.boxes_to_world(boxes) is boxes


def test_regions_are_cut_along_their_frame():
    region = Region(np.array([-1.0, -2.0, -np.inf]), np.array([1.0, 2.0, np.inf]), ManhattanFrame(math.pi / 2))
    inside = region.contains(np.array([[1.5, 0.5, 7.0], [0.5, 1.5, 0.0], [-2.0, 0.0, 0.0], [2.0, 0.0, 0.0]]))
    assert inside.tolist() == [True, False, False, True]  # lower faces belong to it, upper ones do not
    assert not Region.nowhere().contains(np.zeros((1, 3))).any()
    assert Region.everywhere().contains(np.full((1, 3), 1e9)).all()


def test_voxels_stand_where_their_points_are_on_the_other_frame():
    it = Perceptron(config(), inference=None)
    for frame in walk(3, 4):
        it.integrate(frame)
    copy, manhattan = it.volume.copy(), ManhattanFrame(math.radians(21))
    turned = copy.turned(manhattan, np.zeros(3), math.inf)
    before, after = copy.snapshot(), turned.snapshot()
    step_m = copy.voxel_size_m / 1024
    np.testing.assert_allclose(after.mean_point_m, manhattan.from_world(before.mean_point_m), atol=1.1 * step_m)
    np.testing.assert_array_equal(after.mean_color, before.mean_color)
    near = copy.turned(manhattan, np.array([0.5, 0.5, 0.0]), 1.0).snapshot()
    distance = np.linalg.norm(near.mean_point_m[:, :2] - manhattan.from_world([0.5, 0.5, 0.0])[:2], axis=1)
    assert 0 < len(near) < len(after)
    assert distance.max() < 1.0 + 2 * copy.voxel_size_m

    # sites of the network: means over all points of a site, here added up one by one
    x = turned.as_sparse_tensor(1, features=("height", "color", "one"), floor_z_m=0.1)
    key = np.floor(after.mean_point_m.astype(np.float64) / copy.voxel_size_m)
    sums: dict[tuple, np.ndarray] = {}
    for k, point, color, hits in zip(key.tolist(), after.mean_point_m, after.mean_color, after.hits, strict=True):
        entry = np.array([point[2] - 0.1, *(color / 255.0), 1.0]) * hits
        sums[tuple(k)] = sums.get(tuple(k), np.zeros(6)) + np.append(entry, hits)
    assert len(sums) < len(turned)  # some voxels share a site
    assert {tuple(c) for c in x.coords.tolist()} == set(sums)
    expected = np.stack([sums[tuple(c)][:5] / sums[tuple(c)][5] for c in x.coords.tolist()])
    np.testing.assert_allclose(x.feats.numpy(), expected, atol=3e-3)  # colours of snapshots are whole numbers


@pytest.mark.parametrize("radius", [30.0, math.inf])
def test_voxels_turned_by_compiled_loops_are_those_of_tensors(radius: float):
    it = Perceptron(config(), inference=None)
    for frame in walk(3, 2):
        it.integrate(frame)
    rows, manhattan, middle = it.volume.copy().rows, ManhattanFrame(math.radians(-12)), np.array([25.0, -3.0])
    assert isinstance(rows, BlockRows)
    found, expected = TurnedRows(rows, manhattan, middle, radius), turn_by_tensors(rows, manhattan, middle, radius)
    assert 0 < len(found) <= len(rows)
    assert (len(found) == len(rows)) == math.isinf(radius)
    assert torch.equal(found.coords, expected.coords)
    assert torch.equal(found.records, expected.records)
    assert torch.equal(found.last_seen_ns, expected.last_seen_ns)


def test_a_turned_world_is_seen_alike():
    """Untrained, and from other voxels of the same surfaces: what comes out is alike, not the same."""
    straight, turned = (Perceptron(config(window_m=5.12), inference=inference(min_score=0.3)) for _ in range(2))
    c, s = math.cos(0.5), math.sin(0.5)
    T = make_transform(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.zeros(3))
    for frame in walk(5, 8):
        straight.integrate(frame)
        turned.integrate(PosedFrame(frame.frame, T @ frame.T_world_camera))
    a, b = straight.predict(), turned.predict()
    assert a.region.manhattan == WORLD
    assert off_by_deg(b.region.manhattan, 0.5) <= 0.5 * STEP_DEG + 0.6
    # cells: what is filled is filled there too
    size = a.semantic.cell_size_m
    there = np.floor(a.semantic.centers_m @ T[:3, :3].T / size).astype(int)
    cells = np.floor(b.semantic.centers_m / size).astype(int)
    filled = set(map(tuple, cells.tolist()))
    assert np.mean([tuple(c) in filled for c in there.tolist()]) > 0.6
    assert b.answered.contains(b.semantic.centers_m).all()


def test_a_frame_stays_while_another_is_hardly_better():
    def kept(yaw_deg: float, last: ManhattanFrame) -> ManhattanFrame:
        coords = np.floor(room(math.radians(yaw_deg), np.random.default_rng(0)) / VOXEL_M).astype(np.int32)
        return wall_aligned_frame(coords, VOXEL_M, 0.0, last)

    first, second, far = (ManhattanFrame(math.radians(k * STEP_DEG)) for k in (1, 2, 6))
    between = [1.5 * STEP_DEG - 0.1, 1.5 * STEP_DEG + 0.1]  # walls that tremble about the middle of two steps
    assert {frame_of(room(math.radians(yaw), np.random.default_rng(0))) for yaw in between} == {first, second}
    for last in (first, second):
        assert [kept(yaw, last) for yaw in between] == [last, last]
    assert kept(between[0], far) == first  # walls elsewhere: another map, or another room
    assert kept(2 * STEP_DEG, first) == second


def test_without_much_to_see_no_frame_stays():
    nothing = np.zeros((0, 3), np.int32)
    assert wall_aligned_frame(nothing, VOXEL_M, 0.0, ManhattanFrame(math.radians(STEP_DEG))) == WORLD
