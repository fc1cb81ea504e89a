"""From a marked sentence, as the network should read it, to its meaning and its answer over boxes: no network asked."""

from __future__ import annotations

import numpy as np
import pytest
from support.meanings import in_short

from embodied_perceptron.language.answer import ground_objects
from embodied_perceptron.language.decoding import Decoder
from embodied_perceptron.language.lexicon import affordances, serving
from embodied_perceptron.language.meaning import Meaning
from embodied_perceptron.language.query import Query
from embodied_perceptron.results import Grounding, SceneObject
from embodied_perceptron_training.language.markup import read_sentence
from embodied_perceptron_training.language.reader_data import graph_of

RED, BLUE = (200, 30, 30), (30, 50, 200)


def meaning_of(marked: str, labels: tuple[str, ...] = ()) -> Meaning:
    sentence = read_sentence(marked)
    words, graph = graph_of(sentence)
    return Decoder(sentence.text, words, graph, labels).meaning()


def thing(
    k: int, label: str, x: float, y: float = 0.0, size: tuple[float, float, float] = (0.5, 0.5, 0.5)
) -> SceneObject:
    return SceneObject(k, label, 0.9, np.array([x, y, 0.5 * size[2], *size, 0.0, 0.0, 0.0]))


def answer(marked: str, objects: list[SceneObject], colors: list[tuple[int, int, int]] | None = None) -> Grounding:
    meaning = meaning_of(marked, tuple({o.label for o in objects}))
    measured = None if colors is None else np.array(colors, dtype=np.float64)
    return ground_objects(Query(meaning.text, meaning=meaning), objects, colors=measured)


