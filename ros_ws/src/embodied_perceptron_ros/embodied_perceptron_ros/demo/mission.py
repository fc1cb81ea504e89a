"""Questions to a running node over ``/grounding_query``, as a robot's user would ask, and the verdict on its answers.

No ROS here: what to send, what came back, what is right. :mod:`replaying` sends and listens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from embodied_perceptron.geometry.boxes import box_iou
from embodied_perceptron.results import GroundingStatus
from embodied_perceptron_ros.node.monitor import MissionQuestion, TimedAnswer

RIGHT_IOU = 0.25  # an answer's box overlaps the true one by more, as for the benchmark's accuracy


def read_questions(rows: Sequence[Mapping[str, Any]]) -> tuple[MissionQuestion, ...]:
    """Questions as the simulation tells them (JSON)."""
    names = ("id", "text", "kind", "standing", "stamp_ns", "expected")
    return tuple(MissionQuestion(**{name: row[name] for name in names}, box=tuple(row["box"])) for row in rows)


def is_right(question: MissionQuestion, answers: Sequence[TimedAnswer]) -> bool | None:
    """Whether the last answer is the right one; None where nobody knows."""
    if not question.expected:
        return None
    if not answers or answers[-1].grounding.status.name != question.expected:
        return False
    if question.expected != GroundingStatus.FOUND.name:
        return True
    meant = torch.from_numpy(np.stack([answers[-1].grounding.candidates[0].box, np.array(question.box)]))
    return bool(box_iou(meant[:1], meant[1:])[0, 0] > RIGHT_IOU)


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
