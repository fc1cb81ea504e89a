"""A query about the map: the sentence, how to answer it, and how its meaning is read.

A query passes, in this order: checks of the text, names that users gave objects, spelling, the network that reads the
words, and states ("open", "empty").
"""

from __future__ import annotations

import re
import time
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.language.lexicon import (
    UNITS,
    Word,
    in_usual_letters,
    lexicon,
    listed_words,
    relation_words,
    split_words,
    word_set,
)
from embodied_perceptron.language.meaning import (
    EXCLUDED,
    EXCLUSION,
    INTENTS,
    KINDS,
    LANDMARK,
    NEGATION,
    NOBODY,
    TARGET,
    THINGS,
    WITH_OTHER,
    WITHOUT_OTHER,
    Constraint,
    Decoder,
    Meaning,
    ObjectPhrase,
    SentenceGraph,
    Thing,
    Told,
)
from embodied_perceptron.language.object_states import STATES_OF
from embodied_perceptron.nn.sentence_network import ARCS, Scores, SentenceNetwork
from embodied_perceptron.nn.text_encoder import minilm_folder
from embodied_perceptron.results import GroundedPhrase, Grounding, GroundingStatus, SceneObject

DEFAULT_TOP_K = 5
MAX_QUERY_CHARACTERS = 1_000  # the longest human sentence of the public grounding sets has about 600


@dataclass(frozen=True)
class Query:
    """One query, from its arrival to its answer.

    Attributes:
        text: the sentence.
        top_k: at most so many candidates; None = the default of whoever answers (:data:`DEFAULT_TOP_K`).
        viewpoint: (4, 4) pose of the speaker in the world, a camera's or a robot's; None = unknown.
        frame_id: of the answer; empty = the node's output frame.
        id: the asker's, or made by the node; may be empty.
        standing: answer again when the answer changes.
        cancel: end the standing query ``id`` instead of asking.
        stamp_ns: the time that the viewpoint belongs to; 0 = arrival.
        arrived_s: ``time.monotonic()`` of arrival, from which the latency of the answer counts.
        meaning: of the text; None until :meth:`parsed`.

    Raises ``ValueError`` for top_k below 1.
    """

    text: str
    top_k: int | None = None
    viewpoint: NDArray[np.float64] | None = field(default=None, compare=False)
    frame_id: str = ""
    id: str = ""
    standing: bool = False
    cancel: bool = False
    stamp_ns: int = 0
    arrived_s: float = field(default_factory=time.monotonic, compare=False)
    meaning: Meaning | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")

    @classmethod
    def of(cls, query: Query | str, viewpoint: NDArray[np.float64] | None = None) -> Query:
        """``query`` itself, or one with that text; from ``viewpoint`` unless it has its own."""
        if not isinstance(query, Query):
            return cls(query, viewpoint=viewpoint)
        return query if viewpoint is None or query.viewpoint is not None else replace(query, viewpoint=viewpoint)

    def parsed(self, labels: Iterable[str]) -> Query:
        """With its meaning; ``labels`` of the scene count as nouns. Itself when it is parsed or cannot be read."""
        if self.meaning is not None or query_problem(self.text):
            return self
        return replace(self, meaning=with_states(read_meaning(self.text, labels)))

    def answer(
        self,
        status: GroundingStatus,
        candidates: tuple[SceneObject, ...] = (),
        reason: str = "",
        tagged_text: str = "",
        count: int | None = None,
        phrases: tuple[GroundedPhrase, ...] = (),
        nearest: tuple[SceneObject, ...] = (),
    ) -> Grounding:
        """The answer, given now: its latency is the time since arrival."""
        latency_ms = (time.monotonic() - self.arrived_s) * 1e3
        text = printable_query(self.text)
        return Grounding(text, status, candidates, reason, tagged_text, latency_ms, count, phrases, nearest)


def query_problem(text: object) -> str:
    """Why ``text`` cannot be answered, in words; empty when it can.

    Leading and trailing white space is allowed; a control character elsewhere, an unpaired surrogate (which no message
    can carry), nothing but white space, and more than ``MAX_QUERY_CHARACTERS`` are not.
    """
    if not isinstance(text, str):
        return f"the query must be text, got {type(text).__name__}"
    if len(text) > MAX_QUERY_CHARACTERS:  # first: nothing below may walk over megabytes
        return f"the query has {len(text)} characters, at most {MAX_QUERY_CHARACTERS} are allowed"
    words = text.strip()
    if not words:
        return "the query is empty"
    for position, character in enumerate(words):
        if unicodedata.category(character) in ("Cc", "Cs"):
            return f"the query has the control character U+{ord(character):04X} at position {position}"
    return ""


