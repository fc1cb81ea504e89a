"""The map on a device, in tensor operations whose sizes the host knows, so that the host never waits for the device.

The host keeps the table of blocks (:class:`~.blocks.BlockTable`) and assigns points to voxels in one pass over the
depth image, so the device needs no double precision for it. It sends the points as rows and summands, and the slots of
the blocks that they touch or that the camera may see through. The device gathers the voxels of these blocks, adds the
points, clears voxels seen through (empty ones included) and writes everything back in one operation. When it fails
before that, fusion continues on the CPU from :class:`~.voxels.FusionProgress`.

The host learns the numbers of voxels of blocks later (:class:`_Ledger`), and then frees the slots of emptied blocks. It
waits for them only when the budget of blocks may be exhausted.

All sums are integers, and voxel coordinates are the float64 expression of ``host_map.py`` in the same order: points
give the same map bit for bit. Clearing follows the same rule by matrix products, whose last bits may differ; this
matters only where a comparison is closer than 1e-12, or a voxel lies within 1e-6 m of the maximum range. In an image of
several bands a voxel counts as touched once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import VolumeConfig
from embodied_perceptron.geometry.kernels import njit
from embodied_perceptron.geometry.transforms import KEY_BITS, Intrinsics, constant, pack_keys
from embodied_perceptron.mapping.blocks import (
    BLOCK_BITS,
    BLOCK_EDGE,
    BLOCK_VOXELS,
    BlockTable,
    pack_key,
    split_coords,
)
from embodied_perceptron.mapping.devices import is_device_fault
from embodied_perceptron.mapping.host_map import evidence_steps, local_centers, window_evidence
from embodied_perceptron.mapping.voxels import (
    BAND_PIXELS,
    COLOR,
    EVIDENCE,
    EVIDENCE_HIT,
    EVIDENCE_MAX,
    HITS,
    HITS_CAP,
    OFFSET,
    OFFSET_BITS,
    OFFSET_UNITS,
    RECORD,
    ClearingRule,
    FrameView,
    FusionProgress,
    MapSize,
    StageClock,
    VoxelRows,
)

_COLUMNS = RECORD + 2  # of a stored voxel: its record, and its stamp as two int32
_SUMS = COLOR + 3  # of these columns, the first are sums
_LIMIT = float(1 << (KEY_BITS - 1 + OFFSET_BITS))
_BLOCK_UNITS = OFFSET_UNITS * BLOCK_EDGE
_FIRST_SLOTS = 16_384  # what is allocated at first: twice what one frame may add at 5 m and voxels of 4 cm
_MAX_CELLS = 1 << 24  # of a frame's box of blocks
_CLEARED_AT_ONCE = 4096  # blocks, which bounds the memory that clearing needs for a while
_FEW_CELLS = 1 << 21
_WORDS = BLOCK_VOXELS // 64  # of bits of a block's voxels
_FAR = 1e30  # metres: projects onto the lowest pixel


class _Counts:
    """:class:`~embodied_perceptron.results.Arriving` counts of one frame, sent to the host together."""

    def __init__(self, ledger: _Ledger) -> None:
        self._ledger = ledger
        self._parts: list[tuple[tuple[torch.Tensor, ...], Callable[[NDArray[np.int64]], dict[str, int]]]] = []
        self._arriving: NDArray[np.int64] | None = None
        self._event: torch.cuda.Event | None = None
        self._result: dict[str, int] | None = None

    def add(self, numbers: tuple[torch.Tensor, ...], read: Callable[[NDArray[np.int64]], dict[str, int]]) -> None:
        """Add numbers on the device, (N,) int64 each, and the function that turns them into counts."""
        self._parts.append((numbers, read))

    def send(self) -> None:
        """Send all numbers to the host, without waiting; none may be added afterwards."""
        parts = [tensor for part, _ in self._parts for tensor in part]
        if not parts:
            return
        together = torch.cat(parts)
        on_gpu = together.device.type == "cuda"
        copy = torch.empty(len(together), dtype=torch.int64, pin_memory=on_gpu)
        numbers = copy.numpy()
        copy.copy_(together, non_blocking=True)
        if on_gpu:
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(together.device))
        self._arriving = numbers

    def ready(self) -> bool:
        if self._result is not None or self._event is None:
            return True
        try:
            return bool(self._event.query())  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            return self._lost(error)

    def result(self) -> Mapping[str, int]:
        self._ledger.settle(self)
        return self._result or {}

    def read(self) -> None:
        """Enter the arrived counts into the ledger, after those of earlier frames."""
        if self._result is None:
            try:
                self._result = self._read()
            except RuntimeError as error:
                self._lost(error)
        self._parts, self._arriving = [], None

    def _read(self) -> dict[str, int]:
        if self._event is not None:
            self._event.synchronize()
        numbers = self._arriving
        if numbers is None:  # the frame was not finished
            parts = [tensor.cpu().numpy() for part, _ in self._parts for tensor in part]
            numbers = np.concatenate([np.empty(0, np.int64), *parts])
        total = Counter[str]()
        for tensors, read in self._parts:
            count = sum(map(len, tensors))
            for name, value in read(numbers[:count]).items():
                total[name] += value
            numbers = numbers[count:]
        return total

    def _lost(self, error: RuntimeError) -> bool:
        """Give up the counts of a failed device; the next use of the map reports the failure."""
        if not is_device_fault(error):
            raise error
        self._result = {}
        return True


class _Ledger:
    """State known to the host: slots of blocks, and their numbers of voxels after the last frame whose counts arrived.

    Holds no device memory.

    Attributes:
        blocks: stored blocks, including some emptied by frames in progress.
        voxels: (max_blocks,) by slot, and ``stored`` their sum.
    """

    def __init__(self, max_blocks: int) -> None:
        self.blocks = BlockTable(max_blocks)
        self.voxels = np.zeros(max_blocks, np.int64)
        self.stored = 0
        self._touched_by = np.zeros(max_blocks, np.int64)  # number of the last frame with points, by slot
        self._frames = 0
        self._pending: deque[_Counts] = deque()  # of frames in progress, oldest first

    def begin(self) -> _Counts:
        """Begin the next frame."""
        while self._pending and self._pending[0].ready():
            self._pending.popleft().read()
        self._frames += 1
        counts = _Counts(self)
        self._pending.append(counts)
        return counts

    def settle(self, last: _Counts | None = None) -> None:
        """Wait for the counts of all frames, or of those up to ``last``."""
        if last is not None and last not in self._pending:
            return
        while self._pending:
            counts = self._pending.popleft()
            counts.read()
            if counts is last:
                return

    @property
    def is_settled(self) -> bool:
        """Whether no frame is in progress; does not wait."""
        while self._pending and self._pending[0].ready():
            self._pending.popleft().read()
        return not self._pending

    def before(self, counts: _Counts) -> None:
        """Wait for the frames before that of ``counts``, which is in progress."""
        while self._pending[0] is not counts:
            self._pending.popleft().read()

    def touch(self, slots: NDArray[np.int32]) -> None:
        """Record that the present frame has points in these blocks."""
        self._touched_by[slots] = self._frames

    def forget(self, slots: NDArray[np.int32], counts: _Counts, reason: str) -> None:
        """Record the eviction of blocks; those known to be empty by then are not counted."""

        def read(_: NDArray[np.int64]) -> dict[str, int]:
            evicted = int(np.count_nonzero(self.voxels[slots]))
            self.stored -= int(self.voxels[slots].sum())
            self.voxels[slots] = 0
            return {reason: evicted}

        counts.add((), read)

    def expect(
        self, slots: NDArray[np.int32], sizes: tuple[torch.Tensor, ...], counts: _Counts, points: dict[str, int]
    ) -> None:
        """Await the ``sizes`` of blocks after the frame's points, and, where it clears, after clearing."""
        frame = self._frames

        def read(numbers: NDArray[np.int64]) -> dict[str, int]:
            after, left = numbers[: len(slots)], numbers[-len(slots) :] if len(slots) else numbers
            self.stored += int(left.sum() - self.voxels[slots].sum())
            self.voxels[slots] = left
            emptied = slots[(left == 0) & (self._touched_by[slots] <= frame)]
            self.blocks.release(emptied[self.blocks.keys_of(emptied) >= 0])  # some are evicted since
            return {**points, "voxels_cleared": int(after.sum() - left.sum())}

        counts.add(sizes, read)


