"""Calibrations at a console: progress while they run, tables at the end, reliability curves in their folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from embodied_perceptron.config import ScorePolicy
from embodied_perceptron.inference.confidence_calibration import FEATURES
from embodied_perceptron.recordings.files import atomic_path
from embodied_perceptron_training.evaluation.calibration.confidence_fit import (
    SceneBoxTable,
    collect_boxes,
    fit_tables,
    store_confidence,
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
from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec, cached_predictor, scene_names
from embodied_perceptron_training.evaluation.runner.progress import open_split, scene_progress
from embodied_perceptron_training.evaluation.runner.report import csv_text, write_text
from embodied_perceptron_training.processes import Workers


def run_calibration(
    spec: EvaluationSpec,
    write: bool,
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
    path = check_writable(spec.weights) if write else None  # known before, not after
    console = Console()
    with scene_progress("calibrate", spec) as show:
        found = calibrate(spec, every, workers=workers, progress=show, precision=precision)
    best = found.best
    of = f"{found.scenes} trajectories of {Path(spec.data).name} ({spec.split})"
    table = Table(title=f"confirmed objects of {of}, {best.true} to find")
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
    curves = reliability_curves(found, cached_predictor(spec.weights).scores)
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


def run_confidence_fit(specs: Sequence[EvaluationSpec], write: bool, workers: Workers = 1) -> dict[str, float]:
    """Fit confidence calibration to the scenes of all ``specs``, of the same weights and split; print what it gains,
    and store it in the weights with ``write``.

    Returns the boxes that are right at each wanted precision, before and after, ``error``, the gap between probability
    and share of right ones in percent, and what context rescoring gains. Raises what ``collect_boxes`` and
    ``fit_tables`` raise, and ``EvaluationError`` for weights that cannot be written.
    """
    weights, split = specs[0].weights, specs[0].split
    if write:
        check_writable(weights)  # known before, not after
    console = Console()
    for spec in specs:  # known before the first is read, not after
        with open_split(spec):
            scene_names(spec)
    tables: list[SceneBoxTable] = []
    skipped: dict[str, str] = {}
    for spec in specs:
        with scene_progress(f"calibrate-scores {Path(spec.data).name}", spec) as show:
            more, failed = collect_boxes(spec, workers, show)
        tables += more
        skipped |= failed
    found = fit_tables(tables, skipped)
    folders = ", ".join(Path(spec.data).name for spec in specs)
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
    alone, rescored = found.log_loss
    figures |= {"log_loss/alone": alone, "log_loss/company": rescored}
    kept = "context is used" if found.model.context is not None else "each box by itself is used"
    console.print(f"log loss {alone:.4f} a box by itself, {rescored:.4f} rescored by context: {kept}", markup=False)
    for name, reason in found.skipped.items():
        console.print(f"skipped {name}: {reason}", style="yellow", markup=False)
    if write:
        console.print(f"stored in {store_confidence(weights, found, specs)}", markup=False)
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
    write_text(written[0], csv_text(rows))
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
        shown = [b for b in bins if b.count]
        right = [b.right for b in shown]
        bars = [[b.right - b.low for b in shown], [b.high - b.right for b in shown]]
        axes.errorbar([b.score for b in shown], right, yerr=bars, marker="o", capsize=3, label=title)
        for b in shown:
            axes.annotate(str(b.count), (b.score, b.right), textcoords="offset points", xytext=(5, -10), fontsize=7)
    axes.set(xlabel="published score", ylabel="share that is right", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left", fontsize=8)
    FigureCanvasAgg(figure).print_png(str(path))
