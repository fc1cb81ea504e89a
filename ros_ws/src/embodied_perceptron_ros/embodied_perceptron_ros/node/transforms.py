"""Transforms over time from /tf and /tf_static, with the same interface with and without tf2_ros; and ``map_frame``.

A lookup never waits: it returns a value (``Found``, ``TooEarly``, ...). A caller that needs a later transform asks
again after ``on_change`` was called.
"""

from __future__ import annotations

import importlib.util
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.time import Time
from tf2_msgs.msg import TFMessage

from embodied_perceptron.geometry.transforms import F64, invert_transform
from embodied_perceptron.sensors.poses import (
    Disconnected,
    Found,
    PoseLookup,
    StampJudge,
    TooEarly,
    TooOld,
    TransformLookup,
    TransformTree,
    frame_name,
)
from embodied_perceptron_ros.conversion.values import make_transform_stamped, stamp_to_ns, transform_to_matrix
from embodied_perceptron_ros.node.delivery import sender_of, with_info
from embodied_perceptron_ros.node.health import ThrottledLog
from embodied_perceptron_ros.node.qos import best_effort_qos, latched_qos, qos_overrides, reliable_qos

if TYPE_CHECKING:
    from embodied_perceptron.perceptron import Perceptron

HISTORY_S = 10.0
# Publishers of one frame conflict when they alternate so often, so quickly, with positions so far apart
_CONFLICT_M, _CONFLICT_TURNS, _TURNS_S = 0.3, 6, 2.0
_CONFLICT_HOLD_S = 10.0  # how long a conflict is reported
_MAX_REASONS = 20  # of refused transforms; further ones are counted as "others"
_AUTHORITY = "embodied_perceptron"


def tf2_available() -> bool:
    """Whether tf2_ros is importable."""
    return importlib.util.find_spec("tf2_ros") is not None


def make_transform_source(
    node: Node,
    on_change: Callable[[], None] | None = None,
    history_s: float = HISTORY_S,
    max_gap_s: float | None = None,
) -> TransformSource:
    """Subscribe to transforms on ``node``: with tf2_ros where it is importable, otherwise with :class:`TreeTransforms`.

    ``max_gap_s``: do not interpolate over longer gaps; tf2 has no such limit and ignores it.
    """
    if tf2_available():
        return Tf2Transforms(node, on_change, history_s)
    return TreeTransforms(node, on_change, history_s, max_gap_s)


@dataclass
class _LastSet:
    """The last message that set a frame, and the number of recent disagreements between its publishers.

    ``rival``: the last message before it that disagreed with it.
    """

    sender: bytes
    parent: str
    position: F64
    received_s: float
    rival: _LastSet | None = None
    turns: int = 0
    disagreed_s: float = float("-inf")

    def agrees(self, other: _LastSet) -> bool:
        """Whether both have one parent and nearly one position."""
        near = float(np.linalg.norm(self.position - other.position)) < _CONFLICT_M
        return self.parent == other.parent and near


