"""Finding one's place in a saved map: in homes, on another day, and in a real kitchen.

    python benchmarks/relocalise.py                # table, and out/bench/relocalise.json
    python benchmarks/relocalise.py --features xfeat
    python benchmarks/relocalise.py --quick        # one home

A robot maps a home, saves the map, and is started again somewhere, on another day: the light is other, a third of what
can be carried stands elsewhere, odometry begins anywhere, and the way is another. Each start looks for its place with
the frames of the first seconds. Right is within 10 cm and 5 degrees. Starts that see less than 70 % of what the map
holds cannot be told, and count apart; every one of them, and every start in a map of another home, has to be refused.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
from _revisits import F64, Drive, later_drive, map_drive, true_place
from scipy.spatial import cKDTree

from embodied_perceptron.config import PerceptronConfig, RelocalisationOptions
from embodied_perceptron.geometry.transforms import invert_transform, rotation_angle_rad, transform_points
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.recordings.recording import PosedFrameStream
from embodied_perceptron.recordings.tum import TumRecording
from embodied_perceptron.sensors.frame import PosedFrame

ROOMS, START_FRAMES = 3, 12
STRANGE = 4  # one start in so many is tried in the map of another home, too
RIGHT_M, RIGHT_RAD = 0.10, np.deg2rad(5.0)
KNOWN_SHARE = 0.7  # of what a start sees lies on surfaces of the map
SEED = 710_000


@dataclass(frozen=True)
class Start:
    """What became of one start.

    Attributes:
        outcome: right, wrong or refused.
        known: share of what it saw that the map holds.
        frames: that it took; look_ms: the mean of one.
        error_m, error_deg: of what was found; not a number where nothing was.
        reason: why it was refused.
    """

    outcome: str
    known: float
    frames: int
    look_ms: float
    error_m: float = float("nan")
    error_deg: float = float("nan")
    reason: str = ""


def build_map(frames: Iterator[PosedFrame], config: PerceptronConfig, path: Path) -> tuple[dict[str, Any], cKDTree]:
    """Map of some frames, saved: figures of what it remembers, and its points."""
    perceptron = Perceptron(config)
    place_ms = []
    for posed in frames:
        fused = perceptron.integrate(posed)
        if "place" in fused.stage_ms:
            place_ms.append(fused.stage_ms["place"])
    perceptron.save(path)
    memory = perceptron.map.places
    figures = {"places": len(memory), "places_kb": memory.nbytes / 1e3, "place_ms": float(np.median(place_ms))}
    return figures, cKDTree(perceptron.volume.snapshot().mean_point_m)


def start(path: Path, surface: cKDTree, config: PerceptronConfig, frames: list[PosedFrame], truths: list[F64]) -> Start:
    """One start in a saved map, whose points ``surface`` has; ``truths``: (4, 4) T_map_odom by frame."""
    perceptron = Perceptron(config)
    known = _known_share(surface, frames, truths)
    refused = perceptron.load(path, find_place=True)
    if refused:
        raise SystemExit(refused)
    look_ms = []
    for index, posed in enumerate(frames):
        began = time.perf_counter()
        fused = perceptron.integrate(posed)
        look_ms.append((time.perf_counter() - began) * 1e3)
        if perceptron.place_estimate is None:
            T = invert_transform(perceptron.T_world_map) @ posed.T_world_camera
            true = truths[index] @ posed.T_world_camera
            error_m = float(np.linalg.norm(T[:3, 3] - true[:3, 3]))
            error_rad = rotation_angle_rad(T[:3, :3].T @ true[:3, :3])
            right = error_m <= RIGHT_M and error_rad <= RIGHT_RAD and fused.fused
            outcome = "right" if right else "wrong"
            return Start(outcome, known, index + 1, float(np.mean(look_ms)), error_m, float(np.rad2deg(error_rad)))
    return Start("refused", known, len(frames), float(np.mean(look_ms)), reason=perceptron.place_estimate.reason)


def _known_share(surface: cKDTree, frames: list[PosedFrame], truths: list[F64]) -> float:
    """Of what the frames see, how much lies on surfaces of the map, at their true places."""
    points = []
    for posed, T in zip(frames, truths, strict=True):
        k, z = posed.frame.intrinsics, posed.frame.depth_m[4::8, 4::8]
        v, u = np.mgrid[4 : k.height : 8, 4 : k.width : 8]
        seen = np.stack([(u - k.cx) / k.fx * z, (v - k.cy) / k.fy * z, z], -1)[(z > 0.3) & (z < 6.0)]
        points.append(transform_points(T @ posed.T_world_camera, seen.astype(np.float64)))
    seen = np.concatenate(points)
    cells = seen[np.unique(np.floor(seen / 0.1).astype(np.int64), axis=0, return_index=True)[1]]
    return float((surface.query(cells, distance_upper_bound=0.1)[0] < 0.1).mean()) if len(cells) else 0.0


def starts(drive: Drive) -> Iterator[tuple[list[PosedFrame], list[F64]]]:
    """Stretches of a later drive."""
    for first in range(0, len(drive) - START_FRAMES + 1, START_FRAMES):
        rows = range(first, first + START_FRAMES)
        yield [drive.frame(i) for i in rows], [true_place(drive, i) for i in rows]


def summary(name: str, found: list[Start]) -> dict[str, Any]:
    """A row of the table."""
    right = [s for s in found if s.outcome == "right"]
    return {
        "starts": name,
        "count": len(found),
        **{o: sum(s.outcome == o for s in found) for o in ("right", "wrong", "refused")},
        "right_share": len(right) / len(found) if found else None,
        "error_m": float(np.median([s.error_m for s in right])) if right else None,
        "error_m_worst": max((s.error_m for s in right), default=None),
        "error_deg": float(np.median([s.error_deg for s in right])) if right else None,
        "frames": float(np.mean([s.frames for s in right])) if right else None,
        "look_ms": float(np.median([s.look_ms for s in found])) if found else None,
    }


def kitchen(config: PerceptronConfig, folder: Path) -> dict[str, Any] | None:
    """The second half of a real sequence in a map of the first; None where the recording is absent."""
    source = report.data_folder("kitchen")
    if source is None:
        return None
    frames = list(PosedFrameStream(TumRecording(source), config.assembler))
    half = len(frames) // 2
    path = folder / "kitchen.safetensors"
    figures, surface = build_map(iter(frames[:half]), config, path)
    angle, shift = 1.1, np.array([2.0, -3.0, 0.0])
    T_odom_map = np.eye(4)
    T_odom_map[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    T_odom_map[:3, 3] = shift
    found = []
    for first in range(half, len(frames) - START_FRAMES + 1, START_FRAMES):
        moved = [replace(f, T_world_camera=T_odom_map @ f.T_world_camera) for f in frames[first : first + START_FRAMES]]
        found.append(start(path, surface, config, moved, [invert_transform(T_odom_map)] * START_FRAMES))
    first = found[0]
    return {**figures, **summary("kitchen", found), "first_outcome": first.outcome,
            "first_s": first.frames * first.look_ms / 1e3}  # fmt: skip


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--homes", type=int, default=12)
    parser.add_argument("--first", type=int, default=0, help="number of the first home")
    parser.add_argument("--features", choices=("orb", "xfeat"), default="orb")
    parser.add_argument("--map-frames", type=int, default=300, help="of the drive that maps a home")
    parser.add_argument("--later-frames", type=int, default=100, help="of the drive on another day")
    options = report.parse(parser, homes=1, map_frames=40, later_frames=START_FRAMES)
    config = replace(PerceptronConfig(), relocalisation=RelocalisationOptions(features=options.features))
    maps, found, strange, rows = [], [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        real = kitchen(config, folder)
        if real:
            report.show("kitchen", real)
        paths, surfaces = {}, {}
        for number in range(options.first, options.first + options.homes):
            drive = map_drive(SEED + number, ROOMS, options.map_frames)
            paths[number] = folder / f"{number}.safetensors"
            figures, surfaces[number] = build_map((drive.frame(i) for i in range(len(drive))), config, paths[number])
            maps.append(figures)
        for number, path in paths.items():
            later = later_drive(SEED + number, ROOMS, options.later_frames)
            here = [start(path, surfaces[number], config, *first) for first in starts(later)]
            found += here
            rows.append(summary(str(number), [s for s in here if s.known >= KNOWN_SHARE]))
            report.console.print(rows[-1], highlight=False)
            another = (number - options.first + 1) % options.homes + options.first
            if another != number:
                some = list(starts(later))[::STRANGE]
                strange += [start(paths[another], surfaces[another], config, *first) for first in some]
    known = [s for s in found if s.known >= KNOWN_SHARE]
    tables = [summary("known", known), summary("unknown", [s for s in found if s.known < KNOWN_SHARE])]
    if strange:
        tables.append(summary("another home", strange))
    report.show("starts", tables)
    wrong = sum(s.outcome == "wrong" for s in [*found, *strange]) / max(1, len(found) + len(strange))
    goals = [
        report.goal("right, of known", tables[0]["right_share"], least=0.9),
        report.goal("wrong, of all", wrong, most=0.01),
        report.goal("features of a keyframe, ms", float(np.median([m["place_ms"] for m in maps])), most=10.0),
    ]
    if real:
        goals.append(report.goal("kitchen, s to the first place", real["first_s"], most=5.0))
    report.show("goals", goals)
    report.write(options, {"starts": tables, "homes": rows, "maps": maps, "goals": goals,
                           **({"kitchen": real} if real else {})})  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
