"""The typed meaning of a sentence: which object is meant, and what must hold of it.

"the chair left of the red sofa"
  target       chair
  constraints  left(couch[colour red])

The reader (:mod:`.query`) draws a :class:`SentenceGraph` over the words; :class:`Decoder` turns it into a
:class:`Meaning`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from embodied_perceptron.language.lexicon import (
    UNITS,
    Word,
    cardinal,
    lexicon,
    metres,
    ordinal,
    pluralize,
    relation_words,
    serving,
    singular,
    word_set,
)

Kind = Literal["object", "exists", "where", "count", "contents"]
Attribute = Literal[
    "", "colour", "size", "height", "width", "length", "depth", "distance", "relation", "comparison", "material",
    "shape", "use", "weight", "age", "brand", "price",
]  # fmt: skip
Span = tuple[int, int]

# relations that choose among the objects that satisfy everything else
SUPERLATIVES = frozenset(
    (
        "closest", "farthest", "leftmost", "rightmost", "left-of-all", "right-of-all", "from-left", "from-right",
        "large", "small", "tall", "short", "long", "narrow", "round", "high", "low", "alone", "corner", "middle",
        "wall", "nearest-me", "farthest-me", "middle-of-kind", "nth",
    )
)  # fmt: skip
VIEW_RELATIONS = frozenset(
    (
        "left", "right", "front", "behind", "viewer-left", "viewer-right", "leftmost", "rightmost", "left-of-all",
        "right-of-all", "from-left", "from-right", "left-of-me", "right-of-me", "ahead-of-me", "behind-me",
        "nearest-me", "farthest-me",
    )
)  # fmt: skip
ANYTHING = "anything"  # the noun of "what is on the table" and "something taller than a metre"


@dataclass(frozen=True)
class Constraint:
    """One condition on an object.

    Attributes:
        relation: a name of :data:`embodied_perceptron.language.relations.SCORERS`.
        anchors: the other objects of the relation; two or more for "between", none for properties of the object.
        value: a colour or substance; "" otherwise.
        rank: 2 for "the second from the left"; 1 = the first.
        negated: the condition must not hold.
        weight: certainty of the reading, in (0, 1]; more for an explicit superlative.
        span: characters [start, end) of its words.
        amount_m: length in the sentence, metres.
    """

    relation: str
    anchors: tuple[ObjectPhrase, ...] = ()
    value: str = ""
    rank: int = 1
    negated: bool = False
    weight: float = 1.0
    span: Span = (0, 0)
    amount_m: float = 0.0

    @property
    def is_superlative(self) -> bool:
        """Whether the relation compares candidates with each other."""
        return self.relation in SUPERLATIVES

    @property
    def is_view_dependent(self) -> bool:
        """Whether the relation may depend on the speaker's viewpoint."""
        return self.relation in VIEW_RELATIONS


@dataclass(frozen=True)
class ObjectPhrase:
    """A noun phrase that refers to an object.

    Attributes:
        noun: in singular, as the lexicon has it.
        span: characters [start, end) of the noun.
        plural: whether the noun is plural.
        known: whether the lexicon or a label of the scene has the noun.
        constraints: on an anchor; those on the target are :attr:`Meaning.constraints`.
    """

    noun: str
    span: Span
    plural: bool = False
    known: bool = True
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True)
class SpeakerViewpoint:
    """The speaker's viewpoint that the sentence states.

    Attributes:
        kind: "at" (looks at the anchor), "before" (stands before its front and looks at it), "from" (stands there and
            looks into the room), "away" (turns the back to it).
        anchor: "door" for a sentence about entering.
    """

    kind: str
    anchor: ObjectPhrase


@dataclass(frozen=True)
class Meaning:
    """The typed meaning of a sentence.

    Attributes:
        text: the sentence.
        target: the object asked for, or None when none is named.
        constraints: on the target.
        speaker: the stated viewpoint, or None.
        mentioned: all other objects in the sentence: weak evidence that they are near.
        unmatched: words before the target's noun that were not understood.
        kind: "object", or for a question "exists", "where", "count", "contents".
        every: all fitting objects are asked for, not one.
        number: how many objects are asked for, or None.
        excluded: meanings of excluded objects ("other than the red one").
        any_of: any one of the fitting objects is right.
        is_place: the target is the destination of an object that need not be on the map.
        length: number of words that describe the target.
        problem: why the sentence cannot be answered or names no object; else empty.
        invalid: whether the problem lies in the sentence, not in the scene.
        probability: that the sentence is read correctly; 1 = unknown.
        others: alternative readings, best first.
        asked: the attribute of the target that a question asks for ("what colour is the couch"); "" = the object.
        second: the other object of a question about two: a distance, a relation, a comparison ("bigger, A or B").
    """

    text: str
    target: ObjectPhrase | None
    constraints: tuple[Constraint, ...] = ()
    speaker: SpeakerViewpoint | None = None
    mentioned: tuple[ObjectPhrase, ...] = ()
    unmatched: tuple[str, ...] = ()
    kind: Kind = "object"
    every: bool = False
    number: int | None = None
    excluded: tuple[Meaning, ...] = ()
    any_of: bool = False
    is_place: bool = False
    length: int = 0
    problem: str = ""
    invalid: bool = False
    probability: float = 1.0
    others: tuple[Meaning, ...] = ()
    asked: Attribute = ""
    second: ObjectPhrase | None = None

    @property
    def is_view_dependent(self) -> bool:
        """Whether the answer may depend on the speaker's viewpoint."""
        return any(c.is_view_dependent for c in self.constraints)


# ----------------------------------------------------------------------------------------------------------------------
# The graph over the words of a sentence.

INTENTS = ("find", "count", "exists", "where", "contents", "none")
TARGET, LANDMARK, EXCLUDED, HELD, MENTIONED = ENTITIES = ("t", "a", "x", "h", "m")
ATTRIBUTES = (
    "colour", "material", "large", "small", "tall", "short", "long", "narrow", "round", "high", "low", "rank",
    "from-left", "from-right", "leftmost", "rightmost", "left-of-all", "right-of-all", "corner", "middle", "wall",
    "middle-of-kind", "alone", "nearest-me", "farthest-me", "left-of-me", "right-of-me", "ahead-of-me", "behind-me",
    "every", "number", "any", "other", "amount",
)  # fmt: skip
RELATIONS = (
    "near", "closest", "farthest", "on", "supporting", "with", "in", "above", "below", "front", "behind", "left",
    "right", "own-left", "own-right", "across", "end", "between", "larger", "smaller", "same-colour", "within",
    "beyond",
)  # fmt: skip
WITHOUT_OTHER = ("larger", "smaller", "within", "beyond")  # "taller than two metres", "within two metres of me"
TWO_SIDED = ("between", "closest", "farthest")  # may have two landmarks: "closer to A than to B"
VIEWPOINTS = ("at", "before", "from", "away")
EVERY_NUMBER = "every-number"  # "both"
NEGATION, EXCLUSION = "neg", "excl"
PREDICATES = (
    *ATTRIBUTES, *RELATIONS, EVERY_NUMBER, *(f"speaker-{kind}" for kind in VIEWPOINTS), NEGATION, EXCLUSION,
)  # fmt: skip
KINDS = (*ENTITIES, *PREDICATES)
WITH_OTHER = (*RELATIONS, *(f"speaker-{kind}" for kind in VIEWPOINTS))
NO_ENTITY = -1  # an owner or landmark without words: the target, or the speaker


