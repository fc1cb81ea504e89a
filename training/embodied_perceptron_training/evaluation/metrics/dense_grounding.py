"""Dense grounding (3D-GRAND, arXiv 2406.05132): every noun phrase of a text with its objects.

The phrases of a text are tagged with their objects, ``<p>grey armchair</p>[<obj_4>]``. The tags are removed, each
sentence is asked in plain words, and the objects of the answer's phrases are compared with the tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from embodied_perceptron.results import Grounding
from embodied_perceptron_training.datasets.grounded_prompts import Phrase, sentences_of, without_tags

_TAGGED = re.compile(r"<p>([^<>]*)</p>\s*\[[^\[\]]*\]")  # also with tags of unknown objects, which are no phrases here
MOST_OBJECTS = 10  # scored, per phrase


@dataclass(frozen=True)
class DenseScore:
    """Counts over texts."""

    right: int = 0  # predicted objects that the phrase means
    predicted: int = 0  # predicted objects
    met: int = 0  # meant objects that were predicted
    meant: int = 0  # objects that the phrases mean
    located: int = 0  # phrases with a right object
    phrases: int = 0  # all phrases

    def __add__(self, other: DenseScore) -> DenseScore:
        return DenseScore(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def as_dict(self) -> dict[str, float]:
        """Percent: ``precision recall f1`` of the phrases' objects, ``located`` of the phrases; empty without any
        phrase."""
        if not self.phrases:
            return {}
        precision, recall = self.right / max(self.predicted, 1), self.met / max(self.meant, 1)
        f1 = 2 * precision * recall / max(precision + recall, 1e-12)
        figures = {"precision": precision, "recall": recall, "f1": f1, "located": self.located / self.phrases}
        return {name: 100.0 * value for name, value in figures.items()}


def score_dense(
    texts: Iterable[str],
    ask: Callable[[Sequence[str]], Sequence[Grounding]],
    same: Callable[[int, int], bool] = int.__eq__,
) -> DenseScore:
    """How well phrases of tagged texts about one scene are grounded.

    Args:
        texts: with tags; a text without any adds nothing.
        ask: answers sentences; the ids of its phrases are object ids.
        same: whether a predicted object (first) is a meant one (second), by their ids.
    """
    sentences: list[tuple[str, list[Phrase]]] = []
    for text in texts:
        plain, phrases = without_tags(_TAGGED.sub(lambda m: m[0] if "<obj_" in m[0] else m[1], text))
        for start, sentence in sentences_of(plain):
            end = start + len(sentence)
            own = [Phrase(p.start - start, p.end - start, p.ids) for p in phrases if start <= p.start < end]
            if own:
                sentences.append((sentence, own))
    total = DenseScore()
    for (_, phrases), answer in zip(sentences, ask([sentence for sentence, _ in sentences]), strict=True):
        for phrase in phrases:
            predicted = _predicted(answer, phrase)[:MOST_OBJECTS]
            right = [any(same(a, b) for b in phrase.ids) for a in predicted]
            met = [any(same(a, b) for a in predicted) for b in phrase.ids]
            total += DenseScore(sum(right), len(predicted), sum(met), len(phrase.ids), int(any(right)), 1)
    return total


def _predicted(answer: Grounding, phrase: Phrase) -> tuple[int, ...]:
    """Objects of the answer's phrase that shares most characters with ``phrase``; none where there is none."""
    shared = {p: min(p.end, phrase.end) - max(p.start, phrase.start) for p in answer.phrases}
    best = max(shared, key=lambda p: shared[p], default=None)
    return () if best is None or shared[best] <= 0 else tuple(best.ids)
