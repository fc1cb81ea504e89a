"""The lifecycle node ``/perception``: parameters, transitions, diagnostics; computes nothing itself.

Threads: the executor takes messages and hands them over, and answers whatever the others do; ``lifecycle`` configures,
which is half a minute of compiling at worst; ``fusion`` owns the map; ``perception`` works on snapshots; ``queries``
answers; ``language`` reads the text encoder and ends. configure builds map and workers
(:mod:`embodied_perceptron_ros.node.wiring`), activate opens the ears and mouths, deactivate closes them and keeps the
map, cleanup frees everything.

What is heavy is imported by the configuration, so that the node is there a second after its start.
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

from embodied_perceptron_ros.node.health import ERROR, OK, WARN, FrameCounts, Health
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
from embodied_perceptron_ros.node.throttled_log import ThrottledLog
from embodied_perceptron_ros.players.processes import ros_environment

if TYPE_CHECKING:
    from embodied_perceptron_ros.node.inputs import Silence
    from embodied_perceptron_ros.node.wiring import ConfiguredMap, LiveParts

T = TypeVar("T")
ClockChange = rclpy_implementation.ClockChange
_SWITCH_INTERVAL_S = 0.0005
_LOOK_S = 0.2
_FAREWELL_S = 0.1
_GIVE_UP_S = 1.0  # for the callback at work when a configuration is given up
_PROGRESS_S = 0.25  # between diagnostics while the node starts
_STARTING_S = 3.0  # so long after the start they are frequent in any state
_SILENCE_LOGGED_S = 30.0  # between two log lines of one silent input
_NAMESAKES_S = 5.0  # between two looks for nodes of the same name
_CLOCK_CHANGES = (ClockChange.ROS_TIME_ACTIVATED, ClockChange.ROS_TIME_DEACTIVATED)
_SUCCESS, _FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE


class WaitingClock:
    """Bounds waiting: simulation time where it is used, otherwise a clock that nobody sets. It goes on where one takes
    the other's place: how long something has waited says nothing about what time it is. From one thread."""

    def __init__(self, clock: Any, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._monotonic_ns = monotonic_ns
        self._simulated: bool | None = None
        self._shift_ns = 0
        self._last_ns = 0

    def now_ns(self) -> int:
        """Nanoseconds; differences count."""
        simulated = bool(self._clock.ros_time_is_active)
        here_ns = int(self._clock.now().nanoseconds) if simulated else self._monotonic_ns()
        if simulated != self._simulated:
            self._shift_ns = 0 if self._simulated is None else self._last_ns - here_ns
            self._simulated = simulated
        elif simulated and self._is_first_time(here_ns):
            self._shift_ns = self._last_ns - here_ns
        self._last_ns = here_ns + self._shift_ns
        return self._last_ns

    def _is_first_time(self, here_ns: int) -> bool:
        """Simulation time is 0 until /clock is heard."""
        return self._last_ns == self._shift_ns and here_ns > 0


class PerceptionNode(LifecycleNode):
    """See the module's docstring; parameters are declared in :mod:`embodied_perceptron_ros.node.parameters`."""

    def __init__(self, node_name: str = "perception", stop: threading.Event | None = None, **node_options: Any) -> None:
        """``stop``: set, by any thread or signal, when the process shall end; a configuration then gives up."""
        super().__init__(node_name, **node_options)
        self._ending = threading.Event() if stop is None else stop
        self.health = Health(self.get_fully_qualified_name().lstrip("/"))
        self._transitions = BackgroundThread("lifecycle")
        # rclpy makes this service itself, with a callback that keeps the executor until the transition is over, in the
        # group of everything else
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
        # steady: a simulation that stands still is just what diagnostics have to tell
        period_s = 1.0 / self.get_parameter("diagnostics_hz").value
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self.create_timer(period_s, self._publish_diagnostics, clock=self._steady)
        self._started_s = time.monotonic()
        self._looked_s = float("-inf")
        self._progress_timer = self.create_timer(_PROGRESS_S, self._publish_progress, clock=self._steady)
        self._waiting_clock = WaitingClock(self.get_clock())
        backwards = JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False)
        self._jump_handle = self.get_clock().create_jump_callback(backwards, post_callback=self._on_clock_jump)

    @property
    def parameters(self) -> NodeParameters:
        """Checked parameters; only once configured."""
        assert self._parameters_now is not None, "the node is not configured"
        return self._parameters_now

    # ---- lifecycle

    async def _change_state(self, request: Any, response: Any) -> Any:
        """Answer ``~/change_state``: a configuration runs in its own thread, so that the executor goes on answering."""
        configure = (request.transition.id, request.transition.label)
        if configure[0] != Transition.TRANSITION_CONFIGURE and configure[1] != "configure":
            return self._change_state_now(request, response)
        done = self._transitions.submit(lambda: self._change_state_now(request, response))
        await await_in_executor(self, done)
        return done.result()

    def _in_executor(self, job: Callable[[], T]) -> T:
        """Entities change in the thread that looks at them."""
        if self._transitions.is_current:
            return run_in_executor(self, job, self._ending.is_set)
        return job()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read parameters, build map, workers, publishers and services. Fails by name, and stays unconfigured."""
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
        """Tell what the configuration is at, by diagnostics and now and then by the log."""
        self.health.problem("node", OK, f"configuring: {doing}", "configuring")
        self.log.info("configuring", f"configuring: {doing}")

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open the ears: cameras and queries; begin perceiving."""
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
        """Stop listening and give the accelerator's memory back; the map stays."""
        self.stop_listening()
        if self._map is not None:
            self._map.perceptron.release_accelerator()
        self._state = "inactive"
        self.get_logger().info("inactive: the map stays")
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything."""
        self._free()
        self._state = "unconfigured"
        self.get_logger().info("cleaned up: the map is gone")
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything for good."""
        self._free()
        self._state = "finalized"
        self.get_logger().info("shut down")
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After an exception in a transition: back to unconfigured, with nothing left behind."""
        self._free()
        self._state = "unconfigured"
        super().on_error(state)
        return _SUCCESS

    def autostart(self) -> ThreadFuture[bool]:
        """Configure and activate, in their own thread while another spins the node; False when either failed (the log
        says why)."""

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
        """Whether the process is about to end."""
        return self._ending.is_set()

    @property
    def is_active(self) -> bool:
        """Whether it listens and perceives."""
        return self._state == "active"

    @property
    def is_configuring(self) -> bool:
        """Whether a configuration is at work."""
        return self._transitions.is_busy

    def close(self) -> None:
        """Stop all threads and free everything, whatever the state."""
        self._free()

    def destroy_node(self) -> None:
        """With the state machine, which rclpy forgets: it would keep the DDS participant alive, and a process that ends
        by :func:`leave` would leave that one's shared memory behind, tens of megabytes at every start."""
        super().destroy_node()
        self._state_machine.destroy_when_not_in_use()

    def stop_listening(self) -> None:
        """Take nothing more; what waits is answered."""
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
        """For waiting; from the thread that fuses."""
        return self._waiting_clock.now_ns()

    def _on_clock_jump(self, jump: TimeJump) -> None:
        if jump.clock_change in _CLOCK_CHANGES:  # use_sim_time was set: another clock, no other time of the sensors
            self.get_logger().info(f"use_sim_time is {self.get_clock().ros_time_is_active}")
            return
        self.get_logger().warning(f"the clock went back by {-jump.delta.nanoseconds / 1e9:.3f} s")
        if self._map is not None:
            self._map.transforms.clear()
            self._map.inbox.wake()

    def _on_set_parameters(self, changes: list[Parameter[Any]]) -> SetParametersResult:
        if self._read_back.is_writing:
            return SetParametersResult(successful=True)
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
            self._live.cameras.look_for_latched()
            self._tell_of_silence(self._live.cameras.silence)
            areas["frames"] = self._live.cameras.silence.ages()
        self._look_for_namesakes()
        now_ns = self.get_clock().now().nanoseconds
        self._diagnostics.publish(self.health.diagnostics(now_ns, self._state, counts, areas))

    def _tell_of_silence(self, silence: Silence) -> None:
        missed = silence.silent()
        if not missed:
            self.health.clear_problem("frames", "silence")
            return
        self.health.problem("frames", WARN, "; ".join(missed), "silence")
        for words in missed:
            self.log.warning(words.partition(" for ")[0].partition(" since ")[0], words, every_s=_SILENCE_LOGGED_S)

    def _look_for_namesakes(self) -> None:
        """Two nodes of one name answer each other's services; nothing else would say so."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _NAMESAKES_S:
            return
        self._looked_s = now_s
        own = self.get_name(), self.get_namespace()
        count = sum((name, namespace) == own for name, namespace in self.get_node_names_and_namespaces())
        if count < 2:
            self.health.clear_problem("node", "namesakes")
            return
        words = f"there are {count} nodes {self.get_fully_qualified_name()}: services and parameters reach any of them"
        self.health.problem("node", ERROR, f"{words}; give each its namespace", "namesakes")
        self.log.error("namesakes", f"{words}; give each its namespace", every_s=_SILENCE_LOGGED_S)

    def _publish_progress(self) -> None:
        """More often than the diagnostics' own rate as long as there is progress to tell."""
        if self._state == "configuring" or time.monotonic() - self._started_s < _STARTING_S:
            self._publish_diagnostics()
        else:
            self._progress_timer.cancel()


