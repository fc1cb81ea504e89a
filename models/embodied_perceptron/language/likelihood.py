"""How likely people say that a relation holds: near one where it does, near zero where it plainly does not.

The scores of :mod:`.relations` say which of several objects fits better; these say whether one fits at all. They are
monotone in the distances that they are made of and generous: detected boxes are wrong by decimetres. The thresholds
were set by hand on hand-made rooms and synthetic homes; none is fitted to sentences of people.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.language.colors import name_probabilities
from embodied_perceptron.language.relations import Pairs, Relation, SceneGeometry, sigmoid

F64 = NDArray[np.float64]

NEAR_M = 1.2  # between outlines: half of the people would still say "next to"
_BESIDE_M = 2.0  # the same for left, right, in front, behind
_SLACK_M = 0.3  # by which heights of boxes may be wrong
_APART_M = 1.5  # between outlines: nothing is carried by, or hangs over, what is so far off
_COLOUR_SAID = 0.2  # probability of a colour's name above which a thing may be called so,
_COLOUR_BESIDE = 0.4  # and as a share of the likeliest name's: what is plainly green is not called yellow
_UNKNOWN_SIDE = 0.5  # of a side that nobody can tell: no viewpoint, or no front


def near(p: Pairs) -> F64:
    """Outlines within about :data:`NEAR_M`."""
    return sigmoid((NEAR_M - p.gap) / 0.12)


def touching(p: Pairs) -> F64:
    """So close that nobody would say "not near": outlines within about 0.3 m."""
    return sigmoid((0.3 - p.gap) / 0.08)


def on(p: Pairs) -> F64:
    """Carried: over its footprint or touching its side, neither far above its top nor at its foot."""
    low, high, extent = p.g.low[:, 2], p.g.high[:, 2], p.g.extent[:, 2]
    bottom, middle = low[p.target], p.g.center[:, 2][p.target]
    top, foot, height = high[p.anchor], low[p.anchor], extent[p.anchor]
    over = np.maximum(p.footprint_share, 0.5 * np.exp(-p.gap_xy / 0.1))
    lifted = sigmoid((bottom - foot - np.minimum(0.12, 0.5 * height)) / 0.03 + 1.0)
    reached_top = sigmoid((top + _SLACK_M - bottom) / 0.05)
    return np.asarray(sigmoid((over - 0.15) / 0.04) * reached_top * lifted * (middle > foot) * (p.gap_xy < _APART_M))


def inside(p: Pairs) -> F64:
    """A good part of the target lies within the anchor; or it lies in it as in a bowl."""
    smaller = p.g.volume[p.target] < p.g.volume[p.anchor]
    return np.asarray(np.maximum(sigmoid((p.share_within - 0.25) / 0.06) * smaller, 0.8 * on(p)))


def above(p: Pairs) -> F64:
    """Its bottom is not below the anchor's top, and it is over it or just beside that."""
    z = p.g.center[:, 2]
    rise = p.g.low[:, 2][p.target] - p.g.high[:, 2][p.anchor]
    over = np.maximum(sigmoid((p.footprint_share - 0.1) / 0.03), sigmoid((0.4 - p.gap_xy) / 0.08))
    return np.asarray(sigmoid((rise + _SLACK_M) / 0.05) * over * (z[p.target] > z[p.anchor]) * (p.gap_xy < _APART_M))


def below(p: Pairs) -> F64:
    """Under the anchor, or within its lower half (a box under a bed, whose box reaches the floor)."""
    z, volume = p.g.center[:, 2], p.g.volume
    lower = (z[p.target] < z[p.anchor]) & (p.g.low[:, 2][p.target] < p.g.high[:, 2][p.anchor] - 0.1)
    smaller = volume[p.target] < volume[p.anchor]
    return np.asarray(np.maximum(above(p.swapped), sigmoid((p.footprint_share - 0.3) / 0.05) * lower * smaller))


def _side(name: str) -> Relation:
    """Left, right, in front of or behind the anchor, for the viewer or by its own front."""

    def holds(p: Pairs) -> F64:
        g = p.g
        reach = sigmoid((_BESIDE_M - p.gap) / 0.2)
        distance = np.maximum(p.distance_xy, 1e-6)
        turns = {"front": 0, "left": 1, "behind": 2, "right": 3}[name]
        oriented = np.clip(g.fronts.sum(1), 0.0, 1.0)
        own = np.zeros(p.shape)
        for k in range(4):
            share = g.fronts[:, k][p.anchor]
            if share.any():
                own += share * sigmoid((p.along(g.sides[:, (k + turns) % 4]) / distance - 0.35) / 0.08)
        seen = np.full(p.shape, _UNKNOWN_SIDE)
        if g.viewer is not None:
            towards = g.center[:, :2] - g.viewer.position
            along = towards / np.maximum(np.linalg.norm(towards, axis=1, keepdims=True), 1e-6)
            ahead = p.along(along)
            left = p.along(np.stack([-along[:, 1], along[:, 0]], axis=1))
            measure = {"front": -ahead, "behind": ahead, "left": left, "right": -left}[name]
            seen = sigmoid((measure / distance - 0.25) / 0.08)
        return np.asarray(reach * np.maximum(own, np.where(oriented > 0.9, 0.8, 1.0)[p.anchor] * seen))

    return holds


