"""``embodied-perceptron dev results``: make the page of results and the README's table from records."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from embodied_perceptron import __version__
from embodied_perceptron.apps.command_line import in_folder


def results(
    folder: Annotated[Path, in_folder(help="Of the records; the page lies beside it.")] = Path("docs/results"),
    add: Annotated[
        Path | None,
        typer.Option(exists=True, help="Take this in first: a folder of `evaluate`, or a benchmark's JSON file."),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the record that --add makes or replaces.")] = "",
    command: Annotated[str, typer.Option(help="That --add's figures are of; default: as they tell.")] = "",
    machine: Annotated[str, typer.Option(help="That --add's figures are of; default: this one.")] = "",
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 where a page is not current.")
    ] = False,
) -> None:
    """Make docs/results.md and the README's table of figures from the records in docs/results/."""
    from embodied_perceptron.recordings.files import write_atomically
    from embodied_perceptron_training.evaluation.runner import results as made

    if (add is None) != (not name) or (check and add is not None):
        raise typer.BadParameter("--add and --name belong together, and --check takes nothing in")
    intro, sections = made.read_layout(folder)
    if add is not None:
        keys = made.keys_of(sections, name)
        if not keys:
            raise typer.BadParameter(f"{folder / made.LAYOUT} shows nothing of a record {name!r}", param_hint="--name")
        today = date.today().isoformat()
        record = made.new_record(add, keys, __version__, _commit(folder), machine or _machine(), today, command)
        made.write_record(folder / f"{name}.json", record)
        typer.echo(f"{folder / name}.json: {len(record.figures)} figures")
    records = made.read_records(folder)
    readme = folder.resolve().parents[1] / "README.md"
    pages = {
        folder.with_suffix(".md"): made.render_page(intro, sections, records),
        readme: made.render_readme(readme.read_text(encoding="utf-8"), sections, records),
    }
    stale = [path for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if not check:
            write_atomically(path, pages[path].encode())
        typer.echo(f"{path} {'is not current' if check else 'written'}")
    if check and stale:
        raise typer.Exit(1)


def _commit(folder: Path) -> str:
    """Of the repository that holds ``folder``, abbreviated; empty outside of one."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _machine() -> str:
    """This machine in words."""
    import torch

    gpu = f"{torch.cuda.get_device_name(0)}, " if torch.cuda.is_available() else ""
    return f"{gpu}{os.cpu_count()} {platform.machine()} cores"
