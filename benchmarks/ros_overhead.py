"""What ROS adds: from the moment a player writes an image until it is in the map, less the fusion itself.

    python benchmarks/ros_overhead.py                 # a real recording at 3, 10 and 30 frames a second
    python benchmarks/ros_overhead.py --source DIR    # another folder or bag

Player and node are processes of their own on real topics (Fast DDS, reliable, shared memory of 32 MB). Columns are
medians and 99th percentiles over the run: `transport` is the way of the colour image to the node, `fused` from writing
the colour image to being in the map, `fusion` the work on the map alone; `overhead` = fused - fusion, so it holds the
wait for depth and transform, decoding, queues and whatever else the machine does meanwhile (boxes, grid, clouds).
Table on the screen, figures in out/bench/ros_overhead.json. The recording is $EMBODIED_DATA_DIR/kitchen (default
../shared/data/kitchen), or a simulated drive where that is absent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import ColorSample
from embodied_perceptron_ros.demo.simulated import DEFAULT_SEED, render, simulated_recording
from embodied_perceptron_ros.players.replaying import ReplayOutcome, ReplayPlan, replay_over_ros

REPO = Path(__file__).resolve().parents[1]
OUT = REPO / "out" / "bench" / "ros_overhead.json"
RATES_HZ = (3.0, 10.0, 30.0)
GOAL_MS = 8.0


def default_source() -> Path:
    """The real recording, or a simulated drive."""
    kitchen = Path(os.environ.get("EMBODIED_DATA_DIR", REPO.parent / "shared" / "data")) / "kitchen"
    if kitchen.is_dir():
        return kitchen
    recording = simulated_recording(DEFAULT_SEED)
    render(recording, DEFAULT_SEED)
    return recording


def frame_rate_hz(source: Path) -> float:
    """Frames per recorded second."""
    stamps = [sample.stamp_ns for sample in open_recording(source) if isinstance(sample, ColorSample)]
    return 1e9 / float(np.median(np.diff(stamps)))


def measure(source: Path, rate: float, quiet: bool) -> ReplayOutcome:
    """One run; ``quiet``: next to no perception beside fusing."""
    parameters = {"perception_hz": 0.05, "voxels_hz": 0.05} if quiet else {}
    with tempfile.TemporaryDirectory() as folder:
        return replay_over_ros(ReplayPlan(source, Path(folder), rate, parameters=parameters))


def row_of(outcome: ReplayOutcome, rate_hz: float, quiet: bool) -> dict[str, Any]:
    """Figures of one run."""
    stages = outcome.status.latency_ms
    spread = {stage: {k: stages[stage][k] for k in ("p50", "p99")} for stage in ("transport", "fused", "fusion")}
    return {
        "rate_hz": rate_hz,
        "perception": not quiet,
        "frames": outcome.sent,
        "fused": outcome.status.fused,
        "dropped": outcome.status.dropped,
        "unexplained": outcome.unexplained,
        **{f"{stage}_ms": values for stage, values in spread.items()},
        "overhead_p50_ms": round(spread["fused"]["p50"] - spread["fusion"]["p50"], 3),
    }


def main() -> int:
    """Measure, print, write; exit code 1 when frames were lost without a reason."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES_HZ, help="frames a second")
    options = parser.parse_args()
    source = options.source or default_source()
    recorded_hz = frame_rate_hz(source)
    console = Console()
    table = Table("frames/s", "boxes", "fused", "transport", "image in -> fused", "fusion", "overhead p50")
    rows = []
    for quiet in (True, False):
        for rate_hz in options.rates:
            row = row_of(measure(source, rate_hz / recorded_hz, quiet), rate_hz, quiet)
            rows.append(row)
            cells = [f"{row[k]['p50']:.1f} / {row[k]['p99']:.1f}" for k in ("transport_ms", "fused_ms", "fusion_ms")]
            counts = (f"{rate_hz:g}", "off" if quiet else "on", f"{row['fused']} of {row['frames']}")
            table.add_row(*counts, *cells, f"{row['overhead_p50_ms']:.1f} ms")
            console.print(f"{rate_hz:g} frames/s, perception {'off' if quiet else 'on'}: done")
    table.title = f"Image in -> fused over ROS 2, {source.name}; ms p50 / p99; goal: overhead <= {GOAL_MS:g} ms"
    console.print(table)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "machine": platform.machine()}
    OUT.write_text(json.dumps({"machine": machine, "source": source.name, "goal_ms": GOAL_MS, "runs": rows}, indent=1))
    return 1 if any(row["unexplained"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
