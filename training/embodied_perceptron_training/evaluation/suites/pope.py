"""3D-POPE: does a model say that things are there which are not? Questions, metrics and files.

A question is a triple (scene, "is there a X?", yes or no), with as many no as yes in every scene. Positives are the
scene's categories. Negatives, k of them for k positives, by protocol (3D-GRAND, Yang et al., CVPR 2025, after POPE):

    random       absent categories, drawn evenly
    popular      the absent categories that most scenes of the training set have
    adversarial  for each positive the absent, not yet used category that most scenes of the training set have together
                 with it

Ties go to what more training scenes have, then by name, so that the questions do not depend on any order of the input.

Files, all JSON:

    scene list   {"scenes": {id: [category, ...]}} or {"scenes": {id: {"present": [...], "unasked": [...]}}};
                 unasked: what is there too, but is neither a positive nor a negative (hardly visible)
    answers      {"answers": [{"scene": id, "category": name, "answer": "yes" or "no"}, ...]}
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROTOCOLS = ("random", "popular", "adversarial")
FIGURES = ("precision", "recall", "f1", "accuracy", "yes")


@dataclass(frozen=True)
class ScenePresence:
    """What a scene holds.

    Attributes:
        scene_id: name.
        present: categories to ask for; each once.
        unasked: categories that are there too, but that nobody is asked about.

    Raises ``ValueError`` naming the scene and a category that is listed twice or is no text.
    """

    scene_id: str
    present: tuple[str, ...]
    unasked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        listed = [*self.present, *self.unasked]
        for name in listed:
            if not isinstance(name, str) or not name.strip():
                raise ValueError(f"scene {self.scene_id!r}: {name!r} is no category")
        twice = sorted({name for name in listed if listed.count(name) > 1})
        if twice:
            raise ValueError(f"scene {self.scene_id!r} lists {twice[0]!r} twice")


@dataclass(frozen=True)
class Question:
    """Is there a ``category`` in the scene?"""

    scene_id: str
    category: str
    exists: bool

    @property
    def text(self) -> str:
        """In words."""
        return f"Is there {'an' if self.category[0] in 'aeiou' else 'a'} {self.category} in the scene?"


@dataclass(frozen=True, eq=False)
class CategoryStatistics:
    """How often categories occur, and occur together, in the scenes of a training set.

    Attributes:
        categories: (K,) names in order; the vocabulary that negatives are taken from.
        scenes: (K,) int64 scenes that have each.
        together: (K, K) int64 scenes that have both.
    """

    categories: tuple[str, ...]
    scenes: NDArray[np.int64]
    together: NDArray[np.int64]

    @classmethod
    def of(cls, scenes: Iterable[ScenePresence]) -> CategoryStatistics:
        """Count scenes; what is there but not asked for counts too. Raises ``ValueError`` when there is no category."""
        sets = [frozenset((*scene.present, *scene.unasked)) for scene in scenes]
        names = tuple(sorted(frozenset[str]().union(*sets)))
        if not names:
            raise ValueError("the training scenes hold no category")
        has = np.array([[name in there for name in names] for there in sets], np.int64)
        together = has.T @ has
        return cls(names, np.diagonal(together).copy(), together)


def make_questions(
    scenes: Sequence[ScenePresence], statistics: CategoryStatistics, protocol: str, seed: int = 0
) -> list[Question]:
    """As many no as yes in every scene, by scene, then positives before negatives; a scene without categories has none.

    The random protocol draws from ``seed`` and the scene's name, so a scene's questions do not depend on the others.

    Raises ``ValueError`` for an unknown protocol, a scene given twice, or one for which the vocabulary has too few
    absent categories.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
    names = [scene.scene_id for scene in scenes]
    if len(set(names)) < len(names):
        raise ValueError(f"scene {next(n for n in names if names.count(n) > 1)!r} is given twice")
    questions: list[Question] = []
    for scene in sorted(scenes, key=lambda s: s.scene_id):
        positives = sorted(scene.present)
        there = {*scene.present, *scene.unasked}
        absent = [k for k, name in enumerate(statistics.categories) if name not in there]
        if len(absent) < len(positives):
            raise ValueError(
                f"scene {scene.scene_id!r} has {len(positives)} categories, "
                f"but only {len(absent)} of the vocabulary are absent"
            )
        if protocol == "random":
            rng = np.random.default_rng([seed, zlib.crc32(scene.scene_id.encode())])
            chosen = sorted(int(k) for k in rng.choice(absent, len(positives), replace=False)) if positives else []
        elif protocol == "popular":
            chosen = _most(absent, statistics.scenes, statistics)[: len(positives)]
        else:
            chosen = _adversarial(positives, absent, statistics)
        questions += [Question(scene.scene_id, name, True) for name in positives]
        questions += [Question(scene.scene_id, statistics.categories[k], False) for k in chosen]
    return questions


