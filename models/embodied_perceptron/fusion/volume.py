"""The incrementally updated sparse voxel volume: geometry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import ConfigError, KeyframeConfig, VolumeConfig, config_from_dict, config_to_dict
from embodied_perceptron.frame import PosedFrame, RgbdFrame
from embodied_perceptron.fusion.blocks import BLOCK_BITS, BLOCK_EDGE, BLOCK_VOXELS, BlockTable
from embodied_perceptron.fusion.export import to_snapshot
from embodied_perceptron.fusion.keyframes import KeyframeStore
from embodied_perceptron.fusion.numba_voxels import NumbaVoxels
from embodied_perceptron.fusion.storage import (
    MapFileError,
    pack_keyframes,
    read_map,
    saved_config,
    unpack_keyframes,
    unpack_voxels,
    write_map,
)
from embodied_perceptron.fusion.torch_kernels import TorchVoxels
from embodied_perceptron.fusion.voxels import (
    RECORD,
    ClearingRule,
    Columns,
    View,
    VoxelStore,
)
from embodied_perceptron.geometry import Intrinsics, pack_keys, voxel_centers
from embodied_perceptron.results import FusionReport, VoxelSnapshot

CLEARING_WINDOW_PX = 1


@dataclass(frozen=True)
class VolumeStatistics:
    """Size and history of a volume.

    Attributes:
        blocks, voxels: stored now.
        memory_bytes: voxel memory that has been written to, plus keyframes.
        reserved_bytes: voxel memory for the whole block budget (address space on the CPU, real memory on a GPU).
        keyframes: kept now; ``keyframes_dropped`` were pushed out by newer ones.
        frames_fused: since the start, the last reset or load.
        voxels_cleared: seen through, since then.
        points_refused: points that found no room, since then.
        blocks_evicted: by reason, since then.
    """

    blocks: int
    voxels: int
    memory_bytes: int
    reserved_bytes: int
    keyframes: int
    keyframes_dropped: int
    frames_fused: int
    voxels_cleared: int
    points_refused: int
    blocks_evicted: dict[str, int]


@dataclass
class _Counters:
    frames_fused: int = 0
    voxels_cleared: int = 0
    points_refused: int = 0
    blocks_evicted: dict[str, int] = field(default_factory=lambda: {"radius": 0, "budget": 0})


class FeatureVolume:
    """Sparse voxel map of posed RGB-D frames.

    Per frame: valid pixels become points and are summed per voxel; stored voxels that the depth image sees through lose
    evidence and vanish; blocks out of radius or beyond the budget are evicted, the furthest first. The cost of a frame
    follows the view, not the map. One thread owns a volume; snapshots are copies and may go to others.

    Args:
        config: sizes, ranges and limits.
        keyframes: which frames are kept whole.
        kernels: "numba" (CPU), "torch" (any device), or "auto" = by ``config.device``.

    Raises ``ConfigError`` for a device that is not available.
    """

    def __init__(
        self,
        config: VolumeConfig | None = None,
        keyframes: KeyframeConfig | None = None,
        *,
        kernels: Literal["auto", "numba", "torch"] = "auto",
    ) -> None:
        self.config = config if config is not None else VolumeConfig()
        self.keyframes = KeyframeStore(keyframes if keyframes is not None else KeyframeConfig())
        device = _resolve_device(self.config.device)
        if kernels == "auto":
            kernels = "numba" if device.type == "cpu" else "torch"
        if kernels == "numba" and device.type != "cpu":
            raise ConfigError(f"numba kernels run on the CPU, but device is {self.config.device!r}")
        capacity = self.config.max_blocks
        self._store: VoxelStore = NumbaVoxels(capacity) if kernels == "numba" else TorchVoxels(capacity, device)
        self._blocks = BlockTable(capacity)
        self._newest_ns: dict[str, int] = {}
        self._voxels = 0
        self._counters = _Counters()
        s = self.config.voxel_size_m
        self._block_m = BLOCK_EDGE * s
        self._rule = ClearingRule(
            min_range_m=self.config.min_range_m,
            max_range_m=self.config.max_range_m,
            margin_m=self.config.clearing_margin_m,
            margin_per_m2=self.config.clearing_margin_per_m2,
            half_diagonal_m=0.5 * np.sqrt(3.0) * s,
            window_px=CLEARING_WINDOW_PX,
        )

    # ---------------------------------------------------------------------------------------------------------------
    # taking frames in

    def integrate(self, posed: PosedFrame) -> FusionReport:
        """Fuse one frame.

        A frame without any depth at or beyond ``min_range_m`` is not fused; the report says so. Raises ``ValueError``
        when the frame is not newer than the newest frame of its camera (that call changes nothing).
        """
        frame = posed.frame
        self._check_order(frame)
        self._newest_ns[frame.camera] = frame.stamp_ns
        if not bool((frame.depth_m >= self.config.min_range_m).any() and frame.has_depth):
            reason = f"no depth at or beyond min_range_m={self.config.min_range_m}"
            return FusionReport(frame.stamp_ns, fused=False, reason=reason)

        clock = _StageClock()
        view = View.of(posed, self.config.voxel_size_m)
        center = posed.T_world_camera[:3, 3] / self._block_m
        radius = self.config.radius_m / self._block_m
        evicted = {"radius": self._evict(self._blocks.beyond(center, radius)), "budget": 0}
        clock.lap("evict")

        points = touched = refused = 0
        for rows in view.bands():
            scan = self._store.scan(view, rows, self.config.min_range_m, self.config.max_range_m)
            clock.lap("points")
            acquired = self._blocks.acquire(scan.block_keys, center, radius)
            self._voxels -= self._store.erase(acquired.evicted)
            fold = self._store.fold(acquired.slots, frame.stamp_ns)
            clock.lap("fold")
            self._voxels += fold.created
            evicted["budget"] += len(acquired.evicted)
            points += scan.points
            touched += fold.touched
            refused += fold.refused_points + scan.out_of_range

        cleared = self._clear_seen_through(view) if self.config.clearing else 0
        clock.lap("clear")
        keyframe = self.keyframes.offer(posed)
        clock.lap("keyframe")

        self._counters.frames_fused += 1
        self._counters.voxels_cleared += cleared
        self._counters.points_refused += refused
        for reason, count in evicted.items():
            self._counters.blocks_evicted[reason] += count
        return FusionReport(
            stamp_ns=frame.stamp_ns,
            fused=True,
            points=points,
            voxels_touched=touched,
            voxels_cleared=cleared,
            blocks_evicted=evicted,
            points_refused=refused,
            keyframe=keyframe,
            stage_ms=clock.stage_ms,
        )

    def _check_order(self, frame: RgbdFrame) -> None:
        newest = self._newest_ns.get(frame.camera)
        if newest is not None and frame.stamp_ns <= newest:
            raise ValueError(
                f"frame of camera {frame.camera!r} with stamp_ns={frame.stamp_ns} is not newer than its newest fused "
                f"frame, stamp_ns={newest}"
            )

    def _evict(self, slots: NDArray[np.int32]) -> int:
        if len(slots):
            self._voxels -= self._store.erase(slots)
            self._blocks.release(slots)
        return len(slots)

    def _clear_seen_through(self, view: View) -> int:
        T_camera_block = view.T_camera_world.copy()
        T_camera_block[:3, :3] *= self._block_m
        slots = self._blocks.in_frustum(
            T_camera_block,
            _side_planes(view.intrinsics),
            self.config.min_range_m,
            self.config.max_range_m,
            0.5 * np.sqrt(3.0) * self._block_m,
        )
        if len(slots) == 0:
            return 0
        coords = self._blocks.coords_of(slots)
        cleared, emptied = self._store.clear(view, self._rule, self.config.voxel_size_m, slots, coords)
        self._voxels -= cleared
        self._blocks.release(emptied)
        return cleared

    # ---------------------------------------------------------------------------------------------------------------
    # looking at the map

    def snapshot(self, min_hits: int | None = None) -> VoxelSnapshot:
        """Copy the voxels with at least ``min_hits`` points (default: the configuration's), sorted by key."""
        columns = self._gather(self._blocks.slots(), self.config.min_hits if min_hits is None else min_hits)
        return to_snapshot(*columns, self.config.voxel_size_m)

    def _gather(self, slots: NDArray[np.int32], min_hits: int) -> tuple[Columns, Columns, Columns]:
        return self._store.gather(slots, self._blocks.coords_of(slots), max(min_hits, 1))

    def __len__(self) -> int:
        """Stored voxels, whatever their hits."""
        return self._voxels

    def statistics(self) -> VolumeStatistics:
        """Sizes now, and what happened since the start or the last reset or load."""
        per_block = BLOCK_VOXELS * (RECORD * 4 + 8)
        c = self._counters
        return VolumeStatistics(
            blocks=len(self._blocks),
            voxels=self._voxels,
            memory_bytes=self._blocks.slots_ever_used * per_block + self.keyframes.nbytes,
            reserved_bytes=self.config.max_blocks * per_block,
            keyframes=len(self.keyframes),
            keyframes_dropped=self.keyframes.dropped,
            frames_fused=c.frames_fused,
            voxels_cleared=c.voxels_cleared,
            points_refused=c.points_refused,
            blocks_evicted=dict(c.blocks_evicted),
        )

    # ---------------------------------------------------------------------------------------------------------------
    # changing the map by hand

    def reset(self) -> None:
        """Forget everything: voxels, keyframes, stamps and counters."""
        self._store.erase(self._blocks.slots())
        self._blocks.clear()
        self.keyframes.clear()
        self._newest_ns.clear()
        self._voxels = 0
        self._counters = _Counters()

    def forget_stamps(self) -> None:
        """Accept frames of any stamp again, for a clock that was set back; the map stays."""
        self._newest_ns.clear()

    def clear_box(self, box: NDArray[np.floating[Any]]) -> int:
        """Remove the voxels whose centre lies inside of an oriented box; returns how many.

        Args:
            box: (9,) x y z dx dy dz alpha beta gamma, metres and radians, R = Rz(alpha) Rx(beta) Ry(gamma).

        Raises ``ValueError`` when it is not 9 finite numbers with positive sizes.
        """
        center, R, half = _check_box(box)
        slots = self._blocks.slots()
        block_centers = voxel_centers(self._blocks.coords_of(slots), self._block_m)
        reach = float(np.linalg.norm(half)) + 0.5 * np.sqrt(3.0) * self._block_m
        slots = slots[np.linalg.norm(block_centers - center, axis=1) <= reach]
        coords, _, _ = self._gather(slots, 1)
        inside = (np.abs((voxel_centers(coords, self.config.voxel_size_m) - center) @ R) <= half).all(axis=1)
        coords = coords[inside]
        if len(coords) == 0:
            return 0
        keys, local = _split(coords)
        emptied = self._store.remove(self._blocks.lookup(keys), local)
        self._blocks.release(emptied)
        self._voxels -= len(coords)
        return len(coords)

    # ---------------------------------------------------------------------------------------------------------------
    # map files

    def save(self, path: str | Path, extra: Mapping[str, str] | None = None) -> None:
        """Write voxels, keyframes and configuration; atomic, so a crash leaves the old file whole.

        ``extra`` goes into the same file; :func:`embodied_perceptron.fusion.storage.read_extra` gives it back.

        Raises ``OSError`` when the folder is missing or cannot be written.
        """
        coords, records, last_seen = self._gather(self._blocks.slots(), 1)
        tensors, entries = pack_keyframes(list(self.keyframes))
        tensors["voxels.keys"] = pack_keys(torch.from_numpy(coords))
        tensors["voxels.records"] = torch.from_numpy(records)
        tensors["voxels.last_seen_ns"] = torch.from_numpy(last_seen)
        header = {
            "volume": config_to_dict(self.config),
            "keyframe_config": config_to_dict(self.keyframes.config),
            "keyframes": entries,
            "keyframes_taken": self.keyframes.taken,
            "extra": dict(extra or {}),
        }
        write_map(path, tensors, header)

    def load(self, path: str | Path) -> None:
        """Replace the map by a saved one; configuration, device and limits stay this volume's own.

        Stamps may start anywhere afterwards. Raises ``MapFileError`` for a file that is damaged, of another version or
        voxel size, or larger than the block budget, and ``OSError`` when it cannot be opened; the map then stays.
        """
        tensors, header = read_map(path)
        saved = saved_config(path, header)
        if saved.voxel_size_m != self.config.voxel_size_m:
            raise MapFileError(
                f"{path} has voxel_size_m={saved.voxel_size_m}, this volume has {self.config.voxel_size_m}"
            )
        coords, records, last_seen = unpack_voxels(path, tensors)
        keyframes = unpack_keyframes(path, tensors, header.get("keyframes"))
        block_keys, local = _split(coords)
        distinct = np.unique(block_keys)
        if len(distinct) > self.config.max_blocks:
            raise MapFileError(
                f"{path} has {len(distinct)} blocks, this volume takes max_blocks={self.config.max_blocks}"
            )
        taken = header.get("keyframes_taken")
        if not isinstance(taken, int) or taken < len(keyframes):
            raise MapFileError(f"{path}: keyframes_taken must be at least {len(keyframes)}, got {taken!r}")

        self.reset()
        self._blocks.acquire(distinct, np.zeros(3), np.inf)
        self._store.put(self._blocks.lookup(block_keys), local, records, last_seen)
        self._voxels = len(coords)
        self.keyframes.restore(keyframes, taken)

    @classmethod
    def from_file(cls, path: str | Path, *, kernels: Literal["auto", "numba", "torch"] = "auto") -> FeatureVolume:
        """A volume with the content and the configuration of a saved map. Raises as :meth:`load`."""
        _, header = read_map(path)
        try:
            keyframes = config_from_dict(KeyframeConfig, header.get("keyframe_config"), "keyframe_config")
        except ConfigError as error:
            raise MapFileError(f"{path}: {error}") from error
        volume = cls(saved_config(path, header), keyframes, kernels=kernels)
        volume.load(path)
        return volume


# --------------------------------------------------------------------------------------------------------------------


class _StageClock:
    """Wall time by stage."""

    def __init__(self) -> None:
        self.stage_ms: dict[str, float] = {}
        self._last = perf_counter()

    def lap(self, stage: str) -> None:
        now = perf_counter()
        self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + (now - self._last) * 1e3
        self._last = now


def _resolve_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {name!r} is not available: {error}") from error
    return device


def _side_planes(k: Intrinsics) -> NDArray[np.float64]:
    """(4, 2) inward unit normals of the frustum's left, right (x, z), top and bottom (y, z) planes."""
    normals = np.array(
        [
            [k.fx, k.cx + 0.5],
            [-k.fx, k.width - 0.5 - k.cx],
            [k.fy, k.cy + 0.5],
            [-k.fy, k.height - 0.5 - k.cy],
        ]
    )
    unit: NDArray[np.float64] = normals / np.linalg.norm(normals, axis=1, keepdims=True)
    return unit


def _split(coords: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(N, 3) voxel coordinates -> (N,) block keys and (N,) index inside of the block."""
    c = np.asarray(coords, dtype=np.int64)
    low = c & (BLOCK_EDGE - 1)
    keys: NDArray[np.int64] = pack_keys(torch.from_numpy(c >> BLOCK_BITS)).numpy()
    return keys, (low[:, 0] << (2 * BLOCK_BITS)) | (low[:, 1] << BLOCK_BITS) | low[:, 2]


def _check_box(
    box: NDArray[np.floating[Any]],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Box -> centre, rotation, half sizes."""
    b = np.asarray(box, dtype=np.float64)
    if b.shape != (9,) or not np.isfinite(b).all() or (b[3:6] <= 0).any():
        raise ValueError(f"box must be 9 finite numbers with positive sizes, got {b.tolist()}")
    (ca, cb, cg), (sa, sb, sg) = np.cos(b[6:]), np.sin(b[6:])
    Rz = np.array([[ca, -sa, 0], [sa, ca, 0], [0, 0, 1]])
    Rx = np.array([[1, 0, 0], [0, cb, -sb], [0, sb, cb]])
    Ry = np.array([[cg, 0, sg], [0, 1, 0], [-sg, 0, cg]])
    return b[:3], Rz @ Rx @ Ry, b[3:6] / 2
