"""What ROS costs on top of fusion: real topics, 640 x 480 colour + depth at 30 Hz, the node in its own process.

    python benchmarks/ros_latency.py                         # three ways of transport, 15 s each
    python benchmarks/ros_latency.py --seconds 60 --hz 15

Table on the screen, figures in out/bench/ros_latency.json. ``fused`` is the time from the publisher's write of the
colour image until the frame is in the map; ``overhead`` is that minus the fusion itself, per percentile. Frames are the
recording in $EMBODIED_DATA_DIR/kitchen (default ../shared/data/kitchen), played forth and back, or a plain wall where
that is absent. The publisher's own time (this process) is not part of the node's, but shares the machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from nav_msgs.msg import OccupancyGrid
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, Image, PointCloud2
from tf2_msgs.msg import TFMessage
from vision_msgs.msg import Detection3DArray

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron_ros.conversion.values import make_camera_info, make_image, make_transform_stamped, ns_to_stamp
from embodied_perceptron_ros.environment import ros_environment
from embodied_perceptron_ros.node.health import read_diagnostics

GOAL_OVERHEAD_MS = 8.0
TOPICS = ("color/image_raw", "depth/image_raw", "color/camera_info")
MODES = {
    # name: (publisher, subscription, larger shared memory)
    "best effort, shared-memory profile": ("reliable", "best_effort", True),
    "reliable, shared-memory profile": ("reliable", "reliable", True),
    "best effort, Fast DDS defaults": ("best_effort", "best_effort", False),
}


def load_frames(folder: Path | None) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, Intrinsics]]:
    """(colour, raw depth, T_world_camera, intrinsics) of each frame."""
    if folder is None:
        k = Intrinsics(585.0, 585.0, 319.5, 239.5, 640, 480)
        T = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 1], [0, 0, 0, 1]])
        wall = (np.full((480, 640, 3), 120, np.uint8), np.full((480, 640), 2000, np.uint16), T, k)
        return [wall] * 30
    camera = read_tum_camera(folder)
    poses, color = dict(camera.poses), dict(camera.color_files)
    frames = []
    for stamp, path in camera.depth_files:
        if stamp in poses and stamp in color:
            depth = np.round(np.nan_to_num(camera.read_depth(path), posinf=0.0) * 1000).astype(np.uint16)
            frames.append((camera.read_color(color[stamp]), depth, poses[stamp], camera.intrinsics))
    return frames


class Publisher:
    """Sends frames on real topics and listens to the outputs as a viewer would."""

    def __init__(self, domain: int, reliability: str, viewers: bool) -> None:
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = Node("bench", context=self.context)
        reliable = ReliabilityPolicy.RELIABLE if reliability == "reliable" else ReliabilityPolicy.BEST_EFFORT
        qos = QoSProfile(depth=10, reliability=reliable)
        self.color, self.depth = (self.node.create_publisher(Image, topic, qos) for topic in TOPICS[:2])
        self.info = self.node.create_publisher(CameraInfo, TOPICS[2], qos)
        self.tf = self.node.create_publisher(TFMessage, "/tf", 100)
        self.diagnostics: DiagnosticArray | None = None
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._keep, 10)
        if viewers:
            for topic, kind in (
                ("voxels", PointCloud2),
                ("boxes", Detection3DArray),
                ("semantic_voxels", PointCloud2),
                ("occupancy_grid", OccupancyGrid),
            ):
                self.node.create_subscription(kind, f"/perception/{topic}", lambda _: None, 1)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)

    def _keep(self, message: DiagnosticArray) -> None:
        self.diagnostics = message

    def spin_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)

    def wait_active(self, timeout_s: float = 300.0) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self.spin_for(0.1)
            areas = read_diagnostics(self.diagnostics) if self.diagnostics else {}
            subscribed = all(p.get_subscription_count() > 0 for p in (self.color, self.depth, self.info, self.tf))
            if areas.get("node", {}).get("state") == "active" and subscribed:
                self.spin_for(0.5)
                return
        raise TimeoutError("the node did not become active")

    def send(self, frames: list[Any], seconds: float, hz: float) -> int:
        messages = []
        for color, depth, T, k in frames:
            message = make_transform_stamped(T, 0, "odom", "optical")
            parts = (make_image(color, "rgb8", 0, "optical"), make_image(depth, "16UC1", 0, "optical"))
            messages.append((*parts, make_camera_info(k, 0, "optical"), message))
        order = [*range(len(messages)), *range(len(messages) - 2, 0, -1)]
        count, start = int(seconds * hz), time.monotonic()
        for i in range(count):
            self.spin_for(max(start + i / hz - time.monotonic(), 0.0))
            color, depth, info, transform = messages[order[i % len(order)]]
            stamp = ns_to_stamp(time.time_ns())
            for message in (color, depth, info, transform):
                message.header.stamp = stamp
            self.tf.publish(TFMessage(transforms=[transform]))
            self.info.publish(info)
            self.depth.publish(depth)
            self.color.publish(color)
        self.spin_for(2.5)
        return count

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


def run(mode: str, frames: list[Any], args: argparse.Namespace) -> dict[str, Any]:
    """One way of transport: start the node, send, read its diagnostics."""
    publisher_qos, subscription_qos, profile = MODES[mode]
    del profile  # in the environment of this process already
    domain = 1 + os.getpid() % 100
    environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
    parameters = [f"perception_hz:={args.perception_hz}"]
    parameters += [f"qos_overrides./{topic}.subscription.reliability:={subscription_qos}" for topic in TOPICS]
    arguments = [a for p in parameters for a in ("-p", p)]
    command = [sys.executable, "-m", "embodied_perceptron_ros.node", "--ros-args", *arguments]
    process = subprocess.Popen(command, env=environment)
    publisher = Publisher(domain, publisher_qos, not args.no_viewers)
    try:
        publisher.wait_active()
        cpu_before, start = _cpu_s(process.pid), time.monotonic()
        sent = publisher.send(frames, args.seconds, args.hz)
        cpu = (_cpu_s(process.pid) - cpu_before) / (time.monotonic() - start)
        assert publisher.diagnostics is not None
        areas = read_diagnostics(publisher.diagnostics)
    finally:
        publisher.close()
        process.send_signal(signal.SIGINT)
        process.wait(20)
    latency, counts = areas["latency"], areas["frames"]
    value = lambda key: float(latency.get(key, "nan"))  # noqa: E731
    return {
        "mode": mode,
        "frames_sent": sent,
        "frames_received": int(counts["frames_received"]),
        "frames_fused": int(counts["frames_fused"]),
        "frames_dropped": {k.partition(".")[2]: int(v) for k, v in counts.items() if k.startswith("frames_dropped.")},
        "transport_ms": {p: value(f"transport_ms.{p}") for p in ("p50", "p99")},
        "fusion_ms": {p: value(f"fusion_ms.{p}") for p in ("p50", "p99")},
        "fused_ms": {p: value(f"fused_ms.{p}") for p in ("p50", "p99")},
        "overhead_ms": {p: value(f"fused_ms.{p}") - value(f"fusion_ms.{p}") for p in ("p50", "p99")},
        "perception_ms": {p: value(f"perception_ms.{p}") for p in ("p50", "p99")},
        "boxes_ms": {p: value(f"boxes_ms.{p}") for p in ("p50", "p99")},
        "node_cpu": cpu,
        "memory_mib": float(areas["node"]["memory_mib"]),
    }


def run_in_child(mode: str) -> dict[str, Any]:
    """A process for each way of transport: Fast DDS reads its profile once."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FASTDDS", "FASTRTPS"))}
    if MODES[mode][2]:
        environment = ros_environment(environment)
    command = [sys.executable, __file__, *sys.argv[1:], "--child", "--mode", mode]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--hz", type=float, default=30.0)
    parser.add_argument("--perception-hz", type=float, default=2.0)
    parser.add_argument("--mode", action="append", choices=list(MODES), help="only this")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-viewers", action="store_true", help="nobody listens to the outputs")
    options = report.parse(parser, seconds=2.0, hz=5.0)
    if options.child:
        kitchen = None if options.quick else report.data_folder("kitchen")
        print(json.dumps(run(options.mode[-1], load_frames(kitchen), options)))
        return 0
    results = []
    for mode in options.mode or list(MODES):
        report.console.print(f"{mode}: {options.seconds:g} s at {options.hz:g} Hz")
        results.append(run_in_child(mode))
    first = results[0]
    overhead = first["overhead_ms"]["p50"]
    report.show(f"640 x 480 colour + depth at {options.hz:g} Hz", results)
    report.show("goals", [report.goal("overhead_ms.p50, the first way", overhead, most=GOAL_OVERHEAD_MS)])
    report.write(options, {"overhead_p50_ms": overhead, "node_cpu": first["node_cpu"], "modes": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
