"""Average precision and recall of 9-DoF boxes, as EmbodiedScan counts them.

Detections of a class are ranked by score over all scenes (of equal scores the earlier scene, then the lower index).
Each one is compared with the ground-truth box of its class and scene that it overlaps most; it is right when that IoU
is strictly greater than the threshold and the box was not found before, wrong otherwise. AP is the area under the
precision-recall curve after precision is made monotone. AR is the recall of all detections. A class without ground
truth does not count; one that is never predicted counts 0. Means are over classes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.weights.categories import COMMON_CLASSES, DETECTION_CLASSES, HEAD_CLASSES, TAIL_CLASSES

# by the largest side in metres, [low, high); "furniture" is everything that is not small
SIZE_RANGES_M: dict[str, tuple[float, float]] = {
    "small": (0.0, 0.5),
    "medium": (0.5, 1.0),
    "large": (1.0, np.inf),
    "furniture": (0.5, np.inf),
}
FREQUENCY_GROUPS: Mapping[str, frozenset[str]] = {
    name: frozenset(DETECTION_CLASSES[i] for i in rows)
    for name, rows in (("head", HEAD_CLASSES), ("common", COMMON_CLASSES), ("tail", TAIL_CLASSES))
}
THRESHOLDS = (0.25, 0.5)
MATCH_IOU = 0.25  # least overlap of two boxes of one name and one object

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SceneBoxes:
    """Boxes of one scene: (N, 9) float, (N,) integer labels; predictions also have (N,) scores, ground truth optionally
    (N,) flags of held-out shape families.

    Raises ``ValueError`` naming what does not fit.
    """

    boxes: F64
    labels: NDArray[np.int64]
    scores: F64 | None = None
    held_out: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        boxes = np.asarray(self.boxes, dtype=np.float64).reshape(-1, 9) if np.size(self.boxes) == 0 else self.boxes
        object.__setattr__(self, "boxes", np.asarray(boxes, dtype=np.float64))
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64).reshape(-1))
        bx.check_boxes(torch.from_numpy(self.boxes))
        if len(self.labels) != len(self.boxes):
            raise ValueError(f"{len(self.boxes)} boxes have {len(self.labels)} labels")
        if self.scores is not None:
            object.__setattr__(self, "scores", np.asarray(self.scores, dtype=np.float64).reshape(-1))
            if len(self.scores) != len(self.boxes):
                raise ValueError(f"{len(self.boxes)} boxes have {len(self.scores)} scores")
            if not np.isfinite(self.scores).all():
                raise ValueError(f"score {int(np.flatnonzero(~np.isfinite(self.scores))[0])} is not finite")
        if self.held_out is not None and self.held_out.shape != self.labels.shape:
            raise ValueError(f"{len(self.boxes)} boxes have {len(self.held_out)} flags of held-out families")

    def take(self, rows: NDArray[np.int64] | BoolArray) -> SceneBoxes:
        """Boxes by indices or mask."""
        scores, held_out = (None if v is None else v[rows] for v in (self.scores, self.held_out))
        return SceneBoxes(self.boxes[rows], self.labels[rows], scores, held_out)


@dataclass(frozen=True, eq=False)
class _Ranked:
    """One class's detections over all scenes, best first, each with its best ground-truth box (-1 = none)."""

    iou: F64
    matched: NDArray[np.int64]  # index into the class's ground truth over all scenes
    largest_side: F64  # of the detection
    gt_largest_side: F64  # of the ground truth
    gt_held_out: BoolArray  # of the ground truth; where the data do not tell, false


def average_precision(recall: F64, precision: F64) -> float:
    """Area under the curve; precision at a recall is the best one at this recall or beyond."""
    r = np.concatenate([[0.0], recall, [1.0]])
    p = np.concatenate([[0.0], precision, [0.0]])
    p = np.maximum.accumulate(p[::-1])[::-1]
    return float(np.sum(np.diff(r) * p[1:]))


