"""The label that a sentence describes without its name: "the gizmo you squint down to see germs" is a microscope.

MiniLM's vector of the sentence is compared with vectors of what people say who mean a thing
(``training/language/things``): of each noun the mean, and the two phrases that are most similar. A noun without phrases
has its name alone. A logistic regression gives the probability that the best label is meant: how much better it fits
than the other labels, and than nouns that the scene lacks (``embodied_perceptron_training.language.fit_knowledge``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

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
_SCALE = 0.04  # difference of fits by which a noun fits e times better
_PHRASES = 0.7  # weight of the phrases in a noun's mean vector; the rest is of its names
_ROOM = 8  # labels that a described one is compared with; where there are fewer, nouns of usual fit stand in
_CLOSEST = 2  # phrases of a noun that count beside its mean


def is_named(label: str, text: str) -> bool:
    """Whether a noun of a text names objects with a label."""
    nouns = lexicon().mentions(split_words(text), (label,))
    return any(lexicon().similarity(m.noun, label) >= _NAMED for m in nouns)


@lru_cache(maxsize=4096)
def vector_of(text: str) -> F32:
    """(C,) MiniLM's unit vector of a text."""
    return sentence_reader().vector(text)


def named(noun: str) -> F32:
    """(2, C) vectors of texts that name a noun."""
    return np.stack([vector_of(noun), vector_of(f"a {noun} is used for this")])


def _unit(vectors: NDArray[np.floating]) -> F32:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)


def mean_vector(names: F32, phrases: F32) -> F32:
    """(C,) mean unit vector of the names and the phrases of a noun."""
    return _unit((1.0 - _PHRASES) * _unit(names.mean(axis=0)) + _PHRASES * _unit(phrases.mean(axis=0)))


@dataclass(frozen=True, eq=False)
class NounKnowledge:
    """What people say who mean a noun, and the calibration.

    Attributes:
        nouns: N nouns.
        means: (N, C) :func:`mean_vector` of each.
        phrases: (P, C) unit vectors of the phrases, in the order of the nouns.
        counts: (N,) phrases of each noun, at least two.
        weights: of :data:`TRAITS`.
    """

    nouns: Sequence[str]
    means: F32
    phrases: F32
    counts: NDArray[np.int64]
    weights: F32

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {noun: row for row, noun in enumerate(self.nouns)}

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """(N, K) rows of the phrases of each noun; P where it has fewer than others."""
        column, first = np.arange(self.counts.max()), self.counts.cumsum() - self.counts
        return np.where(column < self.counts[:, None], first[:, None] + column, len(self.phrases))

    def _fits(self, asked: F32) -> F32:
        """(N,) similarity of a sentence's vector and each noun."""
        said = np.append(self.phrases @ asked, -1.0)[self._places]
        closest = np.sort(said, axis=1)[:, -_CLOSEST:].mean(axis=1)
        return np.asarray(0.5 * (self.means @ asked + closest), np.float32)

    def traits(self, text: str, labels: Iterable[str]) -> tuple[str, F32]:
        """The label of ``labels``, which are not empty, that fits a text best, and (T,) :data:`TRAITS` of its fit."""
        names, asked = sorted(set(labels)), vector_of(text)
        every, own, of_labels = self._fits(asked), [], []
        for row, name in ((self._rows.get(name), name) for name in names):
            texts = named(name) if row is None else self.means[row : row + 1]
            own.append(_unit(texts.mean(axis=0)))
            of_labels.append((texts @ asked).max() if row is None else every[row])
        fits, means = np.array(of_labels), np.stack(own)
        best = int(fits.argmax())
        others, absent = fits[means @ means[best] < _SAME], every[self.means @ means[best] < _SAME]
        if len(others) < _ROOM:  # a room of the fit has more labels to choose from
            others = np.append(others, np.quantile(absent, np.linspace(0.5, 0.97, _ROOM - len(others))))
        margin = float(fits[best] - others.max())
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
    means, phrases = _unit(tables["means"]), _unit(tables["phrases"])
    return NounKnowledge(nouns, means, phrases, tables["counts"].astype(np.int64), tables["weights"])
