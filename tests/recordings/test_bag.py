"""Bags: the same frames out as went in, topics found by what they carry, damage named."""

from __future__ import annotations

import bz2
import dataclasses
import gc
import random
import re
import struct
import tempfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lz4.frame
import numpy as np
import pytest
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag1 import reader as rosbag1_reader
from rosbags.rosbag2 import CompressionMode, StoragePlugin, storage_mcap
from rosbags.rosbag2 import reader as rosbag2_reader
from rosbags.typesys import Stores, get_typestore
from support.bag_tools import (
    as_ros1,
    camera_info,
    compressed,
    image,
    ros1_store,
    transform,
    write_bag,
    write_ros1_bag,
)

from embodied_perceptron.apps.checks import Severity
from embodied_perceptron.apps.doctor import examine_recording
from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron.recordings import packed_bags
from embodied_perceptron.recordings.bag import (
    CAMERA_INFO,
    COMPRESSED_IMAGE,
    IMAGE,
    BagRecording,
    CameraTopics,
    TopicError,
    TopicSummary,
    detect_cameras,
)
from embodied_perceptron.recordings.image_codec import encode_color_file, encode_depth_file
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream, RecordingError, TransformSample

S = 1_000_000_000
T0 = 1_700_000_000 * S
H, W = 12, 16
INTRINSICS = Intrinsics(20.0, 21.0, 7.5, 5.5, W, H)
OPTICAL = "camera_color_optical_frame"
MOUNT = make_transform(np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]]), np.array([0.1, 0.0, 0.4]))
TOPICS = {
    "color": "/camera/color/image_raw",
    "depth": "/camera/aligned_depth_to_color/image_raw",
    "info": "/camera/color/camera_info",
}


def stamp(i: float) -> int:
    return T0 + int(i * S / 10)