@dataclass(frozen=True)
class Entity:
    """Words [first, last) that refer to an object.

    Attributes:
        kind: one of :data:`THINGS`.
        number: of the object; entities with the same number are the same object.
    """

    first: int
    last: int
    kind: str
    number: int


@dataclass(frozen=True)
class Predicate:
    """Words [first, last) that state an attribute or a relation.

    Attributes:
        name: one of :data:`PREDICATES`.
        owner: number of the entity described; :data:`NO_ENTITY` = the target, which has no words.
        others: numbers of the landmarks of a relation.
        denied: whether it is negated.
    """

    first: int
    last: int
    name: str
    owner: int = NO_ENTITY
    others: tuple[int, ...] = ()
    denied: bool = False


@dataclass(frozen=True)
class SentenceGraph:
    """Entities and predicates of a sentence; ``probability`` that all of them are read correctly."""

    intent: str
    entities: tuple[Entity, ...] = ()
    predicates: tuple[Predicate, ...] = ()
    probability: float = 1.0


# ----------------------------------------------------------------------------------------------------------------------
# From the graph to the meaning: numbers, ordinals, lengths and colours.

_KINDS: dict[str, Kind] = {
    "find": "object", "count": "count", "exists": "exists", "where": "where", "contents": "contents", "none": "object",
}  # fmt: skip
_PRONOUNS = frozenset(
    ("it", "one", "ones", "that", "this", "them", "they", "those", "these", "thing", "things", "something", "anything",
     "everything", "which", "its", "itself", "him", "her", "stuff", "nothing", "what", "whatever", "others", "other",
     "object", "objects", "item", "items", "whichever", "some", "any", "two", "three", "there", "here", "each", "all",
     "both", "rest", "first", "second", "third", "the", "a", "an", "another", "somewhere", "place", "spot", "that's",
     "it's", "what's", "whats", "unit")
)  # fmt: skip
_WHATEVER = frozenset(
    ("thing", "things", "something", "anything", "everything", "object", "objects", "item", "items", "unit")
)
_SOMETHING = frozenset(
    ("something", "somethin", "anything", "somewhere", "anywhere", "whatever", "where", "place", "spot")
)
_FOR_SOMETHING = _SOMETHING | frozenset(  # first words of a use
    ("places", "thing", "things", "what", "one", "to", "with", "how", "which", "stuff", "any", "some", "everything",
     "the", "a")
)  # fmt: skip
_CLAUSE = frozenset(("that", "which", "you", "for", "to", "we", "i", "people", "one"))  # inside a description by a use
_LEAST_CLAUSE = 3  # words
_ENDS = frozenset((".", "?", "!", ";", "mean"))  # of the sentence before
_ONES = frozenset(("one", "ones"))
_ONE_LIKE_IT = frozenset(("one", "ones", "another", "other", "others", "rest"))
_LIKE_THE_TARGET = _ONE_LIKE_IT | word_set("articles")  # "between the red and the green one"
_SEVERAL = frozenset(
    ("ones", "them", "those", "these", "things", "everything", "others", "all", "both", "objects", "items")
)
_CLOSE = frozenset(("close", "near", "next", "to", "by", "beside"))
_REFUSALS = frozenset(("don't", "dont", "not", "doesn't", "didn't", "wouldn't", "never"))
_EXTREMES = {"closest": "closest", "nearest": "closest", "farthest": "farthest", "furthest": "farthest"}
_STATURE = frozenset(("large", "small", "tall", "short", "long", "narrow", "high", "low"))
_ORDERS = frozenset(
    ("from-left", "from-right", "leftmost", "rightmost", "closest", "farthest", "nearest-me", "farthest-me", "round")
) | _STATURE  # fmt: skip
_COUNTED_FROM = {
    "leftmost": "from-left",
    "rightmost": "from-right",
    "left-of-all": "from-left",
    "right-of-all": "from-right",
}
_UNARY = frozenset(
    ("large", "small", "tall", "short", "long", "narrow", "round", "high", "low", "from-left", "from-right", "leftmost",
     "rightmost", "left-of-all", "right-of-all", "corner", "middle", "wall", "middle-of-kind", "alone", "nearest-me",
     "farthest-me", "left-of-me", "right-of-me", "ahead-of-me", "behind-me")
)  # fmt: skip
_LOOKS = frozenset(("colour", "material"))
_OUTERMOST = frozenset(("top", "bottom", "topmost", "uppermost", "most", "very"))
_FROM_IT = 3  # most words from a noun to the landmark that a rank counts from
_OF_REACH = 4  # most words from "of" to the plural of which one is meant
_OUTRIGHT = 3.0  # weight of "the tallest"; "the tall one" has 1
_ON_THE_FLOOR_M = 0.2
_FLOORS = frozenset(("floor", "ground", "carpet"))
_WHOLE_PARTS = word_set("whole_parts")
_PARTS = word_set("parts") | _WHOLE_PARTS
_PREPOSITIONS = word_set("prepositions")
_ARTICLES = word_set("articles")
_PLAIN_ADJECTIVES = word_set("adjectives")
_MOST_BEFORE = 8  # most words from an article to its noun
_ROOMS = word_set("rooms")
_ACCESSORIES = word_set("accessories")
_SAME = 0.7  # least similarity of a label that has the meaning of a noun
_CONVERSE = {
    "on": "supporting", "supporting": "on", "above": "below", "below": "above", "left": "right", "right": "left",
    "front": "behind", "behind": "front", "in": "with", "with": "in", "near": "near", "closest": "near",
    "across": "across",
}  # fmt: skip
_THE = frozenset(("the", "this", "that"))
_SIDES_OF_ALL = frozenset(("top", "bottom", "back", "front", "edge", "side", "inside", "middle", "end"))
_IN_A_ROW = {
    "left": "leftmost", "right": "rightmost", "top": "high", "bottom": "low", "middle": "middle-of-kind",
    "higher": "high", "lower": "low",
}  # fmt: skip
_SIZE_REACH = 4  # most words from a length to the dimension that it measures
_COMPARATIVES = {"closest": "nearer", "farthest": "farther"}
_FROM = frozenset(("from", "away", "off"))
_HAVING = frozenset(("with", "has", "having"))
_COMPARED = frozenset(("larger", "smaller", "within", "beyond"))
_TO_THE_FLOOR = 4  # most words from a length to "the floor" that it is measured from
_FACING, _AT_MOST = word_set("facing"), word_set("at_most")
_TALL = frozenset(("tall", "high", "wide", "long", "deep", "broad"))
_DENIALS = frozenset(("without", "isn't", "aren't", "not", "lacking"))
_COUNTING = frozenset(("counting", "counted", "starting", "from"))
_SIDES = {"left-of-me": "left-of-all", "right-of-me": "right-of-all"}  # with a stated viewpoint
_DEPTH = 3  # levels of landmarks: "by the table under the lamp at the window"
_MOST_OF_ANCHOR, _MOST = 4, 16  # conditions of an anchor and of the target
_AXES = (
    ("height", ("tall", "high", "height", "lower", "shorter")),
    ("width", ("wid", "narrow", "broad", "diamet", "across")), ("elevation", ("floor", "ground")),
)  # fmt: skip

