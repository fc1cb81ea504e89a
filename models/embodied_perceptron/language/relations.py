"""Spatial relations between boxes: per relation a matrix of scores in [0, 1], row target, column anchor.

The definitions are those of the benchmark's prompts (EmbodiedScan, SR3D) with soft edges, so that noisy boxes lose
little: support and vertical relations by footprints and heights, "between" in the plane, front and behind of an anchor
by its front where it has one, otherwise as seen by who speaks.

Left and right of an anchor are the speaker's wherever it is known from where the sentence is spoken: "left of the
couch" is left in the picture that the speaker sees. The anchor's own side ("on the couch's left", for who sits on it)
is meant where the sentence says so, and in the benchmark's prompts, whose speaker stands nowhere.

Everything is computed in a frame that is turned with the furniture (:func:`main_direction`), so the result does not
depend on the yaw and origin of the world, and axis-aligned bounds are tight for rooms that are rectangular anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds, box_rotations
from embodied_perceptron.scene.identity import RELATED_IOU

F64 = NDArray[np.float64]
Relation = Callable[["SceneGeometry"], F64]

_SECTOR_COS = float(np.cos(np.deg2rad(40.0)))  # half width of front, behind, left, right (the benchmark's prompts)
_REACH_M = 2.5  # from the outline of the anchor
_VIEWER_REACH_M = 3.5
_VIEW_CELLS = 4  # plausible viewpoints: a grid of so many by so many over the room


@dataclass(frozen=True, eq=False)
class Viewer:
    """Where somebody stands and looks, in the frame of the boxes.

    Attributes:
        position: (2,) metres.
        heading: (2,) unit vector.
    """

    position: F64
    heading: F64


def viewer_of(pose: NDArray[np.floating]) -> Viewer:
    """The viewer of a (4, 4) pose in the world: a camera's (z forward, y down) or a robot's (x forward, z up).

    Which one it is shows in its third axis: up for a robot, level for a camera. Of a camera that looks straight down,
    the upper edge of the image is ahead. Raises ``ValueError`` for anything that is no finite (4, 4) matrix.
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
    """Yaw of most of the furniture in [-pi/4, pi/4], weighted by size; 0 for no boxes."""
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
    """Geometry of N boxes, made once per answer; relations are computed on first use.

    Args:
        boxes: (N, 9) world frame.
        fronts: (N, 4) probability that -y, +x, +y, -x of the box is the object's front; the rest to 1 is the
            probability that it has no front. None = unknown.
        viewer: the speaker, world frame, or None.
        barriers: (N,) bool: which boxes are walls, that stand between rooms.
        anchors: (N,) bool: which boxes may be anchors; None = all. Fronts and views, which cost most, are computed for
            these alone.
        own_sides: "left of" is the anchor's own left although a speaker stands somewhere, as in prompts of benchmarks.
    """

    def __init__(
        self,
        boxes: F64,
        fronts: F64 | None = None,
        viewer: Viewer | None = None,
        barriers: NDArray[np.bool_] | None = None,
        anchors: NDArray[np.bool_] | None = None,
        own_sides: bool = False,
    ) -> None:
        self.own_sides = own_sides
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
        self._fronts: F64 | Callable[[], F64] = np.zeros((self.n, 4)) if fronts is None else fronts
        self.viewer = None if viewer is None else Viewer(self._turn @ viewer.position, self._turn @ viewer.heading)
        self.barriers = np.zeros(self.n, bool) if barriers is None else barriers
        every = np.arange(self.n, dtype=np.intp)
        self.anchors: NDArray[np.intp] = every if anchors is None else every[anchors]
        self._matrices: dict[str, F64] = {}

    @property
    def fronts(self) -> F64:
        """(N, 4) see the constructor; estimated on first use."""
        if callable(self._fronts):
            self._fronts = self._fronts()
        return self._fronts

    def tell_fronts(self, fronts: Callable[[], F64]) -> None:
        """Estimate the fronts by this function, if a sentence needs them."""
        self._fronts = fronts

    # ------------------------------------------------------------------------------------------------- pair geometry

    @cached_property
    def offset(self) -> F64:
        """(N, N, 2) centre of the target less centre of the anchor."""
        return np.asarray(self.center[:, None, :2] - self.center[None, :, :2])

    @cached_property
    def distance_xy(self) -> F64:
        """(N, N) between centres, in the plane."""
        return np.asarray(np.linalg.norm(self.offset, axis=-1))

    @cached_property
    def _gaps(self) -> F64:
        apart = np.maximum(self.low[:, None] - self.high[None], self.low[None] - self.high[:, None])
        return np.asarray(np.maximum(apart, 0.0))

    @cached_property
    def gap(self) -> F64:
        """(N, N) metres between bounds, 0 where they touch."""
        return np.asarray(np.linalg.norm(self._gaps, axis=-1))

    @cached_property
    def gap_xy(self) -> F64:
        """(N, N) metres between bounds in the plane."""
        return np.asarray(np.linalg.norm(self._gaps[..., :2], axis=-1))

    @cached_property
    def overlap(self) -> F64:
        """(N, N, 3) common extent along each axis."""
        return np.stack([self.bounds.common_extent(self.bounds, axis) for axis in range(3)], axis=-1)

    @cached_property
    def iou(self) -> F64:
        """(N, N) of the bounds."""
        return self.bounds.iou(self.bounds)

    @cached_property
    def inside(self) -> F64:
        """(N, N) common volume of the bounds as a share of the smaller."""
        volume = self.bounds.volume
        return np.asarray(self.bounds.common_volume(self.bounds) / np.minimum(volume[:, None], volume[None]))

    def overlaps(self, boxes: F64) -> F64:
        """(N, K) IoU of the bounds with those of (K, 9) other boxes, world frame."""
        return self.bounds.iou(Bounds.of(boxes, self._turn))

    @cached_property
    def different(self) -> NDArray[np.bool_]:
        """(N, N): not the same thing (nor a second box of it)."""
        return self.iou < RELATED_IOU

    @cached_property
    def footprint_share(self) -> F64:
        """(N, N) common footprint as a share of the smaller one."""
        area = np.maximum(self.extent[:, 0] * self.extent[:, 1], 1e-4)
        common = self.overlap[..., 0] * self.overlap[..., 1]
        return np.asarray(np.clip(common / np.minimum(area[:, None], area[None]), 0.0, 1.0))

    @cached_property
    def same_room(self) -> F64:
        """(N, N) 1, or a little where the line between the centres crosses a wall."""
        walls = np.flatnonzero(self.barriers)
        crossed = np.zeros((self.n, self.n), bool)
        p = self.center[:, :2]
        for wall in walls:
            axis = int(np.argmax(self.extent[wall, :2]))
            across = 1 - axis
            if self.extent[wall, axis] < 4 * self.extent[wall, across]:
                continue  # no wall but a block
            side = p[:, across] - self.center[wall, across]
            beyond = np.abs(side) > 0.5 * self.extent[wall, across] + 0.02
            parted = (side[:, None] * side[None] < 0) & beyond[:, None] & beyond[None]
            t = side[:, None] / np.where(parted, side[:, None] - side[None], 1.0)
            at = p[:, None, axis] + t * (p[None, :, axis] - p[:, None, axis])
            crossed |= parted & (at > self.low[wall, axis]) & (at < self.high[wall, axis])
        return np.where(crossed, 0.15, 1.0)

    @cached_property
    def room(self) -> tuple[F64, F64]:
        """(3,), (3,) bounds of what is there, less a few outliers."""
        if self.n == 0:
            return np.zeros(3), np.ones(3)
        low, high = np.percentile(self.low, 4, axis=0), np.percentile(self.high, 96, axis=0)
        middle, half = 0.5 * (low + high), np.maximum(0.5 * (high - low), 0.5)
        return middle - half, middle + half

    # ---------------------------------------------------------------------------------------------------- relations

    def matrix(self, relation: str) -> F64:
        """(N, N) scores of a relation of :data:`PAIR_RELATIONS`; how much a box relates to itself means nothing."""
        if relation not in self._matrices:
            self._matrices[relation] = PAIR_RELATIONS[relation](self) * self.same_room
        return self._matrices[relation]

    @cached_property
    def reach_distance(self) -> F64:
        """(N, N) how far things are apart, metres: half between outlines, half between centres in the plane."""
        return np.asarray(0.5 * self.gap + 0.5 * self.distance_xy)

    @cached_property
    def view_points(self) -> F64:
        """(V, 2) where somebody may stand."""
        low, high = self.room
        share = np.linspace(0.15, 0.85, _VIEW_CELLS)
        grid = np.stack(np.meshgrid(share, share, indexing="ij"), axis=-1).reshape(-1, 2)
        return np.asarray(low[:2] + grid * (high - low)[:2])

    @cached_property
    def seen(self) -> tuple[F64, F64]:
        """(N, N), (N, N): how far the target is left of, and before, the anchor for who looks at the anchor; in [0, 1].

        With a viewer, from there; otherwise the mean over plausible viewpoints. Columns of what is no anchor are 0.
        """
        points = self.view_points if self.viewer is None else self.viewer.position[None]
        columns = self.anchors  # K of them
        d = self.center[None, columns, :2] - points[:, None]  # (V, K, 2) towards each anchor
        r = np.linalg.norm(d, axis=-1)
        u = d / np.maximum(r, 1e-6)[..., None]
        weight = np.clip((r - 0.6) / 1.0, 0.0, 1.0)
        if self.viewer is not None:  # so close that only the heading tells
            u = np.where((r < 0.5)[..., None], self.viewer.heading, u)
            weight = np.ones_like(r)
        x, y = self.offset[None, :, columns, 0], self.offset[None, :, columns, 1]  # (1, N, K)
        ux, uy = u[:, None, :, 0], u[:, None, :, 1]  # (V, 1, K)
        lateral, ahead = y * ux - x * uy, x * ux + y * uy  # (V, N, K) to the left of, and along, the line of prediction
        half_width = 0.5 * self.size[None, None, columns, :2].max(-1)
        side = sigmoid(lateral / 0.2)
        before = sigmoid(-ahead / 0.25) * np.exp(-np.maximum(np.abs(lateral) - half_width - 0.2, 0.0) / 0.6)
        share = (weight / np.maximum(weight.sum(0), 1e-6))[:, None]
        return self._spread((side * share).sum(0)), self._spread((before * share).sum(0))

    def sector(self, quarter_turns: int) -> F64:
        """(N, N) whether the target lies in front of the anchor (0), to its own left (1), behind (2), right (3)."""
        columns = self.anchors  # K of them
        distance = np.maximum(self.distance_xy[:, columns], 1e-6)
        reach = _REACH_M + 0.5 * np.linalg.norm(self.extent[columns, :2], axis=1)[None]
        near = sigmoid((reach - distance) / 0.3) * sigmoid((distance - 0.15) / 0.05)
        x, y = self.offset[:, columns, 0], self.offset[:, columns, 1]  # (N, K)
        total = np.zeros((self.n, len(columns)))
        for k in range(4):
            share = self.fronts[columns, k]
            if not (share > 0.01).any():
                continue
            direction = self.sides[columns, (k + quarter_turns) % 4]
            cosine = (x * direction[None, :, 0] + y * direction[None, :, 1]) / distance
            total += share[None] * sigmoid((cosine - _SECTOR_COS) / 0.06)
        return self._spread(total * near)

    def viewer_side(self, sign: float) -> F64:
        """(N, N) left (+1) or right (-1) of the anchor for who stands before its front and faces it."""
        columns = self.anchors  # K of them
        x, y = self.offset[:, columns, 0], self.offset[:, columns, 1]  # (N, K)
        total = np.zeros((self.n, len(columns)))
        for k in range(4):
            front = self.sides[columns, k]  # the viewer looks along -front
            lateral = sign * (x * front[None, :, 1] - y * front[None, :, 0])
            ahead = np.abs(x * front[None, :, 0] + y * front[None, :, 1])
            aside = sigmoid((lateral - 0.3) / 0.1) * sigmoid((1.5 * np.abs(lateral) - ahead) / 0.15)
            total += self.fronts[columns, k][None] * aside
        unknown = np.clip(1.0 - self.fronts[columns].sum(1), 0.0, 1.0)[None]
        seen_left = self.seen[0][:, columns]
        seen = seen_left if sign > 0 else 1.0 - seen_left
        total += unknown * seen * np.exp(-self.gap[:, columns] / 1.2)
        return self._spread(total * sigmoid((_VIEWER_REACH_M - self.distance_xy[:, columns]) / 0.3))

    def _spread(self, columns: F64) -> F64:
        """(N, K) of the anchors -> (N, N), zero for what is none."""
        matrix = np.zeros((self.n, self.n))
        matrix[:, self.anchors] = columns
        return matrix


