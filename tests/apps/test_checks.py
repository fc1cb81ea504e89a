"""Checks of the doctor: each finds its fault, says the number, and keeps quiet where all is well."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bag_tools import camera_info, image, transform, write_bag
from support.small_recording import INTRINSICS, S, camera_pose, frames, render, write_recording

from embodied_perceptron.apps.checks import (
    ConflictingTransforms,
    Finding,
    Severity,
    SpreadSamples,
    View,
    check_alignment,
    check_clocks,
    check_depth,
    check_frames_differ,
    check_level,
    check_motion,
    check_order,
    check_pairing,
    check_pose_delay,
    check_poses,
    check_registration,
    check_sizes,
    check_views,
    check_world_axes,
    has_errors,
    measure_alignment,
    world_axes,
)
from embodied_perceptron.apps.doctor import examine_environment, examine_recording
from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import (
    back_project,
    invert_transform,
    make_transform,
    quaternion_to_rotation,
    rotation_to_quaternion,
    transform_points,
)
from embodied_perceptron.recordings.conventions import (
    POSE_CONVENTIONS,
    ConventionError,
    conventions_text,
    convert_pose,
    parse_conventions,
)
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream, TransformSample
from embodied_perceptron.sensors.poses import Disconnected, Found, Gap, TooEarly, TooOld

# --------------------------------------------------------------------------------------------------------------------
# one camera


def some(fast: list[float], slow: list[float]) -> list[object]:
    """The values that span the range, and those between them."""
    return [*fast, *(pytest.param(value, marks=pytest.mark.slow) for value in slow)]


def severities(findings: list[Finding]) -> dict[str, Severity]:
    """The worst severity of each check."""
    worst: dict[str, Severity] = {}
    for finding in findings:
        worst[finding.check] = max(worst.get(finding.check, Severity.OK), finding.severity)
    return worst


def depth(value: float, share: float = 1.0) -> np.ndarray:
    image = np.full((40, 50), value, np.float32)
    image.ravel()[int(share * image.size) :] = 0.0
    return image


# --------------------------------------------------------------------------------------------------------------------
# pure checks


@pytest.mark.parametrize(
    ("depths", "check", "severity", "message"),
    [
        ([depth(2.0)], "depth unit", Severity.OK, "median depth is 2.00 m"),
        ([depth(2000.0)], "depth unit", Severity.ERROR, "median depth is 2000.0 m"),
        ([depth(0.002)], "depth unit", Severity.ERROR, "median depth is 2.00 mm"),
        ([], "depth", Severity.ERROR, "no depth image could be read"),
        ([depth(0.0), depth(0.0)], "depth", Severity.ERROR, "no pixel of any of 2 depth images"),
        ([depth(2.0), depth(0.0)], "depth", Severity.WARNING, "1 of 2 depth images"),
        ([depth(np.inf), depth(np.inf), depth(2.0)], "depth +Inf", Severity.WARNING, "2 of 3 depth images are +Inf"),
        ([depth(np.inf), depth(0.0)], "depth +Inf", Severity.WARNING, "1 of 2 depth images are +Inf"),
        ([depth(2.0, 0.05)], "depth", Severity.WARNING, "only 5.0% of the depth pixels"),
    ],
)
def test_depth(depths: list[np.ndarray], check: str, severity: Severity, message: str) -> None:
    findings = check_depth(depths)
    assert severities(findings)[check] == severity
    assert any(message in f.message for f in findings), findings


@pytest.mark.parametrize(("late_s", "severity"), [(0.02, Severity.OK), (0.45, Severity.WARNING), (0.8, Severity.ERROR)])
def test_late_transforms_are_named_before_frames_are_lost(late_s: float, severity: Severity) -> None:
    (finding,) = check_pose_delay("front", [0.0, late_s, late_s, late_s + 0.1], max_wait_s=0.5)
    assert finding.severity == severity
    assert f"front: poses are known {late_s:.2f} s after the images" in finding.message
    assert check_pose_delay("front", [], 0.5) == []


def test_nothing_but_infinity_has_no_median() -> None:
    assert all("median" not in f.message for f in check_depth([depth(np.inf)]))


def test_out_of_range_everywhere_is_no_unit_problem() -> None:
    assert not has_errors(check_depth([depth(np.inf), depth(2.0)]))


@pytest.mark.parametrize(
    ("sizes", "severity", "text"),
    [
        (((640, 480), (640, 480), (640, 480)), Severity.OK, "colour 640x480"),
        (((640, 480), (320, 240), (640, 480)), Severity.ERROR, "registered"),
        (((640, 480), (640, 480), (1280, 720)), Severity.ERROR, "another resolution"),
        (((640, 480), None, None), Severity.ERROR, "no depth and no camera_info"),
    ],
)
def test_sizes(sizes: tuple[tuple[int, int] | None, ...], severity: Severity, text: str) -> None:
    (finding,) = check_sizes(*sizes)
    assert finding.severity == severity
    assert text in finding.message + finding.remedy


def test_registration_by_frame_ids() -> None:
    assert check_registration("color_optical", "color_optical")[0].severity == Severity.OK
    assert (
        "'color_optical' but depth in 'depth_optical'"
        in check_registration("color_optical", "depth_optical")[0].message
    )


@pytest.mark.parametrize(
    ("stamps", "severity", "text"),
    [
        ([0, S, 2 * S], Severity.OK, "3 in order, 1.0 Hz"),
        ([0, 0, 0], Severity.ERROR, "all colour stamps are zero"),
        ([S, S, 3 * S, 2 * S], Severity.WARNING, "1 stamps equal their predecessor, 1 are older"),
        ([5], Severity.OK, "1 in order"),
    ],
)
def test_order(stamps: list[int], severity: Severity, text: str) -> None:
    (finding,) = check_order("colour", stamps)
    assert (finding.severity, text in finding.message) == (severity, True), finding
    assert check_order("colour", []) == []


MS = 1_000_000


@pytest.mark.parametrize(
    ("offset_ms", "lost", "severity", "text"),
    [
        (0, 0, Severity.OK, "10 of 10"),
        (15, 0, Severity.OK, "depth is +15.0 ms off"),
        (-30, 0, Severity.ERROR, "pair_tolerance_s above 0.030"),
        (0, 3, Severity.WARNING, "7 of 10"),
    ],
)
def test_pairing(offset_ms: int, lost: int, severity: Severity, text: str) -> None:
    color = [i * 100 * MS + S for i in range(10)]
    (finding,) = check_pairing(color, [t + offset_ms * MS for t in color[lost:]], 0.02)
    assert finding.severity == severity
    assert text in finding.message + finding.remedy


def test_pairing_without_one_of_them() -> None:
    assert "no depth images" in check_pairing([1], [], 0.02)[0].message
    assert "no colour images" in check_pairing([], [1], 0.02)[0].message


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.lists(st.integers(0, 300), min_size=1, max_size=12))
def test_pairing_counts_like_a_loop(color: list[int], depths: list[int]) -> None:
    (finding,) = check_pairing([t * MS for t in color], [t * MS for t in depths], 0.02)
    paired = sum(min(abs(c - d) for d in depths) <= 20 for c in color)
    assert finding.message.startswith(f"{paired} of {len(color)} colour images")


FOUND = Found(np.eye(4))


@pytest.mark.parametrize(
    ("answers", "severity", "text"),
    [
        ([FOUND] * 5, Severity.OK, "all 5 images"),
        ([FOUND] * 19 + [TooEarly(9 * S, 8 * S)], Severity.WARNING, "19 of 20"),
        ([TooEarly(9 * S, 8 * S)] * 5, Severity.ERROR, "0 of 5"),
        ([Disconnected("odom", "cam", "frame 'cam' is unknown")] * 5, Severity.ERROR, "publish the missing link"),
        ([Gap(S, 0, 2 * S)] * 5, Severity.ERROR, "publish poses more often"),
    ],
)
def test_poses(answers: list, severity: Severity, text: str) -> None:  # type: ignore[type-arg]
    finding = check_poses("cam", answers)[0]
    assert finding.severity == severity
    assert text in finding.message + finding.remedy
    assert check_poses("cam", []) == []


@pytest.mark.parametrize("answer", [TooEarly(1000 * S, 400 * S), TooOld(400 * S, 1000 * S)])
def test_images_and_poses_on_different_clocks(answer: TooEarly | TooOld) -> None:
    findings = check_poses("cam", [answer] * 4)
    assert severities(findings)["clock offset"] == Severity.ERROR
    assert "600.0 s apart" in findings[-1].message


def test_clocks() -> None:
    assert check_clocks({"/tf": 0.01, "/image": 0.05})[0].severity == Severity.OK
    (finding,) = check_clocks({"/tf": 0.01, "/image": 3.4, "/depth": 3.3})
    assert finding.severity == Severity.WARNING
    assert "/image arrives +3.40 s after its stamps but /tf +0.01 s" in finding.message
    assert check_clocks({"/tf": 5.0}) == []


def test_motion() -> None:
    stamps = [i * S for i in range(4)]
    walk = np.array([[0.5 * i, 0, 0] for i in range(4)])
    assert "1.5 m in 3 s" in check_motion("cam", stamps, walk)[0].message
    jump = walk + np.array([[0, 0, 0]] * 2 + [[9, 0, 0]] * 2)
    assert check_motion("cam", stamps, jump)[0].severity == Severity.WARNING
    assert check_motion("cam", stamps, np.zeros((4, 3)))[0].severity == Severity.INFO
    assert check_motion("cam", stamps[:1], walk[:1]) == []


@pytest.mark.parametrize(("tilt_deg", "severity"), [(0, Severity.OK), (5, Severity.OK), (15, Severity.WARNING)])
def test_level(tilt_deg: float, severity: Severity) -> None:
    floor = np.random.default_rng(0).uniform((-2, -2, 0), (2, 2, 0.005), (5000, 3))
    t = np.radians(tilt_deg)
    R = np.array([[1, 0, 0], [0, np.cos(t), -np.sin(t)], [0, np.sin(t), np.cos(t)]])
    assert check_level(floor @ R.T)[0].severity == severity
    assert check_level(floor[:10]) == []


def test_clutter_without_a_floor_says_nothing_about_level() -> None:
    """A few seconds before a cupboard: the largest plane within reach is a chance one, and there is hardly a floor."""
    rng = np.random.default_rng(1)
    clutter = rng.uniform(-1, 1, (6000, 3))
    chance = np.c_[rng.uniform(-1, 1, (900, 2)), np.zeros(900)]
    tilt = np.radians(14.0)
    R = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    (finding,) = check_level(np.concatenate([clutter, chance @ R.T]))
    assert finding.severity == Severity.INFO
    assert "too little floor" in finding.message
    # beside a tilted board, a level table counts
    table = np.c_[rng.uniform(-0.6, 0.6, (2000, 2)), rng.normal(0.7, 0.003, 2000)]
    board = np.c_[rng.uniform(-1, 1, (2600, 2)), rng.normal(0, 0.003, 2600)] @ R.T
    assert check_level(np.concatenate([table, board]))[0].severity < Severity.WARNING


def test_no_second_of_the_kitchen_is_called_tilted(kitchen_dir: Path) -> None:
    """Correct data, whatever of it is seen: live, doctor looks at six depth images."""
    recording = open_recording(kitchen_dir)
    frames = list(PosedFrameStream(recording, SynchronizerConfig()))
    for start in range(0, len(frames) - 30, 4):
        points = []
        for posed in frames[start : start + 30 : 5]:
            cloud, valid = back_project(
                np.where(posed.frame.depth_m < 5, posed.frame.depth_m, 0), posed.frame.intrinsics
            )
            points.append(transform_points(posed.T_world_camera, cloud[valid][::60]))
        (finding,) = check_level(np.concatenate(points))
        assert finding.severity < Severity.WARNING, (start, finding)


def test_a_frame_that_is_not_optical_is_not_level() -> None:
    wall = np.random.default_rng(0).uniform((-2, 0, 0), (2, 0.005, 2), (5000, 3))
    assert "may not be optical" in check_level(wall)[0].remedy


# --------------------------------------------------------------------------------------------------------------------
# alignment


def room_pairs(shift: tuple[int, int] = (0, 0), scale: float = 1.0) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = []
    for i in range(10):
        color, exact = render(camera_pose(i, 10))
        depth_m = np.where(np.isfinite(exact), exact, 0).astype(np.float32)
        h, w = depth_m.shape
        M = np.array([[scale, 0, (1 - scale) * w / 2 + shift[0]], [0, scale, (1 - scale) * h / 2 + shift[1]]])
        pairs.append((color, cv2.warpAffine(depth_m, M, (w, h), flags=cv2.INTER_NEAREST)))
    return pairs


def test_registered_depth_is_aligned() -> None:
    alignment = measure_alignment(room_pairs())
    assert alignment is not None
    assert alignment.offset_px <= 1.5
    assert check_alignment(room_pairs())[0].severity == Severity.OK


@pytest.mark.parametrize("shift", [(6, 0), (-5, 0), (4, 4)])
def test_shifted_depth_is_not(shift: tuple[int, int]) -> None:
    alignment = measure_alignment(room_pairs(shift))
    assert alignment is not None
    assert alignment.offset_px == pytest.approx(np.hypot(*shift), abs=1.5)
    assert check_alignment(room_pairs(shift))[0].severity == Severity.WARNING


def test_another_focal_length_is_not() -> None:
    """Its offsets point outwards and cancel over the whole image."""
    assert check_alignment(room_pairs(scale=0.88))[0].severity == Severity.WARNING


def test_nothing_to_see_is_no_answer() -> None:
    flat = [(np.zeros((60, 80, 3), np.uint8), np.ones((60, 80), np.float32))] * 3
    assert measure_alignment(flat) is None
    assert check_alignment(flat) == []
    assert measure_alignment([]) is None


def test_sizes_that_differ_are_refused() -> None:
    pairs = [*room_pairs()[:1], (np.zeros((60, 80, 3), np.uint8), np.ones((60, 80), np.float32))]
    with pytest.raises(ValueError, match=r"must both be \(120, 160\)"):
        measure_alignment(pairs)


def test_real_depth_of_an_uncalibrated_pair_of_cameras(kitchen_dir: Path) -> None:
    """The kitchen's depth was never registered to its colour images: the focal lengths differ by a tenth."""
    findings = examine_recording(open_recording(kitchen_dir, tolerate_damage=True), SynchronizerConfig())
    assert {name for name, severity in severities(findings).items() if severity > Severity.OK} == {"registration"}


