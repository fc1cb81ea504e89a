"""What users say about objects: names of their own, other labels, things that are not there.

Names and labels stand with the objects (:mod:`~.object_map`); here is what was corrected, so that it can be written as
labels, and what was denied, so that it is not found again in its place.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import box_rotations, canonical_boxes, transform_boxes
from embodied_perceptron.geometry.suppression import denied_detections
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.results import Detections
from embodied_perceptron.weights.categories import ALL_CATEGORIES

MAX_NAME = 100  # characters
MAX_CORRECTIONS = 10_000  # the oldest go
MAX_ID = 2**53  # of an object
_MAX_AWAY_M, _MAX_EDGE_M = 2e5, 1e3  # of the box of a thing in a file
# embeddings, overrides and isolates: they turn the text around that a name stands in
_TURNING = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))


@dataclass(frozen=True, eq=False)
class Correction:
    """What a user said about one object.

    Attributes:
        id: of the object.
        box: (9,) as it was then, in the map.
        was: its label until then.
        label: what it is; empty = there is no such thing.
        stamp_ns: when, on the clock of the frames.
    """

    id: int
    box: NDArray[np.float64]
    was: str
    label: str
    stamp_ns: int

    def as_dict(self) -> dict[str, Any]:
        """JSON form, as in map and labels file."""
        box = [round(float(v), 6) for v in self.box]
        return {"id": self.id, "box": box, "was": self.was, "label": self.label, "stamp_ns": self.stamp_ns}


@dataclass
class Corrections:
    """All that was said, oldest first; of one object the last word on what it is. Not thread-safe."""

    entries: list[Correction] = field(default_factory=list)

    def remember(self, entry: Correction) -> None:
        """One more; it replaces what was said of the same object, and keeps what that was at first."""
        earlier = [e for e in self.entries if e.id == entry.id]
        if earlier:
            entry = replace(entry, was=earlier[0].was)
        self.entries = [*(e for e in self.entries if e.id != entry.id), entry][-MAX_CORRECTIONS:]

    def without_denied(self, found: Detections) -> Detections:
        """Without what lies where a user said that there is no such thing."""
        denied = [e for e in self.entries if not e.label]
        if not denied or len(found) == 0:
            return found
        boxes = np.stack([e.box for e in denied])
        wrong = denied_detections(found.boxes, found.labels, boxes, [e.was for e in denied])
        return found.take(np.flatnonzero(~wrong))

    def forget_inside(self, box: NDArray[np.float64]) -> None:
        """The space of a (9,) box is looked at as if for the first time."""
        R = box_rotations(box[None])[0]
        self.entries = [e for e in self.entries if (np.abs((e.box[:3] - box[:3]) @ R) > box[3:6] / 2).any()]

    def move(self, motion_at: Callable[[int], NDArray[np.float64]]) -> None:
        """The world was corrected: what was said moves with what was seen at that time."""
        moved = []
        for entry in self.entries:
            T = motion_at(entry.stamp_ns)
            boxes = canonical_boxes(transform_boxes(T, torch.from_numpy(entry.box[None])).numpy())
            moved.append(replace(entry, box=boxes[0]))
        self.entries = moved

    def to_list(self) -> list[dict[str, Any]]:
        """JSON form."""
        return [entry.as_dict() for entry in self.entries]

    @classmethod
    def from_list(cls, rows: Iterable[dict[str, Any]]) -> Corrections:
        """What :meth:`to_list` gave. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for anything else."""
        return cls([_correction(row) for row in rows][-MAX_CORRECTIONS:])


def _correction(row: dict[str, Any]) -> Correction:
    whose = f"the correction of object {plain_values.mapping(row, 'a correction')['id']!r:.30}"
    if row["label"] != "":
        plain_values.text(row["label"], f"{whose}: label", MAX_NAME)
    return Correction(
        plain_values.whole(row["id"], f"{whose}: id", 1, MAX_ID),
        checked_box(row["box"], whose),
        plain_values.text(row["was"], f"{whose}: was"),
        row["label"],
        plain_values.stamp_ns(row["stamp_ns"], f"{whose}: stamp_ns"),
    )


def checked_box(numbers: Any, whose: str) -> NDArray[np.float64]:
    """(9,) box of a file. Raises ``ValueError`` naming it for one that no thing in a map has."""
    try:
        box = np.array([plain_values.number(value, "box") for value in plain_values.sequence(numbers, "box")])
        fits = box.shape == (9,) and (np.abs(box[:3]) <= _MAX_AWAY_M).all() and (np.abs(box[6:]) <= 1e3).all()
        fits = fits and bool(((box[3:6] >= 0) & (box[3:6] <= _MAX_EDGE_M)).all())
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{whose} has the box {numbers!r:.200}")
    return box


def check_words(text: str, what: str) -> str:
    """``text`` with single spaces and composed letters. Raises ``ValueError`` for what nobody can say: nothing, no
    letter, control characters or such that turn the text around, too much."""
    words = text.strip()
    if not words:
        raise ValueError(f"the {what} is empty")
    if len(words) > MAX_NAME:
        raise ValueError(f"the {what} has {len(words)} characters, at most {MAX_NAME} are allowed")
    if any(unicodedata.category(c) in ("Cc", "Cs") or c in _TURNING for c in words):
        raise ValueError(f"the {what} has a control character: {words!r}")
    words = unicodedata.normalize("NFC", " ".join(words.split()))
    if not any(c.isalpha() for c in words):
        raise ValueError(f"the {what} must have a letter, got {words!r}")
    return words


def check_user_name(text: str, labels: Iterable[str] = ()) -> str:
    """A user's name for an object, without surrounding space.

    Raises ``ValueError`` as :func:`check_words`, and for the name of a class: of the detector's, or in ``labels``.
    """
    name = check_words(text, "name")
    bare = name.casefold().removeprefix("the ")
    if bare in {c.casefold() for c in (*ALL_CATEGORIES, *labels)}:
        raise ValueError(f"{name!r} is the name of a class: a name of your own says which one ('my {bare}')")
    return name
