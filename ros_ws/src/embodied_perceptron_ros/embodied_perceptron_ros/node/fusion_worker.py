"""The one thread that fuses: takes messages from the inbox, assembles posed frames, puts them into the map."""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import FusionReport
from embodied_perceptron.scene.map_frame import MapLimitError
from embodied_perceptron.sensors.camera_model import CameraModel
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sensors.poses import Disconnected, PoseLookup
from embodied_perceptron.sensors.synchronizer import BadCalibration, BadImage, DropReason, RgbdSynchronizer
from embodied_perceptron_ros.conversion.values import (
    camera_info_key,
    camera_model,
    color_from_message,
    depth_from_message,
    stamp_to_ns,
)
from embodied_perceptron_ros.node.health import ERROR, WARN, FrameCounts, Health
from embodied_perceptron_ros.node.inputs import Inbox, Received
from embodied_perceptron_ros.node.transforms import TransformSource

OVERLOAD = "overload"  # ready, but fusion could not keep up
INTERNAL_ERROR = "internal_error"
OUT_OF_REACH = "out_of_reach"  # further from the map's origin than a map can hold
_IDLE_S, _WAITING_S = 0.25, 0.02
_LOG_EVERY_S = 5.0
_POSE_REASONS = (DropReason.NO_TRANSFORM, DropReason.POSE_TIMEOUT, DropReason.POSE_TOO_OLD, DropReason.POSE_GAP)
_STATISTICS_EVERY_S = 0.2
_RESET_GRACE_S = 1.0  # one jump shows up in several streams


class CameraPoses:
    """Poses of cameras by name, from the frames that their images name and the transforms of the robot."""

    def __init__(self, transforms: TransformSource, fusion_frame: str) -> None:
        self._transforms = transforms
        self._fusion_frame = fusion_frame
        self.frames: dict[str, str] = {}

    def lookup(self, camera: str, stamp_ns: int) -> PoseLookup:
        """``T_fusion_camera`` at ``stamp_ns``, or why there is none."""
        frame = self.frames.get(camera, "")
        if not frame:
            return Disconnected(self._fusion_frame, camera, f"images of camera {camera!r} carry no frame_id")
        return self._transforms.lookup(self._fusion_frame, frame, stamp_ns)


class ReadyFrames:
    """Frames with their poses that wait for fusion; cameras take turns, each in the order of its frames.

    Under overload every camera gets the same share: the next frame is of the camera that had its turn longest ago,
    and what has to go is the oldest of the camera that has most waiting.
    """

    def __init__(self) -> None:
        self._frames: list[PosedFrame] = []  # oldest first
        self._turns: dict[str, int] = {}  # camera -> number of its last turn
        self._turn = 0

    def __len__(self) -> int:
        return len(self._frames)

    def extend(self, frames: Iterable[PosedFrame]) -> None:
        """Frames of one camera come in the order of their stamps."""
        self._frames.extend(frames)

    def take(self) -> PosedFrame:
        """The oldest of the camera whose turn it is. Raises ValueError when none waits."""
        index = min(range(len(self._frames)), key=lambda i: self._last_turn(self._frames[i].frame.camera))
        self._turn += 1
        self._turns[self._frames[index].frame.camera] = self._turn
        return self._frames.pop(index)

    def shed(self) -> PosedFrame:
        """The one to do without; of cameras with equally many, the one that had its turn last loses."""
        waiting = Counter(posed.frame.camera for posed in self._frames)
        camera = max(waiting, key=lambda name: (waiting[name], self._last_turn(name)))
        return self._frames.pop(next(i for i, posed in enumerate(self._frames) if posed.frame.camera == camera))

    def take_all_of(self, cameras: Collection[str]) -> list[PosedFrame]:
        """All that wait of some cameras."""
        taken = [posed for posed in self._frames if posed.frame.camera in cameras]
        self._frames = [posed for posed in self._frames if posed.frame.camera not in cameras]
        return taken

    def _last_turn(self, camera: str) -> int:
        return self._turns.get(camera, 0)


