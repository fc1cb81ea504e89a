"""Hand-made labels of a recording: a small JSON file that published objects are compared with.

    {
      "objects": [
        {"names": ["table", "desk"], "box": [0.66, 0.45, 0.37, 2.16, 0.9, 0.74, 1.571, 0, 0], "sure": true,
         "note": "the long one"}
      ],
      "ignore": [{"box": [0.5, 3.8, 1, 4, 1.6, 3, 0, 0, 0], "note": "behind the glass"}],
      "extra_names": ["espresso machine"]
    }

``objects``: each object once. ``names``: every name that is right for it, of the project's categories or of
``extra_names``. ``box``: x y z dx dy dz alpha beta gamma in metres and radians, in the recording's world frame, R =
Rz(alpha) Rx(beta) Ry(gamma). ``sure`` (default true): false where the pictures do not show clearly what it is or where
it ends; objects published there are not scored. ``ignore``: regions that are not scored. ``note``: for people.
``ignore``, ``extra_names`` and ``note`` are optional. Unknown keys are errors.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied_perceptron.geometry.transforms import F64
from embodied_perceptron.recordings import plain_values as plain
from embodied_perceptron.recordings.files import read_json, write_atomically
from embodied_perceptron.results import SceneObject
from embodied_perceptron.weights.categories import ALL_CATEGORIES


class LabelError(ValueError):
    """An invalid label file; the message names the file, the place in it and the value."""


@dataclass(frozen=True, eq=False)
class LabelledThing:
    """One object: right ``names``, (9,) ``box``, whether both are ``sure``, a ``note`` for people."""

    names: tuple[str, ...]
    box: F64
    sure: bool = True
    note: str = ""


@dataclass(frozen=True, eq=False)
class IgnoredRegion:
    """(9,) box of a region that is not scored."""

    box: F64
    note: str = ""


@dataclass(frozen=True, eq=False)
class RecordingLabels:
    """Contents of a label file; ``extra_names`` are valid in addition to the project's categories."""

    things: tuple[LabelledThing, ...] = ()
    ignore: tuple[IgnoredRegion, ...] = ()
    extra_names: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""

        def entry(box: F64, note: str) -> dict[str, Any]:
            return {"box": [round(float(v), 4) + 0.0 for v in box], **({"note": note} if note else {})}

        return {
            "objects": [{"names": list(t.names), **entry(t.box, t.note), "sure": t.sure} for t in self.things],
            "ignore": [entry(r.box, r.note) for r in self.ignore],
            **({"extra_names": list(self.extra_names)} if self.extra_names else {}),
        }


def read_labels(path: str | Path) -> RecordingLabels:
    """Read a label file. Raises ``RecordingError``, or :class:`LabelError` naming file, place and value."""
    data = read_json(Path(path))
    try:
        return labels_from_dict(data)
    except LabelError as error:
        raise LabelError(f"{path}: {error}") from None


def write_labels(path: str | Path, labels: RecordingLabels) -> None:
    """Write a label file, one line per object for readable diffs. Raises ``OSError``."""
    data = labels.as_dict()
    parts = []
    for key, value in data.items():
        rows = [json.dumps(row, ensure_ascii=False) for row in value]
        body = "".join(f"\n  {row}," for row in rows).rstrip(",")
        parts.append(f' "{key}": [{body}\n ]' if rows else f' "{key}": []')
    write_atomically(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode())


def labels_from_objects(objects: Sequence[SceneObject]) -> RecordingLabels:
    """Labels to be corrected by hand: the published objects, none of them sure."""
    return RecordingLabels(
        tuple(
            LabelledThing((o.label,), o.box.astype(np.float64), False, f"published as {o.label} {o.id}")
            for o in sorted(objects, key=lambda o: o.id)
        ),
        extra_names=tuple(sorted({o.label for o in objects} - set(ALL_CATEGORIES))),
    )


def labels_from_dict(data: Any) -> RecordingLabels:
    """Checked contents of a label file. Raises :class:`LabelError` naming the place and the value."""
    try:
        return _checked(data)
    except ValueError as error:
        raise LabelError(str(error)) from None


def _checked(data: Any) -> RecordingLabels:
    data = plain.record(data, "the file", {"objects"}, {"ignore", "extra_names"})
    extra = _names(data.get("extra_names", []), "extra_names")
    known = {*ALL_CATEGORIES, *extra}
    things, unknown = [], []
    for i, row in enumerate(plain.sequence(data["objects"], "objects")):
        where = f"objects[{i}]"
        row = plain.record(row, where, {"names", "box"}, {"sure", "note"})
        names = _names(row["names"], f"{where}.names")
        unknown += [f"{where}.names holds the unknown name {_with_near(n, known)}" for n in names if n not in known]
        if not names:
            raise ValueError(f"{where}.names must hold at least one name, got {row['names']!r}")
        sure = plain.truth(row.get("sure", True), f"{where}.sure")
        things.append(LabelledThing(names, _box(row["box"], where), sure, _note(row, where)))
    if unknown:  # all at once
        raise ValueError(f"{'; '.join(unknown)}; new names belong into extra_names")
    ignore = []
    for i, row in enumerate(plain.sequence(data.get("ignore", []), "ignore")):
        row = plain.record(row, f"ignore[{i}]", {"box"}, {"note"})
        ignore.append(IgnoredRegion(_box(row["box"], f"ignore[{i}]"), _note(row, f"ignore[{i}]")))
    return RecordingLabels(tuple(things), tuple(ignore), extra)


def _note(row: Mapping[str, Any], where: str) -> str:
    note = row.get("note", "")
    return "" if note == "" else plain.words(note, f"{where}.note", plain.MAX_TEXT)


def _with_near(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 3)
    return f"{name!r} (near: {', '.join(near)})" if near else repr(name)


def _names(value: Any, where: str) -> tuple[str, ...]:
    names = [plain.words(name, f"{where}: a name", plain.MAX_TEXT) for name in plain.sequence(value, where)]
    for k, name in enumerate(names):
        if not name.strip():
            raise ValueError(f"{where} holds {name!r}, which is no name")
        if name in names[:k]:
            raise ValueError(f"{where} holds {name!r} twice")
    return tuple(names)


def _box(value: Any, where: str) -> F64:
    box = plain.numbers(value, f"{where}.box", 9)
    for name, size in zip(("dx", "dy", "dz"), box[3:6].tolist(), strict=True):
        if not size > 0:
            raise ValueError(f"{where}.box has {name} = {size:g}: a side must be longer than zero")
    return box
