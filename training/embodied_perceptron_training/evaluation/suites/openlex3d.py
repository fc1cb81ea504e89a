"""OpenLex3D: open-vocabulary maps scored by tiers of human labels. Labels, metrics, files and runs.

Every object has free-text labels in tiers, best first: synonyms, depictions, visually similar; clutter are the objects
around it (their boxes overlap), of which any label counts. A map gives points with features of some text-image space; a
list of prompts is ranked by cosine similarity with the feature of the predicted point nearest to a true one (none
within 0.05 m: missing).

Top-N frequency: mean over objects of the share of the object's points whose N best prompts' best tier is C, in the
order above, else incorrect. The shares of one N sum to 100.

Set ranking (:func:`set_scores`): the synonyms S belong on the ranks b_l = 0 .. b_r = |S| - 1, depictions and visually
similar labels together (DVS) right behind. A label on rank r, counted from 0, of |L| prompts scores s(r) = min(1 -
max(0, b_l - r) / b_l, 1 - max(0, r - b_r) / (|L| - 1 - b_r)). ``mR`` is the mean of s over all labels of S and DVS,
``R_S`` and ``R_DVS`` the shares with s = 1, ``P_S`` and ``P_DVS_under`` the mean shortfall of the right term (ranked
too low), ``P_DVS_over`` of the left one (ranked before its set): 0 is best. Each is the mean over a point's labels,
then over all points that a prediction reaches; missing points count in the frequencies only.

Retrieval (:func:`retrieval_ap`): queries are every "synonym", or every "[depiction] [synonym]", of a scene; predictions
are point sets with a feature, of which a query takes the 10 most similar. All of them are ranked by similarity over
queries and scenes; one is right when its IoU with an object of the query that is not yet found is greater than the
threshold. ``AP`` is the mean over IoU 0.5 : 0.05 : 0.95. (Kassab, Morin, Büchner et al., OpenLex3D, NeurIPS 2025.)

Files of one scene:

    labels       a list of {"id": int, "synonyms": [str], "depictions": [str], "visually_similar": [str],
                 "clutter": [id]}, or the published {"dataset": {"samples": [{"object_id": int, "labels":
                 {"image_attributes": {"synonyms", "depictions", "vis_sim", "clutter"}}}]}}
    truth        npz: points (N, 3) float metres, objects (N,) int ids
    prediction   npz: points (N, 3) float metres, features (N, C) float, optionally instances (N,) int, -1 = none
    prompts      npz: labels (L,) str, features (L, C) float; must have every label of the scenes and, for retrieval,
                 every query

Spellings are compared as they are: "counter top" and "countertop" are two labels. :func:`score_openlex3d_files` reads
labels from ``DATA/openlex3d/<scene>.json``, truth from the ``.npz`` beside it (for homes also from the images), maps
from ``PREDICTIONS/<scene>.npz`` and text features from ``PREDICTIONS/prompts.npz``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from embodied_perceptron.geometry.boxes import points_in_boxes
from embodied_perceptron.geometry.suppression import overlaps
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.nn.text_encoder import text_encoder
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings import plain_values as checked
from embodied_perceptron.recordings.files import read_json, write_atomically, write_json
from embodied_perceptron.results import Detections, Perception, SceneObject
from embodied_perceptron_training.evaluation.metrics.detection import average_precision
from embodied_perceptron_training.evaluation.runner.parallel import CorruptSceneError, EvaluationError
from embodied_perceptron_training.evaluation.runner.scene_tasks import cells_at
from embodied_perceptron_training.evaluation.runner.scenes import EvaluationScene
from embodied_perceptron_training.evaluation.suites.refer_lift import pixels_to_world
from embodied_perceptron_training.evaluation.suites.scenes import (
    STRUCTURE,
    UNNAMED,
    Scored,
    Suite,
    SuiteRun,
    SuiteScene,
    SuiteSpec,
    load_suite_scene,
    perceive_scene,
)

I64 = NDArray[np.int64]
Built = TypeVar("Built")
TIERS = ("synonyms", "depictions", "vis_sim", "clutter", "missing", "incorrect")
TOP_N = (1, 5, 10)
RANKING = ("mR", "R_S", "R_DVS", "P_S", "P_DVS_under", "P_DVS_over")
REACH_M = 0.05
EXCLUDED = frozenset(("wall", "floor", "ceiling"))
RETRIEVED = 10
AP_THRESHOLDS = tuple(round(0.5 + 0.05 * k, 2) for k in range(10))
_SYNONYMS, _DEPICTIONS, _SIMILAR, _CLUTTER, _MISSING, _INCORRECT = range(len(TIERS))


@dataclass(frozen=True)
class TieredLabels:
    """Labels of one object. Raises ``ValueError`` naming the object and a label that is blank
    or in two tiers.
    """

    object_id: int  # in the scene
    synonyms: tuple[str, ...]  # synonyms, depictions, visually_similar: free text
    depictions: tuple[str, ...] = ()
    visually_similar: tuple[str, ...] = ()
    clutter: tuple[int, ...] = ()  # ids of objects around it

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        tiers = {"synonyms": self.synonyms, "depictions": self.depictions, "visually_similar": self.visually_similar}
        for tier, labels in tiers.items():
            for label in labels:
                if not label.strip():
                    raise ValueError(f"object {self.object_id}: a label of {tier} is blank")
                if seen.setdefault(label, tier) != tier:
                    raise ValueError(f"object {self.object_id}: label {label!r} is in {seen[label]} and in {tier}")

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of all three tiers."""
        return (*self.synonyms, *self.depictions, *self.visually_similar)

    @property
    def counts(self) -> bool:
        """Whether the object is scored: it has synonyms, and none of them is structure."""
        return bool(self.synonyms) and EXCLUDED.isdisjoint(s.lower() for s in self.synonyms)

    @property
    def queries(self) -> dict[str, tuple[str, ...]]:
        """Queries of retrieval by their kind, each once."""
        depicted = (f"{d} {s}" for d in self.depictions for s in self.synonyms)
        return {"synonyms": tuple(dict.fromkeys(self.synonyms)), "depictions": tuple(dict.fromkeys(depicted))}


