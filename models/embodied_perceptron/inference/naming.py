"""A name where the network is sure enough of it, and ``object`` where it only sees that something is there.

A network that knows presence says of every box how probably it holds a thing at all, and how probably one of each
class. The share of the two is the probability of the name, given the thing: below :data:`NAME_SHARE` the thing is
published without a name rather than under the nearest one. Where the weights file tells how to make probabilities of
both (:class:`~embodied_perceptron.inference.confidence_calibration.ConfidenceCalibration`), these are compared.

Where a list says which names shall be published, the probabilities of all names that stand for one of the list are
summed: of the boxes of one thing (:func:`joined_by_name`), and of all that an object was ever called
(:func:`published_name`). What belongs to none of the list goes without a name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.suppression import same_thing_pairs
from embodied_perceptron.results import UNNAMED, Detections

NAME_SHARE = 0.5  # of the probability that a thing is there, from which its name is told
_LEAST = 0.05  # presence below it is no thing
_MARGIN = 1e-6

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Naming:
    """How boxes without a name are told from those with one.

    Attributes:
        share: see :data:`NAME_SHARE`.
        shift: log-odds added to the score of a box without a name, so that the same score promises as much of both.
    """

    share: float = NAME_SHARE
    shift: float = 0.0

    def select(self, found: Detections) -> Detections:
        """What is published of the boxes of a network, with and without names, best first: see :meth:`__call__`."""
        nameless = np.array([label == UNNAMED for label in found.labels], bool)
        if not nameless.any():
            return found
        kept, scores = self(found.boxes, found.scores, nameless)
        return replace(found.take(kept, scores), posteriors=_posteriors(found, kept, scores))

    def __call__(self, boxes: F64, scores: F64, nameless: NDArray[np.bool_]) -> tuple[NDArray[np.int64], F64]:
        """Which of (N, 9) boxes stay, in the order of their new scores, and these; ``nameless`` (N,) bool.

        A box without a name goes where one with a name holds the same thing and is sure enough. Otherwise it stays, and
        scores more than all names of its thing. Boxes with a name stay as they are.
        """
        rows = np.flatnonzero(nameless & (scores >= _LEAST))
        kept, rescored = ~nameless, scores.copy()
        if len(rows):
            kept[rows] = True
            rescored[rows] = _shifted(scores[rows], self.shift)
            named = np.flatnonzero(~nameless)
            thing, name = same_thing_pairs(boxes, rows, named)
            sure = scores[name] >= self.share * scores[thing]
            kept[thing[sure]] = False
            np.maximum.at(rescored, thing[~sure], np.minimum(scores[name[~sure]] + _MARGIN, 1.0))
        stay = np.flatnonzero(kept)
        order = stay[np.argsort(-rescored[stay], kind="stable")]
        return order, rescored[order]


USUAL = Naming()


def _posteriors(found: Detections, kept: NDArray[np.int64], scores: F64) -> tuple[dict[str, float], ...]:
    """Of each of the ``kept`` boxes, with their new ``scores``: what all boxes of its thing say."""
    said: list[dict[str, float]] = [{} for _ in range(len(found))]
    known = np.flatnonzero(found.scores >= _LEAST)
    spoken = np.intersect1d(kept, known)
    for a, b in zip(*(rows.tolist() for rows in same_thing_pairs(found.boxes, spoken, known)), strict=True):
        label = found.labels[b]
        said[a][label] = max(said[a].get(label, 0.0), float(found.scores[b]))
    return tuple(
        _posterior(said[i], found.labels[i], float(score)) for i, score in zip(kept.tolist(), scores, strict=True)
    )


def _posterior(said: Mapping[str, float], label: str, score: float) -> dict[str, float]:
    """Of a box: its own name as probable as its score, the others as far as there is room for them beside it.

    ``said``: name -> best probability of a box of the thing; of :data:`UNNAMED`, that something is there.
    """
    names = {name: p for name, p in said.items() if name not in (label, UNNAMED)}
    if label == UNNAMED:
        exists, room = score, score
    else:
        # the thing itself is as probable as its box without a name says: names beside the best one share what is left
        exists = said.get(UNNAMED, min(score + sum(names.values()), 1.0))
        room = max(exists - score, 0.0)
    total = sum(names.values())
    names = {name: p * min(1.0, room / total) for name, p in names.items()} if total > 0 else {}
    rest = max(room - sum(names.values()), 0.0)
    own = {} if label == UNNAMED else {label: score}
    return {**own, **names, **({UNNAMED: rest} if rest > 0 or not (own or names) else {})}


def published_name(votes: Mapping[str, float], name_of: Callable[[str], str]) -> str:
    """The name with the largest sum of ``votes`` over the labels that stand for it.

    ``name_of``: label -> name, :data:`~embodied_perceptron.results.UNNAMED` for what stands for none. All of these
    together are one name; of equal sums one with a name wins.
    """
    sums: dict[str, float] = {}
    for label, share in votes.items():
        name = name_of(label)
        sums[name] = sums.get(name, 0.0) + share
    return max(sorted(sums), key=lambda name: (sums[name], name != UNNAMED), default=UNNAMED)


def joined_by_name(found: Detections, name_of: Callable[[str], str]) -> Detections:
    """``found`` with the boxes of one thing under labels that stand for one name joined to one, best first.

    The best box stays. Its score is the sum over the labels, of each the largest, at most 1; its posterior has all of
    them. Boxes that stand for no name, and those that are alone, stay as they are.
    """
    names = np.array([name_of(label) for label in found.labels], dtype=object)
    absorbed = np.zeros(len(found), bool)
    joined: dict[int, tuple[int, ...]] = {}  # row -> rows of the thing under that name
    for name in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names == name)
        if name == UNNAMED or len({found.labels[i] for i in rows}) < 2:
            continue
        rows = rows[np.argsort(-found.scores[rows], kind="stable")]
        first, second = same_thing_pairs(found.boxes, rows, rows)
        for row in rows.tolist():
            others = [k for k in second[first == row].tolist() if k != row and not absorbed[k] and k not in joined]
            if absorbed[row] or not others:
                continue
            absorbed[others] = True
            joined[row] = (row, *others)
    if not joined:
        return found
    scores = found.scores.copy()
    posteriors = [found.posterior(k) for k in range(len(found))]
    for row, members in joined.items():
        best: dict[str, float] = {}
        said: dict[str, float] = {}
        for k in members:
            best[found.labels[k]] = max(best.get(found.labels[k], 0.0), float(found.scores[k]))
            for label, p in posteriors[k].items():
                said[label] = max(said.get(label, 0.0), p)
        scores[row] = min(1.0, sum(best.values()))
        total = max(sum(said.values()), 1.0)
        posteriors[row] = {label: p / total for label, p in said.items()}
    stay = np.flatnonzero(~absorbed)
    stay = stay[np.argsort(-scores[stay], kind="stable")]
    return replace(found, scores=scores, posteriors=tuple(posteriors)).take(stay)


def _shifted(scores: F64, shift: float) -> F64:
    if shift == 0.0:
        return scores
    p = np.clip(scores, 1e-6, 1.0 - 1e-6)
    moved: F64 = 1.0 / (1.0 + np.exp(-(np.log(p / (1.0 - p)) + shift)))
    return moved


def shift_between(nameless: float, named: float) -> float:
    """Log-odds from the score ``nameless`` to ``named``. Raises ``ValueError`` for what lies not within (0, 1)."""
    for score in (nameless, named):
        if not 0.0 < score < 1.0:
            raise ValueError(f"a score that promises something must be within (0, 1), got {score}")
    return math.log(named / (1.0 - named)) - math.log(nameless / (1.0 - nameless))
