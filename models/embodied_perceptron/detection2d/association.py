"""Join lifted detections of the same object over views, and count the views that missed it.

The result is a pure function of the current views and map, because views leave with their keyframes and a corrected
pose changes the lifted detections. A view is one keyframe with the detections of one detector. Existence and name of an
object are inferred in :mod:`~.inference.posterior`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.lifting import LiftedDetection, VoxelIndex, box_around
from embodied_perceptron.geometry.boxes import median
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.suppression import (
    LIFTED_AFFINITY,
    LIFTED_OTHER_NAME_AFFINITY,
    LIFTED_OTHER_NAME_SIZE,
)
from embodied_perceptron.geometry.transforms import invert_transform, project, transform_points
from embodied_perceptron.inference.posterior import NO_MISSES, MissedViews, size_in_picture
from embodied_perceptron.sensors.frame import RgbdFrame

_SMALL_M = 0.45
_VISIBLE_SHARE = 0.75  # of a surface that is seen in a full view
_KEPT_SHARE = 0.4  # of a detection's surface that must still be mapped
_MIN_SIZE_PX = 12.0  # a smaller object does not count as missed
_ONE_VIEW_SCORE = 0.4  # least score of a candidate of one view
_PROBES = 48  # points by which a candidate's visibility is judged
_OWN_M = 0.15  # a probe this far, or the object's size, behind the measured surface is occluded by the object itself
_SURFACE_M, _SURFACE_SHARE = 0.05, 0.02  # tolerance of a probe on the measured surface: constant, and share of depth


@dataclass(frozen=True, eq=False)
class LiftedView:
    """A keyframe with the lifted detections of one detector.

    Attributes:
        source: the detector.
        key: id of the keyframe; increases with time.
        frame: its images.
        T_world_camera: (4, 4).
        lifted: detections in 3-D.
    """

    source: str
    key: int
    frame: RgbdFrame
    T_world_camera: NDArray[np.float64]
    lifted: Sequence[LiftedDetection]


@dataclass(frozen=True, eq=False)
class Candidate:
    """Lifted detections of several views joined to one object.

    Attributes:
        points_m: (K, 3) surface over all views.
        box: (9,) upright.
        reported: detector -> name -> (number of views that report it, best score).
        missed: detector -> number of views that show it fully and do not report it, by size in the image
            (:data:`~.inference.posterior.SIZES`).
        whole: at least one view shows it whole.
        members: (view, detection) pairs.
    """

    points_m: NDArray[np.float64]
    box: NDArray[np.float64]
    reported: Mapping[str, Mapping[str, tuple[int, float]]]
    missed: Mapping[str, MissedViews] = field(default_factory=dict)
    whole: bool = False
    members: tuple[tuple[int, int], ...] = ()

    @property
    def views(self) -> int:
        """Return the number of views that report it."""
        return len({view for view, _ in self.members})


@dataclass(frozen=True, eq=False)
class _Items:
    """Detections of all views as flat arrays."""

    of: list[tuple[int, int]]  # view, detection
    lifted: list[LiftedDetection]
    center: NDArray[np.float64]
    size: NDArray[np.float64]  # longest side
    label: NDArray[np.str_]


def _items(views: Sequence[LiftedView], index: VoxelIndex | None) -> _Items:
    """Flatten the detections whose surface is still mapped."""
    of = [(v, i) for v, view in enumerate(views) for i in range(len(view.lifted))]
    lifted = [views[v].lifted[i] for v, i in of]
    if index is not None and lifted:
        probes = [d.points_m[:: max(1, len(d.points_m) // _PROBES)] for d in lifted]
        there = index.near(np.concatenate(probes))
        counts = np.array([len(p) for p in probes])
        standing = np.add.reduceat(there.astype(np.int64), np.cumsum(counts) - counts)
        stands = standing / counts >= _KEPT_SHARE
        of = [pair for pair, ok in zip(of, stands, strict=True) if ok]
        lifted = [d for d, ok in zip(lifted, stands, strict=True) if ok]
    center = np.array([d.box[:3] for d in lifted]).reshape(-1, 3)
    size = np.array([d.box[3:6].max() for d in lifted])
    return _Items(of, lifted, center, size, np.array([d.label for d in lifted], dtype=str))


def affinities(items: _Items) -> NDArray[np.float64]:
    """Return (N, N) affinities in [0, 1] of pairs of detections.

    Large ones: share of the smaller's cells that the other has too. Small ones: a Gaussian of the distance of centres
    with half of their mean size as width. A small and a large one: 0, unless their sizes are within a factor of two.
    """
    if len(items.lifted) == 0:
        return np.zeros((0, 0))
    cells = [d.distinct_cells_large for d in items.lifted]
    count = np.array([len(own) for own in cells])
    _, name = np.unique(items.label, return_inverse=True)
    result: NDArray[np.float64] = _affinities(
        items.center,
        items.size,
        np.asarray(name, np.int64).reshape(-1),
        np.concatenate(cells),
        np.cumsum(count) - count,
        count,
    )
    return result


@njit(cache=True, nogil=True)
def _affinities(
    center: NDArray[np.float64],
    size_m: NDArray[np.float64],
    name: NDArray[np.int64],
    cells: NDArray[np.int64],
    first: NDArray[np.int64],
    size: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Compute :func:`affinities` from centres, longest sides, numbers of names, and cells in ascending order: ``size``
    many from ``first`` for each detection."""
    count = len(size)
    result = np.zeros((count, count))
    for i in range(count):
        for j in range(i + 1):
            small = (size_m[i] < _SMALL_M) + (size_m[j] < _SMALL_M)
            ratio = min(size_m[i], size_m[j]) / max(size_m[i], size_m[j])
            if small == 1 and ratio <= 0.5:
                continue
            if small == 2:
                apart2 = 0.0
                for axis in range(3):
                    apart2 += (center[i, axis] - center[j, axis]) ** 2
                width = max(0.25 * (size_m[i] + size_m[j]), 0.04)
                value = np.exp(-0.5 * apart2 / width**2)
            elif i == j:
                value = size[i] / max(size[i], 1)
            else:
                value = _shared(cells, first[i], size[i], first[j], size[j]) / max(min(size[i], size[j]), 1)
            if name[i] == name[j]:
                allowed = value >= LIFTED_AFFINITY
            else:
                allowed = value >= LIFTED_OTHER_NAME_AFFINITY and ratio >= LIFTED_OTHER_NAME_SIZE
            if allowed:
                result[i, j] = result[j, i] = value
    return result