def pixels(i: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(i)
    return rng.integers(0, 256, (H, W, 3), dtype=np.uint8), rng.integers(0, 5000, (H, W)).astype(np.uint16)


def base_pose(i: float) -> np.ndarray:
    return make_transform(np.eye(3), np.array([0.1 * i, 0.0, 0.0]))


def messages(
    frames: int = 5, *, tf_delay_s: float = 0.0, static: bool = True, **changes: Any
) -> list[tuple[str, int, Any]]:
    """map -> odom -> base_link -> optical; images at 10 Hz, transforms between them at 10 Hz."""
    out: list[tuple[str, int, Any]] = []
    if static:
        out.append(("/tf_static", stamp(0) - S, transform(stamp(0) - S, "base_link", OPTICAL, MOUNT)))
    for i in range(frames):
        color, depth = pixels(i)
        out += [
            (TOPICS["color"], stamp(i), image(stamp(i), OPTICAL, color, **changes)),
            (TOPICS["depth"], stamp(i) + 1, image(stamp(i), OPTICAL, depth)),
            (TOPICS["info"], stamp(i) + 2, camera_info(stamp(i), OPTICAL, INTRINSICS)),
        ]
    for i in range(-1, frames + 1):
        t = stamp(i + 0.5)
        logged = t + int(tf_delay_s * S)
        out.append(("/tf", logged, transform(t, "odom", "base_link", base_pose(i + 0.5))))
        out.append(("/tf", logged + 1, transform(t, "map", "odom", base_pose(1))))
    return sorted(out, key=lambda m: m[1])


# --------------------------------------------------------------------------------------------------------------------
# what went in comes out


@pytest.mark.parametrize("storage", list(StoragePlugin))
@pytest.mark.parametrize("open_file", [False, True])
def test_frames_and_interpolated_poses(tmp_path: Path, storage: StoragePlugin, open_file: bool) -> None:
    path = write_bag(tmp_path / "bag", messages(), storage)
    if open_file:
        (path,) = [*path.glob("*.mcap"), *path.glob("*.db3")]
    recording = open_recording(path)
    assert isinstance(recording, BagRecording)
    assert recording.cameras == ("camera",)
    assert recording.camera_frame("camera") == OPTICAL
    assert recording.world_frame == "odom"
    assert len(recording) == 5
    for _ in range(2):  # it can be played again
        stream = PosedFrameStream(recording, SynchronizerConfig())
        frames = list(stream)
        assert stream.stats.dropped == {}
        assert [p.frame.stamp_ns for p in frames] == [stamp(i) for i in range(5)]
        for i, posed in enumerate(frames):
            color, depth = pixels(i)
            np.testing.assert_array_equal(posed.frame.color, color)
            np.testing.assert_allclose(posed.frame.depth_m, depth / 1000.0, atol=1e-6)
            np.testing.assert_allclose(posed.T_world_camera, base_pose(i) @ MOUNT, atol=1e-6)
            assert posed.frame.intrinsics == INTRINSICS


def test_counts_of_messages_that_are_none_are_named(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages())
    metadata = path / "metadata.yaml"
    whole = metadata.read_text()
    for count in ("NaN", "-1", "[]", ".inf"):
        metadata.write_text(re.sub(r"(- message_count: )\d+", rf"\g<1>{count}", whole, count=1))
        with pytest.raises(RecordingError, match=r"the number of messages on /.* must be a whole number"):
            open_recording(path)


def test_another_world_frame(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages())
    recording = BagRecording(path, world_frame="map")
    frames = list(PosedFrameStream(recording, SynchronizerConfig()))
    np.testing.assert_allclose(frames[2].T_world_camera, base_pose(1) @ base_pose(2) @ MOUNT, atol=1e-6)


def test_transforms_recorded_late_are_there_in_time(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages(tf_delay_s=0.8))
    stream = PosedFrameStream(BagRecording(path), SynchronizerConfig(max_pose_wait_s=0.0))
    assert len(list(stream)) == 5


def test_a_long_bag_needs_no_more_history_than_the_tree_keeps(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages(frames=300))
    stream = PosedFrameStream(BagRecording(path), SynchronizerConfig())
    assert len(list(stream)) == 300


def test_compressed_images(tmp_path: Path) -> None:
    out = []
    for topic, logged, message in messages():
        if topic == TOPICS["color"]:
            data = encode_color_file(message.data.reshape(H, W, 3))
            out.append((topic + "/compressed", logged, compressed(logged, OPTICAL, "rgb8; png compressed bgr8", data)))
        elif topic == TOPICS["depth"]:
            data = bytes(12) + encode_depth_file(message.data.view(np.uint16).reshape(H, W))
            name = topic + "/compressedDepth"
            out.append((name, logged, compressed(logged - 1, OPTICAL, "16UC1; compressedDepth png", data)))
        else:
            out.append((topic, logged, message))
    recording = BagRecording(write_bag(tmp_path / "bag", out))
    assert recording.camera_topics("camera").color == TOPICS["color"] + "/compressed"
    frames = list(PosedFrameStream(recording, SynchronizerConfig()))
    assert len(frames) == 5
    color, depth = pixels(3)
    np.testing.assert_array_equal(frames[3].frame.color, color)
    np.testing.assert_allclose(frames[3].frame.depth_m, depth / 1000.0, atol=1e-6)


def test_metric_depth_with_invalid_values(tmp_path: Path) -> None:
    out = []
    for topic, logged, message in messages():
        if topic == TOPICS["depth"]:
            metres = message.data.view(np.uint16).reshape(H, W).astype(np.float32) / 1000
            metres[0, :3] = (np.nan, np.inf, -np.inf)
            out.append((topic, logged, image(logged - 1, OPTICAL, metres)))
        else:
            out.append((topic, logged, message))
    frames = list(PosedFrameStream(BagRecording(write_bag(tmp_path / "bag", out)), SynchronizerConfig()))
    np.testing.assert_array_equal(frames[0].frame.depth_m[0, :3], np.array([0, np.inf, 0], np.float32))


def test_distorted_images_are_rectified(tmp_path: Path) -> None:
    out = [
        (topic, t, camera_info(t - 2, OPTICAL, INTRINSICS, d=np.array([3.0, 0, 0, 0, 0])) if "info" in topic else m)
        for topic, t, m in messages()
    ]
    frames = list(PosedFrameStream(BagRecording(write_bag(tmp_path / "bag", out)), SynchronizerConfig()))
    assert len(frames) == 5
    assert (frames[0].frame.color != pixels(0)[0]).any()


def test_two_cameras(tmp_path: Path) -> None:
    out = []
    for topic, logged, message in messages():
        if topic.startswith("/tf"):
            out.append((topic, logged, message))
            continue
        for camera in ("front", "rear"):
            named = topic.replace("/camera", f"/{camera}")
            if isinstance(getattr(message, "data", None), np.ndarray):
                shaped = (
                    message.data.view(np.uint16).reshape(H, W) if "depth" in topic else message.data.reshape(H, W, 3)
                )
                out.append((named, logged, image(logged - ("depth" in topic), f"{camera}_optical", shaped)))
            else:
                out.append((named, logged, camera_info(logged - 2, f"{camera}_optical", INTRINSICS)))
    for camera in ("front", "rear"):
        out.insert(0, ("/tf_static", stamp(0) - S, transform(0, "base_link", f"{camera}_optical", MOUNT)))
    stream = PosedFrameStream(
        BagRecording(write_bag(tmp_path / "bag", sorted(out, key=lambda m: m[1]))), SynchronizerConfig()
    )
    cameras = [p.frame.camera for p in stream]
    assert (cameras.count("front"), cameras.count("rear")) == (5, 5)
    assert stream.stats.dropped == {}


# --------------------------------------------------------------------------------------------------------------------
# what is missing or damaged


def test_without_a_static_transform_every_frame_says_which_link_is_missing(tmp_path: Path) -> None:
    recording = BagRecording(write_bag(tmp_path / "bag", messages(static=False)))
    stream = PosedFrameStream(recording, SynchronizerConfig(max_pose_wait_s=0.1))
    assert list(stream) == []
    assert stream.stats.dropped == {"no_transform": 5}
    assert f"'{OPTICAL}' is unknown" in stream.take_drops()[0].detail


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("color", r"found no colour images; image topics: /camera/aligned_depth_to_color/image_raw \(16UC1\)"),
        ("depth", r"found no depth images; image topics: /camera/color/image_raw \(rgb8\)"),
        ("info", r"found no camera_info for /camera/color/image_raw; CameraInfo topics: none"),
    ],
)
def test_missing_topics_are_named(tmp_path: Path, missing: str, message: str) -> None:
    kept = [m for m in messages() if m[0] != TOPICS[missing]]
    with pytest.raises(RecordingError, match=message):
        open_recording(write_bag(tmp_path / "bag", kept))


