"""Multi-view fusion: geometry, streaming equals batch, invariance, bad input, recorded outputs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden import load_arrays, load_json, relative_error
from support.volume_frames import needs_warp

from embodied_perceptron.geometry.compute_path import device_path
from embodied_perceptron.geometry.transforms import (
    Intrinsics,
    back_project,
    make_transform,
    pack_site_keys,
    transform_points,
)
from embodied_perceptron.mapping import image_features
from embodied_perceptron.mapping.image_features import StreamingFusion, StreamingLookup
from embodied_perceptron.nn import view_fusion
from embodied_perceptron.nn.input_features import input_from_points
from embodied_perceptron.nn.official import CORRECTED, RELEASED
from embodied_perceptron.nn.view_fusion import (
    View,
    ViewLookup,
    ViewSamplingConfig,
    fuse_views,
    read_levels,
    site_radius,
    view_projection,
)
from embodied_perceptron.recordings.tum import read_tum_camera
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Sites
from embodied_perceptron.sparse.tensor import SparseTensor

ENGINE = get_engine("torch")
INTRINSICS = Intrinsics(fx=60.0, fy=55.0, cx=39.5, cy=29.5, width=80, height=60)
VOXEL_M = 0.05
CONFIGS = [
    ViewSamplingConfig(),
    ViewSamplingConfig(occlusion_margin_m=0.03),
    ViewSamplingConfig(conventions=RELEASED),
]


def look(yaw_rad: float, position_m: tuple[float, float, float]) -> np.ndarray:
    """Pose of an optical frame that looks horizontally, yaw 0 = along x."""
    c, s = np.cos(yaw_rad), np.sin(yaw_rad)
    forward, right, down = np.array([c, s, 0]), np.array([s, -c, 0]), np.array([0, 0, -1.0])
    return make_transform(np.stack([right, down, forward], axis=1), np.array(position_m))


def make_view(seed: int, T: np.ndarray | None = None, dtype: torch.dtype = torch.float32) -> View:
    g = torch.Generator().manual_seed(seed)
    r = np.random.default_rng(seed)
    pose = look(r.uniform(0, 6.3), tuple(r.uniform(-0.5, 0.5, 3))) if T is None else T
    levels = tuple(torch.randn(h, w, c, generator=g).to(dtype) for h, w, c in ((16, 24, 5), (8, 12, 7)))
    depth = torch.rand(60, 80, generator=g) * 3
    depth[:10] = 0.0
    depth[10:15] = torch.inf
    return View(view_projection(pose, INTRINSICS, (64, 96)), (64, 96), levels, depth)


def make_sites(seed: int, count: int, stride: int = 2) -> Sites:
    g = torch.Generator().manual_seed(seed)
    coords = torch.unique(torch.randint(-20, 20, (count, 3), generator=g), dim=0) * stride
    return SparseTensor.from_coords(coords, torch.zeros(len(coords), 1), stride=stride, engine=ENGINE).sites


def batch(
    sites: Sites, views: list[View], config: ViewSamplingConfig, level: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    radius = site_radius(sites.stride, VOXEL_M)
    return fuse_views(config.conventions.site_points(sites, VOXEL_M), views, level, (5, 7)[level], config, radius)


def test_a_voxel_reads_the_cell_under_its_pixel() -> None:
    """By hand: a point straight ahead of the camera lands on the principal point."""
    view = make_view(0, look(0.0, (0.0, 0.0, 0.0)))
    point = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)
    feats, count = fuse_views(point, [view], 0, 5, ViewSamplingConfig())
    # principal point (39.5, 29.5) of 80 x 60 is the image's centre: pixel 47.5 of 96 and 31.5 of 64, cells 12 and 8
    assert torch.equal(feats[0], view.levels[0][8, 12])
    assert count.item() == 1
    # 0.4 m to the left (world y) at 2 m: u = 39.5 - 12 -> (27.5 + 0.5) * 96 / 80 - 0.5 = 33.1 -> cell 33.6 / 4 = 8
    feats, _ = fuse_views(point + torch.tensor([[0.0, 0.4, 0.0]]), [view], 0, 5, ViewSamplingConfig())
    assert torch.equal(feats[0], view.levels[0][8, 8])


def test_behind_outside_and_hidden_points_are_not_seen() -> None:
    view = make_view(0, look(0.0, (0.0, 0.0, 0.0)))
    depth = torch.full((60, 80), 1.5)
    view = View(view.projection, view.image_size, view.levels, depth)
    points = torch.tensor([[-2.0, 0, 0], [2.0, 2.0, 0], [1.4, 0, 0], [1.62, 0, 0], [2.0, 0, 0]], dtype=torch.float64)
    for config, expected in (
        (ViewSamplingConfig(), [0, 0, 1, 1, 1]),
        (ViewSamplingConfig(occlusion_margin_m=0.05), [0, 0, 1, 1, 0]),  # 1.62 < 1.5 + 0.05 + radius 0.1
    ):
        feats, count = fuse_views(points, [view], 0, 5, config, radius_m=0.1)
        assert count.tolist() == expected
        assert (feats[count == 0] == 0).all()
    for value, seen in ((0.0, 1), (torch.inf, 1)):  # unknown depth, and free along the whole ray
        depth.fill_(value)
        assert fuse_views(points[-1:], [view], 0, 5, ViewSamplingConfig(occlusion_margin_m=0.0))[1].item() == seen


@pytest.mark.parametrize("config", CONFIGS)
def test_equals_a_slow_reference(config: ViewSamplingConfig) -> None:
    """One point at a time in plain Python."""
    views = [make_view(i) for i in range(4)]
    sites = make_sites(1, 150)
    feats, count = batch(sites, views, config)
    radius = site_radius(sites.stride, VOXEL_M)
    for i in range(0, len(sites), 3):
        c = sites.coords[i].double() + (0.0 if config.conventions is RELEASED else sites.stride / 2)
        total, n = torch.zeros(5, dtype=torch.float64), 0
        for view in views:
            U, V, depth = (view.projection[:, :3] @ (c * VOXEL_M) + view.projection[:, 3]).tolist()
            u, v = U / max(depth, 1e-3), V / max(depth, 1e-3)
            value = view.levels[0].double().permute(2, 0, 1)[None]
            if config.conventions is RELEASED:
                seen = 0 < u < 96 and 0 < v < 64 and depth > 0
                grid = torch.tensor([[[[u / 96 * 2 - 1, v / 64 * 2 - 1]]]], dtype=torch.float64)
                read = torch.nn.functional.grid_sample(
                    value, grid, mode="nearest", padding_mode="zeros", align_corners=True
                )
                total += read.flatten()
            else:
                seen = -0.5 <= u < 95.5 and -0.5 <= v < 63.5 and depth > 1e-3
                if seen and config.occlusion_margin_m is not None:
                    assert view.depth_m is not None
                    d = float(view.depth_m[int((v + 0.5) / 64 * 60), int((u + 0.5) / 96 * 80)])
                    seen = not 0 < d < depth - config.occlusion_margin_m - radius
                if seen:
                    grid = torch.tensor([[[[(u + 0.5) / 96 * 2 - 1, (v + 0.5) / 64 * 2 - 1]]]], dtype=torch.float64)
                    read = torch.nn.functional.grid_sample(
                        value, grid, mode="nearest", padding_mode="border", align_corners=False
                    )
                    total += read.flatten()
            n += seen
        assert count[i] == n
        torch.testing.assert_close(feats[i].double(), total / n if n else total * 0, rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    config=st.sampled_from(CONFIGS),
    steps=st.lists(
        st.sampled_from(["view", "voxels", "drop view", "drop voxels", "move view", "swap", "none"]), max_size=8
    ),
)
def test_streaming_equals_batch_bit_for_bit(seed: int, config: ViewSamplingConfig, steps: list[str]) -> None:
    r = np.random.default_rng(seed)
    state = StreamingFusion(1, 7, VOXEL_M, config)
    views = [make_view(seed), make_view(seed + 1)]
    everywhere = make_sites(seed, 400)
    alive = torch.rand(len(everywhere), generator=torch.Generator().manual_seed(seed)) < 0.5
    for step in ["none", *steps]:
        if step == "view":
            views = [*views, make_view(int(r.integers(1 << 30)), dtype=torch.float16)]
        elif step == "drop view" and views:
            del views[int(r.integers(len(views)))]
        elif step == "move view" and views:
            views[int(r.integers(len(views)))] = make_view(int(r.integers(1 << 30)))
        elif step == "swap":
            views = views[::-1]
        elif step == "voxels":
            alive |= torch.from_numpy(r.random(len(alive)) < 0.3)
        elif step == "drop voxels":
            alive &= torch.from_numpy(r.random(len(alive)) < 0.7)
        sites = everywhere.derive(everywhere.keys[alive], everywhere.stride)
        state.update(sites, views)
        feats, count = batch(sites, views, config, level=1)
        assert torch.equal(state.features, feats)
        assert torch.equal(state.counts, count)


@pytest.mark.parametrize("margin_m", [None, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_compiled_lookup_equals_that_by_tensors(seed: int, margin_m: float | None) -> None:
    views, sites = [make_view(seed + i) for i in range(4)], make_sites(seed, 2000)
    points = CORRECTED.site_points(sites, VOXEL_M)
    config = ViewSamplingConfig(margin_m)
    found = 0
    for view in views:
        for level in range(len(view.levels)):
            quick = view_fusion.sample_view(view, level, points, config, 0.03)
            slow = view_fusion._sample_by_tensors(view, level, points, config, 0.03)
            assert torch.equal(quick.rows, slow.rows)
            assert torch.equal(quick.seen, slow.seen)
            assert torch.equal(quick.feats, slow.feats)
            found += len(quick.rows)
    assert 0 < found < len(points) * sum(len(view.levels) for view in views)


@pytest.mark.parametrize("margin_m", [None, 0.05])
@pytest.mark.parametrize("some", [False, True])
def test_compiled_sums_of_halves_equal_those_by_tensors(some: bool, margin_m: float | None) -> None:
    sites = make_sites(5, 2000)
    points, config = CORRECTED.site_points(sites, VOXEL_M), ViewSamplingConfig(margin_m)
    subset = torch.arange(1, 2 * len(sites), 2) if some else None  # every other row of twice as many
    rows = 2 * len(sites) if some else len(sites)
    for level in range(2):
        channels = make_view(0).levels[level].shape[-1]
        total, count = torch.randn(rows, channels), torch.zeros(rows, dtype=torch.int32)
        by_tensors, seen = total.clone(), count.clone()
        for seed in range(4):
            view = make_view(seed, dtype=torch.float16)
            view_fusion.add_view(total, count, subset, points, view, level, config, 0.03)
            sample = view_fusion._sample_by_tensors(view, level, points, config, 0.03)
            at = sample.rows if subset is None else subset[sample.rows]
            by_tensors.index_add_(0, at, sample.feats.float())
            seen.index_add_(0, at, torch.ones_like(at, dtype=torch.int32))
        assert torch.equal(total, by_tensors)
        assert torch.equal(count, seen)
        assert seen.max() > 1


@needs_warp
@pytest.mark.parametrize("limits", [{}, {"_PAIRS": 4000}, {"_TABLE_NUMBERS": 5000}, {"_PAIRS": 1, "_TABLE_NUMBERS": 1}])
@pytest.mark.parametrize("margin_m", [None, 0.05])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_views_that_are_read_at_once_add_up_as_one_after_the_other(
    margin_m: float | None, dtype: torch.dtype, limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, however much is read together."""
    for name, value in limits.items():
        monkeypatch.setattr(view_fusion, name, value)
    sites = make_sites(7, 60 if limits.get("_PAIRS") == 1 else 2000)
    points, config = CORRECTED.site_points(sites, VOXEL_M), ViewSamplingConfig(margin_m)
    views = [make_view(seed, dtype=dtype) for seed in range(6)]
    views[2] = dataclasses.replace(views[2], projection=-views[2].projection)  # sees nothing
    for view in views:
        for feature_map in view.levels:
            feature_map.requires_grad_()
    for level, channels in enumerate((5, 7)):
        maps = [view.levels[level] for view in views]
        with device_path():
            stacks = view_fusion.stacked(views, [level], config)
        assert sum(len(stack) for stack in stacks) == 6
        spans = [view_fusion.Span(0, len(points), 0.03)]
        (total,), count = view_fusion.read_stacks(points, spans, stacks, config)
        expected = torch.zeros(len(sites), channels)
        seen = torch.zeros(len(sites), dtype=torch.int32)
        for view in views:
            sample = view_fusion._sample_by_tensors(view, level, points, config, 0.03)
            expected.index_add_(0, sample.rows, sample.feats.to(expected.dtype))
            seen.index_add_(0, sample.seen, torch.ones_like(sample.seen, dtype=torch.int32))
        assert int(seen.max()) > 1
        assert torch.equal(total, expected)
        assert torch.equal(count, seen)
        weights = torch.randn(total.shape, generator=torch.Generator().manual_seed(level))
        grads = [torch.autograd.grad((t * weights).sum(), maps, allow_unused=True) for t in (total, expected)]
        for a, b in zip(*grads, strict=True):
            near = {"rtol": 1e-2, "atol": 5e-3} if dtype == torch.float16 else {}  # there halves are summed as halves
            torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b, **near)


