"""The demonstration: a mission through the node over real topics, then pictures and figures."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.geometry.transforms import invert_transform, project, transform_points
from embodied_perceptron.recordings.artifacts import write_png
from embodied_perceptron.recordings.files import write_json
from embodied_perceptron.results import GroundingStatus, Perception, SceneObject
from embodied_perceptron.sensors.frame import PosedFrame
from embodied_perceptron.visualization.drawing import draw_boxes_on_image
from embodied_perceptron.visualization.rerun import write_rrd
from embodied_perceptron.weights import available
from embodied_perceptron_ros.demo.simulated import (
    DEFAULT_SEED,
    SimulationError,
    first_drive,
    has_truth,
    mission_questions,
    mission_score,
    render,
    second_recording,
    simulated_recording,
)
from embodied_perceptron_ros.node.monitor import MissionQuestion, NodeStatus, TimedAnswer
from embodied_perceptron_ros.players.replaying import (
    ReplayOutcome,
    ReplayPlan,
    final_perception,
    percentiles,
    replay_over_ros,
    walk,
    write_result_files,
)

MAX_MAP_ERROR_M = 0.02
_SHOWN_IMAGES = 60  # camera images in the Rerun recording
_VIEW_WIDTH = 960  # approximate width of the camera image with boxes
_WEIGHTS = "tiny"  # default, if shipped
_LEAST_HZ, _SLOWEST = 2.0, 0.2  # perceptions per recorded second, and rate, of the second drive
RIGHT_IOU = 0.25  # least overlap of an answer with the true box, as in the benchmark
_SCORES = ("map_error_m", "AP25", "AP50", "AP25_furniture", "AR25", "mIoU", "mIoU_classes")


def is_right(question: MissionQuestion, answers: Sequence[TimedAnswer]) -> bool | None:
    """Whether the last answer is right; None if the truth is unknown."""
    if not question.expected:
        return None
    if not answers or answers[-1].grounding.status.name != question.expected:
        return False
    if question.expected != GroundingStatus.FOUND.name:
        return True
    boxes = [candidate.box for candidate in answers[-1].grounding.candidates]
    true = [np.array(box) for box in question.boxes or (question.box,)]
    if question.boxes and len(boxes) != len(true):
        return False
    iou = box_iou(torch.from_numpy(np.stack(boxes[: len(true)])), torch.from_numpy(np.stack(true)))
    return bool((iou.amax(dim=0) > RIGHT_IOU).all())


def verdict(question: MissionQuestion, answers: Sequence[TimedAnswer]) -> dict[str, Any]:
    """One row of ``queries`` in ``results.json``."""
    last = answers[-1].grounding if answers else None
    found = last is not None and bool(last.candidates) and last.status == GroundingStatus.FOUND
    return {
        "kind": question.kind,
        "text": question.text,
        "expected": question.expected or None,
        "status": None if last is None else last.status.name,
        "object_id": last.candidates[0].id if last is not None and found else None,
        "label": last.candidates[0].label if last is not None and found else None,
        "reason": "" if last is None else last.reason,
        "correct": is_right(question, answers),
        "answers": len(answers),
        "ms": round(answers[0].ms, 2) if answers else None,
    }


def summarise(
    source: Path,
    outcome: ReplayOutcome,
    perception: Perception,
    questions: Sequence[MissionQuestion] = (),
    scores: Mapping[str, float] | None = None,
    weights: str = "",
) -> dict[str, Any]:
    """Contents of ``results.json``; ``scores`` of :func:`mission_score`, None without ground truth."""
    played_s = float(outcome.report.get("wall_s", 0.0))
    return {
        "source": str(source),
        "weights": weights,
        "frames_sent": outcome.sent,
        "frames_fused": outcome.status.fused,
        "frames_dropped": dict(sorted(outcome.status.dropped.items())),
        "frames_unexplained": outcome.unexplained,
        "latency_ms": {stage: percentiles(outcome, stage) for stage in ("fused", "boxes", "perception", "query")},
        "fusion_hz": round(outcome.status.fused / played_s, 2) if played_s > 0 else None,
        "perception_hz": None if outcome.perception_hz is None else round(outcome.perception_hz, 2),
        "voxels": len(perception.voxels),
        "objects": len(perception.objects),
        **{name: (scores or {}).get(name) for name in _SCORES},
        "queries": [verdict(question, outcome.answers.get(question.id, ())) for question in questions],
        "messages": {topic: outcome.published.get(topic, 0) for topic in ("voxels", "boxes", "occupancy_grid")},
        "wall_s": round(outcome.wall_s, 2),
    }


def find_problems(results: Mapping[str, Any]) -> tuple[str, ...]:
    """Reasons why the demonstration failed. A wrong answer is reported, but is no reason: a
    computer that is busy may perceive too rarely."""
    problems = []
    if results["frames_sent"] == 0:
        problems.append("no frame was sent")
    if results["frames_unexplained"]:
        problems.append(f"{results['frames_unexplained']} frames were lost without a reason")
    if results["frames_fused"] > results["frames_sent"]:
        problems.append("more frames were fused than sent: the counts are wrong")
    if results["frames_fused"] == 0:
        problems.append("no frame was fused")
    silent = [topic for topic, count in results["messages"].items() if count == 0]
    if silent:
        problems.append(f"nothing was published on {', '.join(silent)}")
    error_m = results["map_error_m"]
    if error_m is not None and not error_m <= MAX_MAP_ERROR_M:
        problems.append(f"the map is {error_m * 1e3:.1f} mm off, {MAX_MAP_ERROR_M * 1e3:.0f} mm are allowed")
    queries = [*results.get("queries", ()), *results.get("second_drive", {}).get("queries", ())]
    unanswered = [query["text"] for query in queries if query["status"] is None]
    if unanswered:
        problems.append(f"never answered: {'; '.join(unanswered)}")
    if results.get("second_drive", {}).get("frames_fused", 1) == 0:
        problems.append("no frame of the second drive was fused")
    return tuple(problems)


def summary_table(results: Mapping[str, Any], out: Path) -> Table:
    """The results for the terminal."""
    table = Table(title="Live perception over ROS 2 topics", show_header=False, title_justify="left")
    dropped = results["frames_dropped"]
    error_m = results["map_error_m"]

    def spread(stage: str) -> str:
        p50, p99 = (results["latency_ms"][stage][key] for key in ("p50", "p99"))
        return "none" if p50 is None else f"{p50:.1f} ms median, {p99:.1f} ms p99"

    def percent(name: str) -> str:
        return "no truth" if results[name] is None else f"{results[name]:.1f}"

    def rate(name: str) -> str:
        return "none" if results[name] is None else f"{results[name]:.1f}"

    ap25 = percent("AP25")
    if results["AP25_furniture"] is not None:
        ap25 += f" (furniture {percent('AP25_furniture')})"
    rows = (
        ("recording", Path(results["source"]).name),
        ("network", results["weights"] or "none: boxes without classes"),
        ("frames", f"{results['frames_sent']} sent, {results['frames_fused']} fused"),
        ("dropped", ", ".join(f"{n} {reason}" for reason, n in dropped.items()) or "none"),
        ("lost without a reason", str(results["frames_unexplained"])),
        ("a second", f"{rate('fusion_hz')} frames fused, {rate('perception_hz')} perceptions"),
        ("image in -> fused", spread("fused")),
        ("image in -> boxes out", spread("boxes")),
        ("query -> answer", spread("query")),
        ("map", f"{results['voxels']:,} voxels, {results['objects']} objects"),
        ("distance to true surface", "no truth" if error_m is None else f"{error_m * 1e3:.1f} mm mean"),
        ("AP25 of the objects", ap25),
        ("mIoU of the cells", percent("mIoU")),
        ("files in", escape(str(out))),
        ("", "top_view.png camera_view.png demo.rrd results.json ..."),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def queries_table(queries: Sequence[Mapping[str, Any]], when: str = "") -> Table:
    """Answers and their expected status. ``when``: words for the title."""
    known = [query["correct"] for query in queries if query["correct"] is not None]
    title = f"Questions over /grounding_query{when}" + (f": {sum(known)} of {len(known)} right" if known else "")
    table = Table("question", "kind", "expected", "answer", "right", "ms", title=title, title_justify="left")
    for query in queries:
        answer = query["status"] or "none"
        if query["object_id"] is not None:
            answer += f" {query['label']} {query['object_id']}"
        elif query["reason"]:
            answer += f": {query['reason']}"
        right = {True: "[green]yes[/]", False: "[red]no[/]", None: "?"}[query["correct"]]
        ms = "" if query["ms"] is None else f"{query['ms']:.0f}"
        texts = (query["text"], query["kind"] or "asked", query["expected"] or "", answer)
        table.add_row(*(escape(text) for text in texts), right, ms)
    return table


def status_table(status: NodeStatus) -> Table:
    """Status of the running node."""
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
    return table


@dataclass(frozen=True)
class DemoResult:
    """Result of the demonstration.

    Attributes:
        results: contents of ``results.json``.
        problems: from :func:`find_problems`.
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
    version: int = 1,
    weights: str | None = None,
    sentences: Sequence[str] = (),
) -> DemoResult:
    """Play ``source`` (default: a simulated drive, rendered first), ask, and write pictures and figures into ``out``.

    Args:
        out: output folder.
        source: recording; a simulated one has its own questions and is scored.
        rate: recorded seconds per second.
        seed: of the simulated drive.
        console: for the tables.
        version: of the generator of homes; the shipped weights were trained for 1.
        weights: a shipped name, a file, "" = no network; None = the shipped weights if there are any.
        sentences: additional questions at the end.

    Raises ``RecordingError``, ``OSError``, ``SimulationError`` or ``ReplayFailedError``.
    """
    console = console or Console()
    with_second = source is None
    if source is None:
        source = simulated_recording(seed, version)
        _rendered(source, first_drive(seed, version), console)
    if weights is None:
        weights = _WEIGHTS if _WEIGHTS in available() else ""
    weights = "" if weights.lower() == "none" else weights
    if not weights:
        console.print("no trained weights: boxes have no class, and sentences are not understood")
    questions = _questions(source, sentences, console)
    plan = ReplayPlan(source, out, rate, parameters={"weights": weights}, questions=questions)
    display = ProgressDisplay(console)
    with display.live:
        outcome = replay_over_ros(plan, display.update)
    console.print("drawing pictures and measuring the map ...")
    perception = _write_files(out, source, outcome)
    files = (out / "objects.json", out / "occupancy.npz", outcome.map_file)
    scores = mission_score(source, *files) if has_truth(source) else {}
    results = summarise(source, outcome, perception, questions, scores, weights)
    console.print(summary_table(results, out))
    if results["queries"]:
        console.print(queries_table(results["queries"]))
    if with_second and weights:
        slow = replace(plan, rate=second_rate(rate, outcome.perception_hz))
        results["second_drive"] = _second_drive(source, outcome.map_file, slow, console)
    write_json(out / "results.json", results)
    return DemoResult(results, find_problems(results))


