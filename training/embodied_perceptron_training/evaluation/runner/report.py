"""An evaluation at a console, and what it leaves in its folder: flat figures, tables, a row per class, what was run,
pictures."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from embodied_perceptron import __version__
from embodied_perceptron.config import ScorePolicy
from embodied_perceptron.inference.confidence_calibration import FEATURES
from embodied_perceptron.recordings.files import atomic_path, write_atomically
from embodied_perceptron.weights import weights_file
from embodied_perceptron.weights.categories import DETECTION_CLASSES
from embodied_perceptron.weights.checkpoint import load_checkpoint, state_digest
from embodied_perceptron.weights.shipping import without_folders
from embodied_perceptron_training.evaluation.calibration.confidence_fit import (
    SceneBoxTable,
    fit_tables,
    judge_boxes,
    store_reliability,
)
from embodied_perceptron_training.evaluation.calibration.score_thresholds import (
    EVEN,
    Calibration,
    ReliabilityBin,
    calibrate,
    check_writable,
    reliability_curve,
    write_calibration,
)
from embodied_perceptron_training.evaluation.runner.evaluate import (
    ALL_TASKS,
    GROUPS,
    Evaluation,
    EvaluationSpec,
    cached_predictor,
    evaluate,
    load,
    scene_names,
)
from embodied_perceptron_training.evaluation.runner.parallel import EvaluationError, Workers
from embodied_perceptron_training.evaluation.runner.pictures import compare, draw_scene, rank_scenes, save_picture
from embodied_perceptron_training.evaluation.runner.scene_tasks import is_in_benchmark

METRICS, TABLES, RUN = "metrics.json", "metrics.md", "run.json"
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}
_CLASS_FIGURES = ("AP25", "AR25", "AP50", "AR50")


def write_report(evaluation: Evaluation, folder: Path, command: str = "") -> None:
    """Write ``metrics.json``, ``metrics.md``, ``run.json`` and ``classes*.csv`` into ``folder``, made when absent.

    Raises ``OSError`` when it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = run_record(evaluation, command)
    _write(folder / METRICS, json.dumps(evaluation.figures, indent=2) + "\n")
    _write(folder / RUN, json.dumps(run, indent=2) + "\n")
    for task in evaluation.spec.tasks:
        rows = class_rows(evaluation, task)
        if rows:
            suffix = "" if len(evaluation.spec.tasks) == 1 else f"_{task}"
            _write(folder / f"classes{suffix}.csv", _csv(rows))
    _write(folder / TABLES, markdown(evaluation, command))


def run_record(evaluation: Evaluation, command: str) -> dict[str, object]:
    """What was run on what, with what, and what was left out."""
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
        "classes_that_the_benchmark_lacks": strangers(evaluation),
        "seconds": round(evaluation.seconds, 1),
        "scenes_per_s": round(len(results) / max(evaluation.seconds, 1e-9), 3),
        "seconds_by_stage": {name: round(value, 1) for name, value in sorted(stages.items())},
    }


def strangers(evaluation: Evaluation) -> dict[str, int]:
    """Classes of the network that the benchmark lacks -> boxes of all scenes that were left out, of the score from
    which they are published."""
    left_out = sum((r.outside for r in evaluation.results), Counter[str]())
    return {name: left_out[name] for name in evaluation.known_classes if not is_in_benchmark(name)}


def outside_in_words(outside: Mapping[str, int]) -> str:
    """What was left out of the figures."""
    names = ", ".join(f"{name} ({count})" for name, count in outside.items())
    return (
        f"{len(outside)} classes of the network are none of the benchmark's; what it calls so is left out (boxes of "
        f"looks at whole scenes, of the score from which they are published): {names}."
    )


def generator_version(data: Path) -> int | None:
    """Of the homes in a folder; None for data of another kind, or where it does not say."""
    try:
        found = json.loads((data / "homes.json").read_text(encoding="utf-8")).get("generator_version")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int) else None


def class_rows(evaluation: Evaluation, task: str) -> list[dict[str, str]]:
    """One row per class that the truth has, by name."""
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


