"""What a sentence says, as a graph over its words: things, and what is told of them.

The network (:mod:`~embodied_perceptron.nn.sentence_network`) draws it, the corpus holds it marked in sentences, and
:mod:`.decoding` makes a :class:`~embodied_perceptron.language.meaning.Meaning` of it.
"""

from __future__ import annotations

from dataclasses import dataclass

INTENTS = ("find", "count", "exists", "where", "contents", "none")
TARGET, LANDMARK, EXCLUDED, HELD, MENTIONED = THINGS = ("t", "a", "x", "h", "m")
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
VIEWPOINTS = ("at", "before", "from", "away")
EVERY_NUMBER = "every-number"  # "both"
NEGATION, EXCLUSION = "neg", "excl"
TOLD = (
    *ATTRIBUTES, *RELATIONS, EVERY_NUMBER, *(f"speaker-{kind}" for kind in VIEWPOINTS), NEGATION, EXCLUSION,
)  # fmt: skip
KINDS = (*THINGS, *TOLD)
WITH_OTHER = (*RELATIONS, *(f"speaker-{kind}" for kind in VIEWPOINTS))
NOBODY = -1  # the owner or other thing that has no words: what is asked for, or who speaks


@dataclass(frozen=True)
class Thing:
    """Words [first, last) that stand for a thing.

    Attributes:
        kind: one of :data:`THINGS`.
        number: which thing; several words with the same number mean the same one.
    """

    first: int
    last: int
    kind: str
    number: int


@dataclass(frozen=True)
class Told:
    """Words [first, last) that tell something of a thing.

    Attributes:
        name: one of :data:`TOLD`.
        owner: the number of the thing; :data:`NOBODY` = of what is asked for and has no words.
        others: numbers of the other things of a relation.
        denied: that it does not hold.
    """

    first: int
    last: int
    name: str
    owner: int = NOBODY
    others: tuple[int, ...] = ()
    denied: bool = False


@dataclass(frozen=True)
class SentenceGraph:
    """What is told of which things; ``probability`` that all of it is read right."""

    intent: str
    things: tuple[Thing, ...] = ()
    told: tuple[Told, ...] = ()
    probability: float = 1.0
