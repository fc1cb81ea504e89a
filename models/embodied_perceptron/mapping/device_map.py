"""The map on a device: plain tensor operations of sizes that the host knows, so that nothing waits for the device.

The table of blocks lives there too. A frame's points lie in a box of blocks that the host works out from depth and
pose; within it a block's place in a dense grid is its hash, which never collides, and the grid tells
stored blocks from new ones. A voxel's place is then that of its block's slot, and points are added up where they fall:
nothing is sorted. Lists whose length only the device knows (what the camera may see through) are padded to a bound that
the host knows; what is beyond their end points at one more slot, which nobody reads. Bounds come from the counts of
earlier frames, which arrive when they arrive. Only where the budget of blocks may be used up does the host ask, and
decide by the rule of :class:`~.blocks.BlockTable` who stays.

What a frame changes is computed first and then written by one operation for its points and one for what it clears: when
the device fails in between, the host goes on from there (:class:`~.voxels.FusionProgress`).

Everything summed is an integer, and where a point lies is the float64 expression of ``numba_voxels.py``, in the same
order: points make the same map bit for bit. What is seen through follows the same rule by matrix products, whose last
bits may differ: that decides nothing unless a comparison is as close as 1e-12.
"""

from __future__ import annotations

import math
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
from embodied_perceptron.geometry.transforms import KEY_BITS, MAX_COORDINATE, Intrinsics, constant, pack_keys
from embodied_perceptron.mapping.blocks import (
    BLOCK_BITS,
    BLOCK_EDGE,
    BLOCK_VOXELS,
    block_coords,
    nearest,
    split_coords,
    squared_distance,
)
from embodied_perceptron.mapping.devices import is_device_fault
from embodied_perceptron.mapping.numba_voxels import local_centers
from embodied_perceptron.mapping.voxels import (
    BAND_PIXELS,
    COLOR,
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
    StageTimer,
    VoxelRows,
    evidence_step,
)

_COLUMNS = RECORD + 2  # of a stored voxel: its record, and its stamp as two int32
_SUMS = COLOR + 3  # of these columns, the first are sums
_LIMIT = float(1 << (KEY_BITS - 1 + OFFSET_BITS))
_BLOCK_UNITS = OFFSET_UNITS * BLOCK_EDGE
_FREE = 1 << 40  # x of a slot without a block
_ERASE = _FREE + 1  # x of a slot whose voxels must be erased before it is free
_USED = 1 << 30  # x of a block is less
_ERASED_AT_ONCE = 1024  # slots
_FIRST_SLOTS = 16_384  # what is allocated at first: twice what one frame may add at 5 m and voxels of 4 cm
_MAX_CELLS = 1 << 24  # of a frame's box of blocks


@dataclass(frozen=True)
class _Box:
    """Blocks that a band's points may fall into, those from ``first`` to ``last``, within a border of others: ``lower``
    and ``dims``; (3,) each."""

    lower: NDArray[np.int64]
    dims: tuple[int, int, int]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @staticmethod
    def around(low: NDArray[np.float64], high: NDArray[np.float64]) -> _Box:
        """Of points between two corners, fixed point numbers."""
        first, last = (np.floor(corner / _BLOCK_UNITS).astype(np.int64) for corner in (low, high))
        x, y, z = (_padded(n, 8) for n in (last - first + 3).tolist())  # in steps, so that tables serve many frames
        return _Box(first - 1, (x, y, z), first, last)

    @property
    def cells(self) -> int:
        """One that is no block, for pixels without a point, and the blocks, the border included."""
        x, y, z = self.dims
        return x * y * z + 1

    def within(self, center: NDArray[np.float64], radius: float) -> NDArray[np.bool_] | None:
        """(cells,) which blocks lie within ``radius`` of ``center``, in block edges; None = all."""
        squares = []
        with np.errstate(over="ignore"):  # of a camera that is nowhere near: infinite is right
            for n, low, c in zip(self.dims, self.lower, center, strict=True):
                squares.append((np.arange(n) + low + 0.5 - c) ** 2)
        x, y, z = squares
        if max(x) + max(y) + max(z) <= radius * radius:
            return None
        inside = ((x[:, None, None] + y[:, None]) + z <= radius * radius).reshape(-1)
        return np.concatenate([[False], inside])

    def coords(self) -> NDArray[np.int64]:
        """(cells, 3) of the blocks."""
        return _cell_coords(self.dims) + self.lower


class _Counts:
    """:class:`~embodied_perceptron.results.Arriving` of one frame: sent to the host together."""

    def __init__(self) -> None:
        self._parts: list[tuple[tuple[torch.Tensor, ...], Callable[..., dict[str, int]]]] = []
        self._arriving: NDArray[np.int64] | None = None
        self._event: torch.cuda.Event | None = None
        self._result: dict[str, int] | None = None

    def add(self, told: tuple[torch.Tensor, ...], read: Callable[..., dict[str, int]]) -> None:
        """Numbers on the device, (N,) int64 each, and what all of them say."""
        self._parts.append((told, read))

    def send(self) -> None:
        """No more is added: to the host, without waiting."""
        told = [tensor for part, _ in self._parts for tensor in part]
        if not told:
            return
        together = torch.cat(told)
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
        if self._result is None:
            try:
                self._result = self._read()
            except RuntimeError as error:
                self._lost(error)
            self._parts, self._arriving = [], None
        return self._result or {}

    def _read(self) -> dict[str, int]:
        if self._event is not None:
            self._event.synchronize()
        if self._arriving is None:  # the frame was not finished
            numbers = [n for part, _ in self._parts for told in part for n in told.tolist()]
        else:
            numbers = self._arriving.tolist()
        total = Counter[str]()
        for told, read in self._parts:
            count = sum(map(len, told))
            for name, value in read(*numbers[:count]).items():
                total[name] += value
            numbers = numbers[count:]
        return total

    def _lost(self, error: RuntimeError) -> bool:
        """A device that failed tells nothing any more; the map says so when it is used next."""
        if not is_device_fault(error):
            raise error
        self._result = {}
        return True


