"""What the demonstration says of itself: ``results.json``, the tables, and what keeps it from having succeeded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from embodied_perceptron.results import Perception
from embodied_perceptron_ros.mission import Question, verdict
from embodied_perceptron_ros.monitor import NodeStatus
from embodied_perceptron_ros.replaying import ReplayOutcome
from embodied_perceptron_ros.result_files import percentiles

MAX_MAP_ERROR_M = 0.02
_SCORES = ("AP25", "AP50", "AP25_furniture", "AR25", "mIoU", "mIoU_classes")


def summarise(
    source: Path,
    outcome: ReplayOutcome,
    perception: Perception,
    map_error_m: float | None,
    questions: Sequence[Question] = (),
    scores: Mapping[str, float] | None = None,
    weights: str = "",
) -> dict[str, Any]:
    """Contents of ``results.json``; figures in percent, None where there is no truth."""
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
        "map_error_m": None if map_error_m is None else round(map_error_m, 5),
        **{name: (scores or {}).get(name) for name in _SCORES},
        "queries": [verdict(question, outcome.answers.get(question.id, ())) for question in questions],
        "messages": {topic: outcome.published.get(topic, 0) for topic in ("voxels", "boxes", "occupancy_grid")},
        "wall_s": round(outcome.wall_s, 2),
    }


def find_problems(results: Mapping[str, Any]) -> tuple[str, ...]:
    """What keeps the demonstration from having succeeded. A wrong answer does not: it is told as what it is."""
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
    unanswered = [query["text"] for query in results.get("queries", ()) if query["status"] is None]
    if unanswered:
        problems.append(f"never answered: {'; '.join(unanswered)}")
    return tuple(problems)


def summary_table(results: Mapping[str, Any], out: Path) -> Table:
    """For the terminal."""
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
        ("AP25 of the objects", f"{percent('AP25')} (furniture {percent('AP25_furniture')})"),
        ("mIoU of the cells", percent("mIoU")),
        ("files in", str(out)),
        ("", "top_view.png camera_view.png room_3d.png demo.rrd results.json ..."),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def queries_table(queries: Sequence[Mapping[str, Any]]) -> Table:
    """Answers against the truth."""
    known = [query["correct"] for query in queries if query["correct"] is not None]
    title = "Questions over /grounding_query" + (f": {sum(known)} of {len(known)} right" if known else "")
    table = Table("question", "kind", "expected", "answer", "right", "ms", title=title, title_justify="left")
    for query in queries:
        answer = query["status"] or "none"
        if query["object_id"] is not None:
            answer += f" {query['label']} {query['object_id']}"
        elif query["reason"]:
            answer += f": {query['reason']}"
        right = {True: "[green]yes[/]", False: "[red]no[/]", None: "?"}[query["correct"]]
        ms = "" if query["ms"] is None else f"{query['ms']:.0f}"
        table.add_row(query["text"], query["kind"] or "asked", query["expected"] or "", answer, right, ms)
    return table


def status_table(status: NodeStatus) -> Table:
    """The node while it runs."""
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
