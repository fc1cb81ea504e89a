"""The class names that are published, given at the start; all other objects are published as ``object``.

A category of the network or detector belongs to the name of the list that it equals, or that the lexicon has as its
synonym ("sofa" for the category "couch"). Remaining names are compared with the categories, and with labels that come
up later, by embeddings of a text encoder. Objects keep their categories: sentences may use all words, and saved maps do
not change.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import ConfigError
from embodied_perceptron.detection2d.detections2d import MAX_LABEL_LENGTH, clean_label
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.language.lexicon import lexicon
from embodied_perceptron.language.query import relabelled
from embodied_perceptron.nn.text_encoder import TextEncoder, text_encoder
from embodied_perceptron.recordings.files import read_text
from embodied_perceptron.recordings.recording import RecordingError
from embodied_perceptron.results import UNNAMED, Grounding, SceneObject

_LOG = logging.getLogger(__name__)
SAME_KIND = 0.8  # least weight in the lexicon of a category that belongs to a name
# Least cosine of MiniLM's sentence features of a category and a name that the lexicon lacks. Of the lexicon's 778 nouns
# that are no categories, 61 % have such a category, and it is correct for 82 % of these.
SAME_MEANING = 0.65
_CLOSE = 0.1  # cosine below the nearest category, for further ones ("display screen": monitor, screen)
MAX_NAMES = 10_000
MAX_NEW_NAMES = 2_000  # compared by embeddings, about 10 ms each
_MAX_BYTES = 2_000_000  # of a file with names
_ENCODED_AT_ONCE = 128

F32 = NDArray[np.float32]


def read_names(text: str) -> tuple[str, ...]:
    """Read names from a file with one per line, or from a text with commas between them.

    Blank lines and lines that begin with ``#`` are skipped. Raises :class:`ConfigError` for a file that is missing, too
    large or no text, and for a text without names or with an empty one.
    """
    path = Path(text)
    if os.path.isfile(text):  # unlike that of Path, False for a text that is too long for a path
        try:
            lines = read_text(path, _MAX_BYTES).splitlines()
        except RecordingError as error:
            raise ConfigError(str(error)) from error
        names = [name for line in lines if (name := line.strip()) and not name.startswith("#")]
        if not names:
            raise ConfigError(f"{path} names no class")
    elif len(text) <= 4096 and "," not in text and ("/" in text or path.suffix in (".txt", ".csv", ".names")):
        raise ConfigError(f"no file of class names at {text}")
    else:
        names = [name.strip() for name in text.split(",")] if text.strip() else []
    check_names(names)
    return tuple(names)


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Clean the names as the map writes them, duplicates included. Raises :class:`ConfigError` for an invalid name."""
    if not names:
        raise ConfigError("the list of classes is empty: name at least one, separated by commas, or a file")
    if len(names) > MAX_NAMES:
        raise ConfigError(f"{len(names):,} classes are more than {MAX_NAMES:,}")
    clean = []
    for number, name in enumerate(names, 1):
        if len(name) > MAX_LABEL_LENGTH:
            shown = f"{name[:40]!r}..."
            raise ConfigError(f"class {number} has {len(name):,} characters ({shown}): at most {MAX_LABEL_LENGTH}")
        label = clean_label(name)
        if not label:
            raise ConfigError(f"class {number} of {len(names)} is empty: {name!r}")
        clean.append(label)
    return tuple(clean)


