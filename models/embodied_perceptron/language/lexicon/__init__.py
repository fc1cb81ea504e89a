"""Words: which kind of thing a noun may mean, which nouns a sentence has, and how well a label answers to a noun."""

from __future__ import annotations

import gzip
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from embodied_perceptron.language.noun_taxonomy import likelihood_of_label
from embodied_perceptron.language.plurals import pluralize, singular

_FOLDER = Path(__file__).parent


@lru_cache(maxsize=1)
def _sets() -> dict[str, str]:
    sets: dict[str, str] = json.loads((_FOLDER / "words.json").read_text(encoding="utf-8"))
    return sets


def word_set(name: str) -> frozenset[str]:
    """A set of ``words.json``. Raises ``KeyError`` for a name that it does not have."""
    return frozenset(_sets()[name].split(","))


_TOKEN = re.compile(r"[^\W\d_](?:[^\W\d_]|-(?=[^\W\d_]))*(?:'[^\W\d_]+)?|\d+(?:[.,]\d+)?(?:st|nd|rd|th)?|[.,;:()!?]")
_DETERMINERS = word_set("determiners")
_PART = 0.55  # how well the label "office chair" answers to an unknown noun that ends in "chair"
_KIND = 0.85  # how well a label that nobody listed answers to the noun that it ends in: "reading lamp" to "lamp"
_JOINED = 0.55  # the same where it is written in one word: "workbench" to "bench"
_NAMED_SO = 0.85  # weight of a label that a noun names rather than is like
_LEAST_TOLD = 0.3  # below it most that a fit has not seen are wrong
_LESS_FIT, _FIT = 0.04, 0.76  # what each next noun of a use serves it less, and the least of that
_FOR = "something to "  # how the noun of what serves a verb begins
_SEVERAL_OF = frozenset(  # heads of labels that are what stands before them: a "towel stack"
    ("stack", "pile", "pack", "heap", "bundle", "bunch", "set", "row", "pair", "roll", "collection", "group")
)
_LEAST_LETTERS = 3  # of each part of a word that is joined of two