@dataclass(frozen=True, eq=False)
class Prompts:
    """L distinct texts and their (L, C) features, which the features of a map are compared with.

    Raises ``ValueError`` naming a text that is listed twice, or a feature that is zero or not finite.
    """

    labels: tuple[str, ...]
    features: F64

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", unit_rows(self.features, "prompt"))
        if len(self.features) != len(self.labels):
            raise ValueError(f"{len(self.labels)} prompts have {len(self.features)} features")
        rows: dict[str, int] = {}
        for row, label in enumerate(self.labels):
            if rows.setdefault(label, row) != row:
                raise ValueError(f"prompt {label!r} is listed twice")
        object.__setattr__(self, "_rows", rows)

    def row(self, label: str) -> int:
        """Row of a text. Raises ``ValueError`` naming a text that is not among the prompts."""
        rows: dict[str, int] = self._rows  # type: ignore[attr-defined]
        if label not in rows:
            raise ValueError(f"the prompts lack {label!r}")
        return rows[label]

    def take(self, labels: Sequence[str]) -> Prompts:
        """Prompts of some texts, in that order."""
        return Prompts(tuple(labels), self.features[[self.row(label) for label in labels]])


@dataclass(frozen=True, eq=False)
class PointTruth:
    """(N, 3) float64 points in metres, (N,) int64 ids of their objects, and the labels of the objects."""

    points_m: F64
    objects: I64
    labels: tuple[TieredLabels, ...]

    def __post_init__(self) -> None:
        _check_points(self.points_m, "true")
        if self.objects.shape != (len(self.points_m),):
            raise ValueError(f"{len(self.points_m)} true points have objects of shape {self.objects.shape}")
        ids = [label.object_id for label in self.labels]
        if len(set(ids)) < len(ids):
            raise ValueError(f"object {next(i for i in ids if ids.count(i) > 1)} is labelled twice")
        lost = sorted({k for label in self.labels for k in label.clutter} - set(ids))
        if lost:
            raise ValueError(f"object {lost[0]} is clutter of another one, but has no labels")

    def scored(self) -> list[TieredLabels]:
        """Scored objects with points, sorted by id."""
        there = set(np.unique(self.objects).tolist())
        return sorted((o for o in self.labels if o.counts and o.object_id in there), key=lambda o: o.object_id)


@dataclass(frozen=True, eq=False)
class PointPrediction:
    """A map."""

    points_m: F64  # (N, 3) float64 metres
    features: F64  # (F, C) float64, not zero
    feature_of: I64  # (N,) int64 row of ``features`` for each point
    instance_of: I64  # (N,) int64 point set of each point, 0 .. I - 1; -1 = none
    instance_features: F64  # (I, C) float64 of the point sets

    def __post_init__(self) -> None:
        _check_points(self.points_m, "predicted")
        object.__setattr__(self, "features", unit_rows(self.features, "feature"))
        object.__setattr__(self, "instance_features", unit_rows(self.instance_features, "feature of instance"))
        for name, values, first, stop in (
            ("feature_of", self.feature_of, 0, len(self.features)),
            ("instance_of", self.instance_of, -1, len(self.instance_features)),
        ):
            if values.shape != (len(self.points_m),):
                raise ValueError(f"{len(self.points_m)} predicted points have {name} of shape {values.shape}")
            wrong = values[(values < first) | (values >= stop)]
            if len(wrong):
                raise ValueError(f"{name} must lie in [{first}, {stop}), got {int(wrong[0])}")


