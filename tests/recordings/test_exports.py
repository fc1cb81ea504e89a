"""Folders of scanning apps: each becomes the map that its twin in TUM layout becomes; damage is named."""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
import zipfile
import zlib

import cv2
import numpy as np
import pytest
from support.export_folders import (
    HEIGHT,
    K4,
    MAKERS,
    WIDTH,
    matrix_text,
    r3d,
    record3d_metadata,
    scannet,
    stray,
)
from support.small_recording import INTRINSICS, write_recording
from support.wild_recordings import change, frames_read

from embodied_perceptron.config import SynchronizerConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.recordings.exports import (
    EXPORT_FORMATS,
    export_format,
    matched,
    open_export,
)
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import DepthSample, PosedFrameStream, RecordingError
from embodied_perceptron.sensors.camera_model import register_depth
from embodied_perceptron.sensors.synchronizer import BadImage

S = 1_000_000_000
FRAMES = 5


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """A TUM folder, its stamps those that ScanNet's frames get."""
    return write_recording(tmp_path_factory.mktemp("tum"), FRAMES, color_extension=".png")


def mapped(recording):
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.04, min_hits=1))
    frames = list(PosedFrameStream(recording, SynchronizerConfig()))
    for posed in frames:
        volume.integrate(posed)
    return volume.snapshot(), len(frames)


@pytest.mark.parametrize("name", EXPORT_FORMATS)
def test_a_folder_becomes_the_map_of_its_twin(name, twin, tmp_path):
    folder = MAKERS[name](tmp_path / "export", twin)
    assert export_format(folder) == name
    recording = open_recording(folder)
    assert len(recording) == FRAMES
    (here, count), (there, _) = mapped(recording), mapped(open_recording(twin))
    assert count == FRAMES
    assert (here.coords == there.coords).all()
    assert (here.hits == there.hits).all()
    lossless = name in ("ScanNet's exporter", "ARKitScenes", "Record3D")
    apart = np.abs(here.mean_color.astype(int) - there.mean_color)
    assert apart.max() == 0 if lossless else apart.mean() < 12


def test_twins_are_told_apart_by_a_pose(twin, tmp_path):
    """The comparison above can fail."""
    folder = scannet(tmp_path / "export", twin)
    T = np.loadtxt(folder / "pose" / "2.txt")
    T[2, 3] += 0.1
    (folder / "pose" / "2.txt").write_text(matrix_text(T))
    (here, _), (there, _) = mapped(open_recording(folder)), mapped(open_recording(twin))
    assert here.coords.shape != there.coords.shape or (here.coords != there.coords).any()


# ---------------------------------------------------------------------------------------------------- registration


def test_depth_takes_the_nearest_pixel_on_the_ray():
    color = Intrinsics(100.0, 100.0, 49.5, 39.5, 100, 80)
    small = color.resized(25, 20)
    assert (small.fx, small.cx, small.width) == (25.0, 12.0, 25)
    depth = np.arange(1, 501, dtype=np.float32).reshape(20, 25)
    found = register_depth(depth, small, color)
    assert found.shape == (80, 100)
    for v, u in ((0, 0), (40, 50), (79, 99), (17, 63)):
        assert found[v, u] == depth[v // 4, u // 4]
    assert register_depth(depth, small, small) is depth
    back = register_depth(found, color, small)  # the other way round
    assert (back == depth).all()


def test_what_depth_does_not_see_is_unknown():
    color = Intrinsics(50.0, 50.0, 49.5, 39.5, 100, 80)
    narrow = Intrinsics(100.0, 100.0, 49.5, 39.5, 100, 80)  # half the field of view
    found = register_depth(np.full((80, 100), 2.0, np.float32), narrow, color)
    assert (found[20:60, 25:75] == 2.0).all()
    assert (found[:19] == 0).all()
    assert (found[:, :24] == 0).all()


def test_large_colour_is_made_smaller():
    camera = Intrinsics(1500.0, 1500.0, 959.5, 719.5, 1920, 1440)
    color, depth, both = matched(np.zeros((1440, 1920, 3), np.uint8), camera, np.ones((192, 256), np.float32), None)
    assert color.shape == (480, 640, 3)
    assert depth.shape == (480, 640)
    assert (depth == 1).all()
    assert (both.fx, both.width, both.height) == (500.0, 640, 480)


def test_a_smaller_depth_image_becomes_the_map_of_its_registered_twin(twin, tmp_path):
    folder = scannet(tmp_path / "export", twin)
    small = INTRINSICS.resized(80, 60)
    for path in (folder / "depth").iterdir():
        raw = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[::2, ::2]
        cv2.imwrite(str(path), raw)
    (folder / "intrinsic" / "intrinsic_depth.txt").write_text(matrix_text(K4(small)))
    registered = shutil.copytree(twin, tmp_path / "registered")
    for path in (registered / "depth").iterdir():
        raw = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[::2, ::2]
        full = register_depth(raw.astype(np.float32), small, INTRINSICS).astype(np.uint16)
        cv2.imwrite(str(path), full)
    (here, _), (there, _) = mapped(open_recording(folder)), mapped(open_recording(registered))
    assert (here.coords == there.coords).all()
    tum = shutil.copytree(twin, tmp_path / "tum")
    for path in (tum / "depth").iterdir():
        cv2.imwrite(str(path), cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[::2, ::2])
    edit_camera(tum, depth_camera=vars(small))
    assert (mapped(open_recording(tum))[0].coords == there.coords).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fx": 1.0}, "missing"),
        ({**vars(INTRINSICS), "k1": 0.1}, "k1"),
        (3, "camera.json"),
        ({**vars(INTRINSICS), "fx": 0.0}, "fx must be positive"),
    ],
)
def test_a_depth_camera_that_is_none_is_named(twin, tmp_path, given, words):
    folder = shutil.copytree(twin, tmp_path / "tum")
    edit_camera(folder, depth_camera=given)
    with pytest.raises(RecordingError, match=words):
        open_recording(folder)


