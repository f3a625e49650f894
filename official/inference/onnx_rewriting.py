"""ONNX files: tensors in a second file, operations of tf2onnx rewritten for ONNX Runtime and OpenVINO."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from official.checkpoint.containers import onnx_file
from official.inference.onnx_files import NAME

# -----------------------------------------------------------------------------------------------------------
# Patterns


# ("Op", pattern of an input, ...), or a name for any tensor. A name that occurs twice is the same tensor. The
# inputs of sums and products match in either order.
Pattern = Any


class Graph:
    """The nodes of a translated model's graph, and its constants, which include its weights.

    Attributes:
      nodes: onnx.NodeProto, in topological order.
      constants: {name: values}.
      outputs: names of the outputs.
    """

    def __init__(self, model: Any, weights: dict[str, np.ndarray], outputs: tuple[str, ...]):
        self.nodes, self.outputs = list(model.graph.node), list(outputs)
        small = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        self.constants = small | weights
        self._makers = {name: node for node in self.nodes for name in node.output}

    def maker(self, name: str) -> Any:
        """Returns the node that produces a tensor; None for inputs and constants."""
        return self._makers.get(name)

    def replace(self, old: Any, new: Any) -> None:
        """Replaces a node by one with the same outputs."""
        self.nodes[next(index for index, node in enumerate(self.nodes) if node is old)] = new
        self._makers |= dict.fromkeys(new.output, new)

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """Returns the name of a constant, which is created if missing."""
        array = np.array(values, dtype)
        name = f"constant_{array.dtype}_{'_'.join(map(str, array.shape))}_{'_'.join(map(str, array.flat))}"
        self.constants[name] = array
        return name

    def holds(self, name: str, *values: float) -> bool:
        """Returns whether a tensor is a constant with these values."""
        array = self.constants.get(name)
        return array is not None and array.size == len(values) and np.allclose(array.ravel(), values, 1e-6)

    def remove_unused(self) -> None:
        """Removes nodes and constants that no output depends on."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                kept.append(node)
                needed |= set(node.input)
        self.nodes = kept[::-1]
        self.constants = {name: values for name, values in self.constants.items() if name in needed}


def match(graph: Graph, tensor: str, pattern: Pattern, found: dict[str, str] | None = None) -> dict | None:
    """Returns {name in the pattern: tensor} if the computation of a tensor matches the pattern, otherwise
    None."""
    found = dict(found or {})
    if isinstance(pattern, str):
        return found if found.setdefault(pattern, tensor) == tensor else None
    operation, *inputs = pattern
    node = graph.maker(tensor)
    if node is None or node.op_type != operation or len(node.input) < len(inputs):
        return None
    orders = [inputs, inputs[::-1]] if operation in ("Add", "Mul") else [inputs]
    for order in orders:
        result: dict | None = found
        for name, part in zip(node.input, order):
            result = None if result is None else match(graph, name, part, result)
        if result is not None:
            return result
    return None


# -----------------------------------------------------------------------------------------------------------
# Files


_DATA = "model.data"


def write(folder: str, graph: Graph, inputs: tuple[str, ...]) -> None:
    """Writes NAME and its data.

    Args:
      folder: an existing folder.
      graph: graph of a model.
      inputs: names of its inputs: int32, `masked` [M], all others [B, L].
    """
    shapes = {"masked": ["M"]}
    ends = (
        [helper.make_tensor_value_info(n, TensorProto.INT32, shapes.get(n, ["B", "L"])) for n in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in graph.outputs],
    )
    with open(os.path.join(folder, _DATA), "wb") as data:
        tensors = [_tensor(name, values, data) for name, values in graph.constants.items()]
    whole = helper.make_graph(graph.nodes, "bert", *ends, tensors)
    domains = {node.domain for node in graph.nodes} - {""}
    opsets = [helper.make_opsetid(*each) for each in (("", OPSET), *((each, 1) for each in sorted(domains)))]
    # The newest ir_version that ONNX Runtime 1.23 reads is 11.
    model = helper.make_model(whole, opset_imports=opsets, ir_version=10, producer_name="bert-tf2")
    onnx.save(model, os.path.join(folder, NAME))


def _tensor(name: str, values: np.ndarray, data: Any) -> Any:
    """Returns a tensor; many values are appended to an open file."""
    if values.nbytes <= 1024:
        return numpy_helper.from_array(values, name)
    data.write(bytes(-data.tell() % 4096))  # alignment of tensors in a mapped file
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    tensor = TensorProto(name=name, dims=values.shape, data_type=kind)
    onnx_file.set_external(tensor, _DATA, data.tell(), values.nbytes)
    data.write(np.ascontiguousarray(values).data)
    return tensor


