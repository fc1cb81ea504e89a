"""Watch and steer a running ``/perception`` from another process: its diagnostics, its outputs, its services."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import SaveMap
from nav_msgs.msg import OccupancyGrid
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import String
from vision_msgs.msg import Detection3DArray, LabelInfo

from embodied_perceptron.results import SceneObject
from embodied_perceptron_ros.conversion.objects import detections_to_objects, message_to_grounding
from embodied_perceptron_ros.conversion.values import stamp_to_ns
from embodied_perceptron_ros.demo.mission import MissionQuestion, TimedAnswer
from embodied_perceptron_ros.node.health import read_diagnostics

_OUTPUTS = (
    # topic, type, latched
    ("boxes", Detection3DArray, False),
    ("voxels", PointCloud2, False),
    ("semantic_voxels", PointCloud2, False),
    ("occupancy_grid", OccupancyGrid, True),
    ("label_info", LabelInfo, True),
)
_KEPT = 10_000  # answers and boxes that are remembered


@dataclass(frozen=True, eq=False)
class Sighting:
    """The objects of one message on ``~/boxes``: stamp of the map, and when it was heard (monotonic seconds)."""

    stamp_ns: int
    objects: tuple[SceneObject, ...]
    heard_s: float


@dataclass(frozen=True)
class NodeStatus:
    """The newest diagnostics of the node.

    Attributes:
        state: lifecycle state; ``absent`` before the first diagnostics.
        received, fused, pending: frames.
        dropped: by reason.
        latency_ms: per stage: p50, p99, max, count.
        areas: everything, as strings.
    """

    state: str = "absent"
    received: int = 0
    fused: int = 0
    pending: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    latency_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    areas: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def settled(self) -> int:
        """Frames whose fate is known."""
        return self.fused + sum(self.dropped.values())


def status_from_areas(areas: dict[str, dict[str, str]]) -> NodeStatus:
    """Diagnostics as :func:`~embodied_perceptron_ros.node.health.read_diagnostics` gives them -> status."""
    frames = areas.get("frames", {})
    prefix = "frames_dropped."
    latency: dict[str, dict[str, float]] = {}
    for key, value in areas.get("latency", {}).items():
        stage, _, statistic = key.rpartition("_ms.")
        if stage:
            latency.setdefault(stage, {})[statistic] = float(value)
    return NodeStatus(
        state=areas.get("node", {}).get("state", "absent"),
        received=int(frames.get("frames_received", 0)),
        fused=int(frames.get("frames_fused", 0)),
        pending=int(frames.get("frames_pending", 0)),
        dropped={k[len(prefix) :]: int(v) for k, v in frames.items() if k.startswith(prefix)},
        latency_ms=latency,
        areas=areas,
    )


class NodeMonitor:
    """A small node of its own context; call :meth:`spin` often. Use as a context manager.

    Args:
        domain_id: ROS domain; ``None`` = as the environment says.
        node_name: whom to watch.
        namespace: of that node.
    """

    def __init__(self, domain_id: int | None = None, node_name: str = "perception", namespace: str = "") -> None:
        root = f"/{namespace.strip('/')}".rstrip("/")
        self._path = f"{root}/{node_name}"
        self._name = self._path.lstrip("/")
        self._context = rclpy.Context()
        rclpy.init(context=self._context, domain_id=domain_id)
        self.node = rclpy.create_node("perception_monitor", context=self._context, start_parameter_services=False)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self.status = NodeStatus()
        self.published: Counter[str] = Counter()
        self.last: dict[str, Any] = {}
        self.sightings: list[Sighting] = []
        self.answers: dict[str, list[TimedAnswer]] = {}
        self._asked_s: dict[str, float] = {}
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        for topic, kind, latched in _OUTPUTS:
            qos = QoSProfile(depth=2)
            if latched:
                qos.durability = DurabilityPolicy.TRANSIENT_LOCAL
            self.node.create_subscription(kind, f"{self._path}/{topic}", self._counter(topic), qos)
        self.node.create_subscription(GroundingResult, f"{self._path}/grounding", self._on_answer, 100)
        self._queries = self.node.create_publisher(String, f"{root}/grounding_query", 100)

    def __enter__(self) -> NodeMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def _counter(self, topic: str) -> Callable[[Any], None]:
        def count(message: Any) -> None:
            self.published[topic] += 1
            self.last[topic] = message
            if topic == "boxes" and len(self.sightings) < _KEPT:
                stamp_ns = stamp_to_ns(message.header.stamp)
                self.sightings.append(Sighting(stamp_ns, detections_to_objects(message), time.monotonic()))

        return count

    def _on_answer(self, message: GroundingResult) -> None:
        now_s = time.monotonic()
        answers = self.answers.setdefault(message.id, [])
        if len(answers) < _KEPT:
            ms = (now_s - self._asked_s.get(message.id, now_s)) * 1e3
            answers.append(TimedAnswer(message_to_grounding(message), ms, stamp_to_ns(message.header.stamp)))
        self._asked_s[message.id] = now_s

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        areas = read_diagnostics(message, self._name)
        if areas:
            self.status = status_from_areas(areas)

    def spin(self, seconds: float) -> None:
        """Handle what arrives for ``seconds``."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)

    def ask(self, question: MissionQuestion, timeout_s: float = 30.0) -> bool:
        """Publish a query and wait for its first answer; whether one came. See :attr:`answers`."""
        deadline = time.monotonic() + timeout_s
        while self._queries.get_subscription_count() == 0 and time.monotonic() < deadline:
            self.spin(0.02)
        before = len(self.answers.get(question.id, ()))
        self._asked_s[question.id] = time.monotonic()
        self._queries.publish(String(data=question.message()))
        while len(self.answers.get(question.id, ())) == before and time.monotonic() < deadline:
            self._executor.spin_once(timeout_sec=0.05)
        return len(self.answers.get(question.id, ())) > before

    def save_map(self, path: Path, timeout_s: float = 60.0) -> str:
        """Have the node write its map to ``path``; returns its message. Raises ``RuntimeError`` when it did not."""
        client = self.node.create_client(SaveMap, f"{self._path}/save_map")
        try:
            if not client.wait_for_service(timeout_sec=timeout_s):
                raise RuntimeError(f"the node offers no save_map after {timeout_s:g} s")
            future = client.call_async(SaveMap.Request(path=str(path)))
            deadline = time.monotonic() + timeout_s
            while not future.done():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"save_map did not answer within {timeout_s:g} s")
                self._executor.spin_once(timeout_sec=0.1)
            response = future.result()
        finally:
            self.node.destroy_client(client)
        if not response.success:
            raise RuntimeError(f"save_map failed: {response.message}")
        return str(response.message)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m embodied_perceptron_ros.node.monitor``: one line about the node; exit code 0 when it is active.

    What a container's health check asks: quick, and independent of cameras.
    """
    parser = argparse.ArgumentParser(prog="monitor", description="state of the running node /perception")
    parser.add_argument("--timeout", type=float, default=10.0, help="how long to wait for its diagnostics, seconds")
    parser.add_argument("--namespace", default="", help="of the node")
    options = parser.parse_args(arguments)
    timeout_s = options.timeout
    with NodeMonitor(namespace=options.namespace) as monitor:
        deadline = time.monotonic() + timeout_s
        while monitor.status.state != "active" and time.monotonic() < deadline:
            monitor.spin(0.1)
        status = monitor.status
    print(
        f"{status.state}; frames: {status.received} received, {status.fused} fused, {status.dropped or 'none'} dropped"
    )
    return 0 if status.state == "active" else 1


if __name__ == "__main__":
    sys.exit(main())
