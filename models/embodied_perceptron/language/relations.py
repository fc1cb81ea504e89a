"""Spatial relations between boxes: scores, likelihoods, and the fronts of objects.

The definitions are those of the benchmark's prompts (EmbodiedScan, SR3D) with soft edges, so that noisy boxes lose
little: support and vertical relations by footprints and heights, "between" in the plane, front and behind by the
anchor's front where it has one, otherwise as the speaker sees it.

"Left of the couch" is left in the speaker's view wherever the viewpoint is known. The anchor's own side ("on the
couch's left", for somebody who sits on it) is used where the sentence says so, and in the benchmark's prompts, which
have no viewpoint.

N boxes have N * N pairs, millions in a building. Scores are computed only for pairs of possible targets and anchors,
and of many such pairs only for those within the relation's reach (:class:`Pairs`). Beyond it scores are below a
millionth, for above and below a hundredth.

All computation is done in a frame turned with the furniture (:func:`main_direction`): results do not depend on yaw and
origin of the world, and axis-aligned bounds fit rectangular rooms.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds, box_rotations
from embodied_perceptron.geometry.suppression import RELATED_IOU
from embodied_perceptron.language.lexicon import lexicon, word_set

F64 = NDArray[np.float64]
Index = NDArray[np.intp]
Relation = Callable[["Pairs"], F64]

_REACH_M = 2.5  # from the outline of the anchor
_SPREAD = 0.5  # metres that the strip before a side widens per metre, to each hand
_BLOCK = 4096  # up to this many pairs all are computed; of more, only those within reach
_LOW_M = 0.3  # height of small things: what is as much above them is hardly between them
_STACKED = 0.5  # share of a footprint of things that lie one above the other
_VIEW_CELLS = 4  # plausible viewpoints: a 4 x 4 grid over the room


@dataclass(frozen=True, eq=False)
class Viewer:
    """Position and heading of the speaker, in the frame of the boxes.

    Attributes:
        position: (2,) metres.
        heading: (2,) unit vector.
    """

    position: F64
    heading: F64


def viewer_of(pose: NDArray[np.floating]) -> Viewer:
    """The viewer of a (4, 4) pose in the world: a camera's (z forward, y down) or a robot's (x forward, z up).

    The third axis tells them apart: up for a robot, level for a camera. For a camera that looks straight down, the
    upper edge of the image is ahead. Raises ``ValueError`` for anything but a finite (4, 4) matrix.
    """
    T = np.asarray(pose, dtype=np.float64)
    if T.shape != (4, 4) or not np.isfinite(T).all():
        raise ValueError(f"viewpoint must be a finite (4, 4) matrix, got shape {T.shape}")
    if T[2, 2] > 0.7:
        ahead = T[:2, 0]
    elif T[2, 2] < -0.7:
        ahead = -T[:2, 1]
    else:
        ahead = T[:2, 2]
    norm = float(np.linalg.norm(ahead))
    if norm < 1e-6:
        raise ValueError("the viewpoint has no heading: its axes are degenerate")
    return Viewer(T[:2, 3].copy(), ahead / norm)


def main_direction(boxes: F64, R: F64) -> float:
    """Dominant yaw of the boxes in [-pi/4, pi/4], weighted by size; 0 for no boxes."""
    if len(boxes) == 0:
        return 0.0
    upright = np.abs(R[:, 2, 2]) > 0.9
    yaw = np.arctan2(R[:, 1, 0], R[:, 0, 0])
    weight = np.minimum(np.linalg.norm(boxes[:, 3:5], axis=1), 3.0) * upright + 1e-6
    return float(np.angle((weight * np.exp(4j * yaw)).sum()) / 4.0)


def sigmoid(x: F64) -> F64:
    """1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)), dtype=np.float64)


