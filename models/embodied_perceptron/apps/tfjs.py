"""A TensorFlow.js graph model of convolutions as an ONNX file.

Enough of TensorFlow's operators for detectors like NanoDet; whatever else a graph holds is refused by name. Tensors
stay in the order of axes that the graph gives them; transpositions around every convolution are left to the runtime,
which cancels them. Format: https://github.com/tensorflow/tfjs (``model.json`` with topology and manifest, weights
beside it).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TYPES = {"float32": np.float32, "int32": np.int32, "float16": np.float16, "bool": np.bool_}
_TO_NCHW, _TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
_OPSET = 13


class ConversionError(ValueError):
    """A graph that cannot be converted; names what it fails on."""


def read_weights(model: Mapping[str, Any], data: bytes) -> dict[str, NDArray[Any]]:
    """Arrays by name; half-precision ones become float32. Raises :class:`ConversionError` where they do not fit."""
    found: dict[str, NDArray[Any]] = {}
    offset = 0
    for entry in (w for group in model["weightsManifest"] for w in group["weights"]):
        stored = entry.get("quantization", {}).get("dtype", entry["dtype"])
        if stored not in _TYPES:
            raise ConversionError(f"weight {entry['name']!r} is stored as {stored}")
        count, kind = int(np.prod(entry["shape"], dtype=np.int64)), np.dtype(_TYPES[stored])
        if offset + count * kind.itemsize > len(data):
            raise ConversionError(f"the weights end within {entry['name']!r}")
        values = np.frombuffer(data, kind, count, offset).reshape(entry["shape"])
        offset += count * kind.itemsize
        found[entry["name"]] = values.astype(_TYPES[entry["dtype"]])
    if offset != len(data):
        raise ConversionError(f"{len(data) - offset} bytes of weights belong to nothing")
    return found


def graph_to_onnx(
    text: str,
    data: bytes,
    outputs: Mapping[str, Sequence[int]] | None = None,
) -> bytes:
    """Contents of ``model.json`` and of its weights -> an ONNX file. Raises :class:`ConversionError`.

    Args:
        text: of ``model.json``.
        data: its weights, in the order of its manifest.
        outputs: name -> shape of tensors that are given; None = those of the signature.
    """
    try:
        model = json.loads(text)
        nodes = model["modelTopology"]["node"]
        weights = read_weights(model, data)
        if outputs is None:
            given = {
                value.get("name", key): [int(d["size"]) for d in value["tensorShape"]["dim"]]
                for key, value in model["signature"]["outputs"].items()
            }
        else:
            given = {name: list(shape) for name, shape in outputs.items()}
        return _Graph(weights).convert(nodes, given)
    except (KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
        raise ConversionError(f"no graph model as expected: {type(error).__name__}: {error}") from error


class _Graph:
    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        import onnx  # an extra; only conversion needs it

        self._onnx = onnx
        self._constants: dict[str, NDArray[Any]] = dict(weights)
        self._nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._count = 0

    def convert(self, nodes: list[dict[str, Any]], outputs: Mapping[str, list[int]]) -> bytes:
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        waiting = {node["name"]: node for node in nodes}
        missing = sorted(name for name in outputs if _node_of(name) not in waiting)
        if missing:
            raise ConversionError(f"the graph has no node {', '.join(missing)}")
        inputs: list[Any] = []
        done: set[str] = set()

        def feed(name: str, shape: Sequence[int]) -> None:
            """An input; pictures come with their channels first, whatever the graph wants."""
            is_last = len(shape) == 4 and shape[3] == 3
            given = f"{name}/channels_first" if is_last else name
            size = [shape[0], 3, *shape[1:3]] if is_last else list(shape)
            inputs.append(helper.make_tensor_value_info(given, kinds.FLOAT, size))
            if is_last:
                self.emit("Transpose", [given], [name], perm=_TO_NHWC)
            done.add(name)

        def visit(name: str) -> None:
            stack = [name]
            while stack:
                node = waiting[stack[-1]]
                missing = [i for i in map(_node_of, node.get("input", ())) if i not in done]
                if missing and node["name"] not in done:
                    if len(stack) > len(waiting):
                        raise ConversionError(f"the graph runs in a circle at {node['name']!r}")
                    stack.extend(missing)
                    continue
                if node["name"] not in done:
                    done.add(node["name"])
                    if node["op"] == "Placeholder":
                        feed(node["name"], [int(d["size"]) for d in node["attr"]["shape"]["shape"]["dim"]])
                    elif node["op"] != "Const":
                        self._add(node)
                stack.pop()

        for name in outputs:
            visit(_node_of(name))
        given = [helper.make_tensor_value_info(_tensor(name), kinds.FLOAT, shape) for name, shape in outputs.items()]
        graph = helper.make_graph(self._nodes, "graph", inputs, given, list(self._initializers.values()))
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
        self._onnx.checker.check_model(proto)
        return bytes(proto.SerializeToString())

    def _add(self, node: dict[str, Any]) -> None:
        convert = _OPERATORS.get(node["op"])
        if convert is None:
            raise ConversionError(f"operator {node['op']} of {node['name']!r} is not known")
        convert(self, node, [_tensor(i) for i in node.get("input", ())], node.get("attr", {}))

    # ------------------------------------------------------------------------------------------------ parts of nodes

    def constant(self, name: str) -> NDArray[Any]:
        """Value of a tensor that must be known now."""
        if name not in self._constants:
            raise ConversionError(f"{name!r} must be constant")
        return self._constants[name]

    def known(self, *names: str) -> bool:
        """Whether all of them are constants."""
        return all(name in self._constants for name in names)

    def fold(self, name: str, value: NDArray[Any]) -> None:
        """A node whose value is known now."""
        self._constants[name] = value

    def read(self, name: str) -> str:
        """A tensor as an input of a node."""
        if name in self._constants and name not in self._initializers:
            value = np.ascontiguousarray(self._constants[name])
            self._initializers[name] = self._onnx.numpy_helper.from_array(value, name)
        return name

    def new(self, value: NDArray[Any]) -> str:
        """A constant of our own."""
        self._count += 1
        self._constants[f"own_{self._count}"] = value
        return self.read(f"own_{self._count}")

    def emit(self, kind: str, inputs: list[str], outputs: list[str] | None = None, **attributes: Any) -> str:
        """One node; the name of its first output."""
        if outputs is None:
            self._count += 1
            outputs = [f"own_{self._count}"]
        self._nodes.append(self._onnx.helper.make_node(kind, [self.read(i) for i in inputs], outputs, **attributes))
        return outputs[0]


def _node_of(name: str) -> str:
    return name.removeprefix("^").split(":")[0]


def _tensor(name: str) -> str:
    return name.removesuffix(":0")


def _ints(attribute: Mapping[str, Any]) -> list[int]:
    return [int(v) for v in attribute["list"].get("i", ())]


def _same_shape(kind: str) -> Callable[..., None]:
    def convert(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
        graph.emit(kind, inputs, [node["name"]])

    return convert


def _arithmetic(kind: str, compute: Callable[[Any, Any], Any]) -> Callable[..., None]:
    def convert(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
        if graph.known(*inputs):
            graph.fold(node["name"], compute(graph.constant(inputs[0]), graph.constant(inputs[1])))
        else:
            graph.emit(kind, inputs, [node["name"]])

    return convert


def _relu6(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    low, high = graph.new(np.float32(0.0)), graph.new(np.float32(6.0))
    graph.emit("Clip", [inputs[0], low, high], [node["name"]])


def _mean(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    axes = graph.constant(inputs[1]).astype(np.int64).ravel().tolist()
    keep = int(bool(attributes.get("keep_dims", {}).get("b")))
    graph.emit("ReduceMean", inputs[:1], [node["name"]], axes=axes, keepdims=keep)


def _leaky(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    graph.emit("LeakyRelu", inputs, [node["name"]], alpha=float(attributes["alpha"]["f"]))


def _transpose(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    graph.emit("Transpose", inputs[:1], [node["name"]], perm=graph.constant(inputs[1]).tolist())


def _pad(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    pads = graph.new(graph.constant(inputs[1]).T.ravel().astype(np.int64))
    value = graph.constant(inputs[2]) if len(inputs) > 2 else np.float32(0.0)
    graph.emit("Pad", [inputs[0], pads, graph.new(np.array(value, np.float32).reshape(()))], [node["name"]])


def _window(node: dict[str, Any], attributes: dict[str, Any]) -> tuple[str, list[int]]:
    layout = base64.b64decode(attributes["data_format"]["s"]).decode() if "data_format" in attributes else "NHWC"
    if layout != "NHWC":
        raise ConversionError(f"{node['name']!r} has its axes as {layout}")
    padding = base64.b64decode(attributes["padding"]["s"]).decode()
    if padding not in ("VALID", "SAME"):
        raise ConversionError(f"{node['name']!r} is padded as {padding}")
    return {"VALID": "VALID", "SAME": "SAME_UPPER"}[padding], _ints(attributes["strides"])[1:3]


def _conv(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    padding, strides = _window(node, attributes)
    kernel, group = graph.constant(inputs[1]), 1
    if "Depthwise" in node["op"]:  # HWIM, each input channel has M outputs of its own
        group = kernel.shape[2]
        kernel = kernel.reshape(*kernel.shape[:2], 1, -1)
    weights = graph.new(kernel.transpose(3, 2, 0, 1))  # HWIO -> OIHW
    image = graph.emit("Transpose", inputs[:1], perm=_TO_NCHW)
    dilations = _ints(attributes["dilations"])[1:3] if "dilations" in attributes else [1, 1]
    fused = [base64.b64decode(op).decode() for op in attributes.get("fused_ops", {}).get("list", {}).get("s", ())]
    if fused not in ([], ["BiasAdd"], ["BiasAdd", "Relu"], ["BiasAdd", "Relu6"]):
        raise ConversionError(f"{node['name']!r} is fused with {', '.join(fused)}")
    bias = [graph.new(graph.constant(inputs[2]))] if fused else []
    out = graph.emit(
        "Conv", [image, weights, *bias], auto_pad=padding, strides=strides, dilations=dilations, group=group
    )
    if fused[1:] == ["Relu"]:
        out = graph.emit("Relu", [out])
    elif fused[1:] == ["Relu6"]:
        out = graph.emit("Clip", [out, graph.new(np.float32(0.0)), graph.new(np.float32(6.0))])
    graph.emit("Transpose", [out], [node["name"]], perm=_TO_NHWC)


def _max_pool(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    padding, strides = _window(node, attributes)
    image = graph.emit("Transpose", inputs, perm=_TO_NCHW)
    size = _ints(attributes["ksize"])[1:3]
    out = graph.emit("MaxPool", [image], auto_pad=padding, strides=strides, kernel_shape=size)
    graph.emit("Transpose", [out], [node["name"]], perm=_TO_NHWC)


def _resize(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    if attributes.get("align_corners", {}).get("b"):
        raise ConversionError(f"{node['name']!r} resizes from corner to corner")
    mode = "half_pixel" if attributes.get("half_pixel_centers", {}).get("b") else "asymmetric"
    image = graph.emit("Transpose", inputs[:1], perm=_TO_NCHW)
    height, width = graph.constant(inputs[1]).tolist()
    # channels and pictures stay: their scale is 1, and so their size is asked of the graph
    shape = graph.emit("Slice", [graph.emit("Shape", [image]), graph.new(np.array([0])), graph.new(np.array([2]))])
    sizes = graph.emit("Concat", [shape, graph.new(np.array([height, width], np.int64))], axis=0)
    out = graph.emit("Resize", [image, "", "", sizes], mode="linear", coordinate_transformation_mode=mode)
    graph.emit("Transpose", [out], [node["name"]], perm=_TO_NHWC)


def _concat(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    graph.emit("Concat", inputs[:-1], [node["name"]], axis=int(graph.constant(inputs[-1])))


def _split(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    sizes = graph.constant(inputs[1]).astype(np.int64)
    outputs = [node["name"] if k == 0 else f"{node['name']}:{k}" for k in range(len(sizes))]
    graph.emit("Split", [inputs[0], graph.new(sizes)], outputs, axis=int(graph.constant(inputs[2])))


def _reshape(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    shape = graph.new(graph.constant(inputs[1]).astype(np.int64).ravel())
    graph.emit("Reshape", [inputs[0], shape], [node["name"]])


def _sparse_to_dense(graph: _Graph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    indices, shape, values, default = (graph.constant(name) for name in inputs)
    dense = np.full(shape.tolist(), default)
    if len(indices):
        dense[tuple(np.atleast_2d(indices).T)] = values
    graph.fold(node["name"], dense)


_OPERATORS: dict[str, Callable[..., None]] = {
    "Add": _arithmetic("Add", np.add),
    "AddV2": _arithmetic("Add", np.add),
    "BiasAdd": _arithmetic("Add", np.add),
    "ConcatV2": _concat,
    "Conv2D": _conv,
    "DepthwiseConv2dNative": _conv,
    "FusedDepthwiseConv2dNative": _conv,
    "Identity": _same_shape("Identity"),
    "LeakyRelu": _leaky,
    "MaxPool": _max_pool,
    "Mean": _mean,
    "Mul": _arithmetic("Mul", np.multiply),
    "Pad": _pad,
    "PadV2": _pad,
    "Relu": _same_shape("Relu"),
    "Relu6": _relu6,
    "Reshape": _reshape,
    "ResizeBilinear": _resize,
    "Sigmoid": _same_shape("Sigmoid"),
    "SparseToDense": _sparse_to_dense,
    "SplitV": _split,
    "Sub": _arithmetic("Sub", np.subtract),
    "Transpose": _transpose,
    "_FusedConv2D": _conv,
}
