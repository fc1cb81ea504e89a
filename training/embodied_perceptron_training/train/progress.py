"""What a person sees while a training runs."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

_LINE_EVERY_S = 30.0


class Progress:
    """A bar with the time that is left on a terminal, a line every half minute elsewhere.

    Args:
        steps: of the whole training, or 0.
        seconds: of the whole training, where ``steps`` is 0.
        quiet: say nothing at all.
    """

    def __init__(self, steps: int, seconds: float, quiet: bool = False) -> None:
        self.steps, self.seconds, self.quiet = steps, seconds, quiet
        self.console = Console(quiet=quiet, highlight=False)
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._line_at = 0.0

    def __enter__(self) -> Progress:
        if not self.quiet and self.console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:.1f} %"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self.console,
            )
            self._task = self._bar.add_task("training", total=self.steps or self.seconds)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, step: int, elapsed_s: float, loss: float, rate: float, best: float | None) -> None:
        """After a step."""
        if self.quiet:
            return
        done = step if self.steps else elapsed_s
        text = f"step {step} loss {loss:.3f} rate {rate:.1e}" + ("" if best is None else f" best {best:.2f}")
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, description=text)
        elif time.monotonic() - self._line_at >= _LINE_EVERY_S:
            self._line_at = time.monotonic()
            share = done / (self.steps or self.seconds)
            left = elapsed_s * (1 - share) / max(share, 1e-9)
            self.console.print(f"{text}, {100 * share:.1f} %, {_clock(elapsed_s)} passed, {_clock(left)} left")

    def say(self, text: str) -> None:
        """A line of its own."""
        (self._bar.console if self._bar is not None else self.console).print(escape(text), soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
