"""What a source's word for a thing is worth: how often the network is right about a name, and what geometry says of it.

The network's scores are calibrated on homes like those that it was trained on. The counts in ``network_names.json``
are of homes with harder sensors and clutter, and say by name how much less is right there; they only ever take away,
since what is likelier in a synthetic home need not be in a real one. Names that were said seldom stay near the mean of
all: their share is that of a Beta distribution whose mean is all names' and which weighs as much as
:data:`PRIOR_COUNT` boxes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.lift.class_priors import ClassPriors, shipped_priors
from embodied_perceptron.results import UNNAMED, Detections

PRIOR_COUNT = 4.0
_LARGEST_SHIFT = 2.0  # log-odds
_LEAST_FITTING = -4.0  # log-plausibility: boxes of networks may be wrong where the name is right

F64 = NDArray[np.float64]


class NameEvidence:
    """Log-odds that a name of the network deserves beside its score.

    Args:
        counts: name -> (said, right) on homes unlike those of training.
        calibrated: share of published boxes that is right where the scores are calibrated; None = as in ``counts``.
        priors: sizes and heights of things.

    Raises ``ValueError`` for counts that are none.
    """

    def __init__(
        self,
        counts: Mapping[str, tuple[int, int]],
        calibrated: float | None = None,
        priors: ClassPriors | None = None,
    ) -> None:
        wrong = [name for name, (said, right) in counts.items() if not 0 <= right <= said]
        if wrong:
            raise ValueError(
                f"{wrong[0]!r} cannot have been right {counts[wrong[0]][1]} of {counts[wrong[0]][0]} times"
            )
        self._counts = dict(counts)
        self._priors = shipped_priors() if priors is None else priors
        said = sum(n for n, _ in counts.values())
        self.mean = (sum(right for _, right in counts.values()) + 1.0) / (said + 2.0)
        self.calibrated = self.mean if calibrated is None else calibrated

    def precision(self, label: str) -> float:
        """Probability that a published box of that name is right."""
        said, right = self._counts.get(label, (0, 0))
        return (right + PRIOR_COUNT * self.mean) / (said + PRIOR_COUNT)

    def shift(self, label: str) -> float:
        """Log-odds in [-2, 0] by which that name is seldomer right than its score claims; 0 for what has none."""
        if label == UNNAMED:
            return 0.0
        return float(np.clip(log_odds(self.precision(label)) - log_odds(self.calibrated), -_LARGEST_SHIFT, 0.0))

    def of(self, network: Detections, floor_z_m: float) -> F64:
        """(N,) log-odds of each box: :meth:`shift`, and what its size and height say of its name."""
        fits = [
            max(self._priors.log_plausibility(label, box, floor_z_m, whole=False), _LEAST_FITTING)
            for label, box in zip(network.labels, network.boxes, strict=True)
        ]
        evidence: F64 = np.array([self.shift(label) for label in network.labels]) + np.array(fits)
        return evidence


def log_odds(p: float) -> float:
    """Of a probability, kept within (1e-6, 1 - 1e-6)."""
    p = min(max(p, 1e-6), 1.0 - 1e-6)
    return float(np.log(p / (1.0 - p)))


@lru_cache(maxsize=1)
def shipped_evidence() -> NameEvidence:
    """Of the shipped weights."""
    table = json.loads((Path(__file__).parent / "network_names.json").read_text(encoding="utf-8"))
    said, right = table["calibrated_on"]
    return NameEvidence({name: (n, k) for name, (n, k) in table["names"].items()}, right / said)
