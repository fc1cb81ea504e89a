"""Axis-aligned bounds of boxes, and how much they share: cheap, and exact for boxes along the axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_perceptron.geometry.boxes import euler_to_matrix

F64 = NDArray[np.float64]
_LEAST_M3 = 1e-9


def box_rotations(boxes: F64) -> F64:
    """(N, 9) -> (N, 3, 3) world <- box: :func:`~embodied_perceptron.geometry.boxes.rotations` of arrays, float64."""
    R: F64 = euler_to_matrix(torch.from_numpy(np.array(boxes[:, 6:9], dtype=np.float64))).numpy()
    return R


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
