"""Poses of other conventions and wrong scales, found by whether views of the same room agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.small_recording import INTRINSICS, camera_pose, render

from embodied_perceptron.apps.checks import Finding, Severity, View, check_views, check_world_axes, world_axes
from embodied_perceptron.geometry.transforms import (
    invert_transform,
    make_transform,
    quaternion_to_rotation,
    rotation_to_quaternion,
)
from embodied_perceptron.recordings.conventions import (
    POSE_CONVENTIONS,
    ConventionError,
    conventions_text,
    convert_pose,
    parse_conventions,
)

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


def room_views(noise_m: float = 0.0) -> list[View]:
    rng = np.random.default_rng(0)
    views = []
    for i in range(12):
        T = camera_pose(i, 12)
        exact = render(T)[1]
        noisy = exact + rng.normal(0, noise_m, exact.shape)
        views.append((np.where(np.isfinite(exact), noisy, 0).astype(np.float32), T))
    return views


ROOM = room_views(0.005)


def worst(views: list[View], **options: object) -> Finding:
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
    finding = worst(views, poses_at=asked)
    assert finding.check == "clock offset"
    assert f"{abs(late_s):g} s too {'late' if late_s > 0 else 'early'}" in finding.message
    assert finding.remedy == f"use --pose-offset {-late_s:g}"
    assert "one clock" in worst(views, poses_at=asked, live=True).remedy
    right = [(depth, there_and_back(t)) for depth, t in zip(depths, times, strict=True)]
    assert worst(right, poses_at=lambda offset_s: [there_and_back(t - offset_s) for t in times]).severity == Severity.OK


@pytest.mark.parametrize("names", WRITTEN)
def test_converting_undoes_what_was_written(names: str) -> None:
    T = camera_pose(3, 12)
    np.testing.assert_allclose(convert_pose(WRITTEN[names](T), parse_conventions(names)), T, atol=1e-12)
    assert set(parse_conventions(conventions_text(parse_conventions(names)))) == set(parse_conventions(names))


@pytest.mark.parametrize("names", WRITTEN)
def test_poses_of_another_convention_are_named(names: str) -> None:
    finding = worst([(depth, WRITTEN[names](T)) for depth, T in ROOM])
    assert finding.severity == Severity.ERROR
    said = finding.remedy.removeprefix("use --poses ")
    assert set(parse_conventions(said)) == set(parse_conventions(names))
    assert all(POSE_CONVENTIONS[name] in finding.message for name in said.split(","))


def test_right_poses_are_right() -> None:
    assert worst(ROOM).severity == Severity.OK


@pytest.mark.parametrize("factor", [0.2, 5.0, 4.0, 0.25, 10.0, 0.1])
def test_a_wrong_depth_scale_is_named(factor: float) -> None:
    """Read with 1000 units per metre, the depth is ``factor`` times what it should be."""
    finding = worst([((factor * depth).astype(np.float32), T) for depth, T in ROOM], depth_scale=1000.0)
    assert finding.severity == Severity.ERROR
    assert "scale of the depth is wrong" in finding.message
    assert finding.remedy == f"use --depth-scale {1000 * factor:g}"


@pytest.mark.parametrize("factor", [1000.0, 100.0, 0.01, 3.0, 0.4])
def test_a_wrong_pose_scale_is_named(factor: float) -> None:
    views = [(depth, make_transform(T[:3, :3], factor * T[:3, 3])) for depth, T in ROOM]
    finding = worst(views, depth_scale=1000.0)
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
    finding = worst(views, depth_scale=1000.0)
    assert finding.remedy == "use --pose-scale 0.001"


def test_convention_and_scale_at_once() -> None:
    views = [(0.2 * depth, WRITTEN["opengl"](T)) for depth, T in ROOM]
    findings = check_views("front", views, INTRINSICS, depth_scale=5000.0)
    assert [f.remedy for f in findings] == ["use --poses opengl", "use --depth-scale 1000"]


def test_a_wrong_focal_length_is_no_scale() -> None:
    wrong = replace(INTRINSICS, fx=1.25 * INTRINSICS.fx, fy=1.25 * INTRINSICS.fy)
    (finding,) = check_views("front", ROOM, wrong, depth_scale=1000.0)
    assert finding.check == "focal length"


def test_poses_that_nothing_explains_are_said_to_be_wrong() -> None:
    rng = np.random.default_rng(0)
    views = [(depth, T @ make_transform(np.eye(3), rng.normal(0, 0.3, 3))) for depth, T in ROOM]
    (finding,) = check_views("front", views, INTRINSICS)
    assert (finding.check, finding.severity) == ("views", Severity.WARNING)


def test_live_remedies_are_no_options_of_commands() -> None:
    views = [(0.2 * depth, WRITTEN["opengl"](T)) for depth, T in ROOM]
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
