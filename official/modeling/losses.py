"""Losses and accuracies as (sum, weight) pairs, float32. One place, far above, divides: replicas, micro batches and a
ragged last batch then cancel out."""

import tensorflow as tf

from official.modeling import fused as fused_ops
from official.modeling import plain as plain_ops


def cross_entropy(logits, labels, weights, fused: bool = False) -> tf.Tensor:
    """Returns sum(weights * -log softmax(logits)[labels]).

    Args:
      logits: float32 [..., C].
      labels: int32 [...], in [0, C).
      weights: float32 [...].
      fused: in fewer passes over the logits, which counts where C is a vocabulary.
    """
    return tf.reduce_sum((fused_ops if fused else plain_ops).cross_entropy(logits, labels) * weights)


def correct(logits, labels, weights) -> tf.Tensor:
    """Returns the weight of the predictions that are right; arguments as in `cross_entropy`."""
    hits = tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels)
    return tf.reduce_sum(tf.cast(hits, tf.float32) * weights)


def squared_error(scores, labels, weights) -> tf.Tensor:
    """Returns sum(weights * (scores - labels) ** 2); all float32 [...]."""
    return tf.reduce_sum(tf.math.squared_difference(scores, labels) * weights)