@needs_warp
@device_path()
def test_views_of_different_shapes_are_not_read_at_once() -> None:
    views, nearest = [make_view(0), make_view(1)], ViewSamplingConfig(occlusion_margin_m=0.03)
    assert view_fusion.stacked(views, [0, 1], nearest)
    smaller = dataclasses.replace(views[1], depth_m=views[1].depth_m[:30])
    for other in (smaller, dataclasses.replace(views[1], depth_m=None)):
        assert not view_fusion.stacked([views[0], other], [0], nearest)
    assert not view_fusion.stacked(views, [0], ViewSamplingConfig(conventions=RELEASED))
    assert not view_fusion.stacked([], [0], nearest)


@needs_warp
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("samples", [1, 3])
def test_a_device_reads_all_levels_as_the_loops_read_each(config: ViewSamplingConfig, samples: int) -> None:
    """Batches and live maps; sites of two strides, one sample without any."""
    fine = [make_sites(seed, 300 * (seed != 1)).coords for seed in range(samples)]
    levels = []
    for stride in (1, 2):
        coords = torch.cat([c // 2 * stride for c in fine])
        sample = torch.cat([torch.full((len(c),), i) for i, c in enumerate(fine)])
        x = SparseTensor.from_coords(coords, torch.zeros(len(coords), 1), sample, stride=stride, batch_size=samples,
                                     duplicates="first", engine=ENGINE)  # fmt: skip
        levels.append(x.sites)
    views = [[make_view(10 * b + i) for i in range(4)] for b in range(samples)]
    lookups = [ViewLookup(views, [5, 7], VOXEL_M, config)]
    if samples == 1:
        lookups.append(StreamingLookup([5, 7], VOXEL_M, config))
        lookups[1].views = views[0]
    for lookup in lookups:
        expected = [lookup(level, sites) for level, sites in enumerate(levels)]
        assert all(float(e.abs().sum()) > 0 for e in expected)
        with device_path():
            for _ in range(2):  # views are stacked once
                for a, b in zip(read_levels(lookup, levels), expected, strict=True):
                    assert torch.equal(a, b)
            for level, sites in enumerate(levels):
                assert torch.equal(lookup(level, sites), expected[level])


@needs_warp
def test_a_live_map_on_a_device_follows_its_views_and_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config, sites = ViewSamplingConfig(0.05), [make_sites(3, 800, stride) for stride in (1, 2)]
    lookup = StreamingLookup([5, 7], VOXEL_M, config)
    views = [make_view(seed, dtype=torch.float16) for seed in range(5)]
    monkeypatch.setattr(torch.Tensor, "nonzero", lambda self: pytest.fail("a wait"))
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: pytest.fail("a wait"))
    for seen in (views[:3], views, views[1:], [views[4], views[0]], views[:1]):
        lookup.views = seen
        with device_path():
            found = lookup.levels(sites)
        for level, at in enumerate(sites):
            assert torch.equal(found[level], batch(at, seen, config, level)[0])


def test_the_gpu_reads_views_as_the_cpu_does(gpu: torch.device) -> None:
    sites = make_sites(7, 2000)
    config = ViewSamplingConfig(0.05)
    views = [make_view(seed) for seed in range(6)]
    there = [View(v.projection, v.image_size, tuple(m.to(gpu) for m in v.levels), v.depth_m.to(gpu)) for v in views]
    points = CORRECTED.site_points(sites, VOXEL_M)
    with patch.object(view_fusion, "read_stacks", side_effect=view_fusion.read_stacks) as together:
        for level, channels in enumerate((5, 7)):
            here = fuse_views(points, views, level, channels, config, 0.03)
            found = fuse_views(points.to(gpu), there, level, channels, config, 0.03)
            torch.testing.assert_close(found[0].cpu(), here[0])
            assert torch.equal(found[1].cpu(), here[1])
    assert together.call_count == 2


def test_every_half_has_its_float() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    floats = np.array([view_fusion._as_float(h) for h in halves], np.float32)
    expected = halves.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(floats, expected)  # infinities and what is no number too
    np.testing.assert_array_equal(np.signbit(floats[expected == 0]), np.signbit(expected[expected == 0]))


def test_halves_that_learn_keep_their_gradient() -> None:
    view = make_view(1, dtype=torch.float16)
    view.levels[0].requires_grad_()
    feats, count = batch(make_sites(1, 500), [view], ViewSamplingConfig())
    assert count.sum() > 0
    feats.sum().backward()
    assert float(view.levels[0].grad.abs().sum()) > 0


def test_streaming_touches_only_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = image_features
    work: list[int] = []
    original = module.add_view

    def counting(total, count, subset, points, *rest):  # type: ignore[no-untyped-def]
        work.append(len(points))
        return original(total, count, subset, points, *rest)

    monkeypatch.setattr(module, "add_view", counting)
    views = [make_view(i) for i in range(5)]
    sites = make_sites(1, 300)
    state = StreamingFusion(0, 5, VOXEL_M, ViewSamplingConfig())
    state.update(sites, views[:4])
    work.clear()
    state.update(sites, views[:4])
    assert work == []
    state.update(sites, views)
    assert work == [len(sites)]  # the new view alone
    work.clear()
    grown = sites.derive(torch.unique(torch.cat([sites.keys, make_sites(2, 10).keys])), sites.stride)
    state.update(grown, views)
    assert work == [len(grown) - len(sites)] * 5


@pytest.mark.parametrize("config", CONFIGS)
def test_order_of_views_does_not_matter(config: ViewSamplingConfig) -> None:
    views = [make_view(i) for i in range(12)]
    sites = make_sites(3, 300)
    feats, count = batch(sites, views, config)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(views))
        other, other_count = batch(sites, [views[i] for i in order], config)
        assert torch.equal(count, other_count)
        assert (feats - other).abs().max() <= 1e-5


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_moving_the_world_with_its_cameras_changes_nothing(turns: int) -> None:
    """Quarter turns about z and a shift by the coarsest stride map the lattice onto itself."""
    sites = make_sites(5, 300)
    poses = [look(0.7 * i, (0.1 * i, -0.2, 0.3)) for i in range(5)]
    c, s = round(np.cos(turns * np.pi / 2)), round(np.sin(turns * np.pi / 2))
    R, t = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.array([64, -128, 0]) * VOXEL_M
    T_moved = make_transform(R, t)
    # a cell [c, c + stride) turns into the cell whose lowest corner is the turned cell's lowest corner
    centres = sites.coords.double() + sites.stride / 2
    moved = torch.round(centres @ torch.from_numpy(R).T + torch.from_numpy(t / VOXEL_M) - sites.stride / 2).long()
    turned = SparseTensor.from_coords(moved, torch.zeros(len(moved), 1), stride=sites.stride, engine=ENGINE).sites
    feats, count = batch(sites, [make_view(i, T) for i, T in enumerate(poses)], ViewSamplingConfig())
    other, other_count = batch(turned, [make_view(i, T_moved @ T) for i, T in enumerate(poses)], ViewSamplingConfig())
    rows = turned.find(pack_site_keys(torch.zeros(len(moved), dtype=torch.int64), moved))
    assert (count != other_count[rows]).sum() <= 2  # a voxel on an image border may fall to either side by rounding
    same = count == other_count[rows]
    torch.testing.assert_close(feats[same], other[rows][same], rtol=1e-4, atol=1e-5)