def test_chosen_topics(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages())
    chosen = CameraTopics("eye", TOPICS["color"], TOPICS["depth"], TOPICS["info"])
    recording = BagRecording(path, cameras=[chosen])
    assert [p.frame.camera for p in PosedFrameStream(recording, SynchronizerConfig())] == ["eye"] * 5
    with pytest.raises(RecordingError, match=r"topic /nope \(depth of 'eye'\) is missing; have /camera"):
        BagRecording(path, cameras=[CameraTopics("eye", TOPICS["color"], "/nope", TOPICS["info"])])
    with pytest.raises(RecordingError, match="no camera was given"):
        BagRecording(path, cameras=[])
    with pytest.raises(KeyError, match="unknown camera 'nose'; known: eye"):
        recording.camera_frame("nose")


@pytest.mark.parametrize("storage", list(StoragePlugin))
@pytest.mark.parametrize("keep", [0.95, 0.5, 0.001])
def test_a_bag_cut_short_is_named(tmp_path: Path, storage: StoragePlugin, keep: float) -> None:
    path = write_bag(tmp_path / "bag", messages(frames=40), storage)
    (file,) = [*path.glob("*.mcap"), *path.glob("*.db3")]
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(RecordingError) as caught:
        list(PosedFrameStream(open_recording(path), SynchronizerConfig()))
    assert str(path) in str(caught.value)
    remedy = f"`mcap recover {file}`" if storage is StoragePlugin.MCAP else f"`sqlite3 {file} .recover`"
    assert remedy in str(caught.value)


