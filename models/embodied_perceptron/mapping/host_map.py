"""The map on the CPU: a table of blocks, and compiled loops over the voxels of its slots.

Voxel arithmetic follows ``geometry/transforms.py`` in fixed point (see ``voxels.py``); tests compare the two. The
kernels release the interpreter's lock. No fast-math: equal input gives equal bits, here and on a device
(``warp_map.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import VolumeConfig
from embodied_perceptron.geometry.bits import lowest_bit
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import KEY_BITS, distinct_keys
from embodied_perceptron.mapping import plane
from embodied_perceptron.mapping.block_copies import Arena, BlockCopier, Rooms, row_ranges
from embodied_perceptron.mapping.blocks import (
    BLOCK_BITS,
    BLOCK_EDGE,
    BLOCK_VOXELS,
    BlockTable,
    block_coords,
    hash_position,
    pack_key,
    split_coords,
)
from embodied_perceptron.mapping.plane import compiled_with
from embodied_perceptron.mapping.spill import Blocks, BlockSpill
from embodied_perceptron.mapping.voxels import (
    EVIDENCE,
    EVIDENCE_HIT,
    EVIDENCE_MAX,
    HITS,
    HITS_CAP,
    OFFSET_BITS,
    OFFSET_UNITS,
    RECORD,
    ClearingRule,
    FrameView,
    FusionProgress,
    MapSize,
    StageClock,
    VoxelMap,
    VoxelRows,
    evidence_step,
)

Array = NDArray[Any]
_RETURN_MARGIN = 2.0  # block edges within the radius at which blocks return: a camera at the border does not swap them


@lru_cache(maxsize=8)
def evidence_steps(pixels: int) -> NDArray[np.int32]:
    """(pixels + 1,) loss of evidence by number of unknown pixels; see :func:`~.voxels.evidence_step`."""
    return np.array([evidence_step(unknown, pixels) for unknown in range(pixels + 1)], np.int32)


def local_centers(voxel_size_m: float) -> NDArray[np.float64]:
    """(512, 3) voxel centres of a block relative to its lower corner, metres."""
    i = np.arange(BLOCK_VOXELS)
    return (np.stack([i >> 6, (i >> 3) & 7, i & 7], axis=1) + 0.5) * voxel_size_m


@dataclass(frozen=True)
class _Counts:
    """:class:`~embodied_perceptron.results.Arriving` counts that are there."""

    counts: Mapping[str, int]

    def ready(self) -> bool:
        return True

    def result(self) -> Mapping[str, int]:
        return self.counts


class HostMap(VoxelMap):
    """:class:`~.voxels.VoxelMap` on the CPU."""

    device = torch.device("cpu")

    def __init__(self, config: VolumeConfig, spill: BlockSpill | None = None) -> None:
        """``spill``: stores evicted blocks and returns them; None = evicted blocks are lost."""
        self.config = config
        self._spill = spill
        capacity = config.max_blocks
        self._blocks = BlockTable(capacity)
        self._copies = BlockCopier(capacity, config.voxel_size_m)
        self._voxels = 0
        self._block_m = BLOCK_EDGE * config.voxel_size_m
        # zeros from calloc: the system gives memory only where a block is written
        self._records = np.zeros((capacity, BLOCK_VOXELS, RECORD), np.int32)
        self._last_seen = np.zeros((capacity, BLOCK_VOXELS), np.int64)
        self._occupied = np.zeros((capacity, BLOCK_EDGE), np.uint64)  # bit y * 8 + z of word x
        self._count = np.zeros(capacity, np.int32)
        self._changed = np.zeros(capacity, np.bool_)  # since the last copy
        self._stored = self._records, self._last_seen, self._occupied, self._count
        # scratch
        self._emptied = np.empty(capacity, np.int32)
        self._centers = local_centers(config.voxel_size_m)
        self._size_scratch(1 << 12)
        self._cells = np.empty(0, np.int32)
        self._sums = np.empty((0, RECORD), np.int32)
        self._near = np.empty((0, 0), np.float32)
        self._unknown = np.empty((0, 0), np.int32)

    def _size_scratch(self, blocks: int) -> None:
        bits = int(np.ceil(np.log2(2 * blocks)))
        self._shift = 64 - bits
        self._table_keys = np.empty(1 << bits, np.int64)
        self._table_ids = np.empty(1 << bits, np.int32)
        self._block_keys = np.empty(blocks, np.int64)
        self._index = np.zeros((blocks, BLOCK_VOXELS), np.int32)

    @property
    def is_empty(self) -> bool:
        return self._voxels == 0

    def size(self) -> MapSize:
        return MapSize(len(self._blocks), self._voxels, self._blocks.slots_ever_used, self.config.max_blocks)

    # ------------------------------------------------------------------------------------------------------ one frame

    def fuse(
        self,
        view: FrameView,
        center_m: NDArray[np.float64],
        rule: ClearingRule,
        done: FusionProgress,
        clock: StageClock,
    ) -> None:
        center, radius = center_m / self._block_m, self.config.radius_m / self._block_m
        if not done.evicted:
            slots = self._blocks.beyond(center, radius)
            if len(slots):
                self.drop(slots, self._blocks.keys_of(slots))
                self._blocks.release(slots)
            done.counts.append(_Counts({"evicted_radius": len(slots)}))
            done.evicted = True
            if self._spill is not None:
                bring_back(self, self._blocks, self._spill, center, radius)
        clock.lap("evict")
        for rows in view.bands()[done.bands :]:
            blocks, voxels, points, in_range = self._accumulate(view, rows, rule)
            clock.lap("points")
            acquired = self._blocks.acquire(self._block_keys[:blocks].copy(), center, radius)
            self.drop(acquired.evicted, acquired.evicted_keys)
            self._changed[acquired.slots[acquired.slots >= 0]] = True
            touched, created, refused = merge_rows(
                acquired.slots, self._cells[:voxels], self._sums[:voxels], view.stamp_ns, rows[0] == 0, self._index,
                *self._stored,
            )  # fmt: skip
            self._voxels += created
            counts = {
                "points": points,
                "voxels_touched": touched,
                "evicted_budget": len(acquired.evicted),
                "points_refused": refused + points - in_range,
            }
            done.counts.append(_Counts(counts))
            done.bands += 1
            clock.lap("fold")
        if self.config.clearing and not done.cleared:
            done.counts.append(_Counts({"voxels_cleared": self._clear_seen_through(view, rule)}))
        done.cleared = True
        clock.lap("clear")

    def _accumulate(self, view: FrameView, rows: tuple[int, int], rule: ClearingRule) -> tuple[int, int, int, int]:
        """Sum a band's points by voxel into scratch; returns the numbers of :func:`accumulate_rows`."""
        width = view.depth_m.shape[1]
        pixels = (rows[1] - rows[0]) * width
        if len(self._cells) < pixels:
            self._cells = np.empty(pixels, np.int32)
            self._sums = np.zeros((pixels, RECORD), np.int32)
        keys, offsets = np.empty(width + 1, np.int64), np.empty(width, np.int64)
        prefix, bounds = np.empty((width + 1, 2), np.int64), np.empty((width + 1, 2), np.int32)
        while True:
            self._table_keys.fill(-1)
            blocks, voxels, points, in_range = accumulate_rows(
                view.depth_m, view.color, rows, view.ray_x, view.ray_y, view.origin, rule.min_range_m,
                rule.max_range_m, keys, offsets, prefix, bounds, self._table_keys, self._table_ids, self._shift,
                self._block_keys, self._index, self._cells, self._sums.view(np.int64),
            )  # fmt: skip
            if blocks >= 0:
                return blocks, voxels, points, in_range
            self._size_scratch(4 * len(self._block_keys))
            self._sums[:voxels] = 0

    def drop(self, slots: NDArray[np.int32], keys: NDArray[np.int64]) -> None:
        if self._spill is not None and len(slots):
            order = np.argsort(keys)
            slots, keys = slots[order], keys[order]
            room = Rooms.sizes(self._count[slots])
            starts, arena = np.cumsum(room) - room, Arena.of(int(room.sum()))
            counts, _ = self._copy_blocks(slots, block_coords(keys).astype(np.int32), 1, arena, starts)
            rows = row_ranges(starts, counts)
            _, local = split_coords(arena.coords[rows])
            filled = counts > 0
            content = Blocks(keys[filled], counts[filled], local, arena.records[rows], arena.last_seen_ns[rows])
            self._spill.add(content)
        self._erase(slots)

    def _erase(self, slots: NDArray[np.int32]) -> None:
        self._changed[slots] = True
        self._voxels -= erase_blocks(slots, *self._stored)

    def is_free(self, slots: Array, local: Array) -> NDArray[np.bool_]:
        free: NDArray[np.bool_] = self._records[slots, local, HITS] == 0
        return free

    def fill(self, keys: Array, slots: Array, local: Array, rows: VoxelRows) -> None:
        self._changed[slots] = True
        put_voxels(slots, local, rows.records.numpy(), rows.last_seen_ns.numpy(), *self._stored)
        self._voxels += len(rows)

    def _clear_seen_through(self, view: FrameView, rule: ClearingRule) -> int:
        """Lower the evidence of voxels that the view sees through; returns the number of voxels removed."""
        T, k = view.T_camera_world, view.intrinsics
        T_camera_block = T.copy()
        T_camera_block[:3, :3] *= self._block_m
        limits, sphere_m = (rule.min_range_m, rule.max_range_m), 0.5 * np.sqrt(3.0) * self._block_m
        slots = self._blocks.in_frustum(T_camera_block, view.side_planes(), *limits, sphere_m)
        if len(slots) == 0:
            return 0
        if self._near.shape != view.depth_m.shape:
            self._near = np.empty_like(view.depth_m)
            self._unknown = np.empty(view.depth_m.shape, np.int32)
        r = rule.window_px(k)
        rows = 2 * r + 1, view.depth_m.shape[1]
        window_evidence(
            view.depth_m, r, self._near, self._unknown, np.empty(rows, np.float32), np.empty(rows, np.int32)
        )
        cleared, empty = clear_blocks(
            slots,
            self._blocks.coords_of(slots),
            self._centers @ T[:3, :3].T,
            self._block_m,
            T,
            np.array([k.fx, k.fy, k.cx, k.cy]),
            np.array([*limits, rule.margin_m + rule.half_diagonal_m, rule.margin_per_m2]),
            np.array([rule.margin_m, rule.margin_per_m2, 0.5 * self.config.voxel_size_m]),
            view.depth_m,
            self._near,
            self._unknown,
            evidence_steps((2 * r + 1) ** 2),
            r,
            view.stamp_ns,
            *self._stored,
            self._changed,
            self._emptied,
        )
        self._voxels -= cleared
        self._blocks.release(self._emptied[:empty].copy())
        return int(cleared)

    # ---------------------------------------------------------------------------------------------------- the whole map

    def gather(
        self, min_hits: int, lower: NDArray[np.float64] | None = None, upper: NDArray[np.float64] | None = None
    ) -> VoxelRows:
        slots = self._blocks.slots(lower, upper)
        numbers = np.arange(len(slots), dtype=np.int32)
        return self._view(BlockCopier(len(slots), self.config.voxel_size_m), numbers, slots, numbers, slots, min_hits)

    def copy(self, min_hits: int) -> VoxelRows:
        if min_hits != max(self.config.min_hits, 1):
            return self.gather(min_hits)
        slots, changed = self._blocks.slots(), np.flatnonzero(self._changed).astype(np.int32)
        self._changed[changed] = False
        return self._view(self._copies, slots, slots, changed, changed, min_hits)

    def prepare_copy(self) -> None:
        self._copies.prepare()

    def _view(
        self,
        copier: BlockCopier,
        numbers: NDArray[np.int32],
        slots: NDArray[np.int32],
        changed_numbers: NDArray[np.int32],
        changed: NDArray[np.int32],
        min_hits: int,
    ) -> VoxelRows:
        """View of the blocks in ``slots``, ``numbers`` in the copier, of which those ``changed`` are copied anew."""
        starts = copier.make_room(changed_numbers, self._count[changed])
        coords = self._blocks.coords_of(changed)
        counts, newest_ns = self._copy_blocks(changed, coords, min_hits, copier.arena, starts)
        keys, coords = self._blocks.keys_of(slots), self._blocks.coords_of(slots)
        return copier.view(numbers, keys, coords, changed_numbers, counts, newest_ns).rows()

    def _copy_blocks(
        self, slots: NDArray[np.int32], coords: NDArray[np.int32], min_hits: int, arena: Arena, starts: Array
    ) -> tuple[Array, Array]:
        """Copy the voxels of some blocks with at least ``min_hits`` (>= 1) points to the rows from ``starts`` of each.

        Returns (N,) int64 numbers of voxels, and their newest stamps.
        """
        counts, newest = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
        copy_blocks(
            slots, coords, starts, min_hits, self._records.view(np.int64), self._last_seen, self._occupied,
            arena.coords, arena.records.view(np.int64), arena.last_seen_ns, counts, newest,
        )  # fmt: skip
        return counts, newest

    def put(self, rows: VoxelRows) -> None:
        block_keys, local = split_coords(rows.coords.numpy())
        self._blocks.acquire(distinct_keys(block_keys), np.zeros(3), np.inf)
        self.fill(block_keys, self._blocks.lookup(block_keys), local, rows)

    def remove(self, coords: NDArray[np.int32]) -> None:
        keys, local = split_coords(coords)
        slots = self._blocks.lookup(keys)
        self._changed[slots] = True
        empty = remove_voxels(slots, local, *self._stored, self._emptied)
        self._blocks.release(self._emptied[:empty].copy())
        self._voxels -= len(coords)

    def clear(self) -> None:
        self._erase(self._blocks.slots())
        self._blocks.clear()
        self._voxels = 0


