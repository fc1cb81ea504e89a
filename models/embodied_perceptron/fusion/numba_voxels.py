"""The voxel store on the CPU: compiled loops over the tensors' numpy views."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.fusion import kernels, scan_kernels
from embodied_perceptron.fusion.blocks import BLOCK_EDGE, BLOCK_VOXELS
from embodied_perceptron.fusion.voxels import RECORD, ClearingRule, Fold, Scan, View, VoxelRows


def local_centers(voxel_size_m: float) -> NDArray[np.float64]:
    """(512, 3) voxel centres of a block relative to its lower corner, metres."""
    i = np.arange(BLOCK_VOXELS)
    return (np.stack([i >> 6, (i >> 3) & 7, i & 7], axis=1) + 0.5) * voxel_size_m


class NumbaVoxels:
    """:class:`~embodied_perceptron.fusion.voxels.VoxelStore` on the CPU."""

    def __init__(self, capacity: int) -> None:
        # zeros from calloc: memory is taken from the system only where a block has been
        self._records = np.zeros((capacity, BLOCK_VOXELS, RECORD), np.int32)
        self._last_seen = np.zeros((capacity, BLOCK_VOXELS), np.int64)
        self._occupied = np.zeros((capacity, BLOCK_EDGE), np.uint64)  # bit y * 8 + z of word x
        self._count = np.zeros(capacity, np.int32)
        self.records = torch.from_numpy(self._records)
        self.last_seen_ns = torch.from_numpy(self._last_seen)
        self._emptied = np.empty(capacity, np.int32)
        self._size_scratch(1 << 12)
        self._cells = np.empty(0, np.int32)
        self._sums = np.empty((0, RECORD), np.int32)
        self._voxels = 0
        self._near = np.empty((0, 0), np.float32)

    def _size_scratch(self, blocks: int) -> None:
        bits = int(np.ceil(np.log2(2 * blocks)))
        self._shift = 64 - bits
        self._table_keys = np.empty(1 << bits, np.int64)
        self._table_ids = np.empty(1 << bits, np.int32)
        self._block_keys = np.empty(blocks, np.int64)
        self._index = np.zeros((blocks, BLOCK_VOXELS), np.int32)

    def scan(self, view: View, rows: tuple[int, int], min_range_m: float, max_range_m: float) -> Scan:
        width = view.depth_m.shape[1]
        pixels = (rows[1] - rows[0]) * width
        if len(self._cells) < pixels:
            self._cells = np.empty(pixels, np.int32)
            self._sums = np.zeros((pixels, RECORD), np.int32)
        keys, offsets = np.empty(width + 1, np.int64), np.empty(width, np.int64)
        prefix, bounds = np.empty((width + 1, 2), np.int64), np.empty((width + 1, 2), np.int32)
        while True:
            self._table_keys.fill(-1)
            blocks, self._voxels, points, stored = scan_kernels.scan_rows(
                view.depth_m,
                view.color,
                rows,
                view.ray_x,
                view.ray_y,
                view.origin,
                min_range_m,
                max_range_m,
                keys,
                offsets,
                prefix,
                bounds,
                self._table_keys,
                self._table_ids,
                self._shift,
                self._block_keys,
                self._index,
                self._cells,
                self._sums,
            )
            if blocks >= 0:
                return Scan(self._block_keys[:blocks].copy(), points, points - stored)
            self._size_scratch(4 * len(self._block_keys))
            self._sums[: self._voxels] = 0

    def fold(self, slots: NDArray[np.int32], stamp_ns: int, first_band: bool) -> Fold:
        n, self._voxels = self._voxels, 0
        return Fold(
            *kernels.fold_rows(
                slots,
                self._cells[:n],
                self._sums[:n],
                stamp_ns,
                first_band,
                self._index,
                self._records,
                self._last_seen,
                self._occupied,
                self._count,
            )
        )

    def clear(
        self, view: View, rule: ClearingRule, voxel_size_m: float, slots: NDArray[np.int32], coords: NDArray[np.int32]
    ) -> tuple[int, NDArray[np.int32]]:
        if self._near.shape != view.depth_m.shape:
            self._near = np.empty_like(view.depth_m)
        r = rule.window_px(view.intrinsics)
        kernels.window_minimum(view.depth_m, 2 * r + 1, self._near)
        k = view.intrinsics
        T = view.T_camera_world
        removed, empty = kernels.clear_blocks(
            slots,
            coords,
            local_centers(voxel_size_m) @ T[:3, :3].T,
            BLOCK_EDGE * voxel_size_m,
            T,
            np.array([k.fx, k.fy, k.cx, k.cy]),
            np.array([rule.min_range_m, rule.max_range_m, rule.margin_m + rule.half_diagonal_m, rule.margin_per_m2]),
            self._near,
            r,
            view.stamp_ns,
            self._records,
            self._last_seen,
            self._occupied,
            self._count,
            self._emptied,
        )
        emptied: NDArray[np.int32] = self._emptied[:empty].copy()
        return removed, emptied

    def erase(self, slots: NDArray[np.int32]) -> int:
        return int(kernels.erase_blocks(slots, self._records, self._last_seen, self._occupied, self._count))

    def remove(self, slots: NDArray[np.int32], local: NDArray[np.int64]) -> NDArray[np.int32]:
        empty = kernels.remove_voxels(
            slots, local, self._records, self._last_seen, self._occupied, self._count, self._emptied
        )
        slots_left: NDArray[np.int32] = self._emptied[:empty].copy()
        return slots_left

    def gather(self, slots: NDArray[np.int32], coords: NDArray[np.int32], min_hits: int) -> VoxelRows:
        n = int(self._count[slots].sum())
        out_coords = np.empty((n, 3), np.int32)
        records = np.empty((n, RECORD), np.int32)
        last_seen = np.empty(n, np.int64)
        n = kernels.gather_voxels(
            slots,
            coords,
            min_hits,
            self._records,
            self._last_seen,
            self._occupied,
            out_coords,
            records,
            last_seen,
        )
        return VoxelRows(*(torch.from_numpy(a[:n]) for a in (out_coords, records, last_seen)))

    def put(self, slots: NDArray[np.int32], local: NDArray[np.int64], rows: VoxelRows) -> None:
        kernels.put_voxels(
            slots,
            local,
            rows.records.numpy(),
            rows.last_seen_ns.numpy(),
            self._records,
            self._last_seen,
            self._occupied,
            self._count,
        )