def test_depth_of_another_size_than_its_camera_is_named(twin, tmp_path):
    folder = shutil.copytree(twin, tmp_path / "tum")
    edit_camera(folder, depth_camera=vars(INTRINSICS.resized(80, 60)))
    with pytest.raises(RecordingError, match="depth is 160x120, its calibration 80x60"):
        list(open_recording(folder))


def edit_camera(folder, **changes):
    edit_json(folder / "camera.json", **changes)


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# ----------------------------------------------------------------------------------------------------------- damage


def test_uncertain_depth_is_unknown(twin, tmp_path):
    folder = stray(tmp_path / "export", twin)
    for path in (folder / "confidence").iterdir():
        certain = np.full((INTRINSICS.height, INTRINSICS.width), 2, np.uint8)
        certain[:60] = 0
        cv2.imwrite(str(path), certain)
    depth = next(s for s in open_export(folder) if isinstance(s, DepthSample)).depth_m
    assert (depth[:60] == 0).all()
    assert (depth[60:] > 0).any()


def test_a_lost_pose_is_left_out(twin, tmp_path):
    folder = scannet(tmp_path / "export", twin)
    (folder / "pose" / "0.txt").write_text("\n".join(["-inf -inf -inf -inf"] * 4))
    recording = open_export(folder)
    assert sum(recording.left_out.counts.values()) == 1
    assert mapped(recording)[1] == FRAMES - 1