class TransformSource(TransformLookup):
    """Stamped transforms between named frames; thread-safe.

    Attributes:
        refused: transforms that could not be used, by reason (non-unit quaternion, loop, ...).
        restarts: how often a link jumped in time and its history was cleared.
    """

    def __init__(self, node: Node, on_change: Callable[[], None] | None) -> None:
        self.refused: Counter[str] = Counter()
        self.restarts = 0
        self._conflicts: dict[str, tuple[str, float]] = {}
        self._last_set: dict[str, _LastSet] = {}
        self._log = ThrottledLog(node.get_logger(), every_s=30.0)
        self._node = node
        self._on_change = on_change
        self._subscriptions = [
            self._subscribe("/tf", False, reliable_qos(100), qos_overrides()),
            # latched: a static transform is published once, perhaps before this node started
            self._subscribe("/tf_static", True, latched_qos(100)),
            # players and bridges repeat it as volatile best effort, which does not match the latched subscription
            self._subscribe("/tf_static", True, best_effort_qos(100)),
        ]

    def _subscribe(
        self, topic: str, static: bool, qos: QoSProfile, overrides: QoSOverridingOptions | None = None
    ) -> Any:
        return self._node.create_subscription(
            TFMessage,
            topic,
            with_info(lambda message, info: self._receive(message, static, sender_of(info))),
            qos,
            qos_overriding_options=overrides,
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=topic == "/tf"),
        )

    def _receive(self, message: TFMessage, static: bool, sender: bytes = b"") -> None:
        for transform in message.transforms:
            try:
                self._accept(transform, static)
                if not static:
                    self._check_conflict(transform, sender)
            except ValueError as error:
                reason = f"{transform.header.frame_id!r} -> {transform.child_frame_id!r}: {error}"
                if self.refused[reason] == 0 and len(self.refused) <= _MAX_REASONS:
                    self._node.get_logger().warning(f"transform refused: {reason}")
                self.refused[reason if len(self.refused) <= _MAX_REASONS else "others"] += 1
        if self._on_change is not None:
            self._on_change()

    @property
    def conflicts(self) -> dict[str, str]:
        """Frames that several publishers set differently -> message."""
        now_s = time.monotonic()
        return {
            child: message
            for child, (message, found_s) in list(self._conflicts.items())
            if now_s - found_s < _CONFLICT_HOLD_S
        }

    def _check_conflict(self, stamped: Any, sender: bytes) -> None:
        """Find two publishers that alternately set one frame and disagree: several robots on one topic, or odometry
        and a filter that publish the same frame."""
        child, now_s = frame_name(stamped.child_frame_id), time.monotonic()
        at = stamped.transform.translation
        now = _LastSet(sender, frame_name(stamped.header.frame_id), np.array([at.x, at.y, at.z]), now_s)
        last = self._last_set.get(child)
        self._last_set[child] = now
        if last is None:
            return
        if now_s - last.disagreed_s < _TURNS_S:
            now.turns, now.disagreed_s = last.turns, last.disagreed_s
        apart_m = float(np.linalg.norm(now.position - last.position))
        if now.agrees(last) or now_s - last.received_s > _TURNS_S:
            now.rival = last.rival
            return
        now.rival = replace(last, rival=None)
        # rclpy names the sender from Kilted on; before, a frame that jumps back to where it was has two of them
        if last.sender == sender if sender else not (last.rival and now.agrees(last.rival)):
            return
        now.turns, now.disagreed_s = now.turns + 1, now_s
        if now.turns >= _CONFLICT_TURNS:
            how = f"{apart_m:.2f} m apart" if last.parent == now.parent else f"in {last.parent!r} and in {now.parent!r}"
            message = f"two publishers set the frame {child!r}, {how}: are transforms of several robots on one topic?"
            self._conflicts[child] = message, now_s
            self._log.error(f"conflict {child}", message)

    def _accept(self, stamped: Any, static: bool) -> None:
        raise NotImplementedError

    def lookup_latest(self, target: str, source: str) -> PoseLookup:
        """``T_target_source`` at the newest stamp at which the whole chain is known, or why there is none."""
        raise NotImplementedError

    @property
    def links(self) -> Mapping[str, str]:
        """Child -> parent."""
        raise NotImplementedError

    def clear(self) -> None:
        """Delete everything but static transforms."""
        raise NotImplementedError

    def close(self) -> None:
        """Destroy the subscriptions."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []


class TreeTransforms(TransformSource):
    """The library's own buffer, for installations without tf2_ros."""

    def __init__(
        self,
        node: Node,
        on_change: Callable[[], None] | None = None,
        history_s: float = HISTORY_S,
        max_gap_s: float | None = None,
    ) -> None:
        self._tree = TransformTree(history_s=history_s, max_gap_s=max_gap_s)
        self._lock = threading.Lock()
        super().__init__(node, on_change)

    def _accept(self, stamped: Any, static: bool) -> None:
        T = transform_to_matrix(stamped.transform)
        parent, child = stamped.header.frame_id, stamped.child_frame_id
        with self._lock:
            if static:
                self._tree.insert_static(parent, child, T)
            else:
                self._tree.insert(parent, child, stamp_to_ns(stamped.header.stamp), T, time.monotonic_ns())
            self.restarts = self._tree.restarts

    def lookup(self, target: str, source: str, stamp_ns: int) -> PoseLookup:
        with self._lock:
            return self._tree.lookup(target, source, stamp_ns)

    def lookup_latest(self, target: str, source: str) -> PoseLookup:
        with self._lock:
            return self._tree.lookup_latest(target, source)

    @property
    def links(self) -> Mapping[str, str]:
        with self._lock:
            return self._tree.links

    def clear(self) -> None:
        with self._lock:
            self._tree.clear_moving()


