"""``embodied-perceptron learn``: few-shot classes from corrected maps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embodied_perceptron.apps.command_line import (
    EXIT_BAD_RESULT,
    CommandError,
    TaskProgress,
    in_folder,
    out_file,
    user_errors,
)
from embodied_perceptron.apps.reading_options import with_detectors
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.weights import weights_file
from embodied_perceptron_training.reports import markdown_table

if TYPE_CHECKING:
    from embodied_perceptron_training.training.few_shot import FewShotClasses
    from embodied_perceptron_training.training.pseudo_labels import AgreedThing


def learn(
    sources: Annotated[
        list[Path],
        typer.Option(
            "--from", exists=True, help="A corrected map, a labelled recording, or a data set; may be repeated."
        ),
    ],
    out: Annotated[Path, out_file(help="File to write: weights.")],
    weights: Annotated[str, typer.Option(help="Network: a shipped name, a weights file.")] = "tiny",
    only: Annotated[list[str] | None, typer.Option(help="Only this: a kind to fit; may be repeated.")] = None,
    val: Annotated[Path | None, in_folder(help="Data set to check on: nothing may get worse there.")] = None,
    split: Annotated[str, typer.Option(help="Split of the data set: train, val or test.")] = "val",
    scenes: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Points of AP25 that may be lost.")] = 1.0,
    pseudo: Annotated[
        bool, typer.Option("--pseudo", help="Recordings without labels: what network and detectors agree on counts.")
    ] = False,
    detector: Annotated[
        list[Path] | None, typer.Option(help="ONNX file of a 2-D detector; may be repeated. With --pseudo.")
    ] = None,
    detector_layout: Annotated[
        list[str] | None, typer.Option(help="Layout of its outputs, where the files do not tell; for each of them.")
    ] = None,
    agreement: Annotated[
        float, typer.Option(min=0.5, max=1.0, help="Least probability of what is agreed on; with --pseudo.")
    ] = 0.6,
) -> None:
    """Few-shot classes from users' labels of objects, of known or new classes. The rest of the network is not changed.

    Figures are of objects left out of the fit. If they are worse than before, nothing is written and the exit code
    is 1. With --pseudo no labels are needed: objects whose name the network and a detector, or two detectors, report
    independently are the examples.
    """
    if pseudo != bool(detector):
        raise CommandError("--pseudo and --detector belong together: without labels a detector must confirm the names")
    lift, file = with_detectors(PerceptronConfig(), detector, detector_layout).lift, weights_file(weights)
    agreed: list[AgreedThing] = []
    with user_errors(), TaskProgress("fitting classes") as shown:
        from embodied_perceptron.inference.loading import load_inference
        from embodied_perceptron_training.training.few_shot import (
            check_network,
            fit_classes,
            is_unlabelled_recording,
            read_labelled_rooms,
            room_features,
            validate,
            write_classes,
        )
        from embodied_perceptron_training.training.pseudo_labels import agreed_room, agreement_table, check_enough

        inference = load_inference(file)
        check_network(inference)
        bare = [source for source in sources if pseudo and is_unlabelled_recording(source)]
        labelled = []
        for source in bare:
            shown.say(f"comparing network and detectors in {source}")
            room, things = agreed_room(source, inference, lift, agreement, only or ())
            labelled.append(room)
            agreed += things
        if bare:
            typer.echo(agreement_table(agreed))
            check_enough(agreed)
        if len(bare) < len(sources):
            corrected = [source for source in sources if source not in bare]
            labelled += read_labelled_rooms(corrected, inference.classes, only or ())
        rooms = []
        for number, room in enumerate(labelled, start=1):
            count = f"{len(room.labels)} labelled objects"
            shown.say(f"predicting {room.source} ({number} of {len(labelled)}): {count}")
            rooms.append(room_features(room, inference))
        fitted = fit_classes(rooms, inference, progress=shown.say)
        if val is not None:
            report = validate(fitted, inference, val, split, scenes, progress=shown.say)
            fitted = dataclasses.replace(fitted, validation=report)
    typer.echo(table(fitted))
    if problems := fitted.problems(tolerance):
        raise CommandError("nothing was written: " + "; ".join(problems), EXIT_BAD_RESULT)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_classes(file, out, fitted)
    typer.echo(f"{out}: {len(fitted.classes)} classes, {sum(c.is_new for c in fitted.report)} of them new")


def table(fitted: FewShotClasses) -> str:
    """The fitted classes, in Markdown."""
    rows = []
    for c in fitted.report:
        figures = c.things, c.rooms, f"{c.localised:.0f}", f"{c.before:.1f}", f"{c.after:.1f}"
        rows.append((f"{c.name} (new)" if c.is_new else c.name, *figures))
    v = fitted.validation
    if v is not None:
        known = f"known classes, {v.scenes} validation scenes"
        rows.append((known, "", "", "", f"{v.before:.1f}", f"{v.after:.1f}"))
    lines = markdown_table(("class", "objects", "rooms", "localised %", "AP25 before", "AP25 after"), rows)
    if v is not None:
        lines.append(f"\nNew classes on the validation scenes: {v.new_boxes:.1f} boxes per scene.")
    return "\n".join(lines)
