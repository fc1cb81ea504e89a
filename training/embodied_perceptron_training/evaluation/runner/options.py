"""Options shared by ``embodied-perceptron evaluate`` commands, each declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from embodied_perceptron.apps.command_line import out_folder
from embodied_perceptron.weights import weights_file
from embodied_perceptron_training.processes import Workers, choose_workers

Task = Literal[
    "detection", "continuous-detection", "monocular-detection", "occupancy", "continuous-occupancy", "grounding"
]
TASKS: tuple[str, ...] = get_args(Task)
DataSet = Annotated[Path, typer.Option(exists=True, file_okay=False, help="Data set in EmbodiedScan's layout.")]


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
    """Values of the options that :func:`_common` declares."""

    data: Path
    out: Path
    split: str
    weights: str
    scenes: int | None
    views: int
    workers: Workers


def _common(
    data: Annotated[
        Path,
        typer.Option(
            exists=True, file_okay=False, help="Data set in EmbodiedScan's layout: homes, as `generate` writes them."
        ),
    ],
    out: Annotated[Path, out_folder(help="Folder to write: metrics and table.")],
    split: Annotated[str, typer.Option(help="Split of the data set: train, val or test.")] = "test",
    weights: Weights = "tiny",
    scenes: Scenes = None,
    views: Views = VIEWS,
    workers: Processes = PROCESSES,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster instead of processes.")] = None,
) -> Common:
    return Common(data, out, split, weights, scenes, views, choose_workers(workers, ray))


def with_common_options(run: Callable[..., None]) -> Callable[..., None]:
    """A command with the common options before its own.

    ``run`` takes a :class:`Common` first; its option with the name of a common one replaces that one.
    """
    shared = inspect.signature(_common, eval_str=True).parameters
    own = dict(list(inspect.signature(run, eval_str=True).parameters.items())[1:])
    options = [own.get(name, option) for name, option in shared.items()]
    options += [option for name, option in own.items() if name not in shared]

    def command(**values: Any) -> None:
        common = _common(**{name: values[name] for name in shared})
        run(common, **{name: value for name, value in values.items() if name in own})

    command.__name__, command.__doc__ = run.__name__, run.__doc__
    command.__annotations__ = {option.name: option.annotation for option in options}
    signature = inspect.Signature([option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options])
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command
