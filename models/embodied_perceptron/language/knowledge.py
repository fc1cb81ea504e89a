"""The label that a sentence describes without its name: "the gizmo you squint down to see germs" is a microscope.

MiniLM's vector of the sentence is compared with vectors of nouns, each the mean over the noun, its use and its WordNet
definition (``embodied_perceptron_training.language.fit_knowledge``). A logistic regression gives the probability that
the best label is meant: how much better it fits than the other labels, and than common nouns that the scene lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from embodied_perceptron.language.lexicon import NOUN_WEIGHTS, lexicon, split_words
from embodied_perceptron.language.query import sentence_reader

F32 = NDArray[np.float32]

KNOWLEDGE = NOUN_WEIGHTS.with_name("noun_knowledge.safetensors")
TRAITS = ("one", "margin", "share", "above", "absent", "words")
_SAME = 0.8  # cosine of nouns that may name one object
_NAMED = 0.35  # least similarity of a label that a noun names
_SCALE = 0.04  # difference of cosines by which a noun fits e times better


def texts_of(noun: str, definition: str = "") -> list[str]:
    """What is known about a noun, in words."""
    return [noun, f"a {noun} is used for this", *([f"{noun}: {definition}"] if definition else [])]


def is_named(label: str, text: str) -> bool:
    """Whether a noun of a text names objects with a label."""
    nouns = lexicon().mentions(split_words(text), (label,))
    return any(lexicon().similarity(m.noun, label) >= _NAMED for m in nouns)


@lru_cache(maxsize=4096)
def vector_of(text: str) -> F32:
    """(C,) MiniLM's unit vector of a text."""
    return sentence_reader().vector(text)


@dataclass(frozen=True, eq=False)
class NounKnowledge:
    """Vectors of nouns, and the calibration.

    Attributes:
        rows: noun -> row of ``vectors``.
        vectors: (N, C) of the nouns.
        common: the first rows are of common nouns, which compete with the labels of a scene.
        weights: of :data:`TRAITS`.
    """

    rows: Mapping[str, int]
    vectors: F32
    common: int
    weights: F32

    def _vector(self, noun: str) -> F32:
        if noun in self.rows:
            return np.asarray(self.vectors[self.rows[noun]])
        return np.asarray(np.mean([vector_of(text) for text in texts_of(noun)], axis=0, dtype=np.float32))

    def traits(self, text: str, labels: Iterable[str]) -> tuple[str, F32]:
        """The label of ``labels``, which are not empty, that fits a text best, and (T,) :data:`TRAITS` of its fit."""
        names = sorted(set(labels))
        asked, own = vector_of(text), np.stack([self._vector(name) for name in names])
        fits, common = own @ asked, self.vectors[: self.common]
        best = int(fits.argmax())
        unit = own[best] / np.linalg.norm(own[best])
        others = fits[own @ unit < _SAME * np.linalg.norm(own, axis=1)]
        absent = (common @ asked)[(common @ unit < _SAME * np.linalg.norm(common, axis=1))]
        margin = float(fits[best] - others.max(initial=fits.min()))
        share = float(np.log1p(np.exp((others - fits[best]) / _SCALE).sum()))
        above = float((fits[best] - absent.mean()) / absent.std())
        missing = float(np.log(np.exp((absent - fits[best]) / _SCALE).sum()))
        return names[best], np.array([1.0, 10.0 * margin, share, above, missing, len(text.split()) / 10.0], np.float32)

    def guess(self, text: str, labels: Iterable[str]) -> tuple[str, float]:
        """The label that a text describes best, and the probability that it is meant; ("", 0) without labels."""
        labels = tuple(labels)
        if not labels:
            return "", 0.0
        name, traits = self.traits(text, labels)
        return name, float(1.0 / (1.0 + np.exp(-float(self.weights @ traits))))


@lru_cache(maxsize=1)
def noun_knowledge() -> NounKnowledge:
    """The shipped knowledge."""
    tables = load_file(KNOWLEDGE)
    nouns = bytes(tables["nouns"]).decode("utf-8").split("\n")
    rows = {noun: row for row, noun in enumerate(nouns)}
    vectors = tables["vectors"].astype(np.float32) / np.float32(127.0)
    return NounKnowledge(rows, vectors, int(tables["common"][0]), tables["weights"])
