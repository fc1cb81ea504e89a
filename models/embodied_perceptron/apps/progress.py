"""How far a command is: a bar in a terminal, and a line now and then where nobody looks at one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

_EVERY_S = 10.0  # between two lines


class _Heard:
    """A stream that notes when something is written to it."""

    def __init__(self, stream: TextIO, heard: threading.Event) -> None:
        self._stream = stream
        self._heard = heard

    def write(self, text: str) -> int:
        self._heard.set()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def first_word(text: str, after_s: float = 0.8) -> Iterator[None]:
    """Say ``text`` on standard error where the block says nothing for so long: importing libraries may take seconds."""
    heard, streams = threading.Event(), (sys.stdout, sys.stderr)

    def speak() -> None:
        if not heard.wait(after_s):
            print(text, file=streams[1], flush=True)

    sys.stdout, sys.stderr = (_Heard(stream, heard) for stream in streams)
    threading.Thread(target=speak, name="first word", daemon=True).start()
    try:
        yield
    finally:
        heard.set()
        sys.stdout, sys.stderr = streams


class TaskProgress:
    """Shows one task on standard error, from the moment it is entered; a context manager.

    Args:
        what: is done, in a word or two.
        console: where it is shown.
    """

    def __init__(self, what: str, console: Console | None = None) -> None:
        self.console = console if console is not None else Console(stderr=True)
        self._what = what
        self._told_s = float("-inf")
        self._bar: Progress | None = None
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self._task = self._bar.add_task(what, total=None)

    def __enter__(self) -> TaskProgress:
        if self._bar is not None:
            self._bar.start()
        else:
            self._tell(f"{self._what} ...")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int, text: str = "") -> None:
        """``done`` of ``total`` are done; ``text`` takes the place of what is done."""
        text = text or self._what
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif time.monotonic() - self._told_s >= _EVERY_S:
            self._tell(f"{text}: {done} of {total}")

    def _tell(self, line: str) -> None:
        self._told_s = time.monotonic()
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)
