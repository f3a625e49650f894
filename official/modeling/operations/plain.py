"""The operations in TensorFlow's own operations and gradients.

`official.modeling.operations.fused` has the same functions, faster on CPUs; this module works everywhere, and
is their oracle.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from official.modeling.layers import ACTIVATIONS, Norm, dropout, layer_norm, matmul_2d, recomputed, sizes


def bias_activation(x: tf.Tensor, bias: tf.Tensor, activation: str) -> tf.Tensor:
    """Returns activation(x + bias) for x [..., F] and bias [F], in the type of x; `activation` is a name of
    `layers.ACTIVATIONS`."""
    return ACTIVATIONS[activation].function(tf.nn.bias_add(x, tf.cast(bias, x.dtype)))


def residual_norm(
    x: tf.Tensor,
    bias: tf.Tensor,
    residual: tf.Tensor,
    norm: Norm,
    epsilon: float,
    rate: float,
    seed: tf.Tensor | None,
) -> tf.Tensor:
    """Returns LayerNorm(residual + dropout(x + bias)), in the type of the residual. The sum and its
    statistics are float32.

    Args:
      x, residual: [..., D] in the compute dtype.
      bias: [D], bias of the dense product.
      norm, epsilon: as in `layers.layer_norm`.
      rate, seed: as in `layers.dropout`.
    """
    x = dropout(tf.nn.bias_add(x, tf.cast(bias, x.dtype)), rate, seed)
    x = tf.cast(x, tf.float32) + tf.cast(residual, tf.float32)
    return tf.cast(layer_norm(x, norm, epsilon), residual.dtype)


def norm(x: tf.Tensor, norm: Norm, epsilon: float, swish: bool) -> tf.Tensor:
    """Returns LayerNorm(x), or swish of it, y sigmoid(y), in the type of x [..., D]; computed in float32.

    Source of swish: Ramachandran et al. 2017, "Searching for Activation Functions".
    """
    y = layer_norm(tf.cast(x, tf.float32), norm, epsilon)
    return tf.cast(y * tf.sigmoid(y) if swish else y, x.dtype)


def add_and_norm(
    x: tf.Tensor, residual: tf.Tensor, norm: Norm, epsilon: float, rate: float, seed: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns residual + dropout(x), and LayerNorm of it, in their type; arguments as in `residual_norm`."""
    total = residual + dropout(x, rate, seed)
    return total, tf.cast(layer_norm(tf.cast(total, tf.float32), norm, epsilon), x.dtype)


def gated_activation(x: tf.Tensor, activation: str) -> tf.Tensor:
    """Returns activation(first half) times the second half of x [..., 2 x F], in its type; `activation` is a
    name of `layers.ACTIVATIONS`."""
    values, gates = tf.split(x, 2, axis=-1)
    return ACTIVATIONS[activation].function(values) * gates


