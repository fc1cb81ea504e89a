"""Voxel records, frames as the kernels read them, and the interface of the CPU and device maps.

All sums are integers, so they do not depend on the order of the points: the CPU kernels and the Warp kernels on any
device give the same map bit for bit.

* Points are fixed-point numbers in 1/1024 voxel (20 micrometres at 0.02 m): ``floor(p / s * 1024)``. The upper bits are
  the voxel coordinate, the lower ten the offset inside the voxel.
* Sums stay below 2^31: above ``HITS_CAP`` points a voxel's sums and its count are halved, so that old points lose
  weight, and images are processed in bands of rows of at most ``BAND_PIXELS`` pixels.
* Occupancy evidence is a log-odds in 1/16: one step up for each frame that hits the voxel, one step down for each frame
  that sees through it (less where pixels are missing), clamped above. Below zero the voxel is removed: after eight
  frames from the clamp (1.6 s at 5 Hz), after two from a single hit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.compute_path import runs_compiled
from embodied_perceptron.geometry.transforms import Intrinsics, invert_transform
from embodied_perceptron.results import Arriving
from embodied_perceptron.sensors.frame import PosedFrame

OFFSET_BITS = 10
OFFSET_UNITS = 1 << OFFSET_BITS

ImageT = TypeVar("ImageT", bound=np.generic)
ArrayT = TypeVar("ArrayT", int, torch.Tensor)

# columns of a voxel record (int32)
HITS = 0  # number of points; 0 = the voxel is empty
OFFSET = 1  # ..3: sum of the offsets inside the voxel, 1/1024 voxel
COLOR = 4  # ..6: sum of RGB
EVIDENCE = 7  # log-odds in 1/16
RECORD = 8
PACKED = 14  # columns of :meth:`VoxelRows.of_packed`, an even number

HITS_CAP = 1 << 16
BAND_PIXELS = 1 << 20

EVIDENCE_UNIT = 1.0 / 16.0
EVIDENCE_HIT = 14  # 0.875: a frame with points in the voxel
EVIDENCE_MISS = 8  # 0.5: a frame that sees through it
EVIDENCE_MAX = 56  # 3.5


@dataclass(frozen=True, eq=False)
class VoxelRows:
    """Copies of stored voxels, sorted by (x, y, z), on the store's device.

    Attributes:
        coords: (N, 3) int32 voxel coordinates.
        records: (N, 8) int32, see the column constants.
        last_seen_ns: (N,) int64.
    """

    coords: torch.Tensor
    records: torch.Tensor
    last_seen_ns: torch.Tensor

    def __len__(self) -> int:
        return len(self.coords)

    @staticmethod
    def of_packed(rows: torch.Tensor, views: bool = False) -> VoxelRows:
        """From (N, :data:`PACKED`) int32: stamps as two numbers, coordinates, records; copies or views of them."""
        parts = rows[:, 2:5], rows[:, 5:13], rows[:, :2].view(torch.int64)[:, 0]
        return VoxelRows(*parts) if views else VoxelRows(*(part.contiguous() for part in parts))

    def where(self, mask: torch.Tensor) -> VoxelRows:
        """Rows where ``mask`` (N,) is True."""
        rows = mask.nonzero()[:, 0]
        return VoxelRows(self.coords[rows], self.records[rows], self.last_seen_ns[rows])

    def cpu(self) -> VoxelRows:
        """The rows in host memory; copied once."""
        return self if runs_compiled(self.coords) else self._copied

    @cached_property
    def _copied(self) -> VoxelRows:
        stamps = self.last_seen_ns[:, None].view(torch.int32)  # (N, 2)
        unused = stamps[:, :1]
        return VoxelRows.of_packed(HostCopy(torch.cat([stamps, self.coords, self.records, unused], 1)).read())


class HostCopy:
    """A copy of a tensor on its way to host memory; from a GPU into pinned memory, without waiting."""

    def __init__(self, tensor: torch.Tensor) -> None:
        on_gpu = tensor.device.type == "cuda"
        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu)
        self._copy.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(tensor.device))

    def ready(self) -> bool:
        """Whether the copy has arrived; does not wait."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def read(self) -> torch.Tensor:
        """The copy. It has arrived when the host has waited for anything that this stream was given later."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy


@dataclass(frozen=True, eq=False)
class FrameView:
    """Frame prepared for the kernels.

    Attributes:
        depth_m: (H, W) float32, canonical; contiguous, read-only.
        color: (H, W, 3) uint8; contiguous, read-only.
        ray_x: (3, W), ray_y: (3, H) float64: a pixel's ray in the world is ``ray_x[:, u] + ray_y[:, v]``, scaled to
            fixed-point units per metre of depth.
        origin: (3,) float64 camera position in fixed-point units.
        T_camera_world: (4, 4) float64.
        intrinsics: of the images.
        stamp_ns: of the frame.
    """

    depth_m: NDArray[np.float32]
    color: NDArray[np.uint8]
    ray_x: NDArray[np.float64]
    ray_y: NDArray[np.float64]
    origin: NDArray[np.float64]
    T_camera_world: NDArray[np.float64]
    intrinsics: Intrinsics
    stamp_ns: int

    @cached_property
    def farthest_m(self) -> float:
        """Largest depth."""
        return float(self.depth_m.max())

    @staticmethod
    def of(posed: PosedFrame, voxel_size_m: float) -> FrameView:
        """Prepare ``posed`` for a map of the given voxel size."""
        frame, T, k = posed.frame, posed.T_world_camera, posed.frame.intrinsics
        scale = OFFSET_UNITS / voxel_size_m
        M = T[:3, :3] * scale
        x = (np.arange(k.width) - k.cx) / k.fx
        y = (np.arange(k.height) - k.cy) / k.fy
        return FrameView(
            depth_m=_read_only(frame.depth_m),
            color=_read_only(frame.color),
            ray_x=M[:, 0:1] * x[None, :],
            ray_y=M[:, 1:2] * y[None, :] + M[:, 2:3],
            origin=T[:3, 3] * scale,
            T_camera_world=invert_transform(T),
            intrinsics=k,
            stamp_ns=frame.stamp_ns,
        )

    def side_planes(self) -> NDArray[np.float64]:
        """(4, 2) inward unit normals of the frustum's left, right (x, z), top and bottom (y, z) planes."""
        k = self.intrinsics
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

    def bands(self) -> list[tuple[int, int]]:
        """Row ranges of at most ``BAND_PIXELS`` pixels (always at least one row)."""
        height, width = self.depth_m.shape
        rows = max(1, BAND_PIXELS // width)
        return [(v, min(v + rows, height)) for v in range(0, height, rows)]


def _read_only(image: NDArray[ImageT]) -> NDArray[ImageT]:
    """Contiguous read-only view: of every image alike, since kernels compile for each kind of array."""
    view: NDArray[ImageT] = np.ascontiguousarray(image).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True)