def bring_back(
    there: VoxelMap, table: BlockTable, spill: BlockSpill, center: NDArray[np.float64], radius: float
) -> bool:
    """Return spilled blocks that are near again; voxels seen anew meanwhile win. Returns whether any came.

    ``table`` holds the blocks of the map; ``center`` and ``radius`` are in block edges.
    """
    came = False
    for content in spill.returning(center, table.reach(center, radius) - _RETURN_MARGIN):
        distinct, block = np.unique(content.keys, return_inverse=True)
        acquired = table.acquire(distinct, center, radius)
        there.drop(acquired.evicted, acquired.evicted_keys)
        slots = np.repeat(acquired.slots[block], content.counts)
        free = slots >= 0
        free[free] = there.is_free(slots[free], content.local[free])
        # of a block that was spilled twice, the newer voxels win
        order = np.lexsort((-content.last_seen_ns, content.local, slots))
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(slots[order]) != 0) | (np.diff(content.local[order]) != 0)
        taken = np.sort(order[first & free[order]])
        rows = content.rows().where(torch.from_numpy(np.isin(np.arange(len(slots)), taken)))
        there.fill(np.repeat(content.keys, content.counts)[taken], slots[taken], content.local[taken], rows)
        spill.add(content.where(acquired.slots[block] < 0))
        came = True
    return came


