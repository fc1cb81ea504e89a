"""The node's ways to ask: topic ``grounding_query``, action ``~/ground``, service ``~/ask``; topics of the answers."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from typing import Any

import numpy as np
from embodied_perceptron_msgs.action import Ground
from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import Ask
from numpy.typing import NDArray
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from embodied_perceptron.geometry.transforms import invert_transform
from embodied_perceptron.language.query import Query
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Grounding, GroundingStatus
from embodied_perceptron.scene.approach import floor_distance
from embodied_perceptron.scene.published_scene import PublishedScene
from embodied_perceptron.sensors.poses import Found, TooEarly
from embodied_perceptron_ros.conversion.objects import MarkerKey, grounding_markers, grounding_to_message
from embodied_perceptron_ros.conversion.values import stamp_to_ns
from embodied_perceptron_ros.node.health import Health
from embodied_perceptron_ros.node.outputs import OutputPose, find_output_pose
from embodied_perceptron_ros.node.parameters import NodeParameters
from embodied_perceptron_ros.node.queries import Answer, Begin, QueryError, QueryWorker, RateLimit, invalid, parse_query
from embodied_perceptron_ros.node.threads import await_in_executor
from embodied_perceptron_ros.node.throttled_log import ThrottledLog
from embodied_perceptron_ros.node.transforms import TransformSource
from embodied_perceptron_ros.node.watchdog import Watchdog

_BURST = 1000  # queries at once that no rate limit refuses
_QUEUE_DEPTH = 1000  # a burst of queries must reach the node before the node can refuse it in words
_INACTIVE = "the node is not active"


class ViewpointError(LookupError):
    """The frame that the asker looks from has no place in the map."""


def find_viewpoint(
    transforms: TransformSource, fusion_frame: str, frame_id: str, stamp_ns: int, now_ns: int
) -> NDArray[np.float64]:
    """(4, 4) ``T_fusion_frame`` of ``frame_id`` at ``stamp_ns`` (0 = now).

    Now, and a stamp that transforms have not reached yet, is where the frame was last: as far as anybody knows it is
    there still. Raises :class:`ViewpointError` for a stamp that is too old, and a frame that is not connected.
    """
    answer = transforms.lookup(fusion_frame, frame_id, stamp_ns or now_ns)
    if not isinstance(answer, Found) and (stamp_ns == 0 or isinstance(answer, TooEarly)):
        answer = transforms.lookup_latest(fusion_frame, frame_id)
    if not isinstance(answer, Found):
        raise ViewpointError(f"the viewpoint {frame_id!r} is not known: {answer}")
    return answer.T


def _goal_id(goal: Any) -> str:
    return bytes(goal.goal_id.uuid).hex()


def _burst_qos() -> QoSProfile:
    return QoSProfile(depth=_QUEUE_DEPTH, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE)


def _qos_overrides() -> QoSOverridingOptions:
    return QoSOverridingOptions.with_default_policies()


class GroundingInterface:
    """Queries in, answers out. Publishers, action and service live from configure to cleanup, so that goals that were
    waiting at deactivation still get their answer; queries are taken from :meth:`open` to :meth:`close`.

    Words like "left of" are seen from where the robot was at the query's stamp: its own where it carries one,
    otherwise that of its arrival. A standing query keeps the place from which it was asked.
    """

    def __init__(
        self,
        node: LifecycleNode,
        perceptron: Perceptron,
        transforms: TransformSource,
        health: Health,
        parameters: Callable[[], NodeParameters],
        camera_frame: Callable[[str], str],
        watchdog: Watchdog,
    ) -> None:
        """``camera_frame``: optical frame of a camera by its name."""
        self._watchdog = watchdog
        self._node = node
        self._perceptron = perceptron
        self._transforms = transforms
        self._health = health
        self._parameters = parameters
        self._camera_frame = camera_frame
        self._publish_lock = threading.Lock()  # answers come from the query thread and, when refused, from callbacks
        self._rate = RateLimit(_BURST)
        self._log = ThrottledLog(node.get_logger(), every_s=1.0)
        self._shown: set[MarkerKey] = set()
        self._goals: dict[str, Callable[[], None]] = {}  # what ends each that waits, by id; of the executor's thread
        self._worker: QueryWorker | None = None
        self._on_answer: Callable[[Grounding], None] | None = None
        self._subscription: Any = None
        self._results = node.create_publisher(
            GroundingResult, "~/grounding", _burst_qos(), qos_overriding_options=_qos_overrides()
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

    def open(self, on_answer: Callable[[Grounding], None] | None = None) -> None:
        """Begin to take queries; ``on_answer`` is told every answer, from any thread."""
        parameters = self._parameters()
        self._on_answer = on_answer
        self._worker = QueryWorker(
            self._ask,
            self._publish_answer,
            self._health,
            self._node.get_logger(),
            self._watchdog,
            queue_size=parameters.query_queue_size,
            max_standing=parameters.max_standing_queries,
        )
        self._worker.start()
        self._subscription = self._node.create_subscription(
            String, "grounding_query", self._on_query, _burst_qos(), qos_overriding_options=_qos_overrides()
        )

    def close(self) -> None:
        """Take no more; what waits is answered INVALID."""
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
        """Standing queries are asked again."""
        if self._worker is not None:
            self._worker.map_changed()

    def move_viewpoints(self, motion: NDArray[np.float64]) -> None:
        """The map was corrected by ``motion`` (4, 4)."""
        if self._worker is not None:
            self._worker.move_viewpoints(motion)

    @property
    def status(self) -> dict[str, int]:
        """Counts for diagnostics."""
        return {} if self._worker is None else self._worker.status

    @property
    def standing(self) -> list[Grounding]:
        """Standing queries with their last answers."""
        return [] if self._worker is None else self._worker.standing

    # ---- asking

    def ask(self, text: str) -> Grounding:
        """The answer to a sentence asked by this very process; waits for it. Its markers are shown to all."""
        done: ThreadFuture[Grounding] = ThreadFuture()

        def deliver(answer: Answer) -> None:
            with self._publish_lock:
                self._markers.publish(self._message(answer)[1])
            done.set_result(answer.grounding)

        self._submit(Query(text), deliver)
        return done.result()

    def _ask(self, query: Query) -> Answer:
        parameters, scene = self._parameters(), self._perceptron.map.published
        pose = self._pose_of(query, scene)  # of the moment that the answer is of
        if isinstance(pose, str):
            frame_id = query.frame_id or parameters.output_frame
            refused = invalid(query, f"the answer cannot be given in {frame_id!r}: {pose}")
            return Answer(query, refused, self._unmoved())
        asked = dataclasses.replace(query, top_k=query.top_k or parameters.default_top_k)
        return Answer(query, self._perceptron.grounder.answer(scene, [asked])[0], pose)

    def _pose_of(self, query: Query, scene: PublishedScene) -> OutputPose | str:
        """Where an answer about a scene goes, or why it cannot go there."""
        parameters = self._parameters()
        frame_id = query.frame_id or parameters.output_frame
        T_fusion_map = scene.T_world_map
        return find_output_pose(self._transforms, parameters.fusion_frame, frame_id, self._stamp_ns(), T_fusion_map)

    def _unmoved(self) -> OutputPose:
        """In the fusion frame: of what names no place, where the frame that was asked for has none."""
        return OutputPose(self._parameters().fusion_frame, self._perceptron.map.published.T_world_map)

    def _viewpoint(self, stamp_ns: int) -> NDArray[np.float64] | None:
        """Where the robot was at ``stamp_ns`` (0 = now), in the map; None before the first frame."""
        T = self._viewpoint_in_fusion_frame(stamp_ns)
        return None if T is None else invert_transform(self._perceptron.map.published.T_world_map) @ T

    def _viewpoint_in_fusion_frame(self, stamp_ns: int) -> NDArray[np.float64] | None:
        parameters, newest = self._parameters(), self._perceptron.newest_frame
        frame_id = parameters.viewpoint_frame or ("" if newest is None else self._camera_frame(newest.frame.camera))
        if not frame_id:
            return None
        try:
            now_ns = self._node.get_clock().now().nanoseconds
            return find_viewpoint(self._transforms, parameters.fusion_frame, frame_id, stamp_ns, now_ns)
        except ViewpointError:
            if stamp_ns or newest is None or parameters.viewpoint_frame:
                raise
            return newest.T_world_camera

    def _submit(self, query: Query, deliver: Callable[[Answer], None], begin: Begin = lambda: None) -> None:
        """Have it answered; from where the robot is now, or was at its stamp."""
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
        """Whether a query more is within ``max_queries_hz``, of all ways to ask together; otherwise it is counted."""
        allowed = self._rate.allows(self._parameters().max_queries_hz)
        if not allowed:
            self._health.count("queries_over_rate")
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
        if isinstance(pose, str):  # of a query that was refused before anybody looked
            pose = self._unmoved()
        frame_id, T = pose.frame_id, pose.T_out_world
        way = self._way_to(grounding)
        if grounding.status == GroundingStatus.FOUND and grounding.candidates and way[0] is None:
            words = self._no_way()
            grounding = dataclasses.replace(
                grounding, reason=f"{grounding.reason}; {words}" if grounding.reason else words
            )
        message = grounding_to_message(grounding, query.id, query.standing, stamp_ns, frame_id, T, *way)
        markers, self._shown = grounding_markers(grounding, self._shown, stamp_ns, frame_id, T)
        if self._on_answer is not None:
            self._on_answer(grounding)
        return message, markers

    def _way_to(self, grounding: Grounding) -> tuple[NDArray[np.float64] | None, float]:
        """Where to go for the object that was found, and how far it is from the robot as it stands now."""
        if grounding.status != GroundingStatus.FOUND or not grounding.candidates:
            return None, math.nan
        thing = grounding.candidates[0]
        try:
            here = self._viewpoint(0)
        except ViewpointError:
            here = None
        robot_m = None if here is None else here[:2, 3]
        distance_m = math.nan if robot_m is None else float(floor_distance(thing.box, robot_m[None])[0])
        return self._perceptron.approach(thing, robot_m, self._parameters().robot_radius_m), distance_m

    def _no_way(self) -> str:
        """Why there is no pose to go to, in words."""
        if self._perceptron.map.published.grid is None:
            return "no way to it: there is no grid until the next perception"
        return "no way to it: the grid has no free place beside it that the robot gets to"

    def _publish_answer(self, answer: Answer) -> None:
        with self._publish_lock:
            message, markers = self._message(answer)
            self._results.publish(message)
            self._markers.publish(markers)

    # ---- the topic

    def _on_query(self, message: String) -> None:
        worker = self._worker
        if worker is None:  # taken from the wire just before deactivation
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
        """The answer for one asker alone; its markers are shown to all."""
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
        """Its asker hears at once; what is being thought about it is thought to the end for nobody."""
        give_up = self._goals.get(_goal_id(goal))
        if give_up is not None:
            give_up()
        return CancelResponse.ACCEPT

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
