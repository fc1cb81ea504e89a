"""Fusing RGB-D frames into the volume: time, voxels and memory on one core, with two peers in the same run.

    python benchmarks/fusion.py                 # everything: peers, a loop of 10,000 frames, a long drive
    python benchmarks/fusion.py --laps 10       # a shorter loop

Prints a table and writes out/bench/fusion.json. Peers that are not installed (extra `bench`) are left out; their
figures are null. Frames are 640 x 480: the recording $EMBODIED_DATA_DIR/kitchen (default ../shared/data/kitchen), or a
synthetic room if that is absent.

All contenders fuse the same frames in turn, pinned to one core, so that other load affects all of them. CPU time is
free of the load of others. Peers run with usual settings: Open3D's VoxelBlockGrid with colour and its default
truncation of 8 voxels, the faster of two block sizes; OctoMap without colour, discretised, with lazy inner nodes. Only
the volume and OctoMap clear space that is seen through.

For the cost of age, a young volume that has seen only the laps before fuses the frames of the last lap in turn with the
old one.
"""

# ruff: noqa: E402 (threads are set before the libraries load)

from __future__ import annotations

import os
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"  # read when the libraries load

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
import torch
from _report import resident_bytes

from embodied_perceptron.config import KeyframeConfig, VolumeConfig
from embodied_perceptron.geometry.box_rays import upright_camera, view_boxes
from embodied_perceptron.geometry.transforms import F64, Intrinsics, back_project, invert_transform, transform_points
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

FRAME_NS = 33_333_333
GOAL_MS, GOAL_OPEN3D, GOAL_OCTOMAP, GOAL_DRIFT, GOAL_GROWTH_MB = 16.0, 2.0, 10.0, 0.10, 5.0


# --------------------------------------------------------------------------------------------------------------------
# frames


def kitchen_frames(folder: Path) -> list[PosedFrame]:
    """All frames of a TUM folder."""
    camera = read_tum_camera(folder)
    poses = dict(camera.poses)
    color = dict(camera.color_files)
    return [
        PosedFrame(
            RgbdFrame(stamp, "camera", camera.read_color(color[stamp]), camera.read_depth(path), camera.intrinsics),
            poses[stamp],
        )
        for stamp, path in camera.depth_files
        if stamp in poses and stamp in color
    ]


def synthetic_frames(count: int) -> list[PosedFrame]:
    """A circular path through a 6 x 5 x 2.6 m room with eight boxes, with depth noise."""
    k = Intrinsics(585.0, 585.0, 319.5, 239.5, 640, 480)
    rng = np.random.default_rng(0)
    low = np.concatenate([rng.uniform((-2.6, -2.1), (1.8, 1.3), (8, 2)), np.zeros((8, 1))], axis=1)
    boxes = np.stack([low, low + rng.uniform(0.3, 0.9, (8, 3))], axis=1)  # (8, 2, 3)
    room = np.array([[-3.0, -2.5, 0.0], [3.0, 2.5, 2.6]])
    frames = []
    for i in range(count):
        angle = 2 * np.pi * i / count
        T = upright_camera((-0.8 * np.cos(angle), -0.8 * np.sin(angle), 1.4), angle, np.arctan(0.35))
        depth, points, _ = view_boxes(T, k, boxes, room)
        depth = depth * (1 + rng.normal(size=depth.shape) * 0.002 * depth)
        color = (127 + 60 * np.sin(5 * points)).astype(np.uint8)
        frames.append(PosedFrame(RgbdFrame(i * FRAME_NS, "camera", color, depth.astype(np.float32), k), T))
    return frames


def restamped(frame: PosedFrame, index: int, shift_m: float = 0.0) -> PosedFrame:
    """The frame at another time, and further along x."""
    T = frame.T_world_camera.copy()
    T[0, 3] += shift_m
    return PosedFrame(replace(frame.frame, stamp_ns=index * FRAME_NS), T)


# --------------------------------------------------------------------------------------------------------------------
# contenders


@dataclass
class Contender:
    """``prepare`` a frame (not timed), ``fuse`` it, and report ``(voxels, bytes)`` at the end."""

    name: str
    prepare: Callable[[PosedFrame], Any]
    fuse: Callable[[Any], Any]
    size: Callable[[], tuple[int, int]]
    every: int = 1


def volume_contender(config: VolumeConfig) -> Contender:
    volume = FeatureVolume(config, KeyframeConfig())

    def size() -> tuple[int, int]:
        s = volume.statistics()
        return s.voxels, s.memory_bytes - volume.keyframes.nbytes

    return Contender("FeatureVolume", lambda frame: frame, volume.integrate, size)


