"""Choose the score from which a box is published: the one with the best F1 of final maps, or the lowest one with a
wanted precision.

The network predicts once per step of a trajectory; the object map is then updated with these predictions for every
score of the grid. Confirmed objects with a name are counted, as published: right when of the class and at IoU 0.25 with
an object that the views show and that no better object has matched.

For a network with unnamed boxes, these come first: the score from which enough of them are on some object. Their scores
are then shifted so that this score becomes the chosen one.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.util
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from embodied_perceptron.config import PerceptronConfig, ScorePolicy, TrackingConfig
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.inference.confidence_calibration import ConfidenceCalibration
from embodied_perceptron.inference.naming import USUAL, Naming, shift_between
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.files import atomic_path, write_atomically
from embodied_perceptron.results import UNNAMED, Detections, ObjectState, VoxelSnapshot
from embodied_perceptron.scene.object_map import ObjectMap
from embodied_perceptron.weights import shipped
from embodied_perceptron.weights.checkpoint import load_checkpoint, save_checkpoint
from embodied_perceptron_training.evaluation.metrics.detection import SceneBoxes, match_by_name
from embodied_perceptron_training.evaluation.runner.evaluate import (
    EvaluationSpec,
    cached_predictor,
    check_heads,
    load,
    scene_names,
)
from embodied_perceptron_training.evaluation.runner.parallel import (
    EvaluationError,
    map_scenes,
    scene_progress,
)
from embodied_perceptron_training.evaluation.runner.report import csv_text
from embodied_perceptron_training.evaluation.runner.scene_tasks import evaluation_config, is_in_benchmark, object_boxes
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene
from embodied_perceptron_training.processes import Workers
from embodied_perceptron_training.reports import figure_table, print_skipped

EVEN = (0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.22, 0.25, 0.28, 0.32, 0.36, 0.4, 0.45, 0.5, 0.6)
_Z90 = 1.6449  # standard deviations
PERIOD_NS = 500_000_000  # a robot perceives about twice a second, however far apart a benchmark's views are


@dataclass(frozen=True, eq=False)
class TimedPrediction:
    """One prediction along a trajectory, as the object map is updated with it."""

    now_ns: int
    found: Detections
    snapshot: VoxelSnapshot
    camera_m: F64
    region: Region
    step: int = 0  # views so far


@dataclass(frozen=True)
class Point:
    """The curve at one score.

    Attributes:
        right, found, true: confirmed named objects that are right, all of them, and true objects.
        things, things_right: confirmed unnamed objects, and those on some object.
        right_flags: whether each object is right, named or not.
        published: for each score of :data:`EVEN`, the objects' scores if a box of that score had even odds.
    """

    min_score: float
    right: int
    found: int
    true: int
    things: int = 0
    things_right: int = 0
    right_flags: tuple[bool, ...] = field(default=(), repr=False)
    published: tuple[tuple[float, ...], ...] = field(default=(), repr=False)

    @property
    def precision(self) -> float:
        """Share of the objects that are right; 0 without any."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Share of the true objects that are found; 0 without any."""
        return self.right / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2.0 * self.right / (self.found + self.true) if self.found + self.true else 0.0

    def pairs(self, even: float) -> list[tuple[float, bool]]:
        """(published score, right) of each object, if a box of score ``even`` (one of :data:`EVEN`) has even odds."""
        if not self.published:
            return []
        return list(zip(self.published[EVEN.index(even)], self.right_flags, strict=True))

    @property
    def even(self) -> tuple[float, float]:
        """The score of even odds with the smallest error, and that error; see :func:`calibration_error`."""
        if not self.published:
            return self.min_score, 0.0
        error, even = min((self.error(even), even) for even in EVEN)
        return even, error

    def error(self, even: float) -> float:
        """:func:`calibration_error` of :meth:`pairs`."""
        return calibration_error(self.pairs(even))


