"""Play a bag (MCAP or SQLite) on real topics without a ROS installation: serialised messages go out as they are.

    python -m embodied_perceptron_ros.players.bag_player BAG [--rate 1] [--clock] [--topics A B] [--report FILE]

Topics may be remapped as everywhere (``--ros-args -r /camera/depth:=/depth/image_raw``). Playing starts when everything
that has to be heard (``--wait-for``, default: the image topics and /tf) has a subscriber.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rosbags.highlevel import AnyReader, AnyReaderError
from rosbags.interfaces import Connection, QosDurability
from rosbags.typesys import Stores, get_typestore

from embodied_perceptron.recordings.packed_bags import unpack
from embodied_perceptron_ros.node.qos import latched_qos, reliable_qos
from embodied_perceptron_ros.players.playback import (
    Pacer,
    PlaybackReport,
    flush,
    player_parser,
    run_player,
    wait_for_node,
)

_AWAITED_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
_NEVER_PLAYED = ("/clock", "/rosout", "/parameter_events")  # /clock is made anew, the others are not data
_GLOBAL = ("/tf", "/tf_static", "/clock")  # not of one robot


def message_class(ros_type: str) -> Any:
    """``pkg/msg/Name`` -> the message class. Raises ``ImportError`` when the package is not installed."""
    package, _, name = ros_type.split("/")
    module = importlib.import_module(f"{package}.msg")
    try:
        return getattr(module, name)
    except AttributeError:
        raise ImportError(f"{package} has no message {name}") from None


def publisher_qos(connection: Connection) -> QoSProfile:
    """Reliable always (matches every subscriber); transient local where the recorded publisher was, or for statics."""
    offered = getattr(connection.ext, "offered_qos_profiles", [])
    latched = any(profile.durability == QosDurability.TRANSIENT_LOCAL for profile in offered)
    if latched or connection.topic.endswith("tf_static"):
        return latched_qos(depth=100)  # several nodes send statics on one topic; each message has to stay
    return reliable_qos(30)


def topic_in(namespace: str, topic: str) -> str:
    """Where a recorded topic is played by a player in ``namespace``: below it, but for transforms and the clock."""
    root = namespace.rstrip("/")
    return topic if not root or topic in _GLOBAL else f"{root}/{topic.lstrip('/')}"


class BagPlayer:
    """Plays one open reader through one node."""

    def __init__(
        self,
        node: Node,
        reader: AnyReader,
        rate: float,
        clock: bool,
        topics: Sequence[str] = (),
        depth_topics: Sequence[str] = (),
    ) -> None:
        """``topics``: play only these; ``depth_topics``: whose messages count as frames (default: named depth)."""
        self._node = node
        self._reader = reader
        self.report = PlaybackReport(source=str(reader.paths[0]))
        self._publishers: dict[str, Any] = {}
        images = {c.topic for c in reader.connections if c.msgtype in _AWAITED_TYPES}
        self._depth_topics = set(depth_topics) or {t for t in images if "depth" in t.lower()}
        unknown = sorted({*topics, *depth_topics} - {c.topic for c in reader.connections})
        if unknown:
            known = ", ".join(sorted({c.topic for c in reader.connections}))
            raise ValueError(f"not in the bag: {', '.join(unknown)} (it has {known})")
        self._connections = []
        for connection in reader.connections:
            if connection.topic in _NEVER_PLAYED or (topics and connection.topic not in topics):
                continue
            try:
                kind = message_class(connection.msgtype)
            except ImportError as error:
                self.report.skipped[connection.topic] = f"{connection.msgtype}: {error}"
                node.get_logger().warning(f"not playing {connection.topic}: {error}")
                continue
            self._connections.append(connection)
            if connection.topic not in self._publishers:
                qos = publisher_qos(connection)
                name = topic_in(node.get_namespace(), connection.topic)
                self._publishers[connection.topic] = node.create_publisher(kind, name, qos)
        self._pacer = Pacer(node if clock else None, reader.start_time, rate)

    def awaited(self, names: Sequence[str] | None) -> dict[str, Any]:
        """Publishers that need a subscriber before the start: the named ones, or images and /tf."""
        if names is not None:
            unknown = sorted(set(names) - set(self._publishers))
            if unknown:
                raise ValueError(f"--wait-for: not played: {', '.join(unknown)}")
            return {name: self._publishers[name] for name in names}
        types = {c.topic: c.msgtype for c in self._connections}
        return {t: p for t, p in self._publishers.items() if t == "/tf" or types[t] in _AWAITED_TYPES}

    def play(self, wait_for: Sequence[str] | None, timeout_s: float, max_frames: int = 0) -> None:
        """Play to the end, or ``max_frames`` (0 = all), or until ROS is shut down; see :attr:`report`."""
        if not wait_for_node(self._node, self.awaited(wait_for), timeout_s, self._pacer.hold):
            return
        started_s = time.monotonic()
        self._pacer.start()
        for connection, stamp_ns, raw in self._reader.messages(self._connections):
            if not self._pacer.wait_until(stamp_ns):
                break
            self._publishers[connection.topic].publish(bytes(raw))
            self.report.messages[connection.topic] += 1
            self.report.frames_sent += connection.topic in self._depth_topics
            if self.report.frames_sent == max_frames > 0:
                self.report.complete = True
                break
        else:
            self.report.complete = True
        self.report.wall_s = time.monotonic() - started_s
        if rclpy.ok():
            self.report.acknowledged = flush(self._publishers.values())
        self.report.max_late_ms = self._pacer.max_late_ms


@contextmanager
def _opened(node: Node, options: argparse.Namespace) -> Iterator[BagPlayer]:
    path, _folder = unpack(options.source)  # the folder is there as long as its name is
    with AnyReader([path], default_typestore=get_typestore(Stores.LATEST)) as reader:
        player = BagPlayer(node, reader, options.rate, options.clock, options.topics, options.depth_topics)
        player.report.source = str(options.source)
        yield player


def _play(player: BagPlayer, options: argparse.Namespace) -> None:
    player.play(options.wait_for, options.timeout, options.max_frames)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code of :func:`run_player`."""
    parser = player_parser("bag_player", __doc__ or "", "BAG")
    parser.add_argument("--topics", nargs="+", default=(), help="play only these")
    parser.add_argument("--depth-topics", nargs="+", default=(), help="whose messages count as frames in the report")
    parser.add_argument("--wait-for", nargs="*", help="topics that need a subscriber before the start; none = no wait")
    return run_player(parser, _opened, _play, arguments, (AnyReaderError, ValueError, OSError))


if __name__ == "__main__":
    sys.exit(main())
