"""Level motions: exact from two points, best from many, and refined against surfaces."""

from __future__ import annotations

import numpy as np
import pytest
from support.textured_rooms import level_pose

from embodied_perceptron.geometry.transforms import invert_transform, transform_points, yaw_of
from embodied_perceptron.relocalisation.alignment import (
    Surface,
    SurfaceLayers,
    best_motion,
    least_held,
    motions_of_pairs,
    refine,
)

REACHES_M = (0.3, 0.25, 0.2, 0.15, 0.1, 0.08)


def room_points(rng: np.random.Generator, half=(2.4, 1.7), count: int = 6000) -> np.ndarray:
    """Points of a floor, four walls and a box."""
    u = rng.uniform(-1, 1, (count, 2))
    z = rng.uniform(0, 2.4, count)
    side = rng.integers(0, 7, count)
    x, y = u[:, 0] * half[0], u[:, 1] * half[1]
    x, z = np.where(side == 0, half[0], np.where(side == 1, -half[0], x)), np.where(side >= 4, 0.0, z)
    y = np.where(side == 2, half[1], np.where(side == 3, -half[1], y))
    points = np.column_stack([x, y, z])
    box = np.column_stack([1.0 + 0.3 * u[:, 0], -0.6 + 0.5 * u[:, 1], np.full(count, 0.7)])
    return np.where((side == 6)[:, None], box, points)


@pytest.mark.parametrize("seed", range(5))
def test_two_pairs_give_the_motion(seed: int) -> None:
    rng = np.random.default_rng(seed)
    T = level_pose(rng.uniform(-np.pi, np.pi), tuple(rng.uniform(-5, 5, 3)))
    points = rng.uniform(-3, 3, (6, 3))
    moved = transform_points(T, points)
    found = motions_of_pairs(points, moved, np.array([0, 2]), np.array([1, 5]))
    for k in range(2):
        assert np.allclose(found.matrix(k), T)
    assert np.allclose(found.apply(points)[1], moved)


def test_many_pairs_give_the_best_motion() -> None:
    rng = np.random.default_rng(0)
    T = level_pose(2.5, (1.0, -2.0, 0.3))
    points = rng.uniform(-3, 3, (400, 3))
    moved = transform_points(T, points) + rng.normal(0, 0.02, (400, 3))
    assert np.allclose(best_motion(points, moved, np.ones(400)), T, atol=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_refining_brings_surfaces_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    surface = Surface.of(room_points(rng))
    T = level_pose(rng.uniform(-0.08, 0.08), tuple(rng.uniform(-0.12, 0.12, 3)))
    seen = transform_points(invert_transform(T), room_points(rng, count=1500))
    found = refine(seen, surface, np.eye(4), REACHES_M)
    assert np.abs(found[:3, 3] - T[:3, 3]).max() < 0.01
    assert abs(yaw_of(found) - yaw_of(T)) < np.deg2rad(0.3)


def test_along_a_corridor_nothing_moves() -> None:
    rng = np.random.default_rng(1)
    x, z = rng.uniform(-8, 8, 9000), rng.uniform(0, 2.4, 9000)
    walls = np.column_stack([x, np.where(rng.random(9000) < 0.5, 0.9, -0.9), z])
    seen = walls[np.abs(walls[:, 0]) < 2][:1500] + np.array([0.0, 0.06, 0.0])
    found = refine(seen, Surface.of(walls), np.eye(4), REACHES_M)
    assert abs(found[1, 3] + 0.06) < 0.01
    assert abs(found[0, 3]) < 0.02


def test_too_few_points_stay_where_they_are() -> None:
    surface = Surface.of(room_points(np.random.default_rng(0)))
    T = level_pose(0.1, (0.05, 0.0, 0.0))
    assert np.array_equal(refine(surface.points_m[:20], surface, T, REACHES_M), T)


@pytest.mark.parametrize("seed", range(6))
def test_surfaces_are_found_under_any_turn_and_shift(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = room_points(rng)
    layers = SurfaceLayers(points, 0.0)
    T = level_pose(rng.uniform(-np.pi, np.pi), (*rng.uniform(-30, 30, 2), rng.uniform(-2, 2)))
    seen = points[(points[:, 0] > -0.5) & (points[:, 1] > -1.2)]
    poses = layers.candidates(transform_points(invert_transform(T), seen), -T[2, 3], 6)
    errors = [
        np.linalg.norm(transform_points(pose @ invert_transform(T), np.zeros((1, 3))))
        + abs(np.sin((yaw_of(pose) - yaw_of(T)) / 2))
        for pose in poses
    ]
    assert min(errors) < 0.35


def test_too_few_points_fit_nowhere() -> None:
    layers = SurfaceLayers(room_points(np.random.default_rng(0)), 0.0)
    assert layers.candidates(np.tile([0.0, 0.0, 1.0], (10, 1)), 0.0, 5) == []


@pytest.mark.parametrize("yaw", [0.0, 0.7])
def test_a_corridor_holds_nothing_along_itself(yaw: float) -> None:
    rng = np.random.default_rng(3)
    x, z = rng.uniform(-5, 5, 8000), rng.uniform(0, 2.5, 8000)
    turn = level_pose(yaw, (0.0, 0.0, 0.0))
    corridor = transform_points(turn, np.column_stack([x, rng.choice([-1.0, 1.0], 8000), z]))
    along = least_held(corridor[:500], Surface.of(corridor), np.eye(4), 0.1)
    assert abs(along @ turn[:3, 0]) > 0.999
    assert along[2] == 0
