"""``doctor --live``: find out why the map of a running system is wrong or missing.

Checks publishers, QoS, arrival of data, unit and registration of depth, stamps, clocks and transforms
(:func:`~embodied_perceptron.apps.checks.check_camera`), and the node's diagnostics.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from numpy.typing import NDArray
from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import GetParameters
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible
from sensor_msgs.msg import CameraInfo

from embodied_perceptron.apps.checks import (
    CameraEvidence,
    Finding,
    Severity,
    SpreadSamples,
    check_camera,
    check_delays,
    check_pose_delay,
)
from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.recordings.image_codec import combined_images
from embodied_perceptron.sensors.camera_model import CameraModel, UnregisteredDepth, is_aligned
from embodied_perceptron.sensors.poses import Disconnected, Found, TooEarly
from embodied_perceptron_ros.conversion.values import (
    camera_info_key,
    camera_model,
    color_from_message,
    depth_from_message,
    stamp_to_ns,
)
from embodied_perceptron_ros.environment import transport_remedy
from embodied_perceptron_ros.node.delivery import DeliveryCount, with_info
from embodied_perceptron_ros.node.guest import Guest, NoAnswerError
from embodied_perceptron_ros.node.health import read_diagnostics
from embodied_perceptron_ros.node.inputs import create_latched_subscription
from embodied_perceptron_ros.node.monitor import NodeStatus, status_from_areas
from embodied_perceptron_ros.node.parameters import (
    CALIBRATIONS,
    CAMERA_DECLARATIONS,
    CameraParameters,
    Kind,
    default_topics,
)
from embodied_perceptron_ros.node.qos import best_effort_qos
from embodied_perceptron_ros.node.transforms import make_transform_source

NODE_NAME = "perception"
_OPTIONAL_REMEDY = "start its program, or correct the parameter that names the topic"
# discovery ends without news for a while; it waits longer for the node
_SETTLED_S, _DISCOVERY_S, _NODE_S = 1.5, 15.0, 6.0
_ANSWER_S = 6.0
_POSE_STEP_S = 0.02  # precision of a pose's arrival time
_KEPT_IMAGES = 16  # depth images of each camera, spread over the time of listening
_SAME_MOMENT_NS = 16_000_000  # images of neighbouring frames lie further apart, up to 60 Hz
_MANY_LOST = 0.1  # share of lost images that is an error
_QUEUE = 50  # images that wait while others are decoded: the doctor must lose none itself


@dataclass(frozen=True)
class Endpoint:
    """A publisher or subscriber of the graph."""

    node: str
    type: str
    qos: QoSProfile


def check_publishers(
    topic: str,
    expected: str,
    there: Sequence[Endpoint],
    similar: Sequence[str],
    combining: Mapping[str, Sequence[str]] | None = None,
) -> list[Finding]:
    """Check that ``topic`` is published with type ``expected``.

    ``similar``: other topics of that type; ``combining``: types of all topics, to find those that combine images.
    """
    nodes = sorted({e.node for e in there if e.type == expected})
    if nodes:
        return [Finding("topics", Severity.OK, f"{topic} is published by {', '.join(nodes)}")]
    if there:
        message = f"{topic} is published as {there[0].type}, not as {expected}"
        remedy = combined_images({topic: [there[0].type]}) or "set color_transport or depth_transport of the camera"
        return [Finding("topics", Severity.ERROR, message, remedy)]
    remedy = "start the driver, or set the camera's *_topic parameters"
    if combined := combined_images(combining or {}):
        return [Finding("topics", Severity.ERROR, f"nobody publishes {topic}", combined)]
    if similar:
        remedy += f"; topics of this type: {', '.join(similar)}"
    return [Finding("topics", Severity.ERROR, f"nobody publishes {topic}", remedy)]


def check_qos(topic: str, publishers: Sequence[Endpoint], subscribers: Sequence[Endpoint]) -> list[Finding]:
    """Check that the QoS of every publisher and subscriber of ``topic`` match; of several subscriptions of a node one
    is enough."""
    findings = []
    for publisher in publishers:
        for node in sorted({subscriber.node for subscriber in subscribers}):
            answers = [qos_check_compatible(publisher.qos, s.qos) for s in subscribers if s.node == node]
            if any(compatibility != QoSCompatibility.ERROR for compatibility, _ in answers):
                continue
            reason = answers[0][1].strip().rstrip(";")
            message = f"{topic}: {node} cannot receive from {publisher.node}: {reason}"
            findings.append(Finding("QoS", Severity.ERROR, message, _qos_remedy(topic, node, reason)))
    if publishers and subscribers and not findings:
        findings.append(Finding("QoS", Severity.OK, f"{topic}: {len(subscribers)} subscriber(s) match"))
    return findings


def _qos_remedy(topic: str, node: str, reason: str) -> str:
    """How to make the QoS match; for the perception node its parameter."""
    if node == NODE_NAME and "reliab" in reason.lower():
        own = f"-p qos_overrides.{topic}.subscription.reliability:=best_effort"
        return f"start {NODE_NAME} with {own}, or make the publisher reliable"
    return f"make {node} request less (best effort, volatile), or the publisher offer more (reliable, transient local)"


def check_time_source(clock_publishers: int, node_uses_sim_time: bool | None) -> list[Finding]:
    """Check that use_sim_time fits /clock; None = there is no node to ask."""
    if node_uses_sim_time and not clock_publishers:
        remedy = "start the simulator or player (--clock), or set use_sim_time to false"
        return [Finding("clock", Severity.ERROR, "the node waits for /clock, which nobody publishes", remedy)]
    if node_uses_sim_time is False and clock_publishers:
        remedy = "start the node with use_sim_time:=true (--sim-time)"
        return [Finding("clock", Severity.WARNING, "/clock is published but the node uses the wall clock", remedy)]
    return []


def check_arrival(topic: str, publishers: int, received: int, seconds: float, missed: int = 0) -> list[Finding]:
    """Check that messages arrive if there are publishers. ``missed``: messages that were sent but not delivered."""
    if not publishers:
        return []
    if missed:
        severity = Severity.ERROR if missed > _MANY_LOST * (received + missed) else Severity.WARNING
        message = f"{topic}: {missed} of {received + missed} messages were sent but did not arrive"
        return [Finding("data", severity, message, transport_remedy())]
    if received:
        return [Finding("data", Severity.OK, f"{topic}: {received / seconds:.1f} Hz")]
    remedy = f"start the driver if it is paused; if it is not, images are lost in transport: {transport_remedy()}"
    return [Finding("data", Severity.ERROR, f"{topic}: nothing arrived in {seconds:.0f} s", remedy)]


def check_node(status: NodeStatus, path: str = f"/{NODE_NAME}") -> list[Finding]:
    """Drops and problems in the diagnostics of the node ``path``."""
    if status.state != "active":
        remedy = {
            "unconfigured": f"ros2 lifecycle set {path} configure, then activate (or parameter autostart: true)",
            "inactive": f"ros2 lifecycle set {path} activate",
            "configuring": "wait: it compiles and loads its network; see its log",
            "absent": "it publishes no /diagnostics: is it stuck, or in another ROS_DOMAIN_ID? see its log",
        }.get(status.state, "start it again")
        return [Finding("node", Severity.ERROR, f"the node is {status.state}", remedy)]
    total = status.received
    findings = [Finding("node", Severity.OK, f"active; {status.fused} of {total} frames fused")]
    dropped = sum(status.dropped.values())
    if dropped:
        reason = max(status.dropped, key=lambda r: status.dropped[r])
        detail = status.areas.get("frames", {}).get(f"last_drop.{reason}", "")
        severity = Severity.ERROR if status.fused == 0 else Severity.WARNING
        findings.append(Finding("node", severity, f"{dropped} frames dropped, mostly {reason}: {detail}".rstrip(": ")))
    for area, values in sorted(status.areas.items()):
        if area != "frames" and values.get("level") in ("1", "2"):
            severity = Severity.ERROR if values["level"] == "2" else Severity.WARNING
            findings.append(Finding("node", severity, f"{area}: {values.get('message', '')}"))
    return findings


# --------------------------------------------------------------------------------------------------------------------
# collecting


class _Listener(Guest):
    """A node with the subscriptions of ``/perception``."""

    def __init__(self) -> None:
        super().__init__("doctor")
        self.transforms = make_transform_source(self.node)
        self.status: NodeStatus | None = None
        self.watched = NODE_NAME  # with its namespace
        self.evidence: dict[str, CameraEvidence] = {}
        self._depths: dict[str, SpreadSamples[tuple[int, NDArray[np.float32]]]] = {}
        self._pairs: dict[str, SpreadSamples[tuple[NDArray[np.uint8], NDArray[np.float32]]]] = {}
        self._last_color: dict[str, Any] = {}  # messages
        self._last_depth: dict[str, tuple[int, NDArray[np.float32]]] = {}  # stamp and depth, not yet in a pair
        self._last_info: dict[tuple[str, Kind], Any] = {}  # stamp and content
        self._depth_models: dict[str, CameraModel] = {}
        self.poses: dict[str, dict[int, Found]] = {}  # by camera and stamp; the transform buffer forgets them
        self.delays_s: dict[str, list[float]] = {}  # arrival minus stamp, by topic
        self.deliveries: dict[str, DeliveryCount] = {}  # of images, by topic
        self.pose_delays_s: dict[str, list[float]] = {}  # from an image's arrival to its pose, by camera
        self._without_pose: list[tuple[str, int, float]] = []  # camera, stamp, seconds of arrival
        self.faults: dict[str, Counter[str]] = {}  # unusable messages, by camera
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)

    def collect(self, seconds: float, fusion_frame: str) -> None:
        """Listen, and measure when the pose of each colour image comes."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.spin(min(left_s, _POSE_STEP_S))
            now_s, waiting = time.monotonic(), []
            for camera, stamp_ns, arrived_s in self._without_pose:
                answer = self.transforms.lookup(fusion_frame, self.evidence[camera].frames["color"], stamp_ns)
                if isinstance(answer, Found):
                    self.poses[camera][stamp_ns] = answer
                    self.pose_delays_s.setdefault(camera, []).append(now_s - arrived_s)
                elif isinstance(answer, (TooEarly, Disconnected)):  # it may still come
                    waiting.append((camera, stamp_ns, arrived_s))
            self._without_pose = waiting

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        areas = read_diagnostics(message, self.watched)
        if areas:
            self.status = status_from_areas(areas)

    def namespaces(self) -> Counter[str]:
        """Namespaces with a perception node, and the number of such nodes in each."""
        nodes = self.node.get_node_names_and_namespaces()
        return Counter(str(namespace) for name, namespace in nodes if name == NODE_NAME)

    def discover(self, wanted: str | None) -> None:
        """Wait until the graph does not change: a fixed time would be too short on a busy machine, else too long."""
        begun_s = changed_s = time.monotonic()
        known: object = None
        while (now_s := time.monotonic()) - begun_s < _DISCOVERY_S:
            self.spin(0.1)
            graph = (
                sorted(self.node.get_node_names_and_namespaces()),
                sorted(name for name, _ in self.node.get_topic_names_and_types()),
            )
            if graph != known:
                known, changed_s = graph, now_s
            there = self.namespaces()
            found = bool(there) if wanted is None else wanted in there
            if now_s - changed_s > _SETTLED_S and (found or now_s - begun_s > _NODE_S):
                return

    def ask(self, namespace: str, names: Sequence[str]) -> list[Any]:
        """Values of the node's parameters; None if not set, or if the node does not answer."""
        service = f"{namespace.rstrip('/')}/{NODE_NAME}/get_parameters"
        request = GetParameters.Request(names=list(names))
        try:
            values = [_value(v) for v in self.call(GetParameters, service, request, _ANSWER_S).values]
        except NoAnswerError:
            values = []
        # the answer is empty if one is not declared: those of the cameras are declared when the node is configured
        return values if len(values) == len(names) else [None] * len(names)

    def endpoints(self, topic: str) -> tuple[list[Endpoint], list[Endpoint]]:
        """Publishers and subscribers of ``topic``, without this node."""
        both = (self.node.get_publishers_info_by_topic(topic), self.node.get_subscriptions_info_by_topic(topic))
        there = [[Endpoint(i.node_name, i.topic_type, i.qos_profile) for i in infos] for infos in both]
        own = self.node.get_name()
        publishers, subscribers = ([e for e in endpoints if e.node != own] for endpoints in there)
        return publishers, subscribers

    def similar(self, topic: str, kind: str) -> list[str]:
        """Other topics of type ``kind`` with a publisher that is not a perception node."""
        names = (n for n, types in self.node.get_topic_names_and_types() if kind in types and n != topic)
        return sorted(n for n in names if any(e.node != NODE_NAME for e in self.endpoints(n)[0]))[:8]

    def listen_to(self, camera: CameraParameters, topics: Mapping[Kind, tuple[type, str]]) -> None:
        """Subscribe with the least demanding QoS, which matches every publisher."""
        self.evidence[camera.name] = CameraEvidence()
        self._depths[camera.name], self._pairs[camera.name] = SpreadSamples(_KEPT_IMAGES), SpreadSamples(_KEPT_IMAGES)
        self.poses[camera.name] = {}
        self.faults[camera.name] = Counter()
        for kind, (message_type, topic) in topics.items():
            receive = with_info(partial(self._receive, camera, kind, topic))
            self.node.create_subscription(message_type, topic, receive, best_effort_qos(_QUEUE))
            if kind in CALIBRATIONS:  # perhaps sent once, before this node started
                create_latched_subscription(self.node, message_type, topic, receive)

    def _receive(self, camera: CameraParameters, kind: Kind, topic: str, message: Any, info: Any) -> None:
        evidence = self.evidence[camera.name]
        stamp_ns = stamp_to_ns(message.header.stamp)
        if kind in CALIBRATIONS:
            calibration = stamp_ns, camera_info_key(message)
            if self._last_info.get((camera.name, kind)) == calibration:
                return  # both subscriptions received it
            self._last_info[camera.name, kind] = calibration
        else:
            count_senders = partial(self.node.count_publishers, topic)
            self.deliveries.setdefault(topic, DeliveryCount(count_senders)).add(info, stamp_ns)
        self.delays_s.setdefault(topic, []).append((time.time_ns() - stamp_ns) * 1e-9)
        evidence.frames[kind] = message.header.frame_id
        try:
            if kind == "depth_info":
                self._depth_models[camera.name] = camera_model(message, camera.rectified)
            elif kind == "info":
                evidence.add_calibration(camera_model(message, camera.rectified))
            elif kind == "color":
                evidence.color_ns.append(stamp_ns)
                self._last_color[camera.name] = message
                self._without_pose.append((camera.name, stamp_ns, time.monotonic()))
                if evidence.color_size is None:
                    image = color_from_message(message)
                    evidence.color_size = (image.shape[1], image.shape[0])
                self._pair(camera.name)
            else:
                evidence.depth_ns.append(stamp_ns)
                if self._depths[camera.name].is_next_wanted():
                    depth = depth_from_message(message).copy()
                    own, color = self._depth_models.get(camera.name), evidence.calibrations[-1:]
                    evidence.says_aligned = is_aligned(camera.depth_topic, depth.shape, own, *(color or [None]))
                    depth = self._at_color(camera.name, message, depth)
                    evidence.depth_size = (depth.shape[1], depth.shape[0])
                    self._depths[camera.name].keep((stamp_ns, depth))
                    evidence.depths = self._depths[camera.name].items
                    self._last_depth[camera.name] = stamp_ns, depth
                    self._pair(camera.name)
        except ValueError as error:
            self.faults[camera.name][f"{topic}: {error}"] += 1

    def _at_color(self, camera: str, message: Any, depth_m: NDArray[np.float32]) -> NDArray[np.float32]:
        """Register depth if the node would."""
        evidence, own = self.evidence[camera], self._depth_models.get(camera)
        color, depth = evidence.frames.get("color", ""), message.header.frame_id
        if evidence.says_aligned or own is None or not color or color == depth or not evidence.calibrations:
            return depth_m
        mount = self.transforms.lookup(color, depth, stamp_to_ns(message.header.stamp))
        if not isinstance(mount, Found):
            return depth_m
        evidence.registered_here = True
        return UnregisteredDepth(depth_m, own, mount.T).registered(evidence.calibrations[-1].intrinsics)

    def _pair(self, camera: str) -> None:
        """Keep the last depth with the last colour image if they are of the same time, whichever came first."""
        message, (stamp_ns, depth) = self._last_color.get(camera), self._last_depth.get(camera, (0, None))
        if message is None or depth is None or abs(stamp_to_ns(message.header.stamp) - stamp_ns) > _SAME_MOMENT_NS:
            return
        del self._last_depth[camera]
        color = color_from_message(message)
        if color.shape[:2] == depth.shape and self._pairs[camera].is_next_wanted():
            self._pairs[camera].keep((color.copy(), depth))
            self.evidence[camera].pairs = self._pairs[camera].items


