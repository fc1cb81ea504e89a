"""Queries: reading them, answering each exactly once, standing ones, refusals. No node is started."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("diagnostic_msgs")

from support.ros_live import wait_until

from embodied_perceptron.language.query import Query
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.results import (
    EventKind,
    Grounding,
    GroundingStatus,
    HistoryEntry,
    OccupancyGrid2d,
    SceneObject,
)
from embodied_perceptron.scene.live_map import PublishedScene
from embodied_perceptron_ros.node.health import Health, ThrottledLog
from embodied_perceptron_ros.node.outputs import OutputPose
from embodied_perceptron_ros.node.queries import (
    MAX_MESSAGE_CHARACTERS,
    Answer,
    GroundingInterface,
    QueryError,
    QueryWorker,
    answer_key,
    invalid,
    parse_query,
)
from embodied_perceptron_ros.node.threads import Watchdog

pytestmark = pytest.mark.ros
BOX = np.array([0, 0, 0, 1, 1, 1, 0, 0, 0.0])


# --------------------------------------------------------------------------------------------------------- reading


def test_plain_text_is_a_query():
    assert parse_query("the red chair") == Query("the red chair")


def test_json_fields():
    data = {"id": "a", "text": "chair", "top_k": 3, "standing": True, "frame_id": "map"}
    assert parse_query(json.dumps(data)) == Query("chair", 3, id="a", standing=True, frame_id="map")
    assert parse_query('{"text": "chair", "frame": "map", "id": 7}') == Query("chair", id="7", frame_id="map")
    assert parse_query('{"id": "a", "cancel": true}').cancel
    assert parse_query('{"text": "chair", "stamp": 12}').stamp_ns == 12_000_000_000
    assert parse_query('{"text": "chair", "stamp": 1.5}').stamp_ns == 1_500_000_000


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ("x" * (MAX_MESSAGE_CHARACTERS + 1), "characters"),
        ('{"text": "chair"', "JSON"),
        ("{" * 5000, "JSON"),
        ('{"txt": "chair"}', "txt"),
        ('{"id": "a"}', "no field 'text'"),
        ('{"text": 5}', "'text' must be str"),
        ('{"text": "a", "top_k": true}', "top_k"),
        ('{"text": "a", "top_k": -1}', "top_k"),
        ('{"text": "a", "top_k": 1e9}', "top_k"),
        ('{"text": "a", "standing": "yes"}', "standing"),
        ('{"cancel": true}', "id"),
        ('{"text": "a", "stamp": "now"}', "stamp"),
        ('{"text": "a", "stamp": -1}', "stamp"),
        ('{"text": "a", "stamp": NaN}', "stamp"),
        ('{"text": "a", "stamp": 1e300}', "stamp"),
        (json.dumps({"text": "a", "id": "i" * 500}), "id"),
        (json.dumps({"text": "a", "id": "a\u0007"}), "id"),
    ],
)
def test_unreadable_queries_are_refused_by_name(data, match):
    with pytest.raises(QueryError, match=match):
        parse_query(data)


def test_a_refusal_knows_whose_query_it_was():
    with pytest.raises(QueryError) as caught:
        parse_query('{"id": "mine", "text": "chair", "colour": 1}')
    assert (caught.value.query_id, caught.value.text) == ("mine", "chair")


def test_a_huge_message_is_not_repeated():
    with pytest.raises(QueryError) as caught:
        parse_query("x" * 10_000_000)
    assert len(caught.value.text) < 1000


@pytest.mark.parametrize(("message", "count"), [("the chair", 3), ('{"text": "the chair", "top_k": 8}', 8)])
def test_as_many_candidates_as_asked_for_reach_the_message(message, count):
    chairs = (SceneObject(n, "chair", 0.9, np.array([n, 0, 0.5, 0.5, 0.5, 1, 0, 0, 0.0])) for n in range(1, 13))
    perceptron = Perceptron()
    perceptron.map.published = PublishedScene(tuple(chairs))
    pose = OutputPose("odom", None)
    node = SimpleNamespace(
        _pose_of=lambda query, scene: pose,
        _parameters=lambda: SimpleNamespace(default_top_k=3, fusion_frame="odom", output_frame="odom"),
        _transforms=None,
        _stamp_ns=lambda: 1,
        _perceptron=perceptron,
        _shown=set(),
        _on_answer=None,
        _approach=lambda grounding: (None, float("nan")),
    )
    query = parse_query(message)
    answer = GroundingInterface._ask(node, query)
    assert answer.pose is pose
    node._pose_of = lambda query, scene: pytest.fail("the pose is looked up once a query")
    assert len(GroundingInterface._message(node, answer)[0].candidates) == count


def test_a_question_about_the_past_is_answered():
    at = (0.0, 0.0, 0.5)
    past = (HistoryEntry(1, EventKind.FOUND, (3.0, 0.0, 0.5), 0.9), HistoryEntry(2, EventKind.MOVED, at, 0.9))
    box = np.array([*at, 0.5, 0.5, 1, 0, 0, 0.0])
    perceptron = Perceptron()
    perceptron.map.published = PublishedScene((SceneObject(7, "chair", 0.9, box, history=past),))
    node = SimpleNamespace(
        _pose_of=lambda query, scene: OutputPose("odom", None),
        _parameters=lambda: SimpleNamespace(default_top_k=3),
        _perceptron=perceptron,
    )
    grounding = GroundingInterface._ask(node, parse_query("what moved?")).grounding
    assert [o.id for o in grounding.candidates] == [7]
    assert "moved from x 3.00" in grounding.reason


def test_what_cannot_be_gone_to_says_so():
    perceptron = Perceptron()
    chair = SceneObject(1, "chair", 0.9, np.array([1, 0, 0.5, 0.5, 0.5, 1, 0, 0, 0.0]))
    wall_to_wall = OccupancyGrid2d(0.05, np.array([-1.0, -2.0]), np.full((80, 80), 100, np.int8), 0.0)
    for grid, words in ((None, "there is no grid"), (wall_to_wall, "no free place beside it")):
        perceptron.map.published = PublishedScene((chair,), grid=grid)
        node = SimpleNamespace(
            _parameters=lambda: SimpleNamespace(robot_radius_m=0.3),
            _stamp_ns=lambda: 1,
            _perceptron=perceptron,
            _viewpoint=lambda stamp_ns: None,
            _shown=set(),
            _on_answer=None,
        )
        node._approach = lambda grounding, node=node: GroundingInterface._approach(node, grounding)
        answer = Answer(Query("the chair"), perceptron.ground("the chair"), OutputPose("odom", None))
        message, _ = GroundingInterface._message(node, answer)
        assert message.status == message.FOUND
        assert not message.reachable
        assert words in message.reason


def test_an_answer_goes_where_the_map_lay_when_its_objects_were_published():
    """A map may be put elsewhere while a sentence is read."""
    T = np.eye(4)
    T[:3, 3] = 448_300.0, 5_411_900.0, 200.0
    perceptron = Perceptron()
    chair = SceneObject(1, "chair", 0.9, np.array([1, 0, 0.5, 0.5, 0.5, 1, 0, 0, 0.0]))
    perceptron.map.published = PublishedScene((chair,), T_world_map=T)
    node = SimpleNamespace(
        _parameters=lambda: SimpleNamespace(default_top_k=3, fusion_frame="odom", output_frame="odom"),
        _transforms=None,
        _stamp_ns=lambda: 1,
        _perceptron=perceptron,
    )
    node._pose_of = lambda *args: GroundingInterface._pose_of(node, *args)
    answer = GroundingInterface._ask(node, parse_query("the chair"))
    assert [o.id for o in answer.grounding.candidates] == [1]
    np.testing.assert_array_equal(answer.pose.T_out_world, T)
    np.testing.assert_array_equal(GroundingInterface._fusion_pose(node).T_out_world, T)


# ------------------------------------------------------------------------------------------------------- answering


class Harness:
    """A worker whose question is under the test's control."""

    def __init__(self, **limits: int) -> None:
        self.answers: list[Answer] = []
        self.changed = threading.Condition()
        self.gate = threading.Event()
        self.gate.set()
        self.grounding = Grounding("", GroundingStatus.NOT_FOUND, reason="nothing")
        self.health = Health("test")
        self.error: Exception | None = None
        self.asked: Callable[[Query], None] = lambda query: None
        self.watchdog = Watchdog(self.health, ThrottledLog(logging.getLogger("test")))
        self.worker = QueryWorker(
            self.ask,
            self.deliver,
            logging.getLogger("test"),
            self.watchdog,
            queue_size=limits.get("queue_size", 8),
            max_standing=limits.get("max_standing", 2),
        )
        self.worker.start()

    def ask(self, query: Query) -> Answer:
        self.asked(query)
        self.gate.wait(60)
        if self.error:
            raise self.error
        return Answer(query, query.answer(self.grounding.status, self.grounding.candidates, self.grounding.reason))

    def deliver(self, answer: Answer) -> None:
        with self.changed:
            self.answers.append(answer)
            self.changed.notify_all()

    def wait_for(self, n: int) -> list[Answer]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.answers) >= n, timeout=60), self.answers
            return list(self.answers)


