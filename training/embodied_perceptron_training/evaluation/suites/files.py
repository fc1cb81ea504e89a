"""Suites from anybody's files, and what a suite's own run leaves beside its figures, in the same forms.

    pope             out/scenes.json, out/questions.json, out/answers.json
    arkitscenerefer  out/references.json, out/answers.json, out/answers_<system>.json of what is lifted
    openlex3d        DATA/openlex3d/<scene>.json labels, DATA/openlex3d/<scene>.npz truth (homes: from the images),
                     PREDICTIONS/<scene>.npz maps, PREDICTIONS/prompts.npz text features of labels and
                     queries; out/prompts.txt lists the texts that need one

The forms stand in :mod:`.pope`, :mod:`.arkitscenerefer` and :mod:`.openlex3d`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron_training.evaluation.runner.evaluate import scene_names
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError
from embodied_perceptron_training.evaluation.suites.arkitscenerefer import (
    read_refer_answers,
    read_references,
    refer_answers_json,
    refer_metrics,
    references_json,
)
from embodied_perceptron_training.evaluation.suites.closed_loop import (
    OpenLexResult,
    PopeResult,
    ReferResult,
    SuiteRun,
    SuiteSpec,
    load_suite_scene,
    point_truth,
    pope_questions,
    presence_of,
    score_pope,
)
from embodied_perceptron_training.evaluation.suites.openlex3d import (
    canonical,
    openlex3d_metrics,
    read_labels,
    read_prediction,
    read_prompts,
    read_truth,
    scene_prompts,
)
from embodied_perceptron_training.evaluation.suites.pope import (
    Question,
    answers_json,
    read_answers,
    read_scene_list,
    scene_list_json,
)

Scored = tuple[dict[str, float], dict[str, object]]


def score_pope_files(spec: SuiteSpec, scene_list: Path | None, answers: Path | None, out: Path) -> Scored:
    """Figures of ``answers`` about the scenes of a list, or about homes without one; the questions are written to
    ``out`` first. Raises :class:`EvaluationError` after that when there are no answers yet."""
    if scene_list is not None:
        scenes = read_scene_list(scene_list)
    else:
        scenes = [presence_of(load_suite_scene(spec, name)) for name in scene_names(spec.plain)]
    questions = pope_questions(spec, scenes)
    write_atomically(out / "questions.json", questions_json(questions).encode())
    if answers is None:
        raise EvaluationError(f"the questions are in {out / 'questions.json'}; give --answers to score them")
    figures = score_pope(questions, read_answers(answers))
    return figures, {"data": f"{len(scenes)} scenes", "answers": answers.name}


def questions_json(questions: Mapping[str, Sequence[Question]]) -> str:
    """By protocol, with the right answers."""
    entries = {
        protocol: [
            {"scene": q.scene_id, "category": q.category, "question": q.text, "right": "yes" if q.exists else "no"}
            for q in listed
        ]
        for protocol, listed in questions.items()
    }
    return json.dumps(entries, indent=1) + "\n"


def write_pope(spec: SuiteSpec, run: SuiteRun[PopeResult], out: Path) -> None:
    """Scenes, questions and answers of a run."""
    scenes = [r.presence for r in run.results]
    said = {(r.presence.scene_id, name): value for r in run.results for name, value in r.answers.items()}
    write_atomically(out / "scenes.json", scene_list_json(scenes).encode())
    write_atomically(out / "questions.json", questions_json(pope_questions(spec, scenes)).encode())
    write_atomically(out / "answers.json", answers_json(said).encode())


def score_refer_files(references: Path | None, answers: Path | None) -> Scored:
    """Figures of answers to published records. Raises :class:`EvaluationError` without records."""
    if references is None or answers is None:
        raise EvaluationError("--answers are scored against --references")
    records, repeated = read_references(references)
    figures = refer_metrics(read_refer_answers(answers, records), records)
    return figures, {"data": f"{len(records)} expressions of {references.name}", "repeated_records": repeated}


def write_refer(spec: SuiteSpec, run: SuiteRun[ReferResult], out: Path) -> None:
    """Expressions and answers of a run."""
    records = [r for result in run.results for r in result.references]
    write_atomically(out / "references.json", references_json(records).encode())
    asked = [result for result in run.results if result.references]
    for system in (s for s in asked[0].answers if "/" not in s and all(s in r.answers for r in asked)):
        name = f"answers_{system}.json" if system else "answers.json"
        given = [a for result in asked for a in result.answers[system]]
        write_atomically(out / name, refer_answers_json(records, given).encode())


def score_openlex3d_files(spec: SuiteSpec, predictions: Path | None, out: Path) -> Scored:
    """Figures of anybody's maps of the scenes that ``predictions`` holds a map of.

    The texts that need a feature, labels and queries, are written to ``out / "prompts.txt"`` first, one a line. Raises
    ``ValueError`` naming what is missing or does not fit.
    """
    if predictions is None:
        raise EvaluationError("--predictions names no folder")
    folder = Path(spec.data) / "openlex3d"
    names = sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.json"))
    names = [n for n in names if (predictions / f"{n}.npz").exists()][: spec.scenes]
    if not names:
        raise EvaluationError(f"{predictions} holds no <scene>.npz of a scene in {folder}")
    truths, repeated = [], 0
    for name in names:
        own = folder / f"{name}.npz"
        labels, twice = read_labels(folder / f"{name}.json", "error" if own.exists() else "best")
        repeated += twice
        truths.append(read_truth(own, labels) if own.exists() else point_truth(load_suite_scene(spec, name), labels))
    labels_asked, queries = scene_prompts(truths)
    needed = {canonical(text): text for text in (*queries, *labels_asked)}
    write_atomically(out / "prompts.txt", ("\n".join(sorted(needed.values())) + "\n").encode())
    prompts = read_prompts(predictions / "prompts.npz")
    maps = [read_prediction(predictions / f"{name}.npz") for name in names]
    scenes = list(zip(truths, maps, strict=True))
    figures = openlex3d_metrics(scenes, prompts.take(labels_asked), prompts.take(queries))
    facts: dict[str, object] = {"data": f"{len(names)} scenes", "predictions": predictions.name}
    return figures, facts | {"prompts": len(labels_asked), "labels_in_two_tiers": repeated}


def write_openlex3d(spec: SuiteSpec, run: SuiteRun[OpenLexResult], out: Path) -> None:
    """Counts of a run; its maps follow from the weights."""
    counts = {r.name: {"points": len(r.truth.points_m), "objects": len(r.truth.scored())} for r in run.results}
    write_atomically(out / "scenes.json", (json.dumps(counts, indent=1) + "\n").encode())
