"""Perception without a network, and pictures: CPU time by stage over maps of 1, 4 and 9 furnished rooms, one thread.

    python benchmarks/scene.py            # table, and out/bench/scene.json

The rooms are surfaces of boxes with 5 mm of noise at 2 cm voxels, about 490,000 voxels a room. What matters is that
time grows with the map no faster than its voxels.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.geometry.transforms import pack_keys, unpack_keys, world_to_voxel
from embodied_perceptron.results import Perception, VoxelSnapshot
from embodied_perceptron.scene.navigation import navigation_grid, semantic_voxels
from embodied_perceptron.scene.object_map import ObjectMap
from embodied_perceptron.scene.segmentation.components import find_boxes
from embodied_perceptron.scene.segmentation.floor import estimate_floor_z
from embodied_perceptron.scene.segmentation.layers import separate_layers
from embodied_perceptron.visualization.room_view import render_3d
from embodied_perceptron.visualization.top_view import render_top_view

OUT = Path(__file__).resolve().parents[1] / "out" / "bench" / "scene.json"
VOXEL_M = 0.02
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


def room_points() -> NDArray[np.float64]:
    """(N, 3) points of one room on all surfaces."""
    w, d = ROOM_M
    boxes = [(0, 0, 1.2, w, d, 2.4), *FURNITURE]
    parts = []
    for x, y, z, sx, sy, sz in boxes:
        size = np.array([sx, sy, sz])
        for axis in range(3):
            i, j = [k for k in range(3) if k != axis]
            u, v = np.meshgrid(*(np.arange(-size[k] / 2, size[k] / 2, 0.01) for k in (i, j)), indexing="ij")
            for side in (-0.5, 0.5):
                if len(parts) == 5 and size[2] == 2.4 and side > 0:  # no ceiling
                    continue
                face = np.empty((u.size, 3))
                face[:, i], face[:, j], face[:, axis] = u.ravel(), v.ravel(), side * size[axis]
                parts.append(face + np.array([x, y, z]))
    return np.concatenate(parts)


def map_of(rooms: int) -> VoxelSnapshot:
    """A map of ``rooms`` x ``rooms`` rooms."""
    one = room_points()
    offsets = [(i * (ROOM_M[0] + 0.15), j * (ROOM_M[1] + 0.15), 0.0) for i in range(rooms) for j in range(rooms)]
    points = np.concatenate([one + o for o in offsets])
    points += np.random.default_rng(0).normal(0, 0.005, points.shape)
    keys = pack_keys(torch.from_numpy(world_to_voxel(points, VOXEL_M))).numpy()
    unique, inverse, count = np.unique(keys, return_inverse=True, return_counts=True)
    mean = np.stack([np.bincount(inverse, points[:, i]) for i in range(3)], axis=1) / count[:, None]
    n = len(unique)
    height = np.clip(mean[:, 2:] * 90 + 60, 0, 255)
    return VoxelSnapshot(
        VOXEL_M,
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


def measure(snapshot: VoxelSnapshot, repeats: int = 3) -> dict[str, Any]:
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
        timed(times, "room view", lambda: render_3d(perception))
    return {
        "voxels": len(snapshot),
        "objects": len(found),
        "stage_ms": perceive,
        "perceive_ms": sum(perceive.values()),
        "top_view_ms": min(times["top view"]),
        "room_view_ms": min(times["room view"]),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = [{"rooms": n * n, **measure(map_of(n))} for n in (1, 2, 3)]
    stages = list(rows[0]["stage_ms"])
    table = Table(
        "rooms", "voxels", "boxes", *stages, "perceive", "us/voxel", "top view", "3-D", title="CPU ms, one thread"
    )
    for row in rows:
        table.add_row(
            str(row["rooms"]),
            f"{row['voxels']:,}",
            str(row["objects"]),
            *(f"{row['stage_ms'][s]:.0f}" for s in stages),
            f"{row['perceive_ms']:.0f}",
            f"{1e3 * row['perceive_ms'] / row['voxels']:.2f}",
            f"{row['top_view_ms']:.0f}",
            f"{row['room_view_ms']:.0f}",
        )
    Console(width=140).print(table)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
