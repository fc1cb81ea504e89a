"""Relocalisation in a saved map: in simulated homes on another day, and in a real kitchen.

    python benchmarks/relocalise.py                # table, and out/bench/relocalise.json
    python benchmarks/relocalise.py --features xfeat
    python benchmarks/relocalise.py --quick        # one home

A robot maps a home, saves the map and starts again somewhere on another day: other light, a third of the portable
objects moved, odometry with another origin, another path. Each start searches its place with the frames of the first
seconds. A result within 10 cm and 5 degrees is right. Starts that see less than 70 % of what the map holds are counted
apart. All of these, and every start in a map of another home, must be refused.
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
STRANGE = 4  # one start in this many is also tried in the map of another home
RIGHT_M, RIGHT_RAD = 0.10, np.deg2rad(5.0)
KNOWN_SHARE = 0.7  # share of a start's points on surfaces of the map
SEED = 710_000


@dataclass(frozen=True)
class Start:
    """Outcome of one start.

    Attributes:
        outcome: right, wrong or refused.
        known: share of the seen points that the map holds.
        frames: number of frames used; look_ms: mean time of one.
        error_m, error_deg: of the found pose; NaN if none was found.
        reason: of a refusal.
    """

    outcome: str
    known: float
    frames: int
    look_ms: float
    error_m: float = float("nan")
    error_deg: float = float("nan")
    reason: str = ""


def build_map(frames: Iterator[PosedFrame], config: PerceptronConfig, path: Path) -> tuple[dict[str, Any], cKDTree]:
    """Map some frames and save the map; returns its figures and its points."""
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
    """Try one start in a saved map with points ``surface``; ``truths``: (4, 4) T_map_odom of each frame."""
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
    """Share of the points seen from the true poses that lie on surfaces of the map."""
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
    """Row of the table."""
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
    """Starts of the second half of a real sequence in a map of the first half; None if the recording is absent."""
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
