"""Depth of a camera beside the one of colour: a slow twin, occlusion, closed surfaces, and the map of the twin."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.bag_tools import camera_info, image, transform, write_bag
from support.small_recording import INTRINSICS, S, camera_pose, render, write_recording

from embodied_perceptron.apps.checks import Severity
from embodied_perceptron.apps.doctor import examine_recording
from embodied_perceptron.config import SynchronizerConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import Intrinsics, make_transform, quaternion_to_rotation
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.recordings.bag import CameraTopics
from embodied_perceptron.recordings.image_codec import encode_depth_file
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream, RecordingError, TransformSample
from embodied_perceptron.sensors.camera_model import SAME_SURFACE, CameraModel, UnregisteredDepth, register_depth
from embodied_perceptron.sensors.poses import Found
from embodied_perceptron.sensors.synchronizer import RgbdSynchronizer

COLOR = Intrinsics(60.0, 58.0, 30.2, 21.7, 64, 44)
BESIDE = make_transform(np.eye(3), np.array([0.05, 0.0, 0.0]))


def slow(depth, depth_camera, color_camera, T):
    """The same by its definition: patch after patch, each pixel of colour asked whether it lies in it."""
    h, w = depth.shape
    found = np.zeros((color_camera.height, color_camera.width), np.float32)
    reach = min(2 * max(color_camera.fx / depth_camera.fx, color_camera.fy / depth_camera.fy) + 1, 32.0)

    def moved(u, v, z):
        ray = np.linalg.inv(depth_camera.matrix) @ [u, v, 1.0]
        far = np.isinf(z)
        p = T[:3, :3] @ ray if far else T[:3, :3] @ ray * float(z) + T[:3, 3]
        if p[2] <= 1e-6:
            return None
        q = color_camera.matrix @ p
        return np.array([q[0] / q[2], q[1] / q[2], z if far else p[2]])

    for v in range(h):
        for u in range(w):
            z = depth[v, u]
            here = moved(u, v, z) if z > 0 else None
            if here is None:
                continue
            ends = []
            for du, dv in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                to = None
                if 0 <= u + du < w and 0 <= v + dv < h and depth[v + dv, u + du] > 0:
                    other = depth[v + dv, u + du]
                    if z == other or abs(z - other) <= SAME_SURFACE * min(z, other):
                        to = moved(u + du, v + dv, other)
                if to is not None:
                    ends.append((to[:2] - here[:2]) / 2)
                    continue
                # a pixel on at the same depth, by the derivative
                M = color_camera.matrix @ T[:3, :3] @ np.linalg.inv(depth_camera.matrix)
                s = 1.0 if np.isinf(z) else z / here[2]
                step = M @ [du, dv, 0.0]
                ends.append(s * (step[:2] - here[:2] * step[2]) / 2)
            left, right, up, down = ends
            low = np.array(
                [min(left[0], right[0]) + min(up[0], down[0], 0), min(up[1], down[1]) + min(left[1], right[1], 0)]
            )
            high = np.array(
                [max(left[0], right[0]) + max(up[0], down[0], 0), max(up[1], down[1]) + max(left[1], right[1], 0)]
            )
            low, high = here[:2] + np.maximum(low, -reach), here[:2] + np.minimum(high, reach)
            rows, columns = np.mgrid[: found.shape[0], : found.shape[1]]
            inside = (columns >= low[0]) & (columns < high[0]) & (rows >= low[1]) & (rows < high[1])
            found[inside & ((found == 0) | (found > here[2]))] = here[2]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_equals_its_slow_twin(seed):
    rng = np.random.default_rng(seed)
    size = ((32, 22), (64, 44), (25, 30))[seed % 3]
    own = Intrinsics(*rng.uniform(20, 60, 2), size[0] / 2, size[1] / 2, *size)
    depth = np.where(rng.random(size[::-1]) < 0.5, 1.0, 2.0) + 0.03 * rng.random(size[::-1])
    depth[rng.random(depth.shape) < 0.1] = 0.0
    depth[rng.random(depth.shape) < 0.1] = np.inf
    depth[: size[1] // 2] = 1.5 + 0.02 * np.arange(size[0])  # a slanted wall
    q = np.array([*rng.normal(0, 0.05, 3), 1.0])
    T = make_transform(quaternion_to_rotation(q / np.linalg.norm(q)), rng.normal(0, 0.1, 3))
    depth = depth.astype(np.float32)
    here, there = register_depth(depth, own, COLOR, T), slow(depth, own, COLOR, T)
    # a pixel right on the edge of a patch may fall on either side of it
    assert np.mean(~np.isclose(here, there, rtol=1e-6)) < 0.002
    assert (here > 0).any()


@pytest.mark.parametrize("finer", [0.5, 1, 2, 4])
def test_a_wall_stays_closed_at_every_size(finer):
    own = COLOR.resized(round(COLOR.width / finer), round(COLOR.height / finer))
    v, u = np.mgrid[: own.height, : own.width]
    wall = (2.0 / (1.0 - 0.3 * (u - own.cx) / own.fx - 0.4 * (v - own.cy) / own.fy)).astype(np.float32)
    found = register_depth(wall, own, COLOR, BESIDE)
    shown = found[4:-4, 8:-4]  # the edge that depth does not see
    assert (shown > 0).all()
    # where the moved plane is: n p = d, with the camera 5 cm aside
    v, u = np.mgrid[: COLOR.height, : COLOR.width]
    true = (2.0 + 0.3 * -0.05) / (1.0 - 0.3 * (u - COLOR.cx) / COLOR.fx - 0.4 * (v - COLOR.cy) / COLOR.fy)
    assert np.abs(found / true - 1)[4:-4, 8:-4].max() < 0.02 * max(1, finer)


def test_what_is_in_front_hides_and_what_was_not_seen_is_unknown():
    depth = np.full((44, 64), 3.0, np.float32)
    depth[10:30, 20:40] = 1.0
    found = register_depth(depth, COLOR, COLOR, BESIDE)
    row = found[20]
    # 5 cm at 1 m are 3 pixels, at 3 m one: the thing moves by 3, and two pixels of the wall behind come out unseen
    assert (row[23:43] == 1.0).all()
    assert (row[21:23] == 0.0).all()
    assert (row[2:21] == 3.0).all()
    assert (row[43:] == 3.0).all()
    assert set(np.unique(found)) == {0.0, 1.0, 3.0}  # nothing is mixed


def test_free_and_unknown_stay_what_they_are():
    depth = np.full((44, 64), np.inf, np.float32)
    depth[:, :20] = 0.0
    found = register_depth(depth, COLOR, COLOR, BESIDE)
    assert (found[:, 20:] == np.inf).all()  # infinitely far nothing moves
    assert (found[:, :19] == 0.0).all()
    assert (
        register_depth(
            np.full((44, 64), 0.05, np.float32), COLOR, COLOR, make_transform(np.eye(3), np.array([0, 0, -1.0]))
        )
        == 0
    ).all()  # behind the camera


def test_one_centre_and_one_direction_need_no_patches():
    depth = np.ones((44, 64), np.float32)
    assert register_depth(depth, COLOR, COLOR, np.eye(4)) is depth


@pytest.mark.parametrize(
    ("shape", "T", "words"),
    [
        ((44, 63), np.eye(4), "depth is 63x44, its calibration 64x44"),
        ((44, 64), np.diag([2.0, 1, 1, 1]), "T_color_depth is not a rigid transform"),
        ((44, 64), np.full((4, 4), np.nan), "T_color_depth has non-finite"),
    ],
)
def test_what_does_not_fit_is_named(shape, T, words):
    with pytest.raises(ValueError, match=words):
        register_depth(np.ones(shape, np.float32), COLOR, COLOR, T)


def test_a_thing_right_before_the_camera_does_not_fill_its_image():
    depth = np.full((44, 64), 1.0, np.float32)
    found = register_depth(depth, COLOR, COLOR, make_transform(np.eye(3), np.array([0.0, 0.0, -0.999])))
    assert np.isfinite(found).all()


# ------------------------------------------------------------------------------------------- synchronizer, recordings

# depth from 12 cm to the left and 3 cm above, turned a little, wider, and of fewer pixels
OWN = Intrinsics(90.0, 90.0, 63.5, 47.5, 128, 96)
T_COLOR_DEPTH = make_transform(
    quaternion_to_rotation(np.array([0.0, 0.01, 0.005, 0.99994])), np.array([-0.12, -0.03, 0.0])
)


def test_the_synchronizer_registers_where_it_knows_the_calibration():
    class Poses:
        def lookup(self, camera, stamp_ns):
            return Found(np.eye(4))

    synchronizer = RgbdSynchronizer(SynchronizerConfig(), Poses(), ["camera"])
    depth = UnregisteredDepth(np.full((96, 128), 2.0, np.float32), CameraModel(OWN), T_COLOR_DEPTH)
    synchronizer.add_depth("camera", S, depth, S)
    assert synchronizer.waiting_bytes == depth.nbytes > 0
    synchronizer.add_color("camera", S, np.zeros((120, 160, 3), np.uint8), S)
    assert synchronizer.poll(S) == []
    synchronizer.add_camera_info("camera", S, INTRINSICS, S)
    (posed,) = synchronizer.poll(S)
    assert posed.frame.depth_m.shape == (120, 160)
    assert (posed.frame.depth_m == depth.registered(INTRINSICS)).all()
    small = UnregisteredDepth(np.ones((10, 10), np.float32), CameraModel(OWN), None)
    synchronizer.add_color("camera", 2 * S, np.zeros((120, 160, 3), np.uint8), 2 * S)
    synchronizer.add_depth("camera", 2 * S, small, 2 * S)
    assert synchronizer.poll(2 * S) == []
    (drop,) = synchronizer.take_drops()
    assert drop.reason == "size_mismatch"
    assert "depth 10x10, camera_info 160x120, depth's camera_info 128x96" in drop.detail


def views(count=5):
    for i in range(count):
        T = camera_pose(i, count)
        yield S + i * S // 10, T, render(T)[0], render(T @ T_COLOR_DEPTH, OWN)[1]


def millimetres(depth_m):
    return np.where(np.isfinite(depth_m), np.rint(depth_m * 1000), 0).astype(np.uint16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The small room with depth of a camera of its own."""
    path = write_recording(tmp_path_factory.mktemp("own"), 5, color_extension=".png")
    for (_, _, _, depth_m), file in zip(views(), sorted((path / "depth").iterdir()), strict=True):
        file.write_bytes(encode_depth_file(millimetres(depth_m)))
    spec = json.loads((path / "camera.json").read_text()) | {"depth_scale": 1000.0, "depth_camera": vars(OWN)}
    (path / "camera.json").write_text(json.dumps(spec | {"T_color_depth": T_COLOR_DEPTH.tolist()}))
    return path


