"""The volume: fusing, clearing, bounds, keyframes, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from numpy.typing import NDArray
from support.volume_frames import KERNELS, K, posed, random_walk, wall

from embodied_perceptron.config import ConfigError, KeyframeConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.mapping import blocks, host_map
from embodied_perceptron.mapping.volume import FeatureVolume, warm_up
from embodied_perceptron.sensors.frame import PosedFrame


def small_volume(**changes: object) -> FeatureVolume:
    return FeatureVolume(VolumeConfig(**{"max_blocks": 2048, "min_hits": 1, **changes}))  # type: ignore[arg-type]


def test_a_wall_becomes_one_layer_of_voxels() -> None:
    volume = small_volume()
    report = volume.integrate(wall(2.01, 1))
    assert report.fused
    assert report.points == 64 * 48
    assert report.keyframe
    snapshot = volume.snapshot()
    assert len(snapshot) == report.voxels_touched
    assert snapshot.hits.sum() == 64 * 48
    assert set(snapshot.coords[:, 0].tolist()) == {100}
    np.testing.assert_allclose(snapshot.mean_point_m[:, 0], 2.01, atol=2e-5)
    assert (snapshot.mean_color == 128).all()
    assert (snapshot.last_seen_ns == 1).all()


def test_one_point_by_hand() -> None:
    """A pixel at the principal point, 1.51 m ahead of (0.3, 0.05, 1): the point (1.81, 0.05, 1)."""
    k = Intrinsics(40.0, 40.0, 2.0, 1.0, 5, 3)
    depth = np.zeros((3, 5), np.float32)
    depth[1, 2] = 1.51
    color = np.zeros((3, 5, 3), np.uint8)
    color[1, 2] = (10, 20, 30)
    volume = small_volume(voxel_size_m=0.04)
    report = volume.integrate(posed(depth, 77, at=(0.3, 0.05, 1.0), color=color, intrinsics=k))
    assert (report.points, report.voxels_touched, report.points_refused) == (1, 1, 0)
    snapshot = volume.snapshot()
    assert snapshot.coords.tolist() == [[45, 1, 25]]
    np.testing.assert_allclose(snapshot.mean_point_m, [[1.81, 0.05, 1.0]], atol=4e-5)
    assert snapshot.mean_color.tolist() == [[10, 20, 30]]
    assert snapshot.hits.tolist() == [1]
    assert snapshot.evidence.tolist() == [0.875]
    assert snapshot.last_seen_ns.tolist() == [77]
    assert len(volume.snapshot(min_hits=2)) == 0


def test_only_depth_within_the_range_makes_points() -> None:
    volume = small_volume(min_range_m=0.5, max_range_m=2.0, radius_m=2.0)
    depth = np.full((48, 64), np.nan)
    depth[:] = 0.0
    depth[0, :6] = (0.499, 0.5, 2.0, 2.001, np.inf, 0.0)
    assert volume.integrate(posed(depth, 1)).points == 2


@pytest.mark.parametrize("behind", [3.0, np.inf])
def test_what_is_seen_through_vanishes_within_two_seconds_at_5_hz(behind: float) -> None:
    volume = small_volume()
    for i in range(20):
        volume.integrate(wall(1.01, i))
    before = volume.snapshot().coords
    for i in range(20, 30):
        volume.integrate(wall(behind, i))
    left = volume.snapshot().coords
    left = left[left[:, 0] == 50]
    # what is left projects onto the image's border, where the window of pixels is cut: 39.3 pixels per metre
    pixel = np.abs((left[:, 1:] + 0.5) * 0.02 - (0.0, 1.0)) * 40 / 1.01
    assert ((pixel[:, 0] > 29) | (pixel[:, 1] > 21)).all()
    assert len(left) < 0.2 * len(before)


@pytest.mark.parametrize(("hits", "frames", "evidence"), [(1, 2, 0.875), (9, 8, 3.5)])
def test_frames_until_a_voxel_vanishes(hits: int, frames: int, evidence: float) -> None:
    volume = small_volume()
    for i in range(hits):
        volume.integrate(wall(1.01, i))
    assert volume.snapshot().evidence.max() == evidence
    cleared = [volume.integrate(wall(3.0, hits + i)).voxels_cleared for i in range(frames)]
    assert cleared[:-1] == [0] * (frames - 1)
    assert cleared[-1] > 1000


def test_a_near_pixel_protects_what_is_around_it() -> None:
    """Every third pixel tells of something at the voxels' own place: nothing may vanish."""
    volume = small_volume()
    before = volume.integrate(wall(1.01, 0)).voxels_touched
    depth = np.full((48, 64), 3.0)
    depth[::3, ::3] = 1.0
    for i in range(1, 12):
        assert volume.integrate(posed(depth, i)).voxels_cleared == 0
    assert int((volume.snapshot().coords[:, 0] <= 50).sum()) >= before


