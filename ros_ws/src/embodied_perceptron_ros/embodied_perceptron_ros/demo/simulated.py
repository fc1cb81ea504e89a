"""The simulated drive that demo and launch files use: where it is kept, and the commands that make and judge it.

Rendering belongs to the training package, which the node does not import: it runs as a process of its own. Neither
numpy nor torch is imported at the head: launch files run in the system's Python.
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
# Outside of the seeds that networks are trained and tested on; two rooms, so that there is something to find
DEFAULT_SEED = 700_036
ROOMS, FRAMES = 2, 450


class SimulationError(RuntimeError):
    """The simulated drive cannot be made or judged; the message says why."""


def renderer_digest() -> str:
    """Eight hex digits over the renderer's sources: another renderer makes another home of the same seed.

    Raises :class:`SimulationError` when the renderer is not installed.
    """
    spec = importlib.util.find_spec(RENDERER)
    if spec is None or not spec.submodule_search_locations:
        raise SimulationError(f"{RENDERER} is not installed: pip install -e '.[train]' in the repository")
    folder = Path(next(iter(spec.submodule_search_locations))) / "homes"
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def simulated_recording(seed: int, version: int = 1) -> Path:
    """Where the simulated drive of ``seed``, a home of that generator version, is kept between runs (XDG cache)."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kind = "" if version == 1 else f"_v{version}"
    return cache / "embodied_perceptron" / f"simulated_{seed:04d}_{ROOMS}x{FRAMES}{kind}_{renderer_digest()}"


def ask_for_recording(seed: int, python: str = "python3") -> Path:
    """:func:`simulated_recording` as another Python knows it: that of the active environment, which has the renderer.

    Launch files run in the system's, which may not. Raises :class:`SimulationError` with what it said.
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
    """Whether a recording lies there whole: its list of images is written last."""
    return (recording / "rgb.txt").is_file()


def render_command(recording: Path, seed: int) -> list[str]:
    """Arguments for a Python that renders the drive of ``seed`` into ``recording`` unless it is there."""
    return ["-m", "embodied_perceptron_ros.demo.simulated", str(recording), "--seed", str(seed)]


def render(recording: Path, seed: int, options: Sequence[str] = ()) -> bool:
    """Render the drive unless it is there; returns whether anything had to be done.

    Any number of processes may ask for one drive at once: one renders, the others wait for it. The frames go into a
    folder beside it that takes the name when it is whole, so that an interrupted run leaves nothing that looks like a
    recording, and whoever reads one that is complete is never disturbed. Raises :class:`SimulationError` when rendering
    fails, or the folder cannot be written.
    """
    if is_complete(recording):
        return False
    try:
        recording.parent.mkdir(parents=True, exist_ok=True)
        with _alone(recording):
            if is_complete(recording):  # another process was faster
                return False
            _render(recording, seed, options)
    except OSError as error:
        raise SimulationError(f"{recording} cannot be written: {error}") from error
    return True


def _render(recording: Path, seed: int, options: Sequence[str]) -> None:
    """Of the process that is alone with the recording."""
    partial = recording.with_name(f"{recording.name}.part")
    command = [sys.executable, "-m", "embodied_perceptron.apps.cli", "generate", "--drive", "--out"]
    command += [str(partial), "--rooms", str(ROOMS), "--frames", str(FRAMES), "--seed", str(seed)]
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    try:
        code = subprocess.run([*command, *options], check=False).returncode
        if code:
            raise SimulationError(f"rendering the simulated drive failed with exit code {code}")
        if recording.exists():  # not whole
            shutil.rmtree(recording)
        partial.rename(recording)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def converted(source: Path, out: Path, options: Mapping[str, Any]) -> Path:
    """A recording written anew as a bag in ``out``, as options of ``export-bag`` say it is to be read.

    Raises :class:`SimulationError` in the words of that command.
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
    """Wait until no other process renders this recording. A process that dies waits for nobody and blocks nobody.

    The lock is a file beside it that stays: were it removed, one process could hold the old file and another a new one.
    """
    with recording.with_name(f".{recording.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process renders {recording}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure_map_error_m(recording: Path, map_file: Path) -> float | None:
    """Mean distance in metres of the map's points to the true surfaces; None for a recording without that truth.

    Raises :class:`SimulationError` when the truth is there but measuring fails.
    """
    if not has_truth(recording):
        return None
    return float(_told("measuring the map", "dev map-error", str(recording), str(map_file))["mean_m"])


def has_truth(recording: Path) -> bool:
    """Whether a recording tells what it shows."""
    return (recording / "scene.json").is_file()


def mission_questions(recording: Path) -> tuple[MissionQuestion, ...]:
    """Five questions about the home that a simulated recording shows, with their right answers.

    Raises :class:`SimulationError` when the home has none of some kind.
    """
    from embodied_perceptron_ros.demo.mission import read_questions

    return read_questions(_told("asking about the home", "dev mission-questions", str(recording)))


def mission_score(recording: Path, objects: Path, occupancy: Path) -> dict[str, float]:
    """``AP25``, ``mIoU`` and others, in percent, of a map's objects.json and occupancy.npz against what was shown.

    Raises :class:`SimulationError` when they cannot be compared.
    """
    arguments = ("--objects", str(objects), "--occupancy", str(occupancy))
    return {k: float(v) for k, v in _told("scoring the map", "dev mission-score", str(recording), *arguments).items()}


def _told(what: str, command: str, *arguments: str) -> Any:
    """The JSON in the last line that a command of the library's program prints."""
    line = [sys.executable, "-m", "embodied_perceptron.apps.cli", *command.split(), *arguments]
    finished = subprocess.run(line, check=False, capture_output=True, text=True)
    if finished.returncode:
        raise SimulationError(f"{what} failed: {finished.stderr.strip() or finished.stdout.strip()}")
    return json.loads(finished.stdout.splitlines()[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m embodied_perceptron_ros.demo.simulated FOLDER --seed N``: render unless it is there."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("recording", type=Path, nargs="?", help="default: as --where tells")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--where", action="store_true", help="only tell where the drive is kept")
    options = parser.parse_args(arguments)
    try:
        options.recording = options.recording or simulated_recording(options.seed)
        if options.where:
            print(options.recording)
            return 0
        render(options.recording, options.seed)
    except SimulationError as error:
        print(f"simulated: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
