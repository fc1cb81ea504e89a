"""Floor height and gravity: made rooms with known answers, and the real kitchen whose floor lies at 0."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.scene_builder import snapshot_of
from support.volume_frames import random_walk

from embodied_perceptron.config import VolumeConfig
from embodied_perceptron.geometry.transforms import (
    Intrinsics,
    back_project,
    transform_from_pose,
    transform_points,
)
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.results import VoxelSnapshot
from embodied_perceptron.scene.segmentation.floor import (
    FloorHeight,
    estimate_floor_z,
    estimate_up,
    thinned_points,
)


def plane(
    rng: np.random.Generator, n: int, lo: tuple[float, float, float], hi: tuple[float, float, float]
) -> np.ndarray:
    return rng.uniform(lo, hi, (n, 3))


def room(floor_z: float = 0.0, noise: float = 0.004, seed: int = 0) -> np.ndarray:
    """4 x 3 m room, a third of its floor seen, two walls, a large table, a ceiling, reflections below the floor."""
    rng = np.random.default_rng(seed)
    points = np.concatenate(
        [
            plane(rng, 3000, (0, 0, 0), (2.0, 2.0, 0)),
            plane(rng, 40_000, (0, 0, 0), (4, 0, 2.5)),
            plane(rng, 30_000, (0, 0, 0), (0, 3, 2.5)),
            plane(rng, 30_000, (1, 1, 0.75), (3.5, 2.5, 0.75)),
            plane(rng, 9000, (0, 0, 2.5), (4, 3, 2.5)),
            plane(rng, 150, (0, 0, -1.5), (4, 3, -0.1)),
        ]
    )
    return points + rng.normal(0, noise, points.shape) + (0, 0, floor_z)


@pytest.mark.parametrize("floor_z", [0.0, -1.37, 4.011])
@pytest.mark.parametrize("noise", [0.0, 0.004, 0.012])
def test_finds_the_floor_of_a_room(floor_z: float, noise: float) -> None:
    z = estimate_floor_z(room(floor_z, noise))
    assert z is not None
    assert z == pytest.approx(floor_z, abs=0.01)


def test_does_not_depend_on_the_order_or_offset_of_points() -> None:
    points = room()
    shuffled = np.random.default_rng(1).permutation(points)
    assert estimate_floor_z(shuffled) == estimate_floor_z(points)
    z = estimate_floor_z(points + np.array([100.0, -50.0, 0.0]))
    assert z == pytest.approx(0.0, abs=0.01)


def test_walls_alone_have_no_floor() -> None:
    rng = np.random.default_rng(0)
    walls = np.concatenate([plane(rng, 20_000, (0, 0, 0), (4, 0, 2.5)), plane(rng, 20_000, (0, 0, 0), (0, 3, 2.5))])
    assert estimate_floor_z(walls) is None


def test_too_little_is_no_floor() -> None:
    assert estimate_floor_z(np.zeros((0, 3))) is None
    assert estimate_floor_z(np.zeros((1, 3))) is None
    assert estimate_floor_z(plane(np.random.default_rng(0), 5000, (0, 0, 0), (0.3, 0.3, 0))) is None


@pytest.mark.parametrize("points", [np.zeros((4, 2)), np.zeros(3), np.full((4, 3), np.nan)])
def test_bad_points_are_refused(points: np.ndarray) -> None:
    with pytest.raises(ValueError, match="points must"):
        estimate_floor_z(points)
    with pytest.raises(ValueError, match="points must"):
        estimate_up(points, np.array([0.0, 0.0, 1.0]))


def kitchen_points(folder: Path, every: int = 9) -> np.ndarray:
    poses = np.loadtxt(folder / "groundtruth.txt")
    names = sorted((folder / "depth").glob("*.png"))
    clouds = []
    for name, row in list(zip(names, poses, strict=True))[::every]:
        raw = cv2.imread(str(name), cv2.IMREAD_UNCHANGED).astype(np.float64) / 1000.0
        raw[raw > 5.0] = 0
        points, valid = back_project(raw, Intrinsics(585.0, 585.0, 320.0, 240.0, 640, 480))
        clouds.append(transform_points(transform_from_pose(row[1:4], row[4:8]), points[valid][::20]))
    return np.concatenate(clouds)


def test_finds_the_floor_of_a_real_kitchen(kitchen_dir: Path) -> None:
    z = estimate_floor_z(kitchen_points(kitchen_dir))
    assert z == pytest.approx(0.0, abs=0.03)


# --------------------------------------------------------------------------------------------------------------------
# gravity


@pytest.mark.parametrize("up", [(0.0, 0.0, 0.0), (np.nan, 0.0, 1.0), (np.inf, 0.0, 0.0), (1.0, 0.0)])
def test_a_hint_without_direction_is_refused(up: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="up must be a finite vector"):
        estimate_up(room(), np.array(up))


@pytest.mark.parametrize("tilt", [0.0, 0.2, 0.5])
def test_up_from_geometry(tilt: float) -> None:
    R = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
    up = estimate_up(room() @ R.T, np.array([0.0, 0.0, 3.0]))
    assert up is not None
    assert np.arccos(np.clip(up @ R[:, 2], -1, 1)) < np.radians(0.5)


def test_up_from_geometry_of_a_real_kitchen(kitchen_dir: Path) -> None:
    up = estimate_up(kitchen_points(kitchen_dir), np.array([0.1, -0.3, 1.0]))
    assert up is not None
    assert np.arccos(np.clip(up[2], -1, 1)) < np.radians(2.0)


def test_no_horizontal_plane_no_answer() -> None:
    rng = np.random.default_rng(0)
    wall = plane(rng, 5000, (0, 0, 0), (4, 0, 2.5))
    assert estimate_up(wall, np.array([0.0, 0.0, 1.0]), max_tilt_rad=0.3) is None
    assert estimate_up(wall[:2], np.array([0.0, 0.0, 1.0])) is None


def test_the_floor_keeps_its_height_within_a_centimetre() -> None:
    floor = FloorHeight(0.1)
    first = floor.of(snapshot_of(room()))
    assert first == pytest.approx(0.0, abs=0.01)
    assert floor.of(snapshot_of(room(first + 0.006, noise=0.0))) == first
    moved = floor.of(snapshot_of(room(0.05, noise=0.0)))
    assert moved == pytest.approx(0.05, abs=0.01)
    assert floor.of(snapshot_of(np.zeros((0, 3)))) == moved  # out of the map: the last known one


def test_points_are_thinned_alike_whoever_knows_the_blocks() -> None:
    """The same voxels are chosen of a snapshot by hand and of a map that copies its blocks, in whatever order."""
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.04, max_blocks=4096, min_hits=1))
    for frame in random_walk(5, 8):
        volume.integrate(frame)
    own = volume.snapshot()
    by_hand = VoxelSnapshot(*(np.array(getattr(own, entry.name)) for entry in fields(VoxelSnapshot)))
    for about in (10**6, 500):
        a, b = (np.array(sorted(thinned_points(shown, about).tolist())) for shown in (own, by_hand))
        np.testing.assert_array_equal(a, b)
        assert len(a) == pytest.approx(min(about, len(own)), rel=0.3)
