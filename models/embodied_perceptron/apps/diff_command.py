"""``embodied-perceptron diff``: what changed between two saved maps of one place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embodied_perceptron.apps.command_line import CommandError, TaskProgress
from embodied_perceptron.apps.view_command import open_map

if TYPE_CHECKING:
    from embodied_perceptron.results import Perception
    from embodied_perceptron.scene.changes import MapChanges
    from embodied_perceptron.visualization.drawing import Color

_COLORS: dict[str, Color] = {
    "appeared": (60, 210, 90),
    "left": (235, 70, 60),
    "moved": (250, 200, 50),
    "renamed": (80, 150, 250),
}


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The older map, or a folder with one.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The newer map of the same place.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write: changes.json, before.png and after.png.")] = None,
    min_moved: Annotated[float, typer.Option(min=0.01, help="Metres from which on a thing has moved.")] = 0.2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the changes.")] = False,
) -> None:
    """Say what appeared, left, moved and was renamed between two saved maps that lie in one frame."""
    with TaskProgress(f"comparing {before} and {after}"):
        from embodied_perceptron.scene.changes import DifferentPlacesError, compare_maps

        older, newer = (open_map(path).recall() for path in (before, after))
        try:
            changes = compare_maps(older, newer, min_moved)
        except DifferentPlacesError as error:
            raise CommandError(f"{before} and {after} cannot be compared: {error}") from error
        if out is not None:
            _write(out, changes, older, newer)
    typer.echo(json.dumps(changes.as_dict(), ensure_ascii=False, indent=1) if as_json else "\n".join(changes.lines()))


def _write(out: Path, changes: MapChanges, before: Perception, after: Perception) -> None:
    """``changes.json``, and each map from above with what changed of it."""
    import cv2

    from embodied_perceptron.recordings.files import write_atomically
    from embodied_perceptron.visualization.top_view import render_top_view

    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(changes.as_dict(), ensure_ascii=False, indent=1) + "\n"
    write_atomically(out / "changes.json", text.encode("utf-8", "replace"))
    for side, scene in (("before", before), ("after", after)):
        shown, colors = {}, {}
        for kind, color in _COLORS.items():
            for change in getattr(changes, kind):
                thing = getattr(change, side)
                if thing is not None and thing.id not in shown:
                    shown[thing.id], colors[thing.id] = thing, color
        picture = render_top_view(scene, list(shown.values()), colors=colors)
        write_atomically(out / f"{side}.png", cv2.imencode(".png", picture[:, :, ::-1])[1].tobytes())


def register(app: typer.Typer) -> None:
    """Add the sub-command to ``app``."""
    app.command("diff")(diff)
