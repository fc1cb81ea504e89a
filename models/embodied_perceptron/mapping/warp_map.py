"""The map on a device: a hash table of blocks and voxel records in its memory, changed by kernels of NVIDIA Warp.

A frame is uploaded once and takes seven kernels: ``erase_blocks`` (eviction), ``rebuild_table``, ``touch_blocks``,
``allocate_blocks``, ``accumulate``, ``merge`` and ``clear_blocks``; its counts are copied to the host. The host never
waits for the device, except to give the map more memory, and with a spill, which needs the evicted voxels. The table is
built anew from the stored blocks at the start of every frame, at most half full: nothing is ever deleted from it.

The host knows an upper bound of the blocks: those of the last frame whose counts arrived, plus the most that the frames
since then can add. Where it exceeds ``max_blocks``, the nearest ones are selected on the device.

All sums are integers, and the float64 expressions are those of ``host_map.py``: the map is the same bit for bit. A
launch that fails changes nothing. The last launches of a stage are repeated before the map is read, so that
:class:`~.voxels.FusionProgress` always names what the map holds, and fusion continues from there on the CPU.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import warp as wp
from numpy.typing import NDArray

from embodied_perceptron.config import VolumeConfig
from embodied_perceptron.geometry.compute_path import launch, runs_compiled
from embodied_perceptron.geometry.transforms import unpack_keys
from embodied_perceptron.mapping import warp_kernels as kernels
from embodied_perceptron.mapping.blocks import (
    BLOCK_EDGE,
    BLOCK_VOXELS,
    BlockTable,
    block_coords,
    split_coords,
    squared_distance,
)
from embodied_perceptron.mapping.devices import first_line, is_device_fault
from embodied_perceptron.mapping.host_map import bring_back, evidence_steps, local_centers
from embodied_perceptron.mapping.spill import Blocks, BlockSpill
from embodied_perceptron.mapping.voxels import (
    HITS,
    PACKED,
    RECORD,
    ClearingRule,
    FrameView,
    FusionProgress,
    HostCopy,
    MapSize,
    StageClock,
    VoxelMap,
    VoxelRows,
)

_FIRST_SLOTS = 16_384  # what is allocated at first: twice what one frame may add at 5 m and voxels of 4 cm
_TABLE = "keys count free table_keys table_slots shift center limit limit_key counters"  # arguments
_LAST_KEY = np.iinfo(np.int64).max
Array = NDArray[Any]


class _Counts:
    """:class:`~embodied_perceptron.results.Arriving` counts of one frame."""

    def __init__(self, ledger: _Ledger, there: torch.Tensor, most_new: int, points: int) -> None:
        """``there``: counters on the device; ``most_new``, ``points``: bounds of the blocks and voxels that the frame
        adds."""
        self._ledger, self._there, self.most_new, self.points = ledger, there, most_new, points
        self._copy: HostCopy | None = None
        self._result: dict[str, int] | None = None

    def send(self) -> None:
        """Send the counters to the host, without waiting."""
        self._copy = HostCopy(self._there)

    def ready(self) -> bool:
        if self._result is not None or self._copy is None:
            return True
        try:
            return self._copy.ready()
        except RuntimeError as error:
            return self._lost(error)

    def result(self) -> Mapping[str, int]:
        self._ledger.settle(self)
        return self._result or {}

    def read(self) -> None:
        """Enter the arrived counts into the ledger, after those of earlier frames."""
        if self._result is not None:
            return
        try:
            counters = (self._copy or HostCopy(self._there)).read()  # None: the frame was not finished
        except RuntimeError as error:
            self._lost(error)
            return
        c = counters.tolist()
        self._result = {
            "points": c[kernels.POINTS],
            "points_refused": c[kernels.POINTS] - c[kernels.ADDED],
            "voxels_touched": c[kernels.TOUCHED],
            "voxels_cleared": c[kernels.CLEARED],
            "evicted_radius": c[kernels.RADIUS],
            "evicted_budget": c[kernels.BUDGET],
        }
        self._ledger.blocks, self._ledger.voxels = c[kernels.BLOCKS], c[kernels.VOXELS]
        self._ledger.most_blocks = max(self._ledger.most_blocks, c[kernels.BLOCKS])

    def _lost(self, error: RuntimeError) -> bool:
        """Give up the counts of a failed device; the next use of the map reports the failure."""
        if not is_device_fault(error):
            raise error
        self._result = {}
        return True


class _Ledger:
    """Sizes known to the host, of the last frame whose counts arrived. Holds no memory of the map.

    Attributes:
        blocks, voxels: stored ones; ``blocks`` counts some that clearing emptied.
        most_blocks: the most blocks so far.
        pending: counts of frames in progress, oldest first.
    """

    def __init__(self) -> None:
        self.blocks, self.voxels, self.most_blocks = 0, 0, 0
        self.pending: deque[_Counts] = deque()

    @property
    def bound(self) -> int:
        """The most blocks that may be stored; does not wait."""
        while self.pending and self.pending[0].ready():
            self.pending.popleft().read()
        return self.blocks + sum(counts.most_new for counts in self.pending)

    @property
    def most_voxels(self) -> int:
        """The most voxels that may be stored, but for those that the spill gave back; does not wait."""
        return self.voxels + sum(counts.points for counts in self.pending)

    @property
    def is_settled(self) -> bool:
        """Whether no frame is in progress; does not wait."""
        return self.bound >= 0 and not self.pending

    def settle(self, last: _Counts | None = None) -> None:
        """Wait for the counts of all frames, or of those up to ``last``."""
        if last is not None and last not in self.pending:
            return
        while self.pending:
            counts = self.pending.popleft()
            counts.read()
            if counts is last:
                return


class WarpMap(VoxelMap):
    """:class:`~.voxels.VoxelMap` on a CUDA device, and on the CPU for tests; see the module docstring.

    Raises ``ImportError`` where Warp cannot use the device, ``RuntimeError`` where the device has no room.
    """

    def __init__(self, config: VolumeConfig, device: torch.device, spill: BlockSpill | None = None) -> None:
        self.config, self.device, self._spill = config, device, spill
        try:
            wp.init()
            self._where = wp.device_from_torch(device)
            wp.load_module(kernels, device=self._where)  # compiled here, not in the first frame
        except Exception as error:  # Warp raises what its compilers raise
            if is_device_fault(error):
                raise
            raise ImportError(f"warp-lang does not work on {device}: {first_line(error)}") from error
        self._block_m, self._centers = BLOCK_EDGE * config.voxel_size_m, local_centers(config.voxel_size_m)
        self._capacity = 0
        self._arrays: dict[str, torch.Tensor] = {}
        self._ledger = _Ledger()
        self._unfinished: deque[Callable[[], None]] = deque()  # launches that complete a stage
        self._allocate(min(_FIRST_SLOTS, config.max_blocks))
        self._size_scratch(0, 0)

    def _allocate(self, capacity: int) -> None:
        """Allocate memory for ``capacity`` blocks and keep the stored ones; no change when the device has no room."""
        shapes: dict[str, tuple[int, ...]] = {"keys": (capacity,), "count": (capacity,), "free": (capacity,)}
        shapes |= {"records": (capacity * BLOCK_VOXELS, RECORD), "last_seen": (capacity * BLOCK_VOXELS,)}
        arrays = {}
        for name, shape in shapes.items():
            dtype = torch.int64 if name in ("keys", "last_seen") else torch.int32
            arrays[name] = torch.zeros(shape, dtype=dtype, device=self.device)
            if name == "keys":
                arrays[name].fill_(-1)
            if name in self._arrays:
                arrays[name][: len(self._arrays[name])] = self._arrays[name]
        self._arrays, self._capacity = arrays, capacity
        self._keys, self._count = arrays["keys"], arrays["count"]
        self._records, self._last_seen = arrays["records"], arrays["last_seen"]
        self._warp = _described(arrays)

    def _size_scratch(self, pixels: int, new: int) -> None:
        """Memory of a band of ``pixels``, and of a hash table for the stored blocks and ``new`` ones."""
        bits = max(8, (2 * (self._capacity + new) - 1).bit_length())
        sizes = {"at": pixels, "listed": pixels, "wanted": new, "table_keys": 1 << bits, "table_slots": 1 << bits}
        scratch = {
            name: torch.empty(max(n, 1), dtype=torch.int64 if name == "table_keys" else torch.int32, device=self.device)
            for name, n in sizes.items()
        }
        self._shift, self._pixels, self._new = 64 - bits, pixels, new
        self._table = scratch["table_keys"]
        self._warp |= _described(scratch)

    def _make_room(self, pixels: int, new: int) -> bool:
        """Give the map memory for ``new`` blocks more; returns whether they may exceed the budget."""
        blocks = self._ledger.bound + new
        grows = blocks > self._capacity < self.config.max_blocks
        if grows:
            self._ledger.settle()
            blocks = self._ledger.blocks + new
            self._hold(blocks)
        if pixels > self._pixels or new > self._new:
            self._size_scratch(max(pixels, self._pixels), max(new, self._new))
        return blocks > self._capacity

    def _launch(self, kernel: wp.Kernel, dim: int | tuple[int, ...], names: str, given: Mapping[str, Any]) -> None:
        """Launch a kernel; ``names`` of its arguments: of the map, or of those ``given``."""
        inputs = (given[name] if name in given else self._warp[name] for name in names.split())
        launch(kernel, dim, *inputs, device=self.device)

    def _finish(self) -> None:
        """Complete a stage whose first launch succeeded."""
        while self._unfinished:
            self._unfinished[0]()
            self._unfinished.popleft()

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
        bands, (height, width) = view.bands(), view.depth_m.shape
        pixels = max(last - first for first, last in bands) * width
        new = min(height * width, most_blocks(view, rule, self._block_m))
        selects = self._make_room(pixels, new)
        counters = torch.zeros(kernels.COUNTERS, dtype=torch.int32, device=self.device)
        counts = _Counts(self._ledger, counters, new, height * width)
        frame = self._upload(view, center, radius, rule) | _described({"counters": counters})
        frame |= {"shift": self._shift, "all_counters": counters}
        self._ledger.pending.append(counts)
        done.counts.append(counts)
        if not done.evicted:
            selects |= self._evict(frame, center, radius, done, new)
        clock.lap("evict")
        image = "depth color ray_x ray_y origin limits first"
        for first, last in bands[done.bands :]:
            frame["first"], band = first, (last - first, width)
            if first:
                counters[kernels.WANTED :].zero_()
            self._launch(
                kernels.touch_blocks, band, image.replace("color ", "") + " shift table_keys at wanted counters", frame
            )
            if selects:
                self._select(frame, new, center, radius)
            limit = "center limit limit_key counters"
            self._launch(kernels.allocate_blocks, new, f"keys free table_keys table_slots wanted {limit}", frame)
            self._launch(kernels.accumulate, band, f"{image} at table_slots records listed counters", frame)
            done.bands += 1
            points, names = (
                frame | {"first_band": first == 0},
                "listed stamp first_band records last_seen count counters",
            )
            self._unfinished.append(partial(self._launch, kernels.merge, band[0] * width, names, points))
            self._finish()
            clock.lap("points")
        if self.config.clearing:
            names = "keys local edge_m sphere_m T k limits margins planes depth steps r each stamp records last_seen"
            self._launch(kernels.clear_blocks, (self._capacity, kernels.PARTS), f"{names} count counters", frame)
        done.cleared = True
        counts.send()
        clock.lap("clear")

    def _upload(
        self, view: FrameView, center: NDArray[np.float64], radius: float, rule: ClearingRule
    ) -> dict[str, Any]:
        """Arguments of the kernels for a frame, in one transfer; see ``host_map.clear_blocks`` for their meaning."""
        T, i, r = view.T_camera_world, view.intrinsics, rule.window_px(view.intrinsics)
        sphere_m = np.sqrt(3.0) * self._block_m * (1 + 1e-9)
        arrays = {
            "depth": view.depth_m, "color": view.color, "ray_x": view.ray_x, "ray_y": view.ray_y,
            "origin": view.origin, "T": T, "planes": view.side_planes(), "steps": evidence_steps((2 * r + 1) ** 2),
            "k": np.array([i.fx, i.fy, i.cx, i.cy]), "local": self._centers @ T[:3, :3].T,
            "limits": np.array([rule.min_range_m, rule.max_range_m, rule.margin_m + rule.half_diagonal_m,
                                rule.margin_per_m2]),
            "margins": np.array([rule.margin_m, rule.margin_per_m2, 0.5 * self.config.voxel_size_m]),
            "center": center, "limit": np.array([radius * radius]), "limit_key": np.array([_LAST_KEY]),
            "stamp": np.array([view.stamp_ns]),
        }  # fmt: skip
        return _described(upload(arrays, self.device)) | {
            "edge_m": self._block_m,
            "sphere_m": float(sphere_m),
            "r": r,
            "each": kernels.EACH,
        }

    def _evict(
        self, frame: dict[str, Any], center: NDArray[np.float64], radius: float, done: FusionProgress, new: int
    ) -> bool:
        """Evict blocks beyond the radius, and enter the others and those of the spill that are near into the hash
        table. Returns whether with these ``new`` blocks may exceed the budget."""
        spilled = None if self._spill is None else self._beyond(center, radius * radius, _LAST_KEY)
        self._erase(frame, spilled)
        done.evicted = True
        self._unfinished.append(partial(self._rebuild, frame))
        self._finish()
        if self._spill is None:
            return False
        table = BlockTable.holding(self._host_keys(), self.config.max_blocks)
        if bring_back(self, table, self._spill, center, radius):
            self._hold(len(table) + new)
            frame["shift"] = self._shift
            frame["all_counters"][kernels.BLOCKS : kernels.WANTED].zero_()
            self._rebuild(frame)
        return len(table) + new > self._capacity

    def _erase(self, frame: Mapping[str, Any], spilled: VoxelRows | None) -> None:
        """Empty the blocks beyond the limit, whose voxels go to the spill."""
        names = "keys count records last_seen center limit limit_key"
        self._launch(kernels.erase_blocks, (self._capacity, kernels.PARTS), names, frame)
        if self._spill is not None and spilled is not None:
            self._spill.add(Blocks.of(spilled))

    def _rebuild(self, frame: Mapping[str, Any]) -> None:
        self._table.fill_(-1)
        self._launch(kernels.rebuild_table, self._capacity, _TABLE, frame)

    def _select(self, frame: dict[str, Any], new: int, center: NDArray[np.float64], radius: float) -> None:
        """Keep the nearest of the stored and wanted blocks, by (distance, key), as many as the budget allows: evict the
        other stored ones and lower the limit for the wanted ones."""
        total = self._capacity + new
        distance = torch.empty(total, dtype=torch.float64, device=self.device)
        key = torch.empty(total, dtype=torch.int64, device=self.device)
        lists = frame | _described({"distance": distance, "candidate": key})
        names = "keys table_keys wanted counters center limit limit_key distance candidate"
        self._launch(kernels.list_distances, total, names, lists)
        key, order = torch.sort(key)
        distance, by_distance = torch.sort(distance[order], stable=True)
        last = slice(self.config.max_blocks - 1, self.config.max_blocks)
        limit, limit_key = distance[last], key[by_distance[last]]
        fits = limit.isinf()  # fewer than the budget
        limit, limit_key = limit.masked_fill(fits, radius * radius), limit_key.masked_fill(fits, _LAST_KEY)
        spilled = None if self._spill is None else self._beyond(center, float(limit), int(limit_key))
        frame |= _described({"limit": limit, "limit_key": limit_key})
        self._erase(frame, spilled)
        self._unfinished.append(partial(self._launch, kernels.retire_blocks, self._capacity, _TABLE, frame))
        self._finish()

    # -------------------------------------------------------------------------------------------------- evicted blocks

    def _beyond(self, center: NDArray[np.float64], limit: float, limit_key: int) -> VoxelRows:
        """Voxels of the stored blocks beyond a limit, on the host."""
        keys = self._host_keys()
        distance = squared_distance(block_coords(keys), center)
        out = (keys >= 0) & ((distance > limit) | ((distance == limit) & (keys > limit_key)))
        return self._rows(1, torch.from_numpy(out).to(self.device)).cpu()

    def _host_keys(self) -> NDArray[np.int64]:
        """(S,) keys of the blocks with voxels by slot, -1 = none; waits for the device."""
        keys: NDArray[np.int64] = torch.where(self._count > 0, self._keys, -1).cpu().numpy()
        return keys

    def drop(self, slots: Array, keys: Array) -> None:
        if len(slots) and self._spill is not None:
            there, out = self._tensor(slots), torch.zeros(self._capacity, dtype=torch.bool, device=self.device)
            out[there] = True
            self._spill.add(Blocks.of(self._rows(1, out).cpu()))
            self._records.view(-1, BLOCK_VOXELS, RECORD)[there] = 0
            self._last_seen.view(-1, BLOCK_VOXELS)[there] = 0
            self._count[there] = 0

    def is_free(self, slots: Array, local: Array) -> NDArray[np.bool_]:
        self._hold(int(slots.max(initial=-1)) + 1)
        hits = self._records[self._tensor(slots * np.int64(BLOCK_VOXELS) + local), HITS]
        free: NDArray[np.bool_] = (hits == 0).cpu().numpy()
        return free

    def _hold(self, blocks: int) -> None:
        """Give the map memory for so many blocks, within the budget."""
        if self._capacity < min(blocks, self.config.max_blocks):
            self._allocate(min(max(2 * self._capacity, blocks), self.config.max_blocks))
            self._size_scratch(self._pixels, self._new)

    def fill(self, keys: Array, slots: Array, local: Array, rows: VoxelRows) -> None:
        self._hold(int(slots.max(initial=-1)) + 1)
        at, blocks = self._tensor(slots * np.int64(BLOCK_VOXELS) + local), self._tensor(slots)
        self._records[at] = rows.records.to(self.device)
        self._last_seen[at] = rows.last_seen_ns.to(self.device)
        self._keys[blocks] = self._tensor(keys)
        self._count += torch.bincount(blocks, minlength=self._capacity).int()

    # ------------------------------------------------------------------------------------------------------ the whole

    def size(self) -> MapSize:
        self._ledger.settle()
        blocks, voxels = torch.stack([(self._count > 0).sum(), self._count.sum()]).tolist()
        return MapSize(blocks, voxels, max(self._ledger.most_blocks, blocks), self._capacity)

    @property
    def is_empty(self) -> bool:
        return self._ledger.is_settled and self._ledger.voxels == 0

    def gather(
        self, min_hits: int, lower: NDArray[np.float64] | None = None, upper: NDArray[np.float64] | None = None
    ) -> VoxelRows:
        self._finish()
        inside = None
        if lower is not None and upper is not None:
            low, high = upload({"lower": lower, "upper": upper}, self.device).values()
            corners = unpack_keys(self._keys)
            inside = ((corners + 1 > low) & (corners < high)).all(1)
        return self._rows(min_hits, inside)

    def _rows(self, min_hits: int, of_slots: torch.Tensor | None, most: int = 0) -> VoxelRows:
        """Sorted voxels of the slots of a mask, also copied to the host, which waits once for them and their number.
        ``most``: bound of their number, 0 = the ledger's."""
        most = most or min(self._ledger.most_voxels, self._capacity * BLOCK_VOXELS) + 1
        packed = torch.zeros((most + 1, PACKED), dtype=torch.int32, device=self.device)  # the last row: their number
        listed = torch.full((most,), _LAST_KEY, dtype=torch.int64, device=self.device)
        lists: dict[str, Any] = {"packed": packed, "listed": listed, "min_hits": min_hits, "each": kernels.EACH}
        lists |= {"place": torch.empty(most, dtype=torch.int32, device=self.device)}
        lists["chosen"] = self._count > 0 if of_slots is None else of_slots
        names = "keys chosen records min_hits each listed place packed"
        self._launch(kernels.list_voxels, (self._capacity, kernels.PARTS), names, lists)
        lists["listed"], lists["order"] = listed.sort()
        self._launch(kernels.pack_voxels, most, "listed order place records last_seen packed", lists)
        here = HostCopy(packed).read()
        number = int(here[most, 0])
        if number > most:  # blocks have come back from the spill
            return self._rows(min_hits, of_slots, number)
        copy = VoxelRows.of_packed(here[:number])
        rows = copy if runs_compiled(packed) else VoxelRows.of_packed(packed[:number], views=True)
        rows.__dict__["_copied"] = copy  # so that it is not copied again
        return rows

    def put(self, rows: VoxelRows) -> None:
        keys, local = split_coords(rows.coords.cpu().numpy())
        distinct, slots = np.unique(keys, return_inverse=True)
        self._keys.fill_(-1)
        self.fill(keys, slots.reshape(-1), local, rows)
        self._ledger.settle()
        self._ledger.blocks = self._ledger.most_blocks = len(distinct)
        self._ledger.voxels = len(rows)

    def remove(self, coords: NDArray[np.int32]) -> None:
        self._ledger.settle()
        keys, local = split_coords(coords)
        stored = self._host_keys()
        order = np.argsort(stored)
        slots = order[np.searchsorted(stored[order], keys)]
        at = self._tensor(slots * np.int64(BLOCK_VOXELS) + local)
        self._records[at] = 0
        self._last_seen[at] = 0
        self._count -= torch.bincount(self._tensor(slots), minlength=self._capacity).int()
        self._ledger.voxels -= len(coords)

    def clear(self) -> None:
        self._ledger.settle()  # its counts may still be read
        self._ledger = _Ledger()
        self._keys.fill_(-1)
        for array in (self._count, self._records, self._last_seen):
            array.zero_()

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(self.device)


