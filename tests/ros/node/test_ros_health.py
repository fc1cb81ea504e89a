"""Statistics and the diagnostics message; the inbox, and what never reaches it."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy")

import rclpy
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.logging import get_logger
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from support.fusion_rig import Rig, camera_parameters

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.sensors.poses import CameraPoses, Disconnected
from embodied_perceptron.sensors.synchronizer import DropReason
from embodied_perceptron_ros.node.health import (
    ERROR,
    WARN,
    FrameCounts,
    Health,
    Rate,
    RateLimit,
    Series,
    ThrottledLog,
    read_diagnostics,
)
from embodied_perceptron_ros.node.inputs import CameraSubscriptions, FrameInbox, Received
from embodied_perceptron_ros.node.parameters import CameraParameters

pytestmark = pytest.mark.ros
LATER_NS = itertools.count(0, 10**10)


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.close()


def areas_of(health: Health, state: str = "active", counts: FrameCounts | None = None, **areas):
    message = health.diagnostics(5, state, counts or FrameCounts(), areas)
    return read_diagnostics(deserialize_message(serialize_message(message), DiagnosticArray), "perception")


def test_series_percentiles():
    series = Series()
    assert series.summary() == {}
    for value in range(101):
        series.add(float(value))
    assert series.summary() == {"p50": 50.0, "p99": 99.0, "max": 100.0, "count": 101.0}


def test_series_forgets_the_old_but_counts_it():
    series = Series()
    for value in range(10_000):
        series.add(float(value))
    assert series.summary()["count"] == 10_000
    assert series.summary()["p50"] > 7_000


def test_rate():
    now = [0.0]
    rate = Rate(lambda: now[0])
    for _ in range(30):
        rate.tick()
    now[0] = 2.0
    assert rate.take() == 15.0
    now[0] = 3.0
    assert rate.take() == 0.0


def test_frames_are_accounted_for():
    counts = FrameCounts(10, 6, Counter({"no_pair": 2, "no_transform": 1}))
    assert counts.pending == 1
    frames = areas_of(Health("perception"), counts=counts)["frames"]
    assert frames["frames_received"] == "10"
    assert frames["frames_fused"] == "6"
    assert frames["frames_dropped"] == "3"
    assert frames["frames_dropped.no_pair"] == "2"
    assert frames["frames_pending"] == "1"


def test_drops_warn_once_and_say_why():
    health = Health("perception")
    health.explain_drop("no_transform", "no transform from 'cam' to 'odom'")
    counts = FrameCounts(3, 0, Counter(no_transform=3))
    first = areas_of(health, counts=counts)["frames"]
    assert first["level"] == "1"
    assert "no transform from 'cam' to 'odom'" in first["message"]
    assert areas_of(health, counts=counts)["frames"]["level"] == "0"


def test_no_frames_at_all_is_a_warning_only_while_active():
    assert "no frame has arrived" in areas_of(Health("perception"))["frames"]["message"]
    assert areas_of(Health("perception"), state="inactive")["frames"]["level"] == "0"


def test_latency_keys():
    health = Health("perception")
    for value in np.linspace(1, 3, 21):
        health.latency("fused", float(value))
    health.stages("fusion", {"fold": 1.5})
    latency = areas_of(health)["latency"]
    assert latency["fused_ms.p50"] == "2.0"
    assert latency["fused_ms.count"] == "21.0"
    assert latency["fusion.fold_ms.p50"] == "1.5"


def test_problems_show_the_worst_until_they_are_cleared_or_over():
    health = Health("perception")
    health.problem("map", WARN, "nearly full", "budget")
    health.problem("map", ERROR, "gone", "disk", hold_s=-1.0)
    assert areas_of(health, map={"voxels": 3})["map"] == {"level": "1", "message": "nearly full", "voxels": "3"}
    health.problem("map", ERROR, "worse", "other")
    assert areas_of(health, map={})["map"]["message"] == "worse"
    health.clear_problem("map", "other")
    health.clear_problem("map", "budget")
    assert areas_of(health, map={})["map"]["level"] == "0"


def test_only_the_named_node_is_read():
    message = Health("other").diagnostics(5, "active", FrameCounts(), {})
    assert read_diagnostics(message, "perception") == {}
    message = Health("/robot1/perception").diagnostics(5, "active", FrameCounts(), {})
    assert {status.hardware_id for status in message.status} == {"/robot1/perception"}
    assert all(status.name.startswith("/robot1/perception: ") for status in message.status)
    assert read_diagnostics(message, "robot2/perception") == {}
    assert read_diagnostics(message, "perception") == {}
    assert set(read_diagnostics(message, "robot1/perception")) >= {"node", "frames"}


# ----------------------------------------------------------------------------------------------------------- inbox


def make_inbox(mib: float = 512.0, clock=time.monotonic, cameras=("front", "rear")) -> FrameInbox:
    """An inbox without transforms, that nobody empties."""
    log = ThrottledLog(logging.getLogger("inbox"))
    there = [camera_parameters(name) for name in cameras]
    poses = CameraPoses(SimpleNamespace(lookup=lambda *_: Disconnected("odom", "camera")), "odom")
    return FrameInbox(there, SynchronizerConfig(queue_mib=mib), poses, Health("inbox"), log, lambda: 3, clock)


def message(number: int, size: int = 0) -> SimpleNamespace:
    return SimpleNamespace(header=Header(stamp=Time(sec=number + 1)), data=bytes(size), number=number)


def test_undecoded_messages_keep_their_order_and_those_that_wait_too_long_are_dropped():
    now_s = [0.0]
    inbox = make_inbox(clock=lambda: now_s[0])
    for i in range(90):  # as much as comes within a second, whatever the rate
        now_s[0] = i / 89
        inbox.put(Received("color", "front", message(i), 0))
    inbox.settle()
    assert inbox.counts.dropped == {}
    inbox.put(Received("depth", "front", message(-1), 0))
    now_s[0] = 1.5
    inbox.put(Received("color", "front", message(90), 0))
    inbox.put(Received("color", "rear", message(100), 0))
    taken = inbox._undecoded.take_all()
    assert [r.message.number for r in taken if r.kind == "color"] == [*range(45, 91), 100]
    assert [r.message.number for r in taken if r.kind == "depth"] == [-1]
    inbox.settle()
    assert (inbox.counts.received, inbox.counts.dropped) == (45, {DropReason.QUEUE_FULL: 45})
    assert "not decoded in time" in inbox._health._last_drop[DropReason.QUEUE_FULL]
    assert inbox._undecoded.take_all() == []


def test_undecoded_messages_are_bounded_by_memory():
    inbox = make_inbox(mib=1.0)
    for i in range(20):
        for kind in ("color", "depth"):
            inbox.put(Received(kind, "front", message(i, 100_000), 0))
    taken = inbox._undecoded.take_all()
    assert [(r.kind, r.message.number) for r in taken] == [(k, i) for i in range(15, 20) for k in ("color", "depth")]
    inbox.settle()
    assert inbox.counts.dropped == {DropReason.QUEUE_FULL: 15}, "a frame is counted once"
    inbox.put(Received("color", "front", message(0, 2_000_000), 0))
    assert len(inbox._undecoded.take_all()) == 1, "one picture finds room, however large"


def test_one_bound_of_memory_holds_for_all_that_waits(rig):
    """Frames that wait for their pose leave that much less room to messages, and ready ones are the first to go."""
    rig.close()
    frame_bytes = 80 * 60 * (3 + 4)
    rig.inbox._max_bytes = 10 * frame_bytes
    rig.backlog, rig.transforms.early = 100, True
    for _ in range(6):
        rig.frame()
    assert rig.inbox.take(0) is None
    rig.inbox.settle()
    for _ in range(9):
        rig.frame()
    assert rig.inbox._undecoded.nbytes <= 4 * frame_bytes
    assert rig.inbox.counts.pending == 6
    rig.transforms.early = False
    assert rig.inbox.take(0) is not None
    rig.inbox.settle()
    assert len(rig.inbox._ready) <= 9
    lost = rig.inbox.counts.dropped
    assert set(lost) == {DropReason.QUEUE_FULL}
    assert rig.inbox.counts.received == 15


def lost(inbox: FrameInbox) -> int:
    for _ in range(2):
        inbox.take(next(LATER_NS))
    inbox.settle()
    return inbox.counts.dropped[DropReason.LOST]


def test_a_burst_that_the_middleware_cannot_hold_is_accounted_for():
    """Thirty frames while nobody listens: the queue of the middleware keeps ten."""
    context = Context()
    rclpy.init(context=context)
    node = rclpy.create_node("burst", context=context)
    topics = ("/burst/color", "/burst/depth", "/burst/info")
    camera = CameraParameters("front", *topics, "raw", "raw", inf_depth="far", rectified=True)
    inbox = make_inbox(cameras=("front",))
    subscriptions = CameraSubscriptions(node, (camera,), inbox, Health("burst"))
    publishers = [node.create_publisher(Image, f"/burst/{kind}", 10) for kind in ("color", "depth")]
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def send(stamp_s: int) -> None:
        for publisher in publishers:
            publisher.publish(Image(header=Header(stamp=Time(sec=stamp_s))))

    def listen(seconds: float, wanted: int) -> list[Received]:
        received, end_s = [], time.monotonic() + seconds
        while time.monotonic() < end_s and len(received) < wanted:
            executor.spin_once(timeout_sec=0.1)
            received += inbox._undecoded.take_all()
        return received

    try:
        found: set[str] = set()
        for _ in range(300):  # until both ends know each other
            send(1)
            found |= {r.kind for r in listen(0.2, 2)}
            if len(found) == 2:
                break
        assert len(found) == 2
        listen(0.5, 10**6)
        before = lost(inbox)
        for stamp_s in range(2, 32):
            send(stamp_s)
        received: list[Received] = []
        accounted = lambda: sum(r.kind == "color" for r in received) + lost(inbox) - before  # noqa: E731
        end_s = time.monotonic() + 60.0
        while accounted() < 30 and time.monotonic() < end_s:
            received += listen(0.5, 10**6)
        received += listen(0.5, 10**6)  # nothing is counted twice
        assert accounted() == 30
        assert lost(inbox) > before
    finally:
        subscriptions.close()
        node.destroy_node()
        rclpy.shutdown(context=context)


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __getattr__(self, severity: str):
        return lambda text: self.lines.append(f"{severity}: {text}")


def test_one_line_for_each_key_in_a_while():
    now_s, lines = [0.0], Lines()
    log = ThrottledLog(lines, every_s=5.0, clock=lambda: now_s[0])
    for second in range(11):
        now_s[0] = float(second)
        log.warning("a", f"a{second}")
        log.error("b", f"b{second}", every_s=10.0)
        log.info("c", f"c{second}", every_s=0.0)
    assert [line for line in lines.lines if "a" in line[-3:]] == ["warning: a0", "warning: a5", "warning: a10"]
    assert [line for line in lines.lines if line.startswith("error")] == ["error: b0", "error: b10"]
    assert sum(line.startswith("info") for line in lines.lines) == 11


def test_keys_without_end_take_no_memory_without_end():
    log = ThrottledLog(Lines())
    for number in range(5000):
        log.warning(f"key {number}", "x")
    assert len(log._logged_s) <= 1000


def test_one_key_may_change_its_severity_with_the_logger_of_ros():
    """rclpy raises when one place logs with another severity than before."""
    log = ThrottledLog(get_logger("throttled"), every_s=0.0)
    log.info("key", "one")
    log.warning("key", "two")
    log.error("key", "three")


def test_a_rate_limit_allows_a_burst_and_then_its_rate() -> None:
    now = [0.0]
    limit = RateLimit(10, clock=lambda: now[0])
    assert sum(limit.allows(2.0) for _ in range(100)) == 10
    now[0] += 3.0
    assert sum(limit.allows(2.0) for _ in range(100)) == 6
    now[0] += 1000.0  # rest does not make the burst larger
    assert sum(limit.allows(2.0) for _ in range(100)) == 10


def test_a_rate_limit_without_a_burst_is_a_period() -> None:
    now = [100.0]
    limit = RateLimit(clock=lambda: now[0])
    assert limit.allows(10.0)
    assert not limit.allows(10.0)
    assert limit.allows(10.0, always=True)
    now[0] += 0.05
    assert not limit.allows(10.0)
    now[0] += 0.05
    assert limit.allows(10.0)
