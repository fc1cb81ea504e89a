"""What is in hand, or lies where nothing maps it, leads to its place; what is said meanwhile is put aside."""

from __future__ import annotations

import numpy as np
import pytest
from support.language_scenes import camera, living_room, thing

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.errands import to_places
from embodied_perceptron.language.lexicon import split_words
from embodied_perceptron.language.parser import Meaning, parse
from embodied_perceptron.results import GroundingStatus

ROOM = ("chair", "table", "trash can", "cabinet", "lamp", "bench", "plant", "refrigerator", "nightstand", "bed")


def said(meaning: Meaning) -> set[tuple[str, ...]]:
    return {(("not " if c.negated else "") + c.relation, *(a.noun for a in c.anchors)) for c in meaning.constraints}


def read(text: str) -> tuple[str | None, set[tuple[str, ...]]]:
    meaning = parse(text, ROOM)
    return (None if meaning.target is None else meaning.target.noun), said(meaning)


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        ("Throw these wrappers in the bin, would you?", "bin", set()),
        ("put the muddy gaiters under the bench", "bench", set()),
        ("Put my mug of tea on the nightstand next to the bed", "nightstand", {("near", "bed")}),
        ("please give some water to the plant on the table", "plant", {("on", "table")}),
        ("Take my coat and drape it, then hang it on the chair", "chair", set()),
        ("My gloves are on the bench by the refrigerator, go over there", "bench", {("near", "refrigerator")}),
        ("The receipts from March are in the tallest of the cabinets, take me there.", "cabinet", {("tall",)}),
        ("Nan's knitting is in the cabinet. Go there.", "cabinet", set()),
        ("I left my scarf on the second chair from the left", "chair", {("from-left",)}),
        ("This can go in the bin near the bed", "bin", {("near", "bed")}),
        ("Cardboard goes in the blue bin", "bin", {("colour",)}),
        ("Could you show the visitors to the bench?", "bench", set()),
        ("Take her to the chair by the bed", "chair", {("near", "bed")}),
        ("Our choir leader always takes the tall chair, put this hymn book on it", "chair", {("tall",)}),
        ("There's a bin beside the bed, drop this tissue in there", "bin", {("near", "bed")}),
        ("The Easter eggs are in the highest cabinet, can you reach it?", "cabinet", {("high",)}),
    ],
)
def test_the_place_of_what_the_map_cannot_hold_is_asked_for(text: str, target: str, wanted: set) -> None:
    assert read(text) == (target, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "bring me the umbrella from the bench",
        "The backpack is on the chair, fetch it",
        "My shoes are under the bed, get them",
        "take the umbrella to the table",
        "is there a guitar next to the bed",
        "put the umbrella on the bench",
        "show the umbrella on the bench",
    ],
)
def test_what_the_map_could_hold_stays_what_is_asked_for(text: str) -> None:
    target, _ = read(text)
    assert target in ("umbrella", "backpack", "shoe", "guitar")


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        ("Put the lamp on the table", "lamp", set()),
        ("the lamp is on the table, go there", "lamp", {("on", "table")}),
        ("I left the lamp on the table", "lamp", {("on", "table")}),
        ("See the table? The lamp on it, please.", "lamp", {("on", "table")}),
        ("tell me what is on the table", "anything", {("on", "table")}),
    ],
)
def test_what_stands_on_the_map_stays_what_is_asked_for(text: str, target: str, wanted: set) -> None:
    assert read(text) == (target, wanted)


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        ("Where's the bench? I need to tie my laces.", "bench", set()),
        ("Clean the table, the crumbs drive me mad.", "table", set()),
        ("Water the plant by the bed, the leaves look sad.", "plant", {("near", "bed")}),
        ("My parcel should have come, go to the door-side bench and wait for me", "bench", None),
        ("Me and my sister want to play, can you bring all the chairs?", "chair", set()),
        ("We need milk, go to the refrigerator", "refrigerator", set()),
        ("Bring the chair next to the table, that one squeaks least", "chair", {("near", "table")}),
        ("Can you empty the bins? Both of them smell.", "bin", set()),
        ("Move the lamp because the meeting starts in a minute", "lamp", set()),
    ],
)
def test_what_is_said_meanwhile_is_no_condition(text: str, target: str, wanted: set | None) -> None:
    noun, constraints = read(text)
    assert noun == target
    assert wanted is None or constraints == wanted


@pytest.mark.parametrize(
    "text",
    [
        "The chair. It's the one by the window side of the table",
        "take the lamp, it is on the table",
        "the chair, the red one",
        "the lamp, on the left",
        "get me the chair, not the blue one",
    ],
)
def test_what_tells_the_thing_is_no_remark(text: str) -> None:
    words = split_words(text)
    assert to_places(words, ROOM) == (words, False)