_Named = tuple[str, tuple[int, int], bool, bool]  # noun, span, plural, known


class Decoder:
    """Turns one graph over the words of a sentence into a meaning.

    Args:
        text, words, graph: the sentence, its corrected words, and the network's graph.
        labels: of the scene; they count as nouns.
    """

    def __init__(self, text: str, words: Sequence[Word], graph: SentenceGraph, labels: Iterable[str] = ()) -> None:
        self.text, self.words, self.labels = text, words, tuple(labels)
        graph = _with_unwanted(_apart(_repeated(_moved(graph, words, self.labels), words), words), words)
        graph = _numbered(_own_sides(_with_unread(graph, words), words), words)
        self.graph = _about_target(_with_denied(graph), words)
        in_scene = lexicon().mentions(self.words, self.labels) if self.labels else []
        self._names = [m for m in in_scene if m.last > m.first + 1 and m.noun in self.labels]
        self._nouns = self._named_entities()
        self._described: set[int] = set()
        self._meant = {t.number for t in self.graph.entities if t.kind == TARGET}
        self._target_noun = ""

    def meaning(self) -> Meaning:
        """See :class:`~embodied_perceptron.language.meaning.Meaning`."""
        graph = self.graph
        if graph.intent == "none":
            return Meaning(self.text, self._only_named(), probability=graph.probability)
        numbers = {t.number: t.kind for t in graph.entities}
        target = next((n for n, kind in numbers.items() if kind == TARGET), NO_ENTITY)
        phrase = self._target(target)
        self._target_noun = "" if phrase.noun == ANYTHING else phrase.noun
        self._described = {target}
        if phrase.noun in _ROOMS and not self._is_there(phrase.noun):
            return Meaning(self.text, None, problem=f"the {phrase.noun} is a room or a place, no object", invalid=True)
        own = [t for t in graph.predicates if t.owner in (target, NO_ENTITY) and not t.name.startswith("speaker-")]
        part, whole = phrase.noun, self._whole_of(target, own)
        if not whole:
            part, whole = self._part_before(phrase), phrase.noun
        if phrase.noun in _WHOLE_PARTS and phrase.noun not in self.labels:
            problem = f"a {phrase.noun} is a part of something; parts have no boxes of their own"
            return Meaning(self.text, None, problem=problem)
        if part and whole:
            problem = f"the {part} of the {whole} is a part of it; parts have no boxes of their own"
            return Meaning(self.text, None, problem=problem)
        owner = self._belongs_to(phrase)
        if owner:
            problem = f"there is no {phrase.noun}: it belongs to a {owner}, but is none"
            return Meaning(self.text, None, problem=problem)
        constraints = self._constraints(target, own[:_MOST], _DEPTH)
        if phrase.noun == ANYTHING and not self._says_which(target, constraints):
            return Meaning(self.text, None)
        names = {t.name for t in own if not t.denied}
        stated_number = next((t for t in own if t.name in ("number", EVERY_NUMBER)), None)
        number = self._count_before(target) if stated_number is None else cardinal(self._tokens(stated_number))
        every = "every" in names or EVERY_NUMBER in names or phrase.plural or graph.intent not in ("find",)
        any_of = "any" in names and graph.intent == "find"
        speaker = self._speaker()
        if speaker is not None and speaker.kind == "before":
            constraints = [_seen_from(c, speaker) for c in constraints]
        if graph.intent in ("count", "contents") or every:
            constraints = [self._absolute(c) for c in constraints]
        return Meaning(
            self.text,
            phrase,
            tuple(constraints),
            speaker,
            tuple(
                self._phrase(n, 0) for n, kind in numbers.items() if kind in (LANDMARK, MENTIONED) and self._nouns[n]
            ),
            kind=_KINDS[graph.intent],
            every=every,
            number=int(number) if number is not None and number > 1 and every and graph.intent == "find" else None,
            excluded=tuple(e for n, kind in numbers.items() if kind == EXCLUDED for e in self._excluded(n, phrase)),
            any_of=any_of,
            is_place=HELD in numbers.values(),
            probability=graph.probability,
            unmatched=self._unread(target),
            length=sum(t.last - t.first for t in graph.entities) + sum(t.last - t.first for t in graph.predicates),
        )

    # --------------------------------------------------------------------------------------------------- entities

    def _tokens(self, piece: Entity | Predicate) -> list[str]:
        return [w.text for w in self.words[piece.first : piece.last]]

    def _span(self, piece: Entity | Predicate) -> tuple[int, int]:
        return self.words[piece.first].start, self.words[piece.last - 1].end

    def _named_entities(self) -> dict[int, _Named | None]:
        """Entity number -> its noun phrase; None for pronouns."""
        found: dict[int, _Named | None] = {}
        ends: dict[int, int] = {}
        for entity in self.graph.entities:
            named = self._noun(entity)
            old = found.get(entity.number)
            if old is None or (named is not None and self._is_better(named, old, ends[entity.number], entity.first)):
                found[entity.number], ends[entity.number] = named, entity.last
        return found

    def _is_better(self, named: _Named, old: _Named, last: int, first: int) -> bool:
        """Whether a noun names an entity better than an earlier noun; in another sentence the later noun wins."""
        apart = not _ENDS.isdisjoint(w.text for w in self.words[last:first])
        new, before = self._fit(named), self._fit(old)
        return new > before or (apart and new == before and not old[0].endswith(named[0]))

    def _fit(self, named: _Named) -> tuple[float, bool]:
        """Best similarity of a noun to a label of the scene, and whether the noun is known."""
        return max((lexicon().similarity(named[0], label) for label in self.labels), default=0.0), named[3]

    def _noun(self, entity: Entity) -> _Named | None:
        tokens = self._tokens(entity)
        while tokens and (tokens[0] in _PRONOUNS or not tokens[0][0].isalpha()):
            tokens = tokens[1:]
        if not tokens:
            return None
        named = next((m for m in self._names if m.first <= entity.first and entity.last <= m.last), None)
        if named is not None:
            return named.noun, (self.words[named.first].start, self.words[named.last - 1].end), named.plural, True
        words = list(self.words[entity.last - len(tokens) : entity.last])
        span = words[0].start, words[-1].end
        mentions = lexicon().mentions(words, self.labels)
        head = next((m for m in mentions if m.last == len(words)), None)
        if head is not None:
            return head.noun, span, head.plural, True
        one = singular(tokens[-1])
        return " ".join([*tokens[:-1], one or tokens[-1]]), span, bool(one), False

    def _only_named(self) -> ObjectPhrase | None:
        """The noun of a sentence that has no other words: "the chair the chair"; None for other sentences."""
        named = lexicon().mentions(self.words, self.labels)
        count = sum(m.last - m.first for m in named) + sum(w.text in _ARTICLES for w in self.words)
        if len({m.noun for m in named}) != 1 or count < len(self.words):
            return None
        first = named[0]
        span = self.words[first.first].start, self.words[first.last - 1].end
        return ObjectPhrase(first.noun, span, first.plural)

    def _phrase(self, number: int, depth: int) -> ObjectPhrase:
        """The noun phrase of an entity with its constraints down to a depth; circular relations count once."""
        places = [t for t in self.graph.entities if t.number == number]
        named = self._nouns.get(number)
        predicates = [t for t in self.graph.predicates if t.owner == number and not t.name.startswith("speaker-")]
        predicates = [t for t in predicates if self._described.isdisjoint(t.others)][:_MOST_OF_ANCHOR]
        nested: tuple[Constraint, ...] = ()
        if depth > 0 and number not in self._described:
            self._described.add(number)
            nested = tuple(self._constraints(number, predicates, depth - 1))
            self._described.remove(number)
        if named is None:
            tokens = [t for p in places for t in self._tokens(p)]
            span = self._span(places[0]) if places else (0, 0)
            if self._target_noun and not _LIKE_THE_TARGET.isdisjoint(tokens):  # "the chair next to the green one"
                return ObjectPhrase(self._target_noun, span, not _SEVERAL.isdisjoint(tokens), constraints=nested)
            return ObjectPhrase(ANYTHING, span, not _SEVERAL.isdisjoint(tokens), constraints=nested)
        noun, span, plural, known = named
        return ObjectPhrase(noun, span, plural, known, nested)

    def _target(self, number: int) -> ObjectPhrase:
        """The noun phrase of the target; "one" takes the noun of the excluded entity."""
        if number == NO_ENTITY:
            return ObjectPhrase(ANYTHING, (0, 0), plural=True)
        phrase = self._phrase(number, 0)
        places = [t for t in self.graph.entities if t.number == number]
        is_noun = phrase.noun != ANYTHING and (phrase.known or self._is_there(phrase.noun))
        serves = self._serving(places, is_noun)
        tokens = {t for p in places for t in self._tokens(p)}
        if serves:
            return replace(phrase, noun=serves, known=True, plural=not tokens.isdisjoint(("things", "places")))
        if not phrase.known and places and self._tokens(places[0])[0] in _SOMETHING:  # a use that is not listed
            return replace(phrase, noun=" ".join(self._tokens(places[0])), plural=False)
        if phrase.noun == ANYTHING and not tokens & _WHATEVER:
            first = min((p.first for p in places), default=0)
            others = [t for t in self.graph.entities if t.kind == EXCLUDED]
            if tokens & _ONES:  # "facing the sinks, the left one": an earlier noun, or an unrelated landmark
                related = {o for t in self.graph.predicates for o in t.others}
                others += [t for t in reversed(self.graph.entities) if t.last <= first and t.kind != HELD]
                others += [t for t in self.graph.entities if t.number not in related and t.kind == LANDMARK]
            named = next((n for n in (self._nouns[o.number] for o in others) if n is not None), None)
            if named is not None:
                return ObjectPhrase(named[0], phrase.span, bool(tokens & _SEVERAL), named[3])
            unread = self._unread_noun(first)
            if unread:
                return ObjectPhrase(unread, phrase.span, bool(tokens & _SEVERAL))
        plural = phrase.plural and not lexicon().always_plural(phrase.noun)
        single = plural and tokens & {"one"}  # "of the two lamps the red one"
        return replace(phrase, plural=bool(plural and not single and not self._one_of_them(number)))

    def _unread_noun(self, first: int) -> str:
        """The last noun before word ``first`` outside of the graph; empty where there is none."""
        spans = [(t.first, t.last) for t in self.graph.entities] + [(t.first, t.last) for t in self.graph.predicates]
        read = {i for begin, end in spans for i in range(begin, end)}
        found = [
            m for m in lexicon().mentions(self.words[:first], self.labels) if read.isdisjoint(range(m.first, m.last))
        ]
        return found[-1].noun if found else ""

    def _serving(self, places: Sequence[Entity], known: bool) -> str:
        """The noun for a use ("something that I can sit on", "to wash my hands"); empty where none is stated.

        Words that end in a noun are a use only where they begin like one.
        """
        for place in places:
            tokens = self._tokens(place)
            if not known or (len(tokens) > 1 and (tokens[0] in _FOR_SOMETHING or not _CLAUSE.isdisjoint(tokens[1:-1]))):
                serves = serving(tokens, self.labels)
                if serves:
                    return serves
        related = any(t.others for t in self.graph.predicates if t.owner in {p.number for p in places})
        clause = any(place.last - place.first >= _LEAST_CLAUSE for place in places)
        alone = any(self._tokens(place)[0] in _SOMETHING and place.last == place.first + 1 for place in places)
        if known or related or not (alone or clause):
            return ""
        texts = [w.text for w in self.words]
        serves = serving(_sentence_around(texts, places[0]), self.labels)
        return serves or (serving(texts, self.labels) if clause else "")  # "it is raining. What should I take?"

    def _unread(self, number: int) -> tuple[str, ...]:
        """Words between article and noun of the target that the map cannot check: "the velvet chair"."""
        named = self._nouns.get(number)
        if named is None:
            return ()
        read = {i for t in self.graph.predicates if self._is_judged(t) for i in range(t.first, t.last)}
        texts = {part for word in named[0].split() for part in (word, pluralize(word))}
        last = max((k for k, w in enumerate(self.words) if w.end <= named[1][1]), default=0)
        found: list[str] = []
        for k in range(last, max(last - _MOST_BEFORE, -1), -1):
            word = self.words[k].text
            if word in _ARTICLES:
                return tuple(reversed(found))
            if k not in read and word not in texts and word not in _PLAIN_ADJECTIVES:
                found.append(word)
        return ()

    def _is_judged(self, t: Predicate) -> bool:
        """Whether a predicate becomes a condition; "shiny" or "comfy" does not."""
        return t.name != "other" and (t.name not in _LOOKS or bool(self._looks(t)))

    def _count_before(self, number: int) -> float | None:
        """The number right before a noun: "the five chairs", but not "one of the five chairs"."""
        first = next((t.first for t in self.graph.entities if t.number == number), 0)
        before = [w.text for w in self.words[max(0, first - 2) : first]]
        return cardinal(before[-1:]) if before[:1] != ["of"] and before[-1:] not in (["a"], ["an"]) else None

    def _says_which(self, number: int, constraints: Sequence[Constraint]) -> bool:
        """Whether a target without a noun is described: "anything red", "the one by the door"; not "it is red"."""
        texts = {t for p in self.graph.entities if p.number == number for t in self._tokens(p)}
        if number == NO_ENTITY or any(c.anchors for c in constraints):
            return True
        return not texts.isdisjoint(_WHATEVER) or any(
            c.amount_m and w.text in _WHATEVER for c in constraints for w in self.words
        )

    def _whole_of(self, number: int, predicates: Sequence[Predicate]) -> str:
        """The noun that the target is a part of ("the handle of the fridge"); empty where it is no part."""
        bare = {t for p in self.graph.entities if p.number == number for t in self._tokens(p)[-1:]}
        bare |= {singular(t) for t in bare}
        if not bare & _PARTS or bare & set(self.labels):
            return ""
        last = max((p.last for p in self.graph.entities if p.number == number), default=len(self.words))
        if any(t.first == last and t.name == "same-colour" for t in predicates):  # "of the same colour as"
            return ""
        behind = self.words[last : last + 1 + _MOST_BEFORE]
        whole = lexicon().mentions(behind[1:], self.labels) if [w.text for w in behind[:1]] == ["of"] else []
        return whole[0].noun if whole else ""

    def _part_before(self, phrase: ObjectPhrase) -> str:
        """The part asked for ("the edge of the table") where the target is read as the whole; empty without a part, and
        for a place: "on top of the table"."""
        before = [w.text for w in self.words if w.end <= phrase.span[0]]
        first = len(before)
        of = next((k for k in range(first - 1, max(first - _OF_REACH, 1) - 1, -1) if before[k] == "of"), 0)
        part = singular(before[of - 1]) or before[of - 1] if of else ""
        if of < 2 or part not in _PARTS | _SIDES_OF_ALL or before[of - 2] not in _THE:
            return ""
        plural = any(n is not None and n[1] == phrase.span and n[2] for n in self._nouns.values())
        if plural and before[of - 1] in _IN_A_ROW:
            return ""
        leads = before[of - 3] if of >= 3 else ""
        return "" if leads in _PREPOSITIONS or before[of - 1] in self.labels else before[of - 1]

    def _belongs_to(self, phrase: ObjectPhrase) -> str:
        """The owner in the name of an unknown accessory, "bottle" of a "bottle opener"; else empty."""
        *owner, head = phrase.noun.split()
        unknown = not phrase.known and head in _ACCESSORIES and not (self._is_there(head) or _SOMETHING & set(owner))
        return " ".join(owner) if unknown else ""

    def _one_of_them(self, number: int) -> bool:
        """Whether one of several is chosen: "the left of the two monitors"."""
        picks = ("leftmost", "rightmost", "left-of-all", "right-of-all", "rank", "middle-of-kind")
        own = [t for t in self.graph.predicates if t.owner == number]
        if any(t.name == "every" for t in own):
            return False
        return any(t.name in picks or self._is_best(t) for t in own) or self._is_of_several(number)

    def _is_best(self, t: Predicate) -> bool:
        """Whether a predicate is an explicit superlative: "the tallest", "the top shelf"."""
        return t.name in _STATURE and any(w.endswith("est") or w in _OUTERMOST for w in self._tokens(t))

    def _is_of_several(self, number: int) -> bool:
        """Whether a plural names a set of which one is meant: "of the two lamps", "one of the chairs"."""
        first = min((t.first for t in self.graph.entities if t.number == number), default=0)
        before = [w.text for w in self.words[max(0, first - _OF_REACH) : first]]
        predicates = any(
            t.owner == number
            and t.name in ("every", "number", EVERY_NUMBER)
            and t.first + 1 < first
            and self.words[t.last].text == "of"
            for t in self.graph.predicates
        )
        return "of" in before and not predicates

    def _excluded(self, number: int, target: ObjectPhrase) -> list[Meaning]:
        """Meanings of an excluded entity: two for two colours, "neither the red nor the blue one"."""
        phrase = self._phrase(number, 0)
        if phrase.noun == ANYTHING:
            phrase = replace(target, span=phrase.span, plural=phrase.plural)
        predicates = [t for t in self.graph.predicates if t.owner == number and self._meant.isdisjoint(t.others)]
        predicates = [
            replace(t, denied=False) if t.name in _LOOKS else t for t in predicates
        ]  # "I don't want the red one"
        constraints = self._constraints(number, predicates[:_MOST_OF_ANCHOR], _DEPTH)
        colours = [c for c in constraints if c.relation == "colour"] if len(predicates) > 1 else []
        apart = len({t.first for t in predicates if t.name == "colour"}) > 1
        groups = (
            [[c for c in constraints if c == one or c not in colours] for one in colours] if apart else [constraints]
        )
        return [Meaning(self.text, phrase, tuple(group)) for group in groups]

    def _speaker(self) -> SpeakerViewpoint | None:
        for t in self.graph.predicates:
            if not t.name.startswith("speaker-"):
                continue
            kind = t.name.removeprefix("speaker-")
            if kind == "from" and set(t.others) <= self._meant:  # "entering the room"
                return SpeakerViewpoint(kind, ObjectPhrase("door", self._span(t)))
            if kind == "at" and t.first == 0:  # "facing the couch, ..."
                kind = "before"
            phrase = self._phrase(t.others[0], 0) if t.others else None
            if phrase is not None and phrase.noun != ANYTHING:
                return SpeakerViewpoint(kind, phrase)
        return None

    # ----------------------------------------------------------------------------------------------------- conditions

    def _constraints(self, number: int, predicates: Sequence[Predicate], depth: int) -> list[Constraint]:
        """Constraints from the predicates of one entity."""
        amounts = self._amounts(predicates)
        ranks = [r for t in predicates if t.name == "rank" and (r := ordinal(self._tokens(t))) is not None]
        rank = ranks[0] if ranks else None
        found: list[Constraint] = []
        for t in predicates:
            if t.name in ("colour", "material"):
                found += self._looks(t)
            elif t.name in _UNARY:
                weight = _OUTRIGHT if self._is_best(t) else 1.0
                name = _SIDES.get(t.name, t.name) if self._speaker() is not None else t.name
                found.append(Constraint(name, negated=t.denied, weight=weight, span=self._span(t)))
            elif t.name in RELATIONS:
                found += self._relation(number, t, amounts, depth)
        if not any(t.name in _COMPARED for t in predicates):
            found += self._measured(amounts)
        if rank is not None:
            found = _ranked(found, rank, self._span(next(t for t in predicates if t.name == "rank")))
        found = _without(found)
        unique: dict[tuple[str, tuple[ObjectPhrase, ...], str], Constraint] = {}
        for c in found:
            unique.setdefault((c.relation, c.anchors, c.value), c)
        return list(unique.values())

    def _amounts(self, predicates: Sequence[Predicate]) -> list[Predicate]:
        """Lengths extended to all of their words: "one [and a half metres]"."""
        found: list[Predicate] = []
        for t in (t for t in predicates if t.name == "amount"):
            first, last = t.first, t.last
            while first and self.words[first].text in ("a", "and", "half") and self._is_of_length(first - 1):
                first -= 1
            while last < len(self.words) and self._is_of_length(last):
                last += 1
            if not found or first >= found[-1].last:
                found.append(replace(t, first=first, last=last))
        return found

    def _is_of_length(self, i: int) -> bool:
        word = self.words[i].text
        if i and any(word.startswith(unit) for unit, _ in UNITS) and cardinal([self.words[i - 1].text]) is not None:
            return True  # "30" without its "centimetres"
        return word in ("and", "half") or (word not in ("a", "an") and cardinal([word]) is not None)

    def _measured(self, amounts: Sequence[Predicate]) -> list[Constraint]:
        """Sizes without "more" or "less": "ninety centimetres high", "its height is two metres"."""
        found = []
        for t in amounts:
            amount = metres(self._tokens(t))
            if amount is not None:
                beside = " ".join(w.text for w in self.words[max(0, t.first - _SIZE_REACH) : t.last + _SIZE_REACH])
                axis = next((axis for axis, names in _AXES if any(n in beside for n in names)), "")
                found.append(Constraint("measured", value=axis, span=self._span(t), amount_m=amount))
        return found

    def _looks(self, t: Predicate) -> list[Constraint]:
        table, span = relation_words(), self._span(t)
        tokens = [part for token in self._tokens(t) for part in (token, *token.split("-"))]
        if t.name == "material":
            found = [token for token in tokens if token in table.materials][:1]
            return [Constraint("material", value=value, negated=t.denied, span=span) for value in found]
        values = dict.fromkeys(table.colours[token] for token in tokens if token in table.colours)
        return [Constraint("colour", value=value, negated=t.denied, span=span) for value in values]

    def _relation(self, number: int, t: Predicate, amounts: Sequence[Predicate], depth: int) -> list[Constraint]:
        span, name = self._span(t), self._relation_name(t)
        tokens = self._tokens(t)
        if not _DENIALS.isdisjoint(tokens) and "far" not in tokens:  # "without": relation and negation in one word
            t = replace(t, denied=True)
        ranked = any(r.name == "rank" and r.owner == number for r in self.graph.predicates)
        if t.others and ranked and _COUNTING.issuperset(self._tokens(t)):
            name = "closest"  # "the second one, counting from the door"
        amount = next((m for a in amounts if (m := metres(self._tokens(a))) is not None), None)
        texts = " ".join(w for a in (t, *amounts) for w in self._tokens(a))
        after = [w.text for a in amounts for w in self.words[a.last : a.last + 1]]
        behind = {w.text for a in amounts for w in self.words[a.last : a.last + _TO_THE_FLOOR]}
        if name in _COMPARED and amount is not None:
            to_floor = not behind.isdisjoint(_FLOORS)  # "more than a metre off the floor"
            if t.others and not to_floor:  # "more than two metres from the desk"
                name = {"larger": "beyond", "smaller": "within"}.get(name, name)
            elif to_floor:
                t, name = replace(t, others=()), {"beyond": "larger", "within": "smaller"}.get(name, name)
                texts += " floor"
        if name in ("within", "beyond") and not t.others and not _TALL.isdisjoint(after):
            name, texts = (
                ("smaller" if name == "within" else "larger"),
                f"{texts} {after[0]}",
            )  # "less than 3 feet tall"
        if name in ("larger", "smaller") and not t.others:
            texts += "".join(f" {word}" for word in after if word in _TALL)
            if amount is None:
                return []
            axis = next((axis for axis, names in _AXES if any(n in texts for n in names)), "length")
            if any(n in texts for n in ("floor", "ground")):
                axis = "elevation"
            return [Constraint(name, value=axis, negated=t.denied, span=span, amount_m=amount)]
        anchors = tuple(self._phrase(o, depth) for o in t.others if o != number)
        anchors = tuple(
            a for a in anchors if not (name == "with" and a.noun in _PARTS and a.noun not in self.labels)
        )  # parts have no boxes
        if name == "within" and amount is not None and anchors and self._is_distance(t, amounts):
            return [Constraint("distance", anchors, negated=t.denied, span=span, amount_m=amount)]
        if name in ("within", "beyond"):
            if amount is None:
                return [Constraint("near" if name == "within" else "farthest", anchors, span=span)] if anchors else []
            return [Constraint(name, anchors, negated=t.denied, span=span, amount_m=amount)]
        if not anchors:
            return []
        if name in ("larger", "smaller"):
            axis = next((axis for axis, names in _AXES if any(n in texts for n in names)), "")
            return [Constraint(name, anchors, value=axis, span=span, negated=t.denied)]
        if name in ("on", "near") and anchors[0].noun in _FLOORS and not self._is_there(anchors[0].noun):
            return [Constraint("smaller", value="elevation", span=span, amount_m=_ON_THE_FLOOR_M, negated=t.denied)]
        if name in ("on", "near") and anchors[0].noun == "wall":
            return [Constraint("wall", span=span, negated=t.denied)]
        if len(anchors) == 2:
            name = _COMPARATIVES.get(name, name)  # "closer to the sink than to the door"
        if name in ("between", *_COMPARATIVES.values()) or len(anchors) == 1:
            return [Constraint(name, anchors, negated=t.denied, span=span)]
        return [Constraint(name, (anchor,), negated=t.denied, span=span) for anchor in anchors]

    def _relation_name(self, t: Predicate) -> str:
        """Name of the relation, or "near" for weaker words: "close to" is not closest, "from the bench" not on it."""
        tokens = self._tokens(t)
        from_it = [w.text for w in self.words[t.last : t.last + 1]] == ["it"]  # refers to the entity just described
        if t.name in ("front", "across") and t.others and not _FACING.isdisjoint(tokens):
            behind = any(e.number == t.others[0] and e.first >= t.last for e in self.graph.entities)
            return "facing" if behind else "pointed-at"  # "that faces the sink", "that the sink faces"
        less = (t.name == "closest" and _CLOSE.issuperset(tokens)) or (
            t.name in ("on", "in") and tokens == ["from"] and not from_it
        )
        return "near" if less else t.name

    def _is_distance(self, t: Predicate, amounts: Sequence[Predicate]) -> bool:
        """Whether a length is the distance itself, no limit: "two metres from the door", not "within two metres"."""
        first = min(a.first for a in (t, *amounts))
        words = [w.text for w in self.words[max(0, first - 2) : t.last]]
        return _AT_MOST.isdisjoint(words) and not _FROM.isdisjoint(self._tokens(t))

    def _is_there(self, noun: str) -> bool:
        return any(lexicon().similarity(noun, label) >= _SAME for label in self.labels)

    def _absolute(self, c: Constraint) -> Constraint:
        """ "How many baskets stand on the floor": all on the floor, not the lowest one."""
        behind = [w.text for w in self.words if c.span[0] <= w.start][:_SIZE_REACH]
        if c.relation != "low" or _FLOORS.isdisjoint(behind):
            return c
        return replace(c, relation="smaller", value="elevation", amount_m=_ON_THE_FLOOR_M)


