"""Join the detections of all views to objects by view consensus.

Two detections of one name are one object when the views that see the surface of both put it into one detection. The
test projects the surface of one detection into the view of the other and counts it in that view's 2-D boxes, so two
sides of a table are one table although they share no surface (view consensus: MaskClustering, CVPR 2024). The surface
of an object is what all of its views have in their boxes: what hides an object in one view, and what lies behind it, is
beside its box in another view.

The result is a pure function of the current views and map, because views leave with their keyframes and a corrected
pose changes the lifted detections. A view is one keyframe with the detections of one detector. Existence and name of an
object are inferred in :mod:`~.inference.posterior`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.detections2d import Detections2d
from embodied_perceptron.detection2d.lifting import LiftedDetection, VoxelIndex, box_around, connected
from embodied_perceptron.geometry.boxes import median
from embodied_perceptron.geometry.cell_keys import keys_of
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.suppression import (
    LIFTED_ONE_BOX_IOU,
    LIFTED_OTHER_NAME_AFFINITY,
    LIFTED_OTHER_NAME_SIZE,
    are_layered,
    fragment_pairs,
)
from embodied_perceptron.geometry.transforms import invert_transform
from embodied_perceptron.sensors.frame import RgbdFrame

_SMALL_M = 0.45
_KEPT_SHARE = 0.4  # of a detection's surface that must still be mapped
_ONE_VIEW_SCORE, _ONE_VIEW_FILL = 0.4, 0.6  # least score and fill of a candidate of one view
_SURFACE_M, _SURFACE_SHARE = 0.05, 0.02  # tolerance of a probe on the measured surface: constant, and share of depth
_INSIDE_SHARE = 0.6  # of the probes that a view sees, in one of its boxes: the view has both in one detection
_LEAST_SEEN = 0.15  # share of the probes that a view must see to be asked
_MARGIN_PX, _MARGIN = 2.0, 0.04  # tolerance of a 2-D box: constant, and share of its side
_MARGIN_KERNEL = np.ones((5, 5), np.uint8)  # the constant tolerance, of a mask
_HULL_SHARE = 0.7  # share of the views that have a point of an object in their box
_HULL_VIEWS = 8  # views that are asked, evenly over time
_HULL_CELL_M = 0.05
_HULL_POINTS = 4000
_AROUND = 0.3  # weight of surface in the box that one view does not take for the foreground
_ENOUGH = 0.9  # least weight times views: the foreground of one view, or other surface of three
_SAME_VIEW = 4.0  # views that differ, for two detections of one view
_CONSENSUS = 0.5
_LEAST_SIGHTINGS = 2.0  # that agree; one may be chance
_NAME_CELL_M = 0.06  # cells of the surface that two names share


@dataclass(frozen=True, eq=False)
class LiftedView:
    """A keyframe with the lifted detections of one detector.

    Attributes:
        source: the detector.
        key: id of the keyframe; increases with time.
        frame: its images.
        T_world_camera: (4, 4).
        lifted: detections in 3-D.
        found: all detections of the image.
    """

    source: str
    key: int
    frame: RgbdFrame
    T_world_camera: NDArray[np.float64]
    lifted: Sequence[LiftedDetection]
    found: Detections2d

    @cached_property
    def camera(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return T_camera_world, and focal lengths and centre."""
        k = self.frame.intrinsics
        return invert_transform(self.T_world_camera), np.array([k.fx, k.fy, k.cx, k.cy])


@dataclass(frozen=True, eq=False)
class Candidate:
    """Lifted detections of several views joined to one object.

    Attributes:
        points_m: (K, 3) surface over all views.
        box: (9,) upright.
        reported: detector -> name -> (number of views that report it, best score).
        members: (view, detection) pairs.
    """

    points_m: NDArray[np.float64]
    box: NDArray[np.float64]
    reported: Mapping[str, Mapping[str, tuple[int, float]]]
    members: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class _Items:
    """Detections of all views as flat arrays."""

    of: list[tuple[int, int]]  # view, detection
    lifted: list[LiftedDetection]
    probes: list[NDArray[np.float64]]  # some points of each surface
    name: NDArray[np.int64]
    score: NDArray[np.float64]