def test_metadata_that_is_no_metadata(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages())
    (path / "metadata.yaml").write_text("rosbag2_bagfile_information: 3")
    with pytest.raises(RecordingError, match="cannot be opened"):
        open_recording(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": np.zeros(10, np.uint8)}, r"image data is cut short: 10 bytes for 16x12 rgb8"),
        ({"height": 0, "data": np.zeros(0, np.uint8)}, "size must be positive, got 16x0"),
    ],
)
def test_undecodable_images_are_named_or_counted(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    out = [
        (topic, t, image(t, OPTICAL, pixels(2)[0], **changes) if topic == TOPICS["color"] and t == stamp(2) else m)
        for topic, t, m in messages()
    ]
    path = write_bag(tmp_path / "bag", out)
    with pytest.raises(RecordingError, match=message):
        list(PosedFrameStream(BagRecording(path), SynchronizerConfig()))
    stream = PosedFrameStream(BagRecording(path, tolerate_damage=True), SynchronizerConfig())
    assert len(list(stream)) == 4
    assert stream.stats.dropped == {"bad_frame": 1}


def test_an_encoding_that_changes_to_an_unknown_one(tmp_path: Path) -> None:
    out = [
        (topic, t, image(t, OPTICAL, pixels(2)[0], encoding="p010") if topic == TOPICS["color"] and t > T0 else m)
        for topic, t, m in messages()
    ]
    path = write_bag(tmp_path / "bag", out)
    with pytest.raises(RecordingError, match="image encoding 'p010' is not supported"):
        list(PosedFrameStream(BagRecording(path), SynchronizerConfig()))


def test_bad_calibration_and_transforms_are_named_or_counted(tmp_path: Path) -> None:
    bad_info = camera_info(stamp(0), OPTICAL, INTRINSICS, k=np.zeros(9))
    extra = [(TOPICS["info"], stamp(0) + 3, bad_info)]
    path = write_bag(tmp_path / "a", sorted(messages() + extra, key=lambda m: m[1]))
    with pytest.raises(RecordingError, match="k is all zero: the camera is not calibrated"):
        list(BagRecording(path))
    tolerant = BagRecording(path, tolerate_damage=True)
    assert len(list(PosedFrameStream(tolerant, SynchronizerConfig()))) == 5
    assert tolerant.left_out.counts == {TOPICS["info"]: 1}

    bad_tf = [("/tf", stamp(1), transform(stamp(1), "odom", "base_link", base_pose(1), w=3.0))]
    path = write_bag(tmp_path / "b", sorted(messages() + bad_tf, key=lambda m: m[1]))
    with pytest.raises(RecordingError, match=r"transform 'odom' -> 'base_link' .* unit norm"):
        BagRecording(path)
    tolerant = BagRecording(path, tolerate_damage=True)
    assert len(list(PosedFrameStream(tolerant, SynchronizerConfig()))) == 5
    assert tolerant.left_out.counts == {"/tf": 1}


def shifted(messages: list[tuple[str, int, Any]], logged_s: int, stamps_s: int) -> list[tuple[str, int, Any]]:
    for _, _, message in messages:
        for part in getattr(message, "transforms", [message]):
            part.header.stamp.sec += stamps_s
    return [(topic, t + logged_s * S, message) for topic, t, message in messages]


def test_a_recording_that_starts_over_goes_on(tmp_path: Path) -> None:
    """The robot's clock was set back by a minute while it recorded."""
    again = [m for m in shifted(messages(), 100, 0) if m[0] != "/tf_static"]
    path = write_bag(tmp_path / "bag", shifted(messages(), 0, 60) + again)
    stream = PosedFrameStream(BagRecording(path), SynchronizerConfig())
    assert [p.frame.stamp_ns for p in stream] == [stamp(i) + 60 * S for i in range(5)] + [stamp(i) for i in range(5)]
    assert stream.stats.dropped == {}
    assert stream.stats.time_jumps >= 1


# --------------------------------------------------------------------------------------------------------------------
# finding topics


def raw(name: str, encoding: str, frame: str, size: tuple[int, int] = (640, 480)) -> TopicSummary:
    return TopicSummary(name, IMAGE, frame, encoding, size, 100)


def info(name: str, frame: str) -> TopicSummary:
    return TopicSummary(name, CAMERA_INFO, frame)


def test_detects_registered_depth_among_raw_depth_and_infrared() -> None:
    topics = [
        raw("/camera/depth/image_rect_raw", "16UC1", "depth_optical", (848, 480)),
        raw("/camera/infra1/image_rect_raw", "mono8", "depth_optical", (848, 480)),
        raw("/camera/aligned_depth_to_color/image_raw", "16UC1", "color_optical"),
        raw("/camera/color/image_raw", "rgb8", "color_optical"),
        info("/camera/color/camera_info", "color_optical"),
        info("/camera/infra1/camera_info", "depth_optical"),
    ]
    cameras = {c.color: c.depth for c in detect_cameras(topics)}
    assert cameras["/camera/color/image_raw"] == "/camera/aligned_depth_to_color/image_raw"


def test_detects_the_tum_topics_and_prefers_raw_to_compressed() -> None:
    topics = [
        raw("/camera/rgb/image_color", "bgr8", "openni_rgb_optical_frame"),
        TopicSummary("/camera/rgb/image_color/compressed", COMPRESSED_IMAGE, "openni_rgb_optical_frame", "jpeg"),
        raw("/camera/depth/image", "32FC1", "openni_rgb_optical_frame"),
        info("/camera/rgb/camera_info", "openni_rgb_optical_frame"),
        info("/camera/depth/camera_info", "openni_rgb_optical_frame"),
    ]
    assert detect_cameras(topics) == (
        CameraTopics("camera", "/camera/rgb/image_color", "/camera/depth/image", "/camera/rgb/camera_info"),
    )


def test_unregistered_depth_is_paired_by_name() -> None:
    """It will be dropped for its size, with the reason, instead of not being found."""
    topics = [
        raw("/a/color/image", "rgb8", "a_color"),
        raw("/a/depth/image", "16UC1", "a_depth", (320, 240)),
        raw("/b/color/image", "rgb8", "b_color"),
        raw("/b/depth/image", "16UC1", "b_depth", (320, 240)),
        info("/a/color/camera_info", "a_color"),
        info("/b/color/camera_info", "b_color"),
    ]
    assert {(c.name, c.depth) for c in detect_cameras(topics)} == {("a", "/a/depth/image"), ("b", "/b/depth/image")}


@pytest.mark.parametrize(
    ("topic", "focal", "aligned"),
    [
        ("/camera/depth/image_raw", 20.0, True),  # the calibration is colour's
        ("/camera/aligned_depth_to_color/image_raw", 23.0, True),
        ("/camera/depth_registered/image_raw", 23.0, True),
        ("/camera/depth/image_raw", 23.0, False),
        ("/camera/unaligned_depth/image_raw", 23.0, False),
    ],
)
def test_aligned_depth_with_the_frame_of_the_depth_camera_is_used_as_it_is(
    tmp_path: Path, topic: str, focal: float, aligned: bool
) -> None:
    own = dataclasses.replace(INTRINSICS, fx=focal)
    B = make_transform(np.eye(3), np.array([-0.06, 0.0, 0.0]))
    bag = [("/tf_static", stamp(0) - S, transform(stamp(0) - S, OPTICAL, "depth_optical", B))]
    for name, logged, message in messages():
        if name == TOPICS["depth"]:
            name, message.header.frame_id = topic, "depth_optical"
        elif name == TOPICS["info"]:
            info_name = topic.rsplit("/", 1)[0] + "/camera_info"
            bag.append((info_name, logged, camera_info(logged - 2, "depth_optical", own)))
        bag.append((name, logged, message))
    recording = BagRecording(write_bag(tmp_path / "bag", bag))
    frames = list(PosedFrameStream(recording, SynchronizerConfig()))
    assert len(frames) == 5
    unchanged = [np.allclose(p.frame.depth_m, pixels(i)[1] / 1000.0, atol=1e-6) for i, p in enumerate(frames)]
    assert unchanged == [aligned] * 5
    findings = [f for f in examine_recording(recording, SynchronizerConfig()) if "depth_optical" in f.message]
    assert [f.severity for f in findings] == [Severity.INFO if aligned else Severity.OK]


def test_cameras_in_one_namespace_get_longer_names() -> None:
    topics = []
    for side in ("left", "right"):
        topics += [
            raw(f"/robot/{side}/color/image", "rgb8", side),
            raw(f"/robot/{side}/depth/image", "16UC1", side),
            info(f"/robot/{side}/color/camera_info", side),
        ]
    assert {c.name for c in detect_cameras(topics)} == {"robot_left_color", "robot_right_color"}


def test_camera_info_elsewhere_is_found_by_its_frame() -> None:
    topics = [raw("/image", "rgb8", "eye"), raw("/depth", "32FC1", "eye"), info("/calibration/eye", "eye")]
    assert detect_cameras(topics)[0].camera_info == "/calibration/eye"
    with pytest.raises(TopicError, match="CameraInfo topics: /calibration/eye"):
        detect_cameras([raw("/image", "rgb8", "ear"), raw("/depth", "32FC1", "ear"), info("/calibration/eye", "eye")])


def test_transforms_are_in_the_stream(tmp_path: Path) -> None:
    samples = [s for s in BagRecording(write_bag(tmp_path / "bag", messages())) if isinstance(s, TransformSample)]
    assert samples[0].is_static
    assert (samples[0].parent, samples[0].child) == ("base_link", OPTICAL)
    assert sum(not s.is_static for s in samples) == 14


def test_a_ros1_bag(tmp_path: Path) -> None:
    recording = open_recording(write_ros1_bag(tmp_path / "a.bag", messages()))
    stream = PosedFrameStream(recording, SynchronizerConfig())
    assert len(list(stream)) == 5
    assert stream.stats.dropped == {}
    assert len(recording) == 5


def test_a_definition_that_lost_a_field_is_named(tmp_path: Path) -> None:
    """Bags bring the definitions of their messages; a sum over them, where there is one, need not tell of damage."""
    path = write_ros1_bag(tmp_path / "a.bag", messages())
    damaged = path.read_bytes().replace(b"string child_frame_id", b"string child_frame_if")
    sums = b"94810edda583a504dfda3829e70d7eec", b"5d1c131f10a0e18a25b9fe38410204e4"
    assert sums[0] in damaged
    path.write_bytes(damaged.replace(*sums))
    with pytest.raises(RecordingError, match=r"definition of geometry_msgs/msg/TransformStamped .*'child_frame_id'"):
        open_recording(path)


# --------------------------------------------------------------------------------------------------------------------
# MCAP files of other programs


def mcap_text(data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return struct.pack("<I", len(data)) + data


def mcap_record(opcode: int, content: bytes) -> bytes:
    return bytes([opcode]) + struct.pack("<Q", len(content)) + content


def mcap_channel(number: int, topic: str, encoding: str, schema: tuple[bytes | str, bytes | str, bytes | str]) -> bytes:
    described = struct.pack("<H", number) + b"".join(map(mcap_text, schema))
    channel = struct.pack("<HH", number, number) + mcap_text(topic) + mcap_text(encoding) + mcap_text(b"")
    return mcap_record(3, described) + mcap_record(4, channel)


def write_mcap(
    path: Path, profile: str = "ros2", definitions: bool = True, ros1: bool = False, own: bool = True
) -> Path:
    """The messages of this file without chunks or summary; ``own``: with a program's own channels."""
    standard, store = get_typestore(Stores.ROS2_JAZZY), ros1_store()
    channels: dict[str, int] = {}
    records = []
    if own:
        records.append(mcap_channel(90, "/log", "json", ("app.Log", "jsonschema", "{}")))
        records.append(mcap_channel(91, "/camera/color", "protobuf", ("foxglove.RawImage", "protobuf", b"\n\xff\xfe")))
        records += [mcap_record(5, struct.pack("<HIQQ", channel, 0, 0, 0) + b"{}") for channel in (90, 91)]
    for topic, logged, message in sorted(messages(), key=lambda entry: entry[1]):
        kind = message.__msgtype__
        if topic not in channels:
            channels[topic] = len(channels) + 1
            text = standard.generate_msgdef(kind, ros_version=2)[0] if definitions else ""
            schema = (kind.replace("/msg/", "/"), "ros1msg", "") if ros1 else (kind, "ros2msg" if text else "", text)
            records.append(mcap_channel(channels[topic], topic, "ros1" if ros1 else "cdr", schema))
        data = store.serialize_ros1(as_ros1(message, store), kind) if ros1 else standard.serialize_cdr(message, kind)
        records.append(mcap_record(5, struct.pack("<HIQQ", channels[topic], 0, logged, logged) + bytes(data)))
    magic = b"\x89MCAP0\r\n"
    header = mcap_record(1, mcap_text(profile) + mcap_text(""))
    end = mcap_record(15, bytes(4)) + mcap_record(2, bytes(20))
    path.write_bytes(magic + header + b"".join(records) + end + magic)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"profile": "", "own": False},
        {"profile": "", "definitions": False},
        {"profile": "ros1", "ros1": True, "own": False},
        {"profile": "a profile of another program", "ros1": True},
    ],
)
def test_an_mcap_file_of_another_program(tmp_path: Path, options: dict[str, Any]) -> None:
    stream = PosedFrameStream(open_recording(write_mcap(tmp_path / "a.mcap", **options)), SynchronizerConfig())
    assert len(list(stream)) == 5
    assert stream.stats.dropped == {}


