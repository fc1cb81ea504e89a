"""Noise models of sensors: structured light, LiDAR phones, motion blur, exposure, pose drift.

Every function is a pure function of its inputs and a random generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from embodied_perceptron.config import require_at_least
from embodied_perceptron.geometry.transforms import F64, Intrinsics, invert_transform, make_transform
from embodied_perceptron_training.homes.rendering.renderer import RenderedView

F32 = NDArray[np.float32]
# baseline 0.075 m, focal length 580 pixels of the sensor itself, disparity in eighths of a pixel
_DISPARITY_STEPS_M = 0.075 * 580 * 8
# sensors of version 1, then those of version 2 only ("mixed" draws one per home)
_FIRST_SENSORS = ("perfect", "structured-light", "lidar-phone")
_LATER_SENSORS = ("mixed", "time-of-flight", "stereo")
Sensor = Literal["perfect", "structured-light", "lidar-phone", "mixed", "time-of-flight", "stereo"]


@dataclass(frozen=True)
class NoiseModel:
    """Simulated faults.

    Attributes:
        sensor: depth sensor.
        exposure: relative drift of the exposure between frames; 0 = constant.
        motion_blur_s: exposure time of motion blur; 0 = sharp.
        pose_sigma_m, pose_sigma_rad: random-walk step of the reported pose per frame; 0 = exact.
        grain: standard deviation of the colour noise in 8-bit steps.
    """

    sensor: Sensor = "structured-light"
    exposure: float = 0.06
    motion_blur_s: float = 0.0
    pose_sigma_m: float = 0.0
    pose_sigma_rad: float = 0.0
    grain: float = 1.5

    def __post_init__(self) -> None:
        if self.sensor not in (*_FIRST_SENSORS, *_LATER_SENSORS):
            names = ", ".join((*_FIRST_SENSORS, *_LATER_SENSORS))
            raise ValueError(f"sensor must be one of {names}, got {self.sensor!r}")
        require_at_least(self, 0, "exposure", "motion_blur_s", "pose_sigma_m", "pose_sigma_rad", "grain")

    def check_version(self, version: int) -> None:
        """Raise ``ValueError`` when homes of ``version`` do not support the sensor."""
        if version == 1 and self.sensor in _LATER_SENSORS:
            raise ValueError(f"sensor {self.sensor} needs version 2; version 1 has {', '.join(_FIRST_SENSORS)}")


def measured_images(
    view: RenderedView, T_world_next: F64, share: float, noise: NoiseModel, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], F32]:
    """Measured colour (H, W, 3) and depth (H, W) in metres of ``view``; 0 = unknown.

    The shutter is open for ``share`` of the way to the next pose (4, 4); 0 = sharp.
    """
    color = view.color
    if share > 0:
        color = motion_blur(color, view.depth_m, view.intrinsics, view.T_world_camera, T_world_next, share)
    color = add_grain(color, noise.grain, rng)
    return color, noisy_depth(view.depth_m, view.incidence, noise.sensor, rng)


def noisy_depth(depth_m: F32, incidence: F32, sensor: Sensor, rng: np.random.Generator) -> F32:
    """(H, W) true depth -> measured depth, 0 = no measurement.

    ``incidence`` is |cosine| between view ray and surface.
    """
    if sensor == "structured-light":
        return _structured_light(depth_m, incidence, rng)
    if sensor == "lidar-phone":
        return _lidar_phone(depth_m, incidence, rng)
    if sensor != "perfect":
        raise ValueError(f"sensor {sensor} is one of version 2 (see homes.sensing)")
    exact: F32 = depth_m.copy()
    return exact


def _structured_light(depth: F32, incidence: F32, rng: np.random.Generator) -> F32:
    """Disparity of a projected pattern: quantised in 1/8 pixel, noise that grows with the square of the distance
    (Nguyen et al. 2012: sigma = 1.2 mm + 1.9 mm (z - 0.4)^2), nothing at grazing angles, at edges, and out of range."""
    height, width = depth.shape
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    jitter = rng.normal(0, 0.35, (2, height, width)).astype(np.float32)  # patches are matched instead of pixels
    jitter = ndimage.uniform_filter(jitter, (0, 3, 3)) * 2
    z = cv2.remap(depth, x + jitter[0], y + jitter[1], cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE)
    sigma = 0.0012 + 0.0019 * np.square(z - 0.4)
    white = rng.normal(0, 1, depth.shape).astype(np.float32)
    correlated = ndimage.uniform_filter(white, 3) * 3 * 0.8 + white * 0.6
    z = z + sigma * correlated * 0.7
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(z > 0, _DISPARITY_STEPS_M / np.round(_DISPARITY_STEPS_M / z), 0)
    lost = (depth <= 0.4) | (depth > 6.0) | (incidence < 0.12 + 0.10 * rng.random(depth.shape))
    low, high = ndimage.minimum_filter(depth, 3), ndimage.maximum_filter(depth, 3)
    edge = high - low > 0.03 * depth + 0.02
    # the projector's shadow lies on the farther side only
    lost |= edge & (depth > (low + high) / 2) & (rng.random(depth.shape) < 0.8)
    lost |= edge & (rng.random(depth.shape) < 0.15)
    return _dropped(z, lost)


def _dropped(z: NDArray[Any], lost: NDArray[np.bool_]) -> F32:
    measured: F32 = np.where(lost, 0, z).astype(np.float32)
    return measured


def _lidar_phone(depth: F32, incidence: F32, rng: np.random.Generator) -> F32:
    """LiDAR of a phone: a coarse grid of pulses upsampled by colour; smooth edges, errors of 1 %, 5 m range."""
    height, width = depth.shape
    coarse = cv2.resize(depth, (max(2, width // 4), max(2, height // 4)), interpolation=cv2.INTER_NEAREST)
    drift = ndimage.gaussian_filter(rng.normal(0, 1, coarse.shape), 2.0) * 4.0
    coarse = coarse * (1 + 0.004 * drift + 0.003 * rng.normal(0, 1, coarse.shape))
    z = cv2.resize(coarse.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    holes = cv2.resize((coarse <= 0).astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR) > 0.01
    lost = holes | (depth > 5.0) | (incidence < 0.08)
    return _dropped(z, lost)


def depth_to_millimetres(depth_m: F32) -> NDArray[np.uint16]:
    """(H, W) metres -> uint16 millimetres of depth PNGs; values out of range become 0."""
    millimetres = np.round(depth_m * 1000)
    return np.where(millimetres < 65535, millimetres, 0).astype(np.uint16)


def motion_blur(
    color: NDArray[np.uint8],
    depth_m: F32,
    intrinsics: Intrinsics,
    T_world_camera: F64,
    T_world_next: F64,
    share: float,
) -> NDArray[np.uint8]:
    """Blur along the optical flow of a static scene while the camera moves ``share`` of the way to its next pose."""
    u, v = np.meshgrid(np.arange(intrinsics.width), np.arange(intrinsics.height))
    flow = image_flow(depth_m, intrinsics, T_world_camera, T_world_next, 80.0) * share
    total = np.zeros(color.shape, np.float32)
    steps = np.linspace(-0.5, 0.5, 7)
    for s in steps:
        total += cv2.remap(
            color,
            (u + s * flow[..., 0]).astype(np.float32),
            (v + s * flow[..., 1]).astype(np.float32),
            cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_REPLICATE,
        )
    blurred: NDArray[np.uint8] = (total / len(steps)).round().astype(np.uint8)
    return blurred


def image_flow(
    depth_m: F32,
    k: Intrinsics,
    T_world_camera: F64,
    T_world_next: F64,
    limit_px: float,
) -> F64:
    """(H, W, 2) optical flow of static points until the next pose in pixels, with 5 m for unknown depth."""
    z = np.where(depth_m > 0, depth_m, 5.0)
    x = (np.arange(k.width) - k.cx) / k.fx
    y = (np.arange(k.height) - k.cy) / k.fy
    T = invert_transform(T_world_next) @ T_world_camera
    moved = np.stack([z * x[None], z * y[:, None], z], -1) @ T[:3, :3].T + T[:3, 3]
    ahead = np.maximum(moved[..., 2], 0.05)
    to = np.stack([k.fx * moved[..., 0] / ahead + k.cx, k.fy * moved[..., 1] / ahead + k.cy], -1)
    here = np.stack(np.meshgrid(np.arange(k.width), np.arange(k.height)), -1)
    flow: F64 = np.clip(to - here, -limit_px, limit_px)
    return flow


def add_grain(color: NDArray[np.uint8], sigma: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Add colour noise, ``sigma`` in 8-bit steps."""
    if sigma == 0:
        return color
    noise = rng.standard_normal(color.shape, dtype=np.float32) * np.float32(sigma)
    grainy: NDArray[np.uint8] = np.clip(color + noise, 0, 255).round().astype(np.uint8)
    return grainy


def exposure_drift(count: int, spread: float, rng: np.random.Generator) -> F64:
    """(count,) multipliers around 1 that drift slowly."""
    steps = rng.normal(0, 1, count)
    drift = np.zeros(count)
    for i in range(1, count):
        drift[i] = 0.95 * drift[i - 1] + 0.31 * steps[i]
    result: F64 = np.exp(spread * drift)
    return result


def shaken_poses(poses: F64, sigma_m: float, sigma_rad: float, rng: np.random.Generator) -> F64:
    """(N, 4, 4) true poses -> reported poses with a bounded random-walk error."""
    result: F64 = poses.copy()
    shift, turn = np.zeros(3), np.zeros(3)
    for i in range(len(poses)):
        shift = 0.98 * shift + rng.normal(0, 1, 3) * sigma_m
        turn = 0.98 * turn + rng.normal(0, 1, 3) * sigma_rad
        R = cv2.Rodrigues(turn.reshape(3, 1))[0]
        result[i] = make_transform(R @ poses[i, :3, :3], poses[i, :3, 3] + shift)
    return result
