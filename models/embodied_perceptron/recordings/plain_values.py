"""Plain values of files, checked one by one: each function returns the value or raises ``ValueError`` naming it."""

from __future__ import annotations

import math
from typing import Any

MAX_STAMP_NS = 9_200_000_000_000_000_000  # 291 years; nine months below what an int64 holds, for time to go on


def whole(value: Any, name: str, low: int, high: int) -> int:
    """A whole number, which neither a truth value nor 1.0 is, from ``low`` to ``high``."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} must be a whole number from {low} to {high}, got {_short(value)}")
    return value


def stamp_ns(value: Any, name: str, low: int = 0) -> int:
    """A time in nanoseconds with which one can go on to count."""
    return whole(value, name, low, MAX_STAMP_NS)


def number(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number from ``low`` to ``high``, whole or not."""
    try:
        fits = type(value) in (int, float) and math.isfinite(value) and low <= value <= high
    except OverflowError:  # a whole number larger than any float
        fits = False
    if not fits:
        raise ValueError(f"{name} must be a finite number from {low:g} to {high:g}, got {_short(value)}")
    return float(value)


def truth(value: Any, name: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false, got {_short(value)}")
    return value


def text(value: Any, name: str, longest: int = 1000) -> str:
    """A text of one to ``longest`` characters."""
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise ValueError(f"{name} must be a text of 1 to {longest} characters, got {_short(value)}")
    return value


def sequence(value: Any, name: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {_short(value)}")
    return value


def mapping(value: Any, name: str) -> dict[str, Any]:
    """A mapping, whose keys JSON makes texts."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping, got {_short(value)}")
    return value


def _short(value: Any) -> str:
    if type(value) is int and value.bit_length() > 200:  # Python refuses to print the longest
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.100}"
