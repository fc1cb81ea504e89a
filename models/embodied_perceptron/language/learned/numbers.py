"""Numbers, ordinals and lengths in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST_M = 1e6
_MOST = 1_000_000  # of what is counted
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_CARDINALS = {word: float(k) for k, word in enumerate(_SMALL)} | {
    "a": 1.0, "an": 1.0, "both": 2.0, "couple": 2.0, "pair": 2.0, "hundred": 100.0,
} | {word: 10.0 * k for k, word in enumerate(_TENS, 2)}  # fmt: skip
ORDINALS = {
    word: rank
    for rank, words in enumerate(
        ("first 1st", "second 2nd next", "third 3rd", "fourth 4th", "fifth 5th", "sixth 6th", "seventh 7th",
         "eighth 8th", "ninth 9th", "tenth 10th", "eleventh 11th", "twelfth 12th"), 1,
    )
    for word in words.split()
}  # fmt: skip
UNITS = (  # by how they begin, metres
    ("centi", 0.01), ("cm", 0.01), ("milli", 0.001), ("mm", 0.001), ("met", 1.0), ("foo", 0.3048), ("fee", 0.3048),
    ("ft", 0.3048), ("inch", 0.0254), ("yard", 0.9144), ("step", 0.7), ("pace", 0.7), ("m", 1.0),
)  # fmt: skip


_SMALLER = {1.0: 0.01, 0.3048: 0.0254}  # what is counted behind metres and feet, metres


def cardinal(tokens: Sequence[str]) -> float | None:
    """The number that the words begin to say: "twenty five", "1.5", "a", "half"; None where they say none."""
    total: float | None = None
    for token in tokens:
        if re.fullmatch(r"\d+(?:[.,]\d+)?", token):
            return (total or 0.0) + float(token.replace(",", "."))
        if token in _CARDINALS:
            total = (total or 0.0) + _CARDINALS[token] if token != "hundred" else 100.0 * (total or 1.0)
        elif total is not None:
            break
    return total


def metres(tokens: Sequence[str]) -> float | None:
    """The length that words say, metres: "two and a half metres", "80 cm", "half a metre"; None where they say none."""
    unit = next((i for i, t in enumerate(tokens) if any(t.startswith(name) for name, _ in UNITS)), len(tokens))
    scale = next((scale for name, scale in UNITS if unit < len(tokens) and tokens[unit].startswith(name)), 1.0)
    before = list(tokens[:unit])
    half = 0.5 if "half" in tokens else 0.0
    if "half" in before:  # "one and a half": the "a" belongs to the half
        before = before[: before.index("half")]
        while before and before[-1] in ("a", "and"):
            before.pop()
    number = cardinal([t for t in before if t != "and"])
    if number is None:
        number = 0.0 if half and "half" in tokens[:unit] else 1.0
        if unit == len(tokens) and not half:
            return None
    rest = cardinal(tokens[unit + 1 :]) if not half else None  # "one metre ninety", "five foot six"
    small = _SMALLER.get(scale, 0.0) * rest if rest is not None else 0.0
    return min((number + half) * scale + (small if small < scale else 0.0), _LONGEST_M)


def ordinal(tokens: Sequence[str]) -> int | None:
    """The place that words say: "second", "number two", "5th"; -1 for the last."""
    for token in tokens:
        if token in ORDINALS:
            return ORDINALS[token]
        if token in ("last", "final"):
            return -1
        digits = re.fullmatch(r"(\d+)(?:st|nd|rd|th)?", token)
        if digits:
            return min(int(digits[1]), _MOST)
    number = cardinal([t for t in tokens if t not in ("a", "an")])
    return None if number is None else min(int(number), _MOST)
