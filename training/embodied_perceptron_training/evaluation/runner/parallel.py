"""Map a function over many scenes, in several processes or on a Ray cluster; unreadable scenes are skipped and
reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from embodied_perceptron.apps.command_line import TaskProgress
from embodied_perceptron_training.processes import Cluster, ClusterError, Workers, spread

Result = TypeVar("Result")
MAX_CORRUPT_SHARE = 0.01


class EvaluationError(ValueError):
    """An evaluation that cannot be carried out or trusted; the message gives the reason."""


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
    workers: Workers,
    progress: Callable[[int, int], None] | None = None,
    max_corrupt_share: float = MAX_CORRUPT_SHARE,
) -> MappedScenes[Result]:
    """Call ``work`` (picklable) for each name. It raises :class:`CorruptSceneError` for a scene to skip.

    With one worker everything runs in this process. The results do not depend on the workers. Raises
    :class:`EvaluationError` where a :class:`Cluster` cannot be reached, and as soon as more than ``max_corrupt_share``
    of the scenes were skipped, and whatever else ``work`` raises.
    """
    found: dict[str, Result] = {}
    skipped: dict[str, str] = {}
    if progress is not None:
        progress(0, len(names))
    try:
        for name, take in spread(work, names, workers):
            try:
                found[name] = take()
            except CorruptSceneError as error:
                skipped[name] = str(error)
                check_skipped(skipped, len(names), max_corrupt_share)
            if progress is not None:
                progress(len(found) + len(skipped), len(names))
    except ClusterError as error:
        raise EvaluationError(str(error)) from error
    return MappedScenes([found[name] for name in names if name in found], skipped)


@contextmanager
def scene_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress and yield its update function (done, total). Raises :class:`EvaluationError` in place of
    ``FileNotFoundError``."""
    with missing_files_named(), TaskProgress(title) as progress:
        yield progress.update


@contextmanager
def missing_files_named() -> Iterator[None]:
    """Raise :class:`EvaluationError` in place of ``FileNotFoundError``."""
    try:
        yield
    except FileNotFoundError as error:
        raise EvaluationError(str(error)) from error


def known_everywhere(name: str | Path, workers: Workers) -> str:
    """A path that all workers can resolve: absolute for a cluster, whose workers start in other folders. Names that are
    no path here (shipped weights) are not changed."""
    found = isinstance(workers, Cluster) and Path(name).exists()
    return str(Path(name).resolve() if found else name)


def check_skipped(skipped: dict[str, str], total: int, max_share: float = MAX_CORRUPT_SHARE) -> None:
    """Raise :class:`EvaluationError` naming the skipped scenes if they are more than ``max_share`` of ``total``."""
    if len(skipped) > max_share * total:
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(skipped.items())[:5])
        count = f"{len(skipped)} of {total} scenes cannot be read, at most {max_share:.0%} may"
        raise EvaluationError(f"{count}: {listed}")
