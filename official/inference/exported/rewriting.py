"""Rewrites what tf2onnx makes of a model into the operations that ONNX Runtime and OpenVINO know as one.

TensorFlow has neither LayerNorm nor GELU as an operation, multiplies matrices only, and takes the sizes of
dynamic shapes from tensors. What no pattern fits stays as it is: it is right, and slower.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from official.inference.exported.patterns import Graph, Pattern, match

OPSET = 20  # has Gelu
CONTRIB = "com.microsoft"  # operations that ONNX Runtime adds
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
    """Computes what depends on constants alone, and rewrites LayerNorm, GELU, dense products, the look-up of
    segments, and the shapes of attention."""
    fold(graph)
    for pattern, rewrite in (
        (_NORM, _norm),
        (_GELU_ERF, _gelu_erf),
        (_GELU_ERFC, _gelu_erfc),
        (_GELU_TANH, _gelu_tanh),
        (_DENSE, _dense),
        (_LOOK_UP, _look_up),
        (_ATTENTION, _attention),
    ):
        _apply(graph, pattern, rewrite)
    graph.remove_unused()


def use_contrib(graph: Graph) -> None:
    """Makes one operation of each product of query, key and value with the attention behind it."""
    _apply(graph, _ATTENTION, _contrib_attention)
    graph.remove_unused()


def fold(graph: Graph) -> None:
    """Makes constants of nodes whose inputs are constants."""
    kept = []
    for node in graph.nodes:
        if all(not name or name in graph.constants for name in node.input):
            values = ReferenceEvaluator(_model_of(node)).run(
                None, {name: graph.constants[name] for name in node.input if name}
            )
            graph.constants |= {name: np.ascontiguousarray(value) for name, value in zip(node.output, values)}
        else:
            kept.append(node)
    graph.nodes = kept
    graph.remove_unused()


def _model_of(node: Any) -> Any:
    """Returns a model of one node, whose types nobody checks."""
    inputs = [helper.make_empty_tensor_value_info(name) for name in node.input]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "node", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])


def _apply(graph: Graph, pattern: Pattern, rewrite: Callable[..., list | None]) -> None:
    """Replaces each node that a pattern ends with, where `rewrite` returns nodes."""
    for node in list(graph.nodes):
        found = match(graph, node.output[0], pattern) if node.op_type == pattern[0] else None
        new = None if found is None else rewrite(graph, node, found)
        if new:
            graph.replace(node, new)


def _norm(graph: Graph, node: Any, found: dict) -> list | None:
    if not (graph.holds(found["axes"], -1) and found["epsilon"] in graph.constants):
        return None
    epsilon = float(graph.constants[found["epsilon"]])
    inputs = [found[name] for name in ("x", "gamma", "beta")]
    return [helper.make_node("LayerNormalization", inputs, node.output, node.name, axis=-1, epsilon=epsilon)]


def _gelu_erf(graph: Graph, node: Any, found: dict) -> list | None:
    expected = {"half": 0.5, "one": 1.0, "scale": 0.5**0.5}
    return _gelu(graph, node, found, expected, "none")


def _gelu_erfc(graph: Graph, node: Any, found: dict) -> list | None:
    return _gelu(graph, node, found, {"half": 0.5, "scale": 0.5**0.5}, "none")


def _gelu_tanh(graph: Graph, node: Any, found: dict) -> list | None:
    expected = {"half": 0.5, "one": 1.0, "scale": (2 / np.pi) ** 0.5, "cubic": 0.044715, "three": 3.0}
    return _gelu(graph, node, found, expected, "tanh")


def _gelu(graph: Graph, node: Any, found: dict, expected: dict[str, float], approximate: str) -> list | None:
    if not all(graph.holds(found[name], value) for name, value in expected.items()):
        return None
    return [helper.make_node("Gelu", [found["x"]], node.output, node.name, approximate=approximate)]


def _dense(graph: Graph, node: Any, found: dict) -> list | None:
    """Vectors [B, L, D] times a matrix, without making a matrix of them and back."""
    kernel, sizes = graph.constants.get(found["kernel"]), graph.maker(found["length"])
    pattern = ("Split", ("Cast", ("Shape", "x")))
    if kernel is None or sizes is None or list(sizes.output).index(found["length"]) != 1:
        return None
    if len(sizes.output) != 3 or match(graph, found["length"], pattern, {"x": found["x"]}) is None:
        return None
    if not (graph.holds(found["flat"], -1, len(kernel)) and graph.holds(found["columns"], kernel.shape[1])):
        return None
    return [helper.make_node("MatMul", [found["x"], found["kernel"]], node.output, node.name)]


def _look_up(graph: Graph, node: Any, found: dict) -> list | None:
    if not graph.holds(found["values"], 0.0, 1.0) or found["kernel"] not in graph.constants:
        return None
    return [helper.make_node("Gather", [found["kernel"], found["x"]], node.output, node.name, axis=0)]


def _cutting(graph: Graph, found: dict) -> Any:
    """Returns the node that cuts [B, L, 3 x D] into query, key and value of each head; None where it is not
    done as `attention.attend` does."""
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


def _attention(graph: Graph, node: Any, found: dict) -> list | None:
    """The same operations, with constants for the shapes."""
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
    graph.replace(cutting, [helper.make_node("Reshape", inputs, cutting.output, cutting.name)])
    inputs = [node.input[0], graph.constant([0, 0, heads * size])]
    return [helper.make_node("Reshape", inputs, node.output, node.name)]


def _contrib_attention(graph: Graph, node: Any, found: dict) -> list | None:
    cutting = _cutting(graph, found)
    sizes = None if cutting is None else graph.constants.get(cutting.input[1])
    affine = None if cutting is None else match(graph, cutting.input[0], _AFFINE)
    mask = match(graph, found["mask"], _MASK)
    if sizes is None or affine is None or mask is None or affine["kernel"] not in graph.constants:
        return None
    if not (graph.holds(found["scale"], float(sizes[4]) ** -0.5) and graph.holds(mask["one"], 1.0)):
        return None
    inputs = [affine["x"], affine["kernel"], affine["bias"], mask["mask"]]
    score = float(graph.constants[mask["score"]])
    return [
        helper.make_node(
            "Attention",
            inputs,
            node.output,
            node.name,
            domain=CONTRIB,
            num_heads=int(sizes[3]),
            mask_filter_value=score,
        )
    ]
