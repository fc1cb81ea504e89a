"""A sentence and its typed meaning: what is meant, and what must hold of it.

    parse("the chair left of the red sofa")
      target       chair
      constraints  left(couch[colour red])

The reading is shallow and never fails: words that it cannot place are named in ``Meaning.unmatched``. It takes well
under a millisecond, knows no object and no geometry; :mod:`~embodied_perceptron.scene.grounding` brings both together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Span = tuple[int, int]

# relations that choose among the objects that satisfy everything else
SUPERLATIVES = frozenset(
    (
        "closest", "farthest", "leftmost", "rightmost", "left-of-all", "right-of-all", "from-left", "from-right",
        "large", "small", "tall", "short", "long", "narrow", "round", "high", "low", "alone", "corner", "middle",
        "wall",
    )
)  # fmt: skip
VIEW_RELATIONS = frozenset(
    (
        "left", "right", "front", "behind", "viewer-left", "viewer-right", "leftmost", "rightmost", "left-of-all",
        "right-of-all", "from-left", "from-right",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Constraint:
    """One thing that is said of an object.

    Attributes:
        relation: a name of :data:`embodied_perceptron.scene.relations.SCORERS`.
        anchors: the objects that it is told by; two or more for "between", none for what is said of the object alone.
        value: a colour or substance; "" otherwise.
        rank: which one, of "the second from the left"; 1 = the first.
        negated: it must not hold.
        weight: how sure the reading is, in (0, 1].
        span: characters [start, end) that say so.
    """

    relation: str
    anchors: tuple[ObjectPhrase, ...] = ()
    value: str = ""
    rank: int = 1
    negated: bool = False
    weight: float = 1.0
    span: Span = (0, 0)

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
        constraints: what is said of it (of anchors; those of the target are :attr:`Meaning.constraints`).
    """

    noun: str
    span: Span
    plural: bool = False
    known: bool = True
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True)
class Outlook:
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
    """What a sentence says.

    Attributes:
        text: the sentence.
        target: what is meant, or None when no object is named.
        constraints: what must hold of it.
        outlook: an explicit point of view, or None.
        mentioned: all other objects that the sentence names; weak evidence: they are likely near.
        unmatched: words of the sentence that may matter and were not understood.
    """

    text: str
    target: ObjectPhrase | None
    constraints: tuple[Constraint, ...] = ()
    outlook: Outlook | None = None
    mentioned: tuple[ObjectPhrase, ...] = ()
    unmatched: tuple[str, ...] = ()

    @property
    def is_view_dependent(self) -> bool:
        """Whether the answer may depend on who speaks."""
        return any(c.is_view_dependent for c in self.constraints)


def parse(text: str, labels: Iterable[str] = ()) -> Meaning:
    """The meaning of ``text``, which :func:`~embodied_perceptron.scene.query.query_problem` has nothing against.

    ``labels`` of the scene count as nouns beside the lexicon's. Never raises for any text.
    """
    from embodied_perceptron.scene.idioms import read_idiom
    from embodied_perceptron.scene.reading import Reader

    return read_idiom(text, labels) or Reader(text, labels).meaning()
