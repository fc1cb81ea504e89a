"""Folded networks against the same networks with their batch norms."""

from __future__ import annotations

import pytest
import torch
from support.small_networks import small_config, small_network, small_scene

from embodied_perceptron.inference.loading import GridConv, GridSplit, QuickElu, cpu_products, fold_batch_norms
from embodied_perceptron.nn.backbone import TopDownNeck
from embodied_perceptron.sparse.conv import SparseBatchNorm

NORMS = (SparseBatchNorm, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


@pytest.mark.parametrize("preset", ["tiny", "base", "paper"])
def test_a_folded_network_answers_the_same(preset: str) -> None:
    task = "all" if preset != "paper" else "detection"
    network = small_network(small_config(task, preset=preset))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    quick = fold_batch_norms(network)
    assert not any(isinstance(m, NORMS) for m in quick.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    scene = small_scene(channels=network.backbone.config.in_channels)
    levels, quick_levels = network.encode(scene), quick.encode(scene)  # with gradients: what is in place is seen
    for a, b in zip(levels, quick_levels, strict=True):
        close(b.feats, a.feats)
    found, quickly = network.detect(levels), quick.detect(levels)
    for p, q in zip(found.levels, quickly.levels, strict=True):
        assert torch.equal(p.sites.keys, q.sites.keys)
        close(q.class_logits, p.class_logits)
        close(q.distances_m, p.distances_m)
    if network.occupancy is not None:
        for a, b in zip(network.occupy(levels, (0, 0, 0)), quick.occupy(levels, (0, 0, 0)), strict=True):
            close(b, a)


def test_a_convolution_with_a_bias_of_its_own_folds_too() -> None:
    torch.manual_seed(0)
    neck = TopDownNeck((5, 6), 8, keep=10).eval()
    conv, norm = neck.out[0][0], neck.out[0][1]
    conv.bias = torch.nn.Parameter(torch.randn(1, 8))
    norm.bn.running_mean.normal_()
    norm.bn.running_var.uniform_(0.5, 2.0)
    x = small_scene(channels=5)
    close(fold_batch_norms(neck.out[0])(x).feats, neck.out[0](x).feats)


@pytest.mark.parametrize(
    ("size", "stride", "dilation", "bias"), [(3, 1, 1, True), (3, 2, 2, False), (1, 1, 1, False), (1, 1, 1, True)]
)
def test_convolutions_of_grids_are_torchs_own(size: int, stride: int, dilation: int, bias: bool) -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv3d(6, 5, size, stride, dilation * (size // 2), dilation, bias=bias)
    quick = fold_batch_norms(torch.nn.Sequential(conv))[0]
    assert isinstance(quick, GridConv)
    for x in (torch.randn(1, 6, 9, 8, 7), torch.randn(2, 9, 8, 7, 6).permute(0, 4, 1, 2, 3)):
        with torch.inference_mode():
            close(quick(x), conv(x))
    assert torch.equal(quick.weight, conv.weight)
    assert not quick.weight.is_inference()
    groups = torch.nn.Conv3d(6, 4, 1, groups=2)
    close(GridConv(groups)(x), groups(x))
    with pytest.raises(ValueError, match="only padding with zeros is supported, got same zeros"):
        GridConv(torch.nn.Conv3d(2, 2, 3, padding="same"))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=0.0, atol=1e-5 * (1 + scale))


def test_quick_elu_is_elu() -> None:
    x = torch.tensor([-float("inf"), -50.0, -3.0, -1e-4, 0.0, 1e-4, 2.0, float("inf"), float("nan")])
    quick = fold_batch_norms(torch.nn.Sequential(torch.nn.ELU()))[0]
    assert isinstance(quick, QuickElu)
    torch.testing.assert_close(quick(x), torch.nn.functional.elu(x), atol=1e-7, rtol=0, equal_nan=True)
    kept = fold_batch_norms(torch.nn.Sequential(torch.nn.ELU(alpha=0.5)))[0]
    assert isinstance(kept, torch.nn.ELU)


@pytest.mark.parametrize(("edges", "bias"), [((2, 2, 2), True), ((2, 2, 2), False), ((1, 2, 3), True)])
def test_splitting_cells_is_torchs_own_transposed_convolution(edges: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    conv = torch.nn.ConvTranspose3d(6, 5, edges, edges, bias=bias)
    quick = fold_batch_norms(torch.nn.Sequential(conv))[0]
    assert isinstance(quick, GridSplit)
    for x in (torch.randn(1, 6, 4, 3, 2), torch.randn(2, 4, 3, 2, 6).permute(0, 4, 1, 2, 3)):
        with torch.inference_mode():
            close(quick(x), conv(x))


@pytest.mark.parametrize("other", [{"padding": 1}, {"stride": 1}, {"groups": 2}, {"output_padding": 1}])
def test_transposed_convolutions_of_several_inputs_stay(other: dict[str, int]) -> None:
    conv = torch.nn.ConvTranspose3d(4, 4, 2, **{"stride": 2, **other})
    with pytest.raises(ValueError, match="its kernel must be its stride"):
        GridSplit(conv)
    assert type(fold_batch_norms(torch.nn.Sequential(conv))[0]) is torch.nn.ConvTranspose3d


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bfloat16 convolution (AVX-512)"
)
def test_short_products_of_grids_are_right_to_the_third_digit() -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv3d(16, 24, 3, padding=1)
    x = torch.randn(1, 16, 8, 8, 4)
    exact, short = (GridConv(conv, dtype) for dtype in (torch.float32, torch.bfloat16))
    with torch.inference_mode():
        close(exact(x), conv(x))
        found = short(x)
        assert found.dtype == torch.float32
        error = (found - conv(x)).abs().max() / conv(x).abs().max()
    assert 1e-5 < error < 1e-2  # it is another product, and a good one
    point = torch.nn.Conv3d(16, 24, 1)
    with torch.inference_mode():
        close(GridConv(point, torch.bfloat16)(x), point(x))  # what classifies is exact


def test_short_products_only_where_they_are_asked_for_and_multiplied(monkeypatch) -> None:
    for name, there in (("avx512_bf16", False), ("amx_tile", True)):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda there=there: there, raising=False)
    assert (cpu_products("float32"), cpu_products("auto")) == (torch.float32, torch.bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    assert cpu_products("auto") == torch.float32