@dataclass(frozen=True, eq=False)
class Calibration:
    """The curve over all scenes, skipped scenes with reasons, and wall seconds."""

    curve: tuple[Point, ...]
    scenes: int
    skipped: dict[str, str]
    seconds: float
    precision: float = 0.0
    nameless_min_score: float | None = None
    known_even: float | None = None  # the score of even odds, where scores are probabilities

    def even(self, point: Point) -> tuple[float, float]:
        """:attr:`Point.even`, at the known score where there is one."""
        return point.even if self.known_even is None else (self.known_even, point.error(self.known_even))

    @property
    def best(self) -> Point:
        """With a wanted ``precision`` the lowest score that reaches it, or where none does the most precise point.
        Otherwise the point with the best F1; on a tie the highest score."""
        if self.precision:
            enough = [p for p in self.curve if p.found and p.precision >= self.precision]
            if enough:
                return min(enough, key=lambda p: p.min_score)
            return max(self.curve, key=lambda p: (p.precision, p.right))
        return max(self.curve, key=lambda p: (p.f1, p.min_score))


def robot_config(views: int) -> PerceptronConfig:
    """:func:`evaluation_config` with the tracking of a robot."""
    base = PerceptronConfig()
    return dataclasses.replace(evaluation_config(views, base.network.window_m, base), objects=base.objects)


def predict_around(scene: EvaluationScene, inference: Predictor, every: int) -> list[TimedPrediction]:
    """Integrate the views one by one, and predict around the camera after each ``every`` views and after the last."""
    perceptron = Perceptron(robot_config(len(scene.frames)), inference=inference)
    predictions: list[TimedPrediction] = []
    for step, frame in enumerate(scene.frames, start=1):
        perceptron.integrate(frame)
        if step % every and step < len(scene.frames):
            continue
        now_ns = (len(predictions) + 1) * PERIOD_NS
        perception = perceptron.perceive(now_ns)
        prediction = perceptron.prediction
        if prediction is None or prediction.detections is None or perception.voxels is None:
            reason = "no prediction" if prediction is None else "; ".join(prediction.diagnostics)
            raise EvaluationError(f"{scene.name}: the network gave no prediction: {reason}")
        camera_m = frame.T_world_camera[:3, 3].copy()
        predictions.append(
            TimedPrediction(now_ns, prediction.detections, perception.voxels, camera_m, prediction.region, step)
        )
    return predictions


def final_map(predictions: Sequence[TimedPrediction], config: TrackingConfig, policy: ScorePolicy) -> ObjectMap:
    """The map of objects after all predictions."""
    objects = ObjectMap(config)
    for step in predictions:
        objects.update(step.found, step.snapshot, step.now_ns, step.camera_m, looked_at=step.region, scores=policy)
    return objects


def right_flags(found: SceneBoxes, truth: SceneBoxes) -> NDArray[np.bool_]:
    """(N,) whether each prediction is right; see :func:`.match_by_name`."""
    assert found.scores is not None
    right = np.zeros(len(found.boxes), bool)
    right[list(match_by_name(found.boxes, found.labels, found.scores, truth.boxes, truth.labels))] = True
    return right


def calibration_error(published: Sequence[tuple[float, bool]], bins: int = 10) -> float:
    """Mean over objects of the gap between mean score and share of right ones in their bin of scores, in [0, 1]."""
    gaps = (b.count * abs(b.score - b.right) for b in reliability_curve(published, bins))
    return sum(gaps) / max(len(published), 1)


@dataclass(frozen=True)
class ReliabilityBin:
    """Objects whose published scores are in [begin, end)."""

    begin: float
    end: float
    count: int = 0  # number of objects
    score: float = 0.0  # their mean score
    right: float = 0.0  # share that is right
    low: float = 0.0  # low, high: 90 % confidence interval of that share (Wilson)
    high: float = 1.0


def reliability_curve(published: Sequence[tuple[float, bool]], bins: int = 10) -> tuple[ReliabilityBin, ...]:
    """Bins of (score, right) pairs by score in [0, 1]; a score of 1 belongs to the last bin."""
    scores, right = np.array([s for s, _ in published]), np.array([r for _, r in published], float)
    bin_of = np.minimum((scores * bins).astype(int), bins - 1)
    curve = []
    for k in range(bins):
        mine = bin_of == k
        count, edges = int(mine.sum()), (k / bins, (k + 1) / bins)
        if not count:
            curve.append(ReliabilityBin(*edges))
            continue
        share, z2 = float(right[mine].mean()), _Z90**2
        middle = (share + z2 / (2 * count)) / (1 + z2 / count)
        reach = _Z90 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
        low, high = max(0.0, middle - reach), min(1.0, middle + reach)
        curve.append(ReliabilityBin(*edges, count, float(scores[mine].mean()), share, low, high))
    return tuple(curve)


