"""From regressed numbers to 9-DoF boxes: the two box coders of the heads.

Both take the point that predicts and its raw regression; a regression of 12 numbers ends with a 6-D rotation (Zhou et
al.), one of 9 with ZXY Euler angles in radians.
"""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_perceptron.boxes import euler_to_matrix, make_boxes, sixd_to_matrix

# exp() of an untrained or diverging network must stay finite; e^10 = 22 km is far beyond any object
MAX_LOG_SIZE = 10.0
# sizes and face distances of refined queries are never smaller, as in the released code
MIN_SIZE_M = 0.02


def regression_rotation(rotation: Tensor) -> Tensor:
    """(..., 6) 6-D or (..., 3) Euler regression -> (..., 3, 3). ``ValueError`` for another width."""
    if rotation.shape[-1] == 6:
        return sixd_to_matrix(rotation)
    if rotation.shape[-1] == 3:
        return euler_to_matrix(rotation)
    raise ValueError(f"a rotation is regressed by 6 or 3 numbers, got {rotation.shape[-1]}")


def _assemble(centers: Tensor, sizes: Tensor, rotation: Tensor) -> Tensor:
    if rotation.shape[-1] == 3:  # angles pass through as they are, so that losses on them see no wrap
        return torch.cat([centers, sizes, rotation], dim=-1)
    return make_boxes(centers, sizes, regression_rotation(rotation))


def decode_faces(points: Tensor, regression: Tensor) -> Tensor:
    """FCAF3D-style coder: log distances from the point to the box's six faces along the box's own axes.

    Args:
        points: (..., 3) metres.
        regression: (..., 12) or (..., 9): log distances to the faces -x +x -y +y -z +z, then the rotation.

    Returns:
        (..., 9) boxes.
    """
    distances = regression[..., :6].clamp(max=MAX_LOG_SIZE).exp().clamp(min=MIN_SIZE_M)
    rotation = regression[..., 6:]
    centers, sizes = _faces_to_extent(points, distances, regression_rotation(rotation))
    return _assemble(centers, sizes, rotation)


def faces_to_parts(points: Tensor, distances_m: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decode a site's regression; losses take the parts, since Euler angles have exploding gradients near beta = 90.

    Args:
        points: (..., 3) metres.
        distances_m: (..., 6) to the faces -x +x -y +y -z +z, not negative.
        rotation: (..., 6) 6-D rotation, (..., 3) Euler angles, or (..., 2) FCAF3D's Moebius coding of yaw.

    Returns:
        (..., 3) centres, (..., 3) sizes, (..., 3, 3) rotations.
    """
    if rotation.shape[-1] == 2:
        return _moebius_parts(points, distances_m, rotation)
    R = regression_rotation(rotation)
    return *_faces_to_extent(points, distances_m, R), R


def boxes_from_faces(points: Tensor, distances_m: Tensor, rotation: Tensor) -> Tensor:
    """As :func:`faces_to_parts`, but (..., 9) boxes."""
    return make_boxes(*faces_to_parts(points, distances_m, rotation))


def _moebius_parts(points: Tensor, distances_m: Tensor, coded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """FCAF3D (Rukhovich et al., ECCV 2022, section 3.4): yaw and the ratio of the sides, continuous on a Moebius strip.

    The two numbers are ln(w/l) sin(2 yaw) and ln(w/l) cos(2 yaw): turning a box by 90 degrees is swapping its sides.
    The centre moves along the world's axes; a cube has no yaw.
    """
    low, high = distances_m[..., 0::2], distances_m[..., 1::2]
    extent = low + high
    perimeter = extent[..., 0:1] + extent[..., 1:2]
    ratio = coded.norm(dim=-1, keepdim=True).clamp(max=MAX_LOG_SIZE).exp()
    yaw = 0.5 * torch.atan2(coded[..., 0], coded[..., 1])
    side = perimeter / (1.0 + ratio)
    level = torch.zeros_like(yaw)
    sizes = torch.cat([side, side * ratio, extent[..., 2:3]], dim=-1)
    return points + 0.5 * (high - low), sizes, euler_to_matrix(torch.stack([yaw, level, level], dim=-1))


def _faces_to_extent(points: Tensor, distances_m: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    low, high = distances_m[..., 0::2], distances_m[..., 1::2]
    return points + torch.einsum("...ij,...j->...i", R, 0.5 * (high - low)), low + high


def decode_offsets(points: Tensor, regression: Tensor) -> Tensor:
    """Centre coder of the grounding head: offset of the centre in metres, log size, rotation.

    Args:
        points: (..., 3) metres.
        regression: (..., 12) or (..., 9).

    Returns:
        (..., 9) boxes.
    """
    sizes = regression[..., 3:6].clamp(max=MAX_LOG_SIZE).exp().clamp(min=MIN_SIZE_M)
    return _assemble(points + regression[..., :3], sizes, regression[..., 6:])