def _adversarial(positives: Sequence[str], absent: Sequence[int], statistics: CategoryStatistics) -> list[int]:
    row = {name: k for k, name in enumerate(statistics.categories)}
    left, chosen = list(absent), []
    for name in positives:
        together = statistics.together[row[name]] if name in row else np.zeros_like(statistics.scenes)
        best = _most(left, together, statistics)[0]
        chosen.append(best)
        left.remove(best)
    return chosen


def _most(rows: Sequence[int], count: NDArray[np.int64], statistics: CategoryStatistics) -> list[int]:
    """Rows by falling count, then by what more scenes have; names stand in order, so the last word is theirs."""
    return sorted(rows, key=lambda k: (-int(count[k]), -int(statistics.scenes[k]), k))


def pope_metrics(questions: Sequence[Question], answers: Sequence[bool]) -> dict[str, float]:
    """``precision recall f1 accuracy yes`` in percent; ``yes`` is the share of questions answered so.

    Precision without any yes, and recall without any positive, are 0. Raises ``ValueError`` when lengths differ, there
    is no question, or an answer is not true or false.
    """
    if not questions:
        raise ValueError("no questions")
    if len(questions) != len(answers):
        raise ValueError(f"{len(answers)} answers for {len(questions)} questions")
    wrong = [a for a in answers if not isinstance(a, (bool, np.bool_))]
    if wrong:
        raise ValueError(f"answers must be true or false, got {wrong[0]!r}")
    exists, said = np.array([q.exists for q in questions], bool), np.array(answers, bool)
    right = int((exists & said).sum())
    precision = right / max(int(said.sum()), 1)
    recall = right / max(int(exists.sum()), 1)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    values = (precision, recall, f1, float((exists == said).mean()), float(said.mean()))
    return {name: 100.0 * value for name, value in zip(FIGURES, values, strict=True)}


def answer_questions(questions: Sequence[Question], answers: Mapping[tuple[str, str], bool]) -> list[bool]:
    """Answers in the order of the questions, from those by (scene, category); one missing raises ``ValueError``."""
    for q in questions:
        if (q.scene_id, q.category) not in answers:
            raise ValueError(f"no answer for {q.category!r} in scene {q.scene_id!r}")
    return [answers[q.scene_id, q.category] for q in questions]


# --------------------------------------------------------------------------------------------------------------------
# Files.


def read_scene_list(path: Path) -> list[ScenePresence]:
    """Scenes of a JSON file (module docstring), by name. Raises ``ValueError`` naming file, scene and what is wrong."""
    entries = _read(path, "scenes", dict)
    scenes = []
    for name, entry in sorted(entries.items()):
        parts = {"present": entry} if isinstance(entry, list) else entry
        if not isinstance(parts, dict) or not isinstance(parts.get("present"), list):
            raise ValueError(f"{path}: scene {name!r} must be a list of categories or hold one as 'present'")
        unasked = parts.get("unasked", [])
        if not isinstance(unasked, list):
            raise ValueError(f"{path}: scene {name!r}: 'unasked' must be a list, got {type(unasked).__name__}")
        try:
            scenes.append(ScenePresence(name, tuple(parts["present"]), tuple(unasked)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from error
    return scenes


def scene_list_json(scenes: Sequence[ScenePresence]) -> str:
    """Text that :func:`read_scene_list` reads back."""
    entries = {s.scene_id: {"present": list(s.present), "unasked": list(s.unasked)} for s in scenes}
    return json.dumps({"scenes": entries}, indent=1, sort_keys=True) + "\n"


def read_answers(path: Path) -> dict[tuple[str, str], bool]:
    """(scene, category) -> answer. Raises ``ValueError`` naming the file and the entry that is wrong or contradicts."""
    found: dict[tuple[str, str], bool] = {}
    for number, entry in enumerate(_read(path, "answers", list)):
        if not isinstance(entry, dict):
            raise ValueError(f"{path}: answer {number} must be an object, got {type(entry).__name__}")
        for key in ("scene", "category", "answer"):
            if not isinstance(entry.get(key), str):
                raise ValueError(f"{path}: answer {number} lacks {key!r} or it is no text")
        said = entry["answer"].strip().lower()
        if said not in ("yes", "no"):
            raise ValueError(f"{path}: answer {number} must be yes or no, got {entry['answer']!r}")
        scene, category = entry["scene"], entry["category"]
        if found.setdefault((scene, category), said == "yes") != (said == "yes"):
            raise ValueError(f"{path}: answer {number} contradicts an earlier one about {category!r} in {scene!r}")
    return found


def answers_json(answers: Mapping[tuple[str, str], bool]) -> str:
    """Text that :func:`read_answers` reads back."""
    entries = [
        {"scene": scene, "category": name, "answer": "yes" if said else "no"}
        for (scene, name), said in sorted(answers.items())
    ]
    return json.dumps({"answers": entries}, indent=1) + "\n"


def _read(path: Path, key: str, kind: type) -> Any:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get(key), kind):
        raise ValueError(f"{path} must hold {key!r}, {'a list' if kind is list else 'an object'}")
    return data[key]
