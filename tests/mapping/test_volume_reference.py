"""Both kernels give the voxels of the plain reference volume, number by number."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from support.reference_volume import ReferenceVolume
from support.volume_frames import KERNELS, assert_same_voxels, needs_warp, posed, random_walk, wall

from embodied_perceptron.config import ConfigError, KeyframeConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.mapping import spill as spill_module
from embodied_perceptron.mapping import voxels
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

Kernels = Literal["numba", "warp"]
both = pytest.mark.parametrize("kernels", KERNELS)

CONFIGS = {
    "plain": VolumeConfig(voxel_size_m=0.04, max_blocks=4096),
    "radius": VolumeConfig(voxel_size_m=0.03, max_range_m=2.5, radius_m=2.5, max_blocks=4096),
    "budget": VolumeConfig(voxel_size_m=0.03, max_blocks=64),
    "wide clearing": VolumeConfig(
        voxel_size_m=0.1, clearing_margin_m=0.0, clearing_margin_per_m2=0.0, clearing_window_rad=0.1, max_blocks=4096
    ),
    "no clearing": VolumeConfig(voxel_size_m=0.05, clearing=False, max_blocks=4096, min_range_m=0.0),
}


def assert_equal(volume: FeatureVolume, reference: ReferenceVolume) -> None:
    s = volume.config.voxel_size_m
    snapshot = volume.snapshot(min_hits=1)
    expected = sorted(reference.voxels)
    assert snapshot.coords.tolist() == [list(c) for c in expected]
    assert len(volume) == len(expected)
    assert volume.statistics().blocks == len(reference.blocks())
    if not expected:
        return
    v = [reference.voxels[c] for c in expected]
    assert snapshot.hits.tolist() == [a.hits for a in v]
    assert snapshot.evidence.tolist() == [a.evidence for a in v]
    assert snapshot.last_seen_ns.tolist() == [a.last_seen_ns for a in v]
    place = np.array([[(o / a.hits + 0.5) / 1024 for o in a.offset] for a in v])
    np.testing.assert_allclose(snapshot.mean_point_m, (np.array(expected) + place) * s, rtol=1e-6, atol=1e-6)
    colors = [[int(c / a.hits + 0.5) for c in a.color] for a in v]
    assert snapshot.mean_color.tolist() == colors


def integrate_both(volume: FeatureVolume, reference: ReferenceVolume, frame: PosedFrame) -> None:
    report, expected = volume.integrate(frame), reference.integrate(frame)
    assert {
        "points": report.points,
        "touched": report.voxels_touched,
        "cleared": report.voxels_cleared,
        "radius": report.blocks_evicted.get("radius", 0),
        "budget": report.blocks_evicted.get("budget", 0),
        "refused": report.points_refused,
    } == expected


@both
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_frames(kernels: Kernels, name: str, seed: int) -> None:
    volume, reference = FeatureVolume(CONFIGS[name], kernels=kernels), ReferenceVolume(CONFIGS[name])
    for i, frame in enumerate(random_walk(seed, 14)):
        integrate_both(volume, reference, frame)
        if i % 4 == 3:
            assert_equal(volume, reference)
    assert_equal(volume, reference)


@pytest.mark.parametrize(
    ("name", "happens"),
    [("plain", "voxels_cleared"), ("radius", "radius"), ("budget", "budget"), ("budget", "points_refused")],
)
def test_the_random_frames_reach_every_rule(name: str, happens: str) -> None:
    """Otherwise the comparison above would prove nothing about it."""
    volume = FeatureVolume(CONFIGS[name])
    for frame in random_walk(1, 14):
        volume.integrate(frame)
    s = volume.statistics()
    counts = {**s.blocks_evicted, "voxels_cleared": s.voxels_cleared, "points_refused": s.points_refused}
    assert counts[happens] > 0


@both
def test_clear_box_and_reset(kernels: Kernels) -> None:
    volume, reference = FeatureVolume(CONFIGS["plain"], kernels=kernels), ReferenceVolume(CONFIGS["plain"])
    rng = np.random.default_rng(5)
    removed_in_all = 0
    for frame in random_walk(7, 8):
        integrate_both(volume, reference, frame)
        middle = np.array(list(reference.voxels))[len(reference.voxels) // 2] * 0.04
        angles = rng.uniform(-np.pi, np.pi, 3)
        box = np.concatenate([middle, rng.uniform(0.2, 1.5, 3), angles])
        (ca, cb, cg), (sa, sb, sg) = np.cos(angles), np.sin(angles)
        R = (
            np.array([[ca, -sa, 0], [sa, ca, 0], [0, 0, 1]])
            @ np.array([[1, 0, 0], [0, cb, -sb], [0, sb, cb]])
            @ np.array([[cg, 0, sg], [0, 1, 0], [-sg, 0, cg]])
        )
        inside = [
            c for c in reference.voxels if (np.abs(R.T @ ((np.array(c) + 0.5) * 0.04 - middle)) <= box[3:6] / 2).all()
        ]
        for c in inside:
            del reference.voxels[c]
        assert volume.clear_box(box) == len(inside)
        removed_in_all += len(inside)
        assert_equal(volume, reference)
    assert removed_in_all > 100
    volume.reset()
    assert_equal(volume, ReferenceVolume(CONFIGS["plain"]))
    assert len(volume.keyframes) == 0
    integrate_both(volume, reference := ReferenceVolume(CONFIGS["plain"]), random_walk(7, 1)[0])
    assert_equal(volume, reference)


@both
def test_a_full_voxel_forgets_slowly(kernels: Kernels) -> None:
    config = VolumeConfig(voxel_size_m=1.0, min_range_m=0.1, max_blocks=64)
    volume, reference = FeatureVolume(config, kernels=kernels), ReferenceVolume(config)
    for i in range(25):
        integrate_both(volume, reference, wall(0.3 + 0.001 * i, i))
    assert_equal(volume, reference)
    assert max(v.hits for v in reference.voxels.values()) <= 65536
    assert 25 * 48 * 64 > 65536


@both
def test_bands_of_a_large_image_change_nothing(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, banded = FeatureVolume(CONFIGS["plain"], kernels=kernels), FeatureVolume(CONFIGS["plain"], kernels=kernels)
    for frame in random_walk(11, 6):
        expected = whole.integrate(frame)
        with monkeypatch.context() as patch:
            patch.setattr(voxels, "BAND_PIXELS", 100)
            report = banded.integrate(frame)
        for name in ("points", "voxels_touched", "voxels_cleared", "blocks_evicted", "points_refused"):
            assert getattr(report, name) == getattr(expected, name)
    a, b = whole.snapshot(1), banded.snapshot(1)
    assert_same_voxels(a, b)


@both
def test_many_blocks_in_one_frame(kernels: Kernels) -> None:
    """More blocks than the scratch of the compiled kernels starts with."""
    rng = np.random.default_rng(0)
    config = VolumeConfig(voxel_size_m=0.01, max_range_m=9.0, max_blocks=20_000)
    k = Intrinsics(60.0, 60.0, 49.5, 39.5, 100, 80)
    volume, reference = FeatureVolume(config, kernels=kernels), ReferenceVolume(config)
    integrate_both(volume, reference, posed(rng.uniform(0.3, 9.0, (80, 100)), 1, intrinsics=k))
    assert len(reference.blocks()) > 4096
    assert_equal(volume, reference)


@both
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (2, 2), (3, 3)])
def test_tiny_images(kernels: Kernels, shape: tuple[int, int]) -> None:
    k = Intrinsics(30.0, 30.0, 0.0, 0.0, shape[1], shape[0])
    volume, reference = FeatureVolume(CONFIGS["plain"], kernels=kernels), ReferenceVolume(CONFIGS["plain"])
    for i, depth in enumerate([1.013, 1.013, 3.0, np.inf, np.inf, np.inf]):
        # a crooked position: on a voxel's face the two could round to different sides
        integrate_both(volume, reference, posed(np.full(shape, depth), i, at=(0.0123, 0.0234, 1.0345), intrinsics=k))
    assert_equal(volume, reference)


@needs_warp
def test_kernels_agree_on_borders_of_voxels() -> None:
    """Round numbers put points exactly on the faces of voxels, where any difference in rounding would show."""
    rng = np.random.default_rng(3)
    volumes = [FeatureVolume(VolumeConfig(max_blocks=4096), kernels=k) for k in ("numba", "warp")]  # type: ignore[arg-type]
    for i in range(6):
        depth = (rng.integers(0, 40, (48, 64)) * np.float32(0.1)).astype(np.float32)
        for volume in volumes:
            volume.integrate(posed(depth, i, at=(0.1 * i, -0.2, 1.0)))
    a, b = (v.snapshot(1) for v in volumes)
    assert_same_voxels(a, b)


@needs_warp
def test_kernels_agree_on_a_real_recording(kitchen_dir: Path) -> None:
    camera = read_tum_camera(kitchen_dir)
    poses, colors = dict(camera.poses), dict(camera.color_files)
    volumes = [FeatureVolume(VolumeConfig(max_blocks=8192), kernels=k) for k in ("numba", "warp")]  # type: ignore[arg-type]
    for stamp, path in camera.depth_files[:40:8]:
        color, depth = camera.read_color(colors[stamp]), camera.read_depth(path)
        frame = PosedFrame(RgbdFrame(stamp, "kitchen", color, depth, camera.intrinsics), poses[stamp])
        reports = [volume.integrate(frame) for volume in volumes]
        assert replace(reports[0], stage_ms={}) == replace(reports[1], stage_ms={})
    a, b = (v.snapshot(1) for v in volumes)
    assert len(a) > 50_000
    assert_same_voxels(a, b)


@needs_warp
@pytest.mark.parametrize("budget", [64, 170, 4096])
@pytest.mark.parametrize(("first_slots", "spills"), [(16, False), (16_384, False), (16, True)])
def test_random_lives_on_a_device_are_those_on_the_cpu(
    first_slots: int, spills: bool, budget: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Frames, eviction, corrected poses, cleared boxes, files, resets, blocks that leave for the disk and return;
    counts that a device tells late."""
    from embodied_perceptron.mapping import warp_map

    rng, late = np.random.default_rng(budget), np.random.default_rng(1)
    monkeypatch.setattr(spill_module, "_SEGMENT_VOXELS", 400)
    monkeypatch.setattr(warp_map, "_FIRST_SLOTS", first_slots)
    monkeypatch.setattr(warp_map._Counts, "ready", lambda counts: bool(late.random() < 0.3))
    config = VolumeConfig(voxel_size_m=0.04, max_range_m=2.5, radius_m=2.5, max_blocks=budget)
    every = KeyframeConfig(translation_m=1e-6, rotation_rad=1e-6, min_interval_s=0.0, max_count=5)
    spilled = [spill_module.BlockSpill(tmp_path, 2**30) if spills else None for _ in range(2)]
    cpu, device = (
        FeatureVolume(config, every, kernels=k, spill=spill)  # type: ignore[arg-type]
        for k, spill in zip(("numba", "warp"), spilled, strict=True)
    )
    happened: Counter[str] = Counter()
    for i, frame in enumerate(random_walk(budget, 36)):
        reports = [volume.integrate(frame) for volume in (cpu, device)]
        for segment in (s for spill in spilled if spill is not None for s in spill._segments):
            if segment.read is not None:
                segment.read.exception()
        event = (
            "file"
            if i == 24
            else str(rng.choice(["nothing", "box", "poses", "file", "reset"], p=[0.5, 0.2, 0.2, 0.07, 0.03]))
        )
        happened[event] += 1
        if event == "box":
            box = np.concatenate([frame.T_world_camera[:3, 3], rng.uniform(0.5, 3.0, 3), rng.uniform(-1, 1, 3)])
            assert cpu.clear_box(box) == device.clear_box(box)
        elif event == "poses":
            newest = cpu.keyframes.newest
            assert newest is not None
            T = newest.T_world_camera.copy()
            T[:3, 3] += rng.normal(0, 0.05, 3)
            for volume in (cpu, device):
                volume.correct_keyframes({(newest.frame.camera, newest.frame.stamp_ns): T})
        elif event == "file":
            device.save(tmp_path / "map")
            for volume in (cpu, device):
                volume.load(tmp_path / "map")
        elif event == "reset":
            for volume in (cpu, device):
                volume.reset()
        if event in ("nothing", "box"):
            assert replace(reports[0], stage_ms={}) == replace(reports[1], stage_ms={}), i
            happened["budget"] += reports[0].blocks_evicted["budget"]
            happened["radius"] += reports[0].blocks_evicted["radius"]
            happened["cleared"] += reports[0].voxels_cleared
        a, b = (volume.snapshot(1) for volume in (cpu, device))
        assert_same_voxels(a, b)
        assert len(cpu) == len(device)
        here, there = cpu.statistics(), device.statistics()
        assert here.blocks == there.blocks
        assert here.blocks_left_behind == there.blocks_left_behind, i
        happened["left"] += there.blocks_left_behind
    assert {"box", "poses", "file", "cleared", "budget" if budget == 64 else "radius"} <= set(+happened)
    assert (happened["left"] > 0) == spills
    assert not device.fault
    for spill in spilled:
        if spill is not None:
            spill.close()


