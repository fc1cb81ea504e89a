"""Levels of shelves, ranks from the end, somebody called, misspelled labels, and things that are not there."""

from __future__ import annotations

import pytest
from support.language_scenes import thing

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.lexicon import lexicon, long_ranks, ordinal
from embodied_perceptron.results import GroundingStatus, SceneObject


def store() -> list[SceneObject]:
    """One shelf with boxes and jars at three levels, a row of bins along the south wall, a cat."""
    levels = [(1, "box", -0.9, 1.72), (2, "box", -0.3, 1.72), (3, "box", 0.3, 1.72), (4, "box", 0.9, 1.72)]
    levels += [(5, "box", -0.6, 1.2), (6, "jar", 0.1, 1.2), (7, "jar", 0.4, 0.45)]
    bins = [thing(k, "bin", (x, -2.2, 0.5), (0.5, 0.5, 1.0)) for k, x in ((9, -1.8), (10, -1.1), (11, -0.4), (12, 0.3))]
    return [
        *(thing(k, label, (x, 2.3, z), (0.3, 0.3, 0.3)) for k, label, x, z in levels),
        thing(8, "shelf", (0.0, 2.3, 1.0), (2.4, 0.5, 2.0)),
        *bins,
        thing(13, "door", (2.4, -1.9, 1.0), (0.1, 0.9, 2.0)),
        thing(14, "cat", (-1.0, 0.0, 0.12), (0.4, 0.2, 0.24)),
    ]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("the jar on the lowest shelf", [7]),
        ("the box on the middle shelf", [5]),
        ("the jar on the second shelf from the top", [6]),
        ("all the boxes on the top shelf", [1, 2, 3, 4]),
        ("next to last bin starting at the door", [10]),
        ("Mummy, where's the cat?", [14]),
        ("Grandpa, what's on the lowest shelf?", [7]),
        ("the catt", [14]),
        ("the dor", [13]),
    ],
)
def test_what_is_meant(text: str, meant: list[int]) -> None:
    answer = ground_objects(text, store(), vocabulary=None)
    assert answer.status == GroundingStatus.FOUND
    assert sorted(o.id for o in answer.candidates[: len(meant)]) == meant
    assert answer.count in (None, len(meant))


def test_a_box_on_another_is_no_level() -> None:
    objects = [*store(), thing(15, "box", (-0.9, 2.3, 1.97), (0.2, 0.2, 0.2))]
    answer = ground_objects("all the boxes on the top shelf", objects, vocabulary=None)
    assert sorted(o.id for o in answer.candidates) == [1, 2, 3, 4, 15]


@pytest.mark.parametrize("text", ["is there a dog?", "how many dogs are there", "how many televisions are there"])
def test_another_kind_of_the_same_is_not_counted(text: str) -> None:
    objects = [*store(), thing(15, "football", (1.0, 0.0, 0.11), (0.22, 0.22, 0.22))]
    answer = ground_objects(text, objects, vocabulary=None)
    assert (answer.status, answer.count) == (GroundingStatus.NOT_FOUND, 0)
    assert answer.reason.startswith("there is no ")


def test_similar_kinds_are_hardly_alike() -> None:
    assert lexicon().similarity("dog", "cat") <= 0.3
    assert lexicon().similarity("tv", "television") == 1.0


def test_a_thing_that_is_not_there_is_nobody_called() -> None:
    assert ground_objects("Teapot, the red one", store(), vocabulary=None).status == GroundingStatus.NOT_FOUND


def test_ranks_of_several_words_have_them_all() -> None:
    words = ["last", "but", "one", "and", "third", "to", "last", "but", "not", "the", "last", "one", "number", "12"]
    ranks = [words[a:b] for a, b in long_ranks(words)]
    assert ranks == [["last", "but", "one"], ["third", "to", "last"], ["number", "12"]]
    assert [ordinal(rank) for rank in ranks] == [-2, -3, 12]