# --------------------------------------------------------------------------------------------------------------------
# samples


@pytest.mark.parametrize("count", [0, 1, 3, 8, 9, 100, 1000])
def test_samples_are_spread_over_a_stream_of_any_length(count: int) -> None:
    samples = SpreadSamples[int](8)
    for i in range(count):
        if samples.is_next_wanted():
            samples.keep(i)
    assert min(count, 4) <= len(samples.items) <= 8
    steps = np.diff([*samples.items, count])
    assert samples.items[:1] == [0][:count]
    assert all(s == steps[0] for s in steps[:-1])
    if count:
        assert 0 < steps[-1] <= max(steps[0], 1)
    with pytest.raises(ValueError, match="at least 2"):
        SpreadSamples(1)


# --------------------------------------------------------------------------------------------------------------------
# focal length


def room_views(noise_m: float = 0.0, drift_m: float = 0.0) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    views = []
    for i in range(12):
        T = camera_pose(i, 12)
        exact = render(T)[1]
        depth_m = np.where(np.isfinite(exact), exact + rng.normal(0, noise_m, exact.shape), 0).astype(np.float32)
        T[:3, 3] += rng.normal(0, drift_m, 3)
        views.append((depth_m, T))
    return views


@pytest.mark.parametrize("scale", some([0.75, 1.2], [0.85, 1.3]))
def test_a_wrong_focal_length_is_named(scale: float) -> None:
    wrong = replace(INTRINSICS, fx=scale * INTRINSICS.fx, fy=scale * INTRINSICS.fy)
    (finding,) = check_views("front", room_views(), wrong)
    assert finding.severity == Severity.ERROR
    assert f"camera_info says {wrong.fx:.0f}" in finding.message
    named = float(finding.message.split("focal length ")[1].split(",")[0])
    assert named == pytest.approx(INTRINSICS.fx, rel=0.03)