@pytest.mark.parametrize(
    ("marked", "meaning"),
    [
        (
            "find: the [chair=t] [at=t.near(a)] the [desk=a] that has a [book=b] [on=b.on(a)] it",
            "object: chair near(desk[supporting(book)])",
        ),
        (
            "find: the [van=t] [with=t.with(a)] the [ladder=a] [on=a.on(t)] [it=t]",
            "object: van supporting(ladder) with(ladder)",
        ),
        (
            "find: the [cup=t] [by=t.near(a)] the [jug=a] [under=a.below(b)] the [lamp=b] [near=b.near(c)] the [bed=c]",
            "object: cup near(jug[below(lamp[near(bed)])])",
        ),
        ("find: the [fan=t] [is=t.across(a)] [facing=t.across(a)] the [bed=a]", "object: fan facing(bed)"),
        ("find: the [table=t] the [camera=a] is [looking at=t.front(a)]", "object: table faced(camera)"),
        (
            "find: the [cup=t] [between=t.between(a)] the [red=a.colour] [one=a] and the [blue=a.colour] [one=a]",
            "object: cup between(cup[colour(red)], cup[colour(blue)])",
        ),
        (
            "find: start at the [bed=a] and take the [second=t.rank] [cup=t] you come to",
            "object: cup closest#2(bed)",
        ),
        (
            "find: go towards the [bed=a] and take the [second=t.rank] [cup=t]",
            "object: cup nth#2",
        ),
        ("contents: look at the [top=a.high] [shelf=a] and say what is there", "contents: anything in(shelf[high])"),
        ("find: the [flat thing=t] [by=t.near(a)] the [bed=a]", "object: anything near(bed)"),
        ("find: the [thing with=t] two legs [by=t.near(a)] the [bed=a]", "object: anything near(bed)"),
        ("find: the [cup=t] that is [two metres=t.amount] from us", "object: cup distance(2m)"),
        ("find: the [lamp=t] [by=t.near(a)] the [back wall=a]", "object: lamp wall"),
        ("contents: what hangs [two metres=t.amount] up", "contents: anything measured(elevation, 2m)"),
        ("find: the [chair=t] with [its back to=t.near(a)] the [bed=a]", "object: chair back-to(bed)"),
        (
            "find: go [from=t.closest(a,b)] the [door=a] past the [cups=b], the [third=t.rank] [one=t]",
            "object: cup closest#3(door)",
        ),
        ("find: which of the [chairs=t] are [blue=t.colour]", "object every: chair colour(blue)"),
        (
            "find: the [cup=t] [no further than=t.beyond(a)] [a metre=t.amount] from the [bed=a]",
            "object: cup not-beyond(1m, bed)",
        ),
        (
            "find: the [cup=t] [no more than=t.within(a)] [a metre=t.amount] from the [bed=a]",
            "object: cup within(1m, bed)",
        ),
        ("find: the [shelf=t] [close to=t.closest(a)] the [wall=a]", "object: shelf wall"),
        ("find: the [plant=t] that is [30 cm=t.amount] high", "object: plant measured(height, 0.3m)"),
        ("find: the [shelf=t], its width is [2 m=t.amount]", "object: shelf measured(width, 2m)"),
        ("find: the [cup=t] [taller than=t.larger(a)] the [jug=a]", "object: cup larger(height, jug)"),
        ("find: the [cup=t] [smaller than=t.smaller(a)] the [rest=a]", "object: cup smaller(cup)"),
        ("find: the [box=t] [of the same colour as=t.same-colour(a)] the [bed=a]", "object: box same-colour(bed)"),
        (
            "find: the [box=t] [half a metre=t.amount] [above=t.above(a)] the [bed=a]",
            "object: box above(bed) distance(0.5m, bed)",
        ),
        (
            "find: the [cup=t] [a couple of metres=t.amount] [behind=t.behind(a)] the [bed=a]",
            "object: cup behind(bed) distance(2m, bed)",
        ),
        ("find: the [last but one=t.rank] [cup=t] [from the left=t.from-left]", "object: cup from-right#2"),
        ("find: the [leftmost=t.leftmost] [cup=t] [but one=t.rank]", "object: cup from-left#2"),
        ("find: the [second to last=t.rank] [cup=t] [from=t.closest(a)] the [bed=a]", "object: cup farthest#2(bed)"),
        ("find: the [biggest=t.large] [cup=t] [but two=t.rank]", "object: cup large#3"),
        ("find: the [last=t.rank] [cup=t], [tallest first=t.tall]", "object: cup short"),
        ("find: [something to wash my hands in=t]", "object: something to wash hands"),
        ("find: the floor is full of hair, [what can I sweep it with=t]", "object: something to sweep"),
        ("find: this apple core has to go [somewhere=t]", "object: something to apple core"),
        ("find: bring [something to wedge this leg=t]", "object: something to wedge this leg"),
        (
            "find: the [cup=t] [not further than=t.within(a)] [half a metre=t.amount] from the [bed=a]",
            "object: cup within(0.5m, bed)",
        ),
        (
            "find: the [box=t], width [1.5 m=t.amount], height [1.2 m=t.amount]",
            "object: box measured(height, 1.2m) measured(width, 1.5m)",
        ),
        (
            "find: the [box=t] is [2 m=t.amount] long, [1.2 m=t.amount] tall and [1.5 m=t.amount] wide",
            "object: box measured(2m) measured(height, 1.2m) measured(width, 1.5m)",
        ),
        ("find: the [box=t] of [1.8 m=t.amount] from floor to top", "object: box measured(height, 1.8m)"),
        (
            "find: the [cup=t] [wi=t.between(a,b)] a [red=a.colour] [un=a] one side and a [blue=b.colour] [yin=b]",
            "object: cup between(cup[colour(red)], cup[colour(blue)])",
        ),
        ("find: [all=t.every] the [red=t.colour] [stuff=t]", "object every: anything colour(red)"),
        ("find: the cup [the colour of a lemon=t.colour], the [cup=t]", "object: cup colour(yellow)"),
        (
            "find: [whatever=t] is [on=t.on(a)] the [bed=a], [all=t.every] of it, [bar=excl] the [cups=x]",
            "object every: anything on(bed); not cup",
        ),
    ],
)
def test_a_graph_means(marked: str, meaning: str) -> None:
    assert in_short(meaning_of(marked)) == meaning


def test_what_is_said_last_is_meant() -> None:
    assert in_short(meaning_of("find: there is a [couch=t] here. i mean the [lamp=t]")) == "object: lamp"
    assert in_short(meaning_of("find: this is an [office chair=t]. the [chair=t]")) == "object: office chair"


def test_a_landmark_is_chosen_by_a_superlative() -> None:
    tables = [thing(k, "table", 4.0 * k, size=(1.0, 1.0, 0.5 + 0.2 * (k == 1))) for k in range(3)]
    cups = [thing(3 + k, "cup", 4.0 * k + 0.9, size=(0.1, 0.1, 0.1)) for k in range(3)]
    found = answer("find: the [cup=t] [next to=t.near(a)] the [tallest=a.tall] [table=a]", [*tables, *cups])
    assert found.candidates[0].id == 4
    assert found.candidates[0].score > 2 * found.candidates[1].score


