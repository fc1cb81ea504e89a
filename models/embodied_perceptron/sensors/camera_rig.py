"""Where the cameras are and which way they look: what a network's window is laid around."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.sensors.frame import PosedFrame

F64 = NDArray[np.float64]

_TOGETHER_NS = 1_000_000_000  # cameras whose newest frames are no further apart look at the same time


@dataclass(frozen=True, eq=False)
class ViewDirection:
    """A point and a direction.

    Attributes:
        origin_m: (3,) where the cameras are, on average.
        direction: (3,) mean of the unit vectors that they look along: short where they look to different sides.
    """

    origin_m: F64
    direction: F64

    @classmethod
    def of(cls, *T_world_camera: F64) -> ViewDirection:
        """Of one or more (4, 4) poses of optical frames."""
        poses = np.stack(T_world_camera)
        return cls(poses[:, :3, 3].mean(axis=0), poses[:, :3, 2].mean(axis=0))

    def ahead_m(self, distance_m: float) -> F64:
        """(3,) the origin, moved horizontally; by all of ``distance_m`` for cameras that look straight ahead, not at
        all for one that looks straight down."""
        moved: F64 = self.origin_m + distance_m * self.direction * [1.0, 1.0, 0.0]
        return moved


@dataclass(frozen=True, eq=False)
class LatestCameraPoses:
    """Where each camera was when it gave its newest frame. Immutable: a perception keeps the one that it began with.

    Attributes:
        newest: the frame that was fused last, of any camera; None before the first.
        poses: stamp and (4, 4) T_world_camera of the newest frame of every camera.
    """

    newest: PosedFrame | None = None
    poses: Mapping[str, tuple[int, F64]] = field(default_factory=dict)

    @property
    def stamp_ns(self) -> int:
        """The latest stamp of all; 0 before the first frame."""
        return max((stamp_ns for stamp_ns, _ in self.poses.values()), default=0)

    @property
    def camera_m(self) -> F64 | None:
        """(3,) where the newest frame was taken; None before the first."""
        return None if self.newest is None else self.newest.T_world_camera[:3, 3]

    @property
    def view_direction(self) -> ViewDirection | None:
        """Of all cameras whose newest frame is about as new as the newest of all; None before the first frame."""
        if self.newest is None:
            return None
        newest_ns = self.poses[self.newest.frame.camera][0]
        return ViewDirection.of(
            *(T for stamp_ns, T in self.poses.values() if abs(newest_ns - stamp_ns) <= _TOGETHER_NS)
        )

    def after(self, posed: PosedFrame) -> LatestCameraPoses:
        """With one more frame."""
        newest = replace(posed, T_world_camera=posed.T_world_camera.copy())
        camera, stamp_ns = posed.frame.camera, posed.frame.stamp_ns
        return LatestCameraPoses(newest, {**self.poses, camera: (stamp_ns, newest.T_world_camera)})

    def moved(self, T: F64) -> LatestCameraPoses:
        """After the world was moved by the rigid (4, 4) ``T``."""
        if self.newest is None:
            return self
        poses = {name: (stamp_ns, T @ pose) for name, (stamp_ns, pose) in self.poses.items()}
        return LatestCameraPoses(replace(self.newest, T_world_camera=poses[self.newest.frame.camera][1]), poses)
