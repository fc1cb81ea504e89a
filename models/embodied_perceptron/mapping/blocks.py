"""Table of the 8^3 blocks of the map and their slots in the voxel arrays.

The map on a device has a table of its own (``warp_map.py``), with the same rule of eviction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import KEY_BITS, MAX_COORDINATE, distinct_keys, pack_keys, unpack_keys
from embodied_perceptron.mapping.voxels import VoxelRows

BLOCK_BITS = 3
BLOCK_EDGE = 1 << BLOCK_BITS
BLOCK_VOXELS = BLOCK_EDGE**3  # voxel (x, y, z) of a block lies at index x * 64 + y * 8 + z

_KEY_OFFSET = MAX_COORDINATE + 1
_KEY_MASK = (1 << KEY_BITS) - 1
_EMPTY = -1  # packed keys are never negative
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: the high bits of the product are well mixed

Array = NDArray[Any]


@njit(cache=True, inline="always")
def pack_key(x: int, y: int, z: int) -> int:
    """:func:`embodied_perceptron.geometry.transforms.pack_keys` of one coordinate, for compiled loops."""
    return ((x + _KEY_OFFSET) << (2 * KEY_BITS)) | ((y + _KEY_OFFSET) << KEY_BITS) | (z + _KEY_OFFSET)


@njit(cache=True, inline="always")
def hash_position(key: int, shift: int) -> int:
    """Hash of ``key`` for a table of ``2 ** (64 - shift)`` entries."""
    position: int = np.int64((np.uint64(key) * _HASH_MULTIPLIER) >> np.uint64(shift))
    return position


@njit(cache=True, nogil=True)
def _erase(table_keys: Array, table_slots: Array, shift: int, key: int) -> None:
    """Remove ``key`` (present) by shifting the following run back: no tombstones that would slow probing down."""
    mask = table_keys.shape[0] - 1
    i = hash_position(key, shift)
    while table_keys[i] != key:
        i = (i + 1) & mask
    j = i
    while True:
        j = (j + 1) & mask
        if table_keys[j] == _EMPTY:
            break
        home = hash_position(table_keys[j], shift)
        if ((j - home) & mask) >= ((j - i) & mask):
            table_keys[i] = table_keys[j]
            table_slots[i] = table_slots[j]
            i = j
    table_keys[i] = _EMPTY


@njit(cache=True, nogil=True)
def _find_all(table_keys: Array, table_slots: Array, shift: int, keys: Array, slots: Array) -> int:
    """Fill ``slots``, -1 where absent; returns the number of absent keys."""
    mask = table_keys.shape[0] - 1
    missing = 0
    for k in range(keys.shape[0]):
        i = hash_position(keys[k], shift)
        while table_keys[i] != _EMPTY and table_keys[i] != keys[k]:
            i = (i + 1) & mask
        slots[k] = -1 if table_keys[i] == _EMPTY else table_slots[i]
        missing += slots[k] < 0
    return missing


@njit(cache=True, nogil=True)
def _insert_all(table_keys: Array, table_slots: Array, shift: int, keys: Array, slots: Array) -> None:
    mask = table_keys.shape[0] - 1
    for k in range(keys.shape[0]):
        i = hash_position(keys[k], shift)
        while table_keys[i] != _EMPTY:
            i = (i + 1) & mask
        table_keys[i], table_slots[i] = keys[k], slots[k]


@njit(cache=True, nogil=True)
def _erase_all(table_keys: Array, table_slots: Array, shift: int, keys: Array) -> None:
    for i in range(keys.shape[0]):
        _erase(table_keys, table_slots, shift, keys[i])


@njit(cache=True, nogil=True)
def _beyond(keys: Array, coords: Array, end: int, center: Array, radius_squared: float, out: Array) -> int:
    n = 0
    for slot in range(end):
        if keys[slot] == _EMPTY:
            continue
        x = coords[slot, 0] + 0.5 - center[0]
        y = coords[slot, 1] + 0.5 - center[1]
        z = coords[slot, 2] + 0.5 - center[2]
        if (x * x + y * y) + z * z > radius_squared:
            out[n] = slot
            n += 1
    return n


@njit(cache=True, nogil=True)
def _in_frustum(
    keys: Array, coords: Array, end: int, T: Array, planes: Array, z_min: float, z_max: float, rho: float, out: Array
) -> int:
    n = 0
    for slot in range(end):
        if keys[slot] == _EMPTY:
            continue
        bx, by, bz = coords[slot, 0] + 0.5, coords[slot, 1] + 0.5, coords[slot, 2] + 0.5
        z = T[2, 0] * bx + T[2, 1] * by + T[2, 2] * bz + T[2, 3]
        if z + rho < z_min or z - rho > z_max:
            continue
        x = T[0, 0] * bx + T[0, 1] * by + T[0, 2] * bz + T[0, 3]
        y = T[1, 0] * bx + T[1, 1] * by + T[1, 2] * bz + T[1, 3]
        if (
            planes[0, 0] * x + planes[0, 1] * z < -rho
            or planes[1, 0] * x + planes[1, 1] * z < -rho
            or planes[2, 0] * y + planes[2, 1] * z < -rho
            or planes[3, 0] * y + planes[3, 1] * z < -rho
        ):
            continue
        out[n] = slot
        n += 1
    return n


@njit(cache=True, nogil=True)
def _run_end(coords: Array, start: int, columns: int) -> int:
    """End of the run of blocks that share the first ``columns`` coordinates with block ``start``."""
    end = start + 1
    while end < coords.shape[0]:
        for c in range(columns):
            if coords[end, c] != coords[start, c]:
                return end
        end += 1
    return end


@njit(cache=True, nogil=True)
def row_starts(coords: Array, rows: Array) -> int:
    """Replace lengths of (x, y) voxel rows, (B, 64), by their starts in the order (x, y, z); returns the sum.

    Blocks are ordered by (x, y, z). Loops: slabs of blocks with equal x, their voxel planes x, rows of blocks with
    equal y, their voxel rows y, and the blocks of a row by z.
    """
    n = 0
    slab = 0
    while slab < coords.shape[0]:
        slab_end = _run_end(coords, slab, 1)
        for x in range(8):
            row = slab
            while row < slab_end:
                row_end = _run_end(coords, row, 2)
                for y in range(8):
                    for b in range(row, row_end):
                        length = rows[b, x * 8 + y]
                        rows[b, x * 8 + y] = n
                        n += length
                row = row_end
        slab = slab_end
    return n


def block_coords(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) block keys -> (N, 3) int64 block coordinates."""
    return np.stack([keys >> (2 * KEY_BITS), (keys >> KEY_BITS) & _KEY_MASK, keys & _KEY_MASK], axis=1) - _KEY_OFFSET


