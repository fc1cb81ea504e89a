"""Boxes: rotations, corners, points inside, moving."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from support.golden import GOLDEN
from support.random_boxes import first_columns, random_boxes

from embodied_perceptron.geometry import boxes as bx
from embodied_perceptron.geometry.transforms import make_transform

angle = st.floats(-math.pi, math.pi)
PROFILE = settings(max_examples=60, deadline=None)


def same_solid(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-9) -> bool:
    """Both boxes have the same eight corners, in whatever order."""
    distance = torch.cdist(bx.corners(a), bx.corners(b))
    return bool((distance.min(2).values < tolerance).all() and (distance.min(1).values < tolerance).all())


# ---------------------------------------------------------------------------------------------------------- rotations


def test_euler_to_matrix_by_hand() -> None:
    quarter = math.pi / 2
    R = bx.euler_to_matrix(torch.tensor([[quarter, 0.0, 0.0], [0.0, quarter, 0.0], [0.0, 0.0, quarter]]))
    x, y, z = torch.eye(3)
    torch.testing.assert_close(R[0] @ x, y)  # alpha about z
    torch.testing.assert_close(R[1] @ y, z)  # beta about x
    torch.testing.assert_close(R[2] @ z, x)  # gamma about y


@PROFILE
@given(angle, angle, angle)
def test_euler_is_intrinsic_zxy(alpha: float, beta: float, gamma: float) -> None:
    R = bx.euler_to_matrix(torch.tensor([alpha, beta, gamma], dtype=torch.float64))
    expected = Rotation.from_euler("ZXY", [alpha, beta, gamma]).as_matrix()
    np.testing.assert_allclose(R.numpy(), expected, atol=1e-12)


@PROFILE
@given(angle, st.one_of(angle, st.sampled_from([math.pi / 2, -math.pi / 2])), angle)
def test_matrix_survives_euler_and_sixd(alpha: float, beta: float, gamma: float) -> None:
    R = bx.euler_to_matrix(torch.tensor([[alpha, beta, gamma]], dtype=torch.float64))
    torch.testing.assert_close(bx.euler_to_matrix(bx.matrix_to_euler(R)), R, atol=1e-12, rtol=0)
    torch.testing.assert_close(bx.sixd_to_matrix(first_columns(R)), R, atol=1e-12, rtol=0)


def test_euler_angles_survive_below_quarter_turn_of_beta() -> None:
    angles = random_boxes(200, tilt=1.5)[:, 6:]
    torch.testing.assert_close(bx.matrix_to_euler(bx.euler_to_matrix(angles)), angles, atol=1e-9, rtol=0)


def test_gimbal_lock_has_finite_gradients() -> None:
    R = bx.euler_to_matrix(torch.tensor([[0.3, math.pi / 2, 0.4]], dtype=torch.float64)).requires_grad_()
    bx.matrix_to_euler(R).sum().backward()
    assert R.grad is not None
    assert torch.isfinite(R.grad).all()


def test_sixd_of_degenerate_vectors_is_a_rotation_with_finite_gradients() -> None:
    cases = torch.tensor([[0.0] * 6, [1, 2, 3, 0, 0, 0], [0, 0, 0, 1, 2, 3], [1, 2, 3, 2, 4, 6], [0, 1, 0, 0, 5, 0]])
    cases = cases.double().requires_grad_()
    R = bx.sixd_to_matrix(cases)
    torch.testing.assert_close(R @ R.transpose(1, 2), torch.eye(3, dtype=torch.float64).expand(5, 3, 3))
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(5, dtype=torch.float64))
    (R * torch.randn(R.shape, dtype=torch.float64)).sum().backward()
    assert cases.grad is not None
    assert torch.isfinite(cases.grad).all()


def test_sixd_passes_nan_on() -> None:
    assert torch.isnan(bx.sixd_to_matrix(torch.tensor([[float("nan"), 0, 0, 0, 1, 0]]))).any()


def test_rotation_gradients() -> None:
    g = torch.Generator().manual_seed(3)
    sixd = torch.randn(4, 6, generator=g, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(bx.sixd_to_matrix, (sixd,))
    assert torch.autograd.gradcheck(lambda s: bx.matrix_to_euler(bx.sixd_to_matrix(s)), (sixd,))


# ------------------------------------------------------------------------------------------------------------- points


def test_corners_by_hand() -> None:
    corners = bx.corners(torch.tensor([[1.0, 2.0, 3.0, 2.0, 4.0, 6.0, 0.0, 0.0, 0.0]]))[0]
    expected = [[x, y, z] for x in (0.0, 2.0) for y in (0.0, 4.0) for z in (0.0, 6.0)]
    torch.testing.assert_close(corners, torch.tensor(expected))
    turned = bx.corners(torch.tensor([[0.0, 0.0, 0.0, 2.0, 4.0, 6.0, math.pi / 2, 0.0, 0.0]]))[0]
    torch.testing.assert_close(turned[7], torch.tensor([-2.0, 1.0, 3.0]))


def test_points_in_tilted_boxes() -> None:
    """Points laid out in the box's own frame are found by their coordinates there, whatever the tilt."""
    boxes = random_boxes(20, seed=1)
    g = torch.Generator().manual_seed(2)
    local = (torch.rand(20, 30, 3, generator=g, dtype=torch.float64) - 0.5) * 2.4  # in half sizes
    points = torch.einsum("nij,npj->npi", bx.rotations(boxes), local * 0.5 * boxes[:, None, 3:6]) + boxes[:, None, :3]
    for n in range(20):
        expected = (local[n].abs() <= 1).all(1)
        assert torch.equal(bx.points_in_boxes(points[n], boxes)[:, n], expected)


