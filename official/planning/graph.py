"""A TensorFlow graph as one list of operations, its FLOPs, and its maximum of bytes alive at once.

Calls are replaced by the functions' bodies, and loops by one iteration. The bytes alive depend on the order
in which the operations run, and on the outputs that reuse the memory of inputs.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable

import tensorflow as tf

_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_LOOPS = {"While", "StatelessWhile"}
# Reads of variables; any other operation on a variable may change it.
_READERS = {"ReadVariableOp", "ResourceGather", *_CALLS, *_LOOPS}
_BATCHED_PRODUCTS = {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}


@dataclasses.dataclass
class Node:
    """An operation of a flat graph.

    Attributes:
      type: TensorFlow's name of the operation.
      inputs, outputs: numbers of tensors.
      after: numbers of nodes that must run before this one, by control dependencies.
      flops: multiplications and additions per run of a matrix product; 0 for others.
      runs: number of runs per step.
    """

    type: str
    inputs: list[int]
    outputs: list[int]
    after: list[int] = dataclasses.field(default_factory=list)
    flops: int = 0
    runs: int = 1


class FlatGraph:
    """A graph with function bodies in place of their calls, and one iteration in place of each loop.

    Attributes:
      nodes: in order of creation.
      tensors: (dtype, number of elements) of every tensor; resources have no elements.
      numbers: {name: number} of the tensors outside of functions.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: list[tuple[tf.DType, int]] = []
        self.numbers: dict[str, int] = {}
        # {number of a resource: nodes that must run before its next change}
        self._users: dict[int, list[int]] = collections.defaultdict(list)

    def flops(self) -> int:
        """Returns the FLOPs of a step: of all runs of all nodes."""
        return sum(node.flops * node.runs for node in self.nodes)

    def add(self, graph, operations) -> None:
        """Adds operations of a graph, in topological order."""
        self._add(graph, operations, self.numbers, 1, [])

    def _add(self, graph, operations, numbers: dict[str, int], runs: int, after: list[int]) -> None:
        """Adds operations of a graph or of a function's body.

        Args:
          graph: the graph or function that contains them.
          operations: in topological order.
          numbers: {name: number} of known tensors of `graph`; new ones are added.
          runs: number of runs per step.
          after: numbers of nodes that run before all of them.
        """
        made: dict[str, int] = {}  # name of an operation -> its last node
        for operation in operations:
            if operation.outputs and operation.outputs[0].name in numbers:
                continue  # an argument of a function
            inputs = [numbers[tensor.name] for tensor in operation.inputs]
            resources = [number for number in inputs if self.tensors[number][0] == tf.resource]
            waits = [*after, *(made[first.name] for first in operation.control_inputs if first.name in made)]
            if operation.type not in _READERS or _changes_variables(graph, operation):
                waits += [user for number in resources for user in self._users[number]]
            outputs = self._add_operation(graph, operation, inputs, runs, waits)
            numbers.update(zip((tensor.name for tensor in operation.outputs), outputs))
            made[operation.name] = len(self.nodes) - 1
            for number in resources:
                self._users[number].append(len(self.nodes) - 1)

    def _add_operation(self, graph, operation, inputs: list[int], runs: int, after: list[int]) -> list[int]:
        if operation.type in _CALLS and not _is_compiled(operation):
            function = function_of(graph, operation, "f")
            # TensorFlow inlines other calls than this one.
            is_whole = function.cached_definition.attr["_noinline"].b
            return (self._add_call if is_whole else self._add_body)(function.graph, inputs, runs, after)
        if operation.type in _LOOPS:
            trips = tf.get_static_value(operation.inputs[1])  # the second variable: maximum_iterations
            if trips is None:
                raise NotImplementedError(f"{operation.name}: a loop without a fixed number of iterations")
            body = function_of(graph, operation, "body").graph
            return self._add_body(body, inputs, runs * int(trips), after)
        outputs = [self._add_tensor(tensor) for tensor in operation.outputs]
        node = Node(_kind(graph, operation), inputs, outputs, after, flops_of(operation), runs)
        self.nodes.append(node)
        return outputs

    def _add_body(self, body, arguments: list[int], runs: int, after: list[int]) -> list[int]:
        """Adds the body of a function with its arguments and returns its results."""
        numbers, start = dict(zip((tensor.name for tensor in body.inputs), arguments)), len(self.nodes)
        self._add(body, body.get_operations(), numbers, runs, after)
        outputs = [numbers[tensor.name] for tensor in body.outputs]
        made = _producers(self.nodes[start:], start)
        # The end of the call, for operations that depend on it.
        self.nodes.append(Node("NoOp", [], [], [made[number] for number in outputs if number in made]))
        return outputs

    def _add_call(self, body, arguments: list[int], runs: int, after: list[int]) -> list[int]:
        """Adds a function that stays a call, and returns its results. It starts when all arguments are
        available, and keeps them alive until it ends."""
        self.nodes.append(Node("NoOp", arguments, [], after))
        results = self._add_body(body, arguments, runs, [*after, len(self.nodes) - 1])
        end = len(self.nodes) - 1
        self.nodes[end].inputs = arguments
        outputs = []
        for number in results:
            self.tensors.append(self.tensors[number])
            outputs.append(len(self.tensors) - 1)
            self.nodes.append(Node("Identity", [number], outputs[-1:], [end]))
        return outputs

    def _add_tensor(self, tensor) -> int:
        if tensor.dtype in (tf.resource, tf.variant):
            size = 0
        elif not tensor.shape.is_fully_defined():
            raise NotImplementedError(f"{tensor.name} of {tensor.op.type}: no static shape, {tensor.shape}")
        else:
            size = tensor.shape.num_elements()
        self.tensors.append((tensor.dtype, size))
        return len(self.tensors) - 1

    def repeat(self, start: int, stop: int, replaced: dict[int, int]) -> None:
        """Adds copies of nodes `start` to `stop` that read other tensors: {number: number in the copies}."""
        numbers, shift = dict(replaced), len(self.nodes) - start
        for node in self.nodes[start:stop]:
            for output in node.outputs:
                numbers[output] = len(self.tensors)
                self.tensors.append(self.tensors[output])
            self.nodes.append(
                dataclasses.replace(
                    node,
                    inputs=[numbers.get(number, number) for number in node.inputs],
                    outputs=[numbers[number] for number in node.outputs],
                    after=[index + shift if index >= start else index for index in node.after],
                )
            )


