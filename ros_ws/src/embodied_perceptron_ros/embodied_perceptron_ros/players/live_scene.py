"""The scene of a running node, from its topics and its service ``~/ask``, for the tools of an agent."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from embodied_perceptron_msgs.srv import Ask
from nav_msgs.msg import OccupancyGrid
from numpy.typing import NDArray
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from scipy.spatial import cKDTree
from sensor_msgs.msg import PointCloud2
from vision_msgs.msg import Detection3DArray

from embodied_perceptron.agents.source import ObjectView, SceneUnavailableError
from embodied_perceptron.results import (
    EventKind,
    Grounding,
    HistoryEntry,
    ObjectEvent,
    ObjectState,
    OccupancyGrid2d,
    Perception,
    SceneObject,
    SemanticVoxels,
    VoxelSnapshot,
)
from embodied_perceptron_ros.conversion.maps import cloud_to_rows, message_to_grid, unpack_rgb
from embodied_perceptron_ros.conversion.objects import (
    ObjectEventMessage,
    detections_to_objects,
    message_to_event,
    message_to_grounding,
)
from embodied_perceptron_ros.conversion.values import stamp_to_ns
from embodied_perceptron_ros.node.guest import Guest
from embodied_perceptron_ros.node.qos import EVENTS, latched_qos, reliable_qos
from embodied_perceptron_ros.players.asking import service_name

_SAMPLE, _LEAST_VOXEL_M = 2000, 0.005
_NOWHERE = OccupancyGrid2d(0.05, np.zeros(2), np.full((0, 0), -1, np.int8), 0.0)


class NodeSource:
    """A :class:`.SceneSource` of a running node.

    Args:
        node: subscribes; the caller spins it.
        namespace: of the perception node.
        timeout_s: how long to wait for it.
    """

    def __init__(self, node: Node, namespace: str, timeout_s: float) -> None:
        self._node, self._timeout_s = node, timeout_s
        ask = service_name(namespace)
        self._root = ask.rpartition("/")[0]
        self._last: dict[str, Any] = {}
        self._news = threading.Condition()
        self._scene: tuple[Any, Perception] | None = None
        for topic, kind, qos in (
            ("boxes", Detection3DArray, reliable_qos(2)),
            ("voxels", PointCloud2, reliable_qos(2)),
            ("occupancy_grid", OccupancyGrid, latched_qos()),
        ):
            node.create_subscription(kind, f"{self._root}/{topic}", self._keeper(topic), qos)
        self._events: deque[ObjectEvent] = deque(maxlen=EVENTS)
        if ObjectEventMessage is not None:
            events = f"{self._root}/events"
            node.create_subscription(ObjectEventMessage, events, self._on_event, latched_qos(EVENTS))
        self._client = node.create_client(Ask, ask)

    def _on_event(self, message: Any) -> None:
        with self._news:
            if message.kind != EventKind.SENTENCE:  # it is no part of a history
                self._events.append(message_to_event(message))
                self._scene = None

    @property
    def is_live(self) -> bool:
        """True: the node goes on."""
        return True

    def views(self, thing: SceneObject) -> tuple[ObjectView, ...]:
        """Raises :class:`.SceneUnavailableError`: pictures are in saved maps only."""
        raise SceneUnavailableError("a running node sends no pictures of objects: save its map, and use mcp --map")

    def _keeper(self, topic: str) -> Any:
        def keep(message: Any) -> None:
            with self._news:
                self._last[topic] = message
                self._news.notify_all()

        return keep

    def frame(self) -> str:
        """The output frame of the node. Raises as :meth:`perception`."""
        return str(self._boxes().header.frame_id)

    def _boxes(self) -> Any:
        end_s = time.monotonic() + self._timeout_s
        topic = f"{self._root}/boxes"
        with self._news:
            while not self._node.count_publishers(topic) or "boxes" not in self._last:
                if time.monotonic() >= end_s:
                    silent = self._node.count_publishers(topic)
                    why = (
                        "has published nothing yet" if silent else "is not there: is it running, in this ROS_DOMAIN_ID?"
                    )
                    raise SceneUnavailableError(f"the node {self._root} {why}")
                self._news.wait(0.1)
            return self._last["boxes"]

    def perception(self) -> Perception:
        """The last published scene; parts that have not been published are empty."""
        boxes = self._boxes()
        with self._news:
            last = {topic: self._last.get(topic) for topic in ("voxels", "occupancy_grid")}
            made, events = self._scene, tuple(self._events)
        frame = boxes.header.frame_id
        parts = [m if m is not None and m.header.frame_id == frame else None for m in last.values()]
        key = (boxes, *parts)
        if made is not None and all(a is b for a, b in zip(made[0], key, strict=True)):
            return made[1]
        cloud, grid = parts
        scene = Perception.of(
            with_events(detections_to_objects(boxes), events),
            stamp_ns=stamp_to_ns(boxes.header.stamp),
            semantic=_no_cells(),
            grid=_NOWHERE if grid is None else message_to_grid(grid),
            voxels=cloud_to_voxels(PointCloud2() if cloud is None else cloud),
        )
        self._scene = key, scene
        return scene

    def ground(self, sentence: str, viewpoint: NDArray[np.float64] | None) -> Grounding:
        """The node's answer; its viewpoint is the robot's."""
        if viewpoint is not None:
            raise ValueError("a running node answers from the robot's viewpoint: omit standing_at")
        end_s = time.monotonic() + self._timeout_s
        if not self._client.wait_for_service(timeout_sec=self._timeout_s):
            raise SceneUnavailableError(f"nobody offers {self._root}/ask: is the node running, in this ROS_DOMAIN_ID?")
        answered = threading.Event()
        future = self._client.call_async(Ask.Request(text=sentence, frame_id=self.frame()))
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(max(0.1, end_s - time.monotonic())):
            future.cancel()
            raise SceneUnavailableError(f"{self._root}/ask did not answer within {self._timeout_s:g} s")
        return message_to_grounding(future.result().result)


def with_events(objects: Sequence[SceneObject], events: Sequence[ObjectEvent]) -> tuple[SceneObject, ...]:
    """Objects with the history that events tell, and those that left."""
    known = {o.id: o for o in objects}
    for event in events:
        thing, former = event.object, known.pop(event.formerly, None)
        mine = known.setdefault(event.id, replace(thing, state=ObjectState.GONE))
        if event.formerly:
            ids = () if former is None else former.merged_from
            mine = replace(mine, merged_from=(*mine.merged_from, *ids, event.formerly))
        x, y, z = thing.box[:3].tolist()
        words = thing.condition if event.kind == EventKind.STATE else thing.label
        words = words if event.kind in (EventKind.STATE, EventKind.RENAMED) else ""
        entry = HistoryEntry(event.stamp_ns, event.kind, (x, y, z), event.confidence, words, event.reason)
        known[event.id] = replace(mine, history=(*mine.history, entry))
    return tuple(known.values())


def cloud_to_voxels(cloud: PointCloud2) -> VoxelSnapshot:
    """The cloud of :func:`.voxels_to_cloud` -> voxels in its frame.

    The message has no voxel size: it is estimated from the distance of neighbours.
    """
    if not cloud.width * cloud.height:
        none = np.zeros((0, 3))
        points, color, hits = none.astype(np.float32), none.astype(np.uint8), np.zeros(0, np.int32)
    else:
        rows = cloud_to_rows(cloud)
        points = np.stack([rows[axis] for axis in "xyz"], axis=1).astype(np.float32)
        color, hits = unpack_rgb(rows["rgb"]), rows["hits"].astype(np.int32)
    size_m = _spacing(points)
    coords = np.floor(points / size_m).astype(np.int32)
    order = np.lexsort(coords.T[::-1])
    evidence = np.ones(len(points), np.float32)
    seen_ns = np.full(len(points), stamp_to_ns(cloud.header.stamp), np.int64)
    return VoxelSnapshot(size_m, coords[order], points[order], color[order], hits[order], evidence, seen_ns)


def _spacing(points: NDArray[np.float32]) -> float:
    """Median distance from a point to its nearest neighbour."""
    if len(points) < 2:
        return _LEAST_VOXEL_M
    some = points[:: max(1, len(points) // _SAMPLE)]
    return max(_LEAST_VOXEL_M, float(np.median(cKDTree(points).query(some, k=2)[0][:, 1])))


def _no_cells() -> SemanticVoxels:
    rows = np.zeros((0, 3))
    labels, confidence = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return SemanticVoxels(0.1, rows.astype(np.float32), rows.astype(np.uint8), labels, confidence, ())


@contextmanager
def live_scene(*, namespace: str, timeout_s: float) -> Iterator[NodeSource]:
    """Context manager: the scene of the node in ``namespace``."""
    with Guest("agent") as guest:

        def spin() -> None:
            with suppress(ExternalShutdownException):  # Ctrl-C ends the context first
                guest.executor.spin()

        thread = threading.Thread(target=spin, name="agent", daemon=True)
        source = NodeSource(guest.node, namespace, timeout_s)
        thread.start()
        try:
            yield source
        finally:
            guest.executor.shutdown()
            thread.join(5.0)
