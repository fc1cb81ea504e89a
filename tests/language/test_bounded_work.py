"""Work and memory of a sentence are bounded by its length, however it nests."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.language_scenes import thing

from embodied_perceptron.language import relations
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.lexicon import split_words
from embodied_perceptron.language.meaning import (
    LANDMARK,
    TARGET,
    Constraint,
    Decoder,
    Meaning,
    ObjectPhrase,
    SentenceGraph,
    Thing,
    Told,
)
from embodied_perceptron.language.query import MAX_QUERY_CHARACTERS, Query, read_meaning

LABELS = ("chair", "table", "window", "lamp", "couch", "door", "box", "cabinet")
LIMIT = 40_000  # phrases that a walk over everything that is said meets, in a sentence of the longest length
PARTS = (
    *("the chair between ", "chair window between ", "next to the ", "left of the lamp ", "under the table "),
    *("that is not ", "with a lamp on it ", "and ", ", ", "closest to the door ", "which is between the box and "),
)


def phrases_met(meaning: Meaning) -> int:
    """How many phrases a walk over the meaning meets; the walk ends at twice the limit."""
    waiting: list[ObjectPhrase] = [a for c in meaning.constraints for a in c.anchors]
    met = 0
    while waiting and met <= 2 * LIMIT:
        phrase = waiting.pop()
        met += 1
        waiting += [a for c in phrase.constraints for a in c.anchors]
    return met


def longest(unit: str) -> str:
    return (unit * MAX_QUERY_CHARACTERS)[:MAX_QUERY_CHARACTERS].strip()


@pytest.mark.parametrize("repetitions", [2, 14, 40])
def test_nested_betweens_do_not_double(repetitions: int) -> None:
    said = "the chair between " + "the chair and the window between " * repetitions
    meaning = read_meaning(said, LABELS)
    assert meaning.target is not None
    assert phrases_met(meaning) <= LIMIT


def test_repetitions_of_any_kind_stay_small() -> None:
    draw = random.Random(7)
    for _ in range(25):
        unit = "".join(draw.choice(PARTS) for _ in range(draw.randint(1, 4)))
        assert phrases_met(read_meaning(longest(unit), LABELS)) <= LIMIT, unit


def test_three_levels_are_kept() -> None:
    """What people do say: a landmark of a landmark of a landmark."""
    text = "chair near table below lamp near window"
    things = tuple(Thing(2 * k, 2 * k + 1, TARGET if k == 0 else LANDMARK, k) for k in range(4))
    told = tuple(Told(2 * k + 1, 2 * k + 2, "below" if k == 1 else "near", k, (k + 1,)) for k in range(3))
    meaning = Decoder(text, split_words(text), SentenceGraph("find", things, told), LABELS).meaning()
    nouns, level = [], [a for c in meaning.constraints for a in c.anchors]
    while level:
        nouns += [a.noun for a in level]
        level = [a for phrase in level for c in phrase.constraints for a in c.anchors]
    assert nouns == ["table", "lamp", "window"]


def test_what_is_said_many_times_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    front = relations.PAIR_RELATIONS["front"]
    monkeypatch.setitem(relations.PAIR_RELATIONS, "front", lambda pairs: computed.append(1) or front(pairs))
    draw = np.random.default_rng(0)
    objects = [thing(i + 1, LABELS[i % 8], (*draw.uniform(-4, 4, 2), 0.5), (0.5, 0.5, 1.0)) for i in range(24)]
    fronts = tuple(Constraint("front", (ObjectPhrase("table", (k, k + 1)),)) for k in range(16))
    ground_objects(Query("chair", meaning=Meaning("chair", ObjectPhrase("chair", (0, 5)), fronts)), objects)
    assert 0 < len(computed) <= 12
