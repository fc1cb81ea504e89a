import numpy as np
import pytest
import torch
from scipy import ndimage

from embodied_perceptron.geometry.cell_keys import connected_parts, keys_of
from embodied_perceptron.geometry.transforms import pack_keys, world_to_voxel


def test_keys_are_those_of_packed_coordinates():
    points = np.random.default_rng(0).uniform(-40.0, 40.0, (500, 3))
    packed = pack_keys(torch.from_numpy(world_to_voxel(points, 0.05)))
    assert keys_of(points, 0.05).tolist() == packed.tolist()


@pytest.mark.parametrize("share", [0.03, 0.06, 0.1, 0.3])
def test_parts_are_those_of_a_labelled_grid(share):
    rng = np.random.default_rng(int(share * 100))
    for shape in ((12, 9, 14), (1, 30, 30), (40, 1, 1)):
        filled = rng.random(shape) < share
        coords = rng.permutation(np.repeat(np.argwhere(filled), 2, axis=0))  # in any order, and more than once
        labels, count = ndimage.label(filled, np.ones((3, 3, 3)))
        parts = connected_parts(keys_of(coords - 5.5, 1.0))
        assert parts.tolist() == (labels[tuple(coords.T)] - 1).tolist()
        assert len(np.unique(parts)) == count


def test_parts_far_from_each_other_need_no_grid_between_them():
    corners = np.array([[-20_000.0] * 3, [20_000.0] * 3])  # a grid of both would have 10^18 cells
    points = np.concatenate([corner + np.linspace(0.0, 0.1, 20)[:, None] for corner in corners])
    assert connected_parts(keys_of(points, 0.05)).tolist() == [0] * 20 + [1] * 20


def test_no_cells_have_no_parts():
    assert connected_parts(keys_of(np.zeros((0, 3)), 0.05)).shape == (0,)
