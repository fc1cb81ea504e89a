"""English words: nouns of a sentence, similarity of nouns and labels, plurals, numbers, and the taxonomy of nouns."""

from __future__ import annotations

import gzip
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

_FOLDER = Path(__file__).parent


@lru_cache(maxsize=1)
def _sets() -> dict[str, str]:
    sets: dict[str, str] = json.loads((_FOLDER / "words.json").read_text(encoding="utf-8"))
    return sets


def word_set(name: str) -> frozenset[str]:
    """A set of ``words.json``. Raises ``KeyError`` for a name that it does not have."""
    return frozenset(_sets()[name].split(","))


_TOKEN = re.compile(r"[^\W\d_](?:[^\W\d_]|-(?=[^\W\d_]))*(?:'[^\W\d_]+)?|\d+(?:[.,]\d+)?(?:st|nd|rd|th)?|[.,;:()!?]")
_PART = 0.55  # similarity of the label "office chair" to an unknown noun that ends in "chair"
_KIND = 0.85  # similarity of an unlisted label to the noun that it ends in: "reading lamp" to "lamp"
_JOINED = 0.55  # the same for one word: "workbench" to "bench"
_NAMED_SO = 0.85  # least weight of a label that a noun names
_LEAST_LIKELIHOOD = 0.3  # below it most pairs that the fit has not seen are wrong
_LESS_FIT, _FIT = 0.04, 0.76  # similarity that each next noun of a use loses, and its minimum
_SERVES = 0.7  # least similarity of a label that serves a use
_FOR = "something to "  # prefix of the noun of a use
_SEVERAL_OF = frozenset(  # heads of labels of several objects: "towel stack"
    ("stack", "pile", "pack", "heap", "bundle", "bunch", "set", "row", "pair", "roll", "collection", "group")
)
_LEAST_LETTERS = 3  # of a singular, and of each part of a compound


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
        first, last: its words [first, last).
        noun: in singular, as the lexicon has it.
        plural: whether it is plural.
        known: whether the lexicon or a label of the scene has it.
    """

    first: int
    last: int
    noun: str
    plural: bool
    known: bool = True


def split_words(text: str) -> list[Word]:
    """Split into words and punctuation; anything else separates words."""
    return [Word(m.group().lower(), m.start(), m.end()) for m in _TOKEN.finditer(in_usual_letters(text))]


def in_usual_letters(text: str) -> str:
    """Normalize letters and apostrophes; the number of characters, and so every span, stays the same."""
    plain = text.replace("’", "'")
    return plain if plain.isascii() else "".join(map(_narrow, plain))


def _narrow(letter: str) -> str:
    """ASCII form of a letter: full-width "ｔ" and mathematical "𝐭" become "t"."""
    usual = unicodedata.normalize("NFKC", letter)
    return usual if len(usual) == 1 and usual.isascii() else letter


@dataclass(frozen=True, eq=False)
class Lexicon:
    """The nouns of ``nouns.json``; immutable.

    Attributes:
        meaning: noun -> {label: weight in (0, 1]}.
        irregular: plural -> singular.
        names: brand, regional and old names -> the usual noun, which a sentence with the name then has.
        surfaces: words of a noun, in singular or plural -> (noun, plural).
        longest: number of words of the longest surface.
        labels: all labels that a noun may mean; other labels are classified by their last word.
    """

    meaning: dict[str, dict[str, float]]
    irregular: dict[str, str]
    names: Mapping[str, str]
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
        for name, noun in self.names.items():
            surfaces.setdefault(tuple(name.split()), (noun, False))
            surfaces.setdefault(tuple(pluralize(name).split()), (noun, True))
        object.__setattr__(self, "surfaces", surfaces)
        object.__setattr__(self, "longest", max(map(len, surfaces)))
        object.__setattr__(self, "labels", frozenset(label for labels in self.meaning.values() for label in labels))
        object.__setattr__(self, "_kinds", {})

    def similarity(self, noun: str, label: str) -> float:
        """Similarity of ``label`` and ``noun`` in [0, 1]: 1 = the same, 0 = unrelated.

        Unlisted pairs are scored by WordNet and word vectors (:class:`NounLikelihood`).
        """
        if noun == label:
            return 1.0
        if is_use(noun) and noun not in self.meaning:
            serves = affordances().get(noun.removeprefix(_FOR), ())
            ranks = {name: max(1.0 - _LESS_FIT * k, _FIT) for k, name in enumerate(serves)}
            own = ranks.get(label, 0.0)  # a ladder is no step stool where both are listed
            return own or max((rank * self.similarity(name, label) for name, rank in ranks.items()), default=0.0)
        listed = self._listed(noun, label)
        if listed or (noun in self.meaning and label in self.labels):
            return listed or _A_KIND * noun_taxonomy().is_kind(label.split(), noun, _NEXT_KIND)
        likelihood = likelihood_of_label(noun, label)
        return max(likelihood if likelihood >= _LEAST_LIKELIHOOD else 0.0, self._spelt(noun, label))

    def _spelt(self, noun: str, label: str) -> float:
        """Similarity by spelling alone: compounds in one or several words, plurals, and collections."""
        words = label_words(label)
        if noun.replace(" ", "") == "".join(words):
            return _KIND
        head = (*words[:-1], singular(words[-1]) or words[-1]) if words else ()
        if head and head[-1] in _SEVERAL_OF:
            head = head[:-1]
        return _KIND if (f" {' '.join(head)}").endswith(f" {noun}") else 0.0

    def _listed(self, noun: str, label: str) -> float:
        """Similarity in the table of the noun and of the label or its class; 0 for unlisted pairs."""
        meanings = self.meaning.get(noun)
        if meanings is None:
            return 0.0
        kind, weight = self._kind(label)
        listed = weight * (1.0 if kind == noun else self._means(meanings, kind))
        if label not in self.labels and label.endswith(f" {noun}"):
            return max(listed, _PART)
        return listed if listed or not self.is_kind(label, noun) else self.meaning.get(label, {}).get(noun, _PART)

    def is_kind(self, label: str, noun: str) -> bool:
        """Whether the label contains the noun as its class: a "coffee table" is a "table", a "workbench" a "bench"."""
        joined = label.endswith(noun) and noun in self.meaning.get(label, {})
        return label.endswith(f" {noun}") or joined or (label not in self.labels and self._kind(label)[0] == noun)

    def _means(self, meanings: dict[str, float], kind: str) -> float:
        """Weight of a label or noun among the meanings of a noun."""
        if kind in self.labels or kind in meanings:
            return meanings.get(kind, 0.0)
        named = (label for label, weight in self.meaning.get(kind, {}).items() if weight >= _NAMED_SO)
        return max((meanings.get(label, 0.0) for label in named), default=0.0)

    def _kind(self, label: str) -> tuple[str, float]:
        """The listed label or noun that a label is a kind of, with its weight: itself, its singular, or its ending."""
        if label not in self._kinds:
            self._kinds[label] = (label, 1.0) if label in self.labels else self._kind_of_unlisted(label)
        return self._kinds[label]

    def _kind_of_unlisted(self, label: str) -> tuple[str, float]:
        words = label_words(label)
        for first in range(len(words)):
            rest = " ".join(words[first:])
            one = rest if rest in self.labels else self.surfaces.get(words[first:], ("", False))[0]
            if one:
                return one, 1.0 if first == 0 else _KIND
        last = words[-1] if words else ""
        for at in range(_LEAST_LETTERS, len(last) - _LEAST_LETTERS + 1):
            one = self.surfaces.get((last[at:],), ("", False))[0]
            if one and (last[:at] in listed_words() or (last[:at],) in self.surfaces):
                return one, _JOINED
        return label, 1.0

    def always_plural(self, noun: str) -> bool:
        """Whether the noun has no singular: scissors, stairs."""
        return self.irregular.get(noun) == noun

    def mentions(self, words: Sequence[Word], labels: Iterable[str] = ()) -> list[Mention]:
        """Nouns of the lexicon and of ``labels`` in order; the longest match wins."""
        extra = self._surfaces_of(labels)
        longest = max([self.longest, *map(len, extra)])
        found: list[Mention] = []
        i = 0
        while i < len(words):
            for length in range(min(longest, len(words) - i), 0, -1):
                key = tuple(word.text for word in words[i : i + length])
                entry = self.surfaces.get(key) or extra.get(key)
                if entry is None:
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
        """Surfaces of labels that are not listed, also in plural and singular, and of those that are said in other
        words ("tin of paint", "dumb bell") -> (label, plural)."""
        extra: dict[tuple[str, ...], tuple[str, bool]] = {}
        named = [(label, label_words(label)) for label in labels]
        for label, words in named:
            extra |= {other: (label, plural) for other, plural in _in_other_words(words)}
        unlisted = [(label, words) for label, words in named if words and " ".join(words) not in self.meaning]
        for label, words in unlisted:
            extra[words] = label, False
        for label, words in unlisted:
            one = singular(words[-1])
            extra.setdefault((*words[:-1], one or pluralize(words[-1])), (label, not one))
        return extra


_PLACES = word_set("prepositions") | {"right", "left", "there", "here", "just", "directly", "underneath"}


@lru_cache(maxsize=1)
def listed_words() -> frozenset[str]:
    """The English words of the shipped list (SCOWL), in lower case."""
    text = gzip.decompress((_FOLDER / "english_words.txt.gz").read_bytes()).decode("ascii")
    return frozenset(word for word in text.split() if word.isascii() and word.isalpha())


def label_words(label: str) -> tuple[str, ...]:
    """Words of a detector's label: "Coffee_table" has two."""
    return tuple(label.lower().replace("_", " ").split())


