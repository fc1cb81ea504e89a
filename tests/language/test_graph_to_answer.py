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
        ("find: the [plant=t] that is [30 cm=t.amount] high", "object: plant measured(height, 0.3m)"),
        ("find: the [shelf=t], its width is [2 m=t.amount]", "object: shelf measured(width, 2m)"),
        ("find: the [cup=t] [taller than=t.larger(a)] the [jug=a]", "object: cup larger(height, jug)"),
        ("find: the [cup=t] [smaller than=t.smaller(a)] the [rest=a]", "object: cup smaller(cup)"),
        ("find: the [box=t] [of the same colour as=t.same-colour(a)] the [bed=a]", "object: box same-colour(bed)"),
        ("find: [something to wash my hands in=t]", "object: something to wash hands"),
        ("find: the floor is full of hair, [what can I sweep it with=t]", "object: something to sweep"),
        ("find: this apple core has to go [somewhere=t]", "object: something to apple core"),
        ("find: bring [something to wedge this leg=t]", "object: something to wedge this leg"),
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