# --------------------------------------------------------------------------------------------------------------------
# kernels over the stored voxels


@njit(cache=True, nogil=True)
def merge_rows(
    slots: Array,
    cells: Array,
    sums: Array,
    stamp_ns: int,
    first_band: bool,
    index: Array,
    records: Array,
    last_seen: Array,
    occupied: Array,
    count: Array,
) -> tuple[int, int, int]:
    """Add scratch rows to the map; leaves ``index`` and ``sums`` zero. Returns (touched, created, refused points)."""
    touched = 0
    created = 0
    refused = 0
    for row in range(cells.shape[0]):
        cell = cells[row]
        block = cell // BLOCK_VOXELS
        local = cell % BLOCK_VOXELS
        index[block, local] = 0
        slot = slots[block]
        if slot < 0:
            refused += sums[row, HITS]
            sums[row, :] = 0
            continue
        record = records[slot, local]
        counted = first_band or record[HITS] == 0 or last_seen[slot, local] != stamp_ns
        if record[HITS] == 0:
            created += 1
            count[slot] += 1
            occupied[slot, local >> 6] |= np.uint64(1) << np.uint64(local & 63)
        for c in range(RECORD - 1):
            record[c] += sums[row, c]
            sums[row, c] = 0
        while record[HITS] > HITS_CAP:
            for c in range(RECORD - 1):
                record[c] >>= 1
        if counted:
            touched += 1
            record[EVIDENCE] = min(record[EVIDENCE] + EVIDENCE_HIT, EVIDENCE_MAX)
        last_seen[slot, local] = max(last_seen[slot, local], stamp_ns)
    return touched, created, refused


