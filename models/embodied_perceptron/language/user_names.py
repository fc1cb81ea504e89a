"""Sentences that speak of things by the names that users gave them: "what stands beside Anna's desk?"

Whatever a name sounds like, it is one thing. So each name is replaced by a word that means nothing else, the thing is
called by that word while the sentence is answered, and words and thing get their names back in the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from embodied_perceptron.language.query import MAX_QUERY_CHARACTERS, Query, printable_query, query_problem
from embodied_perceptron.results import Grounding, SceneObject

_ARTICLE = re.compile(r"\b(?:the|a|an)\s+$", re.IGNORECASE)
_LETTERS = "bdgklmprtv"


@dataclass(frozen=True, eq=False)
class NamedQuery:
    """A query about ``objects`` in which every user's name is a word of its own."""

    query: Query
    objects: tuple[SceneObject, ...]
    asked: Query
    names: tuple[tuple[str, str, bool, SceneObject], ...]  # word, name as said, whether "the" was added, object

    def restored(self, answer: Grounding) -> Grounding:
        """The answer in the user's words."""
        originals = {thing.id: thing for *_, thing in self.names}

        def said(text: str) -> str:
            for word, name, added, _ in self.names:
                if added:
                    text = re.sub(rf"\bthe (<p>)?{word}", rf"\1{word}", text)
                text = re.sub(rf"{word}(?:es|s)?", name.replace("\\", r"\\"), text)
            return text

        candidates = tuple(
            replace(c, label=originals[c.id].label, user_name=originals[c.id].user_name) if c.id in originals else c
            for c in answer.candidates
        )
        return replace(
            answer,
            text=printable_query(self.asked.text),
            candidates=candidates,
            reason=said(answer.reason),
            tagged_text=said(answer.tagged_text),
        )


def name_word(number: int) -> str:
    """A word for object ``number`` that no language has."""
    letters = "".join(_LETTERS[int(d)] + "o" for d in str(number))
    return f"zzq{letters}zz"


def with_user_names(query: Query, objects: Sequence[SceneObject]) -> NamedQuery | None:
    """The query with the users' names of ``objects`` in it replaced; None where it speaks of none of them.

    The longest name counts where one is part of another; upper and lower case, and typographic apostrophes, do not
    matter.
    """
    named = sorted((o for o in objects if o.user_name), key=lambda o: (-len(o.user_name), o.id))
    if not named or query.meaning is not None or query_problem(query.text):
        return None
    text, found = query.text, []
    for thing in named:
        pattern = _pattern(thing.user_name)
        match = pattern.search(text)
        if match is None:
            continue
        word = name_word(thing.id)
        added = _ARTICLE.search(text[: match.start()]) is None
        found.append((word, match.group(0), added, thing))
        text = pattern.sub(f"the {word}" if added else word, text)
    if not found or len(text) > MAX_QUERY_CHARACTERS:
        return None
    words = {thing.id: word for word, *_, thing in found}
    renamed = tuple(replace(o, label=words[o.id]) if o.id in words else o for o in objects)
    return NamedQuery(replace(query, text=text), renamed, query, tuple(found))


def _pattern(name: str) -> re.Pattern[str]:
    parts = (re.sub("['’]", "['’]", re.escape(part)) for part in name.split())
    return re.compile(r"(?<!\w)" + r"\s+".join(parts) + r"(?!\w)", re.IGNORECASE)