@pytest.mark.parametrize("scale", [0.85, 1.15])
def test_a_wrong_focal_length_is_named_of_a_robot_that_stood_for_long(scale: float) -> None:
    wrong = replace(INTRINSICS, fx=scale * INTRINSICS.fx, fy=scale * INTRINSICS.fy)
    views = room_views(noise_m=0.005)
    (finding,) = check_views("front", [*views[:1] * 8, *views[1::2]], wrong)
    assert finding.severity == Severity.ERROR


@pytest.mark.parametrize(("noise_m", "drift_m"), [(0.0, 0.0), (0.02, 0.0), (0.0, 0.01), (0.01, 0.02)])
def test_a_right_focal_length_is_not_blamed_for_noise_or_drift(noise_m: float, drift_m: float) -> None:
    (finding,) = check_views("front", room_views(noise_m, drift_m), INTRINSICS)
    assert finding.severity == Severity.OK


def test_views_that_cannot_tell_the_focal_length_find_nothing() -> None:
    wrong = replace(INTRINSICS, fx=160.0, fy=160.0)
    assert check_views("front", room_views()[:1] * 6, wrong) == []  # static
    away = make_transform(np.eye(3), np.array([100.0, 0, 0]))
    depth_m, T = room_views()[0]
    assert check_views("front", [(depth_m, T), (depth_m, away @ T)], wrong) == []  # no overlap
    assert check_views("front", [], wrong) == []


