"""The middleware at its worst: readers that never read or stand still, and no shared memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")
pytest.importorskip("vision_msgs")

from nav_msgs.msg import OccupancyGrid
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, PointCloud2
from support.ros_live import Peer, running_node, wait_until
from vision_msgs.msg import Detection3DArray
from visualization_msgs.msg import MarkerArray

from embodied_perceptron_ros.environment import FASTDDS_PROFILE, PROFILE_VARIABLES

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(600)]
MS = 1_000_000
TOPICS = {
    "voxels": PointCloud2,
    "boxes": Detection3DArray,
    "box_markers": MarkerArray,
    "occupancy_grid": OccupancyGrid,
    "overlay/image": Image,
}
FOREVER = QoSProfile(depth=1, history=HistoryPolicy.KEEP_ALL, reliability=ReliabilityPolicy.RELIABLE)
SLEEPER = """
import sys, time
import rclpy
from rclpy.node import Node
from sensor_msgs.msg import PointCloud2
from vision_msgs.msg import Detection3DArray
rclpy.init()
node = Node("sleeper")
for topic, kind in (("voxels", PointCloud2), ("boxes", Detection3DArray)):
    node.create_subscription(kind, f"/perception/{topic}", lambda message: None, 10)
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def a_stopped_reader(domain: str) -> Iterator[None]:
    """A process that subscribed and was then stopped (SIGSTOP): it acknowledges nothing any more."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True, env={**os.environ, "ROS_DOMAIN_ID": domain}
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1.0)  # both sides have matched
        process.send_signal(signal.SIGSTOP)
        yield
    finally:
        process.kill()
        process.wait(60)


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def turning(i: int) -> np.ndarray:
    """Depth with something new in each frame, so that each perception has something to say."""
    depth = np.full((60, 80), 2.5, np.float32)
    depth[20:40, 10 + i % 40 : 25 + i % 40] = 1.5
    return depth


def test_readers_that_never_read_block_nothing_and_cost_nothing(tmp_path: Path) -> None:
    """Ten subscriptions that nobody spins, half of them with an endless history, and a reader that was stopped."""
    with running_node(tmp_path, overlay_hz=10.0) as (process, peer):
        boxes = peer.listen("/perception/boxes", Detection3DArray)
        sleeper = Node("never_spun", context=peer.context)
        for topic, kind in TOPICS.items():
            for qos in (QoSProfile(depth=5), FOREVER):
                sleeper.create_subscription(kind, f"/perception/{topic}", lambda message: None, qos)
        with a_stopped_reader(str(peer.context.get_domain_id())):
            memory, sent, slowest = [], 0, 0.0
            for lap in range(4):
                for _ in range(50):
                    heard, start = len(boxes), time.monotonic()
                    peer.send_frame((sent + 1) * 100 * MS, depth_m=turning(sent))
                    sent += 1
                    wait_until(lambda n=heard: len(boxes) > n, 60, f"no boxes after frame {sent}")
                    if lap:
                        slowest = max(slowest, time.monotonic() - start)
                memory.append(resident_mib(process.process.pid))
            peer.wait_value("frames", "frames_fused", lambda n: int(n) == sent)
            print(f"memory {memory}, slowest {slowest * 1e3:.0f} ms, voxels {peer.value('map', 'voxels')}")
            assert memory[-1] - memory[0] < 20, memory
            assert slowest < 5.0
        sleeper.destroy_node()


def without_shared_memory(option: str) -> tuple[str, ...]:
    """A command that runs another with a /dev/shm of its own, mounted so."""
    command = f'mount -t tmpfs -o {option} none /dev/shm && exec "$@"'
    prefix = ("unshare", "-m", "sh", "-c", command, "sh")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("this user may not put another /dev/shm before a process")
    return prefix


def send_large_images(peer: Peer, count: int = 30) -> int:
    """Images of VGA size, 0.9 and 1.2 MB, far larger than a datagram, one pair after the other. Returns how many pairs
    were fused; results must come back."""
    boxes = peer.listen("/perception/boxes", Detection3DArray)
    voxels = peer.listen("/perception/voxels", PointCloud2)

    def fused() -> int:
        return int(peer.value("frames", "frames_fused"))

    for i in range(count):
        before = fused()
        peer.send_frame((i + 1) * 100 * MS, depth_m=np.repeat(np.repeat(turning(i), 8, 0), 8, 1))
        deadline = time.monotonic() + (2.0 if i else 60.0)
        while fused() == before and time.monotonic() < deadline:
            time.sleep(0.02)
    wait_until(lambda: boxes and voxels and voxels[-1].width > 100, 60, "no results")
    return fused()


def large_buffers() -> None:
    """Skip where the kernel gives less than images need."""
    most = Path("/proc/sys/net/core/rmem_max")
    if not most.is_file() or int(most.read_text()) < 4 * 2**20:
        pytest.skip("net.core.rmem_max is below 4 MiB")


@pytest.mark.parametrize("option", ["ro", "size=64k"])
def test_without_shared_memory_best_effort_images_arrive_over_the_network(tmp_path: Path, option: str) -> None:
    """The shipped profile has room for them; with the kernel's usual buffers most of them lose a fragment."""
    large_buffers()
    environment = dict.fromkeys(PROFILE_VARIABLES, str(FASTDDS_PROFILE))
    with running_node(tmp_path, prefix=without_shared_memory(option), environment=environment) as (process, peer):
        assert send_large_images(peer) >= 24  # best effort on a busy machine; 5 of 30 with the usual buffers
        assert "RTPS_TRANSPORT_SHM" in process.output  # it was really without, and said so
