"""Questions about the map: topic ``grounding_query``, action ``~/ground``, service ``~/ask``; one thread answers.

Every query gets exactly one terminal answer: FOUND, NOT_FOUND, AMBIGUOUS or INVALID. A standing query is answered at
once, and again whenever a change of the map changes the answer.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from embodied_perceptron_msgs.action import Ground
from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import Ask
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.lifecycle import LifecycleNode
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from embodied_perceptron.geometry.transforms import F64, invert_transform
from embodied_perceptron.language.query import Query, printable_query
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import EventKind, Grounding, GroundingStatus, ObjectEvent
from embodied_perceptron.scene.live_map import PublishedScene
from embodied_perceptron.scene.navigation import floor_distance
from embodied_perceptron.sensors.poses import Found, TooEarly, seconds_to_ns
from embodied_perceptron_ros.conversion.objects import MarkerKey, grounding_markers, grounding_to_message
from embodied_perceptron_ros.conversion.values import stamp_to_ns
from embodied_perceptron_ros.node.health import ERROR, RateLimit, ThrottledLog
from embodied_perceptron_ros.node.outputs import OutputPose, find_output_pose
from embodied_perceptron_ros.node.parameters import NodeParameters
from embodied_perceptron_ros.node.qos import qos_overrides, reliable_qos
from embodied_perceptron_ros.node.threads import (
    ANSWER_LIMIT_S,
    STOP_LIMIT_S,
    TookTooLongError,
    Watchdog,
    await_in_executor,
)
from embodied_perceptron_ros.node.transforms import TransformSource

MAX_MESSAGE_CHARACTERS = 8_192  # of the JSON form; longer messages are refused unread
MAX_ID_CHARACTERS = 128
_FIELDS: dict[str, type] = {
    **{"id": str, "text": str, "top_k": int, "standing": bool, "cancel": bool},
    **{"frame_id": str, "frame": str, "stamp": float},
}
_MOVED_M = 0.5  # a standing query is answered again when its object has moved further
_LATEST_STAMP_S = 2**31  # of builtin_interfaces/Time
_BURST = 1000  # queries at once that the rate limit allows
_QUEUE_DEPTH = 1000  # a burst of queries must reach the node, which then refuses them with a reason
_INACTIVE = "the node is not active"


# --------------------------------------------------------------------------------------------------------------------
# reading


class QueryError(ValueError):
    """A query that cannot be read, with its id and text as far as they are known."""

    def __init__(self, reason: str, query_id: str = "", text: str = "") -> None:
        super().__init__(reason)
        self.query_id = query_id
        self.text = text


def parse_query(data: str) -> Query:
    """Parse a ``grounding_query`` message: plain text, or a JSON object ``{id, text, top_k, standing, frame_id, stamp,
    cancel}`` with ``stamp`` in seconds.

    Raises :class:`QueryError` for bad JSON, unknown or mistyped fields, and messages that are too long.
    """
    if len(data) > MAX_MESSAGE_CHARACTERS:
        raise QueryError(
            f"the query has {len(data)} characters, at most {MAX_MESSAGE_CHARACTERS} are read",
            text=printable_query(data[: 2 * MAX_ID_CHARACTERS]),
        )
    if not data.lstrip().startswith("{"):
        return Query(data)
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise QueryError(f"the query starts like JSON but is not: {error}", text=printable_query(data)) from None
    return _query_from_fields(fields)


def _query_from_fields(fields: dict[str, Any]) -> Query:
    query_id = fields.get("id", "")
    query_id = query_id if isinstance(query_id, str) else str(query_id)
    text = fields.get("text", "")
    known = {"query_id": printable_query(query_id)[:MAX_ID_CHARACTERS], "text": printable_query(text)}
    for name, value in fields.items():
        if name not in _FIELDS:
            raise QueryError(f"the query has the unknown field {printable_query(name)!r}", **known)
        kind = _FIELDS[name]
        if type(value) is not kind and not (name in ("id", "stamp") and type(value) is int):
            raise QueryError(f"the query's field {name!r} must be {kind.__name__}, got {value!r:.80}", **known)
    if len(query_id) > MAX_ID_CHARACTERS or not printable_query(query_id) == query_id.strip():
        raise QueryError(f"the query's id must have at most {MAX_ID_CHARACTERS} printable characters", **known)
    cancel = fields.get("cancel", False)
    if "text" not in fields and not cancel:
        raise QueryError("the query has no field 'text'", **known)
    if cancel and not query_id:
        raise QueryError("a cancellation needs the id of a standing query", **known)
    top_k = fields.get("top_k", 0)
    if not 0 <= top_k <= 1000:
        raise QueryError(f"the query's top_k must be in [0, 1000], got {top_k}", **known)
    stamp_s = fields.get("stamp", 0)
    if not 0 <= stamp_s < _LATEST_STAMP_S:
        raise QueryError(f"the query's stamp must be in [0, {_LATEST_STAMP_S}) seconds, got {stamp_s}", **known)
    frame_id = fields.get("frame_id", fields.get("frame", ""))
    standing = fields.get("standing", False)
    return Query(text, top_k or None, None, frame_id, query_id, standing, cancel, seconds_to_ns(stamp_s))


# --------------------------------------------------------------------------------------------------------------------
# answering


@dataclass(frozen=True, eq=False)
class Answer:
    """A query and its result."""

    query: Query
    grounding: Grounding
    pose: OutputPose | None = None  # frame of the answer; None = the query was refused before it was known


Deliver = Callable[[Answer], None]
Begin = Callable[[], None]


class QueryWorker:
    """Answers queries in the thread ``queries``; all methods are thread-safe.

    Args:
        ask: answers a query, in the worker's thread. If it raises, the answer is INVALID.
        deliver_standing: receives the later answers of standing queries.
        watchdog: limits each answer; its health receives the counts.
    """

    def __init__(
        self,
        ask: Callable[[Query], Answer],
        deliver_standing: Deliver,
        logger: Any,
        watchdog: Watchdog,
        *,
        queue_size: int,
        max_standing: int,
    ) -> None:
        self._ask = ask
        self._deliver_standing = deliver_standing
        self._health = watchdog.health
        self._logger = logger
        self._watchdog = watchdog
        self._queue_size = queue_size
        self._max_standing = max_standing
        self._queue: deque[tuple[Query, Deliver, Begin]] = deque()
        self._standing: OrderedDict[str, Answer] = OrderedDict()
        self._condition = threading.Condition()
        self._map_changed = False
        self._stopping = False
        self._made_ids = 0
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="queries", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, reason: str) -> None:
        """End; answer the waiting queries INVALID with ``reason``."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(STOP_LIMIT_S)
        with self._condition:
            waiting = list(self._queue)
            self._queue.clear()
            self._standing.clear()
        for query, deliver, _ in waiting:
            self._finish(Answer(query, invalid(query, reason)), deliver)

    @property
    def status(self) -> dict[str, int]:
        """Counts for diagnostics."""
        with self._condition:
            return {"waiting": len(self._queue), "standing": len(self._standing)}

    @property
    def standing(self) -> list[Grounding]:
        """The last answers of the standing queries."""
        with self._condition:
            return [answer.grounding for answer in self._standing.values()]

    def map_changed(self) -> None:
        """Ask the standing queries again."""
        with self._condition:
            if self._standing:
                self._map_changed = True
                self._condition.notify()

    def move_viewpoints(self, motion: F64) -> None:
        """Move the viewpoints of standing queries by ``motion`` (4, 4), as the map was moved."""
        with self._condition:
            for query_id, answer in self._standing.items():
                if answer.query.viewpoint is not None:
                    query = dataclasses.replace(answer.query, viewpoint=motion @ answer.query.viewpoint)
                    self._standing[query_id] = dataclasses.replace(answer, query=query)

    def submit(self, query: Query, deliver: Deliver, begin: Begin = lambda: None) -> Query:
        """Queue a query; ``deliver`` receives its terminal answer exactly once, perhaps before this returns.

        ``begin`` is called when the query is taken from the queue; it must not raise.
        """
        self._health.count("queries_received")
        problem, query = "", self._with_id(query)
        with self._condition:
            if self._stopping:
                problem = "the node does not answer queries now"
            elif len(self._queue) >= self._queue_size:
                problem = f"too many queries wait (more than {self._queue_size})"
            else:
                self._queue.append((query, deliver, begin))
                self._condition.notify()
        if problem:
            self._health.count("queries_refused")
            self._finish(Answer(query, invalid(query, problem)), deliver)
        return query

    def refuse(self, query: Query, reason: str, deliver: Deliver) -> None:
        """Answer an unreadable query INVALID at once."""
        self._health.count("queries_received")
        self._finish(Answer(self._with_id(query), invalid(query, reason)), deliver)

    def _with_id(self, query: Query) -> Query:
        if query.id:
            return query
        with self._condition:
            self._made_ids += 1
            return dataclasses.replace(query, id=f"query-{self._made_ids}")

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._queue or self._map_changed or self._stopping or self._is_replaced):
                    self._condition.wait()
                if self._stopping or self._is_replaced:
                    return
                job = self._queue.popleft() if self._queue else None
                if job is None:
                    self._map_changed = False
            try:
                if job is not None:
                    self._answer_in_time(*job)
                else:
                    self._answer_standing()
            except TookTooLongError:  # the query was answered, and another thread has taken over
                return

    @property
    def _is_replaced(self) -> bool:
        return threading.current_thread() is not self._thread

    def _replace_thread(self) -> None:
        """Let a new thread answer the waiting queries: the current one may come back late, or never."""
        with self._condition:
            if not self._stopping:
                self._thread = self._new_thread()
                self._thread.start()

    def _answer_in_time(self, query: Query, deliver: Deliver, begin: Begin) -> None:
        """Deliver either the answer or, when it takes too long, an INVALID one."""
        once, delivered = threading.Lock(), threading.Event()

        def deliver_once(answer: Answer) -> None:
            if once.acquire(blocking=False):
                deliver(answer)
                delivered.set()

        def give_up(message: str) -> None:
            self._replace_thread()
            if once.acquire(blocking=False):
                self._finish(Answer(query, invalid(query, message)), deliver)
                delivered.set()

        watch = self._watchdog.watch("the answer", ANSWER_LIMIT_S, f" to {query.text[:80]!r}", give_up)
        try:
            with watch:
                self._answer(query, deliver_once, begin)
        except TookTooLongError:
            if once.locked() and not delivered.wait(STOP_LIMIT_S):  # its delivery is what takes too long
                self._finish(Answer(query, invalid(query, watch.message)), deliver)
            raise

    def _answer(self, query: Query, deliver: Deliver, begin: Begin) -> None:
        begin()
        if query.cancel:
            with self._condition:
                known = self._standing.pop(query.id, None)
            reason = "cancelled" if known else f"no standing query has the id {query.id!r}"
            self._finish(Answer(query, invalid(query, reason)), deliver)
            return
        with self._condition:
            others = [key for key in self._standing if key != query.id]
        if query.standing and len(others) >= self._max_standing:
            reason = f"too many standing queries ({self._max_standing}): cancel one first"
            self._finish(Answer(query, invalid(query, reason)), deliver)
            return
        answer = self._safely_ask(query)
        # a query that cannot be understood now never will be: it does not become a standing query
        if query.standing and answer.grounding.status != GroundingStatus.INVALID:
            with self._condition:
                if self._is_replaced:
                    return
                self._standing[query.id] = answer
        elif query.standing:
            answer = dataclasses.replace(answer, query=dataclasses.replace(query, standing=False))
        self._finish(answer, deliver)

    def _answer_standing(self) -> None:
        with self._condition:
            standing = list(self._standing.values())
        for earlier in standing:
            query = dataclasses.replace(earlier.query, arrived_s=time.monotonic())
            with self._watchdog.watch(
                "the answer", ANSWER_LIMIT_S, f" to {query.text[:80]!r}", partial(self._end_standing, query)
            ):
                answer = self._safely_ask(query)
            with self._condition:
                if self._is_replaced:
                    return
                if query.id not in self._standing or self._stopping:
                    continue
                # a correction may have moved the viewpoint meanwhile
                query = dataclasses.replace(query, viewpoint=self._standing[query.id].query.viewpoint)
                self._standing[query.id] = dataclasses.replace(answer, query=query)
            if answer_key(answer.grounding) != answer_key(earlier.grounding) or has_moved(earlier, answer):
                self._finish(answer, self._deliver_standing)

    def _end_standing(self, query: Query, message: str) -> None:
        """Remove a standing query that takes too long: it would do so again."""
        with self._condition:
            self._standing.pop(query.id, None)
            self._map_changed = bool(self._standing)  # ask the others again
        self._replace_thread()
        query = dataclasses.replace(query, standing=False)
        self._finish(Answer(query, invalid(query, message)), self._deliver_standing)

    def _safely_ask(self, query: Query) -> Answer:
        try:
            return self._ask(query)
        except Exception as error:  # every query must be answered
            self._health.count("internal_errors")
            self._health.problem("queries", ERROR, f"internal error: {error!r}", hold_s=30.0)
            self._logger.error(f"query {query.id!r} failed:\n{traceback.format_exc()}")
            return Answer(query, invalid(query, f"internal error: {type(error).__name__}: {error}"))

    def _finish(self, answer: Answer, deliver: Deliver) -> None:
        grounding = answer.grounding
        self._health.latency("query", grounding.latency_ms)
        self._health.count(f"queries_{grounding.status.name.lower()}")
        try:
            deliver(answer)
        except Exception:  # a failed delivery must not stop other answers
            self._health.count("internal_errors")
            self._logger.error(f"answer to {answer.query.id!r} could not be delivered:\n{traceback.format_exc()}")


