"""Camera topics -> a bounded inbox. Callbacks only hand over; decoding and everything after it is the worker's."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription

from embodied_perceptron_ros.conversion.values import stamp_to_ns
from embodied_perceptron_ros.node.health import Health
from embodied_perceptron_ros.node.parameters import CameraParameters, Kind

INBOX_SIZE = 30  # per camera and kind: one second of a usual camera, while the worker saves a map
_MESSAGE_INFO = hasattr(Subscription, "CallbackType")  # callbacks are told when a message was sent; not in Humble
_MAX_TRANSPORT_S = 10.0  # a longer way from the publisher means that the two machines' clocks differ


@dataclass(frozen=True, eq=False)
class Received:
    """One message as it came.

    Attributes:
        kind, camera: what it is.
        message: sensor_msgs Image, CompressedImage or CameraInfo.
        sent_ns: wall clock when the publisher wrote it; when it arrived, where the clocks differ.
    """

    kind: Kind
    camera: str
    message: Any
    sent_ns: int


class Inbox:
    """Messages between the executor and the worker: thread-safe, bounded; when full the oldest of its kind goes."""

    def __init__(self, size: int = INBOX_SIZE, on_arrival: Callable[[], None] | None = None) -> None:
        self._size = size
        self._on_arrival = on_arrival or (lambda: None)
        self._lock = threading.Lock()
        self._waiting: deque[Received] = deque()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.overflowed: Counter[str] = Counter()
        """Messages lost because the worker did not keep up, by kind."""

    def put(self, received: Received) -> None:
        """Hand one message over."""
        key = (received.camera, received.kind)
        with self._lock:
            if self._counts[key] >= self._size:
                oldest = next(r for r in self._waiting if (r.camera, r.kind) == key)
                self._waiting.remove(oldest)
                self.overflowed[received.kind] += 1
            else:
                self._counts[key] += 1
            self._waiting.append(received)
        self._on_arrival()

    def take_all(self) -> list[Received]:
        """Everything that waits, in order of arrival."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
            self._counts.clear()
        return taken


class CameraSubscriptions:
    """Subscriptions of all cameras, from activation to deactivation."""

    def __init__(self, node: Node, cameras: tuple[CameraParameters, ...], inbox: Inbox, health: Health) -> None:
        self._node = node
        self._inbox = inbox
        self._health = health
        self._subscriptions: list[Any] = []
        for camera in cameras:
            for kind, (message_type, topic) in camera.subscriptions.items():
                self._subscribe(camera.name, kind, message_type, topic)

    def _subscribe(self, camera: str, kind: Kind, message_type: Any, topic: str) -> None:
        # Best effort matches every publisher; the overrides (qos_overrides.<topic>.subscription.reliability) are for
        # senders whose large messages get lost on the way.
        qos = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.BEST_EFFORT)
        receive = partial(self._receive, kind, camera)
        subscription = self._node.create_subscription(
            message_type,
            topic,
            receive if _MESSAGE_INFO else lambda message: receive(message, {}),
            qos,
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )
        self._subscriptions.append(subscription)

    def _receive(self, kind: Kind, camera: str, message: Any, info: Any) -> None:
        now_ns = time.time_ns()
        sent_ns = int(info.get("source_timestamp", now_ns))
        if not 0 <= now_ns - sent_ns <= _MAX_TRANSPORT_S * 1e9:
            sent_ns = now_ns
        if kind == "color":
            self._health.tick(f"input.{camera}")
            self._health.latency("transport", (now_ns - sent_ns) / 1e6)
            age_ns = self._node.get_clock().now().nanoseconds - stamp_to_ns(message.header.stamp)
            self._health.latency("stamp_age", age_ns / 1e6)  # far off: another clock, or a recording
        self._inbox.put(Received(kind, camera, message, sent_ns))

    def close(self) -> None:
        """Stop listening."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []
