"""Data augmentation of marked sentences.

Replaces nouns, colours and numbers, mirrors left and right, and adds self-corrections ("the lamp, no wait, the chair"),
fillers, stutter, misspellings and the punctuation of transcripts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from embodied_perceptron.language.lexicon import lexicon, pluralize, relation_words, serving, singular
from embodied_perceptron.language.meaning import RELATIONS
from embodied_perceptron.weights.categories import ALL_CATEGORIES
from embodied_perceptron_training.language.markup import MarkedSentence, MarkedSpan, Tag

PRONOUNS = frozenset(
    ("it", "one", "ones", "that", "this", "them", "they", "those", "these", "thing", "things", "something", "anything",
     "everything", "which", "its", "itself", "there", "him", "stuff", "nothing", "what", "the one", "others", "other",
     "the")
)  # fmt: skip
_MIRROR = {"left": "right", "right": "left", "leftmost": "rightmost", "rightmost": "leftmost"}
_MIRRORED = {
    a: b
    for one, other in (
        ("left", "right"), ("own-left", "own-right"), ("from-left", "from-right"), ("leftmost", "rightmost"),
        ("left-of-all", "right-of-all"), ("left-of-me", "right-of-me"),
    )
    for a, b in ((one, other), (other, one))
}  # fmt: skip
COLOURS = (
    "red", "blue", "green", "yellow", "black", "white", "grey", "gray", "brown", "orange", "purple", "pink", "beige",
    "dark blue", "light green", "dark brown", "light grey", "cream", "navy", "turquoise",
)  # fmt: skip
MATERIALS = ("wooden", "metal", "glass", "plastic", "leather", "wicker", "marble", "steel", "fabric", "ceramic", "oak")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "2nd", "3rd", "4th", "last")
AMOUNTS = (
    "two metres", "one metre", "3 meters", "half a metre", "1.5 m", "80 cm", "a metre and a half", "five feet",
    "2 metres", "ten feet", "a metre", "120 centimetres", "1 m", "40 inches", "one and a half metres", "1.2 meters",
    "two and a half metres", "thirty centimetres", "0.6 m", "a couple of metres", "90 cm", "sixty inches", "a foot",
    "half a meter", "two meters", "1 metre 20", "three quarters of a metre", "a quarter of a metre", "3 m", "80cm",
)  # fmt: skip
_FILLERS = ("um", "uh", "er", "like", "you know", "so", "well", "hmm", "erm", "i mean", "right", "let's see", "kind of")
_POLITE_BEFORE = (
    "please", "hey robot", "could you please", "hi", "excuse me", "okay so", "hello", "robot", "listen", "sorry",
)  # fmt: skip
_POLITE_AFTER = (
    "please", "thanks", "thank you", "if you can", "would you", "when you have a minute", "mate", "dear", "cheers",
    "thank you so much", "now", "quickly",
)  # fmt: skip
_CORRECTIONS = (
    "no", "no wait", "sorry", "i mean", "wait", "no no", "or rather", "er i mean", "hang on, actually", "oh no, sorry",
    "scratch that", "correction", "no, sorry, i meant", "actually no", "not that", "make that", "well, no", "oops",
    "oh wait", "hmm no", "uh no", "strike that", "my mistake",
)  # fmt: skip
_RELATED = (
    "next to", "on", "under", "behind", "in front of", "to the left of", "to the right of", "by", "near", "above",
    "in", "on top of", "beside", "below", "closest to", "between", "across from",
)  # fmt: skip
_ALIKE = {
    name: words
    for names, words in (
        (("colour",), COLOURS), (("material",), MATERIALS), (("rank",), ORDINALS), (("amount",), AMOUNTS),
        (("large", "small"), ("big", "small", "large", "little", "bigger", "smaller", "biggest", "smallest")),
        (("tall", "short", "high", "low"), ("tall", "short", "taller", "shorter", "tallest", "high", "lowest")),
        (("left-of-all", "right-of-all"), ("left", "right")), (("leftmost", "rightmost"), ("leftmost", "rightmost")),
        (("from-left", "from-right"), ("from the left", "from the right")),
        (("nearest-me", "farthest-me"), ("nearest", "farthest", "closest", "furthest")),
    )
    for name in names
}  # fmt: skip
_MISHEARD = {
    "their": "there", "there": "their", "to": "too", "two": "to", "for": "four", "the": "da", "by": "buy",
    "it's": "its", "that's": "thats", "what's": "whats", "there's": "theres", "isn't": "isnt", "near": "neer",
    "beside": "besides", "see": "sea", "which": "witch", "where": "wear", "right": "write", "you": "u",
    "please": "pls", "are": "r", "with": "wiv", "you're": "your", "where's": "wheres", "and": "an", "behind": "behinde",
}  # fmt: skip
_TALKED = 0.1  # share of the sentences with small talk
_MOST_OF_NAME = 3  # words of a name; longer ones are uses or descriptions


@dataclass(frozen=True)
class _Piece:
    text: str
    tags: tuple[Tag, ...] = ()


def _pieces(sentence: MarkedSentence) -> list[_Piece]:
    pieces, end = [], 0
    for span in sentence.spans:
        if span.start > end:
            pieces.append(_Piece(sentence.text[end : span.start]))
        pieces.append(_Piece(sentence.text[span.start : span.end], span.tags))
        end = span.end
    return [*pieces, _Piece(sentence.text[end:])] if end < len(sentence.text) else pieces


def _joined(intent: str, pieces: Sequence[_Piece]) -> MarkedSentence:
    text, spans = "", []
    for piece in pieces:
        if piece.tags and piece.text:
            spans.append(MarkedSpan(len(text), len(text) + len(piece.text), piece.tags))
        text += piece.text
    return MarkedSentence(intent, text, tuple(spans))


@lru_cache(maxsize=1)
def nouns() -> tuple[str, ...]:
    """Nouns of objects: those of the lexicon and of categories, in singular."""
    plain = {
        n for n in (*lexicon().meaning, *lexicon().labels, *ALL_CATEGORIES) if re.fullmatch(r"[a-z]+( [a-z]+)?", n)
    }
    return tuple(sorted(n for n in plain if n not in PRONOUNS))


def is_plural(words: str) -> bool:
    """Whether a noun is plural."""
    last = words.lower().split()[-1]
    return bool(singular(last)) and not lexicon().always_plural(last)


class Variation:
    """Draws variations of marked sentences.

    Args:
        rng: random source.
        noise: share of noisy sentences.
        talk: small talk that may be added before or after a sentence.
        names: nouns in addition to :func:`nouns`.
    """

    def __init__(
        self, rng: np.random.Generator, noise: float = 0.5, talk: Sequence[str] = (), names: Sequence[str] = ()
    ) -> None:
        self.rng = rng
        self.noise = noise
        self.talk = talk
        self.names = (*nouns(), *names)

    def __call__(self, sentence: MarkedSentence, keep: float = 0.3) -> MarkedSentence:
        """Draw a variation; with probability ``keep`` of the same nouns and values."""
        rng = self.rng
        pieces = _pieces(sentence)
        if rng.random() > keep:
            pieces = self._other_entities(pieces)
            pieces = self._other_values(pieces)
        if rng.random() < 0.3:
            pieces = _mirrored(pieces)
        if rng.random() < 0.3 * self.noise:
            pieces = self._corrected(pieces)
        if rng.random() < self.noise:
            pieces = self._noisy(pieces)
        if self.talk and sentence.intent != "none" and rng.random() < _TALKED:
            pieces = self._among_talk(pieces)
        if rng.random() < 0.35:
            pieces = [_Piece(p.text.lower(), p.tags) for p in pieces]
        return _joined(sentence.intent, pieces)

    def _pick(self, items: Sequence[str]) -> str:
        return items[int(self.rng.integers(len(items)))]

    def _other_entities(self, pieces: list[_Piece]) -> list[_Piece]:
        other: dict[tuple[str, str], str] = {}
        letters: dict[str, bool] = {}
        found = []
        for piece in pieces:
            entity = next((t.entity for t in piece.tags if not t.name and t.entity not in ("neg", "excl")), "")
            words = piece.text.lower()
            if not entity or words in PRONOUNS or len(words.split()) > _MOST_OF_NAME or serving(words.split()):
                found.append(piece)
                continue
            if entity not in letters:
                letters[entity] = bool(self.rng.random() < 0.7)
            if not letters[entity]:
                found.append(piece)
                continue
            many = is_plural(words)
            one = words[: -len(words.split()[-1])] + singular(words.split()[-1]) if many else words
            key = (entity, one)
            if key not in other:
                other[key] = self._pick(self.names)
            found.append(_Piece(pluralize(other[key]) if many else other[key], piece.tags))
        return found

    def _other_values(self, pieces: list[_Piece]) -> list[_Piece]:
        table = relation_words()
        found = []
        for piece in pieces:
            name = piece.tags[0].name if len(piece.tags) == 1 else ""
            words = piece.text.lower()
            text = piece.text
            if self.rng.random() < 0.5:
                if name == "colour" and all(w in table.colours or w in ("dark", "light") for w in words.split()):
                    text = self._pick(COLOURS)
                elif name == "material" and " " not in words:
                    text = self._pick(MATERIALS)
                elif name == "rank" and words in ORDINALS:
                    text = self._pick(ORDINALS)
                elif name == "amount":
                    text = self._pick(AMOUNTS)
            found.append(_Piece(text, piece.tags))
        return found

    def _corrected(self, pieces: list[_Piece]) -> list[_Piece]:
        """Add a self-correction before a piece: "the blue, no, red chair"."""
        may = [k for k, p in enumerate(pieces) if len(p.tags) == 1 and self._another(p.tags[0], p.text)]
        if not may:
            return pieces
        k = may[int(self.rng.integers(len(may)))]
        piece, tag = pieces[k], pieces[k].tags[0]
        words, rest = self._another(tag, piece.text), pieces[k + 1 : k + 2]
        back = self._pick((", {}, ", " {} ", "... {}, ", ", {} ", " - {} ")).format(self._pick(_CORRECTIONS))
        if tag.name in ("colour", "material") and self.rng.random() < 0.6:
            noun = next((i for i in (k + 1, k + 2) if i < len(pieces) and pieces[i].tags), None)
            if (
                noun is not None
                and pieces[noun].tags == (Tag(tag.entity),)
                and pieces[noun].text.lower() not in PRONOUNS
            ):
                one = _Piece(f"{back}{self._pick(('the ', 'the ', 'a ', ''))}")  # "the blue chair, no, the red one"
                head = [*pieces[:k], _Piece(f"{words} "), pieces[noun], one, piece]
                return [*head, _Piece(" "), _Piece("one", pieces[noun].tags), *pieces[noun + 1 :]]
        article = " the " if tag.others and rest and rest[0].text.lower().startswith(" the") else " "
        if tag.others and self.rng.random() < 0.5:  # with a landmark
            words = f"{words}{article}{self._pick(nouns())}"
        elif not tag.name:
            back += self._pick(("the ", "the ", "", "a "))
        return [*pieces[:k], _Piece(words + back), *pieces[k:]]

    def _another(self, tag: Tag, text: str) -> str:
        """Other words with this tag for a self-correction; empty where there are none."""
        if tag.denied or tag.entity in ("neg", "excl", "speaker", "m"):
            return ""
        if not tag.name:
            return "" if text.lower() in PRONOUNS else self._pick(nouns())
        if tag.name in RELATIONS and tag.others:
            return self._pick(_RELATED)
        return self._pick(_ALIKE[tag.name]) if tag.name in _ALIKE else ""

    def _among_talk(self, pieces: list[_Piece]) -> list[_Piece]:
        """Add small talk before or after the request."""
        talk = self._pick(self.talk)
        end = "" if talk[-1:] in ".?!" else self._pick((".", ",", "", " -"))
        if self.rng.random() < 0.7:
            return [_Piece(f"{talk}{end} "), *pieces]
        last = pieces[-1].text[-1:]
        return [*pieces, _Piece(f"{'' if last in '.?!' else self._pick(('.', ',', ''))} {talk}")]

    def _noisy(self, pieces: list[_Piece]) -> list[_Piece]:
        rng = self.rng
        found = list(pieces)
        if rng.random() < 0.35:  # a transcript has no punctuation and no capitals
            found = [_Piece(re.sub(r"\s*[,.;:!?]+(?=\s|$)", "", p.text), p.tags) if not p.tags else p for p in found]
            found = [_Piece(p.text.lower(), p.tags) for p in found]
        if rng.random() < 0.3:
            found = [_Piece(self._pick(_POLITE_BEFORE) + self._pick((" ", ", "))), *found]
        if rng.random() < 0.25:
            found = [*found, _Piece(self._pick((" ", ", ")) + self._pick(_POLITE_AFTER))]
        if rng.random() < 0.35:
            found = self._with_fillers(found)
        if rng.random() < 0.4:
            found = [_Piece(self._slips(p.text, 0.03 if p.tags else 0.06), p.tags) for p in found]
        if rng.random() < 0.15:  # without articles
            found = [p if p.tags else _Piece(re.sub(r"\b(?:the|a|an) ", "", p.text), ()) for p in found]
        return [p for p in found if p.text]

    def _with_fillers(self, pieces: list[_Piece]) -> list[_Piece]:
        """Insert fillers or repeated words: "the uh the chair"."""
        found = []
        for piece in pieces:
            if not piece.tags and " " in piece.text and self.rng.random() < 0.4:
                cut = [m.end() for m in re.finditer(" ", piece.text)]
                at = cut[int(self.rng.integers(len(cut)))]
                filler = self._pick(_FILLERS)
                if self.rng.random() < 0.3 and piece.text[:at].split():
                    filler = piece.text[:at].split()[-1].strip(",.;:!?") or filler
                found.append(_Piece(f"{piece.text[:at]}{filler}{self._pick((' ', ' ', ', '))}{piece.text[at:]}"))
            else:
                found.append(piece)
        return found

    def _slips(self, text: str, rate: float) -> str:
        words = text.split(" ")
        for i, word in enumerate(words):
            if self.rng.random() >= rate:
                continue
            low = word.lower()
            if low in _MISHEARD and self.rng.random() < 0.7:
                words[i] = _MISHEARD[low]
            elif len(word) > 4 and word.isalpha():
                at = int(self.rng.integers(1, len(word) - 1))
                kind = int(self.rng.integers(3))
                if kind == 0:
                    words[i] = word[:at] + word[at + 1 :]
                elif kind == 1:
                    words[i] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
                else:
                    words[i] = word[:at] + word[at] + word[at:]
        return " ".join(words)


def _mirrored(pieces: list[_Piece]) -> list[_Piece]:
    """Exchange left and right where a tag has a side."""
    if not any(t.name in _MIRRORED for p in pieces for t in p.tags):
        return pieces
    found = []
    for piece in pieces:
        tags = tuple(Tag(t.entity, _MIRRORED.get(t.name, t.name), t.others, t.denied) for t in piece.tags)
        text = piece.text
        if any(t.name in _MIRRORED for t in piece.tags):
            text = re.sub(r"(?i)\b(leftmost|rightmost|left|right)(?=\b|-|hand)", lambda m: _MIRROR[m[0].lower()], text)
            if text == piece.text:
                return pieces  # the side has no left or right in its words
        found.append(_Piece(text, tags))
    return found