def invalid(query: Query, reason: str) -> Grounding:
    """The INVALID answer to ``query``."""
    return query.answer(GroundingStatus.INVALID, reason=reason)


def answer_key(grounding: Grounding) -> tuple[Any, ...]:
    """The parts of an answer whose change makes it a new answer: status and object, or set of ambiguous objects.

    Scores, exact positions, the order of other candidates and the reason change with every perception.
    """
    if grounding.status == GroundingStatus.AMBIGUOUS:
        return grounding.status, frozenset(c.id for c in grounding.candidates)
    return grounding.status, tuple(c.id for c in grounding.candidates[:1])


def has_moved(before: Answer, now: Answer) -> bool:
    """Return True when the answered object moved far in the frame of the answer: localisation jumped, or a loop was
    closed. Small motion is noise of the map."""
    places = []
    for answer in (before, now):
        if not answer.grounding.candidates or answer.pose is None:
            return False
        center_m, T = answer.grounding.candidates[0].box[:3], answer.pose.T_out_world
        places.append(center_m if T is None else T[:3, :3] @ center_m + T[:3, 3])
    return bool(np.linalg.norm(places[1] - places[0]) > _MOVED_M)


# --------------------------------------------------------------------------------------------------------------------
# the ROS interface


class ViewpointError(LookupError):
    """The viewpoint's frame has no pose in the map."""