def _value(value: Any) -> Any:
    by_type = {
        ParameterType.PARAMETER_BOOL: "bool_value",
        ParameterType.PARAMETER_STRING: "string_value",
        ParameterType.PARAMETER_STRING_ARRAY: "string_array_value",
    }
    name = by_type.get(value.type)
    return None if name is None else getattr(value, name)


def _cameras(listener: _Listener, namespace: str | None) -> list[CameraParameters]:
    """The node's cameras, or its defaults."""
    names = listener.ask(namespace, ["cameras"])[0] if namespace is not None else None
    names = list(names or ["camera"])
    cameras = []
    for name in names:
        values: dict[str, Any] = dict(default_topics(name, alone=len(names) == 1))
        if namespace is not None:
            answers = listener.ask(namespace, [f"{name}.{key}" for key in CAMERA_DECLARATIONS])
            there = zip(CAMERA_DECLARATIONS, answers, strict=True)
            values |= {key: answer for key, answer in there if answer not in (None, "")}
        cameras.append(CameraParameters(name, **values))
    return cameras


def examine_graph(*, duration_s: float = 5.0, namespace: str | None = None) -> list[Finding]:
    """Listen for ``duration_s`` in the environment's ROS domain and return findings.

    ``namespace``: of the node; None = that of the only node. Raises :class:`.RosStartError`.
    """
    wanted = None if namespace is None else f"/{namespace.strip('/')}"
    with _Listener() as listener:
        listener.discover(wanted)
        there = sorted(listener.namespaces())
        if wanted is None and len(there) > 1:
            message = f"there are {len(there)} nodes {NODE_NAME!r}, in {', '.join(there)}"
            return [Finding("node", Severity.ERROR, message, "choose one: --namespace NAMESPACE")]
        return _examine(listener, duration_s, wanted, (there[0] if wanted is None else wanted) if there else None)