# ------------------------------------------------------------------------------------------------------ the relations


def _near(g: SceneGeometry) -> F64:
    return np.asarray(0.8 * np.exp(-g.gap / 0.5) + 0.2 * np.exp(-g.distance_xy / 1.0))


def _on(g: SceneGeometry) -> F64:
    """Carried: footprints overlap, and the bottom is at the top of the anchor, or within it (a seat with a back)."""
    bottom = g.low[:, None, 2]
    top, foot = g.high[None, :, 2], g.low[None, :, 2]
    share = np.maximum(g.footprint_share, 0.3 * np.exp(-g.gap_xy / 0.3))
    touching = np.exp(-np.abs(bottom - top) / 0.12)
    within = 0.6 * sigmoid((bottom - foot - 0.1) / 0.05) * sigmoid((top + 0.05 - bottom) / 0.05)
    higher = sigmoid((g.center[:, None, 2] - g.center[None, :, 2]) / 0.1)
    return np.asarray(share * (0.75 * np.maximum(touching, within) + 0.25 * higher) * higher)


def _in(g: SceneGeometry) -> F64:
    """The share of the target that lies within the anchor."""
    inside = (g.overlap / np.maximum(g.extent[:, None], 1e-3)).clip(0.0, 1.0).prod(-1)
    smaller = sigmoid((np.log(g.volume)[None] - np.log(g.volume)[:, None]) / 0.3)
    return np.asarray(inside * smaller)


