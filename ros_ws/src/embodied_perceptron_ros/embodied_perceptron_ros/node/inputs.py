"""Camera topics -> a bounded inbox. Callbacks only hand over; decoding and everything after it is the worker's."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
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

INBOX_S = 1.0  # what waits longer while the worker saves a map, say, is dropped as newer ones of its kind come
INBOX_MIB = 256.0  # of all cameras
_MESSAGE_INFO = hasattr(Subscription, "CallbackType")  # callbacks are told when a message was sent; not in Humble
_MAX_SENDERS = 100  # of one topic, whose numbers are followed
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
    """Messages between the executor and the worker: thread-safe, bounded by time and memory, whatever their rate.

    Args:
        seconds: when one arrives, those of its camera and kind that wait for longer are dropped.
        mib: of all that wait; beyond it the oldest is dropped, of any kind.
        on_arrival: called after each.
        clock: seconds.
    """

    def __init__(
        self,
        seconds: float = INBOX_S,
        mib: float = INBOX_MIB,
        on_arrival: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._max_bytes = int(mib * 2**20)
        self._on_arrival = on_arrival or (lambda: None)
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: OrderedDict[int, tuple[Received, float]] = OrderedDict()  # by order of arrival, with its time
        self._of_kind: dict[tuple[str, str], deque[int]] = {}
        self._next = 0
        self._bytes = 0
        self.overflowed: Counter[str] = Counter()
        """Messages lost because the worker did not keep up, by kind."""
        self._undelivered: dict[str, Counter[str]] = {}

    def put(self, received: Received) -> None:
        """Hand one message over."""
        now_s = self._clock()
        with self._lock:
            numbers = self._of_kind.setdefault((received.camera, received.kind), deque())
            while numbers and now_s - self._waiting[numbers[0]][1] > self._seconds:
                self._overflow(numbers[0])
            self._waiting[self._next] = received, now_s
            numbers.append(self._next)
            self._next += 1
            self._bytes += _size(received)
            while self._bytes > self._max_bytes and len(self._waiting) > 1:
                self._overflow(next(iter(self._waiting)))
        self._on_arrival()

    def _overflow(self, number: int) -> None:
        lost, _ = self._waiting.pop(number)
        self._of_kind[lost.camera, lost.kind].popleft()  # the oldest of all is the oldest of its kind
        self._bytes -= _size(lost)
        self.overflowed[lost.kind] += 1

    def miss(self, camera: str, kind: str, count: int) -> None:
        """So many messages were sent and did not arrive."""
        with self._lock:
            self._undelivered.setdefault(camera, Counter())[kind] += count

    @property
    def frames_lost(self) -> int:
        """Frames of which neither colour nor depth arrived: the other half of one that lost only one of them waits for
        its partner, and is counted when it gives up."""
        with self._lock:
            return sum(min(lost["color"], lost["depth"]) for lost in self._undelivered.values())

    def take_all(self) -> list[Received]:
        """Everything that waits, in order of arrival."""
        with self._lock:
            taken = [received for received, _ in self._waiting.values()]
            self._waiting.clear()
            self._of_kind.clear()
            self._bytes = 0
        return taken


def _size(received: Received) -> int:
    return len(getattr(received.message, "data", ()))


class DeliveryCount:
    """How many messages did not arrive, by the numbers that their senders gave them. From one thread."""

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}

    def missed(self, sender: bytes, number: int) -> int:
        """Messages of a sender between its last one and this. The first says nothing, nor does one that comes late."""
        newest = self._newest.get(sender)
        if newest is None and len(self._newest) >= _MAX_SENDERS:
            self._newest.pop(next(iter(self._newest)))
        self._newest[sender] = number if newest is None else max(newest, number)
        return 0 if newest is None else max(number - newest - 1, 0)


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
        receive = partial(self._receive, kind, camera, DeliveryCount())
        subscription = self._node.create_subscription(
            message_type,
            topic,
            receive if _MESSAGE_INFO else lambda message: receive(message, {}),
            qos,
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )
        self._subscriptions.append(subscription)

    def _receive(self, kind: Kind, camera: str, delivery: DeliveryCount, message: Any, info: Any) -> None:
        now_ns = time.time_ns()
        number = info.get("publication_sequence_number")  # where the middleware numbers them
        if number is not None:
            missed = delivery.missed(info["publisher_gid"]["data"], number)
            if missed:
                self._inbox.miss(camera, kind, missed)
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