def test_a_landmark_of_a_landmark_of_a_landmark_counts() -> None:
    lamp, window = thing(9, "lamp", 0.0, 1.0, (0.2, 0.2, 0.4)), thing(8, "window", 0.0, 1.8)
    shelves = [thing(1, "shelf", 0.8, 1.0), thing(2, "shelf", 8.8, 1.0)]
    lamps = [lamp, thing(7, "lamp", 8.0, 1.0, (0.2, 0.2, 0.4))]
    cups = [thing(3 + k, "cup", 8.0 * k + 1.5, 1.0, (0.1, 0.1, 0.1)) for k in range(2)]
    marked = (
        "find: the [cup=t] [by=t.near(a)] the [shelf=a] [by=a.near(b)] the [lamp=b] [under=b.near(c)] the [window=c]"
    )
    assert answer(marked, [*shelves, *lamps, window, *cups]).candidates[0].id == 3


def test_what_has_the_size_that_is_told_is_meant() -> None:
    plants = [thing(k, "plant", 2.0 * k, size=(0.3, 0.3, height)) for k, height in enumerate((0.3, 0.9, 1.6))]
    found = answer("find: the [plant=t] that is [ninety centimetres=t.amount] high", plants)
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 1)
    assert answer("find: the [plant=t] of [four metres=t.amount]", plants).status.name == "NOT_FOUND"


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("tin of paint", "paint tin"),
        ("dumb bell", "dumbbell"),
        ("roll of cloth", "fabric roll"),
        ("tins of paint", "paint tin"),
    ],
)
def test_a_label_is_named_in_other_words(said: str, label: str) -> None:
    objects = [thing(1, "watering can", 0.0), thing(2, label, 1.0), thing(3, "bed", 2.0)]
    assert answer(f"find: the [{said}=t] [by=t.near(a)] the [bed=a]", objects).candidates[0].id == 2


@pytest.mark.parametrize(("clause", "meant"), [("than the [lamp=b]", 2), ("than the [lamp=b] is", 1)])
def test_nearer_than_to_a_landmark_and_than_the_landmark_is(clause: str, meant: int) -> None:
    cups = [thing(1, "cup", 2.0, size=(0.1, 0.1, 0.1)), thing(2, "cup", -2.8, size=(0.1, 0.1, 0.1))]
    objects = [*cups, thing(3, "bed", 0.0), thing(4, "lamp", 2.7)]
    found = answer(f"find: the [cup=t] [nearer to=t.closest(a,b)] the [bed=a] {clause}", objects)
    assert (found.status.name, found.candidates[0].id) == ("FOUND", meant)


def test_a_thing_is_not_nearer_than_itself() -> None:
    cups = [thing(k, "cup", x, size=(0.1, 0.1, 0.1)) for k, x in ((1, 1.0), (2, 2.0), (3, 3.0))]
    marked = "find: the [cup=t] [nearer to=t.closest(a,b)] the [bed=a] than the [red=b.colour] [one=b]"
    found = answer(marked, [*cups, thing(4, "bed", 0.0)], [BLUE, RED, BLUE, BLUE])
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 1)


def test_of_landmarks_of_a_kind_the_one_with_the_colour_is_compared() -> None:
    sizes = {1: 0.3, 2: 0.5, 3: 0.4}
    balls = [thing(k, "ball", 2.0 * k, size=(s, s, s)) for k, s in sizes.items()]
    marked = "find: the [ball=t] [smaller than=t.smaller(a)] the [gray=a.colour] [one=a]"
    found = answer(marked, balls, [(230, 120, 160), (60, 160, 70), (120, 125, 130)])
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 1)


def test_beside_a_white_object_a_gray_one_is_not_excluded() -> None:
    dryers = [thing(k, "dryer", float(k)) for k in (1, 2, 3)]
    marked = "find: [all=t.every] the [dryers=t] [but=excl] the [white=x.colour] [one=x]"
    found = answer(marked, dryers, [(185, 185, 188), (185, 185, 188), (240, 240, 240)])
    assert {o.id for o in found.candidates} == {1, 2}


