"""What stands around a request is put aside, and landmarks of a sentence before are put in."""

from __future__ import annotations

import pytest

from embodied_perceptron.language.lexicon import split_words
from embodied_perceptron.language.parser import Meaning, parse
from embodied_perceptron.language.preamble import put_aside


def said(meaning: Meaning) -> set[tuple[str, ...]]:
    return {(("not " if c.negated else "") + c.relation, *(a.noun for a in c.anchors)) for c in meaning.constraints}


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        ("We'd love to eat at the long table.", "table", {("long",)}),
        ("my daughter wants to lie down on the long couch", "couch", {("long",)}),
        ("I'm repairing the printer on the desk", "printer", {("on", "desk")}),
        ("The kettle has to go on the stove.", "kettle", set()),
        ("the towels belong in the hamper", "towel", set()),
        ("Could the small box be carried down to the cellar?", "box", {("small",)}),
        ("the plate on the counter should be put back in the cabinet, please", "plate", {("on", "counter")}),
        ("That blanket on the bed, fold it", "blanket", {("on", "bed")}),
        ("There ought to be a lamp beside the bed", "lamp", {("near", "bed")}),
        ("turn round, to your left is a radiator", "radiator", {("left-of-me",)}),
        ("wheel the stool to the desk", "stool", set()),
        ("would you be so kind as to wash the pan in the sink", "pan", set()),
        ("can somebody open the cabinet next to the stove", "cabinet", {("near", "stove")}),
        ("take a chair, just leave the one by the door", "chair", set()),
        ("The cat keeps scratching the tall couch", "couch", {("tall",)}),
        ("I spilled tea on the small rug", "rug", {("small",)}),
        ("the forms are kept in the smallest of the cabinets", "cabinet", {("small",)}),
        ("That blanket belongs back on the couch", "blanket", set()),
        ("Once they have left, shift the crate to the door", "crate", set()),
        ("take the cup off the desk before it falls", "cup", {("on", "desk")}),
        ("the lamp pls", "lamp", set()),
        ("I'm in the shower, hand me the towel", "towel", set()),
        ("open the window, it's boiling in here", "window", set()),
        ("the stool please, my foot hurts", "stool", set()),
        ("we want the plates moved to the counter", "plate", set()),
        ("The tv's on the dresser", "tv", {("on", "dresser")}),
        ("take the cup that is neither red nor blue", "cup", {("not colour",)}),
    ],
)
def test_what_is_only_around_a_request_is_no_condition(text, target, wanted):
    meaning = parse(text)
    assert meaning.target is not None
    assert (meaning.target.noun, said(meaning)) == (target, wanted)


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        ("There's a desk in the corner. The monitor on it is mine.", "monitor", {("on", "desk")}),
        ("Go over to the sink. I'd like the sponge that's on it.", "sponge", {("on", "sink")}),
        ("On the right there's a shelf. Fetch the book that is on it.", "book", {("on", "shelf")}),
        ("We've got a bed here. Bring me the blue pillow from it.", "pillow", {("on", "bed")}),
        ("I can see a dresser. Right next to it there should be a lamp.", "lamp", {("near", "dresser")}),
        ("There's a counter. A toaster is standing on it. Unplug that.", "toaster", {("on", "counter")}),
        ("far off you see a table. on it stands a vase. go to that vase", "vase", {("on", "table")}),
        ("Left of the bed is a small nightstand. The clock on it needs a battery.", "clock", {("on", "nightstand")}),
        ("The bed has two pillows on it. Give me the small one.", "pillow", {("on", "bed"), ("small",)}),
    ],
)
def test_a_landmark_of_the_sentence_before_takes_the_place_of_it(text, target, wanted):
    meaning = parse(text, {"sponge"})
    assert meaning.target is not None
    relations = {c for c in said(meaning) if len(c) > 1 or c[0] == "small"}
    assert (meaning.target.noun, relations) == (target, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "there is a chair. next to it is a table with a lamp on it",
        "this is a brown chair. the desk in front of it is white.",
        "i mean the lamp because it leans on the couch",
        "the lamp lights up as soon as you sit down on the couch",
        "it is a trash can. it is next to the door with the window in it.",
        "the black shelf is on the wall. it is to the left of the door with the window in it .",
    ],
)
def test_descriptions_stay_about_what_they_begin_with(text):
    assert put_aside(split_words(text)) == split_words(text)


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("I wonder what's lying on the desk", "contents", {("on", "desk")}),
        ("any idea what they have left on the table?", "contents", {("on", "table")}),
        ("what's been put under the bed?", "contents", {("below", "bed")}),
        ("list what is on the shelf, please", "contents", {("on", "shelf")}),
        ("did anyone leave something on the stove?", "contents", {("on", "stove")}),
        ("which things are on my desk", "contents", {("on", "desk")}),
        ("do you happen to know where the clock is", "where", set()),
        ("i was wondering how many chairs this room has", "count", set()),
    ],
)
def test_questions_in_other_words(text, kind, wanted):
    meaning = parse(text)
    assert (meaning.kind, said(meaning)) == (kind, wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("counting the chairs from the left, number three", {("from-left",)}),
        ("the second chair, counted from the right", {("from-right",)}),
        ("starting at the left, the fourth chair", {("from-left",)}),
    ],
)
def test_counting_from_a_side(text, wanted):
    meaning = parse(text)
    assert (said(meaning), meaning.every) == (wanted, False)


def test_the_best_thing_somewhere_is_one_of_whatever_is_there():
    for text in ("what's the tallest thing on the table?", "pick up the smallest object off the table"):
        meaning = parse(text)
        assert meaning.target is not None
        assert (meaning.target.noun, meaning.target.plural) == ("anything", False)
        assert ("on", "table") in said(meaning)


def test_what_asks_may_follow_something_else():
    meaning = parse("Looks tidy here, what's that on the dresser?")
    assert (meaning.kind, said(meaning)) == ("contents", {("on", "dresser")})
    meaning = parse("The desk is a mess again. What's on it?")
    assert (meaning.kind, said(meaning)) == ("contents", {("on", "desk")})


@pytest.mark.parametrize("text", ["the drawer of the left nightstand", "there's a stain on the armrest of the couch"])
def test_parts_of_things_are_none(text):
    assert "part" in parse(text).problem


def test_words_keep_their_places():
    text = "We've got a couch here. Bring me the red pillow from it."
    meaning = parse(text)
    assert meaning.target is not None
    assert text[slice(*meaning.target.span)] == "pillow"
    (on,) = (c for c in meaning.constraints if c.relation == "on")
    assert text[slice(*on.anchors[0].span)] == "couch"
