"""Marked sentences as graphs, as what a network is to say, and as meanings."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from embodied_perceptron.language.decoding import Decoder
from embodied_perceptron.language.meaning import ANYTHING, EVERY_NUMBER, KINDS, Constraint, Meaning
from embodied_perceptron.language.query import graphs_of
from embodied_perceptron.nn.sentence_network import ARCS, Scores
from embodied_perceptron_training.homes.paraphrases import HELD_OUT, TUNED
from embodied_perceptron_training.homes.prompts import FREE_FITTED, FREE_HELD_OUT, PLAIN
from embodied_perceptron_training.language.fit_language import SENTENCES as CALIBRATED
from embodied_perceptron_training.language.fit_sentence_reader import facts_of, scores_of
from embodied_perceptron_training.language.markup import read_sentence
from embodied_perceptron_training.language.reader_data import example_of, graph_of, loss_of
from embodied_perceptron_training.language.slot_grammar import (
    SlotGrammar,
    _described,
    filled,
    kinds,
    of_kind,
    whole_forms,
)
from embodied_perceptron_training.language.variation import Variation, _joined, _pieces

SENTENCES = (
    "find: go to the [second=t.rank] [chair=t] [from the left=t.from-left]",
    "find: There's a [desk=a] [under=a.below(b)] the [window=b]. Take the [lamp=t] [from=t.on(a)] [it=a]",
    "exists: is there a [plant=t] that [isn't=neg] [near=t.near(a)!] a [window=a]",
    "find: the [cup=t] [between=t.between(a,b)] the [plate=a] and the [jug=b]",
    "contents: what is [on=t.on(a)] the [shelf=a] [next to=a.near(b)] the [door=b]",
    "find: any [chair=t] [but=excl] the [red=x.colour] [one=x]",
    "find: when you [come in=speaker.from(a)] the [door=a], the [lamp=t] [on the left=t.left-of-all]",
    "none: tell me a joke",
)


def meaning(line: str, labels: tuple[str, ...] = ()) -> Meaning:
    sentence = read_sentence(line)
    words, graph = graph_of(sentence)
    return Decoder(sentence.text, words, graph, labels).meaning()


def said(constraints: tuple[Constraint, ...]) -> list[str]:
    """Constraints in short: "not on(desk[near(door)])", "from-left 2", "colour red"."""
    found = []
    for c in constraints:
        anchors = ", ".join(
            a.noun + (f"[{'; '.join(said(a.constraints))}]" if a.constraints else "") for a in c.anchors
        )
        rank = f" {c.rank}" if c.rank != 1 else ""
        amount = f" {c.amount_m:g}" if c.amount_m else ""
        value = f" {c.value}" if c.value else ""
        words = f"{c.relation}{value}{rank}{amount}" + (f"({anchors})" if anchors else "")
        found.append(f"not {words}" if c.negated else words)
    return sorted(found)


def scores_that_say(line: str) -> tuple[Scores, int]:
    """Logits that a network would give which reads the sentence as it is marked."""
    example = example_of(read_sentence(line))
    count = len(example.words)
    intent = torch.full((1, 6), -9.0)
    intent[0, example.intent] = 9.0
    parts = torch.full((1, count, 1 + 2 * len(KINDS)), -9.0)
    parts[0, range(count), list(example.parts)] = 9.0
    denied = torch.full((1, count), -9.0)
    for w, value in example.denied:
        denied[0, w] = 18.0 * value - 9.0
    arcs = {name: torch.full((1, count, 1 + count), -9.0) for name in ARCS}
    for name in ARCS:
        for w, groups, _ in example.arcs[name]:
            for group in groups:
                arcs[name][0, w, group] = 9.0
    return Scores(intent, parts, denied, arcs), count


@pytest.mark.parametrize("line", SENTENCES)
def test_what_is_marked_is_what_the_network_is_taught_and_what_is_read_of_it(line: str) -> None:
    sentence = read_sentence(line)
    graph = graph_of(sentence)[1]
    scores, count = scores_that_say(line)
    read = graphs_of(scores, 0, count)[0]
    assert (read.intent, facts_of(read)) == (graph.intent, facts_of(graph))
    assert read.probability > 0.9
    least = np.log(2.0) if "between" in line else 0.0  # two things share what is one choice
    assert float(loss_of(scores, [example_of(sentence)])) == pytest.approx(least, abs=0.01)


@pytest.mark.parametrize(
    ("line", "noun", "constraints"),
    [
        (SENTENCES[0], "chair", ["from-left 2"]),
        (SENTENCES[1], "lamp", ["on(desk[below(window)])"]),
        (SENTENCES[2], "plant", ["not near(window)"]),
        (SENTENCES[3], "cup", ["between(plate, jug)"]),
        (SENTENCES[4], "anything", ["on(shelf[near(door)])"]),
        ("find: the [third=t.rank] [biggest=t.large] [box=t]", "box", ["large 3"]),
        ("find: the [dark blue=t.colour] [sofa=t]", "sofa", ["colour blue"]),
        ("find: the [mug=t] [within=t.within(a)] [one and a half metres=t.amount] of the [bed=a]", "mug",
         ["within 1.5(bed)"]),
        ("find: the [shelf=t] [taller than=t.larger] [80 cm=t.amount]", "shelf", ["larger height 0.8"]),
        ("find: the [lamp=t] [nearest=t.nearest-me] to me", "lamp", ["nearest-me"]),
        ("find: the [shelf=t] [without=neg;t.with(a)!] [books=a]", "shelf", ["not with(book)"]),
        ("find: the [last=t.rank] [chair=t] [from the left=t.from-left]", "chair", ["from-right"]),
        ("find: the [wugglefrotz=t] [by=t.near(a)] the [door=a]", "wugglefrotz", ["near(door)"]),
    ],
)  # fmt: skip
def test_marked_sentences_are_decoded(line: str, noun: str, constraints: list[str]) -> None:
    read = meaning(line)
    assert read.target is not None
    assert read.target.noun == noun
    assert said(read.constraints) == constraints


def test_numbers_quantities_and_what_is_excluded() -> None:
    both = meaning("find: bring [both=t.every;t.number] [lamps=t]")
    assert (both.every, both.number) == (True, 2)
    assert {t.name for t in graph_of(read_sentence("find: [both=t.every;t.number] [lamps=t]"))[1].predicates} == {
        EVERY_NUMBER
    }
    but = meaning("find: [any=t.any] [chair=t] [but=excl] the [red=x.colour] [one=x]")
    assert but.any_of
    assert [(e.target.noun, said(e.constraints)) for e in but.excluded if e.target] == [("chair", ["colour red"])]
    other = meaning("find: [not=excl] the [red=x.colour] [mug=x], the other [one=t]")
    assert other.target is not None
    assert other.target.noun == "mug"


def test_the_place_of_what_is_in_hand_is_meant_and_a_room_is_no_object() -> None:
    place = meaning("find: put this [cup=h] [on=t.supporting(h)] the [table=t]")
    assert place.target is not None
    assert place.target.noun == "table"
    assert place.is_place
    room = meaning("find: go to the [kitchen=t]", ("cabinet",))  # which vectors of words say is like a kitchen
    assert room.target is None
    assert room.invalid
    assert "kitchen" in room.problem


@pytest.mark.parametrize("doubt", ["kind", "more", "intent"])
def test_every_doubt_is_a_reading_of_its_own(doubt: str) -> None:
    scores, count = scores_that_say(
        "find: the [red=t.colour] [lamp=t] [by=t.near(a)] the [door=a] [on=a.on(b)] the [wall=b] today"
    )
    by, today = 3, 9
    if doubt == "kind":
        scores.parts[0, by, 1 + KINDS.index("left")] = 8.0
    elif doubt == "more":
        scores.parts[0, today, 1 + KINDS.index("large")] = 8.0
    else:
        scores.intent[0, 1] = 8.0
    first, other = graphs_of(scores, 0, count)
    assert other.probability == pytest.approx(first.probability * np.exp(-1.0), rel=0.1)
    assert len(graphs_of(*scores_that_say("find: the [lamp=t]")[:1], 0, 2)) == 1
    predicates, others = ({t.first: t for t in graph.predicates} for graph in (first, other))
    if doubt == "kind":
        assert (predicates[by].name, others[by].name) == ("near", "left")
    elif doubt == "more":
        assert set(others) - set(predicates) == {today}
    else:
        assert (first.intent, other.intent) == ("find", "count")


def test_words_of_a_thing_in_a_row_are_one_thing() -> None:
    scores, count = scores_that_say("find: the [exit door=t]")
    begins = 1 + KINDS.index("t")
    scores.parts[0, 2, begins], scores.parts[0, 2, begins + len(KINDS)] = 9.0, -9.0
    (graph,) = graphs_of(scores, 0, count)
    assert [(t.first, t.last) for t in graph.entities] == [(1, 3)]


def test_what_is_taken_back_is_not_marked() -> None:
    said_so = read_sentence("find: the [red=t.colour] [chair=t] [next to=t.near(a)] the [door=a]")
    vary = Variation(np.random.default_rng(3))
    lines = {str(_joined("find", vary._corrected(_pieces(said_so)))) for _ in range(200)}
    for line in lines:
        read = read_sentence(line)
        assert {str(t) for _, t in read.tags} == {str(t) for _, t in said_so.tags}
        assert len(read.text) > len(said_so.text)
    assert len(lines) > 100
    assert any("[one=t]" in line for line in lines)
    plain = read_sentence("find: [it=t] [isn't=neg] [red=t.colour!]")
    assert _joined("find", vary._corrected(_pieces(plain))) == plain


def test_what_is_described_is_meant_and_not_what_stands_by_it() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        sentence = _described(rng)
        read = meaning(str(sentence))
        named = next(sentence.text[s.start : s.end] for s, t in sentence.tags if (t.entity, t.name) == ("t", ""))
        assert read.target is not None
        assert sentence.text[slice(*read.target.span)] == named
        assert len(read.constraints) == 1


def test_variations_keep_their_marks_and_the_slot_grammar_is_well_marked() -> None:
    rng = np.random.default_rng(0)
    vary = Variation(rng, noise=1.0)
    drawn = [*SlotGrammar().draw(rng, 60), *(read_sentence(line) for line in SENTENCES)]
    for sentence in drawn:
        for _ in range(4):
            other = vary(sentence, keep=0.0)
            assert [s.tags for s in read_sentence(str(other)).spans] == [s.tags for s in other.spans]
            more = len(other.spans) - len(sentence.spans)  # "no, the red one" names the object again
            assert more in (0, 1)
            assert all(s.end > s.start for s in other.spans)
            example_of(other)
    left = read_sentence("find: the [mug=t] [left of=t.left(a)] the [jug=a]")
    mirrored = {str(Variation(np.random.default_rng(k), noise=0.0)(left, keep=1.0)) for k in range(40)}
    assert any("[right of=t.right(a)]" in line for line in mirrored)


@pytest.mark.parametrize(
    ("line", "constraints"),
    [
        ("find: the [table=t] with a [lamp=a] [on=a.on(t)] [it=t]", ["supporting(lamp)"]),
        ("find: the [bath=t], to [its=t] [left=a.left(t)] a [toilet=a]", ["right(toilet)"]),
        ("find: the [first=t.rank] [chair=t] [on the left=t.left-of-all]", ["from-left"]),
        ("find: the [chair=t] [farthest from=t.farthest(a)] the [door=a]", ["farthest(door)"]),
        (
            "find: [sitting in=speaker.from(a)] the [couch=a], the [plant=t] [on my right=t.right-of-me]",
            ["own-right(couch)"],
        ),
    ],
)
def test_what_is_told_from_the_other_side(line: str, constraints: list[str]) -> None:
    assert said(meaning(line).constraints) == constraints


@pytest.mark.parametrize(
    ("line", "constraint"),
    [
        ("find: the [chair=t] [closer to=t.closest(a,b)] the [sink=a] than to the [door=b]", "nearer(sink, door)"),
        ("find: the [chair=t] [further from=t.farthest(a,b)] the [sink=a] than the [door=b]", "farther(sink, door)"),
        ("find: the [chair=t] that [faces=t.across(a)] the [sink=a]", "facing(sink)"),
        ("find: the [chair=t] the [sink=a] [faces=t.front(a)]", "faced(sink)"),
        ("contents: what does the [sink=a] [face=t.front(a)]", "faced(sink)"),
        ("find: the [chair=t] [two metres=t.amount] [from=t.within(a)] the [sink=a]", "distance(sink) 2.0"),
        ("find: the [chair=t] [within=t.within(a)] [two metres=t.amount] of the [sink=a]", "within(sink) 2.0"),
        ("find: the [chair=t] [30 centimetres=t.amount] high", "measured 0.3"),
        ("find: the [chair=t] [by=t.near(a)] [the=a] [red=a.colour]", "near(chair)"),
    ],
)
def test_conditions_of_the_schema(line: str, constraint: str) -> None:
    (read,) = meaning(line).constraints
    anchors = f"({', '.join(a.noun for a in read.anchors)})" if read.anchors else ""
    amount = f" {read.amount_m:.1f}" if read.amount_m else ""
    assert f"{read.relation}{anchors}{amount}" == constraint


def test_every_kind_of_sentence_is_well_marked() -> None:
    rng = np.random.default_rng(0)
    for form in kinds():
        sentence = of_kind(form, rng)
        assert not set("{}()|") & set(sentence.text), sentence.text
        assert len(example_of(sentence).words) > 1


@pytest.mark.parametrize(
    ("line", "every", "number"),
    [
        ("find: the [larger=t.large] of the two [boards=t]", False, None),
        ("find: of the three [pillows=t] the [bottom=t.low] one", False, None),
        ("find: bring [all=t.every] of the [chairs=t]", True, None),
        ("find: bring [three=t.number] of the [chairs=t]", True, 3),
        ("find: bring the [chairs=t]", True, None),
    ],
)
def test_of_several_one_is_meant_unless_more_are_asked_for(line: str, every: bool, number: int | None) -> None:
    read = meaning(line)
    assert (read.every, read.number) == (every, number)


@pytest.mark.parametrize(
    ("line", "noun"),
    [
        ("find: get me [something=t] i can sit on", "something to sit on"),
        ("find: bring [something to sweep=t] the floor with", "something to sweep"),
        ("find: i need [something=t] to rest my feet on", "something to rest feet"),
        ("find: bring [something=t]. sit down", "anything"),
        ("find: bring [something=t] [on=t.on(a)] the [table=a]", "anything"),
    ],
)
def test_what_serves_a_verb_is_asked_for_by_it(line: str, noun: str) -> None:
    target = meaning(line).target
    assert (ANYTHING if target is None else target.noun) == noun


def test_the_top_one_is_the_highest_outright() -> None:
    plain, top = (meaning(f"find: the [{word}=t.high] [shelf=t]").constraints[0].weight for word in ("high", "top"))
    assert top > plain


def test_of_two_nouns_for_what_is_meant_that_of_the_scene_counts() -> None:
    line = "find: paint the [fence=t] with the green [paint=t]"
    for labels, noun in ((("paint", "chair"), "paint"), (("fence", "chair"), "fence")):
        target = meaning(line, labels).target
        assert target is not None
        assert target.noun == noun


def test_words_that_are_a_name_of_the_scene_are_that_name() -> None:
    line = "find: the [jerry=t] can by the office [chair=a]"
    for labels, noun in ((("jerry can", "chair"), "jerry can"), (("chair",), "jerry")):
        target = meaning(line, labels).target
        assert target is not None
        assert target.noun == noun


def test_a_part_is_no_object() -> None:
    part = meaning("find: the [handle=t] [of=t.near(a)] the [fridge=a]")
    assert part.target is None
    assert "a part of it" in part.problem
    assert "a part of it" in meaning("find: the edge of the [red=t.colour] [table=t]").problem
    assert not meaning("find: put it [on the top of=t.on(a)] the [shelf=a] [cup=t]").problem
    assert not meaning("find: go to the top of the [stairs=t]", ("top", "stairs")).problem
    assert not meaning("find: look at the back of the [chair=t]").problem


def test_what_is_made_for_a_thing_is_not_that_thing() -> None:
    line = "find: have you seen the [bottle opener=t]"
    opener = meaning(line, ("bottle", "table"))
    assert opener.target is None
    assert opener.problem == "there is no bottle opener: it belongs to a bottle, but is none"
    there = meaning(line, ("bottle", "bottle opener")).target
    assert there is not None
    assert there.noun == "bottle opener"


def test_one_is_called_like_what_was_named_before() -> None:
    read = meaning("find: [standing before=speaker.before(a)] the [sinks=a], the [one=t] [on the left=t.left-of-all]")
    assert read.target is not None
    assert (read.target.noun, read.target.plural) == ("sink", False)


def test_whole_forms_are_those_that_may_be_fitted_to() -> None:
    """All of the homes' forms that are not held out, and none of those that are, nor of the calibration."""
    slots = {"{T}": "{target}", "{Ts}": "{target_plural}", "{A}": "{anchor}", "{B}": "{anchor2}", "{C}": "{attribute}"}
    plain = {re.sub(r"\[([^\[\]=]*)=[^\[\]=]*\]", r"\1", form) for form in whole_forms()}
    forms = {re.sub(r"{\w+}", lambda m: slots[m[0]], form) for form in plain}
    wanted = {form for grammar in (PLAIN, FREE_FITTED, TUNED) for some in grammar.values() for form in some}
    kept = {form for grammar in (FREE_HELD_OUT, HELD_OUT, CALIBRATED) for some in grammar.values() for form in some}
    assert wanted <= forms
    assert not kept & forms
    assert kept