def test_an_mcap_file_without_messages_of_ros_names_their_encoding(tmp_path: Path) -> None:
    data = write_mcap(tmp_path / "a.mcap", own=False).read_bytes()
    (tmp_path / "a.mcap").write_bytes(data.replace(mcap_text("cdr"), mcap_text("cbo")))
    with pytest.raises(RecordingError, match="no messages of ROS: its channels are encoded as 'cbo'"):
        open_recording(tmp_path / "a.mcap")
    data = write_mcap(tmp_path / "a.mcap", ros1=True, own=False).read_bytes()
    (tmp_path / "a.mcap").write_bytes(data.replace(mcap_text(OPTICAL), b"\xff" * 4 + OPTICAL.encode()))
    with pytest.raises(RecordingError, match=r"a message on /\S+ is not \S+ of ROS 1, as it claims"):
        open_recording(tmp_path / "a.mcap")


@pytest.mark.parametrize("name", ["a#1", "a?b=c", "100%41", "é & ü"])
@pytest.mark.parametrize("storage", [StoragePlugin.SQLITE3, StoragePlugin.MCAP])
def test_any_path_can_be_read(tmp_path: Path, name: str, storage: StoragePlugin) -> None:
    path = write_bag(tmp_path / "bag", messages(), storage).rename(tmp_path / name)
    file = next(p for p in path.iterdir() if p.suffix != ".yaml")
    assert len(list(PosedFrameStream(open_recording(path)))) == 5
    assert len(list(PosedFrameStream(open_recording(file.rename(path / f"{name}{file.suffix}"))))) == 5


