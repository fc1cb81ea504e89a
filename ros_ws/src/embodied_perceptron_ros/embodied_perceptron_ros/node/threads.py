"""Work between the executor's thread and others, and a watchdog that bounds how long it takes.

A thread cannot be killed from outside. A stage that is overdue is handled in two ways: its caller is informed at once
(``on_overdue``), and :class:`TookTooLongError` is raised inside it, which ends Python loops and releases locks.
Compiled code ends when it returns; until then the diagnostics name the stage.
"""

from __future__ import annotations

import ctypes
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from typing import Any, TypeVar

from rclpy.node import Node
from rclpy.task import Future

from embodied_perceptron_ros.node.health import ERROR, Health, ThrottledLog

T = TypeVar("T")
_CHECK_S = 0.1  # between two checks of whether to go on waiting
# Many times what a stage takes on a slow machine: exceeding a limit is a program error. On a busy machine limits are
# longer, by the number of programs that share a core
FUSION_LIMIT_S = 30.0
PERCEPTION_LIMIT_S = 120.0
ANSWER_LIMIT_S = 30.0
SERVICE_LIMIT_S = 300.0  # a large map on a slow disk
STOP_LIMIT_S = 10.0  # for a thread to end; it may be stuck
_HOLD_S = 60.0  # how long diagnostics report a stage that was given up
_ERROR_HOLD_S = 30.0  # and an internal error
_CALLBACK_S = 1.0  # for on_overdue, before the error is raised in the stage
_MAX_LOAD = 20.0
_OWN = "embodied_perceptron"  # name of our packages in file paths


class GivenUpError(RuntimeError):
    """Nobody waits for the result any more."""


class TookTooLongError(BaseException):
    """Raised inside a stage that is given up. Not an ``Exception``, so that no error handler continues the stage."""


def await_in_executor(node: Node, future: ThreadFuture[Any]) -> Future[ThreadFuture[Any]]:
    """Return a rclpy future that is done when ``future`` is; a coroutine callback can await it without blocking."""
    waiting: Future[ThreadFuture[Any]] = Future(executor=node.executor)
    # without a done callback the executor would not wake when another thread sets the result
    waiting.add_done_callback(lambda _: node.executor.wake() if node.executor is not None else None)
    future.add_done_callback(waiting.set_result)
    return waiting


def run_in_executor(node: Node, job: Callable[[], T], given_up: Callable[[], bool]) -> T:
    """Run ``job`` in the thread that spins ``node``, from another thread; return its result or raise its exception.

    Raises :class:`GivenUpError` when ``given_up`` returns True before the job begins, or without an executor.
    """
    executor = node.executor
    if executor is None:
        raise GivenUpError("the node is in no executor")
    outcome: ThreadFuture[T] = ThreadFuture()
    done = threading.Event()

    def run() -> None:
        if outcome.set_running_or_notify_cancel():
            try:
                outcome.set_result(job())
            except BaseException as error:
                outcome.set_exception(error)
        done.set()

    executor.create_task(run)
    while not done.wait(_CHECK_S):
        if given_up() and outcome.cancel():
            raise GivenUpError("the node is stopping")
    return outcome.result()


