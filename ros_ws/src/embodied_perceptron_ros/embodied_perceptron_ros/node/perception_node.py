"""The lifecycle node ``/perception``: wires inputs, workers, outputs, queries and services; computes nothing itself.

Threads: the executor takes messages and hands them over; ``fusion`` owns the map; ``perception`` works on snapshots;
``queries`` answers; ``language`` reads the text encoder and ends. configure builds map and workers, activate opens the
ears and mouths, deactivate closes them and keeps the map, cleanup frees everything.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import rclpy
import torch
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType, JumpThreshold, TimeJump
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Perception
from embodied_perceptron_ros.node.corrections import KeyframeCorrections
from embodied_perceptron_ros.node.fusion_worker import FusionWorker
from embodied_perceptron_ros.node.grounding import GroundingInterface
from embodied_perceptron_ros.node.health import FrameCounts, Health
from embodied_perceptron_ros.node.inputs import CameraSubscriptions, Inbox
from embodied_perceptron_ros.node.outputs import LiveViewer, Outputs
from embodied_perceptron_ros.node.parameters import (
    NodeParameters,
    apply_change,
    check_change,
    declare_parameters,
    read_parameters,
)
from embodied_perceptron_ros.node.perception_worker import PerceptionWorker
from embodied_perceptron_ros.node.services import MapServices
from embodied_perceptron_ros.node.transforms import TransformSource, make_transform_source
from embodied_perceptron_ros.node.warm_up import LanguagePreparation, WarmUpStoppedError, warm_up
from embodied_perceptron_ros.players.processes import ros_environment

_SWITCH_INTERVAL_S = 0.0005
_FAREWELL_S = 0.1
_SUCCESS, _FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE


class PerceptionNode(LifecycleNode):
    """See the module's docstring; parameters are declared in :mod:`embodied_perceptron_ros.node.parameters`."""

    def __init__(self, node_name: str = "perception", stop: threading.Event | None = None, **node_options: Any) -> None:
        """``stop``: set, by any thread or signal, when the process shall end; a configuration then gives up."""
        super().__init__(node_name, **node_options)
        self._ending = threading.Event() if stop is None else stop
        self.health = Health(node_name)
        self._parameters_now: NodeParameters | None = None
        self._state = "unconfigured"
        self._map: _ConfiguredMap | None = None
        self._live: _LiveParts | None = None
        declare_parameters(self)
        self.add_on_set_parameters_callback(self._on_set_parameters)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # steady: a simulation that stands still is just what diagnostics have to tell
        period_s = 1.0 / self.get_parameter("diagnostics_hz").value
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self.create_timer(period_s, self._publish_diagnostics, clock=self._steady)
        backwards = JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False)
        self._jump_handle = self.get_clock().create_jump_callback(backwards, post_callback=self._on_clock_jump)

    @property
    def parameters(self) -> NodeParameters:
        """Checked parameters; only once configured."""
        assert self._parameters_now is not None, "the node is not configured"
        return self._parameters_now

    # ---- lifecycle

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Read parameters, build map, workers, publishers and services. Fails by name, and stays unconfigured."""
        try:
            self._parameters_now = read_parameters(self)
            perceptron = Perceptron.from_config(self.parameters.config)
            warm_up(self.parameters.config, perceptron.inference, self._ending.is_set)
            self._map = _ConfiguredMap(self, perceptron)
            if perceptron.inference is None:
                self.get_logger().info("no network (weights): boxes have no class")
        except WarmUpStoppedError as stopped:
            self._free()
            self.get_logger().info(f"configuration given up: {stopped}")
            return _FAILURE
        except Exception as error:
            self._free()
            self.get_logger().error(f"configuration failed: {type(error).__name__}: {error}")
            self.get_logger().debug(traceback.format_exc())
            return _FAILURE
        self._state = "inactive"
        return super().on_configure(state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open the ears: cameras and queries; begin perceiving."""
        assert self._map is not None
        result = super().on_activate(state)  # publishers first, so that nothing early is lost
        try:
            self._live = _LiveParts(self, self._map)
        except Exception as error:
            self.get_logger().error(f"activation failed: {type(error).__name__}: {error}\n{traceback.format_exc()}")
            super().on_deactivate(state)
            return _FAILURE
        self._state = "active"
        self.get_logger().info("active")
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop listening and give the accelerator's memory back; the map stays."""
        self.stop_listening()
        if self._map is not None:
            self._map.perceptron.release_accelerator()
        self._state = "inactive"
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything."""
        self._free()
        self._state = "unconfigured"
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything for good."""
        self._free()
        self._state = "finalized"
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """After an exception in a transition: back to unconfigured, with nothing left behind."""
        self._free()
        self._state = "unconfigured"
        super().on_error(state)
        return _SUCCESS

    def autostart(self) -> bool:
        """Configure and activate; False when either failed (the log says why)."""
        return self.trigger_configure() == _SUCCESS and self.trigger_activate() == _SUCCESS

    def close(self) -> None:
        """Stop all threads and free everything, whatever the state."""
        self._free()

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

    # ---- time, parameters, diagnostics

    def now_ns(self) -> int:
        """For waiting: simulation time where it is used, otherwise a clock that nobody sets."""
        if self.get_clock().ros_time_is_active:
            return int(self.get_clock().now().nanoseconds)
        return time.monotonic_ns()

    def _on_clock_jump(self, jump: TimeJump) -> None:
        self.get_logger().warning(f"the clock went back by {-jump.delta.nanoseconds / 1e9:.3f} s")
        if self._map is not None:
            self._map.transforms.clear()
            self._map.fusion.wake()

    def _on_set_parameters(self, changes: list[Parameter[Any]]) -> SetParametersResult:
        result = check_change(changes, configured=self._map is not None)
        if result.successful and self._map is not None:
            self._parameters_now = apply_change(self.parameters, changes)
        return result

    def _publish_diagnostics(self) -> None:
        counts, areas = FrameCounts(), {}
        if self._map is not None:
            counts, areas = self._map.fusion.counts, self._map.diagnostics()
        now_ns = self.get_clock().now().nanoseconds
        self._diagnostics.publish(self.health.diagnostics(now_ns, self._state, counts, areas))


