"""The stages between the backward pass and the update, as functions of lists of tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

# -----------------------------------------------------------------------------------------------------------
# Devices of variables, for models on several devices


if TYPE_CHECKING:  # used only in annotations: invalid at run time in Python 3.8
    Beside = Callable[[tf.Variable], contextlib.AbstractContextManager]


def beside(variables: Sequence[tf.Variable]) -> Beside:
    """Returns a function variable -> context in which operations run on its device; called by a replica.

    If all variables are on one device, the contexts do nothing: TensorFlow places the operations there.
    """
    if len(set(map(device_of, variables))) < 2:
        return lambda variable: contextlib.nullcontext()
    return lambda variable: tf.device(device_of(variable))


def device_of(variable: tf.Variable) -> str:
    """Returns the device of a variable, in replica context that of the replica's copy."""
    return variable.device or ""


def by_device(tensors: Sequence[tf.Tensor]) -> list[list[int]]:
    """Groups the indices of tensors in their list by device."""
    places: dict[str, list[int]] = {}
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.device or "", []).append(place)
    return list(places.values())


# -----------------------------------------------------------------------------------------------------------
# Accumulation, all-reduce, norm and clipping


def accumulate(batch, num_micro_batches: int, micro_step: Callable, like, last_apart: bool = False):
    """Sums the results of `micro_step` over the micro batches of a replica's batch.

    This is a loop in the graph: its body is traced once for any number of micro batches, and its results are
    available only at its end.

    Args:
      batch: {name: [num_micro_batches * micro batch, ...]}.
      num_micro_batches: number of slices; divides the batch.
      micro_step: (index int32, slice of the batch) -> structure of tensors.
      like: the same structure of tensors or variables, for shapes and types.
      last_apart: run the last micro batch after the loop, traced a second time, so that each of its results
        is available as soon as it is computed.

    Returns:
      The sum, in the structure of `like`.
    """
    if num_micro_batches == 1:
        return micro_step(tf.constant(0), batch)
    slices = {name: cut(value, num_micro_batches) for name, value in batch.items()}
    rounds = num_micro_batches - last_apart

    def body(index, total):
        new = micro_step(index, {name: value[index] for name, value in slices.items()})
        return index + 1, tf.nest.map_structure(add, total, new)

    zeros = tf.nest.map_structure(lambda x: tf.zeros(x.shape, x.dtype), like)
    index, total = tf.while_loop(
        lambda index, _: index < rounds,
        body,
        (tf.constant(0), zeros),
        parallel_iterations=1,
        maximum_iterations=rounds,
    )
    return body(index, total)[1] if last_apart else total


def cut(value, parts: int):
    """Reshapes [B, ...] to [parts, B / parts, ...]; one size other than the first may be unknown."""
    sizes = [parts, -1, *value.shape[1:]]
    if None in sizes:
        sizes[sizes.index(None)] = tf.shape(value)[sizes.index(None) - 1]
    return tf.reshape(value, sizes)


def add(total, new):
    """Returns the sum, by an addition that TensorFlow's graph optimizer does not merge with others.

    The optimizer would merge it with additions at the end of `new`, into a temporary variable that fails in a
    loop ("AlreadyExistsError: .../AddOpsRewrite_Add/tmp_var"). It does not look past a Snapshot, which makes
    no copy if its input has no other reader.
    """
    return total + tf.raw_ops.Snapshot(input=new)


def scaled(gradients, factor):
    """Multiplies every gradient by `factor`."""
    return [gradient * factor for gradient in gradients]


def as_float32(gradients):
    """Returns every gradient in float32, for scaling and summation."""
    return [tf.cast(gradient, tf.float32) for gradient in gradients]


def reduce_sum(tensors):
    """Sums a structure of tensors over all replicas; called by every replica. TensorFlow chooses how they are
    grouped into messages."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def reduce_sum_by_device(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sums a list of tensors over all replicas, in one group per device, with the result on that device;
    called by every replica."""
    reduced: list = list(tensors)
    for places in by_device(tensors):
        with tf.device(tensors[places[0]].device):  # otherwise the sums would move to the replica's
            sums = reduce_sum([tensors[place] for place in places])
        for place, tensor in zip(places, sums):
            reduced[place] = tensor
    return reduced


def reduce_sum_in_packs(tensors: list[tf.Tensor], bytes_per_pack: int) -> list[tf.Tensor]:
    """Sums tensors over all replicas, with one all-reduce per pack; called by every replica.

    The packs are requested in reverse order. TensorFlow runs them in the order of the requests, and the
    backward pass computes the gradients of the last layers first, so these are sent while it is running.

    Args:
      tensors: tensors of static shapes, in the order of the forward pass.
      bytes_per_pack: maximum bytes per all-reduce; a larger tensor is a separate pack. 0: no limit.
    """
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return tensors
    packs = _packs(tensors[::-1], bytes_per_pack)
    # One call per pack: TensorFlow joins the tensors of a call.
    reduced = [reduce_sum(tf.concat([tf.reshape(tensor, [-1]) for tensor in pack], axis=0)) for pack in packs]
    parts = [
        tf.reshape(part, tensor.shape)
        for joined, pack in zip(reduced, packs)
        for part, tensor in zip(tf.split(joined, [tensor.shape.num_elements() for tensor in pack]), pack)
    ]
    return parts[::-1]


def norm_by_device(tensors: list[tf.Tensor], norm_of: Callable) -> tf.Tensor:
    """Returns the global norm of tensors, squared on their devices; `norm_of` computes the norm of tensors on
    one device."""
    norms = []
    for places in by_device(tensors):
        with tf.device(tensors[places[0]].device):
            norms.append(norm_of([tensors[place] for place in places]))
    return tf.linalg.global_norm(norms)


def _packs(tensors: list[tf.Tensor], bytes_per_pack: int) -> list[list[tf.Tensor]]:
    """Splits a list into consecutive packs of tensors of one type, of at most `bytes_per_pack` bytes."""
    packs: list[list[tf.Tensor]] = []
    room = 0
    for tensor in tensors:
        size = tensor.shape.num_elements() * tensor.dtype.size
        if not packs or packs[-1][0].dtype != tensor.dtype or bytes_per_pack and size > room:
            packs.append([])
            room = bytes_per_pack
        packs[-1].append(tensor)
        room -= size
    return packs


def gather(tensors: dict):
    """Concatenates {name: [B, ...]} of all replicas along the first axis; called by every replica."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return tensors
    # A copy has the replica's device, which TensorFlow gathers to; tensors of a dataset have none.
    return {name: context.all_gather(tf.identity(value), axis=0) for name, value in tensors.items()}


def clip_factor(norm, max_norm: float):
    """Returns the factor, at most 1, that scales gradients of global norm `norm` to at most `max_norm`; NaN
    if the norm is not finite."""
    return tf.where(tf.math.is_finite(norm), max_norm / tf.maximum(norm, max_norm), float("nan"))