class SceneGeometry:
    """Geometry of N boxes, made once per answer; everything is computed on first use.

    Args:
        boxes: (N, 9) world frame.
        fronts: (N, 4) probability that -y, +x, +y, -x of the box is the object's front; the rest to 1 is the
            probability that it has no front. None = unknown; a function estimates them on first use.
        viewer: the speaker, world frame, or None.
        barriers: (N,) bool: walls that separate rooms.
        anchors: (N,) bool: possible anchors; None = all. Fronts and views are computed only for these.
    """

    def __init__(
        self,
        boxes: F64,
        fronts: F64 | Callable[[SceneGeometry], F64] | None = None,
        viewer: Viewer | None = None,
        barriers: NDArray[np.bool_] | None = None,
        anchors: NDArray[np.bool_] | None = None,
    ) -> None:
        R = box_rotations(boxes)
        self.yaw = main_direction(boxes, R)
        c, s = np.cos(-self.yaw), np.sin(-self.yaw)
        self._turn = np.array([[c, -s], [s, c]])
        turned = R.copy()
        turned[:, :2, :] = self._turn @ R[:, :2, :]
        self.n = len(boxes)
        self.size = boxes[:, 3:6]
        self.center = boxes[:, :3].copy()
        self.center[:, :2] = boxes[:, :2] @ self._turn.T
        self.bounds = Bounds.of(boxes, self._turn)
        self.low, self.high, self.extent = self.bounds.low, self.bounds.high, self.bounds.extent
        self.volume = np.maximum(boxes[:, 3:6].prod(axis=1), 1e-6)
        # counter-clockwise, so that one step further is the object's own left
        axes = np.stack([-turned[:, :2, 1], turned[:, :2, 0], turned[:, :2, 1], -turned[:, :2, 0]], axis=1)  # (N, 4, 2)
        self.sides = axes / np.maximum(np.linalg.norm(axes, axis=2, keepdims=True), 1e-9)
        self._fronts: F64 | Callable[[SceneGeometry], F64] = np.zeros((self.n, 4)) if fronts is None else fronts
        self.conditions: tuple[str, ...] = ()  # state of each box (open, filled, ...); "" = unknown
        self.viewer = None if viewer is None else Viewer(self._turn @ viewer.position, self._turn @ viewer.heading)
        self.barriers = np.zeros(self.n, bool) if barriers is None else barriers
        every = np.arange(self.n, dtype=np.intp)
        self._near: dict[tuple[bytes, bytes, float], Pairs] = {}
        self.anchors: NDArray[np.intp] = every if anchors is None else every[anchors]

    @property
    def fronts(self) -> F64:
        """(N, 4) see the constructor; estimated on first use."""
        if callable(self._fronts):
            self._fronts = self._fronts(self)
        return self._fronts

    def overlaps(self, boxes: F64) -> F64:
        """(N, K) IoU of the bounds with those of (K, 9) other boxes, world frame."""
        return self.bounds.iou(Bounds.of(boxes, self._turn))

    @cached_property
    def room(self) -> tuple[F64, F64]:
        """(3,), (3,) bounds of the boxes without outliers."""
        if self.n == 0:
            return np.zeros(3), np.ones(3)
        low, high = np.percentile(self.low, 4, axis=0), np.percentile(self.high, 96, axis=0)
        middle, half = 0.5 * (low + high), np.maximum(0.5 * (high - low), 0.5)
        return middle - half, middle + half

    @cached_property
    def view_points(self) -> F64:
        """(V, 2) plausible viewpoints."""
        low, high = self.room
        share = np.linspace(0.15, 0.85, _VIEW_CELLS)
        grid = np.stack(np.meshgrid(share, share, indexing="ij"), axis=-1).reshape(-1, 2)
        return np.asarray(low[:2] + grid * (high - low)[:2])

    @cached_property
    def lines_of_sight(self) -> tuple[F64, F64]:
        """(V, N, 2) unit vectors from each viewpoint to each box, and (V, N) weights that sum to 1 per box.

        With a viewer there is one view.
        """
        points = self.view_points if self.viewer is None else self.viewer.position[None]
        d = self.center[None, :, :2] - points[:, None]  # (V, N, 2)
        r = np.linalg.norm(d, axis=-1)
        u = d / np.maximum(r, 1e-6)[..., None]
        weight = np.clip((r - 0.6) / 1.0, 0.0, 1.0)
        if self.viewer is not None:  # very close: use the heading
            u = np.where((r < 0.5)[..., None], self.viewer.heading, u)
            weight = np.ones_like(r)
        return u, weight / np.maximum(weight.sum(0), 1e-6)

    # -------------------------------------------------------------------------------------------------------- pairs

    @cached_property
    def every(self) -> Pairs:
        """All N * N pairs as a block."""
        everything = np.arange(self.n, dtype=np.intp)
        return Pairs(self, everything[:, None], everything[None])

    def block(self, targets: Index, anchors: Index) -> Pairs:
        """All pairs of (R,) targets and (C,) anchors."""
        return Pairs(self, targets[:, None], anchors[None])

    def near(self, targets: Index, anchors: Index, reach_m: float = 0.0) -> Pairs:
        """Pairs of (R,) targets and (C,) anchors whose bounds are at most ``reach_m`` apart along x and along y.

        Few pairs come as a complete block. Pairs are cached, so repeated phrases cost little.
        """
        few = len(targets) * len(anchors) <= _BLOCK
        if not few and not np.isfinite(reach_m):
            return self.block(targets, anchors)
        key = (targets.tobytes(), anchors.tobytes(), np.inf if few else reach_m)
        if key not in self._near:
            this: SceneGeometry = weakref.proxy(self)  # a cached strong reference would keep the geometry alive
            if few:
                self._near[key] = Pairs(this, targets[:, None], anchors[None])
            else:
                rows, columns = self.bounds[targets].pairs_within(self.bounds[anchors], reach_m)
                self._near[key] = Pairs(this, targets[rows], anchors[columns])
        return self._near[key]

    def related(self, relation: str, targets: Index, anchors: Index, reach_m: float | None = None) -> tuple[Pairs, F64]:
        """Pairs within the reach of a relation of :data:`PAIR_RELATIONS`, or within ``reach_m``, and their scores."""
        pairs = self.near(targets, anchors, REACH_M[relation] if reach_m is None else reach_m)
        return pairs, pairs.scores(relation)

    def matrix(self, relation: str) -> F64:
        """(N, N) scores of a relation for all pairs; the diagonal is meaningless."""
        return self.every.scores(relation)