def open3d_contender(config: VolumeConfig, block: int, device: str = "CPU:0") -> Contender:
    import open3d as o3d

    core, place = o3d.core, o3d.core.Device(device)
    grid = o3d.t.geometry.VoxelBlockGrid(
        attr_names=("tsdf", "weight", "color"),
        attr_dtypes=(core.float32, core.float32, core.float32),
        attr_channels=((1), (1), (3)),
        voxel_size=config.voxel_size_m,
        block_resolution=block,
        block_count=100_000 * 8**3 // block**3,
        device=place,
    )

    def prepare(frame: PosedFrame) -> Any:
        f = frame.frame
        return (
            o3d.t.geometry.Image(core.Tensor(np.ascontiguousarray(f.depth_m), device=place)),
            o3d.t.geometry.Image(core.Tensor(f.color.astype(np.float32) / 255, device=place)),
            core.Tensor(f.intrinsics.matrix),
            core.Tensor(invert_transform(frame.T_world_camera)),
        )

    def fuse(prepared: Any) -> None:
        depth, color, K, T = prepared
        blocks = grid.compute_unique_block_coordinates(depth, K, T, 1.0, config.max_range_m)
        grid.integrate(blocks, depth, color, K, K, T, 1.0, config.max_range_m)

    def size() -> tuple[int, int]:
        blocks = grid.hashmap().active_buf_indices().to(core.int64)
        weight = grid.attribute("weight")[blocks].numpy()
        return int((weight > 0).sum()), len(weight) * block**3 * 4 * 5

    return Contender(f"Open3D VoxelBlockGrid ({block}^3)", prepare, fuse, size)


def octomap_contender(config: VolumeConfig, every: int) -> Contender:
    import pyoctomap

    tree = pyoctomap.OcTree(config.voxel_size_m)

    def prepare(frame: PosedFrame) -> Any:
        points, valid = back_project(frame.frame.depth_m, frame.frame.intrinsics)
        points = points[valid & (frame.frame.depth_m <= config.max_range_m)]
        return transform_points(frame.T_world_camera, points), frame.T_world_camera[:3, 3].copy()

    def fuse(prepared: Any) -> None:
        points, origin = prepared
        tree.insertPointCloud(points, origin, lazy_eval=True, discretize=True)

    def size() -> tuple[int, int]:
        tree.updateInnerOccupancy()
        occupied = sum(1 for leaf in tree.begin_leafs() if tree.isNodeOccupied(leaf))
        return occupied, int(tree.memoryUsage())

    return Contender("OctoMap", prepare, fuse, size, every)


# --------------------------------------------------------------------------------------------------------------------
# measuring


def pin_to_idlest_core() -> int:
    """Bind this process, with all threads that libraries start later, to one core."""

    def busy() -> F64:
        lines = [x.split() for x in Path("/proc/stat").read_text().splitlines() if x[:3] == "cpu" and x[3].isdigit()]
        return np.array([float(x[1]) + float(x[2]) + float(x[3]) for x in lines])

    before = busy()
    time.sleep(0.5)
    load = busy() - before
    core = min(os.sched_getaffinity(0), key=lambda c: load[c])
    os.sched_setaffinity(0, {core})
    return core


def timed(call: Callable[[Any], Any], argument: Any) -> tuple[float, float]:
    """(wall, CPU) milliseconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call(argument)
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def summary(times: F64) -> dict[str, float]:
    """Figures of (N, 2) wall and CPU times."""
    wall, cpu = times[:, 0], times[:, 1]
    return {
        "wall_ms_median": float(np.median(wall)),
        "wall_ms_p99": float(np.percentile(wall, 99)),
        "cpu_ms_median": float(np.median(cpu)),
        "cpu_ms_p99": float(np.percentile(cpu, 99)),
        "frames": len(times),
    }


def compare(frames: list[PosedFrame], contenders: list[Contender]) -> list[dict[str, Any]]:
    """Run all contenders over the same frames, in turn."""
    times: list[list[tuple[float, float]]] = [[] for _ in contenders]
    for i, frame in enumerate(frames):
        for contender, rows in zip(contenders, times, strict=True):
            if i % contender.every == 0:
                rows.append(timed(contender.fuse, contender.prepare(frame)))
    results = []
    for contender, rows in zip(contenders, times, strict=True):
        voxels, memory = contender.size()
        results.append({"name": contender.name, **summary(np.array(rows)), "voxels": voxels, "memory_mb": memory / 1e6})
    return results


def loop(frames: list[PosedFrame], config: VolumeConfig, laps: int, step_m: float, name: str) -> dict[str, Any]:
    """Repeat the same poses; with ``step_m`` each lap is shifted further along x."""
    old, young = FeatureVolume(config, KeyframeConfig()), FeatureVolume(config, KeyframeConfig())
    # laps after which a volume holds as much as an older one: one, or as many as fill the radius
    needed = 1 if step_m == 0 else int(2 * config.radius_m / step_m) + 1
    laps_ms, resident = [], []

    def drive(lap: int, volumes: list[FeatureVolume]) -> F64:
        rows = []
        for i, frame in enumerate(frames):
            posed = restamped(frame, lap * len(frames) + i, lap * step_m)
            rows.append([timed(volume.integrate, posed) for volume in volumes])
        return np.array(rows)  # (frames, volumes, wall and CPU)

    for lap in range(laps - 1):
        laps_ms.append(np.median(drive(lap, [old])[:, 0], axis=0))
        resident.append(resident_bytes() / 1e6)
    for lap in range(max(0, laps - 1 - needed), laps - 1):
        drive(lap, [young])
    last = drive(laps - 1, [old, young])
    s = old.statistics()
    report = old.integrate(restamped(frames[0], laps * len(frames), (laps - 1) * step_m))
    return {
        "name": name,
        "frames": laps * len(frames),
        "lap_wall_ms_median": [float(x[0]) for x in laps_ms],
        "lap_cpu_ms_median": [float(x[1]) for x in laps_ms],
        "old_cpu_ms": float(np.median(last[:, 0, 1])),
        "young_cpu_ms": float(np.median(last[:, 1, 1])),
        # in turn, so that other load affects both
        "old_over_young": float(np.median(last[:, 0, 1] / last[:, 1, 1])),
        "resident_mb": resident,
        "growth_second_half_mb": resident[-1] - resident[len(resident) // 2],
        "blocks": s.blocks,
        "voxels": s.voxels,
        "blocks_evicted": s.blocks_evicted,
        "stage_ms": report.stage_ms,
    }


# --------------------------------------------------------------------------------------------------------------------
# output


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Targets in CPU time: the wall time of a shared core depends on other load."""
    ours_ms = result["ours_ms"]
    rows = [report.goal("ms per frame, clearing included", ours_ms, most=GOAL_MS)]
    for kind, least in (("open3d", GOAL_OPEN3D), ("octomap", GOAL_OCTOMAP)):
        if result[f"{kind}_ms"] is not None:
            rows.append(report.goal(f"times faster than {kind}", result[f"{kind}_ms"] / ours_ms, least=least))
    for r in result["loops"]:
        drift, growth = r["old_over_young"] - 1, r["growth_second_half_mb"]
        rows.append(report.goal(f"{r['name']}: an old volume slower than a young one by", drift, most=GOAL_DRIFT))
        rows.append(report.goal(f"{r['name']}: memory growth in the second half, MB", growth, most=GOAL_GROWTH_MB))
    return rows


