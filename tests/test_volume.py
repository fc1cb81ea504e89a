"""The volume: fusing, clearing, bounds, keyframes."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.config import KeyframeConfig, VolumeConfig
from embodied_perceptron.frame import PosedFrame, RgbdFrame
from embodied_perceptron.fusion.volume import FeatureVolume
from embodied_perceptron.geometry import Intrinsics

K = Intrinsics(40.0, 40.0, 31.5, 23.5, 64, 48)
# looks along world x: optical x = -y, optical y = -z, optical z = x
R_WORLD_CAMERA = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


def wall(distance_m: float, stamp_ns: int, x: float = 0.0, camera: str = "front") -> PosedFrame:
    """A grey wall at ``distance_m`` before a camera at (x, 0, 1)."""
    T = np.eye(4)
    T[:3, :3] = R_WORLD_CAMERA
    T[:3, 3] = (x, 0.0, 1.0)
    depth = np.full((48, 64), distance_m, np.float32)
    return PosedFrame(RgbdFrame(stamp_ns, camera, np.full((48, 64, 3), 128, np.uint8), depth, K), T)


def test_a_wall_becomes_one_layer_of_voxels() -> None:
    volume = FeatureVolume(VolumeConfig(max_blocks=2048, min_hits=1))
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


@pytest.mark.parametrize("behind", [3.0, np.inf])
def test_what_is_seen_through_vanishes_within_two_seconds_at_5_hz(behind: float) -> None:
    volume = FeatureVolume(VolumeConfig(max_blocks=2048, min_hits=1))
    for i in range(20):
        volume.integrate(wall(1.01, i))
    near = int((volume.snapshot().coords[:, 0] == 50).sum())
    for i in range(20, 30):
        volume.integrate(wall(behind, i))
    left = volume.snapshot()
    rest = left.coords[left.coords[:, 0] == 50]
    assert len(rest) < 0.1 * near  # only the frame of the image, one pixel wide, is not tested
    assert len(volume) == len(left)


def test_unknown_depth_clears_nothing() -> None:
    volume = FeatureVolume(VolumeConfig(max_blocks=2048, min_hits=1))
    volume.integrate(wall(1.01, 0))
    before = volume.snapshot()
    report = volume.integrate(wall(0.0, 1))
    assert not report.fused
    assert "min_range_m" in report.reason
    assert len(volume.snapshot()) == len(before)


def test_frames_must_be_newer_per_camera() -> None:
    volume = FeatureVolume(VolumeConfig(max_blocks=2048))
    volume.integrate(wall(1.0, 100))
    for stamp in (100, 99):
        with pytest.raises(ValueError, match=rf"{stamp}.*100"):
            volume.integrate(wall(1.0, stamp))
    assert volume.integrate(wall(1.0, 50, camera="rear")).fused


def test_keyframes_follow_motion() -> None:
    config = KeyframeConfig(translation_m=0.25, rotation_rad=0.35, min_interval_s=0.2, max_count=3)
    volume = FeatureVolume(VolumeConfig(max_blocks=4096), config)
    taken = [volume.integrate(wall(1.0, i * 100_000_000, x=0.1 * i)).keyframe for i in range(13)]
    assert [i for i, k in enumerate(taken) if k] == [0, 3, 6, 9, 12]
    assert [k.id for k in volume.keyframes] == [2, 3, 4]
    assert volume.keyframes.dropped == 2
