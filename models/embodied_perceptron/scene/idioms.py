"""Whole sentences that say a relation without its usual words: "take this table away and the vase comes down"."""

from __future__ import annotations

from collections.abc import Iterable

from embodied_perceptron.scene.language import Constraint, Meaning, ObjectPhrase, Outlook
from embodied_perceptron.scene.words import Mention, Word, lexicon, relation_words, split_words

_LONGEST = 30  # words; patterns with gaps are tried on short sentences only


def read_idiom(text: str, labels: Iterable[str] = ()) -> Meaning | None:
    """The meaning of ``text`` when it is one of the known figures of speech, else None."""
    words = [w for w in split_words(text) if w.text[0].isalnum()]
    if not 4 <= len(words) <= _LONGEST:
        return None
    joined = " ".join(w.text for w in words)
    mentions: list[Mention] | None = None
    for relation, pattern in relation_words().idioms:
        match = pattern.fullmatch(joined)
        if match is None:
            continue
        mentions = lexicon().mentions(words, labels) if mentions is None else mentions
        phrases = {}
        for slot, said in match.groupdict().items():
            if slot != "c":
                first = joined[: match.start(slot)].count(" ")
                phrases[slot] = _phrase(words, mentions, first, first + said.count(" ") + 1)
        if any(phrase is None for phrase in phrases.values()):
            continue
        return _meaning(text, relation, {k: p for k, p in phrases.items() if p is not None}, match.groupdict().get("c"))
    return None


def _phrase(words: list[Word], mentions: list[Mention], first: int, last: int) -> ObjectPhrase | None:
    """The last noun among the words [first, last) of one slot."""
    inside = [m for m in mentions if first <= m.first and m.last <= last]
    if not inside:
        return None
    m = inside[-1]
    return ObjectPhrase(m.noun, (words[m.first].start, words[m.last - 1].end), m.plural)


def _meaning(text: str, relation: str, phrases: dict[str, ObjectPhrase], colour: str | None) -> Meaning | None:
    anchors = tuple(phrases[slot] for slot in ("a", "b") if slot in phrases)
    outlook = None
    value = ""
    if relation == "colour":
        table = relation_words()
        if colour not in table.colours and colour not in table.materials:
            return None
        relation, value = ("colour", table.colours[colour]) if colour in table.colours else ("material", colour)
    if relation.startswith("viewer "):
        relation = relation.replace(" ", "-")
        outlook = Outlook("before", anchors[0])
    said = Constraint(relation, anchors, value, span=(0, len(text)))
    return Meaning(text, phrases["t"], (said,), outlook, anchors)