def _above(g: SceneGeometry) -> F64:
    rise = g.low[:, None, 2] - g.high[None, :, 2]
    higher = sigmoid((g.center[:, None, 2] - g.center[None, :, 2] - 0.15) / 0.12)
    clear = 0.5 + 0.5 * sigmoid((rise + 0.02) / 0.04)
    over = np.maximum(sigmoid((g.footprint_share - 0.4) / 0.08), 0.55 * np.exp(-g.gap_xy / 0.3))
    return np.asarray(higher * clear * over * np.exp(-np.maximum(rise, 0.0) / 1.5))


def _below(g: SceneGeometry) -> F64:
    lower = sigmoid((g.high[None, :, 2] - 0.1 - g.low[:, None, 2]) / 0.05)
    tucked = 0.6 * g.footprint_share * (g.volume[:, None] < g.volume[None]) * lower
    return np.asarray(np.maximum(_above(g).T, tucked))


def _side(own: str, quarter_turns: int) -> Relation:
    """A side of the anchor; "own-left" is its own whoever speaks, "left" the speaker's where one stands somewhere."""

    def score(g: SceneGeometry) -> F64:
        left, before = g.seen
        level = np.exp(-np.abs(g.center[:, None, 2] - g.center[None, :, 2]) / 1.2)
        close = np.exp(-g.gap / 1.2)
        name = own.removeprefix("own-")
        seen = {
            "left": left * level * close,
            "right": (1.0 - left) * level * close,
            "front": before * close,
            "behind": np.clip(1.0 - before, 0.0, 1.0) * close * np.exp(-g.distance_xy / 3.0),
        }[name]
        if own in ("left", "right") and g.viewer is not None and not g.own_sides:
            return np.asarray(seen)
        oriented = np.clip(g.fronts.sum(1), 0.0, 1.0)[None]
        return np.asarray(g.sector(quarter_turns) + (1.0 - oriented) * seen)

    return score