@lru_cache(maxsize=4096)
def _in_other_words(words: tuple[str, ...]) -> tuple[tuple[tuple[str, ...], bool], ...]:
    """Words that say a label otherwise, in singular and plural: "tin of paint", and "dumb bell" for one word."""
    if len(words) == 2:
        return ((words[1], "of", words[0]), False), ((pluralize(words[1]), "of", words[0]), True)
    label = words[0] if len(words) == 1 else ""
    cuts = range(_LEAST_LETTERS, len(label) - _LEAST_LETTERS + 1)
    parts = [(label[:k], label[k:]) for k in cuts if listed_words().issuperset((label[:k], label[k:]))]
    return tuple(form for a, b in parts for form in (((a, b), False), ((a, pluralize(b)), True)))


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """The shipped lexicon."""
    data = json.loads((_FOLDER / "nouns.json").read_text(encoding="utf-8"))
    meaning: dict[str, dict[str, float]] = {}
    for group in data["nouns"]:
        for noun in group["say"]:
            meaning[noun] = {label: float(weight) for label, weight in group["mean"].items()}
    names = {name: noun for noun, names in data["names"].items() for name in names.split(", ")}
    return Lexicon(meaning, dict(data["plurals"]), names)


@lru_cache(maxsize=1)
def affordances() -> dict[str, list[str]]:
    """Words of a use -> nouns of objects that serve it."""
    found: dict[str, list[str]] = {}
    for use in json.loads((_FOLDER / "affordances.json").read_text(encoding="utf-8"))["uses"]:
        for words in use["for"].split(", "):
            known = found.setdefault(words, [])
            known += [noun for noun in use["by"].split(", ") if noun not in known]
    return found