@njit(cache=True, nogil=True)
def _lower(row: Array, other: Array) -> None:
    for u in range(other.shape[0]):
        row[u] = min(row[u], other[u])


@njit(cache=True, nogil=True)
def _add(row: Array, other: Array) -> None:
    for u in range(other.shape[0]):
        row[u] += other[u]


@njit(cache=True, nogil=True)
def _lowest(a: Array, b: Array, out: Array) -> None:
    for u in range(b.shape[0]):
        out[u] = min(a[u], b[u])


@njit(cache=True, nogil=True)
def _sum(a: Array, b: Array, out: Array) -> None:
    for u in range(b.shape[0]):
        out[u] = a[u] + b[u]


@njit(cache=True, nogil=True)
def window_evidence(image: Array, r: int, near: Array, unknown: Array, known: Array, missing: Array) -> None:
    """Nearest depth and unknown pixels of each window of (2r + 1)^2 pixels, at the index of its first pixel.

    Args:
        image: (H, W) float32 depth, 0 = unknown.
        near: (H, W) float32 out: minimum of the known depths; 0 where the middle pixel is unknown.
        unknown: (H, W) int32 out: number of pixels without depth.
        known, missing: (2r + 1, W) float32 and int32, scratch: the rows of the window.

    Both are undefined where the window leaves the image.
    """
    height, width = image.shape
    size = 2 * r + 1
    row, sums = np.empty(width, np.float32), np.empty(width, np.int32)
    for v in range(height):
        _known_depths(image[v], known[v % size], missing[v % size])
        first = v - size + 1
        if first < 0:
            continue
        _lowest(known[0], known[1], row)
        _sum(missing[0], missing[1], sums)
        for k in range(2, size):
            _lower(row, known[k])
            _add(sums, missing[k])
        near_row, unknown_row = near[first], unknown[first]
        _lowest(row[:-1], row[1:], near_row)
        _sum(sums[:-1], sums[1:], unknown_row)
        for k in range(2, size):
            _lower(near_row, row[k:])
            _add(unknown_row, sums[k:])
        _hide(near[first, : width - size + 1], missing[(first + r) % size, r : width - r])