def _seen_from(c: Constraint, speaker: SpeakerViewpoint) -> Constraint:
    """ "Facing the couch, the lamp on the left": left of the couch, seen by a viewer who faces it."""
    if c.relation not in ("left-of-all", "right-of-all"):
        return c
    return replace(c, relation=f"viewer-{c.relation.removesuffix('-of-all')}", anchors=(speaker.anchor,))


def _sentence_around(texts: Sequence[str], place: Entity) -> Sequence[str]:
    """The words of the sentence that contains an entity."""
    ends = [k for k, word in enumerate(texts) if word in _ENDS and word != "mean"]
    first = max((k + 1 for k in ends if k < place.first), default=0)
    return texts[first : min((k for k in ends if k >= place.last), default=len(texts))]


def _moved(graph: SentenceGraph, words: Sequence[Word], labels: Sequence[str]) -> SentenceGraph:
    """Make the object that an order moves the target, where the scene has one: "wheel the stool to the desk"."""
    held = [t for t in graph.entities if t.kind == HELD]
    place = [t for t in graph.entities if t.kind == TARGET]
    if len(held) != 1 or len(place) != 1 or not held[0].last < place[0].first:
        return graph
    if [w.text for w in words[: held[0].first]][-1:] != ["the"]:
        return graph
    texts = lexicon().mentions(words[held[0].first : held[0].last], labels)
    if labels and not any(lexicon().similarity(m.noun, label) >= _SAME for m in texts for label in labels):
        return graph
    predicates = tuple(t for t in graph.predicates if t.owner == held[0].number)
    return replace(graph, entities=(replace(held[0], kind=TARGET),), predicates=predicates)


