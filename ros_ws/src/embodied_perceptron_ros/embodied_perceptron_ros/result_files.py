"""The files of a replay over topics: the same names and contents as those of a direct replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import PerceptronConfig
from embodied_perceptron.frame import PosedFrame
from embodied_perceptron.io.artifacts import (
    write_json,
    write_objects_json,
    write_occupancy_grid,
    write_occupancy_npz,
    write_ply,
    write_png,
)
from embodied_perceptron.io.recording import PosedFrameStream, open_recording
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Perception
from embodied_perceptron.viewer import render_top_view
from embodied_perceptron_ros.replaying import ReplayOutcome


def final_perception(outcome: ReplayOutcome) -> Perception:
    """The saved map with the objects that were published last: what the node's listeners know.

    Its labelled cells are those of the geometry, which pictures are cut by; ``outcome.semantic`` holds the published
    ones. Raises as :meth:`Perceptron.load` does.
    """
    perceptron = Perceptron()
    perceptron.load(outcome.map_file)
    objects = outcome.sightings[-1].objects if outcome.sightings else ()
    return replace(perceptron.perceive(), objects=objects, tentative=(), stale=())


def walk(source: Path, images: int) -> tuple[NDArray[np.float64], list[PosedFrame]]:
    """(N, 3) positions of the camera at every frame of a recording, and about ``images`` of the frames."""
    recording = open_recording(source)
    every = max(1, len(recording) // max(1, images))
    positions, shown = [], []
    for index, posed in enumerate(PosedFrameStream(recording, PerceptronConfig().assembler)):
        positions.append(posed.T_world_camera[:3, 3])
        if index % every == 0:
            shown.append(posed)
    return np.array(positions).reshape(-1, 3), shown


def percentiles(outcome: ReplayOutcome, stage: str) -> dict[str, float | None]:
    """``{"p50": .., "p99": ..}`` of one stage of the node's latencies; None where it never ran."""
    statistics = outcome.status.latency_ms.get(stage, {})
    return {key: statistics.get(key) for key in ("p50", "p99")}


def timings(outcome: ReplayOutcome, perception: Perception) -> dict[str, Any]:
    """Contents of ``timings.json``: as of a direct replay, and image in -> fused / boxes out."""
    return {
        "frames": outcome.sent,
        "fused": outcome.status.fused,
        "dropped": dict(sorted(outcome.status.dropped.items())),
        "fuse_ms": percentiles(outcome, "fusion"),
        "perceive_ms": percentiles(outcome, "perception"),
        "latency_ms": {stage: percentiles(outcome, stage) for stage in ("fused", "boxes")},
        "voxels": len(perception.voxels),
    }


def write_result_files(
    out: Path, outcome: ReplayOutcome, perception: Perception, positions_m: NDArray[np.float64]
) -> None:
    """Write point cloud, objects, cells, top view, navigation map and timings beside ``map.safetensors``."""
    write_ply(out / "voxels.ply", perception.voxels.mean_point_m, perception.voxels.mean_color)
    write_objects_json(out / "objects.json", perception.objects)
    write_occupancy_npz(out / "occupancy.npz", perception.semantic if outcome.semantic is None else outcome.semantic)
    write_png(out / "top_view.png", render_top_view(perception, trajectory_m=positions_m))
    write_occupancy_grid(out / "occupancy_grid", perception.grid)
    write_json(out / "timings.json", timings(outcome, perception))