def _rendered(recording: Path, options: Sequence[str], console: Console) -> None:
    started = time.monotonic()
    if render(recording, options):
        took_s = time.monotonic() - started
        console.print(f"rendered in {took_s:.0f} s, kept in {recording}", soft_wrap=True, markup=False)


def second_rate(rate: float, perception_hz: float | None) -> float:
    """Recorded seconds per second at which a busy computer still perceives the short second drive twice a recorded
    second, by the rate of perceptions in the first."""
    return min(rate, max((perception_hz or 0.0) / _LEAST_HZ, _SLOWEST))


def _second_drive(first: Path, map_file: Path, plan: ReplayPlan, console: Console) -> dict[str, Any]:
    """Drive once more through the home of a first drive, in its map, after objects were carried, and ask what moved."""
    source = second_recording(first)
    try:
        _rendered(source, ("--after", str(first)), console)
    except SimulationError as error:  # the home of another seed may have nothing to carry
        console.print(f"no second drive: {escape(str(error))}")
        return {"queries": []}
    questions = mission_questions(source)
    parameters = {**plan.parameters, "map_file": str(map_file)}
    second = replace(plan, source=source, out=plan.out / "second", parameters=parameters, questions=questions)
    console.print("some objects were carried elsewhere; an hour later the robot looks again, in its map")
    display = ProgressDisplay(console)
    with display.live:
        outcome = replay_over_ros(second, display.update)
    queries = [verdict(question, outcome.answers.get(question.id, ())) for question in questions]
    console.print(queries_table(queries, " after the second drive"))
    return {"frames_fused": outcome.status.fused, "wall_s": round(outcome.wall_s, 2), "queries": queries}


