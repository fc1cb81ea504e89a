"""Unusual circumstances, each with a defined outcome: eight cameras, 200 Hz, stamps of 1970, a disk that refuses.

The fusion thread is fed directly, as the executor would.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")

from support.fusion_rig import MS, Rig, camera_parameters
from support.ros_live import OPTICAL

from embodied_perceptron.config import SynchronizerConfig
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.poses import CameraPoses
from embodied_perceptron_ros.conversion.values import make_image
from embodied_perceptron_ros.node.inputs import FrameInbox, Received

pytestmark = pytest.mark.ros


def test_eight_cameras_are_fused_each() -> None:
    rig = Rig(cameras=tuple(f"camera{i}" for i in range(8)))
    rig.backlog = 100
    try:
        for _ in range(3):
            rig.frame()
        rig.wait(fused=24)
    finally:
        rig.close()


def test_a_clock_at_1970_is_a_clock() -> None:
    """A robot without a battery for its clock: stamps begin at zero."""
    rig = Rig()
    rig.stamp_ns = -33 * MS  # the first frame is at 0
    rig.backlog = 100
    try:
        for _ in range(5):
            rig.frame()
        rig.wait(fused=5)
    finally:
        rig.close()


def test_at_200_hz_every_frame_is_fused_or_counted() -> None:
    rig = Rig()
    try:
        for i in range(200):
            rig.frame(100_000 * MS + 5 * MS * i)
            time.sleep(0.0005)
        deadline = time.monotonic() + 60
        while rig.inbox.counts.received < 200 or rig.inbox.counts.pending:
            assert time.monotonic() < deadline, rig.inbox.counts
            time.sleep(0.02)
        counts = rig.inbox.counts
        assert counts.received == 200 == counts.fused + sum(counts.dropped.values())
        assert set(counts.dropped) <= {"overload", "queue_full"}
        assert counts.fused > 3
    finally:
        rig.close()


def test_an_inbox_nobody_empties_stays_within_its_memory() -> None:
    """A worker that hangs (saving to a slow disk, say) at 200 Hz."""
    now = [0.0]
    rig = Rig()
    rig.close()
    config = SynchronizerConfig(queue_mib=1.0)
    poses = CameraPoses(rig.transforms, "odom")
    cameras = [camera_parameters("camera")]
    inbox = FrameInbox(cameras, config, poses, rig.health, rig.log, lambda: 3, clock=lambda: now[0])
    image = make_image(np.zeros((120, 160, 3), np.uint8), "rgb8", 1, OPTICAL)  # 56 KiB
    for _ in range(1000):
        now[0] += 0.005
        inbox.put(Received("color", "camera", image, 0))
    kept = inbox._undecoded.take_all()
    assert sum(len(r.message.data) for r in kept) <= 2**20
    inbox.settle()
    assert len(kept) + inbox.counts.dropped["queue_full"] == 1000


def test_a_map_goes_on_after_a_save_that_failed(tmp_path: Path) -> None:
    rig = Rig()
    try:
        rig.frame()
        rig.wait(fused=1)
        with pytest.raises(OSError, match="nowhere"):
            rig.perceptron.save(tmp_path / "nowhere" / "a.map")
        rig.frame()
        rig.wait(fused=2)
        rig.perceptron.save(tmp_path / "a.map")
        again = Perceptron(rig.config)
        again.load(tmp_path / "a.map")
        assert len(again.volume) == len(rig.perceptron.volume) > 100
    finally:
        rig.close()
