"""Images that a driver sent and the middleware did not deliver, found by gaps in sequence numbers or in stamps."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rclpy.subscription import Subscription

_MESSAGE_INFO = hasattr(Subscription, "CallbackType")  # callbacks get the message's info; not in Humble
_MAX_SENDERS = 100  # per topic, whose sequence numbers are followed
_STEPS = 30  # between stamps, from which the period of a stream is measured
_MAX_PERIODS = 10  # a longer step between stamps is a pause of the driver


def with_info(receive: Callable[[Any, Any], None]) -> Callable[..., None]:
    """Callback of a subscription that gets the message and its info; the info is empty in Humble."""
    return receive if _MESSAGE_INFO else lambda message: receive(message, {})


def sender_of(info: Mapping[str, Any]) -> bytes:
    """The publisher's id in a message's info; empty before Kilted."""
    return bytes(info["publisher_gid"]["data"]) if "publisher_gid" in info else b""


class DeliveryCount:
    """Counts undelivered messages of one topic: by their publishers' sequence numbers, or by gaps between regular
    stamps where it is unknown whose numbers they are. Not thread-safe.

    ``count_senders``: number of publishers; asked where rclpy does not name the sender (before Kilted). Numbers of one
    publisher are its own.
    """

    def __init__(self, count_senders: Callable[[], int] = lambda: 0) -> None:
        self._count_senders = count_senders
        self._newest: dict[bytes, int] = {}  # sequence number, by sender
        self._steps_ns: deque[int] = deque(maxlen=_STEPS)
        self._stamp_ns = 0
        self.missed = 0

    def add(self, info: Any, stamp_ns: int) -> int:
        """Register a message with rclpy's ``info``; return the number of messages missing before it."""
        number, sender = info.get("publication_sequence_number"), sender_of(info)
        if number is not None and (sender or self._count_senders() == 1):
            missed = self._by_number(sender, number)
        else:
            missed = self._by_stamp(stamp_ns)
            self._newest.clear()
        self.missed += missed
        return missed

    def _by_number(self, sender: bytes, number: int) -> int:
        """None is missing before the first message of a sender, nor before a late one."""
        newest = self._newest.get(sender)
        if newest is not None and not sender and number < newest // 2:
            newest = None  # a publisher that was started again counts from 1
        if newest is None and len(self._newest) >= _MAX_SENDERS:
            self._newest.pop(next(iter(self._newest)))
        self._newest[sender] = number if newest is None else max(newest, number)
        return 0 if newest is None else max(number - newest - 1, 0)

    def _by_stamp(self, stamp_ns: int) -> int:
        step_ns, self._stamp_ns = stamp_ns - self._stamp_ns, stamp_ns
        if step_ns <= 0 or step_ns == stamp_ns:
            return 0
        self._steps_ns.append(step_ns)
        steps = np.array(self._steps_ns)
        short = np.quantile(steps, 0.1)  # one period, as long as some neighbours are delivered
        periods = steps / np.median(steps[steps < 1.5 * short])
        is_steady = len(steps) >= _STEPS // 3 and np.mean(np.abs(periods - np.round(periods)) < 0.25) > 0.8
        return round(periods[-1]) - 1 if is_steady and periods[-1] < _MAX_PERIODS else 0


class LostImages:
    """Tells frames of one camera that lost an image in transport from frames whose image was never sent.

    An undelivered image explains one frame without it. If both kinds still have undelivered images after ``wait_ns``,
    neither image of their frames was delivered. Not thread-safe.
    """

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._undelivered: Counter[str] = Counter()  # by kind, of frames that are not counted yet
        self._alone: Counter[str] = Counter()  # unexplained frames, by the kind that they lack
        self._since_ns: int | None = None
        self.stamp_ns = 0  # of the first image after the last gap

    def miss(self, kind: str, count: int, stamp_ns: int) -> int:
        """Register undelivered images before the one of ``stamp_ns``; return how many earlier drops they explain."""
        self.stamp_ns = stamp_ns
        explained = min(count, self._alone[kind])
        self._alone[kind] -= explained
        self._undelivered[kind] += count - explained
        return explained

    def explains(self, missing: str) -> bool:
        """Register a frame without its image of kind ``missing``; return whether that image was lost."""
        is_lost = self._undelivered[missing] > 0
        if is_lost:
            self._undelivered[missing] -= 1
        else:
            self._alone[missing] += 1
        return is_lost

    def settle(self, now_ns: int) -> int:
        """Number of frames that lost both images, once."""
        both = min(self._undelivered["color"], self._undelivered["depth"])
        if not both or self._since_ns is None:
            self._since_ns = now_ns if both else None
            return 0
        if abs(now_ns - self._since_ns) < self._wait_ns:
            return 0
        self._undelivered.subtract(color=both, depth=both)
        self._since_ns = None
        return both
