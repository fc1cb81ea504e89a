"""The typed meaning of a sentence: which object is meant, and what must hold of it.

"the chair left of the red sofa"
  target       chair
  constraints  left(couch[colour red])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["object", "exists", "where", "count", "contents"]
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
ANYTHING = "anything"  # the noun of whatever there is: "what is on the table", "something taller than a metre"


@dataclass(frozen=True)
class Constraint:
    """One condition on an object.

    Attributes:
        relation: a name of :data:`embodied_perceptron.language.relations.SCORERS`.
        anchors: the other objects of the relation; two or more for "between", none for properties of the object.
        value: a colour or substance; "" otherwise.
        rank: which one, of "the second from the left"; 1 = the first.
        negated: it must not hold.
        weight: how sure the reading is, in (0, 1]; more where a superlative says it outright.
        span: characters [start, end) of its words.
        amount_m: a length that the sentence states, metres.
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
        """Whether it compares candidates with each other."""
        return self.relation in SUPERLATIVES

    @property
    def is_view_dependent(self) -> bool:
        """Whether who speaks may matter."""
        return self.relation in VIEW_RELATIONS


@dataclass(frozen=True)
class ObjectPhrase:
    """Words that stand for an object.

    Attributes:
        noun: in singular, as the lexicon has it.
        span: characters [start, end) of the noun.
        plural: whether it stands in plural.
        known: whether the lexicon, or a label of the scene, has the noun.
        constraints: on an anchor; those on the target are :attr:`Meaning.constraints`.
    """

    noun: str
    span: Span
    plural: bool = False
    known: bool = True
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True)
class SpeakerViewpoint:
    """Where the sentence says that somebody stands.

    Attributes:
        kind: "at" (looks at the anchor), "before" (stands before its front and looks at it), "from" (stands there and
            looks into the room), "away" (with the back to it).
        anchor: "door" when the sentence speaks of entering.
    """

    kind: str
    anchor: ObjectPhrase


@dataclass(frozen=True)
class Meaning:
    """The typed meaning of a sentence.

    Attributes:
        text: the sentence.
        target: the object that is meant, or None when none is named.
        constraints: on the target.
        speaker: the viewpoint that the sentence states, or None.
        mentioned: all other objects that the sentence names; weak evidence: they are likely near.
        unmatched: words of the sentence that may name something and that nobody read.
        kind: "object", or of a question "exists", "where", "count", "contents".
        every: all objects are meant that fit, not one.
        number: so many are meant, or None.
        excluded: meanings of what is not meant ("other than the red one").
        any_of: one of those that fit will do, whichever.
        is_place: it is only the place of something that is not on the map.
        length: how many words describe it.
        problem: why the sentence cannot be answered or is known to name no object; else empty.
        invalid: the problem is the sentence's, not the scene's.
        probability: that the sentence is read right; 1 = the reader does not say.
        others: what else it may mean, where that is not out of the question, likelier ones first.
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

    @property
    def is_view_dependent(self) -> bool:
        """Whether the answer may depend on who speaks."""
        return any(c.is_view_dependent for c in self.constraints)
