"""RGB-D synchronizer: colour, depth, calibration and pose of several cameras, joined by stamp into posed frames.

Nothing is lost unexplained. A frame of one camera is *pending* from the first of its images (colour or depth) that
arrives until it leaves as a :class:`~embodied_perceptron.sensors.frame.PosedFrame` or as a :class:`Drop` with a reason:
at every moment ``accepted == emitted + sum(dropped) + pending``, over all cameras and for each of them.

Stamps decide everything; the time ``now_ns``, an argument of every call, only bounds waiting. One owner; no locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import AssemblerConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sensors.poses import Disconnected, Found, Gap, PoseSource, TooOld, format_stamp, seconds_to_ns

_MAX_KEPT_DROPS = 1000


class DropReason:
    """Why a frame was dropped."""

    NO_PAIR = "no_pair"  # colour without depth, or depth without colour
    OUT_OF_ORDER = "out_of_order"  # older than what the same stream had delivered already
    DUPLICATE = "duplicate"  # same stamp as what the same stream had delivered already
    QUEUE_FULL = "queue_full"  # the oldest makes room for the newest
    NO_CAMERA_INFO = "no_camera_info"
    SIZE_MISMATCH = "size_mismatch"  # colour, depth and calibration disagree: depth is not registered to colour
    BAD_FRAME = "bad_frame"  # undecodable, or values that no frame may have
    POSE_TIMEOUT = "pose_timeout"  # the pose did not arrive within max_pose_wait_s
    POSE_TOO_OLD = "pose_too_old"  # the stamp lies before the oldest pose
    POSE_GAP = "pose_gap"  # poses around the stamp are too far apart
    NO_TRANSFORM = "no_transform"  # the frames were never connected within max_pose_wait_s
    TIME_JUMP = "time_jump"  # was waiting when time went back


@dataclass(frozen=True)
class Drop:
    """One dropped frame: ``reason`` is one of :class:`DropReason`, ``detail`` explains it in words."""

    camera: str
    stamp_ns: int
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.camera} {format_stamp(self.stamp_ns)} dropped, {self.reason}{detail}"


@dataclass(frozen=True)
class BadImage:
    """Stand-in for an image that could not be decoded, so that its frame is counted once, with the reason."""

    reason: str


@dataclass(frozen=True)
class BadCalibration:
    """Stand-in for a calibration that cannot be used: frames of its time are dropped with the reason."""

    reason: str


@dataclass
class AssemblerStats:
    """Counts since the start.

    Attributes:
        accepted: frames begun.
        emitted: posed frames handed out.
        dropped: frames dropped, by :class:`DropReason`.
        pending: frames that wait now.
        calibration_changes: times a camera's calibration changed to other values.
        time_jumps: times that stamps or the clock went back.
    """

    accepted: int = 0
    emitted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    calibration_changes: int = 0
    time_jumps: int = 0


class FrameAssembler:
    """Pairs colour and depth by stamp, adds calibration and pose, and accounts for every frame.

    Feed it with :meth:`add_color`, :meth:`add_depth`, :meth:`add_camera_info` in any order, then :meth:`poll`. Frames
    of one camera come out in the order of their stamps.

    Rules:
        * images whose stamps differ by at most ``pair_tolerance_s`` make a pair; equal stamps, or nearly equal ones,
          pair at once, others when no better partner can come any more;
        * an unpaired image whose partner can no longer come is dropped (``no_pair``), at the latest after
          ``max_pair_wait_s``;
        * calibration: the one stamped like the frame, otherwise the newest before it; where calibration arrives with
          every frame, a frame waits for its own;
        * the pose is looked up at the stamp of the colour image, for at most ``max_pose_wait_s``;
        * more than ``queue_size`` pending frames of a camera: the oldest is dropped;
        * stamps or ``now_ns`` that go back by more than ``jump_back_s``: time restarted, what waits is dropped.
    """

    def __init__(
        self,
        config: AssemblerConfig,
        poses: PoseSource,
        cameras: Iterable[str] | None = None,
        *,
        jump_back_s: float = 1.0,
    ) -> None:
        """``cameras``: the accepted names (any other raises ``KeyError``); None = whatever comes."""
        self._config = config
        self._poses = poses
        self._open = cameras is None
        self._jump_back_ns = seconds_to_ns(jump_back_s)
        self._drops: deque[Drop] = deque(maxlen=_MAX_KEPT_DROPS)
        self._now_ns: int | None = None
        self._clock_jumps = 0
        self._cameras = {name: self._new_camera(name) for name in cameras or ()}

    def add_color(
        self, camera: str, stamp_ns: int, color: NDArray[np.uint8] | BadImage, now_ns: int, arrival_ns: int = 0
    ) -> None:
        """Add an (H, W, 3) uint8 RGB image, or the reason why there is none.

        ``arrival_ns``: wall clock when it was sent or arrived, handed on as :attr:`PosedFrame.arrival_ns`.
        """
        self._tick(now_ns)
        self._camera(camera).add("color", _PendingFrame(stamp_ns, now_ns, color=color, arrival_ns=arrival_ns))

    def add_depth(self, camera: str, stamp_ns: int, depth_m: NDArray[np.float32] | BadImage, now_ns: int) -> None:
        """Add an (H, W) float32 canonical depth image (:func:`~embodied_perceptron.sensors.frame.canonical_depth`)."""
        self._tick(now_ns)
        self._camera(camera).add("depth", _PendingFrame(stamp_ns, now_ns, depth_m=depth_m))

    def add_camera_info(
        self, camera: str, stamp_ns: int, calibration: Intrinsics | CameraModel | BadCalibration, now_ns: int
    ) -> None:
        """Add the calibration that holds from ``stamp_ns`` on, or the reason why there is none from then on."""
        self._tick(now_ns)
        model = CameraModel(calibration) if isinstance(calibration, Intrinsics) else calibration
        self._camera(camera).calibrations.add(stamp_ns, model)

    def poll(self, now_ns: int) -> list[PosedFrame]:
        """Everything that is ready, by stamp within each camera; drops what waited too long."""
        return self._collect(now_ns, ended=False)

    def flush(self, now_ns: int) -> list[PosedFrame]:
        """At the end of the stream: what is ready when nothing more is waited for; the rest is dropped."""
        return self._collect(now_ns, ended=True)

    def take_drops(self) -> list[Drop]:
        """The drops since the last call, for the log. At most the newest 1000 are kept; the counts lose none."""
        drops = list(self._drops)
        self._drops.clear()
        return drops

    def stats(self, camera: str | None = None) -> AssemblerStats:
        """A copy of the counts, of one camera or of all. Raises ``KeyError`` for an unknown camera."""
        if camera is not None and camera not in self._cameras:
            raise self._unknown(camera)
        parts = [self._cameras[camera].stats] if camera else [c.stats for c in self._cameras.values()]
        total = AssemblerStats(time_jumps=0 if camera else self._clock_jumps)
        for part in parts:
            total.accepted += part.accepted
            total.emitted += part.emitted
            total.pending += part.pending
            total.dropped.update(part.dropped)
            total.calibration_changes += part.calibration_changes
            total.time_jumps += part.time_jumps
        return total

    def _camera(self, name: str) -> _CameraQueue:
        if name not in self._cameras:
            if not self._open:
                raise self._unknown(name)
            self._cameras[name] = self._new_camera(name)
        return self._cameras[name]

    def _new_camera(self, name: str) -> _CameraQueue:
        return _CameraQueue(name, self._config, self._jump_back_ns, self._drops)

    def _unknown(self, name: str) -> KeyError:
        return KeyError(f"unknown camera {name!r}; known: {', '.join(sorted(self._cameras))}")

    def _tick(self, now_ns: int) -> None:
        if self._now_ns is not None and now_ns < self._now_ns - self._jump_back_ns:
            self._clock_jumps += 1
            for camera in self._cameras.values():
                camera.restart("the clock went back")
        self._now_ns = now_ns

    def _collect(self, now_ns: int, ended: bool) -> list[PosedFrame]:
        self._tick(now_ns)
        frames = [posed for camera in self._cameras.values() for posed in camera.poll(self._poses, now_ns, ended)]
        frames.sort(key=lambda posed: posed.frame.stamp_ns)  # stable: cameras stay in their order
        return frames


@dataclass(eq=False)
class _PendingFrame:
    """A frame that waits for its other image, its calibration or its pose."""

    stamp_ns: int  # of colour where there is colour, otherwise of depth
    arrived_ns: int  # on the clock that bounds waiting: the later of the two images
    color: NDArray[np.uint8] | BadImage | None = None
    depth_m: NDArray[np.float32] | BadImage | None = None
    arrival_ns: int = 0  # wall clock, of colour
    built: RgbdFrame | None = None  # once everything but the pose is there

    @property
    def paired(self) -> bool:
        return self.color is not None and self.depth_m is not None

    @property
    def missing(self) -> str:
        """The stream that an unpaired image waits for."""
        return "depth" if self.depth_m is None else "color"

    @property
    def bad(self) -> BadImage | None:
        return next((image for image in (self.color, self.depth_m) if isinstance(image, BadImage)), None)


class _CameraQueue:
    """Pending frames of one camera, sorted by stamp; the rules are those of :class:`FrameAssembler`."""

    def __init__(self, name: str, config: AssemblerConfig, jump_back_ns: int, drops: deque[Drop]) -> None:
        self.name = name
        self.calibrations = _CalibrationHistory(seconds_to_ns(config.pair_tolerance_s))
        self._stats = AssemblerStats()
        self._drops = drops
        self._waiting: list[_PendingFrame] = []
        self._newest: dict[str, int] = {}
        # stamps whose frame was dropped while unpaired, by the stream that its other image comes on
        self._orphaned: dict[str, deque[int]] = {"color": deque(maxlen=256), "depth": deque(maxlen=256)}
        self._recent_colors: deque[int] = deque(maxlen=2)
        self._queue_size = config.queue_size
        self._tolerance_ns = seconds_to_ns(config.pair_tolerance_s)
        self._pair_wait_ns = seconds_to_ns(config.max_pair_wait_s)
        self._pose_wait_ns = seconds_to_ns(config.max_pose_wait_s)
        self._jump_back_ns = jump_back_ns

    @property
    def stats(self) -> AssemblerStats:
        self._stats.calibration_changes = self.calibrations.changes
        self._stats.pending = len(self._waiting)
        return self._stats

    def restart(self, detail: str) -> None:
        """Time restarted: drop what waits, forget stamps."""
        for pending in self._waiting:
            self._drop(self._because(pending, DropReason.TIME_JUMP, detail))
        self._waiting.clear()
        self._newest.clear()
        self._recent_colors.clear()
        for stamps in self._orphaned.values():
            stamps.clear()
        self.calibrations.restart()

    def _because(self, pending: _PendingFrame, reason: str, detail: str) -> Drop:
        return Drop(self.name, pending.stamp_ns, reason, detail)

    def _drop(self, drop: Drop) -> None:
        self._stats.dropped[drop.reason] += 1
        self._drops.append(drop)

    def _drop_pending(self, pending: _PendingFrame, drop: Drop) -> None:
        self._drop(drop)
        if not pending.paired:
            self._orphaned[pending.missing].append(pending.stamp_ns)

    # ---- pairing

    def add(self, stream: str, image: _PendingFrame) -> None:
        """Queue one image, and pair what can be paired."""
        stamp_ns, newest = image.stamp_ns, self._newest.get(stream)
        if newest is not None and stamp_ns < newest - self._jump_back_ns:
            self._stats.time_jumps += 1
            self.restart(f"{stream} went back from {format_stamp(newest)}")
            newest = None
        in_order = newest is None or stamp_ns > newest
        if in_order:
            self._newest[stream] = stamp_ns
            if stream == "color":
                self._recent_colors.append(stamp_ns)
        if self._belongs_to_dropped(stream, stamp_ns):
            return
        self._stats.accepted += 1
        if not in_order:
            reason = DropReason.DUPLICATE if stamp_ns == newest else DropReason.OUT_OF_ORDER
            self._drop_pending(
                image, self._because(image, reason, f"{stream} after {format_stamp(self._newest[stream])}")
            )
            return
        self._waiting.insert(bisect_left([c.stamp_ns for c in self._waiting], stamp_ns), image)
        self._pair(final=False)
        self._trim()

    def _belongs_to_dropped(self, stream: str, stamp_ns: int) -> bool:
        """Whether the other image of this frame was dropped, so that the frame is explained already."""
        orphaned = self._orphaned[stream]
        for other_ns in orphaned:
            if abs(other_ns - stamp_ns) * 4 <= self._tolerance_ns:
                orphaned.remove(other_ns)
                return True
        return False

    def _pair(self, final: bool) -> None:
        """Join unpaired images that are each other's nearest, as soon as no nearer one can come (or ``final``)."""
        colors = [c for c in self._waiting if c.depth_m is None]
        depths = [c for c in self._waiting if c.color is None]
        for color in colors:
            depth = _nearest(color, depths)
            if depth is None or _nearest(depth, colors) is not color:
                continue
            difference = abs(color.stamp_ns - depth.stamp_ns)
            if difference > self._tolerance_ns:
                continue
            # Closer than a quarter of the tolerance cannot be a mix-up of neighbours in any stream that the tolerance
            # fits. Otherwise the earlier stream must have moved on past the later stamp: what it sends next is further.
            earlier = "depth" if depth.stamp_ns < color.stamp_ns else "color"
            settled = self._newest[earlier] >= max(color.stamp_ns, depth.stamp_ns)
            if final or settled or difference * 4 <= self._tolerance_ns:
                self._waiting.remove(depth)
                color.depth_m = depth.depth_m
                color.arrived_ns = max(color.arrived_ns, depth.arrived_ns)
                self._stats.accepted -= 1  # the two images were one frame
                return self._pair(final)  # at most queue_size deep; who is nearest has changed
        return None

    def _trim(self) -> None:
        """Drop the oldest while more than ``queue_size`` images of one kind wait."""
        for kind in ("color", "depth_m"):
            holders = [c for c in self._waiting if getattr(c, kind) is not None]
            for oldest in holders[: max(0, len(holders) - self._queue_size)]:
                self._waiting.remove(oldest)
                detail = f"more than {self._queue_size} wait"
                self._drop_pending(oldest, self._because(oldest, DropReason.QUEUE_FULL, detail))

    # ---- ready, dropped, or waiting

    def poll(self, poses: PoseSource, now_ns: int, ended: bool) -> list[PosedFrame]:
        """The frames that are ready; ``ended``: nothing more will come."""
        self._pair(final=ended)
        frames = []
        while self._waiting:
            outcome = self._outcome(self._waiting[0], poses, now_ns, ended)
            if outcome is None:
                break  # the order of stamps is kept: later ones wait behind it
            pending = self._waiting.pop(0)
            if isinstance(outcome, PosedFrame):
                self._stats.emitted += 1
                frames.append(outcome)
            else:
                self._drop_pending(pending, outcome)
        return frames

    def _outcome(self, pending: _PendingFrame, poses: PoseSource, now_ns: int, ended: bool) -> PosedFrame | Drop | None:
        """None: it waits."""
        waited_ns = now_ns - pending.arrived_ns
        patient = not ended and waited_ns < self._pair_wait_ns
        if not pending.paired:
            return self._outcome_unpaired(pending, patient)
        if pending.bad is not None:
            return self._because(pending, DropReason.BAD_FRAME, pending.bad.reason)
        if pending.built is None:
            calibration = self.calibrations.at(pending.stamp_ns, list(self._recent_colors), patient)
            if calibration is None:
                return None if patient else self._because(pending, DropReason.NO_CAMERA_INFO, "none has arrived")
            if isinstance(calibration, BadCalibration):
                return self._because(pending, DropReason.BAD_FRAME, calibration.reason)
            built = self._build(pending, calibration)
            if isinstance(built, Drop):
                return built
            pending.built = built
        answer = poses.lookup(self.name, pending.stamp_ns)
        if isinstance(answer, Found):
            try:
                return PosedFrame(pending.built, answer.T, pending.arrival_ns)
            except ValueError as error:
                return self._because(pending, DropReason.BAD_FRAME, str(error))
        if isinstance(answer, TooOld):
            return self._because(pending, DropReason.POSE_TOO_OLD, str(answer))
        if isinstance(answer, Gap):
            return self._because(pending, DropReason.POSE_GAP, str(answer))
        if not ended and waited_ns < self._pose_wait_ns:
            return None
        reason = DropReason.NO_TRANSFORM if isinstance(answer, Disconnected) else DropReason.POSE_TIMEOUT
        return self._because(pending, reason, str(answer))

    def _outcome_unpaired(self, pending: _PendingFrame, patient: bool) -> Drop | None:
        newest = self._newest.get(pending.missing)
        passed = newest is not None and newest > pending.stamp_ns + self._tolerance_ns
        if patient and not passed:
            return None
        if pending.bad is not None:
            return self._because(pending, DropReason.BAD_FRAME, pending.bad.reason)
        have, lack = ("colour", "depth") if pending.missing == "depth" else ("depth", "colour")
        last = "none has arrived" if newest is None else f"the newest is at {format_stamp(newest)}"
        return self._because(pending, DropReason.NO_PAIR, f"{have} without {lack}; {last}")

    def _build(self, pending: _PendingFrame, calibration: CameraModel) -> RgbdFrame | Drop:
        color, depth_m = pending.color, pending.depth_m
        assert isinstance(color, np.ndarray)
        assert isinstance(depth_m, np.ndarray)
        size = (calibration.intrinsics.height, calibration.intrinsics.width)
        if not color.shape[:2] == depth_m.shape[:2] == size:
            sizes = ", ".join(
                f"{what} {shape[1]}x{shape[0]}"
                for what, shape in (("colour", color.shape), ("depth", depth_m.shape), ("camera_info", size))
            )
            detail = f"{sizes}: depth must be registered to colour"
            return self._because(pending, DropReason.SIZE_MISMATCH, detail)
        try:
            return RgbdFrame(pending.stamp_ns, self.name, *calibration.rectify(color, depth_m), calibration.intrinsics)
        except ValueError as error:
            return self._because(pending, DropReason.BAD_FRAME, str(error))


