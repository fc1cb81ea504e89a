"""Where a network's window is laid."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.geometry.box_rays import upright_camera
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.frame import LatestCameraPoses, PosedFrame, RgbdFrame, ViewDirection

SECOND = 1_000_000_000
START = LatestCameraPoses()


def camera(x_m: float, y_m: float, yaw_rad: float, down_rad: float = 0.0) -> np.ndarray:
    """An optical frame at (x, y, 1.2) that looks along ``yaw_rad``, ``down_rad`` below the horizon."""
    return upright_camera((x_m, y_m, 1.2), yaw_rad, down_rad)


def frame(name: str, stamp_ns: int, T_world_camera: np.ndarray) -> PosedFrame:
    color, depth = np.zeros((2, 2, 3), np.uint8), np.ones((2, 2), np.float32)
    return PosedFrame(RgbdFrame(stamp_ns, name, color, depth, Intrinsics(1, 1, 0.5, 0.5, 2, 2)), T_world_camera)


def test_a_camera_that_looks_ahead_is_looked_ahead_of():
    np.testing.assert_allclose(ViewDirection.of(camera(1.0, 2.0, np.pi / 2)).ahead_m(1.6), [1.0, 3.6, 1.2], atol=1e-12)
    assert np.allclose(ViewDirection.of(camera(1.0, 2.0, 0.3)).ahead_m(0.0), [1.0, 2.0, 1.2])


@pytest.mark.parametrize("down_rad", [0.3, 1.2, np.pi / 2])
def test_the_lower_a_camera_looks_the_less_ahead(down_rad):
    np.testing.assert_allclose(
        ViewDirection.of(camera(0, 0, 0, down_rad)).ahead_m(2.0), [2 * np.cos(down_rad), 0, 1.2], atol=1e-9
    )


def test_cameras_to_both_sides_are_looked_around():
    both = START.after(frame("front", 1, camera(0.2, 0, 0))).after(frame("rear", 2, camera(-0.2, 0, np.pi)))
    assert both.view_direction is not None
    assert both.camera_m is not None
    np.testing.assert_allclose(both.view_direction.ahead_m(1.6), [0, 0, 1.2], atol=1e-12)
    np.testing.assert_allclose(both.camera_m, [-0.2, 0, 1.2])


def test_a_camera_that_fell_silent_does_not_count():
    seen = START.after(frame("front", SECOND, camera(0, 0, 0))).after(frame("rear", 3 * SECOND, camera(5, 0, 0)))
    assert seen.view_direction is not None
    np.testing.assert_allclose(seen.view_direction.origin_m, [5, 0, 1.2])


def test_nothing_seen():
    assert START.view_direction is None
    assert START.camera_m is None
    assert START.moved(np.eye(4)).view_direction is None


def test_a_late_frame_of_another_camera_leaves_the_time():
    seen = START.after(frame("front", 3 * SECOND, camera(0, 0, 0))).after(
        frame("rear", 2 * SECOND + 5, camera(1, 0, 0))
    )
    assert seen.stamp_ns == 3 * SECOND
    assert seen.newest is not None
    assert seen.newest.frame.camera == "rear"


def test_a_moved_world_moves_places_and_directions():
    T = camera(3.0, -1.0, 0.7)
    pose = camera(0.5, 0.2, 1.1, 0.2)
    moved = START.after(frame("front", 4, pose)).moved(T)
    assert moved.view_direction is not None
    assert moved.stamp_ns == 4
    expected = ViewDirection.of(T @ pose)
    np.testing.assert_allclose(moved.view_direction.origin_m, expected.origin_m)
    np.testing.assert_allclose(moved.view_direction.direction, expected.direction)


def test_what_was_seen_does_not_follow_the_callers_array():
    pose = camera(0, 0, 0)
    seen = START.after(frame("front", 1, pose))
    pose[:3, 3] = 7.0
    assert seen.camera_m is not None
    assert seen.camera_m[0] == 0.0
