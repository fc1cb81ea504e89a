"""``embodied-perceptron evaluate ...``."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

evaluate_app = typer.Typer(help="Score predictions.", no_args_is_help=True)


class MetricName(str, Enum):
    """What the files hold."""

    detection = "detection"
    grounding = "grounding"
    occupancy = "occupancy"


@evaluate_app.callback()
def _group() -> None:
    """Score predictions."""  # a callback keeps this a group while it has a single sub-command


@evaluate_app.command("files")
def files(
    metric: Annotated[MetricName, typer.Option(help="What the files hold.")],
    predictions: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON of predictions.")],
    ground_truth: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON of the ground truth.")],
    out: Annotated[Path | None, typer.Option(file_okay=False, help="Folder for metrics.json.")] = None,
) -> None:
    """Score anybody's predictions from JSON files; figures in percent."""
    from embodied_perceptron_training.evaluation.prediction_files import evaluate_files  # torch loads only when needed

    try:
        figures = evaluate_files(metric.value, predictions, ground_truth)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    table = Table(title=f"{metric.value}: {predictions.name} against {ground_truth.name}")
    table.add_column("figure")
    table.add_column("%", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:.2f}")
    Console().print(table)
    if out is not None:
        write_metrics(figures, out)


def write_metrics(figures: dict[str, float], folder: Path) -> Path:
    """Write flat ``metrics.json`` into ``folder``, made when absent."""
    from embodied_perceptron.files import atomic_path

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.json"
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return path
