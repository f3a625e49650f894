"""Copies of weights in the type that a training step computes in: the step reads them and casts nothing."""

from __future__ import annotations

import contextlib
import contextvars
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import tensorflow as tf

from official.modeling.stages import Staged

if TYPE_CHECKING:  # alone in annotations: Python 3.8 could not make it
    Copies = Mapping[str, tf.Variable]  # by the names of the variables that they are copies of

# Of a thread: replicas are traced in threads of their own, each a piece at a time.
_in_use: contextvars.ContextVar[Copies] = contextvars.ContextVar(
    "copies in use", default=types.MappingProxyType({})
)
_asked: contextvars.ContextVar[dict[str, tf.Variable] | None] = contextvars.ContextVar("asked", default=None)


@contextlib.contextmanager
def reading(copies: Copies) -> Iterator[None]:
    """Lets all that is traced in its block read the copies."""
    before = _in_use.set(copies)
    try:
        yield
    finally:
        _in_use.reset(before)


def wanted(model: Staged, dtype: tf.DType) -> list[tf.Variable]:
    """Returns the trained variables of a model that are read in a type other than their own."""
    asked: dict[str, tf.Variable] = {}
    before = _asked.set(asked)
    try:
        for stage in model.stages():
            stage.weights()
    finally:
        _asked.reset(before)
    return [each for each in asked.values() if each.trainable and each.dtype != dtype]


def cast(variable: tf.Variable, dtype: str, is_shared: bool) -> tf.Tensor:
    """Returns the value of a variable in a type. Of a copy the gradient is in that type, too, unless it is to
    be added to that of another read of the variable (`is_shared`)."""
    asked = _asked.get()
    if asked is not None:
        asked[variable.name] = variable
    copy = _in_use.get().get(variable.name)
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
