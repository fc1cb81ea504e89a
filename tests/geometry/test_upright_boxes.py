"""The canonical form of boxes: z up, x the longer side, the same solid."""

from __future__ import annotations

import math

import pytest
import torch
from support.random_boxes import random_boxes

from embodied_perceptron.geometry.boxes import box_iou, canonical_boxes, corners, make_boxes, rotations

DEG = math.pi / 180


def canonical(boxes: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(canonical_boxes(boxes.numpy()))


def relabelled(box: torch.Tensor) -> torch.Tensor:
    """(24, 9) all namings of the axes of one solid."""
    R, sizes = rotations(box), box[3:6]
    out = []
    for p in ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2)):
        for sx in (1, -1):
            for sy in (1, -1):
                x, y = sx * R[:, p[0]], sy * R[:, p[1]]
                M = torch.stack([x, y, torch.linalg.cross(x, y)], -1)
                out.append(make_boxes(box[None, :3], sizes[list(p)][None], M[None])[0])
    return torch.stack(out)


def test_the_solid_stays_and_all_namings_of_it_become_one() -> None:
    for box in random_boxes(40, seed=4, tilt=0.6):
        names = relabelled(box)
        same = canonical(names)
        assert box_iou(same, box[None]).min() > 1 - 1e-9
        torch.testing.assert_close(same, same[:1].expand_as(same), atol=1e-9, rtol=0)
        torch.testing.assert_close(canonical(same), same, atol=1e-9, rtol=0)


def test_the_corners_are_the_same_points() -> None:
    boxes = random_boxes(50, seed=9)
    a, b = corners(boxes), corners(canonical(boxes))
    assert torch.cdist(a, b).min(dim=2)[0].max() < 1e-9


def test_axes_follow_the_rule() -> None:
    boxes = canonical(random_boxes(500, seed=2))
    R, sizes, alpha = rotations(boxes), boxes[:, 3:6], boxes[:, 6]
    assert (R[:, 2, 2] > 0).all()
    assert (R[:, 2, 2] >= R[:, 2, :2].abs().amax(1) - 1e-12).all()
    assert (sizes[:, 0] >= sizes[:, 1]).all()
    assert ((alpha > -math.pi / 2 - 1e-12) & (alpha <= math.pi / 2 + 1e-12)).all()
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(500, dtype=torch.float64))


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ((0, 0, 0.4, 2, 1, 0.8, 0, 0, math.pi), (0, 0, 0.4, 2, 1, 0.8, 0, 0, 0)),  # upside down, as networks give it
        ((1, 2, 3, 1, 2, 0.5, 0, 0, 0), (1, 2, 3, 2, 1, 0.5, math.pi / 2, 0, 0)),  # shorter side first
        ((0, 0, 0, 2, 1, 1, 170 * DEG, 0, 0), (0, 0, 0, 2, 1, 1, -10 * DEG, 0, 0)),
        ((0, 0, 0, 1, 1, 2, 80 * DEG, 0, 0), (0, 0, 0, 1, 1, 2, -10 * DEG, 0, 0)),  # square: the least turn
        ((0, 0, 0, 0.1, 0.9, 0.2, 0, math.pi / 2, 0), (0, 0, 0, 0.2, 0.1, 0.9, math.pi / 2, 0, 0)),  # a standing pole
    ],
)
def test_by_hand(box: tuple[float, ...], expected: tuple[float, ...]) -> None:
    got = canonical(torch.tensor([box], dtype=torch.float64))
    torch.testing.assert_close(got, torch.tensor([expected], dtype=torch.float64), atol=1e-9, rtol=0)


def test_nothing_becomes_nothing() -> None:
    assert canonical(torch.zeros(0, 9)).shape == (0, 9)
