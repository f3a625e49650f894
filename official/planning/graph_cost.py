"""What a training step costs, read from its graph: FLOPs of matrix products, and the most bytes that live at once.

The graph is that of the program itself: the task's model and loss, `step.make_replica_gradients`, the optimizer. Its
variables are symbolic and nothing in it runs, so a large model costs no more memory than a small one.
"""

import collections
import dataclasses
import math
import re

import tensorflow as tf
from tensorflow.python.ops import (
    resource_variable_ops,
)  # for variables without initial values, which have no public name

from official.optimization import optimizers
from official.training import step as step_lib

# Outputs that share the memory of the first input.
_ALIASES = {
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
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_LOOPS = {"While", "StatelessWhile"}
_READERS = {
    "ReadVariableOp",
    "ResourceGather",
    *_CALLS,
    *_LOOPS,
}  # of variables; anything else that takes one may change it


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one optimizer step of one replica costs.

    Attributes:
      tensors, parameters: number of the model's trainable variables, and of the numbers in them.
      parameter_bytes: bytes of these variables; their gradients have as many.
      slot_bytes: bytes of the optimizer's slots.
      flops: multiplications and additions of all matrix products, forward and backward, all micro batches.
      peak_bytes: most bytes that live at once beside variables: gradients and activations.
    """

    tensors: int
    parameters: int
    parameter_bytes: int
    slot_bytes: int
    flops: int
    peak_bytes: int


def step_cost(config, task, batch_size: int) -> Cost:
    """Builds the training step of one replica and reads its cost.

    Args:
      config: the configuration; the mixed-precision policy must be that of its dtype.
      task: the task.
      batch_size: sequences of one step of a replica, all micro batches.
    """
    spec = task.synthetic_dataset(
        1
    ).element_spec  # shapes are all that is wanted of it: one sequence is enough
    with tf.Graph().as_default() as graph, tf.variable_creator_scope(_symbolic_variable):
        batch = {
            name: tf.compat.v1.placeholder(feature.dtype, [batch_size, *feature.shape[1:]])
            for name, feature in spec.items()
        }
        state = step_lib.make_state(config, task, tf.distribute.get_strategy())
        gradients, factor, sums, norm = step_lib.make_replica_gradients(config, task, state)(batch)
        flat, numbers = FlatGraph(), {}
        flat.add(graph, graph.get_operations(), numbers)
        _add_update(flat, numbers, graph, state, gradients, factor, norm)
    kept = [numbers[sums.name], numbers[norm.name]]
    variables = state.model.trainable_variables
    slots = optimizers.slot_variables(state.optimizer, config.optimizer_type, variables).values()
    return Cost(
        len(variables),
        sum(variable.shape.num_elements() for variable in variables),
        _bytes(variables),
        _bytes(slots),
        flat.flops(),
        peak_bytes(flat, execution_order(flat, kept), kept),
    )


def _bytes(variables) -> int:
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)


def _symbolic_variable(next_creator, **arguments):
    """Makes a variable without the operations that would fill it, which are more than those of a small
    model."""
    known = getattr(arguments["initial_value"], "keywords", {})  # of a partial, which is what Keras passes
    shape, dtype = (arguments.get(name) or known.get(name) for name in ("shape", "dtype"))
    if shape is None or dtype is None:
        return next_creator(**arguments)
    return resource_variable_ops.UninitializedVariable(
        trainable=arguments["trainable"],
        name=arguments["name"],
        shape=tf.TensorShape(shape),
        dtype=tf.as_dtype(dtype),
    )


def _add_update(flat, numbers: dict, graph, state, gradients, factor, norm) -> None:
    """Adds the update of every variable.

    TensorFlow is asked for one of each kind, such as layer_{}/output/dense/kernel; the others are copies of
    it, since hundreds of equal updates would take longer to build than the model.
    """
    built = {}
    for variable, gradient in zip(state.model.trainable_variables, gradients):
        kind = (re.sub(r"layer_\d+", "layer_{}", variable.name), variable.shape)
        if kind in built:
            first_gradient, start, stop = built[kind]
            flat.repeat(start, stop, {numbers[first_gradient.name]: numbers[gradient.name]})
            continue
        start, known = len(flat.nodes), len(graph.get_operations())
        # With loss scaling the update is a branch, which starts when the norm is known to be finite.
        with tf.control_dependencies([norm] if state.loss_scale else []):
            state.optimizer.update([gradient], [variable], factor)
        flat.add(graph, graph.get_operations()[known:], numbers, after=())
        built[kind] = gradient, start, len(flat.nodes)


@dataclasses.dataclass
class Node:
    """An operation of a flat graph.

    Attributes:
      type: TensorFlow's name of the operation.
      inputs, outputs: numbers of tensors.
      after: numbers of nodes that come first for another reason than their outputs.
      flops: of one run.
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

    def __init__(self):
        self.nodes: list[Node] = []
        self.tensors: list[tuple[tf.DType, int]] = []
        self._users = collections.defaultdict(
            list
        )  # number of a resource -> nodes that come before the next change of it

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
        made = {}  # name of an operation -> its last node
        for operation in operations:
            if operation.outputs and operation.outputs[0].name in numbers:
                continue  # an argument of a function
            inputs = [numbers[tensor.name] for tensor in operation.inputs]
            resources = [number for number in inputs if self.tensors[number][0] == tf.resource]
            waits = [*after, *(made[first.name] for first in operation.control_inputs if first.name in made)]
            if operation.type not in _READERS:
                waits += [user for number in resources for user in self._users[number]]
            outputs = self._add_operation(graph, operation, inputs, runs, waits)
            numbers.update(zip((tensor.name for tensor in operation.outputs), outputs))
            made[operation.name] = len(self.nodes) - 1
            for number in resources:
                self._users[number].append(len(self.nodes) - 1)

    def _add_operation(self, graph, operation, inputs: list[int], runs: int, after: list[int]) -> list[int]:
        if operation.type in _CALLS:
            return self._add_body(_function(graph, operation, "f"), inputs, runs, after)
        if operation.type in _LOOPS:
            trips = tf.get_static_value(
                operation.inputs[1]
            )  # the second variable of a loop is its maximum_iterations
            if trips is None:
                raise NotImplementedError(f"{operation.name}: a loop without a fixed number of iterations")
            return self._add_body(_function(graph, operation, "body"), inputs, runs * int(trips), after)
        outputs = [self._add_tensor(tensor) for tensor in operation.outputs]
        self.nodes.append(Node(_kind(operation), inputs, outputs, after, matmul_flops(operation), runs))
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


def _function(graph, operation, attribute: str):
    """Returns the graph of a function that an operation calls."""
    # The public form is a protocol buffer, without shapes.
    return graph._functions[operation.get_attr(attribute).name].graph  # pylint: disable=protected-access


def _kind(operation) -> str:
    """Returns the type, but Identity for what is nothing else in memory."""
    if operation.type == "Unpack" and operation.get_attr("axis") == 0:
        return "Identity"
    if operation.type == "Cast" and operation.inputs[0].dtype == operation.outputs[0].dtype:
        return "Identity"
    return operation.type


def matmul_flops(operation) -> int:
    """Returns 2 x M x N x K of a matrix product, summed over its batch; 0 for any other operation."""
    if operation.type == "Einsum":
        terms = operation.get_attr("equation").decode().split("->")[0].split(",")
        sizes = {
            letter: size
            for term, tensor in zip(terms, operation.inputs)
            for letter, size in zip(term, tensor.shape)
        }
        return 2 * math.prod(sizes.values()) if len(terms) == 2 else 0
    transposed = {
        "MatMul": "transpose_a",
        "BatchMatMul": "adj_x",
        "BatchMatMulV2": "adj_x",
        "BatchMatMulV3": "adj_x",
    }.get(operation.type)
    if transposed is None:
        return 0
    summed = operation.inputs[0].shape[-2 if operation.get_attr(transposed) else -1]
    return 2 * summed * operation.outputs[0].shape.num_elements()


def execution_order(flat: FlatGraph, kept) -> list[int]:
    """Returns the nodes that are needed, in the order in which TensorFlow's executor gets to them: first
    ready, first run.

    It is not the order in which they were written: an operation runs as soon as its inputs are there, long
      before it is
    needed. Dropout draws all its masks, weights are cast, and an optimizer multiplies its slots before the
    forward pass, and all this lives on.

    Args:
      flat: the graph.
      kept: numbers of tensors that are wanted. Changes of variables are wanted, too.
    """
    wanted = needed_nodes(flat, kept)
    producers = {number: index for index, node in enumerate(flat.nodes) for number in node.outputs}
    followers, waiting = collections.defaultdict(list), {}
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


def peak_bytes(flat: FlatGraph, order: list[int], kept=()) -> int:
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


class _Memory:
    """Buffers with the number of reads that are still to come."""

    def __init__(self, flat: FlatGraph, order: list[int], kept):
        self.reads = collections.Counter(kept)
        for index in order:
            self.reads.update(flat.nodes[index].inputs)
        self.tensors, self.owner, self.left, self.bytes = flat.tensors, {}, {}, {}
        self.live = self.peak = 0

    def run(self, node: Node) -> None:
        reads = collections.Counter(self.owner.get(number) for number in node.inputs)
        for number in node.outputs:
            self._place(node, number, reads)
        self.peak = max(self.peak, self.live)
        for number in node.inputs:
            self._release(self.owner.get(number), 1)
        for number in node.outputs:
            self._release(self.owner.get(number), 0)

    def _place(self, node: Node, number: int, reads) -> None:
        """Gives an output memory: none of its own, that of an input, or new."""
        kind, size = self.tensors[number]
        if node.type in _RESIDENT or not size:
            return
        if node.type in _ALIASES:
            owner = self.owner.get(node.inputs[0])
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


def needed_nodes(flat: FlatGraph, kept) -> list[int]:
    """Returns the nodes that `kept` tensors and changes of variables need, as TensorFlow prunes a function to
    them."""
    producers = {number: index for index, node in enumerate(flat.nodes) for number in node.outputs}
    changes = [
        index
        for index, node in enumerate(flat.nodes)
        if re.match("Assign|ResourceApply|ResourceScatter", node.type)
    ]
    found, left = set(), changes + [producers[number] for number in kept]
    while left:
        index = left.pop()
        if index not in found:
            found.add(index)
            node = flat.nodes[index]
            left += [producers[number] for number in node.inputs if number in producers] + node.after
    return sorted(found)