class FusionWorker:
    """See the module's docstring. All public methods may be called from any thread."""

    def __init__(
        self,
        perceptron: Perceptron,
        inbox: Inbox,
        transforms: TransformSource,
        health: Health,
        logger: Any,
        *,
        assembler_config: SynchronizerConfig,
        fusion_frame: str,
        rectified: dict[str, bool],
        now_ns: Callable[[], int],
        max_backlog: Callable[[], int],
        reset_on_time_jump: Callable[[], bool],
        inf_is_unknown: Collection[str] = (),
    ) -> None:
        """``rectified``: by camera name. The callables are asked each time: their answers may change at run time.
        ``inf_is_unknown``: cameras whose driver means "invalid" by a depth of +Inf."""
        self._perceptron = perceptron
        self._inbox = inbox
        self._health = health
        self._logger = logger
        self._poses = CameraPoses(transforms, fusion_frame)
        self._assembler = RgbdSynchronizer(assembler_config, self._poses, rectified)
        self._rectified = rectified
        self._inf_is_unknown = frozenset(inf_is_unknown)
        self._late = 0
        self._now_ns = now_ns
        self._max_backlog = max_backlog
        self._reset_on_time_jump = reset_on_time_jump
        self._ready = ReadyFrames()
        self._calibrations: dict[str, tuple[Any, CameraModel | BadCalibration]] = {}
        self._own_drops: Counter[str] = Counter()
        self._fused = 0
        self._last_reset_s = float("-inf")
        self._logged: dict[str, float] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._waiting_for_pose = False
        self._counts = FrameCounts()
        self.map_statistics: dict[str, Any] = {}
        self._statistics_s = float("-inf")
        self.on_fused: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="fusion", daemon=True)

    # ---- from any thread

    def start(self) -> None:
        """Begin working."""
        self._thread.start()

    def stop(self) -> None:
        """End after the frame at hand."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """Something arrived."""
        self._wake.set()

    def transforms_changed(self) -> None:
        """A transform arrived: worth a look only when a frame waits for one."""
        if self._waiting_for_pose:
            self._wake.set()

    def camera_frame(self, camera: str) -> str:
        """Optical frame that the images of a camera name; empty before the first."""
        return self._poses.frames.get(camera, "")

    def camera_model(self, camera: str) -> CameraModel | None:
        """Calibration of a camera; None before the first that can be used."""
        _, calibration = self._calibrations.get(camera, (None, None))
        return calibration if isinstance(calibration, CameraModel) else None

    @property
    def counts(self) -> FrameCounts:
        """What became of the frames so far."""
        return self._counts

    # ---- the thread

    def _run(self) -> None:
        while not self._stopping:
            if not self._ready:
                self._wake.wait(_WAITING_S if self._waiting_for_pose else _IDLE_S)
            self._wake.clear()
            try:
                self._step()
            except Exception:  # the thread must survive whatever one step meets; it is reported, and the next goes on
                self._health.count("internal_errors")
                trace = traceback.format_exc()
                last_line = trace.strip().splitlines()[-1]
                self._health.problem("node", ERROR, f"internal error while fusing: {last_line}", "fusion", hold_s=30.0)
                if self._may_log("internal error"):
                    self._logger.error(trace)
        self._update_counts()

    def _step(self) -> None:
        for received in self._inbox.take_all():
            self._feed(received)
        frames = self._assembler.poll(self._now_ns())
        self._follow_time_jumps()  # before the frames of the new time join those of the old
        if frames:
            self._ready.extend(frames)
            # frames that all waited for one transform come at once: that is no sign of overload
            self._late = self._assembler.late
        while len(self._ready) > self._max_backlog() + self._late:
            dropped = self._ready.shed()
            self._drop(OVERLOAD, dropped.frame.camera, "fusion does not keep up with the cameras")
        for drop in self._assembler.take_drops():
            self._health.explain_drop(drop.reason, drop.detail)
            if drop.reason in _POSE_REASONS:
                self._health.problem("transforms", WARN, str(drop), drop.camera, hold_s=_LOG_EVERY_S)
            self._log(f"{drop.camera}: {drop.reason}", str(drop))
        try:
            if self._ready:
                self._late = max(self._late - 1, 0)
                self._fuse(self._ready.take())
        finally:
            self._update_counts()

    # ---- feeding the assembler

    def _feed(self, received: Received) -> None:
        camera, stamp_ns, now_ns = received.camera, stamp_to_ns(received.message.header.stamp), self._now_ns()
        if received.kind == "info":
            self._feed_info(received, stamp_ns, now_ns)
        elif received.kind == "color":
            self._poses.frames[camera] = received.message.header.frame_id
            self._assembler.add_color(camera, stamp_ns, self._decode_color(received), now_ns, received.sent_ns)
        else:
            self._assembler.add_depth(camera, stamp_ns, self._decode_depth(received), now_ns)

    def _decode_color(self, received: Received) -> Any:
        try:
            return color_from_message(received.message)
        except (ValueError, OverflowError) as error:
            return BadImage(str(error))

    def _decode_depth(self, received: Received) -> Any:
        expected, frame = self._poses.frames.get(received.camera), received.message.header.frame_id
        if expected and frame and frame != expected:
            return BadImage(f"depth is in frame {frame!r}, colour in {expected!r}: depth must be registered to colour")
        try:
            depth_m = depth_from_message(received.message)
        except (ValueError, OverflowError) as error:
            return BadImage(str(error))
        if received.camera in self._inf_is_unknown:
            depth_m = np.where(np.isposinf(depth_m), np.float32(0.0), depth_m)
        return depth_m

    def _feed_info(self, received: Received, stamp_ns: int, now_ns: int) -> None:
        camera = received.camera
        key = camera_info_key(received.message)
        known = self._calibrations.get(camera)
        if known is not None and known[0] == key:
            calibration = known[1]
        else:
            calibration = self._read_info(received)
            self._calibrations[camera] = (key, calibration)
        self._assembler.add_camera_info(camera, stamp_ns, calibration, now_ns)

    def _read_info(self, received: Received) -> CameraModel | BadCalibration:
        camera = received.camera
        try:
            model = camera_model(received.message, self._rectified[camera])
        except (ValueError, OverflowError) as error:
            self._health.count("camera_info_refused")
            self._health.problem("frames", ERROR, f"camera_info of {camera!r} refused: {error}", camera)
            self._log(f"{camera}: camera_info", f"camera_info of {camera!r} refused: {error}")
            return BadCalibration(str(error))
        self._health.clear_problem("frames", camera)
        return model

    # ---- fusing

    def _fuse(self, posed: PosedFrame) -> None:
        start = time.perf_counter()
        try:
            report = self._perceptron.integrate(posed)
        except MapLimitError as error:
            self._drop(OUT_OF_REACH, posed.frame.camera, str(error))
            self._health.problem("map", ERROR, str(error), "reach", hold_s=_LOG_EVERY_S)
            return
        except Exception as error:
            self._drop(INTERNAL_ERROR, posed.frame.camera, f"{type(error).__name__}: {error}")
            raise
        self._health.latency("fusion", (time.perf_counter() - start) * 1e3)
        self._health.stages("fusion", report.stage_ms)
        if not report.fused:
            self._drop(report.reason or "not_fused", posed.frame.camera, "")
            return
        self._fused += 1
        self._health.latency("fused", (time.time_ns() - posed.arrival_ns) / 1e6)
        self._health.tick("fusion")
        self._count_evictions(report)
        self.on_fused()

    def _count_evictions(self, report: FusionReport) -> None:
        for reason, blocks in report.blocks_evicted.items():
            self._health.count(f"blocks_evicted.{reason}", blocks)
        self._health.count("voxels_cleared", report.voxels_cleared)
        self._health.count("keyframes", int(report.keyframe))
        if report.points_refused:
            self._health.count("points_refused", report.points_refused)
            self._health.problem("map", WARN, "the block budget is used up within the radius: points find no room")
        else:
            self._health.clear_problem("map")

    def _follow_time_jumps(self) -> None:
        """What waits from before a jump goes; the map stays, or is reset where that is wanted and time began anew."""
        for jump in self._assembler.take_jumps():
            self._health.count("time_jumps")
            for posed in self._ready.take_all_of(jump.cameras):
                self._drop(DropReason.TIME_JUMP, posed.frame.camera, "was ready when time went on elsewhere")
            shift = f"time of {', '.join(jump.cameras)} went on {jump.shift_ns / 1e9:+.3f} s away"
            if not (jump.restart and self._reset_on_time_jump()):
                for camera in jump.cameras:
                    self._perceptron.forget_stamps(camera)
                if self._may_log(f"time jump {jump.cameras}"):
                    self._logger.warning(f"{shift}: the map is kept")
            elif time.monotonic() - self._last_reset_s >= _RESET_GRACE_S:
                self._last_reset_s = time.monotonic()
                self._perceptron.reset()
                self._logger.warning(f"{shift}: the map is reset")

    # ---- accounting

    def _drop(self, reason: str, camera: str, detail: str) -> None:
        self._own_drops[reason] += 1
        self._health.explain_drop(reason, detail)
        self._log(f"{camera}: {reason}", f"frame of {camera!r} dropped: {reason}: {detail}")

    def _update_counts(self) -> None:
        stats = self._assembler.stats()
        self._waiting_for_pose = stats.pending > 0
        overflowed, lost = self._inbox.overflowed["color"], self._inbox.frames_lost
        dropped = stats.dropped + self._own_drops + Counter({DropReason.QUEUE_FULL: overflowed, DropReason.LOST: lost})
        if time.monotonic() - self._statistics_s > _STATISTICS_EVERY_S:
            self._statistics_s = time.monotonic()
            self.map_statistics = _flat(dataclasses.asdict(self._perceptron.statistics()))
        # one assignment, so that readers in other threads never see a half-updated count
        self._counts = FrameCounts(stats.accepted + overflowed + lost, self._fused, dropped)

    def _log(self, key: str, text: str) -> None:
        if self._may_log(key):
            self._logger.warning(text)

    def _may_log(self, key: str) -> bool:
        """At most one line per key in a while: a camera without a pose would otherwise write 30 a second."""
        now_s = time.monotonic()
        if now_s - self._logged.get(key, float("-inf")) < _LOG_EVERY_S:
            return False
        self._logged[key] = now_s
        return True


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """``{"a": {"b": 1}}`` -> ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update({f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
    return flat
