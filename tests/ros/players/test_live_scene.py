"""An agent asks a running node: objects from its topics, sentences through its service."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is absent")
pytest.importorskip("rclpy")
pytest.importorskip("embodied_perceptron_msgs")

from embodied_perceptron_msgs.msg import GroundingResult
from support.ros_live import own_domain, running_node, scene_depth, turned, wait_until
from vision_msgs.msg import Detection3DArray

from embodied_perceptron.agents.source import SceneUnavailableError
from embodied_perceptron.agents.tools import ToolInputError, call_tool
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


def test_tools_say_what_the_node_says(tmp_path, monkeypatch):
    with running_node(tmp_path) as (_, peer):
        monkeypatch.setenv("ROS_DOMAIN_ID", str(peer.context.get_domain_id()))
        boxes = peer.listen("/perception/boxes", Detection3DArray)
        with live_scene(namespace="", timeout_s=20.0) as source:
            stamp_ns = 1_000_000_000

            def found():
                nonlocal stamp_ns
                stamp_ns += 100_000_000
                peer.send_frame(stamp_ns, depth_m=scene_depth(), T=turned(0.02 * np.sin(stamp_ns)))
                return boxes and boxes[-1].detections

            wait_until(found, 60, "an object")
            answer = wait_until(lambda: call_tool(source, "list_objects", {}).values["objects"], 60, "its box")
            shown = {d.id: d.bbox.center.position for d in boxes[-1].detections}
            assert {str(o["id"]) for o in answer} == set(shown)
            for o in answer:
                at = shown[str(o["id"])]
                assert np.allclose(o["position_m"], [at.x, at.y, at.z], atol=0.05)
            assert source.frame() == boxes[-1].header.frame_id
            found_by = call_tool(source, "find", {"sentence": "the object"}).values
            assert found_by["status"] in ("FOUND", "AMBIGUOUS", "INVALID")
            if found_by["status"] == "INVALID":
                assert "no language model" in found_by["reason"]
            with pytest.raises(ToolInputError, match="answers from the robot's viewpoint"):
                call_tool(source, "find", {"sentence": "the chair", "standing_at": [0, 0, 0]})
            wait_until(lambda: len(source.perception().voxels), 60, "voxels")
            wait_until(lambda: source.perception().grid.cells.size, 60, "the grid")
            assert call_tool(source, "snapshot", {}).pictures[0].std() > 5
            goal = call_tool(source, "goal_near", {"id": answer[0]["id"], "robot_radius_m": 0.1}).values
            assert goal["reachable"] or "no free floor" in goal["reason"]


def test_what_was_found_without_a_way_to_it_says_so() -> None:
    lines = answer_lines(GroundingResult(status=GroundingResult.FOUND, reachable=False))
    assert lines[-1] == "  no free floor in front of it is known"
    assert "go to x" in answer_lines(GroundingResult(status=GroundingResult.FOUND, reachable=True))[-1]
    assert "free floor" not in answer_lines(GroundingResult(status=GroundingResult.NOT_FOUND, reason="none"))[-1]