def most_blocks(view: FrameView, rule: ClearingRule, block_m: float) -> int:
    """Bound of the number of blocks that the points of a frame can touch: the volume of the view, widened by the
    diagonal of a block on every side."""
    i, wide = view.intrinsics, np.sqrt(3.0) * block_m
    reach = min(rule.max_range_m, view.farthest_m, 1e6)
    slopes = np.array([[i.cx, i.width - 1 - i.cx], [i.cy, i.height - 1 - i.cy]]) / [[i.fx], [i.fy]]
    beside = wide * np.sqrt(1.0 + slopes * slopes).sum(1)
    z = np.array([0.0, 0.5 * (reach + 2 * wide), reach + 2 * wide])
    area = np.prod(np.maximum(slopes.sum(1), 0.0)[:, None] * z + beside[:, None], axis=0)
    volume = (area[0] + 4 * area[1] + area[2]) * z[2] / 6  # Simpson's rule, exact for this
    return int(min(volume / block_m**3, 2**40)) + 1


def upload(arrays: Mapping[str, Array], device: torch.device) -> dict[str, torch.Tensor]:
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
    there, found = host.to(device, non_blocking=True), {}
    kinds = {of: there.view(torch.from_numpy(np.empty(0, of)).dtype) for of in {a.dtype for a in arrays.values()}}
    for start, (name, array) in zip(starts, arrays.items(), strict=True):
        flat = kinds[array.dtype].narrow(0, start // array.itemsize, array.size)
        found[name] = flat.view(array.shape)
    return found


def _described(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Warp's descriptors of tensors, which are made in a third of the time of its arrays."""
    return {name: wp.from_torch(tensor, return_ctype=True) for name, tensor in tensors.items()}
