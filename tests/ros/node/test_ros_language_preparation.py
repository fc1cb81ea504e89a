"""The text encoder is loaded in the background; a failure is logged and not raised."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("tf2_msgs")

from embodied_perceptron.language import query
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_ros.node.threads import BackgroundThread
from embodied_perceptron_ros.node.wiring import prepare_language

pytestmark = pytest.mark.ros


def test_closing_waits_for_the_job_unless_the_process_ends() -> None:
    begun, may_end, thread = threading.Event(), threading.Event(), BackgroundThread("language")
    done = thread.submit(lambda: begun.set() or may_end.wait(20.0))
    assert begun.wait(20.0)
    thread.close(0.0)  # the process ends
    assert not done.done()
    closing = threading.Thread(target=thread.close, args=(None,))
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    may_end.set()
    closing.join(20.0)
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
