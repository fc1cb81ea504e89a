"""Topics that a parameter names are reported while they bring nothing."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")

from embodied_perceptron_ros.node.health import Health
from embodied_perceptron_ros.node.optional_inputs import OptionalInputs

TYPE = "vision_msgs/msg/Detection2DArray"


class Robot:
    """A node, its clock, the publishers of every topic, and its inputs."""

    def __init__(self, *types: str) -> None:
        self.now_s, self.types, self.lines, self.health = 0.0, types, [], Health("perception")
        self.inputs = OptionalInputs(self, lambda: self.now_s)

    def resolve_topic_name(self, topic: str) -> str:
        return f"/robot/{topic}"

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        return [SimpleNamespace(topic_type=each) for each in self.types]

    def get_logger(self) -> Any:
        return SimpleNamespace(warning=self.lines.append)

    def after(self, seconds: float) -> list[str]:
        """Messages of diagnostics."""
        self.now_s += seconds
        self.inputs.report()
        return [message for _, _, message in self.health.problems()]


@pytest.mark.parametrize(
    ("types", "happens", "rare", "expected"),
    [
        ((), None, False, "nobody publishes /robot/yolo"),
        ((), None, True, "nobody publishes /robot/yolo"),
        (("std_msgs/msg/String",), None, False, "/robot/yolo is published as std_msgs/msg/String, not as " + TYPE),
        ((TYPE,), None, False, "nothing has arrived on /robot/yolo"),
        ((TYPE,), None, True, ""),
        ((TYPE,), "received", False, ""),  # empty: nothing is in view
        ((TYPE,), "used", False, ""),
        ((TYPE,), "refused", False, "none of the boxes of /robot/yolo could be used for 6 s: 3 times empty_box (flat)"),
        ((TYPE,), "refused", True, "3 times empty_box"),
    ],
)
def test_an_input_that_brings_nothing_is_reported_once_with_the_reason(types, happens, rare, expected) -> None:
    robot = Robot(*types)
    robot.inputs.add("yolo", TYPE, "boxes", "lift", rare)
    if happens == "refused":
        robot.inputs.refused("yolo", Counter({"empty_box": 3}), "flat")
    elif happens is not None:
        getattr(robot.inputs, happens)("yolo")
    assert robot.after(1.0) == []
    for _ in range(2):
        found = robot.after(5.0 if not robot.lines else 0.0)
        assert len(found) == len(robot.lines) == bool(expected)
        assert not expected or (expected in found[0] and expected in robot.lines[0])
    robot.types = (TYPE,)
    robot.inputs.used("yolo")
    assert robot.after(1.0) == []


def test_another_reason_is_another_line_and_deactivation_ends_the_report() -> None:
    robot = Robot()
    robot.inputs.add("yolo", TYPE, "boxes", "lift")
    robot.after(6.0)
    robot.types = ("std_msgs/msg/String",)
    robot.after(1.0)
    assert len(robot.lines) == 2
    robot.inputs.close()
    assert robot.health.problems() == []


def test_a_topic_that_no_parameter_names_is_not_watched() -> None:
    robot = Robot()
    robot.inputs.used("other")
    robot.inputs.refused("other", Counter({"empty_box": 1}))
    assert robot.after(10.0) == []
