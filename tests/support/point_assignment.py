"""The assignment of points to boxes for one scene, point by point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_perceptron_training.training.criteria import PaddedBoxes, ScenePoints, assign_batch


@dataclass(frozen=True)
class PointAssignment:
    """One scene's points and the boxes that they learn."""

    box: Tensor  # (P,) int64 index of the box of each point, -1 for background
    centerness: Tensor  # (P,) target in (0, 1]; 0 for background
    level: Tensor  # (G,) int64 level on which each box is learned

    @property
    def positive(self) -> Tensor:
        """(P,) bool."""
        return self.box >= 0


def assign_points(
    points: list[Tensor],
    boxes: Tensor,
    min_points: int = 27,
    top_points: int = 18,
    min_size_m: float = 0.0,
    released: bool = False,
) -> PointAssignment:
    """:func:`assign_batch` for one scene, point by point.

    Args:
        points: per level (N_l, 3) metres, finest first; the result runs over their concatenation.
        boxes: (G, 9).
        min_points, top_points, min_size_m, released: see there.
    """
    P = sum(len(p) for p in points)
    box, centerness = torch.full((P + 1,), -1, device=boxes.device), boxes.new_zeros(P + 1)
    if P == 0 or len(boxes) == 0:
        return PointAssignment(box[:P], centerness[:P], torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device))
    scene = ScenePoints.of(points, [[0, len(p)] for p in points])
    found = assign_batch(scene, PaddedBoxes.of([boxes]), min_points, top_points, min_size_m, released)
    rows = torch.where(found.taken, found.row, P)
    box.scatter_(0, rows, found.box)
    centerness.scatter_(0, rows, found.centerness)
    return PointAssignment(box[:P], centerness[:P], found.level[0])
