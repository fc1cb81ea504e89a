"""MinkResNet: sites, channels, locality, bad input, and the recorded outputs of the released network."""

from __future__ import annotations

import pytest
import torch
from support.golden import load_arrays, recorded_weights, relative_error

from embodied_perceptron.nn.backbone import BackboneConfig, MinkResNet
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.tensor import SparseTensor

SMALL = BackboneConfig(in_channels=2, stem_channels=4, channels=(6, 8), blocks=(1, 2), stem_norm="batch")


def some_input(count: int, channels: int, seed: int = 0) -> SparseTensor:
    g = torch.Generator().manual_seed(seed)
    coords = torch.randint(-30, 30, (count, 3), generator=g)
    feats = torch.randn(count, channels, generator=g)
    return SparseTensor.from_coords(coords, feats, duplicates="first", engine=get_engine("torch"))


def test_levels_have_the_strides_and_channels_of_the_configuration() -> None:
    net = MinkResNet(SMALL).eval()
    levels = net(some_input(300, 2))
    assert SMALL.strides == (8, 16)
    assert [x.stride for x in levels] == [8, 16]
    assert [x.channels for x in levels] == [6, 8]
    assert BackboneConfig().strides == (8, 16, 32, 64)
    assert BackboneConfig(stem_stride=1, pool=False).strides == (2, 4, 8, 16)


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("stem_norm", ["instance", "batch"])
@pytest.mark.parametrize("training", [False, True])
def test_empty_and_single_voxel(count: int, stem_norm: str, training: bool) -> None:
    config = BackboneConfig(2, 4, (6, 8), (1, 2), stem_norm=stem_norm)
    levels = MinkResNet(config).train(training)(some_input(count, 2))
    assert [x.feats.shape for x in levels] == [(count, 6), (count, 8)]
    assert all(torch.isfinite(x.feats).all() for x in levels)
    sum(x.feats.sum() for x in levels).backward()


def test_moving_the_world_by_the_coarsest_stride_moves_the_output() -> None:
    net = MinkResNet(SMALL).eval()
    x = some_input(300, 2)
    moved = SparseTensor.from_coords(x.coords + torch.tensor([16, -32, 48]), x.feats, engine=get_engine("torch"))
    for a, b in zip(net(x), net(moved), strict=True):
        assert torch.equal(a.coords + torch.tensor([16, -32, 48]), b.coords)
        assert torch.equal(a.feats, b.feats)


def test_batch_norm_stem_is_local_and_instance_norm_is_not() -> None:
    x = some_input(200, 2)
    far = torch.cat([x.coords, torch.tensor([[3000, 0, 0]])])
    both = SparseTensor.from_coords(far, torch.cat([x.feats, torch.full((1, 2), 9.0)]), engine=get_engine("torch"))
    for norm, local in (("batch", True), ("instance", False)):
        torch.manual_seed(0)
        net = MinkResNet(BackboneConfig(2, 4, (6, 8), (1, 2), stem_norm=norm)).eval()
        a, b = net(x)[-1], net(both)[-1]
        rows = b.sites.find(a.keys)
        assert torch.allclose(a.feats, b.feats[rows], atol=1e-5) is local


def test_configuration_names_what_is_wrong() -> None:
    for bad, message in [
        ({"channels": (1, 2), "blocks": (1,)}, "one entry per stage"),
        ({"stem_stride": 3}, "stem_stride must be 1 or 2, got 3"),
        ({"stem_norm": "layer"}, "stem_norm must be instance or batch, got 'layer'"),
        ({"in_channels": 0}, "must be positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            BackboneConfig(**bad)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------------
# recorded outputs of the released network


def released_network() -> MinkResNet:
    net = MinkResNet(BackboneConfig()).eval()
    prefix = "backbone_3d."
    weights = recorded_weights("detection", lambda key: key.startswith(prefix))
    missing, unexpected = net.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items()}, strict=False)
    assert not unexpected
    assert all(key.endswith("num_batches_tracked") for key in missing)
    return net


def compare(levels: list[SparseTensor], name: str, arrays: dict[str, torch.Tensor], suffix: str = "") -> float:
    worst = 0.0
    for i, level in enumerate(levels):
        rows = torch.cat([level.samples[:, None], level.coords], dim=1)
        assert torch.equal(rows, arrays[f"level{i}_coords"].long())
        expected = arrays[f"level{i}_feats{suffix}"]
        worst = max(worst, relative_error(level.feats[:, : expected.shape[1]], expected))
    print(f"{name}: largest relative error {worst:.1e}")
    assert worst < 1e-4
    return worst


@pytest.mark.golden
def test_golden_levels() -> None:
    given = load_arrays("backbone")
    x = SparseTensor.from_coords(torch.floor(given["points"] / 0.01).long(), given["points"])
    net = released_network()
    with torch.no_grad():
        compare(net(x), "backbone", given)
        y = net.conv1(x)
        assert relative_error(y.feats[::8, :16], given["conv1_ch16_feats_every_8"]) < 1e-4
        y = net.norm1(y)
        assert relative_error(y.feats[::8, :16], given["norm1_ch16_feats_every_8"]) < 1e-4
        assert net.maxpool is not None
        y = net.maxpool(y.replace(torch.relu(y.feats)))
        assert torch.equal(y.coords, given["maxpool_ch16_coords"][:, 1:].long())
        assert relative_error(y.feats[::8, :16], given["maxpool_ch16_feats_every_8"]) < 1e-4
        y = net.get_submodule("layer1.0")(y)
        assert relative_error(y.feats[::8, :16], given["layer1_block0_ch16_feats_every_8"]) < 1e-4


@pytest.mark.golden
def test_golden_first_point_of_a_voxel_is_kept() -> None:
    given = load_arrays("duplicate_points")
    points = given["points"]
    x = SparseTensor.from_coords(torch.floor(points / 0.01).long(), points, duplicates="first")
    assert torch.equal(x.coords, given["out_coords"][:, 1:].long())
    assert torch.equal(x.feats, given["out_feats"])


@pytest.mark.golden
def test_golden_batch_of_two() -> None:
    given = load_arrays("backbone_batch")
    points = [load_arrays("backbone")["points"], given["points1"]]
    both = torch.cat(points)
    samples = torch.repeat_interleave(torch.arange(2), torch.tensor([len(p) for p in points]))
    x = SparseTensor.from_coords(torch.floor(both / 0.01).long(), both, samples, duplicates="first")
    with torch.no_grad():
        compare(released_network()(x), "batch of two", given, "_ch32_first_8")
