"""Things that users named are answered by these names, first and in any sentence."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.query import Query, check_label, check_no_kind, name_word, with_user_names
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


def test_what_comes_nearest_has_its_name_too():
    nearest = answer("Anna's desk that is under the lamp").nearest
    assert [(o.id, o.label, o.user_name) for o in nearest] == [(1, "desk", "Anna's desk")]


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


@pytest.mark.parametrize(
    "text",
    ["the chair next to Anna's desk", "the chair between  Anna’s  desk and the Anna", "where is Anna?", "Anna's desk"],
)
def test_phrases_stand_where_they_stood(text):
    phrases = answer(text).phrases
    assert phrases
    for phrase in phrases:
        assert text[phrase.start : phrase.end] == phrase.text
        assert "zzq" not in phrase.text
    by_text = {phrase.text.removeprefix("the "): phrase.ids for phrase in phrases}
    for name, number in (("Anna's desk", 1), ("Anna’s  desk", 1), ("Anna", 6)):
        assert by_text.get(name, (number,)) == (number,)
    assert {"Anna's desk", "Anna’s  desk", "Anna"} & set(by_text)


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


@pytest.mark.parametrize(
    "name",
    ["chairs", "the  chair", "A Sofa", "coffee tables", "front door", "on", "the", "next to", "where is", "red", "big"],
)
def test_names_that_would_take_others_sentences_are_refused(name):
    with pytest.raises(ValueError, match=r"the name of a class|another meaning"):
        check_no_kind(name)


@pytest.mark.parametrize(
    "name",
    ["Anna's desk", "Tür (alt) + 1", "the big one", "my chair", "Rosie", "日本", "B-17", "desk 2"],
)
def test_names_of_ones_own_are_taken(name):
    assert check_no_kind(name) == name


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("sofas", "sofa"),
        ("coffee tables", "coffee table"),
        ("Chairs", "chair"),
        ("stairs", "stairs"),
        ("glass", "glass"),
    ],
)
def test_the_label_of_one_object_is_singular(label, kept):
    assert check_label(label) == kept


def test_labels_are_things():
    for label in ("workbench", "can", "light", "chair", "zorgle", "robot dock"):
        assert check_label(label) == label
    for label in ("the", "on", "next to", "where is it"):
        with pytest.raises(ValueError, match="cannot name an object"):
            check_label(label)
