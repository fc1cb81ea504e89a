"""A robot's recording of a synthetic home: a TUM-layout folder with exact truth beside it, and the home read back."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.recordings.tum import TumWriter
from embodied_perceptron_training.homes import noise as sensor
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.noise import NoiseModel
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.tours import RobotSpec, rgbd_camera, robot_tour

Images = tuple[NDArray[np.uint8], NDArray[np.float32]]
BASE_FRAME, CAMERA_FRAME = "base_link", "camera_color_optical_frame"


@dataclass(frozen=True)
class RecordingSpec:
    """Specification of one recording.

    Attributes:
        seed: of home, path and noise.
        frames, rate_hz: how long.
        width, height: image size; the horizontal field of view is that of a usual RGB-D camera (about 62 degrees).
        home: kind of home.
        noise: faults of the sensor.
        robot: speed and camera place.
    """

    seed: int
    frames: int = 250
    width: int = 320
    height: int = 240
    rate_hz: float = 10.0
    home: HomeSpec = field(default_factory=lambda: HomeSpec(1, "living room"))
    noise: NoiseModel = field(default_factory=NoiseModel)
    robot: RobotSpec = field(default_factory=RobotSpec)

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"frames must be at least 1, got {self.frames}")
        if not self.rate_hz > 0:
            raise ValueError(f"rate_hz must be positive, got {self.rate_hz}")
        if self.width < 16 or self.height < 16:
            raise ValueError(f"images must be at least 16 x 16, got {self.width} x {self.height}")

    @property
    def intrinsics(self) -> Intrinsics:
        """The camera of the images."""
        return rgbd_camera(self.width, self.height)


class _Renderer:
    """Renders single frames of one recording; one per process."""

    def __init__(self, spec: RecordingSpec) -> None:
        self.spec = spec
        home = build_home(spec.seed, spec.home)
        self.home = home
        self.renderer = RayCastRenderer(home.render_scene())
        base = robot_tour(free_space(home), spec.frames + 1, spec.rate_hz, spec.robot, spec.seed)
        self.T_world_camera = base @ spec.robot.T_base_camera
        drift_rng = np.random.default_rng([spec.seed, 41])
        self.exposure = sensor.exposure_drift(spec.frames, spec.noise.exposure, drift_rng)
        pose_rng = np.random.default_rng([spec.seed, 42])
        self.reported = sensor.shaken_poses(
            self.T_world_camera[:-1], spec.noise.pose_sigma_m, spec.noise.pose_sigma_rad, pose_rng
        )

    def frame(self, index: int) -> Images:
        """Colour and measured depth of frame ``index``."""
        spec = self.spec
        rng = np.random.default_rng([spec.seed, 43, index])
        T, exposure = self.T_world_camera[index], float(self.exposure[index])
        view = self.renderer.render(spec.intrinsics, T, exposure, spec.seed + index)
        share = spec.noise.motion_blur_s * spec.rate_hz
        return sensor.measured_images(view, self.T_world_camera[index + 1], share, spec.noise, rng)


_worker: _Renderer | None = None


def _start_worker(spec: RecordingSpec) -> None:
    global _worker
    cv2.setNumThreads(1)
    _worker = _Renderer(spec)


def _work(index: int) -> Images:
    assert _worker is not None
    return _worker.frame(index)


def render_recording(
    spec: RecordingSpec, out_dir: str | Path, workers: int = 1, progress: Callable[[int, int], None] | None = None
) -> Home:
    """Write the recording of ``spec`` into ``out_dir`` and return the home that it shows.

    The folder has the layout of TUM RGB-D plus ``scene.json`` with the truth; see
    :mod:`embodied_perceptron.recordings.tum`.
    Images are the same whatever ``workers``. Raises ``FileExistsError`` when a recording lies there already, and
    ``OSError`` when the folder cannot be written.
    """
    own = _Renderer(spec)
    writer = TumWriter(
        out_dir,
        spec.intrinsics,
        camera_frame=CAMERA_FRAME,
        color_extension=".jpg",
        base_frame=BASE_FRAME,
        T_base_camera=spec.robot.T_base_camera,
    )
    period_ns = 1e9 / spec.rate_hz
    for index, (color, depth_m) in enumerate(_frames(spec, own, workers)):
        writer.add(round(index * period_ns), color, depth_m, own.reported[index])
        if progress is not None:
            progress(index + 1, spec.frames)
    writer.close(scene_truth(own.home))
    return own.home


def _frames(spec: RecordingSpec, own: _Renderer, workers: int) -> Iterator[Images]:
    if workers <= 1:
        yield from map(own.frame, range(spec.frames))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (spec,)) as pool:
        yield from pool.map(_work, range(spec.frames), chunksize=2)


def scene_truth(home: Home) -> dict[str, Any]:
    """Content of ``scene.json``: seed and kind of the home, and every object with its (9,) box in the world frame."""
    return {
        "seed": home.seed,
        "spec": {"rooms": home.spec.rooms, "kind": home.spec.kind, "clutter": home.spec.clutter},
        "rooms": [room.as_dict() for room in home.rooms],
        "objects": [
            {"id": o.id, "label": o.label, "box9": [round(float(v), 6) for v in o.box9()], "room": o.room}
            for o in home.objects
        ],
    }


def recorded_home(folder: str | Path) -> Home:
    """The home that a recording shows. Raises ``ValueError`` when ``scene.json`` is not of this generator."""
    path = Path(folder) / "scene.json"
    truth = json.loads(path.read_text())
    try:
        spec = truth["spec"]
        return build_home(int(truth["seed"]), HomeSpec(spec["rooms"], spec["kind"], spec["clutter"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe a synthetic home: {error!r}") from error
