"""Images that a driver sent and the middleware did not deliver, found by gaps in sequence numbers or in stamps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rclpy.subscription import Subscription

_MESSAGE_INFO = hasattr(Subscription, "CallbackType")  # callbacks get the message's info; not in Humble
_MAX_SENDERS = 100  # per topic, whose sequence numbers are followed
_STEPS = 30  # between stamps, from which the period of a stream is measured
_MAX_PERIODS = 10  # a longer step between stamps is a pause of the driver
_KEPT = 1000


def with_info(receive: Callable[[Any, Any], None]) -> Callable[..., None]:
    """Callback of a subscription that gets the message and its info; the info is empty in Humble."""
    return receive if _MESSAGE_INFO else lambda message: receive(message, {})


@dataclass
class Gap:
    """``count`` undelivered messages with stamps between ``since_ns`` and ``until_ns``."""

    count: int
    since_ns: int
    until_ns: int
    noted_ns: int | None = None  # on the clock that bounds waiting


class DeliveryCount:
    """Counts undelivered messages of one topic: by their publishers' sequence numbers, or by gaps between regular
    stamps where the middleware has no numbers. Not thread-safe."""

    def __init__(self) -> None:
        self._newest: dict[bytes, tuple[int, int]] = {}  # number and stamp, by sender
        self._steps_ns: deque[int] = deque(maxlen=_STEPS)
        self._stamp_ns: int | None = None
        self.received = self.missed = 0

    def add(self, info: Any, stamp_ns: int) -> Gap | None:
        """Register a message with rclpy's ``info``; return the gap before it."""
        self.received += 1
        number = info.get("publication_sequence_number")
        if number is None:
            count, since_ns = self._by_stamp(stamp_ns)
        else:
            count, since_ns = self._by_number(bytes(info["publisher_gid"]["data"]), number, stamp_ns)
        self.missed += count
        return Gap(count, since_ns, stamp_ns) if count else None

    def _by_number(self, sender: bytes, number: int, stamp_ns: int) -> tuple[int, int]:
        """No gap before the first message of a sender, nor before a late one."""
        newest = self._newest.get(sender)
        if newest is None and len(self._newest) >= _MAX_SENDERS:
            self._newest.pop(next(iter(self._newest)))
        if newest is None or number > newest[0]:
            self._newest[sender] = number, stamp_ns
        return (0, 0) if newest is None else (max(number - newest[0] - 1, 0), newest[1])

    def _by_stamp(self, stamp_ns: int) -> tuple[int, int]:
        since_ns, self._stamp_ns = self._stamp_ns, stamp_ns
        if since_ns is None or stamp_ns <= since_ns:
            return 0, 0
        self._steps_ns.append(stamp_ns - since_ns)
        steps = np.array(self._steps_ns)
        if len(steps) < _STEPS // 3:
            return 0, 0
        short = np.quantile(steps, 0.1)  # one period, as long as some neighbours are delivered
        periods = steps / np.median(steps[steps < 1.5 * short])
        is_steady = np.mean(np.abs(periods - np.round(periods)) < 0.25) > 0.8
        return (int(np.round(periods[-1])) - 1 if is_steady and periods[-1] < _MAX_PERIODS else 0), since_ns


class UndeliveredImages:
    """Tells frames of one camera that lost an image in transport from frames whose image was never sent.

    A gap in the missing image's stream explains an image without partner. What is left of the gaps of colour after
    ``wait_ns`` are frames of which neither image was delivered. Not thread-safe.
    """

    def __init__(self, wait_ns: int, tolerance_ns: int) -> None:
        self._wait_ns, self._tolerance_ns = wait_ns, tolerance_ns
        self._gaps: dict[str, deque[Gap]] = {kind: deque(maxlen=_KEPT) for kind in ("color", "depth")}
        self._alone: deque[tuple[str, int]] = deque(maxlen=_KEPT)  # missing kind and stamp of unexplained drops

    def add(self, kind: str, gap: Gap) -> int:
        """Add a gap of ``kind``; return the number of earlier drops that it explains."""
        alone = [(missing, stamp) for missing, stamp in self._alone if missing == kind and self._lies_in(gap, stamp)]
        for drop in alone[: gap.count]:
            self._alone.remove(drop)
        explained = min(gap.count, len(alone))
        gap.count -= explained
        self._gaps[kind].append(gap)
        return explained

    def explains(self, missing: str, stamp_ns: int, is_open: bool) -> bool:
        """Return whether the image of kind ``missing``, which a dropped frame lacked, was lost. If not, and the drop
        ``is_open``, a later gap may explain it."""
        for gap in self._gaps[missing]:
            if gap.count and self._lies_in(gap, stamp_ns):
                gap.count -= 1
                return True
        if is_open:
            self._alone.append((missing, stamp_ns))
        return False

    def _lies_in(self, gap: Gap, stamp_ns: int) -> bool:
        return gap.since_ns - self._tolerance_ns < stamp_ns < gap.until_ns + self._tolerance_ns

    def settle(self, now_ns: int) -> Gap | None:
        """Remove the oldest gap of colour that has waited long enough; None if there is none."""
        for gaps in self._gaps.values():
            for gap in gaps:
                gap.noted_ns = now_ns if gap.noted_ns is None else gap.noted_ns
        colors = self._gaps["color"]
        if colors and colors[0].noted_ns is not None and abs(now_ns - colors[0].noted_ns) > self._wait_ns:
            return colors.popleft()
        return None