def printable_query(text: object) -> str:
    """``text`` as an answer may repeat it: short, without control characters, encodable."""
    shown = text if isinstance(text, str) else repr(text)
    if len(shown) > MAX_QUERY_CHARACTERS:
        shown = shown[: MAX_QUERY_CHARACTERS - 1] + "…"
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in shown.strip())


# ----------------------------------------------------------------------------------------------------------------------
# Names that users gave objects.

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


# ----------------------------------------------------------------------------------------------------------------------
# Spelling.

_SHORT = {
    "teh": "the",
    "pls": "please",
    "plz": "please",
    "u": "you",
    "ur": "your",
    "ye": "you",
    "yer": "your",
    "ya": "you",
}
_ONE_SLIP, _TWO_SLIPS = 4, 7  # letters that a word must have to be corrected by one, by two edits
_SETS = (
    "prepositions", "orders", "adjectives", "vague", "partitives", "comparatives", "expletives", "determiners",
    "without_front", "openers", "no_nouns", "rooms", "parts", "accessories", "request_words",
)  # fmt: skip
_NEEDED = (
    "second", "third", "fourth", "fifth", "first", "last", "left", "right", "leftmost", "rightmost", "between",
    "behind", "front", "above", "under", "below", "beside", "next", "near", "nearest", "closest", "farthest", "middle",
    "largest", "biggest", "smallest", "tallest", "where", "which", "many", "except", "other", "without", "please",
    "bring", "find", "corner", "window", "within",
)  # fmt: skip


def edits(a: str, b: str, most: int = 2) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours that lead from ``a`` to ``b``; ``most`` + 1 when
    there are more."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before, row = list(range(len(b) + 1)), list(range(len(b) + 1))
    two_before: list[int] = []
    for i in range(1, len(a) + 1):
        row = [i] + [0] * len(b)
        for j in range(1, len(b) + 1):
            same = a[i - 1] == b[j - 1]
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (not same))
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                row[j] = min(row[j], two_before[j - 2] + 1)
        if min(row) > most:
            return most + 1
        two_before, before = before, row
    return min(row[-1], most + 1)


@lru_cache(maxsize=1)
def _vocabulary() -> tuple[frozenset[str], frozenset[str]]:
    """Words that may be meant by a slip, and all words that are none."""
    table = relation_words()
    meant = {part for surface in lexicon().surfaces for part in surface} | set(table.colours) | set(table.materials)
    meant |= set(_NEEDED)
    known = set(meant)
    for name in _SETS:
        known |= {part for word in word_set(name) for part in word.split()}
    known |= {part for phrase in table.phrases for part in phrase}
    return frozenset(word for word in meant if len(word) >= _ONE_SLIP and word.isalpha()), frozenset(known)


@lru_cache(maxsize=1)
def english_words() -> frozenset[str]:
    """Words that are no slips: those of the list of the package and whole words of the text encoder's vocabulary."""
    text = (minilm_folder() / "vocab.txt").read_text(encoding="utf-8")
    return listed_words() | {word for word in text.split() if word.isascii() and word.isalpha()}


def _stumps(word: str, count: int) -> set[str]:
    """``word`` with up to ``count`` letters left out: what two words share that are few edits apart."""
    found, last = {word}, {word}
    for _ in range(count):
        last = {w[:i] + w[i + 1 :] for w in last for i in range(len(w))}
        found |= last
    return found


@lru_cache(maxsize=1)
def _index() -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for word in sorted(_vocabulary()[0]):
        for stump in _stumps(word, 2 if len(word) >= _TWO_SLIPS - 1 else 1):
            found.setdefault(stump, []).append(word)
    return {stump: tuple(words) for stump, words in found.items()}


