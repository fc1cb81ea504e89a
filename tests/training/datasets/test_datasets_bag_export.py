"""Bags written from recordings and scans come back as the same frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream, Recording
from embodied_perceptron_training.datasets.bag_export import ScanRecording, export_bag
from embodied_perceptron_training.datasets.embodiedscan import EmbodiedScanDataset
from embodied_perceptron_training.homes.building.home import HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, generate
from embodied_perceptron_training.homes.recording import RecordingSpec, render_recording


def frames(recording: Recording) -> list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    stream = PosedFrameStream(recording, SynchronizerConfig(), world_frame="odom")
    return [(p.frame.stamp_ns, p.frame.color, p.frame.depth_m, p.T_world_camera) for p in stream]


def check_same(a: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]], b: list[tuple[int, ...]]) -> None:
    assert len(a) == len(b) > 0
    for (stamp_a, color_a, depth_a, T_a), (stamp_b, color_b, depth_b, T_b) in zip(a, b, strict=True):
        assert stamp_a == stamp_b
        np.testing.assert_array_equal(color_a, color_b)
        np.testing.assert_allclose(depth_a, depth_b, atol=1e-6)
        np.testing.assert_allclose(T_a, T_b, atol=1e-6)


def test_robot_recording_round_trip(tmp_path: Path) -> None:
    render_recording(RecordingSpec(5, 4, 64, 48), tmp_path / "tum")
    source = open_recording(tmp_path / "tum")
    export_bag(source, tmp_path / "bag")
    bag = open_recording(tmp_path / "bag")
    assert bag.cameras == source.cameras
    check_same(frames(source), frames(bag))
    with pytest.raises(FileExistsError):
        export_bag(source, tmp_path / "bag")


def test_scan_round_trip(tmp_path: Path) -> None:
    generate(tmp_path / "set", [30], HomeSampleSpec(views=3, width=64, height=48, home=HomeSpec(1)))
    (scan,) = EmbodiedScanDataset(tmp_path / "set")
    recording = ScanRecording(scan)
    export_bag(recording, tmp_path / "bag")
    got = frames(open_recording(tmp_path / "bag"))
    check_same(frames(recording), got)
    np.testing.assert_allclose(got[1][3], scan.images[1].T_world_camera, atol=1e-6)
