"""``embodied-perceptron learn``: classes from corrected maps."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from embodied_perceptron.apps.errors import EXIT_BAD_RESULT, CommandError

if TYPE_CHECKING:
    from embodied_perceptron_training.training.few_shot import Learned


def learn(
    sources: Annotated[
        list[Path],
        typer.Option("--from", help="A corrected map, a labelled recording, or a data set; may be repeated."),
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Weights file to write.")],
    weights: Annotated[str, typer.Option(help="A shipped name, or a weights file.")] = "tiny",
    only: Annotated[list[str] | None, typer.Option(help="Learn this kind alone; may be repeated.")] = None,
    val: Annotated[
        Path | None, typer.Option(file_okay=False, exists=True, help="Data set on which nothing may get worse.")
    ] = None,
    split: Annotated[str, typer.Option(help="Of the data set: train, val or test.")] = "val",
    scenes: Annotated[int | None, typer.Option(min=1, help="Only the first so many of it.")] = None,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Points of AP25 that may be lost.")] = 1.0,
) -> None:
    """Learn what users said that things are: classes of the network, or new ones. The rest of it stays as it is.

    Figures are of things that were left out of the learning. Where they are worse than before, nothing is written and
    the exit code is 1.
    """
    from embodied_perceptron.inference.loading import load_inference
    from embodied_perceptron.weights import weights_file
    from embodied_perceptron_training.training.few_shot import (
        check_network,
        learn_classes,
        see_room,
        validate,
        write_learned,
    )
    from embodied_perceptron_training.training.few_shot_classes import read_lessons

    def say(words: str) -> None:
        typer.echo(words, err=True)

    if not out.resolve().parent.is_dir():
        raise CommandError(f"{out.parent} is no folder")
    try:
        file = weights_file(weights)
        inference = load_inference(file)
        check_network(inference)
        lessons = read_lessons(sources, inference.classes, only or ())
        rooms = []
        for number, lesson in enumerate(lessons, start=1):
            say(f"looking at {lesson.source} ({number} of {len(lessons)}): {len(lesson.labels)} taught things")
            rooms.append(see_room(lesson, inference))
        learned = learn_classes(rooms, inference, progress=say)
        if val is not None:
            report = validate(learned, inference, val, split, scenes, progress=say)
            learned = dataclasses.replace(learned, validation=report)
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from error
    typer.echo(table(learned))
    if problems := learned.problems(tolerance):
        raise CommandError("nothing was written: " + "; ".join(problems), EXIT_BAD_RESULT)
    write_learned(file, out, learned)
    typer.echo(f"{out}: {len(learned.classes)} classes, {sum(c.is_new for c in learned.report)} of them new")


def table(learned: Learned) -> str:
    """What was learned, in Markdown."""
    lines = ["| class | things | rooms | localised % | AP25 before | AP25 after |", "|---|---:|---:|---:|---:|---:|"]
    for c in learned.report:
        name = f"{c.name} (new)" if c.is_new else c.name
        lines.append(f"| {name} | {c.things} | {c.rooms} | {c.localised:.0f} | {c.before:.1f} | {c.after:.1f} |")
    if learned.validation is not None:
        v = learned.validation
        lines.append(f"| known classes, {v.scenes} validation scenes | | | | {v.before:.1f} | {v.after:.1f} |")
        lines.append(f"\nNew names on the validation scenes: {v.new_boxes:.1f} boxes a scene.")
    return "\n".join(lines)