def _apart(graph: SentenceGraph, words: Sequence[Word]) -> SentenceGraph:
    """Split an entity related to itself: "an office chair. it is left of the chair" names two chairs."""
    entities, predicates = list(graph.entities), list(graph.predicates)
    for k, t in enumerate(predicates):
        if t.name not in RELATIONS or t.others or t.owner == NO_ENTITY:
            continue
        behind = next((i for i, o in enumerate(entities) if o.number == t.owner and o.first == t.last + 1), None)
        if behind is None or words[t.last].text not in _ARTICLES or entities[behind].first == entities[0].first:
            continue
        number = 1 + max(o.number for o in entities)
        entities[behind] = replace(entities[behind], kind=LANDMARK, number=number)
        predicates[k] = replace(t, others=(number,))
    return replace(graph, entities=tuple(entities), predicates=tuple(predicates))


def _repeated(graph: SentenceGraph, words: Sequence[Word]) -> SentenceGraph:
    """Join the target with its introduction in an earlier sentence: "I left a lamp there. I want the lamp"."""
    target = next((t for t in graph.entities if t.kind == TARGET), None)
    if target is None:
        return graph
    texts = [w.text for w in words]
    for t in graph.entities:
        again = (
            t.kind == LANDMARK
            and t.last < target.first
            and texts[t.first : t.last] == texts[target.first : target.last]
        )
        if (
            again
            and texts[t.first - 1 : t.first] in (["a"], ["an"])
            and not _ENDS.isdisjoint(texts[t.last : target.first])
        ):
            entities = tuple(replace(o, number=target.number) if o.number == t.number else o for o in graph.entities)
            predicates = (r for r in graph.predicates if t.number not in r.others)
            predicates = (replace(r, owner=target.number) if r.owner == t.number else r for r in predicates)
            return replace(graph, entities=entities, predicates=tuple(predicates))
    return graph


