"""Parity with MinkowskiEngine itself: same sites, same weights, same values and gradients."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from embodied_perceptron.sparse.conv import SparseConv, SparseInstanceNorm, SparseMaxPool, SparseTransposedConv
from embodied_perceptron.sparse.engine import get_engine
from embodied_perceptron.sparse.tensor import SparseTensor, union_add

pytestmark = [
    pytest.mark.minkowski,
    pytest.mark.skipif(importlib.util.find_spec("MinkowskiEngine") is None, reason="make minkowski builds it"),
]
TOLERANCE = 2e-6  # relative to the largest value: both sum in float32, in different orders


def random_input(seed: int, count: int, channels: int, reach: int = 9) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    samples = torch.randint(0, 2, (count,), generator=g)
    rows = torch.cat([samples[:, None], torch.randint(-reach, reach, (count, 3), generator=g)], dim=1)
    rows = torch.unique(rows, dim=0)
    return rows, torch.randn(len(rows), channels, generator=g)


def make(rows: torch.Tensor, feats: torch.Tensor, engine: str, stride: int = 1) -> SparseTensor:
    return SparseTensor.from_coords(
        rows[:, 1:],
        feats,
        rows[:, 0],
        stride=stride,
        batch_size=2,
        engine=get_engine(engine),  # type: ignore[arg-type]
    )


def prune(x: SparseTensor, keep: torch.Tensor) -> SparseTensor:
    return SparseTensor(x.sites.derive(x.keys[keep], x.stride), x.feats[keep])


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12))


def from_native(y: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted (sample, x, y, z) rows and features of a native tensor."""
    rows, feats = y.C.long(), y.F  # type: ignore[attr-defined]
    shifted = rows + torch.tensor([0, 1000, 1000, 1000])
    order = torch.argsort(((shifted[:, 0] * 4000 + shifted[:, 1]) * 4000 + shifted[:, 2]) * 4000 + shifted[:, 3])
    return rows[order], feats[order]


def compare(ours: SparseTensor, native: object, record_property: object) -> None:
    rows, feats = from_native(native)
    assert torch.equal(torch.cat([ours.samples[:, None], ours.coords], dim=1), rows)
    error = difference(ours.feats.detach(), feats.detach())
    record_property("relative_difference", error)  # type: ignore[operator]
    print(f"relative difference {error:.2e}")
    assert error < TOLERANCE


@pytest.mark.parametrize("kernel_size", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("engine", ["torch", "minkowski"])
def test_convolution_and_gradients(kernel_size: int, stride: int, engine: str, record_property: object) -> None:
    import MinkowskiEngine as ME  # noqa: N817

    rows, feats = random_input(kernel_size * 10 + stride, 400, 6)
    layer = SparseConv(6, 5, kernel_size, stride, bias=True)
    torch.nn.init.normal_(layer.bias)  # type: ignore[arg-type]
    native = ME.MinkowskiConvolution(6, 5, kernel_size, stride, bias=True, dimension=3)
    native.load_state_dict(layer.state_dict())  # the layout of parameters is the same
    a, b = feats.clone().requires_grad_(), feats.clone().requires_grad_()
    y = layer(make(rows, a, engine))
    z = native(ME.SparseTensor(b, coordinates=rows.int()))
    compare(y, z, record_property)
    y.feats.square().sum().backward()
    z.F.square().sum().backward()
    assert difference(a.grad, b.grad) < TOLERANCE  # type: ignore[arg-type]
    assert difference(layer.kernel.grad, native.kernel.grad) < TOLERANCE  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel_size", [2, 3])
@pytest.mark.parametrize("engine", ["torch", "minkowski"])
def test_generative_transposed_convolution(kernel_size: int, engine: str, record_property: object) -> None:
    import MinkowskiEngine as ME  # noqa: N817

    rows, feats = random_input(kernel_size, 120, 6)
    rows[:, 1:] *= 2
    layer = SparseTransposedConv(6, 5, kernel_size, 2)
    native = ME.MinkowskiGenerativeConvolutionTranspose(6, 5, kernel_size, 2, dimension=3)
    native.load_state_dict(layer.state_dict())
    a, b = feats.clone().requires_grad_(), feats.clone().requires_grad_()
    y = layer(make(rows, a, engine, stride=2))
    z = native(ME.SparseTensor(b, coordinates=rows.int(), tensor_stride=2))
    compare(y, z, record_property)
    y.feats.square().sum().backward()
    z.F.square().sum().backward()
    assert difference(a.grad, b.grad) < TOLERANCE  # type: ignore[arg-type]
    assert difference(layer.kernel.grad, native.kernel.grad) < TOLERANCE  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel_size", [2, 3])
@pytest.mark.parametrize("engine", ["torch", "minkowski"])
def test_max_pool(kernel_size: int, engine: str, record_property: object) -> None:
    import MinkowskiEngine as ME  # noqa: N817

    rows, feats = random_input(kernel_size, 400, 6)
    a, b = feats.clone().requires_grad_(), feats.clone().requires_grad_()
    y = SparseMaxPool(kernel_size, 2)(make(rows, a, engine))
    z = ME.MinkowskiMaxPooling(kernel_size, 2, dimension=3)(ME.SparseTensor(b, coordinates=rows.int()))
    compare(y, z, record_property)
    y.feats.square().sum().backward()
    z.F.square().sum().backward()
    assert difference(a.grad, b.grad) < TOLERANCE  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["torch", "minkowski"])
