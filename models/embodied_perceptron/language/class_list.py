"""A list of names, given when perception starts: these are published, and what belongs to none of them is ``object``.

A name that is a category of the network or the detector stands for itself. A category also stands for the name of the
list that the lexicon gives it as a synonym ("sofa" for the category "couch"). Names that nothing stands for then, words
that nobody listed, are compared with the categories by the embeddings of a text encoder; so are labels that come up
later. Objects keep their categories: sentences may use all words, and maps are saved as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import ConfigError
from embodied_perceptron.detection2d.detections2d import MAX_LABEL_LENGTH, clean_label
from embodied_perceptron.detection2d.pipeline import DetectionLift
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.language.lexicon import Lexicon, lexicon
from embodied_perceptron.nn.text_encoder import TextEncoder, text_encoder
from embodied_perceptron.results import UNNAMED, Grounding, SceneObject

_LOG = logging.getLogger(__name__)
SAME_KIND = 0.8  # weight of the lexicon from which a category stands for a name
# Cosine of MiniLM's sentence features from which a category stands for a name that no lexicon knows. Of the lexicon's
# own 778 nouns that are no categories, 61 % have a category as near as that, and for 82 % of these it is a right one.
SAME_MEANING = 0.65
_CLOSE = 0.1  # of cosine behind the nearest category: what else stands for the name ("display screen": monitor, screen)
MAX_NAMES = 10_000
MAX_NEW_NAMES = 2_000  # that are compared by embeddings, which takes about 10 ms each
_MAX_BYTES = 2_000_000  # of a file with names
_ENCODED_AT_ONCE = 128
_SHOWN = 40  # characters of a name in a message

F32 = NDArray[np.float32]


def read_names(text: str) -> tuple[str, ...]:
    """Names as a user gives them: the path of a file with one a line, or several separated by commas.

    Blank lines of a file, and those that begin with ``#``, do not count. Raises :class:`ConfigError` for a file that is
    not there, too large or no text, and for a text without any name or with an empty one between commas.
    """
    path = Path(text)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a path, or no path at all
        is_file = False
    if is_file:
        return _names_in(path)
    if len(text) <= 4096 and "," not in text and ("/" in text or path.suffix in (".txt", ".csv", ".names")):
        raise ConfigError(f"no file of class names at {text}")
    if not text.strip():
        raise ConfigError("the list of classes is empty: name at least one, separated by commas, or a file")
    names = tuple(name.strip() for name in text.split(","))
    check_names(names)
    return names


def _names_in(path: Path) -> tuple[str, ...]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} is too large for a list of names: more than {_MAX_BYTES:,} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from error
    names = tuple(name for line in lines if (name := line.strip()) and not name.startswith("#"))
    if not names:
        raise ConfigError(f"{path} names no class")
    check_names(names)
    return names


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names as the map writes them, in order, doubles included. Raises :class:`ConfigError` naming a bad one."""
    if not names:
        raise ConfigError("the list of classes is empty")
    if len(names) > MAX_NAMES:
        raise ConfigError(f"{len(names):,} classes are more than {MAX_NAMES:,}")
    clean = []
    for number, name in enumerate(names, 1):
        if len(name) > MAX_LABEL_LENGTH:
            shown = name[:_SHOWN]
            raise ConfigError(f"class {number} has {len(name):,} characters ({shown!r}...): at most {MAX_LABEL_LENGTH}")
        label = clean_label(name)
        if not label:
            raise ConfigError(f"class {number} of {len(names)} is empty: {name!r}")
        clean.append(label)
    return tuple(clean)


