"""Camera topics -> the inbox. Callbacks only hand over; decoding and everything after it is the fusing thread's."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription

from embodied_perceptron_ros.conversion.values import stamp_to_ns
from embodied_perceptron_ros.node.frame_inbox import FrameInbox, Received
from embodied_perceptron_ros.node.health import Health
from embodied_perceptron_ros.node.parameters import CameraParameters, Kind

_MESSAGE_INFO = hasattr(Subscription, "CallbackType")  # callbacks are told when a message was sent; not in Humble
_MAX_SENDERS = 100  # of one topic, whose numbers are followed
_MAX_TRANSPORT_S = 10.0  # a longer way from the publisher means that the two machines' clocks differ


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

    def __init__(self, node: Node, cameras: tuple[CameraParameters, ...], inbox: FrameInbox, health: Health) -> None:
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
                self._inbox.miss(camera, kind, missed, stamp_to_ns(message.header.stamp))
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
