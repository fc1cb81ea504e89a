"""What sentences mean to the reader, by a list: each sentence of its first part, and most of the rest."""

from __future__ import annotations

import re
from pathlib import Path

from support.meanings import in_short

from embodied_perceptron.language.meaning import Constraint, Meaning, ObjectPhrase
from embodied_perceptron.language.query import read_meaning

_LINE = re.compile(r"(?:\((?P<labels>[^()]*)\) )?(?P<text>.+?) => (?P<meaning>.+)")
_LEAST = 0.4  # share of the second part that is read right


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


def test_plain_sentences_are_read_right() -> None:
    read = [(text, wanted, in_short(read_meaning(text, labels))) for text, labels, wanted in EACH]
    assert [r for r in read if r[1] != r[2]] == []
    assert len(EACH) >= 200


def test_most_of_the_others_are_read_right() -> None:
    right = sum(in_short(read_meaning(text, labels)) == wanted for text, labels, wanted in MOST)
    assert right >= _LEAST * len(MOST), f"{right} of {len(MOST)}"
    assert len(MOST) >= 200


def test_a_meaning_in_short_says_all_that_counts() -> None:
    chair, table = ObjectPhrase("chair", (0, 5)), ObjectPhrase("table", (6, 11), constraints=(Constraint("large"),))
    constraints = (
        Constraint("colour", value="red"),
        Constraint("from-left", rank=2),
        Constraint("within", (table,), negated=True, amount_m=2.0),
    )
    excluded = (Meaning("", chair, (Constraint("colour", value="blue"),)),)
    short = in_short(Meaning("", chair, constraints, excluded=excluded))
    assert short == "object: chair colour(red) from-left#2 not-within(2m, table[large]); not chair colour(blue)"
    assert in_short(read_meaning("all chairs")) != in_short(read_meaning("the chair"))
