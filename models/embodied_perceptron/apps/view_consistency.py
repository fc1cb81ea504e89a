"""Poses, scale and focal length judged by depth alone: two views of the same surfaces must agree.

Where they do not, the usual causes are tried on the data: poses of another convention, depth or poses of another scale,
another focal length, stamps that are off. The one after which the views agree is named, with the option that applies
it.

Views that are all from one place agree whatever the poses say, and so do, for some causes, views along one line: of
those nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.apps.findings import Finding, Severity
from embodied_perceptron.geometry.transforms import (
    Intrinsics,
    back_project,
    invert_transform,
    project,
    transform_points,
)
from embodied_perceptron.recordings.conventions import POSE_CONVENTIONS, conventions_text, convert_pose

View = tuple[NDArray[np.float32], NDArray[np.float64]]  # (H, W) canonical depth, (4, 4) T_world_camera
# seconds -> the views' poses, were so much added to the stamps of poses; None where there is none at that time
PosesAt = Callable[[float], Sequence[NDArray[np.float64] | None]]

_POINTS = 2000  # of each view
_MAX_NEAR = 15  # pairs of a kind
_MIN_PAIRS = 3  # that tell something
_MIN_COMMON = 300  # points of a pair that both views see
_FAR_M, _FAR_MEDIANS = 5.0, 3.0  # beyond, depth noise outweighs the rest; of depth of another scale so many medians
_MOVED_M, _TURNED_RAD = 0.005, 0.005  # between two views; less tells nothing
_TELLING = 0.008  # disagreement as a share of depth: noise and pose drift of 1 to 2 cm stay below
_WRONG = 0.005  # disagreement from which a focal length or scale may be wrong,
_FOREIGN = 0.01  # and poses may be of another convention
_BETTER = 0.5  # of the disagreement is left once the cause is found
_MUCH_BETTER = 0.6  # a cause of several parts explains more than each of them by so much
_OFF = 0.05  # scales that are nearer to 1 are right
_UNEXPLAINED = 0.04
_POSE_OFFSETS_S = [round(0.05 * k, 2) for k in range(-10, 11) if k]
_FOCAL_SCALES = np.linspace(0.7, 1.4, 36)  # includes 1
_DEPTH_FACTORS = np.geomspace(1e-4, 1e4, 83)  # steps of a quarter
_USUAL_DEPTH_SCALES = (1.0, 10.0, 100.0, 500.0, 1000.0, 2000.0, 4000.0, 5000.0, 6553.5, 8000.0, 10000.0)
_USUAL_MEDIAN_M = 1.8  # of indoor depth images
_SIDEWAYS = 0.7  # largest vertical part of a view direction that shows which world axis is up
_UP_SHARE, _NOT_UP_SHARE = 0.75, 0.45

# one of each group at most; the first is none
_CONVENTIONS = tuple(
    tuple(name for name in names if name) for names in product(("", "wxyz"), ("", "inverse"), ("", "opengl", "body"))
)


@dataclass(frozen=True)
class _Cause:
    """An explanation of the poses and images as they are; the fields are what would have to be changed."""

    conventions: tuple[str, ...] = ()
    depth_factor: float = 1.0
    focal_scale: float = 1.0
    pose_offset_s: float = 0.0


class _Views:
    """Pairs of views whose disagreement under a cause can be measured."""

    def __init__(self, views: Sequence[View], intrinsics: Intrinsics, poses_at: PosesAt | None) -> None:
        self._views = views
        self._poses_at = poses_at
        self._intrinsics = intrinsics
        self._clouds = []
        for depth_m, _ in views:
            known = depth_m[np.isfinite(depth_m) & (depth_m > 0)]
            far_m = max(_FAR_M, _FAR_MEDIANS * float(np.median(known))) if len(known) else _FAR_M
            points, valid = back_project(np.where(depth_m < far_m, depth_m, 0.0), intrinsics)
            cloud = points[valid]
            self._clouds.append(cloud[:: max(1, len(cloud) // _POINTS)])
        count = len(views)
        near: list[tuple[int, int]] = []
        for gap in (1, 2):  # neighbours in time, which see the same surfaces
            near += _thinned([(i, i + gap) for i in range(count - gap) if self._moved(i, i + gap)], _MAX_NEAR)
        self.near = [pair if n % 2 else pair[::-1] for n, pair in enumerate(near)]
        # from further apart small errors show better, where there still is something in common
        wide = [(i, j) for i in range(count) for j in range(count) if i != j and self._moved(i, j)]
        self.wide = _thinned(wide, 2 * _MAX_NEAR)

    def _moved(self, i: int, j: int) -> bool:
        T = invert_transform(self._views[j][1]) @ self._views[i][1]
        turn_rad = np.arccos(np.clip((np.trace(T[:3, :3]) - 1) / 2, -1, 1))
        return bool(np.linalg.norm(T[:3, 3]) > _MOVED_M or turn_rad > _TURNED_RAD)

    def disagreements(self, pairs: Sequence[tuple[int, int]], causes: Sequence[_Cause]) -> NDArray[np.float64]:
        """(P, C) of every pair under every cause: median of |depth of one view's points in the other - depth there| /
        depth; NaN with too few points in common."""
        out = np.full((len(pairs), len(causes)), np.nan)
        for c, cause in enumerate(causes):
            poses = [None if T is None else convert_pose(T, cause.conventions) for T in self._poses(cause)]
            for p, (i, j) in enumerate(pairs):
                T_world_i, T_world_j = poses[i], poses[j]
                if T_world_i is not None and T_world_j is not None:
                    out[p, c] = self._disagreement(i, j, invert_transform(T_world_j) @ T_world_i, cause)
        return out

    def _poses(self, cause: _Cause) -> Sequence[NDArray[np.float64] | None]:
        if cause.pose_offset_s and self._poses_at is not None:
            return self._poses_at(cause.pose_offset_s)
        return [T for _, T in self._views]

    def _disagreement(self, i: int, j: int, T_j_i: NDArray[np.float64], cause: _Cause) -> float:
        k, s = cause.focal_scale, cause.depth_factor
        camera = replace(self._intrinsics, fx=k * self._intrinsics.fx, fy=k * self._intrinsics.fy)
        cloud = transform_points(T_j_i, self._clouds[i] * (s / k, s / k, s))
        uv, inside = project(cloud, camera)
        u, v = np.rint(uv[inside]).astype(np.int64).T
        seen = self._views[j][0][v, u]
        known = np.isfinite(seen) & (seen > 0)
        if known.sum() < _MIN_COMMON:
            return float("nan")
        z = cloud[inside][known, 2]
        return float(np.median(np.abs(z - s * seen[known]) / z))


def _thinned(pairs: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    return pairs[:: max(1, -(-len(pairs) // count))]


def _scores(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """(C,) median over those of the (P, C) pairs that tell; 1 where a cause leaves nothing in common. Empty where fewer
    than a few tell: two views of a robot that stands still agree whatever the cause."""
    known = np.isfinite(table)
    spread = np.where(known, table, -np.inf).max(axis=1) - np.where(known, table, np.inf).min(axis=1)
    telling = np.where(known, table, 1.0)[spread >= _TELLING]
    return np.median(telling, axis=0) if len(telling) >= _MIN_PAIRS else np.zeros(0)


def check_views(
    camera: str,
    views: Sequence[View],
    intrinsics: Intrinsics,
    *,
    depth_scale: float | None = None,
    poses_at: PosesAt | None = None,
    live: bool = False,
) -> list[Finding]:
    """Do the views agree, and if not, under which of the usual causes would they?

    Args:
        camera: its name.
        views: in order of time.
        intrinsics: of the depth images.
        depth_scale: raw units per metre that the depth was read with; None where it came in metres.
        poses_at: their poses at other times, to try whether the stamps of poses are off.
        live: options of commands do not help.

    Returns:
        Nothing where the views tell nothing: a static camera, no overlap.
    """
    compared = _Views(views, intrinsics, poses_at)
    conventions = _family(compared, [_Cause(names) for names in _CONVENTIONS[1:]])
    # poses that are far too large leave nothing in common under any of them
    here = 1.0 if conventions is None else conventions.here
    explained = conventions if conventions is not None and conventions.explains(_FOREIGN) else None
    if explained is None:
        focal = _family(compared, [_Cause(focal_scale=float(k)) for k in _FOCAL_SCALES], wide=True)
        scale = _family(compared, [_Cause(depth_factor=float(s)) for s in _DEPTH_FACTORS]) if here >= _WRONG else None
        late = None
        if here >= _WRONG and poses_at is not None:
            late = _family(compared, [_Cause(pose_offset_s=float(s)) for s in _POSE_OFFSETS_S])
        found = [family for family in (focal, scale, late) if family is not None and family.explains(_WRONG)]
        explained = min(found, key=lambda family: family.least / family.here, default=None)
    if explained is None and here > _UNEXPLAINED:  # two causes at once
        both = [_Cause(names, depth_factor=float(s)) for names in _CONVENTIONS for s in _DEPTH_FACTORS]
        together = _family(compared, both)
        explained = together if together is not None and together.explains(_FOREIGN) else None
    if explained is None:
        if conventions is None:
            return []
        if here <= _UNEXPLAINED:
            return [Finding("views", Severity.OK, f"{camera}: views differ by {here:.1%} of the depth")]
        message = f"{camera}: views differ by {here:.1%} of the depth: the poses do not fit the images"
        remedy = "check the poses, their clock and the calibration; none of the usual conventions explains it"
        return [Finding("views", Severity.WARNING, message, remedy)]
    cause, least = explained.cause, explained.least
    if cause.depth_factor != 1.0:
        near = [replace(cause, depth_factor=cause.depth_factor * float(f)) for f in np.linspace(0.85, 1.15, 31)]
        finer = _family(compared, near)
        if finer is not None:
            cause, least = finer.cause, finer.least
    differ = f"views differ by {least:.1%} of the depth instead of {explained.here:.1%}"
    findings = []
    if cause.conventions:
        findings.append(_other_convention(camera, cause.conventions, views, differ, live))
    if cause.depth_factor != 1.0:
        findings.append(_other_scale(camera, cause.depth_factor, views, depth_scale, differ, live))
    if cause.pose_offset_s:
        findings.append(_other_time(camera, compared, cause, differ, live))
    if cause.focal_scale != 1.0:
        message = (
            f"{camera}: the calibration does not fit: the images look like focal length "
            f"{cause.focal_scale * intrinsics.fx:.0f}, camera_info says {intrinsics.fx:.0f} ({differ})"
        )
        remedy = "check that camera_info belongs to this camera and resolution; calibrate it again"
        findings.append(Finding("focal length", Severity.ERROR, message, remedy))
    return findings


@dataclass(frozen=True)
class _Family:
    """The best of causes of one kind.

    Attributes:
        cause: the simplest that leaves hardly more than the least.
        here, least: disagreement of the views as they are, and under the cause.
        limit: the same where depth or poses would count for nothing; inf where the family has no such end.
    """

    cause: _Cause
    here: float
    least: float
    limit: float

    def explains(self, wrong: float) -> bool:
        """Whether the views agree under the cause, and neither as they are nor anyhow."""
        off = max(abs(self.cause.depth_factor - 1), abs(self.cause.focal_scale - 1))
        return (
            self.here >= wrong
            and self.least <= min(_BETTER * self.here, _MUCH_BETTER * self.limit, _UNEXPLAINED)
            and (bool(self.cause.conventions) or bool(self.cause.pose_offset_s) or off >= _OFF)
        )


def _family(compared: _Views, causes: Sequence[_Cause], *, wide: bool = False) -> _Family | None:
    """The best of ``causes``; None where too few pairs tell them apart.

    ``wide``: measured on views from far apart, of which those count that have something in common whatever the cause.
    """
    table = compared.disagreements(compared.wide if wide else compared.near, [_Cause(), *causes])
    scores = _scores(table[np.isfinite(table).all(axis=1)] if wide else table)
    if len(scores) == 0:
        return None
    best = -1
    for parts in sorted({len(cause.conventions) for cause in causes}):
        alike = [c for c, cause in enumerate(causes) if len(cause.conventions) == parts]
        candidate = min(alike, key=lambda c: scores[1 + c])
        if best < 0 or scores[1 + candidate] < _MUCH_BETTER * scores[1 + best]:
            best = candidate
    same = [scores[1 + c] for c, cause in enumerate(causes) if cause.conventions == causes[best].conventions]
    ends = [same[0], same[-1]] if causes[best].depth_factor != 1.0 else [np.inf]
    return _Family(causes[best], float(scores[0]), float(scores[1 + best]), float(min(ends)))


def _other_convention(camera: str, names: tuple[str, ...], views: Sequence[View], differ: str, live: bool) -> Finding:
    names = (*names, *world_axes([convert_pose(T, names) for _, T in views]))
    text = conventions_text(names)
    said = " and ".join(POSE_CONVENTIONS[name] for name in text.split(","))
    remedy = f"use --poses {text}"
    if live:
        remedy = "publish the pose of the optical frame (x right, y down, z forward) in a world with z up (REP-103)"
    return Finding("pose convention", Severity.ERROR, f"{camera}: the poses look like {said}: {differ}", remedy)


def _other_time(camera: str, compared: _Views, cause: _Cause, differ: str, live: bool) -> Finding:
    near = [replace(cause, pose_offset_s=round(cause.pose_offset_s + 0.01 * k, 2)) for k in range(-4, 5)]
    finer = _family(compared, [c for c in near if c.pose_offset_s])
    offset_s = (cause if finer is None else finer.cause).pose_offset_s
    late = "early" if offset_s > 0 else "late"
    message = f"{camera}: the stamps of the poses are {abs(offset_s):g} s too {late} for these images: {differ}"
    remedy = f"use --pose-offset {offset_s:g}"
    if live:
        remedy = "stamp images and poses by one clock, when they are taken and not when they arrive"
    return Finding("clock offset", Severity.ERROR, message, remedy)


def _other_scale(
    camera: str, factor: float, views: Sequence[View], depth_scale: float | None, differ: str, live: bool
) -> Finding:
    """Depth and poses differ by a factor: which of them is wrong, only the size of rooms tells."""
    median_m = float(np.median(np.concatenate([depth[np.isfinite(depth) & (depth > 0)][::17] for depth, _ in views])))
    unlikely_now, unlikely_then = (abs(np.log(m / _USUAL_MEDIAN_M)) for m in (median_m, factor * median_m))
    by_how_much = f"{1 / factor:.3g} times too large" if factor < 1 else f"{factor:.3g} times too small"
    if unlikely_then < unlikely_now:
        message = f"{camera}: the scale of the depth is wrong, it is {by_how_much} for these poses: {differ}"
        if depth_scale is None or live:
            return Finding("scale", Severity.ERROR, message, "check the unit of the depth: 16UC1 has mm, 32FC1 m")
        wanted = depth_scale / factor
        usual = min(_USUAL_DEPTH_SCALES, key=lambda scale: abs(np.log(scale / wanted)))
        wanted = usual if abs(np.log(usual / wanted)) < 0.05 else float(f"{wanted:.3g}")
        return Finding("scale", Severity.ERROR, message, f"use --depth-scale {wanted:g}")
    by_how_much = f"{1 / factor:.3g} times too small" if factor < 1 else f"{factor:.3g} times too large"
    message = f"{camera}: the scale of the poses is wrong, they are {by_how_much} for this depth: {differ}"
    if live:
        return Finding("scale", Severity.ERROR, message, "publish poses in metres")
    wanted = 1 / factor
    usual = 10.0 ** round(np.log10(wanted))
    wanted = usual if abs(np.log(usual / wanted)) < 0.05 else float(f"{wanted:.3g}")
    return Finding("scale", Severity.ERROR, message, f"use --pose-scale {wanted:g}")


def world_axes(poses: Sequence[NDArray[np.float64]]) -> tuple[str, ...]:
    """The convention of the world that (4, 4) poses of optical frames show: ``yup``, ``ydown``, or none.

    A camera that looks to the side has the top of its images up. Of one that looks along the z axis alone nothing is
    told: it may look down, in a world with z up.
    """
    ups = np.array([-T[:3, 1] for T in poses if abs(T[2, 2]) < _SIDEWAYS]).reshape(-1, 3)
    if len(ups) < max(3, 0.1 * len(poses)):
        return ()
    up = ups.mean(axis=0)
    if abs(up[1]) < _UP_SHARE or abs(up[2]) > _NOT_UP_SHARE:
        return ()
    return ("yup",) if up[1] > 0 else ("ydown",)


def check_world_axes(camera: str, poses: Sequence[NDArray[np.float64]], live: bool = False) -> list[Finding]:
    """Is z up? Of poses whose views agree; nothing where it is, or cannot be told."""
    return [
        Finding(
            "world axes",
            Severity.ERROR,
            f"{camera}: the poses are in {POSE_CONVENTIONS[name]}, not with z up",
            "publish poses in a frame with z up (REP-103)" if live else f"use --poses {name}",
        )
        for name in world_axes(poses)
    ]
