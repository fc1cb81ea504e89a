"""Files of TensorFlow Lite become ONNX files that compute the same; what is cut or quantised is refused by name."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import tarfile

import numpy as np
import pytest

from embodied_perceptron.apps import detector_commands
from embodied_perceptron.apps.command_line import CommandError
from embodied_perceptron.apps.onnx_graph import ConversionError
from embodied_perceptron.apps.tflite import tflite_to_onnx

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
flatbuffers = pytest.importorskip("flatbuffers")  # ONNX Runtime needs it

FLOAT32, FLOAT16, INT32, UINT8 = 0, 1, 2, 3
ADD, CONCATENATION, CONV, DEPTHWISE, DEQUANTIZE, RESHAPE, SOFTMAX = 0, 2, 3, 4, 6, 22, 25
SAME, VALID = 0, 1
RELU6 = 3


class Writer:
    """A ``.tflite`` file of a few tensors and operators."""

    def __init__(self):
        self.b = flatbuffers.Builder(1024)
        self.buffers = [self.table({})]  # the first is empty: tensors that are computed
        self.tensors, self.operators, self.codes = [], [], []

    def table(self, fields):
        """``fields``: number -> (kind of slot, value), made before."""
        self.b.StartObject(max(fields, default=-1) + 1)
        for number, (kind, value) in fields.items():
            if kind == "table":
                self.b.PrependUOffsetTRelativeSlot(number, value, 0)
            else:
                getattr(self.b, f"Prepend{kind}Slot")(number, value, 0)
        return self.b.EndObject()

    def list_of(self, tables):
        self.b.StartVector(4, len(tables), 4)
        for table in reversed(tables):
            self.b.PrependUOffsetTRelative(table)
        return self.b.EndVector()

    def integers(self, values):
        return "table", self.b.CreateNumpyVector(np.array(values, np.int32))

    def tensor(self, shape, kind=FLOAT32, values=None):
        buffer = 0
        if values is not None:
            data = self.b.CreateByteVector(np.ascontiguousarray(values).tobytes())
            self.buffers.append(self.table({0: ("table", data)}))
            buffer = len(self.buffers) - 1
        name = self.b.CreateString(f"t{len(self.tensors)}")
        fields = {0: self.integers(shape), 1: ("Int8", kind), 2: ("Uint32", buffer), 3: ("table", name)}
        self.tensors.append(self.table(fields))
        return len(self.tensors) - 1

    def operator(self, code, inputs, output, options=None):
        if code not in self.codes:
            self.codes.append(code)
        fields = {0: ("Uint32", self.codes.index(code)), 1: self.integers(inputs), 2: self.integers([output])}
        if options is not None:
            fields[4] = ("table", self.table(options))
        self.operators.append(self.table(fields))

    def finish(self, inputs, outputs):
        graph = {
            0: ("table", self.list_of(self.tensors)),
            1: self.integers(inputs),
            2: self.integers(outputs),
            3: ("table", self.list_of(self.operators)),
        }
        codes = [self.table({0: ("Int8", code), 3: ("Int32", code)}) for code in self.codes]
        model = {
            0: ("Uint32", 3),
            1: ("table", self.list_of(codes)),
            2: ("table", self.list_of([self.table(graph)])),
            4: ("table", self.list_of(self.buffers)),
        }
        self.b.Finish(self.table(model), file_identifier=b"TFL3")
        return bytes(self.b.Output())


def small_model(last=RESHAPE, kind=FLOAT16):
    """(1, 5, 4, 3) picture -> a convolution with stride 2 and ReLU6, a depthwise one, their sum, joined and flat."""
    rng = np.random.default_rng(0)
    w = Writer()
    kernel = rng.normal(size=(2, 3, 3, 3)).astype(np.float16)
    bias, deep = rng.normal(size=2).astype(np.float32), rng.normal(size=(1, 3, 3, 2)).astype(np.float32)
    x = w.tensor((1, 5, 4, 3))
    half = w.tensor(kernel.shape, kind, kernel)
    weights, offset = w.tensor(kernel.shape), w.tensor(bias.shape, FLOAT32, bias)
    depth, nothing = w.tensor(deep.shape, FLOAT32, deep), w.tensor((2,), FLOAT32, np.zeros(2, np.float32))
    shape = w.tensor((3,), INT32, np.array([1, -1, 2], np.int32))
    first, second, total, joined = (w.tensor(s) for s in ((1, 3, 2, 2), (1, 3, 2, 2), (1, 3, 2, 2), (1, 6, 2, 2)))
    out = w.tensor((1, 12, 2))
    w.operator(DEQUANTIZE, [half], weights)
    conv = {0: ("Int8", SAME), 1: ("Int32", 2), 2: ("Int32", 2), 3: ("Int8", RELU6)}
    w.operator(CONV, [x, weights, offset], first, conv)
    w.operator(DEPTHWISE, [first, depth, nothing], second, {1: ("Int32", 1), 2: ("Int32", 1), 3: ("Int32", 1)})
    w.operator(ADD, [first, second], total)
    w.operator(CONCATENATION, [first, total], joined, {0: ("Int32", 1)})
    w.operator(last, [joined, shape], out)
    return w.finish([x], [out]), kernel.astype(np.float32), bias, deep


def by_hand(x, kernel, bias, deep):
    """5 rows become 3: one row of zeros on either side; 4 columns become 2: one column right."""
    padded = np.pad(x, [(1, 1), (0, 1), (0, 0)])
    first = np.empty((3, 2, 2))
    for v in range(3):
        for u in range(2):
            window = padded[2 * v : 2 * v + 3, 2 * u : 2 * u + 3]
            first[v, u] = np.clip((kernel * window).sum(axis=(1, 2, 3)) + bias, 0, 6)
    around = np.pad(first, [(1, 1), (1, 1), (0, 0)])
    second = sum(around[v : v + 3, u : u + 2] * deep[0, v, u] for v in range(3) for u in range(3))
    return np.concatenate([first, first + second]).reshape(1, 12, 2)


def test_the_converted_file_computes_the_same_as_by_hand():
    data, *arrays = small_model()
    session = ort.InferenceSession(tflite_to_onnx(data, ("cup", "chair")), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [1, 3, 5, 4]  # pictures come with their channels first
    assert session.get_modelmeta().custom_metadata_map["names"] == "{0: 'cup', 1: 'chair'}"
    x = np.random.default_rng(1).normal(size=(5, 4, 3)).astype(np.float32)
    (value,) = session.run(None, {session.get_inputs()[0].name: x.transpose(2, 0, 1)[None]})
    np.testing.assert_allclose(value, by_hand(x, *arrays), atol=1e-4)


def test_what_cannot_be_converted_is_named():
    data, *_ = small_model()
    with pytest.raises(ConversionError, match="operator 25"):
        tflite_to_onnx(small_model(last=SOFTMAX)[0])
    with pytest.raises(ConversionError, match="quantised files are not read"):
        tflite_to_onnx(small_model(kind=UINT8)[0])
    with pytest.raises(ConversionError, match="no TensorFlow Lite file"):
        tflite_to_onnx(b"version https://git-lfs.github.com/spec/v1")
    for cut in (0, 7):
        with pytest.raises(ConversionError, match="no TensorFlow Lite file"):
            tflite_to_onnx(data[:cut])
    for cut in range(8, len(data) - 8, 97):
        with pytest.raises(ConversionError):
            tflite_to_onnx(data[:cut])


def test_a_detector_within_another_file_of_its_package(tmp_path):
    data, *_ = small_model()
    path = tmp_path / "models-1.0.0.tgz"
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("package/assets.data")
        content = b"names\n" + data
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    known = detector_commands.InstallableDetector(
        "models", "1.0.0", digest, "package/assets.data", (), "coco-ssd", "MIT", names=("cup",), span=(6, 6 + len(data))
    )
    converted = detector_commands.convert(known, path)
    assert ort.InferenceSession(converted, providers=["CPUExecutionProvider"]).get_outputs()[0].shape == [1, 12, 2]
    with pytest.raises(CommandError, match=r"models-1\.0\.0\.tgz cannot be converted: no TensorFlow Lite file"):
        detector_commands.convert(dataclasses.replace(known, span=(0, 60)), path)
