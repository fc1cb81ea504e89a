"""No stage runs unbounded: what takes too long is named in diagnostics and log, given up, and the node goes on.

A thread cannot be killed from outside. So two things happen to a stage that is overdue: whoever waits for it hears at
once (``on_overdue``), and :class:`TookTooLongError` is raised inside of it, which ends any loop of Python and frees its
locks. Compiled code ends when it returns; until then the diagnostics say what is stuck, and who can goes on without it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from embodied_perceptron_ros.node.health import ERROR, Health
from embodied_perceptron_ros.node.throttled_log import ThrottledLog

# Many times what a stage takes on a slow and busy machine: to be given up is a fault of the program
FUSION_LIMIT_S = 30.0
PERCEPTION_LIMIT_S = 120.0
ANSWER_LIMIT_S = 30.0
SERVICE_LIMIT_S = 300.0  # a large map on a slow disk
STOP_LIMIT_S = 10.0  # so long the end of a thread is waited for: it may be stuck
_HOLD_S = 60.0  # how long diagnostics tell of a stage that was given up
_TOLD_S = 1.0  # so long the error waits for whoever waits to be told first
_OWN = "embodied_perceptron"  # packages whose code is worth naming


class TookTooLongError(BaseException):
    """Raised inside of a stage that is given up. No ``Exception``: code that goes on after errors must not go on."""


class Watch:
    """One stage at work; a context manager. Made by :meth:`Watchdog.watch`."""

    def __init__(
        self, watchdog: Watchdog, stage: str, limit_s: float, detail: str, on_overdue: Callable[[str], None]
    ) -> None:
        self._watchdog = watchdog
        self.stage = stage
        self.limit_s = limit_s
        self.detail = detail
        self.on_overdue = on_overdue
        self.thread_id = 0
        self.begun_s = 0.0
        self.is_overdue = False

    def words(self) -> str:
        """What there is to say once it is overdue."""
        return f"{self.stage}{self.detail} took too long (more than {self.limit_s:g} s)"

    def __enter__(self) -> Watch:
        self.thread_id = threading.get_ident()
        self._watchdog._enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchdog._leave(self)


class Watchdog:
    """Looks after the stages of all threads, in a thread of its own that begins with the first stage.

    Args:
        health, log: are told what took too long, and where in the code it was.
        look_s: how often it looks.
        clock: seconds.
    """

    def __init__(
        self, health: Health, log: ThrottledLog, look_s: float = 0.25, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._health = health
        self._log = log
        self._look_s = look_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stages: list[Watch] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(
        self, stage: str, limit_s: float, detail: str = "", on_overdue: Callable[[str], None] = lambda words: None
    ) -> Watch:
        """``with watchdog.watch("perception", 60.0):`` runs the block for ``limit_s`` at most.

        ``on_overdue`` is called once, from a thread of its own, with what there is to say; then
        :class:`TookTooLongError` is raised in the block. ``detail`` tells what the stage is about.
        """
        return Watch(self, stage, limit_s, detail, on_overdue)

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _enter(self, watch: Watch) -> None:
        watch.begun_s = self._clock()
        with self._lock:
            self._stages.append(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()

    def _leave(self, watch: Watch) -> None:
        with self._lock:
            self._stages.remove(watch)
            if watch.is_overdue:  # it may have ended by itself just then
                _raise_in(watch.thread_id, None)
        if watch.is_overdue:
            took_s = self._clock() - watch.begun_s
            words = f"{watch.words()} and was given up after {took_s:.0f} s"
            self._health.problem("node", ERROR, words, f"overdue {watch.stage}", hold_s=_HOLD_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._look_s):
            self._look()

    def _look(self) -> None:
        now_s = self._clock()
        with self._lock:
            overdue = [w for w in self._stages if not w.is_overdue and now_s - w.begun_s > w.limit_s]
            for watch in overdue:
                watch.is_overdue = True
                words = f"{watch.words()} and is given up, at {_where(watch.thread_id)}"
                self._health.count(f"overdue.{watch.stage}")
                self._health.problem("node", ERROR, words, f"overdue {watch.stage}")
                self._log.error(f"overdue {watch.stage}", words, every_s=1.0)
        for watch in overdue:
            # in a thread of its own: it may need a lock that the stage holds until the error is raised in it
            told = threading.Thread(target=self._tell, args=(watch,), name="overdue", daemon=True)
            told.start()
            told.join(_TOLD_S)
            with self._lock:
                if watch in self._stages:
                    _raise_in(watch.thread_id, TookTooLongError)

    def _tell(self, watch: Watch) -> None:
        try:
            watch.on_overdue(watch.words())
        except Exception:
            self._log.error("overdue callback", traceback.format_exc())


def _raise_in(thread_id: int, error: type[BaseException] | None) -> None:
    """Raise ``error`` in another thread, at its next line of Python; ``None`` takes back what was not raised yet."""
    # py_object() is the NULL that takes it back
    what = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), what)


def _where(thread_id: int) -> str:
    """Function, file and line of our own code that a thread is at."""
    frame: Any = sys._current_frames().get(thread_id)
    if frame is None:
        return "its end"
    stack = traceback.extract_stack(frame)
    own = [entry for entry in stack if _OWN in entry.filename]
    at = (own or stack)[-1]
    return f"{at.name} ({'/'.join(at.filename.split('/')[-3:])}:{at.lineno})"
