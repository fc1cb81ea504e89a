"""Parametric videos: exactly one factor moves, and the measured factor follows it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron_training.homes.building.floorplan import HomeError
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.factor_sweeps import (
    FACTORS,
    Factor,
    drawn_eye,
    factor_sweep,
    factor_targets,
    moving_joints,
)
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer

CAMERA = Intrinsics(90.0, 90.0, 63.5, 47.5, 128, 96)


@pytest.fixture(scope="module")
def home() -> Home:
    return build_home(11, HomeSpec(1, "bedroom"))


@pytest.mark.parametrize("factor", FACTORS)
def test_measured_factor_follows(home: Home, factor: Factor) -> None:
    frames = None
    for target in factor_targets(home, factor):
        try:
            frames = list(factor_sweep(home, factor, target, 5, CAMERA))
        except HomeError:
            continue  # hidden behind something
        if frames[-1].target_pixels > 100:
            break
    assert frames is not None
    measured = np.array([f.measured for f in frames])
    assert [f.level for f in frames] == [0, 0.25, 0.5, 0.75, 1]
    assert (np.diff(measured) >= -0.02).all(), measured
    assert measured[-1] - measured[0] > 0.3
    if factor == "orbit":
        assert measured[0] < 0.15
    if factor in ("articulation", "lighting", "visibility"):
        assert measured[0] < 0.15
        assert measured[-1] == pytest.approx(1.0, abs=0.02)
    poses = np.array([f.view.T_world_camera for f in frames])
    if factor in ("pitch", "orbit"):
        distance = [np.linalg.norm(f.view.T_world_camera[:3, 3] - f.box9[:3]) for f in frames]
        assert np.ptp(distance) < 1e-6
    else:
        assert np.ptp(poses, axis=0).max() == 0
    if factor != "articulation":
        assert np.ptp([f.box9 for f in frames], axis=0).max() == 0


def test_the_camera_looks_up_and_down(home: Home) -> None:
    """From under the target's height, as far as the floor lets it, to above."""
    for target in factor_targets(home, "pitch"):
        try:
            frames = list(factor_sweep(home, "pitch", target, 3, CAMERA))
        except HomeError:
            continue
        heights = [f.view.T_world_camera[2, 3] - f.box9[2] for f in frames]
        if home.objects[target].box9()[2] > 0.6:
            assert heights[0] < -0.3
            assert heights[-1] > 0.3
            return
    pytest.fail("no target stands high enough")


def test_some_joints_move_and_the_others_stay(home: Home) -> None:
    with_joints = [home.objects[i] for i in factor_targets(home, "articulation")]
    several = next(o for o in with_joints if len(o.model.joints) > 1)
    drawn = {tuple(moving_joints(dataclasses.replace(home, seed=seed), several)) for seed in range(20)}
    assert len(drawn) > 1
    assert all(chosen and set(chosen) <= set(several.model.joints) for chosen in drawn)
    assert moving_joints(home, several) == moving_joints(home, several)


def test_places_of_the_camera_are_drawn(home: Home) -> None:
    """Another home's seed draws another angle and distance; each sees half of what the best place sees."""
    renderer = RayCastRenderer(home.render_scene())
    target = home.objects[factor_targets(home, "zoom")[0]]
    eyes = [drawn_eye(dataclasses.replace(home, seed=seed), target, renderer, CAMERA, False) for seed in range(4)]
    assert len({tuple(eye) for eye in eyes}) > 1
    distances = [np.linalg.norm(eye - target.box9()[:3]) for eye in eyes]
    assert np.ptp(distances) > 0.05


def test_lighting_changes_colour_but_not_depth(home: Home) -> None:
    target = factor_targets(home, "lighting")[0]
    dark, _, bright = factor_sweep(home, "lighting", target, 3, CAMERA)
    np.testing.assert_array_equal(dark.view.depth_m, bright.view.depth_m)
    assert dark.view.color.mean() < 0.5 * bright.view.color.mean()


def test_what_cannot_be_shown_is_refused(home: Home) -> None:
    wall = next(o.id for o in home.objects if o.label == "wall")
    with pytest.raises(HomeError, match="wall"):
        list(factor_sweep(home, "zoom", wall, 3, CAMERA))
    with pytest.raises(ValueError, match="factor"):
        factor_targets(home, "colour")  # type: ignore[arg-type]
