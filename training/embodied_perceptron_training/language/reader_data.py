"""Marked sentences -> targets of the network of :mod:`embodied_perceptron.nn.sentence_network`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from embodied_perceptron.language.lexicon import Word, split_words
from embodied_perceptron.language.meaning import (
    EVERY_NUMBER,
    EXCLUDED,
    INTENTS,
    KINDS,
    LANDMARK,
    NO_ENTITY,
    WITH_OTHER,
    Entity,
    Predicate,
    SentenceGraph,
)
from embodied_perceptron.nn.sentence_network import ARCS, Scores
from embodied_perceptron_training.language.markup import ENTITIES as LETTERS
from embodied_perceptron_training.language.markup import MarkedSentence

_IGNORED = -100
_NEVER = -1e4


def _kind(letter: str) -> str:
    return LANDMARK if letter in "abcd" else EXCLUDED if letter in "xy" else letter


def graph_of(sentence: MarkedSentence) -> tuple[list[Word], SentenceGraph]:
    """The words of a sentence and its marked graph; of several tags of a span the first counts."""
    words = split_words(sentence.text)
    entities: list[Entity] = []
    predicates: list[Predicate] = []
    named = {tag.entity for _, tag in sentence.tags if not tag.name}

    def number(letter: str) -> int:
        return LETTERS.index(letter) if letter in named else NO_ENTITY

    for span in sentence.spans:
        inside = [i for i, w in enumerate(words) if w.start < span.end and w.end > span.start]
        if not inside or not span.tags:
            continue
        first, last = inside[0], inside[-1] + 1
        tags = [t for t in span.tags if t.entity != "neg"] or span.tags  # "without": a negated relation
        tag = next((t for t in tags if not t.name), tags[0])
        if tag.entity in ("neg", "excl"):
            predicates.append(Predicate(first, last, tag.entity))
        elif not tag.name:
            entities.append(Entity(first, last, _kind(tag.entity), number(tag.entity)))
        else:
            name = f"speaker-{tag.name}" if tag.entity == "speaker" else tag.name
            if {t.name for t in span.tags} == {"every", "number"}:
                name = EVERY_NUMBER
            alike = [t for t in span.tags if (t.entity, t.name) == (tag.entity, tag.name)]
            others = tuple(dict.fromkeys(number(o) for t in alike for o in t.others)) if name in WITH_OTHER else ()
            owner = NO_ENTITY if tag.entity == "speaker" else number(tag.entity)
            predicates.append(Predicate(first, last, name, owner, others, tag.denied))
    return words, SentenceGraph(sentence.intent, tuple(entities), tuple(predicates))


@dataclass(frozen=True, eq=False)
class Example:
    """A sentence with its targets.

    Attributes:
        words: characters [start, end) of each word.
        parts: per word, the index of its part as in :class:`Scores`.
        denied: (word, 0 or 1) of the first word of each predicate.
        arcs: of each kind (word, groups of correct columns, possible columns).
    """

    text: str
    words: tuple[tuple[int, int], ...]
    intent: int
    parts: tuple[int, ...]
    denied: tuple[tuple[int, float], ...]
    arcs: dict[str, list[tuple[int, list[list[int]], list[int]]]]


def example_of(sentence: MarkedSentence) -> Example:
    words, graph = graph_of(sentence)
    parts = [0] * len(words)
    for piece in (*graph.entities, *graph.predicates):
        kind = KINDS.index(piece.kind if isinstance(piece, Entity) else piece.name)
        for i in range(piece.first, piece.last):
            parts[i] = 1 + kind + (len(KINDS) if i > piece.first else 0)
    columns = [0, *(t.last for t in graph.entities)]  # column 0 = no entity, column i + 1 = word i
    of = {NO_ENTITY: [0]}
    for t in graph.entities:
        of.setdefault(t.number, []).append(t.last)
    arcs: dict[str, list[tuple[int, list[list[int]], list[int]]]] = {name: [] for name in ARCS}
    for p in graph.predicates:
        if p.name in ("neg", "excl"):
            continue
        if not p.name.startswith("speaker-"):
            arcs["owner"].append((p.first, [of[p.owner]], columns))
        if p.name in WITH_OTHER:
            arcs["other"].append((p.first, [of[o] for o in p.others] or [[0]], columns))
    for k, entity in enumerate(graph.entities):
        earlier = [t for t in graph.entities[:k] if t.kind == entity.kind]
        if earlier and entity.kind in (LANDMARK, EXCLUDED):
            right = [t.last for t in earlier if t.number == entity.number] or [0]
            arcs["same"].append((entity.last - 1, [right], [0, *(t.last for t in earlier)]))
    denied = tuple((t.first, float(t.denied)) for t in graph.predicates if t.name not in ("neg", "excl"))
    spans = tuple((w.start, w.end) for w in words)
    return Example(sentence.text, spans, INTENTS.index(graph.intent), tuple(parts), denied, arcs)


def loss_of(scores: Scores, examples: Sequence[Example]) -> torch.Tensor:
    """Mean negative log-likelihood of the targets per sentence."""
    cross = torch.nn.functional.cross_entropy
    wanted = torch.full(scores.parts.shape[:2], _IGNORED)
    for b, example in enumerate(examples):
        wanted[b, : len(example.parts)] = torch.tensor(example.parts)
    total = cross(scores.intent, torch.tensor([e.intent for e in examples]), reduction="sum")
    total = total + cross(scores.parts.flatten(0, 1), wanted.flatten(), reduction="sum", ignore_index=_IGNORED)
    rows = [(b, w, value) for b, e in enumerate(examples) for w, value in e.denied]
    if rows:
        b, w, value = zip(*rows, strict=True)
        total = total + torch.nn.functional.binary_cross_entropy_with_logits(
            scores.denied[list(b), list(w)], torch.tensor(value), reduction="sum"
        )
    for name in ARCS:
        found = [(b, *arc) for b, e in enumerate(examples) for arc in e.arcs[name]]
        if not found:
            continue
        logits = scores.arcs[name][[f[0] for f in found], [f[1] for f in found]]
        may = torch.zeros_like(logits, dtype=torch.bool)
        for k, (_, _, _, columns) in enumerate(found):
            may[k, columns] = True
        log = logits.masked_fill(~may, _NEVER).log_softmax(dim=1)
        for k, (_, _, groups, _) in enumerate(found):
            total = total - sum(log[k, group].logsumexp(dim=0) for group in groups) / len(groups)
    return total / len(examples)
