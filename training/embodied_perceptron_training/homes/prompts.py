"""Prompts about objects, each true of exactly one object by geometry (negatives: of none)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.config import require_at_least, require_within
from embodied_perceptron_training.homes import relations as geo
from embodied_perceptron_training.homes.relations import Scene

STRUCTURE = {"wall", "floor", "ceiling", "object"}  # classes without texts
_HARD_FROM = 4  # more than three distractors

# Plain forms follow the benchmark's templates. Free forms express the same without the usual relation words, so that a
# table of relation words is not enough.

PLAIN: dict[str, tuple[str, ...]] = {
    "closest": (
        "the {target} that is closest to the {anchor}",
        "find the {target} that is closer to the {anchor}",
        "select the {target} nearest to the {anchor}",
        "the {target} next to the {anchor}",
        "the {target} near the {anchor}",
    ),
    "farthest": (
        "the {target} that is farthest from the {anchor}",
        "find the {target} that is far away from the {anchor}",
        "select the {target} farther from the {anchor}",
    ),
    "above": (
        "the {target} that is above the {anchor}",
        "select the {target} above the {anchor}",
        "find the {target} over the {anchor}",
    ),
    "below": (
        "the {target} that is below the {anchor}",
        "select the {target} under the {anchor}",
        "find the {target} beneath the {anchor}",
    ),
    "on": (
        "the {target} that is on the {anchor}",
        "find the {target} on top of the {anchor}",
        "the {target} lying on the {anchor}",
    ),
    "supporting": ("the {target} that is supporting the {anchor}", "find the {target} with the {anchor} on it"),
    "in": ("the {target} that is inside the {anchor}", "find the {target} in the {anchor}"),
    "front": (
        "the {target} that is in front of the {anchor}",
        "find the {target} in front of the {anchor}",
    ),
    "behind": ("the {target} that is behind the {anchor}", "find the {target} at the back of the {anchor}"),
    "left": (
        "the {target} on the left side of the {anchor}",
        "find the {target} to the left of the {anchor}",
    ),
    "right": (
        "the {target} on the right side of the {anchor}",
        "find the {target} to the right of the {anchor}",
    ),
    "between": (
        "the {target} that is between the {anchor} and the {anchor2}",
        "find the {target} in the middle of the {anchor} and the {anchor2}",
    ),
    "viewer left": (
        "facing the {anchor}, the {target} on the left",
        "when looking at the front of the {anchor}, choose the {target} on the left",
    ),
    "viewer right": (
        "facing the {anchor}, the {target} on the right",
        "when looking at the front of the {anchor}, choose the {target} on the right",
    ),
    "attribute": (
        "the {attribute} {target}",
        "find the {target} that is {attribute}",
        "select the {attribute} {target}",
    ),
    "unique": ("the {target}", "find the {target}", "there is one {target} here, select it"),
}

FREE: dict[str, tuple[str, ...]] = {
    "closest": (
        "someone using the {anchor} would only have to stretch an arm to touch this {target}",
        "if I spill something at the {anchor}, this is the {target} that suffers first",
        "of all the {target_plural}, the one that keeps the {anchor} company",
        "the {target} you bump into as soon as you turn around at the {anchor}",
        "hand me whichever {target} takes the fewest steps from the {anchor}",
    ),
    "farthest": (
        "starting at the {anchor}, you would have to walk the longest way to reach this {target}",
        "this {target} has nothing to do with the {anchor}, it sits at the other end",
        "of all the {target_plural}, the one that the {anchor} sees least of",
        "the {target} somebody at the {anchor} would have to shout to",
    ),
    "above": (
        "if this {target} came loose, it would land on the {anchor}",
        "look up from the {anchor} and you see this {target}",
        "the {target} that hovers where the {anchor} ends",
    ),
    "below": (
        "something dropped from the {anchor} would hit this {target}",
        "the {target} that the {anchor} hangs down towards",
        "lower your eyes from the {anchor} and you meet this {target}",
    ),
    "on": (
        "if you moved the {anchor} away, this {target} would fall to the floor",
        "the {target} that somebody has put down there, the {anchor} carries it",
        "wiping the {anchor} clean means lifting this {target} first",
    ),
    "supporting": (
        "take this {target} away and the {anchor} comes crashing down",
        "the {target} that somebody chose to hold the {anchor}",
    ),
    "in": (
        "the {target} that the {anchor} swallows",
        "you have to reach into the {anchor} to get this {target}",
        "the {anchor} is home to this {target}",
    ),
    "front": (
        "the {anchor} looks straight at this {target}",
        "the {target} that the face of the {anchor} is turned to",
    ),
    "behind": (
        "the {anchor} has turned its back on this {target}",
        "the {anchor} cannot see this {target}, it would have to turn around completely",
    ),
    "left": ("if the {anchor} had hands, its left one would point at this {target}",),
    "right": ("if the {anchor} had hands, its right one would point at this {target}",),
    "between": (
        "walking straight from the {anchor} to the {anchor2} you would trip over this {target}",
        "the {target} that keeps the {anchor} and the {anchor2} apart",
    ),
    "viewer left": ("stand before the {anchor} and look at it: your left hand points to this {target}",),
    "viewer right": ("stand before the {anchor} and look at it: your right hand points to this {target}",),
    "attribute": (
        "whoever bought this {target} must like {attribute}",
        "{attribute} is what sets this {target} apart from the others",
    ),
    "unique": ("I could do with a {target} now", "where would you go if you needed the {target}"),
}
# The parser is fitted to free forms at even indices, and to none at odd ones.
FREE_FITTED = {relation: forms[::2] for relation, forms in FREE.items()}
FREE_HELD_OUT = {relation: forms[1::2] for relation, forms in FREE.items()}

JOIN: tuple[str, ...] = (
    "{first}, and it is {second}",
    "{first}; it is also {second}",
    "{first} and {second}",
)

# Second half of a complex prompt, about "it".
TAIL: dict[str, str] = {
    "closest": "the one closest to the {anchor}",
    "farthest": "the one farthest from the {anchor}",
    "above": "above the {anchor}",
    "below": "below the {anchor}",
    "on": "on the {anchor}",
    "in": "inside the {anchor}",
    "front": "in front of the {anchor}",
    "behind": "behind the {anchor}",
    "left": "to the left of the {anchor}",
    "right": "to the right of the {anchor}",
    "between": "between the {anchor} and the {anchor2}",
    "attribute": "{attribute}",
}

# A prompt with one of these tokens is view dependent (the benchmark's rule).
VIEW_WORDS = frozenset(
    ("front", "behind", "back", "left", "right", "facing", "leftmost", "rightmost", "looking", "across")
)


def plural(noun: str) -> str:
    """English plural of a category name, for templates."""
    irregular = {"shelf": "shelves", "knife": "knives", "mouse": "mice", "clothes": "clothes", "scissors": "scissors"}
    last = noun.split()[-1]
    if last in irregular:
        return noun[: len(noun) - len(last)] + irregular[last]
    if last.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if last.endswith("y") and last[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def is_view_dependent(text: str) -> bool:
    """Whether the text has a view word (the benchmark's rule)."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return not VIEW_WORDS.isdisjoint(words)


@dataclass(frozen=True)
class Fact:
    """A relation that holds for exactly one object.

    Attributes:
        relation: key of :data:`PLAIN`.
        target: row.
        anchors: rows.
        attribute: word, for attribute facts.
    """

    relation: str
    target: int
    anchors: tuple[int, ...] = ()
    attribute: str = ""


@dataclass(frozen=True)
class PromptSpec:
    """Number and mix of the prompts.

    Attributes:
        per_scene: upper limit of positive prompts.
        free_share: share of free forms.
        complex_share: share of prompts with two facts.
        synonym_share: share of prompts with a synonym for the target.
        negatives: number of prompts about absent objects.
    """

    per_scene: int = 60
    free_share: float = 0.28
    complex_share: float = 0.15
    synonym_share: float = 0.15
    negatives: int = 8

    def __post_init__(self) -> None:
        require_within(self, 0, 1, "free_share", "complex_share", "synonym_share")
        require_at_least(self, 0, "per_scene", "negatives")


def all_facts(scene: Scene) -> list[Fact]:
    """All facts of the scene that hold for exactly one object, in a fixed order."""
    labels = scene.labels()
    counts = Counter(labels)
    targets = [name for name, n in counts.items() if 2 <= n <= 6 and name not in STRUCTURE]
    anchors = [i for i, name in enumerate(labels) if counts[name] == 1 and name not in STRUCTURE]
    found: list[Fact] = []
    for name in sorted(targets):
        rows = scene.rows_of(name)
        found += _attribute_facts(scene, rows)
        for anchor in anchors:
            found += _anchor_facts(scene, rows, anchor)
        for a in anchors:
            for b in anchors:
                if b < a and scene.objects[a].room == scene.objects[b].room:
                    found += _facts_of_one(scene, "between", rows, (a, b))
    return found + [Fact("unique", row) for row in anchors]


def _attribute_facts(scene: Scene, rows: NDArray[np.intp]) -> Iterator[Fact]:
    for kind in ("color", "material", "size"):
        words = [scene.objects[r].model.attributes.get(kind, "") for r in rows]
        for row, word in zip(rows, words, strict=True):
            # an object without a colour word could have that colour
            if word and words.count(word) == 1 and "" not in words:
                yield Fact("attribute", int(row), (), word)


def _anchor_facts(scene: Scene, rows: NDArray[np.intp], anchor: int) -> Iterator[Fact]:
    sides = ("front", "behind", "left", "right", "viewer left", "viewer right")
    for relation in ("above", "below", "on", "supporting", "in", *sides):
        yield from _facts_of_one(scene, relation, rows, (anchor,))
    for relation in ("closest", "farthest"):
        row = geo.nearest_row(scene, rows, anchor, relation == "farthest")
        if row is not None and scene.objects[row].room == scene.objects[anchor].room:
            yield Fact(relation, row, (anchor,))


def _facts_of_one(scene: Scene, relation: str, rows: NDArray[np.intp], anchors: tuple[int, ...]) -> Iterator[Fact]:
    """The fact, when the relation holds for exactly one of ``rows``."""
    holds = [int(r) for r in rows if r not in anchors and relation_holds(scene, relation, int(r), anchors)]
    if len(holds) == 1:
        yield Fact(relation, holds[0], anchors)


def relation_holds(scene: Scene, relation: str, row: int, anchors: tuple[int, ...]) -> bool:
    """Whether a relation other than closest and farthest holds between ``row`` and ``anchors``; not across rooms."""
    anchor = anchors[0]
    if any(scene.objects[row].room != scene.objects[a].room for a in anchors):
        return False  # walls stand between
    if relation == "above":
        return geo.is_above(scene, row, anchor)
    if relation == "below":
        return geo.is_above(scene, anchor, row)
    if relation == "on":
        return geo.is_on(scene, row, anchor)
    if relation == "supporting":
        return geo.is_on(scene, anchor, row)
    if relation == "in":
        return geo.is_in(scene, row, anchor)
    if relation == "between":
        return geo.is_between(scene, row, anchor, anchors[1])
    if relation.startswith("viewer "):
        return geo.viewer_side(scene, row, anchor) == relation.removeprefix("viewer ")
    return geo.side_of(scene, row, anchor) == relation


def make_prompts(scene: Scene, scan_id: str, spec: PromptSpec, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Entries of the vg json: the benchmark's keys (scan_id, text, target_id, target, distractor_ids, anchors,
    anchor_ids, tokens_positive) and, for analysis, relation, view_dependent, hard, form.

    Facts are drawn so that rare relations are not drowned by the many horizontal ones.
    """
    facts = all_facts(scene)
    by_target: dict[int, list[Fact]] = {}
    for fact in facts:
        by_target.setdefault(fact.target, []).append(fact)
    entries: list[dict[str, Any]] = []
    used: set[str] = set()
    for fact in _balanced(facts, rng):
        if len(entries) >= spec.per_scene:
            break
        entry = _entry(scene, scan_id, fact, by_target[fact.target], spec, rng)
        if entry["text"] not in used:
            used.add(entry["text"])
            entries.append(entry)
    return entries


def _balanced(facts: list[Fact], rng: np.random.Generator) -> Iterator[Fact]:
    """Facts in random order, taking relations in turn."""
    piles: dict[str, list[Fact]] = {}
    for fact in facts:
        piles.setdefault(fact.relation, []).append(fact)
    for pile in piles.values():
        rng.shuffle(pile)
    while piles:
        for relation in sorted(piles):
            yield piles[relation].pop()
            if not piles[relation]:
                del piles[relation]


def _entry(
    scene: Scene, scan_id: str, fact: Fact, others: list[Fact], spec: PromptSpec, rng: np.random.Generator
) -> dict[str, Any]:
    target = scene.objects[fact.target]
    name = target.label
    if target.model.synonyms and rng.random() < spec.synonym_share:
        name = target.model.synonyms[int(rng.integers(len(target.model.synonyms)))]
    form = "free" if rng.random() < spec.free_share else "plain"
    template = _choose((FREE if form == "free" else PLAIN)[fact.relation], rng)
    facts = [fact]
    if form == "plain" and rng.random() < spec.complex_share:
        second = [f for f in others if f.relation in TAIL and f.relation != fact.relation]
        if second:
            facts.append(second[int(rng.integers(len(second)))])
            tail = TAIL[facts[1].relation].format(**_words(scene, facts[1], name))
            template = _choose(JOIN, rng).format(first=template, second=tail)
            form = "complex"
    text = template.format(**_words(scene, fact, name))
    span = _span(text, name if name in text else plural(name))
    anchor_rows = [row for f in facts for row in f.anchors]
    rows = scene.rows_of(target.label)
    return {
        "scan_id": scan_id,
        "text": text,
        "target_id": int(scene.ids[fact.target]),
        "target": target.label,
        "distractor_ids": [int(scene.ids[r]) for r in rows if r != fact.target],
        "anchors": [scene.objects[r].label for r in anchor_rows],
        "anchor_ids": [int(scene.ids[r]) for r in anchor_rows],
        "tokens_positive": [span],
        "relation": fact.relation,
        "view_dependent": is_view_dependent(text),
        "hard": len(rows) - 1 >= _HARD_FROM,
        "form": form,
    }


def _words(scene: Scene, fact: Fact, name: str) -> dict[str, str]:
    anchors = [scene.objects[r].label for r in fact.anchors]
    return {
        "target": name,
        "target_plural": plural(name),
        "anchor": anchors[0] if anchors else "",
        "anchor2": anchors[1] if len(anchors) > 1 else "",
        "attribute": fact.attribute,
    }


def _choose(options: tuple[str, ...], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]


def _span(text: str, phrase: str) -> list[int]:
    start = text.index(phrase)
    return [start, start + len(phrase)]


def make_negatives(
    scene: Scene, scan_id: str, spec: PromptSpec, absent: list[str], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Prompts that no object answers: classes that are not there, and colours that none of a class has."""
    entries = []
    labels = scene.labels()
    anchors = [name for name, n in Counter(labels).items() if n == 1 and name not in STRUCTURE]
    for k in range(spec.negatives):
        if k % 3 == 2 and anchors:
            noun = _choose(tuple(n for n in labels if n not in STRUCTURE), rng)
            have = {scene.objects[r].model.attributes.get("color", "") for r in scene.rows_of(noun)}
            free = [c for c in ("red", "blue", "green", "yellow", "purple", "orange", "pink") if c not in have]
            if "" in have or not free:
                continue
            text, reason = f"the {_choose(tuple(free), rng)} {noun}", "attribute"
        elif absent:
            noun = absent[int(rng.integers(len(absent)))]
            text, reason = f"the {noun}", "class"
            if anchors and rng.random() < 0.6:
                text = _choose(PLAIN["closest"], rng).format(target=noun, anchor=_choose(tuple(anchors), rng))
        else:
            continue
        entries.append({"scan_id": scan_id, "text": text, "target_id": [], "target": noun, "reason": reason})
    return entries