@pytest.fixture
def harness():
    h = Harness()
    yield h
    h.gate.set()
    h.worker.stop("over")
    h.watchdog.stop()


def found(*ids: int) -> Grounding:
    return Grounding("t", GroundingStatus.FOUND, tuple(SceneObject(i, "x", 1.0, BOX) for i in ids))


def test_every_query_gets_one_answer_and_an_id(harness):
    for i in range(5):
        harness.worker.submit(Query("chair", id="" if i else "mine"), harness.deliver)
        harness.wait_for(i + 1)
    ids = [a.query.id for a in harness.answers]
    assert ids[0] == "mine"
    assert len(set(ids)) == 5
    assert all(a.grounding.latency_ms > 0 for a in harness.answers)


def test_overflow_is_answered_at_once(harness):
    harness.gate.clear()
    for i in range(1000):
        harness.worker.submit(Query("chair", id=str(i)), harness.deliver)
    refused = [a for a in harness.answers if a.grounding.status == GroundingStatus.INVALID]
    assert len(refused) >= 990  # 8 wait, 1 may be in work
    assert "too many" in refused[0].grounding.reason
    harness.gate.set()
    answers = harness.wait_for(1000)
    assert Counter(Counter(a.query.id for a in answers).values()) == {1: 1000}
    assert harness.health.counted("queries_received") == 1000


