"""Transforms over time from /tf and /tf_static, behind one interface with or without tf2_ros.

The live path never waits inside of a lookup: an answer is a value (``Found``, ``TooEarly``, ...), and whoever needs a
transform that has not come yet asks again when :attr:`TransformSource.on_change` was called.
"""

from __future__ import annotations

import importlib.util
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription
from rclpy.time import Time
from tf2_msgs.msg import TFMessage

from embodied_perceptron.sensors.poses import (
    Disconnected,
    Found,
    PoseLookup,
    TooEarly,
    TooOld,
    TransformTree,
    frame_name,
)
from embodied_perceptron.sensors.stamps import StampJudge
from embodied_perceptron_ros.conversion.values import stamp_to_ns, transform_to_matrix
from embodied_perceptron_ros.node.throttled_log import ThrottledLog

HISTORY_S = 10.0
# two publishers of one frame are rivals when they disagree by more, so often, within so long of each other
_RIVALS_APART_M, _RIVAL_TURNS, _TURNS_S = 0.3, 6, 2.0
_RIVALS_HOLD_S = 10.0  # how long it is told of
_AUTHORITY = "embodied_perceptron"


class TransformSource(Protocol):
    """Stamped transforms between named frames; safe to ask from any thread."""

    refused: Counter[str]
    """Transforms that could not be used, by reason (non-unit quaternion, loop, ...)."""
    restarts: int
    """How often a link went on elsewhere in time and its history was cleared."""

    @property
    def rivals(self) -> dict[str, str]:
        """Frames that several publishers set differently, in words."""
        ...

    def lookup(self, target: str, source: str, stamp_ns: int) -> PoseLookup:
        """``T_target_source`` at ``stamp_ns``: points of ``source`` into ``target``; or why there is none."""
        ...

    def lookup_latest(self, target: str, source: str) -> PoseLookup:
        """``T_target_source`` at the newest stamp at which the chain is known."""
        ...

    def clear(self) -> None:
        """Forget what has stamps."""
        ...

    def close(self) -> None:
        """Destroy the subscriptions."""
        ...


def tf2_available() -> bool:
    """Whether tf2_ros is importable here."""
    return importlib.util.find_spec("tf2_ros") is not None


def make_transform_source(
    node: Node,
    on_change: Callable[[], None] | None = None,
    history_s: float = HISTORY_S,
    max_gap_s: float | None = None,
) -> TransformSource:
    """tf2_ros where it is importable, otherwise :class:`TreeTransforms`; subscribed on ``node``.

    ``max_gap_s``: transforms further apart are not interpolated between; tf2 knows no such limit and ignores it.
    """
    if tf2_available():
        return Tf2Transforms(node, on_change, history_s)
    return TreeTransforms(node, on_change, history_s, max_gap_s)


@dataclass
class _Setter:
    """Who set a frame last: publisher, parent, position in it, when, and how often another disagreed."""

    sender: bytes
    parent: str
    position: NDArray[np.float64]
    heard_s: float
    turns: int = 0
    disagreed_s: float = float("-inf")


class _Subscribed:
    """Subscriptions to /tf and /tf_static that feed ``_accept``; bad transforms are counted, never raised."""

    def __init__(self, node: Node, on_change: Callable[[], None] | None) -> None:
        self.refused: Counter[str] = Counter()
        self.restarts = 0
        self._rivals: dict[str, tuple[str, float]] = {}
        self._setters: dict[str, _Setter] = {}
        self._log = ThrottledLog(node.get_logger(), every_s=30.0)
        self._node = node
        self._on_change = on_change
        reliable: dict[str, Any] = {"reliability": ReliabilityPolicy.RELIABLE, "history": HistoryPolicy.KEEP_LAST}
        moving = QoSProfile(depth=100, **reliable)
        # transient local: a static transform is published once, perhaps before this node started
        static = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL, **reliable)
        # and volatile, best effort: players and bridges repeat it so, which fits the other subscription never
        repeated = QoSProfile(depth=100, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.BEST_EFFORT)
        self._subscriptions = [
            self._subscribe(node, "/tf", False, moving, QoSOverridingOptions.with_default_policies()),
            self._subscribe(node, "/tf_static", True, static),
            self._subscribe(node, "/tf_static", True, repeated),
        ]

    def _subscribe(
        self, node: Node, topic: str, static: bool, qos: QoSProfile, overrides: QoSOverridingOptions | None = None
    ) -> Any:
        def with_sender(message: TFMessage, info: Any) -> None:
            self._receive(message, static, bytes(info["publisher_gid"]["data"]) if "publisher_gid" in info else b"")

        def without(message: TFMessage) -> None:
            self._receive(message, static)

        return node.create_subscription(
            TFMessage,
            topic,
            with_sender if hasattr(Subscription, "CallbackType") else without,  # not told in Humble
            qos,
            qos_overriding_options=overrides,
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=topic == "/tf"),
        )

    def _receive(self, message: TFMessage, static: bool, sender: bytes = b"") -> None:
        for transform in message.transforms:
            try:
                self._accept(transform, static)
                if not static:
                    self._look_for_rivals(transform, sender)
            except ValueError as error:
                reason = f"{transform.header.frame_id!r} -> {transform.child_frame_id!r}: {error}"
                if self.refused[reason] == 0 and len(self.refused) <= 20:
                    self._node.get_logger().warning(f"transform refused: {reason}")
                self.refused[reason if len(self.refused) <= 20 else "others"] += 1
        if self._on_change is not None:
            self._on_change()

    @property
    def rivals(self) -> dict[str, str]:
        now_s = time.monotonic()
        return {
            child: words for child, (words, told_s) in list(self._rivals.items()) if now_s - told_s < _RIVALS_HOLD_S
        }

    def _look_for_rivals(self, stamped: Any, sender: bytes) -> None:
        """Two publishers that take turns at one frame and do not agree: several robots' transforms on one topic, or
        odometry beside a filter that publishes the same."""
        child, now_s = frame_name(stamped.child_frame_id), time.monotonic()
        at = stamped.transform.translation
        now = _Setter(sender, frame_name(stamped.header.frame_id), np.array([at.x, at.y, at.z]), now_s)
        last = self._setters.get(child)
        self._setters[child] = now
        if last is None:
            return
        if now_s - last.disagreed_s < _TURNS_S:
            now.turns, now.disagreed_s = last.turns, last.disagreed_s
        apart_m = float(np.linalg.norm(now.position - last.position))
        agree = last.parent == now.parent and apart_m < _RIVALS_APART_M
        if last.sender == sender or agree or now_s - last.heard_s > _TURNS_S:
            return
        now.turns, now.disagreed_s = now.turns + 1, now_s
        if now.turns >= _RIVAL_TURNS:
            how = f"{apart_m:.2f} m apart" if last.parent == now.parent else f"in {last.parent!r} and in {now.parent!r}"
            words = f"two publishers set the frame {child!r}, {how}: are transforms of several robots on one topic?"
            self._rivals[child] = words, now_s
            self._log.error(f"rivals {child}", words)

    def _accept(self, stamped: Any, static: bool) -> None:
        raise NotImplementedError

    def close(self) -> None:
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []


class TreeTransforms(_Subscribed):
    """The own buffer, used where tf2_ros is not installed."""

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

    def clear(self) -> None:
        with self._lock:
            self._tree.clear_moving()


class Tf2Transforms(_Subscribed):
    """tf2_ros.Buffer, fed by our own subscriptions so that both sources hear and refuse the same messages."""

    def __init__(self, node: Node, on_change: Callable[[], None] | None = None, history_s: float = HISTORY_S) -> None:
        import tf2_ros

        self._tf2 = tf2_ros
        self._buffer = tf2_ros.Buffer(cache_time=Duration(seconds=history_s))
        self._judges: dict[tuple[str, str], StampJudge] = {}
        self._odd: dict[tuple[str, str], list[Any]] = {}
        self._parents: dict[str, str] = {}
        super().__init__(node, on_change)

    def _accept(self, stamped: Any, static: bool) -> None:
        transform_to_matrix(stamped.transform)  # tf2 normalises or stores what it should refuse
        stamped.header.frame_id, stamped.child_frame_id = (
            frame_name(stamped.header.frame_id),
            frame_name(stamped.child_frame_id),
        )
        link = stamped.header.frame_id, stamped.child_frame_id
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
        if verdict == "moved":  # tf2 would ignore the past for good, and knows no way to forget one link
            self.restarts += 1
            kept = [each for several in self._odd.values() for each in several]
            self.clear()
            for each in kept:
                self._buffer.set_transform(each, _AUTHORITY)
        elif judge.newest_ns is not None and stamp_ns < judge.newest_ns:
            self._buffer.set_transform(stamped, _AUTHORITY)  # late, perhaps: tf2 sorts it in

    def _refuse_loop(self, parent: str, child: str) -> None:
        """tf2 would take a loop and then answer nothing in this tree."""
        above: str | None = parent
        while above is not None:
            if above == child:
                raise ValueError(f"transform {parent!r} -> {child!r} would close a loop: {child!r} is above {parent!r}")
            above = self._parents.get(above)
        self._parents[child] = parent

    def lookup(self, target: str, source: str, stamp_ns: int) -> PoseLookup:
        target, source = frame_name(target), frame_name(source)
        try:
            # stamp 0 means "latest" to tf2; 1 ns is as old as can be asked
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
        """Into the future or the past? tf2 says it in words only, so ask for what it has."""
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

    def _starting_over(self, stamp_ns: int) -> bool:
        """Whether a link may be on its way to this time."""
        first = [each for odd in list(self._odd.values()) for each in odd[:1]]
        return any(stamp_to_ns(each.header.stamp) <= stamp_ns for each in first)

    def clear(self) -> None:
        self._buffer.clear()
        self._judges.clear()
        self._odd.clear()


def _earliest_ns(text: str, default_ns: int) -> int:
    """The oldest stamp that tf2 names in its message; only shown to people."""
    seconds = re.search(r"earliest data is at time (\d+)\.(\d+)", text)
    return default_ns if seconds is None else int(seconds[1]) * 1_000_000_000 + int(seconds[2].ljust(9, "0")[:9])