def _rank(predictions: Sequence[SceneBoxes], truth: Sequence[SceneBoxes], label: int) -> _Ranked:
    scores, iou, matched, sides, gt_sides, held_out = [], [], [], [], [], []
    offset = 0
    for scene, gt in zip(predictions, truth, strict=True):
        mine, theirs = scene.boxes[scene.labels == label], gt.boxes[gt.labels == label]
        gt_sides.append(theirs[:, 3:6].max(axis=1, initial=0.0))
        held_out.append(np.zeros(len(theirs)) if gt.held_out is None else gt.held_out[gt.labels == label].astype(float))
        if len(mine):
            assert scene.scores is not None
            scores.append(scene.scores[scene.labels == label])
            sides.append(mine[:, 3:6].max(axis=1))
            if len(theirs):
                overlap = bx.box_iou(torch.from_numpy(mine), torch.from_numpy(theirs)).numpy()
                iou.append(overlap.max(axis=1))
                matched.append(overlap.argmax(axis=1) + offset)
            else:
                iou.append(np.zeros(len(mine)))
                matched.append(np.full(len(mine), -1))
        offset += len(theirs)
    order = np.argsort(-_cat(scores), kind="stable")
    return _Ranked(
        _cat(iou)[order], _cat(matched)[order].astype(np.int64), _cat(sides)[order], _cat(gt_sides), _cat(held_out) > 0
    )


def _cat(parts: Sequence[F64]) -> F64:
    return np.concatenate(parts) if parts else np.zeros(0)


def _score(
    ranked: _Ranked, threshold: float, size_range: tuple[float, float] | None, held_out: bool | None = None
) -> tuple[float, float] | None:
    """(AP, recall), or None without ground truth. Outside of ``size_range`` ground truth, detections that find it, and
    detections of that size that find nothing neither help nor harm. With ``held_out``, ground truth of the other
    families and what finds it neither; what finds nothing is wrong in both."""
    counted_gt = np.ones(len(ranked.gt_largest_side), dtype=bool)
    counted = np.ones(len(ranked.iou), dtype=bool)
    hit = ranked.iou > threshold
    if size_range is not None:
        low, high = size_range
        counted_gt = (ranked.gt_largest_side >= low) & (ranked.gt_largest_side < high)
        own = (ranked.largest_side >= low) & (ranked.largest_side < high)
        counted = own.copy()
        counted[hit] = counted_gt[ranked.matched[hit]]
    if held_out is not None:
        counted_gt &= ranked.gt_held_out == held_out
        counted[hit] &= counted_gt[ranked.matched[hit]]
    total = int(counted_gt.sum())
    if total == 0:
        return None
    first = np.zeros(len(hit), dtype=bool)  # of several detections of one box the best
    hits = np.flatnonzero(hit)
    first[hits[np.unique(ranked.matched[hits], return_index=True)[1]]] = True
    right = np.cumsum(first[counted])
    tried = np.arange(1, len(right) + 1)
    recall = right / total
    return average_precision(recall, right / tried), float(recall[-1]) if len(recall) else 0.0