def _with_unwanted(graph: SentenceGraph, words: Sequence[Word]) -> SentenceGraph:
    """Exclude an unwanted entity: "I don't want the pink hair dryer, give me the other one"."""
    texts = [w.text for w in words]
    target = next((t for t in graph.entities if t.kind == TARGET), None)
    if graph.intent != "find" or target is None or any(t.kind == EXCLUDED for t in graph.entities):
        return graph
    other = next(
        (k for k in range(target.last, len(texts)) if texts[k] in _ONE_LIKE_IT and texts[k] not in _ONES), None
    )
    wanted = next((k for k in range(target.first - 1, 0, -1) if texts[k] in ("want", "need", "like")), None)
    if other is None or wanted is None or target.first - wanted > _MOST_BEFORE or texts[wanted - 1] not in _REFUSALS:
        return graph
    last = other + 2 if texts[other + 1 : other + 2] == ["one"] else other + 1
    entities = [
        replace(t, kind=EXCLUDED) if t.number == target.number and t.last <= other else t for t in graph.entities
    ]
    entities = [t for t in entities if t.first >= last or t.last <= other]
    new = Entity(other, last, TARGET, 1 + max(t.number for t in graph.entities))
    return replace(graph, entities=tuple(sorted((*entities, new), key=lambda t: t.first)))