def lowest_precise(pairs: Sequence[tuple[float, bool]], precision: float, least: int = 20) -> float | None:
    """The lowest score from which on ``precision`` of at least ``least`` pairs (score, right) are right; None without
    one."""
    ordered = sorted(pairs, reverse=True)
    found, right, best = 0, 0, None
    for k, (score, is_right) in enumerate(ordered):
        found, right = found + 1, right + is_right
        last = k + 1 == len(ordered) or ordered[k + 1][0] < score
        if last and found >= least and right >= precision * found:
            best = score
    return best


def _predictions(spec: EvaluationSpec, every: int, name: str) -> tuple[EvaluationScene, list[TimedPrediction]]:
    """A scene and its predictions, with all boxes at the scores of the network or of its calibration."""
    scene = load(spec, name)
    inference = copy.copy(cached_predictor(spec.weights))
    inference.naming = None
    return scene, predict_around(scene, inference, every)


def _unnamed_pairs(spec: EvaluationSpec, every: int, name: str) -> list[tuple[float, bool]]:
    """(score, whether right) of every unnamed box in all predictions of a scene."""
    scene, predictions = _predictions(spec, every, name)
    pairs: list[tuple[float, bool]] = []
    for step in predictions:
        selected = USUAL.select(step.found)
        rows = np.flatnonzero([label == UNNAMED for label in selected.labels])
        found = SceneBoxes(selected.boxes[rows], np.zeros(len(rows), np.int64), selected.scores[rows])
        flags = right_flags(found, _any_name(scene.things(step.step)))
        pairs += zip(selected.scores[rows].tolist(), flags.tolist(), strict=True)
    return pairs


def _any_name(boxes: F64) -> SceneBoxes:
    return SceneBoxes(boxes, np.zeros(len(boxes), np.int64))


def _scene_curve(
    spec: EvaluationSpec, every: int, scores: tuple[float, ...], nameless: float | None, name: str
) -> list[Point]:
    """One point per score for a scene."""
    scene, predictions = _predictions(spec, every, name)
    truth, things = scene.truth(), _any_name(scene.things())
    config = robot_config(len(scene.frames)).objects.tracking
    points = []
    for score in scores:
        shift = 0.0 if nameless is None or not 0.0 < score < 1.0 else shift_between(nameless, score)
        naming = Naming(shift=shift)
        selected = [dataclasses.replace(step, found=naming.select(step.found)) for step in predictions]
        policy = dataclasses.replace(cached_predictor(spec.weights).scores, publish=score)
        if not policy.are_probabilities:
            policy = dataclasses.replace(policy, even=0.0)  # the score to be found
        points.append(_point(score, final_map(selected, config, policy), truth, things))
    return points


def _point(min_score: float, found: ObjectMap, truth: SceneBoxes, things: SceneBoxes) -> Point:
    states = (ObjectState.CONFIRMED,)
    everything = found.objects(states)
    known = [thing.label == UNNAMED or is_in_benchmark(thing.label) for thing in everything]
    objects = list(itertools.compress(everything, known))  # without truth other names are neither right nor wrong
    nameless = np.array([thing.label == UNNAMED for thing in objects], bool)
    named, plain = np.flatnonzero(~nameless), np.flatnonzero(nameless)
    boxes = np.stack([objects[i].box for i in plain]) if len(plain) else np.zeros((0, 9))
    scores = np.array([objects[i].score for i in plain], np.float64)
    right = np.zeros(len(objects), bool)
    right[named] = right_flags(object_boxes([objects[i] for i in named]), truth)
    right[plain] = right_flags(SceneBoxes(boxes, np.zeros(len(plain), np.int64), scores), things)
    return Point(
        min_score,
        int(right[named].sum()),
        len(named),
        len(truth.boxes),
        len(plain),
        int(right[plain].sum()),
        tuple(right.tolist()),
        tuple(tuple(itertools.compress(found.probabilities(even, states), known)) for even in EVEN),
    )