class Pairs:
    """Pairs of a target box and an anchor box; everything is computed on first use.

    The indices broadcast to the shape S of everything below: (R, 1) and (1, C) for all pairs of R targets with C
    anchors, (P,) and (P,) for a list of pairs.

    Args:
        g: the scene.
        target, anchor: indices into its boxes.
    """

    def __init__(self, g: SceneGeometry, target: Index, anchor: Index) -> None:
        self.g, self.target, self.anchor = g, target, anchor
        self._scores: dict[str, F64] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """S."""
        return np.broadcast_shapes(self.target.shape, self.anchor.shape)

    @cached_property
    def swapped(self) -> Pairs:
        """The same pairs with target and anchor exchanged."""
        return Pairs(self.g, self.anchor, self.target)

    def scores(self, relation: str) -> F64:
        """S scores of a relation of :data:`PAIR_RELATIONS`, reduced across walls."""
        if relation not in self._scores:
            self._scores[relation] = PAIR_RELATIONS[relation](self) * self.same_room
        return self._scores[relation]

    def where(self, mask: NDArray[np.bool_]) -> Pairs:
        """The list of pairs selected by an S mask."""
        target, anchor = np.broadcast_arrays(self.target, self.anchor)
        return Pairs(self.g, target[mask], anchor[mask])

    def best(self, values: F64, none: float = 0.0) -> F64:
        """(N,) largest of the S values of each target; ``none`` is the minimum and the value without a pair."""
        best = np.full(self.g.n, none)
        if self.target.ndim == 2:
            best[self.target[:, 0]] = values.max(axis=1, initial=none)
        else:
            np.maximum.at(best, self.target, values)
        return best

    # ------------------------------------------------------------------------------------------------------ distances

    @cached_property
    def offset(self) -> F64:
        """(*S, 2) centre of the target minus centre of the anchor."""
        center = self.g.center[:, :2]
        return np.asarray(center[self.target] - center[self.anchor])

    @cached_property
    def distance_xy(self) -> F64:
        """S metres between centres in the plane."""
        return np.asarray(np.hypot(self.offset[..., 0], self.offset[..., 1]))

    def _gap(self, axis: int) -> F64:
        low, high = self.g.low[:, axis], self.g.high[:, axis]
        apart = np.maximum(low[self.target] - high[self.anchor], low[self.anchor] - high[self.target])
        return np.asarray(np.maximum(apart, 0.0))

    @cached_property
    def gap_xy(self) -> F64:
        """S metres between bounds in the plane."""
        return np.asarray(np.hypot(self._gap(0), self._gap(1)))

    @cached_property
    def gap(self) -> F64:
        """S metres between bounds, 0 where they touch."""
        return np.asarray(np.hypot(self.gap_xy, self._gap(2)))

    def _common(self, axis: int) -> F64:
        low, high = self.g.low[:, axis], self.g.high[:, axis]
        common = np.minimum(high[self.target], high[self.anchor]) - np.maximum(low[self.target], low[self.anchor])
        return np.asarray(np.maximum(common, 0.0))

    @cached_property
    def overlap(self) -> tuple[F64, F64, F64]:
        """Common extent along x, y and z, S each."""
        return self._common(0), self._common(1), self._common(2)

    @cached_property
    def _common_volume(self) -> F64:
        x, y, z = self.overlap
        return np.asarray(x * y * z)

    @cached_property
    def iou(self) -> F64:
        """S intersection over union of the bounds."""
        volume = self.g.bounds.volume
        return np.asarray(self._common_volume / (volume[self.target] + volume[self.anchor] - self._common_volume))

    @cached_property
    def inside(self) -> F64:
        """S common volume as a share of the smaller bounds."""
        volume = self.g.bounds.volume
        return np.asarray(self._common_volume / np.minimum(volume[self.target], volume[self.anchor]))

    @cached_property
    def share_within(self) -> F64:
        """S share of the target's volume within the anchor."""
        share = np.ones(())
        for axis, common in enumerate(self.overlap):
            share = share * (common / np.maximum(self.g.extent[:, axis], 1e-3)[self.target]).clip(0.0, 1.0)
        return np.asarray(share)

    @cached_property
    def different(self) -> NDArray[np.bool_]:
        """S: boxes of different objects."""
        return self.iou < RELATED_IOU

    @cached_property
    def footprint_share(self) -> F64:
        """S common footprint as a share of the smaller one."""
        area = np.maximum(self.g.extent[:, 0] * self.g.extent[:, 1], 1e-4)
        common = self.overlap[0] * self.overlap[1]
        return np.asarray(np.clip(common / np.minimum(area[self.target], area[self.anchor]), 0.0, 1.0))

    @cached_property
    def same_room(self) -> F64:
        """S 1, or 0.15 where the line between the centres crosses a wall."""
        g = self.g
        crossed = np.zeros(self.shape, bool)
        target, anchor = np.broadcast_to(self.target, self.shape), np.broadcast_to(self.anchor, self.shape)
        p = g.center[:, :2]
        for wall in np.flatnonzero(g.barriers):
            axis = int(np.argmax(g.extent[wall, :2]))
            across = 1 - axis
            if g.extent[wall, axis] < 4 * g.extent[wall, across]:
                continue  # no wall but a block
            side = p[:, across] - g.center[wall, across]
            thick = 0.5 * g.extent[wall, across] + 0.02
            parted = ((side > thick)[self.target] & (side < -thick)[self.anchor]) | (
                (side < -thick)[self.target] & (side > thick)[self.anchor]
            )
            parted &= ~crossed
            i, j = target[parted], anchor[parted]
            t = side[i] / (side[i] - side[j])
            at = p[i, axis] + t * (p[j, axis] - p[i, axis])
            crossed[parted] = (at > g.low[wall, axis]) & (at < g.high[wall, axis])
        return np.where(crossed, 0.15, 1.0)

    # ---------------------------------------------------------------------------------------------------------- sides

    @cached_property
    def seen(self) -> tuple[F64, F64]:
        """S, S in [0, 1]: target left of, and in front of, the anchor, seen by a viewer who looks at the anchor.

        Without a viewer: the mean over plausible viewpoints.
        """
        u, share = self.g.lines_of_sight
        half_width = 0.5 * self.g.size[:, :2].max(axis=1, initial=0.0)[self.anchor]
        x, y = self.offset[..., 0], self.offset[..., 1]
        left, before = np.zeros(self.shape), np.zeros(self.shape)
        for view in range(len(u)):
            ux, uy = u[view, :, 0][self.anchor], u[view, :, 1][self.anchor]
            lateral, ahead = y * ux - x * uy, x * ux + y * uy  # to the left of, and along, the line of sight
            counts = share[view][self.anchor]
            left += counts * sigmoid(lateral / 0.2)
            beside = np.exp(-np.maximum(np.abs(lateral) - half_width - 0.2, 0.0) / 0.6)
            before += counts * sigmoid(-ahead / 0.25) * beside
        return left, before

    def along(self, direction: F64) -> F64:
        """S offset along the (N, 2) direction of each anchor."""
        return np.asarray(
            self.offset[..., 0] * direction[:, 0][self.anchor] + self.offset[..., 1] * direction[:, 1][self.anchor]
        )

    def faced(self, quarter_turns: int = 0, spread: float = 0.0) -> F64:
        """S likelihood: target before the anchor's front (0), its own left (1), back (2), or right side (3).

        The strip before the side widens by ``spread`` metres a metre, to each hand.
        """
        g = self.g
        half = 0.5 * g.size[:, :2]  # (N, 2) along the own x and y
        total = np.zeros(self.shape)
        for k in range(4):
            share = g.fronts[:, k][self.anchor]
            if not (share > 0.01).any():
                continue
            turned = (k + quarter_turns) % 4
            side = g.sides[:, turned]
            beside = np.stack([-side[:, 1], side[:, 0]], axis=1)
            wide, deep = (half[:, 0], half[:, 1]) if turned % 2 == 0 else (half[:, 1], half[:, 0])
            reach = 0.5 * (np.abs(beside)[self.anchor] * g.extent[:, :2][self.target]).sum(axis=-1)
            aside = np.maximum(np.abs(self.along(beside)) - wide[self.anchor] - reach, 0.0)
            ahead = self.along(side) - 0.6 * deep[self.anchor]
            total += share * sigmoid(ahead / 0.06) * sigmoid((0.25 + spread * np.maximum(ahead, 0.0) - aside) / 0.08)
        return total


