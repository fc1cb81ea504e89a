"""Questions about attributes: answered from boxes and colours, or refused by name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.language_scenes import camera, living_room, thing

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.meaning import Meaning
from embodied_perceptron.language.query import Query, embedded_meaning
from embodied_perceptron.language.questions import read_question
from embodied_perceptron.results import GroundingStatus

FOUND, NOT_FOUND, AMBIGUOUS, INVALID = GroundingStatus
ROOM = [
    *living_room(),
    dataclasses.replace(thing(14, "door", (-2.4, 0.0, 1.0), (0.1, 0.9, 2.0)), condition="open"),
    thing(15, "bed", (-1.5, -1.2, 0.3), (1.6, 1.2, 0.6)),
]
_RGB = {"couch": (200, 30, 30), "table": (120, 80, 40), "door": (np.nan,) * 3}
COLORS = np.array([_RGB.get(o.label, (240, 240, 240)) for o in ROOM], dtype=np.float64)


def ask(text: str, viewpoint=None):
    return ground_objects(text, ROOM, viewpoint, colors=COLORS)


@pytest.mark.parametrize(
    ("text", "ids", "reason"),
    [
        ("what colour is the couch", [1], "couch 1 is red"),
        ("Tell me the color of the table!", [2], "table 2 is brown"),
        ("do you know what colour the couch is?", [1], "couch 1 is red"),
        ("what colour is the table next to the couch", [2], "table 2 is brown"),
        ("what are the colours of the chairs", [3, 4, 8], "chair 3 is white; chair 4 is white; chair 8 is white"),
        ("how big is the couch?", [1], "couch 1 is 2.00 m wide, 0.90 m deep and 0.80 m high"),
        ("what is the height of the shelf", [6], "shelf 6 is 2.00 m high"),
        ("how high is the tv", [7], "tv 7 is 0.70 m high, 0.50 m above the floor"),
        ("how wide is the table?", [2], "table 2 is 1.00 m wide"),
        ("how far is the lamp from the couch", [5], "lamp 5 is 0.65 m from couch 1"),
        ("what's the distance between the lamp and the couch?", [5], "lamp 5 is 0.65 m from couch 1"),
        (
            "what is the relation between the book on the table and the table",
            [10],
            "book 10 is on table 2, 0.00 m away",
        ),
        ("which is bigger, the couch or the table", [1], "couch 1: large"),
        ("which is bigger, the table or the couch?", [1], "couch 1: large"),
        ("what is taller: the lamp or the shelf?", [6], "shelf 6: tall"),
        ("which one is closer to the door, the bed or the couch", [15], "bed 15: closest to the door"),
        ("which is closer to the door, the couch or the bed", [15], "bed 15: closest to the door"),
        ("where is the tv?", [7], "1 found: tv 7; tv 7 is on stand 9"),
        ("how many chairs are there", [3, 4, 8], "3 found"),
        ("is there a lamp", [5], "1 found: lamp 5"),
        ("is the door open", [14], "1 found: door 14, open"),
    ],
)
def test_the_answer_is_in_the_reason(text, ids, reason):
    grounding = ask(text)
    assert grounding.status == FOUND
    assert sorted(o.id for o in grounding.candidates[: len(ids)]) == ids
    assert grounding.reason.startswith(reason)


@pytest.mark.parametrize(
    ("text", "reason", "nearest"),
    [
        ("what colour is the piano", "there is no piano", None),
        ("what colour is the door", "the colour of the door is not known", 14),
        ("what is the couch made of?", "what the couch is made of is not known: the map does not hold it", 1),
        ("which material is the table", "what the table is made of is not known: the map does not hold it", 2),
        ("what shape are the chairs", "the shape of the chairs is not known: the map does not hold it", 3),
        ("how heavy is the lamp", "the weight of the lamp is not known: the map does not hold it", 5),
        ("how much does the tv cost", "the price of the tv is not known: the map does not hold it", 7),
        ("what is the bed used for", "the use of the bed is not known: the map does not hold it", 15),
        ("how far is the lamp from the piano", "there is no piano", 5),
        ("how far away is the lamp", "the distance of the lamp is not known", 5),
        ("which is bigger, the couch or the piano", "there is no piano", None),
        ("which is bigger, the piano or the couch", "there is no piano", None),
    ],
)
def test_what_is_not_known_is_refused_by_name(text, reason, nearest):
    grounding = ask(text)
    assert (grounding.status, grounding.reason, grounding.candidates) == (NOT_FOUND, reason, ())
    assert (grounding.nearest[0].id if grounding.nearest else None) == nearest


def test_of_several_objects_each_is_told_apart():
    grounding = ask("what colour is the chair")
    assert grounding.status == AMBIGUOUS
    assert "chair 3 is white" in grounding.reason
    assert "chair 4 is white" in grounding.reason


def test_a_distance_from_the_speaker():
    viewpoint = camera((0.0, -1.0, 1.0), (0.0, 1.0, 1.0))
    assert ask("how far is the couch from you?", viewpoint).reason == "couch 1 is 2.15 m from you"
    assert ask("how far away is the couch", viewpoint).reason == "couch 1 is 2.15 m from you"


def test_a_colour_without_colours():
    grounding = ground_objects("what colour is the couch", ROOM)
    assert (grounding.status, grounding.reason) == (NOT_FOUND, "the colour of the couch is not known")


@pytest.mark.parametrize(
    "text",
    [
        "the chair of the same colour as the couch",
        "what is on the table or the shelf",
        "what can I use to sit on",
        "something to sit on",
        "bring me the red book",
        "give me the fabric softener",
        "which is under the lamp or the bed",
        "the largest chair or the lamp",
        "what is the tallest object",
    ],
)
def test_other_sentences_are_read_as_before(text):
    assert (embedded_meaning(text).asked, embedded_meaning(text).second) == ("", None)


@pytest.mark.parametrize("part", [" ", "or ", "is ", "a or b ", "to ", "from to ", "closer to "])
@pytest.mark.parametrize("start", ["which is bigger x", "how far is x", "what is the distance between x", "is x or y"])
def test_hostile_texts_cost_no_more_than_others(start, part):
    def read(text):
        return Meaning(text, None)

    read_question(f"{start} {part * 1000}"[:1000] + "x", read)  # would take minutes where spaces match in many ways


def test_spans_are_those_of_the_sentence():
    text = "what is the distance between the lamp and the couch?"
    meaning = Query(text).parsed([o.label for o in ROOM]).meaning
    assert meaning is not None
    assert meaning.second is not None
    assert (text[slice(*meaning.target.span)], text[slice(*meaning.second.span)]) == ("lamp", "couch")
    assert ask(text).tagged_text == "what is the distance between the <p>lamp</p>[<obj_5>] and the couch?"
