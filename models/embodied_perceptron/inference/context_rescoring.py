"""A name is likelier among things that it is seen with, and in its own form: a table by a couch, a counter by a stove.

A network looks at a thing and at little around it. What else is likely there, and how near, tells names apart that a
shape alone does not; so does what else is said of the same place, and how large and how high things of a name are in
the map. Each name reads the likeliest box of every other name in each of :data:`RELATIONS`, and the numbers of
:data:`FORM` of its own box, and what it reads changes the log-odds of its own probability:

    z = scale * log_odds(p) + offset[name] + <reads[name], told>
    told = sum over relations r and names k of tells[r, k] * p_max(r, k) + sum over f of forms[f] * own[f]

``p_max(r, k)`` is the best probability of a box named k that is within one of :data:`GAPS_M` on the ground, has its
middle within :data:`NEAR_M`, or claims the same place (IoU of more than 0.25; such a box is in no other relation).
``own`` are standardised numbers of the box itself, and the squares and products of those that say how large and how
high it is. Few numbers a name (the rows of ``reads`` and ``tells``) share what they learn: with one weight for each
pair of names, or two layers of attention, the homes of the fit are learned instead of homes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import expit

from embodied_perceptron.geometry.boxes import Bounds, paired_iou

GAPS_M = (0.1, 0.6, 2.0)  # between what two boxes cover of the ground
NEAR_M = 0.8  # between the middles of two boxes
RELATIONS = (*(f"within {gap_m} m" for gap_m in GAPS_M), f"middle within {NEAR_M} m", "same place")
# logarithms of the edges in metres (vertical, longer and shorter horizontal one), ends above the floor in metres, and
# two features of :mod:`.reliability`
FORM = ("tall", "long", "short", "bottom", "top", "surface", "closed")
LEAST_WITNESS = 0.05  # probability of a box that speaks for others
SAME_PLACE_IOU = 0.25
_PRODUCTS = np.triu_indices(FORM.index("top") + 1)  # of the first five, squares among them
OWN_NUMBERS = len(FORM) + len(_PRODUCTS[0])
_FARTHEST = 3.0  # standard deviations
_TABLES = ("reads", "tells", "forms", "form_mean", "form_scale", "offset")  # of a model, as in its file

F64 = NDArray[np.float64]
Rows = NDArray[np.int64]


class Rivals(NamedTuple):
    """Boxes that claim the same place: of ``seen`` rows, those that count at all, row ``by[p]`` claims that of another,
    ``of[p]``, which need not count itself."""

    seen: Rows
    of: Rows
    by: Rows


@dataclass(frozen=True, eq=False)
class ContextRescoring:
    """What names say of each other; K of them.

    Attributes:
        names: K distinct ones; a box of another name neither reads nor tells, and gets ``scale`` alone.
        reads: (K, D).
        tells: (R, K, D), one per relation of :data:`RELATIONS`.
        forms: (F, D), one per number of :func:`own_numbers`.
        form_mean, form_scale: (7,) of :data:`FORM` among all boxes.
        offset: (K,) log-odds.
        scale: of the log-odds that came.

    Raises ``ValueError`` naming what does not fit together.
    """

    names: tuple[str, ...]
    reads: F64
    tells: F64
    forms: F64
    form_mean: F64
    form_scale: F64
    offset: F64
    scale: float = 1.0

    def __post_init__(self) -> None:
        count, shape = len(self.names), self.reads.shape
        if len(set(self.names)) != count:
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise ValueError(f"names that keep company are told once each, got {', '.join(twice)} twice")
        if len(shape) != 2 or shape[0] != count or self.tells.shape != (len(RELATIONS), *shape):
            raise ValueError(
                f"{count} names need ({count}, D) reads and ({len(RELATIONS)}, {count}, D) tells, got {shape} and "
                f"{self.tells.shape}"
            )
        if self.forms.shape != (OWN_NUMBERS, shape[1]):
            raise ValueError(f"forms are ({OWN_NUMBERS}, {shape[1]}), got {self.forms.shape}")
        if self.form_mean.shape != (len(FORM),) or self.form_scale.shape != (len(FORM),):
            raise ValueError(
                f"{len(FORM)} numbers of a form have as many means and scales, got {self.form_mean.shape} and "
                f"{self.form_scale.shape}"
            )
        if self.offset.shape != (count,):
            raise ValueError(f"{count} names have {count} offsets, got {self.offset.shape}")
        numbers = (getattr(self, key) for key in _TABLES)
        if not all(np.isfinite(v).all() for v in numbers) or not (self.scale > 0 and (self.form_scale > 0).all()):
            raise ValueError("what names say of each other is finite, and its scales above 0")

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def rows(self, labels: Sequence[str]) -> Rows:
        """(N,) which of ``names`` each label is; -1 where none."""
        return np.array([self._index.get(label, -1) for label in labels], np.int64)

    def __call__(self, boxes: F64, labels: Sequence[str], odds: F64, rivals: Rivals, form: F64) -> F64:
        """(N,) log-odds that a box's name and place are right, with what stands around it.

        Args:
            boxes: (N, 9).
            labels: N names.
            odds: (N,) the same log-odds before.
            rivals: those of ``boxes``; what counts there may speak.
            form: (N, 7) :data:`FORM` of each.
        """
        label = self.rows(labels)
        known = label >= 0
        z = self.scale * odds
        z[known] += self.offset[label[known]]
        present, likeliest = company(boxes, label, odds, rivals)
        heard = np.tensordot(likeliest, self.tells[:, present].astype(np.float32), axes=((0, 1), (0, 1)))
        told = heard[known] + own_numbers(form[known], self.form_mean, self.form_scale) @ self.forms
        z[known] += (told * self.reads[label[known]]).sum(axis=1)
        return z

    def as_dict(self) -> dict[str, Any]:
        """For a weights file, of JSON's types."""
        return {
            "relations": list(RELATIONS),
            "form": list(FORM),
            "names": list(self.names),
            **{key: getattr(self, key).round(3).tolist() for key in _TABLES},
            "scale": round(self.scale, 4),
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> ContextRescoring:
        """Inverse of :meth:`as_dict`. Raises ``ValueError`` for other relations, or what is no such model."""
        try:
            relations, form = (tuple(map(str, values.get(key, ()))) for key in ("relations", "form"))
            names = tuple(str(name) for name in values["names"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no model of what names say of each other: {error!r}") from error
        if relations != RELATIONS or form != FORM:
            raise ValueError(
                "what names say of each other was fitted by another version (relations "
                f"{', '.join(relations) or 'none'}; form {', '.join(form) or 'none'}): fit it again, by evaluate "
                "calibrate-scores"
            )
        try:
            tables = {key: np.asarray(values[key], np.float64) for key in _TABLES}
            scale = float(values["scale"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no model of what names say of each other: {error!r}") from error
        return cls(names, **tables, scale=scale)


def own_numbers(form: F64, mean: F64, scale: F64) -> F64:
    """(N, 7) :data:`FORM` -> (N, F) standardised, with squares and products of the numbers of size and height."""
    own = np.clip((form - mean) / scale, -_FARTHEST, _FARTHEST)
    i, j = _PRODUCTS
    return np.concatenate([own, own[:, i] * own[:, j] - (i == j)], axis=1)


def find_rivals(boxes: F64, seen: Rows) -> Rivals:
    """Of (N, 9) ``boxes`` those with IoU above 0.25; only rows of ``seen`` count."""
    volume = boxes[:, 3:6].prod(axis=1)
    i, j = Bounds.of(boxes).pairs_within(Bounds.of(boxes[seen]), 0.0)
    j = seen[j]
    # IoU cannot exceed the ratio of the volumes
    near = (i != j) & (np.minimum(volume[i], volume[j]) > SAME_PLACE_IOU * np.maximum(volume[i], volume[j]))
    i, j = i[near], j[near]
    claimed = paired_iou(torch.from_numpy(boxes[i]), torch.from_numpy(boxes[j])).numpy() > SAME_PLACE_IOU
    return Rivals(seen, i[claimed], j[claimed])


def company(boxes: F64, label: Rows, odds: F64, rivals: Rivals) -> tuple[Rows, NDArray[np.float32]]:
    """The names that speak, (P,) ascending, and (R, P, N) the best probability of each in each relation to each box.

    Args:
        boxes: (N, 9).
        label: (N,) number of the name; -1 neither speaks nor is spoken for.
        odds: (N,) log-odds.
        rivals: those of ``boxes``; what counts there may speak.
    """
    probability = expit(odds)
    speaks = rivals.seen[(probability[rivals.seen] >= LEAST_WITNESS) & (label[rivals.seen] >= 0)]
    speaks = speaks[np.argsort(label[speaks], kind="stable")]
    present, first = np.unique(label[speaks], return_index=True)
    likeliest = np.zeros((len(RELATIONS), len(present), len(boxes)), np.float32)
    if len(speaks) == 0:
        return present, likeliest
    row = np.full(len(boxes), -1)
    row[speaks] = np.arange(len(speaks))
    told = row[rivals.by] >= 0
    same = np.zeros((len(speaks), len(boxes)), bool)
    same[row[rivals.by[told]], rivals.of[told]] = True
    other = ~same
    other[np.arange(len(speaks)), speaks] = False
    gaps_m = _gaps_m(boxes, speaks, probability[speaks])
    near = cdist(boxes[speaks, :3], boxes[:, :3], "sqeuclidean") < NEAR_M**2
    said = probability[speaks, None].astype(np.float32)
    for r, holds in enumerate([*(other & (gaps_m < gap_m) for gap_m in GAPS_M), other & near, same]):
        likeliest[r] = np.maximum.reduceat(said * holds, first, axis=0)
    return present, likeliest


def _gaps_m(boxes: F64, speaks: Rows, weight: F64) -> F64:
    """(S, N) how far the boxes ``speaks`` and all others are apart on the ground, metres: between their bounds along
    the direction in which most of what speaks stands, so that turning the room changes nothing."""
    direction = 0.25 * np.angle((weight * np.exp(4j * boxes[speaks, 6])).sum())  # the same every 90 degrees
    c, s = np.cos(direction), np.sin(direction)
    bounds = Bounds.of(boxes, np.array([[c, s], [-s, c]]))
    low, high = bounds.low[:, :2], bounds.high[:, :2]
    apart = np.maximum(low[speaks, None] - high, low - high[speaks, None])  # (S, N, 2)
    gaps_m: F64 = np.hypot(*np.moveaxis(np.maximum(apart, 0.0), -1, 0))
    return gaps_m
