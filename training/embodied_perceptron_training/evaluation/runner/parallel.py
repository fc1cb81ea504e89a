"""One function over many scenes, in several processes or on a Ray cluster; scenes that cannot be read are skipped,
counted and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from embodied_perceptron_training.processes import Cluster, ClusterError, Workers, spread

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
    workers: Workers,
    progress: Callable[[int, int], None] | None = None,
    max_corrupt_share: float = MAX_CORRUPT_SHARE,
) -> MappedScenes[Result]:
    """``work`` (picklable) for each name. It raises :class:`CorruptSceneError` for a scene to skip.

    With one worker everything runs in this process. The results do not depend on the number of workers nor on where
    they run. Raises :class:`EvaluationError` where there is no Ray for a :class:`Cluster`, and as soon as more than
    ``max_corrupt_share`` of the scenes had to be skipped, and whatever else ``work`` raises.
    """
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
    try:
        for name, take in spread(work, names, workers):
            note(name, take)
    except ClusterError as error:
        raise EvaluationError(str(error)) from error
    return MappedScenes([found[name] for name in names if name in found], skipped)


def known_everywhere(name: str | Path, workers: Workers) -> str:
    """A file or folder as all workers know it: those of a cluster have folders of their own to start in. Names of
    nothing that is here (shipped weights) stay as they are."""
    found = isinstance(workers, Cluster) and Path(name).exists()
    return str(Path(name).resolve() if found else name)


def check_skipped(skipped: dict[str, str], total: int, max_share: float = MAX_CORRUPT_SHARE) -> None:
    """Raise :class:`EvaluationError` naming the scenes when they are more than ``max_share`` of ``total``."""
    if len(skipped) > max_share * total:
        listed = "; ".join(f"{name}: {reason}" for name, reason in list(skipped.items())[:5])
        count = f"{len(skipped)} of {total} scenes cannot be read, at most {max_share:.0%} may"
        raise EvaluationError(f"{count}: {listed}")
