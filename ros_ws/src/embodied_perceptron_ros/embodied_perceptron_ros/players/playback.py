"""Code shared by the players: command line, pacing, /clock, waiting for subscribers, the report of sent messages."""

from __future__ import annotations

import argparse
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock

from embodied_perceptron.recordings.files import write_json
from embodied_perceptron_ros.conversion.values import ns_to_stamp
from embodied_perceptron_ros.environment import RosStartError, start_ros
from embodied_perceptron_ros.node.health import read_diagnostics
from embodied_perceptron_ros.node.qos import reliable_qos
from embodied_perceptron_ros.players.launch_options import NODE_NAME

T = TypeVar("T")

EXIT_NO_SUBSCRIBER = 3
EXIT_BAD_SOURCE = 4
EXIT_INTERRUPTED = 130

_SLICE_S = 0.01  # longest sleep between two checks of the clock and of Ctrl-C
_STATE_HOLDS_S = 5.0  # how long the node's last diagnostics count
_END_S = 2.0
_SETTLE_S = 0.3  # the publisher's side sees a match first


class NoSubscriberError(RuntimeError):
    """Nobody subscribes; the message names the topics."""


class PerceptionState:
    """State of the node ``perception`` in the namespace of ``node``, from its diagnostics; spins ``node``."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._watched = f"{node.get_namespace().strip('/')}/{NODE_NAME}".lstrip("/")
        self._state, self._received_s = "", float("-inf")
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._subscription = node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        node = read_diagnostics(message, self._watched).get("node")
        if node is not None:
            self._state, self._received_s = node.get("state", ""), time.monotonic()

    def get(self) -> str:
        """``configuring``, ``active``, ...; empty without recent diagnostics."""
        self._executor.spin_once(timeout_sec=0.0)
        return self._state if time.monotonic() - self._received_s < _STATE_HOLDS_S else ""

    def close(self) -> None:
        """Destroy the subscription."""
        self._executor.shutdown()
        self._node.destroy_subscription(self._subscription)


def topics_of_node(node: Node, list_topics: Callable[[str, str], Any], types: Sequence[str] = ()) -> set[str] | None:
    """Topics of the node ``perception`` in the namespace of ``node``, of some ``types`` (empty = all); None without it.

    ``list_topics``: a method of ``node``, such as ``get_subscriber_names_and_types_by_node``.
    """
    try:
        found = list_topics(NODE_NAME, node.get_namespace())
    except RuntimeError:  # rclpy's error for a node that does not exist
        return None
    return {name for name, kinds in found if not types or set(types) & set(kinds)}


def wait_for_subscribers(
    publishers: Mapping[str, Any],
    timeout_s: float,
    on_wait: Callable[[], None],
    state: Callable[[], str] = lambda: "",
    wanted: Callable[[], set[str] | None] | None = None,
) -> bool:
    """Wait until every publisher has a subscription; call ``on_wait`` meanwhile.

    ``wanted``: topics that the node subscribes to, None without a node. Only those publishers are awaited then; without
    a node, any of them. The timeout does not run while ``state()`` of the node is ``configuring``. Returns False when
    ROS was shut down. Raises :class:`NoSubscriberError` after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while rclpy.ok():
        asked = wanted() if wanted is not None else set()
        awaited = [t for t, p in publishers.items() if p.topic_name in (asked or ())] or list(publishers)
        lonely = [topic for topic in awaited if publishers[topic].get_subscription_count() == 0]
        if asked is None and len(lonely) < len(awaited):
            lonely = []
        if not lonely:
            settled = time.monotonic() + _SETTLE_S
            while rclpy.ok() and time.monotonic() < settled:
                on_wait()
                time.sleep(_SLICE_S)
            return bool(rclpy.ok())
        now = state()
        if now == "configuring":
            deadline = time.monotonic() + timeout_s
        if time.monotonic() > deadline:
            hint = f"the node is {now}" if now and now != "active" else "is the node running"
            hint += ", in the same ROS_DOMAIN_ID, with matching topic names and QoS?"
            if asked:
                hint = f"the node subscribes to {', '.join(sorted(asked))}: set its topics to those of the recording"
            raise NoSubscriberError(
                f"no subscriber on {', '.join(lonely)} after {timeout_s:g} s: {hint} "
                "(check with embodied-perceptron doctor)"
            )
        on_wait()
        time.sleep(_SLICE_S)
    return False


