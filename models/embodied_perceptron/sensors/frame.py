"""RGB-D frames, checked at construction, and poses of the cameras that took them.

Depth convention inside the library (REP-117/118 resolved at this boundary): float32 metres along the optical axis;
``0`` = unknown (NaN, -Inf "too close", zero, negative on input), ``+Inf`` = nothing within the sensor's range, so the
ray is known to be free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64, Intrinsics, check_transform

# REP-118: the unit follows from the encoding
DEPTH_UNIT_M = {"16UC1": 0.001, "32FC1": 1.0, "mono16": 0.001, "64FC1": 1.0}
MAX_CAMERA_NAME = 1000  # characters


def canonical_depth(depth: NDArray[Any], encoding: str) -> NDArray[np.float32]:
    """(H, W) raw depth image of ROS ``encoding`` -> canonical float32 metres (see module docstring).

    ``16UC1`` (``mono16``) is millimetres with 0 invalid (65535, the saturated value, is invalid too); ``32FC1``
    (``64FC1``, decoded to float32) is metres.
    Raises ``ValueError`` for any other encoding, or for another dtype or shape.
    """
    if encoding not in DEPTH_UNIT_M:
        raise ValueError(f"depth encoding must be one of {sorted(DEPTH_UNIT_M)}, got {encoding!r}")
    if depth.ndim != 2:
        raise ValueError(f"depth must have shape (H, W), got {depth.shape}")
    if encoding in ("16UC1", "mono16"):
        if depth.dtype != np.uint16:
            raise ValueError(f"{encoding} depth must be uint16, got {depth.dtype}")
        metres: NDArray[np.float32] = depth.astype(np.float32) * np.float32(0.001)
        metres[depth == np.iinfo(np.uint16).max] = 0.0
        return metres
    if depth.dtype != np.float32:
        raise ValueError(f"{encoding} depth must be float32, got {depth.dtype}")
    with np.errstate(invalid="ignore"):
        known: NDArray[np.float32] = np.where(depth > 0, depth, np.float32(0.0))  # NaN > 0 is False
    return known


@dataclass(frozen=True, eq=False)
class RgbdFrame:
    """One registered colour + depth pair of one camera.

    Attributes:
        stamp_ns: time of exposure, nanoseconds.
        camera: name of the camera (frame id of its optical frame or a user's name), not empty, at most 1,000
            characters.
        color: (H, W, 3) uint8 RGB.
        depth_m: (H, W) float32, canonical (module docstring).
        intrinsics: of both images; sizes must agree.

    Raises ``ValueError`` naming the value.
    """

    stamp_ns: int
    camera: str
    color: NDArray[np.uint8]
    depth_m: NDArray[np.float32]
    intrinsics: Intrinsics

    def __post_init__(self) -> None:
        if not self.camera:
            raise ValueError("camera name must not be empty")
        if len(self.camera) > MAX_CAMERA_NAME:
            shown = f"{self.camera[:60]!a}... of {len(self.camera)} characters"
            raise ValueError(f"camera name must have at most {MAX_CAMERA_NAME} characters, got {shown}")
        if self.stamp_ns < 0:
            raise ValueError(f"stamp_ns must not be negative, got {self.stamp_ns}")
        if self.color.ndim != 3 or self.color.shape[2] != 3 or self.color.dtype != np.uint8:
            raise ValueError(f"color must be (H, W, 3) uint8, got {self.color.shape} {self.color.dtype}")
        if self.depth_m.ndim != 2 or self.depth_m.dtype != np.float32:
            raise ValueError(f"depth_m must be (H, W) float32, got {self.depth_m.shape} {self.depth_m.dtype}")
        if self.color.shape[:2] != self.depth_m.shape:
            raise ValueError(
                f"color {self.color.shape[:2]} and depth {self.depth_m.shape} differ in size: "
                "depth must be registered to colour"
            )
        expected = (self.intrinsics.height, self.intrinsics.width)
        if self.depth_m.shape != expected:
            raise ValueError(f"images are {self.depth_m.shape} but intrinsics say (height, width) = {expected}")
        # min() propagates NaN, and is one pass over the image
        lowest = float(self.depth_m.min())
        if not lowest >= 0:
            raise ValueError(f"depth_m must be canonical (0 unknown, >0 metres, +Inf out of range), found {lowest}")


@dataclass(frozen=True, eq=False)
class PosedFrame:
    """An :class:`RgbdFrame` with the pose of its optical frame in the fusion frame at the frame's stamp.

    Attributes:
        frame: the images.
        T_world_camera: (4, 4) float64 rigid transform; checked.
        arrival_ns: wall clock when the colour image was sent, or arrived if unknown; start of latencies. 0 = recording.
    """

    frame: RgbdFrame
    T_world_camera: F64
    arrival_ns: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "T_world_camera", check_transform(self.T_world_camera, "T_world_camera"))


_TOGETHER_NS = 1_000_000_000  # newest frames of cameras within this time count as simultaneous


@dataclass(frozen=True, eq=False)
class ViewDirection:
    """Mean position and viewing direction of cameras.

    Attributes:
        origin_m: (3,) mean position.
        direction: (3,) mean of the unit viewing directions; short where cameras face different sides.
    """

    origin_m: F64
    direction: F64

    @classmethod
    def of(cls, *T_world_camera: F64) -> ViewDirection:
        """Average one or more (4, 4) poses of optical frames."""
        poses = np.stack(T_world_camera)
        return cls(poses[:, :3, 3].mean(axis=0), poses[:, :3, 2].mean(axis=0))

    def ahead_m(self, distance_m: float) -> F64:
        """Return (3,) the origin moved by ``distance_m`` along the direction, projected to the horizontal plane."""
        moved: F64 = self.origin_m + distance_m * self.direction * [1.0, 1.0, 0.0]
        return moved


@dataclass(frozen=True, eq=False)
class LatestCameraPoses:
    """Pose of each camera at its newest frame. Immutable, so a prediction keeps its state.

    Attributes:
        newest: the last fused frame of any camera; None before the first.
        poses: stamp and (4, 4) T_world_camera of the newest frame of every camera.
    """

    newest: PosedFrame | None = None
    poses: Mapping[str, tuple[int, F64]] = field(default_factory=dict)

    @property
    def stamp_ns(self) -> int:
        """Return the latest stamp; 0 before the first frame."""
        return max((stamp_ns for stamp_ns, _ in self.poses.values()), default=0)

    @property
    def camera_m(self) -> F64 | None:
        """Return (3,) the camera position of the newest frame; None before the first."""
        return None if self.newest is None else self.newest.T_world_camera[:3, 3]

    @property
    def view_direction(self) -> ViewDirection | None:
        """Return the mean over cameras with a recent frame; None before the first frame."""
        if self.newest is None:
            return None
        newest_ns = self.poses[self.newest.frame.camera][0]
        return ViewDirection.of(
            *(T for stamp_ns, T in self.poses.values() if abs(newest_ns - stamp_ns) <= _TOGETHER_NS)
        )

    def after(self, posed: PosedFrame) -> LatestCameraPoses:
        """Return the poses with one more frame."""
        newest = replace(posed, T_world_camera=posed.T_world_camera.copy())
        camera, stamp_ns = posed.frame.camera, posed.frame.stamp_ns
        return LatestCameraPoses(newest, {**self.poses, camera: (stamp_ns, newest.T_world_camera)})

    def moved(self, T: F64) -> LatestCameraPoses:
        """Return the poses moved by the rigid (4, 4) ``T``."""
        if self.newest is None:
            return self
        poses = {name: (stamp_ns, T @ pose) for name, (stamp_ns, pose) in self.poses.items()}
        return LatestCameraPoses(replace(self.newest, T_world_camera=poses[self.newest.frame.camera][1]), poses)
