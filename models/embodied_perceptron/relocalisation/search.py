"""Relocalisation: search for the robot's pose in a saved map, frame by frame, until one hypothesis is certain.

Hypotheses come from feature matches with the map's places, and from shifts and yaws under which the seen surfaces fit
those of the map. Each is aligned with the map's surfaces and scored by the share of depth on a surface of the map, the
share of the map seen through, and the number of features that match at the same position. A hypothesis is certain when
all three are good and no other location comes close, so a corridor of equal doors continues the search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64, invert_transform, transform_points
from embodied_perceptron.relocalisation.alignment import (
    Motions,
    Surface,
    SurfaceLayers,
    are_apart,
    best_motion,
    difference,
    least_held,
    motions_of_pairs,
    refine,
)
from embodied_perceptron.relocalisation.features import (
    FeatureError,
    FeatureExtractor,
    Neighbours,
    extractor,
    features_of,
)
from embodied_perceptron.relocalisation.places import Place
from embodied_perceptron.sensors.frame import PosedFrame

I64 = NDArray[np.int64]

_SURFACE_M = 0.05  # the map's points are thinned to one a cell
_COARSE_M = 0.1
_DEPTH_POINTS = 1200  # of all frames, for alignment and scoring
_FRAME_POINTS = 1500  # of one frame
_LEAST_DEPTH_POINTS = 50  # least number of cells of all frames
_NEAR_M, _FAR_M = 0.3, 6.0
_HIT_M = 0.1  # distance within which a point is on the surface
_LIKES = 5  # nearest map features of each current one
_BY_FEATURES, _BY_SURFACES, _SCREENED = 5, 8, 8  # hypotheses
_SCREEN_POINTS = 400
_ROUGH_M, _FINE_M = (0.3, 0.25, 0.2), (0.2, 0.15, 0.12, 0.1, 0.08, 0.06)  # reach of matches, by iteration
_FINAL_M = (0.1, 0.08, 0.06, 0.05, 0.04, 0.03, *[0.02] * 6)  # reach of matches with all points of the map
_FINAL_CELL_M, _FINAL_HIT_M = 0.02, 0.01  # of the depth for that; distance within which a point fits
_SLIDES_M = (-0.3, -0.2, -0.1, 0.1, 0.2, 0.3)  # possible offsets of the first match
_CLEARLY = 0.05  # significant difference of the evidence of two alignments
_VIEWS_THROUGH = 4  # frames checked for seeing through


@dataclass(frozen=True)
class SearchLimits:
    """Conditions for a certain pose.

    Attributes:
        min_frames: least number of frames; one alone may fit by chance.
        min_on_surface: least share of depth on a surface of the map.
        max_seen_through: largest share of the map's surfaces in view that depth sees through.
        min_recognised, min_recognised_share: least number of features that match at the same position, and least
            share of all features, some of which match by chance. Rooms of one building have equal walls but look
            different.
        min_advantage: of the evidence (:meth:`Hypothesis.evidence`) over the next best location.
        max_frames: number of frames kept.
    """

    min_frames: int = 2
    min_on_surface: float = 0.55
    max_seen_through: float = 0.3
    min_recognised: float = 12.0
    min_recognised_share: float = 0.02
    min_advantage: float = 0.2
    max_frames: int = 12


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A possible pose of the robot.

    Attributes:
        T_map_world: (4, 4) level pose of the current world in the map.
        on_surface, seen_through: see :class:`SearchLimits`.
        recognised: number of current features, of ``features``, whose nearest map features are at their position; a
            feature with several positions counts in parts.
    """

    T_map_world: F64
    on_surface: float
    seen_through: float
    recognised: float
    features: int

    @property
    def evidence(self) -> float:
        """Return the score; ten times as many features are worth about a quarter of the depth."""
        return self.on_surface - self.seen_through + 0.1 * float(np.log1p(self.recognised))


