"""``embodied-perceptron weights list|add|path``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

weights_app = typer.Typer(help="Shipped weights.", no_args_is_help=True)


@weights_app.command("list")
def list_weights() -> None:
    """Shipped weights with their presets and sizes; each file is checked against the manifest."""
    from embodied_perceptron.weights import WeightsError, shipped, weights_file

    table = Table("name", "preset", "MiB", "card", "SHA-256", title="shipped weights")
    damaged = []
    for name, entry in shipped().items():
        try:
            weights_file(name)
        except WeightsError as error:
            damaged.append(str(error))
        table.add_row(name, entry.preset, f"{entry.bytes / 2**20:.2f}", entry.card or "-", entry.sha256[:16])
    Console().print(table)
    if damaged:
        raise WeightsError("; ".join(damaged))


@weights_app.command("path")
def path_of_weights(name: Annotated[str, typer.Argument(help="Shipped name or path.")] = "tiny") -> None:
    """Print where the file of shipped weights is."""
    from embodied_perceptron.weights import weights_file

    typer.echo(str(weights_file(name)))


@weights_app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name to ship it under, e.g. tiny.")],
    file: Annotated[Path, typer.Argument(help="Trained weights (.safetensors).")],
    card: Annotated[Path | None, typer.Option(help="Model card (.md) to go beside it.")] = None,
) -> None:
    """Put trained weights into the package and write their manifest entry."""
    from embodied_perceptron.weights.shipping import add_network  # torch loads only when needed

    entry = add_network(name, file, card)
    typer.echo(f"{name}: {entry.file}, {entry.bytes:,} bytes, preset {entry.preset}, SHA-256 {entry.sha256}")
