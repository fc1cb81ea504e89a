"""Words as they are said plainly: orders whose verb is a noun elsewhere, "right beside", "the sink, the one by ...".

Words keep their places in the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from embodied_perceptron.language.lexicon import Word, lexicon, word_set
from embodied_perceptron.language.line import Line

_BEGINS = frozenset((".", ",", "!", "?", ";", ":", "and", "then", "please", "to", "just", "go", "so", "now", "you"))
_NOUN_FOLLOWS = frozenset(("the", "my", "our", "these", "those"))
_VERBS = frozenset(("can", "left", "right", "throw", "stick", "hand", "box", "place", "set", "rest", "file", "wrap"))
_MOVING = frozenset(("roll", "stand", "wait", "wheel"))
_WAYS = frozenset(("over", "to", "by", "at", "next", "near", "in", "up", "down", "behind", "beside", "close"))
_LOOKED = re.compile(
    r"\b(?:have|take|having|taking) (?:a|another) (?:(?:quick|good|close|closer) )?(?:look|peek|glance|picture|photo|"
    r"snap) (?:at|of) (?=\w)(?!it\b|that\b|this\b)"
)
_PICTURED = re.compile(
    r"(?:(?:,|and|then) )+(?:take|make|snap|get|send me) an? (?:picture|photo|photograph|snap) of (?:it|that|them|"
    r"those)(?= |$)"
)
_EXACTLY = re.compile(
    r"(?<!\bthe )(?<!\bmy )(?<!\byour )(?<!\bits )(?<!\bfar )\bright (?=(?:beside|next to|near|by|behind|under|"
    r"underneath|"
    r"beneath|below|above|over|on top|in front|against|between|at the|in the|on the)\b)"
)
_THE_ONE = re.compile(
    r" [,.;] (?:(?:it's|it is|that's|that is|i mean|i want|i'm after) )?(?:the|that) one (?:(?:that's|that is|which is|"
    r"which's) )?(?=(?P<where>[\w']+))"
)
_OF_ITS_KIND = re.compile(
    r"\b(?:of|among|amongst|from|not|don't) (?:all |both )?(?:of )?(?:the|my|those|these|them|two|three|both)\b"
)
_TELLS_WHERE = word_set("prepositions") | {
    "closest", "nearest", "farthest", "furthest", "without", "left", "standing", "lying", "sitting", "hanging",
    "that", "which", "straight", "directly", "just", "up", "down", "inside", "outside",
}  # fmt: skip


def told_plainly(words: Sequence[Word], labels: Iterable[str] = ()) -> list[Word]:
    """``words`` with what they plainly mean in place of such forms; the same where there are none."""
    line = Line(_orders(words))
    for pattern in (_LOOKED, _PICTURED, _EXACTLY):
        match = pattern.search(line.joined)
        if match is not None:
            first, last = line.word_at(match.start()), line.word_at(match.end())
            told = [replace(line.words[first], text="check")] if pattern is _LOOKED else []
            line = Line([*line.words[:first], *told, *line.words[last:]])
    return _without_apposition(line, tuple(labels)).words


def _orders(words: Sequence[Word]) -> list[Word]:
    """ "Switch on the projector", "hoover the rug", "go stand by the door": orders, no things."""
    result = list(words)
    for i, word in enumerate(result[:-1]):
        before, after = result[i - 1].text if i else ".", result[i + 1].text
        if before not in _BEGINS:
            continue
        if word.text == "switch" and (after in ("on", "off") or after in _NOUN_FOLLOWS):
            result[i] = replace(word, text="turn")
        elif word.text in _MOVING and after in _WAYS and (before != "to" or i < 2):
            result[i] = replace(word, text="go")
        elif after in _NOUN_FOLLOWS and (word.text,) in lexicon().surfaces and word.text not in _VERBS:
            result[i] = replace(word, text="check")
    for i in range(len(result) - 2, -1, -1):
        if [w.text for w in result[i : i + 3]] == ["get", "rid", "of"]:
            result[i : i + 3] = [replace(result[i], text="take", end=result[i + 2].end)]
    while len(result) > 2 and result[0].text in ("go", "come") and result[1].text in ("and", "go", "check"):
        if result[1].text == "and" and result[2].text not in ("go", "check"):
            break
        result = result[1:] if result[1].text != "and" else result[2:]
    return result


def _without_apposition(line: Line, labels: tuple[str, ...]) -> Line:
    """ "The sink, the one between ...": the sink between ..."; where only one thing is named before."""
    match = _THE_ONE.search(line.joined)
    if match is None or match["where"] not in _TELLS_WHERE or _OF_ITS_KIND.search(line.joined[: match.start()]):
        return line
    first, last = line.word_at(match.start() + 1), line.word_at(match.end())
    if len(lexicon().mentions(line.words[:first], labels)) != 1:
        return line
    return line.without(first, last)
