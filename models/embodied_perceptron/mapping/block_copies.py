"""Incremental copies of the map, block by block, in memory shared by all copies.

A copy is a :class:`BlockView`: its blocks, the rows of each block in an *arena*, and a unique version for each content
of a block. Blocks that changed since the last copy are written to rows that no view uses; others stay. A view is
therefore frozen although later copies write to the same arena: rows are reused only after the last view of them is
gone. Keep the view as long as anything read from it.

Values that follow from the voxels block by block stand in a :class:`BlockCache`, which computes them again for the
blocks that changed.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import pack_keys
from embodied_perceptron.mapping.blocks import (
    BLOCK_BITS,
    BLOCK_EDGE,
    BLOCK_VOXELS,
    block_coords,
    row_starts,
    split_coords,
)
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

_UNIT = 16  # rows: granularity of the room of a block, so that small growth does not move it
_SIZES = BLOCK_VOXELS // _UNIT + 1
_ROOM = 2.0  # size of a new arena, by the rows that it must hold
_MAX_CELLS = 1 << 22  # of a grid of blocks
_MOMENTS = itertools.count(1)  # shared by all maps of the process: no two contents have one version


@dataclass(frozen=True, eq=False)
class Arena:
    """Rows of voxels; see the module docstring.

    Attributes:
        coords: (R, 3) int32. records: (R, 8) int32. last_seen_ns: (R,) int64, as in :class:`~.voxels.VoxelRows`.
        points_m: (R, 3) float32 mean points. colors: (R, 3) uint8 mean colours.
        lengths: (R / 16, 64) uint16, at the first row of a block, in units: voxels in each of its (x, y) rows.
    """

    coords: NDArray[np.int32]
    records: NDArray[np.int32]
    last_seen_ns: Index
    points_m: NDArray[np.float32]
    colors: NDArray[np.uint8]
    lengths: NDArray[np.uint16]

    @staticmethod
    def of(rows: int) -> Arena:
        """Arena with uninitialised rows."""
        return Arena(
            np.empty((rows, 3), np.int32),
            np.empty((rows, RECORD), np.int32),
            np.empty(rows, np.int64),
            np.empty((rows, 3), np.float32),
            np.empty((rows, 3), np.uint8),
            np.empty((rows // _UNIT, BLOCK_EDGE**2), np.uint16),
        )

    def __len__(self) -> int:
        return len(self.coords)

    def take(self, starts: Index, other: Arena, others: Index, counts: Index) -> None:
        """Copy the voxels of some blocks from another arena."""
        for name in ("coords", "records", "last_seen_ns", "points_m", "colors"):
            ours, theirs = (a if a.ndim == 2 else a[:, None] for a in (getattr(self, name), getattr(other, name)))
            copy_rows(theirs, others, counts, ours, starts)
        self.lengths[starts // _UNIT] = other.lengths[others // _UNIT]


@dataclass(frozen=True, eq=False)
class BlockView:
    """Blocks of the map at one moment.

    Attributes:
        voxel_size_m: edge of a voxel.
        keys: (B,) int64 of blocks with voxels, ascending.
        coords: (B, 3) int32 block coordinates.
        starts, counts: (B,) int64 first row of each block in the arena, and its number of voxels, sorted in a block.
        newest_ns: (B,) int64 newest stamp of the voxels.
        versions: (B,) int64 version of the content.
        arena: the rows; mean points and colours are filled by :meth:`with_means`.
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
        return int(self.counts.sum())

    @cached_property
    def ranges(self) -> Index:
        """(B, 2) first row of each block in the arena, and the one past its last."""
        return np.stack([self.starts, self.starts + self.counts], axis=1)

    @property
    def lengths(self) -> NDArray[np.uint16]:
        """(B, 64) number of voxels in each (x, y) row of each block; with means."""
        return self.arena.lengths[self.starts // _UNIT]

    @cached_property
    def order(self) -> Index:
        """(N,) row of each voxel in the arena, sorted by (x, y, z)."""
        rows = self.with_means().lengths.astype(np.int32)
        order = np.empty(row_starts(self.coords, rows), np.int64)
        order_rows(self.starts, self.counts, self.arena.coords, rows, order)
        return order

    def with_means(self) -> BlockView:
        """This view, after computing the voxel means."""
        if self._fill_means is not None:
            self._fill_means()
        return self

    def rows(self) -> VoxelRows:
        """Stored voxels, sorted on first use."""
        return BlockRows(self)

    def snapshot(self) -> VoxelSnapshot:
        """Mean values of the voxels, sorted on first use."""
        return BlockSnapshot(self.with_means())


class BlockRows(VoxelRows):
    """:class:`~.voxels.VoxelRows` of a view. ``blocks``: the view."""

    blocks: BlockView

    def __init__(self, blocks: BlockView) -> None:
        object.__setattr__(self, "blocks", blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def coords(self) -> torch.Tensor:
        return torch.from_numpy(self.blocks.arena.coords[self.blocks.order])

    @cached_property
    def records(self) -> torch.Tensor:
        return torch.from_numpy(self.blocks.arena.records[self.blocks.order])

    @cached_property
    def last_seen_ns(self) -> torch.Tensor:
        return torch.from_numpy(self.blocks.arena.last_seen_ns[self.blocks.order])

    def cpu(self) -> VoxelRows:
        return self


class BlockSnapshot(VoxelSnapshot):
    """:class:`~embodied_perceptron.results.VoxelSnapshot` of a view. ``blocks``: the view, with means."""

    blocks: BlockView

    def __init__(self, blocks: BlockView) -> None:
        object.__setattr__(self, "blocks", blocks)
        object.__setattr__(self, "voxel_size_m", blocks.voxel_size_m)

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def coords(self) -> NDArray[np.int32]:
        return self.blocks.arena.coords[self.blocks.order]

    @cached_property
    def last_seen_ns(self) -> Index:
        return self.blocks.arena.last_seen_ns[self.blocks.order]

    @cached_property
    def mean_point_m(self) -> NDArray[np.float32]:
        return self.blocks.arena.points_m[self.blocks.order]

    @cached_property
    def mean_color(self) -> NDArray[np.uint8]:
        return self.blocks.arena.colors[self.blocks.order]

    @cached_property
    def hits(self) -> NDArray[np.int32]:
        hits: NDArray[np.int32] = self.blocks.arena.records[self.blocks.order, HITS]
        return hits

    @cached_property
    def evidence(self) -> NDArray[np.float32]:
        units = self.blocks.arena.records[self.blocks.order, EVIDENCE]
        evidence: NDArray[np.float32] = (units * EVIDENCE_UNIT).astype(np.float32)
        return evidence


def blocks_of(snapshot: VoxelSnapshot) -> BlockView:
    """Blocks of a snapshot, with means. For a snapshot that is no copy of a map they are built once, of its records
    with the hits alone."""
    if isinstance(snapshot, BlockSnapshot):
        return snapshot.blocks
    if snapshot not in _BLOCKS:
        _BLOCKS[snapshot] = _in_blocks(snapshot)
    return _BLOCKS[snapshot]


def _in_blocks(snapshot: VoxelSnapshot) -> BlockView:
    coords, counts, order = _block_order(snapshot.coords)
    rooms = Rooms.sizes(counts)
    starts, arena = np.cumsum(rooms) - rooms, Arena.of(int(rooms.sum()))
    rows = row_ranges(starts, counts)
    arena.coords[rows], arena.points_m[rows] = snapshot.coords[order], snapshot.mean_point_m[order]
    arena.last_seen_ns[rows] = stamps = snapshot.last_seen_ns[order]
    arena.colors[rows], arena.records[rows, HITS] = snapshot.mean_color[order], snapshot.hits[order]
    row_lengths(starts, counts, arena.coords, arena.lengths)
    newest_ns = np.maximum.reduceat(stamps, np.cumsum(counts) - counts) if len(counts) else stamps
    versions = np.full(len(counts), next(_MOMENTS))
    keys = pack_keys(torch.from_numpy(coords)).numpy()
    return BlockView(snapshot.voxel_size_m, keys, coords.astype(np.int32), starts, counts, newest_ns, versions, arena)


def _block_order(coords: NDArray[np.int32]) -> tuple[Index, Index, Index]:
    """(N, 3) voxels -> (B, 3) coordinates of their blocks, ascending by key, (B,) numbers of voxels, and (N,) voxels
    block by block, in stable order."""
    blocks = coords >> BLOCK_BITS
    low, high = (blocks.min(axis=0), blocks.max(axis=0)) if len(blocks) else (np.zeros(3, np.int32),) * 2
    dims = (high - low + 1).astype(np.int64)
    if math.prod(dims.tolist()) > _MAX_CELLS:  # voxels far apart
        keys, _ = split_coords(coords)
        distinct, counts = np.unique(keys, return_counts=True)
        return block_coords(distinct), counts, np.argsort(keys, kind="stable")
    counts, order = order_by_block(blocks, low, dims)
    filled = np.flatnonzero(counts)
    return np.stack(np.unravel_index(filled, dims), axis=1) + low, counts[filled], order


_BLOCKS: weakref.WeakKeyDictionary[VoxelSnapshot, BlockView] = weakref.WeakKeyDictionary()


class Rooms:
    """Allocator of the rows of an arena, in rooms of multiples of 16 rows.

    ``end``: rows from here on were never allocated. ``rows``: of the arena.
    """

    def __init__(self, rows: int = 0) -> None:
        units = -(-rows // _UNIT)
        self.rows, self.end = units * _UNIT, 0
        self._free = np.full(_SIZES, -1, np.int64)  # first free room of each size, in units; -1 = none
        self._next_free = np.empty(units, np.int64)

    @staticmethod
    def sizes(counts: NDArray[np.integer[Any]]) -> Index:
        """(N,) numbers of rows -> sizes of their rooms."""
        return (counts.astype(np.int64) + (_UNIT - 1)) // _UNIT * _UNIT

    def fits(self, sizes: Index) -> bool:
        """Whether rooms of these sizes fit behind ``end``."""
        return self.end + int(sizes.sum()) <= self.rows

    def take(self, sizes: Index) -> Index:
        """Allocate rooms of these sizes, which fit; returns their first rows."""
        starts = np.empty(len(sizes), np.int64)
        self.end = take_room(sizes, self._free, self._next_free, self.end, starts)
        return starts

    def free(self, starts: Index, sizes: Index) -> None:
        """Free rooms that no view reads any more."""
        free_room(starts, sizes, self._free, self._next_free)


class BlockCache:
    """Rows of values for each block of a view, computed again only for the blocks that changed since the last view.

    Not thread-safe: hold ``lock`` while updating and reading.

    Attributes:
        starts, counts: (B,) int64 first row of each block of the last view, and its number of rows.
        columns: arrays (R, C) of rows.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.starts = self.counts = np.zeros(0, np.int64)
        self.columns: tuple[Array, ...] = ()
        self._rooms = Rooms()
        self._view: BlockView | None = None
        self._parameters: object = None
        self._marks = np.zeros(0, np.uint64)

    def update(
        self,
        view: BlockView,
        parameters: object,
        compute: Callable[[Index], tuple[Index, tuple[Array, ...]]],
        marks: NDArray[np.uint64] | None = None,
    ) -> None:
        """Bring the rows to ``view``.

        Args:
            view: the map now.
            parameters: inputs of the computation for all blocks; other ones invalidate every block.
            compute: (M,) positions of changed blocks -> (M,) numbers of rows, and the rows, block after block.
            marks: (B,) inputs of each block beside its voxels; None = there are none.
        """
        marks = np.zeros(len(view.keys), np.uint64) if marks is None else marks
        carried = np.full(len(view.keys), -1, np.int64)  # position of each block in the last view
        if self._view is not None and parameters == self._parameters:
            match_blocks(self._view.keys, self._view.versions, view.keys, view.versions, carried)
        kept = np.flatnonzero(carried >= 0)
        carried[kept[self._marks[carried[kept]] != marks[kept]]] = -1
        kept, changed = np.flatnonzero(carried >= 0), np.flatnonzero(carried < 0)
        starts, counts = np.zeros(len(carried), np.int64), np.zeros(len(carried), np.int64)
        counts[changed], rows = compute(changed)
        starts[kept], counts[kept] = self.starts[carried[kept]], self.counts[carried[kept]]
        gone = self.counts > 0
        gone[carried[kept]] = False
        self._rooms.free(self.starts[gone], Rooms.sizes(self.counts[gone]))
        sizes = Rooms.sizes(counts)
        if not self.columns or not self._rooms.fits(sizes[changed]):
            old, columns = starts[kept], self.columns
            self._rooms = Rooms(int(_ROOM * sizes.sum()))
            self.columns = tuple(np.empty((self._rooms.rows, values.shape[1]), values.dtype) for values in rows)
            starts[kept] = self._rooms.take(sizes[kept])
            for column, before in zip(self.columns, columns, strict=False):
                copy_rows(before, old, counts[kept], column, starts[kept])
        starts[changed] = self._rooms.take(sizes[changed])
        n = counts[changed]
        for column, values in zip(self.columns, rows, strict=True):
            copy_rows(values, np.cumsum(n) - n, n, column, starts[changed])
        self._view, self._parameters, self._marks = view, parameters, marks
        self.starts, self.counts = starts, counts


class BlockCopier:
    """Makes consecutive views of a map; not thread-safe, but views are for any thread.

    Blocks are identified by their slots in the map. ``arena``: the present one.
    """

    def __init__(self, slots: int, voxel_size_m: float) -> None:
        self._voxel_size_m = voxel_size_m
        self._start = np.zeros(slots, np.int64)
        self._size = np.zeros(slots, np.int64)  # of its room
        self._count = np.zeros(slots, np.int64)
        self._newest = np.zeros(slots, np.int64)
        self._version = np.zeros(slots, np.int64)
        self.arena, self._rooms = Arena.of(0), Rooms()
        self._left: deque[tuple[int, Index, Index]] = deque()  # moment, rooms that earlier views may show
        self._views: deque[tuple[int, weakref.ref[BlockView]]] = deque()
        self._without_means: list[tuple[Index, Index]] = []
        self._means_lock = threading.Lock()
        self._asked = 0  # rows of the last request

    def prepare(self) -> None:
        """Move to a larger arena now if the next view may need one, so that the view does not wait for it.
        For the thread that makes views, between them."""
        if self._asked and self._rooms.end + 2 * self._asked > self._rooms.rows:
            self._move(4 * self._asked)

    def make_room(self, slots: NDArray[np.int32], sizes: NDArray[np.int32]) -> Index:
        """Allocate rooms for changed blocks of at most ``sizes`` voxels; returns their (N,) first rows.

        Their old rooms are freed when no view shows them any more. Call :meth:`view` next.
        """
        self._moment = next(_MOMENTS)
        had = slots[self._size[slots] > 0]
        self._left.append((self._moment, self._start[had], self._size[had]))
        while self._views and self._views[0][1]() is None:
            self._views.popleft()
        oldest = self._views[0][0] if self._views else self._moment
        while self._left and self._left[0][0] <= oldest:
            self._rooms.free(*self._left.popleft()[1:])
        wanted = Rooms.sizes(sizes)
        self._asked = int(wanted.sum())
        self._size[slots] = 0
        if not self._rooms.fits(wanted):
            self._move(self._asked)
        starts = self._rooms.take(wanted)
        self._start[slots], self._size[slots], self._version[slots] = starts, wanted, self._moment
        return starts

    def _move(self, rows: int) -> None:
        """Move to a new arena with room for so many more rows; existing views keep the old one."""
        self._fill_means()
        slots = np.flatnonzero(self._size)
        sizes, counts, old = self._size[slots], self._count[slots], self._start[slots]
        self._rooms = Rooms(int(_ROOM * (rows + int(sizes.sum()))))
        starts, arena = self._rooms.take(sizes), Arena.of(self._rooms.rows)
        arena.take(starts, self.arena, old, counts)
        self.arena, self._start[slots] = arena, starts
        self._left.clear()
        self._views.clear()

    def view(
        self,
        slots: NDArray[np.int32],
        keys: Index,
        coords: NDArray[np.int32],
        changed: NDArray[np.int32],
        counts: Index,
        newest_ns: Index,
    ) -> BlockView:
        """View of the map now.

        Args:
            slots, keys, coords: of all blocks, ascending by key.
            changed: slots of the blocks written to the rooms of :meth:`make_room`.
            counts, newest_ns: their numbers of voxels, and newest stamps.
        """
        self._count[changed], self._newest[changed] = counts, newest_ns
        with self._means_lock:
            self._without_means.append((self._start[changed], counts))
        kept = np.flatnonzero(self._count[slots])
        slots = slots[kept]
        view = BlockView(
            self._voxel_size_m, keys[kept], coords[kept], self._start[slots], self._count[slots], self._newest[slots],
            self._version[slots], self.arena, self._fill_means,
        )  # fmt: skip
        self._views.append((self._moment, weakref.ref(view)))
        return view

    def _fill_means(self) -> None:
        with self._means_lock:
            for starts, counts in self._without_means:
                a = self.arena
                voxel_means(starts, counts, a.coords, a.records, self._voxel_size_m, a.points_m, a.colors)
                row_lengths(starts, counts, a.coords, a.lengths)
            self._without_means.clear()


# --------------------------------------------------------------------------------------------------------------------
# kernels


@njit(cache=True, nogil=True)
def row_ranges(starts: Array, counts: Array) -> Array:
    """Concatenated rows of some ranges."""
    rows = np.empty(counts.sum(), np.int64)
    n = 0
    for b in range(starts.shape[0]):
        for i in range(starts[b], starts[b] + counts[b]):
            rows[n] = i
            n += 1
    return rows


@njit(cache=True, nogil=True)
def copy_rows(source: Array, starts: Array, counts: Array, target: Array, places: Array) -> None:
    """Copy (R, C) rows block by block, from ``starts`` to ``places``."""
    for b in range(starts.shape[0]):
        for i in range(counts[b]):
            for c in range(source.shape[1]):
                target[places[b] + i, c] = source[starts[b] + i, c]


@njit(cache=True, nogil=True)
def order_by_block(blocks: Array, low: Array, dims: Array) -> tuple[Array, Array]:
    """Number of voxels in each cell of a flat grid of blocks, x slowest; and their rows, cell by cell."""
    counts = np.zeros(dims[0] * dims[1] * dims[2], np.int64)
    cells = np.empty(blocks.shape[0], np.int64)
    for i in range(blocks.shape[0]):
        x, y, z = blocks[i, 0] - low[0], blocks[i, 1] - low[1], blocks[i, 2] - low[2]
        cells[i] = (x * dims[1] + y) * dims[2] + z
        counts[cells[i]] += 1
    ends = np.cumsum(counts) - counts
    order = np.empty(blocks.shape[0], np.int64)
    for i in range(blocks.shape[0]):
        order[ends[cells[i]]] = i
        ends[cells[i]] += 1
    return counts, order


@njit(cache=True, nogil=True)
def free_room(starts: Array, sizes: Array, free: Array, next_free: Array) -> None:
    """Put rooms on the free lists of their sizes; both lists in units."""
    for i in range(starts.shape[0]):
        start, size = starts[i] // _UNIT, sizes[i] // _UNIT
        next_free[start] = free[size]
        free[size] = start


@njit(cache=True, nogil=True)
def take_room(sizes: Array, free: Array, next_free: Array, end: int, starts: Array) -> int:
    """First rows of rooms, from the free lists or from ``end``; returns the new end."""
    for i in range(sizes.shape[0]):
        size = sizes[i] // _UNIT
        if size > 0 and free[size] >= 0:
            starts[i] = free[size] * _UNIT
            free[size] = next_free[free[size]]
        else:
            starts[i] = end
            end += sizes[i]
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
                # half a unit: fixed-point numbers are rounded down
                place = (records[i, OFFSET + c] / n + 0.5) / OFFSET_UNITS
                points[i, c] = (coords[i, c] + place) * voxel_size_m
                colors[i, c] = np.uint8(records[i, COLOR + c] / n + 0.5)


@njit(cache=True, nogil=True)
def row_lengths(starts: Array, counts: Array, coords: Array, lengths: Array) -> None:
    """Number of voxels in each (x, y) row of each block."""
    for b in range(starts.shape[0]):
        if counts[b] == 0:  # it may have no room
            continue
        unit = starts[b] // _UNIT
        lengths[unit, :] = 0
        for i in range(starts[b], starts[b] + counts[b]):
            lengths[unit, (coords[i, 0] & 7) * 8 + (coords[i, 1] & 7)] += 1


@njit(cache=True, nogil=True)
def order_rows(starts: Array, counts: Array, coords: Array, rows: Array, order: Array) -> None:
    """Row of each voxel in order, from the starts of the (x, y) rows."""
    for b in range(starts.shape[0]):
        for i in range(starts[b], starts[b] + counts[b]):
            row = (coords[i, 0] & 7) * 8 + (coords[i, 1] & 7)
            order[rows[b, row]] = i
            rows[b, row] += 1


@njit(cache=True, nogil=True)
def match_blocks(old_keys: Array, old_versions: Array, keys: Array, versions: Array, rows: Array) -> None:
    """Fill ``rows`` with positions in the old blocks where key and version are equal; keys are ascending."""
    i = 0
    for j in range(keys.shape[0]):
        while i < old_keys.shape[0] and old_keys[i] < keys[j]:
            i += 1
        if i < old_keys.shape[0] and old_keys[i] == keys[j] and old_versions[i] == versions[j]:
            rows[j] = i