def test_what_is_never_measured_may_stand_there() -> None:
    """Behind unknown pixels, and where they crowd (a third of a window), nothing vanishes; beside them it does."""
    volume = small_volume()
    volume.integrate(wall(1.01, 0))
    depth = np.full((48, 64), 3.0)
    depth[:, 20:24] = 0.0  # a strip that the sensor never measures: a cable, a table's edge
    for i in range(1, 40):
        volume.integrate(posed(depth, i))
    points = volume.snapshot().mean_point_m
    near = points[np.abs(points[:, 0] - 1.01) < 0.1]  # the camera looks along x; y = -(u - cx) / fx * depth
    u = 31.5 - near[:, 1] / near[:, 0] * K.fx
    inner = (near[:, 2] - near[:, 2].min() > 0.1) & (near[:, 2].max() - near[:, 2] > 0.1) & (u > 3) & (u < 60)
    assert len(u[inner]) > 20
    assert (np.abs(u[inner] - 21.5) < 3.5).all()


@pytest.mark.parametrize(("missing", "frames"), [(0.0, 8), (0.05, 12), (0.1, 20), (0.2, 40)])
def test_dropouts_slow_clearing_down_instead_of_stopping_it(missing: float, frames: int) -> None:
    """Twenty frames are 2 s at 10 Hz."""
    rng = np.random.default_rng(3)
    volume = small_volume()

    def speckled(depth_m: float, i: int) -> PosedFrame:
        depth = np.full((48, 64), depth_m)
        depth[rng.random(depth.shape) < missing] = 0.0
        return posed(depth, i)

    for i in range(9):
        volume.integrate(speckled(1.01, i))
    before = int((volume.snapshot().mean_point_m[:, 0] < 1.5).sum())
    for i in range(9, 9 + frames):
        volume.integrate(speckled(3.0, i))
    points = volume.snapshot().mean_point_m
    left = points[points[:, 0] < 1.5]
    inner = left[(np.abs(left[:, 1] / left[:, 0]) < 0.6) & (np.abs((left[:, 2] - 1.0) / left[:, 0]) < 0.45)]
    assert before > 1000
    assert len(inner) <= 0.01 * before


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_thin_things_and_the_wall_behind_stay_for_a_thousand_frames(missing: float) -> None:
    """A leg two pixels wide and a cable of one before a wall, depth with noise and dropouts."""
    rng = np.random.default_rng(5)
    volume = small_volume(clearing_margin_m=0.05, clearing_margin_per_m2=0.01)
    scene = np.full((48, 64), 3.0)
    scene[:, 20:22] = 1.01
    scene[:, 40] = 1.51
    scene[30:32, :] = np.minimum(scene[30:32, :], 1.21)  # the edge of a board

    def counts() -> list[int]:
        x = volume.snapshot().mean_point_m[:, 0]
        return [int(((x > low) & (x < high)).sum()) for low, high in ((0.9, 1.1), (1.15, 1.3), (1.4, 1.6), (2.8, 3.2))]

    before: list[int] = []
    for i in range(1000):
        depth = scene + rng.normal(0.0, 0.0015, scene.shape) * scene**2
        depth[rng.random(depth.shape) < missing] = 0.0
        volume.integrate(posed(depth, i))
        if i == 19:
            before = counts()
    assert min(before) > 20
    assert all(after >= 0.99 * n for after, n in zip(counts(), before, strict=True))


