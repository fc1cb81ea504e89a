"""Scene descriptions whose every noun phrase carries its objects.

    A desk <obj_3> by the window <obj_9>. On the desk <obj_3>: a laptop <obj_4> and two books <obj_5> <obj_6>.

A description is made from boxes by rules, so it states only what the map contains. The dense form writes
``<p>a desk</p>[<obj_3>]`` (3D-GRAND, arXiv 2406.05132); :func:`read_mentions` parses both forms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.language.lexicon import lexicon, pluralize
from embodied_perceptron.language.object_states import RELATIONS, predict_pairs
from embodied_perceptron.language.relations import NEAR_M
from embodied_perceptron.results import UNNAMED, SceneObject

F64 = NDArray[np.float64]
Relation = Literal["on", "in", "under"]
Form = Literal["plain", "dense"]

_ROWS_AT_ONCE = 256  # of pairs of objects
STRUCTURE = frozenset(("floor", "ceiling", "wall"))  # in every room: not described
_LANDMARKS = ("window", "door", "fireplace", "stairs", "bathtub", "bed", "couch", "wardrobe", "desk", "table")
_MOST_CHARACTERS = 100  # of a label
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SAID: dict[str, Relation] = {"ontop": "on", "inside": "in", "under": "under"}
_PLACED: dict[Relation, str] = {"on": "On", "in": "In", "under": "Under"}


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
    """Relations on, in and under between boxes (:func:`.object_states.predict_pairs`); at most one per object."""
    boxes = np.array([o.box for o in objects], np.float64).reshape(-1, 9)
    pairs = predict_pairs(boxes, [o.label for o in objects])
    best: dict[int, tuple[int, int]] = {}
    for i, name, j in pairs:
        found = RELATIONS.index(name), j
        best[i] = min(best.get(i, found), found)
    facts = [Fact(objects[i].id, _SAID[RELATIONS[k]], objects[j].id) for i, (k, j) in sorted(best.items())]
    return _without_circles(facts)


def _without_circles(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    anchor_of: dict[int, int] = {}
    kept = []
    for fact in facts:
        at: int | None = fact.anchor
        while at is not None and at != fact.subject:
            at = anchor_of.get(at)
        if at is None:
            anchor_of[fact.subject] = fact.anchor
            kept.append(fact)
    return tuple(kept)


def describe(objects: Sequence[SceneObject], form: Form = "plain") -> Description:
    """Describe a map's objects: free-standing ones with a landmark, then the objects on, in and under each.

    Every labelled object is mentioned, except walls, floors and ceilings. States are included: "a closed door".

    ``form``: ``plain`` writes ``a desk <obj_3>``, ``dense`` ``<p>a desk</p>[<obj_3>]``.
    """
    things = [o for o in objects if o.label not in (*STRUCTURE, UNNAMED) and np.isfinite(o.box).all()]
    things.sort(key=lambda o: (_rank(o.label), -float(o.box[3:6].prod()), o.id))
    facts = decide_relations(things)
    placed = {fact.subject: fact for fact in facts}
    by_id = {o.id: o for o in things}
    writer = _Writer(form)
    if not things:
        writer.say("There is nothing to describe.")
        return writer.done(())
    free = [o for o in things if o.id not in placed]
    groups = _alike(free)
    nearest = _nearest_named_before(free, groups)
    for group in groups:
        writer.start()
        writer.name(group, definite=False)
        near = None if len(group) > 1 else nearest.get(group[0].id)
        if near is not None:
            writer.say(" by ")
            writer.name([near], definite=True)
        writer.say(".")
    carried: dict[tuple[int, Relation], list[SceneObject]] = {}
    for fact in facts:
        carried.setdefault((fact.anchor, fact.relation), []).append(by_id[fact.subject])
    for anchor in things:
        for relation, words in _PLACED.items():
            group = carried.get((anchor.id, relation), [])
            if not group:
                continue
            writer.start()
            writer.say(f"{words} ")
            writer.name([anchor], definite=True)
            writer.say(": ")
            parts = _alike(group)
            for number, part in enumerate(parts):
                if number:
                    writer.say(" and " if number == len(parts) - 1 else ", ")
                writer.name(part, definite=False, capital=False)
            writer.say(".")
    return writer.done(facts)


def _rank(label: str) -> int:
    return _LANDMARKS.index(label) if label in _LANDMARKS else len(_LANDMARKS)


def _alike(objects: Sequence[SceneObject]) -> list[list[SceneObject]]:
    """Group objects with the same label that are close to each other."""
    groups: list[list[SceneObject]] = []
    centers = np.array([o.box[:3] for o in objects]).reshape(-1, 3)
    label = _codes(objects)
    group_of = np.zeros(len(objects), np.intp)
    for part, rows, others in _near_pairs(Bounds(centers, centers), 2 * NEAR_M):
        near = (others < rows) & (label[others] == label[rows])
        near[near] = np.linalg.norm(centers[others[near]] - centers[rows[near]], axis=1) < 2 * NEAR_M
        rows, others = rows[near], others[near]
        ends = np.searchsorted(rows, part, "right")
        for row, first, end in zip(part.tolist(), np.searchsorted(rows, part), ends, strict=True):
            if first < end:
                group_of[row] = group_of[others[first:end]].min()  # the first of several groups
                groups[group_of[row]].append(objects[row])
            else:
                group_of[row] = len(groups)
                groups.append([objects[row]])
    return groups


def _codes(objects: Sequence[SceneObject]) -> NDArray[np.intp]:
    """(N,) number of each object's label."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(o.label, len(codes)) for o in objects], np.intp)


