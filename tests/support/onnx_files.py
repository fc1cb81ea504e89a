"""ONNX files whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest


def write_constant_model(
    path, outputs, size=(160, 96), names=None, input_shape=None, sizes_input=False, extra=None, **metadata
):
    """A network that answers the same to every picture (its input must be used, so zero times it is added)."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    shape = input_shape or [1, 3, size[1], size[0]]
    inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)]
    if sizes_input:
        inputs.append(helper.make_tensor_value_info("orig_target_sizes", TensorProto.INT64, [1, 2]))
    if extra is not None:
        inputs.append(helper.make_tensor_value_info(extra[0], getattr(TensorProto, extra[1]), [1, 2]))
    nodes, tensors, infos = [], [numpy_helper.from_array(np.zeros(1, np.float32), "zero")], []
    nodes.append(helper.make_node("ReduceMean", ["images"], ["mean"], keepdims=0))
    nodes.append(helper.make_node("Mul", ["mean", "zero"], ["nothing"]))
    for name, value in outputs.items():
        tensors.append(numpy_helper.from_array(value, f"{name}_value"))
        if value.dtype == np.float32:
            nodes.append(helper.make_node("Add", [f"{name}_value", "nothing"], [name]))
            kind = TensorProto.FLOAT
        else:
            nodes.append(helper.make_node("Identity", [f"{name}_value"], [name]))
            kind = TensorProto.INT64
        infos.append(helper.make_tensor_value_info(name, kind, value.shape))
    model = helper.make_model(
        helper.make_graph(nodes, "known", inputs, infos, tensors), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 9
    for key, value in (metadata if names is None else {"names": names, **metadata}).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    onnx.save(model, str(path))
    return path