class _ConfiguredMap:
    """What lives from configure to cleanup: the map, its thread, publishers, services, transforms.

    Whatever was built is freed again when a later part cannot be built.
    """

    def __init__(self, node: PerceptionNode, perceptron: Perceptron) -> None:
        parameters = node.parameters
        self.inbox = Inbox(on_arrival=lambda: self.fusion.wake())
        self.perceptron = perceptron
        if parameters.map_file:
            self.perceptron.load(parameters.map_file)
        self.on_map_replaced: Callable[[], None] = lambda: None
        with ExitStack() as parts:
            self.transforms: TransformSource = make_transform_source(
                node,
                lambda: self.fusion.transforms_changed(),
                max_gap_s=parameters.config.assembler.max_pose_gap_s,
            )
            parts.callback(self.transforms.close)
            self.fusion = self._make_fusion(node)
            camera_frame = self.fusion.camera_frame
            self.outputs = Outputs(node, self.transforms, node.health, lambda: node.parameters, camera_frame)
            parts.callback(self.outputs.close)
            self.services = MapServices(
                node,
                self.perceptron,
                self.transforms,
                parameters.fusion_frame,
                lambda: self.on_map_replaced(),
            )
            parts.callback(self.services.close)
            self.grounding = GroundingInterface(
                node, self.perceptron, self.transforms, node.health, lambda: node.parameters, camera_frame
            )
            parts.callback(self.grounding.destroy)
            self.fusion.start()
            parts.callback(self.fusion.stop)
            self._parts = parts.pop_all()

    def _make_fusion(self, node: PerceptionNode) -> FusionWorker:
        parameters = node.parameters
        return FusionWorker(
            self.perceptron,
            self.inbox,
            self.transforms,
            node.health,
            node.get_logger(),
            assembler_config=parameters.config.assembler,
            fusion_frame=parameters.fusion_frame,
            rectified={camera.name: camera.rectified for camera in parameters.cameras},
            now_ns=node.now_ns,
            max_backlog=lambda: node.parameters.max_backlog,
            reset_on_time_jump=lambda: node.parameters.on_time_jump == "reset",
            inf_is_unknown=[camera.name for camera in parameters.cameras if camera.inf_depth == "unknown"],
        )

    def diagnostics(self) -> dict[str, dict[str, Any]]:
        """Values by area."""
        refused = {f"refused.{link}": count for link, count in self.transforms.refused.items()}
        transforms = {"source": type(self.transforms).__name__, "time_restarts": self.transforms.restarts, **refused}
        return {"map": self.fusion.map_statistics, "transforms": transforms, "queries": self.grounding.status}

    def close(self) -> None:
        """Stop the thread, then free the rest in reverse order."""
        self._parts.close()


