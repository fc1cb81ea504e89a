"""Robot recordings of synthetic homes as TUM-layout folders, their ground truth, and the error of maps made from
them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import require_at_least, require_positive
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.occupancy_grid import BENCHMARK_GRID, OccupancyGridSpec
from embodied_perceptron.geometry.transforms import F64, Intrinsics
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.coco import write_coco
from embodied_perceptron.recordings.tum import CameraMount, TumWriter, read_tum_camera
from embodied_perceptron.weights.categories import ALL_CATEGORIES, OCCUPANCY_CLASSES, OCCUPANCY_IGNORED
from embodied_perceptron_training.homes import noise as sensor
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.carrying import SecondDrive, with_poses
from embodied_perceptron_training.homes.noise import NoiseModel
from embodied_perceptron_training.homes.occupancy import occupancy_truth, visible_cells
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.sensing import measured_color, measured_depth, surface_kinds
from embodied_perceptron_training.homes.sensor_model import SensorModel, draw_sensor_model
from embodied_perceptron_training.homes.trajectories import RobotSpec, rgbd_camera, robot_trajectory
from embodied_perceptron_training.homes.true_detections import DETECTIONS, true_image
from embodied_perceptron_training.processes import process_pool

# --------------------------------------------------------------------------------------------------------------------
# writing a recording with its ground truth, and reading its home back

Images = tuple[NDArray[np.uint8], NDArray[np.float32], dict[str, Any]]  # colour, depth, true detections
BASE_FRAME, CAMERA_FRAME = "base_link", "camera_color_optical_frame"
LATER_NS = 3_600_000_000_000  # from the beginning of a drive to that of the second one


@dataclass(frozen=True)
class RecordingSpec:
    """Specification of one recording.

    Attributes:
        seed: of home, path and noise.
        frames, rate_hz: number and rate of frames.
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
        require_positive(self, "frames", "rate_hz")
        require_at_least(self, 16, "width", "height")
        self.noise.check_version(self.home.version)

    @property
    def intrinsics(self) -> Intrinsics:
        """Camera of the images; version 2 uses the sensor model's at the requested size."""
        sensor_model = recording_sensor(self)
        return rgbd_camera(self.width, self.height) if sensor_model is None else sensor_model.intrinsics


def recording_sensor(spec: RecordingSpec) -> SensorModel | None:
    """Sensor model of a recording of version 2 at the requested image size; None for version 1."""
    if spec.home.version == 1:
        return None
    sensor_model = draw_sensor_model(spec.seed, spec.width, spec.height, spec.noise, spec.home.unseen)
    return replace(sensor_model, intrinsics=sensor_model.intrinsics.resized(spec.width, spec.height), carrier="robot")


class _Renderer:
    """Renders single frames of one recording; one per process."""

    def __init__(self, spec: RecordingSpec, second: SecondDrive | None = None) -> None:
        self.spec = spec
        home = with_poses(build_home(spec.seed, spec.home), {} if second is None else second.poses)
        self.home = home
        scene = home.render_scene()
        self.renderer = RayCastRenderer(scene)
        self.kinds, self.sensor_model = surface_kinds(home, scene), recording_sensor(spec)
        if second is None:
            base = robot_trajectory(free_space(home), spec.frames + 1, spec.rate_hz, spec.robot, spec.seed)
        else:
            base = second.T_world_base
        self.T_world_camera = base @ spec.robot.T_base_camera
        drift_rng = np.random.default_rng([spec.seed, 41])
        self.exposure = sensor.exposure_drift(spec.frames, spec.noise.exposure, drift_rng)
        pose_rng = np.random.default_rng([spec.seed, 42])
        if self.sensor_model is not None:
            self.exposure = sensor.exposure_drift(spec.frames, self.sensor_model.exposure_spread / 3, drift_rng)
            self.reported = self.sensor_model.reported(self.T_world_camera[:-1], pose_rng, 0.99)
            return
        self.reported = sensor.shaken_poses(
            self.T_world_camera[:-1], spec.noise.pose_sigma_m, spec.noise.pose_sigma_rad, pose_rng
        )

    def frame(self, index: int) -> Images:
        """Colour, measured depth and true detections of frame ``index``."""
        spec = self.spec
        rng = np.random.default_rng([spec.seed, 43, index])
        T, exposure = self.T_world_camera[index], float(self.exposure[index])
        view = self.renderer.render(spec.intrinsics, T, exposure, spec.seed + index)
        stamp_s = round(index * 1e9 / spec.rate_hz) / 1e9
        detections = true_image(self.home, view.instance, f"color/{index:06d}.jpg", stamp_s)
        if self.sensor_model is not None:
            color = measured_color(view, self.sensor_model, rng)
            return color, measured_depth(view, self.kinds, self.sensor_model, rng), detections
        share = spec.noise.motion_blur_s * spec.rate_hz
        color, depth_m = sensor.measured_images(view, self.T_world_camera[index + 1], share, spec.noise, rng)
        return color, depth_m, detections


