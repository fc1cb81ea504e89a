"""A TensorFlow Lite file of convolutions as an ONNX file.

Enough of its operators for detectors like SSD with weights in half or single precision; whatever else a graph holds is
refused by name. Format: https://github.com/tensorflow/tensorflow, ``lite/schema/schema.fbs``; the numbers below are the
order of its fields, operators and types. The container is FlatBuffers (https://flatbuffers.dev/internals).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_perceptron.apps.onnx_graph import TO_NHWC, ConversionError, OnnxGraph

_IDENTIFIER = b"TFL3"
_TYPES = {0: np.float32, 1: np.float16, 2: np.int32, 4: np.int64}
_PADDINGS = {0: "SAME_UPPER", 1: "VALID"}
_ACTIVATIONS = {0: "", 1: "Relu", 3: "Relu6"}


class _Table:
    """A table of a FlatBuffer: fields by number, defaults where they are absent. Raises ``struct.error`` and
    ``IndexError`` where a file is cut."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - self._unpack("i", at)  # where the places of the fields stand

    def _unpack(self, kind: str, at: int) -> int:
        if at < 0:
            raise IndexError(f"offset {at}")
        return int(struct.unpack_from("<" + kind, self._data, at)[0])

    def _place(self, number: int) -> int:
        if 4 + 2 * number >= self._unpack("H", self._fields):
            return 0
        return self._unpack("H", self._fields + 4 + 2 * number)

    def number(self, field: int, kind: str = "b", default: int = 0) -> int:
        """A number; ``kind`` as in :mod:`struct`."""
        place = self._place(field)
        return self._unpack(kind, self._at + place) if place else default

    def _follow(self, field: int) -> int | None:
        place = self._place(field)
        return self._at + place + self._unpack("I", self._at + place) if place else None

    def table(self, field: int) -> _Table | None:
        """A table of its own; None where it is absent."""
        at = self._follow(field)
        return None if at is None else _Table(self._data, at)

    def raw(self, field: int, size: int) -> bytes:
        """Elements of ``size`` bytes."""
        at = self._follow(field)
        if at is None:
            return b""
        count = self._unpack("I", at) * size
        if at + 4 + count > len(self._data):
            raise IndexError(f"{count} bytes at {at}")
        return self._data[at + 4 : at + 4 + count]

    def integers(self, field: int) -> list[int]:
        """A list of 32-bit integers."""
        raw = self.raw(field, 4)
        return list(struct.unpack(f"<{len(raw) // 4}i", raw))

    def text(self, field: int) -> str:
        """A string."""
        return self.raw(field, 1).decode()

    def tables(self, field: int) -> list[_Table]:
        """A list of tables."""
        at = self._follow(field)
        if at is None:
            return []
        places = range(at + 4, at + 4 + 4 * self._unpack("I", at), 4)
        return [_Table(self._data, place + self._unpack("I", place)) for place in places]


def tflite_to_onnx(data: bytes, names: Sequence[str] = ()) -> bytes:
    """A ``.tflite`` file -> an ONNX file with its inputs and outputs. Raises :class:`ConversionError`.

    Args:
        data: of the file.
        names: of the classes, for the file.
    """
    if data[4:8] != _IDENTIFIER:
        raise ConversionError(f"no TensorFlow Lite file: it begins with {data[:8]!r}")
    try:
        return _Conversion(_Table(data, struct.unpack_from("<I", data)[0])).run(names)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ConversionError(f"the TensorFlow Lite file is damaged: {type(error).__name__}: {error}") from error


class _Conversion:
    """One model's first graph."""

    def __init__(self, model: _Table) -> None:
        graphs = model.tables(2)
        if len(graphs) != 1:
            raise ConversionError(f"the file holds {len(graphs)} graphs, 1 is read")
        # new files write the operator's number into a field of its own, old ones into a byte
        self._codes = [max(code.number(0), code.number(3, "i")) for code in model.tables(1)]
        self._graph = graphs[0]
        self._tensors = self._graph.tables(0)
        buffers = model.tables(4)
        constants: dict[str, NDArray[Any]] = {}
        for i, tensor in enumerate(self._tensors):
            raw = buffers[tensor.number(2, "I")].raw(0, 1)
            if not raw:
                continue
            kind = tensor.number(1)
            if kind not in _TYPES:
                raise ConversionError(f"{tensor.text(3)!r} is stored as type {kind}: quantised files are not read")
            values = np.frombuffer(raw, _TYPES[kind])
            if values.size != int(np.prod(tensor.integers(0))):
                raise ConversionError(f"{tensor.text(3)!r} has {values.size} numbers for {tensor.integers(0)}")
            constants[_name(i)] = values.reshape(tensor.integers(0))
        self._onnx = OnnxGraph(constants)

    def run(self, names: Sequence[str]) -> bytes:
        for i in self._graph.integers(1):
            self._onnx.feed(_name(i), self._tensors[i].integers(0))
        for operator in self._graph.tables(3):
            code = self._codes[operator.number(0, "I")]
            if code not in _OPERATORS:
                raise ConversionError(f"operator {code} of TensorFlow Lite is not known")
            options = operator.table(4)
            inputs = [_name(i) for i in operator.integers(1) if i >= 0]
            _OPERATORS[code](self._onnx, options, inputs, _name(operator.integers(2)[0]))
        outputs = {_name(i): self._tensors[i].integers(0) for i in self._graph.integers(2)}
        return self._onnx.file(outputs, names)


