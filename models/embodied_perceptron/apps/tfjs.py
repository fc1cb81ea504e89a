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

from embodied_perceptron.apps.onnx_graph import TO_NCHW, TO_NHWC, ConversionError, OnnxGraph

_TYPES = {"float32": np.float32, "int32": np.int32, "float16": np.float16, "bool": np.bool_}


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
    inputs: Mapping[str, Sequence[int]] | None = None,
    names: Sequence[str] = (),
) -> bytes:
    """Contents of ``model.json`` and of its weights -> an ONNX file. Raises :class:`ConversionError`.

    Args:
        text: of ``model.json``.
        data: its weights, in the order of its manifest.
        outputs: name -> shape of tensors that are given; None = those of the signature.
        inputs: name -> shape of tensors that are fed instead of being computed; None = the graph's own.
        names: of the classes, for the file.
    """
    try:
        model = json.loads(text)
        nodes = {node["name"]: node for node in model["modelTopology"]["node"]}
        graph = OnnxGraph(read_weights(model, data))
        if outputs is None:
            given = {
                value.get("name", key): [int(d["size"]) for d in value["tensorShape"]["dim"]]
                for key, value in model["signature"]["outputs"].items()
            }
        else:
            given = {name: list(shape) for name, shape in outputs.items()}
        _convert(graph, nodes, given, {} if inputs is None else inputs)
        return graph.file({_tensor(name): shape for name, shape in given.items()}, names)
    except (KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
        raise ConversionError(f"no graph model as expected: {type(error).__name__}: {error}") from error


def _convert(
    graph: OnnxGraph,
    nodes: Mapping[str, dict[str, Any]],
    outputs: Mapping[str, Sequence[int]],
    inputs: Mapping[str, Sequence[int]],
) -> None:
    """Everything that the outputs need, in an order in which it can be computed."""
    missing = sorted(name for name in (*outputs, *inputs) if _node_of(name) not in nodes)
    if missing:
        raise ConversionError(f"the graph has no node {', '.join(missing)}")
    done: set[str] = set()
    for name, shape in inputs.items():
        graph.feed(name, shape)
        done.add(name)

    def visit(name: str) -> None:
        stack = [name]
        while stack:
            node = nodes[stack[-1]]
            missing = [i for i in map(_node_of, node.get("input", ())) if i not in done]
            if missing and node["name"] not in done:
                if len(stack) > len(nodes):
                    raise ConversionError(f"the graph runs in a circle at {node['name']!r}")
                stack.extend(missing)
                continue
            if node["name"] not in done:
                done.add(node["name"])
                if node["op"] == "Placeholder":
                    graph.feed(node["name"], [int(d["size"]) for d in node["attr"]["shape"]["shape"]["dim"]])
                elif node["op"] != "Const":
                    _add(graph, node)
            stack.pop()

    for name in outputs:
        visit(_node_of(name))


def _add(graph: OnnxGraph, node: dict[str, Any]) -> None:
    convert = _OPERATORS.get(node["op"])
    if convert is None:
        raise ConversionError(f"operator {node['op']} of {node['name']!r} is not known")
    convert(graph, node, [_tensor(i) for i in node.get("input", ())], node.get("attr", {}))


def _node_of(name: str) -> str:
    return name.removeprefix("^").split(":")[0]


def _tensor(name: str) -> str:
    return name.removesuffix(":0")


def _words(value: Any) -> str:
    """Text of an attribute: in base 64, or as numbers of its characters (older files)."""
    return base64.b64decode(value).decode() if isinstance(value, str) else bytes(value).decode()


def _ints(attribute: Mapping[str, Any]) -> list[int]:
    return [int(v) for v in attribute["list"].get("i", ())]


def _same_shape(kind: str) -> Callable[..., None]:
    def convert(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
        graph.emit(kind, inputs, [node["name"]])

    return convert


def _arithmetic(kind: str, compute: Callable[[Any, Any], Any]) -> Callable[..., None]:
    def convert(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
        if graph.known(*inputs):
            graph.fold(node["name"], compute(graph.constant(inputs[0]), graph.constant(inputs[1])))
        else:
            graph.emit(kind, inputs, [node["name"]])

    return convert


def _relu6(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    low, high = graph.new(np.float32(0.0)), graph.new(np.float32(6.0))
    graph.emit("Clip", [inputs[0], low, high], [node["name"]])


def _mean(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    axes = graph.constant(inputs[1]).astype(np.int64).ravel().tolist()
    keep = int(bool(attributes.get("keep_dims", {}).get("b")))
    graph.emit("ReduceMean", inputs[:1], [node["name"]], axes=axes, keepdims=keep)


def _leaky(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    graph.emit("LeakyRelu", inputs, [node["name"]], alpha=float(attributes["alpha"]["f"]))


def _transpose(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    graph.emit("Transpose", inputs[:1], [node["name"]], perm=graph.constant(inputs[1]).tolist())


def _pad(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    pads = graph.new(graph.constant(inputs[1]).T.ravel().astype(np.int64))
    value = graph.constant(inputs[2]) if len(inputs) > 2 else np.float32(0.0)
    graph.emit("Pad", [inputs[0], pads, graph.new(np.array(value, np.float32).reshape(()))], [node["name"]])


def _window(node: dict[str, Any], attributes: dict[str, Any]) -> tuple[str, list[int]]:
    layout = _words(attributes["data_format"]["s"]) if "data_format" in attributes else "NHWC"
    if layout != "NHWC":
        raise ConversionError(f"{node['name']!r} has its axes as {layout}")
    padding = _words(attributes["padding"]["s"])
    if padding not in ("VALID", "SAME"):
        raise ConversionError(f"{node['name']!r} is padded as {padding}")
    return {"VALID": "VALID", "SAME": "SAME_UPPER"}[padding], _ints(attributes["strides"])[1:3]


def _conv(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    padding, strides = _window(node, attributes)
    kernel, group = graph.constant(inputs[1]), 1
    if "Depthwise" in node["op"]:  # HWIM, each input channel has M outputs of its own
        group = kernel.shape[2]
        kernel = kernel.reshape(*kernel.shape[:2], 1, -1)
    dilations = _ints(attributes["dilations"])[1:3] if "dilations" in attributes else [1, 1]
    fused = [_words(op) for op in attributes.get("fused_ops", {}).get("list", {}).get("s", ())]
    if fused not in ([], ["BiasAdd"], ["BiasAdd", "Relu"], ["BiasAdd", "Relu6"]):
        raise ConversionError(f"{node['name']!r} is fused with {', '.join(fused)}")
    bias = [graph.new(graph.constant(inputs[2]))] if fused else []
    out = graph.convolution(
        inputs[0], kernel, bias, auto_pad=padding, strides=strides, dilations=dilations, group=group
    )
    out = graph.activated(out, "".join(fused[1:]))
    graph.emit("Transpose", [out], [node["name"]], perm=TO_NHWC)


def _batch_norm(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    gamma, beta, mean, variance = (graph.constant(name) for name in inputs[1:])
    scale = gamma / np.sqrt(variance + np.float32(attributes["epsilon"]["f"]))
    if graph.known(inputs[0]) or _words(attributes["data_format"]["s"]) != "NHWC":
        raise ConversionError(f"{node['name']!r} normalises what has its channels elsewhere")
    scaled = graph.emit("Mul", [inputs[0], graph.new(scale)])
    graph.emit("Add", [scaled, graph.new(beta - mean * scale)], [node["name"]])


def _max_pool(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    padding, strides = _window(node, attributes)
    image = graph.emit("Transpose", inputs, perm=TO_NCHW)
    size = _ints(attributes["ksize"])[1:3]
    out = graph.emit("MaxPool", [image], auto_pad=padding, strides=strides, kernel_shape=size)
    graph.emit("Transpose", [out], [node["name"]], perm=TO_NHWC)


def _resize(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    if attributes.get("align_corners", {}).get("b"):
        raise ConversionError(f"{node['name']!r} resizes from corner to corner")
    mode = "half_pixel" if attributes.get("half_pixel_centers", {}).get("b") else "asymmetric"
    image = graph.emit("Transpose", inputs[:1], perm=TO_NCHW)
    height, width = graph.constant(inputs[1]).tolist()
    # channels and pictures stay: their scale is 1, and so their size is asked of the graph
    shape = graph.emit("Slice", [graph.emit("Shape", [image]), graph.new(np.array([0])), graph.new(np.array([2]))])
    sizes = graph.emit("Concat", [shape, graph.new(np.array([height, width], np.int64))], axis=0)
    out = graph.emit("Resize", [image, "", "", sizes], mode="linear", coordinate_transformation_mode=mode)
    graph.emit("Transpose", [out], [node["name"]], perm=TO_NHWC)


def _concat(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    graph.emit("Concat", inputs[:-1], [node["name"]], axis=int(graph.constant(inputs[-1])))


def _split(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    sizes = graph.constant(inputs[1]).astype(np.int64)
    outputs = [node["name"] if k == 0 else f"{node['name']}:{k}" for k in range(len(sizes))]
    graph.emit("Split", [inputs[0], graph.new(sizes)], outputs, axis=int(graph.constant(inputs[2])))


def _sum(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    graph.emit("Sum", inputs, [node["name"]])


def _shape(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    graph.emit("Identity", [graph.cast(graph.emit("Shape", inputs), np.int32)], [node["name"]])


def _strided_slice(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    """One number of a list, as graphs ask for a size; other slices are refused."""
    masks = {key: int(value.get("i", 0)) for key, value in attributes.items() if key.endswith("_mask")}
    begin, end, step = (graph.constant(name).astype(np.int64) for name in inputs[1:])
    shrink = masks.pop("shrink_axis_mask", 0)
    if any(masks.values()) or shrink != 1 or begin.shape != (1,) or end[0] != begin[0] + 1 or step[0] != 1:
        raise ConversionError(f"{node['name']!r} slices more than one number")
    graph.emit("Gather", [inputs[0], graph.new(begin[0])], [node["name"]], axis=0)


def _pack(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    axis = int(attributes.get("axis", {}).get("i", 0))
    axes = graph.new(np.array([axis]))
    graph.emit("Concat", [graph.emit("Unsqueeze", [name, axes]) for name in inputs], [node["name"]], axis=axis)


def _squeeze(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    axes = _ints(attributes["squeeze_dims"])
    graph.emit("Squeeze", [inputs[0], *([graph.new(np.array(axes))] if axes else [])], [node["name"]])


def _reshape(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    if graph.known(inputs[1]):
        shape = graph.new(graph.constant(inputs[1]).astype(np.int64).ravel())
    else:
        shape = graph.cast(inputs[1], np.int64)
    graph.emit("Reshape", [inputs[0], shape], [node["name"]])


def _sparse_to_dense(graph: OnnxGraph, node: dict[str, Any], inputs: list[str], attributes: dict[str, Any]) -> None:
    indices, shape, values, default = (graph.constant(name) for name in inputs)
    dense = np.full(shape.tolist(), default)
    if len(indices):
        dense[tuple(np.atleast_2d(indices).T)] = values
    graph.fold(node["name"], dense)


_OPERATORS: dict[str, Callable[..., None]] = {
    "Add": _arithmetic("Add", np.add),
    "AddN": _sum,
    "AddV2": _arithmetic("Add", np.add),
    "BiasAdd": _arithmetic("Add", np.add),
    "ConcatV2": _concat,
    "Conv2D": _conv,
    "DepthwiseConv2dNative": _conv,
    "FusedDepthwiseConv2dNative": _conv,
    "FusedBatchNorm": _batch_norm,
    "FusedBatchNormV3": _batch_norm,
    "Identity": _same_shape("Identity"),
    "LeakyRelu": _leaky,
    "MaxPool": _max_pool,
    "Mean": _mean,
    "Mul": _arithmetic("Mul", np.multiply),
    "Pack": _pack,
    "Pad": _pad,
    "PadV2": _pad,
    "Relu": _same_shape("Relu"),
    "Relu6": _relu6,
    "Reshape": _reshape,
    "ResizeBilinear": _resize,
    "Shape": _shape,
    "Sigmoid": _same_shape("Sigmoid"),
    "SparseToDense": _sparse_to_dense,
    "SplitV": _split,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Sub": _arithmetic("Sub", np.subtract),
    "Transpose": _transpose,
    "_FusedConv2D": _conv,
}
