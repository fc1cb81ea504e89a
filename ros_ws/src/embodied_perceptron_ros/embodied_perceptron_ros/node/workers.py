"""The threads that fuse, encode and perceive.

``fusion`` takes posed frames from the inbox and puts them into the map. ``encoding`` encodes the images of keyframes,
which takes as long as several frames. ``perception`` perceives on snapshots at its own rate, so it never blocks fusion.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from embodied_perceptron.apps.checks import Severity, check_depth
from embodied_perceptron.apps.warm_up import WarmUpStoppedError
from embodied_perceptron.mapping.devices import yield_to_fusion
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import FusionReport, Perception
from embodied_perceptron.scene.map_frame import MapLimitError
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sensors.synchronizer import TimeJump
from embodied_perceptron_ros.node.health import ERROR, WARN
from embodied_perceptron_ros.node.inputs import INTERNAL_ERROR, OUT_OF_REACH, TOOK_TOO_LONG, FrameInbox
from embodied_perceptron_ros.node.threads import (
    FUSION_LIMIT_S,
    PERCEPTION_LIMIT_S,
    STOP_LIMIT_S,
    TookTooLongError,
    Watchdog,
)

_IDLE_S, _WAITING_S = 0.25, 0.02
_REACH_HOLD_S = 5.0  # how long diagnostics report a camera out of reach
_PERCEPTION_HOLD_S = 10.0  # how long diagnostics repeat the messages of a perception
_STATISTICS_EVERY_S = 0.2
_RESET_GRACE_S = 1.0  # one jump shows up in several streams


class FusionWorker:
    """The threads ``fusion`` and ``encoding``. All public methods are thread-safe.

    Args:
        watchdog: limits each step; its health and log receive reports.
        now_ns: the clock that bounds waiting.
        reset_on_time_jump: called each time, since the parameter may change.
        on_placed: called after each fused frame: the map's place in the world is known.
    """

    def __init__(
        self,
        perceptron: Perceptron,
        inbox: FrameInbox,
        watchdog: Watchdog,
        *,
        now_ns: Callable[[], int],
        reset_on_time_jump: Callable[[], bool],
        on_placed: Callable[[], None] = lambda: None,
    ) -> None:
        self._perceptron = perceptron
        self._inbox = inbox
        self._watchdog = watchdog
        self._health, self._log = watchdog.health, watchdog.log
        self._now_ns = now_ns
        self._reset_on_time_jump = reset_on_time_jump
        self._on_placed = on_placed
        self._was_searching = False
        self._last_reset_s = float("-inf")
        self._stopping = False
        self._uncounted: deque[FusionReport] = deque()
        self.map_statistics: dict[str, Any] = {}
        self._statistics_s = float("-inf")
        self.on_fused: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="fusion", daemon=True)
        self._keyframe = threading.Event()  # a keyframe was fused, or the worker stops
        self._encoder = threading.Thread(target=self._run_encoder, name="encoding", daemon=True)

    def start(self) -> None:
        """Start both threads."""
        self._thread.start()
        self._encoder.start()

    def stop(self) -> None:
        """End after the current frame."""
        self._stopping = True
        self._inbox.wake()
        self._keyframe.set()
        for thread in (self._thread, self._encoder):
            if thread.is_alive():
                thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        while not self._stopping:
            self._inbox.wait(_IDLE_S, _WAITING_S)
            try:
                with self._watchdog.watch("fusion", FUSION_LIMIT_S):
                    self._step()
            except TookTooLongError:
                self._inbox.refuse(TOOK_TOO_LONG, f"it was not fused within {FUSION_LIMIT_S:g} s")
            except Exception:
                self._watchdog.report_error("fusing", "fusion")
            finally:
                self._inbox.settle()
        self._inbox.settle()

    def _run_encoder(self) -> None:
        yield_to_fusion()
        while True:
            self._keyframe.wait()
            self._keyframe.clear()
            if self._stopping:
                return
            try:
                with self._watchdog.watch("encoding", FUSION_LIMIT_S):
                    self._health.stages("fusion", self._perceptron.encode_keyframes())
            except TookTooLongError:  # reported by the watchdog; the next perception tries again
                continue
            except Exception:
                self._watchdog.report_error("encoding", "encoding")

    def _step(self) -> None:
        posed = self._inbox.take(self._now_ns())
        for jump in self._inbox.take_jumps():
            self._follow(jump)
        if time.monotonic() - self._statistics_s > _STATISTICS_EVERY_S:
            self._statistics_s = time.monotonic()
            self.map_statistics = _flat(dataclasses.asdict(self._perceptron.statistics()))
        if posed is not None:
            self._fuse(posed)

    def _fuse(self, posed: PosedFrame) -> None:
        start = time.perf_counter()
        try:
            report = self._perceptron.integrate(posed, encode=False)
        except MapLimitError as error:
            self._inbox.refuse(OUT_OF_REACH, str(error))
            self._health.problem("map", ERROR, str(error), "reach", hold_s=_REACH_HOLD_S)
            return
        except Exception as error:
            self._inbox.refuse(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
            raise
        self._health.latency("fusion", (time.perf_counter() - start) * 1e3)
        self._health.stages("fusion", report.stage_ms)
        place = self._report_place()
        if not report.fused:
            self._inbox.refuse(report.reason or "not_fused", place or report.detail)
            return
        self._on_placed()
        self._inbox.fused()
        self._health.latency("fused", (time.time_ns() - posed.arrival_ns) / 1e6)
        self._health.tick("fusion")
        if report.keyframe:
            self._keyframe.set()
        self._uncounted.append(report)
        while self._uncounted and self._uncounted[0].counts.ready():  # a GPU delivers counts later; do not wait
            self._count_evictions(self._uncounted.popleft())
        self.on_fused()

    def _report_place(self) -> str:
        """Report the search for the robot's place in a loaded map; return the message, empty when there is none."""
        estimate = self._perceptron.place_estimate
        if estimate is None:
            if self._was_searching:
                self._health.clear_problem("map", "place")
                x, y, z = self._perceptron.T_world_map[:3, 3]
                message = f"the robot's place is found: the map's origin is at {x:.2f}, {y:.2f}, {z:.2f} m"
                self._log.info("place", message)
            self._was_searching = False
            return ""
        self._was_searching = True
        message = f"looking for the robot's place in the map: {estimate.reason}"
        self._health.problem("map", WARN, message, "place")
        return message

    def _count_evictions(self, report: FusionReport) -> None:
        for reason, blocks in report.blocks_evicted.items():
            self._health.count(f"blocks_evicted.{reason}", blocks)
        self._health.count("voxels_cleared", report.voxels_cleared)
        self._health.count("keyframes", int(report.keyframe))
        if report.points_refused:
            self._health.count("points_refused", report.points_refused)
            self._health.problem("map", WARN, "all max_blocks blocks are in use within the radius: points are lost")
        else:
            self._health.clear_problem("map")

    def _follow(self, jump: TimeJump) -> None:
        """Keep the map, or reset it if time restarted and the parameter says so."""
        self._health.count("time_jumps")
        shift = f"the time of {', '.join(jump.cameras)} jumped by {jump.shift_ns / 1e9:+.3f} s"
        if not (jump.restart and self._reset_on_time_jump()):
            for camera in jump.cameras:
                self._perceptron.forget_stamps(camera)
            self._log.warning(f"time jump {jump.cameras}", f"{shift}: the map is kept")
        elif time.monotonic() - self._last_reset_s >= _RESET_GRACE_S:
            self._last_reset_s = time.monotonic()
            self._perceptron.reset()
            self._log.warning("reset", f"{shift}: the map is reset", every_s=0.0)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """``{"a": {"b": 1}}`` -> ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update({f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
    return flat


class PerceptionWorker:
    """The thread ``perception``: perceives when a frame was fused since the last time, at most at ``rate_hz()``.

    Args:
        watchdog: limits each perception; its health and log receive reports.
        publish: receives the perception, and whether to publish everything.
        publish_held: called without news, for outputs that their own rate held back.
        new_listeners: whether somebody subscribed since the last call.
        has_moved: whether localisation moved the frame in which a perception was published.
    """

    def __init__(
        self,
        perceptron: Perceptron,
        watchdog: Watchdog,
        *,
        publish: Callable[[Perception, bool], None],
        publish_held: Callable[[Perception], None],
        new_listeners: Callable[[], bool],
        has_moved: Callable[[Perception], bool] = lambda perception: False,
        rate_hz: Callable[[], float],
    ) -> None:
        self._perceptron = perceptron
        self._watchdog = watchdog
        self._health, self._log = watchdog.health, watchdog.log
        self._publish = publish
        self._publish_held = publish_held
        self._new_listeners = new_listeners
        self._has_moved = has_moved
        self._rate_hz = rate_hz
        self._warm_up: Callable[[Callable[[], bool]], None] = lambda stopped: None
        self._warming_up = True
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._latest: Perception | None = None
        self._logged_faults = set[str]()  # of devices
        self._thread = threading.Thread(target=self._run, name="perception", daemon=True)

    def start(self, warm_up: Callable[[Callable[[], bool]], None] = lambda stopped: None) -> None:
        """Start with ``warm_up(stopped)``, which raises :class:`WarmUpStoppedError` after ``stopped()`` is true."""
        self._warm_up = warm_up
        self._thread.start()

    def stop(self, ending: bool = False) -> None:
        """End after the current perception; if the process is ``ending``, do not wait for a warm-up."""
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive() and not (ending and self._warming_up):
            self._thread.join(STOP_LIMIT_S)

    def map_changed(self) -> None:
        """Request a perception."""
        self._changed.set()

    def _run(self) -> None:
        yield_to_fusion()
        try:
            self._warm_up(self._stopping.is_set)
        except WarmUpStoppedError:
            return
        except Exception:  # a perception will report the same error
            self._log.error("warm-up", traceback.format_exc())
        self._warming_up = False
        next_s = time.monotonic()
        while not self._stopping.is_set():
            changed = self._changed.wait(_IDLE_S)
            try:
                if not changed:
                    self._serve_listeners()
                    continue
                if self._stopping.wait(max(next_s - time.monotonic(), 0.0)):
                    return
                next_s = time.monotonic() + 1.0 / self._rate_hz()
                self._changed.clear()
                with self._watchdog.watch("perception", PERCEPTION_LIMIT_S):
                    self._perceive()
            except TookTooLongError:  # reported by the watchdog
                continue
            except Exception:
                self._watchdog.report_error("perceiving", "perception")
                self._stopping.wait(1.0)

    def _perceive(self) -> None:
        if self._perceptron.place_estimate is not None:
            return  # the map's place is unknown, so there is nothing to publish yet
        start = time.perf_counter()
        perception = self._perceptron.perceive()
        if self._stopping.is_set():
            return
        self._health.latency("perception", (time.perf_counter() - start) * 1e3)
        self._health.stages("perception", perception.stage_ms)
        self._health.tick("perception")
        faults = self._perceptron.device_faults
        for number, message in enumerate(perception.diagnostics):
            level = ERROR if message in faults else WARN
            self._health.problem("map", level, message, f"perception {number}", hold_s=_PERCEPTION_HOLD_S)
        for fault in faults:
            if fault not in self._logged_faults:
                self._logged_faults.add(fault)
                self._log.error(f"device {fault}", fault)
        if perception.source is not None:
            self._check_depth(perception.source.frame)
        self._latest = perception
        self._publish(perception, self._new_listeners())

    def _check_depth(self, frame: RgbdFrame) -> None:
        """Report a wrong depth unit: otherwise the map would stay empty without any message."""
        wrong = [f for f in check_depth([frame.depth_m]) if f.check == "depth unit" and f.severity == Severity.ERROR]
        if not wrong:
            self._health.clear_problem("frames", f"depth of {frame.camera}")
            return
        self._health.count("frames_with_implausible_depth")
        message = f"camera {frame.camera!r}: {wrong[0].message}: {wrong[0].remedy}"
        self._health.problem("frames", ERROR, message, f"depth of {frame.camera}")
        self._log.error(f"depth of {frame.camera}", message, every_s=_PERCEPTION_HOLD_S)

    def _serve_listeners(self) -> None:
        if self._latest is None:
            return
        if self._new_listeners() or self._has_moved(self._latest):
            self._publish(self._latest, True)
        else:
            self._publish_held(self._latest)
