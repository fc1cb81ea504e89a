"""A sentence to its typed meaning, as the network reads it.

The network reads the words (:mod:`.sentence_reader`); what it reads is decoded with the nouns of the lexicon and of the
scene (:mod:`.decoding`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from embodied_perceptron.language.learned.decoding import Decoder
from embodied_perceptron.language.learned.graph import SentenceGraph
from embodied_perceptron.language.learned.sentence_reader import SentenceReader, sentence_reader
from embodied_perceptron.language.lexicon import split_words
from embodied_perceptron.language.meaning import Meaning
from embodied_perceptron.language.wording import corrected, other_language


@lru_cache(maxsize=256)
def _graphs(reader: SentenceReader, text: str) -> tuple[SentenceGraph, ...]:
    return reader.read(text, split_words(text))


def read_meaning(text: str, labels: Iterable[str] = ()) -> Meaning | None:
    """The meaning of ``text``; ``labels`` of the scene count as nouns beside the lexicon's.

    None where MiniLM's package is missing, which is logged once. Never raises for a text that
    :func:`~embodied_perceptron.language.query.query_problem` accepts.
    """
    reader = sentence_reader()
    if reader is None:
        return None
    labels = tuple(labels)
    words = split_words(text)
    language = other_language(words, labels)
    if language:
        problem = f"this seems to be {language}; only English is understood"
        return Meaning(text, None, problem=problem, invalid=True)
    words = corrected(words, labels)
    first, *others = (Decoder(text, words, graph, labels).meaning() for graph in _graphs(reader, text))
    return replace(first, others=_distinct(first, others))


def _distinct(first: Meaning, others: Iterable[Meaning]) -> tuple[Meaning, ...]:
    """Those that are about something and say something else than the ones before."""
    kept = [first]
    for other in others:
        if (
            other.target is not None
            and not other.problem
            and all(replace(other, probability=m.probability) != m for m in kept)
        ):
            kept.append(other)
    return tuple(kept[1:])
