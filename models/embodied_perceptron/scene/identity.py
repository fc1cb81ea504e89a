"""Identity of objects over time: a small appearance memory of each, and the probability that two are the same thing.

An :class:`Appearance` holds what the map has anyway: features of the image encoder, pooled over the object's voxels for
each of at most 8 view directions, histograms of its colours, and its shape as histograms of heights and radii. Two
objects are compared by these, by their extents and by the posteriors of their names. The weights were fitted on
generated homes whose portable objects had been carried. One object is never in two places: :func:`match` assigns one to
one, and a winner must be clear against every other candidate and against a new object.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds, box_rotations
from embodied_perceptron.mapping.block_copies import blocks_of
from embodied_perceptron.mapping.blocks import BLOCK_EDGE
from embodied_perceptron.mapping.image_features import LOOK_CHANNELS
from embodied_perceptron.mapping.voxel_counts import without_bottom
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.results import VoxelSnapshot

F64 = NDArray[np.float64]

VIEWS, FEATURES = 8, LOOK_CHANNELS
_NEW_VIEW = math.cos(math.radians(30.0))  # directions nearer than this are one view
_BALANCES, _LIGHTS, _SHAPES = 5, 8, 8  # bins of each chromaticity, of lightness, of heights and radii
_BALANCE_RANGE = 0.6  # log ratio of two colour channels in the outermost bins
_MAX_POINTS, _LEAST_POINTS = 512, 12
_VIEW_MEMORY = 4.0  # weight of a stored view against a new one of the same direction, at most

# (features (N, FEATURES) float32, (N,) bool visible, (3,) camera position) for each recent keyframe
ImageSampler: TypeAlias = Callable[[F64], Sequence[tuple[NDArray[np.float32], NDArray[np.bool_], F64]]]


@dataclass(frozen=True)
class IdentityWeights:
    """Log-odds that two objects are one, from their differences: the first seven are fitted, the others are chosen.
    Similarities are in [0, 1], 1 = equal.

    Attributes:
        bias: for equal objects.
        view: times 1 - the best similarity of image features over pairs of views.
        balance, light: times 1 - the similarity of the histograms of chromaticity and of lightness.
        shape: times 1 - the similarity of the histograms of heights and radii.
        extent: times the root mean square of the log ratios of height, length and width.
        name: times 1 - the overlap of the posteriors of names.
        discovered: added where the map does not show that the new object was put there: it may be discovered late.
        least: probability of a clear winner.
        mentioned: least probability of a further candidate.
    """

    bias: float
    view: float
    balance: float
    light: float
    shape: float
    extent: float
    name: float
    discovered: float = -1.0
    least: float = 0.85
    mentioned: float = 0.1


FEATURE_NAMES = ("view", "balance", "light", "shape", "extent", "name")
WEIGHTS_FILE = Path(__file__).with_name("identity.json")  # of pairs of sightings in generated homes; with its command
WEIGHTS = IdentityWeights(**json.loads(WEIGHTS_FILE.read_text(encoding="utf-8"))["weights"])


@dataclass
class Appearance:
    """What an object looked like; 1.3 kB.

    Attributes:
        views: (V, FEATURES) float16 unit vectors, at most :data:`VIEWS`.
        directions: (V, 3) float16 from the object to the camera.
        weights: (V,) float16.
        color: uint8 histograms of chromaticity and lightness; empty = not measured.
        shape: uint8 histograms of heights and radii; empty = not measured.
    """

    views: NDArray[np.float16] = field(default_factory=lambda: np.zeros((0, FEATURES), np.float16))
    directions: NDArray[np.float16] = field(default_factory=lambda: np.zeros((0, 3), np.float16))
    weights: NDArray[np.float16] = field(default_factory=lambda: np.zeros(0, np.float16))
    color: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    shape: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))

    def look(self, box: F64, snapshot: VoxelSnapshot, image: ImageSampler | None) -> None:
        """Update with the map in a (9,) box."""
        points, colors, local, _ = voxels_inside(box, snapshot)
        if len(points) < _LEAST_POINTS:
            return
        self.color, self.shape = _color_of(colors), _shape_of(local)
        for features, seen, camera_m in () if image is None else image(points):
            if seen.sum() >= _LEAST_POINTS:
                self._add(features[seen].mean(axis=0), camera_m - box[:3], float(seen.mean()))

    def _add(self, feature: NDArray[np.float32], away: F64, weight: float) -> None:
        feature = feature / max(float(np.linalg.norm(feature)), 1e-9)
        away = away / max(float(np.linalg.norm(away)), 1e-9)
        near = self.directions.astype(np.float64) @ away
        k = int(near.argmax()) if len(near) else -1
        if k < 0 or (near[k] < _NEW_VIEW and len(near) < VIEWS):
            self.views = np.concatenate([self.views, feature[None].astype(np.float16)])
            self.directions = np.concatenate([self.directions, away[None].astype(np.float16)])
            self.weights = np.append(self.weights, np.float16(weight))
            return
        old = float(self.weights[k])
        mean = (old * self.views[k].astype(np.float32) + weight * feature) / max(old + weight, 1e-9)
        self.views[k] = mean / max(float(np.linalg.norm(mean)), 1e-9)
        self.weights[k] = min(old + weight, _VIEW_MEMORY)

    def absorb(self, other: Appearance) -> None:
        """Add the views of the same object elsewhere; the latest colours and shape stay."""
        for view, away, weight in zip(other.views, other.directions, other.weights, strict=True):
            self._add(view.astype(np.float32), away.astype(np.float64), float(weight))
        self.color = self.color if len(self.color) else other.color
        self.shape = self.shape if len(self.shape) else other.shape

    def to_list(self) -> list[Any]:
        """JSON form: texts of at most 100 characters, as all texts in a map file. Views are rounded to 8 bits."""
        scaled = self.views.astype(np.float64) * (127.0 / np.abs(self.views).max(axis=1, initial=1e-3, keepdims=True))
        views = [_coded(np.round(view).astype(np.int8)) for view in scaled]
        cameras = np.column_stack([self.directions, self.weights]).astype(np.float64).round(2).tolist()
        return [views, cameras, _coded(self.color), _coded(self.shape)]

    @classmethod
    def from_list(cls, value: Any) -> Appearance:
        """Inverse of :meth:`to_list`. Raises ``ValueError`` for other values."""
        parts = plain_values.sequence(value, "appearance")
        if len(parts) != 4:
            raise ValueError(f"an appearance must have 4 parts, got {len(parts)}")
        codes = plain_values.sequence(parts[0], "views")
        if len(codes) > VIEWS:
            raise ValueError(f"an appearance must have at most {VIEWS} views, got {len(codes)}")
        cameras = plain_values.numbers(parts[1], "cameras of views", len(codes), 4) if codes else np.zeros((0, 4))
        views = np.array([_decoded(code, np.int8, FEATURES) for code in codes], np.float32).reshape(-1, FEATURES)
        views /= np.maximum(np.linalg.norm(views, axis=1, keepdims=True), 1e-9)
        color, shape = _decoded(parts[2], np.uint8, _BALANCES**2 + _LIGHTS), _decoded(parts[3], np.uint8, 2 * _SHAPES)
        away = cameras.clip(-_VIEW_MEMORY, _VIEW_MEMORY).astype(np.float16)
        return cls(views.astype(np.float16), away[:, :3], away[:, 3], color, shape)


def _coded(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


def _decoded(text: Any, dtype: type[np.generic], size: int) -> NDArray[Any]:
    if not isinstance(text, str) or not text.isascii():
        raise ValueError(f"an appearance has {text!r:.40} where a code must be")
    values: NDArray[Any] = np.frombuffer(base64.b64decode(text, validate=True), dtype).copy()
    if len(values) not in (size, 0 if dtype is np.uint8 else size):
        raise ValueError(f"an appearance has a code of {len(values)} values, must have {size}")
    return values


def voxels_inside(box: F64, snapshot: VoxelSnapshot) -> tuple[F64, NDArray[np.uint8], F64, NDArray[np.int64]]:
    """Points (N, 3), their colours, their positions in the box in [-1, 1], and stamps; at most :data:`_MAX_POINTS`."""
    raised = without_bottom(box[None])
    bounds, blocks = Bounds.of(raised), blocks_of(snapshot)
    edge_m = BLOCK_EDGE * snapshot.voxel_size_m
    low, high = np.floor(bounds.low[0] / edge_m), np.floor(bounds.high[0] / edge_m)
    ranges = blocks.ranges[((blocks.coords >= low) & (blocks.coords <= high)).all(axis=1)]
    rows = np.concatenate([np.arange(a, b) for a, b in ranges.tolist()] or [np.zeros(0, np.int64)])
    points = blocks.arena.points_m[rows].astype(np.float64)
    local = (points - raised[0, :3]) @ box_rotations(raised)[0] / np.maximum(raised[0, 3:6] / 2, 1e-6)
    kept = np.flatnonzero((np.abs(local) <= 1.0).all(axis=1))
    kept = kept[:: max(1, -(-len(kept) // _MAX_POINTS))]
    return points[kept], blocks.arena.colors[rows[kept]], local[kept], blocks.arena.last_seen_ns[rows[kept]]


def last_seen(box: F64, snapshot: VoxelSnapshot) -> int:
    """Newest time at which a camera saw a twentieth of the voxels in a (9,) box; 0 without voxels. Single voxels at its
    border, of a wall or of a neighbour, may be newer than the object."""
    stamps = np.sort(voxels_inside(box, snapshot)[3])
    return int(stamps[-1 - len(stamps) // 20]) if len(stamps) else 0


def _histogram(index: NDArray[np.integer[Any]], bins: int) -> NDArray[np.uint8]:
    counts = np.bincount(index, minlength=bins)
    return np.asarray(np.round(255.0 * counts / max(counts.sum(), 1)), np.uint8)


def _color_of(colors: NDArray[np.uint8]) -> NDArray[np.uint8]:
    rgb = np.log(colors.astype(np.float64) + 8.0)
    balance = np.stack([rgb[:, 0] - rgb[:, 1], rgb[:, 2] - rgb[:, 1]], axis=1)
    cell = np.floor((balance / (2 * _BALANCE_RANGE) + 0.5) * _BALANCES).clip(0, _BALANCES - 1).astype(np.int64)
    light = (colors.mean(axis=1) * (_LIGHTS / 256.0)).astype(np.int64)
    return np.concatenate([_histogram(cell[:, 0] * _BALANCES + cell[:, 1], _BALANCES**2), _histogram(light, _LIGHTS)])


def _shape_of(local: F64) -> NDArray[np.uint8]:
    height = ((local[:, 2] + 1.0) * (_SHAPES / 2.0)).astype(np.int64).clip(0, _SHAPES - 1)
    radius = (np.hypot(local[:, 0], local[:, 1]) * (_SHAPES / math.sqrt(2.0))).astype(np.int64).clip(0, _SHAPES - 1)
    return np.concatenate([_histogram(height, _SHAPES), _histogram(radius, _SHAPES)])


# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Identified:
    """An object as far as its identity is concerned: appearance, (9,) box, and posterior of its name."""

    appearance: Appearance
    box: F64
    names: Mapping[str, float]


def differences(a: Identified, b: Identified, mean_view: NDArray[np.float32] | None = None) -> F64:
    """(6,) differences in the order of :class:`IdentityWeights`; NaN = not measured. ``mean_view``: (FEATURES,) mean of
    the views of all objects, which says nothing about one."""
    first, second = a.appearance, b.appearance
    view = balance = light = shape = math.nan
    if len(first.views) and len(second.views):
        x, y = (_centered(v.views, mean_view) for v in (first, second))
        view = 1.0 - float((x @ y.T).max())
    if len(first.color) and len(second.color):
        p, q = (np.sqrt(v.color.astype(np.float64) / 255.0) for v in (first, second))
        shared = p * q
        balance, light = (1.0 - min(float(part.sum()), 1.0) for part in np.split(shared, [_BALANCES**2]))
    if len(first.shape) and len(second.shape):
        p, q = (np.sqrt(v.shape.astype(np.float64) / 510.0) for v in (first, second))
        shape = 1.0 - min(float((p * q).sum()), 1.0)
    sizes = np.array([[x.box[5], *sorted(x.box[3:5])] for x in (a, b)]).clip(0.02)
    extent = float(np.sqrt(np.mean(np.log(sizes[0] / sizes[1]) ** 2)))
    totals = [max(sum(x.names.values()), 1e-12) for x in (a, b)]
    overlap = sum(math.sqrt(p * b.names.get(name, 0.0)) for name, p in a.names.items()) / math.sqrt(math.prod(totals))
    return np.array([view, balance, light, shape, extent, 1.0 - min(overlap, 1.0)])


def _centered(views: NDArray[np.float16], mean_view: NDArray[np.float32] | None) -> NDArray[np.float32]:
    centered = views.astype(np.float32) - (0.0 if mean_view is None else mean_view)
    return np.asarray(centered / np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-6))


def log_odds(difference: F64, weights: IdentityWeights = WEIGHTS) -> float:
    """Log-odds that two objects with :func:`differences` are one; what was not measured counts as its mean."""
    w = np.array([getattr(weights, name) for name in FEATURE_NAMES])
    return weights.bias + float(w @ np.where(np.isnan(difference), USUAL, difference))


# parts of a building are found late or missed, and never carried
FIXED = frozenset({
    "balcony", "banister", "baseboard", "bathtub", "beam", "ceiling", "column", "counter", "countertop", "door",
    "doorframe", "doorway", "duct", "fireplace", "floor", "partition", "pillar", "pipe", "radiator", "roof",
    "shower", "sink", "stairs", "structure", "toilet", "wall", "window", "windowsill",
})  # fmt: skip
USUAL = np.array([0.1, 0.05, 0.1, 0.05, 0.1, 0.1])  # of one object at two times
LIKE = 0.8  # difference of extents from which objects are never one


def match(odds: F64, weights: IdentityWeights = WEIGHTS) -> tuple[dict[int, tuple[int, float]], F64]:
    """Assign new objects to earlier ones.

    Args:
        odds: (N, M) log-odds that new object n is the earlier one m; -inf = excluded.

    Returns:
        new row -> (earlier row, probability) of clear winners, one to one; and (N, M) probabilities. A new object is
        one of the earlier ones or another, and an earlier one is at most one of the new ones.
    """
    ratio = np.exp(np.minimum(odds, 30.0))
    by_new, by_old = ratio / (1.0 + ratio.sum(axis=1, keepdims=True)), ratio / (1.0 + ratio.sum(axis=0, keepdims=True))
    probability = np.minimum(by_new, by_old)
    winners: dict[int, tuple[int, float]] = {}  # more likely than not, so at most one in a row and a column
    for n, m in zip(*np.nonzero(probability >= weights.least), strict=True):
        winners[int(n)] = int(m), float(probability[n, m])
    return winners, probability
