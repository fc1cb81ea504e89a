"""Paraphrases of relations: verb phrases, inversions, passives, relative clauses, conditions.

The patterns differ from those of the prompts and of the calibration sentences. The parser is fitted to patterns at even
indices and to none at odd ones (:data:`TUNED`,
:data:`HELD_OUT`); ``benchmarks/language.py`` prints both.
"""

from __future__ import annotations

PARAPHRASES: dict[str, tuple[str, ...]] = {
    "closest": (
        "the {target} which neighbours the {anchor}",
        "go past the {anchor} and stop at the first {target}",
        "right by the {anchor} there is a {target}, take that one",
        "the {anchor} has a {target} at its side, bring it to me",
        "you will find the {target} a short walk from the {anchor}",
        "I want the {target} that is not far from the {anchor}",
        "a {target} stands a hand's breadth from the {anchor}",
        "the {target} within arm's reach of the {anchor}",
        "beside the {anchor} you will see a {target}, go there",
        "it is the {target} that borders on the {anchor}",
        "the {target} with the {anchor} for a neighbour",
        "the {target} has been pushed up close to the {anchor}",
    ),
    "farthest": (
        "the {target} that is a long way off from the {anchor}",
        "leave the {anchor} behind and take the most remote {target}",
        "no {target} is farther from the {anchor} than this one",
        "I mean the {target} at the greatest distance from the {anchor}",
        "the {target} that is remote from the {anchor}",
        "pick the {target} that keeps the most distance to the {anchor}",
    ),
    "above": (
        "overhead the {anchor} hangs a {target}, that one",
        "the {target} which has the {anchor} under it",
        "the {anchor} stands below this {target}",
        "a {target} floats over the {anchor}, I mean that one",
        "the {anchor} is underneath the {target} I want",
        "the {target} has been put up above the {anchor}",
        "high over the {anchor} you can see the {target}",
    ),
    "below": (
        "the {anchor} hangs above this {target}",
        "under the {anchor} there is a {target}, bring it",
        "the {target} with the {anchor} over it",
        "the {target} that has been placed beneath the {anchor}",
        "the {anchor} is over the {target} I am looking for",
        "right underneath the {anchor} stands a {target}",
    ),
    "on": (
        "the {anchor} carries this {target}",
        "on the {anchor} there is a {target}, bring it to me",
        "the {target} that has been left on the {anchor}",
        "the {target} which the {anchor} bears",
        "the {anchor} has this {target} on top",
        "the {target} is supported by the {anchor}",
        "the {target} rests upon the {anchor}",
        "somebody placed the {target} onto the {anchor}",
        "atop the {anchor} lies a {target}",
    ),
    "supporting": (
        "the {target} that the {anchor} was put on",
        "the {anchor} stands on this {target}",
        "this {target} bears the {anchor}",
        "the {target} underneath which carries the {anchor}",
        "the {target} on which the {anchor} stands",
        "a {target} with the {anchor} on top",
        "the {anchor} rests on the {target} that I want",
    ),
    "in": (
        "the {anchor} contains this {target}",
        "in the {anchor} there is a {target}, get it",
        "the {target} that is kept in the {anchor}",
        "the {target} that has been stored inside the {anchor}",
        "the {target} which the {anchor} encloses",
        "the {target} is contained in the {anchor}",
    ),
    "front": (
        "the {anchor} faces this {target}",
        "in front of the {anchor} there is a {target}, go to it",
        "the {target} which the {anchor} is facing",
        "the {target} that stands before the {anchor}",
        "the {target} has the {anchor} behind it",
    ),
    "behind": (
        "the {target} that hides behind the {anchor}",
        "behind the {anchor} there stands a {target}, that one",
        "the {anchor} is in front of this {target}",
        "at the {anchor}'s back there is a {target}",
        "the {target} located to the rear of the {anchor}",
    ),
    "left": (
        "to the left of the {anchor} you will find the {target}",
        "the {target} standing left of the {anchor}",
        "the {anchor} has this {target} on its left",
        "the {target} at the left hand of the {anchor}",
    ),
    "right": (
        "to the right of the {anchor} you will find the {target}",
        "the {target} standing right of the {anchor}",
        "the {anchor} has this {target} on its right",
        "the {target} at the right hand of the {anchor}",
    ),
    "between": (
        "between the {anchor} and the {anchor2} there is a {target}, take it",
        "the {target} that has the {anchor} on one side and the {anchor2} on the other",
        "the {anchor} and the {anchor2} flank this {target}",
        "the {target} that separates the {anchor} from the {anchor2}",
        "the {target} halfway from the {anchor} to the {anchor2}",
        "the {target} sits somewhere in between the {anchor} and the {anchor2}",
    ),
}  # fmt: skip
TUNED = {relation: patterns[::2] for relation, patterns in PARAPHRASES.items()}
HELD_OUT = {relation: patterns[1::2] for relation, patterns in PARAPHRASES.items()}