def unit_rows(features: Any, name: str) -> F64:
    """(N, C) float64 of unit length. Raises ``ValueError`` naming the first row that is zero or not finite."""
    array = np.asarray(features, np.float64)
    if array.ndim != 2:
        raise ValueError(f"{name}: features must be (N, C), got {array.shape}")
    length = np.linalg.norm(array, axis=1, keepdims=True)
    wrong = np.flatnonzero(~np.isfinite(array).all(axis=1) | (length[:, 0] == 0))
    if len(wrong):
        raise ValueError(f"{name} {int(wrong[0])} is zero or not finite")
    return np.asarray(array / length)


def _check_points(points: F64, name: str) -> None:
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"{name} points must be (N, 3), got {points.shape}")
    if not np.isfinite(points).all():
        raise ValueError(f"{name} point {int(np.argwhere(~np.isfinite(points))[0, 0])} is not finite")


# -- Task 1: segmentation.


@dataclass(frozen=True, eq=False)
class _Sight:
    """Features at the points of one object: (U,) rows, (U,) counts, and the number of points without any."""

    labels: TieredLabels
    rows: I64
    counts: I64
    missing: int

    @property
    def points(self) -> int:
        return int(self.counts.sum()) + self.missing


def nearest_points(truth_m: F64, predicted_m: F64) -> I64:
    """(N,) row of the predicted point nearest to each true one, -1 where none is within ``REACH_M``."""
    if len(predicted_m) == 0 or len(truth_m) == 0:
        return np.full(len(truth_m), -1, np.int64)
    distance, row = cKDTree(predicted_m).query(truth_m, distance_upper_bound=np.nextafter(REACH_M, np.inf))
    return np.where(np.isfinite(distance), row, -1).astype(np.int64)


def _sights(truth: PointTruth, prediction: PointPrediction) -> list[_Sight]:
    nearest = nearest_points(truth.points_m, prediction.points_m)
    feature = np.where(nearest >= 0, np.append(prediction.feature_of, -1)[nearest], -1)
    found = []
    for labels in truth.scored():
        rows, counts = np.unique(feature[truth.objects == labels.object_id], return_counts=True)
        missing = int(counts[rows < 0].sum())
        found.append(_Sight(labels, rows[rows >= 0], counts[rows >= 0].astype(np.int64), missing))
    return found


def _order(features: F64, prompts: Prompts) -> I64:
    """(U, L) prompts by falling similarity; equal ones by name, so that the order of the list has no effect."""
    names = sorted(range(len(prompts.labels)), key=prompts.labels.__getitem__)
    by_name = np.array(names, np.int64)
    similarity = features @ prompts.features[by_name].T
    return np.asarray(by_name[np.argsort(-np.round(similarity, 9), axis=1, kind="stable")])


def _chunks(sight: _Sight) -> Iterable[tuple[I64, I64]]:
    for first in range(0, len(sight.rows), 4096):
        yield sight.rows[first : first + 4096], sight.counts[first : first + 4096]


def segmentation_metrics(
    scenes: Sequence[tuple[PointTruth, PointPrediction]], prompts: Prompts, top_n: Sequence[int] = TOP_N
) -> dict[str, float]:
    """Flat figures in percent: ``top{N}/<tier>`` and :data:`RANKING`.

    Scenes without scored objects add nothing. Raises ``ValueError`` when none has any, for N outside of 1 .. L, and
    naming a label that the prompts lack.
    """
    wrong = [n for n in top_n if not 1 <= n <= len(prompts.labels)]
    if wrong:
        raise ValueError(f"top-N must be in 1..{len(prompts.labels)}, the number of prompts, got {wrong[0]}")
    _check_widths(scenes, prompts)
    shares: list[F64] = []
    sums = np.zeros((len(RANKING), 2))  # weighted sum, weight
    for truth, prediction in scenes:
        by_id = {o.object_id: o for o in truth.labels}
        for sight in _sights(truth, prediction):
            tiers = _tier_of_prompts(sight.labels, by_id, prompts)
            shares.append(_top_n(sight, prediction.features, prompts, tiers, top_n))
            sums += _ranking(sight, prediction.features, prompts)
    if not shares:
        raise ValueError("no scene has a labelled object with points")
    mean = 100.0 * np.mean(shares, axis=0)  # (len(top_n), tiers)
    figures = {f"top{n}/{tier}": float(mean[i, k]) for i, n in enumerate(top_n) for k, tier in enumerate(TIERS)}
    # without any label of the second set in all the data nothing can be ranked wrongly; where nothing is reached
    # nothing is ranked at all
    nothing = not sums[0, 1]
    for name, (total, weight) in zip(RANKING, sums, strict=True):
        share = float(total / weight) if weight else float(name.startswith("P_") == nothing)
        figures[name] = 100.0 * share
    return figures