def calibrate(
    spec: EvaluationSpec,
    every: int = 2,
    scores: Sequence[float] = EVEN,
    workers: Workers = 1,
    progress: Callable[[int, int], None] | None = None,
    precision: float = 0.0,
) -> Calibration:
    """The curve over the scenes of ``spec``; it does not depend on the number of workers. ``precision``: see
    :attr:`Calibration.best`; unnamed objects need at least the same precision, or 0.5 where it is 0.

    Raises :class:`EvaluationError` when the network has no detection, when too many scenes are corrupt or none is left,
    or when no object is right at any score; ``ValueError`` for a score out of range or ``every`` < 1; what opening the
    data set or the weights raises.
    """
    start = time.perf_counter()
    grid = tuple(sorted({float(s) for s in scores}))
    if not grid or not all(0.0 <= s <= 1.0 for s in grid):
        raise ValueError(f"scores must be in [0, 1] and at least one, got {list(scores)}")
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
    if not 0.0 <= precision <= 1.0:
        raise ValueError(f"precision must be in [0, 1], got {precision}")
    names = scene_names(spec)
    check_heads(cached_predictor(spec.weights), ("detection",))
    nameless = _nameless_score(spec, every, workers, precision)
    outcome = map_scenes(functools.partial(_scene_curve, spec, every, grid, nameless), names, workers, progress)
    if not outcome.results:
        raise EvaluationError("no scene to calibrate on")
    kinds = ("right", "found", "true", "things", "things_right")
    curve = tuple(
        Point(
            points[0].min_score,
            *(sum(getattr(p, kind) for p in points) for kind in kinds),
            right_flags=tuple(flag for p in points for flag in p.right_flags),
            published=tuple(
                tuple(itertools.chain(*scores)) for scores in zip(*(p.published for p in points), strict=True)
            ),
        )
        for points in zip(*outcome.results, strict=True)
    )
    seconds = time.perf_counter() - start
    scored = cached_predictor(spec.weights).scores
    even = scored.even if scored.are_probabilities else None
    found = Calibration(curve, len(outcome.results), outcome.skipped, seconds, precision, nameless, even)
    if found.best.right == 0:
        raise EvaluationError(f"no object is right at any score; the scenes have {found.best.true} objects")
    return found


def _nameless_score(spec: EvaluationSpec, every: int, workers: Workers, precision: float) -> float | None:
    """The score from which unnamed boxes are precise enough; None for a network without them, or whose scores of them
    are probabilities."""
    inference = cached_predictor(spec.weights)
    detection = inference.network.config.detection
    reliability = ConfidenceCalibration.of_calibration(inference.calibration)
    if detection is None or not detection.detects_unnamed or (reliability is not None and reliability.things):
        return None
    outcome = map_scenes(functools.partial(_unnamed_pairs, spec, every), scene_names(spec), workers, None)
    pairs = [pair for result in outcome.results for pair in result]
    found = lowest_precise(pairs, precision or 0.5)
    return min(0.99, max((score for score, _ in pairs), default=0.99)) if found is None else found


def check_writable(weights: str) -> Path:
    """The path of a weights file that may be changed. Raises :class:`EvaluationError` for shipped weights."""
    if weights in shipped():
        raise EvaluationError(
            f"{weights!r} is shipped and not changed in place: calibrate a file, then `dev add-weights {weights} FILE`"
        )
    path = Path(weights).expanduser()
    if not path.is_file():
        raise EvaluationError(f"no weights file {path}")
    return path


def write_calibration(path: Path, found: Calibration, spec: EvaluationSpec) -> None:
    """Store the best score and its origin in the weights file, atomically; tensors are not changed.

    Raises ``CheckpointError`` for an invalid file, ``OSError`` when it cannot be written.
    """
    best = found.best
    even, error = found.even(best)
    entry = {
        "min_score": best.min_score,
        "precision": round(best.precision, 4),
        "recall": round(best.recall, 4),
        "f1": round(best.f1, 4),
        "data": Path(spec.data).name,
        "split": spec.split,
        "scenes": found.scenes,
        "views": spec.views,
        "even_score": even,
        "score_error": round(error, 4),
    }
    if found.nameless_min_score is not None:
        entry |= {
            "nameless_min_score": round(found.nameless_min_score, 4),
            "things": best.things,
            "things_precision": round(best.things_right / max(best.things, 1), 4),
        }
    store_calibration(path, "detection", entry)