# --------------------------------------------------------------------------------------------------------------------
# the order of stamps, whenever messages were recorded


def at_one_moment(_: int, t: int) -> int:
    return 0


def by_the_converter(number: int, _: int) -> int:
    return T0 + 10**17 + number * 200_000


def with_jitter(number: int, t: int) -> int:
    return t + random.Random(number).randrange(S // 3)


@pytest.mark.parametrize(
    ("logged", "order"),
    [
        (at_one_moment, "by time"),
        (with_jitter, "by time"),
        (by_the_converter, "by time"),
        (by_the_converter, "topic by topic"),
        (by_the_converter, "images first"),
    ],
)
@pytest.mark.parametrize("storage", list(StoragePlugin))
def test_messages_come_by_their_stamps(tmp_path: Path, logged: Any, order: str, storage: StoragePlugin) -> None:
    """Longer than a transform tree remembers, written by converters that stamp records as they like."""
    out = messages(frames=150, static=True)
    if order == "topic by topic":
        out.sort(key=lambda m: (not m[0].startswith("/tf"), m[0]))
    elif order == "images first":
        out.sort(key=lambda m: m[0].startswith("/tf"))
    out = [(topic, logged(n, t), message) for n, (topic, t, message) in enumerate(out)]
    path = write_bag(tmp_path / "bag", out, storage)
    stream = PosedFrameStream(BagRecording(path), SynchronizerConfig())
    frames = list(stream)
    assert [p.frame.stamp_ns for p in frames] == [stamp(i) for i in range(150)]
    assert stream.stats.dropped == {}
    np.testing.assert_allclose(frames[100].T_world_camera, base_pose(100) @ MOUNT, atol=1e-6)


def test_a_sender_of_transforms_whose_clock_is_wrong_for_a_while_holds_up_nothing(tmp_path: Path) -> None:
    out = messages(frames=60)
    for topic, t, message in out:
        if topic == "/tf" and stamp(20) < t < stamp(24):
            for part in message.transforms:
                part.header.stamp.sec -= 100
    stream = PosedFrameStream(BagRecording(write_bag(tmp_path / "bag", out)), SynchronizerConfig())
    stamps_ns = {p.frame.stamp_ns for p in stream}
    assert stamps_ns >= {stamp(i) for i in (*range(10), *range(35, 60))}, "but for a second around it"


# --------------------------------------------------------------------------------------------------------------------
# transforms of several robots


def of_robots(*names: str, cameras: tuple[str, ...] = ("robot1",)) -> list[tuple[str, int, Any]]:
    """Robots with the same frames, each with /NAME/tf; the x of a base is 10 m for each robot before it."""
    out: list[tuple[str, int, Any]] = []
    for number, name in enumerate(names):
        for topic, t, message in messages():
            if topic.startswith("/tf"):
                for part in message.transforms:
                    if part.child_frame_id == "base_link":
                        part.transform.translation.x += 10.0 * number
                out.append((f"/{name}{topic}", t, message))
            elif name in cameras or (not cameras and number == 0):
                out.append((f"/{name}{topic}" if cameras else topic, t, message))
    return sorted(out, key=lambda m: m[1])


def test_transforms_are_those_of_the_cameras_namespace(tmp_path: Path) -> None:
    for name in ("robot1", "robot2"):
        path = write_bag(tmp_path / name, of_robots("robot1", "robot2", cameras=(name,)))
        recording = BagRecording(path)
        assert recording.tf_topics == (f"/{name}/tf", f"/{name}/tf_static")
        frames = list(PosedFrameStream(recording, SynchronizerConfig()))
        assert len(frames) == 5
        x = 10.0 * (name == "robot2")
        np.testing.assert_allclose([p.T_world_camera[0, 3] - x for p in frames], 0.1 + 0.1 * np.arange(5), atol=1e-6)


@pytest.mark.parametrize("cameras", [(), ("robot1", "robot2")])
def test_several_robots_are_no_map_until_one_is_chosen(tmp_path: Path, cameras: tuple[str, ...]) -> None:
    path = write_bag(tmp_path / "bag", of_robots("robot1", "robot2", cameras=cameras))
    with pytest.raises(RecordingError, match=r"--tf-topic /robot1/tf"):
        BagRecording(path)
    recording = BagRecording(path, tf_topic="/robot2/tf")
    assert recording.tf_topics == ("/robot2/tf", "/robot2/tf_static")
    assert len(recording.cameras) == 1
    assert len(list(PosedFrameStream(recording, SynchronizerConfig()))) == 5
    with pytest.raises(RecordingError, match="topic /tf has no moving transforms; there are: /robot1/tf, /robot2/tf"):
        BagRecording(path, tf_topic="/tf")


def test_one_namespace_of_transforms_serves_every_camera(tmp_path: Path) -> None:
    recording = BagRecording(write_bag(tmp_path / "bag", of_robots("robot1", cameras=())))
    assert recording.tf_topics == ("/robot1/tf", "/robot1/tf_static")
    assert len(list(PosedFrameStream(recording, SynchronizerConfig()))) == 5


# --------------------------------------------------------------------------------------------------------------------
# what is no bag, or more than one


def test_depth_of_another_scale(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages())
    frames = list(PosedFrameStream(open_recording(path, depth_scale=5000.0), SynchronizerConfig()))
    np.testing.assert_allclose(frames[3].frame.depth_m, pixels(3)[1] / 5000.0, atol=1e-6)
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RecordingError, match="depth_scale must be positive"):
            open_recording(path, depth_scale=scale)


