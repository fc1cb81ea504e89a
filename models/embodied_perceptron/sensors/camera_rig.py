"""Where the cameras are and which way they look: what a network's window is laid around."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

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
    """The newest fused frames. Immutable: a perception keeps what it began with.

    Attributes:
        stamp_ns: of the newest.
        camera: its camera.
        poses: the newest stamp and (4, 4) T_world_camera of every camera.
    """

    stamp_ns: int = 0
    camera: str = ""
    poses: Mapping[str, tuple[int, F64]] = field(default_factory=dict)

    @property
    def camera_m(self) -> F64 | None:
        """(3,) where the newest frame was taken; None before the first."""
        return self.poses[self.camera][1][:3, 3] if self.poses else None

    @property
    def view_direction(self) -> ViewDirection | None:
        """Of all cameras that gave a frame of late; None before the first frame."""
        if not self.poses:
            return None
        newest_ns = self.poses[self.camera][0]
        return ViewDirection.of(
            *(T for stamp_ns, T in self.poses.values() if abs(newest_ns - stamp_ns) <= _TOGETHER_NS)
        )

    def after(self, camera: str, stamp_ns: int, T_world_camera: F64) -> LatestCameraPoses:
        """With one more frame."""
        poses = {**self.poses, camera: (stamp_ns, T_world_camera.copy())}
        return LatestCameraPoses(max(self.stamp_ns, stamp_ns), camera, poses)

    def without_stamps(self) -> LatestCameraPoses:
        """For a clock that was set back: only the newest camera's place is still known."""
        if not self.poses:
            return self
        return LatestCameraPoses(0, self.camera, {self.camera: (0, self.poses[self.camera][1])})

    def moved(self, T: F64) -> LatestCameraPoses:
        """After the world was moved by the rigid (4, 4) ``T``."""
        return replace(self, poses={name: (stamp_ns, T @ pose) for name, (stamp_ns, pose) in self.poses.items()})
