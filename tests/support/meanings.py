"""Meanings in short, to be compared and read: "count: book on(shelf[high])"."""

from __future__ import annotations

from embodied_perceptron.language.meaning import Constraint, Meaning, ObjectPhrase


def in_short(meaning: Meaning) -> str:
    """What is asked for, the noun, its conditions in order of the alphabet, what is excluded, where who speaks stands;
    no weights, spans and plurals."""
    if meaning.problem:
        return "refused"
    if meaning.target is None:
        return "nothing"
    several = meaning.every and meaning.kind == "object"
    asked = f"{meaning.kind}{' every' if several else ''}{' any' if meaning.any_of else ''}"
    parts = [f"{asked}{f' {meaning.number}' if meaning.number else ''}: {_described(meaning)}"]
    parts += [f"not {_described(e)}" for e in meaning.excluded]
    if meaning.speaker is not None:
        parts.append(f"{meaning.speaker.kind} {meaning.speaker.anchor.noun}")
    return "; ".join(parts)


def _described(meaning: Meaning) -> str:
    assert meaning.target is not None
    return " ".join([meaning.target.noun, *sorted({_told(c) for c in meaning.constraints})])


def _phrase(phrase: ObjectPhrase) -> str:
    inner = " ".join(sorted({_told(c) for c in phrase.constraints}))
    return f"{phrase.noun}[{inner}]" if inner else phrase.noun


def _told(c: Constraint) -> str:
    said = ("not-" if c.negated else "") + c.relation + (f"#{c.rank}" if c.rank != 1 else "")
    inside = [c.value] if c.value else []
    inside += [f"{c.amount_m:g}m"] if c.amount_m else []
    inside += [_phrase(a) for a in c.anchors]
    return f"{said}({', '.join(inside)})" if inside else said
