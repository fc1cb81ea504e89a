"""One function over many scenes in several processes; scenes that cannot be read are skipped, counted and named."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")
MAX_CORRUPT_SHARE = 0.01


class EvaluationError(ValueError):
    """An evaluation that cannot be trusted or carried out; the message says why."""


class CorruptSceneError(EvaluationError):
    """A scene whose files are missing or damaged."""


@dataclass(frozen=True, eq=False)
class MappedScenes(Generic[Result]):
    """Results in the order of the names, and what was skipped: name -> reason."""

    results: list[Result]
    skipped: dict[str, str]


def map_scenes(
    work: Callable[[str], Result],
    names: Sequence[str],
    workers: int,
    progress: Callable[[int, int], None] | None = None,
    max_corrupt_share: float = MAX_CORRUPT_SHARE,
) -> MappedScenes[Result]:
    """``work`` (picklable) for each name. It raises :class:`CorruptSceneError` for a scene to skip.

    With one worker everything runs in this process. The results do not depend on the number of workers. Raises
    :class:`EvaluationError` as soon as more than ``max_corrupt_share`` of the scenes had to be skipped, and whatever
    else ``work`` raises.
    """
    if workers < 1:
        raise ValueError(f"need at least one worker, got {workers}")
    found: dict[str, Result] = {}
    skipped: dict[str, str] = {}

    def note(name: str, take: Callable[[], Result]) -> None:
        try:
            found[name] = take()
        except CorruptSceneError as error:
            skipped[name] = str(error)
            check_skipped(skipped, len(names), max_corrupt_share)
        if progress is not None:
            progress(len(found) + len(skipped), len(names))

    if progress is not None:
        progress(0, len(names))
    if workers == 1 or len(names) <= 1:
        for name in names:
            note(name, lambda name=name: work(name))  # type: ignore[misc]
    else:
        _run_pool(work, names, min(workers, len(names)), note)
    return MappedScenes([found[name] for name in names if name in found], skipped)


def check_skipped(skipped: dict[str, str], total: int, max_share: float = MAX_CORRUPT_SHARE) -> None:
    """Raise :class:`EvaluationError` naming the scenes when they are more than ``max_share`` of ``total``."""
    if len(skipped) > max_share * total:
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(skipped.items())[:5])
        count = f"{len(skipped)} of {total} scenes cannot be read, at most {max_share:.0%} may"
        raise EvaluationError(f"{count}: {listed}")


def _run_pool(
    work: Callable[[str], Result],
    names: Sequence[str],
    workers: int,
    note: Callable[[str, Callable[[], Result]], None],
) -> None:
    # spawned, not forked: a fork inherits torch's and numba's thread pools in an unknown state
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, one_thread) as pool:
        waiting: list[tuple[str, Future[Result]]] = [(name, pool.submit(work, name)) for name in names]
        try:
            for name, future in waiting:
                note(name, future.result)
        finally:
            for _, future in waiting:  # shutdown(cancel_futures=True) may wait for ever for a process that is starting
                future.cancel()


def one_thread() -> None:
    """Each process computes on one core: several of them share the machine, and sums have one order."""
    import cv2

    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"  # for what is not imported yet
    cv2.setNumThreads(1)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