@njit(cache=True, nogil=True)
def _known_depths(image: Array, known: Array, missing: Array) -> None:
    """Depths of a row, infinite where unknown, and whether each is unknown."""
    for u in range(image.shape[0]):
        missing[u] = np.int32(image[u] == 0)
        known[u] = np.float32(np.inf) if image[u] == 0 else image[u]


@njit(cache=True, nogil=True)
def _hide(near: Array, missing: Array) -> None:
    for u in range(near.shape[0]):
        near[u] = np.float32(0.0) if missing[u] else near[u]


before_plane = njit(cache=True, nogil=True, error_model="numpy")(
    compiled_with(plane.before_plane, __name__, real=np.float64, whole=np.int64, root=np.sqrt)
)


@njit(cache=True, nogil=True, error_model="numpy")  # no check for division by zero: z is at least min_range
def clear_blocks(
    slots: Array,
    coords: Array,
    local_camera: Array,
    edge_m: float,
    T: Array,
    k: Array,
    limits: Array,
    margins: Array,
    image: Array,
    near: Array,
    unknown: Array,
    steps: Array,
    r: int,
    stamp_ns: int,
    records: Array,
    last_seen: Array,
    occupied: Array,
    count: Array,
    changed: Array,
    emptied: Array,
) -> tuple[int, int]:
    """Lower the evidence of seen-through voxels; returns the numbers of (removed voxels, emptied blocks).

    Args:
        local_camera: (512, 3) voxel centres relative to their block's corner, turned into the camera frame, metres.
        T: (4, 4) camera from world; ``k`` = fx, fy, cx, cy; ``limits`` = min_range, max_range, margin + half diagonal,
            margin per m2; ``margins`` = margin, margin per m2, half of a voxel's edge.
        image: (H, W) float32 depth, 0 = unknown.
        near, unknown: of :func:`window_evidence`; ``r`` = half the size of its windows.
        steps: loss of evidence by the number of unknown pixels in the window.
        changed: per slot; set where the evidence of a voxel falls.
    """
    height, width = near.shape
    fx, fy, cx, cy = k[0], k[1], k[2], k[3]
    z_min, z_max, margin, margin_m2 = limits[0], limits[1], limits[2], limits[3]
    removed = 0
    empty = 0
    for b in range(slots.shape[0]):
        slot = slots[b]
        ox, oy, oz = coords[b, 0] * edge_m, coords[b, 1] * edge_m, coords[b, 2] * edge_m
        bx = ((T[0, 0] * ox + T[0, 1] * oy) + T[0, 2] * oz) + T[0, 3]
        by = ((T[1, 0] * ox + T[1, 1] * oy) + T[1, 2] * oz) + T[1, 3]
        bz = ((T[2, 0] * ox + T[2, 1] * oy) + T[2, 2] * oz) + T[2, 3]
        before = count[slot]
        for word_index in range(8):
            word = occupied[slot, word_index]
            while word != np.uint64(0):
                bit = lowest_bit(word)
                word &= word - np.uint64(1)
                local = word_index * 64 + bit
                z = bz + local_camera[local, 2]
                if z < z_min or z > z_max:
                    continue
                inverse = 1.0 / z
                column = ((bx + local_camera[local, 0]) * inverse) * fx + cx
                row = ((by + local_camera[local, 1]) * inverse) * fy + cy
                u, v = np.floor(column + 0.5), np.floor(row + 0.5)
                if not (u >= r and u < width - r and v >= r and v < height - r):
                    continue
                i, j = np.int64(v), np.int64(u)
                limit = z + (margin + margin_m2 * (z * z))
                if not image[i, j] > limit or last_seen[slot, local] == stamp_ns:
                    continue
                if not near[i - r, j - r] > limit and not before_plane(
                    image, i, j, r, row, column, z, limit, k, T, margins
                ):
                    continue
                step = steps[unknown[i - r, j - r]]
                if step == 0:
                    continue
                evidence = records[slot, local, EVIDENCE] - step
                records[slot, local, EVIDENCE] = evidence
                changed[slot] = True
                if evidence < 0:
                    erase_voxel(slot, local, records, last_seen, occupied, count)
        removed += before - count[slot]
        if count[slot] == 0:
            emptied[empty] = slot
            empty += 1
    return removed, empty