class ClassList:
    """See the module docstring.

    Args:
        names: to be published, in any spelling.
        categories: known labels of the network and of a detector.
        encoder: makes the text encoder when it is first needed; None = names without a category match only themselves.

    Attributes:
        names: cleaned, without duplicates.
        doubles: number of duplicates.
        unmatched: names without a category.

    Raises :class:`ConfigError` for no names, too many, an empty one or one too long, and what ``encoder`` raises.
    """

    def __init__(
        self,
        names: Sequence[str],
        categories: Iterable[str] = (),
        encoder: Callable[[], TextEncoder] | None = None,
    ) -> None:
        clean = check_names(names)
        self.names = tuple(dict.fromkeys(clean))
        self.doubles = len(clean) - len(self.names)
        self._encoder = encoder
        self._by_label = self._synonyms()
        known = tuple(dict.fromkeys(categories))
        self._of = {UNNAMED: UNNAMED} | {label: self._by_words(label) for label in known}
        new = self._unanswered()
        if len(new) > MAX_NEW_NAMES:
            _LOG.warning("class list: of %d new names the first %d are compared by meaning", len(new), MAX_NEW_NAMES)
        self._new = new[:MAX_NEW_NAMES]  # compared with labels that belong to no name
        self._nearest: F32 | None = None  # cosine of each to the nearest category
        self._of |= self._by_meaning([label for label in known if self._of[label] == UNNAMED != label])
        self.unmatched = self._unanswered()
        if self.doubles:
            _LOG.warning("class list: %d of %d names are duplicates", self.doubles, len(clean))
        if known and self.unmatched:
            some = ", ".join(self.unmatched[:10]) + (", ..." if len(self.unmatched) > 10 else "")
            _LOG.warning(
                "class list: no category matches %d of %d names: %s", len(self.unmatched), len(self.names), some
            )

    def name_of(self, label: str) -> str:
        """The name of the list that ``label`` belongs to, or ``object``. Thread-safe."""
        name = self._of.get(label)
        if name is None:
            name = self._by_words(label)
            if name == UNNAMED:
                name = self._by_meaning([label]).get(label, UNNAMED)
            self._of[label] = name
        return name

    def _unanswered(self) -> tuple[str, ...]:
        answered = {UNNAMED, *self._of.values()}
        return tuple(name for name in self.names if name not in answered)

    # ---------------------------------------------------------------------------------------------------------- words

    def _synonyms(self) -> dict[str, str]:
        """Label -> name of the list: the name itself, or the name that means it most in the lexicon."""
        words, ranked = lexicon(), []
        for name in reversed(self.names):  # of equal weights the first name wins
            noun = name if name in words.meaning else words.surfaces.get(tuple(name.split()), (name, False))[0]
            labels = words.meaning.get(noun, {}).items()
            ranked += [(weight, label, name) for label, weight in labels if weight >= SAME_KIND]
        ranked.sort(key=lambda row: row[0])
        return {label: name for _, label, name in ranked} | {name: name for name in self.names}

    def _by_words(self, label: str) -> str:
        return self._by_label.get(clean_label(label), UNNAMED)

    # ------------------------------------------------------------------------------------------------------ embeddings

    def _by_meaning(self, labels: Sequence[str]) -> dict[str, str]:
        """Label -> nearest new name, where one is near enough."""
        if not labels or not self._new or self._encoder is None:
            return {}
        cosine = self._embedded(labels) @ self._vectors.T  # (labels, names)
        best = cosine.argmax(axis=1)
        value = cosine[np.arange(len(labels)), best]
        if self._nearest is None:
            self._nearest = cosine.max(axis=0)
        near = value >= np.maximum(SAME_MEANING, self._nearest[best] - _CLOSE)
        return {label: self._new[best[i]] for i, label in enumerate(labels) if near[i]}

    @cached_property
    def _vectors(self) -> F32:
        """(names, C) of the new names."""
        return self._embedded(self._new)

    @cached_property
    def _encode(self) -> TextEncoder:
        assert self._encoder is not None
        return self._encoder()

    def _embedded(self, texts: Sequence[str]) -> F32:
        """(N, C) unit vectors. Texts are batched by length: the longest sets the cost of a batch."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        vectors = np.empty((len(texts), self._encode.channels), np.float32)
        with torch.inference_mode():
            for first in range(0, len(order), _ENCODED_AT_ONCE):
                rows = order[first : first + _ENCODED_AT_ONCE]
                vectors[rows] = self._encode.encode([texts[i] for i in rows]).sentence.float().cpu().numpy()
        return vectors

    # ------------------------------------------------------------------------------------------------------- published

    def in_own_words(self, objects: Sequence[SceneObject], nouns: Iterable[str] = ()) -> tuple[SceneObject, ...]:
        """Published objects with their categories as labels, or their names where a noun is a name that the lexicon
        lacks."""
        own = {noun for noun in nouns if self._by_label.get(noun) == noun and noun not in lexicon().meaning}
        return tuple(
            replace(o, label=o.category, category="") if o.category and o.label not in own else o for o in objects
        )

    def restored(self, answer: Grounding, published: Sequence[SceneObject]) -> Grounding:
        """Give the objects of an answer about :meth:`in_own_words` their published labels."""
        labels = {o.id: o.label for o in published}
        return relabelled(answer, lambda o: labels[o.id] if o.id in labels else self.name_of(o.label))


def class_list(names: Sequence[str], inference: Predictor | None, lift: DetectionLift | None) -> ClassList:
    """The class list over the labels of a network and a detector; MiniLM is shared with a network that uses it.

    Raises as :class:`ClassList` and :func:`~.nn.text_encoder.text_encoder`.
    """
    known = (*(() if inference is None else inference.classes), *(() if lift is None else lift.vocabulary))
    grounding = None if inference is None else inference.network.config.grounding
    shared = inference.text_encoder if inference and grounding and grounding.text_encoder == "minilm" else None
    return ClassList(names, known, lambda: text_encoder("minilm") if shared is None else shared)