def _items(views: Sequence[LiftedView], index: VoxelIndex | None) -> _Items:
    """Flatten the detections whose surface is still mapped."""
    of = [(v, i) for v, view in enumerate(views) for i in range(len(view.lifted))]
    lifted = [views[v].lifted[i] for v, i in of]
    probes = [d.probes_m for d in lifted]
    if index is not None and lifted:
        there = index.near(np.concatenate(probes))
        counts = np.array([len(p) for p in probes])
        standing = np.add.reduceat(there.astype(np.int64), np.cumsum(counts) - counts)
        rows = np.flatnonzero(standing / counts >= _KEPT_SHARE).tolist()
        of, lifted, probes = [of[i] for i in rows], [lifted[i] for i in rows], [probes[i] for i in rows]
    _, name = np.unique(np.array([d.label for d in lifted], dtype=str), return_inverse=True)
    score = np.array([d.score for d in lifted])
    return _Items(of, lifted, probes, np.asarray(name, np.int64).reshape(-1), score)


# what a view has of the surface of a detection of another view
_UNSEEN, _OUTSIDE = -1, -2  # too little of it; it lies in no box of its name


def _sighted_in(items: _Items, rows: NDArray[np.int64], view: LiftedView) -> NDArray[np.int64]:
    """Return (R,) the detection of the view that has the surface of each of some rows in its 2-D box.

    -1 where the view does not see it or has no box of its name, -2 where it sees it outside of these boxes.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    numbers = {label: n for n, label in enumerate(dict.fromkeys(d.label for d in view.lifted))}
    names = np.array([numbers.get(items.lifted[r].label, -1) for r in rows], dtype=np.int64)
    points = np.concatenate([items.probes[r] for r in rows])
    count = np.array([len(items.probes[r]) for r in rows])
    boxes = _grown(np.array([d.box_px for d in view.lifted]).reshape(-1, 4))
    box_name = np.array([numbers[d.label] for d in view.lifted], dtype=np.int64)
    out: NDArray[np.int64] = _sighted(points, count, names, *view.camera, view.frame.depth_m, boxes, box_name)
    return out


def _grown(boxes_px: NDArray[np.float64]) -> NDArray[np.float64]:
    """Enlarge (E, 4) boxes by the tolerance of a detector's box."""
    sides = boxes_px[:, 2:] - boxes_px[:, :2]
    margin = _MARGIN_PX + _MARGIN * sides
    return np.concatenate([boxes_px[:, :2] - margin, boxes_px[:, 2:] + margin], axis=1)


@njit(cache=True, nogil=True)
def _pixel(
    point: NDArray[np.float64], T: NDArray[np.float64], k: NDArray[np.float64], depth_m: NDArray[np.float32]
) -> tuple[float, float, bool]:
    """Return the pixel of a world point, and True when the view sees it: it lies on the measured surface."""
    z = T[2, 0] * point[0] + T[2, 1] * point[1] + T[2, 2] * point[2] + T[2, 3]
    if z < 0.05:
        return 0.0, 0.0, False
    u = (T[0, 0] * point[0] + T[0, 1] * point[1] + T[0, 2] * point[2] + T[0, 3]) / z * k[0] + k[2]
    v = (T[1, 0] * point[0] + T[1, 1] * point[1] + T[1, 2] * point[2] + T[1, 3]) / z * k[1] + k[3]
    column, row = int(np.floor(u + 0.5)), int(np.floor(v + 0.5))
    if column < 0 or row < 0 or column >= depth_m.shape[1] or row >= depth_m.shape[0]:
        return u, v, False
    measured = depth_m[row, column]
    return u, v, measured > 0 and abs(z - measured) <= _SURFACE_M + _SURFACE_SHARE * z