def test_the_kitchens_focal_length_is_not_blamed(kitchen_dir: Path) -> None:
    frames = list(PosedFrameStream(open_recording(kitchen_dir), SynchronizerConfig()))
    for part in (frames[::8], frames[:30:5], frames[60:90:5]):
        views = [(posed.frame.depth_m, posed.T_world_camera) for posed in part]
        assert all(f.severity == Severity.OK for f in check_views("cam", views, part[0].frame.intrinsics))


# --------------------------------------------------------------------------------------------------------------------
# folders and bags


def examine(path: Path) -> list[Finding]:
    return examine_recording(open_recording(path, tolerate_damage=True), SynchronizerConfig())


def worst(path: Path) -> dict[str, Severity]:
    return {name: s for name, s in severities(examine(path)).items() if s > Severity.OK}


def test_a_good_folder_has_no_findings(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    recording = open_recording(write_recording(tmp_path), tolerate_damage=True)
    findings = examine_recording(recording, SynchronizerConfig(), lambda *done: seen.append(done))
    assert {f.severity for f in findings} == {Severity.OK}
    assert {
        "sizes",
        "depth unit",
        "depth",
        "registration",
        "stamps",
        "pairing",
        "poses",
        "motion",
        "level",
        "views",
        "frames",
    } == {f.check for f in findings}
    assert seen[-1] == (12, 12)


def edit(path: Path, **changes: object) -> None:
    spec = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(spec))


