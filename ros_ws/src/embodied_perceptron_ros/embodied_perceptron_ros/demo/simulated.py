"""The simulated drive of demo and launch files: its cache, and the commands that render and score it.

Rendering is part of the training package, which the node does not import, so it runs in its own process. Imports
neither numpy nor torch at the top: launch files run in the system's Python.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embodied_perceptron_ros.node.monitor import MissionQuestion

RENDERER = "embodied_perceptron_training"
# Not among the seeds of training and testing; two rooms, so that there is something to find
DEFAULT_SEED = 700_036
ROOMS, FRAMES = 2, 450


class SimulationError(RuntimeError):
    """The simulated drive cannot be rendered or scored; the message says why."""


def renderer_digest() -> str:
    """Eight hex digits over the renderer's sources: another renderer makes another home from the same seed.

    Raises :class:`SimulationError` if the renderer is not installed.
    """
    spec = importlib.util.find_spec(RENDERER)
    if spec is None or not spec.submodule_search_locations:
        raise SimulationError(f"{RENDERER} is not installed: pip install embodied-perceptron")
    folder = Path(next(iter(spec.submodule_search_locations))) / "homes"
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def simulated_recording(seed: int, version: int = 1) -> Path:
    """Folder in the XDG cache for the drive of ``seed`` and of this version of the home generator."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kind = "" if version == 1 else f"_v{version}"
    return cache / "embodied_perceptron" / f"simulated_{seed:04d}_{ROOMS}x{FRAMES}{kind}_{renderer_digest()}"


def second_recording(first: Path) -> Path:
    """Folder for the short second drive through the home of a simulated recording."""
    return first.with_name(f"{first.name}_second")


def ask_for_recording(seed: int, python: str = "python3") -> Path:
    """Run :func:`simulated_recording` in ``python``, that of the active environment, which has the renderer.

    Launch files run in the system's Python, which may not have it. Raises :class:`SimulationError` with its message.
    """
    command = [python, "-m", "embodied_perceptron_ros.demo.simulated", "--where", "--seed", str(seed)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        raise SimulationError(f"{python} cannot be run: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SimulationError(f"{python}: {said[-1]} (is the environment of make setup active?)")
    return Path(done.stdout.strip())


def is_complete(recording: Path) -> bool:
    """Whether the recording is complete: its list of images is written last."""
    return (recording / "rgb.txt").is_file()


def render_command(recording: Path, seed: int) -> list[str]:
    """Arguments for a Python that renders the drive of ``seed`` into ``recording`` unless it exists."""
    return ["-m", "embodied_perceptron_ros.demo.simulated", str(recording), "--seed", str(seed)]


def first_drive(seed: int, version: int = 1) -> tuple[str, ...]:
    """Options of ``generate --drive`` for the drive of ``seed``."""
    return ("--rooms", str(ROOMS), "--frames", str(FRAMES), "--seed", str(seed), "--version", str(version))


def render(recording: Path, options: Sequence[str]) -> bool:
    """Render a drive by options of ``generate --drive`` unless it exists; return whether it was rendered.

    If several processes ask for one drive, one renders and the others wait. Frames are written to a temporary folder
    that is renamed at the end, so that an interrupted run leaves no incomplete recording. Raises
    :class:`SimulationError` if rendering fails or the folder cannot be written.
    """
    if is_complete(recording):
        return False
    try:
        recording.parent.mkdir(parents=True, exist_ok=True)
        with _alone(recording):
            if is_complete(recording):  # rendered by another process
                return False
            _render(recording, options)
    except OSError as error:
        raise SimulationError(f"{recording} cannot be written: {error}") from error
    return True


def _render(recording: Path, options: Sequence[str]) -> None:
    """Render; the caller holds the lock."""
    partial = recording.with_name(f"{recording.name}.part")
    command = [sys.executable, "-m", "embodied_perceptron.apps.cli", "generate", "--drive", "--out", str(partial)]
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    try:
        code = _run([*command, *options])
        if code:
            raise SimulationError(f"rendering the simulated drive failed with exit code {code}")
        if recording.exists():  # incomplete
            shutil.rmtree(recording)
        partial.rename(recording)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run(command: Sequence[str]) -> int:
    """Run a command to its end and return its exit code; Ctrl-C lets it end in order, with its own processes."""
    from embodied_perceptron_ros.players.processes import Supervisor

    with Supervisor() as processes:
        processes.start("renderer", command)
        processes.wait(("renderer",))
        interrupted = processes.interrupted
        code = processes.stop()["renderer"]
    if interrupted:
        raise KeyboardInterrupt
    return code


def converted(source: Path, out: Path, options: Mapping[str, Any]) -> Path:
    """Convert a recording to a bag in ``out`` with options of ``export-bag``.

    Raises :class:`SimulationError` with that command's message.
    """
    bag = out / "converted"
    shutil.rmtree(bag, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", "embodied_perceptron.apps.cli", "export-bag", str(source), "--out", str(bag)]
    finished = subprocess.run([*command, *words], check=False, capture_output=True, text=True)
    if finished.returncode:
        raise SimulationError((finished.stderr.strip() or finished.stdout.strip()).removeprefix("error: "))
    return bag


@contextmanager
def _alone(recording: Path) -> Iterator[None]:
    """Context manager: hold the lock of this recording, which the kernel releases when the process dies.

    The lock's file is never removed: otherwise two processes could hold locks on an old and a new file.
    """
    with recording.with_name(f".{recording.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is rendering {recording}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def has_truth(recording: Path) -> bool:
    """Whether a recording has ground truth."""
    return (recording / "scene.json").is_file()


def mission_questions(recording: Path) -> tuple[MissionQuestion, ...]:
    """Questions about the home of a simulated recording, with their right answers.

    Raises :class:`SimulationError` if the home does not fit some kind of question.
    """
    from embodied_perceptron_ros.node.monitor import read_questions

    return read_questions(_run_json("asking about the home", "dev mission-questions", str(recording)))


def mission_score(recording: Path, objects: Path, occupancy: Path, map_file: Path) -> dict[str, float]:
    """``AP25``, ``mIoU`` and others in percent of objects.json and occupancy.npz against the ground truth, and
    ``map_error_m``, the mean distance in metres of the map's points to the true surfaces.

    Raises :class:`SimulationError` if scoring fails.
    """
    files = ("--objects", str(objects), "--occupancy", str(occupancy), "--map", str(map_file))
    scores = _run_json("scoring the map", "dev mission-score", str(recording), *files)
    return {name: float(value) for name, value in scores.items()}


def _run_json(what: str, command: str, *arguments: str) -> Any:
    """Run a command of the library's program; return the JSON in its last line of output."""
    line = [sys.executable, "-m", "embodied_perceptron.apps.cli", *command.split(), *arguments]
    finished = subprocess.run(line, check=False, capture_output=True, text=True)
    if finished.returncode:
        raise SimulationError(f"{what} failed: {finished.stderr.strip() or finished.stdout.strip()}")
    return json.loads(finished.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m embodied_perceptron_ros.demo.simulated FOLDER --seed N``: render unless the recording exists."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("recording", type=Path, nargs="?", help="default: the folder that --where prints")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--where", action="store_true", help="only print the drive's folder")
    options = parser.parse_args(arguments)
    try:
        options.recording = options.recording or simulated_recording(options.seed)
        if options.where:
            print(options.recording)
            return 0
        render(options.recording, first_drive(options.seed))
    except SimulationError as error:
        print(f"simulated: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
