"""Sentences that speak of things by the names that users gave them: "what stands beside Anna's desk?"

Whatever a name sounds like, it is one thing. So each name is replaced by a word that means nothing else, the thing is
called by that word while the sentence is answered, and words and thing get their names back in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from embodied_perceptron.config import SentenceReading
from embodied_perceptron.language.lexicon import lexicon, relation_words, split_words, word_set
from embodied_perceptron.language.query import MAX_QUERY_CHARACTERS, Query, printable_query, query_problem
from embodied_perceptron.results import GroundedPhrase, Grounding, SceneObject

_ARTICLE = re.compile(r"\b(?:the|a|an)\s+$", re.IGNORECASE)
_LETTERS = "bdgklmprtv"
_ARTICLES = word_set("articles")
# words that say how, where or what to do, and never which thing
_GRAMMAR = frozenset().union(
    *map(
        word_set, ("prepositions", "orders", "determiners", "openers", "expletives", "english", "opening", "relative")
    ),
    ("left", "right", "front", "back", "behind"),
)
_QUALITIES = word_set("adjectives") | frozenset(relation_words().colours)


def check_label(label: str) -> str:
    """What a user says that a thing is, as it is. Raises ``ValueError`` for words that are never a thing: with "on" for
    a label, no "chair on the table" could be asked for any more."""
    words = tuple(word.text for word in split_words(label))
    if words not in lexicon().surfaces and all(word in _GRAMMAR | _ARTICLES for word in words):
        raise ValueError(f"{label!r} is no thing: it has another meaning in every sentence")
    return label


def check_no_kind(name: str) -> str:
    """A user's name that means nothing else in a sentence, as it is.

    Raises ``ValueError`` for what sentences are made of ("next to", "red"), and for what a whole kind of things is
    called, in singular or plural ("sofas").
    """
    words = tuple(word.text for word in split_words(name))
    own = tuple(word for word in words if word not in _ARTICLES)
    if all(word in _GRAMMAR for word in own) or (len(own) == 1 and own[0] in _QUALITIES):
        raise ValueError(f"{name!r} has another meaning in every sentence: take a name of your own")
    while words[0] in ("the", "a", "an"):
        words = words[1:]
    if words in lexicon().surfaces:
        bare = " ".join(words)
        raise ValueError(f"{name!r} is the name of a class of things: a name of your own says which one ('my {bare}')")
    return name


@dataclass(frozen=True)
class Replaced:
    """One place where a name stood: characters [start, end) of the sentence as asked, and of the one that is read."""

    word: str
    start: int
    end: int
    read_start: int
    read_end: int
    added: bool  # "the", before the word


@dataclass(frozen=True, eq=False)
class NamedQuery:
    """A query about ``objects`` in which every user's name is a word of its own."""

    query: Query
    objects: tuple[SceneObject, ...]
    asked: Query
    places: tuple[Replaced, ...]
    named: tuple[SceneObject, ...]  # under their own labels

    def parsed(self, reader: SentenceReading) -> Query:
        """The query with its meaning, as ``reader`` reads it."""
        return self.query.parsed({o.label for o in self.objects}, reader)

    def restored(self, answer: Grounding) -> Grounding:
        """The answer in the user's words."""
        originals = {thing.id: thing for thing in self.named}

        def said(text: str) -> str:
            for place in self.places:
                name = self.asked.text[place.start : place.end]
                if place.added:
                    text = re.sub(rf"\bthe (<p>)?{place.word}", rf"\1{place.word}", text)
                text = re.sub(rf"{place.word}(?:es|s)?", name.replace("\\", r"\\"), text)
            return text

        def named(objects: tuple[SceneObject, ...]) -> tuple[SceneObject, ...]:
            return tuple(
                replace(o, label=originals[o.id].label, user_name=originals[o.id].user_name) if o.id in originals else o
                for o in objects
            )

        return replace(
            answer,
            text=printable_query(self.asked.text),
            candidates=named(answer.candidates),
            reason=said(answer.reason),
            tagged_text=said(answer.tagged_text),
            phrases=tuple(self._phrase(phrase) for phrase in answer.phrases),
            nearest=named(answer.nearest),
        )

    def _phrase(self, phrase: GroundedPhrase) -> GroundedPhrase:
        start, end = self._as_asked(phrase.start, False), self._as_asked(phrase.end, True)
        return replace(phrase, text=self.asked.text[start:end], start=start, end=end)

    def _as_asked(self, position: int, is_end: bool) -> int:
        """A character of the sentence that was read -> of the one that was asked; names are not cut."""
        shift = 0
        for place in self.places:
            if position <= place.read_start:
                break
            if position < place.read_end or (is_end and position == place.read_end):
                return place.end if is_end else place.start
            shift = place.end - place.read_end
        return position + shift


def name_word(number: int) -> str:
    """A word for object ``number`` that no language has."""
    letters = "".join(_LETTERS[int(d)] + "o" for d in str(number))
    return f"zzq{letters}zz"


def with_user_names(query: Query, objects: Sequence[SceneObject]) -> NamedQuery | None:
    """The query with the users' names of ``objects`` in it replaced; None where it speaks of none of them.

    The longest name counts where one is part of another; upper and lower case, and typographic apostrophes, do not
    matter.
    """
    named = sorted((o for o in objects if o.user_name), key=lambda o: (-len(o.user_name), o.id))
    if not named or query.meaning is not None or query_problem(query.text):
        return None
    pattern = re.compile("|".join(f"({_pattern(thing.user_name)})" for thing in named), re.IGNORECASE)
    text, done, places = "", 0, []
    for match in pattern.finditer(query.text):
        word = name_word(named[(match.lastindex or 1) - 1].id)
        text += query.text[done : match.start()]
        added = _ARTICLE.search(text) is None
        start = len(text)
        text += f"the {word}" if added else word
        done = match.end()
        places.append(Replaced(word, match.start(), done, start, len(text), added))
    text += query.text[done:]
    if not places or len(text) > MAX_QUERY_CHARACTERS:
        return None
    words = {place.word for place in places}
    found = tuple(thing for thing in named if name_word(thing.id) in words)
    ids = {thing.id for thing in found}
    renamed = tuple(replace(o, label=name_word(o.id)) if o.id in ids else o for o in objects)
    return NamedQuery(replace(query, text=text), renamed, query, tuple(places), found)


def _pattern(name: str) -> str:
    parts = (re.sub("['’]", "['’]", re.escape(part)) for part in name.split())
    return r"(?<!\w)" + r"\s+".join(parts) + r"(?!\w)"