@lru_cache(maxsize=1)
def _uses() -> dict[str, list[tuple[frozenset[str], str]]]:
    """Stem of the first word -> stems of each use that begins with it, and the use."""
    found: dict[str, list[tuple[frozenset[str], str]]] = {}
    for use in affordances():
        words = [_plain(word) for word in use.split()]
        found.setdefault(words[0], []).append((frozenset(words), use))
    return found


@lru_cache(maxsize=4096)
def _plain(word: str) -> str:
    """Stem of a word: "washing" and "washed" are "wash", "clothes" is "clothe"."""
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
    """The noun of the use that ``words`` state, "something to sit"; empty where they state none.

    Of several uses: one that a label of ``labels`` serves, then the one with most words, then the first. A use whose
    words belong to another one does not count: "wash hands" is not "wash".
    """
    stems = [_plain(word) for word in words]
    uses = {use: plain for word in stems for plain, use in _uses().get(word, ()) if plain.issubset(stems)}
    widest = [use for use, plain in uses.items() if not any(plain < other for other in uses.values())]
    ranked = sorted((_FOR + use for use in widest), key=lambda noun: -len(noun.split()))
    return next((noun for noun in ranked if is_served(noun, labels)), ranked[0] if ranked else "")


def is_use(noun: str) -> bool:
    """Whether a noun stands for a use, as those of :func:`serving` do, "something to sit"."""
    return noun.startswith(_FOR)


