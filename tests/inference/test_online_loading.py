"""A weights file becomes something that answers; what does not fit is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.small_networks import small_config, small_network
from support.volume_frames import posed, wall

from embodied_perceptron.config import ConfigError, NetworkOptions, PerceptronConfig
from embodied_perceptron.inference.loading import (
    LazyTextEncoder,
    inference_from_options,
    load_inference,
    read_network,
    save_network,
)
from embodied_perceptron.inference.predictor import Predictor
from embodied_perceptron.language import answer, colors, relations
from embodied_perceptron.language.query import sentence_reader
from embodied_perceptron.perceptron import Perceptron
from embodied_perceptron.weights import WeightsError
from embodied_perceptron.weights.checkpoint import CheckpointError

CLASSES = ("chair", "table", "lamp", "bed")
CELLS = ["floor", "wall", "chair"]


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "small.safetensors"
    extra = {"occupancy_classes": CELLS, "calibration": {"detection": {"min_score": 0.35}, "grounding": {"a": 1}}}
    save_network(path, small_network(small_config("all", "rgbd")), CLASSES, extra)
    return path


def test_names_and_calibration_come_from_the_file(weights):
    inference = load_inference(weights)
    assert inference.classes == CLASSES
    assert inference.occupancy_classes == tuple(CELLS)
    assert inference.scores.publish == 0.35
    assert inference.calibration["grounding"] == {"a": 1}
    assert load_inference(weights, options=NetworkOptions(min_score=0.5)).scores.publish == 0.5
    assert inference.device.type == "cpu"


def test_options_build_the_same_network(weights):
    config = PerceptronConfig(network=NetworkOptions(weights=str(weights), features="float32"))
    perceptron = Perceptron.from_config(config)
    assert perceptron.inference is not None
    view = perceptron.inference.view(wall(2.0, 1))
    assert {level.dtype for level in view.levels} == {torch.float32}
    none = NetworkOptions(weights="")
    assert inference_from_options(none) is None
    assert Perceptron.from_config(PerceptronConfig(network=none)).inference is None


def test_what_does_not_fit_is_refused(weights, tmp_path):
    network = small_network(small_config("all", "rgbd"))
    for extra, reason in (
        ({}, "3 occupancy classes, but 80 names are given"),
        ({"occupancy_classes": "floor"}, "must be names"),
        ({"occupancy_classes": CELLS, "calibration": 3}, "calibration must be a mapping"),
    ):
        save_network(tmp_path / "bad.safetensors", network, CLASSES, extra)
        with pytest.raises(CheckpointError, match=reason):
            load_inference(tmp_path / "bad.safetensors")
    with pytest.raises(WeightsError, match="no weights 'nothing'"):
        load_inference("nothing")
    with pytest.raises(ConfigError, match="warp"):
        load_inference(weights, "warp")
    (tmp_path / "cut.safetensors").write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"cut\.safetensors"):
        load_inference(tmp_path / "cut.safetensors")


def test_text_encoder_is_made_once_when_the_first_text_comes():
    made = []

    class Encoder:
        channels = 12

        def encode(self, texts):
            return tuple(texts)

    def make(device):
        made.append(device.type)
        return Encoder()

    lazy = LazyTextEncoder(12, make, torch.device("meta"))
    assert not made
    assert lazy.encode(["a"]) == ("a",)
    assert lazy.encode(["b"]) == ("b",)
    assert made == ["meta"]
    lazy.release()
    lazy.encode(["c"])
    lazy.use_cpu()
    lazy.encode(["d"])
    assert made == ["meta", "meta", "cpu"]
    with pytest.raises(ValueError, match="reads 13 text channels, got 12"):
        LazyTextEncoder(13, make, torch.device("cpu")).encode(["a"])


@pytest.mark.parametrize("task", ["all", "detection"])
def test_language_is_prepared_where_sentences_are_read(task):
    network = small_network(small_config(task, "depth"))
    failing, makings = [True], []

    class Encoder:
        channels = 12

        def encode(self, texts):
            return tuple(texts)

    def make(_device):
        makings.append(1)
        if failing:
            raise FileNotFoundError("no such package")
        return Encoder()

    cells = CELLS if task == "all" else ()
    inference = Predictor(network, CLASSES, cells, LazyTextEncoder(12, make, torch.device("cpu")))
    perceptron = Perceptron(inference=inference)
    if task == "detection":
        perceptron.prepare_language()
        assert makings == []  # nobody reads sentences
        return
    with pytest.raises(FileNotFoundError, match="no such package"):
        perceptron.prepare_language()
    failing.clear()
    perceptron.prepare_language()
    perceptron.prepare_language()
    assert makings == [1, 1]


def test_the_reader_of_sentences_is_prepared():
    """The robot's first sentence does not wait for ninety megabytes of weights."""
    loaded = (sentence_reader, answer._weights, relations._front_weights, colors._distributions)
    for table in loaded:
        table.cache_clear()
    Perceptron().prepare_language()
    assert [table.cache_info().currsize for table in loaded] == [1] * len(loaded)


def test_images_through_onnx_runtime_are_the_same(weights):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    color = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    frame = posed(np.full((48, 64), 2.0, np.float32), 1, color=color)
    options = NetworkOptions(features="float32")
    plain = load_inference(weights, options=options).view(frame)
    network, checkpoint = read_network(weights)
    slow = Predictor(network, checkpoint.classes, tuple(CELLS), feature_dtype=torch.float32).view(frame)
    for a, b in zip(plain.levels, slow.levels, strict=True):
        assert float((a - b).abs().max()) < 1e-5 * max(1.0, float(b.abs().max()))
    other = load_inference(weights, options=replace(options, image_backend="onnx")).view(frame)
    for a, b in zip(plain.levels, other.levels, strict=True):
        assert float((a - b).abs().max()) < 1e-3 * max(1.0, float(a.abs().max()))
    with pytest.raises(ValueError, match="WarpExecutionProvider"):
        load_inference(weights, options=NetworkOptions(image_backend="onnx", providers=("WarpExecutionProvider",)))