@dataclass(frozen=True)
class Word:
    """A lower-case word or punctuation mark and its characters [start, end) in the sentence."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Mention:
    """A noun in a sentence.

    Attributes:
        first, last: words [first, last) that it consists of.
        noun: in singular, as the lexicon has it.
        plural: whether it stands in plural.
        known: whether the lexicon or a label of the scene has it.
    """

    first: int
    last: int
    noun: str
    plural: bool
    known: bool = True


def split_words(text: str) -> list[Word]:
    """Words and punctuation in order; anything else separates words."""
    return [Word(m.group().lower(), m.start(), m.end()) for m in _TOKEN.finditer(in_usual_letters(text))]


def in_usual_letters(text: str) -> str:
    """The text in as many characters, so that spans stay true, letters and apostrophes as they are usually written."""
    plain = text.replace("’", "'")
    return plain if plain.isascii() else "".join(map(_narrow, plain))


def _narrow(letter: str) -> str:
    """A letter as it is usually written: full-width "ｔ" and mathematical "𝐭" are "t"."""
    usual = unicodedata.normalize("NFKC", letter)
    return usual if len(usual) == 1 and usual.isascii() else letter


@dataclass(frozen=True, eq=False)
class Lexicon:
    """The nouns of ``nouns.json``; immutable.

    Attributes:
        meaning: noun -> {label: weight in (0, 1]}.
        weak: nouns that are more often something else ("light", "can").
        irregular: plural -> singular.
        surfaces: words of a noun, in singular or plural -> (noun, plural).
        longest: words of the longest surface.
        labels: all labels that a noun may mean; of others the last word tells what they are.
    """

    meaning: dict[str, dict[str, float]]
    weak: frozenset[str]
    irregular: dict[str, str]
    surfaces: dict[tuple[str, ...], tuple[str, bool]] = field(init=False)
    longest: int = field(init=False)
    labels: frozenset[str] = field(init=False)
    _kinds: dict[str, tuple[str, float]] = field(init=False)

    def __post_init__(self) -> None:
        surfaces = {tuple(noun.split()): (noun, noun in self.irregular) for noun in self.meaning}
        for noun in self.meaning:
            surfaces.setdefault(tuple(pluralize(noun).split()), (noun, True))
        for many, one in self.irregular.items():
            if one in self.meaning:
                surfaces.setdefault((many,), (one, True))
        object.__setattr__(self, "surfaces", surfaces)
        object.__setattr__(self, "longest", max(map(len, surfaces)))
        object.__setattr__(self, "labels", frozenset(label for labels in self.meaning.values() for label in labels))
        object.__setattr__(self, "_kinds", {})

    def similarity(self, noun: str, label: str) -> float:
        """How well ``label`` answers to ``noun``: 1 = that is what it is called, 0 = not at all.

        A pair of which either is not listed is told by WordNet and vectors of words
        (:mod:`embodied_perceptron.language.noun_taxonomy`).
        """
        if noun == label:
            return 1.0
        if noun.startswith(_FOR) and noun not in self.meaning:
            serves = affordances().get(noun.removeprefix(_FOR), ())
            ranked = (max(1.0 - _LESS_FIT * k, _FIT) * self.similarity(name, label) for k, name in enumerate(serves))
            return max(ranked, default=0.0)
        answers = self._listed(noun, label)
        if answers or (noun in self.meaning and label in self.labels):
            return answers
        told = likelihood_of_label(noun, label)
        return max(told if told >= _LEAST_TOLD else 0.0, self._spelt(noun, label))

    def _spelt(self, noun: str, label: str) -> float:
        """How well a label answers by its words alone: the noun in one word or several, in plural, several of it."""
        words = label_words(label)
        if noun.replace(" ", "") == "".join(words):
            return _KIND
        head = (*words[:-1], singular(words[-1]) or words[-1]) if words else ()
        if head and head[-1] in _SEVERAL_OF:
            head = head[:-1]
        return _KIND if (f" {' '.join(head)}").endswith(f" {noun}") else 0.0

    def _listed(self, noun: str, label: str) -> float:
        """What the table says of the noun and of the label or what it is a kind of; 0 where it says nothing."""
        meanings = self.meaning.get(noun)
        if meanings is None:
            return 0.0
        kind, weight = self._kind(label)
        answers = weight * (1.0 if kind == noun else self._means(meanings, kind))
        return answers if answers or not self.is_kind(label, noun) else self.meaning.get(label, {}).get(noun, _PART)

    def is_kind(self, label: str, noun: str) -> bool:
        """Whether the label says that it is one: a "coffee table" is a "table", a "workbench" a "bench"."""
        joined = label.endswith(noun) and noun in self.meaning.get(label, {})
        return label.endswith(f" {noun}") or joined or (label not in self.labels and self._kind(label)[0] == noun)

    def _means(self, meanings: dict[str, float], kind: str) -> float:
        """How well a label or noun answers to what a noun may mean."""
        if kind in self.labels or kind in meanings:
            return meanings.get(kind, 0.0)
        named = (label for label, weight in self.meaning.get(kind, {}).items() if weight >= _NAMED_SO)
        return max((meanings.get(label, 0.0) for label in named), default=0.0)

    def _kind(self, label: str) -> tuple[str, float]:
        """The label or noun that a label says it is, and how surely: itself, or what it is in singular, or what it ends
        in."""
        if label not in self._kinds:
            self._kinds[label] = (label, 1.0) if label in self.labels else self._kind_of_unlisted(label)
        return self._kinds[label]

    def _kind_of_unlisted(self, label: str) -> tuple[str, float]:
        words = label_words(label)
        for first in range(len(words)):
            said = " ".join(words[first:])
            one = said if said in self.labels else self.surfaces.get(words[first:], ("", False))[0]
            if one:
                return one, 1.0 if first == 0 else _KIND
        last = words[-1] if words else ""
        for at in range(_LEAST_LETTERS, len(last) - _LEAST_LETTERS + 1):
            one = self.surfaces.get((last[at:],), ("", False))[0]
            if one and (last[:at] in listed_words() or (last[:at],) in self.surfaces):
                return one, _JOINED
        return label, 1.0

    def always_plural(self, noun: str) -> bool:
        """Whether the noun is one thing and yet stands in plural: scissors, stairs."""
        return self.irregular.get(noun) == noun

    def mentions(self, words: Sequence[Word], labels: Iterable[str] = ()) -> list[Mention]:
        """Nouns of the lexicon, or among the ``labels`` of the scene, in order; the longest reading wins."""
        extra = self._surfaces_of(labels)
        longest = max([self.longest, *map(len, extra)])
        found: list[Mention] = []
        i = 0
        while i < len(words):
            for length in range(min(longest, len(words) - i), 0, -1):
                key = tuple(word.text for word in words[i : i + length])
                entry = self.surfaces.get(key) or extra.get(key)
                if entry is None or (length == 1 and self._is_no_noun(words, i)):
                    continue
                follows = words[i + length].text if i + length < len(words) else ""
                if length > 1 and key[-1] == "stands" and follows in _PLACES:
                    continue  # "the tv stands to the right"
                found.append(Mention(i, i + length, entry[0], entry[1]))
                i += length - 1
                break
            i += 1
        return found

    def _surfaces_of(self, labels: Iterable[str]) -> dict[tuple[str, ...], tuple[str, bool]]:
        """Words of labels that no noun has, as they are, in plural and in singular -> (label, plural)."""
        extra: dict[tuple[str, ...], tuple[str, bool]] = {}
        unlisted = [(label, label_words(label)) for label in labels]
        unlisted = [(label, words) for label, words in unlisted if words and " ".join(words) not in self.meaning]
        for label, words in unlisted:
            extra[words] = label, False
        for label, words in unlisted:
            one = singular(words[-1])
            extra.setdefault((*words[:-1], one or pluralize(words[-1])), (label, not one))
        return extra

    def _is_no_noun(self, words: Sequence[Word], i: int) -> bool:
        """Whether the weak noun at ``i`` is an adjective or a verb here: "light brown", "you can see"."""
        text = words[i].text
        before = words[i - 1].text if i else ""
        after = words[i + 1].text if i + 1 < len(words) else "."
        if after == "of" and text in _QUANTITIES:
            return True  # "a roll of toilet paper"
        materials = relation_words().materials
        if text in materials and after in ("and", "or") and self._ends_in_material(words, i + 2):
            return True  # "a wood and metal chair"
        if text not in self.weak:
            return False
        if text == "can":
            if after in _CAN_DO and before in ("this", "that", "these", "those"):
                return True  # "this can go in the bin"
            return before not in _DETERMINERS and before not in _CAN_BEFORE
        if text == "light":
            return after in _LIGHT_AFTER or (after,) in self.surfaces
        if (after,) in self.surfaces or (text == "wood" and after.endswith("ed")):
            return True  # "a glass table", "a wood framed window"
        if after.isalpha() and after not in _NO_COMPOUND and i + 2 < len(words):
            key = tuple(word.text for word in words[i + 2 : i + 4])
            if before and (key in self.surfaces or key[:1] in self.surfaces):
                return True  # "a wood tone coffee table"
        return before in ("to", "you", "i", "they", "we", "will", "would", "must", "should", "could")

    def _ends_in_material(self, words: Sequence[Word], i: int) -> bool:
        """Whether word ``i`` or the one behind it is a material, and a noun follows: "imitation wood chair"."""
        for k in (i, i + 1):
            if k + 1 < len(words) and words[k].text in relation_words().materials:
                return (words[k + 1].text,) in self.surfaces
        return False


_NO_COMPOUND = frozenset[str]().union(*map(word_set, ("prepositions", "adjectives", "no_nouns", "openers", "orders")))
_PLACES = word_set("prepositions") | {"right", "left", "there", "here", "just", "directly", "underneath"}
_CAN_DO = frozenset(("go", "be", "come", "stay", "wait", "stand", "hang", "lie", "fit", "live", "help"))
_CAN_BEFORE = word_set("before_can")
_LIGHT_AFTER = word_set("after_light")
_QUANTITIES = word_set("quantities")


@lru_cache(maxsize=1)
def listed_words() -> frozenset[str]:
    """The English words of the list that comes with the package (SCOWL), in lower case."""
    text = gzip.decompress((_FOLDER / "english_words.txt.gz").read_bytes()).decode("ascii")
    return frozenset(word for word in text.split() if word.isascii() and word.isalpha())


def label_words(label: str) -> tuple[str, ...]:
    """The words of a detector's label: "Coffee_table" has two."""
    return tuple(label.lower().replace("_", " ").split())


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """The lexicon that comes with the package."""
    data = json.loads((_FOLDER / "nouns.json").read_text(encoding="utf-8"))
    meaning: dict[str, dict[str, float]] = {}
    for group in data["nouns"]:
        for noun in group["say"]:
            meaning[noun] = {label: float(weight) for label, weight in group["mean"].items()}
    return Lexicon(meaning, frozenset(data["weak_nouns"]), dict(data["plurals"]))


