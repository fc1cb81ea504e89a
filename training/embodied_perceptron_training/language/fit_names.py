"""Extract WordNet's nouns of physical objects, and fit the likelihood that a noun refers to a label.

    python -m embodied_perceptron_training.language.fit_names --wordnet /usr/share/wordnet

Writes ``wordnet_nouns.txt.gz`` and ``noun_likelihood.safetensors`` into the lexicon. WordNet 3.0 is the Debian package
``wordnet-base``; word vectors are those of MiniLM, reduced to few dimensions. Prints the results of five-fold cross
validation over groups of nouns. Takes about five minutes.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import nn

from embodied_perceptron.language import lexicon as lexicon_package
from embodied_perceptron.language.lexicon import (
    NOUN_FEATURES,
    NOUN_WEIGHTS,
    TAXONOMY,
    NounLikelihood,
    NounTaxonomy,
    lexicon,
    listed_words,
)
from embodied_perceptron.nn.text_encoder import text_encoder

F32 = NDArray[np.float32]

_FILES = {5, 6, 10, 13, 17, 18, 20, 27}  # WordNet's lexicographer files: animal, artifact, communication, food, ...
_MADE = {6, 13}  # files whose words get a vector
_SENSES = 4
_SHORT = 3  # letters of words that may be missing in the list of English words
_CHANNELS, _HIDDEN, _FOLDS, _STEPS = 48, 16, 5, 1500
_POSITIVE, _NEGATIVE = 512, 4096  # of a batch


def is_plain(lemma: str) -> bool:
    """Whether a lemma consists of common words, not of Latin names of plants."""
    words = lemma.replace("-", " ").replace("'", " ").split()
    return all(len(word) <= _SHORT or not word.isalpha() or word in listed_words() for word in words)


def read_wordnet(folder: Path) -> tuple[str, list[str]]:
    """Read ``data.noun`` and ``index.noun``: lines for :meth:`NounTaxonomy.read`, and words of artifacts and food.

    Raises ``FileNotFoundError`` for a folder without them.
    """
    file_of, lemmas_of, parents_of, instances = {}, {}, {}, set()
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            continue  # the licence
        fields = line.split(" ")
        key, count = fields[0], int(fields[3], 16)
        file_of[key] = int(fields[1])
        lemmas_of[key] = [fields[4 + 2 * i].lower().replace("_", " ") for i in range(count)]
        first = 5 + 2 * count
        pointers = [fields[first + 4 * i : first + 4 * i + 4] for i in range(int(fields[first - 1]))]
        parents_of[key] = [p[1] for p in pointers if p[0] in ("@", "@i") and p[2] == "n"]
        instances |= {key for p in pointers if p[0] == "@i"}
    rank_of: dict[tuple[str, str], int] = {}
    for line in (folder / "index.noun").read_text(encoding="utf-8").splitlines():
        if not line.startswith("  "):
            fields = line.split()
            for rank, key in enumerate(fields[-int(fields[2]) :]):
                rank_of[fields[0].replace("_", " "), key] = rank
    chosen = [
        key for key in file_of
        if file_of[key] in _FILES and key not in instances and any(map(is_plain, lemmas_of[key]))
    ]  # fmt: skip
    kept, todo = set(chosen), list(chosen)
    for key in todo:  # grows
        todo += [parent for parent in parents_of[key] if parent not in kept]
        kept.update(parents_of[key])
    order = sorted(kept)
    number = {key: i for i, key in enumerate(order)}
    senses: dict[str, list[tuple[int, str]]] = {}
    for key in chosen:
        for lemma in filter(is_plain, lemmas_of[key]):
            senses.setdefault(lemma, []).append((rank_of.get((lemma, key), 9), key))
    ranks = {(lemma, key): rank for lemma, found in senses.items() for rank, key in sorted(found)[:_SENSES]}
    below = Counter(one for key in order for one in _above(key, parents_of))
    lines = []
    for key in order:
        names = [f"{x}:{ranks[x, key]}" for x in lemmas_of[key] if (x, key) in ranks and "," not in x and ":" not in x]
        lines.append(f"{below[key]};{' '.join(str(number[p]) for p in parents_of[key])};{','.join(names)}")
    made = {w for (lemma, key) in ranks if file_of[key] in _MADE for w in lemma.split() if w.isalpha()}
    return "\n".join(lines) + "\n", sorted(made)


def _above(key: str, parents_of: Mapping[str, Sequence[str]]) -> set[str]:
    """``key`` and all of its hypernyms."""
    found, todo = {key}, [key]
    for one in todo:  # grows
        todo += [parent for parent in parents_of[one] if parent not in found]
        found.update(parents_of[one])
    return found


def word_vectors(words: Sequence[str]) -> NDArray[np.int8]:
    """(W, C) principal components of MiniLM's vectors of single words, in 8 bits."""
    encoder = text_encoder("minilm")
    found = []
    with torch.no_grad():
        for start in range(0, len(words), 64):
            batch = encoder.tokenizer(list(words[start : start + 64]))
            features = encoder.model(input_ids=batch.ids, attention_mask=batch.mask.long()).last_hidden_state
            mask = batch.mask[..., None].float()
            found.append(nn.functional.normalize((features * mask).sum(1) / mask.sum(1), dim=1))
    vectors = torch.cat(found)
    centred = vectors - vectors.mean(0)
    main = torch.linalg.svd(centred, full_matrices=False).Vh[:_CHANNELS]
    cut = nn.functional.normalize(centred @ main.T, dim=1)
    return (cut * 127).round().to(torch.int8).numpy()