_worker: _Renderer | None = None


def _start_worker(spec: RecordingSpec, second: SecondDrive | None) -> None:
    global _worker
    _worker = _Renderer(spec, second)


def _work(index: int) -> Images:
    assert _worker is not None
    return _worker.frame(index)


def render_recording(
    spec: RecordingSpec,
    out_dir: str | Path,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
    second: SecondDrive | None = None,
) -> Home:
    """Write the recording of ``spec`` into ``out_dir`` and return the home that it shows.

    The folder has the layout of TUM RGB-D plus the truth: ``scene.json``, see
    :mod:`embodied_perceptron.recordings.tum`, and the 2-D detections of every frame in ``detections.json``.
    ``workers`` does not change the images. ``second``: render this drive, an hour later. Raises ``FileExistsError`` for
    an existing recording, ``OSError`` when the folder cannot be written.
    """
    first_ns = 0
    if second is not None:
        spec, first_ns = replace(spec, frames=len(second.T_world_base) - 1), LATER_NS
    own = _Renderer(spec, second)
    writer = TumWriter(
        out_dir,
        spec.intrinsics,
        camera_frame=CAMERA_FRAME,
        color_extension=".jpg",
        mount=CameraMount(BASE_FRAME, spec.robot.T_base_camera),
    )
    period_ns = 1e9 / spec.rate_hz
    images = []
    for index, (color, depth_m, detections) in enumerate(_frames(spec, own, workers, second)):
        images.append(detections)
        writer.add(first_ns + round(index * period_ns), color, depth_m, own.reported[index])
        if progress is not None:
            progress(index + 1, spec.frames)
    write_coco(Path(out_dir) / DETECTIONS, images)
    writer.close(scene_truth(own.home, {} if second is None else second.poses))
    return own.home


def _frames(spec: RecordingSpec, own: _Renderer, workers: int, second: SecondDrive | None) -> Iterator[Images]:
    if workers <= 1:
        yield from map(own.frame, range(spec.frames))
        return
    with process_pool(workers, _start_worker, spec, second) as pool:
        yield from pool.map(_work, range(spec.frames), chunksize=2)


def scene_truth(home: Home, moved: Mapping[int, F64] = MappingProxyType({})) -> dict[str, Any]:
    """Content of ``scene.json``: seed and kind of the home, every object with its (9,) box in the world frame, and in a
    second drive the (4, 4) poses, by id, of the objects that were ``moved`` since the first."""
    later = {"moved": {str(k): T.tolist() for k, T in moved.items()}} if moved else {}
    return {
        **later,
        "seed": home.seed,
        "spec": {"rooms": home.spec.rooms, "kind": home.spec.kind, "clutter": home.spec.clutter, **_later(home.spec)},
        "rooms": [room.as_dict() for room in home.rooms],
        "objects": [
            {"id": o.id, "label": o.label, "box9": [round(float(v), 6) for v in o.box9()], "room": o.room}
            for o in home.objects
        ],
    }


def _later(spec: HomeSpec) -> dict[str, Any]:
    if spec.version == 1:
        return {}
    return {"version": spec.version, "unseen": spec.unseen, "assets": spec.assets, "revision": spec.revision}


def recorded_home(folder: str | Path) -> Home:
    """Rebuild the home of a recording. Raises ``ValueError`` when ``scene.json`` is not of this generator."""
    path = Path(folder) / "scene.json"
    truth = json.loads(path.read_text())
    try:
        home = build_home(int(truth["seed"]), HomeSpec.of_record(truth["spec"]))
        moved = {int(k): np.array(T, np.float64).reshape(4, 4) for k, T in truth.get("moved", {}).items()}
        return with_poses(home, moved)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} does not describe a synthetic home: {error!r}") from error


def moved_objects(folder: str | Path) -> tuple[int, ...]:
    """Ids of the objects that were moved before the second drive of a recording; empty for a first drive."""
    return tuple(int(k) for k in json.loads((Path(folder) / "scene.json").read_text()).get("moved", {}))