def test_no_views_and_no_sites() -> None:
    sites = make_sites(1, 50)
    feats, count = batch(sites, [], ViewSamplingConfig())
    assert feats.shape == (len(sites), 5)
    assert not feats.any()
    assert not count.any()
    empty = sites.derive(sites.keys[:0], sites.stride)
    assert batch(empty, [make_view(0)], ViewSamplingConfig())[0].shape == (0, 5)
    state = StreamingFusion(0, 5, VOXEL_M, ViewSamplingConfig())
    state.update(empty, [])
    state.update(sites, [make_view(0)])
    state.update(empty, [])
    assert state.features.shape == (0, 5)


def test_gradient_reaches_the_feature_maps() -> None:
    view = make_view(0)
    level = view.levels[0].double().requires_grad_()
    sites = make_sites(1, 200)
    points = CORRECTED.site_points(sites, VOXEL_M)

    def run(feature_map: torch.Tensor) -> torch.Tensor:
        other = View(view.projection, view.image_size, (feature_map,))
        return fuse_views(points, [other, other], 0, 5, ViewSamplingConfig())[0]

    (grad,) = torch.autograd.grad(run(level).square().sum() / 2, level)
    eps = torch.randn(level.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1e-3
    change = (run(level + eps).square().sum() - run(level - eps).square().sum()) / 4
    assert abs(float(change.detach() - (grad * eps).sum())) < 1e-3 * float(change.detach().abs()) + 1e-6


def test_lookups_of_a_batch_and_of_a_live_map() -> None:
    a, b = make_sites(1, 60), make_sites(2, 90)
    samples = torch.cat([torch.zeros(len(a), dtype=torch.int64), torch.ones(len(b), dtype=torch.int64)])
    x = SparseTensor.from_coords(
        torch.cat([a.coords, b.coords]), torch.ones(len(samples), 3), samples, stride=2, engine=ENGINE
    )
    views: list[list[View]] = [[make_view(0), make_view(1)], []]
    lookup = ViewLookup(views, [5, 7], VOXEL_M, ViewSamplingConfig())
    rows = x.sites.bounds[1]
    live = StreamingLookup([5, 7], VOXEL_M, ViewSamplingConfig())
    live.views = views[0]
    for level in (0, 1, 0):
        feats = lookup(level, x.sites)
        assert torch.equal(feats[:rows], batch(a, views[0], ViewSamplingConfig(), level)[0])
        assert not feats[rows:].any()
        assert torch.equal(live(level, a), feats[:rows])
    with pytest.raises(ValueError, match="need views for 1 samples, got 2"):
        lookup(0, a)
    with pytest.raises(ValueError, match="serves one map, got 2 samples"):
        live(0, x.sites)


def test_bad_input_is_named() -> None:
    view = make_view(0)
    with pytest.raises(ValueError, match="projection must be"):
        View(view.projection.float(), view.image_size, view.levels)
    with pytest.raises(ValueError, match="level 0 must be"):
        View(view.projection, view.image_size, (torch.zeros(3, 4),))
    with pytest.raises(ValueError, match="has 5 channels, expected 9"):
        fuse_views(torch.zeros(1, 3, dtype=torch.float64), [view], 0, 9, ViewSamplingConfig())
    no_depth = View(view.projection, view.image_size, view.levels)
    with pytest.raises(ValueError, match="needs the depth image"):
        fuse_views(torch.zeros(1, 3, dtype=torch.float64), [no_depth], 0, 5, ViewSamplingConfig(occlusion_margin_m=0.1))
    with pytest.raises(ValueError, match="must be None with unmasked views"):
        ViewSamplingConfig(occlusion_margin_m=0.1, conventions=RELEASED)
    with pytest.raises(ValueError, match="T_world_camera is not a rigid transform"):
        view_projection(np.diag([2.0, 1, 1, 1]), INTRINSICS, (64, 96))


def test_colours_of_a_real_kitchen_land_on_its_voxels(kitchen_dir: Path) -> None:
    """Images as feature maps: what the views show of a voxel must be the colour that its own points have.

    Any error of convention (axes, pixel centres, resizing, direction of the pose) shows as a larger difference.
    """
    camera = read_tum_camera(kitchen_dir)
    poses, color_files = dict(camera.poses), dict(camera.color_files)
    frames = [(stamp, path) for stamp, path in camera.depth_files if stamp in poses and stamp in color_files][::16]
    points, colors, views = [], [], []
    size = (96, 128)
    for stamp, path in frames:
        color, depth = camera.read_color(color_files[stamp]), camera.read_depth(path)
        local, valid = back_project(depth, camera.intrinsics)
        valid &= depth < 3.5
        points.append(transform_points(poses[stamp], local[valid][::10]))
        colors.append(color[valid][::10])
        levels = torch.from_numpy(color).permute(2, 0, 1)[None].float() / 255
        small = torch.nn.functional.interpolate(levels, size=size, mode="area")[0].permute(1, 2, 0)
        projection = view_projection(poses[stamp], camera.intrinsics, size)
        views.append(View(projection, size, (small,), torch.from_numpy(depth)))
    x = input_from_points(np.concatenate(points), np.concatenate(colors), 0.04, "height_color", engine=ENGINE)
    where = CORRECTED.site_points(x.sites, 0.04)

    def difference(config: ViewSamplingConfig, seen_by: list[View]) -> float:
        feats, count = fuse_views(where, seen_by, 0, 3, config, site_radius(1, 0.04))
        return float((feats - x.feats[:, 1:4])[count > 0].abs().mean())

    tested = ViewSamplingConfig(occlusion_margin_m=0.03)
    right = difference(tested, views)
    through_walls = difference(ViewSamplingConfig(), views)
    print(f"mean difference of colour {right:.3f}; without the occlusion test {through_walls:.3f}")
    assert right < 0.08
    assert right < 0.9 * through_walls
    for du, dv in ((4, 0), (-4, 0), (0, 4), (0, -4)):  # four of 128 pixels
        shift = torch.tensor([[1.0, 0, du], [0, 1, dv], [0, 0, 1]], dtype=torch.float64)
        moved = [View(shift @ v.projection, size, v.levels, v.depth_m) for v in views]
        assert difference(tested, moved) > 1.3 * right


# --------------------------------------------------------------------------------------------------------------------
# recorded outputs of the released code


def undo_augmentation(points: torch.Tensor, meta: dict) -> torch.Tensor:
    """Take augmented points back to where the cameras saw them."""
    for step in reversed(meta.get("transformation_3d_flow", [])):
        if step == "T":
            points = points - torch.tensor(meta["pcd_trans"], dtype=points.dtype)
        elif step == "S":
            points = points / meta["pcd_scale_factor"]
        elif step == "R":
            # rows are points and the recorded matrix multiplies from the right
            points = points @ torch.linalg.inv(torch.tensor(meta["pcd_rotation"], dtype=points.dtype))
        elif step == "HF":
            points = points * torch.tensor([1.0, -1.0, 1.0])
        elif step == "VF":
            points = points * torch.tensor([-1.0, 1.0, 1.0])
    return points


@pytest.mark.golden
def test_golden_variants() -> None:
    given = load_arrays("view_fusion")
    images = load_arrays("image_encoder")
    sites = load_arrays("backbone")
    variants = load_json("view_fusion_variants")
    scale, (h, w) = given["scale_factor"].tolist(), given["img_pad_shape"].tolist()
    worst, compared = 0.0, 0
    for name, variant in variants.items():
        if variant["aligned"]:  # bilinear sampling, which no network here uses
            continue
        crop = np.broadcast_to(np.asarray(variant["crop"], dtype=np.float64), 2)
        A = np.array([[scale[0], 0, -crop[0]], [0, scale[1], -crop[1]], [0, 0, 1]])
        if variant["flip"]:
            A = np.array([[-1, 0, w], [0, 1, 0], [0, 0, 1]]) @ A
        views = [
            View(
                torch.from_numpy(A) @ given["proj"][i, :3].double(),
                (h, w),
                tuple(images[f"out{k}_first_16"][i].permute(1, 2, 0) for k in range(4)),
            )
            for i in range(3)
        ]
        config = ViewSamplingConfig(conventions=RELEASED)
        for level in variant["levels"]:
            points = sites[f"level{level}_coords"][:, 1:].double() * 0.01
            points = undo_augmentation(points, variant["meta"])
            # what is an input of the recorded head was kept whole
            expected = given[f"{name}_l{level}_feats" + ("_first_16" if name != "plain" else "")][:, :16]
            feats, count = fuse_views(points, views, level, expected.shape[1], config)
            safe = given[f"{name}_l{level}_safe"]
            assert safe.double().mean() > 0.9
            assert torch.equal(count[safe], given[f"{name}_l{level}_count"][safe])
            error = relative_error(feats[safe], expected[safe])
            print(f"{name} level {level}: largest relative error {error:.1e} on {int(safe.sum())} of {len(safe)}")
            worst, compared = max(worst, error), compared + 1
    assert compared == 7
    assert worst < 1e-4


@pytest.mark.golden
def test_golden_single_view_of_the_continuous_detector() -> None:
    given = load_arrays("view_fusion")
    images = load_arrays("image_encoder")
    sites = load_arrays("backbone")
    A = torch.diag(torch.tensor([*given["scale_factor"].tolist(), 1.0], dtype=torch.float64))
    view = View(
        A @ given["proj"][0, :3].double(),
        tuple(given["img_pad_shape"].tolist()),  # type: ignore[arg-type]
        tuple(images[f"out{k}_first_16"][0].permute(1, 2, 0) for k in range(4)),
    )
    worst = 0.0
    for level in range(4):
        points = sites[f"level{level}_coords"][:, 1:].double() * 0.01
        wanted = given[f"level{level}_imgfeats_first_16"]
        feats, _ = fuse_views(points, [view], level, wanted.shape[1], ViewSamplingConfig(conventions=RELEASED))
        safe = given[f"plain_l{level}_safe"]
        worst = max(worst, relative_error(feats[safe], wanted[safe]))
    print(f"one view: largest relative error {worst:.1e}")
    assert worst < 1e-4


def test_default_masks_what_the_released_code_sums_unmasked() -> None:
    """The released numerator includes views that its denominator leaves out; the default masks both."""
    view = make_view(0, look(0.0, (0.0, 0.0, 0.0)))
    behind = make_view(1, look(np.pi, (0.0, 0.0, 0.0)))
    point = torch.tensor([[0.5, 0.0, 0.0]], dtype=torch.float64)
    # behind the second camera: depth is clamped to 1 mm, yet a point on the optical axis still projects into the image
    right, _ = fuse_views(point, [view], 0, 5, ViewSamplingConfig())
    default, count = fuse_views(point, [view, behind], 0, 5, ViewSamplingConfig())
    official, official_count = fuse_views(point, [view, behind], 0, 5, ViewSamplingConfig(conventions=RELEASED))
    assert count.item() == official_count.item() == 1
    assert torch.equal(default, right)
    assert not torch.allclose(official, right)
