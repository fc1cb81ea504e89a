"""What is shown while scenes are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from embodied_perceptron.apps.command_line import TaskProgress
from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError


@contextmanager
def scene_progress(title: str, spec: EvaluationSpec) -> Iterator[Callable[[int, int], None]]:
    """:func:`progress_bar` over a data set; raises :class:`EvaluationError` where it is not there."""
    with open_split(spec), progress_bar(title) as show:
        yield show


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how far something is, and gives what moves it: (done, total)."""
    with TaskProgress(title) as progress:
        yield progress.update


@contextmanager
def open_split(spec: EvaluationSpec) -> Iterator[None]:
    """Raises :class:`EvaluationError` where the data set is not there."""
    try:
        yield
    except FileNotFoundError as error:
        raise EvaluationError(str(error)) from error
