"""The work for a sentence of the greatest length is bounded. Calls are counted: time depends on the machine."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.query import MAX_QUERY_CHARACTERS
from embodied_perceptron.results import SceneObject

pytest.importorskip("transformers")
MOST_CALLS = 150_000  # of Python functions; the largest of 300 random sentences took 113,000
LABELS = ("chair", "table", "window", "lamp", "sofa", "door", "box", "cabinet", "bed", "shelf")
ROOM = tuple(
    SceneObject(i + 1, label, 0.8, np.array([4 * math.sin(7 * i), 4 * math.cos(3 * i), 0.5, 0.9, 0.5, 0.8, i, 0, 0]))
    for i, label in enumerate(3 * LABELS)
)
T_ODOM_CAMERA = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 1], [0, 0, 0, 1]])
# repeated to the greatest length: sentences of two or three of these nest, share and contradict each other
PARTS = ["the chair between ", "chair window between ", "next to the ", "left of the ", "the second closest ", "and "]
PARTS += ["that is not ", "with a lamp on it ", ", ", "which is between the table and the window ", "go to the "]
PARTS += ["bring me ", "if you ", "when i ", "the one ", "two metres from ", "3 ", "! ", "( ", '" ', "how many "]
WORDS = sorted({word for part in PARTS for word in part.split()} | {"red", "behind", "or", "except", "facing", "where"})
UNITS = st.one_of(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("".join),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=500).map(lambda words: " ".join(words) + " "),
    st.text("abc ,.-'\"()0123456789e", min_size=1, max_size=MAX_QUERY_CHARACTERS),
)


def calls_of(text: str) -> int:
    """How many Python functions the answer calls."""
    count = 0

    def counted(frame, event, arg) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        ground_objects(text, ROOM, T_ODOM_CAMERA)
    finally:
        sys.setprofile(before)
    return count


@settings(max_examples=60, deadline=None, derandomize=True)
@given(UNITS)
def test_the_longest_sentences_are_bounded_work(unit: str) -> None:
    ground_objects("the chair", ROOM, T_ODOM_CAMERA)  # tables are loaded
    text = (unit * MAX_QUERY_CHARACTERS)[:MAX_QUERY_CHARACTERS].strip()
    assert calls_of(text) < MOST_CALLS, text