class _Frame:
    """One frame on the device, brought there by a single copy.

    Attributes:
        bands, boxes: of rows, and the blocks that their points may fall into.
        points_of: how many points each band has.
        depth, color: (H, W) and (H, W, 3) as they came.
        nothing: (H, W) bool, pixels without a point that can be stored.
        ray_x, ray_y, origin: (W, 3), (H, 1, 3) and (3,), see :class:`~.voxels.FrameView`.
        lowers, corners: (bands, 3) int64, the boxes' lowest block, and their lower corner as a point.
        of_block, offset, local: (3, 9), (9,) and (512, 3): block coordinates to its corner's place in the image and to
            its distances inside of the six sides of the frustum, widened by a block's diagonal; and the voxel centres
            from there. A place in the image is (column + 1/2, row + 1/2, 1) times depth in metres.
        normal: (3, 3) a plane's inverse depth, linear in (column + 1/2, row + 1/2, 1), to its n with n x = 1 from the
            camera, in the world's axes, times half a voxel.
        border: (2, 2) lowest and highest (column, row) that a window may be asked for.
    """

    depth: torch.Tensor
    color: torch.Tensor
    nothing: torch.Tensor
    ray_x: torch.Tensor
    ray_y: torch.Tensor
    origin: torch.Tensor
    lowers: torch.Tensor
    corners: torch.Tensor
    of_block: torch.Tensor
    offset: torch.Tensor
    local: torch.Tensor
    normal: torch.Tensor
    border: torch.Tensor

    def __init__(self, view: FrameView, config: VolumeConfig, rule: ClearingRule, device: torch.device) -> None:
        self.bands, self.intrinsics, self.stamp_ns = view.bands(), view.intrinsics, view.stamp_ns
        height, self.width = view.depth_m.shape
        r, k, T = rule.window_px(view.intrinsics), view.intrinsics, view.T_camera_world
        self.windows_fit = min(height, self.width) > 2 * r
        edge_m = BLOCK_EDGE * config.voxel_size_m
        self._reach_m, self._edge_m = rule.max_range_m, edge_m
        nothing = np.empty(view.depth_m.shape, bool)
        bounds = np.empty((2, 3))
        self.points_of, self.boxes = list[int](), list[_Box]()
        for band in self.bands:
            limits = rule.min_range_m, rule.max_range_m
            args = view.depth_m, view.ray_x, view.ray_y, view.origin, *limits, *band, nothing, bounds
            self.points_of.append(int(point_bounds(*args)))
            self.boxes.append(_Box.around(*bounds))
        self.points = sum(self.points_of)
        cells = max(box.cells for box in self.boxes)
        if cells > _MAX_CELLS:
            raise ValueError(
                f"a frame's points span {cells} blocks of {edge_m:.3f} m, more than {_MAX_CELLS}: "
                f"max_range_m={rule.max_range_m} is too much for a volume on a device"
            )
        arrays = {
            "ray_x": view.ray_x.T, "ray_y": view.ray_y.T[:, None], "origin": view.origin,
            "lowers": np.stack([box.lower for box in self.boxes]).astype(np.float64),
            "corners": np.stack([box.lower for box in self.boxes]) * _BLOCK_UNITS,
            "border": np.array([[r - 1.0, r - 1.0], [self.width - r, height - r]]),
            "depth": view.depth_m, "color": view.color, "nothing": nothing,
        }  # fmt: skip
        # distances inside of the frustum are n (x, y, z) + d
        sides = view.side_planes()
        planes = np.zeros((6, 4))
        planes[:2, [0, 2]], planes[2:4, [1, 2]] = sides[:2], sides[2:]
        planes[4:] = [0, 0, 1, -rule.min_range_m], [0, 0, -1, rule.max_range_m]
        planes[:, 3] += 0.5 * np.sqrt(3.0) * edge_m
        image = np.array([[k.fx, 0.0, k.cx + 0.5], [0.0, k.fy, k.cy + 0.5], [0.0, 0.0, 1.0]])
        to_image, to_planes = image @ T[:3, :3], planes[:, :3] @ T[:3, :3]
        offset_planes = planes[:, :3] @ T[:3, 3] + planes[:, 3] + 0.5 * edge_m * to_planes.sum(1)
        arrays |= {
            "of_block": np.concatenate([to_image, to_planes]).T * edge_m,
            "offset": np.concatenate([image @ T[:3, 3], offset_planes]),
            "local": local_centers(config.voxel_size_m) @ to_image.T,
            "normal": to_image * (0.5 * config.voxel_size_m),
        }
        for name, tensor in upload(arrays, device).items():
            setattr(self, name, tensor)

    def blocks_in_frustum(self) -> int:
        """How many blocks may meet the frustum at most: its volume, widened on all sides, in blocks."""
        k, edge_m = self.intrinsics, self._edge_m
        wider = 2.0 * np.sqrt(3.0) * edge_m  # two diagonals: of the block at its centre, and of the lattice
        deep = self._reach_m + 2 * wider
        a, b = k.width / k.fx, k.height / k.fy
        c, d = 2 * wider * np.hypot(1.0, a), 2 * wider * np.hypot(1.0, b)
        return int((a * b * deep**3 / 3 + (a * d + b * c) * deep**2 / 2 + c * d * deep) / edge_m**3) + 1


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
    nothing: NDArray[np.bool_],
    bounds: NDArray[np.float64],
) -> int:
    """Where the points of the rows from ``first`` up to ``last`` lie; how many there are, out of keys' reach or not.

    ``nothing`` (H, W) out: pixels without a point within the reach of voxel keys; ``bounds`` (2, 3) out: lowest and
    highest of the others, fixed point numbers, the camera's where there are none.
    """
    points = 0
    empty = True
    for c in range(3):
        bounds[0, c] = min(max(origin[c], -_LIMIT), _LIMIT - 1)
        bounds[1, c] = bounds[0, c]
    for v in range(first, last):
        for u in range(depth.shape[1]):
            z = np.float64(depth[v, u])
            nothing[v, u] = True
            if not (z >= z_min and z <= z_max):
                continue
            points += 1
            x = z * (ray_x[0, u] + ray_y[0, v]) + origin[0]
            y = z * (ray_x[1, u] + ray_y[1, v]) + origin[1]
            w = z * (ray_x[2, u] + ray_y[2, v]) + origin[2]
            if not (-_LIMIT <= x < _LIMIT and -_LIMIT <= y < _LIMIT and -_LIMIT <= w < _LIMIT):
                continue
            nothing[v, u] = False
            if empty:
                bounds[:, 0], bounds[:, 1], bounds[:, 2] = x, y, w
                empty = False
            bounds[0, 0], bounds[1, 0] = min(bounds[0, 0], x), max(bounds[1, 0], x)
            bounds[0, 1], bounds[1, 1] = min(bounds[0, 1], y), max(bounds[1, 1], y)
            bounds[0, 2], bounds[1, 2] = min(bounds[0, 2], w), max(bounds[1, 2], w)
    return points


