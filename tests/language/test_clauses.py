"""Clauses that name the landmark before the object are read of the object."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embodied_perceptron.language.clauses import restated
from embodied_perceptron.language.lexicon import split_words
from embodied_perceptron.language.parser import parse
from embodied_perceptron_training.homes.paraphrases import PARAPHRASES

SPOKEN = Path(__file__).parents[2] / "benchmarks" / "data" / "spoken_forms.json"


@pytest.mark.parametrize(
    ("text", "relation", "anchors"),
    [
        ("See that lamp? the chair that's in front of it", "front", ["lamp"]),
        ("can you see the lamp? on it there's a chair that i'd like", "on", ["lamp"]),
        ("find the lamp. now find the chair that's as far off from it as possible", "farthest", ["lamp"]),
        ("there's the lamp, and the chair i want is to the right", "right", ["lamp"]),
        ("stand by the lamp: the chair to its left, please", "own-left", ["lamp"]),
        ("if you sat on the couch, the lamp would be at your left", "own-left", ["couch"]),
        ("the lamp has a chair at its side, bring it to me", "near", ["lamp"]),
        ("the lamp holds a chair. get that", "on", ["lamp"]),
        ("look inside the box, the cup should be there", "in", ["box"]),
        ("in front of the lamp, that's where the chair is that i want", "front", ["lamp"]),
        ("go past the lamp and stop at the first chair", "closest", ["lamp"]),
        ("leave the lamp behind and take the most remote chair", "farthest", ["lamp"]),
        ("the lamp sits on a desk, and that desk is what i need", "supporting", ["lamp"]),
        ("the desk somebody put the lamp on", "supporting", ["lamp"]),
        ("the chair the lamp has turned its back on", "behind", ["lamp"]),
        ("of all the chairs it's the one the lamp is practically touching", "near", ["lamp"]),
        ("not those other chairs, the one hugging the lamp", "near", ["lamp"]),
        ("at the lamp's back there is a chair", "behind", ["lamp"]),
        ("every other chair is nearer to the lamp than this chair", "farthest", ["lamp"]),
        ("all the other chairs are farther from the lamp than the chair i need", "closest", ["lamp"]),
        ("no other chair is as far from the lamp", "farthest", ["lamp"]),
        ("none of the chairs stands closer to the lamp than the one i mean", "closest", ["lamp"]),
        ("i'm thinking of the chair that the lamp stands in front of", "behind", ["lamp"]),
        ("find the chair that the lamp hides", "behind", ["lamp"]),
        ("it's the chair the lamp supports", "on", ["lamp"]),
        ("it's the chair that the lamp has over it", "above", ["lamp"]),
        ("what the lamp has on its right is the chair i mean", "own-right", ["lamp"]),
        ("the lamp has one chair on it, which is what i want", "on", ["lamp"]),
        ("the lamp isn't what i need, it's the chair in front of it", "front", ["lamp"]),
        ("the chair halfway from the lamp to the bed", "between", ["lamp", "bed"]),
        ("which chair separates the lamp from the bed", "between", ["lamp", "bed"]),
        ("the chair with the lamp on one side and the bed on the other", "between", ["lamp", "bed"]),
        ("chair, window side", "near", ["window"]),
        ("cup on table", "on", ["table"]),
        ("pick the chair that keeps the most distance to the lamp", "farthest", ["lamp"]),
        ("the chair that's nowhere near the lamp", "farthest", ["lamp"]),
        ("I want the chair that is not far from the lamp", "near", ["lamp"]),
        ("the chair standing before the lamp", "front", ["lamp"]),
    ],
)
def test_the_object_and_its_relation(text, relation, anchors):
    meaning = parse(text)
    assert meaning.target.noun not in anchors
    told = [(c.relation, [a.noun for a in c.anchors], c.negated) for c in meaning.constraints]
    assert told == [(relation, anchors, False)]
    assert not meaning.excluded
    for phrase in (meaning.target, *meaning.constraints[0].anchors):
        assert text[slice(*phrase.span)].lower().removesuffix("s") == phrase.noun


@pytest.mark.parametrize(
    "text",
    [
        "the chair is brown. the table is next to it",  # describes the chair
        "find the couch. there is a lamp next to it",
        "the table has a lamp on it",
        "bring the cup from the desk to the bed",
        "stand at the door and look at the window, the chair on the left",
        "the couch's left leg",
        "walk over to the window and look at the seat in the corner on the left",
        "there is a chair and a table and a bed and a lamp near it",
        "",
    ],
)
def test_other_sentences_stay_as_they_are(text):
    words = split_words(text)
    assert restated(words) == words


def test_spoken_forms_stand_in_no_other_grammar():
    spoken = json.loads(SPOKEN.read_text(encoding="utf-8"))
    own = [form.lower() for forms in spoken.values() for form in forms]
    assert len(set(own)) == len(own) >= 150
    assert set(spoken) == set(PARAPHRASES)
    assert not {p.lower() for patterns in PARAPHRASES.values() for p in patterns} & set(own)