class ClearingRule:
    """When a depth image sees through a stored voxel.

    The voxel's centre must project at least ``r`` pixels inside the image, on a pixel of known depth, and lie in
    ``[min_range_m, max_range_m]``; every known depth in the (2r + 1)^2 pixels around it must exceed ``z + margin_m +
    margin_per_m2 * z^2 + half_diagonal_m``, with ``r = window_rad * fx``, at least 1. The nearest depth of the window
    decides, so that edges, thin objects and single wrong pixels make no holes.

    Where all known pixels of the window lie on one plane, within the margin, that plane decides instead. A floor seen
    at a low angle is nearer by decimetres one pixel further down, and the lowest voxels of a removed object would
    never be cleared. The plane's depth on the voxel's ray must exceed the same limit, and the whole voxel must lie
    ``margin_m`` in front of the plane, measured perpendicular to it.

    Unknown pixels reduce the loss of evidence by their share (:func:`evidence_step`), to zero above a third: an object
    that the sensor cannot measure may stand there.
    """

    min_range_m: float
    max_range_m: float
    margin_m: float
    margin_per_m2: float
    half_diagonal_m: float
    window_rad: float

    def window_px(self, intrinsics: Intrinsics) -> int:
        """``r`` in pixels."""
        return max(1, round(self.window_rad * intrinsics.fx))


