"""Incremental sparse volume: voxels, keyframes, and image features of the keyframes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.config import ConfigError, KeyframeConfig, VolumeConfig, config_to_dict
from embodied_perceptron.geometry.boxes import check_boxes, points_in_boxes
from embodied_perceptron.geometry.transforms import Intrinsics, pack_keys, voxel_centers
from embodied_perceptron.mapping.block_copies import BlockCache
from embodied_perceptron.mapping.blocks import BLOCK_EDGE, BLOCK_VOXELS, within_budget
from embodied_perceptron.mapping.correction import Correction, correct, move_voxels
from embodied_perceptron.mapping.devices import first_line, forget_memory, is_device_fault, resolve_device
from embodied_perceptron.mapping.export import DEFAULT_FEATURES, VolumeCopy, Window
from embodied_perceptron.mapping.host_map import HostMap
from embodied_perceptron.mapping.image_features import ImageFeatures
from embodied_perceptron.mapping.keyframes import Keyframe, KeyframeStore
from embodied_perceptron.mapping.spill import Blocks, BlockSpill, overlapping
from embodied_perceptron.mapping.storage import (
    SavedVolume,
    pack_keyframes,
    read_map,
    unpack_volume,
    write_map,
)
from embodied_perceptron.mapping.voxels import (
    RECORD,
    ClearingRule,
    FrameView,
    FusionProgress,
    StageClock,
    VoxelMap,
    VoxelRows,
)
from embodied_perceptron.nn.input_features import SiteFeature
from embodied_perceptron.results import FusionCounts, FusionReport, VoxelSnapshot
from embodied_perceptron.sensors.frame import PosedFrame, RgbdFrame
from embodied_perceptron.sparse.sites import Engine
from embodied_perceptron.sparse.tensor import SparseTensor

log = logging.getLogger(__name__)
__all__ = ["FeatureVolume", "VolumeStatistics", "warm_up"]


@dataclass(frozen=True)
class VolumeStatistics:
    """Size and history of a volume.

    Attributes:
        blocks, voxels: stored now.
        memory_bytes: voxel memory written so far, plus keyframes and their image features.
        reserved_bytes: allocated voxel memory: on the CPU address space for the whole block budget, on a GPU memory.
        keyframes, keyframes_dropped: retained now, and replaced by newer ones.
        frames_fused: since the start, the last reset or load, like all counts below.
        voxels_cleared: removed because a camera saw through them.
        points_refused: points in blocks without a slot.
        blocks_evicted: by reason.
        blocks_left_behind, left_behind_bytes: evicted blocks on the disk now (:class:`~.spill.BlockSpill`).
        left_behind_lost: evicted blocks that could not be kept there, by reason.
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
    blocks_left_behind: int = 0
    left_behind_bytes: int = 0
    left_behind_lost: dict[str, int] = field(default_factory=dict)


@dataclass
class Counters:
    """Counts since the start."""

    frames_fused: int = 0
    voxels_cleared: int = 0
    points_refused: int = 0
    blocks_evicted: dict[str, int] = field(default_factory=lambda: {"radius": 0, "budget": 0})
    _arriving: deque[FusionCounts] = field(default_factory=deque)

    def add(self, counts: FusionCounts) -> None:
        """Add the counts of one frame, once they have arrived."""
        self._arriving.append(counts)
        while self._arriving and self._arriving[0].ready():
            self._take(self._arriving.popleft())

    def settle(self) -> None:
        """Wait for the counts of all frames."""
        while self._arriving:
            self._take(self._arriving.popleft())

    def _take(self, counts: FusionCounts) -> None:
        self.voxels_cleared += counts.voxels_cleared
        self.points_refused += counts.points_refused
        for reason, count in counts.blocks_evicted.items():
            self.blocks_evicted[reason] += count


