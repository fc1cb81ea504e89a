"""Map a function over many items, in processes of this machine or on a Ray cluster.

Processes are spawned, not forked: a fork inherits the thread pools of torch, numba and ray casters in an unknown state.
They exit when this process exits, also when it is killed; those of the standard library would wait for work forever.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class ClusterError(ValueError):
    """A Ray cluster cannot be reached; the message gives the reason."""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster instead of processes of this machine. Its machines need the same packages, and see data and weights
    under the same absolute paths."""

    address: str  # as ``ray.init`` takes it: ``HOST:PORT`` of the head node, ``auto``, or ``local``


Workers = int | Cluster


def choose_workers(processes: int, ray_address: str | None) -> Workers:
    """Workers of the options ``--workers`` and ``--ray``."""
    return processes if ray_address is None else Cluster(ray_address)


def spread(
    work: Callable[[Item], Result], items: Sequence[Item], workers: Workers
) -> Iterator[tuple[Item, Callable[[], Result]]]:
    """Yield each item, in the order of completion, with a function that returns the result of ``work`` (picklable) or
    raises its error. Remaining items are cancelled when the caller stops iterating.

    With one worker everything runs in this process, lazily. Raises ``ValueError`` for fewer than one, and
    :class:`ClusterError` where Ray is missing or no cluster is at the address.
    """
    if isinstance(workers, Cluster):
        yield from _on_cluster(work, items, workers)
    elif workers < 1:
        raise ValueError(f"need at least one worker, got {workers}")
    elif workers == 1 or len(items) <= 1:
        yield from ((item, partial(work, item)) for item in items)
    else:
        with process_pool(min(workers, len(items))) as pool:
            item_of: dict[Future[Result], Item] = {pool.submit(work, item): item for item in items}
            try:
                for future in as_completed(item_of):
                    yield item_of[future], future.result
            finally:
                for future in item_of:  # shutdown(cancel_futures=True) may wait for ever for a process that is starting
                    future.cancel()


def _on_cluster(
    work: Callable[[Item], Result], items: Sequence[Item], cluster: Cluster
) -> Iterator[tuple[Item, Callable[[], Result]]]:
    try:
        import ray
    except ImportError as error:
        raise ClusterError("--ray needs the package ray: pip install ray") from error
    try:
        host, separator, port = cluster.address.removeprefix("ray://").rpartition(":")
        if separator and port.isdigit():  # Ray itself goes on trying for minutes
            socket.create_connection((host, int(port)), timeout=10.0).close()
        ray.init(address=cluster.address)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Ray cluster at {cluster.address!r}: {error}") from error
    try:
        remote = ray.remote(_on_one_thread)
        item_of = {remote.remote(work, item): item for item in items}
        waiting = list(item_of)
        while waiting:
            done, waiting = ray.wait(waiting)
            yield item_of[done[0]], partial(_get, done[0])
    finally:
        ray.shutdown()  # ends what still waits


def _get(task: Any) -> Any:
    """The result of a task; raises its error without Ray's own text around it."""
    import ray

    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _on_one_thread(work: Callable[[Item], Result], item: Item) -> Result:
    one_thread()
    return work(item)


class _Pool(ProcessPoolExecutor):
    """A pool whose processes leave Ctrl-C to this process, which ends them at once."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes start here and inherit it
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> bool | None:
        if kind is not None and not issubclass(kind, Exception):
            for process in list(self._processes.values()):
                process.terminate()
        return super().__exit__(kind, *details)


def process_pool(workers: int, prepare: Callable[..., None] | None = None, *arguments: object) -> ProcessPoolExecutor:
    """A pool of ``workers`` processes on one core each; ``prepare(*arguments)`` runs once in each, before its work."""
    context = multiprocessing.get_context("spawn")
    return _Pool(workers, context, _begin, (prepare, arguments))


def one_thread() -> None:
    """Limit this process to one thread: several processes share the machine, and sums get one order."""
    import cv2

    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"  # for what is not imported yet
    cv2.setNumThreads(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _begin(prepare: Callable[..., None] | None, arguments: tuple[object, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    one_thread()
    if prepare is not None:
        prepare(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
