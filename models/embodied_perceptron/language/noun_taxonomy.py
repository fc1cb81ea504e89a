"""What nouns name: WordNet's physical things, and how likely a label is meant by a noun that nobody listed.

A detector says "music stand", its user "the stand for the notes"; somebody asks for a "wardrobe" where the map knows a
"closet". The lexicon lists pairs that matter; for all others stand here the synonyms, kinds and kin of WordNet 3.0
(Fellbaum 1998), and vectors of words that MiniLM gives, as features of one small network that
``embodied_perceptron_training.language.fit_names`` fits on the listed pairs.

Only tables are read, no text encoder; what was asked once is remembered.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from embodied_perceptron.language.plurals import singular

_FOLDER = Path(__file__).parent / "lexicon"
TAXONOMY = _FOLDER / "wordnet_nouns.txt.gz"
WEIGHTS = _FOLDER / "noun_likelihood.safetensors"
FEATURES = (
    "same", "kind", "kind_steps", "special", "special_steps", "kinship", "rare_sense", "known",
    "label_ends_in_noun", "noun_ends_in_label", "same_head", "noun_modified", "label_modified", "modifiers_shared",
    "cosine",
)  # fmt: skip
_PER_SENSE = 0.06  # of kinship, that a sense must have more to be meant before the one that is said more often
_MODIFIED, _SPECIAL = 0.55, 0.3  # at most, of "table" for "swivel table", and of "chair" for "wheelchair"
_A_KIND = 0.6  # at least, of what WordNet says is one in a common sense: "orchid" for "plant"
_COMMON_SENSES = 2  # of a noun, those that are said most
_FEW_STEPS = 4.0
_LEAST_LETTERS = 3  # of each part of a word that is joined of two


@dataclass(frozen=True)
class Sense:
    """A meaning of a noun: its synset, and how many meanings the noun has that are said more often."""

    synset: int
    rank: int


@dataclass(frozen=True, eq=False)
class NounTaxonomy:
    """Synsets of physical things and what they are kinds of; immutable.

    Attributes:
        senses: lemma -> its senses, the commonest first.
        parents: per synset the synsets that it is a kind of.
        kinds: per synset how many synsets are kinds of it, itself included.
    """

    senses: Mapping[str, tuple[Sense, ...]]
    parents: Sequence[tuple[int, ...]]
    kinds: Sequence[int]
    _ancestors: dict[int, dict[int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> NounTaxonomy:
        """Of lines ``kinds;parents;lemma:rank,lemma:rank``, one a synset; parents are numbers of lines, from 0.

        Raises ``ValueError`` for another form.
        """
        parents: list[tuple[int, ...]] = []
        kinds: list[int] = []
        senses: dict[str, list[Sense]] = {}
        for synset, line in enumerate(text.splitlines()):
            count, above, lemmas = line.split(";")
            kinds.append(int(count))
            parents.append(tuple(map(int, above.split())))
            for lemma in filter(None, lemmas.split(",")):
                name, _, rank = lemma.rpartition(":")
                senses.setdefault(name, []).append(Sense(synset, int(rank)))
        return cls({lemma: tuple(sorted(s, key=lambda x: x.rank)) for lemma, s in senses.items()}, parents, kinds)

    def ancestors(self, synset: int) -> dict[int, int]:
        """Synset -> steps up from ``synset``, itself included."""
        known = self._ancestors.get(synset)
        if known is not None:
            return known
        steps, todo = {synset: 0}, [synset]
        for one in todo:  # grows: breadth first
            for parent in self.parents[one]:
                if parent not in steps:
                    steps[parent] = steps[one] + 1
                    todo.append(parent)
        return self._ancestors.setdefault(synset, steps)

    def is_kind(self, words: Sequence[str], noun: str) -> bool:
        """Whether what the words name, in the sense that is said most, is a kind of the noun in one of its common
        senses, and not the same."""
        named = self.named(words)[0]
        above = self.ancestors(self.senses[named][0].synset) if named else {}
        common = {s.synset for s in self.senses.get(noun, ())[:_COMMON_SENSES]}
        return any(above.get(synset, 0) > 0 for synset in common)

    @cached_property
    def information(self) -> NDArray[np.float64]:
        """Per synset how much it tells, in [0, 1]: little for what has many kinds (Resnik 1995, of counts of kinds)."""
        count = np.array(self.kinds)
        information: NDArray[np.float64] = 1.0 - np.log(count + 1) / math.log(len(count) + 1)
        return information

    def named(self, words: Sequence[str]) -> tuple[str, int]:
        """The longest lemma that ``words`` end in, and how many words stand before it; ("", all) where there is none.

        Compounds are found as one word, with a hyphen, and in the singular; the last word's own head counts as a
        modified noun: "workbench" is a bench.
        """
        for first in range(len(words)):
            rest = words[first:]
            one = " ".join((*rest[:-1], singular(rest[-1]) or rest[-1]))
            forms = (" ".join(rest), "".join(rest), "-".join(rest), one)
            for form in forms:
                if form in self.senses:
                    return form, first
        last = words[-1] if words else ""
        for at in range(_LEAST_LETTERS, len(last) - _LEAST_LETTERS + 1):
            if last[at:] in self.senses and last[:at] in self.senses:
                return last[at:], len(words)
        return "", len(words)


@dataclass(frozen=True, eq=False)
class NounLikelihood:
    """How likely a label is meant by a noun.

    Attributes:
        taxonomy: what nouns name.
        vectors: word -> unit vector.
        hidden, bias, out: of a network of one hidden layer over :data:`FEATURES`.
        out_bias: log odds where no hidden unit says anything.
    """

    taxonomy: NounTaxonomy
    vectors: Mapping[str, NDArray[np.float32]]
    hidden: NDArray[np.float32]
    bias: NDArray[np.float32]
    out: NDArray[np.float32]
    out_bias: float
    _vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def features(self, noun: str, label: str) -> NDArray[np.float32]:
        """(F,) of :data:`FEATURES`, both in lower case with single spaces."""
        said, name = noun.split(), label.split()
        said_head, said_before = self.taxonomy.named(said)
        name_head, name_before = self.taxonomy.named(name)
        f = dict.fromkeys(FEATURES, 0.0)
        f.update(self._kinship(said_head, name_head))
        f["label_ends_in_noun"] = float(label.endswith(f" {noun}") or (name_before > 0 and name_head == noun))
        f["noun_ends_in_label"] = float(noun.endswith(f" {label}") or (said_before > 0 and said_head == label))
        f["same_head"] = float(said[-1:] == name[-1:])
        f["noun_modified"], f["label_modified"] = float(said_before > 0), float(name_before > 0)
        ours, theirs = set(said[:-1]), set(name[:-1])
        f["modifiers_shared"] = len(ours & theirs) / max(len(ours | theirs), 1)
        f["cosine"] = float(self._vector(noun) @ self._vector(label))
        return np.array([f[name] for name in FEATURES], np.float32)

    def _kinship(self, noun: str, label: str) -> dict[str, float]:
        """Features of the senses that have most in common (Lin 1998)."""
        taxonomy, best = self.taxonomy, None
        for a in taxonomy.senses.get(noun, ()):
            above_a = taxonomy.ancestors(a.synset)
            for b in taxonomy.senses.get(label, ()):
                above_b = taxonomy.ancestors(b.synset)
                shared = above_a.keys() & above_b.keys()
                if not shared:
                    continue
                told, _, joint = max((taxonomy.information[s], -above_a[s] - above_b[s], s) for s in shared)
                both = taxonomy.information[a.synset] + taxonomy.information[b.synset]
                kinship = min(2.0 * told / max(both, 1e-6), 1.0)
                worth = kinship - _PER_SENSE * (a.rank + b.rank)
                if best is None or worth > best[0]:
                    best = worth, kinship, above_a[joint], above_b[joint], a.rank + b.rank
        if best is None:
            return {}
        _, kinship, up, down, rank = best
        return {
            "known": 1.0,
            "kinship": float(kinship),
            "rare_sense": rank / 3.0,
            "same": float(up == down == 0),
            "kind": float(up == 0 < down),
            "kind_steps": down / _FEW_STEPS if up == 0 else 0.0,
            "special": float(down == 0 < up),
            "special_steps": up / _FEW_STEPS if down == 0 else 0.0,
        }

    def _vector(self, words: str) -> NDArray[np.float32]:
        if words not in self._vectors:
            found = [v for word in words.split() if (v := self._word(word)) is not None]
            channels = len(next(iter(self.vectors.values()), ()))
            total = np.sum(found, axis=0, dtype=np.float32) if found else np.zeros(channels, np.float32)
            self._vectors[words] = total / max(float(np.linalg.norm(total)), 1e-9)
        return self._vectors[words]

    def _word(self, word: str) -> NDArray[np.float32] | None:
        return self.vectors.get(word, self.vectors.get(singular(word)))

    def __call__(self, noun: str, label: str) -> float:
        """In (0, 1): that somebody who says ``noun`` may mean a thing that is labelled ``label``.

        A poodle is a dog. A chair may be a wheelchair, and most are none: what is more special than the label stays
        unsure, more so where another word says it. (Of the pairs that the fit is made of, most such labels are the next
        best that the detector's classes have.)
        """
        features = self.features(noun, label)
        h = np.maximum(self.hidden @ features + self.bias, 0.0)
        told = float(1.0 / (1.0 + math.exp(-float(self.out @ h) - self.out_bias)))
        says = dict(zip(FEATURES, features.tolist(), strict=True))
        if self.taxonomy.is_kind(label.split(), noun):
            return max(told, _A_KIND)
        if says["label_ends_in_noun"] or not (says["special"] or says["noun_ends_in_label"]):
            return told
        return min(told, _MODIFIED if noun.endswith(f" {label}") else _SPECIAL)


@lru_cache(maxsize=1)
def noun_taxonomy() -> NounTaxonomy:
    """The taxonomy that comes with the package."""
    return NounTaxonomy.read(gzip.decompress(TAXONOMY.read_bytes()).decode("utf-8"))


@lru_cache(maxsize=1)
def noun_likelihood() -> NounLikelihood:
    """The likelihood that comes with the package."""
    tables = load_file(WEIGHTS)
    words = bytes(tables["words"]).decode("utf-8").split("\n")
    vectors = tables["vectors"].astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return NounLikelihood(
        noun_taxonomy(),
        dict(zip(words, vectors, strict=True)),
        tables["hidden"],
        tables["bias"],
        tables["out"],
        float(tables["out_bias"][0]),
    )


@lru_cache(maxsize=65536)
def likelihood_of_label(noun: str, label: str) -> float:
    """In (0, 1): that a thing labelled ``label`` is meant by ``noun``, of any words in lower case; 1 for the same."""
    return 1.0 if noun == label else noun_likelihood()(noun, label)
