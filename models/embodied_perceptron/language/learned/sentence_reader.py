"""Reads a sentence with the network: its words -> :class:`~.graph.SentenceGraph`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.language.learned.graph import (
    EXCLUDED,
    EXCLUSION,
    INTENTS,
    KINDS,
    LANDMARK,
    NEGATION,
    NOBODY,
    TARGET,
    THINGS,
    WITH_OTHER,
    WITHOUT_OTHER,
    SentenceGraph,
    Thing,
    Told,
)
from embodied_perceptron.language.lexicon import Word
from embodied_perceptron.nn.sentence_network import ARCS, Scores, SentenceNetwork

_LOG = logging.getLogger(__name__)
WEIGHTS = Path(__file__).parents[1] / "lexicon" / "sentence_reader.safetensors"
_LEAST_TARGET = 0.1  # probability from which a word may be what is meant, where none is likelier to be than not
_LEAST_SHARE = 0.1  # of the probability of the likeliest reading, from which another one is kept
_MOST_OTHERS = 3  # readings beside it
_SECOND = 0.25  # probability from which "between" has a second other thing
F32 = NDArray[np.float32]
_Piece = tuple[str, int, int, float]  # kind, words [first, last), probability


def new_network() -> SentenceNetwork:
    """A network with MiniLM's weights and none of its own yet; raises as :meth:`SentenceNetwork.load_minilm`."""
    return SentenceNetwork(len(INTENTS), len(KINDS)).load_minilm()


class SentenceReader:
    """Reads with a network that has its weights."""

    def __init__(self, network: SentenceNetwork) -> None:
        self.network = network.eval()

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> SentenceReader:
        """The network of the package, its layers in 8 bits: on a CPU the quicker way.

        Raises ``FileNotFoundError``, ``OSError`` or ``ValueError`` where MiniLM or the weights are missing or other
        ones.
        """
        network = new_network().load_trained(path).merge()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch announces that this moves to a package of its own
            quantize: Callable[..., torch.nn.ModuleList] = torch.ao.quantization.quantize_dynamic
            network.layers = quantize(network.layers, {torch.nn.Linear}, dtype=torch.qint8)
        return cls(network)

    def read(self, text: str, words: Sequence[Word]) -> tuple[SentenceGraph, ...]:
        """The likeliest graph over ``words`` of ``text``, and others that differ from it in one thing, likelier ones
        first."""
        if not words:
            return (SentenceGraph("none"),)
        with torch.inference_mode():
            scores = self.network(self.network.batch([text], [[(w.start, w.end) for w in words]]))
        return graphs_of(scores, 0, len(words))


def graphs_of(scores: Scores, b: int, count: int) -> tuple[SentenceGraph, ...]:
    """The likeliest graph over the ``count`` words of sentence ``b``, and others that differ from it in one thing."""
    return WordScores.of(scores, b, count).graphs()


@dataclass(frozen=True)
class _Change:
    """What a reading has otherwise than the likeliest one, and how likely that is as a share.

    Attributes:
        share: of the probability of the likeliest reading.
        pieces: all of them, where one is another; else None.
        arc: of the likeliest pieces, the one whose owner or other thing is another: (first word, "owner" or "other").
        denied: first word of what is denied, or not, against the likeliest reading.
        intent: another one.
    """

    share: float
    pieces: tuple[_Piece, ...] | None = None
    arc: tuple[int, str] | None = None
    denied: int = -1
    intent: str = ""


