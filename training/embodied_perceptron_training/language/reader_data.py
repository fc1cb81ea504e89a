"""Marked sentences -> what the network of :mod:`embodied_perceptron.nn.sentence_network` is to say of their words."""

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
    NOBODY,
    WITH_OTHER,
    SentenceGraph,
    Thing,
    Told,
)
from embodied_perceptron.nn.sentence_network import ARCS, Scores
from embodied_perceptron_training.language.markup import THINGS as LETTERS
from embodied_perceptron_training.language.markup import MarkedSentence

_IGNORED = -100
_NEVER = -1e4


def _kind(letter: str) -> str:
    return LANDMARK if letter in "abcd" else EXCLUDED if letter in "xy" else letter


def graph_of(sentence: MarkedSentence) -> tuple[list[Word], SentenceGraph]:
    """The words of a sentence and the graph that is marked in it; of several things that a span tells the first."""
    words = split_words(sentence.text)
    things: list[Thing] = []
    told: list[Told] = []
    named = {tag.thing for _, tag in sentence.tags if not tag.name}

    def number(letter: str) -> int:
        return LETTERS.index(letter) if letter in named else NOBODY

    for span in sentence.spans:
        inside = [i for i, w in enumerate(words) if w.start < span.end and w.end > span.start]
        if not inside or not span.tags:
            continue
        first, last = inside[0], inside[-1] + 1
        tags = [t for t in span.tags if t.thing != "neg"] or span.tags  # "without" is a relation that is denied
        tag = next((t for t in tags if not t.name), tags[0])
        if tag.thing in ("neg", "excl"):
            told.append(Told(first, last, tag.thing))
        elif not tag.name:
            things.append(Thing(first, last, _kind(tag.thing), number(tag.thing)))
        else:
            name = f"speaker-{tag.name}" if tag.thing == "speaker" else tag.name
            if {t.name for t in span.tags} == {"every", "number"}:
                name = EVERY_NUMBER
            alike = [t for t in span.tags if (t.thing, t.name) == (tag.thing, tag.name)]
            others = tuple(dict.fromkeys(number(o) for t in alike for o in t.others)) if name in WITH_OTHER else ()
            owner = NOBODY if tag.thing == "speaker" else number(tag.thing)
            told.append(Told(first, last, name, owner, others, tag.denied))
    return words, SentenceGraph(sentence.intent, tuple(things), tuple(told))


def sentence_of(text: str, words: Sequence[Word], graph: SentenceGraph) -> str:
    """A graph as marked sentence, to be looked at."""
    letters: dict[int, str] = {}
    free = {LANDMARK: list("abcd"), EXCLUDED: list("xy")}
    for thing in graph.things:
        if thing.number not in letters:
            some = free.get(thing.kind, [thing.kind])
            letters[thing.number] = some.pop(0) if len(some) > 1 else some[0]
    spans = [(t.first, t.last, letters[t.number]) for t in graph.things]
    for t in graph.told:
        owner = letters.get(t.owner, "t")
        name = f"{owner}.{t.name}" if t.name not in ("neg", "excl") else t.name
        if t.name.startswith("speaker-"):
            name = t.name.replace("-", ".")
        others = f"({','.join(letters[o] for o in t.others)})" if t.others else ""
        spans.append((t.first, t.last, f"{name}{others}{'!' if t.denied else ''}"))
    out, end = "", 0
    for first, last, tag in sorted(spans):
        start, stop = words[first].start, words[last - 1].end
        out += f"{text[end:start]}[{text[start:stop]}={tag}]"
        end = stop
    return f"{graph.intent}: {out}{text[end:]}"


@dataclass(frozen=True, eq=False)
class Example:
    """A sentence, its words, and what is right of them.

    Attributes:
        parts: per word, the index of its part as in :class:`Scores`.
        denied: (word, 0 or 1) of the first word of what is told.
        arcs: of each kind (word, groups of columns that are right, columns that may be).
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
    for piece in (*graph.things, *graph.told):
        kind = KINDS.index(piece.kind if isinstance(piece, Thing) else piece.name)
        for i in range(piece.first, piece.last):
            parts[i] = 1 + kind + (len(KINDS) if i > piece.first else 0)
    columns = [0, *(t.last for t in graph.things)]  # column 0 is nobody, column i + 1 word i
    of = {NOBODY: [0]}
    for t in graph.things:
        of.setdefault(t.number, []).append(t.last)
    arcs: dict[str, list[tuple[int, list[list[int]], list[int]]]] = {name: [] for name in ARCS}
    for told in graph.told:
        if told.name in ("neg", "excl"):
            continue
        if not told.name.startswith("speaker-"):
            arcs["owner"].append((told.first, [of[told.owner]], columns))
        if told.name in WITH_OTHER:
            arcs["other"].append((told.first, [of[o] for o in told.others] or [[0]], columns))
    for k, thing in enumerate(graph.things):
        earlier = [t for t in graph.things[:k] if t.kind == thing.kind]
        if earlier and thing.kind in (LANDMARK, EXCLUDED):
            right = [t.last for t in earlier if t.number == thing.number] or [0]
            arcs["same"].append((thing.last - 1, [right], [0, *(t.last for t in earlier)]))
    denied = tuple((t.first, float(t.denied)) for t in graph.told if t.name not in ("neg", "excl"))
    spans = tuple((w.start, w.end) for w in words)
    return Example(sentence.text, spans, INTENTS.index(graph.intent), tuple(parts), denied, arcs)


def loss_of(scores: Scores, examples: Sequence[Example], smoothing: float = 0.0) -> torch.Tensor:
    """Mean over sentences of the negative log-likelihood of what is right."""
    cross = torch.nn.functional.cross_entropy
    wanted = torch.full(scores.parts.shape[:2], _IGNORED)
    for b, example in enumerate(examples):
        wanted[b, : len(example.parts)] = torch.tensor(example.parts)
    total = cross(scores.intent, torch.tensor([e.intent for e in examples]), reduction="sum", label_smoothing=smoothing)
    total = total + cross(
        scores.parts.flatten(0, 1), wanted.flatten(), reduction="sum", ignore_index=_IGNORED, label_smoothing=smoothing
    )
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
