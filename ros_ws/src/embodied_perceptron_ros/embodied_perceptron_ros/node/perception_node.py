"""The lifecycle node ``/perception``: parameters, transitions, diagnostics.

Threads: the executor receives messages and answers services; ``lifecycle`` configures, which may compile for half a
minute; ``fusion`` owns the map; ``perception`` works on snapshots; ``queries`` answers; ``language`` loads the text
encoder. configure builds map and workers (:mod:`embodied_perceptron_ros.node.wiring`), activate creates subscriptions,
deactivate destroys them and keeps the map, cleanup frees everything.

Heavy imports happen in the configuration, so that the node answers a second after its start.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from rcl_interfaces.msg import SetParametersResult
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType, JumpThreshold, TimeJump
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions

from embodied_perceptron_ros.environment import RosStartError, ros_environment, start_ros
from embodied_perceptron_ros.node.health import ERROR, OK, WARN, FrameCounts, Health, ThrottledLog
from embodied_perceptron_ros.node.parameters import (
    NodeParameters,
    ParameterError,
    ReadBack,
    apply_change,
    check_change,
    declare_parameters,
    effective_values,
    read_parameters,
    unused_overrides,
)
from embodied_perceptron_ros.node.threads import BackgroundThread, GivenUpError, await_in_executor, run_in_executor

if TYPE_CHECKING:
    from embodied_perceptron_ros.node.inputs import Silence
    from embodied_perceptron_ros.node.wiring import ConfiguredMap, LiveParts

T = TypeVar("T")
ClockChange = rclpy_implementation.ClockChange
_SWITCH_INTERVAL_S = 0.0005
_CHECK_S = 0.2  # between two checks of the main thread
_LAST_ANSWERS_S = 0.1  # for answers that stopping set free
_GIVE_UP_S = 1.0  # for the running callback when a configuration is given up
_PROGRESS_S = 0.25  # between diagnostics while the node starts
_STARTING_S = 3.0  # after the start, diagnostics are frequent in any state
_SILENCE_LOGGED_S = 30.0  # between two log lines about one silent input
_DUPLICATES_S = 5.0  # between two searches for nodes of the same name
_CLOCK_CHANGES = (ClockChange.ROS_TIME_ACTIVATED, ClockChange.ROS_TIME_DEACTIVATED)
_SUCCESS, _FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE


class WaitingClock:
    """Monotonic time for waiting: simulation time if it is used, else the steady clock. A change of the source does not
    change the value. Not thread-safe."""

    def __init__(self, clock: Any, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._monotonic_ns = monotonic_ns
        self._simulated: bool | None = None
        self._shift_ns = 0
        self._last_ns = 0

    def now_ns(self) -> int:
        """Nanoseconds; only differences have a meaning."""
        simulated = bool(self._clock.ros_time_is_active)
        here_ns = int(self._clock.now().nanoseconds) if simulated else self._monotonic_ns()
        if simulated != self._simulated:
            self._shift_ns = 0 if self._simulated is None else self._last_ns - here_ns
            self._simulated = simulated
        elif simulated and self._last_ns == self._shift_ns and here_ns > 0:  # it is 0 until the first /clock message
            self._shift_ns = self._last_ns - here_ns
        self._last_ns = here_ns + self._shift_ns
        return self._last_ns


class PerceptionNode(LifecycleNode):
    """See the module's docstring; parameters are declared in :mod:`embodied_perceptron_ros.node.parameters`.

    ``stop``: set by any thread or signal to end the process; a running configuration then gives up.
    """

    def __init__(self, node_name: str = "perception", stop: threading.Event | None = None, **node_options: Any) -> None:
        super().__init__(node_name, **node_options)
        self._ending = threading.Event() if stop is None else stop
        self.health = Health(self.get_fully_qualified_name().lstrip("/"))
        self._transitions = BackgroundThread("lifecycle")
        # rclpy creates this service with a callback that blocks the executor until the transition ends
        self._change_state_now = self._service_change_state.callback
        self._service_change_state.callback = self._change_state
        self._service_change_state.callback_group = ReentrantCallbackGroup()
        self._service_change_state.callback_group.add_entity(self._service_change_state)
        self._parameters_now: NodeParameters | None = None
        self._state = "unconfigured"
        self.log = ThrottledLog(self.get_logger())
        self._map: ConfiguredMap | None = None
        self._live: LiveParts | None = None
        declare_parameters(self)
        self._read_back = ReadBack(self)
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # steady: diagnostics must also report a simulation that stands still
        period_s = 1.0 / self.get_parameter("diagnostics_hz").value
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self.create_timer(period_s, self._publish_diagnostics, clock=self._steady)
        self._started_s = time.monotonic()
        self._searched_s = float("-inf")
        self._progress_timer = self.create_timer(_PROGRESS_S, self._publish_progress, clock=self._steady)
        self._waiting_clock = WaitingClock(self.get_clock())
        backwards = JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False)
        self._jump_handle = self.get_clock().create_jump_callback(backwards, post_callback=self._on_clock_jump)

    @property
    def parameters(self) -> NodeParameters:
        """Checked parameters; after configuration only."""
        assert self._parameters_now is not None, "the node is not configured"
        return self._parameters_now

    # ---- lifecycle

    async def _change_state(self, request: Any, response: Any) -> Any:
        """Answer ``~/change_state``; configure in another thread, so that the executor stays free."""
        configure = (request.transition.id, request.transition.label)
        if configure[0] != Transition.TRANSITION_CONFIGURE and configure[1] != "configure":
            return self._transition(request, response)
        done = self._transitions.submit(lambda: self._transition(request, response))
        await await_in_executor(self, done)
        return done.result()

    def _transition(self, request: Any, response: Any) -> Any:
        """Refuse a transition that the present state does not have: in Jazzy rclpy raises, and nobody is answered."""
        try:
            return self._change_state_now(request, response)
        except RuntimeError as error:  # rclpy's errors; those of our callbacks end in its error state
            self.get_logger().error(f"transition {request.transition.id} refused in state {self._state!r}: {error}")
            response.success = False
            return response

    def _in_executor(self, job: Callable[[], T]) -> T:
        """Create and destroy entities in the executor's thread, which uses them."""
        if self._transitions.is_current:
            return run_in_executor(self, job, self._ending.is_set)
        return job()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read parameters, build map, workers, publishers and services. On an error, log it and stay unconfigured."""
        self._state, started_s = "configuring", time.monotonic()
        self._progress_timer.reset()
        try:
            self._parameters_now = self._in_executor(lambda: read_parameters(self))
            self._report("loading libraries")
            from embodied_perceptron_ros.node.wiring import ConfiguredMap, prepare

            values = self.parameters
            perceptron, is_warm = prepare(
                values.config, values.map_file, self._ending.is_set, self._report, values.find_place
            )
            self._map = self._in_executor(lambda: ConfiguredMap(self, perceptron, is_warm))
            self._in_executor(lambda: self._read_back.show(effective_values(self.parameters)))
            if perceptron.inference is None:
                self.get_logger().info("no network (weights): boxes have no class")
        except GivenUpError as stopped:
            self._unconfigured()
            self.get_logger().info(f"configuration given up: {stopped}")
            return _FAILURE
        except Exception as error:
            self._unconfigured()
            self.get_logger().error(f"configuration failed: {type(error).__name__}: {error}")
            self.get_logger().debug(traceback.format_exc())
            return _FAILURE
        self.health.clear_problem("node", "configuring")
        self._state = "inactive"
        self.get_logger().info(f"configured in {time.monotonic() - started_s:.1f} s")
        return super().on_configure(state)

    def _unconfigured(self) -> None:
        self._free()
        self.health.clear_problem("node", "configuring")
        self._state = "unconfigured"

    def _report(self, doing: str) -> None:
        """Report the configuration's progress by diagnostics and log."""
        self.health.problem("node", OK, f"configuring: {doing}", "configuring")
        self.log.info("configuring", f"configuring: {doing}")

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Subscribe to cameras and queries; start perceiving."""
        from embodied_perceptron_ros.node.wiring import LiveParts

        assert self._map is not None
        result = super().on_activate(state)  # publishers first, so that nothing early is lost
        try:
            self._live = LiveParts(self, self._map)
        except Exception as error:
            self.get_logger().error(f"activation failed: {type(error).__name__}: {error}\n{traceback.format_exc()}")
            super().on_deactivate(state)
            return _FAILURE
        self._state = "active"
        for name in unused_overrides(self):
            self.get_logger().warning(f"{name} has no effect: there is no such topic, or its QoS is fixed")
        self.get_logger().info("active")
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Destroy subscriptions and free the accelerator's memory; keep the map."""
        self.stop_listening()
        if self._map is not None:
            self._map.perceptron.release_accelerator()
        self._state = "inactive"
        self.get_logger().info("inactive: the map is kept")
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything."""
        self._free()
        self._state = "unconfigured"
        self.get_logger().info("cleaned up: the map is deleted")
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything; the node cannot be configured again."""
        self._free()
        self._state = "finalized"
        self.get_logger().info("shut down")
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything after an exception in a transition; the node becomes unconfigured."""
        self._free()
        self._state = "unconfigured"
        super().on_error(state)
        return _SUCCESS

    def autostart(self) -> ThreadFuture[bool]:
        """Configure and activate in another thread while the caller's executor spins; the result is False when either
        failed (see the log)."""

        def start() -> bool:
            if self.trigger_configure() != _SUCCESS:
                return False
            try:
                return self._in_executor(self.trigger_activate) == _SUCCESS
            except GivenUpError:
                return False

        return self._transitions.submit(start)

    @property
    def is_ending(self) -> bool:
        """Whether the process is ending."""
        return self._ending.is_set()

    @property
    def is_active(self) -> bool:
        """Whether the node is active."""
        return self._state == "active"

    @property
    def is_configuring(self) -> bool:
        """Whether a configuration is running."""
        return self._transitions.is_busy

    def close(self) -> None:
        """Stop all threads and free everything, in any state."""
        self._free()

    def destroy_node(self) -> None:
        """Destroy the state machine too, which rclpy does not: it would keep the DDS participant alive, and
        :func:`leave` would leak its shared memory, tens of megabytes at every start."""
        super().destroy_node()
        self._state_machine.destroy_when_not_in_use()

    def stop_listening(self) -> None:
        """Destroy subscriptions; answer waiting queries."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _free(self) -> None:
        self.stop_listening()
        if self._map is not None:
            self._map.close()
            self._map = None
        if not self.is_ending:
            self._read_back.restore()

    # ---- time, parameters, diagnostics

    def now_ns(self) -> int:
        """Time for waiting; from the fusion thread only."""
        return self._waiting_clock.now_ns()

    def _on_clock_jump(self, jump: TimeJump) -> None:
        if jump.clock_change in _CLOCK_CHANGES:  # use_sim_time was set; the sensors' time did not change
            self.get_logger().info(f"use_sim_time is {self.get_clock().ros_time_is_active}")
            return
        self.get_logger().warning(f"the clock went back by {-jump.delta.nanoseconds / 1e9:.3f} s")
        if self._map is not None:
            self._map.transforms.clear()
            self._map.inbox.wake()

    def _on_set_parameters(self, changes: list[Parameter[Any]]) -> SetParametersResult:
        if self._read_back.is_writing:
            return SetParametersResult(successful=True)
        # a dump of all parameters may be restored at any time: only changed values are checked
        changes = [c for c in changes if not self.has_parameter(c.name) or self.get_parameter(c.name).value != c.value]
        result = check_change(changes, configured=self._map is not None)
        if result.successful:
            self._read_back.changed(changes)
        if result.successful and self._map is not None:
            self._parameters_now = apply_change(self.parameters, changes)
        return result

    def _publish_diagnostics(self) -> None:
        counts, areas = FrameCounts(), {}
        if self._map is not None:
            counts, areas = self._map.inbox.counts, self._map.diagnostics()
        if self._live is not None:
            self._live.cameras.subscribe_latched()
            self._report_silence(self._live.cameras.silence)
            self._live.optional.report()
            areas["frames"] = self._live.cameras.silence.ages()
        self._check_duplicates()
        now_ns = self.get_clock().now().nanoseconds
        self._diagnostics.publish(self.health.diagnostics(now_ns, self._state, counts, areas))

    def _report_silence(self, silence: Silence) -> None:
        missing = silence.silent()
        if not missing:
            self.health.clear_problem("frames", "silence")
            return
        self.health.problem("frames", WARN, "; ".join(missing), "silence")
        for message in missing:
            self.log.warning(message.partition(" for ")[0].partition(" since ")[0], message, every_s=_SILENCE_LOGGED_S)

    def _check_duplicates(self) -> None:
        """Report nodes of the same name: they answer each other's services."""
        now_s = time.monotonic()
        if now_s - self._searched_s < _DUPLICATES_S:
            return
        self._searched_s = now_s
        own = self.get_name(), self.get_namespace()
        count = sum((name, namespace) == own for name, namespace in self.get_node_names_and_namespaces())
        if count < 2:
            self.health.clear_problem("node", "duplicates")
            return
        message = (
            f"there are {count} nodes {self.get_fully_qualified_name()}: services and parameters reach any of them; "
            "give each its namespace"
        )
        self.health.problem("node", ERROR, message, "duplicates")
        self.log.error("duplicates", message, every_s=_SILENCE_LOGGED_S)

    def _publish_progress(self) -> None:
        """Publish diagnostics more often than ``diagnostics_hz`` while the node starts or configures."""
        if self._state == "configuring" or time.monotonic() - self._started_s < _STARTING_S:
            self._publish_diagnostics()
        else:
            self._progress_timer.cancel()


