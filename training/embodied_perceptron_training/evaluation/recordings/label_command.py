"""``embodied-perceptron label``: make labels for ``evaluate recording`` from the result of a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from embodied_perceptron.apps.command_line import (
    CommandError,
    TaskProgress,
    in_file,
    in_folder,
    with_option_groups,
    writable_file,
)
from embodied_perceptron.apps.reading_options import ReadingOptions


@with_option_groups
def label(
    labels: Annotated[
        Path,
        typer.Argument(dir_okay=False, callback=writable_file, help="Label file (JSON); made where it is missing."),
    ],
    replayed: Annotated[Path | None, in_folder("--map", help="A map: the folder that `replay --direct` wrote.")] = None,
    recording: Annotated[
        Path | None, typer.Option(exists=True, help="Recording: TUM folder or bag; its frames are shown.")
    ] = None,
    from_objects: Annotated[
        Path | None, in_file(help="Write this objects.json as a label file, none of it sure.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Print the labels.")] = False,
    frames: Annotated[int, typer.Option(min=0, help="Number of frames: of the recording, that are shown.")] = 40,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 = any free one.")] = 8700,
    *,
    reading: ReadingOptions,
) -> None:
    """Make labels of a recording: boxes on a page in the browser, on this machine alone.

    The page shows the map from above and frames with the boxes drawn on. A new file begins with what was published.
    With --from-objects or --list nothing is served.
    """
    if from_objects is None and not show and replayed is None:
        raise CommandError("--map is needed: the folder that `replay --direct RECORDING --out FOLDER` wrote")
    with TaskProgress(f"reading {labels if from_objects is None else from_objects}"):
        from embodied_perceptron.recordings.artifacts import read_objects_json
        from embodied_perceptron_training.evaluation.recordings.labels import (
            labels_from_objects,
            read_labels,
            write_labels,
        )
    if from_objects is not None:
        if labels.exists():
            raise CommandError(f"{labels} exists; remove it first, or choose another name")
        write_labels(labels, labels_from_objects(read_objects_json(from_objects)))
        typer.echo(f"{labels}: {len(read_labels(labels).things)} objects, none of them sure yet")
    if show:
        for thing in (found := read_labels(labels)).things:
            x, y, z, dx, dy, dz = thing.box[:6]
            sure = "    " if thing.sure else "not "
            typer.echo(
                f"{sure}sure  {x:7.2f} {y:7.2f} {z:7.2f}  {dx:.2f} x {dy:.2f} x {dz:.2f}  {', '.join(thing.names)}"
            )
        typer.echo(f"{len(found.things)} objects, {len(found.ignore)} regions to ignore")
    if from_objects is not None or show:
        return
    assert replayed is not None
    with TaskProgress(f"reading {replayed}"):
        from embodied_perceptron_training.evaluation.recordings.label_server import LabelServer, LabelSession

        source = None if recording is None else reading.open(recording)
        session = LabelSession.open(labels, replayed, source, frames)
    with LabelServer(session, port) as server:
        typer.echo(f"{server.url} shows {replayed} (end with Ctrl-C); labels go to {labels}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended")