def squared_distance(coords: Array, center: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 3) block coordinates -> (N,) squared distance of the blocks' centres to ``center``, in block edges."""
    d = coords + 0.5 - center
    result: NDArray[np.float64] = (d[:, 0] * d[:, 0] + d[:, 1] * d[:, 1]) + d[:, 2] * d[:, 2]
    return result


@dataclass(frozen=True, eq=False)
class Acquired:
    """Result of :meth:`BlockTable.acquire`.

    Attributes:
        slots: (N,) int32 slot of each wanted block, -1 = refused.
        evicted: (M,) int32 slots to be erased before use; some may belong to new blocks already.
        evicted_keys: (M,) int64 keys of the evicted blocks.
    """

    slots: NDArray[np.int32]
    evicted: NDArray[np.int32]
    evicted_keys: NDArray[np.int64]


class BlockTable:
    """Block key -> slot, for ``capacity`` blocks at most.

    Keys are :func:`embodied_perceptron.geometry.transforms.pack_keys` of block coordinates (voxel coordinate >> 3).
    """

    def __init__(self, capacity: int) -> None:
        bits = max(4, int(np.ceil(np.log2(2 * capacity))))  # at most half full
        self.capacity = capacity
        self._shift = 64 - bits
        self._table_keys = np.empty(1 << bits, np.int64)
        self._table_slots = np.empty(1 << bits, np.int32)
        self._keys = np.empty(capacity, np.int64)  # key per slot
        self._coords = np.zeros((capacity, 3), np.int32)
        self._free = np.empty(capacity, np.int32)  # a stack: reusing the last freed slot keeps memory compact
        self._scratch = np.empty(capacity, np.int32)
        self.clear()

    @classmethod
    def holding(cls, keys: NDArray[np.int64], capacity: int) -> BlockTable:
        """Table of blocks that have slots: ``keys`` (S,) by slot, -1 = none, S <= capacity."""
        table = cls(capacity)
        used = np.flatnonzero(keys != _EMPTY).astype(np.int32)
        table._keys[: len(keys)] = keys
        table._coords[used] = block_coords(keys[used])
        _insert_all(table._table_keys, table._table_slots, table._shift, keys[used], used)
        table._free_count = capacity - len(used)
        table._free[: table._free_count] = np.flatnonzero(table._keys == _EMPTY)[::-1]
        table.slots_ever_used = int(used.max(initial=-1)) + 1
        return table

    def clear(self) -> None:
        """Remove all blocks."""
        self._table_keys.fill(_EMPTY)
        self._keys.fill(_EMPTY)
        self._free[:] = np.arange(self.capacity - 1, -1, -1, dtype=np.int32)
        self._free_count = self.capacity
        self.slots_ever_used = 0

    def __len__(self) -> int:
        return self.capacity - self._free_count

    def slots(
        self, lower: NDArray[np.float64] | None = None, upper: NDArray[np.float64] | None = None
    ) -> NDArray[np.int32]:
        """(N,) slots in use, ordered by block key (coordinates x slowest, z fastest).

        ``lower``, ``upper``: (3,) in block edges, to select the blocks that overlap this box.
        """
        used = self._keys[: self.slots_ever_used] != _EMPTY
        if lower is not None and upper is not None:
            coords = self._coords[: self.slots_ever_used]
            used &= ((coords + 1 > lower) & (coords < upper)).all(axis=1)
        used = np.flatnonzero(used).astype(np.int32)
        ordered: NDArray[np.int32] = used[np.argsort(self._keys[used])]
        return ordered

    def coords_of(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """(N,) slots in use -> (N, 3) int32 block coordinates."""
        coords: NDArray[np.int32] = self._coords[slots]
        return coords

    def keys_of(self, slots: NDArray[np.int32]) -> NDArray[np.int64]:
        """(N,) slots -> (N,) block keys; -1 for slots not in use."""
        keys: NDArray[np.int64] = self._keys[slots]
        return keys

    def lookup(self, keys: NDArray[np.int64]) -> NDArray[np.int32]:
        """(N,) block keys -> (N,) slots, -1 where absent."""
        slots = np.empty(len(keys), np.int32)
        _find_all(self._table_keys, self._table_slots, self._shift, keys, slots)
        return slots

    def acquire(self, wanted: NDArray[np.int64], center: NDArray[np.float64], radius: float) -> Acquired:
        """Find or allocate slots for the blocks ``wanted`` (N distinct keys).

        Of all stored and wanted blocks within ``radius`` of ``center`` (both in block edges), the ``capacity`` nearest
        are stored (on a tie the smaller key).
        """
        slots = np.empty(len(wanted), np.int32)
        none, evicted_keys = np.empty(0, np.int32), np.empty(0, np.int64)
        if _find_all(self._table_keys, self._table_slots, self._shift, wanted, slots) == 0:
            return Acquired(slots, none, evicted_keys)
        missing = np.flatnonzero(slots < 0)
        coords = block_coords(wanted[missing])
        distance = squared_distance(coords, center)
        inside = distance <= radius * radius
        missing, coords, distance = missing[inside], coords[inside], distance[inside]

        evicted = none
        shortage = len(missing) - self._free_count
        if shortage > 0:
            stored = np.flatnonzero(self._keys[: self.slots_ever_used] != _EMPTY).astype(np.int32)
            stored_distance = squared_distance(self._coords[stored], center)
            keep = nearest(
                np.concatenate([stored_distance, distance]),
                np.concatenate([self._keys[stored], wanted[missing]]),
                self.capacity,
            )
            evicted = stored[~keep[: len(stored)]]
            evicted_keys = self._keys[evicted]
            self.release(evicted)
            slots[np.isin(slots, evicted)] = -1
            accepted = keep[len(stored) :]
            missing, coords = missing[accepted], coords[accepted]

        count = len(missing)
        new = self._free[self._free_count - count : self._free_count][::-1].copy()
        self._free_count -= count
        if count:
            self.slots_ever_used = max(self.slots_ever_used, int(new.max()) + 1)
        self._keys[new] = wanted[missing]
        self._coords[new] = coords
        _insert_all(self._table_keys, self._table_slots, self._shift, wanted[missing], new)
        slots[missing] = new
        return Acquired(slots, evicted, evicted_keys)

    def release(self, slots: NDArray[np.int32]) -> None:
        """Remove the blocks in ``slots`` (distinct, in use)."""
        if len(slots) == 0:
            return
        _erase_all(self._table_keys, self._table_slots, self._shift, self._keys[slots])
        self._keys[slots] = _EMPTY
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)

    def beyond(self, center: NDArray[np.float64], radius: float) -> NDArray[np.int32]:
        """Slots of blocks with their centre further than ``radius`` from ``center`` (block edges)."""
        n = _beyond(self._keys, self._coords, self.slots_ever_used, center, radius * radius, self._scratch)
        slots: NDArray[np.int32] = self._scratch[:n].copy()
        return slots

    def reach(self, center: NDArray[np.float64], radius: float) -> float:
        """Largest distance from ``center`` at which a block is stored: ``radius``, or that of the furthest block if all
        slots are in use."""
        if self._free_count or not self.capacity:
            return radius
        furthest = float(squared_distance(self._coords[: self.slots_ever_used], center).max())
        return min(radius, math.sqrt(furthest))

    def in_frustum(
        self, T_camera_block: NDArray[np.float64], planes: NDArray[np.float64], z_min: float, z_max: float, rho: float
    ) -> NDArray[np.int32]:
        """Slots of blocks whose bounding sphere meets a view frustum; may include some outside at the edges.

        Args:
            T_camera_block: (4, 4) block coordinates (in block edges) -> camera, metres.
            planes: (4, 2) inward unit normals (x, z), (x, z), (y, z), (y, z) of the side planes, camera frame.
            z_min, z_max: depth limits, metres.
            rho: radius of the sphere around a block, metres.
        """
        n = _in_frustum(
            self._keys, self._coords, self.slots_ever_used, T_camera_block, planes, z_min, z_max, rho, self._scratch
        )
        slots: NDArray[np.int32] = self._scratch[:n].copy()
        return slots


