"""Marked sentences from a grammar of relations (``reader_grammar.json``): phrases in frames, with nouns in slots.

The grammar also has whole sentences: the plain forms of the homes' prompts, half of their free forms and half of the
paraphrases; the other halves are held out. ``reader_kinds.txt`` has sentences of every kind of condition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from embodied_perceptron.language.lexicon import affordances, pluralize
from embodied_perceptron_training.language.markup import MarkedSentence, read_sentence
from embodied_perceptron_training.language.variation import AMOUNTS, COLOURS, MATERIALS, ORDINALS, nouns

GRAMMAR = Path(__file__).with_name("reader_grammar.json")
KINDS_OF_SENTENCES = Path(__file__).with_name("reader_kinds.txt")
_WARDS = ("", "ward", "wards", "most")
_SLOTS = re.compile(r"\{(T|Ts|A|B|P|V|I)\}")
_BEST = re.compile(r"\b(?:\w+est|most|least|no other|first|closer than|nearer than)\b")
_MOST_WORDS = 6
# "the table that has a lamp on it": relation of {A}, named before, to {T}
_AROUND = {
    "on": ("on", "on top of", "sitting on", "lying on", "standing on", "resting on", "left on"),
    "above": ("above", "over", "hanging over", "hanging above", "mounted over"),
    "below": ("under", "below", "underneath", "beneath", "pushed under", "tucked under"),
    "near": ("next to", "beside", "by", "near", "close to", "around", "right beside"),
    "front": ("in front of", "standing in front of"),
    "behind": ("behind", "right behind", "standing behind"),
    "left": ("to the left of", "left of", "on the left of"),
    "right": ("to the right of", "right of", "on the right of"),
    "in": ("in", "inside"),
}
_WITH = (
    "the {T} with a {A} {R} [it=t]", "the {T} that has a {A} {R} [it=t]", "the {T} which has the {A} {R} [it=t]",
    "go to the {T} with the {A} {R} [it=t]", "{T} w {A} {R} [it=t]", "the {T} having a {A} {R} [it=t]",
    "the {T} there is a {A} {R}", "the {T} that somebody left a {A} {R}", "bring me the {T} with the {A} {R} [it=t]",
    "the {T} that's got a {A} {R} [it=t]", "i mean the {T} wi' the {A} {R} [it=t]", "the {T} with {A} {R} [it=t]",
)  # fmt: skip
_DESCRIBED = (
    "this is a {T}. there is a {A} {R} [it=t]", "the {T} has a {A} {R} [it=t]",
    "there is a {T}. it has a {A} {R} [it=t]",
    "it is a {T}. a {A} is {R} [it=t]", "this {T} has a {A} {R} [it=t]", "a {T}. {R} [it=t] is a {A}.",
    "{R} this {T} is a {A}", "the {T}. there are {As} {R} [it=t].", "this is the {T}; {R} [it=t] there is a {A}",
    "there is a {T}, with a {A} {R} [it=t]", "the {A} is {R} this {T}", "we want the {T}. the {A} is {R} the {T}.",
    "it's a {T} and there is a {A} {R} [it=t]", "{T}. {A} {R} [it=t].", "the {T}. {R} the {T} is the {A}.",
)  # fmt: skip
_SHARE_DESCRIBED = 0.4
_SHARE_KINDS, _SHARE_WHOLE = 0.55, 0.6  # of all sentences, and of the rest
_CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
_LOOKS = (("colour", COLOURS), ("colour", COLOURS), ("material", MATERIALS))
_BY_WORDS = (  # words chosen, tag of the form, tag of these words
    (r"lower|bottom", "high", "low"), (r"larger|bigger", "high", "large"),
    (r"taller|tallest", "(?:high|large)", "tall"),
    (r"smaller|smallest", "(?:high|large)", "small"), (r"shortest", "large", "short"), (r"longest", "large", "long"),
    (r"lowest", "large", "low"), (r"highest", "large", "high"),
    (r"[^\]=]*\bright[^\]=]*", "leftmost", "rightmost"), (r"[^\]=]*\bright[^\]=]*", "own-left", "own-right"),
    (r"(?![^\]]*(?:left to right|going right))[^\]=]*\bright[^\]=]*|going left", "from-left", "from-right"),
    (r"(?:bigger|larger|taller|higher) than", "smaller", "larger"),
    (r"(?:smaller|shorter|lower|littler|narrower|less) than|under|below|at most|not more than", "larger", "smaller"),
    (r"on", "near", "on"), (r"under|below", "(?:near|on)", "below"), (r"above", "near", "above"),
    (r"(?:to the )?left of", "near", "left"), (r"(?:to the )?right of", "near", "right"),
    (r"in front of", "near", "front"), (r"behind", "near", "behind"), (r"(?:by|next to)", "on", "near"),
    (r"in", "(?:on|near)", "in"), (r"behind|at the back of", "front", "behind"),
    (r"(?:furthest|farthest)(?: from)?", "closest", "farthest"), (r"furthest|farthest", "nearest-me", "farthest-me"),
)  # fmt: skip
_LIGHT = frozenset(["the", "a", "an", "this", "that", "which", "and", "is", "of", "it"])


@lru_cache(maxsize=1)
def _grammar() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(GRAMMAR.read_text(encoding="utf-8"))
    other = {f"{a}{end}": f"{b}{end}" for a, b in (("left", "right"), ("right", "left")) for end in _WARDS}
    for name, group in data["relations"].items():
        if "mirror" in group:
            text = json.dumps(data["relations"][group["mirror"]])
            data["relations"][name] = json.loads(re.sub(rf"\b(?:{'|'.join(other)})\b", lambda m: other[m[0]], text))
    return data


def forms() -> Iterator[tuple[str, str]]:
    """(relation, sentence with slots {T} {Ts} {A} {B} and the words of the relation marked [words=r])."""
    data = _grammar()
    frames = data["frames"]
    for relation, group in data["relations"].items():
        places = group.get("frames", frames["place"])
        for phrase in group.get("place", ()):
            for frame in places:
                yield _name(relation, phrase), frame.replace("{P}", f"[{phrase}=r]")
        for kind, slot in (("verb", "{V}"), ("inverse", "{I}")):
            for phrase in group.get(kind, ()):
                for frame in frames[kind]:
                    yield _name(relation, phrase), frame.replace(slot, f"[{phrase}=r]")
        for whole in group.get("whole", ()):
            marked = _mark_between(whole)
            if marked:
                yield _name(relation, whole), marked


def _name(relation: str, words: str) -> str:
    """ "Next to" is near; only explicit superlatives are closest."""
    return "near" if relation == "closest" and not _BEST.search(words) else relation


def _mark_between(whole: str) -> str:
    """Mark the words between the entities of a whole sentence; empty where they are not the relation."""
    slots = list(_SLOTS.finditer(whole))
    if len(slots) < 2:
        return ""
    start, end = slots[0].end(), slots[1].start()
    words = [(m.start() + start, m.end() + start, m[0]) for m in re.finditer(r"[\w'-]+", whole[start:end])]
    while words and words[-1][2] in _LIGHT:
        words.pop()
    while words and words[0][2] in _LIGHT:
        words.pop(0)
    if not words or len(words) > _MOST_WORDS or re.search(r"[.,:;?!]", whole[words[0][0] : words[-1][1]]):
        return ""
    a, b = words[0][0], words[-1][1]
    return f"{whole[:a]}[{whole[a:b]}=r]{whole[b:]}"


def whole_forms() -> tuple[str, ...]:
    """Marked sentences with slots {T} {Ts} {A} {B}, and {C} for a colour or a material."""
    return tuple(_grammar()["homes"])


@lru_cache(maxsize=1)
def kinds() -> tuple[str, ...]:
    """Marked sentences with choices and slots, each with its intent."""
    lines = KINDS_OF_SENTENCES.read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


class SlotGrammar:
    """Draws marked sentences, all relations equally often."""

    def __init__(self) -> None:
        self.whole, self.kinds = whole_forms(), kinds()
        self.forms: dict[str, list[str]] = {}
        for relation, form in forms():
            if "{A}" in form and "{T" in form:
                self.forms.setdefault(relation, []).append(form)

    def draw(self, rng: np.random.Generator, count: int) -> list[MarkedSentence]:
        """Draw ``count`` sentences, some of which describe an entity named before."""
        names = sorted(self.forms)
        drawn = []
        for _ in range(count):
            if rng.random() < _SHARE_KINDS:
                drawn.append(of_kind(self.kinds[int(rng.integers(len(self.kinds)))], rng))
            elif rng.random() < _SHARE_WHOLE:
                drawn.append(filled(self.whole[int(rng.integers(len(self.whole)))], rng))
            elif rng.random() < _SHARE_DESCRIBED:
                drawn.append(_described(rng))
            else:
                drawn.append(self._one(rng, names[int(rng.integers(len(names)))]))
        return drawn

    def _one(self, rng: np.random.Generator, relation: str) -> MarkedSentence:
        some = self.forms[relation]
        form = some[int(rng.integers(len(some)))]
        target, first, second = _three(rng)
        others = "a,b" if "{B}" in form else "a"
        text = form.replace("=r]", f"=t.{relation}({others})]")
        text = _with_nouns(text, target, first, second)
        intent = "where" if text.startswith("where") else "exists" if text.startswith("is there") else "find"
        return read_sentence(f"{intent}: {text}")


def _three(rng: np.random.Generator) -> tuple[str, str, str]:
    a, b, c = (nouns()[int(i)] for i in rng.choice(len(nouns()), 3, replace=False))
    return a, b, c


def _with_nouns(text: str, target: str, first: str, second: str) -> str:
    text = text.replace("{Ts}", f"[{pluralize(target)}=t]").replace("{T}", f"[{target}=t]")
    text = text.replace("{A}", f"[{first}=a]").replace("{B}", f"[{second}=b]")
    return re.sub(r"\ba(?= \[[aeiou])", "an", text)


def filled(form: str, rng: np.random.Generator) -> MarkedSentence:
    """Fill the slots of a whole form with nouns and a colour or material."""
    name, words = _LOOKS[int(rng.integers(len(_LOOKS)))]
    text = form.replace("{C}=t.colour", f"{words[int(rng.integers(len(words)))]}=t.{name}")
    return read_sentence(f"find: {_with_nouns(text, *_three(rng))}")


def of_kind(form: str, rng: np.random.Generator) -> MarkedSentence:
    """Fill the choices and slots of a line of ``reader_kinds.txt``."""

    def pick(items: Sequence[str]) -> str:
        return items[int(rng.integers(len(items)))]

    while _CHOICE.search(form):
        form = _CHOICE.sub(lambda m: pick(m[1].split("|")), form, count=1)
    one, other = pick(COLOURS), pick(COLOURS)
    a, b = _three(rng)[:2]
    values = {
        "{C}": one, "{D}": other, "{N}": pick(AMOUNTS), "{O}": pick(ORDINALS),
        "{U}": pick(tuple(affordances())), "{x}": a, "{y}": b,
        "{As}": f"[{pluralize(a)}=a]", "{A}": f"[{a}=a]", "{B}": f"[{b}=b]",
    }  # fmt: skip
    target = _three(rng)[2]
    form = form.replace("{T}=", f"{target}=").replace("{B}=", f"{b}=")
    for slot, text in values.items():
        form = form.replace(slot, text)
    form = form.replace("{Ts}", f"[{pluralize(target)}=t]").replace("{T}", f"[{target}=t]")
    return read_sentence(_right_names(re.sub(r" +(?==)", "", form)))


def _right_names(text: str) -> str:
    """The tags of a form whose words were chosen: "[right=t.leftmost]" is rightmost."""
    for words, tag, name in _BY_WORDS:
        text = re.sub(rf"\[({words})=(\w)\.{tag}", rf"[\1=\2.{name}", text)
    return text


def _described(rng: np.random.Generator) -> MarkedSentence:
    """A sentence that names the target first and then a landmark."""
    some = _WITH if rng.random() < 0.4 else _DESCRIBED
    form = some[int(rng.integers(len(some)))]
    relation = list(_AROUND)[int(rng.integers(len(_AROUND)))]
    words = _AROUND[relation][int(rng.integers(len(_AROUND[relation])))]
    target, other = (nouns()[int(i)] for i in rng.choice(len(nouns()), 2, replace=False))
    text = form.replace("{R}", f"[{words}=a.{relation}(t)]").replace("{T}", f"[{target}=t]")
    text = text.replace("{As}", f"[{pluralize(other)}=a]").replace("{A}", f"[{other}=a]")
    return read_sentence(f"find: {text}")
