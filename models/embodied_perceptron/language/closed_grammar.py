"""Sentences read without a network: nouns, and what a small table of words tells of them.

    the [second] [red] chair [from the left] that is [not] [next to] the table [by] the window

What stands before a noun tells of it, what stands behind it too; a relation is one of the noun before it to the noun
behind it. No other order of words is read, no detour and no small talk: that is for the network
(:mod:`.learned.sentence_reader`), beside which this is what is left where its package is not installed. Both draw the
same graph, of which one decoder (:mod:`.learned.decoding`) makes the meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from embodied_perceptron.language.learned.graph import (
    ATTRIBUTES,
    EVERY_NUMBER,
    EXCLUDED,
    EXCLUSION,
    LANDMARK,
    NEGATION,
    NOBODY,
    RELATIONS,
    TARGET,
    WITHOUT_OTHER,
    SentenceGraph,
    Thing,
    Told,
)
from embodied_perceptron.language.learned.numbers import ORDINALS, UNITS, cardinal
from embodied_perceptron.language.lexicon import Word, lexicon, relation_words, word_set

_INTENTS = (  # how questions begin, over lower-case words joined by blanks
    ("count", r"(?:.* )?(?:how many|the number of|count)\b"),
    ("contents", r"(?:tell me )?what(?:'s| is| are| lies)?(?: there)? (?=on|in|under|next|near|behind|above|be)"),
    ("exists", r"(?:is|are) there\b|do (?:we|you|i) (?:have|see)\b"),
    ("where", r"(?:.* )?where(?:'s| is| are)?\b"),
)
_PRONOUNS = frozenset(
    ("it", "one", "ones", "something", "anything", "everything", "thing", "things", "object", "objects")
)
_ARTICLES = word_set("articles") | {"any", "every", "each", "all"}
_LIGHT = word_set("no_nouns") | word_set("openers") | word_set("request_words") | word_set("prepositions") | _ARTICLES
_OF_LENGTHS = frozenset(("and", "a", "an", "half"))
_LONGEST_LENGTH = 6  # words
_BEFORE_SIDES = _ARTICLES | set(ORDINALS) | {"far", "own", "of", "is", "are", "upper", "lower", "top", "bottom"}
_MOST_WORDS = 3  # of a noun that nobody knows
_BREAKS = frozenset((".", ",", ";", "!", "?", "and", "which", "that", "that's", "who"))
_WHO_SPEAKS = frozenset(("me", "you", "us", "here"))
_OF_ME = {"closest": "nearest-me", "farthest": "farthest-me", "near": "nearest-me"}
_TO = frozenset(("to", "from"))
_THE = frozenset(("the", "that", "those"))
_DENYING = frozenset(("without", "no"))
_OWN = {"left-of-all": "own-left", "right-of-all": "own-right"}
_ONE_SIDE = {"left-of-all": "leftmost", "right-of-all": "rightmost"}


def read_closed(words: Sequence[Word], labels: Iterable[str] = ()) -> SentenceGraph:
    """The graph over the words of a sentence; ``labels`` of the scene are nouns beside the lexicon's."""
    return _Reading(words, tuple(labels)).graph()