def _with_unread(graph: SentenceGraph, words: Sequence[Word]) -> SentenceGraph:
    """Add predicates that plain words next to the target state and the network missed."""
    target = next((t.number for t in graph.entities if t.kind == TARGET), None)
    if target is None:
        return graph
    texts = [w.text for w in words]
    predicates = [t for t in graph.predicates if not (t.name in _ORDERS and texts[t.first : t.last] == ["most"])]
    for k, t in enumerate(predicates):  # "most tall": the tallest; "left to right": from the left
        if t.name in ("from-left", "from-right") and texts[t.first + 1 : t.first + 3] in (
            ["to", "right"],
            ["to", "left"],
        ):
            predicates[k] = replace(t, name=f"from-{texts[t.first]}")
        if t.name in _STATURE and texts[t.first - 1 : t.first] == ["most"]:
            predicates[k] = replace(t, first=t.first - 1)
    spans = [(t.first, t.last) for t in graph.entities] + [(t.first, t.last) for t in predicates]
    read = {i for first, last in spans for i in range(first, last)}
    names = {t.name for t in predicates if t.owner in (target, NO_ENTITY)}
    related = {n for t in predicates if t.others for n in (t.owner, *t.others)}
    for a in (t for t in graph.entities if t.kind == LANDMARK and t.number not in related):
        k = a.first - 1
        while k > 0 and (texts[k] in _ARTICLES or k in read):
            k -= 1
        owner = next((t.number for t in graph.entities if t.last == k), None)
        lacks = "no" in texts[k : a.first] or any(t.name == NEGATION and k < t.first < a.first for t in predicates)
        if k > 0 and texts[k] in _HAVING and owner is not None and not lacks:  # "the table with a lamp"
            predicates.append(Predicate(k, k + 1, "with", owner, (a.number,)))
    for k in range(1, len(texts)):
        before = max((t for t in graph.entities if t.last <= k), key=lambda t: t.last, default=None)
        if before is None or before.number != target:
            continue
        bare = texts[k + 1 : k + 2] in ([], ["."], ["!"], ["?"])
        if bare and k not in read and texts[k - 1] == "the" and "rank" not in names and ordinal([texts[k]]) is not None:
            predicates.append(Predicate(k, k + 1, "rank", target))  # "take the third"
        elif texts[k : k + 3] in (["left", "to", "right"], ["right", "to", "left"]) and not names & _ORDERS:
            predicates.append(Predicate(k, k + 1, f"from-{texts[k]}", target))
        elif texts[k] == "on" and texts[k + 2 : k + 3] and texts[k + 2] in _FLOORS and not read & {k, k + 1, k + 2}:
            predicates.append(Predicate(k, k + 3, "low", target))
    counts = graph.intent == "find" and ("how", "many") in pairwise(texts)  # "black chair, have how many?"
    return replace(graph, intent="count" if counts else graph.intent, predicates=tuple(predicates))


