"""Fits confidence calibration (:mod:`~embodied_perceptron.inference.confidence_calibration`) to homes new to it.

Of every home the network predicts once, on the map of all views. A box is right where a thing of its name lies within
IoU 0.25, a box without a name where anything does, each thing once, the best scores first. Names are counted over all
homes; for the model's own fit the counts of a box come from the other homes, so that no name explains itself. Context
rescoring (:mod:`.context_fit`) is fitted to log-odds of models of other homes, and kept where it gains on homes that it
was not fitted to. What the fit is worth is measured on homes that were left out of it: the reliability curve, and how
many boxes are right at a wanted precision, by the network's own score and by the model's.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from embodied_perceptron.geometry.suppression import same_thing_pairs
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
from embodied_perceptron.weights.checkpoint import load_checkpoint, save_checkpoint
from embodied_perceptron_training.evaluation.calibration.context_fit import MatchedBoxes, fit_context
from embodied_perceptron_training.evaluation.calibration.score_thresholds import calibration_error, check_writable
from embodied_perceptron_training.evaluation.metrics.detection import match_by_name
from embodied_perceptron_training.evaluation.runner.evaluate import EvaluationSpec, cached_predictor, load, scene_names
from embodied_perceptron_training.evaluation.runner.parallel import CorruptSceneError, EvaluationError, map_scenes
from embodied_perceptron_training.evaluation.runner.scene_tasks import mapped_scene
from embodied_perceptron_training.processes import Workers

F64 = NDArray[np.float64]
_Home = TypeVar("_Home")
_Model = TypeVar("_Model")

PRECISIONS = (0.9, 0.8, 0.7, 0.6)
_NAME = FEATURES.index("name")
_NAMED = THING_FEATURES.index("named")
_SPEAKING_FOR = ("score", "name", "plausible", "surface", "closed", "named")
_SPEAKING_AGAINST = ("rival",)
_PARTS = 6  # of homes, one left out at a time
_CONTEXT_PARTS = 3  # minutes each
_RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class ThingTable:
    """T boxes without a name of one home: (T, 5) features (without ``named``), (T,) whether something is there, and
    (M, 2) pairs of rows of a thing and of a box that names it."""

    features: F64
    right: NDArray[np.bool_]
    names: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SceneBoxTable:
    """Boxes of one home: (N, 9) themselves, (N, 7) features (without the name's), (N,) scores, names, whether they are
    right, and how high the floor lies."""

    boxes: F64
    features: F64
    scores: F64
    labels: tuple[str, ...]
    right: NDArray[np.bool_]
    things: ThingTable | None = None
    floor_z_m: float = 0.0


@dataclass(frozen=True, eq=False)
class ConfidenceFit:
    """The model and what it was worth on homes that were left out.

    Attributes:
        at_precision: wanted precision -> (right by the network's score, right by the model).
        curve: per tenth of probability (boxes, mean probability, share that is right).
        error: mean gap between probability and share, over boxes of at least 0.1.
        log_loss: mean of a box, by itself and rescored by context.
        things: boxes without a name, how many of them are right, and their ``error``.
    """

    model: ConfidenceCalibration
    scenes: int
    boxes: int
    right: int
    at_precision: Mapping[float, tuple[int, int]]
    curve: tuple[tuple[int, float, float], ...]
    error: float
    log_loss: tuple[float, float]
    skipped: Mapping[str, str]
    things: tuple[int, int, float] = (0, 0, 0.0)


@dataclass(frozen=True)
class _Work:
    spec: EvaluationSpec

    def __call__(self, name: str) -> SceneBoxTable:
        scene = load(self.spec, name)
        inference = copy.copy(cached_predictor(self.spec.weights))
        # the network's own scores of all boxes are what is fitted
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
    """What the network finds in all scenes of ``spec``, and why which scenes were skipped.

    Raises what opening the data set or the weights raises.
    """
    outcome = map_scenes(_Work(spec), scene_names(spec), workers, progress)
    return list(outcome.results), outcome.skipped


def fit_tables(tables: Sequence[SceneBoxTable], skipped: Mapping[str, str] | None = None) -> ConfidenceFit:
    """Fit the model to scenes of :func:`collect_boxes`.

    Raises :class:`EvaluationError` when fewer than two scenes are left or nothing that is found is right.
    """
    tables = [table for table in tables if len(table.scores)]
    right = np.concatenate([table.right for table in tables]) if tables else np.zeros(0, bool)
    if len(tables) < 2 or not right.any() or right.all():
        raise EvaluationError(
            f"{len(tables)} scenes with boxes, {int(right.sum())} of {len(right)} right: too little to learn from"
        )
    scores = np.concatenate([table.scores for table in tables])
    model = _fit(tables)
    odds = _left_out(tables, _fit, _odds)
    matched = [
        MatchedBoxes(t.boxes, t.labels, z, t.right, box_forms(t.boxes, t.features, t.floor_z_m))
        for t, z in zip(tables, odds, strict=True)
    ]
    rescored = _left_out(matched, fit_context, lambda known, home: home.with_context(known), _CONTEXT_PARTS)
    log_loss = _log_loss(odds, right), _log_loss(rescored, right)
    company = None
    if log_loss[1] < log_loss[0]:
        company, odds = fit_context(matched), rescored
    of_names = [np.asarray(expit(z)) for z in odds]
    left_out = np.concatenate(of_names)
    weights, things = _fit_things([table.things for table in tables], of_names)
    return ConfidenceFit(
        dataclasses.replace(model, things=weights, context=company),
        len(tables),
        len(right),
        int(right.sum()),
        {p: (_right_at(scores, right, p), _right_at(left_out, right, p)) for p in PRECISIONS},
        _curve(left_out, right),
        _error(left_out, right),
        log_loss,
        dict(skipped or {}),
        things,
    )


def _error(probability: F64, right: NDArray[np.bool_]) -> float:
    sure = probability >= 0.1
    return calibration_error(list(zip(probability[sure].tolist(), right[sure].tolist(), strict=True)))


def store_confidence(weights: str, found: ConfidenceFit, specs: Sequence[EvaluationSpec]) -> Path:
    """Store the model in a weights file, atomically, with what it comes from; tensors stay as they are.

    Raises :class:`EvaluationError` for shipped weights, ``CheckpointError`` when it is no weights file.
    """
    path = check_writable(weights)
    checkpoint = load_checkpoint(path)
    known = checkpoint.extra.get("calibration")
    entry = {
        **found.model.as_dict(),
        "data": ", ".join(Path(spec.data).name for spec in specs),
        "split": ", ".join(dict.fromkeys(spec.split for spec in specs)),
        "scenes": found.scenes,
        "views": max(spec.views for spec in specs),
        "boxes": found.boxes,
        "error": round(found.error, 4),
    }
    calibration = {**(known if isinstance(known, dict) else {}), "reliability": entry}
    save_checkpoint(path, dataclasses.replace(checkpoint, extra={**checkpoint.extra, "calibration": calibration}))
    return path


def count_names(tables: Sequence[SceneBoxTable]) -> dict[str, tuple[int, int]]:
    """Name -> (said, right) of boxes of at least :data:`COUNTED_SCORE`."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for table in tables:
        for label, score, right in zip(table.labels, table.scores, table.right, strict=True):
            if score >= COUNTED_SCORE:
                counts[label][0] += 1
                counts[label][1] += int(right)
    return {name: (said, right) for name, (said, right) in counts.items()}


def _with_names(table: SceneBoxTable, names: Mapping[str, tuple[int, int]]) -> F64:
    known = name_log_odds(names, set(table.labels))
    filled = table.features.copy()
    filled[:, _NAME] = [known[label] for label in table.labels]
    return filled


def _odds(model: ConfidenceCalibration, table: SceneBoxTable) -> F64:
    return weighed(model.weights, _with_names(table, model.names))


def _left_out(
    homes: Sequence[_Home],
    fit: Callable[[Sequence[_Home]], _Model],
    says: Callable[[_Model, _Home], F64],
    parts: int = _PARTS,
) -> list[F64]:
    """What is said of each home by a model that was fitted without it."""
    said: dict[int, F64] = {}
    for part in _parts(len(homes), parts):
        model = fit([home for i, home in enumerate(homes) if i not in part])
        said |= {i: says(model, homes[i]) for i in part}
    return [said[i] for i in range(len(homes))]


def _log_loss(odds: Sequence[F64], right: NDArray[np.bool_]) -> float:
    z = np.concatenate(odds)
    return float((np.logaddexp(0.0, z) - z * right).mean())


def _parts(count: int, parts: int = _PARTS) -> list[set[int]]:
    """Numbers of homes, in parts that are left out one at a time."""
    return [set(range(k, count, parts)) for k in range(min(parts, count))]


def _fit(tables: Sequence[SceneBoxTable]) -> ConfidenceCalibration:
    """Of names; those of a home are counted in the others."""
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
    """:attr:`ConfidenceCalibration.things` and :attr:`ConfidenceFit.things`; ``names``: probabilities of the boxes with
    names, each of a model that was fitted without its home."""
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
    """(T, 5) features of things; ``probability`` of the boxes that have names."""
    best = np.full(len(table.right), NO_NAME)
    np.maximum.at(best, table.names[:, 0], probability[table.names[:, 1]])
    filled = table.features.copy()
    filled[:, _NAMED] = log_odds(best)
    return filled


def _signs(feature: str) -> tuple[float | None, float | None]:
    """Least and largest weight."""
    return 0.0 if feature in _SPEAKING_FOR else None, 0.0 if feature in _SPEAKING_AGAINST else None


def _logistic(x: F64, right: NDArray[np.bool_], features: Sequence[str]) -> tuple[float, ...]:
    """A constant and a weight per column: logistic regression with a small ridge on standardised features."""
    y = right.astype(np.float64)
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
    z = np.concatenate([np.ones((len(x), 1)), (x - mean) / scale], axis=1)

    def loss(w: F64) -> tuple[float, F64]:
        said = z @ w
        value = np.logaddexp(0.0, said).sum() - said @ y + _RIDGE * (w[1:] ** 2).sum()
        gradient = z.T @ (1.0 / (1.0 + np.exp(-said)) - y) + 2.0 * _RIDGE * np.concatenate([[0.0], w[1:]])
        return float(value), gradient

    # what speaks for or against a box in one home never does the opposite in another, whatever else tells the same
    bounds = [(None, None), *map(_signs, features)]
    w = minimize(loss, np.zeros(z.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds).x
    slopes = w[1:] / scale
    return (float(w[0] - slopes @ mean), *slopes.tolist())


def _right_at(scores: F64, right: NDArray[np.bool_], precision: float) -> int:
    """Most boxes that are right in any list, best first, of which at least ``precision`` are."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(right[order])
    enough = np.flatnonzero(hits >= precision * np.arange(1, len(hits) + 1))
    return int(hits[enough[-1]]) if len(enough) else 0


def _curve(probability: F64, right: NDArray[np.bool_]) -> tuple[tuple[int, float, float], ...]:
    tenth = np.minimum((probability * 10).astype(int), 9)
    rows = [np.flatnonzero(tenth == k) for k in range(10)]
    return tuple(
        (len(i), float(probability[i].mean()), float(right[i].mean())) if len(i) else (0, 0.0, 0.0) for i in rows
    )