def detection_metrics(
    predictions: Mapping[str, SceneBoxes],
    truth: Mapping[str, SceneBoxes],
    classes: Sequence[str],
    groups: Mapping[str, Collection[str]] | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> dict[str, float]:
    """Flat figures in percent.

    Args:
        predictions, truth: by scene id; both must name the same scenes.
        classes: names of the labels.
        groups: named sets of classes (head, common, tail).

    Returns ``AP25 AR25 AP50 AR50``; ``AP25_<group>`` for the groups and sizes (:data:`SIZE_RANGES_M`) that have ground
    truth; ``AP25_seen AP25_unseen`` and ``AP25_furniture_seen AP25_furniture_unseen`` where held-out families are
    flagged; ``AP25/<class>``; ``AR25/<class>``; and so on for each threshold.

    Raises ``ValueError`` when scenes differ, a label is no class, a prediction has no scores, a group names an unknown
    class, or there is no ground truth at all.
    """
    scenes = _check(predictions, truth, classes, groups or {})
    mine, theirs = [predictions[s] for s in scenes], [truth[s] for s in scenes]
    present = sorted({int(label) for scene in theirs for label in scene.labels})
    if not present:
        raise ValueError("the ground truth of all scenes is empty")
    ranked = {label: _rank(mine, theirs, label) for label in present}
    result: dict[str, float] = {}
    per_class: dict[str, float] = {}
    for threshold in thresholds:
        suffix = f"{round(threshold * 100):02d}"
        figures = {label: _score(r, threshold, None) for label, r in ranked.items()}
        known = {label: f for label, f in figures.items() if f is not None}
        _mean_into(result, suffix, "", list(known.values()))
        for label, (ap, ar) in known.items():
            per_class[f"AP{suffix}/{classes[label]}"] = 100 * ap
            per_class[f"AR{suffix}/{classes[label]}"] = 100 * ar
        for name, members in (groups or {}).items():
            inside = set(members)
            _mean_into(result, suffix, f"_{name}", [f for label, f in known.items() if classes[label] in inside])
        for name, size_range in SIZE_RANGES_M.items():
            sized = [_score(r, threshold, size_range) for r in ranked.values()]
            _mean_into(result, suffix, f"_{name}", [f for f in sized if f is not None])
        if any(gt.held_out is not None for gt in theirs):
            for held_out, name in ((False, "seen"), (True, "unseen")):
                for size, size_range in (("", None), ("_furniture", SIZE_RANGES_M["furniture"])):
                    kept = [_score(r, threshold, size_range, held_out) for r in ranked.values()]
                    _mean_into(result, suffix, f"{size}_{name}", [f for f in kept if f is not None])
    return {**result, **per_class}


def _mean_into(result: dict[str, float], suffix: str, name: str, figures: Sequence[tuple[float, float]]) -> None:
    if figures:
        result[f"AP{suffix}{name}"] = 100 * float(np.mean([ap for ap, _ in figures]))
        result[f"AR{suffix}{name}"] = 100 * float(np.mean([ar for _, ar in figures]))


def _check(
    predictions: Mapping[str, SceneBoxes],
    truth: Mapping[str, SceneBoxes],
    classes: Sequence[str],
    groups: Mapping[str, Collection[str]],
) -> list[str]:
    missing, unknown = set(truth) - set(predictions), set(predictions) - set(truth)
    if missing:
        raise ValueError(f"no predictions for {len(missing)} scene(s), first {min(missing)!r}")
    if unknown:
        raise ValueError(f"predictions for {len(unknown)} scene(s) without ground truth, first {min(unknown)!r}")
    for kind, scenes in (("predicted", predictions), ("ground-truth", truth)):
        for name, scene in scenes.items():
            wrong = scene.labels[(scene.labels < 0) | (scene.labels >= len(classes))]
            if len(wrong):
                raise ValueError(f"scene {name!r}: {kind} label {int(wrong[0])} is not one of {len(classes)} classes")
            if kind == "predicted" and scene.scores is None:
                raise ValueError(f"scene {name!r}: predictions have no scores")
    for group, members in groups.items():
        unknown = set(members) - set(classes)
        if unknown:
            raise ValueError(f"group {group!r} names {min(unknown)!r}, which is not a class")
    return sorted(truth)


def match_by_name(
    boxes: F64,
    labels: Sequence[str] | NDArray[np.int64],
    scores: F64,
    true_boxes: F64,
    true_labels: Sequence[str] | NDArray[np.int64],
) -> dict[int, int]:
    """Rows of (N, 9) boxes -> rows of (M, 9) true boxes of the same name or number: best scores first, each matches the
    unmatched one that it overlaps most, from IoU 0.25."""
    iou = bx.box_iou(torch.from_numpy(boxes), torch.from_numpy(true_boxes)).numpy()
    names, free = np.asarray(true_labels), np.ones(len(true_boxes), dtype=bool)
    found: dict[int, int] = {}
    for row in np.argsort(-scores, kind="stable").tolist():
        on = np.flatnonzero(free & (names == labels[row]) & (iou[row] >= MATCH_IOU))
        if len(on):
            found[row] = int(on[np.argmax(iou[row, on])])
            free[found[row]] = False
    return found
