"""Scores that compare candidates with each other: closest, largest, leftmost, the second from the left, in the corner.

Each takes the geometry and (N,) weights in [0, 1] that say how much an object counts as a candidate, and returns (N,)
log scores (differences matter, not values). Weights are soft: the second pass of
:mod:`~embodied_perceptron.scene.grounding` passes how well the rest of the sentence is satisfied.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.scene.relations import SceneGeometry, Viewer

F64 = NDArray[np.float64]

_COUNTS = 0.05  # a weight above it makes a candidate


def contrast(x: F64, group: F64) -> F64:
    """How far each value stands out of those of the group, in standard deviations, within [-2.5, 2.5].

    Fades to zero when the group has hardly more than one member.
    """
    total = float(group.sum())
    if total <= 0 or int((group > _COUNTS).sum()) < 2:
        return np.zeros_like(x)
    mean = float((group * x).sum()) / total
    deviation = float(np.sqrt((group * (x - mean) ** 2).sum() / total)) + 1e-3
    members = total * total / float((group * group).sum())
    return np.asarray(np.clip((x - mean) / deviation, -2.5, 2.5) * np.clip((members - 1.0) / 0.6, 0.0, 1.0))


def log_share(x: F64, group: F64) -> F64:
    """Log of the softmax of ``x`` over the group, within [-3, 0]."""
    members = group > _COUNTS
    if not members.any():
        return np.zeros_like(x)
    y = x - x[members].max()
    total = float((group[members] * np.exp(y[members])).sum())
    return np.asarray(np.clip(y - np.log(total + 1e-9), -3.0, 0.0))


def nearest(g: SceneGeometry, anchors: F64, group: F64, farthest: bool = False) -> F64:
    """Closest to (farthest from) the nearest of the anchors, given as (N,) weights."""
    chosen = anchors >= 0.5 * anchors.max()
    distance = np.where(g.different[:, chosen], g.reach_distance[:, chosen], 9.0).min(axis=1)
    distance = np.minimum(distance, 9.0 if not farthest else 30.0)
    return log_share(distance / 0.5 if farthest else -distance / 0.35, group)


def leftness(g: SceneGeometry, group: F64, outlook: F64 | None) -> F64:
    """(N,) how far left each box lies among the group, about [-1, 1].

    ``outlook`` is the (2,) direction of view that the sentence names. Otherwise from the viewer's position and heading,
    or the mean over plausible viewpoints.
    """
    center = g.center[:, :2]
    if outlook is not None:
        return contrast(center @ np.array([-outlook[1], outlook[0]]), group) / 1.5
    middle = (center * group[:, None]).sum(0) / max(float(group.sum()), 1e-9)
    if g.viewer is not None:
        return contrast(_bearing(center, middle, g.viewer), group) / 1.5
    total, weights = np.zeros(g.n), 0.0
    for point in g.view_points:
        d = middle - point
        r = float(np.linalg.norm(d))
        if r < 0.8:
            continue
        left = np.array([-d[1], d[0]]) / r
        weight = min(1.0, r - 0.5)
        total += weight * contrast((center - middle) @ left, group) / 1.5
        weights += weight
    return total / max(weights, 1e-6)


def _bearing(center: F64, middle: F64, viewer: Viewer) -> F64:
    """(N,) angle to the left of the line of sight, which goes to the group when it is ahead."""
    ahead = middle - viewer.position
    r = float(np.linalg.norm(ahead))
    sight = ahead / r if r > 0.5 and float(ahead @ viewer.heading) > 0 else viewer.heading
    d = center - viewer.position
    return np.asarray(np.arctan2(d @ np.array([-sight[1], sight[0]]), d @ sight))


def nth_from(g: SceneGeometry, group: F64, left: F64, rank: int, from_left: bool) -> F64:
    """The ``rank``-th from one side: 0 for it, -1 for its neighbours and so on."""
    members = np.flatnonzero(group > 0.15)
    order = np.argsort(-left[members] if from_left else left[members], kind="stable")
    place = np.full(g.n, float(len(members)))
    place[members[order]] = np.arange(len(members), dtype=np.float64)
    return np.asarray(-np.minimum(np.abs(place - (rank - 1)), 2.5))


def stature(relation: str, g: SceneGeometry, group: F64) -> F64:
    """Sizes and heights: large, small, tall, short, long, narrow, round, high, low."""
    lengths = np.maximum(g.size[:, 0], g.size[:, 1])
    widths = np.minimum(g.size[:, 0], g.size[:, 1])
    measure, sign = {
        "large": (np.log(g.volume), 1.0),
        "small": (np.log(g.volume), -1.0),
        "tall": (g.extent[:, 2], 1.0),
        "short": (g.extent[:, 2], -1.0),
        "long": (np.log((lengths + 0.05) / (widths + 0.05)), 1.0),
        "round": (np.log((lengths + 0.05) / (widths + 0.05)), -1.0),
        "narrow": (lengths, -1.0),
        "high": (g.center[:, 2], 1.0),
        "low": (g.center[:, 2], -1.0),
    }[relation]
    return sign * contrast(measure, group)


def place_in_room(relation: str, g: SceneGeometry, group: F64) -> F64:
    """In the corner, in the middle, at the wall, by itself."""
    if relation == "alone":
        others = np.where((group[None] > 0.5) & g.different, g.gap, 9.0).min(axis=1)
        return contrast(np.minimum(others, 5.0), group)
    low, high = g.room
    center, half = g.center[:, :2], 0.5 * g.extent[:, :2]
    to_walls = np.maximum(np.concatenate([center - half - low[:2], high[:2] - center - half], axis=1), 0.0)
    x, y = np.minimum(to_walls[:, 0], to_walls[:, 2]), np.minimum(to_walls[:, 1], to_walls[:, 3])
    if relation == "corner":
        return -contrast(np.hypot(x, y), group)
    if relation == "wall":
        return -contrast(np.minimum(x, y), group)
    return -contrast(np.linalg.norm((center - 0.5 * (low + high)[:2]) / (high - low)[:2], axis=1), group)