def test_an_exception_is_an_answer(harness):
    harness.error = RuntimeError("broken model")
    harness.worker.submit(Query("chair", id="a"), harness.deliver)
    grounding = harness.wait_for(1)[0].grounding
    assert grounding.status == GroundingStatus.INVALID
    assert "broken model" in grounding.reason
    harness.error = None
    harness.worker.submit(Query("chair", id="b"), harness.deliver)
    assert harness.wait_for(2)[1].grounding.status == GroundingStatus.NOT_FOUND


def test_an_asker_that_fails_does_not_stop_the_others(harness):
    def broken(answer: Answer) -> None:
        raise RuntimeError("gone")

    harness.worker.submit(Query("chair", id="a"), broken)
    harness.worker.submit(Query("chair", id="b"), harness.deliver)
    assert harness.wait_for(1)[0].query.id == "b"


def test_standing_queries_are_answered_again_only_when_the_answer_changes(harness):
    harness.worker.submit(Query("chair", id="s", standing=True), harness.deliver)
    harness.wait_for(1)
    harness.worker.map_changed()
    harness.grounding = found(3)
    harness.worker.map_changed()
    assert [c.id for c in harness.wait_for(2)[1].grounding.candidates] == [3]
    harness.worker.map_changed()
    harness.worker.submit(Query("chair", id="probe"), harness.deliver)
    assert harness.wait_for(3)[2].query.id == "probe"  # nothing in between: the answer was the same
    harness.grounding = found(4, 3)
    harness.worker.map_changed()
    assert harness.wait_for(4)[3].query.id == "s"


def ambiguous(*ids: int) -> Grounding:
    return dataclasses.replace(found(*ids), status=GroundingStatus.AMBIGUOUS, reason="which one?")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (found(3), found(3, 4), True),  # another runner-up
        (found(3), found(4, 3), False),
        (ambiguous(3, 4), ambiguous(4, 3), True),
        (ambiguous(3, 4), ambiguous(3, 4, 5), False),
        (ambiguous(3, 4), found(3), False),
        (invalid(Query("a"), "cancelled"), found(), False),
    ],
)
def test_what_makes_another_answer(one, other, same):
    assert (answer_key(one) == answer_key(other)) is same