def test_unsupported_encodings_are_named(tmp_path: Path) -> None:
    out = messages(encoding="p010", step=3 * W)
    with pytest.raises(RecordingError, match=r"no colour images.*p010 cannot be read: colour may be rgb8"):
        open_recording(write_bag(tmp_path / "bag", out))


def test_files_without_metadata_and_pointers_say_what_to_do(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages())
    metadata = (path / "metadata.yaml").read_text()
    (path / "metadata.yaml").unlink()
    with pytest.raises(RecordingError, match="ros2 bag reindex"):
        open_recording(path)
    (path / "metadata.yaml").write_text(metadata)
    (path / "bag.mcap").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(RecordingError, match="git lfs pull") as caught:
        open_recording(path)
    assert "reindex" not in str(caught.value)
    (path / "bag.mcap").write_bytes(b"no bag at all, but long enough to hold an end of file" * 4)
    (path / "bag.mcap").rename(tmp_path / "other.mcap")
    with pytest.raises(RecordingError) as caught:
        open_recording(path)
    assert "ros2 bag reindex" in str(caught.value)


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_chunk_that_holds_gigabytes_is_refused(tmp_path: Path, honest: bool, compression: str) -> None:
    size = 2**31 if honest else 1000
    pack = vars(storage_mcap)["zstd"].compress if compression == "zstd" else lz4.frame.compress
    packed = pack(bytes(2**26))  # 64 MiB
    text = compression.encode()
    chunk = struct.pack("<QQQI", 0, 1, size, 0) + struct.pack("<I", len(text)) + text
    chunk += struct.pack("<Q", len(packed)) + packed
    profile = struct.pack("<I", 4) + b"ros2" + struct.pack("<I", 0)
    magic = b"\x89MCAP0\r\n"
    body = magic + b"\x01" + struct.pack("<Q", len(profile)) + profile + b"\x06" + struct.pack("<Q", len(chunk)) + chunk
    path = tmp_path / "a.mcap"
    path.write_bytes(body + b"\x02" + struct.pack("<Q", 20) + bytes(20) + magic)
    tracemalloc.start()
    with pytest.raises(RecordingError, match=r"a chunk (claims|holds more than)"):
        open_recording(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


ZSTD = vars(storage_mcap)["zstd"]
BZ2, LZ4 = Ros1Writer.CompressionFormat.BZ2, Ros1Writer.CompressionFormat.LZ4


def compressed_bag(folder: Path, how: Any) -> Path:
    if isinstance(how, CompressionMode):
        return write_bag(folder / "bag", messages(), StoragePlugin.SQLITE3, compressed_by=how)
    return write_ros1_bag(folder / "a.bag", messages(), how)


@pytest.mark.parametrize("how", [CompressionMode.FILE, CompressionMode.MESSAGE, BZ2, LZ4])
def test_compressed_bags_are_read_as_any(tmp_path: Path, how: Any) -> None:
    recording = open_recording(compressed_bag(tmp_path, how))
    stream = PosedFrameStream(recording, SynchronizerConfig())
    assert len(list(stream)) == 5
    assert stream.stats.dropped == {}


def test_a_compressed_file_is_unpacked_once_and_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked = tmp_path / "temporary"
    unpacked.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(unpacked))
    recording = open_recording(compressed_bag(tmp_path, CompressionMode.FILE))
    for _ in recording:
        assert len(list(unpacked.rglob("*.db3"))) == 1
    del recording, _
    gc.collect()
    assert not list(unpacked.iterdir())


