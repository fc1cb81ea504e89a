"""The typed meaning of a sentence: which object is meant, and what must hold of it.

"the chair left of the red sofa"
  target       chair
  constraints  left(couch[colour red])

The reader (:mod:`.query`) draws a :class:`SentenceGraph` over the words; :class:`~.decoding.Decoder` turns it into a
:class:`Meaning`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
        "left", "right", "front", "behind", "leftmost", "rightmost", "left-of-all",
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
        among: size of the group in which an order counts ("the row of four chairs, second from the left"), or None.
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
    among: int | None = None
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