def _producers(nodes: list[Node], start: int = 0) -> dict[int, int]:
    """Returns {number of a tensor: number of its producer}; `start` is the number of the first node."""
    return {number: start + index for index, node in enumerate(nodes) for number in node.outputs}


def function_of(graph, operation, attribute: str):
    """Returns the function that an operation calls."""
    # The public form is a protocol buffer, without shapes.
    return graph._functions[operation.get_attr(attribute).name]  # pylint: disable=protected-access


def _is_compiled(operation) -> bool:
    """Returns whether an operation calls a compiled function. It counts as one operation with intermediate
    values in registers."""
    return operation.type in _CALLS and "_XlaMustCompile" in operation.node_def.attr


def _changes_variables(graph, operation) -> bool:
    """Returns whether an operation calls a compiled function that writes to variables."""
    if not _is_compiled(operation):
        return False
    body = function_of(graph, operation, "f").graph
    return any(inner.type.startswith("Assign") for inner in body.get_operations())


def _kind(graph, operation) -> str:
    """Returns the type of an operation: Identity for one that only passes memory on; for a compiled function
    the type of the operation that it implements."""
    if _is_compiled(operation):
        return "AssignCompiled" if _changes_variables(graph, operation) else "Compiled"
    if operation.type == "Unpack" and operation.get_attr("axis") == 0:
        return "Identity"
    if operation.type == "Cast" and operation.inputs[0].dtype == operation.outputs[0].dtype:
        return "Identity"
    return operation.type


def flops_of(operation) -> int:
    """Returns the multiplications and additions of a matrix product, or of an einsum of two factors: a loop
    for each letter that both factors share or the result keeps; 0 for any other operation."""
    if operation.type == "Einsum":
        terms, _, result = operation.get_attr("equation").decode().partition("->")
        factors = terms.split(",")
        letters = "".join(factors) if len(factors) == 2 else ""
        sizes = dict(zip(letters, [size for tensor in operation.inputs for size in tensor.shape]))
        kept = {*result, *set(factors[0]).intersection(factors[-1])}
        return 2 * math.prod(sizes[letter] for letter in kept) if letters else 0
    if operation.type != "MatMul" and operation.type not in _BATCHED_PRODUCTS:
        return 0
    is_transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
    inner = operation.inputs[0].shape[-2 if is_transposed else -1]
    return 2 * math.prod(operation.outputs[0].shape) * inner