def is_served(noun: str, labels: Iterable[str]) -> bool:
    """Whether an object with one of ``labels`` serves the use ``noun``, "something to sit"."""
    return any(lexicon().similarity(noun, label) >= _SERVES for label in labels)


def is_known_noun(noun: str, labels: Iterable[str] = ()) -> bool:
    """Whether a noun in singular is a word of the lexicon, of ``labels`` or of the taxonomy, or a stated use."""
    known = noun in lexicon().meaning or noun in lexicon().labels or noun in labels or is_use(noun)
    return known or bool(noun_taxonomy().named(noun.split())[0])


def is_implement(noun: str) -> bool:
    """Whether a noun is a word of the taxonomy for something to use: "rake", but not "espresso"."""
    taxonomy = noun_taxonomy()
    (top,) = taxonomy.senses["instrumentality"]
    return any(top.synset in taxonomy.ancestors(sense.synset) for sense in taxonomy.senses.get(noun, ()))


@dataclass(frozen=True, eq=False)
class RelationWords:
    """``relations.json``.

    Attributes:
        colours: word -> name of the colour.
        materials: words for materials, which the map cannot check.
    """

    colours: dict[str, str]
    materials: frozenset[str]


@lru_cache(maxsize=1)
def relation_words() -> RelationWords:
    """The shipped table of relation words."""
    data: dict[str, Any] = json.loads((_FOLDER / "relations.json").read_text(encoding="utf-8"))
    colours = {word: name for name, words in data["colours"].items() for word in words}
    return RelationWords(colours, frozenset(data["materials"]))


# ----------------------------------------------------------------------------------------------------------------------
# Plurals and singulars by rule; irregular ones stand in nouns.json.


def singular(word: str) -> str:
    """Singular of a regular English plural; empty for other words."""
    if not word.endswith("s") or word.endswith(("ss", "us", "is", "as")) or len(word) <= _LEAST_LETTERS:
        return ""
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith("ves"):
        return word[:-3] + "f"
    short = word.endswith("es") and word[:-1] not in listed_words() and word[:-2] in listed_words()  # "cactuses"
    return word[:-2] if short or word.endswith(("sses", "xes", "ches", "shes")) else word[:-1]


