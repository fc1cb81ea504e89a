"""Processes that work beside this one.

They are spawned, not forked: a fork inherits the thread pools of torch, numba and ray casters in an unknown state. They
end when this process ends, however that happens; those of the standard library wait for ever for work from a process
that was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import wait


def process_pool(workers: int, prepare: Callable[..., None] | None = None, *arguments: object) -> ProcessPoolExecutor:
    """A pool of ``workers`` processes on one core each; ``prepare(*arguments)`` runs once in each, before its work."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, _begin, (prepare, arguments))


def one_thread() -> None:
    """Each process computes on one core: several of them share the machine, and sums have one order."""
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
