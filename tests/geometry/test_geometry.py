"""Transforms, projection and voxel arithmetic against hand-computed values and properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation, Slerp

from embodied_perceptron.geometry import transforms as g


def random_pose(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return g.make_transform(Rotation.random(random_state=seed).as_matrix(), rng.uniform(-5, 5, 3))


@given(st.integers(0, 10_000))
def test_quaternion_round_trip_matches_scipy(seed: int) -> None:
    rotation = Rotation.random(random_state=seed)
    np.testing.assert_allclose(g.quaternion_to_rotation(rotation.as_quat()), rotation.as_matrix(), atol=1e-12)
    q = g.rotation_to_quaternion(rotation.as_matrix())
    assert q[3] >= 0
    np.testing.assert_allclose(g.quaternion_to_rotation(q), rotation.as_matrix(), atol=1e-9)


@pytest.mark.parametrize("axis", [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
def test_half_turns_have_stable_quaternions(axis: list[float]) -> None:
    R = Rotation.from_rotvec(np.pi * np.array(axis, dtype=float)).as_matrix()
    np.testing.assert_allclose(g.quaternion_to_rotation(g.rotation_to_quaternion(R)), R, atol=1e-9)


@pytest.mark.parametrize("bad", [[0, 0, 0, 0], [0, 0, 0, 1.1], [0, 0, 0, np.nan], [np.inf, 0, 0, 1]])
def test_non_unit_quaternions_are_refused_by_value(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="unit norm"):
        g.quaternion_to_rotation(np.array(bad, dtype=float))


def test_float32_quaternions_are_accepted() -> None:
    q = Rotation.random(random_state=3).as_quat().astype(np.float32)
    np.testing.assert_allclose(np.linalg.det(g.quaternion_to_rotation(q)), 1.0, atol=1e-12)


@given(st.integers(0, 1000), st.integers(1001, 2000))
def test_invert_and_transform_points(seed_a: int, seed_b: int) -> None:
    T_a_b, T_b_c = random_pose(seed_a), random_pose(seed_b)
    np.testing.assert_allclose(g.invert_transform(T_a_b) @ T_a_b, np.eye(4), atol=1e-9)
    p_c = np.random.default_rng(seed_a).normal(size=(4, 5, 3))
    np.testing.assert_allclose(
        g.transform_points(T_a_b @ T_b_c, p_c), g.transform_points(T_a_b, g.transform_points(T_b_c, p_c)), atol=1e-9
    )


@given(st.integers(0, 1000), st.floats(0, 1))
def test_interpolation_is_slerp(seed: int, fraction: float) -> None:
    T0, T1 = random_pose(seed), random_pose(seed + 5000)
    T = g.interpolate_transform(T0, T1, fraction)
    expected = Slerp([0, 1], Rotation.from_matrix(np.stack([T0[:3, :3], T1[:3, :3]])))(fraction).as_matrix()
    np.testing.assert_allclose(T[:3, :3], expected, atol=1e-6)
    np.testing.assert_allclose(T[:3, 3], (1 - fraction) * T0[:3, 3] + fraction * T1[:3, 3], atol=1e-12)


def test_interpolation_of_equal_poses_is_that_pose() -> None:
    T = random_pose(1)
    np.testing.assert_allclose(g.interpolate_transform(T, T, 0.3), T, atol=1e-9)


@pytest.mark.parametrize(
    ("T", "message"),
    [
        (np.eye(3), "shape"),
        (np.full((4, 4), np.nan), "non-finite"),
        (np.diag([1.0, 1.0, -1.0, 1.0]), "rigid"),
        (np.diag([2.0, 2.0, 2.0, 1.0]), "rigid"),
        (np.vstack([np.eye(4)[:3], [[0, 0, 0.1, 1]]]), "row"),
    ],
)
def test_bad_transforms_are_named(T: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=f"T_world_camera.*{message}"):
        g.check_transform(T, "T_world_camera")


def test_projection_uses_pixel_centres() -> None:
    camera = g.Intrinsics(fx=100.0, fy=50.0, cx=2.0, cy=1.0, width=5, height=3)
    points, valid = g.back_project(np.full((3, 5), 2.0), camera)
    np.testing.assert_allclose(points[1, 2], (0, 0, 2.0))  # principal point = centre of pixel (2, 1)
    np.testing.assert_allclose(points[0, 0], (-2 * 2 / 100, -1 * 2 / 50, 2.0))
    assert valid.all()
    uv, inside = g.project(points, camera)
    np.testing.assert_allclose(uv[..., 0], np.broadcast_to(np.arange(5), (3, 5)), atol=1e-12)
    assert inside.all()


def test_projection_masks_border_and_behind() -> None:
    camera = g.Intrinsics(1.0, 1.0, 0.0, 0.0, 1, 1)
    points = np.array([[0, 0, 1.0], [0.49, 0, 1], [0.51, 0, 1], [-0.5, -0.5, 1], [0, 0, -1], [0, 0, 0]])
    assert g.project(points, camera)[1].tolist() == [True, True, False, True, False, False]


def test_back_projection_masks_unknown_depth() -> None:
    camera = g.Intrinsics(1.0, 1.0, 0.0, 0.0, 4, 1)
    points, valid = g.back_project(np.array([[0.0, np.nan, np.inf, 1.0]]), camera)
    assert valid.tolist() == [[False, False, False, True]]
    assert np.isfinite(points).all()


def test_resized_intrinsics_keep_pixel_centres_aligned() -> None:
    camera = g.Intrinsics(100.0, 100.0, 319.5, 239.5, 640, 480)
    half = camera.resized(320, 240)
    assert (half.cx, half.cy) == (159.5, 119.5)  # the image's middle stays its middle
    assert half.fx == 50.0
    assert half.resized(640, 480) == camera


@pytest.mark.parametrize(
    ("field", "value"), [("fx", 0.0), ("fy", -1.0), ("fx", np.nan), ("cx", np.inf), ("width", 0), ("cy", 1e9)]
)
def test_bad_intrinsics_are_named(field: str, value: float) -> None:
    good = {"fx": 500.0, "fy": 500.0, "cx": 320.0, "cy": 240.0, "width": 640, "height": 480}
    with pytest.raises(ValueError, match=field):
        g.Intrinsics(**{**good, field: value})


coordinates = st.integers(-(1 << 20), g.MAX_COORDINATE)


@given(st.lists(st.tuples(coordinates, coordinates, coordinates), min_size=1, max_size=50))
def test_keys_round_trip_and_sort_like_coordinates(rows: list[tuple[int, int, int]]) -> None:
    coords = torch.tensor(rows, dtype=torch.int64)
    keys = g.pack_keys(coords)
    assert torch.equal(g.unpack_keys(keys), coords)
    assert [tuple(c) for c in g.unpack_keys(keys.sort().values).tolist()] == sorted(rows)


def test_voxels_floor_negative_coordinates() -> None:
    points = np.array([[-0.001, 0.0, 0.019], [0.02, -0.02, -0.0201]])
    coords = g.world_to_voxel(points, 0.02)
    assert coords.tolist() == [[-1, 0, 0], [1, -1, -2]]
    np.testing.assert_allclose(g.voxel_centers(coords, 0.02)[0], (-0.01, 0.01, 0.01))


@pytest.mark.parametrize("focal", [1e300, 1e7, 1e-3, 1e-320])
def test_focal_lengths_of_no_camera_are_refused(focal: float) -> None:
    """1e300 was accepted, and ended in an OverflowError while space seen through was cleared."""
    with pytest.raises(ValueError, match="fits no camera"):
        g.Intrinsics(focal, 60.0, 39.5, 29.5, 80, 60)
    with pytest.raises(ValueError, match="fy="):
        g.Intrinsics(60.0, focal, 39.5, 29.5, 80, 60)


@given(keys=st.lists(st.integers(-(2**62), 2**62) | st.integers(-2, 2), max_size=40))
def test_distinct_keys_are_those_of_numpy(keys: list[int]) -> None:
    array = np.array(keys, np.int64)
    before = array.copy()
    np.testing.assert_array_equal(g.distinct_keys(array), np.unique(array))
    np.testing.assert_array_equal(array, before)
