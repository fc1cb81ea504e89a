"""How far a command is: a bar in a terminal, and a line now and then where nobody looks at one."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

_EVERY_S = 10.0  # between two lines


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
