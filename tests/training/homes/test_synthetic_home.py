"""Synthetic homes: determinism, tight boxes, no collisions, truth of the recording."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_perceptron.geometry.boxes import euler_to_matrix, matrix_to_euler
from embodied_perceptron.geometry.transforms import Intrinsics, back_project, transform_points
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron.weights.categories import ALL_CATEGORIES, DETECTION_CLASSES
from embodied_perceptron_training.homes.assets.mesh import rotation
from embodied_perceptron_training.homes.assets.objects import euler_zxy
from embodied_perceptron_training.homes.building.floorplan import HomeError
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.building.placement import Pieces, pieces_collide
from embodied_perceptron_training.homes.noise import NoiseModel
from embodied_perceptron_training.homes.recording import (
    RecordingSpec,
    distances_to_triangles,
    render_recording,
    surface_distance_m,
)
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCaster, RayCastRenderer
from embodied_perceptron_training.homes.rendering.renderer import pixel_rays
from embodied_perceptron_training.homes.trajectories import R_BODY_OPTICAL, RobotSpec, robot_trajectory

CAMERA = Intrinsics(130.0, 130.0, 79.5, 59.5, 160, 120)


@pytest.fixture(scope="module")
def home() -> Home:
    return build_home(3, HomeSpec(1, "living room"))


def predict_around(home: Home) -> list[np.ndarray]:
    """Eight views from the middle of the first room."""
    poses = []
    x, y = home.rooms[0].center
    for yaw in np.arange(8) * np.pi / 4:
        T = np.eye(4)
        T[:3, :3] = rotation("z", yaw) @ rotation("y", 0.25) @ R_BODY_OPTICAL
        T[:3, 3] = (x, y, 1.5)
        poses.append(T)
    return poses


def test_same_seed_gives_the_same_home(home: Home) -> None:
    again = build_home(3, HomeSpec(1, "living room"))
    assert [o.label for o in again.objects] == [o.label for o in home.objects]
    np.testing.assert_array_equal(again.triangles(), home.triangles())
    other = build_home(4, HomeSpec(1, "living room"))
    assert other.triangles().shape != home.triangles().shape


def test_labels_are_the_benchmarks(home: Home) -> None:
    assert len(ALL_CATEGORIES) == 288
    assert len(DETECTION_CLASSES) == 284
    assert {o.label for o in home.objects} <= set(ALL_CATEGORIES)
    assert [o.id for o in home.objects] == list(range(len(home.objects)))


def test_euler_angles_agree_with_the_library() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        R = (
            rotation("z", rng.uniform(-3, 3))
            @ rotation("x", rng.uniform(-1.5, 1.5))
            @ rotation("y", rng.uniform(-3, 3))
        )
        np.testing.assert_allclose(euler_zxy(R), matrix_to_euler(torch.from_numpy(R)).numpy(), atol=1e-9)


def test_boxes_hold_what_is_rendered_and_touch_the_geometry(home: Home) -> None:
    renderer = RayCastRenderer(home.render_scene())
    inside, total = np.zeros(len(home.objects)), np.zeros(len(home.objects))
    boxes = home.boxes()
    rotations = euler_to_matrix(torch.from_numpy(boxes[:, 6:9])).numpy()
    for T in predict_around(home):
        view = renderer.render(CAMERA, T)
        points = transform_points(T, back_project(view.depth_m, CAMERA)[0])
        for o in home.objects:
            seen = points[view.instance == o.id + 1]
            local = (seen - boxes[o.id, :3]) @ rotations[o.id]
            inside[o.id] += (np.abs(local) <= boxes[o.id, 3:6] / 2 + 1e-4).all(1).sum()
            total[o.id] += len(seen)
    seen_ids = total > 0
    assert seen_ids.sum() > 15
    assert (inside[seen_ids] >= 0.99 * total[seen_ids]).all()
    for o in home.objects:
        local = (o.mesh().triangles.reshape(-1, 3) - boxes[o.id, :3]) @ rotations[o.id]
        np.testing.assert_allclose(local.max(0), boxes[o.id, 3:6] / 2, atol=1e-6)
        np.testing.assert_allclose(local.min(0), -boxes[o.id, 3:6] / 2, atol=1e-6)


def test_an_open_door_has_the_box_of_its_leaf() -> None:
    home = build_home(4, HomeSpec(3))
    doors = [o for o in home.objects if o.label == "door"]
    assert any(o.joint_states["leaf"] > 0.5 for o in doors)
    for o in doors:
        width, depth, height = o.box9()[3:6]
        assert 0.7 < width < 0.95
        assert depth < 0.25  # with its handles
        assert 1.9 < height < 2.1


@pytest.mark.parametrize("seed", range(4))
def test_furniture_does_not_collide(seed: int) -> None:
    home = build_home(seed, HomeSpec(1, "bedroom" if seed % 2 else "living room"))
    things = [o for o in home.objects if o.mounted in ("floor", "object")]
    pieces = [Pieces.of(o.model.posed_pieces(o.joint_states), o.T_world_object) for o in things]
    for i in range(len(things)):
        for j in range(i):
            assert not pieces_collide(pieces[i], pieces[j], 0.004), (things[i].label, things[j].label)


def test_supported_things_stand_on_their_support(home: Home) -> None:
    carried = [o for o in home.objects if o.support is not None]
    assert carried
    for o in carried:
        low = o.mesh().triangles[..., 2].min()
        support = home.objects[o.support]
        levels = [s.center_m[2] + support.T_world_object[2, 3] for s in support.model.surfaces]
        assert min(abs(low - level) for level in levels) < 0.002


def test_ray_caster_agrees_with_brute_force() -> None:
    rng = np.random.default_rng(0)
    triangles = rng.uniform(-1, 1, (40, 3, 3)) + np.array([0, 0, 3])
    origins, directions = pixel_rays(Intrinsics(20, 20, 15.5, 11.5, 32, 24), np.eye(4))
    hits = RayCaster(triangles).closest(origins, directions)
    for i in range(0, len(origins), 7):
        best = np.inf
        for a, b, c in triangles:
            M = np.stack([-directions[i], b - a, c - a], 1).astype(float)
            t, u, v = np.linalg.solve(M, origins[i] - a)
            if u >= 0 and v >= 0 and u + v <= 1 and t > 0:
                best = min(best, t)
        if np.isfinite(best):
            assert hits.distance[i] == pytest.approx(best, rel=1e-4)
        else:
            assert hits.triangle[i] == -1


def test_integer_pixels_are_centres() -> None:
    camera = Intrinsics(10.0, 10.0, 2.0, 1.0, 5, 3)
    _, directions = pixel_rays(camera, np.eye(4))
    np.testing.assert_allclose(directions.reshape(3, 5, 3)[1, 2], (0, 0, 1))
    np.testing.assert_allclose(directions.reshape(3, 5, 3)[0, 0], (-0.2, -0.1, 1), atol=1e-7)


def test_surface_distance_by_hand_and_against_brute_force() -> None:
    square = np.array([[[0, 0, 0], [1, 0, 0], [1, 1, 0]], [[0, 0, 0], [1, 1, 0], [0, 1, 0]]], float)
    points = np.array([[0.5, 0.2, 0.3], [2.0, 0.5, 0.0], [2.0, 2.0, 0.0], [0.1, 0.9, -0.2]])
    np.testing.assert_allclose(distances_to_triangles(square, points), [0.3, 1.0, np.sqrt(2), 0.2], atol=1e-12)
    rng = np.random.default_rng(1)
    soup = rng.uniform(-1, 1, (60, 3, 3))
    points = rng.uniform(-2, 2, (40, 3))
    alone = np.min([distances_to_triangles(t[None], points) for t in soup], axis=0)
    np.testing.assert_allclose(distances_to_triangles(soup, points), alone, atol=1e-12)
    with pytest.raises(ValueError, match="finite"):
        distances_to_triangles(square, np.array([[np.nan, 0, 0]]))


@pytest.mark.slow
def test_recording_is_exact_and_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    spec = RecordingSpec(5, 4, 64, 48, noise=NoiseModel("perfect", exposure=0.0, grain=0.0))
    home = render_recording(spec, tmp_path / "a")
    render_recording(spec, tmp_path / "b", workers=2)
    for path in sorted(p for p in (tmp_path / "a").rglob("*") if p.is_file()):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes(), path
    truth = json.loads((tmp_path / "a/scene.json").read_text())
    assert [o["label"] for o in truth["objects"]] == [o.label for o in home.objects]
    camera = read_tum_camera(tmp_path / "a")
    assert camera.T_base_camera is not None
    np.testing.assert_allclose(camera.T_base_camera, RobotSpec().T_base_camera)
    assert len(camera.poses) == len(camera.color_files) == 4
    for (_, T), (_, path) in zip(camera.poses, camera.depth_files, strict=True):
        points, valid = back_project(camera.read_depth(path), camera.intrinsics)
        distance = surface_distance_m(tmp_path / "a", transform_points(T, points[valid]))
        assert valid.mean() > 0.95
        assert distance.max() < 0.001  # half a millimetre of quantisation along the ray


def test_a_drive_ends_with_the_robot_standing(home: Home) -> None:
    space, moving = free_space(home), RobotSpec(rest_s=0.0)
    base = robot_trajectory(space, 200, 10.0, RobotSpec(), 3)
    assert base.shape == (200, 4, 4)
    np.testing.assert_array_equal(base[180:], np.repeat(base[179:180], 20, axis=0))  # two seconds
    driven = robot_trajectory(space, 200, 10.0, moving, 3)
    np.testing.assert_array_equal(base[:180], driven[:180])
    assert (driven[180:] != base[180:]).any()
    short = robot_trajectory(space, 40, 10.0, RobotSpec(), 3)
    np.testing.assert_array_equal(short[36:], np.repeat(short[35:36], 4, axis=0))  # a tenth of a short one
    assert len(robot_trajectory(space, 1, 10.0, RobotSpec(), 3)) == 1


def test_bad_specs_are_refused() -> None:
    with pytest.raises(HomeError, match="rooms"):
        HomeSpec(10)
    with pytest.raises(HomeError, match="seed"):
        build_home(-1)
    with pytest.raises(ValueError, match="frames"):
        RecordingSpec(1, 0)
    with pytest.raises(ValueError, match="at least 16"):
        RecordingSpec(1, 5, 2, 2)