# --------------------------------------------------------------------------------------------------------------------
# work of the host for a frame


@dataclass(frozen=True, eq=False)
class _Points:
    """Points of a band of rows.

    Attributes:
        keys: (B,) int64 keys of their blocks.
        place: (P,) int64 number of the block * 512 + index in it.
        values: (P, 8) int16 summands of a record; evidence with the first point of a voxel.
        total: number of points, including those outside the key range.
        touched: number of voxels.
    """

    keys: NDArray[np.int64]
    place: NDArray[np.int64]
    values: NDArray[np.int16]
    total: int
    touched: int

    @staticmethod
    def of(view: FrameView, band: tuple[int, int], rule: ClearingRule, block_m: float) -> _Points:
        """Raises ``ValueError`` when they lie too far apart."""
        lower, dims = _box(view, band, rule)
        cells = int(dims.prod())
        if cells > _MAX_CELLS:
            raise ValueError(
                f"a frame's points span {cells} blocks of {block_m:.3f} m, more than {_MAX_CELLS}: "
                f"max_range_m={rule.max_range_m} is too much for a volume on a device"
            )
        pixels = (band[1] - band[0]) * view.depth_m.shape[1]
        most = min(pixels, cells)
        place, values = np.empty(pixels, np.int64), np.empty((pixels, RECORD), np.int16)
        keys, numbers, seen = np.empty(most, np.int64), np.zeros(cells, np.int32), np.zeros((most, _WORDS), np.uint64)
        blocks, points, total, touched = place_points(
            view.depth_m, view.color, view.ray_x, view.ray_y, view.origin, rule.min_range_m, rule.max_range_m, *band,
            lower, dims, numbers, seen, keys, place, values,
        )  # fmt: skip
        return _Points(keys[:blocks], place[:points], values[:points], total, touched)

    def settled(self, slots: NDArray[np.int32], seen: NDArray[np.uint64] | None) -> _Points:
        """Points in blocks with a slot, blocks renumbered; ``slots`` (B,), -1 = refused.

        ``seen`` (slots, 8): bits of the voxels touched by earlier bands; None = there are none. Changes ``seen`` and
        the arrays of these points.
        """
        taken = slots >= 0
        if taken.all() and seen is None:
            return self
        if seen is None:
            seen = np.zeros((int(slots.max(initial=0)) + 1, _WORDS), np.uint64)
        kept, touched = settle_points(self.place, self.values, slots, np.cumsum(taken) - 1, seen)
        return _Points(self.keys[taken], self.place[:kept], self.values[:kept], self.total, touched)


