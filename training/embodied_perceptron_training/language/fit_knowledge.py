"""Make ``noun_knowledge.safetensors``: vectors of nouns and their definitions in WordNet, and their calibration.

    python -m embodied_perceptron_training.language.fit_knowledge LIST.json ... --wordnet /usr/share/wordnet

Nouns: labels and nouns of the lexicon, and common artifacts of WordNet 3.0 (the Debian package ``wordnet-base``). The
calibration is fitted to lists of sentences in the format of ``benchmarks/data/robot_sentences.json``, also with the
objects meant taken away. ``--keep`` keeps the vectors and fits the calibration only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from embodied_perceptron.language.knowledge import (
    KNOWLEDGE,
    TRAITS,
    NounKnowledge,
    is_named,
    noun_knowledge,
    texts_of,
    vector_of,
)
from embodied_perceptron.language.lexicon import affordances, lexicon
from embodied_perceptron_training.language.fit_names import is_plain

_THINGS = {5, 6, 13, 17, 18, 20, 27}  # lexicographer files of definitions: animal, artifact, food, ...
_ARTIFACT = 6
_KINDS = frozenset(("reason", "need", "needs", "unusual", "affordance", "uses", "does"))
_TAKEN_AWAY = 0.3  # weight of a sentence whose objects are taken away
_KIN = 0.3  # similarity of labels that are taken away together
_SHRINKAGE, _COST = 1.0, 2.0  # a wrong answer costs as much as two without an answer


def definitions(folder: Path) -> tuple[dict[str, str], set[str]]:
    """Definition of the most frequent physical sense of each noun, and the artifacts that WordNet's corpora contain."""
    sense = {}
    for line in (folder / "data.noun").read_text(encoding="utf-8").splitlines():
        head, _, gloss = line.partition(" | ")
        if not line.startswith("  ") and int(head.split(" ")[1]) in _THINGS:
            sense[head.split(" ")[0]] = int(head.split(" ")[1]), gloss.split('; "')[0].strip()
    found, artifacts = {}, set()
    for line in (folder / "index.noun").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        keys = [] if line.startswith("  ") else [key for key in fields[-int(fields[2]) :] if key in sense]
        noun = fields[0].replace("_", " ")
        if keys:
            found[noun] = sense[keys[0]][1]
        if keys and sense[keys[0]][0] == _ARTIFACT and int(fields[-int(fields[2]) - 1]) and is_plain(noun):
            artifacts.add(noun)
    return found, artifacts


def new_knowledge(folder: Path) -> NounKnowledge:
    """Vectors of all nouns; without calibration."""
    found, artifacts = definitions(folder)
    served = {noun for nouns in affordances().values() for noun in nouns}
    common = sorted(lexicon().labels | served)
    nouns = [*common, *sorted((artifacts | lexicon().meaning.keys()) - set(common))]

    def definition(noun: str) -> str:
        words = noun.split()
        ends = (" ".join(words[k:]) for k in range(len(words)))
        return next((found[end] for end in ends if end in found), "")

    means = [np.mean([vector_of(text) for text in texts_of(noun, definition(noun))], axis=0) for noun in nouns]
    rows = {noun: row for row, noun in enumerate(nouns)}
    return NounKnowledge(rows, np.array(means, np.float32), len(common), np.zeros(len(TRAITS), np.float32))


def sentences(path: Path) -> Iterator[tuple[str, set[str], set[str]]]:
    """Text, labels of the scene and labels meant, of sentences that describe a thing or that name an absent one."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for query in data["queries"]:
        boxes = data["scenes"][query["scene"]]["detections"]
        meant = {boxes[i]["category"] for i in query.get("objects", ())}
        if (query["kind"] in _KINDS and meant) or query["status"] == ["NOT_FOUND"]:
            yield query["text"], {box["category"] for box in boxes}, meant


def calibrate(knowledge: NounKnowledge, lists: list[Path]) -> NDArray[np.float32]:
    """Weights of a logistic regression of whether the best label is meant."""
    rows, right, weight = [], [], []
    for text, labels, meant in (found for path in lists for found in sentences(path)):
        rest = {a for a in labels if all(lexicon().similarity(b, a) < _KIN for b in meant)}
        for kept, count in ((labels, 1.0), (rest, _TAKEN_AWAY))[: 1 + bool(meant and rest)]:
            label, traits = knowledge.traits(text, kept)
            if is_named(label, text):
                continue  # answered by its name
            rows.append(traits)
            right.append(label in meant)
            weight.append(count)
    x, y, w = np.array(rows, np.float64), np.array(right, np.float64), np.array(weight)
    beta = np.zeros(x.shape[1])
    for _ in range(30):  # Newton's method
        p = 1.0 / (1.0 + np.exp(-x @ beta))
        slope = (x * (w * p * (1.0 - p))[:, None]).T @ x + _SHRINKAGE * np.eye(len(beta))
        beta += np.linalg.solve(slope, x.T @ (w * (y - p)) - _SHRINKAGE * beta)
    p = 1.0 / (1.0 + np.exp(-x @ beta))
    for low in np.arange(0.0, 1.0, 0.2):
        inside = (p >= low) & (p < low + 0.2)
        share = (w * y)[inside].sum() / max(w[inside].sum(), 1e-9)
        print(f"stated {low:.1f} to {low + 0.2:.1f}: right {share:.2f}, n {inside.sum()}")
    beta[0] -= np.log(_COST)
    return beta.astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", type=Path, nargs="+")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"), help="folder of data.noun")
    parser.add_argument("--keep", action="store_true", help="the vectors")
    arguments = parser.parse_args()
    knowledge = noun_knowledge() if arguments.keep else new_knowledge(arguments.wordnet)
    weights = calibrate(knowledge, arguments.lists)
    print(dict(zip(TRAITS, weights.round(2).tolist(), strict=True)))
    tables = {
        "nouns": np.frombuffer("\n".join(knowledge.rows).encode("utf-8"), np.uint8).copy(),
        "vectors": (127.0 * knowledge.vectors).round().astype(np.int8),
        "common": np.array([knowledge.common]),
        "weights": weights,
    }
    save_file(tables, KNOWLEDGE)


if __name__ == "__main__":
    main()
