"""Random 9-DoF boxes."""

from __future__ import annotations

import math

import torch


def random_boxes(n: int, seed: int = 0, room_m: float = 2.0, tilt: float = math.pi) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    boxes = torch.rand(n, 9, generator=g, dtype=torch.float64)
    boxes[:, :3] = (boxes[:, :3] - 0.5) * room_m
    boxes[:, 3:6] = 0.1 + 1.4 * boxes[:, 3:6]
    boxes[:, 6] = (boxes[:, 6] - 0.5) * 2 * math.pi
    boxes[:, 7:] = (boxes[:, 7:] - 0.5) * 2 * tilt
    return boxes
