"""``embodied-perceptron evaluate grand``: texts in 3D-GRAND's form, whose phrases are tagged with objects, against
scenes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from embodied_perceptron.apps.command_line import in_file, out_folder, user_errors
from embodied_perceptron_training.reports import figure_table

if TYPE_CHECKING:
    from embodied_perceptron.results import Grounding, SceneObject
    from embodied_perceptron_training.datasets.grand import GrandText


def grand(
    scenes: Annotated[Path, in_file("--scene-file", "--scenes", help="JSON: scenes of 3D-GRAND.")],
    texts: Annotated[Path, in_file(help="Texts to score, with tagged phrases.")],
    out: Annotated[Path, out_folder(help="Folder to write: metrics.json, texts.json, references.json.")],
    truth: Annotated[Path | None, in_file(help="The right texts, by the same ids.")] = None,
    kind: Annotated[
        Literal["description", "question"] | None,
        typer.Option(help="Of texts without a referred object; else by name."),
    ] = None,
) -> None:
    """Grounded texts (3D-GRAND): mentions that are right, misnamed or hallucinated; objects against the right texts;
    how well the reader of sentences grounds their phrases (dense/)."""
    from embodied_perceptron.recordings.files import write_json  # torch loads only when needed
    from embodied_perceptron_training.datasets.grand import read_scenes, read_texts, scene_file, score_ids
    from embodied_perceptron_training.evaluation.metrics.dense_grounding import DenseScore, score_dense
    from embodied_perceptron_training.evaluation.metrics.description import score_texts

    with user_errors():
        known = read_scenes(scenes)
        scored = read_texts(texts, known, kind)
        figures = score_texts(scored, known)
        for name in sorted({text.kind for text in scored}):
            own = score_texts([text for text in scored if text.kind == name], known)
            figures |= {f"{name}/{figure}": value for figure, value in own.items()}
        dense = DenseScore()
        for text in scored if truth is None else read_texts(truth, known, kind):
            ask = partial(_ground, known[text.scene].objects)
            dense += score_dense([text.asked if text.kind == "reference" else text.text], ask)
        figures |= {f"dense/{figure}": value for figure, value in dense.as_dict().items()}
        if truth is not None:
            figures |= {f"objects/{k}": v for k, v in score_ids(scored, read_texts(truth, known, kind)).items()}
    out.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("metrics.json", figures),
        ("texts.json", [_entry(text) for text in scored]),
        ("references.json", scene_file(known, scored)),  # for `ground` and `evaluate referring`
    ):
        write_json(out / name, content)
    rows = [(name, f"{value:.2f}") for name, value in figures.items()]
    Console().print(figure_table(f"{len(scored)} texts of {texts.name}", ("figure", "%"), rows))


def _ground(objects: Sequence[SceneObject], sentences: Sequence[str]) -> list[Grounding]:
    from embodied_perceptron.language.answer import ground_objects  # as above

    return [ground_objects(sentence, objects, fronts="none", vocabulary=None) for sentence in sentences]


def _entry(text: GrandText) -> dict[str, object]:
    """A text with the objects of each phrase."""
    mentions = [{"phrase": m.phrase, "objects": list(m.ids)} for m in text.mentions]
    return {"id": text.id, "scene": text.scene, "kind": text.kind, "text": text.text, "mentions": mentions}
