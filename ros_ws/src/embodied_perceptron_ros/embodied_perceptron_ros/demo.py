"""The demonstration: a recording through the real node over real topics, pictures and figures afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from embodied_perceptron.io.artifacts import write_json, write_png
from embodied_perceptron.results import Perception
from embodied_perceptron.viewer import render_3d
from embodied_perceptron.viewing.rerun_recording import write_rrd
from embodied_perceptron_ros.monitor import NodeStatus
from embodied_perceptron_ros.replaying import ReplayOutcome, ReplayPlan, replay_over_ros
from embodied_perceptron_ros.result_files import load_perception, percentiles, walk, write_result_files
from embodied_perceptron_ros.simulated import DEFAULT_SEED, measure_map_error_m, render, simulated_recording

MAX_MAP_ERROR_M = 0.02
_SHOWN_IMAGES = 60  # camera images in the Rerun recording


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration gave.

    Attributes:
        results: contents of ``results.json``.
        problems: why the exit code is not 0; empty when all is well.
    """

    results: dict[str, Any]
    problems: tuple[str, ...]


def run_demo(
    out: Path, source: Path | None = None, rate: float = 1.0, seed: int = DEFAULT_SEED, console: Console | None = None
) -> DemoResult:
    """Play ``source`` (default: a simulated drive, rendered first) and write pictures and figures into ``out``.

    Raises ``RecordingError``, ``OSError``, ``SimulationError`` or ``ReplayFailedError`` when it cannot be done.
    """
    console = console or Console()
    if source is None:
        source = simulated_recording(seed)
        started = time.monotonic()
        if render(source, seed):
            console.print(f"rendered in {time.monotonic() - started:.0f} s, kept in {source}", soft_wrap=True)
    plan = ReplayPlan(source, out, rate)
    display = ProgressDisplay(console)
    with display.live:
        outcome = replay_over_ros(plan, display.update)
    console.print("drawing pictures and measuring the map ...")
    map_error_m = measure_map_error_m(source, outcome.map_file)
    perception = load_perception(outcome.map_file)
    _write_files(out, source, outcome, perception)
    results = summarise(source, outcome, perception, map_error_m)
    write_json(out / "results.json", results)
    problems = find_problems(results)
    console.print(summary_table(results, out))
    return DemoResult(results, problems)


def _write_files(out: Path, source: Path, outcome: ReplayOutcome, perception: Perception) -> None:
    positions, shown = walk(source, _SHOWN_IMAGES)
    write_result_files(out, outcome, perception, positions)
    write_png(out / "room_3d.png", render_3d(perception, trajectory_m=positions))
    write_rrd(out / "demo.rrd", perception, positions, shown)


def summarise(
    source: Path, outcome: ReplayOutcome, perception: Perception, map_error_m: float | None
) -> dict[str, Any]:
    """Contents of ``results.json``."""
    return {
        "source": str(source),
        "frames_sent": outcome.sent,
        "frames_fused": outcome.status.fused,
        "frames_dropped": dict(sorted(outcome.status.dropped.items())),
        "frames_unexplained": outcome.unexplained,
        "latency_ms": {stage: percentiles(outcome, stage) for stage in ("fused", "boxes")},
        "voxels": len(perception.voxels),
        "objects": len(perception.objects),
        "map_error_m": None if map_error_m is None else round(map_error_m, 5),
        "messages": {topic: outcome.published.get(topic, 0) for topic in ("voxels", "boxes", "occupancy_grid")},
        "wall_s": round(outcome.wall_s, 2),
    }


def find_problems(results: dict[str, Any]) -> tuple[str, ...]:
    """What keeps the demonstration from having succeeded."""
    problems = []
    if results["frames_sent"] == 0:
        problems.append("no frame was sent")
    if results["frames_unexplained"]:
        problems.append(f"{results['frames_unexplained']} frames were lost without a reason")
    if results["frames_fused"] > results["frames_sent"]:
        problems.append("more frames were fused than sent: the counting is wrong")
    if results["frames_fused"] == 0:
        problems.append("no frame was fused")
    silent = [topic for topic, count in results["messages"].items() if count == 0]
    if silent:
        problems.append(f"nothing was published on {', '.join(silent)}")
    error_m = results["map_error_m"]
    if error_m is not None and not error_m <= MAX_MAP_ERROR_M:
        problems.append(f"the map is {error_m * 1e3:.1f} mm off, {MAX_MAP_ERROR_M * 1e3:.0f} mm are allowed")
    return tuple(problems)


def summary_table(results: dict[str, Any], out: Path) -> Table:
    """For the terminal."""
    table = Table(title="Live map over ROS 2 topics", show_header=False, title_justify="left")
    dropped = results["frames_dropped"]
    error_m = results["map_error_m"]

    def spread(stage: str) -> str:
        p50, p99 = (results["latency_ms"][stage][key] for key in ("p50", "p99"))
        return "none" if p50 is None else f"{p50:.1f} ms median, {p99:.1f} ms p99"

    rows = (
        ("recording", Path(results["source"]).name),
        ("frames", f"{results['frames_sent']} sent, {results['frames_fused']} fused"),
        ("dropped", ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "none"),
        ("lost without a reason", str(results["frames_unexplained"])),
        ("image in -> fused", spread("fused")),
        ("image in -> boxes out", spread("boxes")),
        ("map", f"{results['voxels']:,} voxels, {results['objects']} objects"),
        ("distance to true surface", "no truth" if error_m is None else f"{error_m * 1e3:.1f} mm mean"),
        ("files in", str(out)),
        ("", "top_view.png room_3d.png demo.rrd results.json ..."),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


class ProgressDisplay:
    """Live table: stage, frames, drops, latency."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=None)
        self.live = Live(self._render(NodeStatus()), console=console, refresh_per_second=5)

    def update(self, stage: str, status: NodeStatus, total: int) -> None:
        """Show what :func:`replay_over_ros` reports."""
        self._bar.update(self._task, description=stage, completed=status.settled, total=total)
        self.live.update(self._render(status))

    def _render(self, status: NodeStatus) -> Group:
        table = Table("node", "fused", "dropped", "waiting", "image in -> fused", "voxels")
        fused_ms = status.latency_ms.get("fused", {}).get("p50")
        table.add_row(
            status.state,
            str(status.fused),
            str(sum(status.dropped.values())),
            str(status.pending),
            "" if fused_ms is None else f"{fused_ms:.1f} ms",
            status.areas.get("map", {}).get("voxels", ""),
        )
        return Group(self._bar, table)


def open_viewer(out: Path) -> bool:
    """Open the Rerun recording where there is a display; returns whether it was."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    command = [sys.executable, "-m", "rerun", str(out / "demo.rrd")]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    return True
