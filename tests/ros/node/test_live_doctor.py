"""The doctor on a running graph: pure judgements, and a small robot that is well, or ill in known ways."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

rclpy = pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs.msg")
pytest.importorskip("embodied_perceptron_msgs.msg")

from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy  # noqa: E402
from sensor_msgs.msg import CameraInfo, Image  # noqa: E402
from support import small_recording  # noqa: E402
from support.ros_live import MAPPING_CAMERA, OPTICAL, T_ODOM_CAMERA, own_domain, scene_depth  # noqa: E402
from tf2_msgs.msg import TFMessage  # noqa: E402

from embodied_perceptron.apps.checks import (  # noqa: E402
    CameraEvidence,
    Finding,
    Severity,
    SpreadSamples,
    check_delays,
    check_optical,
    check_registration,
    has_errors,
)
from embodied_perceptron.geometry.transforms import Intrinsics  # noqa: E402
from embodied_perceptron.sensors.camera_model import CameraModel, register_depth  # noqa: E402
from embodied_perceptron.sensors.poses import Found  # noqa: E402
from embodied_perceptron_ros.conversion.values import make_camera_info, make_image, make_transform_stamped  # noqa: E402
from embodied_perceptron_ros.node import live_doctor  # noqa: E402
from embodied_perceptron_ros.node.health import FrameCounts, Health  # noqa: E402
from embodied_perceptron_ros.node.live_doctor import examine_graph  # noqa: E402
from embodied_perceptron_ros.node.monitor import NodeStatus, status_from_areas  # noqa: E402

RELIABLE = QoSProfile(depth=5, reliability=ReliabilityPolicy.RELIABLE)
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
IMAGE = "sensor_msgs/msg/Image"


def endpoint(node: str, qos: QoSProfile = RELIABLE, kind: str = IMAGE) -> live_doctor.Endpoint:
    return live_doctor.Endpoint(node, kind, qos)


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def found(findings: list[Finding], check: str, severity: Severity = Severity.ERROR) -> str:
    """Messages and remedies of all such findings; empty when there is none."""
    return "\n".join(f"{f.message} -> {f.remedy}" for f in findings if f.check == check and f.severity == severity)


# --------------------------------------------------------------------------------------------------------------------
# pure


def test_missing_publisher_names_similar_topics() -> None:
    finding = only(live_doctor.check_publishers("/depth/image_raw", IMAGE, [], ["/camera/depth"]))
    assert finding.severity == Severity.ERROR
    assert "nobody publishes /depth/image_raw" in finding.message
    assert "/camera/depth" in finding.remedy


def test_wrong_type_is_told_from_a_missing_publisher() -> None:
    there = [endpoint("driver", kind="sensor_msgs/msg/CompressedImage")]
    finding = only(live_doctor.check_publishers("/depth", IMAGE, there, []))
    assert "CompressedImage" in finding.message
    assert "depth_transport" in finding.remedy
    assert only(live_doctor.check_publishers("/depth", IMAGE, [endpoint("driver")], [])).severity == Severity.OK


@pytest.mark.parametrize("kind", ["rtabmap_msgs/msg/RGBDImage", "realsense2_camera_msgs/msg/RGBD"])
def test_messages_that_combine_colour_and_depth_are_named(kind: str) -> None:
    beside = only(live_doctor.check_publishers("/color", IMAGE, [], [], {"/rgbd": [kind], "/tf": ["tf2_msgs/msg/TF"]}))
    at = only(live_doctor.check_publishers("/rgbd", IMAGE, [endpoint("driver", kind=kind)], []))
    for finding in (beside, at):
        assert f"/rgbd ({kind}): messages that combine colour and depth cannot be read" in finding.remedy
        assert "separate topics" in finding.remedy


@pytest.mark.parametrize("color_first", [True, False])
@pytest.mark.parametrize(("apart_ms", "paired"), [(0, True), (10, True), (33, False)])
def test_only_images_of_one_moment_are_compared(apart_ms: int, paired: bool, color_first: bool) -> None:
    """Where images get lost, the neighbour of the lost one would look as if depth were not registered."""
    listener = object.__new__(live_doctor._Listener)
    listener._last_color, listener._last_depth = {}, {}
    listener._pairs, listener.evidence = {"camera": SpreadSamples(4)}, {"camera": CameraEvidence()}
    color = make_image(np.zeros((6, 8, 3), np.uint8), "rgb8", 10**18, OPTICAL)
    arrivals = [
        lambda: listener._last_color.update(camera=color),
        lambda: listener._last_depth.update(camera=(10**18 + apart_ms * 10**6, np.ones((6, 8), np.float32))),
    ]
    for arrive in arrivals if color_first else arrivals[::-1]:
        arrive()
        listener._pair("camera")
        listener._pair("camera")  # again, as with the next image of the other kind
    assert len(listener.evidence["camera"].pairs) == paired


def test_qos_mismatch_names_both_sides() -> None:
    finding = only(
        live_doctor.check_qos("/color", [endpoint("driver", BEST_EFFORT)], [endpoint("perception", RELIABLE)])
    )
    assert finding.severity == Severity.ERROR
    assert "perception cannot receive from driver" in finding.message
    assert "qos_overrides./color.subscription.reliability" in finding.remedy
    fits = live_doctor.check_qos("/color", [endpoint("driver", RELIABLE)], [endpoint("perception", BEST_EFFORT)])
    assert only(fits).severity == Severity.OK
    assert live_doctor.check_qos("/color", [endpoint("driver")], []) == []


def test_a_node_that_subscribes_in_two_ways_hears_by_either() -> None:
    """Calibration is asked for latched and not: a driver that fits one of them is heard."""
    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    both = [endpoint("perception", BEST_EFFORT), endpoint("perception", latched)]
    for driver in (endpoint("driver", BEST_EFFORT), endpoint("driver", latched)):
        assert only(live_doctor.check_qos("/info", [driver], both)).severity == Severity.OK
    other = only(live_doctor.check_qos("/info", [endpoint("driver")], [endpoint("rviz", latched)]))
    assert "qos_overrides" not in other.remedy, "that is a parameter of this node alone"
    assert "make rviz request less" in other.remedy


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("unconfigured", "ros2 lifecycle set /robot1/perception configure, then activate"),
        ("inactive", "ros2 lifecycle set /robot1/perception activate"),
        ("configuring", "wait"),
        ("finalized", "start it again"),
    ],
)
def test_the_remedy_fits_the_state_and_names_the_node(state: str, remedy: str) -> None:
    assert only(live_doctor.check_node(NodeStatus(state=state), "/robot1/perception")).remedy.startswith(remedy)


def test_two_nodes_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        context = Context()
        rclpy.init(context=context, domain_id=domain)
        nodes = [rclpy.create_node("perception", namespace="robot1", context=context) for _ in range(2)]
        try:
            findings = examine_graph(duration_s=0.5, namespace="robot1")
        finally:
            for node in nodes:
                node.destroy_node()
            rclpy.shutdown(context=context)
    assert "there are 2 nodes /robot1/perception" in found(findings, "node")


@pytest.mark.parametrize(
    ("publishers", "uses_sim_time", "severity"),
    [(0, True, Severity.ERROR), (1, False, Severity.WARNING), (1, True, None), (0, False, None), (1, None, None)],
)
def test_time_source(publishers: int, uses_sim_time: bool | None, severity: Severity | None) -> None:
    findings = live_doctor.check_time_source(publishers, uses_sim_time)
    assert [f.severity for f in findings] == ([] if severity is None else [severity])


def test_clock_offset_against_this_machine() -> None:
    late = check_delays({"/color": 3600.0, "/depth": 3600.1}, simulated=False)
    assert "3600.1 s behind" in found(late, "clock offset")
    ahead = check_delays({"/color": -2.0}, simulated=False)
    assert "2.0 s ahead of" in found(ahead, "clock offset")
    assert not has_errors(check_delays({"/color": 3600.0, "/depth": 3600.1}, simulated=True))
    assert not has_errors(check_delays({"/color": 0.02, "/depth": 0.03}, simulated=False))


def test_body_frame_is_told_from_an_optical_one() -> None:
    assert only(check_optical("c", "camera_link", [np.eye(4)])).severity == Severity.ERROR
    assert only(check_optical("c", OPTICAL, [T_ODOM_CAMERA])).severity == Severity.OK
    assert check_optical("c", OPTICAL, []) == []


def test_silence_is_an_error_only_where_somebody_publishes() -> None:
    assert live_doctor.check_arrival("/color", publishers=0, received=0, seconds=5) == []
    assert only(live_doctor.check_arrival("/color", 1, 0, 5.0)).severity == Severity.ERROR
    assert "10.0 Hz" in only(live_doctor.check_arrival("/color", 1, 50, 5.0)).message


def test_the_nodes_own_words() -> None:
    assert "unconfigured" in only(live_doctor.check_node(NodeStatus(state="unconfigured"))).message
    areas = {
        "node": {"state": "active"},
        "frames": {
            **{"frames_received": "9", "frames_fused": "2", "frames_pending": "0", "level": "1"},
            **{"frames_dropped.no_pose": "6", "frames_dropped.overload": "1", "last_drop.no_pose": "no frame 'odom'"},
        },
        "map": {"level": "2", "message": "disk full"},
        "latency": {"fused_ms.p50": "12.5", "fused_ms.p99": "30"},
    }
    status = status_from_areas(areas)
    assert (status.received, status.fused, status.settled) == (9, 2, 9)
    assert status.latency_ms == {"fused": {"p50": 12.5, "p99": 30.0}}
    findings = live_doctor.check_node(status)
    assert "7 frames dropped, mostly no_pose: no frame 'odom'" in found(findings, "node", Severity.WARNING)
    assert "map: disk full" in found(findings, "node")


# --------------------------------------------------------------------------------------------------------------------
# live


class Robot:
    """Publishes one camera and its transform; ``faults`` spoil it."""

    def __init__(self, domain: int, *, transforms: bool = True, depth_factor: float = 1.0, **faults: Any) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node("driver", context=self.context)
        self.transforms, self.depth_factor, self.faults = transforms, depth_factor, faults
        qos = BEST_EFFORT
        self.color = self.node.create_publisher(Image, "/color/image_raw", qos)
        self.depth = self.node.create_publisher(Image, faults.get("depth_topic", "/depth/image_raw"), qos)
        self.info = self.node.create_publisher(CameraInfo, "/color/camera_info", qos)
        self.tf = self.node.create_publisher(TFMessage, "/tf", RELIABLE) if transforms else None
        if faults.get("greedy_subscriber"):
            self.node.create_subscription(Image, "/color/image_raw", lambda _: None, RELIABLE)

    def send(self) -> None:
        stamp_ns = time.time_ns() - int(self.faults.get("clock_behind_s", 0) * 1e9)
        depth = (scene_depth() * self.depth_factor).astype(np.float32)
        frame = self.faults.get("frame", OPTICAL)
        if self.tf is not None:
            T, late_ns = self.faults.get("T", T_ODOM_CAMERA), int(self.faults.get("tf_late_s", 0) * 1e9)
            self.tf.publish(TFMessage(transforms=[make_transform_stamped(T, stamp_ns - late_ns, "odom", frame)]))
        self.info.publish(make_camera_info(MAPPING_CAMERA, stamp_ns, frame))
        self.color.publish(make_image(np.full((*depth.shape, 3), 99, np.uint8), "rgb8", stamp_ns, frame))
        self.depth.publish(make_image(depth, "32FC1", stamp_ns, self.faults.get("depth_frame", frame)))

    def close(self) -> None:
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@contextmanager
def robot(monkeypatch: pytest.MonkeyPatch, **faults: Any) -> Iterator[Robot]:
    with own_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        machine = Robot(domain, **faults)
        try:
            yield machine
        finally:
            machine.close()


def examine(machine: Robot, duration_s: float = 2.0, **options: Any) -> list[Finding]:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(examine_graph, duration_s=duration_s, **options)
        while not future.done():
            machine.send()
            time.sleep(0.05)
        return future.result()


@pytest.mark.ros
def test_healthy_robot_has_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with robot(monkeypatch) as machine:
        findings = examine(machine)
    assert not has_errors(findings), [f for f in findings if f.severity == Severity.ERROR]
    assert "/perception is not running" in found(findings, "node", Severity.WARNING)
    for check in ("topics", "data", "sizes", "registration", "depth unit", "poses", "camera frame", "late transforms"):
        assert found(findings, check, Severity.OK), check


@pytest.mark.ros
def test_every_illness_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {
        **{"transforms": False, "depth_factor": 1000.0, "greedy_subscriber": True, "clock_behind_s": 100.0},
        "depth_frame": "depth_optical_frame",
    }
    with robot(monkeypatch, **faults) as machine:
        findings = examine(machine)
    assert "nobody publishes /tf" in found(findings, "transforms")
    assert "0 of" in found(findings, "poses")
    assert "16UC1" in found(findings, "depth unit")
    assert "not registered" in found(findings, "registration", Severity.WARNING)
    assert "s behind this machine's clock" in found(findings, "clock offset")
    # the subscriber of this robot's own node that asks for more than the driver offers
    assert "/color/image_raw: driver cannot receive from driver" in found(findings, "QoS")


@pytest.mark.ros
@pytest.mark.parametrize(
    ("late_s", "severity"), [pytest.param(0.4, Severity.WARNING, marks=pytest.mark.slow), (0.9, Severity.ERROR)]
)
def test_late_transforms_are_named(monkeypatch: pytest.MonkeyPatch, late_s: float, severity: Severity) -> None:
    with robot(monkeypatch, tf_late_s=late_s) as machine:
        findings = examine(machine, 3.0)
    assert "s after the images" in found(findings, "late transforms", severity)


@cache
def drive(steps: int, scale: float) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Pose, colour and depth of each step, by a lens that is ``scale`` times as long as the robot's."""
    k = small_recording.INTRINSICS
    lens = replace(k, fx=scale * k.fx, fy=scale * k.fy)
    poses = [small_recording.camera_pose(i, steps) for i in range(steps)]
    return [(T, *small_recording.render(T, lens)) for T in poses]


