"""The frame of the map is published when the robot's place is known, and again when it has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")

from rclpy.clock import Clock

from embodied_perceptron.geometry.transforms import invert_transform, make_transform
from embodied_perceptron_ros.conversion.values import transform_to_matrix
from embodied_perceptron_ros.node.transforms import MapFramePublisher

pytestmark = pytest.mark.ros


class Node:
    """Collects what is published."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.topics: list[str] = []

    def create_publisher(self, kind: type, topic: str, qos: Any) -> Any:
        self.topics.append(topic)
        return self

    def publish(self, message: Any) -> None:
        self.sent += message.transforms

    def get_clock(self) -> Clock:
        return Clock()


class Map:
    """A perceptron whose map lies somewhere."""

    place_estimate: Any = None
    T_world_map = np.eye(4)


def test_the_transform_is_sent_once_for_each_place():
    node, owner = Node(), Map()
    publisher = MapFramePublisher(node, owner, "map", "odom")
    assert node.topics == ["/tf_static"]
    owner.place_estimate = "looked for"
    publisher.update()
    assert not node.sent
    owner.place_estimate = None
    publisher.update()
    publisher.update()
    assert len(node.sent) == 1
    c, s = np.cos(0.7), np.sin(0.7)
    owner.T_world_map = make_transform(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.array([1.0, 2.0, 0.0]))
    publisher.update()
    assert len(node.sent) == 2
    last = node.sent[-1]
    assert (last.header.frame_id, last.child_frame_id) == ("map", "odom")
    assert np.allclose(transform_to_matrix(last.transform), invert_transform(owner.T_world_map))
