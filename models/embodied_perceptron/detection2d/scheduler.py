"""When a 2-D detector runs: off the sensor path, newest keyframe first, at a bounded rate, and what if it dies.

:class:`LiftScheduler` decides and holds no clock and no thread, so that a replay is decided by the recording's stamps
and a test by its own. :class:`LiftWorker` is the thread around it for live use.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from embodied_perceptron.mapping.devices import yield_to_fusion
from embodied_perceptron.mapping.keyframes import Keyframe

_NS = 1_000_000_000
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class SchedulerRules:
    """How often, and how long a failing detector is tried.

    Attributes:
        max_rate_hz: pictures a second.
        burst: pictures at once, after a pause.
        retry_s: pause after the first failure; doubled with each further one in a row.
        max_failures: in a row; then it is disabled.
        limit_s: time for a picture where somebody waits for what comes next; what takes longer is a failure.

    Raises ``ValueError`` naming the field.
    """

    max_rate_hz: float = 2.0
    burst: int = 5
    retry_s: float = 1.0
    max_failures: int = 5
    limit_s: float = 5.0

    def __post_init__(self) -> None:
        if not self.max_rate_hz > 0:
            raise ValueError(f"max_rate_hz must be positive, got {self.max_rate_hz}")
        if self.burst < 1:
            raise ValueError(f"burst must be positive, got {self.burst}")
        if not self.retry_s >= 0:
            raise ValueError(f"retry_s must not be negative, got {self.retry_s}")
        if self.max_failures < 1:
            raise ValueError(f"max_failures must be positive, got {self.max_failures}")
        if not self.limit_s > 0:
            raise ValueError(f"limit_s must be positive, got {self.limit_s}")


class LiftScheduler:
    """Which keyframe is next, if any. Not thread-safe; time is what the caller says."""

    def __init__(self, rules: SchedulerRules | None = None) -> None:
        self.rules = rules if rules is not None else SchedulerRules()
        self.failures = 0  # in a row
        self.failed = 0  # ever
        self.done = 0
        self.last_error = ""
        self.disabled = False
        self._tokens = float(self.rules.burst)
        self._at_ns: int | None = None
        self._not_before_ns: int | None = None

    def next(self, waiting: Sequence[Keyframe], now_ns: int) -> Keyframe | None:
        """The newest of those that wait, if one may run now; that counts as started.

        A clock that was set back starts counting anew.
        """
        if self._at_ns is None or now_ns < self._at_ns:
            self._at_ns = now_ns
            self._not_before_ns = None
        gained = (now_ns - self._at_ns) / _NS * self.rules.max_rate_hz
        self._tokens = min(float(self.rules.burst), self._tokens + gained)
        self._at_ns = now_ns
        paused = self._not_before_ns is not None and now_ns < self._not_before_ns
        if not waiting or self.disabled or paused or self._tokens < 1.0 - 1e-9:
            return None
        self._tokens -= 1.0
        return max(waiting, key=lambda keyframe: keyframe.id)

    def succeeded(self) -> None:
        """What was started ended well."""
        self.done += 1
        self.failures = 0
        self._not_before_ns = None

    def failed_with(self, error: BaseException, now_ns: int, hopeless: bool = False) -> None:
        """What was started raised; ``hopeless`` = trying again cannot help (another layout, for example)."""
        self.failures += 1
        self.failed += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self.disabled = hopeless or self.failures >= self.rules.max_failures
        self._not_before_ns = now_ns + int(self.rules.retry_s * _NS * 2 ** (self.failures - 1))

    @property
    def state(self) -> str:
        """``running``, ``retrying`` after a failure, or ``disabled``."""
        return "disabled" if self.disabled else "retrying" if self.failures else "running"


class TooLateError(Exception):
    """Somebody waited for a call as long as was said, and it has not come back."""


class LimitedCalls(Generic[ResultT]):
    """Calls of something foreign that may be slow, or never come back: nobody waits for it longer than is said.

    Each runs in a thread of its own, for nothing can end it. What comes too late is dropped, and until it has come
    nothing else is called.
    """

    def __init__(self) -> None:
        self._late: threading.Thread | None = None
        self._began_s = 0.0

    @property
    def busy_s(self) -> float:
        """For how long a call has been running for which nobody waits any more; 0 = none is."""
        late = self._late is not None and self._late.is_alive()
        return time.monotonic() - self._began_s if late else 0.0

    def call(self, work: Callable[[], ResultT], limit_s: float) -> ResultT:
        """What ``work`` returns. Raises what it raises, and :class:`TooLateError` where it takes longer, or the call
        before is still running."""
        if self.busy_s > 0:
            raise TooLateError("it has not come back from the picture before")
        done: list[ResultT] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                done.append(work())
            except BaseException as error:  # is raised where somebody waits for it
                failed.append(error)

        thread = threading.Thread(target=run, name="detector", daemon=True)
        self._began_s = time.monotonic()
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            self._late = thread
            raise TooLateError(f"it took longer than {limit_s:g} s for a picture")
        if failed:
            raise failed[0]
        return done[0]


class LiftWorker:
    """Calls ``work`` in a thread of its own until there is nothing to do, and again when something may have come.

    Args:
        work: does one piece and returns whether it did; must not raise.
        idle_s: pause when there was nothing to do and nobody woke it.

    The thread begins with :meth:`start` and ends with :meth:`stop`.
    """

    def __init__(self, work: Callable[[], bool], idle_s: float = 0.1) -> None:
        self._work = work
        self._idle_s = idle_s
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._began_s: float | None = None

    def start(self) -> None:
        """Begin; once."""
        if self._thread is not None:
            raise RuntimeError("the worker runs already")
        self._thread = threading.Thread(target=self._run, name="lift", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Something may have come."""
        self._wake.set()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """End after the piece in progress; False when that takes longer than ``timeout_s``."""
        self._stopping.set()
        self._wake.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def busy_s(self) -> float:
        """How long the piece in progress has taken so far; 0 = none. A detector that hangs shows here."""
        began_s = self._began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    def _run(self) -> None:
        yield_to_fusion()
        while not self._stopping.is_set():
            self._began_s = time.monotonic()
            worked = self._work()
            self._began_s = None
            if not worked:
                self._wake.wait(self._idle_s)
                self._wake.clear()