def pluralize(noun: str) -> str:
    """Regular English plural."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("f"):
        return noun[:-1] + "ves"
    if noun.endswith("y") and noun[-2:-1] not in ("", "a", "e", "i", "o", "u"):
        return noun[:-1] + "ies"
    return noun + "s"


# ----------------------------------------------------------------------------------------------------------------------
# Numbers, ordinals and lengths in words.

_LONGEST_M = 1e6
_MOST = 1_000_000  # largest count
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_CARDINALS = {word: float(k) for k, word in enumerate(_SMALL)} | {
    "both": 2.0, "couple": 2.0, "pair": 2.0, "few": 3.0, "nought": 0.0, "dozen": 12.0, "hundred": 100.0,
} | {word: 10.0 * k for k, word in enumerate(_TENS, 2)}  # fmt: skip
ORDINALS = {
    word: rank
    for rank, words in enumerate(
        ("first 1st", "second 2nd next", "third 3rd", "fourth 4th", "fifth 5th", "sixth 6th", "seventh 7th",
         "eighth 8th", "ninth 9th", "tenth 10th", "eleventh 11th", "twelfth 12th"), 1,
    )
    for word in words.split()
}  # fmt: skip
UNITS = {
    "centimet(?:re|er)s?|centis?|cms?": 0.01, "millimet(?:re|er)s?|mms?": 0.001, "met(?:re|er)s?|m": 1.0,
    "foot|feet|ft": 0.3048, "inch(?:es)?": 0.0254, "yards?": 0.9144, "steps?|paces?|arm(?:'?s)?|reach": 0.7,
}  # fmt: skip
_UNIT = re.compile("|".join(UNITS))
_ARTICLES = frozenset(("a", "an"))
_FRACTIONS = {"half": 0.5, "halves": 0.5, "quarter": 0.25, "quarters": 0.25, "third": 1.0 / 3.0, "thirds": 1.0 / 3.0}
# letters of the words of a length: one, Digit, tens, hundred, figures, point, fraction, article, several, and, of, unit
_LETTERS = {"one": "i", "hundred": "h", "point": "p", "and": "&", "of": "o", "couple": "c", "few": "c"} | {
    **dict.fromkeys(_ARTICLES, "a"), **dict.fromkeys(_FRACTIONS, "f"), **dict.fromkeys(_TENS, "t"),
}  # fmt: skip
_WHOLE = "(?:a?[idt]?h(?:&?ti?d?|&?[id])?|t[id]?|i|d|n|a?co?)"
_AMOUNT = f"(?:{_WHOLE}?p[idtn]+|{_WHOLE}&a?[id]?f|a?[idn]?f|{_WHOLE}|a)"
_LENGTH = re.compile(f"(?:{_AMOUNT})?(?:oa)?a?u+(?:&?{_AMOUNT}u|&a?f|(?:t[id]?|d|n)(?!u))?")
_LAST, _AFTER = frozenset(("last", "final", "penultimate")), frozenset(("but", "bar", "after", "before"))
_SMALLER = {1.0: 0.01, 0.3048: 0.0254}  # unit that follows metres and feet, metres


def cardinal(tokens: Sequence[str]) -> float | None:
    """The number at the beginning of the words: "twenty five", "1.5", "a", "a couple"; None without a number."""
    total: float | None = None
    tokens = [part for token in tokens for part in token.split("-")]
    for before, token in zip(("", *tokens), tokens, strict=False):
        total = None if before in _ARTICLES and (token in _CARDINALS or token[0].isdigit()) else total
        if re.fullmatch(r"\d+(?:[.,]\d+)?", token):
            return (total or 0.0) + float(token.replace(",", "."))
        if token in _CARDINALS:
            total = (total or 0.0) + _CARDINALS[token] if token != "hundred" else 100.0 * (total or 1.0)
        elif total is not None:
            break
        elif token in _ARTICLES:
            total = 1.0
    return total


def _letter(word: str) -> str:
    """The letter of a word in the grammar of lengths; " " for a word that is no part of one."""
    digit = "d" if word in _SMALL else "n" if word[:1].isdigit() and cardinal([word]) is not None else " "
    return _LETTERS.get(word, "u" if _UNIT.fullmatch(word) else digit)


def lengths(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Words [first, last) of each length with a unit: "one point eight metres", "a metre twenty", "six feet two"."""
    parts = [(part, k) for k, token in enumerate(tokens) for part in token.split("-")]
    found = _LENGTH.finditer("".join(_letter(part) for part, _ in parts))
    return [(parts[m.start()][1], parts[m.end() - 1][1] + 1) for m in found]


