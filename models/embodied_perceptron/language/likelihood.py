"""How likely people say that a relation holds: near one where it does, near zero where it plainly does not.

The scores of :mod:`.relations` say which of several objects fits better; these say whether one fits at all. They are
monotone in the distances that they are made of and generous: detected boxes are wrong by decimetres. The thresholds
were set by hand on hand-made rooms and synthetic homes; none is fitted to sentences of people.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.language.relations import SceneGeometry, between, sigmoid

F64 = NDArray[np.float64]

NEAR_M = 1.2  # between outlines: half of the people would still say "next to"
_BESIDE_M = 2.0  # the same for left, right, in front, behind
_SLACK_M = 0.3  # by which heights of boxes may be wrong
_UNKNOWN_SIDE = 0.5  # of a side that nobody can tell: no viewpoint, or no front


def near(g: SceneGeometry) -> F64:
    """(N, N) outlines within about :data:`NEAR_M`."""
    return sigmoid((NEAR_M - g.gap) / 0.12)


def touching(g: SceneGeometry) -> F64:
    """(N, N) so close that nobody would say "not near": outlines within about 0.3 m."""
    return sigmoid((0.3 - g.gap) / 0.08)


def on(g: SceneGeometry) -> F64:
    """(N, N) carried: over its footprint or touching its side, neither far above its top nor at its foot."""
    bottom, middle = g.low[:, None, 2], g.center[:, None, 2]
    top, foot, height = g.high[None, :, 2], g.low[None, :, 2], g.extent[None, :, 2]
    over = np.maximum(g.footprint_share, 0.5 * np.exp(-g.gap_xy / 0.1))
    lifted = sigmoid((bottom - foot - np.minimum(0.12, 0.5 * height)) / 0.03 + 1.0)
    reached_top = sigmoid((top + _SLACK_M - bottom) / 0.05)
    return np.asarray(sigmoid((over - 0.15) / 0.04) * reached_top * lifted * (middle > foot))


def inside(g: SceneGeometry) -> F64:
    """(N, N) a good part of the target lies within the anchor; or it lies in it as in a bowl."""
    share = (g.overlap / np.maximum(g.extent[:, None], 1e-3)).clip(0.0, 1.0).prod(-1)
    smaller = g.volume[:, None] < g.volume[None]
    return np.asarray(np.maximum(sigmoid((share - 0.25) / 0.06) * smaller, 0.8 * on(g)))


def above(g: SceneGeometry) -> F64:
    """(N, N) its bottom is not below the anchor's top, and it is over it or just beside that."""
    rise = g.low[:, None, 2] - g.high[None, :, 2]
    over = np.maximum(sigmoid((g.footprint_share - 0.1) / 0.03), sigmoid((0.4 - g.gap_xy) / 0.08))
    return np.asarray(sigmoid((rise + _SLACK_M) / 0.05) * over * (g.center[:, None, 2] > g.center[None, :, 2]))


def below(g: SceneGeometry) -> F64:
    """(N, N) under the anchor, or within its lower half (a box under a bed, whose box reaches the floor)."""
    lower = (g.center[:, None, 2] < g.center[None, :, 2]) & (g.low[:, None, 2] < g.high[None, :, 2] - 0.1)
    smaller = g.volume[:, None] < g.volume[None]
    return np.asarray(np.maximum(above(g).T, sigmoid((g.footprint_share - 0.3) / 0.05) * lower * smaller))


def _side(name: str) -> Callable[[SceneGeometry], F64]:
    """Left, right, in front of or behind the anchor, for the viewer or by its own front."""

    def holds(g: SceneGeometry) -> F64:
        reach = sigmoid((_BESIDE_M - g.gap) / 0.2)
        distance = np.maximum(g.distance_xy, 1e-6)
        x, y = g.offset[..., 0], g.offset[..., 1]
        turns = {"front": 0, "left": 1, "behind": 2, "right": 3}[name]
        oriented = np.clip(g.fronts.sum(1), 0.0, 1.0)
        own = np.zeros((g.n, g.n))
        for k in range(4):
            direction = g.sides[:, (k + turns) % 4]
            cosine = (x * direction[None, :, 0] + y * direction[None, :, 1]) / distance
            own += g.fronts[None, :, k] * sigmoid((cosine - 0.35) / 0.08)
        seen = np.full((g.n, g.n), _UNKNOWN_SIDE)
        if g.viewer is not None:
            towards = g.center[:, :2] - g.viewer.position
            along = towards / np.maximum(np.linalg.norm(towards, axis=1, keepdims=True), 1e-6)
            ahead = x * along[None, :, 0] + y * along[None, :, 1]
            left = y * along[None, :, 0] - x * along[None, :, 1]
            measure = {"front": -ahead, "behind": ahead, "left": left, "right": -left}[name]
            seen = sigmoid((measure / distance - 0.25) / 0.08)
        return np.asarray(reach * np.maximum(own, np.where(oriented > 0.9, 0.8, 1.0)[None] * seen))

    return holds


def _any_reach(g: SceneGeometry) -> F64:
    return sigmoid((3.5 - g.gap) / 0.3)


HOLDS: dict[str, Callable[[SceneGeometry], F64]] = {
    "near": near,
    "end": near,
    "on": on,
    "supporting": lambda g: on(g).T,
    "with": lambda g: sigmoid((2.5 - g.gap) / 0.2),  # said of parts and neighbours alike
    "in": inside,
    "above": lambda g: np.maximum(above(g), 0.5 * on(g)),
    "below": below,
    "front": _side("front"),
    "behind": _side("behind"),
    "left": _side("left"),
    "right": _side("right"),
    "viewer-left": _any_reach,
    "viewer-right": _any_reach,
}


def lies_between(g: SceneGeometry, a: int, b: int) -> F64:
    """(N,) whether each box lies between boxes ``a`` and ``b``."""
    return sigmoid((between(g, a, b) - 0.12) / 0.03)


def within(distance_m: F64, amount_m: float) -> F64:
    """Whether a distance is at most ``amount_m``, give or take a per cent."""
    return sigmoid((1.02 * amount_m + 0.02 - distance_m) / (0.02 + 0.02 * amount_m))


def reached(measure_m: F64, amount_m: float) -> F64:
    """Whether a measure is more than ``amount_m``, give or take a per cent."""
    return sigmoid((measure_m - amount_m - 0.005) / (0.003 + 0.005 * amount_m))


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