def find_viewpoint(transforms: TransformSource, fusion_frame: str, frame_id: str, stamp_ns: int, now_ns: int) -> F64:
    """(4, 4) ``T_fusion_frame`` of ``frame_id`` at ``stamp_ns`` (0 = now).

    For now, and for a stamp that transforms have not reached yet, the newest pose is used. Raises
    :class:`ViewpointError` for a stamp that is too old, and a frame that is not connected.
    """
    answer = transforms.lookup(fusion_frame, frame_id, stamp_ns or now_ns)
    if not isinstance(answer, Found) and (stamp_ns == 0 or isinstance(answer, TooEarly)):
        answer = transforms.lookup_latest(fusion_frame, frame_id)
    if not isinstance(answer, Found):
        raise ViewpointError(f"the viewpoint {frame_id!r} is not known: {answer}")
    return answer.T


def sentence_event(query: Query, grounding: Grounding, stamp_ns: int) -> ObjectEvent:
    """Event of a standing query that is FOUND."""
    best = grounding.candidates[0] if grounding.candidates else None
    id_, score = (0, 1.0) if best is None else (best.id, best.score)
    return ObjectEvent(stamp_ns, EventKind.SENTENCE, id_, None, best, score, query.text)


def _goal_id(goal: Any) -> str:
    return bytes(goal.goal_id.uuid).hex()