@njit(cache=True, nogil=True)
def erase_voxel(slot: int, local: int, records: Array, last_seen: Array, occupied: Array, count: Array) -> None:
    """Remove one occupied voxel."""
    for c in range(RECORD):
        records[slot, local, c] = 0
    last_seen[slot, local] = 0
    occupied[slot, local >> 6] &= ~(np.uint64(1) << np.uint64(local & 63))
    count[slot] -= 1


@njit(cache=True, nogil=True)
def erase_blocks(slots: Array, records: Array, last_seen: Array, occupied: Array, count: Array) -> int:
    """Remove all voxels of blocks; returns their number."""
    removed = 0
    for b in range(slots.shape[0]):
        slot = slots[b]
        removed += count[slot]
        for word_index in range(8):
            word = occupied[slot, word_index]
            while word != np.uint64(0):
                local = word_index * 64 + lowest_bit(word)
                word &= word - np.uint64(1)
                for c in range(RECORD):
                    records[slot, local, c] = 0
                last_seen[slot, local] = 0
            occupied[slot, word_index] = 0
        count[slot] = 0
    return removed


@njit(cache=True, nogil=True)
def remove_voxels(
    slots: Array, local: Array, records: Array, last_seen: Array, occupied: Array, count: Array, emptied: Array
) -> int:
    """Remove single occupied voxels; returns the number of emptied blocks (their slots in ``emptied``)."""
    empty = 0
    for i in range(slots.shape[0]):
        erase_voxel(slots[i], local[i], records, last_seen, occupied, count)
        if count[slots[i]] == 0:
            emptied[empty] = slots[i]
            empty += 1
    return empty


@njit(cache=True, nogil=True)
def put_voxels(
    slots: Array,
    local: Array,
    new_records: Array,
    new_last_seen: Array,
    records: Array,
    last_seen: Array,
    occupied: Array,
    count: Array,
) -> None:
    """Write voxels into empty places."""
    for i in range(slots.shape[0]):
        slot, place = slots[i], local[i]
        for c in range(RECORD):
            records[slot, place, c] = new_records[i, c]
        last_seen[slot, place] = new_last_seen[i]
        occupied[slot, place >> 6] |= np.uint64(1) << np.uint64(place & 63)
        count[slot] += 1