# -----------------------------------------------------------------------------------------------------------
# Rewriting
#
# TensorFlow has neither LayerNorm nor GELU as an operation, multiplies matrices only, and takes the sizes
# of dynamic shapes from tensors. Unmatched operations are unchanged: correct, but slower.


OPSET = 20  # has Gelu
_SIZES = ("Cast", ("Concat", "any", "length", "columns"))
_CENTRED = ("Sub", "x", ("ReduceMean", "x", "axes"))
_SPREAD = ("Sqrt", ("Add", ("ReduceMean", ("Mul", _CENTRED, _CENTRED), "axes"), "epsilon"))
_NORM = ("Add", ("Mul", ("Mul", _CENTRED, ("Reciprocal", _SPREAD)), "gamma"), "beta")
_HALF = ("Mul", "half", "x")
_GELU_ERF = ("Mul", _HALF, ("Add", "one", ("Erf", ("Mul", "x", "scale"))))
_GELU_ERFC = ("Mul", _HALF, ("Erfc", ("Mul", ("Neg", "x"), "scale")))  # newer TensorFlow's; ONNX has no Erfc
_CUBE = ("Add", "x", ("Mul", "cubic", ("Pow", "x", "three")))
_GELU_TANH = ("Mul", _HALF, ("Add", "one", ("Tanh", ("Mul", "scale", _CUBE))))
_DENSE = ("Reshape", ("MatMul", ("Reshape", "x", "flat"), "kernel"), _SIZES)
_LOOK_UP = ("MatMul", ("OneHot", "x", "depth", "values"), "kernel")
_SCORES = ("Mul", ("MatMul", ("Squeeze", "q"), ("Transpose", ("Squeeze", "k"))), "scale")
_WEIGHTS = ("Softmax", ("Add", _SCORES, "mask"))
_ATTENTION = ("Reshape", ("Transpose", ("MatMul", _WEIGHTS, ("Squeeze", "v"))), "shape")
_MASK = ("Mul", ("Slice", ("Unsqueeze", ("Sub", "one", ("Cast", "mask")))), "score")
_AFFINE = ("Add", ("MatMul", "x", "kernel"), "bias")


def simplify(graph: Graph) -> None:
    """Folds constants, and rewrites LayerNorm, GELU, dense products, the look-up of segments, and the shapes
    of attention."""
    fold(graph)
    for pattern, rewrite in (
        (_NORM, _norm),
        (_GELU_ERF, _gelu("none", half=0.5, one=1.0, scale=0.5**0.5)),
        (_GELU_ERFC, _gelu("none", half=0.5, scale=0.5**0.5)),
        (_GELU_TANH, _gelu("tanh", half=0.5, one=1.0, scale=(2 / np.pi) ** 0.5, cubic=0.044715, three=3.0)),
        (_DENSE, _dense),
        (_LOOK_UP, _look_up),
        (_ATTENTION, _attention),
    ):
        _apply(graph, pattern, rewrite)
    graph.remove_unused()


def use_contrib(graph: Graph) -> None:
    """Fuses each product of query, key and value with the following attention into one operation."""
    _apply(graph, _ATTENTION, _contrib_attention)
    graph.remove_unused()


def fold(graph: Graph) -> None:
    """Replaces nodes with constant inputs by constants."""
    kept = []
    for node in graph.nodes:
        if all(not name or name in graph.constants for name in node.input):
            inputs, outputs = (map(helper.make_empty_tensor_value_info, n) for n in (node.input, node.output))
            alone = helper.make_graph([node], "node", list(inputs), list(outputs))  # types are not checked
            model = helper.make_model(alone, opset_imports=[helper.make_opsetid("", OPSET)])
            feeds = {name: graph.constants[name] for name in node.input if name}
            values = ReferenceEvaluator(model).run(None, feeds)
            graph.constants |= {name: np.ascontiguousarray(value) for name, value in zip(node.output, values)}
        else:
            kept.append(node)
    graph.nodes = kept
    graph.remove_unused()


def _apply(graph: Graph, pattern: Pattern, rewrite: Callable[..., Any]) -> None:
    """Replaces each node at the end of a matched pattern, if `rewrite` returns another one."""
    for node in list(graph.nodes):
        found = match(graph, node.output[0], pattern) if node.op_type == pattern[0] else None
        new = None if found is None else rewrite(graph, node, found)
        if new is not None:
            graph.replace(node, new)


