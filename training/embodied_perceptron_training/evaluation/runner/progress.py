"""A bar while scenes are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError


@contextmanager
def scene_progress(title: str, spec: EvaluationSpec, console: Console) -> Iterator[Callable[[int, int], None]]:
    """:func:`progress_bar` over a data set; raises :class:`EvaluationError` where it is not there."""
    with open_split(spec), progress_bar(title, console) as show:
        yield show


@contextmanager
def progress_bar(title: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar, and what moves it: (done, total)."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


@contextmanager
def open_split(spec: EvaluationSpec) -> Iterator[None]:
    """Raises :class:`EvaluationError` where the data set is not there."""
    try:
        yield
    except FileNotFoundError as error:
        message = f"{spec.data} holds no split {spec.split!r} in EmbodiedScan's layout: {error}"
        raise EvaluationError(message) from error