def test_the_viewpoint_of_a_standing_query_stays(harness):
    seen: list[np.ndarray | None] = []
    harness.grounding = found(1)
    harness.asked = lambda query: seen.append(query.viewpoint)
    harness.worker.submit(Query("chair", id="s", standing=True, viewpoint=np.eye(4)), harness.deliver)
    harness.wait_for(1)
    harness.grounding = found(2)
    harness.worker.map_changed()
    harness.wait_for(2)
    assert len(seen) == 2
    assert all(viewpoint is not None and (viewpoint == np.eye(4)).all() for viewpoint in seen)


def test_begin_is_told_when_the_turn_has_come(harness):
    harness.gate.clear()
    began = threading.Event()
    harness.worker.submit(Query("chair", id="a"), harness.deliver)
    harness.worker.submit(Query("chair", id="b"), harness.deliver, began.set)
    assert not began.wait(0.1)
    harness.gate.set()
    assert began.wait(60)
    harness.wait_for(2)


def test_cancel_ends_a_standing_query(harness):
    harness.worker.submit(Query("chair", id="s", standing=True), harness.deliver)
    harness.wait_for(1)
    harness.worker.submit(Query("", id="s", cancel=True), harness.deliver)
    assert harness.wait_for(2)[1].grounding.reason == "cancelled"
    assert harness.worker.status["standing"] == 0
    harness.worker.submit(Query("", id="s", cancel=True), harness.deliver)
    assert "no standing query" in harness.wait_for(3)[2].grounding.reason


def test_standing_queries_are_bounded_and_replaced_by_id(harness):
    for query_id in ("a", "b", "b", "c"):
        harness.worker.submit(Query("chair", id=query_id, standing=True), harness.deliver)
    reasons = [a.grounding.reason for a in harness.wait_for(4)]
    assert "too many standing" in reasons[3]
    assert not any("too many" in r for r in reasons[:3])


def test_an_invalid_query_does_not_stand(harness):
    harness.grounding = Grounding("", GroundingStatus.INVALID, reason="no language model loaded")
    harness.worker.submit(Query("chair", id="s", standing=True), harness.deliver)
    assert not harness.wait_for(1)[0].query.standing
    assert harness.worker.status["standing"] == 0


def test_what_waits_is_answered_at_the_end():
    h = Harness()
    h.gate.clear()
    for i in range(4):
        h.worker.submit(Query("chair", id=str(i)), h.deliver)
    threading.Timer(0.1, h.gate.set).start()
    h.worker.stop("the node was deactivated")
    assert sorted(a.query.id for a in h.answers) == ["0", "1", "2", "3"]
    h.worker.submit(Query("chair", id="late"), h.deliver)
    assert h.answers[-1].grounding.status == GroundingStatus.INVALID


def test_a_jump_of_the_localisation_is_told_to_whoever_asked_for_standing_answers(harness):
    """The object is the same, and lies elsewhere in ``map``; noise of its place is no news."""
    place = np.eye(4)
    harness.grounding = found(3)

    def ask(query: Query) -> Answer:
        return Answer(query, harness.grounding, OutputPose("map", place.copy()))

    harness.worker._ask = ask
    harness.worker.submit(Query("chair", id="s", standing=True), harness.deliver)
    harness.wait_for(1)
    place[0, 3] = 0.1
    harness.worker.map_changed()
    harness.worker.submit(Query("chair", id="probe"), harness.deliver)
    wait_until(lambda: not harness.worker._map_changed)
    assert [a.query.id for a in harness.wait_for(2)] == ["s", "probe"]
    place[0, 3] = 5.0
    harness.worker.map_changed()
    told = harness.wait_for(3)[2]
    assert (told.query.id, told.pose.T_out_world[0, 3]) == ("s", 5.0)


def test_a_correction_of_the_map_moves_the_place_that_a_standing_query_was_asked_from(harness):
    seen: list[np.ndarray] = []
    harness.asked = lambda query: seen.append(query.viewpoint)
    harness.worker.submit(Query("chair", id="s", standing=True, viewpoint=np.eye(4)), harness.deliver)
    harness.wait_for(1)
    motion = np.eye(4)
    motion[:3, 3] = 2.0, 1.0, 0.0
    harness.worker.move_viewpoints(motion)
    harness.worker.map_changed()
    wait_until(lambda: len(seen) == 2)
    harness.worker.map_changed()
    wait_until(lambda: len(seen) == 3)
    for viewpoint in seen[1:]:
        np.testing.assert_array_equal(viewpoint[:3, 3], (2.0, 1.0, 0.0))
