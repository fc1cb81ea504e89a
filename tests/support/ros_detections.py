"""Messages of a 2-D detector."""

from __future__ import annotations

from collections.abc import Sequence

from vision_msgs.msg import Detection2D, Detection2DArray, ObjectHypothesisWithPose

from embodied_perceptron_ros.conversion.values import make_header


def detection_2d(class_id: str, edges_px: Sequence[float], score: float) -> Detection2D:
    """One box of left, top, right, bottom, counted from the picture's corner."""
    result = ObjectHypothesisWithPose()
    result.hypothesis.class_id, result.hypothesis.score = class_id, float(score)
    message = Detection2D(results=[result])
    left, top, right, bottom = (float(e) for e in edges_px)
    message.bbox.center.position.x, message.bbox.center.position.y = (left + right) / 2, (top + bottom) / 2
    message.bbox.size_x, message.bbox.size_y = right - left, bottom - top
    return message


def detections_2d(
    stamp_ns: int, frame_id: str, boxes: Sequence[tuple[str, Sequence[float], float]]
) -> Detection2DArray:
    """What a detector says of one picture."""
    message = Detection2DArray(header=make_header(stamp_ns, frame_id))
    message.detections = [detection_2d(*box) for box in boxes]
    return message
