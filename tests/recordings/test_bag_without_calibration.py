"""A bag without camera_info or static transforms becomes the map of the whole one by what the user adds."""

from __future__ import annotations

import pytest
from support.bag_tools import camera_info, image, transform, write_bag
from support.small_recording import INTRINSICS, frames
from typer.testing import CliRunner

from embodied_perceptron.apps.cli import build_app
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.apps.reading_options import SourceOptions, parse_intrinsics, parse_static_tf
from embodied_perceptron.config import SynchronizerConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import invert_transform
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream, RecordingError

GIVEN = "130,130,79.5,59.5"
MOUNT_TEXT = "base_link,optical,0.1,0,0.4,-0.5,0.5,-0.5,0.5"
MOUNT = parse_static_tf(MOUNT_TEXT).T_parent_child


def bag(path, calibrated=True, mounted=True, cameras=("camera",)):
    """The small room with a robot's frames."""
    messages = []
    for stamp, color, depth, T in frames(4):
        base = T @ invert_transform(MOUNT)
        messages.append(("/tf", stamp, transform(stamp, "odom", "base_link", base)))
        for name in cameras:
            messages.append((f"/{name}/color/image_raw", stamp, image(stamp, "optical", color)))
            messages.append((f"/{name}/depth/image_raw", stamp, image(stamp, "optical", depth)))
            if calibrated:
                messages.append((f"/{name}/color/camera_info", stamp, camera_info(stamp, "optical", INTRINSICS)))
    if mounted:
        messages.insert(0, ("/tf_static", messages[0][1], transform(1, "base_link", "optical", MOUNT)))
    return write_bag(path, messages)


def mapped(recording):
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.04, min_hits=1))
    for posed in PosedFrameStream(recording, SynchronizerConfig()):
        volume.integrate(posed)
    return volume.snapshot()


@pytest.mark.parametrize("given", [GIVEN, GIVEN + ",160,120"])
def test_a_bag_that_lacks_both_becomes_the_map_of_the_whole_one(tmp_path, given):
    whole = mapped(open_recording(bag(tmp_path / "whole")))
    options = SourceOptions(intrinsics=given, static_tf=[MOUNT_TEXT]).given()
    bare = mapped(open_recording(bag(tmp_path / "bare", calibrated=False, mounted=False), **options))
    assert len(whole)
    assert (bare.coords == whole.coords).all()
    assert (bare.mean_color == whole.mean_color).all()


def test_without_them_it_says_what_is_missing(tmp_path):
    with pytest.raises(RecordingError, match="no camera_info"):
        open_recording(bag(tmp_path / "a", calibrated=False))
    assert len(mapped(open_recording(bag(tmp_path / "b", mounted=False)))) == 0


def test_what_is_given_counts_before_what_the_bag_has(tmp_path):
    path = bag(tmp_path / "whole")
    whole = mapped(open_recording(path))
    wider = mapped(open_recording(path, **SourceOptions(intrinsics="100,100,79.5,59.5").given()))
    assert wider.coords.shape != whole.coords.shape or (wider.coords != whole.coords).any()


def test_sizes_and_cameras_are_checked(tmp_path):
    other = SourceOptions(intrinsics=GIVEN + ",320,240").given()
    recording = open_recording(bag(tmp_path / "one", calibrated=False), **other)
    stream = PosedFrameStream(recording, SynchronizerConfig())
    assert not list(stream)
    assert stream.stats.dropped
    with pytest.raises(RecordingError, match="intrinsics describe one camera, the bag has left, right"):
        open_recording(bag(tmp_path / "two", cameras=("left", "right")), **other)
    with pytest.raises(RecordingError, match=r"given intrinsics: fx=1\.0 fits no camera"):
        mapped(open_recording(tmp_path / "one", **SourceOptions(intrinsics="1,1,79,59").given()))


@pytest.mark.parametrize("text", ["", "1,2,3", "a,b,c,d", "1,2,3,4,5", "1,2,3,4,5,6,7"])
def test_intrinsics_that_are_none_are_named(text):
    with pytest.raises(CommandError, match="--intrinsics must be fx,fy,cx,cy"):
        parse_intrinsics(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--static-tf must be parent,child,x,y,z,qx,qy,qz,qw, got ''"),
        ("a,b,0,0,0,0,0,0", "must be parent,child"),
        ("a,b,0,0,0,0,0,0,one", "must be parent,child"),
        ("a,b,0,0,0,0,0,0,0", "quaternion"),
        ("a,b,nan,0,0,0,0,0,1", "finite"),
        (",b,0,0,0,0,0,0,1", "--static-tf"),
    ],
)
def test_transforms_that_are_none_are_named(text, words):
    with pytest.raises(CommandError, match=words):
        parse_static_tf(text)


def test_folders_have_their_own(tmp_path):
    from support.small_recording import write_recording

    folder = write_recording(tmp_path / "tum", 2)
    with pytest.raises(RecordingError, match="its calibration is in its own files"):
        open_recording(folder, **SourceOptions(intrinsics=GIVEN).given())


def test_the_command_takes_them(tmp_path):
    path = bag(tmp_path / "bare", calibrated=False, mounted=False)
    arguments = ["replay", path, "--out", tmp_path / "out", "--intrinsics", GIVEN, "--static-tf", MOUNT_TEXT]
    result = CliRunner().invoke(build_app([]), [*map(str, arguments), "--weights", "none"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "map.safetensors").exists()
