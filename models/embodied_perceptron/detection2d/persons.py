"""Masking of people: depth of detected persons is removed from a frame before fusion.

A detector runs on some frames per second at fusion, because fused points disappear only when seen through. Within a
person's box the nearest surface around the centre is the person; other frames show the background. Geometry decides
too: what is flat with its surroundings is a picture, and what is broader than people is furniture. Frames in between
mask the last location of each person, enlarged by a walking distance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.detectors import Detector
from embodied_perceptron.detection2d.scheduler import DetectorSlot, SchedulerRules
from embodied_perceptron.geometry.transforms import invert_transform, transform_points
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

PERSON = "person"
RATE_HZ = 5.0  # detector images per second of each camera's stamps
_MIN_SCORE = 0.4  # of the detector
_SIDE_M = (0.3, 2.6)  # smallest and largest long side of the 2-D box at the person's depth
_WIDTH_M, _LYING_M = 1.3, 0.75  # largest short side of a person who is higher than wide, and of one who is wider
_FLAT_SHARE = 0.6  # share of the surroundings that continue the chest's plane, from which the person is a picture
_GAP_M = 0.2  # depth gap that separates a person from the background
_MARGIN_M = 0.1  # masked depth in front of and behind a person
_THICK_M = 0.5  # from the chest's depth to a person's furthest part
_GROWN = 0.06  # enlargement of the 2-D box as a share of its sides, as detectors cut off arms
_SPEED_M_S = 1.2  # of people between two images
_HOLD_NS = 500_000_000  # time that a person is masked after the last detection
_MAX_SHARE = 0.2  # largest share of time for the detectors on a live robot; slower ones run less often

F64 = NDArray[np.float64]


@dataclass
class PersonStatistics:
    """Counts since the start.

    Attributes:
        pictures: images checked for people; ``looking_ms``: total time.
        persons: found in them.
        frames, pixels: masked.
        failures: of the detectors; ``last_error``: the last message.
    """

    pictures: int = 0
    looking_ms: float = 0.0
    persons: int = 0
    frames: int = 0
    pixels: int = 0
    failures: int = 0
    last_error: str = ""


def person_numbers(s: PersonStatistics) -> dict[str, int | float | str]:
    """Return counts, milliseconds per image, and the last failure, for diagnostics."""
    numbers: dict[str, int | float | str] = {
        "pictures": s.pictures,
        "found": s.persons,
        "frames": s.frames,
        "pixels": s.pixels,
        "failures": s.failures,
        "looking_ms": round(s.looking_ms / max(s.pictures, 1), 2),
    }
    return {**numbers, "last_error": s.last_error} if s.last_error else numbers


@dataclass(frozen=True, eq=False)
class _PersonLocation:
    """Location of a person: (2, 3) bounds in the world, metres."""

    bounds_m: F64
    stamp_ns: int


class PersonMask:
    """See the module docstring. Used by the fusion thread only.

    Args:
        makers: build detectors, which take turns; those without the class ``person`` are not used.
        limit_s: time per image on a live robot; frames do not wait longer.

    Attributes:
        live: frames arrive from a robot, so detector time is bounded; a replay uses stamps alone.

    Raises what ``makers`` raise.
    """

    def __init__(self, makers: Sequence[Callable[[], Detector]], limit_s: float = 1.0) -> None:
        self.live = False
        slots = [DetectorSlot(PERSON, make, SchedulerRules(limit_s=limit_s)) for make in makers]
        self._detectors = [slot for slot in slots if PERSON in slot.vocabulary]
        self._turn = 0
        self._next_ns: dict[str, int] = {}  # by camera
        self._places: dict[str, list[_PersonLocation]] = {}
        self._statistics = PersonStatistics()

    @property
    def knows_persons(self) -> bool:
        """True when any detector knows people."""
        return bool(self._detectors)

    def statistics(self) -> PersonStatistics:
        """Return a copy of the counts."""
        return replace(self._statistics)

    def forget(self) -> None:
        """Start another map: delete the locations of people."""
        self._places.clear()

    def applied(self, posed: PosedFrame) -> PosedFrame:
        """Return the frame without depth at people; the same frame without people."""
        frame = posed.frame
        places = [p for p in self._places.get(frame.camera, []) if 0 <= frame.stamp_ns - p.stamp_ns <= _HOLD_NS]
        hidden = np.zeros(frame.depth_m.shape, dtype=bool)
        masks = self._detect(frame)
        for mask in masks or []:
            hidden |= mask
        seen = [_PersonLocation(_bounds(posed, mask), frame.stamp_ns) for mask in masks or []]
        places = [p for p in places if not any(_same(p, now, _reach(p, frame)) for now in seen)]
        for place in places:
            _hide(hidden, posed, place, _reach(place, frame))
        if masks is not None:
            self._places[frame.camera] = [*places, *seen]
        if not hidden.any():
            return posed
        self._statistics.frames += 1
        self._statistics.pixels += int(np.count_nonzero(hidden))
        depth = np.where(hidden, np.float32(0.0), frame.depth_m)
        return replace(posed, frame=replace(frame, depth_m=depth))

    def _detect(self, frame: RgbdFrame) -> list[NDArray[np.bool_]] | None:
        """Return the (H, W) mask of each detected person; None if no detector runs on this frame."""
        now_ns = frame.stamp_ns
        due_ns = self._next_ns.get(frame.camera, now_ns)
        if not self._detectors or (now_ns < due_ns and due_ns - now_ns < 1_000_000_000):  # the clock may be set back
            return None
        able = [d for d in self._detectors if not d.scheduler.disabled and d.busy_s == 0]
        if not able:
            return None
        chosen = able[self._turn % len(able)]
        scheduler = chosen.scheduler
        self._turn += 1
        period_ns = int(1e9 / RATE_HZ)
        self._next_ns[frame.camera] = now_ns + period_ns
        began = time.perf_counter()
        try:
            found, _ = chosen.detect(frame, None, limited=self.live)
        except Exception as error:  # a failing detector must not stop mapping
            scheduler.failed_with(error, now_ns)
            self._statistics.failures += 1
            self._statistics.last_error = scheduler.last_error
            return None
        scheduler.succeeded()
        taken_s = time.perf_counter() - began
        if self.live:
            self._next_ns[frame.camera] = now_ns + max(period_ns, int(1e9 * taken_s / _MAX_SHARE))
        self._statistics.pictures += 1
        self._statistics.looking_ms += taken_s * 1e3
        masks = [
            mask
            for box, label, score in zip(found.boxes_px, found.labels, found.scores, strict=True)
            if label == PERSON and score >= _MIN_SCORE
            for mask in [person_mask(frame, box)]
            if mask is not None
        ]
        self._statistics.persons += len(masks)
        return masks


def person_mask(frame: RgbdFrame, box_px: F64) -> NDArray[np.bool_] | None:
    """Return the (H, W) mask of the person in a (4,) box; None without depth, for an implausible size or a picture.

    Uses the depth of the chest, because at the feet the floor connects the person with the background.
    """
    height, width = frame.depth_m.shape
    sides = box_px[2:] - box_px[:2]
    left, top = box_px[:2] + sides * [0.25, 0.1]
    right, bottom = box_px[2:] - sides * [0.25, 0.4]
    chest = frame.depth_m[_span(top, bottom, height), _span(left, right, width)]
    known = np.sort(chest[(chest > 0) & np.isfinite(chest)])
    if len(known) < 10 or len(known) < 0.2 * chest.size:
        return None
    groups = np.split(known, np.flatnonzero(np.diff(known) > _GAP_M) + 1)
    number = next((i for i, group in enumerate(groups) if len(group) >= 0.2 * len(known)), None)
    if number is None:
        return None
    near = groups[number]
    sides_m = sides * float(np.median(near)) / (0.5 * (frame.intrinsics.fx + frame.intrinsics.fy))
    widest_m = _WIDTH_M if sides[1] >= sides[0] else _LYING_M
    if not _SIDE_M[0] <= sides_m.max() <= _SIDE_M[1] or sides_m.min() > widest_m:
        return None
    if _continued_share(frame.depth_m, box_px) >= _FLAT_SHARE:
        return None
    low, high = near[0] - _MARGIN_M, max(near[-1] + _MARGIN_M, float(np.median(near)) + _THICK_M)
    if number + 1 < len(groups):  # the next group is the background
        high = min(high, float(near[-1] + groups[number + 1][0]) / 2)
    grown = np.concatenate([box_px[:2] - _GROWN * sides, box_px[2:] + _GROWN * sides])
    window = _span(grown[1], grown[3], height), _span(grown[0], grown[2], width)
    mask = np.zeros((height, width), dtype=bool)
    mask[window] = (frame.depth_m[window] >= low) & (frame.depth_m[window] <= high)
    return mask if mask.any() else None


def _continued_share(depth_m: NDArray[np.float32], box_px: F64) -> float:
    """Return the share of the depth left and right of a box that lies in the plane of its middle; 0 without depth.

    The inverse depth of a plane is linear in the pixel coordinates.
    """
    height, width = depth_m.shape
    sides = box_px[2:] - box_px[:2]
    span = _span(box_px[0] - 0.2 * sides[0], box_px[2] + 0.2 * sides[0], width)
    rows, columns = np.mgrid[_span(box_px[1], box_px[3], height), span]
    z = depth_m[rows, columns].astype(np.float64)
    known = (z > 0) & np.isfinite(z)
    middle = known & (np.abs(columns - (box_px[0] + box_px[2]) / 2) <= 0.3 * sides[0])
    beside = known & ((columns < box_px[0]) | (columns > box_px[2]))
    if middle.sum() < 20 or beside.sum() < 20:
        return 0.0
    A = np.stack([np.ones(z.shape), columns / width, rows / height], axis=-1)
    plane, *_ = np.linalg.lstsq(A[middle], 1.0 / z[middle], rcond=None)
    off = np.abs(z * (A @ plane) - 1.0)  # relative distance from the plane
    return min(float((off[beside] < 0.03).mean()), float((off[middle] < 0.03).mean()))


def _span(low: float, high: float, size: int) -> slice:
    """Return the pixels between two borders, within the image."""
    return slice(int(np.clip(np.ceil(low), 0, size)), int(np.clip(np.floor(high) + 1, 0, size)))


def _points(posed: PosedFrame, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> F64:
    """Return (K, 3) world points of pixels."""
    k, depth = posed.frame.intrinsics, posed.frame.depth_m[rows, columns].astype(np.float64)
    camera = np.stack([(columns - k.cx) / k.fx * depth, (rows - k.cy) / k.fy * depth, depth], axis=1)
    return transform_points(posed.T_world_camera, camera)


def _bounds(posed: PosedFrame, mask: NDArray[np.bool_]) -> F64:
    """Return (2, 3) bounds of a person in the world, without outliers."""
    rows, columns = np.nonzero(mask)
    step = 1 + len(rows) // 2000
    return np.percentile(_points(posed, rows[::step], columns[::step]), [2, 98], axis=0)


def _same(place: _PersonLocation, now: _PersonLocation, reach_m: float) -> bool:
    """True when a person seen now may be the one at an earlier location."""
    low, high = now.bounds_m[:, :2]
    return bool((low <= place.bounds_m[1, :2] + reach_m).all() and (high >= place.bounds_m[0, :2] - reach_m).all())


def _reach(place: _PersonLocation, frame: RgbdFrame) -> float:
    """Return the distance that a person may have moved, metres."""
    return _MARGIN_M + _SPEED_M_S * (frame.stamp_ns - place.stamp_ns) * 1e-9


def _hide(hidden: NDArray[np.bool_], posed: PosedFrame, place: _PersonLocation, reach_m: float) -> None:
    """Mask the depth within ``reach_m`` of a person's last location."""
    low, high = place.bounds_m + np.array([[-reach_m, -reach_m, 0.0], [reach_m, reach_m, 0.1]])
    corners = np.array([[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])])
    camera, k = transform_points(invert_transform(posed.T_world_camera), corners), posed.frame.intrinsics
    height, width = hidden.shape
    window = slice(0, height), slice(0, width)
    if (camera[:, 2] <= 0).all():
        return
    if (camera[:, 2] > 0.05).all():
        u, v = camera[:, 0] / camera[:, 2] * k.fx + k.cx, camera[:, 1] / camera[:, 2] * k.fy + k.cy
        window = _span(v.min(), v.max(), height), _span(u.min(), u.max(), width)
    known = posed.frame.depth_m[window]
    rows, columns = np.nonzero((known > 0) & np.isfinite(known))
    rows, columns = rows + window[0].start, columns + window[1].start
    points = _points(posed, rows, columns)
    inside = ((points >= low) & (points <= high)).all(axis=1)
    hidden[rows[inside], columns[inside]] = True
