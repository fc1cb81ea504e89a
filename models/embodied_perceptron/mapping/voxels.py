"""What is stored per voxel, and what a frame looks like to the kernels.

Everything that is accumulated is an integer, so sums do not depend on the order of the points: the compiled CPU kernels
and the torch kernels, on any device, give the same map bit for bit.

* Points are fixed-point numbers in 1/1024 voxel (20 micrometres at 0.02 m): ``floor(p / s * 1024)``. The upper bits are
  the voxel coordinate, the lower ten the place inside of the voxel.
* Sums stay below 2^31: a voxel's sums are halved together with its count once it holds more than ``HITS_CAP`` points
  (so the mean slowly forgets), and images are taken in bands of rows of at most ``BAND_PIXELS`` pixels.
* Occupancy evidence is a log-odds in 1/16: one step up per frame that hits the voxel, one step down per frame that sees
  through it (less where pixels are missing), clamped above; a voxel whose evidence falls below zero is removed. From
  the clamp eight frames suffice, 1.6 s at 5 Hz, and two after a single sighting.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.compute_path import takes_loops
from embodied_perceptron.geometry.transforms import Intrinsics, invert_transform
from embodied_perceptron.sensors.frame import PosedFrame

OFFSET_BITS = 10
OFFSET_UNITS = 1 << OFFSET_BITS

ImageT = TypeVar("ImageT", bound=np.generic)
ArrayT = TypeVar("ArrayT", int, torch.Tensor)

# columns of a voxel record (int32)
HITS = 0  # points the sums are over; 0 = the voxel is empty
OFFSET = 1  # ..3: sum of the places inside of the voxel, 1/1024 voxel
COLOR = 4  # ..6: sum of RGB
EVIDENCE = 7  # log-odds in 1/16
RECORD = 8

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

    def where(self, mask: torch.Tensor) -> VoxelRows:
        """The rows where ``mask`` (N,) holds."""
        rows = mask.nonzero()[:, 0]
        return VoxelRows(self.coords[rows], self.records[rows], self.last_seen_ns[rows])

    def cpu(self) -> VoxelRows:
        """The same in host memory, copied once."""
        return self if takes_loops(self.coords) else self._copied

    @cached_property
    def _copied(self) -> VoxelRows:
        stamps = self.last_seen_ns[:, None].view(torch.int32)  # (N, 2)
        together = torch.cat([self.coords, self.records, stamps], 1).cpu()
        coords, records, stamps = (together[:, a:b].contiguous() for a, b in ((0, 3), (3, -2), (-2, None)))
        return VoxelRows(coords, records, stamps.view(torch.int64)[:, 0])


@dataclass(frozen=True, eq=False)
class FrameView:
    """One frame, prepared for the kernels.

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
    """A contiguous view that may not be written; drivers' images are so too, and kernels compile once per kind."""
    view: NDArray[ImageT] = np.ascontiguousarray(image).view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True)
class ClearingRule:
    """When a stored voxel counts as seen through by a depth image.

    Its centre must project at least ``r`` pixels inside of the image, on a pixel of known depth, and lie in
    ``[min_range_m, max_range_m]``; every known depth in the (2r + 1)^2 pixels around it must exceed ``z + margin_m +
    margin_per_m2 * z^2 + half_diagonal_m``, with ``r = window_rad * fx``, at least 1. So edges, thin things and single
    wrong pixels do not make holes: the nearest depth around counts.

    Where all that the window knows lies on one plane, within the margin, that plane counts instead of the nearest
    depth. A floor seen at a low angle is nearer by decimetres one pixel further down, and what had stood on it would
    stay for ever: a layer of voxels, clear of the floor, as high as the next pixel's ray. The plane's depth on the
    voxel's own ray must exceed the same limit, and the whole voxel must lie ``margin_m`` in front of the plane,
    measured across it: at a low angle a long way along the ray is a short one off the surface.

    Unknown pixels say nothing: evidence falls in proportion to the share of the window that is known
    (:func:`evidence_step`), and not at all where a third of it is missing, since what a sensor never measures
    may stand there. Dropouts thus slow clearing down by their share instead of stopping it.
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
    """Loss of evidence, 1/16 log-odds, of a voxel seen through in a window of ``pixels``, ``unknown`` of them missing.

    Works on integers and integer arrays or tensors alike; 0 where more than a third is missing.
    """
    step: ArrayT = (EVIDENCE_MISS * (pixels - unknown)) // pixels * (3 * unknown <= pixels)
    return step


@dataclass(frozen=True, eq=False)
class FrameVoxels:
    """First half of taking a band of rows in.

    Attributes:
        block_keys: (B,) int64 distinct keys of the blocks that the points fall into.
        points: valid pixels.
        out_of_range: of these, points too far from the world's origin for a voxel key.
    """

    block_keys: NDArray[np.int64]
    points: int
    out_of_range: int


@dataclass(frozen=True)
class MergeCounts:
    """Second half: what the band changed.

    Attributes:
        touched: voxels that received points, for the first time in this image.
        created: of these, voxels that were empty before.
        refused_points: points of blocks without a slot.
    """

    touched: int
    created: int
    refused_points: int


class VoxelStore(Protocol):
    """Voxel tensors and the operations on them; one implementation for the CPU, one in plain torch for any device."""

    records: torch.Tensor
    """(capacity, 512, 8) int32, see the column constants."""
    last_seen_ns: torch.Tensor
    """(capacity, 512) int64 stamp of the newest frame with points in the voxel."""

    def accumulate(self, view: FrameView, rows: tuple[int, int], min_range_m: float, max_range_m: float) -> FrameVoxels:
        """Accumulate a band's points by voxel, apart from the map."""
        ...

    def merge(self, slots: NDArray[np.int32], stamp_ns: int, first_band: bool) -> MergeCounts:
        """Add the scanned band to the map; ``slots`` belongs to ``FrameVoxels.block_keys``, -1 = refused.

        In later bands of an image, voxels that were already seen at ``stamp_ns`` are not counted as touched again.
        """
        ...

    def clear(
        self,
        view: FrameView,
        rule: ClearingRule,
        voxel_size_m: float,
        slots: NDArray[np.int32],
        coords: NDArray[np.int32],
    ) -> tuple[int, NDArray[np.int32]]:
        """Lower the evidence of what the view sees through in the given blocks.

        Returns the number of voxels removed and the slots of blocks left empty.
        """
        ...

    def erase(self, slots: NDArray[np.int32]) -> int:
        """Empty whole blocks; returns how many voxels they held."""
        ...

    def remove(self, slots: NDArray[np.int32], local: NDArray[np.int64]) -> NDArray[np.int32]:
        """Empty single voxels (distinct, occupied); returns the slots of blocks left empty."""
        ...

    def gather(self, slots: NDArray[np.int32], coords: NDArray[np.int32], min_hits: int) -> VoxelRows:
        """Copy voxels with at least ``min_hits`` (>= 1) points of blocks given in key order."""
        ...

    def put(self, slots: NDArray[np.int32], local: NDArray[np.int64], rows: VoxelRows) -> None:
        """Write voxels (distinct) into empty places."""
        ...
