"""What ``ask`` prints of an answer."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("embodied_perceptron_msgs")

from embodied_perceptron_msgs.msg import GroundingResult

from embodied_perceptron_ros.players.asking import answer_lines

pytestmark = pytest.mark.ros


def test_what_was_found_without_a_way_to_it_says_so() -> None:
    lines = answer_lines(GroundingResult(status=GroundingResult.FOUND, reachable=False))
    assert lines[-1] == "  no free floor in front of it is known"
    assert "go to x" in answer_lines(GroundingResult(status=GroundingResult.FOUND, reachable=True))[-1]
    assert "free floor" not in answer_lines(GroundingResult(status=GroundingResult.NOT_FOUND, reason="none"))[-1]
