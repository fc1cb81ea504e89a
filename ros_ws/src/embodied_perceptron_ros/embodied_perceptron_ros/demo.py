"""The demonstration: a whole mission through the real node over real topics; pictures and figures afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from embodied_perceptron.frame import PosedFrame
from embodied_perceptron.geometry import invert_transform, project, transform_points
from embodied_perceptron.io.artifacts import write_json, write_png
from embodied_perceptron.results import Perception, SceneObject
from embodied_perceptron.viewer import draw_boxes_on_image, render_3d
from embodied_perceptron.viewing.rerun_recording import write_rrd
from embodied_perceptron.weights import available
from embodied_perceptron_ros.demo_report import find_problems, queries_table, status_table, summarise, summary_table
from embodied_perceptron_ros.mission import Question
from embodied_perceptron_ros.monitor import NodeStatus
from embodied_perceptron_ros.replaying import ReplayOutcome, ReplayPlan, replay_over_ros
from embodied_perceptron_ros.result_files import final_perception, walk, write_result_files
from embodied_perceptron_ros.simulated import (
    DEFAULT_SEED,
    SimulationError,
    has_truth,
    measure_map_error_m,
    mission_questions,
    mission_score,
    render,
    simulated_recording,
)

_SHOWN_IMAGES = 60  # camera images in the Rerun recording
_VIEW_WIDTH = 960  # of the camera image with named boxes, about
_WEIGHTS = "tiny"  # where they are shipped


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
    out: Path,
    source: Path | None = None,
    rate: float = 1.0,
    seed: int = DEFAULT_SEED,
    console: Console | None = None,
    *,
    weights: str | None = None,
    sentences: Sequence[str] = (),
) -> DemoResult:
    """Play ``source`` (default: a simulated drive, rendered first), ask, and write pictures and figures into ``out``.

    Args:
        out: folder for everything that is written.
        source: recording; a simulated one has its own questions and is scored.
        rate: recorded seconds per second.
        seed: of the simulated drive.
        console: where tables go.
        weights: of the network: a shipped name, a file, "" = none; None = the shipped ones where there are any.
        sentences: to ask at the end, beside the recording's own questions.

    Raises ``RecordingError``, ``OSError``, ``SimulationError`` or ``ReplayFailedError`` when it cannot be done.
    """
    console = console or Console()
    if source is None:
        source = simulated_recording(seed)
        started = time.monotonic()
        if render(source, seed):
            console.print(f"rendered in {time.monotonic() - started:.0f} s, kept in {source}", soft_wrap=True)
    weights = (_WEIGHTS if _WEIGHTS in available() else "") if weights is None else weights
    if not weights:
        console.print("no trained weights: boxes have no class, and sentences cannot be understood")
    questions = _questions(source, sentences, console)
    parameters = {"weights": weights} if weights else {}
    plan = ReplayPlan(source, out, rate, parameters=parameters, questions=questions)
    display = ProgressDisplay(console)
    with display.live:
        outcome = replay_over_ros(plan, display.update)
    console.print("drawing pictures and measuring the map ...")
    perception = _write_files(out, source, outcome)
    map_error_m = measure_map_error_m(source, outcome.map_file)
    scores: dict[str, float] = {}
    if has_truth(source):
        scores = mission_score(source, out / "objects.json", out / "occupancy.npz")
    results = summarise(source, outcome, perception, map_error_m, questions, scores, weights)
    write_json(out / "results.json", results)
    console.print(summary_table(results, out))
    if results["queries"]:
        console.print(queries_table(results["queries"]))
    return DemoResult(results, find_problems(results))


def _questions(source: Path, sentences: Sequence[str], console: Console) -> tuple[Question, ...]:
    asked = tuple(Question(f"asked-{n}", text) for n, text in enumerate(sentences, 1))
    if not has_truth(source):
        return asked
    try:
        return (*mission_questions(source), *asked)
    except SimulationError as error:  # another seed's home may have nothing to ask for
        console.print(f"no questions: {error}")
        return asked


def _write_files(out: Path, source: Path, outcome: ReplayOutcome) -> Perception:
    """Everything but the figures; returns the map with the objects that were published last."""
    positions, shown = walk(source, _SHOWN_IMAGES)
    perception = final_perception(outcome)
    objects = perception.objects
    write_result_files(out, outcome, perception, positions)
    write_png(out / "room_3d.png", render_3d(perception, trajectory_m=positions))
    best = richest_view(shown, objects)
    if best is not None:
        write_png(out / "camera_view.png", camera_view(best, objects))
    write_rrd(
        out / "demo.rrd",
        perception,
        positions,
        shown,
        sightings=[(sighting.stamp_ns, sighting.objects) for sighting in outcome.sightings],
        answers=_timed_answers(outcome),
    )
    return perception


def _timed_answers(outcome: ReplayOutcome) -> list[tuple[int, Any]]:
    """Stamp of the map that was asked, and the answer; oldest first."""
    stamped = [(answer.stamp_ns, answer.grounding) for answers in outcome.answers.values() for answer in answers]
    return sorted(stamped, key=lambda pair: pair[0])


def richest_view(frames: Sequence[PosedFrame], objects: Sequence[SceneObject]) -> PosedFrame | None:
    """The frame that has the centres of most objects in view; None without frames."""
    centers = np.array([thing.box[:3] for thing in objects]).reshape(-1, 3)

    def in_view(posed: PosedFrame) -> int:
        camera = transform_points(invert_transform(posed.T_world_camera), centers)
        return int(np.count_nonzero(project(camera, posed.frame.intrinsics)[1] & (camera[:, 2] < 5.0)))

    return max(frames, key=in_view, default=None)


def camera_view(posed: PosedFrame, objects: Sequence[SceneObject]) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB: a frame with the boxes that are in view, large enough for their names."""
    intrinsics = posed.frame.intrinsics
    scale = max(1, round(_VIEW_WIDTH / intrinsics.width))
    large = intrinsics.resized(intrinsics.width * scale, intrinsics.height * scale)
    image = cv2.resize(posed.frame.color, (large.width, large.height), interpolation=cv2.INTER_CUBIC)
    return draw_boxes_on_image(image.astype(np.uint8), objects, posed.T_world_camera, large)


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
        self.live = Live(Group(self._bar, status_table(NodeStatus())), console=console, refresh_per_second=5)

    def update(self, stage: str, status: NodeStatus, total: int) -> None:
        """Show what :func:`replay_over_ros` reports."""
        self._bar.update(self._task, description=stage, completed=status.settled, total=total)
        self.live.update(Group(self._bar, status_table(status)))


def open_viewer(out: Path) -> bool:
    """Open the Rerun recording where there is a display; returns whether it was."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    command = [sys.executable, "-m", "rerun", str(out / "demo.rrd")]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    return True