class Rover(Robot):
    """Stands for a second while it is listened to, then drives through a room and turns.

    ``focal_scale``: how much longer camera_info says that the lens is; ``focal_depth_scale``: how much longer the lens
    of its depth is than that of its colour.
    """

    PAUSE, STEPS = 25, 60

    def __init__(self, domain: int, **faults: Any) -> None:
        super().__init__(domain, **faults)
        self.sent, scale = 0, self.faults.get("focal_depth_scale", 1.0)
        depths = [depth_m for _, _, depth_m in drive(self.STEPS, scale)]
        self.views = [(T, color, depths[i]) for i, (T, color, _) in enumerate(drive(self.STEPS, 1.0))]

    def send(self) -> None:
        stamp_ns = time.time_ns() - int(self.faults.get("clock_behind_s", 0) * 1e9)
        T, color, depth_m = self.views[min(max(0, self.sent - self.PAUSE), self.STEPS - 1)]
        self.sent += self.depth.get_subscription_count() > 0  # from when the doctor listens
        k, scale = small_recording.INTRINSICS, self.faults.get("focal_scale", 1.0)
        late_ns = int(self.faults.get("tf_late_s", 0) * 1e9)
        self.tf.publish(TFMessage(transforms=[make_transform_stamped(T, stamp_ns - late_ns, "odom", OPTICAL)]))
        self.info.publish(make_camera_info(replace(k, fx=scale * k.fx, fy=scale * k.fy), stamp_ns, OPTICAL))
        self.color.publish(make_image(color, "rgb8", stamp_ns, OPTICAL))
        self.depth.publish(make_image(depth_m * np.float32(self.depth_factor), "32FC1", stamp_ns, OPTICAL))