def long_ranks(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Words [first, last) of each rank of several words: "last but one", "second to last", "number 12"."""
    triples = enumerate(zip(tokens, tokens[1:], tokens[2:], strict=False))
    from_end = [
        (k, k + 3) for k, (a, b, c) in triples
        if (a in _LAST and b in _AFTER and cardinal([c])) or (a in ORDINALS and (b, c) == ("to", "last"))
    ]  # fmt: skip
    numbered = [k for k, token in enumerate(tokens[1:]) if tokens[k] == "number" and token.isdecimal()]
    return [*from_end, *((k, k + 2) for k in numbered)]


def metres(tokens: Sequence[str]) -> float | None:
    """The length in the words, metres: "two and a half metres", "80 cm", "six foot two"; None without a length."""
    total, scale, number = 0.0, 0.0, list[str]()
    for word in (part for token in tokens for part in token.split("-")):
        unit = next((scale for name, scale in UNITS.items() if re.fullmatch(name, word)), None)
        if unit is None:
            number.append(word)
        elif number or not scale:  # "arm's reach" is one unit
            amount = _amount(number)
            total, scale, number = total + (1.0 if amount is None else amount) * unit, unit, []
    rest = _amount(number) if not scale or _letter("".join(number[:1])) in "&tdn" else None
    if not scale or rest is None:
        return rest if not scale else min(total, _LONGEST_M)
    rest *= _SMALLER.get(scale, 0.0) if _FRACTIONS.keys().isdisjoint(number) else scale  # "one metre ninety"
    return min(total + (rest if rest < scale else 0.0), _LONGEST_M)


def _amount(words: Sequence[str]) -> float | None:
    """The number in the words, with decimals and fractions: "one point eight", "two and three quarters"."""
    if "point" in words:
        k = words.index("point")
        digits = " ".join(f"{cardinal([w]):g}" for w in words[k + 1 :] if _letter(w) in "idtn")
        digits = re.sub(r"(?<=\d)0 (?=[1-9])", "", digits).replace(" ", "")  # "seventy five"
        return (cardinal(words[:k]) or 0.0) + float(f"0.{digits or 0}")
    total: float | None = None
    for part in re.split(r"\band\b", " ".join(words)):
        number, share = cardinal(part.split()), next((_FRACTIONS[w] for w in part.split() if w in _FRACTIONS), None)
        if share is not None:
            number = share * (1.0 if number is None else number)
        total = number if total is None else total + (number or 0.0)
    return total


def ordinal(tokens: Sequence[str]) -> int | None:
    """The rank in the words: "second", "number two", "5th", 3 for "but two"; from the end -1 for the last, -2 for
    "second to last" and "last but one"."""
    words = [part for token in tokens for part in token.split("-")]
    digits = next((int(m[1]) for word in words if (m := re.fullmatch(r"(\d+)(?:st|nd|rd|th)?", word))), None)
    rank = next((ORDINALS[word] for word in words if word in ORDINALS), digits)
    if rank is None and (number := cardinal([word for word in words if word not in _ARTICLES])) is not None:
        rank = int(number)
    after = not _AFTER.isdisjoint(words)  # "the largest but one", "the one after the largest"
    if after:
        rank = 1 + (rank or 1)
    if not _LAST.isdisjoint(words):
        rank = -(rank or 1) if "penultimate" not in words else -2
    return rank if rank is None else max(-_MOST, min(rank, _MOST))


# ----------------------------------------------------------------------------------------------------------------------
# What nouns name: synonyms and kinds of physical objects in WordNet 3.0 (Fellbaum 1998), and word vectors of MiniLM, as
# features of a small network that scores unlisted pairs of noun and label. It is fitted on the listed pairs
# (``embodied_perceptron_training.language.fit_names``). Only tables are read here, no text encoder.

TAXONOMY = _FOLDER / "wordnet_nouns.txt.gz"
NOUN_WEIGHTS = _FOLDER / "noun_likelihood.safetensors"
NOUN_FEATURES = (
    "same", "kind", "kind_steps", "special", "special_steps", "kinship", "rare_sense", "known",
    "label_ends_in_noun", "noun_ends_in_label", "same_head", "noun_modified", "label_modified", "modifiers_shared",
    "cosine",
)  # fmt: skip
_PER_SENSE = 0.06  # kinship that a rarer sense must have more than the next more frequent one
_MODIFIED, _SPECIAL = 0.55, 0.3  # upper limits: label "table" for "swivel table", "chair" for "wheelchair"
_A_KIND = 0.6  # lower limit for a kind of the noun in a common sense: "orchid" for "plant"
_NEXT_KIND = 2  # most steps between a listed noun and a kind of it that its table lacks: "furniture", "coffee table"
_AKIN = 0.3  # upper limit for another kind of the same: a cat is no dog
# features of nouns of which one may name the other
_RELATED = (
    "same", "kind", "special", "label_ends_in_noun", "noun_ends_in_label", "same_head", "noun_modified",
    "label_modified",
)  # fmt: skip
_COMMON_SENSES = 2  # most frequent senses of a noun
_FEW_STEPS = 4.0


@dataclass(frozen=True)
class Sense:
    """A sense of a noun: its synset, and the number of more frequent senses."""

    synset: int
    rank: int


@dataclass(frozen=True, eq=False)
class NounTaxonomy:
    """Synsets of physical objects and their hypernyms; immutable.

    Attributes:
        senses: lemma -> its senses, most frequent first.
        parents: hypernyms of each synset.
        kinds: number of hyponyms of each synset, itself included.
    """

    senses: Mapping[str, tuple[Sense, ...]]
    parents: Sequence[tuple[int, ...]]
    kinds: Sequence[int]
    _ancestors: dict[int, dict[int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> NounTaxonomy:
        """Parse lines ``kinds;parents;lemma:rank,lemma:rank``, one per synset; parents are line numbers from 0.

        Raises ``ValueError`` for another form.
        """
        parents: list[tuple[int, ...]] = []
        kinds: list[int] = []
        senses: dict[str, list[Sense]] = {}
        for synset, line in enumerate(text.splitlines()):
            count, above, lemmas = line.split(";")
            kinds.append(int(count))
            parents.append(tuple(map(int, above.split())))
            for lemma in filter(None, lemmas.split(",")):
                name, _, rank = lemma.rpartition(":")
                senses.setdefault(name, []).append(Sense(synset, int(rank)))
        return cls({lemma: tuple(sorted(s, key=lambda x: x.rank)) for lemma, s in senses.items()}, parents, kinds)

    def ancestors(self, synset: int) -> dict[int, int]:
        """Synset -> steps up from ``synset``, itself included."""
        known = self._ancestors.get(synset)
        if known is not None:
            return known
        steps, todo = {synset: 0}, [synset]
        for one in todo:  # grows: breadth first
            for parent in self.parents[one]:
                if parent not in steps:
                    steps[parent] = steps[one] + 1
                    todo.append(parent)
        return self._ancestors.setdefault(synset, steps)

    def is_kind(self, words: Sequence[str], noun: str, most: int = 99) -> bool:
        """Whether the most frequent sense of ``words`` is a proper hyponym of a common sense of ``noun``, at most
        ``most`` steps below it."""
        named = self.named(words)[0]
        above = self.ancestors(self.senses[named][0].synset) if named else {}
        common = {s.synset for s in self.senses.get(noun, ())[:_COMMON_SENSES]}
        return any(0 < above.get(synset, 0) <= most for synset in common)

    @cached_property
    def information(self) -> NDArray[np.float64]:
        """Information content of each synset, in [0, 1], from its number of hyponyms (Resnik 1995)."""
        count = np.array(self.kinds)
        information: NDArray[np.float64] = 1.0 - np.log(count + 1) / math.log(len(count) + 1)
        return information

    def named(self, words: Sequence[str]) -> tuple[str, int]:
        """The longest lemma that ``words`` end in, and the number of words before it; ("", all) without one.

        Compounds are also matched as one word, with a hyphen, and in singular; the head of a joined last word counts
        as a modified noun: "workbench" is a bench.
        """
        for first in range(len(words)):
            rest = words[first:]
            one = " ".join((*rest[:-1], singular(rest[-1]) or rest[-1]))
            forms = (" ".join(rest), "".join(rest), "-".join(rest), one)
            for form in forms:
                if form in self.senses:
                    return form, first
        last = words[-1] if words else ""
        for at in range(_LEAST_LETTERS, len(last) - _LEAST_LETTERS + 1):
            if last[at:] in self.senses and last[:at] in self.senses:
                return last[at:], len(words)
        return "", len(words)


@dataclass(frozen=True, eq=False)
class NounLikelihood:
    """Likelihood that a noun refers to an object with a label.

    Attributes:
        taxonomy: senses of nouns.
        vectors: word -> unit vector.
        hidden, bias, out, out_bias: weights of a network with one hidden layer over :data:`NOUN_FEATURES`.
    """

    taxonomy: NounTaxonomy
    vectors: Mapping[str, NDArray[np.float32]]
    hidden: NDArray[np.float32]
    bias: NDArray[np.float32]
    out: NDArray[np.float32]
    out_bias: float
    _vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def features(self, noun: str, label: str) -> NDArray[np.float32]:
        """(F,) :data:`NOUN_FEATURES` of a noun and a label in lower case with single spaces."""
        words, name = noun.split(), label.split()
        noun_head, noun_before = self.taxonomy.named(words)
        name_head, name_before = self.taxonomy.named(name)
        f = dict.fromkeys(NOUN_FEATURES, 0.0)
        f.update(self._kinship(noun_head, name_head))
        f["label_ends_in_noun"] = float(label.endswith(f" {noun}") or (name_before > 0 and name_head == noun))
        f["noun_ends_in_label"] = float(noun.endswith(f" {label}") or (noun_before > 0 and noun_head == label))
        f["same_head"] = float(words[-1:] == name[-1:])
        f["noun_modified"], f["label_modified"] = float(noun_before > 0), float(name_before > 0)
        ours, theirs = set(words[:-1]), set(name[:-1])
        f["modifiers_shared"] = len(ours & theirs) / max(len(ours | theirs), 1)
        f["cosine"] = float(self._vector(noun) @ self._vector(label))
        return np.array([f[name] for name in NOUN_FEATURES], np.float32)

    def _kinship(self, noun: str, label: str) -> dict[str, float]:
        """Features of the two most similar senses (Lin 1998)."""
        taxonomy, best = self.taxonomy, None
        for a in taxonomy.senses.get(noun, ()):
            above_a = taxonomy.ancestors(a.synset)
            for b in taxonomy.senses.get(label, ()):
                above_b = taxonomy.ancestors(b.synset)
                shared = above_a.keys() & above_b.keys()
                if not shared:
                    continue
                shared_information, _, joint = max(
                    (taxonomy.information[s], -above_a[s] - above_b[s], s) for s in shared
                )
                both = taxonomy.information[a.synset] + taxonomy.information[b.synset]
                kinship = min(2.0 * shared_information / max(both, 1e-6), 1.0)
                worth = kinship - _PER_SENSE * (a.rank + b.rank)
                if best is None or worth > best[0]:
                    best = worth, kinship, above_a[joint], above_b[joint], a.rank + b.rank
        if best is None:
            return {}
        _, kinship, up, down, rank = best
        return {
            "known": 1.0,
            "kinship": float(kinship),
            "rare_sense": rank / 3.0,
            "same": float(up == down == 0),
            "kind": float(up == 0 < down),
            "kind_steps": down / _FEW_STEPS if up == 0 else 0.0,
            "special": float(down == 0 < up),
            "special_steps": up / _FEW_STEPS if down == 0 else 0.0,
        }

    def _vector(self, words: str) -> NDArray[np.float32]:
        if words not in self._vectors:
            own = self.vectors
            found = [v for w in words.split() if (v := own.get(w, own.get(singular(w)))) is not None]
            channels = len(next(iter(self.vectors.values()), ()))
            total = np.sum(found, axis=0, dtype=np.float32) if found else np.zeros(channels, np.float32)
            self._vectors[words] = total / max(float(np.linalg.norm(total)), 1e-9)
        return self._vectors[words]

    def __call__(self, noun: str, label: str) -> float:
        """Likelihood in (0, 1) that ``noun`` refers to an object labelled ``label``.

        A poodle is a dog, but few objects labelled "chair" are wheelchairs: nouns more specific than the label are
        limited, the more so for another word.
        """
        features = self.features(noun, label)
        h = np.maximum(self.hidden @ features + self.bias, 0.0)
        likelihood = float(1.0 / (1.0 + math.exp(-float(self.out @ h) - self.out_bias)))
        values = dict(zip(NOUN_FEATURES, features.tolist(), strict=True))
        if values["known"] and not any(values[name] for name in _RELATED):
            return min(likelihood, _AKIN)
        if self.taxonomy.is_kind(label.split(), noun):
            return max(likelihood, _A_KIND)
        if values["label_ends_in_noun"] or not (values["special"] or values["noun_ends_in_label"]):
            return likelihood
        return min(likelihood, _MODIFIED if noun.endswith(f" {label}") else _SPECIAL)


@lru_cache(maxsize=1)
def noun_taxonomy() -> NounTaxonomy:
    """The shipped taxonomy."""
    return NounTaxonomy.read(gzip.decompress(TAXONOMY.read_bytes()).decode("utf-8"))


@lru_cache(maxsize=1)
def noun_likelihood() -> NounLikelihood:
    """The shipped likelihood."""
    tables = load_file(NOUN_WEIGHTS)
    words = bytes(tables["words"]).decode("utf-8").split("\n")
    vectors = tables["vectors"].astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return NounLikelihood(
        noun_taxonomy(),
        dict(zip(words, vectors, strict=True)),
        tables["hidden"],
        tables["bias"],
        tables["out"],
        float(tables["out_bias"][0]),
    )


@lru_cache(maxsize=65536)
def likelihood_of_label(noun: str, label: str) -> float:
    """Likelihood that ``noun`` refers to an object labelled ``label``, both in lower case; 1 for equal words."""
    return 1.0 if noun == label else noun_likelihood()(noun, label)
