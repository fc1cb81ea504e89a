"""2-D detections from other programs: topics of vision_msgs/Detection2DArray -> the lift into the map.

Callbacks only queue serialized messages. One thread reads them, finds their camera, undistorts their boxes and passes
them to the perceptron. Everything else is a counted drop with a reason.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from functools import partial
from typing import Any

from rclpy.serialization import deserialize_message
from vision_msgs.msg import Detection2DArray

from embodied_perceptron.detection2d.detections2d import LOW_SCORE, accept_detections
from embodied_perceptron.detection2d.detectors import COCO_CLASSES
from embodied_perceptron.detection2d.loading import limits_from_options
from embodied_perceptron.detection2d.persons import person_numbers
from embodied_perceptron.detection2d.pipeline import UNKNOWN_CAMERA
from embodied_perceptron_ros.conversion.detections import count_serialized, detections_from_message, has_class_numbers
from embodied_perceptron_ros.conversion.values import stamp_to_ns
from embodied_perceptron_ros.node.health import WARN, ThrottledLog
from embodied_perceptron_ros.node.qos import best_effort_qos, qos_overrides

NUMBERS = "class_numbers_without_names"
NO_CALIBRATION = "camera_not_calibrated"
FLOOD = "too_many_in_message"
UNREADABLE = "unreadable"
OVERLOAD = "overload"
MAX_IN_MESSAGE = 1000  # reading more would delay everything else
_MAX_WAITING = 64
_HOLD_S = 5.0  # how long diagnostics report a drop


class DetectionInputs:
    """Subscriptions to detections, from activation to deactivation.

    Cameras with a ``detections_topic`` are subscribed. If cameras share a topic, a message belongs to the camera whose
    images have the same ``frame_id``.

    Args:
        node: the ``PerceptionNode``.
        configured: its ``ConfiguredMap``.
    """

    def __init__(self, node: Any, configured: Any) -> None:
        options = node.parameters.config.lift
        self._node = node
        self._perceptron = configured.perceptron
        self._inbox = configured.inbox
        self._watchdog = configured.watchdog
        self._health = node.health
        self._limits = limits_from_options(options)
        self._class_names = tuple(options.classes or COCO_CLASSES)
        self._names_given = bool(options.classes)
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._log = ThrottledLog(node.get_logger())
        self._of_topic: dict[str, list[str]] = {}
        for camera in node.parameters.cameras:
            if camera.detections_topic:
                self._of_topic.setdefault(camera.detections_topic, []).append(camera.name)
        for topic in self._of_topic:
            configured.optional.add(topic, "vision_msgs/msg/Detection2DArray", "detections", "lift")
        self._optional = configured.optional
        self._subscriptions = [
            node.create_subscription(
                Detection2DArray,
                topic,
                partial(self._receive, topic),
                best_effort_qos(),
                qos_overriding_options=qos_overrides(),
                raw=True,
            )
            for topic in self._of_topic
        ]
        self._thread = threading.Thread(target=self._run, name="detections", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Destroy the subscriptions and discard waiting messages."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        self._subscriptions = []
        self._stopping = True
        self._wake.set()
        self._thread.join()

    def _receive(self, topic: str, data: bytes) -> None:
        self._health.tick("detections")
        self._optional.received(topic)
        lost = None
        with self._lock:
            self._waiting.append((topic, data))
            if len(self._waiting) > _MAX_WAITING:
                _, lost = self._waiting.popleft()
        if lost is not None:
            self._drop(topic, OVERLOAD, _count(lost), f"more than {_MAX_WAITING} messages of detections wait")
        self._wake.set()

    # ---- the thread

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            while not self._stopping and self._waiting:
                with self._lock:
                    topic, data = self._waiting.popleft()
                try:
                    self._process(topic, data)
                except Exception:  # continue with the next message
                    self._watchdog.report_error("reading detections", "detections")

    def _process(self, topic: str, data: bytes) -> None:
        count = _count(data)
        if count > MAX_IN_MESSAGE:
            self._drop(
                topic, FLOOD, count, f"{count} detections in one message of {topic}, at most {MAX_IN_MESSAGE} are read"
            )
            return
        try:
            message = deserialize_message(data, Detection2DArray)
        except Exception as error:  # rclpy raises RuntimeError, UnicodeDecodeError and others
            self._drop(
                topic, UNREADABLE, count, f"a message of {topic} cannot be read: {type(error).__name__}: {error}"
            )
            return
        camera = self._camera_of(topic, message.header.frame_id)
        if camera is None:
            names = self._of_topic[topic]
            frames = ", ".join(f"{name}: {self._inbox.camera_frame(name) or 'unknown'}" for name in names)
            detail = f"detections of {topic} have frame {message.header.frame_id!r}, the cameras' are {frames}"
            self._drop(topic, UNKNOWN_CAMERA, count, detail)
            return
        model = self._inbox.camera_model(camera)
        if model is None:
            self._drop(topic, NO_CALIBRATION, count, f"no calibration of camera {camera!r} has come")
            return
        raw = detections_from_message(message, self._class_names)
        if not self._names_given and has_class_numbers(message):
            detail = f"classes of {topic} are numbers, read as COCO's 80 classes: set their names in lift.classes"
            self._health.problem("lift", WARN, detail, NUMBERS, hold_s=_HOLD_S)
            self._log.warning(NUMBERS, detail)
        size = model.intrinsics.width, model.intrinsics.height
        boxes_px = model.undistort_boxes(raw.boxes_px)
        stamp_ns = stamp_to_ns(message.header.stamp)
        found, drops = accept_detections(camera, stamp_ns, boxes_px, raw.scores, raw.labels, size, self._limits)
        self._perceptron.add_detections(found, drops)
        if len(found):
            self._optional.used(topic)
        else:
            del drops[LOW_SCORE]  # that says only that nothing is in view
            self._optional.refused(topic, drops)

    def _camera_of(self, topic: str, frame_id: str) -> str | None:
        """The camera of a message; on a topic of one camera, ``frame_id`` may be empty."""
        cameras = self._of_topic[topic]
        frame = frame_id.lstrip("/")
        if len(cameras) == 1 and not frame:
            return cameras[0]
        return next((c for c in cameras if self._inbox.camera_frame(c).lstrip("/") == frame and frame), None)

    def _drop(self, topic: str, reason: str, count: int, detail: str) -> None:
        self._optional.refused(topic, Counter({reason: max(1, count)}), detail)
        if self._perceptron.lift is not None:
            self._perceptron.lift.count_drops(Counter({reason: max(1, count)}))
        self._health.problem("lift", WARN, detail, reason, hold_s=_HOLD_S)
        self._log.warning(reason, f"detections dropped: {reason}: {detail}")


def _count(data: bytes) -> int:
    try:
        return count_serialized(data)
    except ValueError:
        return 0


def lift_diagnostics(statistics: Any, busy_s: float) -> dict[str, Any]:
    """:class:`~embodied_perceptron.detection2d.pipeline.LiftStatistics` -> values of diagnostics."""
    pictures = max(statistics.pictures, 1)
    values = {
        "state": statistics.state,
        "pictures": statistics.pictures,
        "found": statistics.found,
        "lifted": statistics.lifted,
        "failures": statistics.failures,
        "detector_ms": round(statistics.detector_ms / pictures, 2),
        "lift_ms": round((statistics.lift_ms + statistics.join_ms) / pictures, 2),
        "detector_busy_s": round(busy_s, 1),
        "dropped": sum(statistics.dropped.values()),
        **{f"dropped.{reason}": count for reason, count in sorted(statistics.dropped.items())},
    }
    if statistics.persons is not None:
        values |= {f"persons.{key}": value for key, value in person_numbers(statistics.persons).items()}
    return {**values, "last_error": statistics.last_error} if statistics.last_error else values