def _check_widths(scenes: Sequence[tuple[PointTruth, PointPrediction]], prompts: Prompts) -> None:
    width = prompts.features.shape[1]
    for _, prediction in scenes:
        for features in (prediction.features, prediction.instance_features):
            if len(features) and features.shape[1] != width:
                raise ValueError(f"features have {features.shape[1]} numbers, those of the prompts {width}")


def _tier_of_prompts(labels: TieredLabels, by_id: Mapping[int, TieredLabels], prompts: Prompts) -> I64:
    """(L,) best tier of every prompt."""
    tiers = np.full(len(prompts.labels), _INCORRECT, np.int64)
    clutter = [s for k in labels.clutter for s in by_id[k].labels]
    for tier, words in (
        (_CLUTTER, clutter),
        (_SIMILAR, labels.visually_similar),
        (_DEPICTIONS, labels.depictions),
        (_SYNONYMS, labels.synonyms),
    ):
        tiers[[prompts.row(word) for word in words]] = tier
    return tiers


def _top_n(sight: _Sight, features: F64, prompts: Prompts, tiers: I64, top_n: Sequence[int]) -> F64:
    """(len(top_n), tiers) shares of the object's points."""
    counts = np.zeros((len(top_n), len(TIERS)))
    counts[:, _MISSING] = sight.missing
    for rows, weight in _chunks(sight):
        ranked = tiers[_order(features[rows], prompts)]  # (U, L)
        for i, n in enumerate(top_n):
            np.add.at(counts[i], ranked[:, :n].min(axis=1), weight)
    return counts / sight.points


def set_scores(ranks: I64, low: int, high: int, last: int) -> tuple[F64, F64]:
    """The two terms of s (see the module docstring) for labels on ``ranks`` whose set belongs on ``low`` .. ``high`` of
    0 .. ``last``: for being ranked before the set, and behind it."""
    before = 1.0 - np.maximum(0, low - ranks) / max(low, 1)
    behind = 1.0 - np.maximum(0, ranks - high) / max(last - high, 1)
    return before, behind


def _rows(labels: Sequence[str], prompts: Prompts) -> I64:
    """Sorted distinct rows of labels."""
    return np.array(sorted({prompts.row(label) for label in labels}), np.int64)


def _ranking(sight: _Sight, features: F64, prompts: Prompts) -> F64:
    """(RANKING, 2): sums over the object's matched points, and the number of these points."""
    first = _rows(sight.labels.synonyms, prompts)
    second = _rows((*sight.labels.depictions, *sight.labels.visually_similar), prompts)
    last = len(prompts.labels) - 1
    total = np.zeros(len(RANKING))
    for rows, weight in _chunks(sight):
        order = _order(features[rows], prompts)
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(order.shape[1])[None], axis=1)
        s_before, s_behind = set_scores(rank[:, first], 0, len(first) - 1, last)
        d_before, d_behind = set_scores(rank[:, second], len(first), len(first) + len(second) - 1, last)
        s, d = np.minimum(s_before, s_behind), np.minimum(d_before, d_behind)
        values = [np.concatenate([s, d], axis=1).mean(axis=1), (s == 1).mean(axis=1)]
        if len(second):
            values += [(d == 1).mean(axis=1), (1 - s_behind).mean(axis=1)]
            values += [(1 - d_behind).mean(axis=1), (1 - d_before).mean(axis=1)]
        else:
            nothing = np.zeros(len(rows))
            values += [nothing, (1 - s_behind).mean(axis=1), nothing, nothing]
        total += np.array([float(weight @ v) for v in values])
    seen = int(sight.counts.sum())
    with_second = seen if len(second) else 0
    weights = np.array([seen, seen, with_second, seen, with_second, with_second], float)
    return np.stack([total, weights], axis=1)


# -- Task 2: retrieval.


