"""The one thread that fuses: takes posed frames out of the inbox and puts them into the map.

Images of keyframes are encoded in a thread beside it: that takes as long as several frames, which need not wait.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from embodied_perceptron.mapping.devices import yield_to_fusion
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import FusionReport
from embodied_perceptron.scene.map_frame import MapLimitError
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.sensors.synchronizer import TimeJump
from embodied_perceptron_ros.node.frame_inbox import INTERNAL_ERROR, OUT_OF_REACH, TOOK_TOO_LONG, FrameInbox
from embodied_perceptron_ros.node.health import ERROR, WARN, Health
from embodied_perceptron_ros.node.throttled_log import ThrottledLog
from embodied_perceptron_ros.node.watchdog import FUSION_LIMIT_S, STOP_LIMIT_S, TookTooLongError, Watchdog

_IDLE_S, _WAITING_S = 0.25, 0.02
_HOLD_S = 5.0  # how long diagnostics repeat that a camera is out of reach
_STATISTICS_EVERY_S = 0.2
_RESET_GRACE_S = 1.0  # one jump shows up in several streams


class FusionWorker:
    """See the module's docstring. All public methods may be called from any thread.

    Args:
        now_ns: the clock that bounds waiting.
        reset_on_time_jump: asked each time: the answer may change at run time.
        on_placed: called after each frame that is fused: the map lies somewhere in the world.
    """

    def __init__(
        self,
        perceptron: Perceptron,
        inbox: FrameInbox,
        health: Health,
        log: ThrottledLog,
        watchdog: Watchdog,
        *,
        now_ns: Callable[[], int],
        reset_on_time_jump: Callable[[], bool],
        on_placed: Callable[[], None] = lambda: None,
    ) -> None:
        self._perceptron = perceptron
        self._inbox = inbox
        self._health = health
        self._log = log
        self._watchdog = watchdog
        self._now_ns = now_ns
        self._reset_on_time_jump = reset_on_time_jump
        self._on_placed = on_placed
        self._was_looking = False
        self._last_reset_s = float("-inf")
        self._stopping = False
        self._uncounted: deque[FusionReport] = deque()
        self.map_statistics: dict[str, Any] = {}
        self._statistics_s = float("-inf")
        self.on_fused: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="fusion", daemon=True)
        self._keyframe = threading.Event()  # one came, or the end
        self._encoder = threading.Thread(target=self._run_encoder, name="encoding", daemon=True)

    def start(self) -> None:
        """Begin working."""
        self._thread.start()
        self._encoder.start()

    def stop(self) -> None:
        """End after the frame at hand."""
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
            except Exception:  # the thread must survive whatever one step meets; it is reported, and the next goes on
                self._report_error("fusing", "fusion")
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
            except TookTooLongError:  # the watchdog has told of it; the next perception tries again
                continue
            except Exception:
                self._report_error("encoding", "encoding")

    def _report_error(self, doing: str, source: str) -> None:
        self._health.count("internal_errors")
        trace = traceback.format_exc()
        last_line = trace.strip().splitlines()[-1]
        self._health.problem("node", ERROR, f"internal error while {doing}: {last_line}", source, hold_s=30.0)
        self._log.error("internal error", trace)

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
            self._health.problem("map", ERROR, str(error), "reach", hold_s=_HOLD_S)
            return
        except Exception as error:
            self._inbox.refuse(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
            raise
        self._health.latency("fusion", (time.perf_counter() - start) * 1e3)
        self._health.stages("fusion", report.stage_ms)
        if not report.fused:
            self._inbox.refuse(report.reason or "not_fused", self._tell_of_place())
            return
        self._tell_of_place()
        self._on_placed()
        self._inbox.fused()
        self._health.latency("fused", (time.time_ns() - posed.arrival_ns) / 1e6)
        self._health.tick("fusion")
        if report.keyframe:
            self._keyframe.set()
        self._uncounted.append(report)
        while self._uncounted and self._uncounted[0].counts.ready():  # a device tells later, and nothing waits for it
            self._count_evictions(self._uncounted.popleft())
        self.on_fused()

    def _tell_of_place(self) -> str:
        """Words for how it stands with the robot's place in a loaded map; diagnostics and the log have them too."""
        estimate = self._perceptron.place_estimate
        if estimate is None:
            if self._was_looking:
                self._health.clear_problem("map", "place")
                x, y, z = self._perceptron.T_world_map[:3, 3]
                self._log.info(
                    "place", f"the robot's place is found: the map's origin is at {x:.2f}, {y:.2f}, {z:.2f} m"
                )
            self._was_looking = False
            return ""
        self._was_looking = True
        words = f"looking for the robot's place in the map: {estimate.reason}"
        self._health.problem("map", WARN, words, "place")
        return words

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

    def _follow(self, jump: TimeJump) -> None:
        """The map stays, or is reset where that is wanted and time began anew."""
        self._health.count("time_jumps")
        shift = f"time of {', '.join(jump.cameras)} went on {jump.shift_ns / 1e9:+.3f} s away"
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
