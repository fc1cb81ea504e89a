"""Words before they are read: slips of one or two letters corrected, and sentences of other languages recognised.

Only words that are no English words are corrected, and only to words that the lexicon knows: "the mircowave" is a
microwave, but "the cable" is no table and "the clipboard" no cupboard. Which words are English is read when the first
unknown word comes: from a list that comes with the package (SCOWL, ``lexicon/english_words.txt.gz``), and the
vocabulary of the text encoder's tokenizer where that is installed.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from embodied_perceptron.language.lexicon import Word, lexicon, listed_words, relation_words, word_set
from embodied_perceptron.nn.text_encoder import minilm_folder

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
    text = ""
    with contextlib.suppress(OSError):  # the package may be missing
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
