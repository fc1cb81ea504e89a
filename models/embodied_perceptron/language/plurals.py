"""English plurals and singulars by rule; irregular ones stand in ``lexicon/nouns.json``."""

from __future__ import annotations

_LEAST_LETTERS = 3  # of a singular


def singular(word: str) -> str:
    """The singular of what looks like an English plural by rule; empty for other words."""
    if not word.endswith("s") or word.endswith(("ss", "us", "is", "as")) or len(word) <= _LEAST_LETTERS:
        return ""
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith("ves"):
        return word[:-3] + "f"
    return word[:-2] if word.endswith(("sses", "xes", "ches", "shes")) else word[:-1]


def pluralize(noun: str) -> str:
    """English plural by rule; irregular ones stand in ``nouns.json``."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("f"):
        return noun[:-1] + "ves"
    if noun.endswith("y") and noun[-2:-1] not in ("", "a", "e", "i", "o", "u"):
        return noun[:-1] + "ies"
    return noun + "s"
