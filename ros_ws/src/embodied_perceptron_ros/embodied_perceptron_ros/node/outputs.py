"""Publishers of everything that perception yields; nothing is built that nobody listens to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from nav_msgs.msg import OccupancyGrid
from numpy.typing import NDArray
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import Detection3DArray, LabelInfo
from visualization_msgs.msg import MarkerArray

from embodied_perceptron.geometry.boxes import BOX_EDGES, box_corners
from embodied_perceptron.geometry.transforms import Intrinsics, invert_transform, transform_points
from embodied_perceptron.results import Perception, SceneObject
from embodied_perceptron.sensors.poses import Found, Gap, TooEarly, TooOld
from embodied_perceptron_ros.conversion.maps import grid_to_message, make_label_info, semantic_to_cloud, voxels_to_cloud
from embodied_perceptron_ros.conversion.objects import (
    MarkerKey,
    label_color,
    object_markers,
    objects_to_detections,
)
from embodied_perceptron_ros.conversion.values import make_image
from embodied_perceptron_ros.node.fusion_worker import FusedFrame
from embodied_perceptron_ros.node.health import WARN, Health
from embodied_perceptron_ros.node.parameters import NodeParameters
from embodied_perceptron_ros.node.transforms import TransformSource

# --------------------------------------------------------------------------------------------------------------------
# Objects drawn into a camera image.

_NEAR_M = 0.05
_FAR_PIXELS = 1e5  # OpenCV clips lines itself, in 32-bit integers with 16 fractional bits to spare


def draw_objects(
    color: NDArray[np.uint8],
    intrinsics: Intrinsics,
    T_world_camera: NDArray[np.float64],
    objects: Iterable[SceneObject],
) -> NDArray[np.uint8]:
    """A copy of the (H, W, 3) image with the edges of boxes in view and their labels."""
    image = np.ascontiguousarray(color).copy()
    T_camera_world = invert_transform(T_world_camera)
    for item in objects:
        corners = transform_points(T_camera_world, box_corners(item.box[None])[0])
        rgb = tuple(int(255 * c) for c in label_color(item.label))
        seen: list[tuple[int, int]] = []
        for a, b in BOX_EDGES:
            segment = clip_to_front(corners[a], corners[b])
            if segment is None:
                continue
            first, second = (_to_pixel(p, intrinsics) for p in segment)
            inside, start, end = cv2.clipLine((0, 0, intrinsics.width, intrinsics.height), first, second)
            if inside:
                cv2.line(image, start, end, rgb, 2, cv2.LINE_AA)
                seen += [(start[0], start[1]), (end[0], end[1])]
        if seen:
            x, y = min(seen, key=lambda p: p[1])
            where = (min(max(x, 2), max(intrinsics.width - 120, 2)), max(y - 6, 14))
            cv2.putText(image, f"{item.label} {item.id}", where, cv2.FONT_HERSHEY_SIMPLEX, 0.5, rgb, 1, cv2.LINE_AA)
    return image


def clip_to_front(
    a: NDArray[np.float64], b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """The part of the segment between two (3,) optical-frame points that lies in front of the camera."""
    if a[2] < _NEAR_M and b[2] < _NEAR_M:
        return None
    if a[2] < _NEAR_M:
        a = a + (b - a) * ((_NEAR_M - a[2]) / (b[2] - a[2]))
    elif b[2] < _NEAR_M:
        b = b + (a - b) * ((_NEAR_M - b[2]) / (a[2] - b[2]))
    return a, b


def _to_pixel(point: NDArray[np.float64], intrinsics: Intrinsics) -> tuple[int, int]:
    u = intrinsics.fx * point[0] / point[2] + intrinsics.cx
    v = intrinsics.fy * point[1] / point[2] + intrinsics.cy
    return round(float(np.clip(u, -_FAR_PIXELS, _FAR_PIXELS))), round(float(np.clip(v, -_FAR_PIXELS, _FAR_PIXELS)))


# --------------------------------------------------------------------------------------------------------------------
# Publishers of everything that perception yields; nothing is built that nobody listens to.


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
