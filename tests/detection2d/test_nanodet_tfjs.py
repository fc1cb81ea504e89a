"""NanoDet as a TensorFlow.js graph becomes an ONNX file that computes the same."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from embodied_perceptron.detection2d.nanodet_tfjs import ConversionError, nanodet_to_onnx

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
    session = ort.InferenceSession(nanodet_to_onnx(text, data), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(1, 2, 6, 8)).astype(np.float32)
    for value, expected in zip(session.run(None, {"x": x}), by_hand(x, arrays), strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-5)


def test_what_cannot_be_converted_is_named():
    text, data, _ = small_model("Erf")
    with pytest.raises(ConversionError, match="Erf"):
        nanodet_to_onnx(text, data)
    text, data, _ = small_model()
    with pytest.raises(ConversionError, match="end within 'shape'"):
        nanodet_to_onnx(text, data[:-4])
    with pytest.raises(ConversionError, match="4 bytes"):
        nanodet_to_onnx(text, data + b"1234")
    for wrong in ("{", "{}", '{"modelTopology": 3}'):
        with pytest.raises(ConversionError, match="graph model"):
            nanodet_to_onnx(wrong, b"")
