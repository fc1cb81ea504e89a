"""Fits what names say of each other (:mod:`embodied_perceptron.lift.company`) to boxes of homes that are known.

Logistic regression of "name and place are right", bilinear in what a name reads and what the names around it tell. The
squares of both are penalised alike, which for their product, one number for each pair of names and each radius, is the
nuclear norm: few directions are enough, however many are allowed. Names read nothing at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, vstack
from scipy.special import expit

from embodied_perceptron.lift.company import RADII_M, Company, Rivals, company, find_rivals

F64 = NDArray[np.float64]

_DIRECTIONS = 16
_RIDGE = 15.0
_LEAST_ODDS = -4.0  # no company makes a name of what is less likely
_STEPS = 200
_SEED = 0


@dataclass(frozen=True, eq=False)
class JudgedBoxes:
    """Boxes of one home: (N, 9), N names, (N,) log-odds of each by itself, as a model says that was fitted without the
    home, and (N,) whether name and place are right."""

    boxes: F64
    labels: tuple[str, ...]
    odds: F64
    right: NDArray[np.bool_]

    def with_company(self, known: Company) -> F64:
        """(N,) log-odds of the boxes among each other."""
        return known(self.boxes, self.labels, self.odds, self.rivals)

    @cached_property
    def rivals(self) -> Rivals:
        """All of them count: a fit reads none that does not."""
        return find_rivals(self.boxes, np.arange(len(self.boxes)))


def fit_company(homes: Sequence[JudgedBoxes]) -> Company:
    """The model of all ``homes``; one that changes nothing where no box is likely enough to learn from."""
    names = tuple(sorted({label for home in homes for label in home.labels}))
    number = {name: k for k, name in enumerate(names)}
    around: list[csr_matrix] = []
    label, odds, right = [], [], []
    for home in homes:
        rows = np.array([number[name] for name in home.labels], np.int64)
        likely = home.odds > _LEAST_ODDS
        around.append(_heard(home, rows, len(names))[likely])
        label.append(rows[likely])
        odds.append(home.odds[likely])
        right.append(home.right[likely])
    if not sum(map(len, label)):
        nothing = np.zeros((len(RADII_M), len(names), _DIRECTIONS))
        return Company(names, nothing[0], nothing, nothing[0, :, 0])
    return _fit(names, vstack(around, format="csr"), *map(np.concatenate, (label, odds, right)))


def _heard(home: JudgedBoxes, label: NDArray[np.int64], names: int) -> csr_matrix:
    """(N, R K) what each box hears of each name within each radius."""
    present, likeliest = company(home.boxes, label, home.odds, home.rivals)
    radius, other, row = likeliest.nonzero()
    values = likeliest[radius, other, row].astype(np.float64)
    return csr_matrix((values, (row, radius * names + present[other])), (len(label), len(RADII_M) * names))


def _fit(
    names: tuple[str, ...], around: csr_matrix, label: NDArray[np.int64], odds: F64, right: NDArray[np.bool_]
) -> Company:
    count, directions = len(names), _DIRECTIONS
    y = right.astype(np.float64)
    of_name = csr_matrix((np.ones(len(label)), (label, np.arange(len(label)))), (count, len(label)))
    backward = around.T.tocsr()
    sizes = np.cumsum([count * directions, around.shape[1] * directions, count])

    def parts(values: F64) -> tuple[F64, F64, F64, float]:
        reads, tells, offset, (scale,) = np.split(values, sizes)
        return reads.reshape(count, directions), tells.reshape(-1, directions), offset, scale

    def loss(values: F64) -> tuple[float, F64]:
        reads, tells, offset, scale = parts(values)
        heard, mine = around @ tells, reads[label]
        z = scale * odds + offset[label] + (heard * mine).sum(axis=1)
        wrong = (expit(z) - y)[:, None]
        value = np.logaddexp(0.0, z).sum() - z @ y + 0.5 * _RIDGE * (values[:-1] ** 2).sum()
        slopes = (of_name @ (wrong * heard), backward @ (wrong * mine), of_name @ wrong, np.array([odds @ wrong[:, 0]]))
        gradient = np.concatenate([s.ravel() for s in slopes])
        gradient[:-1] += _RIDGE * values[:-1]
        return float(value), gradient

    start = np.zeros(sizes[-1] + 1)
    start[sizes[0] : sizes[1]] = np.random.default_rng(_SEED).normal(0.0, 0.3, sizes[1] - sizes[0])
    start[-1] = 1.0
    bounds = [(None, None)] * sizes[-1] + [(0.1, None)]
    best = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}).x
    reads, tells, offset, scale = parts(best)
    return Company(names, reads, tells.reshape(len(RADII_M), count, directions), offset, float(scale))
