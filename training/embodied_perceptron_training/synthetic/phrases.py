"""Words: how a relation is said, plainly and freely.

Plain forms follow the benchmark's templates. Free forms say the same without the relation's usual words, as people do;
a parser with a table of relation words cannot read them, so a learned grounder has something to learn.
"""

from __future__ import annotations

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

JOIN: tuple[str, ...] = (
    "{first}, and it is {second}",
    "{first}; it is also {second}",
    "{first} and {second}",
)

# The second half of a complex prompt, said of "it".
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

# One of these as a token makes a prompt view dependent (the benchmark's rule).
VIEW_WORDS = frozenset(
    ("front", "behind", "back", "left", "right", "facing", "leftmost", "rightmost", "looking", "across")
)


def plural(noun: str) -> str:
    """English plural of a category name, good enough for templates."""
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
    """The benchmark's rule: one of the view words stands in the text."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return not VIEW_WORDS.isdisjoint(words)