def over_a_floor(height_m: float = 1.3) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rotation of a camera that looks down a little, and (48, 64) depth of a floor ``height_m`` below it."""
    forward = np.array([1.0, 0.0, -0.35]) / np.hypot(1.0, 0.35)
    right = np.array([0.0, -1.0, 0.0])
    R = np.stack([right, np.cross(forward, right), forward], axis=1)
    u, v = np.meshgrid(np.arange(64), np.arange(48))
    rays = np.stack([(u - K.cx) / K.fx, (v - K.cy) / K.fy, np.ones_like(u, float)], -1) @ R.T
    with np.errstate(divide="ignore"):
        depth = np.where(rays[..., 2] < 0, -height_m / rays[..., 2], 0.0)
    return R, np.where(depth < 4.0, depth, 0.0)


@pytest.mark.parametrize("kernels", KERNELS)
def test_what_stood_on_a_floor_seen_at_a_low_angle_is_cleared(kernels: str) -> None:
    """The pixel below sees the floor decimetres nearer: its depth says nothing of what is above the floor."""
    config = VolumeConfig(voxel_size_m=0.06, clearing_margin_m=0.05, clearing_margin_per_m2=0.01, max_blocks=4096)
    volume = FeatureVolume(config, kernels=kernels)  # type: ignore[arg-type]
    R, floor = over_a_floor()
    rows, columns = np.nonzero((floor > 2.4) & (floor < 3.2))
    thing = floor.copy()
    there = (columns >= 18) & (columns < 46)
    thing[rows[there], columns[there]] *= 1.0 - 0.09 / 1.3  # a board of 9 cm lay there
    rng = np.random.default_rng(2)

    def see(depth: NDArray[np.float64], i: int) -> None:
        noisy = depth + 0.0015 * depth**2 * rng.normal(size=depth.shape)
        noisy[rng.random(depth.shape) < 0.02] = 0.0
        volume.integrate(posed(noisy, i, at=(0.0, 0.0, 1.3), R=R))

    def heights() -> NDArray[np.float64]:
        z: NDArray[np.float64] = (volume.snapshot().coords[:, 2] + 0.5) * 0.06
        return z

    for i in range(8):
        see(thing, i)
    stood = int((np.abs(heights() - 0.09) < 0.01).sum())
    assert stood > 60
    for i in range(8, 60):
        see(floor, i)
    left = int((np.abs(heights() - 0.09) < 0.01).sum())
    print(stood, left)
    assert left < 0.1 * stood
    ground = int((heights() < 0.07).sum())
    for i in range(60, 200):
        see(floor, i)
    assert int((heights() < 0.07).sum()) >= 0.99 * ground > 100


def test_a_floor_and_a_board_on_it_stay_at_a_low_angle() -> None:
    """Three hundred frames of a floor with a low board and a post take nothing away."""
    volume = small_volume(clearing_margin_m=0.05, clearing_margin_per_m2=0.01)
    R, floor = over_a_floor(0.6)
    scene = np.where(floor < 3.0, floor, 0.0)
    scene[30:34, 10:50] *= 1.0 - 0.05 / 0.6  # 5 cm high, nearly seen along its top
    scene[8:40, 30] = 1.2
    rng = np.random.default_rng(4)
    before = None
    for i in range(300):
        depth = scene + 0.0015 * scene**2 * rng.normal(size=scene.shape)
        depth[rng.random(scene.shape) < 0.05] = 0.0
        volume.integrate(posed(depth, i, at=(0.0, 0.0, 0.6), R=R))
        if i == 39:
            before = {tuple(c) for c in volume.snapshot(min_hits=10).coords.tolist()}
    left = {tuple(c) for c in volume.snapshot().coords.tolist()}
    assert before is not None
    assert len(before) > 500
    assert len(before & left) >= 0.99 * len(before)


def test_the_margin_protects_what_lies_close_to_the_surface() -> None:
    volume = small_volume(clearing_margin_m=0.05, clearing_margin_per_m2=0.01)
    volume.integrate(wall(2.01, 0))
    half_diagonal = 0.5 * np.sqrt(3) * 0.02
    limit = 2.01 + 0.05 + 0.01 * 2.01**2 + half_diagonal
    for i in range(1, 4):
        assert volume.integrate(wall(limit - 1e-3, i)).voxels_cleared == 0
    assert sum(volume.integrate(wall(limit + 1e-3, i)).voxels_cleared for i in range(4, 7)) > 1000


def test_clearing_can_be_switched_off() -> None:
    volume = small_volume(clearing=False)
    volume.integrate(wall(1.01, 0))
    assert sum(volume.integrate(wall(3.0, i)).voxels_cleared for i in range(1, 12)) == 0


@pytest.mark.parametrize("depth", [0.0, 0.1])
def test_a_frame_without_usable_depth_is_not_fused(depth: float) -> None:
    volume = small_volume()
    volume.integrate(wall(1.01, 0))
    before = len(volume)
    report = volume.integrate(wall(depth, 1))
    assert not report.fused
    assert "min_range_m=0.2" in report.reason
    assert (len(volume), volume.statistics().frames_fused) == (before, 1)


def test_frames_must_be_newer_per_camera() -> None:
    volume = small_volume()
    volume.integrate(wall(1.0, 100))
    before = volume.snapshot()
    for stamp in (100, 99):
        with pytest.raises(ValueError, match=rf"'front'.*stamp_ns={stamp} .*stamp_ns=100"):
            volume.integrate(wall(1.0, stamp))
    np.testing.assert_array_equal(volume.snapshot().hits, before.hits)
    assert volume.integrate(wall(1.0, 50, camera="rear")).fused
    volume.forget_stamps()
    assert volume.integrate(wall(1.0, 7)).fused


def test_last_seen_never_goes_back() -> None:
    volume = small_volume()
    volume.integrate(wall(1.0, 100))
    volume.integrate(wall(1.0, 50, camera="rear"))
    assert (volume.snapshot().last_seen_ns == 100).all()


def test_blocks_out_of_radius_are_evicted_and_reported() -> None:
    volume = small_volume(max_range_m=3.0, radius_m=4.0)
    first = volume.integrate(wall(2.0, 0))
    assert first.blocks_evicted == {"radius": 0, "budget": 0}
    blocks = volume.statistics().blocks
    report = volume.integrate(wall(2.0, 1, x=50.0))
    assert report.blocks_evicted == {"radius": blocks, "budget": 0}
    assert volume.statistics().blocks_evicted == {"radius": blocks, "budget": 0}
    assert volume.snapshot().mean_point_m[:, 0].min() > 51


def test_the_budget_keeps_the_nearest_blocks_and_reports_the_rest() -> None:
    volume = small_volume(max_blocks=64, radius_m=20.0, voxel_size_m=0.05)
    volume.integrate(wall(4.0, 0))
    far = volume.snapshot()
    assert volume.statistics().blocks == 64
    report = volume.integrate(wall(1.0, 1))
    assert report.points_refused == 0
    assert report.blocks_evicted["budget"] > 0
    assert volume.statistics().blocks <= 64
    near = volume.snapshot()
    assert int((near.coords[:, 0] == 20).sum()) == report.voxels_touched
    assert 0 < int((near.coords[:, 0] == 80).sum()) < len(far)
    # and the other way round: what is further than everything stored is refused, by number
    refusal = volume.integrate(wall(4.5, 2))
    assert refusal.points_refused > 0


def test_memory_stays_bounded_on_a_long_drive() -> None:
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.05, max_range_m=3.0, radius_m=3.0, max_blocks=512))
    used = []
    for i in range(120):
        volume.integrate(wall(2.0, i * 100_000_000, x=0.5 * i))
        used.append(volume.statistics().memory_bytes - volume.keyframes.nbytes)
    assert max(used[60:]) == used[30]
    assert len(volume.keyframes) == 50
    assert volume.statistics().keyframes_dropped == 10


def test_snapshots_are_sorted_copies() -> None:
    volume = small_volume()
    for frame in random_walk(2, 5):
        volume.integrate(frame)
    snapshot = volume.snapshot()
    assert snapshot.coords.tolist() == sorted(snapshot.coords.tolist())
    kept = snapshot.hits.copy()
    volume.reset()
    volume.integrate(wall(1.0, 0))
    np.testing.assert_array_equal(snapshot.hits, kept)


def test_an_empty_volume_answers() -> None:
    volume = small_volume()
    assert len(volume) == len(volume.snapshot()) == 0
    assert volume.clear_box(np.array([0, 0, 0, 1, 1, 1, 0, 0, 0.0])) == 0
    assert volume.statistics().blocks == 0


@pytest.mark.parametrize(
    "box", [np.zeros(7), np.full(9, np.nan), np.array([0, 0, 0, -1.0, 1, 1, 0, 0, 0]), np.zeros((2, 9))]
)
def test_bad_boxes_are_refused(box: np.ndarray) -> None:
    with pytest.raises(ValueError, match="box"):
        small_volume().clear_box(box)


def test_keyframes_follow_motion() -> None:
    config = KeyframeConfig(translation_m=0.25, rotation_rad=0.35, min_interval_s=0.2, max_count=3)
    volume = FeatureVolume(VolumeConfig(max_blocks=4096), config)
    taken = [volume.integrate(wall(1.0, i * 100_000_000, x=0.1 * i)).keyframe for i in range(13)]
    assert [i for i, k in enumerate(taken) if k] == [0, 3, 6, 9, 12]
    assert [k.id for k in volume.keyframes] == [2, 3, 4]
    assert volume.keyframes.dropped == 2
    assert volume.statistics().keyframes == 3


def test_keyframes_wait_for_the_interval_and_count_per_camera() -> None:
    config = KeyframeConfig(translation_m=0.1, min_interval_s=1.0, max_count=9)
    volume = FeatureVolume(VolumeConfig(max_blocks=4096), config)
    assert volume.integrate(wall(1.0, 0)).keyframe
    assert not volume.integrate(wall(1.0, 900_000_000, x=0.5)).keyframe
    assert volume.integrate(wall(1.0, 900_000_000, x=0.5, camera="rear")).keyframe
    assert volume.integrate(wall(1.0, 1_000_000_000, x=0.5)).keyframe


def test_keyframes_follow_rotation() -> None:
    volume = FeatureVolume(VolumeConfig(max_blocks=4096), KeyframeConfig(rotation_rad=0.35, min_interval_s=0.0))
    taken = []
    for i in range(5):
        a = 0.1 * i
        turned = wall(1.0, i).T_world_camera[:3, :3] @ np.array(
            [[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]]
        )
        taken.append(volume.integrate(posed(np.full((48, 64), 1.0), i, R=turned)).keyframe)
    assert taken == [True, False, False, False, True]


def test_keyframes_are_copies() -> None:
    volume = small_volume()
    frame = wall(1.0, 0)
    volume.integrate(frame)
    frame.frame.depth_m[:] = 9.0
    (keyframe,) = volume.keyframes
    assert (keyframe.frame.depth_m == 1.0).all()


def test_numba_kernels_need_the_cpu() -> None:
    with pytest.raises(ConfigError, match="meta"):
        FeatureVolume(VolumeConfig(device="meta"), kernels="numba")


@pytest.mark.slow
def test_an_8k_image() -> None:
    k = Intrinsics(4000.0, 4000.0, 3839.5, 2159.5, 7680, 4320)
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.05, max_blocks=4096))
    report = volume.integrate(wall(2.01, 0, intrinsics=k))
    assert report.points == 7680 * 4320
    assert report.voxels_touched == len(volume)
    assert (volume.snapshot().mean_color == 128).all()
    volume.integrate(wall(4.0, 1, intrinsics=k))
    assert volume.snapshot().evidence.min() == 0.375  # seen through once


def test_kernels_compile_once_whatever_comes() -> None:
    """A kernel that compiles for another kind of argument would stop a live robot for seconds."""
    warm_up()
    dispatchers = [f for m in (host_map, blocks) for f in vars(m).values() if isinstance(f, Dispatcher)]
    used = [f for f in dispatchers if f.signatures]
    assert len(used) > 12
    before = {f: list(f.signatures) for f in dispatchers}

    volume = FeatureVolume(VolumeConfig(max_blocks=64, voxel_size_m=0.05, max_range_m=4.0, radius_m=4.0))
    for frame in random_walk(3, 6):
        volume.integrate(frame)
    depth = np.asfortranarray(np.full((48, 64), 1.0, np.float32))
    depth.flags.writeable = False
    volume.integrate(posed(depth, 10**12))
    volume.snapshot()
    volume.as_sparse_tensor(3)
    volume.clear_box(np.array([1.0, 0, 1.0, 0.4, 0.4, 0.4, 0.1, 0.2, 0.3]))
    volume.reset()
    volume.integrate(wall(1.0, 0))
    assert {f: list(f.signatures) for f in dispatchers} == before
    for entry in (
        host_map.accumulate_rows,
        host_map.merge_rows,
        host_map.window_evidence,
        host_map.clear_blocks,
    ):
        assert len(entry.signatures) == 1


def test_a_box_that_moved_away_vanishes() -> None:
    """A box stands in front of a wall, at 10 Hz, then stands elsewhere: two seconds later its old place is free."""
    rng = np.random.default_rng(0)
    volume = small_volume(voxel_size_m=0.04)

    def scene(left: int, stamp: int) -> PosedFrame:
        depth = np.full((48, 64), 2.5)
        depth[14:34, left : left + 12] = 1.5
        return posed(depth * (1 + 0.003 * rng.normal(size=depth.shape)), stamp)

    for i in range(20):
        volume.integrate(scene(8, i))
    for i in range(20, 40):
        volume.integrate(scene(40, i))
    near = volume.snapshot().mean_point_m
    near = near[near[:, 0] < 2.0]
    assert len(near) > 50
    assert (near[:, 1] < 0).all()  # the right half of the image; the old box was in the left one


def test_cameras_of_different_sizes_share_a_map() -> None:
    volume = small_volume()
    other = Intrinsics(30.0, 30.0, 15.5, 11.5, 32, 24)
    first = volume.integrate(wall(1.01, 0))
    for i in range(1, 4):
        volume.integrate(wall(1.01, i))
        volume.integrate(wall(1.01, i, camera="small", intrinsics=other))
    assert (volume.snapshot().coords[:, 0] == 50).all()
    assert len(volume) >= first.voxels_touched