# ------------------------------------------------------------------------------------------------------ the relations


def _near(p: Pairs) -> F64:
    return np.asarray(0.8 * np.exp(-p.gap / 0.5) + 0.2 * np.exp(-p.distance_xy / 1.0))


def near_beyond(gap_m: float) -> float:
    """Upper limit of the score of "near" for bounds further apart than ``gap_m`` along x or y."""
    return float(0.8 * np.exp(-gap_m / 0.5) + 0.2 * np.exp(-gap_m / 1.0))


def _side(own: str, quarter_turns: int) -> Relation:
    """A side of the anchor: "own-left" is its own side, "left" the viewer's where the viewpoint is known."""

    def score(p: Pairs) -> F64:
        left, before = p.seen
        name = own.removeprefix("own-")
        seen = np.exp(-p.gap / 1.2)
        if name in ("left", "right"):
            z = p.g.center[:, 2]
            seen = seen * np.exp(-np.abs(z[p.target] - z[p.anchor]) / 1.2) * (left if name == "left" else 1.0 - left)
        elif name == "front":
            seen = seen * before
        else:
            seen = seen * np.clip(1.0 - before, 0.0, 1.0) * np.exp(-p.distance_xy / 3.0)
        if own in ("left", "right") and p.g.viewer is not None:
            return np.asarray(seen)
        oriented = np.clip(p.g.fronts.sum(1), 0.0, 1.0)[p.anchor]
        faced = p.faced(quarter_turns, _SPREAD) * (0.3 + 0.7 * p.faced(quarter_turns))
        return np.asarray(faced * sigmoid((_REACH_M - p.gap) / 0.3) + (1.0 - oriented) * seen)

    return score