class Tf2Transforms(TransformSource):
    """tf2_ros.Buffer, fed by our own subscriptions so that both sources receive and refuse the same messages."""

    def __init__(self, node: Node, on_change: Callable[[], None] | None = None, history_s: float = HISTORY_S) -> None:
        import tf2_ros

        self._tf2 = tf2_ros
        self._buffer = tf2_ros.Buffer(cache_time=Duration(seconds=history_s))
        self._judges: dict[tuple[str, str], StampJudge] = {}
        self._odd: dict[tuple[str, str], list[Any]] = {}
        self._parents: dict[str, str] = {}
        super().__init__(node, on_change)

    def _accept(self, stamped: Any, static: bool) -> None:
        transform_to_matrix(stamped.transform)  # tf2 would normalise or store what has to be refused
        link = frame_name(stamped.header.frame_id), frame_name(stamped.child_frame_id)
        stamped.header.frame_id, stamped.child_frame_id = link
        self._refuse_loop(*link)
        if static:
            self._buffer.set_transform_static(stamped, _AUTHORITY)
            return
        stamp_ns = stamp_to_ns(stamped.header.stamp)
        judge = self._judges.setdefault(link, StampJudge())
        odd = self._odd.setdefault(link, [])
        verdict = judge.judge(stamp_ns, time.monotonic_ns())
        if verdict == "fits":
            odd.clear()
            self._buffer.set_transform(stamped, _AUTHORITY)
            return
        if len(judge.suspects) == 1:
            odd.clear()
        odd.append(stamped)
        if verdict == "moved":  # tf2 would ignore the past forever, and cannot clear a single link
            self.restarts += 1
            kept = [each for several in self._odd.values() for each in several]
            self.clear()
            for each in kept:
                self._buffer.set_transform(each, _AUTHORITY)
        elif judge.newest_ns is not None and stamp_ns < judge.newest_ns:
            self._buffer.set_transform(stamped, _AUTHORITY)  # perhaps late: tf2 sorts it in

    def _refuse_loop(self, parent: str, child: str) -> None:
        """tf2 would accept a loop, and then answer no lookup in this tree."""
        above: str | None = parent
        while above is not None:
            if above == child:
                raise ValueError(f"transform {parent!r} -> {child!r} would close a loop: {child!r} is above {parent!r}")
            above = self._parents.get(above)
        self._parents[child] = parent

    def lookup(self, target: str, source: str, stamp_ns: int) -> PoseLookup:
        target, source = frame_name(target), frame_name(source)
        try:
            # stamp 0 means "latest" to tf2; 1 ns is the oldest stamp that can be asked for
            found = self._buffer.lookup_transform_core(target, source, Time(nanoseconds=max(stamp_ns, 1)))
            return Found(transform_to_matrix(found.transform))
        except self._tf2.ExtrapolationException as error:
            answer = self._extrapolation(target, source, stamp_ns, str(error))
            if isinstance(answer, TooOld) and self._starting_over(stamp_ns):
                return TooEarly(stamp_ns, None, answer.where)
            return answer
        except self._tf2.TransformException as error:
            return Disconnected(target, source, str(error))

    def _extrapolation(self, target: str, source: str, stamp_ns: int, text: str) -> TooEarly | TooOld:
        """Distinguish future from past; tf2 says it only in its text, so ask for the newest stamp."""
        try:
            newest_ns = self._buffer.get_latest_common_time(target, source).nanoseconds
        except self._tf2.TransformException:
            return TooEarly(stamp_ns, None, f"{source!r} in {target!r}")
        if stamp_ns > newest_ns:
            return TooEarly(stamp_ns, newest_ns, f"{source!r} in {target!r}")
        return TooOld(stamp_ns, _earliest_ns(text, newest_ns), f"{source!r} in {target!r}")

    def lookup_latest(self, target: str, source: str) -> PoseLookup:
        target, source = frame_name(target), frame_name(source)
        try:
            return Found(transform_to_matrix(self._buffer.lookup_transform_core(target, source, Time()).transform))
        except self._tf2.TransformException as error:
            return Disconnected(target, source, str(error))

    @property
    def links(self) -> Mapping[str, str]:
        return dict(self._parents)

    def _starting_over(self, stamp_ns: int) -> bool:
        """Whether a link may be jumping to this time."""
        first = [each for odd in list(self._odd.values()) for each in odd[:1]]
        return any(stamp_to_ns(each.header.stamp) <= stamp_ns for each in first)

    def clear(self) -> None:
        self._buffer.clear()
        self._judges.clear()
        self._odd.clear()


def _earliest_ns(text: str, default_ns: int) -> int:
    """The oldest stamp in tf2's error message; used in messages only."""
    seconds = re.search(r"earliest data is at time (\d+)\.(\d+)", text)
    return default_ns if seconds is None else int(seconds[1]) * 1_000_000_000 + int(seconds[2].ljust(9, "0")[:9])


class MapFramePublisher:
    """Publishes the static transform ``map_frame`` -> ``fusion_frame``, for robots without a SLAM system. Thread-safe.

    It changes only when the robot finds its place in another map.
    """

    def __init__(self, node: Node, perceptron: Perceptron, map_frame: str, fusion_frame: str) -> None:
        self._node = node
        self._perceptron = perceptron
        self._frames = map_frame, fusion_frame
        self._lock = threading.Lock()
        self._published: F64 | None = None
        self._publisher = node.create_publisher(TFMessage, "/tf_static", latched_qos())

    def update(self) -> None:
        """Publish the transform if it has changed and the robot's place is known."""
        if self._perceptron.place_estimate is not None:
            return
        T_map_fusion = invert_transform(self._perceptron.T_world_map)
        with self._lock:
            if self._published is not None and np.array_equal(self._published, T_map_fusion):
                return
            self._published = T_map_fusion
            stamp_ns = self._node.get_clock().now().nanoseconds
            stamped = make_transform_stamped(T_map_fusion, stamp_ns, *self._frames)
            self._publisher.publish(TFMessage(transforms=[stamped]))

    def close(self) -> None:
        """Destroy the publisher."""
        self._node.destroy_publisher(self._publisher)