@lru_cache(maxsize=4096)
def meant_by(token: str) -> str:
    """The one word of the lexicon that ``token`` is a slip of; empty for known words, for words that are near to none
    and for those near to several."""
    if token in _SHORT:
        return _SHORT[token]
    _, known = _vocabulary()
    if len(token) < _ONE_SLIP or len(token) > 30 or not token.isascii() or not token.isalpha() or token in known:
        return ""
    if token.endswith("s") and token[:-1] in known:
        return ""
    if token in english_words():
        return ""
    most = 2 if len(token) >= _TWO_SLIPS else 1
    near = {word for stump in _stumps(token, most) for word in _index().get(stump, ())}
    ranked = sorted((edits(token, word), word[0] != token[0], not _left_out(token, word), word) for word in near)
    verb = token.endswith(("ing", "ed"))  # "it is beeping" tells of no bedding
    ranked = [r for r in ranked if r[0] <= most and not (r[0] == 2 and (r[1] or verb))]
    if not ranked:
        return ""
    alike = [rank[-1] for rank in ranked if rank[:-1] == ranked[0][:-1]]
    return alike[0] if len({word.rstrip("s") for word in alike}) == 1 else ""


def _left_out(token: str, word: str) -> bool:
    """Whether letters of ``word`` are missing in ``token`` and nothing else: the likeliest slip."""
    letters = iter(word)
    return len(token) < len(word) and all(letter in letters for letter in token)


_BEHIND_VERBS = word_set("prepositions") | word_set("articles") | word_set("determiners")


def corrected(words: Sequence[Word], labels: Iterable[str] = ()) -> list[Word]:
    """The words with slips put right, and "couch's" as "couch"; spans stay those of the sentence.

    Words of ``labels`` are no slips, and are meant before those of the lexicon; nor is a verb that nobody taught the
    lexicon: "the sink huddles by the blanket" tells of no handles."""
    own = {part for label in labels for part in label.lower().split()}
    result: list[Word] = []
    for i, said in enumerate(words):
        word = _bare(said, own)
        meant = "" if word.text in own else _label_meant(word.text, own) or meant_by(word.text)
        if meant and word.text.endswith("s") and 0 < i < len(words) - 1:
            subject, follows = result[-1].text, words[i + 1].text
            if (subject in own or subject in _vocabulary()[0]) and follows in _BEHIND_VERBS:
                meant = ""
        result.append(replace(word, text=meant) if meant else word)
    return result


def _bare(word: Word, own: set[str]) -> Word:
    """A known noun without what makes it an owner."""
    bare = word.text.removesuffix("'s")
    known = bare != word.text and (bare in own or (bare,) in lexicon().surfaces)
    return replace(word, text=bare) if known else word


def _label_meant(token: str, own: set[str]) -> str:
    """The one word of the scene's labels that ``token`` is a slip of one letter of; empty for none and for several."""
    if len(token) < _ONE_SLIP or not token.isalpha() or token in _vocabulary()[1] or token in english_words():
        return ""
    forms = (token, token.removesuffix("s"))
    near = {word for word in own if len(word) >= _ONE_SLIP and any(edits(form, word, 1) == 1 for form in forms)}
    return near.pop() if len(near) == 1 else ""


# --------------------------------------------------------------------------------------------------------------------
# other languages

_SCRIPTS = {
    "CYRILLIC": "a Cyrillic script", "CJK": "Chinese or Japanese", "HIRAGANA": "Japanese", "KATAKANA": "Japanese",
    "HANGUL": "Korean", "ARABIC": "Arabic", "HEBREW": "Hebrew", "GREEK": "Greek", "THAI": "Thai",
    "DEVANAGARI": "Hindi", "BENGALI": "Bengali", "TAMIL": "Tamil", "GEORGIAN": "Georgian", "ARMENIAN": "Armenian",
}  # fmt: skip
_LEAST_ENGLISH = 0.5  # share of the words of an English sentence that are English
_LEAST_WORDS = 3  # of a sentence whose language is told


def other_language(words: Sequence[Word], labels: Iterable[str] = ()) -> str:
    """What a sentence that is not English is in, in words; empty for English, and for what may be.

    Words of ``labels`` and those of the lexicon are English.
    """
    letters = [c for word in words for c in word.text if c.isalpha()]
    scripts = [unicodedata.name(c, "LATIN").split()[0].split("-")[0] for c in letters[:200]]
    foreign = [s for s in scripts if s in _SCRIPTS]
    if letters and 2 * len(foreign) > len(scripts):
        return _SCRIPTS[max(set(foreign), key=lambda s: (foreign.count(s), s))]
    own = {part for label in labels for part in label.lower().split()} | _vocabulary()[1]
    tokens = [t for w in words if w.text[0].isalpha() for t in re.split("['-]", w.text) if len(t) > 1]
    english = sum(t in own or t in listed_words() or meant_by(t) != "" for t in tokens)
    return "another language" if len(tokens) >= _LEAST_WORDS and english < _LEAST_ENGLISH * len(tokens) else ""


