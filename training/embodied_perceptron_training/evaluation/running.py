"""An evaluation from the command line: progress while it runs, a table at the end, everything else in its folder."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from embodied_perceptron_training.evaluation.evaluate import (
    ALL_TASKS,
    Evaluation,
    EvaluationSpec,
    evaluate,
    load,
    load_network,
)
from embodied_perceptron_training.evaluation.parallel import EvaluationError
from embodied_perceptron_training.evaluation.pictures import compare, draw_scene, rank_scenes, save_picture
from embodied_perceptron_training.evaluation.report import headline, write_report


def run_evaluation(
    task: str,
    data: Path,
    out: Path,
    split: str,
    weights: str,
    scenes: int | None,
    views: int,
    workers: int,
    turn_seed: int | None,
    command: str = "",
    prompts: str = "vg",
    pictures: int = 2,
) -> Evaluation:
    """Evaluate, print, and write ``out``; with detection also pictures of the ``pictures`` best and worst scenes.

    Raises ``EvaluationError`` for whatever is wrong with data, weights or too many of the scenes.
    """
    tasks = ALL_TASKS if task == "all" else (task,)
    spec = EvaluationSpec(str(data), split, weights, tasks, scenes, views, turn_seed, prompts)
    out.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written should be known before, not after
    console = Console()
    columns = (TextColumn(task), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(task, total=None)
            found = evaluate(spec, workers, lambda done, total: progress.update(bar, completed=done, total=total))
    except FileNotFoundError as error:
        raise EvaluationError(f"{data} holds no split {split!r} in EmbodiedScan's layout: {error}") from error
    write_report(found, out, command)
    if "detection" in tasks and pictures > 0:
        write_pictures(found, out, pictures)
    table = Table("figure", title=f"{task}: {len(found.results)} scenes of {data.name} ({split})")
    table.add_column("%", justify="right")
    for name, value in headline(found.figures).items():
        table.add_row(name, f"{value:.2f}")
    console.print(table)
    for name, reason in found.skipped.items():
        console.print(f"skipped {name}: {reason}", style="yellow", markup=False)
    console.print(f"{found.seconds:.0f} s; tables and figures in {out}", markup=False)
    return found


def write_pictures(evaluation: Evaluation, out: Path, count: int) -> list[Path]:
    """``best_<k>.jpg`` and ``worst_<k>.jpg``: truth and predictions of the scenes with the highest and lowest AP25."""
    spec = evaluation.spec
    ranked = rank_scenes(evaluation.results)
    count = min(count, len(ranked) // 2 or len(ranked))
    chosen = [("best", k + 1, *ranked[k]) for k in range(count)]
    chosen += [("worst", k + 1, *ranked[-1 - k]) for k in range(min(count, len(ranked) - count))]
    inference = load_network(spec.weights)
    by_name = {result.name: result for result in evaluation.results}
    paths = []
    for kind, number, name, figure in chosen:
        _, found, true = by_name[name].boxes["detection"][0]
        sample = compare(found, true, inference.min_score)
        picture = draw_scene(load(spec, name), inference, sample, f"{name}: AP25 {figure:.1f}")
        path = out / f"{kind}_{number}.jpg"
        save_picture(picture, path)
        paths.append(path)
    return paths
