"""The thread that perceives loads what was compiled before, first, and is in nobody's way while it does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")

from support.ros_live import wait_until

from embodied_perceptron.apps.warm_up import WarmUpStoppedError
from embodied_perceptron_ros.node.health import Health, ThrottledLog
from embodied_perceptron_ros.node.threads import Watchdog
from embodied_perceptron_ros.node.workers import PerceptionWorker

pytestmark = [pytest.mark.ros]


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


def test_it_perceives_after_its_warm_up(stand: Stand) -> None:
    stand.worker.start(stand.warm_up)
    stand.worker.map_changed()
    assert stand.begun.wait(10.0)
    time.sleep(0.05)
    assert stand.done == []
    stand.may_end.set()
    wait_until(lambda: stand.done == ["warm", "perceived"], 10.0)


def test_a_warm_up_ends_where_the_worker_is_stopped(stand: Stand) -> None:
    stand.worker.start(stand.warm_up)
    assert stand.begun.wait(10.0)
    stand.worker.stop()
    assert stand.done == []
    assert "perception" not in {thread.name for thread in threading.enumerate()}


def test_a_process_that_ends_does_not_wait_for_it() -> None:
    stand = Stand(fault=RuntimeError("it does not stop when told"))
    stand.worker.start(stand.warm_up)
    assert stand.begun.wait(10.0)
    told_s = time.monotonic()
    stand.worker.stop(ending=True)
    assert time.monotonic() - told_s < 5.0
    assert stand.done == []
    stand.may_end.set()


def test_a_warm_up_that_fails_keeps_nobody_from_perceiving() -> None:
    stand = Stand(fault=RuntimeError("no kernel"))
    stand.worker.start(stand.warm_up)
    stand.worker.map_changed()
    stand.may_end.set()
    wait_until(lambda: stand.done == ["warm", "perceived"], 10.0)
    stand.worker.stop()
    stand.watchdog.stop()