@lru_cache(maxsize=1)
def affordances() -> dict[str, list[str]]:
    """Words of a use -> nouns of what serves it."""
    found: dict[str, list[str]] = {}
    for use in json.loads((_FOLDER / "affordances.json").read_text(encoding="utf-8"))["uses"]:
        for words in use["for"].split(", "):
            known = found.setdefault(words, [])
            known += [noun for noun in use["by"].split(", ") if noun not in known]
    return found


@lru_cache(maxsize=1)
def _uses() -> dict[str, list[tuple[frozenset[str], str]]]:
    """First word in its plain form -> the plain words of each use that begins with it, and the use."""
    found: dict[str, list[tuple[frozenset[str], str]]] = {}
    for use in affordances():
        words = [_plain(word) for word in use.split()]
        found.setdefault(words[0], []).append((frozenset(words), use))
    return found


@lru_cache(maxsize=4096)
def _plain(word: str) -> str:
    """A word as uses have it: "washing" and "washed" are "wash", "clothes" is "clothe"."""
    for end, other in (
        ("ies", "y"),
        ("ied", "y"),
        ("ing", ""),
        ("ing", "e"),
        ("ed", ""),
        ("ed", "e"),
        ("es", ""),
        ("s", ""),
    ):
        stem = word.removesuffix(end) + other
        if not word.endswith(end) or len(stem) < _LEAST_LETTERS or word.endswith("ss"):
            continue
        if len(stem) > _LEAST_LETTERS and stem[-1] == stem[-2] and end in ("ing", "ed") and stem[:-1] in listed_words():
            return stem[:-1]  # "chopping"
        if stem in listed_words():
            return stem
    return word