def _end(g: SceneGeometry) -> F64:
    """At a short side of the anchor: beyond one end of its longer axis, not at its long sides."""
    size = g.size[:, :2]
    length, width = size.max(1)[None], size.min(1)[None]
    axis = np.where((size[:, 0] >= size[:, 1])[:, None], g.sides[:, 1], g.sides[:, 0])  # (N, 2)
    along = np.abs((g.offset * axis[None]).sum(-1))
    aside = np.abs(g.offset[..., 0] * axis[None, :, 1] - g.offset[..., 1] * axis[None, :, 0])
    beyond = sigmoid((along - 0.5 * length + 0.1) / 0.12) * sigmoid((0.5 * width + 0.2 - aside) / 0.12)
    return np.asarray(np.exp(-g.gap / 0.5) * (0.3 + 0.7 * beyond))


def _across(g: SceneGeometry) -> F64:
    low, high = g.room
    width = min(float(high[0] - low[0]), float(high[1] - low[1]))
    apart = np.exp(-np.abs(g.distance_xy - 0.75 * width) / 1.0)
    level = np.abs(g.offset).min(-1) < 1.0
    return np.asarray(0.95 * apart * level + 0.05)


def _with(g: SceneGeometry) -> F64:
    return np.asarray(np.maximum(_on(g).T, np.maximum(_in(g).T, 0.7 * _near(g))))