# ----------------------------------------------------------------------------------------------------------------------
# READING

_NEGATIVE_LENGTH = re.compile(
    rf"(?<![\w.,])[-\u2212]\d+(?:[.,]\d+)? ?(?:{'|'.join(unit for unit, _ in UNITS)})", re.IGNORECASE
)


@lru_cache(maxsize=256)
def _graphs(reader: SentenceReader, text: str) -> tuple[SentenceGraph, ...]:
    return reader.read(text, split_words(text))


def read_meaning(text: str, labels: Iterable[str] = ()) -> Meaning:
    """The meaning of ``text``; ``labels`` of the scene count as nouns beside the lexicon's.

    Never raises for a text that :func:`query_problem` accepts, except as :func:`sentence_reader`.
    """
    labels = tuple(labels)
    words = split_words(text)
    language = other_language(words, labels)
    if language:
        problem = f"this seems to be {language}; only English is understood"
        return Meaning(text, None, problem=problem, invalid=True)
    if _NEGATIVE_LENGTH.search(text):
        return Meaning(text, None, problem="a length cannot be negative", invalid=True)
    words = corrected(words, labels)
    graphs = _graphs(sentence_reader(), in_usual_letters(text))
    first, *others = (Decoder(text, words, graph, labels).meaning() for graph in graphs)
    return replace(first, others=_distinct(first, others))


def _distinct(first: Meaning, others: Iterable[Meaning]) -> tuple[Meaning, ...]:
    """Those that are about something and say something else than the ones before."""
    kept = [first]
    for other in others:
        if (
            other.target is not None
            and not other.problem
            and not _says_less(other, first)
            and all(replace(other, probability=m.probability) != m for m in kept)
        ):
            kept.append(other)
    return tuple(kept[1:])


def _says_less(other: Meaning, first: Meaning) -> bool:
    """Whether a reading only leaves a landmark out: with it something is found whatever the sentence says."""
    same = other.target == first.target and other.kind == first.kind
    return same and len(other.constraints) < len(first.constraints) and set(other.constraints) <= set(first.constraints)


# ----------------------------------------------------------------------------------------------------------------------
# NETWORK

READER_WEIGHTS = Path(__file__).parent / "lexicon" / "sentence_reader.safetensors"
_LEAST_TARGET = 0.1  # probability from which a word may be what is meant, where none is likelier to be than not
_LEAST_SHARE = 0.1  # of the probability of the likeliest reading, from which another one is kept
_MOST_OTHERS = 3  # readings beside it
_SECOND = 0.25  # probability from which "between" has a second other thing
F32 = NDArray[np.float32]
_Piece = tuple[str, int, int, float]  # kind, words [first, last), probability


def new_network() -> SentenceNetwork:
    """A network with MiniLM's weights and none of its own yet; raises as :meth:`SentenceNetwork.load_minilm`."""
    return SentenceNetwork(len(INTENTS), len(KINDS)).load_minilm()


class SentenceReader:
    """Reads with a network that has its weights."""

    def __init__(self, network: SentenceNetwork) -> None:
        self.network = network.eval()

    @classmethod
    def load(cls, path: Path = READER_WEIGHTS) -> SentenceReader:
        """The network of the package, its layers in 8 bits: on a CPU the quicker way.

        Raises ``FileNotFoundError``, ``OSError`` or ``ValueError`` where MiniLM or the weights are missing or other
        ones.
        """
        network = new_network().load_trained(path).merge()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces that this moves to a package of its own
            quantize: Callable[..., torch.nn.ModuleList] = torch.ao.quantization.quantize_dynamic
            network.layers = quantize(network.layers, {torch.nn.Linear}, dtype=torch.qint8)
        return cls(network)

    def read(self, text: str, words: Sequence[Word]) -> tuple[SentenceGraph, ...]:
        """The likeliest graph over ``words`` of ``text``, and others that differ from it in one thing, likelier ones
        first."""
        if not words:
            return (SentenceGraph("none"),)
        with torch.inference_mode():
            scores = self.network(self.network.batch([text], [[(w.start, w.end) for w in words]]))
        return graphs_of(scores, 0, len(words))


def graphs_of(scores: Scores, b: int, count: int) -> tuple[SentenceGraph, ...]:
    """The likeliest graph over the ``count`` words of sentence ``b``, and others that differ from it in one thing."""
    return WordScores.of(scores, b, count).graphs()