def _end(p: Pairs) -> F64:
    """At a short side of the anchor: beyond one end of its longer axis, not at its long sides."""
    size = p.g.size[:, :2]
    length, width = size.max(1, initial=0.0)[p.anchor], size.min(1, initial=np.inf)[p.anchor]
    axis = np.where((size[:, 0] >= size[:, 1])[:, None], p.g.sides[:, 1], p.g.sides[:, 0])  # (N, 2)
    along = np.abs(p.along(axis))
    aside = np.abs(p.along(np.stack([axis[:, 1], -axis[:, 0]], axis=1)))
    beyond = sigmoid((along - 0.5 * length + 0.1) / 0.12) * sigmoid((0.5 * width + 0.2 - aside) / 0.12)
    return np.asarray(np.exp(-p.gap / 0.5) * (0.3 + 0.7 * beyond))


def _across(p: Pairs) -> F64:
    low, high = p.g.room
    width = min(float(high[0] - low[0]), float(high[1] - low[1]))
    apart = np.exp(-np.abs(p.distance_xy - 0.75 * width) / 1.0)
    level = np.minimum(np.abs(p.offset[..., 0]), np.abs(p.offset[..., 1])) < 1.0
    return np.asarray(0.95 * apart * level + 0.05)


def _turned(quarter_turns: int) -> Relation:
    """The target's front (0) or back (2) points at the anchor; without a front opposite sides of the room, or near."""
    unknown = _near if quarter_turns else _across

    def score(p: Pairs) -> F64:
        oriented = np.clip(p.g.fronts.sum(1), 0.0, 1.0)[p.target]
        return np.asarray(p.swapped.faced(quarter_turns) * np.exp(-p.gap / 4.0) + (1.0 - oriented) * unknown(p))

    return score


def between(first: Pairs, second: Pairs) -> F64:
    """S score: target between the anchors of its first and second pair, in the plane, within the strip between them."""
    g = first.g
    center, broad = g.center[:, :2], g.extent[:, :2].max(axis=1, initial=0.0)
    axis = center[second.anchor] - center[first.anchor]
    length2 = (axis * axis).sum(-1) + 1e-6
    from_a = first.offset
    along = (from_a * axis).sum(-1) / length2
    across = np.linalg.norm(from_a - along[..., None] * axis, axis=-1)
    width = np.maximum(0.5 * np.minimum(broad[first.anchor], broad[second.anchor]), 0.2)
    inside = sigmoid((along - 0.1) / 0.05) * sigmoid((0.9 - along) / 0.05)
    near = np.exp(-(first.gap + second.gap) / 2.5)
    score = inside * np.exp(-np.maximum(across - width, 0.0) / 0.4) * (0.5 + 0.5 * near)
    foot, top = g.low[:, 2], g.high[:, 2]
    low = np.maximum(foot[first.anchor], foot[second.anchor])  # of what both anchors have in common
    high = np.minimum(top[first.anchor], top[second.anchor])
    off = np.maximum(foot[first.target] - np.maximum(high, low), np.minimum(low, high) - top[first.target])
    height = np.maximum(g.extent[:, 2][first.anchor], g.extent[:, 2][second.anchor])
    score = score * np.exp(-np.maximum(off, 0.0) / np.clip(height, _LOW_M, 1.0))  # a wall cabinet is not between cups
    stacked = Pairs(g, first.anchor, second.anchor).footprint_share > _STACKED
    middle = g.center[:, 2][first.target]
    ends = g.center[:, 2][first.anchor], g.center[:, 2][second.anchor]
    level = (middle - np.minimum(*ends)) / np.maximum(np.abs(ends[0] - ends[1]), 1e-6)
    over = np.minimum(first.footprint_share, second.footprint_share) > _STACKED
    score = np.where(stacked & over, sigmoid((level - 0.1) / 0.05) * sigmoid((0.9 - level) / 0.05), score)
    carries = np.maximum(is_on(first.swapped), is_on(second.swapped))  # the table under both cups
    return np.asarray(score * (1.0 - carries) * first.different * second.different)


# ----------------------------------------------------------------------------------------------------------------------
# Likelihood that people would say that a relation holds: near 1 where it does, near 0 where it plainly does not. The
# scores above rank objects; these decide whether an object fits at all. They are monotone in distances and tolerate box
# errors of decimetres. The thresholds were set by hand on hand-made rooms and synthetic homes, not fitted to sentences.


NEAR_M = 1.2  # gap at which half of the people would still say "next to"
_BESIDE_M = 2.0  # the same for left, right, in front, behind
_SLACK_M = 0.3  # error of box heights
_APART_M = 1.5  # largest gap of an object on, or above, another
_KNOWN_FRONT = 0.9  # probability of a front that is known
_NOT_ABOVE = 0.6  # share of "above" that what stands on the anchor lacks: more than where all are asked for
_UNKNOWN_SIDE = 0.5  # likelihood of a side without viewpoint and front


def is_near(p: Pairs) -> F64:
    """Gap below about :data:`NEAR_M`."""
    return sigmoid((NEAR_M - p.gap) / 0.12)


def is_touching(p: Pairs) -> F64:
    """Gap below about 0.3 m: too close for "not near"."""
    return sigmoid((0.3 - p.gap) / 0.08)


