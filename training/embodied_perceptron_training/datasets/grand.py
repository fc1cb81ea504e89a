"""3D-GRAND's JSON (arXiv 2406.05132): scenes as lists of objects, and texts whose noun phrases are tagged with objects.

    scenes        {scene: {"wardrobe-0": {"category", "centroid" [x, y, z], "extent" [w, d, h], "description"?}}}
    texts         [{"id", "scene_id", "conversations": [{"from": "human" | "gpt", "value"}],
                    "referred_object_id"?, "grounded_object_reference"?, "bbox"? [low x, y, z, high x, y, z]}]
    descriptions  {scene: text or [texts]}

Tags name objects as the scenes do, ``<p>grey armchair</p>[<armchair-4>]``; here they become ``<obj_4>``, numbered in
the order of the scene's list, as in the paper's model. Metres, z up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embodied_perceptron.language.description import Mention, read_mentions
from embodied_perceptron.recordings import plain_values as checked
from embodied_perceptron.recordings.files import read_json
from embodied_perceptron.results import ObjectState, SceneObject

Kind = Literal["reference", "description", "question"]
_LEAST_SIZE_M = 0.01  # flat things are made so thick
_TAG = re.compile(r"<([^<>]+)>")
_MARKUP = frozenset(("p", "/p"))


@dataclass(frozen=True, eq=False)
class GrandScene:
    """One scene."""

    name: str  # of the scene
    objects: tuple[SceneObject, ...]  # their ids are positions in the file
    numbers: Mapping[str, int]  # id of each object by its name in the file
    descriptions: Mapping[int, str]  # of objects, by id

    def renamed(self, text: str) -> str:
        """The text with ``<obj_N>`` for the file's names; unknown names are kept, and so name no object."""

        def number(match: re.Match[str]) -> str:
            known = self.numbers.get(match[1])
            return match[0] if known is None else f"<obj_{known}>"

        return _TAG.sub(number, text)


@dataclass(frozen=True)
class GrandText:
    """One annotation."""

    id: str  # of the record, or scene and number
    scene: str  # name
    kind: Kind  # of text
    asked: str  # the human's turn; empty for plain descriptions
    text: str  # the answer, with ``<obj_N>`` tags
    mentions: tuple[Mention, ...]  # of the answer
    target: int | None = None  # id of the object of a reference, or None


def read_scenes(path: Path) -> dict[str, GrandScene]:
    """Scenes by name. Raises ``ValueError`` naming scene and object."""
    data = checked.mapping(read_json(path), f"{path}: scenes")
    return {str(name): _scene(path, str(name), objects) for name, objects in data.items()}


def _scene(path: Path, name: str, entries: Any) -> GrandScene:
    checked.mapping(entries, f"{path}: {name}: objects")
    objects, descriptions = [], {}
    for number, (known, entry) in enumerate(entries.items()):
        try:
            center, size = (np.array(entry[key], dtype=np.float64) for key in ("centroid", "extent"))
            label = str(entry["category"]).strip().lower()
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: {name}: {known}: {error!r}") from error
        if center.shape != (3,) or size.shape != (3,) or not np.isfinite([center, size]).all() or (size < 0).any():
            raise ValueError(
                f"{path}: {name}: {known}: centroid {center.tolist()} and extent {size.tolist()} are no box"
            )
        box = np.concatenate([center, np.maximum(size, _LEAST_SIZE_M), np.zeros(3)])
        objects.append(SceneObject(number, label, 1.0, box, ObjectState.CONFIRMED))
        if entry.get("description"):
            descriptions[number] = str(entry["description"])
    return GrandScene(name, tuple(objects), {str(k): n for n, k in enumerate(entries)}, descriptions)


def read_texts(path: Path, scenes: Mapping[str, GrandScene], kind: Kind | None = None) -> list[GrandText]:
    """Texts in the file's order, of either form.

    ``kind``: of texts that refer to no object; None = from the file's name (``description``, otherwise question).
    Raises ``ValueError`` naming a record with an unknown scene or a missing field.
    """
    data = read_json(path)
    other: Kind = kind or ("description" if "description" in path.name else "question")
    if isinstance(data, dict):
        texts = []
        for name, scored in data.items():
            listed = scored if isinstance(scored, list) else [scored]
            scene = _known(path, scenes, str(name), str(name))
            for number, text in enumerate(listed):
                if not isinstance(text, str):
                    raise ValueError(f"{path}: {name}: a description must be text, got {type(text).__name__}")
                texts.append(_text(f"{name}@{number}", scene, other, "", text))
        return texts
    records = checked.sequence(data, f"{path}: texts")
    return [_record(path, number, record, scenes, other) for number, record in enumerate(records)]