@dataclass(frozen=True)
class _Change:
    """What a reading has otherwise than the likeliest one, and how likely that is as a share.

    Attributes:
        share: of the probability of the likeliest reading.
        pieces: all of them, where one is another; else None.
        arc: of the likeliest pieces, the one whose owner or other thing is another: (first word, "owner" or "other").
        denied: first word of what is denied, or not, against the likeliest reading.
        intent: another one.
    """

    share: float
    pieces: tuple[_Piece, ...] | None = None
    arc: tuple[int, str] | None = None
    denied: int = -1
    intent: str = ""


@dataclass(frozen=True, eq=False)
class WordScores:
    """What the network says of the W words of one sentence.

    Attributes:
        intent: (I,) probabilities.
        parts: (W, 1 + 2 K) probabilities, columns as in :class:`Scores`.
        denied: (W,) probabilities.
        arcs: logits, of each kind (W, 1 + W).
    """

    intent: F32
    parts: F32
    denied: F32
    arcs: dict[str, F32]

    @classmethod
    def of(cls, scores: Scores, b: int, count: int) -> WordScores:
        """Of the first ``count`` words of sentence ``b`` of a batch."""
        return cls(
            scores.intent[b].float().softmax(dim=0).numpy(),
            scores.parts[b, :count].float().softmax(dim=1).numpy(),
            scores.denied[b, :count].float().sigmoid().numpy(),
            {name: scores.arcs[name][b, :count, : 1 + count].float().numpy() for name in ARCS},
        )

    def graphs(self) -> tuple[SentenceGraph, ...]:
        """See :func:`graphs_of`."""
        best = int(self.intent.argmax())
        intent, sure = INTENTS[best], float(self.intent[best])
        if intent == "none":
            return (SentenceGraph("none", probability=sure),)
        found = _pieces(self.parts)
        if intent != "contents" and not any(kind == TARGET for kind, *_ in found):
            found = _with_target(self.parts, found)
            if not found:
                return (SentenceGraph("none", probability=sure),)
        doubts: list[_Change] = []
        first = self._graph(intent, sure, found, doubts=doubts)
        doubts += self._other_pieces(found)
        second = int(self.intent.argsort()[-2])
        if INTENTS[second] != "none":
            doubts.append(_Change(float(self.intent[second]) / sure, intent=INTENTS[second]))
        likely = sorted((d for d in doubts if d.share > _LEAST_SHARE), key=lambda d: -d.share)[:_MOST_OTHERS]
        others = [replace(self._changed(intent, found, d), probability=first.probability * d.share) for d in likely]
        return (first, *others)

    def _changed(self, intent: str, found: Sequence[_Piece], change: _Change) -> SentenceGraph:
        return self._graph(change.intent or intent, 1.0, found if change.pieces is None else change.pieces, change)

    def _graph(
        self,
        intent: str,
        sure: float,
        pieces: Sequence[_Piece],
        change: _Change | None = None,
        doubts: list[_Change] | None = None,
    ) -> SentenceGraph:
        """Things and what is told of them, ``pieces`` with the likeliest arcs between them, but for what ``change``
        says; ``doubts`` gets what else may be."""
        things = _things([piece for piece in pieces if piece[0] in THINGS], self.arcs["same"])
        told = []
        doubts = [] if doubts is None else doubts
        for _, _, _, chance in pieces:
            sure *= chance
        for name, first, last, _ in pieces:
            if name in THINGS:
                continue
            owner, others, no = NOBODY, tuple[int, ...](), False
            if name not in (NEGATION, EXCLUSION):
                denied = float(self.denied[first])
                no = (denied > 0.5) != (change is not None and change.denied == first)
                doubts.append(_Change(min(denied, 1.0 - denied) / max(denied, 1.0 - denied), denied=first))
                if not name.startswith("speaker-"):
                    ranked = _ranked(self.arcs["owner"][first], things)
                    owner, chance = ranked[change is not None and change.arc == (first, "owner") and len(ranked) > 1]
                    sure *= chance
                    doubts += [_Change(other / chance, arc=(first, "owner")) for _, other in ranked[1:2]]
            if name in WITH_OTHER:
                choices = _others(name, self.arcs["other"][first], things, owner)
                others, chance = choices[change is not None and change.arc == (first, "other") and len(choices) > 1]
                sure *= chance
                doubts += [_Change(other / max(chance, 1e-9), arc=(first, "other")) for _, other in choices[1:2]]
            told.append(Told(first, last, name, owner, others, no))
        return SentenceGraph(intent, tuple(things), tuple(told), sure)

    def _chance(self, piece: _Piece, kind: str) -> float:
        """How likely the words of a piece are of a kind; of no kind for ""."""
        _, first, last, _ = piece
        if not kind:
            return float(self.parts[first:last, 0].mean()) + 1e-6
        column = 1 + KINDS.index(kind)
        both = self.parts[first:last, column] + self.parts[first:last, column + len(KINDS)]
        return float(both.mean()) + 1e-6

    def _other_pieces(self, pieces: Sequence[_Piece]) -> Iterator[_Change]:
        """The pieces with another thing as target, or one of another kind, without one, or with one more."""
        swapped = self._about_another(pieces)
        if swapped is not None:
            yield swapped
        for k, piece in enumerate(pieces):
            kind, first, last, _ = piece
            if kind == TARGET:
                continue
            chance = self.parts[first:last, 1:].reshape(last - first, 2, len(KINDS)).sum(axis=1).mean(axis=0)
            chance[[KINDS.index(kind), KINDS.index(TARGET)]] = 0.0
            other, none = KINDS[int(chance.argmax())], self._chance(piece, "")
            share = max(float(chance.max()), none) / self._chance(piece, kind)
            rest = [*pieces[:k], *pieces[k + 1 :]]
            if float(chance.max()) > none:
                rest.insert(k, (other, first, last, 1.0))
            yield _Change(share, tuple(rest))
        read = {i for _, first, last, _ in pieces for i in range(first, last)}
        for i in range(len(self.parts)):
            begins = self.parts[i, 1 : 1 + len(KINDS)].copy()
            begins[KINDS.index(TARGET)] = 0.0
            if i not in read and begins.max() > _LEAST_SHARE * self.parts[i, 0]:
                more = sorted([*pieces, (KINDS[int(begins.argmax())], i, i + 1, 1.0)], key=lambda p: p[1])
                yield _Change(float(begins.max() / self.parts[i, 0]), tuple(more))

    def _about_another(self, pieces: Sequence[_Piece]) -> _Change | None:
        """The pieces with another thing as target; None where they have one thing."""

        def instead(piece: _Piece) -> str:
            return max((k for k in THINGS if k not in (TARGET, EXCLUDED)), key=lambda kind: self._chance(piece, kind))

        old = [p for p in pieces if p[0] == TARGET]
        others = [p for p in pieces if p[0] in THINGS and p[0] not in (TARGET, EXCLUDED)]
        if not others:
            return None
        new = max(others, key=lambda p: self._chance(p, TARGET) / self._chance(p, p[0]))
        share = self._chance(new, TARGET) / self._chance(new, new[0])
        for piece in old:
            share *= self._chance(piece, instead(piece)) / self._chance(piece, TARGET)
        changed = [(TARGET, *p[1:]) if p == new else (instead(p), *p[1:]) if p[0] == TARGET else p for p in pieces]
        return _Change(min(share, 1.0), tuple(changed))


