"""What nouns name that the lexicon does not list: WordNet's kinds, and how likely a label is meant by a noun."""

from __future__ import annotations

import pytest

from embodied_perceptron.language.lexicon import (
    NounTaxonomy,
    lexicon,
    likelihood_of_label,
    noun_likelihood,
    noun_taxonomy,
)

LINES = "5;;\n3;0;lamp:0,light:1\n2;1;reading lamp:0\n2;0;table:0,board:2\n1;2 3;\n"


def test_lines_become_senses_and_what_they_are_kinds_of() -> None:
    taxonomy = NounTaxonomy.read(LINES)
    assert [(s.synset, s.rank) for s in taxonomy.senses["light"]] == [(1, 1)]
    assert taxonomy.ancestors(2) == {2: 0, 1: 1, 0: 2}
    assert taxonomy.ancestors(4) == {4: 0, 2: 1, 3: 1, 1: 2, 0: 2}
    assert taxonomy.information[0] == pytest.approx(0.0, abs=0.01)  # everything is one
    assert taxonomy.information[4] > taxonomy.information[1] > taxonomy.information[0]


def test_another_form_of_the_file_is_refused() -> None:
    with pytest.raises(ValueError, match="x"):
        NounTaxonomy.read("1;x;lamp:0\n")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("reading lamp", ("reading lamp", 0)),
        ("old tables", ("table", 1)),
        ("lamptable", ("table", 1)),
        ("gizmo", ("", 1)),
        ("", ("", 0)),
    ],
)
def test_the_longest_name_that_words_end_in(words: str, named: tuple[str, int]) -> None:
    assert NounTaxonomy.read(LINES).named(words.split()) == named


@pytest.mark.parametrize(
    ("noun", "label"),
    [
        ("wardrobe", "centrifuge"),
        ("stroller", "microscope"),
        ("unicorn", "centrifuge"),
    ],
)
def test_what_is_not_meant(noun: str, label: str) -> None:
    assert lexicon().similarity(noun, label) == 0.0


@pytest.mark.parametrize(
    ("noun", "label"),
    [
        ("pram", "stroller"),  # WordNet's synonyms
        ("toolbox", "tool chest"),
        ("percussion", "snare drum"),  # and kinds
        ("instrument", "guitar"),
        ("vise", "bench vise"),
        ("scope", "microscope"),
        ("fern", "plant"),
    ],
)
def test_a_pair_that_nobody_listed_is_told_by_what_it_is(noun: str, label: str) -> None:
    assert 0.3 <= lexicon().similarity(noun, label) <= 1.0
    assert 0.0 < likelihood_of_label(noun, label) < 1.0


def test_a_kind_is_likelier_meant_than_kin_and_kin_than_strangers() -> None:
    likelihoods = [likelihood_of_label("drum", label) for label in ("snare drum", "guitar", "microscope")]
    assert likelihoods == sorted(likelihoods, reverse=True)
    assert likelihoods[0] > 0.5 > likelihoods[-1]


def test_what_is_more_special_than_the_label_stays_unsure() -> None:
    assert lexicon().similarity("swivel table", "table") == 0.55
    assert lexicon().similarity("wheelchair", "chair") <= 0.3


@pytest.mark.parametrize("noun", ["", " ", "ж", "xyzzy", "of", "a" * 500, "12"])
def test_any_words_have_a_likelihood(noun: str) -> None:
    assert 0.0 <= likelihood_of_label(noun, "snare drum") <= 1.0
    assert 0.0 <= likelihood_of_label("snare drum", noun) <= 1.0


def test_every_synset_of_the_package_leads_to_the_root_without_a_circle() -> None:
    taxonomy = noun_taxonomy()
    assert len(taxonomy.senses) > 30_000
    (top,) = (s for s, parents in enumerate(taxonomy.parents) if not parents)
    for senses in taxonomy.senses.values():
        assert all(top in taxonomy.ancestors(sense.synset) for sense in senses)
    assert noun_likelihood().taxonomy is taxonomy
