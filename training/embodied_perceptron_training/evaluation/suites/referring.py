"""Answers of ``embodied-perceptron ground`` against the objects that people described (ScanRefer, Nr3D).

Acc@t: share of the sentences whose first box overlaps the true object with an IoU (of axis-aligned boxes) above t; an
answer without a box is wrong.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from embodied_perceptron.apps.command_line import CommandError, in_file, out_folder
from embodied_perceptron_training.reports import figure_table, markdown_table, write_metrics

COLUMNS = ("sentences", "n", "Acc@.25", "Acc@.5", "answered")
THRESHOLDS = (0.25, 0.5)
# Acc@.25, Acc@.5 on all 141 validation scans of ScanRefer, as published; zero-shot methods over detected boxes
PUBLISHED = {
    "ZSVG3D (published, ScanRefer)": (36.4, 32.7),
    "3D-GRAND, 7B (published, ScanRefer)": (38.0, 27.4),
    "SeeGround (published, ScanRefer)": (44.1, 39.4),
    "CSVG (published, ScanRefer)": (49.6, 39.8),
}


def iou_of(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """IoU of two axis-aligned boxes with ``center`` and ``size``; flat ones count as a centimetre thick."""
    import numpy as np

    from embodied_perceptron.geometry.boxes import Bounds  # torch loads only when needed

    rows = np.array([[*x["center"], *np.maximum(x["size"], 0.01), 0, 0, 0] for x in (a, b)], dtype=np.float64)
    return float(Bounds.of(rows[:1]).iou(Bounds.of(rows[1:]))[0, 0])


def groups_of(query: Mapping[str, Any], objects: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The rows of the table that a sentence belongs to."""
    source = str(query.get("source", "sentences"))
    category = objects[query["target"]]["category"]
    alike = sum(o["category"] == category for o in objects.values())
    groups = [source, f"{source} {'unique' if alike == 1 else 'multiple'}"]
    if "easy" in query:
        groups.append(f"{source} {'easy' if query['easy'] else 'hard'}")
    if "view_dependent" in query:
        groups.append(f"{source} view {'dependent' if query['view_dependent'] else 'independent'}")
    return groups


def score_answers(data: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Per row of the table ``n``, ``acc25`` and ``acc50`` in percent; and ``answered``, the share with a box.

    Raises ``ValueError`` when answers and queries differ in number, scene or text, or a target is unknown.
    """
    queries = data["queries"]
    if len(answers) != len(queries):
        raise ValueError(f"{len(queries)} queries, but {len(answers)} answers")
    overlaps: dict[str, list[float]] = defaultdict(list)
    for i, (query, answer) in enumerate(zip(queries, answers, strict=True)):
        if (answer.get("scene"), answer.get("text")) != (query["scene"], query["text"]):
            raise ValueError(f"answer {i} is not to query {i}: {answer.get('scene')!r}, {answer.get('text')!r}")
        objects = data["scenes"][query["scene"]].get("objects", {})
        if query.get("target") not in objects:
            raise ValueError(f"query {i} has no target among the objects of {query['scene']!r}")
        boxes = answer.get("boxes") or []
        overlap = iou_of(boxes[0], objects[query["target"]]) if boxes else -1.0
        for group in groups_of(query, objects):
            overlaps[group].append(overlap)
    table = {}
    for group, values in sorted(overlaps.items()):
        row = {"n": float(len(values)), "answered": _percent(v >= 0 for v in values)}
        row |= {f"acc{round(100 * t)}": _percent(v > t for v in values) for t in THRESHOLDS}
        table[group] = row
    return table


def _percent(hits: Iterable[bool]) -> float:
    flags = list(hits)
    return 100.0 * sum(flags) / len(flags)


def referring(
    scenes: Annotated[Path, in_file("--scene-file", "--scenes", help="JSON: scenes with objects, queries.")],
    answers: Annotated[Path, in_file(help="Answers to score (JSON): written by `ground`.")],
    out: Annotated[Path, out_folder(help="Folder to write: metrics.json and metrics.md.")],
) -> None:
    """Score answers to sentences of people: overall and by kind of scene and sentence, beside published figures."""
    try:
        data = json.loads(scenes.read_text(encoding="utf-8"))
        figures = score_answers(data, json.loads(answers.read_text(encoding="utf-8"))["answers"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(f"{answers} does not answer {scenes}: {error}") from error
    write_report(figures, out)
    Console().print(figure_table(f"{answers.name}, %", COLUMNS, _rows(figures)))


def write_report(figures: Mapping[str, Mapping[str, float]], folder: Path) -> None:
    """Write ``metrics.json`` and the table ``metrics.md`` into ``folder``, made when absent."""
    from embodied_perceptron.recordings.files import write_atomically

    write_metrics(folder, figures)
    table = markdown_table(COLUMNS, _rows(figures))
    write_atomically(folder / "metrics.md", ("\n".join(table) + "\n").encode())


def _rows(figures: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    """Our figures, then the published ones."""
    ours = [
        (name, f"{row['n']:.0f}", *(f"{row[key]:.1f}" for key in ("acc25", "acc50", "answered")))
        for name, row in figures.items()
    ]
    return ours + [(name, "", f"{acc25:.1f}", f"{acc50:.1f}", "") for name, (acc25, acc50) in PUBLISHED.items()]
