"""Shapes of tensors, of which some sizes are known when a graph is made."""

from __future__ import annotations

import tensorflow as tf


def sizes(x: tf.Tensor) -> list:
    """Returns the sizes of a tensor: numbers where they are known, scalar tensors elsewhere (batches of one
    length each have no fixed L)."""
    return [
        dynamic if static is None else static for static, dynamic in zip(x.shape, tf.unstack(tf.shape(x)))
    ]
