"""How labels of any detector answer to nouns, and which nouns a sentence has."""

from __future__ import annotations

import pytest

from embodied_perceptron.language.lexicon import (
    affordances,
    is_implement,
    is_known_noun,
    lengths,
    lexicon,
    metres,
    noun_taxonomy,
    ordinal,
    serving,
    singular,
    split_words,
)


@pytest.mark.parametrize(
    ("noun", "label"),
    [("chair", "chairs"), ("bookshelf", "bookshelves"), ("chair", "Chair"), ("coffee table", "Coffee_tables")],
)
def test_a_label_in_plural_or_in_capitals_is_what_it_says(noun: str, label: str) -> None:
    assert lexicon().similarity(noun, label) == 1.0


@pytest.mark.parametrize(
    ("noun", "label"),
    [("lamp", "novelty lamp"), ("car", "toy car"), ("couch", "red sofa"), ("bench", "workbench"), ("box", "flowerbox")],
)
def test_a_label_that_ends_in_a_noun_is_a_kind_of_it(noun: str, label: str) -> None:
    assert 0.5 <= lexicon().similarity(noun, label) < 1.0


@pytest.mark.parametrize(
    ("noun", "label"), [("pet", "carpet"), ("chair", "gizmo"), ("lamp", "lamp post box"), ("car", "scar")]
)
def test_letters_alone_make_no_kind(noun: str, label: str) -> None:
    assert lexicon().similarity(noun, label) == 0.0


@pytest.mark.parametrize(
    ("text", "labels", "noun", "plural"),
    [
        ("the gizmos", ("gizmo",), "gizmo", True),
        ("the gizmo", ("gizmos",), "gizmos", False),
        ("the gizmos", ("gizmos",), "gizmos", False),
        ("the red doohickey", ("Red_Doohickey",), "Red_Doohickey", False),
    ],
)
def test_labels_that_nobody_listed_are_found_in_both_numbers(
    text: str, labels: tuple[str, ...], noun: str, plural: bool
) -> None:
    (mention,) = lexicon().mentions(split_words(text), labels)
    assert (mention.noun, mention.plural) == (noun, plural)


@pytest.mark.parametrize(
    ("word", "one"),
    [
        ("gizmos", "gizmo"),
        ("pantries", "pantry"),
        ("torches", "torch"),
        ("scarves", "scarf"),
        ("bus", ""),
        ("glass", ""),
    ],
)
def test_singular_by_rule(word: str, one: str) -> None:
    assert singular(word) == one


def test_every_label_that_a_noun_may_mean_has_a_name_of_its_own() -> None:
    words = lexicon()
    assert words.labels - set(words.meaning) <= {"object", "boots"}


@pytest.mark.parametrize(
    ("noun", "label"),
    [("waterbottle", "water bottle"), ("wipe", "baby wipes"), ("towel", "towel stack"), ("magazine", "magazine pile")],
)
def test_a_label_that_says_the_noun_in_other_words_answers_to_it(noun: str, label: str) -> None:
    assert lexicon().similarity(noun, label) >= 0.75


def test_what_is_carried_in_a_stack_is_no_stack_of_it() -> None:
    assert lexicon().similarity("tower", "towel stack") < 0.5


def test_what_serves_a_verb_answers_to_it() -> None:
    assert serving(["i", "can", "sit", "on"]) == "something to sit on"
    assert serving(["to", "rest", "my", "feet", "on"]) == "something to rest feet"
    assert serving(["on", "the", "table"]) == ""
    assert lexicon().similarity("something to sit", "piano bench") >= 0.75
    assert lexicon().similarity("something to sweep", "broom") == 1.0
    assert lexicon().similarity("something to sweep", "couch") < 0.35
    climb = [lexicon().similarity("something to climb", label) for label in ("step stool", "ladder", "stool", "chair")]
    assert climb == sorted(climb, reverse=True)
    assert len(set(climb)) == 4
    assert lexicon().similarity("something to sit on", "chair") == 1.0  # a noun of the table
    assert lexicon().similarity("something to frobnicate", "chair") < 0.35


def test_every_verb_is_served_by_nouns_that_are_known() -> None:
    known = {*lexicon().meaning, *lexicon().labels, *noun_taxonomy().senses}
    for verb, names in affordances().items():
        for name in names:
            assert known & {name, name.split()[-1]}, (verb, name)  # what a compound ends in tells what it is