def is_on(p: Pairs) -> F64:
    """Supported: over the footprint or touching its side, not far above its top, not at its foot."""
    low, high, extent = p.g.low[:, 2], p.g.high[:, 2], p.g.extent[:, 2]
    bottom, middle = low[p.target], p.g.center[:, 2][p.target]
    top, foot, height = high[p.anchor], low[p.anchor], extent[p.anchor]
    over = np.maximum(p.footprint_share, 0.5 * np.exp(-p.gap_xy / 0.1))
    lifted = sigmoid((bottom - foot - np.minimum(0.12, 0.5 * height)) / 0.03 + 1.0)
    reached_top = sigmoid((top + _SLACK_M - bottom) / 0.05)
    return np.asarray(sigmoid((over - 0.15) / 0.04) * reached_top * lifted * (middle > foot) * (p.gap_xy < _APART_M))


def is_inside(p: Pairs) -> F64:
    """A large part of the target within the anchor, or on it as in a bowl."""
    smaller = (p.g.volume[p.target] < p.g.volume[p.anchor]) & (p.share_within > 0)
    return np.asarray(np.maximum(sigmoid((p.share_within - 0.25) / 0.06) * smaller, 0.8 * is_on(p)))


def is_above(p: Pairs) -> F64:
    """Bottom not below the anchor's top, over its footprint or just beside it."""
    z = p.g.center[:, 2]
    rise = p.g.low[:, 2][p.target] - p.g.high[:, 2][p.anchor]
    over = np.maximum(sigmoid((p.footprint_share - 0.1) / 0.03), sigmoid((0.4 - p.gap_xy) / 0.08))
    return np.asarray(sigmoid((rise + _SLACK_M) / 0.05) * over * (z[p.target] > z[p.anchor]) * (p.gap_xy < _APART_M))


def is_below(p: Pairs) -> F64:
    """Under the anchor, or within the lower part of its box (a box under a bed)."""
    z, volume = p.g.center[:, 2], p.g.volume
    lower = (z[p.target] < z[p.anchor]) & (p.g.low[:, 2][p.target] < p.g.high[:, 2][p.anchor] - 0.1)
    smaller = volume[p.target] < volume[p.anchor]
    return np.asarray(np.maximum(is_above(p.swapped), sigmoid((p.footprint_share - 0.3) / 0.05) * lower * smaller))


def is_beside(name: str) -> Relation:
    """Left, right, in front of or behind the anchor, for the viewer or by the anchor's front."""

    def holds(p: Pairs) -> F64:
        g = p.g
        reach = sigmoid((_BESIDE_M - p.gap) / 0.2)
        distance = np.maximum(p.distance_xy, 1e-6)
        turns = {"front": 0, "left": 1, "behind": 2, "right": 3}[name]
        oriented = np.clip(g.fronts.sum(1), 0.0, 1.0)
        own = p.faced(turns, _SPREAD)
        seen = np.full(p.shape, _UNKNOWN_SIDE)
        if g.viewer is not None:
            towards = g.center[:, :2] - g.viewer.position
            along = towards / np.maximum(np.linalg.norm(towards, axis=1, keepdims=True), 1e-6)
            ahead = p.along(along)
            left = p.along(np.stack([-along[:, 1], along[:, 0]], axis=1))
            measure = {"front": -ahead, "behind": ahead, "left": left, "right": -left}[name]
            seen = sigmoid((measure / distance - 0.25) / 0.08)
        if name in ("front", "behind"):  # a known front decides
            known = g.fronts.max(axis=1, initial=0.0)[p.anchor] > _KNOWN_FRONT
            return np.asarray(reach * np.where(known, own, np.maximum(own, seen)))
        return np.asarray(reach * np.maximum(own, np.where(oriented > 0.9, 0.8, 1.0)[p.anchor] * seen))

    return holds


def is_turned(quarter_turns: int) -> Relation:
    """The target's front (0) or back (2) points at the anchor; undecided without a front."""

    def holds(p: Pairs) -> F64:
        oriented = np.clip(p.g.fronts.sum(1), 0.0, 1.0)[p.target]
        return np.asarray(p.swapped.faced(quarter_turns) + (1.0 - oriented) * _UNKNOWN_SIDE)

    return holds


_HELD: dict[str, Relation] = {
    "on": is_on,
    "supporting": lambda p: is_on(p.swapped),
    "with": lambda p: np.maximum.reduce([is_on(p.swapped), is_inside(p.swapped), is_near(p)]),  # on, in or beside it
    "in": is_inside,
    "above": lambda p: is_above(p) * (1.0 - _NOT_ABOVE * is_on(p)),
    "below": is_below,
}
LIKELIHOODS: dict[str, Relation] = {
    **_HELD,
    "near": is_near,
    "end": is_near,
    "facing": is_turned(0),
    "faced": lambda p: is_turned(0)(p.swapped),
    "back-to": is_turned(2),
    "front": is_beside("front"),
    "behind": is_beside("behind"),
    "left": is_beside("left"),
    "right": is_beside("right"),
}
# gap along x or y in metres beyond which the likelihood vanishes
LIKELIHOOD_REACH_M = {
    "facing": np.inf, "back-to": np.inf, "faced": np.inf,
    "near": 3.0, "end": 3.0, "with": 3.0, "on": 1.5, "supporting": 1.5, "in": 1.5, "above": 2.0, "below": 2.0,
    "front": 5.0, "behind": 5.0, "left": 5.0, "right": 5.0,
}  # fmt: skip
# scores that rank objects
PAIR_RELATIONS: dict[str, Relation] = {
    **_HELD,
    "near": _near,
    "front": _side("front", 0),
    "left": _side("left", 1),
    "behind": _side("behind", 2),
    "right": _side("right", 3),
    "own-left": _side("own-left", 1),
    "own-right": _side("own-right", 3),
    "across": _across,
    "facing": _turned(0),
    "faced": lambda p: _turned(0)(p.swapped),  # the anchor's front points at the target
    "back-to": _turned(2),
    "end": _end,
}

