"""What the node reports about itself: counts, rates, latencies, /diagnostics, log lines, and the bond heartbeat.

``doctor`` and the demo rely on these keys: status ``<node>: frames`` has ``frames_received``, ``frames_fused``,
``frames_pending``, ``frames_dropped`` and ``frames_dropped.<reason>``; ``<node>: latency`` has ``<stage>_ms.p50``,
``.p99``, ``.max``, ``.count`` for the stages ``fused`` (image sent to image in the map), ``boxes`` (image sent to boxes
published), ``query``, and each stage of fusion and perception.
"""

from __future__ import annotations

import math
import os
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.time import Time
from std_msgs.msg import Header

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
_WINDOW = 4096  # samples of a percentile: two minutes at 30 Hz
_MAX_LOG_KEYS = 1000
_WHOLE = 0.999  # of an event that a rate limit allows: timers are not exact
BOND_TIMEOUT_S = 4.0  # nav2_lifecycle_manager's default


class Series:
    """The newest samples of one quantity, and the number of all samples."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_WINDOW)
        self.count = 0

    def add(self, value: float) -> None:
        """Add one sample."""
        self._samples.append(value)
        self.count += 1

    def summary(self) -> dict[str, float]:
        """p50, p99 and max of the newest samples, count of all. Empty without samples."""
        if not self._samples:
            return {}
        values = np.array(self._samples)
        p50, p99 = np.percentile(values, (50, 99))
        return {"p50": float(p50), "p99": float(p99), "max": float(values.max()), "count": float(self.count)}


class Rate:
    """Events per second between two calls of :meth:`take`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = 0
        self._since = clock()

    def tick(self) -> None:
        """Count one event."""
        self._count += 1

    def take(self) -> float:
        """Events per second since the last call."""
        now = self._clock()
        elapsed, count = now - self._since, self._count
        self._since, self._count = now, 0
        return count / elapsed if elapsed > 0 else 0.0