@pytest.mark.parametrize("words", ["push-bike", "push bike", "pushbike", "coffee-table", "coffee table"])
def test_a_noun_with_a_hyphen_is_its_words(words: str) -> None:
    bicycle = thing(1, "bicycle", (1.0, 0.0, 0.5), (1.7, 0.5, 1.0))
    table = thing(2, "coffee table", (-1.0, 0.0, 0.2), (1.0, 0.6, 0.4))
    answer = ground_objects(f"the {words}", [bicycle, table], vocabulary=None)
    assert answer.status == GroundingStatus.FOUND
    assert [o.id for o in answer.candidates] == [2 if "table" in words else 1]
    assert "not understood" not in answer.reason


def test_what_a_noun_has_besides_is_not_understood() -> None:
    bicycle = thing(1, "bicycle", (1.0, 0.0, 0.5), (1.7, 0.5, 1.0))
    assert "not understood: velvet" in ground_objects("the velvet push-bike", [bicycle], vocabulary=None).reason


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("find the plastic create next to the toolbox", "crate"), ("what is standing under the eye run", "bowl"),
        ("the bee ker on the toolbox", "beaker"), ("watt is on the toolbox", "beaker"),
    ],
)  # fmt: skip
def test_homophones_of_speech_recognition_are_read_again(text: str, label: str) -> None:
    objects = [
        thing(1, "toolbox", (0.0, 0.0, 0.2), (0.5, 0.3, 0.4)), thing(2, "crate", (0.7, 0.0, 0.2), (0.4, 0.4, 0.4)),
        thing(3, "beaker", (0.0, 0.0, 0.45), (0.1, 0.1, 0.1)), thing(4, "bowl", (-3.0, 0.0, 0.05), (0.2, 0.2, 0.1)),
        thing(5, "iron", (-3.0, 0.0, 0.25), (0.2, 0.1, 0.2)),
    ]  # fmt: skip
    answer = ground_objects(text, objects, vocabulary=None)
    assert (answer.status, answer.candidates[0].label) == (GroundingStatus.FOUND, label)


def test_homophones_of_a_label_with_an_underscore() -> None:
    objects = [
        thing(1, "wash_basin", (0.0, 0.0, 0.4), (0.5, 0.5, 0.8)),
        thing(2, "chair", (3.0, 0.0, 0.4), (0.5, 0.5, 0.8)),
    ]
    answer = ground_objects("bring me to the wash base in", objects, vocabulary=None)
    assert (answer.status, answer.candidates[0].label) == (GroundingStatus.FOUND, "wash_basin")


@pytest.mark.parametrize("text", ["the hot cup", "put the hot cup there"])
def test_a_short_word_is_not_corrected_to_a_label(text: str) -> None:
    objects = [thing(1, "hat", (0.0, 0.0, 0.1), (0.3, 0.3, 0.2)), thing(2, "cup", (1.0, 0.0, 0.1), (0.1, 0.1, 0.1))]
    assert ground_objects(text, objects, vocabulary=None).candidates[0].label == "cup"


def test_a_freezer_that_is_not_there_is_no_dryer() -> None:
    objects = [
        thing(1, "tumble dryer", (0.0, 0.0, 0.4), (0.6, 0.6, 0.8)),
        thing(2, "bottle", (0.0, 0.0, 0.9), (0.1, 0.1, 0.2)),
    ]
    answer = ground_objects("what is on top of the freezer", objects, vocabulary=None)
    assert (answer.status, answer.reason) == (GroundingStatus.NOT_FOUND, "there is no freezer")


def test_the_box_with_nothing_on_it() -> None:
    boxes = [thing(k, "box", (2.0 * k, 0.0, 0.2), (0.4, 0.4, 0.4)) for k in (1, 2, 3)]
    cups = [thing(3 + k, "cup", (2.0 * k, 0.0, 0.45), (0.1, 0.1, 0.1)) for k in (1, 3)]
    answer = ground_objects("the box without anything on it", [*boxes, *cups], vocabulary=None)
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, 2)