def test_folder_with_the_wrong_depth_unit(tmp_path: Path) -> None:
    edit(write_recording(tmp_path) / "camera.json", depth_scale=1.0)
    assert worst(tmp_path)["depth unit"] == Severity.ERROR


def test_folder_with_the_wrong_focal_length(tmp_path: Path) -> None:
    path = write_recording(tmp_path) / "camera.json"
    edit(path, fx=1.25 * INTRINSICS.fx, fy=1.25 * INTRINSICS.fy)
    assert worst(tmp_path)["focal length"] == Severity.ERROR


def test_folder_with_poses_of_another_clock(tmp_path: Path) -> None:
    poses = write_recording(tmp_path) / "groundtruth.txt"
    lines = [line for line in poses.read_text().splitlines() if not line.startswith("#")]
    poses.write_text("\n".join(f"1{line}" if line[0] in "12" else line for line in lines))
    found = worst(tmp_path)
    assert found["poses"] == Severity.ERROR
    assert found["clock offset"] == Severity.ERROR


def test_folder_with_damaged_images_and_late_depth(tmp_path: Path) -> None:
    folder = write_recording(tmp_path)
    file = folder / "color" / "000004.png"
    file.write_bytes(file.read_bytes()[:200])
    text = (folder / "depth.txt").read_text()
    (folder / "depth.txt").write_text(text.replace("00000000 depth", "40000000 depth"))
    found = worst(tmp_path)
    assert found["images"] == Severity.ERROR
    assert found["pairing"] == Severity.ERROR
    assert any("color/000004.png" in f.message for f in examine(tmp_path))


def test_folder_without_an_optical_frame(tmp_path: Path) -> None:
    """Poses of the camera's body (x forward) instead of its optical frame."""
    from embodied_perceptron.recordings.tum import TumWriter

    body = make_transform(np.array([[0.0, -1, 0], [0, 0, -1], [1, 0, 0]]), np.zeros(3))
    with TumWriter(tmp_path, INTRINSICS) as writer:
        for stamp, color, depth_m, T in frames(12):
            writer.add(stamp, color, depth_m, T @ body)
    assert worst(tmp_path)["pose convention"] == Severity.ERROR


def bag(
    path: Path, *, depth_frame: str = "optical", tf: bool = True, delay_s: float = 0.0, twice: bool = False
) -> Path:
    messages = []
    for stamp, color, depth_m, T in frames(12):
        logged = stamp + int(delay_s * S)
        millimetres = np.where(np.isfinite(depth_m), depth_m * 1000, 0).astype(np.uint16)
        messages += [
            ("/cam/color/image_raw", logged, image(stamp, "optical", color)),
            ("/cam/color/camera_info", logged, camera_info(stamp, "optical", INTRINSICS)),
            ("/cam/depth/image_raw", logged, image(stamp, depth_frame, millimetres)),
        ]
        if tf:
            messages.append(("/tf", stamp, transform(stamp, "odom", "optical", T)))
        if twice:
            messages.append(("/tf", stamp + 1, transform(stamp, "map", "optical", T)))
    return write_bag(path, sorted(messages, key=lambda m: m[1]))


def test_a_good_bag_has_no_findings(tmp_path: Path) -> None:
    assert worst(bag(tmp_path / "bag")) == {}


@pytest.mark.parametrize(
    ("options", "check", "severity"),
    [
        ({"depth_frame": "depth_optical"}, "registration", Severity.WARNING),
        ({"tf": False}, "poses", Severity.ERROR),
        ({"delay_s": 2.5}, "clock offset", Severity.WARNING),
        ({"twice": True}, "transforms", Severity.ERROR),
    ],
)
def test_faults_of_a_bag(tmp_path: Path, options: dict, check: str, severity: Severity) -> None:  # type: ignore[type-arg]
    assert worst(bag(tmp_path / "bag", **options))[check] == severity


