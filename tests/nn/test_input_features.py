"""Input features: what they are, what they do not see, thinning, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied_perceptron.nn.backbone import BackboneConfig, MinkResNet
from embodied_perceptron.nn.input_features import input_from_points, join_samples, thin
from embodied_perceptron.nn.presets import INPUT_CHANNELS
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.tensor import SparseTensor

ENGINE = get_engine("torch")
VOXEL_M = 0.0625  # a power of two: moves by whole voxels are exact


def cloud(seed: int, count: int = 500) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    # multiples of 2^-10 m: sums and quarter turns are exact in float32
    points = np.round(r.uniform(-2, 2, (count, 3)) * 1024) / 1024 + 1 / 2048
    return points.astype(np.float32), r.integers(0, 256, (count, 3), dtype=np.uint8)


def test_by_hand() -> None:
    points = np.array([[0.01, 0.02, 1.00], [0.03, 0.04, 1.02], [0.5, 0, 0]], dtype=np.float32)
    colors = np.array([[255, 0, 0], [0, 255, 0], [51, 51, 51]], dtype=np.uint8)
    x = input_from_points(points, colors, 0.1, "height_color", floor_z_m=0.25)
    assert x.coords.tolist() == [[0, 0, 10], [5, 0, 0]]
    torch.testing.assert_close(x.feats, torch.tensor([[0.76, 0.5, 0.5, 0, 1], [-0.25, 0.2, 0.2, 0.2, 1]]))
    y = input_from_points(points, colors, 0.1, "height_color_offset", floor_z_m=0.25)
    torch.testing.assert_close(y.feats[:, :5], x.feats)
    # the mean point's place in its site, in edges from the middle
    torch.testing.assert_close(
        y.feats[:, 5:], torch.tensor([[-0.3, -0.2, -0.4], [-0.5, -0.5, -0.5]]), atol=1e-6, rtol=0
    )
    raw = input_from_points(points, None, 0.1, "xyz")
    torch.testing.assert_close(raw.feats, torch.from_numpy(points[[0, 2]]))


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_turning_and_moving_the_world_moves_the_sites_and_changes_no_feature(turns: int) -> None:
    points, colors = cloud(0)
    c, s = [(1, 0), (0, 1), (-1, 0), (0, -1)][turns]
    R = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]], dtype=np.float32)
    shift = np.array([64, -128, 0]) * VOXEL_M
    x = input_from_points(points, colors, VOXEL_M, "height_color", engine=ENGINE)
    y = input_from_points((points @ R.T + shift).astype(np.float32), colors, VOXEL_M, "height_color", engine=ENGINE)
    centres = x.coords.double() + 0.5
    turned = torch.floor(centres @ torch.from_numpy(R).double().T + torch.from_numpy(shift / VOXEL_M)).long()
    expected = SparseTensor.from_coords(turned, x.feats, engine=ENGINE)
    assert torch.equal(y.keys, expected.keys)
    torch.testing.assert_close(y.feats, expected.feats, rtol=0, atol=1e-6)
    x = input_from_points(points, colors, VOXEL_M, "height_color_offset", engine=ENGINE)
    y = input_from_points(
        (points @ R.T + shift).astype(np.float32), colors, VOXEL_M, "height_color_offset", engine=ENGINE
    )
    turned_places = x.feats[:, 5:] @ torch.from_numpy(R).T  # a place in a site turns with it
    expected = SparseTensor.from_coords(turned, torch.cat([x.feats[:, :5], turned_places], 1), engine=ENGINE)
    torch.testing.assert_close(y.feats, expected.feats, rtol=0, atol=1e-5)


def test_raising_the_world_with_its_floor_changes_no_feature() -> None:
    points, colors = cloud(1)
    up = np.array([0, 0, 64 * VOXEL_M], dtype=np.float32)
    x = input_from_points(points, colors, VOXEL_M, "height_color", engine=ENGINE)
    y = input_from_points(points + up, colors, VOXEL_M, "height_color", floor_z_m=64 * VOXEL_M, engine=ENGINE)
    torch.testing.assert_close(x.feats, y.feats, rtol=0, atol=1e-6)


def test_network_output_moves_with_the_world() -> None:
    """A shift by the coarsest stride; ``paper`` inputs hold absolute positions and do change."""
    points, colors = cloud(2, 2000)
    shift = np.array([16, -32, 0], dtype=np.float32) * VOXEL_M
    for inputs, invariant in (("height_color", True), ("height_color_offset", True), ("xyz", False)):
        torch.manual_seed(0)
        config = BackboneConfig(INPUT_CHANNELS[inputs], 8, (8, 8), (1, 1), stem_norm="batch")
        net = MinkResNet(config).eval()
        a = net(thin(input_from_points(points, colors, VOXEL_M, inputs, engine=ENGINE), 1500))[-1]
        b = net(thin(input_from_points(points + 4 * shift, colors, VOXEL_M, inputs, engine=ENGINE), 1500))[-1]
        assert torch.equal(a.coords + torch.from_numpy(4 * shift / VOXEL_M).long(), b.coords)
        assert torch.allclose(a.feats, b.feats, atol=1e-5) is invariant


def test_order_of_points_does_not_matter() -> None:
    points, colors = cloud(3, 3000)
    order = np.random.default_rng(0).permutation(len(points))
    x = input_from_points(points, colors, 0.25, "height_color")
    y = input_from_points(points[order], colors[order], 0.25, "height_color")
    assert torch.equal(x.keys, y.keys)
    torch.testing.assert_close(x.feats, y.feats, rtol=0, atol=1e-6)


def test_thinning_is_even_exact_in_number_and_repeatable() -> None:
    coords = torch.cartesian_prod(torch.arange(40), torch.arange(40), torch.arange(4))
    x = SparseTensor.from_coords(coords, torch.randn(len(coords), 2), engine=ENGINE)
    y = thin(x, 1600)
    assert len(y) == 1600
    assert torch.equal(y.keys, thin(x, 1600).keys)
    assert thin(x, len(x)) is x
    assert torch.equal(y.feats, x.feats[x.sites.find(y.keys)])
    # a quarter stays: about 100 in each of 16 squares of 400
    squares = torch.bincount(y.coords[:, 0] // 10 * 4 + y.coords[:, 1] // 10, minlength=16)
    assert squares.min() > 60
    assert squares.max() < 140
    moved = SparseTensor.from_coords(coords + torch.tensor([64, -128, 0]), x.feats, engine=ENGINE)
    assert torch.equal(thin(moved, 1600).coords - torch.tensor([64, -128, 0]), y.coords)
    both = join_samples([x, thin(x, 100)])
    assert both.batch_size == 2
    assert torch.equal(thin(both, 1600).split()[0], y.feats)
    assert len(thin(both, 1600).split()[1]) == 100
    nothing = SparseTensor.from_coords(torch.zeros(0, 3).long(), x.feats[:0], engine=ENGINE)
    assert [len(part) for part in thin(join_samples([nothing, x, nothing]), 1600).split()] == [0, 1600, 0]


def test_join_samples_keeps_order() -> None:
    parts = [input_from_points(*cloud(i, 50 * i), 0.1, "height_color", engine=ENGINE) for i in range(3)]
    both = join_samples(parts)
    assert [len(rows) for rows in both.split()] == [len(x) for x in parts]
    for x, rows, i in zip(parts, both.split(), range(3), strict=True):
        assert torch.equal(x.feats, rows)
        assert torch.equal(both.coords[both.samples == i], x.coords)
    with pytest.raises(ValueError, match="samples must be single"):
        join_samples([both, parts[0]])
    with pytest.raises(ValueError, match="at least one"):
        join_samples([])


def test_no_points() -> None:
    empty = np.zeros((0, 3), dtype=np.float32)
    assert len(input_from_points(empty, empty.astype(np.uint8), 0.1, "height_color")) == 0
    x = input_from_points(empty, None, 0.1, "xyz")
    assert x.feats.shape == (0, 3)
    assert thin(x, 5) is x


def test_bad_input_is_named() -> None:
    points, colors = cloud(0, 3)
    with pytest.raises(ValueError, match="inputs must be one of"):
        input_from_points(points, colors, 0.1, "normals")
    with pytest.raises(ValueError, match=r"colors must be \(3, 3\) uint8, got None"):
        input_from_points(points, None, 0.1, "height_color")
    with pytest.raises(ValueError, match="point 1 is"):
        input_from_points(np.where([[0], [1], [0]], np.nan, points), colors, 0.1, "xyz")
    with pytest.raises(ValueError, match="coordinates must lie within"):
        input_from_points(points * 1e9, colors, 0.1, "xyz")
    with pytest.raises(ValueError, match="max_sites must be positive"):
        thin(input_from_points(points, colors, 0.1, "xyz"), 0)
