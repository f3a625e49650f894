"""Patterns of operations in a graph of ONNX."""

from typing import Any

import numpy as np

# ("Op", pattern of an input, ...), or a name for any tensor. What has a name twice is one tensor. The inputs
# of a sum and of a product stand in either order.
Pattern = Any
_COMMUTATIVE = ("Add", "Mul")


class Graph:
    """The nodes of a graph, and its constants.

    Attributes:
      nodes: onnx.NodeProto, each behind those whose tensors it reads.
      constants: {name: values}.
      outputs: names.
    """

    def __init__(self, nodes: list, constants: dict[str, np.ndarray], outputs: list[str]):
        self.nodes, self.constants, self.outputs = list(nodes), constants, list(outputs)
        self._makers = {name: node for node in self.nodes for name in node.output}

    def maker(self, name: str) -> Any:
        """Returns the node that makes a tensor; None for inputs and constants."""
        return self._makers.get(name)

    def replace(self, old: Any, new: list) -> None:
        """Puts nodes in the place of one; the last of them makes what it made."""
        place = next(index for index, node in enumerate(self.nodes) if node is old)
        self.nodes[place : place + 1] = new
        self._makers |= {name: node for node in new for name in node.output}

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        """Returns the name of a constant, which is made where it is not there."""
        array = np.array(values, dtype)
        name = f"constant_{array.dtype}_{'_'.join(map(str, array.shape))}_{'_'.join(map(str, array.flat))}"
        self.constants[name] = array
        return name

    def holds(self, name: str, *values: float) -> bool:
        """Tells whether a tensor is a constant of these numbers."""
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
    """Returns {name of the pattern: tensor} where a tensor is made as the pattern says; None where not."""
    found = dict(found or {})
    if isinstance(pattern, str):
        return found if found.setdefault(pattern, tensor) == tensor else None
    operation, *inputs = pattern
    node = graph.maker(tensor)
    if node is None or node.op_type != operation or len(node.input) < len(inputs):
        return None
    orders = [inputs, inputs[::-1]] if operation in _COMMUTATIVE else [inputs]
    for order in orders:
        result: dict | None = found
        for name, part in zip(node.input, order):
            result = None if result is None else match(graph, name, part, result)
        if result is not None:
            return result
    return None