# --------------------------------------------------------------------------------------------------------------------
# entry point


def main(args: list[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; exit code 0 then, 1 when it could not start.

    Threads may be left that cannot be told to end, such as one that compiles: :func:`leave` with the exit code.
    """
    # Perceiving is long stretches of Python: at the default of 5 ms a message would wait several times that long
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if not os.environ.get("OMP_NUM_THREADS"):  # one core stays free for fusion, whatever the network does
        os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 2) - 1))
    os.environ.update(ros_environment())
    # Our own handlers: with rclpy's the context is gone before waiting queries can be answered.
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = PerceptionNode(stop=stop)
    except Exception as error:  # a parameter that is unknown, of the wrong type or out of range
        print(f"perception cannot start: {_reason(error)}", file=sys.stderr)
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
    while not stop.wait(_LOOK_S):
        if node.is_active != frozen:
            frozen = node.is_active
            _keep_from_collections(frozen)
        failed = started is not None and started.done() and not started.result()
        if failed:
            stop.set()
    exit_code = 1 if failed else 0
    # Shutting down destroys what callbacks use: only when none is at work, or else leave() ends them
    if node.is_configuring:
        node.get_logger().info("configuration given up: the node was asked to stop")
        if end_spinning(_GIVE_UP_S):  # nothing to save, and what is half built is nobody's yet
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
    """Leave what is loaded out of collections, which would walk over it for a fifth of a second; or, once the node is
    no longer active and may give it up, collect it again."""
    if loaded:
        gc.collect()
        gc.freeze()
    else:
        gc.unfreeze()


def _reason(error: Exception) -> str:
    """Checks of our own are sentences; of others the name of the exception says more."""
    return str(error) if isinstance(error, ParameterError) else f"{type(error).__name__}: {error}"


def leave(exit_code: int) -> NoReturn:
    """End at once, whatever daemons are still at. Nothing is lost: compiled kernels are kept as whole files."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _run_in_executor(executor: SingleThreadedExecutor, job: Callable[[], None], timeout_s: float) -> None:
    """Entities change in the thread that looks at them; then a moment for answers that this set free."""
    done = threading.Event()

    def run() -> None:
        try:
            job()
        finally:
            done.set()

    executor.create_task(run)
    if done.wait(timeout_s):
        time.sleep(_FAREWELL_S)


def _spin(
    executor: SingleThreadedExecutor, node: PerceptionNode, stop: threading.Event, ended: threading.Event
) -> None:
    """Spin until ``ended``, which a task of the executor sets; on after an exception in a callback: one bad message
    must not end the node."""
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