def serving(words: Sequence[str], labels: Iterable[str] = ()) -> str:
    """The noun of what serves the use that ``words`` tell, "something to sit"; empty where they tell none.

    Of several uses the one of more words, then one that one of the ``labels`` serves, then the one told first.
    """
    said = [_plain(word) for word in words]
    told = {use: len(plain) for word in said for plain, use in _uses().get(word, ()) if plain.issubset(said)}
    if not told:
        return ""
    most = max(told.values())
    best = [_FOR + use for use, count in told.items() if count == most]
    served = (n for n in best if any(lexicon().similarity(n, label) >= _NAMED_SO for label in labels))
    return next(served, best[0])


@dataclass(frozen=True, eq=False)
class RelationWords:
    """``relations.json``.

    Attributes:
        phrases: words -> what they tell of a thing, a name of :data:`~.learned.graph.TOLD`.
        colours: word -> name of the colour.
        materials: words for substances, which geometry cannot judge.
    """

    phrases: dict[tuple[str, ...], str]
    colours: dict[str, str]
    materials: frozenset[str]


@lru_cache(maxsize=1)
def relation_words() -> RelationWords:
    """The table of relation words that comes with the package."""
    data: dict[str, Any] = json.loads((_FOLDER / "relations.json").read_text(encoding="utf-8"))
    phrases = {tuple(said.split()): name for name, many in data["phrases"].items() for said in many.split(",")}
    colours = {word: name for name, words in data["colours"].items() for word in words}
    return RelationWords(phrases, colours, frozenset(data["materials"]))
