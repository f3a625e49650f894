"""The most bytes that a flat graph has alive at once.

That depends on the order in which it runs, and on who writes over whose memory.
"""

import collections
import re
from collections.abc import Iterable

from official.planning.flat_graph import FlatGraph, Node

# Outputs that share the memory of the input of the same number, or of the only one.
ALIASES = {
    "Reshape",
    "Identity",
    "IdentityN",
    "ExpandDims",
    "Squeeze",
    "Snapshot",
    "StopGradient",
    "PreventGradient",
    "EnsureShape",
    "Bitcast",
}
# Outputs that are not the step's own: variables, constants, inputs.
_RESIDENT = {"Const", "Placeholder", "VarHandleOp", "ReadVariableOp"}
# Kernels that write into an input of the same size and type where nobody else needs that input any more.
_IN_PLACE = {
    "Add",
    "AddN",
    "AddV2",
    "BiasAdd",
    "Div",
    "DivNoNan",
    "Erf",
    "Exp",
    "Log",
    "LogSoftmax",
    "Maximum",
    "Minimum",
    "Mul",
    "Neg",
    "Pow",
    "RealDiv",
    "Reciprocal",
    "Relu",
    "ReluGrad",
    "Rsqrt",
    "RsqrtGrad",
    "Select",
    "SelectV2",
    "Sigmoid",
    "SigmoidGrad",
    "Softmax",
    "SparseSoftmaxCrossEntropyWithLogits",
    "Sqrt",
    "SqrtGrad",
    "Square",
    "SquaredDifference",
    "Sub",
    "Tanh",
    "TanhGrad",
}


def execution_order(flat: FlatGraph, kept: Iterable[int]) -> list[int]:
    """Returns the nodes that are needed, in the order in which TensorFlow's executor gets to them: first
    ready, first run.

    It is not the order in which they were written: an operation runs as soon as its inputs are there, long
    before it is needed. Dropout draws all its masks, weights are cast, and an optimizer multiplies its slots
    before the forward pass, and all this lives on.

    Args:
      flat: the graph.
      kept: numbers of tensors that are wanted. Changes of variables are wanted, too.
    """
    wanted = needed_nodes(flat, kept)
    producers = {number: index for index, node in enumerate(flat.nodes) for number in node.outputs}
    followers: dict[int, list[int]] = collections.defaultdict(list)
    waiting: dict[int, int] = {}  # node -> those before it that have not run
    for index in wanted:
        node = flat.nodes[index]
        needed = {producers[number] for number in node.inputs if number in producers} | set(node.after)
        waiting[index] = len(needed)
        for first in needed:
            followers[first].append(index)
    ready = collections.deque(index for index, count in waiting.items() if not count)
    order = []
    while ready:
        order.append(ready.popleft())
        for index in followers[order[-1]]:
            waiting[index] -= 1
            if not waiting[index]:
                ready.append(index)
    return order


def needed_nodes(flat: FlatGraph, kept: Iterable[int]) -> list[int]:
    """Returns the nodes that `kept` tensors and changes of variables need, as TensorFlow prunes a function to
    them."""
    producers = {number: index for index, node in enumerate(flat.nodes) for number in node.outputs}
    changes = [
        index
        for index, node in enumerate(flat.nodes)
        if re.match("Assign|ResourceApply|ResourceScatter", node.type)
    ]
    found: set[int] = set()
    left = changes + [producers[number] for number in kept]
    while left:
        index = left.pop()
        if index not in found:
            found.add(index)
            node = flat.nodes[index]
            left += [producers[number] for number in node.inputs if number in producers] + node.after
    return sorted(found)


def peak_bytes(flat: FlatGraph, order: list[int], kept: Iterable[int] = ()) -> int:
    """Returns the most bytes that live at once.

    A tensor lives from the node that makes it to the last one that reads it. Aliases cost nothing;
    element-wise nodes write over an input that dies with them.

    Args:
      flat: the graph.
      order: its nodes in the order in which they run.
      kept: numbers of tensors that are read after the last node.
    """
    memory = _Memory(flat, order, kept)
    for index in order:
        memory.run(flat.nodes[index])
    return memory.peak


def aliased(node: Node, place: int) -> int:
    """Returns the tensor that output `place` of one of `ALIASES` is another name of."""
    return node.inputs[min(place, len(node.inputs) - 1)]


class _Memory:
    """Buffers with the number of reads that are still to come."""

    def __init__(self, flat: FlatGraph, order: list[int], kept: Iterable[int]):
        self.reads = collections.Counter(kept)
        for index in order:
            self.reads.update(flat.nodes[index].inputs)
        self.tensors = flat.tensors
        self.owner: dict[int, int] = {}  # tensor -> the tensor whose memory it is in
        self.left: dict[int, int] = {}  # owner -> reads
        self.bytes: dict[int, int] = {}  # owner -> its size
        self.live = self.peak = 0

    def run(self, node: Node) -> None:
        reads = collections.Counter(self.owner.get(number) for number in node.inputs)
        for place in range(len(node.outputs)):
            self._place(node, place, reads)
        self.peak = max(self.peak, self.live)
        for number in node.inputs:
            self._release(self.owner.get(number), 1)
        for number in node.outputs:
            self._release(self.owner.get(number), 0)

    def _place(self, node: Node, place: int, reads) -> None:
        """Gives output `place` memory: none of its own, that of an input, or new."""
        number = node.outputs[place]
        kind, size = self.tensors[number]
        if node.type in _RESIDENT or not size:
            return
        if node.type in ALIASES:
            owner = self.owner.get(aliased(node, place))
        else:
            owner = self._dying_input(node, number, reads) if node.type in _IN_PLACE else None
            owner = number if owner is None else owner
        if owner is None:
            return
        if owner == number:
            self.bytes[number], self.left[number] = size * kind.size, 0
            self.live += self.bytes[number]
        self.owner[number] = owner
        self.left[owner] += self.reads[number]

    def _dying_input(self, node: Node, number: int, reads) -> int | None:
        for candidate in node.inputs:
            owner = self.owner.get(candidate)
            if (
                owner is not None
                and self.left[owner] == reads[owner]
                and self.tensors[candidate] == self.tensors[number]
            ):
                return owner
        return None

    def _release(self, owner: int | None, reads: int) -> None:
        if owner is None or owner not in self.bytes:
            return
        self.left[owner] -= reads
        if not self.left[owner]:
            self.live -= self.bytes.pop(owner)
