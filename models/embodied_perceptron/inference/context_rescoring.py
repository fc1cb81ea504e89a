"""A name is likelier among things that it is seen with, and in its own form: a table by a couch, a counter by a stove.

A network sees a thing and little around it. What else is likely there, and how near, tells names apart that a shape
alone does not; so do other names that were found in the same place, and how large and how high things of a name are in
the map. Context is attention of few dimensions between names: every name has a query, and what is evidence for it has
values, of which the query takes what concerns it:

    z = scale * log_odds(p) + offset[name] + <query[name], context>
    context = sum over relations r and names k of value[r, k] * p_max(r, k) + sum over f of own_value[f] * own[f]

``p_max(r, k)`` is the best probability of a box named k that is within one of :data:`GAPS_M` on the ground, has its
middle within :data:`NEAR_M`, or overlaps (:data:`~embodied_perceptron.geometry.suppression.CONFLICT_IOU`; such a box is
in no other relation). ``own`` are standardised numbers of the box itself (:data:`FORM`), and the squares and products
of those that say how large and how high it is. Few numbers a name share what they learn: with one weight for each pair
of names, or two layers of attention, the homes of the fit are learned instead of homes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.suppression import OverlappingDetections

GAPS_M = (0.1, 0.6, 2.0)  # between what two boxes cover of the ground
NEAR_M = 0.8  # between the middles of two boxes
RELATIONS = (*(f"within {gap_m} m" for gap_m in GAPS_M), f"middle within {NEAR_M} m", "same place")
# logarithms of the edges in metres (vertical, longer and shorter horizontal one), ends above the floor in metres, and
# two features of :mod:`.confidence_calibration`
FORM = ("tall", "long", "short", "bottom", "top", "surface", "closed")
MIN_EVIDENCE = 0.05  # probability of a box that is evidence for others
_PRODUCTS = np.triu_indices(FORM.index("top") + 1)  # of the first five, squares among them
OWN_NUMBERS = len(FORM) + len(_PRODUCTS[0])
_FARTHEST = 3.0  # standard deviations
# field of a model -> its key in weights files, which keep the names that the first of them had
_STORED = {
    "query": "reads",
    "value": "tells",
    "own_value": "forms",
    "form_mean": "form_mean",
    "form_scale": "form_scale",
    "offset": "offset",
}

F64 = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ContextRescoring:
    """How likely names are beside each other; K of them.

    Attributes:
        names: K distinct ones; a box of another name is no evidence, and gets ``scale`` alone.
        query: (K, D).
        value: (R, K, D), one per relation of :data:`RELATIONS`.
        own_value: (F, D), one per number of :func:`own_numbers`.
        form_mean, form_scale: (7,) of :data:`FORM` among all boxes.
        offset: (K,) log-odds.
        scale: of the log-odds that came.

    Raises ``ValueError`` naming what does not fit together.
    """

    names: tuple[str, ...]
    query: F64
    value: F64
    own_value: F64
    form_mean: F64
    form_scale: F64
    offset: F64
    scale: float = 1.0

    def __post_init__(self) -> None:
        count, shape = len(self.names), self.query.shape
        if len(set(self.names)) != count:
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise ValueError(f"names of context rescoring are distinct, got {', '.join(twice)} twice")
        if len(shape) != 2 or shape[0] != count or self.value.shape != (len(RELATIONS), *shape):
            raise ValueError(
                f"{count} names need a ({count}, D) query and a ({len(RELATIONS)}, {count}, D) value, got {shape} and "
                f"{self.value.shape}"
            )
        if self.own_value.shape != (OWN_NUMBERS, shape[1]):
            raise ValueError(f"own values are ({OWN_NUMBERS}, {shape[1]}), got {self.own_value.shape}")
        if self.form_mean.shape != (len(FORM),) or self.form_scale.shape != (len(FORM),):
            raise ValueError(
                f"{len(FORM)} numbers of a form have as many means and scales, got {self.form_mean.shape} and "
                f"{self.form_scale.shape}"
            )
        if self.offset.shape != (count,):
            raise ValueError(f"{count} names have {count} offsets, got {self.offset.shape}")
        numbers = (getattr(self, name) for name in _STORED)
        if not all(np.isfinite(v).all() for v in numbers) or not (self.scale > 0 and (self.form_scale > 0).all()):
            raise ValueError("tables of context rescoring are finite, and its scales above 0")

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def rows(self, labels: Sequence[str]) -> Rows:
        """(N,) which of ``names`` each label is; -1 where none."""
        return np.array([self._index.get(label, -1) for label in labels], np.int64)

    def __call__(
        self, boxes: F64, labels: Sequence[str], odds: F64, overlapping: OverlappingDetections, form: F64
    ) -> F64:
        """(N,) log-odds that a box's name and place are right, with what stands around it.

        Args:
            boxes: (N, 9).
            labels: N names.
            odds: (N,) the same log-odds before.
            overlapping: those of ``boxes``; what counts there may be evidence.
            form: (N, 7) :data:`FORM` of each.
        """
        label = self.rows(labels)
        known = label >= 0
        z = self.scale * odds
        z[known] += self.offset[label[known]]
        present, evidence = context_evidence(boxes, label, odds, overlapping)
        around = np.tensordot(evidence, self.value[:, present].astype(np.float32), axes=((0, 1), (0, 1)))  # (N, D)
        context = around[known] + own_numbers(form[known], self.form_mean, self.form_scale) @ self.own_value
        z[known] += (context * self.query[label[known]]).sum(axis=1)
        return z

    def as_dict(self) -> dict[str, Any]:
        """For a weights file, of JSON's types."""
        return {
            "relations": list(RELATIONS),
            "form": list(FORM),
            "names": list(self.names),
            **{key: getattr(self, name).round(3).tolist() for name, key in _STORED.items()},
            "scale": round(self.scale, 4),
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> ContextRescoring:
        """Inverse of :meth:`as_dict`. Raises ``ValueError`` for other relations, or what is no such model."""
        try:
            relations, form = (tuple(map(str, values.get(key, ()))) for key in ("relations", "form"))
            names = tuple(str(name) for name in values["names"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no model of context rescoring: {error!r}") from error
        if relations != RELATIONS or form != FORM:
            raise ValueError(
                "context rescoring was fitted by another version (relations "
                f"{', '.join(relations) or 'none'}; form {', '.join(form) or 'none'}): fit it again, by evaluate "
                "calibrate-scores"
            )
        try:
            tables = {name: np.asarray(values[key], np.float64) for name, key in _STORED.items()}
            scale = float(values["scale"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no model of context rescoring: {error!r}") from error
        return cls(names, **tables, scale=scale)


def own_numbers(form: F64, mean: F64, scale: F64) -> F64:
    """(N, 7) :data:`FORM` -> (N, F) standardised, with squares and products of the numbers of size and height."""
    own = np.clip((form - mean) / scale, -_FARTHEST, _FARTHEST)
    i, j = _PRODUCTS
    return np.concatenate([own, own[:, i] * own[:, j] - (i == j)], axis=1)


def context_evidence(
    boxes: F64, label: Rows, odds: F64, overlapping: OverlappingDetections
) -> tuple[Rows, NDArray[np.float32]]:
    """The names that there is evidence of, (P,) ascending, and (R, P, N) the best probability of each in each relation
    to each box.

    Args:
        boxes: (N, 9).
        label: (N,) number of the name; -1 is no evidence and needs none.
        odds: (N,) log-odds.
        overlapping: those of ``boxes``; what counts there may be evidence.
    """
    probability = scipy.special.expit(odds)
    counted = overlapping.counted
    sources = counted[(probability[counted] >= MIN_EVIDENCE) & (label[counted] >= 0)]
    sources = sources[np.argsort(label[sources], kind="stable")]
    present, first = np.unique(label[sources], return_index=True)
    evidence = np.zeros((len(RELATIONS), len(present), len(boxes)), np.float32)
    if len(sources) == 0:
        return present, evidence
    row = np.full(len(boxes), -1)
    row[sources] = np.arange(len(sources))
    is_source = row[overlapping.by] >= 0
    same = np.zeros((len(sources), len(boxes)), bool)
    same[row[overlapping.by[is_source]], overlapping.of[is_source]] = True
    other = ~same
    other[np.arange(len(sources)), sources] = False
    gaps_m = _gaps_m(boxes, sources, probability[sources])
    near = scipy.spatial.distance.cdist(boxes[sources, :3], boxes[:, :3], "sqeuclidean") < NEAR_M**2
    weight = probability[sources, None].astype(np.float32)
    for r, holds in enumerate([*(other & (gaps_m < gap_m) for gap_m in GAPS_M), other & near, same]):
        evidence[r] = np.maximum.reduceat(weight * holds, first, axis=0)
    return present, evidence


def _gaps_m(boxes: F64, sources: Rows, weight: F64) -> F64:
    """(S, N) how far the boxes ``sources`` and all others are apart on the ground, metres: between their bounds along
    the direction in which most of the sources stand, so that turning the room changes nothing."""
    direction = 0.25 * np.angle((weight * np.exp(4j * boxes[sources, 6])).sum())  # the same every 90 degrees
    c, s = np.cos(direction), np.sin(direction)
    bounds = Bounds.of(boxes, np.array([[c, s], [-s, c]]))
    low, high = bounds.low[:, :2], bounds.high[:, :2]
    apart = np.maximum(low[sources, None] - high, low - high[sources, None])  # (S, N, 2)
    gaps_m: F64 = np.hypot(*np.moveaxis(np.maximum(apart, 0.0), -1, 0))
    return gaps_m
