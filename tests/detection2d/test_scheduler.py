"""When a detector runs: newest first, not too often, and what happens when it dies."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from embodied_perceptron.detection2d.layouts import LayoutError
from embodied_perceptron.detection2d.scheduler import (
    LiftScheduler,
    LiftWorker,
    LimitedCalls,
    SchedulerRules,
    TooLateError,
)
from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron.mapping.keyframes import Keyframe
from embodied_perceptron.sensors.frame import RgbdFrame

S = 1_000_000_000


def keyframe(number):
    frame = RgbdFrame(
        number, "front", np.zeros((2, 2, 3), np.uint8), np.ones((2, 2), np.float32), Intrinsics(1, 1, 0.5, 0.5, 2, 2)
    )
    return Keyframe(number, frame, np.eye(4))


KEYFRAMES = [keyframe(i) for i in range(10)]


def run(scheduler, waiting, now_ns):
    """Everything that may run now, in order."""
    waiting, ran = list(waiting), []
    while (chosen := scheduler.next(waiting, now_ns)) is not None:
        waiting.remove(chosen)
        scheduler.succeeded()
        ran.append(chosen.id)
    return ran


def test_newest_first_and_no_more_than_the_burst():
    scheduler = LiftScheduler(SchedulerRules(max_rate_hz=2.0, burst=3))
    assert run(scheduler, KEYFRAMES, 5 * S) == [9, 8, 7]
    assert run(scheduler, KEYFRAMES[:7], 5 * S) == []
    assert run(scheduler, KEYFRAMES[:7], 5 * S + S // 2) == [6]
    assert run(scheduler, KEYFRAMES[:6], 60 * S) == [5, 4, 3]
    assert scheduler.done == 7


@pytest.mark.parametrize("rate", [0.5, 3.0, 10.0])
def test_the_rate_is_never_exceeded(rate):
    rng = np.random.default_rng(0)
    scheduler = LiftScheduler(SchedulerRules(max_rate_hz=rate, burst=2))
    now, ran, started = 0, 0, []
    for _ in range(300):
        now += int(rng.uniform(0, 0.2) * S)
        count = len(run(scheduler, KEYFRAMES, now)[:])
        ran += count
        started += [now] * count
    assert ran == len(started)
    for window_s in (1.0, 5.0, 20.0):
        times = np.array(started) / S
        most = max(int(np.count_nonzero((times >= t) & (times < t + window_s))) for t in times)
        assert most <= 2 + rate * window_s + 1e-6
    assert ran >= 0.8 * min(rate * now / S, 300 * 2)


def test_a_failing_detector_pauses_longer_each_time_and_is_then_disabled():
    scheduler = LiftScheduler(SchedulerRules(max_rate_hz=100.0, burst=50, retry_s=1.0, max_failures=3))
    now = 0
    for pause_s in (1, 2):
        assert scheduler.next(KEYFRAMES, now) is not None
        scheduler.failed_with(RuntimeError("gone"), now)
        assert scheduler.state == "retrying"
        assert scheduler.next(KEYFRAMES, now + pause_s * S - 1) is None
        now += pause_s * S
    assert scheduler.next(KEYFRAMES, now) is not None
    scheduler.failed_with(RuntimeError("gone"), now)
    assert (scheduler.state, scheduler.failed) == ("disabled", 3)
    assert scheduler.last_error == "RuntimeError: gone"
    assert scheduler.next(KEYFRAMES, now + 10_000 * S) is None


def test_success_forgets_failures():
    scheduler = LiftScheduler(SchedulerRules(max_failures=2, retry_s=0.0))
    for _ in range(5):
        assert scheduler.next(KEYFRAMES, S) is not None
        scheduler.failed_with(ValueError("once"), S)
        assert scheduler.next(KEYFRAMES, 9 * S) is not None
        scheduler.succeeded()
        scheduler = LiftScheduler(scheduler.rules) if scheduler.disabled else scheduler
        scheduler._tokens = 5.0
    assert scheduler.state == "running"
    assert scheduler.failed == 5


def test_what_is_hopeless_is_disabled_at_once():
    scheduler = LiftScheduler()
    scheduler.next(KEYFRAMES, 0)
    scheduler.failed_with(LayoutError("another layout"), 0)
    assert scheduler.state == "disabled"


def test_a_clock_that_was_set_back_does_not_stop_it():
    scheduler = LiftScheduler(SchedulerRules(max_rate_hz=1.0, burst=1))
    assert run(scheduler, KEYFRAMES, 100 * S) == [9]
    assert run(scheduler, KEYFRAMES, 50 * S) == []
    assert run(scheduler, KEYFRAMES, 51 * S) == [9]


@pytest.mark.parametrize(
    "bad", [{"max_rate_hz": 0.0}, {"burst": 0}, {"retry_s": -1.0}, {"max_failures": 0}, {"limit_s": 0.0}]
)
def test_rules_are_checked(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        SchedulerRules(**bad)


def test_the_worker_works_in_its_own_thread_and_stops():
    done, names, todo = threading.Event(), set(), [1, 2, 3]

    def work():
        names.add(threading.current_thread().name)
        if todo:
            todo.pop()
            return True
        done.set()
        return False

    worker = LiftWorker(work, idle_s=600.0)
    worker.start()
    with pytest.raises(RuntimeError, match="already"):
        worker.start()
    assert done.wait(60)
    assert names == {"lift"}
    todo.append(4)
    done.clear()
    worker.wake()  # long before the ten minutes are over
    assert done.wait(60)
    assert worker.stop()
    assert worker.busy_s == 0.0


def test_a_worker_that_hangs_is_seen():
    hang, inside = threading.Event(), threading.Event()

    def work():
        inside.set()
        hang.wait(100)
        return False

    worker = LiftWorker(work)
    worker.start()
    assert inside.wait(60)
    assert not worker.stop(timeout_s=0.05)
    assert worker.busy_s > 0.04
    hang.set()
    assert worker.stop()


def test_stopping_what_never_began():
    assert LiftWorker(lambda: False).stop()


def test_nobody_waits_for_what_hangs_and_nothing_else_is_called_until_it_is_back():
    calls, hang, done = LimitedCalls(), threading.Event(), threading.Event()

    def hanging():
        hang.wait(100)
        done.set()

    assert calls.call(lambda: 7, 60.0) == 7
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 // 0, 60.0)
    with pytest.raises(TooLateError, match=r"longer than 0\.05 s"):
        calls.call(hanging, 0.05)
    assert calls.busy_s > 0
    with pytest.raises(TooLateError, match="still busy"):
        calls.call(lambda: 7, 60.0)
    hang.set()
    assert done.wait(60)
    while calls.busy_s > 0:
        time.sleep(0.01)
    assert calls.call(lambda: 8, 60.0) == 8