@pytest.mark.parametrize(
    ("words", "labels", "use"),
    [
        (["warm", "my", "milk"], ("microwave",), "something to warm milk"),  # not "warm", which a radiator serves
        (["too", "hot", "i", "am", "melting"], ("fan", "bed"), "something to too hot"),
        (["cold", "and", "thirsty"], ("water cooler",), "something to thirsty"),  # the use that is here
    ],
)
def test_of_several_uses_the_one_that_is_here_counts(words: list[str], labels: tuple[str, ...], use: str) -> None:
    assert serving(words, labels) == use


@pytest.mark.parametrize(
    ("name", "noun", "plural"),
    [("brolly", "umbrella", False), ("push bikes", "bicycle", True), ("wellies", "boot", True)],
)
def test_a_brand_or_regional_name_is_read_as_the_usual_noun(name: str, noun: str, plural: bool) -> None:
    (mention,) = lexicon().mentions(split_words(f"the {name}"))
    assert (mention.noun, mention.plural) == (noun, plural)


def test_every_usual_noun_of_a_name_is_known() -> None:
    assert [noun for noun in lexicon().names.values() if not is_known_noun(noun)] == []


@pytest.mark.parametrize(("noun", "is_one"), [("rake", True), ("drill", True), ("espresso", False), ("zzq", False)])
def test_an_implement_is_something_to_use(noun: str, is_one: bool) -> None:
    assert is_implement(noun) == is_one


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        ("second", 2), ("number two", 2), ("5th", 5), ("the", None), ("last", -1), ("final one", -1), ("next", 2),
        ("last but one", -2), ("last but two", -3), ("penultimate", -2), ("second to last", -2), ("3rd last", -3),
        ("next to last", -2), ("one before last", -2), ("but one", 2), ("bar two", 3), ("after the tallest", 2),
        ("last-but-one", -2),
    ],
)  # fmt: skip
def test_ranks_in_words(words: str, rank: int | None) -> None:
    assert ordinal(words.split()) == rank


@pytest.mark.parametrize(
    ("words", "length_m"),
    [
        ("a couple of metres", 2.0), ("a metre and a half", 1.5), ("three quarters of a metre", 0.75),
        ("a foot", 0.3048),
        ("a hundred cm", 1.0), ("a few steps", 2.1), ("arm's reach", 0.7), ("one metre ninety", 1.9), ("the", None),
        ("one point eight metres", 1.8), ("one point nine five metres", 1.95), ("two point seventy five metres", 2.75),
        ("zero point five metres", 0.5), ("one point zero five metres", 1.05), ("point eight of a metre", 0.8),
        ("thirty-five centimetres", 0.35), ("thirty five cm", 0.35), ("two and a quarter metres", 2.25),
        ("two and three quarter metres", 2.75), ("one and a half metres", 1.5), ("half a metre", 0.5),
        ("an inch", 0.0254),
        ("a metre twenty", 1.2), ("six foot", 1.8288), ("six feet two inches", 1.8796), ("five foot six", 1.6764),
        ("one hundred and twenty centimetres", 1.2), ("two metres and thirty centimetres", 2.3), ("1,8 m", 1.8),
        ("a third of a metre", 1 / 3), ("two-metre", 2.0), ("a foot and a half", 0.4572), ("1 m 80", 1.8),
        ("a metre one", 1.0),
    ],
)  # fmt: skip
def test_lengths_in_words(words: str, length_m: float | None) -> None:
    assert metres(words.split()) == (None if length_m is None else pytest.approx(length_m))


@pytest.mark.parametrize(
    ("said", "length"),
    [
        ("the one two metres from the bin", "two metres"),
        ("within one point eight metres of it", "one point eight metres"),
        ("the four mugs a metre and a half from the two tables", "a metre and a half"),
        ("six feet two inches tall", "six feet two inches"),
        ("the two metre one by the three tables", "two metre"),
        ("point eight of a metre from two chairs", "point eight of a metre"),
        ("one and two of the mugs", None),
    ],
)
def test_a_length_has_all_its_words_and_no_others(said: str, length: str | None) -> None:
    words = said.split()
    found = [" ".join(words[first:last]) for first, last in lengths(words)]
    assert found == ([] if length is None else [length])


@pytest.mark.parametrize(
    ("noun", "label", "least"),
    [
        ("piece of furniture", "coffee table", 0.5), ("seat", "office chair", 0.5), ("toy", "teddy bear", 0.8),
        ("bottle", "shampoo bottle", 0.5),
    ],
)  # fmt: skip
def test_a_kind_that_the_table_of_a_noun_lacks_answers_to_it(noun: str, label: str, least: float) -> None:
    assert lexicon().similarity(noun, label) >= least
    assert lexicon().similarity("device", "bookshelf") == 0.0  # a kind of it by many steps alone
    assert lexicon().similarity("violin", "guitar") < 0.35
