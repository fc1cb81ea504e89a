"""Mean colours of boxes against a plain twin."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_perceptron.geometry.boxes import box_rotations
from embodied_perceptron.language.colors import mean_colors
from embodied_perceptron.results import VoxelSnapshot


def snapshot(points: np.ndarray, colors: np.ndarray, size_m: float = 0.05) -> VoxelSnapshot:
    coords = np.floor(points / size_m).astype(np.int32)
    order = np.lexsort(coords.T[::-1])
    n = len(points)
    return VoxelSnapshot(
        size_m,
        coords[order],
        points[order].astype(np.float32),
        colors[order].astype(np.uint8),
        np.ones(n, np.int32),
        np.ones(n, np.float32),
        np.zeros(n, np.int64),
    )


def plainly(map_: VoxelSnapshot, boxes: np.ndarray) -> np.ndarray:
    """One voxel at a time."""
    R, owner = box_rotations(boxes), []
    for point in map_.mean_point_m.astype(np.float64):
        inside = [
            b
            for b in range(len(boxes))
            if (np.abs((point - boxes[b, :3]) @ R[b]) <= boxes[b, 3:6] / 2 + map_.voxel_size_m / 2).all()
        ]
        owner.append(min(inside, key=lambda b: boxes[b, 3:6].prod(), default=-1))
    result = np.full((len(boxes), 3), np.nan)
    for b in range(len(boxes)):
        mine = map_.mean_color[np.array(owner) == b]
        if len(mine) >= 5:
            result[b] = mine.mean(0)
    return result


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_plain_twin(seed):
    rng = np.random.default_rng(seed)
    map_ = snapshot(rng.uniform(-2, 2, (600, 3)), rng.integers(0, 256, (600, 3)))
    boxes = np.concatenate([rng.uniform(-2, 2, (9, 3)), rng.uniform(0.2, 2, (9, 3)), rng.uniform(-3, 3, (9, 3))], 1)
    np.testing.assert_allclose(mean_colors(map_, boxes), plainly(map_, boxes))


def test_what_stands_on_a_table_has_its_own_colour():
    points = np.concatenate([np.full((20, 3), 0.5), np.full((20, 3), 0.9)])
    colors = np.concatenate([np.full((20, 3), 200), np.full((20, 3), 10)])
    boxes = np.array([[0.5, 0.5, 0.5, 1.2, 1.2, 1.2, 0, 0, 0], [0.9, 0.9, 0.9, 0.1, 0.1, 0.1, 0, 0, 0]])
    np.testing.assert_allclose(mean_colors(snapshot(points, colors), boxes), [[200] * 3, [10] * 3])


def test_nothing_to_see():
    empty = snapshot(np.zeros((0, 3)), np.zeros((0, 3)))
    assert np.isnan(mean_colors(empty, np.ones((2, 9)))).all()
    assert mean_colors(empty, np.zeros((0, 9))).shape == (0, 3)
    few = snapshot(np.full((4, 3), 0.5), np.full((4, 3), 9))
    assert np.isnan(mean_colors(few, np.array([[0.5, 0.5, 0.5, 1, 1, 1, 0, 0, 0.0]]))).all()