def _any_reach(p: Pairs) -> F64:
    return sigmoid((3.5 - p.gap) / 0.3)


HOLDS: dict[str, Relation] = {
    "near": near,
    "end": near,
    "on": on,
    "supporting": lambda p: on(p.swapped),
    "with": lambda p: np.maximum.reduce([on(p.swapped), inside(p.swapped), near(p)]),  # carried, contained or beside
    "in": inside,
    "above": lambda p: np.maximum(above(p), 0.5 * on(p)),
    "below": below,
    "front": _side("front"),
    "behind": _side("behind"),
    "left": _side("left"),
    "right": _side("right"),
    "viewer-left": _any_reach,
    "viewer-right": _any_reach,
}
# metres between bounds along x or y, from which none of these holds
REACH_M = {
    "near": 3.0, "end": 3.0, "with": 3.0, "on": 1.5, "supporting": 1.5, "in": 1.5, "above": 2.0, "below": 2.0,
    "front": 5.0, "behind": 5.0, "left": 5.0, "right": 5.0, "viewer-left": 8.0, "viewer-right": 8.0,
}  # fmt: skip


def called(colors: F64, name: str) -> F64:
    """(N, 3) mean sRGB in 0..255 of all objects -> (N,) whether people may call each ``name``; NaN stays NaN."""
    of_all, said = name_probabilities(colors, name)
    beside = said / np.maximum(of_all.max(axis=1, initial=0.0), 1e-9)
    return sigmoid((said - _COLOUR_SAID) / 0.04) * sigmoid((beside - _COLOUR_BESIDE) / 0.05)


def lies_between(score: F64) -> F64:
    """Whether something lies between two others, by its score of :func:`~.relations.between`."""
    return sigmoid((score - 0.12) / 0.03)


def within(distance_m: F64, amount_m: float) -> F64:
    """Whether a distance is at most ``amount_m``, give or take a per cent."""
    return sigmoid((1.02 * amount_m + 0.02 - distance_m) / (0.02 + 0.02 * amount_m))


def reached(measure_m: F64, amount_m: float) -> F64:
    """Whether a measure is more than ``amount_m``, give or take a per cent."""
    return sigmoid((measure_m - amount_m - 0.005) / (0.003 + 0.005 * amount_m))


def measured(measures_m: F64, amount_m: float) -> F64:
    """(K, N) measures of which one is told to be ``amount_m`` -> (N,) whether it is about so much."""
    apart = np.maximum(np.abs(measures_m - amount_m).min(axis=0) - 0.03, 0.0) / (0.12 * amount_m + 1e-9)
    return np.asarray(np.exp(-0.5 * np.minimum(apart, 30.0) ** 2))


def from_viewer(g: SceneGeometry, name: str) -> F64:
    """(N,) whether each box is "behind-me", "ahead-of-me", "left-of-me", "right-of-me"; NaN without a viewer."""
    if g.viewer is None:
        return np.full(g.n, np.nan)
    d = g.center[:, :2] - g.viewer.position
    ahead = d @ g.viewer.heading
    left = d @ np.array([-g.viewer.heading[1], g.viewer.heading[0]])
    r = np.maximum(np.linalg.norm(d, axis=1), 1e-6)
    cosine = {"ahead-of-me": ahead / r, "behind-me": -ahead / r, "left-of-me": left / r, "right-of-me": -left / r}[name]
    least = {"ahead-of-me": 0.6, "behind-me": 0.2}.get(name, 0.25)
    return sigmoid((cosine - least) / 0.06)


def viewer_distance(g: SceneGeometry) -> F64:
    """(N,) metres from the viewer to the outline of each box in the plane; NaN without a viewer."""
    if g.viewer is None:
        return np.full(g.n, np.nan)
    p = g.viewer.position
    apart = np.maximum(np.maximum(g.low[:, :2] - p, p - g.high[:, :2]), 0.0)
    return np.asarray(np.linalg.norm(apart, axis=1))
