"""The grammar of paraphrases stands apart from the other two, and its parts from each other."""

from __future__ import annotations

import re

import pytest

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.query import read_meaning
from embodied_perceptron.results import SceneObject
from embodied_perceptron_training.homes.paraphrases import HELD_OUT, PARAPHRASES, TUNED
from embodied_perceptron_training.homes.prompts import FREE, PLAIN
from embodied_perceptron_training.language.fit_language import SENTENCES


def test_no_pattern_stands_in_another_grammar():
    own = [pattern.lower() for patterns in PARAPHRASES.values() for pattern in patterns]
    assert len(set(own)) == len(own)
    others = {p.lower() for grammar in (FREE, PLAIN, SENTENCES) for patterns in grammar.values() for p in patterns}
    assert not others & set(own)


def test_the_parts_are_the_whole():
    for relation, patterns in PARAPHRASES.items():
        assert sorted((*TUNED[relation], *HELD_OUT[relation])) == sorted(patterns)
        assert not set(TUNED[relation]) & set(HELD_OUT[relation])


@pytest.mark.parametrize("relation", sorted(PARAPHRASES))
def test_patterns_name_what_their_relation_needs(relation):
    wanted = {"target", "anchor", "anchor2"} if relation == "between" else {"target", "anchor"}
    for pattern in PARAPHRASES[relation]:
        assert set(re.findall(r"{(\w+)}", pattern)) == wanted, pattern


@pytest.mark.parametrize("relation", sorted(TUNED))
def test_tuned_patterns_are_read_of_the_target(relation):
    words = {"target": "lamp", "anchor": "couch", "anchor2": "bed"}
    read = [read_meaning(pattern.format(**words)).target for pattern in TUNED[relation]]
    assert [phrase is not None and phrase.noun for phrase in read] == ["lamp"] * len(read)


@pytest.mark.parametrize("relation", sorted(PARAPHRASES))
def test_nothing_is_answered_where_nothing_is(relation):
    words = {"target": "lamp", "anchor": "couch", "anchor2": "bed"}
    nothing: list[SceneObject] = []
    for pattern in PARAPHRASES[relation]:
        assert ground_objects(pattern.format(**words), nothing).candidates == ()