# reach of a relation: gap along x or y in metres beyond which its score vanishes; _ENDS decay lengths
_ENDS = 14.0
REACH_M = {
    "near": 1.0 * _ENDS, "with": 1.0 * _ENDS, "end": 0.5 * _ENDS,
    "on": 0.3 * _ENDS, "supporting": 0.3 * _ENDS, "in": 0.3 * _ENDS, "above": 0.3 * _ENDS, "below": 0.3 * _ENDS,
    "front": 1.2 * _ENDS, "left": 1.2 * _ENDS, "behind": 1.2 * _ENDS, "right": 1.2 * _ENDS,
    "own-left": 1.2 * _ENDS, "own-right": 1.2 * _ENDS,
    "across": np.inf, "facing": np.inf, "back-to": np.inf, "faced": np.inf,
}  # fmt: skip


def is_between(score: F64) -> F64:
    """Likelihood from the score of :func:`between`."""
    return sigmoid((score - 0.18) / 0.04)


def is_within(distance_m: F64, amount_m: float) -> F64:
    """Likelihood that a distance is at most ``amount_m``."""
    return sigmoid((1.02 * amount_m + 0.02 - distance_m) / (0.02 + 0.02 * amount_m))


def is_more_than(measure_m: F64, amount_m: float) -> F64:
    """Likelihood that a measure is more than ``amount_m``."""
    return sigmoid((measure_m - amount_m - 0.005) / (0.003 + 0.005 * amount_m))


def is_about(measures_m: F64, amount_m: float) -> F64:
    """(K, N) measures -> (N,) likelihood that one of the K is about ``amount_m``."""
    apart = np.maximum(np.abs(measures_m - amount_m).min(axis=0) - 0.03, 0.0) / (0.12 * amount_m + 1e-9)
    return np.asarray(np.exp(-0.5 * np.minimum(apart, 30.0) ** 2))


def from_viewer(g: SceneGeometry, name: str) -> F64:
    """(N,) likelihood of "behind-me", "ahead-of-me", "left-of-me" or "right-of-me"; NaN without a viewer."""
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
    """(N,) metres from the viewer to each box in the plane; NaN without a viewer."""
    if g.viewer is None:
        return np.full(g.n, np.nan)
    p = g.viewer.position
    apart = np.maximum(np.maximum(g.low[:, :2] - p, p - g.high[:, :2]), 0.0)
    return np.asarray(np.linalg.norm(apart, axis=1))


# ----------------------------------------------------------------------------------------------------------------------
# Canonical orientation. The front of an annotated box is -y. Predicted boxes have no known front, but furniture stands
# with its back to a wall, chairs face tables, pictures and windows look into the room: a conditional logit over the
# four sides estimates the front from the boxes around. Its weights are in ``lexicon/fronts.json``.

FrontSource = Literal["boxes", "estimated", "none"]

FRONT_WEIGHTS = Path(__file__).parent / "lexicon" / "fronts.json"
# labels of objects that look the same from all sides
WITHOUT_FRONT = word_set("without_front")
_ON_WALLS = word_set("on_walls")
_TABLES = word_set("tables")
_CEILING = frozenset(("light", "chandelier", "ceiling"))

FRONT_FEATURES = (
    "neighbours",
    "open_m",
    "open_behind_m",
    "depth_over_width",
    "table",
    "flush_behind",
    "flush",
    "shut",
    "shut_behind",
)
_NEIGHBOURS_M, _BAND_M, _FAR_M = 5.0, 2.5, 4.0
_FAR_OFF_M = 6.0  # boxes further away do not influence the front


def front_sources(sources: FrontSource | Sequence[FrontSource], count: int) -> tuple[FrontSource, ...]:
    """Expand to one source per box. Raises ``ValueError`` for unknown sources and another number than ``count``."""
    each = (sources,) * count if isinstance(sources, str) else tuple(sources)
    for source in (sources,) if isinstance(sources, str) else each:
        if source not in ("boxes", "estimated", "none"):
            raise ValueError(f'fronts must be "boxes", "estimated" or "none", got {source!r}')
    if len(each) != count:
        raise ValueError(f"fronts must be one source or one for each of {count} objects, got {len(each)}")
    return each


