"""The frame of the map, for robots without a SLAM system that publishes one: ``map_frame`` -> ``fusion_frame``.

A static transform: it changes when the robot's place in another map was found, and not in between.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from tf2_msgs.msg import TFMessage

from embodied_perceptron.geometry.transforms import invert_transform
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_ros.conversion.values import make_transform_stamped
from embodied_perceptron_ros.players.playback import latched_qos


class MapFramePublisher:
    """Publishes on ``/tf_static`` where the fusion frame lies in the map. From any thread."""

    def __init__(self, node: Node, perceptron: Perceptron, map_frame: str, fusion_frame: str) -> None:
        self._node = node
        self._perceptron = perceptron
        self._frames = map_frame, fusion_frame
        self._lock = threading.Lock()
        self._published: NDArray[np.float64] | None = None
        self._publisher = node.create_publisher(TFMessage, "/tf_static", latched_qos())

    def update(self) -> None:
        """Publish where it has changed; nothing as long as the robot's place is looked for."""
        if self._perceptron.place_estimate is not None:
            return
        T_map_fusion = invert_transform(self._perceptron.T_world_map)
        with self._lock:
            if self._published is not None and np.array_equal(self._published, T_map_fusion):
                return
            self._published = T_map_fusion
            stamp_ns = self._node.get_clock().now().nanoseconds
            stamped = make_transform_stamped(T_map_fusion, stamp_ns, *self._frames)
            self._publisher.publish(TFMessage(transforms=[stamped]))

    def close(self) -> None:
        """Destroy the publisher."""
        self._node.destroy_publisher(self._publisher)
