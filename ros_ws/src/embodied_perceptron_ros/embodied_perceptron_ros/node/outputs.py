"""Publishers of perceptions. Messages without a subscriber are not built."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from map_msgs.msg import OccupancyGridUpdate
from nav_msgs.msg import OccupancyGrid
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image, PointCloud2
from vision_msgs.msg import Detection3DArray, LabelInfo
from visualization_msgs.msg import MarkerArray

from embodied_perceptron.geometry.transforms import F64, invert_transform
from embodied_perceptron.language.object_states import with_conditions
from embodied_perceptron.results import UNNAMED, ObjectEvent, OccupancyGrid2d, Perception
from embodied_perceptron.scene.navigation import find_obstacles
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sensors.poses import Found, Gap, TooEarly, TooOld
from embodied_perceptron.visualization.drawing import color_of_class, draw_boxes_on_image
from embodied_perceptron_ros.conversion.maps import (
    grid_to_message,
    grid_update,
    make_label_info,
    obstacles_to_cloud,
    semantic_to_cloud,
    voxels_to_cloud,
)
from embodied_perceptron_ros.conversion.objects import (
    MarkerKey,
    ObjectEventMessage,
    conditions_to_detections,
    event_to_message,
    object_markers,
    objects_to_detections,
)
from embodied_perceptron_ros.conversion.planning_scene import PlanningScenes
from embodied_perceptron_ros.conversion.values import make_image
from embodied_perceptron_ros.node.health import WARN, Health, RateLimit, ThrottledLog
from embodied_perceptron_ros.node.parameters import NodeParameters
from embodied_perceptron_ros.node.qos import EVENTS, latched_qos, qos_overrides, reliable_qos
from embodied_perceptron_ros.node.transforms import TransformSource

_MOVED = 1e-4  # change of a pose (m, or of a rotation's entries) after which everything is published again
_HOLD_S = 5.0  # how long diagnostics report a problem of an output
_UNKNOWN = -1  # of an OccupancyGrid


@dataclass(frozen=True)
class OutputPose:
    """The frame of published results, and ``T_out_world`` from the map's frame to it (None = identity)."""

    frame_id: str
    T_out_world: F64 | None

    def inverse(self) -> F64 | None:
        """``T_world_out``."""
        return None if self.T_out_world is None else invert_transform(self.T_out_world)


def find_output_pose(
    transforms: TransformSource,
    fusion_frame: str,
    frame_id: str,
    stamp_ns: int,
    T_fusion_map: F64 | None = None,
) -> OutputPose | str:
    """Pose for results of ``stamp_ns`` in ``frame_id``, or a message why there is none.

    Uses the transform at that stamp, so that a moving frame (``base_link``) fits; without one, the newest: a loaded map
    is old. For a frame above the fusion frame (``map``), always the newest: localisation publishes it late or rarely,
    and corrects with it where the results lie.
    ``T_fusion_map``: (4, 4) of the map in the fusion frame (:attr:`LiveMap.T_world_map`); None = identity.
    """
    if T_fusion_map is not None and np.array_equal(T_fusion_map, np.eye(4)):
        T_fusion_map = None
    if frame_id.lstrip("/") == fusion_frame.lstrip("/"):
        return OutputPose(fusion_frame, T_fusion_map)
    is_above = _is_above(transforms.links, frame_id, fusion_frame)
    answer = None if is_above else transforms.lookup(frame_id, fusion_frame, stamp_ns)
    if answer is None or isinstance(answer, TooEarly | TooOld | Gap):
        answer = transforms.lookup_latest(frame_id, fusion_frame)
    if not isinstance(answer, Found):
        return str(answer)
    return OutputPose(frame_id, answer.T if T_fusion_map is None else answer.T @ T_fusion_map)


def _is_above(links: Mapping[str, str], frame: str, below: str) -> bool:
    """Return True if ``frame`` is an ancestor of ``below``; ``links``: child -> parent."""
    above = links.get(below.lstrip("/"))
    while above is not None and above != frame.lstrip("/"):
        above = links.get(above)
    return above is not None


