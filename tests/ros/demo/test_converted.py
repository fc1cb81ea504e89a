"""A recording of another convention is written anew before the demonstration plays it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.small_recording import INTRINSICS, frames

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.recordings.tum import TumWriter

simulated = pytest.importorskip("embodied_perceptron_ros.demo.simulated")


def test_what_is_played_has_the_poses_of_ros(tmp_path: Path) -> None:
    with TumWriter(tmp_path / "r", INTRINSICS) as writer:
        for stamp, color, depth_m, T in frames(3):
            writer.add(stamp, color, depth_m, T @ np.diag([1.0, -1.0, -1.0, 1.0]))
    bag = simulated.converted(tmp_path / "r", tmp_path / "out", {"poses": "opengl", "pose_scale": 1.0})
    posed = list(PosedFrameStream(open_recording(bag), SynchronizerConfig()))
    assert len(posed) == 3
    for found, (_, _, _, T) in zip(posed, frames(3), strict=True):
        np.testing.assert_allclose(found.T_world_camera, T, atol=1e-6)
    with pytest.raises(simulated.SimulationError, match="poses must be of"):
        simulated.converted(tmp_path / "r", tmp_path / "out", {"poses": "unity"})
