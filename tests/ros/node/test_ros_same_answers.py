"""Topic, service, action, `replay --query` and `ground --scenes` give one answer about the same objects."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("embodied_perceptron_msgs.msg")

import rclpy
from action_msgs.msg import GoalStatus
from embodied_perceptron_msgs.action import Ground
from embodied_perceptron_msgs.msg import GroundingResult
from embodied_perceptron_msgs.srv import Ask
from rclpy.action import ActionClient
from rclpy.action.server import GoalEvent, ServerGoalHandle
from rclpy.context import Context
from rclpy.executors import MultiThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import String
from support.language_scenes import living_room
from support.ros_live import Peer, own_domain, wait_until

from embodied_perceptron.apps.replay import ReplayResult
from embodied_perceptron.config import NetworkOptions, PerceptronConfig
from embodied_perceptron.language.scene_file import answer_file
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import EventKind
from embodied_perceptron.scene.live_map import PublishedScene
from embodied_perceptron_ros.conversion.objects import message_to_grounding
from embodied_perceptron_ros.node.health import Health, ThrottledLog
from embodied_perceptron_ros.node.queries import GroundingInterface
from embodied_perceptron_ros.node.threads import Watchdog

pytestmark = pytest.mark.ros
SENTENCES = (
    "the couch",
    "the chair",
    "the book on the table",
    "the lamp next to the couch",
    "the piano",
    "how many chairs are there?",
    "what is on the table?",
    "the chairs other than the one closest to the lamp",
    "the chair under the picture",
    "die lampe neben dem sofa",
    "the leg of the table",
    "the shelf taller than a metre",
)


def perceptron_with_names() -> Perceptron:
    perceptron = Perceptron(PerceptronConfig(network=NetworkOptions(weights="")))
    perceptron.map.published = PublishedScene(tuple(living_room()))
    return perceptron


def from_a_file() -> list[tuple]:
    """Status, objects and count of `ground --scenes`."""
    objects = living_room()
    detections = [
        {"category": o.label, "center": o.box[:3].tolist(), "size": o.box[3:6].tolist(), "score": o.score}
        for o in objects
    ]
    for detection, o in zip(detections, objects, strict=True):
        if o.box[6]:
            c, s = abs(np.cos(o.box[6])), abs(np.sin(o.box[6]))
            detection["size"][:2] = [c * o.box[3] + s * o.box[4], s * o.box[3] + c * o.box[4]]
    queries = [{"scene": "room", "text": text} for text in SENTENCES]
    answers = answer_file({"scenes": {"room": {"detections": detections}}, "queries": queries})["answers"]
    places = {tuple(d["center"]): o.id for d, o in zip(detections, objects, strict=True)}
    return [(a["status"], [places[tuple(b["center"])] for b in a["boxes"]], a["count"]) for a in answers]


def told(message: GroundingResult) -> tuple:
    answer = message_to_grounding(message)
    return answer.status.name, [o.id for o in answer.candidates or answer.nearest], answer.count


class Asker:
    """An interface over a perceptron in this process, and somebody who asks it over ROS."""

    def __init__(self, domain: int) -> None:
        self.context = Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = Node("perception", context=self.context)
        parameters = SimpleNamespace(
            default_top_k=None, fusion_frame="odom", output_frame="odom", viewpoint_frame="", query_queue_size=100,
            max_standing_queries=2, max_queries_hz=1000.0, robot_radius_m=0.25,
        )  # fmt: skip
        self.watchdog = Watchdog(Health("test"), ThrottledLog(self.node.get_logger()))
        self.interface = GroundingInterface(
            self.node, perceptron_with_names(), SimpleNamespace(), lambda: parameters, lambda name: "",
            self.watchdog,
        )  # fmt: skip
        self.events = []
        self.interface.open(lambda event, pose: self.events.append((event, pose.frame_id)))
        self.executor = MultiThreadedExecutor(2, context=self.context)
        self.executor.add_node(self.node)
        self.thread = threading.Thread(target=self.executor.spin, daemon=True)
        self.thread.start()
        self.peer = Peer(domain)

    def close(self) -> None:
        self.peer.close()
        self.executor.shutdown()
        self.thread.join(60)
        self.interface.destroy()
        self.watchdog.stop()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture(scope="module")
def asker():
    with own_domain() as domain:
        running = Asker(domain)
        yield running
        running.close()


def over_topic(peer: Peer) -> list[tuple]:
    answers = peer.listen("/perception/grounding", GroundingResult)
    for number, text in enumerate(SENTENCES):
        peer.publish("/grounding_query", String(data=json.dumps({"id": str(number), "text": text})))
        wait_until(lambda number=number: any(a.id == str(number) for a in answers), 20, text)
    by_id = {a.id: a for a in answers}
    return [told(by_id[str(number)]) for number in range(len(SENTENCES))]


def over_service(peer: Peer) -> list[tuple]:
    return [told(peer.call("/perception/ask", Ask, Ask.Request(text=text)).result) for text in SENTENCES]


def over_action(peer: Peer) -> list[tuple]:
    client = ActionClient(peer.node, Ground, "/perception/ground")
    assert client.wait_for_server(timeout_sec=60)
    found = []
    for text in SENTENCES:
        goal = client.send_goal_async(Ground.Goal(text=text))
        wait_until(goal.done)
        result = goal.result().get_result_async()
        wait_until(result.done)
        found.append(told(result.result().result.result))
    client.destroy()
    return found


def of_a_replay() -> list[tuple]:
    ended = SimpleNamespace(source=None)  # no frame: the speaker stands nowhere, as in the file
    nothing = np.zeros(0)
    result = ReplayResult(perceptron_with_names(), ended, np.zeros((0, 3)), 0, 0, {}, nothing, nothing)
    answers = result.ask(SENTENCES)
    return [(a.status.name, [o.id for o in a.candidates or a.nearest], a.count) for a in answers]


def test_a_replay_answers_as_a_file_of_scenes() -> None:
    expected = from_a_file()
    assert {status for status, *_ in expected} == {"FOUND", "NOT_FOUND", "AMBIGUOUS", "INVALID"}
    assert of_a_replay() == expected


@pytest.mark.parametrize("way", [over_topic, over_service, over_action])
def test_every_way_over_ros_answers_as_a_file_of_scenes(asker, way) -> None:
    assert way(asker.peer) == from_a_file()


@pytest.mark.parametrize(("text", "fires"), [("the couch", True), ("the piano", False)])
def test_a_standing_sentence_that_is_found_is_an_event(asker, text, fires) -> None:
    asker.events.clear()
    answers = asker.peer.listen("/perception/grounding", GroundingResult)
    asker.peer.publish("/grounding_query", String(data=json.dumps({"id": text, "text": text, "standing": True})))
    asker.peer.publish("/grounding_query", String(data=json.dumps({"id": "once", "text": "the couch"})))
    wait_until(lambda: {a.id for a in answers} >= {text, "once"}, 60, "both answers")
    couch = next(o for o in living_room() if o.label == "couch")
    expected = [(EventKind.SENTENCE, couch.id, text, "odom")] if fires else []
    assert [(e.kind, e.id, e.reason, frame) for e, frame in asker.events] == expected


@pytest.mark.parametrize("late_s", [0.0, 0.3])
def test_a_cancelled_goal_ends_as_cancelled_at_once(asker, monkeypatch, late_s) -> None:
    """Whatever its answer is still waiting for, and however late the other thread sets the goal's state; the next goal
    is answered."""
    update = ServerGoalHandle._update_state

    def updated(self, event):
        time.sleep(late_s if event == GoalEvent.CANCEL_GOAL else 0.0)
        update(self, event)

    monkeypatch.setattr(ServerGoalHandle, "_update_state", updated)
    free = threading.Event()
    whole = asker.interface._worker._ask
    monkeypatch.setattr(asker.interface._worker, "_ask", lambda query: free.wait(60) and whole(query))
    client = ActionClient(asker.peer.node, Ground, "/perception/ground")
    assert client.wait_for_server(timeout_sec=60)
    try:
        goals = [client.send_goal_async(Ground.Goal(text="the chair")) for _ in range(3)]
        wait_until(lambda: all(goal.done() for goal in goals))
        results = [goal.result().get_result_async() for goal in goals]
        for goal in goals[:2]:  # the first is being answered, the second waits
            cancel = goal.result().cancel_goal_async()
            wait_until(cancel.done)
            assert len(cancel.result().goals_canceling) == 1
        wait_until(lambda: all(result.done() for result in results[:2]), 60, "ended before they are answered")
        assert [result.result().status for result in results[:2]] == [GoalStatus.STATUS_CANCELED] * 2
        assert not results[2].done()
        free.set()
        wait_until(results[2].done)
        assert results[2].result().status == GoalStatus.STATUS_SUCCEEDED
        assert asker.interface._watchdog.health.counted("internal_errors") == 0
    finally:
        free.set()
        client.destroy()
