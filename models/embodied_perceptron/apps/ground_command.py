"""``embodied-perceptron ground``: sentences answered over boxes of any detector, from file to file."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated

import typer

from embodied_perceptron.apps.errors import CommandError


def ground(
    scenes: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON: scenes with detections, queries.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="JSON of answers to write.")],
) -> None:
    """Answer sentences over boxes of any detector: from a file of scenes and queries to a file of answers."""
    from embodied_perceptron.language.scene_file import answer_file  # torch loads only when needed
    from embodied_perceptron.recordings.files import write_atomically

    try:
        answers = answer_file(json.loads(scenes.read_text(encoding="utf-8")))
    except ValueError as error:  # JSON's own errors are such too
        raise CommandError(f"{scenes}: {error}") from error
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, (json.dumps(answers, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace"))
    ms = [a["ms"] for a in answers["answers"]]
    median = f", {statistics.median(ms):.1f} ms in the middle" if ms else ""
    typer.echo(f"{out}: {len(ms)} answers{median}")


def register(app: typer.Typer) -> None:
    """Add the sub-command to ``app``."""
    app.command("ground")(ground)