def front_probabilities(g: SceneGeometry, labels: Sequence[str], sources: FrontSource | Sequence[FrontSource]) -> F64:
    """(N, 4) probability that -y, +x, +y, -x of each box is its front; zero for objects without a front.

    ``sources`` is one for all boxes or one for each. Fronts are estimated only for possible anchors of ``g``.
    Raises ``ValueError`` for an unknown source.
    """
    source = np.array(front_sources(sources, g.n), dtype=object)
    known = np.zeros((g.n, 4))
    if g.n == 0:
        return known
    has_front = np.array([label not in WITHOUT_FRONT for label in labels])
    known[has_front & (source == "boxes"), 0] = 1.0
    estimated = has_front & (source == "estimated")
    rows = g.anchors[estimated[g.anchors]]
    if len(rows) == 0:
        return known
    shared, by_label = _front_weights()
    own = [next((by_label[name] for name in _alike(labels[row]) if name in by_label), shared) for row in rows]
    weights = np.stack(own)  # (K, F)
    logits = np.einsum("nkf,nf->nk", side_features(g, labels, rows), weights)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    known[rows] = share / share.sum(axis=1, keepdims=True)
    return known


def _alike(label: str) -> tuple[str, ...]:
    """Labels whose fronts are estimated alike: the label, those that mean the same, and its last word."""
    meanings = lexicon().meaning.get(label, {})
    return label, *sorted(meanings, key=lambda name: -meanings[name])[:1], label.split()[-1]


@lru_cache(maxsize=1)
def _front_weights() -> tuple[F64, dict[str, F64]]:
    """(F,) weights for any label, and by label."""
    data = json.loads(FRONT_WEIGHTS.read_text(encoding="utf-8"))
    if tuple(data["features"]) != FRONT_FEATURES:
        raise ValueError(f"{FRONT_WEIGHTS.name} has weights of {data['features']}, expected {list(FRONT_FEATURES)}")
    return np.array(data["shared"]), {label: np.array(row) for label, row in data["by_label"].items()}


def side_features(g: SceneGeometry, labels: Sequence[str], rows: NDArray[np.intp] | None = None) -> F64:
    """(K, 4, F) :data:`FRONT_FEATURES` of each side (-y, +x, +y, -x) of the boxes ``rows``, default all."""
    rows = np.arange(g.n, dtype=np.intp) if rows is None else rows
    everything = np.arange(g.n, dtype=np.intp)
    pairs = g.near(rows, everything, _FAR_OFF_M)  # each with all objects around, itself included
    pairs = pairs.where(np.ones(pairs.shape, dtype=bool))  # P of them, ordered by rows
    if len(rows) == 0:
        return np.zeros((0, 4, len(FRONT_FEATURES)))
    place = np.full(g.n, -1, dtype=np.intp)
    place[rows] = np.arange(len(rows))
    one = place[pairs.target]  # (P,)
    begin = np.searchsorted(one, np.arange(len(rows)))
    sides = g.sides[rows]
    towards = -pairs.offset  # (P, 2)
    distance = np.where(pairs.target == pairs.anchor, 1e9, np.maximum(pairs.distance_xy, 1e-6))
    ahead = np.einsum("pd,pkd->pk", towards, sides[one])  # (P, 4)
    cosine = ahead / distance[:, None]
    aside = np.sqrt(np.maximum(distance[:, None] ** 2 - ahead**2, 0.0))
    size = g.size[rows]
    half = 0.5 * np.stack([size[:, 1], size[:, 0], size[:, 1], size[:, 0]], axis=1)  # (K, 4) depth
    width = np.roll(half, 1, axis=1)
    closeness = np.exp(-distance / 1.5) * (distance < _FAR_OFF_M)
    neighbours = np.add.reduceat(closeness[:, None] * np.maximum(cosine, 0.0), begin)
    neighbours /= neighbours.sum(1, keepdims=True) + 1e-6
    # free depth beyond this side, up to the farthest object
    standing = np.array([label not in _CEILING for label in labels])[pairs.anchor]
    near = ((distance < _NEIGHBOURS_M) & standing)[:, None] & (aside < _BAND_M)
    depth = 0.5 * np.einsum("pkd,pd->pk", np.abs(sides)[one], g.extent[pairs.anchor, :2])
    reached = np.maximum.reduceat(np.where(near, ahead + depth, 0.0), begin)
    open_m = np.clip(reached - half, -0.5, _FAR_M)
    behind_m = np.roll(open_m, 2, axis=1)
    # chairs face tables
    is_table = np.array([label in _TABLES for label in labels])
    table = np.zeros((len(rows), 4))
    if is_table.any():
        at_table = np.exp(-pairs.gap_xy / 0.4)[:, None] * cosine
        table = np.maximum.reduceat(np.where(is_table[pairs.anchor, None], at_table, -1.0), begin)
        around = np.add.reduceat(is_table[pairs.anchor].astype(np.intp), begin)
        table = np.where(
            (around < int(is_table.sum()))[:, None], np.maximum(table, 0.0), table
        )  # no table within reach for the others
    # objects on a wall in the plane of this side
    hangs = np.array([label in _ON_WALLS for label in labels])[pairs.anchor] & (distance < _FAR_OFF_M)
    flush = np.exp(-np.abs(ahead - half[one] - 0.03) / 0.08) * (hangs[:, None] & (aside < 4.0))
    flush = np.minimum(np.add.reduceat(flush, begin), 3.0)
    columns = [
        neighbours, open_m, behind_m, np.log((half + 0.03) / (width + 0.03)), table, np.roll(flush, 2, axis=1), flush,
        (open_m < 0.15).astype(np.float64), (behind_m < 0.15).astype(np.float64),
    ]  # fmt: skip
    return np.stack(columns, axis=-1)
