"""Fit the sentence reader (:mod:`embodied_perceptron.language.query`) to marked sentences.

    embodied-perceptron dev fit-language training/language/*.txt      # writes lexicon/sentence_reader.safetensors

Every epoch uses new variations of the corpus (:mod:`.variation`) and new sentences of the slot grammar
(:mod:`.slot_grammar`). An interrupted fit continues after the last complete epoch.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from embodied_perceptron.inference.loading import cpu_products
from embodied_perceptron.language.lexicon import serving
from embodied_perceptron.language.meaning import ENTITIES, SentenceGraph
from embodied_perceptron.language.query import READER_WEIGHTS, SentenceReader, graphs_of, new_network
from embodied_perceptron.nn.sentence_network import Scores, SentenceNetwork
from embodied_perceptron_training.language.markup import ENTITIES as LETTERS
from embodied_perceptron_training.language.markup import MarkedSentence, load_corpus
from embodied_perceptron_training.language.reader_data import Example, example_of, graph_of, loss_of
from embodied_perceptron_training.language.slot_grammar import SlotGrammar
from embodied_perceptron_training.language.variation import PRONOUNS, Variation, is_plural

_BATCH = 64
_RATE, _ADAPTER_RATE = 1e-3, 1.2e-3
_FROM_WEIGHTS = 0.5  # factor of the rates of a fit that begins with weights
_SHUFFLED, _LEAST_SHUFFLED = 0.04, 8  # share of sentences with a shuffled copy, and least words of these
_WARM = 0.06  # share of warm-up steps
_LEAST_TALK = 4  # least words of small talk


def batches(sentences: Sequence[Example], rng: np.random.Generator | None = None) -> Iterator[list[Example]]:
    """Batches of sentences of similar length; in random order with ``rng``."""
    lengths = np.array([len(e.words) for e in sentences])
    order = np.argsort(lengths if rng is None else lengths + rng.random(len(sentences)) * 4, kind="stable")
    piles = [order[k : k + _BATCH] for k in range(0, len(order), _BATCH)]
    for k in range(len(piles)) if rng is None else rng.permutation(len(piles)):
        yield [sentences[i] for i in piles[k]]


def scores_of(network: SentenceNetwork, pile: Sequence[Example]) -> Scores:
    batch = network.batch([e.text for e in pile], [e.words for e in pile])
    products = cpu_products("auto")  # without instructions for it, bfloat16 takes ten times as long
    with torch.autocast("cpu", torch.bfloat16, enabled=products == torch.bfloat16):
        scores = network(batch)
    return Scores(
        scores.intent.float(), scores.parts.float(), scores.denied.float(),
        {name: arc.float() for name, arc in scores.arcs.items()},
    )  # fmt: skip


def shuffled(sentence: MarkedSentence, rng: np.random.Generator) -> MarkedSentence:
    """A sentence with shuffled words, which means nothing."""
    words = sentence.text.split()
    return MarkedSentence("none", " ".join(words[int(k)] for k in rng.permutation(len(words))))


def named_entities(corpus: Sequence[MarkedSentence]) -> list[str]:
    """Nouns of one or two words for entities of the corpus, in singular."""
    found = set()
    for sentence in corpus:
        for span, tag in sentence.tags:
            sentences = sentence.text[span.start : span.end].lower()
            if (
                tag.entity in LETTERS
                and not tag.name
                and re.fullmatch(r"[a-z]{3,}( [a-z]{3,})?", sentences)
                and not is_plural(sentences)
            ):
                found.add(sentences)
    return sorted(name for name in found if name not in PRONOUNS and not serving(name.split()))


class Draw:
    """Draws the sentences of an epoch: a variation of a ``share`` of the marked ones, ``made`` of the slot grammar, and
    some shuffled ones."""

    def __init__(self, corpus: Sequence[MarkedSentence], share: float, made: int, seed: int) -> None:
        self.corpus, self.share, self.made, self.seed = corpus, share, made, seed
        self.grammar = SlotGrammar()
        self.talk = [s.text for s in corpus if s.intent == "none" and len(s.text.split()) >= _LEAST_TALK]
        self.names = named_entities(corpus)

    def __call__(self, epoch: int) -> list[Example]:
        rng = np.random.default_rng((self.seed, epoch))
        vary = Variation(rng, talk=self.talk, names=self.names)
        light = Variation(rng, noise=0.3, talk=self.talk, names=self.names)
        sentences = [vary(s) for s in self.corpus if rng.random() < self.share]
        sentences += [light(s, keep=1.0) for s in self.grammar.draw(rng, self.made)]
        sentences += [
            shuffled(s, rng) for s in sentences if len(s.text.split()) >= _LEAST_SHUFFLED and rng.random() < _SHUFFLED
        ]
        examples = [example_of(s) for s in sentences]
        return [e for e in examples if 0 < len(e.words) <= 80]


def fit(
    network: SentenceNetwork,
    draw: Draw,
    epochs: int,
    state: Path | None = None,
    say: Callable[[str], None] = print,
    rate: float = 1.0,
) -> None:
    """Train adapters and heads; ``state``: checkpoint file to continue from; ``rate``: factor of the rates."""
    trained = network.trained()
    adapters = [value for name, value in trained.items() if name.endswith((".down", ".up"))]
    heads = [value for name, value in trained.items() if not name.endswith((".down", ".up"))]
    optimizer = torch.optim.AdamW(
        [{"params": heads, "lr": _RATE}, {"params": adapters, "lr": _ADAPTER_RATE}], weight_decay=0.01
    )
    rates = [_RATE, _ADAPTER_RATE]
    first, sentences = 0, draw(0)
    steps_each = 1 + (len(sentences) - 1) // _BATCH
    total, done = steps_each * epochs, 0
    if state is not None and state.exists():
        kept = torch.load(state, weights_only=True)
        for name, value in trained.items():
            value.data.copy_(kept["weights"][name])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["epoch"] + 1
        done = first * steps_each
        say(f"continuing with epoch {first}")
    network.train()
    for epoch in range(first, epochs):
        sentences = draw(epoch) if epoch else sentences
        rng = np.random.default_rng((draw.seed, epoch, 1))
        begin, losses = time.monotonic(), []
        for pile in batches(sentences, rng):
            share = min(done / total, 1.0)
            factor = rate * min(share / _WARM, 1.0) * (0.5 + 0.5 * math.cos(math.pi * share))
            for group, full in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = full * factor
            loss = loss_of(scores_of(network, pile), pile)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(heads + adapters, 5.0)
            optimizer.step()
            losses.append(loss.item())
            done += 1
        say(f"epoch {epoch}: loss {np.mean(losses):.3f}, {time.monotonic() - begin:.0f} s")
        if state is not None:
            torch.save(
                {
                    "weights": {n: v.data for n, v in trained.items()},
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                },
                state,
            )
    network.eval()


def facts_of(graph: SentenceGraph) -> set[tuple[object, ...]]:
    """Entities and predicates of a graph as a set, by word positions."""
    words: dict[int, list[tuple[int, int]]] = {}
    for t in graph.entities:
        words.setdefault(t.number, []).append((t.first, t.last))
    of = {number: min(places) for number, places in words.items()}
    facts: set[tuple[object, ...]] = {("thing", t.first, t.last, t.kind) for t in graph.entities}
    for t in graph.predicates:
        if t.name in ("neg", "excl", "other", "any"):
            continue
        facts.add((t.name, of.get(t.owner), *sorted(of[o] for o in t.others if o in of), t.denied))
    return facts


def measure(reader: SentenceReader, corpus: Sequence[MarkedSentence]) -> dict[str, float]:
    """Percent of sentences, intents, targets, entities and predicates read correctly, and the F1 of facts."""
    count: Counter[str] = Counter()
    examples = [(s, example_of(s)) for s in corpus]
    with torch.inference_mode():
        for k in range(0, len(examples), _BATCH):
            pile = examples[k : k + _BATCH]
            scores = scores_of(reader.network, [e for _, e in pile])
            for b, (sentence, example) in enumerate(pile):
                wanted = graph_of(sentence)[1]
                read = graphs_of(scores, b, len(example.words))[0]
                right, given = facts_of(wanted), facts_of(read)
                entities, predicates = (
                    {f for f in right if (f[0] == "thing") == is_thing}
                    == {f for f in given if (f[0] == "thing") == is_thing}
                    for is_thing in (True, False)
                )
                target = {f for f in right if f[-1] == ENTITIES[0]} == {f for f in given if f[-1] == ENTITIES[0]}
                same = right == given and wanted.intent == read.intent
                count.update(
                    n=1, same=same, intent=wanted.intent == read.intent, entities=entities, predicates=predicates,
                    target=target, hit=len(right & given), given=len(given), right=len(right),
                )  # fmt: skip
    share = {
        name: round(100 * count[name] / max(count["n"], 1), 1)
        for name in ("same", "intent", "target", "entities", "predicates")
    }
    return {**share, "f1": round(200 * count["hit"] / max(count["given"] + count["right"], 1), 1)}


@dataclass(frozen=True)
class Fit:
    """Options of a fit.

    Attributes:
        corpus: files of marked sentences.
        out: file of the weights; None = the package's own.
        start: initial weights, or None.
        kept: held-out files.
        epochs: passes over the corpus.
        seed: of all random draws.
        share: of the corpus in an epoch.
        made: sentences of the slot grammar in an epoch.
        average: write the mean of the initial and the fitted weights, which forgets less (arXiv:2109.01903).
    """

    corpus: tuple[Path, ...]
    out: Path | None = None
    start: Path | None = None
    kept: tuple[Path, ...] = ()
    epochs: int = 6
    seed: int = 0
    share: float = 1.0
    made: int = 8000
    average: bool = False


def run(wanted: Fit, say: Callable[[str], None] = print) -> dict[str, float]:
    """Fit, write the weights, and measure on the kept files.

    Raises ``ValueError`` for an incorrectly marked file, and for a mean without initial weights.
    """
    if wanted.average and wanted.start is None:
        raise ValueError("the mean with the initial weights needs initial weights: give --start")
    torch.manual_seed(wanted.seed)
    corpus, kept = load_corpus(wanted.corpus), load_corpus(wanted.kept)
    out = wanted.out or READER_WEIGHTS
    network = new_network()
    if wanted.start is not None:
        network.load_trained(wanted.start)
    begun = {n: v.detach().clone() for n, v in network.trained().items()}
    say(f"{len(corpus)} marked sentences")
    state = out.with_suffix(".state")
    rate = 1.0 if wanted.start is None else _FROM_WEIGHTS
    fit(network, Draw(corpus, wanted.share, wanted.made, wanted.seed), wanted.epochs, state, say, rate)
    for name, value in network.trained().items() if wanted.average else ():
        value.data.copy_(0.5 * (begun[name] + value))
    save_file({n: v.detach().half().contiguous() for n, v in network.trained().items()}, out)
    state.unlink(missing_ok=True)
    return measure(SentenceReader(network), kept) if kept else {}