def _box(view: FrameView, band: tuple[int, int], rule: ClearingRule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Box of blocks that the points of the rows can fall into: lowest block (3,), and size (3,)."""
    z = np.array([rule.min_range_m, min(float(view.depth_m[slice(*band)].max()), rule.max_range_m)])
    rays = view.ray_x[:, None, [0, -1]] + view.ray_y[:, [band[0], band[1] - 1], None]
    corners = rays[..., None] * z + view.origin[:, None, None, None]
    bounds = np.stack([corners.min((1, 2, 3)) - _BLOCK_UNITS, corners.max((1, 2, 3)) + _BLOCK_UNITS])
    if (np.clip(bounds[1] - bounds[0], 0, _LIMIT) / _BLOCK_UNITS + 2).prod() > _FEW_CELLS:  # exact bounds of the points
        limits = rule.min_range_m, rule.max_range_m
        point_bounds(view.depth_m, view.ray_x, view.ray_y, view.origin, *limits, *band, bounds)
    lower, last = (np.floor(np.clip(corner, -_LIMIT, _LIMIT - 1) / _BLOCK_UNITS).astype(np.int64) for corner in bounds)
    return lower, last - lower + 1


@njit(cache=True, nogil=True)
def point_bounds(
    depth: NDArray[np.float32],
    ray_x: NDArray[np.float64],
    ray_y: NDArray[np.float64],
    origin: NDArray[np.float64],
    z_min: float,
    z_max: float,
    first: int,
    last: int,
    bounds: NDArray[np.float64],
) -> None:
    """Bounds of the points of the rows [first, last).

    ``bounds`` (2, 3) out: fixed-point minimum and maximum of the points in the key range; the camera if there are none.
    """
    empty = True
    for c in range(3):
        bounds[0, c] = min(max(origin[c], -_LIMIT), _LIMIT - 1)
        bounds[1, c] = bounds[0, c]
    for v in range(first, last):
        for u in range(depth.shape[1]):
            z = np.float64(depth[v, u])
            if not (z >= z_min and z <= z_max):
                continue
            x = z * (ray_x[0, u] + ray_y[0, v]) + origin[0]
            y = z * (ray_x[1, u] + ray_y[1, v]) + origin[1]
            w = z * (ray_x[2, u] + ray_y[2, v]) + origin[2]
            if not (-_LIMIT <= x < _LIMIT and -_LIMIT <= y < _LIMIT and -_LIMIT <= w < _LIMIT):
                continue
            if empty:
                bounds[:, 0], bounds[:, 1], bounds[:, 2] = x, y, w
                empty = False
            bounds[0, 0], bounds[1, 0] = min(bounds[0, 0], x), max(bounds[1, 0], x)
            bounds[0, 1], bounds[1, 1] = min(bounds[0, 1], y), max(bounds[1, 1], y)
            bounds[0, 2], bounds[1, 2] = min(bounds[0, 2], w), max(bounds[1, 2], w)


@njit(cache=True, nogil=True)
def place_points(
    depth: NDArray[np.float32],
    color: NDArray[np.uint8],
    ray_x: NDArray[np.float64],
    ray_y: NDArray[np.float64],
    origin: NDArray[np.float64],
    z_min: float,
    z_max: float,
    first: int,
    last: int,
    lower: NDArray[np.int64],
    dims: NDArray[np.int64],
    numbers: NDArray[np.int32],
    seen: NDArray[np.uint64],
    keys: NDArray[np.int64],
    place: NDArray[np.int64],
    values: NDArray[np.int16],
) -> tuple[int, int, int, int]:
    """Assign points of the rows to voxels; returns the numbers of (blocks, points in the key range, points, voxels).

    Args:
        lower, dims: (3,) box of their blocks.
        numbers: (blocks of the box,) zero; out: 1 + number of each touched block.
        seen: (blocks, 8) zero; out: bits of the touched voxels.
        keys, place, values: out, see :class:`_Points`.
    """
    blocks = 0
    points = 0
    total = 0
    touched = 0
    for v in range(first, last):
        for u in range(depth.shape[1]):
            z = np.float64(depth[v, u])
            if not (z >= z_min and z <= z_max):
                continue
            total += 1
            x = z * (ray_x[0, u] + ray_y[0, v]) + origin[0]
            y = z * (ray_x[1, u] + ray_y[1, v]) + origin[1]
            w = z * (ray_x[2, u] + ray_y[2, v]) + origin[2]
            if not (-_LIMIT <= x < _LIMIT and -_LIMIT <= y < _LIMIT and -_LIMIT <= w < _LIMIT):
                continue
            i, j, k = np.int64(np.floor(x)), np.int64(np.floor(y)), np.int64(np.floor(w))
            a, b, c = i >> OFFSET_BITS, j >> OFFSET_BITS, k >> OFFSET_BITS
            bx, by, bz = a >> BLOCK_BITS, b >> BLOCK_BITS, c >> BLOCK_BITS
            cell = ((bx - lower[0]) * dims[1] + (by - lower[1])) * dims[2] + (bz - lower[2])
            number = numbers[cell]
            if number == 0:
                keys[blocks] = pack_key(bx, by, bz)
                blocks += 1
                number = blocks
                numbers[cell] = number
            mask = BLOCK_EDGE - 1
            local = ((a & mask) << (2 * BLOCK_BITS)) | ((b & mask) << BLOCK_BITS) | (c & mask)
            place[points] = (np.int64(number - 1) << (3 * BLOCK_BITS)) | local
            values[points, HITS] = 1
            values[points, OFFSET] = i & (OFFSET_UNITS - 1)
            values[points, OFFSET + 1] = j & (OFFSET_UNITS - 1)
            values[points, OFFSET + 2] = k & (OFFSET_UNITS - 1)
            values[points, COLOR] = color[v, u, 0]
            values[points, COLOR + 1] = color[v, u, 1]
            values[points, COLOR + 2] = color[v, u, 2]
            values[points, EVIDENCE] = 0
            bit = np.uint64(1) << np.uint64(local & 63)
            word = seen[number - 1, local >> 6]
            if not word & bit:
                seen[number - 1, local >> 6] = word | bit
                values[points, EVIDENCE] = EVIDENCE_HIT
                touched += 1
            points += 1
    return blocks, points, total, touched


@njit(cache=True, nogil=True)
def settle_points(
    place: NDArray[np.int64],
    values: NDArray[np.int16],
    slots: NDArray[np.int32],
    row_of: NDArray[np.int64],
    seen: NDArray[np.uint64],
) -> tuple[int, int]:
    """Move the points whose block has a slot to the front; returns the numbers of (points, touched voxels).

    Args:
        place, values: of :class:`_Points`; out: the row of the block times 512 + place inside of it, and evidence for
            the first point of a voxel.
        slots, row_of: (B,) of the blocks; slot -1: refused.
        seen: (slots, 8) bits of the voxels that earlier bands of the image have touched; out: and this one.
    """
    kept = 0
    touched = 0
    for i in range(place.shape[0]):
        block, local = place[i] >> (3 * BLOCK_BITS), place[i] & (BLOCK_VOXELS - 1)
        slot = slots[block]
        if slot < 0:
            continue
        place[kept] = (row_of[block] << (3 * BLOCK_BITS)) | local
        for c in range(RECORD - 1):
            values[kept, c] = values[i, c]
        bit = np.uint64(1) << np.uint64(local & 63)
        values[kept, EVIDENCE] = 0
        if not seen[slot, local >> 6] & bit:
            seen[slot, local >> 6] |= bit
            values[kept, EVIDENCE] = EVIDENCE_HIT
            touched += 1
        kept += 1
    return kept, touched


class _Sight:
    """Inputs of clearing for the device.

    Image coordinates are (column, row), in pixels from the first one whose window leaves the image by one; of the
    (H', W') pixels, those on the border see through nothing.

    Attributes:
        slots: (B,) int32 blocks that may meet the frustum.
        arrays: ``far`` (H + 2, W + 2) float32 depth, infinite where unknown and around the image; ``pixels`` (H' W', 3)
            float32 own depth, nearest depth, and loss of evidence as the bits of an int32; ``local`` (512, 4) float64
            of voxels from their block's corner: image coordinates times depth, depth, and depth again; ``normal``
            (3, 3) maps a plane's inverse depth, linear in (column, row, 1), to n with n x = 1 from the camera, in world
            axes, times half a voxel.
    """

    def __init__(self, view: FrameView, config: VolumeConfig, rule: ClearingRule, blocks: BlockTable) -> None:
        T, k = view.T_camera_world, view.intrinsics
        self._edge_m = BLOCK_EDGE * config.voxel_size_m
        T_camera_block = T.copy()
        T_camera_block[:3, :3] *= self._edge_m
        limits = rule.min_range_m, rule.max_range_m
        self.slots = blocks.in_frustum(T_camera_block, view.side_planes(), *limits, 0.5 * np.sqrt(3.0) * self._edge_m)
        self._r = rule.window_px(k)
        shift = 0.5 - (self._r - 1)
        image = np.array([[k.fx, 0.0, k.cx + shift], [0.0, k.fy, k.cy + shift], [0.0, 0.0, 1.0]])
        self._to_image, self._offset = image @ T[:3, :3], image @ T[:3, 3]
        self._margin_m = rule.margin_m + rule.half_diagonal_m
        depth = self._to_image[2:]
        far, pixels = self._images(view, rule)
        self.arrays: dict[str, NDArray[Any]] = {
            "far": far, "pixels": pixels,
            "local": local_centers(config.voxel_size_m) @ np.concatenate([self._to_image, depth]).T,
            "normal": self._to_image * (0.5 * config.voxel_size_m),
        }  # fmt: skip

    def _images(self, view: FrameView, rule: ClearingRule) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        r, (height, width) = self._r, view.depth_m.shape
        size = 2 * r + 1
        near, unknown = np.empty_like(view.depth_m), np.empty(view.depth_m.shape, np.int32)
        known, missing = np.empty((size, width), np.float32), np.empty((size, width), np.int32)
        window_evidence(view.depth_m, r, near, unknown, known, missing)
        furthest = np.float32(rule.max_range_m + (self._margin_m + rule.margin_per_m2 * rule.max_range_m**2))
        far = np.full((height + 2, width + 2), np.inf, np.float32)
        pixels = np.full((height - 2 * r + 2, width - 2 * r + 2, 3), -np.inf, np.float32)
        loss = pixels.view(np.int32)
        loss[..., 2] = 0
        furthest = np.nextafter(furthest, np.float32(0))
        sight_pixels(view.depth_m, near, unknown, evidence_steps(size * size), r, furthest, far, pixels, loss)
        return far, pixels.reshape(-1, 3)

    def corners(self, coords: NDArray[np.int32]) -> NDArray[np.float64]:
        """(B, 3) block coordinates -> (B, 4) like ``local``, of their corners; the last column includes the margin."""
        placed = np.empty((len(coords), 4))
        placed[:, :3] = (coords * self._edge_m) @ self._to_image.T + self._offset
        placed[:, 3] = placed[:, 2] + self._margin_m
        return placed


@njit(cache=True, nogil=True)
def sight_pixels(
    depth: NDArray[np.float32],
    near: NDArray[np.float32],
    unknown: NDArray[np.int32],
    steps: NDArray[np.int32],
    r: int,
    furthest: float,
    far: NDArray[np.float32],
    depths: NDArray[np.float32],
    loss: NDArray[np.int32],
) -> None:
    """Arrays of pixels of :class:`_Sight`.

    Args:
        near, unknown: of ``host_map.window_evidence``.
        steps: loss of evidence by the number of unknown pixels.
        furthest: maximum of the own depth, so that voxels beyond the range are not cleared.
        far: (H + 2, W + 2) infinite; out: known depths.
        depths, loss: (H', W', 3), -inf and 0, and the same memory as int32; out: windows inside the image.
    """
    height, width = depth.shape
    for v in range(height):
        for u in range(width):
            if depth[v, u] != 0:  # infinite depth is known
                far[v + 1, u + 1] = min(depth[v, u], np.float32(3e38))
    for v in range(height - 2 * r):
        for u in range(width - 2 * r):
            depths[v + 1, u + 1, 0] = min(depth[v + r, u + r], np.float32(furthest))
            depths[v + 1, u + 1, 1] = near[v, u]
            loss[v + 1, u + 1, 2] = steps[unknown[v, u]]


def upload(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, torch.Tensor]:
    """Copy arrays to a device in one asynchronous transfer."""
    starts, end = [], 0
    for array in arrays.values():
        starts.append(end)
        end += max(-(-array.nbytes // 16), 1) * 16
    on_gpu = device.type == "cuda"
    host = torch.empty(end, dtype=torch.uint8, pin_memory=True) if on_gpu else torch.from_numpy(np.empty(end, np.uint8))
    packed = host.numpy()
    for start, array in zip(starts, arrays.values(), strict=True):
        packed[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    there = host.to(device, non_blocking=True)
    dtypes = {name: torch.from_numpy(np.empty(0, array.dtype)).dtype for name, array in arrays.items()}
    return {
        name: there[start : start + max(array.nbytes, 16)].view(dtypes[name])[: array.size].view(array.shape)
        for start, (name, array) in zip(starts, arrays.items(), strict=True)
    }


def _number(value: float, device: torch.device) -> torch.Tensor:
    """(1,) float64."""
    return constant((value,), device, torch.float64)


@lru_cache(2)
def _locals(device: torch.device) -> torch.Tensor:
    """(512, 2) int64 offsets of the voxels of a block: from the key of the block's corner, and from its first row."""
    i = np.arange(BLOCK_VOXELS)
    keys = ((i >> (2 * BLOCK_BITS)) << (2 * KEY_BITS)) | (((i >> BLOCK_BITS) & 7) << KEY_BITS) | (i & 7)
    return upload({"locals": np.stack([keys, i], 1)}, device)["locals"]


@dataclass(frozen=True, eq=False)
class _Windows:
    """Constants of windows of ``size``^2 = n pixels in an image, float64.

    Attributes:
        of_pixels, offset: (2 n, 24) and (24,): map inverse depths of paired pixels (0 elsewhere) and the mask of paired
            pixels to factors. The products of the first and last twelve columns, the first six of these minus the last
            six, are numerators (3) and denominators (3) of slopes and middle of the least-squares plane.
        minus_plane: (3, n) maps slopes and middle to the negative plane at the pixels.
        at_pixel: (H' W', 3, 3) maps them to inverse depth in (column, row, 1), see :class:`_Sight`.
    """

    of_pixels: torch.Tensor
    offset: torch.Tensor
    minus_plane: torch.Tensor
    at_pixel: torch.Tensor

    @staticmethod
    @lru_cache(4)
    def of(intrinsics: Intrinsics, r: int, device: torch.device) -> _Windows:
        """Windows of ``2 r + 1`` pixels."""
        dv, du = (a.reshape(-1).astype(np.float64) for a in np.mgrid[-r : r + 1, -r : r + 1])
        one, zero = np.ones(len(du)), np.zeros(len(du))

        def of_depth(weights: NDArray[np.float64]) -> NDArray[np.float64]:  # a sum over paired pixels
            return np.concatenate([weights, zero, [0.0]])

        def of_pairs(weights: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.concatenate([zero, weights, [0.0]])

        wu, wv, total = of_depth(du), of_depth(dv), of_depth(one)
        uu, vv, uv, count = of_pairs(du * du), of_pairs(dv * dv), of_pairs(du * dv), of_pairs(one)
        unit, none = np.concatenate([zero, zero, [1.0]]), np.concatenate([zero, zero, [0.0]])
        ones = [wu, wv, total, vv, vv, count, wv, wu, none, uv, uv, none]
        others = [vv, uu, unit, uu, uu, unit, uv, uv, none, uv, uv, none]
        factors = np.stack([*ones, *others], axis=1)
        v, u = np.mgrid[0 : intrinsics.height - 2 * r + 2, 0 : intrinsics.width - 2 * r + 2]
        at_pixel = np.broadcast_to(np.eye(3), (u.size, 3, 3)).copy()
        at_pixel[:, 0, 2], at_pixel[:, 1, 2] = -0.5 - u.reshape(-1), -0.5 - v.reshape(-1)
        minus_plane = -np.stack([du, dv, one])
        arrays = {"of_pixels": factors[:-1], "offset": factors[-1], "minus_plane": minus_plane, "at_pixel": at_pixel}
        return _Windows(**upload(arrays, device))


# --------------------------------------------------------------------------------------------------------------------


class DeviceMap:
    """:class:`~.voxels.VoxelMap` on any torch device; see the module docstring."""

    def __init__(self, config: VolumeConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self._capacity = 0
        self._voxels: torch.Tensor
        self._rows: torch.Tensor
        self._allocate(min(_FIRST_SLOTS, config.max_blocks))
        # sums of more points than the first of them are halved once, than the second twice: more than a band can need
        halvings = BAND_PIXELS.bit_length() - HITS_CAP.bit_length() + 2
        self._caps = torch.tensor([(HITS_CAP + 1) << n for n in range(halvings)], dtype=torch.int32, device=device)
        self._block_m = BLOCK_EDGE * config.voxel_size_m
        self._restart()

    def _allocate(self, capacity: int) -> None:
        """Allocate memory for ``capacity`` blocks and keep the stored ones; no change when the device has no room."""
        voxels = torch.zeros((capacity, BLOCK_VOXELS, _COLUMNS), dtype=torch.int32, device=self.device)
        if self._capacity:
            voxels[: self._capacity] = self._voxels
        self._capacity = capacity
        self._voxels, self._rows = voxels, voxels.view(-1, _COLUMNS)

    def _make_room(self) -> None:
        """Allocate memory for all slots with a block, in steps: only a large map needs its whole budget."""
        needed = self._ledger.blocks.slots_ever_used
        if needed > self._capacity:
            self._allocate(min(max(2 * self._capacity, needed), self.config.max_blocks))

    def _restart(self) -> None:
        """Start with an empty map and no frame in progress."""
        self._ledger = _Ledger(self.config.max_blocks)
        self._unwritten = np.empty(0, np.int32)  # new slots that the present frame will write

    def size(self) -> MapSize:
        self._ledger.settle()
        blocks = self._ledger.blocks
        return MapSize(len(blocks), self._ledger.stored, blocks.slots_ever_used, self._capacity)

    @property
    def is_empty(self) -> bool:
        return self._ledger.is_settled and self._ledger.stored == 0

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
        counts = self._ledger.begin()
        done.counts.append(counts)
        if not done.evicted:
            self._evict(self._ledger.blocks.beyond(center, radius), counts, "evicted_radius")
            done.evicted = True
        clock.lap("evict")
        clears = self.config.clearing and min(view.depth_m.shape) > 2 * rule.window_px(view.intrinsics)
        bands = view.bands()
        seen = np.zeros((self.config.max_blocks, _WORDS), np.uint64) if len(bands) > 1 else None
        for band in range(done.bands, len(bands)):
            points = _Points.of(view, bands[band], rule, self._block_m)
            clock.lap("points")
            slots = self._acquire(points.keys, center, radius, seen, counts)
            last = band == len(bands) - 1
            self._fuse_points(view, points, slots, seen, rule if last and clears else None, counts)
            self._unwritten = self._unwritten[:0]
            done.bands += 1
            done.cleared = last
            clock.lap("fold")
        counts.send()
        clock.lap("clear")

    def _evict(self, slots: NDArray[np.int32], counts: _Counts, reason: str) -> None:
        if len(slots):
            self._ledger.forget(slots, counts, reason)
            self._ledger.blocks.release(slots)
            self._voxels.index_fill_(0, self._tensor(slots.astype(np.int64)), 0)

    def _acquire(
        self,
        keys: NDArray[np.int64],
        center: NDArray[np.float64],
        radius: float,
        seen: NDArray[np.uint64] | None,
        counts: _Counts,
    ) -> NDArray[np.int32]:
        """(B,) slots of the blocks of a band's points, -1 = refused."""
        blocks = self._ledger.blocks
        new = blocks.lookup(keys) < 0
        if len(blocks) + int(new.sum()) > self.config.max_blocks:
            self._ledger.before(counts)  # emptied blocks make room
        acquired = blocks.acquire(keys, center, radius)
        self._unwritten = acquired.slots[new & (acquired.slots >= 0)]
        if len(acquired.evicted):
            self._ledger.forget(acquired.evicted, counts, "evicted_budget")
            if seen is not None:
                seen[acquired.evicted] = 0
            self._voxels.index_fill_(0, self._tensor(acquired.evicted.astype(np.int64)), 0)
        self._ledger.touch(acquired.slots[acquired.slots >= 0])
        self._make_room()
        return acquired.slots

    def _fuse_points(
        self,
        view: FrameView,
        points: _Points,
        slots: NDArray[np.int32],
        seen: NDArray[np.uint64] | None,
        clearing: ClearingRule | None,
        counts: _Counts,
    ) -> None:
        """Add a band's points, whose blocks are in ``slots``; then, with ``clearing``, clear seen-through voxels."""
        points = points.settled(slots, seen)
        slots, refused = slots[slots >= 0], points.total - len(points.place)
        known = {"points": points.total, "points_refused": refused, "voxels_touched": points.touched}
        blocks, of_points = self._ledger.blocks, len(slots)
        arrays: dict[str, NDArray[Any]] = {
            "at": points.place, "values": points.values, "stamp": np.array([view.stamp_ns])
        }  # fmt: skip
        if clearing is not None:
            sight = _Sight(view, self.config, clearing, blocks)
            others = np.ones(blocks.slots_ever_used, bool)
            others[slots] = False
            slots = np.concatenate([slots, sight.slots[others[sight.slots]]])
            arrays |= {**sight.arrays, "corners": sight.corners(blocks.coords_of(slots))}
        if not len(slots):
            counts.add((), lambda _: known)
            return
        frame = upload(arrays | {"slots": slots.astype(np.int64)}, self.device)
        rows = self._voxels[frame["slots"]]
        self._add_points(frame, rows[:of_points])
        numbers = [_occupied(rows)]
        if clearing is not None:
            numbers += self._clear_seen_through(frame, rows, clearing, view)
        self._voxels.index_copy_(0, frame["slots"], rows)  # everything at once
        self._ledger.expect(slots, tuple(numbers), counts, known)

    def _add_points(self, frame: Mapping[str, torch.Tensor], rows: torch.Tensor) -> None:
        """Add points to copied voxels (B, 512, 10)."""
        voxels = rows.view(-1, _COLUMNS)
        voxels[:, :RECORD].index_add_(0, frame["at"], frame["values"].int())
        halvings = torch.bucketize(rows, self._caps, out_int32=True, right=True)[..., HITS : HITS + 1]
        rows[..., :_SUMS].bitwise_right_shift_(halvings)
        rows[..., EVIDENCE].clamp_(max=EVIDENCE_MAX)
        stamps = voxels[:, RECORD:].view(torch.int64)
        stamps.scatter_reduce_(0, frame["at"][:, None], frame["stamp"].expand(len(frame["at"]), 1), "amax")

    # ------------------------------------------------------------------------------------------------------- clearing

    def _clear_seen_through(
        self, frame: Mapping[str, torch.Tensor], rows: torch.Tensor, rule: ClearingRule, view: FrameView
    ) -> list[torch.Tensor]:
        """Clear copied voxels by ``rule``; returns the numbers left in each block. Empty places stay empty."""
        fitted, left = self._window_planes(frame, rule, view.intrinsics), []
        r, (height, width) = rule.window_px(view.intrinsics), view.depth_m.shape
        lowest = constant((0, 0), self.device, torch.float64)
        border = constant((width - 2 * r + 1, height - 2 * r + 1), self.device, torch.float64)
        for first in range(0, len(rows), _CLEARED_AT_ONCE):
            voxels = rows[first : first + _CLEARED_AT_ONCE]
            image_at = frame["corners"][first : first + _CLEARED_AT_ONCE, None] + frame["local"]  # (B, 512, 4)
            z = image_at[..., 2:3]
            # voxels too near, or behind, project onto the border
            safe = torch.nn.functional.threshold(z, float(np.nextafter(rule.min_range_m, 0.0)), _FAR)
            uv = torch.clamp(torch.div(image_at[..., :2], safe, rounding_mode="floor"), lowest, border)
            pixel = torch.add(uv[..., 0], uv[..., 1], alpha=width - 2 * r + 2).long()
            depth, plane = frame["pixels"][pixel], fitted[pixel]
            limit = torch.addcmul(image_at[..., 3:], z, z, value=rule.margin_per_m2)
            beyond = depth[..., :2] > limit
            along = (plane[..., :3] * image_at[..., :3]).sum(-1, keepdim=True)  # depth as a share of the plane's
            before = (along > 0) & (along < torch.minimum(z / limit, plane[..., 3:]))
            through = (beyond[..., 1:] | before) & beyond[..., :1]
            through &= voxels[..., RECORD:].view(torch.int64) != view.stamp_ns
            evidence = voxels[..., EVIDENCE : EVIDENCE + 1]
            evidence.addcmul_(depth[..., 2:].view(torch.int32), through, value=-1)
            voxels.masked_fill_(evidence < 0, 0)
            left.append(_occupied(voxels))
        return left

    def _window_planes(
        self, frame: Mapping[str, torch.Tensor], rule: ClearingRule, intrinsics: Intrinsics
    ) -> torch.Tensor:
        """(H' W', 4) float64 of the window around each pixel: its plane's inverse depth, linear in (column, row, 1),
        and the limit on the share of the plane's depth for voxels clear in front of it (see ``host_map.before_plane``);
        NaN or negative without a plane."""
        r = rule.window_px(intrinsics)
        w = _Windows.of(intrinsics, r, self.device)
        size = 2 * r + 1
        image = torch.empty((2, *frame["far"].shape), dtype=torch.float64, device=self.device)
        inverse, known = image.unbind()
        torch.div(_number(1.0, self.device), frame["far"], out=inverse)  # 0 where unknown
        torch.sign(inverse, out=known)
        windows = image.unfold(1, size, 1).unfold(2, size, 1).permute(1, 2, 0, 3, 4).reshape(-1, 2, size * size)
        inverses = windows[:, 0]
        paired = windows * windows[:, 1:].flip(2)  # 0 for pixels without an opposite
        sums = torch.addmm(w.offset, paired.view(len(paired), -1), w.of_pixels)
        products = sums[:, :12] * sums[:, 12:]
        minors = products[:, :6] - products[:, 6:]
        fit = minors[:, :3] / minors[:, 3:]  # slopes, inverse depth in the middle; not finite without a plane
        off = torch.addmm(inverses, fit, w.minus_plane) * windows[:, 1]
        middle = inverses[:, 2 * r * (r + 1) :][:, :1]
        tolerance = torch.addcmul(_number(rule.margin_per_m2, self.device), middle, middle, value=rule.margin_m)
        flat = torch.linalg.vector_norm(off, torch.inf, 1, keepdim=True) <= tolerance  # False for NaN
        planes = torch.empty((len(fit), 4), dtype=torch.float64, device=self.device)
        plane = planes[:, :3]
        torch.bmm(fit[:, None], w.at_pixel, out=plane[:, None])
        normal = plane @ frame["normal"]  # in the world's axes, times half a voxel
        # extent of a voxel across the plane, plus the margin
        clear = torch.add(flat, torch.linalg.vector_norm(normal, 1, 1, keepdim=True), alpha=-1)
        further = -2.0 * rule.margin_m / self.config.voxel_size_m
        across = torch.linalg.vector_norm(normal, dim=1, keepdim=True)
        torch.add(clear, across, alpha=further, out=planes[:, 3:])
        return planes

    # ------------------------------------------------------------------------------------------------------ the whole

    def gather(
        self, min_hits: int, lower: NDArray[np.float64] | None = None, upper: NDArray[np.float64] | None = None
    ) -> VoxelRows:
        blocks = self._ledger.blocks
        slots = blocks.slots(lower, upper)
        slots = slots[np.isin(slots, self._unwritten, invert=True)]
        keys = pack_keys(torch.from_numpy(blocks.coords_of(slots).astype(np.int64) * BLOCK_EDGE)).numpy()
        corners = np.stack([keys, slots.astype(np.int64) * BLOCK_VOXELS], 1)
        there = upload({"slots": slots.astype(np.int64), "corners": corners}, self.device)
        block, local = torch.nonzero(self._voxels[:, :, HITS][there["slots"]] >= min_hits, as_tuple=True)
        keys_at = there["corners"][block] + _locals(self.device)[local]  # and rows
        sorted_keys, order = torch.sort(keys_at[:, 0])
        shifts = constant((2 * KEY_BITS, KEY_BITS, 0), self.device)
        coords = ((sorted_keys[:, None] >> shifts) & ((1 << KEY_BITS) - 1)) - (1 << (KEY_BITS - 1))
        rows = self._rows[keys_at[:, 1][order]]
        stamps = rows[:, RECORD:].view(torch.int64)[:, 0]
        return VoxelRows(coords.int(), rows[:, :RECORD].contiguous(), stamps.contiguous())

    def copy(self, min_hits: int) -> VoxelRows:
        rows = self.gather(min_hits)
        rows.cpu()  # if the device fails, it must be here, where the map can still be moved
        return rows

    def prepare_copy(self) -> None:
        """Do nothing: a copy needs no prepared memory."""

    def put(self, rows: VoxelRows) -> None:
        ledger = self._ledger
        block_keys, local = split_coords(rows.coords.cpu().numpy())
        distinct = np.unique(block_keys)
        ledger.blocks.acquire(distinct, np.zeros(3), np.inf)
        self._make_room()
        slots = ledger.blocks.lookup(block_keys)
        stamps = rows.last_seen_ns.to(self.device)[:, None].view(torch.int32)
        self._rows[self._tensor(slots * np.int64(BLOCK_VOXELS) + local)] = torch.cat(
            [rows.records.to(self.device), stamps], 1
        )
        np.add.at(ledger.voxels, slots, 1)
        ledger.stored = len(rows)

    def remove(self, coords: NDArray[np.int32]) -> None:
        ledger = self._ledger
        ledger.settle()
        keys, local = split_coords(coords)
        slots = ledger.blocks.lookup(keys)
        self._rows[self._tensor(slots * np.int64(BLOCK_VOXELS) + local)] = 0
        np.subtract.at(ledger.voxels, slots, 1)
        ledger.stored -= len(slots)
        touched = np.unique(slots)
        ledger.blocks.release(touched[ledger.voxels[touched] == 0])

    def clear(self) -> None:
        self._ledger.settle()  # its counts may still be read
        self._voxels.zero_()
        self._restart()

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def _occupied(rows: torch.Tensor) -> torch.Tensor:
    """(B,) int64 numbers of voxels in copied blocks."""
    return torch.count_nonzero(rows[..., HITS], dim=1)


def warm_up(view: FrameView, rule: ClearingRule) -> None:
    """Compile the rare paths: points far apart, and refused blocks."""
    band = view.bands()[0]
    point_bounds(
        view.depth_m, view.ray_x, view.ray_y, view.origin, rule.min_range_m, rule.max_range_m, *band, np.empty((2, 3))
    )
    points = _Points.of(view, band, rule, 1.0)
    points.settled(np.full(len(points.keys), -1, np.int32), None)
