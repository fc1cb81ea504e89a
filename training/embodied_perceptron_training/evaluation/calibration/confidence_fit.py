"""Fit confidence calibration (:mod:`~embodied_perceptron.inference.confidence_calibration`) to homes that the weights
were not trained on.

The network predicts once per home, on the map of all views. A box is right where an object of its name is within IoU
0.25, an unnamed box where any object is; each object once, best scores first. Names are counted over all homes; in the
fit, the counts for a box come from the other homes. Context rescoring (:mod:`.context_fit`) is fitted to log-odds of
models of other homes, and kept where it improves homes that it was not fitted to. The reported figures are
cross-validated over homes: the reliability curve, and the number of right boxes at a wanted precision, by the network's
score and by the model's.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from scipy.optimize import minimize
from scipy.special import expit

from embodied_perceptron.geometry.suppression import same_thing_pairs
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.inference.class_priors import shipped_priors
from embodied_perceptron.inference.confidence_calibration import (
    COUNTED_SCORE,
    FEATURES,
    LEAST_SCORE,
    NO_NAME,
    THING_FEATURES,
    ConfidenceCalibration,
    box_features,
    box_forms,
    conflicts_of,
    log_odds,
    name_log_odds,
    probabilities,
    surface_support,
    thing_features,
    weighed,
)
from embodied_perceptron.results import UNNAMED, Detections
from embodied_perceptron_training.evaluation.calibration.context_fit import MatchedBoxes, fit_context
from embodied_perceptron_training.evaluation.calibration.score_thresholds import (
    ReliabilityBin,
    calibration_error,
    check_writable,
    reliability_curve,
    store_calibration,
)
from embodied_perceptron_training.evaluation.metrics.detection import match_by_name
from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec, cached_predictor, load, scene_names
from embodied_perceptron_training.evaluation.runner.parallel import (
    CorruptSceneError,
    EvaluationError,
    map_scenes,
    missing_files_named,
    scene_progress,
)
from embodied_perceptron_training.evaluation.runner.scene_tasks import mapped_scene
from embodied_perceptron_training.processes import Workers
from embodied_perceptron_training.reports import figure_table, print_skipped

_Home = TypeVar("_Home")
_Model = TypeVar("_Model")

PRECISIONS = (0.9, 0.8, 0.7, 0.6)
_NAME = FEATURES.index("name")
_NAMED = THING_FEATURES.index("named")
_NOT_NEGATIVE = ("score", "name", "plausible", "surface", "closed", "named")
_NOT_POSITIVE = ("rival",)
_PARTS = 6  # of homes, one left out at a time
_CONTEXT_PARTS = 3  # minutes each
_RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class ThingTable:
    """T unnamed boxes of one home: (T, 5) features (``named`` empty), (T,) whether they are right, and (M, 2) rows of
    an unnamed box and of an overlapping named one."""

    features: F64
    right: NDArray[np.bool_]
    names: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SceneBoxTable:
    """Named boxes of one home: (N, 9), (N, 7) features (the name's empty), (N,) scores, names, whether they are right;
    its unnamed boxes, and the height of the floor."""

    boxes: F64
    features: F64
    scores: F64
    labels: tuple[str, ...]
    right: NDArray[np.bool_]
    things: ThingTable | None = None
    floor_z_m: float = 0.0


@dataclass(frozen=True, eq=False)
class ConfidenceFit:
    """The model and its cross-validated figures."""

    model: ConfidenceCalibration
    scenes: int
    boxes: int
    right: int
    at_precision: Mapping[float, tuple[int, int]]  # precision -> right boxes by (network score, model)
    curve: tuple[ReliabilityBin, ...]  # by tenths of probability
    error: float  # mean gap between probability and share, over boxes of at least 0.1
    log_loss: tuple[float, float]  # mean per box, without and with context rescoring
    skipped: Mapping[str, str]
    things: tuple[int, int, float] = (0, 0, 0.0)  # number of unnamed boxes, of right ones, and their ``error``


def _scene_table(spec: EvaluationSpec, name: str) -> SceneBoxTable:
    scene = load(spec, name)
    inference = copy.copy(cached_predictor(spec.weights))
    # the fit needs the network's own scores of all boxes
    inference.naming = None
    inference.calibration = {k: v for k, v in inference.calibration.items() if k != "reliability"}
    perceptron = mapped_scene(scene, inference)
    prediction = perceptron.predict(float("inf"))
    if prediction.detections is None:
        raise CorruptSceneError(f"{name}: the network gave no prediction")
    every = prediction.detections.above(LEAST_SCORE)
    plain = np.array([label == UNNAMED for label in every.labels], bool)
    found, things = every.take(np.flatnonzero(~plain)), every.take(np.flatnonzero(plain))
    evidence = surface_support(every.boxes, perceptron.volume.snapshot())
    right = np.zeros(len(found), bool)
    matched = match_by_name(found.boxes, found.labels, found.scores, scene.boxes, scene.labels)
    right[list(matched)] = True
    table = box_features(found, evidence[~plain], conflicts_of(found), prediction.floor_z_m, {}, shipped_priors())
    of_things = _things(things, found.boxes, evidence[plain], scene.things())
    return SceneBoxTable(found.boxes, table, found.scores, found.labels, right, of_things, prediction.floor_z_m)


def _things(things: Detections, named: F64, evidence: F64, truth: F64) -> ThingTable | None:
    if len(things) == 0:
        return None
    right = np.zeros(len(things), bool)
    matched = match_by_name(things.boxes, things.labels, things.scores, truth, (UNNAMED,) * len(truth))
    right[list(matched)] = True
    boxes = np.concatenate([things.boxes, named])
    rows = np.arange(len(boxes))
    thing, name = same_thing_pairs(boxes, rows[: len(things)], rows[len(things) :])
    features = thing_features(things, evidence, np.full(len(things), 0.5))
    return ThingTable(features, right, np.stack([thing, name - len(things)], axis=1))


def collect_boxes(
    spec: EvaluationSpec, workers: Workers = 1, progress: Callable[[int, int], None] | None = None
) -> tuple[list[SceneBoxTable], Mapping[str, str]]:
    """Boxes of all scenes of ``spec``, and skipped scenes with their reasons.

    Raises what opening the data set or the weights raises.
    """
    outcome = map_scenes(functools.partial(_scene_table, spec), scene_names(spec), workers, progress)
    return list(outcome.results), outcome.skipped


def fit_tables(tables: Sequence[SceneBoxTable], skipped: Mapping[str, str] | None = None) -> ConfidenceFit:
    """Fit the model to scenes of :func:`collect_boxes`.

    Raises :class:`EvaluationError` when fewer than two scenes are left or nothing that is found is right.
    """
    tables = [table for table in tables if len(table.scores)]
    right = np.concatenate([table.right for table in tables]) if tables else np.zeros(0, bool)
    if len(tables) < 2 or not right.any() or right.all():
        raise EvaluationError(
            f"{len(tables)} scenes with boxes, {int(right.sum())} of {len(right)} right: too little to fit"
        )
    scores = np.concatenate([table.scores for table in tables])
    model = _fit(tables)
    odds = _left_out(tables, _fit, lambda known, table: weighed(known.weights, _with_names(table, known.names)))
    matched = [
        MatchedBoxes(t.boxes, t.labels, z, t.right, box_forms(t.boxes, t.features, t.floor_z_m))
        for t, z in zip(tables, odds, strict=True)
    ]
    rescored = _left_out(matched, fit_context, lambda known, home: home.with_context(known), _CONTEXT_PARTS)
    log_loss = _log_loss(odds, right), _log_loss(rescored, right)
    context = None
    if log_loss[1] < log_loss[0]:
        context, odds = fit_context(matched), rescored
    of_names = [np.asarray(expit(z)) for z in odds]
    left_out = np.concatenate(of_names)
    weights, things = _fit_things([table.things for table in tables], of_names)
    return ConfidenceFit(
        dataclasses.replace(model, things=weights, context=context),
        len(tables),
        len(right),
        int(right.sum()),
        {p: (_right_at(scores, right, p), _right_at(left_out, right, p)) for p in PRECISIONS},
        reliability_curve(list(zip(left_out.tolist(), right.tolist(), strict=True))),
        _error(left_out, right),
        log_loss,
        dict(skipped or {}),
        things,
    )


def _error(probability: F64, right: NDArray[np.bool_]) -> float:
    sure = probability >= 0.1
    return calibration_error(list(zip(probability[sure].tolist(), right[sure].tolist(), strict=True)))


def store_confidence(weights: str, found: ConfidenceFit, specs: Sequence[EvaluationSpec]) -> Path:
    """Store the model and its origin in a weights file, atomically; tensors are not changed.

    Raises :class:`EvaluationError` for shipped weights, ``CheckpointError`` for an invalid file.
    """
    path = check_writable(weights)
    entry = {
        **found.model.as_dict(),
        "data": ", ".join(Path(spec.data).name for spec in specs),
        "split": ", ".join(dict.fromkeys(spec.split for spec in specs)),
        "scenes": found.scenes,
        "views": max(spec.views for spec in specs),
        "boxes": found.boxes,
        "error": round(found.error, 4),
    }
    store_calibration(path, "reliability", entry)
    return path


def count_names(tables: Sequence[SceneBoxTable]) -> dict[str, tuple[int, int]]:
    """Name -> (boxes, right boxes) of boxes of at least :data:`COUNTED_SCORE`."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for table in tables:
        for label, score, right in zip(table.labels, table.scores, table.right, strict=True):
            if score >= COUNTED_SCORE:
                counts[label][0] += 1
                counts[label][1] += int(right)
    return {name: (number, right) for name, (number, right) in counts.items()}


def _with_names(table: SceneBoxTable, names: Mapping[str, tuple[int, int]]) -> F64:
    known = name_log_odds(names, set(table.labels))
    filled = table.features.copy()
    filled[:, _NAME] = [known[label] for label in table.labels]
    return filled


def _left_out(
    homes: Sequence[_Home],
    fit: Callable[[Sequence[_Home]], _Model],
    predict: Callable[[_Model, _Home], F64],
    parts: int = _PARTS,
) -> list[F64]:
    """Predictions for each home by a model that was fitted without it."""
    predicted: dict[int, F64] = {}
    for part in _parts(len(homes), parts):
        model = fit([home for i, home in enumerate(homes) if i not in part])
        predicted |= {i: predict(model, homes[i]) for i in part}
    return [predicted[i] for i in range(len(homes))]


def _log_loss(odds: Sequence[F64], right: NDArray[np.bool_]) -> float:
    z = np.concatenate(odds)
    return float((np.logaddexp(0.0, z) - z * right).mean())


def _parts(count: int, parts: int = _PARTS) -> list[set[int]]:
    """Indices of homes in parts for cross-validation."""
    return [set(range(k, count, parts)) for k in range(min(parts, count))]


def _fit(tables: Sequence[SceneBoxTable]) -> ConfidenceCalibration:
    """The model of named boxes; the name counts for a home come from the others."""
    rows: list[F64] = []
    right: list[NDArray[np.bool_]] = []
    for part in _parts(len(tables)):
        others = count_names([table for i, table in enumerate(tables) if i not in part])
        for i in sorted(part):
            rows.append(_with_names(tables[i], others))
            right.append(tables[i].right)
    return ConfidenceCalibration(_logistic(np.concatenate(rows), np.concatenate(right), FEATURES), count_names(tables))


def _fit_things(
    tables: Sequence[ThingTable | None], names: Sequence[F64]
) -> tuple[tuple[float, ...], tuple[int, int, float]]:
    """:attr:`ConfidenceCalibration.things` and :attr:`ConfidenceFit.things`; ``names``: cross-validated probabilities
    of the named boxes."""
    rows: list[F64] = []
    right: list[NDArray[np.bool_]] = []
    for table, probability in zip(tables, names, strict=True):
        if table is not None:
            rows.append(with_best_names(table, probability))
            right.append(table.right)
    y = np.concatenate(right) if right else np.zeros(0, bool)
    if len(rows) < 2 or not y.any() or y.all():
        return (), (len(y), int(y.sum()), 0.0)
    left_out = np.zeros(len(y))
    home = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    x = np.concatenate(rows)
    for part in _parts(len(rows)):
        mine = np.isin(home, list(part))
        if y[~mine].any() and not y[~mine].all():
            left_out[mine] = probabilities(_logistic(x[~mine], y[~mine], THING_FEATURES), x[mine])
    return _logistic(x, y, THING_FEATURES), (len(y), int(y.sum()), _error(left_out, y))


def with_best_names(table: ThingTable, probability: F64) -> F64:
    """(T, 5) features of unnamed boxes, completed with the ``probability`` of the named boxes."""
    best = np.full(len(table.right), NO_NAME)
    np.maximum.at(best, table.names[:, 0], probability[table.names[:, 1]])
    filled = table.features.copy()
    filled[:, _NAMED] = log_odds(best)
    return filled


def _logistic(x: F64, right: NDArray[np.bool_], features: Sequence[str]) -> tuple[float, ...]:
    """A constant and a weight per column: logistic regression with a small ridge on standardised features."""
    y = right.astype(np.float64)
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
    z = np.concatenate([np.ones((len(x), 1)), (x - mean) / scale], axis=1)

    def loss(w: F64) -> tuple[float, F64]:
        logits = z @ w
        value = np.logaddexp(0.0, logits).sum() - logits @ y + _RIDGE * (w[1:] ** 2).sum()
        gradient = z.T @ (1.0 / (1.0 + np.exp(-logits)) - y) + 2.0 * _RIDGE * np.concatenate([[0.0], w[1:]])
        return float(value), gradient

    # a feature that supports boxes never counts against one, even where it is correlated with others
    signs = [(0.0 if f in _NOT_NEGATIVE else None, 0.0 if f in _NOT_POSITIVE else None) for f in features]
    bounds = [(None, None), *signs]
    w = minimize(loss, np.zeros(z.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds).x
    slopes = w[1:] / scale
    return (float(w[0] - slopes @ mean), *slopes.tolist())


def _right_at(scores: F64, right: NDArray[np.bool_], precision: float) -> int:
    """Largest number of right boxes in a prefix of the ranked list with at least this precision."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(right[order])
    enough = np.flatnonzero(hits >= precision * np.arange(1, len(hits) + 1))
    return int(hits[enough[-1]]) if len(enough) else 0


# -- At the console.


def run_confidence_fit(specs: Sequence[EvaluationSpec], write: bool, workers: Workers = 1) -> dict[str, float]:
    """Fit confidence calibration to the scenes of all ``specs``, of the same weights and split; print the gain, and
    with ``write`` store the model in the weights.

    Returns the number of right boxes at each precision, before and after; ``error``, the gap between probability and
    share of right boxes in percent; and the log loss with and without context. Raises what ``collect_boxes`` and
    ``fit_tables`` raise, and ``EvaluationError`` for weights that cannot be written.
    """
    weights, split = specs[0].weights, specs[0].split
    if write:
        check_writable(weights)  # before the long part
    console = Console()
    with missing_files_named():  # checked before the first is read
        for spec in specs:
            scene_names(spec)
    tables: list[SceneBoxTable] = []
    skipped: dict[str, str] = {}
    for spec in specs:
        with scene_progress(f"calibrate-scores {Path(spec.data).name}") as show:
            more, failed = collect_boxes(spec, workers, show)
        tables += more
        skipped |= failed
    found = fit_tables(tables, skipped)
    folders = ", ".join(Path(spec.data).name for spec in specs)
    counted = f"{found.boxes} boxes of {found.scenes} scenes of {folders} ({split}), {found.right} right"
    bins = [
        (f"{b.begin:.1f} to {b.end:.1f}", b.count, f"{100 * b.score:.1f}", f"{100 * b.right:.1f}") for b in found.curve
    ]
    columns = ("probability", "boxes", "mean %", "right %")
    console.print(figure_table(f"{counted}; by models fitted without the scene", columns, bins))
    figures = {"error": 100 * found.error}
    boxes, there, error = found.things
    if boxes:
        console.print(f"unnamed boxes: {boxes}, {there} right, error {100 * error:.1f} %", markup=False)
        figures["things_error"] = 100 * error
    for precision, (before, after) in found.at_precision.items():
        figures |= {f"right@{precision:g}/score": float(before), f"right@{precision:g}/model": float(after)}
    gains = [(f"{100 * p:.0f}", *boxes) for p, boxes in found.at_precision.items()]
    console.print(
        figure_table("right boxes at a precision", ("precision %", "by the network's score", "by the model"), gains)
    )
    weighed = ", ".join(f"{n} {w:+.2f}" for n, w in zip(FEATURES, found.model.weights[1:], strict=True))
    console.print(f"weights: {weighed}; error {100 * found.error:.1f} %", markup=False)
    alone, rescored = found.log_loss
    figures |= {"log_loss/alone": alone, "log_loss/company": rescored}
    kept = "used" if found.model.context is not None else "not used"
    console.print(f"log loss {alone:.4f}, with context rescoring {rescored:.4f}: rescoring is {kept}", markup=False)
    print_skipped(console, found.skipped)
    if write:
        console.print(f"stored in {store_confidence(weights, found, specs)}", markup=False)
    return figures
