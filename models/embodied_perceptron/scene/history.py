"""History of objects: what happened to each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import transform_points
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.results import EventKind, HistoryEntry

MAX_ENTRIES = 64
_MAX_REASON = plain_values.MAX_NAME  # characters

History = tuple[HistoryEntry, ...]


def extended(history: History, entry: HistoryEntry) -> History:
    """The history with a new entry. Of more than :data:`MAX_ENTRIES`, the first one stays and the two after it are
    merged."""
    history = (*history, entry)
    if len(history) > MAX_ENTRIES:
        merged = replace(history[2], reason=f"{history[1].kind} before, at {history[1].stamp_ns} ns"[:_MAX_REASON])
        history = (history[0], merged, *history[3:])
    return history


def moved(history: History, motion_at: Callable[[int], NDArray[np.float64]]) -> History:
    """The history in a corrected world; ``motion_at``: as of :meth:`.ObjectMap.move`."""
    return tuple(replace(e, at_m=_moved_point(motion_at(e.stamp_ns), e.at_m)) for e in history)


def _moved_point(T: NDArray[np.float64], at_m: tuple[float, float, float]) -> tuple[float, float, float]:
    x, y, z = transform_points(T, np.array([at_m]))[0].tolist()
    return x, y, z


def to_list(history: History) -> list[list[Any]]:
    """JSON form."""
    rows = []
    for e in history:
        at_m = [round(v, 3) for v in e.at_m]
        rows.append([e.stamp_ns, e.kind, at_m, round(e.probability, 3), e.words, e.reason])
    return rows


def from_list(value: Any) -> History:
    """Inverse of :func:`to_list`. Raises ``ValueError`` naming the entry."""
    entries = []
    for number, row in enumerate(plain_values.sequence(value, "history")):
        name = f"history[{number}]"
        if len(plain_values.sequence(row, name)) != 6:
            raise ValueError(f"{name} must have 6 values, got {len(row)}")
        stamp_ns, kind, at_m, probability, words, reason = row
        if kind not in EventKind.ALL:
            raise ValueError(f"{name} must be one of {list(EventKind.ALL)}, got {kind!r:.60}")
        x, y, z = plain_values.numbers(at_m, f"{name}: position", 3).tolist()
        entries.append(
            HistoryEntry(
                plain_values.stamp_ns(stamp_ns, f"{name}: stamp"),
                kind,
                (x, y, z),
                plain_values.number(probability, f"{name}: probability", 0.0, 1.0),
                plain_values.text(words, f"{name}: words") if words else "",
                plain_values.text(reason, f"{name}: reason") if reason else "",
            )
        )
    if any(a.stamp_ns > b.stamp_ns for a, b in itertools.pairwise(entries)):
        raise ValueError("the entries of a history must be in the order of time")
    return tuple(entries[:1] + entries[1:][1 - MAX_ENTRIES :])
