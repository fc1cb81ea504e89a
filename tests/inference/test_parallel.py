"""Two parts of a perception at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
import torch

from embodied_perceptron.inference.predictor import parallel

VALUE: ContextVar[int] = ContextVar("value", default=0)


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("embodied_perceptron.inference.predictor.cores", lambda: 2)
    yield
    assert not [t for t in threading.enumerate() if t.name == "parallel"]  # none is left


def test_both_run_at_once() -> None:
    met = threading.Barrier(2, timeout=60)

    def other() -> int:
        met.wait()
        return threading.get_ident()

    result = parallel(other)
    met.wait()  # neither gets on alone
    assert result() != threading.get_ident()


def test_the_context_of_the_caller_holds() -> None:
    token = VALUE.set(7)
    try:
        assert parallel(VALUE.get)() == 7
    finally:
        VALUE.reset(token)


def test_what_fails_there_fails_here() -> None:
    def fails() -> None:
        raise torch.OutOfMemoryError("no memory")

    result = parallel(fails)
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        result()


def test_work_on_a_single_core_is_done_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_perceptron.inference.predictor.cores", lambda: 1)
    calls: list[int] = []
    result = parallel(lambda: calls.append(threading.get_ident()))
    assert calls == []
    result()
    assert calls == [threading.get_ident()]
