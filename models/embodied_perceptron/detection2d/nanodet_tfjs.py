"""Convert NanoDet from a TensorFlow.js graph model to an ONNX file.

The reader knows the operators of this one graph and refuses others by name. Tensors keep the graph's axis order (NHWC);
the transpositions around each convolution are cancelled by the runtime. Format: https://github.com/tensorflow/tfjs
(``model.json`` with topology and manifest, weights in a binary file).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TO_NCHW, _TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
_TYPES = {"float32": np.float32, "int32": np.int32, "float16": np.float16}
_OPSET = 13


class ConversionError(ValueError):
    """A graph that cannot be converted; the message names the cause."""


def nanodet_to_onnx(text: str, data: bytes) -> bytes:
    """Return the ONNX file of a ``model.json`` and its weights.

    Raises :class:`ConversionError` for another graph, ``ImportError`` without the package ``onnx``.
    """
    try:
        model = json.loads(text)
        nodes = {node["name"]: node for node in model["modelTopology"]["node"]}
        graph = _Graph(_weights(model, data))
        outputs = {
            name.removesuffix(":0"): _shape(value["tensorShape"])
            for name, value in model["signature"]["outputs"].items()
        }
        done: set[str] = set()
        for output in outputs:
            stack = [output]
            while stack:
                node = nodes[stack[-1]]
                missing = [i for i in (name.split(":")[0] for name in node.get("input", ())) if i not in done]
                if missing and len(stack) <= len(nodes):
                    stack.extend(missing)
                    continue
                stack.pop()
                if node["name"] not in done:
                    done.add(node["name"])
                    graph.convert(node)
        return graph.file(outputs)
    except (KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
        raise ConversionError(f"not a graph model of NanoDet: {type(error).__name__}: {error}") from error


def _weights(model: Mapping[str, Any], data: bytes) -> dict[str, NDArray[Any]]:
    """Read the arrays by name; half-precision weights become float32."""
    found: dict[str, NDArray[Any]] = {}
    offset = 0
    for entry in (w for group in model["weightsManifest"] for w in group["weights"]):
        kind = np.dtype(_TYPES[entry.get("quantization", {}).get("dtype", entry["dtype"])])
        count = int(np.prod(entry["shape"], dtype=np.int64))
        if offset + count * kind.itemsize > len(data):
            raise ConversionError(f"the weights end within {entry['name']!r}")
        values = np.frombuffer(data, kind, count, offset).reshape(entry["shape"])
        offset += count * kind.itemsize
        found[entry["name"]] = values.astype(_TYPES[entry["dtype"]])
    if offset != len(data):
        raise ConversionError(f"{len(data) - offset} bytes of weights are in no entry of the manifest")
    return found


def _shape(value: Mapping[str, Any]) -> list[int]:
    return [int(d["size"]) for d in value["dim"]]


def _text(attribute: Mapping[str, Any]) -> str:
    return base64.b64decode(attribute["s"]).decode()


def _sizes(attribute: Mapping[str, Any]) -> list[int]:
    """Height and width of an attribute over NHWC axes."""
    return [int(v) for v in attribute["list"]["i"]][1:3]


class _Graph:
    """An ONNX graph under construction; constants are initialisers once a node reads them."""

    def __init__(self, constants: dict[str, NDArray[Any]]) -> None:
        import onnx

        self._onnx = onnx
        self._constants = constants
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._count = 0

    def file(self, outputs: Mapping[str, list[int]]) -> bytes:
        """Return the checked file with outputs of these shapes."""
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        given = [helper.make_tensor_value_info(name, kind, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self._nodes, "graph", self._inputs, given, list(self._initializers.values()))
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
        self._onnx.checker.check_model(proto)
        return bytes(proto.SerializeToString())

    def _constant(self, name: str) -> NDArray[Any]:
        if name not in self._constants:
            raise ConversionError(f"{name!r} must be constant")
        return self._constants[name]

    def _new(self, value: NDArray[Any]) -> str:
        """Add a constant."""
        self._count += 1
        self._constants[f"own_{self._count}"] = value
        return self._read(f"own_{self._count}")

    def _read(self, name: str) -> str:
        if name in self._constants and name not in self._initializers:
            value = np.asarray(self._constants[name], order="C")
            self._initializers[name] = self._onnx.numpy_helper.from_array(value, name)
        return name

    def _emit(self, kind: str, inputs: list[str], outputs: list[str] | None = None, **attributes: Any) -> str:
        """Add a node; return the name of its first output."""
        if outputs is None:
            self._count += 1
            outputs = [f"own_{self._count}"]
        self._nodes.append(self._onnx.helper.make_node(kind, [self._read(i) for i in inputs], outputs, **attributes))
        return outputs[0]

    def _windowed(self, kind: str, node: Mapping[str, Any], inputs: list[str], **attributes: Any) -> None:
        """Add a convolution or pooling of an NHWC tensor without padding."""
        attr = node["attr"]
        if (_text(attr["data_format"]), _text(attr["padding"])) != ("NHWC", "VALID"):
            raise ConversionError(f"{node['name']!r} has another axis order than NHWC, or padding")
        image = self._emit("Transpose", inputs[:1], perm=_TO_NCHW)
        out = self._emit(kind, [image, *inputs[1:]], auto_pad="VALID", strides=_sizes(attr["strides"]), **attributes)
        self._emit("Transpose", [out], [node["name"]], perm=_TO_NHWC)

    def convert(self, node: Mapping[str, Any]) -> None:
        """Add a node of TensorFlow; all of its inputs are there."""
        name, attr = node["name"], node.get("attr", {})
        inputs = [i.removesuffix(":0") for i in node.get("input", ())]
        match node["op"]:
            case "Const":
                pass
            case "Placeholder":
                kind = self._onnx.TensorProto.FLOAT
                self._inputs.append(
                    self._onnx.helper.make_tensor_value_info(name, kind, _shape(attr["shape"]["shape"]))
                )
            case "Add" | "AddV2":
                if all(i in self._constants for i in inputs):
                    self._constants[name] = self._constants[inputs[0]] + self._constants[inputs[1]]
                else:
                    self._emit("Add", inputs, [name])
            case "Identity" | "Sigmoid" as kind:
                self._emit(kind, inputs, [name])
            case "LeakyRelu":
                self._emit("LeakyRelu", inputs, [name], alpha=float(attr["alpha"]["f"]))
            case "Transpose":
                self._emit("Transpose", inputs[:1], [name], perm=self._constant(inputs[1]).tolist())
            case "Pad" | "PadV2":
                pads = self._new(self._constant(inputs[1]).T.ravel().astype(np.int64))
                value = self._constant(inputs[2]) if len(inputs) > 2 else np.float32(0.0)
                self._emit("Pad", [inputs[0], pads, self._new(np.array(value, np.float32).reshape(()))], [name])
            case "Conv2D":
                kernel = self._new(self._constant(inputs[1]).transpose(3, 2, 0, 1))
                dilations = _sizes(attr["dilations"]) if "dilations" in attr else [1, 1]
                self._windowed("Conv", node, [inputs[0], kernel], dilations=dilations, group=1)
            case "MaxPool":
                self._windowed("MaxPool", node, inputs, kernel_shape=_sizes(attr["ksize"]))
            case "ResizeBilinear":
                if not attr["half_pixel_centers"]["b"]:
                    raise ConversionError(f"{name!r} resizes without half-pixel centres")
                image = self._emit("Transpose", inputs[:1], perm=_TO_NCHW)
                height, width = self._constant(inputs[1]).tolist()
                shape = self._emit("Shape", [image])
                shape = self._emit("Slice", [shape, self._new(np.array([0])), self._new(np.array([2]))])
                sizes = self._emit("Concat", [shape, self._new(np.array([height, width], np.int64))], axis=0)
                resized = [image, "", "", sizes]
                out = self._emit("Resize", resized, mode="linear", coordinate_transformation_mode="half_pixel")
                self._emit("Transpose", [out], [name], perm=_TO_NHWC)
            case "ConcatV2":
                self._emit("Concat", inputs[:-1], [name], axis=int(self._constant(inputs[-1])))
            case "SplitV":
                parts = self._constant(inputs[1]).astype(np.int64)
                outputs = [name if k == 0 else f"{name}:{k}" for k in range(len(parts))]
                self._emit("Split", [inputs[0], self._new(parts)], outputs, axis=int(self._constant(inputs[2])))
            case "Reshape":
                wanted = self._new(self._constant(inputs[1]).astype(np.int64).ravel())
                self._emit("Reshape", [inputs[0], wanted], [name])
            case "SparseToDense":
                indices, size, values, default = (self._constant(i) for i in inputs)
                dense = np.full(size.tolist(), default)
                if len(indices):
                    dense[tuple(np.atleast_2d(indices).T)] = values
                self._constants[name] = dense
            case kind:
                raise ConversionError(f"operator {kind} of {name!r} is not known")
