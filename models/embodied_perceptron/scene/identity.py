"""Identity of objects over time: a small appearance memory of each, and the probability that two are the same thing.

An :class:`Appearance` holds what the map has anyway: features of the image encoder, pooled over the object's voxels for
each of at most 8 view directions, and a histogram of its chromaticity. Two objects are compared by these, by their
extents and by the posteriors of their names. The weights were fitted on generated homes whose portable objects had been
carried. Lightness and shape were measured too and told nothing more. One object is never in two places: :func:`match`
assigns one to one, and a winner must be clear against every other candidate and against a new object.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds, box_rotations
from embodied_perceptron.mapping.block_copies import blocks_of, row_ranges
from embodied_perceptron.mapping.blocks import BLOCK_EDGE
from embodied_perceptron.mapping.image_features import LOOK_CHANNELS
from embodied_perceptron.mapping.voxel_counts import without_bottom
from embodied_perceptron.mapping.voxels import HITS
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.results import VoxelSnapshot

F64 = NDArray[np.float64]

VIEWS, FEATURES = 8, LOOK_CHANNELS
_NEW_VIEW = math.cos(math.radians(30.0))  # directions nearer than this are one view
_BALANCES = 5  # bins of each chromaticity
_OTHER_VIEW = 0.8  # largest difference of image features
_BALANCE_RANGE = 0.6  # log ratio of two colour channels in the outermost bins
_MAX_POINTS, _LEAST_POINTS = 512, 12
_FEW, _SIDE_M = 3, 0.05  # voxels that may be newer than an object, besides one in 200; of a box's sides
_UNDER_M, _UNDER_SHARE, _UNDER_LEAST = 0.1, 0.7, 0.3  # height and widths of the floor below it; share seen before
_OFTENER = 4  # hits of the floor below an object that was put there, to its own
_VIEW_MEMORY = 4.0  # weight of a stored view against a new one of the same direction, at most

# (features (N, FEATURES) float32, (N,) bool visible, (3,) camera position) for each recent keyframe
ImageSampler: TypeAlias = Callable[[F64], Sequence[tuple[NDArray[np.float32], NDArray[np.bool_], F64]]]


@dataclass(frozen=True)
class IdentityWeights:
    """Log-odds that two objects are one, from their differences: the first five are fitted, the others are chosen.

    Attributes:
        bias: for equal objects.
        view: times 1 - the cosine of the mean image features, at most 0.8: they show the surroundings too.
        color: times 1 - the similarity of the histograms of chromaticity, in [0, 1].
        extent: times the root mean square of the log ratios of height, length and width.
        name: times 1 - the overlap of the posteriors of names.
        discovered: added where the map does not show that the new object was put there: it may be discovered late.
        least: probability of a clear winner.
        mentioned: least probability of a further candidate.
    """

    bias: float
    view: float
    color: float
    extent: float
    name: float
    discovered: float = -1.0
    least: float = 0.8
    mentioned: float = 0.1


FEATURE_NAMES = ("view", "color", "extent", "name")
WEIGHTS_FILE = Path(__file__).with_name("identity.json")  # of pairs of sightings in generated homes; with its command
WEIGHTS = IdentityWeights(**json.loads(WEIGHTS_FILE.read_text(encoding="utf-8"))["weights"])


@dataclass
class Appearance:
    """What an object looked like; 1.3 kB.

    Attributes:
        views: (V, FEATURES) float16 unit vectors, at most :data:`VIEWS`.
        directions: (V, 3) float16 from the object to the camera.
        weights: (V,) float16.
        color: uint8 histogram of chromaticity; empty = not measured.
    """

    views: NDArray[np.float16] = field(default_factory=lambda: np.zeros((0, FEATURES), np.float16))
    directions: NDArray[np.float16] = field(default_factory=lambda: np.zeros((0, 3), np.float16))
    weights: NDArray[np.float16] = field(default_factory=lambda: np.zeros(0, np.float16))
    color: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))

    def look(self, box: F64, snapshot: VoxelSnapshot, image: ImageSampler | None) -> None:
        """Update with the map in a (9,) box."""
        voxels = own_voxels(box, snapshot)[0]
        count = len(voxels.hits)
        if count < _LEAST_POINTS:
            return
        points, colors, *_ = voxels.take(slice(None, None, -(-count // _MAX_POINTS)))
        self.color = _color_of(colors)
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
        """Add the views of the same object elsewhere; the latest colours stay."""
        for view, away, weight in zip(other.views, other.directions, other.weights, strict=True):
            self._add(view.astype(np.float32), away.astype(np.float64), float(weight))
        self.color = self.color if len(self.color) else other.color

    def to_list(self) -> list[Any]:
        """JSON form: texts of at most 100 characters, as all texts in a map file. Views are rounded to 8 bits."""
        scaled = self.views.astype(np.float64) * (127.0 / np.abs(self.views).max(axis=1, initial=1e-3, keepdims=True))
        views = [_coded(np.round(view).astype(np.int8)) for view in scaled]
        cameras = np.column_stack([self.directions, self.weights]).astype(np.float64).round(2).tolist()
        return [views, cameras, _coded(self.color)]

    @classmethod
    def from_list(cls, value: Any) -> Appearance:
        """Inverse of :meth:`to_list`; older files have lightness and shape besides. Raises ``ValueError`` for other
        values."""
        parts = plain_values.sequence(value, "appearance")
        if len(parts) not in (3, 4):
            raise ValueError(f"an appearance must have 3 parts, got {len(parts)}")
        codes = plain_values.sequence(parts[0], "views")
        if len(codes) > VIEWS:
            raise ValueError(f"an appearance must have at most {VIEWS} views, got {len(codes)}")
        cameras = plain_values.numbers(parts[1], "cameras of views", len(codes), 4) if codes else np.zeros((0, 4))
        views = np.array([_decoded(code, np.int8, FEATURES) for code in codes], np.float32).reshape(-1, FEATURES)
        views /= np.maximum(np.linalg.norm(views, axis=1, keepdims=True), 1e-9)
        color = _decoded(parts[2], np.uint8, _BALANCES**2 + (8 if len(parts) == 4 else 0))[: _BALANCES**2]
        away = cameras.clip(-_VIEW_MEMORY, _VIEW_MEMORY).astype(np.float16)
        return cls(views.astype(np.float16), away[:, :3], away[:, 3], color)


def _coded(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


def _decoded(text: Any, dtype: type[np.generic], size: int) -> NDArray[Any]:
    if not isinstance(text, str) or not text.isascii():
        raise ValueError(f"an appearance has {text!r:.40} where a code must be")
    values: NDArray[Any] = np.frombuffer(base64.b64decode(text, validate=True), dtype).copy()
    if len(values) not in (size, 0 if dtype is np.uint8 else size):
        raise ValueError(f"an appearance has a code of {len(values)} values, must have {size}")
    return values


class Voxels(NamedTuple):
    """Voxels of a map: points (N, 3), colours (N, 3) uint8, stamps of the last hit and numbers of hits (N,)."""

    points_m: F64
    colors: NDArray[np.uint8]
    stamps_ns: NDArray[np.int64]
    hits: NDArray[np.int32]

    def take(self, kept: Any) -> Voxels:
        return Voxels(*(part[kept] for part in self))


def voxels_inside(box: F64, snapshot: VoxelSnapshot) -> Voxels:
    """Voxels in a (9,) box."""
    bounds, blocks = Bounds.of(box[None]), blocks_of(snapshot)
    edge_m, arena = BLOCK_EDGE * snapshot.voxel_size_m, blocks.arena
    low, high = np.floor(bounds.low[0] / edge_m), np.floor(bounds.high[0] / edge_m)
    first, last = np.searchsorted(blocks.coords[:, 0], [low[0], high[0] + 1])  # blocks are sorted by x
    y, z = blocks.coords[first:last, 1], blocks.coords[first:last, 2]
    near = first + np.flatnonzero((y >= low[1]) & (y <= high[1]) & (z >= low[2]) & (z <= high[2]))
    rows = row_ranges(blocks.starts[near], blocks.counts[near])
    points = arena.points_m[rows].astype(np.float64)
    kept = (np.abs((points - box[:3]) @ box_rotations(box[None])[0]) <= box[3:6] / 2).all(axis=1)
    rows = rows[kept]
    return Voxels(points[kept], arena.colors[rows], arena.last_seen_ns[rows], arena.records[rows, HITS])


def own_voxels(box: F64, snapshot: VoxelSnapshot) -> tuple[Voxels, Voxels]:
    """Voxels of an object in a (9,) box, without the surface below it, and those of them away from its sides: the
    others may be of a wall or a neighbour, which stay when it leaves."""
    raised = without_bottom(box[None])
    voxels = voxels_inside(raised[0], snapshot)
    aside_m = np.abs((voxels.points_m - raised[0, :3]) @ box_rotations(raised)[0][:, :2])
    inner = (aside_m <= np.maximum(raised[0, 3:5] / 2 - _SIDE_M, raised[0, 3:5] / 4)).all(axis=1)
    return voxels, voxels.take(inner) if inner.sum() >= _LEAST_POINTS else voxels


def last_seen(box: F64, snapshot: VoxelSnapshot) -> tuple[int, int]:
    """Times at which an object in a (9,) box was last seen, by a few of its voxels, and last surely there, by a quarter
    of those away from its sides; 0 without voxels."""
    newest, inner = (np.sort(voxels.stamps_ns)[::-1] for voxels in own_voxels(box, snapshot))
    few = min(_FEW + len(newest) // 200, len(newest) // 2)
    return (int(newest[few]), int(inner[len(inner) // 4])) if len(newest) else (0, 0)


def was_put_there(box: F64, begun_ns: int, snapshot: VoxelSnapshot) -> bool:
    """Whether an object in a (9,) box, first found at ``begun_ns``, stands where the floor or furniture was seen before
    any of it and not since, or far oftener than it: under an object that was discovered late, nothing was ever seen."""
    own = own_voxels(box, snapshot)[1]
    if not len(own.hits):
        return False
    under = box.copy()
    under[:3] -= 0.5 * box[5] * box_rotations(box[None])[0][:, 2]
    under[3:6] = [*(_UNDER_SHARE * box[3:5]), _UNDER_M]
    floor = voxels_inside(under, snapshot)
    before = floor.stamps_ns < min(begun_ns, np.quantile(own.stamps_ns, 0.1))
    before |= floor.hits >= _OFTENER * np.quantile(own.hits, 0.9)
    return float(before.sum()) * snapshot.voxel_size_m**2 >= _UNDER_LEAST * float(under[3:5].prod())


def _color_of(colors: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Histogram of the log ratios of red and of blue to green; each colour counts in its four nearest bins."""
    rgb = np.log(colors.astype(np.float64) + 8.0)
    balance = rgb[:, [0, 2]] - rgb[:, 1:2]
    at = ((balance / (2 * _BALANCE_RANGE) + 0.5) * _BALANCES - 0.5).clip(0, _BALANCES - 1)
    cell = at.astype(np.int64).clip(0, _BALANCES - 2)
    share, counts = at - cell, np.zeros((_BALANCES, _BALANCES))
    for step in np.ndindex(2, 2):
        np.add.at(counts, tuple((cell + step).T), np.where(step, share, 1.0 - share).prod(axis=1))
    return np.asarray(np.round(255.0 * counts.ravel() / max(len(colors), 1)), np.uint8)


# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Identified:
    """An object as far as its identity is concerned: appearance, (9,) box, and posterior of its name."""

    appearance: Appearance
    box: F64
    names: Mapping[str, float]


def differences(a: Identified, b: Identified, mean_view: NDArray[np.float32] | None = None) -> F64:
    """(4,) differences in the order of :data:`FEATURE_NAMES`; NaN = not measured. ``mean_view``: (FEATURES,) mean of
    the views of all objects, which says nothing about one."""
    first, second = a.appearance, b.appearance
    view = color = math.nan
    if len(first.views) and len(second.views):
        view = min(1.0 - float(_middle(first.views, mean_view) @ _middle(second.views, mean_view)), _OTHER_VIEW)
    if len(first.color) and len(second.color):
        shared = np.sqrt(first.color / 255.0 * second.color / 255.0)
        color = 1.0 - min(float(shared.sum()), 1.0)
    sizes = np.array([[x.box[5], *sorted(x.box[3:5])] for x in (a, b)]).clip(0.02)
    extent = float(np.sqrt(np.mean(np.log(sizes[0] / sizes[1]) ** 2)))
    totals = [max(sum(x.names.values()), 1e-12) for x in (a, b)]
    overlap = sum(math.sqrt(p * b.names.get(name, 0.0)) for name, p in a.names.items()) / math.sqrt(math.prod(totals))
    return np.array([view, color, extent, 1.0 - min(overlap, 1.0)])