def test_points_in_boxes_in_chunks_and_empty() -> None:
    boxes, points = random_boxes(7), random_boxes(50, seed=5)[:, :3]
    assert torch.equal(bx.points_in_boxes(points, boxes, chunk=20), bx.points_in_boxes(points, boxes))
    assert bx.points_in_boxes(points[:0], boxes).shape == (0, 7)
    assert bx.points_in_boxes(points, boxes[:0]).shape == (50, 0)
    with pytest.raises(ValueError, match=r"\(4, 2\)"):
        bx.points_in_boxes(torch.zeros(4, 2), boxes)


# ------------------------------------------------------------------------------------------------------------- moving


def test_transform_boxes_moves_corners() -> None:
    boxes = random_boxes(50, seed=7)
    T = make_transform(Rotation.from_euler("xyz", [0.4, -0.8, 2.0]).as_matrix(), np.array([1.0, 2.0, -3.0]))
    moved = bx.corners(bx.transform_boxes(T, boxes))
    expected = bx.corners(boxes) @ torch.from_numpy(T[:3, :3]).T + torch.from_numpy(T[:3, 3])
    torch.testing.assert_close(moved, expected)
    torch.testing.assert_close(bx.corners(bx.transform_boxes(torch.from_numpy(T), boxes)), expected)
    back = bx.transform_boxes(np.linalg.inv(T), bx.transform_boxes(T, boxes))
    torch.testing.assert_close(bx.corners(back), bx.corners(boxes))
    with pytest.raises(ValueError, match="rigid"):
        bx.transform_boxes(np.diag([2.0, 2.0, 2.0, 1.0]), boxes)


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        (torch.zeros(3, 7), r"\(3, 7\)"),
        (torch.zeros(3, 9, dtype=torch.int64), "int64"),
        (torch.full((1, 9), float("nan")), r"\[0\]"),
        (torch.tensor([[0.0] * 9, [0, 0, 0, 1, -1, 1, 0, 0, 0]]), r"\[1\].*negative"),
    ],
)
def test_check_boxes_names_the_offender(boxes: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bx.check_boxes(boxes)


# ------------------------------------------------------------------------------------------------------------- golden


@pytest.mark.golden
def test_golden_box_geometry() -> None:
    z = np.load(GOLDEN / "box_geometry.npz")
    g = {k: torch.from_numpy(z[k]) for k in z.files if z[k].ndim}
    boxes = g["boxes"]
    ours_from_released = [0, 1, 3, 2, 4, 5, 7, 6]  # the release walks around each x face
    torch.testing.assert_close(bx.corners(boxes), g["corners"][:, ours_from_released], atol=1e-5, rtol=0)
    torch.testing.assert_close(bx.corners(boxes).flip(1), g["loss_corners"], atol=1e-5, rtol=0)
    torch.testing.assert_close(bx.rotations(boxes), g["rotmat"], atol=1e-6, rtol=0)
    torch.testing.assert_close(bx.matrix_to_euler(g["rotmat"]), g["euler_back"], atol=1e-5, rtol=0)
    torch.testing.assert_close(bx.sixd_to_matrix(g["sixd"]), g["sixd_matrix"], atol=1e-6, rtol=0)
    torch.testing.assert_close(bx.matrix_to_euler(g["sixd_matrix"]), g["sixd_euler"], atol=1e-5, rtol=0)
    torch.testing.assert_close(bx.volumes(boxes), g["volume"])
    moved = bx.transform_boxes(g["transform_matrix"].double(), boxes)
    torch.testing.assert_close(bx.corners(moved), bx.corners(g["transformed"]), atol=1e-5, rtol=0)
    for name in ("yaw", "euler"):
        T = make_transform(g[f"rotate_{name}_matT"].double().T.numpy(), np.zeros(3))
        turned = bx.corners(bx.transform_boxes(T, boxes))
        torch.testing.assert_close(turned, bx.corners(g[f"rotate_{name}"]), atol=1e-5, rtol=0)
    assert torch.equal(bx.points_in_boxes(g["fd_points"], boxes[:10]), g["fd_inside_true"])


def test_angles_near_the_lock_keep_the_rotation() -> None:
    """Alpha and gamma come from rounding there, but must come from the same."""
    base = Rotation.from_euler("xyz", [np.pi / 2, 0.0, 1.0]).as_matrix()
    for nudge in (1e-16, 3.87e-15, 1e-14, 1e-12, 1e-9, 1e-6):
        for axis in range(3):
            R = torch.from_numpy(base @ Rotation.from_rotvec(nudge * np.eye(3)[axis]).as_matrix())
            torch.testing.assert_close(bx.euler_to_matrix(bx.matrix_to_euler(R)), R, atol=1e-13, rtol=0)
