"""An agent asks a running node: objects from its topics, sentences through its service."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is absent")
pytest.importorskip("embodied_perceptron_msgs")

from embodied_perceptron_msgs.msg import GroundingResult
from support.ros_live import own_domain

from embodied_perceptron.agents.source import SceneUnavailableError
from embodied_perceptron.agents.tools import call_tool
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron_ros.conversion.maps import voxels_to_cloud
from embodied_perceptron_ros.players.asking import answer_lines
from embodied_perceptron_ros.players.live_scene import cloud_to_voxels, live_scene

pytestmark = pytest.mark.ros


def test_a_cloud_becomes_voxels_again():
    rng = np.random.default_rng(1)
    coords = np.array([(x, y, 0) for x in range(-9, 9) for y in range(-5, 5)] + [(8, y, 1) for y in range(5)], np.int32)
    coords = coords[np.lexsort(coords.T[::-1])]
    n = len(coords)
    voxels = VoxelSnapshot(
        0.04, coords, ((coords + 0.5) * 0.04).astype(np.float32), rng.integers(0, 255, (n, 3)).astype(np.uint8),
        np.full(n, 3, np.int32), np.ones(n, np.float32), np.full(n, 5, np.int64),
    )  # fmt: skip
    again = cloud_to_voxels(voxels_to_cloud(voxels, 5, "map"))
    assert again.voxel_size_m == pytest.approx(0.04, abs=1e-3)
    assert np.allclose(again.mean_point_m, voxels.mean_point_m)
    assert (again.mean_color == voxels.mean_color).all()
    assert (np.diff(again.coords[:, 0]) >= 0).all()
    assert not len(cloud_to_voxels(voxels_to_cloud(voxels, 5, "map").__class__()))


def test_no_node_is_said(monkeypatch):
    with own_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        with live_scene(namespace="nowhere", timeout_s=0.5) as source:
            with pytest.raises(SceneUnavailableError, match="the node /nowhere/perception is not there"):
                call_tool(source, "list_objects", {})
            with pytest.raises(SceneUnavailableError, match="nobody offers /nowhere/perception/ask"):
                call_tool(source, "find", {"sentence": "the chair"})


def test_what_was_found_without_a_way_to_it_says_so() -> None:
    lines = answer_lines(GroundingResult(status=GroundingResult.FOUND, reachable=False))
    assert lines[-1] == "  no free floor in front of it is known"
    assert "go to x" in answer_lines(GroundingResult(status=GroundingResult.FOUND, reachable=True))[-1]
    assert "free floor" not in answer_lines(GroundingResult(status=GroundingResult.NOT_FOUND, reason="none"))[-1]
