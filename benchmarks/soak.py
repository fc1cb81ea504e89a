"""Endurance of the live node at camera rate in a loop of simulated homes: memory, drops and ids by lap.

    python benchmarks/soak.py                      # two minutes; table, and out/bench/soak.json
    python benchmarks/soak.py --minutes 20 --weights tiny --homes 2

A lap drives through every home and back, without a jump. Homes lie apart; the map forgets whatever is outside of its
radius, so ids start anew in each home when there are several. The memory of a healthy node does not grow after the
first lap, every frame is fused or dropped for a reason, and in one home the objects keep their ids.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
from _inputs import simulated_drive
from numpy.typing import NDArray
from sensor_msgs.msg import CameraInfo, Image
from tf2_msgs.msg import TFMessage

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron_ros.conversion.values import make_camera_info, make_image, make_transform_stamped
from embodied_perceptron_ros.demo.simulated import DEFAULT_SEED
from embodied_perceptron_ros.environment import ros_environment
from embodied_perceptron_ros.node.monitor import NodeMonitor
from embodied_perceptron_ros.node.qos import reliable_qos
from embodied_perceptron_ros.players.launch_options import parameter_text
from embodied_perceptron_ros.players.processes import Supervisor, module_command
from embodied_perceptron_ros.players.replaying import choose_domain

CAMERA_FRAME = "camera_color_optical_frame"
APART_M = 40.0  # between homes
GROWTH_LIMIT_MIB = 16.0  # per lap; allocators fluctuate


@dataclass(frozen=True)
class Lap:
    """Figures of one lap.

    Attributes:
        memory_mib: resident memory of the node at its end.
        sent, fused, dropped: frames of this lap.
        unexplained: frames sent since the start without an outcome.
        objects: number of objects published last.
        ids_kept: share of the previous lap's ids that are still there; None for the first lap.
    """

    seconds: float
    memory_mib: float
    sent: int
    fused: int
    dropped: int
    unexplained: int
    objects: int
    ids_kept: float | None


def lap_frames(recordings: Sequence[Path]) -> list[PosedFrame]:
    """Frames of a lap: each recording there and back, the k-th moved by k times :data:`APART_M` along x."""
    frames: list[PosedFrame] = []
    for k, recording in enumerate(recordings):
        drive = list(PosedFrameStream(open_recording(recording), SynchronizerConfig()))
        for posed in (*drive, *reversed(drive)):
            T = posed.T_world_camera.copy()
            T[0, 3] += k * APART_M
            frames.append(PosedFrame(posed.frame, T))
    return frames


class Feeder:
    """Publishes frames as camera drivers do, with current stamps."""

    def __init__(self, monitor: NodeMonitor) -> None:
        self._monitor = monitor
        create = monitor.node.create_publisher
        self._color = create(Image, "/color/image_raw", reliable_qos(30))
        self._depth = create(Image, "/depth/image_raw", reliable_qos(30))
        self._info = create(CameraInfo, "/color/camera_info", reliable_qos(30))
        self._tf = create(TFMessage, "/tf", reliable_qos(100))
        self.sent = 0

    def send(self, posed: PosedFrame) -> None:
        """Publish one frame with its pose."""
        stamp_ns, frame = time.time_ns(), posed.frame
        transform = make_transform_stamped(posed.T_world_camera, stamp_ns, "odom", CAMERA_FRAME)
        self._tf.publish(TFMessage(transforms=[transform]))
        self._info.publish(make_camera_info(frame.intrinsics, stamp_ns, CAMERA_FRAME))
        self._color.publish(make_image(frame.color, "rgb8", stamp_ns, CAMERA_FRAME))
        self._depth.publish(make_image(_depth_message(frame.depth_m), "32FC1", stamp_ns, CAMERA_FRAME))
        self.sent += 1


def _depth_message(depth_m: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(depth_m > 0, depth_m, np.float32(np.nan))


def laps(
    monitor: NodeMonitor, feeder: Feeder, frames: Sequence[PosedFrame], hz: float, until_s: float
) -> Iterator[Lap]:
    """Drive laps until the time is over."""
    ids: set[int] | None = None
    while time.monotonic() < until_s:
        start_s, next_s, sent, before = time.monotonic(), time.monotonic(), feeder.sent, monitor.status
        for posed in frames:
            feeder.send(posed)
            next_s += 1.0 / hz
            monitor.spin(max(next_s - time.monotonic(), 0.0005))
            if time.monotonic() >= until_s:
                break
        seconds = time.monotonic() - start_s
        settle(monitor, feeder.sent)
        now = monitor.status
        objects = {o.id for o in monitor.sightings[-1].objects} if monitor.sightings else set()
        monitor.sightings.clear()
        yield Lap(
            seconds=round(seconds, 1),
            memory_mib=float(now.areas["node"]["memory_mib"]),
            sent=feeder.sent - sent,
            fused=now.fused - before.fused,
            dropped=sum(now.dropped.values()) - sum(before.dropped.values()),
            unexplained=max(0, feeder.sent - now.settled),
            objects=len(objects),
            ids_kept=None if not ids else round(len(ids & objects) / len(ids), 3),
        )
        ids = objects


def settle(monitor: NodeMonitor, sent: int, timeout_s: float = 60.0) -> None:
    """Wait until all frames have an outcome and the last objects were published."""
    deadline = time.monotonic() + timeout_s
    while monitor.status.settled < sent and time.monotonic() < deadline:
        monitor.spin(0.2)
    monitor.spin(3.0)


def soak(args: argparse.Namespace) -> dict[str, Any]:
    """Start the node, drive, and summarise."""
    recordings = [simulated_drive(args.seed + k, args.quick) for k in range(args.homes)]
    frames = lap_frames(recordings)
    domain = choose_domain(None)
    environment = ros_environment() | {"ROS_DOMAIN_ID": str(domain)}
    environment.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    # the sender needs the profile too: through sockets only a few images a second would arrive
    os.environ.update(environment)
    parameters = {"perception_hz": args.perception_hz, "max_backlog": args.backlog, "weights": args.weights}
    for topic in ("color/image_raw", "depth/image_raw", "color/camera_info"):
        parameters[f"qos_overrides./{topic}.subscription.reliability"] = "reliable"
        parameters[f"qos_overrides./{topic}.subscription.depth"] = 30
    options = [text for name, value in parameters.items() for text in ("-p", f"{name}:={parameter_text(value)}")]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    log = args.out.with_name("soak_node.log")
    done: list[Lap] = []
    with Supervisor() as processes, NodeMonitor(domain) as monitor:
        command = module_command("node", "--ros-args", *options)
        processes.start("node", command, environment, log)
        deadline = time.monotonic() + 180.0
        while monitor.status.state != "active":
            if time.monotonic() > deadline or processes.exit_codes()["node"] is not None:
                raise RuntimeError(f"the node did not become active; log: {log}")
            monitor.spin(0.2)
        feeder = Feeder(monitor)
        monitor.spin(1.0)
        for lap in laps(monitor, feeder, frames, args.hz, time.monotonic() + args.minutes * 60):
            done.append(lap)
            report.console.print(f"lap {len(done)}: {asdict(lap)}", soft_wrap=True)
            if processes.interrupted:
                break
        dropped = dict(monitor.status.dropped)
        errors = monitor.status.areas["node"].get("internal_errors", "0")
    return summarise(done, dropped, int(errors), args)


def summarise(done: Sequence[Lap], dropped: dict[str, int], errors: int, args: argparse.Namespace) -> dict[str, Any]:
    """Contents of ``soak.json``."""
    after_first = [lap.memory_mib for lap in done[1:]]
    growth = (after_first[-1] - after_first[0]) / (len(after_first) - 1) if len(after_first) > 1 else None
    kept = [lap.ids_kept for lap in done if lap.ids_kept is not None]
    return {
        "minutes": args.minutes,
        "hz": args.hz,
        "homes": args.homes,
        "weights": args.weights,
        "laps": [asdict(lap) for lap in done],
        "memory_growth_mib_per_lap": None if growth is None else round(growth, 2),
        "dropped": dropped,
        "unexplained": done[-1].unexplained if done else None,
        "ids_kept": round(float(np.mean(kept)), 3) if kept else None,
        "internal_errors": errors,
        "healthy": bool(done)
        and done[-1].unexplained == 0
        and errors == 0
        and (growth is None or growth <= GROWTH_LIMIT_MIB),
    }


def main() -> int:
    """Drive, print, write; exit code 1 if the node is not healthy."""
    parser = report.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--hz", type=float, default=30.0)
    parser.add_argument("--homes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="of the first home")
    parser.add_argument("--weights", default="", help="network; empty = class-agnostic boxes")
    parser.add_argument("--perception-hz", type=float, default=2.0)
    parser.add_argument("--backlog", type=int, default=3, help="frames that may wait for fusion")
    options = report.parse(parser, minutes=0.1, hz=10.0)
    result = soak(options)
    report.show("laps", result["laps"])
    report.show("in all", result)
    report.write(options, result)
    return 0 if result["healthy"] else 1


if __name__ == "__main__":
    sys.exit(main())