@njit(cache=True, nogil=True)
def copy_blocks(
    slots: Array,
    coords: Array,
    starts: Array,
    min_hits: int,
    records: Array,
    last_seen: Array,
    occupied: Array,
    out_coords: Array,
    out_records: Array,
    out_last_seen: Array,
    counts: Array,
    newest: Array,
) -> None:
    """Copy the voxels of blocks with enough hits to the rows from ``starts``; fills ``counts`` and ``newest`` stamps.

    Records are passed as int64, two columns in each. Unsigned indices need no test for negative values.
    """
    for b in range(slots.shape[0]):
        slot = np.uint64(slots[b])
        low_x, low_y, low_z = coords[b, 0] * 8, coords[b, 1] * 8, coords[b, 2] * 8
        n = np.uint64(starts[b])
        stamp = np.int64(0)
        for x in range(np.uint64(8)):
            word = occupied[slot, x]
            while word != np.uint64(0):
                bit = np.uint64(lowest_bit(word))
                word &= word - np.uint64(1)
                local = x * np.uint64(64) + bit
                first = records[slot, local, 0]
                if np.int32(first & 0xFFFFFFFF) < min_hits:
                    continue
                out_records[n, 0] = first
                for c in range(np.uint64(1), np.uint64(RECORD // 2)):
                    out_records[n, c] = records[slot, local, c]
                seen = last_seen[slot, local]
                out_last_seen[n] = seen
                stamp = max(stamp, seen)
                out_coords[n, 0] = low_x + x
                out_coords[n, 1] = low_y + (bit >> np.uint64(3))
                out_coords[n, 2] = low_z + (bit & np.uint64(7))
                n += np.uint64(1)
        counts[b] = np.int64(n) - starts[b]
        newest[b] = stamp


# --------------------------------------------------------------------------------------------------------------------
# kernel over one image: sums of its points by voxel

_LIMIT = float(1 << (KEY_BITS - 1 + OFFSET_BITS))  # |fixed point| of the outermost voxel key
_OFFSET_MASK = OFFSET_UNITS - 1
_EDGE_MASK = (1 << BLOCK_BITS) - 1

# three sums side by side in one 64-bit word
_FIELD = 21
_FIELD_MASK = (1 << _FIELD) - 1
_LONGEST_RUN = 1 << (_FIELD - OFFSET_BITS)  # pixels whose offsets still fit a field

# voxel key -> block key: shift all coordinates, clear the bits shifted in from neighbours, and correct the offset
_SHIFTED = (1 << (KEY_BITS - BLOCK_BITS)) - 1
_BLOCK_FIELDS = (_SHIFTED << (2 * KEY_BITS)) | (_SHIFTED << KEY_BITS) | _SHIFTED
_MEND = (1 << (KEY_BITS - 1)) - (1 << (KEY_BITS - 1 - BLOCK_BITS))
_BLOCK_KEY_SHIFT = (_MEND << (2 * KEY_BITS)) | (_MEND << KEY_BITS) | _MEND


@njit(cache=True, nogil=True)
def _row_points(
    depth: Array,
    ray_x: Array,
    ray: Array,
    origin: Array,
    z_min: float,
    z_max: float,
    keys: Array,
    offsets: Array,
) -> tuple[int, int]:
    """(W,) depth row -> voxel keys (-1 = no point) and packed offsets inside the voxels.

    No branches, so that it compiles to vector instructions. Returns the numbers of (points, points in the key range).
    """
    r0, r1, r2 = ray[0], ray[1], ray[2]
    t0, t1, t2 = origin[0], origin[1], origin[2]
    points = 0
    stored = 0
    for u in range(depth.shape[0]):
        z = np.float64(depth[u])
        ok = (z >= z_min) & (z <= z_max)
        points += ok
        z = z if ok else 0.0
        x = np.floor(z * (ray_x[0, u] + r0) + t0)
        y = np.floor(z * (ray_x[1, u] + r1) + t1)
        w = np.floor(z * (ray_x[2, u] + r2) + t2)
        ok &= (x >= -_LIMIT) & (x < _LIMIT) & (y >= -_LIMIT) & (y < _LIMIT) & (w >= -_LIMIT) & (w < _LIMIT)
        stored += ok
        a = np.int64(np.int32(x if ok else 0.0))
        b = np.int64(np.int32(y if ok else 0.0))
        c = np.int64(np.int32(w if ok else 0.0))
        keys[u] = pack_key(a >> OFFSET_BITS, b >> OFFSET_BITS, c >> OFFSET_BITS) if ok else -1
        offsets[u] = (a & _OFFSET_MASK) | ((b & _OFFSET_MASK) << _FIELD) | ((c & _OFFSET_MASK) << (2 * _FIELD))
    return points, stored


@njit(cache=True, nogil=True)
def _row_runs(keys: Array, offsets: Array, color: Array, prefix: Array, bounds: Array) -> int:
    """Find runs of pixels in one voxel, and running sums of packed offsets and colours before each pixel.

    Returns the number of runs with points; ``bounds`` are their first pixels and ends (exclusive). The sum over a run
    is a difference of two running sums: exact even if those wrap around, as long as the run fits its fields, hence the
    limit on its length. No branches: the ends of runs are unpredictable.
    """
    runs = 0
    start = 0
    offset_sum = np.int64(0)
    color_sum = np.int64(0)
    width = keys.shape[0] - 1  # one more key follows the row, unequal to all
    for u in range(width):
        offset_sum += offsets[u]
        color_sum += np.int64(color[u, 0]) | (np.int64(color[u, 1]) << _FIELD) | (np.int64(color[u, 2]) << (2 * _FIELD))
        prefix[u + 1, 0] = offset_sum
        prefix[u + 1, 1] = color_sum
        bounds[runs, 0] = start
        bounds[runs, 1] = u + 1
        ends = (keys[u] != keys[u + 1]) | ((u & (_LONGEST_RUN - 1)) == _LONGEST_RUN - 1)
        runs += ends & (keys[u] >= 0)
        start = u + 1 if ends else start
    return runs


@njit(cache=True, nogil=True)
def accumulate_rows(
    depth: Array,
    color: Array,
    rows: tuple[int, int],
    ray_x: Array,
    ray_y: Array,
    origin: Array,
    z_min: float,
    z_max: float,
    keys: Array,
    offsets: Array,
    prefix: Array,
    bounds: Array,
    table_keys: Array,
    table_ids: Array,
    shift: int,
    block_keys: Array,
    index: Array,
    cells: Array,
    sums: Array,
) -> tuple[int, int, int, int]:
    """Sum a band's points by voxel into dense scratch rows, numbered in order of first touch.

    Returns the numbers of (blocks, voxels, points, points in the key range); blocks = -1: ``block_keys`` is too small.
    ``index`` (blocks, 512) holds row + 1 of each touched voxel, ``cells`` the voxel (block * 512 + local) of each row;
    ``sums`` must be zero; it is passed as int64, two columns in each, which never carry. ``keys`` to ``bounds`` are
    scratch for one row of the image.
    """
    mask = table_keys.shape[0] - 1
    blocks = 0
    voxels = 0
    points = 0
    stored = 0
    last_block_key, block = -1, -1
    keys[-1] = -2
    prefix[0, :] = 0
    for v in range(rows[0], rows[1]):
        p, s = _row_points(depth[v], ray_x, ray_y[:, v], origin, z_min, z_max, keys, offsets)
        points += p
        stored += s
        if s == 0:
            continue
        for run in range(_row_runs(keys, offsets, color[v], prefix, bounds)):
            start, end = bounds[run, 0], bounds[run, 1]
            key = keys[start]
            block_key = ((key >> BLOCK_BITS) & _BLOCK_FIELDS) + _BLOCK_KEY_SHIFT
            if block_key != last_block_key:
                last_block_key = block_key
                i = hash_position(block_key, shift)
                while table_keys[i] != -1 and table_keys[i] != block_key:
                    i = (i + 1) & mask
                if table_keys[i] == -1:
                    if blocks == block_keys.shape[0]:
                        return -1, voxels, points, stored
                    table_keys[i] = block_key
                    table_ids[i] = blocks
                    block_keys[blocks] = block_key
                    blocks += 1
                block = table_ids[i]
            local = (
                (((key >> (2 * KEY_BITS)) & _EDGE_MASK) << (2 * BLOCK_BITS))
                | (((key >> KEY_BITS) & _EDGE_MASK) << BLOCK_BITS)
                | (key & _EDGE_MASK)
            )
            row = index[block, local]
            new = row == 0
            voxels += new
            row = voxels if new else row
            index[block, local] = row
            cells[row - 1] = block * BLOCK_VOXELS + local
            total = sums[row - 1]
            offset_sum = prefix[end, 0] - prefix[start, 0]
            color_sum = prefix[end, 1] - prefix[start, 1]
            total[0] += (end - start) | ((offset_sum & _FIELD_MASK) << 32)
            total[1] += ((offset_sum >> _FIELD) & _FIELD_MASK) | (((offset_sum >> 2 * _FIELD) & _FIELD_MASK) << 32)
            total[2] += (color_sum & _FIELD_MASK) | (((color_sum >> _FIELD) & _FIELD_MASK) << 32)
            total[3] += (color_sum >> 2 * _FIELD) & _FIELD_MASK
    return blocks, voxels, points, stored
