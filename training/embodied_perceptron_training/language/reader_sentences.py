"""Sentences that the learned reader of relations is fitted on, with what they mean.

A grammar of its own (``reader_grammar.json``): phrases of each relation in frames, and whole sentences. It shares
nothing with the prompts of the homes, whose free forms measure what the reader has learned. A fourth
of the phrases, frames and whole sentences is kept for choosing among readers and joins the others in the shipped one.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embodied_perceptron_training.homes.building.home import HomeSpec, build_home
from embodied_perceptron_training.homes.prompts import STRUCTURE, all_facts, plural
from embodied_perceptron_training.homes.relations import make_scene

GRAMMAR = Path(__file__).with_name("reader_grammar.json")
NOTHING = "none"  # the relation of sentences that tell none
_KEPT_EVERY = 4
_WARDS = ("", "ward", "wards", "most")
_OTHER_WAY = {
    "on": "supporting", "supporting": "on", "above": "below", "below": "above", "left": "right", "right": "left",
    "front": "behind", "behind": "front", "closest": "closest", "farthest": "farthest",
}  # fmt: skip
_FACED = ("front", "behind")  # what faces the couch does not stand behind it
_ADJECTIVES = ("red", "small", "big", "white", "wooden", "old", "black", "tall", "round", "grey")
Part = Literal["learned", "kept", "all"]
Nouns = tuple[str, ...]  # target, anchor and, for "between", another anchor


@dataclass(frozen=True)
class Form:
    """A pattern with {T}, {Ts}, {A}, {B}, and the relation of T to A that it tells."""

    relation: str
    pattern: str
    kind: str


@dataclass(frozen=True)
class Example:
    """A sentence, and in it the characters [start, end) of the target and of the anchors."""

    text: str
    relation: str
    target: tuple[int, int]
    anchors: tuple[tuple[int, int], ...]
    kind: str


@lru_cache(maxsize=1)
def _grammar() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(GRAMMAR.read_text(encoding="utf-8"))
    for name, group in data["relations"].items():
        if "mirror" not in group:
            continue
        text = mirrored(json.dumps(data["relations"][group["mirror"]]))
        data["relations"][name] = json.loads(text)
    return data


def mirrored(text: str) -> str:
    """The text with left and right, and what ends in ``_WARDS``, in each other's place."""
    other = {f"{a}{end}": f"{b}{end}" for a, b in (("left", "right"), ("right", "left")) for end in _WARDS}
    return re.sub(rf"\b(?:{'|'.join(other)})\b", lambda m: other[m[0]], text)


def _some(items: Iterable[str], part: Part) -> list[str]:
    """Those of a part: which one tells the text, so that a phrase is kept wherever it stands."""
    found = list(dict.fromkeys(items))
    if part == "all":
        return found
    return [item for item in found if (zlib.crc32(item.encode()) % _KEPT_EVERY == 0) == (part == "kept")]


def _phrases(relation: str, kind: str) -> list[str]:
    """Phrases of a relation, and those of the relation that it is the other way round: what the table supports rests
    on it."""
    groups = _grammar()["relations"]
    own, other = groups[relation], groups.get(_OTHER_WAY.get(relation, ""), {})
    if kind == "converse":
        return list(other.get("place", ()))
    if relation in _FACED:
        other = {}
    turned = {"verb": "inverse", "inverse": "verb"}.get(kind, "")
    return [*own.get(kind, ()), *other.get(turned, ())]


def forms(part: Part) -> list[Form]:
    """The patterns of a part: learned phrases in learned frames, kept phrases in kept frames, or all in all."""
    grammar = _grammar()
    found = [Form(NOTHING, pattern, "none") for pattern in _some(grammar["nothing"], part)]
    for relation, group in grammar["relations"].items():
        frames = {"place": group["frames"]} if "frames" in group else grammar["frames"]
        for kind, letter in (("place", "{P}"), ("verb", "{V}"), ("inverse", "{I}"), ("converse", "{P}")):
            for phrase in _some(_phrases(relation, kind), part):
                found += [
                    Form(relation, frame.replace(letter, phrase), kind) for frame in _some(frames.get(kind, ()), part)
                ]
        found += [Form(relation, pattern, "whole") for pattern in _some(group["whole"], part)]
    return found


def home_nouns(seeds: Sequence[int]) -> dict[str, list[Nouns]]:
    """What stands in which relation in the homes of ``seeds``: names by relation, each choice once."""
    found: dict[str, set[Nouns]] = {}
    for seed in seeds:
        home = build_home(seed, HomeSpec(rooms=1 + seed % 2, version=2, revision=1))
        scene = make_scene(home, range(len(home.objects)))
        labels = scene.labels()
        for fact in all_facts(scene):
            names = tuple(labels[row] for row in (fact.target, *fact.anchors))
            if len(set(names)) == len(names) > 1:
                found.setdefault(fact.relation, set()).add(names)
    return {relation: sorted(names) for relation, names in found.items()}


def say(form: Form, nouns: Nouns, rng: np.random.Generator) -> Example:
    """``form`` with ``nouns`` and now and then an adjective; articles are left as the form has them."""
    words = dict(zip("TAB", nouns, strict=False))
    text, spans = "", dict[str, tuple[int, int]]()
    for piece in re.split(r"(\{\w+\})", form.pattern):
        letter = piece[1:2] if piece.startswith("{") else ""
        if not letter:
            text += piece
            continue
        if rng.random() < 0.15:
            text += str(rng.choice(_ADJECTIVES)) + " "
        noun = plural(words[letter]) if piece[2] == "s" else words[letter]
        if not (piece[2] == "s" and f"{{{letter}}}" in form.pattern):
            spans.setdefault(letter, (len(text), len(text) + len(noun)))
        text += noun
    anchors = tuple(spans[letter] for letter in "AB" if letter in spans)
    return Example(text, form.relation, spans["T"], anchors, form.kind)


def examples(part: Part, nouns: dict[str, list[Nouns]], per_form: int, seed: int) -> list[Example]:
    """Sentences of a part, in a fixed order: ``per_form`` of each whole sentence, and up to 40 * ``per_form`` of each
    relation and way of saying it. Half of them with things that stand so in homes, half with any, so that words decide
    and not what usually stands on what."""
    rng = np.random.default_rng(seed)
    every = sorted({n for pairs in nouns.values() for names in pairs for n in names} - STRUCTURE)
    found = []
    groups: dict[tuple[str, str], list[Form]] = {}
    for form in forms(part):
        groups.setdefault((form.relation, form.kind), []).append(form)
    for (relation, kind), pile in sorted(groups.items()):
        many = len(pile) * per_form if kind in ("whole", "none") else min(len(pile), 40 * per_form)
        for k in range(many):
            form = pile[k % len(pile)] if kind in ("whole", "none") else pile[int(rng.integers(len(pile)))]
            usual = nouns.get(relation)
            if usual and rng.random() < 0.5:
                said = usual[int(rng.integers(len(usual)))]
            else:
                said = tuple(str(n) for n in rng.choice(every, 3, replace=False))
            found.append(say(form, said, rng))
    return found