@pytest.mark.parametrize(
    ("name", "break_it", "words"),
    [
        ("ScanNet's exporter", lambda f: (f / "pose" / "3.txt").unlink(), "3.txt is missing"),
        ("ScanNet's exporter", lambda f: (f / "pose" / "3.txt").write_text("1 2 3"), "matrix of 4x4, got 3 numbers"),
        ("ScanNet's exporter", lambda f: (f / "pose" / "3.txt").write_text("one " * 16), "could not convert"),
        (
            "ScanNet's exporter",
            lambda f: (f / "intrinsic" / "intrinsic_depth.txt").write_text(matrix_text(np.zeros((4, 4)))),
            "intrinsic_depth.txt: intrinsics: fx must be positive",
        ),
        ("Stray Scanner", lambda f: (f / "camera_matrix.csv").unlink(), "camera_matrix.csv is missing"),
        ("Stray Scanner", lambda f: (f / "odometry.csv").write_text("1,2,3\n"), "has no column 'timestamp'"),
        ("Stray Scanner", lambda f: (f / "odometry.csv").write_text(""), "has no column 'timestamp'"),
        (
            "Stray Scanner",
            lambda f: (f / "rgb.mp4").write_bytes(b"nothing"),
            "rgb.mp4 is not an MP4 video",
        ),
        ("Stray Scanner", lambda f: change(f / "rgb.mp4", "bytes", [("cut", 0.02)]), "rgb.mp4 ends before frame 0"),
        ("Stray Scanner", lambda f: change(f / "rgb.mp4", "pipe"), "rgb.mp4 is not a regular file"),
        (
            "Stray Scanner",
            lambda f: (f / "rgb.mp4").write_text("#EXTM3U\n/etc/passwd\n"),
            "rgb.mp4 is not an MP4 video",
        ),
        ("Stray Scanner", lambda f: change(f / "odometry.csv", "pipe"), "odometry.csv: is not a regular file"),
        ("Polycam", lambda f: (f / "keyframes/cameras/1000000.json").write_text("{}"), "key 't_00' is missing"),
        ("Polycam", lambda f: (f / "keyframes/cameras/1000000.json").write_text("["), "1000000.json: Expecting value"),
        ("Record3D", lambda f: (f / "metadata.json").write_text("{}"), "metadata.json: key 'w' is missing"),
        ("Record3D", lambda f: (f / "metadata.json").write_text("[]"), "metadata.json: it must be a mapping"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", K=[1, 2]), "K must be a list of 9 entries"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", w=1e400), "w must be a whole number .* got inf"),
        (
            "Record3D",
            lambda f: edit_json(f / "metadata.json", h=10**400),
            "h must be .* got a number of",
        ),
        ("Record3D", lambda f: (f / "metadata.json").write_text("9" * 5000), "metadata.json: .*4300 digits"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", fps=1e400), "fps must be a finite number"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", frameTimestamps=[1e400]), "frameTimestamps.* got inf"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", frameTimestamps=[0, 1e300]), "frame 1: time must be"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", perFrameIntrinsicCoeffs=[[1e400] * 4]), "frame 0: .*inf"),
        ("Record3D", lambda f: (f / "metadata.json").write_text("[" * 100_000), "metadata.json: .*recursion"),
        (
            "Polycam",
            lambda f: edit_json(keyframe(f), width=1e400),
            "width must be a whole number",
        ),
        (
            "Polycam",
            lambda f: edit_json(keyframe(f), fx=10**400),
            "fx must be a finite number, got a number of",
        ),
        ("Polycam", lambda f: edit_json(keyframe(f), fx=[]), "fx must be a finite number"),
        ("ARKitScenes", lambda f: pincam(f).write_text("inf 120 130 130 79.5 59.5"), "width must be .* got inf"),
        (
            "ARKitScenes",
            lambda f: pincam(f).rename(pincam(f).with_name("4711_9.0.pincam")),
            "1.000.pincam is missing",
        ),
        (
            "ARKitScenes",
            lambda f: (f / "lowres_wide" / "4711_1.000.png").rename(f / "lowres_wide" / "4711_inf.png"),
            "4711_inf.png: the name must end in its time",
        ),
        ("Record3D", lambda f: edit_json(f / "metadata.json", K=[0] * 9), "frame 0: .*fx must be positive"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", poses=[]), "has the layout of Record3D, but no frames"),
        (
            "Record3D",
            lambda f: edit_json(f / "metadata.json", dw=10**6, dh=10**6),
            "dh must be a whole number from 1 to 65536, got 1000000",
        ),
        ("ARKitScenes", lambda f: (f / "lowres_wide.traj").write_text("1 2\n"), "holds no poses"),
        ("ARKitScenes", lambda f: (f / "lowres_wide.traj").write_text("inf" + " 1e400" * 6), "holds no poses"),
        ("ARKitScenes", lambda f: [p.unlink() for p in (f / "lowres_wide").iterdir()], "no images in lowres_wide"),
    ],
)
def test_what_is_wrong_is_named(name, break_it, words, twin, tmp_path):
    folder = MAKERS[name](tmp_path / "export", twin)
    break_it(folder)
    with pytest.raises(RecordingError, match=words):
        open_export(folder)


def keyframe(folder):
    return folder / "keyframes" / "cameras" / "1000000.json"


def pincam(folder):
    return folder / "lowres_wide_intrinsics" / "4711_1.000.pincam"


@pytest.mark.parametrize("kind", ["missing", "empty", "pipe", "cut", "words"])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("ScanNet's exporter", "pose/3.txt"),
        ("ScanNet's exporter", "pose/4.txt"),
        ("ScanNet's exporter", "color/0.png"),  # by which the size is known
        ("ScanNet's exporter", "depth/0.png"),
        ("Stray Scanner", "depth/000003.png"),
        ("Stray Scanner", "confidence/000003.png"),
        ("Polycam", "keyframes/cameras/1300000.json"),
        ("Polycam", "keyframes/images/1300000.jpg"),
        ("ARKitScenes", "lowres_wide_intrinsics/4711_1.000.pincam"),
        ("ARKitScenes", "lowres_depth/4711_1.400.png"),
        ("Record3D", "rgb/3.png"),
        ("Record3D", "depth/0.exr"),
    ],
)
def test_one_damaged_file_of_a_frame_costs_one_frame(name, file, kind, twin, tmp_path):
    folder = MAKERS[name](tmp_path / "export", twin)
    if kind == "cut":
        change(folder / file, "bytes", [("cut", 0.3)])
    elif kind == "words":
        (folder / file).write_text("null inf 1e400 \x00")
    else:
        change(folder / file, kind)
    # a frame is known by this file
    is_its_name = file in ("color/0.png", "keyframes/cameras/1300000.json", "rgb/3.png")
    is_optional = kind == "missing" and "confidence" in file
    if not is_optional and not (is_its_name and kind in ("missing", "pipe")):
        with pytest.raises(RecordingError, match=file.split("/")[-1]):
            list(open_export(folder))
    assert frames_read(folder, True) == FRAMES - (not is_optional)


