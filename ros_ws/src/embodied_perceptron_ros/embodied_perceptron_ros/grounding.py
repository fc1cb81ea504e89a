"""The node's ways to ask: the topic ``grounding_query`` and the action ``~/ground``, and the topics of the answers."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from typing import Any

import numpy as np
from embodied_perceptron_msgs.action import Ground
from embodied_perceptron_msgs.msg import GroundingResult
from numpy.typing import NDArray
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.lifecycle import LifecycleNode
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import Grounding
from embodied_perceptron.trajectory import Found
from embodied_perceptron_ros.fusion_worker import FusedFrame
from embodied_perceptron_ros.health import Health
from embodied_perceptron_ros.object_messages import MarkerKey, grounding_markers, grounding_to_message
from embodied_perceptron_ros.outputs import find_output_pose
from embodied_perceptron_ros.parameters import NodeParameters
from embodied_perceptron_ros.queries import Answer, Query, QueryError, QueryWorker, invalid, parse_query
from embodied_perceptron_ros.services import await_in_executor
from embodied_perceptron_ros.transforms import TransformSource

_QUEUE_DEPTH = 1000  # a burst of queries must reach the node before the node can refuse it in words


class ViewpointError(LookupError):
    """The frame that the asker looks from has no place in the map."""


def _burst_qos() -> QoSProfile:
    return QoSProfile(depth=_QUEUE_DEPTH, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE)


def _qos_overrides() -> QoSOverridingOptions:
    return QoSOverridingOptions.with_default_policies()


class GroundingInterface:
    """Queries in, answers out. Publishers and the action live from configure to cleanup, so that goals that were
    waiting at deactivation still get their answer; queries are taken from :meth:`open` to :meth:`close`.
    """

    def __init__(
        self,
        node: LifecycleNode,
        perceptron: Perceptron,
        transforms: TransformSource,
        health: Health,
        parameters: Callable[[], NodeParameters],
        newest: Callable[[], FusedFrame | None],
    ) -> None:
        self._node = node
        self._perceptron = perceptron
        self._transforms = transforms
        self._health = health
        self._parameters = parameters
        self._newest = newest
        self._publish_lock = threading.Lock()  # answers come from the query thread and, when refused, from callbacks
        self._shown: set[MarkerKey] = set()
        self._worker: QueryWorker | None = None
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
            cancel_callback=lambda _: CancelResponse.ACCEPT,
            callback_group=ReentrantCallbackGroup(),
        )

    def open(self) -> None:
        """Begin to take queries."""
        parameters = self._parameters()
        self._worker = QueryWorker(
            self._ask,
            self._publish_answer,
            self._health,
            self._node.get_logger(),
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
        self._node.destroy_publisher(self._results)
        self._node.destroy_publisher(self._markers)

    def map_changed(self) -> None:
        """Standing queries are asked again."""
        if self._worker is not None:
            self._worker.map_changed()

    @property
    def status(self) -> dict[str, int]:
        """Counts for diagnostics."""
        return {} if self._worker is None else self._worker.status

    # ---- asking

    def _ask(self, query: Query) -> Grounding:
        parameters = self._parameters()
        frame_id = query.frame_id or parameters.output_frame
        pose = find_output_pose(self._transforms, parameters.fusion_frame, frame_id, self._stamp_ns())
        if isinstance(pose, str):
            return invalid(query, f"the answer cannot be given in {frame_id!r}: {pose}")
        try:
            viewpoint = self._viewpoint(parameters)
        except ViewpointError as error:
            return invalid(query, str(error))
        return self._perceptron.ground(query.text, viewpoint)

    def _viewpoint(self, parameters: NodeParameters) -> NDArray[np.float64] | None:
        newest = self._newest()
        if parameters.viewpoint_frame:
            answer = self._transforms.lookup_latest(parameters.fusion_frame, parameters.viewpoint_frame)
            if not isinstance(answer, Found):
                raise ViewpointError(f"the viewpoint {parameters.viewpoint_frame!r} is not known: {answer}")
            return answer.T
        return None if newest is None else newest.posed.T_world_camera

    def _stamp_ns(self) -> int:
        newest = self._newest()
        return 0 if newest is None else newest.posed.frame.stamp_ns

    # ---- answering

    def _message(self, answer: Answer) -> tuple[GroundingResult, MarkerArray]:
        parameters, query, stamp_ns = self._parameters(), answer.query, self._stamp_ns()
        frame_id = query.frame_id or parameters.output_frame
        pose = find_output_pose(self._transforms, parameters.fusion_frame, frame_id, stamp_ns)
        grounding = answer.grounding
        if isinstance(pose, str):
            if grounding.candidates:  # the transform went away between asking and answering
                grounding = dataclasses.replace(invalid(query, pose), latency_ms=grounding.latency_ms)
            frame_id, T = parameters.fusion_frame, None
        else:
            frame_id, T = pose.frame_id, pose.T_out_world
        top_k = query.top_k or parameters.default_top_k
        message = grounding_to_message(grounding, query.id, query.standing, stamp_ns, frame_id, T, top_k)
        markers, self._shown = grounding_markers(grounding, self._shown, stamp_ns, frame_id, T)
        return message, markers

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
        try:
            query = parse_query(message.data)
        except QueryError as error:
            worker.refuse(Query(error.query_id, error.text), str(error), self._publish_answer)
            return
        worker.submit(query, self._publish_answer)

    # ---- the action

    async def _execute_goal(self, goal: Any) -> Ground.Result:
        request = goal.request
        query = Query(bytes(goal.goal_id.uuid).hex(), request.text, request.top_k, frame_id=request.frame_id)
        done: ThreadFuture[GroundingResult] = ThreadFuture()

        def deliver(answer: Answer) -> None:
            with self._publish_lock:
                message, markers = self._message(answer)
                self._markers.publish(markers)
            done.set_result(message)

        goal.publish_feedback(Ground.Feedback(stage="waiting"))
        worker = self._worker
        if worker is None:  # deactivated between accepting and executing
            deliver(Answer(query, invalid(query, "the node was deactivated before it could answer")))
        else:
            worker.submit(query, deliver)
        goal.publish_feedback(Ground.Feedback(stage="answering"))
        await await_in_executor(self._node, done)
        result = done.result()
        if goal.is_cancel_requested:
            goal.canceled()
        elif result.status == GroundingResult.INVALID:
            goal.abort()
        else:
            goal.succeed()
        return Ground.Result(result=result)
