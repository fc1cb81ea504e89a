"""Figures as tables, on the screen and in Markdown, and as the file ``metrics.json``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

METRICS = "metrics.json"


def write_metrics(folder: Path, figures: Mapping[str, object]) -> None:
    """Write ``metrics.json`` into ``folder``, made when absent. Raises ``OSError`` when it cannot be written."""
    from embodied_perceptron.recordings.files import write_atomically  # loads torch only when needed

    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / METRICS, (json.dumps(figures, indent=2) + "\n").encode())


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]], align: str = "") -> list[str]:
    """Lines of a Markdown table. ``align``: ``l`` or ``r`` for each column; the default has figures behind one name."""
    ruler = "".join("|---:" if side == "r" else "|---" for side in align or "l" + "r" * (len(columns) - 1))
    head, *body = (f"| {' | '.join(map(str, row))} |" for row in (columns, *rows))
    return [head.replace("|  |", "| |"), f"{ruler}|", *body]


def figure_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table for the screen: a name, then figures."""
    table = Table(title=title or None)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def print_skipped(console: Console, skipped: Mapping[str, str]) -> None:
    """Print a warning for each scene that was skipped, with its reason."""
    for name, reason in skipped.items():
        console.print(f"skipped {name}: {reason}", style="yellow", markup=False)
