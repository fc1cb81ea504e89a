"""Recordings of other conventions are brought to ROS's while they are read, whatever their format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.bag_tools import camera_info, image, transform, write_bag
from support.small_recording import INTRINSICS, frames

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import invert_transform, make_transform
from embodied_perceptron.recordings.conventions import ConventionError, ConvertedRecording
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.recordings.tum import CameraMount, TumWriter

G = np.diag([1.0, -1.0, -1.0, 1.0])
MOUNT = make_transform(np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]]), np.array([0.1, 0.0, 0.4]))


def write(path: Path, kind: str, count: int = 6) -> Path:
    """The room with inverse poses of a camera with OpenGL's axes, ten times too large."""
    wrong = []
    for stamp, color, depth_m, T in frames(count):
        T = T @ G
        wrong.append((stamp, color, depth_m, invert_transform(make_transform(T[:3, :3], 10 * T[:3, 3]))))
    if kind != "bag":
        mount = {"mount": CameraMount("base", MOUNT)} if kind == "mounted" else {}
        with TumWriter(path, INTRINSICS, **mount) as writer:  # type: ignore[arg-type]
            for each in wrong:
                writer.add(*each)
        return path
    out = [("/tf_static", 0, transform(0, "base", "optical", MOUNT))]
    for stamp, color, depth_m, T in wrong:
        out += [
            ("/tf", stamp, transform(stamp, "odom", "base", T @ invert_transform(MOUNT))),
            ("/c/color/image_raw", stamp + 1, image(stamp, "optical", color)),
            ("/c/depth/image_raw", stamp + 2, image(stamp, "optical", depth_m)),
            ("/c/color/camera_info", stamp + 3, camera_info(stamp, "optical", INTRINSICS)),
        ]
    return write_bag(path, out)


@pytest.mark.parametrize("late_s", [0.07, -0.07])
@pytest.mark.parametrize("kind", ["folder", "bag"])
def test_stamps_of_poses_are_moved(tmp_path: Path, kind: str, late_s: float) -> None:
    late_ns = round(late_s * 1e9)
    truth = {stamp: T for stamp, _, _, T in frames(6)}
    path = tmp_path / "r"
    if kind == "folder":
        write_folder(path)
        lines = (path / "groundtruth.txt").read_text().splitlines()
        moved = [
            f"{float(line.split()[0]) + late_s:.9f} {line.split(maxsplit=1)[1]}" for line in lines if line[0] != "#"
        ]
        (path / "groundtruth.txt").write_text("\n".join(moved))
    else:
        out = []
        for stamp, color, depth_m, T in frames(6):
            out += [
                ("/tf", stamp + max(late_ns, 0), transform(stamp + late_ns, "odom", "optical", T)),
                ("/c/color/image_raw", stamp + 1, image(stamp, "optical", color)),
                ("/c/depth/image_raw", stamp + 2, image(stamp, "optical", depth_m)),
                ("/c/color/camera_info", stamp + 3, camera_info(stamp, "optical", INTRINSICS)),
            ]
        write_bag(path, sorted(out, key=lambda m: m[1]))
    stream = PosedFrameStream(open_recording(path, pose_offset=-late_s), SynchronizerConfig())
    posed = list(stream)
    assert stream.stats.dropped == {}
    assert [frame.frame.stamp_ns for frame in posed] == list(truth)
    for frame in posed:
        np.testing.assert_allclose(frame.T_world_camera, truth[frame.frame.stamp_ns], atol=1e-5)


def write_folder(path: Path) -> None:
    with TumWriter(path, INTRINSICS) as writer:
        for each in frames(6):
            writer.add(*each)


@pytest.mark.parametrize("offset", [float("nan"), 11.0, -1e9])
def test_an_offset_beyond_all_clocks_is_refused(tmp_path: Path, offset: float) -> None:
    with pytest.raises(ConventionError, match="pose_offset must be within 10 s"):
        open_recording(tmp_path, pose_offset=offset)


@pytest.mark.parametrize("kind", ["folder", "mounted", "bag"])
def test_poses_are_converted_whatever_the_format(tmp_path: Path, kind: str) -> None:
    recording = open_recording(write(tmp_path / "r", kind), poses="inverse,opengl", pose_scale=0.1)
    assert isinstance(recording, ConvertedRecording)
    assert recording.cameras == recording.original.cameras
    assert len(recording) == 6
    for _ in range(2):  # it can be played again
        stream = PosedFrameStream(recording, SynchronizerConfig())
        posed = list(stream)
        assert stream.stats.dropped == {}
        for found, (stamp, _, _, T) in zip(posed, frames(6), strict=True):
            assert found.frame.stamp_ns == stamp
            np.testing.assert_allclose(found.T_world_camera, T, atol=1e-6)


def test_nothing_to_convert_is_the_reader_itself(tmp_path: Path) -> None:
    assert not isinstance(open_recording(write(tmp_path / "r", "folder"), pose_scale=1.0), ConvertedRecording)
    for scale in (0.0, -2.0, float("nan"), float("inf")):
        with pytest.raises(ConventionError, match="pose_scale must be positive"):
            open_recording(tmp_path / "r", pose_scale=scale)