def test_a_clause_about_a_landmark_may_be_about_the_target() -> None:
    """No shelf stands between the hats, but a cup on it does."""
    shelf = thing(1, "shelf", 0.0, size=(3.0, 0.4, 1.0))
    small = [("hat", -0.6), ("cup", -0.2), ("hat", 0.2), ("cup", 1.2)]
    on_it = [
        SceneObject(k, label, 0.9, np.array([x, 0.0, 1.05, 0.1, 0.1, 0.1, 0, 0, 0]))
        for k, (label, x) in enumerate(small, 2)
    ]
    meaning = "find: the [cup=t] [on=t.on(a)] the [shelf=a] [between=a.between(b)] the [hats=b]"
    found = answer(meaning, [shelf, *on_it])
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 3)


def test_a_machine_is_any_thing_where_none_has_the_name() -> None:
    objects = [thing(1, "printer", 0.0), thing(2, "mirror", 1.0), thing(3, "plant", 2.0), thing(4, "bed", 7.0)]
    marked = "find: the [machine=t] [between=t.between(a,b)] the [plant=a] and the [printer=b]"
    found = answer(marked, objects)
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 2)
    assert found.candidates[0].score < 0.5


def test_between_two_that_lie_one_above_the_other_is_what_lies_between_in_height() -> None:
    heights = {1: 0.3, 2: 0.9, 3: 1.5}
    shelves = [SceneObject(k, "shelf", 0.9, np.array([0, 0, z, 1.0, 0.4, 0.04, 0, 0, 0])) for k, z in heights.items()]
    marked = "find: the [shelf=t] [between=t.between(a,b)] the [top=a.high] [one=a] and the [bottom=b.low] [one=b]"
    found = answer(marked, shelves)
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 2)


def test_what_hardly_fits_is_not_as_good_as_what_fits() -> None:
    """A bench is as much a piece of furniture as a table, but stands far from the clock."""
    objects = [thing(1, "bench", 6.0, size=(1.0, 0.4, 0.4)), thing(2, "table", 1.0), thing(3, "clock", 0.0)]
    found = answer("find: the [piece of furniture=t] [by=t.near(a)] the [clock=a]", objects)
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 2)


def test_what_is_larger_than_a_landmark_or_has_its_colour_is_meant() -> None:
    objects = [
        thing(0, "box", 0.0, size=(0.3, 0.3, 0.3)), thing(1, "box", 2.0, size=(1.0, 1.0, 1.0)),
        thing(2, "bed", 4.0, size=(0.6, 0.6, 0.6)),
    ]  # fmt: skip
    assert answer("find: a [box=t] [larger than=t.larger(a)] the [bed=a]", objects).candidates[0].id == 1
    assert answer("find: a [box=t] [smaller than=t.smaller(a)] the [bed=a]", objects).candidates[0].id == 0
    same = "find: the [box=t] [of the same colour as=t.same-colour(a)] the [bed=a]"
    assert answer(same, objects, [BLUE, RED, RED]).candidates[0].id == 1
    assert answer(same, objects, [RED, BLUE, RED]).candidates[0].id == 0


def test_a_use_is_served_by_what_is_there_first() -> None:
    assert serving(["take", "this", "towel", "somewhere", "to", "dry"], ("clothesline",)) == "something to dry"
    two = ["play", "music"]
    assert serving(two) == "something to play music"
    assert serving(["washed", "hands"]) == serving(["washing", "my", "hand"]) == "something to wash hands"
    assert serving(["a", "lovely", "quarrel"]) == ""
    assert all(nouns for nouns in affordances().values())


