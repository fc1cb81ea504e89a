"""Play a bag (MCAP or SQLite) on real topics without a ROS installation; serialised messages are sent unchanged.

    python -m embodied_perceptron_ros.players.bag_player BAG [--rate 1] [--clock] [--topics A B] [--report FILE]

Topics can be remapped (``--ros-args -r /camera/depth:=/depth/image_raw``). Playing starts when the topics of
``--wait-for`` (default: those images that the node subscribes to) have subscribers. Recorded topics that the running
node publishes itself are not played.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rosbags.highlevel import AnyReader, AnyReaderError
from rosbags.interfaces import Connection, QosDurability
from rosbags.typesys import Stores, get_typestore

from embodied_perceptron.recordings.packed_bags import unpack
from embodied_perceptron_ros.node.qos import latched_qos, reliable_qos
from embodied_perceptron_ros.players.playback import Player, player_parser, run_player, topics_of_node

_AWAITED_TYPES = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
_NEVER_PLAYED = ("/clock", "/rosout", "/parameter_events")  # /clock is generated, the others are no data
_GLOBAL = ("/tf", "/tf_static", "/clock")  # outside namespaces
_STATES = ("bond", "diagnostics")  # names of topics that describe processes: those of the recording have ended


def message_class(ros_type: str) -> Any:
    """``pkg/msg/Name`` -> message class. Raises ``ImportError`` if the package is not installed."""
    package, _, name = ros_type.split("/")
    module = importlib.import_module(f"{package}.msg")
    try:
        return getattr(module, name)
    except AttributeError:
        raise ImportError(f"{package} has no message {name}") from None


def publisher_qos(connection: Connection) -> QoSProfile:
    """Reliable, which matches every subscriber; transient local for static transforms and if it was recorded so."""
    offered = getattr(connection.ext, "offered_qos_profiles", [])
    latched = any(profile.durability == QosDurability.TRANSIENT_LOCAL for profile in offered)
    if latched or connection.topic.endswith("tf_static"):
        return latched_qos(depth=100)  # several nodes send static transforms, and each message must be kept
    return reliable_qos(30)


def topic_in(namespace: str, topic: str) -> str:
    """Recorded topic -> topic of a player in ``namespace``; transforms and the clock stay global."""
    root = namespace.rstrip("/")
    return topic if not root or topic in _GLOBAL else f"{root}/{topic.lstrip('/')}"


class BagPlayer(Player):
    """Plays an open reader.

    Args:
        node, rate, clock: see :class:`.Player`.
        reader: of the bag.
        topics: play only these; empty = all.
        depth_topics: their messages count as frames; empty = image topics with "depth" in their name.

    Raises ``ValueError`` for topics that the bag does not have.
    """

    def __init__(
        self,
        node: Node,
        reader: AnyReader,
        rate: float,
        clock: bool,
        topics: Sequence[str] = (),
        depth_topics: Sequence[str] = (),
    ) -> None:
        super().__init__(node, str(reader.paths[0]), reader.start_time, rate, clock)
        self._reader = reader
        self._publishers: dict[str, Any] = {}
        images = {c.topic for c in reader.connections if c.msgtype in _AWAITED_TYPES}
        self._depth_topics = set(depth_topics) or {t for t in images if "depth" in t.lower()}
        unknown = sorted({*topics, *depth_topics} - {c.topic for c in reader.connections})
        if unknown:
            known = ", ".join(sorted({c.topic for c in reader.connections}))
            raise ValueError(f"not in the bag: {', '.join(unknown)} (it has {known})")
        self._connections = []
        self._chosen = frozenset(topics)
        for connection in reader.connections:
            if connection.topic in _NEVER_PLAYED or (topics and connection.topic not in topics):
                continue
            if not topics and connection.topic.rpartition("/")[2] in _STATES:
                self.report.skipped[connection.topic] = "state of a process of the recording"
                continue
            try:
                kind = message_class(connection.msgtype)
            except ImportError as error:
                self.report.skipped[connection.topic] = f"{connection.msgtype}: {error}"
                continue
            self._connections.append(connection)
            if connection.topic not in self._publishers:
                qos = publisher_qos(connection)
                name = topic_in(node.get_namespace(), connection.topic)
                self._publishers[connection.topic] = node.create_publisher(kind, name, qos)

    def awaited(self, names: Sequence[str] | None) -> dict[str, Any]:
        """Publishers that may need a subscriber before the start: ``names``, or the images, without images all.

        Raises ``ValueError``.
        """
        if names is not None:
            unknown = sorted(set(names) - set(self._publishers))
            if unknown:
                raise ValueError(f"--wait-for: not played: {', '.join(unknown)}")
            return {name: self._publishers[name] for name in names}
        types = {c.topic: c.msgtype for c in self._connections}
        return {t: p for t, p in self._publishers.items() if types[t] in _AWAITED_TYPES} or dict(self._publishers)

    def play(self, wait_for: Sequence[str] | None, timeout_s: float, max_frames: int = 0) -> None:
        """Play the bag; see :meth:`.Player._play`."""
        wanted = self._wanted_images if wait_for is None else None
        awaited, publishers = self.awaited(wait_for), self._publishers.values()
        self._play(self._messages(), awaited, publishers, timeout_s, max_frames, wanted)

    def _wanted_images(self) -> set[str] | None:
        return topics_of_node(self._node, self._node.get_subscriber_names_and_types_by_node, _AWAITED_TYPES)

    def _leave_out_outputs(self) -> None:
        """Stop publishing what the running node publishes itself, and log what is not played."""
        log, own = self._node.get_logger(), topics_of_node(self._node, self._node.get_publisher_names_and_types_by_node)
        for topic, publisher in list(self._publishers.items()):
            if publisher.topic_name in (own or set()) - set(_GLOBAL) and topic not in self._chosen:
                self.report.skipped[topic] = "the running node publishes it"
                self._node.destroy_publisher(self._publishers.pop(topic))
        self._connections = [c for c in self._connections if c.topic in self._publishers]
        if self.report.skipped:
            left_out = "; ".join(f"{topic} ({reason})" for topic, reason in sorted(self.report.skipped.items()))
            log.warning(f"not played: {left_out}")

    def _messages(self) -> Iterator[tuple[int, Callable[[], None]]]:
        self._leave_out_outputs()  # after the wait: the node is there
        for connection, stamp_ns, raw in self._reader.messages(self._connections):
            yield stamp_ns, partial(self._send, connection.topic, raw)

    def _send(self, topic: str, raw: bytes) -> None:
        self._publishers[topic].publish(bytes(raw))
        self.report.messages[topic] += 1
        self.report.frames_sent += topic in self._depth_topics


@contextmanager
def _opened(node: Node, options: argparse.Namespace) -> Iterator[BagPlayer]:
    path, _folder = unpack(options.source)  # the folder exists as long as the variable does
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
    parser.add_argument(
        "--depth-topics", nargs="+", default=(), help="topics whose messages count as frames in the report"
    )
    parser.add_argument("--wait-for", nargs="*", help="topics that need a subscriber before the start; none = no wait")
    return run_player(parser, _opened, _play, arguments, (AnyReaderError, ValueError, OSError))


if __name__ == "__main__":
    sys.exit(main())
