"""``embodied-perceptron export-map``: a saved map as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embodied_perceptron.apps.errors import CommandError
from embodied_perceptron.apps.progress import TaskProgress
from embodied_perceptron.apps.view_command import open_map

_KINDS = (".glb", ".ply", ".json")


def export_map(
    map_path: Annotated[Path, typer.Argument(metavar="MAP", help="A saved map, or a folder with one.")],
    out: Annotated[
        Path,
        typer.Option(
            dir_okay=False, help="File to write: .glb (glTF, points and named boxes), .ply (points) or .json (objects)."
        ),
    ],
) -> None:
    """Write a saved map for other programs: glTF, PLY or objects as JSON, by the ending of the file's name."""
    if out.suffix not in _KINDS:
        raise CommandError(f"the name of the file must end in {', '.join(_KINDS)}, got {out.name!r}")
    with TaskProgress(f"reading {map_path}"):
        from embodied_perceptron.recordings.artifacts import write_objects_json, write_ply
        from embodied_perceptron.recordings.glb import write_glb
        from embodied_perceptron.visualization.drawing import color_of_id

        scene = open_map(map_path).recall()
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".glb":
            write_glb(out, scene.voxels, scene.objects, {o.id: color_of_id(o.id) for o in scene.objects})
        elif out.suffix == ".ply":
            write_ply(out, scene.voxels.mean_point_m, scene.voxels.mean_color)
        else:
            write_objects_json(out, scene.objects)
    typer.echo(f"{out}: {len(scene.voxels)} voxels, {len(scene.objects)} objects")


def register(app: typer.Typer) -> None:
    """Add the sub-command to ``app``."""
    app.command("export-map")(export_map)