def has(module: str) -> bool:
    """Whether a peer can be imported; prints the reason if not."""
    try:
        __import__(module)
    except (ImportError, OSError) as error:  # Open3D needs system libraries
        report.console.print(f"without {module}: {error}", markup=False)
        return False
    return True


def fastest_ms(compared: list[dict[str, Any]], kind: str) -> float | None:
    """CPU milliseconds of the fastest contender of a kind; None if none is installed."""
    return min((c["cpu_ms_median"] for c in compared if c["name"].startswith(kind)), default=None)


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--frames", type=int, default=100, help="of a lap, at most those of the recording")
    parser.add_argument("--laps", type=int, default=100, help="of the loop, at least 3")
    parser.add_argument("--drive-laps", type=int, default=20, help="of the long drive, at least 3; 0 = none")
    parser.add_argument("--octomap-every", type=int, default=10, help="OctoMap takes every n-th frame")
    parser.add_argument("--voxel-size", type=float, default=0.02, help="metres")
    parser.add_argument("--synthetic", action="store_true", help="use the synthetic room")
    options = report.parse(parser, frames=10, laps=3, drive_laps=3, synthetic=True)
    if options.laps < 3 or options.drive_laps in (1, 2):
        parser.error("a run needs at least 3 laps")
    core = pin_to_idlest_core()
    torch.set_num_threads(1)
    kitchen = None if options.synthetic else report.data_folder("kitchen")
    frames = synthetic_frames(options.frames) if kitchen is None else kitchen_frames(kitchen)[: options.frames]
    config = VolumeConfig(voxel_size_m=options.voxel_size)

    warm = FeatureVolume(config)  # compiles the kernels
    for frame in frames[:3]:
        warm.integrate(frame)
    del warm
    contenders = [volume_contender(config)]
    if has("open3d"):
        contenders += [open3d_contender(config, 8), open3d_contender(config, 16)]
    if has("pyoctomap"):
        contenders += [octomap_contender(config, options.octomap_every)]
    compared = compare(frames, contenders)
    contenders.clear()
    loops = [loop(frames, config, options.laps, 0.0, "loop over the same poses")]
    if options.drive_laps:
        loops.append(loop(frames, config, options.drive_laps, 3.0, "drive, 3 m further each lap"))
    result: dict[str, Any] = {
        "pinned_to_core": core,
        "frames_from": "synthetic room" if kitchen is None else "kitchen",
        "voxel_size_m": options.voxel_size,
        "ours_ms": fastest_ms(compared, "FeatureVolume"),
        "open3d_ms": fastest_ms(compared, "Open3D"),
        "octomap_ms": fastest_ms(compared, "OctoMap"),
        "contenders": compared,
        "loops": loops,
    }
    result["goals"] = goals(result)
    report.show(f"fusion, {result['frames_from']}, {options.voxel_size} m, one core, per frame", compared)
    report.show(
        "long runs of FeatureVolume: the last lap beside a young volume, and memory of the process",
        [{name: value for name, value in row.items() if not isinstance(value, (list, dict))} for row in loops],
    )
    report.show("goals", result["goals"])
    report.write(options, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
