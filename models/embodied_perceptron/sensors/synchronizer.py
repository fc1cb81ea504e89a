"""RGB-D synchronizer: colour, depth, calibration and pose of several cameras, joined by stamp into posed frames.

Every frame is accounted for. It is *pending* from the arrival of its first image (colour or depth) until it leaves as a
:class:`~embodied_perceptron.sensors.frame.PosedFrame` or as a :class:`Drop` with a reason: for each camera
``accepted == emitted + sum(dropped) + pending`` always holds.

Matching uses stamps alone; ``now_ns``, an argument of every call, only bounds waiting. Not thread-safe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.sensors.camera_model import CameraModel, UnregisteredDepth
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sensors.poses import (
    Disconnected,
    Found,
    Gap,
    PoseSource,
    StampJudge,
    TooOld,
    format_stamp,
    seconds_to_ns,
)

RESTART_NS = 3_000_000_000  # a jump back of all streams by more is a restart, by less a clock that was set
_ALIVE_NS = 5_000_000_000  # a stream without messages for longer is inactive
_TOGETHER_NS = 10_000_000_000  # streams that jump back within this time jump together
_MAX_KEPT_DROPS = 1000
DepthInput: TypeAlias = "NDArray[np.float32] | UnregisteredDepth | BadImage"
_SIZE_REMEDY = "depth must be registered to colour, or come with a calibration of its own"
_FIELD = {"color": "color", "depth": "depth_m"}


class DropReason:
    """Why a frame was dropped."""

    NO_PAIR = "no_pair"  # colour without depth, or depth without colour
    OUT_OF_ORDER = "out_of_order"  # older than the newest of its stream
    DUPLICATE = "duplicate"  # same stamp as the newest of its stream
    QUEUE_FULL = "queue_full"  # the oldest is dropped for the newest
    INCONSISTENT_DEPTH = "inconsistent_depth"  # depth contradicts the frames before; not dropped here but by the map
    LOST = "lost_on_the_way"  # numbered by the sender, not delivered by the middleware
    NO_CAMERA_INFO = "no_camera_info"
    SIZE_MISMATCH = "size_mismatch"  # colour, depth and calibration disagree: depth is not registered to colour
    BAD_FRAME = "bad_frame"  # undecodable, or invalid values
    POSE_TIMEOUT = "pose_timeout"  # the pose did not arrive within max_pose_wait_s
    POSE_TOO_OLD = "pose_too_old"  # the stamp lies before the oldest pose
    POSE_GAP = "pose_gap"  # poses around the stamp are too far apart
    NO_TRANSFORM = "no_transform"  # the frames were never connected within max_pose_wait_s
    TIME_JUMP = "time_jump"  # was pending when the stream's time jumped
    ODD_STAMP = "odd_stamp"  # far from the stamps around it


@dataclass(frozen=True)
class Drop:
    """One dropped frame: ``reason`` is one of :class:`DropReason`, ``detail`` explains it in words.

    ``missing``: the image that it lacked (``color`` or ``depth``); empty if it had both.
    """

    camera: str
    stamp_ns: int
    reason: str
    detail: str = ""
    missing: str = ""

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


@dataclass(frozen=True)
class TimeJump:
    """A jump of the stamps of cameras.

    Attributes:
        cameras: their names.
        shift_ns: size of the jump; negative = back.
        restart: the clock, or all active streams, jumped back by more than :data:`RESTART_NS`: a recording loops or a
            simulation restarted. Otherwise a clock was set.
    """

    cameras: tuple[str, ...]
    shift_ns: int
    restart: bool


@dataclass
class SynchronizerStats:
    """Counts since the start.

    Attributes:
        accepted: frames of which an image arrived.
        emitted: posed frames returned.
        dropped: frames dropped, by :class:`DropReason`.
        pending: frames waiting now.
        calibration_changes: number of changed calibrations.
        time_jumps: number of jumps of stamps or of the clock.
    """

    accepted: int = 0
    emitted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    calibration_changes: int = 0
    time_jumps: int = 0


class RgbdSynchronizer:
    """Pairs colour and depth by stamp, adds calibration and pose, and accounts for every frame.

    Feed it with :meth:`add_color`, :meth:`add_depth`, :meth:`add_camera_info` in any order, then :meth:`poll`. Frames
    of one camera are returned in the order of their stamps.

    Rules:
        * images whose stamps differ by at most ``pair_tolerance_s`` make a pair; equal stamps, or nearly equal ones,
          pair at once, others when no nearer image can arrive;
        * an unpaired image whose partner can no longer arrive is dropped (``no_pair``), at the latest after
          ``max_pair_wait_s``;
        * calibration: the one stamped like the frame, otherwise the newest before it; where calibration arrives with
          every frame, a frame waits for it;
        * the pose is looked up at the stamp of the colour image, for at most ``max_pose_wait_s``;
        * more than ``queue_mib`` of waiting images, or ``queue_size`` of one kind where it is set: the oldest is
          dropped;
        * an image whose stamp is off its stream by more than ``jump_s`` (:class:`StampJudge`) waits for the next
          ones: if they follow it, the stream has jumped and earlier pending frames are dropped (``time_jump``);
          otherwise the image is dropped (``odd_stamp``);
        * ``now_ns`` that goes back by more than ``jump_s`` restarts time; pending frames are dropped.
    """

    def __init__(
        self,
        config: SynchronizerConfig,
        poses: PoseSource,
        cameras: Iterable[str] | None = None,
        *,
        jump_s: float = 1.0,
        on_drop: Callable[[Drop], None] | None = None,
    ) -> None:
        """``cameras``: accepted names (others raise ``KeyError``); None = all. ``on_drop``: called with every drop
        instead of keeping it for :meth:`take_drops`."""
        self._config = config
        self._poses = poses
        self._open = cameras is None
        self._jump_ns = seconds_to_ns(jump_s)
        self._max_bytes = int(config.queue_mib * 2**20)
        self._drops: deque[Drop] = deque(maxlen=_MAX_KEPT_DROPS)
        self._on_drop = self._drops.append if on_drop is None else on_drop
        self._jumps: deque[TimeJump] = deque(maxlen=_MAX_KEPT_DROPS)
        self._moved: dict[tuple[str, str], tuple[int, int]] = {}  # streams that jumped recently: shift, time
        self._now_ns: int | None = None
        self._clock_jumps = 0
        self.late = 0
        """Frames of the last :meth:`poll` that had waited for their pose: a burst that does not indicate load."""
        self._cameras = {name: self._new_camera(name) for name in cameras or ()}

    def add_color(
        self, camera: str, stamp_ns: int, color: NDArray[np.uint8] | BadImage, now_ns: int, arrival_ns: int = 0
    ) -> None:
        """Add an (H, W, 3) uint8 RGB image, or a decoding failure.

        ``arrival_ns``: wall clock when it was sent or arrived; becomes :attr:`PosedFrame.arrival_ns`.
        """
        self._add(camera, "color", _PendingFrame(stamp_ns, now_ns, color=color, arrival_ns=arrival_ns))

    def add_depth(self, camera: str, stamp_ns: int, depth_m: DepthInput, now_ns: int) -> None:
        """Add an (H, W) float32 canonical depth image (:func:`~embodied_perceptron.sensors.frame.canonical_depth`)
        registered to colour, or one to be registered here."""
        self._add(camera, "depth", _PendingFrame(stamp_ns, now_ns, depth_m=depth_m))

    def add_camera_info(
        self, camera: str, stamp_ns: int, calibration: Intrinsics | CameraModel | BadCalibration, now_ns: int
    ) -> None:
        """Add the calibration, or a calibration failure, that is valid from ``stamp_ns`` on."""
        self._tick(now_ns)
        model = CameraModel(calibration) if isinstance(calibration, Intrinsics) else calibration
        self._camera(camera).add_calibration(stamp_ns, model)

    def poll(self, now_ns: int) -> list[PosedFrame]:
        """Return the frames that are complete, by stamp within each camera, and drop those that waited too long."""
        return self._collect(now_ns, ended=False)

    def flush(self, now_ns: int) -> list[PosedFrame]:
        """End the stream: return the frames that are complete without waiting, and drop the rest."""
        return self._collect(now_ns, ended=True)

    def take_drops(self) -> list[Drop]:
        """Return the drops since the last call, at most the newest 1000; the counts include all."""
        drops = list(self._drops)
        self._drops.clear()
        return drops

    def take_jumps(self) -> list[TimeJump]:
        """Return the time jumps since the last call; frames of the next :meth:`poll` are from after them."""
        jumps = list(self._jumps)
        self._jumps.clear()
        return jumps

    def stats(self, camera: str | None = None) -> SynchronizerStats:
        """Return a copy of the counts of one camera or of all. Raises ``KeyError`` for an unknown camera."""
        if camera is not None and camera not in self._cameras:
            raise self._unknown(camera)
        parts = [self._cameras[camera].stats] if camera else [c.stats for c in self._cameras.values()]
        total = SynchronizerStats(time_jumps=0 if camera else self._clock_jumps)
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
        return _CameraQueue(name, self._config, self._jump_ns, self._on_drop)

    def _unknown(self, name: str) -> KeyError:
        return KeyError(f"unknown camera {name!r}; known: {', '.join(sorted(self._cameras))}")

    def _add(self, name: str, stream: str, image: _PendingFrame) -> None:
        self._tick(image.arrived_ns)
        camera = self._camera(name)
        shift_ns = camera.add(stream, image)
        if shift_ns:
            restart = self._all_went_back(name, stream, shift_ns, image.arrived_ns)
            self._jumps.append(TimeJump((name,), shift_ns, restart))
        self._bound_memory()

    def _all_went_back(self, name: str, stream: str, shift_ns: int, now_ns: int) -> bool:
        """Return True when every active stream has jumped back in time."""
        self._moved = {key: moved for key, moved in self._moved.items() if now_ns - moved[1] <= _TOGETHER_NS}
        self._moved[name, stream] = shift_ns, now_ns
        active = [
            (other, kind)
            for other, camera in self._cameras.items()
            for kind, judge in camera.judges.items()
            if judge.received_ns is not None and now_ns - judge.received_ns <= _ALIVE_NS
        ]
        if not all(key in self._moved and self._moved[key][0] < -RESTART_NS for key in active):
            return False
        self._moved.clear()
        return True

    @property
    def waiting_bytes(self) -> int:
        """Return the memory of pending images of all cameras."""
        return sum(camera.waiting_bytes for camera in self._cameras.values())

    def _bound_memory(self) -> None:
        waiting_bytes = self.waiting_bytes
        while waiting_bytes > self._max_bytes:
            largest = max(self._cameras.values(), key=lambda camera: camera.waiting_bytes)
            before = largest.waiting_bytes
            if not largest.drop_oldest(f"pending images exceed {self._config.queue_mib:g} MiB"):
                return
            waiting_bytes += largest.waiting_bytes - before

    def _tick(self, now_ns: int) -> None:
        if self._now_ns is not None and now_ns < self._now_ns - self._jump_ns:
            self._clock_jumps += 1
            for camera in self._cameras.values():
                camera.restart("the clock went back")
            self._moved.clear()
            self._jumps.append(TimeJump(tuple(self._cameras), now_ns - self._now_ns, restart=True))
        self._now_ns = now_ns

    def _collect(self, now_ns: int, ended: bool) -> list[PosedFrame]:
        self._tick(now_ns)
        frames = [posed for camera in self._cameras.values() for posed in camera.poll(self._poses, now_ns, ended)]
        self.late = sum(camera.late for camera in self._cameras.values())
        frames.sort(key=lambda posed: posed.frame.stamp_ns)  # stable: cameras keep their order
        return frames


@dataclass(eq=False)
class _PendingFrame:
    """A frame that waits for its second image, calibration or pose."""

    stamp_ns: int  # of colour where there is colour, otherwise of depth
    arrived_ns: int  # on the clock that bounds waiting: the later of the two images
    color: NDArray[np.uint8] | BadImage | None = None
    depth_m: DepthInput | None = None
    arrival_ns: int = 0  # wall clock, of colour
    built: RgbdFrame | None = None  # complete except for the pose
    late: bool = False  # arrived before its pose

    @property
    def paired(self) -> bool:
        return self.color is not None and self.depth_m is not None

    @property
    def nbytes(self) -> int:
        return sum(i.nbytes for i in (self.color, self.depth_m) if isinstance(i, (np.ndarray, UnregisteredDepth)))

    @property
    def missing(self) -> str:
        """Return the stream that an unpaired image waits for."""
        return "depth" if self.depth_m is None else "color"

    @property
    def bad(self) -> BadImage | None:
        return next((image for image in (self.color, self.depth_m) if isinstance(image, BadImage)), None)


class _CameraQueue:
    """Pending frames of one camera, sorted by stamp; the rules are those of :class:`RgbdSynchronizer`."""

    def __init__(self, name: str, config: SynchronizerConfig, jump_ns: int, on_drop: Callable[[Drop], None]) -> None:
        self.name = name
        self.judges = {"color": StampJudge(jump_ns), "depth": StampJudge(jump_ns)}
        self.late = 0
        self._calibrations = _CalibrationHistory(seconds_to_ns(config.pair_tolerance_s))
        self._stats = SynchronizerStats()
        self._on_drop = on_drop
        self._waiting: list[_PendingFrame] = []
        self._odd: dict[str, list[_PendingFrame]] = {"color": [], "depth": []}  # waiting for the next stamps
        self._newest: dict[str, int] = {}
        # (stamp, arrival) of frames dropped while unpaired, by the stream of the missing image
        self._orphaned: dict[str, deque[tuple[int, int]]] = {"color": deque(maxlen=256), "depth": deque(maxlen=256)}
        self._recent_colors: deque[int] = deque(maxlen=2)
        self._queue_size = config.queue_size
        self._tolerance_ns = seconds_to_ns(config.pair_tolerance_s)
        self._pair_wait_ns = seconds_to_ns(config.max_pair_wait_s)
        self._pose_wait_ns = seconds_to_ns(config.max_pose_wait_s)
        self._jump_ns = jump_ns

    @property
    def stats(self) -> SynchronizerStats:
        self._stats.calibration_changes = self._calibrations.changes
        self._stats.pending = len(self._waiting) + sum(len(odd) for odd in self._odd.values())
        return self._stats

    @property
    def waiting_bytes(self) -> int:
        """Return the memory of pending images."""
        return sum(image.nbytes for image in (*self._waiting, *self._odd["color"], *self._odd["depth"]))

    def drop_oldest(self, detail: str) -> bool:
        """Drop the oldest frame; return False if none is pending except images with odd stamps."""
        if not self._waiting:
            return False
        oldest = self._waiting.pop(0)
        self._drop_pending(oldest, self._because(oldest, DropReason.QUEUE_FULL, detail))
        return True

    def restart(self, detail: str) -> None:
        """Restart time: drop pending frames and forget stamps."""
        for pending in (*self._waiting, *self._odd["color"], *self._odd["depth"]):
            self._drop(self._because(pending, DropReason.TIME_JUMP, detail))
        self._waiting.clear()
        self._newest.clear()
        self._recent_colors.clear()
        for stream, judge in self.judges.items():
            judge.restart()
            self._odd[stream].clear()
            self._orphaned[stream].clear()
        self._calibrations.restart()

    def _move(self, stream: str, stamp_ns: int, last_ns: int) -> None:
        """Move a stream to ``stamp_ns`` and drop its pending frames, which can no longer be completed."""
        other = "depth" if stream == "color" else "color"
        followed = self.judges[other].near(stamp_ns, last_ns)  # the other stream jumped first: its images are new
        stale = [p for p in self._waiting if not followed or getattr(p, _FIELD[stream]) is not None]
        self._waiting = [p for p in self._waiting if p not in stale]
        for pending in stale:
            detail = f"{stream} jumped to {format_stamp(stamp_ns)}"
            self._drop_pending(pending, self._because(pending, DropReason.TIME_JUMP, detail))
        self._orphaned[stream].clear()
        self._newest.pop(stream, None)
        if not followed:
            self._newest.pop(other, None)
            self._stats.time_jumps += 1
        if stream == "color":
            self._recent_colors.clear()
            self._calibrations.restart()

    def add_calibration(self, stamp_ns: int, model: CameraModel | BadCalibration) -> None:
        """Add a calibration; a stamp in the far future is replaced by the newest image's."""
        newest = self._newest.get("color")
        if newest is not None and stamp_ns > newest + self._jump_ns:
            stamp_ns = newest
        self._calibrations.add(stamp_ns, model)

    def _because(self, pending: _PendingFrame, reason: str, detail: str) -> Drop:
        return Drop(self.name, pending.stamp_ns, reason, detail, "" if pending.paired else pending.missing)

    def _drop(self, drop: Drop) -> None:
        self._stats.dropped[drop.reason] += 1
        self._on_drop(drop)

    def _drop_pending(self, pending: _PendingFrame, drop: Drop) -> None:
        self._drop(drop)
        if not pending.paired:
            self._orphaned[pending.missing].append((pending.stamp_ns, pending.arrived_ns))

    def _same_moment(self, a_ns: int, b_ns: int) -> bool:
        """True when stamps differ by at most a quarter of the tolerance: then the images are no neighbours."""
        return abs(a_ns - b_ns) * 4 <= self._tolerance_ns

    # ---- pairing

    def add(self, stream: str, image: _PendingFrame) -> int:
        """Queue an image and pair images; return the stream's jump, 0 = none."""
        judge, odd = self.judges[stream], self._odd[stream]
        expected_ns = judge.newest_ns
        verdict = judge.judge(image.stamp_ns, image.arrived_ns)
        if verdict == "odd":
            if len(judge.suspects) == 1:
                self._drop_odd(stream, expected_ns)
            self._stats.accepted += 1
            odd.append(image)
            return 0
        if verdict == "fits":
            self._drop_odd(stream, expected_ns)
            self._accept(stream, image)
            return 0
        earlier = list(odd)
        odd.clear()
        self._stats.accepted -= len(earlier)  # counted in _accept
        self._move(stream, (earlier or [image])[0].stamp_ns, image.stamp_ns)
        for each in (*earlier, image):
            self._accept(stream, each)
        return judge.shift_ns

    def _drop_odd(self, stream: str, expected_ns: int | None) -> None:
        """Drop the images with odd stamps."""
        images = list(self._odd[stream])
        self._odd[stream].clear()
        for image in images:
            if self._belongs_to_dropped(stream, image):
                self._stats.accepted -= 1
                continue
            where = "" if expected_ns is None else f", the stream is at {format_stamp(expected_ns)}"
            self._drop_pending(image, self._because(image, DropReason.ODD_STAMP, f"{stream} off its stream{where}"))

    def _accept(self, stream: str, image: _PendingFrame) -> None:
        """Queue an image whose stamp fits its stream."""
        stamp_ns, newest = image.stamp_ns, self._newest.get(stream)
        in_order = newest is None or stamp_ns > newest
        if in_order:
            self._newest[stream] = stamp_ns
            if stream == "color":
                self._recent_colors.append(stamp_ns)
        if self._belongs_to_dropped(stream, image):
            return
        self._stats.accepted += 1
        if not in_order:
            reason = DropReason.DUPLICATE if stamp_ns == newest else DropReason.OUT_OF_ORDER
            self._drop_pending(
                image, self._because(image, reason, f"{stream} after {format_stamp(self._newest[stream])}")
            )
            return
        self._waiting.insert(bisect_left(self._waiting, stamp_ns, key=lambda p: p.stamp_ns), image)
        self._pair(final=False)
        self._trim()

    def _belongs_to_dropped(self, stream: str, image: _PendingFrame) -> bool:
        """True when the other image of this frame was dropped, so that the frame is already counted.

        Earlier drops than the longest wait belong to another frame with a future stamp. If an image arrived twice, the
        pending one takes this partner, and the next image of this stamp belongs to the dropped copy.
        """
        if any(
            not waiting.paired and waiting.missing == stream and self._same_moment(waiting.stamp_ns, image.stamp_ns)
            for waiting in self._waiting
        ):
            return False
        orphaned = self._orphaned[stream]
        for other in orphaned:
            stamp_ns, arrived_ns = other
            recent = image.arrived_ns - arrived_ns <= 2 * max(self._pair_wait_ns, self._pose_wait_ns)
            if recent and self._same_moment(stamp_ns, image.stamp_ns):
                orphaned.remove(other)
                return True
        return False

    def _pair(self, final: bool) -> None:
        """Pair images that are mutually nearest once no nearer one can arrive (or ``final``)."""
        while self._pair_one(final):
            pass  # each pair changes the nearest images

    def _pair_one(self, final: bool) -> bool:
        colors = [c for c in self._waiting if c.depth_m is None]
        depths = [c for c in self._waiting if c.color is None]
        for color in colors:
            depth = _nearest(color, depths)
            if depth is None or _nearest(depth, colors) is not color:
                continue
            difference = abs(color.stamp_ns - depth.stamp_ns)
            if difference > self._tolerance_ns:
                continue
            # with different stamps: the earlier stream must have passed the later stamp, so that its next is further
            earlier = "depth" if depth.stamp_ns < color.stamp_ns else "color"
            settled = self._newest[earlier] >= max(color.stamp_ns, depth.stamp_ns)
            if final or settled or self._same_moment(color.stamp_ns, depth.stamp_ns):
                self._waiting.remove(depth)
                color.depth_m = depth.depth_m
                color.arrived_ns = max(color.arrived_ns, depth.arrived_ns)
                self._stats.accepted -= 1  # two images of one frame
                return True
        return False

    def _trim(self) -> None:
        """Drop the oldest images beyond ``queue_size`` of one kind; 0 = unbounded."""
        if self._queue_size == 0:
            return
        for kind in ("color", "depth_m"):
            holders = [c for c in self._waiting if getattr(c, kind) is not None]
            for oldest in holders[: max(0, len(holders) - self._queue_size)]:
                self._waiting.remove(oldest)
                detail = f"more than {self._queue_size} pending"
                self._drop_pending(oldest, self._because(oldest, DropReason.QUEUE_FULL, detail))

    # ---- ready, dropped, or waiting

    def poll(self, poses: PoseSource, now_ns: int, ended: bool) -> list[PosedFrame]:
        """Return the complete frames; ``ended``: nothing more will arrive."""
        for stream, odd in self._odd.items():
            if odd and (ended or now_ns - odd[0].arrived_ns >= max(self._pair_wait_ns, self._pose_wait_ns)):
                self._drop_odd(stream, self.judges[stream].newest_ns)
        self._pair(final=ended)
        self.late = 0
        frames = []
        while self._waiting:
            outcome = self._outcome(self._waiting[0], poses, now_ns, ended)
            if outcome is None:
                for behind in self._waiting[1:]:  # later stamps wait, to keep the order
                    behind.late |= self._waiting[0].late
                break
            pending = self._waiting.pop(0)
            if isinstance(outcome, PosedFrame):
                self._stats.emitted += 1
                self.late += pending.late
                frames.append(outcome)
            else:
                self._drop_pending(pending, outcome)
        return frames

    def _outcome(self, pending: _PendingFrame, poses: PoseSource, now_ns: int, ended: bool) -> PosedFrame | Drop | None:
        """Return the posed frame, the drop, or None to wait."""
        waited_ns = now_ns - pending.arrived_ns
        patient = not ended and waited_ns < self._pair_wait_ns
        if not pending.paired:
            return self._outcome_unpaired(pending, patient)
        if pending.bad is not None:
            return self._because(pending, DropReason.BAD_FRAME, pending.bad.reason)
        if pending.built is None:
            calibration = self._calibrations.at(pending.stamp_ns, list(self._recent_colors), patient)
            if calibration is None:
                return None if patient else self._because(pending, DropReason.NO_CAMERA_INFO, "none has arrived")
            if isinstance(calibration, BadCalibration):
                return self._because(pending, DropReason.BAD_FRAME, calibration.reason)
            built = self._build(pending, calibration)
            if isinstance(built, Drop):
                return built
            pending.built = built
            pending.color, pending.depth_m = built.color, built.depth_m  # frees raw images
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
            pending.late = True
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
        assert isinstance(depth_m, (np.ndarray, UnregisteredDepth))
        own = depth_m.camera if isinstance(depth_m, UnregisteredDepth) else calibration
        cameras = {"camera_info": calibration, **({} if own is calibration else {"depth's camera_info": own})}
        pixels = {name: (model.intrinsics.height, model.intrinsics.width) for name, model in cameras.items()}
        if color.shape[:2] != pixels["camera_info"] or depth_m.shape[:2] != pixels.get(
            "depth's camera_info", color.shape[:2]
        ):
            found = {"colour": color.shape[:2], "depth": depth_m.shape[:2], **pixels}
            sizes = ", ".join(f"{what} {size[1]}x{size[0]}" for what, size in found.items())
            return self._because(pending, DropReason.SIZE_MISMATCH, f"{sizes}: {_SIZE_REMEDY}")
        try:
            if isinstance(depth_m, UnregisteredDepth):
                images = calibration.rectify_color(color), depth_m.registered(calibration.intrinsics)
            else:
                images = calibration.rectify(color, depth_m)
            return RgbdFrame(pending.stamp_ns, self.name, *images, calibration.intrinsics)
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
    """History of calibrations as spans of equal values, newest last."""

    def __init__(self, tolerance_ns: int) -> None:
        self._tolerance_ns = tolerance_ns
        self._spans: deque[_Span] = deque(maxlen=8)
        self._recent_ns: deque[int] = deque(maxlen=2)
        self.changes = 0

    def restart(self) -> None:
        """Restart time; the newest calibration stays valid until another arrives."""
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
        """Return the calibration at ``stamp_ns``; None = none known, or (``patient``) its own may still arrive."""
        if not self._spans:
            return None
        if stamp_ns > self._spans[-1].last_ns + self._tolerance_ns and patient and self._per_image(recent_colors_ns):
            return None
        held = [span for span in self._spans if span.first_ns <= stamp_ns + self._tolerance_ns]
        return held[-1].value if held else self._spans[0].value

    def _per_image(self, recent_colors_ns: list[int]) -> bool:
        """True when calibration arrived with each of the last images."""
        if len(self._recent_ns) < 2 or len(recent_colors_ns) < 2:
            return False
        period = recent_colors_ns[-1] - recent_colors_ns[-2]
        return (
            self._recent_ns[-1] - self._recent_ns[-2] <= period + self._tolerance_ns
            and recent_colors_ns[-1] - self._recent_ns[-1] <= period + self._tolerance_ns
        )
