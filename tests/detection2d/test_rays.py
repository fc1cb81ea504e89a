"""Surface that the camera sees, against slow twins."""

from __future__ import annotations

import numpy as np
import pytest
from support.lift_world import K, photograph
from support.online_world import look_at
from support.scene_builder import snapshot_of

from embodied_perceptron.detection2d.lifting import VoxelIndex, see_surface
from embodied_perceptron.geometry.transforms import Intrinsics, invert_transform, pack_keys, transform_points

SIZE_M = 0.05
T = look_at(np.array([-1.2, 0.2, 1.5]), [0.6, 0.0, 0.4])


def random_voxels(seed: int, count: int = 150):
    rng = np.random.default_rng(seed)
    return np.unique(rng.integers(-20, 20, (count, 3)), axis=0)


def index_of(coords):
    return VoxelIndex(snapshot_of((coords + 0.5) * SIZE_M, voxel_size_m=SIZE_M))


@pytest.mark.parametrize("seed", range(3))
def test_depth_of_the_map_is_as_its_slow_twin(seed):
    index = index_of(random_voxels(seed))
    small = Intrinsics(20.0, 22.0, 15.0, 11.0, 32, 24)
    pose = look_at(np.array([-1.2, 0.2, 0.6]), [0.0, 0.0, 0.0])
    points = transform_points(invert_transform(pose), index.snapshot.mean_point_m.astype(np.float64))
    slow = np.zeros((24, 32))
    for x, y, z in points[np.argsort(-points[:, 2])]:
        if 0.4 <= z <= 2.0:
            u, v = x / z * 20.0 + 15.0, y / z * 22.0 + 11.0
            columns = np.abs(np.arange(32) - u) <= SIZE_M / 2 * 20.0 / z
            rows = np.abs(np.arange(24) - v) <= SIZE_M / 2 * 22.0 / z
            slow[np.ix_(rows, columns)] = z
    everywhere = np.ones((24, 32), bool)
    np.testing.assert_allclose(index.depth_m(small, pose, everywhere, (0.4, 2.0)), slow, atol=1e-6)
    some = np.random.default_rng(seed).random((24, 32)) < 0.05
    np.testing.assert_allclose(index.depth_m(small, pose, some, (0.4, 2.0))[some], slow[some], atol=1e-6)
    assert 0 < np.count_nonzero(slow) < slow.size


@pytest.mark.parametrize("seed", range(3))
def test_near_is_as_its_slow_twin(seed):
    coords = random_voxels(seed)
    points = np.random.default_rng(seed).uniform(-1.3, 1.3, (300, 3))
    cell = np.floor(points / SIZE_M)
    slow = [(np.abs(coords - c).max(axis=1) <= 1).any() for c in cell]
    assert index_of(coords).near(points).tolist() == slow
    assert 0 < sum(slow) < 300


def test_keys_are_those_of_the_library():
    snapshot = snapshot_of((random_voxels(1) + 0.5) * SIZE_M, voxel_size_m=SIZE_M)
    import torch

    assert VoxelIndex(snapshot).keys.tolist() == pack_keys(torch.from_numpy(snapshot.coords)).tolist()


def test_an_empty_map_hits_nothing():
    index = VoxelIndex(snapshot_of(np.zeros((0, 3)), voxel_size_m=SIZE_M))
    assert not index.depth_m(K, T, np.ones((K.height, K.width), bool), (0.1, 5.0)).any()
    assert not index.near(np.zeros((2, 3))).any()


def pixels(step=4):
    u, v = np.meshgrid(np.arange(0, K.width, step), np.arange(0, K.height, step))
    return np.stack([u.ravel(), v.ravel()], axis=1)


def test_points_lie_on_the_surface_and_steps_are_left_out():
    posed, shown = photograph(T, 1)
    samples = see_surface(posed.frame.depth_m, K, T, pixels())
    uv = pixels()[samples.row]
    table = shown[uv[:, 1], uv[:, 0]] == 0
    # of the camera's side of the table one sees its top, of legs and edges what is below
    apart = np.abs(samples.points_m[table, 2] - 0.74)
    assert np.count_nonzero(apart < 1e-4) > 300
    within = np.abs(samples.points_m[table, :2] - [0.6, 0.0]) <= [0.4001, 0.7001]
    assert within.all()
    # no sample lies beside a jump of depth to something else
    depth = posed.frame.depth_m
    for (u, v), z in zip(uv, samples.depth_m, strict=True):
        cross = [
            (v, u),
            (max(v - 2, 0), u),
            (min(v + 2, K.height - 1), u),
            (v, max(u - 2, 0)),
            (v, min(u + 2, K.width - 1)),
        ]
        jumps = [abs(depth[at] - z) for at in cross if shown[at] != shown[v, u]]
        assert max(jumps, default=0.0) <= 2 * (0.02 + 0.025 * z)
    assert len(samples) < len(pixels())


@pytest.mark.parametrize("drop", [0.002, 0.004])
def test_a_plane_seen_flatly_has_no_edges(drop):
    depth = np.broadcast_to((1.0 / (0.3 + drop * np.arange(K.height)))[:, None], (K.height, K.width)).astype(np.float32)
    uv = pixels(8)
    near = (depth[uv[:, 1], uv[:, 0]] > 0.3) & (uv[:, 1] > 1) & (uv[:, 1] < K.height - 2)
    assert len(see_surface(np.ascontiguousarray(depth), K, T, uv[near])) == near.sum()


def test_holes_are_filled_by_the_map_and_free_rays_are_not():
    posed, _ = photograph(T, 1)
    everything = see_surface(posed.frame.depth_m, K, T, pixels(2))
    index = VoxelIndex(snapshot_of(everything.points_m, voxel_size_m=0.04))
    holes = posed.frame.depth_m.copy()
    holes[100:140, 100:200] = 0.0
    holes[140:180, 100:200] = np.inf
    asked = np.array([[u, v] for u in range(110, 190, 8) for v in (110, 120, 130, 150, 170)])
    samples = see_surface(holes, K, T, asked, index.depth_m(K, T, holes == 0, (0.2, 5.0)))
    uv = asked[samples.row]
    assert (uv[:, 1] < 140).all()
    assert len(samples) >= 25  # of 30; rays may slip through the grid of a sampled surface
    truth = posed.frame.depth_m[uv[:, 1], uv[:, 0]]
    assert np.median(np.abs(samples.depth_m - truth)) < 0.05
    assert len(see_surface(holes, K, T, asked)) == 0
