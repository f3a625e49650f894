"""`ipu.cross_replica_ops`, for a weight update that is traced once for all replicas.

Every replica has its own accumulated gradients, and one set of variables stands for the equal copies of all.
The update is traced for replica 0. A reduction over the replicas needs the value that the others have at that
place: the operations between their gradients and the reduced tensor are copied for each of them. What is
assigned to a variable must be the same on all replicas: it may depend on a replica's own values only through
a reduction.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import machine

CHANGES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "StatefulPartitionedCall")


class Update:
    """A weight update that is being traced.

    Attributes:
      count: the number of replicas.
      graph: the graph of the update.
      own: id of a tensor of replica 0 -> that tensor on all replicas.
      reduced: ids of the tensors that are the same on all replicas because they were reduced.
    """

    def __init__(self, count: int, graph: Any):
        self.count = count
        self.graph = graph
        self.own: dict[int, list[tf.Tensor]] = {}
        self.reduced: dict[int, tf.Tensor] = {}

    def give(self, values: list[tf.Tensor]) -> tf.Tensor:
        """Makes the tensors of all replicas known; returns that of replica 0, which stands for them."""
        self.own[id(values[0])] = values
        return values[0]

    def on_all(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """Returns the value of a tensor of replica 0 on every replica."""
        if tensor.graph is not self.graph:
            raise NotImplementedError(
                "this fake reduces across replicas only what is computed in apply_gradients itself, not in a "
                "function or a loop inside of it"
            )
        return [tensor] + [self._copy(tensor, replica, {}) for replica in range(1, self.count)]

    def _copy(self, tensor: tf.Tensor, replica: int, done: dict[int, tf.Tensor]) -> tf.Tensor:
        if id(tensor) in self.own:
            return self.own[id(tensor)][replica]
        if id(tensor) in self.reduced or not tensor.op.inputs:
            return tensor
        if id(tensor) not in done:
            inputs = [self._copy(each, replica, done) for each in tensor.op.inputs]
            if all(new is old for new, old in zip(inputs, tensor.op.inputs)):
                copies = list(tensor.op.outputs)
            else:
                copies = _again(self.graph, tensor.op, inputs)
            done.update({id(old): new for old, new in zip(tensor.op.outputs, copies)})
        return done[id(tensor)]

    def check_equal(self, operations: list[Any]) -> None:
        """Refuses updates after which the replicas' variables would differ.

        Args:
          operations: those of the update, in the order in which they were made.

        Raises:
          RuntimeError: a variable changes by a value that each replica has for itself (the real one goes on,
            with variables that differ; not in the sources read).
        """
        differs = {id(each) for values in self.own.values() for each in values}
        for operation in operations:
            if not any(id(each) in differs for each in operation.inputs):
                continue
            if operation.type.startswith(CHANGES) and any(i.dtype == tf.resource for i in operation.inputs):
                raise RuntimeError(
                    f"{operation.name}: a variable is changed by values that differ between the {self.count} "
                    "replicas: reduce the gradients with cross_replica_ops.cross_replica_sum, or with "
                    "CrossReplicaOptimizer"
                )
            differs |= {id(each) for each in operation.outputs if id(each) not in self.reduced}


def _again(graph: Any, operation: Any, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the outputs of a copy of an operation with other inputs."""
    types = [each.dtype for each in operation.outputs]
    attributes = dict(operation.node_def.attr)
    return list(graph._create_op_internal(operation.type, inputs, types, attrs=attributes).outputs)


current: Update | None = None


@contextlib.contextmanager
def tracing(update: Update):
    """Reductions inside are those of this update."""
    global current
    outer, current = current, update
    try:
        yield update
    finally:
        current = outer


def _update_of(name: str) -> Update:
    if machine.current.running is None:
        raise RuntimeError(f"{name} is only supported in a program that runs on the IPU")
    if current is None:
        raise NotImplementedError(f"this fake knows {name} only in the weight update of a pipeline")
    return current


@tf.autograph.experimental.do_not_convert
def cross_replica_sum(x: tf.Tensor, replica_groups: Any = None, name: str | None = None) -> tf.Tensor:
    """Returns the sum of a tensor over the replicas.

    Raises:
      RuntimeError: the tensor was summed before (not in the sources read: the real one sums again).
    """
    if replica_groups is not None:
        raise NotImplementedError("this fake knows no replica groups")
    update = _update_of("cross_replica_sum")
    x = tf.convert_to_tensor(x)
    if id(x) in update.reduced:
        raise RuntimeError(
            f"{x.name} was summed over the replicas already: again would count it {update.count} times"
        )
    total = tf.add_n(update.on_all(x), name=name) if update.count > 1 else tf.identity(x, name=name)
    update.reduced[id(total)] = total
    return total


def module_names() -> dict[str, Any]:
    """Returns what the module ipu.cross_replica_ops has."""
    return {
        "cross_replica_sum": cross_replica_sum,
    }
