"""The voxel store in plain torch, for any device: sort and segmented sums instead of loops.

Every floating-point expression is the one of ``kernels.py`` in the same order and in float64, and everything that is
summed is an integer, so the map is the same bit for bit.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import KEY_BITS, constant, pack_keys, unpack_keys
from embodied_perceptron.mapping.blocks import BLOCK_BITS, BLOCK_EDGE, BLOCK_VOXELS
from embodied_perceptron.mapping.numba_voxels import local_centers
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
    FrameVoxels,
    MergeCounts,
    VoxelRows,
    evidence_step,
)

_LIMIT = float(1 << (KEY_BITS - 1 + OFFSET_BITS))


class TorchVoxels:
    """:class:`~embodied_perceptron.mapping.voxels.VoxelStore` on any torch device."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._device = device
        self.records = torch.zeros((capacity, BLOCK_VOXELS, RECORD), dtype=torch.int32, device=device)
        self.last_seen_ns = torch.zeros((capacity, BLOCK_VOXELS), dtype=torch.int64, device=device)
        self._flat = self.records.view(-1, RECORD)
        self._flat_last_seen = self.last_seen_ns.view(-1)
        empty = torch.zeros(0, dtype=torch.int64, device=device)
        self._pending: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = (empty, empty, empty.view(0, RECORD - 1))

    def _to(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.tensor(array, device=self._device)

    def accumulate(self, view: FrameView, rows: tuple[int, int], min_range_m: float, max_range_m: float) -> FrameVoxels:
        band = slice(*rows)
        z = self._to(view.depth_m[band]).double()  # (H, W)
        ok = (z >= min_range_m) & (z <= max_range_m)
        points = int(ok.sum())
        z = torch.where(ok, z, 0.0)
        ray_x, ray_y = self._to(view.ray_x), self._to(view.ray_y[:, band])
        p = [torch.floor(z * (ray_x[c] + ray_y[c][:, None]) + float(view.origin[c])) for c in range(3)]
        near = torch.stack([(a >= -_LIMIT) & (a < _LIMIT) for a in p]).all(0)
        ok = (ok & near).view(-1)
        fixed = torch.stack(p, dim=-1).view(-1, 3)[ok].long()  # (N, 3)
        color = self._to(view.color[band]).view(-1, 3)[ok].long()

        keys, inverse = torch.unique(pack_keys(fixed >> OFFSET_BITS), return_inverse=True)
        values = torch.cat([torch.ones_like(fixed[:, :1]), fixed & (OFFSET_UNITS - 1), color], dim=1)  # (N, 7)
        sums = torch.zeros((len(keys), RECORD - 1), dtype=torch.int64, device=self._device)
        sums.index_add_(0, inverse, values)
        coords = unpack_keys(keys)
        block_keys, block = torch.unique(pack_keys(coords >> BLOCK_BITS), return_inverse=True)
        low = coords & (BLOCK_EDGE - 1)
        local = (low[:, 0] << (2 * BLOCK_BITS)) | (low[:, 1] << BLOCK_BITS) | low[:, 2]
        self._pending = (block, local, sums)
        return FrameVoxels(block_keys.cpu().numpy(), points, points - len(fixed))

    def merge(self, slots: NDArray[np.int32], stamp_ns: int, first_band: bool) -> MergeCounts:
        block, local, sums = self._pending
        slot = self._to(slots).long()[block]
        refused = int(sums[slot < 0, HITS].sum())
        kept = slot >= 0
        place, sums = slot[kept] * BLOCK_VOXELS + local[kept], sums[kept]
        old = self._flat[place].long()  # (M, 8)
        created = int((old[:, HITS] == 0).sum())
        new = old[:, : RECORD - 1] + sums
        while True:
            over = new[:, HITS] > HITS_CAP
            if not bool(over.any()):
                break
            new = torch.where(over[:, None], new >> 1, new)
        counted = (self._flat_last_seen[place] != stamp_ns) | (old[:, HITS] == 0)
        if first_band:
            counted = torch.ones_like(counted)
        evidence = torch.clamp(old[:, EVIDENCE] + EVIDENCE_HIT * counted, max=EVIDENCE_MAX)
        self._flat[place] = torch.cat([new, evidence[:, None]], dim=1).int()
        self._flat_last_seen[place] = torch.clamp(self._flat_last_seen[place], min=stamp_ns)
        return MergeCounts(int(counted.sum()), created, refused)

    def clear(
        self,
        view: FrameView,
        rule: ClearingRule,
        voxel_size_m: float,
        slots: NDArray[np.int32],
        coords: NDArray[np.int32],
    ) -> tuple[int, NDArray[np.int32]]:
        height, width = view.depth_m.shape
        near, step = self._window_evidence(view.depth_m, rule.window_px(view.intrinsics))
        T, k = view.T_camera_world, view.intrinsics
        local = self._to(local_centers(voxel_size_m) @ T[:3, :3].T)  # (512, 3)
        corner = self._to(coords).double() * (BLOCK_EDGE * voxel_size_m)
        x, y, z = (
            (((T[r, 0] * corner[:, 0] + T[r, 1] * corner[:, 1]) + T[r, 2] * corner[:, 2]) + T[r, 3])[:, None]
            + local[:, r][None, :]
            for r in range(3)
        )  # each (B, 512)
        slot = self._to(slots).long()
        tested = (z >= rule.min_range_m) & (z <= rule.max_range_m) & (self.records[slot, :, HITS] > 0)
        tested &= self.last_seen_ns[slot] != view.stamp_ns
        inverse = 1.0 / torch.where(tested, z, 1.0)
        column, row = (x * inverse) * k.fx + k.cx, (y * inverse) * k.fy + k.cy
        u, v = torch.floor(column + 0.5), torch.floor(row + 0.5)
        tested &= (u >= 0) & (u < width) & (v >= 0) & (v < height)
        pixel = torch.where(tested, v * width + u, 0.0).long()
        limit = z + ((rule.margin_m + rule.half_diagonal_m) + rule.margin_per_m2 * (z * z))
        seen_through = tested & (near.view(-1)[pixel].double() > limit)
        r = rule.window_px(k)
        inside = (u >= r) & (u < width - r) & (v >= r) & (v < height - r)
        open_ = tested & inside & ~seen_through & (self._to(view.depth_m).view(-1)[pixel].double() > limit)
        at = tuple(a[open_] for a in (pixel, row, column, z, limit))
        seen_through[open_] = self._before_plane(view, rule, voxel_size_m, *at)

        block, place = torch.nonzero(seen_through, as_tuple=True)
        place = slot[block] * BLOCK_VOXELS + place
        evidence = self._flat[place, EVIDENCE] - step.view(-1)[pixel[seen_through]]
        self._flat[place, EVIDENCE] = evidence
        gone = evidence < 0
        return int(gone.sum()), self._empty(place[gone])

    def _before_plane(
        self,
        view: FrameView,
        rule: ClearingRule,
        voxel_size_m: float,
        pixel: torch.Tensor,
        row: torch.Tensor,
        column: torch.Tensor,
        z: torch.Tensor,
        limit: torch.Tensor,
    ) -> torch.Tensor:
        """(N,) bool, see ``numba_voxels.before_plane``: of voxels whose windows lie inside of the image."""
        k, T, r = view.intrinsics, view.T_camera_world, rule.window_px(view.intrinsics)
        depth = self._to(view.depth_m).double()
        width = depth.shape[1]
        inverse = torch.where(depth > 0, 1.0 / depth, 0.0).view(-1)
        known = depth.view(-1) > 0
        u, v = (pixel % width).double(), (pixel // width).double()
        middle = inverse[pixel]
        total, pairs = middle.clone(), torch.zeros_like(middle)
        uu, uv, vv, wu, wv = (torch.zeros_like(middle) for _ in range(5))
        for dv in range(r + 1):
            for du in range(-r, r + 1):
                if dv == 0 and du <= 0:
                    continue
                here, there = pixel + (dv * width + du), pixel - (dv * width + du)
                both = (known[here] & known[there]).double()
                half = 0.5 * (inverse[here] - inverse[there])
                total += (inverse[here] + inverse[there]) * both
                pairs += both
                uu += both * (du * du)
                uv += both * (du * dv)
                vv += both * (dv * dv)
                wu += both * (du * half)
                wv += both * (dv * half)
        determinant = uu * vv - uv * uv
        plane = determinant > 0
        determinant = torch.where(plane, determinant, 1.0)
        gu, gv = (wu * vv - wv * uv) / determinant, (wv * uu - wu * uv) / determinant
        w0 = total / (1 + 2 * pairs)
        tolerance = rule.margin_m * (middle * middle) + rule.margin_per_m2
        for dv in range(-r, r + 1):
            for du in range(-r, r + 1):
                here = pixel + (dv * width + du)
                plane &= ~known[here] | ((inverse[here] - ((w0 + gu * du) + gv * dv)).abs() <= tolerance)
        w = (w0 + gu * (column - u)) + gv * (row - v)
        plane &= (w > 0) & (w * limit < 1)
        nx, ny = gu * k.fx, gv * k.fy
        nz = (w0 + gu * (k.cx - u)) + gv * (k.cy - v)
        extent = torch.zeros_like(w)
        for c in range(3):
            extent += ((T[0, c] * nx + T[1, c] * ny) + T[2, c] * nz).abs()
        norm = torch.sqrt((nx * nx + ny * ny) + nz * nz)
        clear: torch.Tensor = plane & (1.0 - z * w > (0.5 * voxel_size_m) * extent + rule.margin_m * norm)
        return clear

    def _window_evidence(self, depth_m: NDArray[np.float32], radius: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(H, W) nearest known depth of the (2 radius + 1)^2 pixels around each pixel, and (H, W) int32 loss of
        evidence of what is seen through there. Nearest is 0 where the window leaves the image or the pixel itself is
        unknown.
        """
        size = 2 * radius + 1
        height, width = depth_m.shape
        near = torch.zeros((height, width), dtype=torch.float32, device=self._device)
        step = torch.zeros((height, width), dtype=torch.int32, device=self._device)
        if height >= size and width >= size:
            depth = self._to(depth_m)
            unknown = depth == 0
            far = torch.where(unknown, torch.inf, depth)[None, None]
            inner = slice(radius, height - radius), slice(radius, width - radius)
            nearest = -torch.nn.functional.max_pool2d(-far, size, stride=1)[0, 0]
            near[inner] = torch.where(unknown[inner], 0.0, nearest)
            # sums of small integers are exact in float32
            missing = torch.nn.functional.avg_pool2d(unknown[None, None].float(), size, stride=1, divisor_override=1)
            step[inner] = evidence_step(missing[0, 0].int(), size * size)
        return near, step

    def _empty(self, place: torch.Tensor) -> NDArray[np.int32]:
        """Empty single voxels; returns the slots of blocks left empty."""
        self._flat[place] = 0
        self._flat_last_seen[place] = 0
        touched = torch.unique(place // BLOCK_VOXELS)
        empty = touched[(self.records[touched, :, HITS] == 0).all(dim=1)]
        slots: NDArray[np.int32] = empty.cpu().numpy().astype(np.int32)
        return slots

    def erase(self, slots: NDArray[np.int32]) -> int:
        slot = self._to(slots).long()
        removed = int((self.records[slot, :, HITS] > 0).sum())
        self.records[slot] = 0
        self.last_seen_ns[slot] = 0
        return removed

    def remove(self, slots: NDArray[np.int32], local: NDArray[np.int64]) -> NDArray[np.int32]:
        return self._empty(self._to(slots).long() * BLOCK_VOXELS + self._to(local))

    def gather(self, slots: NDArray[np.int32], coords: NDArray[np.int32], min_hits: int) -> VoxelRows:
        slot = self._to(slots).long()
        block, local = torch.nonzero(self.records[slot, :, HITS] >= min_hits, as_tuple=True)
        low = (local[:, None] >> constant((6, 3, 0), self._device)).bitwise_and_(7)
        voxel = self._to(coords).long()[block] * BLOCK_EDGE + low
        order = torch.argsort(pack_keys(voxel))
        place = (slot[block] * BLOCK_VOXELS + local)[order]
        return VoxelRows(voxel[order].int(), self._flat[place], self._flat_last_seen[place])

    def put(self, slots: NDArray[np.int32], local: NDArray[np.int64], rows: VoxelRows) -> None:
        place = self._to(slots).long() * BLOCK_VOXELS + self._to(local)
        self._flat[place] = rows.records.to(self._device)
        self._flat_last_seen[place] = rows.last_seen_ns.to(self._device)