@pytest.mark.ros
@pytest.mark.parametrize(
    ("faults", "check", "words"),
    [
        ({}, "", ""),
        pytest.param({"focal_scale": 1.15}, "focal length", "images look like focal length", marks=pytest.mark.slow),
        pytest.param({"tf_late_s": 0.9}, "late transforms", "s after the images", marks=pytest.mark.slow),
        pytest.param({"clock_behind_s": 100.0}, "clock offset", "s behind this machine's", marks=pytest.mark.slow),
        ({"focal_depth_scale": 1.15}, "registration", ""),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, dict) else "",
)
def test_each_illness_of_a_driving_robot_is_named(
    monkeypatch: pytest.MonkeyPatch, faults: dict[str, Any], check: str, words: str
) -> None:
    with own_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        machine = Rover(domain, **faults)
        try:
            findings = examine(machine, 6.0)
        finally:
            machine.close()
    ill = [f for f in findings if f.severity >= Severity.WARNING and f.check not in ("node", "topics", "QoS")]
    if not check:
        assert ill == []
        assert found(findings, "views", Severity.OK)
    else:
        assert any(f.check == check and words in f.message for f in ill), findings


@pytest.mark.ros
def test_depth_of_plus_inf_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with robot(monkeypatch, depth_factor=np.inf) as machine:
        findings = examine(machine)
    assert "depth images are +Inf" in found(findings, "depth +Inf", Severity.WARNING)