def flush(publishers: Iterable[Any], timeout_s: float = 10.0) -> bool:
    """Wait until reliable subscribers have received everything; otherwise it is lost when the process ends.

    Best-effort subscribers do not acknowledge; they get a moment. Returns whether all acknowledged in time.
    """
    deadline = time.monotonic() + timeout_s
    complete = True
    for publisher in publishers:
        left_s = max(0.0, deadline - time.monotonic())
        complete &= publisher.wait_for_all_acked(Duration(nanoseconds=int(left_s * 1e9)))
    time.sleep(_SETTLE_S)
    return complete


def read_ahead(items: Iterable[T], count: int, stopped: Callable[[], bool] = lambda: False) -> Iterator[T]:
    """Yield the items, which a thread makes up to ``count`` ahead; raise its exception in order.

    Ends when ``stopped()`` is true while no item is ready. The thread ends with the iteration, also with an early one.
    """
    waiting: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=count)
    given_up = threading.Event()

    def put(kind: str, value: Any) -> bool:
        while not given_up.is_set():
            try:
                waiting.put((kind, value), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:  # handed over, whatever it is
            put("error", error)

    thread = threading.Thread(target=make, name="read_ahead", daemon=True)
    thread.start()
    try:
        while True:
            try:
                kind, value = waiting.get(timeout=0.2)
            except queue.Empty:
                if stopped():
                    return
                continue
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        given_up.set()
        thread.join(_END_S)


class Pacer:
    """Maps recorded time to wall time, and publishes /clock.

    Args:
        node: publishes /clock; None = no clock.
        start_ns: recorded stamp of the start.
        rate: recorded seconds per wall second.
        clock_hz: lowest rate of /clock (wall time).
    """

    def __init__(self, node: Node | None, start_ns: int, rate: float, clock_hz: float = 100.0) -> None:
        if not rate > 0:
            raise ValueError(f"rate must be positive, got {rate}")
        self._publisher = None if node is None else node.create_publisher(Clock, "/clock", reliable_qos(1))
        self._start_ns = start_ns
        self._rate = rate
        self._clock_period_s = 1.0 / clock_hz
        self._last_clock_s = 0.0
        self._wall_start_s: float | None = None
        self.max_late_ms = 0.0

    def hold(self) -> None:
        """Publish the start time on /clock."""
        self._publish_clock(self._start_ns)

    def start(self) -> None:
        """Start the time."""
        self._wall_start_s = time.monotonic()

    def wait_until(self, stamp_ns: int) -> bool:
        """Sleep until ``stamp_ns`` is due; return False when ROS was shut down. Starts the time if necessary."""
        if self._wall_start_s is None:
            self.start()
        assert self._wall_start_s is not None
        due_s = self._wall_start_s + (stamp_ns - self._start_ns) * 1e-9 / self._rate
        while rclpy.ok():
            now_s = time.monotonic()
            left_s = due_s - now_s
            if left_s <= 0:
                self.max_late_ms = max(self.max_late_ms, -left_s * 1e3)
                self._publish_clock(stamp_ns, force=True)
                return True
            self._publish_clock(self._start_ns + int((now_s - self._wall_start_s) * self._rate * 1e9))
            time.sleep(min(left_s, _SLICE_S))
        return False

    def _publish_clock(self, stamp_ns: int, force: bool = False) -> None:
        now_s = time.monotonic()
        if self._publisher is None or (not force and now_s - self._last_clock_s < self._clock_period_s):
            return
        self._last_clock_s = now_s
        self._publisher.publish(Clock(clock=ns_to_stamp(stamp_ns)))


@dataclass
class PlaybackReport:
    """What was sent; written as JSON for the process that started the player."""

    source: str
    frames_sent: int = 0
    messages: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    wall_s: float = 0.0
    max_late_ms: float = 0.0
    complete: bool = False
    acknowledged: bool = True

    def write(self, path: Path | None) -> None:
        """Replace the file ``path`` in one step; nothing for None."""
        if path is None:
            return
        data = {
            **vars(self),
            "messages": dict(sorted(self.messages.items())),
            "wall_s": round(self.wall_s, 3),
            "max_late_ms": round(self.max_late_ms, 3),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, data, indent=2)


class Player:
    """Plays one source through one node.

    Args:
        node: publishes.
        source: name of the recording in the report.
        start_ns: recorded stamp of the start.
        rate: recorded seconds per wall second.
        clock: whether to publish /clock.
    """

    def __init__(self, node: Node, source: str, start_ns: int, rate: float, clock: bool) -> None:
        self._node = node
        self.report = PlaybackReport(source=source)
        self._pacer = Pacer(node if clock else None, start_ns, rate)

    def _play(
        self,
        messages: Iterable[tuple[int | None, Callable[[], None]]],
        awaited: Mapping[str, Any] | None,
        publishers: Iterable[Any],
        timeout_s: float,
        max_frames: int,
        wanted: Callable[[], set[str] | None] | None = None,
    ) -> None:
        """Wait for subscribers of ``awaited`` (None = do not wait; ``wanted``: see :func:`wait_for_subscribers`), then
        play to the end, to ``max_frames`` (0 = all), or until ROS is shut down. Each message is a stamp (None = at
        once) and a function that sends it."""
        if awaited is not None:
            state = PerceptionState(self._node)
            try:
                if not wait_for_subscribers(awaited, timeout_s, self._pacer.hold, state.get, wanted):
                    return
            finally:
                state.close()
        started_s = time.monotonic()
        self._pacer.start()
        for stamp_ns, send in messages:
            if stamp_ns is not None and not self._pacer.wait_until(stamp_ns):
                break
            send()
            if self.report.frames_sent == max_frames > 0:
                self.report.complete = True
                break
        else:
            self.report.complete = True
        self.report.wall_s = time.monotonic() - started_s
        if rclpy.ok():
            self.report.acknowledged = flush(publishers)
        self.report.max_late_ms = self._pacer.max_late_ms


# --------------------------------------------------------------------------------------------------------------------
# command line


PlayerT = TypeVar("PlayerT", bound=Player)


def player_parser(prog: str, description: str, source: str) -> argparse.ArgumentParser:
    """Parser with the options of every player; ``source`` names the recording in the usage line."""
    parser = argparse.ArgumentParser(prog=prog, description=description.partition("\n")[0])
    parser.add_argument("source", type=Path, metavar=source)
    parser.add_argument("--rate", type=float, default=1.0, help="recorded seconds per second")
    parser.add_argument("--clock", action="store_true", help="publish /clock (the node needs use_sim_time)")
    parser.add_argument("--max-frames", type=int, default=0, help="number of frames to play; 0 = all")
    parser.add_argument(
        "--timeout", type=float, default=30.0, help="seconds to wait for subscribers while no node is configuring"
    )
    parser.add_argument("--report", type=Path, help="JSON file for the report")
    return parser


def _shut_down_after(signals: list[int]) -> None:
    while not signals:
        time.sleep(_SLICE_S)
    rclpy.try_shutdown()


def run_player(
    parser: argparse.ArgumentParser,
    opened: Callable[[Node, argparse.Namespace], AbstractContextManager[PlayerT]],
    play: Callable[[PlayerT, argparse.Namespace], None],
    arguments: Sequence[str] | None = None,
    bad_source: tuple[type[Exception], ...] = (ValueError, OSError),
) -> int:
    """A player's ``main``: run a node while it plays, and always write the report.

    Args:
        parser: from :func:`player_parser`, with the player's own options.
        opened: opens the source and yields the player.
        play: plays it.
        arguments: without the program's name; None = of this process.
        bad_source: exceptions of ``opened`` and ``play`` for a source that cannot be played.

    Returns the exit code: 0 played to the end, 2 ROS cannot start, 3 no subscriber, 4 bad source, 130 interrupted.
    """
    arguments = list(sys.argv if arguments is None else [sys.argv[0], *arguments])
    options = parser.parse_args(rclpy.utilities.remove_ros_args(arguments)[1:])
    # Ctrl-C, also repeated (a terminal and ros2 launch both send it), ends ROS, and with it the player. The handler
    # only sets a flag: it may interrupt itself, and a shutdown would then wait for its own lock.
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    threading.Thread(target=_shut_down_after, args=(signals,), name="signals", daemon=True).start()
    try:
        start_ros(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    except RosStartError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    node = rclpy.create_node(parser.prog, start_parameter_services=False)
    complete = False
    try:
        with opened(node, options) as player:
            try:
                play(player, options)
            finally:
                player.report.write(options.report)
                complete = player.report.complete
    except NoSubscriberError as error:
        node.get_logger().error(str(error))
        return EXIT_NO_SUBSCRIBER
    except bad_source as error:
        node.get_logger().error(f"{options.source}: {error}")
        return EXIT_BAD_SOURCE
    except (RuntimeError, ExternalShutdownException):  # rclpy's errors are RuntimeErrors
        # Ctrl-C may shut ROS down just before a message is published
        if rclpy.ok():
            raise
    finally:
        node.destroy_node()
        rclpy.try_shutdown()
    return 0 if complete else EXIT_INTERRUPTED
