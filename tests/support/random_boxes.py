"""Random 9-DoF boxes, the overlap of their footprints, and plain functions of boxes to compare with."""

from __future__ import annotations

import math

import torch

from embodied_perceptron.geometry.boxes import footprint_overlaps, footprints, to_box_frames


def random_boxes(n: int, seed: int = 0, room_m: float = 2.0, tilt: float = math.pi) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    boxes = torch.rand(n, 9, generator=g, dtype=torch.float64)
    boxes[:, :3] = (boxes[:, :3] - 0.5) * room_m
    boxes[:, 3:6] = 0.1 + 1.4 * boxes[:, 3:6]
    boxes[:, 6] = (boxes[:, 6] - 0.5) * 2 * math.pi
    boxes[:, 7:] = (boxes[:, 7:] - 0.5) * 2 * tilt
    return boxes


def footprint_areas(boxes: torch.Tensor) -> torch.Tensor:
    """(N, 9) -> (N,) area of the projections, square metres."""
    p = footprints(boxes)
    q = p.roll(-1, dims=1)
    return 0.5 * (p[..., 0] * q[..., 1] - p[..., 1] * q[..., 0]).sum(1)


def footprint_iou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(N, 9), (M, 9) -> (N, M) IoU of the projections."""
    inter = footprint_overlaps(a.double(), b.double())
    union = footprint_areas(a.double())[:, None] + footprint_areas(b.double())[None].to(inter.device) - inter
    return torch.where(union > 0, inter / torch.where(union > 0, union, 1.0), 0.0).clamp(0.0, 1.0).to(a.dtype)


def first_columns(R: torch.Tensor) -> torch.Tensor:
    """(..., 3, 3) rotations -> (..., 6) the 6-D form: first and second column."""
    return torch.cat([R[..., :, 0], R[..., :, 1]], dim=-1)


def face_distances(points: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """(P, 3), (N, 9) -> (P, N, 6) signed distances to the faces -x +x -y +y -z +z; all >= 0 inside."""
    local, half = to_box_frames(points, boxes), 0.5 * boxes[None, :, 3:6]
    return torch.stack([half + local, half - local], dim=-1).flatten(-2)
