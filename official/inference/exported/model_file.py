"""An .onnx file, and its tensors in a second file beside it, which a session maps into memory."""

import os
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from official.inference.exported import rewriting
from official.inference.exported.patterns import Graph

NAME = "model.onnx"
_DATA = "model.data"
_ALIGNMENT = 4096  # bytes: where a tensor may begin in a file that is mapped
_SMALL = 1024  # bytes: of tensors that stay in the first file
_IR_VERSION = 10  # the newest that ONNX Runtime 1.23 reads is 11


def graph_of(model: Any, weights: dict[str, np.ndarray], outputs: tuple[str, ...]) -> Graph:
    """Returns the graph of a translated model with its weights as constants."""
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    return Graph(model.graph.node, constants | weights, list(outputs))


def write(folder: str, graph: Graph, inputs: tuple[str, ...]) -> None:
    """Writes NAME and its data.

    Args:
      folder: an existing one.
      graph: of a model.
      inputs: names of its inputs: int32, `masked` [M], all others [B, L].
    """
    ends = [_input(name) for name in inputs], [helper.make_empty_tensor_value_info(n) for n in graph.outputs]
    for value in ends[1]:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    with open(os.path.join(folder, _DATA), "wb") as data:
        tensors = [_tensor(name, values, data) for name, values in graph.constants.items()]
    whole = helper.make_graph(graph.nodes, "bert", *ends, tensors)
    domains = {node.domain for node in graph.nodes} - {""}
    opsets = [
        helper.make_opsetid("", rewriting.OPSET),
        *(helper.make_opsetid(each, 1) for each in sorted(domains)),
    ]
    model = helper.make_model(whole, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="bert-tf2")
    onnx.save(model, os.path.join(folder, NAME))


def _input(name: str) -> Any:
    shape = ["M"] if name == "masked" else ["B", "L"]
    return helper.make_tensor_value_info(name, TensorProto.INT32, shape)


def _tensor(name: str, values: np.ndarray, data: Any) -> Any:
    """Returns a tensor, whose values go to the end of an open file where they are many."""
    if values.nbytes <= _SMALL:
        return numpy_helper.from_array(values, name)
    data.write(bytes(-data.tell() % _ALIGNMENT))
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    tensor = TensorProto(name=name, dims=values.shape, data_type=kind, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", _DATA), ("offset", data.tell()), ("length", values.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    data.write(np.ascontiguousarray(values).data)
    return tensor