def test_what_is_optional_or_a_little_off_is_read(twin, tmp_path):
    folder = MAKERS["Polycam"](tmp_path / "polycam", twin)
    for path in (folder / "keyframes" / "cameras").iterdir():
        values = json.loads(path.read_text())
        del values["width"]
        path.write_text(json.dumps(values))
    assert frames_read(folder, False) == FRAMES
    folder = MAKERS["ARKitScenes"](tmp_path / "arkit", twin)
    pincam(folder).rename(pincam(folder).with_name("4711_1.001.pincam"))
    assert frames_read(folder, False) == FRAMES
    folder = MAKERS["Stray Scanner"](tmp_path / "stray", twin)
    lines = (folder / "odometry.csv").read_text().splitlines()
    more = [f"{line}, {column}" for line, column in zip(lines, ["fx", "", "x", "inf", "1", "2"], strict=True)]
    (folder / "odometry.csv").write_text("\n".join(more) + "\n")
    assert frames_read(folder, False) == FRAMES


def test_rows_and_poses_of_impossible_numbers_are_left_out(twin, tmp_path):
    folder = MAKERS["Stray Scanner"](tmp_path / "stray", twin)
    with (folder / "odometry.csv").open("a") as file:
        file.writelines(f"{t}, {frame}, 0, 0, 0, 0, 0, 0, 1\n" for t, frame in ((9, "inf"), ("1e400", 1), (9, -1)))
    recording = open_export(folder)
    assert len(recording) == FRAMES
    assert list(recording.left_out.counts.values()) == [3]
    path = r3d(tmp_path / "a.r3d", twin, bytes, poses=[*record3d_metadata(twin)["poses"], *[0] * 100_000])
    recording = open_export(path)
    assert len(recording) == FRAMES
    assert list(recording.left_out.counts.values()) == [100_000]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("(1000000, 1000000)", "1000000x1000000 pixels need 2000000000000 bytes, got 38400"),
        ("(9" + "9" * 4000 + ", 1)", "is not an .npy file of depth"),
        ("(120, 160, 1)", "depth must be"),
        ("(-1, -19200)", "depth must be"),
        ("(" * 500, "is not an .npy file of depth"),
    ],
)
def test_the_header_of_depth_as_npy_is_checked_before_it_is_believed(shape, words, twin, tmp_path):
    folder = MAKERS["Stray Scanner"](tmp_path / "stray", twin)
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    magic = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little")
    (folder / "depth" / "000000.png").unlink()
    (folder / "depth" / "000000.npy").write_bytes(magic + header + bytes(2 * WIDTH * HEIGHT))
    with pytest.raises(RecordingError, match=rf"000000.npy: .*{words}"):
        list(open_export(folder))
    assert frames_read(folder, True) == FRAMES - 1


