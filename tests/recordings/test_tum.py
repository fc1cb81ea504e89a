"""TUM RGB-D folders: the real one, round trips through the writer, and everything that can be wrong with one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import Intrinsics, invert_transform, make_transform, quaternion_to_rotation
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import (
    ColorSample,
    DepthSample,
    PosedFrameStream,
    RecordingError,
    TransformSample,
)
from embodied_perceptron.recordings.tum import (
    CameraMount,
    TumRecording,
    TumWriter,
    parse_stamp,
    read_tum_camera,
)
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.synchronizer import BadImage

S = 1_000_000_000
H, W = 12, 16
INTRINSICS = Intrinsics(20.0, 21.0, 7.5, 5.5, W, H)
MOUNT = make_transform(np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]]), np.array([0.1, 0.0, 0.4]))


def pose(i: int) -> np.ndarray:
    half = 0.05 * i
    return make_transform(
        quaternion_to_rotation(np.array([0, 0, np.sin(half), np.cos(half)])), np.array([0.1 * i, 0, 1])
    )


def images(i: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(i)
    depth = rng.uniform(0.5, 4.0, (H, W)).astype(np.float32)
    depth[0, :4] = (0.0, np.inf, np.nan, -1.0)
    return rng.integers(0, 256, (H, W, 3), dtype=np.uint8), depth


def write(folder: Path, frames: int = 4, **options: object) -> Path:
    with TumWriter(folder, INTRINSICS, **options) as writer:  # type: ignore[arg-type]
        for i in range(frames):
            writer.add(S + i * S // 10, *images(i), pose(i))
    return folder


# --------------------------------------------------------------------------------------------------------------------
# reading and writing


@pytest.mark.parametrize("scale", [1000.0, 5000.0])
def test_round_trip(tmp_path: Path, scale: float) -> None:
    recording = TumRecording(write(tmp_path / "r", depth_scale=scale))
    assert len(recording) == 4
    assert recording.cameras == ("camera",)
    assert recording.world_frame == "odom"
    assert recording.truth is None
    stream = PosedFrameStream(recording, SynchronizerConfig())
    for _ in range(2):  # a recording can be played again
        frames = list(stream)
        assert [p.frame.stamp_ns for p in frames] == [S + i * S // 10 for i in range(4)]
        for i, posed in enumerate(frames):
            color, depth = images(i)
            np.testing.assert_array_equal(posed.frame.color, color)
            expected = np.where(np.isfinite(depth) & (depth > 0), depth, 0)
            np.testing.assert_allclose(posed.frame.depth_m, expected, atol=0.5 / scale + 1e-6)
            np.testing.assert_allclose(posed.T_world_camera, pose(i), atol=1e-8)
            assert posed.frame.intrinsics == INTRINSICS
        stream = PosedFrameStream(recording, SynchronizerConfig())


def test_one_stream_counts_everything(tmp_path: Path) -> None:
    stream = PosedFrameStream(TumRecording(write(tmp_path)), SynchronizerConfig())
    frames = list(stream)
    assert (stream.colors_played, stream.stats.accepted, stream.stats.emitted, len(frames)) == (4, 4, 4, 4)
    assert stream.take_drops() == []


def test_poses_come_ahead_and_are_interpolated(tmp_path: Path) -> None:
    writer = TumWriter(tmp_path, INTRINSICS)
    writer.add(S, *images(0), pose(0))
    writer.add(2 * S, *images(1), pose(1))
    for stamp in (S + S // 5 * k for k in range(1, 5)):
        writer.add_pose(stamp, pose(0))
    writer.close()
    text = (tmp_path / "rgb.txt").read_text().replace("2.000000000", "1.900000000")
    (tmp_path / "rgb.txt").write_text(text)
    (tmp_path / "depth.txt").write_text((tmp_path / "depth.txt").read_text().replace("2.000000000", "1.900000000"))
    poses_before = {}
    seen: list[int] = []
    for sample in TumRecording(tmp_path):
        if isinstance(sample, TransformSample):
            seen.append(sample.stamp_ns)
        elif isinstance(sample, ColorSample):
            poses_before[sample.stamp_ns] = len(seen)
    assert poses_before == {S: 1, int(1.9 * S): 6}, "the first pose at or behind each image, and no more"
    assert len(seen) == 6
    last = list(PosedFrameStream(TumRecording(tmp_path), SynchronizerConfig()))[-1]
    assert last.frame.stamp_ns == int(1.9 * S)
    assert last.T_world_camera[0, 3] == pytest.approx(0.05)


def test_base_frame_and_mount(tmp_path: Path) -> None:
    write(tmp_path, mount=CameraMount("base_link", MOUNT), world_frame="map", camera_frame="front_optical")
    recording = TumRecording(tmp_path)
    assert recording.world_frame == "map"
    transforms = [s for s in recording if isinstance(s, TransformSample)]
    static = [t for t in transforms if t.is_static]
    assert [(t.parent, t.child) for t in static] == [("base_link", "front_optical")]
    assert {(t.parent, t.child) for t in transforms if not t.is_static} == {("map", "base_link")}
    np.testing.assert_allclose(transforms[1].T_parent_child, pose(0) @ invert_transform(MOUNT), atol=1e-8)
    posed = list(PosedFrameStream(recording, SynchronizerConfig()))
    np.testing.assert_allclose(posed[2].T_world_camera, pose(2), atol=1e-8)


def test_several_cameras(tmp_path: Path) -> None:
    for name in ("left", "right"):
        mount = MOUNT.copy()
        mount[1, 3] = 0.2 if name == "left" else -0.2
        write(tmp_path / name, camera=name, mount=CameraMount("base", mount))
    with pytest.raises(RecordingError, match="neither a folder in TUM"):
        open_recording(tmp_path)  # two recordings beside each other are not one of two cameras
    (tmp_path / "cameras.json").write_text('["left", "right"]')
    recording = open_recording(tmp_path)
    assert isinstance(recording, TumRecording)
    assert recording.cameras == ("left", "right")
    assert len(recording) == 8
    stream = PosedFrameStream(recording, SynchronizerConfig())
    posed = list(stream)
    assert len(posed) == 8
    # groundtruth.txt of the first camera places the base; the second hangs on its mount
    left, right = posed[0].T_world_camera, posed[1].T_world_camera
    np.testing.assert_allclose(np.linalg.norm(left[:3, 3] - right[:3, 3]), 0.4, atol=1e-8)


def test_truth_is_kept(tmp_path: Path) -> None:
    writer = TumWriter(tmp_path, INTRINSICS)
    writer.add(S, *images(0), pose(0))
    writer.close(truth={"floor_z_m": 0.0, "boxes": [[1, 2, 3]]})
    assert TumRecording(tmp_path).truth == {"floor_z_m": 0.0, "boxes": [[1, 2, 3]]}
    (tmp_path / "scene.json").write_text("{")
    with pytest.raises(RecordingError, match=r"scene\.json"):
        TumRecording(tmp_path)


def test_reads_the_real_kitchen(kitchen_dir: Path) -> None:
    recording = open_recording(kitchen_dir)
    assert len(recording) == 100
    stream = PosedFrameStream(recording, SynchronizerConfig())
    first = next(iter(stream))
    assert first.frame.intrinsics == Intrinsics(585.0, 585.0, 320.0, 240.0, 640, 480)
    known = first.frame.depth_m[first.frame.depth_m > 0]
    assert 0.3 < known.min() < known.max() < 12.0, "65535 is invalid, not 65.5 m"
    np.testing.assert_allclose(first.T_world_camera[:3, 3], (2.021970945, -0.059434184, 1.343668887))


def test_plays_the_whole_kitchen_without_a_drop(kitchen_dir: Path) -> None:
    stream = PosedFrameStream(open_recording(kitchen_dir), SynchronizerConfig())
    assert sum(1 for _ in stream) == 100
    assert stream.stats.dropped == {}


# --------------------------------------------------------------------------------------------------------------------
# the writer refuses


def test_writer_refuses_what_does_not_fit(tmp_path: Path) -> None:
    writer = TumWriter(tmp_path / "a", INTRINSICS)
    color, depth = images(0)
    with pytest.raises(ValueError, match=r"images must be \(12, 16\)"):
        writer.add(S, color[:5], depth, pose(0))
    with pytest.raises(ValueError, match="non-finite"):
        writer.add(S, color, depth, np.full((4, 4), np.nan))
    assert not list((tmp_path / "a" / "color").iterdir()), "a refused frame leaves no files"
    with pytest.raises(ValueError, match="depth_scale must be positive"):
        TumWriter(tmp_path / "b", INTRINSICS, depth_scale=0.0)
    with pytest.raises(ValueError, match="T_base_camera"):
        TumWriter(tmp_path / "b", INTRINSICS, mount=CameraMount("base", np.zeros((4, 4))))
    write(tmp_path / "c")
    with pytest.raises(FileExistsError, match="holds a recording already"):
        TumWriter(tmp_path / "c", INTRINSICS)


def test_a_writer_that_is_interrupted_leaves_no_recording(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"), TumWriter(tmp_path, INTRINSICS) as writer:  # noqa: PT012
        writer.add(S, *images(0), pose(0))
        raise RuntimeError("stop")
    with pytest.raises(RecordingError, match="neither a folder in TUM"):
        open_recording(tmp_path)


# --------------------------------------------------------------------------------------------------------------------
# the reader names what is wrong


def edit_json(**changes: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        spec = json.loads((folder / "camera.json").read_text())
        for key, value in changes.items():
            if value is None:
                spec.pop(key)
            else:
                spec[key] = value
        (folder / "camera.json").write_text(json.dumps(spec))

    return apply


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return apply


def put(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "camera.json").unlink(), r"camera\.json is missing: write the intrinsics"),
        (lambda f: (f / "depth.txt").unlink(), r"depth\.txt is missing"),
        (lambda f: (f / "groundtruth.txt").unlink(), r"groundtruth\.txt is missing"),
        (put("camera.json", "{"), r"camera\.json: Expecting"),
        (put("camera.json", "[]"), r"must hold an object, got list"),
        (edit_json(fx=None), "key 'fx' is missing"),
        (edit_json(fx="585"), "fx must be a finite number, got '585'"),
        (edit_json(fx=0.0), "fx must be positive, got 0.0"),
        (edit_json(width=0), "width must be a whole number from 1 to 65536, got 0"),
        (edit_json(depth_scale=0), "depth_scale must be positive, got 0"),
        (edit_json(focal=3), r"unknown key\(s\) focal; known: width"),
        (edit_json(base_frame="base"), "base_frame and T_base_camera belong together"),
        (edit_json(base_frame="b", T_base_camera=[[1, 0], [0, 1]]), "T_base_camera must be a list of 4 entries"),
        (put("rgb.txt", "# nothing\n"), r"rgb\.txt lists no images"),
        (put("groundtruth.txt", "# nothing\n"), "holds no poses"),
        (put("rgb.txt", "1.0 a.png extra\n"), r"rgb\.txt:1: expected 2 columns, got 3"),
        (put("rgb.txt", "\n\nsoon a.png\n"), r"rgb\.txt:3: timestamp must be decimal seconds, got 'soon'"),
        (put("rgb.txt", "-1.0 a.png\n"), "got '-1.0'"),
        (put("rgb.txt", "nan a.png\n"), "got 'nan'"),
        (put("groundtruth.txt", "1.0 0 0 0 0 0 0\n"), r"groundtruth\.txt:1: expected 8 columns, got 7"),
        (put("groundtruth.txt", "1.0 0 0 0 0 0 0 2\n"), r"groundtruth\.txt:1: quaternion must have unit norm"),
        (put("groundtruth.txt", "1.0 0 0 nan 0 0 0 1\n"), "pose must be a finite number, got 'nan'"),
        (put("groundtruth.txt", "1.0 0 0 x 0 0 0 1\n"), r"groundtruth\.txt:1: pose must be a finite number, got 'x'"),
    ],
)
def test_damaged_text_files_are_named(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    write(tmp_path)
    damage(tmp_path)
    with pytest.raises(RecordingError, match=message) as caught:
        TumRecording(tmp_path)
    assert str(tmp_path) in str(caught.value)


def cut(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut("depth/000002.png"), r"depth/000002\.png: PNG image is cut short"),
        (cut("color/000002.png"), r"color/000002\.png: PNG image is cut short"),
        (put("color/000002.png", ""), r"color/000002\.png: compressed image is neither PNG nor JPEG"),
        (lambda f: (f / "depth/000002.png").unlink(), r"cannot read .*depth/000002\.png: No such file"),
        (lambda f: (f / "color/000002.png").rename(f / "depth/000002.png"), "000002"),
    ],
)
def test_damaged_images_are_named_or_counted(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    write(tmp_path)
    damage(tmp_path)
    with pytest.raises(RecordingError, match=message):
        list(PosedFrameStream(TumRecording(tmp_path), SynchronizerConfig()))
    stream = PosedFrameStream(TumRecording(tmp_path, tolerate_damage=True), SynchronizerConfig())
    assert len(list(stream)) == 3
    assert stream.stats.dropped == {"bad_frame": 1}
    assert str(tmp_path) in stream.take_drops()[0].detail


def test_images_of_another_size_are_counted(tmp_path: Path) -> None:
    write(tmp_path)
    edit_json(width=W * 2)(tmp_path)
    stream = PosedFrameStream(TumRecording(tmp_path), SynchronizerConfig())
    assert list(stream) == []
    assert stream.stats.dropped == {"size_mismatch": 4}


def test_images_outside_of_the_trajectory_are_counted(tmp_path: Path) -> None:
    write(tmp_path)
    lines = (tmp_path / "groundtruth.txt").read_text().splitlines()
    (tmp_path / "groundtruth.txt").write_text("\n".join(lines[2:4]))
    stream = PosedFrameStream(TumRecording(tmp_path), SynchronizerConfig())
    assert len(list(stream)) == 2
    assert stream.stats.dropped == {"pose_too_old": 1, "pose_timeout": 1}


def test_cameras_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", camera="same")
    write(tmp_path / "b", camera="same")
    (tmp_path / "cameras.json").write_text('["a", "b"]')
    with pytest.raises(RecordingError, match="two cameras have the same name"):
        TumRecording(tmp_path)
    edit_json(camera="other", world_frame="elsewhere")(tmp_path / "b")
    with pytest.raises(RecordingError, match="must be those of"):
        TumRecording(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", "[]", "[1]", '[""]'])
def test_a_list_of_cameras_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "cameras.json").write_text(content)
    with pytest.raises(RecordingError, match=r"cameras\.json"):
        TumRecording(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="does not exist"):
        open_recording(tmp_path / "nowhere")
    with pytest.raises(RecordingError, match="neither a folder in TUM RGB-D layout"):
        open_recording(tmp_path)
    with pytest.raises(RecordingError, match=r"holds no rgb\.txt"):
        TumRecording(tmp_path)
    with pytest.raises(KeyError, match="unknown camera 'x'; known: camera"):
        TumRecording(write(tmp_path / "r")).camera_frame("x")


# --------------------------------------------------------------------------------------------------------------------
# stamps


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1305031102.175304", 1305031102175304000),
        ("0.333333", 333333000),
        ("7", 7 * S),
        ("1700000000.123456789", 1700000000123456789),
        ("0.1234567899", 123456789),
        ("1700000000123", 1700000000123 * 10**6),  # milliseconds
        ("1700000000123.25", 1700000000123250000),
        ("1700000000123456", 1700000000123456 * 10**3),  # microseconds
        ("1700000000123456789", 1700000000123456789),  # nanoseconds
    ],
)
def test_stamps_are_exact(text: str, ns: int) -> None:
    assert parse_stamp(text) == ns


@pytest.mark.parametrize("text", ["", ".5", "1e9", "1.", "-3", "inf", "1.0.0"])
def test_what_is_no_stamp_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="must be decimal seconds"):
        parse_stamp(text)


@pytest.mark.parametrize("text", ["9" * 20, "9" * 40, "9223372036854775808"])
def test_stamps_beyond_all_time_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        parse_stamp(text)


@pytest.mark.parametrize("unit", [1, 10**3, 10**6])
@pytest.mark.parametrize("only_images", [False, True])
def test_lists_in_another_unit_of_time_are_read(tmp_path: Path, unit: int, only_images: bool) -> None:
    start = 1_700_000_000 * S
    with TumWriter(tmp_path, INTRINSICS) as writer:
        for i in range(4):
            writer.add(start + i * S // 10, *images(i), pose(i))
    for name in ("rgb.txt", "depth.txt") if only_images else ("rgb.txt", "depth.txt", "groundtruth.txt"):
        lines = [line.split() for line in (tmp_path / name).read_text().splitlines()[1:]]
        text = "".join(f"{int(t.replace('.', '')) // unit} {' '.join(rest)}\n" for t, *rest in lines)
        (tmp_path / name).write_text(text)
    frames = list(PosedFrameStream(TumRecording(tmp_path), SynchronizerConfig()))
    assert [p.frame.stamp_ns for p in frames] == [start + i * S // 10 for i in range(4)]


def test_times_since_the_start_in_small_units_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "rgb.txt").write_text("".join(f"{i * 33333333} color/{i:06d}.png\n" for i in range(4)))
    with pytest.raises(RecordingError, match=r"rgb\.txt: images are 33333333 s apart"):
        TumRecording(tmp_path)


def test_byte_order_marks_and_damaged_lines(tmp_path: Path) -> None:
    write(tmp_path, frames=6)
    for name in ("rgb.txt", "depth.txt", "groundtruth.txt", "camera.json"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (tmp_path / name).read_bytes().replace(b"\n", b"\r\n"))
    assert len(list(PosedFrameStream(TumRecording(tmp_path), SynchronizerConfig()))) == 6
    lines = (tmp_path / "groundtruth.txt").read_text(encoding="utf-8-sig").splitlines()
    lines[3] = "1.2 0 0 -inf 0 0 0 1"
    (tmp_path / "groundtruth.txt").write_text("\n".join(lines))
    with (tmp_path / "rgb.txt").open("a") as file:
        file.write("1.60 colo")
        file.write("\n1.7\n")
    with pytest.raises(RecordingError, match=r"rgb\.txt"):
        TumRecording(tmp_path)
    tolerant = TumRecording(tmp_path, tolerate_damage=True)
    assert tolerant.left_out.counts == {str(tmp_path / "rgb.txt"): 1, str(tmp_path / "groundtruth.txt"): 1}
    assert "finite number, got" in tolerant.left_out.reasons[str(tmp_path / "groundtruth.txt")]
    assert len(list(PosedFrameStream(tolerant, SynchronizerConfig()))) == 6, "the pose between its neighbours"


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["rgb.txt", "color/000001.png", "camera.json"])
def test_what_is_no_file_is_not_read(tmp_path: Path, what: str, name: str) -> None:
    write(tmp_path)
    (tmp_path / name).unlink()
    if what == "pipe":
        os.mkfifo(tmp_path / name)
    elif what == "device":
        (tmp_path / name).symlink_to("/dev/zero")
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(RecordingError, match="is not a regular file"):
        list(TumRecording(tmp_path))


def test_depth_of_another_scale(tmp_path: Path) -> None:
    recording = open_recording(write(tmp_path), depth_scale=5000.0)
    plain = [p.frame.depth_m for p in PosedFrameStream(TumRecording(tmp_path), SynchronizerConfig())]
    scaled = [p.frame.depth_m for p in PosedFrameStream(recording, SynchronizerConfig())]
    np.testing.assert_allclose(np.array(scaled), np.array(plain) / 5, rtol=1e-5)


def associate(folder: Path, depth_first: bool = False) -> Path:
    """One list of pairs in place of the two lists."""
    lists = [
        [line.split() for line in (folder / f"{name}.txt").read_text().splitlines()[1:]] for name in ("rgb", "depth")
    ]
    pairs = [" ".join((*b, *a) if depth_first else (*a, *b)) for a, b in zip(*lists, strict=True)]
    (folder / "associations.txt").write_text("# pairs\n" + "\n".join(pairs) + "\n")
    for name in ("rgb", "depth"):
        (folder / f"{name}.txt").unlink()
    return folder


@pytest.mark.parametrize("depth_first", [False, True])
def test_one_list_of_pairs_says_the_same_as_two(tmp_path: Path, depth_first: bool) -> None:
    two = read_tum_camera(write(tmp_path / "two"))
    one = read_tum_camera(associate(write(tmp_path / "one"), depth_first))
    for kind in ("color_files", "depth_files"):
        assert [(stamp, path.name) for stamp, path in getattr(one, kind)] == [
            (stamp, path.name) for stamp, path in getattr(two, kind)
        ]
    assert "color" in str(one.color_files[0][1].parent)
    assert len(list(PosedFrameStream(open_recording(tmp_path / "one"), SynchronizerConfig()))) == 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.0 a.png 1.0 b.png\n", "the depth column is unknown"),
        ("1.0 depth/a.png 1.0 depth/b.png\n", "the depth column is unknown"),
        ("1.0 color/a.png 1.0\n", "expected 4 columns, got 3"),
        ("1.0 color/a.png soon depth/b.png\n", "timestamp must be decimal seconds, got 'soon'"),
        ("# nothing\n", "associations.txt lists no images|cannot be told"),
    ],
)
def test_pairs_that_cannot_be_read_are_named(tmp_path: Path, text: str, words: str) -> None:
    associate(write(tmp_path))
    (tmp_path / "associations.txt").write_text(text)
    with pytest.raises(RecordingError, match=words):
        open_recording(tmp_path)


def test_what_is_not_supported_is_said(tmp_path: Path) -> None:
    write(tmp_path / "r")
    edit_json(k1=0.1)(tmp_path / "r")
    with pytest.raises(RecordingError, match="distortion is written as distortion_model and d"):
        open_recording(tmp_path / "r")


def test_distorted_images_are_rectified_as_those_of_a_camera_are(tmp_path: Path) -> None:
    write(tmp_path / "r")
    raw = read_tum_camera(tmp_path / "r")
    d = [0.2, -0.1, 0.001, 0.002, 0.0]
    edit_json(distortion_model="radtan", d=d)(tmp_path / "r")
    camera = read_tum_camera(tmp_path / "r")
    model = CameraModel(raw.intrinsics, "plumb_bob", tuple(d))
    (_, color), (_, depth) = camera.color_files[0], camera.depth_files[0]
    expected = model.rectify(raw.read_color(color), raw.read_depth(depth))
    assert (camera.read_color(color) == expected[0]).all()
    assert (camera.read_depth(depth) == expected[1]).all()
    assert (expected[0] != raw.read_color(color)).any()
    edit_json(distortion_model="magic")(tmp_path / "r")
    with pytest.raises(RecordingError, match=r"camera\.json: distortion model 'magic'"):
        open_recording(tmp_path / "r")


def test_damage_marks_carry_the_file(tmp_path: Path) -> None:
    write(tmp_path)
    cut("depth/000000.png")(tmp_path)
    depths = [s for s in TumRecording(tmp_path, tolerate_damage=True) if isinstance(s, DepthSample)]
    assert isinstance(depths[0].depth_m, BadImage)
    assert "depth/000000.png" in depths[0].depth_m.reason
    assert read_tum_camera(tmp_path).depth_files[0][1].name == "000000.png"


def one_image(folder: Path) -> None:
    with TumWriter(folder, INTRINSICS) as writer:
        writer.add(S, *images(0), pose(0))


@pytest.mark.parametrize(
    ("key", "value"),
    [("depth_invalid", None), ("depth_invalid", 3), ("depth_invalid", ["0"]), ("camera", []), ("world_frame", 3)],
)
def test_values_of_another_type_are_named(tmp_path, key, value):
    one_image(tmp_path / "r")
    spec = tmp_path / "r" / "camera.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), key: value}))
    with pytest.raises(RecordingError, match=key):
        TumRecording(tmp_path / "r")


def test_a_transform_that_is_none_is_the_recordings_fault(tmp_path):
    one_image(tmp_path / "r")
    spec = tmp_path / "r" / "camera.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "camera": "x" * 700}))
    with pytest.raises(RecordingError, match=r"transform at \d+ ns: frame names may have at most 256 characters"):
        list(PosedFrameStream(TumRecording(tmp_path / "r"), SynchronizerConfig()))


def test_a_list_that_names_no_file(tmp_path):
    one_image(tmp_path / "r")
    (tmp_path / "r" / "rgb.txt").write_bytes(b"1.0 a\0b.png\n")
    with pytest.raises(RecordingError, match="null"):
        list(TumRecording(tmp_path / "r"))


def test_deeply_nested_json_is_refused(tmp_path):
    one_image(tmp_path / "r")
    (tmp_path / "r" / "camera.json").write_text("[" * 100_000)
    with pytest.raises(RecordingError, match=r"camera\.json"):
        TumRecording(tmp_path / "r")
