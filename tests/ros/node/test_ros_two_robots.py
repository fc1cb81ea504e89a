"""Two robots in one domain, each node in its namespace: each hears its own camera and answers its own questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")
pytest.importorskip("vision_msgs")
pytest.importorskip("embodied_perceptron_msgs")

from embodied_perceptron_msgs.msg import GroundingResult
from std_msgs.msg import String
from support.ros_live import START_S, T_ODOM_CAMERA, NodeProcess, Peer, own_domain, wait_until
from tf2_msgs.msg import TFMessage
from vision_msgs.msg import Detection3DArray

from embodied_perceptron_ros.conversion.values import make_transform_stamped
from embodied_perceptron_ros.node.health import read_diagnostics

pytestmark = [pytest.mark.ros, pytest.mark.timeout(600)]
ROBOTS = ("robot1", "robot2")
SHARED = {"/tf", "/tf_static", "/clock", "/diagnostics"}  # by convention of all robots; with frames of their own
OF_EVERY_NODE = {"/rosout", "/parameter_events"}
MS = 1_000_000


@contextmanager
def two_robots(folder: Path) -> Iterator[Peer]:
    with own_domain() as domain, ExitStack() as stack:
        nodes = [
            NodeProcess(
                domain,
                folder / f"{name}.log",
                *("-r", f"__ns:=/{name}"),
                *("-p", f"fusion_frame:={name}/odom"),
                *("-p", "diagnostics_hz:=10.0", "-p", "perception_hz:=10.0", "-p", "max_backlog:=100"),
                *("-p", "voxel_size_m:=0.05"),
            )
            for name in ROBOTS
        ]
        for node in nodes:
            stack.callback(node.stop)
        peer = Peer(domain)
        stack.callback(peer.close)
        wait_until(lambda: all(value(peer, name, "node", "state") == "active" for name in ROBOTS), 4 * START_S)
        yield peer


def value(peer: Peer, robot: str, area: str, key: str) -> str:
    """Of the newest diagnostics of one robot's node; empty when there is none."""
    for message in reversed(peer.received["/diagnostics"]):
        areas = read_diagnostics(message, f"{robot}/perception")
        if areas:
            return areas.get(area, {}).get(key, "")
    return ""


def fused(peer: Peer, robot: str) -> int:
    return int(value(peer, robot, "frames", "frames_fused") or 0)


def send(peer: Peer, robot: str, stamp_ns: int) -> None:
    frame = f"{robot}/camera_optical_frame"
    link = make_transform_stamped(T_ODOM_CAMERA, stamp_ns, f"{robot}/odom", frame)
    peer.publish("/tf", TFMessage(transforms=[link]))
    peer.send_frame(stamp_ns, transform=False, prefix=f"{robot}/", frame_id=frame)


def names(pairs: list[tuple[str, Any]]) -> set[str]:
    return {name for name, _ in pairs}


@pytest.mark.slow
def test_each_node_hears_and_answers_its_own_robot_alone(tmp_path: Path) -> None:
    with two_robots(tmp_path) as peer:
        answers = {name: peer.listen(f"/{name}/perception/grounding", GroundingResult) for name in ROBOTS}
        boxes = {name: peer.listen(f"/{name}/perception/boxes", Detection3DArray) for name in ROBOTS}
        root = peer.listen("/perception/grounding", GroundingResult)

        stamp_ns = 1_700_000_000_000 * MS
        for k in range(6):
            send(peer, "robot1", stamp_ns + k * 100 * MS)
        wait_until(lambda: fused(peer, "robot1") == 6, what="frames of robot1")
        peer.fresh()
        assert fused(peer, "robot2") == 0
        assert int(value(peer, "robot2", "frames", "frames_received") or 0) == 0
        for k in range(4):
            send(peer, "robot2", stamp_ns + k * 100 * MS)
        wait_until(lambda: fused(peer, "robot2") == 4, what="frames of robot2")
        peer.fresh()
        assert fused(peer, "robot1") == 6
        for name in ROBOTS:
            wait_until(lambda name=name: boxes[name], what=f"boxes of {name}")
            assert {m.header.frame_id for m in boxes[name]} == {f"{name}/odom"}

        for asked, other in (ROBOTS, ROBOTS[::-1]):
            before = {name: len(answers[name]) for name in ROBOTS}
            peer.publish(f"/{asked}/grounding_query", String(data=f"the chair of {asked}"))
            wait_until(lambda asked=asked, n=before[asked]: len(answers[asked]) > n, what=f"an answer of {asked}")
            peer.fresh()
            assert len(answers[asked]) == before[asked] + 1
            assert len(answers[other]) == before[other]
        assert root == []

        for name in ROBOTS:
            node = ("perception", f"/{name}")
            topics = names(peer.node.get_publisher_names_and_types_by_node(*node))
            topics |= names(peer.node.get_subscriber_names_and_types_by_node(*node))
            assert f"/{name}/grounding_query" in topics
            outside = {t for t in topics if not t.startswith(f"/{name}/")}
            assert outside <= SHARED | OF_EVERY_NODE
            services = names(peer.node.get_service_names_and_types_by_node(*node))
            assert services
            assert all(s.startswith(f"/{name}/") for s in services), services
