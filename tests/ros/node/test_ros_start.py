"""The first seconds of the node, and its end at any moment: it answers while it compiles, and stops when told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")
pytest.importorskip("vision_msgs")
pytest.importorskip("embodied_perceptron_msgs")

from lifecycle_msgs.msg import Transition
from rcl_interfaces.srv import GetParameters
from support.ros_live import START_S, NodeProcess, Peer, own_domain, wait_until

from embodied_perceptron.language import query
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_ros.node.threads import BackgroundThread
from embodied_perceptron_ros.node.wiring import prepare_language

pytestmark = [pytest.mark.ros, pytest.mark.timeout(600)]

# seconds for what takes one on an idle machine; a configuration that is not given up takes longer
PATIENCE = 30.0


class Starting:
    """A node with an empty cache of compiled kernels: its configuration takes a minute. With ``warm`` the usual one."""

    def __init__(self, folder: Path, domain: int, *arguments: str, warm: bool = False) -> None:
        self.started_s = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            if not warm:
                patch.setenv("NUMBA_CACHE_DIR", str(folder / "kernels"))
            self.process = NodeProcess(domain, folder / "node.log", *arguments)
        self.peer = Peer(domain)

    def __enter__(self) -> Starting:
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.close()
        if self.process.process.poll() is None:
            self.process.stop()


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    with own_domain() as domain, Starting(tmp_path, domain) as node:
        yield node


def test_it_answers_while_it_compiles(starting: Starting) -> None:
    peer = starting.peer
    wait_until(lambda: peer.value("node", "state") == "configuring", PATIENCE, starting.process.output)
    wait_until(lambda: "compiling 1 of" in peer.value("node", "message"), 60, "no progress")
    for _ in range(3):
        asked_s = time.monotonic()
        assert peer.state() == "configuring"
        answer = peer.call("/perception/get_parameters", GetParameters, GetParameters.Request(names=["fusion_frame"]))
        assert answer.values[0].string_value == "odom"
        assert time.monotonic() - asked_s < PATIENCE
    assert not peer.change_state(Transition.TRANSITION_ACTIVATE)  # refused, not queued
    assert peer.state() == "configuring"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_it_stops_while_it_compiles(starting: Starting, number: int) -> None:
    wait_until(lambda: "compiling" in starting.peer.value("node", "message"), START_S, starting.process.output)
    told_s = time.monotonic()
    assert starting.process.stop(number, timeout_s=PATIENCE) == 0
    assert time.monotonic() - told_s < PATIENCE
    assert "given up" in starting.process.output
    assert "Traceback" not in starting.process.output


@pytest.mark.parametrize("after_s", [0.3, 0.8, 1.5, 2.5])
def test_it_stops_while_it_imports(tmp_path: Path, after_s: float) -> None:
    with own_domain() as domain, Starting(tmp_path, domain) as node:
        time.sleep(after_s)
        assert node.process.stop(signal.SIGINT, timeout_s=PATIENCE) == 0, node.process.output
        assert "Traceback" not in node.process.output


def shared_memory_of(pid: int) -> set[Path]:
    """Segments that a process has mapped; alone in its domain they are its own. Those of ports are of the machine."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {Path(path) for path in re.findall(r"/dev/shm/fast(?:dds|rtps)_[0-9a-f]{16}\b", maps)}


@pytest.mark.parametrize("state", ["configuring", pytest.param("active", marks=pytest.mark.slow)])
def test_it_leaves_no_shared_memory_behind(tmp_path: Path, state: str) -> None:
    with own_domain() as domain:
        process = NodeProcess(domain, tmp_path / "node.log", "-p", "weights:=''")
        wait_until(lambda: f": {state}" in process.output, START_S, process.output)
        own = shared_memory_of(process.process.pid)
        assert process.stop() == 0
    assert own
    assert not [path for path in own if path.exists()]
    assert "Traceback" not in process.output


_SLOW_CALLBACKS = """
import os, signal, threading, time
from embodied_perceptron_ros.node import perception_node as module

entered, publish = threading.Event(), module.PerceptionNode._publish_diagnostics

def publish_late(self):
    entered.set()
    time.sleep(0.4)
    publish(self)

def stop():
    entered.wait(60)
    os.kill(os.getpid(), signal.SIGINT)

module.PerceptionNode._publish_diagnostics = publish_late
module.PerceptionNode.on_configure = lambda self, state: time.sleep(60)
threading.Thread(target=stop, daemon=True).start()
exit_code = module.main()
time.sleep(1.0)
module.leave(exit_code)
"""


