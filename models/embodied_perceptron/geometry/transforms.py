"""Rigid transforms, pinhole projection and world <-> voxel arithmetic: the only place where they are written.

Conventions
-----------
* ``T_a_b`` is the 4x4 pose of frame ``b`` in frame ``a``: ``p_a = T_a_b @ p_b``. float64.
* World frames are z up (REP-103); optical camera frames are x right, y down, z forward (REP-103 suffix ``_optical``).
* Quaternions are ``(x, y, z, w)`` as in ROS messages, unit length.
* Integer pixel coordinates are pixel *centres* (ROS, OpenCV): pixel (0, 0) covers [-0.5, 0.5).
* Voxel ``c`` of size ``s`` covers ``[c*s, (c+1)*s)`` per axis; its centre is ``(c + 0.5) * s``.
* Voxel keys pack three signed 21-bit coordinates into one int64 with x most significant, so that sorting keys sorts
  coordinates lexicographically by (x, y, z).
* Site keys of sparse tensors pack a 6-bit sample index above three signed 19-bit coordinates, ordered by
  (sample, x, y, z).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch  # its import takes seconds, and players and readers of recordings never need it

F64 = NDArray[np.float64]
FloatArray = NDArray[np.floating[Any]]

KEY_BITS = 21
_KEY_OFFSET = 1 << (KEY_BITS - 1)
_KEY_MASK = (1 << KEY_BITS) - 1
MAX_COORDINATE = _KEY_OFFSET - 1  # per axis; at 0.01 m this is +-10.4 km

SITE_BITS = 19  # 6 + 3 * 19 = 63: keys are never negative, so that they sort as int64
MAX_SAMPLES = 64
_SITE_OFFSET = 1 << (SITE_BITS - 1)
_SITE_MASK = (1 << SITE_BITS) - 1
# Convolution kernels look this far beyond a site without a carry into the next axis.
_SITE_MARGIN = 1 << 12
MAX_SITE_COORDINATE = _SITE_OFFSET - _SITE_MARGIN  # per axis; at 0.01 m this is +-2.58 km

_UNIT_QUATERNION_TOLERANCE = 1e-2  # drivers publish float32 quaternions; anything further off is a bug upstream


# --------------------------------------------------------------------------------------------------------------------
# rigid transforms


def check_transform(T: FloatArray, name: str = "T") -> F64:
    """Return ``T`` as a (4, 4) float64 rigid transform or raise ``ValueError`` naming what is wrong with it."""
    checked: F64 = np.asarray(T, dtype=np.float64)
    if checked.shape != (4, 4):
        raise ValueError(f"{name} must have shape (4, 4), got {checked.shape}")
    if not np.isfinite(checked).all():
        raise ValueError(f"{name} has non-finite entries: {checked.tolist()}")
    # plain floats: this runs for every transform that arrives, and numpy on 4x4 is mostly overhead
    a, b, c, last = checked.tolist()
    if max(abs(v - w) for v, w in zip(last, (0.0, 0.0, 0.0, 1.0), strict=True)) > 1e-9:
        raise ValueError(f"{name} must end with the row (0, 0, 0, 1), got {last}")
    norm_error = max(abs(x * x + y * y + z * z - 1.0) for x, y, z, _ in (a, b, c))
    skew = max(abs(p[0] * q[0] + p[1] * q[1] + p[2] * q[2]) for p, q in ((a, b), (a, c), (b, c)))
    determinant = (
        a[0] * (b[1] * c[2] - b[2] * c[1]) - a[1] * (b[0] * c[2] - b[2] * c[0]) + a[2] * (b[0] * c[1] - b[1] * c[0])
    )
    if norm_error > 1e-4 or skew > 1e-4 or determinant < 0:
        raise ValueError(f"{name} is not a rigid transform: its rotation part is {checked[:3, :3].tolist()}")
    return checked


def quaternion_to_rotation(quaternion_xyzw: FloatArray) -> F64:
    """(4,) unit quaternion (x, y, z, w) -> (3, 3) rotation matrix.

    Raises ``ValueError`` when the quaternion is not finite or its norm differs from 1 by more than 1e-2; smaller
    deviations are normalised away.
    """
    q = np.asarray(quaternion_xyzw, dtype=np.float64)
    if q.shape != (4,):
        raise ValueError(f"quaternion must have shape (4,), got {q.shape}")
    near_one = all(-2.0 < v < 2.0 for v in q.tolist())
    norm = float(np.linalg.norm(q)) if near_one else math.hypot(*q.tolist())  # the squares of large numbers overflow
    if not np.isfinite(norm) or abs(norm - 1.0) > _UNIT_QUATERNION_TOLERANCE:
        raise ValueError(f"quaternion must have unit norm, got {q.tolist()} with norm {norm:.6g}")
    x, y, z, w = q / norm
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def rotation_to_quaternion(R: FloatArray) -> F64:
    """(3, 3) rotation matrix -> (4,) unit quaternion (x, y, z, w) with w >= 0."""
    R = np.asarray(R, dtype=np.float64)
    # Bar-Itzhack: the eigenvector of the largest eigenvalue of K, stable for every rotation.
    K = (
        np.array(
            [
                [R[0, 0] - R[1, 1] - R[2, 2], 0, 0, 0],
                [R[0, 1] + R[1, 0], R[1, 1] - R[0, 0] - R[2, 2], 0, 0],
                [R[0, 2] + R[2, 0], R[1, 2] + R[2, 1], R[2, 2] - R[0, 0] - R[1, 1], 0],
                [R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1], R[0, 0] + R[1, 1] + R[2, 2]],
            ]
        )
        / 3.0
    )
    _, vectors = np.linalg.eigh(K)  # reads the lower triangle
    q: F64 = vectors[:, -1]
    return -q if q[3] < 0 else q


def make_transform(R: FloatArray, translation_m: FloatArray) -> F64:
    """(3, 3) rotation and (3,) translation -> (4, 4) transform."""
    T = np.eye(4)
    T[:3, :3] = R
    T[:3, 3] = translation_m
    return T


def level_transform(yaw_rad: float, translation_m: FloatArray) -> F64:
    """A turn about the vertical, then a (3,) shift -> (4, 4) transform."""
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    return make_transform(np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]), translation_m)


def yaw_of(T: FloatArray) -> float:
    """Turn about the vertical of a (4, 4) pose that is level, radians in (-pi, pi]."""
    return float(np.arctan2(T[1, 0], T[0, 0]))


def transform_from_pose(translation_m: FloatArray, quaternion_xyzw: FloatArray) -> F64:
    """ROS pose (translation, quaternion xyzw) -> (4, 4) transform. Raises like :func:`quaternion_to_rotation`."""
    t = np.asarray(translation_m, dtype=np.float64)
    if t.shape != (3,) or not np.isfinite(t).all():
        raise ValueError(f"translation must be 3 finite numbers, got {t.tolist()}")
    return make_transform(quaternion_to_rotation(quaternion_xyzw), t)


def invert_transform(T_a_b: FloatArray) -> F64:
    """Inverse of a rigid transform, ``T_b_a``."""
    R = np.asarray(T_a_b, dtype=np.float64)[:3, :3]
    return make_transform(R.T, -R.T @ np.asarray(T_a_b, dtype=np.float64)[:3, 3])


def transform_points(T_a_b: FloatArray, points_b: FloatArray) -> F64:
    """(..., 3) points in frame b -> the same points in frame a."""
    T = np.asarray(T_a_b, dtype=np.float64)
    points_a: F64 = np.asarray(points_b, dtype=np.float64) @ T[:3, :3].T + T[:3, 3]
    return points_a


def interpolate_transform(T0: FloatArray, T1: FloatArray, fraction: float) -> F64:
    """Linear translation, spherical-linear rotation between two poses; ``fraction`` in [0, 1]."""
    q0, q1 = rotation_to_quaternion(T0[:3, :3]), rotation_to_quaternion(T1[:3, :3])
    dot = float(q0 @ q1)
    if dot < 0:
        q1, dot = -q1, -dot
    if dot > 1 - 1e-9:
        q = q0 + fraction * (q1 - q0)
    else:
        angle = np.arccos(min(dot, 1.0))
        q = (np.sin((1 - fraction) * angle) * q0 + np.sin(fraction * angle) * q1) / np.sin(angle)
    t = (1 - fraction) * np.asarray(T0)[:3, 3] + fraction * np.asarray(T1)[:3, 3]
    return transform_from_pose(t, q / np.linalg.norm(q))


def rotation_angle_rad(R: FloatArray) -> float:
    """Angle of a (3, 3) rotation in [0, pi]."""
    return float(np.arccos(np.clip((np.trace(R) - 1) / 2, -1.0, 1.0)))


# --------------------------------------------------------------------------------------------------------------------
# pinhole camera


FOCAL_RANGE = (0.01, 100.0)  # focal lengths in image sizes: from 179 degrees to half a degree of view


@dataclass(frozen=True)
class Intrinsics:
    """Undistorted pinhole camera: pixel (u, v) = (fx x/z + cx, fy y/z + cy), integer coordinates at pixel centres.

    Raises ``ValueError`` naming the field when a value is not finite, a focal length is not positive or out of all
    proportion (:data:`FOCAL_RANGE` image sizes), the size is not positive, or the principal point lies further than one
    image size outside of the image.
    """

    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            if getattr(self, name) <= 0:
                raise ValueError(f"intrinsics: {name} must be positive, got {getattr(self, name)}")
        for name in ("fx", "fy", "cx", "cy"):
            if not np.isfinite(getattr(self, name)):
                raise ValueError(f"intrinsics: {name} must be finite, got {getattr(self, name)}")
        for name in ("fx", "fy"):
            if getattr(self, name) <= 0:
                raise ValueError(f"intrinsics: {name} must be positive, got {getattr(self, name)}")
        for name, size in (("fx", self.width), ("fy", self.height)):
            if (
                not FOCAL_RANGE[0] * size <= getattr(self, name) <= FOCAL_RANGE[1] * max(size, 64)
            ):  # tiny: of a larger one
                raise ValueError(f"intrinsics: {name}={getattr(self, name)} fits no camera of {size} pixels")
        for name, size in (("cx", self.width), ("cy", self.height)):
            if not -size <= getattr(self, name) <= 2 * size:
                raise ValueError(f"intrinsics: {name}={getattr(self, name)} is far outside of the image (size {size})")

    @property
    def matrix(self) -> F64:
        """(3, 3) camera matrix K."""
        return np.array([[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]])

    def resized(self, width: int, height: int) -> Intrinsics:
        """Intrinsics of the same view resized to ``width`` x ``height`` (pixel centres stay aligned)."""
        sx, sy = width / self.width, height / self.height
        return Intrinsics(
            self.fx * sx, self.fy * sy, (self.cx + 0.5) * sx - 0.5, (self.cy + 0.5) * sy - 0.5, width, height
        )


def back_project(depth_m: FloatArray, intrinsics: Intrinsics) -> tuple[F64, NDArray[np.bool_]]:
    """(H, W) depth -> (H, W, 3) points in the optical frame, and the (H, W) mask of pixels with finite depth > 0."""
    depth = np.asarray(depth_m, dtype=np.float64)
    valid = np.isfinite(depth) & (depth > 0)
    z = np.where(valid, depth, 0.0)
    x = (np.arange(intrinsics.width) - intrinsics.cx) / intrinsics.fx
    y = (np.arange(intrinsics.height) - intrinsics.cy) / intrinsics.fy
    return np.stack([z * x[None, :], z * y[:, None], z], axis=-1), valid


def project(points_camera_m: FloatArray, intrinsics: Intrinsics) -> tuple[F64, NDArray[np.bool_]]:
    """(..., 3) optical-frame points -> (..., 2) pixel coordinates (u, v), and the mask of points in front and in frame.

    Pixel coordinates of points that are not in front are undefined (NaN).
    """
    p = np.asarray(points_camera_m, dtype=np.float64)
    z = p[..., 2]
    front = z > 1e-9
    safe = np.where(front, z, np.nan)
    uv = np.stack(
        [intrinsics.fx * p[..., 0] / safe + intrinsics.cx, intrinsics.fy * p[..., 1] / safe + intrinsics.cy], axis=-1
    )
    with np.errstate(invalid="ignore"):
        inside = (
            (uv[..., 0] >= -0.5)
            & (uv[..., 0] < intrinsics.width - 0.5)
            & (uv[..., 1] >= -0.5)
            & (uv[..., 1] < intrinsics.height - 0.5)
        )
    return uv, front & inside


# --------------------------------------------------------------------------------------------------------------------
# voxels


def world_to_voxel(points_m: FloatArray, voxel_size_m: float) -> NDArray[np.int64]:
    """(..., 3) world points -> (..., 3) int64 voxel coordinates, ``floor(p / s)``."""
    return np.floor(np.asarray(points_m, dtype=np.float64) / voxel_size_m).astype(np.int64)


def voxel_centers(coords: NDArray[np.integer[Any]], voxel_size_m: float) -> F64:
    """(..., 3) voxel coordinates -> (..., 3) world coordinates of their centres."""
    return (np.asarray(coords, dtype=np.float64) + 0.5) * voxel_size_m


def pack_keys(coords: torch.Tensor) -> torch.Tensor:
    """(N, 3) integer voxel coordinates -> (N,) int64 keys, ordered like the coordinates (x slowest, z fastest).

    Coordinates must lie in [-2^20, 2^20); outside of it keys are undefined (checking every call would sync the GPU;
    the volume refuses points that far away).
    """
    steps = (1 << (2 * KEY_BITS), 1 << KEY_BITS, 1)
    return (coords * constant(steps, coords.device)).sum(1).add_(_KEY_OFFSET * sum(steps))


def unpack_keys(keys: torch.Tensor) -> torch.Tensor:
    """(N,) int64 keys -> (N, 3) int64 voxel coordinates; inverse of :func:`pack_keys`."""
    shifts = constant((2 * KEY_BITS, KEY_BITS, 0), keys.device)
    return (keys[:, None] >> shifts).bitwise_and_(_KEY_MASK).sub_(_KEY_OFFSET)


def distinct_keys(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) keys -> (M,) sorted, each once: ``np.unique``, whose hash table (NumPy 2.3) takes 30 times as long where
    most of some 100,000 keys are distinct."""
    ordered = np.sort(keys)
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def pack_site_keys(samples: torch.Tensor, coords: torch.Tensor) -> torch.Tensor:
    """(N,) sample indices in [0, 64) and (N, 3) integer coordinates -> (N,) int64 keys, ordered by (sample, x, y, z).

    Coordinates must lie in [-MAX_SITE_COORDINATE, MAX_SITE_COORDINATE]; outside of it keys are undefined (the
    constructors of sparse tensors check).
    """
    return site_keys_of(coords.long()) + (samples.long() << (3 * SITE_BITS))


