"""Prediction of ten and a hundred times the training, by a learning curve.

    python benchmarks/learning_curve.py            # table, and out/bench/learning_curve.json

A saturating power law, AP(n) = A - B n^(-c), is fitted to the validations of the training of the shipped weights
(``benchmarks/data/learning_curve.json``). Four points do not determine three numbers, so the result is a posterior over
a grid of A and c with flat priors within :data:`LIMITS` and :data:`POWERS` (c on a logarithmic scale), the best B for
each, and Gaussian noise. n is counted from the last change of the network's rules, and from its first step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _report as report
import numpy as np

from embodied_perceptron.geometry.transforms import F64

DATA = Path(__file__).resolve().parent / "data" / "learning_curve.json"
LIMITS, POWERS = (55.0, 100.0), (0.03, 3.0)  # percent; exponents
_STEPS = 400
QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True, eq=False)
class Fit:
    """The posterior over a grid.

    Attributes:
        limit, power, drop: (G,) A, c and B of the grid points. weight: (G,) probability.
        best: index of the most probable.
    """

    limit: F64
    power: F64
    drop: F64
    weight: F64
    best: int

    def at(self, windows: float) -> tuple[float, float, float]:
        """5 %, 50 % and 95 % quantiles of the value after a number of windows."""
        return _quantiles(self.limit - self.drop * windows**-self.power, self.weight)

    def of_limit(self) -> tuple[float, float, float]:
        """Quantiles of A."""
        return _quantiles(self.limit, self.weight)

    def of_power(self) -> tuple[float, float, float]:
        """Quantiles of c."""
        return _quantiles(self.power, self.weight)


def fit_power_law(windows: Sequence[float], values: Sequence[float], noise: float) -> Fit:
    """Fit a saturating power law to points. ``noise``: standard deviation of a point.

    Raises ``ValueError`` for fewer than three points, windows that are not positive, or noise that is not.
    """
    n, y = np.asarray(windows, np.float64), np.asarray(values, np.float64)
    if len(n) < 3 or n.shape != y.shape:
        raise ValueError(f"a curve of three numbers needs at least three points, got {len(n)} and {len(y)}")
    if not (n > 0).all() or not noise > 0:
        raise ValueError(f"windows and noise must be positive, got {n.tolist()} and {noise}")
    limit, power = np.meshgrid(np.linspace(*LIMITS, _STEPS), np.geomspace(*POWERS, _STEPS), indexing="ij")
    limit, power = limit.ravel(), power.ravel()
    scale = float(n.min())
    falling = (n[None] / scale) ** -power[:, None]  # (G, N)
    drop = ((limit[:, None] - y[None]) * falling).sum(1) / (falling**2).sum(1)
    drop = np.maximum(drop, 0.0)
    residual = limit[:, None] - drop[:, None] * falling - y[None]
    log_weight = -0.5 * (residual**2).sum(1) / noise**2
    weight = np.exp(log_weight - log_weight.max())
    return Fit(limit, power, drop * scale**power, weight / weight.sum(), int(log_weight.argmax()))


def _quantiles(values: F64, weight: F64) -> tuple[float, float, float]:
    order = np.argsort(values)
    below = np.cumsum(weight[order])
    low, middle, high = (float(values[order][min(np.searchsorted(below, q), len(order) - 1)]) for q in QUANTILES)
    return low, middle, high


def study(data: dict[str, Any], times: Sequence[float] = (1.0, 10.0, 100.0)) -> dict[str, Any]:
    """Fits for both counts, and their predictions for multiples of all training (``times``)."""
    points = data["points"]
    values = [p["value"] + data["shift"] * p["shifted"] for p in points]
    result: dict[str, Any] = {"points": [[p["windows"], v] for p, v in zip(points, values, strict=True)]}
    for name, before in (("since the last change of rules", 0), ("since the first step", data["windows_before"])):
        windows = [p["windows"] + before for p in points]
        fit = fit_power_law(windows, values, data["noise"])
        result[name] = {
            "limit": fit.of_limit(),
            "power": fit.of_power(),
            "likeliest": {"A": fit.limit[fit.best], "B": fit.drop[fit.best], "c": fit.power[fit.best]},
            "residuals": [
                float(fit.limit[fit.best] - fit.drop[fit.best] * n ** -fit.power[fit.best] - v)
                for n, v in zip(windows, values, strict=True)
            ],
            "after": {f"{k:g}": fit.at(k * windows[-1]) for k in times},
        }
    return result


def main() -> int:
    """Fit, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="points, as in benchmarks/data/learning_curve.json")
    options = report.parse(parser)  # the whole study takes a second
    data = json.loads(options.data.read_text(encoding="utf-8"))
    result = study(data)
    rows = []
    for way in [name for name in result if name != "points"]:
        found = result[way]
        said = {"A": found["limit"], "c": found["power"]}
        said |= {f"{times} x the training": value for times, value in found["after"].items()}
        rows += [
            {"counted": way, "figure": name, **dict(zip(("low", "middle", "high"), value, strict=True))}
            for name, value in said.items()
        ]
    report.show(f"{data['figure']}(n) = A - B n^-c, 5 %, 50 % and 95 % of the posterior", rows)
    points = [{"windows": n, "value": value} for n, value in result["points"]]
    report.write(options, {"figure": data["figure"], "noise": data["noise"], "points": points, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