def markdown(evaluation: Evaluation, command: str) -> str:
    """The tables that a person reads."""
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
    if outside := strangers(evaluation):
        lines += [outside_in_words(outside), ""]
    for name, reason in evaluation.skipped.items():
        lines.append(f"Skipped: {name} ({reason})")
    lines += ["", "| figure | % |", "|---|---:|"]
    lines += [f"| {name} | {value:.2f} |" for name, value in headline(evaluation.figures).items()]
    for task in evaluation.spec.tasks:
        rows = class_rows(evaluation, task)
        if rows:
            lines += ["", f"## {task}: classes", "", "| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
            lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _csv(rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())


# --------------------------------------------------------------------------------------------------------------------
# at a console: progress while it runs, a table at the end


def run_evaluation(
    task: str,
    data: Path,
    out: Path,
    split: str,
    weights: str,
    scenes: int | None,
    views: int,
    workers: Workers,
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
    if outside := strangers(found):
        console.print(outside_in_words(outside), style="yellow", markup=False)
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
    workers: Workers = 1,
    precision: float = 0.0,
    out: Path | None = None,
) -> dict[str, float]:
    """Calibrate, print the curve and how reliable published scores are, and with ``write`` store the best score in the
    weights file. ``out``: folder for ``reliability.csv`` and, where matplotlib is installed, ``reliability.png``.

    Returns ``min_score``, and ``precision recall F1``, the error of published scores, and the precision of things
    without a name there in percent.

    Raises what ``calibrate`` raises, and ``EvaluationError`` for weights that cannot be written.
    """
    path = check_writable(weights) if write else None  # known before, not after
    spec = EvaluationSpec(str(data), split, weights, ("detection",), scenes, views)
    console = Console()
    with _progress("calibrate", spec, console) as show:
        found = calibrate(spec, every, workers=workers, progress=show, precision=precision)
    best = found.best
    table = Table(title=f"confirmed objects of {found.scenes} tours of {data.name} ({split}), {best.true} to find")
    for name in ("score", "objects", "right", "precision %", "recall %", "F1 %", "score error %", "things", "right"):
        table.add_column(name, justify="right")
    for p in found.curve:
        figures = [f"{100 * value:.1f}" for value in (p.precision, p.recall, p.f1, found.even(p)[1])]
        figures += [str(p.things), str(p.things_right)]
        chosen = "bold" if p == best else None
        table.add_row(f"{p.min_score:g}", str(p.found), str(p.right), *figures, style=chosen)
    console.print(table)
    for name, reason in found.skipped.items():
        console.print(f"skipped {name}: {reason}", style="yellow", markup=False)
    console.print(f"min_score {best.min_score:g}: F1 {100 * best.f1:.1f} %; {found.seconds:.0f} s", markup=False)
    curves = reliability_curves(found, cached_predictor(weights).scores)
    console.print(_reliability_table(curves))
    if out is not None:
        for file in write_reliability(curves, out):
            console.print(f"wrote {file}", markup=False)
    if path is not None:
        write_calibration(path, found, spec)
        console.print(f"stored in {path}", markup=False)
    shares = {"precision": best.precision, "recall": best.recall, "F1": best.f1, "score_error": found.even(best)[1]}
    if best.things:
        shares["things_precision"] = best.things_right / best.things
    return {"min_score": best.min_score, **{name: 100 * value for name, value in shares.items()}}


def run_reliability(
    data: Sequence[Path], weights: str, split: str, write: bool, scenes: int | None, views: int, workers: int
) -> dict[str, float]:
    """Fit what scores are worth to all of ``data``, print what the fit gains, store it in the weights with ``write``.

    Returns the boxes that are right at each wanted precision, before and after, ``error``, the gap between probability
    and share of right ones in percent, and what company is worth. Raises what ``judge_boxes`` and ``fit_tables`` raise,
    and ``EvaluationError`` for weights that cannot be written.
    """
    if write:
        check_writable(weights)  # known before, not after
    specs = [EvaluationSpec(str(folder), split, weights, ("detection",), scenes, views) for folder in data]
    console = Console()
    for spec in specs:  # known before the first is read, not after
        with _open_split(spec):
            scene_names(spec)
    tables: list[SceneBoxTable] = []
    skipped: dict[str, str] = {}
    for spec in specs:
        with _progress(f"calibrate-scores {Path(spec.data).name}", spec, console) as show:
            more, failed = judge_boxes(spec, workers, show)
        tables += more
        skipped |= failed
    found = fit_tables(tables, skipped)
    folders = ", ".join(folder.name for folder in data)
    counted = f"{found.boxes} boxes of {found.scenes} scenes of {folders} ({split}), {found.right} right"
    table = Table(title=f"{counted}; by models that were fitted without the scene")
    for name in ("probability", "boxes", "mean %", "right %"):
        table.add_column(name, justify="right")
    for k, (boxes, mean, right) in enumerate(found.curve):
        table.add_row(f"{k / 10:.1f} to {(k + 1) / 10:.1f}", str(boxes), f"{100 * mean:.1f}", f"{100 * right:.1f}")
    console.print(table)
    gains = Table(title="right boxes at a precision")
    for name in ("precision %", "by the network's score", "by the model"):
        gains.add_column(name, justify="right")
    figures = {"error": 100 * found.error}
    boxes, there, error = found.things
    if boxes:
        console.print(f"things without a name: {boxes}, {there} there, error {100 * error:.1f} %", markup=False)
        figures["things_error"] = 100 * error
    for precision, (before, after) in found.at_precision.items():
        gains.add_row(f"{100 * precision:.0f}", str(before), str(after))
        figures |= {f"right@{precision:g}/score": float(before), f"right@{precision:g}/model": float(after)}
    console.print(gains)
    weighed = ", ".join(f"{n} {w:+.2f}" for n, w in zip(FEATURES, found.model.weights[1:], strict=True))
    console.print(f"weights: {weighed}; error {100 * found.error:.1f} %", markup=False)
    alone, heard = found.log_loss
    figures |= {"log_loss/alone": alone, "log_loss/company": heard}
    kept = "names read the things around them" if found.model.company is not None else "each box by itself"
    console.print(f"log loss {alone:.4f} a box by itself, {heard:.4f} in company: {kept}", markup=False)
    for name, reason in found.skipped.items():
        console.print(f"skipped {name}: {reason}", style="yellow", markup=False)
    if write:
        console.print(f"stored in {store_reliability(weights, found, specs)}", markup=False)
    return figures


def reliability_curves(found: Calibration, stored: ScorePolicy) -> dict[str, tuple[ReliabilityBin, ...]]:
    """Title -> curve: of scores as the weights file publishes them, and as they would be with the score found.

    The file's scores are taken to the nearest that were tried, which the title tells.
    """
    published = min(found.curve, key=lambda p: abs(p.min_score - stored.publish))
    even = min(EVEN, key=lambda score: abs(score - (stored.even or stored.publish)))
    chosen = {"as published": (published, even), "as calibrated": (found.best, found.even(found.best)[0])}
    return {
        f"{title}: min_score {point.min_score:g}, even {e:g}": reliability_curve(point.pairs(e))
        for title, (point, e) in chosen.items()
    }


def _reliability_table(curves: Mapping[str, Sequence[ReliabilityBin]]) -> Table:
    table = Table("scores", title="reliability: share of published objects that is right, by score")
    for title in curves:
        table.add_column(title, justify="right")
    columns = list(curves.values())
    for rows in zip(*columns, strict=True):
        cells = [f"{100 * b.right:.0f} % of {b.count} ({100 * b.low:.0f}-{100 * b.high:.0f})" if b.count else "-"
                 for b in rows]  # fmt: skip
        table.add_row(f"{rows[0].begin:.1f} to {rows[0].end:.1f}", *cells)
    return table


def write_reliability(curves: Mapping[str, Sequence[ReliabilityBin]], out: Path) -> list[Path]:
    """``reliability.csv`` and, where matplotlib is installed, ``reliability.png``, in the folder ``out``; what was
    written. Raises ``OSError``."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "curve": title,
            "begin": f"{b.begin:.1f}",
            "end": f"{b.end:.1f}",
            "objects": str(b.count),
            "mean_score": f"{b.score:.4f}",
            "right": f"{b.right:.4f}",
            "low": f"{b.low:.4f}",
            "high": f"{b.high:.4f}",
        }
        for title, bins in curves.items()
        for b in bins
    ]
    written = [out / "reliability.csv"]
    _write(written[0], _csv(rows))
    if importlib.util.find_spec("matplotlib") is not None:
        written.append(out / "reliability.png")
        with atomic_path(written[1]) as temporary:
            _draw_reliability(curves, temporary)
    return written


def _draw_reliability(curves: Mapping[str, Sequence[ReliabilityBin]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 5.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    for title, bins in curves.items():
        told = [b for b in bins if b.count]
        right = [b.right for b in told]
        bars = [[b.right - b.low for b in told], [b.high - b.right for b in told]]
        axes.errorbar([b.score for b in told], right, yerr=bars, marker="o", capsize=3, label=title)
        for b in told:
            axes.annotate(str(b.count), (b.score, b.right), textcoords="offset points", xytext=(5, -10), fontsize=7)
    axes.set(xlabel="published score", ylabel="share that is right", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left", fontsize=8)
    FigureCanvasAgg(figure).print_png(str(path))


@contextmanager
def _progress(title: str, spec: EvaluationSpec, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar while scenes are done; raises :class:`EvaluationError` where the data set is not there."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with _open_split(spec), Progress(*columns, console=console) as progress:
        bar = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


@contextmanager
def _open_split(spec: EvaluationSpec) -> Iterator[None]:
    try:
        yield
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
