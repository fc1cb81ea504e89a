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
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.recordings import plain_values
from embodied_perceptron.recordings.files import write_atomically
from embodied_perceptron.results import SceneObject
from embodied_perceptron.weights.categories import ALL_CATEGORIES

F64 = NDArray[np.float64]


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
    """Read a label file. Raises :class:`LabelError` naming file, place and value, or ``OSError``."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        return labels_from_dict(data)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LabelError(f"{path} is no JSON: {error}") from error
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
    data = _mapping(data, "the file", {"objects"}, {"ignore", "extra_names"})
    extra = _names(data.get("extra_names", []), "extra_names")
    known = {*ALL_CATEGORIES, *extra}
    things, unknown = [], []
    for i, row in enumerate(_list(data["objects"], "objects")):
        where = f"objects[{i}]"
        row = _mapping(row, where, {"names", "box"}, {"sure", "note"})
        names = _names(row["names"], f"{where}.names")
        unknown += [f"{where}.names holds the unknown name {_with_near(n, known)}" for n in names if n not in known]
        if not names:
            raise LabelError(f"{where}.names must hold at least one name, got {row['names']!r}")
        sure = row.get("sure", True)
        if not isinstance(sure, bool):
            raise LabelError(f"{where}.sure must be true or false, got {sure!r}")
        things.append(LabelledThing(names, _box(row["box"], where), sure, _note(row, where)))
    if unknown:  # all at once
        raise LabelError(f"{'; '.join(unknown)}; new names belong into extra_names")
    ignore = []
    for i, row in enumerate(_list(data.get("ignore", []), "ignore")):
        row = _mapping(row, f"ignore[{i}]", {"box"}, {"note"})
        ignore.append(IgnoredRegion(_box(row["box"], f"ignore[{i}]"), _note(row, f"ignore[{i}]")))
    return RecordingLabels(tuple(things), tuple(ignore), extra)


def _mapping(value: Any, where: str, needed: set[str], optional: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise LabelError(f"{where} must be an object, got {value!r:.80}")
    if missing := needed - set(value):
        raise LabelError(f"{where} lacks {min(missing)!r}")
    if unknown := set(value) - needed - optional:
        known = ", ".join(sorted(needed | optional))
        raise LabelError(f"{where} has an unknown key {min(unknown)!r}; known: {known}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise LabelError(f"{where} must be a list, got {value!r:.80}")
    return value


def _note(row: Mapping[str, Any], where: str) -> str:
    note = row.get("note", "")
    if not isinstance(note, str):
        raise LabelError(f"{where}.note must be text, got {note!r:.80}")
    return _plain(note, f"{where}.note") if note else note


def _plain(text: str, what: str) -> str:
    try:
        return plain_values.words(text, what, plain_values.MAX_TEXT)
    except ValueError as error:
        raise LabelError(str(error)) from None


def _with_near(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 3)
    return f"{name!r} (near: {', '.join(near)})" if near else repr(name)


def _names(value: Any, where: str) -> tuple[str, ...]:
    names: list[str] = []
    for name in _list(value, where):
        if not isinstance(name, str) or not name.strip():
            raise LabelError(f"{where} holds {name!r}, which is no name")
        _plain(name, f"{where}: a name")
        if name in names:
            raise LabelError(f"{where} holds {name!r} twice")
        names.append(name)
    return tuple(names)


def _box(value: Any, where: str) -> F64:
    if not isinstance(value, list) or len(value) != 9:
        raise LabelError(f"{where}.box must be 9 numbers (x y z dx dy dz alpha beta gamma), got {value!r:.120}")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
            raise LabelError(f"{where}.box holds {number!r}, which is no finite number")
    for name, size in zip(("dx", "dy", "dz"), value[3:6], strict=True):
        if not size > 0:
            raise LabelError(f"{where}.box has {name} = {size}: a side must be longer than zero")
    return np.array(value, np.float64)