def _middle(views: NDArray[np.float16], mean_view: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """(FEATURES,) direction of the mean of some views, each without ``mean_view`` and of length 1."""
    centered = views.astype(np.float32) - (0.0 if mean_view is None else mean_view)
    middle = (centered / np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-6)).mean(axis=0)
    return np.asarray(middle / max(float(np.linalg.norm(middle)), 1e-6))


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
USUAL = np.array([0.5, 0.03, 0.03, 0.07])  # of one object at two times
LIKE = 0.8  # difference of extents from which objects are never one


_ROUNDS = 30


def match(odds: F64, weights: IdentityWeights = WEIGHTS) -> tuple[dict[int, tuple[int, float]], F64]:
    """Assign new objects to earlier ones.

    Args:
        odds: (N, M) log-odds that new object n is the earlier one m; -inf = excluded.

    Returns:
        new row -> (earlier row, probability) of clear winners, one to one; and (N, M) probabilities. A new object is
        one of the earlier ones or another, and an earlier one is at most one of the new ones.
    """
    ratio = np.exp(np.minimum(odds, 30.0))
    free = np.ones_like(ratio)  # belief that no other new object is the earlier one
    for _ in range(_ROUNDS):  # belief propagation over one-to-one assignments
        claim = ratio * free
        claim = ratio / (1.0 + claim.sum(axis=1, keepdims=True) - claim)
        free = 1.0 / (1.0 + claim.sum(axis=0, keepdims=True) - claim)
    probability = ratio * free / (1.0 + (ratio * free).sum(axis=1, keepdims=True))
    winners: dict[int, tuple[int, float]] = {}  # more likely than not, so at most one in a row and a column
    for n, m in zip(*np.nonzero(probability >= weights.least), strict=True):
        winners[int(n)] = int(m), float(probability[n, m])
    return winners, probability