class GroundingInterface:
    """The topics, action and service of questions.

    Publishers, action and service exist from configure to cleanup, so that goals that wait at deactivation still get
    an answer; queries are accepted from :meth:`open` to :meth:`close`. Words like "left of" refer to the robot's pose
    at the query's stamp or, without one, at its arrival. A standing query keeps that viewpoint.

    Args:
        camera_frame: optical frame of a camera by its name.
    """

    def __init__(
        self,
        node: LifecycleNode,
        perceptron: Perceptron,
        transforms: TransformSource,
        parameters: Callable[[], NodeParameters],
        camera_frame: Callable[[str], str],
        watchdog: Watchdog,
    ) -> None:
        self._watchdog = watchdog
        self._node = node
        self._perceptron = perceptron
        self._transforms = transforms
        self._parameters = parameters
        self._camera_frame = camera_frame
        self._publish_lock = threading.Lock()  # answers come from the query thread and, when refused, from callbacks
        self._rate = RateLimit(_BURST)
        self._log = ThrottledLog(node.get_logger(), every_s=1.0)
        self._shown: set[MarkerKey] = set()
        self._goals: dict[str, Callable[[], None]] = {}  # id of a waiting goal -> its cancellation; executor's thread
        self._worker: QueryWorker | None = None
        self._on_answer: Callable[[Grounding], None] | None = None
        self._send_event: Callable[[ObjectEvent, OutputPose], None] = lambda _event, _pose: None
        self._subscription: Any = None
        self._results = node.create_publisher(
            GroundingResult, "~/grounding", reliable_qos(_QUEUE_DEPTH), qos_overriding_options=qos_overrides()
        )
        self._markers = node.create_publisher(MarkerArray, "~/grounding_markers", 10)
        self._server = ActionServer(
            node,
            Ground,
            "~/ground",
            self._execute_goal,
            goal_callback=lambda _: GoalResponse.REJECT if self._worker is None else GoalResponse.ACCEPT,
            cancel_callback=self._cancel_goal,
            callback_group=ReentrantCallbackGroup(),
        )
        self._service = node.create_service(Ask, "~/ask", self._serve, callback_group=ReentrantCallbackGroup())

    def open(
        self,
        send_event: Callable[[ObjectEvent, OutputPose], None],
        on_answer: Callable[[Grounding], None] | None = None,
    ) -> None:
        """Accept queries. From any thread, ``send_event`` receives an event whenever the answer of a standing query
        changes to FOUND or to other objects, and ``on_answer`` every answer."""
        parameters = self._parameters()
        self._send_event, self._on_answer = send_event, on_answer
        self._worker = QueryWorker(
            self._ask,
            self._publish_answer,
            self._node.get_logger(),
            self._watchdog,
            queue_size=parameters.query_queue_size,
            max_standing=parameters.max_standing_queries,
        )
        self._worker.start()
        self._subscription = self._node.create_subscription(
            String,
            "grounding_query",
            self._on_query,
            reliable_qos(_QUEUE_DEPTH),
            qos_overriding_options=qos_overrides(),
        )

    def close(self) -> None:
        """Accept no more queries; answer the waiting ones INVALID."""
        if self._worker is not None:
            self._node.destroy_subscription(self._subscription)
            self._worker.stop("the node was deactivated before it could answer")
            self._worker = None

    def destroy(self) -> None:
        """Free everything."""
        self.close()
        self._server.destroy()
        self._node.destroy_service(self._service)
        self._node.destroy_publisher(self._results)
        self._node.destroy_publisher(self._markers)

    def map_changed(self) -> None:
        """Ask the standing queries again."""
        if self._worker is not None:
            self._worker.map_changed()

    def move_viewpoints(self, motion: F64) -> None:
        """Apply a correction of the map, ``motion`` (4, 4), to the viewpoints of standing queries."""
        if self._worker is not None:
            self._worker.move_viewpoints(motion)

    @property
    def status(self) -> dict[str, int]:
        """Counts for diagnostics."""
        return {} if self._worker is None else self._worker.status

    @property
    def standing(self) -> list[Grounding]:
        """The last answers of the standing queries."""
        return [] if self._worker is None else self._worker.standing

    # ---- asking

    def ask(self, text: str) -> Grounding:
        """Ask from this process and wait for the answer; its markers are published."""
        done: ThreadFuture[Grounding] = ThreadFuture()

        def deliver(answer: Answer) -> None:
            with self._publish_lock:
                self._markers.publish(self._message(answer)[1])
            done.set_result(answer.grounding)

        self._submit(Query(text), deliver)
        return done.result()

    def _ask(self, query: Query) -> Answer:
        parameters, scene = self._parameters(), self._perceptron.map.published
        pose = self._pose_of(query, scene)  # taken now, to match the scene
        if isinstance(pose, str):
            frame_id = query.frame_id or parameters.output_frame
            refused = invalid(query, f"the answer cannot be given in {frame_id!r}: {pose}")
            return Answer(query, refused, self._fusion_pose())
        asked = dataclasses.replace(query, top_k=query.top_k or parameters.default_top_k)
        return Answer(query, self._perceptron.ground_many([asked], scene=scene)[0], pose)

    def _pose_of(self, query: Query, scene: PublishedScene) -> OutputPose | str:
        """Frame and pose of an answer about ``scene``, or why there is none."""
        parameters = self._parameters()
        frame_id = query.frame_id or parameters.output_frame
        T_fusion_map = scene.T_world_map
        return find_output_pose(self._transforms, parameters.fusion_frame, frame_id, self._stamp_ns(), T_fusion_map)

    def _fusion_pose(self) -> OutputPose:
        """The fusion frame, for answers without a position."""
        return OutputPose(self._parameters().fusion_frame, self._perceptron.map.published.T_world_map)

    def _viewpoint(self, stamp_ns: int) -> F64 | None:
        """(4, 4) pose of the robot in the map at ``stamp_ns`` (0 = now); None before the first frame."""
        parameters, newest = self._parameters(), self._perceptron.newest_frame
        frame_id = parameters.viewpoint_frame or ("" if newest is None else self._camera_frame(newest.frame.camera))
        if not frame_id:
            return None
        try:
            now_ns = self._node.get_clock().now().nanoseconds
            T = find_viewpoint(self._transforms, parameters.fusion_frame, frame_id, stamp_ns, now_ns)
        except ViewpointError:
            if stamp_ns or newest is None or parameters.viewpoint_frame:
                raise
            T = newest.T_world_camera
        return invert_transform(self._perceptron.map.published.T_world_map) @ T

    def _submit(self, query: Query, deliver: Callable[[Answer], None], begin: Begin = lambda: None) -> None:
        worker = self._worker
        if worker is None:  # deactivated meanwhile
            deliver(Answer(query, invalid(query, _INACTIVE)))
            return
        try:
            query = query if query.cancel else dataclasses.replace(query, viewpoint=self._viewpoint(query.stamp_ns))
        except ViewpointError as error:
            worker.refuse(query, str(error), deliver)
            return
        worker.submit(query, deliver, begin)

    def _within_rate(self) -> bool:
        """Return True if all topics, actions and services together are within ``max_queries_hz``; else count."""
        allowed = self._rate.allows(self._parameters().max_queries_hz)
        if not allowed:
            self._watchdog.health.count("queries_over_rate")
        return allowed

    def _too_fast(self) -> str:
        return f"more than {self._parameters().max_queries_hz:g} queries a second (parameter max_queries_hz)"

    def _stamp_ns(self) -> int:
        newest = self._perceptron.newest_frame
        return 0 if newest is None else newest.frame.stamp_ns

    # ---- answering

    def _message(self, answer: Answer) -> tuple[GroundingResult, MarkerArray]:
        query, grounding, stamp_ns = answer.query, answer.grounding, self._stamp_ns()
        pose = answer.pose or self._pose_of(query, self._perceptron.map.published)
        if isinstance(pose, str):
            pose = self._fusion_pose()
        frame_id, T = pose.frame_id, pose.T_out_world
        approach, distance_m = self._approach(grounding)
        if grounding.status == GroundingStatus.FOUND and grounding.candidates and approach is None:
            if self._perceptron.map.published.grid is None:
                why = "no way to it: there is no grid until the next perception"
            else:
                why = "no way to it: the robot reaches no free place beside it in the grid"
            reason = f"{grounding.reason}; {why}" if grounding.reason else why
            grounding = dataclasses.replace(grounding, reason=reason)
        message = grounding_to_message(
            grounding, query, stamp_ns, frame_id, T, approach=approach, distance_m=distance_m
        )
        markers, self._shown = grounding_markers(grounding, self._shown, stamp_ns, frame_id, T)
        if self._on_answer is not None:
            self._on_answer(grounding)
        return message, markers

    def _approach(self, grounding: Grounding) -> tuple[F64 | None, float]:
        """(4, 4) pose to go to for the found object (None: there is none), and its distance from the robot now."""
        if grounding.status != GroundingStatus.FOUND or not grounding.candidates:
            return None, math.nan
        item = grounding.candidates[0]
        try:
            here = self._viewpoint(0)
        except ViewpointError:
            here = None
        robot_m = None if here is None else here[:2, 3]
        distance_m = math.nan if robot_m is None else float(floor_distance(item.box, robot_m[None])[0])
        return self._perceptron.approach(item, robot_m, self._parameters().robot_radius_m), distance_m

    def _publish_answer(self, answer: Answer) -> None:
        with self._publish_lock:
            message, markers = self._message(answer)
            self._results.publish(message)
            self._markers.publish(markers)
        query, grounding = answer.query, answer.grounding
        if query.standing and grounding.status == GroundingStatus.FOUND and answer.pose is not None:
            self._send_event(sentence_event(query, grounding, self._stamp_ns()), answer.pose)

    # ---- the topic

    def _on_query(self, message: String) -> None:
        worker = self._worker
        if worker is None:  # received just before deactivation
            return
        if not self._within_rate():
            worker.refuse(Query(""), self._too_fast(), self._publish_answer)
            return
        try:
            query = parse_query(message.data)
        except QueryError as error:
            worker.refuse(Query(error.text, id=error.query_id), str(error), self._publish_answer)
            return
        self._submit(query, self._publish_answer)

    # ---- the action and the service

    def _ask_once(self, query: Query, begin: Begin = lambda: None) -> ThreadFuture[GroundingResult]:
        """Answer one caller only; the markers are published."""
        done: ThreadFuture[GroundingResult] = ThreadFuture()

        def deliver(answer: Answer) -> None:
            with self._publish_lock:
                if done.done():  # cancelled
                    return
                message, markers = self._message(answer)
                self._markers.publish(markers)
                done.set_result(message)

        if query.id:
            self._goals[query.id] = lambda: deliver(Answer(query, invalid(query, "cancelled")))
        if self._within_rate():
            self._submit(query, deliver, begin)
        else:
            deliver(Answer(query, invalid(query, self._too_fast())))
        return done

    def _cancel_goal(self, goal: Any) -> CancelResponse:
        """Answer at once; the running computation continues and its result is discarded."""
        self._node.executor.create_task(self._give_up, goal)
        return CancelResponse.ACCEPT

    def _give_up(self, goal: Any) -> None:
        """Answer a goal once its state is "canceling": another thread sets it after :meth:`_cancel_goal`."""
        give_up = self._goals.get(_goal_id(goal))
        if give_up is not None and goal.is_cancel_requested:
            give_up()
        elif give_up is not None:
            self._node.executor.create_task(self._give_up, goal)

    async def _execute_goal(self, goal: Any) -> Ground.Result:
        request = goal.request
        query_id = _goal_id(goal)
        query = Query(request.text, request.top_k or None, frame_id=request.frame_id, id=query_id)
        goal.publish_feedback(Ground.Feedback(stage="waiting"))
        done = self._ask_once(query, lambda: goal.publish_feedback(Ground.Feedback(stage="answering")))
        try:
            await await_in_executor(self._node, done)
        finally:
            self._goals.pop(query_id, None)
        result = done.result()
        if goal.is_cancel_requested:
            goal.canceled()
        elif result.status == GroundingResult.INVALID:
            goal.abort()
        else:
            goal.succeed()
        return Ground.Result(result=result)

    async def _serve(self, request: Ask.Request, response: Ask.Response) -> Ask.Response:
        stamp_ns = stamp_to_ns(request.stamp)
        query = Query(request.text, request.top_k or None, frame_id=request.frame_id, stamp_ns=stamp_ns)
        done = self._ask_once(query)
        await await_in_executor(self._node, done)
        response.result = done.result()
        if response.result.status == GroundingResult.INVALID:
            self._log.warning("ask refused", f"ask refused: {response.result.reason}")
        return response
