"""An evaluation at a console: progress while it runs, a table at the end, everything else in its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from embodied_perceptron_training.evaluation.calibration import calibrate, check_writable, write_calibration
from embodied_perceptron_training.evaluation.evaluate import (
    ALL_TASKS,
    Evaluation,
    EvaluationSpec,
    cached_predictor,
    evaluate,
    load,
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
    with _progress(task, spec, console) as show:
        found = evaluate(spec, workers, show)
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


def run_calibration(
    data: Path,
    weights: str,
    split: str,
    write: bool,
    scenes: int | None = None,
    views: int = 20,
    every: int = 2,
    workers: int = 1,
) -> dict[str, float]:
    """Calibrate, print the curve, and with ``write`` store the best score in the weights file.

    Returns ``min_score``, and ``precision recall F1`` there in percent.

    Raises what ``calibrate`` raises, and ``EvaluationError`` for weights that cannot be written.
    """
    path = check_writable(weights) if write else None  # known before, not after
    spec = EvaluationSpec(str(data), split, weights, ("detection",), scenes, views)
    console = Console()
    with _progress("calibrate", spec, console) as show:
        found = calibrate(spec, every, workers=workers, progress=show)
    best = found.best
    table = Table(title=f"confirmed objects of {found.scenes} tours of {data.name} ({split}), {best.true} to find")
    for name in ("score", "objects", "right", "precision %", "recall %", "F1 %"):
        table.add_column(name, justify="right")
    for p in found.curve:
        figures = (f"{100 * value:.1f}" for value in (p.precision, p.recall, p.f1))
        chosen = "bold" if p == best else None
        table.add_row(f"{p.min_score:g}", str(p.found), str(p.right), *figures, style=chosen)
    console.print(table)
    for name, reason in found.skipped.items():
        console.print(f"skipped {name}: {reason}", style="yellow", markup=False)
    console.print(f"min_score {best.min_score:g}: F1 {100 * best.f1:.1f} %; {found.seconds:.0f} s", markup=False)
    if path is not None:
        write_calibration(path, found, spec)
        console.print(f"stored in {path}", markup=False)
    shares = {"precision": best.precision, "recall": best.recall, "F1": best.f1}
    return {"min_score": best.min_score, **{name: 100 * value for name, value in shares.items()}}


@contextmanager
def _progress(title: str, spec: EvaluationSpec, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar while scenes are done; raises :class:`EvaluationError` where the data set is not there."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(title, total=None)
            yield lambda done, total: progress.update(bar, completed=done, total=total)
    except FileNotFoundError as error:
        message = f"{spec.data} holds no split {spec.split!r} in EmbodiedScan's layout: {error}"
        raise EvaluationError(message) from error


def write_pictures(evaluation: Evaluation, out: Path, count: int) -> list[Path]:
    """``best_<k>.jpg`` and ``worst_<k>.jpg``: truth and predictions of the scenes with the highest and lowest AP25."""
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
