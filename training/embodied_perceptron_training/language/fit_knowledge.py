"""Make ``noun_knowledge.safetensors``: vectors of what people say who mean a thing, and their calibration.

    python -m embodied_perceptron_training.language.fit_knowledge training/language/things/*.txt --lists LIST.json ...

The files hold lines ``noun: phrase``. The calibration is fitted to lists of sentences in the format of
``benchmarks/data/robot_sentences.json``, also with the objects meant taken away.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from embodied_perceptron.language.knowledge import (
    KNOWLEDGE,
    TRAITS,
    NounKnowledge,
    is_named,
    mean_vector,
    named,
    vector_of,
)
from embodied_perceptron.language.lexicon import lexicon

_KINDS = frozenset(("reason", "need", "needs", "unusual", "affordance", "uses", "does"))
_TAKEN_AWAY = 0.3  # weight of a sentence whose objects are taken away
_KIN = 0.3  # similarity of labels that are taken away together
_SHRINKAGE, _COST = 1.0, 2.0  # a wrong answer costs as much as two without an answer


def read_phrases(files: Sequence[Path]) -> dict[str, list[str]]:
    """Noun -> what people say who mean it.

    Raises ``ValueError`` naming a line without noun or phrase, and a noun with a single phrase.
    """
    found: dict[str, list[str]] = {}
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            noun, _, phrase = (part.strip() for part in line.partition(":"))
            if not (noun and phrase):
                raise ValueError(f"{path}:{number}: not `noun: phrase`: {line!r}")
            found.setdefault(noun, []).append(phrase)
    single = next((noun for noun, said in found.items() if len(said) < 2), None)
    if single is not None:
        raise ValueError(f"{single!r} has one phrase; each noun needs two or more")
    return found


def new_knowledge(phrases: Mapping[str, Sequence[str]]) -> NounKnowledge:
    """Vectors of all nouns and phrases; without calibration."""
    vectors = [np.stack([vector_of(text) for text in said]) for said in phrases.values()]
    means = np.stack([mean_vector(named(noun), own) for noun, own in zip(phrases, vectors, strict=True)])
    counts, weights = np.array([len(own) for own in vectors]), np.zeros(len(TRAITS), np.float32)
    return NounKnowledge(list(phrases), means, np.concatenate(vectors), counts, weights)


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
    parser.add_argument("phrases", type=Path, nargs="+")
    parser.add_argument("--lists", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    knowledge = new_knowledge(read_phrases(arguments.phrases))
    knowledge = replace(knowledge, weights=calibrate(knowledge, arguments.lists))
    print(dict(zip(TRAITS, knowledge.weights.round(2).tolist(), strict=True)))
    tables = {
        "nouns": np.frombuffer("\n".join(knowledge.nouns).encode("utf-8"), np.uint8).copy(),
        "means": (127.0 * knowledge.means).round().astype(np.int8),
        "phrases": (127.0 * knowledge.phrases).round().astype(np.int8),
        "counts": knowledge.counts.astype(np.uint8),
        "weights": knowledge.weights,
    }
    save_file(tables, KNOWLEDGE)


if __name__ == "__main__":
    main()