class BackgroundThread:
    """One thread that runs jobs in order. A daemon thread: a running compiler does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], ThreadFuture[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = threading.Lock()
        self._unfinished = 0

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    @property
    def is_busy(self) -> bool:
        """Whether a job runs or waits."""
        return self._unfinished > 0

    def submit(self, job: Callable[[], T]) -> ThreadFuture[T]:
        """Queue ``job``; the future gets its result or exception."""
        future: ThreadFuture[T] = ThreadFuture()
        with self._started:
            self._unfinished += 1
            if not self._thread.is_alive():
                self._thread.start()
        self._jobs.put((job, future))
        return future

    def successor(self) -> BackgroundThread:
        """Move the waiting jobs to a new thread; this one ends after its current job."""
        other = BackgroundThread(self._thread.name)
        while True:
            try:
                task = self._jobs.get_nowait()
            except queue.Empty:
                break
            if task is not None:
                with other._started:
                    other._unfinished += 1
                other._jobs.put(task)
        self._jobs.put(None)
        if other.is_busy:
            other._thread.start()
        return other

    def close(self, timeout_s: float | None = 0.0) -> None:
        """End after the queued jobs; wait at most ``timeout_s`` (None: without limit)."""
        with self._started:
            alive = self._thread.is_alive()
        if alive:
            self._jobs.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            task = self._jobs.get()
            if task is None:
                return
            job, future = task
            try:
                result = job()
            except BaseException as error:
                self._finished()
                future.set_exception(error)
            else:
                self._finished()
                future.set_result(result)

    def _finished(self) -> None:
        with self._started:
            self._unfinished -= 1


def load_per_core() -> float:
    """Programs that want to run, per core: the mean of the last minute, between 1 and 20."""
    try:
        return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), _MAX_LOAD)
    except OSError:  # the system does not count them
        return 1.0


class Watch:
    """Context manager for one running stage; made by :meth:`Watchdog.watch`."""

    def __init__(
        self, watchdog: Watchdog, stage: str, limit_s: float, detail: str, on_overdue: Callable[[str], None]
    ) -> None:
        self._watchdog = watchdog
        self.stage = stage
        self.limit_s = limit_s
        self.message = f"{stage}{detail} took too long (more than {limit_s:g} s)"
        self.on_overdue = on_overdue
        self.thread_id = 0
        self.begun_s = 0.0
        self.is_overdue = False

    def __enter__(self) -> Watch:
        self.thread_id = threading.get_ident()
        self._watchdog._enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog._leave(self)


class Watchdog:
    """Limits the duration of stages in all threads; its own thread starts with the first stage.

    Args:
        health, log: receive which stage is overdue, and at which line of code.
        check_s: seconds between two checks.
        clock: seconds.
    """

    def __init__(
        self, health: Health, log: ThrottledLog, check_s: float = 0.25, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.health = health
        self.log = log
        self._check_s = check_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stages: list[Watch] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(
        self, stage: str, limit_s: float, detail: str = "", on_overdue: Callable[[str], None] = lambda message: None
    ) -> Watch:
        """``with watchdog.watch("perception", 60.0):`` limits the block to ``limit_s``, longer on a busy machine.

        When it is overdue, ``on_overdue`` is called once with a message, from another thread; then
        :class:`TookTooLongError` is raised in the block. ``detail`` is appended to the stage's name.
        """
        return Watch(self, stage, limit_s, detail, on_overdue)

    def stop(self) -> None:
        """End the watchdog's thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def report_error(self, doing: str, source: str) -> None:
        """Report the exception at hand, after which a thread goes on with the next frame or message."""
        self.health.count("internal_errors")
        trace = traceback.format_exc()
        last_line = trace.strip().splitlines()[-1]
        message = f"internal error while {doing}: {last_line}"
        self.health.problem("node", ERROR, message, source, hold_s=_ERROR_HOLD_S)
        self.log.error("internal error", trace)

    def _enter(self, watch: Watch) -> None:
        watch.begun_s = self._clock()
        with self._lock:
            self._stages.append(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()

    def _leave(self, watch: Watch) -> None:
        with self._lock:
            self._stages.remove(watch)  # from here on the watchdog raises nothing in it
        if watch.is_overdue:
            _absorb()  # it may have ended by itself just now
            took_s = self._clock() - watch.begun_s
            message = f"{watch.message} and was given up after {took_s:.0f} s"
            self.health.problem("node", ERROR, message, f"overdue {watch.stage}", hold_s=_HOLD_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._check_s):
            self._check()

    def _check(self) -> None:
        now_s, load = self._clock(), load_per_core()
        with self._lock:
            overdue = [w for w in self._stages if not w.is_overdue and now_s - w.begun_s > w.limit_s * load]
            for watch in overdue:
                watch.is_overdue = True
                message = f"{watch.message} and is given up, at {_where(watch.thread_id)}"
                self.health.count(f"overdue.{watch.stage}")
                self.health.problem("node", ERROR, message, f"overdue {watch.stage}")
                self.log.error(f"overdue {watch.stage}", message, every_s=1.0)
        for watch in overdue:
            # in its own thread: the callback may need a lock that the stage holds until the error is raised
            caller = threading.Thread(target=self._call, args=(watch,), name="overdue", daemon=True)
            caller.start()
            caller.join(_CALLBACK_S)
            with self._lock:
                if watch in self._stages:
                    _raise_in(watch.thread_id, TookTooLongError)

    def _call(self, watch: Watch) -> None:
        try:
            watch.on_overdue(watch.message)
        except Exception:
            self.log.error("overdue callback", traceback.format_exc())


def _raise_in(thread_id: int, error: type[BaseException]) -> None:
    """Raise ``error`` in a thread at its next line of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error))


def _absorb() -> None:
    """Discard an error that :func:`_raise_in` has set for this thread and that is not raised yet.

    It is replaced by one that is raised and caught here. Cancelling it (with NULL) would leave CPython's flag set that
    an error waits: every later check of that flag is slow, and Python 3.11 loops for ever at the first call of a
    function that is traced (a debugger, coverage).
    """
    try:
        _raise_in(threading.get_ident(), TookTooLongError)
        while True:
            time.sleep(0)
    except TookTooLongError:
        pass


def _where(thread_id: int) -> str:
    """Function, file and line of our own code that a thread executes."""
    frame: Any = sys._current_frames().get(thread_id)
    if frame is None:
        return "its end"
    stack = traceback.extract_stack(frame)
    at = ([entry for entry in stack if _OWN in entry.filename] or stack)[-1]
    return f"{at.name} ({'/'.join(at.filename.split('/')[-3:])}:{at.lineno})"
