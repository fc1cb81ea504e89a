"""Cost of an update of the object map with many known objects: it should depend on the nearby objects only.

    python benchmarks/objects.py                      # table, and out/bench/objects.json
    python benchmarks/objects.py --known 100 2000

The map knows many objects; the robot stands in one room, finds the same 20 objects again and again and misses a few.
The last column is the ratio to the smallest map; the target is 1.2 for 10,000 objects against 100.
"""

from __future__ import annotations

import sys
import time

import _report as report
import numpy as np

from embodied_perceptron.config import ScorePolicy
from embodied_perceptron.geometry.manhattan import Region
from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.results import Detections, VoxelSnapshot
from embodied_perceptron.scene.object_map import ObjectMap

VOXEL_M, SPACING_M, REACH_M = 0.02, 1.5, 10.0
ROOM = Region(np.array([-3.2, -3.2, -np.inf]), np.array([3.2, 3.2, np.inf]))
NAMES = ("chair", "table", "lamp", "cabinet", "plant")
SCORES = ScorePolicy(0.25)
SECOND_NS = 1_000_000_000


def boxes_at(centers_m: F64, rng: np.random.Generator) -> F64:
    """(N, 9) boxes of half a metre, standing at (N, 2) places."""
    n = len(centers_m)
    size = np.sort(rng.uniform(0.4, 0.6, (n, 2)), axis=1)[:, ::-1]
    upright = [np.full((n, 1), 0.4), size, np.full((n, 1), 0.8), rng.uniform(-0.7, 0.7, (n, 1)), np.zeros((n, 2))]
    return np.concatenate([centers_m, *upright], axis=1)


def snapshot_of(boxes: F64, floor_m: float = 0.0) -> VoxelSnapshot:
    """Voxels every 4 cm in the upper half of each box, and of a floor around the origin."""
    step = np.arange(-0.16, 0.17, 0.04)
    block = np.stack(np.meshgrid(step, step, np.arange(0.45, 0.8, 0.04), indexing="ij"), axis=-1).reshape(-1, 3)
    points = [block + np.append(box[:2], 0.0) for box in boxes]
    if floor_m:
        ground = np.arange(-floor_m, floor_m, VOXEL_M)
        points.append(np.stack(np.meshgrid(ground, ground, [0.0], indexing="ij"), axis=-1).reshape(-1, 3))
    place = np.concatenate(points)
    coords, first = np.unique(np.floor(place / VOXEL_M).astype(np.int32), axis=0, return_index=True)
    n = len(coords)
    return VoxelSnapshot(
        VOXEL_M,
        coords,
        place[first].astype(np.float32),
        np.full((n, 3), 128, np.uint8),
        np.full(n, 5, np.int32),
        np.full(n, 3.0, np.float32),
        np.ones(n, np.int64),
    )


def detections(boxes: F64) -> Detections:
    return Detections(boxes, np.full(len(boxes), 0.6), tuple(NAMES[i % len(NAMES)] for i in range(len(boxes))))


class House:
    """An object map and the room where the robot stands."""

    def __init__(self, known: int) -> None:
        rng = np.random.default_rng(0)
        self.objects = ObjectMap()
        self.now_ns = 0
        # near objects around the origin, the others in rooms from 20 m away
        row = max(1, round(np.sqrt(known)))
        far = np.array([(20.0 + SPACING_M * (i % row), 20.0 + SPACING_M * (i // row)) for i in range(known - 20)])
        for start in range(0, len(far), row):
            part = boxes_at(far[start : start + row], rng)
            y = part[0, 1]
            self.see(part, snapshot_of(part), Region(np.array([15, y - 0.7, -np.inf]), np.array([np.inf, y + 0.7, 9])))
        near = np.array([(-2.4 + 1.2 * (i % 5), -1.8 + 1.2 * (i // 5)) for i in range(20)])
        self.boxes = boxes_at(near, rng)
        self.snapshot = snapshot_of(self.boxes, 4.0)
        self.see(self.boxes, self.snapshot, ROOM)
        if len(self.objects) != known:
            raise RuntimeError(f"{known} objects should be known, {len(self.objects)} are")
        self.rng = rng

    def see(self, boxes: F64, snapshot: VoxelSnapshot, looked_at: Region) -> None:
        """Find all objects twice, so that they are confirmed."""
        for _ in range(2):
            self.now_ns += SECOND_NS // 3
            self.objects.update(detections(boxes), snapshot, self.now_ns, looked_at=looked_at, scores=SCORES)

    def update_ms(self) -> float:
        """One noisy update that misses some objects."""
        noisy = self.boxes + np.pad(self.rng.normal(0, 0.01, (20, 6)), ((0, 0), (0, 3)))
        found = detections(noisy).take(np.flatnonzero(self.rng.random(20) < 0.9))
        self.now_ns += SECOND_NS // 3
        start = time.perf_counter()
        self.objects.update(found, self.snapshot, self.now_ns, np.zeros(3), REACH_M, ROOM, SCORES)
        return 1e3 * (time.perf_counter() - start)


def measure(known: list[int], rounds: int) -> list[dict[str, float]]:
    """Update the maps in turn, so that other load slows them alike."""
    houses = [House(n) for n in known]
    times = np.array([[house.update_ms() for house in houses] for _ in range(rounds + 3)])[3:]
    ratio = np.median(times / times[:, :1], axis=0)
    return [
        {"known": n, "median_ms": float(np.median(t)), "p90_ms": float(np.percentile(t, 90)), "ratio": float(r)}
        for n, t, r in zip(known, times.T, ratio, strict=True)
    ]


def main() -> int:
    """Measure, print, write."""
    parser = report.parser(__doc__)
    parser.add_argument("--known", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=60)
    options = report.parse(parser, known=[50, 200], rounds=5)
    rows = measure(sorted(options.known), options.rounds)
    report.show("update of the map of objects", rows)
    report.write(options, {"ratio_of_most_to_fewest": rows[-1]["ratio"], "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