@dataclass(frozen=True, eq=False)
class WordScores:
    """What the network says of the W words of one sentence.

    Attributes:
        intent: (I,) probabilities.
        parts: (W, 1 + 2 K) probabilities, columns as in :class:`Scores`.
        denied: (W,) probabilities.
        arcs: logits, of each kind (W, 1 + W).
    """

    intent: F32
    parts: F32
    denied: F32
    arcs: dict[str, F32]

    @classmethod
    def of(cls, scores: Scores, b: int, count: int) -> WordScores:
        """Of the first ``count`` words of sentence ``b`` of a batch."""
        return cls(
            scores.intent[b].float().softmax(dim=0).numpy(),
            scores.parts[b, :count].float().softmax(dim=1).numpy(),
            scores.denied[b, :count].float().sigmoid().numpy(),
            {name: scores.arcs[name][b, :count, : 1 + count].float().numpy() for name in ARCS},
        )

    def graphs(self) -> tuple[SentenceGraph, ...]:
        """See :func:`graphs_of`."""
        best = int(self.intent.argmax())
        intent, sure = INTENTS[best], float(self.intent[best])
        if intent == "none":
            return (SentenceGraph("none", probability=sure),)
        found = _pieces(self.parts)
        if intent != "contents" and not any(kind == TARGET for kind, *_ in found):
            found = _with_target(self.parts, found)
            if not found:
                return (SentenceGraph("none", probability=sure),)
        doubts: list[_Change] = []
        first = self._graph(intent, sure, found, doubts=doubts)
        doubts += self._other_pieces(found)
        second = int(self.intent.argsort()[-2])
        if INTENTS[second] != "none":
            doubts.append(_Change(float(self.intent[second]) / sure, intent=INTENTS[second]))
        likely = sorted((d for d in doubts if d.share > _LEAST_SHARE), key=lambda d: -d.share)[:_MOST_OTHERS]
        others = [replace(self._changed(intent, found, d), probability=first.probability * d.share) for d in likely]
        return (first, *others)

    def _changed(self, intent: str, found: Sequence[_Piece], change: _Change) -> SentenceGraph:
        return self._graph(change.intent or intent, 1.0, found if change.pieces is None else change.pieces, change)

    def _graph(
        self,
        intent: str,
        sure: float,
        pieces: Sequence[_Piece],
        change: _Change | None = None,
        doubts: list[_Change] | None = None,
    ) -> SentenceGraph:
        """Things and what is told of them, ``pieces`` with the likeliest arcs between them, but for what ``change``
        says; ``doubts`` gets what else may be."""
        things = _things([piece for piece in pieces if piece[0] in THINGS], self.arcs["same"])
        told = []
        doubts = [] if doubts is None else doubts
        for _, _, _, chance in pieces:
            sure *= chance
        for name, first, last, _ in pieces:
            if name in THINGS:
                continue
            owner, others, no = NOBODY, tuple[int, ...](), False
            if name not in (NEGATION, EXCLUSION):
                denied = float(self.denied[first])
                no = (denied > 0.5) != (change is not None and change.denied == first)
                doubts.append(_Change(min(denied, 1.0 - denied) / max(denied, 1.0 - denied), denied=first))
                if not name.startswith("speaker-"):
                    ranked = _ranked(self.arcs["owner"][first], things)
                    owner, chance = ranked[change is not None and change.arc == (first, "owner") and len(ranked) > 1]
                    sure *= chance
                    doubts += [_Change(other / chance, arc=(first, "owner")) for _, other in ranked[1:2]]
            if name in WITH_OTHER:
                choices = _others(name, self.arcs["other"][first], things, owner)
                others, chance = choices[change is not None and change.arc == (first, "other") and len(choices) > 1]
                sure *= chance
                doubts += [_Change(other / max(chance, 1e-9), arc=(first, "other")) for _, other in choices[1:2]]
            told.append(Told(first, last, name, owner, others, no))
        return SentenceGraph(intent, tuple(things), tuple(told), sure)

    def _chance(self, piece: _Piece, kind: str) -> float:
        """How likely the words of a piece are of a kind; of no kind for ""."""
        _, first, last, _ = piece
        if not kind:
            return float(self.parts[first:last, 0].mean()) + 1e-6
        column = 1 + KINDS.index(kind)
        both = self.parts[first:last, column] + self.parts[first:last, column + len(KINDS)]
        return float(both.mean()) + 1e-6

    def _other_pieces(self, pieces: Sequence[_Piece]) -> Iterator[_Change]:
        """The pieces with another thing as target, or one of another kind, without one, or with one more."""
        swapped = self._about_another(pieces)
        if swapped is not None:
            yield swapped
        for k, piece in enumerate(pieces):
            kind, first, last, _ = piece
            if kind == TARGET:
                continue
            chance = self.parts[first:last, 1:].reshape(last - first, 2, len(KINDS)).sum(axis=1).mean(axis=0)
            chance[[KINDS.index(kind), KINDS.index(TARGET)]] = 0.0
            other, none = KINDS[int(chance.argmax())], self._chance(piece, "")
            share = max(float(chance.max()), none) / self._chance(piece, kind)
            rest = [*pieces[:k], *pieces[k + 1 :]]
            if float(chance.max()) > none:
                rest.insert(k, (other, first, last, 1.0))
            yield _Change(share, tuple(rest))
        read = {i for _, first, last, _ in pieces for i in range(first, last)}
        for i in range(len(self.parts)):
            begins = self.parts[i, 1 : 1 + len(KINDS)].copy()
            begins[KINDS.index(TARGET)] = 0.0
            if i not in read and begins.max() > _LEAST_SHARE * self.parts[i, 0]:
                more = sorted([*pieces, (KINDS[int(begins.argmax())], i, i + 1, 1.0)], key=lambda p: p[1])
                yield _Change(float(begins.max() / self.parts[i, 0]), tuple(more))

    def _about_another(self, pieces: Sequence[_Piece]) -> _Change | None:
        """The pieces with another thing as target; None where they have one thing."""

        def instead(piece: _Piece) -> str:
            return max((k for k in THINGS if k not in (TARGET, EXCLUDED)), key=lambda kind: self._chance(piece, kind))

        old = [p for p in pieces if p[0] == TARGET]
        others = [p for p in pieces if p[0] in THINGS and p[0] not in (TARGET, EXCLUDED)]
        if not others:
            return None
        new = max(others, key=lambda p: self._chance(p, TARGET) / self._chance(p, p[0]))
        share = self._chance(new, TARGET) / self._chance(new, new[0])
        for piece in old:
            share *= self._chance(piece, instead(piece)) / self._chance(piece, TARGET)
        changed = [(TARGET, *p[1:]) if p == new else (instead(p), *p[1:]) if p[0] == TARGET else p for p in pieces]
        return _Change(min(share, 1.0), tuple(changed))


