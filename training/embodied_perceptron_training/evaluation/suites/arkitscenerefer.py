"""ARKitSceneRefer: small everyday objects by people's expressions. Records, answers, metrics.

``IoU@k``: share of expressions whose predicted axis-aligned box overlaps the true one with IoU >= k.
``Dist@l``: share whose predicted centre lies at most l metres from the true one (Kato et al., Findings of EMNLP 2023).
No answer is a miss; a centre without a box (a 2-D model's) misses every IoU.

File: a JSON list of records as the data set publishes them,

    {"scene_id": "40777060", "object_id": "260", "description": "a bowl on the floor ...", "token": ["a", ...],
     "split": "Training", "id": "Training-40777060-260", "object_label": "bowl", "bbox": [cx, cy, cz, dx, dy, dz]}

with axis-aligned boxes in metres; other keys are ignored. The published files hold a few records twice: identical ones
are read once and counted. Predictions are ``{"answers": {id: {"bbox": [6]}}}``, or ``{"center": [3]}`` for a centre
alone, or ``null`` for none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import corners

F64 = NDArray[np.float64]
IOU_THRESHOLDS = (0.05, 0.15, 0.25, 0.5)
DISTANCES_M = (0.1, 0.3, 0.5)
FIGURES = (*(f"IoU@{k}" for k in IOU_THRESHOLDS), *(f"Dist@{d}" for d in DISTANCES_M))
_ROUNDING_M = 1e-9  # a distance that is the threshold but for its last bits reaches it


@dataclass(frozen=True, eq=False)
class Reference:
    """One expression about one object.

    Attributes:
        id: of the expression.
        scene_id, object_id: where it is about what.
        description: the expression.
        label: class of the object.
        box: (6,) float64 cx cy cz dx dy dz, axis-aligned, metres, world frame.

    Raises ``ValueError`` naming the record and what is wrong.
    """

    id: str
    scene_id: str
    object_id: str
    description: str
    label: str
    box: F64

    def __post_init__(self) -> None:
        object.__setattr__(self, "box", check_box(self.box, f"record {self.id!r}: bbox"))
        if not self.description.strip():
            raise ValueError(f"record {self.id!r} has an empty description")

    def as_dict(self) -> dict[str, Any]:
        """The published form."""
        return {
            "scene_id": self.scene_id,
            "object_id": self.object_id,
            "description": self.description,
            "token": self.description.split(),
            "id": self.id,
            "object_label": self.label,
            "bbox": [round(float(v), 6) for v in self.box],
        }


@dataclass(frozen=True, eq=False)
class Answer:
    """Where a model sees the object: (3,) centre and, where it has one, the (6,) axis-aligned box, metres."""

    center_m: F64
    box: F64 | None = None

    def __post_init__(self) -> None:
        center = np.asarray(self.center_m, np.float64)
        if center.shape != (3,) or not np.isfinite(center).all():
            raise ValueError(f"a centre must be 3 finite numbers, got {self.center_m!r}")
        object.__setattr__(self, "center_m", center)
        if self.box is not None:
            object.__setattr__(self, "box", check_box(self.box, "box"))

    @classmethod
    def of_box(cls, box: F64) -> Answer:
        """A (6,) axis-aligned box and its centre."""
        return cls(np.asarray(box, np.float64)[:3], box)


def check_box(box: Any, name: str) -> F64:
    """(6,) float64 with sizes that are not negative, or ``ValueError`` naming the box."""
    try:
        array = np.asarray(box, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be 6 numbers, got {box!r}") from error
    if array.shape != (6,) or not np.isfinite(array).all():
        raise ValueError(f"{name} must be 6 finite numbers, got {array.tolist()}")
    if (array[3:] < 0).any():
        raise ValueError(f"{name} has a negative size: {array[3:].tolist()}")
    return array


def axis_aligned(boxes: F64) -> F64:
    """(N, 9) boxes -> (N, 6) bounds cx cy cz dx dy dz of their corners."""
    boxes = np.asarray(boxes, np.float64).reshape(-1, 9)
    points = corners(torch.from_numpy(boxes)).numpy()  # (N, 8, 3)
    low, high = points.min(axis=1), points.max(axis=1)
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def aligned_iou(a: F64, b: F64) -> float:
    """IoU of two (6,) axis-aligned boxes; 0 where neither has a volume."""
    low = np.maximum(a[:3] - a[3:] / 2, b[:3] - b[3:] / 2)
    high = np.minimum(a[:3] + a[3:] / 2, b[:3] + b[3:] / 2)
    shared = float(np.prod(np.clip(high - low, 0.0, None)))
    union = float(np.prod(a[3:]) + np.prod(b[3:])) - shared
    return shared / union if union > 0 else 0.0


def refer_metrics(answers: Sequence[Answer | None], truth: Sequence[Reference]) -> dict[str, float]:
    """:data:`FIGURES` in percent. Raises ``ValueError`` when lengths differ or there is no expression."""
    if len(answers) != len(truth):
        raise ValueError(f"{len(answers)} answers for {len(truth)} expressions")
    if not truth:
        raise ValueError("no expressions")
    iou, distance_m = np.zeros(len(truth)), np.full(len(truth), np.inf)
    for i, (answer, reference) in enumerate(zip(answers, truth, strict=True)):
        if answer is not None:
            distance_m[i] = np.linalg.norm(answer.center_m - reference.box[:3])
            iou[i] = 0.0 if answer.box is None else aligned_iou(answer.box, reference.box)
    figures = {f"IoU@{k}": 100.0 * float((iou >= k).mean()) for k in IOU_THRESHOLDS}
    return figures | {f"Dist@{d}": 100.0 * float((distance_m <= d + _ROUNDING_M).mean()) for d in DISTANCES_M}


# --------------------------------------------------------------------------------------------------------------------
# Files.


def read_references(path: Path) -> tuple[list[Reference], int]:
    """Records of a file in its order, and how many were left out because they stand there twice.

    Raises ``ValueError`` naming the file, the record and what is wrong: a key that is missing, a box that is none, or
    two different records with one id.
    """
    entries = _load(path)
    if not isinstance(entries, list):
        raise ValueError(f"{path} must hold a list of records, got {type(entries).__name__}")
    found: dict[str, Reference] = {}
    repeated = 0
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ValueError(f"{path}: record {number} must be an object, got {type(entry).__name__}")
        missing = [k for k in ("id", "scene_id", "object_id", "description", "object_label", "bbox") if k not in entry]
        if missing:
            raise ValueError(f"{path}: record {number} lacks {missing[0]!r}")
        try:
            record = Reference(
                id=str(entry["id"]),
                scene_id=str(entry["scene_id"]),
                object_id=str(entry["object_id"]),
                description=str(entry["description"]),
                label=str(entry["object_label"]),
                box=entry["bbox"],
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        known = found.setdefault(record.id, record)
        if known is not record:
            if known.as_dict() != record.as_dict():
                raise ValueError(f"{path}: record {number} has the id {record.id!r} of another one")
            repeated += 1
    return list(found.values()), repeated


def references_json(references: Sequence[Reference]) -> str:
    """Text that :func:`read_references` reads back."""
    return json.dumps([r.as_dict() for r in references], indent=1) + "\n"


def read_refer_answers(path: Path, references: Sequence[Reference]) -> list[Answer | None]:
    """Answers in the order of the references. Raises ``ValueError`` naming file and id of what is wrong or missing."""
    data = _load(path)
    answers = data.get("answers") if isinstance(data, dict) else None
    if not isinstance(answers, dict):
        raise ValueError(f"{path} must hold 'answers', an object by id")
    strangers = sorted(set(answers) - {r.id for r in references})
    if strangers:
        raise ValueError(f"{path} answers {strangers[0]!r}, which nobody asked")
    return [_answer(path, reference.id, answers) for reference in references]


def refer_answers_json(references: Sequence[Reference], answers: Sequence[Answer | None]) -> str:
    """Text that :func:`read_refer_answers` reads back."""

    def entry(answer: Answer | None) -> dict[str, list[float]] | None:
        if answer is None:
            return None
        if answer.box is None:
            return {"center": answer.center_m.tolist()}
        return {"bbox": answer.box.tolist(), "center": answer.center_m.tolist()}

    entries = {r.id: entry(a) for r, a in zip(references, answers, strict=True)}
    return json.dumps({"answers": entries}, indent=1) + "\n"


def _answer(path: Path, name: str, answers: Mapping[str, Any]) -> Answer | None:
    if name not in answers:
        raise ValueError(f"{path} has no answer for {name!r}; say null where there is none")
    entry = answers[name]
    if entry is None:
        return None
    if not isinstance(entry, dict) or not {"bbox", "center"} & set(entry):
        raise ValueError(f"{path}: answer {name!r} must hold 'bbox' or 'center', or be null")
    try:
        box = check_box(entry["bbox"], "bbox") if "bbox" in entry else None
        center = entry["center"] if box is None or "center" in entry else box[:3]
        return Answer(np.asarray(center, np.float64), box)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: answer {name!r}: {error}") from error


def _load(path: Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