def _nearest(image: _PendingFrame, others: list[_PendingFrame]) -> _PendingFrame | None:
    return min(others, key=lambda other: abs(other.stamp_ns - image.stamp_ns), default=None)


@dataclass
class _Span:
    first_ns: int
    last_ns: int
    value: CameraModel | BadCalibration


class _CalibrationHistory:
    """Which calibration held when: spans of equal calibration, newest last."""

    def __init__(self, tolerance_ns: int) -> None:
        self._tolerance_ns = tolerance_ns
        self._spans: deque[_Span] = deque(maxlen=8)
        self._recent_ns: deque[int] = deque(maxlen=2)
        self.changes = 0

    def restart(self) -> None:
        """Time restarted: the newest calibration holds on until another comes."""
        self._recent_ns.clear()
        if self._spans:
            self._spans = deque([_Span(0, 0, self._spans[-1].value)], maxlen=self._spans.maxlen)

    def add(self, stamp_ns: int, model: CameraModel | BadCalibration) -> None:
        if self._spans and stamp_ns < self._spans[-1].last_ns and model == self._spans[-1].value:
            return
        self._recent_ns.append(stamp_ns)
        if self._spans and model == self._spans[-1].value:
            self._spans[-1].last_ns = stamp_ns
            return
        if self._spans:
            self.changes += 1
            stamp_ns = max(stamp_ns, self._spans[-1].last_ns)
        self._spans.append(_Span(stamp_ns, stamp_ns, model))

    def at(self, stamp_ns: int, recent_colors_ns: list[int], patient: bool) -> CameraModel | BadCalibration | None:
        """Calibration of the image at ``stamp_ns``; None = none known, or (``patient``) its own is still to come."""
        if not self._spans:
            return None
        if stamp_ns > self._spans[-1].last_ns + self._tolerance_ns and patient and self._per_image(recent_colors_ns):
            return None
        held = [span for span in self._spans if span.first_ns <= stamp_ns + self._tolerance_ns]
        return held[-1].value if held else self._spans[0].value

    def _per_image(self, recent_colors_ns: list[int]) -> bool:
        """Whether calibration has come with each of the last images, so that it is worth waiting for the next."""
        if len(self._recent_ns) < 2 or len(recent_colors_ns) < 2:
            return False
        period = recent_colors_ns[-1] - recent_colors_ns[-2]
        return (
            self._recent_ns[-1] - self._recent_ns[-2] <= period + self._tolerance_ns
            and recent_colors_ns[-1] - self._recent_ns[-1] <= period + self._tolerance_ns
        )