def test_without_a_scene_nothing_is_taken_away() -> None:
    words = split_words("throw these wrappers in the bin")
    assert to_places(words, ()) == (words, False)


def test_an_errand_is_answered_with_its_place() -> None:
    room = living_room()
    answer = ground_objects("My knitting is on the table, go there", room)
    assert (answer.status, answer.candidates[0].label) == (GroundingStatus.FOUND, "table")
    assert "is not on the map" in answer.reason
    assert "is not on the map" not in ground_objects("go to the table", room).reason


# --------------------------------------------------------------------------------------------------------------------
# one that will do


def chairs() -> tuple:
    return tuple(thing(i + 1, "chair", (0.8 * i, 2.0, 0.45), (0.5, 0.5, 0.9)) for i in range(4))


def test_any_one_will_do() -> None:
    colors = np.array([[180, 30, 30], [20, 40, 200], [235, 235, 235], [20, 20, 20]], dtype=np.float64)
    asked = ground_objects("bring a chair", chairs(), camera((1.2, -1.0, 1.1), (1.2, 2.0, 0.5)), colors=colors)
    answer = ground_objects(
        "Bring any chair except the red one", chairs(), camera((1.2, -1.0, 1.1), (1.2, 2.0, 0.5)), colors=colors
    )
    assert asked.status == GroundingStatus.AMBIGUOUS
    assert answer.status == GroundingStatus.FOUND
    assert answer.candidates[0].id != 1
    assert answer.candidates[0].score > 0.9


def test_several_are_left_out() -> None:
    colors = np.array([[180, 30, 30], [20, 40, 200], [235, 235, 235], [20, 20, 20]], dtype=np.float64)
    answer = ground_objects(
        "Bring me a chair, just not the red one or the blue one",
        chairs(),
        camera((1.2, -1.0, 1.1), (1.2, 2.0, 0.5)),
        colors=colors,
    )
    assert answer.status == GroundingStatus.FOUND
    assert answer.candidates[0].id in (3, 4)


def test_those_to_be_left_may_come_first() -> None:
    colors = np.array([[180, 30, 30], [20, 40, 200], [20, 20, 20], [20, 20, 20]], dtype=np.float64)
    answer = ground_objects(
        "Leave the black chairs, but take all the other chairs",
        chairs(),
        camera((1.2, -1.0, 1.1), (1.2, 2.0, 0.5)),
        colors=colors,
    )
    assert {o.id for o in answer.candidates} == {1, 2}


# --------------------------------------------------------------------------------------------------------------------
# what a second set of rooms showed


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        ("Put fresh towels on the table by the bed", "table", {("near", "bed")}),
        ("Hang the gentleman's coat on the chair", "chair", set()),
        ("We keep spare fuses in the cabinet under the lamp.", "cabinet", {("below", "lamp")}),
        ("Paper goes into the blue bin, so bring it over", "bin", {("colour",)}),
        ("This fluff can go in the bin next to the bed", "bin", {("near", "bed")}),
        ("I nearly fell over the bench between the bed and the table. Can you put it somewhere else?", "bench", None),
        ("I'd like to hang up his jacket, can you show me the cabinet?", "cabinet", set()),
        ("I'm moving out next week, so pack all the lamps.", "lamp", set()),
        ("Fetch me the chair, I want to reach the top of the refrigerator.", "chair", set()),
        ("Is there a lamp in this room? I'd like to read at the table.", "lamp", set()),
        ("Clean the bed closest to the table, the other one hasn't been used.", "bed", {("closest", "table")}),
        ("Go and wait at the bench, please, and send the next people to me.", "bench", set()),
        ("My legs are tired, I'd love to lie down on the bed for a while. Where is it?", "bed", set()),
        ("The receipts are in the tall cabinet, could you show me which that is?", "cabinet", {("tall",)}),
        ("I left a lamp on the table. Somebody wants the lamp that's on it.", "lamp", {("on", "table")}),
        ("There's a nightstand by the bed. The lamp on it doesn't work, could you change the bulb?", "lamp", None),
        ("There's a lamp on one of the cabinets, lift it down", "lamp", {("on", "cabinet")}),
    ],
)
def test_errands_and_remarks_in_further_words(text: str, target: str, wanted: set | None) -> None:
    noun, constraints = read(text)
    assert noun == target
    assert wanted is None or constraints == wanted


def test_remarks_that_point_are_kept() -> None:
    noun, constraints = read("There's a table by the bed. On it you'll find a lamp, that's what I need.")
    assert noun == "lamp"
    assert ("on", "table") in constraints


def test_what_nobody_knows_is_not_shown_as_its_place() -> None:
    noun, _ = read("show me the unicorn on the table")
    assert noun == "unicorn"
    answer = ground_objects("show the unicorn on the table", living_room())
    assert answer.status == GroundingStatus.NOT_FOUND
