"""A fusion worker without a node: messages put in, frames counted out, transforms under the test's control."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
from support.ros_live import MAPPING_CAMERA, OPTICAL, T_ODOM_CAMERA, scene_depth, wait_until

from embodied_perceptron.config import PerceptronConfig, SynchronizerConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.poses import CameraPoses, Disconnected, Found, PoseLookup, TooEarly
from embodied_perceptron_ros.conversion.values import make_camera_info, make_image
from embodied_perceptron_ros.node.health import Health, ThrottledLog
from embodied_perceptron_ros.node.inputs import FrameInbox, Received
from embodied_perceptron_ros.node.parameters import CameraParameters
from embodied_perceptron_ros.node.threads import Watchdog
from embodied_perceptron_ros.node.workers import FusionWorker

MS = 1_000_000


class Transforms:
    """A transform source under the test's control."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()
        self.restarts = 0
        self.T = T_ODOM_CAMERA
        self.known = True
        self.early = False
        self.beside: dict[str, np.ndarray] = {}  # frames beside the optical one, with their poses in it

    def lookup(self, target: str, source: str, stamp_ns: int) -> PoseLookup:
        if self.early:
            return TooEarly(stamp_ns, stamp_ns - 1)
        if target == OPTICAL:
            return Found(self.beside[source]) if source in self.beside else Disconnected(target, source, "unknown")
        if not self.known or source != OPTICAL:
            return Disconnected(target, source, f"{source!r} is unknown")
        return Found(self.T)

    def lookup_latest(self, target: str, source: str) -> PoseLookup:
        return self.lookup(target, source, 0)

    def clear(self) -> None:
        pass

    def close(self) -> None:
        pass


def camera_parameters(name: str, inf_depth: str = "free", rectified: bool = False) -> CameraParameters:
    """A camera with topics of its own."""
    topics = (f"/{name}/color", f"/{name}/depth", f"/{name}/info")
    return CameraParameters(name, *topics, "raw", "raw", inf_depth, rectified)


class Rig:
    """A worker with one camera, and a clock of frames."""

    def __init__(
        self,
        cameras: tuple[str, ...] = ("camera",),
        logger: Any = None,
        inf_is_unknown: Any = (),
        transforms: Transforms | None = None,
        max_pose_wait_s: float = 0.15,
        now_ns: Any = time.monotonic_ns,
    ) -> None:
        self.transforms = transforms or Transforms()
        self.cameras = cameras
        self.health = Health("perception")
        self.config = PerceptronConfig(volume=VolumeConfig(voxel_size_m=0.05, max_blocks=2000))
        self.perceptron = Perceptron(self.config)
        self.reset_on_jump = True
        self.backlog = 3
        self.log = ThrottledLog(logger or logging.getLogger("test"))
        self.inbox = FrameInbox(
            [camera_parameters(name, "unknown" if name in inf_is_unknown else "free") for name in cameras],
            SynchronizerConfig(max_pose_wait_s=max_pose_wait_s, max_pair_wait_s=0.15),
            CameraPoses(self.transforms, "odom"),
            self.health,
            self.log,
            max_backlog=lambda: self.backlog,
        )
        self.watchdog = Watchdog(self.health, self.log)
        self.worker = FusionWorker(
            self.perceptron,
            self.inbox,
            self.watchdog,
            now_ns=now_ns,
            reset_on_time_jump=lambda: self.reset_on_jump,
        )
        self.worker.start()
        self.stamp_ns = 100_000 * MS

    def close(self) -> None:
        """End the threads."""
        self.worker.stop()
        self.watchdog.stop()

    def put(self, kind: Any, message: Any) -> None:
        for camera in self.cameras:
            self.inbox.put(Received(kind, camera, message, time.time_ns()))

    def frame(
        self,
        stamp_ns: int | None = None,
        depth: np.ndarray | None = None,
        color: dict[str, Any] | None = None,
        depth_changes: dict[str, Any] | None = None,
        info: dict[str, Any] | None = None,
        intrinsics: Intrinsics | None = None,
    ) -> int:
        """Put one frame; the dicts change fields of its messages."""
        if stamp_ns is None:
            self.stamp_ns += 33 * MS
            stamp_ns = self.stamp_ns
        depth_m = scene_depth() if depth is None else depth
        k = intrinsics or MAPPING_CAMERA.resized(depth_m.shape[1], depth_m.shape[0])
        pixels = np.full((*depth_m.shape, 3), 90, np.uint8)
        for kind, message, changes in (
            ("info", make_camera_info(k, stamp_ns, OPTICAL), info),
            ("color", make_image(pixels, "rgb8", stamp_ns, OPTICAL), color),
            ("depth", make_image(depth_m, "32FC1", stamp_ns, OPTICAL), depth_changes),
        ):
            for name, value in (changes or {}).items():
                setattr(message, name, value)
            self.put(kind, message)
        return stamp_ns

    def wait(self, fused: int | None = None, **dropped: int) -> None:
        def settled() -> bool:
            counts = self.inbox.counts
            return (fused is None or counts.fused == fused) and counts.dropped == dropped and counts.pending == 0

        wait_until(settled, 60, f"fused={fused} dropped={dropped}, got {self.inbox.counts}")

    def why(self, reason: str) -> str:
        return self.health._last_drop[reason]


def compiled():
    """How often each compiled function of the library has been compiled."""
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("embodied_perceptron.")]
    members = [(m.__name__, n, f) for m in modules for n, f in list(vars(m).items()) if not isinstance(f, type)]
    found = {(module, name): f for module, name, f in members if hasattr(f, "signatures")}
    return {key: len(f.signatures) for key, f in found.items()}
