"""Work between the executor's thread and others: neither waits for the other where it must not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from typing import Any, TypeVar

from rclpy.node import Node
from rclpy.task import Future

T = TypeVar("T")
_LOOK_S = 0.1  # between two looks at whether waiting still makes sense


def await_in_executor(node: Node, future: ThreadFuture[Any]) -> Future[ThreadFuture[Any]]:
    """A rclpy future that is done when ``future`` is; a coroutine callback that awaits it leaves the executor free."""
    waiting: Future[ThreadFuture[Any]] = Future(executor=node.executor)
    # without a done callback the executor would sleep on when another thread sets the result
    waiting.add_done_callback(lambda _: node.executor.wake() if node.executor is not None else None)
    future.add_done_callback(waiting.set_result)
    return waiting


class GivenUpError(RuntimeError):
    """Nobody waits for the outcome any more."""


class BackgroundThread:
    """One thread that does jobs in order. A daemon: a compiler at work keeps no process from ending."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], ThreadFuture[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = threading.Lock()
        self._unfinished = 0

    @property
    def is_current(self) -> bool:
        """Whether the caller is a job of this thread."""
        return threading.current_thread() is self._thread

    @property
    def is_busy(self) -> bool:
        """Whether a job is being done or waits."""
        return self._unfinished > 0

    def submit(self, job: Callable[[], T]) -> ThreadFuture[T]:
        """Do ``job`` after those before it; its result, or what it raised."""
        future: ThreadFuture[T] = ThreadFuture()
        with self._started:
            self._unfinished += 1
            if not self._thread.is_alive():
                self._thread.start()
        self._jobs.put((job, future))
        return future

    def successor(self) -> BackgroundThread:
        """Another that does what waits here; this one ends after the job at work, if that ever ends."""
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

    def close(self, timeout_s: float = 0.0) -> None:
        """End once everything is done; wait for it, for ``timeout_s`` at most."""
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


def run_in_executor(node: Node, job: Callable[[], T], given_up: Callable[[], bool]) -> T:
    """``job`` in the thread that spins ``node``, from another thread; its result, or what it raised.

    Raises :class:`GivenUpError` when ``given_up`` says so before it began, or the node is in no executor.
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
    while not done.wait(_LOOK_S):
        if given_up() and outcome.cancel():
            raise GivenUpError("nobody waits for it any more")
    return outcome.result()
