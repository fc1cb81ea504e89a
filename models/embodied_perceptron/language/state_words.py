"""States in sentences: "the open cabinet", "the door that is not closed", "is the fridge open?".

What a reader made of the sentence stays as it is; to its target and its landmarks comes what the words beside them say
of their state, whichever reader it was. "Open the door" is an order, and says nothing of the door.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from embodied_perceptron.language.lexicon import lexicon
from embodied_perceptron.language.meaning import Constraint, Meaning, ObjectPhrase
from embodied_perceptron.language.object_states import STATES_OF

_SAID = {
    "open": "open", "opened": "open", "ajar": "open", "closed": "closed", "shut": "closed", "filled": "filled",
    "full": "filled", "empty": "empty", "folded": "folded", "unfolded": "unfolded",
}  # fmt: skip
_OF_ANYTHING = frozenset(("open", "closed"))  # asked of what nobody knows the state of, too
_SAME_KIND = 0.7
_WORD = rf"(?P<word>{'|'.join(_SAID)})"
_NOT = r"(?P<not>not|n't|never)"
_SLIGHTLY = r"(?:(?:still|already|now|currently|wide|half|slightly|fully|partly|completely|all|both)\s+)*"
_DETERMINER = (
    r"(?:the|a|an|any|another|every|each|all|both|no|other|that|this|these|those|which|what|whose|some|only|my|your|"
    r"our|many|two|three|four|of|for|find|show|are there|is there)"
)
# "the open", and up to two more adjectives, before a noun
_BEFORE = re.compile(rf"\b{_DETERMINER}\s+(?:[\w-]+,?\s+){{0,2}}?{_SLIGHTLY}{_WORD},?\s+(?:[\w-]+\s+){{0,2}}$")
# "that is not open", "left open", "open?", behind it; no "open to", no "open or closed"
_VERB = r"(?:is|are|was|were|'s|isn't|aren't|stands?|stood|standing|being|left|seems?|looks?)"
_AFTER = re.compile(
    rf"^\s*,?\s*(?:(?:that|which)\s+)?(?:{_VERB}\s+){{0,2}}(?:{_NOT}\s+)?{_SLIGHTLY}{_WORD}(?!\s+(?:or|to|onto|into|the|it)\b)(?!\w)"
)
_QUESTION = re.compile(rf"^\s*(?:is|are|isn't|aren't)\b.*?(?:\b{_NOT}\s+)?\b{_SLIGHTLY}{_WORD}\s*[?.!]*\s*$")
_ANY = re.compile(rf"\b{_WORD}\b", re.IGNORECASE)
_ASKS = re.compile(
    r"^\s*(?:is|are|isn't|aren't|which|what|how many|tell me (?:if|whether)|do you know)\b", re.IGNORECASE
)


def speaks_of_states(text: str) -> bool:
    """Whether a text has a word for a state at all."""
    return _ANY.search(text) is not None


def asks(text: str) -> bool:
    """Whether a text is a question, which is not answered where nobody knows."""
    return _ASKS.search(text) is not None


def with_states(meaning: Meaning) -> Meaning:
    """A meaning with the states that its sentence says of its target, of its landmarks, and of what is excluded."""
    if meaning.target is None or not speaks_of_states(meaning.text):
        return meaning
    text = meaning.text.lower()
    own = _said_of(meaning.target, text)
    if own is None and "or" not in text.split():
        asked = _QUESTION.match(text)
        if asked is not None and _states_of(meaning.target.noun) and not _inside_phrase(meaning, asked.start("word")):
            own = _constraint(asked, 0, text.startswith(("isn't", "aren't")))
    told = tuple(_with_states_of_anchors(c, text) for c in meaning.constraints)
    return replace(
        meaning,
        constraints=(*told, *([] if own is None else [own])),
        unmatched=tuple(word for word in meaning.unmatched if own is None or word not in _SAID),
        excluded=tuple(with_states(other) for other in meaning.excluded),
        others=tuple(with_states(other) for other in meaning.others),
    )


def _with_states_of_anchors(c: Constraint, text: str) -> Constraint:
    anchors = []
    for anchor in c.anchors:
        said = _said_of(anchor, text)
        anchors.append(anchor if said is None else replace(anchor, constraints=(*anchor.constraints, said)))
    return replace(c, anchors=tuple(anchors))


def _said_of(phrase: ObjectPhrase, text: str) -> Constraint | None:
    """What stands right before or behind a noun."""
    first, last = phrase.span
    words = text[first:last].split()
    noun = last - len(words[-1]) if words else first  # a reader may count adjectives to the phrase
    found = _BEFORE.search(text[:noun])
    shift = 0
    if found is None:
        found, shift = _AFTER.match(text[last:]), last
    if found is None:
        return None
    said = _constraint(found, shift, "n't" in found[0])
    return said if said.value in (*_OF_ANYTHING, *_states_of(phrase.noun)) else None


def _constraint(match: re.Match[str], shift: int, denied: bool) -> Constraint:
    negated = denied or match.groupdict().get("not") is not None
    span = (match.start("word") + shift, match.end("word") + shift)
    return Constraint("state", value=_SAID[match["word"]], negated=negated, span=span)


def _inside_phrase(meaning: Meaning, at: int) -> bool:
    """Whether a character belongs to a noun: "is there a fridge by the open door" """
    anchors = [a for c in meaning.constraints for a in c.anchors]
    return any(a.span[0] <= at < a.span[1] for a in anchors)


@lru_cache(maxsize=256)
def _states_of(noun: str) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            s for label, states in STATES_OF.items() if lexicon().similarity(noun, label) > _SAME_KIND for s in states
        )
    )