# --------------------------------------------------------------------------------------------------------------------
# Distances of a map's points to the true surfaces of the simulated home that it was made from.

MAX_POINTS = 20_000


@njit(cache=True)
def _point_triangle_squared(p: F64, corners: F64) -> float:
    """Squared distance from a point to a (3, 3) triangle: to its plane above the inside, otherwise to an edge."""
    normal = np.cross(corners[1] - corners[0], corners[2] - corners[0])
    size = (normal * normal).sum()
    inside, best = size > 0, np.inf
    for k in range(3):
        edge, at = corners[(k + 1) % 3] - corners[k], p - corners[k]
        inside &= (np.cross(edge, at) * normal).sum() >= 0
        along = min(max((edge * at).sum() / max((edge * edge).sum(), 1e-300), 0.0), 1.0)
        best = min(best, ((at - along * edge) ** 2).sum())
    return float(((p - corners[0]) * normal).sum() ** 2 / size if inside else best)


@njit(cache=True, inline="always")
def _box_squared(p: F64, low: F64, high: F64) -> float:
    total = 0.0
    for k in range(3):
        d = max(low[k] - p[k], p[k] - high[k], 0.0)
        total += d * d
    return total


@njit(cache=True)
def _distances(points: F64, triangles: F64, low: F64, high: F64) -> F64:
    result = np.empty(len(points))
    last = 0  # triangle of the point before, which is near: most others are further than it by their boxes
    for i, p in enumerate(points):
        best = _point_triangle_squared(p, triangles[last])
        for k in range(len(triangles)):
            if _box_squared(p, low[k], high[k]) < best:
                squared = _point_triangle_squared(p, triangles[k])
                if squared < best:
                    best, last = squared, k
        result[i] = np.sqrt(best)
    return result


def distances_to_triangles(triangles: F64, points_m: NDArray[Any]) -> F64:
    """(F, 3, 3) triangles, F > 0, and (N, 3) points -> (N,) exact distances in metres.

    Raises ``ValueError`` for other shapes or points that are not finite.
    """
    if triangles.ndim != 3 or triangles.shape[1:] != (3, 3) or len(triangles) == 0:
        raise ValueError(f"triangles must have shape (F, 3, 3) with F > 0, got {triangles.shape}")
    points, faces = np.ascontiguousarray(points_m, np.float64), np.ascontiguousarray(triangles, np.float64)
    if points.ndim != 2 or points.shape[1] != 3 or not np.isfinite(points).all():
        raise ValueError(f"points must be finite and of shape (N, 3), got shape {points.shape}")
    result: F64 = _distances(points, faces, faces.min(axis=1), faces.max(axis=1))
    return result


def surface_distance_m(source: Home | str | Path, points_m: NDArray[Any]) -> F64:
    """(N, 3) world points -> (N,) distance in metres to the true surfaces of a home or of a recording's folder.

    A folder needs the ``scene.json`` of :func:`recording.render_recording`; its home is rebuilt from the seed. Raises
    ``FileNotFoundError`` without it.
    """
    home = source if isinstance(source, Home) else recorded_home(source)
    return distances_to_triangles(home.triangles(), points_m)


