"""What the node hears and misses: latched topics, silent cameras, clocks that change, frames with two publishers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, Image
from support.fusion_rig import Rig, camera_parameters
from support.ros_live import MAPPING_CAMERA, OPTICAL, own_domain, scene_depth, turned, wait_until
from tf2_msgs.msg import TFMessage

from embodied_perceptron_ros.conversion.values import make_camera_info, make_image, make_transform_stamped
from embodied_perceptron_ros.node.health import Health
from embodied_perceptron_ros.node.inputs import SILENT_S, CameraSubscriptions, Silence
from embodied_perceptron_ros.node.perception_node import PerceptionNode, WaitingClock
from embodied_perceptron_ros.node.transforms import TreeTransforms, make_transform_source

pytestmark = pytest.mark.ros
S = 1_000_000_000


class Graph:
    """A node that listens, and one that publishes."""

    def __init__(self, domain: int) -> None:
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.listener, self.driver = (rclpy.create_node(name, context=self.context) for name in ("listener", "driver"))
        for node in (self.listener, self.driver):
            self.executor.add_node(node)

    def spin_until(self, condition: Any, seconds: float = 60.0) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.executor.spin_once(timeout_sec=0.05)
            if condition():
                return True
        return False

    def close(self) -> None:
        self.executor.shutdown()
        for node in (self.listener, self.driver):
            node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture
def graph() -> Iterator[Graph]:
    with own_domain() as domain:
        graph = Graph(domain)
        yield graph
        graph.close()


class Taken:
    """An inbox that keeps what it gets."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    def put(self, received: Any) -> None:
        self.received.append(received)

    def miss(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("durability", [DurabilityPolicy.TRANSIENT_LOCAL, DurabilityPolicy.VOLATILE])
@pytest.mark.parametrize("reliability", [ReliabilityPolicy.RELIABLE, ReliabilityPolicy.BEST_EFFORT])
def test_calibration_is_heard_of_every_publisher_once(graph, durability, reliability):
    """Latched, and sent once before the node listens; or sent on and on."""
    latched = durability == DurabilityPolicy.TRANSIENT_LOCAL and reliability == ReliabilityPolicy.RELIABLE
    camera = camera_parameters("camera")
    qos = QoSProfile(depth=5, durability=durability, reliability=reliability)
    publisher = graph.driver.create_publisher(CameraInfo, camera.info_topic, qos)
    if latched:
        publisher.publish(make_camera_info(MAPPING_CAMERA, S, OPTICAL))
    inbox = Taken()
    subscriptions = CameraSubscriptions(graph.listener, (camera,), inbox, Health("test"))
    try:
        count = 0

        def heard() -> bool:
            nonlocal count
            if not latched:
                count += 1
                publisher.publish(make_camera_info(MAPPING_CAMERA, count * S, OPTICAL))
            subscriptions.subscribe_latched()
            return bool(inbox.received)

        assert graph.spin_until(heard)
        before, stamp = len(inbox.received), 10_000 * S
        publisher.publish(make_camera_info(MAPPING_CAMERA, stamp, OPTICAL))
        assert graph.spin_until(lambda: inbox.received[-1].message.header.stamp.sec == 10_000)
        graph.spin_until(lambda: False, 0.3)
        assert sum(r.message.header.stamp.sec == 10_000 for r in inbox.received) == 1, "not by both subscriptions"
        assert before >= 1
    finally:
        subscriptions.close()


@pytest.mark.parametrize("durability", [DurabilityPolicy.TRANSIENT_LOCAL, DurabilityPolicy.VOLATILE])
def test_static_transforms_are_heard_of_every_publisher(graph, durability):
    """Players and bridges repeat /tf_static without keeping it for late ones."""
    source = make_transform_source(graph.listener)
    qos = QoSProfile(depth=5, durability=durability)
    publisher = graph.driver.create_publisher(TFMessage, "/tf_static", qos)
    message = TFMessage(transforms=[make_transform_stamped(turned(0.0, 1.0), 0, "base", "camera")])

    def known() -> bool:
        publisher.publish(message)
        return hasattr(source.lookup("base", "camera", S), "T")

    try:
        assert graph.spin_until(known)
    finally:
        source.close()


def test_the_printed_remedy_for_best_effort_transforms_works():
    """doctor says: -p qos_overrides./tf.subscription.reliability:=best_effort."""
    with own_domain() as domain:
        context = Context()
        arguments = ["--ros-args", "-p", "qos_overrides./tf.subscription.reliability:=best_effort"]
        rclpy.init(context=context, domain_id=domain, args=arguments)
        node = rclpy.create_node("perception", context=context)
        source = make_transform_source(node)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        publisher = node.create_publisher(
            TFMessage, "/tf", QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
        )
        deadline, known = time.monotonic() + 60, False
        try:
            while not known and time.monotonic() < deadline:
                publisher.publish(TFMessage(transforms=[make_transform_stamped(turned(0.0), 5 * S, "odom", "base")]))
                executor.spin_once(timeout_sec=0.1)
                known = hasattr(source.lookup("odom", "base", 5 * S), "T")
            assert known
        finally:
            source.close()
            node.destroy_node()
            rclpy.shutdown(context=context)


# ---------------------------------------------------------------------------------------------------------- silence


def topics_of(*cameras: str) -> dict[Any, str]:
    return {(name, kind): f"/{name}/{kind}" for name in cameras for kind in ("color", "depth", "info")}


@pytest.mark.parametrize(
    ("topic", "kind", "words"),
    [
        ("", None, "nobody publishes it: start the driver"),
        ("/color", Image, "FASTDDS_DEFAULT_PROFILES_FILE="),
    ],
)
def test_what_to_do_about_silence_depends_on_who_publishes(graph, topic, kind, words):
    if kind is not None:
        graph.driver.create_publisher(kind, topic, 1)
    camera = dataclasses.replace(camera_parameters("camera"), color_topic="/color")
    subscriptions = CameraSubscriptions(graph.listener, (camera,), Taken(), Health("test"))
    subscriptions.silence._began_s -= 60.0
    try:
        assert graph.spin_until(lambda: words in subscriptions.silence.silent()[0])
    finally:
        subscriptions.close()


def test_messages_that_combine_colour_and_depth_are_named(graph, monkeypatch):
    there = [("/camera/rgbd", ["realsense2_camera_msgs/msg/RGBD"]), ("/tf", ["tf2_msgs/msg/TFMessage"])]
    monkeypatch.setattr(graph.listener, "get_topic_names_and_types", lambda: there)
    subscriptions = CameraSubscriptions(graph.listener, (camera_parameters("camera"),), Taken(), Health("test"))
    subscriptions.silence._began_s -= 60.0
    try:
        assert "/camera/rgbd (realsense2_camera_msgs/msg/RGBD): messages that" in subscriptions.silence.silent()[0]
    finally:
        subscriptions.close()


def test_a_simulation_that_is_paused_is_no_driver_that_has_stopped():
    now_s, clock_ns = [0.0], [0]
    silence = Silence(topics_of("front"), lambda: now_s[0], simulated_ns=lambda: clock_ns[0])

    def second(moves: bool, images: bool) -> list[str]:
        now_s[0] += 1.0
        clock_ns[0] += S * moves
        for kind in ("color", "depth", "info") if images else ():
            silence.received("front", kind)
        return silence.silent()

    silences = [second(moves=False, images=False) for _ in range(8)]
    assert silences[-1] == ["/clock has stood still for 7 s: nobody publishes it"]
    assert not any(second(moves=True, images=True) for _ in range(10))
    paused = [second(moves=False, images=False) for _ in range(20)]
    assert paused[-1] == ["/clock has stood still for 20 s: the simulation or the player is paused or has ended"]
    assert not any("driver" in message for messages in paused for message in messages)
    for _ in range(3):
        problems = second(moves=True, images=False)
    assert "the driver has stopped" in problems[0]  # /clock runs again, and still no image comes


def test_silent_topics_have_their_names_after_remapping_and_namespaces():
    with own_domain() as domain:
        context = Context()
        rclpy.init(context=context, domain_id=domain, args=["--ros-args", "-r", "/r1/camera/depth:=/driver/depth"])
        node = rclpy.create_node("perception", namespace="r1", context=context)
        camera = dataclasses.replace(camera_parameters("camera"), color_topic="color", depth_topic="camera/depth")
        subscriptions = CameraSubscriptions(node, (camera,), Taken(), Health("test"))
        subscriptions.silence._began_s -= 60.0
        try:
            problems = " ".join(subscriptions.silence.silent())
            assert "no colour image on /r1/color since" in problems
            assert "no depth image on /driver/depth since" in problems
        finally:
            subscriptions.close()
            node.destroy_node()
            rclpy.shutdown(context=context)


def test_every_input_that_is_silent_is_named():
    now_s = [0.0]
    silence = Silence(topics_of("front", "rear"), lambda: now_s[0])
    assert silence.silent() == []
    for step in range(1, 101):
        now_s[0] = step * 0.1
        for kind in ("color", "depth", "info"):
            silence.received("front", kind)
    assert len(silence.silent()) == 3
    assert all("'rear'" in words and "since the node listens, 10 s" in words for words in silence.silent())
    now_s[0] += SILENT_S + 1
    silence.received("front", "depth")
    words = [w for w in silence.silent() if "'front'" in w]
    assert words == ["camera 'front': no colour image on /front/color for 6 s: the driver has stopped"]
    assert silence.ages()["input.front.color_age_s"] == 6.0
    assert silence.ages()["input.rear.depth_age_s"] == -1.0


def test_a_slow_camera_is_not_missed_between_two_images_and_calibration_may_come_once():
    now_s = [0.0]
    silence = Silence(topics_of("slow"), lambda: now_s[0])
    silence.received("slow", "info")
    for image in range(5):
        now_s[0] = 8.0 * image
        for kind in ("color", "depth"):
            silence.received("slow", kind)
    now_s[0] += 20.0
    assert silence.silent() == []
    now_s[0] += 5.0
    assert len(silence.silent()) == 2


# ----------------------------------------------------------------------------------------------------------- clocks


class SwitchedClock:
    """A node's clock whose ``use_sim_time`` may be set."""

    ros_time_is_active = False
    simulated_ns = 0

    def now(self) -> Any:
        return SimpleNamespace(nanoseconds=self.simulated_ns)


def test_use_sim_time_set_on_a_running_node_is_no_time_jump():
    clock, up_ns = SwitchedClock(), [90_000 * S]
    waiting = WaitingClock(clock, lambda: up_ns[0])
    rig = Rig(now_ns=waiting.now_ns)
    try:
        for i in range(3):
            rig.frame()
            rig.wait(fused=i + 1)
        for step, (active, simulated_ns) in enumerate(((True, 0), (True, 500 * S), (True, 501 * S), (False, 0))):
            clock.ros_time_is_active, clock.simulated_ns = active, simulated_ns
            up_ns[0] += S // 10
            rig.frame()
            rig.wait(fused=4 + step)
        assert rig.health.counted("time_jumps") == 0
        assert rig.perceptron.statistics().frames_fused == 7, "nothing was reset"
        clock.ros_time_is_active, clock.simulated_ns = True, 700 * S
        rig.frame()
        rig.wait(fused=8)
        clock.simulated_ns = 10 * S  # the simulation was started again: that is one
        rig.inbox.wake()
        wait_until(lambda: rig.health.counted("time_jumps") == 1)
    finally:
        rig.close()


# ------------------------------------------------------------------------------------------------- names and frames


def test_two_nodes_of_one_name_are_told_of():
    with own_domain() as domain:
        context = Context()
        rclpy.init(context=context, domain_id=domain)
        nodes = [PerceptionNode(context=context, start_parameter_services=False) for _ in range(2)]
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                nodes[0]._looked_s = float("-inf")
                nodes[0]._check_duplicates()
                if nodes[0].health.problems():
                    break
                time.sleep(0.1)
            assert "there are 2 nodes /perception" in nodes[0].health.problems()[0][2]
        finally:
            for node in nodes:
                node.close()
                node.destroy_node()
            rclpy.shutdown(context=context)


def test_two_cameras_of_one_frame_are_told_of():
    rig = Rig(("left", "right"))
    try:
        rig.frame()
        wait_until(lambda: any("left, right all name the frame" in words for _, _, words in rig.health.problems()))
    finally:
        rig.close()


@pytest.mark.parametrize("has_senders", [True, False])  # rclpy names the sender from Kilted on
@pytest.mark.parametrize(
    ("parents", "apart_m", "told"),
    [(("odom", "odom"), 2.0, True), (("odom", "map"), 0.0, True), (("odom", "odom"), 0.05, False)],
)
def test_a_frame_that_two_publishers_set_differently_is_told_of(graph, has_senders, parents, apart_m, told):
    source = TreeTransforms(graph.listener)
    try:
        for step in range(20):
            for sender, (parent, x_m) in enumerate(zip(parents, (0.0, apart_m), strict=True)):
                T = np.eye(4)
                T[0, 3] = x_m + 0.01 * step
                stamped = make_transform_stamped(T, (10 * step + sender) * S // 100, parent, "base_link")
                source._receive(TFMessage(transforms=[stamped]), False, bytes([sender]) if has_senders else b"")
        assert ("base_link" in source.conflicts) is told
    finally:
        source.close()


@pytest.mark.parametrize("senders", [(b"old", b"new"), (b"", b"")])
def test_a_publisher_that_was_started_again_is_no_rival(graph, senders):
    source = TreeTransforms(graph.listener)
    try:
        for step in range(40):
            T = np.eye(4)
            T[0, 3] = 0.0 if step < 20 else 5.0
            stamped = make_transform_stamped(T, step * S // 10, "odom", "base_link")
            source._receive(TFMessage(transforms=[stamped]), False, senders[step >= 20])
        assert source.conflicts == {}
    finally:
        source.close()


@pytest.mark.parametrize(("colour_changes", "depth_changes"), [(True, False), (False, False), (True, True)])
def test_depth_that_stands_still_while_colour_goes_on_is_told_of(colour_changes, depth_changes):
    """A robot at rest in a simulation without noise sees the same twice: that is no fault."""
    rig = Rig()
    rig.backlog = 100
    try:
        for i in range(40):
            rig.stamp_ns += 67 * 1_000_000
            depth = scene_depth(1.5 + (0.001 * i if depth_changes else 0.0))
            pixels = np.full((60, 80, 3), 90 + (i if colour_changes else 0), np.uint8)
            image = make_image(pixels, "rgb8", 0, OPTICAL)
            rig.frame(depth=depth, color={"data": image.data})
            rig.wait(fused=i + 1)
        told = [words for _, area, words in rig.health.problems() if "depth has not changed" in words]
        assert bool(told) is (colour_changes and not depth_changes)
    finally:
        rig.close()
