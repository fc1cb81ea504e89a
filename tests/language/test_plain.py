"""Forms that say plainly something else: orders whose verb is a noun, "right beside", "the sink, the one by ..."."""

from __future__ import annotations

import numpy as np
import pytest
from support.language_scenes import living_room, thing

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.parser import Meaning, parse
from embodied_perceptron.results import GroundingStatus


def said(meaning: Meaning) -> set[tuple[str, ...]]:
    return {(("not " if c.negated else "") + c.relation, *(a.noun for a in c.anchors)) for c in meaning.constraints}


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        ("Switch on the projector", "projector", set()),
        ("please switch the lamp off", "lamp", set()),
        ("Hoover the rug", "rug", set()),
        ("Roll over to the bench", "bench", set()),
        ("go stand by the door", "door", set()),
        ("Go and wait by the refrigerator", "refrigerator", set()),
        ("Have a quick look at the bathtub", "bathtub", set()),
        ("go to the board and take a picture of it", "board", set()),
        ("get rid of the bag by the door", "bag", {("near", "door")}),
        ("turn off the tv between the plant and the lamp", "tv", {("between", "plant", "lamp")}),
        ("take the cup right beside the plate", "cup", {("near", "plate")}),
        ("the sink, the one between the kettle and the microwave", "sink", {("between", "kettle", "microwave")}),
        ("my cup, it's the one next to the plate", "cup", {("near", "plate")}),
        ("go to the sink between the kettle and the microwave", "sink", {("between", "kettle", "microwave")}),
        ("the lamp nearer the window", "lamp", {("closest", "window")}),
        ("the clock that is least distant from the bookshelf", "clock", {("closest", "bookshelf")}),
        ("the chair across the table from the lamp", "chair", {("across", "lamp")}),
        ("I left the lamp on the table", "lamp", {("on", "table")}),
        ("the door hidden from view by the cabinet", "door", {("behind", "cabinet")}),
        ("the bag obstructing the refrigerator", "bag", {("front", "refrigerator")}),
        ("the chair that hides the lamp is the one to take", "chair", {("front", "lamp")}),
        ("the box that would be carried back to the cabinet", "box", set()),
        ("the stroller someone has parked in front of the wardrobe", "stroller", {("front", "wardrobe")}),
    ],
)
def test_what_is_plainly_meant(text: str, target: str, wanted: set) -> None:
    meaning = parse(text)
    assert meaning.target is not None
    assert meaning.target.noun == target
    assert {c for c in said(meaning) if c[0] != "context"} == wanted


@pytest.mark.parametrize(
    "text", ["throw the pillow onto the bed", "stick the backpack in the wardrobe", "box the books"]
)
def test_verbs_that_are_known_stay(text: str) -> None:
    meaning = parse(text)
    assert meaning.target is not None
    assert meaning.target.noun in ("pillow", "backpack", "book", "box")


def test_out_of_all_the_one_is_no_apposition() -> None:
    assert said(parse("Out of all the books, the one closest to the window.")) == {("closest", "window")}


def test_this_can_go_names_no_can() -> None:
    room = [*living_room(), thing(20, "trash can", (2.0, -1.5, 0.2), (0.3, 0.3, 0.4))]
    answer = ground_objects("This can go in the trash can", room)
    assert [o.label for o in answer.candidates] == ["trash can"]


# --------------------------------------------------------------------------------------------------------------------
# heights


def shelves() -> list:
    """A shelf of two metres with three boxes on its boards."""
    shelf = thing(1, "shelf", (0.0, 0.0, 1.0), (2.4, 0.4, 2.0))
    boxes = [thing(2 + i, "box", (-0.7 + 0.7 * i, 0.0, z), (0.35, 0.4, 0.3)) for i, z in enumerate((0.5, 1.2, 1.7))]
    return [shelf, *boxes]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("the lowest box on the shelf", 2),
        ("the highest box on the shelf", 4),
        ("the box on the top shelf", 4),
        ("the box on the bottom shelf", 2),
        ("the second box from the top", 3),
        ("the box more than one and a half metres off the floor", 4),
        ("the box less than half a metre above the ground", 2),
    ],
)
def test_a_board_of_a_shelf(text: str, wanted: int) -> None:
    answer = ground_objects(text, shelves())
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, wanted)


def test_a_measure_from_something_is_no_place_to_take_it_from() -> None:
    things = [
        thing(1, "lamp", (0.0, 0.0, 0.9), (0.2, 0.2, 0.4)),
        thing(2, "book", (0.3, 0.0, 0.72), (0.2, 0.15, 0.04)),
        thing(3, "book", (2.5, 0.0, 0.72), (0.2, 0.15, 0.04)),
    ]
    answer = ground_objects("Bring me the book that's less than half a metre from the lamp", things)
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, 2)


@pytest.mark.parametrize(
    "text", ["Which thing in here is taller than 1.9 m?", "what in this room is taller than 1.9 m"]
)
def test_which_thing_is_taller(text: str) -> None:
    answer = ground_objects(text, living_room())
    assert (answer.status, [o.label for o in answer.candidates]) == (GroundingStatus.FOUND, ["shelf"])


def test_what_is_still_there() -> None:
    answer = ground_objects("What's still on the table? We have to clear it.", living_room())
    assert [o.label for o in answer.candidates] == ["book"]


def test_a_remark_makes_no_sentence_long() -> None:
    colors = np.full((len(living_room()), 3), 128.0)
    text = "Can you bring me the yellow book? I have to give it back to the library before it closes today."
    assert ground_objects(text, living_room(), colors=colors).status == GroundingStatus.NOT_FOUND