@dataclass(frozen=True, eq=False)
class PlaceEstimate:
    """Result of the search after a frame.

    Attributes:
        found: the pose is certain.
        best, other: the best hypothesis, and the best one elsewhere; None = none.
        reason: why it is not certain; "" if it is.
        frames: number of frames so far.
    """

    found: bool
    best: Hypothesis | None
    other: Hypothesis | None
    reason: str
    frames: int


@dataclass(frozen=True, eq=False)
class _View:
    """Features and depth of a current frame, in the world.

    Attributes:
        points_m: (N, 3) of the features.
        likes_m: (N, k, 3) of the nearest map features of each; NaN where none is similar.
        feature, place: (M,) of the matches: row of the feature, and of the map's place.
        world_m, map_m: (M, 3) positions of the matches in the world and in the map.
        depth_m: (D, 3) of the depth.
    """

    posed: PosedFrame
    points_m: F64
    likes_m: F64
    feature: I64
    place: I64
    world_m: F64
    map_m: F64
    depth_m: F64


class PlaceSearch:
    """See the module docstring. Not thread-safe.

    Args:
        places: of the map.
        surface_m: (N, 3) points of the map's surfaces.
        floor_of: height of the floor under (N, 3) points, or None.
        T_map_world: (4, 4) given pose of the world in the map, of a robot that starts where it started before; it is
            a hypothesis like the others.
        limits: see :class:`SearchLimits`.

    Attributes:
        estimate: after the last frame.

    Raises :class:`FeatureError` for a map without usable features.
    """

    def __init__(
        self,
        places: Sequence[Place],
        surface_m: F64,
        floor_of: Callable[[F64], float | None],
        T_map_world: F64,
        limits: SearchLimits | None = None,
    ) -> None:
        self.limits = SearchLimits() if limits is None else limits
        self._kinds = _indices(places)
        thin_m = _thinned(np.asarray(surface_m, np.float64), _SURFACE_M)
        if len(thin_m) < _DEPTH_POINTS:
            raise FeatureError(
                f"the map has too few surfaces: {len(thin_m)} cells of {_SURFACE_M} m, {_DEPTH_POINTS} are needed"
            )
        self._surface_m = surface_m
        self._surface, self._coarse_m = Surface.of(thin_m), _thinned(thin_m, _COARSE_M)
        self._floor_of, self._given = floor_of, T_map_world
        floor_z_m = floor_of(thin_m)
        self._floor_z_m = float(thin_m[:, 2].min()) if floor_z_m is None else floor_z_m
        self._layers = SurfaceLayers(thin_m, self._floor_z_m)
        self._views: list[_View] = []
        self._frames = 0
        self._rng = np.random.default_rng(0)
        self.estimate = PlaceEstimate(False, None, None, "no frame has arrived yet", 0)

    def look(self, posed: PosedFrame) -> PlaceEstimate:
        """Add a frame, posed in the world, and return the estimate."""
        self._views = [*self._views, self._view(posed)][-self.limits.max_frames :]
        self._frames += 1
        self.estimate = self._judge()
        return self.estimate

    # ---- one frame

    def _view(self, posed: PosedFrame) -> _View:
        points_m, likes_m, feature, found_place, world_m, map_m = [], [], [], [], [], []
        before = 0
        for index in self._kinds:
            features = features_of(posed.frame, index.of)
            points = transform_points(posed.T_world_camera, features.points_m.astype(np.float64))
            near = index.of.nearest(features.descriptors, index.descriptors, _LIKES)
            rows, found = index.matches(features.descriptors, near)
            points_m.append(points)
            likes = index.points_m[near.index]
            likes[near.distance >= index.of.alike] = np.nan
            likes_m.append(likes)
            feature.append(rows + before)
            found_place.append(index.place[found])
            world_m.append(points[rows])
            map_m.append(index.points_m[found])
            before += len(features)
        return _View(
            posed, np.concatenate(points_m), np.concatenate(likes_m), np.concatenate(feature),
            np.concatenate(found_place), np.concatenate(world_m), np.concatenate(map_m), _depth_points(posed),
        )  # fmt: skip

    # ---- all frames

    def _judge(self) -> PlaceEstimate:
        hypotheses = self._hypotheses()
        if not hypotheses:
            return PlaceEstimate(False, None, None, "too little depth within 6 m", self._frames)
        best = hypotheses[0]
        at_m = self._views[-1].posed.T_world_camera[:3, 3]
        other = next((h for h in hypotheses if are_apart(h.T_map_world, best.T_map_world, at_m)), None)
        if reason := self._doubt(best, other):
            return PlaceEstimate(False, best, other, reason, self._frames)
        return PlaceEstimate(True, self._final(best), other, "", self._frames)

    def _doubt(self, best: Hypothesis, other: Hypothesis | None) -> str:
        """Return why ``best`` is not certain; "" if it is."""
        limits = self.limits
        if self._frames < limits.min_frames:
            return f"{self._frames} of at least {limits.min_frames} frames has arrived"
        if best.on_surface < limits.min_on_surface:
            return f"only {best.on_surface:.0%} of the depth lies on surfaces of the map at the most likely pose"
        if best.seen_through > limits.max_seen_through:
            return f"at the most likely pose {best.seen_through:.0%} of the map's surfaces in view are seen through"
        if other is not None and best.evidence - other.evidence < limits.min_advantage:
            return (
                f"two places look alike: {best.on_surface:.0%} of the depth fits one and {other.on_surface:.0%} the "
                f"other, {best.recognised:.0f} and {other.recognised:.0f} features are recognised"
            )
        if best.recognised < (needed := max(limits.min_recognised, limits.min_recognised_share * best.features)):
            return (
                f"{best.on_surface:.0%} of the depth fits the most likely pose, but only {best.recognised:.0f} of "
                f"{best.features} features are recognised there, {needed:.0f} are needed"
            )
        return ""

    def _hypotheses(self) -> list[Hypothesis]:
        """Return possible poses, the most likely first."""
        depth_m = _thinned(np.concatenate([v.depth_m for v in self._views]), _COARSE_M)
        if len(depth_m) < _LEAST_DEPTH_POINTS:
            return []
        some_m = self._rng.permutation(depth_m)[:_DEPTH_POINTS]
        at_m = self._views[-1].posed.T_world_camera[:3, 3]
        judged: list[Hypothesis] = []
        for T in self._screened(
            [self._given, *self._by_features(), *self._by_surfaces(depth_m)], some_m[:_SCREEN_POINTS]
        ):
            T = refine(some_m, self._surface, T, _FINE_M)
            if any(_is_same(T, h.T_map_world, at_m) for h in judged):
                continue
            judged.append(self._hypothesis(T, some_m))
        judged.sort(key=lambda h: -h.evidence)
        return [self._slid(judged[0], some_m), *judged[1:]]

    def _slid(self, best: Hypothesis, some_m: F64) -> Hypothesis:
        """Return the hypothesis, or a clearly better one shifted along the least constrained direction, along which
        alignment of surfaces does not converge."""
        along = np.eye(4)
        direction = least_held(some_m, self._surface, best.T_map_world, _HIT_M)
        found = []
        for shift_m in _SLIDES_M:
            along[:3, 3] = shift_m * direction
            found.append(self._hypothesis(refine(some_m, self._surface, along @ best.T_map_world, _FINE_M), some_m))
        other = max(found, key=lambda h: h.evidence)
        return other if other.evidence > best.evidence + _CLEARLY else best

    def _final(self, best: Hypothesis) -> Hypothesis:
        """Return the certain hypothesis after alignment with all points of the map, because thinned points leave it
        centimetres off; ``best`` itself if fewer points of the depth fit afterwards."""
        depth_m = _thinned(np.concatenate([v.depth_m for v in self._views]), _FINAL_CELL_M)
        moved_m = transform_points(best.T_map_world, depth_m)
        low_m, high_m = moved_m.min(0) - _ROUGH_M[0], moved_m.max(0) + _ROUGH_M[0]
        near_m = self._surface_m[((self._surface_m > low_m) & (self._surface_m < high_m)).all(1)]
        surface = Surface.of(near_m)
        T = refine(depth_m, surface, best.T_map_world, _FINAL_M)
        before = np.isfinite(surface.distance_m(moved_m, _FINAL_HIT_M)).sum()
        after = np.isfinite(surface.distance_m(transform_points(T, depth_m), _FINAL_HIT_M)).sum()
        return best if after < before else self._hypothesis(T, depth_m)

    def _hypothesis(self, T: F64, some_m: F64) -> Hypothesis:
        return Hypothesis(T, self._on_surface(T, some_m), self._seen_through(T), *self._recognised(T))

    def _screened(self, poses: list[F64], few_m: F64) -> list[F64]:
        """Return the poses that fit best after rough alignment of a few points."""
        poses = [refine(few_m, self._surface, T, _ROUGH_M) for T in poses]
        fits = [self._on_surface(T, few_m) for T in poses]
        return [poses[k] for k in np.argsort([-fit for fit in fits], kind="stable")[:_SCREENED]]

    def _on_surface(self, T: F64, points_m: F64) -> float:
        return float((self._surface.distance_m(transform_points(T, points_m), _HIT_M) < _HIT_M).mean())

    def _by_surfaces(self, depth_m: F64) -> list[F64]:
        floor_z_m = self._floor_of(depth_m)
        return self._layers.candidates(depth_m, self._floor_z_m if floor_z_m is None else floor_z_m, _BY_SURFACES)

    def _by_features(self) -> list[F64]:
        """Return the poses with most agreeing matches, from pairs of matches of one frame with one place."""
        world_m = np.concatenate([v.world_m for v in self._views])
        map_m = np.concatenate([v.map_m for v in self._views])
        frame = np.repeat(np.arange(len(self._views)), [len(v.feature) for v in self._views])
        feature = np.concatenate([v.feature for v in self._views])
        places = np.concatenate([v.place for v in self._views])
        feature = np.unique(np.stack([frame, feature]), axis=1, return_inverse=True)[1].ravel()
        pair = np.unique(np.stack([frame, places]), axis=1, return_inverse=True)[1].ravel()
        motions = _motions_of_matches(world_m, map_m, pair, self._rng)
        if not len(motions):
            return []
        at_m = self._views[-1].posed.T_world_camera[:3, 3]
        eyes_m = np.stack([v.posed.T_world_camera[:3, 3] for v in self._views])[frame]
        tolerance_m = 0.06 + 0.01 * ((world_m - eyes_m) ** 2).sum(1)
        order = np.argsort(-_agreeing(motions, world_m, map_m, tolerance_m, feature), kind="stable")
        poses: list[F64] = []
        while len(order) and len(poses) < _BY_FEATURES:
            T = _polished(motions.matrix(int(order[0])), world_m, map_m, tolerance_m)
            poses.append(T)
            order = order[1:][[are_apart(motions.matrix(int(k)), T, at_m) for k in order[1:]]]
        return poses

    def _seen_through(self, T_map_world: F64) -> float:
        """Return the share of the map's surfaces in view that are clearly in front of the measured depth."""
        step = max(1, len(self._views) // _VIEWS_THROUGH)
        through = visible = 0
        for view in self._views[::-step]:
            t, v = _see_through(self._coarse_m, T_map_world, view.posed)
            through, visible = through + t, visible + v
        return through / visible if visible else 0.0

    def _recognised(self, T: F64) -> tuple[float, int]:
        """Return the number of features whose nearest map features are at their position, and of all features.

        A feature with several positions (the edge of a floor board) counts in parts.
        """
        recognised, features = 0.0, 0
        for view in self._views:
            eye_m = view.posed.T_world_camera[:3, 3]
            tolerance_m = 0.06 + 0.01 * ((view.points_m - eye_m) ** 2).sum(1)
            offset = view.likes_m - transform_points(T, view.points_m)[:, None]
            here = ((offset**2).sum(2) < (tolerance_m**2)[:, None]).sum(1)
            recognised += float((here / np.maximum(np.isfinite(view.likes_m[:, :, 0]).sum(1), 2)).sum())
            features += len(view.points_m)
        return recognised, features


# --------------------------------------------------------------------------------------------------------------------
# matches


class _Index:
    """Features of all places of one kind."""

    _SHORTLIST = 12

    def __init__(self, of: FeatureExtractor, places: Sequence[Place], rows: Sequence[int]) -> None:
        self.of = of
        self.descriptors = np.concatenate([places[i].descriptors for i in rows])
        self.place = np.repeat(np.array(rows), [len(places[i]) for i in rows])
        self.points_m = np.concatenate([places[i].points_m for i in rows])

    def matches(self, descriptors: NDArray[np.uint8], near: Neighbours) -> tuple[I64, I64]:
        """Return matching rows of a frame's features and of the index, for the places most similar to the frame.

        ``near``: nearest of the index for each feature.
        """
        rows, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        if len(descriptors):
            known = near.index >= 0
            votes = np.zeros(int(self.place.max()) + 1)
            weight = np.clip(self.of.alike - near.distance[known], 0, None)
            np.add.at(votes, self.place[near.index[known]], weight)
            for place in np.argsort(-votes, kind="stable")[: self._SHORTLIST]:
                if votes[place] > 0:
                    members = np.flatnonzero(self.place == place)
                    row, member = _mutual(descriptors, self.descriptors[members], self.of)
                    rows.append(row)
                    found.append(members[member])
        return np.concatenate(rows), np.concatenate(found)


def _indices(places: Sequence[Place]) -> list[_Index]:
    kinds = list(dict.fromkeys(place.kind for place in places))
    if not kinds:
        raise FeatureError("the map has no features of places: it was saved without them, or by an older version")
    indices, missing = [], []
    for kind in kinds:
        try:
            of = extractor(kind)
        except FeatureError as error:
            missing.append(str(error))
            continue
        rows = [i for i, p in enumerate(places) if p.kind == kind and p.descriptors.shape[1] == of.width and len(p)]
        if rows:
            indices.append(_Index(of, places, rows))
    if not indices:
        raise FeatureError("; ".join(missing) or "the map's features have another width than their kind")
    return indices


def _mutual(a: NDArray[np.uint8], b: NDArray[np.uint8], of: FeatureExtractor) -> tuple[I64, I64]:
    """Return rows of ``a`` and ``b`` that are mutually nearest, similar, and pass the ratio test."""
    there, back = of.nearest(a, b, 2), of.nearest(b, a, 1)
    candidate = there.index[:, 0]
    good = back.index[candidate, 0] == np.arange(len(a))
    good &= (there.distance[:, 0] < 0.9 * there.distance[:, 1]) & (there.distance[:, 0] < of.alike)
    return np.flatnonzero(good), candidate[good]


def _motions_of_matches(world_m: F64, map_m: F64, group: I64, rng: np.random.Generator, count: int = 4000) -> Motions:
    """Return motions from random pairs of matches of one group with equal distances."""
    order = np.argsort(group, kind="stable")
    sorted_group = group[order]
    start = np.searchsorted(sorted_group, sorted_group)
    size = np.searchsorted(sorted_group, sorted_group, side="right") - start
    able = np.flatnonzero(size >= 3)
    if not len(able):
        return Motions(np.zeros(0), np.zeros((0, 3)))
    one = rng.choice(able, count)
    two = start[one] + (rng.random(count) * size[one]).astype(np.int64)
    first, second = order[one], order[two]
    a, b = world_m[second] - world_m[first], map_m[second] - map_m[first]
    far_a, far_b = np.linalg.norm(a[:, :2], axis=1), np.linalg.norm(b[:, :2], axis=1)
    fits = (np.minimum(far_a, far_b) > 0.25) & (np.abs(far_a - far_b) < 0.05 + 0.05 * far_a)
    fits &= np.abs(a[:, 2] - b[:, 2]) < 0.12
    return motions_of_pairs(world_m, map_m, first[fits], second[fits])


def _agreeing(motions: Motions, world_m: F64, map_m: F64, tolerance_m: F64, feature: I64) -> I64:
    """Return (K,) the number of distinct features that agree with each motion."""
    counts, features = np.zeros(len(motions), np.int64), int(feature.max()) + 1
    for first in range(0, len(motions), 256):
        part = np.arange(first, min(first + 256, len(motions)))
        offset = motions[part].apply(world_m) - map_m
        row, match = np.nonzero((offset**2).sum(2) < tolerance_m**2)
        hit = np.zeros((len(part), features), bool)
        hit[row, feature[match]] = True
        counts[part] = hit.sum(1)
    return counts


def _polished(T: F64, world_m: F64, map_m: F64, tolerance_m: F64) -> F64:
    """Refit the motion to all matches that agree with it."""
    for widen in (1.5, 1.0, 1.0):
        agree = np.linalg.norm(transform_points(T, world_m) - map_m, axis=1) < widen * tolerance_m
        if int(agree.sum()) < 3:
            break
        T = best_motion(world_m[agree], map_m[agree], 1 / tolerance_m[agree] ** 2)
    return T


# --------------------------------------------------------------------------------------------------------------------
# depth


def _depth_points(posed: PosedFrame) -> F64:
    """Return (D, 3) world points of a frame's depth, sampled over the image."""
    frame, k = posed.frame, posed.frame.intrinsics
    step = max(1, int(np.sqrt(k.width * k.height / _FRAME_POINTS)))
    rows, columns = np.mgrid[step // 2 : k.height : step, step // 2 : k.width : step]
    depth = frame.depth_m[rows, columns]
    kept = (depth > _NEAR_M) & (depth < _FAR_M)
    z = depth[kept].astype(np.float64)
    points = np.stack([(columns[kept] - k.cx) / k.fx * z, (rows[kept] - k.cy) / k.fy * z, z], axis=1)
    return transform_points(posed.T_world_camera, points)


def _see_through(surface_m: F64, T_map_world: F64, posed: PosedFrame) -> tuple[int, int]:
    """Return the number of map points that a frame sees through, and of visible ones."""
    T_map_camera = T_map_world @ posed.T_world_camera
    near = surface_m[np.abs(surface_m - T_map_camera[:3, 3]).max(1) < 4.0]
    points = transform_points(invert_transform(T_map_camera), near)
    points = points[(points[:, 2] > 0.4) & (points[:, 2] < 4.0)]
    k = posed.frame.intrinsics
    u = np.round(points[:, 0] / points[:, 2] * k.fx + k.cx).astype(np.int64)
    v = np.round(points[:, 1] / points[:, 2] * k.fy + k.cy).astype(np.int64)
    inside = (u >= 0) & (u < k.width) & (v >= 0) & (v < k.height)
    z, measured = points[inside, 2], posed.frame.depth_m[v[inside], u[inside]]
    margin = 0.15 + 0.02 * z**2
    visible = (measured > 0) & (z < measured + margin)  # points behind are occluded
    return int((z[visible] < measured[visible] - margin[visible]).sum()), int(visible.sum())


def _thinned(points_m: F64, cell_m: float) -> F64:
    """Keep one of (N, 3) points in each cell."""
    kept: F64 = points_m[np.unique(np.floor(points_m / cell_m).astype(np.int64), axis=0, return_index=True)[1]]
    return kept


def _is_same(A: F64, B: F64, at_m: F64) -> bool:
    shift, turn = difference(A, B, at_m)
    return shift < 0.08 and turn < 0.05
