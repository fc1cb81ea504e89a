"""Questions about the past: what is one, and what is answered from the histories of objects."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.query import Query
from embodied_perceptron.language.time_questions import answer_about_past, read_time_question, when, with_past
from embodied_perceptron.results import EventKind, GroundingStatus, HistoryEntry, ObjectState, SceneObject
from embodied_perceptron.scene.live_map import PublishedScene

S = 1_000_000_000
NOW = int(datetime(2026, 3, 5, 21, 0).timestamp()) * S


def thing(number, label, xyz, *history, state=ObjectState.CONFIRMED, seen_s=0.0, size=(0.1, 0.1, 0.1)):
    entries = tuple(HistoryEntry(NOW - int(ago * S), kind, at, 0.9) for ago, kind, at in history)
    box = np.array([*xyz, *size, 0.0, 0.0, 0.0])
    return SceneObject(number, label, 0.9, box, state, NOW - int(seen_s * S), history=entries)


def scene():
    table = thing(1, "table", (0.0, 0.0, 0.4), (9e4, EventKind.FOUND, (0.0, 0.0, 0.4)), size=(1.4, 0.8, 0.8))
    old, new = (3.0, 1.0, 0.8), (0.2, 0.1, 0.85)
    mug = thing(2, "mug", new, (9e4, EventKind.FOUND, old), (300, EventKind.MOVED, new))
    book = thing(3, "book", (-0.3, 0.0, 0.85), (40, EventKind.APPEARED, (-0.3, 0.0, 0.85)))
    at = (0.1, -0.2, 0.9)
    bag = thing(4, "backpack", at, (9e4, EventKind.FOUND, at), (7200, EventKind.LEFT, at), state="gone", seen_s=10800)
    return PublishedScene(objects=(table, mug, book), gone=(bag,))


def ask(text, of=None):
    of = scene() if of is None else of
    return answer_about_past(Query(text), of, lambda words, objects: ground_objects(words, objects))


@pytest.mark.parametrize(
    ("text", "status", "ids", "words"),
    [
        ("where was the mug before?", "FOUND", [2], ["x 3.00 y 1.00 z 0.80", "5 min ago"]),
        ("Where did the mug stand before", "FOUND", [2], ["x 3.00"]),
        ("where was the table before", "FOUND", [1], ["has been at x 0.00", "25 h ago"]),
        ("when did you last see the backpack", "FOUND", [4], ["3 h ago (18:00)", "not there; looked 2 h ago"]),
        ("when was the book last seen?", "FOUND", [3], ["0 s ago"]),
        ("what moved", "FOUND", [2], ["the mug 2 moved from x 3.00 y 1.00 z 0.80 m to x 0.20"]),
        ("what has moved in the last 10 minutes?", "FOUND", [2], []),
        ("what moved in the last minute", "NOT_FOUND", [], ["nothing moved in the last minute"]),
        ("has the table moved", "NOT_FOUND", [], ["the table has not moved"]),
        ("did the mug move since 20:30", "FOUND", [2], []),
        ("what is new on the table", "FOUND", [3], ["appeared", "40 s ago"]),
        ("anything new?", "FOUND", [3], []),
        ("is anything missing", "FOUND", [4], ["the backpack 4 left", "noticed 2 h ago", "last seen 3 h ago"]),
        ("what is missing from the table", "FOUND", [4], []),
        ("what is gone since this evening", None, None, None),
        ("what is gone since 20:00", "NOT_FOUND", [], ["nothing is missing since 20:00"]),
        ("what changed since yesterday", "FOUND", [3, 2, 4], []),
        ("when did you last see the giraffe", "NOT_FOUND", [], ["giraffe"]),
        ("where is the mug", None, None, None),
        ("the chair that moved", None, None, None),
        ("what is on the table", None, None, None),
    ],
)
def test_answers(text, status, ids, words):
    answer = ask(text)
    if status is None:
        assert answer is None
        return
    assert (answer.status.name, [o.id for o in answer.candidates]) == (status, ids)
    for part in words:
        assert part in answer.reason


@pytest.mark.parametrize(("distance_m", "status"), [(0.05, "NOT_FOUND"), (0.0, "NOT_FOUND"), (1.0, "FOUND")])
def test_what_came_back_to_its_place_has_not_moved(distance_m, status):
    at, back = (1.0, 0.0, 0.5), (1.0 + distance_m, 0.0, 0.5)
    cup = thing(5, "cup", back, (90, EventKind.FOUND, at), (60, EventKind.LEFT, at), (30, EventKind.RETURNED, back))
    assert ask("what moved?", PublishedScene(objects=(cup,))).status.name == status


@pytest.mark.parametrize(("probability", "is_likely"), [(0.62, True), (0.4, False)])
def test_an_object_that_probably_is_one_that_left_has_probably_moved(probability, is_likely):
    of, at = scene(), (2.0, 2.0, 0.4)
    bag = replace(thing(9, "backpack", at, (50, EventKind.APPEARED, at)), maybe_same_as=((4, probability), (2, 0.2)))
    of = PublishedScene(objects=(*of.objects, bag), gone=of.gone)
    words = "the backpack 9 at x 2.00 y 2.00 z 0.40 m is probably the backpack 4, which left x 0.10 y -0.20 z 0.90 m"
    moved = ask("what moved?", of)
    assert [o.id for o in moved.candidates] == [9, 2] if is_likely else [2]
    assert (words in moved.reason) is is_likely
    assert ask("what moved in the last 10 seconds?", of).status == GroundingStatus.NOT_FOUND
    assert (words in ask("where was the backpack before", of).reason) is is_likely


def test_nothing_found_says_when_the_thing_was_last_there():
    of = scene()
    lookup = lambda words, objects: ground_objects(words, objects)  # noqa: E731
    answer = with_past(ground_objects("the backpack", of.objects), of, lookup)
    assert answer.status == GroundingStatus.NOT_FOUND
    assert "the backpack 4 was last seen 3 h ago (18:00) at x 0.10 y -0.20 z 0.90 m" in answer.reason
    other = ground_objects("the piano", of.objects)
    assert with_past(other, of, lookup) == other


@pytest.mark.parametrize(
    ("ago_s", "words"),
    [(0, "0 s ago"), (59, "59 s ago"), (300, "5 min ago (20:55)"), (7200, "2 h ago (19:00)")],
)
def test_times_in_words(ago_s, words):
    assert when(NOW - ago_s * S, NOW) == words


def test_times_without_a_calendar_are_spans():
    assert when(5 * S, 65 * S) == "60 s ago"
    assert when(0, 7200 * S) == "2 h ago"
    assert read_time_question("what moved since yesterday", 100 * S).since_ns == 0
    assert read_time_question("what moved in the last minute", 100 * S).since_ns == 40 * S
    assert when(10 * S, 5 * S) == "0 s ago"  # a clock that was set back


def test_a_question_about_a_scene_without_a_past():
    bare = PublishedScene(objects=tuple(replace(o, history=()) for o in scene().objects))
    assert ask("what moved", bare).status == GroundingStatus.NOT_FOUND
    assert ask("where was the mug before", bare).status == GroundingStatus.FOUND
    assert ask("is anything missing", PublishedScene()).status == GroundingStatus.NOT_FOUND
