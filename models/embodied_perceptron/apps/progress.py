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

    Where that is no terminal, a line comes at once and then every ten seconds, whether or not anything was reported.

    Args:
        what: is done, in a word or two.
        console: where it is shown.
    """

    def __init__(self, what: str, console: Console | None = None) -> None:
        self.console = console if console is not None else Console(stderr=True)
        self._line = f"{what} ..."
        self._what = what
        self._began_s = time.monotonic()
        self._over = threading.Event()
        self._bar: Progress | None = None
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
            self._task = self._bar.add_task(what, total=None)
        else:
            self._teller = threading.Thread(target=self._tell_on, name="progress", daemon=True)

    def __enter__(self) -> TaskProgress:
        if self._bar is not None:
            self._bar.start()
        else:
            self._began_s = time.monotonic()
            self.say(self._line)
            self._teller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._bar is not None:
            self._bar.stop()
        else:
            self._teller.join()

    def update(self, done: int, total: int, text: str = "") -> None:
        """``done`` of ``total`` are done; ``text`` takes the place of what is done."""
        text = text or self._what
        self._line = f"{text}: {done} of {total}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text)

    def say(self, line: str) -> None:
        """A line that stays."""
        (self.console if self._bar is None else self._bar.console).print(
            line, highlight=False, soft_wrap=True, markup=False
        )

    def _tell_on(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.say(f"{self._line}, {time.monotonic() - self._began_s:.0f} s")
