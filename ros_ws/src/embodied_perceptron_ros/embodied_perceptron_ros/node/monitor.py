"""Observe a running ``/perception`` from another process: diagnostics, outputs, questions, saved maps."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import SaveMap
from nav_msgs.msg import OccupancyGrid
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import String
from vision_msgs.msg import Detection3DArray, LabelInfo

from embodied_perceptron.results import Grounding, SceneObject
from embodied_perceptron_ros.conversion.objects import detections_to_objects, message_to_grounding
from embodied_perceptron_ros.conversion.values import stamp_to_ns
from embodied_perceptron_ros.environment import RosStartError
from embodied_perceptron_ros.node.guest import Guest
from embodied_perceptron_ros.node.health import read_diagnostics
from embodied_perceptron_ros.node.qos import latched_qos, reliable_qos

_OUTPUTS = (
    # topic, type, latched
    ("boxes", Detection3DArray, False),
    ("voxels", PointCloud2, False),
    ("semantic_voxels", PointCloud2, False),
    ("occupancy_grid", OccupancyGrid, True),
    ("label_info", LabelInfo, True),
)
_KEPT = 10_000  # answers and messages of boxes


@dataclass(frozen=True)
class MissionQuestion:
    """A question over ``/grounding_query``, and the right answer if it is known.

    Attributes:
        id: of the query.
        text: the sentence.
        kind: what it tests (plain, relational, absent, where, ...), or empty.
        standing: asked before the robot starts, answered again when the answer changes; others are asked at the end.
        stamp_ns: viewpoint of the robot at this time; 0 = when asked.
        expected: status of the last answer; empty = unknown.
        box: (9,) true box for FOUND.
        boxes: (9,) true boxes of a question for several objects; the answer must have these and no others.
    """

    id: str
    text: str
    kind: str = ""
    standing: bool = False
    stamp_ns: int = 0
    expected: str = ""
    box: tuple[float, ...] = ()
    boxes: tuple[tuple[float, ...], ...] = ()

    def message(self) -> str:
        """The JSON form of the query."""
        fields: dict[str, Any] = {"id": self.id, "text": self.text}
        if self.standing:
            fields["standing"] = True
        if self.stamp_ns:
            fields["stamp"] = self.stamp_ns * 1e-9
        return json.dumps(fields)


def read_questions(rows: Sequence[Mapping[str, Any]]) -> tuple[MissionQuestion, ...]:
    """Questions from the simulation's JSON."""
    names = ("id", "text", "kind", "standing", "stamp_ns", "expected")
    return tuple(
        MissionQuestion(
            **{name: row[name] for name in names}, box=tuple(row["box"]), boxes=tuple(map(tuple, row["boxes"]))
        )
        for row in rows
    )


@dataclass(frozen=True, eq=False)
class TimedAnswer:
    """One answer.

    Attributes:
        grounding: the answer.
        ms: from the question to the answer; for later answers of a standing question, since the previous answer.
        stamp_ns: of the map.
    """

    grounding: Grounding
    ms: float
    stamp_ns: int = 0


@dataclass(frozen=True, eq=False)
class Sighting:
    """The objects of one message on ``~/boxes``: stamp of the map, and time of arrival (monotonic seconds)."""

    stamp_ns: int
    objects: tuple[SceneObject, ...]
    received_s: float


@dataclass(frozen=True)
class NodeStatus:
    """The newest diagnostics of the node.

    Attributes:
        state: lifecycle state; ``absent`` before the first diagnostics.
        received, fused, pending: frames.
        dropped: by reason.
        latency_ms: per stage: p50, p99, max, count.
        areas: all diagnostics, as strings.
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
        """Frames that were fused or dropped."""
        return self.fused + sum(self.dropped.values())


def status_from_areas(areas: dict[str, dict[str, str]]) -> NodeStatus:
    """Result of :func:`~embodied_perceptron_ros.node.health.read_diagnostics` -> status."""
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


class NodeMonitor(Guest):
    """Collects what the perception node publishes.

    Args:
        domain_id: ROS domain; None = the environment's.
        node_name, namespace: of the observed node.

    Raises :class:`.RosStartError`.
    """

    def __init__(self, domain_id: int | None = None, node_name: str = "perception", namespace: str = "") -> None:
        root = f"/{namespace.strip('/')}".rstrip("/")
        self._path = f"{root}/{node_name}"
        self._name = self._path.lstrip("/")
        super().__init__("perception_monitor", domain_id)
        self.status = NodeStatus()
        self.published: Counter[str] = Counter()
        self.last: dict[str, Any] = {}
        self.sightings: list[Sighting] = []
        self.answers: dict[str, list[TimedAnswer]] = {}
        self._asked_s: dict[str, float] = {}
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        for topic, kind, latched in _OUTPUTS:
            qos = latched_qos(2) if latched else reliable_qos(2)
            self.node.create_subscription(kind, f"{self._path}/{topic}", self._counter(topic), qos)
        self.node.create_subscription(GroundingResult, f"{self._path}/grounding", self._on_answer, 100)
        self._queries = self.node.create_publisher(String, f"{root}/grounding_query", 100)

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

    def ask(self, question: MissionQuestion, timeout_s: float = 30.0) -> bool:
        """Publish a query and wait for an answer, which is added to :attr:`answers`; return False if none came."""
        deadline = time.monotonic() + timeout_s
        while self._queries.get_subscription_count() == 0 and time.monotonic() < deadline:
            self.spin(0.02)
        before = len(self.answers.get(question.id, ()))
        self._asked_s[question.id] = time.monotonic()
        self._queries.publish(String(data=question.message()))
        while len(self.answers.get(question.id, ())) == before and time.monotonic() < deadline:
            self.executor.spin_once(timeout_sec=0.05)
        return len(self.answers.get(question.id, ())) > before

    def save_map(self, path: Path, timeout_s: float = 60.0) -> str:
        """Make the node save its map to ``path`` and return its message. Raises ``RuntimeError`` if it fails."""
        request = SaveMap.Request(path=str(path))
        response = self.call(SaveMap, f"{self._path}/save_map", request, timeout_s)
        if not response.success:
            raise RuntimeError(f"save_map failed: {response.message}")
        return str(response.message)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m embodied_perceptron_ros.node.monitor``: print one line about the node; exit code 0 if it is active.

    Containers use it as their health check; it does not depend on cameras.
    """
    parser = argparse.ArgumentParser(prog="monitor", description="state of the running node /perception")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for its diagnostics")
    parser.add_argument("--namespace", default="", help="of the node")
    options = parser.parse_args(arguments)
    try:
        observer = NodeMonitor(namespace=options.namespace)
    except RosStartError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    with observer as monitor:
        deadline = time.monotonic() + options.timeout
        while monitor.status.state != "active" and time.monotonic() < deadline:
            monitor.spin(0.1)
        status = monitor.status
    print(
        f"{status.state}; frames: {status.received} received, {status.fused} fused, {status.dropped or 'none'} dropped"
    )
    return 0 if status.state == "active" else 1


if __name__ == "__main__":
    sys.exit(main())