def bag(path, linked=True, info=True, depth_frame="depth_optical"):
    messages = []
    for stamp, T, color, depth_m in views():
        messages += [
            ("/tf", stamp, transform(stamp, "odom", "optical", T)),
            ("/cam/color/image_raw", stamp, image(stamp, "optical", color)),
            ("/cam/color/camera_info", stamp, camera_info(stamp, "optical", INTRINSICS)),
            ("/cam/depth/image_raw", stamp, image(stamp, depth_frame, millimetres(depth_m))),
        ]
        if info:
            messages.append(("/cam/depth/camera_info", stamp, camera_info(stamp, depth_frame, OWN)))
    if linked:
        messages.insert(0, ("/tf_static", S, transform(1, "optical", "depth_optical", T_COLOR_DEPTH)))
    return write_bag(path, messages)


def mapped(recording):
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.04, min_hits=1))
    frames = list(PosedFrameStream(recording, SynchronizerConfig()))
    for posed in frames:
        volume.integrate(posed)
    return {tuple(c) for c in volume.snapshot().coords}, len(frames)


def near(voxels):
    """Voxels and their neighbours."""
    steps = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3), -1).reshape(-1, 3)
    return {tuple(c) for c in (np.array(sorted(voxels))[:, None] + steps).reshape(-1, 3)}


