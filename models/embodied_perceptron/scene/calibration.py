"""From the share of the best candidate to the probability that it is the right one.

Shares of a posterior are overconfident: they know nothing of misread sentences and missed objects. A logistic
regression over what is known of an answer corrects them; its weights stand in ``lexicon/calibration.json`` with the
command that made them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

WEIGHTS = Path(__file__).parent / "lexicon" / "calibration.json"
FEATURES = ("one", "share", "fit_share", "weakest", "unsure_view", "missing", "kind")


@dataclass(frozen=True)
class Traits:
    """What is known of an answer.

    Attributes:
        share: of the best candidate in the posterior, (0, 1].
        fit_share: the same without the detector's confidences.
        weakest: how well the constraint that fits it least holds, [0, 1].
        unsure_view: the sentence depends on who speaks, and nobody knows where that is.
        missing: an anchor is not in the scene.
        kind: how well the label answers to the noun.
    """

    share: float
    fit_share: float
    weakest: float
    unsure_view: bool
    missing: bool
    kind: float

    def features(self) -> tuple[float, ...]:
        """In the order of :data:`FEATURES`."""
        return (
            1.0,
            _logit(self.share),
            _logit(self.fit_share),
            math.log(self.weakest + 0.05),
            float(self.unsure_view),
            float(self.missing),
            self.kind,
        )


def _logit(p: float) -> float:
    p = min(max(p, 0.01), 0.99)
    return math.log(p / (1.0 - p))


@lru_cache(maxsize=1)
def _weights() -> tuple[float, ...]:
    data = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    if tuple(data["features"]) != FEATURES:
        raise ValueError(f"{WEIGHTS.name} has weights of {data['features']}, wanted are {list(FEATURES)}")
    return tuple(float(w) for w in data["weights"])


def probability_right(traits: Traits) -> float:
    """Probability that the best candidate is the object meant, in (0, 1)."""
    z = sum(w * x for w, x in zip(_weights(), traits.features(), strict=True))
    return 1.0 / (1.0 + math.exp(-max(min(z, 30.0), -30.0)))