class RateLimit:
    """Allows a burst of events, and a number a second in the long run. Use from one thread, or where a lost count does
    not matter."""

    def __init__(self, burst: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._since_s = clock()

    def allows(self, per_s: float, always: bool = False) -> bool:
        """Return True and count the event if it is within the limit; ``always``: count it in any case."""
        now_s = self._clock()
        self._left = min(self._left + (now_s - self._since_s) * per_s, float(self._burst))
        self._since_s = now_s
        if self._left < _WHOLE and not always:
            return False
        self._left = max(self._left - 1.0, 0.0)
        return True


@dataclass
class FrameCounts:
    """Frames by outcome: ``received == fused + sum(dropped) + pending``."""

    received: int = 0
    fused: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def pending(self) -> int:
        """Frames that still wait."""
        return self.received - self.fused - sum(self.dropped.values())


@dataclass(frozen=True)
class _Problem:
    level: bytes
    message: str
    until_s: float


class Health:
    """Thread-safe statistics of one node. Threads report; a timer publishes :meth:`diagnostics`."""

    def __init__(self, node_name: str) -> None:
        self._node_name = node_name
        self._lock = threading.Lock()
        self._latency: dict[str, Series] = {}
        self._rates: dict[str, Rate] = {}
        self._counts: Counter[str] = Counter()
        self._last_drop: dict[str, str] = {}
        self._last_dropped: Counter[str] = Counter()
        self._problems: dict[tuple[str, str], _Problem] = {}

    # ---- reporting

    def latency(self, stage: str, milliseconds: float) -> None:
        """Add one duration of ``stage``."""
        with self._lock:
            self._latency.setdefault(stage, Series()).add(milliseconds)

    def stages(self, prefix: str, stage_ms: Mapping[str, float]) -> None:
        """Add the durations of several stages, named ``<prefix>.<stage>``."""
        for stage, milliseconds in stage_ms.items():
            self.latency(f"{prefix}.{stage}", milliseconds)

    def tick(self, what: str) -> None:
        """Count one event of the rate ``what``."""
        with self._lock:
            self._rates.setdefault(what, Rate()).tick()

    def count(self, what: str, amount: int = 1) -> None:
        """Add ``amount`` to the counter ``what``."""
        with self._lock:
            self._counts[what] += amount

    def counted(self, what: str) -> int:
        """Value of the counter ``what``."""
        with self._lock:
            return self._counts[what]

    def explain_drop(self, reason: str, detail: str) -> None:
        """Store the explanation of the last drop for ``reason``."""
        with self._lock:
            self._last_drop[reason] = detail

    def problem(self, area: str, level: bytes, message: str, key: str = "", hold_s: float = math.inf) -> None:
        """Report a problem of ``area`` (``frames``, ``transforms``, ``map``, ``node``, ``queries``, ``lift``).

        It lasts until :meth:`clear_problem`, or for ``hold_s``. ``key`` distinguishes problems of one area.
        """
        with self._lock:
            self._problems[(area, key)] = _Problem(level, message, time.monotonic() + hold_s)

    def clear_problem(self, area: str, key: str = "") -> None:
        """Remove a problem."""
        with self._lock:
            self._problems.pop((area, key), None)

    def problems(self) -> list[tuple[bytes, str, str]]:
        """Level, area and message of every current problem."""
        now = time.monotonic()
        with self._lock:
            return [(p.level, area, p.message) for (area, _), p in self._problems.items() if p.until_s > now]

    def _worst(self, area: str) -> tuple[bytes, str]:
        now = time.monotonic()
        current = [p for (a, _), p in self._problems.items() if a == area and p.until_s > now]
        worst = max(current, key=lambda p: p.level, default=None)
        return (OK, "ok") if worst is None else (worst.level, worst.message)

    # ---- publishing

    def diagnostics(
        self, now_ns: int, state: str, frames: FrameCounts, areas: Mapping[str, Mapping[str, Any]]
    ) -> DiagnosticArray:
        """Make the message: frames (with the values of that area), latency, then one status per area."""
        with self._lock:
            inputs = areas.get("frames", {})
            statuses = [self._frames_status(state, frames, inputs), self._latency_status()]
            node_values = {"state": state, "memory_mib": round(resident_mib(), 1), **self._counts}
            for area, values in {"node": node_values, **areas}.items():
                if area != "frames":
                    statuses.append(self._status(area, *self._worst(area), values))
        return DiagnosticArray(header=Header(stamp=Time(nanoseconds=now_ns).to_msg()), status=statuses)

    def _frames_status(self, state: str, frames: FrameCounts, inputs: Mapping[str, Any]) -> DiagnosticStatus:
        fresh = frames.dropped - self._last_dropped
        self._last_dropped = Counter(frames.dropped)
        rates = {f"{what}_hz": round(rate.take(), 3) for what, rate in sorted(self._rates.items())}
        values = {
            "frames_received": frames.received,
            "frames_fused": frames.fused,
            "frames_pending": frames.pending,
            "frames_dropped": sum(frames.dropped.values()),
            **{f"frames_dropped.{reason}": n for reason, n in sorted(frames.dropped.items())},
            **{f"last_drop.{reason}": detail for reason, detail in sorted(self._last_drop.items())},
            **rates,
            **inputs,
        }
        level, message = self._worst("frames")
        if state != "active":
            level, message = OK, state
        elif level != OK:
            pass
        elif fresh:
            reason = max(fresh, key=lambda r: fresh[r])
            detail = self._last_drop.get(reason, "")
            level, message = WARN, f"dropped {sum(fresh.values())} frames, mostly {reason}: {detail}".rstrip(": ")
        elif frames.received == 0:
            level, message = WARN, "no frame has arrived: check the topics and their QoS"
        return self._status("frames", level, message, values)

    def _latency_status(self) -> DiagnosticStatus:
        values = {
            f"{stage}_ms.{key}": round(value, 3)
            for stage, series in sorted(self._latency.items())
            for key, value in series.summary().items()
        }
        return self._status("latency", OK, "ok", values)

    def _status(self, area: str, level: bytes, message: str, values: Mapping[str, Any]) -> DiagnosticStatus:
        return DiagnosticStatus(
            level=level,
            name=f"{self._node_name}: {area}",
            message=message,
            hardware_id=self._node_name,
            values=[KeyValue(key=str(k), value=str(v)) for k, v in values.items()],
        )


def read_diagnostics(message: DiagnosticArray, node_name: str = "perception") -> dict[str, dict[str, str]]:
    """/diagnostics -> {area: {key: value}} of one node, with ``level`` and ``message`` among the keys."""
    areas = {}
    for status in message.status:
        name, _, area = status.name.partition(": ")
        if name.lstrip("/") == node_name:
            values = {kv.key: kv.value for kv in status.values}
            areas[area] = {"level": str(int.from_bytes(status.level, "little")), "message": status.message, **values}
    return areas


def resident_mib() -> float:
    """Resident memory of this process in MiB (Linux; 0 elsewhere)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class ThrottledLog:
    """Writes at most one line per key in ``every_s``. Thread-safe.

    Args:
        logger: rclpy's logger or a similar one.
        every_s: seconds between two lines of one key, unless a call gives another value.
        clock: seconds.
    """

    def __init__(self, logger: Any, every_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_s: dict[str, float] = {}

    # rclpy identifies a call by its line and allows one severity there: hence one method per severity

    def info(self, key: str, text: str, every_s: float | None = None) -> None:
        """Log at severity info."""
        if self._is_due(key, every_s):
            self._logger.info(text)

    def warning(self, key: str, text: str, every_s: float | None = None) -> None:
        """Log at severity warning."""
        if self._is_due(key, every_s):
            self._logger.warning(text)

    def error(self, key: str, text: str, every_s: float | None = None) -> None:
        """Log at severity error."""
        if self._is_due(key, every_s):
            self._logger.error(text)

    def forget(self) -> None:
        """Write the next line of every key, whatever was logged before."""
        with self._lock:
            self._logged_s.clear()

    def _is_due(self, key: str, every_s: float | None) -> bool:
        now_s = self._clock()
        with self._lock:
            last_s = self._logged_s.pop(key, float("-inf"))
            due = now_s - last_s >= (self._every_s if every_s is None else every_s)
            self._logged_s[key] = now_s if due else last_s
            if len(self._logged_s) > _MAX_LOG_KEYS:
                self._logged_s.pop(next(iter(self._logged_s)))
        return due


class Heartbeat:
    """Nav2's lifecycle manager takes a node without heartbeats for dead. Beats from construction to :meth:`close`.

    The protocol of the package ``bond``: both sides publish ``bond/Status`` on the topic ``bond`` of the manager's
    namespace, with the node's name as id; ``active`` becomes false once, at the end. Use from the executor's thread.

    Args:
        node: its name is the id.
        period_s: seconds between two beats.

    Raises ``ImportError`` when the package ``bond`` is not installed.
    """

    def __init__(self, node: Any, period_s: float) -> None:
        from bond.msg import Status

        self._node, self._status = node, Status
        self._instance = str(uuid.uuid4())
        self._period_s = period_s
        self._publisher = node.create_publisher(Status, "bond", 10)
        # steady: simulation time may stop while the node runs
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = node.create_timer(period_s, self._beat, clock=self._steady)

    def _beat(self) -> None:
        if self._publisher.get_subscription_count():
            self._publish(active=True)

    def _publish(self, active: bool) -> None:
        message = self._status(
            id=self._node.get_name(),
            instance_id=self._instance,
            active=active,
            heartbeat_timeout=BOND_TIMEOUT_S,
            heartbeat_period=self._period_s,
        )
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)

    def close(self) -> None:
        """End the bond."""
        self._publish(active=False)
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)
