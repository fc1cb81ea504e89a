"""``embodied-perceptron ground``: sentences answered over boxes of any detector, from file to file; and
``embodied-perceptron describe``: a saved map in grounded sentences."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Annotated

import typer

from embodied_perceptron.apps.command_line import CommandError, TaskProgress
from embodied_perceptron.apps.view_command import map_file
from embodied_perceptron.config import ConfigError, LanguageOptions


def ground(
    scenes: Annotated[
        Path,
        typer.Option(
            "--scene-file", "--scenes", exists=True, dir_okay=False, help="JSON: scenes with detections, queries."
        ),
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="File to write: answers (JSON).")],
    reader: Annotated[str, typer.Option(help="What reads the sentences: learned.", hidden=True)] = "learned",
) -> None:
    """Answer sentences over boxes of any detector: from a file of scenes and queries to a file of answers.

    Scenes: {"scenes": {"a": {"detections": [{"center": [x, y, z], "size": [dx, dy, dz], "category": "chair"}]}},
    "queries": [{"scene": "a", "text": "the chair"}]}; of a detection also score, yaw (radians) and color (r, g, b from
    0 to 255), of a scene also viewpoint (16 numbers of the camera's pose), where they are known.

    Answers: {"answers": [{"scene": ..., "text": ..., "status": "FOUND", "boxes": [...], "ms": ...}]}.
    """
    try:
        LanguageOptions(reader)
    except ConfigError as error:
        raise CommandError(f"--{error}") from error
    with TaskProgress(f"answering {scenes}"):
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


def describe(
    path: Annotated[Path, typer.Argument(metavar="MAP", help="A saved map, or a folder with one.")],
    dense: Annotated[bool, typer.Option("--dense", help="<p>a desk</p>[<obj_3>] instead of a desk <obj_3>.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: text, mentions, relations and boxes.")] = False,
) -> None:
    """Describe a saved map in sentences whose every noun carries its objects."""
    with TaskProgress(f"reading {path}"):
        from embodied_perceptron.language.description import describe as describe_objects  # torch loads only here
        from embodied_perceptron.scene.live_map import saved_objects

        objects = saved_objects(map_file(path))
        description = describe_objects(objects, "dense" if dense else "plain")
    if not as_json:
        typer.echo(description.text)
        return
    entries = {
        "text": description.text,
        "mentions": [{"phrase": m.phrase, "ids": m.ids, "span": [m.start, m.end]} for m in description.mentions],
        "relations": [{"subject": f.subject, "relation": f.relation, "anchor": f.anchor} for f in description.facts],
        "objects": [o.as_dict() for o in objects],
    }
    typer.echo(json.dumps(entries, ensure_ascii=False, indent=1))


def register(app: typer.Typer) -> None:
    """Add the sub-commands to ``app``."""
    app.command("ground")(ground)
    app.command("describe")(describe)
