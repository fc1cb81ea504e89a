"""The text encoder is read beside everything else, once, and its thread never outlives what started it."""

from __future__ import annotations

import threading

from embodied_perceptron.language import query
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron_ros.node.warm_up import LanguagePreparation


class Log:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


class SlowPerceptron:
    """Reads an encoder for as long as the test wants."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.threads: list[int] = []
        self.error = error

    def prepare_language(self) -> None:
        self.threads.append(threading.get_ident())
        self.begun.set()
        assert self.may_end.wait(20.0)
        self.ended.set()
        if self.error is not None:
            raise self.error


def prepared(perceptron: SlowPerceptron) -> tuple[LanguagePreparation, Log]:
    log = Log()
    return LanguagePreparation(perceptron, log), log  # type: ignore[arg-type]


def test_it_reads_in_a_thread_of_its_own_and_stopping_waits_for_it() -> None:
    perceptron = SlowPerceptron()
    preparation, log = prepared(perceptron)
    preparation.start()  # returns although nothing is read yet
    assert perceptron.begun.wait(20.0)
    assert perceptron.threads != [threading.get_ident()]
    stopping = threading.Thread(target=preparation.stop)
    stopping.start()
    stopping.join(0.05)
    assert stopping.is_alive()
    perceptron.may_end.set()
    stopping.join(20.0)
    assert not stopping.is_alive()
    assert perceptron.ended.is_set()
    assert "language" not in {thread.name for thread in threading.enumerate()}
    preparation.stop()  # again: nothing to wait for
    assert log.warnings == []


def test_tables_of_words_are_read_before_the_first_slip_of_a_sentence() -> None:
    for table in (query.meant_by, query._index, query.english_words, query._vocabulary):
        table.cache_clear()  # of words that other tests asked for too
    Perceptron().prepare_language()
    for table in (query._index, query.english_words, query._vocabulary):
        assert table.cache_info().currsize == 1


def test_a_failure_is_logged_once_with_its_reason() -> None:
    perceptron = SlowPerceptron(ModuleNotFoundError("no module named 'transformers'"))
    perceptron.may_end.set()
    preparation, log = prepared(perceptron)
    preparation.start()
    assert perceptron.ended.wait(20.0)
    preparation.stop()
    (line,) = log.warnings
    assert "ModuleNotFoundError: no module named 'transformers'" in line
    assert "the first sentence tries again" in line
    assert len(perceptron.threads) == 1


def test_nothing_is_read_after_a_stop() -> None:
    perceptron = SlowPerceptron()
    preparation, _ = prepared(perceptron)
    preparation.stop()
    preparation.start()
    preparation.stop()
    assert perceptron.threads == []


def test_a_process_that_ends_does_not_wait_for_it() -> None:
    perceptron = SlowPerceptron()
    preparation, _ = prepared(perceptron)
    preparation.start()
    assert perceptron.begun.wait(20.0)
    preparation.stop(wait=False)
    assert not perceptron.ended.is_set()
    perceptron.may_end.set()
    preparation.stop()