def _own_sides(graph: SentenceGraph, words: Sequence[Word]) -> SentenceGraph:
    """Read "on the couch's left" as the couch's own side, independent of the speaker's viewpoint."""
    owner = next((k for k, w in enumerate(words) if w.end - w.start > len(w.text)), None)
    behind = [] if owner is None else [w.text for w in words[owner + 1 : owner + 3]]
    side = next((name for name in behind[: 1 + (behind[:1] == ["own"])] if name in ("left", "right")), "")
    target = next((t.number for t in graph.entities if t.kind == TARGET and not t.first <= (owner or 0) < t.last), None)
    if (
        owner is None
        or not side
        or target is None
        or not _PARTS.isdisjoint(w.text for w in words[owner + 2 : owner + 4])
    ):
        return graph  # "the table's left leg" is no side
    entities = [t for t in graph.entities if not t.first <= owner < t.last]
    number = 1 + max(t.number for t in graph.entities)
    end = owner + 2 + behind.index(side)
    predicates = [
        t for t in graph.predicates if (t.last <= owner or t.first >= end) and t.last != owner - 1
    ]  # words of this relation
    predicates.append(Predicate(owner + 1, owner + 1 + len(behind), f"own-{side}", target, (number,)))
    return replace(
        graph, entities=(*entities, Entity(owner, owner + 1, LANDMARK, number)), predicates=tuple(predicates)
    )


def _numbered(graph: SentenceGraph, words: Sequence[Word]) -> SentenceGraph:
    """Add the rank of "chair number five", and the order of "the third chair from the door"."""
    predicates = list(graph.predicates)
    related = {o for t in predicates for o in t.others}
    ranked = {t.owner for t in predicates if t.name == "rank"}
    for k, r in enumerate(predicates):  # "the fourth closest chair to the table"
        alone = r.name in ("rank", "nearest-me", "farthest-me") and r.last == r.first + 1
        order = _EXTREMES.get(words[r.first].text, "") if alone else ""
        free = next((t for t in graph.entities if t.kind == LANDMARK and t.number not in related), None)
        if order and free is not None:
            predicates[k] = replace(r, name=order, others=(free.number,))
            related.add(free.number)
    for t in graph.entities:
        texts = [w.text for w in words[t.last : t.last + 2]]
        if (
            texts[:1] == ["number"]
            and ordinal(texts[1:]) is not None
            and not any(r.first == t.last for r in predicates)
        ):
            predicates.append(Predicate(t.last, t.last + 2, "rank", t.number))
        behind = next((a for a in graph.entities if 1 <= a.first - t.last <= _FROM_IT), None)
        if texts[:1] == ["from"] and t.number in ranked and behind is not None and behind.number not in related:
            predicates.append(Predicate(t.last, t.last + 1, "closest", t.number, (behind.number,)))
    return replace(graph, predicates=tuple(predicates))


def _about_target(graph: SentenceGraph, words: Sequence[Word]) -> SentenceGraph:
    """Reverse relations so that they lead from the target to its landmarks: "a lamp is on it", "at the desk that has a
    book on it". Landmarks with the target's noun stay: they may be the target."""
    links = [(t.owner, o) for t in graph.predicates for o in t.others if not t.name.startswith("speaker-")]
    texts: dict[int | str, set[str]] = defaultdict(set)
    for entity in graph.entities:
        for key in (entity.kind, entity.number):
            texts[key].update(w.text for w in words[entity.first : entity.last])
    steps = {t.number: 0 for t in graph.entities if t.kind in (TARGET, EXCLUDED)} | {NO_ENTITY: 0}
    for step in range(1, 1 + len(links)):
        near = {b for pair in links for a, b in (pair, pair[::-1]) if steps.get(a) == step - 1}
        steps.update(dict.fromkeys(near - steps.keys(), step))

    def turned(t: Predicate) -> Predicate:
        away = len(t.others) == 1 and t.name in _CONVERSE and steps.get(t.others[0], 0) < steps.get(t.owner, 0)
        if away and steps[t.owner] > 1 and not texts[TARGET].isdisjoint(texts[t.owner]):
            return t
        return replace(t, name=_CONVERSE[t.name], owner=t.others[0], others=(t.owner,)) if away else t

    return replace(graph, predicates=tuple(turned(t) for t in graph.predicates))


def _with_denied(graph: SentenceGraph) -> SentenceGraph:
    """Negate the predicate after a negation where the network negated none: "not white"."""
    words = [t for t in graph.predicates if t.name == NEGATION]
    if not words or any(t.denied for t in graph.predicates):
        return graph
    predicates = list(graph.predicates)
    related = {o for t in predicates for o in t.others}
    target = next((t.number for t in graph.entities if t.kind == TARGET), NO_ENTITY)
    for word in words:
        lacks = next((t for t in graph.entities if t.first == word.last and t.kind == LANDMARK), None)
        if lacks is not None and lacks.number not in related:  # "that has no book"
            predicates.append(replace(word, name="with", owner=target, others=(lacks.number,), denied=True))
            continue
        after = [t for t in predicates if t.first >= word.last and (t.name in RELATIONS or t.name in _UNARY | _LOOKS)]
        if after:
            k = predicates.index(min(after, key=lambda t: t.first))
            predicates[k] = replace(predicates[k], denied=True)
    return replace(graph, predicates=tuple(predicates))


def _without(found: list[Constraint]) -> list[Constraint]:
    """ "Without a lamp on it": negate the more specific relation to the same landmark, and drop "with"."""
    gone = {a.span: c for c in found if c.negated and c.relation == "with" for a in c.anchors}
    beside = {a.span for c in found if c.relation != "with" for a in c.anchors if a.span in gone}
    kept = [c for c in found if not (c.relation == "with" and any(a.span in beside for a in c.anchors))]
    return [replace(c, negated=True) if any(a.span in beside for a in c.anchors) else c for c in kept]


def _ranked(found: list[Constraint], rank: int, span: tuple[int, int]) -> list[Constraint]:
    """Give an ordinal to the nearest order in the sentence, or to the default order."""
    orders = [k for k, c in enumerate(found) if c.relation in _ORDERS or c.relation in _COUNTED_FROM]
    if not orders:
        return [*found, Constraint("nth", rank=rank, span=span)] if rank > 1 else found
    k = min(orders, key=lambda k: abs(found[k].span[0] - span[1]))
    c = found[k]
    relation = _COUNTED_FROM.get(c.relation, c.relation)
    if rank == -1:  # the last from the left is the first from the right
        relation = {"from-left": "from-right", "from-right": "from-left"}.get(relation, relation)
        rank = 1
    return [*found[:k], replace(c, relation=relation, rank=rank), *found[k + 1 :]]
