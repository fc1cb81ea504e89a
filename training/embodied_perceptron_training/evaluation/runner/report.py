"""Run an evaluation at the console, and write its folder: flat figures, tables, a row per class, a record of the run,
pictures."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from embodied_perceptron import __version__
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.weights import weights_file
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron.weights.checkpoint import load_checkpoint, state_digest, without_folders
from embodied_perceptron_training.evaluation.metrics.detection import FREQUENCY_GROUPS
from embodied_perceptron_training.evaluation.runner.evaluate import (
    Evaluation,
    EvaluationSpec,
    cached_predictor,
    evaluate,
    load,
)
from embodied_perceptron_training.evaluation.runner.parallel import scene_progress
from embodied_perceptron_training.evaluation.runner.pictures import compare, draw_scene, rank_scenes, save_picture
from embodied_perceptron_training.evaluation.runner.scene_tasks import is_in_benchmark
from embodied_perceptron_training.processes import Workers
from embodied_perceptron_training.reports import figure_table, markdown_table, print_skipped, write_metrics

SCREEN_ROWS = 24
TABLES, RUN = "metrics.md", "run.json"
_GROUP_OF = {name: group for group, names in FREQUENCY_GROUPS.items() for name in names}
_CLASS_FIGURES = ("AP25", "AR25", "AP50", "AR50")


def write_report(evaluation: Evaluation, folder: Path, command: str = "") -> None:
    """Write ``metrics.json``, ``metrics.md``, ``run.json`` and ``classes*.csv`` into ``folder``, made when absent.

    Raises ``OSError`` when it cannot be written.
    """
    run = run_record(evaluation, command)
    write_metrics(folder, evaluation.figures)
    write_atomically(folder / RUN, (json.dumps(run, indent=2) + "\n").encode())
    for task in evaluation.spec.tasks:
        rows = class_rows(evaluation, task)
        if rows:
            suffix = "" if len(evaluation.spec.tasks) == 1 else f"_{task}"
            write_atomically(folder / f"classes{suffix}.csv", csv_text(rows).encode())
    write_atomically(folder / TABLES, markdown(evaluation, command).encode())


def run_record(evaluation: Evaluation, command: str) -> dict[str, object]:
    """A record of the run: command, data, weights, what was skipped, and times."""
    spec, results = evaluation.spec, evaluation.results
    path = weights_file(spec.weights)
    stages = Counter[str]()
    for result in results:
        stages.update(result.seconds)
    unknown = sorted(set(evaluation.true_classes) - set(evaluation.known_classes))
    return {
        "command": without_folders(command),
        "version": __version__,
        "data": Path(spec.data).name,
        "split": spec.split,
        "tasks": list(spec.tasks),
        "weights": {
            "name": Path(spec.weights).name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "tensors": state_digest(load_checkpoint(path).state),
        },
        "views": spec.views,
        "common_classes": spec.common,
        "turn_seed": spec.turn_seed,
        "window_m": spec.window_m,
        "windows": sum(r.windows for r in results),
        "scenes": len(results),
        "first_scene": results[0].name,
        "last_scene": results[-1].name,
        "skipped": evaluation.skipped,
        "views_without_depth": sum(r.unusable_views for r in results),
        "sentences": sum(len(r.grounding.queries["fused"]) for r in results if r.grounding is not None),
        "sentences_about_what_is_not_seen": sum(r.grounding.skipped for r in results if r.grounding is not None),
        "classes_of_the_network": len(evaluation.known_classes),
        "true_classes": len(evaluation.true_classes),
        "true_classes_unknown_to_the_network": unknown,
        "generator_version": generator_version(Path(spec.data)),
        "classes_that_the_benchmark_lacks": outside_classes(evaluation),
        "seconds": round(evaluation.seconds, 1),
        "scenes_per_s": round(len(results) / max(evaluation.seconds, 1e-9), 3),
        "seconds_by_stage": {name: round(value, 1) for name, value in sorted(stages.items())},
    }


def outside_classes(evaluation: Evaluation) -> dict[str, int]:
    """Classes of the network that the benchmark lacks -> number of their boxes that would be published."""
    left_out = sum((r.outside for r in evaluation.results), Counter[str]())
    return {name: left_out[name] for name in evaluation.known_classes if not is_in_benchmark(name)}


def generator_version(data: Path) -> int | None:
    """Version of the generator of the homes in a folder; None for other data, or where it is not recorded."""
    try:
        found = json.loads((data / "homes.json").read_text(encoding="utf-8")).get("generator_version")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int) else None


def class_rows(evaluation: Evaluation, task: str) -> list[dict[str, str]]:
    """One row per class of the truth, sorted by name."""
    figures = evaluation.figures
    prefix = f"{task}/" if any(name.startswith(f"{task}/") for name in figures) else ""
    if "detection" in task:
        counts = Counter(
            DETECTION_CLASSES[label]
            for r in evaluation.results
            for _, _, true in r.boxes.get(task, [])
            for label in true.labels.tolist()
        )
        known = set(evaluation.known_classes)
        return [
            {
                "class": name,
                "group": _GROUP_OF[name],
                "instances": str(count),
                "known": "yes" if name in known else "no",
                **{k: f"{figures[f'{prefix}{k}/{name}']:.2f}" for k in _CLASS_FIGURES},
            }
            for name, count in sorted(counts.items())
        ]
    start = f"{prefix}IoU/"
    return [{"class": k[len(start) :], "IoU": f"{v:.2f}"} for k, v in sorted(figures.items()) if k.startswith(start)]


def headline(figures: dict[str, float]) -> dict[str, float]:
    """Figures without those of single classes."""
    kinds = ("IoU", *_CLASS_FIGURES)
    return {k: v for k, v in figures.items() if len(k.split("/")) < 2 or k.split("/")[-2] not in kinds}


def on_one_screen(figures: Mapping[str, float]) -> dict[str, float]:
    """All figures, or where they are more than a screen has lines, only those of everything: without a slash, and
    without names that continue another figure's ("AP25_small")."""
    if len(figures) <= SCREEN_ROWS:
        return dict(figures)
    whole = [name for name in figures if "/" not in name]
    return {n: figures[n] for n in whole if not any(n.startswith(f"{other}_") for other in whole)}


