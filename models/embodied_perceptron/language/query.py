"""What may be asked: the checks that every query passes before anything reads its meaning."""

from __future__ import annotations

import unicodedata

MAX_QUERY_CHARACTERS = 1_000  # the longest human sentence of the public grounding sets has about 600


def query_problem(text: object) -> str:
    """Why ``text`` cannot be answered, in words; empty when it can.

    Leading and trailing white space is allowed; a control character elsewhere, an unpaired surrogate (which no message
    can carry), nothing but white space, and more than ``MAX_QUERY_CHARACTERS`` are not.
    """
    if not isinstance(text, str):
        return f"the query must be text, got {type(text).__name__}"
    if len(text) > MAX_QUERY_CHARACTERS:  # first: nothing below may walk over megabytes
        return f"the query has {len(text)} characters, at most {MAX_QUERY_CHARACTERS} are allowed"
    words = text.strip()
    if not words:
        return "the query is empty"
    for position, character in enumerate(words):
        if unicodedata.category(character) in ("Cc", "Cs"):
            return f"the query has the control character U+{ord(character):04X} at position {position}"
    return ""


def printable_query(text: object) -> str:
    """``text`` as an answer may repeat it: short, without control characters, encodable."""
    shown = text if isinstance(text, str) else repr(text)
    if len(shown) > MAX_QUERY_CHARACTERS:
        shown = shown[: MAX_QUERY_CHARACTERS - 1] + "…"
    return "".join("�" if unicodedata.category(c) in ("Cc", "Cs") else c for c in shown.strip())