PAIR_RELATIONS: dict[str, Relation] = {
    "near": _near,
    "on": _on,
    "supporting": lambda g: _on(g).T,
    "with": _with,
    "in": lambda g: np.maximum(_in(g), 0.8 * _on(g)),
    "above": lambda g: np.maximum(_above(g), 0.25 * _on(g)),
    "below": _below,
    "front": _side("front", 0),
    "left": _side("left", 1),
    "behind": _side("behind", 2),
    "right": _side("right", 3),
    "own-left": _side("own-left", 1),
    "own-right": _side("own-right", 3),
    "across": _across,
    "end": _end,
    "viewer-left": lambda g: g.viewer_side(1.0),
    "viewer-right": lambda g: g.viewer_side(-1.0),
}


def between(g: SceneGeometry, a: int, b: int) -> F64:
    """(N,) how well each box lies between boxes ``a`` and ``b``: in the plane, within the strip, inside its ends."""
    axis = g.center[b, :2] - g.center[a, :2]
    length2 = float(axis @ axis) + 1e-6
    from_a = g.center[:, :2] - g.center[a, :2]
    along = from_a @ axis / length2
    across = np.linalg.norm(from_a - along[:, None] * axis, axis=1)
    width = max(0.5 * float(min(g.extent[a, :2].max(), g.extent[b, :2].max())), 0.2)
    inside = sigmoid((along - 0.1) / 0.05) * sigmoid((0.9 - along) / 0.05)
    near = np.exp(-(g.gap[:, a] + g.gap[:, b]) / 2.5)
    score = inside * np.exp(-np.maximum(across - width, 0.0) / 0.4) * (0.5 + 0.5 * near)
    return np.asarray(score * g.different[:, a] * g.different[:, b])
