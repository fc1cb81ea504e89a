"""Texts whose noun phrases are tagged with objects, as training sentences for grounding (3D-GRAND's kinds).

A home's ``language/<scan>.json`` holds descriptions of objects, one of the scene, and questions about existence,
number, attributes and relations, each with a yes-or-no form:

    {"objects": [{"id", "text"}], "scene": text, "qa": [{"kind", "question", "answer", "grounding"}]}

Each phrase, ``<p>grey armchair</p>[<obj_4>]``, becomes one prompt: its sentence without tags, and the words that name
the object. For a question these are the words of the phrase that the answer rests on, if the question has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from embodied_perceptron_training.datasets.embodiedscan import DatasetError, Prompt

_PHRASE = re.compile(r"<p>(?P<phrase>[^<>]+)</p>\s*\[(?P<ids>(?:[\s,]*<obj_\d+>)+)\s*\]")
_ID = re.compile(r"<obj_(\d+)>")
_SENTENCE = re.compile(r"[^.!?]+[.!?]*\s*")


@dataclass(frozen=True)
class Phrase:
    """Characters [start, end) of a text without tags, and the ids of the objects that they name."""

    start: int
    end: int
    ids: tuple[int, ...]


def without_tags(text: str) -> tuple[str, list[Phrase]]:
    """A tagged text -> the plain text, and its phrases."""
    plain, end, phrases = "", 0, []
    for match in _PHRASE.finditer(text):
        plain += text[end : match.start()]
        ids = tuple(int(n) for n in _ID.findall(match["ids"]))
        phrases.append(Phrase(len(plain), len(plain) + len(match["phrase"]), ids))
        plain += match["phrase"]
        end = match.end()
    return plain + text[end:], phrases


def sentences_of(text: str) -> list[tuple[int, str]]:
    """Start of each sentence of a text, and the sentence."""
    return [(m.start(), m.group().rstrip()) for m in _SENTENCE.finditer(text)]


def prompts_of_text(scan_id: str, text: str) -> Iterator[Prompt]:
    """One prompt per phrase: the sentence that contains it."""
    plain, phrases = without_tags(text)
    sentences = sentences_of(plain)
    for phrase in phrases:
        start, sentence = next((s, t) for s, t in reversed(sentences) if s <= phrase.start)
        first, last = phrase.start - start, min(phrase.end - start, len(sentence))
        yield _prompt(scan_id, sentence, phrase.ids, (first, last))


def prompts_of_question(scan_id: str, question: str, grounding: str) -> Iterator[Prompt]:
    """One prompt per phrase of the answer whose words, or last word, are in the question."""
    plain, phrases = without_tags(grounding)
    for phrase in phrases:
        words = plain[phrase.start : phrase.end]
        for wanted in (words, words.split()[-1]):
            found = re.search(rf"\b{re.escape(wanted)}(?:e?s)?\b", question, re.IGNORECASE)
            if found is not None:
                yield _prompt(scan_id, question, phrase.ids, found.span())
                break


def _prompt(scan_id: str, text: str, ids: tuple[int, ...], span: tuple[int, int]) -> Prompt:
    return Prompt(scan_id, text, ids, text[slice(*span)], (), (), (span,))


def grounded_texts(path: Path) -> list[str]:
    """Tagged descriptions of a scan's file. Raises :class:`DatasetError` naming file and entry, ``OSError``."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Tagged descriptions, and questions with the tagged phrases of their answers."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        texts = [*(str(entry["text"]) for entry in data.get("objects", [])), str(data.get("scene", ""))]
        return texts, [(str(entry["question"]), str(entry["grounding"])) for entry in data.get("qa", [])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path} holds no grounded texts: {error!r}") from error


def grounded_prompts(path: Path, scan_id: str) -> list[Prompt]:
    """Prompts of a scan's file without duplicates. Raises as :func:`grounded_texts`."""
    texts, questions = _read(path)
    found = [p for text in texts for p in prompts_of_text(scan_id, text)]
    found += [p for question, grounding in questions for p in prompts_of_question(scan_id, question, grounding)]
    return list(dict.fromkeys(found))
