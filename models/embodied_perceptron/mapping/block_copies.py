"""Copies of the map that cost what has changed: its voxels block by block, in memory that one copy shares with the next.

A copy is a :class:`BlockView`: which blocks there are, where the voxels of each stand in an *arena* of rows, and a
version that a block's content never shares with another content. What changed since the copy before is written to rows
that no view uses; unchanged blocks stay where they are. A view is therefore frozen although later copies write to the
same arena: rows are used again only after the last view that shows them is gone. Whoever keeps something of a view
keeps the view.

What is computed of a map block by block follows by :func:`changed_blocks`: take out what the blocks that changed had
given, put in what they give now.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.mapping.blocks import BLOCK_VOXELS, row_starts
from embodied_perceptron.mapping.voxels import (
    COLOR,
    EVIDENCE,
    EVIDENCE_UNIT,
    HITS,
    OFFSET,
    OFFSET_UNITS,
    RECORD,
    VoxelRows,
)
from embodied_perceptron.results import VoxelSnapshot

Array = NDArray[Any]
Index = NDArray[np.int64]

_UNIT = 16  # rows by which room is given to blocks: a block that grows a little stays in the same size
_SIZES = BLOCK_VOXELS // _UNIT + 1
_ROOM = 2.0  # of a new arena, by what it must hold
_MOMENTS = itertools.count(1)  # one for all maps of the process: no two contents share a version


@dataclass(frozen=True, eq=False)
class Arena:
    """Rows of voxels; see the module docstring.

    Attributes:
        coords: (R, 3) int32. records: (R, 8) int32. last_seen_ns: (R,) int64, as in :class:`~.voxels.VoxelRows`.
        points_m: (R, 3) float32 mean points. colors: (R, 3) uint8 mean colours.
    """

    coords: NDArray[np.int32]
    records: NDArray[np.int32]
    last_seen_ns: Index
    points_m: NDArray[np.float32]
    colors: NDArray[np.uint8]

    @staticmethod
    def of(rows: int) -> Arena:
        """So large, of any content."""
        return Arena(
            np.empty((rows, 3), np.int32),
            np.empty((rows, RECORD), np.int32),
            np.empty(rows, np.int64),
            np.empty((rows, 3), np.float32),
            np.empty((rows, 3), np.uint8),
        )

    def __len__(self) -> int:
        return len(self.coords)

    def take(self, rows: Index, other: Arena, others: Index) -> None:
        """Some rows of another one."""
        for name in ("coords", "records", "last_seen_ns", "points_m", "colors"):
            getattr(self, name)[rows] = getattr(other, name)[others]


@dataclass(frozen=True, eq=False)
class BlockView:
    """The map at one moment, block by block.

    Attributes:
        voxel_size_m: edge of a voxel.
        keys: (B,) int64 of blocks with voxels, ascending.
        coords: (B, 3) int32 block coordinates.
        starts, counts: (B,) int64 first row of each block's voxels in the arena, and how many, ordered within a block.
        newest_ns: (B,) int64 newest stamp of its voxels.
        versions: (B,) int64 of its content.
        arena: the rows; mean points and colours are there once :meth:`with_means` was called.
    """

    voxel_size_m: float
    keys: Index
    coords: NDArray[np.int32]
    starts: Index
    counts: Index
    newest_ns: Index
    versions: Index
    arena: Arena
    _fill_means: Any = None

    def __len__(self) -> int:
        return self._voxels

    @cached_property
    def _voxels(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def order(self) -> Index:
        """(N,) rows of the arena by voxel, x slowest, z fastest."""
        rows = np.zeros((len(self.keys), 64), np.int32)
        count_rows(self.starts, self.counts, self.arena.coords, rows)
        order = np.empty(row_starts(self.coords, rows), np.int64)
        order_rows(self.starts, self.counts, self.arena.coords, rows, order)
        return order

    def with_means(self) -> BlockView:
        """The same view, the means of whose voxels have been computed."""
        if self._fill_means is not None:
            self._fill_means()
        return self

    def rows(self) -> VoxelRows:
        """The voxels as they are stored, sorted when they are asked for."""
        return BlockRows(self)

    def snapshot(self) -> VoxelSnapshot:
        """Their means, sorted when they are asked for."""
        return BlockSnapshot(self.with_means())


class BlockRows(VoxelRows):
    """:class:`~.voxels.VoxelRows` of a view. ``blocks``: the view."""

    def __init__(self, blocks: BlockView) -> None:
        object.__setattr__(self, "blocks", blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def coords(self) -> torch.Tensor:  # type: ignore[override]
        return torch.from_numpy(self.blocks.arena.coords[self.blocks.order])

    @cached_property
    def records(self) -> torch.Tensor:  # type: ignore[override]
        return torch.from_numpy(self.blocks.arena.records[self.blocks.order])

    @cached_property
    def last_seen_ns(self) -> torch.Tensor:  # type: ignore[override]
        return torch.from_numpy(self.blocks.arena.last_seen_ns[self.blocks.order])

    def cpu(self) -> VoxelRows:
        return self


class BlockSnapshot(VoxelSnapshot):
    """:class:`~embodied_perceptron.results.VoxelSnapshot` of a view. ``blocks``: the view, with means."""

    def __init__(self, blocks: BlockView) -> None:
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "voxel_size_m", blocks.voxel_size_m)

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def coords(self) -> NDArray[np.int32]:  # type: ignore[override]
        return self.blocks.arena.coords[self.blocks.order]

    @cached_property
    def mean_point_m(self) -> NDArray[np.float32]:  # type: ignore[override]
        return self.blocks.arena.points_m[self.blocks.order]

    @cached_property
    def mean_color(self) -> NDArray[np.uint8]:  # type: ignore[override]
        return self.blocks.arena.colors[self.blocks.order]

    @cached_property
    def hits(self) -> NDArray[np.int32]:  # type: ignore[override]
        return self.blocks.arena.records[self.blocks.order, HITS]

    @cached_property
    def evidence(self) -> NDArray[np.float32]:  # type: ignore[override]
        return (self.blocks.arena.records[self.blocks.order, EVIDENCE] * EVIDENCE_UNIT).astype(np.float32)

    @cached_property
    def last_seen_ns(self) -> Index:  # type: ignore[override]
        return self.blocks.arena.last_seen_ns[self.blocks.order]


def changed_blocks(old: BlockView | None, new: BlockView) -> tuple[Index, Index]:
    """Blocks of ``old`` that are not in ``new`` as they were, and those of ``new`` that were not so in ``old``, as
    indices."""
    if old is None:
        return np.zeros(0, np.int64), np.arange(len(new.keys))
    gone, came = np.empty(len(old.keys), np.int64), np.empty(len(new.keys), np.int64)
    g, c = compare_blocks(old.keys, old.versions, new.keys, new.versions, gone, came)
    return gone[:g], came[:c]


class BlockCopier:
    """Makes a view of a map's blocks after the other; for one thread at a time, views may be read in others.

    Blocks are known by the slots in which the map keeps them.
    """

    def __init__(self, slots: int, voxel_size_m: float) -> None:
        self._voxel_size_m = voxel_size_m
        self._start = np.zeros(slots, np.int64)
        self._size = np.zeros(slots, np.int32)  # of the room that it has, in units
        self._count = np.zeros(slots, np.int64)
        self._newest = np.zeros(slots, np.int64)
        self._version = np.zeros(slots, np.int64)
        self._arena = Arena.of(0)
        self._end = 0
        self._free = np.full(_SIZES, -1, np.int64)  # first free room of each size, in units; -1 = none
        self._next_free = np.empty(0, np.int64)
        self._left: deque[tuple[int, Index, NDArray[np.int32]]] = deque()  # moment, room that views before it may show
        self._views: deque[tuple[int, weakref.ref[BlockView]]] = deque()
        self._without_means: list[tuple[Index, Index]] = []
        self._means_lock = threading.Lock()

    def rows_in_use(self) -> int:
        """Rows of the arena that were ever written to."""
        return self._end

    def make_room(self, slots: NDArray[np.int32], sizes: NDArray[np.int32]) -> Index:
        """(N,) first rows of new room for blocks that have changed, ``sizes`` voxels at most in each.

        What they had before is free when no view shows it any more. :meth:`view` follows.
        """
        self._moment = next(_MOMENTS)
        had = slots[self._size[slots] > 0]
        self._left.append((self._moment, self._start[had] // _UNIT, self._size[had].copy()))
        while self._views and self._views[0][1]() is None:
            self._views.popleft()
        oldest = self._views[0][0] if self._views else self._moment
        while self._left and self._left[0][0] <= oldest:
            _, starts, units = self._left.popleft()
            free_room(starts, units, self._free, self._next_free)
        wanted = (sizes + (_UNIT - 1)) // _UNIT
        self._size[slots] = 0
        if self._end + int(wanted.sum()) * _UNIT > len(self._arena):
            self._move(int(wanted.sum()))
        starts = np.empty(len(slots), np.int64)
        self._end = take_room(wanted, self._free, self._next_free, self._end, starts)
        self._start[slots], self._size[slots], self._version[slots] = starts, wanted, self._moment
        return starts

    def _move(self, units: int) -> None:
        """Into a new arena with room for so much more; views stay in the one that they were made with."""
        self._fill_means()
        slots = np.flatnonzero(self._size)
        units = int(_ROOM * (units + int(self._size.sum()))) + 1
        arena, starts = Arena.of(units * _UNIT), np.empty(len(slots), np.int64)
        self._next_free = np.empty(units, np.int64)
        self._free.fill(-1)
        self._end = take_room(self._size[slots], self._free, self._next_free, 0, starts)
        counts = self._count[slots]
        arena.take(row_ranges(starts, counts), self._arena, row_ranges(self._start[slots], counts))
        self._arena, self._start[slots] = arena, starts
        self._left.clear()
        self._views.clear()

    @property
    def arena(self) -> Arena:
        """Where rows are written now."""
        return self._arena

    def view(
        self,
        slots: NDArray[np.int32],
        keys: Index,
        coords: NDArray[np.int32],
        changed: NDArray[np.int32],
        counts: Index,
        newest_ns: Index,
    ) -> BlockView:
        """The map now: ``slots``, ``keys`` and ``coords`` of all blocks, ascending by key, and how many voxels of the
        ``changed`` ones were written to the room of :meth:`make_room`, with their newest stamps."""
        self._count[changed], self._newest[changed] = counts, newest_ns
        with self._means_lock:
            self._without_means.append((self._start[changed], counts))
        kept = np.flatnonzero(self._count[slots])
        slots = slots[kept]
        view = BlockView(
            self._voxel_size_m, keys[kept], coords[kept], self._start[slots], self._count[slots], self._newest[slots],
            self._version[slots], self._arena, self._fill_means,
        )  # fmt: skip
        self._views.append((self._moment, weakref.ref(view)))
        return view

    def _fill_means(self) -> None:
        with self._means_lock:
            for starts, counts in self._without_means:
                a = self._arena
                voxel_means(starts, counts, a.coords, a.records, self._voxel_size_m, a.points_m, a.colors)
            self._without_means.clear()


# --------------------------------------------------------------------------------------------------------------------
# kernels


@njit(cache=True, nogil=True)
def row_ranges(starts: Array, counts: Array) -> Array:
    """Rows of some ranges, one after the other."""
    rows = np.empty(counts.sum(), np.int64)
    n = 0
    for b in range(starts.shape[0]):
        for i in range(starts[b], starts[b] + counts[b]):
            rows[n] = i
            n += 1
    return rows


@njit(cache=True, nogil=True)
def free_room(starts: Array, sizes: Array, free: Array, next_free: Array) -> None:
    """Put rooms, in units, on the lists of free ones of their sizes."""
    for i in range(starts.shape[0]):
        next_free[starts[i]] = free[sizes[i]]
        free[sizes[i]] = starts[i]


@njit(cache=True, nogil=True)
def take_room(wanted: Array, free: Array, next_free: Array, end: int, starts: Array) -> int:
    """First rows of rooms of ``wanted`` units, free ones or else behind ``end``; returns the new end."""
    for i in range(wanted.shape[0]):
        size = wanted[i]
        if size > 0 and free[size] >= 0:
            starts[i] = free[size] * _UNIT
            free[size] = next_free[free[size]]
        else:
            starts[i] = end
            end += size * _UNIT
    return end


@njit(cache=True, nogil=True, error_model="numpy")  # no check for division by zero: every stored voxel has hits
def voxel_means(
    starts: Array, counts: Array, coords: Array, records: Array, voxel_size_m: float, points: Array, colors: Array
) -> None:
    """Sums -> mean points (metres) and mean colours, of some ranges of rows."""
    for b in range(starts.shape[0]):
        for i in range(starts[b], starts[b] + counts[b]):
            n = np.float64(records[i, HITS])
            for c in range(3):
                # half a unit: a fixed-point number stands for the unit above it
                place = (records[i, OFFSET + c] / n + 0.5) / OFFSET_UNITS
                points[i, c] = (coords[i, c] + place) * voxel_size_m
                colors[i, c] = np.uint8(records[i, COLOR + c] / n + 0.5)


@njit(cache=True, nogil=True)
def count_rows(starts: Array, counts: Array, coords: Array, rows: Array) -> None:
    """How many voxels stand in each (x, y) row of each block, added to ``rows`` (B, 64)."""
    for b in range(starts.shape[0]):
        for i in range(starts[b], starts[b] + counts[b]):
            rows[b, (coords[i, 0] & 7) * 8 + (coords[i, 1] & 7)] += 1


@njit(cache=True, nogil=True)
def order_rows(starts: Array, counts: Array, coords: Array, rows: Array, order: Array) -> None:
    """Row of each voxel in order, by where each (x, y) row begins."""
    for b in range(starts.shape[0]):
        for i in range(starts[b], starts[b] + counts[b]):
            row = (coords[i, 0] & 7) * 8 + (coords[i, 1] & 7)
            order[rows[b, row]] = i
            rows[b, row] += 1


@njit(cache=True, nogil=True)
def compare_blocks(
    old_keys: Array, old_versions: Array, keys: Array, versions: Array, gone: Array, came: Array
) -> tuple[int, int]:
    """See :func:`changed_blocks`; returns how many ``gone`` and ``came`` were filled in."""
    i, j, g, c = 0, 0, 0, 0
    while i < old_keys.shape[0] or j < keys.shape[0]:
        only_old = j == keys.shape[0] or (i < old_keys.shape[0] and old_keys[i] < keys[j])
        only_new = i == old_keys.shape[0] or (j < keys.shape[0] and keys[j] < old_keys[i])
        if not only_old and not only_new and old_versions[i] == versions[j]:
            i, j = i + 1, j + 1
            continue
        if not only_new:
            gone[g] = i
            g, i = g + 1, i + 1
        if not only_old:
            came[c] = j
            c, j = c + 1, j + 1
    return g, c
