"""``embodied-perceptron dev fit-language``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embodied_perceptron.apps.command_line import add_dev_command, in_file, out_file, user_errors


def fit_language(
    corpus: Annotated[list[Path], typer.Argument(help="Files of marked sentences.", dir_okay=False, exists=True)],
    out: Annotated[Path | None, out_file(help="File to write: weights. Default: the package's own.")] = None,
    start: Annotated[Path | None, in_file(help="Weights to begin with.")] = None,
    kept: Annotated[
        list[Path] | None, typer.Option(exists=True, help="Held-out file to measure on; repeatable.")
    ] = None,
    passes: Annotated[int, typer.Option(help="Length: passes over the sentences.", min=1)] = 6,
    seed: Annotated[int, typer.Option(min=0, help="Seed: of all random draws.")] = 0,
    average: Annotated[bool, typer.Option("--average", help="Write the mean of the weights before and after.")] = False,
) -> None:
    """Fit the sentence reader to marked sentences. Run again after an interruption to continue."""
    from embodied_perceptron_training.language.fit_sentence_reader import Fit, run

    with user_errors():
        figures = run(Fit(tuple(corpus), out, start, tuple(kept or ()), passes, seed, average=average), typer.echo)
    for name, percent in figures.items():
        typer.echo(f"{name}: {percent} %")


def register(app: typer.Typer) -> None:
    """Add the sub-command to ``app``."""
    add_dev_command(app, "fit-language", fit_language, former="fit-language")
