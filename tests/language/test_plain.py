"""Forms that say plainly something else: orders whose verb is a noun, "right beside", "the sink, the one by ..."."""

from __future__ import annotations

import numpy as np
import pytest
from support.language_scenes import camera, living_room, thing

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


# --------------------------------------------------------------------------------------------------------------------
# ranks, lengths, another one, kinds that are named after their place


@pytest.mark.parametrize(
    ("text", "target", "wanted"),
    [
        ("Roll me the blue ball, will you?", "ball", {("colour",)}),
        ("excuse me, is it possible I take the red stool?", "stool", {("colour",)}),
        ("throw away the pillow in front of the couch", "pillow", {("front", "couch")}),
        ("Please wash the mirror above the sink", "mirror", {("above", "sink")}),
        ("pull my bag aside, it is blocking the way to the wardrobe", "bag", {("front", "wardrobe")}),
        ("the ottoman facing the tv", "ottoman", {("front", "tv")}),
        ("the tv stands to the right of a bookshelf", "tv", {("right", "bookshelf")}),
        ("go over to the drying rack and see whether my shirts are dry", "drying rack", set()),
        ("There's a desk. Turn the lamp on it off", "lamp", {("on", "desk")}),
        ("the chair with the most space between it and the radiator", "chair", {("farthest", "radiator")}),
        ("the dresser the shortest walk away from the bed", "dresser", {("closest", "bed")}),
        ("Of the two boxes in the shelf I want the lower one.", "box", {("low",), ("in", "shelf")}),
        ("the book within a metre and a half of the door", "book", {("within", "door")}),
    ],
)
def test_what_is_plainly_meant_in_further_forms(text: str, target: str, wanted: set) -> None:
    meaning = parse(text, [target, "desk", "window", "shelf"])
    assert meaning.target is not None
    assert meaning.target.noun == target
    assert said(meaning) == wanted


def test_a_half_behind_its_unit_counts() -> None:
    (within,) = parse("the book within a metre and a half of the door").constraints
    assert within.amount_m == 1.5


def test_a_rank_counts_from_a_landmark() -> None:
    beds = [thing(i, "bed", (2.0 * i, 0.0, 0.3), (1.2, 2.0, 0.6)) for i in (1, 2, 3)]
    door = thing(9, "door", (0.0, 0.0, 1.0), (0.1, 0.9, 2.0))
    answer = ground_objects("the second bed from the door", [*beds, door])
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, 2)


BOOKS = [thing(i, "book", (0.4 * i, 0.0, 0.8), (0.05, 0.2, 0.25)) for i in (1, 2, 3)]
SHADES = np.array([[180, 30, 30], [20, 40, 200], [40, 130, 50]], dtype=np.float64)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("the book between the red and the green one", {2}),
        ("not the red book and not the blue one, I want the other one", {3}),
    ],
)
def test_ones_that_are_told_by_their_colours(text: str, wanted: set[int]) -> None:
    answer = ground_objects(text, BOOKS, colors=SHADES)
    assert (answer.status, {answer.candidates[0].id}) == (GroundingStatus.FOUND, wanted)


def test_the_other_one_is_not_the_one_before() -> None:
    for text in (
        "We read the green book yesterday, so bring me the other one",
        "The green book is torn. Bring the other",
    ):
        answer = ground_objects(text, [BOOKS[0], BOOKS[2]], colors=SHADES[[0, 2]])
        assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, 1)
    answer = ground_objects(
        "I'd like the green book, the other one is torn", [BOOKS[0], BOOKS[2]], colors=SHADES[[0, 2]]
    )
    assert answer.candidates[0].id == 3


def bedroom() -> list:
    """A bed between two nightstands with a lamp each; a desk with a lamp at the other end."""
    return [
        thing(1, "bed", (0.0, 2.0, 0.3), (1.6, 2.0, 0.6)),
        thing(2, "nightstand", (-1.1, 2.7, 0.3), (0.4, 0.4, 0.6)),
        thing(3, "nightstand", (1.1, 2.7, 0.3), (0.4, 0.4, 0.6)),
        thing(4, "lamp", (1.1, 2.7, 0.75), (0.2, 0.2, 0.3)),
        thing(5, "desk", (0.0, -3.0, 0.37), (1.4, 0.7, 0.74)),
        thing(6, "lamp", (0.4, -3.0, 0.9), (0.2, 0.2, 0.3)),
        thing(7, "book", (-1.1, 2.7, 0.62), (0.2, 0.15, 0.04)),
        thing(8, "cup", (-1.0, 2.6, 0.65), (0.08, 0.08, 0.1)),
    ]


@pytest.mark.parametrize(("text", "wanted"), [("turn on the bedside lamp", 4), ("dim the desk lamp a bit", 6)])
def test_kinds_that_are_named_after_their_place(text: str, wanted: int) -> None:
    answer = ground_objects(text, bedroom())
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, wanted)


@pytest.mark.parametrize("text", ["what is on the left-hand nightstand", "What have we got on the left nightstand?"])
def test_a_side_of_the_landmark_tells_which_landmark(text: str) -> None:
    answer = ground_objects(text, bedroom(), camera((0.0, -1.0, 1.2), (0.0, 2.0, 0.5)))
    assert (answer.status, {o.id for o in answer.candidates}) == (GroundingStatus.FOUND, {7, 8})


def test_on_the_floor_are_all_that_stand_there() -> None:
    floor = [thing(i, "basket", (i, 0.0, 0.2), (0.4, 0.4, 0.4)) for i in (1, 2)]
    raised = thing(3, "basket", (3.0, 0.0, 1.1), (0.4, 0.4, 0.4))
    answer = ground_objects("How many baskets are standing on the floor?", [*floor, raised])
    assert (answer.count, {o.id for o in answer.candidates}) == (2, {1, 2})