def nearest(distance: NDArray[np.float64], keys: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Mask of the ``count`` smallest by (distance, key), for more than ``count`` entries."""
    limit = np.partition(distance, count - 1)[count - 1]
    keep: NDArray[np.bool_] = distance < limit
    tied = np.flatnonzero(distance == limit)
    keep[tied[np.argsort(keys[tied])][: count - int(keep.sum())]] = True
    return keep


def split_coords(coords: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N, 3) voxel coordinates -> (N,) block keys and (N,) index in the block."""
    c = np.asarray(coords, dtype=np.int64)
    low = c & (BLOCK_EDGE - 1)
    keys: NDArray[np.int64] = pack_keys(torch.from_numpy(c >> BLOCK_BITS)).numpy()
    return keys, (low[:, 0] << (2 * BLOCK_BITS)) | (low[:, 1] << BLOCK_BITS) | low[:, 2]


def within_budget(rows: VoxelRows, max_blocks: int, center_m: NDArray[np.float64], block_m: float) -> VoxelRows:
    """Rows of the ``max_blocks`` blocks, ``block_m`` metres wide, nearest to ``center_m``; ``rows`` are sorted."""
    block_keys, _ = split_coords(rows.coords.numpy())
    distinct = distinct_keys(block_keys)
    if len(distinct) <= max_blocks:
        return rows
    centers = (unpack_keys(torch.from_numpy(distinct)).numpy() + 0.5) * block_m
    order = np.argsort(np.linalg.norm(centers - center_m, axis=1), kind="stable")
    kept = distinct[order[:max_blocks]]
    return rows.where(torch.from_numpy(np.isin(block_keys, kept)))
