"""Corrected poses of keyframes from a SLAM system: a ``nav_msgs/Path`` in the fusion frame.

The stamps of its poses name the keyframes. Stamps of no keyframe are counted, not refused: a SLAM system keeps others.
The poses are those of the cameras' optical frames, or of ``keyframe_path_child``. A correction takes about 10 ms per
keyframe and runs in its own thread; of several waiting paths only the newest is used, since each is a whole trajectory.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from nav_msgs.msg import Path

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.sensors.poses import Found
from embodied_perceptron_ros.conversion.values import pose_to_matrix, stamp_to_ns
from embodied_perceptron_ros.node.health import WARN
from embodied_perceptron_ros.node.qos import qos_overrides, reliable_qos
from embodied_perceptron_ros.node.threads import SERVICE_LIMIT_S, STOP_LIMIT_S, TookTooLongError

Poses = dict[tuple[str, int], F64]
_HOLD_S = 10.0
_MAX_POSES = 100_000  # one pose per second of a day


class CorrectionError(ValueError):
    """A path that cannot be used."""


def corrected_poses(
    path: Path,
    fusion_frame: str,
    keyframes: Mapping[tuple[str, int], Any],
    T_child_camera: Callable[[str, int], F64],
) -> tuple[Poses, int]:
    """Return the path's poses of stored keyframes, and the number of its stamps that belong to none.

    Args:
        path: poses ``T_fusion_child``.
        fusion_frame: frame that the path must be in.
        keyframes: (camera, stamp_ns) of the stored keyframes.
        T_child_camera: (4, 4) pose of a camera in the child frame at a stamp.

    Raises :class:`CorrectionError` for another frame or a bad pose, and what ``T_child_camera`` raises.
    """
    if len(path.poses) > _MAX_POSES:
        raise CorrectionError(f"corrected poses must be at most {_MAX_POSES}, got {len(path.poses)}")
    if path.header.frame_id.lstrip("/") != fusion_frame.lstrip("/"):
        raise CorrectionError(f"corrected poses must be in {fusion_frame!r}, got {path.header.frame_id!r}")
    cameras: dict[int, list[str]] = {}
    for camera, stamp_ns in keyframes:
        cameras.setdefault(stamp_ns, []).append(camera)
    poses: Poses = {}
    unknown = 0
    for stamped in path.poses:
        stamp_ns = stamp_to_ns(stamped.header.stamp)
        unknown += stamp_ns not in cameras
        for camera in cameras.get(stamp_ns, ()):
            try:
                poses[camera, stamp_ns] = pose_to_matrix(stamped.pose) @ T_child_camera(camera, stamp_ns)
            except ValueError as error:
                raise CorrectionError(f"pose at {stamp_ns} ns: {error}") from error
    return poses, unknown


class KeyframeCorrections:
    """Subscription to the path, from activation to deactivation.

    Args:
        node: the ``PerceptionNode``; parameters ``keyframe_path_topic`` and ``keyframe_path_child``.
        configured: its ``ConfiguredMap``.
        on_corrected: called after each correction with the (4, 4) motion of the newest part of the map.
    """

    def __init__(self, node: Any, configured: Any, on_corrected: Callable[[F64], None]) -> None:
        self._node = node
        self._configured = configured
        self._on_corrected = on_corrected
        self._health = node.health
        self._child_frame = node.parameters.keyframe_path_child
        self._waiting: Path | None = None
        self._condition = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="corrections", daemon=True)
        self._thread.start()
        self._topic = topic = node.parameters.keyframe_path_topic
        configured.optional.add(topic, "nav_msgs/msg/Path", "corrected poses", "map", is_rare=True)
        self._subscription = node.create_subscription(
            Path, topic, self._on_path, reliable_qos(1), qos_overriding_options=qos_overrides()
        )

    def close(self) -> None:
        """Destroy the subscription; finish a running correction."""
        self._node.destroy_subscription(self._subscription)
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(STOP_LIMIT_S)

    def _on_path(self, path: Path) -> None:
        self._configured.optional.received(self._topic)
        with self._condition:
            if self._waiting is not None:
                self._health.count("corrections_superseded")
            self._waiting = path
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting is not None or self._stopping)
                if self._stopping:
                    return
                path, self._waiting = self._waiting, None
            try:
                with self._configured.watchdog.watch("correction", SERVICE_LIMIT_S):
                    self._correct(path)
            except TookTooLongError:  # reported by the watchdog
                continue
            except ValueError as error:
                self._health.count("corrections_refused")
                self._health.problem("map", WARN, f"corrected keyframes refused: {error}", "corrections", _HOLD_S)
                self._configured.optional.refused(self._topic, Counter({"path refused": 1}), str(error))
            except Exception:  # the thread must survive; the map is unchanged
                self._configured.watchdog.report_error("correcting", "corrections")

    def _correct(self, path: Any) -> None:
        perceptron, fusion_frame = self._configured.perceptron, self._node.parameters.fusion_frame
        poses, unknown = corrected_poses(path, fusion_frame, perceptron.keyframe_poses(), self._T_child_camera)
        self._health.count("corrections_of_unknown_keyframes", unknown)
        if not poses:
            detail = "the stamps of a path must be those of images"
            self._configured.optional.refused(self._topic, Counter({"stamp of no keyframe": unknown}), detail)
            return
        self._configured.optional.used(self._topic)
        correction = perceptron.correct_keyframes(poses)
        self._health.count("keyframes_corrected", correction.corrected)
        self._on_corrected(correction.motions[-1])

    def _T_child_camera(self, camera: str, stamp_ns: int) -> F64:  # noqa: N802 - frames in names
        if not self._child_frame:
            return np.eye(4)
        frame = self._configured.inbox.camera_frame(camera)
        answer = self._configured.transforms.lookup(self._child_frame, frame, stamp_ns)
        if not isinstance(answer, Found):
            raise CorrectionError(f"camera {camera!r} has no pose in {self._child_frame!r}: {answer}")
        return answer.T