@pytest.mark.ros
def test_wrong_frame_and_topic_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with robot(monkeypatch, frame="camera_link", T=np.eye(4), depth_topic="/camera/depth") as machine:
        findings = examine(machine)
    assert "nobody publishes /depth/image_raw" in found(findings, "topics")
    assert "/camera/depth" in found(findings, "topics")
    assert "'camera_link' has its z axis up" in found(findings, "camera frame")


@pytest.mark.ros
def test_empty_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        findings = examine_graph(duration_s=0.2)
    assert has_errors(findings)
    assert "nobody publishes /color/image_raw" in found(findings, "topics")


class StandIn:
    """A node of the name and in a namespace, with the parameters that doctor asks for."""

    def __init__(self, machine: Robot, namespace: str) -> None:
        self.node = rclpy.create_node("perception", context=machine.context, namespace=namespace)
        self.node.declare_parameter("cameras", ["camera"])
        self.node.declare_parameter("fusion_frame", "odom")
        self.diagnostics = self.node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.overlay = self.node.create_publisher(Image, "~/overlay/image", 2)
        self.health = Health(self.node.get_fully_qualified_name().lstrip("/"))
        self.executor = SingleThreadedExecutor(context=machine.context)
        self.executor.add_node(self.node)
        self.node.create_timer(0.2, self.tell)
        self.thread = threading.Thread(target=self.executor.spin, daemon=True)
        self.thread.start()

    def tell(self) -> None:
        counts = FrameCounts(received=len(self.node.get_namespace()), fused=0)
        self.diagnostics.publish(self.health.diagnostics(0, "active", counts, {}))

    def close(self) -> None:
        self.executor.shutdown()
        self.thread.join(60)
        self.node.destroy_node()