def _name(index: int) -> str:
    return f"tensor_{index}"


def _choice(known: dict[int, str], number: int, what: str) -> str:
    if number not in known:
        raise ConversionError(f"{what} {number} of TensorFlow Lite is not known")
    return known[number]


def _option(options: _Table | None, field: int, kind: str = "b", default: int = 0) -> int:
    return default if options is None else options.number(field, kind, default)


def _convolution(graph: OnnxGraph, options: _Table | None, inputs: list[str], output: str) -> None:
    """Kernel (out, height, width, in)."""
    kernel = graph.constant(inputs[1]).astype(np.float32).transpose(1, 2, 3, 0)
    _conv(graph, options, inputs, output, kernel, groups=1, fields=(3, 4, 5))


def _depthwise(graph: OnnxGraph, options: _Table | None, inputs: list[str], output: str) -> None:
    """Kernel (1, height, width, in * multiplier)."""
    kernel = graph.constant(inputs[1]).astype(np.float32)[0, :, :, None]  # HW1O
    multiplier = max(1, _option(options, 3, "i", 1))
    _conv(graph, options, inputs, output, kernel, kernel.shape[3] // multiplier, fields=(4, 5, 6))


def _conv(
    graph: OnnxGraph,
    options: _Table | None,
    inputs: list[str],
    output: str,
    kernel: NDArray[np.float32],
    groups: int,
    fields: tuple[int, int, int],
) -> None:
    activation, wide, high = fields
    bias = [graph.new(graph.constant(name).astype(np.float32)) for name in inputs[2:3]]
    out = graph.convolution(
        inputs[0],
        kernel,
        bias,
        auto_pad=_choice(_PADDINGS, _option(options, 0), "padding"),
        strides=[_option(options, 2, "i", 1), _option(options, 1, "i", 1)],
        dilations=[_option(options, high, "i", 1), _option(options, wide, "i", 1)],
        group=groups,
    )
    out = graph.activated(out, _choice(_ACTIVATIONS, _option(options, activation), "activation"))
    graph.emit("Transpose", [out], [output], perm=TO_NHWC)


def _add(graph: OnnxGraph, options: _Table | None, inputs: list[str], output: str) -> None:
    out = graph.activated(graph.emit("Add", inputs), _choice(_ACTIVATIONS, _option(options, 0), "activation"))
    graph.emit("Identity", [out], [output])


def _concat(graph: OnnxGraph, options: _Table | None, inputs: list[str], output: str) -> None:
    if activation := _choice(_ACTIVATIONS, _option(options, 1), "activation"):
        raise ConversionError(f"joined tensors behind {activation}")
    graph.emit("Concat", inputs, [output], axis=_option(options, 0, "i"))


def _reshape(graph: OnnxGraph, options: _Table | None, inputs: list[str], output: str) -> None:
    if len(inputs) > 1:
        shape = graph.constant(inputs[1]).astype(np.int64)
    else:
        shape = np.array([] if options is None else options.integers(0), np.int64)
    graph.emit("Reshape", [inputs[0], graph.new(shape)], [output])


def _dequantize(graph: OnnxGraph, options: _Table | None, inputs: list[str], output: str) -> None:
    value = graph.constant(inputs[0])
    if value.dtype != np.float16:
        raise ConversionError(f"{inputs[0]!r} is quantised to {value.dtype}: quantised files are not read")
    graph.fold(output, value.astype(np.float32))


def _sigmoid(graph: OnnxGraph, options: _Table | None, inputs: list[str], output: str) -> None:
    graph.emit("Sigmoid", inputs, [output])


_OPERATORS: dict[int, Callable[[OnnxGraph, _Table | None, list[str], str], None]] = {
    0: _add,
    2: _concat,
    3: _convolution,
    4: _depthwise,
    6: _dequantize,
    14: _sigmoid,
    22: _reshape,
}
