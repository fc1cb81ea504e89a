"""vision_msgs/Detection2DArray -> boxes in pixels, scores and names. Pure functions, no node."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from vision_msgs.msg import Detection2D, Detection2DArray


@dataclass(frozen=True, eq=False)
class RawDetections2d:
    """What a message says, unchecked.

    Attributes:
        boxes_px: (N, 4) left, top, right, bottom; integer coordinates are pixel centres.
        scores: (N,) of the best hypothesis.
        labels: its name; "" where there is none.
    """

    boxes_px: NDArray[np.float64]
    scores: NDArray[np.float64]
    labels: tuple[str, ...]


def detections_from_message(message: Detection2DArray, class_names: Sequence[str] = ()) -> RawDetections2d:
    """Boxes of a message. A turned box becomes the upright one around it.

    Args:
        message: its boxes count from the picture's corner, as detectors do: a picture of width W covers [0, W).
        class_names: ``class_id`` may be a number of this list instead of a name; numbers beyond it have no name.
    """
    best = [max(d.results, key=_score, default=None) for d in message.detections]
    labels = tuple("" if r is None else _name(r.hypothesis.class_id, class_names) for r in best)
    scores = np.array([0.0 if r is None else r.hypothesis.score for r in best], dtype=np.float64)
    sides = [_sides(d) for d in message.detections]
    center, half, theta = (
        (np.array(column, dtype=np.float64) for column in zip(*sides, strict=True))
        if sides
        else (
            np.zeros((0, 2)),
            np.zeros((0, 2)),
            np.zeros(0),
        )
    )
    with np.errstate(invalid="ignore", over="ignore"):
        c, s = np.abs(np.cos(theta))[:, None], np.abs(np.sin(theta))[:, None]
        half = np.where(theta[:, None] == 0, half, c * half + s * half[:, ::-1])
        boxes_px = np.concatenate([center - half, center + half], axis=1) - 0.5
    return RawDetections2d(boxes_px, scores, labels)


def _score(result: object) -> float:
    score = float(result.hypothesis.score)  # type: ignore[attr-defined]
    return score if score == score else float("inf")  # what is no number shall be seen, and counted


def _sides(detection: Detection2D) -> tuple[tuple[float, float], tuple[float, float], float]:
    box = detection.bbox
    center = box.center.position
    return (center.x, center.y), (0.5 * box.size_x, 0.5 * box.size_y), box.center.theta


def _name(class_id: str, class_names: Sequence[str]) -> str:
    text = class_id.strip()
    if not (text.isascii() and text.isdigit()):
        return text
    number = int(text) if len(text) < 6 else len(class_names)
    return class_names[number] if number < len(class_names) else ""


def count_serialized(data: bytes) -> int:
    """How many detections a serialized Detection2DArray has, without reading them.

    Raises ``ValueError`` for bytes that are too short. Making Python objects of 10,000 takes a second.
    """
    if len(data) < 16:
        raise ValueError(f"a Detection2DArray has more than {len(data)} bytes")
    order = "<" if data[1] & 1 else ">"
    (length,) = struct.unpack_from(order + "I", data, 12)  # of header.frame_id, behind encapsulation and stamp
    at = 16 + (length + 3) // 4 * 4
    if at + 4 > len(data):
        raise ValueError(f"header.frame_id of a Detection2DArray has {length} of {len(data)} bytes")
    return int(struct.unpack_from(order + "I", data, at)[0])
