"""Optional inputs that a parameter names: reported when they bring nothing, with the reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from embodied_perceptron_ros.node.health import WARN
from embodied_perceptron_ros.node.inputs import SILENT_S


@dataclass
class _Input:
    type: str
    what: str
    area: str
    is_rare: bool
    since_s: float  # its last use, or the start
    received: int = 0  # messages and refused parts of them since then
    refused: Counter[str] = field(default_factory=Counter)
    detail: str = ""
    logged: str = ""  # reason of the last log line


class OptionalInputs:
    """Finds named topics that bring nothing for :data:`SILENT_S`: nobody publishes them, they have another type, no
    message arrives, or none can be used. Thread-safe for :meth:`used`, :meth:`received` and :meth:`refused`.

    Args:
        node: the ``PerceptionNode``.
        clock: seconds.
    """

    def __init__(self, node: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._clock = clock
        self._inputs: dict[str, _Input] = {}

    def add(self, topic: str, message_type: str, what: str, area: str, is_rare: bool = False) -> None:
        """Watch a topic.

        Args:
            topic: as the parameter names it.
            message_type: for example ``nav_msgs/msg/Path``.
            what: noun of its content, for messages.
            area: of diagnostics.
            is_rare: messages may stay out for long while somebody publishes the topic.
        """
        self._inputs[topic] = _Input(message_type, what, area, is_rare, self._clock())

    def received(self, topic: str) -> None:
        """Count a message, which may be empty."""
        if topic in self._inputs:
            self._inputs[topic].received += 1

    def used(self, topic: str) -> None:
        """Register a message of which something was used."""
        if topic in self._inputs:
            entry = self._inputs[topic]
            entry.since_s, entry.received, entry.refused = self._clock(), 1, Counter()

    def refused(self, topic: str, reasons: Counter[str], detail: str = "") -> None:
        """Count what could not be used of a message, by reason."""
        if topic in self._inputs:
            self._inputs[topic].refused += reasons
            self._inputs[topic].detail = detail

    def close(self) -> None:
        """Remove what was reported to diagnostics."""
        for topic, entry in self._inputs.items():
            self._node.health.clear_problem(entry.area, f"input {topic}")

    def report(self) -> None:
        """Report every input that brings nothing to diagnostics, and once to the log."""
        for topic, entry in self._inputs.items():
            reason, message = self._why_nothing(topic, entry)
            key = f"input {topic}"
            if not reason:
                self._node.health.clear_problem(entry.area, key)
                entry.logged = ""
                continue
            self._node.health.problem(entry.area, WARN, message, key)
            if reason != entry.logged:
                entry.logged = reason
                self._node.get_logger().warning(message)

    def _why_nothing(self, topic: str, entry: _Input) -> tuple[str, str]:
        """Kind of the fault and message; both empty without one."""
        silent_s = self._clock() - entry.since_s
        if silent_s < SILENT_S:
            return "", ""
        name = self._node.resolve_topic_name(topic)
        types = sorted({info.topic_type for info in self._node.get_publishers_info_by_topic(topic)})
        if types and entry.type not in types:
            return "type", f"no {entry.what}: {name} is published as {', '.join(types)}, not as {entry.type}"
        if entry.refused:
            reason, count = entry.refused.most_common(1)[0]
            why = f"{count} times {reason}{entry.detail and f' ({entry.detail})'}"
            return reason, f"none of the {entry.what} of {name} could be used for {silent_s:.0f} s: {why}"
        if not types:
            return "nobody", f"no {entry.what}: nobody publishes {name}: start its program, or correct the parameter"
        if not entry.received and not entry.is_rare:
            return "silent", f"no {entry.what}: nothing has arrived on {name} in {silent_s:.0f} s: check its QoS"
        return "", ""
