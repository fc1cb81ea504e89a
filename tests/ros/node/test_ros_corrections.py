"""Corrected keyframe poses: reading a path, and applying it to a map. No node is started."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("nav_msgs")
pytest.importorskip("tf2_msgs")

from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Path
from support.ros_live import turned

from embodied_perceptron_ros.conversion.values import make_header, matrix_to_pose
from embodied_perceptron_ros.node.corrections import CorrectionError, corrected_poses

pytestmark = pytest.mark.ros
S = 1_000_000_000
KEYFRAMES = {("front", 1 * S): None, ("rear", 1 * S): None, ("front", 2 * S): None}


def path_of(poses: dict[int, np.ndarray], frame_id: str = "odom") -> Path:
    stamped = [PoseStamped(header=make_header(t, frame_id), pose=matrix_to_pose(T)) for t, T in poses.items()]
    return Path(header=make_header(0, frame_id), poses=stamped)


def identity(camera: str, stamp_ns: int) -> np.ndarray:
    return np.eye(4)


def test_stamps_name_keyframes_of_all_cameras():
    path = path_of({1 * S: turned(0.2), 2 * S: turned(0.0, 1.0), 5 * S: turned(0.1)})
    poses, unknown = corrected_poses(path, "odom", KEYFRAMES, identity)
    assert set(poses) == set(KEYFRAMES)
    assert unknown == 1
    np.testing.assert_allclose(poses["rear", 1 * S], turned(0.2), atol=1e-9)
    np.testing.assert_allclose(poses["front", 2 * S], turned(0.0, 1.0), atol=1e-9)


def test_poses_of_the_base_carry_the_cameras_along():
    mount = {"front": turned(0.0, 0.3), "rear": turned(np.pi, -0.3)}
    base = np.eye(4)
    base[:3, 3] = (4.0, 1.0, 0.0)
    poses, _ = corrected_poses(path_of({1 * S: base}), "/odom", KEYFRAMES, lambda camera, _: mount[camera])
    assert set(poses) == {("front", 1 * S), ("rear", 1 * S)}
    np.testing.assert_allclose(poses["rear", 1 * S], base @ mount["rear"], atol=1e-9)


def test_a_path_in_another_frame_is_refused_by_name():
    with pytest.raises(CorrectionError, match="'odom', got 'map'"):
        corrected_poses(path_of({1 * S: np.eye(4)}, "map"), "odom", KEYFRAMES, identity)


def test_a_pose_that_is_none_is_refused_with_its_stamp():
    path = path_of({1 * S: np.eye(4)})
    path.poses[0].pose.orientation.w = 0.0
    with pytest.raises(CorrectionError, match=f"pose at {S} ns"):
        corrected_poses(path, "odom", KEYFRAMES, identity)


def test_an_empty_path_names_nothing():
    assert corrected_poses(path_of({}), "odom", KEYFRAMES, identity) == ({}, 0)