@njit(cache=True, nogil=True)
def _shared(cells: NDArray[np.int64], a: int, a_count: int, b: int, b_count: int) -> int:
    """Count the common cells of two ascending lists."""
    a_end, b_end = a + a_count, b + b_count
    if a == a_end or b == b_end or cells[a_end - 1] < cells[b] or cells[b_end - 1] < cells[a]:
        return 0
    both = 0
    while a < a_end and b < b_end:
        if cells[a] < cells[b]:
            a += 1
        elif cells[a] > cells[b]:
            b += 1
        else:
            both += 1
            a += 1
            b += 1
    return both


def group_detections(affinity: NDArray[np.float64], scores: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Group detections greedily by descending score: each joins the group of the highest mean affinity or starts one.

    Returns the rows of each group; independent of the order of rows where scores differ.
    """
    group_of = _group_numbers(affinity, np.argsort(-scores, kind="stable"))
    order = np.argsort(group_of, kind="stable")
    edges = np.searchsorted(group_of[order], np.arange(group_of.max(initial=-1) + 2))
    return [order[a:b] for a, b in pairwise(edges)]


@njit(cache=True, nogil=True)
def _group_numbers(affinity: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (N,) group numbers of the rows, in order of creation."""
    count = len(order)
    group_of = np.full(count, -1, np.int64)
    total = np.zeros((count, count))  # (groups, N) sum of the affinities with each group's members
    touching = np.zeros((count, count), np.int64)  # and how many of them are not zero
    size = np.zeros(count, np.int64)
    groups = 0
    for i in order:
        best, highest = groups, 0.0
        for group in range(groups):
            if touching[group, i] >= 0.5 * size[group] and total[group, i] / size[group] > highest:
                best, highest = group, total[group, i] / size[group]
        groups = max(groups, best + 1)
        group_of[i] = best
        size[best] += 1
        for j in range(count):
            total[best, j] += affinity[i, j]
            touching[best, j] += affinity[i, j] > 0
    return group_of


def find_candidates(
    views: Sequence[LiftedView],
    index: VoxelIndex | None = None,
    yaw_rad: float = 0.0,
    cache: FitCache | None = None,
) -> list[Candidate]:
    """Join the detections of all views to candidates, by descending sum of scores.

    Args:
        views: keyframes with lifted detections.
        index: of the current map; detections whose surface is gone do not count. None = all count.
        yaw_rad: direction of the walls.
        cache: of the last call, for unchanged groups and views.
    """
    cache = FitCache() if cache is None else cache
    cache.begin()
    items = _items(views, index)
    scores = np.array([d.score for d in items.lifted])
    groups = group_detections(affinities(items), scores)
    # a single detection of low score is no candidate
    groups = [rows for rows in groups if len(rows) > 1 or scores[rows[0]] >= _ONE_VIEW_SCORE]
    groups.sort(key=lambda rows: -float(scores[rows].sum()))
    candidates = [_candidate(items, rows, views, yaw_rad, cache) for rows in groups]
    in_view = cache.visible([c.points_m for c in candidates], views)
    return [replace(c, missed=missed_views(row, c.members, views)) for c, row in zip(candidates, in_view, strict=True)]


def missed_views(
    in_view: NDArray[np.uint8], members: Sequence[tuple[int, int]], views: Sequence[LiftedView]
) -> dict[str, MissedViews]:
    """Return detector -> number of its views that show an object fully and do not report it, by size in the image.

    ``in_view``: (V,) a row of :func:`fully_visible`; ``members``: (view, detection) pairs that report it.
    """
    reporting = {view for view, _ in members}
    counts: dict[str, list[int]] = {}
    for v in np.flatnonzero(in_view).tolist():
        if v not in reporting:
            counts.setdefault(views[v].source, [0] * len(NO_MISSES))[int(in_view[v]) - 1] += 1
    return {source: (small, medium, large) for source, (small, medium, large) in counts.items()}


class FitCache:
    """Points and boxes of groups of detections and their visibility, from the last call."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], _Fit] = {}
        self._now: dict[tuple[int, ...], _Fit] = {}
        self._surfaces: list[NDArray[np.float64]] = []
        self._shown: list[tuple[RgbdFrame, NDArray[np.float64]]] = []
        self._visible = np.zeros((0, 0), dtype=np.uint8)

    def begin(self) -> None:
        """Drop entries that the previous call did not use."""
        self._last, self._now = self._now, {}

    def fit(self, members: list[LiftedDetection], of: Sequence[LiftedView], small: bool, yaw_rad: float) -> _Fit:
        """Fit a group; the key is the identity of its detections, which the entry keeps alive."""
        key = (round(yaw_rad * 1e3), *map(id, members))
        known = self._last.get(key)
        self._now[key] = _fit(members, of, small, yaw_rad) if known is None else known
        return self._now[key]

    def visible(self, surfaces_m: list[NDArray[np.float64]], views: Sequence[LiftedView]) -> NDArray[np.uint8]:
        """Compute :func:`fully_visible` for the surfaces and views that the last call did not have."""
        known_row = {id(surface): row for row, surface in enumerate(self._surfaces)}
        known_column = {(id(frame), id(pose)): column for column, (frame, pose) in enumerate(self._shown)}
        row = np.array([known_row.get(id(surface), -1) for surface in surfaces_m], dtype=np.int64)
        column = np.array([known_column.get((id(v.frame), id(v.T_world_camera)), -1) for v in views], dtype=np.int64)
        result = np.zeros((len(surfaces_m), len(views)), dtype=np.uint8)
        old, new = np.flatnonzero(row >= 0), np.flatnonzero(row < 0)
        seen, unseen = np.flatnonzero(column >= 0), np.flatnonzero(column < 0)
        result[np.ix_(old, seen)] = self._visible[np.ix_(row[old], column[seen])]
        of_old, some = [surfaces_m[i] for i in old.tolist()], [views[v] for v in unseen.tolist()]
        result[np.ix_(old, unseen)] = fully_visible(of_old, some, _MIN_SIZE_PX)
        result[new] = fully_visible([surfaces_m[i] for i in new.tolist()], views, _MIN_SIZE_PX)
        self._surfaces, self._visible = surfaces_m, result
        self._shown = [(v.frame, v.T_world_camera) for v in views]
        return result


@dataclass(frozen=True, eq=False)
class _Fit:
    members: list[LiftedDetection]
    points_m: NDArray[np.float64]
    box: NDArray[np.float64]
    reported: Mapping[str, Mapping[str, tuple[int, float]]]
    whole: bool


def _fit(members: list[LiftedDetection], of: Sequence[LiftedView], small: bool, yaw_rad: float) -> _Fit:
    """Join detections; ``of`` is the view of each."""
    points = agreed_points(members, small)
    best: dict[tuple[str, str, int], float] = {}  # (detector, name, view) -> score
    for view, detection in zip(of, members, strict=True):
        key = view.source, detection.label, view.key
        best[key] = max(best.get(key, 0.0), detection.score)
    reported: dict[str, dict[str, tuple[int, float]]] = {}
    for (source, name, _), score in best.items():
        count, highest = reported.setdefault(source, {}).get(name, (0, 0.0))
        reported[source][name] = count + 1, max(highest, score)
    return _Fit(members, points, box_around(points, yaw_rad), reported, any(not d.cut for d in members))


def _candidate(
    items: _Items, rows: NDArray[np.int64], views: Sequence[LiftedView], yaw_rad: float, cache: FitCache
) -> Candidate:
    """Make a candidate of a group."""
    numbers = rows.tolist()
    members, of = [items.lifted[r] for r in numbers], tuple(items.of[r] for r in numbers)
    small = median(items.size[rows]) < _SMALL_M
    fit = cache.fit(members, [views[view] for view, _ in of], small, yaw_rad)
    return Candidate(fit.points_m, fit.box, fit.reported, whole=fit.whole, members=of)


def agreed_points(members: Sequence[LiftedDetection], small: bool, share: float = 0.25) -> NDArray[np.float64]:
    """Return (K, 3) points in cells that a quarter of the detections share, two at least of four or more.

    This removes background of single views. Returns all points where fewer than 10 are shared.
    """
    cells = np.concatenate([d.cells_small if small else d.cells_large for d in members])
    distinct = [d.distinct_cells_small if small else d.distinct_cells_large for d in members]
    every, votes = np.unique(np.concatenate(distinct), return_counts=True)
    needed = max(share * len(members), 2 if len(members) >= 4 else 1)
    agreed = votes[np.searchsorted(every, cells)] >= needed
    points = np.concatenate([d.points_m for d in members])
    return points[agreed] if np.count_nonzero(agreed) >= 10 else points


def fully_visible(
    surfaces_m: Sequence[NDArray[np.float64]], views: Sequence[LiftedView], min_size_px: float
) -> NDArray[np.uint8]:
    """Return (surfaces, views): 0 where a surface is cut, occluded or too small, else 1 + its size class.

    The size class is :func:`~.inference.posterior.size_in_picture`; ``surfaces_m``: (K, 3) points each, K > 0.
    """
    result = np.zeros((len(surfaces_m), len(views)), dtype=np.uint8)
    if not len(surfaces_m):
        return result
    probes = [points[:: 1 + len(points) // _PROBES] for points in surfaces_m]
    first = np.cumsum([0, *map(len, probes[:-1])])
    count = np.array([len(p) for p in probes], dtype=np.float64)
    points = np.concatenate(probes)
    own_m = np.repeat([min(_OWN_M, float(np.linalg.norm(np.ptp(p, axis=0)))) for p in probes], count.astype(int))
    seen_of: dict[int, NDArray[np.uint8]] = {}  # image -> surfaces; detectors share images
    for v, view in enumerate(views):
        if id(view.frame) in seen_of:
            result[:, v] = seen_of[id(view.frame)]
            continue
        camera = transform_points(invert_transform(view.T_world_camera), points)
        uv, inside = project(camera, view.frame.intrinsics)
        if not inside.any():
            seen_of[id(view.frame)] = result[:, v]
            continue
        pixel = np.rint(np.where(inside[:, None], uv, 0.0)).astype(np.int64)
        z = camera[:, 2]
        behind_m = z - view.frame.depth_m[pixel[:, 1], pixel[:, 0]]  # of the measured surface
        noise_m = _SURFACE_M + _SURFACE_SHARE * z
        seen = inside & (behind_m > -noise_m) & (behind_m < noise_m + own_m)
        share = np.add.reduceat(seen.astype(np.float64), first) / count
        high = np.maximum.reduceat(np.where(seen[:, None], uv, -np.inf), first)
        low = np.minimum.reduceat(np.where(seen[:, None], uv, np.inf), first)
        side_px = (high - low).max(axis=1)
        size = 1 + size_in_picture(side_px / max(view.frame.intrinsics.width, view.frame.intrinsics.height))
        result[:, v] = np.where((share >= _VISIBLE_SHARE) & (side_px >= min_size_px), size, 0)
        seen_of[id(view.frame)] = result[:, v]
    return result
