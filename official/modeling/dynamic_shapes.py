"""Rounds dynamic sizes up to a few static ones, and gathers the predicted tokens whose weight is not zero."""

from __future__ import annotations

import tensorflow as tf

_SIZES = 64  # at most: more of them waste less, and are more to compile
_SIZE_STEP = 8


def size_for(count: tf.Tensor, most: int | tf.Tensor) -> tf.Tensor:
    """Returns the least of a few sizes that is a count or more; a 64th of the most is wasted, or 7.

    Args:
      count: int32, 0 or more.
      most: that the count can be.
    """
    step = -(-most // (_SIZES * _SIZE_STEP)) * _SIZE_STEP
    return -(-tf.maximum(count, 1) // step) * step


def find(weights_BP: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of the predicted tokens whose weight, float32 [B, P], is not 0: int32 [Q], in [0,
    B x P), and B x P for what fills them up."""
    weights_N = tf.reshape(weights_BP, [-1])
    most = tf.size(weights_N)
    numbers = tf.cast(tf.where(weights_N > 0)[:, 0], tf.int32)
    missing = size_for(tf.size(numbers), most) - tf.size(numbers)
    return tf.pad(numbers, [[0, missing]], constant_values=most)


def pick(values_BP: tf.Tensor, numbers_Q: tf.Tensor) -> tf.Tensor:
    """Returns the values of the predicted tokens of `find`, [Q]; 0 for what fills them up."""
    return tf.gather(tf.pad(tf.reshape(values_BP, [-1]), [[0, 1]]), numbers_Q)