class _Reading:
    def __init__(self, words: Sequence[Word], labels: tuple[str, ...]) -> None:
        self.words = words
        self.tokens = [w.text for w in words]
        self.pieces = self._told()
        taken = {i for p in self.pieces for i in range(p.first, p.last)}
        self.things = self._things(labels, taken)
        inside = {i for first, last in self.things for i in range(first, last)}
        self.pieces = [p for p in self.pieces if inside.isdisjoint(range(p.first, p.last))]

    def graph(self) -> SentenceGraph:
        """What is told of which thing."""
        intent = next((n for n, said in _INTENTS if re.match(said, " ".join(self.tokens))), "find")
        if not self.things and (intent != "contents" or not self.pieces):
            return SentenceGraph("none")
        self._attach()
        excluded = self._excluded()
        related = {o for p in self.pieces if p.name in RELATIONS or p.name.startswith("speaker-") for o in p.others}
        meant = sorted(set(range(len(self.things))) - excluded, key=lambda k: (k in related, k))
        target = NOBODY if intent == "contents" else meant[0]
        number = {k: target if k and self.tokens[first] == "it" else k for k, (first, _) in enumerate(self.things)}
        things = tuple(
            Thing(first, last, TARGET if number[k] == target else EXCLUDED if k in excluded else LANDMARK, number[k])
            for k, (first, last) in enumerate(self.things)
        )
        told = (
            replace(p, owner=number.get(p.owner, NOBODY), others=tuple(number[o] for o in p.others))
            for p in self.pieces
            if p.name not in RELATIONS or p.others or p.name in WITHOUT_OTHER
        )
        return SentenceGraph(intent, things, tuple(told))

    # ------------------------------------------------------------------------------------------------- words of a kind

    def _told(self) -> list[Told]:
        """Phrases of the table, longest first, and ordinals, colours, substances and lengths."""
        table = relation_words()
        longest = max(map(len, table.phrases))
        found, i = [], 0
        while i < len(self.tokens):
            piece = self._length(i)
            for count in range(longest, 0, -1) if piece is None else ():
                name = table.phrases.get(tuple(self.tokens[i : i + count]), "")
                if name and i + count <= len(self.tokens):
                    piece = Told(i, i + count, name)
                    break
            if piece is None:
                name = self._one_word(self.tokens[i])
                piece = Told(i, i + 1, name) if name else None
            if piece is not None and self._is_side(piece):
                found.append(piece)
            i = i + 1 if piece is None else piece.last
        return found

    def _is_side(self, p: Told) -> bool:
        """Whether "left" and "right" alone are sides: not in "I left it there"."""
        if p.first and self.words[p.first - 1].end - self.words[p.first - 1].start > len(self.tokens[p.first - 1]):
            return True  # "the couch's left"
        before = self.tokens[p.first - 1 : p.first] if p.first else ["the"]
        return self.tokens[p.first : p.last] not in (["left"], ["right"]) or not _BEFORE_SIDES.isdisjoint(before)

    def _one_word(self, token: str) -> str:
        """What a word of no phrase tells."""
        table = relation_words()
        if token in table.colours or token in table.materials:
            return "colour" if token in table.colours else "material"
        return "rank" if token in ORDINALS or token == "last" or re.fullmatch(r"\d+(?:st|nd|rd|th)", token) else ""

    def _length(self, i: int) -> Told | None:
        """ "Two and a half metres", from word ``i`` on."""
        for last in range(i + 2, min(i + _LONGEST_LENGTH, len(self.tokens)) + 1):
            said, unit = self.tokens[i : last - 1], self.tokens[last - 1]
            if not all(t in _OF_LENGTHS or cardinal([t]) is not None for t in said):
                return None
            if unit.isalpha() and any(unit.startswith(begin) for begin, _ in UNITS) and unit not in _OF_LENGTHS:
                return Told(i, last, "amount")
        return None

    def _things(self, labels: tuple[str, ...], taken: set[int]) -> list[tuple[int, int]]:
        """Nouns that are known, pronouns, and what stands behind an article and nobody knows."""
        told = {i for p in self.pieces if p.last > p.first + 1 for i in range(p.first, p.last)}
        found = [
            (m.first, m.last)
            for m in lexicon().mentions(self.words, labels)
            if told.isdisjoint(range(m.first, m.last)) and not (m.last == m.first + 1 and self._is_attribute(m.first))
        ]
        known = {i for first, last in found for i in range(first, last)}
        begins = {first for first, _ in found}
        found += [
            (i, i + 1)
            for i, t in enumerate(self.tokens)
            if t in _PRONOUNS and i not in known | told and not (t == "one" and i + 1 in begins)
        ]
        known = {i for first, last in found for i in range(first, last)}
        for i, token in enumerate(self.tokens):
            if token not in _ARTICLES or i in told:
                continue
            first = i + 1
            while first < len(self.tokens) and (first in taken or self.tokens[first] in _ARTICLES):
                first += 1
            last = first
            while last < len(self.tokens) and last - first < _MOST_WORDS and self._is_unknown(last, taken | known):
                last += 1
            if last > first and last not in known:
                found.append((first, last))
        return sorted(dict.fromkeys(found))

    def _is_attribute(self, i: int) -> bool:
        """Whether a word that is a noun too tells of the noun behind it: "the orange chair"."""
        piece = next((p for p in self.pieces if p.first == i), None)
        after = lexicon().mentions(self.words[i + 1 : i + 3])
        return piece is not None and bool(after) and after[0].first == 0

    def _is_unknown(self, i: int, others: set[int]) -> bool:
        token = self.tokens[i]
        return i not in others and token[0].isalpha() and token not in _LIGHT and token not in _BREAKS

    # --------------------------------------------------------------------------------------------------- what of which

    def _before(self, i: int) -> int:
        """The last thing before word ``i``, or nobody."""
        return max((k for k, (_, last) in enumerate(self.things) if last <= i), default=NOBODY)

    def _after(self, i: int, count: int = 1) -> tuple[int, ...]:
        return tuple(k for k, (first, _) in enumerate(self.things) if first >= i)[:count]

    def _attach(self) -> None:
        """Owner and other things of all pieces."""
        denial = False
        for k in range(len(self.pieces)):
            p, led = self.pieces[k], self.pieces[k - 1] if k else None
            if led is not None and led.last != p.first:
                led = None
            before = self._before(p.first)
            if p.name == NEGATION and before != NOBODY and not _THE.isdisjoint(self.tokens[p.last : p.last + 1]):
                p = replace(p, name=EXCLUSION)  # "not the red one"
            if p.name == NEGATION and led is not None and led.name in RELATIONS:
                self.pieces[k - 1] = replace(led, denied=True)  # "that has no book"
            elif p.name == NEGATION:
                denial = True
            elif led is not None and led.name == "amount":
                p = replace(p, name="near")  # "two metres from": of nothing
            elif p.name not in (EXCLUSION, "amount"):
                p = replace(p, denied=denial or not _DENYING.isdisjoint(self.tokens[p.first : p.last]))
                denial = False
                p = self._stands(p, before)
                if p.name in RELATIONS:
                    p = self._relate(p, k)
                elif not p.name.startswith("speaker-"):
                    p = self._attribute(p, before, self._after(p.last))
            self.pieces[k] = p
        self.pieces = [p for p in self.pieces if p.name != "amount" or p.owner != NOBODY]  # of nobody: nothing compares

    def _stands(self, p: Told, before: int) -> Told:
        """ "Facing the couch" where somebody stands, and "from" where nobody does."""
        after = self._after(p.last)
        speaks = p.name.startswith("speaker-")
        if not speaks and (p.name != "front" or self.tokens[p.first] != "facing"):
            return p
        if before == NOBODY and after:
            told = self.tokens[p.last : self.things[after[0]][0]]
            others = after if _BREAKS.isdisjoint(told) else ()  # "entering the room, the chair"
            return replace(p, name=p.name if speaks else "speaker-at", others=others)
        # "from": as "near" is, and the order that a rank counts along
        return replace(p, name="near", others=after, owner=before) if speaks else p

    def _relate(self, p: Told, k: int) -> Told:
        """ "A near B", "near B is A"; of A, B and C the last one before, but behind "and" the first."""
        before = self._before(p.first)
        others = self._after(p.last, 2 if p.name == "between" else 1)
        between = self.tokens[p.last : self.things[others[0]][0]] if others else []
        if any(t in _WHO_SPEAKS for t in self.tokens[p.last : p.last + 1]):
            return replace(p, name=_OF_ME.get(p.name, p.name), owner=before, others=())
        at = next((i for i, q in enumerate(self.pieces) if q.name == "amount" and q.first == p.last), None)
        if p.name in WITHOUT_OTHER and at is not None:
            owner = before if before != NOBODY else (others or (NOBODY,))[0]
            self.pieces[at] = amount = replace(self.pieces[at], owner=owner)
            behind = self.tokens[amount.last : amount.last + 2]
            away = any(t in ("of", "from", "to") for t in behind) and _WHO_SPEAKS.isdisjoint(behind)
            return replace(p, owner=owner, others=tuple(o for o in others if away and o != owner))
        if any(t in _BREAKS and t != "and" for t in between) or not others:
            return p
        if self.tokens[self.things[others[0]][0]] == "it":  # "the table with a vase on it"
            return p
        if before == NOBODY:  # "on the table is a lamp"
            owner = (self._after(self.things[others[-1]][1]) or (NOBODY,))[0]
            return replace(p, owner=owner, others=others)
        joined = self.tokens[p.first - 1 : p.first] == ["and"] and k > 0 and self.pieces[k - 1].name in RELATIONS
        return replace(p, owner=self.pieces[k - 1].owner if joined else before, others=others)

    def _attribute(self, p: Told, before: int, after: tuple[int, ...]) -> Told:
        """Of the noun behind, where nothing but attributes stands between; else of the one before."""
        start = self.things[after[0]][0] if after else len(self.tokens)
        between = [t for i, t in enumerate(self.tokens[p.last : start], p.last) if not self._is_told(i)]
        if before != NOBODY and p.name in _OWN and self._is_owner(before) and self._between(before, p) <= {"own"}:
            owner = before - 1 if before else (after or (NOBODY,))[0]
            return replace(p, name=_OWN[p.name], others=(before,), owner=owner)  # "on the couch's left"
        leads = bool(after) and all(t in _ARTICLES or t in ("of", "single", "very") for t in between)
        if leads and p.name.startswith(("left-of-all", "right-of-all")):
            p = replace(p, name=p.name if p.last > p.first + 1 else _ONE_SIDE[p.name])
        p = replace(p, owner=after[0] if leads else before if before != NOBODY else (after or (NOBODY,))[0])
        if p.name in ("nearest-me", "farthest-me") and p.last == p.first + 1 and after:
            return self._nearest(p, before, after[0], leads)
        return p

    def _is_owner(self, thing: int) -> bool:
        """Whether a noun stands there as "couch's"."""
        word = self.words[self.things[thing][1] - 1]
        return word.end - word.start > len(word.text)

    def _between(self, thing: int, p: Told) -> set[str]:
        return set(self.tokens[self.things[thing][1] : p.first])

    def _nearest(self, p: Told, before: int, after: int, leads: bool) -> Told:
        """ "The nearest chair to the door", "the chair nearest the door"."""
        name = "closest" if p.name == "nearest-me" else "farthest"
        follows = self._after(self.things[after][1])
        if leads and follows and _TO & set(self.tokens[self.things[after][1] : self.things[follows[0]][0]]):
            return replace(p, name=name, owner=after, others=follows)
        if leads and before != NOBODY and self.tokens[p.first - 1] not in _ARTICLES | set(ORDINALS):
            return replace(p, name=name, owner=before, others=(after,))
        return p

    def _is_told(self, i: int) -> bool:
        return any(p.first <= i < p.last and (p.name in ATTRIBUTES or p.name == EVERY_NUMBER) for p in self.pieces)

    def _excluded(self) -> set[int]:
        """Things behind "except", with what is told of them there."""
        found = set()
        for p in self.pieces:
            after = self._after(p.last) if p.name == EXCLUSION else ()
            if after and self._before(p.first) != NOBODY:
                found.add(after[0])
        return found
