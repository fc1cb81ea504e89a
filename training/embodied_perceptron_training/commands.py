"""Sub-commands of training and evaluation; the library finds them through the entry point group
``embodied_perceptron.commands`` and stays free of this package."""

from __future__ import annotations

import typer

from embodied_perceptron_training.evaluation.commands import evaluate_app
from embodied_perceptron_training.training.ablations import ablate
from embodied_perceptron_training.training.commands import train


def register(app: typer.Typer) -> None:
    """Add the sub-commands to ``app``."""
    app.add_typer(evaluate_app, name="evaluate")
    app.command("train")(train)
    app.command("ablate")(ablate)
