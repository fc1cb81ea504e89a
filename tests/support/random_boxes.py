"""Random 9-DoF boxes, and plain functions of boxes to compare with."""

from __future__ import annotations

import math

import torch

from embodied_perceptron.geometry.boxes import to_box_frames


def random_boxes(n: int, seed: int = 0, room_m: float = 2.0, tilt: float = math.pi) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    boxes = torch.rand(n, 9, generator=g, dtype=torch.float64)
    boxes[:, :3] = (boxes[:, :3] - 0.5) * room_m
    boxes[:, 3:6] = 0.1 + 1.4 * boxes[:, 3:6]
    boxes[:, 6] = (boxes[:, 6] - 0.5) * 2 * math.pi
    boxes[:, 7:] = (boxes[:, 7:] - 0.5) * 2 * tilt
    return boxes


def first_columns(R: torch.Tensor) -> torch.Tensor:
    """(..., 3, 3) rotations -> (..., 6) the 6-D form: first and second column."""
    return torch.cat([R[..., :, 0], R[..., :, 1]], dim=-1)


def face_distances(points: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """(P, 3), (N, 9) -> (P, N, 6) signed distances to the faces -x +x -y +y -z +z; all >= 0 inside."""
    local, half = to_box_frames(points, boxes), 0.5 * boxes[None, :, 3:6]
    return torch.stack([half + local, half - local], dim=-1).flatten(-2)
