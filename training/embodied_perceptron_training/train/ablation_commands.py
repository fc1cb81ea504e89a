"""``embodied-perceptron ablate ...``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embodied_perceptron.command_errors import CommandError
from embodied_perceptron_training.train.commands import EXIT_STOPPED, parse_options


def ablate(
    data: Annotated[Path, typer.Option(file_okay=False, exists=True, help="Folder of the training split.")],
    val: Annotated[Path, typer.Option(file_okay=False, exists=True, help="Folder of the split that scores.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder: one below it per row, tables, JSON.")],
    rows: Annotated[
        str,
        typer.Option(help="Names of tables (detection, detectors, occupancy, loss, tasks, views, occlusion) or rows."),
    ] = "all",
    minutes_per_row: Annotated[float, typer.Option(min=0, help="Wall clock of every training.")] = 0.0,
    steps_per_row: Annotated[int, typer.Option(min=0, help="Steps of every training, instead.")] = 0,
    preset: Annotated[str, typer.Option(help="tiny, base or paper.")] = "tiny",
    weights: Annotated[
        Path | None, typer.Option(dir_okay=False, exists=True, help="Of the rows that only score.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of AdamW.")] = None,
    ema_decay: Annotated[float | None, typer.Option(help="Of the averaged weights.")] = None,
    workers: Annotated[int | None, typer.Option(min=0, help="Processes that load data.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, order, augmentation.")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="name=value: an option of the tasks.")] = None,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """The paper's comparisons: the same budget for every row, a Markdown table and JSON. Run again, it goes on.

    Run as often as there are processors, with the same --out: each takes a row that no other works on.
    """
    from embodied_perceptron_training.train.ablations import Budget, chosen_rows, markdown, run_rows, write_tables

    given = {"batch": batch, "learning_rate": learning_rate, "ema_decay": ema_decay, "workers": workers}
    settings = {k: v for k, v in {**given, "device": device}.items() if v is not None}
    try:
        if minutes_per_row and steps_per_row:
            raise ValueError("one of --minutes-per-row and --steps-per-row, not both")
        budget = Budget(
            data=data.resolve(),
            val=val.resolve(),
            minutes=minutes_per_row,
            steps=steps_per_row,
            preset=preset,
            seed=seed,
            options=parse_options(set_ or []),
            settings=settings,
            weights=weights and weights.resolve(),
        )
        out.mkdir(parents=True, exist_ok=True)
        chosen = chosen_rows([name.strip() for name in rows.split(",")])
        if not run_rows(chosen, budget, out, quiet, lambda row: typer.echo(f"== {row.table}: {row.label}")):
            typer.echo("stopped; nothing is lost: the same command goes on")
            raise typer.Exit(EXIT_STOPPED)
    except ValueError as error:
        raise CommandError(str(error)) from error
    typer.echo(markdown(write_tables(out)))
