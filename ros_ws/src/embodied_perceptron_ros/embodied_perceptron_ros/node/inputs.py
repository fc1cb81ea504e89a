"""Camera topics -> the inbox. Callbacks only hand over; decoding and everything after it is the fusing thread's."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo

from embodied_perceptron_ros.conversion.values import camera_info_key, stamp_to_ns
from embodied_perceptron_ros.node.frame_inbox import FrameInbox, Received
from embodied_perceptron_ros.node.health import Health
from embodied_perceptron_ros.node.parameters import CALIBRATIONS, CameraParameters, Kind

SILENT_S = 5.0  # an input that says nothing for so long is missed
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


class Silence:
    """Which inputs are silent, since when: of each camera colour, depth and calibration. From one thread.

    Images are missed after :data:`SILENT_S`, or three times their usual period where that is longer; calibration only
    where none ever came: it may be sent once.
    """

    def __init__(self, cameras: tuple[CameraParameters, ...], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._topics = {(c.name, kind): topic for c in cameras for kind, (_, topic) in c.subscriptions.items()}
        self._heard_s: dict[tuple[str, Kind], float] = {}
        self._period_s: dict[tuple[str, Kind], float] = {}

    def heard(self, camera: str, kind: Kind) -> None:
        """A message came."""
        now_s, key = self._clock(), (camera, kind)
        if key in self._heard_s:
            self._period_s[key] = now_s - self._heard_s[key]
        self._heard_s[key] = now_s

    def ages(self) -> dict[str, float]:
        """Seconds since the last message of each input, by its name in the diagnostics; -1 = none has come."""
        now_s = self._clock()
        return {
            f"input.{camera}.{kind}_age_s": round(now_s - self._heard_s.get((camera, kind), now_s + 1.0), 1)
            for camera, kind in self._topics
        }

    def silent(self) -> list[str]:
        """What is missed, in words."""
        now_s, missed = self._clock(), []
        for (camera, kind), topic in self._topics.items():
            heard_s = self._heard_s.get((camera, kind))
            name = {"color": "colour image", "depth": "depth image", "info": "camera_info"}[kind]
            if heard_s is None and now_s - self._began_s > SILENT_S:
                since = f"since the node listens, {now_s - self._began_s:.0f} s"
                missed.append(f"camera {camera!r}: no {name} on {topic} {since}: see the driver, the topic and its QoS")
            elif heard_s is not None and kind != "info":
                age_s = now_s - heard_s
                if age_s > max(SILENT_S, 3.0 * self._period_s.get((camera, kind), 0.0)):
                    missed.append(f"camera {camera!r}: no {name} on {topic} for {age_s:.0f} s: the driver has stopped")
        return missed


class CameraSubscriptions:
    """Subscriptions of all cameras, from activation to deactivation."""

    def __init__(self, node: Node, cameras: tuple[CameraParameters, ...], inbox: FrameInbox, health: Health) -> None:
        self._node = node
        self._inbox = inbox
        self._health = health
        self._subscriptions: list[Any] = []
        self._calibrations: dict[tuple[str, Kind], Any] = {}  # the last, by camera and kind
        self._latched: dict[tuple[str, Kind], tuple[Any, str, Any]] = {}  # until there is a calibration
        self.silence = Silence(cameras)
        for camera in cameras:
            for kind, (message_type, topic) in camera.subscriptions.items():
                self._subscribe(camera.name, kind, message_type, topic)
            if camera.depth_info:
                self._subscribe(camera.name, "depth_info", CameraInfo, camera.depth_info)

    def _subscribe(self, camera: str, kind: Kind, message_type: Any, topic: str) -> None:
        # Best effort matches every publisher; the overrides (qos_overrides.<topic>.subscription.reliability) are for
        # senders whose large messages get lost on the way.
        qos = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.BEST_EFFORT)
        receive = partial(self._receive, kind, camera, DeliveryCount())
        callback = receive if _MESSAGE_INFO else lambda message: receive(message, {})
        self._subscriptions.append(
            self._node.create_subscription(
                message_type,
                topic,
                callback,
                qos,
                qos_overriding_options=QoSOverridingOptions.with_default_policies(),
            )
        )
        if kind in CALIBRATIONS:
            self._latched[camera, kind] = message_type, topic, callback

    def look_for_latched(self) -> None:
        """Calibration that was sent once, before this node listened: ask for what its publisher has kept."""
        for key in list(self._latched):
            if key in self._calibrations:
                del self._latched[key]
            elif (latched := create_latched_subscription(self._node, *self._latched[key])) is not None:
                self._subscriptions.append(latched)
                del self._latched[key]

    def _receive(self, kind: Kind, camera: str, delivery: DeliveryCount, message: Any, info: Any) -> None:
        self.silence.heard(camera, kind)
        now_ns = time.time_ns()
        number = info.get("publication_sequence_number")  # where the middleware numbers them
        if kind in CALIBRATIONS:
            told = stamp_to_ns(message.header.stamp), camera_info_key(message)
            if self._calibrations.get((camera, kind)) == told:
                return  # heard by both subscriptions
            self._calibrations[camera, kind] = told
        elif number is not None:
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


def create_latched_subscription(node: Node, message_type: Any, topic: str, callback: Any) -> Any:
    """A subscription that gets what a publisher keeps for late ones (transient local), beside one that hears all.

    None where there is no such publisher: others do not fit it, and would warn of it in their logs.
    """
    there = node.get_publishers_info_by_topic(topic)
    if not any(info.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for info in there):
        return None
    return node.create_subscription(
        message_type,
        topic,
        callback,
        QoSProfile(
            depth=1,
            history=HistoryPolicy.KEEP_LAST,
            reliability=ReliabilityPolicy.RELIABLE,
            durability=DurabilityPolicy.TRANSIENT_LOCAL,
        ),
        event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
    )