def _absolute(topic: str, root: str) -> str:
    return topic if topic.startswith("/") else root + topic


def _examine(listener: _Listener, duration_s: float, wanted: str | None, running: str | None) -> list[Finding]:
    """``wanted``: namespace asked for, None = any; ``running``: namespace of the node, None = there is none."""
    namespace = running if running in listener.namespaces() else None
    path = f"{(wanted or namespace or '').rstrip('/')}/{NODE_NAME}"
    listener.watched = path.lstrip("/")
    findings: list[Finding] = []
    fusion_frame, sim_time = "odom", None
    if namespace is None:
        remedy = "start it: embodied-perceptron perceive, or ros2 launch embodied_perceptron perceive.launch.py"
        findings.append(Finding("node", Severity.WARNING, f"{path} is not running; its defaults are assumed", remedy))
    else:
        if (count := listener.namespaces()[namespace]) > 1:
            message = f"there are {count} nodes {path}: services and parameters reach any of them"
            findings.append(Finding("node", Severity.ERROR, message, "end all but one, or give each its namespace"))
        frame, sim_time = listener.ask(namespace, ["fusion_frame", "use_sim_time"])
        fusion_frame = frame or fusion_frame
    cameras = _cameras(listener, namespace)
    root = (wanted or namespace or "").rstrip("/") + "/"
    topics = {
        camera.name: {
            kind: (message_type, _absolute(topic, root)) for kind, (message_type, topic) in camera.subscriptions.items()
        }
        for camera in cameras
    }
    clock_publishers = len(listener.endpoints("/clock")[0])
    findings += check_time_source(clock_publishers, sim_time)
    for camera in cameras:
        own = {"depth_info": (CameraInfo, _absolute(camera.depth_info, root))} if camera.depth_info else {}
        listener.listen_to(camera, {**topics[camera.name], **own})
    listener.collect(duration_s, fusion_frame)
    delays: dict[str, float] = {}
    for camera in cameras:
        evidence, lost = listener.evidence[camera.name], 0
        for message_type, topic in topics[camera.name].values():
            publishers, subscribers = listener.endpoints(topic)
            expected = f"sensor_msgs/msg/{message_type.__name__}"
            all_topics = dict(listener.node.get_topic_names_and_types())
            findings += check_publishers(topic, expected, publishers, listener.similar(topic, expected), all_topics)
            findings += check_qos(topic, publishers, subscribers)
            arrived = listener.delays_s.get(topic, [])
            missed = listener.deliveries[topic].missed if topic in listener.deliveries else 0
            lost += missed
            findings += check_arrival(topic, len(publishers), len(arrived), duration_s, missed)
            if arrived:
                delays[topic] = float(np.median(arrived))
        findings += [
            Finding("images", Severity.ERROR, f"{n} times: {text}") for text, n in listener.faults[camera.name].items()
        ]
        if evidence.color_ns or evidence.depth_ns:
            known = listener.poses[camera.name]
            evidence.poses = [
                (stamp, known.get(stamp) or listener.transforms.lookup(fusion_frame, evidence.frames["color"], stamp))
                for stamp in evidence.color_ns[1:-2]  # the newest may still wait for its transform
            ]
            examined = check_camera(camera.name, evidence, SynchronizerConfig(), live=True)
            findings += [f for f in examined if not (lost and f.check == "pairing")]  # lost images have no partner
            pose_delays_s = listener.pose_delays_s.get(camera.name, [])
            findings += check_pose_delay(camera.name, pose_delays_s, SynchronizerConfig().max_pose_wait_s)
    optional = {c.detections_topic: "vision_msgs/msg/Detection2DArray" for c in cameras}
    if namespace is not None:
        optional[listener.ask(namespace, ["keyframe_path_topic"])[0] or ""] = "nav_msgs/msg/Path"
    for topic, expected in optional.items():
        if topic:  # named by the user
            publishers, subscribers = listener.endpoints(_absolute(topic, root))
            found = check_publishers(_absolute(topic, root), expected, publishers, [])
            bad = [replace(f, severity=Severity.WARNING, remedy=_OPTIONAL_REMEDY) for f in found if f.remedy]
            findings += bad or found + check_qos(_absolute(topic, root), publishers, subscribers)
    findings += _examine_transforms(listener)
    findings += check_delays(delays, simulated=clock_publishers > 0)
    if namespace is not None:
        findings += check_node(listener.status or NodeStatus(), path)
    return findings


def _examine_transforms(listener: _Listener) -> list[Finding]:
    findings = []
    for topic in ("/tf", "/tf_static"):
        publishers, subscribers = listener.endpoints(topic)
        if not publishers and topic == "/tf":
            remedy = "start odometry or localisation; for a fixed camera, a static transform from the fusion frame"
            findings.append(Finding("transforms", Severity.ERROR, "nobody publishes /tf", remedy))
        findings += check_qos(topic, publishers, subscribers)
    for message in listener.transforms.conflicts.values():
        remedy = "remap /tf of each robot to its namespace, or stop one of the publishers"
        findings.append(Finding("transforms", Severity.ERROR, message, remedy))
    for reason, count in listener.transforms.refused.items():
        findings.append(Finding("transforms", Severity.ERROR, f"refused {count} times: {reason}", "fix its publisher"))
    return findings
