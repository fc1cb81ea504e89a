"""Fusing RGB-D frames into the volume: time, voxels and memory on one core, beside two peers in the same run.

    python benchmarks/fusion.py                 # everything: peers, a loop of 10,000 frames, a long drive
    python benchmarks/fusion.py --laps 10       # a shorter loop
    python benchmarks/fusion.py --no-peers      # without Open3D and OctoMap (extra `bench`)

Table on the screen, figures in out/bench/fusion.json. Frames are 640 x 480: the recording in
$EMBODIED_DATA_DIR/kitchen (default ../shared/data/kitchen), or a synthetic room where that is absent.

All contenders take the same frames in turn, pinned to one core, so that whatever else the machine does hits all of
them. Wall time is what a user waits for; CPU time is what the work costs, without what neighbours take. Peers run with
what is usual or suits them: Open3D's VoxelBlockGrid with colour and its default truncation of 8 voxels, either block
size, the faster one counts; OctoMap without colour, discretised and with lazy inner nodes. Only the volume and OctoMap
clear what is seen through.

Whether a volume gets slower with age is asked in its last lap: beside it a young volume, which has only seen the laps
before, takes the same frames in turn.
"""

# ruff: noqa: E402 (threads are set before the libraries load)

from __future__ import annotations

import os
import time

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"  # read when the libraries load

import argparse
import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from embodied_perceptron.config import KeyframeConfig, VolumeConfig
from embodied_perceptron.geometry.transforms import Intrinsics, back_project, invert_transform, transform_points
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame

REPO = Path(__file__).resolve().parents[1]
OUT = REPO / "out" / "bench" / "fusion.json"
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


