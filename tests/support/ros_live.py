"""Helpers for tests with real nodes: a domain of one's own, the node in its own process, a peer that talks to it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from tf2_msgs.msg import TFMessage

from embodied_perceptron.geometry.transforms import Intrinsics, make_transform
from embodied_perceptron_ros.conversion.values import make_camera_info, make_image, make_transform_stamped
from embodied_perceptron_ros.node.health import read_diagnostics

RELIABLE = QoSProfile(depth=2000, reliability=ReliabilityPolicy.RELIABLE)
LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
MAPPING_CAMERA = Intrinsics(60.0, 60.0, 39.5, 29.5, 80, 60)
# one metre above the floor, looking along x
T_ODOM_CAMERA = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 1], [0, 0, 0, 1]])
START_S = 100.0  # for one step of a configuration on a busy machine: importing, or compiling one kernel
BOUND_S = 60.0  # for a condition that is true after a second on an idle machine: a test that passes never waits so long
OPTICAL = "camera_optical_frame"


def wait_until(condition: Callable[[], Any], timeout_s: float = BOUND_S, what: str = "") -> Any:
    """The first true value of ``condition``; fails the test after ``timeout_s``."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"timed out after {timeout_s} s: {what or condition}")


# Locks of this process's domains: its nodes inherit them, so that a node that outlives a killed test keeps its domain.
_LOCKS: dict[int, int] = {}


@contextmanager
def own_domain() -> Iterator[int]:
    """A ROS domain that no other test on this machine uses."""
    for domain in range(1, 101):
        path = Path(f"/tmp/ros_domain_{domain}.lock")
        with open(path, "w", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            _LOCKS[domain] = file.fileno()
            try:
                yield domain
            finally:
                del _LOCKS[domain]
            return
    raise RuntimeError("all ROS domains are in use")


def scene_depth(box_at_m: float | None = 1.5) -> np.ndarray:
    """(60, 80) metres: floor, a wall at 3 m, and a box of 0.4 m standing in the way at ``box_at_m``."""
    k = MAPPING_CAMERA
    rows, columns = np.mgrid[: k.height, : k.width]
    down, side = (rows - k.cy) / k.fy, (columns - k.cx) / k.fx
    with np.errstate(divide="ignore"):
        depth = np.minimum(np.where(down > 0, 1.0 / np.maximum(down, 1e-9), np.inf), 3.0)
    if box_at_m is not None:
        bottom, top = 1.0 / box_at_m, 0.4 / box_at_m  # its front face, from the floor to 0.6 m above it
        front = (np.abs(side) < 0.3 / box_at_m) & (down < bottom) & (down > top)
        depth = np.where(front, box_at_m, depth)
    return depth.astype(np.float32)


class Peer:
    """A node in the test's own process: publishes cameras and transforms, collects what the node says."""

    def __init__(self, domain: int) -> None:
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = Node("peer", context=self.context)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._publishers: dict[str, Any] = {}
        self.received: dict[str, list[Any]] = {}
        self.listen("/diagnostics", DiagnosticArray)
        self._thread = threading.Thread(target=self._executor.spin, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._executor.shutdown()
        self._thread.join(60)
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    # ---- hearing

    def listen(self, topic: str, message_type: Any, qos: QoSProfile = RELIABLE) -> list[Any]:
        if topic not in self.received:
            self.received[topic] = []
            self.node.create_subscription(message_type, topic, self.received[topic].append, qos)
        return self.received[topic]

    def areas(self) -> dict[str, dict[str, str]]:
        """The newest diagnostics of the node."""
        messages = self.received["/diagnostics"]
        return read_diagnostics(messages[-1]) if messages else {}

    def fresh(self) -> None:
        """Wait for diagnostics that were made after this call."""
        messages = self.received["/diagnostics"]
        n = len(messages)
        wait_until(lambda: len(messages) >= n + 2, what="no diagnostics")

    def value(self, area: str, key: str, default: str = "0") -> str:
        return self.areas().get(area, {}).get(key, default)

    def wait_value(self, area: str, key: str, accept: Callable[[str], bool], timeout_s: float = BOUND_S) -> str:
        wait_until(lambda: accept(self.value(area, key)), timeout_s, f"{area}.{key} in {self.areas()}")
        return self.value(area, key)

    # ---- asking

    def call(self, name: str, service_type: Any, request: Any = None, timeout_s: float = BOUND_S) -> Any:
        client = self.node.create_client(service_type, name)
        try:
            assert client.wait_for_service(timeout_sec=timeout_s), f"no service {name}"
            future = client.call_async(request if request is not None else service_type.Request())
            wait_until(future.done, timeout_s, name)
            return future.result()
        finally:
            self.node.destroy_client(client)

    def state(self) -> str:
        return self.call("/perception/get_state", GetState).current_state.label

    def change_state(self, transition: int, timeout_s: float = BOUND_S) -> bool:
        request = ChangeState.Request()
        request.transition.id = transition
        return self.call("/perception/change_state", ChangeState, request, timeout_s).success

    # ---- talking

    def publish(self, topic: str, message: Any, qos: QoSProfile = RELIABLE) -> None:
        self.publisher(topic, type(message), qos).publish(message)

    def publisher(self, topic: str, message_type: Any, qos: QoSProfile = RELIABLE) -> Any:
        if topic not in self._publishers:
            publisher = self.node.create_publisher(message_type, topic, qos)
            wait_until(lambda: publisher.get_subscription_count() > 0, what=f"nobody hears {topic}")
            time.sleep(0.1)  # the other side matches a little later
            self._publishers[topic] = publisher
        return self._publishers[topic]

    def send_transform(self, T: np.ndarray, stamp_ns: int, parent: str = "odom", child: str = OPTICAL) -> None:
        self.publish("/tf", TFMessage(transforms=[make_transform_stamped(T, stamp_ns, parent, child)]))

    def send_frame(
        self,
        stamp_ns: int,
        *,
        depth_m: np.ndarray | None = None,
        transform: bool = True,
        T: np.ndarray = T_ODOM_CAMERA,
        prefix: str = "",
        frame_id: str = OPTICAL,
        color_changes: dict[str, Any] | None = None,
        depth_changes: dict[str, Any] | None = None,
        info_changes: dict[str, Any] | None = None,
    ) -> None:
        """One frame with everything that belongs to it; the ``..._changes`` spoil its messages."""
        depth = scene_depth() if depth_m is None else depth_m
        color = np.full((*depth.shape, 3), 120, np.uint8)
        k = MAPPING_CAMERA.resized(depth.shape[1], depth.shape[0])
        messages: list[tuple[str, Any, dict[str, Any] | None]] = [
            ("color/camera_info", make_camera_info(k, stamp_ns, frame_id), info_changes),
            ("color/image_raw", make_image(color, "rgb8", stamp_ns, frame_id), color_changes),
            ("depth/image_raw", make_image(depth, "32FC1", stamp_ns, frame_id), depth_changes),
        ]
        if transform:
            self.send_transform(T, stamp_ns, child=frame_id)
        for topic, message, changes in messages:
            for name, value in (changes or {}).items():
                setattr(message, name, value)
            self.publish(f"/{prefix}{topic}", message)


def turned(angle_rad: float, forward_m: float = 0.0) -> np.ndarray:
    """The mapping camera, turned about z and moved along x."""
    c, s = np.cos(angle_rad), np.sin(angle_rad)
    T = make_transform(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]), np.array([forward_m, 0.0, 0.0]))
    return T @ T_ODOM_CAMERA


