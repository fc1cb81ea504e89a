"""Boxes found in one perception, before they have an identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOW_CONFIDENCE_SHARE = (
    0.5  # of the score of an object: what scores less says nothing, be it of a known object or of a new one
)


@dataclass(frozen=True, eq=False)
class Detections:
    """Boxes of one perception.

    Attributes:
        boxes: (B, 9) float64 x y z dx dy dz alpha beta gamma, world frame.
        scores: (B,) float64 in [0, 1].
        labels: class name of each.

    Raises ``ValueError`` naming the field when lengths differ, a number is not finite, a size is not positive or a
    score lies outside of [0, 1].
    """

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.boxes.ndim != 2 or self.boxes.shape[1] != 9:
            raise ValueError(f"boxes must be (B, 9), got {self.boxes.shape}")
        if self.scores.shape != (len(self.boxes),) or len(self.labels) != len(self.boxes):
            raise ValueError(
                f"{len(self.boxes)} boxes, but scores are {self.scores.shape} and there are {len(self.labels)} labels"
            )
        if not np.isfinite(self.boxes).all():
            raise ValueError(f"box {int(np.argwhere(~np.isfinite(self.boxes))[0, 0])} has non-finite entries")
        if not (self.boxes[:, 3:6] > 0).all():
            raise ValueError(f"box {int(np.argwhere(~(self.boxes[:, 3:6] > 0))[0, 0])} has a size that is not positive")
        if not ((self.scores >= 0) & (self.scores <= 1)).all():
            raise ValueError(f"scores must be in [0, 1], got {self.scores.tolist()}")

    def __len__(self) -> int:
        return int(self.boxes.shape[0])

    def above(self, min_score: float) -> Detections:
        """Those with at least ``min_score``, in the same order."""
        return self.take(np.flatnonzero(self.scores >= min_score))

    def take(self, rows: NDArray[np.integer[Any]]) -> Detections:
        """Some of them, in the order of ``rows``."""
        return Detections(self.boxes[rows], self.scores[rows], tuple(self.labels[i] for i in rows))
