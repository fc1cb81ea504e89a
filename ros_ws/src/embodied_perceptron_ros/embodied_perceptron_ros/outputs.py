"""Publishers of everything that perception yields; nothing is built that nobody listens to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from nav_msgs.msg import OccupancyGrid
from numpy.typing import NDArray
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import Detection3DArray, LabelInfo
from visualization_msgs.msg import MarkerArray

from embodied_perceptron.geometry import invert_transform
from embodied_perceptron.results import Perception
from embodied_perceptron.trajectory import Found, Gap, TooEarly, TooOld
from embodied_perceptron_ros.conversions import make_image
from embodied_perceptron_ros.fusion_worker import FusedFrame
from embodied_perceptron_ros.health import WARN, Health
from embodied_perceptron_ros.map_messages import (
    grid_to_message,
    make_label_info,
    semantic_to_cloud,
    voxels_to_cloud,
)
from embodied_perceptron_ros.object_messages import MarkerKey, object_markers, objects_to_detections
from embodied_perceptron_ros.overlay import draw_objects
from embodied_perceptron_ros.parameters import NodeParameters
from embodied_perceptron_ros.transforms import TransformSource


@dataclass(frozen=True)
class OutputPose:
    """Where results go: the frame, and ``T_out_world`` (None = they stay as they are)."""

    frame_id: str
    T_out_world: NDArray[np.float64] | None

    def inverse(self) -> NDArray[np.float64] | None:
        """``T_world_out``."""
        return None if self.T_out_world is None else invert_transform(self.T_out_world)


def find_output_pose(transforms: TransformSource, fusion_frame: str, frame_id: str, stamp_ns: int) -> OutputPose | str:
    """How results of ``stamp_ns`` are moved into ``frame_id``; or, in words, why they cannot be.

    The transform at the results' own stamp, so that a moving frame (``base_link``) fits; where there is none at that
    stamp, the newest: a localisation publishes ``map -> odom`` late or rarely, and a loaded map is old.
    """
    if frame_id.lstrip("/") == fusion_frame.lstrip("/"):
        return OutputPose(fusion_frame, None)
    answer = transforms.lookup(frame_id, fusion_frame, stamp_ns)
    if isinstance(answer, TooEarly | TooOld | Gap):
        answer = transforms.lookup_latest(frame_id, fusion_frame)
    return OutputPose(frame_id, answer.T) if isinstance(answer, Found) else str(answer)


class Limiter:
    """At most so many times a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = float("-inf")

    def due(self, rate_hz: float, always: bool = False) -> bool:
        """Whether it may happen now; if so it counts as done."""
        now_s = self._clock()
        if not always and now_s - self._last_s < 0.999 / rate_hz:
            return False
        self._last_s = now_s
        return True


