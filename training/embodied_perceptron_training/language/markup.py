"""Sentences of robot users with marked meaning: the training data of the sentence reader.

    find: go to the [second=t.rank] [chair=t] [from the left=t.from-left] [by=t.near(a)] the [window=a]

One sentence per line, its intent before the colon, ``#`` for comments. A span ``[words=TAG;TAG]`` marks an entity
(``t`` target, ``a`` to ``d`` landmarks, ``x`` and ``y`` excluded, ``h`` in hand, ``m`` mentioned), an attribute
(``t.colour``), a relation (``t.near(a)``), a negation (``neg``; the negated tag ends in ``!``), an exclusion
(``excl``), or the speaker's viewpoint (``speaker.at(a)``). See ``training/language/README.md``.

``python -m embodied_perceptron_training.language.markup FILE ...`` prints the problems of each line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from embodied_perceptron.language.meaning import ATTRIBUTES, INTENTS, RELATIONS, VIEWPOINTS, WITHOUT_OTHER

ENTITIES = "tabcdxyhm"
_TAG = re.compile(r"(?:(?P<thing>[a-z]+)(?:\.(?P<name>[a-z-]+)(?:\((?P<others>[a-z, ]*)\))?)?)(?P<denied>!?)")
_SPAN = re.compile(r"\[([^\[\]=]*)=([^\[\]=]*)\]")


@dataclass(frozen=True)
class Tag:
    """Meaning of the words of a span.

    Attributes:
        entity: letter of the entity named or described; or "speaker", "neg", "excl".
        name: of the attribute or relation; "" = the words name the entity.
        others: letters of the landmarks of the relation.
        denied: whether it is negated.
    """

    entity: str
    name: str = ""
    others: tuple[str, ...] = ()
    denied: bool = False

    def __str__(self) -> str:
        name = f".{self.name}" if self.name else ""
        return (
            f"{self.entity}{name}{'(' + ','.join(self.others) + ')' if self.others else ''}{'!' if self.denied else ''}"
        )


@dataclass(frozen=True)
class MarkedSpan:
    """Characters [start, end) of the plain text and their tags."""

    start: int
    end: int
    tags: tuple[Tag, ...]


@dataclass(frozen=True)
class MarkedSentence:
    """A sentence without brackets, and its marked spans in order."""

    intent: str
    text: str
    spans: tuple[MarkedSpan, ...] = ()

    def __str__(self) -> str:
        parts, end = [], 0
        for span in self.spans:
            words = self.text[span.start : span.end]
            parts += [self.text[end : span.start], f"[{words}={';'.join(map(str, span.tags))}]"]
            end = span.end
        return f"{self.intent}: {''.join(parts)}{self.text[end:]}"

    @property
    def tags(self) -> Iterator[tuple[MarkedSpan, Tag]]:
        """Every tag with its span."""
        return ((span, tag) for span in self.spans for tag in span.tags)


def _read_tag(text: str) -> Tag:
    """Parse a tag. Raises ``ValueError`` with the problem in words."""
    match = _TAG.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"tag {text.strip()!r} is not of the form ENTITY, ENTITY.NAME or ENTITY.NAME(OTHER)")
    entity, name = match["thing"], match["name"] or ""
    others = tuple(o.strip() for o in (match["others"] or "").split(",") if o.strip())
    tag = Tag(entity, name, others, bool(match["denied"]))
    if entity in ("neg", "excl"):
        if name or others or tag.denied:
            raise ValueError(f"{text.strip()!r}: nothing follows {entity!r}")
        return tag
    if entity == "speaker":
        if name not in VIEWPOINTS or len(others) != 1:
            raise ValueError(
                f"{text.strip()!r}: a speaker is one of {', '.join(VIEWPOINTS)}, with one entity: speaker.at(a)"
            )
    elif len(entity) != 1 or entity not in ENTITIES:
        raise ValueError(f"{text.strip()!r}: {entity!r} is no entity; entities are {', '.join(ENTITIES)}")
    elif not name:
        if tag.denied:
            raise ValueError(f"{text.strip()!r}: only attributes and relations can be negated")
    elif name in ATTRIBUTES:
        if others and name != "closest":
            raise ValueError(f"{text.strip()!r}: {name!r} takes no other entity")
    elif name in RELATIONS:
        if not others and name not in WITHOUT_OTHER:
            raise ValueError(f"{text.strip()!r}: {name!r} needs another entity: {entity}.{name}(a)")
        if len(others) > 1 and name != "between" and len(set(others)) != len(others):
            raise ValueError(f"{text.strip()!r}: the same entity twice")
    else:
        raise ValueError(f"{text.strip()!r}: {name!r} is neither an attribute nor a relation")
    wrong = [o for o in others if len(o) != 1 or o not in ENTITIES]
    if wrong:
        raise ValueError(f"{text.strip()!r}: {wrong[0]!r} is no entity; entities are {', '.join(ENTITIES)}")
    if entity in others:
        raise ValueError(f"{text.strip()!r}: a relation of {entity!r} to itself")
    return tag


def read_sentence(line: str) -> MarkedSentence:
    """Parse a line. Raises ``ValueError`` with all problems in words."""
    intent, colon, body = line.strip().partition(":")
    if not colon or intent not in INTENTS:
        raise ValueError(f"a line begins with its intent and a colon ({', '.join(INTENTS)}), got {intent[:30]!r}")
    text, spans, end, problems = "", [], 0, []
    body = body.strip()
    for match in _SPAN.finditer(body):
        text += body[end : match.start()]
        words = match[1]
        if not words.strip() or words != words.strip():
            problems.append(f"{match[0]!r}: the words are empty, or begin or end with a blank")
        try:
            tags = tuple(_read_tag(tag) for tag in match[2].split(";"))
        except ValueError as error:
            problems.append(str(error))
            tags = ()
        if sum(not t.name and t.entity not in ("neg", "excl") for t in tags) > 1:
            problems.append(f"{match[0]!r}: one span names two entities")
        spans.append(MarkedSpan(len(text), len(text) + len(words), tags))
        text += words
        end = match.end()
    text += body[end:]
    stray = next((c for c in "[]=" if c in text), None)
    if stray:
        near = text[max(0, text.index(stray) - 15) : text.index(stray) + 15]
        problems.append(f"a stray {stray!r} near {near!r} (nested or unclosed brackets?)")
    sentence = MarkedSentence(intent, text, tuple(spans))
    problems += _problems(sentence) if not problems else []
    if problems:
        raise ValueError("; ".join(problems))
    return sentence


def _problems(sentence: MarkedSentence) -> list[str]:
    """Problems of a sentence as a whole, in words."""
    tags = [tag for _, tag in sentence.tags]
    if sentence.intent == "none":
        return ["'none' has no spans"] if tags else []
    found = []
    named = {t.entity for t in tags if not t.name}
    described = {t.entity for t in tags if t.name and t.entity != "speaker"} | {o for t in tags for o in t.others}
    if "t" not in named and sentence.intent != "contents":
        found.append(f"{sentence.intent!r} needs a target: a span with t")
    if sentence.intent == "contents":
        described -= {"t"}
    found += [f"{entity!r} is described but no span names it" for entity in sorted(described - named)]
    if any(t.denied for t in tags) and "neg" not in {t.entity for t in tags}:
        found.append("a tag is negated (!) but no word is the negation: [not=neg]")
    if "neg" in {t.entity for t in tags} and not any(t.denied for t in tags):
        found.append("a word is a negation (neg) but no tag is negated: t.near(a)!")
    for entity in sorted(described & {"x", "y"}):
        if "excl" not in {t.entity for t in tags}:
            found.append(f"{entity!r} is excluded but no word marks it: [but=excl]")
            break
    for tag in tags:
        measured = any(t.entity == tag.entity and t.name == "amount" for t in tags)
        if tag.name in WITHOUT_OTHER and not measured and (not tag.others or tag.name in ("within", "beyond")):
            found.append(f"{tag}: how far or how much? [two metres={tag.entity}.amount]")
    if any(t.name == "rank" and t.entity == "speaker" for t in tags):
        found.append("a speaker has no rank")
    return found


def read_corpus(lines: Iterable[str]) -> Iterator[tuple[int, MarkedSentence | str]]:
    """(line number from 1, sentence or its problem in words) for every line that is neither blank nor a comment."""
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            yield number, read_sentence(line)
        except ValueError as error:
            yield number, str(error)


def load_corpus(paths: Iterable[Path]) -> list[MarkedSentence]:
    """Read the sentences of files. Raises ``ValueError`` with file and line of the first problem."""
    sentences = []
    for path in paths:
        for number, read in read_corpus(path.read_text(encoding="utf-8").splitlines()):
            if isinstance(read, str):
                raise ValueError(f"{path}:{number}: {read}")
            sentences.append(read)
    return sentences


def main(paths: list[str]) -> int:
    """Print the problems of files; return 1 if there are any."""
    wrong = 0
    for path in paths:
        good, seen = 0, set()
        for number, read in read_corpus(Path(path).read_text(encoding="utf-8").splitlines()):
            problem = read if isinstance(read, str) else "the same sentence again" if read.text in seen else ""
            if problem:
                wrong += 1
                print(f"{path}:{number}: {problem}")
            else:
                assert isinstance(read, MarkedSentence)
                seen.add(read.text)
                good += 1
        print(f"{path}: {good} sentences are well marked")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