def site_keys_of(coords: torch.Tensor, sample: int = 0) -> torch.Tensor:
    """:func:`pack_site_keys` of (N, 3) int64 coordinates of one sample: a key is linear in them."""
    steps = (1 << (2 * SITE_BITS), 1 << SITE_BITS, 1)
    origin = (sample << (3 * SITE_BITS)) + _SITE_OFFSET * sum(steps)
    return (coords * constant(steps, coords.device)).sum(1).add_(origin)


def unpack_site_keys(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(N,) site keys -> (N,) int64 sample indices and (N, 3) int64 coordinates; inverse of :func:`pack_site_keys`."""
    return keys >> (3 * SITE_BITS), site_coordinates(keys)


def site_coordinates(keys: torch.Tensor) -> torch.Tensor:
    """(...,) site keys -> (..., 3) int64 coordinates."""
    return site_steps(keys).sub_(_SITE_OFFSET)


def site_steps(steps: torch.Tensor) -> torch.Tensor:
    """(...,) differences of site keys, no axis negative -> (..., 3) int64."""
    return (steps[..., None] >> constant((2 * SITE_BITS, SITE_BITS, 0), steps.device)).bitwise_and_(_SITE_MASK)


@cache
def constant(values: tuple[int | float, ...], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A short vector that is brought to a device once, never to be written to; ``dtype``: None = int64."""
    import torch

    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype or torch.int64, device=device)


def site_key_step(dx: int, dy: int, dz: int) -> int:
    """What to add to a site key to move it by (dx, dy, dz); valid while no axis leaves its range."""
    return dx * (1 << (2 * SITE_BITS)) + dy * (1 << SITE_BITS) + dz


def site_key_mask(stride: int) -> int:
    """The bits of a site key that flooring to a power of two keeps."""
    axis = _SITE_MASK & ~(stride - 1)
    sample = (MAX_SAMPLES - 1) << (3 * SITE_BITS)
    return sample | (axis << (2 * SITE_BITS)) | (axis << SITE_BITS) | axis


def floor_site_keys(keys: torch.Tensor, stride: int) -> torch.Tensor:
    """(N,) site keys -> the keys of ``floor(coordinate / stride) * stride``, unsorted and with repetitions.

    A true floor, for negative coordinates too. Raises ``ValueError`` when the stride is not positive.
    """
    if stride < 1:
        raise ValueError(f"stride must be positive, got {stride}")
    if stride & (stride - 1) == 0:  # the offset is a multiple of any power of two: clearing low bits is the floor
        return keys & site_key_mask(stride)
    samples, coords = unpack_site_keys(keys)
    return pack_site_keys(samples, coords.div(stride, rounding_mode="floor") * stride)