def test_depth_of_its_own_camera_becomes_the_map_of_its_registered_twin(folder, tmp_path):
    """99 of 100 voxels are those of the twin or touch one, and the other way round but for what depth cannot see."""
    here, count = mapped(open_recording(folder))
    there, _ = mapped(open_recording(write_recording(tmp_path / "twin", 5)))
    assert count == 5
    assert len(here - near(there)) < 0.01 * len(here)
    assert len(there - near(here)) < 0.02 * len(there)
    # the comparison can fail: as if it were registered
    spec = json.loads((folder / "camera.json").read_text())
    wrong = write_recording(tmp_path / "wrong", 5)
    for file in (folder / "depth").iterdir():
        (wrong / "depth" / file.name).write_bytes(file.read_bytes())
    del spec["T_color_depth"]
    (wrong / "camera.json").write_text(json.dumps(spec))
    taken, _ = mapped(open_recording(wrong))
    assert len(taken - near(there)) > 0.02 * len(taken)


def test_a_bag_becomes_the_map_of_the_folder(folder, tmp_path):
    there, _ = mapped(open_recording(folder))
    recording = open_recording(bag(tmp_path / "bag"))
    assert recording.camera_topics("cam").depth_info == "/cam/depth/camera_info"
    assert mapped(recording) == (there, 5)
    topics = CameraTopics("own", "/cam/color/image_raw", "/cam/depth/image_raw", "/cam/color/camera_info")
    assert mapped(open_recording(tmp_path / "bag", cameras=[topics])) == (there, 5)
    static_tf = recording_transform()
    assert mapped(open_recording(bag(tmp_path / "bare", linked=False), static_tf=[static_tf])) == (there, 5)
    findings = examine_recording(recording, SynchronizerConfig())
    (registration,) = [f for f in findings if f.check == "registration" and "own calibration" in f.message]
    assert registration.severity == Severity.OK
    assert not [f for f in findings if f.check == "sizes" and f.severity == Severity.ERROR]


def recording_transform():
    return TransformSample(0, "optical", "depth_optical", T_COLOR_DEPTH, is_static=True)


def test_a_bag_whose_depth_hangs_nowhere_says_what_to_give(tmp_path):
    with pytest.raises(RecordingError, match="--static-tf optical,depth_optical"):
        open_recording(bag(tmp_path / "bag", linked=False))


def test_smaller_depth_in_the_frame_of_colour_needs_no_transform(tmp_path):
    recording = open_recording(bag(tmp_path / "bag", linked=False, depth_frame="optical"))
    _, count = mapped(recording)
    assert count == 5


def test_the_mount_of_depth_needs_its_calibration(tmp_path):
    path = write_recording(tmp_path / "a", 2)
    spec = json.loads((path / "camera.json").read_text()) | {"T_color_depth": np.eye(4).tolist()}
    (path / "camera.json").write_text(json.dumps(spec))
    with pytest.raises(RecordingError, match="T_color_depth needs depth_camera"):
        open_recording(path)