def retrieval_ap(scenes: Sequence[tuple[PointTruth, PointPrediction]], queries: Prompts) -> dict[str, float]:
    """``AP AP50 AP25`` of the queries of synonyms and, as ``depictions/AP`` (and so on), of those with depictions, in
    percent; kinds without a query have no figures. ``queries`` holds the features of the query texts.

    Raises ``ValueError`` when no scene has a query, or naming one that ``queries`` lacks.
    """
    _check_widths(scenes, queries)
    figures: dict[str, float] = {}
    for kind, prefix in (("synonyms", ""), ("depictions", "depictions/")):
        found: list[tuple[float, int, F64]] = []  # similarity, first true object of its query, IoU with those objects
        wanted = 0
        for truth, prediction in scenes:
            iou, ids = instance_iou(truth, prediction)
            asked: dict[str, list[int]] = {}
            for o in truth.scored():
                for text in o.queries[kind]:
                    asked.setdefault(text, []).append(ids.index(o.object_id))
            for text, objects in asked.items():
                similarity = prediction.instance_features @ queries.features[queries.row(text)]
                there = np.flatnonzero(iou.sum(axis=1) > 0) if len(iou) else np.zeros(0, np.int64)
                best = there[np.argsort(-similarity[there], kind="stable")][:RETRIEVED]
                found += [(float(np.round(similarity[i], 9)), wanted, iou[i, objects]) for i in best]
                wanted += len(objects)
        if wanted:
            ap = {t: 100.0 * _average_precision(found, wanted, t) for t in (0.25, *AP_THRESHOLDS)}
            named = {"AP": float(np.mean([ap[t] for t in AP_THRESHOLDS])), "AP50": ap[0.5], "AP25": ap[0.25]}
            figures |= {prefix + name: value for name, value in named.items()}
    if not figures:
        raise ValueError("no scene has a labelled object with points")
    return figures


def instance_iou(truth: PointTruth, prediction: PointPrediction) -> tuple[F64, list[int]]:
    """(I, O) IoU of predicted point sets with scored objects, and the objects' ids.

    Every true point, of any object, belongs to the set of the predicted point nearest to it, within the reach.
    """
    ids = [o.object_id for o in truth.scored()]
    nearest = nearest_points(truth.points_m, prediction.points_m)
    instance = np.where(nearest >= 0, np.append(prediction.instance_of, -1)[nearest], -1)
    count = len(prediction.instance_features)
    shared = np.zeros((count, len(ids)))
    size = np.bincount(instance[instance >= 0], minlength=count).astype(np.float64)
    for column, object_id in enumerate(ids):
        mine = instance[truth.objects == object_id]
        shared[:, column] = np.bincount(mine[mine >= 0], minlength=count)
    extent = np.array([(truth.objects == object_id).sum() for object_id in ids], np.float64)
    return shared / np.maximum(size[:, None] + extent[None] - shared, 1.0), ids


def _average_precision(found: Sequence[tuple[float, int, F64]], wanted: int, threshold: float) -> float:
    """Area under the curve. Equal similarities are one point of the curve, and the better overlap is matched first, so
    that their order has no effect."""
    ranked = sorted(found, key=lambda f: (-f[0], -float(f[2].max(initial=0.0)), f[1], *(-f[2]).tolist()))
    taken: set[int] = set()
    right = np.zeros(len(ranked))
    for i, (_, first, iou) in enumerate(ranked):
        for k in np.argsort(-iou, kind="stable").tolist():
            if iou[k] > threshold and first + k not in taken:
                taken.add(first + k)
                right[i] = 1.0
                break
    score = np.array([f[0] for f in ranked])
    ends = np.flatnonzero(np.append(np.diff(score) != 0, True)) if len(score) else np.zeros(0, np.int64)
    hits = np.cumsum(right)[ends]
    return average_precision(hits / wanted, hits / (ends + 1))


def openlex3d_metrics(
    scenes: Sequence[tuple[PointTruth, PointPrediction]], prompts: Prompts, queries: Prompts
) -> dict[str, float]:
    """All figures of both tasks."""
    return segmentation_metrics(scenes, prompts) | retrieval_ap(scenes, queries)


def scene_prompts(truths: Iterable[PointTruth]) -> tuple[list[str], list[str]]:
    """All labels of some scenes, and all queries, each once and sorted; these are the data set's own prompts."""
    objects = [o for truth in truths for o in truth.labels]
    queries = {text for o in objects if o.counts for texts in o.queries.values() for text in texts}
    return sorted({label for o in objects for label in o.labels}), sorted(queries)


# -- Files.


