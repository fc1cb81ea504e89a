"""Things that users named are answered by these names, first and in any sentence."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.query import Query
from embodied_perceptron.language.user_names import name_word, with_user_names
from embodied_perceptron.results import GroundingStatus, SceneObject


def thing(number, label, x, y, user_name=""):
    return SceneObject(number, label, 0.9, np.array([x, y, 0.4, 0.6, 0.6, 0.8, 0, 0, 0.0]), user_name=user_name)


OBJECTS = (
    thing(1, "desk", 0.0, 0.0, "Anna's desk"),
    thing(2, "desk", 4.0, 0.0),
    thing(3, "chair", 0.0, 0.8),
    thing(4, "chair", 4.0, 0.8),
    thing(25, "lamp", 4.0, 3.0, "Tür (alt) + 1"),
    thing(6, "shelf", -3.0, 0.0, "Anna"),
    thing(7, "box", -3.0, 3.0, "the big one"),
)


def answer(text):
    query = Query(text)
    named = with_user_names(query, OBJECTS)
    if named is None:
        return ground_objects(query, OBJECTS)
    return named.restored(ground_objects(named.query, named.objects))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Anna's desk", 1),
        ("where is anna’s DESK?", 1),
        ("go to Anna's desk", 1),
        ("take me to Anna", 6),
        ("Tür (alt) + 1", 25),
        ("the big one", 7),
        ("show me the big one", 7),
        ("the chair next to Anna's desk", 3),
        ("the desk that is not Anna's desk", 2),
        ("what is beside Anna's desk", 3),
    ],
)
def test_by_name(text, number):
    found = answer(text)
    assert (found.status, found.candidates[0].id) == (GroundingStatus.FOUND, number), found
    original = next(o for o in OBJECTS if o.id == number)
    assert (found.candidates[0].label, found.candidates[0].user_name) == (original.label, original.user_name)
    assert found.text == text
    assert "zzq" not in found.reason + found.tagged_text + found.text


def test_words_of_the_answer_are_the_users():
    assert answer("go to Anna's desk").tagged_text == "go to <p>Anna's desk</p>[<obj_1>]"
    assert "Anna's desk" in answer("the chair next to Anna's desk").reason


def test_other_sentences_are_left_alone():
    for text in ("the lamp", "Annabel's desk", "the bigger one", "", "x" * 2_000, "Anna\x00's desk"):
        assert with_user_names(Query(text), OBJECTS) is None
    assert answer("the desk").status == GroundingStatus.AMBIGUOUS  # both are desks
    assert with_user_names(Query("Anna's desk"), OBJECTS[1:4]) is None


def test_made_words_are_different_and_no_words():
    words = {name_word(i) for i in range(2000)}
    assert len(words) == 2000
    assert all(word.isalpha() for word in words)
    assert not any(a != b and a in b for a in list(words)[:200] for b in words)
