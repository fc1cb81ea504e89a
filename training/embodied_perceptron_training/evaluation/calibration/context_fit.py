"""Fit context rescoring (:mod:`~embodied_perceptron.inference.confidence_calibration`) to boxes of homes with truth.

Logistic regression of "name and place are right", bilinear in the query of a name and the keys of the names around it
and of the box's own shape. The squares of both are penalised equally, which for their product, one number for each pair
of names and each relation, is the nuclear norm: few directions are enough, however many are allowed. Queries start at
zero. Half of the learned change is kept: it ranks names as well as all of it, and is less confident where homes differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack, vstack
from scipy.special import expit

from embodied_perceptron.geometry.suppression import OverlappingDetections, overlapping_detections
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.inference.confidence_calibration import (
    OWN_NUMBERS,
    RELATIONS,
    ContextRescoring,
    context_evidence,
    own_numbers,
)

_DIRECTIONS = 24
_RIDGE = 15.0
_LEAST_ODDS = -4.0  # no context makes a name of what is less likely
_STEPS = 250
_SHARE = 0.5  # of the change that was learned: rooms that exist are not quite like generated homes
_SEED = 0
_LEAST_SCALE = 1e-6  # of a number that is the same everywhere


@dataclass(frozen=True, eq=False)
class MatchedBoxes:
    """Boxes of one home: (N, 9), N names, (N,) log-odds from a model fitted without the home, (N,) whether name and
    place are right, and (N, 7) shape features."""

    boxes: F64
    labels: tuple[str, ...]
    odds: F64
    right: NDArray[np.bool_]
    form: F64

    def with_context(self, known: ContextRescoring) -> F64:
        """(N,) log-odds of the boxes, rescored by context."""
        return known(self.boxes, self.labels, self.odds, self.overlapping, self.form)

    @cached_property
    def overlapping(self) -> OverlappingDetections:
        """Overlapping detections among all boxes."""
        return overlapping_detections(self.boxes, np.arange(len(self.boxes)))


def fit_context(homes: Sequence[MatchedBoxes]) -> ContextRescoring:
    """The model of all ``homes``; it changes nothing where no box is likely enough to learn from."""
    names = tuple(sorted({label for home in homes for label in home.labels}))
    number = {name: k for k, name in enumerate(names)}
    every = np.concatenate([home.form for home in homes])
    mean, scale = every.mean(axis=0), every.std(axis=0) + _LEAST_SCALE
    evidence: list[csr_matrix] = []
    label, odds, right = [], [], []
    for home in homes:
        rows = np.array([number[name] for name in home.labels], np.int64)
        likely = home.odds > _LEAST_ODDS
        own = csr_matrix(own_numbers(home.form, mean, scale))
        evidence.append(hstack([_evidence(home, rows, len(names)), own], format="csr")[likely])
        label.append(rows[likely])
        odds.append(home.odds[likely])
        right.append(home.right[likely])
    if not sum(map(len, label)):
        nothing = np.zeros((len(RELATIONS), len(names), _DIRECTIONS))
        forms = np.zeros((OWN_NUMBERS, _DIRECTIONS))
        return ContextRescoring(names, nothing[0], nothing, forms, mean, scale, nothing[0, :, 0])
    queries, keys, forms, offset, odds_scale = _fit(
        len(names), vstack(evidence, format="csr"), *map(np.concatenate, (label, odds, right))
    )
    odds_scale = 1.0 + _SHARE * (odds_scale - 1.0)
    return ContextRescoring(names, _SHARE * queries, keys, forms, mean, scale, _SHARE * offset, odds_scale)


def _evidence(home: MatchedBoxes, label: NDArray[np.int64], names: int) -> csr_matrix:
    """(N, R K) evidence of each box: every name in every relation."""
    present, likeliest = context_evidence(home.boxes, label, home.odds, home.overlapping)
    relation, other, row = likeliest.nonzero()
    values = likeliest[relation, other, row].astype(np.float64)
    return csr_matrix((values, (row, relation * names + present[other])), (len(label), len(RELATIONS) * names))


def _fit(
    count: int, evidence: csr_matrix, label: NDArray[np.int64], odds: F64, right: NDArray[np.bool_]
) -> tuple[F64, F64, F64, F64, float]:
    """Queries, keys, ``forms``, ``offset`` and ``scale`` of :class:`ContextRescoring`.

    Args:
        count: K names.
        evidence: (N, R K + F) the names around each box and its shape features.
        label: (N,) number of its name.
        odds, right: (N,) as in :class:`MatchedBoxes`.
    """
    directions = _DIRECTIONS
    y = right.astype(np.float64)
    of_name = csr_matrix((np.ones(len(label)), (label, np.arange(len(label)))), (count, len(label)))
    backward = evidence.T.tocsr()
    sizes = np.cumsum([count * directions, evidence.shape[1] * directions, count])

    def parts(values: F64) -> tuple[F64, F64, F64, float]:
        queries, keys, offset, (scale,) = np.split(values, sizes)
        return queries.reshape(count, directions), keys.reshape(-1, directions), offset, scale

    def loss(values: F64) -> tuple[float, F64]:
        queries, keys, offset, scale = parts(values)
        key, query = evidence @ keys, queries[label]
        z = scale * odds + offset[label] + (key * query).sum(axis=1)
        wrong = (expit(z) - y)[:, None]
        value = np.logaddexp(0.0, z).sum() - z @ y + 0.5 * _RIDGE * (values[:-1] ** 2).sum()
        slopes = (of_name @ (wrong * key), backward @ (wrong * query), of_name @ wrong, np.array([odds @ wrong[:, 0]]))
        gradient = np.concatenate([s.ravel() for s in slopes])
        gradient[:-1] += _RIDGE * values[:-1]
        return float(value), gradient

    start = np.zeros(sizes[-1] + 1)
    start[sizes[0] : sizes[1]] = np.random.default_rng(_SEED).normal(0.0, 0.3, sizes[1] - sizes[0])
    start[-1] = 1.0
    bounds = [(None, None)] * sizes[-1] + [(0.1, None)]
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}).x
    queries, keys, offset, scale = parts(best)
    keys, forms = np.split(keys, [len(RELATIONS) * count])
    return queries, keys.reshape(len(RELATIONS), count, directions), forms, offset, float(scale)
