"""Share of sentences whose object was found.

``top1_acc25``: the best box overlaps the object with IoU > 0.25. ``top10_acc25``: one of the ten best does; the
released EmbodiedScan code prints this as "AP" of grounding. A robot acts on one answer, so top 1 is the relevant
figure. ``ranked_AP25``: average precision of the ten best boxes of a sentence, counted as detections are
(:mod:`.detection`); the mean over sentences. With one object it is one over the rank of the box that finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron_training.evaluation.metrics.detection import average_precision

THRESHOLDS = (0.25, 0.5)
RANKS = (1, 10)


@dataclass(frozen=True, eq=False)
class GroundingQuery:
    """One sentence."""

    predicted: F64  # (N, 9) boxes, best first; empty = a miss
    truth: F64  # (G, 9) boxes of all objects that the sentence may mean; finding one is enough
    flags: dict[str, bool]  # ``hard``, ``view_dependent``, ``unique``, reported with their opposites where given


OPPOSITES = {"hard": "easy", "view_dependent": "view_independent", "unique": "multiple"}


def grounding_metrics(queries: Sequence[GroundingQuery]) -> dict[str, float]:
    """Flat figures in percent: ``top1_acc25 top1_acc50 top10_acc25 top10_acc50 ranked_AP25 ranked_AP50`` and
    ``<figure>/<property>``.

    Raises ``ValueError`` naming the number of a query that does not fit, and when there is none.
    """
    if not queries:
        raise ValueError("no queries")
    overlaps = [_overlaps(i, q) for i, q in enumerate(queries)]
    best = np.array([[iou[:rank].max(initial=0.0) for rank in RANKS] for iou in overlaps])  # (queries, ranks)
    members: dict[str, list[bool]] = {}
    for flag, opposite in OPPOSITES.items():
        if any(flag in q.flags for q in queries):
            members[opposite] = [not q.flags.get(flag, True) for q in queries]
            members[flag] = [q.flags.get(flag, False) for q in queries]
    values = {
        f"top{rank}_acc{_percent(threshold)}": best[:, column] > threshold
        for column, rank in enumerate(RANKS)
        for threshold in THRESHOLDS
    }
    for threshold in THRESHOLDS:
        values[f"ranked_AP{_percent(threshold)}"] = np.array([_ranked_precision(iou, threshold) for iou in overlaps])
    result: dict[str, float] = {}
    for name, of_queries in values.items():
        result[name] = 100 * float(of_queries.mean())
        for group, mask in members.items():
            if any(mask):
                result[f"{name}/{group}"] = 100 * float(of_queries[np.array(mask)].mean())
    return result


def _percent(threshold: float) -> str:
    return f"{round(threshold * 100):02d}"


def _ranked_precision(iou: F64, threshold: float) -> float:
    """(boxes, objects) overlaps, best box first -> average precision: a box is matched with the object that it overlaps
    most, and right when it is the first match of that object."""
    found: set[int] = set()
    right = []
    for row in iou:
        nearest = int(row.argmax())
        right.append(row[nearest] > threshold and nearest not in found)
        if right[-1]:
            found.add(nearest)
    hits = np.cumsum(right)
    return average_precision(hits / iou.shape[1], hits / np.arange(1, len(hits) + 1))


def _overlaps(number: int, query: GroundingQuery) -> F64:
    """(at most 10, objects) IoU of the best boxes with the objects."""
    try:
        predicted = _boxes(query.predicted)[: max(RANKS)]
        iou: F64 = bx.box_iou(predicted, _boxes(query.truth)).numpy()
    except ValueError as error:
        raise ValueError(f"query {number}: {error}") from error
    if iou.shape[1] == 0:
        raise ValueError(f"query {number}: no ground-truth box")
    return iou


def _boxes(values: F64) -> torch.Tensor:
    array = np.asarray(values, dtype=np.float64)
    return torch.from_numpy(array.reshape(-1, 9) if array.size == 0 or array.ndim == 1 else array)
