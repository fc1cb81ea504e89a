"""The mark-up of sentences: what it reads, and what it says of mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from embodied_perceptron_training.language.markup import Tag, load_corpus, main, read_sentence

GOOD = (
    "find: um could you go over to the [second=t.rank] [chair=t] [from the left=t.from-left] please",
    "count: how many [pillows=t] are there [on=t.on(a)] the [bed=a]",
    "find: There's a [desk=a] [under=a.below(b)] the [window=b]. Take the [lamp=t] [from=t.on(a)] [it=a] to my room",
    "exists: is there [any=t.any] [plant=t] [that isn't=neg] [near=t.near(a)!] a [window=a]",
    "find: the [cup=t] [between=t.between(a,b)] the [plate=a] and the [jug=b]",
    "contents: what do i have [on top of=t.on(a)] the [shelf=a] [next to=a.near(b)] the [door=b]",
    "find: [any=t.any] [chair=t] [but=excl] the [red=x.colour] [one=x]",
    "find: when you [come in through=speaker.from(a)] the [door=a], the [lamp=t] [on the left=t.left-of-all]",
    "find: [both=t.every;t.number] [lamps=t] [within=t.within(a)] [two metres=t.amount] of the [bed=a]",
    "none: tell me a joke about robots",
)
BAD = {
    "look: a [b=t]": "begins with its intent",
    "find: a [chair=t] [red=t.color]": "'color' is neither an attribute nor a relation",
    "find: a [chair=a]": "needs a target",
    "find: a [chair=t] [near=t.near] it": "needs another entity",
    "find: a [chair=t] [near=t.near(a)] it": "'a' is described but no span names it",
    "find: a [chair=t] [near=t.near(t)] it": "to itself",
    "find: a [chair=t] [red=t.colour!]": "no word is the negation",
    "find: a [chair=t], [not=neg] [red=t.colour]": "no tag is negated",
    "find: [the [red=t.colour] chair=t]": "a stray '['",
    "find: a [chair=t], not the [red=x.colour] [one=x]": "is excluded but no word marks it",
    "find: a [ chair=t]": "begin or end with a blank",
    "find: a [chair=t] [within=t.within(a)] reach of the [bed=a]": "how far or how much",
    "none: sing a [song=t]": "'none' has no spans",
    "find: a [chair=q]": "'q' is no entity",
    "find: [chair=t;a]": "one span names two entities",
    "find: a [chair=t] [from=speaker.near(a)] the [door=a]": "a speaker is one of",
}


@pytest.mark.parametrize("line", GOOD)
def test_a_sentence_is_written_as_it_was_read(line: str) -> None:
    assert str(read_sentence(line)) == line


@pytest.mark.parametrize(("line", "problem"), BAD.items())
def test_a_mistake_is_named(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_sentence(line)


def test_spans_are_those_of_the_plain_text() -> None:
    sentence = read_sentence("find: the [red=t.colour] [mug=t] [by=t.near(a);t.near(b)] the [sink=a] and the [tap=b]")
    assert sentence.text == "the red mug by the sink and the tap"
    assert [sentence.text[s.start : s.end] for s in sentence.spans] == ["red", "mug", "by", "sink", "tap"]
    assert sentence.spans[2].tags == (Tag("t", "near", ("a",)), Tag("t", "near", ("b",)))


def test_a_file_is_checked_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "writer.txt"
    path.write_text("# comment\n\nfind: the [mug=t]\nfind: the [mug=a]\nfind: the [mug=t]\n", encoding="utf-8")
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    assert f"{path}:4: 'find' needs a target" in said
    assert f"{path}:5: the same sentence again" in said
    with pytest.raises(ValueError, match=r"writer\.txt:4"):
        load_corpus([path])
