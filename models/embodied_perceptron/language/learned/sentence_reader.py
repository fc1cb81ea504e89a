"""Reads a sentence with the network: its words -> :class:`~.graph.SentenceGraph`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
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
        """The likeliest graph over ``words`` of ``text``, and where something else may be meant the next one."""
        if not words:
            return (SentenceGraph("none"),)
        with torch.inference_mode():
            scores = self.network(self.network.batch([text], [[(w.start, w.end) for w in words]]))
        return graphs_of(scores, 0, len(words))


def graphs_of(scores: Scores, b: int, count: int) -> tuple[SentenceGraph, ...]:
    """The likeliest graph over the ``count`` words of sentence ``b``, and the same about another of its things."""
    chance = scores.intent[b].float().softmax(dim=0)
    parts = scores.parts[b, :count].float().softmax(dim=1).numpy()
    denied = scores.denied[b, :count].float().sigmoid().numpy()
    arcs = {name: scores.arcs[name][b, :count, : 1 + count].float().numpy() for name in ARCS}
    best = int(chance.argmax())
    intent, sure = INTENTS[best], float(chance[best])
    if intent == "none":
        return (SentenceGraph("none", probability=sure),)
    found = _pieces(parts)
    if intent != "contents" and not any(kind == TARGET for kind, *_ in found):
        found = _with_target(parts, found)
        if not found:
            return (SentenceGraph("none", probability=sure),)
    graphs = [_graph(intent, sure, found, arcs, denied)]
    other = _about_another(parts, found)
    if other is not None:
        share, pieces = other
        again = _graph(intent, sure, pieces, arcs, denied)
        graphs.append(replace(again, probability=min(graphs[0].probability * share, 1.0)))
    return tuple(graphs)


def _graph(intent: str, sure: float, pieces: Sequence[_Piece], arcs: dict[str, F32], denied: F32) -> SentenceGraph:
    """Things and what is told of them, ``pieces`` with the likeliest arcs between them."""
    things = _things([piece for piece in pieces if piece[0] in THINGS], arcs["same"])
    told = []
    for _, _, _, chance in pieces:
        sure *= chance
    for name, first, last, _ in pieces:
        if name in THINGS:
            continue
        owner, chance = _best_of(arcs["owner"][first], things)
        others: tuple[int, ...] = ()
        no = bool(denied[first] > 0.5) and name not in (NEGATION, EXCLUSION)
        if name in (NEGATION, EXCLUSION) or name.startswith("speaker-"):
            owner, chance = NOBODY, 1.0
        sure *= chance
        if name in WITH_OTHER:
            others, chance = _others(name, arcs["other"][first], things, owner)
            sure *= chance
        told.append(Told(first, last, name, owner, others, no))
    return SentenceGraph(intent, tuple(things), tuple(told), sure)


def _about_another(parts: F32, pieces: Sequence[_Piece]) -> tuple[float, list[_Piece]] | None:
    """The pieces with another thing as target, and how likely that is as a share of how likely they are as they are;
    None where they have one thing."""

    def chance(piece: _Piece, kind: str) -> float:
        column = 1 + KINDS.index(kind)
        _, first, last, _ = piece
        both = parts[first:last, column] + parts[first:last, column + len(KINDS)]
        return float(both.mean()) + 1e-6

    def instead(piece: _Piece) -> str:
        return max((k for k in THINGS if k not in (TARGET, EXCLUDED)), key=lambda kind: chance(piece, kind))

    old = [p for p in pieces if p[0] == TARGET]
    others = [p for p in pieces if p[0] in THINGS and p[0] not in (TARGET, EXCLUDED)]
    if not others:
        return None
    new = max(others, key=lambda p: chance(p, TARGET) / chance(p, p[0]))
    share = chance(new, TARGET) / chance(new, new[0])
    for piece in old:
        share *= chance(piece, instead(piece)) / chance(piece, TARGET)
    changed = [(TARGET, *p[1:]) if p == new else (instead(p), *p[1:]) if p[0] == TARGET else p for p in pieces]
    return share, changed


def _pieces(parts: F32) -> list[_Piece]:
    """The likeliest runs of words of one kind, in their order: (W, 1 + 2 K) probabilities -> pieces."""
    found: list[_Piece] = []
    for i, label in enumerate(_likeliest(parts)):
        if label == 0:
            continue
        kind, chance = KINDS[(label - 1) % len(KINDS)], float(parts[i, label])
        if label > len(KINDS):
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


def _best_of(row: F32, things: Sequence[Thing]) -> tuple[int, float]:
    chance = _chances(row, things)
    best = max(chance, key=lambda number: chance[number])
    return best, chance[best]


def _others(name: str, row: F32, things: Sequence[Thing], owner: int) -> tuple[tuple[int, ...], float]:
    """The other things of a relation of ``owner``, and how likely they are these."""
    chance = _chances(row, things)
    chance.pop(owner, None)
    if name not in WITHOUT_OTHER:
        chance.pop(NOBODY, None)
    if not chance:
        return (), 1.0
    ranked = sorted(chance, key=lambda number: -chance[number])
    total = sum(chance.values())
    if name == "between" and len(ranked) > 1 and chance[ranked[1]] > _SECOND * total:
        return tuple(sorted(ranked[:2])), (chance[ranked[0]] + chance[ranked[1]]) / total
    best = ranked[0]
    return (() if best == NOBODY else (best,)), chance[best] / max(total, 1e-9)


@lru_cache(maxsize=1)
def sentence_reader() -> SentenceReader | None:
    """The shipped reader, loaded once; None where MiniLM's package is missing or not the known one."""
    try:
        return SentenceReader.load()
    except (ImportError, OSError, ValueError) as error:
        _LOG.warning("the learned reader cannot be loaded, sentences are read by the rules: %s", error)
        return None
