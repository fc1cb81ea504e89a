"""No stage runs unbounded: it is named, given up, and what comes after it is served."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")

from support.fusion_rig import Rig
from support.ros_live import wait_until

from embodied_perceptron.apps.warm_up import WarmUpStoppedError
from embodied_perceptron.language.query import Query
from embodied_perceptron.results import Grounding, GroundingStatus
from embodied_perceptron_ros.node import queries, services, threads, workers
from embodied_perceptron_ros.node.health import ERROR, Health, ThrottledLog
from embodied_perceptron_ros.node.inputs import TOOK_TOO_LONG
from embodied_perceptron_ros.node.queries import Answer, QueryWorker
from embodied_perceptron_ros.node.services import MapServices, refusal
from embodied_perceptron_ros.node.threads import TookTooLongError, Watchdog
from embodied_perceptron_ros.node.workers import PerceptionWorker

pytestmark = pytest.mark.ros
LIMIT_S = 0.3
LOAD_PER_CORE = threads.load_per_core


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """Limits are those of a machine without other programs."""
    monkeypatch.setattr(threads, "load_per_core", lambda: 1.0)


@pytest.fixture
def health():
    return Health("test")


@pytest.fixture
def watchdog(health):
    dog = Watchdog(health, ThrottledLog(logging.getLogger("watchdog")), check_s=0.02)
    yield dog
    dog.stop()


def endless_loop(seconds: float = 60.0) -> None:
    """What never ends by itself, within the patience of a test."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


def overdue(health: Health) -> list[str]:
    return [message for level, _, message in health.problems() if level == ERROR]