def map_error_m(recording: str | Path, points_m: NDArray[Any]) -> float:
    """Mean distance of (N, 3) map points, evenly thinned beyond :data:`MAX_POINTS`, to the nearest true surface.

    Raises ``FileNotFoundError`` when the folder has no ground truth, ``ValueError`` without points or for ground truth
    of another kind.
    """
    if len(points_m) == 0:
        raise ValueError("the map holds no points")
    step = -(-len(points_m) // MAX_POINTS)
    return float(surface_distance_m(recording, np.asarray(points_m)[::step]).mean())


def map_points(map_file: str | Path) -> NDArray[np.float32]:
    """(N, 3) mean points of the occupied voxels of a saved map. Raises as :meth:`Perceptron.load` does."""
    perceptron = Perceptron()
    perceptron.load(map_file)
    return perceptron.perceive().voxels.mean_point_m


# --------------------------------------------------------------------------------------------------------------------
# ground truth of the views of a recording: visible objects and occupancy cells

SEEN_SHARE = 0.0004  # share of an image's pixels, as for the instances of a sample
_WIDTH = 96  # size of the rendered id images
_CELLS_EVERY = 4  # views used for cells: every n-th


@dataclass(frozen=True, eq=False)
class HomeTrajectory:
    """A trajectory through a home with the ground truth of its views.

    Attributes:
        home: the home.
        stamps_ns: (V,) of the views.
        T_world_camera: (V, 4, 4) poses.
        intrinsics: of the rendered images.
        max_range_m: limit of visible depth.
        share: (V, objects) share of the image of each object.
        depth_m: (V, H, W) float32 true depth.
    """

    home: Home
    stamps_ns: NDArray[np.int64]
    T_world_camera: F64
    intrinsics: Intrinsics
    max_range_m: float
    share: F64
    depth_m: NDArray[np.float32]

    @cached_property
    def best_share(self) -> F64:
        """(objects,) the largest share in any view."""
        best: F64 = self.share.max(axis=0)
        return best

    def seen(self, min_share: float = SEEN_SHARE) -> list[int]:
        """Ids of the objects with at least this share of some view."""
        return [int(i) for i in np.flatnonzero(self.best_share >= min_share)]

    def first_seen_ns(self, object_id: int, min_share: float = SEEN_SHARE) -> int:
        """Stamp of the first view with this share of the object. Raises ``ValueError`` without one."""
        views = np.flatnonzero(self.share[:, object_id] >= min_share)
        if len(views) == 0:
            raise ValueError(f"object {object_id} is never seen")
        return int(self.stamps_ns[views[0]])

    def occupancy(
        self, cell_m: float = BENCHMARK_GRID.cell_m
    ) -> tuple[OccupancyGridSpec, NDArray[np.uint8], NDArray[np.bool_]]:
        """Grid over the home on the lattice of ``cell_m``, its labels (0 free, k + 1 = OCCUPANCY_CLASSES[k], 255
        ignored), and the mask of the cells that the views determine."""
        corners = self.home.triangles().reshape(-1, 3)
        low = np.floor(corners.min(axis=0) / cell_m).astype(int)
        nx, ny, nz = (np.floor(corners.max(axis=0) / cell_m).astype(int) + 1 - low).tolist()
        x, y, z = (low * cell_m).tolist()
        grid = OccupancyGridSpec((x, y, z), (nx, ny, nz), cell_m)
        lookup = np.array([_LABEL.get(name, OCCUPANCY_IGNORED) for name in ALL_CATEGORIES], np.uint8)
        rows = occupancy_truth(self.home, ALL_CATEGORIES, grid)
        labels = np.zeros(grid.shape, np.uint8)
        labels[tuple(rows[:, :3].T)] = lookup[rows[:, 3]]
        seen = np.zeros(grid.shape, bool)
        for view in range(0, len(self.stamps_ns), _CELLS_EVERY):
            T = self.T_world_camera[view]
            seen |= visible_cells(self.depth_m[view], self.intrinsics, T, grid, self.max_range_m)
        return grid, labels, seen


_LABEL = {name: k + 1 for k, name in enumerate(OCCUPANCY_CLASSES)}


def watch_recording(folder: str | Path, max_range_m: float = 5.0) -> HomeTrajectory:
    """Ground truth of the trajectory of a simulated recording, with its home rebuilt from the seed.

    Raises ``FileNotFoundError`` for a recording without ground truth, ``ValueError`` for ground truth of another kind
    or an unreadable recording.
    """
    home = recorded_home(folder)
    camera = read_tum_camera(folder)
    stamps = np.array([stamp for stamp, _ in camera.poses], np.int64)
    return watch(home, stamps, np.stack([T for _, T in camera.poses]), camera.intrinsics, max_range_m)


def watch(
    home: Home, stamps_ns: NDArray[np.int64], T_world_camera: F64, intrinsics: Intrinsics, max_range_m: float = 5.0
) -> HomeTrajectory:
    """Ground truth of a trajectory of camera poses (V, 4, 4)."""
    small = intrinsics.resized(_WIDTH, max(1, round(_WIDTH * intrinsics.height / intrinsics.width)))
    renderer = RayCastRenderer(home.render_scene())
    share = np.zeros((len(stamps_ns), len(home.objects)))
    depths = np.zeros((len(stamps_ns), small.height, small.width), np.float32)
    for view, T in enumerate(T_world_camera):
        depths[view], ids = renderer.ids(small, T)
        near = ids[(depths[view] > 0) & (depths[view] < max_range_m)]
        share[view] = np.bincount(near, minlength=len(home.objects) + 1)[1:] / ids.size
    return HomeTrajectory(home, stamps_ns, T_world_camera, small, max_range_m, share, depths)