def _record(path: Path, number: int, record: Any, scenes: Mapping[str, GrandScene], other: Kind) -> GrandText:
    try:
        name = str(record.get("id", number))
        scene = _known(path, scenes, str(record["scene_id"]), name)
        turns = record.get("conversations", [])
        asked = " ".join(str(t["value"]) for t in turns if t["from"] == "human")
        scored = " ".join(str(t["value"]) for t in turns if t["from"] == "gpt")
        referred = record.get("referred_object_id")
        if referred is None:
            return _text(name, scene, other, asked, scored)
        target = _target(scene, str(referred), str(record.get("referred_object_text", "")))
        if target is None:
            raise ValueError(f"{path}: {name}: {scene.name} has no object {referred!r}")
        reference = str(record.get("grounded_object_reference", "")) or asked
        return _text(name, scene, "reference", scene.renamed(reference), scored, target)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: record {number}: {error!r}") from error


def _text(name: str, scene: GrandScene, kind: Kind, asked: str, scored: str, target: int | None = None) -> GrandText:
    text = scene.renamed(scored)
    return GrandText(name, scene.name, kind, asked, text, read_mentions(text), target)


def _known(path: Path, scenes: Mapping[str, GrandScene], name: str, record: str) -> GrandScene:
    if name not in scenes:
        raise ValueError(f"{path}: {record}: unknown scene {name!r}")
    return scenes[name]


def _target(scene: GrandScene, referred: str, words: str) -> int | None:
    """Id of ``desk-0``, or of the only object with that number after the dash."""
    for known in (referred, f"{words}-{referred}"):
        if known in scene.numbers:
            return scene.numbers[known]
    behind = [number for known, number in scene.numbers.items() if known.rpartition("-")[2] == referred]
    return behind[0] if len(behind) == 1 else None


def plain_text(text: str) -> str:
    """Text without tags."""
    without = re.sub(r"\[[^\[\]]*<[^\[\]]*\]", "", text)
    kept = _TAG.sub(lambda m: "" if m[1] in _MARKUP or m[1].startswith("obj_") else m[0], without)
    return re.sub(r"\s+([.,;])", r"\1", " ".join(kept.split()))


def score_ids(scored: Sequence[GrandText], truth: Sequence[GrandText]) -> dict[str, float]:
    """Percent: ``precision recall f1`` of the objects that texts mention, over all texts, against the right texts of
    the same ids; each object counts once per text.

    Raises ``ValueError`` for ids that occur twice, or have no right text.
    """
    mine, theirs = _ids(scored), _ids(truth)
    strange = sorted(mine.keys() - theirs.keys())
    if strange:
        raise ValueError(f"there is no right text for {strange[0]!r}")
    right = sum(len(ids & theirs[name]) for name, ids in mine.items())
    mentioned, true = (sum(map(len, side.values())) for side in (mine, theirs))
    shares = {"precision": (right, mentioned), "recall": (right, true), "f1": (2 * right, mentioned + true)}
    return {name: 100.0 * hits / max(total, 1) for name, (hits, total) in shares.items()}


def _ids(texts: Sequence[GrandText]) -> dict[str, set[int]]:
    """Objects that each text mentions, by its id."""
    found: dict[str, set[int]] = {}
    for text in texts:
        if text.id in found:
            raise ValueError(f"text {text.id!r} is listed twice")
        found[text.id] = {number for mention in text.mentions for number in mention.ids}
    return found


def scene_file(scenes: Mapping[str, GrandScene], texts: Sequence[GrandText]) -> dict[str, Any]:
    """References as a file for ``embodied-perceptron ground`` and ``evaluate referring``."""
    asked = [text for text in texts if text.kind == "reference"]
    entries = {}
    for name in dict.fromkeys(text.scene for text in asked):
        objects = [
            {"center": o.box[:3].tolist(), "size": o.box[3:6].tolist(), "category": o.label}
            for o in scenes[name].objects
        ]
        by_id = {str(number): entry for number, entry in enumerate(objects)}
        entries[name] = {"detections": objects, "objects": by_id}
    queries = [
        {"scene": t.scene, "text": plain_text(t.asked), "target": str(t.target), "source": "3D-GRAND"} for t in asked
    ]
    return {"scenes": entries, "queries": queries}
