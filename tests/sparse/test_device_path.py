"""Sparse operations by the path of devices equal those by the compiled loops."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from support.volume_frames import needs_warp
from torch import nn

from embodied_perceptron.geometry.compute_path import device_path
from embodied_perceptron.geometry.transforms import floor_site_keys, pack_site_keys
from embodied_perceptron.nn.backbone import BackboneConfig, MinkResNet, TopDownNeck
from embodied_perceptron.sparse.conv import SparseConv, SparseMaxPool, SparseTransposedConv
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.sites import Sites, find_in_all
from embodied_perceptron.sparse.tensor import SparseTensor, best_rows, interpolate

ENGINE = get_engine("torch")
BACKBONE = BackboneConfig(5, 6, (8, 8, 12, 12), (1, 1, 1, 1), 1, False, "batch")


def scene(seed: int, count: int = 900, samples: int = 1, channels: int = 5) -> SparseTensor:
    g = torch.Generator().manual_seed(seed)
    coords = torch.randint(-20, 20, (count, 3), generator=g)
    coords[:, 2] //= 4
    feats = torch.randn(count, channels, generator=g)
    sample = torch.randint(0, samples, (count,), generator=g)
    return SparseTensor.from_coords(coords, feats, sample, batch_size=samples, duplicates="first", engine=ENGINE)


def fresh(x: SparseTensor, device: bool = False) -> SparseTensor:
    """The same tensor on new sites, which compute by the path of devices or by compiled loops."""
    with device_path() if device else contextlib.nullcontext():
        return SparseTensor(Sites(x.keys, x.stride, x.batch_size, ENGINE), x.feats)


@needs_warp
@pytest.mark.parametrize("samples", [1, 3, 13, 20])
@pytest.mark.parametrize("factors", [[2, 2, 2, 2], [2, 4], [1, 2], [3, 2]])
def test_coarser_sites_and_their_maps_are_found_together_as_one_after_the_other(
    factors: list[int], samples: int
) -> None:
    x = scene(samples, samples=samples)
    a, b = fresh(x).sites, fresh(x, device=True).sites
    b.derive_coarser([f for f in factors if f > 1])
    for factor in (f for f in factors if f > 1):
        assert torch.equal(a.coarser(factor).keys, b.coarser(factor).keys)
        assert a.coarser(factor).bounds == b.coarser(factor).bounds
        assert not b.coarser(factor).compiled
        for kernel_size in (3, 2, 1):
            for finer in (True, False):
                expected = a.kernel_map(a.coarser(factor) if finer else a, kernel_size).table
                found = b.kernel_map(b.coarser(factor) if finer else b, kernel_size)
                assert torch.equal(found.table, expected)
                assert torch.equal(found.sources, expected.masked_fill(expected < 0, len(a)))
        expected = a.coarser(factor).transposed_map(a, factor).table
        assert torch.equal(b.coarser(factor).transposed_map(b, factor).table, expected)
        a, b = a.coarser(factor), b.coarser(factor)


@needs_warp
def test_coarser_sites_of_no_sites() -> None:
    with device_path():
        empty = Sites(torch.zeros(0, dtype=torch.int64), 1, 1, ENGINE)
        empty.derive_coarser([2, 2])
        assert len(empty.coarser(2).coarser(2)) == 0
        assert empty.find(torch.tensor([5])).tolist() == [-1]
        assert empty.kernel_map(Sites(torch.tensor([5]), 1, 1, ENGINE), 3).sources.tolist() == [[0] * 27]


@needs_warp
@pytest.mark.parametrize("count", [3, 30])
def test_rows_of_many_sets_are_found_at_once(count: int) -> None:
    here, there = (
        [x.derive(x.coarser(s).keys[:: i + 1], s) for i, s in enumerate([1, 2, 4] * (count // 3))]
        for x in (scene(1, samples=4).sites, fresh(scene(1, samples=4), device=True).sites)
    )
    g = torch.Generator().manual_seed(0)
    keys = pack_site_keys(torch.full((500,), 2), torch.randint(-25, 25, (500, 3), generator=g))
    expected = torch.stack([s.find(floor_site_keys(keys, s.stride)) for s in here], -1).to(torch.int32)
    found = find_in_all(there, keys)
    assert torch.equal(find_in_all(here, keys), expected)
    assert torch.equal(found, expected)
    assert found.dtype == torch.int32
    assert 0 < int((found >= 0).sum()) < found.numel()


@needs_warp
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("samples", [1, 3])
def test_layers_and_their_gradients(samples: int, bias: bool) -> None:
    x = scene(2, samples=samples)
    layers = nn.Sequential(
        SparseConv(5, 6, 3, bias=bias), SparseMaxPool(2, 2), SparseConv(6, 7, 3, 2, bias=bias),
        SparseConv(7, 7, 1, bias=bias), SparseTransposedConv(7, 4, bias=bias), SparseConv(4, 3, 1, 2, bias=bias),
    ).double()  # fmt: skip
    results = []
    for by_operations in (False, True):
        leaf = x.feats.double().requires_grad_()
        layers.zero_grad()
        y = layers(SparseTensor(fresh(x, by_operations).sites, leaf))
        (y.feats**2).sum().backward()
        results.append([y.keys, y.feats.detach(), leaf.grad, *(p.grad.clone() for p in layers.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(b, a)


@needs_warp
def test_pooling_keeps_nan_and_zeroes_what_it_does_not_reach() -> None:
    x = scene(3)
    feats = x.feats.clone()
    feats[::7, 1] = torch.nan
    feats[1::7, 2] = -torch.inf
    pool, sparse = SparseMaxPool(1, 2), SparseMaxPool(3, 2)
    for layer in (pool, sparse):
        expected = layer(SparseTensor(fresh(x).sites, feats)).feats
        found = layer(SparseTensor(fresh(x, device=True).sites, feats)).feats
        torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)


@needs_warp
@pytest.mark.parametrize(
    ("training", "samples", "broken"),
    [(False, 1, 0), (True, 1, 0), (False, 2, 0), (True, 2, 0), (False, 1, 3), (False, 1, 1)],
)
def test_backbone_and_neck(samples: int, training: bool, broken: int) -> None:
    """Sites are pruned before anything is computed at them; skip levels have sites that coarser ones do not reach.
    ``broken``: every so many scores are no number."""

    def score(_: int, out: SparseTensor) -> torch.Tensor:
        scores = out.feats[:, :1].clone()
        if broken:
            scores[::broken] = torch.nan
        return scores

    torch.manual_seed(0)
    backbone = MinkResNet(BACKBONE).train(training)
    neck = TopDownNeck(BACKBONE.channels, 8, keep=120, lateral_channels=6, prune_first=True).train(training)
    x = scene(4, 2500, samples=samples)
    results = []
    for by_operations in (False, True):
        networks = copy.deepcopy(backbone), copy.deepcopy(neck)  # norms count along
        levels = networks[0](fresh(x, by_operations))
        thinned = levels[:2] + [SparseTensor(s.sites.derive(s.keys[::3], s.stride), s.feats[::3]) for s in levels[2:]]
        results.append(networks[1](thinned, score))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a.keys, b.keys)
        torch.testing.assert_close(b.feats, a.feats, rtol=1e-4, atol=1e-5)


def test_best_rows_with_ties_and_what_is_no_number() -> None:
    g = torch.Generator().manual_seed(0)
    for seed in range(20):
        scores = torch.randint(0, 6, (50,), generator=g).float()
        scores[scores == 5] = torch.nan
        scores[scores == 4] = -torch.inf
        scores[scores == 3] = torch.inf
        for limit in (1, 7, 49, 50, 60):
            with device_path():
                found = best_rows(scores, limit)
            assert torch.equal(found, best_rows(scores, limit)), seed


@needs_warp
def test_interpolation() -> None:
    coarse, fine = scene(5), scene(6, 2000)
    x = SparseTensor(coarse.sites.coarser(4), torch.randn(len(coarse.sites.coarser(4)), 3))
    expected = interpolate(x, fine.sites)
    with device_path():  # also asked of the features, which may need gradients
        found = interpolate(x, fine.sites)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert int((found[1] == 0).sum()) > 0


@needs_warp
@pytest.mark.parametrize("channels", [1, 3])
def test_kernels_of_sites_give_the_bits_of_the_loops(channels: int) -> None:
    x, fine = scene(5, channels=channels).sites.coarser(4), scene(6, count=300).sites
    feats = torch.randn(len(x), channels, generator=torch.Generator().manual_seed(1))
    expected = interpolate(SparseTensor(x, feats), fine)
    with device_path():
        there = SparseTensor(Sites(x.keys, 4, 1, ENGINE), feats)
        found, rows = interpolate(there, fine), there.sites.find(fine.keys)
    assert torch.equal(rows, x.find(fine.keys))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
