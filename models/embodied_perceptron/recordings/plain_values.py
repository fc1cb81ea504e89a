"""Checks of parsed values: each function returns the value or raises ``ValueError`` with it.

Names, labels and notes, of users and of files, follow one rule (:func:`forbidden_character`): they are shown on
terminals, sent in messages and read by language models.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics

MAX_NAME = 100  # characters of a name or label
MAX_TEXT = 1000  # characters of another text
_JOINERS = "\u200c\u200d"  # of Persian and Indian scripts
# invisible letters and marks, selectors of glyphs except those of emoji, and tags, which can hide whole sentences
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0d\uffa0\U000e0000-\U000e0fff]")
MAX_SIDE = 2**16  # of an image, in pixels
MAX_STAMP_NS = 9_200_000_000_000_000_000  # 291 years; nine months below the limit of int64


def whole(value: Any, name: str, low: int, high: int) -> int:
    """Check for an int (not bool or float) from ``low`` to ``high``."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, got {_short(value)}")
    return value


def stamp_ns(value: Any, name: str, low: int = 0) -> int:
    """Check for a time in nanoseconds."""
    return whole(value, name, low, MAX_STAMP_NS)


def number(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Check for a finite number from ``low`` to ``high``."""
    try:
        fits = type(value) in (int, float) and math.isfinite(value) and low <= value <= high
    except OverflowError:  # an int larger than any float
        fits = False
    if not fits:
        raise ValueError(f"{name} must be a finite number{_within(low, high)}, got {_short(value)}")
    return float(value)


def decimal(word: str, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Convert the text of a finite number from ``low`` to ``high``."""
    try:
        return number(float(word), name, low, high)
    except ValueError:
        raise ValueError(f"{name} must be a finite number{_within(low, high)}, got {_short(word)}") from None


def seconds(value: Any, name: str) -> int:
    """Check for a time in seconds; return nanoseconds."""
    return round(number(value, name, 0.0, MAX_STAMP_NS * 1e-9) * 1e9)


def numbers(value: Any, name: str, *shape: int) -> NDArray[np.float64]:
    """Check for nested lists of finite numbers; return them as an array of ``shape``."""
    if not isinstance(value, list) or len(value) != shape[0]:
        raise ValueError(f"{name} must be a list of {shape[0]} entries, got {_short(value)}")
    entries = ((entry, f"{name}[{i}]") for i, entry in enumerate(value))
    return np.array([numbers(*each, *shape[1:]) if shape[1:] else number(*each) for each in entries])


def entry(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key that must be there."""
    if key not in values:
        raise ValueError(f"key {key!r} is missing")
    return values[key]


def pinhole(values: Mapping[str, Any]) -> Intrinsics:
    """Check for fx, fy, cx, cy, width and height, which may be floats without fraction."""
    fx, fy, cx, cy = (number(entry(values, key), key) for key in ("fx", "fy", "cx", "cy"))
    sides = (entry(values, "width"), entry(values, "height"))
    width, height = (int(v) if isinstance(v, float) and v.is_integer() else v for v in sides)
    return Intrinsics(fx, fy, cx, cy, whole(width, "width", 1, MAX_SIDE), whole(height, "height", 1, MAX_SIDE))


def truth(value: Any, name: str) -> bool:
    """Check for a bool."""
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false, got {_short(value)}")
    return value


def text(value: Any, name: str, longest: int = MAX_TEXT) -> str:
    """Check for a string of one to ``longest`` characters."""
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise ValueError(f"{name} must be a text of 1 to {longest} characters, got {_short(value)}")
    return value


def words(value: Any, name: str, longest: int = MAX_NAME) -> str:
    """Check for a name or note: a text without a :func:`forbidden_character`."""
    if forbidden := forbidden_character(text(value, name, longest)):
        raise ValueError(f"{name} has the {forbidden}")
    return str(value)


def forbidden_character(name: str) -> str:
    """First character that no name may have, in words; empty without one.

    Forbidden are lone surrogates, control, invisible and bidirectional characters, and private ones.
    """
    if name.isascii() and name.isprintable():
        return ""
    found = next((c for c in name if not _is_allowed(c)), "")
    if not found:
        return ""
    known = unicodedata.name(found, "")
    return f"control character U+{ord(found):04X}{known and f' ({known})'}"


def _is_allowed(character: str) -> bool:
    unseen = unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp") and character not in _JOINERS
    return not unseen and _INVISIBLE.match(character) is None


def cleaned(name: str, longest: int = MAX_NAME) -> str:
    """``name`` without forbidden characters and not longer than ``longest``; a valid one stays as it is."""
    if len(name) <= longest and not forbidden_character(name) and (name.strip() or not name):
        return name
    plain = "".join(c if _is_allowed(c) else " " if c.isspace() else "" for c in name[: 4 * longest])
    shown = " ".join(plain.split())
    if not shown:
        return "unnamed"
    return shown if len(shown) <= longest else shown[: longest - 1] + "\u2026"


def clean_texts(value: Any, longest: int, changed: list[str]) -> Any:
    """Parsed JSON with all keys and texts :func:`cleaned`; ``changed`` gets the texts that were not clean.

    Numbers under keys that become equal are added.
    """
    if isinstance(value, str):
        clean = cleaned(value, longest)
        if clean != value:
            changed.append(value)
        return clean
    if isinstance(value, list):
        return [clean_texts(entry, longest, changed) for entry in value]
    if not isinstance(value, dict):
        return value
    entries: dict[str, Any] = {}
    for key, entry in value.items():
        name, entry = clean_texts(key, longest, changed), clean_texts(entry, longest, changed)
        if name in entries and isinstance(entry, float) and isinstance(entries[name], float):
            entry += entries[name]
        while name in entries and not isinstance(entry, float):
            name += "'"
        entries[name] = entry
    return entries


def sequence(value: Any, name: str) -> list[Any]:
    """Check for a list."""
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {_short(value)}")
    return value


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Check for a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping, got {_short(value)}")
    return value


def record(value: Any, name: str, needed: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """Check for a JSON object with all ``needed`` keys and no others than these and the ``optional`` ones."""
    found = mapping(value, name)
    if missing := set(needed) - set(found):
        raise ValueError(f"{name} lacks {min(missing)!r}")
    known = sorted({*needed, *optional})
    if unknown := set(found).difference(known):
        raise ValueError(f"{name} has an unknown key {min(unknown)!r}; known: {', '.join(known)}")
    return found


def _within(low: float, high: float) -> str:
    return "" if math.isinf(low) and math.isinf(high) else f" from {low:g} to {high:g}"


def _short(value: Any) -> str:
    if type(value) is int and value.bit_length() > 200:  # Python refuses to print the longest
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.100}"
