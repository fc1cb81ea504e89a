"""Folders of scanning apps: each becomes the map that its twin in TUM layout becomes; damage is named."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
import zlib

import cv2
import numpy as np
import pytest
from support.small_recording import INTRINSICS, write_recording

from embodied_perceptron.config import SynchronizerConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import Intrinsics, invert_transform, rotation_to_quaternion
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.recordings.conventions import convert_pose
from embodied_perceptron.recordings.exports import (
    EXPORT_FORMATS,
    export_format,
    matched,
    open_export,
)
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import DepthSample, PosedFrameStream, RecordingError
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron.sensors.camera_model import register_depth
from embodied_perceptron.sensors.synchronizer import BadImage

S = 1_000_000_000
FRAMES = 5
WIDTH, HEIGHT = INTRINSICS.width, INTRINSICS.height


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """A TUM folder, its stamps those that ScanNet's frames get."""
    return write_recording(tmp_path_factory.mktemp("tum"), FRAMES, color_extension=".png")


def contents(twin):
    """(number, color path, depth path, T_world_camera) of the twin."""
    camera = read_tum_camera(twin)
    for i, ((_, color), (_, depth), (_, T)) in enumerate(
        zip(camera.color_files, camera.depth_files, camera.poses, strict=True)
    ):
        yield i, color, depth, T


def matrix_text(M):
    return "\n".join(" ".join(repr(float(v)) for v in row) for row in np.atleast_2d(M)) + "\n"


def K4(camera):
    K = np.eye(4)
    K[0, 0], K[1, 1], K[0, 2], K[1, 2] = camera.fx, camera.fy, camera.cx, camera.cy
    return K


def arkit(T):
    """A pose as ARKit writes it: the inverse of what the reader does."""
    unit = convert_pose(np.eye(4), ("opengl",))
    turn = convert_pose(np.eye(4), ("yup",))
    written = invert_transform(turn) @ T @ invert_transform(unit)
    assert np.allclose(convert_pose(written, ("opengl", "yup")), T, atol=1e-12)
    return written


def scannet(folder, twin):
    for name in ("color", "depth", "pose", "intrinsic"):
        (folder / name).mkdir(parents=True)
    for i, color, depth, T in contents(twin):
        shutil.copy(color, folder / "color" / f"{i}.png")
        shutil.copy(depth, folder / "depth" / f"{i}.png")
        (folder / "pose" / f"{i}.txt").write_text(matrix_text(T))
    for kind in ("color", "depth"):
        (folder / "intrinsic" / f"intrinsic_{kind}.txt").write_text(matrix_text(K4(INTRINSICS)))
    return folder


def stray(folder, twin):
    for name in ("depth", "confidence"):
        (folder / name).mkdir(parents=True)
    size = (INTRINSICS.width, INTRINSICS.height)
    video = cv2.VideoWriter(str(folder / "rgb.mp4"), cv2.VideoWriter_fourcc(*"mp4v"), 10.0, size)
    lines = ["timestamp, frame, x, y, z, qx, qy, qz, qw"]
    turn = invert_transform(convert_pose(np.eye(4), ("yup",)))
    for i, color, depth, T in contents(twin):
        video.write(cv2.imread(str(color)))
        shutil.copy(depth, folder / "depth" / f"{i:06d}.png")
        cv2.imwrite(str(folder / "confidence" / f"{i:06d}.png"), np.full(size[::-1], 2, np.uint8))
        P = turn @ T
        values = [1.0 + 0.1 * i, i, *P[:3, 3], *rotation_to_quaternion(P[:3, :3])]
        lines.append(", ".join(repr(float(v)) for v in values))
    video.release()
    (folder / "odometry.csv").write_text("\n".join(lines) + "\n")
    (folder / "camera_matrix.csv").write_text(matrix_text(K4(INTRINSICS)[:3, :3]).replace(" ", ","))
    return folder


def polycam(folder, twin):
    inner = folder / "keyframes"
    for name in ("images", "depth", "cameras"):
        (inner / name).mkdir(parents=True)
    for i, color, depth, T in contents(twin):
        stamp = 1_000_000 + i * 100_000
        cv2.imwrite(str(inner / "images" / f"{stamp}.jpg"), cv2.imread(str(color)))
        shutil.copy(depth, inner / "depth" / f"{stamp}.png")
        P, k = arkit(T), INTRINSICS
        said = {f"t_{r}{c}": float(P[r, c]) for r in range(3) for c in range(4)}
        said |= {"fx": k.fx, "fy": k.fy, "cx": k.cx, "cy": k.cy, "width": k.width, "height": k.height}
        (inner / "cameras" / f"{stamp}.json").write_text(json.dumps(said))
    return folder


