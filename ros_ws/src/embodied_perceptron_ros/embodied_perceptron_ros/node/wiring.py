"""What the node is made of: built when it is configured, opened when it is activated.

Whatever is heavy (torch, the library) is imported here, and this module where a configuration begins: the node itself
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
from embodied_perceptron.detection2d.detectors import COCO_CLASSES
from embodied_perceptron.detection2d.loading import limits_from_options
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Perception
from embodied_perceptron.visualization.web import WebViewer
from embodied_perceptron_ros.node.bond import Heartbeat
from embodied_perceptron_ros.node.corrections import KeyframeCorrections
from embodied_perceptron_ros.node.detections import DetectionInputs, lift_diagnostics
from embodied_perceptron_ros.node.frame_inbox import CameraPoses, FrameInbox
from embodied_perceptron_ros.node.fusion_worker import FusionWorker
from embodied_perceptron_ros.node.grounding import GroundingInterface
from embodied_perceptron_ros.node.health import ERROR
from embodied_perceptron_ros.node.inputs import CameraSubscriptions
from embodied_perceptron_ros.node.map_folder import MapFolder
from embodied_perceptron_ros.node.map_frame import MapFramePublisher
from embodied_perceptron_ros.node.outputs import LiveViewer, Outputs
from embodied_perceptron_ros.node.perception_worker import PerceptionWorker
from embodied_perceptron_ros.node.services import MapServices
from embodied_perceptron_ros.node.threads import GivenUpError
from embodied_perceptron_ros.node.transforms import TransformSource, make_transform_source
from embodied_perceptron_ros.node.warm_up import LanguagePreparation
from embodied_perceptron_ros.node.watchdog import Watchdog
from embodied_perceptron_ros.node.web import open_web_viewer

_RIVALS_HOLD_S = 5.0


def prepare(
    config: PerceptronConfig,
    map_file: str,
    stopped: Callable[[], bool],
    report: Callable[[str], None],
    find_place: bool = False,
) -> tuple[Perceptron, bool]:
    """The perceptron with its network and map, and everything compiled: half a minute of work that needs no ROS.

    And whether all of that is loaded: what was compiled before is not, the thread that perceives does it
    (:class:`LiveParts`), while frames are fused already.

    ``report`` is told what is being done; with ``find_place`` the robot's place in the map is looked for. Raises
    ``GivenUpError`` when ``stopped`` says so, and as :meth:`Perceptron.from_config` and :meth:`Perceptron.load` do.
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
    """What lives from configure to cleanup: the map, its thread, publishers, services, transforms.

    ``node`` is the ``PerceptionNode``, here and below. Whatever was built is freed again when a later part cannot be
    built.
    """

    def __init__(self, node: Any, perceptron: Perceptron, is_warm: bool) -> None:
        parameters = node.parameters
        self.is_warm = is_warm
        self._health = node.health
        self.perceptron = perceptron
        self.on_map_replaced: Callable[[], None] = lambda: None
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
                node.health,
                node.log,
                self.watchdog,
                now_ns=node.now_ns,
                reset_on_time_jump=lambda: node.parameters.on_time_jump == "reset",
                on_placed=self._publish_map_frame,
            )
            camera_frame = self.inbox.camera_frame
            self.outputs = Outputs(node, self.transforms, node.health, lambda: node.parameters, camera_frame)
            parts.callback(self.outputs.close)
            self.services = MapServices(
                node,
                self.perceptron,
                self.transforms,
                parameters.fusion_frame,
                self._map_replaced,
                MapFolder(parameters.map_folder),
                self.watchdog,
                find_place=lambda: node.parameters.find_place,
            )
            parts.callback(self.services.close)
            self.grounding = GroundingInterface(
                node,
                self.perceptron,
                self.transforms,
                node.health,
                lambda: node.parameters,
                camera_frame,
                self.watchdog,
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
        for child, words in self.transforms.rivals.items():
            self._health.problem("transforms", ERROR, words, f"rivals {child}", hold_s=_RIVALS_HOLD_S)
        devices = {f"{what}_device": device for what, device in self.perceptron.devices.items()}
        areas = {
            "map": {**self.fusion.map_statistics, **devices},
            "transforms": transforms,
            "queries": self.grounding.status,
        }
        lift = self.perceptron.lift
        return areas if lift is None else {**areas, "lift": lift_diagnostics(lift.statistics(), lift.busy_s)}

    def close(self) -> None:
        """Stop the thread, then free the rest in reverse order."""
        self._parts.close()


class LiveParts:
    """What lives from activate to deactivate: camera subscriptions, perception thread, queries, corrections, viewer,
    and the reading of the text encoder."""

    def __init__(self, node: Any, configured: ConfiguredMap) -> None:
        self._configured = configured
        self._viewer: LiveViewer | WebViewer | None = None
        perception = PerceptionWorker(
            configured.perceptron,
            node.health,
            node.log,
            configured.watchdog,
            publish=self._publish,
            publish_held=configured.outputs.publish_held,
            new_listeners=configured.outputs.new_listeners,
            rate_hz=lambda: node.parameters.perception_hz,
        )
        language = LanguagePreparation(configured.perceptron, node.get_logger())
        with ExitStack() as parts:
            parts.callback(lambda: language.stop(wait=not node.is_ending))
            if node.parameters.viewer:
                self._viewer = self._open_viewer(node, configured)
            if self._viewer is not None:
                parts.callback(self._viewer.close)
            configured.grounding.open(None if self._viewer is None else self._viewer.answer)
            parts.callback(configured.grounding.close)
            perception.start(partial(self._warm_up, node.parameters.config))
            parts.callback(lambda: perception.stop(ending=node.is_ending))
            configured.fusion.on_fused = configured.on_map_replaced = perception.map_changed
            parts.callback(self._disconnect)
            if node.parameters.keyframe_path_topic:

                def on_corrected(motion: NDArray[np.float64]) -> None:
                    configured.grounding.move_viewpoints(motion)
                    perception.map_changed()

                parts.callback(self._correct_keyframes(node, on_corrected).close)
            if configured.perceptron.lift is not None:
                self._lift(node, parts)
            self.cameras = CameraSubscriptions(node, node.parameters.cameras, configured.inbox, node.health)
            parts.callback(self.cameras.close)
            language.start()
            self._bind(node, parts)
            self._parts = parts.pop_all()

    def _warm_up(self, config: PerceptronConfig, stopped: Callable[[], bool]) -> None:
        if not self._configured.is_warm:
            warm_up(config, self._configured.perceptron.inference, stopped)
            self._configured.is_warm = True

    @staticmethod
    def _open_viewer(node: Any, configured: ConfiguredMap) -> LiveViewer | WebViewer | None:
        """A viewer that cannot be opened keeps no robot from perceiving."""
        if node.parameters.viewer == "web":
            return open_web_viewer(node, configured)
        try:
            return LiveViewer(node.parameters.viewer_file, node.get_logger())
        except Exception as error:
            node.get_logger().error(f"there is no viewer: {error}")
            return None

    @staticmethod
    def _bind(node: Any, parts: ExitStack) -> None:
        period_s = node.parameters.bond_heartbeat_period
        if period_s > 0:
            try:
                parts.callback(Heartbeat(node, period_s).close)
            except ImportError as error:
                node.get_logger().info(f"no bond with a lifecycle manager: {error}")

    def _lift(self, node: Any, parts: ExitStack) -> None:
        """The 2-D detector in a thread of its own, or topics of other programs."""
        lift, options = self._configured.perceptron.lift, node.parameters.config.lift
        assert lift is not None
        lift.start()
        parts.callback(lift.stop)
        if not options.from_topics:
            return
        inputs = DetectionInputs(
            node,
            node.parameters.cameras,
            self._configured.perceptron,
            node.health,
            limits=limits_from_options(options),
            class_names=options.classes or COCO_CLASSES,
            camera_frame=self._configured.inbox.camera_frame,
            camera_model=self._configured.inbox.camera_model,
        )
        parts.callback(inputs.close)

    def _correct_keyframes(self, node: Any, on_corrected: Callable[[NDArray[np.float64]], None]) -> KeyframeCorrections:
        return KeyframeCorrections(
            node,
            self._configured.perceptron,
            self._configured.transforms,
            node.health,
            topic=node.parameters.keyframe_path_topic,
            child_frame=node.parameters.keyframe_path_child,
            fusion_frame=node.parameters.fusion_frame,
            camera_frame=self._configured.inbox.camera_frame,
            on_corrected=on_corrected,
            watchdog=self._configured.watchdog,
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