def test_a_whole_form_is_filled_with_nouns() -> None:
    rng = np.random.default_rng(0)
    for form in whole_forms():
        said = str(filled(form, rng))
        assert not set("{}") & set(said)
        assert "=t]" in said
    colours = {str(filled("the [{C}=t.colour] {T}", rng)).split("=t.")[1].split("]")[0] for _ in range(40)}
    assert colours == {"colour", "material"}


@pytest.mark.parametrize("products", [torch.float32, torch.bfloat16])
def test_a_fit_multiplies_bfloat16_only_where_the_processor_does(
    monkeypatch: pytest.MonkeyPatch, products: torch.dtype
) -> None:
    monkeypatch.setattr(
        "embodied_perceptron_training.language.fit_sentence_reader.cpu_products", lambda precision: products
    )

    class Network:
        def batch(self, texts: list[str], words: list[tuple[tuple[int, int], ...]]) -> torch.Tensor:
            return torch.ones(len(texts), 4)

        def __call__(self, batch: torch.Tensor) -> Scores:
            product = batch @ torch.ones(4, 4)
            assert product.dtype == products
            return Scores(product, product, product, dict.fromkeys(ARCS, product))

    scores = scores_of(Network(), [example_of(read_sentence(SENTENCES[0]))])  # type: ignore[arg-type]
    assert scores.parts.dtype == torch.float32