def _pieces(parts: F32) -> list[_Piece]:
    """The likeliest runs of words of one kind, in their order: (W, 1 + 2 K) probabilities -> pieces."""
    found: list[_Piece] = []
    for i, label in enumerate(_likeliest(parts)):
        if label == 0:
            continue
        kind, chance = KINDS[(label - 1) % len(KINDS)], float(parts[i, label])
        compound = kind in THINGS and bool(found) and found[-1][0] == kind and found[-1][2] == i  # "exit", "door"
        if label > len(KINDS) or compound:
            _, first, _, before = found[-1]
            found[-1] = (kind, first, i + 1, before * chance)
        else:
            found.append((kind, i, i + 1, chance))
    return found


def _likeliest(parts: F32) -> list[int]:
    """Labels of the words, where a further word of a kind follows a word of this kind alone (Viterbi)."""
    count = len(KINDS)
    log = np.log(parts + 1e-9)
    total = log[0].copy()
    total[1 + count :] = -np.inf
    back = np.zeros(log.shape, dtype=np.intp)
    for i in range(1, len(log)):
        best = int(total.argmax())
        before = np.full(len(total), total[best])
        back[i] = best
        first, further = total[1 : 1 + count], total[1 + count :]
        before[1 + count :] = np.maximum(first, further)
        back[i, 1 + count :] = np.arange(1, 1 + count) + np.where(further > first, count, 0)
        total = before + log[i]
    labels = [int(total.argmax())]
    for i in range(len(log) - 1, 0, -1):
        labels.append(int(back[i, labels[-1]]))
    return labels[::-1]


