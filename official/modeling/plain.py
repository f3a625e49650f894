"""What of a model is bound by memory, in TensorFlow's own operations and gradients.

`official.modeling.fused` has the same functions, faster on CPUs; this one goes everywhere, and is its oracle.
"""

import tensorflow as tf

from official.modeling import layers


def bias_activation(x, bias, activation: str):
    """Returns activation(x + bias) for x [..., F] and bias [F], in the type of x; `activation` is a name of
    `layers.ACTIVATIONS`."""
    return layers.ACTIVATIONS[activation](tf.nn.bias_add(x, tf.cast(bias, x.dtype)))


def residual_norm(x, bias, residual, norm: layers.Norm, rate: float, seed):
    """Returns LayerNorm(residual + dropout(x + bias)), in the type of the residual. The sum and its
    statistics are float32.

    Args:
      x, residual: [..., D] in the compute dtype.
      bias: [D], of the dense product.
      norm: weights and epsilon of LayerNorm.
      rate, seed: as in `layers.dropout`.
    """
    x = layers.dropout(tf.nn.bias_add(x, tf.cast(bias, x.dtype)), rate, seed)
    x = tf.cast(x, tf.float32) + tf.cast(residual, tf.float32)
    return tf.cast(layers.layer_norm(x, norm), residual.dtype)


def attend(query_BHLK, key_BHMK, value_BHMK, scores_B11M, rate: float, seed):
    """Returns dropout(softmax(query key^T / sqrt(K) + scores)) value, [B, H, L, K] in the type of the query.

    Args:
      query_BHLK, key_BHMK, value_BHMK: in the compute dtype.
      scores_B11M: float32, added to the scores: see `attention.padding_scores`. It has no gradient.
      rate, seed: as in `layers.dropout`.
    """
    # Softmax in float32: cast once here, back once below.
    scores_BHLM = tf.cast(tf.matmul(query_BHLK, key_BHMK, transpose_b=True), tf.float32)
    weights_BHLM = tf.nn.softmax(scores_BHLM * query_BHLK.shape[-1] ** -0.5 + tf.stop_gradient(scores_B11M))
    weights_BHLM = layers.dropout(weights_BHLM, rate, seed)
    return tf.matmul(tf.cast(weights_BHLM, query_BHLK.dtype), value_BHMK)


def cross_entropy(logits, labels):
    """Returns -log softmax(logits)[labels], float32 [...], of logits float32 [..., C] and labels int32 [...]
    in [0, C)."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
