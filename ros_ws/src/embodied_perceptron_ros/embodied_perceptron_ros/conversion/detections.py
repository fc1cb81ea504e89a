"""vision_msgs/Detection2DArray -> boxes in pixels, scores and names. Pure functions, no node."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from vision_msgs.msg import Detection2D, Detection2DArray

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.results import UNNAMED


@dataclass(frozen=True, eq=False)
class RawDetections2d:
    """Unchecked content of a message.

    Attributes:
        boxes_px: (N, 4) left, top, right, bottom; integer coordinates are pixel centres.
        scores: (N,) of the best hypothesis.
        labels: its name, or "".
    """

    boxes_px: F64
    scores: F64
    labels: tuple[str, ...]


def detections_from_message(message: Detection2DArray, class_names: Sequence[str] = ()) -> RawDetections2d:
    """Boxes of a message. A rotated box becomes its upright bounding box.

    Args:
        message: box coordinates start at the image's corner, as detectors have them: width W covers [0, W).
        class_names: names of numeric ``class_id``; larger numbers have no name. Without any, every number is an object
            without a name, because class numbers have no usual order.
    """
    best = [max(d.results, key=_score, default=None) for d in message.detections]
    labels = tuple("" if r is None else _name(r.hypothesis.class_id, class_names) for r in best)
    scores = np.array([0.0 if r is None else r.hypothesis.score for r in best], dtype=np.float64)
    sides = [_sides(d) for d in message.detections]
    center = np.array([center for center, _, _ in sides], np.float64).reshape(-1, 2)
    half = np.array([half for _, half, _ in sides], np.float64).reshape(-1, 2)
    theta = np.array([theta for _, _, theta in sides], np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        c, s = np.abs(np.cos(theta))[:, None], np.abs(np.sin(theta))[:, None]
        half = np.where(theta[:, None] == 0, half, c * half + s * half[:, ::-1])
        boxes_px = np.concatenate([center - half, center + half], axis=1) - 0.5
    return RawDetections2d(boxes_px, scores, labels)


def has_class_numbers(message: Detection2DArray) -> bool:
    """Return True when a class of the message is a number instead of a name."""
    ids = (r.hypothesis.class_id.strip() for d in message.detections for r in d.results)
    return any(text.isascii() and text.isdigit() for text in ids)


def _score(result: object) -> float:
    score = float(result.hypothesis.score)  # type: ignore[attr-defined]
    return score if score == score else float("inf")  # select NaN, so that it is refused and counted


def _sides(detection: Detection2D) -> tuple[tuple[float, float], tuple[float, float], float]:
    box = detection.bbox
    center = box.center.position
    return (center.x, center.y), (0.5 * box.size_x, 0.5 * box.size_y), box.center.theta


def _name(class_id: str, class_names: Sequence[str]) -> str:
    text = class_id.strip()
    if not (text.isascii() and text.isdigit()):
        return text
    if not class_names:
        return UNNAMED
    number = int(text) if len(text) < 6 else len(class_names)
    return class_names[number] if number < len(class_names) else ""


def count_serialized(data: bytes) -> int:
    """Number of detections in a serialized Detection2DArray. Deserializing 10,000 would take a second.

    Raises ``ValueError`` for too few bytes.
    """
    if len(data) < 16:
        raise ValueError(f"a Detection2DArray has more than {len(data)} bytes")
    order = "<" if data[1] & 1 else ">"
    (length,) = struct.unpack_from(order + "I", data, 12)  # of header.frame_id, after encapsulation and stamp
    at = 16 + (length + 3) // 4 * 4
    if at + 4 > len(data):
        raise ValueError(f"header.frame_id of a Detection2DArray has {length} of {len(data)} bytes")
    return int(struct.unpack_from(order + "I", data, at)[0])