def _with_target(parts: F32, found: list[_Piece]) -> list[_Piece]:
    """The pieces with the likeliest of them, or of the other words, as target; none where nothing is likely."""
    begins, goes_on = 1 + KINDS.index(TARGET), 1 + KINDS.index(TARGET) + len(KINDS)
    chance = parts[:, begins] + parts[:, goes_on]
    i = int(chance.argmax())
    if chance[i] < _LEAST_TARGET:
        return []
    first, last = next(((piece[1], piece[2]) for piece in found if piece[1] <= i < piece[2]), (i, i + 1))
    rest = [piece for piece in found if not piece[1] <= i < piece[2]]
    return sorted([*rest, (TARGET, first, last, float(chance[i]))], key=lambda piece: piece[1])


def _things(pieces: Sequence[_Piece], same: F32) -> list[Thing]:
    """Things, and which of them are one: what is meant is one, of landmarks and of what is excluded arcs tell."""
    things: list[Thing] = []
    numbers = 0
    for kind, first, last, _ in pieces:
        earlier = [t for t in things if t.kind == kind]
        number = None
        if kind not in (LANDMARK, EXCLUDED):
            number = earlier[0].number if earlier else None
        elif earlier:
            columns = [0, *(t.last for t in earlier)]  # of words the columns begin at 1
            best = int(same[last - 1, columns].argmax())
            number = earlier[best - 1].number if best else None
        if number is None:
            number, numbers = numbers, numbers + 1
        things.append(Thing(first, last, kind, number))
    return things


def _chances(row: F32, things: Sequence[Thing]) -> dict[int, float]:
    """Number of a thing, or nobody -> probability, from the logits of an arc's row."""
    logits = np.array([row[0], *(row[t.last] for t in things)], np.float64)
    share = np.exp(logits - logits.max())
    share /= share.sum()
    chance = {NOBODY: float(share[0])}
    for thing, p in zip(things, share[1:].tolist(), strict=True):
        chance[thing.number] = chance.get(thing.number, 0.0) + p
    return chance


def _ranked(row: F32, things: Sequence[Thing]) -> list[tuple[int, float]]:
    """Numbers of things, or nobody, and how likely each is the one that an arc goes to, likelier ones first."""
    return sorted(_chances(row, things).items(), key=lambda item: -item[1])


def _others(name: str, row: F32, things: Sequence[Thing], owner: int) -> list[tuple[tuple[int, ...], float]]:
    """Choices of the other things of a relation of ``owner``, and how likely each is, likelier ones first."""
    ranked = [
        (number, chance)
        for number, chance in _ranked(row, things)
        if number != owner and (number != NOBODY or name in WITHOUT_OTHER)
    ]
    if not ranked:
        return [((), 1.0)]
    total = max(sum(chance for _, chance in ranked), 1e-9)
    if name == "between" and len(ranked) > 1 and ranked[1][1] > _SECOND * total:
        both = tuple(sorted(number for number, _ in ranked[:2]))
        return [(both, (ranked[0][1] + ranked[1][1]) / total)]
    return [(() if number == NOBODY else (number,), chance / total) for number, chance in ranked]


@lru_cache(maxsize=1)
def sentence_reader() -> SentenceReader:
    """The shipped reader, loaded once. Raises as :meth:`SentenceReader.load`."""
    return SentenceReader.load()


# ----------------------------------------------------------------------------------------------------------------------
# STATES

