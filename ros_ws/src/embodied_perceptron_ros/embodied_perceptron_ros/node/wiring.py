"""The node's parts: :class:`ConfiguredMap` from configure to cleanup, :class:`LiveParts` from activate to deactivate.

This module imports everything heavy (torch, the library); the node imports it when a configuration begins, so that it
answers before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.apps.warm_up import WarmUpStoppedError, is_compiled, warm_up
from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Perception
from embodied_perceptron.sensors.poses import CameraPoses
from embodied_perceptron_ros.node.corrections import KeyframeCorrections
from embodied_perceptron_ros.node.detections import DetectionInputs, lift_diagnostics
from embodied_perceptron_ros.node.health import ERROR, Heartbeat
from embodied_perceptron_ros.node.inputs import CameraSubscriptions, FrameInbox
from embodied_perceptron_ros.node.optional_inputs import OptionalInputs
from embodied_perceptron_ros.node.outputs import Outputs
from embodied_perceptron_ros.node.queries import GroundingInterface
from embodied_perceptron_ros.node.services import MapServices
from embodied_perceptron_ros.node.threads import BackgroundThread, GivenUpError, Watchdog
from embodied_perceptron_ros.node.transforms import MapFramePublisher, TransformSource, make_transform_source
from embodied_perceptron_ros.node.viewers import open_viewer
from embodied_perceptron_ros.node.workers import FusionWorker, PerceptionWorker

_CONFLICT_HOLD_S = 5.0  # how long diagnostics report conflicting transforms


def prepare(
    config: PerceptronConfig,
    map_file: str,
    stopped: Callable[[], bool],
    report: Callable[[str], None],
    find_place: bool = False,
) -> tuple[Perceptron, bool]:
    """Build the perceptron with its network and map, and compile everything: half a minute of work without ROS.

    Returns it, and whether the compiled code is loaded. If everything was compiled before, it is not: the perception
    thread loads it (:class:`LiveParts`) while frames are fused already.

    Args:
        config: of the perceptron.
        map_file: map to load; empty = none.
        stopped: return True to give up.
        report: receives what is being done.
        find_place: whether to search the robot's place in the map.

    Raises ``GivenUpError`` after ``stopped``, and as :meth:`Perceptron.from_config` and :meth:`Perceptron.load` do.
    """
    report("reading the network")
    perceptron = Perceptron.from_config(config)
    is_warm = not is_compiled(config)
    try:
        if is_warm:
            warm_up(config, perceptron.inference, stopped, lambda step, steps: report(f"compiling {step} of {steps}"))
    except WarmUpStoppedError as error:
        raise GivenUpError(str(error)) from None
    report("devices: " + ", ".join(f"{what} on {device}" for what, device in perceptron.devices.items()))
    if map_file:
        report(f"loading {map_file}")
        if reason := perceptron.load(map_file, find_place=find_place):
            report(reason)
    return perceptron, is_warm


class ConfiguredMap:
    """The map, its threads, publishers, services and transforms. If a part cannot be built, the others are freed.

    Args:
        node: the ``PerceptionNode``.
        perceptron: its map.
        is_warm: see :func:`prepare`.
    """

    def __init__(self, node: Any, perceptron: Perceptron, is_warm: bool) -> None:
        parameters = node.parameters
        self.is_warm = is_warm
        self._health = node.health
        self.perceptron = perceptron
        self.on_map_replaced: Callable[[], None] = lambda: None
        self.optional = OptionalInputs(node)  # of the present activation
        self._map_frame: MapFramePublisher | None = None
        self.watchdog = Watchdog(node.health, node.log)
        with ExitStack() as parts:
            parts.callback(self.watchdog.stop)
            self.transforms: TransformSource = make_transform_source(
                node,
                lambda: self.inbox.transforms_changed(),
                max_gap_s=parameters.config.assembler.max_pose_gap_s,
            )
            parts.callback(self.transforms.close)
            self.inbox = FrameInbox(
                parameters.cameras,
                parameters.config.assembler,
                CameraPoses(self.transforms, parameters.fusion_frame),
                node.health,
                node.log,
                max_backlog=lambda: node.parameters.max_backlog,
            )
            self.fusion = FusionWorker(
                self.perceptron,
                self.inbox,
                self.watchdog,
                now_ns=node.now_ns,
                reset_on_time_jump=lambda: node.parameters.on_time_jump == "reset",
                on_placed=self._publish_map_frame,
            )
            camera_frame = self.inbox.camera_frame
            self.outputs = Outputs(node, self.transforms, node.health, lambda: node.parameters, camera_frame)
            parts.callback(self.outputs.close)
            self.services = MapServices(node, self.perceptron, self.transforms, self._map_replaced, self.watchdog)
            parts.callback(self.services.close)
            self.grounding = GroundingInterface(
                node, self.perceptron, self.transforms, lambda: node.parameters, camera_frame, self.watchdog
            )
            parts.callback(self.grounding.destroy)
            if parameters.map_frame:
                frames = parameters.map_frame, parameters.fusion_frame
                self._map_frame = MapFramePublisher(node, perceptron, *frames)
                parts.callback(self._map_frame.close)
                self._publish_map_frame()
            self.fusion.start()
            parts.callback(self.fusion.stop)
            self._parts = parts.pop_all()

    def _map_replaced(self) -> None:
        self._publish_map_frame()
        self.on_map_replaced()

    def _publish_map_frame(self) -> None:
        if self._map_frame is not None:
            self._map_frame.update()

    def diagnostics(self) -> dict[str, dict[str, Any]]:
        """Values by area."""
        refused = {f"refused.{link}": count for link, count in self.transforms.refused.items()}
        transforms = {"source": type(self.transforms).__name__, "time_restarts": self.transforms.restarts, **refused}
        for child, message in self.transforms.conflicts.items():
            self._health.problem("transforms", ERROR, message, f"conflict {child}", hold_s=_CONFLICT_HOLD_S)
        devices = {f"{what}_device": device for what, device in self.perceptron.devices.items()}
        areas = {
            "map": {**self.fusion.map_statistics, **devices, "kernels": "loaded" if self.is_warm else "loading"},
            "transforms": transforms,
            "queries": self.grounding.status,
        }
        lift = self.perceptron.lift
        return areas if lift is None else {**areas, "lift": lift_diagnostics(lift.statistics(), lift.busy_s)}

    def close(self) -> None:
        """Stop the fusion thread, then free the other parts in reverse order."""
        self._parts.close()


class LiveParts:
    """Camera subscriptions, perception thread, queries, corrections, viewer, and the loading of the text encoder."""

    def __init__(self, node: Any, configured: ConfiguredMap) -> None:
        self._configured = configured
        perceptron = configured.perceptron
        perception = PerceptionWorker(
            perceptron,
            configured.watchdog,
            publish=self._publish,
            publish_held=configured.outputs.publish_held,
            new_listeners=configured.outputs.new_listeners,
            has_moved=configured.outputs.has_moved,
            rate_hz=lambda: node.parameters.perception_hz,
        )
        configured.optional = self.optional = OptionalInputs(node)
        with ExitStack() as parts:
            parts.callback(self.optional.close)
            language = BackgroundThread("language")
            parts.callback(lambda: language.close(0.0 if node.is_ending else None))
            self._viewer = open_viewer(node, configured) if node.parameters.viewer else None
            if self._viewer is not None:
                parts.callback(self._viewer.close)
            configured.grounding.open(
                configured.outputs.send_event, None if self._viewer is None else self._viewer.answer
            )
            parts.callback(configured.grounding.close)
            perception.start(partial(self._warm_up, node.parameters.config))
            parts.callback(lambda: perception.stop(ending=node.is_ending))
            configured.fusion.on_fused = configured.on_map_replaced = perception.map_changed
            parts.callback(self._disconnect)
            if node.parameters.keyframe_path_topic:

                def on_corrected(motion: NDArray[np.float64]) -> None:
                    configured.grounding.move_viewpoints(motion)
                    perception.map_changed()

                parts.callback(KeyframeCorrections(node, configured, on_corrected).close)
            if perceptron.lift is not None:
                perceptron.lift.start()
                parts.callback(perceptron.lift.stop)
                if node.parameters.config.lift.from_topics:
                    parts.callback(DetectionInputs(node, configured).close)
            for camera in node.parameters.cameras:
                if camera.depth_info_topic:
                    what = f"calibration of depth of camera {camera.name!r}"
                    self.optional.add(camera.depth_info_topic, "sensor_msgs/msg/CameraInfo", what, "map", is_rare=True)
            self.cameras = CameraSubscriptions(node, node.parameters.cameras, configured.inbox, node.health)
            parts.callback(self.cameras.close)
            language.submit(partial(prepare_language, perceptron, node.get_logger()))
            period_s = node.parameters.bond_heartbeat_period
            if period_s > 0:
                try:
                    parts.callback(Heartbeat(node, period_s).close)
                except ImportError as error:
                    node.get_logger().info(f"no bond with a lifecycle manager: {error}")
            self._parts = parts.pop_all()

    def _warm_up(self, config: PerceptronConfig, stopped: Callable[[], bool]) -> None:
        if not self._configured.is_warm:
            warm_up(config, self._configured.perceptron.inference, stopped)
            self._configured.is_warm = True

    def _disconnect(self) -> None:
        self._configured.fusion.on_fused = self._configured.on_map_replaced = lambda: None

    def _publish(self, perception: Perception, everything: bool) -> None:
        self._configured.outputs.publish(perception, everything)
        self._configured.grounding.map_changed()
        if self._viewer is not None:
            self._viewer.show(perception)

    def close(self) -> None:
        """Destroy the subscriptions, then the other parts in reverse order."""
        self._parts.close()


def prepare_language(perceptron: Perceptron, logger: Any) -> None:
    """Load the text encoder in the background. A query that comes meanwhile waits; after an error, the first query
    tries again."""
    try:
        perceptron.prepare_language()
    except Exception as error:  # a missing or broken package raises anything; the node works without
        reason = f"{type(error).__name__}: {error}"
        logger.warning(f"the text encoder could not be loaded; the first query tries again: {reason}")
