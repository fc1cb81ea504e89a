"""Finds single depth images that contradict their neighbours: unaligned, mirrored, of another scale, or stale.

Points of a depth image are projected into the newest images before it; where both see a surface, the depths agree. The
images form chains of images that agree. An image is refused when it is not in the best chain, and that chain has been
confirmed and is alive: after two refused images the next is accepted, since the scene or the pose may really have
changed. Coarse contradictions (most points, nearer and farther) count at once. Fine ones, which a late pose causes too,
count after images have twice left the chain and come back to it at once, as with every second image unaligned.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64, Intrinsics, invert_transform
from embodied_perceptron.sensors.frame import PosedFrame

_GRID = 40  # points across the image
_MIN_COMMON = 150  # points that both images see
_NEAR_NS, _NEAR_M = 700_000_000, 0.5  # images further apart are not compared
_AGREE, _AGREE_TIMES = 0.008, 2.5  # median difference as a share of depth: at most this, or so often the chain's
_OUTLIER, _COARSE, _ALL, _SIDE = 0.1, 0.5, 0.9, 0.1  # difference of an outlier; shares of outliers: coarse, of one side
_CHAINS, _ALIVE, _CONFIRMED, _RETURNS, _RETURN_IMAGES = 3, 2, 2, 2, 15
_CLEARLY = 1.5  # ratio of lengths, or of errors, of chains
_POSES = 10  # newest poses, one of which a stale image may have
_FLIPS: dict[str, Any] = {
    "left to right": np.s_[:, ::-1],
    "upside down": np.s_[::-1],
    "by half a turn": np.s_[::-1, ::-1],
}
_SAME_RATIO, _OTHER_SCALE = 0.2, 1.5  # spread of the ratio of depths of another scale, and least ratio


class _Difference(NamedTuple):
    """Median difference as a share of depth, shares of outliers nearer and farther, median ratio and its spread."""

    median: float
    nearer: float
    farther: float
    ratio: float
    spread: float

    @property
    def is_coarse(self) -> bool:
        outliers = self.nearer + self.farther
        return outliers > _COARSE and (min(self.nearer, self.farther) > _SIDE or outliers > _ALL)


@dataclass(eq=False)
class _Chain:
    newest: PosedFrame
    number: int  # of its newest frame
    length: int = 0  # agreements
    error: float = 0.0  # mean of their medians
    # numbers of the newest frames with which it went on after one image of another chain
    returns: deque[int] = field(default_factory=lambda: deque([-_RETURN_IMAGES] * _RETURNS, maxlen=_RETURNS))

    def agrees(self, found: _Difference) -> bool:
        return not found.is_coarse and found.median <= max(_AGREE, _AGREE_TIMES * self.error)

    def beats(self, other: _Chain) -> bool:
        if self.length >= _CLEARLY * other.length:
            return True
        return self.length * _CLEARLY >= other.length and _CLEARLY * self.error <= other.error


@dataclass(eq=False)
class _Camera:
    chains: list[_Chain] = field(default_factory=list)
    number: int = 0
    poses: deque[tuple[int, F64]] = field(default_factory=lambda: deque(maxlen=_POSES))


class DepthConsistency:
    """Checks the depth of each frame against the frames before it, camera by camera.

    Attributes:
        undecided: frames by camera whose depth contradicts frames that are no better confirmed: all are fused.
    """

    def __init__(self) -> None:
        self.undecided: Counter[str] = Counter()
        self._cameras: dict[str, _Camera] = {}

    def clear(self) -> None:
        """Forget all frames."""
        self._cameras.clear()

    def check(self, posed: PosedFrame) -> str:
        """Return "" for a frame to fuse, otherwise what is wrong with its depth."""
        camera = self._cameras.setdefault(posed.frame.camera, _Camera())
        camera.number += 1
        alive = (c for c in camera.chains if camera.number - c.number <= _ALIVE + 1)
        camera.chains = [c for c in alive if _are_near(posed, c.newest)]
        depth_m, T = posed.frame.depth_m, posed.T_world_camera
        found = [(chain, _compare(posed, depth_m, T, chain.newest)) for chain in camera.chains]
        compared = {id(chain): difference for chain, difference in found if difference is not None}
        agreeing = [c for c, d in found if d is not None and c.agrees(d)]
        own = min(agreeing, key=lambda c: compared[id(c)].median, default=None)
        if own is None:
            own = _Chain(posed, camera.number)
            camera.chains = [*camera.chains[-(_CHAINS - 1) :], own]
        else:
            own.error = (own.length * own.error + compared[id(own)].median) / (own.length + 1)
            own.length += 1
            if camera.number - own.number == 2:
                own.returns.append(camera.number)
            own.newest, own.number = posed, camera.number
        detail = ""
        for chain in camera.chains:
            difference = compared.get(id(chain))
            if chain is own or difference is None or camera.number - chain.number > _ALIVE:
                continue
            certain = difference.is_coarse or camera.number - chain.returns[0] < _RETURN_IMAGES
            if not certain or chain.length < _CONFIRMED:
                continue
            self.undecided[posed.frame.camera] += not (chain.beats(own) or own.beats(chain))
            if chain.beats(own):
                detail = self._kind(posed, chain, difference, camera)
        camera.poses.append((posed.frame.stamp_ns, posed.T_world_camera))
        return detail

    def _kind(self, posed: PosedFrame, chain: _Chain, difference: _Difference, camera: _Camera) -> str:
        """Describe what is wrong, by the correction under which the image agrees with a chain."""
        depth_m, T = posed.frame.depth_m, posed.T_world_camera

        def agreed(depth_m: NDArray[np.float32], T: F64) -> float:
            found = _compare(posed, depth_m, T, chain.newest)
            return found.median if found is not None and chain.agrees(found) else np.inf

        factor = max(difference.ratio, 1 / difference.ratio)
        if difference.is_coarse and difference.spread < _SAME_RATIO and factor > _OTHER_SCALE:
            times = round(factor, 0 if factor > 3 else 1)
            return f"depth is {times:g} times too {'large' if difference.ratio > 1 else 'small'}"
        error, how = min((agreed(depth_m[part], T), how) for how, part in _FLIPS.items())
        if error < np.inf:
            return f"depth is flipped {how}"
        error, stamp_ns = min((agreed(depth_m, pose), stamp_ns) for stamp_ns, pose in camera.poses)
        if error < np.inf:
            return f"depth is stale, it is that of {(posed.frame.stamp_ns - stamp_ns) / 1e9:.2g} s before"
        return "depth shows another view" if difference.is_coarse else "depth is not aligned to colour"


def _are_near(posed: PosedFrame, other: PosedFrame) -> bool:
    moved_m = np.linalg.norm(posed.T_world_camera[:3, 3] - other.T_world_camera[:3, 3])
    same = posed.frame.intrinsics == other.frame.intrinsics
    return bool(same and abs(posed.frame.stamp_ns - other.frame.stamp_ns) <= _NEAR_NS and moved_m <= _NEAR_M)


def _compare(
    posed: PosedFrame, depth_m: NDArray[np.float32], T_world_camera: F64, other: PosedFrame
) -> _Difference | None:
    """Compare depth at a pose with another frame; None where both see too little."""
    camera = posed.frame.intrinsics
    step = max(1, camera.width // _GRID)
    z = depth_m[step // 2 :: step, step // 2 :: step]
    v, u = np.nonzero((z > 0) & np.isfinite(z))
    points = _rays(camera, step)[v, u] * z[v, u, None]
    T = invert_transform(other.T_world_camera) @ T_world_camera
    x, y, depth = T[:3, :3] @ points.T + T[:3, 3:]
    with np.errstate(divide="ignore", invalid="ignore"):
        column, row = np.rint(x / depth * camera.fx + camera.cx), np.rint(y / depth * camera.fy + camera.cy)
    inside = (depth > 0) & (column >= 0) & (column < camera.width) & (row >= 0) & (row < camera.height)
    depth = depth[inside]
    seen = other.frame.depth_m[row[inside].astype(np.intp), column[inside].astype(np.intp)]
    known = (seen > 0) & np.isfinite(seen)
    if np.count_nonzero(known) < _MIN_COMMON:
        return None
    ratio = depth[known] / seen[known]
    nearer, farther = float((ratio < 1 / (1 + _OUTLIER)).mean()), float((ratio > 1 + _OUTLIER).mean())
    low, middle, high = np.quantile(ratio, (0.25, 0.5, 0.75))
    off = np.maximum(ratio, 1 / ratio) - 1
    return _Difference(float(np.median(off)), nearer, farther, float(middle), float(high / low - 1))


_RAYS: dict[tuple[Intrinsics, int], F64] = {}


def _rays(camera: Intrinsics, step: int) -> F64:
    """Return the (h, w, 3) points at depth 1 of every ``step``-th pixel."""
    if (camera, step) not in _RAYS:
        if len(_RAYS) > 16:
            _RAYS.clear()
        v, u = np.mgrid[step // 2 : camera.height : step, step // 2 : camera.width : step].astype(np.float64)
        _RAYS[camera, step] = np.stack([(u - camera.cx) / camera.fx, (v - camera.cy) / camera.fy, np.ones_like(u)], -1)
    return _RAYS[camera, step]
