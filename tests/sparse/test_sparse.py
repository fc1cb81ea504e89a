"""Sparse layers against dense convolution, in value and gradient."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.volume_frames import needs_warp

import embodied_perceptron.sparse.engine as engine_module
from embodied_perceptron.geometry.transforms import (
    MAX_SITE_COORDINATE,
    floor_site_keys,
    pack_site_keys,
    unpack_site_keys,
)
from embodied_perceptron.sparse import cpu_kernels
from embodied_perceptron.sparse.conv import (
    SparseBatchNorm,
    SparseConv,
    SparseInstanceNorm,
    SparseMaxPool,
    SparseTransposedConv,
)
from embodied_perceptron.sparse.engine import _Convolution, _WholeConvolution, blocks_of, get_engine
from embodied_perceptron.sparse.sites import (
    KernelMap,
    Sites,
    _merge,
    build_kernel_map,
    kernel_offsets,
    search,
)
from embodied_perceptron.sparse.tensor import (
    SparseTensor,
    interpolate,
    sum_at,
    union,
    union_add,
)

ENGINE = get_engine("torch")
SIZE = 12  # edge of the dense grids, a multiple of every stride used
HALO = 12  # empty border around the sites: kernels never leave the grid


def prune(x: SparseTensor, keep: torch.Tensor) -> SparseTensor:
    return SparseTensor(x.sites.derive(x.keys[keep], x.stride), x.feats[keep])


def random_tensor(
    seed: int, count: int, channels: int, stride: int = 1, batch: int = 2, dtype: torch.dtype = torch.float64
) -> SparseTensor:
    """Random sites with coordinates in [-SIZE/2, SIZE/2), distinct, with random features that need a gradient."""
    g = torch.Generator().manual_seed(seed)
    n = SIZE // stride
    cells = torch.randperm(batch * n**3, generator=g)[:count]
    samples = cells // n**3
    c = torch.stack([cells // n**2 % n, cells // n % n, cells % n], dim=1) * stride - (SIZE // 2) // stride * stride
    feats = torch.randn(len(cells), channels, generator=g, dtype=dtype)
    x = SparseTensor.from_coords(c, feats, samples, stride=stride, batch_size=batch, engine=ENGINE)
    x.feats.requires_grad_()
    return x


def dense_of(x: SparseTensor) -> torch.Tensor:
    """(B, C, n, n, n) grid that starts at -HALO - SIZE/2 rounded to a multiple of 12 (every stride divides it)."""
    return x.dense([-24] * 3, [48 // x.stride] * 3)


def read(grid: torch.Tensor, sites: Sites) -> torch.Tensor:
    """Values of a dense grid of this layout at the sites."""
    cell = (sites.coords + 24) // sites.stride
    return grid[sites.samples, :, cell[:, 0], cell[:, 1], cell[:, 2]]


def dense_kernel(kernel: torch.Tensor, size: int) -> torch.Tensor:
    """(K, Cin, Cout), x fastest -> (Cout, Cin, kx, ky, kz)."""
    k = kernel.reshape(size, size, size, *kernel.shape[-2:])  # z, y, x, Cin, Cout
    return k.permute(4, 3, 2, 1, 0)


def assert_same_with_gradients(
    value: torch.Tensor, expected: torch.Tensor, inputs: list[torch.Tensor], seed: int
) -> None:
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    g = torch.randn(value.shape, generator=torch.Generator().manual_seed(seed), dtype=value.dtype)
    got = torch.autograd.grad(value, inputs, g, allow_unused=True, materialize_grads=True)
    wanted = torch.autograd.grad(expected, inputs, g, allow_unused=True, materialize_grads=True)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.sampled_from([1, 2, 17, 150, 600]),
    kernel_size=st.sampled_from([1, 2, 3, 5]),
    stride=st.sampled_from([1, 2, 3, 4]),
    in_stride=st.sampled_from([1, 2, 3]),
    bias=st.booleans(),
)
def test_convolution_equals_dense(
    seed: int, count: int, kernel_size: int, stride: int, in_stride: int, bias: bool
) -> None:
    assume(24 % (in_stride * stride) == 0)  # the dense grid must start on the coarse lattice
    x = random_tensor(seed, count, 3, in_stride)
    layer = SparseConv(3, 4, kernel_size, stride, bias).double()
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    y = layer(x)
    low = kernel_size // 2 if kernel_size % 2 else 0
    grid = F.pad(dense_of(x), [low, kernel_size - 1 - low] * 3)
    weight = dense_kernel(layer.kernel.reshape(-1, 3, 4), kernel_size)
    out = F.conv3d(grid, weight, None if layer.bias is None else layer.bias[0], stride=stride)
    expected = torch.unique(floor_site_keys(x.keys, in_stride * stride))
    assert torch.equal(y.keys, expected)
    assert y.stride == in_stride * stride
    assert_same_with_gradients(y.feats, read(out, y.sites), [x.feats, *layer.parameters()], seed)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.sampled_from([1, 17, 600]),
    kernel_size=st.sampled_from([1, 2, 3]),
    factor=st.sampled_from([1, 2]),
    transposed=st.booleans(),
    tile=st.sampled_from([1, 100, 10**6]),
)
def test_whole_neighbourhoods_are_multiplied_as_offsets_are(
    seed: int, count: int, kernel_size: int, factor: int, transposed: bool, tile: int
) -> None:
    x = random_tensor(seed, count, 3)
    fine, coarse = x.sites, x.sites.coarser(factor)
    kernel_map = fine.kernel_map(coarse, kernel_size)
    g = torch.Generator().manual_seed(seed)
    kernel = torch.randn(kernel_size**3, 3, 4, generator=g, dtype=torch.float64, requires_grad=True)
    source = x.feats
    if transposed:
        kernel_map = kernel_map.transposed
        source = torch.randn(len(coarse), 3, generator=g, dtype=torch.float64, requires_grad=True)
    table = KernelMap(kernel_map.n_in, kernel_map.n_out, kernel_map.identity, sources=kernel_map.sources)
    with patch.object(engine_module, "_DEVICE_TILE_NUMBERS", tile):
        whole = _WholeConvolution.apply(source, kernel, table, None)
        by_offsets = _Convolution.apply(source, kernel, lambda: kernel_map, None)
        assert_same_with_gradients(whole, by_offsets, [source, kernel], seed)


def test_no_sites_give_gradients_of_zero() -> None:
    feats, kernel = torch.ones(4, 3, requires_grad=True), torch.ones(8, 3, 2, requires_grad=True)
    nowhere = KernelMap(4, 0, None, sources=torch.zeros(0, 8, dtype=torch.int32))
    nowhere.transposed = KernelMap(0, 4, None, sources=torch.zeros(4, 8, dtype=torch.int32))
    out = _WholeConvolution.apply(feats, kernel, nowhere, None)
    (grad,) = torch.autograd.grad(out.sum(), [kernel])
    assert out.shape == (0, 2)
    assert grad.shape == kernel.shape
    assert not grad.any()


def test_under_autocast_halves_are_multiplied_and_gradients_keep_their_precision() -> None:
    x = random_tensor(3, 300, 8, dtype=torch.float32)
    layers = torch.nn.Sequential(SparseConv(8, 8), SparseConv(8, 8, 3, 2), SparseTransposedConv(8, 4))
    expected = layers(x).feats
    with torch.autocast("cpu", torch.bfloat16):
        y = layers(x).feats
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0.1, atol=0.2)
    grads = torch.autograd.grad(y.float().square().sum(), [x.feats, *layers.parameters()])
    assert {g.dtype for g in grads} == {torch.float32}
    precise = x.replace(x.feats.double())
    with torch.autocast("cpu", torch.bfloat16):  # leaves doubles alone
        assert SparseConv(8, 8).double()(precise).feats.dtype == torch.float64


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.sampled_from([1, 5, 60]),
    kernel_size=st.sampled_from([2, 3, 4]),
    stride=st.sampled_from([2, 3]),
)
def test_generative_transposed_convolution_equals_dense(seed: int, count: int, kernel_size: int, stride: int) -> None:
    x = random_tensor(seed, count, 3, stride)
    layer = SparseTransposedConv(3, 4, kernel_size, stride).double()
    y = layer(x)
    low = kernel_size // 2 if kernel_size % 2 else 0
    out = F.conv_transpose3d(dense_of(x), dense_kernel(layer.kernel, kernel_size).transpose(0, 1), stride=stride)
    out = out[:, :, low : low + 48, low : low + 48, low : low + 48]
    reached = F.conv_transpose3d(
        dense_of(x.replace(torch.ones(len(x), 1, dtype=torch.float64))),
        torch.ones(1, 1, *[kernel_size] * 3, dtype=torch.float64),
        stride=stride,
    )[:, :, low : low + 48, low : low + 48, low : low + 48]
    assert y.stride == 1
    assert torch.equal(read(reached, y.sites) > 0, torch.ones(len(y), 1, dtype=torch.bool))
    assert int((reached > 0).sum()) == len(y)
    assert_same_with_gradients(y.feats, read(out, y.sites), [x.feats, layer.kernel], seed)


def test_transposed_convolution_onto_given_sites() -> None:
    x = random_tensor(1, 200, 3)
    down, up = SparseConv(3, 4, 3, 2).double(), SparseTransposedConv(4, 2, 3, 2).double()
    coarse = down(x)
    y = up(coarse, x.sites)
    everywhere = up(coarse)
    rows = everywhere.sites.find(x.keys)
    assert (rows >= 0).all()
    torch.testing.assert_close(y.feats, everywhere.feats[rows])
    with pytest.raises(ValueError, match="out_sites must have stride 1"):
        up(coarse, coarse.sites)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.sampled_from([1, 17, 400]),
    kernel_size=st.sampled_from([2, 3]),
    stride=st.sampled_from([1, 2]),
)
def test_max_pool_equals_dense(seed: int, count: int, kernel_size: int, stride: int) -> None:
    x = random_tensor(seed, count, 3)
    y = SparseMaxPool(kernel_size, stride)(x)
    low = kernel_size // 2 if kernel_size % 2 else 0
    absent = dense_of(x.replace(torch.ones_like(x.feats))) == 0
    grid = F.pad(dense_of(x).masked_fill(absent, -torch.inf), [low, kernel_size - 1 - low] * 3, value=-torch.inf)
    assert_same_with_gradients(y.feats, read(F.max_pool3d(grid, kernel_size, stride), y.sites), [x.feats], seed)


def test_max_pool_keeps_nan_and_zeroes_what_it_does_not_reach() -> None:
    coords = torch.tensor([[0, 0, 0], [1, 1, 1], [3, 3, 3]])
    x = SparseTensor.from_coords(coords, torch.tensor([[1.0], [2.0], [3.0]]), engine=ENGINE)
    x.feats[1] = torch.nan
    assert SparseMaxPool(2, 2)(x).feats.isnan().flatten().tolist() == [True, False]
    assert SparseMaxPool(1, 2)(x).feats.flatten().tolist() == [1.0, 0.0]


def test_first_of_equal_maxima_gets_the_gradient() -> None:
    x = SparseTensor.from_coords(torch.tensor([[0, 0, 1], [1, 0, 0]]), torch.ones(2, 1), engine=ENGINE)
    x.feats.requires_grad_()
    SparseMaxPool(2, 2)(x).feats.sum().backward()
    assert x.feats.grad is not None
    assert x.feats.grad.flatten().tolist() == [0.0, 1.0]  # (1, 0, 0) comes first: kernels run x fastest


def test_gradients_numerically() -> None:
    x = random_tensor(3, 12, 2)
    conv, up = SparseConv(2, 3, 3, 2).double(), SparseTransposedConv(3, 2).double()

    def run(feats: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.func.functional_call(conv, {"kernel": a}, (x.replace(feats),))
        z: torch.Tensor = torch.func.functional_call(up, {"kernel": b}, (y,)).feats
        return z

    assert torch.autograd.gradcheck(run, (x.feats, conv.kernel, up.kernel))


@pytest.mark.parametrize("count", [0, 1])
def test_empty_and_single(count: int) -> None:
    coords = torch.tensor([[5, -3, 7]])[:count]
    x = SparseTensor.from_coords(coords, torch.ones(count, 3), batch_size=2, engine=ENGINE)
    for layer in (SparseConv(3, 4, 3), SparseConv(3, 4, 3, 2, bias=True), SparseConv(3, 4, 1)):
        y = layer(x)
        assert y.feats.shape == (count, 4)
        y.feats.sum().backward()
        assert layer.kernel.grad is not None
    up = SparseTransposedConv(3, 4)(SparseMaxPool()(x))
    assert up.feats.shape == (8 * count, 4)
    assert SparseBatchNorm(3).train()(x).feats.shape == (count, 3)
    assert torch.isfinite(SparseInstanceNorm(3)(x).feats).all()
    assert x.dense([0, 0, 0], [8, 8, 8]).shape == (2, 3, 8, 8, 8)
    assert interpolate(x, x.sites)[0].shape == (count, 3)
    assert len(union_add(x, x)) == count
    if count:
        # the kernel's centre is all that a lone site sees
        conv = SparseConv(3, 4, 3)
        torch.testing.assert_close(conv(x).feats, x.feats @ conv.kernel[13])


def test_batched_equals_single() -> None:
    x = random_tensor(5, 300, 3, batch=3)
    net = torch.nn.Sequential(SparseConv(3, 4, 3, 2), SparseInstanceNorm(4), SparseMaxPool(), SparseConv(4, 2, 3))
    net.double()
    y = net(x)
    for b, rows in enumerate(y.split()):
        mine = x.samples == b
        single = SparseTensor.from_coords(x.coords[mine], x.feats[mine], engine=ENGINE)
        z = net(single)
        assert torch.equal(z.coords, y.coords[y.samples == b])
        torch.testing.assert_close(rows, z.feats)


@pytest.mark.parametrize("crowded", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_loops_equal_plain_torch(dtype: torch.dtype, crowded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net = torch.nn.Sequential(SparseConv(3, 8, 3, crowded=True), SparseMaxPool(3, 2), SparseConv(8, 4, 3, 2)).to(dtype)
    results = []
    for compiled in (True, False):
        monkeypatch.setattr(cpu_kernels, "serves", lambda *_, on=compiled: on)
        monkeypatch.setattr(engine_module, "_BLOCK_ROWS", 64)  # several blocks
        monkeypatch.setattr(engine_module, "_CHUNK", 7)  # here too
        monkeypatch.setattr(engine_module, "_MIN_FILL", 0.0 if crowded else 1.1)
        x = random_tensor(4, 900, 3, dtype=dtype)
        y = net(x).feats
        grads = torch.autograd.grad(y.square().sum(), [x.feats, *net.parameters()])
        results.append([y.detach(), *grads])
    for a, b in zip(*results, strict=True):
        precision = 2e-6 if dtype == torch.float32 else 1e-14  # sums of hundreds, in another order
        torch.testing.assert_close(a, b, rtol=0.0, atol=precision * float(b.abs().max()))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.sampled_from([1, 8, 300, 2500]),
    stride=st.sampled_from([1, 2, 3]),
    channels=st.sampled_from([(1, 1), (3, 5), (16, 8)]),
)
def test_blocks_are_convolved_as_offsets_are(seed: int, count: int, stride: int, channels: tuple[int, int]) -> None:
    x = random_tensor(seed, count, channels[0], stride)
    kernel = torch.randn(27, *channels, dtype=torch.float64, requires_grad=True)
    with patch.object(engine_module, "_MIN_FILL", 0.0):
        blocks = blocks_of(x.sites)
    assert blocks is not None
    found = _Convolution.apply(x.feats, kernel, lambda: x.sites.kernel_map(x.sites, 3), blocks)
    slow = _Convolution.apply(x.feats, kernel, lambda: x.sites.kernel_map(x.sites, 3), None)
    assert_same_with_gradients(found, slow, [x.feats, kernel], seed)


def test_products_of_blocks_in_bfloat16_are_right_to_the_second_digit() -> None:
    torch.manual_seed(0)
    every = random_tensor(2, 40, 1, stride=2).sites.children(2, 2)
    x = SparseTensor(every, torch.randn(len(every), 32))
    layer = SparseConv(32, 16, crowded=True)
    with torch.inference_mode():
        exact = layer(x).feats
        layer.freeze(torch.float32)
        assert torch.equal(layer(x).feats, exact)  # its filters are those that were made on the way
        layer.freeze(torch.bfloat16)
        short = layer(x).feats
    assert short.dtype == torch.float32
    error = (short - exact).abs().max() / exact.abs().max()
    assert 1e-4 < error < 2e-2  # it is another product, and a good one
    learned = layer(x).feats  # where gradients are wanted the kernel counts
    torch.testing.assert_close(learned.detach(), exact)


def test_blocks_are_for_crowded_sites_alone() -> None:
    coarse = random_tensor(2, 40, 1, stride=2).sites
    split = coarse.children(2, 2)  # 8 sites each
    assert blocks_of(split) is not None
    assert blocks_of(split.derive(split.keys[::2], 1)) is None
    with patch.object(engine_module, "convolve_blocks", side_effect=AssertionError):
        layer = SparseConv(1, 4, crowded=True).double()
        layer(random_tensor(2, 40, 1))  # few sites are not convolved so
        every = SparseTensor(split, torch.ones(len(split), 1, dtype=torch.float64))
        SparseConv(1, 4).double()(every)  # nor what nobody expects to be crowded
        with pytest.raises(AssertionError):
            layer(every)


def test_half_precision_runs_without_the_compiled_loops() -> None:
    x = random_tensor(4, 100, 3, dtype=torch.bfloat16)
    y = SparseMaxPool()(SparseConv(3, 8).bfloat16()(x))
    assert y.feats.dtype == torch.bfloat16
    y.feats.sum().backward()


def test_order_of_kernel_rows() -> None:
    assert kernel_offsets(3)[0] == (-1, -1, -1)
    assert kernel_offsets(3)[1] == (0, -1, -1)
    assert kernel_offsets(3)[13] == (0, 0, 0)
    assert kernel_offsets(2) == [(x, y, z) for z in (0, 1) for y in (0, 1) for x in (0, 1)]


@needs_warp
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(0, 80), m=st.integers(0, 80), kernel_size=st.integers(1, 4))
def test_map_builders_agree_with_brute_force(seed: int, n: int, m: int, kernel_size: int) -> None:
    g = torch.Generator().manual_seed(seed)

    def some(count: int) -> torch.Tensor:
        coords = torch.randint(-3, 3, (count, 3), generator=g)
        return torch.unique(pack_site_keys(torch.randint(0, 2, (count,), generator=g), coords))

    a, b = some(n), some(m)
    steps = [int(pack_step) for pack_step in (5, -(1 << 19), 1 << 38, 0)]
    searched = KernelMap(len(a), len(b), None, sources=search(a, b, tuple(steps)))
    merged = KernelMap(len(a), len(b), None, tuple(_merge(a, b, steps)))
    for one, other in ((searched, merged), (searched.transposed, merged.transposed)):
        assert torch.equal(one.table, other.table)
        for found, wanted in zip(one.pairs, other.pairs, strict=True):
            assert torch.equal(torch.stack(found), torch.stack(wanted))
    for same in (False, True):
        other = a if same else b
        built = build_kernel_map(a, other, kernel_size, 1, same=same)
        samples_in, coords_in = unpack_site_keys(a)
        samples_out, coords_out = unpack_site_keys(other)
        for (i, o), offset in zip(built.pairs, kernel_offsets(kernel_size), strict=True):
            hit = (coords_out[:, None] + torch.tensor(offset) == coords_in[None]).all(dim=2)
            hit &= samples_out[:, None] == samples_in[None]
            assert hit.nonzero().tolist() == torch.stack([o, i], dim=1).tolist()


@settings(max_examples=50, deadline=None)
@given(
    coords=st.lists(st.tuples(*[st.integers(-MAX_SITE_COORDINATE, MAX_SITE_COORDINATE)] * 3), min_size=1, max_size=20),
    stride=st.integers(1, 70),
)
def test_keys_round_trip_order_and_floor(coords: list[tuple[int, int, int]], stride: int) -> None:
    c = torch.tensor(coords)
    samples = torch.arange(len(c)) % 64
    keys = pack_site_keys(samples, c)
    assert (keys >= 0).all()
    back = unpack_site_keys(keys)
    assert torch.equal(back[0], samples)
    assert torch.equal(back[1], c)
    rows = [(int(s), *v) for s, v in zip(samples, coords, strict=True)]
    assert [rows[i] for i in torch.argsort(keys).tolist()] == sorted(rows)
    floored = unpack_site_keys(floor_site_keys(keys, stride))[1]
    assert floored.tolist() == [[v // stride * stride for v in row] for row in coords]


def test_union_adds_where_both_are() -> None:
    a, b = random_tensor(1, 40, 3), random_tensor(2, 300, 3)
    y = union_add(a, b)
    assert_same_with_gradients(dense_of(y), dense_of(a) + dense_of(b), [a.feats, b.feats], 0)
    assert set(y.keys.tolist()) == set(a.keys.tolist()) | set(b.keys.tolist())
    with pytest.raises(ValueError, match="stride must agree, got 1 and 2"):
        union_add(a, random_tensor(2, 3, 3, stride=2))


def test_a_union_with_less_is_the_same_sites() -> None:
    x = random_tensor(2, 300, 3)
    part = prune(x, torch.arange(300) % 3 == 0)
    part = part.replace(part.feats.detach().requires_grad_())
    other = random_tensor(7, 40, 3)
    assert union(part.sites, x.sites) is x.sites
    assert union(x.sites, part.sites) is x.sites
    both = union_add(part, x)
    assert both.sites is x.sites
    assert_same_with_gradients(dense_of(both), dense_of(part) + dense_of(x), [x.feats, part.feats], 0)
    three = sum_at(union(x.sites, other.sites), other, x, part)
    expected = dense_of(part) + dense_of(x) + dense_of(other)
    assert_same_with_gradients(dense_of(three), expected, [x.feats, part.feats, other.feats], 0)
    twice = sum_at(x.sites, x, x)
    torch.testing.assert_close(twice.feats, 2 * x.feats)


def test_rows_of_other_sites_are_found_by_walking_as_by_searching() -> None:
    for n, m in ((300, 500), (500, 300), (0, 5), (5, 0), (300, 300)):
        a, b = random_tensor(1, n, 1).sites, random_tensor(2, m, 1).sites
        assert torch.equal(a.rows_of(b), a.find(b.keys))
        assert torch.equal(a.rows_of(a), torch.arange(n))


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_found_in_any_order_as_by_binary_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = torch.from_numpy(np.unique(rng.integers(0, 4000, 900)))
    sites = Sites(keys, 1, 1, get_engine())
    near = np.clip(2000 + rng.integers(-5, 6, 700).cumsum(), -50, 4050)
    for wanted in (torch.from_numpy(rng.integers(-50, 4050, 500)), torch.from_numpy(near), keys, keys[:0]):
        at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
        assert torch.equal(sites.find(wanted), torch.where(keys[at] == wanted, at, -1))
    assert sites.derive(keys[:1], 1).find(keys[:3]).tolist() == [0, -1, -1]
    assert sites.derive(keys[:0], 1).find(keys[:3]).tolist() == [-1, -1, -1]


def renormalised(x: SparseTensor, sites: Sites) -> torch.Tensor:
    total, weight = interpolate(x, sites)
    return total / weight[:, None]


def test_interpolation_is_exact_for_linear_functions_and_renormalises_at_the_border() -> None:
    lattice = torch.tensor(list(itertools.product(range(0, 9, 4), repeat=3)))
    values = (lattice.double() @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))[:, None] + 3
    x = SparseTensor.from_coords(lattice, values, stride=4, engine=ENGINE)
    inner = torch.tensor(list(itertools.product(range(1, 8), repeat=3)))
    fine = SparseTensor.from_coords(inner, torch.zeros(len(inner), 1), engine=ENGINE)
    expected = (fine.coords.double() @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))[:, None] + 3
    torch.testing.assert_close(renormalised(x, fine.sites), expected)
    edge = SparseTensor.from_coords(torch.tensor([[8, 8, 10]]), torch.zeros(1, 1), engine=ENGINE)
    at_corner = values[-1:]
    torch.testing.assert_close(renormalised(x, edge.sites), at_corner)
    torch.testing.assert_close(interpolate(x, edge.sites)[0], at_corner / 2)
    far = SparseTensor.from_coords(torch.tensor([[90, 8, 10]]), torch.zeros(1, 1), engine=ENGINE)
    assert [v.item() for v in interpolate(x, far.sites)] == [0, 0]


def test_norms_match_torch() -> None:
    x = random_tensor(7, 90, 4)
    bn = SparseBatchNorm(4).double()
    torch.testing.assert_close(bn(x).feats, F.batch_norm(x.feats, None, None, training=True))
    y = SparseInstanceNorm(4).double()(x)
    for rows, got in zip(x.split(), y.split(), strict=True):
        torch.testing.assert_close(got, F.instance_norm(rows.t()[None], eps=1e-8)[0].t())


def test_kernel_maps_are_built_once() -> None:
    x = random_tensor(1, 50, 3)
    layer = SparseConv(3, 3).double()
    y = layer(layer(x))
    assert y.sites is x.sites
    assert len(x.sites._maps) == 1
    assert x.sites.coarser(2) is x.sites.coarser(2)


def test_from_coords_duplicates() -> None:
    coords = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 0, 0]])
    feats = torch.tensor([[1.0], [2.0], [5.0]])
    first = SparseTensor.from_coords(coords, feats, duplicates="first")
    assert first.feats.flatten().tolist() == [2.0, 1.0]
    assert SparseTensor.from_coords(coords, feats, duplicates="mean").feats.flatten().tolist() == [2.0, 3.0]
    with pytest.raises(ValueError, match=r"1 duplicate rows, first at \[1, 0, 0\]"):
        SparseTensor.from_coords(coords, feats)


def test_from_coords_names_bad_values() -> None:
    ok, feats = torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 2)
    for bad, message in [
        (lambda: SparseTensor.from_coords(ok.float(), feats), "coords must be"),
        (lambda: SparseTensor.from_coords(ok, feats[:, 0]), "feats must be"),
        (lambda: SparseTensor.from_coords(ok + 1, feats, stride=2), "multiples of stride 2"),
        (lambda: SparseTensor.from_coords(ok + 10**6, feats), "coordinates must lie within"),
        (lambda: SparseTensor.from_coords(ok, feats, ok[:, 0] + 3, batch_size=2), r"indices must be in \[0, 2\)"),
        (lambda: SparseTensor.from_coords(ok, feats * torch.nan), "features must be finite, row 0"),
        (lambda: SparseTensor.from_coords(ok, feats, batch_size=100), "batch_size must be in"),
        (lambda: SparseConv(3, 4)(SparseTensor.from_coords(ok, feats)), "expected 3 channels, got 2"),
        (lambda: SparseTensor.from_coords(ok, feats).dense([0, 0, 0], [0, 1, 1]), "shape must be"),
        (lambda: SparseTensor.from_coords(ok, feats).sites.children(2, 2), "cannot be refined"),
        (lambda: get_engine("gpu"), "engine must be"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(ValueError, match=message):
            bad()


@pytest.mark.forks  # the fake device has to be there before the first gradient of a process
def test_a_gpu_equals_the_cpu(gpu: torch.device) -> None:
    net = torch.nn.Sequential(SparseConv(3, 8, 3), SparseMaxPool(), SparseConv(8, 8, 3, 2), SparseTransposedConv(8, 4))
    results = []
    for device in (torch.device("cpu"), gpu):
        x = random_tensor(4, 900, 3, dtype=torch.float32)
        leaf = x.feats.detach().to(device).requires_grad_()
        y = net.to(device)(SparseTensor.from_coords(x.coords.to(device), leaf, x.samples.to(device), engine=ENGINE))
        y = union_add(y, prune(y, y.feats[:, 0] > -torch.inf))
        total = y.feats.square().sum() + y.dense([-24] * 3, [24] * 3).sum()
        grads = torch.autograd.grad(total, [leaf, *net.parameters()])
        results.append([y.keys.cpu(), y.feats.detach().cpu(), *[g.cpu() for g in grads]])
    assert torch.equal(results[0][0], results[1][0])
    for a, b in zip(results[0][1:], results[1][1:], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
