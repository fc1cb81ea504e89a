"""History of objects: what happened to each, and since when places are in the map."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import Bounds
from embodied_perceptron.geometry.transforms import transform_points
from embodied_perceptron.mapping.block_copies import BlockView
from embodied_perceptron.mapping.blocks import BLOCK_EDGE
from embodied_perceptron.mapping.voxel_counts import without_bottom
from embodied_perceptron.recordings import plain_values
from embodied_perceptron.results import EventKind, HistoryEntry

MAX_ENTRIES = 64
_MAX_REASON = plain_values.MAX_NAME  # characters
_AROUND_M = 0.3
_LATER_NS = 2_000_000_000  # least time from the mapping of a place to an object that was put there
_LOADED_NS = 0

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


class MappedSince:
    """Time at which each block of the map got its first voxels: an object that was put somewhere is later than the
    floor around it, and one that was discovered late is not."""

    def __init__(self) -> None:
        self._keys = np.zeros(0, np.int64)
        self._since_ns = np.zeros(0, np.int64)

    def update(self, blocks: BlockView, now_ns: int) -> None:
        """Follow the map: new blocks begin now, and those that were cleared are forgotten."""
        since_ns = np.full(len(blocks.keys), now_ns, np.int64)
        if len(self._keys):
            at = np.minimum(np.searchsorted(self._keys, blocks.keys), len(self._keys) - 1)
            known = self._keys[at] == blocks.keys
            since_ns[known] = self._since_ns[at[known]]
        self._keys, self._since_ns = blocks.keys, since_ns

    def known(self, blocks: BlockView) -> None:
        """Start again with the blocks of a loaded or corrected map."""
        self._keys, self._since_ns = blocks.keys, np.full(len(blocks.keys), _LOADED_NS, np.int64)

    def is_put_there(self, box: NDArray[np.float64], blocks: BlockView, in_file_only: bool = False) -> bool:
        """Whether the floor or furniture below an object in a (9,) box was in the map clearly before the object;
        ``in_file_only``: in the file from which the map was loaded; ``blocks``: those of the last :meth:`update`."""
        bounds = Bounds.of(without_bottom(box[None]))
        edge_m = BLOCK_EDGE * blocks.voxel_size_m
        low, high = np.floor(bounds.low[0] / edge_m), np.floor(bounds.high[0] / edge_m)
        wide = np.array([_AROUND_M, _AROUND_M, 0.0])
        low_wide, high_wide = np.floor((bounds.low[0] - wide) / edge_m), np.floor((bounds.high[0] + wide) / edge_m)
        below = ((blocks.coords >= low_wide - [0, 0, 1]) & (blocks.coords <= [*high_wide[:2], low[2]])).all(axis=1)
        lowest = low[2] + (high[2] > low[2])  # the lowest blocks hold the floor too
        inside = ((blocks.coords >= [low[0], low[1], lowest]) & (blocks.coords <= high)).all(axis=1)
        own, around = self._since_ns[inside], self._since_ns[below & ~inside]
        if not len(own) or not len(around) or (in_file_only and np.median(around) > _LOADED_NS):
            return False
        return bool(np.median(own) - np.median(around) >= _LATER_NS)