def markdown(evaluation: Evaluation, command: str) -> str:
    """The tables for readers."""
    run = run_record(evaluation, command)
    turned = "" if evaluation.spec.turn_seed is None else f", turned and moved (seed {evaluation.spec.turn_seed})"
    lines = [
        f"# {', '.join(evaluation.spec.tasks)}",
        "",
        f"{run['scenes']} scenes of {run['data']} ({run['split']}), {run['views']} views each{turned}; weights "
        f"{Path(evaluation.spec.weights).name}; {run['seconds']} s.",
        "",
    ]
    if command:
        lines += [f"    {without_folders(command)}", ""]
    if evaluation.true_classes:
        unknown = run["true_classes_unknown_to_the_network"]
        assert isinstance(unknown, list)
        lines += [
            f"The truth has {len(evaluation.true_classes)} classes; the network knows {len(evaluation.known_classes)}. "
            + (
                f"Of the truth {len(unknown)} are unknown to it and count as missed: {', '.join(unknown)}."
                if unknown
                else "All of them are known to it."
            ),
            "",
        ]
    if outside := outside_classes(evaluation):
        lines += [
            f"{len(outside)} classes of the network are not in the benchmark, and their boxes are left out (number "
            f"that would be published): {', '.join(f'{name} ({count})' for name, count in outside.items())}.",
            "",
        ]
    for name, reason in evaluation.skipped.items():
        lines.append(f"Skipped: {name} ({reason})")
    lines += ["", *markdown_table(("figure", "%"), _percent(headline(evaluation.figures)))]
    for task in evaluation.spec.tasks:
        rows = class_rows(evaluation, task)
        if rows:
            table = markdown_table(list(rows[0]), [list(row.values()) for row in rows], "l" * len(rows[0]))
            lines += ["", f"## {task}: classes", "", *table]
    return "\n".join(lines) + "\n"


def _percent(figures: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(name, f"{value:.2f}") for name, value in figures.items()]


def csv_text(rows: list[dict[str, str]]) -> str:
    """Rows of a table as CSV; the first one names the columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# -- at a console: progress while it runs, a table at the end


def run_evaluation(
    title: str, spec: EvaluationSpec, out: Path, workers: Workers = 1, command: str = "", pictures: int = 2
) -> Evaluation:
    """Evaluate, print, and write ``out``; with detection also pictures of the ``pictures`` best and worst scenes.

    Raises ``EvaluationError`` for faults of data or weights, and for too many corrupt scenes.
    """
    out.mkdir(parents=True, exist_ok=True)  # fails early if the folder cannot be written
    console = Console()
    with scene_progress(title) as show:
        found = evaluate(spec, workers, show)
    write_report(found, out, command)
    if "detection" in spec.tasks and pictures > 0:
        write_pictures(found, out, pictures)
    title = f"{title}: {len(found.results)} scenes of {Path(spec.data).name} ({spec.split})"
    console.print(figure_table(title, ("figure", "%"), _percent(on_one_screen(headline(found.figures)))))
    print_skipped(console, found.skipped)
    if outside := outside_classes(found):
        left_out = f"{len(outside)} classes of the network are not in the benchmark and are left out"
        console.print(f"{left_out}: see {out / TABLES}", style="yellow", markup=False)
    console.print(f"{found.seconds:.0f} s; all {len(found.figures)} figures and tables in {out / TABLES}", markup=False)
    return found


def write_pictures(evaluation: Evaluation, out: Path, count: int) -> list[Path]:
    """Write ``best_<k>.jpg`` and ``worst_<k>.jpg``: truth and predictions of the scenes with the highest and lowest
    AP25."""
    spec = evaluation.spec
    ranked = rank_scenes(evaluation.results)
    count = min(count, len(ranked) // 2 or len(ranked))
    chosen = [("best", k + 1, *ranked[k]) for k in range(count)]
    chosen += [("worst", k + 1, *ranked[-1 - k]) for k in range(min(count, len(ranked) - count))]
    inference = cached_predictor(spec.weights)
    by_name = {result.name: result for result in evaluation.results}
    paths = []
    for kind, number, name, figure in chosen:
        _, found, true = by_name[name].boxes["detection"][0]
        sample = compare(found, true, inference.scores.publish)
        picture = draw_scene(load(spec, name), inference, sample, f"{name}: AP25 {figure:.1f}")
        path = out / f"{kind}_{number}.jpg"
        save_picture(picture, path)
        paths.append(path)
    return paths