def test_union_prune_norm(engine: str, record_property: object) -> None:
    import MinkowskiEngine as ME  # noqa: N817

    rows, feats = random_input(1, 300, 4)
    other_rows, other_feats = random_input(2, 100, 4)
    x, other = make(rows, feats, engine), make(other_rows, other_feats, engine)
    native = ME.SparseTensor(feats, coordinates=rows.int())
    native_other = ME.SparseTensor(
        other_feats, coordinates=other_rows.int(), coordinate_manager=native.coordinate_manager
    )
    y, z = union_add(x, other), native + native_other
    compare(y, z, record_property)
    norm, native_norm = SparseInstanceNorm(4), ME.MinkowskiInstanceNorm(4)
    native_norm.load_state_dict(norm.state_dict())
    compare(norm(x), native_norm(native), record_property)
    keep = feats[:, 0] > 0
    conv = SparseConv(8, 3)
    native_conv = ME.MinkowskiConvolution(8, 3, 3, dimension=3)
    native_conv.load_state_dict(conv.state_dict())
    kept, native_kept = prune(x, x.feats[:, 0] > 0), ME.MinkowskiPruning()(native, keep)
    twice = kept.replace(torch.cat([kept.feats, kept.feats], dim=1))
    compare(conv(twice), native_conv(ME.cat(native_kept, native_kept)), record_property)


def test_engines_agree_on_a_decoder(record_property: object) -> None:
    rows, feats = random_input(3, 600, 3, reach=20)
    layers = [SparseConv(3, 8, 3, 2), SparseMaxPool(3, 2), SparseConv(8, 8, 3, 2), SparseConv(8, 8, 1, 2)]
    up = [SparseTransposedConv(8, 8), SparseTransposedConv(8, 8)]
    down = SparseConv(8, 8, 3, 4)
    results = []
    for engine in ("torch", "minkowski"):
        x = make(rows, feats, engine)
        for layer in layers:
            x = layer(x)
        middle = up[0](x)
        pruned = up[1](prune(middle, torch.arange(len(middle)) % 3 > 0))
        back = down(pruned)  # sites that were pruned come back from the union with the encoder's
        results.append(union_add(back, SparseTensor(x.sites.coarser(1), x.feats)) if back.stride == x.stride else back)
    assert torch.equal(results[0].keys, results[1].keys)
    error = difference(results[0].feats.detach(), results[1].feats.detach())
    record_property("relative_difference", error)  # type: ignore[operator]
    assert error < TOLERANCE


def test_auto_takes_minkowski_only_where_it_pays_and_its_build_serves_the_device() -> None:
    import MinkowskiEngine as ME  # noqa: N817

    assert get_engine("auto").name == "torch"
    assert get_engine("minkowski").name == "minkowski"
    assert get_engine("auto", "cuda").name == ("minkowski" if ME.is_cuda_available() else "torch")
    if not ME.is_cuda_available():
        with pytest.raises(ValueError, match="does not support device cuda"):
            get_engine("minkowski", "cuda")
