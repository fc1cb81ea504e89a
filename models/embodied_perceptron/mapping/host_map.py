"""The map on the CPU: a table of blocks, and compiled kernels over the voxels of its slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import VolumeConfig
from embodied_perceptron.geometry.transforms import distinct_keys
from embodied_perceptron.mapping.block_copies import Arena, BlockCopier, Rooms, row_ranges
from embodied_perceptron.mapping.blocks import BLOCK_EDGE, BlockTable, block_coords, split_coords
from embodied_perceptron.mapping.numba_voxels import NumbaVoxels
from embodied_perceptron.mapping.spill import Blocks, BlockSpill
from embodied_perceptron.mapping.voxels import (
    HITS,
    ClearingRule,
    FrameView,
    FusionProgress,
    MapSize,
    StageTimer,
    VoxelRows,
)

_RETURN_MARGIN = 2.0  # block edges within the radius that a block comes back: what stands at it does not come and go


@dataclass(frozen=True)
class _Counts:
    """:class:`~embodied_perceptron.results.Arriving` that are there."""

    counts: Mapping[str, int]

    def ready(self) -> bool:
        return True

    def result(self) -> Mapping[str, int]:
        return self.counts


class HostMap:
    """:class:`~.voxels.VoxelMap` on the CPU."""

    device = torch.device("cpu")

    def __init__(self, config: VolumeConfig, spill: BlockSpill | None = None) -> None:
        """``spill``: where blocks go that are evicted, and from where they come back; None = they are forgotten."""
        self.config = config
        self._spill = spill
        self._store = NumbaVoxels(config.max_blocks)
        self._blocks = BlockTable(config.max_blocks)
        self._copies = BlockCopier(config.max_blocks, config.voxel_size_m)
        self._voxels = 0
        self._block_m = BLOCK_EDGE * config.voxel_size_m

    @property
    def is_empty(self) -> bool:
        return self._voxels == 0

    def size(self) -> MapSize:
        return MapSize(len(self._blocks), self._voxels, self._blocks.slots_ever_used, self.config.max_blocks)

    def fuse(
        self,
        view: FrameView,
        center_m: NDArray[np.float64],
        rule: ClearingRule,
        done: FusionProgress,
        clock: StageTimer,
    ) -> None:
        center, radius = center_m / self._block_m, self.config.radius_m / self._block_m
        if not done.evicted:
            done.counts.append(_Counts({"evicted_radius": self._evict(self._blocks.beyond(center, radius))}))
            done.evicted = True
            self._bring_back(center, radius)
        clock.lap("evict")
        for rows in view.bands()[done.bands :]:
            found = self._store.accumulate(view, rows, rule.min_range_m, rule.max_range_m)
            clock.lap("points")
            acquired = self._blocks.acquire(found.block_keys, center, radius)
            self._drop_evicted(acquired.evicted, acquired.evicted_keys)
            merged = self._store.merge(acquired.slots, view.stamp_ns, first_band=rows[0] == 0)
            self._voxels += merged.created
            counts = {
                "points": found.points,
                "voxels_touched": merged.touched,
                "evicted_budget": len(acquired.evicted),
                "points_refused": merged.refused_points + found.out_of_range,
            }
            done.counts.append(_Counts(counts))
            done.bands += 1
            clock.lap("fold")
        if self.config.clearing and not done.cleared:
            done.counts.append(_Counts({"voxels_cleared": self._clear_seen_through(view, rule)}))
        done.cleared = True
        clock.lap("clear")

    def _evict(self, slots: NDArray[np.int32]) -> int:
        if len(slots):
            self._drop_evicted(slots, self._blocks.keys_of(slots))
            self._blocks.release(slots)
        return len(slots)

    def _drop_evicted(self, slots: NDArray[np.int32], keys: NDArray[np.int64]) -> None:
        """Empty the slots of blocks, known as ``keys``, that leave the map."""
        if self._spill is not None and len(slots):
            sizes = self._store.sizes(slots)
            room = Rooms.sizes(sizes)
            starts, arena = np.cumsum(room) - room, Arena.of(int(room.sum()))
            counts, _ = self._store.copy(slots, block_coords(keys).astype(np.int32), 1, arena, starts)
            rows = row_ranges(starts, counts)
            _, local = split_coords(arena.coords[rows])
            filled = counts > 0
            content = Blocks(keys[filled], counts[filled], local, arena.records[rows], arena.last_seen_ns[rows])
            self._spill.add(content)
        self._voxels -= self._store.erase(slots)

    def _bring_back(self, center: NDArray[np.float64], radius: float) -> None:
        """What was left behind and is near again. Where a voxel was seen anew meanwhile, that counts."""
        if self._spill is None:
            return
        near = self._blocks.reach(center, radius) - _RETURN_MARGIN
        for content in self._spill.returning(center, near):
            distinct, block = np.unique(content.keys, return_inverse=True)
            acquired = self._blocks.acquire(distinct, center, radius)
            self._drop_evicted(acquired.evicted, acquired.evicted_keys)
            slots = np.repeat(acquired.slots[block], content.counts)
            free = (slots >= 0) & (self._store.records.numpy()[slots, content.local, HITS] == 0)
            # of a block that was left behind twice the newer voxels count
            order = np.lexsort((-content.last_seen_ns, content.local, slots))
            first = np.ones(len(order), bool)
            first[1:] = (np.diff(slots[order]) != 0) | (np.diff(content.local[order]) != 0)
            taken = np.sort(order[first & free[order]])
            rows = content.rows().where(torch.from_numpy(np.isin(np.arange(len(slots)), taken)))
            self._store.put(slots[taken], content.local[taken], rows)
            self._voxels += len(taken)
            self._spill.add(content.where(acquired.slots[block] < 0))

    def _clear_seen_through(self, view: FrameView, rule: ClearingRule) -> int:
        T_camera_block = view.T_camera_world.copy()
        T_camera_block[:3, :3] *= self._block_m
        slots = self._blocks.in_frustum(
            T_camera_block,
            view.side_planes(),
            rule.min_range_m,
            rule.max_range_m,
            0.5 * np.sqrt(3.0) * self._block_m,
        )
        if len(slots) == 0:
            return 0
        coords = self._blocks.coords_of(slots)
        cleared, emptied = self._store.clear(view, rule, self.config.voxel_size_m, slots, coords)
        self._voxels -= cleared
        self._blocks.release(emptied)
        return cleared

    def gather(
        self, min_hits: int, lower: NDArray[np.float64] | None = None, upper: NDArray[np.float64] | None = None
    ) -> VoxelRows:
        slots = self._blocks.slots(lower, upper)
        numbers = np.arange(len(slots), dtype=np.int32)
        return self._view(BlockCopier(len(slots), self.config.voxel_size_m), numbers, slots, numbers, slots, min_hits)

    def copy(self, min_hits: int) -> VoxelRows:
        if min_hits != max(self.config.min_hits, 1):
            return self.gather(min_hits)
        slots, changed = self._blocks.slots(), self._store.take_changed()
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
        """Of the blocks in ``slots``, which the copier knows by ``numbers``, those ``changed`` anew."""
        starts = copier.make_room(changed_numbers, self._store.sizes(changed))
        coords = self._blocks.coords_of(changed)
        counts, newest_ns = self._store.copy(changed, coords, min_hits, copier.arena, starts)
        keys, coords = self._blocks.keys_of(slots), self._blocks.coords_of(slots)
        return copier.view(numbers, keys, coords, changed_numbers, counts, newest_ns).rows()

    def put(self, rows: VoxelRows) -> None:
        block_keys, local = split_coords(rows.coords.numpy())
        self._blocks.acquire(distinct_keys(block_keys), np.zeros(3), np.inf)
        self._store.put(self._blocks.lookup(block_keys), local, rows)
        self._voxels = len(rows)

    def remove(self, coords: NDArray[np.int32]) -> None:
        keys, local = split_coords(coords)
        self._blocks.release(self._store.remove(self._blocks.lookup(keys), local))
        self._voxels -= len(coords)

    def clear(self) -> None:
        self._store.erase(self._blocks.slots())
        self._blocks.clear()
        self._voxels = 0
