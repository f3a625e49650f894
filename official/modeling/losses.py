"""Losses and accuracies as (sum, weight) pairs, float32.

One place, far above, divides: replicas, micro batches and a ragged last batch then cancel out.
"""

from __future__ import annotations

import tensorflow as tf

from official.modeling import operations


def cross_entropy(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, fused: bool | str = False
) -> tf.Tensor:
    """Returns sum(weights * -log softmax(logits)[labels]).

    Args:
      logits: float32 [..., C].
      labels: int32 [...], in [0, C).
      weights: float32 [...].
      fused: which set of operations, see `operations.choose`; others than the plain ones take fewer passes
        over the logits, which counts where C is a vocabulary.
    """
    return tf.reduce_sum(operations.choose(fused).cross_entropy(logits, labels) * weights)


def correct(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the weight of the predictions that are right; arguments as in `cross_entropy`."""
    hits = tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels)
    return tf.reduce_sum(tf.cast(hits, tf.float32) * weights)


def squared_error(scores: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns sum(weights * (scores - labels) ** 2); all float32 [...]."""
    return tf.reduce_sum(tf.math.squared_difference(scores, labels) * weights)
