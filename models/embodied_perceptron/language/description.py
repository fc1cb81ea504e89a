"""Scene descriptions whose every noun phrase carries its objects.

    A desk <obj_3> by the window <obj_9>. On the desk <obj_3>: a laptop <obj_4> and two books <obj_5> <obj_6>.

A description is made from boxes by rules, so it states only what the map contains. The dense form writes
``<p>a desk</p>[<obj_3>]`` (3D-GRAND, arXiv 2406.05132); :func:`read_mentions` parses both forms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.spatial import cKDTree

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.language.lexicon import lexicon, pluralize
from embodied_perceptron.language.object_states import RELATIONS, predict_pairs
from embodied_perceptron.language.relations import NEAR_M
from embodied_perceptron.results import UNNAMED, SceneObject

Relation = Literal["on", "in", "under"]
Form = Literal["plain", "dense"]

STRUCTURE = frozenset(("floor", "ceiling", "wall"))  # in every room: not described
_LANDMARKS = ("window", "door", "fireplace", "stairs", "bathtub", "bed", "couch", "wardrobe", "desk", "table")
_RANK = {label: rank for rank, label in enumerate(_LANDMARKS)}
_MOST_CHARACTERS = 100  # of a label
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SAID: dict[str, Relation] = {"ontop": "on", "inside": "in", "under": "under"}
_Part = str | tuple[Sequence[SceneObject], bool]  # of a sentence: words, or objects and whether they are definite


@dataclass(frozen=True)
class Fact:
    """One relation decided by geometry: object id ``subject`` is on, in or under object id ``anchor``."""

    subject: int
    relation: Relation
    anchor: int


@dataclass(frozen=True)
class Mention:
    """A noun phrase of a text and its objects.

    Attributes:
        phrase: without article and number.
        ids: of its objects.
        start, end: characters of the phrase with its tags.
    """

    phrase: str
    ids: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Description:
    """A text about a scene.

    Attributes:
        text: sentences.
        mentions: its noun phrases in order.
        facts: the stated relations.
    """

    text: str
    mentions: tuple[Mention, ...]
    facts: tuple[Fact, ...]


def decide_relations(objects: Sequence[SceneObject]) -> tuple[Fact, ...]:
    """Relations on, in and under between boxes (:func:`.object_states.predict_pairs`); at most one per object, and none
    that closes a circle."""
    boxes = np.array([o.box for o in objects], np.float64).reshape(-1, 9)
    pairs = predict_pairs(boxes, [o.label for o in objects])
    first: dict[int, tuple[int, int]] = {}
    for i, k, j in sorted((i, RELATIONS.index(name), j) for i, name, j in pairs):
        first.setdefault(i, (k, j))
    kept: dict[int, Fact] = {}  # by subject
    for i, (k, j) in first.items():
        subject, at = objects[i].id, objects[j].id
        while at in kept and at != subject:
            at = kept[at].anchor
        if at != subject:  # no circle
            kept[subject] = Fact(subject, _SAID[RELATIONS[k]], objects[j].id)
    return tuple(kept.values())


def describe(objects: Sequence[SceneObject], form: Form = "plain") -> Description:
    """Describe a map's objects: free-standing ones with a landmark, then the objects on, in and under each.

    Every labelled object is mentioned, except walls, floors and ceilings. States are included: "a closed door".

    ``form``: ``plain`` writes ``a desk <obj_3>``, ``dense`` ``<p>a desk</p>[<obj_3>]``. Raises ``ValueError`` for
    another one.
    """
    if form not in ("plain", "dense"):
        raise ValueError(f"form must be plain or dense, got {form!r}")
    things = [o for o in objects if o.label not in (*STRUCTURE, UNNAMED) and np.isfinite(o.box).all()]
    things.sort(key=lambda o: (_RANK.get(o.label, len(_RANK)), -float(o.box[3:6].prod()), o.id))
    if not things:
        return Description("There is nothing to describe.", (), ())
    facts = decide_relations(things)
    placed = {fact.subject for fact in facts}
    free = [o for o in things if o.id not in placed]
    groups = _alike(free)
    nearest = _nearest_named_before(free, groups)
    sentences: list[list[_Part]] = []
    for group in groups:
        near = None if len(group) > 1 else nearest.get(group[0].id)
        sentences.append([(group, False)] if near is None else [(group, False), " by ", ([near], True)])
    by_id = {o.id: o for o in things}
    carried: dict[tuple[int, Relation], list[SceneObject]] = {}
    for fact in facts:
        carried.setdefault((fact.anchor, fact.relation), []).append(by_id[fact.subject])
    for anchor in things:
        for relation in _SAID.values():
            if (anchor.id, relation) in carried:
                parts = _alike(carried[anchor.id, relation])
                separators = [": ", *[", "] * (len(parts) - 2), " and "]
                listed = [part for k, group in enumerate(parts) for part in (separators[k], (group, False))]
                sentences.append([f"{relation.capitalize()} ", ([anchor], True), *listed])
    return _written(sentences, facts, form)


def _written(sentences: Sequence[Sequence[_Part]], facts: tuple[Fact, ...], form: Form) -> Description:
    text = ""
    mentions = []
    for sentence in sentences:
        text += " " if text else ""
        for number, part in enumerate(sentence):
            if isinstance(part, str):
                text += part
                continue
            start, (group, definite) = len(text), part
            lead, noun = _noun_phrase(group, definite)
            words = f"{lead if number else lead.capitalize()} {noun}"
            tags = [f"<obj_{o.id}>" for o in group]
            text += f"{words} {' '.join(tags)}" if form == "plain" else f"<p>{words}</p>[{', '.join(tags)}]"
            mentions.append(Mention(noun, tuple(o.id for o in group), start, len(text)))
        text += "."
    return Description(text, tuple(mentions), facts)


def _noun_phrase(group: Sequence[SceneObject], definite: bool) -> tuple[str, str]:
    """Article or number of objects with one label, and their noun."""
    # without brackets, which mark tags
    label = " ".join(re.sub(r"[<>\[\]]", " ", group[0].label[:_MOST_CHARACTERS]).split()) or UNNAMED
    condition, count = group[0].condition, len(group)
    if condition and all(o.condition == condition for o in group):
        label = f"{condition} {label}"
    if count > 1:
        return _NUMBERS[count] if count < len(_NUMBERS) else str(count), pluralize(label)
    if definite:
        return "the", label
    article = "an" if label[:1] in "aeiou" else "a"
    return "some" if lexicon().always_plural(label) else article, label


def _alike(objects: Sequence[SceneObject]) -> list[list[SceneObject]]:
    """Group objects with the same label that are close to each other."""
    groups: list[list[SceneObject]] = []
    group_of: dict[int, int] = {}
    tree = cKDTree(np.array([o.box[:3] for o in objects]).reshape(-1, 3))
    for row, thing in enumerate(objects):
        near = [i for i in tree.query_ball_point(thing.box[:3], 2 * NEAR_M) if i < row]
        joined = [group_of[i] for i in near if objects[i].label == thing.label]
        if not joined:
            groups.append([])
        group_of[row] = min(joined, default=len(groups) - 1)  # the first of several groups
        groups[group_of[row]].append(thing)
    return groups


def _nearest_named_before(
    things: Sequence[SceneObject], groups: Sequence[Sequence[SceneObject]]
) -> dict[int, SceneObject]:
    """By id the nearest object of an earlier group that has another label, within :data:`NEAR_M`."""
    turn = {o.id: number for number, group in enumerate(groups) for o in group}
    bounds = Bounds.of(np.array([o.box for o in things], np.float64).reshape(-1, 9))
    rows, others = bounds.pairs_within(bounds, NEAR_M)
    apart = np.maximum(bounds.low[rows] - bounds.high[others], bounds.low[others] - bounds.high[rows])
    gaps = np.linalg.norm(np.maximum(apart, 0.0), axis=1)
    found: dict[int, SceneObject] = {}
    for gap, row, other in sorted(zip(gaps.tolist(), rows.tolist(), others.tolist(), strict=True)):
        thing, near = things[row], things[other]
        if gap <= NEAR_M and turn[near.id] < turn[thing.id] and near.label != thing.label:
            found.setdefault(thing.id, near)
    return found


# --------------------------------------------------------------------------------------------------------------------
# Parsing.

_ID = re.compile(r"<?obj(?:ect)?_(\d+)>?")
_DENSE = re.compile(r"<p>(?P<phrase>[^<]*)</p>\s*\[(?P<ids>[^\[\]]*)\]")
_PLAIN = re.compile(r"(?P<phrase>[^\W\d_][\w' -]*?)\s*(?P<ids><obj_\d+>(?:[\s,]*<obj_\d+>)*)")
_LEADS = "|".join(("a|an|the|some|its|his|her|their|this|that|these|those|another", *_NUMBERS))
_LEAD = re.compile(rf"^(?:{_LEADS}|\d+)\s+", re.IGNORECASE)
# ends where a phrase begins, which includes its article
_BREAK = re.compile(rf"\b(?:(?=(?:{_LEADS})\b)|(?:and|by|on|in|under|of|with|near|is|are)\b)", re.IGNORECASE)
_MOST_WORDS = 5


def read_mentions(text: str) -> tuple[Mention, ...]:
    """Parse the tagged noun phrases of a text in either form; a plain phrase begins after the last article."""
    dense = list(_DENSE.finditer(text))
    mentions = []
    for match in dense or _PLAIN.finditer(text):
        words, start = match["phrase"], match.start()
        if not dense:
            rest = words[max((found.end() for found in _BREAK.finditer(words)), default=0) :]
            start += len(words) - len(rest.lstrip())
            words = " ".join(rest.split()[-_MOST_WORDS:])
        phrase = _LEAD.sub("", words.strip()).strip().lower()
        mentions.append(Mention(phrase, tuple(map(int, _ID.findall(match["ids"]))), start, match.end()))
    return tuple(mentions)
