"""The voxel store in plain torch, for any device: sort and segmented sums instead of loops.

Every floating-point expression is the one of ``kernels.py`` in the same order and in float64, and everything that is
summed is an integer, so the map is the same bit for bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.transforms import KEY_BITS, constant, pack_keys, unpack_keys
from embodied_perceptron.mapping.blocks import BLOCK_BITS, BLOCK_EDGE, BLOCK_VOXELS
from embodied_perceptron.mapping.numba_voxels import local_centers
from embodied_perceptron.mapping.voxels import (
    BAND_PIXELS,
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

_HALVINGS = tuple(range(BAND_PIXELS.bit_length() - HITS_CAP.bit_length() + 2))  # more than a band can need
_LIMIT = float(1 << (KEY_BITS - 1 + OFFSET_BITS))


class _InImage(NamedTuple):
    """Where N voxels lie in a depth image, each (N,): the pixel's number, row and column (not whole), distance along
    the axis, and the depth from which a pixel speaks against the voxel, metres."""

    pixel: torch.Tensor
    row: torch.Tensor
    column: torch.Tensor
    z: torch.Tensor
    limit: torch.Tensor


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
        points = ok.sum()
        z = torch.where(ok, z, 0.0)
        ray_x, ray_y, origin = self._to(view.ray_x), self._to(view.ray_y[:, band]), self._to(view.origin)
        p = torch.floor(z * (ray_x[:, None] + ray_y[..., None]) + origin[:, None, None])  # (3, H, W)
        ok &= ((p >= -_LIMIT) & (p < _LIMIT)).all(0)
        pixel = ok.view(-1).nonzero()[:, 0]
        fixed = p.view(3, -1)[:, pixel].t().long()  # (N, 3)
        color = self._to(view.color[band]).view(-1, 3)[pixel].long()

        keys, inverse = torch.unique(pack_keys(fixed >> OFFSET_BITS), return_inverse=True)
        values = torch.cat([torch.ones_like(fixed[:, :1]), fixed & (OFFSET_UNITS - 1), color], dim=1)  # (N, 7)
        sums = torch.zeros((len(keys), RECORD - 1), dtype=torch.int64, device=self._device)
        sums.index_add_(0, inverse, values)
        coords = unpack_keys(keys)
        block_keys, block = torch.unique(pack_keys(coords >> BLOCK_BITS), return_inverse=True)
        place = constant((1 << (2 * BLOCK_BITS), 1 << BLOCK_BITS, 1), self._device)
        local = ((coords & (BLOCK_EDGE - 1)) * place).sum(1)
        self._pending = (block, local, sums)
        told = torch.cat([block_keys, points[None]]).cpu().numpy()
        return FrameVoxels(told[:-1], int(told[-1]), int(told[-1]) - len(fixed))

    def merge(self, slots: NDArray[np.int32], stamp_ns: int, first_band: bool) -> MergeCounts:
        block, local, sums = self._pending
        slot = self._to(slots).long()[block]
        refused = 0
        if (slots < 0).any():
            refused = int(sums[slot < 0, HITS].sum())
            kept = (slot >= 0).nonzero()[:, 0]
            slot, local, sums = slot[kept], local[kept], sums[kept]
        place = slot * BLOCK_VOXELS + local
        old = self._flat[place].long()  # (M, 8)
        created = old[:, HITS] == 0
        new = old[:, : RECORD - 1] + sums
        # halved until there are few enough: how often, without a look at the numbers
        halvings = (new[:, HITS, None] >> constant(_HALVINGS, self._device)) > HITS_CAP
        new = new >> halvings.sum(1, keepdim=True)
        last_seen_ns = self._flat_last_seen[place]
        counted = torch.ones_like(created) if first_band else (last_seen_ns != stamp_ns) | created
        evidence = torch.clamp(old[:, EVIDENCE] + EVIDENCE_HIT * counted, max=EVIDENCE_MAX)
        self._flat[place] = torch.cat([new, evidence[:, None]], dim=1).int()
        self._flat_last_seen[place] = torch.clamp(last_seen_ns, min=stamp_ns)
        touched, born = torch.stack([counted, created]).sum(1).tolist()
        return MergeCounts(touched, born, refused)

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
        depth = self._to(view.depth_m)
        open_ = tested & inside & ~seen_through & (depth.view(-1)[pixel].double() > limit)
        among = open_.view(-1).nonzero()[:, 0]
        if len(among):
            at = _InImage(*(a.view(-1)[among] for a in (pixel, row, column, z, limit)))
            seen_through.view(-1)[among] = self._before_plane(view, rule, voxel_size_m, depth, at)

        through = seen_through.view(-1).nonzero()[:, 0]
        place = slot[through // BLOCK_VOXELS] * BLOCK_VOXELS + through % BLOCK_VOXELS
        evidence = self._flat[place, EVIDENCE] - step.view(-1)[pixel.view(-1)[through]]
        self._flat[place, EVIDENCE] = evidence
        gone = (evidence < 0).nonzero()[:, 0]
        return len(gone), self._empty(place[gone]) if len(gone) else np.zeros(0, np.int32)

    def _before_plane(
        self, view: FrameView, rule: ClearingRule, voxel_size_m: float, image: torch.Tensor, at: _InImage
    ) -> torch.Tensor:
        """(N,) bool, see ``numba_voxels.before_plane``: of voxels whose windows lie inside of the (H, W) ``image``."""
        k, T, r = view.intrinsics, view.T_camera_world, rule.window_px(view.intrinsics)
        pixel, row, column, z, limit = at
        depth, width = image.double(), image.shape[1]
        window = [(du, dv) for dv in range(-r, r + 1) for du in range(-r, r + 1)]
        half_window = window[len(window) // 2 + 1 :]  # each of them with its opposite
        offsets = constant(tuple(dv * width + du for du, dv in window), self._device)
        measured = depth.view(-1)[pixel[:, None] + offsets]  # (N, W)
        known = measured > 0  # also where it is infinite
        inverse = torch.where(known, 1.0 / measured, 0.0)
        du, dv = (constant(tuple(o[axis] for o in window), self._device, torch.float64) for axis in (0, 1))

        count = len(half_window)
        here, there = inverse[:, count + 1 :], inverse[:, :count].flip(1)  # (N, P)
        both = (known[:, count + 1 :] & known[:, :count].flip(1)).double()
        half = both * (0.5 * (here - there))
        middle = inverse[:, count]
        nothing = torch.zeros_like(middle)
        sums = torch.stack([middle, nothing, nothing])  # of inverse depth, and of its slopes times du and dv
        terms = torch.stack([(here + there) * both, half * du[count + 1 :], half * dv[count + 1 :]])
        for pair in range(count):  # one after the other, as the loops add
            sums += terms[..., pair]
        total, wu, wv = sums
        squares = tuple(x for a, b in half_window for x in (a * a, a * b, b * b, 1))
        of_pairs = both @ constant(squares, self._device, torch.float64).view(count, 4)
        uu, uv, vv, pairs = of_pairs.unbind(1)  # whole numbers: in any order
        determinant = uu * vv - uv * uv
        plane = determinant > 0
        determinant = determinant.masked_fill(~plane, 1.0)
        gu, gv = (wu * vv - wv * uv) / determinant, (wv * uu - wu * uv) / determinant
        w0 = total / (1 + 2 * pairs)
        tolerance = rule.margin_m * (middle * middle) + rule.margin_per_m2
        fitted = (w0[:, None] + gu[:, None] * du) + gv[:, None] * dv
        plane &= (~known | ((inverse - fitted).abs() <= tolerance[:, None])).all(1)
        u, v = (pixel % width).double(), (pixel // width).double()
        w = (w0 + gu * (column - u)) + gv * (row - v)
        plane &= (w > 0) & (w * limit < 1)
        nx, ny = gu * k.fx, gv * k.fy
        nz = (w0 + gu * (k.cx - u)) + gv * (k.cy - v)
        R = self._to(T[:3, :3])[..., None]  # (3, 3, 1)
        along = ((R[0] * nx + R[1] * ny) + R[2] * nz).abs()  # (3, N)
        extent = (along[0] + along[1]) + along[2]
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
        if not len(slots):
            return 0
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