def _questions(source: Path, sentences: Sequence[str], console: Console) -> tuple[MissionQuestion, ...]:
    asked = tuple(MissionQuestion(f"asked-{n}", text) for n, text in enumerate(sentences, 1))
    if not has_truth(source):
        return asked
    try:
        return (*mission_questions(source), *asked)
    except SimulationError as error:  # the home of another seed may not fit the questions
        console.print(f"no questions: {escape(str(error))}")
        return asked


def _write_files(out: Path, source: Path, outcome: ReplayOutcome) -> Perception:
    """Write pictures and recordings; return the map with the last published objects."""
    positions, shown = walk(source, _SHOWN_IMAGES)
    perception = final_perception(outcome)
    objects = perception.objects
    write_result_files(out, outcome, perception, positions)
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
    """(stamp of the map, answer), oldest first."""
    stamped = [(answer.stamp_ns, answer.grounding) for answers in outcome.answers.values() for answer in answers]
    return sorted(stamped, key=lambda pair: pair[0])


def richest_view(frames: Sequence[PosedFrame], objects: Sequence[SceneObject]) -> PosedFrame | None:
    """The frame that shows the centres of most objects; None without frames."""
    centers = np.array([item.box[:3] for item in objects]).reshape(-1, 3)

    def in_view(posed: PosedFrame) -> int:
        camera = transform_points(invert_transform(posed.T_world_camera), centers)
        return int(np.count_nonzero(project(camera, posed.frame.intrinsics)[1] & (camera[:, 2] < 5.0)))

    return max(frames, key=in_view, default=None)


def camera_view(posed: PosedFrame, objects: Sequence[SceneObject]) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB: a frame with its boxes, scaled so that their names are legible."""
    intrinsics = posed.frame.intrinsics
    scale = max(1, round(_VIEW_WIDTH / intrinsics.width))
    large = intrinsics.resized(intrinsics.width * scale, intrinsics.height * scale)
    image = cv2.resize(posed.frame.color, (large.width, large.height), interpolation=cv2.INTER_CUBIC)
    return draw_boxes_on_image(image.astype(np.uint8), objects, posed.T_world_camera, large)


class ProgressDisplay:
    """Live table of stage, frames, drops and latency."""

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
        """Progress callback of :func:`replay_over_ros`."""
        self._bar.update(self._task, description=stage, completed=status.settled, total=total)
        self.live.update(Group(self._bar, status_table(status)))


def open_viewer(out: Path) -> bool:
    """Open the Rerun recording if there is a display; return whether it was opened."""
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    command = [sys.executable, "-m", "rerun", str(out / "demo.rrd")]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    return True