@needs_warp
@pytest.mark.parametrize("budget", [64, 151])
def test_the_nearest_blocks_are_kept_where_distances_are_equal(budget: int) -> None:
    """A camera in the middle of blocks that lie around it in pairs: the smaller key decides."""
    config = VolumeConfig(voxel_size_m=0.015, max_blocks=budget, max_range_m=3.0, radius_m=4.0, clearing=False)
    volumes = [FeatureVolume(config, kernels=k) for k in ("numba", "warp")]  # type: ignore[arg-type]
    for i, z in enumerate((2.4, 2.8, 2.4)):
        reports = [volume.integrate(wall(z, i)) for volume in volumes]
        assert replace(reports[0], stage_ms={}) == replace(reports[1], stage_ms={})
        assert_same_voxels(*(volume.snapshot(1) for volume in volumes))
    assert reports[0].points_refused > 0


@needs_warp
@pytest.mark.parametrize("range_m", [1.0, 5.0, 1e12])
def test_no_frame_touches_more_blocks_than_its_bound(range_m: float) -> None:
    from embodied_perceptron.mapping.warp_map import most_blocks

    rng = np.random.default_rng(int(range_m) % 97)
    config = VolumeConfig(voxel_size_m=0.02, max_range_m=range_m, radius_m=2 * range_m, max_blocks=8192)
    volume = FeatureVolume(config)
    frame = posed(rng.uniform(0.3, min(range_m, 6.0), (48, 64)).astype(np.float32), 0, at=(0.01, 0.02, 1.0))
    volume.integrate(frame)
    bound = most_blocks(voxels.FrameView.of(frame, 0.02), volume._rule, 0.16)
    assert volume.statistics().blocks <= bound
    assert range_m > 1.0 or bound < 2000


