"""Truth of a text about a scene: its tagged noun phrases against the objects of the scene."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.language.description import STRUCTURE, Mention
from embodied_perceptron.language.lexicon import lexicon, pluralize
from embodied_perceptron.results import UNNAMED, SceneObject
from embodied_perceptron_training.datasets.grand import GrandScene, GrandText


@dataclass(frozen=True)
class GroundingScore:
    """Counts of (mention, object) pairs; a mention without an object counts as one."""

    right: int = 0  # the object exists and fits the phrase
    misnamed: int = 0  # an object exists that does not fit
    hallucinated: int = 0  # no object exists, or the mention has none
    mentioned: int = 0  # true objects with a right mention
    there: int = 0  # all true objects

    def __add__(self, other: GroundingScore) -> GroundingScore:
        return GroundingScore(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def as_dict(self) -> dict[str, float]:
        """Percent: ``precision``, ``hallucinated``, ``misnamed`` of the mentions, ``recall`` of the objects."""
        named, there = max(self.right + self.misnamed + self.hallucinated, 1), max(self.there, 1)
        return {
            "precision": 100.0 * self.right / named,
            "misnamed": 100.0 * self.misnamed / named,
            "hallucinated": 100.0 * self.hallucinated / named,
            "recall": 100.0 * self.mentioned / there,
        }


_SAME_THING = 0.75  # likeness of noun and label


def score_mentions(
    mentions: Sequence[Mention],
    objects: Sequence[SceneObject],
    truth: Sequence[SceneObject] | None = None,
) -> GroundingScore:
    """Compare the mentions of a text with the objects.

    Args:
        mentions: of the text.
        objects: whose ids it uses.
        truth: true objects, matched with ``objects`` by an IoU of their boxes of 0.25 or more; None = ``objects``.
    """
    real = objects if truth is None else truth
    rows = {o.id: row for row, o in enumerate(objects)}
    if truth is None:
        there = np.eye(len(objects), dtype=bool)
    else:
        boxes = [np.array([o.box for o in part], dtype=np.float64).reshape(-1, 9) for part in (objects, truth)]
        there = Bounds.of(boxes[0]).iou(Bounds.of(boxes[1])) >= 0.25
    right = misnamed = hallucinated = 0
    met: set[int] = set()
    for mention in mentions:
        hallucinated += not mention.ids
        for known in mention.ids:
            columns = np.flatnonzero(there[rows[known]]) if known in rows else np.zeros(0, np.intp)
            fits = [int(j) for j in columns if _likeness(mention.phrase, real[int(j)].label) >= _SAME_THING]
            right += bool(fits)
            misnamed += not fits and len(columns) > 0
            hallucinated += len(columns) == 0
            met.update(fits)
    countable = [j for j, o in enumerate(real) if o.label not in (*STRUCTURE, UNNAMED)]
    return GroundingScore(right, misnamed, hallucinated, len(met & set(countable)), len(countable))


def score_texts(texts: Iterable[GrandText], scenes: Mapping[str, GrandScene]) -> dict[str, float]:
    """Percent: truth of the texts' mentions; the objects of a scene count once per text."""
    total = GroundingScore()
    for text in texts:
        total += score_mentions(text.mentions, scenes[text.scene].objects)
    return total.as_dict()


def _likeness(phrase: str, label: str) -> float:
    """Similarity of a noun phrase and a label; the phrase's last words are its noun."""
    words = phrase.split()
    ends = [" ".join(words[first:]) for first in range(len(words))]
    singular = [form for end in ends for form in (end, end.removesuffix("es"), end.removesuffix("s"))]
    if label in singular or pluralize(label) in ends:
        return 1.0
    return max((lexicon().similarity(form, label) for form in singular), default=0.0)