def store_calibration(path: Path, name: str, entry: Mapping[str, object]) -> None:
    """Store one part of the calibration in a weights file. Raises as :func:`write_calibration`."""
    checkpoint = load_checkpoint(path)
    known = checkpoint.extra.get("calibration")
    calibration = {**(known if isinstance(known, dict) else {}), name: entry}
    save_checkpoint(path, dataclasses.replace(checkpoint, extra={**checkpoint.extra, "calibration": calibration}))


# -- At the console.


def run_calibration(
    spec: EvaluationSpec,
    write: bool,
    every: int = 2,
    workers: Workers = 1,
    precision: float = 0.0,
    out: Path | None = None,
) -> dict[str, float]:
    """Calibrate, print the curve and the reliability of published scores, and with ``write`` store the best score in
    the weights file. ``out``: folder for ``reliability.csv`` and, with matplotlib, ``reliability.png``.

    Returns ``min_score`` and, in percent, ``precision recall F1``, the error of published scores, and the precision of
    unnamed objects.

    Raises what ``calibrate`` raises, and ``EvaluationError`` for weights that cannot be written.
    """
    path = check_writable(spec.weights) if write else None  # before the long part
    console = Console()
    with scene_progress("calibrate") as show:
        found = calibrate(spec, every, workers=workers, progress=show, precision=precision)
    best = found.best
    of = f"{found.scenes} trajectories of {Path(spec.data).name} ({spec.split})"
    table = Table(title=f"confirmed objects of {of}, {best.true} true objects")
    for name in ("score", "objects", "right", "precision %", "recall %", "F1 %", "score error %", "unnamed", "right"):
        table.add_column(name, justify="right")
    for p in found.curve:
        figures = [f"{100 * value:.1f}" for value in (p.precision, p.recall, p.f1, found.even(p)[1])]
        figures += [str(p.things), str(p.things_right)]
        chosen = "bold" if p == best else None
        table.add_row(f"{p.min_score:g}", str(p.found), str(p.right), *figures, style=chosen)
    console.print(table)
    print_skipped(console, found.skipped)
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


def reliability_curves(found: Calibration, stored: ScorePolicy) -> dict[str, tuple[ReliabilityBin, ...]]:
    """Title -> curve of the published scores: with the score of the weights file, and with the calibrated one.

    The file's scores are rounded to the nearest ones of the grid, which the title gives.
    """
    published = min(found.curve, key=lambda p: abs(p.min_score - stored.publish))
    even = min(EVEN, key=lambda score: abs(score - (stored.even or stored.publish)))
    chosen = {"as published": (published, even), "as calibrated": (found.best, found.even(found.best)[0])}
    return {
        f"{title}: min_score {point.min_score:g}, even {e:g}": reliability_curve(point.pairs(e))
        for title, (point, e) in chosen.items()
    }


def _reliability_table(curves: Mapping[str, Sequence[ReliabilityBin]]) -> Table:
    rows = []
    for bins in zip(*curves.values(), strict=True):
        cells = [f"{100 * b.right:.0f} % of {b.count} ({100 * b.low:.0f}-{100 * b.high:.0f})" if b.count else "-"
                 for b in bins]  # fmt: skip
        rows.append((f"{bins[0].begin:.1f} to {bins[0].end:.1f}", *cells))
    title = "reliability: share of published objects that is right, by score"
    return figure_table(title, ("scores", *curves), rows)


def write_reliability(curves: Mapping[str, Sequence[ReliabilityBin]], out: Path) -> list[Path]:
    """Write ``reliability.csv`` and, with matplotlib, ``reliability.png`` into ``out``; returns their paths. Raises
    ``OSError``."""
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
    write_atomically(written[0], csv_text(rows).encode())
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