def test_a_bag_with_unusable_messages(tmp_path: Path) -> None:
    path = tmp_path / "bag"
    good = [("/tf", S, transform(S, "odom", "optical", camera_pose(0, 2)))]
    bad = [("/tf", S + 1, transform(S, "odom", "optical", camera_pose(0, 2), w=4.0))]
    color, depth_m = render(camera_pose(0, 2))
    frame = [
        ("/cam/color/image_raw", S, image(S, "optical", color)),
        ("/cam/color/camera_info", S, camera_info(S, "optical", INTRINSICS)),
        ("/cam/depth/image_raw", S, image(S, "optical", depth_m)),
    ]
    write_bag(path, good + frame + bad)
    findings = examine(path)
    assert any(re.match("1 of /tf cannot be used, first: .*/tf: transform 'odom'", f.message) for f in findings)
    assert has_errors(findings)


def test_what_replay_drops_is_foretold_by_the_same_code(tmp_path: Path) -> None:
    out = []
    for stamp, color, depth_m, T in frames(12):
        out.append(("/tf", stamp - 1, transform(stamp, "odom", "optical", T)))
        for n in range(2):
            out.append(("/c/color/image_raw", stamp + n, image(stamp, "optical", color)))
            out.append(("/c/depth/image_raw", stamp + 2 + n, image(stamp, "optical", depth_m)))
        out.append(("/c/color/camera_info", stamp + 5, camera_info(stamp, "optical", INTRINSICS)))
    path = write_bag(tmp_path / "bag", sorted(out, key=lambda m: m[1]))
    (finding,) = [f for f in examine(path) if f.check == "frames"]
    stream = PosedFrameStream(open_recording(path), SynchronizerConfig())
    fused = len(list(stream))
    assert fused == 12
    assert finding.message.startswith(f"{fused} of 24 frames can be fused; dropped: 12 duplicate, for example c 1.0")


def test_frozen_depth_is_told_of_a_camera_that_moves(tmp_path: Path) -> None:
    folder = write_recording(tmp_path / "a")
    assert "depth frozen" not in worst(folder)
    for i in range(4, 11):
        (folder / "depth" / f"{i:06d}.png").write_bytes((folder / "depth" / "000003.png").read_bytes())
    assert worst(folder)["depth frozen"] == Severity.WARNING
    lines = (folder / "groundtruth.txt").read_text().splitlines()
    still = [lines[0], *(f"{line.split()[0]} {lines[1].split(maxsplit=1)[1]}" for line in lines[1:])]
    (folder / "groundtruth.txt").write_text("\n".join(still))
    assert "depth frozen" not in worst(folder), "a camera that stands still sees the same"


def moving(x: float) -> np.ndarray:
    return make_transform(np.eye(3), np.array([x, 0.0, 0.0]))