def read_labels(path: Path) -> tuple[tuple[TieredLabels, ...], int]:
    """Labels of a scene, in either form of the module docstring, and how many were in more than one tier of an object:
    those are kept in their least specific tier alone.

    Raises ``ValueError`` naming the file, the object and the fault.
    """
    data = read_json(path)
    samples = data["dataset"].get("samples") if isinstance(data, dict) and "dataset" in data else data
    found, twice = [], 0
    for number, sample in enumerate(checked.sequence(samples, f"{path}: the objects")):
        try:
            tiers = _tiers(sample)
            kept = _least_tiers(tiers)
            twice += sum(map(len, tiers[1:4])) - sum(map(len, kept))
            found.append(TieredLabels(tiers[0], *kept, tiers[4]))
        except KeyError as error:
            raise ValueError(f"{path}: entry {number} lacks {error}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: entry {number}: {error}") from error
    return tuple(found), twice


def _tiers(sample: Any) -> tuple[int, tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[int, ...]]:
    checked.mapping(sample, "an object")
    published = "labels" in sample
    words = sample["labels"]["image_attributes"] if published else sample
    similar = words["vis_sim" if published else "visually_similar"]
    texts = []
    for labels in (words["synonyms"], words["depictions"], similar):
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise TypeError(f"labels must be a list of texts, got {labels!r}")
        texts.append(tuple(labels))
    object_id = sample["object_id" if published else "id"]
    return int(object_id), *texts, tuple(int(k) for k in words["clutter"])  # type: ignore[return-value]


def _least_tiers(tiers: tuple[Any, ...]) -> tuple[tuple[str, ...], ...]:
    """Synonyms, depictions and similar labels without those that are also in a less specific tier."""
    less: set[str] = set()
    kept = []
    for labels in reversed(tiers[1:4]):
        kept.append(tuple(label for label in labels if label not in less))
        less |= set(labels)
    return tuple(reversed(kept))


def read_truth(points: Path, labels: tuple[TieredLabels, ...]) -> PointTruth:
    """Points of a scene from an npz. Raises ``ValueError`` naming the file and the fault."""
    arrays = _npz(points, ("points", "objects"))
    return _named(points, lambda: PointTruth(_floats(arrays["points"]), _integers(arrays["objects"]), labels))


def read_prediction(path: Path) -> PointPrediction:
    """Points with features from an npz; the feature of an instance is the mean over its points.

    Raises ``ValueError`` naming the file and the fault.
    """
    arrays = _npz(path, ("points", "features"))

    def build() -> PointPrediction:
        points, features = _floats(arrays["points"]), _floats(arrays["features"])
        given = _integers(arrays["instances"]) if "instances" in arrays else np.full(len(points), -1, np.int64)
        if len(features) != len(points) or given.shape != (len(points),):
            raise ValueError(f"{len(points)} points have {len(features)} features and {len(given)} instances")
        names, rows = np.unique(given, return_inverse=True)
        none = int((names < 0).sum())
        instance = np.where(given >= 0, rows - none, -1).astype(np.int64)
        unit = unit_rows(features, "feature")
        mean = np.zeros((len(names) - none, features.shape[1]))
        np.add.at(mean, instance[instance >= 0], unit[instance >= 0])
        return PointPrediction(points, unit, np.arange(len(points)), instance, mean)

    return _named(path, build)


def read_prompts(path: Path) -> Prompts:
    """Texts with features from an npz. Raises ``ValueError`` naming the file and the fault."""
    arrays = _npz(path, ("labels", "features"))
    return _named(path, lambda: Prompts(tuple(str(w) for w in arrays["labels"]), _floats(arrays["features"])))