def upload(arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, torch.Tensor]:
    """Arrays as tensors on a device, brought there in one copy that nothing waits for."""
    starts, end = [], 0
    for array in arrays.values():
        starts.append(end)
        end += -(-array.nbytes // 16) * 16
    on_gpu = device.type == "cuda"
    host = torch.empty(end, dtype=torch.uint8, pin_memory=True) if on_gpu else torch.from_numpy(np.empty(end, np.uint8))
    packed = host.numpy()
    for start, array in zip(starts, arrays.values(), strict=True):
        packed[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    there = host.to(device, non_blocking=True)
    dtypes = {name: torch.from_numpy(np.empty(0, array.dtype)).dtype for name, array in arrays.items()}
    return {
        name: there[start : start + array.nbytes].view(dtypes[name]).view(array.shape)
        for start, (name, array) in zip(starts, arrays.items(), strict=True)
    }


def _padded(count: int, step: int) -> int:
    """To a multiple of ``step``."""
    return -(-count // step) * step


def _cell_coords(dims: tuple[int, int, int]) -> NDArray[np.int64]:
    """(1 + blocks, 3) of a box's cells, from its lowest block; of the first, which is none, anything."""
    blocks = np.stack(np.unravel_index(np.arange(dims[0] * dims[1] * dims[2]), dims), axis=1)
    return np.concatenate([blocks[:1], blocks])


@lru_cache(8)
def _box_tables(dims: tuple[int, int, int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a box: (3, 8 * longest) what a voxel's coordinate adds to block * 512 + local, by axis, and (cells, 3)
    coordinates of its blocks from the lowest."""
    v = np.arange(max(dims) * BLOCK_EDGE)
    strides = np.array([dims[1] * dims[2], dims[2], 1])[:, None] * BLOCK_VOXELS
    axes = (v >> BLOCK_BITS) * strides + (v & (BLOCK_EDGE - 1)) * np.array([[64], [8], [1]])
    axes[0, BLOCK_EDGE:] += BLOCK_VOXELS  # points lie behind the border, and blocks behind the cell that is none
    tables = upload({"axes": axes, "blocks": _cell_coords(dims).astype(np.float64)}, device)
    return tables["axes"], tables["blocks"]


@dataclass(frozen=True, eq=False)
class _Windows:
    """Constants of windows of ``size``^2 = n pixels in an image, float64 but for ``steps``.

    Attributes:
        of_pixels, offset: (2 n, 24) and (24,): inverse depths of paired pixels (0 elsewhere), and which pixels have no
            opposite, to factors: the first twelve columns times the last, the first six of these minus the last, are
            what slopes and middle of the least-squares plane are to be divided from, and by.
        minus_plane: (3, n) of slopes and middle to their plane at the pixels, negative.
        at_pixel: (H' * W', 3, 3) the same to inverse depth in (column + 1/2, row + 1/2, 1).
        steps: (n + 1,) loss of evidence by how many pixels are unknown.
    """

    of_pixels: torch.Tensor
    offset: torch.Tensor
    minus_plane: torch.Tensor
    at_pixel: torch.Tensor
    steps: torch.Tensor

    @staticmethod
    @lru_cache(4)
    def of(intrinsics: Intrinsics, r: int, device: torch.device) -> _Windows:
        """Windows of ``2 r + 1`` pixels."""
        dv, du = (a.reshape(-1).astype(np.float64) for a in np.mgrid[-r : r + 1, -r : r + 1])
        n = len(du)
        one, zero = np.ones(n), np.zeros(n)

        def of_depth(weights: NDArray[np.float64]) -> NDArray[np.float64]:  # a sum over paired pixels
            return np.concatenate([weights, zero, [0.0]])

        def of_pairs(weights: NDArray[np.float64]) -> NDArray[np.float64]:  # of all, less those that are alone
            return np.concatenate([zero, -weights, [weights.sum()]])

        wu, wv, total = of_depth(du), of_depth(dv), of_depth(one)
        uu, vv, uv, count = of_pairs(du * du), of_pairs(dv * dv), of_pairs(du * dv), of_pairs(one)
        unit, none = np.concatenate([zero, zero, [1.0]]), np.concatenate([zero, zero, [0.0]])
        ones = [wu, wv, total, vv, vv, count, wv, wu, none, uv, uv, none]
        others = [vv, uu, unit, uu, uu, unit, uv, uv, none, uv, uv, none]
        factors = np.stack([*ones, *others], axis=1)
        v, u = np.mgrid[r : intrinsics.height - r, r : intrinsics.width - r]
        at_pixel = np.broadcast_to(np.eye(3), (u.size, 3, 3)).copy()
        at_pixel[:, 0, 2], at_pixel[:, 1, 2] = -0.5 - u.reshape(-1), -0.5 - v.reshape(-1)
        arrays = {
            "of_pixels": factors[:-1],
            "offset": factors[-1],
            "minus_plane": -np.stack([du, dv, one]),
            "at_pixel": at_pixel,
            "steps": np.array([evidence_step(unknown, n) for unknown in range(n + 1)]),
        }
        return _Windows(**upload(arrays, device))

    def number(self, value: float) -> torch.Tensor:
        """() float64."""
        return constant((value,), self.steps.device, torch.float64)[0]


class DeviceMap:
    """:class:`~.voxels.VoxelMap` on any torch device; see the module docstring."""

    def __init__(self, config: VolumeConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self._capacity = 0
        self._voxels: torch.Tensor
        self._all_coords: torch.Tensor
        self._allocate(min(_FIRST_SLOTS, config.max_blocks))
        self._counting = torch.zeros(0, dtype=torch.int32, device=device)
        self._one = torch.zeros((0, 1), dtype=torch.int64, device=device)
        self._infinity = torch.tensor(torch.inf, device=device)
        self._axes = torch.arange(3, device=device)
        # sums of more points than the first of them are halved once, than the second twice: more than a band can need
        halvings = BAND_PIXELS.bit_length() - HITS_CAP.bit_length() + 2
        self._caps = torch.tensor([(HITS_CAP + 1) << n for n in range(halvings)], device=device)
        self._block_m = BLOCK_EDGE * config.voxel_size_m
        self._restart(0, 0)

    def _allocate(self, capacity: int) -> None:
        """Room for so many blocks, with those that are there in their slots; where the device has no room for that,
        nothing has changed."""
        # two slots more than there are blocks: one is read for what is refused or only padding, and stays empty; the
        # other is written to instead
        voxels = torch.zeros((capacity + 2, BLOCK_VOXELS, _COLUMNS), dtype=torch.int32, device=self.device)
        coords = torch.full((capacity + 2, 3), float(_FREE), dtype=torch.float64, device=self.device)
        owner = torch.empty((capacity + 2) * BLOCK_VOXELS, dtype=torch.int32, device=self.device)
        slots = torch.arange(capacity + 1, device=self.device)
        nowhere = torch.tensor([capacity + 1, (capacity + 1) * BLOCK_VOXELS], device=self.device)
        if self._capacity:
            voxels[: self._capacity] = self._voxels[: self._capacity]
            coords[: self._capacity] = self._all_coords[: self._capacity]
        self._capacity = capacity
        self._voxels, self._rows = voxels, voxels.view(-1, _COLUMNS)
        self._all_coords, self._coords = coords, coords[:-1]  # whole numbers: of the blocks in the slots
        self._owner = owner  # scratch
        self._slots = slots
        self._nowhere, self._nowhere_voxel = nowhere.unbind()

    def _ensure_room(self, more: int) -> tuple[int, int]:
        """For so many blocks more, within the budget; slots of blocks and voxels that are taken at most.

        Memory is taken in steps, for only a large map needs that of its whole budget. Before a step the host asks what
        the frames under way have added, which is mostly far less than what they could have.
        """
        blocks, voxels = self._bounds()
        if self._capacity < self.config.max_blocks and blocks + more > self._capacity:
            while self._pending:
                self._take(self._pending.popleft()[0])
            blocks, voxels = self._bounds()
            if blocks + more > self._capacity:
                self._allocate(min(max(2 * self._capacity, blocks + more), self.config.max_blocks))
        return blocks, voxels

    def _restart(self, blocks: int, voxels: int) -> None:
        """Nothing is under way: there are so many."""
        self._known = blocks, voxels
        self._pending: deque[tuple[_Counts, int, int]] = deque()  # frames, with what they added at most
        self._reach = np.full(3, np.inf), np.full(3, -np.inf)  # of blocks ever stored: lowest and highest
        self._to_erase = 0  # slots at most

    # ----------------------------------------------------------------------------------------- what the host knows

    def _bounds(self) -> tuple[int, int]:
        """Slots of blocks and voxels that are taken at most, without asking the device."""
        while self._pending and self._pending[0][0].ready():
            self._take(self._pending.popleft()[0])
        blocks, voxels = self._known
        for _, more_blocks, more_voxels in self._pending:
            blocks, voxels = blocks + more_blocks, voxels + more_voxels
        blocks = min(blocks, self.config.max_blocks)
        return blocks, min(voxels, blocks * BLOCK_VOXELS)

    def _take(self, counts: _Counts) -> None:
        told, (blocks, voxels) = counts.result(), self._known
        self._known = blocks + told.get("blocks", 0), voxels + told.get("voxels", 0)

    def size(self) -> MapSize:
        used = self._coords[:-1, 0] < _USED
        slots = used.nonzero()[:, 0]
        voxels = int((self._voxels[slots, :, HITS] > 0).sum())
        return MapSize(len(slots), voxels, int(slots.max()) + 1 if len(slots) else 0, self._capacity)

    @property
    def is_empty(self) -> bool:
        self._bounds()
        return self._known[0] == 0 and not self._pending

    # ------------------------------------------------------------------------------------------------------ one frame

    def fuse(
        self,
        view: FrameView,
        center_m: NDArray[np.float64],
        rule: ClearingRule,
        done: FusionProgress,
        clock: StageTimer,
    ) -> None:
        frame = _Frame(view, self.config, rule, self.device)
        most = [
            min(n, box.cells, frame.blocks_in_frustum()) for n, box in zip(frame.points_of, frame.boxes, strict=True)
        ]
        blocks, voxels = self._ensure_room(sum(most[done.bands :]))
        counts = _Counts()
        done.counts.append(counts)
        center, radius = center_m / self._block_m, self.config.radius_m / self._block_m
        everything = self.config.max_blocks, self.config.max_blocks * BLOCK_VOXELS
        self._pending.append((counts, *everything))  # until the frame is through
        if not done.evicted:
            self._evict(center, radius, counts)
            done.evicted = True
            self._erase_evicted(counts)
        clock.lap("evict")
        added = 0
        for band in range(done.bands, len(frame.boxes)):
            box, more = frame.boxes[band], most[band]
            room = blocks + more > self._capacity
            self._add_points(frame, box.within(center, radius), (center, radius) if room else None, done, counts)
            blocks, added = min(blocks + more, self._capacity), added + more
            clock.lap("points")
        voxels = min(voxels + frame.points, blocks * BLOCK_VOXELS)
        if not done.cleared and self.config.clearing and frame.windows_fit:
            self._clear_seen_through(frame, rule, (blocks, voxels), done, counts)
        done.cleared = True
        counts.send()
        self._pending[-1] = counts, min(added, self._capacity), frame.points
        clock.lap("clear")

    def _evict(self, center: NDArray[np.float64], radius: float, counts: _Counts) -> None:
        """Blocks out of the radius; erased by and by."""
        low, high = self._reach
        furthest = np.maximum(np.abs(low + 0.5 - center), np.abs(high + 0.5 - center))
        if (low <= high).all() and math.hypot(*furthest) > radius:
            at = self._coords[:-1] + 0.5 - self._tensor(center)
            square = at * at
            beyond = (square[:, 0] + square[:, 1]) + square[:, 2] > radius * radius
            beyond &= self._coords[:-1, 0] < _USED
            told = (beyond.sum()[None],)
            self._coords[:-1].masked_fill_(beyond[:, None], _ERASE)
            counts.add(told, lambda evicted: {"evicted_radius": evicted})
            self._reach = np.maximum(low, np.floor(center - radius)), np.minimum(high, np.ceil(center + radius))
            self._to_erase = self._capacity

    def _erase_evicted(self, counts: _Counts) -> None:
        """Some of the slots whose blocks were out of the radius, which takes room until then."""
        if self._to_erase > 0:
            dirty = (self._coords[:-1, 0] == _ERASE).cumsum(0, dtype=torch.int32)
            slots = torch.searchsorted(dirty, self._numbers(_ERASED_AT_ONCE + 1)[1:])
            removed, erased = (self._voxels[:, :, HITS][slots] > 0).sum(), (slots < self._capacity).sum()
            self._voxels.index_fill_(0, slots, 0)
            self._coords.index_fill_(0, slots, _FREE)
            told = removed[None], erased[None]
            counts.add(told, lambda removed, erased: {"voxels": -removed, "blocks": -erased})
            self._to_erase -= _ERASED_AT_ONCE

    def _add_points(
        self,
        frame: _Frame,
        inside: NDArray[np.bool_] | None,
        room_within: tuple[NDArray[np.float64], float] | None,
        done: FusionProgress,
        counts: _Counts,
    ) -> None:
        """The next band's points, summed up by voxel.

        ``inside``: blocks of the box that may be stored, None = all; ``room_within``: centre and radius by which to
        make room, where it may be short.
        """
        band = done.bands
        box, rows = frame.boxes[band], slice(*frame.bands[band])
        # (H, W, 3) fixed point from the box's lower corner; pixels without a point lie in its first, unused block
        z = frame.depth[rows].double()[..., None]
        fixed = torch.floor(z * (frame.ray_x + frame.ray_y[rows]) + frame.origin).long()
        place = (fixed - frame.corners[band]).masked_fill_(frame.nothing[rows][..., None], 0)
        axes, blocks = _box_tables(box.dims, self.device)
        voxel = axes[self._axes, place >> OFFSET_BITS].sum(-1).view(-1)  # block * 512 + local
        cell = voxel >> (3 * BLOCK_BITS)

        slot_of = self._slots_of(box, frame.lowers[band])
        unwanted = torch.ones(box.cells, dtype=torch.bool, device=self.device)
        unwanted.scatter_(0, cell, frame.nothing[rows].view(-1))
        fresh = (slot_of == self._capacity) > unwanted
        if inside is not None:
            fresh &= self._tensor(inside)
        if room_within is not None:
            fresh, slot_of = self._make_room(box, fresh, slot_of, room_within, counts)
        rank = fresh.cumsum(0)
        free = (self._coords[:-1, 0] == _FREE).cumsum(0)
        new = torch.searchsorted(free, rank)  # the slots that are free, one after the other; then the unused one
        slot_of = torch.where(fresh, new, slot_of)
        self._all_coords.index_copy_(0, torch.where(fresh, new, self._nowhere), blocks + frame.lowers[band])
        self._reach = np.minimum(self._reach[0], box.first), np.maximum(self._reach[1], box.last)

        at = torch.add(voxel & (BLOCK_VOXELS - 1), slot_of[cell], alpha=BLOCK_VOXELS)  # (N,) of all voxels
        pixels = len(at)
        numbers = self._numbers(pixels)
        ones = self._ones(pixels)
        values = torch.cat([ones, (place & (OFFSET_UNITS - 1)).view(-1, 3), frame.color[rows].view(-1, 3)], 1)
        self._owner.scatter_(0, at, numbers)  # of the pixels of a voxel, one
        owner = self._owner[at]
        sums = torch.zeros((pixels, _SUMS), dtype=torch.int64, device=self.device).index_add_(0, owner, values)
        old = self._rows[at]
        stored = at < self._capacity * BLOCK_VOXELS
        mine = stored & (owner == numbers)
        born = mine & (old[:, HITS] == 0)
        sums += old[:, :_SUMS]
        sums >>= torch.bucketize(sums[:, :1].contiguous(), self._caps, right=True)
        stamps = old[:, RECORD:].view(torch.int64)
        evidence = old[:, EVIDENCE : EVIDENCE + 1]
        touched = mine
        if band == 0:
            evidence = (evidence + EVIDENCE_HIT).clamp_(max=EVIDENCE_MAX)
        else:
            again = stamps == frame.stamp_ns
            touched = mine & (born | ~again[:, 0])
            evidence = torch.clamp(evidence + EVIDENCE_HIT * touched[:, None], max=EVIDENCE_MAX)
        stamps = stamps.clamp(min=frame.stamp_ns).view(torch.int32)
        changed = torch.cat([sums, evidence, stamps], 1).int()
        points = frame.points_of[band]
        told = torch.stack([stored, touched, born]).sum(1), rank[-1:], free[-1:]
        # none of the band's points is in the map before this, and all are after
        self._rows.index_copy_(0, torch.where(mine, at, self._nowhere_voxel), changed)
        done.bands += 1
        counts.add(
            told,
            lambda stored, touched, born, wanted, free: {
                "points": points, "points_refused": points - stored, "voxels_touched": touched, "voxels": born,
                "blocks": min(wanted, free),
            },
        )  # fmt: skip

    def _slots_of(self, box: _Box, lower: torch.Tensor) -> torch.Tensor:
        """(cells,) slot of each block of the box; the unused one where none is stored. The first cell
        is no block."""
        low, high, strides, one = self._corners(box.dims)
        cell = torch.addmv(one, torch.clamp(self._coords - lower, low, high), strides).long()  # others in the border
        slot_of = torch.full((box.cells,), self._capacity, dtype=torch.int64, device=self.device)
        slot_of.scatter_(0, cell, self._slots)
        return slot_of

    def _make_room(
        self,
        box: _Box,
        fresh: torch.Tensor,
        slot_of: torch.Tensor,
        within: tuple[NDArray[np.float64], float],
        counts: _Counts,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Evict the blocks that must make room for nearer ones; ``fresh`` and ``slot_of`` after that.

        The host asks how many there are, and where they are too many it decides as :class:`~.blocks.BlockTable`.
        """
        coords = self._coords[:-1].cpu().numpy().astype(np.int64)
        missing = fresh.cpu().numpy().nonzero()[0]
        stored = np.flatnonzero(coords[:, 0] < _USED)
        free = int((coords[:, 0] == _FREE).sum())
        if len(missing) <= free:
            return fresh, slot_of
        if free + len(stored) < self._capacity:  # some wait to be erased
            evicted = np.flatnonzero(coords[:, 0] == _ERASE)
            voxels = self._erase(evicted)
            counts.add((), lambda: {"blocks": -len(evicted), "voxels": -voxels})
        candidates = np.concatenate([coords[stored], box.coords()[missing]])
        keep = np.ones(len(candidates), bool)
        if len(candidates) > self._capacity:
            keys = pack_keys(torch.from_numpy(candidates)).numpy()
            keep = nearest(squared_distance(candidates, within[0]), keys, self._capacity)
        lost, refused = stored[~keep[: len(stored)]], missing[~keep[len(stored) :]]
        removed = self._erase(lost)
        counts.add((), lambda: {"evicted_budget": len(lost), "blocks": -len(lost), "voxels": -removed})
        gone = torch.isin(slot_of, self._tensor(lost))
        return fresh.index_fill(0, self._tensor(refused), False), slot_of.masked_fill(gone, self._capacity)

    def _erase(self, slots: NDArray[np.int64]) -> int:
        """Empty whole blocks, and forget them; returns how many voxels they held."""
        at = self._tensor(slots)
        removed = int((self._voxels[:, :, HITS][at] > 0).sum())
        self._voxels.index_fill_(0, at, 0)
        self._coords.index_fill_(0, at, _FREE)
        return removed

    # ------------------------------------------------------------------------------------------------------- clearing

    def _clear_seen_through(
        self, frame: _Frame, rule: ClearingRule, most: tuple[int, int], done: FusionProgress, counts: _Counts
    ) -> None:
        """By ``rule``; ``most``: how many blocks and voxels there are at most."""
        # (C + 1, 9) corners of the blocks in the image, and whether they meet the frustum
        placed = torch.addmm(frame.offset, self._coords, frame.of_block)
        visible = (placed[:-1, 3:] >= 0).all(1)
        most_blocks = _padded(min(most[0], frame.blocks_in_frustum()), 256)
        slots = torch.searchsorted(visible.cumsum(0, dtype=torch.int32), self._numbers(most_blocks + 2)[1:])
        occupied = self._voxels[:, :, HITS][slots[:-1]] > 0  # (most_blocks, 512)
        most_voxels = _padded(min(most[1], most_blocks * BLOCK_VOXELS), 4096)
        place = torch.searchsorted(occupied.view(-1).cumsum(0, dtype=torch.int32), self._numbers(most_voxels + 1)[1:])
        slot, local = slots[place >> (3 * BLOCK_BITS)], place & (BLOCK_VOXELS - 1)
        at = torch.add(local, slot, alpha=BLOCK_VOXELS)
        rows = self._rows[at]  # (V, 10), of the unused slot behind the last one

        image_at = placed[:, :3][slot] + frame.local[local]
        z = image_at[:, 2:]
        safe = z.clamp(rule.min_range_m, rule.max_range_m)
        uv = torch.clamp(torch.floor(image_at[:, :2] / safe), *frame.border)
        pixel = torch.add(uv[:, 0], uv[:, 1], alpha=frame.width).long()
        seen = self._window_maps(frame, rule)[pixel]  # (V, 7)
        limit = torch.addcmul(safe, safe, safe, value=rule.margin_per_m2) + (rule.margin_m + rule.half_diagonal_m)
        beyond = seen[:, 4:6] > limit  # (V, 2) the pixel's own depth, and the nearest
        along = (seen[:, :3] * image_at).sum(1, keepdim=True)  # the voxel's depth, as a share of the plane's there
        before = (along > 0) & (along * limit < safe) & (along < seen[:, 3:4])
        through = (beyond[:, 1:] | before) & beyond[:, :1] & (z == safe)
        through &= rows[:, RECORD:].view(torch.int64) != frame.stamp_ns
        evidence = rows[:, EVIDENCE : EVIDENCE + 1]
        evidence -= (seen[:, 6:] * through).int()
        gone = evidence < 0
        rows.masked_fill_(gone, 0)
        left = torch.zeros(self._capacity + 1, dtype=torch.int32, device=self.device).index_add_(0, slot, rows[:, HITS])
        emptied = (left[:-1] == 0) & visible
        told = gone.sum()[None], emptied.sum()[None]
        self._rows.index_copy_(0, at, rows)  # all of it at once
        done.cleared = True
        counts.add(told, lambda cleared, blocks: {"voxels_cleared": cleared, "voxels": -cleared, "blocks": -blocks})
        self._coords[:-1].masked_fill_(emptied[:, None], _FREE)

    def _window_maps(self, frame: _Frame, rule: ClearingRule) -> torch.Tensor:
        """(H * W, 7) float64 of the window around each pixel, 0 where it leaves the image.

        Columns 0..2: its plane's inverse depth, linear in (column + 1/2, row + 1/2, 1); 3: what the share of the
        plane's depth must stay below, so that a voxel lies clear of it, -inf where there is no plane (see
        ``numba_voxels.before_plane``); 4, 5: the pixel's own and the nearest known depth, 6: loss of evidence of what
        is seen through.
        """
        r = rule.window_px(frame.intrinsics)
        w = _Windows.of(frame.intrinsics, r, self.device)
        size = 2 * r + 1

        def windows(image: torch.Tensor) -> torch.Tensor:
            return image.unfold(0, size, 1).unfold(1, size, 1)  # (H', W', size, size), a view

        unknown = frame.depth == 0
        far = torch.where(unknown, self._infinity, frame.depth)
        nearest_m = windows(far).amin((-2, -1))
        missing = windows(unknown).reshape(-1, size * size)
        step = w.steps[missing.sum(1)]
        inverses = windows(far.double().reciprocal_()).reshape(-1, size * size)  # 0 where unknown
        lone = missing | missing.flip(1)  # pixels without an opposite
        sums = torch.addmm(w.offset, torch.cat([inverses.masked_fill(lone, 0.0), lone], 1), w.of_pixels)
        products = sums[:, :12] * sums[:, 12:]
        minors = products[:, :6] - products[:, 6:]
        fit = minors[:, :3] / minors[:, 3:]  # slopes, and inverse depth in the middle; not finite without a plane
        off = torch.addmm(inverses, fit, w.minus_plane).abs_().masked_fill_(missing, 0.0)
        middle = inverses[:, 2 * r * (r + 1) :][:, :1]
        tolerance = torch.addcmul(w.number(rule.margin_per_m2), middle, middle, value=rule.margin_m)
        flat = (off <= tolerance).all(1, keepdim=True)  # nothing compares with what is no number
        plane = (fit[..., None] * w.at_pixel).sum(1)
        normal = plane @ frame.normal  # in the world's axes, times half a voxel
        # a voxel's corner reaches this far across the plane, and the margin further
        reach = torch.add(
            torch.linalg.vector_norm(normal, 1, dim=1, keepdim=True),
            torch.linalg.vector_norm(normal, dim=1, keepdim=True),
            alpha=2.0 * rule.margin_m / self.config.voxel_size_m,
        )
        clear = torch.where(flat, 1.0 - reach, w.number(-torch.inf))
        own = frame.depth[r:-r, r:-r].reshape(-1, 1)
        maps = torch.cat([plane, clear, own, nearest_m.view(-1, 1), step.view(-1, 1)], 1)
        return torch.nn.functional.pad(maps.view(*nearest_m.shape, 7), (0, 0, r, r, r, r)).view(-1, 7)

    # ------------------------------------------------------------------------------------------------------ the whole

    def gather(
        self, min_hits: int, lower: NDArray[np.float64] | None = None, upper: NDArray[np.float64] | None = None
    ) -> VoxelRows:
        most = _padded(self._bounds()[0], 256)
        used = self._coords[:-1, 0] < _USED
        if lower is not None and upper is not None and not np.isinf([lower, upper]).all():
            used &= ((self._coords[:-1] + 1 > self._tensor(lower)) & (self._coords[:-1] < self._tensor(upper))).all(1)
        slots = torch.searchsorted(used.cumsum(0, dtype=torch.int32), self._numbers(most + 1)[1:])
        block, local = torch.nonzero(self._voxels[:, :, HITS][slots] >= min_hits, as_tuple=True)
        slot = slots[block]
        low = (local[:, None] >> constant((2 * BLOCK_BITS, BLOCK_BITS, 0), self.device)) & (BLOCK_EDGE - 1)
        voxel = torch.add(low, self._coords[slot].long(), alpha=BLOCK_EDGE)
        order = torch.argsort(pack_keys(voxel))
        rows = self._rows[torch.add(local, slot, alpha=BLOCK_VOXELS)[order]]
        stamps = rows[:, RECORD:].view(torch.int64)[:, 0]
        return VoxelRows(voxel[order].int(), rows[:, :RECORD].contiguous(), stamps.contiguous())

    def copy(self, min_hits: int) -> VoxelRows:
        rows = self.gather(min_hits)
        rows.cpu()  # what is shown reads them there; a device fails here, where the map can still be moved
        return rows

    def put(self, rows: VoxelRows) -> None:
        block_keys, local = split_coords(rows.coords.cpu().numpy())
        distinct, slot = np.unique(block_keys, return_inverse=True)
        coords = block_coords(distinct)
        if len(coords) > self._capacity:
            self._allocate(len(coords))
        self._coords[: len(distinct)] = self._tensor(coords)
        stamps = rows.last_seen_ns.to(self.device)[:, None].view(torch.int32)
        self._rows[self._tensor(slot * BLOCK_VOXELS + local)] = torch.cat([rows.records.to(self.device), stamps], 1)
        self._restart(len(distinct), len(rows))
        if len(coords):
            self._reach = coords.min(0), coords.max(0)

    def remove(self, coords: NDArray[np.int32]) -> None:
        there = (
            pack_keys(self._coords[:-1].clamp(max=MAX_COORDINATE).long()).cpu().numpy()
        )  # of no block, for free ones
        order = np.argsort(there)
        keys, local = split_coords(coords)
        slot = order[np.searchsorted(there, keys, sorter=order)]
        self._rows[self._tensor(slot * BLOCK_VOXELS + local)] = 0
        touched = self._tensor(np.unique(slot))
        emptied = touched[(self._voxels[:, :, HITS][touched] == 0).all(1)]
        self._coords[emptied] = _FREE
        self._known = self._bounds()
        self._pending.clear()

    def clear(self) -> None:
        self._voxels.zero_()
        self._coords.fill_(_FREE)
        self._restart(0, 0)

    # ------------------------------------------------------------------------------- constants, brought there once

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _numbers(self, count: int) -> torch.Tensor:
        """(count,) int32 from 0 on."""
        if len(self._counting) < count:
            self._counting = torch.arange(2 * count, dtype=torch.int32, device=self.device)
        return self._counting[:count]

    def _ones(self, count: int) -> torch.Tensor:
        """(count, 1) int64."""
        if len(self._one) < count:
            self._one = torch.ones((count, 1), dtype=torch.int64, device=self.device)
        return self._one[:count]

    def _corners(self, dims: tuple[int, int, int]) -> tuple[torch.Tensor, ...]:
        """Of a box: its lowest block, its last, how far blocks lie apart in the dense grid."""
        x, y, z = dims
        corners = (0, 0, 0), (x - 1, y - 1, z - 1), (y * z, z, 1), (1,)
        return tuple(constant(n, self.device, torch.float64) for n in corners)
