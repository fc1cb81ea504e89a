"""Options shared by ``embodied-perceptron evaluate`` commands, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from embodied_perceptron.apps.command_line import in_folder, out_folder
from embodied_perceptron.weights import weights_file
from embodied_perceptron_training.processes import Workers, choose_workers

Task = Literal[
    "detection", "continuous-detection", "monocular-detection", "occupancy", "continuous-occupancy", "grounding"
]
TASKS: tuple[str, ...] = get_args(Task)
DataSet = Annotated[Path, in_folder(help="Data set in EmbodiedScan's layout.")]


def _known_weights(name: str) -> str:
    weights_file(name)  # raises WeightsError
    return name


Weights = Annotated[str, typer.Option(callback=_known_weights, help="Network: a shipped name, a weights file.")]
Scenes = Annotated[int | None, typer.Option(min=1, help="Only the first so many.")]
VIEWS_HELP = "Views of a scene: so many, spread evenly."
Views = Annotated[int, typer.Option(min=1, help=VIEWS_HELP)]
Processes = Annotated[int, typer.Option(min=1, help="Processes.")]
MetricsFolder = Annotated[Path | None, out_folder(help="Folder to write: metrics.json.")]
DEGRADE_HELP = "Make the detections worse: recall=0.7,confusion=0.1,jitter=0.05,score=0.1,seed=0; each may be left out."
VIEWS, PROCESSES = 20, 2  # defaults

# Of commands that fit something and may store it in the weights
FittedWeights = Annotated[
    str,
    typer.Option(
        callback=_known_weights, help="Network: a shipped name, a weights file; with --write a weights file alone."
    ),
]
FittedSplit = Annotated[str, typer.Option(help="Split of the data set: train or val; test is for figures.")]


@dataclass(frozen=True)
class Common:
    """Options that commands of ``evaluate`` share."""

    data: Annotated[
        Path,
        in_folder(help="Data set in EmbodiedScan's layout: homes, as `generate` writes them."),
    ]
    out: Annotated[Path, out_folder(help="Folder to write: metrics and table.")]
    split: Annotated[str, typer.Option(help="Split of the data set: train, val or test.")] = "test"
    weights: Weights = "tiny"
    scenes: Scenes = None
    views: Views = VIEWS
    workers: Processes = PROCESSES
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster instead of processes.")] = None

    @property
    def cluster(self) -> Workers:
        """Where scenes are evaluated: processes of this machine, or a Ray cluster."""
        return choose_workers(self.workers, self.ray)