@pytest.mark.parametrize(("marked", "number"), [
    ("find: the [second=t.rank] [thing=t] [on=t.on(a)] the [sink=a] [from the left=t.from-left]", 3),
    ("find: the [tallest=t.tall] [thing=t] [on=t.on(a)] the [sink=a]", 3),
    ("find: the [second=t.rank] [cup=t] [from the left=t.from-left]", 3),
])  # fmt: skip
def test_an_order_counts_only_what_fits_the_rest(marked: str, number: int) -> None:
    """A mirror 30 cm above the sink may be on it, a cupboard may be meant by "cup": neither is counted."""
    objects = [
        thing(1, "sink", 0.0, size=(1.2, 0.5, 0.9)),
        SceneObject(2, "cup", 0.9, np.array([-0.3, 0.0, 0.95, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0])),
        SceneObject(3, "cup", 0.9, np.array([0.4, 0.0, 1.0, 0.1, 0.1, 0.2, 0.0, 0.0, 0.0])),
        SceneObject(4, "mirror", 0.9, np.array([0.1, 0.1, 1.6, 0.3, 0.05, 0.8, 0.0, 0.0, 0.0])),
        SceneObject(5, "cup rack", 0.9, np.array([0.2, 0.0, 1.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0])),
    ]
    found = answer(marked, objects)
    assert (found.status.name, found.candidates[0].id) == ("FOUND", number)


@pytest.mark.parametrize("gap", [0.5, 0.9])
def test_what_stands_beside_a_table_is_not_what_it_lacks(gap: float) -> None:
    tables = [thing(1, "table", 0.0, size=(1.0, 1.0, 0.7)), thing(2, "table", 5.0, size=(1.0, 1.0, 0.7))]
    on = SceneObject(3, "lamp", 0.9, np.array([0.0, 0.0, 0.9, 0.2, 0.2, 0.4, 0.0, 0.0, 0.0]))
    marked = "find: the [table=t] [without=t.with(a)!;neg] a [lamp=a]"
    found = answer(marked, [*tables, on, thing(4, "lamp", 5.6 + gap, size=(0.2, 0.2, 1.5))])
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 2)
    assert "without the lamp" in answer(marked, [tables[0], on]).reason


def test_an_implement_that_the_map_lacks_is_no_other_use() -> None:
    """A rake is not something to rake with, where the map has only a broom; an espresso is a use."""
    broom = thing(1, "broom", 0.0)
    assert answer("find: the [rake=t]", [broom]).status.name == "NOT_FOUND"
    assert in_short(meaning_of("find: the [rake=t]", ("broom",))) == "object: rake"
    assert in_short(meaning_of("find: an [espresso=t]", ("coffee maker",))) == "object: something to espresso"


@pytest.mark.parametrize("words", ["whatever", "whatever is", "what's"])
def test_what_stands_between_two_landmarks_needs_no_noun(words: str) -> None:
    objects = [thing(1, "bed", 0.0), thing(2, "box", 1.5), thing(3, "desk", 3.0), thing(4, "cup", 1.5, 3.0)]
    found = answer(f"find: [{words}=t] [between=t.between(a,b)] the [bed=a] and the [desk=b]", objects)
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 2)


@pytest.mark.parametrize(
    ("noun", "label", "found"), [("seat", "stool", True), ("furniture", "table", True), ("chair", "table", False)]
)
def test_of_a_size_only_a_rarer_kind_of_the_noun_has_it(noun: str, label: str, found: bool) -> None:
    room = [thing(1, label, 0.0, size=(0.3, 0.3, 0.35)), *(thing(k, "chair", k, size=(0.5, 0.5, 0.9)) for k in (2, 3))]
    got = answer(f"find: the [{noun}=t] that is [35 cm=t.amount] high", room)
    assert ([o.id for o in got.candidates[:1]] == [1]) is found, got.reason


@pytest.mark.parametrize(
    ("marked", "label"), [("I must lie [down=t] for an hour", "bed"), ("how do I get [out=t]", "door")]
)
def test_a_particle_is_no_noun(marked: str, label: str) -> None:
    assert [o.label for o in answer(f"find: {marked}", [thing(1, label, 0.0)]).candidates] == [label]
    assert answer(f"find: {marked}", [thing(1, "vase", 0.0)]).reason.startswith("nothing here serves to ")


