"""Corrected poses of keyframes, as a SLAM system publishes them: a ``nav_msgs/Path`` in the fusion frame.

The stamps of its poses name the keyframes; stamps that name none are counted, not refused: a SLAM system keeps others.
Poses are those of the cameras' optical frames, or of ``keyframe_path_child``. Correcting takes some 10 ms per keyframe,
so it has a thread of its own; of several paths that wait the newest is taken, for each is a whole trajectory.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from nav_msgs.msg import Path
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.sensors.poses import Found
from embodied_perceptron_ros.conversion.values import pose_to_matrix, stamp_to_ns
from embodied_perceptron_ros.node.health import ERROR, WARN, Health
from embodied_perceptron_ros.node.transforms import TransformSource
from embodied_perceptron_ros.node.watchdog import SERVICE_LIMIT_S, STOP_LIMIT_S, TookTooLongError, Watchdog

Poses = dict[tuple[str, int], NDArray[np.float64]]
_HOLD_S = 10.0
_MAX_POSES = 100_000  # a pose each second of a day


class CorrectionError(ValueError):
    """A path that cannot be used; the message says why."""


def corrected_poses(
    path: Path,
    fusion_frame: str,
    keyframes: Mapping[tuple[str, int], Any],
    T_child_camera: Callable[[str, int], NDArray[np.float64]],
) -> tuple[Poses, int]:
    """The path's poses of keyframes that are kept, and how many of its stamps name none.

    Args:
        path: poses ``T_fusion_child``.
        fusion_frame: in which they have to be.
        keyframes: (camera, stamp_ns) of those that are kept.
        T_child_camera: (4, 4) place of a camera on what the path's poses are of, at a stamp.

    Raises :class:`CorrectionError` for another frame, a pose that is none, and what ``T_child_camera`` raises.
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
        topic: of the path.
        child_frame: whose poses they are; empty = each camera's optical frame.
        camera_frame: optical frame of a camera by its name, or empty.
        on_corrected: called after the map was changed, with the (4, 4) motion of its newest part.
    """

    def __init__(
        self,
        node: Node,
        perceptron: Perceptron,
        transforms: TransformSource,
        health: Health,
        *,
        topic: str,
        child_frame: str,
        fusion_frame: str,
        camera_frame: Callable[[str], str],
        on_corrected: Callable[[NDArray[np.float64]], None],
        watchdog: Watchdog,
    ) -> None:
        self._watchdog = watchdog
        self._node = node
        self._perceptron = perceptron
        self._transforms = transforms
        self._health = health
        self._child_frame = child_frame
        self._fusion_frame = fusion_frame
        self._camera_frame = camera_frame
        self._on_corrected = on_corrected
        self._waiting: Path | None = None
        self._condition = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="corrections", daemon=True)
        self._thread.start()
        self._subscription = node.create_subscription(
            Path,
            topic,
            self._on_path,
            QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE),
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )

    def close(self) -> None:
        """Stop listening; a correction in work is finished."""
        self._node.destroy_subscription(self._subscription)
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join(STOP_LIMIT_S)

    def _on_path(self, path: Path) -> None:
        with self._condition:
            if self._waiting is not None:  # they come faster than the map can follow
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
                with self._watchdog.watch("correction", SERVICE_LIMIT_S):
                    self._correct(path)
            except TookTooLongError:  # the watchdog has told of it
                continue
            except ValueError as error:
                self._health.count("corrections_refused")
                self._health.problem("map", WARN, f"corrected keyframes refused: {error}", "corrections", _HOLD_S)
            except Exception:  # the thread must survive; the map is as it was
                self._health.count("internal_errors")
                self._health.problem("node", ERROR, "internal error while correcting", "corrections", _HOLD_S)
                self._node.get_logger().error(traceback.format_exc())

    def _correct(self, path: Any) -> None:
        keyframes = self._perceptron.keyframe_poses()
        poses, unknown = corrected_poses(path, self._fusion_frame, keyframes, self._T_child_camera)
        self._health.count("corrections_of_unknown_keyframes", unknown)
        if not poses:
            return
        correction = self._perceptron.correct_keyframes(poses)
        self._health.count("keyframes_corrected", correction.corrected)
        self._on_corrected(correction.motions[-1])

    def _T_child_camera(self, camera: str, stamp_ns: int) -> NDArray[np.float64]:  # noqa: N802 - frames in names
        if not self._child_frame:
            return np.eye(4)
        answer = self._transforms.lookup(self._child_frame, self._camera_frame(camera), stamp_ns)
        if not isinstance(answer, Found):
            raise CorrectionError(f"camera {camera!r} has no place on {self._child_frame!r}: {answer}")
        return answer.T