@pytest.mark.ros
def test_each_robots_node_is_examined_by_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with robot(monkeypatch) as machine:
        nodes = [StandIn(machine, "/r1"), StandIn(machine, "/robot2")]
        try:
            both = examine(machine, 0.5)
            second = examine(machine, 1.5, namespace="robot2")
            absent = examine(machine, 0.5, namespace="robot3")
        finally:
            for node in nodes:
                node.close()
    assert "there are 2 nodes 'perception', in /r1, /robot2" in found(both, "node")
    assert "active; 0 of 7 frames fused" in found(second, "node", Severity.OK)  # len("/robot2")
    assert "nobody publishes /robot2/color/image_raw" in found(second, "topics")
    assert "/robot3/perception is not running" in found(absent, "node", Severity.WARNING)
    assert "nobody publishes /robot3/depth/image_raw" in found(absent, "topics")


@pytest.mark.ros
def test_only_topics_that_a_driver_publishes_are_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    with robot(monkeypatch, depth_topic="/camera/depth") as machine:
        node = StandIn(machine, "/")
        machine.node.create_subscription(Image, "/nobody/publishes/this", lambda _: None, 1)
        try:
            text = found(examine(machine, 0.5), "topics")
        finally:
            node.close()
    assert "nobody publishes /depth/image_raw" in text
    assert "/camera/depth" in text
    assert "overlay" not in text
    assert "/nobody/publishes/this" not in text


@pytest.mark.ros
def test_a_node_that_is_discovered_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with robot(monkeypatch) as machine:
        nodes: list[StandIn] = []
        timer = threading.Timer(3.5, lambda: nodes.append(StandIn(machine, "/")))
        timer.start()
        try:
            findings = examine(machine, 1.0)
        finally:
            timer.join()
            nodes[0].close()
    assert "not running" not in found(findings, "node", Severity.WARNING)
    assert "active" in found(findings, "node", Severity.OK)


def test_depth_that_the_node_registers_is_looked_at_as_registered() -> None:
    camera = Intrinsics(60.0, 60.0, 31.5, 21.5, 64, 44)
    T = np.eye(4)
    T[0, 3] = 0.05
    listener = object.__new__(live_doctor._Listener)
    evidence = CameraEvidence(frames={"color": "optical"}, calibrations=[CameraModel(camera)])
    listener.evidence, listener._depth_models = {"camera": evidence}, {}
    listener.transforms = SimpleNamespace(lookup=lambda target, source, stamp_ns: Found(T))
    depth_m = np.full((44, 64), 1.0, np.float32)
    message = make_image(depth_m, "32FC1", 1, "depth_optical")
    assert listener._at_color("camera", message, depth_m) is depth_m
    assert not evidence.registered_here
    own = Intrinsics(63.0, 63.0, 31.5, 21.5, 64, 44)
    listener._depth_models["camera"] = CameraModel(own)
    found = listener._at_color("camera", message, depth_m)
    assert (found == register_depth(depth_m, own, camera, T)).all()
    assert evidence.registered_here
    (finding,) = check_registration("optical", "depth_optical", evidence.registered_here)
    assert finding.severity == Severity.OK