class Outputs:
    """The perception topics of a configured node. :meth:`publish` belongs to one thread."""

    def __init__(
        self,
        node: LifecycleNode,
        transforms: TransformSource,
        health: Health,
        parameters: Callable[[], NodeParameters],
    ) -> None:
        self._node = node
        self._transforms = transforms
        self._health = health
        self._parameters = parameters
        reliable: dict[str, Any] = {"reliability": ReliabilityPolicy.RELIABLE, "history": HistoryPolicy.KEEP_LAST}
        plain: dict[str, Any] = {"depth": 2, **reliable}
        latched: dict[str, Any] = {"depth": 1, "durability": DurabilityPolicy.TRANSIENT_LOCAL, **reliable}
        self._publishers: dict[str, Any] = {}
        for topic, message_type, profile in (
            ("voxels", PointCloud2, plain),
            ("boxes", Detection3DArray, plain),
            ("box_markers", MarkerArray, plain),
            ("label_info", LabelInfo, latched),
            ("semantic_voxels", PointCloud2, plain),
            ("occupancy_grid", OccupancyGrid, latched),
            ("overlay/image", Image, plain),
        ):
            self._publishers[topic] = node.create_lifecycle_publisher(
                message_type,
                f"~/{topic}",
                QoSProfile(**profile),
                qos_overriding_options=QoSOverridingOptions.with_default_policies(),
            )
        self._shown: set[MarkerKey] = set()
        self._labels: tuple[str, ...] | None = None
        self._listeners: dict[str, int] = {}
        self._held: set[str] = set()
        self._voxels_limit, self._overlay_limit = Limiter(), Limiter()

    def close(self) -> None:
        """Destroy the publishers."""
        for publisher in self._publishers.values():
            self._node.destroy_lifecycle_publisher(publisher)
        self._publishers = {}

    def new_listeners(self) -> bool:
        """Whether somebody subscribed since the last call: a still robot would otherwise show nothing in a viewer."""
        now = {topic: publisher.get_subscription_count() for topic, publisher in self._publishers.items()}
        more = any(count > self._listeners.get(topic, 0) for topic, count in now.items())
        self._listeners = now
        return more

    def _heard(self, topic: str) -> bool:
        return bool(self._publishers[topic].get_subscription_count() > 0)

    def publish(self, perception: Perception, newest: FusedFrame | None, *, everything: bool = False) -> None:
        """Publish one perception; ``everything``: rates do not hold this time."""
        parameters, stamp_ns = self._parameters(), perception.stamp_ns
        pose = find_output_pose(self._transforms, parameters.fusion_frame, parameters.output_frame, stamp_ns)
        if isinstance(pose, str):
            self._health.count("outputs_without_transform")
            self._health.problem("transforms", WARN, f"nothing is published in {parameters.output_frame!r}: {pose}")
            return
        self._health.clear_problem("transforms")
        place = (stamp_ns, pose.frame_id, pose.T_out_world)
        # boxes first: theirs is the latency that is promised
        if self._heard("boxes"):
            self._send("boxes", objects_to_detections(perception.objects, *place))
        if newest is not None:
            self._health.latency("boxes", (time.time_ns() - newest.sent_ns) / 1e6)
        if self._heard("box_markers"):
            markers, self._shown = object_markers(perception.objects, self._shown, *place)
            self._send("box_markers", markers)
        if perception.semantic.classes != self._labels or everything:
            self._labels = perception.semantic.classes
            self._send("label_info", make_label_info(self._labels, stamp_ns, pose.frame_id))
        self._send("occupancy_grid", grid_to_message(perception.grid, *place))
        if self._heard("semantic_voxels"):
            self._send("semantic_voxels", semantic_to_cloud(perception.semantic, *place))
        self._held = {"voxels", "overlay/image"}
        self.publish_held(perception, newest, everything=everything)

    def publish_held(self, perception: Perception, newest: FusedFrame | None, *, everything: bool = False) -> None:
        """Publish what its own rate held back, if it is due now: the last state of a map must reach its viewers."""
        parameters, stamp_ns = self._parameters(), perception.stamp_ns
        if (
            "voxels" in self._held
            and self._heard("voxels")
            and self._voxels_limit.due(parameters.voxels_hz, everything)
        ):
            pose = find_output_pose(self._transforms, parameters.fusion_frame, parameters.output_frame, stamp_ns)
            if not isinstance(pose, str):
                self._send("voxels", voxels_to_cloud(perception.voxels, stamp_ns, pose.frame_id, pose.T_out_world))
                self._held.discard("voxels")
        topic = "overlay/image"
        if newest is None or topic not in self._held or not self._heard(topic):
            return
        if self._overlay_limit.due(parameters.overlay_hz, everything):
            self._send(topic, _overlay(perception, newest))
            self._held.discard(topic)

    def _send(self, topic: str, message: Any) -> None:
        self._publishers[topic].publish(message)
        self._health.tick(f"published.{topic}")


def _overlay(perception: Perception, newest: FusedFrame) -> Image:
    frame = newest.posed.frame
    drawn = draw_objects(frame.color, frame.intrinsics, newest.posed.T_world_camera, perception.objects)
    return make_image(drawn, "rgb8", frame.stamp_ns, newest.frame_id)