# Outputs that share the memory of the input with the same index, or of the only input.
ALIASES = set(
    "Reshape Identity IdentityN ExpandDims Squeeze Snapshot StopGradient PreventGradient EnsureShape"
    " Bitcast".split()
)
# Outputs that are not allocated by the step: variables, constants, inputs.
_RESIDENT = {"Const", "Placeholder", "VarHandleOp", "ReadVariableOp"}
# Kernels that write into an input of the same size and type if no later operation reads it.
_IN_PLACE = set(
    "Add AddN AddV2 BiasAdd Div DivNoNan Erf Exp Log LogSoftmax Maximum Minimum Mul Neg Pow RealDiv"
    " Reciprocal Relu ReluGrad Rsqrt RsqrtGrad Select SelectV2 Sigmoid SigmoidGrad Softmax"
    " SparseSoftmaxCrossEntropyWithLogits Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad".split()
)


def execution_order(flat: FlatGraph, kept: Iterable[int]) -> list[int]:
    """Returns the needed nodes in the order of TensorFlow's executor: first ready, first executed.

    This is not the order of the program: an operation runs as soon as its inputs are ready, long before its
    result is needed. All dropout masks are drawn, weights are cast, and an optimizer multiplies its slots
    before the forward pass, and all these tensors stay alive.

    Args:
      flat: the graph.
      kept: numbers of required tensors. Writes to variables are always required.
    """
    wanted = needed_nodes(flat, kept)
    producers = _producers(flat.nodes)
    followers: dict[int, list[int]] = collections.defaultdict(list)
    waiting: dict[int, int] = {}  # node -> number of pending predecessors
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
    """Returns the nodes that `kept` tensors and writes to variables depend on, as after TensorFlow's
    pruning."""
    producers = _producers(flat.nodes)
    changing = ("Assign", "ResourceApply", "ResourceScatter")
    found: set[int] = set()
    left = [index for index, node in enumerate(flat.nodes) if node.type.startswith(changing)]
    left += [producers[number] for number in kept]
    while left:
        index = left.pop()
        if index not in found:
            found.add(index)
            node = flat.nodes[index]
            left += [producers[number] for number in node.inputs if number in producers] + node.after
    return sorted(found)


def peak_bytes(flat: FlatGraph, order: list[int], kept: Iterable[int] = ()) -> int:
    """Returns the maximum number of bytes alive at once.

    A tensor lives from its producer to its last reader. Aliases need no memory; element-wise nodes overwrite
    an input whose last reader they are.

    Args:
      flat: the graph.
      order: its nodes in execution order.
      kept: numbers of tensors that are read after the last node.
    """
    reads = collections.Counter(kept)  # tensor -> total number of its reads
    for index in order:
        reads.update(flat.nodes[index].inputs)
    owners: dict[int, int] = {}  # tensor -> the tensor that owns its memory
    left: dict[int, int] = {}  # owner -> remaining reads
    sizes: dict[int, int] = {}  # live owner -> its bytes
    live = peak = 0
    for index in order:
        node = flat.nodes[index]
        own = collections.Counter(owners.get(number) for number in node.inputs)
        for place, number in enumerate(node.outputs):
            dtype, count = flat.tensors[number]
            if node.type in _RESIDENT or not count:
                continue
            owner: int | None = number  # owner of its memory: itself, or an input
            if node.type in ALIASES:
                owner = owners.get(aliased(node, place))
            elif node.type in _IN_PLACE:
                alike = [each for each in node.inputs if flat.tensors[each] == flat.tensors[number]]
                known = (owners[each] for each in alike if each in owners)
                owner = next((each for each in known if left[each] == own[each]), number)
            if owner is None:
                continue
            if owner == number:
                sizes[number], left[number] = count * dtype.size, 0
                live += sizes[number]
            owners[number] = owner
            left[owner] += reads[number]
        peak = max(peak, live)
        for number, done in [*((each, 1) for each in node.inputs), *((each, 0) for each in node.outputs)]:
            owner = owners.get(number)
            if owner in sizes:
                left[owner] -= done
                if not left[owner]:
                    live -= sizes.pop(owner)
    return peak


def aliased(node: Node, place: int) -> int:
    """Returns the tensor that output `place` of one of `ALIASES` refers to."""
    return node.inputs[min(place, len(node.inputs) - 1)]
