"""Axis-aligned bounds of boxes, and how much they share: cheap, and exact for boxes along the axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_LEAST_M3 = 1e-9


def box_rotations(boxes: F64) -> F64:
    """(N, 9) -> (N, 3, 3) R = Rz(alpha) Rx(beta) Ry(gamma); columns are the boxes' axes."""
    ca, cb, cg = np.cos(boxes[:, 6:9]).T
    sa, sb, sg = np.sin(boxes[:, 6:9]).T
    rows = [
        [ca * cg - sa * sb * sg, -sa * cb, ca * sg + sa * sb * cg],
        [sa * cg + ca * sb * sg, ca * cb, sa * sg - ca * sb * cg],
        [-cb * sg, sb, cb * cg],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


@dataclass(frozen=True, eq=False)
class Bounds:
    """Of N things, along the axes of some frame.

    Attributes:
        low, high: (N, 3) metres.
    """

    low: F64
    high: F64

    @classmethod
    def of(cls, boxes: F64, turn: F64 | None = None) -> Bounds:
        """Of (N, 9) boxes; ``turn`` (2, 2): of the boxes turned about gravity and the origin."""
        center, R = boxes[:, :3].copy(), box_rotations(boxes)
        if turn is not None:
            center[:, :2] = center[:, :2] @ turn.T
            R[:, :2, :] = turn @ R[:, :2, :]
        half = 0.5 * (np.abs(R) @ boxes[:, 3:6, None])[..., 0]
        return cls(center - half, center + half)

    @cached_property
    def extent(self) -> F64:
        """(N, 3) metres."""
        return np.asarray(self.high - self.low)

    @cached_property
    def volume(self) -> F64:
        """(N,) cubic metres, never quite nothing."""
        return np.asarray(np.maximum(self.extent.prod(axis=1), _LEAST_M3))

    def common_extent(self, other: Bounds, axis: int) -> F64:
        """(N, M) metres that each shares with each of ``other`` along one axis."""
        high = np.minimum(self.high[:, None, axis], other.high[None, :, axis])
        return np.asarray(np.maximum(high - np.maximum(self.low[:, None, axis], other.low[None, :, axis]), 0.0))

    def common_volume(self, other: Bounds) -> F64:
        """(N, M) cubic metres."""
        x, y, z = (self.common_extent(other, axis) for axis in range(3))
        return np.asarray(x * y * z)

    def iou(self, other: Bounds) -> F64:
        """(N, M) of the bounds."""
        common = self.common_volume(other)
        return np.asarray(common / (self.volume[:, None] + other.volume[None] - common))
