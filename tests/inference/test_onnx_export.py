"""ONNX files give what torch gives, and run on the requested provider."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_perceptron.inference.onnx import (
    OnnxImageEncoder,
    OnnxTextEncoder,
    export_image_encoder,
    export_text_encoder,
)
from embodied_perceptron.nn.image_encoder import ImageEncoder, PyramidEncoder, ResNetEncoder, mobile_encoder
from embodied_perceptron.nn.text_encoder import text_encoder

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def with_lively_norms(encoder: ImageEncoder) -> ImageEncoder:
    """Running statistics away from their initial values, so that a folded norm is tested."""
    g = torch.Generator().manual_seed(0)
    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.copy_(torch.randn(module.num_features, generator=g) * 0.1)
            module.running_var.copy_(torch.rand(module.num_features, generator=g) + 0.5)
    return encoder.eval()


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-12))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ResNetEncoder(16),
        lambda: PyramidEncoder(ResNetEncoder(8, (1, 1, 1, 1)), 16),
        lambda: mobile_encoder("mobilenet_v2", pretrained=False),
        lambda: mobile_encoder("efficientnet_lite0", pretrained=False),
        lambda: mobile_encoder("efficientnet_lite2", pretrained=False),
    ],
    ids=["resnet50", "pyramid", "mobilenet_v2", "efficientnet_lite0", "efficientnet_lite2"],
)
def test_image_encoder(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    encoder = with_lively_norms(make())
    export_image_encoder(encoder, tmp_path / "image.onnx")
    run = OnnxImageEncoder(tmp_path / "image.onnx", threads=1)
    levels = list(encoder.out_channels)
    assert run.metadata["out_channels"] == levels
    assert run.metadata["strides"] == list(encoder.strides)
    r = np.random.default_rng(0)
    worst = 0.0
    for views, h, w in ((1, 96, 64), (3, 64, 160)):  # neither the number nor the size that was exported
        colors = torch.from_numpy(r.integers(0, 256, (views, 50, 70, 3), dtype=np.uint8))
        images = encoder.prepare(colors, (h, w))
        assert torch.equal(images, run.prepare(colors, (h, w)))
        with torch.no_grad():
            expected = encoder(images)
        for got, level in zip(run(images), expected, strict=True):
            worst = max(worst, relative(got, level))
    print(f"largest relative difference {worst:.1e}")
    assert worst < 1e-4
    assert [x.shape[0] for x in run(images[:0])] == [0] * len(levels)
    with pytest.raises(ValueError, match="multiples of 32"):
        run(torch.zeros(1, 3, 40, 64))


@pytest.mark.parametrize("name", ["minilm", "roberta"])
def test_text_encoder(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if name == "minilm":
        encoder = request.getfixturevalue("minilm")
    else:
        encoder = text_encoder(request.getfixturevalue("roberta_folder"), max_tokens=64)
    export_text_encoder(encoder, tmp_path / "text.onnx")
    run = OnnxTextEncoder(tmp_path / "text.onnx", threads=1)
    assert run.channels == encoder.channels
    worst = 0.0
    for texts in (["chair"], ["the table in front of the window", "", "chair " * 200]):
        got, expected = run.encode(texts), encoder.encode(texts)
        worst = max(worst, relative(got.tokens, expected.tokens), relative(got.sentence, expected.sentence))
        assert torch.equal(got.pad, expected.pad)
        assert torch.equal(got.spans, expected.spans)
        assert got.unread == expected.unread
    print(f"largest relative difference {worst:.1e}")
    assert worst < 1e-4
    assert run.encode([]).tokens.shape == (0, 0, run.channels)


def test_what_cannot_run_is_refused(tmp_path: Path) -> None:
    import onnxruntime

    path = tmp_path / "image.onnx"
    with pytest.raises(FileNotFoundError, match="no ONNX file"):
        OnnxImageEncoder(path)
    export_image_encoder(ResNetEncoder(4, (1, 1, 1, 1)).eval(), path)
    with pytest.raises(ValueError, match="holds no text encoder of this project: 'image'"):
        OnnxTextEncoder(path)
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(ValueError, match=r"\['CUDAExecutionProvider'\] are not available"):
            OnnxImageEncoder(path, ("CUDAExecutionProvider", "CPUExecutionProvider"))
    with pytest.raises(OSError, match="no_such_folder"):
        export_image_encoder(ResNetEncoder(4, (1, 1, 1, 1)), tmp_path / "no_such_folder" / "x.onnx")


def test_export_leaves_the_encoder_as_it_was(tmp_path: Path) -> None:
    encoder = ResNetEncoder(4, (1, 1, 1, 1)).train()
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    export_image_encoder(encoder, tmp_path / "image.onnx")
    assert encoder.training
    assert all(p.requires_grad for p in encoder.parameters())
    assert all(torch.equal(v, encoder.state_dict()[k]) for k, v in before.items())