class NodeProcess:
    """The node under test, in a process of its own."""

    def __init__(
        self,
        domain: int,
        log: Path,
        *arguments: str,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``prefix``: a command that runs the node's; ``environment``: besides this process's."""
        self.log = log
        environment = {
            **os.environ,
            "ROS_DOMAIN_ID": str(domain),
            "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
            **(environment or {}),
        }
        shapes = () if any("weights:=" in a for a in arguments) else ("-p", "weights:=none")  # quick to start
        command = [
            *prefix,
            sys.executable,
            "-m",
            "embodied_perceptron_ros.node",
            "--ros-args",
            *arguments,
            *shapes,
        ]
        self._file = open(log, "w", encoding="utf-8")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, env=environment, stdout=self._file, stderr=subprocess.STDOUT, pass_fds=list(_LOCKS.values())
        )

    def stop(self, number: int = signal.SIGINT, timeout_s: float = BOUND_S) -> int:
        """Signal it and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
            raise AssertionError(f"the node did not stop; its log:\n{self.output}") from None
        finally:
            self._file.close()

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")


def wait_until_up(process: NodeProcess, peer: Peer, state: str = "active") -> None:
    """Wait for a lifecycle state, or the end of the process. A first start compiles for minutes on a busy machine: each
    line of the log starts :data:`START_S` anew."""

    def is_over() -> bool:
        return peer.value("node", "state") == state or process.process.poll() is not None

    while not is_over():
        logged = process.output
        wait_until(lambda logged=logged: is_over() or process.output != logged, START_S, logged)


@contextmanager
def running_node(
    folder: Path,
    *,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    ending: int = signal.SIGINT,
    **parameters: Any,
) -> Iterator[tuple[NodeProcess, Peer]]:
    """Node and peer in a domain of their own; the node must end with exit code 0 on the signal ``ending``."""
    # on a busy machine frames shall wait, not be dropped
    values = {
        "max_backlog": 100,
        "diagnostics_hz": 10.0,
        "perception_hz": 10.0,
        "voxels_hz": 10.0,
        "voxel_size_m": 0.05,
        **parameters,
    }
    arguments = [argument for name, value in values.items() for argument in ("-p", f"{name}:={_yaml(value)}")]
    folder.mkdir(parents=True, exist_ok=True)
    with own_domain() as domain:
        process = NodeProcess(domain, folder / "node.log", *arguments, prefix=prefix, environment=environment)
        peer = Peer(domain)
        try:
            up = "active" if parameters.get("autostart", True) else "unconfigured"
            wait_until_up(process, peer, up)
            yield process, peer
        except BaseException:
            print(process.output)
            raise
        finally:
            peer.close()
            code = process.stop(ending)
        assert code == 0, process.output


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
