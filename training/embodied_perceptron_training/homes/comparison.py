"""Compare statistics of generated homes with a real recording: holes, depth, pitch, roll, rooms, objects.

A real recording has no boxes: its room is the extent of its points, its objects are connected components of its map by
geometry alone (objects that touch are one). Homes use their ground truth.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.geometry.transforms import F64, Intrinsics, back_project, transform_points
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.files import read_json
from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron_training.homes.building.home import VERSIONS, HomeSpec
from embodied_perceptron_training.homes.generate import HomeSampleSpec, load_record, sample_idx, write_sample
from embodied_perceptron_training.homes.noise import NoiseModel

NEAR_M = 1.2
LARGE = ("table", "couch", "chair", "plant", "counter", "desk", "shelf", "cabinet", "bed")
_HOMES, _VIEWS, _FIRST_SEED = 12, 10, 700_000  # of a version that the data set at hand is not of
_FRAMES = 100  # of a recording, about
_LARGE_M = 0.5


@dataclass
class ViewStatistics:
    """Statistics over views.

    Attributes:
        holes: share of pixels without depth, per view.
        depth_m: quantiles 10, 50, 90 % per view.
        near: share of the measured pixels nearer than 1.2 m, per view.
        pitch_deg, roll_deg: per view; pitch down is positive.
        scans: number of homes or recordings.
        room_m: (width, depth, height) per room.
        sizes_m: (dx, dy, dz) by class.
    """

    holes: list[float] = field(default_factory=list)
    depth_m: list[F64] = field(default_factory=list)
    near: list[float] = field(default_factory=list)
    pitch_deg: list[float] = field(default_factory=list)
    roll_deg: list[float] = field(default_factory=list)
    scans: int = 0
    room_m: list[tuple[float, float, float]] = field(default_factory=list)
    sizes_m: dict[str, list[F64]] = field(default_factory=dict)

    def add_view(self, depth_m: NDArray[np.floating], T_world_camera: F64) -> None:
        """Count one view: (H, W) metres with 0 for unknown, and its pose. World z is up."""
        known = depth_m > 0
        self.holes.append(1 - float(known.mean()))
        if known.any():
            self.depth_m.append(np.percentile(depth_m[known], (10, 50, 90)))
            self.near.append(float((depth_m[known] < NEAR_M).mean()))
        pitch, roll = pitch_and_roll_deg(T_world_camera)
        self.pitch_deg.append(pitch)
        self.roll_deg.append(roll)

    def rows(self) -> dict[str, str]:
        """Printable figures by name, without missing ones."""
        rows = {"scans / views": f"{self.scans} / {len(self.holes)}"}
        if self.holes:
            low, high = np.percentile(self.holes, (10, 90)) * 100
            rows["pixels without depth, mean (views 10..90 %)"] = f"{np.mean(self.holes):.1%} ({low:.0f}..{high:.0f})"
            rows["depth 10 / 50 / 90 % (m)"] = " / ".join(f"{v:.2f}" for v in np.mean(self.depth_m, axis=0))
            rows[f"measured pixels nearer than {NEAR_M} m"] = f"{np.mean(self.near):.1%}"
            rows["pitch down, mean (10..90 %) deg"] = _spread(self.pitch_deg)
            rows["|roll|, mean (10..90 %) deg"] = _spread(np.abs(self.roll_deg).tolist())
        if self.room_m:
            rows["room (m), median"] = " x ".join(f"{v:.1f}" for v in np.median(self.room_m, axis=0))
        for label, sizes in self.sizes_m.items():
            across = np.sort(np.array(sizes)[:, :2], axis=1)[:, ::-1]
            longest, high = across[:, 0], np.array(sizes)[:, 2]
            rows[f"{label}: length median (max), height median (m)"] = (
                f"{np.median(longest):.2f} ({longest.max():.2f}), {np.median(high):.2f}"
            )
        return rows


def _spread(values: Sequence[float]) -> str:
    low, high = np.percentile(values, (10, 90))
    return f"{np.mean(values):.1f} ({low:.1f}..{high:.1f})"


def pitch_and_roll_deg(T_world_camera: F64) -> tuple[float, float]:
    """Downward pitch and roll of an optical frame with a (4, 4) pose, degrees."""
    R = np.asarray(T_world_camera, np.float64)[:3, :3]
    forward, right = R[:, 2], R[:, 0]
    level = np.cross(forward, [0.0, 0.0, 1.0])  # to the right, horizontal
    norm = float(np.linalg.norm(level))
    pitch = float(np.rad2deg(np.arcsin(np.clip(-forward[2], -1, 1))))
    if norm < 1e-6:
        return pitch, 0.0
    level /= norm
    return pitch, float(np.rad2deg(np.arctan2(float(np.cross(level, right) @ forward), float(level @ right))))


def sample_statistics(root: Path, names: Iterable[str]) -> ViewStatistics:
    """Statistics of samples below ``root``. Raises ``FileNotFoundError`` for a missing one."""
    result = ViewStatistics()
    for name in names:
        record = load_record(root, name)
        result.scans += 1
        for room in record["rooms"]:
            x0, y0, x1, y1 = room["rect"]
            long, short = max(x1 - x0, y1 - y0), min(x1 - x0, y1 - y0)
            result.room_m.append((long, short, room["height_m"]))
        for image in record["images"]:
            stored = cv2.imread(str(root / image["depth_path"]), cv2.IMREAD_UNCHANGED)
            if stored is None:
                raise FileNotFoundError(f"{root / image['depth_path']} cannot be read")
            result.add_view(np.asarray(stored, np.float64) / 1000, np.array(image["cam2global"]))
        for instance in record["instances"]:
            if instance["label"] in LARGE:
                result.sizes_m.setdefault(instance["label"], []).append(np.array(instance["bbox_3d"][3:6]))
    return result


def recording_statistics(source: str | Path) -> ViewStatistics:
    """Statistics of a recording with poses. Raises as :func:`open_recording` does; ``ValueError`` when no frame has a
    pose."""
    result = ViewStatistics(scans=1)
    points = []
    recording = open_recording(source)
    every = -(-len(recording) // (2 * _FRAMES))  # colour and depth are separate entries
    config = PerceptronConfig()
    perceptron = Perceptron(replace(config, network=replace(config.network, weights="")))
    newest = 0
    for k, posed in enumerate(PosedFrameStream(recording, config.assembler)):
        if k % every:
            continue
        depth_m = posed.frame.depth_m
        result.add_view(depth_m, posed.T_world_camera)
        points.append(_world_points(depth_m, posed.frame.intrinsics, posed.T_world_camera))
        perceptron.integrate(posed)
        newest = posed.frame.stamp_ns
    if not points:
        raise ValueError(f"{source} has no frame with a pose")
    found = perceptron.perceive(newest)
    for thing in (*found.objects, *found.tentative):
        if float(max(thing.box[3:6])) >= _LARGE_M:
            result.sizes_m.setdefault("map's large things", []).append(np.array(thing.box[3:6]))
    cloud = np.concatenate(points)
    low, high = np.percentile(cloud, (0.5, 99.5), axis=0)
    long, short = sorted((high - low)[:2].tolist(), reverse=True)
    result.room_m.append((long, short, float(high[2] - low[2])))
    return result


def _world_points(depth_m: NDArray[np.float32], intrinsics: Intrinsics, T_world_camera: F64) -> F64:
    points, valid = back_project(depth_m, intrinsics)
    return transform_points(T_world_camera, points[valid][::37])


def compare(
    folder: Path | None,
    split: str,
    recording: Path,
    homes: int = _HOMES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, dict[str, str]]:
    """Columns of printable figures: versions 1 and 2, the data set in ``folder`` if given, and ``recording``.

    ``homes`` homes of each version are generated in a temporary folder. ``progress`` receives the number of finished
    homes (the recording counts as one) and of all. Raises as :func:`sample_statistics` and
    :func:`recording_statistics`.
    """
    total = 1 + len(VERSIONS) * homes
    real = recording_statistics(recording)
    progress(1, total)
    columns = {}
    with tempfile.TemporaryDirectory() as scratch:
        for version in VERSIONS:
            noise = NoiseModel() if version == 1 else NoiseModel(sensor="mixed")
            spec = HomeSampleSpec(views=_VIEWS, home=HomeSpec(0, version=version), noise=noise)
            root = Path(scratch) / str(version)
            names = []
            for k in range(homes):
                names.append(write_sample(_FIRST_SEED + k, root, spec))
                progress(2 + k + homes * len(columns), total)
            columns[f"version {version}"] = sample_statistics(root, names).rows()
    if folder is not None:
        names = [sample_idx(seed) for seed in _seeds(folder, split)]
        columns[f"{folder.name} ({split})"] = sample_statistics(folder, names).rows()
    columns[recording.name] = real.rows()
    return columns


def _seeds(folder: Path, split: str) -> list[int]:
    overview = read_json(folder / "homes.json")
    if split not in overview["splits"]:
        raise ValueError(f"{folder / 'homes.json'} has no split {split!r}; it has {', '.join(overview['splits'])}")
    return [int(seed) for seed in overview["splits"][split]]
