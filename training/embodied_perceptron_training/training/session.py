"""A training from its value: task, processes and loop put together."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from embodied_perceptron_training.training.optimization import Processes
from embodied_perceptron_training.training.tasks import build_task
from embodied_perceptron_training.training.trainer import Trainer, TrainingOutcome
from embodied_perceptron_training.training.training_run import TrainingRun


def train_run(run: TrainingRun, folder: Path, resume: bool = False, quiet: bool = False) -> TrainingOutcome:
    """Build the task of ``run`` and train it in ``folder``.

    Args:
        run: all knobs.
        folder: of the run's files.
        resume: go on with the run in ``folder``.
        quiet: no progress.

    Raises what the task, the folder and the loop raise.
    """
    processes = Processes.start(run.execution.device)
    try:
        command = _command(processes.world)
        information = {"request": run.to_json()["request"], "processes": processes.world, "command": command}
        return Trainer(build_task(run), run, folder, processes, information, quiet).run(resume)
    finally:
        processes.stop()


def _command(processes: int) -> str:
    """The command line, as somebody else would type it."""
    program = ["embodied-perceptron"]
    if processes > 1:
        program = ["torchrun", "--nproc-per-node", str(processes), "-m", "embodied_perceptron.apps.cli"]
    return shlex.join([*program, *sys.argv[1:]])
