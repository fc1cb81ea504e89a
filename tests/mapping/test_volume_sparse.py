"""The volume as network input."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from support.volume_frames import KERNELS, needs_warp, posed, random_walk, wall

from embodied_perceptron.config import VolumeConfig
from embodied_perceptron.geometry.compute_path import device_path
from embodied_perceptron.geometry.manhattan import ManhattanFrame
from embodied_perceptron.mapping.export import (
    SITE_COLUMNS,
    Window,
    merge_by_sorting,
    merge_sites,
    sites_on_device,
)
from embodied_perceptron.mapping.volume import FeatureVolume
from embodied_perceptron.mapping.voxels import VoxelRows
from embodied_perceptron.nn.input_features import SiteFeature
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Sites

ALL = ("color", "offset", "height", "point", "log_hits", "one")


def make(kernels: Literal["numba", "warp"] = "numba") -> FeatureVolume:
    volume = FeatureVolume(VolumeConfig(voxel_size_m=0.04, max_blocks=4096, min_hits=1), kernels=kernels)
    for frame in random_walk(31, 10):
        volume.integrate(frame)
    return volume


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("factor", [1, 2, 3, 8])
def test_sites_equal_a_dictionary(factor: int, kernels: Literal["numba", "warp"]) -> None:
    volume = make(kernels)
    snapshot = volume.snapshot()
    cells: dict[tuple[int, ...], list[int]] = {}
    for i, c in enumerate(snapshot.coords // factor):
        cells.setdefault(tuple(c.tolist()), []).append(i)
    tensor = volume.as_sparse_tensor(factor, features=ALL, floor_z_m=0.25)
    assert tensor.stride == 1
    assert tensor.coords.tolist() == [list(c) for c in sorted(cells)]
    edge = 0.04 * factor
    for coord, row in zip(tensor.coords.tolist(), tensor.feats.numpy(), strict=True):
        rows = cells[tuple(coord)]
        w = snapshot.hits[rows, None].astype(np.float64)
        point = (snapshot.mean_point_m[rows] * w).sum(0) / w.sum()
        # colours are means of means here, each rounded to 1/255
        color = (snapshot.mean_color[rows] * w).sum(0) / w.sum() / 255
        expected = [*color, *(point / edge - np.array(coord) - 0.5), point[2] - 0.25, *point, np.log(w.sum()), 1.0]
        np.testing.assert_allclose(row[:3], expected[:3], atol=0.51 / 255)
        np.testing.assert_allclose(row[3:], expected[3:], atol=2e-4)
        assert (np.abs(row[3:6]) <= 0.5).all()


def plain(rows: VoxelRows) -> VoxelRows:
    """The same rows, of which nobody knows blocks."""
    return VoxelRows(rows.coords, rows.records, rows.last_seen_ns)


@pytest.mark.parametrize("factor", [2, 3, 8])
def test_both_ways_to_merge_agree(factor: int) -> None:
    volume = make()
    rows = volume._map.gather(1)
    middle = rows.coords.double().mean(0).int().numpy() // factor
    far = np.full(3, 1 << 30, np.int32)
    for limits in ((-far, far), (factor * (middle - 4), factor * (middle + 5)), (-far, factor * middle)):
        expected = merge_by_sorting(plain(rows), factor, np.stack(limits))
        assert len(expected[0]) > 10
        for a, b in zip(expected, merge_sites(rows, factor, np.stack(limits)), strict=True):
            assert a.tolist() == b.tolist()
    corners = rows.coords.clone()
    corners[0], corners[-1] = -1_000_000, 1_000_000  # too far apart for bits
    volume._map.clear()
    volume._map.put(VoxelRows(corners, rows.records, rows.last_seen_ns))
    scattered = volume._map.gather(1)
    everything = np.stack([-far, far])
    for a, b in zip(
        merge_by_sorting(plain(scattered), factor, everything), merge_sites(scattered, factor, everything), strict=True
    ):
        assert a.tolist() == b.tolist()


@pytest.mark.parametrize("radius", [0.4, 3.0, np.inf])
def test_turned_voxels_are_merged_as_they_are_one_by_one(radius: float) -> None:
    volume, frame = make(), ManhattanFrame(0.4)
    copy = volume.copy()
    center = volume.snapshot().mean_point_m.mean(0).astype(np.float64)
    there = copy.turned(frame, center, radius)
    by_tensors = replace(copy, rows=plain(copy.rows)).turned(frame, center, radius)
    window = Window(frame.from_world(center), np.array([1.0, 1.0, np.inf]), 1)
    for given in (None, window):
        a, b = (x.as_sparse_tensor(2, window=given, features=ALL) for x in (there, by_tensors))
        assert a.coords.tolist() == b.coords.tolist()
        torch.testing.assert_close(a.feats, b.feats, atol=2e-3, rtol=0.0)  # a product's last bit may be a unit of place
        assert len(a) > 0
    limits = np.stack([np.array([-(1 << 30)] * 3), np.array([1 << 30] * 3)]).astype(np.int32)
    for a, b in zip(merge_sites(there.rows, 2, limits), merge_by_sorting(plain(there.rows), 2, limits), strict=True):
        assert a.tolist() == b.tolist()


@needs_warp
@pytest.mark.parametrize("features", [ALL, ("height", "color", "one", "offset")])
def test_features_by_compiled_loops_are_those_of_a_device(features: tuple[SiteFeature, ...]) -> None:
    copy = make().copy()
    there = replace(copy, rows=plain(copy.rows))
    expected = copy.as_sparse_tensor(2, features=features, floor_z_m=-0.3)
    assert bool((expected.coords < 0).any())
    with device_path():
        found = there.as_sparse_tensor(2, features=features, floor_z_m=-0.3)
    assert torch.equal(found.keys, expected.keys)
    torch.testing.assert_close(found.feats, expected.feats, rtol=1e-6, atol=0.0)
    exact = torch.tensor([name != "log_hits" for name in features for _ in SITE_COLUMNS[name]])
    assert torch.equal(found.feats[:, exact], expected.feats[:, exact])


@needs_warp
@pytest.mark.parametrize("window", ["all", "some", "none"])
@pytest.mark.parametrize("factors", [(), (2, 4), (3,)])
def test_sites_on_a_device_are_those_of_the_cpu_with_one_wait(window: str, factors: tuple[int, ...]) -> None:
    rows = plain(make()._map.gather(1))
    low, high = {"all": (-(1 << 30), 1 << 30), "some": (-6, 10), "none": (1 << 20, 1 << 21)}[window]
    limits = np.array([[low] * 3, [high] * 3], np.int32)
    expected, expected_sums = merge_by_sorting(rows, 2, limits)
    with device_path():
        found, sums = sites_on_device(rows, 2, limits, factors, get_engine("auto", "cpu"))
    assert torch.equal(found.coords, expected)
    assert torch.equal(sums, expected_sums)
    if factors == (2, 4) and len(expected):
        assert torch.equal(found.coarser(2).keys, Sites(found.keys, 1, 1, found.engine).coarser(2).keys)
        assert found.coarser(2).coarser(4) is found.coarser(2).coarser(4)
    far = VoxelRows(rows.coords + 2**19, rows.records, rows.last_seen_ns)
    with device_path(), pytest.raises(ValueError, match="sites reach coordinate"):
        sites_on_device(far, 1, np.array([[-(1 << 30)] * 3, [1 << 30] * 3], np.int32), (), get_engine("auto", "cpu"))


def test_default_features_and_min_hits() -> None:
    volume = make()
    tensor = volume.as_sparse_tensor()
    assert tensor.feats.shape == (len(volume.snapshot()), 7)
    assert str(tensor.feats.dtype) == "torch.float32"
    assert len(volume.as_sparse_tensor(min_hits=3)) == len(volume.snapshot(3)) < len(tensor)


def test_a_window_cuts_on_the_lattice() -> None:
    volume = make()
    whole = volume.as_sparse_tensor(2)
    window = Window(np.array([0.3, -0.2, 0.0]), np.array([2.56, 2.56, np.inf]), snap=8)
    lower, upper = window.limits(0.08)
    assert (lower[:2] % 8).tolist() == [0.0, 0.0]
    assert (upper - lower)[:2].tolist() == [32.0, 32.0]
    coords = whole.coords.numpy()
    inside = ((coords >= lower) & (coords < upper)).all(1)
    assert 0 < inside.sum() < len(coords)
    part = volume.as_sparse_tensor(2, window=window)
    np.testing.assert_array_equal(part.coords.numpy(), coords[inside])
    np.testing.assert_array_equal(part.feats.numpy(), whole.feats.numpy()[inside])


@pytest.mark.parametrize("x", np.linspace(-1.3, 1.3, 27))
def test_a_window_keeps_its_extent_and_holds_its_centre(x: float) -> None:
    window = Window(np.array([x, 0.0, 0.0]), np.array([6.4, 6.4, 2.56]), snap=32)
    lower, upper = window.limits(0.04)
    assert (upper - lower).tolist() == [160.0, 160.0, 64.0]
    assert (lower % 32 == 0).all()
    middle = (lower + upper)[0] / 2 * 0.04
    assert abs(middle - x) <= 16 * 0.04 + 1e-9


@pytest.mark.parametrize(
    "arguments",
    [
        {"center_m": np.array([np.nan, 0, 0]), "size_m": np.ones(3)},
        {"center_m": np.zeros(2), "size_m": np.ones(3)},
        {"center_m": np.zeros(3), "size_m": np.array([1.0, 0.0, 1.0])},
        {"center_m": np.zeros(3), "size_m": np.array([1.0, np.nan, 1.0])},
        {"center_m": np.zeros(3), "size_m": np.ones(3), "snap": 0},
    ],
)
def test_bad_windows_are_refused(arguments: dict) -> None:
    with pytest.raises(ValueError, match="window"):
        Window(**arguments)


def test_bad_arguments_are_refused() -> None:
    volume = make()
    with pytest.raises(ValueError, match="site_voxels"):
        volume.as_sparse_tensor(0)
    with pytest.raises(ValueError, match="smell"):
        volume.as_sparse_tensor(features=("smell",))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="features"):
        volume.as_sparse_tensor(features=())


def test_sites_beyond_a_sparse_tensor_are_refused() -> None:
    volume = FeatureVolume(VolumeConfig(max_blocks=2048, min_hits=1))
    volume.integrate(posed(np.full((48, 64), 1.0), 1, at=(8000.0, 0.0, 0.0)))
    assert len(volume) > 0
    with pytest.raises(ValueError, match="coordinate"):
        volume.as_sparse_tensor()
    assert len(volume.as_sparse_tensor(2)) > 0


def test_an_empty_map_and_an_empty_window() -> None:
    volume = FeatureVolume(VolumeConfig(max_blocks=2048))
    assert volume.as_sparse_tensor(2).feats.shape == (0, 7)
    volume.integrate(wall(1.0, 0))
    far = Window(np.array([90.0, 0.0, 0.0]), np.ones(3))
    assert volume.as_sparse_tensor(window=far).feats.shape == (0, 7)
