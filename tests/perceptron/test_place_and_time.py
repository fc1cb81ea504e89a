"""A map far from the world's origin is as good as one near it; nothing in a map is of the future."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import cKDTree

from embodied_perceptron.config import KeyframeConfig, PerceptronConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.scene.map_frame import MapLimitError
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

S = 1_000_000_000
K = Intrinsics(40.0, 40.0, 39.5, 29.5, 80, 60)
UTM = np.array([448_200.0, 5_411_900.0, 200.0])
CONFIG = PerceptronConfig(
    volume=VolumeConfig(voxel_size_m=0.04, max_blocks=4000), keyframes=KeyframeConfig(max_count=5, min_interval_s=0.0)
)
R_LEVEL = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])  # optical: looks along +x, level


def view(stamp_ns: int, x_m: float = 0.0, offset_m: object = (0, 0, 0), box: bool = True) -> PosedFrame:
    """A floor, a wall at x = 4 m, and a box of 0.6 m between x = 2 and the floor."""
    u, v = np.meshgrid(np.arange(80), np.arange(60))
    right, down = (u - K.cx) / K.fx, (v - K.cy) / K.fy
    with np.errstate(divide="ignore"):
        floor = np.where(down > 0, 1.2 / down, np.inf)
    depth = np.minimum(floor, 4.0 - x_m)
    z = 2.0 - x_m
    if box:
        on_box = (np.abs(right * z) < 0.3) & (down * z > 0.6) & (down * z < 1.2)
        depth = np.where(on_box, z, depth)
    frame = RgbdFrame(stamp_ns, "front", np.full((60, 80, 3), 120, np.uint8), depth.astype(np.float32), K)
    return PosedFrame(frame, make_transform(R_LEVEL, np.array([x_m, 0.0, 1.2]) + offset_m))


def walk(it: Perceptron, start_ns: int, count: int = 8, offset_m: object = (0, 0, 0), box: bool = True) -> None:
    for i in range(count):
        assert it.integrate(view(start_ns + i * S // 10, 0.1 * i, offset_m, box)).fused


def test_a_map_at_utm_coordinates_is_the_map_at_the_origin() -> None:
    near, far = Perceptron(CONFIG), Perceptron(CONFIG)
    for it, offset in ((near, np.zeros(3)), (far, UTM)):
        walk(it, 100 * S, offset_m=offset)
        it.perceive()
    a, b = near.perceive(), far.perceive()
    np.testing.assert_array_equal(b.T_world_map, make_transform(np.eye(3), UTM))
    np.testing.assert_array_equal(a.T_world_map, np.eye(4))
    np.testing.assert_array_equal(a.voxels.coords, b.voxels.coords)
    np.testing.assert_allclose(b.voxels.mean_point_m, a.voxels.mean_point_m, atol=1e-4)
    assert len(a.objects) >= 1
    for x, y in zip(a.objects, b.objects, strict=True):
        np.testing.assert_allclose(y.box, x.box, atol=1e-4)
    poses = far.keyframe_poses()
    np.testing.assert_allclose(poses["front", 100 * S][:3, 3], UTM + np.array([0, 0, 1.2]), atol=1e-9)
    newest = far.newest_frame
    assert newest is not None
    np.testing.assert_allclose(newest.T_world_camera[:3, 3], UTM + np.array([0.7, 0, 1.2]), atol=1e-9)


def test_corrections_and_files_of_a_far_map(tmp_path: Path) -> None:
    near, far = Perceptron(CONFIG), Perceptron(CONFIG)
    shift = make_transform(np.eye(3), np.array([0.4, 0.2, 0.0]))
    for it, offset in ((near, np.zeros(3)), (far, UTM)):
        walk(it, 100 * S, offset_m=offset)
        it.perceive()
        done = it.correct_keyframes({**{n: shift @ T for n, T in it.keyframe_poses().items()}, ("front", 1): np.eye(4)})
        assert done.unknown == (("front", 1),)
    np.testing.assert_array_equal(near.perceive().voxels.coords, far.perceive().voxels.coords)
    far.save(tmp_path / "far.map")
    again = Perceptron(CONFIG)
    again.load(tmp_path / "far.map")
    np.testing.assert_array_equal(again.T_world_map[:3, 3], UTM)
    assert again.integrate(view(200 * S, 0.3, UTM + np.array([0.4, 0.2, 0.0]))).fused
    cells = again.perceive().voxels
    assert np.abs(cells.mean_point_m).max() < 20.0
    again.reset()
    np.testing.assert_array_equal(again.T_world_map, np.eye(4))


def test_too_far_from_the_map_is_an_error_that_names_the_cause() -> None:
    it = Perceptron(CONFIG)
    walk(it, 100 * S)
    before = it.statistics()
    with pytest.raises(MapLimitError, match="9000 m along an axis from the map's origin"):
        it.integrate(view(200 * S, offset_m=(9000.0, 0, 0)))
    assert it.statistics() == before
    assert it.integrate(view(200 * S)).fused


@pytest.mark.parametrize("to_ns", [1 * S, 99 * S, 5000 * S])
def test_after_a_time_jump_an_object_that_is_gone_expires_as_before(to_ns: int) -> None:
    """Stamps of the future kept it confirmed until the clock had caught up."""
    it = Perceptron(CONFIG)
    for i in range(10):
        it.integrate(view(100 * S + i * S // 10))
        it.perceive()
    (thing,) = it.objects
    it.forget_stamps()
    for i in range(25):
        it.integrate(view(to_ns + i * S // 10, box=False))
        seen = it.perceive()
        assert seen.stamp_ns == to_ns + i * S // 10
        assert seen.source is not None
        assert seen.source.frame.stamp_ns == seen.stamp_ns
    assert thing.id not in [o.id for o in it.objects]


@pytest.mark.parametrize("jump", [False, True])
def test_a_correction_after_a_time_jump_erases_nothing(jump: bool) -> None:
    """What was seen before the jump is older than the keyframes after it and moves rigidly with the oldest of them."""
    it = Perceptron(CONFIG)
    walk(it, 1000 * S, 8)
    start_ns = 1001 * S
    if jump:
        it.forget_stamps()
        start_ns = S
    for i in range(8):  # looks the other way: only the older part holds the first view
        T = view(0, 0.0).T_world_camera.copy()
        T[:3, :3] = np.diag([-1.0, -1.0, 1.0]) @ T[:3, :3]
        T[0, 3] -= 0.3 * i
        frame = view(start_ns + i * S // 10).frame
        it.integrate(PosedFrame(frame, T))
    before = it.statistics().voxels
    poses = it.keyframe_poses()
    assert all(stamp >= start_ns for _, stamp in poses), "the retained keyframes are all from after it"
    shift = make_transform(np.eye(3), np.array([0.001, 0.0, 0.0]))
    assert it.correct_keyframes({name: shift @ T for name, T in poses.items()}).corrected == len(poses)
    assert it.statistics().voxels > 0.8 * before


def test_a_map_from_a_file_holds_nothing_of_the_future(tmp_path: Path) -> None:
    it = Perceptron(CONFIG)
    for i in range(10):
        it.integrate(view(1000 * S + i * S // 10))
        it.perceive()
    it.save(tmp_path / "a.map")
    again = Perceptron(CONFIG)
    again.load(tmp_path / "a.map")
    (thing,) = again.objects
    for i in range(25):  # a recording of long before
        again.integrate(view(5 * S + i * S // 10, box=False))
        seen = again.perceive()
    assert seen.stamp_ns == 5 * S + 24 * S // 10
    assert thing.id not in [o.id for o in again.objects]
    assert it.keyframe_poses().keys() <= {("front", 1000 * S)}


def test_a_saved_map_where_odometry_begins_elsewhere(tmp_path: Path) -> None:
    """What is seen next continues the old map: nothing doubles, ids stay, and outputs are in the world of today."""
    it = Perceptron(CONFIG)
    walk(it, 100 * S)
    it.perceive()
    before = it.perceive()
    it.save(tmp_path / "home.map")
    c, s = np.cos(1.1), np.sin(1.1)
    T = make_transform(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.array([3.0, -7.0, 0.0]))
    again, same_start = Perceptron(CONFIG), Perceptron(CONFIG)
    again.load(tmp_path / "home.map", T)
    same_start.load(tmp_path / "home.map")
    for i in range(8):
        seen = view(200 * S + i * S // 10, 0.1 * i)
        assert same_start.integrate(seen).fused
        assert again.integrate(PosedFrame(seen.frame, T @ seen.T_world_camera)).fused
    after = again.perceive()
    np.testing.assert_allclose(after.T_world_map, T, atol=1e-12)
    assert {o.id for o in after.objects} == {o.id for o in before.objects}
    for x, y in zip(before.objects, after.objects, strict=True):
        np.testing.assert_allclose(y.box[:3], x.box[:3], atol=0.03)
    away_m, _ = cKDTree(same_start.perceive().voxels.mean_point_m).query(after.voxels.mean_point_m)
    assert away_m.max() < CONFIG.volume.voxel_size_m  # what lies on the border of voxels falls to either side
    newest = again.newest_frame
    assert newest is not None
    np.testing.assert_allclose(newest.T_world_camera, T @ view(0, 0.7).T_world_camera, atol=1e-9)


def test_a_place_that_tilts_leaves_the_map_as_it_is(tmp_path: Path) -> None:
    it = Perceptron(CONFIG)
    walk(it, 100 * S)
    it.save(tmp_path / "home.map")
    before = it.statistics()
    upside = np.diag([1.0, -1.0, -1.0, 1.0])
    with pytest.raises(ValueError, match="level"):
        it.load(tmp_path / "home.map", upside)
    assert it.statistics() == before