def _named(path: Path, build: Callable[[], Built]) -> Built:
    try:
        return build()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _npz(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(f"{path} lacks {missing[0]!r}")
    return arrays


def _floats(values: NDArray[Any]) -> F64:
    return np.asarray(values, np.float64)


def _integers(values: NDArray[Any]) -> I64:
    if values.dtype.kind not in "iu":
        raise ValueError(f"ids must be whole numbers, got {values.dtype}")
    return values.astype(np.int64)


# -- The deployed perceptron.

_TRUTH_CELL_M = 0.05  # one true point per cell and object
_GROW_M = 0.04  # a box takes points this close to it: surfaces are measured with noise
_SAME_PLACE_IOU = 0.3
_POSTERIOR_POWER = 3


@dataclass(frozen=True, eq=False)
class OpenLexResult:
    """One scene: truth, the closed-set export of its map, and the number of labels that were in two tiers."""

    name: str
    truth: PointTruth
    export: ClosedSetExport
    repeated_labels: int


@dataclass(frozen=True, eq=False)
class ClosedSetExport:
    """Points of a map with posteriors over class names."""

    points_m: F64  # (N, 3)
    posterior_of: I64  # (N,) row of ``posteriors``
    instance_of: I64  # (N,) object, 0 .. I - 1; the first I posteriors are theirs. -1 = none
    posteriors: F64  # (F, K) weights of the classes
    classes: tuple[str, ...]  # K names
    objects: int = 0  # I

    def embedded(self, embeddings: Prompts) -> PointPrediction:
        """The points with the posterior mean of the class embeddings as feature."""
        features = self.posteriors @ embeddings.take(self.classes).features
        return PointPrediction(self.points_m, features, self.posterior_of, self.instance_of, features[: self.objects])


def point_truth(scene: SuiteScene, labels: Sequence[Any]) -> PointTruth:
    """Measured points of all instances, one per 5 cm cell and object. In a real scan a point belongs to the smallest
    box that holds it, of the instances that the view shows."""
    points, objects = [], []
    for view, frame in enumerate(scene.scene.frames):
        measured = frame.frame.depth_m > 0
        if scene.instances is not None:
            measured &= scene.instances[view] >= 0
        v, u = np.nonzero(measured)
        here = pixels_to_world(u, v, frame)
        of = _holders(scene.scene, view, here) if scene.instances is None else scene.instances[view][v, u]
        points.append(here[of >= 0])
        objects.append(of[of >= 0])
    all_points, all_objects = np.concatenate(points), np.concatenate(objects)
    cells = np.column_stack([np.floor(all_points / _TRUTH_CELL_M).astype(np.int64), all_objects])
    _, first = np.unique(cells, axis=0, return_index=True)
    return PointTruth(all_points[first], all_objects[first], tuple(labels))


def _holders(scene: EvaluationScene, view: int, points_m: F64) -> I64:
    """(P,) annotation id of the smallest box that holds each of (P, 3) points, -1 = none; of the objects that the view
    shows, without structure."""
    rows = np.array([r for r in scene.visible[view] if scene.labels[r] not in STRUCTURE | UNNAMED], np.int64)
    return np.asarray(np.append(scene.ids[rows], -1)[smallest_holders(points_m, scene.boxes[rows])], np.int64)


def smallest_holders(points_m: F64, boxes: F64, grow_m: float = 0.0) -> I64:
    """(P,) row of the smallest of (N, 9) boxes that holds each of (P, 3) points, -1 = none; a box takes points up to
    ``grow_m`` away."""
    order = np.argsort(boxes[:, 3:6].prod(axis=1), kind="stable")
    grown = boxes[order]
    grown[:, 3:6] += 2 * grow_m
    inside = points_in_boxes(torch.from_numpy(points_m), torch.from_numpy(grown)).numpy()
    first = np.pad(inside, ((0, 0), (0, 1)), constant_values=True).argmax(axis=1)
    return np.append(order, -1)[first]


def closed_set_export(perceptron: Perceptron, perception: Perception) -> ClosedSetExport:
    """Every voxel of the map with the class posterior of the smallest object that holds it, else with the class of its
    labelled cell; voxels with neither are left out."""
    points = perception.voxels.mean_point_m.astype(np.float64)
    objects = perception.objects
    semantic = perception.semantic
    known = () if perceptron.inference is None else perceptron.inference.classes
    classes = tuple(sorted({*semantic.classes, *known, *(o.label for o in objects)}))
    row = {name: k for k, name in enumerate(classes)}
    posteriors = np.zeros((len(objects) + len(semantic.classes), len(classes)))
    seen = perceptron.prediction
    posteriors[: len(objects)] = class_posteriors(objects, None if seen is None else seen.detections, row)
    for k, name in enumerate(semantic.classes):
        posteriors[len(objects) + k, row[name]] = 1.0
    instance = smallest_holders(points, np.array([o.box for o in objects]).reshape(-1, 9), _GROW_M)
    cell = cells_at(points, semantic)
    posterior_of = np.where(instance >= 0, instance, np.where(cell > 0, len(objects) + cell - 1, -1))
    kept = np.flatnonzero(posterior_of >= 0)
    return ClosedSetExport(points[kept], posterior_of[kept], instance[kept], posteriors, classes, len(objects))


def class_posteriors(objects: Sequence[SceneObject], detections: Detections | None, row: Mapping[str, int]) -> F64:
    """(I, K) weights that sum to one: per class the best score of the network's boxes that overlap the object (IoU of
    at least 0.3), for its own label at least the object's score, to the third power. Boxes without a name are ignored.

    The scores are of independent yes-or-no decisions, so their plain mean would be a mixture of all classes; the power
    was chosen on homes outside of the test sets.
    """
    weights = np.zeros((len(objects), len(row)))
    for i, o in enumerate(objects):
        weights[i, row[o.label]] = max(o.score, 1e-3)
    if objects and detections is not None and len(detections):
        named = detections.take(np.flatnonzero([label not in UNNAMED for label in detections.labels]))
        iou = overlaps(np.stack([o.box for o in objects]), named.boxes)[0]
        for i, j in np.argwhere(iou >= _SAME_PLACE_IOU).tolist():
            column = row[named.labels[j]]
            weights[i, column] = max(weights[i, column], named.scores[j])
    weights = weights**_POSTERIOR_POWER
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


@functools.lru_cache(maxsize=1)
def _encoder() -> Any:
    return text_encoder("minilm")


def embed(texts: Sequence[str]) -> Prompts:
    """Texts with MiniLM's sentence features. Raises ``FileNotFoundError`` naming the package that is not installed."""
    parts = [_encoder().encode(texts[k : k + 64]).sentence.numpy() for k in range(0, len(texts), 64)]
    return Prompts(tuple(texts), np.concatenate(parts) if parts else np.zeros((0, _encoder().channels)))


def _evaluate(spec: SuiteSpec, name: str) -> OpenLexResult:
    scene = load_suite_scene(spec, name)
    path = Path(spec.data) / "openlex3d" / f"{name}.json"
    own = path.with_suffix(".npz")
    try:
        labels, repeated = read_labels(path)
        truth = read_truth(own, labels) if own.exists() else point_truth(scene, labels)
    except ValueError as error:
        raise CorruptSceneError(str(error)) from error
    perceptron, perception = perceive_scene(spec, scene.scene)
    return OpenLexResult(name, truth, closed_set_export(perceptron, perception), repeated)


def _score(spec: SuiteSpec, results: Sequence[OpenLexResult]) -> Scored:
    """``top{1,5,10}/<tier>``, set ranking and retrieval of the closed-set export, with MiniLM's text features."""
    labels, queries = scene_prompts(r.truth for r in results)
    classes = embed(sorted({name for r in results for name in r.export.classes}))
    exported = [(r.truth, r.export.embedded(classes)) for r in results]
    figures = openlex3d_metrics(exported, embed(labels), embed(queries))
    notes = {
        "export": "closed-set: text embedding of the class posterior",
        "prompts": len(labels),
        "queries": len(queries),
        "labels_in_two_tiers": sum(r.repeated_labels for r in results),
    }
    return figures, notes


def score_openlex3d_files(spec: SuiteSpec, predictions: Path | None, out: Path) -> Scored:
    """Score the maps in the folder ``predictions``.

    All texts that need a feature (labels and queries) are written to ``out / "prompts.txt"`` first, one per line.
    Raises ``ValueError`` naming what is missing or does not fit.
    """
    if predictions is None:
        raise EvaluationError("--predictions names no folder")
    folder = Path(spec.data) / "openlex3d"
    names = sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.json"))
    names = [n for n in names if (predictions / f"{n}.npz").exists()][: spec.scenes]
    if not names:
        raise EvaluationError(f"{predictions} holds no <scene>.npz of a scene in {folder}")
    truths, repeated = [], 0
    for name in names:
        own = folder / f"{name}.npz"
        labels, twice = read_labels(folder / f"{name}.json")
        repeated += twice
        truths.append(read_truth(own, labels) if own.exists() else point_truth(load_suite_scene(spec, name), labels))
    labels_asked, queries = scene_prompts(truths)
    needed = sorted({*queries, *labels_asked})
    write_atomically(out / "prompts.txt", ("\n".join(needed) + "\n").encode())
    prompts = read_prompts(predictions / "prompts.npz")
    maps = [read_prediction(predictions / f"{name}.npz") for name in names]
    figures = openlex3d_metrics(list(zip(truths, maps, strict=True)), prompts.take(labels_asked), prompts.take(queries))
    notes: dict[str, Any] = {"data": f"{len(names)} scenes", "predictions": predictions.name}
    return figures, notes | {"prompts": len(labels_asked), "labels_in_two_tiers": repeated}


def write_openlex3d(spec: SuiteSpec, run: SuiteRun[OpenLexResult], out: Path) -> None:
    """Write ``scenes.json``: the numbers of points and objects of each scene."""
    counts = {r.name: {"points": len(r.truth.points_m), "objects": len(r.truth.scored())} for r in run.results}
    write_json(out / "scenes.json", counts)


SUITE = Suite(_evaluate, _score, write_openlex3d)
