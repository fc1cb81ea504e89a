"""A run's folder: settings, log, checkpoints.

run.json             task, settings, versions, command
resume.sh            resumes the run
log.jsonl            a line per log interval, validation and incident
state.safetensors    the last complete checkpoint
last.safetensors     deployable weights of the last checkpoint
best.safetensors     deployable weights of the best validation
curves.png           learning curves
tensorboard/         the same for TensorBoard, if installed
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import importlib.util
import json
import math
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied_perceptron.recordings.files import atomic_path, write_atomically, write_json


class RunFolderError(ValueError):
    """A folder that cannot be used for training; the message names it."""


class RunFolder:
    """The files of one run. Only the first process writes.

    Args:
        path: of the folder; made when absent.
        pictures: write ``curves.png`` and ``tensorboard/`` if their packages are installed.
    """

    def __init__(self, path: str | Path, pictures: bool = True) -> None:
        self.path, self.pictures = Path(path), pictures
        self.state = self.path / "state.safetensors"
        self.last = self.path / "last.safetensors"
        self.best = self.path / "best.safetensors"
        self.log_path = self.path / "log.jsonl"
        self.run_path = self.path / "run.json"
        self.curves = self.path / "curves.png"
        self._unwritten: list[str] = []
        self._lock: Any = None
        self._board: Any = None

    def open(self, information: Mapping[str, Any], resume: bool, processes: int = 1) -> dict[str, Any]:
        """Lock the folder and write ``run.json`` and ``resume.sh``; returns the contents of the former.

        Raises :class:`RunFolderError` when another process trains in it, or it already holds a run and ``resume`` is
        false; ``OSError`` when it cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.path / ".lock", "w")  # noqa: SIM115 (held as long as the run lasts)
        try:
            # not flock, whose lock would survive in forked data workers
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise RunFolderError(f"{self.path}: another process is training in this folder") from error
        if self.state.exists() and not resume:
            raise RunFolderError(f"{self.path} already holds a run: resume it, or choose another folder")
        whole = {**information, "versions": versions()}
        if resume and self.run_path.exists():  # keep the first command, and list resumptions
            before = json.loads(self.run_path.read_text(encoding="utf-8"))
            again = {k: whole[k] for k in ("command", "versions") if k in whole}
            whole.update({k: before[k] for k in again if k in before})
            whole["resumed"] = [*before.get("resumed", []), again]
        if not resume:
            self.log_path.unlink(missing_ok=True)
        write_json(self.run_path, whole, indent=2)
        script = self.path / "resume.sh"
        write_atomically(script, resume_script(processes).encode())
        script.chmod(0o755)
        return whole

    def close(self) -> None:
        """Release the folder."""
        if self._board is not None:
            self._board.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # -- the log

    def forget_after(self, step: int) -> None:
        """Drop log lines of steps after ``step``, which will be repeated."""
        lines = [line for line in self.lines() if line.get("step", 0) <= step]
        write_atomically(self.log_path, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def log(self, line: Mapping[str, Any]) -> None:
        """Append a line. On a full disk it is kept and written with the next one, so that logging never ends a
        training."""
        self._unwritten.append(json.dumps({k: _plain(v) for k, v in line.items()}) + "\n")
        try:
            with open(self.log_path, "a", encoding="utf-8") as file:
                file.write("".join(self._unwritten))
            self._unwritten.clear()
        except OSError as error:
            warnings.warn(f"{self.log_path} cannot be written: {error}", stacklevel=2)

    def lines(self) -> list[dict[str, Any]]:
        """The log, without incomplete lines."""
        found = []
        if self.log_path.exists():
            for line in self.log_path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    found.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return found

    # -- pictures

    def open_board(self, step: int) -> bool:
        """Open TensorBoard's file if the package is installed; scalars after ``step`` are dropped."""
        if not self.pictures:
            return True
        if importlib.util.find_spec("tensorboard") is None:
            return False
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(self.path / "tensorboard"), purge_step=step + 1 if step else None)
        return True

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars to TensorBoard, if it is open; on a full disk it is closed, and the training continues."""
        if self._board is None:
            return
        try:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
        except OSError as error:
            self._board = None
            warnings.warn(f"TensorBoard's file cannot be written, scalars go to log.jsonl: {error}", stacklevel=2)

    def draw_curves(self) -> bool:
        """Write ``curves.png`` from the log; False without matplotlib."""
        if not self.pictures:
            return True
        if importlib.util.find_spec("matplotlib") is None:
            return False
        with atomic_path(self.curves) as temporary:
            draw_curves(self.lines(), temporary)
        return True


def _plain(value: Any) -> Any:
    """The value, or a string for NaN and infinity, which JSON does not have."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def resume_script(processes: int) -> str:
    """A script that resumes the run from any folder."""
    program = f"{shlex.quote(sys.executable)} -m "
    if processes > 1:
        program += f"torch.distributed.run --nproc-per-node {processes} -m "
    return f'#!/bin/sh\nexec {program}embodied_perceptron.apps.cli train --resume "$(dirname "$0")" "$@"\n'


def versions() -> dict[str, str]:
    """Versions of the project (and its commit, in a checkout), Python and torch."""
    try:
        own = importlib.metadata.version("embodied-perceptron")
    except importlib.metadata.PackageNotFoundError:
        own = "not installed"
    found = {"embodied_perceptron": own, "python": platform.python_version(), "torch": torch.__version__}
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--tags"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # no checkout
        done = subprocess.run(describe, capture_output=True, text=True, check=True, timeout=10)
        found["commit"] = done.stdout.strip()
    return found


def draw_curves(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG at ``path``: the losses (logarithmic), the learning rate, the validation figures, over steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    train = [line for line in lines if line.get("event") == "train"]
    checks = [line for line in lines if line.get("event") == "validation"]
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    losses, rates, figures = figure.subplots(1, 3)
    names = sorted({k for line in train for k in line if k.startswith("loss/")})
    for name in ["loss", *names]:
        points = [(line["step"], line[name]) for line in train if isinstance(line.get(name), float)]
        if points:
            x, y = np.array(points, float).T
            width = max(1, len(y) // 50)
            smooth = np.convolve(y, np.ones(width) / width, mode="valid")  # mean over 2 % of the run
            losses.plot(x[width - 1 :], smooth, label=name.removeprefix("loss/"), linewidth=2 if name == "loss" else 1)
    losses.set(title="losses", xlabel="step", yscale="log")
    rates.plot([line["step"] for line in train], [line["rate"] for line in train])
    rates.set(title="learning rate", xlabel="step")
    keys = sorted({k for line in checks for k, v in line["figures"].items() if isinstance(v, (int, float))})
    shown = [k for k in keys if "/" not in k] or keys  # figures of single classes and subsets would hide the others
    for key in shown[:12]:
        points = [(line["step"], line["figures"][key]) for line in checks if key in line["figures"]]
        figures.plot(*zip(*points, strict=True), marker=".", label=key)
    figures.set(title="validation", xlabel="step")
    for axes in (losses, figures):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    FigureCanvasAgg(figure).print_png(str(path))  # type: ignore[no-untyped-call]