def synthetic_frames(count: int = 100) -> list[PosedFrame]:
    """A walk in a circle through a 6 x 5 x 2.6 m room with eight boxes, with depth noise."""
    k = Intrinsics(585.0, 585.0, 319.5, 239.5, 640, 480)
    rng = np.random.default_rng(0)
    low = np.concatenate([rng.uniform((-2.6, -2.1), (1.8, 1.3), (8, 2)), np.zeros((8, 1))], axis=1)
    boxes = np.stack([low, low + rng.uniform(0.3, 0.9, (8, 3))], axis=1)  # (8, 2, 3)
    room = np.array([[-3.0, -2.5, 0.0], [3.0, 2.5, 2.6]])
    rays, _ = back_project(np.ones((480, 640)), k)
    frames = []
    for i in range(count):
        angle = 2 * np.pi * i / count
        forward = np.array([np.cos(angle), np.sin(angle), -0.35])
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, (0, 0, 1))
        right /= np.linalg.norm(right)
        T = np.eye(4)
        T[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
        T[:3, 3] = (-0.8 * np.cos(angle), -0.8 * np.sin(angle), 1.4)
        d = rays @ T[:3, :3].T
        d = np.where(np.abs(d) < 1e-9, 1e-9, d)
        depth = np.maximum((room[0] - T[:3, 3]) / d, (room[1] - T[:3, 3]) / d).min(-1)
        for lower, upper in boxes:
            a, b = (lower - T[:3, 3]) / d, (upper - T[:3, 3]) / d
            enter, leave = np.minimum(a, b).max(-1), np.maximum(a, b).min(-1)
            depth = np.where((enter < leave) & (enter > 0), np.minimum(depth, enter), depth)
        depth = depth * (1 + rng.normal(size=depth.shape) * 0.002 * depth)
        color = (127 + 60 * np.sin(5 * (d * depth[..., None] + T[:3, 3]))).astype(np.uint8)
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
    """``prepare`` a frame outside of the clock, ``fuse`` it, and at the end say ``(voxels, bytes)``."""

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


def open3d_contender(config: VolumeConfig, block: int) -> Contender:
    import open3d as o3d

    core = o3d.core
    grid = o3d.t.geometry.VoxelBlockGrid(
        attr_names=("tsdf", "weight", "color"),
        attr_dtypes=(core.float32, core.float32, core.float32),
        attr_channels=((1), (1), (3)),
        voxel_size=config.voxel_size_m,
        block_resolution=block,
        block_count=100_000 * 8**3 // block**3,
        device=core.Device("CPU:0"),
    )

    def prepare(frame: PosedFrame) -> Any:
        f = frame.frame
        return (
            o3d.t.geometry.Image(core.Tensor(np.ascontiguousarray(f.depth_m))),
            o3d.t.geometry.Image(core.Tensor(f.color.astype(np.float32) / 255)),
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

    def busy() -> NDArray[np.float64]:
        lines = [x.split() for x in Path("/proc/stat").read_text().splitlines() if x[:3] == "cpu" and x[3].isdigit()]
        return np.array([float(x[1]) + float(x[2]) + float(x[3]) for x in lines])

    before = busy()
    time.sleep(0.5)
    load = busy() - before
    core = min(os.sched_getaffinity(0), key=lambda c: load[c])
    os.sched_setaffinity(0, {core})
    return core


def resident_mb() -> float:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def timed(call: Callable[[Any], Any], argument: Any) -> tuple[float, float]:
    """(wall, CPU) milliseconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call(argument)
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def summary(times: NDArray[np.float64]) -> dict[str, float]:
    """(N, 2) wall, CPU -> figures."""
    wall, cpu = times[:, 0], times[:, 1]
    return {
        "wall_ms_median": float(np.median(wall)),
        "wall_ms_p99": float(np.percentile(wall, 99)),
        "cpu_ms_median": float(np.median(cpu)),
        "cpu_ms_p99": float(np.percentile(cpu, 99)),
        "frames": len(times),
    }


def compare(frames: list[PosedFrame], contenders: list[Contender], progress: Progress) -> list[dict[str, Any]]:
    """All contenders over the same frames, frame by frame in turn."""
    times: list[list[tuple[float, float]]] = [[] for _ in contenders]
    task = progress.add_task("peers", total=len(frames))
    for i, frame in enumerate(frames):
        for contender, rows in zip(contenders, times, strict=True):
            if i % contender.every == 0:
                rows.append(timed(contender.fuse, contender.prepare(frame)))
        progress.advance(task)
    results = []
    for contender, rows in zip(contenders, times, strict=True):
        voxels, memory = contender.size()
        results.append({"name": contender.name, **summary(np.array(rows)), "voxels": voxels, "memory_mb": memory / 1e6})
    return results


def loop(
    frames: list[PosedFrame], config: VolumeConfig, laps: int, step_m: float, progress: Progress, name: str
) -> dict[str, Any]:
    """The same poses again and again; with ``step_m`` each lap lies that much further along x."""
    old, young = FeatureVolume(config, KeyframeConfig()), FeatureVolume(config, KeyframeConfig())
    # laps that a volume must have seen to hold all that an older one holds: one, or as many as fill the radius
    needed = 1 if step_m == 0 else int(2 * config.radius_m / step_m) + 1
    task = progress.add_task(name, total=laps)
    laps_ms, resident = [], []

    def drive(lap: int, volumes: list[FeatureVolume]) -> NDArray[np.float64]:
        rows = []
        for i, frame in enumerate(frames):
            posed = restamped(frame, lap * len(frames) + i, lap * step_m)
            rows.append([timed(volume.integrate, posed) for volume in volumes])
        return np.array(rows)  # (frames, volumes, wall and CPU)

    for lap in range(laps - 1):
        laps_ms.append(np.median(drive(lap, [old])[:, 0], axis=0))
        resident.append(resident_mb())
        progress.advance(task)
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
        # frame by frame, so that a busy moment counts for neither
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


def print_tables(console: Console, result: dict[str, Any]) -> None:
    table = Table(title=f"Fusion, {result['frames_from']}, {result['voxel_size_m']} m, one core, ms per frame")
    for column in (
        "",
        "wall median",
        "wall p99",
        "CPU median",
        "CPU p99",
        "frames",
        "voxels",
        "map MB",
        "CPU ratio",
    ):
        table.add_column(column, justify="right" if column else "left")
    ours = result["contenders"][0]
    for c in result["contenders"]:
        table.add_row(
            c["name"],
            *(f"{c[k]:,.1f}" for k in ("wall_ms_median", "wall_ms_p99", "cpu_ms_median", "cpu_ms_p99")),
            f"{c['frames']}",
            f"{c['voxels']:,}",
            f"{c['memory_mb']:,.0f}",
            f"{c['cpu_ms_median'] / ours['cpu_ms_median']:.1f}",
        )
    console.print(table)
    table = Table(title="Long runs of FeatureVolume: the last lap beside a young volume, and memory of the process")
    columns = ("", "frames", "young, CPU ms", "old, CPU ms", "ratio", "MB lap 2", "MB half way", "MB last", "blocks")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    for r in result["loops"]:
        mb = r["resident_mb"]
        table.add_row(
            r["name"],
            f"{r['frames']:,}",
            f"{r['young_cpu_ms']:.2f}",
            f"{r['old_cpu_ms']:.2f}",
            f"{r['old_over_young']:.3f}",
            f"{mb[min(1, len(mb) - 1)]:.0f}",
            f"{mb[len(mb) // 2]:.0f}",
            f"{mb[-1]:.0f}",
            f"{r['blocks']:,}",
        )
    console.print(table)
    table = Table("goal", "measured", "", title="Goals")
    for goal in result["goals"]:
        table.add_row(goal["goal"], goal["measured"], "[green]met" if goal["met"] else "[red]missed")
    console.print(table)


def goals(result: dict[str, Any]) -> list[dict[str, Any]]:
    ours, *peers = result["contenders"]
    # of one core: the wall time of a core that is shared with others says nothing about the work
    cpu_ms, wall_ms = ours["cpu_ms_median"], ours["wall_ms_median"]
    unit = f"ms of one core ({wall_ms:.1f} ms wall)"
    rows = [("<= 16 ms per frame, clearing included", cpu_ms, unit, cpu_ms <= GOAL_MS)]
    for kind, least in (("Open3D", GOAL_OPEN3D), ("OctoMap", GOAL_OCTOMAP)):
        found = [p["cpu_ms_median"] for p in peers if p["name"].startswith(kind)]
        if found:
            ratio = min(found) / ours["cpu_ms_median"]
            rows.append((f">= {least:g} x faster than {kind}", ratio, "x", ratio >= least))
    for r in result["loops"]:
        drift, growth = r["old_over_young"] - 1, r["growth_second_half_mb"]
        rows.append((f"{r['name']}: an old volume within 10 % of a young one", 100 * drift, "%", drift <= GOAL_DRIFT))
        rows.append((f"{r['name']}: memory flat in the second half", growth, "MB", growth <= GOAL_GROWTH_MB))
    return [{"goal": g, "measured": f"{v:.1f} {u}", "met": bool(met)} for g, v, u, met in rows]


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    versions = {}
    for name in ("numpy", "numba", "torch", "open3d", "pyoctomap"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return {
        "cpu": next((x.split(":")[1].strip() for x in info if x.startswith("model name")), platform.machine()),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "versions": versions,
    }


def check_peers() -> list[str]:
    """Names of peers that cannot be imported, with the reason."""
    problems = []
    for module in ("open3d", "pyoctomap"):
        try:
            __import__(module)
        except (ImportError, OSError) as error:
            problems.append(f"{module}: {error}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laps", type=int, default=100, help="laps of the loop, 100 frames each, at least 3")
    parser.add_argument("--drive-laps", type=int, default=20, help="laps of the long drive; 0 = none")
    parser.add_argument("--octomap-every", type=int, default=10, help="OctoMap takes every n-th frame")
    parser.add_argument("--voxel-size", type=float, default=0.02, help="metres")
    parser.add_argument("--no-peers", action="store_true", help="leave Open3D and OctoMap out")
    parser.add_argument("--synthetic", action="store_true", help="use the synthetic room")
    arguments = parser.parse_args()
    if arguments.laps < 3 or arguments.drive_laps in (1, 2):
        parser.error("a run needs at least 3 laps")
    console = Console(width=140)
    if not arguments.no_peers and (problems := check_peers()):
        console.print("[red]a peer is missing:", *problems, "install the extra 'bench', or pass --no-peers", sep="\n  ")
        return 1
    core = pin_to_idlest_core()
    torch.set_num_threads(1)
    kitchen = Path(os.environ.get("EMBODIED_DATA_DIR", REPO.parent / "shared" / "data")) / "kitchen"
    use_kitchen = kitchen.is_dir() and not arguments.synthetic
    frames = kitchen_frames(kitchen) if use_kitchen else synthetic_frames()
    config = VolumeConfig(voxel_size_m=arguments.voxel_size)

    warm = FeatureVolume(config)  # compiles the kernels
    for frame in frames[:3]:
        warm.integrate(frame)
    del warm
    contenders = [volume_contender(config)]
    if not arguments.no_peers:
        contenders += [open3d_contender(config, 8), open3d_contender(config, 16)]
        contenders += [octomap_contender(config, arguments.octomap_every)]
    with Progress(console=console, transient=True) as progress:
        compared = compare(frames, contenders, progress)
        contenders.clear()
        loops = [loop(frames, config, arguments.laps, 0.0, progress, "loop over the same poses")]
        if arguments.drive_laps:
            loops.append(loop(frames, config, arguments.drive_laps, 3.0, progress, "drive, 3 m further each lap"))
    result: dict[str, Any] = {
        "machine": {**machine(), "pinned_to_core": core},
        "frames_from": "kitchen" if use_kitchen else "synthetic room",
        "voxel_size_m": arguments.voxel_size,
        "contenders": compared,
        "loops": loops,
    }
    result["goals"] = goals(result)
    print_tables(console, result)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    m = result["machine"]
    load = ", ".join(f"{x:.1f}" for x in m["load_average"])
    console.print(f"{m['cpu']}, {m['cores']} cores, pinned to one, load average {load}; figures in {OUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
