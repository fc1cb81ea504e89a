"""What geometry says about a name: how large such things are, and at which height they stand.

A 2-D detector sees no size: a carpet looks like a bed and a model house like a house. Sizes come from counted synthetic
homes (``class_sizes.json``, with its source in the file) and, where homes lack a name or make it too uniform, from a
table by hand (``class_ranges.json``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FOLDER = Path(__file__).parent
_SIZES = ("long_m", "short_m", "height_m", "bottom_m", "top_m")
_WIDER = 1.3  # things that exist vary more than those that were counted
_SLACK_M = 0.05  # noise of a measured edge
_SOFTNESS = 0.2  # of the logarithm of a size beyond its range: one standard deviation
_HEIGHT_SOFTNESS_M = 0.1
_SMALL_M = 0.6
_FLAT_M = 0.06
_WORST = -8.0  # log-likelihood of what cannot be


@dataclass(frozen=True)
class ClassPrior:
    """Plausible sizes of one kind of thing, [least, largest], metres.

    Attributes:
        long_m, short_m: sides on the ground.
        height_m: of the thing.
        bottom_m, top_m: above the floor.
        mounted: "floor", "object", "wall" or "ceiling": what it mostly stands on or hangs from.
    """

    long_m: tuple[float, float]
    short_m: tuple[float, float]
    height_m: tuple[float, float]
    bottom_m: tuple[float, float]
    top_m: tuple[float, float]
    mounted: str

    @property
    def small(self) -> bool:
        """Whether it lies on something rather than stands in a room."""
        return max(self.long_m[1], self.height_m[1]) <= _SMALL_M

    @property
    def flat(self) -> bool:
        """Whether it may be no higher than the noise of the surface that it lies on."""
        return self.height_m[0] <= _FLAT_M / 2

    @property
    def stands(self) -> bool:
        """Whether it reaches down to the floor."""
        return self.mounted == "floor" and self.bottom_m[1] < 0.3


class ClassPriors:
    """Priors and spellings of class names.

    Args:
        priors: by name as the map uses it.
        names: other names -> names as the map uses them.
    """

    def __init__(self, priors: Mapping[str, ClassPrior], names: Mapping[str, str]) -> None:
        self._priors = dict(priors)
        self._names = dict(names)

    def canonical(self, label: str) -> str:
        """The map's name for what a detector calls ``label``; the same where none is known."""
        return self._names.get(label, label)

    def get(self, label: str) -> ClassPrior | None:
        """What is known of things of that (canonical) name."""
        return self._priors.get(label)

    def log_plausibility(self, label: str, box: NDArray[np.float64], floor_z_m: float, whole: bool = True) -> float:
        """Logarithm in [-8, 0] of how well an upright (9,) box fits the name; 0 for names of which nothing is known.

        Args:
            label: canonical name.
            box: in the world; its third axis is up.
            floor_z_m: height of the floor.
            whole: False = parts of the thing were not seen, so that only too large is wrong, not too small.
        """
        prior = self.get(label)
        if prior is None:
            return 0.0
        _, _, middle_m, first_m, second_m, height_m = box[:6].tolist()  # numbers of Python's cost a fifth of numpy's
        sides = (
            (max(first_m, second_m), prior.long_m),
            (min(first_m, second_m), prior.short_m),
            (height_m, prior.height_m),
        )
        total = 0.0
        for size_m, (least, largest) in sides:
            beyond = log(max(size_m - _SLACK_M, 1e-3) / largest) if size_m - _SLACK_M > largest else 0.0
            if whole and size_m + _SLACK_M < least:
                beyond = log(least / (size_m + _SLACK_M))
            total -= 0.5 * (beyond / _SOFTNESS) ** 2
        bottom_m, top_m = middle_m - height_m / 2 - floor_z_m, middle_m + height_m / 2 - floor_z_m
        above = max(0.0, bottom_m - prior.bottom_m[1] - _SLACK_M) if whole else 0.0
        heights = (
            above,
            max(0.0, top_m - prior.top_m[1] - _SLACK_M),
            max(0.0, prior.top_m[0] - _SLACK_M - top_m),
            max(0.0, prior.bottom_m[0] - _SLACK_M - bottom_m) if whole else 0.0,
        )
        total -= 0.5 * sum((h / _HEIGHT_SOFTNESS_M) ** 2 for h in heights)
        return float(max(total, _WORST))


def _widened(entry: dict[str, Any]) -> ClassPrior:
    """Counted quantiles -> a range that is wider than what was counted."""
    ranges = {}
    for name in _SIZES:
        low, _, high = entry[name]
        ranges[name] = (max(0.0, low / _WIDER), high * _WIDER)
    bottom, top = ranges["bottom_m"], ranges["top_m"]
    ranges["bottom_m"], ranges["top_m"] = (bottom[0], bottom[1] + 0.1), (top[0], top[1] + 0.1)
    mounted = entry["mounted"]
    return ClassPrior(**ranges, mounted=max(sorted(mounted), key=lambda where: mounted[where]))


@lru_cache(maxsize=1)
def shipped_priors() -> ClassPriors:
    """The tables of this package."""
    counted = json.loads((_FOLDER / "class_sizes.json").read_text(encoding="utf-8"))["classes"]
    by_hand = json.loads((_FOLDER / "class_ranges.json").read_text(encoding="utf-8"))["classes"]
    names = json.loads((_FOLDER / "class_names.json").read_text(encoding="utf-8"))["names"]
    priors = {label: _widened(entry) for label, entry in counted.items()}
    for label, entry in by_hand.items():
        ranges = {name: (float(entry[name][0]), float(entry[name][1])) for name in _SIZES}
        priors[label] = ClassPrior(**ranges, mounted=entry["mounted"])
    return ClassPriors(priors, names)
