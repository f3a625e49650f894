"""Copies of weights in the type that is computed in: a training step reads them and casts no weights.

Whoever updates the weights writes the copies, too. They are the weights' values cast, to the bit, so that a
step computes the same with and without them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from official.modeling.stages import Staged

Copies = Mapping[str, tf.Variable]  # by the names of the variables that they are copies of

_in_use: Copies = {}
_asked: dict[str, tf.Variable] | None = None


@contextlib.contextmanager
def reading(copies: Copies) -> Iterator[None]:
    """Lets all that is traced in its block read the copies."""
    global _in_use
    before, _in_use = _in_use, copies
    try:
        yield
    finally:
        _in_use = before


def wanted(model: Staged, dtype: tf.DType) -> list[tf.Variable]:
    """Returns the trained variables of a model that are read in a type other than their own."""
    global _asked
    _asked = {}
    try:
        for stage in model.stages():
            stage.weights()
        return [each for each in _asked.values() if each.trainable and each.dtype != dtype]
    finally:
        _asked = None


def cast(variable: tf.Variable, dtype: str, is_shared: bool) -> tf.Tensor:
    """Returns the value of a variable in a type. Of a copy the gradient is in that type, too, unless it is to
    be added to that of another read of the variable (`is_shared`)."""
    if _asked is not None:
        _asked[variable.name] = variable
    copy = _in_use.get(variable.name)
    if copy is None or copy.dtype != dtype:
        # tf.cast alone would return the variable where it has the type already.
        return tf.cast(tf.convert_to_tensor(variable), dtype)
    # Read by its handle: by itself, a variable of Keras would be cast.
    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
    return (_shared_copy if is_shared else _copy)(value, copy.read_value())


@tf.custom_gradient
def _copy(value, copy):
    return tf.identity(copy), lambda upstream: (upstream, None)


@tf.custom_gradient
def _shared_copy(value, copy):
    return tf.identity(copy), lambda upstream: (tf.cast(upstream, value.dtype), None)
