"""The examples that users copy: what they decide by themselves, and what they say where something is absent."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def go_to():
    spec = importlib.util.spec_from_file_location("go_to", EXAMPLES / "go_to.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_a_pose_that_can_be_reached_is_a_goal(go_to):
    pose = object()
    found = SimpleNamespace(status=1, reachable=True, approach=pose, reason="")
    assert go_to.goal_of(found) is pose
    with pytest.raises(LookupError, match="no free place"):
        go_to.goal_of(SimpleNamespace(status=1, reachable=False, approach=pose, reason=""))
    with pytest.raises(LookupError, match="NOT_FOUND: there is no chair"):
        go_to.goal_of(SimpleNamespace(status=2, reachable=True, approach=pose, reason="there is no chair"))


def test_without_nav2_the_package_is_named(go_to, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nav2_msgs", None)
    monkeypatch.setitem(sys.modules, "nav2_msgs.action", None)
    monkeypatch.setitem(sys.modules, "rclpy", SimpleNamespace())
    assert go_to.main(["the chair"]) == 3
    said = capsys.readouterr().err
    assert "Nav2 is not installed" in said
    assert "nav2-msgs" in said


def test_who_is_not_there_is_named(go_to, monkeypatch, capsys):
    """Nav2 is installed, but neither it nor the node runs; then the node alone does."""
    rclpy = pytest.importorskip("rclpy")
    msgs = pytest.importorskip("embodied_perceptron_msgs")
    assert msgs
    from embodied_perceptron_msgs.action import Ground
    from support.ros_live import own_domain

    goal = SimpleNamespace(status=1, reachable=True, distance=1.0, approach=None, reason="")
    goal.approach = SimpleNamespace(
        pose=SimpleNamespace(position=SimpleNamespace(x=1.0, y=2.0)), header=SimpleNamespace(frame_id="map")
    )
    monkeypatch.setattr(go_to, "navigate_to_pose", lambda: Ground)
    with own_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        assert go_to.main(["the chair", "--timeout", "0.2"]) == 3
        assert "nobody offers /perception/ask" in capsys.readouterr().err
        monkeypatch.setattr(go_to, "ask", lambda *_: goal)
        assert go_to.main(["the chair", "--timeout", "0.2"]) == 3
        assert "nobody offers /navigate_to_pose: is Nav2 running?" in capsys.readouterr().err
    assert not rclpy.ok()
