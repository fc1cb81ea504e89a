"""Share of sentences whose object was found.

``top1_acc25``: the best box overlaps the object with IoU > 0.25. ``top10_acc25``: one of the ten best does; this is
what the released EmbodiedScan code prints as "AP" of grounding. A robot acts on one answer: read the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry import boxes as bx

THRESHOLDS = (0.25, 0.5)
RANKS = (1, 10)


@dataclass(frozen=True, eq=False)
class GroundingQuery:
    """One sentence.

    Attributes:
        predicted: (N, 9) boxes, best first; may be empty (nothing found: a miss).
        truth: (G, 9) boxes of the object, or of all objects that the sentence may mean: finding one is enough.
        flags: properties to report separately, each with its opposite: ``hard``/``easy``,
            ``view_dependent``/``view_independent``, ``unique``/``multiple``. Absent ones are not reported.
    """

    predicted: NDArray[np.float64]
    truth: NDArray[np.float64]
    flags: dict[str, bool]


OPPOSITES = {"hard": "easy", "view_dependent": "view_independent", "unique": "multiple"}


def grounding_metrics(queries: Sequence[GroundingQuery]) -> dict[str, float]:
    """Flat figures in percent: ``top1_acc25 top1_acc50 top10_acc25 top10_acc50`` and ``<figure>/<property>``.

    Raises ``ValueError`` naming the query (by number) that does not fit, and when there is none.
    """
    if not queries:
        raise ValueError("no queries")
    best = np.stack([_best_iou(i, q) for i, q in enumerate(queries)])  # (queries, ranks)
    members: dict[str, list[bool]] = {}
    for flag, opposite in OPPOSITES.items():
        if any(flag in q.flags for q in queries):
            members[opposite] = [not q.flags.get(flag, True) for q in queries]
            members[flag] = [q.flags.get(flag, False) for q in queries]
    result: dict[str, float] = {}
    for column, rank in enumerate(RANKS):
        for threshold in THRESHOLDS:
            hits = best[:, column] > threshold
            name = f"top{rank}_acc{round(threshold * 100):02d}"
            result[name] = 100 * float(hits.mean())
            for group, mask in members.items():
                if any(mask):
                    result[f"{name}/{group}"] = 100 * float(hits[np.array(mask)].mean())
    return result


def _best_iou(number: int, query: GroundingQuery) -> NDArray[np.float64]:
    """(ranks,) best IoU of the object(s) with the first 1 and the first 10 boxes."""
    try:
        predicted = _boxes(query.predicted)[: max(RANKS)]
        iou = bx.box_iou(predicted, _boxes(query.truth)).numpy()
    except ValueError as error:
        raise ValueError(f"query {number}: {error}") from error
    if iou.shape[1] == 0:
        raise ValueError(f"query {number}: no ground-truth box")
    per_box = iou.max(axis=1)
    return np.array([per_box[:rank].max(initial=0.0) for rank in RANKS])


def _boxes(values: NDArray[np.float64]) -> torch.Tensor:
    array = np.asarray(values, dtype=np.float64)
    return torch.from_numpy(array.reshape(-1, 9) if array.size == 0 or array.ndim == 1 else array)