def listed_pairs() -> tuple[list[tuple[str, str]], F32, NDArray[np.int64]]:
    """Pairs (noun, label), their weights in the lexicon, and the groups of the nouns; without uses."""
    data = json.loads((Path(lexicon_package.__file__).parent / "nouns.json").read_text(encoding="utf-8"))
    labels = sorted(lexicon().labels)
    pairs, fits, groups = [], [], []
    for group, entry in enumerate(data["nouns"]):
        if not entry["say"][0].startswith(("something", "thing", "place", "anything")):
            for noun in entry["say"]:
                pairs += [(noun, label) for label in labels if label != noun]
                fits += [entry["mean"].get(label, 0.0) for label in labels if label != noun]
                groups += [group] * sum(label != noun for label in labels)
    return pairs, np.array(fits, np.float32), np.array(groups)


def fit(features: F32, fits: F32, seed: int) -> nn.Sequential:
    """Fit a network on the weights of pairs; positive pairs are drawn 1 : 8."""
    torch.manual_seed(seed)
    x, y = torch.from_numpy(features), torch.from_numpy(fits)
    network = nn.Sequential(nn.Linear(len(NOUN_FEATURES), _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1))
    optimiser = torch.optim.Adam(network.parameters(), 1e-2, weight_decay=1e-5)
    positive, negative = torch.nonzero(y > 0)[:, 0], torch.nonzero(y == 0)[:, 0]
    for _ in range(_STEPS):
        rows = torch.cat([rows[torch.randint(len(rows), (n,))] for rows, n in
                          ((positive, _POSITIVE), (negative, _NEGATIVE))])  # fmt: skip
        loss = nn.functional.binary_cross_entropy_with_logits(network(x[rows])[:, 0], y[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def predict(network: nn.Sequential, features: F32) -> F32:
    """(N,) likelihoods."""
    with torch.no_grad():
        likelihood: F32 = torch.sigmoid(network(torch.from_numpy(features))[:, 0]).numpy()
    return likelihood


def table_of(likelihood: F32, fits: F32, thresholds: Iterable[float] = (0.2, 0.35, 0.5)) -> str:
    """Recall of well-fitting and of all fitting pairs, and precision, per threshold."""
    rows = ["threshold  fits >= 0.8  fits at all  precision"]
    for threshold in thresholds:
        chosen = likelihood >= threshold
        well, at_all = chosen[fits >= 0.8].mean(), chosen[fits > 0].mean()
        rows.append(f"{threshold:9.2f}  {well:11.3f}  {at_all:11.3f}  {(fits[chosen] > 0).mean():9.3f}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="folder of data.noun")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    lines, made = read_wordnet(arguments.wordnet)
    TAXONOMY.write_bytes(gzip.compress(lines.encode("utf-8"), 9, mtime=0))
    taxonomy = NounTaxonomy.read(lines)
    listed = {word for text in (*lexicon().labels, *lexicon().meaning) for word in text.split()}
    words = sorted({*made, *listed})
    vectors = word_vectors(words)
    unit = vectors / np.maximum(np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True), 1e-9)
    zero = np.zeros((_HIDDEN, len(NOUN_FEATURES)), np.float32)
    asked = NounLikelihood(
        taxonomy, dict(zip(words, unit.astype(np.float32), strict=True)), zero, zero[:, 0], zero[:, 0], 0.0
    )
    pairs, fits, groups = listed_pairs()
    features = np.stack([asked.features(*pair) for pair in pairs])
    fold = np.random.default_rng(arguments.seed).integers(0, _FOLDS, groups.max() + 1)[groups]
    likelihood = np.zeros(len(fits), np.float32)
    for k in range(_FOLDS):
        likelihood[fold == k] = predict(fit(features[fold != k], fits[fold != k], arguments.seed), features[fold == k])
    print(f"{len(taxonomy.senses)} nouns, {len(taxonomy.parents)} synsets, {len(words)} vectors")
    print(table_of(likelihood, fits))
    hidden, _, out = fit(features, fits, arguments.seed)
    save_file(
        {
            "words": np.frombuffer("\n".join(words).encode("utf-8"), np.uint8).copy(),
            "vectors": vectors,
            "hidden": hidden.weight.detach().numpy(),
            "bias": hidden.bias.detach().numpy(),
            "out": out.weight.detach()[0].numpy(),
            "out_bias": out.bias.detach().numpy(),
        },
        NOUN_WEIGHTS,
    )


if __name__ == "__main__":
    main()
