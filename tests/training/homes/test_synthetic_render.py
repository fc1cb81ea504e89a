"""The renderer: shadows fall where they must; the ids-only path equals the full one."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.geometry.transforms import Intrinsics
from embodied_perceptron_training.homes.assets.mesh import Mesh, MeshBuilder
from embodied_perceptron_training.homes.building.freespace import free_space
from embodied_perceptron_training.homes.building.home import Home, HomeSpec, build_home
from embodied_perceptron_training.homes.noise import (
    NoiseModel,
    depth_to_millimetres,
    motion_blur,
    noisy_depth,
    shaken_poses,
)
from embodied_perceptron_training.homes.rendering.materials import Material
from embodied_perceptron_training.homes.rendering.ray_renderer import RayCastRenderer
from embodied_perceptron_training.homes.rendering.scene import Light, RenderScene, assemble_scene
from embodied_perceptron_training.homes.trajectories import camera_pose, look_at, view_set

CAMERA = Intrinsics(133.0, 131.0, 78.2, 61.7, 160, 120)


@pytest.fixture(scope="module")
def home() -> Home:
    return build_home(2, HomeSpec(1, "kitchen"))


def slab_scene(occluder: bool) -> RenderScene:
    """A white floor below a lamp, with or without a plate half-way between."""
    white = Material((0.8, 0.8, 0.8))
    floor = MeshBuilder()
    floor.box((6, 6, 0.1), (0, 0, -0.05), white)
    parts = [(floor.build(), 0)]
    if occluder:
        plate = MeshBuilder()
        plate.box((0.5, 0.5, 0.02), (0, 0, 1.0), white)
        parts.append((plate.build(), 1))
    lamp = Light((0.0, 0.0, 2.0), (2.0, 2.0, 2.0), 0.02, (0.0, 0.0, 0.0), (-3.0, -3.0, 3.0, 3.0))
    return assemble_scene(parts, (lamp,), (0.1, 0.1, 0.1))


def test_a_plate_casts_a_shadow_of_the_right_size() -> None:
    T = look_at(np.array([2.2, 0.0, 0.9]), np.array([0.0, 0.0, 0.0]))
    lit = RayCastRenderer(slab_scene(False)).radiance(CAMERA, T)[..., 0]
    view = RayCastRenderer(slab_scene(True))
    dark = view.radiance(CAMERA, T)[..., 0]
    from embodied_perceptron.geometry.transforms import invert_transform as inv
    from embodied_perceptron.geometry.transforms import project, transform_points

    def at(x: float, y: float) -> tuple[int, int]:
        uv, inside = project(transform_points(inv(T), np.array([[x, y, 0.0]])), CAMERA)
        assert inside[0]
        return round(uv[0, 1]), round(uv[0, 0])

    # the plate at half height doubles in its shadow: a square of half width 0.5 m
    for inside in ((0.0, 0.0), (0.35, 0.2), (-0.3, -0.35)):
        assert dark[at(*inside)] < 0.4 * lit[at(*inside)]
    for outside in ((0.7, 0.0), (0.0, 0.75), (-0.7, 0.0)):
        assert dark[at(*outside)] > 0.85 * lit[at(*outside)]


def test_ids_equal_those_of_the_full_render(home: Home) -> None:
    renderer = RayCastRenderer(home.render_scene())
    T = view_set(free_space(home), renderer, 1, 0)[0]
    view = renderer.render(CAMERA, T)
    depth, ids = renderer.ids(CAMERA, T)
    np.testing.assert_array_equal(view.depth_m, depth)
    np.testing.assert_array_equal(view.instance, ids)
    again = renderer.render(CAMERA, T)
    np.testing.assert_array_equal(view.color, again.color)


def test_structured_light_grows_with_distance_and_drops_grazing_pixels() -> None:
    rng = np.random.default_rng(0)
    ones = np.ones((100, 100), np.float32)
    near, far = (np.std(noisy_depth(ones * z, ones, "structured-light", rng)[5:-5, 5:-5]) for z in (1.0, 4.0))
    assert 0.0005 < near < 0.004
    assert far > 5 * near
    assert abs(np.median(noisy_depth(ones * 2, ones, "structured-light", rng)) - 2) < 0.005
    assert (noisy_depth(ones * 2, ones * 0.05, "structured-light", rng) == 0).all()
    assert (noisy_depth(ones * 0.3, ones, "structured-light", rng) == 0).all()
    assert (noisy_depth(ones * 5.5, ones, "lidar-phone", rng) == 0).all()
    step = ones.copy()
    step[:, 50:] = 3
    lost = noisy_depth(step, ones, "structured-light", rng) == 0
    assert lost[:, 50:52].mean() > 0.3 > 0.02 > lost[:, :40].mean()
    np.testing.assert_array_equal(noisy_depth(step, ones, "perfect", rng), step)


def test_depth_images_hold_millimetres() -> None:
    depth = np.array([[0.0, 1.2345, 70.0]], np.float32)
    np.testing.assert_array_equal(depth_to_millimetres(depth), [[0, 1234, 0]])


def test_motion_blur_smears_along_the_motion() -> None:
    color = np.zeros((40, 60, 3), np.uint8)
    color[:, 30] = 255
    camera = Intrinsics(50, 50, 29.5, 19.5, 60, 40)
    T0, T1 = np.eye(4), np.eye(4)
    T1[0, 3] = 0.2  # 10 pixels at 1 m
    blurred = motion_blur(color, np.ones((40, 60), np.float32), camera, T0, T1, 1.0)
    spread = np.nonzero(blurred[20, :, 0])[0]
    assert 8 <= np.ptp(spread) <= 12
    still = motion_blur(color, np.ones((40, 60), np.float32), camera, T0, T0, 1.0)
    np.testing.assert_array_equal(still, color)


def test_poses_shake_a_little_and_reproducibly() -> None:
    poses = np.array([camera_pose((0.1 * i, 0, 1.4), 0.1 * i, 0.2) for i in range(30)])
    a = shaken_poses(poses, 0.002, 0.001, np.random.default_rng(1))
    np.testing.assert_array_equal(a, shaken_poses(poses, 0.002, 0.001, np.random.default_rng(1)))
    off = np.linalg.norm(a[:, :3, 3] - poses[:, :3, 3], axis=1)
    assert 0 < off.max() < 0.08
    np.testing.assert_allclose(np.linalg.det(a[:, :3, :3]), 1, atol=1e-9)
    with pytest.raises(ValueError, match="sensor"):
        NoiseModel(sensor="sonar")  # type: ignore[arg-type]


def test_broken_meshes_are_refused() -> None:
    flat = np.zeros((1, 3, 3))
    material = (Material(),)
    normals = np.tile([0.0, 0, 1], (1, 3, 1))
    with pytest.raises(ValueError, match="zero-area"):
        Mesh(flat, normals, np.zeros((1, 3, 2)), np.zeros(1, np.int32), material)
    with pytest.raises(ValueError, match="non-finite"):
        Mesh(flat * np.nan, normals, np.zeros((1, 3, 2)), np.zeros(1, np.int32), material)
    with pytest.raises(ValueError, match="positive size"):
        MeshBuilder().box((1, 0, 1), (0, 0, 0), Material())
