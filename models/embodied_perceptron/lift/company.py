"""A name is likelier among things that it is seen with: a table by a couch, a counter by a stove.

A network looks at a thing and at little around it. What else is likely there, and how near, tells names apart that a
shape alone does not. Each name reads the likeliest box of every other name within each of :data:`RADII_M`, and what it
reads changes the log-odds of its own probability:

    z = scale * log_odds(p) + offset[name] + <reads[name], sum over radii r and names k of tells[r, k] * p_max(r, k)>

``p_max(r, k)`` is the best probability of a box named k whose middle lies within r, and which does not claim the same
place (IoU of at most 0.25). Few numbers a name (the rows of ``reads`` and ``tells``) share what they learn: with one
weight for each pair of names, or two layers of attention, the homes of the fit are learned instead of homes
(``docs/training.md``).
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

RADII_M = (0.8, 2.0, 5.0)
LEAST_WITNESS = 0.05  # probability of a box that speaks for others
SAME_PLACE_IOU = 0.25

F64 = NDArray[np.float64]
Rows = NDArray[np.int64]


class Rivals(NamedTuple):
    """Boxes that claim the same place: of ``seen`` rows, those that count at all, row ``by[p]`` claims that of another,
    ``of[p]``, which need not count itself."""

    seen: Rows
    of: Rows
    by: Rows


@dataclass(frozen=True, eq=False)
class Company:
    """What names say of each other; K of them.

    Attributes:
        names: K distinct ones; a box of another name neither reads nor tells, and gets ``scale`` alone.
        reads: (K, D).
        tells: (R, K, D), one per radius of :data:`RADII_M`.
        offset: (K,) log-odds.
        scale: of the log-odds that came.

    Raises ``ValueError`` naming what does not fit together.
    """

    names: tuple[str, ...]
    reads: F64
    tells: F64
    offset: F64
    scale: float = 1.0

    def __post_init__(self) -> None:
        count, shape = len(self.names), self.reads.shape
        if len(set(self.names)) != count:
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise ValueError(f"names that keep company are told once each, got {', '.join(twice)} twice")
        if len(shape) != 2 or shape[0] != count or self.tells.shape != (len(RADII_M), *shape):
            raise ValueError(
                f"{count} names need ({count}, D) reads and ({len(RADII_M)}, {count}, D) tells, got {shape} and "
                f"{self.tells.shape}"
            )
        if self.offset.shape != (count,):
            raise ValueError(f"{count} names have {count} offsets, got {self.offset.shape}")
        if not all(np.isfinite(v).all() for v in (self.reads, self.tells, self.offset)) or not self.scale > 0:
            raise ValueError("what names say of each other is finite, and its scale above 0")

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def rows(self, labels: Sequence[str]) -> Rows:
        """(N,) which of ``names`` each label is; -1 where none."""
        return np.array([self._index.get(label, -1) for label in labels], np.int64)

    def __call__(self, boxes: F64, labels: Sequence[str], odds: F64, rivals: Rivals) -> F64:
        """(N,) log-odds that a box's name and place are right, with what stands around it.

        Args:
            boxes: (N, 9).
            labels: N names.
            odds: (N,) the same log-odds before.
            rivals: those of ``boxes``; what counts there may speak.
        """
        label = self.rows(labels)
        known = label >= 0
        z = self.scale * odds
        z[known] += self.offset[label[known]]
        present, likeliest = company(boxes, label, odds, rivals)
        heard = np.tensordot(likeliest, self.tells[:, present].astype(np.float32), axes=((0, 1), (0, 1)))
        z[known] += (heard[known] * self.reads[label[known]]).sum(axis=1)
        return z

    def as_dict(self) -> dict[str, Any]:
        """For a weights file, of JSON's types."""
        return {
            "radii_m": list(RADII_M),
            "names": list(self.names),
            "reads": self.reads.round(3).tolist(),
            "tells": self.tells.round(3).tolist(),
            "offset": self.offset.round(3).tolist(),
            "scale": round(self.scale, 4),
        }

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Company:
        """Inverse of :meth:`as_dict`. Raises ``ValueError`` for other distances, or what is no such model."""
        try:
            radii = tuple(float(r) for r in values["radii_m"])
            names = tuple(str(name) for name in values["names"])
            reads, tells, offset = (np.asarray(values[key], np.float64) for key in ("reads", "tells", "offset"))
            scale = float(values["scale"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no model of what names say of each other: {error!r}") from error
        if radii != RADII_M:
            raise ValueError(f"what names say of each other is known within {RADII_M} m, got {radii}")
        return cls(names, reads, tells, offset, scale)


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
    """The names that speak, (P,) ascending, and (R, P, N) the best probability of each within each radius of each box.

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
    likeliest = np.zeros((len(RADII_M), len(present), len(boxes)), np.float32)
    if len(speaks) == 0:
        return present, likeliest
    row = np.full(len(boxes), -1)
    row[speaks] = np.arange(len(speaks))
    apart_m2 = cdist(boxes[speaks, :3], boxes[:, :3], "sqeuclidean")
    apart_m2[np.arange(len(speaks)), speaks] = np.inf
    told = row[rivals.by] >= 0
    apart_m2[row[rivals.by[told]], rivals.of[told]] = np.inf
    said = probability[speaks, None].astype(np.float32)
    for r, radius_m in enumerate(RADII_M):
        heard = said * (apart_m2 < radius_m**2)
        likeliest[r] = np.maximum.reduceat(heard, first, axis=0)
    return present, likeliest
