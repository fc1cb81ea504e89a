"""Ask a running node through its service ``~/ask``, as ``embodied-perceptron ask`` does."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import Ask
from vision_msgs.msg import Detection3D

from embodied_perceptron_ros.node.guest import Guest

STATUS_NAMES = {
    GroundingResult.FOUND: "FOUND",
    GroundingResult.NOT_FOUND: "NOT_FOUND",
    GroundingResult.AMBIGUOUS: "AMBIGUOUS",
    GroundingResult.INVALID: "INVALID",
}
EXIT_CODES = {status: int(status != GroundingResult.FOUND) for status in STATUS_NAMES}


def service_name(namespace: str) -> str:
    """Absolute name of the service in ``namespace``."""
    return f"/{namespace.strip('/')}/perception/ask".replace("//", "/")


def ask_node(
    sentence: str, namespace: str = "", frame_id: str = "", top_k: int = 0, timeout_s: float = 10.0
) -> GroundingResult:
    """The answer of the node in ``namespace``. Raises :class:`NoAnswerError`, :class:`.RosStartError`."""
    request = Ask.Request(text=sentence, top_k=top_k, frame_id=frame_id)
    with Guest("ask") as guest:
        result: GroundingResult = guest.call(Ask, service_name(namespace), request, timeout_s).result
        return result


def answer_lines(answer: GroundingResult) -> list[str]:
    """Lines for a terminal: status and reason, candidates or nearest objects, then where to go."""
    lines = [f"{STATUS_NAMES[answer.status]}: {_plain(answer.reason)}".rstrip(": ")]
    for rank, candidate in enumerate(answer.candidates):
        name = f" {_plain(answer.user_name)!r}" if rank == 0 and answer.user_name else ""
        lines.append("  " + _candidate_line(candidate, name))
    lines += [f"  nearest to it: {_candidate_line(item, '')}" for item in answer.nearest]
    if answer.candidates and math.isfinite(answer.distance):
        lines.append(f"  {answer.distance:.2f} m away")
    if answer.reachable:
        at, q = answer.approach.pose.position, answer.approach.pose.orientation
        yaw = math.atan2(2.0 * (q.w * q.z + q.x * q.y), 1.0 - 2.0 * (q.y * q.y + q.z * q.z))
        frame = answer.approach.header.frame_id
        lines.append(f"  go to x {at.x:.2f} y {at.y:.2f} yaw {math.degrees(yaw):.0f} deg in {frame}")
    elif answer.status == GroundingResult.FOUND:
        lines.append("  no free floor in front of it is known")
    return lines


def _candidate_line(candidate: Detection3D, name: str) -> str:
    hypothesis = candidate.results[0].hypothesis
    at, size = candidate.bbox.center.position, candidate.bbox.size
    return (
        f"{_plain(hypothesis.class_id)} {candidate.id}{name} ({hypothesis.score:.2f}) at "
        f"{at.x:.2f} {at.y:.2f} {at.z:.2f} m, {size.x:.2f} x {size.y:.2f} x {size.z:.2f} m, {candidate.header.frame_id}"
    )


def _plain(text: str) -> str:
    """Replace control characters, which a terminal would execute, by spaces."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in text)


def answer_as_dict(answer: GroundingResult) -> dict[str, Any]:
    """The answer as JSON values; unknown values are null."""
    approach = None
    if answer.reachable:
        pose = answer.approach.pose
        approach = {"position": _vector(pose.position), "orientation": _quaternion(pose.orientation)}
    return {
        "text": answer.text,
        "status": STATUS_NAMES[answer.status],
        "reason": answer.reason,
        "frame_id": answer.header.frame_id,
        "tagged_text": answer.tagged_text,
        "user_name": answer.user_name,
        "count": None if answer.count < 0 else answer.count,
        "distance": answer.distance if math.isfinite(answer.distance) else None,
        "approach": approach,
        "candidates": [_as_dict(c) for c in answer.candidates],
        "nearest": [_as_dict(c) for c in answer.nearest],
        "latency_ms": answer.latency_ms,
    }


def _as_dict(item: Detection3D) -> dict[str, Any]:
    return {
        "id": item.id,
        "label": item.results[0].hypothesis.class_id,
        "score": item.results[0].hypothesis.score,
        "position": _vector(item.bbox.center.position),
        "orientation": _quaternion(item.bbox.center.orientation),
        "size": _vector(item.bbox.size),
    }


def _vector(v: Any) -> list[float]:
    return [v.x, v.y, v.z]


def _quaternion(q: Any) -> list[float]:
    return [q.x, q.y, q.z, q.w]