def _nearest_named_before(
    things: Sequence[SceneObject], groups: Sequence[Sequence[SceneObject]]
) -> dict[int, SceneObject]:
    """By id the nearest object of an earlier group that has another label, within :data:`NEAR_M`."""
    group_of = {o.id: number for number, group in enumerate(groups) for o in group}
    turn = np.array([group_of[o.id] for o in things], np.intp)
    label = _codes(things)
    bounds = Bounds.of(np.array([o.box for o in things], np.float64).reshape(-1, 9))
    found: dict[int, SceneObject] = {}
    for _, rows, others in _near_pairs(bounds, NEAR_M):
        named = (turn[others] < turn[rows]) & (label[others] != label[rows])
        rows, others = rows[named], others[named]
        apart = np.maximum(bounds.low[rows] - bounds.high[others], bounds.low[others] - bounds.high[rows])
        gaps = np.linalg.norm(np.maximum(apart, 0.0), axis=1)
        order = np.lexsort((others, gaps, rows))
        order = order[gaps[order] <= NEAR_M]
        first = np.unique(rows[order], return_index=True)[1]
        found |= {things[i].id: things[j] for i, j in zip(rows[order][first], others[order][first], strict=True)}
    return found


def _near_pairs(
    bounds: Bounds, reach_m: float
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]]:
    """Some rows at a time, which bounds the memory, and their pairs with all rows at most ``reach_m`` apart in x, y."""
    for first in range(0, len(bounds.low), _ROWS_AT_ONCE):
        part = np.arange(first, min(first + _ROWS_AT_ONCE, len(bounds.low)))
        rows, others = bounds[part].pairs_within(bounds, reach_m)
        yield part, rows + first, others


class _Writer:
    """Builds the text and its mentions."""

    def __init__(self, form: Form) -> None:
        if form not in ("plain", "dense"):
            raise ValueError(f"form must be plain or dense, got {form!r}")
        self._form = form
        self._parts: list[str] = []
        self._length = 0
        self._mentions: list[Mention] = []

    def start(self) -> None:
        if self._parts:
            self.say(" ")

    def say(self, words: str) -> None:
        self._parts.append(words)
        self._length += len(words)

    def name(self, group: Sequence[SceneObject], definite: bool, capital: bool | None = None) -> None:
        """Add a noun phrase with its objects; capitalized at the start of a sentence."""
        # without brackets, which mark tags
        label = " ".join(re.sub(r"[<>\[\]]", " ", group[0].label[:_MOST_CHARACTERS]).split()) or UNNAMED
        count = len(group)
        conditions = {o.condition for o in group}
        if len(conditions) == 1 and group[0].condition:
            label = f"{group[0].condition} {label}"
        noun = label if count == 1 else pluralize(label)
        number = _NUMBERS[count] if count < len(_NUMBERS) else str(count)
        lead = "the" if definite else (_article(label) if count == 1 else number)
        begins = (not self._parts or "".join(self._parts[-2:]).endswith(". ")) if capital is None else capital
        words = f"{lead[0].upper()}{lead[1:]} {noun}" if begins else f"{lead} {noun}"
        tags = [f"<obj_{o.id}>" for o in group]
        start = self._length
        self.say(f"{words} {' '.join(tags)}" if self._form == "plain" else f"<p>{words}</p>[{', '.join(tags)}]")
        self._mentions.append(Mention(noun, tuple(o.id for o in group), start, self._length))

    def done(self, facts: tuple[Fact, ...]) -> Description:
        return Description("".join(self._parts), tuple(self._mentions), facts)


def _article(noun: str) -> str:
    if lexicon().always_plural(noun):
        return "some"
    return "an" if noun[:1] in "aeiou" else "a"


# --------------------------------------------------------------------------------------------------------------------
# Parsing.

_ID = r"<?obj(?:ect)?_(\d+)>?"
_DENSE = re.compile(r"<p>(?P<phrase>[^<]*)</p>\s*\[(?P<ids>[^\[\]]*)\]")
_PLAIN = re.compile(r"(?P<phrase>[^\W\d_][\w' -]*?)\s*(?P<ids><obj_\d+>(?:[\s,]*<obj_\d+>)*)")
_LEADS = ("a", "an", "the", "some", "its", "his", "her", "their", "this", "that", "these", "those", "another")
_LEAD = re.compile(rf"^(?:{'|'.join((*_LEADS, *_NUMBERS))}|\d+)\s+", re.IGNORECASE)
_BREAK = re.compile(rf"\b(?:{'|'.join((*_LEADS, *_NUMBERS))}|and|by|on|in|under|of|with|near|is|are)\b", re.IGNORECASE)
_MOST_WORDS = 5


def read_mentions(text: str) -> tuple[Mention, ...]:
    """Parse the tagged noun phrases of a text in either form; a plain phrase begins after the last article."""
    dense = list(_DENSE.finditer(text))
    found = dense if dense else list(_PLAIN.finditer(text))
    mentions = []
    for match in found:
        words, start = match["phrase"], match.start()
        if not dense:
            breaks = list(_BREAK.finditer(words))
            if breaks:  # the phrase includes its article
                at = breaks[-1].start() if breaks[-1].group().lower() in (*_LEADS, *_NUMBERS) else breaks[-1].end()
                start, words = start + at, words[at:]
            start += len(words) - len(words.lstrip())
            if len(words.split()) > _MOST_WORDS:
                words = " ".join(words.split()[-_MOST_WORDS:])
        words = words.strip()
        phrase = _LEAD.sub("", words).strip().lower()
        ids = tuple(int(number) for number in re.findall(_ID, match["ids"]))
        mentions.append(Mention(phrase, ids, start, match.end()))
    return tuple(mentions)
