"""Scheduling of 2-D detectors: newest keyframe first, at a bounded rate, with retries after failures.

:class:`LiftScheduler` has neither clock nor thread: a replay passes the recording's stamps, a test its own.
:class:`DetectorSlot` is a detector with its schedule, :class:`LiftWorker` the thread for live use.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from embodied_perceptron.config import require_at_least, require_positive
from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.detectors import Detector, OpenVocabularyDetector
from embodied_perceptron.detection2d.layouts import LayoutError
from embodied_perceptron.mapping.devices import in_thread, yield_to_fusion
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.sensors.frame import RgbdFrame

_NS = 1_000_000_000
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class SchedulerRules:
    """Rate and failure limits of a detector.

    Attributes:
        max_rate_hz: images per second.
        burst: images in a row after a pause.
        retry_s: pause after a failure; doubled with each further one in a row.
        max_failures: in a row, before the detector is disabled.
        limit_s: time per image on a live robot; longer is a failure.

    Raises ``ValueError`` naming the field.
    """

    max_rate_hz: float = 2.0
    burst: int = 5
    retry_s: float = 1.0
    max_failures: int = 5
    limit_s: float = 5.0

    def __post_init__(self) -> None:
        require_positive(self, "max_rate_hz", "burst", "max_failures", "limit_s")
        require_at_least(self, 0, "retry_s")


class LiftScheduler:
    """Selects the next keyframe. Not thread-safe; the caller passes the time."""

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
        """Return the newest waiting keyframe if the detector may run now, and count it as started.

        A clock that is set back restarts the rate limit.
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
        """Record success of the started detection."""
        self.done += 1
        if not self.failed:
            self.last_error = ""  # of images passed over
        self.failures = 0
        self._not_before_ns = None

    def passed_over(self, error: BaseException) -> None:
        """Record an image about which the detector has no answer: the reason counts while it has answered none."""
        if not self.done:
            self.last_error = str(error)

    def failed_with(self, error: BaseException, now_ns: int) -> None:
        """Record failure of the started detection; another layout or a missing file disables the detector at once."""
        hopeless = isinstance(error, (LayoutError, FileNotFoundError))
        self.failures += 1
        self.failed += 1
        self.last_error = f"{type(error).__name__}: {error}"
        self.disabled = hopeless or self.failures >= self.rules.max_failures
        self._not_before_ns = now_ns + int(self.rules.retry_s * _NS * 2 ** (self.failures - 1))

    @property
    def state(self) -> str:
        """Return ``running``, ``retrying`` after a failure, or ``disabled``."""
        return "disabled" if self.disabled else "retrying" if self.failures else "running"


class TooLateError(Exception):
    """A call that exceeded its time limit, or is still running."""


class LimitedCalls(Generic[ResultT]):
    """Calls with a time limit for detectors that may be slow or never return.

    Each call runs in its own thread, because it cannot be interrupted. A late result is dropped; further calls are
    refused until the late one has returned.
    """

    def __init__(self) -> None:
        self._late: threading.Thread | None = None
        self._began_s = 0.0

    @property
    def busy_s(self) -> float:
        """Return for how long a timed-out call has been running; 0 = none is."""
        late = self._late is not None and self._late.is_alive()
        return time.monotonic() - self._began_s if late else 0.0

    def call(self, work: Callable[[], ResultT], limit_s: float) -> ResultT:
        """Return the result of ``work``. Raises its error, and :class:`TooLateError` if it takes longer than
        ``limit_s`` or the previous call is still running."""
        if self.busy_s > 0:
            raise TooLateError("still busy with the previous image")
        self._began_s = time.monotonic()
        thread, done = in_thread(work, "detector")
        thread.join(limit_s)
        if thread.is_alive():
            self._late = thread
            raise TooLateError(f"took longer than {limit_s:g} s for an image")
        return done.result()


class DetectorSlot:
    """A detector with its schedule and processed images; rebuilt after a failure. Used by the detecting thread.

    Args:
        source: name of the detector.
        make: builds it.
        rules: of its schedule.

    Raises what ``make`` raises.
    """

    def __init__(self, source: str, make: Callable[[], Detector], rules: SchedulerRules) -> None:
        self.source = source
        self._make = make
        self.detector: Detector | None = make()
        self.vocabulary = self.detector.vocabulary
        self.takes_words = isinstance(self.detector, OpenVocabularyDetector)
        self.own_words: tuple[str, ...] = tuple(sorted(self.vocabulary))
        self.scheduler = LiftScheduler(rules)
        self._calls = LimitedCalls[tuple[Detections2d, Counter[str]]]()
        self.asked_of: WeakKeyDictionary[RgbdFrame, int] = WeakKeyDictionary()  # number of the words it ran with

    @property
    def busy_s(self) -> float:
        """Return for how long it has been busy with a timed-out image; 0 = it is not."""
        return self._calls.busy_s

    def detect(self, frame: RgbdFrame, words: Sequence[str] | None, limited: bool) -> tuple[Detections2d, Counter[str]]:
        """Run :meth:`.Detector.detect`, after rebuilding a failed detector. Raises its errors, and
        :class:`.TooLateError` past its time limit if ``limited``."""

        def run() -> tuple[Detections2d, Counter[str]]:
            if self.detector is None:
                self.detector = self._make()
                self.set_words(words)
            return self.detector.detect(frame)

        found, drops = self._calls.call(run, self.scheduler.rules.limit_s) if limited else run()
        _check_belongs(found, frame)
        return found, drops

    def set_words(self, words: Sequence[str] | None) -> None:
        """Set the words to detect in addition to its own."""
        if isinstance(self.detector, OpenVocabularyDetector) and words is not None:
            self.detector.look_for((*self.own_words, *words))
            self.vocabulary = self.detector.vocabulary


def _check_belongs(found: Detections2d, frame: RgbdFrame) -> None:
    """Raise :class:`LayoutError` unless the detections are of the given frame."""
    if (found.camera, found.stamp_ns) != (frame.camera, frame.stamp_ns):
        raise LayoutError(
            f"detections of {found.camera!r} at {found.stamp_ns} for an image of {frame.camera!r} at {frame.stamp_ns}"
        )
    if not masks_fit(found, frame):
        assert found.masks is not None
        raise LayoutError(f"masks have the shape {found.masks.shape[1:]}, the image {frame.depth_m.shape}")


def masks_fit(found: Detections2d, frame: RgbdFrame) -> bool:
    """Return False for detections with masks of another size than the image."""
    return found.masks is None or found.masks.shape[1:] == frame.depth_m.shape


class LiftWorker:
    """Thread that calls ``work`` until it returns False, and again after :meth:`wake` or a pause.

    Args:
        work: does one unit of work and returns True, or False without any; must not raise.
        idle_s: pause without work.
    """

    def __init__(self, work: Callable[[], bool], idle_s: float = 0.1) -> None:
        self._work = work
        self._idle_s = idle_s
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._began_s: float | None = None

    def start(self) -> None:
        """Start the thread; once."""
        if self._thread is not None:
            raise RuntimeError("the worker is already running")
        self._thread = threading.Thread(target=self._run, name="lift", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Signal that there may be work."""
        self._wake.set()

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Stop after the current unit of work; return False if that takes longer than ``timeout_s``."""
        self._stopping.set()
        self._wake.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def busy_s(self) -> float:
        """Return the time since the current unit of work began; 0 = idle. Shows a detector that hangs."""
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