def products_of(norm: Callable, add_and_norm: Callable, gated_activation: Callable) -> tuple[Callable, ...]:
    """Returns the functions of a set that combine its other functions with a matrix product."""

    def norm_product(x: tf.Tensor, weights: Norm, epsilon: float, kernel: tf.Tensor) -> tf.Tensor:
        """Returns LayerNorm(x) @ kernel, in the type of both."""
        return matmul_2d(norm(x, weights, epsilon, swish=False), kernel)

    def add_and_norm_product(x, residual, weights: Norm, epsilon: float, kernel, rate: float, seed):
        """Returns residual + dropout(x), and LayerNorm of it @ kernel; arguments as in `residual_norm`."""
        total, y = add_and_norm(x, residual, weights, epsilon, rate, seed)
        return total, matmul_2d(y, kernel)

    def gated_product(
        x: tf.Tensor, activation: str, kernel: tf.Tensor, rate: float, seed: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns dropout(gated_activation(x)) @ kernel."""
        return matmul_2d(dropout(gated_activation(x, activation), rate, seed), kernel)

    return norm_product, add_and_norm_product, gated_product


norm_product, add_and_norm_product, gated_product = products_of(norm, add_and_norm, gated_activation)


def rotate(products_BLE: tf.Tensor, cos: tf.Tensor, sin: tf.Tensor, heads: int) -> tf.Tensor:
    """Returns products of query, key and value side by side, in which pairs of numbers of queries and keys,
    at a distance of K / 2, are rotated by angles.

    Args:
      products_BLE: products, E = 3 x H x K.
      cos, sin: cosines and sines of the angles, float32 [B or 1, L, K / 2].
      heads: H.
    """
    _, length, columns = sizes(products_BLE)
    half = columns // (6 * heads)
    x = tf.cast(tf.reshape(products_BLE, [-1, length, 3, heads, 2, half]), tf.float32)
    first, second = tf.unstack(x, num=2, axis=4)
    # Values are not rotated.
    cos, sin = (
        tf.stack([each, each, tf.fill(tf.shape(each), rest)], axis=2)[:, :, :, None]
        for each, rest in ((cos, 1.0), (sin, 0.0))
    )
    turned = tf.stack([first * cos - second * sin, second * cos + first * sin], axis=4)
    return tf.cast(tf.reshape(turned, [-1, length, columns]), products_BLE.dtype)


def gate(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns the gated linear unit of x [..., 2 x D] and bias [2 x D]: the first half of their sum times the
    sigmoid of the second, in the type of x. Source: Dauphin et al. 2016, "Language Modeling with Gated
    Convolutional Networks"."""
    values, gates = tf.split(tf.nn.bias_add(x, tf.cast(bias, x.dtype)), 2, axis=-1)
    return values * tf.sigmoid(gates)


def residual(
    x: tf.Tensor, bias: tf.Tensor, residual: tf.Tensor, rate: float, seed: tf.Tensor | None
) -> tf.Tensor:
    """Returns residual + dropout(x + bias), in the type of the residual; arguments as in `residual_norm`."""
    x = dropout(tf.nn.bias_add(x, tf.cast(bias, x.dtype)), rate, seed)
    return residual + tf.cast(x, residual.dtype)


def split_heads(products_BLE: tf.Tensor, bias: tf.Tensor | None, parts: int, heads: int) -> list[tf.Tensor]:
    """Returns the parts of products + bias, each [B, H, L, K].

    Args:
      products_BLE: products of all parts side by side, E = parts x H x K.
      bias: [E]; None for none.
      parts, heads: number of parts and heads.
    """
    if bias is not None:
        products_BLE = tf.nn.bias_add(products_BLE, tf.cast(bias, products_BLE.dtype))
    _, length, columns = sizes(products_BLE)
    products_BLNHK = tf.reshape(products_BLE, [-1, length, parts, heads, columns // (parts * heads)])
    # unstack, not products[i]: the gradient of slices would be a sum of padded tensors.
    return tf.unstack(tf.transpose(products_BLNHK, [2, 0, 3, 1, 4]), num=parts)


def join_heads(heads_BHLK: tf.Tensor) -> tf.Tensor:
    """Concatenates the vectors of all heads to [B, L, H x K]."""
    _, heads, length, size = sizes(heads_BHLK)
    return tf.reshape(tf.transpose(heads_BHLK, [0, 2, 1, 3]), [-1, length, heads * size])


def attend(
    query_BHLK: tf.Tensor,
    key_BHMK: tf.Tensor,
    value_BHMK: tf.Tensor,
    scores_B1LM: tf.Tensor,
    rate: float,
    seed: tf.Tensor | None,
    again: bool = False,
) -> tf.Tensor:
    """Returns dropout(softmax(query key^T / sqrt(K) + scores)) value, [B, H, L, K] in the type of the query.

    Args:
      query_BHLK, key_BHMK, value_BHMK: in the compute dtype.
      scores_B1LM: float32 [B, 1, L or 1, M], added to the scores: see `attention.scores`. It has no gradient.
      rate, seed: as in `layers.dropout`.
      again: whether to store only the arguments for the backward pass, which recomputes scores, softmax and
        dropout.
    """
    if again:

        def attended(query, seed, key, value, scores):
            return attend(query, key, value, scores, rate, seed)

        return recomputed(attended)(query_BHLK, seed, key_BHMK, value_BHMK, scores_B1LM)
    # Softmax in float32: cast once here, back once below.
    scores_BHLM = tf.cast(tf.matmul(query_BHLK, key_BHMK, transpose_b=True), tf.float32)
    weights_BHLM = tf.nn.softmax(scores_BHLM * query_BHLK.shape[-1] ** -0.5 + tf.stop_gradient(scores_B1LM))
    weights_BHLM = dropout(weights_BHLM, rate, seed)
    return tf.matmul(tf.cast(weights_BHLM, query_BHLK.dtype), value_BHMK)


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns -log softmax(logits)[labels], float32 [...], of logits float32 [..., C] and labels int32 [...]
    in [0, C)."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