def _pieces(parts: F32) -> list[_Piece]:
    """The likeliest runs of words of one kind, in their order: (W, 1 + 2 K) probabilities -> pieces."""
    found: list[_Piece] = []
    for i, label in enumerate(_likeliest(parts)):
        if label == 0:
            continue
        kind, chance = KINDS[(label - 1) % len(KINDS)], float(parts[i, label])
        compound = kind in THINGS and bool(found) and found[-1][0] == kind and found[-1][2] == i  # "exit", "door"
        if label > len(KINDS) or compound:
            _, first, _, before = found[-1]
            found[-1] = (kind, first, i + 1, before * chance)
        else:
            found.append((kind, i, i + 1, chance))
    return found


def _likeliest(parts: F32) -> list[int]:
    """Labels of the words, where a further word of a kind follows a word of this kind alone (Viterbi)."""
    count = len(KINDS)
    log = np.log(parts + 1e-9)
    total = log[0].copy()
    total[1 + count :] = -np.inf
    back = np.zeros(log.shape, dtype=np.intp)
    for i in range(1, len(log)):
        best = int(total.argmax())
        before = np.full(len(total), total[best])
        back[i] = best
        first, further = total[1 : 1 + count], total[1 + count :]
        before[1 + count :] = np.maximum(first, further)
        back[i, 1 + count :] = np.arange(1, 1 + count) + np.where(further > first, count, 0)
        total = before + log[i]
    labels = [int(total.argmax())]
    for i in range(len(log) - 1, 0, -1):
        labels.append(int(back[i, labels[-1]]))
    return labels[::-1]


def _with_target(parts: F32, found: list[_Piece]) -> list[_Piece]:
    """The pieces with the likeliest of them, or of the other words, as target; none where nothing is likely."""
    begins, goes_on = 1 + KINDS.index(TARGET), 1 + KINDS.index(TARGET) + len(KINDS)
    chance = parts[:, begins] + parts[:, goes_on]
    i = int(chance.argmax())
    if chance[i] < _LEAST_TARGET:
        return []
    first, last = next(((piece[1], piece[2]) for piece in found if piece[1] <= i < piece[2]), (i, i + 1))
    rest = [piece for piece in found if not piece[1] <= i < piece[2]]
    return sorted([*rest, (TARGET, first, last, float(chance[i]))], key=lambda piece: piece[1])


def _things(pieces: Sequence[_Piece], same: F32) -> list[Thing]:
    """Things, and which of them are one: what is meant is one, of landmarks and of what is excluded arcs tell."""
    things: list[Thing] = []
    numbers = 0
    for kind, first, last, _ in pieces:
        earlier = [t for t in things if t.kind == kind]
        number = None
        if kind not in (LANDMARK, EXCLUDED):
            number = earlier[0].number if earlier else None
        elif earlier:
            columns = [0, *(t.last for t in earlier)]  # of words the columns begin at 1
            best = int(same[last - 1, columns].argmax())
            number = earlier[best - 1].number if best else None
        if number is None:
            number, numbers = numbers, numbers + 1
        things.append(Thing(first, last, kind, number))
    return things


def _chances(row: F32, things: Sequence[Thing]) -> dict[int, float]:
    """Number of a thing, or nobody -> probability, from the logits of an arc's row."""
    logits = np.array([row[0], *(row[t.last] for t in things)], np.float64)
    share = np.exp(logits - logits.max())
    share /= share.sum()
    chance = {NOBODY: float(share[0])}
    for thing, p in zip(things, share[1:].tolist(), strict=True):
        chance[thing.number] = chance.get(thing.number, 0.0) + p
    return chance


def _ranked(row: F32, things: Sequence[Thing]) -> list[tuple[int, float]]:
    """Numbers of things, or nobody, and how likely each is the one that an arc goes to, likelier ones first."""
    return sorted(_chances(row, things).items(), key=lambda item: -item[1])


def _others(name: str, row: F32, things: Sequence[Thing], owner: int) -> list[tuple[tuple[int, ...], float]]:
    """Choices of the other things of a relation of ``owner``, and how likely each is, likelier ones first."""
    ranked = [
        (number, chance)
        for number, chance in _ranked(row, things)
        if number != owner and (number != NOBODY or name in WITHOUT_OTHER)
    ]
    if not ranked:
        return [((), 1.0)]
    total = max(sum(chance for _, chance in ranked), 1e-9)
    if name == "between" and len(ranked) > 1 and ranked[1][1] > _SECOND * total:
        both = tuple(sorted(number for number, _ in ranked[:2]))
        return [(both, (ranked[0][1] + ranked[1][1]) / total)]
    return [(() if number == NOBODY else (number,), chance / total) for number, chance in ranked]


@lru_cache(maxsize=1)
def sentence_reader() -> SentenceReader | None:
    """The shipped reader, loaded once; None where MiniLM's package is missing or not the known one."""
    try:
        return SentenceReader.load()
    except (ImportError, OSError, ValueError) as error:
        _LOG.warning("the learned reader cannot be loaded, sentences are read by the closed grammar alone: %s", error)
        return None