@pytest.mark.parametrize(("load", "given_up"), [(1.0, 1), (4.0, 0)])
def test_a_stage_on_a_busy_machine_gets_the_time_that_others_take(load, given_up, health, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(threads, "load_per_core", lambda: load)
    dog = Watchdog(health, ThrottledLog(logging.getLogger("watchdog")), check_s=3600.0, clock=lambda: now_s[0])
    with contextlib.suppress(TookTooLongError), dog.watch("encoding", 30.0):
        now_s[0] = 40.0
        dog._check()
    dog.stop()
    assert health.counted("overdue.encoding") == given_up


def test_the_load_is_that_of_one_core(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for load, per_core in ((0.5, 1.0), (10.0, 2.5), (1e6, threads._MAX_LOAD)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert LOAD_PER_CORE() == per_core


def test_an_endless_loop_ends_and_is_named(watchdog, health):
    told = []
    with pytest.raises(TookTooLongError), watchdog.watch("stage", LIMIT_S, " of a test", told.append):
        endless_loop()
    assert told == ["stage of a test took too long (more than 0.3 s)"]
    assert "stage of a test took too long" in overdue(health)[0]
    assert health.counted("overdue.stage") == 1


def test_locks_that_it_held_are_free_and_code_that_goes_on_after_errors_does_not(watchdog):
    lock = threading.Lock()

    def stubborn() -> None:
        with watchdog.watch("stage", LIMIT_S), lock:
            while True:
                with contextlib.suppress(Exception):
                    endless_loop()

    with pytest.raises(TookTooLongError):
        stubborn()
    assert not lock.locked()


def test_what_ends_in_time_is_left_alone(health):
    now_s = [0.0]
    dog = Watchdog(health, ThrottledLog(logging.getLogger("watchdog")), check_s=3600.0, clock=lambda: now_s[0])
    with dog.watch("stage", LIMIT_S):
        now_s[0] = 0.9 * LIMIT_S
        dog._check()
    now_s[0] = 10.0
    dog._check()
    dog.stop()
    assert overdue(health) == []


def test_what_ends_by_itself_while_it_is_given_up_is_not_hit_later(watchdog):
    """The callback holds the watchdog until the stage is over."""
    ended = threading.Event()
    with watchdog.watch("stage", 0.05, on_overdue=lambda _: ended.wait(60)):
        time.sleep(0.3)
    ended.set()
    endless_loop(0.3)  # a stray exception would end it


def test_a_function_can_be_traced_after_a_stage_was_given_up() -> None:
    """In a process of its own: with a cancelled error, Python 3.11 loops for ever, where no time-out reaches it."""
    program = """
import logging, sys, time
from embodied_perceptron_ros.node.health import Health, ThrottledLog
from embodied_perceptron_ros.node.threads import TookTooLongError, Watchdog

watchdog = Watchdog(Health("perception"), ThrottledLog(logging.getLogger("test"), every_s=1.0), check_s=0.02)
try:
    with watchdog.watch("stage", 0.1):
        while True:
            time.sleep(0.01)
except TookTooLongError:
    print("given up", flush=True)
sys.settrace(lambda *_: None)
(lambda: print("traced", flush=True))()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["given up", "traced"], done.stderr


# ------------------------------------------------------------------------------------------------------- the parts


def asker(ask, health, watchdog):
    worker = QueryWorker(ask, lambda _: None, logging.getLogger("test"), watchdog, queue_size=8, max_standing=4)
    worker.start()
    return worker


@pytest.mark.parametrize("stuck", [endless_loop, time.sleep], ids=["python", "compiled"])
def test_a_question_that_never_ends_is_answered_and_so_are_those_after_it(monkeypatch, watchdog, health, stuck):
    """Compiled code cannot be ended: a fresh thread answers the rest while it is still at work."""
    monkeypatch.setattr(queries, "ANSWER_LIMIT_S", LIMIT_S)

    def ask(query: Query) -> Answer:
        if query.text == "hang":
            stuck(90.0)
        return Answer(query, Grounding(query.text, GroundingStatus.NOT_FOUND, reason="nothing"))

    worker, answers = asker(ask, health, watchdog), []
    try:
        for text in ("before", "hang", "after", "hang", "last"):
            worker.submit(Query(text), answers.append)
        wait_until(lambda: len(answers) == 5, 60, str(answers))
        assert [a.query.text for a in answers] == ["before", "hang", "after", "hang", "last"]
        late = answers[1].grounding
        assert late.status == GroundingStatus.INVALID
        assert "took too long" in late.reason
        assert answers[4].grounding.status == GroundingStatus.NOT_FOUND
        time.sleep(0.3)
        assert len(answers) == 5, "one answer each"
    finally:
        worker.stop("over")


def test_an_answer_whose_delivery_never_ends_is_given_up_too(monkeypatch, watchdog, health):
    """Whoever asked hears of it, although the lock of all deliveries was held."""
    monkeypatch.setattr(queries, "ANSWER_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(queries, "STOP_LIMIT_S", 0.1)
    lock, got = threading.Lock(), []

    def deliver(answer: Answer) -> None:
        with lock:
            if answer.query.text == "hang" and answer.grounding.status != GroundingStatus.INVALID:
                endless_loop()
            got.append(answer)

    worker = asker(lambda query: Answer(query, Grounding(query.text, GroundingStatus.FOUND)), health, watchdog)
    try:
        worker.submit(Query("hang"), deliver)
        worker.submit(Query("after"), deliver)
        wait_until(lambda: len(got) == 2, 60, str(got))
        assert {a.query.text: a.grounding.status for a in got} == {
            "hang": GroundingStatus.INVALID,
            "after": GroundingStatus.FOUND,
        }
    finally:
        worker.stop("over")


def test_a_standing_question_that_takes_too_long_stands_no_more(monkeypatch, watchdog, health):
    monkeypatch.setattr(queries, "ANSWER_LIMIT_S", LIMIT_S)
    hang = threading.Event()

    def ask(query: Query) -> Answer:
        if query.text == "stuck" and hang.is_set():
            endless_loop()
        status = GroundingStatus.AMBIGUOUS if hang.is_set() else GroundingStatus.NOT_FOUND
        return Answer(query, Grounding(query.text, status))

    later: list[Answer] = []
    worker = QueryWorker(ask, later.append, logging.getLogger("test"), watchdog, queue_size=8, max_standing=4)
    worker.start()
    try:
        for text in ("stuck", "fine"):
            worker.submit(Query(text, id=text, standing=True), lambda _: None)
        wait_until(lambda: worker.status["standing"] == 2)
        hang.set()
        worker.map_changed()
        wait_until(lambda: len(later) == 2, 60, str(later))
        assert {a.query.text: a.grounding.status for a in later} == {
            "stuck": GroundingStatus.INVALID,
            "fine": GroundingStatus.AMBIGUOUS,
        }
        assert worker.status["standing"] == 1
    finally:
        worker.stop("over")


def test_a_frame_that_is_never_fused_is_a_drop_and_the_next_is_fused(monkeypatch):
    monkeypatch.setattr(workers, "FUSION_LIMIT_S", LIMIT_S)
    rig = Rig()
    try:
        whole = rig.perceptron.integrate
        monkeypatch.setattr(rig.perceptron, "integrate", lambda posed, **options: endless_loop())
        rig.frame()
        rig.wait(fused=0, **{TOOK_TOO_LONG: 1})
        monkeypatch.setattr(workers, "FUSION_LIMIT_S", 60.0)
        monkeypatch.setattr(rig.perceptron, "integrate", whole)
        rig.frame()
        rig.wait(fused=1, **{TOOK_TOO_LONG: 1})
    finally:
        rig.close()


def test_a_perception_that_never_ends_is_given_up_and_the_next_is_published(monkeypatch, watchdog, health):
    monkeypatch.setattr(workers, "PERCEPTION_LIMIT_S", LIMIT_S)
    calls, published = [], []

    def perceive():
        calls.append(1)
        if len(calls) == 1:
            endless_loop()
        return SimpleNamespace(stage_ms={}, diagnostics=(), source=None)

    worker = PerceptionWorker(
        SimpleNamespace(perceive=perceive, device_faults=(), place_estimate=None),
        watchdog,
        publish=lambda perception, everything: published.append(perception),
        publish_held=lambda perception: None,
        new_listeners=lambda: False,
        rate_hz=lambda: 20.0,
    )
    worker.start()
    try:
        worker.map_changed()
        wait_until(lambda: overdue(health), 60)
        assert "perception took too long" in overdue(health)[0]
        worker.map_changed()
        wait_until(lambda: published, 60)
    finally:
        worker.stop()


@pytest.mark.parametrize("stuck", [endless_loop, time.sleep], ids=["python", "compiled"])
def test_a_service_that_never_ends_is_answered_and_so_is_the_next(monkeypatch, watchdog, stuck):
    monkeypatch.setattr(services, "SERVICE_LIMIT_S", LIMIT_S)
    node = SimpleNamespace(
        parameters=SimpleNamespace(map_folder=""),
        create_service=lambda *_, **__: object(),
        destroy_service=lambda _: None,
        get_logger=lambda: None,
    )
    map_services = MapServices(node, None, None, lambda: None, watchdog)
    try:
        futures: list[Future[str]] = [Future(), Future()]
        map_services._submit("describe", lambda: stuck(90.0), futures[0])
        map_services._submit("reset", lambda: "the map is empty", futures[1])
        error = futures[0].exception(60)
        assert refusal(error) == "service describe took too long (more than 0.3 s)"
        assert futures[1].result(60) == "the map is empty"
    finally:
        monkeypatch.setattr(services, "_SAVE_LIMIT_S", 0.1)
        map_services.close()


class Stand:
    """A worker; what it warms up is under the test's control."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.done: list[str] = []
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.fault = fault
        health, log = Health("perception"), ThrottledLog(logging.getLogger("test"), every_s=1.0)
        self.watchdog = Watchdog(health, log)
        perception = SimpleNamespace(stage_ms={}, diagnostics=(), source=None)
        perceptron: Any = SimpleNamespace(
            perceive=lambda: self.done.append("perceived") or perception, device_faults=(), place_estimate=None
        )
        self.worker = PerceptionWorker(
            perceptron,
            self.watchdog,
            publish=lambda perception, everything: None,
            publish_held=lambda perception: None,
            new_listeners=lambda: False,
            rate_hz=lambda: 100.0,
        )

    def warm_up(self, stopped: Callable[[], bool]) -> None:
        self.begun.set()
        while not self.may_end.wait(0.01):
            if stopped() and self.fault is None:
                raise WarmUpStoppedError("stopped")
        self.done.append("warm")
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def stand() -> Iterator[Stand]:
    made = Stand()
    yield made
    made.may_end.set()
    made.worker.stop()
    made.watchdog.stop()


def test_the_last_perception_is_published_again_where_localisation_moved_it() -> None:
    moved, published, health = [False], [], Health("perception")
    perception = SimpleNamespace(stage_ms={}, diagnostics=(), source=None)
    worker = PerceptionWorker(
        SimpleNamespace(perceive=lambda: perception, device_faults=(), place_estimate=None),
        Watchdog(health, ThrottledLog(logging.getLogger("test"))),
        publish=lambda perception, everything: published.append(everything),
        publish_held=lambda perception: None,
        new_listeners=lambda: False,
        has_moved=lambda perception: moved[0],
        rate_hz=lambda: 20.0,
    )
    worker._serve_listeners()
    worker._perceive()
    worker._serve_listeners()
    assert published == [False]
    moved[0] = True
    worker._serve_listeners()
    assert published == [False, True]


def test_it_perceives_after_its_warm_up(stand: Stand) -> None:
    stand.worker.start(stand.warm_up)
    stand.worker.map_changed()
    assert stand.begun.wait(60)
    time.sleep(0.05)
    assert stand.done == []
    stand.may_end.set()
    wait_until(lambda: stand.done == ["warm", "perceived"], 60)


def test_a_warm_up_ends_where_the_worker_is_stopped(stand: Stand) -> None:
    stand.worker.start(stand.warm_up)
    assert stand.begun.wait(60)
    stand.worker.stop()
    assert stand.done == []
    assert "perception" not in {thread.name for thread in threading.enumerate()}


def test_a_process_that_ends_does_not_wait_for_it() -> None:
    stand = Stand(fault=RuntimeError("it does not stop when told"))
    stand.worker.start(stand.warm_up)
    assert stand.begun.wait(60)
    stand.worker.stop(ending=True)
    assert "perception" in {thread.name for thread in threading.enumerate()}
    assert stand.done == []
    stand.may_end.set()


def test_a_warm_up_that_fails_keeps_nobody_from_perceiving() -> None:
    stand = Stand(fault=RuntimeError("no kernel"))
    stand.worker.start(stand.warm_up)
    stand.worker.map_changed()
    stand.may_end.set()
    wait_until(lambda: stand.done == ["warm", "perceived"], 60)
    stand.worker.stop()
    stand.watchdog.stop()
