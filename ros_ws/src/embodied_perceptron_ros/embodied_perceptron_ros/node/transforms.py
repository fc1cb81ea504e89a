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
from typing import Any, Protocol

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
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

HISTORY_S = 10.0
_AUTHORITY = "embodied_perceptron"


class TransformSource(Protocol):
    """Stamped transforms between named frames; safe to ask from any thread."""

    refused: Counter[str]
    """Transforms that could not be used, by reason (non-unit quaternion, loop, ...)."""
    restarts: int
    """How often a link went on elsewhere in time and its history was cleared."""

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


class _Subscribed:
    """Subscriptions to /tf and /tf_static that feed ``_accept``; bad transforms are counted, never raised."""

    def __init__(self, node: Node, on_change: Callable[[], None] | None) -> None:
        self.refused: Counter[str] = Counter()
        self.restarts = 0
        self._node = node
        self._on_change = on_change
        reliable: dict[str, Any] = {"reliability": ReliabilityPolicy.RELIABLE, "history": HistoryPolicy.KEEP_LAST}
        moving = QoSProfile(depth=100, **reliable)
        # transient local: a static transform is published once, perhaps before this node started
        static = QoSProfile(depth=100, durability=DurabilityPolicy.TRANSIENT_LOCAL, **reliable)
        self._subscriptions = [
            node.create_subscription(TFMessage, "/tf", lambda m: self._receive(m, False), moving),
            node.create_subscription(TFMessage, "/tf_static", lambda m: self._receive(m, True), static),
        ]

    def _receive(self, message: TFMessage, static: bool) -> None:
        for transform in message.transforms:
            try:
                self._accept(transform, static)
            except ValueError as error:
                reason = f"{transform.header.frame_id!r} -> {transform.child_frame_id!r}: {error}"
                if self.refused[reason] == 0 and len(self.refused) <= 20:
                    self._node.get_logger().warning(f"transform refused: {reason}")
                self.refused[reason if len(self.refused) <= 20 else "others"] += 1
        if self._on_change is not None:
            self._on_change()

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
