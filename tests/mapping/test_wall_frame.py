"""The frame along the walls, held where it is found: shapes, detectors and network read the same one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.online_world import config, inference, walk

from embodied_perceptron.geometry.manhattan import STEP_DEG, WORLD, ManhattanFrame, wall_aligned_frame
from embodied_perceptron.mapping.voxel_counts import WallFrame
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import VoxelSnapshot

VOXEL_M = 0.02


def walls_at(yaw_deg: float) -> VoxelSnapshot:
    """Two walls of a room whose directions are ``yaw_deg`` off the world's."""
    along, up = np.meshgrid(np.arange(0.01, 4.0, 0.02), np.arange(0.31, 2.2, 0.04))
    wall = np.stack([along.ravel(), np.zeros(along.size), up.ravel()], 1)
    points = np.concatenate([wall, wall[:, [1, 0, 2]]])
    c, s = math.cos(math.radians(yaw_deg)), math.sin(math.radians(yaw_deg))
    points = points @ np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]).T
    coords = np.unique(np.floor(points / VOXEL_M).astype(np.int32), axis=0)
    n = len(coords)
    return VoxelSnapshot(
        voxel_size_m=VOXEL_M,
        coords=coords,
        mean_point_m=((coords + 0.5) * VOXEL_M).astype(np.float32),
        mean_color=np.zeros((n, 3), np.uint8),
        hits=np.ones(n, np.int32),
        evidence=np.ones(n, np.float32),
        last_seen_ns=np.ones(n, np.int64),
    )


def test_a_frame_is_held_while_another_is_hardly_better():
    first, second = (ManhattanFrame(math.radians(k * STEP_DEG)) for k in (1, 2))
    below, above = walls_at(1.5 * STEP_DEG - 0.2), walls_at(1.5 * STEP_DEG + 0.2)
    assert {wall_aligned_frame(s.coords, VOXEL_M, 0.0) for s in (below, above)} == {first, second}
    walls = WallFrame()
    held = walls.of(below, 0.0)
    assert [walls.of(s, 0.0) for s in (above, below, above)] == [held] * 3
    assert walls.of(walls_at(5 * STEP_DEG), 0.0) == ManhattanFrame(math.radians(5 * STEP_DEG))  # other walls
    walls.forget()
    other = above if wall_aligned_frame(above.coords, VOXEL_M, 0.0) != held else below
    assert walls.of(other, 0.0) == wall_aligned_frame(other.coords, VOXEL_M, 0.0) != held


@pytest.mark.parametrize("change", ["reset", "correct"])
def test_the_frame_of_another_map_is_found_anew(change):
    it = Perceptron(config(), inference=inference())
    for posed in walk(2, 2):
        it.integrate(posed)
    it.perceive()
    it.map._walls._last = held = ManhattanFrame(math.radians(6.0))
    with it.map.perceiving() as (scene, _):
        assert scene.walls is it.map._walls
    if change == "reset":
        it.reset()
    else:
        it.correct_keyframes(it.map.keyframe_poses())
    assert it.map._walls._last is None
    it.perceive()
    assert it.prediction.region.manhattan in (WORLD, it.map._walls._last) != held


def test_network_and_detector_read_the_held_frame():
    it = Perceptron(config(), inference=inference())
    for posed in walk(2, 2):
        it.integrate(posed)
    it.map._walls.of = lambda *_: ManhattanFrame(math.radians(9.0))  # type: ignore[method-assign]
    it.perceive()
    assert it.prediction.region.manhattan == ManhattanFrame(math.radians(9.0))
    with it.map.perceiving() as (scene, _):
        assert scene.manhattan == ManhattanFrame(math.radians(9.0))