def test_it_ends_after_the_callback_at_work() -> None:
    """Shutting down destroys the publishers: not under a callback that is about to use one."""
    with own_domain() as domain:
        environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
        code = [sys.executable, "-c", _SLOW_CALLBACKS]
        done = subprocess.run(code, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0
    assert "given up" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


_FROZEN = """
import gc, os, signal, threading, time
from embodied_perceptron_ros.node import perception_node as module

nodes = []

def activate(self, state):
    self._state = "active"
    nodes.append(self)
    return module._SUCCESS

def wait_for(condition):
    deadline_s = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.05)

def stop():
    wait_for(gc.get_freeze_count)
    print("frozen:", gc.get_freeze_count() > 10_000, flush=True)
    nodes[0]._state = "inactive"
    wait_for(lambda: not gc.get_freeze_count())
    print("given back:", not gc.get_freeze_count(), flush=True)
    os.kill(os.getpid(), signal.SIGINT)

module.PerceptionNode.on_configure = lambda self, state: module._SUCCESS
module.PerceptionNode.on_activate = activate
threading.Thread(target=stop, daemon=True).start()
module.leave(module.main())
"""


def test_what_was_loaded_is_no_matter_of_later_collections() -> None:
    """A full collection over torch and the kernels stops every thread for a fifth of a second."""
    with own_domain() as domain:
        environment = {**os.environ, "ROS_DOMAIN_ID": str(domain)}
        code = [sys.executable, "-c", _FROZEN]
        done = subprocess.run(code, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert "frozen: True" in done.stdout
    assert "given back: True" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_a_manager_may_configure_it(tmp_path: Path) -> None:
    """By ~/change_state: the answer comes when it is done, and others are answered meanwhile."""
    arguments = ("-p", "autostart:=false", "-p", "weights:=none")
    with own_domain() as domain, Starting(tmp_path, domain, *arguments, warm=True) as node:
        peer, outcome = node.peer, []
        wait_until(lambda: peer.value("node", "state") == "unconfigured", PATIENCE)
        asking = threading.Thread(
            target=lambda: outcome.append(peer.change_state(Transition.TRANSITION_CONFIGURE, START_S))
        )
        asking.start()
        wait_until(lambda: peer.state() == "configuring", PATIENCE)
        asking.join(START_S)
        assert outcome == [True]
        assert peer.state() == "inactive"
        assert node.process.stop() == 0


def test_nothing_heavy_is_imported_before_the_node_is_there() -> None:
    code = "import sys, embodied_perceptron_ros.node.perception_node; print({'torch', 'cv2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_jobs_of_a_background_thread_run_in_order_and_hand_their_errors_over() -> None:
    thread, order = BackgroundThread("test"), []
    release = threading.Event()
    first = thread.submit(lambda: (release.wait(60), order.append(1), thread.is_current))
    second = thread.submit(lambda: order.append(2) or 1 / 0)
    assert thread.is_busy
    assert not thread.is_current
    release.set()
    assert first.result(60)[2] is True
    with pytest.raises(ZeroDivisionError):
        second.result(60)
    assert order == [1, 2]
    assert not thread.is_busy


def test_closing_waits_for_the_job_unless_the_process_ends() -> None:
    begun, may_end, thread = threading.Event(), threading.Event(), BackgroundThread("language")
    done = thread.submit(lambda: begun.set() or may_end.wait(60))
    assert begun.wait(60)
    thread.close(0.0)  # the process ends
    assert not done.done()
    closing = threading.Thread(target=thread.close, args=(None,))
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    may_end.set()
    closing.join(60)
    assert done.result() is True
    assert "language" not in {thread.name for thread in threading.enumerate()}


def test_tables_of_words_are_read_before_the_first_slip_of_a_sentence() -> None:
    for table in (query.meant_by, query._index, query.english_words, query._vocabulary):
        table.cache_clear()  # of words that other tests asked for too
    prepare_language(Perceptron(), None)
    for table in (query._index, query.english_words, query._vocabulary):
        assert table.cache_info().currsize == 1


def test_a_failure_is_logged_once_with_its_reason() -> None:
    def fail() -> None:
        raise ModuleNotFoundError("no module named 'transformers'")

    lines: list[str] = []
    prepare_language(SimpleNamespace(prepare_language=fail), SimpleNamespace(warning=lines.append))
    (line,) = lines
    assert "ModuleNotFoundError: no module named 'transformers'" in line
    assert "the first query tries again" in line
