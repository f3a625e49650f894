"""Functions that are computed again in the backward pass, so that nothing of them is kept for it.

What they draw follows from a seed, so that both times are the same to the bit.
Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from official.modeling.layers import shared_function

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def recomputed(function: Callable[..., tf.Tensor], as_kept: bool = False) -> Callable[..., tf.Tensor]:
    """Returns the function, of whose tensors only the arguments are kept for the backward pass.

    Args:
      function: (x, seed, *others) -> tensor, of a tensor, a seed or None, and nests of tensors and None. It
        reads nothing else that has a gradient, and what is large in it follows from `x` or the seed.
      as_kept: for a function that stays a call: with a seed its forward pass has the bits, and the memory
        while it runs, of one that keeps its tensors, see `_called_as_kept`.
    """

    # Made here, not with the module: it is for a TensorFlow that has such calls.
    take_first = shared_function(_first) if as_kept else None

    def run(*arguments: Any) -> tf.Tensor:
        flat, seed = tf.nest.flatten(arguments), arguments[1]
        there = [place for place, value in enumerate(flat) if value is not None]
        first = 1 if seed is None else 2

        def call(tensors: Sequence) -> tf.Tensor:
            values = dict(zip(there, tensors))
            all_values = [values.get(place) for place in range(len(flat))]
            return function(*tf.nest.pack_sequence_as(arguments, all_values))

        @tf.custom_gradient
        def compute(*tensors):
            def gradient(upstream):
                waiting = [*after(upstream, tensors[:first]), *map(tf.identity, tensors[first:])]
                return _with_gradients(call, waiting, upstream)[1]

            if take_first is None or seed is None:  # without a seed it is an evaluation
                return call(tensors), gradient
            return _called_as_kept(call, tensors, take_first), gradient

        return compute(*(flat[place] for place in there))

    return run


def after(upstream: tf.Tensor, tensors: Sequence) -> list:
    """Returns the tensors, which are there only when `upstream` is.

    What is ready runs, and what is equal is merged: computed again at once, or once for both passes, it would
    be kept. Compilers know no other order than that of values, so the choice below is one that none of them
    can foresee. Where the upstream gradient is NaN, so are the gradients, whatever the tensors.
    """
    # The largest of no numbers is -inf: packed rows may have no sequence of some length.
    missing = tf.math.is_nan(tf.reduce_max(tf.reshape(upstream, [-1])[:1]))
    return [tf.where(missing, tf.zeros([], tensor.dtype), tensor) for tensor in tensors]


def _with_gradients(function: Callable, tensors: Sequence, upstream: tf.Tensor | None) -> tuple:
    """Returns (result, the gradient of each tensor, None where it has none)."""
    watched = [tensor for tensor in tensors if tensor.dtype.is_floating]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watched)
        result = function(tensors)
    found = iter(tape.gradient(result, watched, output_gradients=upstream))
    return result, [next(found) if tensor.dtype.is_floating else None for tensor in tensors]


def _called_as_kept(function: Callable, tensors: Sequence, take_first: Callable) -> tf.Tensor:
    """Returns the result of a function that is a call, computed as in a step that keeps its tensors.

    There the call gives not only its result, but all that the backward pass reads. TensorFlow's graph
    optimizer puts factors together whose product nobody else reads, which rounds otherwise. So the call is
    made to give all that here, too, to one who takes the result.
    """
    result, _ = _with_gradients(function, tensors, None)  # nobody needs the gradients: they do not run
    if tf.executing_eagerly() or result.op.type not in _CALLS:
        return result
    return take_first(*result.op.outputs)


def _first(*values):
    return values[0]