def test_what_is_on_an_island_is_on_no_counter() -> None:
    room = [
        thing(1, "kitchen island", (0.0, 0.0, 0.45), (1.6, 0.9, 0.9)),
        thing(2, "counter", (0.0, 3.0, 0.45), (3.0, 0.6, 0.9)),
        thing(3, "bowl", (0.2, 0.0, 0.95), (0.25, 0.25, 0.1)),
        thing(4, "kettle", (0.5, 3.0, 1.02), (0.2, 0.2, 0.24)),
    ]
    assert [o.id for o in ground_objects("May I ask what is on the kitchen island?", room).candidates] == [3]


@pytest.mark.parametrize(("slip", "label"), [("the hammre", "hammer"), ("is there a trahs can", "trash can")])
def test_words_of_the_scene_are_meant_by_their_slips(slip: str, label: str) -> None:
    answer = ground_objects(slip, [*living_room(), thing(30, label, (1.0, -1.0, 0.2), (0.3, 0.3, 0.3))])
    assert (answer.status, answer.candidates[0].label) == (GroundingStatus.FOUND, label)


def test_how_many_of_what_nobody_knows_is_none() -> None:
    answer = ground_objects("How many wheelchairs have we got standing here?", living_room())
    assert (answer.status, answer.count) == (GroundingStatus.NOT_FOUND, 0)


@pytest.mark.parametrize(
    "text", ["Ring the bell on the chair", "the zip of the red bag is stuck", "the handle on the door"]
)
def test_what_is_fixed_to_a_thing_is_a_part(text: str) -> None:
    room = [
        *living_room(),
        thing(30, "bag", (1.0, -1.0, 0.2), (0.3, 0.3, 0.3)),
        thing(31, "door", (2, 2, 1), (1, 0.1, 2)),
    ]
    assert ground_objects(text, room).status == GroundingStatus.NOT_FOUND


@pytest.mark.parametrize(
    "text", ["the box that takes longest to bring back to the cabinet", "the door hidden from view by the bed"]
)
def test_back_to_and_view_are_no_viewpoints_everywhere(text: str) -> None:
    assert parse(text).speaker is None
    assert parse("with your back to the cabinet, the box on the left").speaker is not None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("What is that hanging on the wall above the couch?", {12}),
        ("What did the kids put on top of the table?", {10}),
        ("What's lying about on the table?", {10}),
        ("What is there to read on the table?", {10}),
    ],
)
def test_questions_about_contents_in_further_words(text: str, wanted: set[int]) -> None:
    answer = ground_objects(text, living_room())
    assert (answer.status, {o.id for o in answer.candidates}) == (GroundingStatus.FOUND, wanted)


def test_where_something_can_be_done() -> None:
    room = [*living_room(), thing(30, "trash can", (2.0, -1.5, 0.2), (0.3, 0.3, 0.4))]
    answer = ground_objects("Is there anywhere I can throw this tissue away?", room)
    assert (answer.status, [o.id for o in answer.candidates]) == (GroundingStatus.FOUND, [30])
    seats = ground_objects("Where can I sit down?", room)
    assert {o.label for o in seats.candidates} >= {"chair", "couch"}


def test_what_is_gone_is_asked_for() -> None:
    assert ground_objects("My book's gone, where is it?", living_room()).count == 2
    assert ground_objects("My headset's gone, where is it?", living_room()).status == GroundingStatus.NOT_FOUND


def test_a_relative_clause_points_at_the_book_and_not_at_its_shelf() -> None:
    text = "It's the third book from the left on the bookshelf I have to give back."
    meaning = parse(text, ["book", "bookshelf"])
    assert meaning.target is not None
    assert (meaning.target.noun, {(c.relation, c.rank) for c in meaning.constraints if not c.anchors}) == (
        "book", {("from-left", 3)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Any book except the red and the blue one", 3),
        ("I'll take any book as long as it isn't the red one or the green one", 2),
    ],
)
def test_what_is_left_out_in_further_words(text: str, wanted: int) -> None:
    answer = ground_objects(text, BOOKS, colors=SHADES)
    assert (answer.status, answer.candidates[0].id) == (GroundingStatus.FOUND, wanted)


def test_a_compound_that_is_something_else_is_not_there() -> None:
    room = [*living_room(), thing(30, "trash can", (2.0, -1.5, 0.2), (0.3, 0.3, 0.4))]
    assert ground_objects("Where's the bread bin? The rolls are going hard.", room).status == GroundingStatus.NOT_FOUND


def test_a_kind_that_is_doubtful_is_claimed_with_less() -> None:
    room = [*living_room(), thing(30, "bathtub", (2.0, -1.0, 0.3), (0.8, 1.6, 0.6))]
    bathtub, shower = (ground_objects(f"Where is the {noun}?", room, vocabulary=None) for noun in ("bathtub", "shower"))
    assert shower.candidates[0].score < 0.5 < bathtub.candidates[0].score


def test_furniture_that_is_taller() -> None:
    answer = ground_objects("Which piece of furniture in here is more than a metre and a half high?", living_room())
    assert (answer.status, [o.label for o in answer.candidates]) == (GroundingStatus.FOUND, ["shelf"])


@pytest.mark.parametrize(
    "text", ["chair except not", "the chair but not", "any chair except not the", "chair except or the"]
)
def test_an_exclusion_of_nothing_is_answered(text: str) -> None:
    assert ground_objects(text, living_room()).status in tuple(GroundingStatus)
