"""An agent asks a running node: objects from its topics, sentences through its service."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="ROS 2 is absent")
pytest.importorskip("embodied_perceptron_msgs")

from embodied_perceptron_msgs.msg import GroundingResult
from support.language_scenes import thing
from support.ros_live import own_domain

from embodied_perceptron.agents.source import SceneUnavailableError
from embodied_perceptron.agents.tools import call_tool
from embodied_perceptron.results import EventKind, ObjectEvent, ObjectState, VoxelSnapshot
from embodied_perceptron_ros.conversion.maps import voxels_to_cloud
from embodied_perceptron_ros.players.asking import answer_lines
from embodied_perceptron_ros.players.live_scene import cloud_to_voxels, live_scene, with_events

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


@pytest.mark.parametrize("appeared_first", [True, False])
def test_an_object_that_was_recognised_is_not_an_object_of_its_former_id(appeared_first):
    chair, other = thing(3, "chair", (1, 0, 0.45), (0.5, 0.5, 0.9)), thing(4, "lamp", (2, 0, 0.5), (0.3, 0.3, 1.0))
    appeared = ObjectEvent(5, EventKind.APPEARED, 9, None, thing(9, "chair", (1, 0, 0.45), (0.5, 0.5, 0.9)), 0.9)
    moved = ObjectEvent(6, EventKind.MOVED, 3, chair, chair, 0.9, "it looks the same", formerly=9)
    left = ObjectEvent(7, EventKind.LEFT, 5, thing(5, "mug", (0, 0, 1), (0.1, 0.1, 0.1)), None, 0.9)
    told = with_events([chair, other], [*([appeared] if appeared_first else []), moved, left])
    assert [(o.id, o.state, o.merged_from) for o in told] == [
        (3, ObjectState.CONFIRMED, (9,)),
        (4, ObjectState.CONFIRMED, ()),
        (5, ObjectState.GONE, ()),
    ]
    assert [e.kind for e in told[0].history] == [EventKind.MOVED]