@pytest.mark.parametrize(
    ("marked", "meant"),
    [
        ("in that row of four [chairs=t] take the [second=t.rank] [from the right=t.from-right]", 3),
        ("the row of four [chairs=t], [last=t.rank] [on the right=t.right-of-all]", 4),
        ("the [third=t.rank] [chair=t] [from the left=t.from-left] in the row of four", 3),
        ("the [chair=t] that is [last=t.rank] [on the left=t.left-of-all]", 1),
        ("the [last=t.rank] [chair=t] [from the left=t.from-left]", 5),
        ("the [last=t.rank] [chair=t] [going left to right=t.from-left]", 5),
    ],
)
def test_an_order_counts_the_group_that_is_told(marked: str, meant: int) -> None:
    spots = ((-1.2, 3.0), (-0.6, 3.0), (0.1, 3.0), (0.7, 3.0), (3.0, 3.7))
    room = [thing(k, "chair", *spot) for k, spot in enumerate(spots, 1)]
    viewpoint = np.array([[1, 0, 0, 0], [0, 0, 1, -2.5], [0, -1, 0, 1.1], [0, 0, 0, 1.0]])
    meaning = meaning_of(f"find: {marked}", ("chair",))
    got = ground_objects(Query(meaning.text, meaning=meaning, viewpoint=viewpoint), room)
    assert [o.id for o in got.candidates[:1]] == [meant], got.reason


def test_of_two_pairs_at_a_table_the_one_on_the_side_of_the_speaker_is_counted() -> None:
    spots = ((-0.3, 0.1), (0.7, 0.1), (-0.35, 1.5), (0.65, 1.5))
    room = [thing(k, "chair", *spot) for k, spot in enumerate(spots, 1)] + [
        thing(9, "table", 0.2, 0.8, (1.6, 0.9, 0.7))
    ]
    viewpoint = np.array([[1, 0, 0, 0], [0, 0, 1, -2.5], [0, -1, 0, 1.1], [0, 0, 0, 1.0]])
    marked = "there are two [chairs=t] [on your side of=t.near(a)] the [table=a], the [second=t.rank] "
    meaning = meaning_of(f"find: {marked}[from the left=t.from-left]", ("chair", "table"))
    got = ground_objects(Query(meaning.text, meaning=meaning, viewpoint=viewpoint), room)
    assert [o.id for o in got.candidates[:1]] == [2], got.reason


def test_what_is_not_asked_for_is_counted_by_an_order() -> None:
    """The second closest is not the closest of those that are left when the closest is taken away."""
    room = [thing(9, "bed", 0.0, size=(1.0, 1.0, 0.5)), *(thing(k, "cup", 1.5 * k) for k in (1, 2, 3))]
    nearest = "find: [not=excl] the [closest=x.closest(a)] [cup=x] to the [bed=a] but the [second=t.rank]"
    found = answer(f"{nearest} [closest=t.closest(a)] [one=t]", room)
    assert [o.id for o in found.candidates[:1]] == [2]


@pytest.mark.parametrize(("marked", "meant"), [("contents: what is [above=t.above(a)] the [desk=a]", {3}),
                                               ("contents: what is [on=t.on(a)] the [desk=a]", {2})])  # fmt: skip
def test_what_stands_on_a_desk_is_not_above_it(marked: str, meant: set[int]) -> None:
    room = [
        thing(1, "desk", 0.0, size=(1.4, 0.7, 0.75)),
        SceneObject(2, "laptop", 0.9, np.array([0.0, 0.0, 0.85, 0.3, 0.2, 0.2, 0.0, 0.0, 0.0])),
        SceneObject(3, "window", 0.9, np.array([0.0, 0.3, 1.7, 1.2, 0.05, 1.0, 0.0, 0.0, 0.0])),
    ]
    assert {o.id for o in answer(marked, room).candidates} == meant


def test_the_tallest_of_many_is_meant_however_small_most_are() -> None:
    room = [
        SceneObject(1, "shelf", 0.5, np.array([0.0, 0.0, 1.05, 1.0, 0.4, 2.1, 0.0, 0.0, 0.0])),
        SceneObject(2, "coat rack", 0.9, np.array([3.0, 0.0, 0.9, 0.4, 0.4, 1.8, 0.0, 0.0, 0.0])),
        *(thing(k, "cup", 0.5 * k, 2.0, (0.1, 0.1, 0.1)) for k in range(3, 20)),
    ]
    found = answer("find: the [tallest=t.tall] [thing=t]", room)
    assert (found.status.name, found.candidates[0].id) == ("FOUND", 1)


def test_a_place_without_a_name_is_no_description() -> None:
    room = [thing(1, "amplifier", 0.0), thing(2, "heater", 4.0)]
    marked = "find: that [tall=t.tall] [one=t] [between=t.between(a,b)] the [loud=a.other] [speaker=a] and the [tree=b]"
    assert answer(marked, room).status.name == "NOT_FOUND"
