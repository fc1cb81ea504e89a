"""Play a folder (TUM RGB-D layout) on real topics: images, camera_info, transforms and, if wanted, /clock.

    python -m embodied_perceptron_ros.players.folder_player FOLDER [--rate 1] [--clock] [--report FILE]

One camera publishes ``color/image_raw``, ``depth/image_raw`` and ``color/camera_info``, several ``<camera>/color/...``:
the node's defaults. Playing starts when the images and /tf have subscribers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import rclpy
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CameraInfo, Image
from tf2_msgs.msg import TFMessage

from embodied_perceptron.recordings.open import open_recording
from embodied_perceptron.recordings.recording import (
    CalibrationSample,
    ColorSample,
    DepthSample,
    Recording,
    RecordingError,
    Sample,
    TransformSample,
)
from embodied_perceptron.sensors.synchronizer import BadImage
from embodied_perceptron_ros.conversion.values import make_camera_info, make_image, make_transform_stamped
from embodied_perceptron_ros.node.parameters import default_topics
from embodied_perceptron_ros.node.qos import latched_qos, reliable_qos
from embodied_perceptron_ros.players.playback import Player, player_parser, read_ahead, run_player

DEPTH_ENCODINGS = ("32FC1", "16UC1")
_AHEAD = 24  # messages made ahead: about six frames


def encode_depth(depth_m: NDArray[np.float32], encoding: str) -> NDArray[Any]:
    """(H, W) canonical metres (0 unknown, +Inf free) -> pixels of ``encoding`` after REP-117/118.

    32FC1: NaN for unknown, +Inf kept. 16UC1: millimetres, 0 for unknown and free.
    """
    if encoding == "32FC1":
        return np.where(depth_m > 0, depth_m, np.float32(np.nan)).astype(np.float32)
    if encoding == "16UC1":
        millimetres = np.rint(np.where(np.isfinite(depth_m), depth_m, 0.0) * 1000.0)
        return np.where(millimetres < np.iinfo(np.uint16).max, millimetres, 0).astype(np.uint16)
    raise ValueError(f"depth encoding must be one of {', '.join(DEPTH_ENCODINGS)}, got {encoding!r}")


def start_stamp_ns(recording: Recording) -> int:
    """Stamp of the first image."""
    for sample in recording:
        if not isinstance(sample, TransformSample):
            return sample.stamp_ns
    raise RecordingError(f"{recording.source} holds no images")


@dataclass(frozen=True, eq=False)
class _Ready:
    """A message ready to be sent; ``message`` is None for an image that could not be decoded."""

    stamp_ns: int
    publisher: Any
    message: Any
    is_image: bool = True
    is_frame: bool = False
    fault: str = ""


class RecordingPlayer(Player):
    """Plays a recording."""

    def __init__(self, node: Node, recording: Recording, rate: float, clock: bool, depth_encoding: str) -> None:
        if depth_encoding not in DEPTH_ENCODINGS:
            raise ValueError(f"depth encoding must be one of {', '.join(DEPTH_ENCODINGS)}, got {depth_encoding!r}")
        super().__init__(node, str(recording.source), start_stamp_ns(recording), rate, clock)
        self._recording = recording
        self._depth_encoding = depth_encoding
        self._tf = node.create_publisher(TFMessage, "/tf", reliable_qos(100))
        self._tf_static = node.create_publisher(TFMessage, "/tf_static", latched_qos(100))
        self._publishers: dict[tuple[str, type], Any] = {}
        for camera in recording.cameras:
            topics = default_topics(camera, alone=len(recording.cameras) == 1).values()
            kinds = ((ColorSample, Image), (DepthSample, Image), (CalibrationSample, CameraInfo))
            for (sample, kind), topic in zip(kinds, topics, strict=True):
                self._publishers[camera, sample] = node.create_publisher(kind, topic, reliable_qos(30))

    def play(self, wait: bool, timeout_s: float, max_frames: int = 0) -> None:
        """Play the recording; see :meth:`.Player._play`."""
        awaited = {**{p.topic_name: p for p in self._publishers.values()}, "/tf": self._tf}
        publishers = (*self._publishers.values(), self._tf)
        self._play(self._messages(), awaited if wait else None, publishers, timeout_s, max_frames)

    def _messages(self) -> Iterator[tuple[int | None, Callable[[], None]]]:
        # Decoded ahead, so that colour and depth of one frame leave together, as from a driver
        for ready in read_ahead(map(self._prepare, self._recording), _AHEAD, lambda: not rclpy.ok()):
            # transforms are sent ahead of their images, as a robot's odometry is
            yield ready.stamp_ns if ready.is_image else None, partial(self._send, ready)

    def _prepare(self, sample: Sample) -> _Ready:
        if isinstance(sample, TransformSample):
            stamped = make_transform_stamped(sample.T_parent_child, sample.stamp_ns, sample.parent, sample.child)
            publisher = self._tf_static if sample.is_static else self._tf
            return _Ready(sample.stamp_ns, publisher, TFMessage(transforms=[stamped]), is_image=False)
        publisher = self._publishers[sample.camera, type(sample)]
        frame_id = self._recording.camera_frame(sample.camera)
        if isinstance(sample, CalibrationSample):
            message = make_camera_info(sample.calibration, sample.stamp_ns, frame_id)
            return _Ready(sample.stamp_ns, publisher, message)
        pixels: NDArray[Any] | BadImage
        if isinstance(sample, ColorSample):
            pixels, encoding = sample.image, "rgb8"
        else:
            pixels, encoding = sample.depth_m, self._depth_encoding
        if isinstance(pixels, BadImage):
            return _Ready(sample.stamp_ns, publisher, None, fault=pixels.reason)
        if isinstance(sample, DepthSample):
            pixels = encode_depth(pixels, encoding)
        # serialised here, ahead of time: publishing is then one copy
        message = serialize_message(make_image(pixels, encoding, sample.stamp_ns, frame_id))
        return _Ready(sample.stamp_ns, publisher, message, is_frame=isinstance(sample, DepthSample))

    def _send(self, ready: _Ready) -> None:
        topic = ready.publisher.topic_name
        if ready.message is None:
            self.report.skipped[f"{topic} at {ready.stamp_ns}"] = ready.fault
            return
        ready.publisher.publish(ready.message)
        self.report.messages[topic] += 1
        self.report.frames_sent += ready.is_frame


@contextmanager
def _opened(node: Node, options: argparse.Namespace) -> Iterator[RecordingPlayer]:
    recording = open_recording(options.source)
    yield RecordingPlayer(node, recording, options.rate, options.clock, options.depth_encoding)


def _play(player: RecordingPlayer, options: argparse.Namespace) -> None:
    player.play(not options.no_wait, options.timeout, options.max_frames)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code of :func:`run_player`."""
    parser = player_parser("folder_player", __doc__ or "", "FOLDER")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for subscribers")
    parser.add_argument("--depth-encoding", default=DEPTH_ENCODINGS[0], choices=DEPTH_ENCODINGS)
    return run_player(parser, _opened, _play, arguments)


if __name__ == "__main__":
    sys.exit(main())
