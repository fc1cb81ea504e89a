"""Players as separate processes: what a subscriber receives is what the recording holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_perceptron.geometry.transforms import Intrinsics

rclpy = pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs.msg")


from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy  # noqa: E402
from rclpy.serialization import serialize_message  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import CameraInfo, Image  # noqa: E402
from support.ros_live import own_domain  # noqa: E402
from tf2_msgs.msg import TFMessage  # noqa: E402

from embodied_perceptron.recordings.tum import CameraMount, TumWriter  # noqa: E402
from embodied_perceptron_ros.conversion.values import depth_from_message, stamp_to_ns  # noqa: E402
from embodied_perceptron_ros.node.health import FrameCounts, Health  # noqa: E402
from embodied_perceptron_ros.players.bag_player import BagPlayer, message_class, topic_in  # noqa: E402
from embodied_perceptron_ros.players.folder_player import encode_depth  # noqa: E402
from embodied_perceptron_ros.players.playback import (  # noqa: E402
    EXIT_NO_SUBSCRIBER,
    NoSubscriberError,
    read_ahead,
    wait_for_subscribers,
)

pytestmark = pytest.mark.ros

INTRINSICS = Intrinsics(fx=50.0, fy=50.0, cx=31.5, cy=23.5, width=64, height=48)
PERIOD_NS = 50_000_000
START_NS = 1_700_000_000_000_000_000
FRAMES = 6
TOPICS = {"color/image_raw": Image, "depth/image_raw": Image, "color/camera_info": CameraInfo, "/clock": Clock}


def depth_image(index: int) -> np.ndarray:
    depth = np.full((48, 64), 1.0 + 0.125 * index, np.float32)
    depth[0, :8] = 0.0
    return depth


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "recording"
    with TumWriter(path, INTRINSICS, mount=CameraMount("base_link", np.eye(4))) as writer:
        for index in range(FRAMES):
            color = np.full((48, 64, 3), 10 * index, np.uint8)
            T = np.eye(4)
            T[0, 3] = 0.1 * index
            writer.add(START_NS + index * PERIOD_NS, color, depth_image(index), T)
    return path


class Listener:
    """Subscribes like a node would and keeps everything."""

    def __init__(self, domain: int, prefix: str = "") -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node("listener", context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.received: dict[str, list[Any]] = {}
        self._prefix = prefix

    def subscribe(self, topic: str, kind: Any, latched: bool = False) -> None:
        qos = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
        if latched:
            qos.durability = DurabilityPolicy.TRANSIENT_LOCAL
        self.received[topic] = []
        self.node.create_subscription(kind, topic, self.received[topic].append, qos)

    def subscribe_all(self) -> None:
        for topic, kind in TOPICS.items():
            self.subscribe(topic, kind)
        self.subscribe("/tf", TFMessage)
        self.subscribe("/tf_static", TFMessage, latched=True)

    def spin_until_exit(self, process: subprocess.Popen[str], timeout_s: float = 100.0) -> int:
        deadline = time.monotonic() + timeout_s
        while process.poll() is None:
            assert time.monotonic() < deadline, "the player does not end"
            self.executor.spin_once(timeout_sec=0.05)
        kept = -1  # the player ended when everything was delivered; what waits here is still to be taken
        while kept < (kept := sum(map(len, self.received.values()))):
            for _ in range(100):
                self.executor.spin_once(timeout_sec=0.002)
        return process.returncode


@pytest.fixture
def domain() -> Iterator[int]:
    with own_domain() as number:
        yield number


@pytest.fixture
def listener(domain: int) -> Iterator[Listener]:
    listener = Listener(domain)
    yield listener
    listener.executor.shutdown()
    listener.node.destroy_node()
    rclpy.shutdown(context=listener.context)


def start(player: str, *arguments: Any, domain: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
    command = [sys.executable, "-m", f"embodied_perceptron_ros.players.{player}", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_folder_player_sends_every_frame(folder: Path, listener: Listener, domain: int, tmp_path: Path) -> None:
    listener.subscribe_all()
    report = tmp_path / "report.json"
    process = start("folder_player", folder, "--clock", "--rate", 2, "--report", report, domain=domain)
    assert listener.spin_until_exit(process) == 0, process.stdout
    got = listener.received
    assert [stamp_to_ns(m.header.stamp) for m in got["color/image_raw"]] == [
        START_NS + i * PERIOD_NS for i in range(FRAMES)
    ]
    assert [m.data[0] for m in got["color/image_raw"]] == [10 * i for i in range(FRAMES)]
    for index, message in enumerate(got["depth/image_raw"]):
        assert message.encoding == "32FC1"
        np.testing.assert_allclose(depth_from_message(message), depth_image(index), atol=5e-4)
    assert len(got["depth/image_raw"]) == len(got["color/camera_info"]) == FRAMES
    assert {m.header.frame_id for m in got["color/image_raw"]} == {got["color/camera_info"][0].header.frame_id}
    moving = [t for m in got["/tf"] for t in m.transforms]
    assert [round(t.transform.translation.x, 6) for t in moving] == [round(0.1 * i, 6) for i in range(FRAMES)]
    assert {(t.header.frame_id, t.child_frame_id) for t in moving} == {("odom", "base_link")}
    (static,) = [t for m in got["/tf_static"] for t in m.transforms]
    assert (static.header.frame_id, static.child_frame_id) == ("base_link", got["depth/image_raw"][0].header.frame_id)
    clock = [stamp_to_ns(m.clock) for m in got["/clock"]]
    assert clock == sorted(clock)
    assert clock[-1] == START_NS + (FRAMES - 1) * PERIOD_NS
    written = json.loads(report.read_text())
    assert written["frames_sent"] == FRAMES
    assert written["complete"] is True
    assert written["acknowledged"] is True
    assert written["messages"]["/color/image_raw"] == FRAMES


@pytest.mark.slow
def test_player_holds_back_until_somebody_listens(folder: Path, listener: Listener, domain: int) -> None:
    for topic in ("color/image_raw", "color/camera_info"):  # not depth, not /tf
        listener.subscribe(topic, TOPICS[topic])
    process = start("folder_player", folder, "--timeout", 8, domain=domain)
    assert listener.spin_until_exit(process) == 3
    assert process.stdout is not None
    output = process.stdout.read()
    assert "no subscriber on /depth/image_raw, /tf" in output
    assert listener.received["color/image_raw"] == []


@pytest.mark.parametrize(
    ("counts", "wanted", "words"),
    [
        ({"/color": 1, "/depth": 0, "/tf": 0}, set(), "no subscriber on /depth, /tf after 0 s: is the node running"),
        ({"/color": 0, "/tf": 1}, {"/rgb"}, "no subscriber on /color after 0 s: the node subscribes to /rgb"),
    ],
)
def test_topics_that_nobody_hears_are_named(
    counts: dict[str, int], wanted: set[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rclpy, "ok", lambda **_: True)
    publishers = {
        topic: SimpleNamespace(topic_name=topic, get_subscription_count=lambda count=count: count)
        for topic, count in counts.items()
    }
    with pytest.raises(NoSubscriberError, match=words):
        wait_for_subscribers(publishers, 0.0, lambda: None, wanted=lambda: wanted)


@pytest.mark.slow
def test_player_waits_for_a_node_that_configures(folder: Path, listener: Listener, domain: int) -> None:
    """Its timeout of 5 s counts only from the moment that the node's diagnostics stop telling of a configuration."""
    diagnostics = listener.node.create_publisher(DiagnosticArray, "/diagnostics", 10)
    health = Health("perception")
    process = start("folder_player", folder, "--timeout", 5, domain=domain)
    until = time.monotonic() + 12
    while time.monotonic() < until:
        diagnostics.publish(health.diagnostics(0, "configuring", FrameCounts(), {}))
        listener.executor.spin_once(timeout_sec=0.1)
        assert process.poll() is None
    listener.subscribe_all()
    assert listener.spin_until_exit(process) == 0
    assert len(listener.received["color/image_raw"]) == FRAMES


