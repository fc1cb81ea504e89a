"""An ONNX graph that is put together node by node, for the converters of other formats.

Constants are known by name until a node needs them, so that what can be computed at conversion is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
_OPSET = 13


class ConversionError(ValueError):
    """A graph that cannot be converted; names what it fails on."""


class OnnxGraph:
    """See the module docstring.

    Args:
        constants: arrays by name.

    Raises ``ImportError`` without the package ``onnx``, which only conversion needs.
    """

    def __init__(self, constants: Mapping[str, NDArray[Any]]) -> None:
        import onnx

        self._onnx = onnx
        self._constants: dict[str, NDArray[Any]] = dict(constants)
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._count = 0

    def feed(self, name: str, shape: Sequence[int]) -> None:
        """An input; pictures come with their channels first, whatever the graph wants."""
        is_last = len(shape) == 4 and shape[3] == 3
        given = f"{name}/channels_first" if is_last else name
        size = [shape[0], 3, *shape[1:3]] if is_last else list(shape)
        self._inputs.append(
            self._onnx.helper.make_tensor_value_info(given, self._onnx.TensorProto.FLOAT, size),
        )
        if is_last:
            self.emit("Transpose", [given], [name], perm=TO_NHWC)

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
            value = np.asarray(self._constants[name], order="C")  # numbers stay without axes
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

    def cast(self, name: str, kind: type[np.generic]) -> str:
        """A tensor of another type."""
        to = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return self.emit("Cast", [name], to=to)

    def convolution(self, image: str, kernel: NDArray[Any], bias: Sequence[str], **attributes: Any) -> str:
        """(B, H, W, C) tensor and HWIO kernel -> (B, C', H', W'): the caller brings the channels back, after what it
        does with them. ``attributes`` are those of ONNX's ``Conv``."""
        weights = self.new(kernel.transpose(3, 2, 0, 1))
        first = self.emit("Transpose", [image], perm=TO_NCHW)
        return self.emit("Conv", [first, weights, *bias], **attributes)

    def activated(self, name: str, activation: str) -> str:
        """A tensor behind ``"Relu"``, ``"Relu6"``, or ``""``."""
        if activation == "Relu":
            return self.emit("Relu", [name])
        if activation == "Relu6":
            return self.emit("Clip", [name, self.new(np.float32(0.0)), self.new(np.float32(6.0))])
        return name

    def file(self, outputs: Mapping[str, Sequence[int]], names: Sequence[str] = ()) -> bytes:
        """The ONNX file.

        Args:
            outputs: name -> shape.
            names: of the classes, as Ultralytics writes them into the file; () = none.
        """
        helper, kind = self._onnx.helper, self._onnx.TensorProto.FLOAT
        given = [helper.make_tensor_value_info(name, kind, list(shape)) for name, shape in outputs.items()]
        graph = helper.make_graph(self._nodes, "graph", self._inputs, given, list(self._initializers.values()))
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
        if names:
            helper.set_model_props(proto, {"names": str(dict(enumerate(names)))})
        self._onnx.checker.check_model(proto)
        return bytes(proto.SerializeToString())
