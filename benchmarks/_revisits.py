"""Simulated homes that a robot visits twice: for its map, and later with other light and moved objects.

The recordings are rendered once and kept between runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import F64, Intrinsics, invert_transform, make_transform
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron_ros.demo.simulated import renderer_digest
from embodied_perceptron_training.homes.assets.mesh import rotation
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.carrying import carry
from embodied_perceptron_training.homes.noise import NoiseModel
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.rendering.scene import RenderScene
from embodied_perceptron_training.homes.sensing import measured_color, measured_depth, surface_kinds
from embodied_perceptron_training.homes.sensor_model import SensorModel, draw_sensor_model
from embodied_perceptron_training.homes.trajectories import RobotSpec, robot_trajectory

RATE_HZ = 2.5
WIDTH, HEIGHT = 320, 240


@dataclass(frozen=True, eq=False)
class Drive:
    """Frames of one drive.

    Attributes:
        color: (N, H, W, 3) uint8.
        depth_mm: (N, H, W) uint16, 0 = unknown.
        T_home_camera: (N, 4, 4) true poses of the camera.
        T_odom_camera: (N, 4, 4) poses of the camera by odometry.
        intrinsics: of the camera.
        pixels: (N, K) int32 visible pixels of each object of the home.
    """

    color: NDArray[np.uint8]
    depth_mm: NDArray[np.uint16]
    T_home_camera: F64
    T_odom_camera: F64
    intrinsics: Intrinsics
    pixels: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.color)

    def frame(self, index: int, first_ns: int = 1) -> PosedFrame:
        """Frame ``index`` with its pose by odometry."""
        depth_m = self.depth_mm[index].astype(np.float32) * np.float32(0.001)
        stamp_ns = first_ns + int(index * 1e9 / RATE_HZ)
        return PosedFrame(
            RgbdFrame(stamp_ns, "camera", self.color[index], depth_m, self.intrinsics), self.T_odom_camera[index]
        )

    @classmethod
    def read(cls, path: Path) -> Drive:
        """Read a file of :meth:`write`."""
        with np.load(path) as data:
            fx, fy, cx, cy = data["pinhole"]
            height, width = data["depth_mm"].shape[1:]
            intrinsics = Intrinsics(fx, fy, cx, cy, width, height)
            names = "color", "depth_mm", "T_home_camera", "T_odom_camera"
            return cls(*(data[name] for name in names), intrinsics, data["pixels"])

    def write(self, path: Path) -> None:
        """Write to a file, atomically."""
        k = self.intrinsics
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".part.npz")
        np.savez_compressed(
            temporary, color=self.color, depth_mm=self.depth_mm, T_home_camera=self.T_home_camera,
            T_odom_camera=self.T_odom_camera, pinhole=[k.fx, k.fy, k.cx, k.cy], pixels=self.pixels,
        )  # fmt: skip
        temporary.replace(path)


def map_drive(seed: int, rooms: int, frames: int) -> Drive:
    """First drive through the home of ``seed``; odometry starts at the home's origin."""
    return _kept("map", seed, rooms, frames)


def later_drive(seed: int, rooms: int, frames: int) -> Drive:
    """Second drive on another path, with the same camera, other light and moved objects; odometry starts anywhere."""
    return _kept("later", seed, rooms, frames)


def _kept(day: str, seed: int, rooms: int, frames: int) -> Drive:
    make = _first_drive if day == "map" else _second_drive
    return kept(f"{seed}_{rooms}x{frames}_{day}", lambda: make(build_home(seed, HomeSpec(rooms, version=2)), frames))


def kept(name: str, make: Callable[[], Drive]) -> Drive:
    """Read a drive from the cache; make it where it is not there yet."""
    path = Path.home() / ".cache" / "embodied_perceptron" / f"revisits2_{renderer_digest()}" / f"{name}.npz"
    if not path.exists():
        make().write(path)
    return Drive.read(path)


def _first_drive(home: Home, frames: int) -> Drive:
    return drive(home, home.render_scene(), drive_sensor(home.seed), frames, home.seed, np.eye(4))


def _second_drive(home: Home, frames: int) -> Drive:
    rng = np.random.default_rng([home.seed, 91])
    later = carry(home, rng)[0]
    scene = later.render_scene()
    lights = tuple(
        replace(light, color=tuple(c * factor for c in light.color))
        for light, factor in zip(scene.lights, rng.choice([0.08, 0.4, 1.0, 1.6], len(scene.lights)), strict=True)
    )
    scene = replace(scene, lights=lights, ambient=tuple(c * float(rng.uniform(0.5, 1.3)) for c in scene.ambient))
    sensor, other = drive_sensor(home.seed), drive_sensor(home.seed + 1_000_000)
    sensor = replace(sensor, white=other.white, gamma=other.gamma, grain=other.grain)
    yaw, shift = float(rng.uniform(-np.pi, np.pi)), rng.uniform(-4, 4, 2)
    T_odom_home = make_transform(rotation("z", yaw), np.array([*shift, 0.0]))
    return drive(later, scene, sensor, frames, home.seed + 1_000_000, T_odom_home)


def drive_sensor(seed: int) -> SensorModel:
    """Model of the camera in the home of a seed."""
    model = draw_sensor_model(seed, WIDTH, HEIGHT, NoiseModel(sensor="mixed"))
    return replace(model, intrinsics=model.intrinsics.resized(WIDTH, HEIGHT), carrier="robot")


def drive(home: Home, scene: RenderScene, sensor: SensorModel, frames: int, seed: int, T_odom_home: F64) -> Drive:
    """Render a drive of a robot through a home."""
    renderer, kinds = RayCastRenderer(scene), surface_kinds(home, scene)
    spec = RobotSpec()
    poses = robot_trajectory(free_space(home), frames, RATE_HZ, spec, seed) @ spec.T_base_camera
    reported = sensor.reported(poses, np.random.default_rng([seed, 42]), 0.99)
    color, depth_mm, pixels = [], [], []
    for index, T in enumerate(poses):
        rng = np.random.default_rng([seed, 43, index])
        view = renderer.render(sensor.intrinsics, T, 1.0, seed + index)
        color.append(measured_color(view, sensor, rng))
        depth_m = measured_depth(view, kinds, sensor, rng)
        depth_mm.append(np.where(np.isfinite(depth_m), depth_m * 1000, 0).round().clip(0, 65534).astype(np.uint16))
        pixels.append(np.bincount(view.instance.ravel().clip(0), minlength=len(home.objects) + 1)[1:].astype(np.int32))
    stacks = np.stack(color), np.stack(depth_mm), poses, T_odom_home @ reported
    return Drive(*stacks, sensor.intrinsics, np.stack(pixels))


def true_place(drive: Drive, index: int) -> F64:
    """(4, 4) true T_home_odom at a frame, which relocalisation should find."""
    T: F64 = drive.T_home_camera[index] @ invert_transform(drive.T_odom_camera[index])
    return T