@pytest.mark.slow
def test_player_says_that_the_node_is_inactive(folder: Path, listener: Listener, domain: int) -> None:
    diagnostics = listener.node.create_publisher(DiagnosticArray, "/diagnostics", 10)
    timer = listener.node.create_timer(
        0.1, lambda: diagnostics.publish(Health("perception").diagnostics(0, "inactive", FrameCounts(), {}))
    )
    process = start("folder_player", folder, "--timeout", 5, domain=domain)
    assert listener.spin_until_exit(process) == 3
    timer.cancel()
    assert process.stdout is not None
    assert "the node is inactive" in process.stdout.read()


@pytest.mark.slow
def test_player_ends_on_interrupt(folder: Path, listener: Listener, domain: int, tmp_path: Path) -> None:
    listener.subscribe_all()
    report = tmp_path / "report.json"
    process = start("folder_player", folder, "--rate", 0.01, "--report", report, domain=domain)
    deadline = time.monotonic() + 60
    while not listener.received["color/image_raw"] and time.monotonic() < deadline:
        listener.executor.spin_once(timeout_sec=0.05)
    process.send_signal(signal.SIGINT)
    assert listener.spin_until_exit(process) == 130
    assert json.loads(report.read_text())["complete"] is False


@pytest.mark.parametrize(("interrupted", "code"), [(True, 130), pytest.param(False, 1, marks=pytest.mark.slow)])
def test_interruption_while_something_is_sent(interrupted: bool, code: int, tmp_path: Path, domain: int) -> None:
    """Ctrl-C shuts ROS down between a look at it and what is published next; any other fault stays one."""
    program = f"""
import contextlib, sys, rclpy
from std_msgs.msg import String
from embodied_perceptron_ros.players.playback import PlaybackReport, player_parser, run_player

class Player:
    def __init__(self, node):
        self.publisher = node.create_publisher(String, "said", 1)
        self.report = PlaybackReport("nothing")

def play(player, options):
    if {interrupted}:
        rclpy.shutdown()
        player.publisher.publish(String(data="too late"))
    raise RuntimeError("a fault")

opened = lambda node, options: contextlib.nullcontext(Player(node))
sys.exit(run_player(player_parser("toy", "", "SOURCE"), opened, play, ["nothing", "--report", sys.argv[1]]))
"""
    report = tmp_path / "report.json"
    command = [sys.executable, "-c", program, str(report)]
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == code, ended.stderr
    assert ("a fault" in ended.stderr) is not interrupted
    assert json.loads(report.read_text())["complete"] is False


