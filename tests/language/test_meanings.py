"""What sentences mean to the reader, by a list: each sentence of its first part, and most of the rest."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from support.meanings import in_short

from embodied_perceptron.config import SentenceReading
from embodied_perceptron.language.learned.reading import read_meaning
from embodied_perceptron.nn.text_encoder import MINILM_PACKAGE

_LINE = re.compile(r"(?:\((?P<labels>[^()]*)\) )?(?P<text>.+?) => (?P<meaning>.+)")
_LEAST = {"learned": 0.4, "grammar": 0.05}  # share of the second part: what only the network can read


def _listed() -> tuple[list[tuple[str, tuple[str, ...], str]], ...]:
    """Sentence, labels of the scene and meaning, of the first and of the second part."""
    text = Path(__file__).with_name("meanings.txt").read_text(encoding="utf-8")
    _, first, second = re.split(r"^# (?:every one|most of).*$", text, flags=re.MULTILINE)
    parts = []
    for part in (first, second):
        found = [_LINE.fullmatch(line) for line in part.strip().splitlines()]
        assert all(found)
        parts.append(
            [
                (m["text"], tuple((m["labels"] or "").split(", ")) if m["labels"] else (), m["meaning"])
                for m in found
                if m
            ]
        )
    return tuple(parts)


EACH, MOST = _listed()
READERS = [
    pytest.param(
        "learned",
        marks=pytest.mark.skipif(
            importlib.util.find_spec(MINILM_PACKAGE) is None, reason=f"package {MINILM_PACKAGE} is not installed"
        ),
    ),
    "grammar",
]


@pytest.mark.parametrize("reader", READERS)
def test_plain_sentences_are_read_right(reader: SentenceReading) -> None:
    read = [(text, wanted, in_short(read_meaning(text, labels, reader))) for text, labels, wanted in EACH]
    assert [r for r in read if r[1] != r[2]] == []
    assert len(EACH) >= 200


@pytest.mark.parametrize("reader", READERS)
def test_most_of_the_others_are_read_right(reader: SentenceReading) -> None:
    right = sum(in_short(read_meaning(text, labels, reader)) == wanted for text, labels, wanted in MOST)
    assert right >= _LEAST[reader] * len(MOST), f"{right} of {len(MOST)}"
    assert len(MOST) >= 200


def test_a_meaning_in_short_says_all_that_counts() -> None:
    said = "the second red chair from the left that is not within 2 m of the big table, but not the blue one"
    short = in_short(read_meaning(said, (), "grammar"))
    assert short == "object: chair colour(red) from-left#2 not-within(2m, table[large]); not chair colour(blue)"
    assert in_short(read_meaning("all chairs", (), "grammar")) != in_short(read_meaning("the chair", (), "grammar"))