# --------------------------------------------------------------------------------------------------------------------
# entry point


def main(args: list[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; return exit code 0, or 1 if it could not start.

    Threads may still run, such as one that compiles: end the process with :func:`leave`.
    """
    # With the default of 5 ms a message would wait for several turns of the perception thread
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stop = threading.Event()
    signals: list[int] = []  # a handler may interrupt itself: it sets no event, whose lock it could hold already
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    if not os.environ.get("OMP_NUM_THREADS"):  # keep one core free for fusion while the network runs
        os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 2) - 1))
    os.environ.update(ros_environment())
    try:
        # Our own signal handlers: rclpy's shut the context down before waiting queries can be answered
        start_ros(args=args, signal_handler_options=SignalHandlerOptions.NO)
        node = PerceptionNode(stop=stop)
    except Exception as error:  # a parameter is unknown, of the wrong type or out of range, or ROS cannot start
        kind = "" if isinstance(error, (ParameterError, RosStartError)) else f"{type(error).__name__}: "
        print(f"perception cannot start: {kind}{error}", file=sys.stderr)
        rclpy.try_shutdown()
        return 1
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    ended = threading.Event()
    spinning = threading.Thread(target=_spin, args=(executor, node, stop, ended), name="executor", daemon=True)
    spinning.start()

    def end_spinning(timeout_s: float) -> bool:
        executor.create_task(ended.set)
        spinning.join(timeout=timeout_s)
        return not spinning.is_alive()

    started = node.autostart() if node.get_parameter("autostart").value else None
    failed = frozen = False
    while not (signals or stop.wait(_CHECK_S)):
        if node.is_active != frozen:
            frozen = node.is_active
            _keep_from_collections(frozen)
        failed = started is not None and started.done() and not started.result()
        if failed:
            stop.set()
    stop.set()
    exit_code = 1 if failed else 0
    # Shutting down destroys what callbacks use: only if none is running; otherwise leave() ends them
    if node.is_configuring:
        node.get_logger().info("configuration given up: the node was asked to stop")
        if end_spinning(_GIVE_UP_S):
            node.destroy_node()
            rclpy.try_shutdown()
        return exit_code
    try:
        _run_in_executor(executor, node.stop_listening, timeout_s=10.0)
    finally:
        end_spinning(5.0)
        executor.shutdown()
        node.close()
        node.destroy_node()
        rclpy.try_shutdown()
    return exit_code


def _keep_from_collections(loaded: bool) -> None:
    """Exclude loaded objects from garbage collection, which would take 0.2 s; include them again when inactive."""
    if loaded:
        gc.collect()
        gc.freeze()
    else:
        gc.unfreeze()


def leave(exit_code: int) -> NoReturn:
    """End the process with its daemon threads. Nothing is lost: compiled kernels are written as whole files."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _run_in_executor(executor: SingleThreadedExecutor, job: Callable[[], None], timeout_s: float) -> None:
    """Run ``job`` in the executor's thread, then wait a moment for the answers that it caused."""
    done = threading.Event()

    def run() -> None:
        try:
            job()
        finally:
            done.set()

    executor.create_task(run)
    if done.wait(timeout_s):
        time.sleep(_LAST_ANSWERS_S)


def _spin(
    executor: SingleThreadedExecutor, node: PerceptionNode, stop: threading.Event, ended: threading.Event
) -> None:
    """Spin until a task of the executor sets ``ended``. Continue after an exception in a callback: a bad message must
    not end the node."""
    while not ended.is_set():
        try:
            executor.spin_once()
        except ExternalShutdownException:
            stop.set()
            return
        except Exception:
            node.health.count("internal_errors")
            node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}")


if __name__ == "__main__":
    leave(main())