def test_ctrl_c_several_times_ends_a_player_without_a_traceback() -> None:
    """A terminal sends SIGINT to the whole group, and ros2 launch again to each process."""
    program = """
import contextlib, sys, threading, time, rclpy
from embodied_perceptron_ros.players.playback import PlaybackReport, player_parser, read_ahead, run_player

class Player:
    report = PlaybackReport("nothing")

shut_down, rclpy.try_shutdown = rclpy.try_shutdown, lambda **_: check_thread()

def check_thread():
    if rclpy.ok() and threading.current_thread() is threading.main_thread():
        print("ROS is shut down inside of the handler", file=sys.stderr)
    shut_down()

def endless():
    while True:
        time.sleep(30)
        yield 1

def play(player, options):
    print("playing", flush=True)
    for _ in read_ahead(endless(), 2, lambda: not rclpy.ok()):
        pass

opened = lambda node, options: contextlib.nullcontext(Player())
sys.exit(run_player(player_parser("toy", "", "SOURCE"), opened, play, ["nothing"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "playing\n"
        for _ in range(4):
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in errors, errors
        assert "inside of the handler" not in errors, errors
    finally:
        process.kill()


@pytest.mark.parametrize("player", ["folder_player", pytest.param("bag_player", marks=pytest.mark.slow)])
def test_bad_source_is_named(player: str, tmp_path: Path, domain: int) -> None:
    process = start(player, tmp_path / "nothing", domain=domain)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "nothing" in output


def write_bag(path: Path, plugin: Any) -> None:
    from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
    from rosbags.rosbag2 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    types = store.types
    latched = Qos(
        QosHistory.KEEP_LAST, 1, QosReliability.RELIABLE, QosDurability.TRANSIENT_LOCAL, *(QosTime(0, 0),) * 2,
        QosLiveliness.AUTOMATIC, QosTime(0, 0), False,
    )  # fmt: skip
    with Writer(path, version=9, storage_plugin=plugin) as writer:
        image = writer.add_connection("/camera/depth", "sensor_msgs/msg/Image", typestore=store)
        text = writer.add_connection("/label", "std_msgs/msg/String", typestore=store, offered_qos_profiles=[latched])
        for index in range(FRAMES):
            stamp_ns = START_NS + index * PERIOD_NS
            stamp = types["builtin_interfaces/msg/Time"](sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
            header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="camera")
            message = types["sensor_msgs/msg/Image"](
                header=header, height=2, width=3, encoding="16UC1", is_bigendian=0, step=6,
                data=np.full(12, index, np.uint8),
            )  # fmt: skip
            writer.write(image, stamp_ns, store.serialize_cdr(message, image.msgtype))
        label = store.serialize_cdr(types["std_msgs/msg/String"](data="chair"), text.msgtype)
        writer.write(text, START_NS, label)


@pytest.mark.parametrize("plugin", ["MCAP", pytest.param("SQLITE3", marks=pytest.mark.slow)])
def test_bag_player_sends_messages_as_recorded(plugin: str, tmp_path: Path, listener: Listener, domain: int) -> None:
    from rosbags.rosbag2 import StoragePlugin
    from std_msgs.msg import String

    bag = tmp_path / "bag"
    write_bag(bag, StoragePlugin[plugin])
    listener.subscribe("/renamed", Image)
    report = tmp_path / "report.json"
    remap = ["--ros-args", "-r", "/camera/depth:=/renamed"]
    process = start("bag_player", bag, "--rate", 0.1, "--report", report, *remap, domain=domain)
    deadline = time.monotonic() + 60
    while not listener.received["/renamed"] and time.monotonic() < deadline:
        listener.executor.spin_once(timeout_sec=0.05)
    listener.subscribe("/label", String, latched=True)  # later than it was sent
    assert listener.spin_until_exit(process) == 0
    images = listener.received["/renamed"]
    assert [m.data[0] for m in images] == list(range(FRAMES))
    assert [stamp_to_ns(m.header.stamp) for m in images] == [START_NS + i * PERIOD_NS for i in range(FRAMES)]
    assert [m.data for m in listener.received["/label"]] == ["chair"]
    assert json.loads(report.read_text())["messages"] == {"/camera/depth": FRAMES, "/label": 1}


def write_ordinary_bag(path: Path, topics: dict[str, str]) -> None:
    """Every topic has ``FRAMES`` empty messages of its type."""
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        store = get_typestore(Stores.ROS2_JAZZY)
        for topic, kind in topics.items():
            connection = writer.add_connection(topic, kind, typestore=store)
            raw = serialize_message(message_class(kind)())
            for index in range(FRAMES):
                writer.write(connection, START_NS + index * PERIOD_NS, raw)


@pytest.mark.parametrize("chosen", [(), ("/color/image_raw", "/depth/image_raw", "/perception/boxes")])
def test_ordinary_bags_are_played(chosen: tuple[str, ...], tmp_path: Path, listener: Listener, domain: int) -> None:
    """One more camera, and what this node published when the bag was recorded: that is not played onto the live node,
    unless it is asked for."""
    image, state = "sensor_msgs/msg/Image", "diagnostic_msgs/msg/DiagnosticArray"
    inputs = {"/color/image_raw": image, "/depth/image_raw": image, "/infra1/image_rect_raw": image, "/odom2": state}
    outputs = {
        "/perception/boxes": "std_msgs/msg/String",
        "/status": state,
        "/diagnostics": state,
        "/robot/bond": state,
    }
    write_ordinary_bag(tmp_path / "bag", {**inputs, **outputs, "/tf": "tf2_msgs/msg/TFMessage"})
    perception = rclpy.create_node("perception", context=listener.context)
    listener.executor.add_node(perception)
    for topic in ("/perception/boxes", "/status"):
        perception.create_publisher(message_class(outputs[topic]), topic, 1)
    for topic in ("/color/image_raw", "/depth/image_raw"):
        perception.create_subscription(Image, topic, lambda _: None, 10)
    perception.create_subscription(TFMessage, "/tf", lambda _: None, 10)
    report = tmp_path / "report.json"
    arguments = ["--topics", *chosen] if chosen else []
    process = start("bag_player", tmp_path / "bag", "--rate", 10, "--report", report, *arguments, domain=domain)
    try:
        assert listener.spin_until_exit(process) == 0
    finally:
        perception.destroy_node()
    assert process.stdout is not None
    output, played = process.stdout.read(), json.loads(report.read_text())["messages"]
    assert set(played) == (set(chosen) or {*inputs, "/tf"})
    for topic in () if chosen else outputs:
        assert f"{topic} (" in output


@pytest.mark.slow
def test_a_bag_without_the_nodes_topics_is_refused_with_both_names(
    tmp_path: Path, listener: Listener, domain: int
) -> None:
    write_ordinary_bag(tmp_path / "bag", {"/head/rgb": "sensor_msgs/msg/Image", "/tf": "tf2_msgs/msg/TFMessage"})
    perception = rclpy.create_node("perception", context=listener.context)
    perception.create_subscription(Image, "/color/image_raw", lambda _: None, 10)
    process = start("bag_player", tmp_path / "bag", "--timeout", 8, domain=domain)
    try:
        assert listener.spin_until_exit(process) == EXIT_NO_SUBSCRIBER
    finally:
        perception.destroy_node()
    assert process.stdout is not None
    output = process.stdout.read()
    assert "no subscriber on /head/rgb" in output
    assert "the node subscribes to /color/image_raw" in output


def test_read_ahead_keeps_order_and_raises_in_turn() -> None:
    assert list(read_ahead(range(100), 3)) == list(range(100))

    def broken() -> Iterator[int]:
        yield 1
        raise RuntimeError("torn page")

    items = read_ahead(broken(), 3)
    assert next(items) == 1
    with pytest.raises(RuntimeError, match="torn page"):
        next(items)


def test_read_ahead_is_bounded_and_ends_when_given_up() -> None:
    made: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            made.append(len(made))
            yield made[-1]

    before = threading.active_count()
    items = read_ahead(endless(), 3)
    assert next(items) == 0
    time.sleep(0.1)
    assert len(made) <= 1 + 3 + 1  # taken, waiting, in hand
    items.close()
    assert threading.active_count() == before


def test_depth_encodings() -> None:
    depth = np.array([[0.0, 1.2345, np.inf, 70.0]], np.float32)
    metres = encode_depth(depth, "32FC1")
    assert np.isnan(metres[0, 0])
    np.testing.assert_array_equal(metres[0, 1:], depth[0, 1:])
    np.testing.assert_array_equal(encode_depth(depth, "16UC1"), np.array([[0, 1234, 0, 0]], np.uint16))
    with pytest.raises(ValueError, match="8UC1"):
        encode_depth(depth, "8UC1")


def test_a_bag_is_played_into_the_players_namespace(tmp_path: Path, domain: int) -> None:
    """All but what is not of one robot."""
    from rosbags.highlevel import AnyReader
    from rosbags.rosbag2 import StoragePlugin
    from rosbags.typesys import Stores, get_typestore

    path = tmp_path / "bag"
    write_bag(path, StoragePlugin.MCAP)
    assert topic_in("/", "/color/image_raw") == "/color/image_raw"
    assert topic_in("/robot1", "/color/image_raw") == "/robot1/color/image_raw"
    assert [topic_in("/robot1", t) for t in ("/tf", "/tf_static", "/clock")] == ["/tf", "/tf_static", "/clock"]
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain)
    node = rclpy.create_node("bag_player", context=context, namespace="robot1", start_parameter_services=False)
    try:
        with AnyReader([path], default_typestore=get_typestore(Stores.LATEST)) as reader:
            BagPlayer(node, reader, 1.0, clock=False)
            played = {name for name, _ in node.get_publisher_names_and_types_by_node("bag_player", "/robot1")}
    finally:
        node.destroy_node()
        rclpy.shutdown(context=context)
    assert {"/robot1/camera/depth", "/robot1/label"} <= played
