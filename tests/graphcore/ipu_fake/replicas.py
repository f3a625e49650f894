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
            raise NotImplementedError("this fake reduces only what is computed in apply_gradients itself")
        return [tensor] + [self._copy(tensor, replica, {}) for replica in range(1, self.count)]

    def _copy(self, tensor: tf.Tensor, replica: int, done: dict[int, tf.Tensor]) -> tf.Tensor:
        if id(tensor) in self.own:
            return self.own[id(tensor)][replica]
        operation = tensor.op
        if id(tensor) in self.reduced or not operation.inputs:
            return tensor
        if id(tensor) not in done:
            inputs = [self._copy(each, replica, done) for each in operation.inputs]
            copies = list(operation.outputs)
            if any(new is not old for new, old in zip(inputs, operation.inputs)):
                types, attributes = [each.dtype for each in copies], dict(operation.node_def.attr)
                copies = self.graph._create_op_internal(
                    operation.type, inputs, types, attrs=attributes
                ).outputs
            done.update({id(old): new for old, new in zip(operation.outputs, copies)})
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
                    f"{operation.name}: a variable is changed by values that differ between the {self.count}"
                    " replicas: reduce the gradients with cross_replica_ops.cross_replica_sum"
                )
            differs |= {id(each) for each in operation.outputs if id(each) not in self.reduced}


current: Update | None = None


@contextlib.contextmanager
def tracing(update: Update):
    """Reductions inside are those of this update."""
    global current
    current = update
    try:
        yield update
    finally:
        current = None


@tf.autograph.experimental.do_not_convert
def cross_replica_sum(x: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a tensor over the replicas.

    Raises:
      RuntimeError: outside of the weight update of a pipeline, or the tensor was summed before (not in the
        sources read: the real one sums again).
    """
    if current is None:
        raise RuntimeError("cross_replica_sum belongs to a weight update that runs on the IPU")
    x = tf.convert_to_tensor(x)
    if id(x) in current.reduced:
        raise RuntimeError(f"{x.name} was summed over the replicas already: again would count it more often")
    total = tf.add_n(current.on_all(x)) if current.count > 1 else tf.identity(x)
    current.reduced[id(total)] = total
    return total