class Outputs:
    """The perception topics of a configured node. Call :meth:`publish` from one thread.

    Args:
        parameters: called each time, since they may change.
        camera_frame: optical frame of a camera by its name.
    """

    def __init__(
        self,
        node: LifecycleNode,
        transforms: TransformSource,
        health: Health,
        parameters: Callable[[], NodeParameters],
        camera_frame: Callable[[str], str],
    ) -> None:
        self._node = node
        self._transforms = transforms
        self._health = health
        self._parameters = parameters
        self._camera_frame = camera_frame
        topics: list[tuple[str, Any, QoSProfile]] = [
            ("voxels", PointCloud2, reliable_qos(2)),
            ("boxes", Detection3DArray, reliable_qos(2)),
            ("states", Detection3DArray, reliable_qos(2)),
            ("box_markers", MarkerArray, reliable_qos(2)),
            ("label_info", LabelInfo, latched_qos()),
            ("semantic_voxels", PointCloud2, reliable_qos(2)),
            ("occupancy_grid", OccupancyGrid, latched_qos()),
            ("occupancy_grid_updates", OccupancyGridUpdate, reliable_qos(10)),
            ("obstacles", PointCloud2, reliable_qos(2)),
            ("overlay/image", Image, reliable_qos(2)),
        ]
        if ObjectEventMessage is not None:
            topics.append(("events", ObjectEventMessage, latched_qos(EVENTS)))
        self._scenes: PlanningScenes | None = None
        if parameters().moveit:
            try:
                self._scenes = PlanningScenes()
                topics.append(("planning_scene", self._scenes.type, reliable_qos(10)))
            except ImportError as error:
                node.get_logger().warning(f"~/planning_scene is not published: {error} (package moveit_msgs)")
        self._publishers: dict[str, Any] = {
            topic: node.create_lifecycle_publisher(kind, f"~/{topic}", qos, qos_overriding_options=qos_overrides())
            for topic, kind, qos in topics
        }
        self._events: tuple[ObjectEvent, ...] = ()  # of the last perception
        self._due = deque[ObjectEvent](maxlen=EVENTS)  # wait for a transform
        self._log = ThrottledLog(node.get_logger(), every_s=10.0)
        self._grid: OccupancyGrid | None = None  # as subscribers have it, updates included
        self._grid_limit = RateLimit()
        self._shown: set[MarkerKey] = set()
        self._labels: tuple[str, ...] | None = None
        self._listeners: dict[str, int] = {}
        self._held: set[str] = set()
        self._voxels_limit, self._overlay_limit = RateLimit(), RateLimit()
        self._sent: OutputPose | None = None  # where the last perception was published
        self._timed: PosedFrame | None = None  # the frame whose box latency was counted last

    def close(self) -> None:
        """Destroy the publishers."""
        for publisher in self._publishers.values():
            self._node.destroy_lifecycle_publisher(publisher)
        self._publishers = {}

    def new_listeners(self) -> bool:
        """Return True if somebody subscribed since the last call: without news a viewer would otherwise stay empty."""
        now = {topic: publisher.get_subscription_count() for topic, publisher in self._publishers.items()}
        more = any(count > self._listeners.get(topic, 0) for topic, count in now.items())
        self._listeners = now
        return more

    def has_moved(self, perception: Perception) -> bool:
        """Return True if localisation or the parameter ``output_frame`` moved what was published last."""
        parameters, before = self._parameters(), self._sent
        pose = self._pose_in(parameters.output_frame, perception)
        if isinstance(pose, str):
            return False
        if before is None or pose.frame_id != before.frame_id:
            return True
        if not _is_above(self._transforms.links, pose.frame_id, parameters.fusion_frame):
            return False
        assert pose.T_out_world is not None
        assert before.T_out_world is not None
        return not np.allclose(pose.T_out_world, before.T_out_world, rtol=0.0, atol=_MOVED)

    def _has_listeners(self, topic: str) -> bool:
        return bool(self._publishers[topic].get_subscription_count() > 0)

    def publish(self, perception: Perception, everything: bool = False) -> None:
        """Publish one perception; ``everything``: ignore the rate limits this time."""
        parameters, stamp_ns = self._parameters(), perception.stamp_ns
        if perception.events is not self._events:  # not again for a late subscriber
            self._events = perception.events
            if "events" in self._publishers:
                self._due.extend(perception.events)
            elif perception.events:
                self._log.warning(
                    "events",
                    "~/events is not published: the package embodied_perceptron_msgs is older than this program "
                    "(make setup, or colcon build, builds it)",
                )
        pose = self._pose_in(parameters.output_frame, perception)
        if isinstance(pose, str):
            self._health.count("outputs_without_transform")
            message = f"nothing is published in output_frame {parameters.output_frame!r}: {pose}"
            self._health.problem("transforms", WARN, message)
            self._log.warning("output_frame", message)
            return
        self._health.clear_problem("transforms")
        self._sent = pose
        place = (stamp_ns, pose.frame_id, pose.T_out_world)
        # boxes first: their latency matters most
        if self._has_listeners("boxes"):
            self._send("boxes", objects_to_detections(perception.objects, *place))
        if self._scenes is not None and self._has_listeners("planning_scene"):
            scene = self._scenes.difference(perception.objects, *place, everything)
            if scene is not None:
                self._send("planning_scene", scene)
        while self._due:
            self._send("events", event_to_message(self._due.popleft(), *place[1:]))
        source = perception.source
        if source is not None and source is not self._timed:  # not again for a late subscriber
            self._health.latency("boxes", (time.time_ns() - source.arrival_ns) / 1e6)
            self._timed = source
        if self._has_listeners("states"):
            conditioned = with_conditions(perception.objects, perception.voxels)
            self._send("states", conditions_to_detections(conditioned, *place))
        if self._has_listeners("box_markers"):
            markers, self._shown = object_markers(perception.objects, self._shown, *place)
            self._send("box_markers", markers)
        if perception.semantic.classes != self._labels or everything:
            self._labels = names = perception.semantic.classes
            if parameters.config.network.classes and UNNAMED not in names:  # with a list of names, other boxes have it
                names = (*names, UNNAMED)
            self._send("label_info", make_label_info(names, stamp_ns, pose.frame_id))
        if perception.grid.cells.size or self._grid is not None:  # for an empty grid Nav2 would resize its costmap
            self._publish_grid(perception.grid, place, parameters.grid_full_s, everything)
        if self._has_listeners("obstacles"):
            self._publish_obstacles(perception, parameters)
        if self._has_listeners("semantic_voxels"):
            self._send("semantic_voxels", semantic_to_cloud(perception.semantic, *place))
        self._held = {"voxels", "overlay/image"}
        self.publish_held(perception, everything)

    def _publish_grid(
        self,
        grid: OccupancyGrid2d,
        place: tuple[int, str, F64 | None],
        full_s: float,
        everything: bool,
    ) -> None:
        """Publish the whole grid, or an update if subscribers of updates have a whole grid of the same place."""
        if grid.cells.size:
            message = grid_to_message(grid, *place, padded=full_s > 0)
        else:  # the map was reset: every cell becomes unknown
            assert self._grid is not None
            message = OccupancyGrid(header=self._grid.header, info=self._grid.info)
            message.data = array("b", [_UNKNOWN]) * (message.info.width * message.info.height)
        update = None
        if self._grid is not None and full_s > 0 and self._has_listeners("occupancy_grid_updates") and not everything:
            update = grid_update(self._grid, message)
        self._grid = message
        if self._grid_limit.allows(1.0 / full_s if full_s > 0 else 1.0, always=update is None):
            self._send("occupancy_grid", message)
        elif update.width:
            self._send("occupancy_grid_updates", update)

    def _publish_obstacles(self, perception: Perception, parameters: NodeParameters) -> None:
        frame = parameters.base_frame
        pose = self._pose_in(frame, perception)
        if isinstance(pose, str):
            self._health.count("obstacles_without_transform")
            message = f"no obstacles: base_frame {frame!r} is not known: {pose}"
            self._health.problem("transforms", WARN, message, "base_frame", hold_s=_HOLD_S)
            self._log.warning("base_frame", message)
            return
        T_base_world = np.eye(4) if pose.T_out_world is None else pose.T_out_world
        obstacles = find_obstacles(
            perception.voxels,
            perception.grid,
            invert_transform(T_base_world)[:3, 3],
            parameters.obstacles_range_m,
            parameters.config.grid,
            perception.semantic,
        )
        self._send("obstacles", obstacles_to_cloud(obstacles, perception.stamp_ns, pose.frame_id, T_base_world))

    def publish_held(self, perception: Perception, everything: bool = False) -> None:
        """Publish outputs that their own rate held back, if they are due: viewers must get the last state of a map."""
        parameters, stamp_ns = self._parameters(), perception.stamp_ns
        due = "voxels" in self._held and self._has_listeners("voxels")
        if due and self._voxels_limit.allows(parameters.voxels_hz, everything):
            pose = self._pose_in(parameters.output_frame, perception)
            if not isinstance(pose, str):
                place = (stamp_ns, pose.frame_id, pose.T_out_world)
                self._send("voxels", voxels_to_cloud(perception.voxels, *place, parameters.voxels_max_points))
                self._held.discard("voxels")
        topic, source = "overlay/image", perception.source
        if source is None or topic not in self._held or not self._has_listeners(topic):
            return
        if self._overlay_limit.allows(parameters.overlay_hz, everything):
            frame = source.frame
            colors = {thing.id: color_of_class(thing.label) for thing in perception.objects}
            pose = source.T_world_camera
            drawn = draw_boxes_on_image(frame.color, perception.objects, pose, frame.intrinsics, colors)
            self._send(topic, make_image(drawn, "rgb8", frame.stamp_ns, self._camera_frame(frame.camera)))
            self._held.discard(topic)

    def _pose_in(self, frame_id: str, perception: Perception) -> OutputPose | str:
        fusion_frame = self._parameters().fusion_frame
        return find_output_pose(self._transforms, fusion_frame, frame_id, perception.stamp_ns, perception.T_world_map)

    def send_event(self, event: ObjectEvent, pose: OutputPose) -> None:
        """Publish an event at once, in the frame of ``pose``; thread-safe."""
        if "events" in self._publishers:
            self._send("events", event_to_message(event, pose.frame_id, pose.T_out_world))

    def _send(self, topic: str, message: Any) -> None:
        self._publishers[topic].publish(message)
        self._health.tick(f"published.{topic}")