def test_a_small_file_that_expands_to_megabytes_is_named(twin, tmp_path):
    """The size in the directory of the archive is what its writer claims."""
    whole = json.dumps(record3d_metadata(twin))
    with zipfile.ZipFile(tmp_path / "a.r3d", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("metadata", whole[:-2] + ", 0" * 4_000_000 + "]}")
        file.writestr("rgbd/0.jpg", b"")
    assert (tmp_path / "a.r3d").stat().st_size < 20_000
    with pytest.raises(RecordingError, match=r"a.r3d: metadata has more than \d{7} bytes, packed into \d+"):
        open_export(tmp_path / "a.r3d")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_entries_packed_in_another_way_are_named(method, twin, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.r3d", "w", method) as file:
        file.writestr("metadata", "{}")
    with pytest.raises(RecordingError, match=rf"a.r3d: metadata is compressed by method {method}"):
        open_export(tmp_path / "a.r3d")


def test_an_encrypted_entry_is_named(twin, tmp_path):
    path = r3d(tmp_path / "a.r3d", twin, bytes)
    data = bytearray(path.read_bytes())
    for at in [match.start() for match in re.finditer(rb"PK\x01\x02", bytes(data))]:
        data[at + 8] |= 1
    for at in [match.start() for match in re.finditer(rb"PK\x03\x04", bytes(data))]:
        data[at + 6] |= 1
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=r"cannot read metadata of .*a.r3d: .*encrypted"):
        open_export(path)


def test_an_exr_image_of_claimed_gigabytes_is_named(twin, tmp_path):
    folder = MAKERS["Record3D"](tmp_path / "export", twin)
    data = (folder / "depth" / "0.exr").read_bytes()
    at = data.index(b"box2i") + 10
    (folder / "depth" / "0.exr").write_bytes(data[:at] + struct.pack("<iiii", 0, 0, 29_999, 29_999) + data[at + 16 :])
    with pytest.raises(RecordingError, match=r"0.exr: claims 30000x30000 pixels"):
        list(open_export(folder))


@pytest.mark.parametrize("name", EXPORT_FORMATS)
def test_an_export_that_was_cut_short_loses_only_what_is_missing(name, twin, tmp_path):
    folder = MAKERS[name](tmp_path / "export", twin)
    depths = sorted(p for p in folder.rglob("*.*") if "depth" in p.parent.name)
    depths[-1].write_bytes(depths[-1].read_bytes()[:100])
    with pytest.raises(RecordingError, match=depths[-1].name):
        list(open_export(folder))
    samples = list(open_export(folder, tolerate_damage=True))
    bad = [s for s in samples if isinstance(s, DepthSample) and isinstance(s.depth_m, BadImage)]
    assert len(bad) == 1
    assert mapped(open_export(folder, tolerate_damage=True))[1] == FRAMES - 1


def lzfse(data):
    return pytest.importorskip("liblzfse").compress(data)


@pytest.mark.parametrize("pack", [bytes, zlib.compress, lzfse], ids=["plain", "zlib", "lzfse"])
def test_an_r3d_file_becomes_the_map_of_its_twin(pack, twin, tmp_path):
    there, _ = mapped(open_recording(twin))
    path = r3d(tmp_path / "a.r3d", twin, pack, dw=None if pack is zlib.compress else WIDTH)
    assert export_format(path) == "Record3D"
    (here, count) = mapped(open_recording(path))
    assert count == FRAMES
    assert (here.coords == there.coords).all()
    with zipfile.ZipFile(path) as file:
        file.extractall(tmp_path / "folder")
    assert (mapped(open_recording(tmp_path / "folder"))[0].coords == there.coords).all()


def test_lzfse_without_its_package_says_what_to_install(twin, tmp_path, monkeypatch):
    path = r3d(tmp_path / "a.r3d", twin, lambda data: b"bvx2" + data[:100])
    monkeypatch.setitem(sys.modules, "liblzfse", None)
    with pytest.raises(RecordingError, match=r"pip install .*record3d"):
        list(open_recording(path))


def test_r3d_files_that_are_damaged_are_named(twin, tmp_path):
    (tmp_path / "text.r3d").write_text("nothing")
    with pytest.raises(RecordingError, match=r"not an \.r3d file, or is truncated"):
        open_recording(tmp_path / "text.r3d")
    whole = r3d(tmp_path / "a.r3d", twin, bytes).read_bytes()
    (tmp_path / "cut.r3d").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RecordingError, match="truncated"):
        open_recording(tmp_path / "cut.r3d")
    for pack, words in (
        (lambda data: data[:1000], "depth has 250 pixels|pixels, not "),
        (lambda data: b"\x78nonsense", "damaged"),
        (lambda data: data * 3, "more than 76800 can be packed into"),
    ):
        with pytest.raises(RecordingError, match=words):
            list(open_recording(r3d(tmp_path / "b.r3d", twin, pack)))


def test_lost_and_uncertain_of_record3d(twin, tmp_path):
    path = r3d(tmp_path / "a.r3d", twin, lambda data: data if len(data) != WIDTH * HEIGHT else bytes(len(data)))
    assert all((s.depth_m == 0).all() for s in open_recording(path) if isinstance(s, DepthSample))
    poses = record3d_metadata(twin)["poses"]
    recording = open_recording(r3d(tmp_path / "b.r3d", twin, bytes, poses=[[0] * 7, *poses[1:]]))
    assert mapped(recording)[1] == FRAMES - 1
    assert sum(recording.left_out.counts.values()) == 1


def test_other_folders_are_none(tmp_path):
    assert export_format(tmp_path) == ""
    with pytest.raises(RecordingError, match="not a folder of ScanNet's exporter, Stray Scanner"):
        open_export(tmp_path)
    with pytest.raises(RecordingError, match="nor of ScanNet's exporter"):
        open_recording(tmp_path)
