"""Fits what a network's scores are worth (:mod:`embodied_perceptron.lift.reliability`), to homes that are new to it.

Of every home the network looks once at the map of all views. A box is right where a thing of its name lies within IoU
0.25, each thing once, the best scores first. Names are counted over all homes; for the model's own fit the counts of a
box come from the other homes, so that no name explains itself. What the fit is worth is measured on homes that were
left out of it: the curve of reliability, and how many boxes are right at a wanted precision, by the network's own score
and by the model's.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from embodied_perceptron.lift.class_priors import shipped_priors
from embodied_perceptron.lift.reliability import (
    COUNTED_SCORE,
    FEATURES,
    LEAST_SCORE,
    Reliability,
    box_features,
    name_log_odds,
)
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import UNNAMED
from embodied_perceptron.weights.checkpoint import load_checkpoint, save_checkpoint
from embodied_perceptron_training.evaluation.calibration import check_writable, reliability_error
from embodied_perceptron_training.evaluation.evaluate import EvaluationSpec, cached_predictor, load, scene_names
from embodied_perceptron_training.evaluation.object_states import matches_by_name
from embodied_perceptron_training.evaluation.parallel import CorruptSceneError, EvaluationError, Workers, map_scenes
from embodied_perceptron_training.evaluation.scene_tasks import evaluation_config

F64 = NDArray[np.float64]

PRECISIONS = (0.9, 0.8, 0.7, 0.6)
_NAME = FEATURES.index("name")
_SPEAKING_FOR = ("score", "name", "plausible", "surface", "closed")
_PARTS = 6  # of homes, one left out at a time
_RIDGE = 1.0


@dataclass(frozen=True, eq=False)
class SceneBoxTable:
    """Boxes of one home: (N, 7) features (without the name's), (N,) scores, names, and whether they are right."""

    features: F64
    scores: F64
    labels: tuple[str, ...]
    right: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ReliabilityFit:
    """The model and what it was worth on homes that were left out.

    Attributes:
        at_precision: wanted precision -> (right by the network's score, right by the model).
        curve: per tenth of probability (boxes, mean probability, share that is right).
        error: mean gap between probability and share, over boxes of at least 0.1.
    """

    model: Reliability
    scenes: int
    boxes: int
    right: int
    at_precision: Mapping[float, tuple[int, int]]
    curve: tuple[tuple[int, float, float], ...]
    error: float
    skipped: Mapping[str, str]


@dataclass(frozen=True)
class _Work:
    spec: EvaluationSpec

    def __call__(self, name: str) -> SceneBoxTable:
        scene = load(self.spec, name)
        inference = copy.copy(cached_predictor(self.spec.weights))
        # the network's own scores are what is fitted
        inference.calibration = {k: v for k, v in inference.calibration.items() if k != "reliability"}
        perceptron = Perceptron(evaluation_config(len(scene.frames)), inference=inference)
        for frame in scene.frames:
            perceptron.integrate(frame)
        prediction = perceptron.predict(float("inf"))
        if prediction.detections is None:
            raise CorruptSceneError(f"{name}: the network could not look")
        found = prediction.detections.above(LEAST_SCORE)
        found = found.take(np.flatnonzero([label != UNNAMED for label in found.labels]))
        right = np.zeros(len(found), bool)
        matched = matches_by_name(found.boxes, found.labels, found.scores, scene.boxes, scene.labels)
        right[list(matched)] = True
        if len(found) == 0:
            return SceneBoxTable(np.zeros((0, len(FEATURES))), np.zeros(0), (), right)
        snapshot = perceptron.volume.snapshot()
        table = box_features(found, snapshot, prediction.floor_z_m, {}, shipped_priors())
        return SceneBoxTable(table, found.scores, found.labels, right)


def fit_reliability(
    spec: EvaluationSpec, workers: Workers = 1, progress: Callable[[str], None] | None = None
) -> ReliabilityFit:
    """Fit the model to all scenes of ``spec``.

    Raises :class:`EvaluationError` when fewer than two scenes are left or nothing that is found is right, and what
    opening the data set or the weights raises.
    """
    outcome = map_scenes(_Work(spec), scene_names(spec), workers, progress)
    return fit_tables(outcome.results, outcome.skipped)


def fit_tables(tables: Sequence[SceneBoxTable], skipped: Mapping[str, str] | None = None) -> ReliabilityFit:
    """:func:`fit_reliability` of what was found already."""
    tables = [table for table in tables if len(table.scores)]
    right = np.concatenate([table.right for table in tables]) if tables else np.zeros(0, bool)
    if len(tables) < 2 or not right.any() or right.all():
        raise EvaluationError(
            f"{len(tables)} scenes with boxes, {int(right.sum())} of {len(right)} right: too little to learn from"
        )
    scores = np.concatenate([table.scores for table in tables])
    left_out = np.zeros(len(right))
    parts = [np.arange(k, len(tables), _PARTS) for k in range(min(_PARTS, len(tables)))]
    starts = np.cumsum([0, *(len(table.scores) for table in tables)])
    for part in parts:
        model = _fit([table for i, table in enumerate(tables) if i not in part])
        for i in part:
            left_out[starts[i] : starts[i + 1]] = _probabilities(model, tables[i])
    sure = left_out >= 0.1
    error = reliability_error(list(zip(left_out[sure].tolist(), right[sure].tolist(), strict=True)))
    return ReliabilityFit(
        _fit(tables),
        len(tables),
        len(right),
        int(right.sum()),
        {p: (_right_at(scores, right, p), _right_at(left_out, right, p)) for p in PRECISIONS},
        _curve(left_out, right),
        error,
        dict(skipped or {}),
    )


def store_reliability(weights: str, found: ReliabilityFit, spec: EvaluationSpec) -> Path:
    """Store the model in a weights file, atomically, with what it comes from; tensors stay as they are.

    Raises :class:`EvaluationError` for shipped weights, ``CheckpointError`` when it is no weights file.
    """
    path = check_writable(weights)
    checkpoint = load_checkpoint(path)
    known = checkpoint.extra.get("calibration")
    entry = {
        **found.model.as_dict(),
        "data": Path(spec.data).name,
        "split": spec.split,
        "scenes": found.scenes,
        "views": spec.views,
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
    known = {label: name_log_odds(names, label) for label in set(table.labels)}
    filled = table.features.copy()
    filled[:, _NAME] = [known[label] for label in table.labels]
    return filled


def _probabilities(model: Reliability, table: SceneBoxTable) -> F64:
    log_odds = model.weights[0] + _with_names(table, model.names) @ np.array(model.weights[1:])
    probability: F64 = 1.0 / (1.0 + np.exp(-log_odds))
    return probability


def _fit(tables: Sequence[SceneBoxTable]) -> Reliability:
    """Logistic regression with a small ridge on standardised features; names of a home are counted in the others."""
    parts = [set(range(k, len(tables), _PARTS)) for k in range(min(_PARTS, len(tables)))]
    rows: list[F64] = []
    right: list[NDArray[np.bool_]] = []
    for part in parts:
        others = count_names([table for i, table in enumerate(tables) if i not in part])
        for i in sorted(part):
            rows.append(_with_names(tables[i], others))
            right.append(tables[i].right)
    x, y = np.concatenate(rows), np.concatenate(right).astype(np.float64)
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
    z = np.concatenate([np.ones((len(x), 1)), (x - mean) / scale], axis=1)

    def loss(w: F64) -> tuple[float, F64]:
        log_odds = z @ w
        value = np.logaddexp(0.0, log_odds).sum() - log_odds @ y + _RIDGE * (w[1:] ** 2).sum()
        gradient = z.T @ (1.0 / (1.0 + np.exp(-log_odds)) - y) + 2.0 * _RIDGE * np.concatenate([[0.0], w[1:]])
        return float(value), gradient

    # what speaks for a box in one home never speaks against it in another, whatever else already tells the same
    bounds = [(None, None), *((0.0, None) if name in _SPEAKING_FOR else (None, None) for name in FEATURES)]
    w = minimize(loss, np.zeros(z.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds).x
    slopes = w[1:] / scale
    return Reliability((float(w[0] - slopes @ mean), *slopes.tolist()), count_names(tables))


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
