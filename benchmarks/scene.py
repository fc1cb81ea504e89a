"""Perception without a network, and pictures: CPU time by stage over maps of 1, 4 and 9 furnished rooms, one thread.

    python benchmarks/scene.py            # table, and out/bench/scene.json

The rooms are surfaces of boxes with 5 mm of noise at 2 cm voxels, about 490,000 voxels a room. What matters is that
time grows with the map no faster than its voxels.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import _report as report
import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.geometry.transforms import pack_keys, unpack_keys, world_to_voxel
from embodied_perceptron.results import Perception, VoxelSnapshot
from embodied_perceptron.scene.navigation import navigation_grid, semantic_voxels
from embodied_perceptron.scene.object_map import ObjectMap
from embodied_perceptron.scene.segmentation.components import find_boxes
from embodied_perceptron.scene.segmentation.floor import estimate_floor_z
from embodied_perceptron.scene.segmentation.layers import separate_layers
from embodied_perceptron.visualization.top_view import render_top_view

ROOM_M = (6.0, 5.0)
FURNITURE = (  # centre x, y, z and size
    *((x, y, 0.73, 1.6, 0.9, 0.04) for x, y in ((0.0, 0.0),)),
    *((x, y, 0.44, 0.44, 0.44, 0.04) for x, y in ((0.0, 0.6), (0.0, -0.6), (1.0, 0.0), (-1.0, 0.0))),
    *((x, y, 0.70, 0.44, 0.04, 0.5) for x, y in ((0.0, 0.8), (0.0, -0.8))),
    (-2.4, 0.0, 0.21, 0.9, 2.0, 0.42),
    (-2.75, 0.0, 0.45, 0.2, 2.0, 0.9),
    (1.5, 2.15, 0.45, 2.4, 0.6, 0.9),
    (2.6, -1.8, 0.95, 0.6, 1.2, 1.9),
    (-1.8, -2.2, 0.4, 1.2, 0.5, 0.8),
)
ResultT = TypeVar("ResultT")


def room_points(step_m: float) -> NDArray[np.float64]:
    """(N, 3) points of one room on all surfaces."""
    w, d = ROOM_M
    boxes = [(0, 0, 1.2, w, d, 2.4), *FURNITURE]
    parts = []
    for x, y, z, sx, sy, sz in boxes:
        size = np.array([sx, sy, sz])
        for axis in range(3):
            i, j = [k for k in range(3) if k != axis]
            u, v = np.meshgrid(*(np.arange(-size[k] / 2, size[k] / 2, step_m) for k in (i, j)), indexing="ij")
            for side in (-0.5, 0.5):
                if len(parts) == 5 and size[2] == 2.4 and side > 0:  # no ceiling
                    continue
                face = np.empty((u.size, 3))
                face[:, i], face[:, j], face[:, axis] = u.ravel(), v.ravel(), side * size[axis]
                parts.append(face + np.array([x, y, z]))
    return np.concatenate(parts)


def map_of(rooms: int, voxel_m: float) -> VoxelSnapshot:
    """A map of ``rooms`` x ``rooms`` rooms."""
    one = room_points(0.5 * voxel_m)
    offsets = [(i * (ROOM_M[0] + 0.15), j * (ROOM_M[1] + 0.15), 0.0) for i in range(rooms) for j in range(rooms)]
    points = np.concatenate([one + o for o in offsets])
    points += np.random.default_rng(0).normal(0, 0.005, points.shape)
    keys = pack_keys(torch.from_numpy(world_to_voxel(points, voxel_m))).numpy()
    unique, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
    mean = np.stack([np.bincount(inverse, points[:, i]) for i in range(3)], axis=1) / count[:, None]
    n = len(unique)
    height = np.clip(mean[:, 2:] * 90 + 60, 0, 255)
    return VoxelSnapshot(
        voxel_m,
        unpack_keys(torch.from_numpy(unique)).numpy().astype(np.int32),
        mean.astype(np.float32),
        np.repeat(height, 3, axis=1).astype(np.uint8),
        np.full(n, 5, np.int32),
        np.full(n, 3.0, np.float32),
        np.ones(n, np.int64),
    )


def timed(times: dict[str, list[float]], name: str, call: Callable[[], ResultT]) -> ResultT:
    start = time.process_time()
    result = call()
    times.setdefault(name, []).append((time.process_time() - start) * 1e3)
    return result


def measure(snapshot: VoxelSnapshot, repeats: int) -> dict[str, Any]:
    """Best milliseconds by stage; the first round, which may compile, is not counted."""
    config = PerceptronConfig()
    objects = ObjectMap(config.objects.tracking)
    times: dict[str, list[float]] = {}
    for i in range(repeats + 1):
        thin = snapshot.mean_point_m[:: 1 + len(snapshot) // 250_000]  # as the Perceptron does
        floor = timed(times, "floor", lambda p=thin: estimate_floor_z(p)) or 0.0
        layers = timed(times, "layers", lambda f=floor: separate_layers(snapshot, f, config.objects.segmentation))
        found = timed(times, "boxes", lambda x=layers: find_boxes(snapshot, x, config.objects.segmentation))
        timed(times, "objects", lambda b=found, i=i: objects.update(b, snapshot, i))
        semantic = timed(
            times, "semantic", lambda x=layers: semantic_voxels(snapshot, x, config.objects.segmentation.cell_size_m)
        )
        grid = timed(times, "grid", lambda f=floor: navigation_grid(snapshot, f, config.grid))
    perceive = {name: min(values[1:]) for name, values in times.items()}
    perception = Perception(0, objects.objects(), (), semantic, grid, snapshot)
    for _ in range(2):
        timed(times, "top view", lambda: render_top_view(perception))
    return {
        "voxels": len(snapshot),
        "objects": len(found),
        **{f"{name}_ms": value for name, value in perceive.items()},
        "perceive_ms": sum(perceive.values()),
        "us_per_voxel": 1e3 * sum(perceive.values()) / len(snapshot),
        "top_view_ms": min(times["top view"]),
    }


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--voxel-size", type=float, default=0.02, help="metres")
    parser.add_argument("--edge", type=int, nargs="+", default=[1, 2, 3], help="rooms along an edge of each map")
    parser.add_argument("--repeats", type=int, default=3)
    options = report.parse(parser, voxel_size=0.06, edge=[1, 2], repeats=1)
    torch.set_num_threads(1)
    rows = [{"rooms": n * n, **measure(map_of(n, options.voxel_size), options.repeats)} for n in options.edge]
    report.show("perception without a network, CPU ms, one thread", rows)
    growth = rows[-1]["us_per_voxel"] / rows[0]["us_per_voxel"]
    report.write(options, {"time_per_voxel_of_most_to_fewest_rooms": growth, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
