"""Checks of parsed values: each function returns the value or raises ``ValueError`` with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import Intrinsics

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


def text(value: Any, name: str, longest: int = 1000) -> str:
    """Check for a string of one to ``longest`` characters."""
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise ValueError(f"{name} must be a text of 1 to {longest} characters, got {_short(value)}")
    return value


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


def _within(low: float, high: float) -> str:
    return "" if math.isinf(low) and math.isinf(high) else f" from {low:g} to {high:g}"


def _short(value: Any) -> str:
    if type(value) is int and value.bit_length() > 200:  # Python refuses to print the longest
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.100}"
