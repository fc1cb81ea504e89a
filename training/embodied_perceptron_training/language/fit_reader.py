"""The learned reader of relations (:mod:`embodied_perceptron.language.reader`), fitted on a grammar of its own.

    python -m embodied_perceptron_training.language.fit_reader             # writes lexicon/relation_reader.safetensors
    python -m embodied_perceptron_training.language.fit_reader --kept OUT  # without the kept phrases, measured on them

Sentences are those of :mod:`.reader_sentences`, their nouns those of generated homes; no sentence of people is read.
About half an hour on one core. Needs the package of MiniLM.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from embodied_perceptron.language.lexicon import lexicon, split_words
from embodied_perceptron.language.reader import WEIGHTS
from embodied_perceptron.nn.relation_reader import RELATIONS, NounBatch, RelationReader
from embodied_perceptron_training.language.reader_sentences import NOTHING, Example, Part, examples, home_nouns

_HOMES = range(720_000, 720_040)
_BATCH = 64
_RATE, _ADAPTER_RATE = 2e-3, 1e-3
Span = tuple[int, int]
Draw = Callable[[int], Sequence[Example]]


def nouns_of(example: Example) -> list[Span]:
    """Where the nouns of a sentence stand, as the parser finds them."""
    words = split_words(example.text)
    known = [example.text[start:end] for start, end in (example.target, *example.anchors)]
    return [(words[m.first].start, words[m.last - 1].end) for m in lexicon().mentions(words, known)]


def meant(example: Example, nouns: Sequence[Span], most: int) -> torch.Tensor:
    """(most * most * R + 1,) bool: the readings that are right, the last one that nothing is told; none where the
    parser does not find the nouns."""
    right = torch.zeros(most, most, len(RELATIONS), dtype=torch.bool)
    nothing = example.relation == NOTHING
    if not nothing and example.target in nouns and set(example.anchors) <= set(nouns):
        for anchor in example.anchors:
            right[nouns.index(example.target), nouns.index(anchor), RELATIONS.index(example.relation)] = True
    return torch.cat([right.flatten(), torch.tensor([nothing])])


def batches(said: Sequence[Example], rng: np.random.Generator | None = None) -> Iterator[list[Example]]:
    """Sentences of about one length together; in random order with ``rng``."""
    lengths = np.array([len(e.text) for e in said])
    order = np.argsort(lengths if rng is None else lengths + rng.random(len(said)) * 12, kind="stable")
    piles = [order[k : k + _BATCH] for k in range(0, len(order), _BATCH)]
    for k in range(len(piles)) if rng is None else rng.permutation(len(piles)):
        yield [said[i] for i in piles[k]]


def prepared(reader: RelationReader, said: Sequence[Example]) -> tuple[NounBatch, torch.Tensor]:
    """A batch and (B, M * M * R + 1) bool: its right readings."""
    nouns = [nouns_of(e) for e in said]
    batch = reader.batch([e.text for e in said], nouns)
    return batch, torch.stack([meant(e, n, batch.nouns.shape[1]) for e, n in zip(said, nouns, strict=True)])


def fit(reader: RelationReader, draw: Draw, epochs: int, seed: int) -> None:
    """Train adapters and head.

    Args:
        reader: to train.
        draw: epoch -> as many sentences in each, but others: the grammar can say more than one epoch reads.
        epochs: how many of them.
        seed: of the order of sentences.
    """
    trained = reader.trained()
    adapters = [value for name, value in trained.items() if name.endswith((".down", ".up"))]
    head = [value for name, value in trained.items() if not name.endswith((".down", ".up"))]
    groups = [{"params": head, "lr": _RATE}, {"params": adapters, "lr": _ADAPTER_RATE}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.02)
    said = draw(0)
    print(f"{len(said)} sentences an epoch", flush=True)
    steps = epochs * (1 + (len(said) - 1) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [_RATE, _ADAPTER_RATE], total_steps=steps)
    rng = np.random.default_rng(seed)
    reader.train()
    for epoch in range(epochs):
        said = draw(epoch) if epoch else said
        losses = []
        for pile in batches(said, rng):
            batch, right = prepared(reader, pile)
            pairs, nothing = reader(batch)
            chance = torch.cat([pairs.flatten(1), nothing], dim=1).log_softmax(dim=1)
            found = right.any(dim=1)
            loss = -chance.masked_fill(~right, -1e9).logsumexp(dim=1)[found].mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}", flush=True)
    reader.eval()


def measure(reader: RelationReader, said: Sequence[Example]) -> dict[str, float]:
    """Share of sentences whose likeliest reading is right, in percent, by kind and relation."""
    right_of: dict[str, list[bool]] = defaultdict(list)
    with torch.inference_mode():
        for pile in batches(said):
            batch, right = prepared(reader, pile)
            pairs, nothing = reader(batch)
            best = torch.cat([pairs.flatten(1), nothing], dim=1).argmax(dim=1)
            for example, hit in zip(pile, right.gather(1, best[:, None])[:, 0].tolist(), strict=True):
                for group in ("all", example.kind, example.relation):
                    right_of[group].append(hit)
    return {group: round(100 * float(np.mean(hits)), 1) for group, hits in right_of.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, metavar="OUT", help="leave the kept phrases out, and measure them")
    parser.add_argument("--per-form", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    reader = RelationReader().load_minilm()
    nouns = home_nouns(_HOMES)
    part: Part = "learned" if arguments.kept else "all"
    seed = arguments.seed

    def draw(epoch: int) -> list[Example]:
        return examples(part, nouns, arguments.per_form, 1_000 * seed + 10 * epoch + 1)

    fit(reader, draw, arguments.epochs, seed)
    weights = {name: value.detach().half().contiguous() for name, value in reader.trained().items()}
    save_file(weights, arguments.kept or WEIGHTS)
    if arguments.kept:
        print(measure(reader, examples("kept", nouns, 2, seed + 2)))


if __name__ == "__main__":
    main()
