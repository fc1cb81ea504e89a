"""Open-vocabulary labels: objects of the map answer to words that none of their labels is, by an image-text encoder.

A word competes with the objects' own labels and with a few that say nothing: an object is called so where it takes the
larger part of the softmax over all of them, so that a word that fits nothing names nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.detection2d.zero_shot import ObjectEmbeddings
from embodied_perceptron.results import UNNAMED, SceneObject

_ANSWERS = 0.35  # likeness of label and word from which on the label answers
_NEUTRAL = ("object", "wall", "floor")  # words that everything resembles a little
_PROMPT = "a photo of a {}"
_SHARPNESS = 100.0  # of the softmax over cosines, as CLIP is trained
_MIN_SHARE = 0.5
_MAX_TEXTS = 512


class TextEncoder(Protocol):
    """Words in the space of the pictures."""

    def texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """N texts -> (N, D) float32 unit vectors."""
        ...


class OpenVocabularyLabels:
    """Embeddings of the map's objects, and words scored against them. Thread-safe.

    Args:
        encoder: of words; its pictures' embeddings come by :meth:`update`.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._lock = threading.Lock()
        self._objects = ObjectEmbeddings()
        self._texts: OrderedDict[str, NDArray[np.float32]] = OrderedDict()

    def update(
        self, objects: Sequence[SceneObject], boxes: NDArray[np.float64], vectors: Sequence[NDArray[np.float32] | None]
    ) -> None:
        """As :meth:`~embodied_perceptron.detection2d.zero_shot.ObjectEmbeddings.update`."""
        with self._lock:
            self._objects.update(objects, boxes, vectors)

    def clear(self) -> None:
        """Another map."""
        with self._lock:
            self._objects.clear()

    def __len__(self) -> int:
        return len(self._objects)

    def shares(self, noun: str, labels: Sequence[str]) -> dict[int, float]:
        """How far each object looks like ``noun`` rather than like any of ``labels``; in [0, 1], by id."""
        words = list(dict.fromkeys([noun, *labels, *_NEUTRAL]))
        vectors = self._encode(words)
        with self._lock:
            columns = [self._objects.similarities(vector) for vector in vectors]
        result = {}
        for known in columns[0]:
            logits = _SHARPNESS * np.array([column[known] for column in columns])
            weight = np.exp(logits - logits.max())
            result[known] = float(weight[0] / weight.sum())
        return result

    def renamed(
        self, objects: Sequence[SceneObject], nouns: Sequence[str], likeness: Callable[[str, str], float]
    ) -> tuple[SceneObject, ...]:
        """``objects``, those that look like a noun under its name, with scores times its share; as they are where some
        label answers to each noun.

        Args:
            nouns: of a sentence.
            likeness: of a noun and a label, in [0, 1].
        """
        labels = tuple(sorted({o.label for o in objects} - {UNNAMED}))
        unknown = [noun for noun in nouns if all(likeness(noun, label) < _ANSWERS for label in labels)]
        if not unknown or not len(self):
            return tuple(objects)
        shares = {noun: self.shares(noun, labels) for noun in unknown}
        result = []
        for thing in objects:
            noun = max(unknown, key=lambda n: shares[n].get(thing.id, 0.0))
            share = shares[noun].get(thing.id, 0.0)
            result.append(thing if share < _MIN_SHARE else replace(thing, label=noun, score=thing.score * share))
        return tuple(result)

    def _encode(self, words: Sequence[str]) -> list[NDArray[np.float32]]:
        with self._lock:
            new = [word for word in words if word not in self._texts]
        if new:
            vectors = self._encoder.texts([_PROMPT.format(word) for word in new])
            with self._lock:
                self._texts.update(zip(new, vectors, strict=True))
        with self._lock:
            found = [self._texts[word] for word in words]
            while len(self._texts) > _MAX_TEXTS:
                self._texts.popitem(last=False)
        return found