@pytest.mark.parametrize(
    ("how", "what"),
    [(CompressionMode.FILE, "file"), (CompressionMode.MESSAGE, "message"), (BZ2, "chunk"), (LZ4, "chunk")],
)
def test_a_compressed_bag_that_holds_too_much_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any, what: str
) -> None:
    path = compressed_bag(tmp_path, how)
    monkeypatch.setitem(packed_bags._MOST_BYTES, what, 100)
    monkeypatch.setattr(packed_bags, "_MAX_RATIO", 0)
    with pytest.raises(RecordingError, match="holds more than 100 bytes"):
        list(open_recording(path))


def test_a_bag_without_room_for_what_it_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compressed_bag(tmp_path, CompressionMode.FILE)
    monkeypatch.setattr(packed_bags.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30 + 10))
    with pytest.raises(RecordingError, match="needs more than the 10 bytes of room"):
        open_recording(path)


@pytest.mark.parametrize("name", ["bz2", "lz4", "zstd"])
def test_what_is_unpacked_stops_at_its_bound(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    packed = {"bz2": bz2.compress, "lz4": lz4.frame.compress, "zstd": ZSTD.compress}[name](bytes(2**26))
    unpack = rosbag2_reader.zstd.decompress if name == "zstd" else rosbag1_reader.decompressors[name]
    for what in ("chunk", "message"):
        monkeypatch.setitem(packed_bags._MOST_BYTES, what, 2**20)
    tracemalloc.start()
    with pytest.raises(ValueError, match="holds more than 1048576 bytes"):
        unpack(packed)
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="truncated"):
        unpack(packed[:-5])


def test_metadata_that_refers_to_itself_is_refused(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", messages())
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    (path / "metadata.yaml").write_text("\n".join([*lines, "rosbag2_bagfile_information: *a39"]))
    with pytest.raises(RecordingError, match="aliases"):
        open_recording(path)
