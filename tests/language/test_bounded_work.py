"""Work and memory of a sentence are bounded by its length, however it nests."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.language_scenes import thing

from embodied_perceptron.config import SentenceReading
from embodied_perceptron.language import relations
from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.learned.reading import read_meaning
from embodied_perceptron.language.meaning import Meaning, ObjectPhrase
from embodied_perceptron.language.query import MAX_QUERY_CHARACTERS, Query

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


@pytest.mark.parametrize("reader", ["learned", "grammar"])
@pytest.mark.parametrize("repetitions", [2, 14, 40])
def test_nested_betweens_do_not_double(repetitions: int, reader: SentenceReading) -> None:
    said = "the chair between " + "the chair and the window between " * repetitions
    meaning = read_meaning(said, LABELS, reader)
    assert meaning.target is not None
    assert phrases_met(meaning) <= LIMIT


@pytest.mark.parametrize("reader", ["learned", "grammar"])
def test_repetitions_of_any_kind_stay_small(reader: SentenceReading) -> None:
    draw = random.Random(7)
    for _ in range(25):
        unit = "".join(draw.choice(PARTS) for _ in range(draw.randint(1, 4)))
        assert phrases_met(read_meaning(longest(unit), LABELS, reader)) <= LIMIT, unit


def test_three_levels_are_kept() -> None:
    """What people do say: a landmark of a landmark of a landmark."""
    meaning = read_meaning("the chair next to the table under the lamp near the window", LABELS, "grammar")
    nouns, level = [], [a for c in meaning.constraints for a in c.anchors]
    while level:
        nouns.append({a.noun for a in level})
        level = [a for phrase in level for c in phrase.constraints for a in c.anchors]
    assert nouns[0] >= {"table"}
    assert {"lamp"} <= set().union(*nouns)


def test_what_is_said_many_times_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    front = relations.PAIR_RELATIONS["front"]
    monkeypatch.setitem(relations.PAIR_RELATIONS, "front", lambda pairs: computed.append(1) or front(pairs))
    draw = np.random.default_rng(0)
    objects = [thing(i + 1, LABELS[i % 8], (*draw.uniform(-4, 4, 2), 0.5), (0.5, 0.5, 1.0)) for i in range(24)]
    ground_objects(Query(longest("chair facing table and as any ")).parsed(LABELS, "grammar"), objects)
    assert 0 < len(computed) <= 12