class ClassList:
    """See the module docstring.

    Args:
        names: to be published, in any spelling; doubles count once.
        categories: labels of the network and of a detector, as far as they are known.
        encoder: makes the text encoder when a name or a label is known to nobody else; None = none: such names stand
            for themselves alone.
        words: synonyms; None = the lexicon of the package.

    Attributes:
        names: cleaned, without doubles.
        doubles: how many names stood there more than once.
        unmatched: names that no category stands for.

    Raises :class:`ConfigError` for no names, too many, an empty one or one too long, and what ``encoder`` raises.
    """

    def __init__(
        self,
        names: Sequence[str],
        categories: Iterable[str] = (),
        encoder: Callable[[], TextEncoder] | None = None,
        words: Lexicon | None = None,
    ) -> None:
        clean = check_names(names)
        self.names = tuple(dict.fromkeys(clean))
        self.doubles = len(clean) - len(self.names)
        self._words = lexicon() if words is None else words
        self._encoder = encoder
        self._encode: TextEncoder | None = None
        self._listed = frozenset(self.names)
        self._of: dict[str, str] = {UNNAMED: UNNAMED}
        self._by_label = self._synonyms()
        known = tuple(dict.fromkeys(categories))
        for label in known:
            self._of[label] = self._by_words(label)
        self._vectors: F32 | None = None
        new = self._unanswered()
        if len(new) > MAX_NEW_NAMES:
            _LOG.warning("class list: of %d new names the first %d are compared by meaning", len(new), MAX_NEW_NAMES)
        self._new = new[:MAX_NEW_NAMES]  # compared with labels that stand for nothing, now and later
        self._nearest: F32 | None = None  # of each, to the categories
        self._of |= self._by_meaning([label for label in known if self._of[label] == UNNAMED != label])
        self.unmatched = self._unanswered()
        if self.doubles:
            _LOG.warning("class list: %d of %d names stand there more than once", self.doubles, len(clean))
        if known and self.unmatched:
            some = ", ".join(self.unmatched[:10]) + (", ..." if len(self.unmatched) > 10 else "")
            _LOG.warning(
                "class list: no category answers to %d of %d names: %s", len(self.unmatched), len(self.names), some
            )

    def name_of(self, label: str) -> str:
        """The name of the list that ``label`` stands for, or ``object``. From any thread."""
        name = self._of.get(label)
        if name is None:
            name = self._by_words(label)
            if name == UNNAMED:
                name = self._by_meaning([label]).get(label, UNNAMED)
            self._of[label] = name
        return name

    def categories_of(self, name: str) -> tuple[str, ...]:
        """Labels that stand for a name, as far as they came up."""
        return tuple(label for label, of in self._of.items() if of == name)

    def _unanswered(self) -> tuple[str, ...]:
        answered = {UNNAMED, *self._of.values()}
        return tuple(name for name in self.names if name not in answered)

    # ---------------------------------------------------------------------------------------------------------- words

    def _synonyms(self) -> dict[str, tuple[float, str]]:
        """Label -> (weight, name of the list) where the lexicon has the name; of equal weights the first counts."""
        best: dict[str, tuple[float, str]] = {}
        for name in self.names:
            for label, weight in self._words.meaning.get(self._noun(name), {}).items():
                if weight >= SAME_KIND and weight > best.get(label, (0.0, ""))[0]:
                    best[label] = weight, name
        return best

    def _noun(self, name: str) -> str:
        """In singular, where the lexicon knows the plural."""
        return name if name in self._words.meaning else self._words.surfaces.get(tuple(name.split()), (name, False))[0]

    def _by_words(self, label: str) -> str:
        clean = clean_label(label)
        if clean in self._listed:
            return clean
        return self._by_label.get(clean, (0.0, UNNAMED))[1]

    # ------------------------------------------------------------------------------------------------------ embeddings

    def _by_meaning(self, labels: Sequence[str]) -> dict[str, str]:
        """Label -> the nearest of the new names, for those that have one."""
        if not labels or not self._new or self._encoder is None:
            return {}
        if self._vectors is None:
            self._vectors = self._embedded(self._new)
        cosine = self._embedded(labels) @ self._vectors.T  # (labels, names)
        best = cosine.argmax(axis=1)
        value = cosine[np.arange(len(labels)), best]
        if self._nearest is None:
            self._nearest = cosine.max(axis=0)
        near = value >= np.maximum(SAME_MEANING, self._nearest[best] - _CLOSE)
        return {label: self._new[best[i]] for i, label in enumerate(labels) if near[i]}

    def _embedded(self, texts: Sequence[str]) -> F32:
        """(N, C) unit vectors. Texts of like length go together: the longest sets the cost of all."""
        if self._encode is None:
            assert self._encoder is not None
            self._encode = self._encoder()
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        parts = []
        with torch.inference_mode():
            for first in range(0, len(order), _ENCODED_AT_ONCE):
                some = [texts[i] for i in order[first : first + _ENCODED_AT_ONCE]]
                parts.append(self._encode.encode(some).sentence.float().cpu().numpy())
        vectors = np.concatenate(parts)
        out = np.empty_like(vectors)
        out[order] = vectors
        return out

    # ------------------------------------------------------------------------------------------------------- published

    def in_own_words(self, objects: Sequence[SceneObject], nouns: Iterable[str] = ()) -> tuple[SceneObject, ...]:
        """Published objects as sentences speak of them: by their categories, but by their names where one of the
        ``nouns`` is a name that no lexicon knows."""
        own = {noun for noun in nouns if noun in self._listed and noun not in self._words.meaning}
        return tuple(
            replace(o, label=o.category, category="") if o.category and o.label not in own else o for o in objects
        )

    def restored(self, answer: Grounding, published: Sequence[SceneObject]) -> Grounding:
        """An answer about :meth:`in_own_words`, its objects under the names that are published."""
        labels = {o.id: o.label for o in published}

        def named(objects: tuple[SceneObject, ...]) -> tuple[SceneObject, ...]:
            return tuple(replace(o, label=labels[o.id] if o.id in labels else self.name_of(o.label)) for o in objects)

        return replace(answer, candidates=named(answer.candidates), nearest=named(answer.nearest))


def class_list(names: Sequence[str], inference: Predictor | None, lift: DetectionLift | None) -> ClassList:
    """``names`` to be published of all that a network and a detector know. Raises as :class:`ClassList`."""
    known = (*(() if inference is None else inference.classes), *(() if lift is None else lift.vocabulary))
    return ClassList(names, known, lambda: _names_encoder(inference))


def _names_encoder(inference: Predictor | None) -> TextEncoder:
    """MiniLM, whose sentence features compare names: the network's own where it reads sentences by it.

    Raises as :func:`~.nn.text_encoder.text_encoder`.
    """
    grounding = None if inference is None else inference.network.config.grounding
    if inference is not None and grounding is not None and grounding.text_encoder == "minilm":
        own = inference.text_encoder
        if own is not None:
            return own
    return text_encoder("minilm")