def conflicts(xs: list[float], static: bool = False) -> list[Finding]:
    found = ConflictingTransforms()
    for i, x in enumerate(xs):
        found.add(TransformSample(S + i * S // 50, "odom", "base", moving(x), static))
    return found.findings()


def test_publishers_that_fight_over_one_link() -> None:
    drive = [0.01 * i for i in range(100)]
    assert conflicts(drive) == []
    assert conflicts([x + 1.5 * (i > 40) for i, x in enumerate(drive)]) == [], "one correction"
    (finding,) = conflicts([x + 1.5 * (i % 2) for i, x in enumerate(drive)])
    assert finding.severity == Severity.ERROR
    assert "several publishers set 'base' differently" in finding.message
    assert conflicts([x + 1.5 * (i % 5 < 2) for i, x in enumerate(drive)])[0].severity == Severity.ERROR, "other rates"
    assert conflicts([0.0, 0.0, 0.0], static=True) == []
    assert len(conflicts([0.0, 0.7], static=True)) == 1


def test_cameras_that_share_a_frame() -> None:
    assert check_frames_differ({"left": "a", "right": "b"}) == []
    (finding,) = check_frames_differ({"left": "optical", "right": "optical"})
    assert "cameras left and right all have frame 'optical'" in finding.message


def test_why_a_calibration_was_refused_is_said(tmp_path: Path) -> None:
    out = []
    for stamp, color, depth_m, T in frames(6):
        info = camera_info(stamp, "optical", INTRINSICS, distortion_model="thin_prism", d=np.ones(5))
        out += [
            ("/tf", stamp - 1, transform(stamp, "odom", "optical", T)),
            ("/c/color/image_raw", stamp, image(stamp, "optical", color)),
            ("/c/depth/image_raw", stamp + 1, image(stamp, "optical", depth_m)),
            ("/c/color/camera_info", stamp + 2, info),
        ]
    findings = examine(write_bag(tmp_path / "bag", out))
    sizes = next(f for f in findings if f.check == "sizes")
    assert re.search("no camera_info could be read: .*distortion model 'thin_prism' is not supported", sizes.message)


def test_a_recording_that_breaks_off_is_a_finding(tmp_path: Path) -> None:
    path = bag(tmp_path / "bag")
    recording = open_recording(path, tolerate_damage=True)
    (file,) = path.glob("*.mcap")
    data = bytearray(file.read_bytes())
    data[len(data) // 4 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 4)
    file.write_bytes(data)
    findings = examine_recording(recording, SynchronizerConfig())
    assert severities(findings)["reading"] == Severity.ERROR


# --------------------------------------------------------------------------------------------------------------------
# installation


def test_missing_packages_are_told_with_a_remedy() -> None:
    def find(name: str) -> object:
        if name == "rerun":
            raise ImportError("broken")
        return None if name == "rclpy" else object()

    findings = examine_environment(find)
    text = {f.message: f for f in findings if f.severity == Severity.INFO}
    assert set(text) == {
        "rclpy is not installed: no live topics",
        "rerun is not installed: no recordings for the Rerun viewer",
    }
    assert all(f.remedy for f in text.values())
    assert not has_errors(findings)
    assert json.dumps([f.as_dict() for f in findings])


# --------------------------------------------------------------------------------------------------------------------
# views that must agree


G = np.diag([1.0, -1.0, -1.0, 1.0])
Y_UP = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
Y_DOWN = np.array([[1.0, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
BODY = np.array([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])


def w_first(T: np.ndarray) -> np.ndarray:
    """Quaternions w x y z, read as x y z w."""
    x, y, z, w = rotation_to_quaternion(T[:3, :3])
    return make_transform(quaternion_to_rotation(np.array([w, x, y, z])), T[:3, 3])


WRITTEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "opengl": lambda T: T @ G,
    "body": lambda T: T @ BODY,
    "inverse": invert_transform,
    "wxyz": w_first,
    "yup": lambda T: Y_UP @ T,
    "ydown": lambda T: Y_DOWN @ T,
    "arkit": lambda T: Y_UP @ T @ G,
    "wxyz,inverse": lambda T: w_first(invert_transform(T)),
    "inverse,opengl": lambda T: invert_transform(T @ G),
    "ydown,inverse": lambda T: invert_transform(Y_DOWN @ T),
}


def views_of_room(noise_m: float = 0.0) -> list[View]:
    rng = np.random.default_rng(0)
    views = []
    for i in range(12):
        T = camera_pose(i, 12)
        exact = render(T)[1]
        noisy = exact + rng.normal(0, noise_m, exact.shape)
        views.append((np.where(np.isfinite(exact), noisy, 0).astype(np.float32), T))
    return views


ROOM = views_of_room(0.005)
FEW = ROOM[::3]  # where two causes are sought at once, which compares every pair of views hundreds of times


def worst_of(views: list[View], **options: object) -> Finding:
    findings = check_views("front", views, INTRINSICS, **options)  # type: ignore[arg-type]
    findings += check_world_axes("front", [T for _, T in views]) if findings[0].severity == Severity.OK else []
    return max(findings, key=lambda f: f.severity)


def there_and_back(t: float) -> np.ndarray:
    """A drive whose speed changes: of one at constant speed nobody can tell when its poses were."""
    return camera_pose(6 + 5 * np.sin(0.8 * t), 12)


@pytest.mark.parametrize("late_s", [0.13, -0.3])
def test_stamps_of_poses_that_are_off_are_named(late_s: float) -> None:
    times = [0.45 * k for k in range(16)]
    depths = [np.nan_to_num(render(there_and_back(t))[1], posinf=0.0).astype(np.float32) for t in times]

    def poses_at(offset_s: float) -> list[np.ndarray | None]:
        at = [t - offset_s - late_s for t in times]
        return [there_and_back(t) if 0 <= t <= times[-1] else None for t in at]

    known = [k for k, T in enumerate(poses_at(0.0)) if T is not None]
    views = [(depths[k], there_and_back(times[k] - late_s)) for k in known]
    asked = lambda offset_s: [poses_at(offset_s)[k] for k in known]  # noqa: E731
    finding = worst_of(views, poses_at=asked)
    assert finding.check == "clock offset"
    assert f"{abs(late_s):g} s too {'late' if late_s > 0 else 'early'}" in finding.message
    assert finding.remedy == f"use --pose-offset {-late_s:g}"
    if late_s > 0:  # wording and right stamps are tested once
        assert "one clock" in worst_of(views, poses_at=asked, live=True).remedy
        right = [(depth, there_and_back(t)) for depth, t in zip(depths, times, strict=True)]
        finding = worst_of(right, poses_at=lambda offset_s: [there_and_back(t - offset_s) for t in times])
        assert finding.severity == Severity.OK


@pytest.mark.parametrize("names", WRITTEN)
def test_converting_undoes_what_was_written(names: str) -> None:
    T = camera_pose(3, 12)
    np.testing.assert_allclose(convert_pose(WRITTEN[names](T), parse_conventions(names)), T, atol=1e-12)
    assert set(parse_conventions(conventions_text(parse_conventions(names)))) == set(parse_conventions(names))


@pytest.mark.parametrize("names", WRITTEN)
def test_poses_of_another_convention_are_named(names: str) -> None:
    finding = worst_of([(depth, WRITTEN[names](T)) for depth, T in ROOM])
    assert finding.severity == Severity.ERROR
    said = finding.remedy.removeprefix("use --poses ")
    assert set(parse_conventions(said)) == set(parse_conventions(names))
    assert all(POSE_CONVENTIONS[name] in finding.message for name in said.split(","))


def test_right_poses_are_right() -> None:
    assert worst_of(ROOM).severity == Severity.OK


@pytest.mark.parametrize("factor", some([0.1, 10.0], [0.2, 5.0, 4.0, 0.25]))
def test_a_wrong_depth_scale_is_named(factor: float) -> None:
    """Read with 1000 units per metre, the depth is ``factor`` times what it should be."""
    finding = worst_of([((factor * depth).astype(np.float32), T) for depth, T in ROOM], depth_scale=1000.0)
    assert finding.severity == Severity.ERROR
    assert "scale of the depth is wrong" in finding.message
    assert finding.remedy == f"use --depth-scale {1000 * factor:g}"


@pytest.mark.parametrize("factor", some([1000.0, 0.4], [100.0, 0.01, 3.0]))
def test_a_wrong_pose_scale_is_named(factor: float) -> None:
    views = [(depth, make_transform(T[:3, :3], factor * T[:3, 3])) for depth, T in ROOM]
    finding = worst_of(views, depth_scale=1000.0)
    assert finding.severity == Severity.ERROR
    assert "scale of the poses is wrong" in finding.message
    assert float(finding.remedy.removeprefix("use --pose-scale ")) == pytest.approx(1 / factor, rel=0.03)


def test_poses_so_large_that_nothing_is_in_common() -> None:
    """A drive in millimetres: under no convention do two views have anything in common."""
    views = []
    for i in range(6):
        T = camera_pose(2 * i, 12)
        turned = make_transform(T[:3, :3], 1000 * (T[:3, 3] + np.array([0.0, 0.3 * i, 0.0])))
        right = make_transform(T[:3, :3], turned[:3, 3] / 1000)
        depth = render(right)[1]
        views.append((np.where(np.isfinite(depth), depth, 0).astype(np.float32), turned))
    finding = worst_of(views, depth_scale=1000.0)
    assert finding.remedy == "use --pose-scale 0.001"


def test_convention_and_scale_at_once() -> None:
    views = [(0.2 * depth, WRITTEN["opengl"](T)) for depth, T in FEW]
    findings = check_views("front", views, INTRINSICS, depth_scale=5000.0)
    assert [f.remedy for f in findings] == ["use --poses opengl", "use --depth-scale 1000"]


def test_a_wrong_focal_length_is_no_scale() -> None:
    wrong = replace(INTRINSICS, fx=1.25 * INTRINSICS.fx, fy=1.25 * INTRINSICS.fy)
    (finding,) = check_views("front", ROOM, wrong, depth_scale=1000.0)
    assert finding.check == "focal length"


def test_poses_that_nothing_explains_are_said_to_be_wrong() -> None:
    rng = np.random.default_rng(0)
    views = [(depth, T @ make_transform(np.eye(3), rng.normal(0, 0.3, 3))) for depth, T in FEW]
    (finding,) = check_views("front", views, INTRINSICS)
    assert (finding.check, finding.severity) == ("views", Severity.WARNING)


def test_live_remedies_are_no_options_of_commands() -> None:
    views = [(0.2 * depth, WRITTEN["opengl"](T)) for depth, T in FEW]
    assert not any("--" in f.remedy for f in check_views("front", views, INTRINSICS, depth_scale=1000.0, live=True))


def test_a_camera_that_looks_down_has_z_up() -> None:
    """An arm above a table: the top of its images points along y, in a world with z up."""
    down = np.array([[1.0, 0, 0], [0, -1, 0], [0, 0, -1]])
    assert world_axes([make_transform(down, np.array([0.1 * i, 0, 1])) for i in range(10)]) == ()
    assert world_axes([camera_pose(i, 12) for i in range(12)]) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("opengl,body", "cannot be both opengl and body"),
        ("yup,ydown", "cannot be both"),
        ("arkit,body", "cannot be both"),
        ("unity", "poses must be of wxyz, inverse"),
        ("", "poses must be of"),
    ],
)
def test_conventions_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConventionError, match=message):
        parse_conventions(text)