@njit(cache=True, nogil=True)
def pixels_of(
    points: NDArray[np.float64], T: NDArray[np.float64], k: NDArray[np.float64], depth_m: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return (P, 2) pixels of world points, and (P,) True for those that the view sees."""
    uv, seen = np.empty((len(points), 2)), np.empty(len(points), np.bool_)
    for p in range(len(points)):
        uv[p, 0], uv[p, 1], seen[p] = _pixel(points[p], T, k, depth_m)
    return uv, seen


@njit(cache=True, nogil=True)
def _sighted(
    points: NDArray[np.float64],
    count: NDArray[np.int64],
    name: NDArray[np.int64],
    T: NDArray[np.float64],
    k: NDArray[np.float64],
    depth_m: NDArray[np.float32],
    boxes_px: NDArray[np.float64],
    box_name: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Compiled :func:`_sighted_in`, with row numbers of ``boxes_px``."""
    out = np.full(len(count), _UNSEEN)
    inside = np.zeros(len(boxes_px), np.int64)
    end = 0
    for i in range(len(count)):
        start, end = end, end + count[i]
        own = np.flatnonzero(box_name == name[i])
        if len(own) == 0:
            continue
        seen, best = 0, -1
        inside[:] = 0
        for p in range(start, end):
            u, v, visible = _pixel(points[p], T, k, depth_m)
            seen += visible
            for e in own:
                inside[e] += visible and boxes_px[e, 0] <= u <= boxes_px[e, 2] and boxes_px[e, 1] <= v <= boxes_px[e, 3]
        if seen < max(4.0, _LEAST_SEEN * count[i]):
            continue
        out[i] = _OUTSIDE
        smallest = 0.0
        for e in own:
            if inside[e] < _INSIDE_SHARE * seen or inside[e] < 0.9 * inside.max():
                continue
            area = (boxes_px[e, 2] - boxes_px[e, 0]) * (boxes_px[e, 3] - boxes_px[e, 1])
            if best < 0 or area < smallest:
                best, smallest = int(e), area
        if best >= 0:
            out[i] = best
    return out


def group_detections(
    seen: NDArray[np.int64], of: NDArray[np.int64], name: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Group detections of one name by view consensus.

    Two groups are joined, the most supported first, while at least half of the views of one that see the surface of the
    other agree that both are one detection.

    Args:
        seen: (D, V) of :meth:`FitCache.sighted`; of: (D, 2) view and number of each detection; name: (D,).

    Returns the rows of each group.
    """
    groups = []
    for number in range(int(name.max(initial=-1)) + 1):
        rows = np.flatnonzero(name == number)
        view, number_in_view = of[rows].T
        group_of = _joined_groups(view, number_in_view, seen[np.ix_(rows, view)])
        order = np.argsort(group_of, kind="stable")
        edges = np.flatnonzero(np.diff(group_of[order], prepend=-1, append=len(rows)))
        groups += [rows[order[a:b]] for a, b in pairwise(edges)]
    return groups


@njit(cache=True, nogil=True)
def _joined_groups(view: NDArray[np.int64], number: NDArray[np.int64], seen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (n,) the group of each detection, by its first member; ``seen[i, j]`` of the view of detection j."""
    n = len(view)
    agree, differ = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            if view[i] == view[j]:
                differ[i, j] = _SAME_VIEW
            elif seen[i, j] == number[j]:
                agree[i, j] += 1.0
                agree[j, i] += 1.0
            elif seen[i, j] != _UNSEEN:
                differ[i, j] += 1.0
                differ[j, i] += 1.0
    group = np.arange(n)
    best, value = np.zeros(n, np.int64), np.zeros(n)
    for i in range(n):
        best[i], value[i] = _best_partner(agree, differ, group, i)
    while n:
        a = np.argmax(value)
        if value[a] <= 0.0:
            break
        b = best[a]
        a, b = min(a, b), max(a, b)
        agree[a] += agree[b]
        differ[a] += differ[b]
        agree[:, a], differ[:, a] = agree[a], differ[a]
        for i in range(n):
            if group[i] == b:
                group[i] = a
        value[b] = 0.0
        for i in range(n):
            if group[i] == i and (i == a or best[i] == a or best[i] == b):
                best[i], value[i] = _best_partner(agree, differ, group, i)
            elif group[i] == i:
                new = _consensus(agree[i, a], differ[i, a])
                if new > value[i]:
                    best[i], value[i] = a, new
    return group


@njit(cache=True, nogil=True)
def _consensus(agree: float, differ: float) -> float:
    """Return the weight of joining two groups; 0 = they are not one object."""
    if agree < _LEAST_SIGHTINGS or agree < _CONSENSUS * (agree + differ):
        return 0.0
    return agree * agree / (agree + differ)


@njit(cache=True, nogil=True)
def _best_partner(
    agree: NDArray[np.float64], differ: NDArray[np.float64], group: NDArray[np.int64], i: int
) -> tuple[int, float]:
    best, value = 0, 0.0
    for j in range(len(group)):
        if j != i and group[j] == j:
            new = _consensus(agree[i, j], differ[i, j])
            if new > value:
                best, value = j, new
    return best, value


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
    of = np.array(items.of, dtype=np.int64).reshape(-1, 2)
    found = group_detections(cache.sighted(items, views), of, items.name)
    groups = [g for g in found if len(g) > 1 or _suffices(items.lifted[g[0]])]
    candidates = [cache.candidate(items, rows, views, yaw_rad) for rows in groups]
    groups = _join_fragments(items, groups, candidates)
    groups.sort(key=lambda rows: -float(items.score[rows].sum()))
    candidates = [cache.candidate(items, rows, views, yaw_rad) for rows in groups]
    return [cache.candidate(items, rows, views, yaw_rad) for rows in _join_names(items, groups, candidates)]


def _suffices(single: LiftedDetection) -> bool:
    """True when one detection is a candidate: of a high score, not cut by the image border, and its surface fills its
    2-D box. Otherwise something in front of the object may have been lifted."""
    return single.score >= _ONE_VIEW_SCORE and not single.cut and single.fill >= _ONE_VIEW_FILL


def _join_fragments(
    items: _Items, groups: Sequence[NDArray[np.int64]], candidates: Sequence[Candidate]
) -> list[NDArray[np.int64]]:
    """Join groups of one name whose boxes intersect and that no detector reports as two boxes of one image.

    View consensus separates them where views see different sides of an object, or where depth and colour of the images
    do not fit together, so that the surface of one view is beside the 2-D box of another.
    """
    joined: dict[int, NDArray[np.int64]] = dict(enumerate(groups))
    at = list(range(len(groups)))  # the joined group of each group
    boxes = np.array([c.box for c in candidates]).reshape(-1, 9)
    for i, j in fragment_pairs(boxes, [items.lifted[rows[0]].label for rows in groups]):
        a, b = min(at[i], at[j]), max(at[i], at[j])
        if a != b and not _reported_apart(items, joined[a], joined[b]):
            joined[a] = np.sort(np.concatenate([joined[a], joined.pop(b)]))
            at = [a if number == b else number for number in at]
    return list(joined.values())


def _join_names(
    items: _Items, groups: list[NDArray[np.int64]], candidates: Sequence[Candidate]
) -> list[NDArray[np.int64]]:
    """Join groups of different names that are one object under several names, the best first.

    They share most of their surface and have similar sizes, and no detector reports both as two boxes of one image.
    """
    cells = [np.unique(keys_of(c.points_m, _NAME_CELL_M)) for c in candidates]
    ends_m = [(c.points_m.min(axis=0), c.points_m.max(axis=0)) for c in candidates]
    size = [float(c.box[3:6].max()) for c in candidates]
    result: list[tuple[int, NDArray[np.int64]]] = []  # first of its candidates, rows
    for j, rows in enumerate(groups):
        for k, (i, others) in enumerate(result):
            if ((ends_m[i][0] > ends_m[j][1] + _NAME_CELL_M) | (ends_m[j][0] > ends_m[i][1] + _NAME_CELL_M)).any():
                continue
            if any(are_layered(items.lifted[rows[0]].label, items.lifted[r].label) for r in others):
                continue
            shared = len(np.intersect1d(cells[i], cells[j], assume_unique=True))
            if shared < LIFTED_OTHER_NAME_AFFINITY * min(len(cells[i]), len(cells[j])):
                continue
            alike = min(size[i], size[j]) >= LIFTED_OTHER_NAME_SIZE * max(size[i], size[j])
            alike &= items.name[rows[0]] not in items.name[others]
            if alike and not _reported_apart(items, others, rows):
                result[k] = i, np.concatenate([others, rows])
                break
            if len(rows) == 1 and shared >= LIFTED_OTHER_NAME_AFFINITY * len(cells[j]):
                break  # one view, and the surface is that of another object, which hides it or lies behind
        else:
            result.append((j, rows))
    return [rows for _, rows in result]


def _reported_apart(items: _Items, a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    """True when most images in which one detector reports both have them in different boxes."""
    of_view = {items.of[r][0]: items.lifted[r].box_px for r in a.tolist()}
    apart = [
        float(ious_px(of_view[items.of[r][0]][None], items.lifted[r].box_px[None])[0, 0]) < LIFTED_ONE_BOX_IOU
        for r in b.tolist()
        if items.of[r][0] in of_view
    ]
    return sum(apart) > 0.5 * len(apart)


def ious_px(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 4), (M, 4) 2-D boxes -> (N, M) IoU."""
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])
    both = np.maximum(sides, 0.0).prod(axis=2)
    area_a, area_b = ((box[:, 2:] - box[:, :2]).clip(0.0).prod(axis=1) for box in (a, b))
    iou: NDArray[np.float64] = both / np.maximum(area_a[:, None] + area_b[None] - both, 1e-9)
    return iou


class FitCache:
    """Points and boxes of groups of detections, and sightings of detections, from the last call."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], tuple[list[LiftedDetection], Candidate]] = {}
        self._now: dict[tuple[int, ...], tuple[list[LiftedDetection], Candidate]] = {}
        # sightings, and the detections and views that they are of, which are keys by identity
        self._sighted: tuple[NDArray[np.int64], Sequence[LiftedDetection], Sequence[tuple[object, ...]]]
        self._sighted = np.zeros((0, 0), np.int64), (), ()

    def begin(self) -> None:
        """Drop entries that the previous call did not use."""
        self._last, self._now = self._now, {}

    def candidate(
        self, items: _Items, rows: NDArray[np.int64], views: Sequence[LiftedView], yaw_rad: float
    ) -> Candidate:
        """Make a candidate of a group; the key is the identity of its detections, which the entry keeps alive."""
        members, of = [items.lifted[r] for r in rows.tolist()], tuple(items.of[r] for r in rows.tolist())
        key = (round(yaw_rad * 1e3), *map(id, members))
        known = self._now.get(key) or self._last.get(key)
        if known is None:
            known = members, _fit(members, [views[v] for v, _ in of], yaw_rad)
        self._now[key] = known
        return replace(known[1], members=of)

    def sighted(self, items: _Items, views: Sequence[LiftedView]) -> NDArray[np.int64]:
        """Return (D, V) :func:`_sighted_in`; that of known detections and views is kept."""
        before, known_detections, known_views = self._sighted
        columns = [(v.frame, v.T_world_camera, v.lifted) for v in views]
        row_of = {id(d): n for n, d in enumerate(known_detections)}
        column_of = {tuple(map(id, parts)): n for n, parts in enumerate(known_views)}
        row = np.array([row_of.get(id(d), -1) for d in items.lifted], dtype=np.int64)
        seen = np.zeros((len(row), len(views)), np.int64)
        for v, parts in enumerate(columns):
            new = row < 0
            if (column := column_of.get(tuple(map(id, parts)))) is None:
                new[:] = True
            else:
                seen[~new, v] = before[row[~new], column]
            seen[new, v] = _sighted_in(items, np.flatnonzero(new), views[v])
        self._sighted = seen, items.lifted, columns
        return seen


def _fit(members: list[LiftedDetection], of: Sequence[LiftedView], yaw_rad: float) -> Candidate:
    """Join detections to a candidate without members; ``of`` is the view of each, in any order."""
    order = sorted(range(len(members)), key=lambda m: (of[m].key, of[m].source, members[m].row))
    members, of = [members[m] for m in order], [of[m] for m in order]
    points = hull_points(members, of)
    best: dict[tuple[str, str, int], float] = {}  # (detector, name, view) -> score
    for view, detection in zip(of, members, strict=True):
        key = view.source, detection.label, view.key
        best[key] = max(best.get(key, 0.0), detection.score)
    reported: dict[str, dict[str, tuple[int, float]]] = {}
    for (source, name, _), score in best.items():
        count, highest = reported.setdefault(source, {}).get(name, (0, 0.0))
        reported[source][name] = count + 1, max(highest, score)
    return Candidate(points, box_around(points, yaw_rad), reported)


def hull_points(members: Sequence[LiftedDetection], of: Sequence[LiftedView]) -> NDArray[np.float64]:
    """Return (K, 3) points of an object: surface that its views have in their 2-D boxes, connected.

    ``of`` is the view of each member. What one view alone has is its foreground.
    """
    size = median(np.array([d.box[3:6].max() for d in members]))
    cell_m = _HULL_CELL_M if size >= _SMALL_M else _HULL_CELL_M / 2
    front = np.concatenate([d.points_m for d in members])
    points = np.concatenate([front, *(d.around_m for d in members)])
    step = 1 + len(points) // _HULL_POINTS
    weight = np.where(np.arange(len(points)) < len(front), 1.0, _AROUND)[::step]
    points = points[::step]
    _, first, cell = np.unique(keys_of(points, cell_m), return_index=True, return_inverse=True)
    weight = np.bincount(cell, weights=weight) / np.bincount(cell)
    points = points[first]
    seen, inside = sightings(points, members, of)
    share = inside / np.maximum(seen, 1.0)
    kept = (share >= _HULL_SHARE) & (weight * np.minimum(inside, 3.0) >= _ENOUGH)
    if np.count_nonzero(kept) < 10:
        return front
    points, weight = points[kept], (weight * share)[kept]
    if all(view.found.masks is not None for view in of):
        return points
    return points[connected(points, weight, 2.5 * cell_m)]


def sightings(
    points_m: NDArray[np.float64], members: Sequence[LiftedDetection], of: Sequence[LiftedView]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (K,) the number of views that see each point, and of those that have it in their 2-D box.

    ``of`` is the view of each member; of many views some are asked, evenly over time.
    """
    seen, inside = np.zeros(len(points_m)), np.zeros(len(points_m))
    chosen = np.unique(np.linspace(0, len(members) - 1, min(_HULL_VIEWS, len(members))).astype(int))
    for m in map(int, chosen):
        box_px = _grown(members[m].box_px[None])[0]
        uv, visible = pixels_of(points_m, *of[m].camera, of[m].frame.depth_m)
        seen += visible
        within = visible & (uv >= box_px[:2]).all(axis=1) & (uv <= box_px[2:]).all(axis=1)
        if (masks := of[m].found.masks) is not None:
            u, v = np.rint(uv[within]).astype(np.int64).T
            within[within] = cv2.dilate(masks[members[m].row].astype(np.uint8), _MARGIN_KERNEL)[v, u] > 0
        inside += within
    return seen, inside
