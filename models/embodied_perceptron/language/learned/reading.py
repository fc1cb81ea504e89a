"""A sentence to its typed meaning: the one reader of sentences.

The network reads the words (:mod:`.sentence_reader`), or the closed grammar where it is asked for or the network's
package is missing (:mod:`~embodied_perceptron.language.closed_grammar`); what either reads is decoded with the nouns of
the lexicon and of the scene (:mod:`.decoding`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from embodied_perceptron.config import SentenceReading
from embodied_perceptron.language.closed_grammar import read_closed
from embodied_perceptron.language.learned.decoding import Decoder
from embodied_perceptron.language.learned.graph import SentenceGraph
from embodied_perceptron.language.learned.numbers import UNITS
from embodied_perceptron.language.learned.sentence_reader import SentenceReader, sentence_reader
from embodied_perceptron.language.lexicon import in_usual_letters, split_words
from embodied_perceptron.language.meaning import Meaning
from embodied_perceptron.language.wording import corrected, other_language

_NEGATIVE_LENGTH = re.compile(
    rf"(?<![\w.,])[-\u2212]\d+(?:[.,]\d+)? ?(?:{'|'.join(unit for unit, _ in UNITS)})", re.IGNORECASE
)


@lru_cache(maxsize=256)
def _graphs(reader: SentenceReader, text: str) -> tuple[SentenceGraph, ...]:
    return reader.read(text, split_words(text))


def read_meaning(text: str, labels: Iterable[str] = (), reader: SentenceReading = "learned") -> Meaning:
    """The meaning of ``text``; ``labels`` of the scene count as nouns beside the lexicon's.

    ``reader`` "grammar" reads by the closed grammar alone, as "learned" does where MiniLM's package is missing, which
    is logged once. Never raises for a text that :func:`~embodied_perceptron.language.query.query_problem` accepts.
    """
    labels = tuple(labels)
    words = split_words(text)
    language = other_language(words, labels)
    if language:
        problem = f"this seems to be {language}; only English is understood"
        return Meaning(text, None, problem=problem, invalid=True)
    if _NEGATIVE_LENGTH.search(text):
        return Meaning(text, None, problem="a length cannot be negative", invalid=True)
    words = corrected(words, labels)
    network = sentence_reader() if reader == "learned" else None
    graphs = (read_closed(words, labels),) if network is None else _graphs(network, in_usual_letters(text))
    first, *others = (Decoder(text, words, graph, labels).meaning() for graph in graphs)
    return replace(first, others=_distinct(first, others))


def _distinct(first: Meaning, others: Iterable[Meaning]) -> tuple[Meaning, ...]:
    """Those that are about something and say something else than the ones before."""
    kept = [first]
    for other in others:
        if (
            other.target is not None
            and not other.problem
            and not _says_less(other, first)
            and all(replace(other, probability=m.probability) != m for m in kept)
        ):
            kept.append(other)
    return tuple(kept[1:])


def _says_less(other: Meaning, first: Meaning) -> bool:
    """Whether a reading only leaves a landmark out: with it something is found whatever the sentence says."""
    same = other.target == first.target and other.kind == first.kind
    return same and len(other.constraints) < len(first.constraints) and set(other.constraints) <= set(first.constraints)
