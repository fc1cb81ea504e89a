"""Tools of an agent: how long each takes over a map of 100 objects, asked by the SDK's own client in one process.

    python benchmarks/agent.py
    python benchmarks/agent.py --objects 1000 --calls 50

The client, the checks of both schemas and the making of the answer are in the times; the picture is one of 640 pixels.
Goal: 50 ms at the median for every tool. Table, and out/bench/agent.json.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import _report as report
import anyio
import numpy as np
from mcp import Client

from embodied_perceptron.agents.server import make_server
from embodied_perceptron.agents.tools import TOOLS
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.results import (
    Grounding,
    OccupancyGrid2d,
    Perception,
    SceneObject,
    SemanticVoxels,
    VoxelSnapshot,
)

GOAL_MS = 50.0
LABELS = ("chair", "table", "lamp", "cup", "book", "shelf", "couch", "window", "door", "plant", "box", "bottle")
SENTENCES = (
    "the chair closest to the window",
    "how many cups are on the table",
    "the second book from the left",
    "all plants that are not on a shelf",
    "the lamp between the couch and the door",
)


class Room:
    """Objects at random on a floor with 40 voxels to the square metre; a scene source."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(count)
        side = 1.2 * count**0.5
        self.objects = tuple(
            SceneObject(
                i + 1,
                LABELS[i % len(LABELS)],
                0.9,
                np.array([*rng.uniform(0.5, side - 0.5, 2), rng.uniform(0.2, 1.0), *rng.uniform(0.1, 0.8, 3), 0, 0, 0]),
            )
            for i in range(count)
        )
        xy = rng.uniform(0, side, (int(40 * side * side), 2))
        points = np.column_stack([xy, np.zeros(len(xy))]).astype(np.float32)
        points = points[np.argsort(points[:, 0], kind="stable")]
        n, none = len(points), np.zeros((0, 3))
        voxels = VoxelSnapshot(
            0.04, np.floor(points / 0.04).astype(np.int32), points, rng.integers(0, 255, (n, 3)).astype(np.uint8),
            np.full(n, 3, np.int32), np.ones(n, np.float32), np.ones(n, np.int64),
        )  # fmt: skip
        cells = np.zeros((int(side / 0.05) + 1,) * 2, np.int8)
        for box in (o.box for o in self.objects):
            (c0, r0), (c1, r1) = np.floor((box[:2] + np.outer([-0.5, 0.5], box[3:5])) / 0.05).astype(int)
            cells[r0 : r1 + 1, c0 : c1 + 1] = 100
        empty = SemanticVoxels(
            0.1, none.astype(np.float32), none.astype(np.uint8), np.zeros(0, np.int32), np.zeros(0, np.float32), ()
        )
        grid = OccupancyGrid2d(0.05, np.zeros(2), cells, 0.0)
        self._perception = Perception.of(self.objects, stamp_ns=1, semantic=empty, grid=grid, voxels=voxels)

    def frame(self) -> str:
        """Of the scene."""
        return "map"

    def perception(self) -> Perception:
        """The scene."""
        return self._perception

    def ground(self, sentence: str, viewpoint: Any) -> Grounding:
        """The answer to a sentence."""
        return ground_objects(sentence, self.objects, viewpoint)


async def measure(room: Room, calls: int) -> list[dict[str, Any]]:
    """A row for each tool."""
    rows = []
    async with Client(make_server(room)) as client:
        for name, tool in TOOLS.items():
            ms = []
            for k in range(calls + 2):  # the first two compile and fill caches
                number = room.objects[k % len(room.objects)].id
                every = {"id": number, "sentence": SENTENCES[k % len(SENTENCES)]}
                given = {key: value for key, value in every.items() if key in tool.input_schema["properties"]}
                started = time.perf_counter()
                answer = await client.call_tool(name, given)
                ms.append((time.perf_counter() - started) * 1e3)
                if answer.is_error:
                    raise RuntimeError(f"{name}: {answer.content[0].text}")
            p50, p95 = statistics.median(ms[2:]), float(np.percentile(ms[2:], 95))
            rows.append({"tool": name, "p50_ms": p50, "p95_ms": p95, "met": p50 <= GOAL_MS})
    return rows


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--objects", type=int, default=100)
    parser.add_argument("--calls", type=int, default=200, help="of each tool")
    options = report.parse(parser, calls=5)
    rows = anyio.run(measure, Room(options.objects), options.calls)
    report.show(f"tools over {options.objects} objects", rows)
    slowest = max(row["p50_ms"] for row in rows)
    figures = {"objects": options.objects, "calls": options.calls, "slowest_p50_ms": slowest, "tools": rows}
    report.write(options, figures)


if __name__ == "__main__":
    main()
