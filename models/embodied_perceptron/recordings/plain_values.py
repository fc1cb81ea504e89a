"""Checks of parsed values: each function returns the value or raises ``ValueError`` with it."""

from __future__ import annotations

import math
from typing import Any

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
        raise ValueError(f"{name} must be a finite number from {low:g} to {high:g}, got {_short(value)}")
    return float(value)


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


def _short(value: Any) -> str:
    if type(value) is int and value.bit_length() > 200:  # Python refuses to print the longest
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.100}"