class FeatureVolume:
    """Sparse voxel map of posed RGB-D frames: geometry, keyframes, and per-level sums of the keyframes' image features.

    For each frame, points are summed by voxel, stored voxels that the depth image sees through lose evidence and
    vanish, and blocks beyond the radius or the budget are evicted, the furthest first. The cost of a frame depends on
    the view, not on the size of the map. Not thread-safe; copies are for any thread, and ``features`` lock themselves.

    Args:
        config: sizes, ranges and limits.
        keyframes: selection of the frames that are retained whole.
        features: image features for one network; None = geometry only.
        kernels: "numba" (CPU), "warp" (CUDA; on the CPU slow, for tests), or "auto" = chosen by the device.
        network_device: device of the network that reads the map, used where ``config.device`` is "auto".
        spill: stores evicted blocks and returns them; None = evicted blocks are lost.

    Attributes:
        fault: why the CPU holds the voxels instead of their device; "" = it does not.

    Raises ``ConfigError`` for an unavailable device.
    """

    def __init__(
        self,
        config: VolumeConfig | None = None,
        keyframes: KeyframeConfig | None = None,
        *,
        features: ImageFeatures | None = None,
        kernels: Literal["auto", "numba", "warp"] = "auto",
        network_device: torch.device | None = None,
        spill: BlockSpill | None = None,
    ) -> None:
        self.config = config if config is not None else VolumeConfig()
        self.keyframes = KeyframeStore(keyframes if keyframes is not None else KeyframeConfig())
        self.features = features
        name = self.config.device
        if name == "auto" and network_device is not None:
            name = str(network_device)
        device = resolve_device(name, "volume device")
        self.fault = ""
        if kernels == "auto":
            kernels = "numba" if device.type == "cpu" else "warp"
        if kernels == "numba" and device.type != "cpu":
            raise ConfigError(f"numba kernels run on the CPU, but device is {self.config.device!r}")
        self._spill = spill
        self._map: VoxelMap
        try:
            if kernels == "warp":
                from embodied_perceptron.mapping.warp_map import WarpMap

                self._map = WarpMap(self.config, device, spill)
        except ImportError as error:
            self.fault = f"voxels are on the CPU: a map on {device} needs the package warp-lang: {first_line(error)}"
        except RuntimeError as error:
            if not is_device_fault(error):
                raise
            reason = f"{device} has no room for the map's voxels: {first_line(error)}"
            if self.config.device != "auto":
                raise ConfigError(reason) from error
            self.fault = f"voxels are on the CPU: {reason}"
        if kernels == "numba" or self.fault:
            self._map = HostMap(self.config, spill)
        if self.fault:
            log.warning(self.fault)
        self._site_cache = BlockCache()
        self._newest_ns: dict[str, int] = {}
        self._counters = Counters()
        s = self.config.voxel_size_m
        self._block_m = BLOCK_EDGE * s
        # depth 0 means unknown: it must lie outside a range that starts at 0
        self._min_range_m = max(self.config.min_range_m, float(np.finfo(np.float32).tiny))
        self._rule = ClearingRule(
            min_range_m=self._min_range_m,
            max_range_m=self.config.max_range_m,
            margin_m=self.config.clearing_margin_m,
            margin_per_m2=self.config.clearing_margin_per_m2,
            half_diagonal_m=0.5 * np.sqrt(3.0) * s,
            window_rad=self.config.clearing_window_rad,
        )

    # ------------------------------------------------------------------------------------------------------ frames

    def integrate(self, posed: PosedFrame) -> FusionReport:
        """Fuse one frame.

        A frame without any depth at or beyond ``min_range_m`` is not fused; the report gives the reason. Raises
        ``ValueError`` when the frame is not newer than the newest frame of its camera; the volume is then unchanged.
        """
        frame = posed.frame
        newest = self._newest_ns.get(frame.camera)
        if newest is not None and frame.stamp_ns <= newest:
            raise ValueError(
                f"frame of camera {frame.camera!r} with stamp_ns={frame.stamp_ns} is not newer than its newest fused "
                f"frame, stamp_ns={newest}"
            )
        self._newest_ns[frame.camera] = frame.stamp_ns
        clock, done = StageClock(), FusionProgress()
        view, center_m = FrameView.of(posed, self.config.voxel_size_m), posed.T_world_camera[:3, 3]
        if view.farthest_m < self._min_range_m:
            reason = f"no depth at or beyond min_range_m={self.config.min_range_m}"
            return FusionReport(frame.stamp_ns, fused=False, reason=reason)
        while not done.cleared:
            try:
                self._map.fuse(view, center_m, self._rule, done, clock)
            except RuntimeError as error:
                self._move_to_host(error, done)
        counts = FusionCounts(done.counts)
        keyframe = self.keyframes.offer(posed)
        clock.lap("keyframe")
        self._counters.frames_fused += 1
        self._counters.add(counts)
        return FusionReport(frame.stamp_ns, fused=True, counts=counts, keyframe=keyframe, stage_ms=clock.stage_ms)

    @property
    def device(self) -> torch.device:
        """Device of the voxels."""
        return self._map.device

    def _move_to_host(self, error: RuntimeError, frame: FusionProgress | None = None) -> None:
        """Move the voxels of a failed device to the CPU, or fuse the keyframes again where the device returns nothing.

        ``frame``: progress of the frame that is being fused. Raises ``error`` when the device has not failed.
        """
        if isinstance(self._map, HostMap) or not is_device_fault(error):
            raise error
        rows: VoxelRows | None = None
        try:
            rows = self._map.gather(1).cpu()
            for counts in () if frame is None else frame.counts:
                counts.result()
        except RuntimeError as again:
            if not is_device_fault(again):
                raise
            rows = None
        self._map = HostMap(self.config, self._spill)
        forget_memory()
        self.fault = f"voxels have moved to the CPU, their device failed: {first_line(error)}"
        self.fault += f"; made anew from {len(self.keyframes)} keyframes" if rows is None else ""
        log.warning(self.fault)
        if rows is not None:
            self._map.put(rows)
            return
        if frame is not None:
            frame.restart()
        self._fuse_keyframes(self.keyframes)

    def _fuse_keyframes(self, keyframes: Iterable[Keyframe]) -> None:
        """Fuse the geometry of keyframes, oldest first."""
        for k in keyframes:
            view = FrameView.of(PosedFrame(k.frame, k.T_world_camera), self.config.voxel_size_m)
            self._map.fuse(view, k.T_world_camera[:3, 3], self._rule, FusionProgress(), StageClock())

    # ----------------------------------------------------------------------------------------------------- read access

    def snapshot(self, min_hits: int | None = None) -> VoxelSnapshot:
        """Copy the voxels with at least ``min_hits`` points (default: the configuration's), sorted by key."""
        return self.copy(min_hits).snapshot()

    def copy(self, min_hits: int | None = None) -> VolumeCopy:
        """Copy the stored voxels and the list of keyframes, for snapshots and network input in any thread."""
        hits = self.config.min_hits if min_hits is None else min_hits
        try:
            rows = self._map.copy(max(hits, 1))
        except RuntimeError as error:
            self._move_to_host(error)
            rows = self._map.copy(max(hits, 1))
        return VolumeCopy(rows, self.config.voxel_size_m, tuple(self.keyframes), site_cache=self._site_cache)

    def prepare_copy(self) -> None:
        """Allocate the memory of the next :meth:`copy` ahead, in the thread that copies; fusion may run meanwhile."""
        self._map.prepare_copy()

    def as_sparse_tensor(
        self,
        site_voxels: int = 1,
        *,
        window: Window | None = None,
        features: tuple[SiteFeature, ...] = DEFAULT_FEATURES,
        floor_z_m: float = 0.0,
        min_hits: int | None = None,
        engine: Engine | None = None,
    ) -> SparseTensor:
        """Occupied sites of the map, or of a window of it, as network input; from the voxels of :meth:`snapshot`.

        Args:
            site_voxels: edge of a site in voxels. Site ``c`` covers ``[c * e, (c + 1) * e)`` with
                ``e = site_voxels * voxel_size_m``; coordinates are absolute.
            window: None = the whole map.
            features: columns of the float32 features, in this order: ``color`` (3, mean RGB in [0, 1]), ``offset`` (3,
                mean point minus the site's centre, in edges), ``height`` (1, metres above ``floor_z_m``), ``point``
                (3, mean point in the world, metres), ``log_hits`` (1), ``one`` (1). Means are over all points.
            floor_z_m: height of the floor in the world.
            min_hits: as in :meth:`snapshot`.
            engine: of the sparse tensor; None = the fastest one installed.

        The tensor is on the volume's device. Raises ``ValueError`` for an unknown feature, a ``site_voxels`` below 1,
        or sites too far from the origin for a sparse tensor.
        """
        if site_voxels < 1:
            raise ValueError(f"site_voxels must be at least 1, got {site_voxels}")
        lower, upper = np.full(3, -np.inf), np.full(3, np.inf)
        if window is not None:
            lower, upper = window.limits(self.config.voxel_size_m * site_voxels)
            lower, upper = lower * site_voxels, upper * site_voxels
        hits = self.config.min_hits if min_hits is None else min_hits
        rows = self._map.gather(max(hits, 1), lower / BLOCK_EDGE, upper / BLOCK_EDGE)
        return VolumeCopy(rows, self.config.voxel_size_m).as_sparse_tensor(
            site_voxels, window=window, features=features, floor_z_m=floor_z_m, engine=engine
        )

    def __len__(self) -> int:
        """Stored voxels, whatever their hits."""
        return self._map.size().voxels

    @property
    def is_empty(self) -> bool:
        """Whether no voxel is stored. Does not wait for a device, so it may report a cleared map late."""
        return self._map.is_empty

    def statistics(self) -> VolumeStatistics:
        """Size and history of the volume."""
        per_block = BLOCK_VOXELS * (RECORD * 4 + 8)
        features = 0 if self.features is None else self.features.nbytes
        size, c = self._map.size(), self._counters
        c.settle()
        spill = self._spill
        waiting = 0 if spill is None else spill.memory_bytes
        return VolumeStatistics(
            blocks=size.blocks,
            voxels=size.voxels,
            memory_bytes=size.slots_used * per_block + self.keyframes.nbytes + features + waiting,
            reserved_bytes=size.slots * per_block,
            keyframes=len(self.keyframes),
            keyframes_dropped=self.keyframes.dropped,
            frames_fused=c.frames_fused,
            voxels_cleared=c.voxels_cleared,
            points_refused=c.points_refused,
            blocks_evicted=dict(c.blocks_evicted),
            blocks_left_behind=0 if spill is None else len(spill),
            left_behind_bytes=0 if spill is None else spill.nbytes,
            left_behind_lost={} if spill is None else dict(spill.dropped),
        )

    # ---------------------------------------------------------------------------------------------------- corrections

    def reset(self) -> None:
        """Remove voxels, keyframes and their features, stamps and counts."""
        self._map.clear()
        if self._spill is not None:
            self._spill.clear()
        self.keyframes.clear()
        if self.features is not None:
            self.features.clear()
        self._newest_ns.clear()
        self._counters = Counters()

    def correct_keyframes(self, poses: Mapping[tuple[str, int], NDArray[np.float64]]) -> Correction:
        """Integrate the retained keyframes again, at corrected poses.

        Voxels seen since the oldest retained keyframe are replaced by those of the keyframes; older voxels move rigidly
        with it (see :mod:`embodied_perceptron.mapping.correction`). No image is encoded again. Takes the time of fusing
        that many frames.

        Args:
            poses: (camera, stamp_ns) -> (4, 4) corrected T_world_camera. A retained keyframe without a pose moves like
                the corrected one nearest in time.

        Raises ``ValueError`` for a pose that is not rigid; the map is then unchanged.
        """
        keyframes, correction = correct(list(self.keyframes), poses)
        if not correction.corrected:
            return correction
        oldest_ns = int(correction.stamps_ns[0])
        rows = self._map.gather(1).cpu()
        motion, size_m = correction.at(oldest_ns), self.config.voxel_size_m
        older = move_voxels(rows.where(rows.last_seen_ns < oldest_ns), motion, size_m)
        self._map.clear()
        if self._spill is not None:
            for left in self._spill.take(lambda coords: np.ones(len(coords), np.bool_)):
                left_rows = left.rows()
                left_rows = left_rows.where(left_rows.last_seen_ns < oldest_ns)
                self._spill.add(Blocks.of(move_voxels(left_rows, motion, size_m)))
        newest_m = keyframes[-1].T_world_camera[:3, 3]
        self._map.put(within_budget(older, self.config.max_blocks, newest_m, self._block_m))
        self._fuse_keyframes(keyframes)
        self.keyframes.restore(keyframes, self.keyframes.taken)
        return correction

    def forget_stamps(self) -> None:
        """Accept frames of any stamp again, after a clock was set back; the map stays."""
        self._newest_ns.clear()

    def clear_box(self, box: NDArray[np.floating[Any]]) -> int:
        """Remove the voxels with their centre in an oriented box, in memory and on the disk; returns their number.

        Args:
            box: (9,) x y z dx dy dz alpha beta gamma, metres and radians, R = Rz(alpha) Rx(beta) Ry(gamma).

        Raises ``ValueError`` when it is not 9 finite numbers with sizes that are not negative.
        """
        row = check_boxes(torch.as_tensor(np.asarray(box, dtype=np.float64)).reshape(1, -1), "box")
        center, reach = row[0, :3].numpy(), 0.5 * float(row[0, 3:6].norm())
        limits = (center - reach) / self._block_m, (center + reach) / self._block_m
        coords = self._map.gather(1, *limits).coords.cpu()
        coords = coords[self._inside(coords, row)]
        if len(coords):
            self._map.remove(coords.numpy())
        cleared = len(coords)
        if self._spill is not None:
            for left in self._spill.take(overlapping(*limits)):
                rows = left.rows()
                inside = self._inside(rows.coords, row)
                cleared += int(inside.sum())
                self._spill.add(Blocks.of(rows.where(~inside)))
        return cleared

    def _inside(self, coords: torch.Tensor, box: torch.Tensor) -> torch.Tensor:
        """(N,) whether the centres of (N, 3) voxels lie in a (1, 9) box."""
        centers = torch.from_numpy(voxel_centers(coords.numpy(), self.config.voxel_size_m))
        return points_in_boxes(centers, box)[:, 0]

    # ---------------------------------------------------------------------------------------------------------- files

    def save(self, path: str | Path, extra: Mapping[str, str] | None = None) -> None:
        """Write voxels, keyframes and configuration atomically.

        Image features are not written: the network of the day computes them again from the keyframes. ``extra`` goes
        into the same file, see :func:`embodied_perceptron.mapping.storage.read_extra`.

        Raises ``OSError`` when the folder is missing or cannot be written.
        """
        write_map(path, *self.pack(extra))

    def pack(self, extra: Mapping[str, str] | None = None) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Tensors and header of :meth:`save`, copied, so that another thread can write them."""
        rows = self._map.gather(1).cpu()
        tensors, entries = pack_keyframes(list(self.keyframes))
        tensors["voxels.keys"] = pack_keys(rows.coords)
        tensors["voxels.records"] = rows.records
        tensors["voxels.last_seen_ns"] = rows.last_seen_ns
        header = {
            "volume": config_to_dict(self.config),
            "keyframe_config": config_to_dict(self.keyframes.config),
            "keyframes": entries,
            "keyframes_taken": self.keyframes.taken,
            "extra": dict(extra or {}),
        }
        return tensors, header

    def load(self, path: str | Path) -> None:
        """Replace the map by a saved one; configuration, device and limits of this volume stay.

        Frames of any stamp are accepted afterwards. Raises ``MapFileError`` for a file that is damaged, of another
        version or voxel size, or larger than the block budget, ``OSError`` when it cannot be opened; the map is then
        unchanged.
        """
        self.restore(unpack_volume(read_map(path), self.config))

    def restore(self, saved: SavedVolume) -> None:
        """Replace the map by the result of :func:`~.storage.unpack_volume`."""
        self.reset()
        self._map.put(saved.rows)
        self.keyframes.restore(saved.keyframes, saved.keyframes_taken)


def warm_up() -> None:
    """Compile every CPU kernel ahead: about ten seconds after an installation, later read from the disk."""
    k = Intrinsics(8.0, 8.0, 3.5, 3.5, 8, 8)
    config = VolumeConfig(max_blocks=64, device="cpu")
    volume = FeatureVolume(config)
    T = np.eye(4)
    for stamp, depth_m in enumerate((0.5, 0.5, 4.0, 4.0)):
        T[0, 3] = 100.0 * stamp  # far away: blocks are evicted
        depth = np.full((8, 8), depth_m, np.float32)
        frame = PosedFrame(RgbdFrame(stamp, "camera", np.zeros((8, 8, 3), np.uint8), depth, k), T)
        volume.integrate(frame)
    volume.snapshot(1)
    volume.as_sparse_tensor(2, min_hits=1)
    rows = volume._map.gather(1)
    volume._map.remove(rows.coords.numpy())
    volume._map.put(rows)