def arkitscenes(folder, twin):
    for name in ("lowres_wide", "lowres_depth", "lowres_wide_intrinsics"):
        (folder / name).mkdir(parents=True)
    lines, k = [], INTRINSICS
    for i, color, depth, T in contents(twin):
        time_s = 1.0 + 0.1 * i
        name = f"4711_{time_s:.3f}"
        shutil.copy(color, folder / "lowres_wide" / f"{name}.png")
        shutil.copy(depth, folder / "lowres_depth" / f"{name}.png")
        numbers = [k.width, k.height, k.fx, k.fy, k.cx, k.cy]
        (folder / "lowres_wide_intrinsics" / f"{name}.pincam").write_text(" ".join(map(str, numbers)))
        P = invert_transform(T)
        values = [time_s, *cv2.Rodrigues(P[:3, :3])[0].ravel(), *P[:3, 3]]
        lines.append(" ".join(repr(float(v)) for v in values))
    (folder / "lowres_wide.traj").write_text("\n".join(lines) + "\n")
    return folder


def record3d(folder, twin):
    """The EXR export; depth is what the millimetres of the twin mean."""
    for name in ("rgb", "depth"):
        (folder / name).mkdir(parents=True)
    os.environ["OPENCV_IO_ENABLE_OPENEXR"] = "1"
    for i, color, depth, _ in contents(twin):
        shutil.copy(color, folder / "rgb" / f"{i}.png")
        cv2.imwrite(str(folder / "depth" / f"{i}.exr"), metres(depth))
    (folder / "metadata.json").write_text(json.dumps(record3d_metadata(twin)))
    return folder


def metres(depth):
    return cv2.imread(str(depth), cv2.IMREAD_UNCHANGED).astype(np.float32) / np.float32(1000)


def record3d_metadata(twin):
    poses = []
    for _, _, _, T in contents(twin):
        P = arkit(T)
        poses.append([*map(float, rotation_to_quaternion(P[:3, :3])), *map(float, P[:3, 3])])
    k = INTRINSICS
    K = [k.fx, 0, 0, 0, k.fy, 0, k.cx, k.cy, 1]
    return {"w": k.width, "h": k.height, "dw": k.width, "dh": k.height, "K": K, "fps": 10, "poses": poses}


def r3d(path, twin, pack, **changes):
    """An .r3d file, depth packed by ``pack``."""
    said = record3d_metadata(twin) | changes
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("metadata", json.dumps({k: v for k, v in said.items() if v is not None}))
        for i, color, depth, _ in contents(twin):
            file.writestr(f"rgbd/{i}.jpg", color.read_bytes())
            file.writestr(f"rgbd/{i}.depth", pack(metres(depth).tobytes()))
            file.writestr(f"rgbd/{i}.conf", pack(np.full(WIDTH * HEIGHT, 2, np.uint8).tobytes()))
    return path


MAKERS = dict(zip(EXPORT_FORMATS, (scannet, stray, polycam, arkitscenes, record3d), strict=True))


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
        ("ScanNet's exporter", lambda f: (f / "pose" / "3.txt").write_text("one"), "could not convert"),
        (
            "ScanNet's exporter",
            lambda f: (f / "intrinsic" / "intrinsic_depth.txt").write_text(matrix_text(np.zeros((4, 4)))),
            "intrinsic_depth.txt: intrinsics: fx must be positive",
        ),
        ("Stray Scanner", lambda f: (f / "camera_matrix.csv").unlink(), "camera_matrix.csv is missing"),
        ("Stray Scanner", lambda f: (f / "odometry.csv").write_text("1,2,3\n"), "has no column 'timestamp'"),
        ("Stray Scanner", lambda f: (f / "odometry.csv").write_text(""), "has no column 'timestamp'"),
        ("Stray Scanner", lambda f: (f / "rgb.mp4").write_bytes(b"nothing"), "rgb.mp4 ends before frame 0"),
        ("Polycam", lambda f: (f / "keyframes/cameras/1000000.json").write_text("{}"), "KeyError.*t_00"),
        ("Polycam", lambda f: (f / "keyframes/cameras/1000000.json").write_text("["), "1000000.json: .*JSON"),
        ("Record3D", lambda f: (f / "metadata.json").write_text("{}"), "metadata.json: KeyError.*'w'"),
        ("Record3D", lambda f: (f / "metadata.json").write_text("[]"), "metadata.json: TypeError"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", K=[1, 2]), "K must have 9 numbers"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", K=[0] * 9), "frame 0: .*fx must be positive"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", poses=[]), "has the layout of Record3D, but no frames"),
        ("Record3D", lambda f: edit_json(f / "metadata.json", dw=10**6, dh=10**6), "depth of 1000000x1000000"),
        ("ARKitScenes", lambda f: (f / "lowres_wide.traj").write_text("1 2\n"), "holds no poses"),
        ("ARKitScenes", lambda f: [p.unlink() for p in (f / "lowres_wide").iterdir()], "no images in lowres_wide"),
    ],
)
def test_what_is_wrong_is_named(name, break_it, words, twin, tmp_path):
    folder = MAKERS[name](tmp_path / "export", twin)
    break_it(folder)
    with pytest.raises(RecordingError, match=words):
        open_export(folder)


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