def evidence_step(unknown: ArrayT, pixels: int) -> ArrayT:
    """Loss of evidence, in 1/16 log-odds, of a voxel seen through in a window of ``pixels``; 0 where more than a third
    is ``unknown``. For integers and integer tensors."""
    step: ArrayT = (EVIDENCE_MISS * (pixels - unknown)) // pixels * (3 * unknown <= pixels)
    return step


@dataclass
class FusionProgress:
    """Progress of the fusion of one frame: the CPU continues there after a device failed, and no point counts twice.

    Attributes:
        evicted: whether blocks beyond the radius have been evicted.
        bands: number of bands of rows whose points have been added.
        cleared: whether the frame is complete.
        counts: of the work so far.
    """

    evicted: bool = False
    bands: int = 0
    cleared: bool = False
    counts: list[Arriving] = field(default_factory=list)

    def restart(self) -> None:
        """Start again, on a map without the frame."""
        self.evicted, self.bands, self.cleared = False, 0, False
        self.counts.clear()


@dataclass(frozen=True)
class MapSize:
    """Blocks and voxels stored now; block slots used so far, and allocated."""

    blocks: int
    voxels: int
    slots_used: int
    slots: int


class StageClock:
    """Wall time by stage, in milliseconds."""

    def __init__(self, stage_ms: dict[str, float] | None = None) -> None:
        self.stage_ms = {} if stage_ms is None else stage_ms
        self._last = perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to ``stage``."""
        now = perf_counter()
        self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + (now - self._last) * 1e3
        self._last = now


class VoxelMap(Protocol):
    """Voxels in blocks; implemented for the CPU, and in Warp for CUDA devices."""

    device: torch.device

    @property
    def is_empty(self) -> bool:
        """Whether no voxel is stored; a device may report a cleared map late."""
        ...

    def size(self) -> MapSize:
        """Size of the map."""
        ...

    def fuse(
        self,
        view: FrameView,
        center_m: NDArray[np.float64],
        rule: ClearingRule,
        done: FusionProgress,
        clock: StageClock,
    ) -> None:
        """Fuse one frame, continuing from ``done``, which is updated.

        Evicts blocks beyond the radius around the camera at ``center_m``, adds the points, and lowers the evidence of
        voxels that the view sees through by ``rule``.
        """
        ...

    def gather(
        self, min_hits: int, lower: NDArray[np.float64] | None = None, upper: NDArray[np.float64] | None = None
    ) -> VoxelRows:
        """Copy voxels with at least ``min_hits`` (>= 1) points.

        ``lower``, ``upper``: (3,) in block edges, to restrict the copy to the blocks that overlap this box.
        """
        ...

    def copy(self, min_hits: int) -> VoxelRows:
        """:meth:`gather` the whole map into host memory, for other threads; the CPU map copies changed blocks only."""
        return self.gather(min_hits)  # a device that fails does so here, where the map can still be moved

    def prepare_copy(self) -> None:
        """Allocate memory that the next :meth:`copy` needs, in the thread that copies; fusion may run meanwhile."""
        return

    def put(self, rows: VoxelRows) -> None:
        """Store voxels in an empty map that has room for them."""
        ...

    def remove(self, coords: NDArray[np.int32]) -> None:
        """Remove single stored voxels, (N, 3) distinct."""
        ...

    def drop(self, slots: NDArray[np.int32], keys: NDArray[np.int64]) -> None:
        """Spill and empty evicted blocks."""
        ...

    def is_free(self, slots: NDArray[np.int32], local: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(N,) whether places are empty."""
        ...

    def fill(
        self, keys: NDArray[np.int64], slots: NDArray[np.int32], local: NDArray[np.int64], rows: VoxelRows
    ) -> None:
        """Write distinct voxels into empty places of the blocks ``keys`` (N,) in ``slots`` (N,)."""
        ...

    def clear(self) -> None:
        """Remove all voxels."""
        ...
