"""One function over many scenes, in several processes or on a Ray cluster; scenes that cannot be read are skipped,
counted and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from embodied_perceptron_training.processes import one_thread, process_pool

Result = TypeVar("Result")
MAX_CORRUPT_SHARE = 0.01


class EvaluationError(ValueError):
    """An evaluation that cannot be trusted or carried out; the message says why."""


class CorruptSceneError(EvaluationError):
    """A scene whose files are missing or damaged."""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster instead of processes of this machine. Its machines have the same packages, and see data and weights
    under the same (absolute) paths.

    Attributes:
        address: as ``ray.init`` takes it: ``HOST:PORT`` of the head node, ``auto``, or ``local`` for one of its own.
    """

    address: str


Workers = int | Cluster


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
    if isinstance(workers, int) and workers < 1:
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
    if isinstance(workers, Cluster):
        _run_cluster(work, names, workers, note)
    elif workers == 1 or len(names) <= 1:
        for name in names:
            note(name, lambda name=name: work(name))  # type: ignore[misc]
    else:
        _run_pool(work, names, min(workers, len(names)), note)
    return MappedScenes([found[name] for name in names if name in found], skipped)


def choose_workers(processes: int, ray_address: str | None) -> Workers:
    """What the options ``--workers`` and ``--ray`` mean together."""
    return processes if ray_address is None else Cluster(ray_address)


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


def _run_pool(
    work: Callable[[str], Result],
    names: Sequence[str],
    workers: int,
    note: Callable[[str, Callable[[], Result]], None],
) -> None:
    with process_pool(workers) as pool:
        waiting: list[tuple[str, Future[Result]]] = [(name, pool.submit(work, name)) for name in names]
        try:
            for name, future in waiting:
                note(name, future.result)
        finally:
            for _, future in waiting:  # shutdown(cancel_futures=True) may wait for ever for a process that is starting
                future.cancel()


def _run_cluster(
    work: Callable[[str], Result],
    names: Sequence[str],
    cluster: Cluster,
    note: Callable[[str, Callable[[], Result]], None],
) -> None:
    try:
        import ray
    except ImportError as error:
        raise EvaluationError("--ray needs the package ray: pip install ray") from error
    try:
        ray.init(address=cluster.address)
    except (ConnectionError, ValueError) as error:
        raise EvaluationError(f"no Ray cluster at {cluster.address!r}: {error}") from error
    try:
        remote = ray.remote(_on_one_thread)
        name_of = {remote.remote(work, name): name for name in names}
        waiting = list(name_of)
        while waiting:
            done, waiting = ray.wait(waiting)
            note(name_of[done[0]], partial(_get, done[0]))
    finally:
        ray.shutdown()  # ends what still waits


def _get(task: Any) -> Any:
    """What it returned; raises what it raised, without Ray's own text around it."""
    import ray

    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _on_one_thread(work: Callable[[str], Result], name: str) -> Result:
    one_thread()
    return work(name)
