"""`ipu.cross_replica_ops`, for a weight update that is traced once for all replicas.

Every replica has its own accumulated gradients, and one set of variables stands for the equal copies of all.
The update is traced for replica 0, so a gradient that is not reduced changes the variables by the value of
that replica alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf

# id of a gradient of replica 0 -> that gradient on all replicas, while an update is traced.
_on_all: dict[int, Sequence[tf.Tensor]] = {}


@contextlib.contextmanager
def tracing(gradients: list[Sequence[tf.Tensor]]):
    """Reductions inside are of these gradients, each of them on all replicas."""
    _on_all.update({id(each[0]): each for each in gradients})
    try:
        yield
    finally:
        _on_all.clear()


@tf.autograph.experimental.do_not_convert
def cross_replica_sum(x: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a gradient over the replicas."""
    if id(x) not in _on_all:
        raise NotImplementedError("this fake reduces the gradients of a weight update, and nothing else")
    return tf.add_n(_on_all[id(x)])