class _LiveParts:
    """What lives from activate to deactivate: camera subscriptions, perception thread, queries, corrections, viewer,
    and the reading of the text encoder."""

    def __init__(self, node: PerceptionNode, configured: _ConfiguredMap) -> None:
        self._configured = configured
        self._viewer: LiveViewer | None = None
        perception = PerceptionWorker(
            configured.perceptron,
            node.health,
            node.get_logger(),
            publish=self._publish,
            publish_held=configured.outputs.publish_held,
            new_listeners=configured.outputs.new_listeners,
            rate_hz=lambda: node.parameters.perception_hz,
        )
        language = LanguagePreparation(configured.perceptron, node.get_logger())
        with ExitStack() as parts:
            parts.callback(language.stop)
            if node.parameters.viewer:
                self._viewer = LiveViewer(node.parameters.viewer_file, node.get_logger())
                parts.callback(self._viewer.close)
            configured.grounding.open(None if self._viewer is None else self._viewer.answer)
            parts.callback(configured.grounding.close)
            perception.start()
            parts.callback(perception.stop)
            configured.fusion.on_fused = configured.on_map_replaced = perception.map_changed
            parts.callback(self._disconnect)
            if node.parameters.keyframe_path_topic:
                parts.callback(self._correct_keyframes(node, perception.map_changed).close)
            cameras = CameraSubscriptions(node, node.parameters.cameras, configured.inbox, node.health)
            parts.callback(cameras.close)
            language.start()
            self._parts = parts.pop_all()

    def _correct_keyframes(self, node: PerceptionNode, on_corrected: Callable[[], None]) -> KeyframeCorrections:
        return KeyframeCorrections(
            node,
            self._configured.perceptron,
            self._configured.transforms,
            node.health,
            topic=node.parameters.keyframe_path_topic,
            child_frame=node.parameters.keyframe_path_child,
            fusion_frame=node.parameters.fusion_frame,
            camera_frame=self._configured.fusion.camera_frame,
            on_corrected=on_corrected,
        )

    def _disconnect(self) -> None:
        self._configured.fusion.on_fused = self._configured.on_map_replaced = lambda: None

    def _publish(self, perception: Perception, everything: bool) -> None:
        self._configured.outputs.publish(perception, everything)
        self._configured.grounding.map_changed()
        if self._viewer is not None:
            self._viewer.show(perception)

    def close(self) -> None:
        """Ears first, then the rest in reverse order."""
        self._parts.close()


# --------------------------------------------------------------------------------------------------------------------
# entry point


def main(args: list[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; exit code 0 then, 1 when it could not start."""
    # Perceiving is long stretches of Python: at the default of 5 ms a message would wait several times that long
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    if not os.environ.get("OMP_NUM_THREADS"):  # one core stays free for fusion, whatever the network does
        torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))
    os.environ.update(ros_environment())
    # Our own handlers: with rclpy's the context is gone before waiting queries can be answered.
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        node = PerceptionNode(stop=stop)
    except Exception as error:  # a parameter of the wrong type or out of range
        print(f"perception cannot start: {type(error).__name__}: {error}", file=sys.stderr)
        rclpy.try_shutdown()
        return 1
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    spinning = threading.Thread(target=_spin, args=(executor, node, stop), name="executor", daemon=True)
    exit_code = 0
    try:
        if node.get_parameter("autostart").value and not node.autostart():
            exit_code = 0 if stop.is_set() else 1
            stop.set()
        spinning.start()
        while not stop.wait(0.5):
            pass
        _run_in_executor(executor, node.stop_listening, timeout_s=10.0)
    finally:
        executor.shutdown()
        if spinning.is_alive():
            spinning.join(timeout=5.0)
        node.close()
        node.destroy_node()
        rclpy.try_shutdown()
    return exit_code


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


def _spin(executor: SingleThreadedExecutor, node: PerceptionNode, stop: threading.Event) -> None:
    """Spin on after an exception in a callback: one bad message must not end the node."""
    while not stop.is_set():
        try:
            executor.spin()
            return
        except ExternalShutdownException:
            stop.set()
        except Exception:
            node.health.count("internal_errors")
            node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}")


if __name__ == "__main__":
    sys.exit(main())
