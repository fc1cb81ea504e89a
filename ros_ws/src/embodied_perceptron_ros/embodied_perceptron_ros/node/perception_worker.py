"""The thread that perceives: on snapshots, at its own rate, never in the way of fusion."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from embodied_perceptron.apps.checks import Severity, check_depth
from embodied_perceptron.apps.warm_up import WarmUpStoppedError
from embodied_perceptron.mapping.devices import yield_to_fusion
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Perception
from embodied_perceptron.sensors.frame import RgbdFrame
from embodied_perceptron_ros.node.health import ERROR, WARN, Health
from embodied_perceptron_ros.node.throttled_log import ThrottledLog
from embodied_perceptron_ros.node.watchdog import PERCEPTION_LIMIT_S, STOP_LIMIT_S, TookTooLongError, Watchdog

_IDLE_S = 0.25
_TOLD_S = 10.0  # how long diagnostics repeat what a perception had to say


class PerceptionWorker:
    """Perceives when something was fused since the last time, at most ``rate_hz()`` times a second.

    Args:
        publish: gets the perception, and whether to publish everything.
        publish_held: called while nothing new happens, for what publish held back.
        new_listeners: whether somebody subscribed since the last call.
    """

    def __init__(
        self,
        perceptron: Perceptron,
        health: Health,
        log: ThrottledLog,
        watchdog: Watchdog,
        *,
        publish: Callable[[Perception, bool], None],
        publish_held: Callable[[Perception], None],
        new_listeners: Callable[[], bool],
        rate_hz: Callable[[], float],
    ) -> None:
        self._perceptron = perceptron
        self._health = health
        self._log = log
        self._watchdog = watchdog
        self._publish = publish
        self._publish_held = publish_held
        self._new_listeners = new_listeners
        self._rate_hz = rate_hz
        self._warm_up: Callable[[Callable[[], bool]], None] = lambda stopped: None
        self._warming_up = True
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._latest: Perception | None = None
        self._told_faults = set[str]()  # of devices, that the log has already
        self._thread = threading.Thread(target=self._run, name="perception", daemon=True)

    def start(self, warm_up: Callable[[Callable[[], bool]], None] = lambda stopped: None) -> None:
        """Begin, with ``warm_up``, which raises :class:`WarmUpStoppedError` soon after its argument says so."""
        self._warm_up = warm_up
        self._thread.start()

    def stop(self, ending: bool = False) -> None:
        """End after the perception at hand; a process that is ``ending`` need not wait for a warm-up."""
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive() and not (ending and self._warming_up):
            self._thread.join(STOP_LIMIT_S)

    def map_changed(self) -> None:
        """There is something new to perceive."""
        self._changed.set()

    def _run(self) -> None:
        yield_to_fusion()
        try:
            self._warm_up(self._stopping.is_set)
        except WarmUpStoppedError:
            return
        except Exception:  # perceiving will say the same, about something that was seen
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
            except TookTooLongError:  # the watchdog has told of it; the next frame gives another chance
                continue
            except Exception:  # reported; the next frame gives another chance
                self._health.count("internal_errors")
                trace = traceback.format_exc()
                message = f"internal error while perceiving: {trace.strip().splitlines()[-1]}"
                self._health.problem("node", ERROR, message, "perception", hold_s=30.0)
                self._log.error("internal error", trace)
                self._stopping.wait(1.0)

    def _perceive(self) -> None:
        if self._perceptron.place_estimate is not None:
            return  # nothing of the map is anywhere yet
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
            self._health.problem("map", level, message, f"perception {number}", hold_s=_TOLD_S)
        for fault in faults:
            if fault not in self._told_faults:
                self._told_faults.add(fault)
                self._log.error(f"device {fault}", fault)
        if perception.source is not None:
            self._check_depth(perception.source.frame)
        self._latest = perception
        self._publish(perception, self._new_listeners())

    def _check_depth(self, frame: RgbdFrame) -> None:
        """Tell of a unit that cannot be right: the map stays empty then, and nothing else would say why."""
        wrong = [f for f in check_depth([frame.depth_m]) if f.check == "depth unit" and f.severity == Severity.ERROR]
        if not wrong:
            self._health.clear_problem("frames", f"depth of {frame.camera}")
            return
        self._health.count("frames_with_implausible_depth")
        message = f"camera {frame.camera!r}: {wrong[0].message}: {wrong[0].remedy}"
        self._health.problem("frames", ERROR, message, f"depth of {frame.camera}")
        self._log.error(f"depth of {frame.camera}", message, every_s=_TOLD_S)

    def _serve_listeners(self) -> None:
        if self._latest is None:
            return
        if self._new_listeners():
            self._publish(self._latest, True)
        else:
            self._publish_held(self._latest)
