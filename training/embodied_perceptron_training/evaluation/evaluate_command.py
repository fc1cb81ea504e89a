"""``embodied-perceptron evaluate ...``: progress while it runs, a table at the end, everything else in its folder."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
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
from embodied_perceptron_training.evaluation.referring import referring
from embodied_perceptron_training.evaluation.report import headline, write_report

evaluate_app = typer.Typer(help="Score weights on a data set, or predictions from files.", no_args_is_help=True)


evaluate_app.command("referring")(referring)


class MetricName(str, Enum):
    """What the files hold."""

    detection = "detection"
    grounding = "grounding"
    occupancy = "occupancy"


@evaluate_app.command("files")
def files(
    metric: Annotated[MetricName, typer.Option(help="What the files hold.")],
    predictions: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON of predictions.")],
    ground_truth: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="JSON of the ground truth.")],
    out: Annotated[Path | None, typer.Option(file_okay=False, help="Folder for metrics.json.")] = None,
) -> None:
    """Score anybody's predictions from JSON files; figures in percent."""
    from embodied_perceptron_training.evaluation.prediction_files import evaluate_files  # torch loads only when needed

    try:
        figures = evaluate_files(metric.value, predictions, ground_truth)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    table = Table(title=f"{metric.value}: {predictions.name} against {ground_truth.name}")
    table.add_column("figure")
    table.add_column("%", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:.2f}")
    Console().print(table)
    if out is not None:
        write_metrics(figures, out)


@evaluate_app.command("recording")
def recording(
    path: Annotated[Path, typer.Argument(exists=True, help="A recording: TUM folder or bag.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for pictures.")],
    weights: Annotated[str, typer.Option(help="A shipped name, or a weights file.")] = "tiny",
    images: Annotated[int, typer.Option(min=0, help="Camera images to draw on.")] = 4,
    min_score: Annotated[float | None, typer.Option(help="Score of an object; default: the weights' own.")] = None,
) -> None:
    """Draw what a network finds in a recording, on images and from above; nothing is scored."""
    from embodied_perceptron.config import PerceptronConfig
    from embodied_perceptron_training.evaluation.recordings import draw_recording, with_weights

    objects = draw_recording(path, out, with_weights(PerceptronConfig(), weights, min_score), images)
    names = Counter(thing.label for thing in objects)
    typer.echo(f"{out}: {len(objects)} objects: " + ", ".join(f"{count} {name}" for name, count in names.most_common()))


@evaluate_app.command("calibrate")
def calibrate_score(
    data: Annotated[Path, typer.Option(file_okay=False, help="Data set in EmbodiedScan's layout.")],
    weights: Annotated[str, typer.Option(help="A weights file, or (without --write) a shipped name.")],
    split: Annotated[str, typer.Option(help="train or val; test is for figures.")] = "val",
    write: Annotated[bool, typer.Option("--write", help="Store the best score in the weights file.")] = False,
    scenes: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    views: Annotated[int, typer.Option(min=1, help="Views of each scene, spread evenly.")] = 20,
    every: Annotated[int, typer.Option(min=1, help="Perceive after so many views.")] = 2,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    out: Annotated[Path | None, typer.Option(file_okay=False, help="Folder for metrics.json.")] = None,
) -> None:
    """From which score on a box is an object: by the F1 of the objects of whole tours' maps."""
    # torch loads only when needed

    figures = run_calibration(data, weights, split, write, scenes, views, every, workers)
    if out is not None:
        write_metrics(figures, out)


@evaluate_app.command("card")
def card(
    weights: Annotated[str, typer.Option(help="A shipped name, or a weights file.")],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Markdown file to write.")],
    results: Annotated[list[Path], typer.Option(exists=True, help="Folder of an evaluation; may be repeated.")],
    training: Annotated[
        list[Path] | None, typer.Option(exists=True, help="run.json of the training; may be repeated.")
    ] = None,
) -> None:
    """Write the model card of weights from their evaluations and the record of their training."""
    from embodied_perceptron.recordings.files import write_atomically
    from embodied_perceptron.weights import weights_file
    from embodied_perceptron_training.evaluation.model_card import model_card

    text = model_card(weights_file(weights), results, training or ())
    write_atomically(out, text.encode())
    typer.echo(f"{out}: {len(text.splitlines())} lines")


def write_metrics(figures: dict[str, float], folder: Path) -> Path:
    """Write flat ``metrics.json`` into ``folder``, made when absent."""
    from embodied_perceptron.recordings.files import atomic_path

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.json"
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return path


_HELP = {
    "detection": "Boxes of whole scenes, from all views together.",
    "continuous-detection": "Boxes after each view, against what the views so far show.",
    "monocular-detection": "Boxes from single views, against what each shows.",
    "occupancy": "Semantic occupancy from all views together.",
    "continuous-occupancy": "Semantic occupancy after each view.",
    "grounding": "Sentences about objects: the decoder alone, relations alone, and both as deployed.",
    "all": "Detection, occupancy and grounding in one replay of each scene.",
}


def _task_command(task: str) -> Callable[..., None]:
    def run(
        data: Annotated[Path, typer.Option(file_okay=False, help="Data set in EmbodiedScan's layout.")],
        out: Annotated[Path, typer.Option(file_okay=False, help="Folder for metrics, tables and pictures.")],
        split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
        weights: Annotated[str, typer.Option(help="A shipped name, or a weights file.")] = "tiny",
        scenes: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
        views: Annotated[int, typer.Option(min=1, help="Views of each scene, spread evenly.")] = 20,
        workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
        turn_seed: Annotated[int | None, typer.Option(help="Turn and move every scene at random.")] = None,
        prompts: Annotated[str, typer.Option(help="Sentences: embodiedscan_<split>_<PROMPTS>.json.")] = "vg",
        pictures: Annotated[int, typer.Option(min=0, help="So many of the best and worst scenes.")] = 2,
    ) -> None:
        # torch loads only when needed

        command = shlex.join(["embodied-perceptron", *sys.argv[1:]])
        run_evaluation(task, data, out, split, weights, scenes, views, workers, turn_seed, command, prompts, pictures)

    run.__doc__ = _HELP[task]
    return run


for _task in _HELP:
    evaluate_app.command(_task)(_task_command(_task))


def register(app: typer.Typer) -> None:
    """Add the sub-commands to ``app``."""
    app.add_typer(evaluate_app, name="evaluate")


# --------------------------------------------------------------------------------------------------------------------
# An evaluation at a console: progress while it runs, a table at the end, everything else in its folder.


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
