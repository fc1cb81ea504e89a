"""Which noun of a sentence is the one that is meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from embodied_perceptron.scene.words import Mention, word_set

_PREPOSITIONS = word_set("prepositions")
_ORDERS = word_set("orders")
_ADJECTIVES = word_set("adjectives")
_DETERMINERS = word_set("determiners")
_OPENERS = word_set("openers")
_NO_NOUNS = word_set("no_nouns")
_NOT_ADJECTIVES = frozenset((".", ",", "with"))
_VAGUE = word_set("vague")
_PARTITIVES = word_set("partitives")
_THERE = word_set("expletives")


def with_unknown(tokens: Sequence[str], mentions: Sequence[Mention]) -> list[Mention]:
    """The mentions, and before them the noun that a sentence begins with when nobody knows it: "find the unicorn"."""
    i, asked = 0, False
    while i < len(tokens) and (tokens[i] in _OPENERS or tokens[i] in _ORDERS):
        asked, i = True, i + 1
    asked |= i < len(tokens) and tokens[i] in _DETERMINERS
    known = mentions[0].first if mentions else len(tokens)
    while i < min(known, len(tokens)) and (tokens[i] in _DETERMINERS or tokens[i] in _ADJECTIVES):
        i += 1
    last = i
    while last < min(len(tokens), i + 3) and _may_be_noun(tokens[last]):
        last += 1
    if last == i or any(m.first < last and m.last > i for m in mentions):
        return list(mentions)
    if tokens[last : last + 1] == ["of"]:
        return list(mentions)  # "the set of towels"
    following = next((tokens[last : m.first] for m in mentions if m.first >= last), None)
    if following is not None and len(following) <= 5 and all(t in _ADJECTIVES or _may_be_noun(t) for t in following):
        return list(mentions)  # an adjective that nobody knows: "the ornate desk"
    if not asked and last < len(tokens):
        return list(mentions)  # no noun phrase
    return [Mention(i, last, " ".join(tokens[i:last]), False, known=False), *mentions]


def _may_be_noun(token: str) -> bool:
    stops = (_PREPOSITIONS, _ADJECTIVES, _ORDERS, _OPENERS, _DETERMINERS, _NO_NOUNS)
    return (
        len(token) > 1
        and token[0].isalpha()
        and not token.endswith("ing")
        and not any(token in words for words in stops)
    )


def only_adjectives(tokens: Sequence[str]) -> bool:
    """Whether nothing but adjectives and articles stands in ``tokens``."""
    return all(t in _ADJECTIVES and t not in _NOT_ADJECTIVES for t in tokens)


def governor(tokens: Sequence[str], mention: Mention) -> tuple[str, int]:
    """The word before the noun phrase of ``mention`` and its place; ("^", -1) at the beginning."""
    i = mention.first - 1
    while i >= 0 and tokens[i] in _ADJECTIVES and tokens[i] not in (",", ".", "with", "and"):
        i -= 1
    return (tokens[i], i) if i >= 0 else ("^", -1)


def choose_target(tokens: Sequence[str], mentions: Sequence[Mention]) -> int | None:
    """Index of the mention that the sentence is about, or None without any noun.

    Points for what stands before a noun, tuned on human descriptions: an order ("choose the"), the beginning of a
    sentence, "it is a"; against nouns behind prepositions and late ones.
    """
    if not mentions:
        return None
    counts = Counter(m.noun for m in mentions)
    first_end = tokens.index(".") if "." in tokens else len(tokens)
    scores = [_points(tokens, mentions, k, counts, first_end) for k in range(len(mentions))]
    return max(range(len(mentions)), key=lambda k: (scores[k], -k))


def _points(tokens: Sequence[str], mentions: Sequence[Mention], k: int, counts: Counter[str], first_end: int) -> float:
    m = mentions[k]
    word, place = governor(tokens, m)
    before = tokens[place - 1] if place > 0 else "^"
    points = -0.35 * k - (2.0 if m.first > first_end else 0.0)
    if word == "^":
        points += 2.2
    elif word in (".", ",", ";"):
        points += 1.2
    elif word in _ORDERS:
        points += 4.0
    elif word in ("is", "it's", "its", "are"):
        points += 2.5 if before in _THERE or word != "is" else 0.6
        if before == "there" and k > 0 and any(t in ("it", "him") for t in tokens[m.last : m.last + 8]):
            points -= 3.0  # "... there is a lamp on it"
    elif word == "of":
        points += 1.8 if before in _PARTITIVES or place == 0 else -1.5
    elif word in _PREPOSITIONS:
        points -= 1.8
    if counts[m.noun] > 1:
        points += 0.3
    if m.first > 0 and tokens[m.first - 1] == "this":
        points += 2.0
    elif word == "this":
        points += 1.0
    if m.noun in _VAGUE:
        points -= 0.8
    compound = k + 1 < len(mentions) and mentions[k + 1].first == m.last
    if compound and tokens[m.last - 1] != ",":
        points -= 1.5
    return points