_SAID = {
    "open": "open", "opened": "open", "ajar": "open", "closed": "closed", "shut": "closed", "filled": "filled",
    "full": "filled", "empty": "empty", "folded": "folded", "unfolded": "unfolded",
}  # fmt: skip
_OF_ANYTHING = frozenset(("open", "closed"))  # asked of what nobody knows the state of, too
_SAME_KIND = 0.7
_WORD = rf"(?P<word>{'|'.join(_SAID)})"
_NOT = r"(?P<not>not|n't|never)"
_SLIGHTLY = r"(?:(?:still|already|now|currently|wide|half|slightly|fully|partly|completely|all|both)\s+)*"
_DETERMINER = (
    r"(?:the|a|an|any|another|every|each|all|both|no|other|that|this|these|those|which|what|whose|some|only|my|your|"
    r"our|many|two|three|four|of|for|find|show|are there|is there)"
)
# "the open", and up to two more adjectives, before a noun
_BEFORE = re.compile(rf"\b{_DETERMINER}\s+(?:[\w-]+,?\s+){{0,2}}?{_SLIGHTLY}{_WORD},?\s+(?:[\w-]+\s+){{0,2}}$")
# "that is not open", "left open", "open?", behind it; no "open to", no "open or closed"
_VERB = r"(?:is|are|was|were|'s|isn't|aren't|stands?|stood|standing|being|left|seems?|looks?)"
_AFTER = re.compile(
    rf"^\s*,?\s*(?:(?:that|which)\s+)?(?:{_VERB}\s+){{0,2}}(?:{_NOT}\s+)?{_SLIGHTLY}{_WORD}(?!\s+(?:or|to|onto|into|the|it)\b)(?!\w)"
)
_QUESTION = re.compile(rf"^\s*(?:is|are|isn't|aren't)\b.*?(?:\b{_NOT}\s+)?\b{_SLIGHTLY}{_WORD}\s*[?.!]*\s*$")
_ANY = re.compile(rf"\b{_WORD}\b", re.IGNORECASE)
_ASKS = re.compile(
    r"^\s*(?:is|are|isn't|aren't|which|what|how many|tell me (?:if|whether)|do you know)\b", re.IGNORECASE
)


def speaks_of_states(text: str) -> bool:
    """Whether a text has a word for a state at all."""
    return _ANY.search(text) is not None


def asks(text: str) -> bool:
    """Whether a text is a question, which is not answered where nobody knows."""
    return _ASKS.search(text) is not None


def with_states(meaning: Meaning) -> Meaning:
    """A meaning with the states that its sentence says of its target, of its landmarks, and of what is excluded."""
    if meaning.target is None or not speaks_of_states(meaning.text):
        return meaning
    text = meaning.text.lower()
    own = _said_of(meaning.target, text)
    if own is None and "or" not in text.split():
        asked = _QUESTION.match(text)
        if asked is not None and _states_of(meaning.target.noun) and not _inside_phrase(meaning, asked.start("word")):
            own = _constraint(asked, 0, text.startswith(("isn't", "aren't")))
    told = tuple(_with_states_of_anchors(c, text) for c in meaning.constraints)
    return replace(
        meaning,
        constraints=(*told, *([] if own is None else [own])),
        unmatched=tuple(word for word in meaning.unmatched if own is None or word not in _SAID),
        excluded=tuple(with_states(other) for other in meaning.excluded),
        others=tuple(with_states(other) for other in meaning.others),
    )


def _with_states_of_anchors(c: Constraint, text: str) -> Constraint:
    anchors = []
    for anchor in c.anchors:
        said = _said_of(anchor, text)
        anchors.append(anchor if said is None else replace(anchor, constraints=(*anchor.constraints, said)))
    return replace(c, anchors=tuple(anchors))


def _said_of(phrase: ObjectPhrase, text: str) -> Constraint | None:
    """What stands right before or behind a noun."""
    first, last = phrase.span
    words = text[first:last].split()
    noun = last - len(words[-1]) if words else first  # a reader may count adjectives to the phrase
    found = _BEFORE.search(text[:noun])
    shift = 0
    if found is None:
        found, shift = _AFTER.match(text[last:]), last
    if found is None:
        return None
    said = _constraint(found, shift, "n't" in found[0])
    return said if said.value in (*_OF_ANYTHING, *_states_of(phrase.noun)) else None


def _constraint(match: re.Match[str], shift: int, denied: bool) -> Constraint:
    negated = denied or match.groupdict().get("not") is not None
    span = (match.start("word") + shift, match.end("word") + shift)
    return Constraint("state", value=_SAID[match["word"]], negated=negated, span=span)


def _inside_phrase(meaning: Meaning, at: int) -> bool:
    """Whether a character belongs to a noun: "is there a fridge by the open door" """
    anchors = [a for c in meaning.constraints for a in c.anchors]
    return any(a.span[0] <= at < a.span[1] for a in anchors)


@lru_cache(maxsize=256)
def _states_of(noun: str) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            s for label, states in STATES_OF.items() if lexicon().similarity(noun, label) > _SAME_KIND for s in states
        )
    )
