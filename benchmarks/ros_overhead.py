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

import sys
import tempfile
from pathlib import Path
from typing import Any

import _report as report
import numpy as np
from _inputs import simulated_drive

from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import ColorSample
from embodied_perceptron_ros.demo.simulated import DEFAULT_SEED
from embodied_perceptron_ros.players.replaying import ReplayOutcome, ReplayPlan, replay_over_ros

GOAL_MS = 8.0


def frame_rate_hz(source: Path) -> float:
    """Frames per recorded second."""
    stamps = [sample.stamp_ns for sample in open_recording(source) if isinstance(sample, ColorSample)]
    return 1e9 / float(np.median(np.diff(stamps)))


def measure(source: Path, rate: float, quiet: bool, max_frames: int) -> ReplayOutcome:
    """One run; ``quiet``: next to no perception beside fusing."""
    parameters = {"perception_hz": 0.05, "voxels_hz": 0.05} if quiet else {}
    with tempfile.TemporaryDirectory() as folder:
        return replay_over_ros(ReplayPlan(source, Path(folder), rate, parameters=parameters, max_frames=max_frames))


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
    parser = report.parser(__doc__)
    parser.add_argument("--source", type=Path, help="a folder or bag")
    parser.add_argument("--rates", type=float, nargs="+", default=[3.0, 10.0, 30.0], help="frames a second")
    parser.add_argument("--frames", type=int, default=0, help="of a run; 0 = all")
    options = report.parse(parser, rates=[10.0], frames=20)
    source = options.source or (None if options.quick else report.data_folder("kitchen"))
    source = source or simulated_drive(DEFAULT_SEED, short=options.quick)
    recorded_hz = frame_rate_hz(source)
    rows = []
    for quiet in (True, False):
        for rate_hz in options.rates:
            outcome = measure(source, rate_hz / recorded_hz, quiet, options.frames)
            rows.append(row_of(outcome, rate_hz, quiet))
    worst = max(row["overhead_p50_ms"] for row in rows)
    report.show(f"image in -> fused over ROS 2, {source.name}, ms", rows)
    report.show("goals", [report.goal("overhead_p50_ms, the worst run", worst, most=GOAL_MS)])
    report.write(options, {"source": source.name, "overhead_p50_ms": worst, "runs": rows})
    return 1 if any(row["unexplained"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
