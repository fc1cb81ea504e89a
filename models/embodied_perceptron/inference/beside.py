"""Two parts of a perception at once, where the processor has a core for each."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

ResultT = TypeVar("ResultT")


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def beside(function: Callable[[], ResultT], on_cpu: bool = True) -> Callable[[], ResultT]:
    """Call ``function`` in a thread of its own, of the caller's priority and context; what is returned waits for its
    end and gives its result, or raises what it raised. It must be called.

    Where this process has one core only, and for work on a device, whose order of launches is the caller's,
    ``function`` is called by what is returned instead.

    A thread for each call: one that is kept would not be there any more in a process that was forked.
    """
    if not on_cpu or cores() == 1:
        return function
    results: list[ResultT] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            results.append(context.run(function))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="beside", daemon=True)
    thread.start()

    def result() -> ResultT:
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return result
