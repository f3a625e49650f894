"""A TensorFlow graph as one list of operations: functions in place of their calls, one round of a loop."""

import collections
import dataclasses
import math

import tensorflow as tf

_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_LOOPS = {"While", "StatelessWhile"}
_READERS = {
    "ReadVariableOp",
    "ResourceGather",
    *_CALLS,
    *_LOOPS,
}  # of variables; anything else that takes one may change it
_BATCHED_PRODUCTS = {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}


@dataclasses.dataclass
class Node:
    """An operation of a flat graph.

    Attributes:
      type: TensorFlow's name of the operation.
      inputs, outputs: numbers of tensors.
      after: numbers of nodes that come first for another reason than their outputs.
      flops: multiplications and additions of one run, where it is a matrix product.
      runs: times it runs in a step.
    """

    type: str
    inputs: list[int]
    outputs: list[int]
    after: list[int] = dataclasses.field(default_factory=list)
    flops: int = 0
    runs: int = 1


class FlatGraph:
    """A graph with function bodies in place of their calls, and one round of a loop in place of the loop.

    Attributes:
      nodes: in the order in which they were made.
      tensors: (dtype, number of elements) of every tensor; resources have no elements.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: list[tuple[tf.DType, int]] = []
        # Number of a resource -> nodes that come before the next change of it.
        self._users: dict[int, list[int]] = collections.defaultdict(list)

    def flops(self) -> int:
        """Returns the FLOPs of all nodes in all their runs."""
        return sum(node.flops * node.runs for node in self.nodes)

    def add(self, graph, operations, numbers: dict[str, int], runs: int = 1, after: tuple = ()) -> None:
        """Adds operations.

        Args:
          graph: what they belong to.
          operations: in an order in which they can run.
          numbers: {name: number} of the tensors of `graph` that are there; new ones are added to it.
          runs: times they run in a step.
          after: numbers of nodes that come before all of them.
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
        if operation.type in _CALLS and not is_compiled(operation):
            function = function_of(graph, operation, "f")
            add = self._add_call if _is_whole(function) else self._add_body
            return add(function.graph, inputs, runs, after)
        if operation.type in _LOOPS:
            trips = tf.get_static_value(
                operation.inputs[1]
            )  # the second variable of a loop is its maximum_iterations
            if trips is None:
                raise NotImplementedError(f"{operation.name}: a loop without a fixed number of iterations")
            body = function_of(graph, operation, "body").graph
            return self._add_body(body, inputs, runs * int(trips), after)
        outputs = [self._add_tensor(tensor) for tensor in operation.outputs]
        node = Node(_kind(graph, operation), inputs, outputs, after, flops_of(operation), runs)
        self.nodes.append(node)
        return outputs

    def _add_body(self, body, arguments: list[int], runs: int, after: list[int]) -> list[int]:
        """Adds a function with its arguments in place and returns its results."""
        numbers, start = dict(zip((tensor.name for tensor in body.inputs), arguments)), len(self.nodes)
        self.add(body, body.get_operations(), numbers, runs, tuple(after))
        outputs = [numbers[tensor.name] for tensor in body.outputs]
        made = {
            number: start + index for index, node in enumerate(self.nodes[start:]) for number in node.outputs
        }
        # The end of the call, for those who wait for it.
        self.nodes.append(Node("NoOp", [], [], [made[number] for number in outputs if number in made]))
        return outputs

    def _add_call(self, body, arguments: list[int], runs: int, after: list[int]) -> list[int]:
        """Adds a function that stays a call, and returns its results: it starts when all its arguments are
        there, holds them until it ends, and gives its results then."""
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
            raise NotImplementedError(
                f"{tensor.name} of {tensor.op.type} has no static shape: {tensor.shape}"
            )
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


def function_of(graph, operation, attribute: str):
    """Returns a function that an operation calls."""
    # The public form is a protocol buffer, without shapes.
    return graph._functions[operation.get_attr(attribute).name]  # pylint: disable=protected-access


def _is_whole(function) -> bool:
    """Tells whether a function stays a call, where TensorFlow puts others in place of theirs."""
    return function.cached_definition.attr["_noinline"].b


def is_compiled(operation) -> bool:
    """Tells whether an operation is the call of a function that is compiled: one operation in memory, whose
    values between are in registers."""
    return operation.type in _CALLS and "_XlaMustCompile" in operation.node_def.attr


def _changes_variables(graph, operation) -> bool:
    """Tells whether an operation is the call of a compiled function that writes to variables."""
    if not is_compiled(operation):
        return False
    body = function_of(graph, operation, "f").graph
    return any(inner.type.startswith("Assign") for inner in body.get_operations())


def _kind(graph, operation) -> str:
    """Returns the type, but Identity for what is nothing else in memory, and what a compiled function
    does."""
    if is_compiled(operation):
        return "AssignCompiled" if _changes_variables(graph, operation) else "Compiled"
    if operation.type == "Unpack" and operation.get_attr("axis") == 0:
        return "Identity"
    if operation.type == "Cast" and operation.inputs[0].dtype == operation.outputs[0].dtype:
        return "Identity"
    return operation.type


def flops_of(operation) -> int:
    """Returns the multiplications and additions of a matrix product; 0 of any other operation."""
    if operation.type == "Einsum":
        return _flops_of_einsum(operation)
    if operation.type != "MatMul" and operation.type not in _BATCHED_PRODUCTS:
        return 0
    is_transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
    inner = operation.inputs[0].shape[-2 if is_transposed else -1]
    return 2 * math.prod(operation.outputs[0].shape) * inner


def _flops_of_einsum(operation) -> int:
    """Returns the FLOPs of an einsum of two factors: a loop for each letter that both have or the result
    keeps."""
    terms, _, result = operation.get_attr("equation").decode().partition("->")
    factors = terms.split(",")
    if len(factors) != 2:
        return 0
    sizes = {
        letter: size
        for term, tensor in zip(factors, operation.inputs)
        for letter, size in zip(term, tensor.shape)
    }
    return 2 * math.prod(sizes[letter] for letter in {*result, *set(factors[0]).intersection(factors[1])})