@needs_warp
def test_points_beyond_the_keys_are_refused_by_number() -> None:
    volumes = [FeatureVolume(VolumeConfig(max_blocks=64), kernels=k) for k in ("numba", "warp")]  # type: ignore[arg-type]
    for volume in volumes:
        for i, far in enumerate([3e4, 1e9, 1e300]):
            report = volume.integrate(posed(np.full((48, 64), 1.0), i, at=(far, 0.0, 0.0)))
            assert (report.fused, report.points, report.points_refused) == (True, 48 * 64, 48 * 64)
        assert len(volume) == 0


def test_a_gpu_equals_the_cpu(gpu: torch.device, tmp_path: Path) -> None:
    config = CONFIGS["budget"]
    here, there = FeatureVolume(replace(config, device="cpu")), FeatureVolume(replace(config, device=str(gpu)))
    assert there.device.type == gpu.type
    for frame in random_walk(4, 14):
        a, b = here.integrate(frame), there.integrate(frame)
        assert (a.voxels_touched, a.voxels_cleared, a.blocks_evicted) == (
            b.voxels_touched,
            b.voxels_cleared,
            b.blocks_evicted,
        )
    x, y = here.snapshot(1), there.snapshot(1)
    assert_same_voxels(x, y)
    assert not there.fault
    a, b = (volume.as_sparse_tensor(2, min_hits=1) for volume in (here, there))
    assert b.feats.device == gpu
    assert torch.equal(a.coords, b.coords.cpu())
    torch.testing.assert_close(b.feats.cpu(), a.feats)
    box = np.array([*x.mean_point_m[len(x) // 2], 1.0, 1.0, 1.0, 0.3, 0.0, 0.0])
    assert here.clear_box(box) == there.clear_box(box) > 0
    for volume in (here, there):
        volume.save(tmp_path / f"{volume.device.type}.map")
    there.load(tmp_path / "cpu.map")
    assert_same_voxels(here.snapshot(1), there.snapshot(1))


def test_unknown_devices_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="warp9"):
        FeatureVolume(VolumeConfig(device="warp9"))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="cuda"):
            FeatureVolume(VolumeConfig(device="cuda"))
