"""Which noun of a sentence is the one that is meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from embodied_perceptron.scene.words import Mention

_PREPOSITIONS = frozenset(
    "of in on to at by near beside behind above below under beneath between from with facing against over underneath "
    "across toward towards into alongside around has have touching along inside atop closest nearest through entering "
    "enter next adjacent opposite looking".split()
)
_ORDERS = frozenset("choose select pick find locate identify want need show bring fetch get".split())
_ADJECTIVES = frozenset(
    "a an the this that these those two three four five six seven eight one single very most more small large big little "
    "tall short long white black brown gray grey red blue green yellow orange tan beige purple pink silver wooden wood "
    "metal metallic plastic leather fabric round square rectangular dark light color colored coloured open closed second "
    "first third fourth last only middle left right same bigger smaller larger taller largest smallest biggest tallest "
    "leftmost rightmost top bottom upper lower closest nearest farthest furthest other another empty and . , with".split()
)
_NOT_ADJECTIVES = frozenset((".", ",", "with"))
_VAGUE = frozenset(("furniture", "piece of furniture", "light", "paper", "frame", "print", "seat"))
_PARTITIVES = frozenset("^ one out . set pair piece both all each row stack two couple group".split())
_THERE = frozenset("it there this object item ^ that here which".split())


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