def _norm(graph: Graph, node: Any, found: dict) -> Any:
    if not (graph.holds(found["axes"], -1) and found["epsilon"] in graph.constants):
        return None
    inputs, epsilon = [found[name] for name in ("x", "gamma", "beta")], graph.constants[found["epsilon"]]
    return _one("LayerNormalization", node, inputs, axis=-1, epsilon=float(epsilon))


def _one(operation: str, node: Any, inputs: list[str], **attributes: Any) -> Any:
    """Returns the node that replaces another one."""
    return helper.make_node(operation, inputs, node.output, node.name, **attributes)


def _gelu(approximate: str, **expected: float) -> Callable[..., Any]:
    """Returns the rewriting of a GELU whose constants are the expected ones."""

    def rewrite(graph: Graph, node: Any, found: dict) -> Any:
        if not all(graph.holds(found[name], value) for name, value in expected.items()):
            return None
        return _one("Gelu", node, [found["x"]], approximate=approximate)

    return rewrite


def _dense(graph: Graph, node: Any, found: dict) -> Any:
    """Vectors [B, L, D] times a matrix, without reshaping them to a matrix and back."""
    kernel, sizes = graph.constants.get(found["kernel"]), graph.maker(found["length"])
    pattern = ("Split", ("Cast", ("Shape", "x")))
    if kernel is None or sizes is None or list(sizes.output).index(found["length"]) != 1:
        return None
    if len(sizes.output) != 3 or match(graph, found["length"], pattern, {"x": found["x"]}) is None:
        return None
    if not (graph.holds(found["flat"], -1, len(kernel)) and graph.holds(found["columns"], kernel.shape[1])):
        return None
    return _one("MatMul", node, [found["x"], found["kernel"]])


def _look_up(graph: Graph, node: Any, found: dict) -> Any:
    if not graph.holds(found["values"], 0.0, 1.0) or found["kernel"] not in graph.constants:
        return None
    return _one("Gather", node, [found["kernel"], found["x"]], axis=0)


def _cutting(graph: Graph, found: dict) -> Any:
    """Returns the node that splits [B, L, 3 x D] into query, key and value of each head; None if the graph is
    not that of `attention.self_attention`."""
    makers = [graph.maker(found[name]) for name in "qkv"]
    if any(maker is None or maker is not makers[0] for maker in makers) or makers[0].op_type != "Split":
        return None
    if list(makers[0].output) != [found[name] for name in "qkv"]:
        return None
    moved = graph.maker(makers[0].input[0])
    cutting = graph.maker(moved.input[0]) if _is_transpose(moved, [2, 0, 3, 1, 4]) else None
    return cutting if cutting is not None and cutting.op_type == "Reshape" else None


def _is_transpose(node: Any, axes: list[int]) -> bool:
    return node is not None and any(list(each.ints) == axes for each in node.attribute if each.name == "perm")


def _attention(graph: Graph, node: Any, found: dict) -> Any:
    """The same operations with constant shapes."""
    cutting = _cutting(graph, found)
    sizes = None if cutting is None else match(graph, cutting.input[1], ("Cast", "sizes"))
    parts = None if sizes is None else graph.maker(sizes["sizes"])
    if parts is None or parts.op_type != "Concat" or len(parts.input) != 5:
        return None
    if not _is_transpose(graph.maker(node.input[0]), [0, 2, 1, 3]):
        return None
    heads, size = (int(graph.constants.get(name, [0])[0]) for name in parts.input[3:])
    if not (graph.holds(parts.input[2], 3) and heads and size):
        return None
    inputs = [cutting.input[0], graph.constant([0, 0, 3, heads, size])]
    graph.replace(cutting, _one("Reshape", cutting, inputs))
    return _one("Reshape", node, [node.input[0], graph.constant([0, 0, heads * size])])


def _contrib_attention(graph: Graph, node: Any, found: dict) -> Any:
    cutting = _cutting(graph, found)
    sizes = None if cutting is None else graph.constants.get(cutting.input[1])
    affine = None if cutting is None else match(graph, cutting.input[0], _AFFINE)
    mask = match(graph, found["mask"], _MASK)
    if sizes is None or affine is None or mask is None or affine["kernel"] not in graph.constants:
        return None
    if not (graph.holds(found["scale"], float(sizes[4]) ** -0.5) and graph.holds(mask["one"], 1.0)):
        return None
    inputs = [affine["x"], affine["kernel"], affine["bias"], mask["mask"]]
    attributes = {"num_heads": int(sizes[3]), "mask_filter_value": float(graph.constants[mask["score"]])}
    return _one("Attention", node, inputs, domain="com.microsoft", **attributes)
